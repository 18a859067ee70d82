"""Servers that `npx` would start, started without npm: what is found in made-up caches, and a real package."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.support import in_real_time, run
from tests.support.gateway import FAULTY, children
from tests.support.real_servers import real_server
from tests.support.rows import for_each
from tools.real_servers import ROWS, executable

from greenroom import Greenroom
from greenroom.actors.transports import npx
from greenroom.actors.transports.npx import FRESH, DirectStart, look_up
from greenroom.actors.transports.npx_request import folders, starts_with, wanted
from greenroom.config.model import ServerDefinition
from greenroom.errors import ConnectFailed

DAY = FRESH
NODE = b"#!/usr/bin/env node\n"


@for_each(
    ("line", "spec", "version", "program", "args"),
    [
        ("npx pkg", "pkg", None, None, []),
        ("npx -y pkg a -b -- c", "pkg", None, None, ["a", "-b", "--", "c"]),
        ("npx --yes @a/b@1.2.3 x", "@a/b@1.2.3", "1.2.3", None, ["x"]),
        ("npx -y pkg@v1.2.3-rc.1", "pkg@v1.2.3-rc.1", "1.2.3-rc.1", None, []),
        ("npx -y pkg@latest", "pkg@latest", None, None, []),
        ("npx -y pkg@^1.2", "pkg@^1.2", None, None, []),
        ("npx -y -- pkg -y", "pkg", None, None, ["-y"]),
        ("npx -p pkg tool -p x", "pkg", None, "tool", ["-p", "x"]),
        ("npx -y --package=@a/b@2.0.0 tool", "@a/b@2.0.0", "2.0.0", "tool", []),
        ("npx --package pkg -- tool -- x", "pkg", None, "tool", ["--", "x"]),
        ("/opt/node/bin/npx -y pkg", "pkg", None, None, []),
        ("npm exec --package=pkg -- tool -x", "pkg", None, "tool", ["-x"]),
        ("npm x -y -- pkg -x", "pkg", None, None, ["-x"]),
        ("npm exec -y pkg x", "pkg", None, None, ["x"]),
    ],
)
def test_a_command_line_that_is_understood(
    line: str, spec: str, version: str | None, program: str | None, args: list[str]
) -> None:
    command, *words = line.split()
    found = wanted(command, words)
    assert found is not None
    assert (found.spec, found.version, found.program, [*found.args]) == (spec, version, program, args)
    assert spec.startswith(found.package)


@for_each(
    "line",
    [
        "npx", "npx -y", "npx -p pkg", "npx -p", "npx -c pkg", "npx --no-install pkg", "npx --prefer-offline pkg",
        "npx -p a -p b tool", "npx -y .", "npx -y ./pkg", "npx -y ../x", "npx -y owner/repo", "npx -y git+ssh://h/r",
        "npx -y pkg@npm:other@1", "npx -y pkg@file:x", "npx -y https://h/x.tgz", "npx -y @a", "npx -y pkg@",
        "npx -p pkg ../tool", "npm exec pkg -x", "npm install pkg", "npm", "node pkg", "pnpx pkg", "npx.cmd pkg",
    ],
)  # fmt: skip
def test_a_command_line_that_is_left_to_npm(line: str) -> None:
    command, *words = line.split()
    assert wanted(command, words) is None


def test_the_folder_is_the_one_that_npm_makes() -> None:
    found = wanted("npx", ["-y", "@modelcontextprotocol/server-memory"])
    assert found is not None
    assert found.folder == "15b07286cbcc3329"  # seen in npm's cache


@for_each(
    ("bins", "program", "found"),
    [
        ("cli.js", None, ("b", "cli.js")),
        ("cli.js", "b", ("b", "cli.js")),
        ("cli.js", "other", None),
        ({"x": "x.js"}, None, ("x", "x.js")),
        ({"x": "x.js", "y": "x.js"}, None, ("x", "x.js")),
        ({"x": "x.js", "b": "./b.js"}, None, ("b", "./b.js")),
        ({"x": "x.js", "y": "y.js"}, None, None),
        ({"x": "x.js", "y": "y.js"}, "y", ("y", "y.js")),
        ({"b": "../../evil.js"}, None, None),
        ({"b": "/bin/sh"}, None, None),
        ({"../b": "b.js"}, None, None),
        ({"b": 1}, None, None),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_the_program_is_the_one_that_npm_would_choose(
    bins: Any, program: str | None, found: tuple[str, str] | None
) -> None:
    asked = wanted("npx", ["-y", "@a/b"])
    assert asked is not None
    assert attrs.evolve(asked, program=program).program_of({"bin": bins}) == found


@for_each(
    ("head", "words"),
    [
        (NODE, ("node",)),
        (b"#!/usr/bin/env node\r\nx", ("node",)),
        (b"#! /usr/bin/env -S node --no-warnings --x=y\n", ("node", "--no-warnings", "--x=y")),
        (b"#!/bin/sh\n", ()),
        (b"#!/usr/bin/env node-18\n", ()),
        (b"\x7fELF\x02", ()),
        (b"console.log(1)\n", None),
        (b"", None),
    ],
)  # fmt: skip
def test_what_a_file_is(head: bytes, words: tuple[str, ...] | None) -> None:
    assert starts_with(head) == words


@for_each(
    ("environment", "config", "cache"),
    [
        ({}, "", "~/.npm"),
        ({"npm_config_cache": "/a"}, "cache=/b", "/a"),
        ({"NPM_CONFIG_CACHE": "/a"}, "", "/a"),
        ({}, "; x\n//host/:_authToken=t\ncache = \"~/c\"\nprefix=~/g\n", "~/c"),
        ({}, "cache=${HOME}/c", None),
        ({}, "node-options=--inspect", None),
        ({"npm_config_registry": "http://h"}, "", None),
    ],
)  # fmt: skip
def test_where_npm_keeps_its_cache(environment: dict[str, str], config: str, cache: str | None) -> None:
    found = folders(environment, config)
    assert (None if found is None else found.cache) == cache


class Home:
    """A home folder with npm's cache, and a project beside it. It has no npm, and a `node` that is never run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.project = path / "project"
        self.notes = path / "notes"
        self.now = time.time()
        (path / "bin").mkdir()
        self.project.mkdir()
        (path / "bin" / "node").symlink_to("/bin/true")

    def install(self, tree: Path, name: str = "pkg", version: str = "1.2.3", head: bytes = NODE) -> Path:
        """The package in a `node_modules` as npm leaves it. Returns its program."""
        program = tree / name / "dist" / "cli.js"
        program.parent.mkdir(parents=True)
        program.write_bytes(head)
        program.chmod(0o755)
        manifest = {"name": name, "version": version, "bin": {"tool": "dist/cli.js"}}
        (tree / name / "package.json").write_text(json.dumps(manifest))
        (tree / ".bin").mkdir(exist_ok=True)
        (tree / ".bin" / "tool").symlink_to(f"../{name}/dist/cli.js")
        lock = {"packages": {f"node_modules/{name}": {"version": version}}}
        (tree / ".package-lock.json").write_text(json.dumps(lock))
        return program

    def folder(self, spec: str) -> Path:
        asked = wanted("npx", [spec])
        assert asked is not None
        return self.path / ".npm" / "_npx" / asked.folder

    def cache(self, spec: str, age: float = 60.0, **package: Any) -> Path:
        folder = self.folder(spec)
        program = self.install(folder / "node_modules", **package)
        (folder / "package.json").write_text(json.dumps({"_npx": {"packages": [spec]}}))
        self.looked_at(spec, age)
        return program

    def looked_at(self, spec: str, age: float) -> None:
        os.utime(self.folder(spec), (self.now - age, self.now - age))

    def starts(self, *words: str, **environment: str) -> tuple[str, ...] | None:
        asked = wanted("npx", words)
        assert asked is not None
        surroundings = {"HOME": str(self.path), "PATH": str(self.path / "bin"), **environment}
        found = look_up(asked, surroundings, str(self.project), self.notes, self.now)
        return None if found is None else found.command


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("spec", ["pkg", "pkg@latest", "pkg@^1.0.0", "pkg@1.2.3"])
def test_what_npm_has_cached_for_these_words_is_started_by_node(home: Home, spec: str) -> None:
    program = home.cache(spec)
    assert home.starts("-y", spec, "--root", "a b") == ("node", str(program), "--root", "a b")
    assert home.starts("-p", spec, "tool", "x") == ("node", str(program), "x")
    assert home.starts("-p", spec, "other") is None
    assert home.starts("pkg@9.9.9") is None


