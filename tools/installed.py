"""Tries a built wheel where its users install it: on each Python at hand, and with each extra alone.

    make release VERSION=… ARGS="--rehearse --pythons --extras --runners"      # or --extras=images,metrics

Each trial has an environment of its own, made for it, and runs in an empty folder with an empty home. An extra is
installed with nothing beside it, so that a package which it needs and does not name is missed. Then the package is
imported, `greenroom doctor` looks at what is there, and one thing is done that the extra is for (`tools/extras`). Of an
extra that brings a framework its adapter is imported: `make world` plays it, with more than the extra.
`uvx`, `pipx` and the bundle find it in a folder of wheels, as they would find it in an index.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from typing import Final

from tools.world._table import ADAPTERS
from tools.world.installing import InstallFailed, install_in

USES: Final = Path(__file__).resolve().parent / "extras"
OLDEST, NEWEST = (3, 11), (3, 14)  # what we say that we run on
_INITIALIZE: Final = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    '"clientInfo":{"name":"trial","version":"1"}}}\n'
)
_PATIENCE: Final = 900.0  # seconds for one step; some extras are large


class TrialFailed(Exception):
    """Something does not work as it is installed; the message says what, and what it said."""


def pythons_at_hand() -> dict[str, Path]:
    """The interpreters from `OLDEST` to `NEWEST`, by version: those on PATH and those of pyenv, which may not be."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found: dict[str, Path] = {}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        name = f"python3.{minor}"
        candidates = [sys.executable] if minor == sys.version_info.minor else []
        candidates += [each for each in (shutil.which(name),) if each is not None]
        candidates += sorted(map(str, versions.glob(f"3.{minor}.*/bin/{name}")))
        runs = next((each for each in candidates if _runs(each)), None)
        if runs is not None:
            found[f"3.{minor}"] = Path(runs)
    return found


