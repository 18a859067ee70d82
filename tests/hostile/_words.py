"""What a row of the table is made of: the pieces of the messages, and the row itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

MIB = 1 << 20
Piece = str | list[Any]
ID: Piece = ["id"]


def times(count: int, *pieces: Piece) -> Piece:
    return ["times", count, *pieces]


def numbered(count: int, before: str, after: str) -> Piece:
    """`before`, a number and `after`, again and again, each time with another number."""
    return ["numbered", count, before, after]


def forever(*pieces: Piece) -> Piece:
    return ["forever", *pieces]


def packed(*pieces: Piece) -> Piece:
    """Compressed by gzip."""
    return ["gzip", *pieces]


def nested(depth: int, opens: str = "[", closes: str = "]", inside: str = "") -> list[Piece]:
    return [times(depth, opens), inside, times(depth, closes)]


def answer(*result: Piece) -> list[Piece]:
    """The line of an answer; its result is made of these pieces."""
    return ['{"jsonrpc":"2.0","id":', ID, ',"result":', *result, "}\n"]


def error(*body: Piece) -> list[Piece]:
    return ['{"jsonrpc":"2.0","id":', ID, ',"error":', *body, "}\n"]


def content(*more: Piece) -> list[Piece]:
    """The answer to a call: one text, and these members beside it."""
    return answer('{"content":[{"type":"text","text":"x"}]', *more, "}")


def said(method: str, **params: Any) -> Piece:
    """The line of a notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + "\n"


def asked(method: str, **params: Any) -> list[Piece]:
    """The line of a request."""
    return [json.dumps({"jsonrpc": "2.0", "id": "h", "method": method, "params": params}) + "\n"]


def http(*body: Piece, status: str = "200 OK", kind: str = "application/json", **headers: str) -> list[Piece]:
    """A whole answer over HTTP; `Content_Encoding` is the header of that name."""
    given = {"Content-Type": kind, "Connection": "close", **headers}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items()]
    return [f"HTTP/1.1 {status}\r\n", *lines, "\r\n", *body]


def stream(*events: Piece) -> list[Piece]:
    return http(*events, kind="text/event-stream")


DOORS = ("proxy", "direct", "room-trio", "room-asyncio", "http")


@attrs.frozen
class Row:
    """One attack. Everything that it does not set is honest, and calm neighbours call all the while.

    `on`: what the attacking server sends, `over` "stdio", "http" or as an HTTP "api" (see `server.py`); it is called
    `calls` times at once, and each call must be answered. `client`: what the attacking client writes; it must get
    `answers` answers. `control`: the same for the control socket, over this number of `connections`. `files`: what is
    in the gateway's folders before it starts (a path and its content, or `FIFO`, `FOLDER` or `LINK`). `servers`: the
    number of further servers of which nothing is known.
    """

    name: str
    on: Mapping[str, Sequence[Piece]] = attrs.field(factory=dict[str, Sequence[Piece]])
    over: str = "stdio"
    entry: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    calls: int = 1
    client: Sequence[Piece] = ()
    control: Sequence[Piece] = ()
    connections: int = 1
    answers: int = 0
    files: Mapping[str, Sequence[Piece] | str] = attrs.field(factory=dict[str, Any])
    options: Sequence[str] = ()
    needs_lines: bool = (
        False  # the client writes more messages than can be sent one after the other over HTTP
    )
    is_bare: bool = False  # the gateway has next to nothing in its environment: no HOME, no PATH
    servers: int = 0  # configured beside the calm ones
    settings: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    lasts: float = 0.0  # seconds the neighbours go on calling, at least
    memory: int = 64 * MIB  # what the gateway may need more, at most
    quick: bool = False
    takes_orphans: bool = (
        False  # it is ended by whoever is given the orphans below it: `serve`, not a room by itself
    )

    @property
    def not_at(self) -> Sequence[str]:
        """The doors it cannot be tried at: a room in a program has no client and no options of `serve`. Over HTTP only
        clients are tried: what is behind that door is the same."""
        needs_gateway = self.client or self.control or self.options or self.takes_orphans
        rooms = [door for door in DOORS if door.startswith("room")] if needs_gateway else []
        return rooms if self.client and not self.needs_lines else [*rooms, "http"]

    @property
    def script(self) -> str:
        return json.dumps({"over": self.over, "on": self.on})


FIFO = "fifo"
FOLDER = "folder"
LINK = "link"  # to what never ends
