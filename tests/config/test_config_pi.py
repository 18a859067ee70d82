"""pi's two files, `.pi/mcp.json` and `~/.pi/agent/mcp.json`: their servers, their settings, and what they import."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.config.test_config_files import Place

from greenroom.config.files import load_config, project_asks
from greenroom.config.model import Approve, Lifecycle

NEAR, FAR = "project/.pi/mcp.json", "home/.pi/agent/mcp.json"


@pytest.fixture
def place(tmp_path: Any) -> Place:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    found = Place(tmp_path)
    found.write("home/.config/greenroom/mcp.json", {"imports": ["pi"], "settings": {"maxPages": 7}})
    return found


def test_its_files_are_merged_with_each_other_and_take_nothing_from_what_they_import(place: Place) -> None:
    place.write(FAR, {"mcpServers": {"s": {"command": "x", "env": {"T": "t"}}}, "imports": ["cursor"]})
    place.write(NEAR, {"mcpServers": {"s": {"lifecycle": "eager"}, "c": {"command": "pi"}}})
    place.write(
        "home/.cursor/mcp.json",
        {"mcpServers": {"c": {"command": "cursor", "args": ["a"]}, "d": {"command": "d"}}},
    )
    servers = place.load().servers
    assert (servers["s"].command, servers["s"].lifecycle) == ("x", Lifecycle.EAGER)
    assert (servers["c"].command, servers["c"].args) == ("pi", ())
    assert servers["d"].command == "d"
    place.write(NEAR, {"mcpServers": {"s": {"args": ["evil.js"]}}})
    assert place.load().servers["s"].env == {}, "the fences are ours"


def test_an_import_of_ours_that_is_stronger_gives_the_whole_entry(place: Place) -> None:
    place.write("home/.config/greenroom/mcp.json", {"imports": ["cursor", "pi"]})
    place.write("home/.cursor/mcp.json", {"mcpServers": {"s": {"command": "cursor"}}})
    place.write(FAR, {"mcpServers": {"s": {"command": "pi", "args": ["a"]}}, "imports": ["cursor", "pi"]})
    config = place.load()
    assert (config.servers["s"].command, config.servers["s"].args) == ("cursor", ())
    assert len(config.files) == len({*config.files}) == 3, "each file is read once"
    place.write("home/.config/greenroom/mcp.json", {"imports": ["pi", "cursor"]})
    assert place.load().servers["s"].command == "pi"


def test_its_settings_count_where_ours_say_nothing(place: Place) -> None:
    place.write(FAR, {"settings": {"idleTimeout": 3, "maxPages": 9, "requestTimeoutMs": 5000}})
    place.write(NEAR, {"settings": {"idleTimeout": 2}})
    config = place.load()
    settings = config.settings
    assert (settings.idle_timeout, settings.max_pages, settings.call_timeout) == (120.0, 7, 5.0)
    assert config.setting_sources["idle_timeout"] == str(place.root / NEAR)


def test_what_is_wrong_in_its_settings_never_refuses_ours(place: Place) -> None:
    named = place.write("project/mine.json", {"imports": ["pi"]})
    place.write(FAR, {"settings": {"idleTimeout": "3", "scriptMode": True, "maxPagez": 1}})
    config = place.load(named)
    where = str(place.root / FAR)
    assert [str(each).removeprefix(f"{where}: settings.").split(":")[0] for each in config.problems] == [
        "idleTimeout",
        "maxPagez",
        "scriptMode",
    ]
    assert config.settings.idle_timeout == 600.0
    assert "scriptMode: has no effect here: `greenroom serve --expose meta`" in str(config.problems[2])


@pytest.mark.parametrize("matter", [{"settings": {"inheritEnv": True}}, {"imports": ["cursor"]}])
def test_that_of_a_project_is_asked_about_for_its_settings_and_imports_too(place: Place, matter: Any) -> None:
    place.write(NEAR, matter)
    place.write("project/.cursor/mcp.json", {"mcpServers": {"evil": {"command": "evil"}}})
    config = load_config(cwd=place.cwd, home=place.home, environ={}, platform="linux")
    assert config.untrusted == (str(place.root / NEAR),), "what it imports is not even looked at"
    assert config.settings.inherit_env is False
    assert not config.servers
    (asked, *rest) = project_asks(cwd=place.cwd, home=place.home, environ={}, platform="linux")
    assert asked.matter == matter
    assert [os.path.basename(os.path.dirname(each.file)) for each in rest] == [".cursor"] * (
        "imports" in matter
    )


def test_what_it_imports_from_a_project_is_asked_about_and_named_among_the_files(place: Place) -> None:
    place.write(FAR, {"imports": ["cursor"]})
    evil = place.write("project/.cursor/mcp.json", {"mcpServers": {"evil": {"command": "evil"}}})
    config = load_config(cwd=place.cwd, home=place.home, environ={}, platform="linux")
    assert (dict(config.servers), config.untrusted) == ({}, (str(evil),))
    assert config.broken["evil"].code == "server_untrusted"
    assert config.files[-1] == str(evil)


def test_all_that_it_imports_is_watched(place: Place) -> None:
    place.write(FAR, {"imports": ["windsurf"]})
    assert {str(place.home / ".windsurf/mcp.json"), str(place.root / NEAR)} <= {*place.load().places}


def test_settings_without_effect_are_named_once_with_what_to_do_instead(place: Place) -> None:
    screen = {"showStatusIcon": True, "mcpFooterStatus": "full", "collapsedResultLines": 2}
    quiet = {"samplingAutoApprove": False, "hostConfigDiscovery": "off", "sampling": True, "trace": None}
    place.write(FAR, {"settings": {**screen, **quiet, "autoAuth": True, "elicitation": False}})
    where = str(place.root / FAR)
    assert [str(each).removeprefix(f"{where}: ") for each in place.load().problems] == [
        (
            'settings: "showStatusIcon", "mcpFooterStatus", "collapsedResultLines" have no effect here: '
            "only for pi's own screen"
        ),
        "settings.autoAuth: has no effect here: `greenroom auth S` logs in",
        "settings.elicitation: has no effect here: what a client can answer decides",
    ]


def test_which_calls_it_asks_about_and_the_era_it_insists_on_count(place: Place) -> None:
    versions = {"a": "legacy", "b": "2026-07-28", "c": "auto"}
    servers = {name: {"command": "x", "protocolVersion": version} for name, version in versions.items()}
    place.write(FAR, {"settings": {"approveTools": ["write_*"]}, "mcpServers": servers})
    config = place.load()
    assert config.settings.approve == ("write_*",)
    assert [config.servers[name].era.value for name in versions] == ["handshake", "stateless", "auto"]
    assert not config.problems
    place.write(NEAR, {"settings": {"approveTools": True}, "mcpServers": {"a": {"protocolVersion": "2020"}}})
    config = place.load()
    assert config.settings.approve is Approve.ALL
    assert [each.what for each in config.problems] == [
        'has no effect here; it is kept unchanged (write "era": "handshake" or "stateless")'
    ]
