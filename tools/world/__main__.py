"""Real servers and real clients, as a person has them: `python -m tools.world [--core] [--only NAME] [--write]`.

Servers, clients and agent frameworks are installed from the package indexes, each into its own environment under
`.build/world/`, and tried with this checkout. Public documents of HTTP APIs are served, each against an API made from
it. A scenario of ours runs under another explorer of schedules, and FastMCP's own tests with our door in the middle.
`--core` tries only what CI tries, without these two. `--write` writes the tables, and of which run they are, to
`docs/world.md` (not of a run of some), and what frameworks tell of faults to
`docs/frameworks/what-a-model-is-told.md`. The run fails when there is any problem.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from . import _adapters
from ._adapters import AdapterRow, play_adapters
from ._apis import ApiRow, play_apis
from ._clients import ClientRow, play_clients
from ._install import ROOT, node_is_there
from ._models import ModelRow, play_models
from ._schedulers import SCHEDULER, SchedulerRow, play_scheduler
from ._servers import ServerResults, play_servers
from ._suites import SuiteRow, play_suite
from ._table import ADAPTERS, APIS, CLIENTS, MODELS, SERVERS, Adapter, Api, Client, Server

PAGE = ROOT / "docs" / "world.md"
SUITE = "FastMCP's tests"
TYPES = "types of the models' APIs"
T = TypeVar("T", Server, Client, Adapter, Api)


def main() -> int:
    wish = _arguments()
    if not node_is_there():
        print("The world run needs node and npm (version 20 or newer) on PATH.", file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="greenroom-world-") as name:
        folder = Path(name)
        servers, clients = _wanted(SERVERS, wish), _wanted(CLIENTS, wish)
        gathered = asyncio.run(play_servers(servers, folder))
        met = asyncio.run(play_clients(clients, folder))
        adapted = play_adapters(_wanted(ADAPTERS, wish))
        apis = asyncio.run(play_apis(_wanted(APIS, wish), folder))
    is_whole = not wish.core and not wish.only
    typed = play_models(MODELS) if is_whole or wish.core or TYPES in wish.only else []
    schedulers = [play_scheduler()] if is_whole or SCHEDULER in wish.only else []
    suites = [play_suite()] if is_whole or SUITE in wish.only else []
    what = "all" if is_whole else "--core" if wish.core else "some"
    if wish.write:
        _adapters.write(adapted, [adapter.name for adapter in ADAPTERS])
    else:
        _adapters.compare(adapted)
    lines = [
        f"{_ran(what, len(servers), len(clients))}, {time.strftime('%Y-%m-%d', time.gmtime())}.",
        *(
            "",
            *_server_lines(gathered),
            "",
            *_client_lines(met),
            "",
            *_adapter_lines(adapted),
            "",
            *_model_lines(typed),
            "",
            *_api_lines(apis),
            "",
            *_scheduler_lines(schedulers),
            "",
            *_suite_lines(suites),
        ),
    ]
    print("\n".join(lines))
    print(f"\n{len(servers)} servers and {len(clients)} clients in {time.monotonic() - began:.0f} s")
    if wish.write and not wish.only:
        _write(lines)
    problems = [
        row for row in (*gathered.rows, *met, *adapted, *typed, *apis, *schedulers, *suites) if row.problems
    ]
    # A machine that is too slow for an orderly end in 1.2 s hears the gateway's alarm, and its guard does the rest.
    bad_end = bool(servers) and (gathered.exit_code not in (0, -signal.SIGALRM) or gathered.left)
    return 1 if problems or bad_end else 0


def _ran(what: str, servers: int, clients: int) -> str:
    """What was run, for the page: nobody writes its date by hand."""
    return f"A run of {what}: {servers} servers and {clients} clients"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.world", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--core", action="store_true", help="what CI plays")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a server, client, framework or API by name",
    )
    parser.add_argument("--write", action="store_true", help="write the tables in docs/")
    return parser.parse_args()


def _wanted(table: Sequence[T], wish: argparse.Namespace) -> list[T]:
    if wish.only:
        return [row for row in table if row.name in wish.only]
    return [row for row in table if row.core or not wish.core]


def _server_lines(gathered: ServerResults) -> list[str]:
    if not gathered.rows:
        return []
    lines = [
        "| server | version | tools | called | compared with the server alone |",
        "|---|---|---|---|---|",
    ]
    for row in gathered.rows:
        verdict = "; ".join(row.problems) or "the same"
        lines.append(
            f"| {row.name} | `{row.pin}` | {row.tools} | {'yes' if row.called else '–'} | {verdict} |"
        )
    lines.append("")
    lines.append(
        f"All were known {gathered.known_after:.1f} s after a start on an empty cache. On stdin's end the gateway left "
        f"with exit code {gathered.exit_code} after {gathered.exit_seconds:.2f} s; processes left: {gathered.left}."
    )
    return lines


def _client_lines(rows: Sequence[ClientRow]) -> list[str]:
    if not rows:
        return []
    lines = ["| client | version | played | at both doors |", "|---|---|---|---|"]
    return lines + [
        f"| {row.name} | `{row.pins}` | {row.played} | {'; '.join(row.problems) or 'works'} |" for row in rows
    ]


def _adapter_lines(rows: Sequence[AdapterRow]) -> list[str]:
    if not rows:
        return []
    lines = [
        "| framework, with its adapter | version | calls that a tape answered the same | played |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {row.name} | `{row.pins}` | {row.replayed} | {'; '.join(row.problems) or 'works'} |"
        for row in rows
    ]


def _api_lines(rows: Sequence[ApiRow]) -> list[str]:
    if not rows:
        return []
    lines = [
        "| document of an API | from | operations | reached by their calls | otherwise |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row.name} | `{row.pin}` | {row.operations:,} | {row.reached:,} | {'; '.join(row.problems) or '–'} |"
        for row in rows
    ]


def _model_lines(rows: Sequence[ModelRow]) -> list[str]:
    if not rows:
        return []
    pins = ", ".join(f"`{pin}`" for pin in MODELS)
    lines = [
        f"By the types of {pins}:",
        "",
        "| format of `tools_for` | definitions and answers | otherwise |",
        "|---|---|---|",
    ]
    return lines + [f"| `{row.name}` | {row.held} | {'; '.join(row.problems) or '–'} |" for row in rows]


def _scheduler_lines(rows: Sequence[SchedulerRow]) -> list[str]:
    if not rows:
        return []
    lines = ["| explorer of schedules | Python | the scenario of its page |", "|---|---|---|"]
    return lines + [
        f"| {row.name} | {row.python or '–'} | "
        f"{'; '.join(row.problems) or ('holds' if row.python else 'not played: no Python is new enough')} |"
        for row in rows
    ]


def _suite_lines(rows: Sequence[SuiteRow]) -> list[str]:
    if not rows:
        return []
    lines = ["| a peer's own tests | passed | fail for a known reason | other |", "|---|---|---|---|"]
    return lines + [
        f"| {row.name} | {row.passed} | {row.expected} | {'; '.join(row.problems) or 'none'} |"
        for row in rows
    ]


def _write(lines: Sequence[str]) -> None:
    head = PAGE.read_text(encoding="utf-8").partition("<!-- world -->")[0]
    PAGE.write_text(head + "<!-- world -->\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
