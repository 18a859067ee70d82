"""Servers that `greenroom init` moves out of a client's file, taken literally: what its documents show is served from
ours, and no mistake in one key stops the rest.

The examples have the keys and values of the clients' documents. Each of their keys is spoilt in turn, with any JSON
value: the other servers are still served, and the key has an effect, or a problem names it, or its server stays where
it is, with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config.test_foreign_files import ANY_JSON, ENVIRON, KINDS, Path_, effect, keys_in, names_key, put
from tests.support.profiles import examples

from greenroom.cli.client_files import CLIENTS, movable
from greenroom.config.files import load_config
from greenroom.config.foreign_keys import DESCRIBE
from greenroom.config.importers import Surroundings
from greenroom.config.model import Config
from greenroom.config.references import expand_definition

ZED: Final[dict[str, Any]] = {
    "context_servers": {
        "local": {"source": "custom", "command": "x", "args": ["y"], "env": {"A": "1"}, "enabled": True},
        "older": {"command": {"path": "x", "args": ["y"], "env": {"A": "1"}, "timeout": 60}, "settings": {}},
        "remote": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${KEY}"}, "timeout": 60},
        "extension": {"source": "extension", "enabled": True, "settings": {"key": "k"}},
    }
}
GEMINI: Final[dict[str, Any]] = {
    "mcpServers": {
        "local": {
            "command": "x", "args": ["--port", "8080"], "env": {"API_KEY": "$KEY", "B": "${KEY}", "C": "pa$word"},
            "cwd": "/tmp", "timeout": 30000, "trust": False, "description": "d", "includeTools": ["t"],
            "excludeTools": ["u"],
        },
        "sse": {"url": "https://h/sse", "headers": {"A": "1"}, "timeout": 5000},
        "http": {
            "httpUrl": "https://h/mcp", "headers": {"Authorization": "Bearer $KEY"}, "trust": True,
            "oauth": {"enabled": True, "clientId": "c", "clientSecret": "s", "scopes": ["a", "b"],
                      "authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "redirectUri": "http://localhost:1/x",
                      "audiences": ["z"], "issuer": "https://h", "registrationUrl": "https://h/r"},
            "authProviderType": "google_credentials", "targetAudience": "x", "targetServiceAccount": "y",
        },
    }
}  # fmt: skip


def _http() -> dict[str, Any]:
    return {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}


def _local() -> dict[str, Any]:
    return {"command": "x", "args": ["y"], "env": {"A": "1"}}


CLINE: Final[dict[str, Any]] = {
    "mcpServers": {
        "local": {**_local(), "disabled": False, "autoApprove": ["t"], "alwaysAllow": ["t"], "timeout": 60},
        "sse": {**_http(), "disabled": False, "alwaysAllow": []},
        "http": {"type": "streamableHttp", **_http(), "disabled": False, "autoApprove": [], "timeout": 60},
    }
}
COPILOT: Final[dict[str, Any]] = {
    "mcpServers": {
        "local": {"type": "local", **_local(), "tools": ["*"]},
        "some": {"type": "stdio", **_local(), "tools": ["t", "u"]},
        "http": {"type": "http", **_http(), "tools": ["*"]},
        "sse": {"type": "sse", **_http(), "tools": ["*"]},
    }
}
GOOSE: Final[dict[str, Any]] = {
    "extensions": {
        "developer": {"type": "builtin", "name": "developer", "enabled": True, "timeout": 300, "bundled": True},
        "local": {
            "type": "stdio", "name": "x", "cmd": "x", "args": ["y"], "envs": {"A": "1"}, "env_keys": [],
            "timeout": 300, "description": "d", "bundled": None, "available_tools": [], "enabled": True,
        },
        "keyring": {"type": "stdio", "name": "k", "cmd": "x", "args": [], "env_keys": ["TOKEN"], "enabled": True},
        "http": {
            "type": "streamable_http", "name": "h", "uri": "https://h/mcp", "headers": {"A": "1"}, "enabled": False,
            "timeout": 300,
        },
    }
}  # fmt: skip
KIRO: Final[dict[str, Any]] = {
    "mcpServers": {
        "local": {**_local(), "disabled": False, "autoApprove": ["t"], "disabledTools": ["u"]},
        "http": {**_http(), "oauth": {"clientId": "c"}, "oauthScopes": ["a"], "disabled": False},
    }
}
PLAIN: Final[dict[str, Any]] = {"mcpServers": {"local": _local(), "http": _http()}}
FILES: Final = {
    "zed": ZED,
    "gemini": GEMINI,
    "cline": CLINE,
    "copilot-cli": COPILOT,
    "goose": GOOSE,
    "kiro": KIRO,
    **dict.fromkeys(("continue", "junie", "lm-studio"), PLAIN),
    **{kind: KINDS[kind] for kind in CLIENTS if kind in KINDS},
}


def test_every_client_that_init_knows_has_an_example() -> None:
    assert FILES.keys() == CLIENTS.keys()


def moved(kind: str, content: dict[str, Any], folder: Path) -> tuple[Config, Mapping[str, str]]:
    """Our configuration with what moves into it, and why the others stay."""
    home, project = folder / "home", folder / "project"
    around = Surroundings(project, home, {}, "linux")
    move = movable(kind, CLIENTS[kind], around, content, {})
    ours = folder / "ours.json"
    ours.write_text(json.dumps({"mcpServers": move.servers}))
    config = load_config(ours, cwd=folder, home=home, environ=ENVIRON, platform="linux", trust=True)
    return config, move.stay


PLACES: Final = [(kind, path) for kind, content in FILES.items() for path in keys_in(content) if path[2:]]


@examples(200)
@given(where=st.sampled_from(PLACES), value=ANY_JSON)
def test_a_mistake_in_one_key_of_a_moved_entry_never_stops_the_rest(
    where: tuple[str, Path_], value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, path = where
    original, folder = FILES[kind], tmp_path_factory.mktemp("moved")
    usual, usual_stay = moved(kind, original, folder)
    others = {*original[CLIENTS[kind].section]} - {path[1]} - {*usual_stay}
    config, stay = moved(kind, put(original, path, value), folder)
    assert others <= config.servers.keys(), config.broken
    if str(path[1]) in stay or value in (None, False, "", [], {}, "off") or path[-1] in DESCRIBE:
        return
    without, _ = moved(kind, put(original, path, ...), folder)
    if effect(config) != effect(without) or effect(config) == effect(usual):
        return
    assert any(names_key(str(each), path) for each in config.problems), f"{path} = {value!r} is dropped"


@pytest.mark.parametrize("kind", FILES)
def test_what_the_clients_documents_show_is_served(kind: str, tmp_path: Path) -> None:
    config, stay = moved(kind, FILES[kind], tmp_path)
    assert not config.broken
    assert config.servers.keys() | stay.keys() == FILES[kind][CLIENTS[kind].section].keys()


def test_what_gemini_refers_to_is_what_the_server_gets(tmp_path: Path) -> None:
    config, _ = moved("gemini", GEMINI, tmp_path)
    local = expand_definition(config.servers["local"], ENVIRON).definition
    remote = expand_definition(config.servers["http"], ENVIRON).definition
    assert local.env == {"API_KEY": "k3y", "B": "k3y", "C": "pa$word"}
    assert remote.headers == {"Authorization": "Bearer k3y"}
    assert isinstance(remote.oauth, Mapping)
    assert remote.oauth["scope"] == "a b"
