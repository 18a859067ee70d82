"""The files of other programs, taken literally: what their documents show is served, and no mistake in one key stops
the rest.

The examples have the keys and values of the originals' documents. Each of their keys is spoilt in turn, with any JSON
value: the other servers are still served, and either the key has an effect, or a problem names it.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.config.test_config_files import Place
from tests.support.profiles import examples

from greenroom.config.asked_values import command_in, with_answer
from greenroom.config.files import load_config
from greenroom.config.foreign_keys import DESCRIBE
from greenroom.config.importers import Surroundings, places_of
from greenroom.config.model import Config, Isolation
from greenroom.config.references import expand_definition

Path_ = tuple[str | int, ...]
ENVIRON: Final = {
    "HOME": "/home/me", "USER": "alice", "PASS": "p:w", "TOKEN": "t0ken", "KEY": "k3y",
    "CALL_TIMEOUT_SECS": "45", "BILLING_TOKEN": "b1ll", "INTERNAL_API_KEY": "int",
    "ADAPTER_BEARER_TOKEN": "door-token-1",
}  # fmt: skip
GOOD: Final = {"type": "stdio", "command": "good"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    return Place(tmp_path)


# ---- mcp-gateway's adapter: the examples of its documents ------------------------------------------------------------
ADAPTER: Final[dict[str, Any]] = {
    "adapter": {
        "bind": "127.0.0.1:3000", "mcpBearerToken": "${ADAPTER_BEARER_TOKEN}", "logLevel": "info",
        "callTimeout": 60, "startupTimeout": 30, "openapiProbe": True, "openapiProbeTimeout": 5,
        "restartPolicy": "on_demand", "stdioLifecycle": "per_session",
        "restartBackoff": {"minMs": 250, "maxMs": 30000},
        "transforms": {
            "toolOverrides": {
                "tool_a": {
                    "rename": "renamed_tool_a",
                    "params": {"oldParam": {"rename": "newParam"}, "limit": {"default": 10}},
                }
            }
        },
    },
    "servers": {
        "filesystem": {
            "type": "stdio", "lifecycle": "per_session", "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"], "env": {"NODE_ENV": "production"},
        },
        "billing_api": {
            "type": "http", "baseUrl": "http://billing-api:8080",
            "auth": {"type": "bearer", "token": "${BILLING_TOKEN}"},
            "defaults": {"timeout": 15, "headers": {"X-Caller": "unrelated-mcp-adapter"}},
            "tools": {
                "create_invoice": {
                    "method": "POST", "path": "/v1/invoices/{customerId}", "description": "Create an invoice.",
                    "params": {
                        "customerId": {"in": "path", "required": True, "schema": {"type": "string"}},
                        "q": {"in": "query", "schema": {"type": "string"}},
                        "body": {"in": "body", "required": True, "schema": {"type": "object"}},
                    },
                    "response": {"mode": "json", "outputSchema": {"type": "object"}},
                }
            },
        },
        "petstore": {
            "type": "openapi", "spec": "https://petstore3.swagger.io/api/v3/openapi.json",
            "baseUrl": "https://petstore3.swagger.io/api/v3",
            "autoDiscover": {"include": ["GET /pet/{petId}", "POST /pet"], "exclude": ["POST /pet"]},
            "specHash": "sha256:" + "0" * 64, "specHashPolicy": "fail",
            "endpoints": {"/pet/{petId}": {"get": {"tool": "get_pet", "params": {"petId": {"rename": "id"}}}}},
            "responseTransforms": [{"type": "dropNulls"}, {"type": "redactKeys", "keys": ["token", "secret"]}],
            "responseOverrides": [{"match": {"operationId": "getPetById"}, "outputSchema": {"type": "object"}}],
            "overrides": {
                "tools": {
                    "add_pet_override": {
                        "match": {"operationId": "addPet"},
                        "request": {
                            "method": "POST", "path": "/pet",
                            "params": {"body": {"in": "body", "required": True, "schema": {"type": "object"}}},
                        },
                    }
                }
            },
        },
        "internal_api": {
            "type": "http", "baseUrl": "http://internal-api:8080",
            "auth": {"type": "header", "name": "X-Api-Key", "value": "${INTERNAL_API_KEY}"},
            "tools": {"ping": {"method": "GET", "path": "/ping"}},
        },
        "of_user": {
            "type": "http", "baseUrl": "http://h", "tools": {"ping": {"method": "GET", "path": "/ping"}},
            "auth": {"type": "basic", "username": "${USER}", "password": "${PASS}"},
        },
        "of_query": {
            "type": "http", "baseUrl": "http://h", "tools": {"ping": {"method": "GET", "path": "/ping"}},
            "auth": {"type": "query", "name": "api_key", "value": "${KEY}"},
        },
    },
}  # fmt: skip


def adapter(place: Place, servers: dict[str, Any], **block: Any) -> Config:
    content = {**({"adapter": block} if block else {}), "servers": {**servers, "good": GOOD}}
    config = place.load(place.write("project/adapter.yaml", json.dumps(content)), **ENVIRON)
    assert "good" in config.servers
    return config


def told(config: Config) -> str:
    return "\n".join(map(str, config.problems))


def headers_of(config: Config, name: str) -> dict[str, str]:
    return dict(expand_definition(config.servers[name], ENVIRON).definition.headers)


def test_the_adapters_documents_are_served(place: Place) -> None:
    config = place.load(place.write("project/adapter.yaml", json.dumps(ADAPTER)), **ENVIRON)
    assert config.broken == {}
    assert config.servers.keys() == ADAPTER["servers"].keys()
    assert headers_of(config, "of_user") == {"Authorization": "Basic YWxpY2U6cDp3"}
    assert headers_of(config, "internal_api") == {"X-Api-Key": "int"}
    assert expand_definition(config.servers["of_query"], ENVIRON).definition.url == "http://h?api_key=k3y"


@pytest.mark.parametrize("said", [45, "45", " 45 ", "${CALL_TIMEOUT_SECS}"])
def test_numbers_of_the_adapter_may_be_texts_and_refer_to_variables(place: Place, said: Any) -> None:
    api: dict[str, Any] = {**ADAPTER["servers"]["billing_api"], "defaults": {"timeout": said}}
    config = adapter(
        place, {"api": api}, callTimeout=said, startupTimeout=said, restartBackoff={"minMs": said, "maxMs": said}
    )  # fmt: skip
    settings = config.settings
    assert (settings.call_timeout, settings.connect_timeout) == (45.0, 45.0)
    assert (settings.backoff_min, settings.backoff_max) == (0.045, 0.045)
    assert config.servers["api"].call_timeout == 45.0
    assert config.problems == ()


@pytest.mark.parametrize("said", ["${NOT_SET}", "soon", True, [], 0, -1, "9" * 400, float("nan")])
def test_a_number_of_the_adapter_that_is_none_is_told_in_its_unit_and_the_default_is_used(
    place: Place, said: Any
) -> None:
    config = adapter(place, {}, callTimeout=said)
    assert config.settings.call_timeout == 60.0
    assert "adapter.callTimeout: " in told(config)
    assert "the default is used" in told(config)
    assert "milliseconds" not in told(config)


def test_a_variable_that_is_not_set_breaks_the_adapters_server_and_no_other(place: Place) -> None:
    """There it ends the start; in the files of others it is read as empty."""
    entry = {"type": "stdio", "command": "x", "env": {"A": "${NOT_SET}"}}
    config = adapter(place, {"bad": entry})
    assert str(config.broken["bad"]).startswith("project/adapter.yaml: servers.bad.env.A: ") or (
        "servers.bad.env.A: it refers to the variable NOT_SET, which is not set. Set it"
        in str(config.broken["bad"])
    )
    ours = place.load(place.write("project/ours.json", {"mcpServers": {"bad": entry}}), **ENVIRON)
    assert "bad" in ours.servers
    path = {"type": "http", "baseUrl": "http://h", "tools": {"t": {"method": "GET", "path": "/${NOT_SET}/a"}}}
    assert "NOT_SET" in str(adapter(place, {"bad": path}).broken["bad"])
    path["tools"]["t"]["path"] = "/${KEY}/a"  # pyright: ignore[reportArgumentType, reportIndexIssue]
    http: Any = adapter(place, {"api": path}).servers["api"].http
    assert http["t"]["path"] == "/k3y/a"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"specHashPolicy": "warn"}, "specHashPolicy: has no effect here"),
        ({"specHashPolicy": None}, "specHash: has no effect here"),
        ({"defaults": {"timeout": 0}}, "defaults.timeout: has no effect here"),
        ({"defaults": {"arrayStyle": "form"}}, "defaults.arrayStyle: has no effect here"),
        ({"defaults": {"zebra": 1}}, "defaults.zebra: unknown key"),
        ({"autoDiscover": {"includes": []}}, 'autoDiscover.includes: unknown key, did you mean "include"?'),
    ],
)
def test_what_has_no_effect_in_the_adapters_file_is_told(
    place: Place, change: dict[str, Any], words: str
) -> None:
    entry = {**ADAPTER["servers"]["petstore"], **change}
    config = adapter(place, {"api": {key: value for key, value in entry.items() if value is not None}})
    assert words in told(config)
    assert "api" in config.servers
    text = copy.deepcopy(ADAPTER["servers"]["billing_api"])
    text["tools"]["create_invoice"]["response"]["mode"] = "text"
    assert "response.mode: has no effect here" in told(adapter(place, {"api": text}))


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "basic", "username": "u"},
        {"type": "bearer"},
        {"type": "bearer", "token": 5},
        {"type": "header", "name": "a"},
        {"type": "query", "value": "a"},
        {"type": "digest"},
        {"type": None},
        {"type": ["none"]},
    ],
)
def test_a_login_of_the_adapter_that_cannot_be_read_breaks_its_server_alone(place: Place, auth: Any) -> None:
    """Without its login it would be called otherwise than its owner wants."""
    config = adapter(place, {"bad": {**ADAPTER["servers"]["internal_api"], "auth": auth}})
    assert "servers.bad.auth" in str(config.broken["bad"])


def test_a_slip_in_the_adapters_isolation_shares_nothing(place: Place) -> None:
    for block in ({"stdioLifecycle": "persistant"}, {"stdioLifecycle": 5}):
        assert adapter(place, {}, **block).settings.isolation is Isolation.PER_SESSION
    path = place.write("project/a.json", {"adapter": 5, "servers": {"good": GOOD}})
    assert place.load(path, **ENVIRON).settings.isolation is Isolation.PER_SESSION


# ---- any key of any of them, spoilt ----------------------------------------------------------------------------------
PI: Final[dict[str, Any]] = {
    "mcpServers": {
        "chrome-devtools": {
            "command": "npx", "args": ["-y", "chrome-devtools-mcp@latest"], "lifecycle": "keep-alive",
            "directTools": ["take_screenshot"], "excludeTools": ["read_simulators"], "toolPrefix": "mcp",
            "env": {"A": "1"}, "cwd": "~/x", "approveTools": ["delete_*"], "debug": True, "trace": True,
            "searchKeywords": {"a": ["b"]}, "exposeResources": False, "includeTools": ["read_*"],
        },
        "remote": {
            "url": "https://api.example.com/mcp", "auth": "bearer", "bearerTokenEnv": "TOKEN", "idleTimeout": 5,
            "requestTimeoutMs": 1000, "httpTransport": "streamable-http", "headers": {"X": "1"},
            "protocolVersion": "legacy", "requestHeadersCommand": {"command": "sign"}, "bearerTokenStore": True,
        },
        "socket": {"socket": "/tmp/s", "disabled": True},
    },
    "settings": {
        "toolPrefix": "mcp", "idleTimeout": 10, "requestTimeoutMs": 1000, "directTools": False, "autoAuth": True,
        "disableProxyTool": True, "outputGuard": {"maxBytes": 1000, "maxLines": 10}, "approveTools": ["delete_*"],
        "oauthDir": "/tmp/logins", "hostConfigDiscovery": "on", "samplingAutoApprove": True, "scriptMode": True,
    },
}  # fmt: skip
METAMCP: Final[dict[str, Any]] = {
    "mcpServers": {
        "playwright": {
            "command": "npx", "args": ["@playwright/mcp@latest"], "env": {"API_KEY": "${KEY}"}, "timeoutMs": 5000,
            "lifecycle": {"mode": "keep-alive", "idleTimeoutMs": 60000},
        },
        "remote": {
            "url": "https://mcp.example.com/mcp", "transportType": "sse", "oauth": True, "headers": {"A": "1"},
            "lifecycle": "ephemeral",
        },
    }
}  # fmt: skip
CLAUDE: Final[dict[str, Any]] = {
    "mcpServers": {
        "a": {"type": "stdio", "command": "x", "args": ["y"], "env": {"A": "${KEY}"}, "timeout": 5},
        "b": {"type": "http", "url": "https://h/mcp", "headers": {"A": "1"}, "headersHelper": "x",
              "oauth": {"clientId": "c"}},
    }
}  # fmt: skip
CURSOR: Final[dict[str, Any]] = {
    "mcpServers": {
        "a": {"type": "stdio", "command": "x", "args": ["${workspaceFolder}"], "env": {"A": "${env:KEY}"},
              "envFile": "${workspaceFolder}/.env"},
        "b": {"url": "https://h/mcp", "headers": {"A": "1"},
              "auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${env:KEY}", "scopes": ["read"]}},
    }
}  # fmt: skip
VSCODE: Final[dict[str, Any]] = {
    "servers": {
        "a": {"type": "stdio", "command": "x", "args": ["y"], "env": {"A": 1, "B": None}, "cwd": "${workspaceFolder}",
              "envFile": "${workspaceFolder}/.env", "dev": {"watch": "*"}, "sandboxEnabled": True},
        "b": {"type": "http", "url": "https://h/mcp", "headers": {"A": "1"}},
    }
}  # fmt: skip
WINDSURF: Final[dict[str, Any]] = {
    "mcpServers": {
        "a": {"command": "x", "args": ["y"], "env": {"A": "1"}, "disabledTools": ["t"], "disabled": False},
        "b": {"serverUrl": "https://h/mcp", "headers": {"A": "1"}},
    }
}
CODEX: Final[dict[str, Any]] = {
    "mcp_servers": {
        "a": {"command": "x", "args": ["y"], "env": {"A": "1"}, "env_vars": ["KEY"], "cwd": "/tmp", "enabled": True,
              "startup_timeout_sec": 20, "tool_timeout_sec": 30, "enabled_tools": ["t"], "disabled_tools": ["u"],
              "supports_parallel_tool_calls": False, "required": True},
        "b": {"url": "https://h/mcp", "bearer_token_env_var": "TOKEN", "http_headers": {"A": "1"},
              "env_http_headers": {"B": "KEY"}},
    }
}  # fmt: skip
OPENCODE: Final[dict[str, Any]] = {
    "mcp": {
        "a": {"type": "local", "command": ["x", "y"], "environment": {"A": "{env:KEY}"}, "enabled": True,
              "timeout": 5000},
        "b": {"type": "remote", "url": "https://h/mcp", "headers": {"A": "Bearer {env:KEY}"},
              "oauth": {"clientId": "c", "clientSecret": "{env:KEY}", "scope": "s"}},
    }
}  # fmt: skip
KINDS: Final = {
    "adapter.yaml": ADAPTER, "mcp.json": METAMCP, "named pi": PI, "pi": PI, "claude-code": CLAUDE,
    "claude-desktop": CLAUDE, "cursor": CURSOR, "vscode": VSCODE, "windsurf": WINDSURF, "codex": CODEX,
    "opencode": OPENCODE,
}  # fmt: skip
ANY_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
    | st.sampled_from(["${NOT_SET}", "${KEY}", "60", "true", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def keys_in(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else ()  # pyright: ignore[reportUnknownVariableType]
    for key, each in pairs:  # pyright: ignore[reportUnknownVariableType]
        yield from keys_in(each, (*path, key))  # pyright: ignore[reportUnknownArgumentType]


PLACES: Final = [
    (kind, path)
    for kind, content in KINDS.items()
    for path in keys_in(content)
    if path[1:] or {"adapter", "settings"} & {*path}
]


def put(content: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def read(kind: str, content: dict[str, Any], folder: Path) -> Config:
    home, project = folder / "home", folder / "project"
    for each in (home, project):
        each.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content)
    if kind in ("adapter.yaml", "mcp.json", "named pi"):
        named = project / kind.replace("named pi", "pi.json")
        named.write_text(text)
    else:
        around = Surroundings(project, home, {}, "linux")
        file = [each for each in places_of(kind, around) if each.suffix == ".json"][-1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        named = folder / "ours.json"
        named.write_text(json.dumps({"imports": [kind]}))
    return load_config(named, cwd=project, home=home, environ=ENVIRON, platform="linux", trust=True)


def effect(config: Config) -> Any:
    servers = {
        name: msgspec.structs.replace(each, extra={}, sources={}) for name, each in config.servers.items()
    }
    return servers, {*config.broken}, config.settings


@examples(200)
@given(where=st.sampled_from(PLACES), value=ANY_JSON)
@example(where=("adapter.yaml", ("servers", "of_user", "auth", "username")), value="${NOT_SET}")
def test_a_mistake_in_one_key_of_a_foreign_file_never_stops_the_rest(
    where: tuple[str, Path_], value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, path = where
    original = KINDS[kind]
    folder = tmp_path_factory.mktemp("foreign")
    config = read(kind, put(original, path, value), folder)
    in_server = path[0] not in ("adapter", "settings")
    sections = next(key for key in original if key not in ("adapter", "settings"))
    others = {name for name in original[sections] if not (in_server and name == path[1])}
    assert others <= config.servers.keys(), config.broken
    without = read(kind, put(original, path, ...), folder)
    if effect(config) != effect(without) or value in (None, False, "", [], {}, "off") or path[-1] in DESCRIBE:
        return
    named = [str(each) for each in config.problems if names_key(str(each), path)]
    same = read(kind, original, folder)
    assert named or effect(config) == effect(same), f"{path} = {value!r} is dropped without a word"


def names_key(problem: str, path: Path_) -> bool:
    """Whether a problem names the key, or what it is in."""
    inside = path[2:] or path[1:] or path
    inside = path[1:] if path[0] in ("adapter", "settings") and len(path) > 1 else inside
    return any(str(part) in problem for part in inside)


# ---- what other programs put in the place of a text ------------------------------------------------------------------
def test_vs_codes_variables_numbers_and_nulls_are_what_they_are_there(tmp_path: Path) -> None:
    env: dict[str, Any] = {
        "A": 1, "B": 1.5, "C": None, "D": "${workspaceFolderBasename}${pathSeparator}x${/}y", "E": "${env:KEY}",
        "F": 2.0,
    }  # fmt: skip
    config = read("vscode", {"servers": {"a": {"command": "x", "env": env}}}, tmp_path)
    found = dict(expand_definition(config.servers["a"], ENVIRON).definition.env)
    assert found == {"A": "1", "B": "1.5", "D": "project/x/y", "E": "k3y", "F": "2"}
    assert "must be a string, is true" in told(
        read("vscode", {"servers": {"a": {"command": "x", "env": {"A": True}}}}, tmp_path)
    )


@pytest.mark.parametrize(
    "text", ["${config:a.b}", "${command:x}", "a ${workspaceFolder:other}", "x {file:~/k} y"]
)
@pytest.mark.parametrize("kind", ["vscode", "cursor", "opencode", "windsurf"])
def test_what_only_another_program_can_put_in_never_reaches_a_server(
    kind: str, text: str, tmp_path: Path
) -> None:
    section = {"vscode": "servers", "opencode": "mcp"}.get(kind, "mcpServers")
    command: Any = ["x"] if kind == "opencode" else "x"
    key = "environment" if kind == "opencode" else "env"
    servers = {"a": {"command": command, key: {"A": text}}, "b": {"command": command}}
    config = read(kind, {section: servers}, tmp_path)
    assert (config.servers.keys(), config.broken.keys()) == ({"b"}, {"a"})
    assert "nothing is put in here" in str(config.broken["a"])


@pytest.mark.parametrize("text", ["{file:~/key}", "{file:%s/home/key}", "{file:key}", "Bearer {file:~/key}"])
def test_a_file_of_opencode_is_read_when_the_server_starts(text: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    secret = "a secret of 'the' test"
    place = Path(tmp_path / "home" / ".config" / "opencode")
    place.mkdir(parents=True)
    (tmp_path / "home" / "key").write_text(secret)
    (place / "key").write_text(secret)
    said = text.replace("%s", str(tmp_path))
    entry = {"type": "remote", "url": "https://h/mcp", "headers": {"A": said}}
    config = read(
        "opencode", {"mcp": {"a": entry, "b": {"command": ["x", said], "environment": {"A": said}}}}, tmp_path
    )
    assert config.broken == {}
    for value in (
        config.servers["a"].headers["A"],
        config.servers["b"].env["A"],
        config.servers["b"].args[0],
    ):
        assert secret not in value
        command = command_in(value)
        assert command is not None
        output = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
        assert with_answer(value, output) == text.replace(text.removeprefix("Bearer "), secret)
