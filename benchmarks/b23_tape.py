"""B23: what recording a tape costs a call, and how fast one is replayed.

Judged is the processor time that a call takes through a gateway that records (`serve --record`) to a server written
with the official SDK, gateway and server together, against the same without a tape. That is the call that a user has.
What recording adds is all in the gateway; so as context the same with the gateway alone, and with the smallest server
there is, and for a program that embeds a room, the smallest base there is.

The servers have credentials, as those of a user have: each call is searched for these, too. A tape of as many calls is
then replayed at once, in a room that starts nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs

from greenroom import Greenroom

from ._far_end import BACKENDS, COMMAND, TEXT, config_of
from ._figures import Bound, Figure, at_most, quantity, ratio
from ._gateways import ours
from ._processes import burnt, children
from ._rounds import Side, Size, one_core, take_async_turns, take_turns
from ._run import run_alone
from ._wire_client import WireClient

SDK_SERVER = str(Path(__file__).with_name("_peers") / "sdk_server.py")
CALLS = 1000
SIDES = ("recording", "without")
CREDENTIALS = {"GITHUB_TOKEN": "ghp_7Hq2mZk9Xw4Rb1Tn6Vc3", "DB_PASSWORD": "correct-horse-7-battery"}


def measure(size: Size) -> Iterator[Figure]:
    with one_core():
        whole, alone = _gateways(size, [sys.executable, SDK_SERVER])
        yield _compared("gateway and SDK server: processor of a call", whole, at_most(1.1, 1.05))
        yield _compared("gateway alone: processor of a call to an SDK server", alone)
        _, alone = _gateways(size, list(COMMAND))
        yield _compared("gateway alone: processor of a call", alone)
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                sides = anyio.run(_rooms, size, Path(folder), backend=backend)
            yield _compared(f"embedded, {backend}: processor of a call", sides)
    with tempfile.TemporaryDirectory() as folder:
        seconds = anyio.run(_replayed, size.of(CALLS, 5), Path(folder) / "one.tape")
        yield quantity("B23", f"replay of {CALLS:,} calls", [seconds], "s", at_most(1.0))


def _compared(what: str, sides: Sequence[Sequence[float]], bound: Bound | None = None) -> Figure:
    recording, without = zip(SIDES, sides, strict=True)
    return ratio("B23", what, recording, without, "µs", bound)


def _gateways(size: Size, command: Sequence[str]) -> tuple[list[list[float]], list[list[float]]]:
    """Microseconds of processor for a call, recorded and not: of gateway and server, and of the gateway alone."""
    count = size.of(200, 5)
    alone: list[list[float]] = [[], []]

    def called(client: WireClient, kept: list[float]) -> float:
        both = [client.pid, *children(client.pid)]
        before = [burnt(pid) for pid in both]
        client.latency(count)
        spent = [(burnt(pid) - had) / count * 1e6 for pid, had in zip(both, before, strict=True)]
        kept.append(spent[0])
        return sum(spent)

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plain = ours(Path(folder), expose="direct")
        _with_server(Path(folder) / "mcp.json", command)
        recording = attrs.evolve(plain, command=(*plain.command, "--record", f"{folder}/tapes"))
        sides: list[Side] = []
        for gateway, kept in zip((recording, plain), alone, strict=True):
            given = gateway.command, gateway.tool, gateway.arguments, gateway.env
            client = stack.enter_context(WireClient(*given))
            client.initialize()
            client.check_call("hello")
            sides.append(partial(called, client, kept))
        both = take_turns(sides, 3 * size.rounds)
    return both, [each[1:] for each in alone]


def _with_server(config: Path, command: Sequence[str]) -> None:
    """Have the only server of a configuration be this one."""
    config.write_text(json.dumps({"mcpServers": {"echo0": _entry(command)}}), encoding="utf-8")


def _entry(command: Sequence[str]) -> dict[str, Any]:
    return {"command": command[0], "args": list(command[1:]), "env": CREDENTIALS}


async def _rooms(size: Size, folder: Path) -> list[list[float]]:
    """Microseconds of our processor for a call of two rooms that take turns."""
    count = size.of(400, 5)

    async def called(room: Greenroom) -> float:
        before = time.process_time()
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
        return (time.process_time() - before) / count * 1e6

    config = {"mcpServers": {"echo0": _entry(COMMAND)}}
    async with AsyncExitStack() as stack:
        given = [
            Greenroom.open(config, bootstrap=False, cache_path=":memory:", record=record)
            for record in (folder, None)
        ]
        rooms = [await stack.enter_async_context(room) for room in given]
        return await take_async_turns([partial(called, room) for room in rooms], 3 * size.rounds)


async def _replayed(count: int, tape: Path) -> float:
    given = Greenroom.open(config_of(1), bootstrap=False, cache_path=":memory:", record=tape)
    async with given as room:
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
    began = time.perf_counter()
    async with Greenroom.replay(tape) as room:
        for _ in range(count):
            await room.call("echo0_echo", TEXT)
    return time.perf_counter() - began


if __name__ == "__main__":
    run_alone(measure)
