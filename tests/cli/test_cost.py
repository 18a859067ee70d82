"""What tools cost a model's context: the sums, and the command that shows them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.cost_command import cost_of, counter, search_cost, task_of
from greenroom.cli.main import run
from greenroom.cli.task_costs import definition_cost
from greenroom.config.files import load_config
from greenroom.config.model import ServerDefinition, Settings
from greenroom.gateway.exposures.meta import definitions
from greenroom.gateway.exposures.tool_definition import DEFINITION
from greenroom.protocol.errors import UsageError

SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}}
TOOLS: tuple[dict[str, Any], ...] = (
    {"name": "now", "description": "The time", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "convert", "description": "A time elsewhere"},
)


def index() -> Index:
    entries = {
        "clock": ServerEntry("clock", "h", tools=TOOLS[:1]),
        "zones": ServerEntry("zones", "h", tools=TOOLS),
        "new": None,
    }
    return Index.build({name: ServerDefinition(name, command="x") for name in entries}, entries, Settings())


def test_a_tool_costs_what_a_model_is_given_of_it() -> None:
    cost = cost_of(index(), "letters", len)
    now = {"name": "clock_now", "description": "The time", "input_schema": SCHEMA}

    assert [(one.server, one.tools) for one in cost.servers] == [("zones", 2), ("clock", 1)], (
        "the dearest first"
    )
    assert cost.servers[1].tokens == len(json.dumps(now, separators=(",", ":")))
    assert (cost.tools, cost.direct) == (3, sum(one.tokens for one in cost.servers))
    assert cost.proxy == definition_cost(DEFINITION, len)
    assert cost.meta == sum(definition_cost(definition, len) for definition in definitions())


def test_what_clients_do_not_list_as_a_tool_costs_nothing_with_all_tools_shown() -> None:
    """A resource was counted as a tool there, though clients read it themselves."""
    place = {"uri": "zone://here", "name": "here"}
    entries = {"clock": ServerEntry("clock", "h", tools=TOOLS, resources=(place,))}
    servers = {"clock": ServerDefinition("clock", command="x")}
    only_tools = {"clock": ServerEntry("clock", "h", tools=TOOLS)}
    cost = cost_of(Index.build(servers, entries, Settings()), "letters", len)
    without = cost_of(Index.build(servers, only_tools, Settings()), "letters", len)
    assert (cost.servers, cost.direct) == (without.servers, without.direct)
    assert (cost.hidden, without.hidden) == (1, 0)
    assert (cost.resources, without.resources) == (1, 0)


def test_a_task_is_what_a_model_is_given_over_all_its_turns() -> None:
    cost = cost_of(index(), "letters", len)
    asked = search_cost("time", "two tools", len)
    assert asked == len('{"search":"time"}') + len("two tools")
    task = task_of(cost, asked)
    assert task.direct == 2 * cost.direct  # the call; its answer
    assert task.proxy == 3 * cost.proxy + 2 * asked  # the search; the call; its answer
    assert task.meta == 3 * cost.meta + 2 * asked


@pytest.mark.parametrize("chosen", [True, ["now"]])
def test_tools_beside_the_mcp_tool_are_there_in_every_turn_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chosen: Any
) -> None:
    known(tmp_path, monkeypatch, {"clock": {"command": "no-such-clock", "directTools": chosen}})
    assert run(["cost", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    _, count = counter()
    assert said["proxy"] == definition_cost(DEFINITION, count) + said["beside"]
    assert 0 < said["beside"] == said["direct"], "directTools is about both"
    assert said["hidden"] == (0 if chosen is True else 1)
    assert run(["cost"]) == 0
    assert f"of which {said['beside']} for the tools beside it" in capsys.readouterr().out


def test_a_definition_is_counted_with_its_description_and_as_it_is_written() -> None:
    shown = {"name": "uhr", "description": "Größe 🎭", "inputSchema": {"type": "object"}}
    bare = {"name": "uhr"}
    assert definition_cost({**shown, "annotations": {"title": "x"}}, len) == len(
        '{"name":"uhr","description":"Größe 🎭","input_schema":{"type":"object"}}'
    )
    assert definition_cost(bare, len) == len('{"name":"uhr","description":"","input_schema":{}}')
    assert search_cost("größe", "", len) == len('{"search":"größe"}')


def test_without_a_tokenizer_four_characters_are_a_token() -> None:
    name, count = counter()

    assert [count("x" * letters) for letters in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert name == "4 characters a token"
    assert definition_cost(DEFINITION, count) <= 290
    assert sum(definition_cost(definition, count) for definition in definitions()) <= 450


def test_an_encoding_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UsageError, match="pip install tiktoken"):
        counter("o200k_base")

    def get_encoding(name: str) -> Any:
        if name != "words":
            raise ValueError(f"Unknown encoding {name}")
        return SimpleNamespace(
            encode=lambda text, disallowed_special: text.split() if not disallowed_special else 1 / 0
        )

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=get_encoding))
    name, count = counter("words")
    assert (name, count("three short words")) == ("words", 3)
    with pytest.raises(UsageError, match="cannot use the encoding 'letters': Unknown encoding letters"):
        counter("letters")


def known(
    folder: Path, monkeypatch: pytest.MonkeyPatch, servers: Any, resources: tuple[dict[str, Any], ...] = ()
) -> None:
    """A configuration of these servers, of which one, the clock, is in the catalogue."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(folder)
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    keys = catalogue_keys(load_config(cwd=folder, home=folder, environ=os.environ))
    entry = ServerEntry("clock", keys["clock"], tools=TOOLS, resources=resources, fetched_at=time.time() - 60)
    assert CatalogueFile(default_cache_path()).save([entry], time.time()) is None


