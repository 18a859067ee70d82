"""Gateways over HTTP as processes: ours, FastMCP's proxy, and the bare ASGI server, which answers a constant.

Both gateways stand before the same echo server. Ours is shared by all sessions (`persistent`), as B15 has one server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ._far_end import COMMAND, TEXT
from ._gateways import ours
from ._http_client import HttpSide, served

OURS = "greenroom serve --http"
CONSTANT = "bare ASGI server, a constant"
FASTMCP = "FastMCP proxy over HTTP"
_PEERS = Path(__file__).with_name("_peers")


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
