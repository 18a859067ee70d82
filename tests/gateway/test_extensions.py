"""Extensions of the protocol pass the direct door both ways: what is declared, the pages of MCP Apps, and `_meta`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import HELLO, serve
from tests.support.lister import lister, tool
from tests.support.rows import for_each

from greenroom.catalogue.namespace import is_ours, qualified, unqualified
from greenroom.gateway.client_host import extensions_of, extensions_of_all
from greenroom.protocol.bounds import EXTENSIONS_BYTES

APPS = "io.modelcontextprotocol/ui"
TASKS = "io.modelcontextprotocol/tasks"
THEIRS = {"extensions": {APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}, "experimental": {"x": {"a": 1}}}
VIEW, HIDDEN = "ui://app/view", "ui://app/hidden"
SHOWN = {"ui": {"resourceUri": VIEW, "visibility": ["model"], "csp": {"connectDomains": []}}, "vendor/x": [1]}


def _app(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    page = {
        "uri": VIEW,
        "mimeType": "text/html;profile=mcp-app",
        "text": f"<p>{name}</p>",
        "_meta": {"ui": {"b": 1}},
    }
    return lister(
        folder,
        name,
        tools=[tool("show", _meta=SHOWN), tool("client"), tool("unlisted", _meta={"ui/resourceUri": HIDDEN})],
        results={"show": {"content": [], "_meta": {"ui": {"seen": True}}, "structuredContent": {"a": 1}}},
        resources=[{"uri": VIEW, "name": "view", "mimeType": page["mimeType"]}],
        contents={VIEW: page, HIDDEN: {**page, "uri": HIDDEN, "text": f"{name} hides"}},
        **more,
    )


def _ask(gateway: Any, method: str, params: Any = None) -> Any:
    return gateway.answer(gateway.send(method, params))["result"]


@pytest.mark.parametrize("modern", [False, True])
def test_apps_pass_the_direct_door(tmp_path: Path, modern: bool) -> None:
    declared = {"extensions": {APPS: {}}}
    given = {"one": _app(tmp_path, "one", capabilities=declared)}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": THEIRS,
    }
    said: dict[str, Any] = {"_meta": meta} if modern else {}
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        if not modern:
            _ask(gateway, "initialize", {**HELLO, "capabilities": THEIRS})
            gateway.tell("notifications/initialized")
        told = _ask(gateway, "tools/call", {"name": "one_client", "arguments": {}, **said})
        assert json.loads(told["content"][0]["text"]) == THEIRS
        tools = {each["name"]: each for each in _ask(gateway, "tools/list", said)["tools"]}
        assert tools["one_show"]["_meta"] == SHOWN
        page = _ask(gateway, "resources/read", {"uri": VIEW, **said})["contents"][0]
        assert (page["text"], page["_meta"], page["uri"]) == ("<p>one</p>", {"ui": {"b": 1}}, VIEW)
        shown = _ask(gateway, "tools/call", {"name": "one_show", "arguments": {}, **said})
        assert shown["structuredContent"] == {"a": 1}
        assert shown["_meta"]["ui"] == {"seen": True}
        again = _ask(gateway, "server/discover", said) if modern else _ask(gateway, "initialize", HELLO)
        assert again["capabilities"]["extensions"] == {APPS: {}}
        assert gateway.end() == 0


def test_each_app_has_its_own_page_though_two_have_the_same_address(tmp_path: Path) -> None:
    given = {name: _app(tmp_path, name) for name in ("one", "two")}
    with serve(tmp_path, given, "--expose", "direct") as gateway:
        gateway.initialize()
        for name in given:
            _ask(gateway, "tools/call", {"name": f"{name}_client", "arguments": {}})
        tools = {
            each["name"]: each["_meta"] for each in _ask(gateway, "tools/list")["tools"] if "_meta" in each
        }
        for name in ("one", "two"):
            listed, unlisted = (
                tools[f"{name}_show"]["ui"]["resourceUri"],
                tools[f"{name}_unlisted"]["ui/resourceUri"],
            )
            assert listed == f"ui://greenroom/{name}/app/view", "hosts take no other scheme"
            texts = [
                _ask(gateway, "resources/read", {"uri": uri})["contents"][0]["text"]
                for uri in (listed, unlisted)
            ]
            assert texts == [f"<p>{name}</p>", f"{name} hides"]
        assert gateway.end() == 0


def test_beside_the_mcp_tool_servers_are_told_of_no_extension(tmp_path: Path) -> None:
    with serve(tmp_path, {"one": _app(tmp_path, "one")}) as gateway:
        _ask(gateway, "initialize", {**HELLO, "capabilities": THEIRS})
        gateway.tell("notifications/initialized")
        result = gateway.mcp(tool="one_client")
        assert json.loads(result["content"][0]["text"]) == {}
        details = gateway.mcp(tool="one_show")["_meta"]["greenroom/details"]
        assert details["mcpResult"]["_meta"] == {"ui": {"seen": True}}
        assert gateway.end() == 0


def test_what_does_not_pass_is_left_out() -> None:
    assert extensions_of({"extensions": {TASKS: {}, APPS: {}}, "tools": {}}) == {"extensions": {APPS: {}}}
    assert extensions_of({"extensions": {TASKS: {}}, "experimental": [1]}) == {}
    assert extensions_of({"extensions": {APPS: "x" * EXTENSIONS_BYTES}}) == {}
    two = [{"extensions": {"a": {"x": 1}}}, {"extensions": {"a": {"y": 2}, "b": {}}}]
    assert extensions_of_all(two) == {"extensions": {"a": {"x": 1, "y": 2}, "b": {}}}


@for_each("uri", ["ui://a", "ui://greenroom/b/c", "greenroom://b/c", "file:///x", "UI://a"])
def test_a_qualified_uri_says_its_server_and_the_original(uri: str) -> None:
    long = qualified("my/server", uri)
    assert is_ours(long)
    assert unqualified(long) == ("my/server", uri)
