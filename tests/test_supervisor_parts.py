"""What the supervisor decides for one actor, each decision alone, and a room's own rare turns."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.support import run_virtual
from tests.support.rooms import open_room, settle

from greenroom import Greenroom
from greenroom.protocol.address import Address
from greenroom.protocol.config import Lifecycle, ServerDefinition, Settings
from greenroom.protocol.lifecycle import Reason, State
from greenroom.protocol.start import HOLDS_SLOT, Place
from greenroom.supervisor import _runtime, _supervision, _visiting
from greenroom.supervisor._admission import Admission
from greenroom.supervisor._callbacks import as_root
from greenroom.supervisor._gatekeeper import Gatekeeper
from greenroom.supervisor._pool_view import PoolView
from greenroom.supervisor._starter import Starter
from greenroom.supervisor._supervision import Supervision
from greenroom.supervisor._visiting import Visiting
from greenroom.testing import FakeServer
from greenroom.testing._fake import fake_connectors


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
@pytest.mark.parametrize("own", [None, 0.0, 5.0])
@pytest.mark.parametrize("general", [0.0, 7.0])
def test_who_may_idle_away_and_after_how_long(
    lifecycle: Lifecycle, own: float | None, general: float
) -> None:
    supervision: Any = object.__new__(Supervision)
    supervision._context = SimpleNamespace(settings=Settings(idle_timeout=general))
    definition = ServerDefinition("a", lifecycle=lifecycle, idle_timeout=own)
    for is_shared, uris in product((True, False), ({}, {"x:/": 1})):
        actor: Any = SimpleNamespace(
            record=SimpleNamespace(definition=definition),
            subscriptions=SimpleNamespace(uris=uris),
            address=SimpleNamespace(is_shared=is_shared),
        )
        usual = {Lifecycle.LAZY: general, Lifecycle.EAGER: 0.0, Lifecycle.KEEP_ALIVE: 0.0}[lifecycle]
        seconds = usual if own is None or lifecycle is Lifecycle.KEEP_ALIVE else own
        may = is_shared and not uris and seconds
        assert supervision.idle_timeout(actor) == (seconds if may else math.inf)


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
@pytest.mark.parametrize("place", [Place.OUT, Place.GATE])
def test_who_is_asked_for_by_name_goes_around_its_gate_and_is_kept_alive_again(
    lifecycle: Lifecycle, place: Place
) -> None:
    done: list[str] = []
    starter: Any = object.__new__(Starter)
    starter._directory = SimpleNamespace(bring_back=lambda server: done.append(f"brought back {server}"))
    starter._apply = lambda _actor: done.append("applied")
    actor: Any = SimpleNamespace(
        address=SimpleNamespace(server="a"),
        record=SimpleNamespace(definition=ServerDefinition("a", lifecycle=lifecycle)),
        start=SimpleNamespace(place=place, by_policy=False),
        request_start=lambda: done.append("asked to start"),
    )
    starter.request_by_name(actor)
    assert done == ["brought back a", "applied" if place is Place.GATE else "asked to start"]
    assert actor.start.by_policy is (lifecycle is Lifecycle.KEEP_ALIVE)


@pytest.mark.parametrize(
    ("state", "by_policy", "is_awaited"), [*product(State, (False, True), (False, True))]
)
def test_a_start_leaves_its_queue_with_its_last_reason(
    state: State, by_policy: bool, is_awaited: bool
) -> None:
    done: list[Any] = []
    starter: Any = object.__new__(Starter)
    starter.admission = SimpleNamespace(move=lambda _actor, place: done.append(place))
    actor: Any = SimpleNamespace(
        life=SimpleNamespace(state=state), start=SimpleNamespace(by_policy=by_policy), is_awaited=is_awaited
    )
    with pytest.MonkeyPatch.context() as patch:
        keeper = SimpleNamespace(probe_left=lambda who: done.append(who))
        patch.setattr("greenroom.supervisor._starter.keeper_of", lambda _actor: keeper)
        starter.withdraw(actor)
    leaves = state is State.IDLE and not by_policy and not is_awaited
    assert done == ([Place.OUT, actor] if leaves else [])


def test_a_visit_goes_on_until_its_last_try_and_each_try_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    visiting: Any = object.__new__(Visiting)
    visiting._over = told.append
    actor: Any = SimpleNamespace(address=SimpleNamespace(server="a"))
    record = SimpleNamespace(visit=actor)
    monkeypatch.setattr(_visiting, "record_of", lambda _actor: record)
    visiting.tried(SimpleNamespace(address=actor.address), is_over=True)
    assert (told, record.visit) == ([], actor), "another's end is not the visit's"
    visiting.tried(actor, is_over=False)
    assert (told, record.visit) == (["a"], actor)
    visiting.tried(actor, is_over=True)
    assert (told, record.visit) == (["a", "a"], None)
    visiting.tried(actor, is_over=True)
    assert told == ["a", "a"]


def test_a_room_that_is_asked_to_stop_before_it_was_built_ends_at_once(backend: str) -> None:
    server = FakeServer()

    async def main() -> None:
        room: Any = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})
        room._owner._runtime.request_stop(0)
        async with anyio.create_task_group() as tasks:
            await room.start(tasks)
            with anyio.fail_after(600):
                await room._owner._ended.wait()
        assert room.drain_report is not None
        assert server.live == 0

    run_virtual(backend, main)


def test_a_reload_starts_the_servers_that_stand_anew_and_no_others(backend: str) -> None:
    servers = {name: FakeServer() for name in ("old", "new", "lazy")}

    def config(*names: str) -> dict[str, Any]:
        entries: dict[str, Any] = {
            "old": {"command": "fake", "lifecycle": "eager", "idleTimeout": 1},
            "new": {"command": "fake", "lifecycle": "eager"},
            "lazy": {"command": "fake"},
        }
        return {"mcpServers": {name: entries[name] for name in names}, "settings": {"minConnections": 0}}

    async def main() -> None:
        async with Greenroom.open(
            config("old"), cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False
        ) as room:
            await room.ready()
            await anyio.sleep(100.0)
            assert (servers["old"].starts, servers["old"].live) == (1, 0), "it has idled away"
            await room.reload(config("old", "new", "lazy"))
            await settle()
            await anyio.sleep(1.0)
            assert {name: server.starts for name, server in servers.items()} == {
                "old": 1,
                "new": 1,
                "lazy": 0,
            }

    run_virtual(backend, main)


def test_what_a_session_gave_is_forgotten_with_it(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(_runtime, "forget_credentials", lambda _root, name: forgotten.append(name))

    async def main() -> None:
        async with open_room({"a": FakeServer()}) as room:
            async with room.session("x"):
                assert forgotten == []
            assert forgotten == ["x"]
            late = room.session("y")
            await late.__aenter__()
        await late.aclose()
        assert forgotten == ["x", "y"], "also after the room"

    run_virtual(backend, main)


# ---- slots and gates -----------------------------------------------------------------------------------------------


class Timer:
    def __init__(self, when: float) -> None:
        self.when, self.is_cancelled = when, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timers:
    def __init__(self) -> None:
        self.all: list[Timer] = []

    def at(self, when: float, _callback: Any) -> Timer:
        self.all.append(Timer(when))
        return self.all[-1]


def test_a_gate_has_one_timer_and_that_at_the_next_time_that_counts() -> None:
    timers = Timers()
    waiting = [SimpleNamespace(is_asked_for_by_name=False)]
    keeper: Any = object.__new__(Gatekeeper)
    keeper.parent = keeper.timer = None
    keeper.last_start = 9.5
    keeper.gate = SimpleNamespace(shut_until=30.0)
    keeper._gates = SimpleNamespace(waiting_at=lambda _: waiting, context=SimpleNamespace(timers=timers))
    keeper.set_timer(10.0)
    keeper.set_timer(11.0)
    waiting[0].is_asked_for_by_name = True
    keeper.set_timer(10.0)
    keeper.gate.shut_until = 5.0
    keeper.set_timer(10.0)
    keeper.parent = SimpleNamespace(gate=SimpleNamespace(shut_until=50.0), last_start=80.0)
    waiting[0].is_asked_for_by_name = False
    keeper.set_timer(10.0)
    assert [timer.when for timer in timers.all] == [30.0, 30.0, 10.5, 10.5, 50.0]
    assert [timer.is_cancelled for timer in timers.all] == [True, True, True, True, False]
    waiting.clear()
    keeper.set_timer(10.0)
    assert keeper.timer is None
    assert timers.all[-1].is_cancelled, "nobody waits"


@pytest.mark.parametrize("place", [Place.SLOT, Place.OUT])
def test_who_still_waits_for_a_slot_when_others_gave_up_has_a_bound_again(place: Place) -> None:
    timers, told = Timers(), list[Any]()
    admission: Any = object.__new__(Admission)
    admission._context = SimpleNamespace(
        settings=Settings(acquire_timeout=5.0), timers=timers, backend=SimpleNamespace(now=lambda: 20.0)
    )
    admission.view = SimpleNamespace(limits=SimpleNamespace(slots=3))
    actor: Any = SimpleNamespace(
        start=SimpleNamespace(place=place, deadline="the old one"),
        awaited_since=18.0,
        refuse_waiting=lambda why, since: told.append((why, since)),
    )
    admission._too_late(actor, 12.0)
    assert told == [("no slot of 3 became free in time", 12.0)]
    if place is Place.SLOT:
        assert actor.start.deadline.when == 23.0, "from when the next one came"
    else:
        assert (actor.start.deadline, timers.all) == (None, [])


def test_who_is_never_asked_to_make_room_is_listed_without_being_looked_at() -> None:
    done: list[Any] = []
    admission: Any = object.__new__(Admission)
    admission.view = SimpleNamespace(
        rest_order=SimpleNamespace(add=lambda actor, live: done.append((actor, live)))
    )
    admission.starts = SimpleNamespace(count=lambda _place: 4)
    admission.look = lambda: done.append("look")
    for is_shared in (False, True):
        actor: Any = SimpleNamespace(
            address=SimpleNamespace(is_shared=is_shared), idling=SimpleNamespace(is_listed=False)
        )
        admission.rested(actor)
        assert actor.idling.is_listed is not is_shared
        assert done == ([(actor, 4), "look"] if is_shared else [])


def test_for_slots_wait_first_who_has_one_set_aside_then_who_is_called_then_who_is_visited() -> None:
    def actor(name: str, scope: str = "shared") -> Any:
        return SimpleNamespace(
            address=Address(name, scope), start=SimpleNamespace(place=Place.SLOT, since=1.0)
        )

    visited, called, kept = actor("visited"), actor("called"), actor("kept")
    session = actor("called", "session:x")
    asks = SimpleNamespace(
        kept=lambda: {"kept": None}, shared_actor=lambda _: kept, is_visit=lambda who: who is visited
    )
    starts = SimpleNamespace(at=lambda _place: [visited, kept, session, called])
    view = PoolView(cast("Any", None), cast("Any", starts), cast("Any", asks))
    assert [(one.who, one.is_kept, one.group) for one in view._queue()] == [
        (kept, True, None), (session, False, "called"), (called, False, None), (visited, False, None),
    ]  # fmt: skip


@pytest.mark.parametrize("of_visit", [False, True])
def test_an_address_that_was_made_for_a_visit_is_stopped_when_the_lists_are_known(
    of_visit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Any] = []
    visiting: Any = object.__new__(Visiting)
    record = SimpleNamespace(server=SimpleNamespace(visit=None))
    monkeypatch.setattr(_visiting, "record_of", lambda _actor: record)
    scope = _visiting._SCOPE if of_visit else "session:x"
    visiting.learned(
        SimpleNamespace(
            address=Address("a", scope),
            stop=lambda ending, patience: stopped.append((ending.reason, patience)),
        )
    )
    assert stopped == ([(Reason.VISIT_OVER, 0)] if of_visit else [])


def test_a_root_is_a_path_a_uri_or_what_the_caller_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_root("file:///a/b") == {"uri": "file:///a/b"}
    assert as_root(tmp_path) == as_root(str(tmp_path)) == {"uri": tmp_path.as_uri()}
    assert as_root("x y") == {"uri": (tmp_path / "x y").as_uri()}
    assert as_root({"uri": "x:/", "name": "n"}) == {"uri": "x:/", "name": "n"}


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [*product(Place, Place, (False, True))],
    ids=lambda value: value.name.lower() if isinstance(value, Place) else str(value),
)
def test_the_reserve_is_counted_afresh_from_the_end_of_a_connection_over_the_limit(
    before: Place, after: Place, is_kept: bool
) -> None:
    for held in (1, 2, 3, 4):  # of two that there are, when the actor has moved
        admission: Any = object.__new__(Admission)
        actor: Any = SimpleNamespace(start=SimpleNamespace(place=before, deadline=1.0))
        admission._reserve_from = -math.inf
        admission._context = SimpleNamespace(backend=SimpleNamespace(now=lambda: 20.0))
        admission.starts = SimpleNamespace(move=lambda who, place: setattr(who.start, "place", place))
        admission.view = SimpleNamespace(
            is_kept=lambda _actor: is_kept, shared=lambda held=held: held, capacity=2
        )
        admission.look = lambda: None
        admission.move(actor, after)
        is_over = before in HOLDS_SLOT and after not in HOLDS_SLOT and not is_kept and held >= 2
        assert admission._reserve_from == (20.0 if is_over else -math.inf)


@pytest.mark.parametrize(("is_stateless", "url"), [*product((False, True), (None, "http://x/mcp"))])
def test_only_a_server_that_keeps_nothing_of_us_gives_its_slot_back(
    is_stateless: bool, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of 2026-07-28 has no session either, but it runs."""
    moved: list[Place] = []
    record = SimpleNamespace(
        definition=ServerDefinition("a", url=url),
        server=SimpleNamespace(failure="old"),
        failure="old",
        gatekeeper=SimpleNamespace(connected=lambda _actor: None),
    )
    monkeypatch.setattr(_supervision, "record_of", lambda _actor: record)
    supervision: Any = object.__new__(Supervision)
    supervision.starter = SimpleNamespace(
        admission=SimpleNamespace(move=lambda _actor, place: moved.append(place))
    )
    supervision.visiting = SimpleNamespace(learned=lambda _actor: None)
    supervision._learn = lambda *_: None
    actor: Any = SimpleNamespace(start=SimpleNamespace(by_policy=True, since=5.0), connected_at=7.0)
    hello = SimpleNamespace(is_stateless=is_stateless, is_its_choice=False)
    supervision.ready(actor, hello, None, 1)
    assert moved == [Place.OUT if is_stateless and url else Place.LIVE]
    assert (actor.start.by_policy, record.failure, record.server.failure) == (False, None, None)
    assert (record.start_took, record.server.start_took) == (2.0, 2.0)
