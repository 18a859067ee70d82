"""Half characters, which JavaScript makes of text cut inside an emoji: nobody falls silent over one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import halves, in_real_time
from tests.support.forked import GREENROOM
from tests.support.gateway import Gateway, serve
from tests.support.http_rooms import room_at
from tests.support.patience import PATIENCE
from tests.support.raw_http import MODERN, Handler, Seen, raw_http
from tests.support.real_servers import real_server
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.errors import RemoteError
from greenroom.protocol.jsonrpc import encoding
from greenroom.protocol.jsonrpc.incoming import decode_line, decode_result
from greenroom.protocol.safe_text import mend_escapes, whole, whole_value

CUT = "cut \ufffd"
HALF = "\ud83d"

# ---- the rule, on bytes --------------------------------------------------------------------------------------------

texts = st.text(st.sampled_from('a\\"u\n\ud83d\ude00\udfff\ud800\u00e9\U0001f600'), max_size=8) | st.text(
    st.characters(), max_size=5
)
values = st.recursive(
    texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


@for_each(
    ("said", "mended"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00x"', rb'"\ufffdx"'),
        (rb'"\ud83d\ude00"', None),
        (rb'"\uD83D\uDE00\ude00"', rb'"\uD83D\uDE00\ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\\ud83d"', None),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\\ud83d\ude00"', rb'"\\ud83d\ufffd"'),
        (rb'"plain"', None),
    ],
)
def test_a_half_is_told_from_a_pair_and_from_text_about_one(said: bytes, mended: bytes | None) -> None:
    assert mend_escapes(said) == mended


@given(values)
def test_mended_json_says_the_same_in_the_same_length(value: Any) -> None:
    said = json.dumps(value).encode()
    mended = mend_escapes(said) or said
    assert len(mended) == len(said)
    assert msgspec.json.decode(mended) == json.loads(json.dumps(whole_value(value)))


@given(texts)
def test_whole_text_can_be_said(text: str) -> None:
    assert whole(text).encode().decode() == whole(text)
    assert whole(whole(text)) == whole(text)


@given(st.dictionaries(texts, values, max_size=4))
def test_what_only_passes_is_as_it_came(value: dict[str, Any]) -> None:
    """But keys that differ in their halves alone are one key."""
    if len({whole(key) for key in value}) < len(value):
        return
    parts = encoding.decode_parts(json.dumps(value).encode())
    assert {key: bytes(part) for key, part in parts.items()} == {
        whole(key): json.dumps(each).encode() for key, each in value.items()
    }


def test_a_part_is_found_where_it_was_and_not_where_it_looks_the_same() -> None:
    parts = encoding.decode_parts(rb'{"a":["\ud83d"],"b":["\ufffd"],"c":["\udfff"]}')
    assert [bytes(part) for part in parts.values()] == [rb'["\ud83d"]', rb'["\ufffd"]', rb'["\udfff"]']
    parts = encoding.decode_parts(rb'{ "a\"b" : 1 ,"\ud83d":"\ud800"}')
    assert [bytes(part) for part in parts.values()] == [b"1", rb'"\ud800"']


@for_each("around", [b"", b" ", b"\n\t"])
@for_each("keys", [(b"a", b"b"), (b"", b"\\ud83d"), (rb"\"", b"a"), (b"a", rb"\\")])
def test_each_part_is_cut_out_at_its_own_place(around: bytes, keys: tuple[bytes, bytes]) -> None:
    halves = (rb'"\ud83d"', rb'{"c":["\udfff",1]}')
    members = [
        around + b'"%b"' % key + around + b":" + around + half + around
        for key, half in zip(keys, halves, strict=True)
    ]
    parts = encoding.decode_parts(b"{" + b",".join(members) + b"}")
    assert [bytes(part) for part in parts.values()] == list(halves), "a byte more or less is another part"


def test_what_cannot_be_read_is_not_mended() -> None:
    for data in (b"{", rb'{"a":"\ud83d"', b"", rb'{"a":"\x"}'):
        with pytest.raises(msgspec.DecodeError):
            encoding.decode_parts(data)
    for data in (b"[]", rb'["\ud83d"]', b"7"):
        with pytest.raises(msgspec.ValidationError):
            encoding.decode_parts(data)
    number = msgspec.json.Decoder(int)
    for data in (b'"a"', rb'"\ud83d"'):
        with pytest.raises(msgspec.ValidationError):
            encoding.decode(number, data)


def test_a_message_keeps_its_halves_in_what_only_passes_and_in_its_id() -> None:
    (message,) = decode_line(rb'{"id":"\ud83d","method":"x\ud83d","params":{"a":"\ud83d"}}')
    assert (message.id, message.method, bytes(message.params)) == (HALF, "x\ufffd", rb'{"a":"\ud83d"}')
    both = rb'[{"id":1,"result":{"a":"\ud83d"}},{"id":2,"result":{}}]'
    one, two = decode_line(both, "2025-03-26")  # the version that has batches
    assert (decode_result(bytes(one.result)), two.id) == ({"a": "\ufffd"}, 2)


# ---- from servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["", "raw"])
@in_real_time
async def test_t45_a_server_that_cuts_its_text_is_met_listed_called_and_read(how: str) -> None:
    config = {"mcpServers": {"cut": halves.entry(how)}, "settings": {"toolPrefix": "none"}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.connect("cut")
        cut = "cut \ufffd\ufffd\ufffd" if how else CUT  # one for each byte
        assert {target.description for target in room.tools() if target.kind == "tool"} == {cut}
        assert (await room.call("say", {"text": "x"})).text == f"{cut}, heard x"
        assert (await room.read_resource("cut://1")).text == cut
        with pytest.raises(RemoteError, match=cut) as caught:
            await room.call("fail")
        assert caught.value.data == [cut.removeprefix("cut ")]


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
@in_real_time
async def test_t45_over_http_a_server_that_cuts_its_text_is_met_listed_and_called(era: str) -> None:
    def hook(handler: Handler, seen: Seen) -> bool:
        if seen.method == "tools/call":
            text = f"cut {HALF}, heard {seen.message['params']['arguments']['text']}"
            handler.result(seen.message, {"content": [{"type": "text", "text": text}]})
        return seen.method == "tools/call"

    with raw_http(era) as server:
        server.tools[0]["description"] = f"cut {HALF}"
        server.tools[0]["inputSchema"] = {
            "type": "object",
            "properties": {"text": {"type": "string", "x-mcp-header": "Text"}},
        }
        server.hook = hook
        async with room_at(server.url) as room:
            assert room.describe("ok").description == CUT
            assert (await room.call("ok", {"text": HALF})).text == f"{CUT}, heard \ufffd"


@in_real_time
async def test_t45_a_servers_cut_id_is_echoed() -> None:
    config = {"mcpServers": {"cut": halves.entry()}, "settings": {"toolPrefix": "none"}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.connect("cut")
        assert (await room.call("ask")).text == "True ['error', 'id', 'jsonrpc']"


@in_real_time
async def test_t45_a_server_in_our_own_process_may_cut_its_text() -> None:
    from mcp.server import MCPServer

    server = MCPServer("within")

    @server.tool(description=f"cut {HALF}")
    def say(text: str) -> str:
        return f"cut {HALF}, heard {text}"

    empty: dict[str, Any] = {"mcpServers": {}, "settings": {"toolPrefix": "none"}}
    opened = Greenroom.open(empty, cache_path=":memory:", bootstrap=False, in_process={"within": server})
    async with opened as room:
        await room.connect("within")
        assert room.describe("say").description == CUT
        assert (await room.call("say", {"text": HALF})).text == f"{CUT}, heard \ufffd"


# ---- from clients --------------------------------------------------------------------------------------------------


def _send(gateway: Gateway, line: bytes) -> None:
    assert gateway.process.stdin is not None
    gateway.process.stdin.write(line + b"\n")
    gateway.process.stdin.flush()


def _line(gateway: Gateway, mark: bytes) -> bytes:
    """The first line with `mark` in it, as it came."""
    assert gateway.process.stdout is not None
    for line in gateway.process.stdout:
        if mark in line:
            return line
    raise AssertionError("the gateway ended")


CALL = rb'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"%b","arguments":{%b}}}'


def test_t45_at_the_direct_door_results_pass_as_they_came_and_every_request_is_answered(
    tmp_path: Path,
) -> None:
    events = tmp_path / "events.jsonl"
    with serve(
        tmp_path, {"cut": halves.entry()}, "--expose", "direct", "--events", os.fspath(events)
    ) as gateway:
        gateway.initialize()
        _send(gateway, CALL % (rb'"\ud83d"', b"cut_say", rb'"text":"\ud83d"'))
        assert rb"cut \ud83d, heard \ufffd" in _line(gateway, rb'"id":"\ud83d"')
        _send(gateway, CALL % (b"7", b"cut_say", b'"text":"\xff"'))
        assert rb"cut \ud83d, heard \ufffd" in _line(gateway, b'"id":7')
        _send(gateway, CALL % (b"8", b"cut_fail", b""))
        error = json.loads(_line(gateway, b'"id":8'))["error"]
        assert error["message"].endswith(CUT)
        _send(gateway, b'{"jsonrpc":"2.0","id":9,"method":"tools/list"}')
        assert {tool["description"] for tool in json.loads(_line(gateway, b'"id":9'))["result"]["tools"]} >= {
            CUT
        }
        assert gateway.end() in (0, -14)
    assert all(json.loads(line) for line in events.read_text(encoding="utf-8").splitlines())


def test_t45_a_real_server_answers_half_a_character(tmp_path: Path) -> None:
    """Its SDK would leave the request unanswered."""
    with serve(tmp_path, {"time": real_server("time", tmp_path).entry}, "--expose", "direct") as gateway:
        gateway.initialize()
        _send(gateway, CALL % (b"5", b"time_get_current_time", rb'"timezone":"\ud83d"'))
        assert b"isError" in _line(gateway, b'"id":5')
        assert gateway.end() == 0


def test_t45_the_command_line_and_the_control_socket_take_what_a_shell_can_say(tmp_path: Path) -> None:
    def command(*arguments: bytes) -> subprocess.CompletedProcess[bytes]:
        base = [*GREENROOM, "call", "--config", os.fspath(tmp_path / "mcp.json")]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(tmp_path),
            "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
            "XDG_RUNTIME_DIR": os.fspath(tmp_path),
            "PYTHONUTF8": "1",
        }
        whole_command = [*map(os.fsencode, base), *arguments]
        return subprocess.run(
            whole_command, env=environment, cwd=tmp_path, capture_output=True, timeout=PATIENCE
        )

    heard = f"{CUT}, heard \ufffd".encode()
    with serve(tmp_path, {"cut": halves.entry()}):
        through_it = command(b"cut_say", b"text=\xff")
        by_json = command(b"cut_say", b"--args", rb'{"text":"\ud83d"}')
        unknown = command(b"\xff", b"text=x")
    alone = command(b"cut_say", b"text=\xff")
    assert [(done.returncode, heard in done.stdout) for done in (through_it, by_json, alone)] == [
        (0, True)
    ] * 3
    assert unknown.returncode == 1
    assert b"bug" not in unknown.stderr


def test_of_a_key_that_occurs_twice_the_last_value_counts_and_none_is_cut_wrong() -> None:
    for data, parts in (
        (b'{"a":"x","b":"\\ud800","a":"yy"}', {"a": b'"yy"', "b": b'"\\ufffd"'}),
        (b'{"b":"\\ud800","a":"x","a":"yy"}', {"b": b'"\\ud800"', "a": b'"yy"'}),
        (b'{"a":1,"b":"\\ud800","a":2}', {"a": b"2", "b": b'"\\ufffd"'}),
    ):
        assert {key: bytes(part) for key, part in encoding.decode_parts(data).items()} == parts
