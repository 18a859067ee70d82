"""The fork server of this session's tests (`forkserver`): started by the first who needs it, ended with the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .leaks import KEPT_DESCRIPTORS, KEPT_PROCESSES

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("forkserver.py")
MODULES = ("tests.support.sdk_app", "tests.support.sdk_asker", "uvicorn", "hypercorn.trio")


class _Running:
    process: subprocess.Popen[bytes] | None = None
    socket = ""


def forked(module: str, *words: str) -> list[str]:
    """The command that runs `module.main(*words)` in a process forked for it."""
    if _Running.process is None or _Running.process.poll() is not None:
        _start()
    return [sys.executable, "-S", os.fspath(PROGRAM), _Running.socket, module, *words]


def _start() -> None:
    _Running.socket = os.path.join(tempfile.mkdtemp(prefix="fork-"), "fork")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forkserver", _Running.socket, *MODULES],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    _Running.process = process
    KEPT_PROCESSES.add(process.pid)
    KEPT_DESCRIPTORS.add(process.stdin.fileno())
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()


def pytest_unconfigure() -> None:
    process = _Running.process
    if process is not None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(os.path.dirname(_Running.socket))
