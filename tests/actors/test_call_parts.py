"""The parts of an actor that decide about its calls, each alone: places, waiting, ends, and what may interrupt them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.support import run, run_virtual
from tests.support.stdio import Recorder

from greenroom.actors import incarnation as meeting
from greenroom.actors.backend import current_backend
from greenroom.actors.calls import CallTable, WaitingCalls
from greenroom.actors.exchanges import ExchangeTable, Notes
from greenroom.actors.handshake import RpcFailure, _newest, shake_hands
from greenroom.actors.host import Greeting, covers, joined, lacking
from greenroom.actors.incarnation import Hearing, Incarnation, Meeting, Questions, _without_secrets
from greenroom.actors.peer import Exchange, LostReason, WhenEnded
from greenroom.actors.server import Idling, Record, ServerActor, is_outdated
from greenroom.actors.workers import FIRST_PAUSE, LAST_PAUSE, Part
from greenroom.config.model import Era, Pinning, ServerDefinition, Settings
from greenroom.protocol.address import Address
from greenroom.protocol.errors import ServerDown
from greenroom.protocol.events import NoteCode
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State, Trigger

# ---- places --------------------------------------------------------------------------------------------------------


class Wants:
    """An address that wants places; it sends at most `count` calls."""

    def __init__(self, name: str, count: int, load: Any, most: int) -> None:
        self.name, self.count, self.load, self.most = name, count, load, most
        self.sent: list[str] = []

    def serve(self) -> None:
        while self.count:
            if self.load.in_flight >= self.most:
                self.load.held.setdefault(self)
                return
            self.count -= 1
            self.load.in_flight += 1
            ORDER.append(self.name)


ORDER: list[str] = []


def test_a_free_place_goes_to_who_has_waited_longest_and_who_still_waits_stays_in_line() -> None:
    ORDER.clear()
    load = SimpleNamespace(in_flight=2, held={})
    table: Any = object.__new__(CallTable)
    table.context = SimpleNamespace(settings=None)
    table.record = SimpleNamespace(load=load, most_in_flight=lambda _: 2)
    for name, count in (("a", 3), ("b", 1), ("c", 1)):
        load.held[Wants(name, count, load, 2)] = None
    table.share_places()
    assert ORDER == []
    for _ in range(5):
        load.in_flight -= 1
        table.share_places()
    assert ORDER == ["a", "b", "c", "a", "a"]
    assert not load.held


class Key:
    """A call in flight."""

    def __init__(self, asking: Any) -> None:
        self.asking = asking


def test_a_call_that_is_taken_off_asks_nobody_for_input_any_more() -> None:
    table: Any = object.__new__(CallTable)
    call = Key(asking=SimpleNamespace(cancel=lambda: asked.append("cancelled")))
    asked: list[str] = []
    table.record = SimpleNamespace(load=SimpleNamespace(in_flight=1))
    table.open = {}
    table.take_off(call)
    assert (asked, table.record.load.in_flight) == ([], 1), "it is not in flight"
    silent = Key(asking=None)
    table.open = {call: None, silent: None}
    table.record.load.in_flight = 2
    table.take_off(silent)
    table.take_off(call)
    assert (asked, table.open, table.record.load.in_flight) == (["cancelled"], {}, 0)


# ---- waiting -------------------------------------------------------------------------------------------------------


class One:
    """A waiting call. Its owner does `then` when it ends."""

    weight = 3

    def __init__(
        self, name: str, then: Callable[[], object] = lambda: None, queue_deadline: float = 50.0
    ) -> None:
        self.name, self.then, self.queue_deadline = name, then, queue_deadline


class Waiting:
    """Waiting calls with nothing around them. `ended`: (call, how many were queued when it ended)."""

    def __init__(self, *names: str) -> None:
        self.ended: list[tuple[str, int]] = []
        self.withdrawn = 0
        self.load = SimpleNamespace(queued=len(names), held={}, in_flight=0)
        self.context = SimpleNamespace(
            settings=Settings(queue_timeout=50.0),
            queued_bytes=3 * len(names),
            backend=SimpleNamespace(now=lambda: 0.0),
        )
        actor = SimpleNamespace(
            definition=None,
            address=Address("s"),
            context=self.context,
            life=SimpleNamespace(state=State.DRAINING),
        )
        table: Any = SimpleNamespace(
            context=self.context,
            actor=actor,
            record=SimpleNamespace(load=self.load),
            supervisor=self,
            end=self.end,
            call_over=lambda: None,
        )
        self.calls = [One(name) for name in names]
        self.waiting = WaitingCalls(table, cast("Any", deque(self.calls)))

    def end(self, call: One, error: Any = None) -> None:
        self.ended.append((call.name, self.load.queued))
        call.then()

    def withdraw_start(self, actor: Any) -> None:
        self.withdrawn += 1

    def take_back(self, *names: str) -> None:
        for call in list(self.waiting.calls):
            if cast("Any", call).name in names:
                self.waiting.end(call)


ERROR = ServerDown("down", server="s")


def test_the_owner_of_a_refused_call_may_take_others_back() -> None:
    stage = Waiting("a", "b", "c", "d")
    stage.calls[0].then = lambda: stage.take_back("b", "d")
    stage.calls[2].queue_deadline = 60.0  # since 10
    stage.waiting.refuse(ERROR, since=5.0)
    taken_back = ["b", "d"]
    assert [name for name, _ in stage.ended] == ["a", *taken_back], "c has not waited so long"
    assert [cast("Any", call).name for call in stage.waiting.calls] == ["c"]
    assert (stage.load.queued, stage.context.queued_bytes, stage.withdrawn) == (1, 3, 0)
    stage.waiting.refuse(ERROR, since=10.0)
    assert [name for name, _ in stage.ended] == ["a", *taken_back, "c"]
    assert (stage.load.queued, stage.context.queued_bytes, stage.withdrawn) == (0, 0, 1)


def test_none_of_the_calls_that_fail_is_counted_any_more_when_the_first_of_them_ends() -> None:
    stage = Waiting("a", "b", "c")
    stage.waiting.fail(ERROR)
    assert stage.ended == [("a", 0), ("b", 0), ("c", 0)]
    assert (stage.load.queued, stage.context.queued_bytes) == (0, 0)


@pytest.mark.parametrize(("own", "general"), [(None, 3), (3, 9)])
@pytest.mark.parametrize(("queued", "waits"), [(2, True), (3, False), (4, False)])
def test_so_many_calls_of_a_server_may_wait_and_no_more(
    own: int | None, general: int, queued: int, waits: bool
) -> None:
    stage = Waiting()
    stage.load.queued = queued
    stage.context.settings = Settings(max_queued=general)
    cast("Any", stage.waiting)._actor.definition = ServerDefinition("s", max_queued=own)
    cast("Any", stage.waiting)._table.open = {}
    refusal = stage.waiting.refusal(cast("Any", SimpleNamespace(params=None)))
    assert (refusal is None) is waits


@pytest.mark.parametrize(("over", "waits"), [(-1, True), (0, True), (1, False)])
def test_so_many_bytes_of_parameters_may_wait_and_no_more(over: int, waits: bool) -> None:
    stage, call = Waiting(), SimpleNamespace(params={"a": "b"})
    stage.context.queued_bytes = 1_000 + over
    stage.context.settings = Settings(max_queued_bytes=1_000 + len(b'{"a":"b"}'))
    cast("Any", stage.waiting)._actor.definition = ServerDefinition("s")
    cast("Any", stage.waiting)._table.open = {}
    refusal = stage.waiting.refusal(cast("Any", call))
    assert (refusal is None) is waits
    assert waits or "over 1,009 bytes" in str(refusal)


# ---- rest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_call", "leases", "is_installing"), [*product((False, True), (0, 1), (False, True))]
)
def test_the_child_of_a_call_ends_with_it_unless_somebody_needs_it_or_it_is_being_installed(
    is_call: bool, leases: int, is_installing: bool
) -> None:
    stopped: list[Any] = []
    actor: Any = SimpleNamespace(
        life=SimpleNamespace(state=State.CONNECTING),
        address=SimpleNamespace(is_call=is_call),
        is_installing=is_installing,
        stop=lambda ending, patience: stopped.append((ending.cause, patience)),
    )
    idling = Idling(actor)
    idling.leases = leases
    idling.rest()
    ends = is_call and not leases and not is_installing
    assert stopped == ([(Cause.SCOPE_ENDED, 0)] if ends else [])


# ---- how it was greeted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", None])
def test_a_server_is_met_anew_only_if_that_can_change_what_it_may_ask(era: Era, version: str | None) -> None:
    asks = Greeting({"roots": {}}, by_handshake=True)
    listens = Greeting({}, by_handshake=True)
    none = Greeting()
    for told, wanted, shared in product((None, asks, listens, none), (asks, listens, none), (True, False)):
        actor: Any = SimpleNamespace(
            incarnation=SimpleNamespace(greeting=told),
            idling=SimpleNamespace(since=3.0),
            connected_at=3.0,
            is_resting=True,
            subscriptions=SimpleNamespace(uris={}),
            is_connected=True,
            address=SimpleNamespace(is_call=False, is_shared=shared),
            peer=SimpleNamespace(protocol_version=version) if version else None,
            definition=SimpleNamespace(era=era),
        )
        other_capabilities = told is not None and told.capabilities != wanted.capabilities
        if shared and wanted is not asks:
            other_capabilities = False  # it was told of more than it needs
        may_change = told is none and wanted is listens and era is Era.AUTO and version != "2025-11-25"
        assert is_outdated(actor, wanted) is (other_capabilities or may_change), (told, wanted)
        for what, used in (("is_resting", False), ("connected_at", 2.0)):
            before, actor.__dict__[what] = actor.__dict__[what], used
            assert not is_outdated(actor, wanted), "it was used, and keeps what it remembers"
            actor.__dict__[what] = before
        actor.subscriptions.uris["x"] = 1
        assert not is_outdated(actor, wanted)
        actor.subscriptions.uris.clear()
        actor.address.is_call = True
        assert not is_outdated(actor, wanted)
        actor.incarnation = None
        assert not is_outdated(actor, wanted)


def test_the_newest_version_in_common_is_taken() -> None:
    ours = ("1", "2", "3")
    assert [_newest(ours, theirs) for theirs in (("1", "2"), ("3", "1"), ("2", "0"), ("0",), ())] == [
        "2", "3", "2", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("era", [Era.HANDSHAKE, Era.STATELESS])
@pytest.mark.parametrize("error", [RpcError(-32000, "no"), None])
def test_a_refusal_of_the_only_era_stays_what_it_was(backend: str, era: Era, error: RpcError | None) -> None:
    class Peer:
        protocol_version: str | None = None

        def request(self, exchange: Exchange) -> None:
            if error is not None:
                exchange.end(None, error)

        def abandon(self, exchange: Exchange, reason: str) -> None:
            pass

    async def main() -> None:
        peer: Any = Peer()
        settings = Settings(connect_timeout=3.0, probe_timeout=1.0)
        with pytest.raises(RpcFailure, match=f'"era": "{era.value}": try "auto"') as caught:
            await shake_hands(
                peer, current_backend(), settings=settings, client_info={}, greeting=Greeting(), era=era
            )
        if era is Era.HANDSHAKE:
            assert (caught.value.error, caught.value.timed_out) == (error, error is None)
        assert caught.value.method == ("initialize" if era is Era.HANDSHAKE else "server/discover")

    run_virtual(backend, main)


def test_each_request_is_stamped_as_the_version_of_the_moment_requires(backend: str) -> None:
    async def main() -> None:
        hooks = Recorder()
        out: Any = None
        table = ExchangeTable(current_backend(), hooks, Notes(hooks.on_note), out)
        table.client_info = {"name": "x"}
        ours = WhenEnded(lambda *_: None)
        stamped: list[bool] = []
        for version in (None, "2026-07-28", "2025-11-25", "2026-07-28", None):
            table.protocol_version = version
            stamped.append(b"protocolVersion" in table._opened(Exchange(ours, "ping", None)))
        assert stamped == [False, True, False, True, False]

    run(backend, main)


# ---- what the server asks ------------------------------------------------------------------------------------------


def test_who_waits_until_nothing_is_asked_goes_on_when_the_last_question_is_taken_back(backend: str) -> None:
    async def main() -> None:
        loop_backend = current_backend()
        replies: list[Any] = []
        context = SimpleNamespace(backend=loop_backend, spawn=lambda _body: None)
        incarnation: Any = SimpleNamespace(
            actor=SimpleNamespace(context=context),
            peer=SimpleNamespace(reply=lambda *said: replies.append(said), notify=lambda *_: None),
        )
        questions = Questions(incarnation, Address("s"))
        questions.take(1, "roots/list", None)
        questions.take("b", "roots/list", None)
        settled = anyio.Event()

        async def wait() -> None:
            await questions.settled()
            settled.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert questions.heed("notifications/cancelled", {"requestId": 1})
            assert questions.heed("notifications/cancelled", {"requestId": [1]})
            assert not questions.heed("notifications/x", None)
            await anyio.wait_all_tasks_blocked()
            assert len(questions) == 1
            assert not settled.is_set()
            questions.heed("notifications/cancelled", {"requestId": "b"})
            await anyio.wait_all_tasks_blocked()
            assert settled.is_set()
            tasks.cancel_scope.cancel()
        assert (len(questions), questions.asked, replies) == (0, 2, [])

    run(backend, main)


class Asked:
    """Questions of a server whose host answers by `answer`; `said` is what the server hears."""

    def __init__(self, tasks: anyio.abc.TaskGroup, answer: Callable[[Any], Any]) -> None:
        self.said: list[Any] = []
        context = SimpleNamespace(
            backend=current_backend(), spawn=tasks.start_soon, host=SimpleNamespace(answer=answer)
        )
        incarnation: Any = SimpleNamespace(
            actor=SimpleNamespace(context=context, note_raised=lambda _what, error: self.said.append(error)),
            peer=SimpleNamespace(
                reply=lambda *said: self.said.append(said), notify=lambda *said: self.said.append(said)
            ),
        )
        self.questions = Questions(incarnation, Address("s"))


@pytest.mark.parametrize("token", [0, "", "t", 1.5, None])
def test_progress_is_told_with_the_token_that_the_server_gave_whatever_it_is(
    backend: str, token: float | str | None
) -> None:
    async def main() -> None:
        async def answer(request: Any) -> dict[str, Any]:
            request.progress({"progress": 1, "progressToken": "somebody's"})
            return {"roots": []}

        async with anyio.create_task_group() as tasks:
            asked = Asked(tasks, answer)
            asked.questions.take(7, "roots/list", {"_meta": {"progressToken": token}})
            with anyio.fail_after(60):
                await asked.questions.settled()
            told = ("notifications/progress", {"progress": 1, "progressToken": token})
            assert asked.said == [*([] if token is None else [told]), (7, {"roots": []}, None)]
            request = asked.questions._request("roots/list", {"_meta": {"progressToken": token}}, None)
            asked.questions.close()
            asked.said.clear()
            request.progress({"progress": 2})
            assert asked.said == [], "the server is gone"

    run(backend, main)


def test_who_takes_a_question_back_has_its_answer_given_up_and_hears_nothing(backend: str) -> None:
    async def main() -> None:
        given_up: list[str] = []

        async def answer(request: Any) -> dict[str, Any]:
            try:
                await anyio.sleep(request.params["after"])
            except BaseException:
                given_up.append(request.method)
                raise
            return {}

        async with anyio.create_task_group() as tasks:
            asked = Asked(tasks, answer)
            asked.questions.take("a", "roots/list", {"after": 1.0})
            asked.questions.take("b", "sampling/createMessage", {"after": 600.0})
            await anyio.sleep(2.0)
            assert (asked.said, len(asked.questions)) == ([("a", {}, None)], 1)
            asked.questions.heed("notifications/cancelled", {"requestId": "b"})
            await asked.questions.settled()
            await anyio.sleep(1.0)
            assert given_up == ["sampling/createMessage"]
            asked.questions.take("c", "roots/list", {"after": 600.0})
            await anyio.sleep(1.0)
            asked.questions.close()
            await anyio.sleep(1.0)
            assert (given_up[1:], len(asked.said)) == (["roots/list"], 1)
            asked.questions.take("d", "roots/list", {"after": 1.0})
            assert asked.said[1][2].message == "the connection is being closed; nobody answers any more"
            assert anyio.current_time() == pytest.approx(5.0)

    run_virtual(backend, main)


def test_what_a_result_asks_is_answered_under_its_keys_in_their_order_and_for_its_call(backend: str) -> None:
    async def main() -> None:
        call: Any = object()
        seen: list[Any] = []

        async def answer(request: Any) -> dict[str, Any]:
            seen.append(request)
            await anyio.sleep(3.0 if request.method == "roots/list" else 1.0)
            return {"of": request.method}

        async with anyio.create_task_group() as tasks:
            asked = Asked(tasks, answer)
            requests = {
                "late": {"method": "roots/list"},
                "soon": {"method": "elicitation/create", "params": {"mode": "form"}},
                "odd": {"method": "vendor/asks", "params": 7},
            }
            answers = await asked.questions.answer_all(call, requests)
            assert list(answers.items()) == [
                (key, {"of": request["method"]}) for key, request in requests.items()
            ]
            assert anyio.current_time() == pytest.approx(3.0), "side by side"
            params = {"roots/list": {}, "elicitation/create": {"mode": "form"}, "vendor/asks": {}}
            assert {each.method: each.params for each in seen} == params
            assert all((each.call is call, each.address) == (True, Address("s")) for each in seen)
            assert await asked.questions.answer_all(call, {}) == {}

    run_virtual(backend, main)


@pytest.mark.parametrize(("rounds", "takes"), [(0, 0.0), (1, 1), (3, 3), (1000, None)])
def test_whatever_a_server_asks_one_after_the_other_is_answered_before_its_first_call(
    backend: str, rounds: int, takes: int | None
) -> None:
    async def main() -> None:
        pinged: list[float] = []

        async def ping(_peer: Any) -> None:
            pinged.append(anyio.current_time())
            questions.asked += len(pinged) <= rounds

        async def settled() -> None:
            pass

        questions = SimpleNamespace(asked=0, settled=settled)
        stage: Any = object.__new__(Meeting)
        stage._incarnation = SimpleNamespace(
            greeting=Greeting({"roots": {}}, by_handshake=True), questions=questions
        )
        stage._ping = ping
        await stage._answer_first(None, SimpleNamespace(protocol_version="2025-11-25"))
        if takes is None:
            assert anyio.current_time() == pytest.approx(meeting.FIRST_ANSWERS)
        else:
            assert len(pinged) == takes + 1
            assert anyio.current_time() == pytest.approx(takes * meeting.ACTING)
        pinged.clear()
        await stage._answer_first(None, SimpleNamespace(protocol_version="2026-07-28"))
        stage._incarnation.greeting = Greeting({}, by_handshake=True)
        await stage._answer_first(None, SimpleNamespace(protocol_version="2025-11-25"))
        assert pinged == [], "it may ask nothing"

    run_virtual(backend, main)


# ---- optional parts ------------------------------------------------------------------------------------------------


def test_a_part_that_fails_for_days_is_tried_every_minute_and_told_of_once() -> None:
    said: list[str] = []
    now = [0.0]
    part = Part("the part", said.append, now=lambda: now[0])
    pauses = [part.failed("no") for _ in range(3_000)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert set(pauses[6:]) == {LAST_PAUSE}
    assert len(said) == 1
    part.works()
    now[0] += LAST_PAUSE
    assert part.failed("no") == LAST_PAUSE, "it has not worked for longer than that"
    part.works()
    now[0] += LAST_PAUSE + 1
    assert part.failed("no") == FIRST_PAUSE


# ---- time that is left ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop_by", "hurried"), [(math.inf, False), (130.0, False), (105.1, False), (103.0, True)]
)
def test_a_stop_under_way_is_hurried_only_if_it_has_less_time_now(stop_by: float, hurried: bool) -> None:
    incarnation: Any = object.__new__(Incarnation)
    context = SimpleNamespace(
        backend=SimpleNamespace(now=lambda: 101.0), settings=Settings(stop_timeout=5.0), stop_by=stop_by
    )
    incarnation.actor = SimpleNamespace(context=context, definition=SimpleNamespace(stop_timeout=None))
    cancelled: list[bool] = []
    incarnation._stopping = SimpleNamespace(cancel=lambda: cancelled.append(True))
    incarnation._stopped_by = 105.0
    incarnation.hurry()
    assert bool(cancelled) is hurried


@pytest.mark.parametrize("had_calls", [False, True])
def test_when_a_start_comes_too_late_both_calls_and_others_who_waited_are_told(had_calls: bool) -> None:
    done: list[Any] = []
    actor: Any = object.__new__(ServerActor)
    actor.address = Address("s")
    actor.life = "its life"
    actor.context = SimpleNamespace(settings=Settings(acquire_timeout=5.0))
    actor.mailbox = SimpleNamespace(user=[1] if had_calls else [])
    actor.calls = SimpleNamespace(
        waiting=SimpleNamespace(refuse=lambda error, since: done.append(("calls", str(error), since))),
        call_over=lambda: done.append("call over"),
    )
    actor.waits = SimpleNamespace(
        tell_early=lambda error, since, life: done.append(("waits", str(error), since, life))
    )
    actor.supervisor = SimpleNamespace(withdraw_start=lambda who: done.append(who))
    actor.refuse_waiting("no slot", 7.0)
    (calls, said, since), (waits, also, until, life) = done[:2]
    assert (calls, waits, since, until, life) == ("calls", "waits", 7.0, 7.0, "its life")
    assert said == also
    assert "no slot" in said
    assert done[2:] == [actor, *(["call over"] if had_calls else [])]


@pytest.mark.parametrize(
    ("installs", "now", "has"),
    [(False, 12.0, 8.0), (False, 19.5, 1.0), (False, 30.0, 1.0), (True, 90.0, 10.0)],
)
def test_the_lists_have_what_is_left_of_the_connect_time_and_a_second_at_least(
    backend: str, installs: bool, now: float, has: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    async def list_all(_peer: Any, _backend: Any, _handshake: Any, settings: Settings) -> str:
        asked.append(settings.connect_timeout)
        return "the lists"

    monkeypatch.setattr(meeting, "list_all", list_all)
    told: list[Any] = []

    async def main() -> None:
        stage: Any = object.__new__(Meeting)
        stage._limit = 10.0
        stage._patience = SimpleNamespace(installs=installs, began=10.0)
        stage._context = SimpleNamespace(
            settings=Settings(), backend=SimpleNamespace(now=lambda: now), next_revision=lambda: 3
        )
        stage._actor = SimpleNamespace(tell=told.append, definition=SimpleNamespace(pinning=None))
        stage._incarnation = SimpleNamespace(
            number=2,
            listen=told.append,
            greeting=None,
            questions=None,
            look_after=lambda: told.append("looked after"),
        )
        await stage._list(SimpleNamespace(peer=None), SimpleNamespace(protocol_version="2025-11-25"))
        assert asked == [has]
        ready = told[1]
        assert (ready.incarnation, ready.listing, ready.revision) == (2, "the lists", 3)
        assert told[2] == "looked after"

    run(backend, main)


@pytest.mark.parametrize(("state", "leases"), [*product(State, (0, 1))])
def test_only_who_is_connected_and_not_leased_begins_to_rest(state: State, leases: int) -> None:
    done: list[Any] = []
    actor: Any = SimpleNamespace(
        life=SimpleNamespace(state=state),
        context=SimpleNamespace(backend=SimpleNamespace(now=lambda: 7.0)),
        alarm=SimpleNamespace(when=100.0, wake_by=done.append),
        supervisor=SimpleNamespace(rested=lambda _actor: done.append("rested")),
        steps=SimpleNamespace(settle=lambda: done.append("settled")),
        address=SimpleNamespace(is_call=False),
    )
    idling = Idling(actor)
    idling.shorten(5.0)
    idling.leases = leases
    idling.rest()
    rests = state is State.CONNECTED and not leases
    assert done == ([12.0, "rested"] if rests else ["settled"] if state is State.DRAINING else [])
    assert idling.since == (7.0 if rests else -math.inf)


@pytest.mark.parametrize(("shortened", "until"), [(None, 30.0), (60.0, 30.0), (5.0, 5.0), (0.0, 0.0)])
def test_who_came_without_being_asked_for_stays_for_less_and_never_for_longer(
    shortened: float | None, until: float
) -> None:
    actor: Any = SimpleNamespace(supervisor=SimpleNamespace(idle_timeout=lambda _actor: 30.0))
    idling = Idling(actor)
    idling.since = 0.0
    assert idling.until == math.inf, "nobody has been asked yet"
    idling.ask_time()
    if shortened is not None:
        idling.shorten(shortened)
    assert idling.until == until
    idling.ask_time()
    assert idling.until == 30.0


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize("may", [True, False])
@pytest.mark.parametrize("called", [True, False], ids=["called since", "never called"])
@pytest.mark.parametrize("shortened", [5.0, 30.0])
@pytest.mark.parametrize("late", [-0.5, 0.0, 0.5])
def test_idle_time_that_is_over_ends_whoever_nobody_needs(
    is_idle: bool, may: bool, called: bool, shortened: float, late: float
) -> None:
    done: list[Any] = []
    since = 101.0 if called else 100.0
    now = since + shortened + late
    actor: Any = SimpleNamespace(
        is_idle=is_idle,
        connected_at=100.0,
        supervisor=SimpleNamespace(idle_timeout=lambda _actor: 30.0, may_expire=lambda _actor: may),
        rearm=lambda: done.append("asked again"),
        steps=SimpleNamespace(move=lambda *moved: done.append(moved)),
    )
    idling = Idling(actor)
    idling.ask_time()
    idling.shorten(shortened)
    idling.since = since
    idling.expire(now)
    ending = Ending(Cause.IDLE_TIMEOUT, reason=Reason.NO_CALL, seconds=shortened)
    if not is_idle or late < 0:
        assert done == []
    elif called and shortened < 30:
        assert done == ["asked again"], "it was called: it has all its time"
    else:
        assert done == ([(Trigger.DRAIN, ending, now)] if may else [])


class Entry:
    """One server that its entry says something of, or nothing; the room's settings say the rest."""

    def __init__(self, own: dict[str, Any], general: dict[str, Any]) -> None:
        self.told: list[Any] = []
        self.definition = ServerDefinition("s", command="npx", args=("x",), **own)
        self.settings = Settings(**general)
        self.actor: Any = SimpleNamespace(
            definition=self.definition,
            context=SimpleNamespace(
                settings=self.settings,
                stop_by=math.inf,
                backend=SimpleNamespace(now=lambda: 100.0, waiter=lambda: None),
                events=SimpleNamespace(call_readers=(), seq=0),
            ),
            alarm=SimpleNamespace(when=0.0),
            life=SimpleNamespace(state=State.DRAINING),
            tell=self.told.append,
            address=Address("s"),
        )

    def call_timeout(self) -> float:
        table: Any = object.__new__(CallTable)
        table.actor, table.context, table.record = self.actor, self.actor.context, self
        call: Any = SimpleNamespace(timeout=None)
        table.exchange_sent(call)
        assert (call.deadline, call.timeout) == (call.sent_at + call.timeout, call.timeout)
        return call.timeout

    def drain_timeout(self) -> float:
        actor: Any = object.__new__(ServerActor)
        actor.record, actor.context, actor.life = self, self.actor.context, self.actor.life
        actor.mailbox = SimpleNamespace(put_system=self.told.append)
        actor.stop(Ending(Cause.RESTART), 0)
        actor.stop(Ending(Cause.RESTART))
        assert self.told[0].patience == 0, "at once is at once"
        return self.told[1].patience

    def stop_timeout(self) -> float:
        return Incarnation(self.actor, 1)._stop_time()

    def connect_timeout(self) -> float:
        return Incarnation(self.actor, 1)._meeting.deadline - 100.0

    def install_timeout(self) -> float:
        return Incarnation(self.actor, 1)._meeting._patience.most

    def pinning(self) -> Pinning:
        return Incarnation(self.actor, 1)._meeting._settings.pinning

    def max_in_flight(self) -> int:
        return Record(self.definition).most_in_flight(self.settings)


