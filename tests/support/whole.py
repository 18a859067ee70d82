"""The server that has everything (`testing/servers/whole.py`), and our own client that talks to any server without an
SDK.

`RawClient` is pipes and JSON alone, so it gets exactly what the server wrote. Everything that passes through Greenroom
is compared with that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .forked import GREENROOM, popen_forked
from .gateway import PATIENCE
from .line_client import LineClient

WHOLE = Path(__file__).resolve().parents[2] / "src" / "greenroom" / "testing" / "servers" / "whole.py"
META = "io.modelcontextprotocol/"
MODERN = "2026-07-28"
LISTS = {
    "tools": "tools/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
    "prompts": "prompts/list",
}


def whole(name: str, *options: str) -> dict[str, Any]:
    """The entry of a server that has everything, called `name`."""
    return {"command": sys.executable, "args": ["-S", os.fspath(WHOLE), "--name", name, *options]}


def without_stamps(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without the fields of 2026-07-28 about its sender and caching, which each gateway sets anew."""
    found = {key: value for key, value in result.items() if key not in ("ttlMs", "cacheScope", "_meta")}
    meta = {key: value for key, value in result.get("_meta", {}).items() if not key.startswith(META)}
    return {**found, "_meta": meta} if meta else found


class RawClient(LineClient):
    """One server (or gateway) as a child, spoken to in either version."""

    def __init__(self, process: subprocess.Popen[bytes], *, modern: bool) -> None:
        super().__init__(process)
        self.modern = modern
        self.capabilities: dict[str, Any] = {}
        self.version = "2025-11-25"  # that it asks for in a handshake

    def initialize(self, **capabilities: Any) -> dict[str, Any]:
        self.capabilities = capabilities
        if self.modern:
            return self.result("server/discover")
        who = {"name": "raw", "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": capabilities, "clientInfo": who}
        hello = self.result("initialize", params)
        self.tell("notifications/initialized")
        return hello

    def send(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> int:
        if self.modern:
            meta |= {META + "protocolVersion": MODERN, META + "clientCapabilities": self.capabilities}
        return super().send(method, {**(params or {}), **({"_meta": meta} if meta else {})})

    def ask(self, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """The whole answer, without its id and version."""
        return self.answer(self.send(method, params, **meta))

    def result(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, **meta)

    def is_answered(self, number: int) -> bool:
        return number in self.answered

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["method"] == method]

    def list_all(self, kind: str) -> list[dict[str, Any]]:
        """Every item of a list, over all pages."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.result(LISTS[kind], {"cursor": cursor} if cursor else {})
            found += page[kind]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found


@contextmanager
def raw_client(
    command: Sequence[str],
    *,
    modern: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    leaves: bool = True,
) -> Generator[RawClient]:
    """Start `command` and talk to it. `leaves`: it must end when its input is closed; otherwise it is killed."""
    environment = {"PATH": os.environ["PATH"], **(env or {})}
    process = popen_forked(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    client = RawClient(process, modern=modern)
    try:
        yield client
        assert process.stdin is not None
        process.stdin.close()
        if leaves:
            assert process.wait(PATIENCE) == 0, f"it ended with {process.returncode}"
    finally:
        client.close()
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def raw_server(entry: Mapping[str, Any], *, modern: bool = False) -> Generator[RawClient]:
    """The server of an `mcpServers` entry, with nothing between."""
    command = [entry["command"], *entry["args"]]
    with raw_client(command, modern=modern, env=entry.get("env"), leaves=False) as client:
        yield client


@contextmanager
def direct_door(
    folder: Path,
    servers: Mapping[str, Any],
    *,
    modern: bool = False,
    expose: str = "direct",
    events: Path | None = None,
    options: Sequence[str] = (),
    **settings: Any,
) -> Generator[RawClient]:
    """`greenroom serve` over `servers`, as a process."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers, "settings": settings}))
    environment = {
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    command = [*GREENROOM, "serve", "--expose", expose, "--config", os.fspath(config)]
    command += [*options, *([] if events is None else ["--events", os.fspath(events)])]
    with raw_client(command, modern=modern, env=environment, cwd=folder) as client:
        yield client
