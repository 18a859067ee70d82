"""Embedding: however a program opens a room, cancels its host or walks away, the room ends in order and says so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from tests.support import in_real_time, in_virtual_time
from tests.support.gateway import PATIENCE, faulty
from tests.support.loops import on_asyncio, on_trio
from tests.support.rooms import Outcomes, open_room, record_events, settle, teach_lists
from tests.support.rows import for_each

from greenroom import Greenroom, Reach, State, UnknownTool, UsageError
from greenroom.actors.catalogue_writer import CatalogueWriter
from greenroom.actors.host import Declaration, ServerRequest
from greenroom.actors.open_requests import mark_sent
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys
from greenroom.config.files import open_config
from greenroom.errors import AmbiguousTool, RoomClosed, UnknownPrompt, UnknownResource, UnknownServer
from greenroom.events import Event
from greenroom.protocol.address import Address
from greenroom.protocol.errors import CallError, Drained, ProtocolFault, RemoteError, RpcRefusal
from greenroom.protocol.events import Note
from greenroom.supervisor.port import Updates, _is_about
from greenroom.supervisor.room import port_of
from greenroom.supervisor.runtime import CoreActorFailed
from greenroom.supervisor.server_messages import Callbacks, LogLevels, RoomHost, Routing, as_root
from greenroom.supervisor.servers import ServerRecord
from greenroom.supervisor.sessions import Sessions
from greenroom.testing.fake_servers import HANG, FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside


class OwnMistakeError(Exception):
    """What an embedder's body raises."""


def closed_in_order(room: Greenroom, server: FakeServer) -> None:
    assert server.live == 0
    assert room.drain_report is not None
    assert room.drain_report.adds_up


# ---- both loops --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_async_with_opens_and_ends_a_room() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        assert server.live == 1
        assert room.drain_report is not None
        assert not room.drain_report.is_final
    closed_in_order(room, server)
    with pytest.raises(RoomClosed):
        await room.call("a_echo")
    with pytest.raises(RoomClosed):
        await room.connect("a")
    with pytest.raises(RoomClosed):
        await room.catalogued()
    await room.aclose()


async def _fail_in(room: Greenroom, first: Callable[[], None] = lambda: None) -> None:
    async with room:
        await room.connect("a")
        first()
        raise OwnMistakeError


@in_virtual_time
async def test_a_body_s_own_exception_comes_out_unwrapped() -> None:
    server = FakeServer()
    room = open_room({"a": server})
    with pytest.raises(OwnMistakeError):
        await _fail_in(room)
    closed_in_order(room, server)


@in_virtual_time
async def test_a_cancelled_host_does_not_hide_the_body_s_own_exception() -> None:
    server = FakeServer(stop_latency=1.0)
    room = open_room({"a": server})
    with anyio.CancelScope() as scope, pytest.raises(OwnMistakeError):
        await _fail_in(room, scope.cancel)
    closed_in_order(room, server)


@in_virtual_time
async def test_before_it_is_open_a_room_says_what_to_do() -> None:
    room = open_room({"a": FakeServer()})
    for ask in (
        room.status,
        room.tools,
        lambda: room.search("x"),
        lambda: room.describe("x"),
    ):
        with pytest.raises(UsageError, match="not open yet: use `async with"):
            ask()
    for wait in (lambda: room.call("a_echo"), room.ready, lambda: room.connect("a"), room.catalogued):
        with pytest.raises(UsageError, match="not open yet"):
            await wait()  # type: ignore[operator]
    await room.aclose()


@in_virtual_time
async def test_a_reader_that_comes_before_the_room_is_open_misses_nothing() -> None:
    room = open_room({"a": FakeServer()})
    async with room.events() as events:
        async with room:
            await room.connect("a")
        seen = [event async for event in events]
    assert all(isinstance(event, Event) for event in seen)
    assert [event.seq for event in seen if isinstance(event, Event)] == list(range(1, len(seen) + 1))
    assert len(seen) > 5


@in_virtual_time
async def test_a_room_opens_once() -> None:
    async with open_room({}) as room:
        with pytest.raises(UsageError, match="opened once"):
            async with room:
                pass


@in_virtual_time
async def test_start_in_a_task_group_and_aclose() -> None:
    server = FakeServer()
    room = open_room({"a": server})
    async with anyio.create_task_group() as tasks:
        await room.start(tasks)
        await room.connect("a")
        await room.aclose()
        closed_in_order(room, server)


@in_virtual_time
async def test_a_cancelled_task_group_ends_the_room_it_was_given() -> None:
    server = FakeServer(stop_latency=0.5)
    room = open_room({"a": server})
    async with anyio.create_task_group() as tasks:
        await room.start(tasks)
        await room.connect("a")
        tasks.cancel_scope.cancel()
    closed_in_order(room, server)
    assert anyio.current_time() < 20


@in_virtual_time
async def test_a_room_entered_in_a_cancelled_scope_does_not_wait_for_ever() -> None:
    server = FakeServer()
    room = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with room:
            await anyio.sleep_forever()
    await room.aclose()
    assert server.live == 0


@in_virtual_time
async def test_a_host_cancelled_by_a_scope_still_gets_an_ordered_end() -> None:
    server = FakeServer(call_latency=3.0, stop_latency=1.0)
    room = open_room({"a": server})
    outcomes = list[Any]()
    with anyio.move_on_after(5.0) as scope:
        async with room:
            await room.connect("a")
            target = room.describe("a_echo")
            await anyio.sleep(4.0)
            port_of(room).start_call(target, {}, lambda call: outcomes.append(call.outcome))
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert outcomes == ["result"], "a call in flight was not given its time"
    assert anyio.current_time() == pytest.approx(8.0, abs=0.1)
    closed_in_order(room, server)


@in_virtual_time
async def test_aclose_from_another_task_ends_the_room_under_the_one_that_entered_it() -> None:
    server = FakeServer()
    async with anyio.create_task_group() as tasks:
        async with open_room({"a": server}) as room:
            await room.connect("a")
            tasks.start_soon(room.aclose)
            await anyio.sleep(1.0)
            assert server.live == 0
            with pytest.raises(RoomClosed):
                await room.call("a_echo")
        closed_in_order(room, server)


@in_virtual_time
async def test_many_acloses_are_one_and_a_less_patient_one_counts() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room, Outcomes() as calls:
        await room.connect("a")
        call = calls.start(room, "a_echo")
        await settle()
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(room.aclose)
            await anyio.sleep(2.0)
            await room.aclose(0)
        assert anyio.current_time() - start == pytest.approx(2.0, abs=0.1)
        assert isinstance(call.error, Drained)
    closed_in_order(room, server)


