"""The barest server that there is in Python: a protocol of asyncio that reads nothing and answers a constant.

    python constant.py PORT

What a call over HTTP takes beyond this is what reading HTTP, the gateway and the server behind it take. It takes
whatever comes for one request, which holds for a client that sends each request at once and waits for the answer. It
names a session in each answer, as gateways do, so the client's requests have the same headers to all of them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

BODY = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}'
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"mcp-session-id: kJ3b9mQ2vXcR7tZpL0aWfY5eHdNuGs1oTiVqBxKrMjC\r\ncontent-length: %d\r\n\r\n"
)
ANSWER = HEAD % len(BODY) + BODY


class Constant(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", port)
    await server.serve_forever()


def main(port: str) -> None:
    asyncio.run(serve(int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
