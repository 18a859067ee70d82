"""`greenroom approve`, and `status --watch` for which calls wait: a person allows a call of a real gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_status_watch import WATCHED, read_until, watching
from tests.support.forked import GREENROOM, popen_forked, run_forked
from tests.support.gateway import PATIENCE
from tests.support.whole import RawClient, direct_door, whole

from greenroom.cli.config_reading import load
from greenroom.cli.main import run
from greenroom.cli.status_watch import Desks
from greenroom.gateway.doors import control_client as control
from greenroom.gateway.doors.control_protocol import identity

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
        "1 call waits for approval; to see and decide: greenroom approve --config" in capsys.readouterr().out
    )
    assert asked("status", *where, capsys=capsys)["waitingForApproval"] == 1
    assert run(["approve", *where]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{call['number']}: waits for ")
    assert "Greenroom asks before it calls" in text
    assert "\x1b" not in text
    answer = [*GREENROOM, "approve", str(call["number"]), *where, *([option] if option else [])]
    ended = run_forked(answer, text=True, check=True, timeout=PATIENCE)
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
        command = [*GREENROOM, "approve", str(call["number"]), *where]
        both = [
            popen_forked([*command, *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


def test_a_call_waits_while_the_status_is_watched(
    tmp_path: Path, door: RawClient, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In any gateway of the configuration: the servers that are shown are those of the newest."""
    with direct_door(tmp_path, {"w": whole("w")}, approve=["echo"]) as newer:
        newer.initialize()
        with watching(*where) as (process, terminal):
            read_until(terminal, f"gateway {newer.process.pid}")
            number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "h\x1b[2Ji"}})
            shown = read_until(terminal, "w_echo of w")
            assert "1 call waits for approval" in shown
            assert "h\x1b[2Ji" not in shown
            (call,) = asked("approve", *where, capsys=capsys)["approvals"]
            assert run(["approve", str(call["number"]), *where]) == 0
            assert "isError" not in door.answer(number)["result"]
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0


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
        door.process.send_signal(signal.SIGCONT)
        now[0] = 30.0
        assert desks.look(5.0) == ([], 0)
        assert len(asked) == 3
        assert Desks(name, 1).look(5.0) == ([], 0), "another one was asked for"
        assert len(asked) == 3
    finally:
        door.process.send_signal(signal.SIGCONT)
        desks.close()


def test_when_its_gateway_has_ended_the_watch_waits_for_another(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    with watching(*where) as (_, terminal):
        read_until(terminal, "waiting for one")
        for _ in range(2):
            with direct_door(tmp_path, {"w": whole("w")}) as door:
                read_until(terminal, f"gateway {door.process.pid}")
            read_until(terminal, "waiting for one")


def test_when_the_watch_is_killed_its_call_is_refused_and_the_next_one_at_once(
    door: RawClient, where: list[str]
) -> None:
    with watching(*where) as (process, terminal):
        read_until(terminal, WATCHED)
        number = door.send("tools/call", {"name": "w_echo", "arguments": {"text": "hi"}})
        read_until(terminal, "1 call waits for approval")
        process.send_signal(signal.SIGKILL)
        process.wait()
        refused = door.answer(number)["result"]
        assert refused["_meta"]["greenroom/error"]["error"] == "approval_required"
        assert "`greenroom approve --config " in refused["content"][0]["text"]
        assert door.call("w_echo", {"text": "hi"})["result"]["isError"] is True
    with control.find_gateway(identity(load(Path(where[1])).files)) or pytest.fail("none") as gateway:
        assert gateway.ask("approvals") == {"approvals": [], "waitingForApproval": 0}


# ---- the command, with gateways that were written down beforehand ----------------------------------------------------


def waiting(*numbers: int) -> list[dict[str, Any]]:
    text = 'Greenroom asks before it calls the tool "do" of the server "s".\nArguments: {"n":1}\nAllow this call?'
    rest = {"server": "s", "tool": "s_do", "session": "ann", "waiting": 1.0, "left": 9.0, "pid": 1}
    return [{"number": number, "question": text, **rest} for number in numbers]


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
        calls = waiting(*(each for each in self.numbers if number in (None, each)))
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
