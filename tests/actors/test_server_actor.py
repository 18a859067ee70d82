"""Calls: exactly one outcome each, whatever happens to whom, and at the very tick something else happens."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time, run_virtual
from tests.support.loops import on_asyncio, on_one_loop
from tests.support.rooms import Outcomes, learn, open_room, record_events, retire, settle, teach
from tests.support.virtual import stand_still

from greenroom import CallTimeout, Greenroom, Reach, ServerLost, Unavailable, UsageError
from greenroom.actors.call import Call
from greenroom.actors.connection import ACTING
from greenroom.actors.peer import Exchange, LostReason
from greenroom.actors.server_requests import MOST_OPEN
from greenroom.config.model import Settings
from greenroom.errors import Busy, ConnectFailed, Drained, InputRefused, RemoteError, ServerDown
from greenroom.events import Event, Kind
from greenroom.protocol.errors import BadArguments, CallError, ProtocolFault, RpcRefusal
from greenroom.protocol.events import CallEnded, CallEvent, Note, NoteCode
from greenroom.protocol.jsonrpc.terms import OVERLOADED, RpcError
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import HANG, FakeConnection, FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside

READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"idempotentHint": True}


def calls_of(server: FakeServer) -> list[Any]:
    return [call["arguments"] for call in server.calls]


# ---- starting ----------------------------------------------------------------------------------------------


@in_virtual_time
async def test_t11_fifty_cold_callers_start_one_server_and_half_of_them_leave() -> None:
    server = FakeServer(start_latency=2.0, call_latency=0.5)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        server.starts = 0
        async with Outcomes() as calls:
            fifty = [calls.start(room, "a_echo", {"n": n}) for n in range(50)]
            await anyio.sleep(1.0)
            for call in fifty[::2]:
                call.cancel()
        assert [call.outcome for call in fifty[::2]] == ["cancelled"] * 25
        assert [call.outcome for call in fifty[1::2]] == [f'{{"n": {n}}}' for n in range(1, 50, 2)]
        assert server.starts == 1
        assert len(server.calls) == 25, "a call that was cancelled while queued was sent"
    assert room.drain_report is not None
    assert str(room.drain_report) == "50 calls accepted: 25 completed, 0 failed, 25 cancelled (0 refused)"


@in_virtual_time
async def test_when_all_fifty_leave_the_attempt_goes_on_and_serves_the_next() -> None:
    server = FakeServer(start_latency=2.0)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        async with Outcomes() as calls:
            for n in range(50):
                calls.start(room, "a_echo", {"n": n})
            await anyio.sleep(1.0)
            for call in calls.all:
                call.cancel()
        result = await room.call("a_echo", {"late": True})
        assert result.text == '{"late": true}'
        assert server.starts == 2  # the one it was learned from, and this one


@in_virtual_time
async def test_queued_calls_are_sent_in_the_order_they_came() -> None:
    server = FakeServer(start_latency=1.0)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        target, ended = room.describe("a_echo"), list[int]()
        for n in range(20):
            port_of(room).start_call(target, {"n": n}, lambda _, n=n: ended.append(n))
        await anyio.sleep(2.0)
        assert [arguments["n"] for arguments in calls_of(server)] == list(range(20))
        assert sorted(ended) == list(range(20))


# ---- cancelling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.0, 1.5, 2.0], ids=lambda delay: f"after {delay}s")
@in_virtual_time
async def test_a_call_cancelled_at_any_moment_has_one_outcome_and_harms_nobody(delay: float) -> None:
    """Starting takes a second, answering another: 1.0 and 2.0 fall on the tick of being sent and of the answer."""
    server = FakeServer(start_latency=1.0, call_latency=1.0)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        events = record_events(room, CallEvent)
        async with Outcomes() as calls:
            other = calls.start(room, "a_echo", {"other": 1})
            leaver = calls.start(room, "a_echo", {"leaver": 1})
            await anyio.sleep(delay)
            leaver.cancel()
        assert other.outcome == '{"other": 1}'
        assert leaver.outcome in ("cancelled", '{"leaver": 1}')
        if delay < 2.0:
            assert leaver.outcome == "cancelled"
        ends = [event.outcome for event in events if isinstance(event, CallEnded)]
        assert len(ends) == 2
        if delay != 2.0:  # on that tick the answer may reach the call before its caller's leaving does
            assert sorted(map(str, ends)) == ["cancelled", "result"]
        assert (server.cancelled == 1) == (1.0 < delay < 2.0) or delay in (1.0, 2.0)
    assert room.drain_report is not None
    assert room.drain_report.adds_up


@in_virtual_time
async def test_t21_cancelling_a_sent_call_tells_the_server_once_and_a_late_answer_is_dropped() -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            call.cancel()
        assert server.cancelled == 1
        await anyio.sleep(10.0)  # the late answer comes, and nobody stumbles
        server.call_latency = 0.0
        assert (await room.call("a_echo", {"next": 1})).text == '{"next": 1}'
        assert server.starts == 1


# ---- clocks ------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_call_waits_forty_five_seconds_for_its_connection_and_no_longer() -> None:
    server = FakeServer(start_latency=HANG)
    async with open_room({"a": server}, entries={"a": {"connectTimeoutMs": 100_000}}) as room:
        await teach(room, "a")
        with pytest.raises(CallTimeout, match=r"was not ready within 45 s \(still connecting\)") as caught:
            await room.call("a_echo")
        assert caught.value.reach is Reach.NOT_SENT
        assert caught.value.code == "timeout"
        assert anyio.current_time() == pytest.approx(45.0, abs=0.01)


@in_virtual_time
async def test_a_call_that_waits_hears_why_connecting_failed() -> None:
    """By the defaults connecting ends first: "still connecting" would hide the reason."""
    async with open_room({"a": FakeServer(initialize_latency=HANG)}) as room:
        await teach(room, "a")
        with pytest.raises(ConnectFailed, match="no answer to the handshake within 30 s"):
            await room.call("a_echo")
        assert anyio.current_time() == pytest.approx(30.0, abs=0.01)


@pytest.mark.parametrize("isolation", ["persistent", "per_call"])
@in_virtual_time
async def test_looking_for_an_unknown_name_counts_into_the_queue_timeout(isolation: str) -> None:
    server = FakeServer(initialize_latency=20.0)
    entries = {"a": {"isolation": isolation}}
    async with open_room({"a": server}, entries=entries, queueTimeoutMs=5_000) as room:
        with pytest.raises(CallTimeout, match="was not ready within 5 s") as caught:
            await room.call("a_echo")
        assert caught.value.reach is Reach.NOT_SENT
        assert anyio.current_time() == pytest.approx(5.0, abs=0.01)


@in_virtual_time
async def test_what_waited_for_its_name_waits_for_a_place_only_as_long_as_is_left() -> None:
    server = FakeServer(initialize_latency=20.0, call_latency=HANG)
    entries = {"a": {"maxInFlight": 1}}
    async with open_room({"a": server}, entries=entries) as room, Outcomes() as calls:
        calls.start(room, "a_echo")
        calls.start(room, "a_echo")
        await anyio.sleep(45.5)
        (second,) = [call for call in calls.all if isinstance(call.outcome, CallTimeout)]  # either of the two
        assert second.at == pytest.approx(45.0, abs=0.1)
        for call in calls.all:
            call.cancel()


@in_virtual_time
async def test_the_list_that_was_slow_is_named_and_not_the_handshake() -> None:
    async with open_room({"a": FakeServer(initialize_latency=1.0, list_latency=HANG)}) as room:
        with pytest.raises(ConnectFailed) as caught:
            await room.connect("a")
        assert "tools/list: no answer within 29 s" in str(caught.value)
        assert "handshake" not in str(caught.value)
        assert anyio.current_time() == pytest.approx(30.0, abs=0.01)


@in_virtual_time
async def test_the_calls_own_clock_starts_when_it_is_sent() -> None:
    server = FakeServer(start_latency=20.0, call_latency=HANG)
    async with open_room({"a": server}) as room:
        await teach(room, "a")
        with pytest.raises(CallTimeout, match="did not answer within 60 s") as caught:
            await room.call("a_echo")
        assert caught.value.reach is Reach.SENT
        assert anyio.current_time() == pytest.approx(80.0, abs=0.01)
        assert server.cancelled == 1


@pytest.mark.parametrize("timeout", [0.25, 7.0])
@in_virtual_time
async def test_a_caller_may_set_the_calls_timeout(timeout: float) -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        start = anyio.current_time()
        with pytest.raises(CallTimeout):
            await room.call("a_echo", timeout=timeout)
        assert anyio.current_time() - start == pytest.approx(timeout, abs=0.001)


@in_virtual_time
async def test_progress_restarts_the_clock_up_to_ten_minutes_in_all() -> None:
    server = FakeServer(call_latency=HANG)
    seen: list[Any] = []

    async def keep_reporting() -> None:
        while True:
            await anyio.sleep(50.0)
            for connection in server.connections:
                connection.progress({"progress": 1})

    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        start = anyio.current_time()
        tasks.start_soon(keep_reporting)
        with pytest.raises(CallTimeout, match="did not finish within 600 s") as caught:
            await room.call("a_echo", on_progress=seen.append)
        assert anyio.current_time() - start == pytest.approx(600.0, abs=0.01)
        assert caught.value.reach is Reach.SENT
        assert len(seen) >= 11
        assert seen[0] == {"progress": 1}
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_a_call_in_a_full_pipe_was_not_sent() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        await anyio.sleep(3.0)
        server.blocked = True
        with pytest.raises(CallTimeout, match="read nothing for 45 s; the call was not sent") as caught:
            await room.call("a_echo")
        assert caught.value.reach is Reach.NOT_SENT
        assert anyio.current_time() == pytest.approx(48.0, abs=0.01)


@in_virtual_time
async def test_an_answer_on_the_tick_of_the_timeout_is_one_outcome() -> None:
    server = FakeServer(call_latency=60.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
        assert call.outcome == "{}" or isinstance(call.outcome, CallTimeout)
    assert room.drain_report is not None
    assert room.drain_report.accepted == 1
    assert room.drain_report.adds_up


# ---- losing the connection ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_sent_call_is_lost_with_its_server_and_says_that_it_may_have_run() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            server.crash("exited with code 3", 3)
        error = call.error
        assert isinstance(error, ServerLost)
        assert (error.code, error.reach, error.exit_code) == ("call_failed", Reach.SENT, 3)
        assert str(error) == 'Server "a" was lost: exited with code 3; the call was sent and may have run.'
        assert error.tool == "a_echo"
        assert server.starts == 1, "nobody was waiting for it"


@pytest.mark.parametrize("hints", [READ_ONLY, IDEMPOTENT], ids=["readOnlyHint", "idempotentHint"])
@in_virtual_time
async def test_t30_a_sent_call_is_sent_again_once_when_the_tool_declares_it_harmless(
    hints: dict[str, Any],
) -> None:
    server = FakeServer(tools=[tool("echo", annotations=hints)], call_latency=10.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", {"n": 1})
            await anyio.sleep(1.0)
            server.crash()
        assert call.outcome == '{"n": 1}'
        assert (server.starts, len(server.calls)) == (2, 2)

        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", {"n": 2})
            await anyio.sleep(1.0)
            server.crash()
            await anyio.sleep(5.0)
            server.crash()
        assert isinstance(call.error, ServerLost)
        assert len(server.calls) == 4, "it was sent a third time"


@pytest.mark.parametrize("hints", [{}, {"readOnlyHint": False}, {"idempotentHint": "yes"}, {"title": "x"}])
@in_virtual_time
async def test_t30_a_sent_call_of_any_other_tool_is_never_sent_again(hints: dict[str, Any]) -> None:
    server = FakeServer(tools=[tool("echo", annotations=hints)], call_latency=10.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            server.crash()
        assert isinstance(call.error, ServerLost)
        assert len(server.calls) == 1


@in_virtual_time
async def test_a_call_that_was_not_sent_survives_a_lost_incarnation() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        server.blocked = True
        async with Outcomes() as calls:
            survivor = calls.start(room, "a_echo", {"n": 1})
            await settle()
            server.blocked = False
            server.crash()
        assert survivor.outcome == '{"n": 1}'
        assert len(server.calls) == 1


# ---- bounds ------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_parameters_of_waiting_calls_are_bounded_in_bytes_over_the_room() -> None:
    server = FakeServer(call_latency=1.0)
    other = FakeServer(call_latency=1.0)
    entries = {"a": {"maxInFlight": 1}, "b": {"maxInFlight": 1}}
    async with open_room({"a": server, "b": other}, entries=entries, maxQueuedBytes=4096) as room:
        await room.connect(
            "a"
        )  # a call of a tool that is not known yet waits at the door, and is counted there
        await room.connect("b")
        for _ in range(2):  # what has left the queue, sent or given up, no longer counts
            async with Outcomes() as calls:
                calls.start(room, "a_echo", {"text": "sent at once, and in no queue" * 1000})
                calls.start(room, "b_echo", {})
                await anyio.sleep(0.1)
                kept = calls.start(room, "a_echo", {"text": "x" * 3000})
                await anyio.sleep(0.1)
                with pytest.raises(Busy, match="waiting calls would be over 4,096 bytes") as caught:
                    await room.call("b_echo", {"text": "y" * 3000})
                assert caught.value.reach is Reach.NOT_SENT
                with anyio.move_on_after(0.1):
                    await room.call("b_echo", {"text": "small"})
            assert "x" * 3000 in str(kept.outcome)


@in_virtual_time
async def test_beyond_the_bounds_a_call_is_refused_at_once_with_the_numbers() -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 3, "maxQueued": 2}}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            five = [calls.start(room, "a_echo", {"n": n}) for n in range(5)]
            await anyio.sleep(2.0)
            assert len(server.calls) == 3
            start = anyio.current_time()
            with pytest.raises(Busy, match='Server "a" is busy: 3 calls in flight, 2 queued') as caught:
                await room.call("a_echo")
            assert anyio.current_time() == start
            busy = caught.value
            assert (busy.in_flight, busy.queued, busy.reach, busy.code) == (
                3,
                2,
                Reach.NOT_SENT,
                "server_busy",
            )
            assert busy.oldest_age == pytest.approx(2.0, abs=0.01)
            assert busy.retry_in > 0
        assert all(call.outcome == f'{{"n": {n}}}' for n, call in enumerate(five))
    assert (
        str(room.drain_report)
        == "5 calls accepted: 5 completed, 0 failed, 0 cancelled (1 refused: 1 server_busy)"
    )


@in_virtual_time
async def test_a_thousand_queued_calls_with_unsendable_arguments_end_one_by_one() -> None:
    """Each end lets the next be sent: that must be a loop, not a recursion."""
    server = FakeServer(start_latency=1.0)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        server.strict_json = True
        target, ended = room.describe("a_echo"), list[Any]()
        for _ in range(1000):
            port_of(room).start_call(target, {"x": object()}, lambda call: ended.append(call.error))
        await anyio.sleep(2.0)
        assert len(ended) == 1000
        assert {type(error) for error in ended} == {BadArguments}
        assert room.status()[0].connected


@in_virtual_time
async def test_arguments_that_are_no_json_are_refused_and_the_server_serves_on() -> None:
    server = FakeServer(strict_json=True)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        with pytest.raises(BadArguments, match="cannot be sent as JSON") as caught:
            await room.call("a_echo", {"x": {1, 2}})
        assert (caught.value.code, caught.value.reach) == ("invalid_request", Reach.NOT_SENT)
        with pytest.raises(UsageError, match="must be an object of named values, got list"):
            await room.call("a_echo", [1])  # type: ignore[arg-type]
        assert (await room.call("a_echo", {"x": 1})).text == '{"x": 1}'
        assert server.starts == 1


# ---- answers -----------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_json_rpc_error_is_an_answer_and_no_failure_of_the_server() -> None:
    server = FakeServer(call_error=(-32602, "no such tool"))
    async with open_room({"a": server}) as room:
        await room.connect("a")
        for _ in range(10):
            with pytest.raises(RemoteError, match="no such tool"):
                await room.call("a_echo")
        with pytest.raises(RemoteError, match="no such tool") as caught:
            await room.call("a_echo")
        assert (caught.value.rpc_code, caught.value.reach) == (-32602, Reach.ANSWERED)
        assert room.status()[0].retry_in is None


# ---- callbacks ---------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_callback_may_call_again_and_again() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        target, done = room.describe("a_echo"), anyio.Event()
        left = [100]

        def again(_: Any) -> None:
            left[0] -= 1
            if left[0]:
                port_of(room).start_call(target, {"left": left[0]}, again)
            else:
                done.set()

        port_of(room).start_call(target, None, again)
        await done.wait()
        assert len(server.calls) == 100


@pytest.mark.parametrize("ending", ["crash", "drain", "cancel siblings", "fail to connect", "time out"])
@in_virtual_time
async def test_a_callback_may_re_enter_the_room_from_any_ending(ending: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        target, again, siblings = room.describe("a_echo"), list[str](), list[Any]()
        if ending == "fail to connect":
            server.refuse_start = "no"
        elif ending != "cancel siblings":
            await room.connect("a")

        def on_end(_: Any) -> None:
            for sibling in siblings:
                sibling.cancel()
            try:
                port_of(room).start_call(target, {"again": 1}, lambda call: again.append(call.outcome))
            except CallError as error:
                again.append(error.code)

        siblings += [port_of(room).start_call(target, {}, on_end) for _ in range(5)]
        await anyio.sleep(1.0)
        if ending == "crash":
            server.crash()
        elif ending == "drain":
            await room.drain("a")
        elif ending == "cancel siblings":
            siblings[0].cancel()
        elif ending == "time out":
            await anyio.sleep(60.0)
        await anyio.sleep(1.0)
        assert all(call.ended for call in siblings)
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert len(again) == 5


@pytest.mark.parametrize("kind", ["on_end", "on_progress", "a reader of events"])
@in_virtual_time
async def test_a_callback_that_raises_costs_a_note_and_nothing_else(kind: str) -> None:
    server = FakeServer(call_latency=2.0)

    def bad(_: Any) -> None:
        raise RuntimeError("the embedder's own mistake")

    async with open_room({"a": server}) as room:
        await room.connect("a")
        notes = record_events(room, Note)
        target = room.describe("a_echo")
        if kind == "a reader of events":
            RoomInside(room).events.listen(bad)
        port_of(room).start_call(
            target,
            {},
            bad if kind == "on_end" else lambda _: None,
            on_progress=bad if kind == "on_progress" else None,
        )
        await anyio.sleep(1.0)
        server.connections[0].progress({"progress": 1})
        await anyio.sleep(2.0)
        assert (await room.call("a_echo", {"next": 1})).text == '{"next": 1}'
        assert any("the embedder's own mistake" in note.detail for note in notes)
        assert server.starts == 1


@on_asyncio
@in_virtual_time
async def test_on_asyncio_news_may_come_from_a_loop_callback_where_there_is_no_task() -> None:
    """As the real reader brings it: answers, losses, and what they set going."""
    server = FakeServer(call_latency=HANG)
    loop = asyncio.get_running_loop()
    async with open_room({"a": server, "b": FakeServer()}) as room:
        await learn(room, "b")
        await room.connect("a")
        a, b, ended = room.describe("a_echo"), room.describe("b_echo"), list[str]()

        def then_start_b(_: Any) -> None:
            port_of(room).start_call(b, {}, lambda call: ended.append(call.outcome))

        port_of(room).start_call(a, {}, then_start_b)
        await anyio.sleep(1.0)
        loop.call_soon(server.crash)
        await anyio.sleep(1.0)
        assert ended == ["result"]

        server.call_latency = 0.0
        await room.connect("a")
        loop.call_soon(server.announce_tools)
        loop.call_soon(port_of(room).start_call, a, {}, lambda call: ended.append(call.outcome))
        await anyio.sleep(1.0)
        assert ended == ["result", "result"]

        loop.call_soon(server.crash)
        await anyio.sleep(0.0)
        with pytest.raises(Unavailable) as refused:  # the second death of a streak counts at once
            await room.call("a_echo", {})
        await anyio.sleep(refused.value.retry_in)
        with anyio.fail_after(5):
            assert (await room.call("a_echo", {"back": 1})).text == '{"back": 1}'


# ---- leaving under calls -----------------------------------------------------------------------------------


@in_virtual_time
async def test_t22_draining_lets_calls_in_flight_finish_and_sends_nothing_new() -> None:
    server = FakeServer(call_latency=4.0)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 2}}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            sent = [calls.start(room, "a_echo", {"n": n}) for n in range(2)]
            await settle()
            queued = calls.start(room, "a_echo", {"n": 2})
            await anyio.sleep(1.0)
            start = anyio.current_time()
            await room.drain("a")
            assert anyio.current_time() - start == pytest.approx(3.0, abs=0.1), "it waited for its deadline"
        assert [call.outcome for call in sent] == ['{"n": 0}', '{"n": 1}']
        assert isinstance(queued.error, ServerDown)
        assert queued.error.reach is Reach.NOT_SENT
        assert len(server.calls) == 2


@in_virtual_time
async def test_at_the_drain_deadline_what_is_in_flight_is_drained() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            start = anyio.current_time()
            await room.drain("a")
            assert anyio.current_time() - start == pytest.approx(10.0, abs=0.01)
        assert isinstance(call.error, Drained)
        assert (call.error.code, call.error.reach) == ("drained", Reach.SENT)
        assert server.cancelled == 1


@pytest.mark.parametrize("what", ["answer", "crash", "cancel"])
@in_virtual_time
async def test_on_the_tick_of_the_drain_deadline_there_is_one_outcome(what: str) -> None:
    server = FakeServer(call_latency=10.0 if what == "answer" else HANG)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()

            async def then() -> None:
                await anyio.sleep(10.0)
                if what == "crash":
                    server.crash()
                elif what == "cancel":
                    call.cancel()

            tasks.start_soon(then)
            await room.drain("a")
        assert call.outcome in ("{}", "cancelled") or isinstance(call.outcome, Drained | ServerLost)
    assert room.drain_report is not None
    assert (room.drain_report.accepted, room.drain_report.adds_up) == (1, True)


Ask = Callable[[Greenroom], Any]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda room: room.drain("a"), ServerDown),
        (lambda room: room.restart("a"), '{"new": 1}'),
    ],
    ids=["drained", "restarted"],
)
@in_virtual_time
async def test_a_call_that_comes_while_draining_is_refused_or_waits_for_the_next_incarnation(
    ask: Ask, expected: Any
) -> None:
    server = FakeServer(call_latency=3.0)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with Outcomes() as calls:
            old = calls.start(room, "a_echo", {"old": 1})
            await anyio.sleep(1.0)
            tasks.start_soon(ask, room)
            await settle()
            new = calls.start(room, "a_echo", {"new": 1})
        assert old.outcome == '{"old": 1}'
        assert new.outcome == expected or isinstance(new.outcome, expected)


@in_virtual_time
async def test_the_queue_of_a_server_that_cannot_be_started_fails_at_once() -> None:
    server = FakeServer(start_latency=1.0)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        server.refuse_initialize = "not today"
        async with Outcomes() as calls:
            ten = [calls.start(room, "a_echo", {"n": n}) for n in range(10)]
        assert {type(call.error) for call in ten} == {ConnectFailed}
        assert {call.error.code for call in ten} == {"connect_failed"}
        assert {call.error.reach for call in ten} == {Reach.NOT_SENT}
        assert len({id(call.error) for call in ten}) == 10, "an error object was shared"
        assert "not today" in str(ten[0].error)
        start = anyio.current_time()
        with pytest.raises(Unavailable, match=r'Server "a" not available \(failed 0 s ago\)') as caught:
            await room.call("a_echo")
        assert anyio.current_time() == start
        assert caught.value.retry_in <= 1.2
        assert server.starts == 2


@on_one_loop
@in_virtual_time
async def test_t12_calls_leave_a_tally_and_nothing_else() -> None:
    server = FakeServer()

    def calls_kept() -> list[Call]:
        gc.collect()
        return [thing for thing in gc.get_objects() if isinstance(thing, Call)]

    others = {id(call): call for call in calls_kept()}  # a test before this one may hold some
    async with open_room({"a": server}) as room:
        for _ in range(1_000):
            await room.call("a_echo")
        server.call_latency = 5.0
        async with Outcomes() as calls:
            left = calls.start(room, "a_echo")
            await anyio.sleep(1.0)
            assert RoomInside(room).open_calls == 1
            left.cancel()
        assert RoomInside(room).open_calls == 0
        del left, calls
        server.calls.clear()
        await anyio.sleep(5.0)
        assert not [call for call in calls_kept() if id(call) not in others]
        assert RoomInside(room).timer_count < 10
    assert str(room.drain_report) == "1001 calls accepted: 1000 completed, 0 failed, 1 cancelled (0 refused)"


def test_the_events_of_a_call_are_accepted_sent_ended_in_order(backend: str) -> None:
    server = FakeServer(start_latency=1.0)

    async def body() -> list[CallEvent]:
        async with open_room({"a": server}) as room:
            await learn(room, "a")
            events = record_events(room, CallEvent)
            await room.call("a_echo")
            return events

    events = run_virtual(backend, body)

    assert [event.detail for event in events] == ["accepted", "sent", "ended"]
    assert {event.call for event in events} == {1}
    assert {(event.tool, event.method, event.client) for event in events} == {("a_echo", "tools/call", None)}
    ended = events[-1]
    assert isinstance(ended, CallEnded)
    assert (ended.outcome, ended.reach, ended.taken) == (
        "result",
        Reach.ANSWERED,
        events[2].at - events[1].at,
    )
    assert ended.waited == events[1].at - events[0].at
    assert not math.isnan(events[0].at)


# ---- small print of the call table -----------------------------------------------------------------------------------


def _actor(room: Greenroom) -> Any:
    return RoomInside(room).machinery.servers.actor("a")


@in_virtual_time
async def test_a_probe_that_is_refused_as_busy_gives_its_turn_back() -> None:
    server = FakeServer()
    entries = {"a": {"maxQueued": 1}}
    async with open_room({"a": server}, entries=entries, failureThreshold=1, cooldownMs=5_000) as room:
        await learn(room, "a")
        server.refuse_start = "no"
        with pytest.raises(ConnectFailed):
            await room.call("a_echo")
        server.refuse_start = None
        await anyio.sleep(6.0)
        load = _actor(room).record.load
        load.queued += 1  # as if its other scopes had filled the queue
        with pytest.raises(Busy) as caught:
            await room.call("a_echo")
        load.queued -= 1
        assert caught.value.tool == "a_echo"
        assert (await room.call("a_echo", {"n": 1})).text == '{"n": 1}'


@in_virtual_time
async def test_what_is_given_up_leaves_its_place_to_the_next() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 1}}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            first = calls.start(room, "a_echo", {"n": 1})
            await settle()
            second = calls.start(room, "a_echo", {"n": 2})
            await settle()
            server.call_latency = 0.0
            (call,) = _actor(room).calls.open
            _actor(room).calls.give_up(call, InputRefused("no", server="a", reach=Reach.SENT))
            _actor(room).calls.give_up(call, InputRefused("again", server="a"))
        assert isinstance(first.error, InputRefused)
        assert str(first.error) == "no"
        assert second.outcome == '{"n": 2}'


@in_virtual_time
async def test_what_is_given_up_last_lets_its_server_go_on_draining() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with Outcomes() as calls:
            calls.start(room, "a_echo")
            await settle()
            tasks.start_soon(room.drain, "a")
            await settle()
            (call,) = _actor(room).calls.open
            _actor(room).calls.give_up(call, InputRefused("no", server="a"))
        await settle()
        assert server.live == 0
        assert anyio.current_time() == 0.0


@in_virtual_time
async def test_a_call_that_is_sent_again_waits_as_one_that_was_not_sent_and_may_have_run() -> None:
    """Its server wanted more first, and now it does not read."""
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            began = anyio.current_time()
            asked = calls.start(room, "a_echo", {"n": 1})
            await anyio.sleep(7.0)
            (call,) = _actor(room).calls.open
            server.blocked = True
            _actor(room).calls.send_again(call, {"inputResponses": {"x": 1}})
            assert (call.reach, call.params["inputResponses"]) == (Reach.NOT_SENT, {"x": 1})
            assert call.params["arguments"] == {"n": 1}
        assert isinstance(asked.error, CallTimeout)
        assert asked.error.reach is Reach.SENT
        assert asked.at is not None
        assert asked.at - began == pytest.approx(7.0 + Settings().queue_timeout)


@in_virtual_time
async def test_one_silent_call_is_enough_to_find_a_server_hung() -> None:
    """It was heard after the first of them was sent, and never again since the second."""
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}, failureThreshold=1) as room:
        await room.connect("a")
        start = anyio.current_time()
        async with Outcomes() as calls:
            calls.start(room, "a_echo", timeout=20.0)
            await anyio.sleep(5.0)
            server.connections[0].last_heard = anyio.current_time()
            await anyio.sleep(5.0)
            calls.start(room, "a_echo", timeout=10.0)
        assert anyio.current_time() - start == pytest.approx(20.0)
        assert [type(call.outcome) for call in calls.all] == [CallTimeout] * 2
        await settle()
        assert room.status()[0].retry_in is not None


@in_virtual_time
async def test_who_stopped_waiting_for_a_failed_attempt_is_not_told() -> None:
    server = FakeServer(refuse_initialize="no", stop_latency=2.0)
    async with open_room({"a": server}) as room:
        actor, told = _actor(room), list[Any]()
        forget = actor.on_connected(told.append)
        actor.on_connected(lambda error: told.append("other"))
        actor.request_start()
        await anyio.sleep(1.0)
        assert (told, server.live) == ([], 1)  # it has failed, and is being cleared away
        forget()
        forget()
        await anyio.sleep(5.0)
        assert told == ["other"]


@in_virtual_time
async def test_why_it_failed_is_forgotten_when_it_connects() -> None:
    server = FakeServer(refuse_initialize="not today")
    async with open_room({"a": server}) as room:
        with pytest.raises(ConnectFailed):
            await room.connect("a")
        assert "not today" in (room.status()[0].failure or "")
        assert room.status()[0].failed_ago == 0.0
        server.refuse_initialize = None
        await anyio.sleep(5.0)
        await room.connect("a")
        assert room.status()[0].failure is None


@in_virtual_time
async def test_a_change_that_is_announced_while_the_lists_are_read_is_read_too() -> None:
    server = FakeServer()
    async with open_room({"a": server}, toolPrefix="none") as room:
        await room.connect("a")
        server.list_latency = 1.0
        server.tools.append(tool("second"))
        server.tools = list(server.tools)
        server.announce_tools()
        await anyio.sleep(0.5)  # it reads the first change
        server.tools = [*server.tools, tool("third")]
        server.announce_tools()
        await anyio.sleep(0.7)
        assert sorted(target.name for target in room.tools()) == ["echo", "second"]
        await anyio.sleep(1.2)
        assert sorted(target.name for target in room.tools()) == ["echo", "second", "third"]


@in_virtual_time
async def test_the_first_word_on_how_a_connection_was_lost_stands() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            lost = calls.start(room, "a_echo")
            await settle()
            hooks = server.connections[0].hooks
            hooks.on_lost(LostReason("exited with code 3", 3))
            hooks.on_lost(LostReason("closed its stdout"))
        assert "exited with code 3" in str(lost.error)


@pytest.mark.parametrize(("is_sent", "code"), [(False, "auth_required"), (True, "call_failed")])
@in_virtual_time
async def test_a_login_that_is_wanted_is_no_excuse_for_what_may_have_run(is_sent: bool, code: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        server.blocked = not is_sent
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            server.connections[0].lose(LostReason("HTTP 401", loss=Reason.NEEDS_AUTH))
        assert call.error.code == code
        assert call.error.reach is (Reach.SENT if is_sent else Reach.NOT_SENT)
        assert ("may have run" in str(call.error)) is is_sent


@in_virtual_time
async def test_the_oldest_call_decides_how_long_busy_lasts() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 1, "maxQueued": 1}}) as room:
        await room.connect("a")
        await anyio.sleep(100.0)
        async with Outcomes() as calls:
            for _ in range(2):
                calls.start(room, "a_echo")
                await anyio.sleep(4.0)
            for _ in range(2):
                with pytest.raises(Busy) as caught:
                    await room.call("a_echo")
                assert (caught.value.oldest_age, caught.value.retry_in) == (8.0, 5.0)
            for call in calls.all:
                call.cancel()
    assert room.drain_report is not None
    assert room.drain_report.refusals == {"server_busy": 2}


@in_virtual_time
async def test_a_waiting_call_is_sent_as_the_probe_although_the_call_that_came_is_refused_as_busy() -> None:
    """It was made the probe, and waited for whatever happened next in its queue."""
    server = FakeServer(call_latency=HANG)
    entry = {"maxInFlight": 1, "maxQueued": 1, "requestTimeoutMs": 5_000}
    settings: dict[str, Any] = {"failureThreshold": 1, "cooldownMs": 30_000, "queueTimeoutMs": 600_000}
    async with open_room({"a": server}, entries={"a": entry}, **settings) as room, Outcomes() as calls:
        await room.connect("a")
        calls.start(room, "a_echo")
        await anyio.sleep(1.0)
        waiting = calls.start(room, "a_echo")
        await anyio.sleep(14.0)
        assert (server.live, waiting.outcome) == (0, None), "it hung, and its circuit breaker refuses"
        server.call_latency = 0.0
        stand_still(30.0)
        with suppress(Busy):
            await room.call("a_echo")
        await anyio.sleep(5.0)
        assert waiting.outcome == "{}"


@in_virtual_time
async def test_a_bug_in_a_step_ends_every_call_and_only_this_server() -> None:
    server, other = FakeServer(call_latency=HANG), FakeServer()
    async with open_room({"a": server, "b": other}, entries={"a": {"maxInFlight": 1}}) as room:
        await room.connect("a")
        notes = record_events(room, Note)
        async with Outcomes() as calls:
            both = [calls.start(room, "a_echo") for _ in range(2)]
            await settle()
            _actor(room).stop_for_bug(ZeroDivisionError("ours"))
        assert [call.error.code for call in both] == ["bug", "bug"]
        assert {call.error.reach for call in both} == {Reach.SENT, Reach.NOT_SENT}
        assert "ZeroDivisionError: ours" in notes[0].detail
        await room.call("b_echo")
        await settle()
        assert (server.live, other.live) == (0, 1)
        server.call_latency = 0.0
        await room.call("a_echo")  # it starts again, as after any loss
        assert server.starts == 2


@in_virtual_time
async def test_a_lease_keeps_a_resting_server_and_its_return_starts_the_clock() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"idleTimeout": 1}}) as room:
        await room.connect("a")
        release = _actor(room).lease()
        await room.call("a_echo")
        await anyio.sleep(100.0)
        assert server.live == 1
        release()
        release()  # once
        assert _actor(room).has_nothing_to_do
        await anyio.sleep(59.0)
        assert server.live == 1
        await anyio.sleep(2.0)
        assert server.live == 0


@in_virtual_time
async def test_what_was_never_sent_is_given_a_second_server_and_no_third() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        server.blocked = True
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            for start in (1, 2):
                await settle()
                assert (server.starts, call.outcome) == (start, None)
                server.blocked = False
                (connection,) = server.connections
                server.list_latency = 1.0
                connection.lose(LostReason("exited with code 3", 3))
                if start == 1:
                    await anyio.sleep(0.5)
                    server.blocked = True  # it has read all up to its list
                    await anyio.sleep(1.0)
        assert isinstance(call.error, ServerLost)
        assert call.error.reach is Reach.NOT_SENT
        assert (server.starts, len(server.calls)) == (2, 0)


@in_virtual_time
async def test_a_server_has_one_alarm() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        at_rest = RoomInside(room).timer_count
        for _ in range(5):
            await room.call("a_echo")
            await anyio.sleep(65.0)
        await settle()
        assert RoomInside(room).timer_count == at_rest


@in_virtual_time
async def test_what_was_sent_to_a_server_that_dies_while_it_drains_may_have_run() -> None:
    """However harmless it is: there is no next server to send it to."""
    server = FakeServer(tools=[tool("echo", annotations=READ_ONLY)], call_latency=HANG)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            tasks.start_soon(room.drain, "a")
            await settle()
            server.crash()
        assert isinstance(call.error, ServerLost)
        assert call.error.reach is Reach.SENT


@in_virtual_time
async def test_who_comes_while_a_failed_attempt_is_cleared_away_waits_for_the_next() -> None:
    server = FakeServer(refuse_initialize="not today", stop_latency=2.0)
    entry = {"lifecycle": "keep-alive"}
    async with open_room({"a": server}, entries={"a": entry}, cooldownMs=1_000) as room:
        await anyio.sleep(1.0)
        assert (server.starts, server.live) == (1, 1)  # it has failed, and is being stopped
        server.refuse_initialize = None
        await room.connect("a")
        assert server.starts == 2


@in_virtual_time
async def test_a_server_that_is_told_to_leave_before_it_has_begun_is_not_started() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        actor = _actor(room)
        actor.request_start()
        assert actor.life.state is State.CONNECTING
        actor.stop(Ending(Cause.EVICTED))
        await anyio.sleep(1.0)
        assert (server.starts, actor.life.state) == (0, State.IDLE)


@in_virtual_time
async def test_only_a_change_of_its_lists_has_them_read_and_what_ends_a_request_is_told_nobody() -> None:
    server, heard = FakeServer(), list[str]()

    async def ask_somebody(_request: Any) -> Any:
        await anyio.sleep_forever()

    async with Greenroom.open(
        {"mcpServers": {"a": {"command": "fake"}}},
        cache_path=":memory:",
        connectors=fake_connectors({"a": server}),
        bootstrap=False,
        on_sampling=ask_somebody,
        on_notification=lambda _address, method, _params: heard.append(method),
    ) as room:
        await room.connect("a")
        asked, hooks = requests_of(server), server.connections[0].hooks
        hooks.on_request(7, "sampling/createMessage", {"messages": []})
        await settle()
        hooks.on_notification("notifications/cancelled", {"requestId": 7})
        hooks.on_notification("notifications/message", {"level": "info"})
        hooks.on_notification("notifications/resources/updated", {"uri": "x:/"})
        await anyio.sleep(1.0)
        assert (asked, heard) == ([], ["notifications/message", "notifications/resources/updated"])


@in_virtual_time
async def test_what_breaks_while_its_server_drains_is_not_sent_again() -> None:
    """Its answer is lost and its connection is not: as harmless as it is, nothing is sent to who is leaving."""
    server = FakeServer(tools=[tool("echo", annotations=READ_ONLY)], call_latency=HANG)
    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            tasks.start_soon(room.drain, "a")
            await settle()
            (exchange,) = server.connections[0]._open
            exchange.owner.exchange_ended(exchange, None, RpcError(-32000, "its stream broke", broken=True))
        assert isinstance(call.error, ServerLost)
        assert str(call.error) == (
            'Server "a" gave no answer: its stream broke; the call was sent and may have run.'
        )
        assert len(server.calls) == 1


@pytest.mark.parametrize("how", ["its stream broke", "its connection was lost"])
@in_virtual_time
async def test_a_call_is_not_sent_again_when_its_tool_has_changed_meanwhile(how: str) -> None:
    server = FakeServer(tools=[tool("echo", "Echoes.", annotations=READ_ONLY)], call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            server.tools = [tool("echo", "Echoes, and sends all away.", annotations=READ_ONLY)]
            server.announce_tools()
            await anyio.sleep(1.0)
            assert call.outcome is None, "it was sent before"
            if how == "its stream broke":
                (exchange,) = server.connections[0]._open
                exchange.owner.exchange_ended(exchange, None, RpcError(-32000, how, broken=True))
            else:
                server.connections[0].lose(LostReason("exited"))
        assert (call.error.code, call.error.reach, call.error.tool) == ("tool_changed", Reach.SENT, "a_echo")
        assert "may have run" in str(call.error)
        assert len(server.calls) == 1


@in_virtual_time
async def test_calls_that_were_not_sent_keep_their_order_through_a_lost_connection() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"maxInFlight": 3}}) as room:
        await room.connect("a")
        server.blocked = True
        async with Outcomes() as calls:
            for n in range(5):  # three are held up in its pipe, two are queued behind them
                calls.start(room, "a_echo", {"n": n})
                await settle()
            server.blocked = False
            server.crash()
        assert [arguments["n"] for arguments in calls_of(server)] == [0, 1, 2, 3, 4]
        assert server.starts == 2


@in_virtual_time
async def test_a_caller_may_wait_longer_than_the_total_and_progress_does_not_shorten_it() -> None:
    server = FakeServer(call_latency=800.0)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", {"n": 1}, timeout=900.0)
            await anyio.sleep(100.0)
            server.connections[0].progress({"progress": 1})
        assert call.outcome == '{"n": 1}'


@in_virtual_time
async def test_while_its_client_is_asked_a_call_waits_up_to_its_total_and_no_longer() -> None:
    server = FakeServer(call_latency=HANG)

    async def ask_somebody(_request: Any) -> Any:
        await anyio.sleep_forever()

    config = {"mcpServers": {"a": {"command": "fake"}}, "settings": {"requestTotalTimeoutMs": 300_000}}
    async with Greenroom.open(
        config,
        cache_path=":memory:",
        connectors=fake_connectors({"a": server}),
        bootstrap=False,
        on_sampling=ask_somebody,
    ) as room:
        await room.connect("a")
        began = anyio.current_time()
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", timeout=20.0)
            await settle()
            server.connections[0].hooks.on_request(7, "sampling/createMessage", {"messages": []})
        assert isinstance(call.error, CallTimeout)
        assert call.at is not None
        assert call.at - began == pytest.approx(300.0, abs=0.01)


@in_virtual_time
async def test_what_a_caller_says_of_the_log_level_goes_before_the_rooms() -> None:
    server, level = modern_server(lambda _call: "logged"), "io.modelcontextprotocol/logLevel"
    async with open_room({"a": server}) as room:
        room.set_log_level("error")
        await room.call("a_echo")
        await room.call("a_echo", meta={level: "debug", "x": 1})
        assert [call["_meta"] for call in server.calls] == [{level: "error"}, {level: "debug", "x": 1}]


@in_virtual_time
async def test_who_calls_from_a_callback_stands_behind_those_who_waited() -> None:
    """The first to be sent cannot be, and ends at once: a place is free while others still stand in the queue."""
    server = FakeServer(start_latency=1.0, strict_json=True)
    async with open_room({"a": server}) as room:
        await learn(room, "a")
        target = room.describe("a_echo")

        def call_again(_: Call) -> None:
            port_of(room).start_call(target, {"n": "late"}, lambda _: None)

        port_of(room).start_call(target, {"n": {1}}, call_again)
        for n in range(3):
            port_of(room).start_call(target, {"n": n}, lambda _: None)
        await anyio.sleep(2.0)
        assert [arguments["n"] for arguments in calls_of(server)] == [0, 1, 2, "late"]


@in_virtual_time
async def test_a_death_after_a_hang_makes_the_breaker_refuse_again() -> None:
    server = FakeServer()
    async with open_room({"a": server}, failureThreshold=1, cooldownMs=5_000) as room:
        await room.connect("a")
        server.deaf = True
        with pytest.raises(CallTimeout):
            await room.call("a_echo", timeout=10.0)
        server.deaf = False
        await anyio.sleep(30.0)
        await room.call("a_echo")
        assert server.starts == 2
        await anyio.sleep(30.0)
        server.crash()
        with pytest.raises(Unavailable):
            await room.call("a_echo")
        assert server.starts == 2


@in_virtual_time
async def test_what_is_idle_keeps_nothing_of_its_last_connection() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        connection = weakref.ref(server.connections[0])
        await retire(room, "a")
        await settle()
        gc.collect()
        assert connection() is None


SECRET = "hush-hush-hush-1"


@in_virtual_time
async def test_a_bug_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        server.call_latency = HANG
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            _actor(room).stop_for_bug(ZeroDivisionError(f"with {SECRET} in it"))
        assert call.error.code == "bug"
        assert "ZeroDivisionError: with " in str(call.error)
        assert "hush" not in str(call.error)


@in_virtual_time
async def test_what_a_server_said_before_it_died_is_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo")
            await settle()
            server.connections[0]._far.crash(3, None, f"cannot log in with {SECRET}")
        assert isinstance(call.error, ServerLost)
        (line,) = call.error.stderr_tail
        assert line.startswith("cannot log in with ")
        assert "hush" not in f"{call.error} {line} {room.status()}"


@in_virtual_time
async def test_what_keeps_a_server_from_starting_is_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    server = FakeServer(refuse_start=f"no such file: {SECRET}")
    async with open_room({"a": server}) as room:
        with pytest.raises(ConnectFailed, match="no such file: ") as caught:
            await room.connect("a")
        assert "hush" not in f"{caught.value} {caught.value.as_dict()} {room.status()}"


@in_virtual_time
async def test_the_last_line_of_an_install_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setattr(FakeConnection, "last_line", f"fetching with {SECRET}")
    server = FakeServer(initialize_latency=20.0)
    async with open_room({"a": server}, entries={"a": {"command": "npx"}}) as room:
        notes = record_events(room, Note)
        async with Outcomes() as calls:
            await teach(room, "a")
            calls.start(room, "a_echo")
            await anyio.sleep(15.0)
            (row,) = room.status()
            assert (row.last_line or "").startswith("fetching with ")
            assert any("fetching with " in note.detail for note in notes)
            assert "hush" not in f"{row} {[note.detail for note in notes]}"


@in_virtual_time
async def test_what_a_hung_server_said_last_is_told_to_the_calls_it_takes_along() -> None:
    server = FakeServer(call_latency=HANG)
    async with open_room({"a": server}, failureThreshold=1) as room:
        await room.connect("a")
        server.deaf = True
        server.connections[0]._far.write_stderr("waiting for a lock")
        async with Outcomes() as calls:
            calls.start(room, "a_echo", timeout=10.0)
            other = calls.start(room, "a_echo", timeout=60.0)
        assert isinstance(other.error, ServerLost)
        assert other.error.stderr_tail == ("waiting for a lock",)
        assert "unresponsive" in str(other.error)


@in_virtual_time
async def test_after_a_gap_the_lists_are_read_again_and_what_is_watched_may_have_changed() -> None:
    """A stream broke and nobody can say what was missed."""
    server, heard = FakeServer(), list[Any]()
    async with open_room(
        {"a": server},
        callbacks={"on_notification": lambda _address, method, params: heard.append((method, params))},
    ) as room:
        await room.connect("a")
        asked = requests_of(server)
        _actor(room).subscriptions.add("x:/")
        server.connections[0].hooks.on_gap()
        await anyio.sleep(1.0)
        assert asked == ["tools/list"]
        assert heard == [("notifications/resources/updated", {"uri": "x:/"})]


@in_virtual_time
async def test_a_list_that_does_not_come_again_costs_a_note_and_the_server_serves_on() -> None:
    server = FakeServer()
    async with open_room({"a": server}, requestTimeoutMs=5_000) as room:
        await room.connect("a")
        notes = record_events(room, Note)
        server.list_latency = HANG
        server.announce_tools()
        await anyio.sleep(10.0)
        assert [note.code for note in notes] == [NoteCode.UNREAD]
        server.list_latency, server.tools = 0.0, [tool("echo"), tool("new")]
        server.announce_tools()
        await anyio.sleep(1.0)
        assert [target.name for target in room.tools()] == ["a_echo", "a_new"]
        assert server.starts == 1


@in_virtual_time
async def test_a_server_that_asked_for_roots_has_a_moment_to_act_on_them() -> None:
    server = FakeServer(list_latency=1.0)
    async with open_room({"a": server}, callbacks={"roots": ["/"]}) as room:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.connect, "a")
            await anyio.sleep(0.5)
            server.connections[0].hooks.on_request(7, "roots/list", None)
        assert anyio.current_time() == pytest.approx(1.0 + ACTING)
        assert server.pings == 2


@in_virtual_time
async def test_a_call_that_found_its_server_in_time_waits_anew_when_that_is_lost() -> None:
    server = FakeServer(tools=[tool("echo", annotations=READ_ONLY)], initialize_latency=8.0, call_latency=5.0)
    async with open_room({"a": server}, queueTimeoutMs=10_000) as room:
        async with Outcomes() as calls:
            call = calls.start(room, "a_echo", {"n": 1})
            await anyio.sleep(9.0)
            assert len(server.calls) == 1
            server.crash()
        assert (call.outcome, server.starts) == ('{"n": 1}', 2)


@pytest.mark.parametrize("size", [10, 2 << 20])
@in_virtual_time
async def test_an_answer_that_has_come_is_not_lost_to_a_cancellation(size: int) -> None:
    answer = {"content": [{"type": "text", "text": "x" * size}]}
    server = FakeServer(handler=lambda _: answer)
    async with open_room({"a": server}) as room:
        await room.connect("a")
        got: list[int] = []
        with anyio.CancelScope() as scope:

            def leave(event: Event) -> None:
                if isinstance(event, CallEnded):
                    scope.cancel()

            RoomInside(room).events.listen(leave, [Kind.CALL])
            got.append(len((await room.call("a_echo")).text))
            await anyio.lowlevel.checkpoint()
            got.append(-1)
        assert got == [size]


@pytest.mark.parametrize(
    ("command", "initialize", "lists"), [("npx", 29.0, 29.0), ("fake", 29.9, 0.9)], ids=["install", "slow"]
)
@in_virtual_time
async def test_a_late_initialize_leaves_time_for_the_lists(
    command: str, initialize: float, lists: float
) -> None:
    """After an install that took it all, the whole of the connect time; else a second at least."""
    server = FakeServer(initialize_latency=initialize, list_latency=lists)
    async with open_room({"a": server}, entries={"a": {"command": command}}) as room:
        await room.connect("a")
        assert anyio.current_time() == pytest.approx(initialize + lists, abs=0.1)
        assert server.starts == 1


def requests_of(server: FakeServer) -> list[str]:
    """The methods its one connection is asked from now on."""
    (connection,) = server.connections
    request, asked = connection.request, list[str]()

    def note(exchange: Exchange) -> None:
        asked.append(exchange.method)
        request(exchange)

    connection.request = note
    return asked


@in_virtual_time
async def test_a_burst_of_changes_is_read_once() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        asked = requests_of(server)
        for n in range(8):
            server.tools = [tool("echo"), tool(f"t{n}")]
            server.announce_tools()
            await anyio.sleep(0.01)
        await anyio.sleep(1.0)
        assert asked == ["tools/list"]
        assert [target.name for target in room.tools()] == ["a_echo", "a_t7"]


@in_virtual_time
async def test_what_a_server_asked_is_answered_no_more_when_it_has_died() -> None:
    server, asked = FakeServer(), list[str]()

    async def ask_somebody(_request: Any) -> Any:
        asked.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            asked.append("over")

    async with open_room({"a": server}, callbacks={"on_sampling": ask_somebody}) as room:
        await room.connect("a")
        server.connections[0].hooks.on_request(7, "sampling/createMessage", {"messages": []})
        await settle()
        assert asked == ["begun"]
        server.crash()
        await settle()
        assert asked == ["begun", "over"]


@in_virtual_time
async def test_each_request_of_a_server_is_answered_once_and_its_progress_told_while_it_lasts() -> None:
    server, asked = FakeServer(), dict[str, Any]()
    told: list[tuple[str, Any]] = []
    replies: list[tuple[Any, Any, Any]] = []

    async def ask_somebody(request: Any) -> Any:
        what = request.params["what"]
        asked[what] = request
        match what:
            case "bug":
                raise ZeroDivisionError("a secret")
            case "refuse":
                raise RpcRefusal(-7, "not now", {"x": 1})
            case "wait":
                await anyio.sleep_forever()
            case _:
                pass
        return {"said": what}

    async with open_room({"a": server}, callbacks={"on_sampling": ask_somebody}) as room:
        await room.connect("a")
        (peer,) = server.connections

        def reply(rpc_id: Any, result: Any, error: Any = None) -> None:
            replies.append((rpc_id, result, error and (error.code, error.message, error.data)))

        peer.notify = lambda method, params=None: told.append((method, params))
        peer.reply = reply

        async def ask(rpc_id: Any, what: str, **meta: Any) -> None:
            params: dict[str, Any] = {"what": what, **({"_meta": meta} if meta else {})}
            peer.hooks.on_request(rpc_id, "sampling/createMessage", params)
            await settle()

        await ask(1, "fine", progressToken=7)
        await ask(2, "bug")
        await ask(3, "refuse")
        assert replies == [
            (1, {"said": "fine"}, None),
            (2, None, (-32603, "Internal error: sampling/createMessage could not be answered.", None)),
            (3, None, (-7, "not now", {"x": 1})),
        ]
        replies.clear()
        await ask(4, "wait")
        await ask(4, "wait")
        ((_, _, refused),) = replies
        assert refused[1] == "a request of this server with this id is open already"
        peer.hooks.on_notification("notifications/cancelled", {"requestId": 4})
        await settle()
        await ask(4, "again")
        assert replies[1:] == [(4, {"said": "again"}, None)], "what was withdrawn is not answered"
        asked["again"].progress({"progress": 1})  # it has no token
        asked["fine"].progress({"progress": 1, "total": 2})
        assert told == [("notifications/progress", {"progress": 1, "total": 2, "progressToken": 7})]
        server.crash()
        await settle()
        asked["fine"].progress({"progress": 2})
        assert len(told) == 1, "there is nobody to tell"


@in_virtual_time
async def test_so_many_requests_of_a_server_are_open_at_once_and_no_more() -> None:
    server, asked = FakeServer(), list[Any]()
    replies: list[tuple[Any, Any]] = []

    async def ask_somebody(request: Any) -> Any:
        asked.append(request)
        await anyio.sleep_forever()

    async with open_room({"a": server}, callbacks={"on_sampling": ask_somebody}) as room:
        await room.connect("a")
        (peer,) = server.connections
        peer.reply = lambda rpc_id, result, error=None: replies.append((rpc_id, error and error.code))

        def ask(rpc_id: Any) -> None:
            peer.hooks.on_request(rpc_id, "sampling/createMessage", {"messages": []})

        def take_back(rpc_id: Any) -> None:
            peer.hooks.on_notification("notifications/cancelled", {"requestId": rpc_id})

        ask("at once")
        take_back("at once")
        await settle()
        assert (asked, replies) == ([], []), "it was taken back before anybody was asked"
        for number in range(MOST_OPEN + 1):
            ask(number)
        await settle()
        assert (len(asked), replies) == (MOST_OPEN, [(MOST_OPEN, OVERLOADED)])
        take_back(0)
        ask("fits")
        await settle()
        assert (len(asked), len(replies)) == (MOST_OPEN + 1, 1)


# ---- input that a server wants before it answers -------------------------------------------------------------------


def modern_server(handler: Callable[[Any], Any]) -> FakeServer:
    """A server of 2026-07-28 whose calls this answers."""
    server = FakeServer(handler=handler)
    found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    server.methods["server/discover"] = lambda _params: found
    return server


def wanted(*keys: str, **more: Any) -> dict[str, Any]:
    """A result that needs an answer of the client for each of these keys."""
    requests = {key: {"method": "elicitation/create", "params": {"message": key}} for key in keys}
    return {"resultType": "input_required", **({"inputRequests": requests} if keys else {}), **more}


async def accept(request: Any) -> dict[str, Any]:
    if request.params["message"] == "no":
        raise RpcRefusal(-7, "not now")
    await anyio.sleep(1.0)
    return {"action": "accept", "content": {"said": request.params["message"]}}


def newer_room(server: FakeServer) -> Greenroom:
    entries = {"a": {"era": "stateless"}}
    return open_room({"a": server}, entries=entries, callbacks={"on_elicitation": accept})


@in_virtual_time
async def test_input_is_found_and_sent_with_the_state_it_came_with() -> None:
    rounds = iter([wanted("b", "a", requestState="s"), wanted("a"), "done", wanted("no")])
    server = modern_server(lambda _call: next(rounds))
    async with newer_room(server) as room:
        assert (await room.call("a_echo")).text == "done"
        _, first, second = server.calls
        said = {key: {"action": "accept", "content": {"said": key}} for key in "ab"}
        assert (first["inputResponses"], first["requestState"]) == (said, "s")
        assert second["inputResponses"] == {"a": said["a"]}
        with pytest.raises(InputRefused, match=r"not now \(-7\)") as refused:
            await room.call("a_echo")
        assert refused.value.reach is Reach.ANSWERED
        assert len(server.calls) == 4


@in_virtual_time
async def test_who_wants_nothing_in_particular_is_asked_again_after_growing_pauses() -> None:
    at: list[float] = []

    def answer(_call: Any) -> Any:
        at.append(anyio.current_time())
        return wanted(*(["a"] if len(at) == 6 else []), requestState=len(at))

    server = modern_server(answer)
    async with newer_room(server) as room:
        with pytest.raises(ProtocolFault, match="10 times over"):
            await room.call("a_echo")
    pauses = [round(after - before, 3) for before, after in pairwise(at)]
    assert pauses == [0.05, 0.1, 0.2, 0.25, 0.25, 1.0, 0.05, 0.1, 0.2, 0.25]
    assert [params.get("requestState") for params in server.calls] == [None, *range(1, 11)]


@in_virtual_time
async def test_a_call_that_has_left_is_asked_nothing_more() -> None:
    server = modern_server(lambda _call: wanted("a"))
    async with newer_room(server) as room, Outcomes() as calls:
        running = calls.start(room, "a_echo")
        await anyio.sleep(0.5)
        running.cancel()
        await anyio.sleep(5.0)
        assert running.outcome == "cancelled"
        assert len(server.calls) == 1
