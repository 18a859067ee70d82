"""The test infrastructure itself: it sees what it is there to see."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run, run_virtual
from tests.support.forked import GREENROOM, popen_forked, run_forked
from tests.support.gateway import faulty, started
from tests.support.leaks import ROOT, Snapshot, leaks_since, snapshot
from tests.support.order import LONGEST, longest_first, shuffle
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom.testing.servers import quick_json


def test_virtual_asyncio_reports_a_wait_that_cannot_end() -> None:
    async def body() -> None:
        await anyio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run_virtual("asyncio", body)


def test_a_task_left_on_asyncio_is_named() -> None:
    kept: list[object] = []  # the loop itself holds tasks weakly

    async def body() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(3600), name="forgotten"))

    with pytest.raises(AssertionError, match="tasks left running: forgotten"):
        run("asyncio", body)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _sleeper(code: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    body = f"{code}\nprint(flush=True)\nimport time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-S", "-c", body], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


@needs_proc
def test_a_child_and_its_child_are_leaks_and_are_ended() -> None:
    before = snapshot()
    child = _sleeper("import os; os.fork()")

    left = leaks_since(before)

    assert len(left) == 2
    assert str(child.pid) in left[0]
    assert leaks_since(before) == []
    child.returncode = -signal.SIGKILL  # reaped above


@needs_proc
def test_a_zombie_is_a_leak() -> None:
    before = snapshot()
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert leaks_since(before) == [f"process {child.pid} (zombie)"]

    child.returncode = 0  # reaped above


ESCAPE = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)"
TAGGED = {"GREENROOM_ROOM": "test", "TMPDIR": tempfile.gettempdir()}


@needs_proc
def test_a_process_that_left_the_tree_is_found_by_its_tag() -> None:
    before = snapshot()
    _sleeper(ESCAPE, env=TAGGED).wait()

    (left,) = _found_soon(before)

    assert "time.sleep" in left
    assert leaks_since(before) == []


@needs_proc
def test_a_tagged_process_that_works_elsewhere_is_let_alone(tmp_path: Path) -> None:
    before = snapshot()
    _sleeper(f"import os; os.chdir({os.fspath(tmp_path)!r})\n{ESCAPE}", env=TAGGED).wait()

    assert leaks_since(before) == []
    assert len(_found_soon(attrs.evolve(before, homes=(os.fspath(tmp_path),)))) == 1


def _found_soon(before: Snapshot) -> list[str]:
    """What was left, once the one between it and its adopter has gone, too."""
    deadline = time.monotonic() + PATIENCE
    while not (left := leaks_since(before)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return left


@needs_proc
def test_a_tagged_process_of_somebody_who_lives_is_let_alone() -> None:
    before = snapshot()
    child = "import os, time; print(os.getpgrp(), flush=True); os.close(1); time.sleep(60)"
    spawn = f"subprocess.Popen([sys.executable, '-S', '-c', {child!r}], env={TAGGED})"
    run_it = f"import subprocess, sys\nwith {spawn}: os.close(1)"
    somebody = subprocess.run(
        [sys.executable, "-c", f"{ESCAPE}\n{run_it}"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert leaks_since(before) == []
    finally:
        _end_group(int(somebody.stdout))


def _end_group(group: int) -> None:
    """Kill it, and see it go: for a moment its children look like orphans of ours."""
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while _members(group) and time.monotonic() < deadline:
        time.sleep(0.001)


def _members(group: int) -> list[str]:
    """The processes of a group that are no zombies."""
    found: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if fields[2] == str(group) and fields[0] != "Z":
                found.append(stat.parent.name)
    return found


def test_a_forked_command_is_a_child_like_any_other_and_says_the_same(tmp_path: Path) -> None:
    """Of ours, with its exit code, streams and signals. What it says is what a command says that began cold."""
    (tmp_path / "mcp.json").write_text("{}")
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path)}

    for words in (["status", "--config", "mcp.json"], ["nonsense"], ["call", "x_y", "--config", "none.json"]):
        cold = subprocess.run([*GREENROOM, *words], cwd=tmp_path, env=environment, capture_output=True)
        forked = run_forked([*GREENROOM, *words], cwd=tmp_path, env=environment)
        assert (forked.returncode, forked.stdout, forked.stderr) == (
            cold.returncode,
            cold.stdout,
            cold.stderr,
        )

    command = [*GREENROOM, "serve", "--config", "mcp.json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen_forked(command, cwd=tmp_path, env=environment, **pipes) as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}\n" in status
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_a_forked_gateway_has_been_given_what_it_imports(tmp_path: Path) -> None:
    """Otherwise each of hundreds imports it again."""
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"f": faulty(tmp_path, "f")}}))
    late = tmp_path / "late"
    places = {"XDG_CACHE_HOME": os.fspath(tmp_path), "HOME": os.fspath(tmp_path)}
    environment = {"PATH": os.environ["PATH"], **places, "LATE_IMPORTS": os.fspath(late)}

    with started(*GREENROOM, "serve", "--config", "mcp.json", env=environment, cwd=tmp_path) as gateway:
        gateway.initialize()
        assert gateway.mcp(tool="f_echo", args={"text": "come"})["content"][0]["text"] == "come"
        assert gateway.end() == 0

    imported = {name.partition(".")[0] for name in late.read_text().split()}
    assert imported - sys.stdlib_module_names == set()


@needs_proc
def test_a_test_that_leaves_something_or_unbalanced_books_fails_and_the_next_one_starts_clean(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "test_inner.py"
    inner.write_text(LEAVERS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    plugins = ["-p", "tests.support.leaks", "-p", "tests.support.books", "-p", "tests.support.seeds"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, *plugins, os.fspath(inner)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    failed = [line.partition(" - ")[0] for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert [line.rpartition("::")[2] for line in failed] == ["test_leaves", "test_both", "test_closes"]
    assert "test_leaves left behind: descriptor" in done.stdout
    assert "AssertionError: its own teardown" in done.stdout
    assert "test_both left behind: descriptor" in done.stdout
    assert "test_closes left behind: descriptor" in done.stdout
    assert "not everything was let go of: bytes queued: 7" in done.stdout
    assert "6 passed" in done.stdout, done.stdout


LEAVERS = """
import os, random
from types import SimpleNamespace
import pytest
from greenroom.supervisor.runtime import Runtime
from tests.support import books

