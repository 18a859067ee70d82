"""Install the real MCP servers the tests run against, under `.build/servers/`.

They were written by others, with different eras and SDKs: those from the Python index each get their own environment,
because they may need another SDK than ours; the others come from npm. Versions are pinned here. Each install leaves a
stamp with its pin, so a second run does nothing and needs no network. A half-finished install is begun again.

Without Node.js the npm servers are left out, and the tests that need them say so; with `CI=true` that is an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".build" / "servers"

PYTHON_SERVERS: Mapping[str, str] = {
    "time": "mcp-server-time==2026.10.19",
    "git": "mcp-server-git==2026.10.19",
    "sqlite": "mcp-server-sqlite==2025.4.25 mcp==1.30.0",  # it does not start without the old SDK
}
NODE_SERVERS: Mapping[str, str] = {
    "everything": "@modelcontextprotocol/server-everything@2026.8.31",
    "filesystem": "@modelcontextprotocol/server-filesystem@2026.8.31",
    "memory": "@modelcontextprotocol/server-memory@2026.8.31",
}


class InstallFailed(Exception):
    """A package manager failed; the message is the end of its output."""


def main() -> int:
    """Install what is missing, and print one line each. Returns 0 when all are there, or Node.js is missing outside
    CI."""
    node = shutil.which("node") and shutil.which("npm")
    complete = True
    for name, pin in PYTHON_SERVERS.items():
        complete = _report(name, pin, _install_python) and complete
    for name, pin in NODE_SERVERS.items():
        if node:
            complete = _report(name, pin, _install_node) and complete
        else:
            print(f"{name:<11} {pin}: left out, it needs node and npm (version 20 or newer) on PATH")
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    return 0 if complete and (node or not in_ci) else 1


def executable(name: str) -> Path:
    """Where server `name`'s program is, once installed."""
    if name in PYTHON_SERVERS:
        return HOME / name / "bin" / PYTHON_SERVERS[name].partition("==")[0]
    return HOME / name / "node_modules" / ".bin" / f"mcp-server-{name}"


def is_installed(name: str) -> bool:
    """True when `name` is there in the pinned version."""
    stamp = HOME / name / ".installed"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == {**PYTHON_SERVERS, **NODE_SERVERS}[name]


def _report(name: str, pin: str, install: Callable[[str, Path], None]) -> bool:
    if is_installed(name):
        print(f"{name:<11} {pin}: ready")
        return True
    home = HOME / name
    shutil.rmtree(home, ignore_errors=True)
    try:
        install(pin, home)
    except InstallFailed as error:
        print(f"{name:<11} {pin}: not installed\n{error}")
        return False
    (home / ".installed").write_text(pin, encoding="utf-8")
    print(f"{name:<11} {pin}: installed")
    return True


def _install_python(pin: str, home: Path) -> None:
    venv.create(home, with_pip=False, symlinks=True)
    wanted = pin.split()
    # A server with its own SDK cannot use our pins.
    constraints = () if len(wanted) > 1 else ("-c", ROOT / "constraints.txt")
    _run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python"),
        *("install", "--quiet", *constraints, *wanted),
    )


def _install_node(pin: str, home: Path) -> None:
    home.mkdir(parents=True)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", "--prefix", home, *quiet, pin)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise InstallFailed("\n".join(f"    {line}" for line in done.stdout.splitlines()[-15:]))


if __name__ == "__main__":
    sys.exit(main())
