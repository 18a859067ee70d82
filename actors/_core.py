"""Core actors: the few that every server depends on (router, catalogue writer), each with a task of its own.

The owner task drains the mailbox in batches: every message of a batch is one synchronous step, then `after_batch` may
wait (publish an index, write a file), so a burst of a thousand messages costs one publication. Between batches there is
a checkpoint, so a chatty sender starves nobody.

The mailbox outlives a crash of the step; the message that crashed it is gone and its reply is failed, never retried.
What the rest of its batch still owes is done first thing after the restart. Whether the actor may go on is the
supervisor's decision (OTP restart intensity): `run` raises out and is called again. Once closed, it answers whatever
is still put to it with the error it was closed with: nobody waits for an actor that does not come back.
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
    """What a core actor is there for. It holds a `CoreActor`, which calls it."""

    def step(self, message: M_contra) -> None:
        """Handle one message. Must not wait."""
        ...

    async def after_batch(self) -> None:
        """Effects that are worth doing once per batch."""
        ...

    def close(self, error: Exception) -> None:
        """It is not coming back: answer everybody who was promised an answer."""
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
        await work.after_batch()  # what a batch that crashed half-way has left undone
        while True:
            if not len(self.mailbox):
                await self._bell.wait()
            # A fresh bell before looking: what rings from here on is not missed.
            self._bell = self.backend.waiter()
            for message in self.mailbox.take(BATCH):
                self._step_or_fail(message)
            await work.after_batch()
            if len(self.mailbox):  # else waiting for the bell is the checkpoint
                await anyio.lowlevel.checkpoint()

    def close(self, error: Exception) -> None:
        """Answer everybody who still waits, and whoever comes later; the actor is not coming back."""
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
