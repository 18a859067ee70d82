"""Run the official conformance suite against our HTTP door, leg by leg, and compare with what is expected.

    python -m tools.conformance_server [--leg NAME] [--baseline]

The suite is the one of `tools/conformance.py`, in the same pinned versions. What it talks to is `greenroom serve
--http --expose direct` in front of the everything-server of the SDK, which the SDK's source distribution has (pinned,
under `.build/conformance/`). The SDK serves that with uvicorn, and `--baseline` plays the same against it alone. It is
mostly behind us over HTTP, too, because the suite waits 0.6 seconds for some answers, and a process may take longer to
start.

The scenarios of the extension for tasks ask for tools of their own. For these there is a small server
(`tests/conformance/task_server.py`): once it has no tasks, and the gateway makes them, and once it makes them itself.
The SDK has no tasks, so at the base line these fail.

The legs are played at a gateway whose clients share the server, at one with a child for each session, and at one whose
clients share it on stdio; all of them one after the other at the same gateway. So old clients come first, and newer
ones must find the same as if they had come alone.

The scenarios for skills, which the everything-server does not have, are played at a gateway before a server of the
tests that has one; they are an extension, so each has to be asked for by its name.

`tests/conformance/expected_server_failures.toml` lists what may fail, with the reason: only what fails at the base line
as well. The run fails when a scenario fails that is not listed, and when a listed one passes.
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
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from tests.support.lister import lister, skill, tool
from tools.conformance import HOME, LEGS, Leg, install, player, scenarios
from tools.world.installing import ROOT, install_in

SDK = "2.3.0"
SOURCE = HOME / f"mcp-{SDK}"
EVERYTHING = SOURCE / f"mcp-{SDK}" / "examples" / "servers" / "everything-server"
EXPECTED = ROOT / "tests" / "conformance" / "expected_server_failures.toml"
BOUND = 300  # seconds that a leg may take
PATIENCE = 60  # seconds until a server listens
PLACES = ("persistent", "per_session", "stdio")
TASK_SERVER = ROOT / "tests" / "conformance" / "task_server.py"
TASK_MAKERS = ("gateway", "server")  # who makes a task of a call that takes long
TASK_AFTER = 400  # milliseconds
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
class ScenarioResult:
    """One scenario: how many of its checks passed and failed."""

    scenario: str
    passed: int
    failed: int


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the official conformance suite against our HTTP door.")
    parser.add_argument("--leg", choices=[leg.name for leg in LEGS])
    parser.add_argument("--baseline", action="store_true", help="play against the SDK's server itself")
    wish = parser.parse_args()
    expected = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    surprises = 0
    legs = [leg for leg in LEGS if wish.leg in (None, leg.name)]
    for leg in legs:
        install(leg.suite)
    chosen = [leg for leg in legs if not leg.extensions]
    if chosen or wish.baseline:
        install_in(SOURCE, "pypi source", [f"mcp=={SDK}"])
    for leg in (leg for leg in legs if leg.extensions):
        for where in ("alone",) if wish.baseline else TASK_MAKERS:
            began, mine = time.monotonic(), expected.get(leg.name, {})
            judged, said = _play_tasks(leg, where)
            surprises += _report(leg, where, judged, said, mine, time.monotonic() - began)
        if not wish.baseline:
            surprises += _play_skills(leg)
    if not chosen:
        return 1 if surprises else 0
    for where in ("alone",) if wish.baseline else PLACES:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            door = "" if where == "stdio" else stack.enter_context(_everything(folder))
            if not wish.baseline:
                entry = ON_STDIO if where == "stdio" else {"url": door, "isolation": where}
                door = stack.enter_context(_greenroom(folder, entry))
            for leg in chosen:
                began, mine = time.monotonic(), expected.get(leg.name, {})
                judged, said = _play(leg, door, folder, mine)
                surprises += _report(leg, where, judged, said, mine, time.monotonic() - began)
    return 1 if surprises else 0


def _play_skills(leg: Leg) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.monotonic()
        said = skill("team/branches", {"references/forms.md": "Forms."})
        about = {"name": "branches", "description": "How to", "mimeType": "text/markdown"}
        listed = [{"uri": uri, **about} for uri in said["contents"] if uri.endswith("SKILL.md")]
        server = lister(folder, "skilled", tools=[tool("look")], resources=listed, **said)
        with _greenroom(folder, server) as door:
            played = [_run(leg, door, folder, "--force", "--scenario", each) for each in SKILLS]
    judged = [
        ScenarioResult(scenario, said.count("SUCCESS"), code)
        for scenario, (code, said) in zip(SKILLS, played, strict=True)
    ]
    what = "\n".join(said for _, said in played)
    return _report(leg, "skills", judged, what, (), time.monotonic() - began)


# ---- what the suite talks to -----------------------------------------------------------------------------------------


@contextmanager
def _greenroom(folder: Path, entry: Mapping[str, Any], **more: Any) -> Generator[str]:
    # The suite opens a session for each scenario, and closes none of them.
    settings = {"toolPrefix": "none", "maxConnections": 400, **more}
    servers = {"everything": entry}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers, "settings": settings}))
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
def _everything(folder: Path) -> Generator[str]:
    env = {**os.environ, "PYTHONPATH": os.fspath(EVERYTHING)}
    with _running((sys.executable, "-W", "ignore", "-c", HTTP, "0"), env, folder / "everything.log") as log:
        yield _said(log, r"running on (http://\S+:\d+)") + "/mcp"


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
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"it does not listen:\n{log.read_text(errors='replace')}")


# ---- the suite -------------------------------------------------------------------------------------------------------


def _play(leg: Leg, url: str, folder: Path, expected: Collection[str]) -> tuple[list[ScenarioResult], str]:
    """Play every scenario of a leg. Returns what became of each, and what the suite said. A surprise is played once
    more, alone, and that counts: some checks wait half a second, whatever else the machine has to do."""
    _, said = _run(leg, url, folder, "--suite", "all")
    found = re.findall(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed$", said, re.MULTILINE)
    judged = [ScenarioResult(name, int(passed), int(failed)) for name, passed, failed in found]
    for number, each in enumerate(judged):
        if each.failed and each.scenario not in expected:
            print(f"again   {leg.name:<15}{each.scenario}", flush=True)
            code, alone = _run(leg, url, folder, "--scenario", each.scenario)
            if code == 0:
                judged[number] = attrs.evolve(each, failed=0)
            said += alone
    return judged, said


def _play_tasks(leg: Leg, where: str) -> tuple[list[ScenarioResult], str]:
    """Play the scenarios of the extension for tasks, each alone."""
    judged, whole = list[ScenarioResult](), ""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if where == "alone":
            door = stack.enter_context(_everything(folder))
        else:
            args = [os.fspath(TASK_SERVER), *(("--makes-tasks",) if where == "server" else ())]
            entry = {"command": sys.executable, "args": args, "isolation": "persistent"}
            settings = {} if where == "server" else {"taskAfterMs": TASK_AFTER}
            door = stack.enter_context(_greenroom(folder, entry, **settings))
        tasks = [name for name, _ in scenarios(leg.suite, "--server") if name.startswith("tasks-")]
        for scenario in tasks:
            code, said = _run(leg, door, folder, "--scenario", scenario, "--force")
            counts = re.search(r"Passed: (\d+)/\d+, (\d+) failed", said)
            passed, failed = map(int, counts.groups()) if counts is not None else (0, 1)
            judged.append(ScenarioResult(scenario, passed, max(failed, int(code != 0))))
            whole += said if code else ""
    return judged, whole


def _run(leg: Leg, url: str, folder: Path, *which: str) -> tuple[int, str]:
    """Run the suite. Returns its exit code, and what it said."""
    version = leg.protocol or "2025-11-25"
    done = subprocess.run(
        [*player(leg.suite), "server", "--url", url, "--spec-version", version, *which],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=BOUND,
    )
    return done.returncode, done.stdout


def _report(
    leg: Leg, where: str, judged: list[ScenarioResult], said: str, expected: Collection[str], seconds: float
) -> int:
    """Print what is unexpected, and the sum. Returns the number of surprises."""
    failed = {each.scenario for each in judged if each.failed}
    wrong, stale = sorted(failed - set(expected)), sorted(set(expected) - failed)
    for name in wrong:
        print(f"failed  {leg.name:<15}{name}")
    for name in stale:
        print(f"passed  {leg.name:<15}{name}: remove it from the expected failures")
    if wrong or not judged:
        print("\n".join(f"        {line}" for line in said.splitlines()[-200:]))
    checks = sum(each.passed for each in judged)
    print(
        f"{leg.name:<15}{where:<13}{len(judged) - len(failed)} of {len(judged)} scenarios pass, {checks} checks, "
        f"{seconds:.0f} s",
        flush=True,
    )
    return len(wrong) + len(stale) + (not judged)


if __name__ == "__main__":
    sys.exit(main())
