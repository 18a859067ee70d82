"""Fault scripts as data: what is refused and with which words, the round trip, which faults are due when."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from tests.support import run, run_virtual
from tests.support.rooms import open_room, teach
from tests.support.stdio import Recorder

from greenroom import CallError, Greenroom, UsageError
from greenroom.actors._peer import Exchange, WhenEnded
from greenroom.protocol.address import Address
from greenroom.testing import FakeServer, Fault, FaultScript, ScriptedServer
from greenroom.testing._fake import fake_connectors
from greenroom.testing._fake_connection import TAIL, FakeConnection
from greenroom.testing._fault_plan import FaultPlan, perform
from greenroom.testing._vocabulary import DEEDS, STEPS, VALUES, problem_with
from greenroom.testing.strategies import fault_scripts


@settings(deadline=None)
@given(fault_scripts())
def test_a_script_survives_json(script: FaultScript) -> None:
    assert FaultScript.from_json(script.to_json()) == script
    assert FaultScript.from_json(script.to_json().encode()) == script


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ({}, 'a fault needs "at", one of start, greeting'),
        (7, "a fault is an object like"),
        ({"at": "cal", "do": "crash"}, 'did you mean "call"?'),
        ({"at": [], "do": "crash"}, "is none of start, greeting"),
        ({"at": "call", "do": "close_slowly"}, "is none of delay, hang"),
        ({"at": "call", "do": "crash", "exitcode": 3}, 'did you mean "exit_code"?'),
        ({"at": "call", "do": "crash", "exit_code": True}, "must be a whole number from 0 to 255"),
        ({"at": "call", "do": "crash", "exit_code": 3, "signal": "SIGKILL"}, "leave out one of them"),
        ({"at": "call", "do": "crash", "signal": 9}, "one of SIGKILL"),
        ({"at": "stop", "do": "crash"}, 'write "delay" or "hang"'),
        ({"at": "start", "do": "refuse", "text": "no"}, 'write "crash", with its reason as "text"'),
        ({"at": "greeting", "do": "expire"}, 'the step "list"'),
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


@pytest.mark.parametrize("text", ["{", "null", "{}", b"\xff"])
def test_what_is_no_array_is_refused(text: str | bytes) -> None:
    with pytest.raises(UsageError, match=r"is no JSON|is an array, like"):
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


def test_the_tables_agree_with_each_other() -> None:
    for name, deed in DEEDS.items():
        assert set(deed.steps) <= STEPS.keys(), name
        assert {*deed.needs, *deed.takes} <= VALUES.keys(), name
        assert deed.elsewhere or set(deed.steps) == STEPS.keys(), f"{name}: what to write at another step?"


class Deeds:
    """A player that only remembers. `over_at`: it is over once so many faults were noted."""

    def __init__(self, over_at: int = 99) -> None:
        self.done: list[Any] = []
        self._noted, self._over_at = 0, over_at

    @property
    def is_over(self) -> bool:
        return self._noted >= self._over_at

    def note_fault(self, fault: Any) -> None:
        self._noted += 1

    def talk_junk(self) -> None:
        self.done.append("junk")

    def flood(self, notifications: int, stderr: int) -> None:
        self.done.append((notifications, stderr))

    def change_tools(self, names: Any) -> None:
        self.done.append(names)

    def hang(self) -> None:
        self.done.append("hang")

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        self.done.append((exit_code, signal_name, last_words))

    def expire(self) -> None:
        self.done.append("expire")


def _performed(player: Deeds, *faults: Fault) -> tuple[list[float], str | None]:
    """The waits, and what decides how the step is answered."""
    playing, waits = perform(FaultScript.of(*faults).entries, player), list[float]()
    while True:
        try:
            waits.append(next(playing))
        except StopIteration as end:
            return waits, end.value and end.value.do


def test_each_deed_is_done_with_its_own_values() -> None:
    deeds = Deeds()
    faults = (
        Fault("call", "delay", seconds=2.5),
        Fault("call", "garbage"),
        Fault("call", "flood", notifications=3),
        Fault("call", "flood", stderr=7),
        Fault("call", "list_changed", tools=("a", "b")),
        Fault("call", "delay", seconds=0),
        Fault("call", "answer_twice"),
        Fault("call", "crash", exit_code=0, text="bye"),
    )
    assert _performed(deeds, *faults) == ([2.5, 0], "crash")
    assert deeds.done == ["junk", (3, 0), (0, 7), ("a", "b"), (0, None, "bye")]


@pytest.mark.parametrize(
    ("faults", "decides", "done"),
    [
        ([Fault("call", "crash")], "crash", [(1, None, None)]),
        ([Fault("call", "crash", signal="SIGKILL")], "crash", [(1, "SIGKILL", None)]),
        ([Fault("call", "hang"), Fault("call", "garbage")], "hang", ["hang"]),
        ([Fault("call", "expire"), Fault("call", "garbage")], "expire", ["expire"]),
        ([Fault("call", "answer_twice"), Fault("call", "garbage")], "answer_twice", ["junk"]),
        ([Fault("call", "answer_late"), Fault("call", "garbage")], "answer_late", []),
        ([Fault("call", "drop_answer"), Fault("call", "garbage")], "drop_answer", []),
        ([Fault("call", "refuse", text="no"), Fault("call", "garbage")], "refuse", []),
        ([Fault("call", "garbage")], None, ["junk"]),
    ],
)
def test_what_decides_the_answer_and_what_nothing_follows(
    faults: list[Fault], decides: str | None, done: list[Any]
) -> None:
    deeds = Deeds()
    assert _performed(deeds, *faults) == ([], decides)
    assert deeds.done == done


def test_who_is_over_plays_nothing_more() -> None:
    deeds = Deeds(over_at=1)
    waits, decides = _performed(deeds, Fault("call", "delay", seconds=1), Fault("call", "garbage"))
    assert (waits, decides, deeds.done) == ([1], "garbage", [])


def test_a_fault_of_one_start_that_is_counted_is_due_in_no_other() -> None:
    script = FaultScript.of(Fault("call", "crash", start=2, nth=1))

    assert [_due(FaultPlan(script.entries, start), "call") for start in (1, 2)] == [[], ["crash"]]


# ---- the fake in memory --------------------------------------------------------------------------------------------


async def _ends(room: Greenroom, **arguments: Any) -> str:
    try:
        return (await room.call("far_echo", arguments)).text
    except CallError as error:
        return f"{error.code}: {error}"


def test_a_fake_plays_its_script_in_its_own_time(backend: str) -> None:
    server = FakeServer()
    server.script = FaultScript.of(
        Fault("call", "refuse", text="no", code=-7, nth=1),
        Fault("call", "refuse", text="nay", nth=2),
        Fault("call", "delay", seconds=3, nth=3),
        Fault("idle", "list_changed", tools=("echo", "new"), after=2, nth=1),
        Fault("idle", "garbage", after=5),
        Fault("call", "crash", exit_code=0, text="bye", nth=4),
    )

    async def body() -> None:
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

    run_virtual(backend, body)


def test_a_fake_counts_what_is_alive_at_once_and_what_is_called_off(backend: str) -> None:
    server = FakeServer(call_latency=60.0, list_latency=60.0)

    async def body() -> None:
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

    run_virtual(backend, body)


def test_a_fake_that_is_left_is_gone_and_the_most_that_lived_is_remembered(backend: str) -> None:
    server, heard = FakeServer(stop_latency=60.0), list[tuple[str, str]]()

    def hooks(name: str) -> Any:
        return SimpleNamespace(on_notification=lambda method, _params: heard.append((name, method)))

    async def body() -> None:
        connector = fake_connectors({"a": server})(None, Address("a"), 1)  # pyright: ignore[reportArgumentType]
        async with connector.open(hooks("one")), connector.open(hooks("other")):
            server.announce_tools(only=server.connections[1])
            assert heard == [("other", "notifications/tools/list_changed")]
            server.announce_tools()
            assert [name for name, _ in heard[1:]] == ["one", "other"]
            assert (server.starts, server.live, server.most_live) == (2, 2, 2)
        assert (server.live, server.connections) == (0, []), "without being asked to stop"
        async with connector.open(hooks("third")):
            assert (server.starts, server.live, server.most_live) == (3, 1, 2)

    run_virtual(backend, body)


# ---- the executable ------------------------------------------------------------------------------------------------


def _run(*options: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "greenroom.testing.servers.scripted", *options]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--scrpt", "[]"], "it knows --script FILE|JSON and --log FILE"),
        (["--script"], "--script needs a value"),
        (["--script", "/nowhere"], "No such file"),
        (["--script", '[{"at": "cal", "do": "hang"}]'], 'did you mean "call"?'),
        (["--script", '[{"at": "call", "do": "expire"}]'], "use FakeServer for that"),
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


def test_a_server_that_never_started_has_an_empty_log(tmp_path: Path) -> None:
    server = ScriptedServer(FaultScript(), tmp_path / "log")

    assert (server.starts, server.events, server.played) == (0, [], [])


def test_a_tool_that_comes_back_is_the_one_that_the_server_has(backend: str) -> None:
    own = [{"name": "echo", "description": "says it again", "inputSchema": {"type": "object"}}]

    async def main() -> None:
        connection = FakeConnection(FakeServer(tools=own), 1, Recorder(), cast("Any", None))
        answers = connection._answers
        for names in (["new"], ["echo", "new"]):
            answers.change_tools(names)
            assert [tool["name"] for tool in answers._tools or ()] == names
        assert (answers._tools or [])[0] is own[0]

    run(backend, main)


def test_the_tail_of_a_fakes_stderr_is_its_end(backend: str) -> None:
    async def main() -> None:
        hooks = Recorder()
        connection = FakeConnection(FakeServer(), 1, hooks, cast("Any", None))
        for number in range(TAIL + 2):
            connection.write_stderr(f"line {number}")
        connection.crash(3, None, "the last one")
        last = [f"line {number}" for number in range(TAIL + 2)][1 - TAIL :]
        assert hooks.reasons[0].stderr_tail == (*last, "the last one")

    run(backend, main)


def test_only_cancelled_calls_count_as_cancelled(backend: str) -> None:
    async def main() -> None:
        server = FakeServer()
        connection = FakeConnection(server, 1, Recorder(), cast("Any", None))
        for method, count in (("ping", 0), ("tools/list", 0), ("tools/call", 1), ("initialize", 1)):
            exchange = Exchange(WhenEnded(lambda *_: None), method, None)
            connection._open.add(exchange)
            connection.abandon(exchange, "x")
            connection.abandon(exchange, "again")
            assert server.cancelled == count
        assert not connection._open

    run(backend, main)
