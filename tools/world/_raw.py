"""A client that adds nothing: JSON-RPC lines to a process and back.

The answers of a server through the gateway are compared with its answers without it. So the client must not be our own,
and not an SDK, which drops fields that it does not know.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

PROTOCOL = "2025-11-25"
PATIENCE = 60.0  # seconds for one answer, unless said otherwise
MOST_PAGES = 100
LINE = 64 * 1024 * 1024


class RequestFailed(Exception):
    """A peer answered with an error, or not at all."""


class RawClient:
    """One process that speaks MCP on its standard streams. Sends only what the caller asks."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._command = command
        self._env = env
        self._cwd = cwd
        self._number = 0
        self._errors: bytearray = bytearray()

    async def __aenter__(self) -> RawClient:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self._env),
            cwd=self._cwd,
            limit=LINE,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read_errors())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):
            self._errors += data
            del self._errors[:-8192]

    @property
    def said(self) -> str:
        """The end of what it wrote to stderr."""
        return self._errors.decode(errors="replace").strip()

    async def initialize(self, patience: float = PATIENCE) -> Mapping[str, Any]:
        """Do the handshake as a client that declares no capabilities."""
        info = {"name": "world", "version": "1"}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": info}
        result = await self.ask("initialize", params, patience)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, patience: float = PATIENCE
    ) -> Mapping[str, Any]:
        """The result of one request. Raises `RequestFailed`."""
        self._number += 1
        key = self._number
        self._send({"jsonrpc": "2.0", "id": key, "method": method, "params": params or {}})
        try:
            async with asyncio.timeout(patience):
                return await self._answer_to(key)
        except TimeoutError:
            raise RequestFailed(f"no answer to {method} within {patience:g} s; {self.said[-300:]}") from None
        except (BrokenPipeError, ConnectionResetError) as error:
            raise RequestFailed(f"{error!r}: {self.said[-300:]}") from None

    async def list_all(self, method: str, key: str, patience: float = PATIENCE) -> list[Mapping[str, Any]]:
        """Every page of a list."""
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self.ask(method, {"cursor": cursor} if cursor else None, patience)
            found += page[key]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    async def leave(self, patience: float = 10.0) -> tuple[int, float]:
        """Close its stdin. Returns its exit code and the seconds it took to end. Raises `RequestFailed`."""
        assert self._process.stdin is not None
        began = time.monotonic()
        self._process.stdin.close()
        try:
            async with asyncio.timeout(patience):
                code = await self._process.wait()
        except TimeoutError:
            raise RequestFailed(f"still there {patience:g} s after its stdin was closed") from None
        return code, time.monotonic() - began

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _answer_to(self, key: int) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        while True:
            line = await self._process.stdout.readline()
            if not line:
                raise RequestFailed(f"it ended: {self.said[-300:]}")
            message = _object(line)
            if message is None:
                continue  # a banner
            if "method" in message and "id" in message:  # it may ask for a ping, nothing else
                refused = {"error": {"code": -32601, "message": "not here"}}
                answer: Mapping[str, Any] = {"result": {}} if message["method"] == "ping" else refused
                self._send({"jsonrpc": "2.0", "id": message["id"], **answer})
            elif message.get("id") == key and "method" not in message:
                if "error" in message:
                    raise RequestFailed(json.dumps(message["error"]))
                return message["result"]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None
