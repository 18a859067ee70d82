"""The owner task of one incarnation, alone: in what order it opens, stays and ends, and what it tells its actor."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support import run_virtual

from greenroom.actors.backend import current_backend
from greenroom.actors.handshake import RpcFailure
from greenroom.actors.incarnation import Gone, Incarnation, Lost
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Bug, ConnectFailed, NeedsAuth
from greenroom.protocol.events import ConnectStep, NoteCode
from greenroom.protocol.lifecycle import Reason

HERE = Address("s")


class Stage:
    """An incarnation whose connection and meeting do what the test says. `done`: what was done, in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.told: list[Any] = []
        self.opens: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
        self.meets: Callable[[], Awaitable[object]] = anyio.sleep_forever
        self.stops: Callable[[float], Awaitable[object]] = lambda _grace: anyio.lowlevel.checkpoint()
        self.connection: Any = SimpleNamespace(
            peer="its peer", pid=7, last_line="c secret", stderr_tail=lambda: ("a secret",), stop=self._stop
        )
        self.context: Any = SimpleNamespace(
            backend=current_backend(),
            settings=Settings(),
            stop_by=math.inf,
            connect=self._connect,
            events=SimpleNamespace(emit=self._emit),
        )
        self.actor: Any = SimpleNamespace(
            definition=ServerDefinition("s", command="x", connect_timeout=30.0),
            address=HERE,
            context=self.context,
            is_connected=True,
            tell=self.told.append,
            hidden=lambda text: text.replace("secret", "***"),
            note_bug=lambda error: self.done.append(error),
        )
        me = self.incarnation = Incarnation(self.actor, 4)
        staged: Any = me
        staged._meeting = SimpleNamespace(
            deadline=anyio.current_time() + 30.0,
            begin=lambda connection: self.did("meeting begins", connection is self.connection),
            run=self._meet,
            stop=lambda: self.did("meeting stops"),
            look_again=lambda _told: self.did("lists are read again"),
        )
        staged._pulse = SimpleNamespace(
            start=lambda: self.did("pulse starts"), stop=lambda: self.did("pulse stops")
        )
        staged.questions = SimpleNamespace(close=lambda: self.did("questions close"))

    def listens(self) -> None:
        staged: Any = self.incarnation
        staged.listening = SimpleNamespace(
            start=lambda: self.did("listening starts"), stop=lambda: self.did("listening stops")
        )

    def did(self, what: str, sound: bool = True) -> None:
        assert sound, what
        self.done.append(what)

    def _emit(self, kind: type, address: Address, number: int, **fields: Any) -> None:
        assert (address, number) == (HERE, 4)
        self.done.append(fields.get("step") or (fields["code"], fields["words"]))

    def _connect(self, definition: ServerDefinition, address: Address, number: int) -> Any:
        assert (definition, address, number) == (self.actor.definition, HERE, 4)
        return SimpleNamespace(open=self._open)

    @asynccontextmanager
    async def _open(self, hooks: Any) -> AsyncGenerator[Any]:
        assert hooks.incarnation is self.incarnation
        self.did("opens")
        try:
            await self.opens()
            yield self.connection
        finally:
            self.did("is left")

    async def _meet(self, connection: Any) -> None:
        self.did("meets", connection is self.connection)
        await self.meets()

    async def _stop(self, grace: float) -> None:
        self.done.append(("stops", round(grace, 1)))
        await self.stops(grace)


