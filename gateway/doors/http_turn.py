"""A request that is carried out without a task of its own, as long as it waits for nothing but its reply.

uvicorn starts a task for each request. A call that has come whole waits only once, for its reply, and for that a task
costs two more passes of the loop, an event and a timer. So such a request is carried out as a task would do it: up to
its wait at once, and the rest of it where its reply is decided, in the context that a task would have. If it waits for
anything else, or if its reply is a stream or takes long, it goes on in a task. What needs a task before its first wait
must not be begun so (`HttpDoor.may_begin`): a cancel scope, for example.

No request is begun while an earlier one is answered: that is in the middle of somebody else's step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from .eager_await import Rest
from .http_streams import Reply


def _nothing(*_: object) -> None:
    pass


class Turn:
    """Carries out `work`, which lets no exception out. It is what uvicorn is given for the task of a request."""

    __slots__ = ("_context", "_done", "_loop", "_patience", "_reply", "_task", "_work")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], patience: Patience
    ) -> None:
        self._loop = loop
        self._work = work
        self._patience = patience
        self._context = copy_context()
        self._reply: Reply | None = None  # for which it waits, without a task
        self._task: asyncio.Task[None] | None = None
        self._done: Callable[[Any], object] = _nothing

    @property
    def has_task(self) -> bool:
        return self._task is not None

    def add_done_callback(self, done: Callable[[Any], object]) -> None:
        self._done = done

    def cancel(self, msg: object = None) -> bool:
        """As of a task: `CancelledError` is raised in it where it waits."""
        if self._task is not None:
            return self._task.cancel(msg)
        self._no_longer_waits()
        self._step(self._work.throw, asyncio.CancelledError(msg))
        return True

    def begin(self) -> None:
        """Carry it out up to its first wait."""
        self._step(self._work.send, None)

    def begin_in_task(self) -> None:
        self._run(self._work)

    def decided(self, reply: Reply) -> None:
        """Its reply is an answer now, or a stream, or takes long."""
        self._no_longer_waits()
        if reply.answer is not None:
            self._step(self._work.send, None)
        else:
            self._run(_rest(self._work, None))

    def _step(self, step: Callable[[Any], object], given: object) -> None:
        try:
            waits_for = self._context.run(step, given)
        except (StopIteration, asyncio.CancelledError):
            self._done(self)
            return
        if type(waits_for) is Reply:
            self._reply = waits_for
            waits_for.tells = self.decided
            self._patience.add(waits_for)
        else:
            self._run(_rest(self._work, waits_for))

    def _no_longer_waits(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.tells = None
            self._patience.forget(reply)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(work, context=self._context)
        self._task.add_done_callback(lambda _: self._done(self))


async def _rest(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await Rest(work, waits_for)


class Patience:
    """One timer for all replies that are waited for without a task, each at most for `seconds`. It rings no more than
    once in that time, and not at all while none is waited for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._waits: dict[Reply, float] = {}  # until when; the first is the first to be due
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: Reply) -> None:
        self._waits[reply] = until = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._ring)

    def forget(self, reply: Reply) -> None:
        self._waits.pop(reply, None)

    def close(self) -> None:
        """Ring no more. What still waits, waits until its reply is decided."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._waits:
            reply, until = next(iter(self._waits.items()))
            if until > now:
                self._timer = self._loop.call_at(until, self._ring)
                return
            self.forget(reply)
            if reply.tells is not None:
                reply.tells(reply)


class KeepAlive:
    """The timer that closes a connection after which no further request comes. Each answer begins it, and each request
    cancels it. Only that is noted: a timer that runs already looks at the note when it rings."""

    __slots__ = ("_loop", "_ring", "_timer", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = math.inf
        self._ring: Callable[[], object] = _nothing
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, ring: Callable[[], object]) -> None:
        self._until, self._ring = self._loop.time() + seconds, ring
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._look)

    def cancel(self) -> None:
        self._until = math.inf

    def close(self) -> None:
        """The connection is closed: leave no timer behind."""
        self.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._until <= self._loop.time():
            self._ring()
        elif self._until < math.inf:
            self._timer = self._loop.call_at(self._until, self._look)
