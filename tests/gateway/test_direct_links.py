"""Links to what no list names, tasks, and results that strict clients refuse: `--expose direct`, as a real process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp import types
from tests.support.rows import for_each
from tests.support.said import said
from tests.support.whole import RawClient, direct_door

from greenroom.gateway.exposures.direct_client import LINK, Links, uris_in
from greenroom.gateway.exposures.direct_results import readable, readable_tool
from greenroom.protocol.bounds import LARGE_MESSAGE

SCHEMA = {"type": "object"}
ERAS = pytest.mark.parametrize("modern", [False, True], ids=["2025-11-25", "2026-07-28"])


def _server(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """A server that lists one resource, and points to others."""
    tools = ["link", "embed", "steal", "structured", "empty", "asked"]
    link = {"type": "resource_link", "uri": "made://one", "name": "one"}
    answers = {
        "tools/list": {"tools": [{"name": tool, "inputSchema": SCHEMA} for tool in tools]},
        "tools/call link": {"content": [link, {**link, "uri": f"own://{name}"}]},
        "tools/call embed": {
            "content": [{"type": "resource", "resource": {"uri": f"embedded://{name}", "text": "part"}}]
        },
        "tools/call steal": {"content": [{**link, "uri": "listed://a"}, {**link, "uri": "greenroom://a/x"}]},
        "tools/call structured": {"structuredContent": {"a": [1, None]}, "content": None, "isError": None},
        "tools/call empty": {},
        "tools/call asked": {"content": []},
        "resources/list": {"resources": [{"uri": f"listed://{name}", "name": "listed"}]},
        "resources/read": {"contents": [{"text": f"of {name}"}]},
        f"resources/read embedded://{name}": {
            "contents": [{"uri": f"deeper://{name}", "text": "see there"}],
        },
        "prompts/list": {"prompts": [{"name": "point"}]},
        "prompts/get point": {
            "messages": [{"role": "user", "content": {**link, "uri": f"prompted://{name}"}}]
        },
        "completion/complete": {"completion": {"values": [str(n) for n in range(150)]}},
        **more,
    }
    return said(folder, name, answers)


def _ready(door: RawClient, tools: int) -> None:
    door.initialize()
    door.wait(lambda: len(door.list_all("tools")) >= tools, "the catalogue")


def _read(door: RawClient, uri: str) -> str:
    answer = door.ask("resources/read", {"uri": uri})
    if "error" in answer:
        return str(answer["error"]["message"])
    (contents,) = answer["result"]["contents"]
    assert isinstance(contents["uri"], str)
    return contents["text"]


@ERAS
def test_what_a_server_only_links_to_is_read_where_the_link_is_from(tmp_path: Path, modern: bool) -> None:
    servers = {name: _server(tmp_path, name) for name in ("a", "b")}
    with direct_door(tmp_path, servers, modern=modern) as door:
        _ready(door, 12)
        assert "of a" not in _read(door, "own://a")  # nobody has given it yet
        for name in ("a", "b"):
            door.call(f"{name}_link")
            door.call(f"{name}_embed", trace=1)
            assert _read(door, "made://one") == f"of {name}"  # the later gift is meant
            assert _read(door, f"own://{name}") == f"of {name}"
            assert _read(door, f"embedded://{name}") == "see there"
            assert _read(door, f"deeper://{name}") == f"of {name}"
            door.result("prompts/get", {"name": f"{name}_point"})
            assert _read(door, f"prompted://{name}") == f"of {name}"


@pytest.mark.parametrize(("modern", "options"), [(True, ()), (False, ("--modern",))], ids=["older", "newer"])
def test_a_large_result_is_passed_on_as_a_small_one_is(
    tmp_path: Path, modern: bool, options: tuple[str, ...]
) -> None:
    link = {"type": "resource_link", "uri": "large://one", "name": "one"}
    text = {"type": "text", "text": 'a line, "\u00e9"\n' * (LARGE_MESSAGE // 13)}
    made = {"structuredContent": {"x": text["text"]}}
    answers = {
        "tools/list": {
            "tools": [{"name": tool, "inputSchema": SCHEMA} for tool in ("large", "made", "small")]
        },
        "tools/call large": {
            "content": [text, link],
            "_meta": {"greenroom/server": "b", "a": 1},
            "more": {"b": 2},
        },
        "tools/call small": {"content": [link], "_meta": {"greenroom/server": "b", "a": 1}, "more": {"b": 2}},
        "tools/call made": made,
        "resources/read": {"contents": [{"uri": "large://one", "text": "of a"}]},
        "prompts/list": {"prompts": [{"name": "large"}]},
        "prompts/get large": {"messages": [{"role": "user", "content": text}]},
    }
    with direct_door(tmp_path, {"a": said(tmp_path, "a", answers, *options)}, modern=modern) as door:
        _ready(door, 3)
        small = door.result("tools/call", {"name": "a_small"})
        for large in (door.call("a_large")["result"], door.call("a_large", trace=1)["result"]):
            assert large == {**small, "content": [text, link]}
            assert "greenroom/server" not in large.get("_meta", {})
        assert _read(door, "large://one") == "of a"
        (block,) = door.call("a_made")["result"]["content"]
        assert json.loads(block["text"]) == made["structuredContent"]
        assert door.result("prompts/get", {"name": "a_large"})["messages"][0]["content"] == text


def test_a_link_takes_nothing_from_who_lists_it_nor_a_name_of_ours(tmp_path: Path) -> None:
    with direct_door(tmp_path, {name: _server(tmp_path, name) for name in ("a", "b")}) as door:
        _ready(door, 12)
        door.call("b_steal")
        assert _read(door, "listed://a") == "of a"
        assert _read(door, "greenroom://a/x") == "of a"


def test_what_is_remembered_is_bounded() -> None:
    links = Links()
    for number in range(5000):
        links.add("s", f"u:{number}")
    assert (links.giver("u:0"), links.giver("u:4999")) == (None, "s")
    links.add("s", "u:" + "x" * 5000)
    assert links.giver("u:" + "x" * 5000) is None
    links.learn("t", uris_in(b'{"content":[{"type":"resource","resource":3}]}'))
    links.learn(
        "t",
        uris_in(b'{"content":[{"type":"resource_link","uri":7},{"type":"resource_link","uri":"u:4999"}]}'),
    )
    assert links.giver("u:4999") == "t"


def test_whatever_a_result_points_to_is_remembered_and_the_later_giver_is_meant() -> None:
    links = Links()
    link = {"type": "resource_link", "uri": "u:link"}
    embedded = {"type": "resource", "resource": {"uri": "u:embedded"}}
    links.learn("a", uris_in(encoded({"content": [{"type": "text", "text": ""}, link, embedded]})))
    links.learn(
        "a", uris_in(encoded({"contents": [{"uri": "u:part"}, {"text": "of no uri"}, {"uri": "u:other"}]}))
    )
    alone = {**link, "uri": "u:alone"}
    said = [{"content": {**link, "uri": "u:said"}}, {"content": [{**link, "uri": "u:one"}, alone]}, {}]
    links.learn("a", uris_in(encoded({"messages": said})))
    names = ["u:link", "u:embedded", "u:part", "u:other", "u:said", "u:one", "u:alone"]
    assert [links.giver(uri) for uri in names] == ["a"] * len(names)
    links.learn("b", uris_in(encoded({"content": [link]})))
    assert (links.giver("u:link"), links.giver("u:embedded"), links.giver("u:none")) == ("b", "a", None)
    for shape in (b"", b"[]", b"null", b'{"content":{}}', b'{"content":[{"resource":{"uri":[]}}]}', b"\xff"):
        links.learn("c", uris_in(shape))
    for uri in ("", "x" * 4097, "greenroom://a/b", 7, None):
        links.add("c", uri)
    assert "c" not in links._givers.values()
    links.add("c", "x" * 4096)
    assert links.giver("x" * 4096) == "c"
    assert [LINK in encoded({"content": [each]}) for each in (link, embedded, {"type": "text"})] == [
        True,
        True,
        False,
    ]


def test_of_one_result_so_many_links_are_remembered_and_what_is_used_stays_longest() -> None:
    links = Links()
    many = [{"uri": f"u:{number}"} for number in range(1025)]
    links.learn("a", uris_in(encoded({"contents": many})))
    assert (links.giver("u:1023"), links.giver("u:1024")) == ("a", None)
    links.add("b", "u:0")  # given anew, it is the youngest
    for number in range(4096 - 1024):
        links.add("a", f"v:{number}")
    assert (links.giver("u:0"), links.giver("u:1")) == ("b", "a")
    links.add("a", "one more")
    assert (links.giver("u:0"), links.giver("u:1"), links.giver("u:2")) == ("b", None, "a")


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@for_each(
    "result",
    [
        {"content": []},
        {"content": [], "structuredContent": {"a": 1}},
        {"resultType": "input_required", "structuredContent": {"a": 1}},
        {"task": {"taskId": "1"}},
    ],
)
def test_a_result_that_clients_can_read_passes_as_it_came(result: Any) -> None:
    came = encoded(result)
    assert readable_tool(came) is came
    assert readable("tools/call", {}, came) is came


def test_a_result_without_content_is_given_some_and_keeps_the_rest() -> None:
    def read(**result: Any) -> Any:
        return json.loads(readable("tools/call", {}, encoded(result)))

    assert read(resultType="complete", isError=True) == {
        "resultType": "complete",
        "isError": True,
        "content": [],
    }
    assert read(structuredContent=None, content=None) == {"content": []}
    said = read(structuredContent={"a": None}, _meta={"k": None})
    assert said == {
        "structuredContent": {"a": None},
        "_meta": {"k": None},
        "content": [{"type": "text", "text": '{"a": null}'}],
    }


def test_what_was_read_is_under_the_uri_it_was_asked_by_where_it_says_none() -> None:
    params = {"uri": msgspec.Raw(b'"u:asked"')}

    def read(*contents: Any) -> list[Any]:
        came = encoded({"contents": contents, "x": 1})
        made = readable("resources/read", params, came)
        assert json.loads(made)["x"] == 1
        assert (made is came) == (json.loads(made) == json.loads(came))
        return [
            part if not isinstance(part, dict) else part.get("uri") for part in json.loads(made)["contents"]
        ]

    assert read() == []
    assert read({"uri": "u:own", "text": ""}) == ["u:own"]
    assert read({"uri": "u:own", "blob": ""}, {"text": "a"}, {"uri": 7}) == ["u:own", "u:asked", "u:asked"]
    assert read("odd", {"uri": "u:own"}) == ["u:asked", "u:own"]
    odd = readable("resources/read", params, encoded({"contents": "odd"}))
    assert json.loads(odd)["contents"] == [{"uri": "u:asked", "text": "odd"}]


@for_each("completion", [None, "odd", {}, {"values": None}, {"values": "x" * 101}, {"values": {"a": 1}}])
def test_a_completion_of_another_shape_passes_as_it_came(completion: Any) -> None:
    for came in (encoded({"completion": completion}), b"{}"):
        assert readable("completion/complete", {}, came) is came


@for_each("count", [0, 99, 100, 101, 500])
def test_no_more_completions_than_the_protocol_allows(count: int) -> None:
    completion: dict[str, Any] = {
        "values": [str(number) for number in range(count)],
        "total": count,
        "hasMore": False,
    }
    came = encoded({"completion": completion, "_meta": {}})
    made = readable("completion/complete", {}, came)
    assert (made is came) == (count <= 100)
    assert json.loads(made)["completion"] == {
        "values": completion["values"][:100],
        "total": count,
        "hasMore": count > 100,
    }
    assert readable("prompts/get", {}, came) is came


@ERAS
def test_t46_results_that_strict_clients_refuse_are_readable(tmp_path: Path, modern: bool) -> None:
    with direct_door(tmp_path, {"a": _server(tmp_path, "a")}, modern=modern) as door:
        _ready(door, 6)
        structured = door.call("a_structured")["result"]
        assert structured["structuredContent"] == {"a": [1, None]}
        assert structured["content"] == [{"type": "text", "text": '{"a":[1,null]}'}]
        assert "isError" not in structured
        assert door.call("a_empty")["result"]["content"] == []
        for result in (structured, door.call("a_empty", trace=1)["result"]):
            types.CallToolResult.model_validate(result)
        ref = {"type": "ref/prompt", "name": "a_point"}
        params = {"ref": ref, "argument": {"name": "x", "value": ""}}
        completion = door.result("completion/complete", params)["completion"]
        assert (len(completion["values"]), completion["hasMore"]) == (100, True)


CONTENTS = [
    "said",
    ["said"],
    {"text": "said"},
    [{"uri": 7, "text": "said"}],
    [{"uri": "odd://0", "said": 1}],
    [["said"]],
]
MESSAGES = [
    "said",
    ["said"],
    {"role": "user", "content": "said"},
    [{"role": "system", "content": {"type": "text", "text": "said"}}],
    [{"role": "user", "content": ["said"]}],
    [{"said": 1}],
    [{"role": "user", "content": {"type": "text", "text": "said"}}, None],
]


@ERAS
def test_what_a_server_answers_in_another_form_is_shown_in_one_that_clients_take(
    tmp_path: Path, modern: bool
) -> None:
    """The SDKs of clients refuse the whole result for it, and the words are lost (issue 38, 1.6)."""
    more: dict[str, Any] = {
        **{f"resources/read odd://{n}": {"contents": each} for n, each in enumerate(CONTENTS)},
        "resources/list": {"resources": [{"uri": f"odd://{n}", "name": "odd"} for n in range(len(CONTENTS))]},
        **{f"prompts/get odd{n}": {"messages": each} for n, each in enumerate(MESSAGES)},
        "prompts/list": {"prompts": [{"name": f"odd{n}"} for n in range(len(MESSAGES))]},
        "tools/call link": {"content": "said"},
        "tools/call embed": {"content": ["said", 7]},
    }
    with direct_door(tmp_path, {"a": _server(tmp_path, "a", **more)}, modern=modern) as door:
        _ready(door, 6)
        for n in range(len(CONTENTS)):
            result = door.ask("resources/read", {"uri": f"odd://{n}"})["result"]
            assert "said" in result["contents"][0]["text"]
            types.ReadResourceResult.model_validate(result)
        for n in range(len(MESSAGES)):
            result = door.ask("prompts/get", {"name": f"a_odd{n}"})["result"]
            assert "said" in result["messages"][0]["content"]["text"]
            types.GetPromptResult.model_validate(result)
        for name in ("link", "embed"):
            result = door.call(f"a_{name}")["result"]
            assert result["content"][0] == {"type": "text", "text": "said"}
