"""T38: no request is forgotten, whatever its answer is made of. A real gateway, a real server that says what it likes,
at both doors and in both eras."""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import HELLO, Gateway, faulty, serve

HOSTILE = Path(__file__).resolve().parents[1] / "support" / "hostile_server.py"
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
DEPTHS = (90, *range(958, 1000, 4), 1010, 2000, 50_000)


def hostile(version: str = "2025-11-25", *more: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", os.fspath(HOSTILE), version, *more]}


def _nested(before: str, depth: int, after: str) -> dict[str, Any]:
    """What to say: a whole answer with a value nested `depth` deep between the two."""
    head = '{"jsonrpc":"2.0","id":ID,'
    return {
        "before": head + before + "[" * depth,
        "middle": "",
        "count": 0,
        "after": "]" * depth + after + "}\n",
    }


SHAPES = {
    "result": ('"result":{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":', "}}"),
    "odd": ('"result":{"structuredContent":{"a":', "}}"),
    "content": ('"result":{"content":[{"type":"zebra","a":', "}]}"),
    "no-list": ('"result":{"content":{"a":', "}}"),
    "meta": ('"result":{"content":[],"_meta":{"a":', "}}"),
    "error": ('"error":{"code":7,"message":"no","data":', "}"),
    "state": ('"result":{"resultType":"input_required","requestState":', "}"),
}


def _ask(gateway: Gateway, tool: str, said: dict[str, Any], door: str, era: str) -> int:
    meta = {"_meta": MODERN} if era == "stateless" else {}
    name, arguments = (tool, said) if door == "direct" else ("mcp", {"tool": tool, "args": said})
    return gateway.send("tools/call", {"name": name, "arguments": arguments, **meta})


@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("door", ["direct", "proxy"])
def test_t38_every_request_is_answered_however_deep_its_answer_is(
    tmp_path: Path, door: str, era: str
) -> None:
    servers = {"old": hostile("2025-11-25"), "new": hostile("2026-07-28")}
    with serve(tmp_path, servers, "--expose", door, requestTimeoutMs=50_000) as gateway:
        if era == "handshake":
            gateway.initialize()
        for server in servers:
            gateway.answer(_ask(gateway, f"{server}_echo", {}, door, era))
        for server, (shape, (before, after)) in product(servers, SHAPES.items()):
            asked = [
                (depth, _ask(gateway, f"{server}_say", _nested(before, depth, after), door, era))
                for depth in DEPTHS  # the answers to these fit into a pipe: nobody reads them meanwhile
            ]
            for depth, number in asked:
                answer = gateway.answer(number)
                assert "result" in answer or answer["error"]["code"] < 8, (server, shape, depth)
                assert "bug" not in str(answer)[:500], (server, shape, depth)
        assert gateway.end() == 0
    assert "a bug in Greenroom" not in (tmp_path / "stderr.txt").read_text()


@pytest.mark.parametrize("door", ["direct", "proxy"])
def test_t38_an_error_that_is_no_utf8_reaches_its_caller(tmp_path: Path, door: str) -> None:
    """Nor does half a character, nor a code that is too large, keep it from being told."""
    texts = ("\xff\x80", "\\ud83d", "\\ud83d\xff", "x")  # the server writes them as Latin-1
    with serve(tmp_path, {"old": hostile()}, "--expose", door) as gateway:
        gateway.initialize()
        gateway.answer(_ask(gateway, "old_echo", {}, door, "handshake"))
        for text in texts:
            for data in ("", f',"data":{{"a":"{text}"}}', ',"data":1e999', f',"data":{10**40}'):
                line = f'{{"jsonrpc":"2.0","id":ID,"error":{{"code":7,"message":"{text}"{data}}}}}\n'
                said = {"before": line, "middle": "", "count": 0, "after": ""}
                answer = gateway.answer(_ask(gateway, "old_say", said, door, "handshake"))
                assert "result" in answer or "error" in answer
        assert gateway.end() == 0
    assert "a bug in Greenroom" not in (tmp_path / "stderr.txt").read_text()


@pytest.mark.parametrize("depth", [960, 980, 990, 1030, 1_000_000])
def test_t38_a_clients_answer_that_cannot_be_read_is_told_to_the_server_that_asked(
    tmp_path: Path, depth: int
) -> None:
    """It asked the client something; the client's answer is nested too deeply to be read. What is just too deep depends
    on the reader's Python and how deep its own stack is: up to there the answer is passed on."""
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, "--expose", "direct") as gateway:
        gateway.answer(gateway.send("initialize", {**HELLO, "capabilities": {"roots": {}}}))
        gateway.tell("notifications/initialized")
        gateway.answer(gateway.send("tools/call", {"name": "a_echo", "arguments": {"text": "x"}}))
        number = gateway.send("tools/call", {"name": "a_ask", "arguments": {"method": "roots/list"}})
        while not any(each["method"] == "roots/list" for each in gateway.asked):
            gateway.answer(gateway.send("ping"))
        (asked,) = (each["id"] for each in gateway.asked)
        deep = b"[" * depth + b"]" * depth
        assert gateway.process.stdin is not None
        gateway.process.stdin.write(
            b'{"jsonrpc":"2.0","id":"%s","result":{"roots":%s}}\n' % (asked.encode(), deep)
        )
        gateway.process.stdin.flush()

        told = str(gateway.answer(number)["result"])
        assert "cannot be read" in told or ("[" * depth in told and depth < 1_000_000)
        assert gateway.end() == 0
