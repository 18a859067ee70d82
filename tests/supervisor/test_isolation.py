"""Isolation: who shares a child. State never crosses scopes, and a scope's children end with it."""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time, run_virtual
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import alive, faulty, gone_within, logged_pids
from tests.support.rooms import Outcomes, open_room, record_events, settle
from tests.support.whole import RawClient, direct_door, whole

from greenroom import CallError, Greenroom, Reach, UsageError
from greenroom.actors.host import Declaration, NoHost
from greenroom.actors.peer import LostReason
from greenroom.protocol.address import Address
from greenroom.protocol.errors import CallTimeout, Drained, ServerDown, ServerLost, SessionNeeded, Unavailable
from greenroom.protocol.events import Note, NoteCode
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import HANG, FakeServer, tool
from greenroom.testing.room_inside import RoomInside

PER_SESSION = {"a": {"isolation": "per_session"}}
PER_CALL = {"a": {"isolation": "per_call"}}


@in_virtual_time
async def test_each_session_has_a_child_of_its_own_reused_for_all_its_calls() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_SESSION) as room:
        async with room.session("alice") as alice, room.session("bob") as bob:
            for _ in range(3):
                await alice.call("a_echo")
                await bob.call("a_echo")

            assert (server.starts, server.live) == (2, 2)
            scopes = {status.scope for status in room.status()}
            assert scopes == {"shared", "session:alice", "session:bob"}
        assert server.live == 0
        assert {status.scope for status in room.status()} == {"shared"}


@in_virtual_time
async def test_without_a_session_such_a_server_refuses_and_says_what_to_do() -> None:
    async with open_room({"a": FakeServer()}, entries=PER_SESSION) as room:
        await port_of(room).find("a_echo")
        with pytest.raises(SessionNeeded, match=r"room\.session"):
            await room.call("a_echo")


@in_virtual_time
async def test_a_sessions_row_shows_what_is_that_sessions() -> None:
    """It showed the server's own circuit breaker and login: one that was to log in looked idle."""
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=1) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
        room.session("carol") as carol,
    ):
        for session in (alice, bob, carol):
            await session.call("a_echo")
        first, second, _ = tuple(server.connections)
        first.lose(LostReason("401", loss=Reason.NEEDS_AUTH))
        second.lose(LostReason("exited with code 3", 3))
        await anyio.sleep(10)

        rows = {row.scope: row for row in room.status()}
        alices, bobs, carols = (rows[f"session:{name}"] for name in ("alice", "bob", "carol"))
        assert alices.needs_auth
        assert "needs a login" in (alices.down or "")
        assert not bobs.needs_auth
        assert (bobs.failure, bobs.failed_ago) == ("exited with code 3", 10.0)
        assert bobs.retry_in == pytest.approx(20.0)
        assert not carols.needs_auth
        assert (carols.state, carols.failure) == (State.CONNECTED, None)
        assert (carols.retry_in, carols.down) == (None, None)
        assert not rows["shared"].needs_auth


@in_virtual_time
async def test_persistent_servers_are_shared_with_sessions() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room, room.session("alice") as alice:
        await alice.call("a_echo")
        await room.call("a_echo")
        assert server.starts == 1


@pytest.mark.parametrize("how", ["answer", "timeout", "cancel", "crash"])
@in_virtual_time
async def test_a_calls_child_is_gone_when_the_call_ends_however_it_ends(how: str) -> None:
    server = FakeServer(call_latency=0.0 if how == "answer" else HANG)
    async with open_room({"a": server}, entries=PER_CALL) as room:
        await port_of(room).find("a_echo")
        with anyio.move_on_after(5.0 if how == "cancel" else 1000.0):
            async with anyio.create_task_group() as tasks:
                if how == "crash":
                    tasks.start_soon(_crash_soon, server)
                with nullcontext() if how == "answer" else pytest.raises(CallError):
                    await room.call("a_echo", timeout=10.0)
        await settle()

        assert server.live == 0
        assert {status.scope for status in room.status()} == {"shared"}


async def _crash_soon(server: FakeServer) -> None:
    await anyio.sleep(1)
    server.crash()


@in_virtual_time
async def test_a_refused_call_leaves_no_address_behind() -> None:
    async with open_room({"a": FakeServer()}, entries=PER_CALL) as room:
        await room.call("a_echo")
        await room.drain("a")
        for _ in range(3):
            with pytest.raises(ServerDown):
                await room.call("a_echo")
        assert [status.scope for status in room.status()] == ["shared"]


