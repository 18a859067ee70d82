"""A home directory of the test's own, for commands that run in the test's process."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home. The working directory is the folder `work` in it. Its path is short, because sockets lie in it."""
    with empty_home(monkeypatch) as folder:
        yield folder


@contextmanager
def empty_home(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """For a fixture of more than one test."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        monkeypatch.setenv("HOME", folder)
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "CODEX_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        (Path(folder) / "work").mkdir()
        monkeypatch.chdir(Path(folder) / "work")
        yield Path(folder)


def own_config(home: Path, text: str, mode: int = 0o600) -> Path:
    """Write the user's own configuration."""
    file = home / ".config" / "greenroom" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)
    return file
