"""A call whose progress is read while it runs: `Calls.stream_call`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from ..actors.call import Call
from ..protocol.errors import UsageError
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

    # ---- what the call tells ----------------------------------------------------------------------------------------

    def progressed(self, params: Mapping[str, Any]) -> None:
        self._told.append(params)
        self._news.set()

    def ended(self, call: Call) -> None:
        self._call = call
        self._news.set()

    # ---- for its reader ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._told:
            if self._call is not None:
                raise StopAsyncIteration
            await self._wait()
        return self._told.popleft()

    async def result(self) -> ToolResult:
        """The result of the call, once it has ended. Raises its `CallError`, as `call` does, and `UsageError` when the
        call was cancelled because its block was left."""
        while self._call is None:
            await self._wait()
        if self._call.error is None and self._call.result is None:
            text = "The call was cancelled when its block was left, so it has no result."
            raise UsageError(f"{text} Await `result()` inside the block.")
        if self._result is None:
            self._result = await self._read(self._call)
        return self._result

    async def _wait(self) -> None:
        self._news = anyio.Event()
        await self._news.wait()
