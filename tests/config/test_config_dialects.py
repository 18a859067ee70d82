"""Words of other programs in a file: what each means here, what ours is stronger than, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.config.model import (
    Approve,
    Config,
    Era,
    HttpTransport,
    Isolation,
    Lifecycle,
    Profile,
    RestartPolicy,
    Settings,
)
from greenroom.config.parse import ConfigLayer, merge, parse_config
from greenroom.protocol.errors import NO_EFFECT_HERE, ConfigError


def parse(**entry: Any) -> Config:
    return parse_config({"mcpServers": {"s": entry}}, source="m.json")


def said(config: Config) -> list[str]:
    return [str(problem).removeprefix("m.json: mcpServers.s") for problem in config.problems]


# ---- servers -------------------------------------------------------------------------------------------------------


@for_each("key", ["type", "transport", "transportType"])
@for_each(
    ("word", "entry", "complaint"),
    [
        ("http", {"url": "http://h"}, None),
        ("STREAMABLE-HTTP", {"url": "http://h"}, None),
        ("streamableHttp", {"url": "http://h"}, None),
        ("streamable_http", {"url": "http://h"}, None),
        ("remote", {"url": "http://h"}, None),
        ("sse", {"url": "http://h"}, None),
        ("stdio", {"command": "x"}, None),
        ("local", {"command": "x"}, None),
        (None, {"command": "x"}, None),
        ("stdio", {"url": "http://h"}, '"stdio" does not go with "url"; it is ignored, the URL is called'),
        ("local", {"url": "http://h"}, '"local" does not go with "url"; it is ignored, the URL is called'),
        ("remote", {"command": "x"}, '"remote" does not go with "command"; it is ignored, the command is started'),
        ("", {"command": "x"}, 'is not a transport we know; it is ignored, "command", "url" or "socket" decide'),
        (5, {"command": "x"}, 'is not a transport we know; it is ignored, "command", "url" or "socket" decide'),
    ],
)  # fmt: skip
def test_a_transport_that_is_said_is_a_hint(
    key: str, word: Any, entry: dict[str, Any], complaint: str | None
) -> None:
    config = parse(**entry, **{key: word})
    assert [each for each in said(config) if f".{key}: " in each] == (
        [] if complaint is None else [f".{key}: {complaint}"]
    )
    definition = config.servers["s"]
    assert definition.extra == {}
    if "url" in entry:
        assert definition.http_transport is (HttpTransport.SSE if word == "sse" else None)


def test_our_own_word_is_stronger_than_a_foreign_one() -> None:
    http = {"url": "http://h"}
    streamable = parse(**http, type="sse", httpTransport="streamable-http").servers["s"]
    assert streamable.http_transport is HttpTransport.STREAMABLE_HTTP
    assert parse(command="x", enabled=False, disabled=False).servers["s"].disabled is False
    era = parse(command="x", protocolVersion="legacy", era="stateless").servers["s"].era
    assert era is Era.STATELESS
    idle = parse(command="x", lifecycle="lazy-keep-alive", idleTimeout=2).servers["s"]
    assert (idle.lifecycle, idle.idle_timeout) == (Lifecycle.LAZY, 120.0)
    open_ = parse(command="x", lifecycle={"mode": "eager", "idleTimeoutMs": 500}, idleTimeout=2).servers["s"]
    assert (open_.lifecycle, open_.idle_timeout) == (Lifecycle.EAGER, 120.0)
    assert parse(**http, auth={"CLIENT_ID": "a"}, oauth={"clientId": "b"}).broken.keys() == {"s"}


@pytest.mark.parametrize(
    ("word", "era"),
    [
        ("legacy", Era.HANDSHAKE),
        ("auto", Era.AUTO),
        ("2026-07-28", Era.STATELESS),
    ],
)
def test_the_era_that_another_program_insists_on_counts(word: str, era: Era) -> None:
    config = parse(command="x", protocolVersion=word)
    assert (config.servers["s"].era, said(config), config.servers["s"].extra) == (era, [], {})


def test_an_unknown_version_has_no_effect_and_is_said() -> None:
    for word in ("2025-06-18", 5):
        config = parse(command="x", protocolVersion=word)
        assert config.servers["s"].era is Era.AUTO
        assert said(config)[0].startswith(".protocolVersion: has no effect here; it is kept unchanged")


@for_each(
    ("lifecycle", "expected"),
    [
        ("lazy", (Lifecycle.LAZY, None, None)),
        ("keep-alive", (Lifecycle.KEEP_ALIVE, None, None)),
        ("lazy-keep-alive", (Lifecycle.LAZY, 0.0, None)),
        ("persistent", (Lifecycle.LAZY, None, Isolation.PERSISTENT)),
        ("per_session", (Lifecycle.LAZY, None, Isolation.PER_SESSION)),
        ("per_call", (Lifecycle.LAZY, None, Isolation.PER_CALL)),
        ("ephemeral", (Lifecycle.LAZY, None, Isolation.PER_CALL)),
        ({"mode": "eager"}, (Lifecycle.EAGER, None, None)),
        ({"mode": "per_session", "idleTimeoutMs": 0}, (Lifecycle.LAZY, 0.0, Isolation.PER_SESSION)),
        ({"idleTimeoutMs": 90_000}, (Lifecycle.LAZY, 90.0, None)),
        ({"mode": "keep-alive", "idleTimeoutMs": 90_000}, (Lifecycle.LAZY, 90.0, None)),
        ({"mode": "keep-alive", "idleTimeoutMs": 0}, (Lifecycle.KEEP_ALIVE, 0.0, None)),
        ({}, (Lifecycle.LAZY, None, None)),
    ],
)
def test_a_lifecycle_in_any_dialect(lifecycle: Any, expected: Any) -> None:
    config = parse(command="x", lifecycle=lifecycle)
    one = config.servers["s"]
    assert ((one.lifecycle, one.idle_timeout, one.isolation), said(config)) == (expected, [])


def test_a_place_inside_a_lifecycle_is_told_as_it_was_written() -> None:
    config = parse(command="x", lifecycle={"mode": "eager", "idleTimeoutMs": True, "x": 1})
    assert said(config) == [
        ".lifecycle.x: unknown key; it is ignored, mode and idleTimeoutMs are known",
        ".lifecycle.idleTimeoutMs: must be a number of milliseconds, is true; the default is used",
    ]
    config = parse(command="x", lifecycle={"idleTimeoutMs": -5})
    assert said(config)[0].startswith(".lifecycle.idleTimeoutMs: must be a number of minutes from 0")


@for_each("remark", ["$schema", "_note", "//", "// env"])
def test_a_remark_is_one_everywhere(remark: str) -> None:
    config = parse_config(
        {
            remark: 1,
            "mcpServers": {"s": {"command": "x", remark: 1}},
            "settings": {remark: 1},
            "profiles": {remark: 1, "w": {remark: 1}},
        }
    )
    assert config.problems == ()
    assert (config.servers["s"].extra, config.profiles) == ({}, {"w": Profile()})


VAULT = "refers to a vault (${secret:…), which is not supported here"


@for_each("wrong", ["x ${input:key} y", "x${secret:a}", "${vault:a/b}"])
@for_each(
    ("entry", "where"),
    [
        ({"command": "{}"}, "command"),
        ({"command": "x", "args": ["a", "{}"]}, "args[1]"),
        ({"command": "x", "env": {"A": "{}"}}, "env.A"),
        ({"command": "x", "cwd": "{}"}, "cwd"),
        ({"url": "http://h/{}"}, "url"),
        ({"url": "http://h", "headers": {"A": "{}"}}, "headers.A"),
        ({"url": "http://h", "bearerToken": "{}"}, "bearerToken"),
    ],
)
def test_what_another_program_would_ask_for_breaks_the_server_wherever_it_stands(
    entry: dict[str, Any], where: str, wrong: str
) -> None:
    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list):
            return [put(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        return value.replace("{}", wrong)

    broken = parse(**put(entry)).broken["s"]
    assert broken.where == f"m.json: mcpServers.s.{where}"
    assert "refer to a variable as ${NAME}" in broken.what


@for_each("key", ["command", "cwd", "socket", "envFile"])
def test_a_session_may_not_choose_what_runs(key: str) -> None:
    entry: dict[str, Any] = {"socket": "x"} if key == "socket" else {"command": "x"}
    entry |= {key: "/a/${session.A}", "isolation": "per_session"}
    broken = parse(**entry).broken["s"]
    assert "cannot hold a ${session.…}" in broken.what
    assert broken.where.startswith("m.json: mcpServers.s.")


@for_each("lifecycle", ["eager", "keep-alive"])
@for_each(
    ("isolation", "kept"), [(None, True), ("persistent", True), ("per_session", False), ("per_call", False)]
)
def test_what_is_there_before_anybody_asks_is_shared(
    lifecycle: str, isolation: str | None, kept: bool
) -> None:
    config = parse(command="x", lifecycle=lifecycle, isolation=isolation)
    assert config.servers["s"].lifecycle is (Lifecycle(lifecycle) if kept else Lifecycle.LAZY)
    assert len(config.problems) == (not kept)


def test_only_a_keep_alive_server_has_no_idle_time() -> None:
    for lifecycle, idle, complaints in (
        ("keep-alive", 5, 1), ("keep-alive", 0, 0), ("eager", 5, 0), ("lazy", 5, 0),
    ):  # fmt: skip
        assert len(parse(command="x", lifecycle=lifecycle, idleTimeout=idle).problems) == complaints


def test_a_disabled_server_is_not_asked_for_its_variables() -> None:
    entry = {"url": "http://${NOPE}", "headers": {"a": "${ALSO}"}}
    for disabled, broken in ((True, False), (False, True)):
        config = parse_config({"mcpServers": {"s": {**entry, "disabled": disabled}}}, environ={})
        assert ("s" in config.broken) is broken
        assert bool(config.problems) is broken
    assert parse_config({"mcpServers": {"s": entry}}).problems == (), (
        "without an environment nothing is missing"
    )


def test_all_headers_that_cannot_be_sent_are_problems_of_the_server() -> None:
    entry = {"url": "http://h", "headers": {"A": "x\ny", "B": "é", "C": "c"}}
    config = parse_config({"mcpServers": {"s": entry}}, source="m.json", environ={})
    assert [problem.where for problem in config.problems] == [
        "m.json: mcpServers.s.headers.A",
        "m.json: mcpServers.s.headers.B",
    ]
    assert config.broken["s"].what.endswith("(and 1 more)")


@for_each("value", [None, False, 0, "", "off", [], {}])
def test_a_key_without_effect_that_asks_for_nothing_is_not_mentioned(value: Any) -> None:
    assert parse(command="x", sandbox=value, autoApprove=value).problems == ()


@for_each("value", [True, 1, "on", ["a"], {"a": 1}, 60])
def test_a_key_without_effect_that_asks_for_something_is_said_with_its_code(value: Any) -> None:
    (problem,) = parse(command="x", sandbox=value).problems
    assert str(problem) == (
        "m.json: mcpServers.s.sandbox: has no effect here; it is kept unchanged (it runs without a sandbox)"
    )
    assert (problem.code, problem.fatal) == (NO_EFFECT_HERE, False)


def test_keys_without_effect_are_said_file_by_file() -> None:
    layers = [
        ConfigLayer(name, {"mcpServers": {server: {"command": "x", "sandbox": True} for server in servers}})
        for name, servers in (("one", "abcdef"), ("two", "gh"), ("three", "i"))
    ]
    assert [str(problem).partition(": has no")[0] for problem in merge(layers).problems] == [
        'one: mcpServers: "sandbox" of a, b, c, d, e and 1 more',
        "three: mcpServers.i.sandbox",
        'two: mcpServers: "sandbox" of g, h',
    ]
    assert all(problem.code == NO_EFFECT_HERE for problem in merge(layers).problems)


# ---- the adapter's block, and settings -----------------------------------------------------------------------------


def test_the_adapters_words_are_settings() -> None:
    config = parse_config(
        {
            "adapter": {
                "callTimeout": 5,
                "startupTimeout": 7,
                "stdioLifecycle": "per_call",
                "restartPolicy": "always",
                "restartBackoff": {"minMs": 2000},
            }
        }
    )
    assert config.settings == Settings(
        call_timeout=5.0,
        connect_timeout=7.0,
        isolation=Isolation.PER_CALL,
        restart_policy=RestartPolicy.ALWAYS,
        backoff_min=2.0,
    )
    assert config.problems == ()
    assert parse_config({"adapter": {}}).settings.isolation is Isolation.PER_SESSION
    assert parse_config({}).settings.isolation is None


def test_our_settings_are_stronger_than_the_adapters_beside_them() -> None:
    block = {"callTimeout": 5, "startupTimeout": 7}
    both = parse_config({"settings": {"requestTimeoutMs": 1000}, "adapter": block}).settings
    assert (both.call_timeout, both.connect_timeout) == (1.0, 7.0)


def test_what_of_the_adapter_has_no_effect_is_said_with_the_next_step() -> None:
    config = parse_config({"adapter": {"zebra": 1, "transforms": 5}}, strict=False)
    assert [str(problem) for problem in config.problems] == [
        "config: adapter.zebra: has no effect here",
        "config: adapter.transforms: has no effect here",
    ]


def test_the_adapters_door_is_ours_and_its_token_stays_beside_what_else_is_said_of_the_door() -> None:
    block = {"bind": "127.0.0.1:3000", "mcpBearerToken": " ${TOKEN} "}
    for more in ({}, {"settings": {"http": {"metrics": True}}}):
        config = parse_config({"adapter": block, **more})
        assert config.problems == ()
        settings = config.settings
        assert (settings.http_listen, list(settings.http_tokens.values())) == ("127.0.0.1:3000", ["${TOKEN}"])
        assert settings.http_metrics is bool(more)
    ours = {"settings": {"http": {"listen": "127.0.0.1:1", "tokens": {"a": "b"}}}}
    both = parse_config({"adapter": block, **ours}).settings
    assert (both.http_listen, both.http_tokens) == ("127.0.0.1:1", {"a": "b"})


@for_each("said", ["", "  ", 5, ["t"]])
def test_t58_a_token_of_the_adapter_that_says_nothing_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.mcpBearerToken"):
        parse_config({"adapter": {"mcpBearerToken": said}})


def test_a_stronger_file_that_says_something_of_the_door_keeps_its_tokens() -> None:
    weak = ConfigLayer(
        "weak.json", {"settings": {"http": {"tokens": {"a": "t"}, "oauth": {"profileClaim": "team"}}}}
    )
    strong = ConfigLayer(
        "strong.json", {"settings": {"http": {"metrics": True, "oauth": {"issuer": "i"}, "hosts": 5}}}
    )
    config = merge([strong, weak])
    settings = config.settings
    assert (settings.http_tokens, settings.http_oauth_profile_claim) == ({"a": "t"}, "team")
    assert (settings.http_metrics, settings.http_oauth_issuer) == (True, "i")
    assert [problem.where for problem in config.problems] == ["strong.json: settings.http.hosts"]


def test_transforms_of_the_adapter_are_overrides() -> None:
    params = {
        "a": {"default": 1},
        "b": {"default": 1, "treatNullAsMissing": False},
        "c": {"default": None, "treatNullAsMissing": True},
        "d": {"treatNullAsMissing": True, "description": "d"},
        "e": {"visible": False},
        "f": {"visible": True, "rename": "g"},
    }
    block = {"transforms": {"toolOverrides": {"t": {"description": "x", "params": params}}, "pipeline": []}}
    config = parse_config({"adapter": block})
    assert config.settings.tool_overrides == {
        "t": {
            "description": "x",
            "params": {
                "a": {"default": 1, "nullIsNothing": True},
                "b": {"default": 1},
                "c": {"default": None, "nullIsNothing": True},
                "d": {"description": "d"},
                "e": {"hide": True},
                "f": {"rename": "g"},
            },
        }
    }
    assert [str(problem) for problem in config.problems] == [
        "config: adapter.transforms.pipeline: has no effect here"
    ]
    for wrong in ({"t": {"params": {"a": {"visible": "no"}}}}, {"t": {"params": 5}}, {"t": 5}, 5):
        lenient = parse_config({"adapter": {"transforms": {"toolOverrides": wrong}}}, strict=False)
        assert lenient.settings.tool_overrides == {}
        assert lenient.problems[0].where.startswith("config: adapter.transforms.toolOverrides")


def test_an_older_word_for_a_setting_counts_where_ours_is_not_said() -> None:
    assert parse_config({"settings": {"approveTools": True}}).settings.approve is Approve.ALL
    both = parse_config({"settings": {"approveTools": True, "approve": "writes"}})
    assert both.settings.approve is Approve.WRITES


@for_each(
    ("value", "approve"), [(None, Approve.OFF), ("off", Approve.OFF), ("offf", Approve.ALL), (5, Approve.ALL)]
)
def test_what_cannot_be_read_of_who_is_asked_lets_nothing_pass(value: Any, approve: Approve) -> None:
    assert parse_config({"settings": {"approve": value}}, strict=False).settings.approve is approve


@for_each(
    ("guard", "expected"),
    [
        (False, (0, 0, 0)),
        (True, (51_200, 2_000, 4_194_304)),
        ({"maxLines": 5}, (51_200, 5, 4_194_304)),
        ({"maxImageBytes": 0}, (51_200, 2_000, 0)),
        (None, (51_200, 2_000, 4_194_304)),
    ],
)
def test_the_output_guard_off_is_no_limit_at_all(guard: Any, expected: tuple[int, int, int]) -> None:
    one = parse_config({"settings": {"outputGuard": guard}}).settings
    assert (one.output_max_bytes, one.output_max_lines, one.output_max_image) == expected


def test_an_unknown_part_of_a_setting_is_named_and_the_others_count() -> None:
    config = parse_config({"settings": {"http": {"metrics": True, "metric": 1, "oauth": {"isuer": "x"}}}})
    assert config.settings.http_metrics is True
    assert [str(problem) for problem in config.problems] == [
        'config: settings.http.metric: unknown key, did you mean "metrics"? It is ignored',
        'config: settings.http.oauth.isuer: unknown key, did you mean "issuer"? It is ignored',
    ]


# ---- profiles ------------------------------------------------------------------------------------------------------


def test_a_stronger_file_replaces_a_whole_profile_also_by_a_wrong_one() -> None:
    """A client that names it must not get the weaker one, which may show more."""
    weak = ConfigLayer("weak", {"profiles": {"w": {"tools": ["a"]}, "x": {"expose": "meta"}, "y": {}}})
    strong = ConfigLayer("strong", {"profiles": {"w": {"servers": []}, "x": {"tols": []}, "y": 5}})
    config = merge([strong, weak])
    assert config.profiles == {"w": Profile(servers=())}
    assert [problem.where for problem in config.problems] == ["strong: profiles.x.tols", "strong: profiles.y"]


def test_a_wrong_override_of_a_profile_is_told_by_its_place() -> None:
    raw = {"profiles": {"p": {"toolOverrides": {"s": {"t": {"hide": 1}}}}, "q": {"toolOverrides": 5}}}
    config = parse_config({**raw, "mcpServers": {"s": {"command": "x"}}})
    assert [problem.where for problem in config.problems] == [
        "config: profiles.p.toolOverrides.s.t.hide",
        "config: profiles.q.toolOverrides",
    ]
    assert config.profiles == {}


def test_a_profile_may_name_any_server_there_is_and_is_told_of_one_that_is_not() -> None:
    layers = [
        ConfigLayer(
            "m",
            {
                "mcpServers": {"a-b": {"command": "x"}, "broken": {}, "stray": 5},
                "profiles": {"p": {"servers": ["a_b", "bro*", "stray", "import?d", "nobdy", "brokn"]}},
            },
        ),
        ConfigLayer("i", {"mcpServers": {"imported": {"command": "x"}}}, imported=True),
    ]
    config = merge(layers)
    told = [str(problem) for problem in config.problems if "profiles" in problem.where]
    assert told == [
        "m: profiles.p.servers[4]: no server has this name",
        'm: profiles.p.servers[5]: no server has this name; did you mean "broken"?',
    ]
    assert "p" in config.profiles


# ---- layers --------------------------------------------------------------------------------------------------------


def test_a_switch_of_ours_turns_an_imported_server_off_and_on_and_takes_its_entry() -> None:
    imported = ConfigLayer(
        "i", {"mcpServers": {"a": {"command": "x", "disabled": True}, "b": {"command": "y"}}}, imported=True
    )
    ours = ConfigLayer("m", {"mcpServers": {"a": {"disabled": False}, "b": {"disabled": True}}})
    config = merge([ours, imported])
    assert {name: (one.command, one.disabled) for name, one in config.servers.items()} == {
        "a": ("x", False),
        "b": ("y", True),
    }
    more = ConfigLayer("m", {"mcpServers": {"b": {"disabled": False, "args": ["-v"]}}})
    assert merge([more, imported]).broken.keys() == {"b"}, "an entry that says more is one of ours"


def test_of_an_imported_file_only_the_servers_are_read() -> None:
    raw = {
        "mcpServers": {"a": {"command": "x"}},
        "settings": {"maxPages": 5},
        "zebra": 1,
        "profiles": {"p": {}},
    }
    config = merge([ConfigLayer("i", raw, imported=True)])
    assert (config.settings, config.problems, config.profiles) == (Settings(), (), {})
    as_ours = merge([ConfigLayer("i", raw, imported=True, as_ours=True)])
    assert as_ours.settings.max_pages == 5
    assert as_ours.profiles == {}
    assert [problem.where for problem in as_ours.problems] == ["i: zebra"]


def test_files_that_are_merged_with_each_other_give_one_entry() -> None:
    def layer(name: str, entry: Any) -> ConfigLayer:
        return ConfigLayer(name, {"mcpServers": {"a": entry}}, imported=True, as_ours=True)

    layers = [
        layer("1", {"lifecycle": "eager"}),
        layer("2", {"maxQueued": 5}),
        layer("3", {"command": "x", "args": ["y"]}),
    ]
    one = merge(layers).servers["a"]
    assert (one.command, one.args, one.max_queued, one.lifecycle) == ("x", ("y",), 5, Lifecycle.EAGER)
    assert one.sources == {"command": "3", "args": "3", "max_queued": "2", "lifecycle": "1"}
    assert merge(layers).files == ("1", "2", "3")


def test_settings_of_ours_are_stronger_than_those_of_an_import_wherever_it_stands() -> None:
    ours = ConfigLayer("m", {"settings": {"maxPages": 5}})
    theirs = ConfigLayer(
        "i", {"settings": {"maxPages": 6, "maxQueued": 7, "idleTimeout": "x"}}, imported=True, as_ours=True
    )
    for layers in ([ours, theirs], [theirs, ours]):
        config = merge(layers, strict=True)
        assert (config.settings.max_pages, config.settings.max_queued) == (5, 7)
        assert [problem.where for problem in config.problems] == ["i: settings.idleTimeout"]
        assert config.problems[0].what.endswith("; it is skipped")


def test_an_entry_that_is_no_object_is_a_warning_where_another_file_has_the_server() -> None:
    strong, weak = (
        ConfigLayer("s", {"mcpServers": {"a": 5}}),
        ConfigLayer("w", {"mcpServers": {"a": {"command": "x"}}}),
    )
    config = merge([strong, weak])
    assert ([*config.servers], [*config.broken]) == (["a"], [])
    assert [(problem.where, problem.fatal) for problem in config.problems] == [("s: mcpServers.a", False)]
    alone = merge([strong])
    assert [(problem.where, problem.fatal) for problem in alone.problems] == [("s: mcpServers.a", True)]
    assert alone.broken["a"].where == "s: mcpServers.a"


def test_of_an_import_an_entry_that_is_no_object_breaks_nothing() -> None:
    config = merge([ConfigLayer("i", {"mcpServers": {"a": 5}}, imported=True)])
    assert ([*config.servers], [*config.broken]) == ([], [])
    assert [(problem.where, problem.fatal) for problem in config.problems] == [("i: mcpServers.a", False)]
    unreadable = merge([ConfigLayer("i", {"mcpServers": []}, imported=True)], strict=True)
    assert [problem.what.endswith("; it is skipped") for problem in unreadable.problems] == [True]


@for_each("name", ["", " ", "\ud83d", 3])
def test_a_name_that_nobody_can_write_is_no_name(name: Any) -> None:
    config = parse_config({"mcpServers": {name: {"command": "x"}}})
    assert ([*config.servers], [*config.broken], len(config.problems)) == ([], [], 1)
    assert not config.problems[0].fatal


def test_a_keep_alive_server_beyond_the_slots_is_told_where_that_was_said() -> None:
    kept = {"command": "x", "lifecycle": "keep-alive"}
    first = ConfigLayer(
        "one", {"mcpServers": {"a": {"lifecycle": "keep-alive"}}, "settings": {"maxConnections": 2}}
    )
    second = ConfigLayer("two", {"mcpServers": {"a": {"command": "x"}, "b": kept, "c": {"nothing": 1}}})
    config = merge([first, second])
    lazy = [name for name, one in config.servers.items() if one.lifecycle is Lifecycle.LAZY]
    told = [problem for problem in config.problems if "runs lazy" in problem.what]
    assert len(lazy) == len(told) == 1
    source = {"a": "one", "b": "two"}[lazy[0]]
    assert told[0].where == f"{source}: mcpServers.{lazy[0]}.lifecycle"
    assert len(config.problems) > 1, "the others are still told"


def test_what_is_said_to_be_left_behind_was_there_and_is_named_with_its_file() -> None:
    weak = {"command": "x", "env": None, "inheritEnv": True, "envFile": "e", "args": ["-y", "--token", "t"]}
    strong = {"cwd": "/elsewhere"}
    config = merge(
        [ConfigLayer("s", {"mcpServers": {"a": strong}}), ConfigLayer("w", {"mcpServers": {"a": weak}})]
    )
    assert [str(problem) for problem in config.problems] == [
        (
            's: mcpServers.a.cwd: changes what runs, so "args", "envFile", "inheritEnv" of w are not used with it: '
            "write them into this file too, if they are meant for it"
        )
    ]
    one = config.servers["a"]
    assert (one.command, one.args, one.env_file, one.inherit_env) == ("x", (), None, None)
    plain = merge(
        [
            ConfigLayer("s", {"mcpServers": {"a": strong}}),
            ConfigLayer("w", {"mcpServers": {"a": {**weak, "args": ["-y"]}}}),
        ]
    )
    assert plain.servers["a"].args == ("-y",)
    moved = {"url": "http://h", "headers": {"A": "b"}, "httpTransport": "sse", "oauth": False}
    for change in ({"httpTransport": "streamable-http"}, {"requestHeadersCommand": {"command": "c"}}):
        layers = [
            ConfigLayer("s", {"mcpServers": {"a": change}}),
            ConfigLayer("w", {"mcpServers": {"a": moved}}),
        ]
        assert (merge(layers).servers["a"].headers, merge(layers).servers["a"].oauth) == ({}, False)
    same = [
        ConfigLayer("s", {"mcpServers": {"a": {"url": "http://h"}}}),
        ConfigLayer("w", {"mcpServers": {"a": moved}}),
    ]
    assert merge(same).servers["a"].headers == {"A": "b"}


@pytest.mark.parametrize("key", ["supports_parallel_tool_calls", "supportsParallelToolCalls"])
def test_a_server_whose_tools_must_not_run_side_by_side_has_one_call_at_a_time(key: str) -> None:
    def read(said: Any, **more: Any) -> Config:
        return parse_config({"mcpServers": {"a": {"command": "x", key: said, **more}}}, source="m.json")

    assert read(False).servers["a"].max_in_flight == 1
    assert read(False, maxInFlight=3).servers["a"].max_in_flight == 3, "our own word is stronger"
    for said in (True, None):
        config = read(said)
        assert (config.servers["a"].max_in_flight, config.problems) == (None, ())
    wrong = read("no")
    assert wrong.servers["a"].max_in_flight is None
    assert not wrong.broken
    assert "must be true or false" in str(wrong.problems[0])