@pytest.mark.parametrize("bound", ["queueTimeoutMs", "acquireTimeoutMs"])
@in_virtual_time
async def test_a_call_that_waits_too_long_for_a_slot_leaves_no_address_behind(bound: str) -> None:
    servers = {"a": FakeServer(), "b": FakeServer(call_latency=50)}
    settings: dict[str, Any] = {"maxConnections": 1, bound: 2000}
    async with open_room(servers, entries=PER_CALL, **settings) as room, Outcomes() as calls:
        await port_of(room).find("a_echo")
        calls.start(room, "b_echo")
        await anyio.sleep(1)
        with pytest.raises(CallTimeout, match="not sent"):
            await room.call("a_echo")
        await settle()
        assert [status.scope for status in room.status()] == ["shared", "shared"]


@in_virtual_time
async def test_a_calls_child_that_dies_before_it_reads_the_call_says_how() -> None:
    server = FakeServer(list_latency=1.0)
    async with open_room({"a": server}, entries=PER_CALL) as room:
        await port_of(room).find("a_echo")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await anyio.sleep(0.5)
            server.blocked = True  # it has read all up to its list
            await anyio.sleep(1.0)
            server.crash("exited with code 3", 3)
        assert isinstance(call.error, ServerLost)
        assert "exited with code 3" in str(call.error)
        assert call.error.reach is Reach.NOT_SENT


@in_virtual_time
async def test_a_calls_child_is_not_met_anew_for_a_client_that_comes_meanwhile() -> None:
    """It is there for one call, which its own client waits for."""
    server = FakeServer(initialize_latency=2.0)

    class Sampling(NoHost):
        def declaration(self, address: Address) -> Declaration:
            return Declaration({"sampling": {}})

    async with open_room({"a": server}, entries=PER_CALL) as room:
        await port_of(room).find("a_echo")
        server.starts = 0
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", {"n": 1})
            await anyio.sleep(1.0)
            port_of(room).answer_with(Sampling())
        assert (call.outcome, server.starts) == ('{"n": 1}', 1)


@in_virtual_time
async def test_a_session_whose_call_waits_for_a_place_does_not_idle_away() -> None:
    server = FakeServer(call_latency=200.0)
    entries = {"a": {"isolation": "per_session", "maxInFlight": 1, "idleTimeout": 1}}
    settings: dict[str, Any] = {"requestTimeoutMs": 300_000, "queueTimeoutMs": 300_000}
    async with (
        open_room({"a": server}, entries=entries, **settings) as room,
        room.session("one") as one,
        room.session("two") as two,
    ):
        await one.connect("a")
        await two.connect("a")
        started = server.starts
        async with Outcomes() as calls:
            calls.start(one, "a_echo", {"n": 1})
            await settle()
            calls.start(two, "a_echo", {"n": 2})
            await anyio.sleep(150.0)
            assert (server.starts, server.live) == (started, 2)
        assert [call.outcome for call in calls.all] == ['{"n": 1}', '{"n": 2}']
        assert server.starts == started


@in_virtual_time
async def test_two_calls_at_once_have_two_children() -> None:
    server = FakeServer(call_latency=1.0)
    async with open_room({"a": server}, entries=PER_CALL) as room:
        await port_of(room).find("a_echo")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(room.call, "a_echo")
        assert server.most_live == 3
        await settle()
        assert server.live == 0


@in_virtual_time
async def test_sessions_and_calls_of_one_server_hold_at_most_half_the_slots() -> None:
    servers = {"a": FakeServer(call_latency=1.0), "b": FakeServer()}
    async with open_room(servers, entries=PER_CALL, maxConnections=4) as room:
        await port_of(room).find("a_echo")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(room.call, "a_echo")
            await anyio.sleep(0.5)
            await room.call("b_echo")
        assert servers["a"].most_live == 2


@in_virtual_time
async def test_a_call_waiting_when_its_session_ends_fails_not_sent() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_SESSION) as room:
        await port_of(room).find("a_echo")
        server.start_latency = 10.0
        outcome: list[Any] = []

        async def call(session: Any) -> None:
            try:
                outcome.append(await session.call("a_echo"))
            except CallError as error:
                outcome.append(error)

        async with anyio.create_task_group() as tasks, room.session("alice") as alice:
            tasks.start_soon(call, alice)
            await anyio.sleep(1)
        assert isinstance(outcome[0], CallError)
        assert str(outcome[0].reach) == "not_sent"
        with pytest.raises(UsageError, match="is over"):
            await alice.call("a_echo")


