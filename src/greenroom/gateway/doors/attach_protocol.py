"""What an attaching process and the background gateway say to each other, on the gateway's socket.

Lines of JSON. First the hello of the one that attaches, with the ends of two pipes. Then the gateway's answer: `pid`
and `version`, or `leaving` (it is older than the client, has no others, and makes way for a newer one), or `error`.
Afterwards the gateway says once why it ends (`end`). If the stream ends without such a word, it was killed.

The client's own messages come and go through the two pipes.
"""

from __future__ import annotations

import array
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from msgspec.structs import asdict

from ...protocol.errors import GreenroomError

LONGEST: Final = 1 << 20  # bytes of a hello
OF_CLIENT: Final = "client"  # why it ends: the client has closed its end
STOPPED: Final = "stopped"  # the gateway was asked to stop
REPLACED: Final = "replaced"  # a newer gateway takes its place
_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_CHUNK: Final = 1 << 16


class BadHello(GreenroomError):
    """The message on the gateway's socket is no hello."""

    code = "invalid_request"


class Hello(msgspec.Struct, frozen=True):
    """Who attaches, and how its client left the gateway before, if there was one.

    `variables` are the values of its session. `room` is the run id of the gateway that started this process, if any.

    `rooms` counts the gateways that the client has had before. `initialize` is the line by which it introduced itself
    to them, `initialized` whether it has said that it is ready.
    """

    version: str
    expose: str | None = None
    profile: str | None = None
    pid: int = 0
    room: str | None = None
    variables: Mapping[str, str] = {}
    initialize: str | None = None
    initialized: bool = False
    rooms: int = 0
    stop: bool = False  # nobody attaches: the gateway is asked to leave

    def __repr__(self) -> str:
        """Without the values of its session."""
        return f"<Hello of process {self.pid}>"


def send_hello(line: socket.socket, hello: Hello, descriptors: Sequence[int]) -> None:
    """Blocking. Raises `OSError`."""
    data = json.dumps(asdict(hello)).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = line.sendmsg([data[:_CHUNK]], rights)
    if sent < len(data):  # even sending nothing fails once the gateway has answered and closed
        line.sendall(data[sent:])


def receive_some(line: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """What a socket that does not block has: bytes, and descriptors that no child inherits. Raises
    `BlockingIOError`, or another `OSError`."""
    room = socket.CMSG_LEN(most * array.array("i").itemsize)
    data, ancillary, _flags, _ = line.recvmsg(_CHUNK, room, _CLOEXEC)
    found: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
            found += numbers
    for descriptor in found:
        os.set_inheritable(descriptor, False)
    return data, found


def read_hello(data: bytes) -> Hello:
    """The hello in this line. Raises `BadHello`."""
    try:
        said = json.loads(data)  # unlike msgspec, it reads half a character: a variable may have one
        return msgspec.convert(said, Hello)  # without what else a newer client may say
    except (ValueError, msgspec.ValidationError, RecursionError):
        raise BadHello(
            "The gateway's socket takes the hello of greenroom attach, and nothing else."
        ) from None


def say(line: socket.socket, **word: Any) -> None:
    """Send a line to the process that attached, if the socket takes it at once. Lines of the gateway are short, and an
    empty socket takes them. Never waits or raises."""
    with suppress(OSError):
        line.send(json.dumps(word).encode() + b"\n")


class RoomLines:
    """The lines that come from the gateway, on a blocking socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._rest = b""

    def next(self) -> dict[str, Any] | None:
        """The next line; None: the stream has ended. Raises `TimeoutError`, as the socket is set, and `BadHello`."""
        while b"\n" not in self._rest:
            try:
                chunk = self._line.recv(_CHUNK)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return None
            self._rest += chunk
        first, _, self._rest = self._rest.partition(b"\n")
        try:
            word: Any = json.loads(first)
        except (ValueError, RecursionError):
            word = None
        if not isinstance(word, dict):
            raise BadHello("The background gateway answers in an unknown form. Stop it: greenroom stop.")
        return cast("dict[str, Any]", word)

    @property
    def has_more(self) -> bool:
        return b"\n" in self._rest


def is_newer(one: str, other: str) -> bool:
    """Whether version `one` is newer than `other`: their numbers are compared, one after another."""
    return _numbers(one) > _numbers(other)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", version)]
