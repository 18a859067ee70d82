"""What a server was given is planted in every text of what it says of itself, and comes out at no exposure, neither
from the running server nor from the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateway import Gateway, serve
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.lister import lister, skill

from greenroom.catalogue.definition_secrets import names_credential, without_credentials
from greenroom.catalogue.entries import Raw
from greenroom.cli.main import run
from greenroom.config.credentials import SecretValue
from greenroom.config.scrubbing import Secrets

OWN = 'hunter2-"of the=server"-own'
COMMON = "object"
NAMES = {"name", "uri", "uriTemplate", "type", "mimeType", "digest"}
SCHEMA = {
    "type": "object",
    "title": "t",
    "description": "d",
    "properties": {
        "path": {
            "type": "string",
            "description": "d",
            "default": "d",
            "enum": ["d"],
            "examples": ["d"],
            "const": "d",
        }
    },
    "$defs": {"x": {"description": "d", "$comment": "d"}},
}
META = {"x": {"deep": ["d", {"y": "d"}]}, "ui": {"resourceUri": "ui://page"}}
ICONS = [{"src": "d", "mimeType": "image/png"}]


def planted(value: Any, name: str = "") -> Any:
    """The value with the credential in every text that is no name."""
    if isinstance(value, str):
        return value if name in NAMES else f"{value} {OWN}"
    if isinstance(value, Mapping):
        return {key: planted(each, key) for key, each in value.items()}
    return [planted(each, name) for each in value] if isinstance(value, list) else value


def server(folder: Path, **more: Any) -> dict[str, Any]:
    common = {"title": "t", "description": "d", "_meta": META, "icons": ICONS}
    tool = {"inputSchema": SCHEMA, "outputSchema": SCHEMA, "annotations": {"title": "d"}, **common}
    made = skill("tags", {"a.md": "text"}, description=f"d {OWN}")
    made["skills"][0]["_meta"] = planted(META)
    entry = lister(
        folder,
        "s",
        tools=[planted({"name": "say", **tool})],
        prompts=[planted({"name": "ask", "arguments": [{"name": "x", "description": "d"}], **common})],
        resources=[planted({"uri": "note://all", "name": "all", "annotations": {"x": "d"}, **common})],
        templates=[planted({"uriTemplate": "note://{id}", "name": "one", **common})],
        instructions=f"Instructions {OWN}",
        capabilities={
            "experimental": {"x": {"y": OWN}},
            "extensions": {"io.modelcontextprotocol/skills": {"directoryRead": True}},
        },
        folders={
            "skill://tags": {
                "resources": [
                    planted({"uri": "skill://tags/SKILL.md", "name": "SKILL.md", **common}),
                    {"uri": f"skill://tags/{OWN}", "name": "x"},
                ]
            }
        },
        **made,
    )
    return {"s": {**entry, "env": {"API_TOKEN": OWN}, **more}}


def ask(gateway: Gateway, method: str, **params: Any) -> Any:
    answer = gateway.answer(gateway.send(method, params))
    return answer.get("result") or answer["error"]


def at_direct(gateway: Gateway) -> dict[str, Any]:
    lists = ("tools", "prompts", "resources", "resources/templates", "skills")
    found = {each: ask(gateway, f"{each}/list") for each in lists}
    found["folder"] = ask(gateway, "resources/directory/read", uri="skill://greenroom/s/tags")
    assert all(len(next(iter(each.values()))) >= 1 for each in found.values()), found
    return found


def at_mcp(gateway: Gateway) -> dict[str, Any]:
    asked = [
        {"search": "say"},
        {"search": "tags"},
        {"search": "say|ask|tags", "regex": True},
        {"server": "s"},
        {"describe": "s_say"},
        {"describe": "s_tags"},
        {"describe": "s_get_all"},
        {"instructions": "s"},
        {},
    ]
    return {str(each): gateway.mcp(**each) for each in asked}


def at_meta(gateway: Gateway) -> dict[str, Any]:
    asked = [{"query": "say"}, {"server": "s"}, {"instructions": "s"}]
    found = {str(each): ask(gateway, "tools/call", name="mcp_discover", arguments=each) for each in asked}
    intent = {"intent": "say"}
    return {**found, "intent": ask(gateway, "tools/call", name="mcp_provision", arguments=intent)}


EXPOSURES: dict[str, Callable[[Gateway], dict[str, Any]]] = {
    "direct": at_direct,
    "proxy": at_mcp,
    "meta": at_meta,
}


@pytest.mark.parametrize("exposure", EXPOSURES)
@pytest.mark.parametrize("rule", ["all", "mcp", "off"])
def test_no_text_of_any_definition_shows_it_at_any_exposure(tmp_path: Path, exposure: str, rule: str) -> None:
    """The second gateway has only the cache, and starts nothing. With `off` all show it: it is really there."""
    servers = server(tmp_path, scrub=rule)
    for is_again in (False, True):
        with serve(tmp_path, servers, "--expose", exposure, bootstrap=True) as gateway:
            hello = gateway.initialize()
            if not is_again and exposure == "proxy":
                gateway.mcp(connect="s")
            said = EXPOSURES[exposure](gateway)
            shown = {name for name, each in said.items() if "hunter2" in json.dumps(each)}
            if rule == "off":
                assert shown, said
            else:
                assert not shown
                assert "hunter2" not in json.dumps(hello)
                assert "***" in json.dumps(said)
            assert gateway.end() == 0


@pytest.mark.parametrize("rule", ["mcp", "off"])
def test_no_command_line_shows_it(home: Path, capsys: pytest.CaptureFixture[str], rule: str) -> None:
    own_config(home, json.dumps({"mcpServers": server(home, scrub=rule)}))
    assert run(["refresh", "s"]) == 0
    capsys.readouterr()
    said: dict[str, str] = {}
    for command in ("tools", "search say", "search tags", "describe s_say", "describe s_tags"):
        assert run([*command.split(), "--json"]) == 0
        said[command] = capsys.readouterr().out
        assert "say" in said[command] or "tags" in said[command]
    assert any("hunter2" in each for each in said.values()) == (rule == "off")
    kept = [path.read_bytes() for path in home.rglob("*") if path.is_file() and "catalogue" in path.name]
    assert kept
    assert any(b"hunter2" in each for each in kept) == (rule == "off"), "what is kept has it neither"


def test_a_skill_whose_entry_has_lost_it_can_be_read(tmp_path: Path) -> None:
    with serve(tmp_path, server(tmp_path)) as gateway:
        gateway.initialize()
        gateway.mcp(connect="s")
        assert "Body." in json.dumps(gateway.mcp(skill="s_tags"))
        assert gateway.end() == 0


def test_an_item_that_is_asked_for_by_it_is_left_out_and_the_status_says_so(tmp_path: Path) -> None:
    own = "p4ssW0rd-0f-the-s3rver"
    entry = lister(
        tmp_path,
        "s",
        tools=[{"name": "say", "inputSchema": {"type": "object"}}],
        resources=[
            {"uri": f"db://ann:{own}@host/a", "name": "a"},
            {"uri": "db://host/b", "name": "b"},
        ],
        contents={},
    )
    servers = {"s": {**entry, "env": {"DB_PASSWORD": own}}}
    with serve(tmp_path, servers, "--expose", "direct", bootstrap=True) as gateway:
        gateway.initialize()
        listed = ask(gateway, "resources/list")
        assert [each["uri"] for each in listed["resources"]] == ["db://host/b"]
        assert gateway.end() == 0
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        said = json.dumps(gateway.mcp(server="s"))
        assert own not in said
        assert "with a credential of its server in a name or URI" in said
        assert gateway.end() == 0


def test_a_common_word_leaves_prose_and_no_part_that_programs_read() -> None:
    """A password can be any word, also one of JSON Schema's."""
    record: Raw = {
        "name": "object",
        "description": "Takes an object.",
        "inputSchema": {"type": "object", "properties": {"object": {"enum": ["object"], "title": "object"}}},
    }
    shown = without_credentials(Secrets([SecretValue("PASSWORD", COMMON)]), record)
    assert shown == {
        "name": "object",
        "description": "Takes an ***.",
        "inputSchema": {"type": "object", "properties": {"object": {"enum": ["object"], "title": "***"}}},
    }
    assert not names_credential(record, shown)


def test_a_server_that_was_given_nothing_has_its_definitions_as_they_are() -> None:
    record: Raw = {"name": "a", "description": "sk-abcdefghijklmnopqrstuvwx"}
    assert without_credentials(Secrets(), record) is record
    assert without_credentials(Secrets([SecretValue("TOKEN", "another-token-1a2b3c")]), record) is record


_texts = st.text(max_size=5) | st.just(OWN) | st.text(max_size=3).map(lambda text: text + OWN)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_texts, _values, max_size=4))
def test_whatever_a_definition_looks_like_it_is_not_there(record: dict[str, Any]) -> None:
    shown = without_credentials(Secrets([SecretValue("TOKEN", OWN)]), record)
    assert OWN not in _texts_in(shown)
    if OWN not in _texts_in(record):
        assert shown is record


def _texts_in(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\0".join(f"{key}\0{_texts_in(each)}" for key, each in value.items())
    return "\0".join(map(_texts_in, value)) if isinstance(value, list) else str(value)
