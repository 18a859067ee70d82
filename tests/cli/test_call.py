"""`greenroom call`: what is sent for K=V, how much is answered where, and what is asked at its terminal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import GREENROOM, popen_forked, run_forked
from tests.support.gateway import PATIENCE, started

# It echoes its arguments, has much to say, and asks its client for a name.
SERVER = """
import json, sys
TYPES = {"text": {"type": "string"}, "count": {"type": "integer"}, "free": {}, "deep": {"type": "boolean"},
         "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "some": {"type": ["number", "string"]},
         "ids": {"type": "array"}, "map": {"type": "object"}}
NAMES = {"echo": TYPES, "long": {}, "ask": {}, "draw": {}}
TOOLS = [{"name": n, "inputSchema": {"type": "object", "properties": p}} for n, p in NAMES.items()]
FORM = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 3},
        "kind": {"type": "string", "enum": ["a", "b"]}, "left": {"type": "string"}}, "required": ["name", "kind"]}
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    got = json.loads(line)
    method, params, text = got.get("method"), got.get("params") or {}, None
    if method == "initialize":
        version, info = params["protocolVersion"], {"name": "s", "version": "1"}
        say(id=got["id"], result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        say(id=got["id"], result={"tools": TOOLS})
    elif method == "tools/call":
        call = got["id"]
        if params["name"] == "ask":
            say(id="q", method="elicitation/create", params={"message": "Who?", "requestedSchema": FORM})
        elif params["name"] == "draw":
            image = {"type": "image", "mimeType": "image/png", "data": "aGF0"}
            say(id=call, result={"content": [{"type": "text", "text": "a hat"}, image]})
        else:
            text = json.dumps(params.get("arguments")) if params["name"] == "echo" else "line\\n" * 4000
    elif got.get("id") == "q":
        text = json.dumps(got.get("result") or got.get("error"))
    elif method and "id" in got:
        say(id=got["id"], error={"code": -32601, "message": "no"})
    if text is not None:
        say(id=call, result={"content": [{"type": "text", "text": text}]})
"""


def configure(folder: Path, **more: Any) -> list[str]:
    (folder / "server.py").write_text(SERVER)
    entry = {"command": sys.executable, "args": ["-S", os.fspath(folder / "server.py")], "era": "handshake"}
    bad = {"command": "/no/such"}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": {**entry, **more}, "bad": bad}}))
    return ["--config", os.fspath(folder / "mcp.json")]


def environment(folder: Path) -> dict[str, str]:
    cache, run = os.fspath(folder / "cache"), os.fspath(folder)
    return {"PATH": os.environ["PATH"], "HOME": run, "XDG_CACHE_HOME": cache, "XDG_RUNTIME_DIR": run}


def greenroom(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*GREENROOM, *words], env=environment(folder), text=True)


def typed(folder: Path, *words: str, answers: tuple[str, ...]) -> tuple[int, str]:
    """The same on a terminal, where each question (it ends in ": ") gets the next answer."""
    ours, theirs = os.openpty()
    process = popen_forked(
        [*GREENROOM, *words], env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    left, seen, end = list(answers), "", time.monotonic() + PATIENCE
    try:
        while process.poll() is None or select.select([ours], [], [], 0.0)[0]:
            assert time.monotonic() < end, seen
            if select.select([ours], [], [], 0.05)[0]:
                try:
                    seen += os.read(ours, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    break
            if left and seen.endswith(": "):
                os.write(ours, left.pop(0).encode() + b"\n")
                seen += "\n"
        return process.wait(), seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_value_follows_the_schema_of_its_parameter(tmp_path: Path) -> None:
    where = configure(tmp_path)
    words = [
        "text=1",
        "count=1",
        "free=1",
        "deep=true",
        "note=true",
        "some=2",
        "ids=[1]",
        "map={}",
        '{"unknown": [2], "note2": "x", "text2": 3}',
    ]
    unknown = greenroom(tmp_path, "call", "s_echo", *words, *where)
    as_json = {"count": 1, "free": 1, "deep": True, "some": 2, "ids": [1], "map": {}, "unknown": [2]}
    as_json |= {"note2": "x", "text2": 3}
    assert json.loads(unknown.stdout) == {**as_json, "text": "1", "note": "true"}
    known = greenroom(tmp_path, "call", "s_echo", *words, *where)
    assert json.loads(known.stdout) == {**as_json, "text": "1", "note": "true"}
    foreign = (
        's_echo was given "unknown", "note2", "text2", which its schema does not name. Did you mean "note"?'
    )
    assert foreign in known.stderr
    again = greenroom(tmp_path, "call", "s_echo", 'text="01"', "note=null", *where)
    assert json.loads(again.stdout) == {"text": "01", "note": None}
    command = [*GREENROOM, "serve", *where]
    with started(*command, env=environment(tmp_path), cwd=tmp_path) as gateway:
        gateway.initialize()
        through = greenroom(tmp_path, "call", "s_echo", *words, *where)
        assert json.loads(through.stdout) == {**as_json, "text": "1", "note": "true"}
        assert foreign in through.stderr
        gateway.end()
    cold = tmp_path / "cold"
    cold.mkdir()
    with started(*command, env=environment(cold), cwd=cold) as gateway:
        gateway.initialize()
        first = greenroom(cold, "call", "s_echo", *words, *where)
        assert json.loads(first.stdout) == {**as_json, "text": "1", "note": "true"}, first
        gateway.end()
    failed = greenroom(cold, "call", "bad_tool", "x=1", *where)
    assert (failed.returncode, "/no/such" in failed.stderr + failed.stdout) == (1, True), failed


def test_a_script_gets_all_of_the_answer_and_a_terminal_a_page(tmp_path: Path) -> None:
    where = configure(tmp_path)
    assert greenroom(tmp_path, "call", "s_long", *where).stdout.count("line\n") == 4000
    said = json.loads(greenroom(tmp_path, "call", "s_long", "--json", *where).stdout)
    assert said["content"][0]["text"].count("line\n") == 4000
    assert "outputGuard" not in said
    code, seen = typed(tmp_path, "call", "s_long", *where, answers=())
    assert "--background" in seen
    code, seen = typed(tmp_path, "call", "s_long", *where, answers=())
    assert "--background" not in seen, "it is said once a day"
    looks = [typed(tmp_path, "tools", *where, answers=())[1] for _ in range(2)]
    assert ["what the cache knows" in " ".join(each.split()) for each in looks] == [True, False]
    assert (code, seen.count("line\r\n") < 2001, "| less" in seen) == (0, True, True)


def test_an_image_is_saved_or_comes_with_the_way_to_save_it(tmp_path: Path) -> None:
    where = configure(tmp_path)
    shown = greenroom(tmp_path, "call", "s_draw", *where)
    assert shown.stdout.startswith("a hat\n[image: image/png")
    assert "the image is not shown. To save it, make the call with --save FILE." in shown.stderr
    saved = greenroom(tmp_path, "call", "s_draw", "--save", str(tmp_path / "hat.png"), *where)
    assert (saved.returncode, saved.stderr) == (
        0,
        f"greenroom: the image is in {tmp_path}/hat.png (3 bytes).\n",
    )
    assert (tmp_path / "hat.png").read_bytes() == b"hat"
    lost = greenroom(tmp_path, "call", "s_draw", "--save", "no/such/hat.png", *where)
    assert (lost.returncode, "the image was not saved: " in lost.stderr) == (1, True)
    none = greenroom(tmp_path, "call", "s_echo", "--save", "text", *where)
    assert (none.returncode, "so nothing was saved" in none.stderr) == (1, True)
    assert not (tmp_path / "text").exists()
    said = greenroom(tmp_path, "call", "s_draw", "--json", *where)
    assert json.loads(said.stdout)["content"][1]["data"] == "aGF0"
    assert "base64" not in said.stderr


def test_what_a_server_asks_is_put_to_the_person_at_the_terminal(tmp_path: Path) -> None:
    where = configure(tmp_path)
    code, seen = typed(tmp_path, "call", "s_ask", *where, answers=("y", "Ada", "", "c", "b", ""))
    assert code == 0, seen
    assert 'Server "s" asks: Who?' in seen
    assert '{"action": "accept", "content": {"name": "Ada", "age": 3, "kind": "b"}}' in seen
    code, seen = typed(tmp_path, "call", "s_ask", *where, answers=("n",))
    assert (code, '{"action": "decline"}' in seen) == (0, True), seen


def test_a_server_that_cannot_be_connected_is_told_with_the_next_step(tmp_path: Path) -> None:
    where = configure(tmp_path)
    done = greenroom(tmp_path, "call", "bad_x", *where)
    assert done.returncode == 1
    assert f"greenroom explain --config {where[1]} bad" in done.stderr
    said = json.loads(greenroom(tmp_path, "call", "bad_x", "--json", *where).stdout)
    assert said["message"] == said["content"][0]["text"]


def test_one_whose_command_does_not_exist_is_not_told_to_be_tried_again(tmp_path: Path) -> None:
    """The next try fails, too, until somebody installs the program or corrects the entry."""
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"nocmd": {"command": "no-such-command-4711"}}}))
    where = ("--config", str(file))
    called = greenroom(tmp_path, "call", "nocmd_fetch", *where)
    assert called.returncode == 1
    assert f"greenroom explain --config {file} nocmd" in called.stderr
    explained = greenroom(tmp_path, "explain", "nocmd", *where).stdout
    assert "was not found" in explained
    assert "install it, or" in explained
    for said in (called.stderr, explained):
        assert "greenroom refresh" not in said


@pytest.mark.parametrize(("answer", "moves"), [("n", ["asked", "denied"]), ("y", ["asked", "allowed"])])
def test_the_events_tell_what_was_answered_at_the_terminal_of_the_call(
    tmp_path: Path, answer: str, moves: list[str]
) -> None:
    where, events = configure(tmp_path, approve="all"), tmp_path / "events"
    command = [*GREENROOM, "serve", "--events", os.fspath(events), *where]
    with started(*command, env=environment(tmp_path), cwd=tmp_path) as gateway:
        gateway.initialize()
        greenroom(tmp_path, "refresh", "s", *where)
        code, seen = typed(tmp_path, "call", "s_echo", "text=hi", *where, answers=(answer,))
        assert code == int(answer == "n"), seen
        gateway.end()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["move"] for event in told if event.get("event") == "ApprovalDecision"] == moves
