"""Plays what only has to run and say how it went: a script of ours, a page's scenario, a peer's own tests.

* `models/play_types.py` holds what `tools_for` gives and `run` answers against the types of the packages of the models'
  APIs. Nothing is sent.
* The scenario of `docs/exploring.md` runs under another explorer of schedules, as the page has it. That needs a newer
  Python than Greenroom does; the row says it where none is at hand.
* A peer's tests run with our door in the middle (`peer_door` is a pytest plugin). `fastmcp_expected.toml` lists what
  may fail, with the reason. A test that fails and is not listed is a problem, and so is a listed one that passes.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.installed import pythons_at_hand

from ._table import OURS, RowResult, SchedulerRow, SuiteRow, WorldRow, WorldRun
from .installing import HOME, ROOT, finished, install, interpreter, said_by

HERE = Path(__file__).parent
PATIENCE = 900.0  # seconds
_PAGE = ROOT / "docs" / "exploring.md"


def play_models(models: WorldRow, run: WorldRun) -> Iterator[RowResult]:
    """A result for each format."""
    home = models.installed("models", *OURS)
    said = said_by((*interpreter(home), HERE / "models" / "play_types.py"), PATIENCE)
    for name, (held, problems) in said.items():
        yield RowResult([f"`{name}`", str(held)], problems)


def play_scheduler(scheduler: SchedulerRow, run: WorldRun) -> Iterator[RowResult]:
    """The scenario, then what the page says under it."""
    pythons = {_numbers(version): path for version, path in pythons_at_hand().items()}
    newest = max(pythons)
    if newest < _numbers(scheduler.python):
        yield RowResult([scheduler.pins, "–"], good="not tested: no Python is new enough")
        return
    home = scheduler.installed(
        "schedulers", *OURS, "pytest", python=pythons[newest]
    )  # the scenario is a test
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    under = [block for block in blocks if f"import {scheduler.name}" in block]
    script = run.folder / "scenario.py"
    script.write_text("\n".join([blocks[0], *under]), encoding="utf-8")
    done = finished((*interpreter(home), script), PATIENCE, run.folder)
    result = RowResult([scheduler.pins, ".".join(map(str, newest))])
    if not under:
        result.problems.append("the page has no such lines")
    elif done.returncode:
        result.problems.append(f"the page's lines fail: {done.stderr.strip()[-300:]}")
    yield result


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def play_suite(suite: SuiteRow, run: WorldRun) -> Iterator[RowResult]:
    home = suite.installed("suites", *OURS, *suite.needs.split())
    [source] = install("suites", f"{suite.name} source", "pypi source", [suite.pins]).glob("*/")
    pytest = (
        *interpreter(home),
        *("-m", "pytest", "-q", "--tb=no", "-o", "addopts=", "-p", "no:cacheprovider"),
    )
    wanted = ("-p", "peer_door", "--timeout", "60", "-m", suite.marks, *suite.areas.split())
    cache = str(HOME / "cache")
    said = finished((*pytest, *wanted), PATIENCE, source, PYTHONPATH=str(HERE), XDG_CACHE_HOME=cache).stdout
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", said, re.MULTILINE))
    passed = re.search(r"(\d+) passed", said)
    if passed is None:
        yield RowResult([suite.pins, "0", "0"], [f"it did not run: {said.strip()[-300:]}"])
        return
    reasons = tomllib.loads((HERE / "fastmcp_expected.toml").read_text(encoding="utf-8"))["may_fail"].values()
    may_fail = {pattern: _matches(pattern, failed) for patterns in reasons for pattern in patterns}
    expected = set[str]().union(*may_fail.values())
    problems = [f"{test} fails" for test in sorted(failed - expected)]
    problems += [f"{each} is expected to fail, and passes" for each, tests in may_fail.items() if not tests]
    yield RowResult([suite.pins, passed[1], str(len(expected))], problems)


def _matches(pattern: str, tests: set[str]) -> list[str]:
    """Only `*` is special: ids of tests have brackets."""
    return fnmatch.filter(tests, pattern.replace("[", "[[]"))