@in_virtual_time
async def test_the_end_is_bounded_whatever_the_servers_do() -> None:
    servers = {name: FakeServer(call_latency=HANG, stop_latency=HANG) for name in "abcdefgh"}
    async with open_room(servers) as room:
        for name in servers:
            await room.connect(name)
            port_of(room).start_call(room.describe(f"{name}_echo"), {}, lambda _: None)
        await settle()
        start = anyio.current_time()
        await room.aclose()
        assert anyio.current_time() - start <= 15.1, "servers were stopped one after the other"
    assert sum(server.live for server in servers.values()) == 0
    assert room.drain_report is not None
    assert (room.drain_report.accepted, room.drain_report.failed) == (8, 8)


@in_virtual_time
async def test_a_stop_that_began_before_the_end_is_hurried_too() -> None:
    """It was given a minute, and then the room's client has gone."""
    server = FakeServer(stop_latency=HANG)
    async with open_room({"a": server}, entries={"a": {"stopTimeoutMs": 60_000}}) as room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.drain, "a")
            await anyio.sleep(5.0)
            assert server.live == 1
            began = anyio.current_time()
            await room.aclose(patience=0)
            assert anyio.current_time() - began <= 1.0
            assert server.live == 0


@in_virtual_time
async def test_a_room_that_is_closed_while_it_is_being_opened_ends() -> None:
    server = FakeServer()
    room = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})

    async def close() -> None:
        while room.drain_report is None or not room.drain_report.is_final:
            await room.aclose(0)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.start, tasks)
        tasks.start_soon(close)
    closed_in_order(room, server)


@in_virtual_time
async def test_who_waits_until_the_room_is_ready_is_let_go_when_it_closes() -> None:
    servers = {name: FakeServer(initialize_latency=HANG) for name in ("a", "b")}
    eager = {name: {"lifecycle": "eager"} for name in servers}
    async with open_room(servers, entries=eager) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(room.ready)
        await anyio.sleep(1.0)
        await room.aclose(0)
    assert anyio.current_time() < 3.0


@in_virtual_time
async def test_the_trees_have_their_stop_time_out_of_the_time_there_is_for_all() -> None:
    server = FakeServer(call_latency=HANG, stop_latency=3.5)
    settings: dict[str, Any] = {"shutdownTimeoutMs": 10_000, "stopTimeoutMs": 4_000}
    async with open_room({"a": server}, **settings) as room, Outcomes() as calls:
        await room.connect("a")
        call = calls.start(room, "a_echo")
        await settle()
        began = anyio.current_time()
        await room.aclose(patience=60.0)
        assert isinstance(call.error, Drained)
        assert call.at == began + 6.0
        assert anyio.current_time() == began + 9.5


@in_virtual_time
async def test_whoever_waits_when_the_room_closes_is_told() -> None:
    server = FakeServer(start_latency=HANG)
    told: list[str] = []
    room = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})

    async def wait(what: Callable[[], Awaitable[Any]]) -> None:
        try:
            await what()
        except CallError as error:
            told.append(error.code)
        else:
            told.append("done")

    async with anyio.create_task_group() as tasks, room:
        for what in (lambda: room.connect("a"), lambda: room.call("a_x"), room.ready, room.catalogued):
            tasks.start_soon(wait, what)
        await anyio.sleep(1.0)
    assert sorted(told) == ["done", "done", "server_not_connected", "server_not_connected"]


# ---- trio --------------------------------------------------------------------------------------------------


@on_trio
@in_virtual_time
async def test_on_trio_start_without_a_nursery_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"await room.start\(nursery\)"):
        await open_room({}).start()


@on_trio
@in_virtual_time
async def test_on_trio_a_nursery_will_do() -> None:
    server = FakeServer()
    room = open_room({"a": server})
    async with trio.open_nursery() as nursery:
        await room.start(nursery)
        await room.connect("a")
        nursery.cancel_scope.cancel()
    closed_in_order(room, server)


# ---- asyncio: native cancellation --------------------------------------------------------------------------


async def _host(room: Greenroom, up: asyncio.Event) -> None:
    async with room:
        await room.connect("a")
        up.set()
        await asyncio.sleep(3600)


@pytest.mark.parametrize("times", [1, 2, 3])
@on_asyncio
@in_virtual_time
async def test_a_host_cancelled_natively_any_number_of_times_ends_in_order(times: int) -> None:
    server = FakeServer(stop_latency=2.0)
    room, up = open_room({"a": server}), asyncio.Event()
    host = asyncio.create_task(_host(room, up))
    await up.wait()
    for _ in range(times):
        host.cancel()
        await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await host
    closed_in_order(room, server)


@on_asyncio
@in_virtual_time
async def test_under_wait_for_and_timeout_the_host_gets_its_timeout_error() -> None:
    server = FakeServer(stop_latency=1.0)
    room = open_room({"a": server})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_host(room, asyncio.Event()), 5.0)
    closed_in_order(room, server)

    room = open_room({"a": server})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await _host(room, asyncio.Event())
    closed_in_order(room, server)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@on_asyncio
@in_virtual_time
async def test_start_without_a_group_has_an_owner_task_of_its_own() -> None:
    server = FakeServer()
    room = open_room({"a": server})
    await asyncio.create_task(room.start())
    await asyncio.create_task(room.connect("a"))
    await asyncio.create_task(room.aclose())
    closed_in_order(room, server)


@pytest.mark.parametrize("ticks", range(6))
@on_asyncio
@in_virtual_time
async def test_start_cancelled_at_any_tick_leaves_nothing(ticks: int) -> None:
    server = FakeServer()
    room = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})
    starting = asyncio.create_task(room.start())
    for _ in range(ticks):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await room.aclose()
    assert server.live == 0


@pytest.mark.parametrize("latency", [0.0, HANG])
def test_when_asyncio_run_ends_with_the_room_open_nothing_is_left(latency: float) -> None:
    server = FakeServer(call_latency=HANG, stop_latency=latency)
    kept: list[Any] = []

    async def main() -> None:
        room = open_room({"a": server})
        await room.start()
        await room.connect("a")
        target, outcomes = room.describe("a_echo"), list[str]()
        port_of(room).start_call(target, {}, lambda call: outcomes.append(call.outcome))
        waiting = [asyncio.create_task(room.call("a_echo", {"n": n})) for n in range(3)]
        queued = asyncio.create_task(room.call("b_echo"))
        await asyncio.sleep(0.01)
        kept.extend([room, outcomes, waiting, queued])

    asyncio.run(main())

    room, outcomes, waiting, queued = kept
    assert server.live == 0
    assert len(outcomes) == 1
    assert all(task.cancelled() or task.exception() is not None for task in [*waiting, queued])
    assert room.drain_report.accepted == 4
    assert room.drain_report.adds_up


