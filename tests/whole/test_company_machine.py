"""What a server sees of the machine it runs on, and what is kept for the directory it runs in. Real processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import faulty
from tests.support.rows import for_each
from tests.support.said import said
from tests.support.whole import raw_client

from greenroom import Greenroom
from greenroom.actors.server_notes import ServerNotes
from greenroom.actors.transports.child_environment import child_environment
from greenroom.actors.transports.stderr_ring import StderrRing
from greenroom.config.masking import redacted
from greenroom.config.model import Config, ServerDefinition, Settings
from greenroom.config.parse import parse_config
from greenroom.protocol.errors import ServerLost
from greenroom.supervisor.reload import plan_reload

PROXY = "http://anna:hunter2@proxy.corp:3128"
PASSED = {
    "SSL_CERT_FILE": "/etc/corp.pem",
    "SSL_CERT_DIR": "/etc/corp",
    "NODE_EXTRA_CA_CERTS": "/etc/corp.pem",
    "REQUESTS_CA_BUNDLE": "/etc/corp.pem",
    "HTTP_PROXY": PROXY,
    "https_proxy": PROXY,
    "ALL_PROXY": PROXY,
    "no_proxy": "localhost",
}
KEPT = {"SSH_AUTH_SOCK": "/run/agent", "AWS_PROFILE": "corp", "AWS_REGION": "eu", "GOPATH": "/go"}


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PASSED, **KEPT}.items():
        monkeypatch.setenv(name, value)


async def _seen(tmp_path: Path, entry: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    servers = {"s": {**faulty(tmp_path, "s"), **entry}}
    async with Greenroom.open({"mcpServers": servers, "settings": settings}) as room:
        return json.loads((await room.call("s_env")).text)


@pytest.mark.parametrize(
    ("entry", "settings", "more"),
    [
        ({}, {}, set()),
        ({"inheritEnv": ["AWS_*", "GOPATH"]}, {}, {"AWS_PROFILE", "AWS_REGION", "GOPATH"}),
        ({}, {"inheritEnv": ["AWS_?R*"]}, {"AWS_PROFILE"}),
        ({"inheritEnv": []}, {"inheritEnv": True}, set()),
        ({"inheritEnv": False}, {"inheritEnv": ["*"]}, set()),
        ({"inheritEnv": ["SSH_AUTH_SOCK"]}, {"inheritEnv": ["AWS_*"]}, {"SSH_AUTH_SOCK"}),
        ({}, {"inheritEnv": True}, set(KEPT)),
        ({"inheritEnv": True}, {}, set(KEPT)),
    ],
)
@pytest.mark.usefixtures("company")
@in_real_time
async def test_a_child_sees_certificates_proxies_and_what_is_named(
    tmp_path: Path, entry: dict[str, Any], settings: dict[str, Any], more: set[str]
) -> None:
    seen = await _seen(tmp_path, entry, settings)
    assert PASSED.items() <= seen.items()
    assert KEPT.keys() & seen.keys() == more


def test_names_are_patterns_of_the_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_GOPATH", "no")
    definition = ServerDefinition("x", command="x", inherit_env=("GOPATH",))
    assert "MY_GOPATH" not in child_environment(definition, "GREENROOM_INCARNATION=r:x#1", "r")


def test_a_pattern_that_is_none_breaks_the_server_and_says_so() -> None:
    config = parse_config({"mcpServers": {"s": {"command": "x", "inheritEnv": ["A", "TOKEN=hunter2"]}}})
    assert 's.inheritEnv[1]: must be a name or a pattern like "AWS_*"' in str(config.broken["s"])
    assert "hunter2" not in str(config.broken["s"])


def test_the_setting_means_another_process_only_for_those_that_leave_it_to_it() -> None:
    def config(wanted: bool) -> Config:
        own = ServerDefinition("own", command="x", inherit_env=())
        servers = {"own": own, "left": ServerDefinition("left", command="x")}
        return Config(servers=servers, settings=Settings(inherit_env=wanted))

    plan = plan_reload(config(False), config(True))
    assert (plan.keep, plan.replace) == (("own",), ("left",))


# ---- the login in a proxy's address ------------------------------------------------------------------------


@for_each(
    "arg", [f"--proxy={PROXY}", f"HTTPS_PROXY={PROXY}", PROXY, f"curl -x {PROXY} http://x", f"--x y={PROXY}"]
)
def test_the_login_of_a_proxy_is_not_printed(arg: str) -> None:
    entry = {"command": "x", "args": [arg], "env": {"HTTPS_PROXY": PROXY}}
    printed = json.dumps(redacted(parse_config({"mcpServers": {"s": entry}})))
    assert "hunter2" not in printed
    assert "proxy.corp:3128" in printed  # what one wants to check


def test_the_login_of_a_proxy_is_not_quoted_from_a_server_that_prints_it() -> None:
    ring = StderrRing(8192)
    ring.feed(f"cannot reach {PROXY}/ (or '{PROXY}'), socks5://a:p@ss@h\n".encode())
    assert ring.tail() == (
        "cannot reach http://***@proxy.corp:3128/ (or 'http://***@proxy.corp:3128'), socks5://***@h",
    )
    heard: list[str] = []
    ServerNotes(lambda _code, words: heard.append(words)).add("junk on stdout", f"using {PROXY}")
    assert heard == ["junk on stdout: using http://***@proxy.corp:3128"]


@in_real_time
async def test_the_login_of_a_proxy_is_not_in_the_error_of_a_server_that_dies_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    program = "import os, sys; sys.stdin.readline(); sys.exit('no way through ' + os.environ['HTTPS_PROXY'])"
    servers = {"s": {"command": sys.executable, "args": ["-c", program]}}
    async with Greenroom.open({"mcpServers": servers}) as room:
        with pytest.raises(Exception, match=r"no way through http://\*\*\*@proxy\.corp:3128") as caught:
            await room.connect("s")
        assert not isinstance(caught.value, ServerLost)
        assert "hunter2" not in f"{caught.value!r} {room.status()} {vars(caught.value)}"


# ---- the directory -----------------------------------------------------------------------------------------


def _project(folder: Path, tool: str) -> dict[str, str]:
    """A project whose configuration says the same as the other's: a relative script, of its own."""
    folder.mkdir()
    tools = [{"name": tool, "inputSchema": {"type": "object"}}]
    entry = said(folder, "s", {"tools/list": {"tools": tools}})
    entry["args"][-1] = "s.said.json"
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    home = os.fspath(folder.parent)
    return {"HOME": home, "XDG_CACHE_HOME": os.path.join(home, "cache"), "XDG_RUNTIME_DIR": home}


def test_t53_two_projects_with_one_relative_entry_do_not_share_tools(tmp_path: Path) -> None:
    env = _project(tmp_path / "a", "alpha")
    _project(tmp_path / "b", "beta")
    serve = [*GREENROOM, "serve", "--config", "mcp.json", "--expose", "direct"]

    def known(project: str) -> list[str]:
        command = [*GREENROOM, "tools", "--config", "mcp.json", "--json"]
        environment = {**os.environ, **env}
        said = run_forked(command, cwd=tmp_path / project, env=environment)
        return [tool["name"] for tool in json.loads(said.stdout)["tools"]]

    def learn(project: str) -> list[str]:
        with raw_client(serve, env=env, cwd=tmp_path / project) as door:
            door.initialize()
            door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
            return [tool["name"] for tool in door.list_all("tools")]

    assert learn("a") == ["s_alpha"]
    assert known("b") == []
    assert learn("b") == ["s_beta"]
    assert known("a") == ["s_alpha"]
