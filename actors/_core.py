"""Core actors: the few that every server depends on (router, catalogue writer), each with a task of its own.

The owner task drains the mailbox in batches. Every message of a batch is one synchronous step; then `after_batch` may
wait (publish an index, write a file). So a burst of a thousand messages costs one publication. There is a checkpoint
between batches, so a busy sender starves nobody.

The mailbox outlives a crash of a step. The message that caused the crash is dropped and its reply fails; it is never
retried. After the restart, the first thing done is what the rest of its batch still needs. The supervisor decides
whether the actor may go on (OTP restart intensity): `run` raises, and is called again. Once closed, the actor answers
every further message with the error it was closed with, so nobody waits for an actor that will not come back.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import anyio.lowlevel

from ._backend import Backend
from ._mailbox import Mailbox
from ._ref import Ref, Reply

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)

BATCH = 64


class Work(Protocol[M_contra]):
    """The purpose of a core actor. A `CoreActor` holds it and calls it."""

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
        """Answer everybody who waits now or asks later; the actor will not come back."""
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
