"""The secrets of a definition: all that is hidden when it is printed, and all that its references stand for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.rows import for_each

from greenroom.config.masking import hides, redacted, redacted_server, secrets_of
from greenroom.config.model import Config, ServerDefinition
from greenroom.config.parse import parse_config
from greenroom.config.scrubbing import Secrets
from greenroom.protocol.errors import Problem

URL = {"url": "https://h"}


def found(environ: dict[str, str] | None = None, **entry: Any) -> set[str]:
    config = parse_config({"mcpServers": {"s": entry}})
    return {one.value for one in secrets_of(config.servers["s"], environ or {})}


SECRETS: list[tuple[dict[str, Any], set[str]]] = [
    ({"command": "x", "env": {"A": "planted"}}, {"planted"}),
    ({"command": "x", "args": ["--token", "planted"]}, {"planted"}),
    ({"command": "x", "args": ["-y", "plain"]}, set()),
    ({"command": "/opt/ghp_abcdefgh1234"}, {"ghp_abcdefgh1234"}),
    ({"command": "x", "cwd": "/opt/ghp_abcdefgh1234"}, {"ghp_abcdefgh1234"}),
    ({"command": "x", "mystery": {"deep": ["planted", {"more": "other"}]}}, {"planted", "other"}),
    ({**URL, "headers": {"A": "planted"}}, {"planted"}),
    ({**URL, "bearerToken": "planted"}, {"Bearer planted", "planted"}),
    ({"url": "https://u:planted@h/?k=other#third"}, {"u:planted", "other", "third"}),
    ({**URL, "oauth": {"clientSecret": "planted", "clientId": "me", "scope": "a"}}, {"planted"}),
    ({**URL, "oauth": {"authorizationParams": {"a": "planted"}}}, {"planted"}),
    ({**URL, "requestHeadersCommand": {"command": "c", "env": {"E": "planted"}}}, {"planted"}),
    ({**URL, "requestHeadersCommand": {"command": "c", "args": ["--key", "planted", "-v"]}}, {"planted"}),
    # What a default says.
    ({"command": "x", "env": {"A": "${B:-planted}"}}, {"${B:-planted}", "planted"}),
    ({"command": "x", "cwd": "/a/${B:-planted}"}, {"planted"}),
    ({"url": "https://h/${B:-planted}"}, {"planted"}),
]


@for_each(("entry", "secrets"), SECRETS)
def test_what_is_hidden_as_it_was_written_is_secret(entry: dict[str, Any], secrets: set[str]) -> None:
    assert found(**entry) == secrets


REFERRING: list[dict[str, Any]] = [
    {"command": "x", "env": {"A": "a-${B}"}},
    {"command": "x", "args": ["a-${B}"]},
    {"command": "x", "cwd": "/a-${B}"},
    {"command": "a-${B}"},
    {"command": "x", "envFile": "a-${B}"},
    {"socket": "/a-${B}"},
    {**URL, "headers": {"A": "a-${B}"}},
    {"url": "https://h/${B}"},
    {**URL, "oauth": {"clientSecret": "a-${B}"}},
    {**URL, "oauth": {"authorizationParams": {"x": "a-${B}"}}},
    {**URL, "requestHeadersCommand": {"command": "a-${B}"}},
    {**URL, "requestHeadersCommand": {"command": "c", "args": ["a-${B}"]}},
    {**URL, "requestHeadersCommand": {"command": "c", "env": {"E": "a-${B}"}}},
]


@for_each("entry", REFERRING)
def test_what_a_reference_stands_for_is_secret_in_every_place(entry: dict[str, Any]) -> None:
    assert "the-value" in found({"B": "the-value"}, **entry)
    assert "the-value" not in found({"C": "the-value"}, **entry)


@pytest.mark.parametrize(
    ("environ", "value"), [({}, "the-default"), ({"B": ""}, "the-default"), ({"B": "the-value"}, "the-value")]
)
def test_of_a_reference_with_a_default_what_it_comes_to_is_secret(
    environ: dict[str, str], value: str
) -> None:
    assert value in found(environ, command="x", env={"A": "${B:-the-default}"})


def test_what_is_written_and_what_it_comes_to_are_both_secret() -> None:
    oauth = {"clientSecret": "planted-${B}", "authorizationParams": {"x": "other-${B}"}}
    values = found({"B": "b"}, **URL, oauth=oauth)
    assert {"planted-${B}", "planted-b", "other-${B}", "other-b"} <= values
    command = {"command": "c", "args": ["--key", "planted-${B}"], "env": {"E": "other-${B}"}}
    values = found({"B": "b"}, **URL, requestHeadersCommand=command)
    assert {"planted-${B}", "planted-b", "other-${B}", "other-b"} <= values
    assert {"a-${B}", "a-b"} <= found({"B": "b"}, command="x", env={"A": "a-${B}"})


def test_a_url_that_cannot_be_used_still_has_its_secrets() -> None:
    """Its error may quote parts of it."""
    values = found({"P": "the-password"}, url="https://u:${P}@h/${NOPE}?k=${P}")
    assert {"the-password", "u:the-password"} <= values
    broken = found({"A": "x\ny"}, **URL, headers={"A": "${A}", "B": "planted"})
    assert {"x\ny", "planted"} <= broken


def test_a_value_of_a_session_is_a_credential_by_its_source() -> None:
    definition = ServerDefinition("s", command="x", env={"A": "${session.X} ${B}"})
    named = {one.name: one for one in secrets_of(definition, {"session.X": "value", "B": "b"})}
    assert (named["X"].value, named["X"].known) == ("value", True)
    assert (named["B"].value, named["B"].known) == ("b", False)


@for_each(
    "everyday",
    ["USER", "LOGNAME", "LANG", "LC_ALL", "LANGUAGE", "TERM", "TERM_PROGRAM", "HOST", "HOSTNAME", "SHELL", "PWD",
     "OLDPWD", "TZ", "_", "XDG_RUNTIME_DIR", "EDITOR"],
)  # fmt: skip
def test_what_every_program_quotes_is_no_secret_and_a_longer_name_is_another(everyday: str) -> None:
    definition = ServerDefinition("s", command="x", inherit_env=True)
    value = "q7Zk2Wm9x4TrB8Lp"
    for name, shown in ((everyday, value), (f"{everyday}_TOKEN", "***"), (f"MY{everyday}ISH", "***")):
        assert Secrets(secrets_of(definition, {name: value})).without(value) == shown, name


@for_each(
    ("args", "is_hidden"),
    [
        (["-y", "pkg"], False),
        (["--token", "x"], True),
        (["--token=x"], True),
        (["${HOME}/x"], False),
        (["${API_KEY}"], True),
        (["$env:TOKEN"], True),
        (["--token", "${X}"], True),
        (["!get it"], True),
        (["${keyring:s/n}"], True),
        ([{"keyring": "s/n"}], True),
        ([5], True),
        ([], False),
        ("--token x", False),
        (None, False),
    ],
)
def test_arguments_that_may_hold_a_secret_are_known(args: Any, is_hidden: bool) -> None:
    assert hides(args) is is_hidden


def test_a_printed_configuration_says_what_is_not_obeyed_and_what_is_wrong() -> None:
    config = Config(
        files=("a", "b"),
        untrusted=("b",),
        problems=(Problem("a: x", "is odd", fatal=False),),
        broken={"s": Problem("a: mcpServers.s", "is empty")},
    )
    printed = redacted(config)
    assert (printed["files"], printed["untrusted"]) == (["a", "b"], ["b"])
    assert (printed["problems"], printed["broken"]) == (["a: x: is odd"], {"s": "a: mcpServers.s: is empty"})


def test_what_was_not_said_is_not_printed_and_unknown_keys_show_no_value() -> None:
    config = parse_config({"mcpServers": {"s": {"command": "x", "zebra": "planted", "sandbox": 5}}})
    assert redacted_server(config.servers["s"]) == {"command": "x", "zebra": "***", "sandbox": "***"}
    made = msgspec.structs.replace(
        config.servers["s"], extra={}, sources={}, max_queued=0, lifecycle=ServerDefinition("s").lifecycle
    )
    assert redacted_server(made) == {"command": "x", "maxQueued": 0}
    said = parse_config({"mcpServers": {"s": {"command": "x", "bootstrap": True}}}).servers["s"]
    assert redacted_server(said) == {"command": "x", "bootstrap": True}, "also where it is the default"
