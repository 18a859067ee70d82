"""Limits of calls, and an agent that goes round in circles."""

import sys

import anyio

from greenroom import CallError, Greenroom

CONFIG = {
    "mcpServers": {
        "clock": {
            "command": sys.executable,
            "args": ["-m", "greenroom.testing.servers.demo_clock"],
            "limits": {"now": "5/h per session"},
        }
    },
    "settings": {"loopGuard": "2/min"},
}


async def main() -> None:
    async with Greenroom.open(CONFIG) as room, room.session("agent") as agent:
        for offset in (1, 1, 1, 2, 3, 4, 5):
            try:
                await agent.call("clock_now", {"utc_offset": offset})
                print(f"{offset}: sent")
            except CallError as error:
                print(f"{offset}: {error.code}, {error.reach.value}")


anyio.run(main)
