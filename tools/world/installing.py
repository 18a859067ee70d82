"""Install packages of others under `.build/`, a folder and an environment for each entry, and run what is in there.

Entries share nothing, because they need different SDKs. Each install leaves a stamp with its pins, so a second run
needs no network. A half-finished install is begun again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".build" / "world"
_ELF = b"\x7fELF"  # with this a program of Linux begins
_NPM = (
    "npm",
    "install",
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--ignore-scripts",
    "--loglevel=error",
)
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class InstallFailed(Exception):
    """A package manager failed; the message is the end of its output."""


class ScriptFailed(Exception):
    """A script did not end in time, or did not say what it has to."""


def install(kind: str, name: str, index: str, pins: Sequence[str], python: Path | None = None) -> Path:
    """The folder of the world run with these packages: see `install_in`."""
    return install_in(HOME / kind / name.lower().replace(" ", "-"), index, pins, python=python)


def install_in(
    home: Path,
    index: str,
    pins: Sequence[str],
    *,
    python: Path | None = None,
    constraints: Path | None = None,
) -> Path:
    """The folder `home` with these packages, made if it is not there. `index`: "pypi" or "npm"; or, for one package
    unpacked and without what it needs, "pypi source" or "npm alone". `python`: for an environment of another
    interpreter than this. Raises `InstallFailed`."""
    if is_installed_in(home, pins):
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    match index:
        case "npm":
            _run(*_NPM, "--prefix", home, *pins)
        case "npm alone":
            _run("npm", "pack", "--silent", "--pack-destination", home, *pins)
            _unpack(home)
        case "pypi source":
            alone = ("--no-deps", "--no-binary", pins[0].partition("==")[0])
            _run(*_PIP, "download", "--quiet", *alone, "--dest", home, *pins)
            _unpack(home)
        case _:
            _run(python or sys.executable, "-m", "venv", "--without-pip", "--symlinks", home)
            options = ("--constraint", constraints) if constraints else ()
            _run(*_PIP, "--python", home / "bin" / "python", "install", "--quiet", *options, *pins)
    (home / ".installed").write_text(_stamp(pins), encoding="utf-8")
    return home


def is_installed_in(home: Path, pins: Sequence[str]) -> bool:
    stamp = home / ".installed"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _stamp(pins)


def program(home: Path, index: str, name: str) -> list[str]:
    """The command that runs `name` from this folder."""
    if index == "npm":
        there = (home / "node_modules" / ".bin" / name).resolve(strict=True)
        with there.open("rb") as read:
            is_native = read.read(len(_ELF)) == _ELF
        return [str(there)] if is_native else ["node", str(there)]
    return [str(home / "bin" / name)]


def interpreter(home: Path, index: str = "pypi") -> list[str]:
    return ["node"] if index == "npm" else [str(home / "bin" / "python")]


def node_is_there() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def finished(
    command: Sequence[str | Path], patience: float, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """A command that has run, with `more` in its environment. Raises `ScriptFailed` if it takes longer than `patience`
    seconds."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=patience,
            cwd=cwd,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise ScriptFailed(f"not done within {patience:g} s") from None


def said_by(
    command: Sequence[str | Path], patience: float, cwd: Path | None = None, **more: str
) -> Mapping[str, Any]:
    """The JSON object that a command prints last. Raises `ScriptFailed`."""
    done = finished(command, patience, cwd, **more)
    try:
        return json.loads(done.stdout[done.stdout.rfind("\n{") + 1 :])
    except ValueError:
        raise ScriptFailed(f"its script failed: {done.stderr.strip()[-300:]}") from None


def _stamp(pins: Sequence[str]) -> str:
    """Where the folders of this checkout are is what its build says."""
    ours = any(str(ROOT) in pin for pin in pins)
    return " ".join(pins) + ((ROOT / "setup.py").read_text(encoding="utf-8") if ours else "")


def _unpack(home: Path) -> None:
    [packed] = (*home.glob("*.tgz"), *home.glob("*.tar.gz"))
    with tarfile.open(packed) as archive:
        archive.extractall(home, filter="data")
    packed.unlink()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        raise InstallFailed(" / ".join(said[-3:]) or json.dumps(done.returncode))
