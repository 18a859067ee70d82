"""Our backend to the event loop: the few places where trio and asyncio differ on the hot path.

anyio is our API everywhere else. Three things are done for every call or every read, and there anyio's generality
costs more than the work itself: waking exactly one waiting task, reading a descriptor until it is drained, and telling
the time. A fourth is what other threads hand over. So this file, and no other, talks to the two loops directly. Both
backends have the same observable behaviour; `tests/actors/test_backend.py` runs one body on both.

A `Waiter` is a one-shot flag for one waiting task: `set` may be called before, during or after `wait`, any number of
times. Cancelling the wait leaves the flag usable, and nothing is lost, because the owner of the waiter holds the
*value*.

`read_forever` calls `on_readable` each time the descriptor has something to read, until it returns False. `AGAIN` means
that there is more to do than one turn allows: it is called again in the next turn, whatever there is to read. `PAUSE`
means that it is called again after a hundredth of a second and not before. On trio this is a loop around
`wait_readable`. On asyncio it is a loop callback, so an answer is handled without waking a task
for it. Rejected: anyio's byte streams (an intermediate buffer and two task switches a read) and one task per call.

`post` hands something over from another thread and waits for nothing, not even for a lock: an interrupt cannot come in
between. Rejected: `anyio.from_thread`, which waits until the loop has begun it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import anyio
import anyio.abc
import sniffio

if TYPE_CHECKING:
    import asyncio


AGAIN: Final = "again"
PAUSE: Final = "pause"
More = bool | Literal["again", "pause"]
OnReadable = Callable[[], More]
_PAUSE: Final = 0.01  # seconds


class Waiter(Protocol):
    def set(self) -> None:
        """Wake the waiting task, now or when it comes. Idempotent; plain; never raises."""
        ...

    async def wait(self) -> None:
        """Wait until `set`. At most one task waits. Always a checkpoint."""
        ...


class Backend(Protocol):
    """One of two, chosen once per room by `current_backend`."""

    name: str

    def now(self) -> float:
        """The room's monotonic time, seconds."""
        ...

    def is_here(self) -> bool:
        """Whether the code that asks runs in this loop."""
        ...

    def post(self, do: Callable[[], object]) -> None:
        """Have `do()` called in this loop, in the context of whoever asks, from whatever thread. It must not raise.

        Raises RuntimeError when the loop has ended.
        """
        ...

    def waiter(self) -> Waiter: ...

    async def read_forever(self, fd: int, on_readable: OnReadable) -> None:
        """Call `on_readable()` whenever `fd` is readable, and once more in the next turn when it returns `AGAIN`, until
        it returns False. It must read without blocking.

        An exception out of `on_readable` ends the loop and is raised here.
        """
        ...


def current_backend() -> Backend:
    """The backend of the running loop."""
    if sniffio.current_async_library() == "trio":
        return _TrioBackend()
    return _AsyncioBackend()


def context_of_room() -> Context:
    """A context without the caller's variables, for a task that belongs to the room. It holds only the name of the
    loop."""
    return _with_loop(Context(), sniffio.current_async_library())


def context_of_caller() -> Context:
    """A copy of the caller's context, for what is done on its behalf outside its tasks."""
    return _with_loop(copy_context(), sniffio.current_async_library())


def _with_loop(context: Context, name: str) -> Context:
    """On asyncio a task's readers are called in the task's context but outside a task, and anyio could not tell there
    which loop is running: so the context says it."""
    context.run(sniffio.current_async_library_cvar.set, name)
    return context


