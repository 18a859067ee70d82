"""The owner task of a room: how it is entered, and how it ends.

This differs between trio and asyncio, because they cancel differently. On trio, `async with` opens a task group in the
caller's task and runs the owner task in it. On asyncio the owner task is a separate task with a context of its own, so
that a cancelled host (natively, twice, under `wait_for`) still ends the room in order. `start(task_group)` uses the
caller's group. In a group the runtime shields itself, and a task beside it turns the cancellation of the group into a
request to stop. `aclose` may be called from any task; it requests the end and waits for it. Only the task that entered
the group of `async with` leaves it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
import sniffio

from ..actors.backend import context_of_room, sole
from ..protocol.errors import UsageError
from .attachments import attached
from .runtime import Runtime


class Owner:
    """Runs one `Runtime`, once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stack: AsyncExitStack | None = None
        self._group: anyio.abc.TaskGroup | None = None  # the one in the stack
        self._ended: anyio.Event | None = None

    async def enter(self) -> None:
        """Start the room for `async with`. `leave` must follow in the same task."""
        if sniffio.current_async_library() == "trio":
            await self._enter_trio()
        else:
            await self.start(None)

    async def leave(self) -> None:
        """End the room, and leave the group that `enter` entered."""
        stack, self._stack = self._stack, None
        if stack is None:
            await self.aclose(None)
            return
        # The room ends in order whatever happens to the host. A cancellation must not replace an error of the body.
        assert self._group is not None
        self._group.cancel_scope.shield = True
        try:
            await self.aclose(None)
        finally:
            await _leave(stack)

    async def start(self, task_group: Any) -> None:
        """Open the room in this task group; without one (on asyncio only) in a task of its own."""
        self._check_unused()
        if task_group is None and sniffio.current_async_library() == "trio":
            raise UsageError(
                "On trio, start() needs a nursery: `await room.start(nursery)`, or use `async with`."
            )
        if task_group is not None and not hasattr(task_group, "start"):
            what = f"needs a task group of anyio or a nursery of trio, got {type(task_group).__name__}"
            raise UsageError(f"start() {what}: `await room.start(tasks)`, or use `async with`.")
        self._ended = anyio.Event()
        if task_group is not None:
            await task_group.start(self._own)
        else:
            await self._start_owner_task()

    async def aclose(self, patience: float | None) -> None:
        """End the room and wait until it has ended."""
        if self._ended is None or self._runtime.is_copy:
            return
        self._runtime.check_loop()
        self._runtime.request_stop(patience)
        interrupted = await self._wait_for_the_end()
        if interrupted is not None:
            raise interrupted
        failure = self._runtime.failure
        if failure is not None and not isinstance(failure, _told_already()):
            raise failure

    async def _enter_trio(self) -> None:
        self._check_unused()
        self._ended = anyio.Event()
        try:
            async with AsyncExitStack() as stack:
                self._group = await stack.enter_async_context(anyio.create_task_group())
                await self._group.start(self._own)
                self._stack = stack.pop_all()
        except BaseExceptionGroup as group:
            raise sole(group) from None

    async def _stop_when_cancelled(self) -> None:
        """When the group is cancelled, request an orderly end. (The runtime is shielded and would not notice.)"""
        try:
            await anyio.sleep_forever()
        finally:
            self._runtime.request_stop()

    async def _own(self, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        assert self._ended is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_when_cancelled)
                async with attached(self._runtime.seam, self._runtime.attachments):
                    await self._runtime.run(task_status=task_status)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise sole(group) from None
        finally:
            self._ended.set()

    async def _start_owner_task(self) -> None:
        import asyncio

        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class StartSignal:
            def started(self, value: None = None) -> None:
                if not started.done():
                    started.set_result(None)

        async def own() -> None:
            try:
                await self._own(task_status=cast("Any", StartSignal()))
            except BaseException as error:
                if not started.done():
                    started.set_exception(error)
                # Else it is in `runtime.failure`, and `aclose` raises it.

        self._task = asyncio.get_running_loop().create_task(
            own(), name="greenroom", context=context_of_room()
        )
        ended = self._ended
        assert ended is not None
        self._task.add_done_callback(
            lambda _: ended.set()
        )  # also when it was cancelled before its first step
        try:
            await started
        except asyncio.CancelledError:
            await self.aclose(0)
            raise

    async def _wait_for_the_end(self) -> BaseException | None:
        """Wait until the runtime has ended, which it does in bounded time. A cancellation meanwhile is held back and
        returned."""
        assert self._ended is not None
        held: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self._ended.is_set():
                try:
                    await self._ended.wait()
                except anyio.get_cancelled_exc_class() as error:  # asyncio's own, which ignores the shield
                    held = error
                    self._runtime.request_stop(0)
        return held

    def _check_unused(self) -> None:
        if self._ended is not None:
            raise UsageError("A room can be opened once; make another with Greenroom.open().")


def _told_already() -> tuple[type[BaseException], ...]:
    """What is not raised again. asyncio has let SystemExit and KeyboardInterrupt out of the loop at once. If they came
    out a second time, while it cancels its tasks, it would stop no worker thread, and the process would never end."""
    cancelled = anyio.get_cancelled_exc_class()
    is_asyncio = sniffio.current_async_library() == "asyncio"
    return (cancelled, SystemExit, KeyboardInterrupt) if is_asyncio else (cancelled,)


async def _leave(stack: AsyncExitStack) -> None:
    try:
        await stack.aclose()
    except BaseExceptionGroup as group:
        raise sole(group) from None
