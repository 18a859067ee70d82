"""A call whose progress is read while it runs (`room.stream_call`), or that goes on by itself (`room.start_task`)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from ..actors.call import Call
from ..protocol.errors import CallCancelled
from ..protocol.result import ToolResult

_MOST: Final = 1024  # progress that is kept for a slow reader: the newest says the most


class CallStream:
    """A running call. As an async iterator it yields the `params` of each progress notification, in order, until the
    call has ended. A slow reader misses the oldest ones."""

    def __init__(self, read: Callable[[Call], Awaitable[ToolResult]]) -> None:
        self._read = read
        self._call: Call | None = None
        self._told: deque[Mapping[str, Any]] = deque(maxlen=_MOST)
        self._news = anyio.Event()
        self._result: ToolResult | None = None
        self.message: str = ""  # of its latest progress that had one

    # ---- what the call tells ----------------------------------------------------------------------------------------

    def progressed(self, params: Mapping[str, Any]) -> None:
        """The room hands on a progress notification; the oldest that nobody has read goes."""
        self._told.append(params)
        message = params.get("message")
        self.message = message if isinstance(message, str) else self.message
        self._tell()

    def ended(self, call: Call) -> None:
        """The room says that the call has its outcome."""
        self._call = call
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    # ---- for its reader ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._told:
            if self._call is not None:
                raise StopAsyncIteration
            await self._news.wait()
        return self._told.popleft()

    async def result(self) -> ToolResult:
        """The result of the call, once it has ended. Raises its `CallError`, as `call` does, and `CallCancelled` when
        the call was cancelled because its block was left."""
        while self._call is None:
            await self._news.wait()
        if self._call.cancelled:
            raise _cancelled(self._call)
        if self._result is None:
            self._result = await self._read(self._call)
        return self._result


class CallTask:
    """A call that runs by itself, whether anybody waits for it or not. `stream`: its progress, for one reader."""

    def __init__(self, call: Call, stream: CallStream) -> None:
        self._call = call
        self.stream: CallStream = stream

    def __repr__(self) -> str:
        status, error = self.status, self._call.error
        why = f": {error.code}, {error.reach}" if status == "failed" and error is not None else ""
        return f"<CallTask {self._call.tool!r}, {status}{why}>"

    @property
    def status(self) -> str:
        """`working`, `completed`, `failed` or `cancelled`. A result with `is_error` is `completed`."""
        call = self._call
        if not call.ended:
            return "working"
        return "cancelled" if call.cancelled else "completed" if call.error is None else "failed"

    @property
    def message(self) -> str:
        """The message of its latest progress that had one; "" before that."""
        return self.stream.message

    async def result(self) -> ToolResult:
        """The result, once the call has ended; as often as you like, also by several tasks at once. Raises its
        `CallError`, and `CallCancelled` when it was cancelled. Cancelling this does not cancel the call."""
        return await self.stream.result()

    def cancel(self) -> None:
        """Cancel the call. Nothing happens if it has ended."""
        self._call.cancel()


def _cancelled(call: Call) -> CallCancelled:
    text = f"The call was cancelled, by `cancel()` or because its `async with` block was left; {call.reach.words}."
    hint = "To get a result, await `result()` before you cancel or leave the block."
    return CallCancelled(f"{text} {hint}", server=call.server or "", reach=call.reach, tool=call.tool)
