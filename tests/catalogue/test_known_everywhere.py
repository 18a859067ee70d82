"""What is known of a server is known in every folder, unless its definition means another program there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import PATIENCE, faulty, logged_pids, started
from tests.support.homes import own_config
from tests.support.lister import lister, tool

from greenroom import Greenroom
from greenroom.catalogue.store import catalogue_keys
from greenroom.config.model import Config
from greenroom.config.parse import parse_config

ORDINARY: dict[str, Any] = {
    "time": {"command": "uvx", "args": ["mcp-server-time", "--local-timezone=Europe/Berlin"]},
    "git": {"command": "uvx", "args": ["mcp-server-git"]},
    "fetch": {"command": "uvx", "args": ["mcp-server-fetch"]},
    "sqlite": {"command": "uvx", "args": ["mcp-server-sqlite", "--db-path", "/data/my.db"]},
    "atlassian": {
        "command": "uvx",
        "args": ["mcp-atlassian"],
        "env": {"JIRA_URL": "https://x.atlassian.net"},
    },
    "tool": {"command": "uv", "args": ["tool", "run", "some-mcp"]},
    "directory": {"command": "uv", "args": ["--directory", "/srv/weather", "run", "weather.py"]},
    "files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]},
    "memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory@2026.1.1"]},
    "everything": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything", "stdio"]},
    "context7": {"command": "npx", "args": ["-y", "@upstash/context7-mcp", "--api-key=abc"]},
    "playwright": {"command": "npx", "args": ["@playwright/mcp@latest", "--headless"]},
    "remote": {"command": "npx", "args": ["mcp-remote", "https://example.com/mcp?a=./b"]},
    "npm": {"command": "npm", "args": ["exec", "--yes", "some-mcp"]},
    "github": {"command": "docker", "args": ["run", "-i", "--rm", "-e", "TOKEN", "ghcr.io/github/mcp"]},
    "script": {"command": "/usr/bin/python3", "args": ["/opt/server.py"], "env": {"LOG_LEVEL": "debug"}},
    "http": {"url": "https://example.com/mcp"},
}

Folders = tuple[Path, Path]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Two projects with the files of one."""
    both = tmp_path / "one", tmp_path / "two"
    for folder in both:
        for name in ("src", "tests", "docker", "node_modules/express", ".git"):
            (folder / name).mkdir(parents=True)
        for name in ("package.json", "pyproject.toml", "Makefile", "README.md"):
            (folder / name).touch()
    return both


def config_of(**servers: Any) -> Config:
    return parse_config({"mcpServers": servers})


def known_for(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(folder)
    return catalogue_keys(config)


def test_ordinary_servers_are_the_same_in_every_folder(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(**ORDINARY)
    one, two = (known_for(config, folder, monkeypatch) for folder in folders)
    assert {name for name in config.servers if one[name] != two[name]} == set()
    assert len(set(one.values())) == len(config.servers)


HERE: list[dict[str, Any]] = [
    {"command": "./server.py"},
    {"command": "bin/server"},
    {"command": "uvx", "args": ["some-mcp"], "cwd": "sub"},
    {"command": "npx", "args": ["."]},
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "./data"]},
    {"command": "npx", "args": ["-y", "some-mcp", "--root=.."]},
    {"command": "docker", "args": ["run", "-v", ".:/data", "image"]},
    {"command": "docker", "args": ["compose", "run", "mcp"]},
    {"command": "uv", "args": ["run", "some-mcp"]},
    {"command": "npm", "args": ["run", "mcp"]},
    {"command": "npm.cmd", "args": ["run", "mcp", "--url=https://example.com"]},
    {"command": "make", "args": ["mcp"]},
    {"command": "sh", "args": ["-c", "cd /tmp && npm run mcp"]},
    {"command": "uvx", "args": ["some-mcp"], "env": {"DATA": "../data"}},
    {"url": "https://example.com/mcp", "requestHeadersCommand": {"command": "./token"}},
]


@pytest.mark.parametrize("entry", HERE)
def test_t53_what_begins_at_its_folder_is_another_server_in_another_folder(
    entry: Any, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(a=entry)
    one, two = (known_for(config, folder, monkeypatch) for folder in folders)
    assert one != two
    assert one == known_for(config, folders[0], monkeypatch)


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"command": "python", "args": ["server.py"]}, "server.py"),
    ({"command": "python", "args": ["-m", "my.server"]}, "my/server.py"),
    ({"command": "python", "args": ["-m", "my"]}, "my/__init__.py"),
    ({"command": "node", "args": ["--import", "x", "dist/index.js"]}, "dist/index.js"),
    ({"command": "uvx", "args": ["some-mcp", "--config=conf.json"]}, "conf.json"),
    ({"command": "uvx", "args": ["some-mcp", "--mount", "type=bind,src=data"]}, "data/x"),
    ({"command": "sh", "args": ["-c", "exec python 'server.py'"]}, "server.py"),
    ({"command": "uvx", "args": ["some-mcp"], "env": {"MEMORY_FILE": "memory.json"}}, "memory.json"),
    ({"command": "npx", "args": ["-y", "@scope/some-mcp@2"]}, "node_modules/@scope/some-mcp/package.json"),
    ({"command": "npx", "args": ["-y", "stdio-mcp", "stdio"]}, "stdio"),
]