def test_the_newest_version_is_npms_to_find_once_a_day(home: Home) -> None:
    program = home.cache("pkg", age=DAY + 1)
    assert home.starts("pkg") is None, "npm is asked, which is noted"
    assert home.starts("pkg") == ("node", str(program))
    home.now += DAY + 60
    assert home.starts("pkg") is None
    home.looked_at("pkg", age=-60)
    (home.notes / home.folder("pkg").name).unlink()
    assert home.starts("pkg") is None, "a date in the future says nothing"


@pytest.mark.parametrize(("age", "is_fresh"), [(0.0, True), (DAY - 1, True), (DAY, False), (-1.0, False)])
def test_a_look_of_npm_counts_for_a_day(home: Home, age: float, is_fresh: bool) -> None:
    home.now = float(int(home.now))
    home.cache("pkg", age=age)
    assert (home.starts("pkg") is not None) is is_fresh
    noted = home.notes / home.folder("pkg").name
    assert noted.exists() is not is_fresh
    if not is_fresh:
        assert noted.stat().st_mtime == home.now, "npm is asked now"
        home.looked_at("pkg", 9 * DAY)
        home.now += DAY - 1
        assert home.starts("pkg") is not None
        home.now += 1
        assert home.starts("pkg") is None


def test_an_exact_version_does_not_grow_old(home: Home) -> None:
    program = home.cache("pkg@1.2.3", age=100 * DAY)
    assert home.starts("pkg@1.2.3") == ("node", str(program))
    assert not home.notes.exists()


