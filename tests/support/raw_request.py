"""HTTP requests that a client library would not send."""

from __future__ import annotations

import anyio
from anyio.abc import SocketStream


async def send_slowly(port: int, *, count: int, sent: int, size: int) -> list[bytes]:
    """Begin `count` requests with bodies of `size` bytes, of which only `sent` come, one after the other. The answers
    that come all the same; empty for a request that is waited for. Then all of them hang up."""
    streams: list[SocketStream] = []
    answers: list[bytes] = []
    head = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
    )
    try:
        for _ in range(count):
            stream = await anyio.connect_tcp("127.0.0.1", port)
            streams.append(stream)
            await stream.send(head + b" " * sent)
            answer = b""
            with anyio.move_on_after(0.5):
                answer = await stream.receive()
            answers.append(answer)
    finally:
        for stream in streams:
            await stream.aclose()
    await anyio.sleep(0.1)
    return answers
