"""The guides to the configuration say what the code does: their examples parse. (`tools.reference` makes the pages of
keys and bounds.)"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.reference import configuration

from greenroom.config.definition_identity import IDENTITY
from greenroom.config.keys import IMPORT_KINDS
from greenroom.config.model import SERVER_KEYS
from greenroom.config.parse import parse_config
from greenroom.protocol.bounds import BOUNDS

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("configuration.md", "servers.md", "secrets.md", "policies.md", "profiles.md")
EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name in GUIDES
    for number, example in enumerate(
        re.findall(r"```json\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("servers", configuration.server_keys),
        ("settings", configuration.settings),
        ("bounds", configuration.bounds),
    ],
)
def test_the_reference_says_what_the_model_says(page: str, made: Callable[[], str]) -> None:
    """A default that somebody changes is changed in the docs, too, on purpose."""
    file = DOCS / "reference" / f"{page}.md"
    assert file.read_text(encoding="utf-8") == made(), "run `python -m tools.reference`"


def test_every_bound_has_one_number() -> None:
    assert all((bound.most is None) == bool(bound.setting) for bound in BOUNDS)
    assert len({(bound.what, bound.unit) for bound in BOUNDS}) == len(BOUNDS)


def test_vital_is_what_the_hash_covers_and_isolation() -> None:
    identity = {key.attribute for key in SERVER_KEYS if key.identity}
    others = {"disabled", "isolation", "auth", "oauth", "tool_overrides", "approve", "pinning", "scrub"}
    assert identity == set(IDENTITY) - {"in_process"} | others


def test_every_import_is_listed() -> None:
    page = (DOCS / "imports.md").read_text(encoding="utf-8")
    assert all(f"| `{kind}` |" in page for kind in IMPORT_KINDS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_parses_without_a_word(example: str) -> None:
    raw = json.loads(re.sub(r"^\s*//.*$", "", example, flags=re.MULTILINE))
    config = parse_config(raw)
    assert not config.problems
    assert config.servers
