"""Has two accidents with real servers, and makes a tape of each: `python examples/incidents/record.py FOLDER`.

`docs/incidents.md` tells what is on the tapes. They are made as `greenroom doctor --tape` makes one, from what a room
keeps of its last minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from greenroom import CallError, Greenroom

LOCK = anyio.Path("totals.locked")


@asynccontextmanager
async def room_of(*servers: str, **settings: Any) -> AsyncGenerator[Greenroom]:
    """A room of these servers, which knows what each has. They are named without a path, so that no tape has one."""
    entries = {name: {"command": "python3", "args": ["shop.py", name]} for name in servers}
    with TemporaryDirectory() as folder:
        opened = partial(Greenroom.open, bootstrap=False, cache_path=f"{folder}/cache.json")
        async with opened({"mcpServers": entries}) as room:
            for name in servers:
                await room.connect(name)
        async with opened({"mcpServers": entries, "settings": settings}) as room:
            yield room


async def call(room: Greenroom, tool: str, arguments: Mapping[str, Any]) -> None:
    """Call a tool, and print what its caller sees."""
    try:
        print(f"{tool}: {(await room.call(tool, arguments)).text}")
    except CallError as error:
        print(f"{tool}: {error.code}: {error}")


async def crash_loop(tape: Path) -> None:
    """A table is locked, so a server ends whenever it is asked for totals. Its agent asks again and again."""
    backoff = {"minMs": 500, "maxMs": 4000}
    async with room_of(
        "orders", restartBackoff=backoff, backoffJitter=0, failureThreshold=3, cooldownMs=3000
    ) as room:
        await call(room, "orders_find", {"customer": "Ann"})
        await LOCK.touch()
        for _ in range(8):
            await call(room, "orders_total", {"month": "May"})
            await anyio.sleep(0.6)
        await call(room, "orders_find", {"customer": "Bob"})
        await LOCK.unlink()
        await anyio.sleep(4)
        await call(room, "orders_total", {"month": "May"})
        await call(room, "orders_find", {"customer": "Bob"})
        await room.recent_tape(tape)


async def full_pool(tape: Path) -> None:
    """Two connections may be open, and two slow servers hold them. The tape is made while one call still runs."""
    limits = {"maxConnections": 2, "acquireTimeoutMs": 1500, "requestTimeoutMs": 2500}
    async with (
        room_of("search", "reports", "mail", "orders", **limits) as room,
        anyio.create_task_group() as calls,
    ):
        for number in range(2):
            calls.start_soon(call, room, "search_text", {"text": f"invoice {number}", "seconds": 1.6})
        calls.start_soon(call, room, "reports_make", {"what": "sales", "seconds": 1.2})
        await anyio.sleep(0.4)
        calls.start_soon(call, room, "orders_find", {"customer": "Ann"})
        await anyio.sleep(0.4)
        calls.start_soon(call, room, "reports_make", {"what": "stock", "seconds": 2.5})
        calls.start_soon(call, room, "mail_send", {"to": "Bob"})
        await anyio.sleep(3)
        await call(room, "orders_find", {"customer": "Bob"})
        calls.start_soon(call, room, "search_text", {"text": "receipts", "seconds": 1.0})
        await anyio.sleep(0.5)
        await room.recent_tape(tape)


def main(folder: Path) -> None:
    os.chdir(Path(__file__).parent)
    for what in (crash_loop, full_pool):
        tape = folder / f"{what.__name__.replace('_', '-')}.tape"
        tape.unlink(missing_ok=True)
        print(f"-- {tape.name}")
        anyio.run(what, tape)


main(Path(sys.argv[1]).resolve())