@in_virtual_time
async def test_deaths_in_one_session_do_not_count_in_the_others_circuit_breaker() -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=2) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):
        await bob.call("a_echo")
        (bobs,) = server.connections
        server.call_latency = HANG
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect_lost, alice)
                await anyio.sleep(1)
                for connection in [c for c in server.connections if c is not bobs]:
                    connection.lose(LostReason("exited", 1))
            await (
                settle()
            )  # or the next call is accepted before the circuit breaker has heard, and waits for it
        server.call_latency = 0.0
        with pytest.raises(Unavailable):
            await alice.call("a_echo")
        await bob.call("a_echo")
        async with room.session("carol") as carol:
            await carol.call("a_echo")


@in_virtual_time
async def test_a_call_that_is_held_back_by_a_breaker_is_its_probe_when_the_cooldown_is_over() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_CALL, failureThreshold=1, cooldownMs=5_000) as room:
        await room.call("a_echo")
        server.start_latency = 3.0
        async with Outcomes() as calls:
            held = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            server.start_latency, server.refuse_start = 0.0, "no"
            with pytest.raises(CallError):
                await room.call("a_echo")
            server.refuse_start = None
            await anyio.sleep(4.0)
            assert held.outcome is None, "it is connected, and the circuit breaker refuses"
            await anyio.sleep(2.0)
            assert held.outcome == "{}"
            await room.call("a_echo")


@in_virtual_time
async def test_a_call_that_waits_for_a_probe_at_another_child_is_the_next_probe_when_that_is_cancelled() -> (
    None
):
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_CALL, failureThreshold=1, cooldownMs=5_000) as room:
        await room.call("a_echo")
        server.start_latency = 10.0
        async with Outcomes() as calls:
            held = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            server.start_latency, server.refuse_start = 0.0, "no"
            with pytest.raises(CallError):
                await room.call("a_echo")
            server.refuse_start, server.call_latency = None, HANG
            await anyio.sleep(7.0)
            probe = calls.start(room, "a_echo")
            await anyio.sleep(4.0)
            assert (held.outcome, len(server.calls)) == (None, 2)
            server.call_latency = 0.0
            probe.cancel()
            await anyio.sleep(1.0)
            assert held.outcome == "{}"


@in_virtual_time
async def test_a_calls_child_whose_call_is_refused_while_it_waits_for_a_slot_leaves_no_address_behind() -> (
    None
):
    server = FakeServer(tools=[tool("look", "Looks.")])
    async with open_room({"a": server}, entries=PER_CALL, maxConnections=2) as room, Outcomes() as calls:
        await room.call("a_look")
        server.call_latency = 10.0
        calls.start(room, "a_look")
        await anyio.sleep(1.0)
        waiting = calls.start(room, "a_look")
        await anyio.sleep(1.0)
        server.tools = [tool("look", "Looks, and sends all it has seen away.")]
        server.announce_tools()
        await anyio.sleep(1.0)
        assert waiting.error.code == "tool_changed"
        assert {row.scope for row in room.status()} == {"shared", "call:2"}


@in_virtual_time
async def test_a_session_that_connects_clears_what_the_others_failures_had_counted() -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=2, cooldownMs=300_000) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):
        for session in (alice, bob):
            server.refuse_start = "no"
            with pytest.raises(CallError, match="no"):
                await session.call("a_echo")
            server.refuse_start = None
            await anyio.sleep(5.0)  # longer than the wait after one failure
            await session.call("a_echo")


async def _expect_lost(session: Any) -> None:
    with pytest.raises((ServerLost, Unavailable)):
        await session.call("a_echo")


@in_virtual_time
async def test_a_session_name_is_one_callers() -> None:
    async with open_room({"a": FakeServer()}) as room, room.session("alice"):
        with pytest.raises(UsageError, match="already"):
            async with room.session("alice"):
                pass


