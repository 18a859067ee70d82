"""The docs checks bite, the example runs, and the build files say what they should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The pages and what they are compared with, to be broken."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def _edit(page: Path, old: str, new: str) -> None:
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new, 1))


def test_another_diagram_is_found(copy: Path) -> None:
    _edit(copy / "docs/diagrams/lifecycle.svg", ">connecting<", ">dialling<")

    assert [line.partition(":")[0] for line in docs.drawings(copy)] == ["docs/diagrams/lifecycle.svg"]


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


def test_another_example_is_found(copy: Path) -> None:
    _edit(copy / "examples/embed.py", "clock_now", "clock_then")

    assert "first python block differs" in next(iter(docs.example(copy)))


def test_an_example_that_no_page_shows_is_found(copy: Path) -> None:
    _edit(copy / "docs/fault-scripts.md", "out of paper", "out of ink")
    _edit(copy / "examples/with_openai_agents.py", "helper", "other")
    (copy / "examples/testing_more.py").write_text("")

    assert [line.partition(":")[0] for line in docs.examples(copy)] == [
        "examples/testing_more.py",
        "examples/testing_processes.py",
        "examples/with_openai_agents.py",
    ]


def test_dependencies_are_compared_both_ways(copy: Path) -> None:
    _edit(copy / "docs/dependencies.md", "| trio |", "| twisted |")

    assert list(docs.dependencies(copy)) == [
        "docs/dependencies.md: no line for trio",
        "docs/dependencies.md: twisted is no longer a dependency",
    ]


def test_a_dead_link_is_found(copy: Path) -> None:
    _edit(copy / "docs/index.md", "(lifecycle.md)", "(afterlife.md)")

    assert list(docs.links(copy)) == ["docs/index.md: the link to afterlife.md leads nowhere"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("see /" + "root/notes", "path of one machine"),
        ("cd /" + "home/ada/greenroom", "path of one machine"),
        ("https://" + "pypi" + ".org/simple", "host of a package index"),
    ],
)
def test_addresses_are_found(line: str, said: str) -> None:
    assert [said in found for found in docs.addresses("docs/x.md", line)] == [True]


def test_ordinary_paths_are_no_addresses() -> None:
    work, root = "work", "root"  # not spelled out in one piece, or this line would have an address itself
    line = f"~/.config/mcp.json /path/to/{work}/x ./{root}/ ${{HOME}}/{work}/"
    assert list(docs.addresses("docs/x.md", line)) == []


@pytest.mark.parametrize("line", ["it can do F13", "| B7 | tells | 3 |", "see T05"])
def test_names_of_rows_that_only_we_know_are_found(copy: Path, line: str) -> None:
    with (copy / "docs/cli.md").open("a") as page:
        page.write(f"\n{line}\n")

    assert ["docs/cli.md" in found for found in docs.ids(copy)] == [True]


@pytest.mark.parametrize("named", ["docs/afterlife.md", "DES" + "IGN, Policies"])
def test_a_document_that_is_not_there_is_found(copy: Path, named: str) -> None:
    (copy / "room.py").write_text(f'"""A room ({named})."""\n')
    subprocess.run(["git", "add", "room.py"], cwd=copy, check=True)

    assert list(docs.named_documents(copy)) == [f"room.py:1: there is no {named.partition(',')[0]}"]


@pytest.mark.parametrize(
    "named", ["examples/gone.py", "docs/deep/", "examples/gone.py::test_x", "greenroom.protocol.afterlife"]
)
def test_a_file_or_a_module_that_is_not_there_is_found(copy: Path, named: str) -> None:
    (copy / "docs/cli.md").write_text(
        f"see `{named}`, `examples/embed.py`, `greenroom.testing.tool`, `other/x.py`\n"
    )

    assert [each for each in docs.named_files(copy) if "docs/cli.md" in each] == [
        f"docs/cli.md: there is no {named.partition('::')[0]}"
    ]


def test_a_lock_file_is_found(copy: Path) -> None:
    (copy / "uv.lock").write_text("")
    subprocess.run(["git", "add", "uv.lock"], cwd=copy, check=True)

    assert list(docs.tracked_files(copy)) == [
        "uv.lock: lock files hold download addresses; pin versions in constraints.txt"
    ]


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
