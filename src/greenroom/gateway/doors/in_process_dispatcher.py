"""A client that is written with the SDK's 2.x, without streams between it and its conversation.

What carries the requests of a session of the SDK is its dispatcher. The SDK has one for sides in one process, which
come as a pair and call each other. The session has one of such a pair, and we have the other. So how a session starts
its dispatcher, which the SDK calls provisional, and what its callbacks are given, are the SDK's own affair.

What the client asks is a line at once, and waits in the client's own task until there is an answer. Nothing is queued,
and the SDK makes no message of either: over streams, a call takes half as long again. What we send without being
asked has a task of its own, as in the SDK, so that a callback may call.

Imported only by who wants it: it imports the SDK, and needs its 2.x.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
import attrs
import msgspec
from mcp.shared.direct_dispatcher import DirectDispatcher
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED
from opentelemetry.propagate import inject

from ...actors.backend import context_of_caller, sole
from ...actors.workers import aside
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LARGE_MESSAGE, MIB
from ...protocol.jsonrpc.terms import RpcFault

_BUSY: Final = MIB  # bytes of notifications that the client is busy with, from which on it is told no more
_NUMBERS: Final = itertools.count(1)
_CONTEXT: Final = TransportContext(kind="in-process", can_send_request=True)

Params = Mapping[str, Any] | None


class InProcessDispatcher(DirectDispatcher):
    """The dispatcher of a client's session. It adds to a request what the SDK's other dispatchers add: that progress
    is wanted, and the trace that the caller is in."""

    async def send_raw_request(
        self, method: str, params: Params, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """See `Outbound`."""
        options: CallOptions = {**(opts or {})}
        rpc_id = options.setdefault("request_id", f"in-process-{next(_NUMBERS)}")
        said = dict(params or {})
        meta = dict(said.pop("_meta", None) or {})
        if options.get("on_progress") is not None:
            meta["progressToken"] = rpc_id
        inject(meta)
        if meta:
            said["_meta"] = meta
        return await super().send_raw_request(method, said, options)


@attrs.define(eq=False)
class _ClientRequest:
    """What the client has asked. `answer` is None until there is one, and when there will be none."""

    context: DispatchContext[TransportContext]
    answer: Mapping[str, Any] | None = None
    answered: anyio.Event = attrs.field(factory=anyio.Event)


class FarEnd:
    """The other side: the outlet of the conversation, and what calls the client's callbacks."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.dispatcher: Final = InProcessDispatcher(_CONTEXT)
        self.receive: Callable[[bytes], Awaitable[None]]  # set before anything is asked
        self._tasks = tasks
        self._context = context_of_caller()
        self._side = DirectDispatcher(_CONTEXT)
        self._side.connect_to(self.dispatcher)
        self.dispatcher.connect_to(self._side)
        self._asked: dict[Any, _ClientRequest] = {}  # by the client, and not answered yet
        self._asking: dict[Any, anyio.CancelScope] = {}  # the client, which has not answered yet
        self._telling = 0  # bytes of notifications that the client is busy with

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator[FarEnd]:
        """Both sides, until the context ends. Then what was asked fails, and the client's callbacks are cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                end = cls(tasks)
                await tasks.start(end._side.run, end._ask, end._hear)
                try:
                    yield end
                finally:
                    end._close()
        except BaseExceptionGroup as group:
            raise sole(group) from None

    def _close(self) -> None:
        for request in self._asked.values():
            request.answered.set()
        self._asked.clear()
        self._tasks.cancel_scope.cancel()

    # ---- from the client -------------------------------------------------------------------------------------------

    async def _ask(
        self, context: DispatchContext[TransportContext], method: str, params: Params
    ) -> dict[str, Any]:
        """Ask what the client asks, and wait for the answer. Cancelling this, as the SDK does after the client's
        timeout, cancels the request."""
        rpc_id = context.request_id
        request = self._asked[rpc_id] = _ClientRequest(context)
        try:
            if await self._pass_on(_line(id=rpc_id, method=method, params=params or {})):
                await request.answered.wait()
        finally:
            if self._asked.pop(rpc_id, None) is not None:
                # So short a line is received without waiting, also where this task is cancelled.
                await self._pass_on(_line(method=rpc.CANCELLED, params={"requestId": rpc_id}))
        if request.answer is None:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        error = request.answer.get("error")
        if error is not None:
            raise MCPError(error["code"], error["message"], error.get("data"))
        return request.answer["result"]

    async def _hear(self, _context: DispatchContext[TransportContext], method: str, params: Params) -> None:
        await self._pass_on(_line(method=method, params=params or {}))

    async def _pass_on(self, line: bytes) -> bool:
        """Whether the conversation has taken it. It is over a moment before this end is, and takes nothing then."""
        try:
            await self.receive(line)
        except anyio.ClosedResourceError:
            return False
        return True

    # ---- to the client: the outlet ----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """See `Outlet`."""
        return self._telling > _BUSY

    def send(self, line: bytes) -> bool:
        """See `Outlet`. Nothing is dropped: an answer waits nowhere, and `busy` holds back the rest."""
        if len(line) < LARGE_MESSAGE:
            self._take(_read(line), len(line))
        else:
            self._start(self._take_large, line)
        return True

    async def _take_large(self, line: bytes) -> None:
        self._take(await aside(partial(_read, line)), len(line))

    def _take(self, message: Mapping[str, Any], size: int) -> None:
        method: str | None = message.get("method")
        params: Mapping[str, Any] = message.get("params") or {}
        if method is None:
            request = self._asked.pop(message.get("id"), None)
            if request is not None:  # otherwise it crossed its cancellation
                request.answer = message
                request.answered.set()
        elif "id" in message:
            scope = self._asking[message["id"]] = anyio.CancelScope()
            self._start(self._ask_client, scope, message["id"], method, params)
        else:
            if method == rpc.PROGRESS:
                self._progressed(params, size)
            elif method == rpc.CANCELLED and (scope := self._asking.get(params.get("requestId"))) is not None:
                scope.cancel()
            self._tell(size, partial(self._side.notify, method, params))

    async def _ask_client(self, scope: anyio.CancelScope, rpc_id: Any, method: str, params: Params) -> None:
        with scope:
            try:
                result = await self._side.send_raw_request(method, params, {"request_id": rpc_id})
                line = _line(id=rpc_id, result=result)
            except MCPError as error:
                line = _line(id=rpc_id, error=error.error.model_dump(mode="json", exclude_none=True))
            finally:
                del self._asking[rpc_id]
            await self._pass_on(line)

    def _progressed(self, params: Mapping[str, Any], size: int) -> None:
        """Tell who asked. The token is the id of the request; the rest may be anything that a server has said."""
        request, progress = self._asked.get(params.get("progressToken")), _number(params.get("progress"))
        if request is not None and progress is not None:
            total, message = _number(params.get("total")), params.get("message")
            words = message if isinstance(message, str) else None
            self._tell(size, partial(request.context.progress, progress, total, words))

    def _tell(self, size: int, tell: Callable[[], Awaitable[None]]) -> None:
        self._telling += size
        self._start(self._telling_of, size, tell)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """In the context in which the client connected, and not in that of what happens to send to it."""
        self._context.copy().run(self._tasks.start_soon, work, *args)

    async def _telling_of(self, size: int, tell: Callable[[], Awaitable[None]]) -> None:
        try:
            await tell()
        finally:
            self._telling -= size


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _line(**message: Any) -> bytes:
    return rpc.encode({"jsonrpc": "2.0", **message})


def _read(line: bytes) -> Mapping[str, Any]:
    try:
        return rpc.read_value(msgspec.Raw(line))
    except RpcFault:
        return rpc.read_value(msgspec.Raw(rpc.unreadable_line(line)))