drawn = []

def test_leaves():
    os.dup(0)

def test_is_clean():
    drawn.append(random.random())

@pytest.fixture
def fails():
    yield
    raise AssertionError("its own teardown")

def test_both(fails):
    os.dup(0)

def _close(monkeypatch):
    monkeypatch.setattr(books, "_close", lambda self: None)
    monkeypatch.setattr(books, "_not_at_nothing", lambda self: ["bytes queued: 7"])
    Runtime._close(SimpleNamespace(is_running=True))

def test_closes(monkeypatch):
    _close(monkeypatch)
    os.dup(0)

@pytest.mark.changes_the_books
def test_may(monkeypatch):
    _close(monkeypatch)

def test_is_clean_again():
    assert random.random() not in drawn
"""


def test_an_order_is_the_same_for_its_number_and_loses_nothing(request: pytest.FixtureRequest) -> None:
    """Workers must agree on it, whatever order they collected in."""
    items = request.session.items
    there, back, other = list(items), list(reversed(items)), list(items)
    for each, seed in ((there, "1"), (back, "1"), (other, "2")):
        shuffle(each, seed)
    assert there == back
    assert len(items) < 10 or there != other
    assert {item.nodeid for item in there} == {item.nodeid for item in items}


@pytest.mark.parametrize("count", [3, 103])
def test_every_worker_begins_with_long_ones(count: int) -> None:
    """Named as the scheduler of pytest-xdist deals them out: shares that follow each other, a shorter one before."""
    long = [SimpleNamespace(nodeid=name) for name in LONGEST]
    items = cast("list[pytest.Item]", [SimpleNamespace(nodeid=f"short {n}") for n in range(count)] + long)

    dealt = longest_first(items, 3)

    assert sorted(item.nodeid for item in dealt) == sorted(item.nodeid for item in items)
    rest = list(dealt)
    shares = [[rest.pop(0) for _ in range(len(rest) // left)] for left in (3, 2, 1)]
    heads = [[item.nodeid for item in share if item.nodeid in LONGEST] for share in shares]
    if count > len(LONGEST):
        assert heads == [list(LONGEST[worker::3]) for worker in range(3)]
        assert all(share[0].nodeid in LONGEST for share in shares)


def test_a_table_in_one_test_is_tried_to_its_end_and_says_which_rows_fail() -> None:
    tried: list[tuple[int, str]] = []

    @for_each("number", [1, 2, 3])
    @for_each(("low", "high"), [("a", "A"), ("b", "C")])
    def test(number: int, low: str, high: str) -> None:
        tried.append((number, low))
        assert low.upper() == high or number != 2
        if number == 3:
            pytest.fail("three")

    with pytest.raises(BaseExceptionGroup) as caught:
        test()
    assert tried == [(number, low) for number in (1, 2, 3) for low in ("a", "b")]
    two, three = caught.value.exceptions
    assert (two.__notes__, three.__notes__) == (["row 1: ('b', 'C')", "row 1: (2,)"], ["row 2: (3,)"])
    with pytest.raises(AssertionError, match="it does not take other"):
        for_each("other", [1])(test)
    with pytest.raises(AssertionError, match="tries nothing"):
        for_each("number", [])


def _pytest(test: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.whole_run", "-c", os.devnull]
    environment = {**os.environ, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options, test], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_a_skip_and_a_torture_row_without_a_test_that_ran_fail_the_run(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text("import pytest\ndef test_t03_a(): pytest.skip('no node here')\ndef test_t04_b(): pass\n")

    done = _pytest(test, "--every-torture-row")

    assert done.returncode == 1
    assert "CI allows no skip" in done.stdout
    assert "torture row T01 had no test that ran" in done.stdout
    assert "torture row T03 had no test that ran" in done.stdout
    assert "row T04 " not in done.stdout


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(_VALUES)
def test_the_servers_quick_json_is_json(value: object) -> None:
    assert quick_json.dumps(value) == json.dumps(value)
    text = json.dumps(value, ensure_ascii=False)
    assert quick_json.loads(text) == value
    assert quick_json.loads(f" {text}\n".encode()) == value


@pytest.mark.parametrize("text", ["", "nul", "[1", '{"a":1}}'])
def test_the_servers_quick_json_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        quick_json.loads(text)


# A minute of a test's own, where a process, a thread or a socket is waited for.
_OWN_PATIENCE = re.compile(
    r"\.(?:wait|join|communicate|settimeout)\((?:timeout=)?\d{2}"
    r"|(?:text=True|check=\w+|capture_output=True), timeout=\d{2}"
    r"|\b(?:until|deadline|ends?) = .*monotonic\(\) \+ \d"
)


def test_whatever_is_real_is_waited_for_with_the_one_patience() -> None:
    assert _OWN_PATIENCE.search("    assert child.wait(" + "60) == 0")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if _OWN_PATIENCE.search(line)
    ]
    assert found == [], "PATIENCE of tests/support/patience.py"
