"""How long who waits in a room waits, in what order it goes on, and what it is told at the end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import Outcomes, open_room, record_events, settle, teach

from greenroom import CallTimeout, Session, State
from greenroom.errors import CallError, ConnectFailed, RoomClosed
from greenroom.protocol.errors import Reach
from greenroom.protocol.events import Transition
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.protocol.lifecycle import Cause
from greenroom.supervisor.breakers import BYPASS_EVERY
from greenroom.supervisor.port import Updates
from greenroom.supervisor.shutdown import IMPATIENT
from greenroom.testing import Fault, FaultScript, fake_room
from greenroom.testing.fake_servers import HANG, FakeServer, tool
from greenroom.testing.room_inside import RoomInside

PER_SESSION = {"a": {"isolation": "per_session"}}


@pytest.mark.parametrize("what", ["tool", "prompt"])
@in_virtual_time
async def test_all_that_may_have_a_name_are_waited_for_as_long_as_one(what: str) -> None:
    servers = {name: FakeServer(initialize_latency=6.0) for name in ("x", "x_y")}
    async with open_room(servers, queueTimeoutMs=10_000) as room:
        with pytest.raises(CallTimeout):
            await (room.call("x_y_z") if what == "tool" else room.get_prompt("x_y_z"))
        assert anyio.current_time() == pytest.approx(10.0, abs=0.1)


@in_virtual_time
async def test_a_server_has_its_own_time_to_connect() -> None:
    servers = {"a": FakeServer(initialize_latency=HANG), "b": FakeServer(initialize_latency=HANG)}
    entries = {"a": {"connectTimeoutMs": 2_000}}
    async with open_room(servers, entries=entries, connectTimeoutMs=5_000) as room:
        for name, at in (("a", 2.0), ("b", 7.0)):
            with pytest.raises(ConnectFailed):
                await room.connect(name)
            assert anyio.current_time() == pytest.approx(at, abs=0.1)


@pytest.mark.parametrize(("patience", "took"), [(0.0, IMPATIENT), (None, 6.0)])
@in_virtual_time
async def test_who_has_no_patience_does_not_wait_for_a_slow_server_either(
    patience: float | None, took: float
) -> None:
    server = FakeServer(stop_latency=6.0)
    async with open_room({"a": server}, stopTimeoutMs=8_000, shutdownTimeoutMs=9_000) as room:
        await room.connect("a")
        await room.aclose(patience)
        assert anyio.current_time() == pytest.approx(took, abs=0.1)


@in_virtual_time
async def test_who_idles_away_is_told_after_how_long() -> None:
    async with open_room({"a": FakeServer()}, entries={"a": {"idleTimeout": 0.05}}) as room:
        moves = record_events(room, Transition)
        await room.connect("a")
        await anyio.sleep(4.0)
        (left,) = [move for move in moves if move.cause is Cause.IDLE_TIMEOUT and move.after is State.CLOSED]
        assert left.detail == "no call for 3 s"


@in_virtual_time
async def test_a_call_whose_stream_broke_is_sent_again_before_those_that_wait() -> None:
    harmless = tool("look", annotations={"readOnlyHint": True})
    server = FakeServer(tools=[harmless], call_latency=1.0)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 1}}) as room, Outcomes() as calls:
        await room.connect("a")
        for number in range(3):
            calls.start(room, "a_look", {"n": number})
            await settle()
        (connection,) = server.connections
        (first,) = connection._open
        first.owner.exchange_ended(first, None, RpcError(-32000, "its stream broke", broken=True))
        await anyio.sleep(10.0)
        assert [call["arguments"]["n"] for call in server.calls] == [0, 0, 1, 2]
        assert [one.outcome for one in calls.all] == [f'{{"n": {number}}}' for number in range(3)]


@in_virtual_time
async def test_all_sessions_together_go_around_their_breakers_once_a_second() -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=1) as room,
        room.session("ann") as ann,
        room.session("bob") as bob,
        anyio.create_task_group() as tasks,
    ):
        connected: list[float] = []

        async def connect(session: Session) -> None:
            await session.connect("a")
            connected.append(anyio.current_time())

        for session in (ann, bob):
            await session.connect("a")
        await anyio.sleep(5.0)
        server.crash()
        await settle()
        assert server.live == 0
        for session in (ann, bob):
            tasks.start_soon(connect, session)
            await anyio.sleep(0.2)
        await anyio.sleep(2 * BYPASS_EVERY)
        assert connected == [5.0, 5.0 + BYPASS_EVERY]


@in_virtual_time
async def test_a_reader_of_updates_sleeps_until_the_next_one() -> None:
    updates, read = Updates(), list[tuple[float, Any]]()

    async def reading() -> None:
        async for update in updates:
            read.append((anyio.current_time(), update["n"]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading)
        for number in range(3):
            await anyio.sleep(1.0)
            updates.put({"n": number})
        updates.put({"n": 3})
        await anyio.sleep(1.0)
        tasks.cancel_scope.cancel()
    assert read == [(1.0, 0), (2.0, 1), (3.0, 2), (3.0, 3)]


@in_virtual_time
async def test_a_sessions_log_level_is_its_own_for_as_long_as_it_is_open() -> None:
    entries = {name: {"isolation": "per_session"} for name in ("a", "b")}
    async with open_room({name: FakeServer() for name in entries}, entries=entries) as room:

        def levels() -> list[str | None]:
            return [RoomInside(room).machinery.servers.log_levels.least("ann", name) for name in entries]

        room.set_log_level("info")
        async with room.session("ann") as ann:
            ann.set_log_level("debug", "a")
            assert levels() == ["debug", "info"]
            room.set_log_level("warning")
            assert levels() == ["debug", "warning"]
            ann.set_log_level("error")
            assert levels() == ["error", "error"], "all: also the one that had another"
        assert levels() == ["warning", "warning"]
        async with room.session("ann"):
            assert levels() == ["warning", "warning"]


@in_virtual_time
async def test_a_call_that_is_refused_because_of_a_probe_gets_its_turn_when_the_probe_is_cancelled() -> None:
    """The probe is passed on to the first other call that waits, and only when the probe itself has ended."""
    server = FakeServer(start_latency=5.0)
    async with (
        open_room({"a": server}, failureThreshold=1, cooldownMs=1_000) as room,
        Outcomes() as calls,
    ):
        await teach(room, "a")
        await room.connect("a")
        server.crash()
        await anyio.sleep(2.0)
        probe = calls.start(room, "a_echo", {"n": 0})
        await settle()
        refused = calls.start(room, "a_echo", {"n": 1})
        await settle()
        assert refused.error.code == "server_unavailable"
        assert refused.error.reach is Reach.NOT_SENT
        probe.cancel()
        await settle()
        later = calls.start(room, "a_echo", {"n": 2})
        await anyio.sleep(20.0)
        assert later.outcome == '{"n": 2}'
        assert [call["arguments"]["n"] for call in server.calls] == [2]


@in_virtual_time
async def test_a_connect_by_name_has_the_servers_own_time_to_connect_besides() -> None:
    server = FakeServer(initialize_latency=7.0)
    settings: dict[str, Any] = {"queueTimeoutMs": 3_000, "connectTimeoutMs": 2_000}
    async with open_room({"a": server}, entries={"a": {"connectTimeoutMs": 8_000}}, **settings) as room:
        await room.connect("a")
        assert anyio.current_time() == pytest.approx(7.0, abs=0.1)


@in_virtual_time
async def test_each_who_waits_for_a_server_gets_an_error_of_its_own() -> None:
    """One error for all would gather the tracebacks of all."""
    server = FakeServer(start_latency=1.0, refuse_initialize="no")
    async with open_room({"a": server}) as room:
        errors: list[ConnectFailed] = []

        async def connect() -> None:
            with pytest.raises(ConnectFailed) as caught:
                await room.connect("a")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(connect)
        assert len({id(error) for error in errors}) == 3
        assert len({str(error) for error in errors}) == 1
        assert server.starts == 1


@pytest.mark.parametrize("lifecycle", ["eager", "keep-alive"])
@in_virtual_time
async def test_a_disabled_server_is_not_started_at_boot_and_nobody_waits_for_it(lifecycle: str) -> None:
    server = FakeServer()
    entries = {"a": {"lifecycle": lifecycle, "disabled": True}}
    async with open_room({"a": server}, entries=entries) as room:
        await room.ready()
        await anyio.sleep(5.0)
        assert (server.starts, anyio.current_time()) == (0, 5.0)


@in_virtual_time
async def test_a_sessions_failure_is_its_servers_too_until_one_connects() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries=PER_SESSION) as room, room.session("ann") as ann:
        await ann.connect("a")
        server.crash("exited with code 3", 3)
        await anyio.sleep(2.0)
        assert [(row.scope, row.failure) for row in room.status()] == [
            ("shared", "exited with code 3"),
            ("session:ann", "exited with code 3"),
        ]
        async with room.session("bob") as bob:
            await bob.connect("a")
            assert [(row.scope, row.failure) for row in room.status()] == [
                ("shared", None),
                ("session:ann", "exited with code 3"),
                ("session:bob", None),
            ]


@in_virtual_time
async def test_a_transition_says_how_many_calls_run_and_how_many_wait() -> None:
    server = FakeServer(call_latency=2.0)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 1}}) as room, Outcomes() as calls:
        await room.connect("a")
        moves = record_events(room, Transition)
        for _ in range(3):
            calls.start(room, "a_echo")
            await settle()
        await room.restart("a")
        told = [(move.after, move.in_flight, move.queued) for move in moves[:2]]
        assert told == [(State.DRAINING, 1, 2), (State.CLOSED, 0, 2)]


@in_virtual_time
async def test_a_call_of_which_an_earlier_attempt_was_sent_may_have_run_wherever_the_next_one_ends() -> None:
    """A tool that only reads is called once more when its server is lost, and then there is no server."""
    script = FaultScript.of(Fault("call", "crash", start=1), Fault("start", "crash", start=2))
    server = FakeServer(tools=[tool("look", annotations={"readOnlyHint": True})], script=script)
    async with fake_room({"shop": server}) as room:
        with pytest.raises(ConnectFailed, match=r"An earlier attempt .* may have run") as failed:
            await room.call("shop_look", {})
    assert failed.value.reach is Reach.SENT
    assert "not sent" not in str(failed.value)
    assert len(server.calls) == 1


@pytest.mark.parametrize("taken_down", [False, True])
@in_virtual_time
async def test_a_room_that_is_closing_says_so_whatever_else_is_wrong_with_a_server(taken_down: bool) -> None:
    servers = {"a": FakeServer(call_latency=5.0), "b": FakeServer()}
    async with anyio.create_task_group() as tasks, open_room(servers) as room, Outcomes() as calls:
        await room.connect("a")
        await room.connect("b")
        if taken_down:
            await room.drain("b")
        calls.start(room, "a_echo")
        await settle()
        tasks.start_soon(room.aclose, 9.0)
        await settle()
        for refused in (room.request("b", "ping"), room.call("b_echo"), room.connect("b")):
            with pytest.raises(RoomClosed, match="is closing") as error:
                await refused
            assert error.value.server in ("", "b")
    assert servers["b"].live == 0


@in_virtual_time
async def test_calls_at_the_end_of_a_cooldown_start_their_server_and_do_not_wait_for_their_own_timeout() -> (
    None
):
    """Each comes when its refusal says, and some before the breaker has looked at its clock."""
    server = FakeServer()
    entries = {"a": {"lifecycle": "keep-alive"}}
    async with open_room({"a": server}, entries=entries, failureThreshold=1, cooldownMs=20_000) as room:
        await room.ready()
        server.refuse_start = "it is down"
        server.crash()
        await anyio.sleep(1)
        server.refuse_start = None
        wait = room.status()[0].retry_in
        assert wait is not None
        until, ended = anyio.current_time() + wait, list[float]()

        async def call() -> None:
            await anyio.sleep_until(until)
            with suppress(CallError):  # another one is the probe
                await room.call("a_echo")
            ended.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(call)
        assert set(ended) == {until}
        await settle()
        await room.call("a_echo")
