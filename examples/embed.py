import sys

import anyio

from greenroom import CallError, Greenroom

servers = {
    name: {"command": sys.executable, "args": ["-m", f"greenroom.testing.servers.demo_{name}"]}
    for name in ("clock", "flaky")
}


async def main() -> None:
    async with Greenroom.open({"mcpServers": servers}) as room:
        result = await room.call("clock_now", {"utc_offset": 1})
        print(result.text)
        try:
            await room.call("flaky_crash")  # the server crashes in the middle of this call
        except CallError as error:
            print(error.code, error.reach)  # call_failed sent: the call may have run


anyio.run(main)