def _write(path: str, content: str) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        (folder / path).write_text(content)

    return spoil


def _linked_elsewhere(folder: Path) -> None:
    (folder / "node_modules/.bin/tool").unlink()
    (folder / "node_modules/.bin/tool").symlink_to("/bin/sh")


def _program_elsewhere(folder: Path) -> None:
    program = folder / "node_modules/pkg/dist/cli.js"
    (folder / "elsewhere.js").write_bytes(program.read_bytes())
    program.unlink()
    program.symlink_to(folder / "elsewhere.js")


def _program_is_a_pipe(folder: Path) -> None:
    program = folder / "node_modules/pkg/dist/cli.js"
    program.unlink()
    os.mkfifo(program, 0o755)


@pytest.mark.parametrize(
    "spoil",
    [
        _write("package.json", '{"_npx": {"packages": ["pkg", "other"]}}'),
        _write("package.json", "{}"),
        _write("package.json", "[" * 100_000),
        _write("node_modules/.package-lock.json", '{"packages": {"node_modules/pkg": {"version": "1.2.2"}}}'),
        _write("node_modules/pkg/package.json", '{"name": "evil", "version": "1.2.3", "bin": "dist/cli.js"}'),
        _write("node_modules/pkg/package.json", "[]"),
        _write("node_modules/pkg/dist/cli.js", "console.log(1)"),
        _write("concurrency.lock", ""),
        lambda folder: (folder / "node_modules/.package-lock.json").unlink(),
        lambda folder: (folder / "node_modules/pkg/dist/cli.js").unlink(),
        _linked_elsewhere,
        _program_elsewhere,
        _program_is_a_pipe,
    ],
)
def test_an_install_that_is_not_whole_is_left_to_npm(home: Home, spoil: Callable[[Path], Any]) -> None:
    home.cache("pkg@1.2.3")
    assert home.starts("pkg@1.2.3") is not None
    spoil(home.folder("pkg@1.2.3"))
    assert home.starts("pkg@1.2.3") is None


def test_a_program_with_another_interpreter_is_started_as_it_is(home: Home) -> None:
    program = home.cache("pkg@1.2.3", head=b"#!/bin/sh\n")
    assert home.starts("pkg@1.2.3", "x") == (str(program), "x")
    program.chmod(0o644)
    assert home.starts("pkg@1.2.3", "x") is None


