"""Our end of a link (`protocol.links`) to a Greenroom that carries calls out for us: a host of a cluster.

To the rest of Greenroom it is a server on a socket. A few things are undone here, so that a caller notices nothing of
the other Greenroom:

* An end that is Greenroom's own is no answer of the server, so the call ends here with the same error.
* Errors of the server begin with the server's name, and so do its questions to people. Our own door adds that again.
* A link that ends has moved: nothing of the server has failed. A request that the other end refuses because the server
  is elsewhere was not sent, and is made again there. Those that were sent before have a moment to be answered.
* Requests can be kept back while it is not known whether the other end still lives (`hold`): they wait as not sent.
* A key of ours in the `_meta` of a result counts as Greenroom's word there. From any other server it counts for
  nothing.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

import anyio
import attrs
from msgspec.structs import replace

from ...config.model import Settings
from ...protocol.jsonrpc.encoding import UNREADABLE
from ...protocol.jsonrpc.incoming import (
    ABSENT,
    ServerMessage,
    as_id,
    decode_result,
    parts_of_meta,
    read_members,
    read_value,
)
from ...protocol.jsonrpc.terms import INTERNAL_ERROR, RpcError, RpcFault, WireFault
from ...protocol.lifecycle import Reason
from ...protocol.links import ENDING, MOVED, LinkHello, NoLink, read_welcome
from ...protocol.long_text import holds
from ...protocol.upstream_error import ERROR, as_said, read_upstream, unsigned_request, upstream_in_error
from ..backend import Backend
from ..exchanges import ReadAnswer, answer_in
from ..peer import NOT_SENT, SENT, Exchange, PeerHooks, RelayHooks
from ..timers import in_time
from .first_line import first_line
from .line_peer import LinePeer
from .unix_socket import SocketConnection

LAST_ANSWERS: Final = 1.0  # seconds for what was sent, once it is known that the other end is gone
_TELL_AFTER: Final = 0.02  # seconds: a link that ends at once, again and again, must not keep us busy
Cover = Callable[[socket.socket], AbstractAsyncContextManager[socket.socket]]
_NAMED: Final = ERROR.encode()
_GONE: Final = "the link to its host has ended"


class LinkPeer(LinePeer):
    """The peer of a link to `server`."""

    channel = "the link"
    says_no_more = hears_no_more = _GONE

    def __init__(
        self, server: str, line: socket.socket, backend: Backend, hooks: PeerHooks, **given: Any
    ) -> None:
        super().__init__(backend, _LinkHooks(server, hooks), **given)
        self._server = server
        self._line = line
        self.read_answer: ReadAnswer = self._read_answer
        self._is_held = False
        self._has_moved = False
        self._kept: list[tuple[Exchange, bytes]] = []  # requests that are kept back

    def request(self, exchange: Exchange) -> None:
        if self._is_held or self._has_moved or self._has_ended():
            self._kept.append((exchange, self._opened(exchange)))
        else:
            super().request(exchange)

    def _has_ended(self) -> bool:
        """Whether the other end is gone: we may be asked before that is read, and what is written now is lost."""
        try:
            return not self._line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def hold(self, is_held: bool) -> None:
        """Keep back the requests that come from now on, or send what was kept back."""
        self._is_held = is_held
        if is_held or self._has_moved:
            return
        kept, self._kept = self._kept, []
        for exchange, line in kept:
            is_wanted = not self._has_ended() and self._requests.get(exchange.rpc_id) is exchange
            if is_wanted and not self._writer.send(line, exchange):
                self._refuse(exchange)

    def move(self) -> None:
        """The server is elsewhere now: nothing more is sent, and the link ends with the last answer."""
        self._has_moved = True
        if all(each.reach is NOT_SENT for each in self._requests.values()):
            self._on_over(_GONE)

    def take(self, message: ServerMessage, during: Exchange | None = None) -> None:
        if message.method == ENDING or (message.method is None and self._is_refused(message)):
            self._has_moved = True
        else:
            super().take(message, during)
        if self._has_moved:
            self.move()

    def _is_refused(self, message: ServerMessage) -> bool:
        """Whether this answer says that its request is for somebody else. Then it was not sent, and stays open."""
        exchange = None if message.error is ABSENT else self._requests.get(as_id(message.id))
        if exchange is None or exchange.reach is not SENT:
            return False
        _, error = self.read_answer(message)
        if error is None or error.upstream is None or error.upstream.code != MOVED:
            return False
        exchange.reach = NOT_SENT
        return True

    def _read_answer(self, message: ServerMessage) -> tuple[bytes | None, RpcError | None]:
        result, error = answer_in(message)
        if result is not None:
            own = _own_error_in(result)
            return (result, None) if own is None else (None, own)
        if error is None or error.fault:
            return result, error
        upstream = upstream_in_error(error.data)
        if upstream is not None:
            return None, replace(error, data=None, upstream=upstream)
        text, data = as_said(self._server, error.message, error.data)
        return None, replace(error, message=text, data=data)


def _own_error_in(result: bytes) -> RpcError | None:
    """The error that the other Greenroom answers the call of a tool with; None: the server answered."""
    if not holds(result, _NAMED):
        return None
    try:
        said = parts_of_meta(read_members(result).meta).get(ERROR)
        upstream = None if said is None else read_upstream(read_value(said))
        if upstream is None:
            return None
        content: Any = decode_result(result).get("content")
        text = "\n".join(str(block["text"]) for block in content)
    except (*UNREADABLE, RpcFault, WireFault, TypeError, KeyError):
        return None  # it only looks a little like an error of ours
    return RpcError(INTERNAL_ERROR, text, upstream=upstream)


@attrs.frozen
class _LinkHooks(RelayHooks):
    """A question to a person comes with the server's name, as the other Greenroom has signed it. That is taken away
    here, and whoever passes the question on signs it."""

    server: str
    hooks: PeerHooks

    def on_request(
        self,
        rpc_id: Any,
        method: str,
        params: Mapping[str, Any] | None,
        during: Exchange | None = None,
    ) -> None:
        asked = unsigned_request(self.server, params) if method == "elicitation/create" else params
        self.hooks.on_request(rpc_id, method, asked, during)


@asynccontextmanager
async def linked(
    host: str,
    port: int,
    hello: LinkHello,
    hooks: PeerHooks,
    backend: Backend,
    settings: Settings,
    within: float,
    cover: Cover = nullcontext,
) -> AsyncGenerator[SocketConnection[LinkPeer]]:
    """A link to the Greenroom that listens there. `cover`: around the connection, when it is to be encrypted. Raises
    `NoLink`, and `OSError` when nobody connects, or greets, `within` so many seconds."""
    async with AsyncExitStack() as stack:
        async with in_time(within):
            raw = stack.enter_context(await _connected(host, port))
        line = await stack.enter_async_context(cover(raw))
        async with in_time(within):
            await _greet(line, hello)
        connection = SocketConnection(
            partial(LinkPeer, hello.server, line),
            line,
            hooks,
            backend,
            settings,
            loss=Reason.MOVED,
            pause=_TELL_AFTER,
        )
        async with connection.pumped():
            yield connection


async def _greet(line: socket.socket, hello: LinkHello) -> None:
    left = memoryview(hello.line())
    while left:
        try:
            left = left[line.send(left) :]
        except BlockingIOError:
            await anyio.wait_writable(line)
    said = await first_line(line)
    if said is None:
        raise NoLink("no answer")
    read_welcome(said)


async def _connected(host: str, port: int) -> socket.socket:
    """A socket that is connected there, and does not block. Raises `OSError`."""
    problem: OSError | None = None
    for family, kind, number, _, address in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        line = socket.socket(family, kind, number)
        try:
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if line.connect_ex(address) == errno.EINPROGRESS:
                await anyio.wait_writable(line)
            line.getpeername()  # raises as long as it is not connected
        except BaseException as error:
            refused = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            line.close()
            if not isinstance(error, OSError):
                raise
            problem = OSError(refused, os.strerror(refused)) if refused else error
        else:
            return line
    raise problem or OSError(f"{host} has no address")
