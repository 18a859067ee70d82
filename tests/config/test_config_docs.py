"""docs/configuration.md says what the code does: its tables are the key tables, its examples parse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from greenroom.config.identity import IDENTITY
from greenroom.config.keys import IMPORT_KINDS, Key
from greenroom.config.model import SERVER_KEYS, SETTING_KEYS, ServerDefinition, Settings
from greenroom.config.parse import parse_config
from greenroom.config.schema import default_of
from greenroom.protocol.bounds import BOUNDS

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def table(keys: tuple[Key, ...], model: type[Any]) -> str:
    rows = [
        f"| `{key.name}` | {key.kind.unit or '–'} | {default(key, model)} | {key.meaning} |" for key in keys
    ]
    return "\n".join(["| key | unit | default | meaning |", "|---|---|---|---|", *rows])


def bounds_table() -> str:
    settable = {key.attribute: key.name for key in SETTING_KEYS}
    defaults = Settings()
    rows = [
        f"| {b.what} | {b.value_in(defaults):,} {b.unit} | {b.over} | "
        f"{f'`{settable[b.setting]}`' if b.setting else '–'} |"
        for b in BOUNDS
    ]
    return "\n".join(["| what | at most | over it | set by |", "|---|---|---|---|", *rows])


def test_the_table_of_bounds_is_the_bounds() -> None:
    assert bounds_table() in PAGE, f"docs/configuration.md should hold:\n\n{bounds_table()}\n"


def test_every_bound_has_one_number() -> None:
    assert all((bound.most is None) == bool(bound.setting) for bound in BOUNDS)
    assert len({(bound.what, bound.unit) for bound in BOUNDS}) == len(BOUNDS)


def default(key: Key, model: type[Any]) -> str:
    value = default_of(key, model)
    return key.in_words or ("none" if value in (None, [], {}) else f"`{json.dumps(value).strip(chr(34))}`")


@pytest.mark.parametrize(("keys", "model"), [(SERVER_KEYS, ServerDefinition), (SETTING_KEYS, Settings)])
def test_the_tables_are_the_key_tables(keys: tuple[Key, ...], model: type[Any]) -> None:
    assert table(keys, model) in PAGE, f"docs/configuration.md should hold:\n\n{table(keys, model)}\n"


def test_vital_is_what_the_hash_covers_and_isolation() -> None:
    identity = {key.attribute for key in SERVER_KEYS if key.identity}
    others = {"disabled", "isolation", "auth", "oauth", "tool_overrides", "approve", "pinning", "scrub"}
    assert identity == set(IDENTITY) - {"in_process"} | others


def test_every_import_is_listed() -> None:
    assert all(f"| `{kind}` |" in PAGE for kind in IMPORT_KINDS)


@pytest.mark.parametrize("example", re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_parses_without_a_word(example: str) -> None:
    raw = json.loads(re.sub(r"^\s*//.*$", "", example, flags=re.MULTILINE))
    config = parse_config(raw)
    assert not config.problems
    assert config.servers
