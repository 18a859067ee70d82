"""Gateways over HTTP as processes: ours, FastMCP's proxy, a native proxy where it could be installed, and a bare
protocol, which answers a constant.

All gateways stand before the same echo server. Ours is shared by all sessions (`persistent`), as B15 has one server.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ._far_end import COMMAND, TEXT
from ._gateways import PEERS, ours
from ._http_client import HttpSide, served

OURS = "greenroom serve --http"
CONSTANT = "bare protocol, a constant"
NATIVE = "dcc-mcp-server 0.20.49"  # in Rust
FASTMCP = "FastMCP proxy over HTTP"
_PEERS = Path(__file__).with_name("_peers")
_DCC = PEERS / "dcc" / "bin" / "dcc-mcp-server"


@attrs.frozen
class HttpGateway:
    """How to start one (PORT stands for its port), and how to call `echo` through it."""

    name: str
    command: tuple[str, ...]
    tool: str = "echo"
    arguments: Mapping[str, Any] = attrs.field(factory=lambda: dict(TEXT))
    env: Mapping[str, str] | None = None

    @contextmanager
    def served(self) -> Generator[HttpSide]:
        with served(self.name, self.command, self.tool, self.arguments, self.env) as side:
            yield side


def ours_over_http(home: Path, *, max_sessions: int = 1000) -> HttpGateway:
    """`greenroom serve --http --expose direct`, configured under `home`."""
    gateway = ours(home, expose="direct")
    config = home / "mcp.json"
    read = json.loads(config.read_text(encoding="utf-8"))
    for server in read["mcpServers"].values():
        server["isolation"] = "persistent"
    read["settings"] = {**read.get("settings", {}), "http": {"maxSessions": max_sessions}}
    config.write_text(json.dumps(read), encoding="utf-8")
    command = (*gateway.command, "--http", "127.0.0.1:PORT")
    return HttpGateway(OURS, command, gateway.tool, gateway.arguments, gateway.env)


def fastmcp_over_http() -> HttpGateway:
    return HttpGateway(
        FASTMCP, (sys.executable, str(_PEERS / "fastmcp_proxy.py"), "--http", "PORT", *COMMAND)
    )


def constant() -> HttpGateway:
    return HttpGateway(CONSTANT, (sys.executable, str(_PEERS / "constant.py"), "PORT"))


def native_over_http() -> HttpGateway | None:
    """A native proxy, without its registry and its own gateway; None where the index did not bring it."""
    alone = ("--no-register", "--no-admin", "--gateway-port", "0")
    command = (str(_DCC), "translate", "--stdio", shlex.join(COMMAND), "--port", "PORT", *alone)
    return HttpGateway(NATIVE, command) if _DCC.is_file() else None
