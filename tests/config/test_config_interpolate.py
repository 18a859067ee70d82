"""References to the environment: every spelling, what is missing, and that values are never read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.model import ServerDefinition
from greenroom.config.references import (
    Expansion,
    expand,
    expand_definition,
    expand_path,
    has_reference,
    header_problem,
    missing_variables,
    referred_to,
    refers_to_session,
    session_variables,
    url_problem,
    with_defaults,
    with_session,
    without_references,
)
from greenroom.protocol.errors import ConfigError

ENVIRON = {"A": "a", "B": "b", "EMPTY": "", "HOME": "/home/me", "SNEAKY": "${A}"}


@for_each(
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


@for_each(
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
    assert "the variable P, which is not set, so it is empty here. Set it where" in str(problems[0])
    assert "variables Q and R, which are" in problems[1].what
    assert not any(problem.fatal for problem in problems)


def test_a_missing_variable_in_a_url_is_an_error_that_names_all_of_them() -> None:
    given = ServerDefinition("s", url="https://${HOST}/${TENANT}", sources={"url": "mcp.json"})
    with pytest.raises(ConfigError) as caught:
        expand_definition(given, {})
    assert str(caught.value) == (
        "mcp.json: mcpServers.s.url: its URL needs the variables HOST and TENANT, which are not set. "
        "Set them where Greenroom is started, or give a default: ${HOST:-…}"
    )


@pytest.mark.parametrize("url", ["${U}", "http://h/${U}/mcp", "http://api.example${U}"])
def test_t58_an_empty_variable_in_a_url_is_missing_unless_the_url_says_that_it_may_be(url: str) -> None:
    for environ in ({"U": ""}, {"U": " "}, {}):
        with pytest.raises(ConfigError, match="its URL needs the variable U, which is not set"):
            expand_definition(ServerDefinition("s", url=url), environ)
    allowed = ServerDefinition("s", url="http://h/${U:-}/mcp")
    assert expand_definition(allowed, {"U": ""}).definition.url == "http://h//mcp"


@pytest.mark.parametrize("value", ["ftp://h", "http://[x", "http://u:secret@h:secret/"])
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


@for_each("code", [*range(0x21), 0x7E, 0x7F, 0x80])
def test_a_tab_is_the_only_control_character_of_a_header(code: int) -> None:
    is_right = code in (0x09, 0x20, 0x7E)
    assert (header_problem("x-a", f"a{chr(code)}b") is None) is is_right


# ---- each place that may refer to something ------------------------------------------------------------------------

# A place of an entry: what a definition has there, and where a file says it.
PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "command": ({"command": "{}"}, "command"),
    "cwd": ({"command": "x", "cwd": "{}"}, "cwd"),
    "socket": ({"socket": "{}"}, "socket"),
    "env_file": ({"command": "x", "env_file": "{}"}, "envFile"),
    "args": ({"command": "x", "args": ("-y", "{}")}, "args[1]"),
    "env": ({"command": "x", "env": {"A": "{}"}}, "env.A"),
    "headers": ({"url": "http://h", "headers": {"X-A": "{}"}}, "headers.X-A"),
    "command of headers": (
        {"url": "http://h", "request_headers_command": {"command": "{}", "args": (), "env": {}}},
        "requestHeadersCommand.command",
    ),
    "its args": (
        {"url": "http://h", "request_headers_command": {"command": "c", "args": ("-v", "{}"), "env": {}}},
        "requestHeadersCommand.args[1]",
    ),
    "its env": (
        {"url": "http://h", "request_headers_command": {"command": "c", "args": (), "env": {"B": "{}"}}},
        "requestHeadersCommand.env.B",
    ),
}
PATHS = {"command", "cwd", "socket", "env_file", "command of headers"}


def _with(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _with(each, text) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        return tuple(_with(each, text) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return text if value == "{}" else value


def definition(place: str, text: str) -> ServerDefinition:
    fields: Any = _with(PLACES[place][0], text)
    return ServerDefinition("s", **fields, sources=dict.fromkeys(fields, "m.json"))


@for_each("place", PLACES)
def test_each_place_is_expanded_and_says_what_it_misses(place: str) -> None:
    read = expand_definition(definition(place, "~/${A}${EMPTY}"), ENVIRON)
    home = "/home/me" if place in PATHS else "~"
    assert read.definition == definition(place, f"{home}/a")
    assert read.problems == ()
    (problem,) = expand_definition(definition(place, "${NOPE}${EMPTY}${Z:-z}${MORE}"), ENVIRON).problems
    assert problem.where == f"m.json: mcpServers.s.{PLACES[place][1]}"
    assert problem.in_words.startswith(
        "it refers to the variables NOPE and MORE, which are not set, so they are empty here. Set them"
    )
    assert not problem.fatal


@for_each("place", PLACES)
def test_a_value_of_a_session_is_needed_wherever_it_stands_unless_it_has_a_default(place: str) -> None:
    assert session_variables(definition(place, "${session.A}-${session.B:-b}-${session.A}")) == {"A"}
    assert session_variables(definition(place, "${A}")) == set()
    own = ServerDefinition("s", url="http://h/${session.U}", headers={"A": "${session.H}"})
    assert session_variables(own) == {"U", "H"}
    given = with_session(ENVIRON, {"A": "mine"})
    assert expand_definition(definition(place, "${session.A}"), given).definition == definition(place, "mine")
    empty = with_session(ENVIRON, {"A": ""})
    assert expand_definition(definition(place, "x${session.A}"), empty).definition == definition(place, "x")
    kept = expand_definition(definition(place, "${session.A}${session.B:-b}"), ENVIRON)
    assert kept == Expansion(definition(place, "${session.A}b"))


@for_each("place", ["args", "env", "headers"])
@for_each(
    ("text", "read"),
    [
        ("!cat ${A}", "!cat ${A}"),
        ("!!${A}", "!a"),
        ("!", "!"),
        ("! ", "! "),
        ("Bearer !cat ${A}", "Bearer !cat ${A}"),
        ("Bearer !!${A}", "Bearer !a"),
        ("Bearer ${A}!", "Bearer a!"),
        ("${keyring:s/n}", "${keyring:s/n}"),
        ("Bearer ${keyring:s/n}", "Bearer ${keyring:s/n}"),
    ],
)
def test_a_value_that_is_asked_for_stays_as_written_and_two_exclamation_marks_are_read_as_one(
    place: str, text: str, read: str
) -> None:
    found = expand_definition(definition(place, text), ENVIRON)
    assert found.definition == definition(place, read.strip() if place == "headers" else read)
    assert found.problems == ()


def test_what_a_command_says_is_not_looked_through_for_variables() -> None:
    for place in ("args", "env", "headers"):
        assert expand_definition(definition(place, "!echo ${NOPE}"), {}).problems == ()


def test_a_header_loses_the_line_break_that_its_value_ends_with() -> None:
    """A token that is read from a file often has one."""
    read = expand_definition(definition("headers", " ${T}\n"), {"T": "tok\n\n"}).definition
    assert read.headers == {"X-A": "tok"}
    of_command = ServerDefinition("s", command="x", headers={"a b": "\x00é"})
    assert expand_definition(of_command, {}).definition.headers == {"a b": "\x00é"}, "nobody sends it"


def test_every_header_that_cannot_be_sent_is_named_and_no_value_is_shown() -> None:
    headers = {"a b": "v", "X-Long": "se\ncret", "X-Odd": "secrét", "X-Tab": "a\tb", "X-Good": "v"}
    with pytest.raises(ConfigError) as caught:
        expand_definition(ServerDefinition("s", url="http://h", headers=headers), {})
    where = [problem.where for problem in caught.value.problems]
    assert where == [
        'mcpServers.s.headers["a b"]',
        "mcpServers.s.headers.X-Long",
        "mcpServers.s.headers.X-Odd",
    ]
    assert all(problem.fatal for problem in caught.value.problems)
    said = str(caught.value)
    assert "line break" in said
    assert "outside ASCII" in said
    assert "not a name that a header may have" in said
    assert not {"se\n", "cret", "secrét"} & set(said.split())


@for_each(
    ("url", "wrong"),
    [
        ("http://h", None),
        ("https://h:1/p", None),
        ("HTTP://h", None),
        ("httpx://h", "must start with http:// or https://"),
        ("https:/h", "names no host"),
        ("h/p", "must start with http:// or https://"),
        ("http://h:99999/", "is not a URL"),
        ("http://h/\n", "holds a line break or another control character"),
        ("http://:80/", "names no host"),
    ],
)
def test_a_url_is_of_http_and_names_a_host(url: str, wrong: str | None) -> None:
    found = url_problem(url)
    assert found is None if wrong is None else str(found).startswith(wrong)


def test_a_url_from_the_environment_may_have_space_around_it() -> None:
    read = expand_definition(ServerDefinition("s", url=" ${U} "), {"U": "http://h\n"})
    assert read.definition.url == "http://h"


def test_references_can_be_left_out_shown_and_named() -> None:
    text = "a${A}b$env:B.{env:C}d${D:-}e${E:-x}f${session.S}"
    assert without_references(text) == "ab.d${D:-}e${E:-x}f"
    assert with_defaults(text, lambda default: f"<{default}>") == (
        "a${A}b$env:B.{env:C}d${D:-}e${E:-<x>}f${session.S}"
    )
    assert referred_to(text) == (
        ("A", ""), ("B", ""), ("C", ""), ("D", ""), ("E", "x"), ("session.S", ""),
    )  # fmt: skip
    assert (has_reference("$A ${a b} {A}"), has_reference("{env:A}")) == (False, True)
    assert (refers_to_session("${session.A}"), refers_to_session("session.A ${A}")) == (True, False)
    assert expand("${A}$env:B", {"A": "a", "B": "b"}) == "ab"
    assert expand("$env:B} and ${B", {"B": "b"}) == "b} and ${B"


@for_each(
    "entry",
    [
        {"url": "http://h/" + "${A}" * 20_000},
        {"command": "${A}" * 20_000},
        {"command": "c", "args": ("${A}",) * 20_000},
        {"command": "c", "env": {"X": "${A}" * 20_000}},
        {"url": "http://h/", "headers": {"X": "{env:A}" * 20_000}},
        {"url": "http://h/", "headers": {"X": "${session.A}" * 20_000}},
    ],
    ids=str,
)
def test_a_long_value_is_not_written_without_end(entry: dict[str, Any]) -> None:
    """2 GB were made of 80 kB (issue 38)."""
    environ = with_session({"A": "a" * 100_000}, {"A": "a" * 100_000})
    with pytest.raises(ConfigError, match="stand for more than 8,388,608 characters: use fewer of them"):
        expand_definition(ServerDefinition("s", **entry), environ)
    text = "${A}" * 20_000
    assert len(expand(text, environ)) < 9_000_000, (
        "where nothing can be refused, the rest stays as it is written"
    )