# ---- bugs of ours ------------------------------------------------------------------------------------------


@in_virtual_time
async def test_t26_a_bug_in_a_step_ends_that_incarnation_and_the_rest_serve_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = {"a": FakeServer(call_latency=1.0), "b": FakeServer()}
    async with open_room(servers) as room:
        await room.connect("a")
        await room.connect("b")
        notes = record_events(room, Note)
        actor = RoomInside(room).machinery.servers.actor("a")

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a bug of ours")

        async with Outcomes() as calls:
            in_flight = calls.start(room, "a_echo")
            await settle()
            with monkeypatch.context() as patch:
                patch.setattr(type(actor), "begin_idling", broken)
                patch.setattr(ServerRecord, "idle_timeout", broken)
                await anyio.sleep(2.0)
        assert in_flight.outcome == "{}"
        assert (await room.call("b_echo", {"fine": 1})).text == '{"fine": 1}'
        assert any("ZeroDivisionError: a bug of ours" in note.detail for note in notes)
        assert servers["a"].live == 0
        assert "an error in Greenroom itself" in (room.status()[0].failure or "")
        assert room.status()[0].down is None

        assert (await room.call("a_echo", {"back": 1})).text == '{"back": 1}'


SUPERVISOR = [
    "refuses",
    "request_start",
    "withdraw_start",
    "connect_timeout",
    "ready",
    "closed",
    "idle_timeout",
    "answered",
    "silent",
    "call_unanswered",
    "may_send",
]


