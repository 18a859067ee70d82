"""A configuration in YAML: what is refused before it costs anything. The shapes of real files are golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.config.test_config_files import Place
from tests.support.rows import for_each

from greenroom.config import file_formats
from greenroom.protocol.errors import ConfigError

WORD = st.text("abc019-.: #'\"*&!<[]{}|>%@`,\n\t", max_size=8)


def test_only_what_ends_like_yaml_is_yaml_and_json_is_yaml_too(place: Place) -> None:
    place.write("project/a.yml", "servers: { s: { command: x } }")
    place.write("project/b.YAML", '{"mcpServers": {"s": {"command": "x"}}}')
    for name in ("a.yml", "b.YAML"):
        assert place.load(name).servers["s"].command == "x"
    place.write("project/c.json", "servers: { s: { command: x } }")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        place.load("c.json")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    return Place(tmp_path)


@for_each(
    ("text", "what"),
    [
        ("[" * 20_000, "is nested too deeply"),
        ("- " * 20_000, "is nested too deeply"),
        ("a: " + "9" * 5000, "holds a number that is too long"),
        ("a" * (file_formats.LARGEST + 1), "has more than 65,536 characters"),
        ("a\0b", "is not valid YAML: "),
        ("{[a]: b}", "holds a key that is not text (line 1, column 4)"),
        ("a: *planted-secret", "holds an alias of nothing that came before (line 1, column 4)"),
        ("a: !!python/name:os.system x", "has a tag tag:yaml.org,2002:python/name:os.system, which is not"),
        ("a: !planted-secret%2F%C3%A9 x", "has a tag of its own"),
        ("a: 'planted", "is not valid YAML: found unexpected end of stream (line 1, column 12)"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_is_refused_is_named_and_not_shown(text: str, what: str) -> None:
    with pytest.raises(file_formats.NotYamlError) as refused:
        file_formats.load_yaml(text, {})
    assert str(refused.value).startswith(what)
    assert "planted-secret" not in str(refused.value)


def test_aliases_are_values_wherever_they_stand_and_a_repeated_key_is_told() -> None:
    repeated: dict[str, None] = {}
    text = "a: &x {c: 1}\nb: [*x, *x]\nd: {<<: *x, e: 2}\nf: 1\nf: 2\n"
    one = {"c": 1}
    assert file_formats.load_yaml(text, repeated) == {
        "a": one,
        "b": [one, one],
        "d": {"c": 1, "e": 2},
        "f": 2,
    }
    assert [*repeated] == ["f"]


def test_what_is_as_large_as_it_may_be_is_read_and_one_more_is_not() -> None:
    assert file_formats.load_yaml("a" * 65_536, {}) == "a" * 65_536
    thousand = f"&x [{','.join('1' * 999)}]"

    def text(rest: int) -> str:  # 1 + 99 * 1,000 + rest values
        return f"[{thousand},{'*x ,' * 98}{','.join('2' * rest)}]"

    assert len(file_formats.load_yaml(text(999), {})) == 99 + 999
    with pytest.raises(file_formats.NotYamlError, match="holds more than 100,000 values when its aliases"):
        file_formats.load_yaml(text(1_000), {})
    with pytest.raises(file_formats.NotYamlError, match=r"an alias of what it is in \(line 1, column 1\)"):
        file_formats.load_yaml("&x [1, *x]", {})


@given(st.lists(st.tuples(WORD, WORD), max_size=4))
def test_any_text_is_a_value_or_one_error(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{key}: {value}" for key, value in pairs)
    try:
        found: Any = file_formats.load_yaml(text, {})
    except file_formats.NotYamlError:
        return
    assert found is None or isinstance(found, str | int | float | bool | dict | list)


@for_each(
    ("text", "what"),
    [
        ("[" * 100_000, "is nested too deeply (line 1, column 101)"),
        ("- " * 100_000, "is nested too deeply (line 1, column 201)"),
        ("{a: " * 100_000, "is nested too deeply (line 1, column 401)"),
        ("? " * 50_000, "is nested too deeply (line 1, column 201)"),
        ("a: " + "9" * 5000, "holds a number that is too long"),
        ("a: &a [*a]", "holds an alias of what it is in (line 1, column 4)"),
        ("&x [1]\n---\n2", "holds more than one document (line 2, column 1)"),
        ("a: !planted-secret%2F%C3%A9 x", "has a tag of its own"),
        ("a: !ours x", "has a tag !ours, which is not read here: write the value itself (line 1, column 4)"),
        ("{[a]: b}", "holds a key that is not text"),
        ("a\0b", "is not valid YAML: "),
        ("# nothing", "is empty"),
        (
            "\n".join(
                [f"{n}: &{n} [{','.join([f'*{p}'] * 50)}]" for n, p in zip("bcdefgh", "abcdefg", strict=True)]
            ).join(["a: &a 1\n", ""]),
            "holds more than 4,000,000 values when its aliases are written out",
        ),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_large_text_is_refused_before_it_costs_anything(text: str, what: str) -> None:
    with pytest.raises(file_formats.NotYamlError) as refused:
        file_formats.load_large_yaml(text)
    assert str(refused.value).startswith(what)
    assert "planted-secret" not in str(refused.value)


def test_words_mean_what_they_mean_in_the_standard_of_today_and_keys_are_texts() -> None:
    meanings: dict[str, Any] = {
        "1": 1,
        "-1": -1,
        "0777": "0777",
        "1.5": 1.5,
        "1e3": 1000.0,
        "no": "no",
        "true": True,
        "~": None,
        "": None,
        "12:30": "12:30",
        "2026-01-01": "2026-01-01",
        "'1'": "1",
        '"~"': "~",
        "!!str 5": "5",
        '!!int "5"': 5,
    }
    text = "".join(f"k{number}: {word}\n" for number, word in enumerate(meanings))
    expected = {f"k{number}": meaning for number, meaning in enumerate(meanings.values())}
    assert file_formats.load_yaml(text, {}) == file_formats.load_large_yaml(text) == expected
    assert file_formats.load_large_yaml("200: a\ntrue: b\n'c': {3.10: d}\nl: |\n  a\n  b\n") == {
        "200": "a",
        "true": "b",
        "c": {"3.10": "d"},
        "l": "a\nb\n",
    }
    merged = "a: &x {c: 1, d: 2}\nb: {<<: *x, c: 3}\ne: {<<: [{c: 4}, *x]}"
    x = {"c": 1, "d": 2}
    assert file_formats.load_large_yaml(merged) == {"a": x, "b": {**x, "c": 3}, "e": {**x, "c": 4}}