def test_the_command_says_what_is_shown_and_what_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"clock": {"command": "no-such-clock"}, "new": {"command": "nothing-known"}}
    known(tmp_path, monkeypatch, servers)

    assert run(["cost", "--json", "--search", "time"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["servers"] == [{"server": "clock", "tools": 2, "tokens": said["direct"]}]
    assert said["notCounted"] == ["new"]
    assert said["search"] > 10
    assert said["beside"] == 0
    assert run(["cost", "--search", "time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["clock", "2", "tools", str(said["direct"]), "tokens"]
    assert f"all tools shown (--expose direct): {said['direct']} tokens in every turn" in lines
    assert f"behind the tools of --expose meta: {said['meta']} tokens in every turn" in lines
    assert f"the answer to that search: {said['search']} tokens, in both turns that follow" in lines
    found = (
        f"one tool found by it and called, in all: {said['task']['proxy']:,} tokens behind the mcp tool, "
        f"{said['task']['meta']:,} behind those of meta, {said['task']['direct']} with all tools shown"
    )
    assert found in lines
    assert said["task"]["direct"] == 2 * said["direct"]
    assert said["task"]["proxy"] > 3 * said["proxy"] + 2 * said["search"]
    assert lines[-1] == "not counted, because their tools are unknown: new"


def test_a_disabled_server_is_not_among_those_that_are_not_counted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("some.json").write_text(
        json.dumps({"mcpServers": {"new": {"command": "x"}, "off": {"command": "x", "disabled": True}}})
    )
    assert run(["cost", "--config", "some.json"]) == 0
    assert "tools are unknown: new\n" in capsys.readouterr().out


def test_each_command_counts_the_tools_alike_and_the_resources_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = tuple({"uri": f"zone://{name}", "name": name} for name in ("here", "there", "far"))
    known(tmp_path, monkeypatch, {"clock": {"command": sys.executable}}, places)

    for words in (["tools"], ["status"], ["explain", "clock"], []):
        assert run(words) == 0
        assert "2 tools, 3 resources" in capsys.readouterr().out, words
    assert run(["cost"]) == 0
    cost = capsys.readouterr().out
    assert "2 tools" in cost.splitlines()[0]
    assert "not counted, because only the mcp tool calls them: 3 resources" in cost
