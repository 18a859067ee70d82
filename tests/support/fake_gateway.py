"""A gateway in its own process, whose room has servers in memory: real signals, real pipes, a real socket.

    python -m tests.support.fake_gateway CONFIG [--slow-exit]

The tool `clock_now` answers "noon"; `github_list_issues` never answers until the room drains, when it answers
"drained". A room closed without patience prints `room: at once` to stderr, else `room: drained`. With `--slow-exit` it
also hangs when closed without patience; `--slow-drain` drains for ever. But with `--slow-exit` its alarm is far away:
what a slow machine does in time is not what is tried.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec

from greenroom import Greenroom
from greenroom.config.model import Config
from greenroom.gateway import serve as _serve
from greenroom.gateway.serve import Options, serve
from greenroom.testing.fake_servers import FakeServer, fake_connectors

from .door_rooms import CREATE_ISSUE, LIST_ISSUES, NOW, KnownRoom


class Room(Greenroom):
    """Its end is told, and takes as long as the flags say."""

    drains: anyio.Event
    closes: anyio.Event

    async def aclose(self, patience: float | None = None) -> None:
        if patience == 0:
            print("room: at once", file=sys.stderr, flush=True)
            if "--slow-exit" in sys.argv:
                _hang()
            self.closes.set()
        elif "--slow-drain" in sys.argv:
            print("room: draining", file=sys.stderr, flush=True)
            await self.closes.wait()
        else:
            self.drains.set()
        await super().aclose(patience)
        if patience != 0:
            print("room: drained", file=sys.stderr, flush=True)


def _hang() -> None:
    """With the loop."""
    time.sleep(120)


def open_room(config: Config) -> Any:
    drains = anyio.Event()

    async def answered(call: Any) -> Mapping[str, Any]:
        if call.tool == "now":
            return {"content": [{"type": "text", "text": "noon"}]}
        await drains.wait()
        return {"content": [{"type": "text", "text": "drained"}]}

    tools = {"github": [CREATE_ISSUE, LIST_ISSUES], "clock": [NOW]}
    servers = {
        name: FakeServer(tools=[dict(tool) for tool in tools.get(name, ())], handler=answered)
        for name in config.servers
    }
    connectors = fake_connectors(servers)
    room: Any = Room.open(config, cache_path=":memory:", connectors=connectors, bootstrap=False)
    room.drains, room.closes = drains, anyio.Event()
    return room


def main(path: str) -> None:
    if "--slow-exit" not in sys.argv:
        setattr(_serve, "_LAST_RESORT", 50.0)  # noqa: B010
    config = msgspec.structs.replace(KnownRoom().config, files=(str(Path(path).absolute()),))
    options = Options(events=Path(path).with_suffix(".events"), version="9.9")
    anyio.run(serve, config, open_room, options, backend="trio")


if __name__ == "__main__":
    main(sys.argv[1])
