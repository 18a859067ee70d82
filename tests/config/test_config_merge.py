"""Several files over one another: single fields, fences around credentials, the source of every field."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.definition_identity import definition_hash
from greenroom.config.foreign_keys import ForeignValue, Givens
from greenroom.config.model import Config, Lifecycle, ServerDefinition, Settings
from greenroom.config.parse import ConfigLayer, lay_over, merge, parse_config
from greenroom.protocol.errors import ConfigError


def over(*entries: Any) -> Config:
    """The same server in several files, strongest first, named `1`, `2`, …"""
    return merge([ConfigLayer(f"{n}", {"mcpServers": {"s": entry}}) for n, entry in enumerate(entries, 1)])


def merged(*entries: Any) -> ServerDefinition:
    return over(*entries).servers["s"]


def test_a_stronger_file_changes_single_fields_and_every_field_knows_its_file() -> None:
    both = merged(
        {"lifecycle": "eager"}, {"command": "x", "args": ["a"], "env": {"T": "t"}, "idleTimeout": 1}
    )
    assert (both.lifecycle, both.command, both.args, both.env) == (Lifecycle.EAGER, "x", ("a",), {"T": "t"})
    assert both.sources == {"lifecycle": "1", "command": "2", "args": "2", "env": "2", "idle_timeout": "2"}


STDIO = {"command": "x", "args": ["a"], "env": {"TOKEN": "t"}, "cwd": "/", "inheritEnv": True}
HTTP = {"url": "http://h", "headers": {"Authorization": "t"}, "bearerToken": "t", "httpTransport": "sse"}


@for_each("lower", [STDIO, HTTP, {"socket": "/s"}])
@for_each("higher", [{"command": "other"}, {"url": "http://other"}, {"socket": "/other"}])
def test_another_place_takes_nothing_that_belonged_to_the_old_one(lower: Any, higher: Any) -> None:
    config = over(higher, {**lower, "lifecycle": "eager", "oauth": {"clientSecret": "t"}})
    both = config.servers["s"]
    assert (both.args, both.env, both.headers, both.cwd, both.inherit_env) == ((), {}, {}, None, None)
    assert both.http_transport is None
    assert [both.command, both.url, both.socket].count(None) == 2
    assert both.lifecycle is Lifecycle.EAGER
    assert "TOKEN" not in str(both)


def test_a_repointed_url_takes_no_credential_but_keeps_the_refusal_of_oauth() -> None:
    entry = {**HTTP, "oauth": {"clientSecret": "t"}}
    assert merged({"url": "http://evil"}, entry).headers == {}
    assert merged({"url": "http://evil"}, entry).oauth is None
    assert merged({"url": "http://evil"}, {**HTTP, "oauth": False}).oauth is False


def test_only_a_false_oauth_is_a_refusal() -> None:
    for said in ({}, None):
        assert merged({"url": "http://evil"}, {**HTTP, "oauth": said}).oauth is None


def test_what_is_given_anew_is_not_said_to_be_left_behind() -> None:
    given = {"command": "x", "args": ["a"], "env": {"A": "a"}, "inheritEnv": True}
    config = over({"args": ["b"], "env": {"A": "b"}}, given)
    (problem,) = map(str, config.problems)
    assert problem.startswith(
        '1: mcpServers.s.args: changes what runs, so "inheritEnv" of 2 is not used with it'
    )


@for_each(
    ("higher", "lower", "told"),
    [
        (
            {"url": "http://other"},
            HTTP,
            '1: mcpServers.s.url: changes who is called, so "bearerToken", "headers" of 2',
        ),
        (
            {"url": "http://o", "headers": {}},
            HTTP,
            '1: mcpServers.s.url: changes who is called, so "bearerToken" of 2',
        ),
        ({"command": "y"}, STDIO, '1: mcpServers.s.command: changes what runs, so "args", "env", "inheritEnv" of 2'),
        (
            {"url": "http://h"},
            STDIO,
            '1: mcpServers.s.url: changes who is called, so "args", "env", "inheritEnv" of 2',
        ),
        ({"socket": "/s"}, HTTP, '1: mcpServers.s.socket: changes who is called, so "bearerToken", "headers" of 2'),
        ({"httpTransport": "auto"}, HTTP, '1: mcpServers.s.httpTransport: changes who is called, so "bearerToken"'),
    ],
)  # fmt: skip
def test_whoever_changes_only_where_a_server_is_is_told_what_is_not_used_with_it(
    higher: Any, lower: Any, told: str
) -> None:
    (problem,) = (each for each in map(str, over(higher, lower).problems) if each.startswith(told))
    assert "write them into this file too" in problem


def test_who_gives_everything_anew_is_told_nothing() -> None:
    for entry in (HTTP, STDIO):
        elsewhere = {"url": "http://other"} if "url" in entry else {"command": "y"}
        assert over({**entry, **elsewhere}, entry).problems == ()


def test_the_fence_holds_over_three_layers() -> None:
    assert merged({"url": "http://evil"}, {"lifecycle": "eager"}, HTTP).headers == {}
    assert merged({"lifecycle": "eager"}, {"url": "http://evil"}, HTTP).headers == {}
    assert merged({"url": "http://h"}, {"url": "http://evil"}, HTTP).headers == {}


@pytest.mark.parametrize(("same", "lower"), [({"url": "http://h"}, HTTP), ({"command": "x"}, STDIO)])
def test_the_same_place_again_drops_nothing(same: Any, lower: Any) -> None:
    assert merged(same, lower) == merged(lower)


def test_null_takes_a_field_away_and_an_empty_entry_changes_nothing() -> None:
    assert merged({"env": None}, STDIO).env == {}
    assert merged({}, STDIO) == merged(STDIO)
    assert merged({"url": "http://h", "command": None}, STDIO).url == "http://h"


def test_a_name_of_ours_takes_nothing_from_imports_and_the_first_import_wins() -> None:
    ours = ConfigLayer("ours", {"mcpServers": {"a": {"lifecycle": "eager"}, "n": 3}})
    first = ConfigLayer(
        "first", {"mcpServers": {"b": {"command": "first"}, "z": 1}, "settings": 3}, imported=True
    )
    second = {"a": {"command": "x"}, "b": {"command": "second", "args": ["x"]}, "n": {"command": "n"}}
    config = merge([ours, first, ConfigLayer("second", {"mcpServers": second}, imported=True)], strict=True)
    assert set(config.servers) == {"b"}
    assert (config.servers["b"].command, config.servers["b"].args) == ("first", ())
    assert set(config.broken) == {"a", "n"}
    assert config.files == ("ours", "first", "second")
    assert "first: mcpServers.z: must be an object" in "\n".join(map(str, config.problems))


def test_settings_merge_shallowly_and_know_their_file() -> None:
    strong = ConfigLayer("strong", {"settings": {"idleTimeout": 1, "restartBackoff": {"minMs": 500}}})
    weak = ConfigLayer(
        "weak", {"settings": {"idleTimeout": 5, "maxPages": 3, "restartBackoff": {"maxMs": 9000}}}
    )
    config = merge([strong, weak, ConfigLayer("import", {"settings": {"maxPages": 9}}, imported=True)])
    settings = config.settings
    assert (settings.idle_timeout, settings.max_pages) == (60.0, 3)
    assert (settings.backoff_min, settings.backoff_max) == (0.5, 60.0)
    assert config.setting_sources == {"idle_timeout": "strong", "max_pages": "weak", "backoff_min": "strong"}


@for_each(
    ("strong", "weak", "shown"),
    [
        ({"outputGuard": True}, {"outputGuard": {"maxBytes": 5}}, (51_200, 2_000)),
        ({"outputGuard": {"maxLines": 7}}, {"outputGuard": {"maxBytes": 5}}, (51_200, 7)),
        ({"outputGuard": {"maxLines": 7}}, {"outputGuard": False}, (51_200, 7)),
        ({"outputGuard": None}, {"outputGuard": {"maxBytes": 5}}, (51_200, 2_000)),
        ({"outputGuard": {}}, {"outputGuard": 5}, (51_200, 2_000)),
        ({"maxPages": 3}, {"outputGuard": {"maxBytes": 5}}, (5, 2_000)),
    ],
)
def test_a_group_of_settings_replaces_a_weaker_one_as_a_whole(
    strong: Any, weak: Any, shown: tuple[int, int]
) -> None:
    config = merge([ConfigLayer("strong", {"settings": strong}), ConfigLayer("weak", {"settings": weak})])
    assert (config.settings.output_max_bytes, config.settings.output_max_lines) == shown
    assert config.problems == ()


def test_of_the_door_a_stronger_file_takes_away_only_what_it_names() -> None:
    weak = {"tokens": {"a": "t"}, "listen": "127.0.0.1:1", "oauth": {"issuer": "i", "scopes": ["s"]}}
    for strong, left in (
        ({"oauth": None}, ({"a": "t"}, "127.0.0.1:1", None)),
        ({"tokens": None}, ({}, "127.0.0.1:1", "i")),
        (None, ({}, None, None)),
    ):
        settings = merge(
            [
                ConfigLayer("strong", {"settings": {"http": strong}}),
                ConfigLayer("weak", {"settings": {"http": weak}}),
            ]
        ).settings
        assert (settings.http_tokens, settings.http_listen, settings.http_oauth_issuer) == left


TOKENS: Final = {"tokens": {"a": "t"}}


@for_each(
    ("http", "where"),
    [
        (5, "http"),
        ("127.0.0.1:8000", "http"),
        ({"tokens": 5}, "http.tokens"),
        ({"tokens": {"b": 5}}, "http.tokens.b"),
        ({"tokens": {"": "x"}}, "http.tokens"),
    ],
)
def test_what_is_wrong_of_the_door_in_a_stronger_file_takes_no_token_away_and_is_told(
    http: Any, where: str
) -> None:
    layers = [
        ConfigLayer("strong", {"settings": {"http": http}}),
        ConfigLayer("weak", {"settings": {"http": TOKENS}}),
    ]
    config = merge(layers)
    assert config.settings.http_tokens == {"a": "t"}
    assert [problem.where.partition("[")[0] for problem in config.problems] == [f"strong: settings.{where}"]
    with pytest.raises(ConfigError, match="strong: settings"):
        merge(layers, strict=True)


def test_a_login_that_is_wrong_in_a_stronger_file_leaves_the_weaker_ones() -> None:
    layers = [
        ConfigLayer("strong", {"settings": {"http": {"oauth": "https://i"}}}),
        ConfigLayer("weak", {"settings": {"http": {"oauth": {"issuer": "i"}}}}),
    ]
    config = merge(layers)
    assert config.settings.http_oauth_issuer == "i"
    assert [problem.where for problem in config.problems] == ["strong: settings.http.oauth"]


@for_each(
    ("strong", "told"),
    [
        (TOKENS, []),
        ({"oauth": {"issuer": "i"}}, []),
        (None, []),
        ({"oauth": {"scopes": ["s"]}}, ["weak: settings.http"]),
        ({"listen": "127.0.0.1:1", "tokens": {}}, ["weak: settings.http"]),  # nobody knows who was to come in
    ],
)
def test_a_door_that_is_wrong_in_a_weaker_file_is_not_fatal_when_a_stronger_one_replaces_it(
    strong: Any, told: list[str]
) -> None:
    layers = [
        ConfigLayer("strong", {"settings": {"http": strong}}),
        ConfigLayer("weak", {"settings": {"http": 5}}),
    ]
    assert [problem.where for problem in merge(layers, strict=True).problems] == told
    assert [problem.where for problem in merge(layers).problems] == told


def test_a_part_of_a_group_is_written_in_the_group() -> None:
    config = parse_config({"settings": {"http.listen": "x", "http": {"oauth.issuer": "i"}}})
    assert config.settings == Settings()
    assert [problem.where for problem in config.problems] == [
        'config: settings["http.listen"]',
        'config: settings.http["oauth.issuer"]',
    ]


# ---- which server it is ------------------------------------------------------------------------------


def definition(**entry: Any) -> ServerDefinition:
    return parse_config({"mcpServers": {"s": {"command": "x", **entry}}}).servers["s"]


HERE = "/srv"
BASE = definition(env={"A": "${T}", "B": "b"})


def test_the_hash_is_of_expanded_values_and_stays_the_same_for_ever() -> None:
    assert definition_hash(BASE, {"T": "1"}, HERE) != definition_hash(BASE, {"T": "2"}, HERE)
    assert definition_hash(definition(env={"A": "1", "B": "b"}), {}, HERE) == definition_hash(
        BASE, {"T": "1"}, HERE
    )
    pinned = "6d0ca7c6e5819bdfe0f6feccf0d44db0260b9071973346898de2c5c5fa01215e"
    assert definition_hash(ServerDefinition("any", command="x", env={"A": "1"}), {}, HERE) == pinned


def test_a_url_that_cannot_be_expanded_still_has_a_hash() -> None:
    remote = ServerDefinition("s", url="http://${H}/")
    assert definition_hash(remote, {}, HERE) != definition_hash(remote, {"H": "h"}, HERE)


def test_header_names_have_no_case_in_the_hash() -> None:
    one, other = (ServerDefinition("s", url="http://h", headers={name: "v"}) for name in ("X-A", "x-a"))
    assert definition_hash(one, {}, HERE) == definition_hash(other, {}, HERE)


@pytest.mark.parametrize("entry", [{"args": ["."]}, {"cwd": "sub"}, {"command": "./x"}])
def test_t53_where_a_program_runs_is_part_of_which_server_it_is(entry: Any) -> None:
    there = definition(**entry)
    assert definition_hash(there, {}, "/a") != definition_hash(there, {}, "/b")
    assert definition_hash(there, {}, "/a") == definition_hash(there, {}, "/a/")


def test_t53_what_says_where_it_is_is_the_same_server_from_everywhere() -> None:
    fixed = definition(cwd="/srv/app")
    assert definition_hash(fixed, {}, "/a") == definition_hash(fixed, {}, "/b")
    assert definition_hash(definition(cwd="app"), {}, "/srv") == definition_hash(fixed, {}, "/b")
    remote = ServerDefinition("s", url="http://h")
    assert definition_hash(remote, {}, "/a") == definition_hash(remote, {}, "/b")
    hooked, absolute = ServerDefinition("s", socket="run/s"), ServerDefinition("s", socket="/a/run/s")
    assert definition_hash(hooked, {}, "/a") == definition_hash(absolute, {}, "/b")
    assert definition_hash(hooked, {}, "/b") != definition_hash(absolute, {}, "/b")


_OF_URL = {
    "headers": {"A": "t"},
    "httpTransport": "sse",
    "auth": "t",
    "oauth": {"clientSecret": "t"},
    "bearerToken": "t",
    "bearerTokenEnv": "T",
    "bearerTokenStore": "t",
    "requestHeadersCommand": "print-my-token",
}
_OF_COMMAND = {
    "args": ["t"],
    "env": {"A": "t"},
    "cwd": "/t",
    "inheritEnv": True,
    "pluginDataDir": "/t",
    "literalEnv": {"A": "t"},
    "envFile": "/t",
}


def _given(value: Any) -> ForeignValue:
    return ForeignValue(value, "m.json", ())


@pytest.mark.parametrize(
    ("here", "other", "belonging"),
    [
        ("url", "command", _OF_URL),
        ("command", "url", _OF_COMMAND),
    ],
)
def test_whatever_belongs_to_a_place_stays_behind(here: str, other: str, belonging: Any) -> None:
    """Each by itself, also those that we do not use but carry along for others."""
    for name, value in belonging.items():
        lower = {here: _given("http://h"), name: _given(value), "lifecycle": _given("eager")}
        for kind in (here, other, "socket"):
            both = lay_over(lower, {kind: _given("http://elsewhere")})
            assert name not in both, (name, kind)
            assert both["lifecycle"].value == "eager"
        assert name in lay_over(lower, {here: _given("http://h")})
        assert name in lay_over(lower, {other: _given(None)})


def test_what_a_weaker_file_says_of_no_place_in_particular_is_kept() -> None:
    """It named no command, so it is nobody else's that comes with another; but for credentials, for whoever writes a
    project's file can choose the name."""
    both = lay_over({"args": _given(["a"]), "headers": _given({"A": "t"})}, {"command": _given("x")})
    assert both.keys() == {"args", "command"}
    both = lay_over({"args": _given(["a"]), "headers": _given({"A": "t"})}, {"url": _given("http://h")})
    assert both.keys() == {"url"}


