"""Core actors and their refs: batches, asks, crashes, restarts, and the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import settle

from greenroom.actors.backend import current_backend
from greenroom.actors.event_stream import EventStream
from greenroom.actors.mailbox import CoreActor, MailboxFull, Reply
from greenroom.supervisor.runtime import CoreActorFailed, keep_running


@attrs.frozen(eq=False)
class Say:
    text: str


@attrs.frozen(eq=False)
class Ask:
    reply: Reply[Any]


class Echo:
    """Answers a batch's asks after the batch, with all it was told."""

    def __init__(self, backend: Any) -> None:
        self.core: CoreActor[Any] = CoreActor("echo", backend, self, 1_000)
        self.ref = self.core.ref
        self.said: list[str] = []
        self.batches = 0
        self.waiting: list[Reply[Any]] = []

    def step(self, message: Any) -> None:
        match message:
            case Say("crash"):
                raise ZeroDivisionError("crash")
            case Say(text):
                self.said.append(text)
            case Ask(reply) if "refuse" in self.said:
                raise ValueError(reply)
            case Ask(reply):
                self.waiting.append(reply)
            case other:
                raise TypeError(other)

    def close(self, error: Exception) -> None:
        for reply in self.waiting:
            reply.fail(error)

    async def after_batch(self) -> None:
        self.batches += 1
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply.send(list(self.said))


@asynccontextmanager
async def echo_actor(*, runs: bool = True) -> AsyncGenerator[tuple[Echo, anyio.abc.TaskGroup]]:
    actor = Echo(current_backend())
    async with anyio.create_task_group() as tasks:
        if runs:
            tasks.start_soon(keep_running, actor.core, EventStream(actor.core.backend))
        yield actor, tasks
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_an_ask_is_answered_after_what_was_told_before_it() -> None:
    async with echo_actor() as (actor, _):
        for text in "abc":
            actor.ref.tell(Say(text))
        assert await actor.ref.ask(Ask) == ["a", "b", "c"]


@in_virtual_time
async def test_a_burst_is_a_few_batches() -> None:
    async with echo_actor() as (actor, _):
        await settle()
        batches = actor.batches
        for n in range(640):
            actor.ref.tell(Say(str(n)))
        assert len(await actor.ref.ask(Ask)) == 640
        assert actor.batches - batches <= 12


@in_virtual_time
async def test_a_full_mailbox_refuses_at_once_and_the_system_lane_never_does() -> None:
    async with echo_actor(runs=False) as (actor, _):
        for n in range(1_000):
            actor.ref.tell(Say(str(n)))
        with pytest.raises(MailboxFull, match=r"echo is full \(1000 messages\)"):
            actor.ref.tell(Say("one more"))
        with pytest.raises(MailboxFull):
            await actor.ref.ask(Ask)
        actor.ref.tell_system(Say("first"))
        (first,) = actor.core.mailbox.take(1)
        assert first.text == "first"


@in_virtual_time
async def test_an_ask_may_time_out_or_be_cancelled_and_harms_nobody() -> None:
    async with echo_actor(runs=False) as (actor, tasks):
        start = anyio.current_time()
        with pytest.raises(TimeoutError):
            await actor.ref.ask(Ask, timeout=5.0)
        assert anyio.current_time() - start == pytest.approx(5.0)
        with anyio.move_on_after(1.0):
            await actor.ref.ask(Ask)
        asks = [message for message in actor.core.mailbox.user if isinstance(message, Ask)]
        assert [ask.reply.abandoned for ask in asks] == [True, True]
        tasks.start_soon(keep_running, actor.core, EventStream(actor.core.backend))
        assert await actor.ref.ask(Ask) == []


@in_virtual_time
async def test_a_reply_is_answered_once() -> None:
    reply: Reply[int] = Reply(current_backend())
    reply.send(1)
    reply.send(2)
    reply.fail(ValueError())
    assert await reply.wait() == 1


@in_virtual_time
async def test_after_a_crash_the_mailbox_and_what_the_batch_owed_are_kept() -> None:
    """An ask and, in the same batch, a message that crashes the step: the ask is answered after the restart."""
    answers: list[Any] = []
    async with echo_actor(runs=False) as (actor, tasks):

        async def ask() -> None:
            answers.append(await actor.ref.ask(Ask))

        tasks.start_soon(ask)
        await settle()
        actor.ref.tell(Say("crash"))
        actor.ref.tell(Say("after"))
        tasks.start_soon(keep_running, actor.core, EventStream(actor.core.backend))
        await settle()
        assert len(answers) == 1
        assert await actor.ref.ask(Ask) == ["after"]


@in_virtual_time
async def test_what_a_crashed_batch_owed_is_done_though_nobody_says_anything_more() -> None:
    async with echo_actor(runs=False) as (actor, _), anyio.create_task_group() as asking:
        asking.start_soon(actor.ref.ask, Ask)
        await settle()
        actor.ref.tell(Say("crash"))
        asking.start_soon(keep_running, actor.core, EventStream(actor.core.backend))
        await settle()
        assert actor.waiting == []
        asking.cancel_scope.cancel()


@in_virtual_time
async def test_who_never_stops_talking_keeps_nobody_from_his_turn() -> None:
    turns: list[int] = []

    class Chatty(Echo):
        def step(self, message: Any) -> None:
            super().step(message)
            if len(self.said) < 10_000:
                self.ref.tell(Say("more"))

    actor = Chatty(current_backend())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(actor.core.run)
        actor.ref.tell(Say("once"))
        while len(actor.said) < 10_000:
            await anyio.lowlevel.checkpoint()
            turns.append(len(actor.said))
        tasks.cancel_scope.cancel()
    assert len(turns) > 100


@in_virtual_time
async def test_the_ask_that_crashes_a_step_fails_with_its_error() -> None:
    async with echo_actor() as (actor, _):
        actor.ref.tell(Say("refuse"))
        with pytest.raises(ValueError, match="Reply"):
            await actor.ref.ask(Ask)
        actor.said.clear()
        assert await actor.ref.ask(Ask) == []


@in_virtual_time
async def test_three_crashes_a_minute_are_survived_the_fourth_is_raised_and_everybody_told() -> None:
    actor, failures = Echo(current_backend()), list[BaseException]()

    async def supervise() -> None:
        with pytest.raises(CoreActorFailed, match="failed more than 3 times in 60 s") as caught:
            await keep_running(actor.core, EventStream(actor.core.backend))
        failures.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervise)
        for _ in range(3):
            actor.ref.tell(Say("crash"))
        assert await actor.ref.ask(Ask) == []
        await anyio.sleep(61.0)
        for _ in range(3):
            actor.ref.tell(Say("crash"))
        assert await actor.ref.ask(Ask) == []
        actor.ref.tell(Say("crash"))
        with pytest.raises(CoreActorFailed):
            await actor.ref.ask(Ask)
    assert isinstance(failures[0].__cause__, ZeroDivisionError)
    with pytest.raises(CoreActorFailed):
        await actor.ref.ask(Ask)


@in_virtual_time
async def test_a_closed_actor_answers_at_once_whoever_asked_and_whoever_asks() -> None:
    async with echo_actor(runs=False) as (actor, _):

        async def ask() -> None:
            with pytest.raises(RuntimeError, match="over"):
                await actor.ref.ask(Ask)

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            await settle()
            actor.core.close(RuntimeError("over"))
        await ask()
