"""A running gateway notices a changed configuration, wherever it stands and however it comes to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run
from tests.support.gateway import started

from greenroom.actors._part import Part
from greenroom.gateway import _bell as bell

RELOADED = "configuration reloaded"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder / "home"),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
    }


@contextmanager
def serving(folder: Path, *options: str) -> Generator[Callable[[], list[str]]]:
    """A gateway in `folder/work`; what it has said about its configuration so far."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    log = folder / "stderr.txt"

    def said() -> list[str]:
        return [line for line in log.read_text().splitlines() if "configuration" in line]

    with (
        log.open("wb") as stderr,
        started(
            *(sys.executable, "-m", "greenroom", "serve", *options),
            env=environment(folder),
            cwd=work,
            stderr=stderr,
        ) as gateway,
    ):
        gateway.greet()
        time.sleep(0.6)  # it begins to watch a moment after it has begun to serve
        yield said
        assert gateway.end() == 0


def until(happened: Callable[[], bool], within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happened()


def config_of(*servers: str) -> str:
    entries = {name: {"command": name, "bootstrap": False} for name in servers}
    return json.dumps({"mcpServers": entries})


def status(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "greenroom", "status", "--json"],
        env=environment(folder),
        cwd=folder / "work",
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", ["work/.mcp.json", "work/.greenroom/mcp.json", "home/.config/mcp/mcp.json"])
def test_a_file_that_comes_to_be_later_is_read_and_commands_still_find_the_gateway(
    short: Path, place: str
) -> None:
    with serving(short) as said:
        assert status(short)["source"] == "gateway"
        file = short / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(config_of("a"))
        assert until(lambda: bool(said()))
        found = status(short)
        assert (found["source"], [server["name"] for server in found["servers"]]) == ("gateway", ["a"])
        assert said() == [f"greenroom: room: {RELOADED}: start 1"]
    assert list((short / "cache" / "greenroom" / "run").iterdir()) == []


def test_a_folder_that_is_swapped_by_a_link_is_another_configuration(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: the file is a link through `..data`, which is replaced."""
    mounted = tmp_path / "config"
    for number, servers in enumerate((["a"], ["a", "b"], ["c"])):
        (mounted / f"..{number}").mkdir(parents=True)
        (mounted / f"..{number}" / "mcp.json").write_text(config_of(*servers))
    (mounted / "..data").symlink_to("..0")
    (mounted / "mcp.json").symlink_to("..data/mcp.json")
    with serving(tmp_path, "--config", os.fspath(mounted / "mcp.json")) as said:
        for number in (1, 2):
            (mounted / "..data_tmp").symlink_to(f"..{number}")
            (mounted / "..data_tmp").rename(mounted / "..data")
            assert until(lambda wanted=number: len(said()) == wanted)
        assert [line.partition("reloaded: ")[2] for line in said()] == ["keep 1, start 1", "drain 2, start 1"]


def test_a_folder_that_is_replaced_by_another_is_another_configuration(tmp_path: Path) -> None:
    for name, servers in (("old", ["a"]), ("new", ["a", "b"])):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "mcp.json").write_text(config_of(*servers))
    with serving(tmp_path, "--config", os.fspath(tmp_path / "old" / "deep" / "mcp.json")) as said:
        (tmp_path / "old").rename(tmp_path / "gone")
        (tmp_path / "new").rename(tmp_path / "old")
        assert until(lambda: any("keep 1, start 1" in line for line in said()))


def test_each_change_is_one_line_and_no_change_is_none(tmp_path: Path) -> None:
    file = tmp_path / "work" / ".mcp.json"
    file.parent.mkdir()
    file.write_text(config_of("a"))
    with serving(tmp_path) as said:
        file.write_text('{"mcpServers": {"a": {"command": "a", "bootstrap": false, "bogus": 1}}}')
        assert until(lambda: len(said()) == 1)
        assert "Problems: " in said()[0]
        assert "bogus" in said()[0]
        os.utime(file)  # touched
        file.write_text(file.read_text())
        time.sleep(1.0)
        assert len(said()) == 1
        file.write_text("{")
        assert until(lambda: len(said()) == 2)
        os.utime(file, (1, 1))
        time.sleep(0.6)
        assert len(said()) == 2
        assert "it is skipped" in said()[1]


def test_a_named_file_that_breaks_is_said_and_the_old_one_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(config_of("a"))
    with serving(tmp_path, "--config", os.fspath(file)) as said:
        file.write_text("{")
        assert until(lambda: len(said()) == 1)
        assert "is not used, the old one goes on" in said()[0]
        file.write_text(config_of("a", "b"))
        assert until(lambda: len(said()) == 2)
        assert "keep 1, start 1" in said()[1]


def test_what_an_imported_program_configures_later_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}, "imports": ["cursor"]}')
    with serving(tmp_path, "--config", os.fspath(file)) as said:
        (tmp_path / "work" / ".cursor").mkdir()
        (tmp_path / "work" / ".cursor" / "mcp.json").write_text(config_of("a"))
        assert until(lambda: any("start 1" in line for line in said()))


def test_the_way_to_a_file_leads_through_links_and_ends_where_something_is_missing(tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "a" / "b").mkdir(parents=True)
    (real / "link").symlink_to("a/../a")
    (real / "loop").symlink_to("loop")

    def below(path: Path) -> list[tuple[str, str]]:
        steps = [(os.path.relpath(folder, real), name) for folder, name in bell.way_to(path)]
        return [step for step in steps if not step[0].startswith("..")]

    assert below(real / "link" / "b" / "no" / "file") == [
        (".", "link"),
        (".", "a"),
        (".", "a"),
        ("a", "b"),
        ("a/b", "no"),
    ]
    assert below(real / "nothing" / "there") == [(".", "nothing")]
    assert set(below(real / "loop" / "x")) == {(".", "loop")}


def test_without_watches_it_looks_again_by_the_clock(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "LOOK_AGAIN", 0.0)

    class Exhausted:
        def INotify(self, **_: object) -> None:  # noqa: N802
            raise OSError(24, "Too many open files")

    async def main() -> None:
        for library in (None, Exhausted()):
            monkeypatch.setattr(bell, "_inotify", lambda found=library: found)
            with bell.hung_at([tmp_path / "x"], Part("it", print)) as hung, anyio.fail_after(5):
                await hung.rung()

    run(backend, main)


def test_it_rings_for_names_on_the_way_and_for_no_others(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "here" / "file"
    file.parent.mkdir()

    async def rings(path: Path, happen: Callable[[], object]) -> bool:
        with bell.hung_at([path], Part("it", print)) as hung:
            happen()
            with anyio.move_on_after(0.1):
                await hung.rung()
                return True
        return False

    async def main() -> None:
        assert not await rings(file, lambda: None)
        assert await rings(file, file.touch)
        assert await rings(file, lambda: file.write_text("x"))
        assert await rings(file, lambda: file.chmod(0o600))
        assert not await rings(file, file.read_text)
        assert not await rings(file, (tmp_path / "here" / "other").touch)
        assert not await rings(file, (tmp_path / "beside").touch)
        assert await rings(file, lambda: (tmp_path / "here").rename(tmp_path / "there"))
        assert await rings(file, lambda: (tmp_path / "there").rename(tmp_path / "here"))
        assert await rings(file, file.unlink)

    run(backend, main)
