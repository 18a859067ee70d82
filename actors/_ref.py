"""Refs and replies: how to send messages to a core actor.

`tell` puts a message and returns. `ask` puts a message that carries a one-shot `Reply` and waits for it. The
message is in the mailbox before the first await, so an ask is either made as a whole or not made at all. An asker
that leaves (cancelled, timed out) marks its reply abandoned, and the actor need not do the work any more. The
first answer wins; later ones are dropped. Every exit path of an actor answers every reply, also when a step
raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio

from ._backend import Backend
from ._mailbox import Mailbox

T = TypeVar("T")
M = TypeVar("M")


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
            self.done = True
            self._error = error
            self._waiter.set()

    async def wait(self) -> T:
        """The answer, or the error it failed with. Only the asker calls this, once."""
        try:
            await self._waiter.wait()
        except BaseException:
            self.abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done and no error: it is the T that was sent


class Ref(Generic[M]):
    """The handle on a core actor that others hold."""

    __slots__ = ("_backend", "_mailbox", "name")

    def __init__(self, name: str, mailbox: Mailbox[M, M], backend: Backend) -> None:
        self.name = name
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
        with anyio.fail_after(timeout):
            return await reply.wait()
