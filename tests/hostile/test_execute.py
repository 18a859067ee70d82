"""Code of `mcp_execute` holds up nobody: real gateways with `--expose meta`, over stdio and over HTTP, whose loop is
watched while the code makes two hundred calls at once, again and again, or never ends.

The bounds are those of every row of the table (`_play`). That the code is killed at its deadline, with its client and
with the gateway, is tested where the rest of it is (`tests/gateway/test_meta_execute.py`).
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.support.gateway import children

from ._doors import PATIENCE, Door, opened
from ._play import ALONE, TRIES, Seen, called, calls_until, copied, end
from ._words import Row
from .test_hostile import IS_ALONE

ROUNDS = 5
CALLS = f"""
import asyncio

async def one(n):
    return (await call('calm1', 'echo', {{'text': str(n)}}))['content'][0]['text']

for _ in range({ROUNDS}):
    said = await asyncio.gather(*[one(n) for n in range(200)])
    assert said == [str(n) for n in range(200)]
'all were answered'
"""
LOOP = "while True: pass"
LASTS = 1.0  # seconds that the neighbours call while code is in an endless loop


class Code:
    """Code that a client runs; the request is sent in a thread, because over HTTP its answer is waited for."""

    def __init__(self, door: Door, code: str) -> None:
        self._door, self._code = door, code
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.answer = ask(self._door, "mcp_execute", code=self._code)

    def is_over(self) -> bool:
        return not self._thread.is_alive()


def ask(door: Door, name: str, **arguments: Any) -> Any:
    attacked = door.attacked
    number = attacked.send("tools/call", {"name": name, "arguments": arguments})
    return attacked.answer(number, PATIENCE)


def neighbour(door: Door) -> None:
    said = ask(door, "mcp_call", server="calm0", tool="echo", args={"text": "still here"})
    assert said is not None, "a neighbour's call was not answered"
    assert "still here" in json.dumps(said), said


CODES = {"200-calls": CALLS, "endless": LOOP}
EACH = [(name, code) for code in CODES for name in ("proxy", "http")]  # `make test` has two of the four


@pytest.mark.parametrize(("name", "code"), EACH if IS_ALONE else [EACH[0], EACH[-1]])
def test_code_that_runs_holds_up_nobody(name: str, code: str) -> None:
    tries = [seen_beside(name, CODES[code])]
    while tries[-1].is_held_up:
        assert len(tries) < TRIES, "; again: ".join(map(str, tries))
        tries.append(seen_beside(name, CODES[code]))


def seen_beside(name: str, code: str) -> Seen:
    row = Row(
        "none", options=("--expose", "meta"), settings={"drainTimeoutMs": 100, "idleTimeoutMs": 600_000}
    )
    copy = copied()
    with (
        TemporaryDirectory(prefix="gr-") as folder,
        opened(name, [row], Path(folder), neighbours=2) as door,
    ):
        warm_up(door)
        calm = [called(door, lambda: neighbour(door)) for _ in range(ALONE.calm)]
        held, before = door.attacked.held(), children(door.attacked.pid)
        running = Code(door, code)
        until = time.monotonic() + PATIENCE
        while not children(door.attacked.pid) - before and not running.is_over():
            assert time.monotonic() < until, "the sandbox was not started"
            time.sleep(0.01)
        is_over = running.is_over if code is CALLS else lambda: True
        lasts = 0.0 if code is CALLS else LASTS
        beside = calls_until(is_over, lasts, ALONE, door, lambda: neighbour(door))
        if code is CALLS:
            assert "all were answered" in json.dumps(running.answer), running.answer
        else:
            assert not running.is_over(), "it runs still"
        grown = door.attacked.peak() - held
        end(door)
    return Seen(calm, beside, grown, copy)


def warm_up(door: Door) -> None:
    """Do first what happens only once: the starts of the servers, imports, and the first run of code."""
    for server in ("calm0", "calm1"):
        ask(door, "mcp_call", server=server, tool="echo", args={"text": "hello"})
    assert "2" in json.dumps(ask(door, "mcp_execute", code="1 + 1"))
    for _ in range(3):
        neighbour(door)
    door.attacked.longest.take()