@pytest.mark.parametrize(
    ("name", "own", "general"),
    [
        ("call_timeout", 3.0, 9.0),
        ("drain_timeout", 3.0, 9.0),
        ("stop_timeout", 3.0, 9.0),
        ("connect_timeout", 3.0, 9.0),
        ("install_timeout", 300.0, 900.0),
        ("max_in_flight", 3, 9),
        ("pinning", Pinning.QUARANTINE, Pinning.WARN),
    ],
)
def test_what_the_entry_of_a_server_says_goes_before_the_settings(
    backend: str, name: str, own: Any, general: Any
) -> None:
    async def main() -> None:
        for said, setting in product((None, own, general), (own, general)):
            entry = Entry({} if said is None else {name: said}, {name: setting})
            assert getattr(entry, name)() == (said or setting), (said, setting)

    run(backend, main)


@pytest.mark.parametrize(("stop_by", "has"), [(math.inf, 5.0), (103.0, 3.0), (100.05, 0.1), (90.0, 0.1)])
def test_a_stop_has_what_is_left_of_the_rooms_time_and_a_moment_at_least(
    backend: str, stop_by: float, has: float
) -> None:
    async def main() -> None:
        entry = Entry({"stop_timeout": 5.0}, {})
        entry.actor.context.stop_by = stop_by
        assert entry.stop_timeout() == pytest.approx(has)

    run(backend, main)


