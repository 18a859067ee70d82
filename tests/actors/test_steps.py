"""The steps of one server actor, without a room: what each message does to its life, and who is told of it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.support import run_virtual

from greenroom import Kind
from greenroom.actors.backend import current_backend
from greenroom.actors.call import Call
from greenroom.actors.event_stream import EventStream
from greenroom.actors.exchanges import mark_sent
from greenroom.actors.host import Greeting
from greenroom.actors.incarnation import Failed, Gone, Listed, Lost, Ready, Stop
from greenroom.actors.peer import Handshake, Listing, LostReason
from greenroom.actors.room_context import RoomContext
from greenroom.actors.server import Decision, Next, Record, ServerActor
from greenroom.actors.timers import Timers
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Bug, CallError, ConnectFailed, NeedsAuth, Reach, ServerDown, ServerLost
from greenroom.protocol.events import Note, NoteCode, Transition
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State

HERE = Address("s")
LISTING = Listing(tools=({"name": "echo"},))


class Boss:
    """A supervisor that notes what it is asked and told. `decision`: what follows an end."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.decision = Decision(Next.IDLE)

    def __getattr__(self, name: str) -> Any:
        def asked(actor: ServerActor, *what: Any) -> Any:
            self.did.append((name, *what) if what else name)
            answers = {"may_send": True, "may_expire": True, "silent": False, "health_interval": math.inf}
            answers = {**answers, "idle_timeout": 300.0, "greeting": Greeting()}
            return {**answers, "closed": self.decision}.get(name)

        return asked


class Stage:
    """An actor whose incarnation is not run: the test tells what its owner task would."""

    def __init__(self) -> None:
        backend = current_backend()
        self.boss: Any = Boss()
        self.events: list[Any] = []
        stream = EventStream(backend)
        stream.listen(self.events.append, [Kind.TRANSITION, Kind.NOTE])
        self.greeting = Greeting()
        self.spawned: list[Any] = []
        spawner: Any = SimpleNamespace(spawn=self.spawned.append)
        connect: Any = None
        self.context = RoomContext(
            backend, Timers(backend.now, _raise), stream, Settings(), connect, spawner, {},
            host=cast("Any", SimpleNamespace(greeting=lambda _address: self.greeting)),
        )  # fmt: skip
        self.record = Record(ServerDefinition("s", command="x"))
        self.actor = ServerActor(HERE, self.record, self.context, self.boss)
        self.done: list[Any] = []
        self.told: list[Any] = []
        self.peer: Any = SimpleNamespace(
            protocol_version="2025-11-25",
            beside=None,
            last_heard=0.0,
            request=mark_sent,
            abandon=lambda call, reason: self.done.append(("abandons", reason)),
        )

    @property
    def life(self) -> Any:
        return self.actor.life

    def connecting(self) -> Stage:
        self.actor.steps.connect()
        assert len(self.spawned) == self.life.incarnation, "one task owns an incarnation"
        self.actor.incarnation = cast("Any", SimpleNamespace(
            peer=self.peer, lost=None, greeting=self.greeting, is_installing=False, questions=(),
            cancel=lambda: self.done.append("cancelled"), hurry=lambda: self.done.append("hurried"),
        ))  # fmt: skip
        return self

    def ready(self, *capabilities: str, incarnation: int | None = None) -> Handshake:
        handshake = Handshake(self.peer.protocol_version, {name: {} for name in capabilities}, {})
        self.actor.tell(Ready(incarnation or self.life.incarnation, handshake, LISTING, 7))
        return handshake

    def connected(self) -> Stage:
        self.connecting().ready()
        self.boss.did.clear()
        self.events.clear()
        return self

    def call(self, reach: Reach = Reach.SENT, *, replayable: bool = False) -> Call:
        call = Call("tools/call", {}, replayable=replayable)
        self.actor.calls.submit(call)
        call.reach = reach
        return call

    def wait(self) -> None:
        self.actor.on_connected(self.told.append)

    @property
    def transitions(self) -> list[tuple[State, State]]:
        return [(each.before, each.after) for each in self.events if isinstance(each, Transition)]

    @property
    def words(self) -> list[str]:
        return [each[0] if isinstance(each, tuple) else each for each in self.boss.did]


