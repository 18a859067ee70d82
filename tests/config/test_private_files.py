"""What is said when a file or a folder of ours cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from greenroom.config.private_files import can_be_written, other_folder, replacing


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


def test_a_folder_above_ours_has_the_same_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert other_folder(tmp_path / ".local").endswith("name another one in XDG_STATE_HOME.")
    assert "XDG" not in other_folder(tmp_path.parent)
    assert "XDG" not in other_folder(tmp_path / "elsewhere")


def test_where_no_file_can_be_made_is_known_before(tmp_path: Path) -> None:
    assert can_be_written(tmp_path / "not" / "yet")
    (tmp_path / "file").write_text("")
    assert not can_be_written(tmp_path / "file")
    assert not can_be_written(tmp_path / "file" / "below")
