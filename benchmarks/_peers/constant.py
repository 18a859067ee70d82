"""The ASGI server that carries our door, with nothing behind it: each request gets the same answer.

    python constant.py PORT

What a call over HTTP takes beyond this is what the gateway and the server behind it do. It names a session in each
answer, as both gateways do, so the client's requests have the same headers to all of them.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

BODY = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}'
HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"mcp-session-id", b"kJ3b9mQ2vXcR7tZpL0aWfY5eHdNuGs1oTiVqBxKrMjC"),
        (b"content-length", b"%d" % len(BODY)),
    ],
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send(HEAD)
    await send({"type": "http.response.body", "body": BODY})


def main(port: str) -> None:
    uvicorn.run(
        app, port=int(port), lifespan="off", http="h11", ws="none", loop="asyncio",
        log_config=None, access_log=False, date_header=False, server_header=False,
        timeout_keep_alive=600,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