def test_the_project_comes_before_the_cache(home: Home) -> None:
    cached, tree = home.cache("pkg@1.2.3"), home.project / "node_modules"
    local = home.install(tree, version="2.0.0")
    assert home.starts("pkg") == home.starts("pkg@2.0.0") == ("node", str(local))
    assert home.starts("pkg@1.2.3") == ("node", str(cached))
    for spec in ("pkg@latest", "pkg@^1.0.0"):
        assert home.starts(spec) is None
        home.cache(spec)
        assert home.starts(spec) is None, "npm asks whether the project has the newest"
    below = home.project / "a" / "b"
    below.mkdir(parents=True)
    home.project = below
    assert home.starts("pkg") == ("node", str(local))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("project/.npmrc", "registry=http://h"),
        ("project/package.json", '{"bin": {"pkg": "x.js"}}'),
        ("project/package.json", '{"bin": "x.js"}'),
        ("package.json", '{"workspaces": ["project"]}'),
        ("node_modules/.bin/pkg", ""),
        ("bin/npx", ""),
        (".npmrc", "prefix=~/global"),
    ],
)
def test_where_npm_may_start_something_else_it_is_left_to_npm(home: Home, file: str, content: str) -> None:
    home.cache("pkg")
    assert home.starts("pkg") is not None
    if file == "node_modules/.bin/pkg":
        (home.project / "package.json").write_text("{}")
    (home.path / file).parent.mkdir(parents=True, exist_ok=True)
    (home.path / file).write_text(content)
    (home.path / file).chmod(0o755)
    for prefix in (
        home.path,
        home.path / "global",
    ):  # installed with -g: seen beside npx, or where .npmrc says
        (prefix / "lib/node_modules/pkg").mkdir(parents=True)
    assert home.starts("pkg") is None


@pytest.mark.parametrize("content", ["fund=false", "node-options=--inspect"])
def test_a_project_in_the_home_folder_has_no_rules_of_its_own(home: Home, content: str) -> None:
    home.cache("pkg")
    (home.path / "package.json").write_text("{}")
    (home.path / ".npmrc").write_text(content)
    home.project = home.path
    in_home = home.starts("pkg")
    home.project = home.path / "project"
    assert home.starts("pkg") == in_home, "it is part of the one above"
    (home.project / "package.json").write_text("{}")
    assert home.starts("pkg") == in_home
    assert (in_home is not None) is (content == "fund=false")


@pytest.mark.parametrize("words", [("pkg",), ("pkg@latest",), ("-p", "pkg", "tool")])
@pytest.mark.parametrize("where", ["lib/node_modules/pkg", "bin/pkg"])
@pytest.mark.parametrize("configured", ["prefix=~/global", "prefix=~"])
def test_what_is_installed_for_all_comes_before_the_cache(
    home: Home, words: tuple[str, ...], where: str, configured: str
) -> None:
    home.cache("pkg")
    home.cache("pkg@latest")
    (home.path / ".npmrc").write_text(configured)
    found = home.path / ("global" if "global" in configured else "") / where
    assert home.starts(*words) is not None
    found.parent.mkdir(parents=True, exist_ok=True)
    found.symlink_to("/nowhere")
    sees = where.startswith("lib") or words == ("pkg",)
    assert (home.starts(*words) is None) is sees


def test_without_node_or_a_home_it_is_left_to_npm(home: Home) -> None:
    home.cache("pkg")
    assert home.starts("pkg", PATH="/nowhere") is None
    assert home.starts("pkg", HOME="") is None


