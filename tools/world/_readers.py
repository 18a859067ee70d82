"""Has others' programs read the timelines that `greenroom trace` and `tape` make, and asks them what they see.

The gateway of the scene has one slot for three servers, so calls wait for it; a server dies and is started again; and
the timeline is made while a call runs. Its file, and those of the same gateway's log and tape, must be read without any
error, and all that is in them must be found: each span in its lane, and each arrow, from a call to the run of it at the
server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from tests.support.attached import until
from tests.support.gateway import Gateway, faulty, serve

from ._install import ROOT, InstallFailed, install
from ._table import Reader

SCRIPTS = Path(__file__).parent / "readers"
PATIENCE = 120.0  # seconds for one file
_PLACE = """
    left join thread_track on {slice}.track_id = thread_track.id
    left join thread using (utid) left join process using (upid)
"""
ERRORS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
SPANS = f"""
    select process.name as side, thread.name as lane, slice.name as name, slice.category as kind,
           slice.ts / 1000 as ts, slice.dur / 1000 as dur
    from slice {_PLACE.format(slice="slice")}
"""
ARROWS = f"""
    select caller.name as caller, caller.category as kind, run.name as run, run.category as run_kind,
           run.ts / 1000 as ts, thread.name as lane, extract_arg(run.arg_set_id, 'args.incarnation') as incarnation
    from flow join slice caller on caller.id = flow.slice_out join slice run on run.id = flow.slice_in
    {_PLACE.format(slice="run")}
"""
Row = Mapping[str, Any]


@attrs.define
class ReaderRow:
    name: str
    pin: str
    spans: int = 0
    arrows: int = 0
    problems: list[str] = attrs.field(factory=list[str])


def play_readers(readers: Sequence[Reader], folder: Path) -> list[ReaderRow]:
    """Each of them, with the same files."""
    if not readers:
        return []
    scene = folder / "timeline"
    scene.mkdir()
    files = _timelines(scene)
    return [_play(reader, files) for reader in readers]


def _timelines(folder: Path) -> list[Path]:
    """Play the scene. Returns the timelines of the running gateway, and of its log and its tape after its end."""
    log, running, ended = folder / "events.jsonl", folder / "running.json", folder / "ended.json"
    tape, taped = folder / "scene.tape", folder / "taped.json"
    recorded = ("--events", os.fspath(log), "--record", os.fspath(tape))
    servers = {name: faulty(folder, name) for name in "abc"}
    with serve(folder, servers, "--max-connections", "1", *recorded) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={})
        at_once = [
            gateway.start_mcp(tool=tool, args=arguments)
            for tool, arguments in (
                ("a_sleep", {"seconds": 0.3}),
                ("a_echo", {}),
                ("b_echo", {}),
                ("c_echo", {}),
            )
        ]
        for number in at_once:
            gateway.answer(number)
        gateway.mcp(tool="c_crash", args={})
        gateway.mcp(tool="c_echo", args={})
        hung = gateway.start_mcp(tool="c_sleep", args={"seconds": 60})
        _wait_for_run(gateway, folder, running, "c_sleep")
        gateway.notify("notifications/cancelled", {"requestId": hung})
        gateway.end()
    _make(folder, "trace", os.fspath(log), "-o", os.fspath(ended))
    _make(folder, "tape", os.fspath(tape), "--perfetto", os.fspath(taped))
    return [running, ended, taped]


def _wait_for_run(gateway: Gateway, folder: Path, file: Path, tool: str) -> None:
    """Make the timeline again and again, until this call has reached its server."""

    def is_there() -> bool:
        _make(folder, "trace", "--pid", str(gateway.process.pid), "-o", os.fspath(file))
        return any(event["name"] == tool and event["cat"] == "run" for event in _spans(file))

    until(is_there, f"the run of {tool}")


def _make(folder: Path, *arguments: str) -> None:
    home = {"HOME": "", "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": "cache"}
    env = {**os.environ, **{name: os.fspath(folder / part) for name, part in home.items()}}
    where = () if "--pid" not in arguments else ("--config", os.fspath(folder / "mcp.json"))
    subprocess.run([sys.executable, "-m", "greenroom", *arguments, *where], env=env, cwd=ROOT, check=True)


def _play(reader: Reader, files: Sequence[Path]) -> ReaderRow:
    row = ReaderRow(reader.name, reader.pin)
    try:
        home = install("readers", reader.name.replace("'", ""), "npm alone", [reader.pin])
        for file in files:
            errors, spans, arrows = _ask(reader, home, file, (ERRORS, SPANS, ARROWS))
            row.spans += len(spans)
            row.arrows += len(arrows)
            row.problems += [f"{file.name}: {problem}" for problem in _judge(file, errors, spans, arrows)]
    except InstallFailed as error:
        row.problems.append(f"not installed: {error}")
    except ValueError as error:
        row.problems.append(str(error))
    return row


def _ask(reader: Reader, home: Path, file: Path, queries: Sequence[str]) -> list[list[Row]]:
    """The rows of each query. Raises `ValueError` when there is no answer."""
    command = ["node", SCRIPTS / reader.script, home / reader.folder, file, *queries]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{file.name} not read within {PATIENCE:g} s") from None
    if done.returncode:
        raise ValueError(f"{file.name} not read: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _judge(file: Path, errors: Sequence[Row], spans: Sequence[Row], arrows: Sequence[Row]) -> list[str]:
    problems = [f"{error['value']} times {error['name']}" for error in errors]
    sides, lanes = _names(file, "process_name"), _names(file, "thread_name")
    written = Counter(
        (sides[e["pid"], 0], lanes[e["pid"], e["tid"]], e["name"], e["cat"], e["ts"], e.get("dur", 0))
        for e in _spans(file)
    )
    read = Counter(
        tuple(span[key] for key in ("side", "lane", "name", "kind", "ts", "dur")) for span in spans
    )
    problems += [
        f"{what} {span}"
        for what, some in (("lacks", written - read), ("adds", read - written))
        for span in some
    ]
    runs = Counter(
        (event["name"], lanes[event["pid"], event["tid"]], event["ts"], event["args"]["incarnation"])
        for event in _spans(file)
        if event["cat"] == "run"
    )
    led_to = Counter((arrow["run"], arrow["lane"], arrow["ts"], arrow["incarnation"]) for arrow in arrows)
    problems += [f"no arrow, or another, to {run}" for run in (runs - led_to) + (led_to - runs)]
    problems += [
        f"an arrow starts at {arrow['caller']}" for arrow in arrows if arrow["kind"] not in ("call", "wait")
    ]
    return problems + [f"has no {what}" for what in _SHOWN - set(_kinds(spans))]


# What the scene must have brought about; without it the comparison says less than it seems to.
_SHOWN = {
    "c: connecting",
    "c: draining",
    "c: waits for slot",
    "c: calls: c_crash",
    "stdio: slot",
    "stdio: queue",
}


def _kinds(spans: Iterable[Row]) -> Iterable[str]:
    return (f"{span['lane']}: {span['name']}" for span in spans)


def _spans(file: Path) -> list[dict[str, Any]]:
    """The spans and marks of this timeline, as they were written."""
    return [event for event in _events(file) if event["ph"] in "Xi"]


def _names(file: Path, what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in _events(file) if e["name"] == what}


def _events(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