@in_virtual_time
async def test_a_session_name_is_taken_until_the_last_child_is_gone() -> None:
    server = FakeServer(stop_latency=3.0)
    async with open_room({"a": server}, entries=PER_SESSION) as room, anyio.create_task_group() as ends:
        first = room.session("alice")
        async with first:
            await first.call("a_echo")
            ends.start_soon(first.aclose)
            await anyio.sleep(1.0)
            with pytest.raises(UsageError, match="just ending"):
                await room.session("alice").__aenter__()
            await anyio.sleep(3.0)
        async with room.session("alice") as second:
            await second.call("a_echo")


@in_virtual_time
async def test_drain_takes_every_scope_down_and_connect_brings_it_back() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_SESSION) as room, room.session("alice") as alice:
        await alice.call("a_echo")
        await room.drain("a")
        assert server.live == 0
        with pytest.raises(CallError, match="drained"):
            await alice.call("a_echo")
        await room.connect("a")
        await alice.call("a_echo")
        states = {status.scope: status.state for status in room.status()}
        assert states["session:alice"] is State.CONNECTED


@pytest.mark.parametrize("busy", [0, 1, 2])
@in_virtual_time
async def test_who_drains_a_server_waits_for_all_its_children(busy: int) -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION) as room,
        room.session("x") as x,
        room.session("y") as y,
        room.session("z") as z,
        Outcomes() as calls,
    ):
        for session in (x, y, z):
            await session.call("a_echo")
        server.call_latency = 7.0
        running = calls.start((x, y, z)[busy], "a_echo", {"n": 1})
        await settle()
        with anyio.fail_after(20):
            await room.drain("a")
        assert (running.outcome, anyio.current_time(), server.live) == ('{"n": 1}', 7.0, 0)
        with anyio.fail_after(1):
            await room.drain("a")  # nothing of it is left


async def _answer(_request: Any) -> Any:
    return {}


@pytest.mark.parametrize(
    "given",
    [
        {"on_sampling": _answer},
        {"on_elicitation": _answer},
        {"roots": []},
        {"on_log": lambda *_: None},  # pyright: ignore[reportUnknownLambdaType]
        {"on_notification": lambda *_: None},  # pyright: ignore[reportUnknownLambdaType]
        {"capabilities": {"experimental": {"x": {}}}},
        {"capabilities": {}},
    ],
    ids=lambda given: " ".join(given),
)
def test_a_session_answers_for_itself_with_any_of_its_callbacks(backend: str, given: dict[str, Any]) -> None:
    async def main() -> None:
        async with open_room({"a": FakeServer()}) as room, room.session("plain"):
            async with room.session("x", **given) as x:
                sessions = RoomInside(room).machinery.sessions
                assert [*sessions.with_hosts] == ["x"]
                declaration = sessions.declaration("x", Address("a"))
                declared = {
                    "on_sampling": {"sampling": {}},
                    "on_elicitation": {"elicitation": {"form": {}, "url": {}}},
                    "roots": {"roots": {"listChanged": True}},
                }
                (name,) = given
                expected = given[name] if name == "capabilities" else declared.get(name, {})
                assert declaration.capabilities == expected
                assert x.name == "x"
            assert not sessions.with_hosts

    run_virtual(backend, main)


