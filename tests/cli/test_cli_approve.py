"""`greenroom approve`, and the keys of `greenroom top`: a person allows a call of a real gateway at a terminal."""

from __future__ import annotations

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
from tests.cli.test_cli_top import read_until
from tests.support.gateway import PATIENCE
from tests.support.whole import RawClient, direct_door, whole

from greenroom.cli.common import load
from greenroom.cli.main import run
from greenroom.cli.top_command import DOWN, UP, Desks, WaitingCalls
from greenroom.gateway.doors import control_client as control
from greenroom.gateway.doors.control_protocol import identity

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
        client.initialize()
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
    assert (
        "1 call waits for approval; to see them, and decide: greenroom top --config"
        in capsys.readouterr().out
    )
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


def test_all_gateways_of_a_configuration_are_looked_at(
    tmp_path: Path, door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    number, call = held(door, where, capsys)
    with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"]) as newer:
        newer.initialize()
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
        newer.initialize()
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


def test_when_its_gateway_has_ended_top_waits_for_another(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    with top(where, os.environ) as (_, terminal):
        until(terminal, "waiting for one")
        for _ in range(2):
            with direct_door(tmp_path, {"w": whole("w")}) as door:
                until(terminal, f"gateway {door.process.pid}")
            until(terminal, "waiting for one")


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
        assert "`greenroom top --config " in refused["content"][0]["text"]
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
            door.initialize()
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


def test_what_the_last_key_did_is_told_until_the_next_choice() -> None:
    calls, decided = WaitingCalls(), Decided()
    calls.see(*waiting(7, 8))
    calls.press("\t", decided)
    calls.press("y", decided)
    assert "Call 7: allowed once." in said(calls)
    calls.press("\t", decided)
    assert "allowed once" not in said(calls)
    for key in ("x", "other", ""):
        assert not calls.press(key, decided)
    assert calls.marked == (1, 7)
    calls.see(*waiting())
    assert not calls.press("\t", decided), "there is none to choose"
    assert not calls.press("y", decided)
    assert len(decided.all) == 1


@pytest.mark.parametrize("told", [False, True])
def test_the_chosen_call_is_shown_in_full_and_not_again_among_the_others(told: bool) -> None:
    calls = WaitingCalls()
    calls.see(*waiting(7, 8, 9, count=12))
    calls.press("\t", Decided())
    calls.said = "It was read." if told else ""
    said_of_it = ["It was read."] if told else []
    head = [
        "12 calls wait for approval",
        "Tab or arrows choose a call; y allows it once, s for its session, n refuses it",
    ]
    rest = ', for ann, 9 s left: {"n":1}'
    chosen = [
        "▶ 7 s_do of s, for ann, 9 s left",
        'Greenroom asks before it calls the tool "do" of the server "s".',
        'Arguments: {"n":1}',
        "Allow this call?",
    ]
    others = [f"  8 s_do of s{rest}", f"  9 s_do of s{rest}"]
    assert said(calls).splitlines() == [*head, *said_of_it, *chosen, *others, "  and 9 more"]
    lines = said(calls, 100, 4).splitlines()
    warning = "It does not fit into this window. Make that larger, or read it with greenroom approve."
    assert lines == [*head, *said_of_it, warning, *chosen, *others, "  and 9 more"]
    assert all(len(line) <= 30 for line in said(calls, 30).splitlines()[-3:])
    calls.see(*waiting(7))
    assert said(calls).splitlines()[0] == "1 call waits for approval"
    assert "more" not in said(calls)


# ---- the desks of several gateways -----------------------------------------------------------------------------------


# ---- the command, with gateways that were written down beforehand ----------------------------------------------------


class Listed:
    """A gateway in which these calls wait; or one that cannot be asked."""

    def __init__(
        self, pid: int, *numbers: int, ended: tuple[int, ...] = (), count: int = 0, mute: bool = False
    ):
        self.pid = pid
        self.numbers = numbers
        self.ended = ended
        self.count = count or len(numbers)
        self.mute = mute
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.is_open = True

    def ask(self, method: str, **params: Any) -> Any:
        self.asked.append((method, params))
        if self.mute:
            raise control.GatewayError(f"The gateway {self.pid} does not answer.")
        if method == "approve":
            return {"server": "s", "tool": "s_do\x1b[2J", "session": None}
        number = params.get("number")
        calls = waiting(*(each for each in self.numbers if number in (None, each)))[0]
        return {"approvals": calls, "waitingForApproval": self.count, "hasEnded": number in self.ended}

    def __enter__(self) -> Listed:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False


@pytest.fixture
def listed(tmp_path: Path, where: list[str], monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    """The gateways that the command finds."""
    found: list[Listed] = []
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')

    def one(_name: str, pid: int) -> Any:
        return next((each for each in found if each.pid == pid), None)

    monkeypatch.setattr(control, "find_gateways", lambda *_: found)
    monkeypatch.setattr(control, "find_gateway", one)
    return found


def test_calls_of_all_gateways_are_listed_and_one_that_is_mute_is_told_of(
    listed: list[Listed], where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    listed += [Listed(11, 1, count=3), Listed(12, mute=True), Listed(13, 2)]
    assert run(["approve", *where]) == 0
    out, err = capsys.readouterr()
    assert "The gateway 12 does not answer." in err
    lines = out.splitlines()
    assert lines[0] == "1: waits for 1 s, 9 s left, session ann, gateway 11"
    assert lines[4] == "2: waits for 1 s, 9 s left, session ann, gateway 13"
    assert lines[8] == "2 more wait."
    assert [each.asked for each in listed] == [[("approvals", {"quickly": True, "watching": 10.0})]] * 3
    assert not any(each.is_open for each in listed)
    assert run(["approve", "--json", *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["number"], each["pid"]) for each in shown["approvals"]] == [(1, 11), (2, 13)]
    assert (shown["waitingForApproval"], shown["source"]) == (4, "gateway")


@pytest.mark.parametrize(
    ("option", "verdict", "done"),
    [
        ([], "once", "Allowed, this once"),
        (["--session"], "session", "Allowed for its session, with these arguments"),
        (["--deny"], "deny", "Refused"),
    ],
)
@pytest.mark.parametrize(
    ("gateways", "asked"),
    [
        ([(11, (), ())], 11),  # it alone can say what has become of it
        ([(11, (), ()), (12, (7,), ())], 12),
        ([(11, (), ()), (12, (), (7,))], 12),
        ([(11, (), (7,)), (12, (7,), ())], 12),
        ([(11, (1,), ()), (12, (1,), ())], 11),
    ],
)
def test_the_gateway_where_the_call_waits_or_has_waited_is_told_the_answer(
    gateways: list[Any],
    asked: int,
    option: list[str],
    verdict: str,
    done: str,
    listed: list[Listed],
    where: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed += [Listed(pid, *numbers, ended=ended) for pid, numbers, ended in gateways]
    assert run(["approve", "7", *option, *where]) == 0
    assert capsys.readouterr().out == f"{done}: the call 7 of s_do.\n"
    told = {each.pid: [said for said in each.asked if said[0] == "approve"] for each in listed}
    assert {pid for pid, said in told.items() if said} == {asked}
    assert told[asked] == [("approve", {"quickly": True, "number": 7, "verdict": verdict})]
    assert run(["approve", "7", *option, "--json", *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["number"], shown["verdict"], shown["pid"]) == (7, verdict, asked)


def test_with_a_pid_no_other_gateway_is_told_the_answer(
    listed: list[Listed], where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    listed += [Listed(11, 7), Listed(12, 7), Listed(13, mute=True)]
    assert run(["approve", "7", *where]) == 2
    assert "in each of the gateways 11, 12" in capsys.readouterr().err
    assert run(["approve", "7", "--pid", "12", *where]) == 0
    assert [[said[0] for said in each.asked] for each in listed] == [
        ["approvals"],
        ["approvals", "approve"],
        ["approvals"],
    ]
    assert run(["approve", "7", "--pid", "14", *where]) == 1
    for option in ("--session", "--deny"):
        assert run(["approve", option, *where]) == 2