class _TrioBackend:
    name = "trio"

    def __init__(self) -> None:
        import trio

        self._trio = trio
        # The run's own clock, virtual or not: `trio.current_time` would look it up at each of a call's three
        # reads.
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.waiter: Callable[[], Waiter] = partial(_TrioWaiter, trio)
        self._token = trio.lowlevel.current_trio_token()

    def is_here(self) -> bool:
        try:
            return self._trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:  # no run of trio in this thread
            return False

    def post(self, do: Callable[[], object]) -> None:
        self._token.run_sync_soon(_with_loop(copy_context(), self.name).run, do)

    async def read_forever(self, fd: int, on_readable: OnReadable) -> None:
        wait_readable, checkpoint = self._trio.lowlevel.wait_readable, self._trio.lowlevel.checkpoint
        more: More = True
        while more:
            if more is AGAIN:
                await checkpoint()
            elif more is PAUSE:
                await self._trio.sleep(_PAUSE)
            else:
                await wait_readable(fd)
            more = on_readable()


class _TrioWaiter:
    __slots__ = ("_is_set", "_task", "_trio")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._is_set = False
        self._task: Any = None

    def set(self) -> None:
        self._is_set = True
        task, self._task = self._task, None
        if task is not None:
            self._trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        lowlevel = self._trio.lowlevel
        if self._is_set:
            await lowlevel.checkpoint()
            return
        self._task = lowlevel.current_task()
        await lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> Any:
        self._task = None
        return self._trio.lowlevel.Abort.SUCCEEDED


class _AsyncioBackend:
    name = "asyncio"

    def __init__(self) -> None:
        import asyncio

        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        # A loop on the machine's clock may read it only once a turn, and in whole milliseconds (uvloop). The time of
        # an event should be nearer than that. A virtual loop has another clock.
        is_real = abs(self._loop.time() - time.monotonic()) < 1.0
        self.now: Callable[[], float] = time.monotonic if is_real else self._loop.time
        self.waiter: Callable[[], Waiter] = partial(_AsyncioWaiter, self._loop)
        self._running = asyncio._get_running_loop

    def is_here(self) -> bool:
        running = self._running  # each call asks, and a name is called sooner than an attribute
        return running() is self._loop

    def post(self, do: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(do, context=_with_loop(copy_context(), self.name))

    async def read_forever(self, fd: int, on_readable: OnReadable) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        is_done = done.done
        is_due = False  # a further turn is scheduled
        is_paused = False  # and a turn that was scheduled before the pause does nothing

        def again() -> None:
            nonlocal is_due
            is_due = False
            ready()

        def resume() -> None:
            nonlocal is_paused
            is_paused = False
            if not is_done():
                self._loop.add_reader(fd, ready)
                ready()

        def ready() -> None:
            nonlocal is_due, is_paused
            if is_done() or is_paused:
                return
            try:
                more = on_readable()
            except BaseException as error:
                if not is_done():
                    done.set_exception(error)
            else:
                if more is True:
                    return
                if more is AGAIN:
                    if not is_due:
                        is_due = True
                        self._loop.call_soon(again)
                elif more is PAUSE:
                    is_paused = True
                    self._loop.remove_reader(fd)
                    self._loop.call_later(_PAUSE, resume)
                elif not more and not is_done():  # the callback may have cancelled us
                    done.set_result(None)

        self._loop.add_reader(fd, ready)
        try:
            await done
        finally:
            self._loop.remove_reader(fd)


class _AsyncioWaiter:
    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        if self._is_set:
            await anyio.lowlevel.checkpoint()
            return
        self._future = self._loop.create_future()
        try:
            await self._future
        finally:
            self._future = None


@asynccontextmanager
async def pump_group() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """A task group that is cancelled when the body is done. The body's own error, or a bug in a pump, is raised as
    itself and not as a group of one."""
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            finally:
                tasks.cancel_scope.cancel()
        return
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
    raise error  # out here, or the group would take the place of what led to it


def sole(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception inside the exception groups of task groups; the group itself when it holds several."""
    first, *others = group.exceptions
    if others:
        return group
    return (
        sole(cast("BaseExceptionGroup[BaseException]", first))
        if isinstance(first, BaseExceptionGroup)
        else first
    )
