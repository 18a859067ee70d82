"""A room's servers from outside: the table of endings, idling, the circuit breaker, start permits, connecting."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest
import sniffio
import trio
from tests.support import in_virtual_time
from tests.support.loops import on_asyncio, on_one_loop
from tests.support.rooms import Outcomes, learn, open_room, record_events, retire, settle, teach, teach_lists

from greenroom import CallError, Greenroom, Reach, State, Unavailable, UnknownTool
from greenroom.actors.host import Declaration, NoHost
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.namespace import MissingName
from greenroom.errors import ConnectFailed, NeedsAuth, ServerDown, UnknownServer
from greenroom.events import Cause
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Bug
from greenroom.protocol.events import BreakerDecision, Place, Transition
from greenroom.protocol.lifecycle import TABLE, Ending
from greenroom.supervisor.discovery import DISCOVERY_IDLE
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import HANG, FakeServer, tool
from greenroom.testing.room_inside import RoomInside

LIFECYCLES = ["lazy", "eager", "keep-alive"]


def state(room: Greenroom, server: str = "a") -> State:
    (status,) = [status for status in room.status() if status.server == server and status.scope == "shared"]
    return status.state


def breaker(room: Greenroom) -> Any:
    """The state of the circuit breaker of server a."""
    return RoomInside(room).actor("a").breaker.state


async def code_of(call: Awaitable[Any]) -> str:
    try:
        await call
    except CallError as error:
        return error.code if error.reach is Reach.NOT_SENT else f"{error.code}, {error.reach}"
    return "result"


# ---- boot --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lifecycle", "starts"), [("lazy", 0), ("eager", 1), ("keep-alive", 1)])
@in_virtual_time
async def test_what_starts_at_boot(lifecycle: str, starts: int) -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room:
        await room.ready()
        assert server.starts == starts
        assert (state(room) is State.CONNECTED) == bool(starts)


@in_virtual_time
async def test_t13_thirty_slow_servers_start_in_parallel_and_listing_never_waits() -> None:
    servers = {"bad": FakeServer(start_latency=HANG)} | {
        f"s{n}": FakeServer(start_latency=5.0) for n in range(29)
    }
    entries = {name: {"lifecycle": "eager"} for name in servers}
    async with open_room(servers, entries=entries, maxConnections=40) as room:
        assert room.tools() == ()
        assert len(room.status()) == 30
        assert anyio.current_time() == 0.0
        await anyio.sleep(20.1)
        assert [status.server for status in room.status() if not status.connected] == ["bad"]
        await room.ready()
        assert anyio.current_time() == pytest.approx(30.0, abs=0.1)


@in_virtual_time
async def test_t14_ten_start_at_once_first_come_first_served_and_the_deadline_counts_from_the_permit() -> (
    None
):
    servers = {f"s{n:02}": FakeServer(start_latency=20.0) for n in range(30)}
    eager = {name: {"lifecycle": "eager"} for name in servers}
    async with open_room(servers, entries=eager, maxConnections=40) as room:
        await anyio.sleep(10.0)
        assert [name for name, server in servers.items() if server.starts] == [f"s{n:02}" for n in range(10)]
        assert room.status()[10].waiting_for == "permit"
        await anyio.sleep(15.0)
        connecting, waiting = room.status()[10], room.status()[20]
        assert (connecting.waiting_for, connecting.waiting) == (None, 5.0)
        assert (waiting.waiting_for, waiting.waiting) == ("permit", 25.0)
        await room.ready()
        assert anyio.current_time() == pytest.approx(60.0, abs=0.1)
        assert all(status.connected for status in room.status()), "one was late because it had to wait"


@in_virtual_time
async def test_a_caller_that_leaves_while_its_server_waits_for_a_permit_leaves_no_trace() -> None:
    servers = {f"s{n:02}": FakeServer(start_latency=20.0) for n in range(12)}
    async with open_room(servers) as room, Outcomes() as calls:
        for name in servers:
            await teach(room, name)
            calls.start(room, f"{name}_echo")
            await settle()
        calls.all[10].cancel()
        await anyio.sleep(30.0)
        assert [name for name, server in servers.items() if not server.starts] == ["s10"]
        await anyio.sleep(30.0)
        inside = RoomInside(room)
        assert (inside.count(Place.STARTING), inside.count(Place.PERMIT)) == (0, 0)


@in_virtual_time
async def test_the_unknown_are_discovered_once_in_the_background() -> None:
    servers = {"a": FakeServer(), "bad": FakeServer(refuse_start="no"), "off": FakeServer()}
    async with open_room(servers, entries={"off": {"bootstrap": False}}, bootstrap=True) as room:
        await room.catalogued()
        assert [target.name for target in room.tools()] == ["a_echo"]
        assert [server.starts for server in servers.values()] == [1, 1, 0]
        await anyio.sleep(DISCOVERY_IDLE + 0.5)
        assert servers["a"].live == 0
        assert {status.scope for status in room.status()} == {"shared"}, "a discovery left something behind"
        assert servers["bad"].starts == 2  # after 5 s; then it waits longer


@in_virtual_time
async def test_a_discovered_server_is_let_go_on_a_clock_that_moves_within_a_step_and_one_that_was_called_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = {"a": FakeServer(), "called": FakeServer()}
    looks = itertools.count()
    if sniffio.current_async_library() == "trio":
        clock, name = trio.lowlevel.current_clock(), "current_time"
    else:
        clock, name = asyncio.get_running_loop(), "time"
    true_now = getattr(clock, name)
    monkeypatch.setattr(
        clock, name, lambda: true_now() + next(looks) * 1e-9
    )  # of the room, and of its servers
    async with open_room(servers, bootstrap=True) as room:
        await room.catalogued()
        await room.call("called_echo", {"text": "x"})
        await anyio.sleep(DISCOVERY_IDLE + 0.5)
        assert (servers["a"].live, servers["called"].live) == (0, 1)


@on_one_loop
@in_virtual_time
async def test_an_idle_configured_server_costs_less_than_eight_kib() -> None:
    names = [f"server-{n}" for n in range(500)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with open_room({name: FakeServer() for name in names}) as room:
        assert len(room.status()) == 500
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown / 500 < 8 * 1024


# ---- idling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lifecycle", "minutes", "lives"),
    [
        ("lazy", None, 600.0),
        ("lazy", 0.5, 30.0),
        ("lazy", 0, None),
        ("eager", None, None),
        ("eager", 2, 120.0),
        ("keep-alive", None, None),
        ("keep-alive", 1, None),
    ],
)
@in_virtual_time
async def test_idle_eviction_is_exact_and_never_for_keep_alive_or_zero(
    lifecycle: str, minutes: float | None, lives: float | None
) -> None:
    server, entry = FakeServer(), {"lifecycle": lifecycle}
    if minutes is not None:
        entry["idleTimeout"] = minutes  # type: ignore[assignment]
    async with open_room({"a": server}, entries={"a": entry}) as room:
        await room.connect("a")
        await room.call("a_echo")
        if lives is None:
            await anyio.sleep(50_000.0)
            assert server.live == 1
            return
        await anyio.sleep(lives - 0.001)
        assert server.live == 1
        await anyio.sleep(0.002)
        assert server.live == 0
        assert state(room) is State.IDLE
        assert (await room.call("a_echo", {"again": 1})).text == '{"again": 1}'


@in_virtual_time
async def test_t22_idling_begins_when_the_last_call_ends_and_never_takes_a_busy_server() -> None:
    server = FakeServer(call_latency=500.0)
    entry = {"idleTimeout": 1, "requestTimeoutMs": 900_000}
    async with open_room({"a": server}, entries={"a": entry}) as room, Outcomes() as calls:
        await room.connect("a")
        await anyio.sleep(59.0)
        call = calls.start(room, "a_echo", timeout=900.0)
        await anyio.sleep(559.0)  # the call ended at 559, 59 s ago
        assert call.outcome == "{}"
        assert server.live == 1
        await anyio.sleep(2.0)
        assert server.live == 0
        assert server.starts == 1


@in_virtual_time
async def test_a_call_on_the_tick_of_eviction_is_served() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"idleTimeout": 1}}) as room:
        await room.connect("a")
        for _ in range(20):
            await anyio.sleep(60.0)
            assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


# ---- the table: what follows each cause --------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@in_virtual_time
async def test_failed_to_connect(lifecycle: str) -> None:
    server = FakeServer(refuse_start="no such program")
    async with open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room:
        await teach(room, "a")
        if lifecycle == "lazy":
            assert await code_of(room.call("a_echo")) == "connect_failed"
        await room.ready()
        assert state(room) is State.IDLE
        assert server.starts == 1
        assert await code_of(room.call("a_echo")) == "server_unavailable"
        await anyio.sleep(8.0)
        if lifecycle == "keep-alive":
            assert server.starts >= 3, "it did not connect again by itself"
            server.refuse_start = None
            await anyio.sleep(10.0)
            assert state(room) is State.CONNECTED
        else:
            assert server.starts == 1
            server.refuse_start = None
            assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


@in_virtual_time
async def test_what_is_wrong_with_a_list_is_known_once() -> None:
    server = FakeServer(tools=[tool("echo"), {"description": "nameless"}])
    async with open_room({"a": server}) as room:
        await room.connect("a")
        (problem,) = room.status()[0].problems
        assert problem == 'tools/list: an item without a "name" was left out'
        entry = room.entry("a")
        assert entry is not None
        assert entry.problems == (problem,)


@in_virtual_time
async def test_a_loop_around_a_refusal_starves_nobody() -> None:
    async with open_room({"a": FakeServer()}) as room:
        await room.connect("a")
        await room.drain("a")
        turns = list[int]()

        async def insist(ask: Any) -> None:
            for n in range(50):
                with pytest.raises(ServerDown):
                    await ask()
                turns.append(n)

        for ask in (lambda: room.call("a_echo"), lambda: room.request("a", "ping")):
            turns.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(insist, ask)
                tasks.start_soon(insist, ask)
            assert max(a - b for a, b in pairwise(turns)) < 5, "one had all the turns"
            assert turns != [*range(50), *range(50)]


@in_virtual_time
async def test_of_several_that_may_have_a_tool_the_first_says_why_it_cannot_be_asked() -> None:
    servers = {"x": FakeServer(refuse_start="no x"), "x_y": FakeServer(refuse_start="no x_y")}
    async with open_room(servers) as room:
        with pytest.raises(ConnectFailed) as caught:
            await room.call("x_y_z")
        assert [server.starts for server in servers.values()] == [1, 1], "both were asked"
        found = port_of(room).catalogue.index.resolve("x_y_z")
        assert isinstance(found, MissingName)
        assert caught.value.server == found.servers[0]


@in_virtual_time
async def test_who_is_known_without_its_tools_is_asked_again_and_what_is_wrong_with_a_list_is_in_its_row() -> (
    None
):
    server = FakeServer()
    async with open_room({"a": server, "b": FakeServer()}) as room:
        cut = ServerEntry("a", "", tools=None, problems=("tools/list: cut after 3 pages",))
        await teach_lists(room, cut, ServerEntry("b", "", tools=()))
        assert room.status()[0].problems == ("tools/list: cut after 3 pages",)
        assert room.refresh() == ["a"]
        await room.catalogued()
        assert [target.name for target in room.tools()] == ["a_echo"]
        assert room.status()[0].problems == ()


@in_virtual_time
async def test_a_client_that_can_do_more_has_only_unused_servers_met_anew() -> None:
    server = FakeServer(call_latency=5.0)

    class Sampling(NoHost):
        def declaration(self, address: Address) -> Declaration:
            return Declaration({"sampling": {}})

    async with open_room({"a": server}) as room, Outcomes() as calls:
        await room.connect("a")
        running = calls.start(room, "a_echo", {"n": 1})
        await anyio.sleep(1.0)
        port_of(room).answer_with(Sampling())
        await anyio.sleep(10.0)
        assert (running.outcome, server.starts, server.live) == ('{"n": 1}', 1, 1)
        await room.restart("a")
        port_of(room).answer_with(Sampling())  # nothing new to it
        await anyio.sleep(10.0)
        assert (server.starts, server.live) == (2, 1)
        port_of(room).answer_with(None)
        await anyio.sleep(10.0)
        port_of(room).answer_with(Sampling())
        await anyio.sleep(10.0)
        assert (server.starts, server.live) == (2, 1), "it was told of more, which does no harm"


def test_a_server_given_in_code_goes_before_an_entry_of_its_name() -> None:
    given = object()
    config = {"mcpServers": {"a": {"command": "x"}, "b": {}, "c": {"command": "y"}}}
    room = Greenroom.open(config, cache_path=":memory:", in_process={"a": given, "b": given})
    found = {name: definition.in_process for name, definition in room.config.servers.items()}
    assert found == {"a": given, "b": given, "c": None}
    assert room.config.broken == {}


@in_virtual_time
async def test_a_discovery_does_not_keep_a_server_longer_than_its_own_idle_time() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"idleTimeout": 0.05}}, bootstrap=True) as room:
        await room.catalogued()
        await anyio.sleep(2.9)
        assert server.live == 1
        await anyio.sleep(0.2)
        assert (server.starts, server.live) == (1, 0)


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize("policy", [None, "never", "on_demand", "always"])
@in_virtual_time
async def test_lost_while_idle(lifecycle: str, policy: str | None) -> None:
    server, entry = FakeServer(), {"lifecycle": lifecycle}
    if policy is not None:
        entry["restartPolicy"] = policy
    async with open_room({"a": server}, entries={"a": entry}) as room:
        await room.connect("a")
        server.crash("exited with code 1")
        await anyio.sleep(1.0)
        comes_back = policy == "always" or (policy is None and lifecycle == "keep-alive")
        assert state(room) is (State.CONNECTED if comes_back else State.IDLE)
        if policy == "never":
            with pytest.raises(ServerDown, match=r"down \(lost: exited with code 1\)") as caught:
                await room.call("a_echo")
            assert caught.value.reach is Reach.NOT_SENT
            await room.connect("a")
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert server.starts == 2


@pytest.mark.parametrize("policy", ["never", "on_demand", "always"])
@in_virtual_time
async def test_t06_lost_with_calls_queued(policy: str) -> None:
    server = FakeServer(call_latency=5.0)
    entry = {"restartPolicy": policy, "maxInFlight": 1}
    async with open_room({"a": server}, entries={"a": entry}) as room, Outcomes() as calls:
        await room.connect("a")
        sent = calls.start(room, "a_echo", {"n": 0})
        await settle()
        queued = calls.start(room, "a_echo", {"n": 1})
        await anyio.sleep(1.0)
        server.crash()
        await anyio.sleep(20.0)
        assert sent.error.reach is Reach.SENT
        if policy == "never":
            assert queued.error.code == "server_not_connected"
            assert queued.error.reach is Reach.NOT_SENT
        else:
            assert queued.outcome == '{"n": 1}'
            assert server.starts == 2


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@in_virtual_time
async def test_restart(lifecycle: str) -> None:
    server = FakeServer(call_latency=2.0)
    async with (
        open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room,
        Outcomes() as calls,
    ):
        await room.connect("a")
        call = calls.start(room, "a_echo")
        await settle()
        await room.restart("a")
        assert call.outcome == "{}"
        assert state(room) is State.CONNECTED
        assert (server.starts, server.most_live) == (2, 1)
        assert room.status()[0].incarnation == 2


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize("back", ["connect", "restart", "reconnect"])
@in_virtual_time
async def test_drained_stays_down_until_it_is_asked_for_by_name(lifecycle: str, back: str) -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room:
        await room.connect("a")
        await room.drain("a")
        assert server.live == 0
        await anyio.sleep(1_000.0)
        assert await code_of(room.call("a_echo")) == "server_not_connected"
        with pytest.raises(ServerDown, match=r"was drained\. Connect or restart it"):
            await port_of(room).find("a_unknown")
        assert server.starts == 1
        await getattr(room, back)("a")
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


@in_virtual_time
async def test_an_idle_server_can_be_drained_too() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        await room.drain("a")
        await room.drain("a")
        assert await code_of(room.call("a_echo")) == "server_not_connected"
        assert server.starts == 0


@pytest.mark.parametrize("by_name", [True, False])
@in_virtual_time
async def test_a_server_that_needs_a_login_is_parked_and_asked_once(by_name: bool) -> None:
    server = FakeServer(start_error=NeedsAuth("log in with `greenroom auth a`", server="a"))
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        with pytest.raises(NeedsAuth, match="greenroom auth a") as caught:
            await (room.connect("a") if by_name else room.call("a_echo"))
        assert caught.value.reach is Reach.NOT_SENT
        await anyio.sleep(1_000.0)
        assert await code_of(room.call("a_echo")) == "auth_required"
        assert server.starts == 1
        assert room.status()[0].needs_auth
        assert room.status()[0].retry_in is None, "a login is no failure"
        server.start_error = None
        await room.connect("a")
        assert not room.status()[0].needs_auth


@pytest.mark.parametrize("by_name", [True, False])
@in_virtual_time
async def test_a_bug_while_connecting_parks_the_server_and_starts_it_once(by_name: bool) -> None:
    server = FakeServer(start_error=ZeroDivisionError("a bug of ours"))
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        with pytest.raises(Bug, match="failed in Greenroom itself"):
            await (room.connect("a") if by_name else room.call("a_echo"))
        await anyio.sleep(1_000.0)
        assert server.starts == 1
        assert await code_of(room.call("a_echo")) == "bug"


@in_virtual_time
async def test_disabled_and_broken_servers_say_so_and_start_nothing() -> None:
    server = FakeServer()
    entries = {"off": {"disabled": True}, "broken": {"command": 7}}
    async with open_room({"off": server, "broken": server}, entries=entries) as room:
        for ask in (room.connect, room.restart, lambda name: port_of(room).find("x", name)):
            assert await code_of(ask("off")) == "server_disabled"
            assert await code_of(ask("broken")) == "config_error"
        assert await room.reconnect() == []
        assert server.starts == 0


@in_virtual_time
async def test_a_name_of_a_server_that_cannot_be_used_is_refused_with_the_reason() -> None:
    server = FakeServer(tools=[tool("hello")])
    entries = {"off": {"disabled": True}, "off_too": {"command": 7}}
    async with open_room({"off": server, "off_too": server, "a": server}, entries=entries) as room:
        await learn(room, "a")

        async def describe(name: str) -> None:
            room.describe(name)

        for ask in (room.call, room.get_prompt, describe):
            with pytest.raises(ServerDown, match=r'^Server "off" is disabled\..* greenroom enable off$'):
                await ask("off_hello")
            with pytest.raises(ServerDown, match=r'^Server "off_too" cannot be used: .*command'):
                await ask("off_too_hello")
            with pytest.raises(CallError, match="not found"):
                await ask("offhello")
        assert await code_of(room.get_prompt("hello", server="off")) == "server_disabled"


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@in_virtual_time
async def test_an_evicted_server_comes_back_with_the_next_call(lifecycle: str) -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room:
        await learn(room, "a")
        await anyio.sleep(100.0)
        assert server.live == 0
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert room.status()[0].incarnation == 2


@in_virtual_time
async def test_reconnecting_all_restarts_the_live_and_leaves_idle_lazy_ones_alone() -> None:
    servers = {name: FakeServer() for name in ("live", "idle", "eager", "bad")}
    entries = {"eager": {"lifecycle": "eager"}, "bad": {"lifecycle": "eager"}}
    servers["bad"].refuse_start = "no"
    async with open_room(servers, entries=entries) as room:
        await room.connect("live")
        await room.drain("eager")
        outcomes = dict(await room.reconnect())
        assert {name: error.code if error else None for name, error in outcomes.items()} == {
            "live": None,
            "eager": None,
            "bad": "connect_failed",
        }
        assert [servers[name].starts for name in ("live", "idle", "eager")] == [2, 0, 2]
        with pytest.raises(UnknownServer):
            await room.reconnect("nobody")


# ---- connect, drain and restart at the same time -----------------------------------------------------------


@in_virtual_time
async def test_a_drain_while_connecting_ends_the_attempt_and_tells_whoever_waits() -> None:
    server = FakeServer(start_latency=HANG)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks, Outcomes() as calls:
        await teach(room, "a")
        told = list[str]()

        async def connect() -> None:
            told.append(await code_of(room.connect("a")))

        tasks.start_soon(connect)
        await anyio.sleep(1.0)
        call = calls.start(room, "a_echo")
        await anyio.sleep(1.0)
        await room.drain("a")
        await settle()
        assert told == ["server_not_connected"]
        assert call.error.code == "server_not_connected"
        assert anyio.current_time() < 3.0, "a connection that is being opened could not be interrupted"
        assert server.live == 0


@pytest.mark.parametrize("leavers", [0, 1, 2])
@in_virtual_time
async def test_connecting_while_draining_brings_the_next_incarnation_also_when_others_leave(
    leavers: int,
) -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks, Outcomes() as calls:
        await room.connect("a")
        calls.start(room, "a_echo")
        await settle()
        tasks.start_soon(room.drain, "a")
        await anyio.sleep(1.0)
        scopes = list[anyio.CancelScope]()
        for _ in range(leavers):
            scopes.append(anyio.CancelScope())

            async def leave(scope: anyio.CancelScope = scopes[-1]) -> None:
                with scope:
                    await room.connect("a")

            tasks.start_soon(leave)
        done = anyio.Event()

        async def stay() -> None:
            await room.connect("a")
            done.set()

        tasks.start_soon(stay)
        await settle()
        for scope in scopes:
            scope.cancel()
        with anyio.fail_after(10):
            await done.wait()
        assert (server.starts, server.most_live) == (2, 1)
        assert calls.all[0].outcome == "{}"


@in_virtual_time
async def test_many_connects_restarts_and_drains_at_once_end_and_agree() -> None:
    server = FakeServer(start_latency=1.0, stop_latency=1.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for ask in (room.connect, room.restart, room.drain, room.restart, room.connect):

                    async def one(ask: Callable[[str], Awaitable[None]] = ask) -> None:
                        await code_of(ask("a"))

                    tasks.start_soon(one)
        await room.connect("a")
        assert state(room) is State.CONNECTED
        assert server.most_live == 1
        inside = RoomInside(room)
        assert (inside.count(Place.STARTING), inside.count(Place.PERMIT)) == (0, 0)


@in_virtual_time
async def test_one_call_leaving_does_not_take_the_connection_from_a_find() -> None:
    servers = {f"s{n}": FakeServer(start_latency=10.0) for n in range(10)} | {"a": FakeServer()}
    async with open_room(servers) as room, anyio.create_task_group() as tasks, Outcomes() as calls:
        for n in range(10):
            tasks.start_soon(room.connect, f"s{n}")
        await settle()
        found = list[str]()

        async def find() -> None:
            found.append((await port_of(room).find("a_echo")).name)

        tasks.start_soon(find)
        await settle()
        assert room.status()[-1].waiting_for == "permit"
        await teach(room, "a")
        call = calls.start(room, "a_echo")
        await settle()
        call.cancel()
        await anyio.sleep(12.0)
        assert found == ["a_echo"]


@in_virtual_time
async def test_an_unknown_tool_connects_the_server_its_prefix_names() -> None:
    server = FakeServer(tools=[tool("hello")])
    async with open_room({"a": server, "other": FakeServer()}) as room:
        assert (await room.call("a_hello", {"x": 1})).text == '{"x": 1}'
        with pytest.raises(UnknownTool, match="a_hello"):
            await room.call("a_nothing")
        with pytest.raises(UnknownTool):
            await room.call("zzz")
        assert server.starts == 1


# ---- the circuit breaker in a room ---------------------------------------------------------------------------


async def fail_until_tripped(room: Greenroom, server: FakeServer) -> None:
    server.refuse_start = "no"
    while not breaker(room).tripped:
        assert await code_of(room.call("a_echo")) in ("connect_failed", "server_unavailable")
        await anyio.sleep(0.1)


@in_virtual_time
async def test_a_refusal_is_immediate_and_says_how_long_ago_and_when_again() -> None:
    server = FakeServer(refuse_start="no such program")
    async with open_room({"a": server}, restartBackoff={"minMs": 40_000, "maxMs": 40_000}) as room:
        await teach(room, "a")
        assert await code_of(room.call("a_echo")) == "connect_failed"
        await anyio.sleep(7.0)
        with pytest.raises(
            Unavailable, match=r'^Server "a" not available \(failed 7 s ago\): .*no such program'
        ) as no:
            await room.call("a_echo")
        assert 25.0 <= no.value.retry_in <= 41.0
        assert no.value.failed_ago == pytest.approx(7.0, abs=0.01)
        assert str(no.value).count("Retry in") == 1
        with pytest.raises(Unavailable):
            await port_of(room).find("a_unknown")
        assert server.starts == 1


@in_virtual_time
async def test_t29_half_open_passes_one_probe_and_its_answer_opens_for_all() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        await fail_until_tripped(room, server)
        server.refuse_start, starts = None, server.starts
        server.call_latency = 1.0
        assert await code_of(room.call("a_echo")) == "server_unavailable"
        await anyio.sleep(31.0)
        async with Outcomes() as calls:
            ten = [calls.start(room, "a_echo", {"n": n}) for n in range(10)]
        assert sum(isinstance(call.outcome, str) for call in ten) == 1
        assert sum(isinstance(call.outcome, Unavailable) for call in ten) == 9
        assert server.starts == starts + 1
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


@pytest.mark.parametrize("when", ["queued", "sent"])
@in_virtual_time
async def test_t29_a_cancelled_probe_is_passed_on(when: str) -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        await fail_until_tripped(room, server)
        server.refuse_start = None
        server.start_latency, server.call_latency = 5.0, 5.0
        await anyio.sleep(31.0)
        async with Outcomes() as calls:
            probe = calls.start(room, "a_echo", {"n": 0})
            await anyio.sleep(1.0 if when == "queued" else 6.0)
            assert await code_of(room.call("a_echo")) == "server_unavailable"
            probe.cancel()
            await settle()
            other = calls.start(room, "a_echo", {"n": 1})
        assert other.outcome == '{"n": 1}'


@in_virtual_time
async def test_t29_a_probe_that_never_leaves_the_house_gives_its_turn_back() -> None:
    """A find that stands for a permit is the probe, and leaves; a probe with arguments that are no JSON."""
    server, slow = FakeServer(), {f"s{n}": FakeServer(start_latency=25.0) for n in range(10)}
    async with open_room({"a": server} | slow) as room, anyio.create_task_group() as tasks:
        await teach(room, "a")
        await fail_until_tripped(room, server)
        server.refuse_start = None
        await anyio.sleep(31.0)
        for name in slow:
            tasks.start_soon(room.connect, name)
        await settle()
        with anyio.move_on_after(1.0):
            await port_of(room).find("a_unknown")
        assert not breaker(room).probing
        await anyio.sleep(30.0)
        server.strict_json = True
        with pytest.raises(CallError, match="cannot be sent as JSON"):
            await room.call("a_echo", {"x": object()})
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'


@in_virtual_time
async def test_t29_tool_errors_and_answers_that_say_no_never_trip_it() -> None:
    server = FakeServer(handler=lambda _: {"content": [], "isError": True})
    async with open_room({"a": server}) as room:
        for _ in range(20):
            assert (await room.call("a_echo")).is_error
        assert breaker(room).failures == 0


@in_virtual_time
async def test_calls_that_time_out_together_are_one_silence() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            for _ in range(20):
                calls.start(room, "a_echo")
        assert breaker(room).failures == 1
        assert server.live == 1


@in_virtual_time
async def test_a_server_that_is_silent_five_times_is_lost_and_the_probe_meets_a_new_process() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        events = record_events(room, Transition)
        for _ in range(5):
            with pytest.raises(CallError, match="did not answer"):
                await room.call("a_echo")
        await settle()
        assert [e.detail for e in events if e.cause is Cause.LOST and e.after is State.DRAINING] == [
            "unresponsive"
        ]
        assert server.live == 0
        assert await code_of(room.call("a_echo")) == "server_unavailable"
        server.call_latency = 0.0
        await anyio.sleep(30.1)
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert server.starts == 2


@in_virtual_time
async def test_one_that_is_slow_but_heard_is_not_hung() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        for _ in range(8):
            async with Outcomes() as calls:
                calls.start(room, "a_echo")
                await anyio.sleep(30.0)
                server.connections[0].last_heard = anyio.current_time()
        assert server.live == 1
        assert breaker(room).failures == 0


@pytest.mark.parametrize("how", ["call", "find", "connect"])
@in_virtual_time
async def test_the_breaker_refuses_while_the_crashed_tree_is_still_being_stopped(how: str) -> None:
    """The crash that trips it takes five seconds to clear away: a new call was accepted, and waited for the whole
    cooldown. What was accepted before waits; a connect by name goes around."""
    server = FakeServer(call_latency=HANG, wreck_latency=5.0)
    async with (
        open_room({"a": server}, failureThreshold=1, cooldownMs=20_000) as room,
        Outcomes() as calls,
    ):
        await teach(room, "a", [tool("echo", annotations={"readOnlyHint": True})])
        before = calls.start(room, "a_echo")
        await settle()
        server.crash()
        server.call_latency = 0.0
        await settle()
        assert room.status()[0].state is State.DRAINING

        match how:
            case "call":
                with pytest.raises(Unavailable, match="Retry in 20 s"):
                    await room.call("a_echo")
            case "find":
                with pytest.raises(Unavailable):
                    await port_of(room).find("a_other")
            case _:
                await room.connect("a")

        assert anyio.current_time() == (5.0 if how == "connect" else 0.0)
        await anyio.sleep(30.0)
        assert before.outcome == "{}"
        assert before.at == (5.0 if how == "connect" else 20.0)


@in_virtual_time
async def test_a_failed_attempt_makes_the_breaker_refuse_before_it_is_cleared_away() -> None:
    server = FakeServer(refuse_initialize="not now", stop_latency=3.0)
    async with open_room({"a": server}) as room, Outcomes() as calls:
        await teach(room, "a")
        first = calls.start(room, "a_echo")
        await anyio.sleep(0.5)
        assert room.status()[0].state is State.DRAINING

        with pytest.raises(Unavailable, match="not now"):
            await room.call("a_echo")

        assert anyio.current_time() == 0.5
        await anyio.sleep(3)
        assert first.error.code == "connect_failed"


@in_virtual_time
async def test_an_explicit_connect_goes_around_a_breaker_once_a_second() -> None:
    server = FakeServer(refuse_start="no")
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        await fail_until_tripped(room, server)
        start, starts = anyio.current_time(), server.starts
        for _ in range(5):
            assert await code_of(room.connect("a")) == "connect_failed"
        assert server.starts == starts + 5
        assert 4.0 <= anyio.current_time() - start <= 5.1
        server.refuse_start = None
        await room.connect("a")
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}', (
            "it was connected by name, and refused"
        )


@in_virtual_time
async def test_t09_a_server_that_initializes_and_dies_is_not_restarted_for_ever() -> None:
    """The reconnect storm: keep-alive, each handshake succeeds, each death follows at once."""
    server = FakeServer()
    starts: list[float] = []
    async with open_room({"a": server}, entries={"a": {"lifecycle": "keep-alive"}}) as room:
        events = record_events(room, Transition)
        with anyio.move_on_after(600.0):
            while True:
                server.crash()
                await anyio.sleep(0.5)
        starts.extend(event.at for event in events if event.after is State.CONNECTING)
    restarts = starts[1:]
    assert max(sum(at <= other < at + 60.0 for other in restarts) for at in restarts) <= 5
    assert len(starts) > 5, "it gave up for ever"


@in_virtual_time
async def test_t09_intensity_counts_starts_that_followed_losses_though_each_answers() -> None:
    """Answers reset the circuit breaker, so backoff alone would never stop it: quarantine does, and ends by demand
    (T10)."""
    server = FakeServer()
    settings: dict[str, Any] = {
        "failureThreshold": 100,
        "cooldownMs": 20_000,
        "restartBackoff": {"minMs": 1, "maxMs": 1},
    }
    async with open_room({"a": server}, **settings) as room:
        await room.connect("a")
        decisions = record_events(room, BreakerDecision)
        for _ in range(5):
            server.crash()
            await anyio.sleep(0.1)
            assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert server.starts == 6
        server.crash()
        await anyio.sleep(0.1)
        async with Outcomes() as calls:
            waiting = calls.start(room, "a_echo", {"waiting": 1})
            await anyio.sleep(19.0)
            assert any("quarantined: 6 restarts in 60 s" in decision.detail for decision in decisions)
            assert room.status()[0].quarantined == "6 restarts in 60 s"
            assert await code_of(room.call("a_echo")) == "server_unavailable"
            assert server.starts == 6
        assert waiting.outcome == '{"waiting": 1}', "it was accepted before, and is the probe"
        assert server.starts == 7
        assert not breaker(room).tripped
        assert room.status()[0].quarantined is None


@in_virtual_time
async def test_t10_a_quarantined_server_is_brought_back_by_an_explicit_restart() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        RoomInside(room).actor("a").breaker.quarantine()
        await retire(room, "a")
        assert await code_of(room.call("a_echo")) == "server_unavailable"
        await room.restart("a")
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert not breaker(room).tripped


@in_virtual_time
async def test_evictions_and_drains_are_no_restarts() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        for _ in range(20):
            await room.connect("a")
            await retire(room, "a")
            await room.restart("a")
            await room.drain("a")
        assert RoomInside(room).actor("a").breaker.intensity.times == ()
        assert breaker(room).failures == 0


@in_virtual_time
async def test_a_server_that_is_lost_while_it_makes_way_has_not_failed() -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}) as room, Outcomes() as calls:
        await room.connect("a")
        for _ in range(10):
            call = calls.start(room, "a_echo")
            await settle()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(room.restart, "a")
                await settle()
                assert state(room) is State.DRAINING  # it waits for the call
                server.crash()
            assert call.error.reach is Reach.SENT
            assert state(room) is State.CONNECTED
        assert breaker(room).failures == 0
        assert RoomInside(room).actor("a").breaker.intensity.times == ()
        assert room.status()[0].failure is None


# ---- deadlines and traces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["start_latency", "initialize_latency", "list_latency"])
@pytest.mark.parametrize("own", [None, 5_000, 60_000])
@in_virtual_time
async def test_t05_connecting_has_one_deadline_wherever_it_hangs(where: str, own: int | None) -> None:
    server = FakeServer()
    setattr(server, where, HANG)
    entry = {} if own is None else {"connectTimeoutMs": own}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        with pytest.raises(ConnectFailed, match='Failed to connect to "a"'):
            await room.connect("a")
        assert anyio.current_time() == pytest.approx((own or 30_000) / 1000, abs=1.1)
        assert server.live == 0


@in_virtual_time
async def test_every_transition_is_in_the_table() -> None:
    server = FakeServer(call_latency=0.5)
    async with open_room({"a": server}) as room:
        events = record_events(room, Transition)
        await room.connect("a")
        await room.call("a_echo")
        server.crash()
        await room.call("a_echo")
        await room.restart("a")
        await room.drain("a")
        await room.connect("a")
    for event in events:
        if event.before is State.CLOSED:
            assert event.after is State.IDLE  # the next incarnation
        else:
            assert event.after in TABLE[event.before].values()
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert str(Ending(Cause.SHUTDOWN)) == "shutdown"


@on_asyncio
@in_virtual_time
async def test_t02_a_room_at_rest_stays_at_rest() -> None:
    """Nothing runs in a loop turn when nothing happens: counted, not timed."""
    servers = {f"s{n}": FakeServer() for n in range(100)}
    async with open_room(servers) as room, Outcomes() as calls:
        for name in servers:
            await room.connect(name)
        call = calls.start(room, "s0_echo")
        call.cancel()
        await anyio.sleep(1.0)
        loop: Any = asyncio.get_running_loop()
        turns, select = [0], loop._selector.select

        def counted(timeout: float | None = None) -> Any:
            turns[0] += 1
            return select(timeout)

        loop._selector.select = counted
        await anyio.sleep(500.0)
        del loop._selector.select
        assert turns[0] < 10


def goes_on(room: Greenroom, early: int) -> None:
    """Let the clock go on while it is looked at. At each moment so many looks are a little early, and the next ones a
    little late: what a look decides, no other look may undo."""
    loop_backend = RoomInside(room).machinery.context.backend
    true_now, looks = loop_backend.now, Counter[float]()

    def now() -> float:
        looks[moment := true_now()] += 1
        return moment + (1e-6 if looks[moment] > early else -1e-6)

    loop_backend.now = now


@pytest.mark.parametrize("early", [1, 2, 3])
@in_virtual_time
async def test_a_server_idles_out_on_a_clock_that_goes_on_while_it_is_looked_at(early: int) -> None:
    servers = {"a": FakeServer()}
    async with open_room(servers, idleTimeout=0.1) as room:
        goes_on(room, early)
        await teach(room, "a")
        for _ in range(2):  # the second moves an alarm that was set for the first
            await room.call("a_echo")
            await anyio.sleep(3)
        await anyio.sleep(8)
        assert servers["a"].live == 0


@pytest.mark.parametrize("early", [1, 2, 3])
@in_virtual_time
async def test_a_breaker_lets_a_start_pass_on_a_clock_that_goes_on_while_it_is_looked_at(early: int) -> None:
    servers = {"a": FakeServer(refuse_start="not yet")}
    async with open_room(servers, entries={"a": {"lifecycle": "keep-alive"}}) as room:
        goes_on(room, early)
        await anyio.sleep(0.1)
        servers["a"].refuse_start = None
        retry = room.status()[0].retry_in
        assert retry is not None
        await anyio.sleep(retry + 1)
        assert servers["a"].live == 1


@pytest.mark.parametrize(("later", "ends_at"), [(None, 7.0), (20.0, 7.0), (3.0, 4.0), (0, 1.0)])
@in_virtual_time
async def test_of_several_who_close_a_room_the_least_patient_decides(
    later: float | None, ends_at: float
) -> None:
    room = open_room({"one": FakeServer(call_latency=1_000.0)}, drainTimeoutMs=7_000)
    async with anyio.create_task_group() as tasks, room:
        await room.connect("one")
        began = anyio.current_time()
        ended: list[float] = []

        async def call() -> None:
            with pytest.raises(CallError):
                await room.call("one_echo", {}, timeout=2_000.0)
            ended.append(anyio.current_time() - began)

        tasks.start_soon(call)
        await anyio.sleep(0.5)
        began = anyio.current_time()
        tasks.start_soon(room.aclose)
        await anyio.sleep(1.0)
        await room.aclose(later)
        assert ended == [pytest.approx(ends_at, abs=0.3)]