@pytest.mark.parametrize(("entry", "file"), NAMED)
def test_a_file_that_an_argument_names_keeps_apart_what_is_known_where_it_is(
    entry: Any, file: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that appears in a folder to be taken for an argument: nothing that is learned there is known elsewhere,
    and what is known elsewhere is not said of what runs there."""
    config, (one, two) = config_of(a=entry), folders
    everywhere = known_for(config, one, monkeypatch)
    assert known_for(config, two, monkeypatch) == everywhere
    (one / file).parent.mkdir(parents=True, exist_ok=True)
    (one / file).touch()
    assert known_for(config, one, monkeypatch) != everywhere
    assert known_for(config, two, monkeypatch) == everywhere


@in_real_time
async def test_a_file_that_appears_while_a_room_runs_does_not_make_known_elsewhere_what_it_changed(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = folders
    entry = lister(tmp_path, "bank", tools=[tool("pay")])
    config = {"mcpServers": {"bank": {**entry, "args": [*entry["args"], "ledger"]}}}
    cache = tmp_path / "catalogue.json"

    def open_room() -> Greenroom:
        return Greenroom.open(config, cache_path=cache, bootstrap=False)

    monkeypatch.chdir(here)
    async with open_room() as room:
        await room.connect("bank")
        with anyio.fail_after(PATIENCE):  # it is written in a thread
            while not cache.exists():
                await anyio.sleep(0.01)
        (here / "ledger").touch()
        lister(tmp_path, "bank", tools=[tool("steal")])
        await room.restart("bank")
        assert [target.name for target in room.tools()] == ["bank_steal"]
    for folder, known in ((elsewhere, ["bank_pay"]), (here, ["bank_steal"])):
        monkeypatch.chdir(folder)
        async with open_room() as room:
            assert [target.name for target in room.tools()] == known


@in_real_time
async def test_a_server_that_makes_the_file_it_is_given_stays_known(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {**lister(tmp_path, "notes", tools=[tool("write")]), "env": {"NOTES": "notes.json"}}
    cache = tmp_path / "catalogue.json"

    monkeypatch.chdir(folders[0])
    async with Greenroom.open(config_of(notes=entry), cache_path=cache, bootstrap=False) as room:
        await room.connect("notes")
        (folders[0] / "notes.json").touch()
        for idle in (5, 6):
            await room.reload({"mcpServers": {"notes": {**entry, "idleTimeout": idle}}})
            assert [target.name for target in room.tools()] == ["notes_write"]
        await room.restart("notes")
        await room.connect("notes")
    async with Greenroom.open(config_of(notes=entry), cache_path=cache, bootstrap=False) as room:
        assert [target.name for target in room.tools()] == ["notes_write"]


# ---- at the doors -------------------------------------------------------------------------------------------------


@pytest.fixture
def greenroom(home: Path) -> Callable[..., Any]:
    """Run one command in a folder, with the files of `home`; its answer as JSON."""

    def command(folder: Path, *words: str) -> Any:
        environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
        done = run_forked([*GREENROOM, *words, "--json"], cwd=folder, env=environment)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    return command


def test_what_was_refreshed_in_one_folder_is_known_in_the_next(
    home: Path,
    folders: Folders,
    greenroom: Callable[..., Any],
) -> None:
    servers = {f"s{number}": faulty(home, f"s{number}") for number in range(3)}
    own_config(home, json.dumps({"mcpServers": servers}))
    greenroom(folders[0], "refresh")
    assert len(logged_pids(home)) == len(servers)
    for folder in folders:
        assert len(greenroom(folder, "tools")["tools"]) >= len(servers)
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(home)}
    with started(*GREENROOM, "serve", env=environment, cwd=folders[1]) as gateway:
        gateway.initialize()
        assert "s2_echo" in json.dumps(gateway.mcp(search="echo"))
        assert gateway.end() == 0
    assert len(logged_pids(home)) == len(servers), "nothing was started again"


def test_t53_two_projects_with_one_relative_entry_stay_apart(
    home: Path, folders: Folders, greenroom: Callable[..., Any]
) -> None:
    entry = lister(home, "any", tools=[])
    entry["args"][-1] = "./tools.json"
    own_config(home, json.dumps({"mcpServers": {"own": entry}}))
    for number, folder in enumerate(folders):
        (folder / "tools.json").write_text(
            json.dumps({"tools": [tool(f"t{number}"), tool("same", f"Of {number}.")]})
        )
        greenroom(folder, "refresh")
    for number, folder in enumerate(folders):
        found = greenroom(folder, "tools")["tools"]
        assert [each["name"] for each in found] == ["own_same", f"own_t{number}"]
        assert found[0]["description"] == f"Of {number}.", "it has not changed: it is another one"
