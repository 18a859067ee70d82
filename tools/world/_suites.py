"""Runs FastMCP's own tests, of its client and its proxy, with our door in the middle.

They come from its source distribution and run in their own environment, with `peer_door` as a pytest plugin.
`fastmcp_expected.toml` lists what may fail, with the reason. A test that fails and is not listed is a problem, and so
is a listed one that passes.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs

from ._install import HOME, ROOT, InstallFailed, install

PIN = "fastmcp==4.2.3"
NEEDS = (
    "pytest",
    "pytest-asyncio",
    "pytest-env",
    "pytest-timeout",
    "inline-snapshot",
    "dirty-equals",
    "opentelemetry-sdk",
)
AREAS = (
    "tests/client/test_elicitation.py",
    "tests/client/test_elicitation_enums.py",
    "tests/client/test_sampling.py",
    "tests/client/test_roots.py",
    "tests/client/test_logs.py",
    "tests/client/test_progress.py",
    "tests/client/test_notifications.py",
    "tests/client/client",
    "tests/server/providers/proxy",
)
PLUGINS = Path(__file__).parent
EXPECTED = PLUGINS / "fastmcp_expected.toml"
PATIENCE = 900.0  # seconds for the whole run
_LEFT_OUT = (
    "not client_process and not subprocess_heavy and not integration"  # what they need is not installed
)


@attrs.define
class SuiteRow:
    """The result of a suite."""

    name: str
    passed: int = 0
    expected: int = 0  # failures that have a reason
    problems: list[str] = attrs.field(factory=list[str])


def play_suite() -> SuiteRow:
    """All of it."""
    row = SuiteRow(PIN)
    try:
        home = install("suites", "fastmcp", "pypi", (PIN, *NEEDS, "-e", str(ROOT)))
        source = _source(home)
    except InstallFailed as error:
        row.problems.append(f"not installed: {error}")
        return row
    said = _run(home, source)
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", said, re.MULTILINE))
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", said)}
    row.passed = counts.get("passed", 0)
    if not row.passed:
        row.problems.append(f"it did not run: {said.strip()[-300:]}")
        return row
    reasons = tomllib.loads(EXPECTED.read_text(encoding="utf-8"))
    _judge(
        row, failed, {pattern: why for why, patterns in reasons["may_fail"].items() for pattern in patterns}
    )
    return row


def _judge(row: SuiteRow, failed: set[str], may_fail: Mapping[str, str]) -> None:
    met: set[str] = set()
    for test in sorted(failed):
        patterns = [pattern for pattern in may_fail if fnmatch.fnmatchcase(test, _literal(pattern))]
        met.update(patterns)
        if patterns:
            row.expected += 1
        else:
            row.problems.append(f"{test} fails")
    row.problems += [f"{pattern} is expected to fail, and passes" for pattern in sorted(set(may_fail) - met)]


def _literal(pattern: str) -> str:
    """Only `*` is special: ids of tests have brackets."""
    return pattern.replace("[", "[[]")


def _source(home: Path) -> Path:
    """The unpacked source distribution, fetched once."""
    unpacked = home / PIN.replace("==", "-")
    if not unpacked.is_dir():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps")
        done = subprocess.run(
            (*pip, "--no-binary", "fastmcp", "--dest", home / "sdist", PIN),
            capture_output=True,
            text=True,
            check=False,
        )
        found = sorted((home / "sdist").glob("fastmcp-*.tar.gz"))
        if not found:
            raise InstallFailed(done.stderr.strip()[-300:])
        with tarfile.open(found[0]) as archive:
            archive.extractall(home, filter="data")
    return unpacked


def _run(home: Path, source: Path) -> str:
    command = [
        str(home / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "peer_door", "--timeout", "60", "-m", _LEFT_OUT, *AREAS]
    env = {**os.environ, "PYTHONPATH": str(PLUGINS), "XDG_CACHE_HOME": str(HOME / "cache")}
    try:
        done = subprocess.run(
            command, cwd=source, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"not done within {PATIENCE:g} s"
    return done.stdout
