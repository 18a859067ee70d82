"""A link: the connection over which one Greenroom has another carry out the calls of one server.

The one that connects says hello, in one line of JSON, and the other answers with a line: `{"open": true}`, or
`{"refused": …}` with the reason in a word. From then on it is MCP as on stdio, a message a line, for one client. HTTP
was rejected for calls: an exchange of its own for each of them costs both ends more than all the rest of a call.

The carrier may have to stop carrying calls out while links are open: somebody else does it now. It answers each request
that comes from then on with `moved`: that one was not sent, and is to be made again where the server is now. Before it
closes a link it says so (`ENDING`), and answers what comes until the other end has closed it. So it reads all that was
written: no request counts as sent that it never got.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from .errors import GreenroomError
from .jsonrpc.outgoing import error_line
from .jsonrpc.terms import SERVER_ERROR, RpcFault

HELLO_BYTES: Final = 1 << 18
MOVED: Final = "moved"
OPEN: Final = b'{"open":true}\n'
ENDING: Final = "notifications/greenroom/link_ends"
ENDING_LINE: Final = b'{"jsonrpc":"2.0","method":"%b"}\n' % ENDING.encode()
_MOVED: Final = RpcFault(SERVER_ERROR, "The server is elsewhere now.", {"error": MOVED, "reach": "not_sent"})


class NoLink(GreenroomError):
    """The other end refuses a link, or does not speak of links at all. `reason`: its word."""

    code = "link_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The link was refused: {reason}.")
        self.reason = reason


@attrs.frozen
class LinkHello:
    """Who wants a link to what. `epoch`: the life of the carrier that is meant. `variables`: of the session."""

    token: str = attrs.field(repr=False)
    epoch: str
    server: str
    variables: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)

    def line(self) -> bytes:
        return json.dumps(attrs.asdict(self)).encode() + b"\n"


def read_hello(line: bytes | bytearray) -> LinkHello:
    """Raises `NoLink`."""
    try:
        said: Any = json.loads(line)
        hello = LinkHello(**said)
        texts = (hello.token, hello.epoch, hello.server, *hello.variables, *hello.variables.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise NoLink("no hello") from None
    if not all(isinstance(cast("object", text), str) for text in texts):
        raise NoLink("no hello")
    return hello


def refusal(reason: str) -> bytes:
    """The answer to a hello that is refused."""
    return json.dumps({"refused": reason}).encode() + b"\n"


def read_welcome(line: bytes | bytearray) -> None:
    """Raises `NoLink` unless the link is open."""
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise NoLink("no answer")
    told = cast("dict[str, object]", said)
    if told.get("open") is not True:
        raise NoLink(str(told.get("refused", "no answer")))


def moved_line(key: bytes) -> bytes:
    """The answer to a request with this id (as written) that somebody else has to carry out."""
    return error_line(key, _MOVED)
