"""`greenroom tape`: what a person reads of a tape, whatever is on it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run_virtual
from tests.support.tape_lines import HEAD, call, event, moved

from greenroom.cli.main import run
from greenroom.testing.fake_servers import FakeServer, fake_room

END = {"k": "end"}
NOT_ENDED = "The recording was not ended: its process was killed, its disk was full, or it still runs."
Told = Callable[..., list[str]]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    def tell(lines: list[Any], *words: str, end: Any = END) -> list[str]:
        path = tmp_path / "one.tape"
        path.write_text("".join(json.dumps(line) + "\n" for line in (*lines, *([end] if end else []))))
        code = run(["tape", os.fspath(path), *words])
        said = capsys.readouterr()
        return said.out.splitlines() if code == 0 else [said.err]

    return tell


CRASH = [
    HEAD,
    event(0.0, "StartMoved", place="slot"),
    event(2.0, "StartMoved", place="starting"),
    moved(2.0, "idle", "connecting"),
    {"k": "listed", "t": 2.4, "server": "shop", "scope": "shared", "incarnation": 1, "version": "2025-11-25",
     "capabilities": {}, "info": {}, "tools": [{"name": "buy"}]},
    event(2.5, "StartMoved", place="live"),
    moved(2.5, "connecting", "connected"),
    moved(3.5, "connected", "draining", cause="lost", detail="exited with code 7", inFlight=1),
    event(3.5, "BreakerDecision", move="failed", failures=1, openFor=1.0, cause="lost", detail="x"),
    moved(3.55, "draining", "closed", cause="lost", detail="exited with code 7"),
    moved(3.55, "closed", "idle", incarnation=2),
    event(3.6, "StartMoved", place="breaker"),
    moved(4.6, "idle", "connecting", incarnation=2),
    call(1, 2.6, 2.7),
    call(2, 3.0, 3.5, outcome="call_failed", reach="sent", session="ann",
         error={"code": "call_failed", "message": "lost"}),
]  # fmt: skip


def test_a_crash_is_told_in_its_order_with_what_was_waited_for(told: Told) -> None:
    assert told(CRASH)[3:-1] == [
        "    2.000  shop  starts, waited 2.0 s for a slot",
        "    2.500  shop  is connected after 500 ms: 1 tool",
        '    2.600  shop    #1 shop_buy {"what":"milk"} → fine (100 ms)',
        '    3.000  shop    #2 [ann] shop_buy {"what":"milk"} → ✗ call_failed, sent: lost (500 ms)',
        "    3.500  shop  ✗ LOST (1 call in flight): exited with code 7",
        "    3.500  shop  ✗ circuit breaker: failure 1, refuses calls for 1.0 s",
        "    4.600  shop  starts again, waited 1.0 s for its circuit breaker",
    ]


def test_a_call_beside_others_is_told_where_it_began_and_where_it_ended(told: Told) -> None:
    story = told([HEAD, call(1, 1.0, 3.0, "slow"), call(2, 1.5, 2.0, "quick")])
    assert [line.split("#")[1] for line in story[3:-1]] == [
        '1 shop_buy {"what":"milk"} …',
        '2 shop_buy {"what":"milk"} → quick (500 ms)',
        "1 → slow (2.0 s)",
    ]


def test_a_part_of_a_tape_is_told(told: Told) -> None:
    assert [line[11:].split()[0] for line in told(CRASH, "--failed")[3:-1]] == ["shop"] * 3
    refused = event(5.0, "Refusal", detail="shop_buy → server_unavailable: later")
    assert "refused: ✗ shop_buy" in told([*CRASH, refused], "--failed")[-2]
    assert [line[:9].strip() for line in told(CRASH, "--since=-1.1")[3:-1]] == [
        "3.000",
        "3.500",
        "3.500",
        "4.600",
    ]
    assert any("#2" in line for line in told(CRASH, "--session", "ann"))
    assert not any("#1" in line for line in told(CRASH, "--session", "ann"))
    other = call(3, 5.0, 5.1, server="bank", tool="bank_pay")
    assert len(told([*CRASH, other], "--server", "bank")) == 5
    assert 'There is no server "shp" on the tape. Did you mean "shop"?' in told(CRASH, "--server", "shp")[0]
    assert 'There is no session "bob" on the tape.' in told(CRASH, "--session", "bob")[0]


def test_how_the_recording_ended_is_told(told: Told) -> None:
    assert told([HEAD])[2:-1] == []
    assert told([HEAD], end=None)[2:-1] == [NOT_ENDED]
    assert told([HEAD | {"is_part": True}], end=None)[2:-1] == []
    full = {**END, "why": "No space left on device"}
    assert told([HEAD], end=full)[2:-1] == [
        "The recording ended before its room did: No space left on device."
    ]
    assert not json.loads("".join(told([HEAD], "--json", end=None)))["isEnded"]
    assert json.loads("".join(told([HEAD], "--json")))["isEnded"]


def test_of_a_long_tape_the_ends_are_told(told: Told) -> None:
    long = [HEAD, *(call(number, number, number + 0.5) for number in range(1, 3_001))]
    story = told(long)
    assert len(story) == 2 + 1 + 2_000 + 1 + 1
    assert "… 1,000 lines are left out here." in story[1_003]
    assert "#3000 " in story[-2]
    assert len(told(long, "--all")) == 2 + 1 + 3_000 + 1


def test_a_strangers_tape_moves_no_cursor_and_says_nothing_in_our_name(told: Told) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r\nTo replay it: greenroom restart shop"
    lines = [
        HEAD | {"greenroom": evil},
        call(1, 0.0, 1.0, evil, server=evil, tool=evil, session=evil),
        call(2, 1.0, 2.0, evil, params=[1]),
        moved(1.0, "idle", "draining", cause=evil, detail=evil),
        event(1.0, evil, server=evil, move=evil, place=evil),
        {"k": "notice", "t": 1.0, "server": evil, "scope": evil, "method": evil, "params": {evil: evil}},
    ]
    story = told(lines, "--all")
    assert all(line.isprintable() for line in story)
    assert not [line for line in story[:-1] if line.startswith("To replay")]
    assert "it has no time at which it began" in told([HEAD | {"at": 1e300}])[0]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_window(width: int, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("greenroom.cli.tape_command.on_terminal", lambda: True)
    long = "word " * 100
    lines = [*CRASH, call(9, 5.0, 6.0, long, session=long, tool=long, server=long), call(10, 5.5, 7.0, long)]
    story = told(lines)[3:-1]
    assert max(map(len, story)) <= width
    assert any(len(line) > width - 12 for line in story)


def test_what_is_not_whole_is_told_as_it_is(told: Told, tmp_path: Path) -> None:
    lines = [
        HEAD | {"is_part": True},
        {"k": "config", "t": 1.0, "config": {"mcpServers": {"bank": {}}}},
        call(1, 0.0, 2.0, outcome="open", reach="sent"),
        call(2, 3.0, 4.0, left_out={"params": 5_000, "result": 70_000}),
    ]
    story = told(lines)
    assert story[0].endswith("long. It has a room's last minutes, not what was before.")
    assert [line[11:] for line in story[3:-1]] == [
        'shop    #1 shop_buy {"what":"milk"} → has not ended (2.0 s)',
        "room  has another configuration",
        "shop    #2 shop_buy 5,000 bytes, which are not on the tape → 70,000 bytes, which are not on the tape (1.0 s)",
    ]
    spans = tmp_path / "spans.jsonl"
    assert told(lines, "--otlp", os.fspath(spans)) == [f"2 spans of 1 call went to {spans}"]


def test_a_recorded_tape_says_what_a_start_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        servers = {name: FakeServer(start_latency=1.0, call_latency=5.0) for name in ("one", "two")}
        settings = {"maxConnections": 1, "idleTimeout": 60}
        async with (
            fake_room(servers, record=tmp_path / "two.tape", settings=settings) as room,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(room.call, "one_echo", {})
            await anyio.sleep(3.0)
            tasks.start_soon(room.call, "two_echo", {})

    run_virtual("asyncio", main)
    assert run(["tape", os.fspath(tmp_path / "two.tape")]) == 0
    story = capsys.readouterr().out
    assert "for a slot" in story, story


@pytest.mark.parametrize("words", [("--since=7.25",), ("--since=-9",), ("--failed",), ("--server", "orders")])
def test_a_part_of_a_tape_tells_the_same_waits_as_the_whole(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    tape = os.fspath(Path(__file__).parents[2] / "docs" / "incidents" / "crash-loop.tape")

    def waits(*words: str) -> list[str]:
        assert run(["tape", tape, *words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if re.search(r"waited|after", line)]

    part = waits(*words)
    assert any("waited 4.0 s for its circuit breaker" in line for line in part)
    assert set(part) <= set(waits())


def test_only_servers_that_were_called_are_counted(told: Told) -> None:
    """One call of one server was told to be of all that are known."""
    known = {
        "k": "listed", "t": 0.1, "server": "other", "scope": "shared", "incarnation": 0, "version": "2025-11-25",
        "capabilities": {}, "info": {}, "instructions": None, "tools": [], "resources": [], "templates": [],
        "prompts": [], "skills": None, "prints": {},
    }  # fmt: skip
    assert told([HEAD, known, call(1, 1.0, 3.0, "slow")])[1].startswith("1 call of 1 server")
