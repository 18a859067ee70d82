"""`greenroom approve`, and the keys of `greenroom top`: a person allows a call of a real gateway at a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE
from tests.support.whole import RawClient, direct_door, whole
from tests.test_cli_top import read_until

from greenroom.gateway import _control_client as control
from greenroom.gateway._cli import _top
from greenroom.gateway._cli._common import load
from greenroom.gateway._cli._main import run
from greenroom.gateway._cli._top_calls import DOWN, UP, WaitingCalls
from greenroom.gateway._cli._top_desks import Desks
from greenroom.gateway._control_place import identity

# ---- the head of the screen ---------------------------------------------------------------------------------------


def waiting(*numbers: int, count: int | None = None, question: str | None = None, pid: int = 1) -> Any:
    text = 'Greenroom asks before it calls the tool "do" of the server "s".\nArguments: {"n":1}\nAllow this call?'
    rest = {"server": "s", "tool": "s_do", "session": "ann", "waiting": 1.0, "left": 9.0, "pid": pid}
    calls = [{"number": number, "question": question or text, **rest} for number in numbers]
    return calls, len(calls) if count is None else count


def said(calls: WaitingCalls, width: int = 100, height: int = 50) -> str:
    return "\n".join(text for text, _ in calls.lines(width, height))


class Decided:
    def __init__(self, error: str | None = None) -> None:
        self.all: list[tuple[int, int, str]] = []
        self.error = error

    def __call__(self, pid: int, number: int, verdict: str) -> str | None:
        self.all.append((pid, number, verdict))
        return self.error


@pytest.mark.parametrize(("key", "verdict"), [("y", "once"), ("s", "session"), ("n", "deny")])
def test_a_key_decides_about_the_call_that_was_chosen(key: str, verdict: str) -> None:
    calls, decided = WaitingCalls(), Decided()
    calls.see(*waiting(7, 8, 9))
    assert not calls.press(key, decided), "nothing is chosen by itself"
    assert "Choose a call first" in said(calls)
    assert calls.press("\t", decided)
    assert calls.press(DOWN, decided)
    assert calls.marked == (1, 8)
    assert "▶ 8 s_do of s, for ann, 9 s left" in said(calls)
    assert said(calls).count("Allow this call?") == 1, "only the chosen one is shown in full"
    calls.press(key, decided)
    assert decided.all == [(1, 8, verdict)]
    assert "Call 8: " in said(calls)
    calls.press(key, decided)
    assert len(decided.all) == 1, "an answered call is not chosen any more"


@pytest.mark.parametrize(("keys", "marked"), [([UP], 9), (["k", "k"], 8), (["j"] * 4, 7), ([UP, DOWN], 7)])
def test_the_choice_goes_round(keys: list[str], marked: int) -> None:
    calls = WaitingCalls()
    calls.see(*waiting(7, 8, 9))
    for key in keys:
        calls.press(key, Decided())
    assert calls.marked == (1, marked)


def test_when_the_chosen_call_goes_away_no_other_is_chosen() -> None:
    """The key that was meant for it would allow another."""
    calls, decided = WaitingCalls(), Decided()
    calls.see(*waiting(7, 8))
    calls.press("\t", decided)
    calls.see(*waiting(7, 8, 9))
    assert calls.marked == (1, 7)
    calls.see(*waiting(8, 9))
    calls.press("y", decided)
    assert (decided.all, calls.marked) == ([], None)
    calls.press("\t", decided)
    calls.see([*waiting(8, pid=2)[0]], 1)
    calls.press("y", decided)
    assert not decided.all


def test_a_late_key_is_told_why_and_text_from_outside_stays_text() -> None:
    calls = WaitingCalls()
    calls.see(*waiting(7, question='asks\nArguments: {"a":"\x1b[2J\u202e' + "x" * 3_000 + '"}\nAllow?'))
    assert "\x1b" not in said(calls)
    assert max(map(len, said(calls).splitlines()[2:])) <= 100
    calls.press("\t", Decided())
    assert "\x1b" not in said(calls)
    assert "does not fit into this window" in said(calls, 80, 24)
    assert "does not fit" not in said(calls, 200, 60)
    calls.press("y", Decided("Call 7 has been refused already."))
    assert "refused already" in said(calls)
    calls.see(*waiting())
    assert said(calls) == "Call 7 has been refused already.", "also when nothing waits any more"


def test_many_calls_leave_room_for_the_table() -> None:
    calls = WaitingCalls()
    calls.see(*waiting(*range(1, 101), count=1_000))
    assert len(said(calls).splitlines()) < 15
    assert "1000 calls wait" in said(calls)
    assert "and 992 more" in said(calls)


def test_keys_that_were_pressed_before_a_call_was_shown_in_full_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []
    typed = ["\t", "y", "q"]

    class Typed:
        can_type = True

        def within(self, seconds: float) -> str:
            did.append(typed[0])
            return typed.pop(0)

        def forget(self) -> None:
            did.append("forgot")

    class OneDesk:
        def __init__(self, *_: object) -> None: ...

        def look(self, watching: float | None) -> Any:
            assert watching == 0.2 + 4.0
            return waiting(7)

        def decide(self, pid: int, number: int, verdict: str) -> None:
            did.append((number, verdict))

        def close(self) -> None:
            did.append("closed")

    monkeypatch.setattr(_top, "Desks", OneDesk)
    monkeypatch.setattr(control, "find_gateway", lambda *_: None)
    _top._watch("none", None, 0.2, Typed())
    assert did == ["\t", "forgot", "y", (7, "once"), "q", "closed"]


# ---- real processes -----------------------------------------------------------------------------------------------


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, os.fspath(tmp_path / "cache" if "CACHE" in name else tmp_path))
    return ["--config", os.fspath(tmp_path / "mcp.json")]


@pytest.fixture
def door(tmp_path: Path, where: list[str]) -> Iterator[RawClient]:
    """A gateway whose client cannot be asked."""
    with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"]) as client:
        client.greet()
        client.ask("tools/list")
        yield client


def asked(*words: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def held(door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str], **arguments: Any) -> Any:
    """The id of a call that waits, and what is listed of it."""
    asked("approve", *where, capsys=capsys)
    number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "hi", **arguments}})
    while not (calls := asked("approve", *where, capsys=capsys)["approvals"]):
        assert not door.is_answered(number)
        door.read(0.05)
    return number, calls[0]


@pytest.mark.parametrize("option", [None, "--session", "--deny"])
def test_a_call_waits_until_another_process_allows_or_refuses_it(
    door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str], option: str | None
) -> None:
    number, call = held(door, where, capsys, more="\x1b[31mred")
    assert (call["tool"], call["session"], call["pid"]) == ("w_echo", "stdio", door.process.pid)
    assert run(["status", *where]) == 0
    assert "1 call waits for approval: greenroom approve" in capsys.readouterr().out
    assert asked("status", *where, capsys=capsys)["waitingForApproval"] == 1
    assert run(["top", "--once", *where]) == 0
    assert "1 call waits for approval" in capsys.readouterr().out
    assert run(["approve", *where]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{call['number']}: waits for ")
    assert "Greenroom asks before it calls" in text
    assert "\x1b" not in text
    answer = [sys.executable, "-m", "greenroom", "approve", str(call["number"]), *where]
    ended = subprocess.run(
        [*answer, *([option] if option else [])], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    done = {None: "Allowed, this once", "--session": "Allowed for its session", "--deny": "Refused"}[option]
    assert ended.stdout.startswith(f"{done}")
    result = door.answer(number)["result"]
    if option == "--deny":
        assert result["_meta"]["greenroom/error"]["error"] == "approval_denied"
    else:
        assert "isError" not in result
    if option == "--session":
        assert "isError" not in door.call("w_echo", {"text": "hi", "more": "\x1b[31mred"})["result"]
    assert run(["approve", str(call["number"]), *where]) == 1
    assert "already" in capsys.readouterr().err
    assert asked("approve", *where, capsys=capsys)["approvals"] == []


def test_of_two_terminals_that_answer_at_once_one_is_first(
    door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        number, call = held(door, where, capsys)
        command = [sys.executable, "-m", "greenroom", "approve", str(call["number"]), *where]
        both = [
            subprocess.Popen([*command, *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for option in ((), ("--deny",))
        ]
        texts = [each.communicate(timeout=PATIENCE) for each in both]
        codes = [each.returncode for each in both]
        assert sorted(codes) == [0, 1], texts
        refused = door.answer(number)["result"].get("isError", False)
        assert refused is (codes[1] == 0)
        assert "already" in texts[codes.index(1)][1]


def test_what_cannot_be_answered_is_told_with_the_next_step(
    door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code, told in (
        (["5"], 1, "No call with the number 5 waits. To see which calls wait: greenroom approve."),
        (["5", "--session", "--deny"], 2, "Give one of them"),
        (["--deny"], 2, "Which call is meant?"),
        (["0"], 2, "0 is not in the range"),
        (["x"], 2, "is not a valid"),
        (["--pid", "1"], 2, "No gateway of this configuration runs as process 1"),
    ):
        assert run(["approve", *words, *where]) == code
        assert told in capsys.readouterr().err
    assert run(["approve", *where]) == 0
    assert "No call waits for approval." in capsys.readouterr().out


def test_without_a_gateway_it_says_so(
    tmp_path: Path, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    for words in ([], ["1000"]):
        assert run(["approve", *words, *where]) == 1
        assert "no gateway runs" in capsys.readouterr().err


def test_all_gateways_of_a_configuration_are_looked_at(
    tmp_path: Path, door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    number, call = held(door, where, capsys)
    with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"]) as newer:
        newer.greet()
        second, other = held(newer, where, capsys)
        listed = asked("approve", *where, capsys=capsys)
        assert {each["pid"] for each in listed["approvals"]} == {door.process.pid, newer.process.pid}
        assert listed["waitingForApproval"] == 2
        assert run(["approve", *where]) == 0
        assert f"gateway {newer.process.pid}" in capsys.readouterr().out
        assert run(["approve", str(call["number"]), *where]) == 0, "it waits in the older one"
        assert "isError" not in door.answer(number)["result"]
        assert not newer.is_answered(second)
        assert run(["approve", str(call["number"]), *where]) == 1
        assert "allowed already" in capsys.readouterr().err, "the older one knows"
        rest = asked("approve", *where, capsys=capsys)["approvals"]
        assert [each["pid"] for each in rest] == [newer.process.pid]
        assert run(["approve", str(rest[0]["number"]), "--deny", *where]) == 0
        assert newer.answer(second)["result"]["isError"] is True
        assert other


def test_a_number_that_waits_in_two_gateways_is_asked_about(
    capsys: pytest.CaptureFixture[str], where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Both:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def ask(self, method: str, **params: Any) -> Any:
            assert method == "approvals", "none of them is answered"
            return {"approvals": waiting(int(params["number"]))[0], "hasEnded": False}

        def __enter__(self) -> Both:
            return self

        def __exit__(self, *_: object) -> None: ...

    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    monkeypatch.setattr(control, "find_gateways", lambda *_: [Both(11), Both(12)])
    assert run(["approve", "7", *where]) == 2
    assert "in each of the gateways 11, 12. Say which is meant with --pid" in capsys.readouterr().err


@contextmanager
def top(where: list[str], environ: Mapping[str, str]) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """`greenroom top` on a terminal of its own, and our end of that."""
    ours, theirs = pty.openpty()
    try:
        program = [sys.executable, "-m", "greenroom", "top", "--every", "0.2", *where]
        process = subprocess.Popen(
            program, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )  # fmt: skip
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(ours)
        os.close(theirs)


def until(terminal: int, words: str) -> str:
    seen, end = b"", time.monotonic() + PATIENCE
    while words.encode() not in seen:
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")


@pytest.mark.parametrize(("key", "refused"), [(b"y", False), (b"n", True)])
def test_a_person_decides_in_top(door: RawClient, where: list[str], key: bytes, refused: bool) -> None:
    with top(where, os.environ) as (process, terminal):
        read_until(terminal, b"q quits")
        number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "h\x1b[2Ji"}})
        shown = until(terminal, "1 call waits for approval")
        assert "w_echo of w" in shown + until(terminal, "w_echo of w")
        os.write(terminal, key)
        until(terminal, "Choose a call first")
        assert not door.is_answered(number)
        os.write(terminal, b"\x1b[B" + key)  # nobody can have seen what this key would be for
        question = until(terminal, "Allow this call?")
        assert re.search(r"Arguments: .*u001b", question), question
        os.write(terminal, key)
        until(terminal, ": refused" if refused else ": allowed once")
        assert bool(door.answer(number)["result"].get("isError")) is refused
        os.write(terminal, b"q")
        assert process.wait(PATIENCE) == 0


def test_top_decides_about_calls_of_every_gateway(tmp_path: Path, door: RawClient, where: list[str]) -> None:
    """The table is that of the newest; the call waits in the other."""
    with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"]) as newer:
        newer.greet()
        newer.ask("tools/list")
        with top(where, os.environ) as (_, terminal):
            until(terminal, f"gateway {newer.process.pid}")
            number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "hi"}})
            until(terminal, "1 call waits for approval")
            os.write(terminal, b"\t")
            until(terminal, "Allow this call?")
            os.write(terminal, b"y")
            until(terminal, ": allowed once")
            assert "isError" not in door.answer(number)["result"]


def test_a_gateway_that_does_not_answer_is_left_alone_for_a_while(
    door: RawClient, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, as by Ctrl-Z."""
    now, name = [0.0], identity(load(Path(where[1])).files)
    desks, asked, real = Desks(name, None, lambda: now[0]), list[int](), control.Gateway.ask

    def ask(gateway: control.Gateway, *words: Any, **more: Any) -> Any:
        asked.append(gateway.pid)
        return real(gateway, *words, **more)

    monkeypatch.setattr(control.Gateway, "ask", ask)
    try:
        assert desks.look(5.0) == ([], 0)
        door.process.send_signal(signal.SIGSTOP)
        assert desks.look(5.0) == ([], 0)
        assert desks.look(5.0) == ([], 0)
        assert len(asked) == 2, "it is left alone"
        assert "gone" in str(desks.decide(door.process.pid, 7, "once"))
        door.process.send_signal(signal.SIGCONT)
        now[0] = 30.0
        assert desks.look(5.0) == ([], 0)
        assert len(asked) == 3
        assert "No call with the number 7 waits" in str(desks.decide(door.process.pid, 7, "once"))
        assert Desks(name, 1).look(5.0) == ([], 0), "another one was asked for"
        assert len(asked) == 4
    finally:
        door.process.send_signal(signal.SIGCONT)
        desks.close()


