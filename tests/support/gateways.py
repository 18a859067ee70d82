"""Talking to a gateway process over its standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class GatewayProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._last_id = 0

    def send(self, method: str, **params: Any) -> int:
        assert self.process.stdin is not None
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._last_id

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        self.send(method, **params)
        return self.read()

    def mcp(self, **arguments: Any) -> Any:
        return self.ask("tools/call", name="mcp", arguments=arguments)["result"]


@contextmanager
def started(*command: str, env: dict[str, str] | None = None) -> Generator[GatewayProcess]:
    """A gateway started as `python command…`. Killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        yield GatewayProcess(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
