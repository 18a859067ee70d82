"""References to the environment: every spelling, what is missing, and that values are never read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.protocol.config import ServerDefinition
from greenroom.protocol.errors import ConfigError
from greenroom.protocol.interpolate import (
    expand,
    expand_definition,
    expand_path,
    header_problem,
    missing_variables,
)

ENVIRON = {"A": "a", "B": "b", "EMPTY": "", "HOME": "/home/me", "SNEAKY": "${A}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "a"),
        ("x${A}y$env:B.{env:A}", "xayb.a"),
        ("${env:A}", "a"),
        ("${NOPE}", ""),
        ("${NOPE:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${A:-d}", "a"),
        ("${NOPE:-}", ""),
        ("${NOPE:-http://h:1/x}", "http://h:1/x"),
        ("$A", "$A"),
        ("${A", "${A"),
        ("${a b}", "${a b}"),
        ("{A}", "{A}"),
        ("${SNEAKY}", "${A}"),
        ("$env:NOPE!", "!"),
    ],
)
def test_every_spelling(text: str, expected: str) -> None:
    assert expand(text, ENVIRON) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~", "/home/me"),
        ("~/x", "/home/me/x"),
        ("~you/x", "~you/x"),
        ("/~", "/~"),
        ("${NOPE:-~/x}", "/home/me/x"),
    ],
)
def test_a_leading_tilde_is_home(text: str, expected: str) -> None:
    assert expand_path(text, ENVIRON) == expected
    assert expand_path("~/x", {}) == "~/x"


def test_missing_names_are_listed_once_and_in_order() -> None:
    assert missing_variables("${Z}${A}$env:Y{env:Z}${X:-d}${EMPTY}", ENVIRON) == ("Z", "Y")


@given(st.text(alphabet="${}:-envAB x", max_size=30), st.text(alphabet="${}AB", max_size=6))
def test_a_value_is_never_expanded_again(text: str, value: str) -> None:
    marked = expand(text, {"A": "\0", "B": "\0"})
    assert expand(text, {"A": value, "B": value}).count(value) >= marked.count("\0") or not value


def test_all_texts_of_a_definition_are_expanded() -> None:
    given = ServerDefinition(
        "s",
        command="~/${A}",
        args=("$env:A",),
        env={"K": "${A}"},
        cwd="~",
        headers={"H": "x${B}"},
        socket="~/s",
    )
    read = expand_definition(given, ENVIRON)
    assert not read.problems
    assert read.definition == ServerDefinition(
        "s",
        command="/home/me/a",
        args=("a",),
        env={"K": "a"},
        cwd="/home/me",
        headers={"H": "xb"},
        socket="/home/me/s",
    )


def test_a_missing_variable_is_a_warning_with_its_place() -> None:
    given = ServerDefinition(
        "s", command="x", cwd="${P}", headers={"H": "${Q}${R}"}, sources={"cwd": "mcp.json"}
    )
    problems = expand_definition(given, {}).problems
    assert [problem.where for problem in problems] == ["mcp.json: mcpServers.s.cwd", "mcpServers.s.headers.H"]
    assert "P. Set them, or give a default: ${P:-…}" in problems[0].what
    assert "Q, R. " in problems[1].what
    assert not any(problem.fatal for problem in problems)


def test_a_missing_variable_in_a_url_is_an_error_that_names_all_of_them() -> None:
    given = ServerDefinition("s", url="https://${HOST}/${TENANT}", sources={"url": "mcp.json"})
    with pytest.raises(ConfigError) as caught:
        expand_definition(given, {})
    assert str(caught.value) == (
        "mcp.json: mcpServers.s.url: Missing environment variable(s) in MCP server URL: HOST, TENANT. "
        "Set them, or give a default: ${HOST:-…}"
    )


@pytest.mark.parametrize("value", ["", "ftp://h", "http://[x", "http://u:secret@h:secret/"])
def test_a_url_that_expands_to_nonsense_is_an_error_that_does_not_repeat_it(value: str) -> None:
    with pytest.raises(ConfigError, match="after environment interpolation it") as caught:
        expand_definition(ServerDefinition("s", url="${U}"), {"U": value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["a\nb", "a\x00b", "\x7f"])
def test_a_url_that_gets_a_control_character_from_the_environment_is_refused_without_it(value: str) -> None:
    definition = ServerDefinition("s", url="http://${HOST}/mcp")
    with pytest.raises(ConfigError) as caught:
        expand_definition(definition, {"HOST": value})
    assert "holds a line break or another control character" in str(caught.value)
    assert value not in str(caught.value)


@pytest.mark.parametrize("code", [*range(0x21), 0x7E, 0x7F, 0x80])
def test_a_tab_is_the_only_control_character_of_a_header(code: int) -> None:
    is_right = code in (0x09, 0x20, 0x7E)
    assert (header_problem("x-a", f"a{chr(code)}b") is None) is is_right