@pytest.mark.parametrize("broken", SUPERVISOR)
@in_virtual_time
async def test_a_bug_in_any_decision_leaves_no_call_without_an_outcome(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"a": FakeServer(call_latency=1.0, start_latency=1.0), "b": FakeServer()}
    async with open_room(servers, failureThreshold=1, cooldownMs=1000) as room:
        await room.connect("b")
        await room.connect("a")
        working = getattr(ServerRecord, broken)

        def for_a(record: ServerRecord, *args: Any, **options: Any) -> Any:
            if record.definition.name == "a":
                raise ZeroDivisionError(broken)
            return working(record, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(ServerRecord, broken, for_a)
            results = list[Any]()
            for _ in range(3):
                try:
                    port_of(room).start_call(room.describe("a_echo"), {}, results.append)
                except (CallError, ZeroDivisionError) as error:
                    results.append(error)
            await anyio.sleep(0.5)
            servers["a"].crash()
            await anyio.sleep(100.0)
        assert len(results) == 3
        assert (await room.call("b_echo", {"fine": 1})).text == '{"fine": 1}'
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert servers["a"].live == 0


@in_virtual_time
async def test_a_core_actor_that_fails_is_restarted_and_its_askers_get_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_room({"a": FakeServer()}) as room:
        router: Any = RoomInside(room).machinery.router
        notes = record_events(room, Note)
        with monkeypatch.context() as patch:
            patch.setattr(router, "_learn", lambda _: 1 / 0)
            await room.connect("a")
        assert any("the router failed and is restarted" in note.detail for note in notes)
        await room.connect("a", force=True)
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


@in_virtual_time
async def test_a_core_actor_that_keeps_failing_takes_the_room_down_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(call_latency=HANG)
    outcomes: list[str] = []
    room = open_room({"a": server})

    async def body_of_it() -> None:
        async with room:
            await room.connect("a")
            port_of(room).start_call(room.describe("a_echo"), {}, lambda call: outcomes.append(call.outcome))
            router: Any = RoomInside(room).machinery.router
            monkeypatch.setattr(router, "after_batch", lambda: 1 / 0)
            router.ref.tell(object())
            await anyio.sleep(1.0)
            with pytest.raises(RoomClosed):
                await room.call("a_echo")

    with pytest.raises(CoreActorFailed, match="the router failed more than 3 times"):
        await body_of_it()
    assert outcomes == ["call_failed"]  # lost with its connection: it was sent
    closed_in_order(room, server)
    assert RoomInside(room).actor("a").state in (State.CLOSED, State.IDLE)


# ---- the end, in small print ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_host_cancelled_while_the_room_ends_does_not_hide_the_body_s_own_exception() -> None:
    server = FakeServer(stop_latency=2.0)
    room = open_room({"a": server})

    async def host() -> None:
        with anyio.move_on_after(1.0) as scope:
            with pytest.raises(OwnMistakeError):
                await _fail_in(room)
            raised.append(scope.cancel_called)

    raised: list[bool] = []
    await host()
    assert raised == [True]
    assert anyio.current_time() == pytest.approx(2.0)
    closed_in_order(room, server)


@in_virtual_time
async def test_a_session_that_is_ended_by_a_cancelled_caller_ends_all_the_same() -> None:
    server = FakeServer(stop_latency=2.0)
    async with open_room({"a": server}, entries={"a": {"isolation": "per_session"}}) as room:
        session = room.session("ann")
        await session.__aenter__()
        await port_of(room).find("a_echo")
        await session.call("a_echo")
        assert server.live == 1
        began = anyio.current_time()
        with anyio.move_on_after(0.5):
            await session.aclose()
        assert server.live == 0
        assert anyio.current_time() - began == pytest.approx(2.0)
        with pytest.raises(UsageError, match="is over"):
            await session.call("a_echo")


class SlowStore:
    """A catalogue's file on a slow disk."""

    blocks = True

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.saved: list[str] = []

    def save(self, entries: Any, failures: Any) -> str | None:
        self.begun.set()
        time.sleep(0.1)
        self.saved += entries
        return None


@in_real_time
async def test_what_was_learned_last_is_written_before_the_room_has_closed() -> None:
    store = SlowStore()
    async with open_room({"a": FakeServer()}) as room:
        RoomInside(room).machinery.writer._store = store
        for name in ("first", "second"):
            RoomInside(room).machinery._remember(ServerEntry(name, "h"))
            while not store.begun.is_set():
                await anyio.sleep(0.001)
    assert store.saved == ["first", "second"]


@in_real_time
async def test_what_this_run_reads_is_newer_than_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    """Revisions count within a run: those of the run that wrote the cache may be higher."""
    server = FakeServer()
    config = {"mcpServers": {"a": {"command": "fake"}}}

    def room() -> Greenroom:
        return Greenroom.open(
            config,
            cache_path=tmp_path / "catalogue.json",
            connectors=fake_connectors({"a": server}),
            bootstrap=False,
        )

    async with room() as first:
        for number in range(4):
            server.tools = [tool("echo", description=f"the {number}th")]
            await first.connect("a")
            await first.drain("a")
        entry = first.entry("a")
        assert entry is not None
        assert entry.revision == 4
    server.tools.append(tool("new"))
    async with room() as second:
        assert [target.name for target in second.tools()] == ["a_echo"]
        await second.connect("a")
        await second.settled()
        assert [target.name for target in second.tools()] == ["a_echo", "a_new"]


@in_real_time
async def test_which_era_a_server_spoke_last_time_is_known_before_it_is_met(tmp_path: Path) -> None:
    config, cache = {"mcpServers": {"a": {"command": "fake"}, "b": {"command": "fake"}}}, tmp_path / "c.json"
    keys = catalogue_keys(open_config(config))
    entry = ServerEntry("a", keys["a"], tools=(), fetched_at=time.time(), protocol_version="2026-07-28")
    assert CatalogueFile(cache).save([entry], time.time()) is None
    async with Greenroom.open(
        config, cache_path=cache, connectors=fake_connectors({}), bootstrap=False
    ) as room:
        assert (port_of(room).is_stateless("a"), port_of(room).is_stateless("b")) == (True, False)


@in_virtual_time
async def test_what_a_server_does_not_declare_it_is_known_not_to_have() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        entry = room.entry("a")
        assert entry is not None
        assert (entry.resources, entry.templates, entry.prompts) == ((), (), ())
        assert room.refresh() == []


def test_callbacks_declare_what_they_can_and_are_told_what_they_hear() -> None:
    async def answer(_request: Any) -> Any:
        return {}

    told: list[Any] = []
    everything = Callbacks(
        answer, answer, ["/"], capabilities={"sampling": {"tools": {}}, "experimental": {"x": {}}}
    )
    assert everything.declaration(Address("a")) == Declaration(
        {
            "sampling": {"tools": {}},
            "elicitation": {"form": {}, "url": {}},
            "roots": {"listChanged": True},
            "experimental": {"x": {}},
        },
        by_handshake=True,
    )
    assert Callbacks().declaration(Address("a")) == Declaration({}, by_handshake=False)
    listening = Callbacks(on_notification=lambda *said: told.append(said))
    assert listening.declaration(Address("a")) == Declaration({}, by_handshake=True)
    both = Callbacks(on_log=lambda *said: told.append(said), on_notification=lambda *said: told.append(said))
    assert both.declaration(Address("a")) == Declaration({}, by_handshake=True)
    both.heard(Address("a"), "notifications/message", {"level": "info"})
    assert told == [
        (Address("a"), {"level": "info"}),
        (Address("a"), "notifications/message", {"level": "info"}),
    ]


@in_real_time
async def test_each_server_request_goes_to_the_callback_that_is_for_it_or_is_refused() -> None:
    methods = {
        "sampling": "sampling/createMessage",
        "elicitation": "elicitation/create",
        "roots": "roots/list",
    }

    async def sampling(request: ServerRequest) -> Any:
        return {"sampled": request.method}

    async def elicitation(request: ServerRequest) -> Any:
        return {"elicited": request.method}

    async def roots(request: ServerRequest) -> Any:
        return [f"asked://{request.method}"]

    cases = (
        ("sampling", Callbacks(on_sampling=sampling), {"sampled": "sampling/createMessage"}),
        ("elicitation", Callbacks(on_elicitation=elicitation), {"elicited": "elicitation/create"}),
        ("roots", Callbacks(roots=roots), {"roots": [{"uri": "asked://roots/list"}]}),
        ("roots", Callbacks(roots=["x://1", {"uri": "y"}]), {"roots": [{"uri": "x://1"}, {"uri": "y"}]}),
        ("roots", Callbacks(roots=[]), {"roots": []}),
    )
    for what, callbacks, answered in cases:
        assert list(callbacks.declared()) == [what]
        for method in (*methods.values(), "tasks/list"):
            request = ServerRequest(Address("a"), method, {})
            if method == methods[what]:
                assert await callbacks.answer(request) == answered
                continue
            with pytest.raises(RpcRefusal) as caught:
                await callbacks.answer(request)
            assert caught.value.rpc_code == -32601


@for_each(
    ("root", "uri"),
    [
        ("/a b/é", "file:///a%20b/%C3%A9"),
        (Path("/x"), "file:///x"),
        ("file:///y", "file:///y"),
        ({"uri": "z:/", "name": "Z"}, "z:/"),
        ("here", Path("here").absolute().as_uri()),
    ],
)
def test_a_root_is_written_as_the_protocol_writes_it(root: Any, uri: str) -> None:
    assert as_root(root)["uri"] == uri


@in_virtual_time
async def test_what_a_completion_is_asked_with_goes_along() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        (connection,) = server.connections
        request, asked = connection.request, list[Any]()

        def note(exchange: Any) -> None:
            asked.append((exchange.params, exchange.on_progress is not None))
            request(exchange)

        connection.request = note
        ref, argument = {"type": "ref/resource", "uri": "x:/{day}"}, {"name": "day", "value": "m"}
        for context in (None, {"arguments": {"month": "may"}}):
            with pytest.raises(RemoteError):
                await room.complete(ref, argument, context=context, server="a")
        with pytest.raises(RemoteError):
            await room.read_resource("x:/may", "a", on_progress=asked.append)
        plain = {"ref": ref, "argument": argument}
        assert asked == [
            (plain, False),
            ({**plain, "context": {"arguments": {"month": "may"}}}, False),
            ({"uri": "x:/may"}, True),
        ]


@in_virtual_time
async def test_who_names_a_server_means_that_one() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    async with open_room(servers) as room:
        for name in servers:
            await room.connect(name)
        with pytest.raises(UnknownTool):
            await room.call("a_echo", server="b")
        assert (servers["a"].calls, servers["b"].calls) == ([], [])
        await room.call("echo", server="b")
        assert len(servers["b"].calls) == 1
        learned = ServerEntry("a", "", tools=(), resources=({"uri": "x:/1", "name": "x"},), revision=99)
        await teach_lists(room, learned)
        assert port_of(room).catalogue.locate("x:/1").server == "a"
        assert (
            port_of(room).catalogue.locate("x:/1", "b").server,
            port_of(room).catalogue.locate("x:/1", "b").original,
        ) == (
            "b",
            "x:/1",
        )


@in_virtual_time
async def test_a_mistaken_name_is_told_with_what_there_is() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        with pytest.raises(UnknownTool, match=r'Tool "a_ecoh" not found. Server "a" has: a_echo\.') as tools:
            await room.call("a_ecoh")
        assert tools.value.suggestions == ("a_echo",)
        learned = ServerEntry("a", "", tools=(), prompts=({"name": "greet"},), revision=99)
        await teach_lists(room, learned)
        with pytest.raises(UnknownPrompt, match="a_greet"):
            await room.get_prompt("a_great")


@in_virtual_time
async def test_an_answer_that_is_no_result_was_an_answer() -> None:
    server = FakeServer(handler=lambda _: [1])  # pyright: ignore[reportArgumentType, reportReturnType]
    async with open_room({"a": server}) as room:
        await room.connect("a")
        for ask in (
            lambda: room.call("a_echo"),
            lambda: room.request("a", "tools/call", {"name": "echo"}),
        ):
            with pytest.raises(ProtocolFault) as caught:
                await ask()
            assert caught.value.reach is Reach.ANSWERED
        assert server.live == 1


@in_virtual_time
async def test_what_a_caller_leaves_out_is_left_out_and_what_it_says_goes_along() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        await room.call("a_echo")
        await room.call("a_echo", {"n": 1}, meta={"x": 1})
        assert server.calls == [
            {"name": "echo", "arguments": {}},
            {"name": "echo", "arguments": {"n": 1}, "_meta": {"x": 1}},
        ]
        learned = ServerEntry("a", "", tools=(), prompts=({"name": "p"},), revision=99)
        await teach_lists(room, learned)
        (connection,) = server.connections
        request, asked = connection.request, list[Any]()

        def note(exchange: Any) -> None:
            asked.append(exchange.params)
            request(exchange)

        connection.request = note
        for arguments in (None, {}, {"day": "monday"}):
            with pytest.raises(RemoteError):
                await room.get_prompt("a_p", arguments)
        assert asked == [
            {"name": "p"},
            {"name": "p", "arguments": {}},
            {"name": "p", "arguments": {"day": "monday"}},
        ]
        with pytest.raises(UnknownServer):
            room.tools("typo")


@in_virtual_time
async def test_a_resource_that_is_called_like_a_tool_may_be_read_again() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        learned = ServerEntry("a", "", tools=(), resources=({"uri": "x:/1", "name": "Read Me"},), revision=99)
        await teach_lists(room, learned)
        (target,) = room.tools("a")
        (connection,) = server.connections

        def swallow(exchange: Any) -> None:
            mark_sent(exchange)

        connection.request = swallow
        async with Outcomes() as calls:
            call = calls.start(room, target.name)
            await settle()
            server.crash()
        assert isinstance(call.error, RemoteError), "the next one has answered"
        assert server.starts == 2


@pytest.mark.parametrize("config", [None, 3, ["mcp.json"]])
def test_what_is_no_configuration_is_told_all_that_would_be_one(config: Any) -> None:
    with pytest.raises(UsageError, match=r"a path, a dict like .* or a Config, got"):
        Greenroom.open(config)


@in_real_time
async def test_in_another_loop_a_room_is_only_read_and_says_so_at_once(backend: str) -> None:
    room = open_room({"a": FakeServer()})
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: room.call("a_echo"),
        lambda: room.call("a_unknown"),
        lambda: room.read_resource("a://b", "a"),
        lambda: room.call_for_model("a_echo"),
        lambda: room.start_task("a_echo"),
        lambda: room.connect("a"),
        lambda: room.restart("a"),
        lambda: room.drain("a"),
        lambda: room.reconnect("a"),
        lambda: room.reload({"mcpServers": {}}),
        lambda: room.subscribe("a://b", "a").__aenter__(),
        lambda: room.session("late").__aenter__(),
        lambda: session.aclose(),
        room.accept,
        room.catalogued,
        room.settled,
        room.ready,
        room.aclose,
    ]
    refused = list[str]()

    async def elsewhere() -> None:
        for ask in asks:
            with anyio.fail_after(PATIENCE), pytest.raises(UsageError, match="another event loop") as told:
                await ask()
            refused.append(str(told.value))
        for change in (room.roots_changed, partial(room.set_log_level, "info")):
            with pytest.raises(UsageError, match="another event loop"):
                change()
        assert [each.name for each in room.tools()] == ["a_echo"]
        assert room.status()[0].server == "a"
        assert room.search("echo").matches

    async with room, room.session("ann") as session:
        await room.call("a_echo")
        await anyio.to_thread.run_sync(partial(anyio.run, elsewhere, backend=backend))
        assert len(refused) == len(asks)
        assert (await session.call("a_echo")).is_error is False
    assert room.drain_report is not None
    assert (room.drain_report.accepted, room.drain_report.completed) == (2, 2)