# ---- the fence, for any layers -----------------------------------------------------------------------

_COMMAND_STEERS: Final = ("command", "args", "cwd", "env", "envFile")
_URL_STEERS: Final = ("url", "httpTransport", "requestHeadersCommand")
_WRITTEN_FOR: Final = {  # a credential, and what decides who gets it
    "env": ("command", "args", "cwd", "envFile"),
    "envFile": ("command", "args", "cwd", "env"),
    "inheritEnv": _COMMAND_STEERS,
    "args": ("command", "cwd", "env", "envFile"),
    "requestHeadersCommand": ("url", "httpTransport"),
    **dict.fromkeys(("headers", "bearerToken", "bearerTokenEnv", "oauth"), _URL_STEERS),
}


def _or_null(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([*values, None])


_ENTRY: Final = st.fixed_dictionaries(
    {},
    optional={
        "command": _or_null("x", "y"),
        "args": _or_null(["--token=one"], ["--token=two"], [{"keyring": "one/two"}]),
        "cwd": _or_null("/a", "/b"),
        "env": _or_null({"T": "one"}, {"T": {"keyring": "one/two"}}),
        "envFile": _or_null("one.env", "two.env"),
        "inheritEnv": _or_null(True),
        "url": _or_null("http://a", "http://b"),
        "httpTransport": _or_null("sse"),
        "headers": _or_null({"A": "one"}, {"A": "two"}),
        "bearerToken": _or_null("one", {"keyring": "one/two"}),
        "bearerTokenEnv": _or_null("ONE"),
        "requestHeadersCommand": _or_null({"command": "one"}, {"command": "two"}),
        "oauth": _or_null({"clientSecret": "one"}),
        "socket": _or_null("/s"),
        "lifecycle": _or_null("eager"),
    },
)


def _value(entry: Givens, name: str) -> Any:
    return entry[name].value if name in entry else None


@given(st.lists(_ENTRY, min_size=2, max_size=4))
@example([{"headers": {"A": "one"}}, {"url": "http://a"}])
@example([{"command": "x", "env": {"T": "one"}}, {"args": ["--token=two"]}, {"command": "x"}])
@example([{"url": "http://a", "bearerToken": "one"}, {"url": "http://b"}, {"url": "http://a"}])
def test_no_credential_reaches_a_place_that_it_was_not_written_for(entries: list[dict[str, Any]]) -> None:
    """Weakest first. What decides who gets a credential is, in the end, what it was when its file had been laid over
    the weaker ones: whoever wrote the credential wrote it beside that."""
    layers = [
        {name: ForeignValue(value, str(n), (name,)) for name, value in entry.items()}
        for n, entry in enumerate(entries)
    ]
    sums: list[Givens] = []
    for layer in layers:
        sums.append(lay_over(sums[-1] if sums else {}, layer))
    final = sums[-1]
    assert final == reduce(lay_over, layers[1:], lay_over({}, layers[0]))
    for credential, steers in _WRITTEN_FOR.items():
        if _value(final, credential) is not None:
            then = sums[int(final[credential].source)]
            for steer in steers:
                assert _value(final, steer) == _value(then, steer), (credential, steer)
    config = merge(
        [ConfigLayer(str(n), {"mcpServers": {"s": entry}}) for n, entry in reversed([*enumerate(entries)])]
    )
    for server in config.servers.values():
        assert (server.command, server.url) == (_value(final, "command"), _value(final, "url"))
        assert server.env.keys() == (_value(final, "env") or {}).keys()
        assert server.env_file == _value(final, "envFile")
        assert server.headers.keys() >= (_value(final, "headers") or {}).keys()