def _raise(error: BaseException) -> None:
    raise error


def staged(backend: str, body: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(1_000):
            await body(Stage())

    run_virtual(backend, main)


# ---- ready ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "logs", "by_request"),
    [
        ("2026-07-28", True, True),
        ("2026-07-28", False, False),
        ("2025-11-25", True, False),
        ("2025-11-25", False, False),
    ],
)
def test_who_is_ready_serves_and_everybody_who_waited_is_told(
    backend: str, version: str, logs: bool, by_request: bool
) -> None:
    async def body(stage: Stage) -> None:
        actor, stage.peer.protocol_version = stage.actor, version
        actor.failure, actor.loss = ServerDown("before", server="s"), Reason.NEEDS_AUTH
        stage.wait()
        stage.connecting()
        waiting = stage.call()
        assert not waiting.ended
        await anyio.sleep(4.0)
        handshake = stage.ready(*(["logging"] if logs else []))
        assert ("ready", handshake, LISTING, 7) in stage.boss.did
        assert (actor.failure, actor.loss, actor.connected_at) == (None, Reason.DIED, 4.0)
        assert actor.calls.logs_by_request is by_request
        assert actor.peer is stage.peer
        assert stage.told == [None]
        assert (actor.in_flight, actor.queued) == (1, 0)
        assert stage.transitions == [
            (State.IDLE, State.CONNECTING), (State.CONNECTING, State.CONNECTED),
        ]  # fmt: skip
        assert "rested" not in stage.words, "it has a call"
        stage.boss.did.clear()
        stage.ready(incarnation=9)
        stage.actor.tell(Lost(9, LostReason("of another incarnation")))
        assert (stage.boss.did, stage.life.state) == ([], State.CONNECTED)

    staged(backend, body)


