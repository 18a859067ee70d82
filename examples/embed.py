import sys

import anyio

from greenroom import Greenroom

clock = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


async def main() -> None:
    async with Greenroom.open({"mcpServers": {"clock": clock}}) as room:
        result = await room.call("clock_now", {"utc_offset": 1})
        print(result.text)


anyio.run(main)
