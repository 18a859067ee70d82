"""Tapes that were recorded when the circuit breaker was still called `gate`: they are shown, and replay, as ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from greenroom import CallError, Greenroom
from greenroom.cli.main import run
from greenroom.gateway.page.tape_page import TapePage
from greenroom.tape.tape_reader import read_tape

TODAY = Path(__file__).parents[2] / "docs" / "incidents" / "crash-loop.tape"
FIRST_WORDS = {
    '"BreakerDecision"': '"GateDecision"',
    '"openFor"': '"shutFor"',
    '"place":"breaker","detail":"breaker"': '"place":"gate","detail":"gate"',
}
# Two lines of it as they were recorded.
RECORDED = (
    '{"k":"event","t":7.286902471000303,"event":{"seq":83,"at":3159.764419,"kind":"decision","event":"GateDecision",'
    '"server":"orders","scope":"shared","move":"failed","failures":5,"shutFor":3.999967,"tripped":true,"cause":"lost",'
    '"detail":"circuit breaker: failure 5: exited with code 3 (orders: the table totals is locked, giving up)",'
    '"inFlight":0,"queued":0}}\n'
    '{"k":"event","t":7.290893503000007,"event":{"seq":87,"at":3159.76841,"kind":"start","event":"StartMoved",'
    '"server":"orders","scope":"shared","incarnation":6,"place":"gate","detail":"gate","inFlight":0,"queued":0}}\n'
)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    text = TODAY.read_text()
    for today, before in FIRST_WORDS.items():
        text = text.replace(today, before)
    for line in RECORDED.splitlines(keepends=True):
        assert line in text
    path = tmp_path / TODAY.name
    path.write_text(text)
    return path


@pytest.mark.parametrize("words", [(), ("--failed",), ("--since=7.25",)])
def test_a_first_tape_is_told_in_todays_words(
    first: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def told(path: Path) -> str:
        assert run(["tape", os.fspath(path), *words]) == 0
        return capsys.readouterr().out.replace(os.fspath(path), path.name)

    assert told(first) == told(TODAY)


def test_a_first_tape_has_the_same_page(first: Path) -> None:
    async def shown(path: Path, what: str) -> Any:
        return await TapePage(read_tape(path)).look(what, {}, acts=False)

    for what in ("timeline", "calls"):
        assert anyio.run(shown, first, what) == anyio.run(shown, TODAY, what)


def test_a_first_tape_replays(first: Path) -> None:
    async def answers() -> list[str]:
        async with Greenroom.replay(first) as room:
            said = [(await room.call("orders_find", {"customer": "Ann"})).text]
            for _ in range(4):
                try:
                    said.append((await room.call("orders_total", {"month": "May"})).text)
                except CallError as error:
                    said.append(f"{error.code} {error.reach}")
        return said

    assert anyio.run(answers) == [
        "Ann: 3 orders, the last one on Monday",
        *["call_failed sent"] * 3,
        "May: 1,204 orders, 88,310.50",
    ]
