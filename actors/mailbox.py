"""The mailbox: two lanes, one bell.

System messages (lifecycle, replies of the machinery) have their own unbounded lane, always ahead of the bounded
user lane. So nothing that decides an actor's life ever queues behind work. There are O(children) system messages
at any time, so their lane needs no bound. When the user lane is full, a message is refused at once; its sender is
not made to wait.

`put` is a plain function and cannot lose an item: the item stays in a deque until its owner takes it, whatever is
cancelled. After each put the bell rings, which wakes its owner's task. (A server actor has two lanes as well, but runs
its step at once: `server`.) Rejected: a memory channel. It has no second lane, cannot be inspected, makes the
sender wait, and on asyncio loses an item handed to a receiver that is cancelled in the same tick.

A core actor has a task of its own, and others hold a `Ref` on it. `tell` puts a message and returns. `ask` puts a
message that carries a one-shot `Reply` and waits for it. The message is in the mailbox before the first await, so an
ask is either made as a whole or not made at all. An asker that leaves (cancelled, timed out) marks its reply abandoned,
and the actor need not do the work any more. The first answer wins; later ones are dropped. Every exit path of an actor
answers every reply, also when a step raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.lowlevel

from .backend import Backend
from .timers import in_time

S = TypeVar("S")
U = TypeVar("U")
T = TypeVar("T")
M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
BATCH = 64


class Mailbox(Generic[S, U]):
    """System lane of `S`, user lane of at most `bound` `U`s. Outlives incarnations and restarts of its owner."""

    __slots__ = ("_bell", "bound", "system", "user")

    def __init__(self, bound: int, bell: Callable[[], None]) -> None:
        self.bound: int = bound
        self.system: deque[S] = deque()
        self.user: deque[U] = deque()
        self._bell = bell

    def __len__(self) -> int:
        return len(self.system) + len(self.user)

    def put_system(self, message: S) -> None:
        self.system.append(message)
        self._bell()

    def put(self, message: U) -> bool:
        """Put a message. Returns False when the user lane is full; then nothing has changed."""
        if len(self.user) >= self.bound:
            return False
        self.user.append(message)
        self._bell()
        return True

    def take(self, most: int) -> Iterator[S | U]:
        """Up to `most` messages. The system lane comes first, also with messages that arrive meanwhile."""
        for _ in range(most):
            if self.system:
                yield self.system.popleft()
            elif self.user:
                yield self.user.popleft()
            else:
                return


class MailboxFull(Exception):
    """The actor's user lane is full; nothing was sent."""


class Reply(Generic[T]):
    """One-shot: the first `send` or `fail` wins; an asker that has left makes both harmless."""

    __slots__ = ("_error", "_value", "_waiter", "abandoned", "done")

    def __init__(self, backend: Backend) -> None:
        self._waiter = backend.waiter()
        self._value: T | None = None
        self._error: Exception | None = None
        self.done = False
        self.abandoned = False

    def send(self, value: T) -> None:
        if not self.done:
            self.done = True
            self._value = value
            self._waiter.set()

    def fail(self, error: Exception) -> None:
        if not self.done:
            self.done: bool = True
            self._error = error
            self._waiter.set()

    async def wait(self) -> T:
        """The answer, or the error it failed with. Only the asker calls this, once."""
        try:
            await self._waiter.wait()
        except BaseException:
            self.abandoned: bool = True
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done and no error: it is the T that was sent


class Ref(Generic[M]):
    """The handle on a core actor that others hold."""

    __slots__ = ("_backend", "_mailbox", "name")

    def __init__(self, name: str, mailbox: Mailbox[M, M], backend: Backend) -> None:
        self.name: str = name
        self._mailbox = mailbox
        self._backend = backend

    def tell(self, message: M) -> None:
        """Put it in the user lane. Raises `MailboxFull`."""
        if not self._mailbox.put(message):
            raise MailboxFull(f"the mailbox of {self.name} is full ({self._mailbox.bound} messages)")

    def tell_system(self, message: M) -> None:
        """Put it in the system lane: never refused, ahead of everything else."""
        self._mailbox.put_system(message)

    async def ask(self, make: Callable[[Reply[Any]], M], *, timeout: float | None = None) -> Any:
        """Send `make(reply)` and wait for the answer. Raises the error that the actor answered with,
        `TimeoutError`, or `MailboxFull`."""
        reply: Reply[Any] = Reply(self._backend)
        self.tell(make(reply))
        if timeout is None:
            return await reply.wait()
        async with in_time(timeout):
            return await reply.wait()


class Work(Protocol[M_contra]):
    """What a core actor does. A `CoreActor` holds it and calls it."""

    def step(self, message: M_contra) -> None:
        """Handle one message. Must not wait."""
        ...

    async def after_batch(self) -> None:
        """Perform the effects that need to be done only once per batch."""
        ...

    def close(self, error: Exception) -> None:
        """The actor will not come back: answer everybody who was promised an answer."""
        ...


class CoreActor(Generic[M]):
    """The mailbox and the owner task of one `Work`."""

    def __init__(self, name: str, backend: Backend, work: Work[M], bound: int = 65_536) -> None:
        self.name = name
        self.backend = backend
        self.mailbox: Mailbox[M, M] = Mailbox(bound, self._ring)
        self.ref: Ref[M] = Ref(name, self.mailbox, backend)
        self.closed: Exception | None = None
        self._work = work
        self._bell = backend.waiter()

    async def run(self) -> None:
        """The owner task. Ends by cancellation; raises what a step or `after_batch` raised."""
        work = self._work
        await work.after_batch()  # finish a batch that a crash interrupted
        while True:
            if not len(self.mailbox):
                await self._bell.wait()
            # Make a fresh bell before looking: a ring from here on is not missed.
            self._bell = self.backend.waiter()
            for message in self.mailbox.take(BATCH):
                self._step_or_fail(message)
            await work.after_batch()
            if len(self.mailbox):  # otherwise waiting for the bell is the checkpoint
                await anyio.lowlevel.checkpoint()

    def close(self, error: Exception) -> None:
        """The actor will not come back: give `error` to everybody who waits for an answer now, or asks later."""
        self.closed = error
        for message in self.mailbox.take(len(self.mailbox)):
            _fail_reply(message, error)
        self._work.close(error)

    def _ring(self) -> None:
        if self.closed is not None:
            self.close(self.closed)
        self._bell.set()

    def _step_or_fail(self, message: M) -> None:
        try:
            self._work.step(message)
        except Exception as error:
            _fail_reply(message, error)
            raise


def _fail_reply(message: object, error: Exception) -> None:
    reply = getattr(message, "reply", None)
    if isinstance(reply, Reply):
        reply.fail(error)
