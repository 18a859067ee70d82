"""The docs checks bite, the example runs, and the build files say what they should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.patience import PATIENCE
from tools import diagrams, docs
from tools.arrows import ROOMS
from tools.mutants import MUTANTS
from tools.package_tree import copy_package, file_of, folder_of

from greenroom.protocol.lifecycle import State, Trigger

ROOT = Path(__file__).resolve().parents[2]
BRIEF = """
from hypothesis import settings
settings.register_profile("brief", stateful_step_count=8, max_examples=5)
settings.load_profile("brief")

def pytest_itemcollected(item):
    if (case := getattr(item, "cls", None)) is not None:
        case.settings = settings(case.settings, max_examples=5)
"""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


WORK, ROOTS, HOST = "work", "root", "pypi" + ".org"  # in pieces, or this file would have addresses itself
# A file, what is in it, what is put in its place (without, this is a line more), and what is said of it.
FAULTS = [
    (
        "docs/diagrams/lifecycle.svg",
        ">connecting<",
        ">dialling<",
        "lifecycle.svg: it is not what the code says",
    ),
    ("examples/embed.py", "clock_now", "clock_then", "README.md: the first python block differs"),
    ("docs/fault-scripts.md", "out of paper", "out of ink", "examples/testing_processes.py: no page"),
    ("examples/with_openai_agents.py", "helper", "other", "examples/with_openai_agents.py: no page"),
    ("docs/dependencies.md", "| trio |", "| twisted |", "docs/dependencies.md: no line for trio"),
    ("docs/dependencies.md", "", "", "twisted is no longer a dependency"),
    ("docs/index.md", "(lifecycle.md)", "(afterlife.md)", "the link to afterlife.md leads nowhere"),
    ("docs/faq.md", "", "it can do F13", "F13 means nothing to a reader"),
    ("docs/tapes.md", "", "| B7 | tells | 3 |", "B7 means nothing to a reader"),
    ("examples/embed.py", "", "# docs/afterlife.md", "there is no docs/afterlife.md"),
    ("examples/web_app.py", "", f"# {'design'.upper()}, Policies", "examples/web_app.py:"),
    ("docs/cli.md", "", "`examples/gone.py::test_x`", "docs/cli.md: there is no examples/gone.py"),
    ("docs/cli.md", "", "`docs/deep/`", "docs/cli.md: there is no docs/deep/"),
    ("docs/cli.md", "", "`greenroom.protocol.afterlife`", "there is no greenroom.protocol.afterlife"),
    ("README.md", "", f"cd /{WORK}/greenroom", "names a path of one machine"),
    ("LICENSE", "", f"https://{HOST}/simple", "names the host of a package index"),
    ("uv.lock", "", "", "uv.lock: lock files hold download addresses"),
]
GOOD = f"`greenroom.testing.tool` `other/x.py` ~/.config/mcp.json /to/{WORK}/x ./{ROOTS}/ ${{HOME}}/{WORK}/"


def test_every_fault_of_the_docs_is_found_and_nothing_else(tmp_path: Path) -> None:
    """All at once. The pages of the reference are left to `make check`: they take long to make."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for path, old, new, _ in [*FAULTS, ("docs/servers.md", "", GOOD, "")]:
        file = tmp_path / path
        text = file.read_text() if file.exists() else ""
        assert old in text
        file.write_text(text.replace(old, new, 1) if old else f"{text}\n{new}\n")
    for words in ("init", "add ."):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True, capture_output=True)

    found = [line for check in docs.CHECKS if check is not docs.reference_pages for line in check(tmp_path)]

    expected = [said for *_, said in FAULTS]
    assert [said for said in expected if not any(said in line for line in found)] == []
    assert [line for line in found if not any(said in line for said in expected)] == []


def test_a_diagram_shows_every_move_of_its_table() -> None:
    drawn = diagrams.lifecycle(
        {
            State.IDLE: {Trigger.CONNECT: State.CONNECTING, Trigger.STOP: State.CLOSED},
            State.CONNECTING: {},
            State.CLOSED: {},
        }
    )

    words = re.findall(r">([^<>]+)</text>", drawn)
    assert sorted(words) == ["closed", "connect", "connecting", "idle", "stop"]


def test_each_mutant_changes_what_is_there() -> None:
    texts = {it.file: file_of(ROOT, it.file).read_text(encoding="utf-8") for it in MUTANTS}
    assert [it.fault for it in MUTANTS if texts[it.file].count(it.old) != 1] == []


def test_the_type_checker_reads_every_file_of_the_package(tmp_path: Path) -> None:
    copy_package(ROOT, tmp_path / "greenroom", os.symlink)
    read = {file.resolve() for file in tmp_path.rglob("*.py")}
    assert {file for room in ROOMS for file in folder_of(ROOT, room).rglob("*.py")} < read
    assert "build/types" in PYPROJECT["tool"]["pyright"]["include"]


def test_every_dependency_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text()

    pinned = {line.partition("==")[0].lower() for line in pins.splitlines() if "==" in line}
    assert set(docs.required(PYPROJECT)) <= pinned
    assert "://" not in pins
    assert "@" not in pins


def test_importing_protocol_stays_light() -> None:
    heavy = ["mcp", "mcp_types", "trio", "anyio", "asyncio", "pydantic", "rich", "click", "attr"]
    code = f"import sys, greenroom.protocol.errors; print([m for m in {heavy!r} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_readme_example_runs_as_written(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": os.fspath(tmp_path)}

    done = subprocess.run(
        [sys.executable, ROOT / "examples/embed.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert '"weekday"' in done.stdout


def test_the_testing_examples_run_as_written(tmp_path: Path) -> None:
    """In somebody else's pytest: none of our configuration and none of our fixtures. Its walks are few and short: that
    they run is what is tried here, and not how much they find."""
    (tmp_path / "brief.py").write_text(BRIEF)
    files = sorted((ROOT / "examples").glob("testing_*.py"))
    options = (
        "-q",
        "-c",
        os.devnull,
        "-p",
        "greenroom.testing.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "brief",
    )
    command = [sys.executable, "-m", "pytest", *options, *files]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=5 * PATIENCE)

    assert done.returncode == 0, done.stdout + done.stderr