@in_real_time
async def test_t20_no_session_sees_anothers_state_in_real_processes(tmp_path: Path) -> None:
    config = {"mcpServers": {"a": {**faulty(tmp_path, "a"), "isolation": "per_session"}}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        pids: dict[str, set[str]] = {name: set() for name in ("alice", "bob", "carol")}

        async def work(name: str) -> None:
            async with room.session(name) as session:
                for _ in range(3):
                    pids[name].add((await session.call("a_pid")).text)
                assert alive({int(pid) for pid in pids[name]})
            assert gone_within({int(pid) for pid in pids[name]}) == set()

        async with anyio.create_task_group() as tasks:
            for name in pids:
                tasks.start_soon(work, name)
        assert [len(found) for found in pids.values()] == [1, 1, 1]
        assert len(set.union(*pids.values())) == 3
    assert gone_within(logged_pids(tmp_path)) == set()


@in_virtual_time
async def test_a_place_that_one_session_frees_goes_to_the_next_sessions_queue() -> None:
    server = FakeServer(call_latency=5.0)
    entries = {"a": {"isolation": "per_session", "maxInFlight": 1}}
    async with (
        open_room({"a": server}, entries=entries) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):
        await port_of(room).find("a_echo")
        ends: list[str] = []

        async def call(session: Any, name: str) -> None:
            await session.call("a_echo")
            ends.append(name)

        async with anyio.create_task_group() as tasks:
            for n in range(3):
                for session in (alice, bob):
                    tasks.start_soon(call, session, session.name)
                await anyio.sleep(0.1 + n)
        assert sorted(ends) == ["alice"] * 3 + ["bob"] * 3
        assert anyio.current_time() < 31.0, "the place stood empty"
        assert ends[:2] != ends[2:4] or len(set(ends[:2])) == 2, "the places go round"


@in_virtual_time
async def test_t20_eight_clients_and_ten_servers_have_ten_minutes_without_a_refusal() -> None:
    """As under `serve --http` with its defaults: clients that stay, and call now and then (issue 38, 5.1)."""
    chance = random.Random(38)
    servers = {f"s{n}": FakeServer(start_latency=1.5, call_latency=0.2) for n in range(10)}
    remembered: list[str] = []

    async def client(room: Greenroom, number: int) -> None:
        async with room.session(f"client {number}") as session:
            while anyio.current_time() < 600:
                result = await session.call(f"s{chance.randrange(10)}_echo")
                remembered.append("" if "_meta" not in result.raw else str(result.raw["_meta"]))
                await anyio.sleep(chance.choice([0.1, 1.0, 20.0]))

    async with open_room(servers, entries={name: {"isolation": "per_session"} for name in servers}) as room:
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(client, room, number)
            await anyio.sleep(300)
            assert room.search("echo"), "discovery went on"
        assert room.drain_report is not None
        assert (room.drain_report.failed, room.drain_report.refused) == (0, 0)
    assert len(remembered) > 500
    assert set(remembered) == {""}  # nobody had to be told that its state is gone


@in_virtual_time
async def test_a_sessions_child_makes_room_after_a_minute_and_its_session_is_told() -> None:
    servers = {name: FakeServer() for name in "abc"}
    settings: dict[str, Any] = {
        "maxSessionConnections": 2,
        "acquireTimeoutMs": 90_000,
        "queueTimeoutMs": 90_000,
    }
    entries = {name: {"isolation": "per_session"} for name in "ab"}
    async with (
        open_room(servers, entries=entries, **settings) as room,
        room.session("ann") as ann,
        room.session("bob") as bob,
    ):
        events = record_events(room, Note)
        await ann.call("a_echo")
        await anyio.sleep(10)
        await ann.call("b_echo")
        await room.call("c_echo")  # what all share has slots of its own
        begun = anyio.current_time()

        result = await bob.call("a_echo")

        assert anyio.current_time() - begun == pytest.approx(
            50
        )  # ann's first child had rested for a minute then
        assert "_meta" not in result.raw
        rows = {row.server: row for row in room.status() if row.scope == "session:ann"}
        assert (rows["a"].state, rows["b"].state) == (State.IDLE, State.CONNECTED)

        told = (await ann.call("a_echo")).raw["_meta"]["greenroom/newProcess"]
        assert (told["server"], told["cause"]) == ("a", "evicted")
        assert "gone" in told["message"]
        assert "_meta" not in (await ann.call("a_echo")).raw  # once is enough
        row, _ = (row for row in room.status() if row.scope == "session:ann")
        assert row.replaced == "evicted: to make room"
        notes = [event for event in events if event.code is NoteCode.NEW_PROCESS]
        assert [str(note.address) for note in notes] == ["a[session:ann]"]


@pytest.mark.parametrize("how", ["crash", "restart", "expired"])
@in_virtual_time
async def test_whatever_ended_its_process_a_session_is_told_of_the_new_one(how: str) -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION) as room,
        room.session("ann") as ann,
        room.session("bob") as bob,
    ):
        await ann.call("a_echo")
        if how == "restart":
            await room.restart("a")
        else:
            loss = Reason.EXPIRED if how == "expired" else Reason.DIED
            next(iter(server.connections)).lose(LostReason("gone", loss=loss))
        await anyio.sleep(5)

        told = (await ann.call("a_echo")).raw["_meta"]["greenroom/newProcess"]
        assert told["cause"] == ("restart" if how == "restart" else "lost")
        assert "_meta" not in (await bob.call("a_echo")).raw  # its first process