def test_a_room_that_the_next_loop_of_a_thread_uses_says_so() -> None:
    room, first = open_room({"a": FakeServer()}), asyncio.new_event_loop()
    first.run_until_complete(room.start())
    try:
        with pytest.raises(UsageError, match="another event loop"):
            asyncio.run(asyncio.wait_for(room.call("a_echo"), PATIENCE))
    finally:
        first.run_until_complete(room.aclose())
        first.close()


ENDS_THE_PROGRAM = """
import anyio, asyncio
from greenroom import Greenroom
from mcp.server import MCPServer

desk = MCPServer("desk", log_level="CRITICAL")

@desk.tool()
async def leave() -> str:
    raise SystemExit(3)

async def main():
    async with Greenroom.open({"mcpServers": {}}, in_process={"desk": desk}, cache_path=":memory:") as room:
        await anyio.to_thread.run_sync(len, "")  # a worker thread, which has to end, too
        await room.call("desk_leave")

asyncio.run(main())
"""


def test_a_program_whose_own_server_exits_ends_with_that_code() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_THE_PROGRAM], timeout=PATIENCE, capture_output=True, check=False
    )
    assert ended.returncode == 3, ended.stderr.decode()


def host_of(callbacks: Callbacks, bugs: list[str]) -> RoomHost:
    """The host of a room without sessions."""
    sessions = Sessions(callbacks)
    return RoomHost(
        sessions,
        Routing(sessions, LogLevels(sessions), lambda _address: (), lambda _server: False),
        lambda address, error: bugs.append(f"{address}: {type(error).__name__}"),
    )


def test_who_hears_may_stop_hearing_or_raise_and_the_others_hear_all_the_same() -> None:
    bugs, told = list[str](), list[str]()
    heard: list[Any] = []
    callbacks = Callbacks(on_notification=lambda *said: heard.append(said[1]) or 1 / len(told[:2]))
    host = host_of(callbacks, bugs)
    here = Address("a")

    def once(_params: Any) -> None:
        told.append("once")
        forget()

    forget = host.subscribe(here, once)
    stop = host.subscribe(here, lambda _params: told.append("always"))
    host.heard(here, "notifications/resources/updated", {"uri": "x:/"})
    assert told == ["once", "always"]
    host.heard(here, "notifications/resources/updated", {"uri": "x:/"})
    assert told == ["once", "always", "always"]
    stop()
    told.clear()
    host.heard(here, "x/own", {})  # the callback divides by nothing
    assert bugs == ["a: ZeroDivisionError"]
    assert len(heard) == 3


