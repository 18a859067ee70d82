"""What the page of a tape is told of a long one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import run

from greenroom.gateway.page import tape_page
from greenroom.gateway.page.tape_page import TapePage
from greenroom.tape.tape_reader import read_tape

HEAD = {"k": "tape", "v": 1, "at": 0.0, "greenroom": "1", "python": "3", "config": {"mcpServers": {}}}


def call(number: int, **more: Any) -> dict[str, Any]:
    said = {
        "k": "call",
        "n": number,
        "order": number,
        "accepted": number,
        "sent": number,
        "ended": number + 0.5,
    }
    said |= {"server": "shop", "scope": "shared", "incarnation": 1, "method": "tools/call", "params": {}}
    return said | {"outcome": "result", "reach": "answered", "result": {"content": []}} | more


def asked(page: TapePage, what: str, **params: str) -> Any:
    async def main() -> Any:
        return json.loads((await page.look(what, params, acts=False)).body)

    return run("asyncio", main)


def test_a_long_tape_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_page, "MOST", 2)
    file = tmp_path / "long.tape"
    moves = [
        {
            "k": "event",
            "t": at,
            "event": {"kind": "note", "event": "Note", "server": "shop", "detail": f"at {at}"},
        }
        for at in (1.25, 4.25)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in (HEAD, *moves, *map(call, range(5)))))
    page = TapePage(read_tape(file))
    assert asked(page, "hello")["tape"]["most"] == 2
    parts = [asked(page, "calls", first=first) for first in ("0", "2", "4", "6", "-1", "x")]
    numbers = [[each["number"] for each in part["calls"]] for part in parts]
    assert numbers == [[0, 1], [2, 3], [4], [], [0, 1], [0, 1]]
    assert [part["end"] for part in parts[:3]] == [1.5, 3.5, 4.5]
    marks = [
        [
            each["name"]
            for lane in asked(page, "timeline", first=first)["lanes"]
            for each in lane["spans"]
            if each["kind"] == "mark"
        ]
        for first in ("0", "4")
    ]
    assert marks == [["at 1.25"], ["at 1.25", "at 4.25"]]
    assert asked(page, "call", number="4")["number"] == 4


def test_half_a_character_and_a_deep_value_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "odd.tape"
    deep = "[" * 900 + "]" * 900
    odd = json.dumps(call(1, result={"content": [{"type": "text", "text": "half \ud83d"}]}))
    file.write_text(f"{json.dumps(HEAD)}\n{odd}\n{json.dumps(call(2)).replace('{}', deep, 1)}\n")
    page = TapePage(read_tape(file))
    assert asked(page, "call", number="1")["result"]["content"][0]["text"].startswith("half ")
    assert "params" in asked(page, "call", number="2")


def test_of_a_very_long_result_the_beginning_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "large.tape"
    text = "x" * 400_000
    file.write_text(
        f"{json.dumps(HEAD)}\n{json.dumps(call(1, result={'content': [{'type': 'text', 'text': text}]}))}\n"
    )
    shown = asked(TapePage(read_tape(file)), "call", number="1")["result"]
    assert shown.startswith('{"content"')
    assert len(shown) < 300_000
    assert shown.endswith("bytes)")
