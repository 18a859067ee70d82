"""Fault scripts as data: what is refused and with which words, the round trip, which faults are due when."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from tests.support import in_virtual_time, run_virtual
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, teach
from tests.support.rows import for_each
from tests.support.stdio import Call, Recorder

from greenroom import CallError, Greenroom, Reach, UsageError
from greenroom.events import NoteCode
from greenroom.protocol.address import Address
from greenroom.protocol.errors import ConnectFailed
from greenroom.protocol.fault_plan import FaultPlan, problem_with
from greenroom.protocol.lifecycle import Reason
from greenroom.testing import FakeServer, Fault, FaultScript, ScriptedServer, tool
from greenroom.testing.fake_servers import fake_connectors
from greenroom.testing.strategies import fault_scripts


@settings(deadline=None)
@given(fault_scripts())
def test_a_script_survives_json(script: FaultScript) -> None:
    assert FaultScript.from_json(script.to_json()) == script
    assert FaultScript.from_json(script.to_json().encode()) == script


@for_each(
    ("fault", "advice"),
    [
        ({}, 'a fault needs "at", one of start, initialize'),
        (7, "a fault is an object like"),
        ({"at": "cal", "do": "crash"}, 'did you mean "call"?'),
        ({"at": [], "do": "crash"}, "is none of start, initialize"),
        ({"at": "call", "do": "close_slowly"}, "is none of delay, hang"),
        ({"at": "call", "do": "crash", "exitcode": 3}, 'did you mean "exit_code"?'),
        ({"at": "call", "do": "crash", "exit_code": True}, "must be a whole number from 0 to 255"),
        ({"at": "call", "do": "crash", "exit_code": 3, "signal": "SIGKILL"}, "leave out one of them"),
        ({"at": "call", "do": "crash", "signal": 9}, "one of SIGKILL"),
        ({"at": "stop", "do": "crash"}, 'write "delay" or "hang"'),
        ({"at": "start", "do": "refuse", "text": "no"}, 'write "crash", with its reason as "text"'),
        ({"at": "initialize", "do": "expire"}, 'the step "list"'),
        ({"at": "call", "do": "delay"}, '"delay" needs "seconds"'),
        ({"at": "call", "do": "delay", "seconds": float("inf")}, '"do": "hang"'),
        ({"at": "call", "do": "delay", "seconds": -1}, "a number from 0"),
        ({"at": "call", "do": "hang", "seconds": 1}, '"hang" takes no "seconds"'),
        ({"at": "call", "do": "flood"}, '"notifications" (how many) or "stderr"'),
        ({"at": "call", "do": "list_changed", "tools": "echo"}, 'a list of names, as ["echo", "new"]'),
        ({"at": "idle", "do": "crash"}, 'write for how long, as "after": 5'),
        ({"at": "call", "do": "crash", "after": 1}, 'put a "delay" in front'),
        ({"at": "list", "do": "hang", "tool": "echo"}, 'leave it out at "list"'),
        ({"at": "start", "do": "hang", "nth": 1}, 'say which "start"'),
        ({"at": "call", "do": "hang", "start": 0}, "leave it out for: each time"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(fault: Any, advice: str) -> None:
    assert advice in (problem_with(fault) or "")
    with pytest.raises(UsageError, match="Fault 2 of the script cannot be played: ") as caught:
        FaultScript.from_json(json.dumps([{"at": "call", "do": "hang"}, fault]))
    assert advice in str(caught.value)


@for_each("text", ["{", "null", "{}", b"\xff"])
def test_what_is_no_array_is_refused(text: str | bytes) -> None:
    with pytest.raises(UsageError, match=r"is not JSON|is an array, like"):
        FaultScript.from_json(text)


def test_a_fault_is_checked_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="This fault cannot be played"):
        Fault("stop", "crash")


def test_scripts_are_values() -> None:
    one, other = Fault("call", "crash", nth=2), Fault("idle", "hang", after=1.5)

    assert FaultScript.of(one, other) == FaultScript([one]) + FaultScript([other])
    assert list(FaultScript.of(one, other)) == [one, other]
    assert str(FaultScript.of(one, other)) == "crash at call (nth=2); hang at idle (after=1.5)"
    assert str(FaultScript()) == "nothing goes wrong"
    assert not FaultScript()


def test_the_words_of_a_fault_are_those_of_json() -> None:
    fault = Fault("call", "list_changed", tools=("a", "b"))
    assert fault.as_dict() == {"at": "call", "do": "list_changed", "tools": ["a", "b"]}
    assert Fault(**fault.as_dict()) == fault


def test_a_line_of_the_log_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    server = ScriptedServer(FaultScript(), tmp_path / "log")
    assert (server.events, server.starts, server.calls) == ([], 0, [])
    lines = [
        {"event": "started", "pid": 7},
        {"event": "heard", "method": "ping", "params": {}},
        {"event": "heard", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"event": "heard", "method": "tools/call", "params": {"name": "a\u2028b"}},
        {"event": "heard", "method": "ping", "params": {}},
        {"event": "fault", "number": 2, "fault": {"at": "call", "do": "crash"}},
        {"event": "stopped", "how": "stdin closed"},
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    server.log.write_text(text + '{"event": "sto', encoding="utf-8")
    assert server.events == lines
    assert (server.pids, server.starts, server.pings, server.cancelled) == ([7], 1, 2, 1)
    assert server.calls == [{"name": "a\u2028b"}]
    assert server.played == [(2, Fault("call", "crash"))]
    assert server.endings == ["stdin closed"]


# ---- the plan ------------------------------------------------------------------------------------------------------


def _due(plan: FaultPlan, step: str, tool: str | None = None) -> list[str]:
    return [entry.do for entry in plan.due(step, tool)]


def test_faults_of_one_step_are_due_in_their_order() -> None:
    script = FaultScript.of(
        Fault("call", "garbage"),
        Fault("list", "hang"),
        Fault("call", "delay", seconds=1),
        Fault("call", "crash"),
    )

    assert _due(FaultPlan(script.entries, 1), "call") == ["garbage", "delay", "crash"]


def test_a_fault_of_one_start_is_due_in_no_other() -> None:
    script = FaultScript.of(Fault("call", "crash", start=2))

    assert [_due(FaultPlan(script.entries, start), "call") for start in (1, 2, 3)] == [[], ["crash"], []]


def test_occurrences_are_counted_over_what_the_fault_means() -> None:
    plan = FaultPlan(
        FaultScript.of(Fault("call", "crash", tool="b", nth=2), Fault("call", "hang", nth=3)).entries, 1
    )

    assert [_due(plan, "call", tool) for tool in ("a", "b", "b", "b")] == [[], [], ["crash", "hang"], []]


def test_idle_times_are_each_due_by_themselves() -> None:
    plan = FaultPlan(
        FaultScript.of(Fault("idle", "hang", after=9), Fault("idle", "garbage", after=2, nth=2)).entries, 1
    )

    assert plan.idle_times() == [2, 9]
    assert [[entry.do for entry in plan.due_idle(after)] for after in (2, 9, 2)] == [
        [],
        ["hang"],
        ["garbage"],
    ]


# ---- the fake in memory --------------------------------------------------------------------------------------------


async def _ends(room: Greenroom, **arguments: Any) -> str:
    try:
        return (await room.call("far_echo", arguments)).text
    except CallError as error:
        return f"{error.code}: {error}"


@in_virtual_time
async def test_a_fake_plays_its_script_in_its_own_time() -> None:
    server = FakeServer()
    server.script = FaultScript.of(
        Fault("call", "refuse", text="no", code=-7, nth=1),
        Fault("call", "refuse", text="nay", nth=2),
        Fault("call", "delay", seconds=3, nth=3),
        Fault("idle", "list_changed", tools=("echo", "new"), after=2, nth=1),
        Fault("idle", "garbage", after=5),
        Fault("call", "crash", exit_code=0, text="bye", nth=4),
    )

    async with open_room({"far": server}) as room:
        await room.connect("far")
        said = [await _ends(room), await _ends(room)]
        assert said == ["call_failed: no", "call_failed: nay"]
        began = anyio.current_time()
        assert await _ends(room, n=3) == '{"n": 3}'
        assert anyio.current_time() - began == 3.0
        await anyio.sleep(1.5)
        connection = server.connections[0]
        assert len(room.tools()) == 1
        await anyio.sleep(1.0)
        assert sorted(target.original for target in room.tools()) == ["echo", "new"]
        await anyio.sleep(5.0)
        assert [fault.do for _, fault in server.played[-2:]] == ["list_changed", "garbage"]
        lost = await _ends(room)
        assert "exited with code 0" in lost
        assert "bye" in lost
        await anyio.sleep(1.0)
        assert (server.live, server.most_live, server.starts) == (0, 1, 1)
        connection.kill_now()
        assert server.live == 0


@in_virtual_time
async def test_a_fake_counts_what_is_alive_at_once_and_what_is_called_off() -> None:
    server = FakeServer(call_latency=60.0, list_latency=60.0)

    async with open_room({"far": server}, entries={"far": {"isolation": "per_session"}}) as room:
        await teach(room, "far")
        async with room.session("a") as one, room.session("b") as other:
            server.list_latency = 0.0
            with anyio.move_on_after(1.0):
                async with anyio.create_task_group() as tasks:
                    for session in (one, other):
                        tasks.start_soon(session.call, "far_echo")
            assert (server.live, server.most_live, server.cancelled) == (2, 2, 2)
            server.list_latency = 60.0
            server.announce_tools()
            await anyio.sleep(1.0)
    assert (server.live, server.most_live, server.cancelled) == (0, 2, 2)


@in_virtual_time
async def test_a_fake_that_is_left_is_gone_and_the_most_that_lived_is_remembered() -> None:
    server, one, other = FakeServer(stop_latency=60.0), Recorder(), Recorder()
    changed = ("notifications/tools/list_changed", None)
    connector = fake_connectors({"a": server})(None, Address("a"), 1)  # pyright: ignore[reportArgumentType]
    async with connector.open(one), connector.open(other):
        server.announce_tools(only=server.connections[1])
        assert (one.notifications, other.notifications) == ([], [changed])
        server.announce_tools()
        assert (one.notifications, other.notifications) == ([changed], [changed, changed])
        assert (server.starts, server.live, server.most_live) == (2, 2, 2)
    assert (server.live, server.connections) == (0, []), "without being asked to stop"
    async with connector.open(Recorder()):
        assert (server.starts, server.live, server.most_live) == (3, 1, 2)


# ---- the far end of a fake, seen from its peer ---------------------------------------------------------------------


class _Clocked(Recorder):
    """Also when it was notified, or a note was made."""

    def __init__(self) -> None:
        super().__init__()
        self.told_at: list[float] = []

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        super().on_notification(method, params)
        self.told_at.append(anyio.current_time())

    def on_note(self, code: NoteCode, text: str) -> None:
        super().on_note(code, text)
        self.told_at.append(anyio.current_time())


@asynccontextmanager
async def _reached(server: FakeServer) -> AsyncGenerator[tuple[Any, Recorder]]:
    """One start of the fake, without a room: its connection, and what its peer heard."""
    heard = Recorder()
    async with fake_connectors({"a": server})(cast("Any", None), Address("a"), 1).open(heard) as connection:
        yield connection, heard


def _asked(connection: Any, method: str, params: dict[str, Any] | None = None) -> Call:
    call = Call(method, params)
    connection.request(call)
    return call


INITIALIZE = {"protocolVersion": "2025-06-18"}
EACH_METHOD: list[tuple[str, dict[str, Any] | None, Any]] = [
    (
        "initialize",
        INITIALIZE,
        {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "fake", "version": "1"},
        },
    ),
    ("tools/list", None, {"tools": [tool("echo", "Says it back")]}),
    (
        "tools/call",
        {"name": "echo", "arguments": {"b": 1, "a": 2}},
        {"content": [{"type": "text", "text": '{"a": 2, "b": 1}'}]},
    ),
    ("tools/call", {"name": "echo"}, {"content": [{"type": "text", "text": "{}"}]}),
    ("ping", None, {}),
]
LATENCIES = {"initialize": "initialize", "tools/list": "list", "tools/call": "call", "ping": "ping"}


@pytest.mark.parametrize(("method", "params", "answer"), EACH_METHOD)
@in_virtual_time
async def test_a_fake_answers_each_request_after_its_own_latency(
    method: str, params: dict[str, Any] | None, answer: Any
) -> None:
    for latency in LATENCIES.values():
        server = FakeServer()
        setattr(server, f"{latency}_latency", 3.0)
        async with _reached(server) as (connection, _):
            call, began = _asked(connection, method, params), anyio.current_time()
            assert (call.reach, call.sent_at, call.ends) == (Reach.SENT, [Reach.SENT], [])
            await anyio.sleep(1.0)
            if latency == LATENCIES[method]:
                assert (call.ends, connection.last_heard) == ([], 0.0)
                await anyio.sleep(2.5)
                assert connection.last_heard == began + 3.0
            assert (call.reach, connection.is_waiting(call)) == (Reach.ANSWERED, False)
            assert [(json.loads(result or b""), error) for result, error in call.ends] == [(answer, None)]
        assert (server.pings, len(server.calls)) == (method == "ping", method == "tools/call")
        assert server.cancelled == 0


@in_virtual_time
async def test_a_fake_refuses_in_the_words_that_it_was_given() -> None:
    server = FakeServer(call_error=(-7, "not today"), refuse_initialize="no staff")
    async with _reached(server) as (connection, _):
        asked = [
            _asked(connection, method, INITIALIZE) for method in ("tools/call", "initialize", "prompts/list")
        ]
        await anyio.sleep(1.0)
    assert [(error.code, error.message) for call in asked for _, error in call.ends if error] == [
        (-7, "not today"),
        (-32603, "no staff"),
        (-32601, "Method not found: prompts/list"),
    ]
    server.script = FaultScript.of(Fault("call", "refuse", text="nay", code=0))
    async with _reached(server) as (connection, _):
        call = _asked(connection, "tools/call")
        await anyio.sleep(1.0)
    assert [(error.code, error.message) for _, error in call.ends if error] == [(0, "nay")]
    server.script = FaultScript.of(
        Fault("list", "refuse", text="no list"), Fault("call", "drop_answer", tool="b")
    )
    async with _reached(server) as (connection, _):
        other = _asked(connection, "tools/list")
        calls = [_asked(connection, "tools/call", {"name": name}) for name in ("a", "b")]
        await anyio.sleep(1.0)
    assert [(error.code, error.message) for _, error in other.ends if error] == [(-32603, "no list")]
    assert [len(call.ends) for call in calls] == [1, 0]
    assert server.calls[-2:] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"refuse_start": "no lights"}, ConnectFailed, "no lights"),
        ({"start_error": OSError("out of doors")}, OSError, "out of doors"),
    ],
)
@in_virtual_time
async def test_a_fake_that_cannot_be_started_counts_the_start_and_nothing_else(
    more: dict[str, Any], error: type[Exception], said: str
) -> None:
    server = FakeServer(**more)
    with pytest.raises(error, match=said) as caught:
        async with _reached(server):
            pass
    assert getattr(caught.value, "server", "a") == "a"
    assert (server.starts, server.live, server.most_live, server.connections) == (1, 0, 0, [])


def test_a_strict_fake_refuses_what_is_no_json_and_another_takes_it(backend: str) -> None:
    nested: list[Any] = []
    nested.append(nested)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    async def body() -> None:
        for odd in ({1, 2}, nested, deep):
            async with _reached(FakeServer(strict_json=True)) as (connection, _):
                with pytest.raises(UsageError, match="cannot be sent as JSON"):
                    _asked(connection, "ping", {"odd": odd})
                assert not connection._open
            async with _reached(FakeServer()) as (connection, _):
                call = _asked(connection, "ping", {"odd": odd})
                await anyio.sleep(1.0)
                assert len(call.ends) == 1
        while deep:  # piece by piece: its end would nest as deep
            deep[:] = deep[0]

    run_virtual(backend, body)


@in_virtual_time
async def test_a_full_pipe_takes_nothing_and_a_deaf_server_takes_all_and_says_nothing() -> None:
    server = FakeServer(blocked=True)
    async with _reached(server) as (connection, _):
        call = _asked(connection, "tools/call")
        await anyio.sleep(9.0)
        assert (call.reach, call.sent_at, call.ends, server.calls) == (Reach.NOT_SENT, [], [], [])
        assert connection.is_waiting(call)
    server = FakeServer(deaf=True)
    async with _reached(server) as (connection, _):
        call = _asked(connection, "tools/call")
        await anyio.sleep(9.0)
        assert (call.reach, call.ends, len(server.calls)) == (Reach.SENT, [], 1)
        assert connection.last_heard == 0.0


@in_virtual_time
async def test_what_a_fake_says_is_a_sign_of_life_even_when_nobody_wants_it_any_more() -> None:
    server = FakeServer(call_latency=5.0)
    async with _reached(server) as (connection, heard):
        call = _asked(connection, "tools/call")
        await anyio.sleep(1.0)
        for number, speak in enumerate(
            (
                lambda: connection.note(NoteCode.JUNK, "junk on stdout: by its script"),
                lambda: connection.tell("notifications/message", {"n": 1}),
                lambda: connection.progress({"progress": 1}),
            ),
            2,
        ):
            speak()
            assert connection.last_heard == number - 1
            await anyio.sleep(1.0)
        connection.abandon(call, "enough")
        assert (server.cancelled, call.ends) == (1, [])
        await anyio.sleep(5.0)
        assert (connection.last_heard, call.ends) == (5.0, [])
        assert heard.notes == ["junk on stdout: by its script"]
        assert heard.notifications == [("notifications/message", {"n": 1})]
        assert call.seen == [1]


@pytest.mark.parametrize(
    ("fault", "text", "code", "tail"),
    [
        (Fault("call", "crash", exit_code=0, text="bye"), "exited with code 0", 0, ("bye",)),
        (Fault("call", "crash", signal="SIGSEGV"), "killed by SIGSEGV", -11, ()),
        (Fault("call", "crash", signal="SIGKILL", text="oh"), "killed by SIGKILL", -9, ("oh",)),
    ],
)
@in_virtual_time
async def test_a_fake_crashes_as_a_process_does(
    fault: Fault, text: str, code: int, tail: tuple[str, ...]
) -> None:
    server = FakeServer(script=FaultScript.of(fault))
    async with _reached(server) as (connection, heard):
        call, other = _asked(connection, "tools/call"), _asked(connection, "ping")
        await anyio.sleep(1.0)
        assert [(each.text, each.exit_code, each.stderr_tail, each.loss) for each in heard.reasons] == [
            (text, code, tail, Reason.DIED)
        ]
        assert (call.ends, call.reach, server.live) == ([], Reach.SENT, 1)
        assert not connection.is_waiting(call), "it was left to its owner"
        server.crash()
        await anyio.sleep(1.0)
        assert len(heard.reasons) == 1
        assert (heard.after_lost, len(other.ends) <= 1) == ([], True)
    server.script = FaultScript()
    async with _reached(server) as (connection, heard):
        server.crash("it went away", 7)
        assert [(each.text, each.exit_code) for each in heard.reasons] == [("it went away", 7)]


@in_virtual_time
async def test_a_session_that_has_expired_ran_nothing_since() -> None:
    server = FakeServer(script=FaultScript.of(Fault("call", "expire")), ping_latency=1.0)
    async with _reached(server) as (connection, heard):
        call = _asked(connection, "tools/call")
        await anyio.sleep(0.5)
        assert (call.reach, call.ends) == (Reach.NOT_SENT, [])
        assert [(each.text, each.exit_code, each.loss) for each in heard.reasons] == [
            ("session expired: HTTP 404", None, Reason.EXPIRED)
        ]
        late = _asked(connection, "ping")
        await anyio.sleep(2.0)
        assert len(heard.reasons) == 1
        assert late.reach is Reach.SENT, "the connection was over, and nobody knows"


@pytest.mark.parametrize(
    ("more", "grace", "seconds"),
    [
        ({"stop_latency": 3.0, "wreck_latency": 9.0}, 5.0, 3.0),
        ({"stop_latency": 8.0}, 5.0, 5.0),
        ({"script": FaultScript.of(Fault("stop", "delay", seconds=2)), "stop_latency": 1.0}, 5.0, 3.0),
        ({"script": FaultScript.of(Fault("stop", "hang"))}, 5.0, 5.0),
        ({"script": FaultScript.of(Fault("call", "hang")), "stop_latency": 3.0}, 5.0, 0.0),
    ],
)
@in_virtual_time
async def test_a_fake_ends_in_its_own_time_or_when_it_is_killed(
    more: dict[str, Any], grace: float, seconds: float
) -> None:
    server = FakeServer(**more)
    async with _reached(server) as (connection, _):
        call = _asked(connection, "tools/call")
        await anyio.sleep(1.0)
        began = anyio.current_time()
        await connection.stop(grace)
        assert anyio.current_time() - began == seconds
        assert (server.live, connection.is_over, connection.is_waiting(call)) == (0, True, False)


@in_virtual_time
async def test_the_rest_of_a_crashed_fake_takes_its_own_time_to_go() -> None:
    server = FakeServer(stop_latency=3.0, wreck_latency=2.0)
    async with _reached(server) as (connection, _):
        server.crash()
        began = anyio.current_time()
        await connection.stop(5.0)
        assert (anyio.current_time() - began, server.live) == (2.0, 0)


@in_virtual_time
async def test_who_hangs_as_it_starts_never_reads_and_who_is_late_reads_then() -> None:
    for fault, ends in ((Fault("start", "hang"), 0), (Fault("start", "delay", seconds=4), 1)):
        server = FakeServer(script=FaultScript.of(fault))
        async with _reached(server) as (connection, _):
            call = _asked(connection, "ping")
            await anyio.sleep(3.9)
            assert call.ends == []
            await anyio.sleep(0.2)
            assert len(call.ends) == ends
            assert [each.do for _, each in server.played] == [fault.do]


@in_virtual_time
async def test_a_late_answer_comes_when_its_request_is_cancelled_and_a_second_one_is_a_note() -> None:
    server = FakeServer(script=FaultScript.of(Fault("call", "answer_late"), Fault("ping", "answer_twice")))
    async with _reached(server) as (connection, heard):
        call = _asked(connection, "tools/call")
        await anyio.sleep(2.0)
        assert (call.ends, connection.last_heard, len(connection._far.late)) == ([], 0.0, 1)
        connection.abandon(call, "enough")
        assert (call.ends, connection.last_heard, connection._far.late) == ([], 2.0, {})
        call = _asked(connection, "tools/call")
        connection.abandon(call, "at once")
        await anyio.sleep(1.0)
        assert connection._far.late == {}, "nobody waits for it, so it is not kept"
        assert heard.notes == []
        ping = _asked(connection, "ping")
        await anyio.sleep(1.0)
        assert (len(ping.ends), heard.notes) == (1, ["a late or second answer: by its script"])


@in_virtual_time
async def test_a_list_is_the_one_that_there_was_when_it_was_asked_for() -> None:
    server = FakeServer(list_latency=2.0)
    async with _reached(server) as (connection, _):
        first = _asked(connection, "tools/list")
        await anyio.sleep(1.0)
        server.tools = [tool("new")]
        second = _asked(connection, "tools/list")
        await anyio.sleep(0.5)
        connection._far.change_tools([])
        none = _asked(connection, "tools/list")
        await anyio.sleep(3.0)
        names = [
            [each["name"] for each in json.loads(call.ends[0][0] or b"")["tools"]]
            for call in (first, second, none)
        ]
        assert names == [["echo"], ["new"], []]


@in_virtual_time
async def test_a_fake_is_idle_since_its_last_answer_and_each_idle_time_counts_from_there() -> None:
    faults = [Fault("idle", "list_changed", tools=("echo",), after=after) for after in (2, 5)]

    server = FakeServer(script=FaultScript.of(*faults), call_latency=3.0)
    async with _reached(server) as (connection, _):
        await anyio.sleep(1.0)
        one, other = (_asked(connection, "tools/call") for _ in range(2))
        connection.hooks = heard = _Clocked()
        began = anyio.current_time()
        await anyio.sleep(12.0)
        assert (len(one.ends), len(other.ends)) == (1, 1)
        assert [at - began for at in heard.told_at] == [5.0, 8.0]
        server.crash()
        await anyio.sleep(9.0)
        assert (heard.after_lost, len(server.played)) == ([], 2)


@pytest.mark.parametrize(
    ("before", "due"),
    [((), 4.0), ((Fault("start", "delay", seconds=1),), 5.0), ((Fault("start", "hang"),), None)],
)
@in_virtual_time
async def test_a_fake_that_nobody_asks_anything_is_idle_from_when_it_reads(
    before: tuple[Fault, ...], due: float | None
) -> None:
    idle = Fault("idle", "garbage", after=4, nth=1)
    server = FakeServer(script=FaultScript.of(*before, idle), start_latency=2.0)
    began = anyio.current_time()
    async with _reached(server) as (connection, _):
        assert (anyio.current_time() - began, server.live) == (2.0, 1)
        began = anyio.current_time()
        connection.hooks = heard = _Clocked()
        await anyio.sleep(20.0)
        assert [at - began for at in heard.told_at] == ([] if due is None else [due])
        assert [fault.do for _, fault in server.played][len(before) :] == ["garbage"] * len(heard.told_at)


# ---- the executable ------------------------------------------------------------------------------------------------


def _run(*options: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "greenroom.testing.servers.scripted", *options]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--scrpt", "[]"], "it knows --script FILE|JSON and --log FILE"),
        (["--script"], "--script needs a value"),
        (["--script", "/nowhere"], "No such file"),
        (["--script", '[{"at": "cal", "do": "hang"}]'], 'did you mean "call"?'),
        (["--script", '[{"at": "call", "do": "expire"}]'], "use FakeServer for that"),
        (["--script", '[{"at": "list", "do": "crash_before"}]'], "use FakeServer for that"),
        (["--script", '[{"at": "call", "do": "hang", "start": 2}]'], "give --log FILE"),
        (["--script", "[1]"], "a fault is an object"),
    ],
)
def test_the_executable_refuses_nonsense_before_it_serves(options: list[str], advice: str) -> None:
    done = _run(*options)

    assert (done.returncode, done.stdout) == (2, "")
    assert advice in done.stderr


def test_the_executable_takes_a_file_and_keeps_a_log(tmp_path: Path) -> None:
    server = ScriptedServer(FaultScript.of(Fault("ping", "crash", exit_code=7, start=2)), tmp_path / "log")
    file = tmp_path / "script.json"
    file.write_text(server.script.to_json())
    ping = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'

    codes = [_run("--script", str(file), "--log", str(server.log), said=ping).returncode for _ in range(3)]

    assert codes == [0, 7, 0]
    assert (server.starts, server.pings, server.calls, server.cancelled) == (3, 3, [], 0)
    assert server.played == [(2, Fault("ping", "crash", exit_code=7, start=2))]
    assert server.endings == ["end of stdin", "exit code 7", "end of stdin"]
    assert len(set(server.pids)) == 3


def test_an_executable_that_closes_slowly_is_not_hurried(tmp_path: Path) -> None:
    fault = Fault("stop", "delay", seconds=0.3)
    server = ScriptedServer(FaultScript.of(fault), tmp_path / "log")
    options = ("--script", server.script.to_json(), "--log", str(server.log))
    command = [sys.executable, "-m", "greenroom.testing.servers.scripted", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.close()
        until = time.monotonic() + PATIENCE
        while not server.played and time.monotonic() < until:
            time.sleep(0.005)
        child.terminate()
        assert child.wait(PATIENCE) == 0
    assert (server.played, server.endings) == ([(1, fault)], ["end of stdin"])