def test_a_subscribers_bug_is_told_of_and_stays_here() -> None:
    bugs: list[str] = []

    def raises(_params: Any) -> None:
        raise KeyError("x")

    host = host_of(Callbacks(), bugs)
    host.subscribe(Address("a"), raises)
    host.heard(Address("a"), "notifications/resources/updated", {"uri": "x:/"})
    assert bugs == ["a: KeyError"]


@in_real_time
async def test_what_hears_the_end_of_a_call_may_start_a_task(tmp_path: Path) -> None:
    """It is called where the answer was read: on asyncio in a callback of the loop, and in no task."""
    async with Greenroom.open({"mcpServers": {"a": faulty(tmp_path, "a")}}) as room:
        await room.connect("a")
        ended = anyio.Event()

        async def after() -> None:
            ended.set()

        async with anyio.create_task_group() as tasks:

            def heard(_: object) -> None:
                tasks.start_soon(after)

            port_of(room).start_request("a", "tools/list", {}, heard)
            with anyio.fail_after(PATIENCE):
                await ended.wait()


@in_virtual_time
async def test_methods_that_only_look_may_be_sent_again_and_others_may_not() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        for method, harmless in (
            ("resources/read", True),
            ("prompts/get", True),
            ("completion/complete", True),
            ("resources/subscribe", True),
            ("resources/unsubscribe", True),
            ("tools/call", False),
            ("x/own", False),
        ):
            call = port_of(room).start_request("a", method, {}, lambda _: None)
            assert call.replayable is harmless, method


@for_each(
    ("told", "watched", "is_about"),
    [
        ("x:/a", "x:/a", True),
        ("x:/a/b", "x:/a", True),
        ("x:/a/b", "x:/a/", True),
        ("x:/ab", "x:/a", False),
        ("x:/", "x:/a", False),
        (None, "x:/a", False),
    ],
)
def test_an_update_is_about_a_resource_or_a_part_of_it(told: Any, watched: str, is_about: bool) -> None:
    assert _is_about(told, watched) is is_about


@in_real_time
async def test_a_watcher_that_does_not_keep_up_loses_the_oldest() -> None:
    updates = Updates()
    for number in range(2000):
        updates.put({"n": number})
    first = await anext(aiter(updates))
    assert first == {"n": 2000 - 1024}
    quiet, found = Updates(), list[Any]()
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            found.append(await anext(quiet))

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        quiet.put({"n": 1})
    assert found == [{"n": 1}]


@in_virtual_time
async def test_who_waits_for_the_first_discoveries_when_the_room_closes_is_told() -> None:
    room = open_room({"a": FakeServer(start_latency=HANG)}, bootstrap=True)
    told: list[str] = []

    async def wait() -> None:
        try:
            await room.catalogued()
        finally:
            told.append("told")

    async with anyio.create_task_group() as tasks, room:
        tasks.start_soon(wait)
        await anyio.sleep(1.0)
        assert told == []
    assert told == ["told"]


@pytest.mark.parametrize("times", [1, 3])
@on_asyncio
@in_virtual_time
async def test_who_waits_for_a_drain_under_a_host_that_is_cancelled_natively_is_let_go(times: int) -> None:
    server = FakeServer(stop_latency=HANG)
    room, up, done = open_room({"a": server}), asyncio.Event(), list[str]()

    async def host() -> None:
        async with room:
            await room.connect("a")
            up.set()
            await asyncio.Event().wait()

    async def drain() -> None:
        with suppress(CallError):
            await room.drain("a")
        done.append("done")

    task = asyncio.ensure_future(host())
    await up.wait()
    waiting = asyncio.ensure_future(drain())
    await asyncio.sleep(0.1)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        await waiting
    assert done == ["done"]
    assert server.live == 0


@in_virtual_time
async def test_nobody_waits_for_ever_for_an_actor_of_a_room_that_is_over() -> None:
    let_go: list[str] = []
    async with open_room({"a": FakeServer()}) as room:
        listed = RoomInside(room).machinery.servers
        release = listed.release

        def late() -> None:  # somebody who comes after the last server has closed
            listed.on_closed(listed.actor("a"), lambda: let_go.append("let go"))
            release()

        listed.release = late
    assert let_go == ["let go"]


@in_virtual_time
async def test_who_reads_updates_when_the_room_closes_reads_no_more() -> None:
    room, found = open_room({"a": FakeServer()}), list[Any]()

    async def read() -> None:
        async with room.subscribe("x:/", "a") as updates:
            async for update in updates:
                found.append(update)
            found.append("over")

    with anyio.fail_after(1000.0):
        async with anyio.create_task_group() as readers, room:
            await room.connect("a")
            actor = RoomInside(room).machinery.servers.actor("a")
            actor.subscriptions.add("x:/")  # so nothing is asked of the server
            readers.start_soon(read)
            await settle()
            RoomInside(room).machinery.room_host.heard(
                actor.address, "notifications/resources/updated", {"uri": "x:/"}
            )
            await settle()
    assert found == [{"uri": "x:/"}, "over"]
    assert RoomInside(room).machinery.room_host._subscribers == {}


@in_virtual_time
async def test_a_subscription_that_is_refused_or_over_leaves_nobody_listening() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        watchers = RoomInside(room).machinery.room_host._subscribers
        with pytest.raises(RemoteError, match="Method not found"):
            async with room.subscribe("x:/", "a"):
                raise AssertionError("it was not refused")
        assert watchers == {}
        actor = RoomInside(room).machinery.servers.actor("a")
        actor.subscriptions.add("x:/")  # somebody watches it already: nothing is asked of the server
        async with room.subscribe("x:/", "a"):
            assert len(watchers) == 1
            assert actor.subscriptions.uris == {"x:/": 2}
        assert (watchers, actor.subscriptions.uris) == ({}, {"x:/": 1})


@on_asyncio
@in_virtual_time
async def test_who_closes_a_room_and_is_cancelled_has_no_patience_any_more() -> None:
    server = FakeServer(call_latency=HANG)
    room = open_room({"a": server})
    await room.start()
    await room.connect("a")
    async with Outcomes() as calls:
        call = calls.start(room, "a_echo")
        await settle()
        began = anyio.current_time()
        closing = asyncio.ensure_future(room.aclose(patience=20.0))
        await asyncio.sleep(5.0)
        assert call.outcome is None
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert isinstance(call.error, Drained)
    assert anyio.current_time() - began < 6.0
    closed_in_order(room, server)


