"""What is said when a file or a folder of ours cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from greenroom.config.private_files import other_folder, replacing


def test_the_folder_is_named_when_no_file_can_be_made_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised, replacing(folder / "mcp.json"):
        pass
    assert raised.value.filename == os.fspath(folder)


def test_the_next_step_names_the_folder_that_is_there_and_else_the_one_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path))
    ours = tmp_path / "greenroom"
    assert other_folder(ours).startswith(f"Make {tmp_path} a folder")
    ours.mkdir()
    assert other_folder(ours).startswith(f"Make {ours} a folder")
    assert other_folder(ours).endswith("name another one in XDG_CONFIG_HOME.")
