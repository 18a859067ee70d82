"""Links to what no list names, tasks, and results that strict clients refuse: `--expose direct`, as a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import types
from tests.support.said import asked, said
from tests.support.whole import RawClient, direct_door

from greenroom.gateway._direct._links import Links

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
    door.greet()
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
    links.learn("t", b'{"content":[{"type":"resource","resource":3}]}')
    links.learn(
        "t", b'{"content":[{"type":"resource_link","uri":7},{"type":"resource_link","uri":"u:4999"}]}'
    )
    assert links.giver("u:4999") == "t"


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


def test_the_mcp_tool_refuses_a_tool_that_runs_only_as_a_task(tmp_path: Path) -> None:
    """So does whoever embeds a room: the refusal is made where calls are accepted."""
    must = {"name": "must", "inputSchema": SCHEMA, "execution": {"taskSupport": "required"}}
    answers = {"tools/list": {"tools": [must]}, "tools/call": {"content": []}}
    with direct_door(tmp_path, {"s": said(tmp_path, "s", answers)}, expose="proxy") as door:
        door.greet()
        refused = door.call("mcp", {"tool": "s_must"})["result"]
        assert refused["isError"]
        assert refused["_meta"]["greenroom/details"]["error"] == "task_needed"
        assert "not called" in refused["content"][0]["text"]


@ERAS
def test_a_tool_that_runs_only_as_a_task_is_refused_and_says_so(tmp_path: Path, modern: bool) -> None:
    def tool(name: str, support: str) -> dict[str, Any]:
        return {"name": name, "inputSchema": SCHEMA, "execution": {"taskSupport": support}}

    answers = {
        "tools/list": {"tools": [tool("must", "required"), tool("may", "optional")]},
        "tools/call": {"content": []},
        "capabilities": {"tasks": {"requests": {"tools": {"call": {}}}}},
    }
    with direct_door(tmp_path, {"s": said(tmp_path, "s", answers)}, modern=modern) as door:
        hello = door.greet()
        door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        assert "tasks" not in hello["capabilities"]
        assert {tool["name"] for tool in door.list_all("tools")} == {"s_must", "s_may"}
        refused = door.call("s_must")["result"]
        assert refused["isError"]
        assert 'runs only as a task (taskSupport: "required")' in refused["content"][0]["text"]
        assert refused["_meta"]["greenroom/error"] == {
            "error": "task_needed",
            "server": "s",
            "reach": "not_sent",
        }
        params = {"name": "s_may", "arguments": {}, "task": {"ttl": 1000}}
        assert door.result("tools/call", params)["content"] == []
        (call,) = [each for each in asked(tmp_path, "s") if each["method"] == "tools/call"]
        assert "task" not in call["params"]
