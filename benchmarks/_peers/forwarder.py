"""The least a gateway in Python can do: read a line, decode its envelope, write it on under an id of its own, and back.

    python forwarder.py trio|asyncio COMMAND ...

No queue, no clock, no check, no bound: nothing stands between a read and its write. What a gateway takes beyond this is
what it does; what this takes beyond no gateway is the price of a third process and its loop. The two loops differ in
how they wait: asyncio calls a reader, trio wakes a task and arms the descriptor anew.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import msgspec
import trio

_CHUNK = 65_536
_NONE = msgspec.Raw(b"")


class Envelope(msgspec.Struct):
    id: msgspec.Raw = _NONE
    method: str | None = None
    params: msgspec.Raw = _NONE
    result: msgspec.Raw = _NONE


class Lines:
    """The whole lines that can be read from a descriptor now; `is_over` at its end."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.is_over = False
        self._rest = b""

    def read(self) -> list[bytes]:
        chunk = os.read(self.fd, _CHUNK)
        self.is_over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


class Forwarder:
    def __init__(self, client: Lines, server: Lines, to_server: int) -> None:
        self._client, self._server, self._to_server = client, server, to_server
        self._decode = msgspec.json.Decoder(Envelope).decode
        self._asked: dict[bytes, bytes] = {}  # our id -> the client's
        self._last = 0

    def from_client(self) -> bool:
        for line in self._client.read():
            message = self._decode(line)
            if message.method is None or not bytes(message.id):
                continue  # the benchmark's client notifies of nothing that matters
            self._last += 1
            self._asked[b"%d" % self._last] = bytes(message.id)
            asked = (self._last, message.method.encode(), bytes(message.params) or b"{}")
            os.write(self._to_server, b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}\n' % asked)
        return not self._client.is_over

    def from_server(self) -> bool:
        for line in self._server.read():
            message = self._decode(line)
            key = self._asked.pop(bytes(message.id), None)
            if key is not None:
                os.write(1, b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (key, bytes(message.result)))
        return not self._server.is_over


async def on_trio(readers: dict[int, Callable[[], bool]]) -> None:
    async def read(fd: int, on_readable: Callable[[], bool]) -> None:
        await trio.lowlevel.wait_readable(fd)
        while on_readable():
            await trio.lowlevel.wait_readable(fd)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for fd, on_readable in readers.items():
            nursery.start_soon(read, fd, on_readable)


async def on_asyncio(readers: dict[int, Callable[[], bool]]) -> None:
    over = asyncio.Event()

    def read(on_readable: Callable[[], bool]) -> None:
        if not on_readable():
            over.set()

    for fd, on_readable in readers.items():
        asyncio.get_running_loop().add_reader(fd, read, on_readable)
    await over.wait()
    for fd in readers:
        asyncio.get_running_loop().remove_reader(fd)


def main(loop: str, *command: str) -> None:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        client, server = Lines(0), Lines(child.stdout.fileno())
        forwarder = Forwarder(client, server, child.stdin.fileno())
        readers = {client.fd: forwarder.from_client, server.fd: forwarder.from_server}
        if loop == "trio":
            trio.run(on_trio, readers)
        else:
            asyncio.run(on_asyncio(readers))


if __name__ == "__main__":
    main(*sys.argv[1:])
