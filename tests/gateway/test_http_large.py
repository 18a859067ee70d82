"""Large requests and large results over HTTP: as small ones, but read and written piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.gateway.test_http_door import text_of, with_door
from tests.support.asking import Asking, AskingServer
from tests.support.http_door import Opened, events_in, messages, request

from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.doors.http_streams import SseStream
from greenroom.protocol.bounds import LARGE_MESSAGE, LONG_META_BYTES, MESSAGE_VALUES

LONG = "é, a line\n" * (LARGE_MESSAGE // 8)
RULES = Rules(max_body=16 << 20)


async def long_text(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    asking.progress("on it")
    return LONG


@pytest.mark.parametrize("expose", ["direct", "proxy"])
def test_a_large_request_is_answered_in_both_eras(expose: str) -> None:
    params = {"name": "own_echo", "arguments": {"text": LONG}}
    if expose == "proxy":
        params = {"name": "mcp", "arguments": {"tool": "own_echo", "args": {"text": LONG}}}

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        answers = [await person.ask("tools/call", params, key) for key in (7, "seven")]
        modern = await opened.stateless("tools/call", params, 8)
        answers.append(messages(modern)[-1])
        spaced = await person.post(json.dumps(request("tools/call", 9, params), indent=1).encode())
        answers.append(messages(spaced)[-1])
        assert [answer["id"] for answer in answers] == [7, "seven", 8, 9]
        for answer in answers:
            said = answer["result"]["content"][0]["text"]
            assert json.loads(said) == LONG if expose == "direct" else "a line" in said[:100]

    with_door(body, expose=expose, rules=RULES)


def test_a_large_request_may_ask_for_progress_and_its_answer_comes_in_one_event() -> None:
    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        params = {"name": "own_long", "arguments": {"text": LONG}, "_meta": {"progressToken": "p"}}
        for answer in (
            await person.post(request("tools/call", 7, params)),
            await opened.stateless("tools/call", params, 7),
        ):
            progress, last = (message for _, message in events_in(answer.text))
            assert progress["params"]["progressToken"] == "p"
            assert (last["id"], text_of(last)) == (7, LONG)

    with_door(body, AskingServer({"long": long_text}), rules=RULES)


def test_what_is_large_and_no_request_is_refused_as_on_stdio() -> None:
    many = (
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"own_echo","arguments":{"x":[%s{}]}}}'
    )
    meta = {"name": "own_echo", "_meta": {"x": "x" * LONG_META_BYTES}, "arguments": {"text": LONG}}
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": LONG}}

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        refused = await person.post((many % ("{}," * MESSAGE_VALUES)).encode())
        assert refused.status_code == 413
        assert f"{MESSAGE_VALUES:,} values and keys" in refused.json()["error"]["message"]
        refused = await person.post(request("tools/call", 3, meta))
        assert (refused.status_code, refused.json()["id"]) == (400, 3)
        assert "beside arguments" in refused.json()["error"]["message"]
        assert (await person.post(note)).status_code == 202
        refused = await person.post(request("ping", 4, {"arguments": LONG}))
        assert "only a request about an item" in refused.json()["error"]["message"]
        refused = await person.post(
            b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":[' + b"1," * LARGE_MESSAGE
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32700)
        assert text_of(await person.call("own_echo", text="a")) == "a"

    with_door(body, rules=RULES)


def test_a_long_message_on_a_stream_is_written_in_pieces_and_without_line_ends() -> None:
    stream = SseStream(3, Rules(replay_bytes=8 << 20))
    stream.put(b'{"a":1}\n')
    stream.put(b'{"b":' + b"\r" * LARGE_MESSAGE + b"2}\n")
    stream.put(b'{"c":3}\n')
    pieces = list(stream._unread_frames())

    assert max(map(len, pieces)) <= 1 << 18
    whole = b"".join(pieces)
    assert b"\r" not in whole
    assert [(name, message) for name, message in events_in(whole.decode())] == [
        ("3-1", {"a": 1}),
        ("3-2", {"b": 2}),
        ("3-3", {"c": 3}),
    ]
    assert stream.unread == 0
    assert stream.size == len(whole)