def _runs(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import venv"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def extras_of(wheel: Path) -> list[str]:
    """The extras that the wheel says it has."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(files.read(name).decode())
    return said.get_all("Provides-Extra") or []


def use_of(extra: str) -> tuple[str, list[str]]:
    """What is tried with the extra, in words, and the words with which Python does it. Raises `TrialFailed`."""
    name = extra.replace("-", "_")
    if name in {adapter.module for adapter in ADAPTERS}:
        return "its adapter is imported", ["-c", f"import greenroom.adapters.{name}"]
    file = USES / f"use_{name}.py"
    if not file.is_file():
        raise TrialFailed(f"the extra {extra} has no trial: write {file.name} in tools/extras")
    said = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").removesuffix(".")
    return " ".join(said.split()), [str(file)]


def try_pythons(wheel: Path, constraints: Path) -> Iterator[str]:
    """Try the wheel on each Python at hand. Yields in words what was tried, and what is missing. Raises
    `TrialFailed`."""
    found = pythons_at_hand()
    for version, python in found.items():
        with environment(python, [str(wheel)], constraints) as (inside, home):
            _commands(inside, home)
            _run([inside.with_name("greenroom"), "demo"], f"on Python {version} the demo failed", home)
        yield f"Python {version}: it installs, starts, and the demo works"
    missing = [f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1) if f"3.{minor}" not in found]
    if missing:
        yield f"not at hand, so not tried: Python {', '.join(missing)}"


def try_extras(wheel: Path, only: Sequence[str] = ()) -> Iterator[str]:
    """Try each extra, or `only` some. Yields what was tried, in words. Raises `TrialFailed`. No versions are held
    to: what the tests ran with may contradict what a framework wants, and nobody who installs it has that list."""
    known = extras_of(wheel)
    if unknown := set(only) - set(known):
        raise TrialFailed(f"there is no extra {min(unknown)}; there are: {', '.join(known)}")
    uses = {extra: use_of(extra) for extra in known}  # of all, so that a new one is not forgotten
    for extra in only or known:
        with environment(Path(sys.executable), [f"{wheel}[{extra}]"], None) as (inside, home):
            _commands(inside, home)
            said, words = uses[extra]
            _run([inside, *words], f"with the extra {extra} alone this failed: {said}", home)
        yield f"the extra {extra}, alone: {said}"


def try_runners(wheel: Path, bundle: Path, constraints: Path) -> Iterator[str]:
    """Try `uvx greenroom`, `pipx install greenroom`, and the bundle as its client does. Yields what was tried, in
    words. Raises `TrialFailed`."""
    with environment(Path(sys.executable), ["uv", "pipx"], None) as (inside, home):
        wheels, tools = home / "wheels", inside.parent
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download")
        options = ("--constraint", constraints, "--dest", wheels)
        _run([*pip, *options, wheel], f"what {wheel.name} needs cannot be had", None)
        found = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels), "UV_PYTHON": sys.executable}
        _run([tools / "uvx", "greenroom", "demo"], "`uvx greenroom` does not work", home, found)
        yield "uvx greenroom: the demo works"
        given = ("--python", sys.executable, f"--pip-args=--no-index --find-links={wheels}")
        _run([tools / "pipx", "install", "greenroom", *given], "`pipx install greenroom` does not work", home)
        _run([home / ".local/bin/greenroom", "doctor"], "what pipx installed does not start", home)
        yield "pipx install greenroom: it starts"
        with zipfile.ZipFile(bundle) as files:
            files.extractall(home / "bundle")
        manifest = home / "bundle" / "manifest.json"
        npx = ("npx", "--yes", "@anthropic-ai/mcpb")
        _run([*npx, "validate", manifest], f"{bundle.name} is no bundle", home)
        started = json.loads(manifest.read_text(encoding="utf-8"))["server"]["mcp_config"]
        words = [word.replace("${__dirname}", str(manifest.parent)) for word in started["args"]]
        said = _run(
            [tools / started["command"], *words], f"{bundle.name} does not start", home, found, _INITIALIZE
        )
        _run([home / ".local/bin/greenroom", "stop"], "the room of the bundle does not end", home)
        if '"serverInfo"' not in said:
            raise TrialFailed(f"{bundle.name} does not answer:\n{said}")
        yield "the bundle: it is valid, starts, and answers its client"


@contextmanager
def environment(
    python: Path, wanted: Sequence[str], constraints: Path | None
) -> Generator[tuple[Path, Path]]:
    """A fresh environment of `python` in which these are installed: its own Python, and an empty home beside it. Raises
    `TrialFailed`."""
    with tempfile.TemporaryDirectory(prefix="greenroom-installed-") as folder:
        root, home = Path(folder, "environment"), Path(folder, "home")
        home.mkdir()
        try:
            install_in(root, "pypi", wanted, python=python, constraints=constraints)
        except InstallFailed as error:
            raise TrialFailed(f"{', '.join(wanted)} cannot be installed: {error}") from None
        yield root / "bin" / "python", home


def _commands(python: Path, home: Path) -> None:
    """What everybody does first. In an empty home doctor misses servers, and nothing else."""
    _run([python, "-c", "import greenroom"], "it cannot be imported", home)
    _run([python, "-m", "greenroom", "--version"], "it does not start", home)
    _run([python.with_name("greenroom"), "doctor"], "doctor finds an error in an empty home", home)


def _run(
    command: Sequence[str | Path],
    failed: str,
    home: Path | None,
    more: Mapping[str, str] | None = None,
    said: str | None = None,
) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "PYTHON"))}
    if home is not None:
        environment |= {"HOME": str(home), "PYTHONWARNINGS": "default", **(more or {})}
    done = subprocess.run(
        command,
        cwd=home,
        env=environment,
        input=said,
        stdin=subprocess.DEVNULL if said is None else None,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if done.returncode:
        raise TrialFailed(f"{failed}:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout
