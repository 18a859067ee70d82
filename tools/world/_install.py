"""Install what the world run needs under `.build/world/`: one folder and one environment for each entry.

Entries share nothing, because they need different SDKs. Each install leaves a stamp with its pin, so a second run needs
no network. A half-finished install is begun again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".build" / "world"
_ELF = b"\x7fELF"  # with this a program of Linux begins
_NPM = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")


class InstallFailed(Exception):
    """A package manager failed; the message is the end of its output."""


def install(kind: str, name: str, index: str, pins: Sequence[str], python: Path | None = None) -> Path:
    """The folder with these packages, made if it is not there. `index`: "pypi", "npm", or "npm alone": one package,
    without what it needs. `python`: for an environment of another interpreter than this. Raises `InstallFailed`."""
    home = HOME / kind / name.lower().replace(" ", "-")
    stamp, wanted = home / ".installed", "\n".join(pins)
    if str(ROOT) in wanted:  # ours, as it stands here: where the folders are is what its build says
        wanted += (ROOT / "setup.py").read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if index == "npm":
        _run("npm", "install", "--prefix", home, *_NPM, *pins)
    elif index == "npm alone":
        _run("npm", "pack", "--silent", "--pack-destination", home, *pins)
        [packed] = home.glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(home, filter="data")
        packed.unlink()
    else:
        _run(python or sys.executable, "-m", "venv", "--without-pip", "--symlinks", home)
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            home / "bin" / "python",
        )
        _run(*pip, "install", "--quiet", *pins)
    stamp.write_text(wanted, encoding="utf-8")
    return home


def program(home: Path, index: str, name: str) -> list[str]:
    """The command that runs `name` from this folder."""
    if index == "npm":
        there = (home / "node_modules" / ".bin" / name).resolve(strict=True)
        with there.open("rb") as read:
            is_native = read.read(len(_ELF)) == _ELF
        return [str(there)] if is_native else ["node", str(there)]
    return [str(home / "bin" / name)]


def interpreter(home: Path, index: str) -> list[str]:
    return ["node"] if index == "npm" else [str(home / "bin" / "python")]


def node_is_there() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        raise InstallFailed(" / ".join(said[-3:]) or json.dumps(done.returncode))