@on_asyncio
@in_virtual_time
async def test_a_native_cancellation_while_the_room_closes_is_held_and_not_lost() -> None:
    server = FakeServer(stop_latency=0.5)
    room = open_room({"a": server})
    await room.start()
    await room.connect("a")
    closing = asyncio.ensure_future(room.aclose())
    await asyncio.sleep(0.1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    closed_in_order(room, server)


# ---- what a room knows and counts ----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_search_has_pages_and_each_of_them_is_another() -> None:
    server = FakeServer(tools=[tool(f"echo_{number}", "Says it back") for number in range(5)])
    async with open_room({"a": server, "b": FakeServer()}) as room:
        await room.connect("a")
        await room.connect("b")
        pages = [room.search("echo", server="a", limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        assert [len(page.matches) for page in pages] == [2, 2, 1, 0]
        assert len({match.target.name for page in pages for match in page.matches}) == 5
        assert [page.total for page in pages] == [5, 5, 5, 5]
        assert len(room.search("echo").matches) == 6, "without a server all have it"


@in_virtual_time
async def test_what_is_wrong_with_a_list_is_in_the_row_with_and_without_what_is_wrong_in_it() -> None:
    wrong: Any = [{"name": "bad", "inputSchema": {"type": "array"}}]
    async with open_room({name: FakeServer() for name in ("plain", "cut", "odd", "both")}) as room:
        for name, tools, problems in (
            ("plain", [tool("ok")], ()),
            ("cut", [tool("ok")], ("cut",)),
            ("odd", wrong, ()),
            ("both", wrong, ("cut",)),
        ):
            await teach_lists(room, ServerEntry(name, "", tools=tuple(tools), problems=problems))
        rows = {row.server: (bool(row.faults), row.problems) for row in room.status()}
        assert rows == {
            "plain": (False, ()),
            "cut": (False, ("cut",)),
            "odd": (True, ()),
            "both": (True, ("cut",)),
        }


@in_virtual_time
async def test_what_a_caller_does_to_the_numbers_it_was_given_changes_nothing() -> None:
    async with open_room({"a": FakeServer()}) as room:
        with pytest.raises(UnknownTool):
            await room.call("nothing")
        before: Any = port_of(room).services.refusals
        with pytest.raises(UnknownTool):
            await room.call("nothing")
        assert (before, port_of(room).services.refusals) == ({"tool_not_found": 1}, {"tool_not_found": 2})
        before.clear()
        assert port_of(room).services.refusals == {"tool_not_found": 2}


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda room: room.call("a_echo", 3), "invalid_args"),
        (lambda room: room.call("a_echo", ["x"]), "invalid_args"),
        (lambda room: room.call("nothing"), "tool_not_found"),
        (lambda room: room.call("echo", server="nowhere"), "server_not_found"),
        (lambda room: room.read_resource("x:/"), "resource_not_found"),
        (lambda room: room.read_resource("x:/", "nowhere"), "server_not_found"),
        (lambda room: room.get_prompt("nothing"), "prompt_not_found"),
        (lambda room: room.get_prompt("nothing", server="nowhere"), "server_not_found"),
        (lambda room: room.complete({"type": "ref/prompt", "name": "n"}, {}), "prompt_not_found"),
        (lambda room: room.complete({"type": "ref/resource", "uri": "x:/"}, {}), "resource_not_found"),
        (lambda room: room.complete({"type": "ref/other"}, {}), "invalid_request"),
        (lambda room: room.request("nowhere", "tools/list"), "server_not_found"),
    ],
    ids=[
        "call with a number", "call with a list", "tool", "tool of nobody", "resource",
        "resource of nobody", "prompt", "prompt of nobody", "prompt to complete",
        "resource to complete", "nothing to complete", "request",
    ],
)  # fmt: skip
@in_virtual_time
async def test_each_request_that_is_refused_is_counted_once_by_its_code_and_gives_others_a_turn(
    ask: Any, code: str
) -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        with pytest.raises(CallError) as refused:
            await ask(room)
        assert refused.value.code == code
        assert port_of(room).services.refusals == {code: 1}
        turns: list[int] = []

        async def insist() -> None:
            for _ in range(3):
                with pytest.raises(CallError):
                    await ask(room)
                turns.append(1)

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(insist)
        assert port_of(room).services.refusals == {code: 7}
    assert room.drain_report is not None
    assert (room.drain_report.refused, room.drain_report.refusals) == (7, {code: 7})


# ---- the owner task ----------------------------------------------------------------------------------------


@on_asyncio
@in_virtual_time
async def test_the_failure_of_a_room_is_raised_where_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room({"a": FakeServer()})
    await room.start()
    router: Any = RoomInside(room).machinery.router
    monkeypatch.setattr(router, "after_batch", lambda: 1 / 0)
    router.ref.tell(object())
    await anyio.sleep(1.0)
    for _ in range(2):
        with pytest.raises(CoreActorFailed, match="the router failed more than 3 times"):
            await room.aclose()


OF_A_REQUEST: ContextVar[str | None] = ContextVar("OF_A_REQUEST", default=None)


@on_asyncio
@in_virtual_time
async def test_an_owner_task_belongs_to_no_request() -> None:
    """What the program keeps for one request is not kept for as long as the room lives."""
    servers, seen = {"a": FakeServer()}, list[str | None]()
    made = fake_connectors(servers)

    def connector(*asked: Any) -> Any:
        seen.append(OF_A_REQUEST.get())
        return made(*asked)

    room = open_room(servers, entries={"a": {"lifecycle": "eager"}}, connectors=connector)
    OF_A_REQUEST.set("mine")
    await room.start()
    await room.ready()
    await room.aclose()
    assert seen == [None]


# ---- the end of a room, and a copy of it -----------------------------------------------------------------------------


@in_virtual_time
async def test_whatever_is_asked_of_a_copy_of_a_room_is_refused_and_says_why() -> None:
    server = FakeServer()
    async with open_room({"a": server, "b": FakeServer()}) as room:
        await room.connect("a")
        runtime = RoomInside(room).machinery
        runtime.disown()
        for ask in (lambda: room.connect("b"), lambda: room.restart("a"), lambda: room.call("b_x")):
            with pytest.raises(RoomClosed, match=r"forked this one. Open another here"):
                await ask()
        with pytest.raises(RoomClosed, match="belongs to the process that forked"):
            await room.connect("b")
        with pytest.raises(RoomClosed) as refused:
            await room.call("a_echo")
        assert refused.value.server == "a"
        runtime.is_copy, runtime.is_running, runtime.servers.closing = False, True, None