# ---- what a client can answer --------------------------------------------------------------------------------------

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


@pytest.mark.parametrize(
    ("method", "params", "declared", "lacks"),
    [
        (ROOTS, {}, {}, "roots"),
        (ROOTS, {}, {"roots": {}}, None),
        (ROOTS, {}, {"roots": None}, "roots"),
        (ROOTS, {}, {"sampling": {}, "elicitation": {}}, "roots"),
        (SAMPLE, {}, {"roots": {}}, "sampling"),
        (SAMPLE, {}, {"sampling": {}}, None),
        (SAMPLE, {"tools": []}, {"sampling": {}}, None),
        (SAMPLE, {"tools": [{}]}, {"sampling": {}}, "sampling.tools"),
        (SAMPLE, {"tools": [{}]}, {"sampling": {"tools": {}}}, None),
        (SAMPLE, {"mode": "url"}, {"sampling": {}}, None),
        (ELICIT, {}, {"sampling": {}}, "elicitation"),
        (ELICIT, {}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "form"}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "url"}, {"elicitation": {}}, "elicitation.url"),
        (ELICIT, {"mode": "url"}, {"elicitation": {"url": {}}}, None),
        (ELICIT, {"tools": [{}]}, {"elicitation": {}}, None),
        ("vendor/asks", {}, {}, None),
    ],
)
def test_what_a_client_has_not_declared_it_is_not_asked(
    method: str, params: dict[str, Any], declared: dict[str, Any], lacks: str | None
) -> None:
    assert lacking(declared, method, params) == lacks


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, {"roots": {}}, {"roots": {}}),
        ({"roots": {"listChanged": True}}, {"roots": {}}, {"roots": {"listChanged": True}}),
        (
            {"roots": {"listChanged": False}},
            {"roots": {"listChanged": True}},
            {"roots": {"listChanged": True}},
        ),
        ({"sampling": {"tools": {}}}, {"sampling": {"x": {}}}, {"sampling": {"tools": {}, "x": {}}}),
        ({"a": {}}, {"b": {"c": 1}}, {"a": {}, "b": {"c": 1}}),
    ],
)
def test_a_server_that_several_share_is_told_what_any_of_them_can(
    one: dict[str, Any], other: dict[str, Any], both: dict[str, Any]
) -> None:
    for left, right in ((one, other), (other, one)):
        found = joined([Greeting(left), Greeting(right)])
        assert found == Greeting(both)
        assert covers(both, left)
        assert covers(both, right)
        assert covers(left, both) is (left == both)
    for hands in product((True, False), repeat=3):
        assert joined(Greeting(by_handshake=each) for each in hands).by_handshake is any(hands)
    assert joined([]) == Greeting()


