"""What is said when a file or a folder of ours cannot be used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from greenroom.config.private_files import (
    cache_folder,
    can_be_written,
    data_folder,
    other_folder,
    replacing,
    state_folder,
)


def test_the_folder_is_named_when_no_file_can_be_made_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised, replacing(folder / "mcp.json"):
        pass
    assert raised.value.filename == os.fspath(folder)


def test_a_file_is_replaced_for_its_owner_alone_and_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"before")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_bytes() == b"before"
    with replacing(path) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_gateway_that_writes_a_file_under_its_lock_loads_nothing_large(tmp_path: Path) -> None:
    heavy = ("tempfile", "shutil", "bz2", "lzma", "zlib")
    code = f"""
import sys
from pathlib import Path
from greenroom.config.private_files import LockedFile
file = LockedFile(Path({os.fspath(tmp_path)!r}, "file"))
with file.locked():
    file.replace(b"content")
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert (tmp_path / "file").read_bytes() == b"content"


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


@pytest.mark.parametrize(
    ("system", "folders"),
    [
        ("linux", (".cache/greenroom", ".local/state/greenroom", ".local/share/greenroom")),
        (
            "darwin",
            (
                "Library/Caches/greenroom",
                "Library/Application Support/greenroom",
                "Library/Application Support/greenroom",
            ),
        ),
        (
            "win32",
            ("AppData/Local/greenroom/Cache", "AppData/Local/greenroom", "AppData/Local/greenroom"),
        ),
    ],
)
def test_our_folders_are_where_the_system_has_them_for_every_program(
    system: str, folders: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert (cache_folder(), state_folder(), data_folder()) == tuple(tmp_path / each for each in folders)


def test_a_variable_moves_our_folder_if_it_names_a_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "other"))
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert cache_folder() == tmp_path / "other" / "greenroom"
    assert state_folder() == tmp_path / ".local" / "state" / "greenroom"
    assert data_folder() == tmp_path / ".local" / "share" / "greenroom"