@pytest.mark.parametrize(("patience", "took"), [(0, 0.2), (1.0, 2.0), (None, 2.0)])
@in_virtual_time
async def test_a_file_that_cannot_be_written_holds_the_end_up_for_as_long_as_there_is_patience(
    patience: float | None, took: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_room({"a": FakeServer()}) as room:
        began = anyio.current_time()

        async def hang(_writer: CatalogueWriter) -> None:
            await anyio.sleep_forever()

        monkeypatch.setattr(CatalogueWriter, "after_batch", hang)
        await room.aclose(patience)
        assert anyio.current_time() - began == pytest.approx(took, abs=0.01)


@in_virtual_time
async def test_what_is_asked_of_a_room_that_is_over_is_refused_and_nobody_waits() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
    with anyio.fail_after(5):
        for ask in (room.settled, lambda: room.accept("a"), room.accept, lambda: room.connect("a")):
            with pytest.raises(RoomClosed):
                await ask()
        await room.ready()
        assert not port_of(room).catalogue.is_learning
    for ask in (lambda: room.call("a_echo"), lambda: room.request("a", "ping")):
        with pytest.raises(RoomClosed) as refused:
            await ask()
        assert (refused.value.server, refused.value.reach) == ("a", "not_sent")


# ---- what a caller says goes along -----------------------------------------------------------------------------------


@in_virtual_time
async def test_each_option_of_a_request_reaches_its_call() -> None:
    def heard(_params: Any) -> None:
        raise AssertionError

    async with open_room({"a": FakeServer(), "b": FakeServer()}) as room:
        learned = ServerEntry(
            "a", "", tools=(tool("echo"),), prompts=({"name": "p"},), resources=({"uri": "x:/1", "name": "r"},),
            templates=({"uriTemplate": "y:/{n}", "name": "t"},), revision=99, capabilities={"resources": {}},
        )  # fmt: skip
        await teach_lists(room, learned)
        calls: list[Any] = []

        def submit(server: str, call: Any, allowed: bool = False) -> None:
            calls.append((server, call))
            raise UsageError("noted")

        port_of(room).submit = submit
        options: Any = {"timeout": 3.0, "on_progress": heard}
        ref = {"type": "ref/prompt", "name": "a_p"}
        for ask in (
            room.call("a_echo", {"n": 1}, **options, meta={}),
            room.call("echo", server="a", **options, meta={"k": 1}),
            room.call("a_get_r", **options),
            room.read_resource("x:/1", **options),
            room.read_resource("z:/", "b", **options),
            room.get_prompt("a_p", {}, **options),
            room.get_prompt("p", server="a", **options),
            room.complete(ref, {"name": "n", "value": ""}, context={}, timeout=3.0),
            room.complete({"type": "ref/resource", "uri": "y:/{n}"}, {}, timeout=3.0),
            room.request("b", "x/own", {"k": 0}, **options),
        ):
            with pytest.raises(UsageError, match="noted"):
                await ask
        for method in ("x/own", "resources/read"):
            with pytest.raises(UsageError, match="noted"):
                port_of(room).start_request(
                    "b", method, {}, heard, tool="t", **options, replayable=False, takes_inputs=True
                )
        with pytest.raises(UsageError, match="noted"):
            port_of(room).start_request("b", "x/own", None, None, replayable=True)
        last = calls.pop()[1]
        assert (last.replayable, last.takes_inputs, last.timeout, last.tool) == (True, False, None, None)
        assert {call.timeout for _, call in calls} == {3.0}
        completions = [call for _, call in calls if call.method == "completion/complete"]
        assert all(call.on_progress is heard for _, call in calls if call not in completions)
        assert [(server, call.method, call.params, call.replayable) for server, call in calls] == [
            ("a", "tools/call", {"name": "echo", "arguments": {"n": 1}, "_meta": {}}, False),
            ("a", "tools/call", {"name": "echo", "arguments": {}, "_meta": {"k": 1}}, False),
            ("a", "resources/read", {"uri": "x:/1"}, True),
            ("a", "resources/read", {"uri": "x:/1"}, True),
            ("b", "resources/read", {"uri": "z:/"}, True),
            ("a", "prompts/get", {"name": "p", "arguments": {}}, True),
            ("a", "prompts/get", {"name": "p"}, True),
            (
                "a", "completion/complete",
                {
                    "ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "n", "value": ""},
                    "context": {},
                },
                True,
            ),
            (
                "a", "completion/complete",
                {"ref": {"type": "ref/resource", "uri": "y:/{n}"}, "argument": {}}, True,
            ),
            ("b", "x/own", {"k": 0}, False),
            ("b", "x/own", {}, False),
            ("b", "resources/read", {}, True),
        ]  # fmt: skip
        started = [call for _, call in calls[-2:]]
        assert [(call.tool, call.takes_inputs, call.on_end) for call in started] == [("t", True, heard)] * 2
        assert [call.tool for _, call in calls[:3]] == ["a_echo", "a_echo", "a_get_r"]


@in_virtual_time
async def test_a_name_that_several_have_or_nobody_is_told_with_where_it_could_be() -> None:
    async with open_room({name: FakeServer() for name in "abc"}, toolPrefix="none") as room:
        for name in "ab":
            said: Any = ({"name": "p"}, {"name": f"only_{name}"})
            learned = ServerEntry(
                name, "", tools=(), prompts=said, resources=({"uri": "x:/1", "name": "r"},),
                revision=99, capabilities={"resources": {}},
            )  # fmt: skip
            await teach_lists(room, learned)
        await teach_lists(room, ServerEntry("c", "", tools=(), prompts=(), revision=99))
        prompt, resource = room.get_prompt("p"), room.read_resource("x:/1")
        for ask, words in ((prompt, 'Prompt "p"'), (resource, 'Resource "x:/1"')):
            with pytest.raises(AmbiguousTool) as several:
                await ask
            assert str(several.value).startswith(words)
        with pytest.raises(UnknownPrompt) as unknown:
            await room.get_prompt("nothing", server="a")
        assert "only_a" in str(unknown.value)
        assert "only_b" not in str(unknown.value), "that is another's"
        with pytest.raises(UnknownResource, match="say which server has it: a, b"):
            await room.read_resource("nowhere:/")
        with pytest.raises(UnknownServer):
            await room.complete({"type": "ref/resource", "uri": "x:/1"}, {}, server="nobody")
        with pytest.raises(UnknownServer):
            port_of(room).catalogue.locate("x:/1", "nobody")
        assert port_of(room).catalogue.locate("x:/1", "c").server == "c", "who names a server means that one"
        assert (
            port_of(room).catalogue.locate("x:/1", "b").server,
            port_of(room).catalogue.locate("x:/1", "b").original,
        ) == (
            "b",
            "x:/1",
        )


@in_virtual_time
async def test_a_description_that_is_not_there_names_no_other_tool_of_the_server_but_those_like_it() -> None:
    async with open_room({"a": FakeServer(tools=[tool("echo"), tool("other")])}) as room:
        await room.connect("a")
        assert room.describe("echo", server="a").name == "a_echo"
        with pytest.raises(UnknownTool) as unknown:
            room.describe("a_ecoh")
        assert unknown.value.suggestions == ("a_echo",)
        assert "other" not in str(unknown.value)