# ---- what servers say of themselves --------------------------------------------------------------------------------


def test_the_first_odd_thing_of_an_incarnation_is_kept_without_secrets_and_each_is_noted() -> None:
    notes: list[Any] = []
    record = Record(ServerDefinition("s", command="x"))
    incarnation: Any = SimpleNamespace(
        note=lambda code, words: notes.append((code, words)),
        actor=SimpleNamespace(record=record, hidden=lambda text: text.replace("secret", "***")),
    )
    for text in ("junk: a secret", "more junk"):
        Hearing(incarnation).on_note(text)
    assert record.odd == "junk: a ***"
    assert notes == [(NoteCode.ODD, "junk: a secret"), (NoteCode.ODD, "more junk")], "hidden in the stream"
    record.remark(None)
    assert record.odd is None, "an incarnation begins"
    record.remark("again")
    assert record.odd == "again"


@pytest.mark.parametrize("text", ["closed its stdout", "a secret"])
@pytest.mark.parametrize("tail", [(), ("fine",), ("fine", "a secret")])
def test_the_reason_of_a_lost_connection_has_lost_its_secrets_in_each_of_its_parts(
    text: str, tail: tuple[str, ...]
) -> None:
    said = LostReason(text, 3, stderr_tail=tail)
    found = _without_secrets(said, lambda text: text.replace("secret", "***"))
    assert (found.text, found.stderr_tail, found.exit_code) == (
        text.replace("secret", "***"),
        tuple(line.replace("secret", "***") for line in tail),
        3,
    )


def test_every_text_of_a_server_that_leaves_its_incarnation_has_lost_its_secrets() -> None:
    told: list[Any] = []
    incarnation: Any = object.__new__(Incarnation)
    incarnation.actor = SimpleNamespace(
        hidden=lambda text: text.replace("secret", "***"),
        address=Address("s"),
        tell=told.append,
    )
    incarnation.number = 1
    incarnation._connection = SimpleNamespace(
        stderr_tail=lambda: ("a secret", "b secret"), last_line="c secret"
    )
    said = [
        *incarnation.stderr_tail(),
        incarnation.last_line,
        str(incarnation.give_up("d secret", Reason.UNHEALTHY)),
        *incarnation.lost.stderr_tail,
    ]
    incarnation.fail("e secret")
    incarnation.found_dead("f secret")
    assert said[:3] == ["a ***", "b ***", "c ***"]
    assert "secret" not in f"{said}{told[0].error}{told[1].reason}{incarnation.lost}"
    assert len(told) == 2
