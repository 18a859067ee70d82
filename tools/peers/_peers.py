"""The peers as data: how each is installed, how it is started over servers of ours, which door it opens.

Each gets what its documentation recommends, and the time limits it has: `LIMIT` for a call and for a connect.
"""

from __future__ import annotations

import compileall
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

import greenroom

from ..world.installing import install, interpreter, program

DOORS = Path(__file__).parent / "doors"
LIMIT = 5.0  # seconds
_MS = int(LIMIT * 1000)
_WORDS = "{words}"  # for this argument stand all words of a server's command
_NOTHING: Mapping[str, Any] = {}


@attrs.frozen
class Peer:
    """`args` may have {config}, {port} and {command}, `address` may have {server}. `tool`: what it calls a server's
    tool, where a door has several. `is_plain_alone`: with one server alone, it is called as the server calls it.
    `script`: a program in `doors/` that opens a door for a library. `entry`, `top`: what else its configuration has for
    each server, and beside the servers. `settings`: the same for the reader."""

    name: str
    index: str  # "ours", "pypi" or "npm"
    pins: tuple[str, ...]
    door: str  # "stdio", "http", "sse" or "rest"
    settings: str
    program: str = ""
    script: str = ""
    args: tuple[str, ...] = ()
    tool: str = "{server}_{tool}"
    is_plain_alone: bool = False
    address: str = "/mcp"
    entry: Mapping[str, Any] = _NOTHING
    top: Mapping[str, Any] = _NOTHING
    one_each: bool = False  # a process of the peer for each server

    @property
    def stays(self) -> bool:
        """Over HTTP it outlives its clients."""
        return self.door != "stdio"

    def naming(self, servers: int) -> Callable[[str, str], str]:
        """What a tool is called where there are so many servers."""
        is_plain = self.one_each or "{server}" in self.address or (self.is_plain_alone and servers == 1)
        return lambda server, tool: tool if is_plain else self.tool.format(server=server, tool=tool)

    def installed(self) -> Sequence[str]:
        """The command that starts it, without its arguments. Raises `InstallFailed`."""
        if self.index == "ours":
            package = Path(greenroom.__file__).parent
            for room in (package, *filter(Path.is_dir, package.iterdir())):
                compileall.compile_dir(room, quiet=2)  # as an installed package has it
            return [sys.executable, "-m", "greenroom"]
        home = install("peers", self.pins[0].replace("/", "-"), self.index, self.pins)
        if self.script:
            return [*interpreter(home, self.index), str(DOORS / self.script)]
        return program(home, self.index, self.program)

    def arguments(self, port: str, config: str, command: Sequence[str]) -> list[str]:
        """The rest of its command. `command`: that of its server, if it is for one."""
        line = shlex.join(command)
        filled: list[str] = []
        for argument in self.args:
            if argument == _WORDS:
                filled += command
            else:
                filled.append(argument.format(port=port, config=config, command=line))
        return filled

    def configuration(self, servers: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
        entries = {
            name: {"command": command[0], "args": list(command[1:]), **self.entry}
            for name, command in servers.items()
        }
        return {"mcpServers": entries, **self.top}


_OURS = {"settings": {"requestTimeoutMs": _MS, "connectTimeoutMs": _MS}}
_FASTMCP = ("fastmcp==4.1.6",)

PEERS: tuple[Peer, ...] = (
    Peer(
        "Greenroom",
        "ours",
        (),
        "stdio",
        "`serve --expose direct`, `requestTimeoutMs` and `connectTimeoutMs` 5 s",
        args=("serve", "--config", "{config}", "--expose", "direct"),
        top=_OURS,
    ),
    Peer(
        "Greenroom, HTTP",
        "ours",
        (),
        "http",
        "the same with `--http`",
        args=("serve", "--config", "{config}", "--expose", "direct", "--http", "127.0.0.1:{port}"),
        top=_OURS,
    ),
    Peer(
        "FastMCP proxy",
        "pypi",
        _FASTMCP,
        "stdio",
        "`create_proxy(config)`, `timeout` 5 s for each server",
        script="fastmcp_proxy.py",
        is_plain_alone=True,
        args=("{config}",),
        entry={"timeout": _MS},
    ),
    Peer(
        "FastMCP ClientGroup",
        "pypi",
        _FASTMCP,
        "stdio",
        "`ClientGroup.from_config(config)`, `timeout` 5 s for each server; a library, behind a loop of ours",
        script="fastmcp_group.py",
        args=("{config}",),
        entry={"timeout": _MS},
    ),
    Peer(
        "SDK group",
        "pypi",
        ("mcp==2.3.0",),
        "stdio",
        "`ClientSessionGroup`, `read_timeout_seconds` 5 s; a library, behind a loop of ours",
        script="sdk_group.py",
        args=("{config}",),
    ),
    Peer(
        "mcp-pool",
        "pypi",
        ("mcp-pool==1.0.0",),
        "stdio",
        "a `MCPPool` of the SDK's clients for each server, 1 to 4 sessions, `health_check_interval_s` 1 s, "
        "`connect_timeout_s` and the call's `read_timeout_seconds` 5 s; a library, behind a loop of ours",
        script="mcp_pool.py",
        args=("{config}",),
    ),
    Peer(
        "mcp-proxy",
        "pypi",
        ("mcp-proxy==0.13.0",),
        "http",
        "`--named-server-config`; it has no time limit to set",
        program="mcp-proxy",
        args=("--host", "127.0.0.1", "--port", "{port}", "--named-server-config", "{config}"),
        address="/servers/{server}/mcp",
    ),
    Peer(
        "mcpo",
        "pypi",
        ("mcpo==0.0.20", "mcp==1.30.0", "fastapi==0.128.0"),
        "rest",
        "`--config`; a POST for each tool, no MCP; with older packages, as it does not start with those that it brings "
        "today; it has no time limit to set",
        program="mcpo",
        args=("--host", "127.0.0.1", "--port", "{port}", "--config", "{config}"),
        address="/{server}",
    ),
    Peer(
        "mcp-hub",
        "npm",
        ("mcp-hub@4.2.1",),
        "sse",
        "`--config`; it has no time limit to set (its own is 5 minutes)",
        program="mcp-hub",
        args=("--port", "{port}", "--config", "{config}"),
        tool="{server}__{tool}",
    ),
    Peer(
        "supergateway",
        "npm",
        ("supergateway@4.0.0",),
        "http",
        "one for each server, `--outputTransport streamableHttp --stateful`; it has no time limit to set",
        program="supergateway",
        args=(
            *("--stdio", "{command}", "--outputTransport", "streamableHttp", "--stateful"),
            *("--port", "{port}", "--logLevel", "none"),
        ),
        one_each=True,
    ),
    Peer(
        "mcp-proxy (npm)",
        "npm",
        ("mcp-proxy@6.7.19",),
        "http",
        "one for each server, `--server stream`, `--requestTimeout` and `--connectionTimeout` 5 s",
        program="mcp-proxy",
        args=(
            *("--host", "127.0.0.1", "--port", "{port}", "--server", "stream"),
            *("--requestTimeout", str(_MS), "--connectionTimeout", str(_MS), "--shell", "{command}"),
        ),
        one_each=True,
    ),
    Peer(
        "dcc-mcp-server",
        "pypi",
        ("dcc-mcp-server==0.20.49",),
        "http",
        "native (Rust); one for each server, `translate`, without its registry and its own gateway, "
        "`--bridge-timeout-secs` 5",
        program="dcc-mcp-server",
        args=(
            *("translate", "--stdio", "{command}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--no-register", "--no-admin", "--gateway-port", "0"),
            *("--bridge-timeout-secs", str(int(LIMIT))),
        ),
        one_each=True,
    ),
    Peer(
        "tooner",
        "npm",
        ("@chaindead/tooner_linux_amd64@0.2.6",),
        "stdio",
        "native (Go); one for each server; it has no time limit to set",
        program="tooner_linux_amd64",
        args=(_WORDS,),
        one_each=True,
    ),
    Peer("MetaMCP", "npm", ("@mentu/metamcp@0.4.0",), "stdio", "`--config`", program="metamcp"),
    Peer("1MCP", "npm", ("@1mcp/agent",), "http", "`serve --config`", program="1mcp"),
)
