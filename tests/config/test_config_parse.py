"""What every wrong thing in a configuration is called, and how little falls with it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.files import open_config
from greenroom.config.masking import redacted
from greenroom.config.model import (
    Config,
    Isolation,
    ServerDefinition,
    Settings,
)
from greenroom.config.parse import imports_of, parse_config
from greenroom.protocol.errors import ConfigError

GOOD = {"command": "good"}


def parse(entry: Any, **environ: str) -> Config:
    """A file with the entry under test as `s`, and a neighbour that must never suffer from it."""
    return parse_config({"mcpServers": {"s": entry, "good": GOOD}}, source="mcp.json", environ=environ)


def server(entry: Any) -> ServerDefinition:
    config = parse(entry)
    assert not config.problems, config.problems
    return config.servers["s"]


def warnings(config: Config) -> list[str]:
    return [str(problem) for problem in config.problems if not problem.fatal]


# ---- good things -------------------------------------------------------------------------------------


def test_null_is_as_good_as_not_said() -> None:
    assert server({"command": "x", "cwd": None, "idleTimeout": None}) == ServerDefinition("s", command="x")


def test_an_entry_may_say_enabled_in_place_of_disabled() -> None:
    for enabled in (True, False):
        definition = server({"command": "x", "enabled": enabled})
        assert (definition.disabled, definition.extra) == (not enabled, {})


def test_the_adapters_json_file_is_read_as_it_is() -> None:
    config = parse_config(
        {
            "adapter": {"callTimeout": 5, "startupTimeout": 7, "stdioLifecycle": "per_call", "bind": "x"},
            "servers": {
                "a": {"type": "stdio", "command": "x"},
                "b": {"type": "openapi", "spec": "u"},
                "c": {"type": "openapi", "spec": "u", "baseUrl": "https://c.example"},
            },
        }
    )
    assert (config.settings.call_timeout, config.settings.connect_timeout) == (5.0, 7.0)
    assert config.settings.isolation is Isolation.PER_CALL
    assert config.servers["a"].command == "x"
    assert 'needs "baseUrl"' in config.broken["b"].what
    assert (config.servers["c"].openapi, config.servers["c"].url) == ("u", "https://c.example")
    assert config.settings.http_listen == "x"


def test_both_spellings_of_the_section_are_read() -> None:
    both = {"mcpServers": {"a": GOOD, "b": GOOD}, "mcp-servers": {"b": {"command": "other"}, "c": GOOD}}
    config = parse_config(both)
    assert {name: each.command for name, each in config.servers.items()} == dict.fromkeys("abc", "good")
    assert warnings(config) == [
        'config: mcp-servers.b: is in "mcpServers" too, which is used; remove one of them'
    ]


# ---- broken servers ----------------------------------------------------------------------------------


@for_each(
    ("entry", "message"),
    [
        ({}, 'mcpServers.s: has neither command, url nor socket: add "command" to start it or "url" to reach it'),
        ({"args": []}, "mcpServers.s: has neither command, url nor socket"),
        ({"command": "x", "url": "http://h"}, "exactly one of command, url, or socket, has command and url: remove"),
        ({"command": "x", "socket": "s"}, "has command and socket: remove all but one"),
        (3, 'mcpServers.s: must be an object like {"command": "…"}, is a number'),
        ([], 'mcpServers.s: must be an object like {"command": "…"}, is an array'),
        (None, 'mcpServers.s: must be an object like {"command": "…"}, is null'),
        ({"command": 3}, "mcpServers.s.command: must be a string, is a number"),
        ({"command": ["npx", "-y"]}, 'is an array: put the program in "command" and the rest in "args"'),
        ({"command": " "}, "mcpServers.s.command: is empty: give it a value, or leave the key out"),
        ({"command": "x", "args": "-y"}, 's.args: must be an array of strings, is a string: write ["…"]'),
        ({"command": "x", "args": ["a", 8080]}, "s.args[1]: must be a string, is a number: put it in quotes"),
        ({"command": "x", "args": ["a\0"]}, "s.args[0]: holds a NUL character, which no program and no request"),
        ({"command": "x", "disabled": "yes"}, "mcpServers.s.disabled: must be true or false, is a string"),
        ({"command": "x", "disabled": 1}, "mcpServers.s.disabled: must be true or false, is a number"),
        ({"command": "x", "disabled": []}, "mcpServers.s.disabled: must be true or false, is an array"),
        ({"command": "x", "enabled": "false"}, "s.enabled: must be true or false, is a string: leave out the quotes"),
        ({"command": "x", "disabled": False, "enabled": 0}, "mcpServers.s.enabled: must be true or false, is a number"),
        ({"url": "http://h", "auth": "o\0auth"}, 's.auth: must be "oauth", "bearer" or false'),
        ({"command": "x", "isolation": "per\0call"}, 'one of "persistent", "per_session" or "per_call", is a string'),
        ({"command": "x", "env": []}, "mcpServers.s.env: must be an object of strings, is an array"),
        ({"command": "x", "env": {"PORT": 1}}, "s.env.PORT: must be a string, is a number: put it in quotes"),
        ({"command": "x", "env": {"A": None}}, "mcpServers.s.env.A: must be a string, is null"),
        ({"command": "x", "env": {"": "a"}}, 's.env[""]: has a name that cannot be used'),
        ({"command": "x", "env": {"a.b=": "a"}}, 's.env["a.b="]: has a name that cannot be used'),
        (
            {"command": "x", "inheritEnv": "yes"},
            "mcpServers.s.inheritEnv: must be true, false or an array of names, is a string",
        ),
        ({"command": "x", "excludeTools": "rm"}, "mcpServers.s.excludeTools: must be an array of strings"),
        ({"command": "x", "isolation": "session"}, '"session" is none of "persistent", "per_session", "per_call"'),
        ({"url": "h/mcp"}, "mcpServers.s.url: must start with http:// or https://"),
        ({"url": "ws://h/mcp"}, "mcpServers.s.url: must start with http:// or https://"),
        ({"url": "http://"}, "mcpServers.s.url: names no host: write http://host/path or https://host/path"),
        ({"url": "http://h:port/"}, "mcpServers.s.url: is not a URL"),
        ({"url": "http://[h/"}, "mcpServers.s.url: is not a URL"),
        ({"url": "http://h", "bearerToken": 3}, "s.bearerToken: must be a string, is a number"),
        ({"url": "http://h", "httpTransport": "ws"}, '"ws" is none of "streamable-http", "sse"'),
        ({"url": "http://${A}/${B}/${A}"}, "its URL needs the variables A and B, which are not set. Set them where"),
        ({"url": "${SCHEME}://h"}, "s.url: after environment interpolation it must start with http:// or https://"),
        ({"command": "x", "env": {"K": "${input:key}"}}, "s.env.K: asks for an ${input:…}, which is not asked for"),
    ],
)  # fmt: skip
def test_a_broken_server_says_where_and_what_next_and_the_others_serve_on(entry: Any, message: str) -> None:
    config = parse(entry, SCHEME="gopher")
    assert message in str(config.broken["s"])
    assert str(config.broken["s"]).startswith("mcp.json: mcpServers.s")
    assert any(problem.fatal and message in str(problem) for problem in config.problems)
    assert set(config.servers) == {"good"}


def test_a_place_with_an_unusual_name_stays_readable() -> None:
    config = parse_config({"mcpServers": {'my "own".server': {}}}, source="m.json")
    assert str(config.problems[0]).startswith('m.json: mcpServers["my \\"own\\".server"]: has neither')


def test_a_server_without_a_name_is_a_warning() -> None:
    config = parse_config({"mcpServers": {"": GOOD, 3: GOOD}})
    assert warnings(config) == [
        'config: mcpServers[""]: has no usable name: give it a non-empty one',
        "config: mcpServers[3]: has no usable name: give it a non-empty one",
    ]


# ---- warnings ----------------------------------------------------------------------------------------


@for_each(
    ("more", "message"),
    [
        ({"comand": "x"}, '.comand: unknown key, did you mean "command"? It has no effect and is kept unchanged'),
        ({"idle_timeout": 3}, '.idle_timeout: unknown key, did you mean "idleTimeout"?'),
        ({"zzz": 1}, ".zzz: unknown key: it has no effect and is kept unchanged"),
        ({"oauth": {}}, '.oauth: has no effect on a server with "command"'),
        ({"timeout": 60}, ".timeout: has no effect here; it is kept unchanged (clients disagree about its unit; write"),
        (
            {"lifecycle": "egaer"},
            '"egaer" is none of "lazy", "eager", "keep-alive"; did you mean "eager"?; the default',
        ),
        ({"lifecycle": 3}, '.lifecycle: must be one of "lazy", "eager" or "keep-alive", is a number; the default'),
        ({"lifecycle": {"mode": "eagr"}}, '.lifecycle.mode: "eagr" is none of'),
        ({"idleTimeout": -1}, ".idleTimeout: must be a number of minutes from 0, is -1; the default is used"),
        ({"idleTimeout": "10"}, "from 0, is a string: leave out the quotes; the default is used"),
        ({"idleTimeout": True}, ".idleTimeout: must be a number of minutes from 0, is true; the default is used"),
        ({"idleTimeout": float("nan")}, "must be a number of minutes from 0, is nan"),
        ({"idleTimeout": float("inf")}, ".idleTimeout: is too large, 1.66667e+07 is the most"),
        ({"idleTimeout": 10**400}, ".idleTimeout: is too large"),
        ({"idleTimeout": -(10**400)}, "from 0, is far out of range"),
        ({"requestTimeoutMs": 0}, ".requestTimeoutMs: must be a number of milliseconds above 0, is 0"),
        ({"maxInFlight": 1.5}, ".maxInFlight: must be a whole number of calls from 1, is 1.5"),
        ({"maxInFlight": 0}, ".maxInFlight: must be a whole number of calls from 1, is 0"),
        ({"maxInFlight": float("nan")}, "must be a whole number of calls from 1, is nan"),
        ({"maxInFlight": 10**400}, ".maxInFlight: is too large"),
        ({"bootstrap": "true"}, ".bootstrap: must be true or false, is a string: leave out the quotes; the default"),
        ({"bootstrap": 1}, ".bootstrap: must be true or false, is a number; the default is used"),
        (
            {"lifecycle": "keep-alive", "idleTimeout": 5},
            '.idleTimeout: has no effect on a "keep-alive" server, which is never stopped for being idle',
        ),
        ({"headers": {"A": "b"}}, '.headers: has no effect on a server with "command"'),
        ({"bearerToken": "t"}, '.bearerToken: has no effect on a server with "command"'),
        ({"lifecycle": "per_call", "isolation": "per_session"}, 'says the same as "isolation", which is used'),
        ({"env": {"K": "${NOPE}"}}, ".env.K: it refers to the variable NOPE, which is not set, so it is empty here."),
        ({"args": ["$env:NOPE"]}, ".args[0]: it refers to the variable NOPE, which is not set, so it is empty here."),
        ({3: 4}, "mcpServers.s: has a key that is not a string (int); it is ignored"),
        ({"\ud83d": 4}, "mcpServers.s: has a key that is not a string (half a character); it is ignored"),
    ],
)  # fmt: skip
def test_a_slip_is_a_warning_and_the_server_is_served(more: dict[Any, Any], message: str) -> None:
    config = parse({"command": "x", **more})
    assert any(message in each for each in warnings(config)), warnings(config)
    assert config.servers["s"].command == "x"
    assert not config.broken


def test_unknown_keys_are_kept_with_their_source() -> None:
    definition = parse({"command": "x", "searchKeywords": {"a": [1]}}).servers["s"]
    assert definition.extra == {"searchKeywords": {"a": [1]}}
    assert definition.sources == {"command": "mcp.json", "searchKeywords": "mcp.json"}


def test_only_names_that_are_no_strings_are_left_out_of_a_login() -> None:
    """YAML has such names."""
    config = parse({"url": "https://h", "oauth": {"clientId": "me", 5: "x", True: "y", None: "z"}})
    assert config.servers["s"].oauth == {"clientId": "me"}
    assert warnings(config) == [
        f"mcp.json: mcpServers.s.oauth: has a key that is not a string ({kind}); it is ignored"
        for kind in ("int", "bool", "NoneType")
    ]


def test_a_remark_with_a_dot_in_it_is_a_remark() -> None:
    remarks = {"// see docs/http.md": 1, "_e.g.": 2, "$x.y": 3}
    assert parse_config({"settings": {**remarks, "http": {**remarks, "oauth": remarks}}}).problems == ()


# ---- unusable files ----------------------------------------------------------------------------------


@for_each(
    ("raw", "message"),
    [
        ([], 'mcp.json: must be an object like {"mcpServers": {…}}, is an array'),
        (None, "mcp.json: must be an object"),
        ({"mcpServers": []}, 'mcp.json: mcpServers: must be an object like {"name": {"command": "…"}}, is an array'),
        ({"settings": 3}, "mcp.json: settings: must be an object, is a number"),
        ({"settings": {"idleTimeout": "x"}}, "settings.idleTimeout: must be a number of minutes from 0, is a string"),
        ({"settings": {"maxConnections": 0}}, "maxConnections: must be a whole number of connections from 1, is 0"),
        ({"settings": {"restartBackoff": 3}}, "settings.restartBackoff: must be an object, is a number"),
        ({"settings": {"restartBackoff": {"minMs": 0}}}, "restartBackoff.minMs: must be a number of milliseconds"),
        ({"settings": {"restartBackoff": {"minMs": 9, "maxMs": 8}}}, "restartBackoff.minMs: must not be above maxMs"),
        ({"settings": {"minConnections": 20}}, "settings.minConnections: must be below maxConnections"),
        ({"settings": {"nameLimit": 39}}, "settings.nameLimit: "),
        ({"settings": {"clientPrefix": "x" * 25}}, "clientPrefix: leaves names fewer than 40 characters"),
        ({"settings": {"backoffJitter": 1.5}}, "settings.backoffJitter: is too large, 1 is the most"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_refused_when_named_and_used_as_far_as_it_goes_when_found(
    raw: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, source="mcp.json")
    assert message in str(caught.value)
    lenient = parse_config(raw, source="mcp.json", strict=False)
    assert lenient.settings == Settings()
    assert any(message in each and each.endswith("it is skipped") for each in warnings(lenient))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"mcpservers": {}}, 'config: mcpservers: unknown key, did you mean "mcpServers"? It is ignored'),
        ({"settings": {"idleTimeOut": 1}}, 'idleTimeOut: unknown key, did you mean "idleTimeout"? It is ignored'),
        ({"settings": {"restartBackoff": {"min": 1}}}, "settings.restartBackoff.min: unknown key"),
    ],
)  # fmt: skip
def test_an_unknown_key_outside_of_servers_is_a_warning(raw: Any, message: str) -> None:
    assert message in warnings(parse_config(raw))[0]


def test_imports_are_read_in_order_and_unknown_ones_named() -> None:
    kinds, problems = imports_of({"imports": ["pi", "curser", "cursor", 3, "pi"]}, "m.json")
    assert kinds == ("pi", "cursor")
    assert str(problems[0]).startswith("m.json: imports[1]: is none of cursor, claude-code")
    assert str(problems[0]).endswith('; did you mean "cursor"?; it is skipped')
    assert len(problems) == 2


@pytest.mark.parametrize("raw", [{"imports": "cursor"}, {"imports": {}}])
def test_imports_that_are_no_array_are_named(raw: Any) -> None:
    kinds, problems = imports_of(raw, "m.json")
    assert kinds == ()
    assert 'm.json: imports: must be an array like ["cursor"]' in str(problems[0])


# ---- whatever comes ----------------------------------------------------------------------------------

_KEYS = st.sampled_from([
    "mcpServers", "servers", "settings", "adapter", "imports", "command", "args", "env", "url", "headers", "socket",
    "lifecycle", "isolation", "type", "mode", "idleTimeout", "idleTimeoutMs", "restartBackoff", "minMs",
    "outputGuard", "bearerToken", "disabled", "enabled", "callTimeout",
])  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _KEYS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON | st.fixed_dictionaries({"mcpServers": st.dictionaries(st.text(max_size=4), _JSON, max_size=3)}))
def test_nothing_but_a_config_error_ever_escapes(raw: Any) -> None:
    lenient = parse_config(raw, environ={}, strict=False)
    assert redacted(lenient)["problems"] == [str(problem) for problem in lenient.problems]
    with contextlib.suppress(ConfigError):
        assert parse_config(raw, environ={}).settings == lenient.settings


def test_a_url_that_is_wrong_as_written_is_wrong_once() -> None:
    config = parse_config({"mcpServers": {"s": {"url": "ftp://x"}}}, environ={})

    assert [problem.what for problem in config.problems] == ["must start with http:// or https://"]
    assert config.broken["s"].what == "must start with http:// or https://"


def test_the_client_that_cursor_writes_into_auth_is_that_of_the_login() -> None:
    auth: dict[str, Any] = {"CLIENT_ID": "me", "CLIENT_SECRET": "${SECRET}", "scopes": ["read", "write"]}
    read = server({"url": "https://h/mcp", "auth": auth})
    assert read.oauth == {"clientId": "me", "clientSecret": "${SECRET}", "scope": "read write"}
    assert server({"url": "https://h/mcp", "auth": {"CLIENT_ID": "me", "scopes": []}}).oauth == {
        "clientId": "me"
    }
    assert any(
        "zebra" in said for said in warnings(parse({"url": "https://h", "auth": {**auth, "zebra": 1}}))
    )
    for wrong in ({"CLIENT_ID": 5}, {"client": "me"}, {"CLIENT_ID": "me", "scopes": [5]}):
        assert "s" in parse({"url": "https://h/mcp", "auth": wrong}).broken


def test_a_key_of_another_client_is_said_once_for_all_servers_and_only_if_it_asks_for_something() -> None:
    names = [f"s{number}" for number in range(7)]
    entry = {
        "command": "x",
        "autoApprove": ["read"],
        "timeout": 60,
        "icon": "x.png",
        "description": "says nothing",
    }
    quiet = {
        "alwaysAllow": [],
        "trust": False,
        "debug": False,
        "gallery": "https://h.example",
        "workingDirectory": "/",
    }
    config = parse_config(
        {
            "mcpServers": {
                **{name: {**entry, **quiet} for name in names},
                "t": {"url": "http://h", "trace": True},
            }
        }
    )
    shared = "has no effect here; it is kept unchanged"
    assert [str(problem) for problem in config.problems] == [
        (
            f'config: mcpServers: "autoApprove" of s0, s1, s2, s3, s4 and 2 more: {shared} '
            '(here "approve" says which calls a person has to allow; without it none)'
        ),
        (
            f'config: mcpServers: "timeout" of s0, s1, s2, s3, s4 and 2 more: {shared} '
            '(clients disagree about its unit; write "requestTimeoutMs")'
        ),
        f"config: mcpServers.t.trace: {shared} (`greenroom serve --events FILE` writes all events)",
    ]
    assert config.servers["s0"].cwd == "/"
    assert {"icon", "gallery", "alwaysAllow"} <= {*config.servers["s0"].extra}


@pytest.mark.parametrize(
    "given",
    [{"mcpservers": {"hand": {"command": "x"}}}, {"hand": {"command": "x"}}, {"hand": {"url": "http://h"}}],
)
def test_a_dict_with_servers_in_the_wrong_place_is_told_the_right_key(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='"mcpServers"'):
        open_config(given)


@pytest.mark.parametrize("given", [{}, {"settings": {}}, {"mcpServers": {}, "hand": {"command": "x"}}])
def test_a_dict_without_servers_may_be_opened(given: dict[str, Any]) -> None:
    assert open_config(given).servers == {}


def test_what_is_wrong_with_a_session_is_told_with_the_keys_of_the_file() -> None:
    entry = {"command": "x", "envFile": "${session.F}", "isolation": "per_session"}
    config = parse_config({"servers": {"s": entry}}, source="f")
    assert config.broken["s"].where == "f: servers.s.envFile"
