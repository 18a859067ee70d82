"""Every style, read back by a reader that knows the table of OpenAPI and nothing of the writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.openapi.styles import STYLES, deep, encoded, encoded_reserved, plain

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(".,;=&|[]%/? ~-'", max_size=6)
KEYS = TEXT.filter(lambda key: "[" not in key and "]" not in key)
ITEMS = st.lists(TEXT, min_size=1, max_size=4)
PAIRS = st.dictionaries(TEXT, TEXT, min_size=1, max_size=4)
NAME = "n"
MARKS = {"spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09"}


def read_value(style: str, explode: bool, said: str, kind: type) -> Any:
    """What a server makes of a value in this style that it knows to be of this kind."""
    first = {"label": ".", "matrix": ";"}.get(style, "")
    assert said.startswith(first)
    said = said[len(first) :]
    separator = {"label": ".", "matrix": ";", "form": "&", "cookie": "; "}.get(
        style, "," if style == "simple" else "&"
    )
    is_named = style not in ("simple", "label")
    if kind is dict and explode:
        return dict([unquote(half) for half in pair.split("=", 1)] for pair in said.split(separator))
    if kind is list and explode:
        return [unquote(_value(part) if is_named else part) for part in said.split(separator)]
    value = _value(said) if is_named else said
    if kind is str:
        return unquote(value)
    items = [unquote(part) for part in value.split(MARKS.get(style, ","))]
    return items if kind is list else dict(zip(items[::2], items[1::2], strict=True))


def _parts(value: Any) -> list[str]:
    """What would be separated."""
    match value:
        case str():
            return []
        case dict():
            return [text for pair in value.items() for text in pair]
        case _:
            return value


def _value(pair: str) -> str:
    """The value behind the name; a name alone has an empty one."""
    name, _, value = pair.partition("=")
    assert name == NAME
    return value


@pytest.mark.parametrize("explode", [False, True], ids=["flat", "exploded"])
@pytest.mark.parametrize("style", STYLES)
@given(value=TEXT | ITEMS | PAIRS)
def test_what_is_written_is_read_back(style: str, explode: bool, value: Any) -> None:
    if not explode and style in MARKS and any(unquote(MARKS[style]) in part for part in _parts(value)):
        with pytest.raises(ValueError, match="which separates values there"):
            STYLES[style].expanded(NAME, value, encoded, explode=explode)
        return
    said = STYLES[style].expanded(NAME, value, encoded, explode=explode)
    assert said is not None
    assert read_value(style, explode, said, type(value)) == value


@pytest.mark.parametrize("style", ["form", "spaceDelimited", "pipeDelimited"])
@given(value=TEXT | ITEMS)
def test_reserved_characters_stay_and_are_read_back(style: str, value: Any) -> None:
    said = STYLES[style].expanded(NAME, value, encoded_reserved, explode=True)
    assert said is not None
    assert read_value(style, True, said, type(value)) == value
    assert not set("#[]") & set(said)
    assert "%2F" not in said


TREES = st.recursive(
    TEXT,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(KEYS.filter(bool), inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(KEYS.filter(lambda key: key and not key.isdecimal()), TREES, min_size=1, max_size=3))
def test_nested_names_are_read_back_as_rack_and_qs_read_them(value: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    for pair in deep(NAME, value, encoded):
        name, _, said = pair.partition("=")
        place = unquote(name).removeprefix(NAME)
        assert place.startswith("[")
        assert place.endswith("]")
        _put(found, place[1:-1].split("]["), unquote(said))
    assert _lists(found) == _as_read(value)


def _put(into: dict[str, Any], keys: list[str], value: str) -> None:
    for position, key in enumerate(keys[:-1]):
        if keys[position + 1 :] == [""]:
            into.setdefault(key, []).append(value)
            return
        into = into.setdefault(key, {})
    into[keys[-1]] = value


def _lists(found: Any) -> Any:
    """Objects whose keys count from 0 are lists."""
    if not isinstance(found, dict):
        return found
    inner = {key: _lists(each) for key, each in found.items()}
    return [*inner.values()] if [*inner] == [str(number) for number in range(len(inner))] else inner


def _as_read(value: Any) -> Any:
    """An object whose keys count from 0 cannot be told from a list."""
    if isinstance(value, list):
        return [_as_read(each) for each in value]
    return _lists({key: _as_read(each) for key, each in value.items()}) if isinstance(value, dict) else value


@for_each(
    ("value", "text"),
    [(True, "true"), (False, "false"), (1, "1"), (1.0, "1"), (1.5, "1.5"), (1e300, "1e300"), (10**30, "1" + "0" * 30),
     ("", ""), ([1, "a"], '[1,"a"]'), ({"a": None}, '{"a":null}')],
)  # fmt: skip
def test_plain_values_as_text(value: Any, text: str) -> None:
    assert plain(value) == text


@for_each("value", [None, [], {}, [None], {"a": None}], ids=str)
@for_each("explode", [False, True])
def test_what_is_no_value_is_left_out(value: Any, explode: bool) -> None:
    assert STYLES["form"].expanded(NAME, value, encoded, explode=explode) is None
    assert deep(NAME, value, encoded) == []


def test_nesting_is_bounded() -> None:
    value: Any = "x"
    for _ in range(50):
        value = {"a": value}
    with pytest.raises(ValueError, match="nested more than 32 levels deep"):
        deep(NAME, value, encoded)


@pytest.mark.parametrize("encode", [encoded, encoded_reserved])
def test_half_a_character_is_replaced(encode: Callable[[str], str]) -> None:
    assert encode("a\ud800") == "a%EF%BF%BD"