def tree_of(pid: int) -> list[str]:
    """The command lines of a process and all below it."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return [own, *(line for child in children(pid) for line in tree_of(child))]


def test_a_real_package_runs_without_npm(tmp_path: Path) -> None:
    real_server("memory", tmp_path)  # it is installed, or the test says so
    pin = ROWS["memory"].pins
    tree = executable("memory").parents[1]
    program = os.path.realpath(tree / "@modelcontextprotocol" / "server-memory" / "dist" / "index.js")
    asked = wanted("npx", ["-y", pin])
    assert asked is not None
    folder = tmp_path / ".npm" / "_npx" / asked.folder
    folder.mkdir(parents=True)
    (folder / "node_modules").symlink_to(tree)
    (folder / "package.json").write_text(json.dumps({"_npx": {"packages": [pin]}}))
    entry = {
        "command": "npx",
        "args": ["-y", pin],
        "cwd": os.fspath(tmp_path),
        "env": {"HOME": os.fspath(tmp_path)},
    }

    async def body() -> None:
        async with Greenroom.open({"mcpServers": {"m": entry}}, cache_path=":memory:") as room:
            assert "entities" in (await room.call("m_read_graph", {})).text
            pid = room.status()[0].pid
            assert pid is not None
            assert tree_of(pid) == [f"node {program} "]

    run("asyncio", body)


def test_its_programs_come_first_as_npm_puts_them() -> None:
    direct = DirectStart(("node", "/x/cli.js", "-v"), "/x/cli.js", "/x/.bin")
    definition = ServerDefinition("s", command="npx", args=("pkg", "-v"), env={"A": "1"})
    started = direct.in_place_of(definition, {"PATH": "/usr/bin:/bin"})
    assert (started.command, started.args) == ("node", ("/x/cli.js", "-v"))
    assert started.env == {"A": "1", "PATH": "/x/.bin:/usr/bin:/bin"}
    own = direct.in_place_of(ServerDefinition("s", env={"PATH": "/own"}), {"PATH": "/own"})
    assert own.env == {"PATH": "/x/.bin:/own"}
    assert direct.in_place_of(definition, {}).env == {"A": "1", "PATH": f"/x/.bin:{os.defpath}"}


def room_with_npx(home: Home, general: dict[str, Any] | None = None, **more: Any) -> Greenroom:
    """A room with a server for whose package the cache has a program that fails; its `npx` works. `general`: settings
    for all servers; `more`: keys of its entry."""
    home.cache("pkg@1.2.3", head=b"#!/bin/sh\necho no such module >&2; exit 1\n")
    npx = home.path / "bin" / "npx"
    npx.write_text(f"#!/bin/sh\nexec {sys.executable} -S {FAULTY} --log {home.path}/npx.log\n")
    npx.chmod(0o755)
    environment = {"HOME": str(home.path), "PATH": f"{home.path}/bin:{os.environ['PATH']}"}
    # The path of npx is said: our own PATH would find the real one.
    entry = {
        "command": str(npx),
        "args": ["-y", "pkg@1.2.3"],
        "cwd": str(home.project),
        "env": environment,
        **more,
    }
    settings = {"bootstrap": False, "restartBackoff": {"minMs": 1, "maxMs": 1}, **(general or {})}
    config = {"mcpServers": {"p": entry}, "settings": settings}
    return Greenroom.open(config, cache_path=":memory:")


@in_real_time
async def test_a_program_that_ends_without_a_word_is_left_to_npm_from_then_on(home: Home) -> None:
    async with room_with_npx(home) as room:
        with pytest.raises(ConnectFailed, match="no such module"):
            await room.connect("p")
        await room.connect("p")
        assert (await room.call("p_echo", {"text": "hi"})).text == "hi"


def test_where_it_cannot_be_looked_up_it_is_left_to_npm(
    backend: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_descriptors(_work: object) -> None:
        raise OSError(24, "Too many open files")

    async def body() -> None:
        async with room_with_npx(home) as room:
            await room.connect("p")

    monkeypatch.setattr(npx, "apart", no_descriptors)
    run(backend, body)


def test_only_a_tilde_of_its_own_is_the_home_folder() -> None:
    paths = ("~", "~/a", "~a/b", "/x/~", "a")
    assert [npx._at_home(path, "/h") for path in paths] == ["/h", "/h/a", "~a/b", "/x/~", "a"]


OFF, ON = {"resolveNpx": False}, {"resolveNpx": True}


@pytest.mark.parametrize(("general", "own"), [({}, OFF), (OFF, {}), (ON, OFF)])
@in_real_time
async def test_it_can_be_switched_off_for_one_server_or_for_all(
    home: Home, general: dict[str, Any], own: dict[str, Any]
) -> None:
    async with room_with_npx(home, general, **own) as room:
        assert (await room.call("p_echo", {"text": "hi"})).text == "hi"


@in_real_time
async def test_what_a_server_says_of_npm_goes_before_what_is_said_for_all(home: Home) -> None:
    async with room_with_npx(home, OFF, **ON) as room:
        with pytest.raises(ConnectFailed, match="no such module"):
            await room.connect("p")