@in_virtual_time
async def test_who_waits_for_a_slot_in_vain_hears_which_and_what_a_session_subscribed_to_stays() -> None:
    server = FakeServer(resources={"a://x": "x"})
    settings: dict[str, Any] = {"maxSessionConnections": 1}
    async with (
        open_room({"a": server}, entries=PER_SESSION, **settings) as room,
        room.session("ann") as ann,
        room.session("bob") as bob,
    ):
        await ann.call("a_echo")
        async with ann.subscribe("a://x", "a"):
            await anyio.sleep(300)
            with pytest.raises(CallTimeout, match="no slot of 1 for children of sessions"):
                await bob.call("a_echo")
        await anyio.sleep(60)
        await bob.call("a_echo")


@in_virtual_time
async def test_the_places_of_a_server_go_round_among_its_sessions() -> None:
    """Also to who was connected already when they ran out; who has more to send stands behind the others."""
    server = FakeServer(call_latency=1.0)
    entries = {"a": {"isolation": "per_session", "maxInFlight": 1}}
    async with (
        open_room({"a": server}, entries=entries) as room,
        room.session("ann") as ann,
        room.session("bob") as bob,
    ):
        await port_of(room).find("a_echo")
        for session in (ann, bob):
            await session.call("a_echo")
        ends: list[str] = []

        async def call(session: Any) -> None:
            await session.call("a_echo")
            ends.append(session.name)

        async with anyio.create_task_group() as tasks:
            for session in (ann, ann, ann, bob, bob):
                tasks.start_soon(call, session)
                await settle()
        assert ends == ["ann", "ann", "bob", "ann", "bob"]


@in_virtual_time
async def test_a_place_that_the_drain_deadline_frees_goes_to_another_sessions_queue() -> None:
    server = FakeServer(call_latency=HANG, stop_latency=3.0)
    entries = {"a": {"isolation": "per_session", "maxInFlight": 1}}
    async with (
        open_room({"a": server}, entries=entries) as room,
        room.session("one") as one,
        room.session("two") as two,
    ):
        await one.connect("a")
        await two.connect("a")
        async with Outcomes() as calls:
            first = calls.start(one, "a_echo", {"n": 1})
            await settle()
            second = calls.start(two, "a_echo", {"n": 2})
            await settle()
            assert len(server.calls) == 1
            server.call_latency = 0.0
            (busy,) = (
                actor for actor in RoomInside(room).machinery.servers.actors_of("a") if actor.in_flight
            )
            began = anyio.current_time()
            busy.stop(Ending(Cause.RESTART), 5.0)
        assert isinstance(first.error, Drained)
        assert (second.outcome, second.at) == ('{"n": 2}', began + 5.0)


@in_real_time
async def test_log_levels_reach_sessions_children_and_a_sessions_own_stays_its_own() -> None:
    entry = {**whole("w"), "isolation": "per_session"}
    config = {"mcpServers": {"w": entry, "shared": whole("shared")}}
    async with (
        Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):

        async def levels() -> list[str]:
            return [(await each.call("w_log")).text for each in (alice, bob)]

        assert await levels() == ["None", "None"]
        room.set_log_level("warning")
        assert await levels() == ["warning", "warning"]
        alice.set_log_level("debug")
        assert await levels() == ["debug", "warning"]
        room.set_log_level("error")
        assert await levels() == ["debug", "error"]
        assert (await room.call("shared_log")).text == "error", "nobody hears alice's logs but the room"
        with pytest.raises(UsageError, match=r"room\.set_log_level"):
            alice.set_log_level("debug", "shared")
        async with room.session("carol") as carol:  # before its child is there
            carol.set_log_level("notice", "w")
            assert (await carol.call("w_log")).text == "notice"
        assert (await room.call("shared_log")).text == "error"
        new: Any = {
            "mcpServers": {**config["mcpServers"], "new": whole("new")},
            "settings": {"bootstrap": False},
        }
        await room.reload(new)
        assert (await room.call("new_log")).text == "error", "a new server is told what was wanted of all"


@in_real_time
async def test_a_session_changes_nothing_of_the_room() -> None:
    config = {"mcpServers": {"w": whole("w"), "own": {**whole("own"), "isolation": "per_session"}}}
    async with (
        Greenroom.open(config, cache_path=":memory:", bootstrap=False, roots=["file:///x"]) as room,
        room.session("alice") as alice,
    ):
        await room.call("w_echo")
        await alice.call("own_echo")
        alice.roots_changed()
        news = "notifications/roots/list_changed"
        assert news in (await alice.call("own_heard")).structured["methods"]
        assert news not in (await room.call("w_heard")).structured["methods"]
        room.roots_changed()
        assert news in (await room.call("w_heard")).structured["methods"]


