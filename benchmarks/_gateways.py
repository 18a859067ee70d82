"""Gateways as commands: ours, a bare forwarder, FastMCP's proxy, and MetaMCP and tooner where they could be installed.

All stand before the same echo server, and all are driven by the same bare client (`WireClient`).
"""

from __future__ import annotations

import compileall
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

import greenroom

from ._far_end import COMMAND, TEXT, config_of, echo_server

PACKAGE = Path(greenroom.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".build" / "peers"
METAMCP = PEERS / "node_modules" / "@mentu" / "metamcp" / "dist" / "index.js"
TOONER = PEERS / "node_modules" / "@chaindead" / "tooner_linux_amd64" / "tooner"
NATIVE = "tooner 0.2.6"  # in Go
EXPOSURES = ("direct", "proxy")  # the ways in which `greenroom serve` shows tools that are measured


@attrs.frozen
class Gateway:
    """How to start one, and how to call `echo` through it."""

    name: str
    command: tuple[str, ...]
    tool: str = "echo"
    arguments: Mapping[str, Any] = attrs.field(factory=lambda: dict(TEXT))
    env: Mapping[str, str] | None = None


NO_GATEWAY = Gateway("no gateway", COMMAND)


def ours(home: Path, *, servers: int = 1, expose: str = "proxy") -> Gateway:
    """`greenroom serve` with a cache of its own under `home`, and its bytecode at hand.

    An installed package has that, like the peers here; a checkout may have none, and would be compiled at each start.
    """
    heart = (ROOT / room for room in ("actors", "protocol", "supervisor"))
    for room in (PACKAGE, *filter(Path.is_dir, (*PACKAGE.iterdir(), *heart))):
        compileall.compile_dir(room, quiet=2)
    config = home / "mcp.json"
    config.write_text(json.dumps(config_of(servers)), encoding="utf-8")
    command = (sys.executable, "-m", "greenroom", "serve", "--config", str(config), "--expose", expose)
    env = {**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "XDG_RUNTIME_DIR": str(home)}
    name = f"greenroom serve --expose {expose}"
    if expose == "direct":
        return Gateway(name, command, "echo0_echo", env=env)
    return Gateway(name, command, "mcp", {"tool": "echo0_echo", "args": TEXT}, env)


def forwarders() -> tuple[Gateway, ...]:
    """The barest middle there is in Python, on each loop: the limit of what can be had."""
    program = str(Path(__file__).with_name("_peers") / "forwarder.py")
    return tuple(
        Gateway(f"bare forwarder, {loop}", (sys.executable, program, loop, *COMMAND))
        for loop in ("asyncio", "trio")
    )


def fastmcp() -> Gateway:
    """FastMCP's proxy. It names a single server's tool as the server does."""
    program = Path(__file__).with_name("_peers") / "fastmcp_proxy.py"
    return Gateway("FastMCP proxy", (sys.executable, str(program), *COMMAND))


def metamcp(home: Path) -> Gateway | None:
    """MetaMCP, called through its `mcp_call`; None where npm did not bring it."""
    if not METAMCP.is_file():
        return None
    config = home / "metamcp.json"
    config.write_text(json.dumps({"mcpServers": {"echo": echo_server()}}), encoding="utf-8")
    command = ("node", str(METAMCP), "--config", str(config))
    arguments = {"server": "echo", "tool": "echo", "args": TEXT}
    return Gateway("MetaMCP", command, "mcp_call", arguments, {**os.environ, "HOME": str(home)})


def native() -> Gateway | None:
    """A native proxy, which also makes results shorter; None where npm did not bring it. It names a tool as the server
    does."""
    return Gateway(NATIVE, (str(TOONER), *COMMAND)) if TOONER.is_file() else None