def test_who_has_nothing_to_do_rests_from_when_it_was_ready(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connecting()
        await anyio.sleep(4.0)
        stage.ready()
        assert stage.words[-1] == "rested"
        assert (stage.actor.idling.since, stage.actor.idling.until, stage.actor.alarm.when) == (
            4.0,
            304.0,
            304.0,
        )

    staged(backend, body)


def test_who_was_greeted_for_others_than_are_there_now_begins_anew(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.wait()
        stage.connecting()
        stage.greeting = Greeting({"roots": {}}, by_handshake=True)
        stage.ready()
        assert "ready" in stage.words, "its lists are known"
        assert (stage.life.state, stage.told) == (State.DRAINING, [])
        assert stage.life.ending == Ending(Cause.RESTART, reason=Reason.NEW_ANSWERS)
        assert stage.done == ["cancelled"]

    staged(backend, body)


def test_lists_that_were_read_again_count_while_it_is_connected(backend: str) -> None:
    async def body(stage: Stage) -> None:
        handshake = Handshake("2025-11-25", {}, {})
        stage.connecting()
        for number, state in ((1, State.CONNECTING), (1, State.CONNECTED), (2, State.CONNECTED)):
            if stage.life.state is not state:
                stage.ready()
            stage.actor.tell(Listed(number, handshake, LISTING, 8))
        assert [each for each in stage.boss.did if each[0] == "listed"] == [("listed", handshake, LISTING, 8)]

    staged(backend, body)


# ---- ends ----------------------------------------------------------------------------------------------------------

LOGIN = LostReason("401", loss=Reason.NEEDS_AUTH)
DEAD = LostReason("exited with code 3", 3, ("oops",))
EXPIRED = LostReason("session expired", loss=Reason.EXPIRED)


@pytest.mark.parametrize(
    ("state", "message", "ending", "error"),
    [
        (
            State.CONNECTING,
            Failed(1, ConnectFailed("no such file", server="s")),
            Ending(Cause.CONNECT_FAILED, "no such file"),
            ConnectFailed,
        ),
        (
            State.CONNECTING,
            Failed(1, NeedsAuth("log in", server="s")),
            Ending(Cause.NEEDS_AUTH, "log in"),
            NeedsAuth,
        ),
        (State.CONNECTING, Failed(1, Bug("bug", server="s")), Ending(Cause.BUG, "bug"), Bug),
        (
            State.CONNECTING,
            Lost(1, DEAD),
            Ending(Cause.CONNECT_FAILED, "exited with code 3 (oops)"),
            ConnectFailed,
        ),
        (State.CONNECTING, Lost(1, LOGIN), Ending(Cause.NEEDS_AUTH, "401", Reason.NEEDS_AUTH), NeedsAuth),
        (
            State.CONNECTING,
            Gone(1),
            Ending(Cause.CONNECT_FAILED, "the attempt was cancelled", Reason.CANCELLED),
            None,
        ),
        (
            State.CONNECTED,
            Lost(1, DEAD),
            Ending(Cause.LOST, "exited with code 3 (oops)", Reason.DIED),
            ServerLost,
        ),
        (State.CONNECTED, Lost(1, LOGIN), Ending(Cause.NEEDS_AUTH, "401", Reason.NEEDS_AUTH), ServerLost),
        (
            State.CONNECTED,
            Lost(1, EXPIRED),
            Ending(Cause.LOST, "session expired", Reason.EXPIRED),
            ServerLost,
        ),
        (
            State.CONNECTED,
            Failed(1, ServerDown("fell", server="s")),
            Ending(Cause.LOST, "fell", Reason.DIED),
            ServerLost,
        ),
        (
            State.CONNECTED,
            Gone(1),
            Ending(Cause.LOST, "its owner task was cancelled", Reason.CANCELLED),
            None,
        ),
    ],
)
def test_each_way_to_fail_is_told_with_its_cause_and_its_reason(
    backend: str, state: State, message: Any, ending: Ending, error: type[CallError] | None
) -> None:
    async def body(stage: Stage) -> None:
        if state is State.CONNECTED:
            stage.connected()
        else:
            stage.connecting()
        await anyio.sleep(6.0)
        stage.boss.did.clear()
        stage.actor.tell(message)
        did = [each for each in stage.boss.did if each != "stopped_for_bug"]
        assert did[:2] == ["leaving", ("failed", ending)]
        last = next(each for each in reversed(stage.events) if each.before is state)
        assert (last.after, last.cause, last.reason, last.words) == (
            State.DRAINING, ending.cause, ending.reason, ending.words,
        )  # fmt: skip
        if error is None:
            assert (stage.actor.failure, stage.life.state) == (None, State.IDLE)
            assert (stage.actor.incarnation, stage.actor.peer) == (None, None)
        else:
            assert type(stage.actor.failure) is error
            assert stage.actor.failure is not None
            assert (stage.actor.failure.server, stage.actor.failed_at) == ("s", 6.0)
            assert (stage.life.state, stage.life.ending, set(stage.done)) == (
                State.DRAINING,
                ending,
                {"cancelled"},
            )
        if isinstance(message, Lost):
            assert stage.actor.loss is message.reason.loss
        failures = len([each for each in stage.words if each == "failed"])
        stage.actor.tell(Failed(1, ServerDown("late", server="s")))
        stage.actor.tell(Lost(1, LostReason("late")))
        assert [each for each in stage.words if each == "failed"] == ["failed"] * failures, "it is over"

    staged(backend, body)


@pytest.mark.parametrize("state", [State.IDLE, State.CONNECTING, State.CONNECTED])
@pytest.mark.parametrize("patience", [0, 5.0])
@pytest.mark.parametrize("calls", [False, True])
def test_who_is_told_to_stop_has_its_patience_if_it_has_calls(
    backend: str, state: State, patience: float, calls: bool
) -> None:
    async def body(stage: Stage) -> None:
        if state is State.CONNECTED:
            stage.connected()
        elif state is State.CONNECTING:
            stage.connecting()
        call = stage.call() if calls and state is State.CONNECTED else None
        await anyio.sleep(2.0)
        ending = Ending(Cause.DRAINED, "bye")
        stage.boss.did.clear()
        stage.actor.tell(Stop(ending, patience))
        if state is State.IDLE:
            assert ("closed", ending) in stage.boss.did
            assert (stage.life.state, stage.life.incarnation, stage.done) == (State.IDLE, 2, [])
            return
        assert (stage.life.state, stage.life.ending) == (State.DRAINING, ending)
        assert "leaving" in stage.words
        if call is not None and patience:
            assert (stage.life.deadline, stage.done) == (7.0, ["hurried"])
            assert stage.actor.alarm.when == 7.0
            assert not call.ended
            stage.actor.steps.expire(6.9)
            assert not call.ended
            stage.actor.steps.expire(7.0)
        abandoned = [("abandons", "drained")] if call is not None else []
        order = [each for each in stage.done if each != "hurried"]
        assert order == [*abandoned, "cancelled"]
        assert stage.done.count("hurried") == 1
        assert call is None or (
            call.ended and str(call.error).startswith('Server "s" was drained (drained: bye)')
        )

    staged(backend, body)


def test_what_drains_stops_with_its_last_call(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connected()
        one, two = stage.call(), stage.call()
        stage.actor.stop(Ending(Cause.RESTART), 5.0)
        for call in (one, two):
            assert stage.done == ["hurried"]
            call.end(b"{}", None)
            assert call.result == b"{}"
        assert stage.done == ["hurried", "cancelled"]

    staged(backend, body)


# ---- gone ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", list(Next))
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_what_follows_an_end_is_what_the_supervisor_says(
    backend: str, then: Next, fails: bool, waits: bool
) -> None:
    error = ServerDown("down", server="s")

    async def body(stage: Stage) -> None:
        stage.connected()
        stage.boss.decision = Decision(then, error if fails else None)
        stage.actor.stop(Ending(Cause.DRAINED, "bye"), 0)
        queued = stage.call(Reach.NOT_SENT) if waits else None
        if waits:
            stage.wait()  # for the next incarnation
        stage.boss.did.clear()
        stage.events.clear()
        stage.actor.tell(Gone(1))
        assert stage.words[0] == "closed"
        assert (stage.actor.incarnation, stage.actor.peer) == (None, None)
        if then is Next.GONE:
            assert (stage.life.state, stage.life.incarnation) == (State.CLOSED, 1)
            assert stage.transitions == [(State.DRAINING, State.CLOSED)]
        else:
            assert (stage.life.state, stage.life.incarnation) == (State.IDLE, 2)
            assert stage.transitions == [(State.DRAINING, State.CLOSED), (State.CLOSED, State.IDLE)]
            assert [each.incarnation for each in stage.events] == [1, 2]
        if queued is not None:
            assert queued.ended is fails
            assert (type(queued.error), queued.error is error) == (ServerDown if fails else type(None), False)
        told = waits and fails and then is not Next.CONNECT
        assert stage.told == ([error] if told else []), "who waits for the next one waits on if there is one"
        awaited = waits and not fails
        starts = then is Next.CONNECT or (then is Next.IDLE and awaited)
        assert ("request_start" in stage.words) is starts

    staged(backend, body)


def test_what_was_in_flight_when_its_owner_ended_is_lost_or_sent_again(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connected()
        lost, again, unsent = stage.call(), stage.call(replayable=True), stage.call(Reach.NOT_SENT)
        stage.actor.tell(Gone(1))
        assert isinstance(lost.error, ServerLost)
        assert (again.ended, unsent.ended) == (False, False)
        assert list(stage.actor.mailbox.user) == [again, unsent]
        assert [call.reach for call in (again, unsent)] == [Reach.NOT_SENT] * 2
        assert stage.words[-1] == "request_start"
        stage.record.remark("something odd")
        stage.connecting().ready()
        assert (stage.actor.in_flight, stage.record.odd) == (2, None)

    staged(backend, body)


def test_who_is_found_hung_is_lost_for_that_reason(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connected()
        incarnation: Any = stage.actor.incarnation
        hung = LostReason("unresponsive", stderr_tail=("a",), loss=Reason.UNRESPONSIVE)
        asked: list[Any] = []

        def give_up(*why: Any) -> LostReason:
            asked.append(why)
            incarnation.lost = hung
            return hung

        incarnation.give_up = give_up
        call = stage.call()
        stage.actor.steps.declare_hung()
        assert asked == [("unresponsive", Reason.UNRESPONSIVE)]
        assert stage.life.ending == Ending(Cause.LOST, "unresponsive (a)", Reason.UNRESPONSIVE)
        assert isinstance(call.error, ServerLost)
        assert "unresponsive (a)" in str(call.error)

    staged(backend, body)


# ---- bugs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.IDLE, State.CONNECTING, State.CONNECTED])
def test_a_bug_in_a_step_releases_everybody_and_stops_the_server(backend: str, state: State) -> None:
    async def body(stage: Stage) -> None:
        if state is State.CONNECTED:
            stage.connected()
        elif state is State.CONNECTING:
            stage.connecting()
        stage.wait()
        call = stage.call()
        stage.boss.did.clear()
        stage.events.clear()
        stage.actor.steps.stop_for_bug(LookupError("what"))
        (note,) = [each for each in stage.events if isinstance(each, Note)]
        assert (note.code, "LookupError: what" in note.words) == (NoteCode.BUG, True)
        assert "stopped_for_bug" in stage.boss.did
        bug = stage.actor.failure
        assert isinstance(bug, Bug)
        assert bug.server == "s"
        assert str(bug) == 'Server "s" was stopped by an error in Greenroom itself: LookupError: what'
        assert stage.told == [bug]
        assert (type(call.error), call.error is bug) == (Bug, False)
        assert (stage.actor.in_flight, stage.actor.queued) == (0, 0)
        ending = stage.life.ending
        if state is State.IDLE:
            assert (stage.life.state, stage.life.incarnation) == (State.IDLE, 2)
        else:
            assert ending == Ending(Cause.BUG, str(bug))
            assert set(stage.done) == {"cancelled"}

    staged(backend, body)


def test_a_bug_of_its_owner_task_stops_a_server_that_is_connected(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connected()
        call, bug = stage.call(), Bug("what", server="s")
        stage.actor.tell(Failed(1, bug))
        assert "stopped_for_bug" in stage.boss.did
        assert (stage.life.ending, stage.actor.failure) == (Ending(Cause.BUG, "what"), bug)
        assert isinstance(call.error, Bug)

    staged(backend, body)


def test_what_drains_when_its_owner_ends_is_lost(backend: str) -> None:
    async def body(stage: Stage) -> None:
        stage.connected()
        call = stage.call()
        stage.actor.stop(Ending(Cause.DRAINED, "bye"), 50.0)
        assert not call.ended
        stage.actor.tell(Gone(1))
        assert isinstance(call.error, ServerLost)
        assert "the connection is gone" in str(call.error)
        assert (stage.life.state, stage.life.incarnation) == (State.IDLE, 2)

    staged(backend, body)


# ---- what is told of it --------------------------------------------------------------------------------------------


def test_a_transition_says_why_and_how_many_calls_there_are(backend: str) -> None:
    async def body(stage: Stage) -> None:
        waiting = [stage.call(Reach.NOT_SENT) for _ in range(3)]
        stage.connecting()
        (begins,) = stage.events
        assert (begins.in_flight, begins.queued, begins.cause, begins.seconds) == (0, 3, None, None)
        stage.ready()
        assert (stage.events[1].in_flight, stage.events[1].queued) == (0, 3)
        assert (stage.actor.in_flight, stage.actor.queued) == (3, 0)
        ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=30.0)
        stage.actor.stop(ending, 5.0)
        ends = stage.events[2]
        assert (ends.in_flight, ends.queued, ends.incarnation, ends.address) == (3, 0, 1, HERE)
        assert (ends.cause, ends.reason, ends.seconds, ends.words) == (
            Cause.IDLE_TIMEOUT, Reason.NO_CALL, 30.0, "",
        )  # fmt: skip
        assert not any(call.ended for call in waiting)

    staged(backend, body)
