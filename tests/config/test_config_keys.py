"""Every key of a configuration: which attribute it is, in which unit, from which number on, and that it is printed as
it was said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support.rows import for_each

from greenroom.config.definition_identity import IDENTITY, definition_hash, policy_only_change
from greenroom.config.foreign_keys import ALIASES
from greenroom.config.masking import redacted
from greenroom.config.model import (
    Approve,
    Config,
    Era,
    HttpTransport,
    Isolation,
    Lifecycle,
    Pinning,
    PrefixMode,
    RestartPolicy,
    Scrub,
    ServerDefinition,
    Settings,
)
from greenroom.config.parse import parse_config
from greenroom.config.trust import what_matters

# A setting as a file says it; its attribute, and the value of that; the smallest number that it may be.
NUMBERS: list[tuple[str, float, str, float, float]] = [
    ("nameLimit", 60, "name_limit", 60, 40),
    ("idleTimeout", 1.5, "idle_timeout", 90.0, 0),
    ("connectTimeoutMs", 1010, "connect_timeout", 1.01, 0.5),
    ("installTimeoutMs", 1020, "install_timeout", 1.02, 0.5),
    ("requestTimeoutMs", 1030, "call_timeout", 1.03, 0.5),
    ("requestTotalTimeoutMs", 1040, "call_total_timeout", 1.04, 0.5),
    ("taskAfterMs", 1045, "task_after", 1.045, 0.5),
    ("queueTimeoutMs", 1050, "queue_timeout", 1.05, 0.5),
    ("drainTimeoutMs", 1060, "drain_timeout", 1.06, 0),
    ("stopTimeoutMs", 1070, "stop_timeout", 1.07, 0.5),
    ("secretTimeoutMs", 1080, "secret_timeout", 1.08, 0.5),
    ("shutdownTimeoutMs", 1090, "shutdown_timeout", 1.09, 0.5),
    ("backgroundIdle", 2.5, "background_idle", 150.0, 0),
    ("maxConnections", 70, "max_connections", 70, 1),
    ("maxSessionConnections", 70, "max_session_connections", 70, 1),
    ("minConnections", 31, "min_connections", 31, 0),
    ("reserve", 32, "reserve_connections", 32, 0),
    ("reserveTimeoutMs", 1100, "reserve_timeout", 1.1, 0),
    ("acquireTimeoutMs", 1110, "acquire_timeout", 1.11, 0.5),
    ("startPermits", 33, "start_permits", 33, 1),
    ("installTurns", 34, "install_turns", 34, 1),
    ("maxInFlight", 35, "max_in_flight", 35, 1),
    ("maxQueued", 36, "max_queued", 36, 1),
    ("maxQueuedBytes", 2001, "max_queued_bytes", 2001, 1024),
    ("restartBackoff.minMs", 1120, "backoff_min", 1.12, 0.5),
    ("restartBackoff.maxMs", 1130, "backoff_max", 1.13, 1000),
    ("backoffJitter", 0.25, "backoff_jitter", 0.25, 0),
    ("failureBackoff", 7.5, "failure_backoff", 7.5, 0.5),
    ("failureThreshold", 37, "failure_threshold", 37, 1),
    ("cooldownMs", 1140, "cooldown", 1.14, 0.5),
    ("stableAfterMs", 1150, "stable_after", 1.15, 0.5),
    ("restartIntensity", 38, "restart_intensity", 38, 1),
    ("restartPeriodMs", 1160, "restart_period", 1.16, 0.5),
    ("healthIntervalMs", 1170, "health_interval", 1.17, 0.5),
    ("approvalTimeoutMs", 1180, "approval_timeout", 1.18, 0.5),
    ("firstListTimeoutMs", 1190, "first_list_timeout", 1.19, 0),
    ("frequentTools", 7, "frequent_tools", 7, 0),
    ("maxLineBytes", 2002, "max_line", 2002, 1024),
    ("stderrBytes", 2003, "stderr_ring", 2003, 0),
    ("maxPages", 39, "max_pages", 39, 1),
    ("maxListBytes", 2004, "max_list_bytes", 2004, 1024),
    ("maxListItems", 40, "max_list_items", 40, 1),
    ("probeTimeoutMs", 1200, "probe_timeout", 1.2, 0.5),
    ("http.metricsTools", 43, "http_metrics_tools", 43, 0),
    ("http.maxSessions", 41, "http_max_sessions", 41, 1),
    ("http.sessionIdle", 3.5, "http_session_idle", 210.0, 0),
    ("http.sessionLife", 4.5, "http_session_life", 270.0, 0),
    ("http.maxBodyBytes", 2005, "http_max_body", 2005, 1024),
    ("cacheMaxAgeDays", 0.5, "cache_max_age", 43_200.0, 0.5),
    ("outputGuard.maxBytes", 2006, "output_max_bytes", 2006, 0),
    ("outputGuard.maxLines", 42, "output_max_lines", 42, 0),
    ("outputGuard.maxImageBytes", 2007, "output_max_image", 2007, 0),
    ("outputGuard.keepHours", 1.5, "output_keep", 5400.0, 0.5),
    ("outputGuard.keepBytes", 2008, "output_keep_bytes", 2008, 0),
]
OTHERS: list[tuple[str, Any, str, Any]] = [
    ("toolPrefix", "short", "tool_prefix", PrefixMode.SHORT),
    ("clientPrefix", "c_", "client_prefix", "c_"),
    ("pinning", "warn", "pinning", Pinning.WARN),
    ("scrub", "all", "scrub", Scrub.ALL),
    ("isolation", "per_call", "isolation", Isolation.PER_CALL),
    ("restartPolicy", "never", "restart_policy", RestartPolicy.NEVER),
    ("resolveNpx", False, "resolve_npx", False),
    ("inheritEnv", ["A", "B*"], "inherit_env", ("A", "B*")),
    ("tasks.keep", "/kept", "tasks_keep", "/kept"),
    ("oauthDir", "/logins", "oauth_dir", "/logins"),
    ("registry", "https://r.example/v0", "registry", "https://r.example/v0"),
    ("semanticSearch", "~/model", "semantic_search", "~/model"),
    ("directTools", ["d"], "direct_tools", ("d",)),
    ("toolOverrides", {"t": {"hide": True}}, "tool_overrides", {"t": {"hide": True}}),
    ("approve", ["a*"], "approve", ("a*",)),
    ("limits", {"a_*": "3/min"}, "limits", {"a_*": "3/min"}),
    ("loopGuard", "3/min", "loop_guard", "3/min"),
    ("bootstrap", False, "bootstrap", False),
    ("http.listen", "127.0.0.1:1", "http_listen", "127.0.0.1:1"),
    ("http.tokens", {"ann": "${T}"}, "http_tokens", {"ann": "${T}"}),
    ("http.ownerTokens", {"olga": "${O}"}, "http_owner_tokens", {"olga": "${O}"}),
    ("http.tokenProfiles", {"ann": "w"}, "http_token_profiles", {"ann": "w"}),
    ("http.oauth.issuer", "https://i.example", "http_oauth_issuer", "https://i.example"),
    ("http.oauth.resource", "https://g.example", "http_oauth_resource", "https://g.example"),
    ("http.oauth.audiences", ["aud"], "http_oauth_audiences", ("aud",)),
    ("http.oauth.jwksUrl", "https://k.example", "http_oauth_jwks", "https://k.example"),
    ("http.oauth.scopes", ["s1"], "http_oauth_scopes", ("s1",)),
    ("http.oauth.profileClaim", "claim", "http_oauth_profile_claim", "claim"),
    ("http.oauth.scopeProfiles", {"s": "w"}, "http_oauth_scope_profiles", {"s": "w"}),
    ("http.hosts", ["h.example"], "http_hosts", ("h.example",)),
    ("http.origins", ["https://o.example"], "http_origins", ("https://o.example",)),
    ("http.sessionHeaders", {"x-a": "A"}, "http_session_headers", {"x-a": "A"}),
    ("http.metrics", True, "http_metrics", True),
    ("http.stateHandles", True, "http_state_handles", True),
]
SETTINGS = [*((key, said, attribute, read) for key, said, attribute, read, _ in NUMBERS), *OTHERS]


def _file(*said: tuple[str, Any]) -> dict[str, Any]:
    """The settings as a file has them, from dotted names."""
    found: dict[str, Any] = {}
    for key, value in said:
        *around, last = key.split(".")
        inner = found
        for part in around:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def settings_of(*said: tuple[str, Any], strict: bool = True) -> Config:
    return parse_config({"settings": _file(*said)}, source="m.json", strict=strict)


def test_every_setting_is_read_in_its_unit_and_printed_as_it_was_written() -> None:
    config = settings_of(*((key, said) for key, said, *_ in SETTINGS))
    assert not config.problems
    assert {name: pytest.approx(each) for *_, name, each, _ in NUMBERS}.items() <= msgspec.structs.asdict(
        config.settings
    ).items()
    assert {name: getattr(config.settings, name) for *_, name, _ in OTHERS} == {n: v for *_, n, v in OTHERS}
    assert {name for *_, name, _ in SETTINGS} == set(Settings.__struct_fields__)

    printed = redacted(config)
    tokens = {"http.tokens": {"ann": "***"}, "http.ownerTokens": {"olga": "***"}}
    hidden = [(key, tokens.get(key, said)) for key, said, *_ in SETTINGS]
    assert printed["settings"] == _file(*hidden)
    assert printed["sources"]["settings"] == {key: "m.json" for key, *_ in SETTINGS}


@for_each(("key", "said", "attribute", "read"), SETTINGS, ids=[each[0] for each in SETTINGS])
def test_a_setting_alone_changes_nothing_else(key: str, said: Any, attribute: str, read: Any) -> None:
    extra = (("maxConnections", 70),) if key == "minConnections" else ()
    config = settings_of((key, said), *extra)
    changed = {
        name
        for name in Settings.__struct_fields__
        if getattr(config.settings, name) != getattr(Settings(), name)
    }
    along = {"connect_timeout": {"queue_timeout"}, "min_connections": {"max_connections"}}
    assert changed == {attribute} | along.get(attribute, set())
    sources = redacted(config)["sources"]["settings"]
    assert {name for name, source in sources.items() if source != "default"} == {key, *dict(extra)}


@for_each(("key", "least"), [(key, least) for key, *_, least in NUMBERS])
def test_a_setting_may_be_its_smallest_number_and_no_smaller(key: str, least: float) -> None:
    """One half stands for every number above 0."""
    assert not settings_of((key, least)).problems
    assert settings_of((key, 0 if least == 0.5 else least - 1), strict=False).problems


def test_a_share_is_one_at_most() -> None:
    assert settings_of(("backoffJitter", 1)).settings.backoff_jitter == 1.0
    assert settings_of(("backoffJitter", 1.01), strict=False).problems


def test_a_name_may_have_what_the_clients_prefix_leaves() -> None:
    for limit, prefix, left in ((64, None, 64), (64, "x" * 24, 40), (50, "x" * 10, 40), (41, "x", 40)):
        said = [("nameLimit", limit), *([("clientPrefix", prefix)] if prefix else [])]
        config = settings_of(*said)
        assert (config.settings.longest_name, config.problems) == (left, ())
    config = settings_of(("nameLimit", 49), ("clientPrefix", "x" * 10), strict=False)
    assert (config.settings.longest_name, config.settings.client_prefix) == (49, None)
    assert "clientPrefix" in str(config.problems[0])


def test_limits_that_contradict_each_other_both_fall_back() -> None:
    for said, names, defaults in (
        ((("minConnections", 7), ("maxConnections", 7)), ("min_connections", "max_connections"), (0, 20)),
        ((("minConnections", 8), ("maxConnections", 7)), ("min_connections", "max_connections"), (0, 20)),
        ((("restartBackoff.minMs", 9), ("restartBackoff.maxMs", 8)), ("backoff_min", "backoff_max"), (1.0, 60.0)),
        ((("restartBackoff.minMs", 60_001),), ("backoff_min", "backoff_max"), (1.0, 60.0)),
    ):  # fmt: skip
        config = settings_of(*said, strict=False)
        assert tuple(getattr(config.settings, name) for name in names) == defaults
        assert len(config.problems) == 1
    same = settings_of(("restartBackoff.minMs", 2000), ("restartBackoff.maxMs", 2000)).settings
    assert (same.backoff_min, same.backoff_max) == (2.0, 2.0)
    below = settings_of(("minConnections", 6), ("maxConnections", 7)).settings
    assert (below.min_connections, below.max_connections) == (6, 7)


# ---- servers -------------------------------------------------------------------------------------------------------

ANY: list[tuple[str, Any, str, Any]] = [
    ("exposeResources", False, "expose_resources", False),
    ("includeTools", ["i"], "include_tools", ("i",)),
    ("excludeTools", ["e"], "exclude_tools", ("e",)),
    ("era", "handshake", "era", Era.HANDSHAKE),
    ("restartPolicy", "never", "restart_policy", RestartPolicy.NEVER),
    ("idleTimeout", 1.5, "idle_timeout", 90.0),
    ("toolPrefix", "none", "tool_prefix", PrefixMode.NONE),
    ("connectTimeoutMs", 1010, "connect_timeout", 1.01),
    ("installTimeoutMs", 1020, "install_timeout", 1.02),
    ("requestTimeoutMs", 1030, "call_timeout", 1.03),
    ("resolveNpx", False, "resolve_npx", False),
    ("drainTimeoutMs", 1040, "drain_timeout", 1.04),
    ("stopTimeoutMs", 1050, "stop_timeout", 1.05),
    ("maxInFlight", 11, "max_in_flight", 11),
    ("maxQueued", 12, "max_queued", 12),
    ("directTools", ["d"], "direct_tools", ("d",)),
    ("toolOverrides", {"t": {"hide": True}}, "tool_overrides", {"t": {"hide": True}}),
    (
        "placement",
        {"resources": {"GPU": 1}, "labels": {}},
        "placement",
        {"resources": {"GPU": 1}, "labels": {}},
    ),
    ("limits", {"t": ["3/s", "9/min per tool"]}, "limits", {"t": ["3/s", "9/min per tool"]}),
    ("loopGuard", False, "loop_guard", False),
    ("approve", "writes", "approve", Approve.WRITES),
    ("pinning", "off", "pinning", Pinning.OFF),
    ("scrub", "off", "scrub", Scrub.OFF),
    ("bootstrap", False, "bootstrap", False),
    ("disabled", True, "disabled", True),
    ("lifecycle", "eager", "lifecycle", Lifecycle.EAGER),
    ("isolation", "persistent", "isolation", Isolation.PERSISTENT),
    ("warm", 0, "warm", 0),
    ("reset", "forget", "reset", "forget"),
]
OF_COMMAND: list[tuple[str, Any, str, Any]] = [
    ("command", "run", "command", "run"),
    ("args", ["a", "b"], "args", ("a", "b")),
    ("env", {"A": "${B}"}, "env", {"A": "${B}"}),
    ("envFile", "./e", "env_file", "./e"),
    ("cwd", "/c", "cwd", "/c"),
    ("inheritEnv", ["I*"], "inherit_env", ("I*",)),
]
OF_URL: list[tuple[str, Any, str, Any]] = [
    ("url", "https://u.example/mcp", "url", "https://u.example/mcp"),
    ("headers", {"H": "${B}"}, "headers", {"H": "${B}"}),
    ("httpTransport", "sse", "http_transport", HttpTransport.SSE),
    ("auth", "oauth", "auth", "oauth"),
    ("oauth", False, "oauth", False),
    (
        "requestHeadersCommand",
        {"command": "h", "args": ["x"], "env": {"E": "f"}, "timeoutMs": 1500},
        "request_headers_command",
        {"command": "h", "args": ("x",), "env": {"E": "f"}, "timeoutMs": 1.5},
    ),
]
OF_API: list[tuple[str, Any, str, Any]] = [
    ("url", "https://u.example/v1", "url", "https://u.example/v1"),
    ("openapi", "./spec.json", "openapi", "./spec.json"),
    ("specHash", "ab" * 32, "spec_hash", "ab" * 32),
    ("includeOperations", ["tag:a"], "include_operations", ("tag:a",)),
    ("excludeOperations", ["DELETE *"], "exclude_operations", ("DELETE *",)),
    ("outputSchemas", True, "output_schemas", True),
    ("uploads", "/out", "uploads", "/out"),
    (
        "http",
        {"t": {"method": "GET", "path": "/x/{a}", "params": {"a": {"in": "path", "default": "${B}"}}}},
        "http",
        {"t": {"method": "GET", "path": "/x/{a}", "params": {"a": {"in": "path", "default": "${B}"}}}},
    ),
]
OF_SOCKET: list[tuple[str, Any, str, Any]] = [("socket", "/s", "socket", "/s")]


@for_each("of", [OF_COMMAND, OF_URL, OF_API, OF_SOCKET], ids=["command", "url", "api", "socket"])
def test_every_key_of_a_server_is_its_attribute_and_is_printed_as_it_was_said(
    of: list[tuple[str, Any, str, Any]],
) -> None:
    keys = [*of, *(any_ for any_ in ANY if of is not OF_API or any_[0] != "era")]
    entry = {key: said for key, said, *_ in keys}
    config = parse_config({"mcpServers": {"s": entry}}, source="m.json")
    # That one has an effect only where others of the table are otherwise.
    assert not [problem for problem in config.problems if not problem.where.endswith("s.reset")]
    read = config.servers["s"]
    expected = ServerDefinition("s", **{attribute: value for *_, attribute, value in keys})
    assert read == expected
    printed = redacted(config)
    hidden = {"requestHeadersCommand": "***"} if of is OF_URL else {}
    assert printed["mcpServers"]["s"] == {**entry, **hidden}
    assert printed["sources"]["mcpServers"]["s"] == dict.fromkeys(entry, "m.json")


def test_the_tables_above_have_every_key_of_a_server() -> None:
    unsaid = {
        "name",
        "in_process",
        "extra",
        "sources",
        "env_file_agreed",
        "env_file_state",
        "openapi_state",
        "openapi_agreed",
        "pi_logins",
    }
    named = {attribute for *_, attribute, _ in (*ANY, *OF_COMMAND, *OF_URL, *OF_API, *OF_SOCKET)}
    assert named == set(ServerDefinition.__struct_fields__) - unsaid


OTHER_VALUES: dict[str, Any] = {"oauth": {}, "lifecycle": "keep-alive", "isolation": "per_call", "warm": 3}
NOT_LIVE = {"auth", "oauth", "isolation", "era"}
HASHED = {
    "command", "args", "env", "envFile", "cwd", "inheritEnv", "url", "headers", "httpTransport",
    "requestHeadersCommand", "socket", "exposeResources", "includeTools", "excludeTools", "openapi", "specHash",
    "includeOperations", "excludeOperations", "outputSchemas", "uploads", "http",
}  # fmt: skip


@for_each("key", [key for key, *_ in (*ANY, *OF_COMMAND, *OF_URL, *OF_API[1:], *OF_SOCKET)])
def test_what_says_which_server_it_is_makes_another_hash_and_another_process(key: str) -> None:
    value = next(said for name, said, *_ in (*ANY, *OF_COMMAND, *OF_URL, *OF_API, *OF_SOCKET) if name == key)
    base = next(
        {of[0][0]: of[0][1]}
        for of in (OF_URL, OF_API, OF_SOCKET, OF_COMMAND)
        if any(name == key for name, *_ in of) or of is OF_COMMAND
    )
    with_key = {**base, key: OTHER_VALUES.get(key, value)}
    if key in base:
        with_key[key] = f"{value}2"
    one, other = (parse_config({"mcpServers": {"s": each}}).servers["s"] for each in (base, with_key))
    same_hash = definition_hash(one, {}, "/srv") == definition_hash(other, {}, "/srv")
    assert same_hash is (key not in HASHED)
    assert policy_only_change(one, other) is (key not in HASHED | NOT_LIVE)
    assert policy_only_change(other, one) is (key not in HASHED | NOT_LIVE)
    assert policy_only_change(other, other)


def test_what_is_hashed_is_known_here() -> None:
    all_keys = (*ANY, *OF_COMMAND, *OF_URL, *OF_API, *OF_SOCKET)
    named = {attribute for key, _, attribute, _ in all_keys if key in HASHED}
    assert named == set(IDENTITY) - {"in_process"}


# ---- other programs' words, and what an owner decides about --------------------------------------------------------

HARMLESS = {
    "connectTimeoutMs", "description", "drainTimeoutMs", "icon", "idleTimeout", "installTimeoutMs", "maxInFlight",
    "maxQueued", "requestTimeoutMs", "stopTimeoutMs", "title", "version",
}  # fmt: skip
THEIRS = {
    "serverUrl": "url", "httpUrl": "url", "environment": "env", "timeoutMs": "requestTimeoutMs",
    "startupTimeoutMs": "connectTimeoutMs", "approveTools": "approve", "disabledTools": "excludeTools",
    "enabledTools": "includeTools", "workingDirectory": "cwd", "working_directory": "cwd",
    "bearer_token_env_var": "bearerTokenEnv", "http_headers": "headers", "enabled_tools": "includeTools",
    "disabled_tools": "excludeTools", "startup_timeout_ms": "connectTimeoutMs",
}  # fmt: skip


# The one that is left out makes a header: test_config_login.py.
@for_each("theirs", sorted(THEIRS.keys() - {"bearer_token_env_var"}))
def test_another_programs_word_for_a_key_is_that_key(theirs: str) -> None:
    ours = THEIRS[theirs]
    _, said, attribute, read = next(
        each for each in (*ANY, *OF_COMMAND, *OF_URL) if each[0] == ours and each[1] is not None
    )
    where = {"url": {}, "headers": {"url": "http://h"}}.get(ours, {"command": "run"})
    entry = {**where, theirs: said}
    config = parse_config({"mcpServers": {"s": entry}})
    assert not config.problems
    assert getattr(config.servers["s"], attribute) == read
    both = parse_config({"mcpServers": {"s": {**entry, ours: said}}})
    assert [str(each) for each in both.problems] == [
        f'config: mcpServers.s.{ours}: says the same as "{theirs}", which is used; remove one of them'
    ]
    assert set(THEIRS) == set(ALIASES)


@for_each(
    "key", sorted({key for key, *_ in (*ANY, *OF_COMMAND, *OF_URL, *OF_SOCKET)} | HARMLESS | THEIRS.keys() | {"new"})
)  # fmt: skip
def test_an_owner_is_asked_about_every_key_but_a_few(key: str) -> None:
    matter = what_matters({"mcpServers": {"s": {key: "x"}}})
    if THEIRS.get(key, key) in HARMLESS:
        assert matter == {}
    else:
        assert matter == {"mcpServers": {"s": {key: "x"}}}


def test_an_owner_is_not_asked_about_remarks_and_servers_that_are_off() -> None:
    for quiet in ({"$schema": 1, "_x": 2, "//": 3}, {"disabled": True}, {"enabled": False}):
        assert what_matters({"mcpServers": {"s": quiet}}) == {}
    for matters in ({"disabled": False}, {"enabled": True}, {"disabled": 1}, {"enabled": 0}):
        assert what_matters({"mcpServers": {"s": matters}}) == {"mcpServers": {"s": matters}}
    both = {"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "y"}, "b": {"command": "z"}}}
    assert what_matters(both) == {"mcpServers": {"a": {"command": "x"}, "b": {"command": "z"}}}
    assert what_matters(both, without={"a"}) == {"mcpServers": {"b": {"command": "z"}}}
    rest = {"imports": ["pi"], "settings": {"a": 1}, "adapter": {"b": 1}, "profiles": {"c": {}}}
    assert what_matters({**rest, "inputs": [1]}) == rest
    assert what_matters(rest, imported=True) == {}
    assert what_matters({"settings": {}, "imports": []}) == {}
    assert json.dumps(what_matters([])) == "{}"