def staged(backend: str, body: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(10_000):
            await body(Stage())

    run_virtual(backend, main)


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


async def ended(stage: Stage, after: float, act: Callable[[], object]) -> None:
    """Run the owner task, and do something after so many seconds."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.incarnation.run)
        await anyio.sleep(after)
        act()


OPENED = ["opens", ConnectStep.STARTED, "meeting begins", "meets"]
SILENT = ["meeting stops", "pulse stops", "questions close"]


def test_it_stays_until_it_is_cancelled_and_ends_politely(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.listens()
        incarnation = stage.incarnation
        assert (incarnation.pid, incarnation.last_line, incarnation.stderr_tail()) == (None, "", ())
        await ended(stage, 5_000.0, incarnation.cancel)  # the connect time is for opening
        assert stage.done == [*OPENED, *SILENT, "listening stops", ("stops", 5.0), "is left"]
        assert [(type(each), each.incarnation) for each in stage.told] == [(Gone, 4)]
        assert (incarnation.peer, incarnation.pid) == ("its peer", 7)
        assert (incarnation.last_line, incarnation.stderr_tail()) == ("c ***", ("a ***",))

    staged(backend, body)


def test_cancelled_before_it_has_begun_it_opens_nothing(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.incarnation.cancel()
        await stage.incarnation.run()
        assert (stage.done, [type(each) for each in stage.told]) == ([], [Gone])

    staged(backend, body)


def test_what_cannot_be_opened_in_time_has_failed_and_says_so(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.opens = anyio.sleep_forever
        await stage.incarnation.run()
        assert anyio.current_time() == pytest.approx(30.0)
        assert stage.done == ["opens", "is left"]
        failed, gone = stage.told
        assert isinstance(failed.error, ConnectFailed)
        assert (failed.incarnation, failed.error.server) == (4, "s")
        assert failed.error.reason == "it could not be opened in time"
        assert (type(gone), gone.incarnation) == (Gone, 4)

    staged(backend, body)


@pytest.mark.parametrize("after", [0.0, 3.0])
def test_cancelled_while_it_opens_it_is_left_at_once(backend: str, after: float) -> None:
    async def body(stage: Stage) -> None:
        async def opens() -> None:
            if not after:
                stage.incarnation.cancel()  # in the step in which it has opened
            else:
                await anyio.sleep_forever()

        stage.opens = opens
        if after:
            await ended(stage, after, stage.incarnation.cancel)
        else:
            await stage.incarnation.run()
        assert anyio.current_time() == pytest.approx(after)
        assert (stage.done[0], stage.done[-1]) == ("opens", "is left")
        assert (type(stage.told[-1]), {each.incarnation for each in stage.told}) == (Gone, {4})

    staged(backend, body)


@pytest.mark.parametrize(
    "error",
    [ConnectFailed("no secret", server="s", stderr_tail=("b secret",)), NeedsAuth("a secret", server="s")],
)
def test_why_it_cannot_be_opened_is_told_without_secrets(backend: str, error: Any) -> None:
    async def body(stage: Stage) -> None:
        stage.opens = raising(error)
        await stage.incarnation.run()
        failed, gone = stage.told
        assert failed.error is error
        assert (failed.incarnation, type(gone)) == (4, Gone)
        assert "secret" not in str(error)
        assert "secret" not in "".join(getattr(error, "stderr_tail", ()))
        assert stage.done == ["opens", "is left"], "that is no bug"

    staged(backend, body)


@pytest.mark.parametrize("where", ["opens", "meets"])
def test_a_bug_of_ours_is_noted_and_fails_the_attempt(backend: str, where: str) -> None:
    error = LookupError("a secret")

    async def body(stage: Stage) -> None:
        setattr(stage, where, raising(error))
        await stage.incarnation.run()
        failed, gone = stage.told
        assert isinstance(failed.error, Bug)
        assert (failed.incarnation, failed.error.server, type(gone)) == (4, "s", Gone)
        assert failed.error.__cause__ is error
        assert '"s" failed in Greenroom itself: LookupError' in str(failed.error)
        assert "secret" not in str(failed.error)
        assert stage.done[-2:] == ["is left", error], "the log has its traceback"
        assert stage.done[:-2] == (["opens"] if where == "opens" else [*OPENED, *SILENT])

    staged(backend, body)


def test_who_refuses_to_be_met_is_kept_until_it_is_cancelled_and_ended_politely(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.meets = raising(RpcFailure("initialize", "no secret"))
        await ended(stage, 50.0, stage.incarnation.cancel)
        failed, gone = stage.told
        assert isinstance(failed.error, ConnectFailed)
        assert (failed.incarnation, failed.error.server, type(gone)) == (4, "s", Gone)
        assert failed.error.reason == "initialize: no *** (a ***)"
        assert failed.error.stderr_tail == ("a ***",)
        assert stage.done == [*OPENED, *SILENT, ("stops", 5.0), "is left"]

    staged(backend, body)


def test_a_stop_that_is_hurried_begins_again_with_less_time(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.stops = anyio.sleep

        def close_the_room() -> None:
            stage.context.stop_by = anyio.current_time() + 2.0
            stage.incarnation.hurry()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.incarnation.run)
            await anyio.sleep(10.0)
            stage.incarnation.hurry()  # there is nothing to hurry yet
            stage.incarnation.cancel()
            await anyio.sleep(1.0)
            stage.incarnation.hurry()  # it has all the time it was given
            close_the_room()
        assert anyio.current_time() == pytest.approx(13.0)
        assert stage.done[-3:] == [("stops", 5.0), ("stops", 2.0), "is left"]

    staged(backend, body)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("listens", [False, True])
def test_only_who_is_met_and_wanted_is_looked_after(backend: str, cancelled: bool, listens: bool) -> None:
    async def body(stage: Stage) -> None:
        if listens:
            stage.listens()
        if cancelled:
            stage.incarnation.cancel()
        stage.incarnation.look_after()
        assert stage.done == (["listening starts", "pulse starts"] if listens and not cancelled else [])
        stage.done.clear()
        for connected in (True, False):
            stage.actor.is_connected = connected
            stage.incarnation.rearm()
        assert stage.done == ["pulse starts"], "while it is connected"

    staged(backend, body)


def test_who_is_given_up_is_lost_for_the_reason_that_was_seen(backend: str) -> None:
    async def body(stage: Stage) -> None:
        staged: Any = stage.incarnation
        staged._connection = stage.connection
        reason = stage.incarnation.give_up("a secret hang", Reason.UNRESPONSIVE)
        assert (reason.text, reason.loss, reason.stderr_tail) == (
            "a *** hang", Reason.UNRESPONSIVE, ("a ***",),
        )  # fmt: skip
        assert stage.incarnation.lost is reason
        assert stage.told == []
        stage.incarnation.found_dead("no pulse")
        (lost,) = stage.told
        assert isinstance(lost, Lost)
        assert (lost.incarnation, lost.reason.text, lost.reason.loss) == (4, "no pulse", Reason.UNHEALTHY)
        assert stage.incarnation.lost is lost.reason
        stage.incarnation.note(NoteCode.ODD, "words")
        stage.incarnation.look_again()
        assert stage.done == [(NoteCode.ODD, "words"), "lists are read again"]

    staged(backend, body)
