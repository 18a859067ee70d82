"""The first line of a link (`protocol.links`), as both of its ends read it."""

from __future__ import annotations

import socket

import anyio

from ...protocol.links import HELLO_BYTES


async def first_line(line: socket.socket) -> bytearray | None:
    """What the other end begins with: nothing may follow until it is answered. None: it ended before, or said too
    much."""
    said = bytearray()
    while not said.endswith(b"\n"):
        await anyio.wait_readable(line)
        try:
            some = line.recv(HELLO_BYTES)
        except BlockingIOError:
            continue
        said += some
        if not some or len(said) > HELLO_BYTES:
            return None
    return said
