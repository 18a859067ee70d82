"""Fault scripts as data: what is refused and with which words, the round trip, which faults are due when."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from greenroom import UsageError
from greenroom.testing import Fault, FaultScript, ScriptedServer
from greenroom.testing._cues import Cues
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


# ---- cues ----------------------------------------------------------------------------------------------------------


def _due(cues: Cues, step: str, tool: str | None = None) -> list[str]:
    return [entry.do for entry in cues.due(step, tool)]


def test_faults_of_one_step_are_due_in_their_order() -> None:
    script = FaultScript.of(
        Fault("call", "garbage"),
        Fault("list", "hang"),
        Fault("call", "delay", seconds=1),
        Fault("call", "crash"),
    )

    assert _due(Cues(script.entries, 1), "call") == ["garbage", "delay", "crash"]


def test_a_fault_of_one_start_is_due_in_no_other() -> None:
    script = FaultScript.of(Fault("call", "crash", start=2))

    assert [_due(Cues(script.entries, start), "call") for start in (1, 2, 3)] == [[], ["crash"], []]


def test_occurrences_are_counted_over_what_the_fault_means() -> None:
    cues = Cues(
        FaultScript.of(Fault("call", "crash", tool="b", nth=2), Fault("call", "hang", nth=3)).entries, 1
    )

    assert [_due(cues, "call", tool) for tool in ("a", "b", "b", "b")] == [[], [], ["crash", "hang"], []]


def test_idle_times_are_each_due_by_themselves() -> None:
    cues = Cues(
        FaultScript.of(Fault("idle", "hang", after=9), Fault("idle", "garbage", after=2, nth=2)).entries, 1
    )

    assert cues.idle_times() == [2, 9]
    assert [[entry.do for entry in cues.due_idle(after)] for after in (2, 9, 2)] == [
        [],
        ["hang"],
        ["garbage"],
    ]


def test_the_tables_agree_with_each_other() -> None:
    for name, deed in DEEDS.items():
        assert set(deed.steps) <= STEPS.keys(), name
        assert {*deed.needs, *deed.takes} <= VALUES.keys(), name
        assert deed.elsewhere or set(deed.steps) == STEPS.keys(), f"{name}: what to write at another step?"


# ---- the executable ------------------------------------------------------------------------------------------------


def _run(*options: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "greenroom.testing.servers.scripted", *options]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=30)


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