@in_virtual_time
async def test_a_session_has_its_requests_and_what_is_its_own_and_nothing_of_the_room() -> None:
    requests = {"call", "call_for_model", "needs_approval", "request", "run_tool_calls", "start_task"}
    requests |= {"call_many", "stream_call", "subscribe", "tools_for", "typed_arguments"}
    requests |= {
        "complete",
        "get_prompt",
        "prompts",
        "read_resource",
        "read_skill",
        "resources",
        "skills",
        "templates",
    }
    requests |= {"catalogued", "describe", "entry", "find", "search", "settled", "tools"}
    its_own = {"aclose", "connect", "name", "roots_changed", "set_log_level"}
    async with open_room({"a": FakeServer()}) as room, room.session("alice") as alice:
        public = {name for name in dir(alice) if not name.startswith("_")}
        assert public == requests | its_own


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("expose", ["proxy", "direct"])
def test_a_client_is_told_in_meta_that_its_session_has_a_new_process(
    expose: str, modern: bool, tmp_path: Path
) -> None:
    servers = {"own": {**faulty(tmp_path, "own"), "isolation": "per_session"}}

    def call(door: RawClient) -> tuple[int, dict[str, Any]]:
        name, arguments = ("own_pid", {}) if expose == "direct" else ("mcp", {"tool": "own_pid"})
        result = door.call(name, arguments)["result"]
        said = {key: value for key, value in result.get("_meta", {}).items() if "newProcess" in key}
        return int(re.findall(r"\d+", result["content"][0]["text"])[0]), said

    with direct_door(tmp_path, servers, expose=expose, modern=modern) as door:
        if not modern:
            door.initialize()
        first, told = call(door)
        assert told == {}
        os.kill(first, signal.SIGKILL)
        assert not gone_within({first})
        second, told = call(door)
        assert second != first
        assert (told["greenroom/newProcess"]["server"], told["greenroom/newProcess"]["cause"]) == (
            "own",
            "lost",
        )
        assert call(door) == (second, {})


