"""The model of a configuration: what settings fill in, what a log line shows, whose tools and which process it is."""

from __future__ import annotations

from typing import Any

from tests.support.rows import for_each

from greenroom.config.definition_identity import definition_hash, pin_key, policy_only_change
from greenroom.config.model import ServerDefinition, Settings, with_settings

HERE = "/srv"


@for_each("general", [False, True, ("G*",), ()])
@for_each("own", [None, False, True, ("O*",), ()])
def test_what_a_server_says_of_its_environment_is_stronger_also_when_it_says_nothing_may_pass(
    own: bool | tuple[str, ...] | None, general: bool | tuple[str, ...]
) -> None:
    definition = ServerDefinition("s", command="x", inherit_env=own)
    settings = Settings(inherit_env=general)
    expected = general if own is None else own
    assert with_settings(definition, settings).inherit_env == expected
    written = ServerDefinition("s", command="x", inherit_env=expected)
    assert definition_hash(definition, {}, HERE, settings) == definition_hash(written, {}, HERE)


def test_the_logins_of_pi_are_of_servers_with_a_url_where_the_settings_say_so() -> None:
    http, local = ServerDefinition("s", url="http://h"), ServerDefinition("s", command="x")
    assert with_settings(http, Settings(oauth_dir="/l")).pi_logins == "/l"
    assert with_settings(http, Settings()).pi_logins is None
    assert with_settings(local, Settings(oauth_dir="/l")).pi_logins is None
    assert with_settings(http, Settings(oauth_dir="/l", inherit_env=True)).inherit_env is True


def test_in_a_log_line_a_definition_shows_no_value_that_may_be_secret() -> None:
    planted = "planted-4711"
    definition = ServerDefinition(
        "s",
        command="x",
        args=("--token", planted),
        env={"A": planted},
        env_file_state=planted,
        url=f"https://u:{planted}@h/p?k={planted}#{planted}",
        headers={"B": planted},
        oauth={"clientSecret": planted},
        request_headers_command={"command": planted},
        extra={"zebra": planted},
    )
    said = repr(definition)
    assert planted not in said
    for shown in (
        "args=(2 of them)",
        "env={'A': ***}",
        "headers={'B': ***}",
        "https://***@h/p'",
        "'zebra': ***",
    ):
        assert shown in said, shown
    assert "url=None" in repr(ServerDefinition("s"))
    assert planted not in repr(Settings(http_tokens={"ann": planted}))


def key(directory: str = HERE, **of: Any) -> str:
    return pin_key(ServerDefinition("any", **of), directory)


@for_each(
    ("field", "one", "other"),
    [
        ("command", "x", "y"),
        ("args", ("a@1",), ("a@2",)),
        ("url", "http://a", "http://b"),
        ("socket", "/a", "/b"),
        ("cwd", "/a", "/b"),
    ],
)
def test_whose_tools_they_are_is_where_they_come_from(field: str, one: Any, other: Any) -> None:
    assert key(**{field: one}) == key(**{field: one})
    assert key(**{field: one}) != key(**{field: other})
    told = {field: "/f/one.json", "env": "/f/other.json"}
    assert key(**{field: one}, sources=told) == key(**{field: one}, sources={field: "/f/one.json"})
    assert key(**{field: one}, sources=told) != key(**{field: one}, sources={field: "/f/two.json"})


def test_what_may_change_without_being_another_server_changes_no_pin() -> None:
    base = key(command="x")
    others: list[dict[str, Any]] = [
        {"env": {"A": "b"}},
        {"isolation": None},
        {"max_queued": 5},
        {"env_file": "e"},
    ]
    for same in others:
        assert key(command="x", **same) == base
    assert key(in_process=print) != key(in_process=len) != key(in_process=None)
    assert key("/a", command="x", sources={"command": "b/m.json"}) == key(
        "/a/b", command="x", sources={"command": "m.json"}
    )
    assert key("/a", command="x", sources={"command": "m.json"}) != key(
        "/b", command="x", sources={"command": "m.json"}
    )


def test_an_env_file_is_where_the_program_would_look_for_it() -> None:
    near = ServerDefinition("s", command="x", cwd="/w", env_file="e")
    there = ServerDefinition("s", command="x", cwd="/w", env_file="/a/e")
    assert definition_hash(near, {}, "/a") == definition_hash(there, {}, "/b")
    assert definition_hash(near, {}, "/a") != definition_hash(near, {}, "/b")


def test_an_env_file_that_has_changed_is_another_process_and_the_same_server() -> None:
    old, new = (ServerDefinition("s", command="x", env_file_state=state) for state in ("1", "2"))
    assert definition_hash(old, {}, HERE) == definition_hash(new, {}, HERE)
    assert not policy_only_change(old, new)
    assert not policy_only_change(ServerDefinition("a", command="x"), ServerDefinition("b", command="x"))
    yes, one = (
        ServerDefinition("s", command="x", inherit_env=True),
        ServerDefinition("s", command="x", inherit_env=("1",)),
    )
    assert not policy_only_change(yes, one)
