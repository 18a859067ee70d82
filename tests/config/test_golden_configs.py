"""Configuration files as people have them: what each means for us, or the exact message about it.

`tests/data/golden_configs/KIND/FILE` is read as the file of the program KIND that our own file imports; `named/FILE` is
named with `--config`. `FILE.expected` says what comes of it: servers with their references replaced, the changed
settings, and every message. In it, `FILE` stands for the path of the file, `HOME` and `PROJECT` for the two folders.
"""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any, Final

import pytest

from greenroom.config.files import load_config
from greenroom.config.importers import Surroundings, places_of
from greenroom.config.model import Config, ServerDefinition, Settings
from greenroom.config.references import expand_definition
from greenroom.protocol.errors import ConfigError

FOLDER: Final = Path(__file__).parents[1] / "data" / "golden_configs"
FILES: Final = sorted(
    path
    for path in FOLDER.glob("*/*")
    if path.suffix in (".json", ".jsonc", ".json5", ".toml", ".yaml", ".yml")
)
ENVIRON: Final = {"HOME": "/home/me", "HOST": "host.example.com", "TOKEN": "t0ken"}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value if isinstance(value, str | bool | int | float) or value is None else dict(value)


def _changed(one: ServerDefinition | Settings, default: ServerDefinition | Settings) -> dict[str, Any]:
    names = [name for name in type(one).__struct_fields__ if name not in ("name", "sources")]
    return {n: _plain(getattr(one, n)) for n in names if getattr(one, n) != getattr(default, n)}


def _effect(config: Config) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: _changed(expand_definition(one, ENVIRON).definition, ServerDefinition(name=name))
        for name, one in config.servers.items()
    }
    changed = _changed(config.settings, Settings())
    return {
        "servers": found,
        **({"settings": changed} if changed else {}),
        **({"broken": [*config.broken]} if config.broken else {}),
        **({"messages": [str(problem) for problem in config.problems]} if config.problems else {}),
    }


def _meaning(golden: Path, folder: Path) -> dict[str, Any]:
    home, project = folder / "home", folder / "project"
    project.mkdir()
    home.mkdir()
    around = Surroundings(project, home, {}, "linux")
    file, named = golden, golden
    if (kind := golden.parent.name) != "named":
        places = places_of(kind, around)
        file = next((place for place in places if place.suffix == golden.suffix), places[0])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(golden.read_bytes())
        named = folder / "ours.json"
        named.write_text(json.dumps({"imports": [kind]}))
    try:
        config = load_config(named, cwd=project, home=home, environ=ENVIRON, platform="linux", trust=True)
        found = _effect(config)
    except ConfigError as error:
        found = {"refused": [str(problem) for problem in error.problems]}
    text = json.dumps(found, ensure_ascii=False, indent=2)
    for path, word in ((file, "FILE"), (home, "HOME"), (project, "PROJECT")):
        text = text.replace(str(path), word)
    return json.loads(text)


def test_there_are_golden_files_of_every_kind() -> None:
    assert len(FILES) >= 60
    kinds = {
        "named",
        "cursor",
        "vscode",
        "claude-code",
        "claude-desktop",
        "windsurf",
        "codex",
        "opencode",
        "pi",
    }
    assert {path.parent.name for path in FILES} == kinds


@pytest.mark.parametrize("golden", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_golden_file_means_what_is_expected(golden: Path, tmp_path: Path) -> None:
    expected = json.loads(golden.with_name(golden.name + ".expected").read_text(encoding="utf-8"))
    assert _meaning(golden, tmp_path) == expected