@pytest.mark.parametrize("expose", ["proxy", "direct"])
def test_on_stdio_the_conversation_is_the_session(expose: str, tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    entry = {**faulty(tmp_path, "own"), "isolation": "per_session"}
    servers = {"own": entry}

    def call(door: RawClient, tool: str) -> dict[str, Any]:
        if expose == "direct":
            return door.call(tool)["result"]
        return door.call("mcp", {"tool": tool})["result"]

    with direct_door(tmp_path, servers, expose=expose, bootstrap=False) as door:
        door.initialize()
        for _ in range(2):
            assert not call(door, "own_pid").get("isError")
        assert len([line for line in log.read_text().splitlines() if line.startswith("start ")]) == 1
        if expose == "proxy":
            assert not door.call("mcp", {"connect": "own"})["result"].get("isError")
            assert "✓ own" in door.call("mcp", {})["result"]["content"][0]["text"]
        pids = logged_pids(tmp_path)
        assert alive(pids)
        # A command is a conversation of its own, with a child of its own.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(tmp_path),
            "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
            "XDG_RUNTIME_DIR": os.fspath(tmp_path),
        }
        command = [*GREENROOM, "call", "own_pid", "--config", str(tmp_path / "mcp.json")]
        done = run_forked(command, env=environment, cwd=tmp_path, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (theirs,) = logged_pids(tmp_path) - pids
        assert not gone_within({theirs})
        assert alive(pids)
    assert not gone_within(pids)


# ---- what a session may ask of a server, by whose it is --------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["persistent", "per_session", "per_call"])
@pytest.mark.parametrize("has_host", [False, True])
@in_virtual_time
async def test_a_session_sets_levels_where_it_hears_them_and_changes_nothing_that_others_share(
    isolation: str, has_host: bool
) -> None:
    given: dict[str, Any] = {"on_log": lambda *_: None} if has_host else {}  # pyright: ignore[reportUnknownLambdaType]
    entries = {"a": {"isolation": isolation}}
    async with open_room({"a": FakeServer()}, entries=entries) as room, room.session("x", **given) as x:
        levels = RoomInside(room).machinery.servers.log_levels
        x.set_log_level("debug")
        assert levels.wanted("x", "a") == "debug", "of what it hears"
        if has_host or isolation == "per_session":
            x.set_log_level("error", "a")
        else:
            with pytest.raises(UsageError, match=r'"a" is shared with others.*room\.set_log_level'):
                x.set_log_level("error", "a")
        room.set_log_level("info", "a")
        for caller in (room, x):
            with pytest.raises(UsageError, match="Use one of: debug, info"):
                caller.set_log_level("loud")
            with pytest.raises(UsageError, match="loud"):
                await caller.request("a", "logging/setLevel", {"level": "loud"})
        assert await room.request("a", "logging/setLevel", {"level": "alert"}) == {}
        assert levels.wanted(None, "a") == "alert"
        before = dict(port_of(room).services.refusals)
        for method in ("initialize", "resources/unsubscribe", "logging/setLevel"):
            for ask in (
                lambda method=method: port_of(x).start_request(
                    "a", method, {"level": "info"}, lambda _: None
                ),
                lambda method=method: port_of(x).check_own("a", method),
            ):
                if isolation != "persistent":
                    port_of(x).check_own("a", method)
                    continue
                with pytest.raises(UsageError, match="is shared with others, and") as refused:
                    ask()
                assert (refused.value.server, refused.value.code) == ("a", "invalid_request")
                wanted = "set_log_level" if method == "logging/setLevel" else "subscribe"
                assert f"Use `{wanted}(...)`" in str(refused.value)
        if isolation == "persistent":
            assert port_of(room).services.refusals == {
                **before,
                "invalid_request": before.get("invalid_request", 0) + 3,
            }
        port_of(room).check_own("a", "initialize")


@in_virtual_time
async def test_a_sessions_row_shows_the_breaker_that_refuses_longer() -> None:
    server = FakeServer()
    entries = {"a": {"isolation": "per_session"}, "b": {}}
    async with (
        open_room({"a": server, "b": FakeServer()}, entries=entries, failureThreshold=1) as room,
        room.session("x") as x,
        room.session("y") as y,
    ):
        await x.call("a_echo")
        await anyio.sleep(5)
        server.refuse_start = "no more"
        with pytest.raises(CallError):
            await y.call("a_echo")
        rows = {(row.server, row.scope): row for row in room.status()}
        assert rows["a", "shared"].retry_in == pytest.approx(30.0)
        assert rows["a", "session:y"].retry_in == pytest.approx(30.0)
        assert rows["a", "session:x"].retry_in == pytest.approx(30.0), "nobody's child can start"
        assert (rows["a", "session:y"].failure, rows["a", "session:x"].failure) == ("no more", None)
        assert (rows["a", "shared"].failure, rows["a", "shared"].failed_ago) == ("no more", 0.0)
        assert rows["b", "shared"].retry_in is None
        await anyio.sleep(31)
        assert [row.retry_in for row in room.status()] == [None] * len(rows)
        assert [row.down for row in room.status()] == [None] * len(rows)
        await room.drain("a")
        downs = {(row.server, row.scope): row.down for row in room.status()}
        assert "was drained" in (downs["a", "shared"] or "")
        assert downs["b", "shared"] is None


@pytest.mark.parametrize("lifecycle", ["eager", "keep-alive"])
@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_virtual_time
async def test_no_process_runs_that_nobody_could_call(lifecycle: str, isolation: str) -> None:
    servers = {f"s{number}": FakeServer(initialize_latency=1.0) for number in range(6)}
    entries = {name: {"lifecycle": lifecycle} for name in servers}
    async with open_room(
        servers, entries=entries, bootstrap=True, maxConnections=7, isolation=isolation
    ) as room:
        await room.ready()
        await room.catalogued()
        await anyio.sleep(120.0)
        assert [server.starts for server in servers.values()] == [1] * 6, "to list what they have"
        assert not sum(server.live for server in servers.values())
        async with room.session("alice") as alice:
            await alice.call("s0_echo")
            await alice.call("s0_echo")
            await anyio.sleep(3600.0)
            kept = int(isolation == "per_session")
            assert (servers["s0"].live, servers["s0"].starts) == (kept, 3 - kept)
        assert await room.reconnect() == []
        await anyio.sleep(10.0)
        assert not sum(server.live for server in servers.values())
