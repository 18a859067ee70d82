"""The short way through a gateway: what passes as the bytes that came says the same as on the long way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.gateway import serve

from greenroom.catalogue.namespace import Target
from greenroom.gateway.exposures.direct_client import uris_in
from greenroom.gateway.exposures.direct_results import is_for_all, readable_tool
from greenroom.gateway.exposures.result_texts import outcome_of, plain_answer, plain_result, plain_text
from greenroom.gateway.exposures.tool_definition import parse_request, read_plain_request
from greenroom.gateway.message_origin import result_without_ours
from greenroom.protocol.errors import UsageError
from greenroom.protocol.jsonrpc.encoding import encode
from greenroom.protocol.jsonrpc.incoming import decode_result
from greenroom.protocol.jsonrpc.outgoing import for_handshake
from greenroom.protocol.jsonrpc.terms import HANDSHAKE_VERSIONS
from greenroom.protocol.version_differences import older_result

TARGET = Target("s_do", "s", "tool", "do", {"name": "do"}, "", None)
TEXTS = st.text(st.sampled_from('aé€😀\n\\"'), max_size=12)

# Answers with all that matters, in each spelling; and what asks for it.
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "new"]), "text": TEXTS}, optional={"annotations": st.just({})}
)
results = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(st.one_of(st.builds(lambda text: {"type": "text", "text": text}, TEXTS), blocks)),
        "isError": st.booleans(),
        "structuredContent": st.just({"a": 1}),
        "_meta": st.just({"of": "the server"}),
        "resultType": st.just("complete"),
    },
)
PRINCIPAL = {
    "tool": st.sampled_from(["s_do", "", None, 7]),
    "args": st.sampled_from([{"a": 1.50}, {}, None, "", "{}", []]),
}
asked = st.fixed_dictionaries(
    {},
    optional={
        **PRINCIPAL,
        "server": st.sampled_from(["s", "", None]),
        "search": st.just("x"),
        "odd": st.just(1),
    },
)


@given(results, st.integers(0, 200), st.integers(0, 4), st.booleans(), st.sampled_from([None, 1]))
@example({"content": [{"type": "text", "text": "hi"}], "isError": False}, 0, 0, True, None)
@example({"content": [{"type": "text", "text": "a\nb"}]}, 0, 2, True, None)
def test_a_result_that_passes_as_it_came_says_what_it_would_say_decoded(
    result: dict[str, Any], max_bytes: int, max_lines: int, ascii_only: bool, indent: int | None
) -> None:
    raw = json.dumps(result, ensure_ascii=ascii_only, indent=indent).encode()
    said = plain_text(TARGET, raw, max_bytes, max_lines)
    if said is not None:
        short = plain_answer(TARGET, said)
        assert plain_result(TARGET, said) == encode(short)
        outcome = outcome_of("s", TARGET, decode_result(raw), max_bytes=max_bytes, max_lines=max_lines)
        assert outcome.is_whole
        assert json.loads(encode(short)) == outcome.answer().as_result()
        assert b"\n" not in encode(short)


shown = st.sampled_from(
    [
        {"type": "text", "text": 'a "resource" of greenroom'},
        {"type": "image", "data": "AAAA"},
        {"type": "audio", "data": "AAAA"},
        {"type": "resource_link", "uri": "file:///a"},
        {"type": "resource", "resource": {"uri": "file:///b"}},
        {"text": "of no type"},
        "no block",
    ]
)
results_for_direct = st.fixed_dictionaries(
    {},
    optional={
        "content": st.one_of(st.lists(shown, max_size=3), st.just("one text"), st.none()),
        "structuredContent": st.sampled_from([{"a": 1}, [1], "a", None]),
        "_meta": st.sampled_from([{"of": "the server"}, {"greenroom/error": 1}]),
        "resultType": st.just("complete"),
        "more": st.just([1]),
    },
)


@given(results_for_direct, st.sampled_from(HANDSHAKE_VERSIONS), st.booleans(), st.sampled_from([None, 1]))
@example({"content": [{"type": "text", "text": "hi"}], "structuredContent": {}}, "2025-06-18", False, None)
def test_what_passes_the_direct_door_at_once_is_what_the_long_way_makes_of_it(
    result: dict[str, Any], version: str, newer: bool, indent: int | None
) -> None:
    raw = json.dumps(result, indent=indent).encode()
    if is_for_all(raw):
        assert readable_tool(raw) == result_without_ours(raw) == raw
        assert older_result(raw, version, newer=newer) == raw
        assert json.loads(for_handshake(raw)) == result
        assert not any(uris_in(raw))


def test_texts_images_and_a_structured_object_pass_the_direct_door_at_once() -> None:
    content = b'[{"type":"text","text":"hi"},{"annotations":{},"type":"image","data":""}]'
    assert is_for_all(b'{"content":%b}' % content)
    assert is_for_all(b'{"isError":true,"structuredContent": {"a":[]},"content":%b}' % content)
    for member in (
        b'"structuredContent":[]',
        b'"\\u005fmeta":{"greenroom\\u002ferror":1}',
        b'"resultType":"x"',
    ):
        assert not is_for_all(b'{"content":%b,%b}' % (content, member))


def test_only_text_within_the_bounds_passes_as_it_came() -> None:
    said = b'{"content": [{"type":"text","text":"caf\\u00e9"}],"isError":false}'
    short = plain_text(TARGET, said, 100, 2)
    assert short is not None
    assert plain_result(TARGET, short).startswith(
        b'{"content":[{"type":"text","text":"caf\\u00e9"}],"_meta":'
    )
    assert plain_text(TARGET, said, 20, 2) is None
    assert plain_text(TARGET, said.replace(b"false", b"true"), 0, 0) is None
    assert plain_text(TARGET, b'{"content":[]}', 0, 0) is None
    assert plain_text(TARGET, said.replace(b"caf", b"\\ud83d"), 0, 0) is None
    assert plain_text(TARGET, said.replace(b"[{", b"[\n{"), 0, 0) is None


@given(asked)
def test_a_request_that_is_read_in_the_short_way_asks_for_the_same(arguments: dict[str, Any]) -> None:
    short = read_plain_request(msgspec.Raw(json.dumps(arguments).encode()))
    try:
        request = parse_request(arguments)
    except UsageError:
        assert short is None
        return
    if short is not None:
        args = json.loads(bytes(short.args)) if isinstance(short.args, msgspec.Raw) else short.args
        assert (short.mode, short.subject, short.server, args) == (
            (request.mode, request.subject, request.server, request.args)
        )


SAYS_WHAT_CAME = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, result = asked["method"], {"resources": [], "prompts": []}
    if method == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "s", "version": "1"}
    elif method == "tools/list":
        result = {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": line[line.index('"arguments"'):].strip()}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_the_arguments_of_a_call_reach_the_server_as_the_client_wrote_them(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SAYS_WHAT_CAME, encoding="utf-8")
    servers = {"s": {"command": sys.executable, "args": ["-S", str(program)]}}
    number = 123456789012345678901234567890
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        gateway.mcp(connect="s")
        said = gateway.mcp(tool="s_say", args={"id": number, "price": 1.50})
        assert str(number) in said["content"][0]["text"]
        assert gateway.end() == 0


@pytest.mark.parametrize("key", ["content", "\\u0063ontent"])
def test_of_two_contents_the_client_is_given_the_one_that_was_looked_at(key: str) -> None:
    said = b'{"content":[{"type":"text","text":"a"}],"%b":[{"type":"text","text":"b"}]}' % key.encode()
    short = plain_text(TARGET, said, 0, 0)
    assert short is not None
    assert plain_result(TARGET, short).startswith(b'{"content":[{"type":"text","text":"b"}],"_meta":')
