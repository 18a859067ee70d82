"""Draw `docs/trace.svg`: a trace as a collector was told it by a client of the SDK, `serve --otlp` and a server of the
SDK. The call finds the only slot of the pool taken, so it waits for that, and then for its server's start.

`make trace-picture` plays it and writes the picture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._pictures import DARK
from tests.support.attached import until
from tests.support.gateway import serve
from tests.support.otlp import Collector, Received, collector

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "trace.svg"
APP = [sys.executable, "-m", "tests.support.traced_app"]
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 330, 70, 44, 24
COLOURS = {"client": "#7a7a7a", "greenroom": "#2e7d4f", "server": "#3b6ea5"}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, collector() as taken:
        _play(Path(folder), taken)
        spans = list(_in_order(taken))
    PICTURE.write_text(picture(spans), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(spans)} spans")
    return 0


def _play(folder: Path, taken: Collector) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": taken.url, "PYTHONPATH": os.fspath(ROOT)}
    whole = [sys.executable, "-S", os.fspath(ROOT / "testing" / "servers" / "whole.py"), "--name", "busy"]
    servers = {
        "own": {
            "command": APP[0],
            "args": [*APP[1:], "server"],
            "cwd": os.fspath(ROOT),
            "env": {**environment, "WORK_SECONDS": "0.5"},
        },
        "busy": {"command": whole[0], "args": whole[1:]},
    }
    flags = ("--http", "127.0.0.1:0", "--expose", "direct", "--otlp", taken.url, "--max-connections", "1")
    with serve(folder, servers, *flags, isolation="persistent", bootstrap=True) as gateway:
        log = folder / "stderr.txt"
        said = until(
            lambda: [line for line in log.read_text().splitlines() if "serving http" in line], "the door"
        )
        url = next(word for word in said[0].split() if word.startswith("http"))
        call = [sys.executable, "-m", "greenroom", "call", "busy_sleep", json.dumps({"seconds": 3.0})]
        where = {
            **os.environ,
            "XDG_RUNTIME_DIR": os.fspath(folder),
            "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        }
        busy = subprocess.Popen(
            [*call, "--config", os.fspath(folder / "mcp.json")], env=where, stdout=subprocess.DEVNULL
        )
        client = [*APP, "client", url, "2026-07-28", "own_add"]
        subprocess.run(client, cwd=ROOT, env={**os.environ, **environment}, check=True)
        busy.wait()
        gateway.process.terminate()
        gateway.process.wait()
    taken.wait_for("agent", "work", "tools/call add")


def _in_order(taken: Collector) -> Iterator[tuple[int, Received]]:
    """The spans of the client's trace, each with its depth, parents first."""
    [agent] = [span for span in taken.spans if span.name == "agent"]

    def below(span: Received, depth: int) -> Iterator[tuple[int, Received]]:
        yield depth, span
        for inner in taken.below(span):
            yield from below(inner, depth + 1)

    return below(agent, 0)


def picture(spans: Sequence[tuple[int, Received]]) -> str:
    """A row for each span: its program, its name, and a bar from its start to its end."""
    start = min(span.start for _, span in spans)
    whole = max(span.end for _, span in spans) - start
    height = TOP + ROW * len(spans) + 12

    def x(at: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - start) / whole

    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' role="img" font-family="sans-serif" font-size="12">',
        "<title>A trace from a client through Greenroom to a server</title>",
        DARK,
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, (service, colour) in enumerate(COLOURS.items()):
        shapes.append(f'<rect x="{16 + 110 * number}" y="14" width="12" height="12" fill="{colour}"/>')
        shapes.append(f'<text x="{34 + 110 * number}" y="24">{service}</text>')
    for number, (depth, span) in enumerate(spans):
        y, left, right = TOP + ROW * number, x(span.start), x(span.end)
        colour = COLOURS[span.service]
        kind = "" if span.kind == "INTERNAL" else f' <tspan fill="#888">{span.kind}</tspan>'
        shapes += [
            f'<text x="{16 + 14 * depth}" y="{y + 12}">{span.name}{kind}</text>',
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1.5):.1f}" height="16" rx="2" fill="{colour}"/>',
            f'<text x="{right + 6:.1f}" y="{y + 12}" fill="#666">{_seconds(span)}</text>',
        ]
    return "\n".join([*shapes, "</svg>", ""])


def _seconds(span: Received) -> str:
    taken = (span.end - span.start) / 1e9
    return f"{taken:.2f} s" if taken >= 0.1 else f"{taken * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