def test_when_top_is_killed_its_call_is_refused_and_the_next_one_at_once(
    door: RawClient, where: list[str]
) -> None:
    with top(where, os.environ) as (process, terminal):
        read_until(terminal, b"q quits")
        number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "hi"}})
        until(terminal, "1 call waits for approval")
        process.send_signal(signal.SIGKILL)
        process.wait()
        refused = door.answer(number)["result"]
        assert refused["_meta"]["greenroom/error"]["error"] == "approval_required"
        assert "`greenroom top`" in refused["content"][0]["text"]
        assert door.call("w_echo", {"text": "hi"})["result"]["isError"] is True
    with control.find_gateway(identity(load(Path(where[1])).files)) or pytest.fail("none") as gateway:
        assert gateway.ask("approvals") == {"approvals": [], "waitingForApproval": 0}


def test_top_without_a_keyboard_watches_nothing(tmp_path: Path, where: list[str]) -> None:
    """Nobody could answer there."""
    ours, theirs = pty.openpty()
    events = tmp_path / "events"
    try:
        program = [sys.executable, "-m", "greenroom", "top", "--every", "0.2", *where]
        with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"], events=events) as door:
            door.greet()
            door.ask("tools/list")
            process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
            try:
                read_until(ours, b"q quits")
                assert door.call("w_echo", {"text": "hi"})["result"]["isError"] is True
            finally:
                process.kill()
                process.wait()
        told = [json.loads(line) for line in events.read_text().splitlines()]
        moves = [event["move"] for event in told if event.get("tool") == "w_echo" and "move" in event]
        assert moves == ["unanswered"], "nobody was asked"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_call_typed_at_another_terminal_is_asked_about_there(
    door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked("approve", *where, capsys=capsys)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(["call", "w_echo", "text=hi", *where]) == 1
    assert "--yes allows the call" in capsys.readouterr().err
    assert asked("approve", *where, capsys=capsys)["approvals"] == []
