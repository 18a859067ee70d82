"""A client of a gateway's HTTP door, for tests without a loop. In a loop, `tests.support.http_door` has one."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx2

from .http_door import ACCEPT, HELLO, NO_CERTIFICATES, messages, request
from .patience import PATIENCE


class HttpClient:
    """One client of the door at `base` (`http://127.0.0.1:8080`), which brings `token` and `headers` with each request.
    It cannot be asked anything.

    `said` keeps each response whole, as text. `answers` has what was answered to the calls that it began.
    """

    def __init__(self, base: str, token: str, **headers: str) -> None:
        self.base = base
        self.headers = {**ACCEPT, "authorization": f"Bearer {token}", **headers}
        self.said: list[str] = []
        self.answers: list[dict[str, Any]] = []

    def send(self, verb: str, path: str, message: Any = None, **headers: str) -> httpx2.Response:
        """One request, on a connection of its own. `headers` stand in place of those it always brings."""
        answer = httpx2.request(
            verb,
            self.base + path,
            content=b"" if message is None else json.dumps(message).encode(),
            headers={**self.headers, **headers},
            timeout=PATIENCE,
            trust_env=False,
            verify=NO_CERTIFICATES,
        )
        self.said.append(f"{answer.status_code} {answer.headers} {answer.text}")
        return answer

    def initialize(self) -> None:
        opened = self.send("POST", "/mcp", request("initialize", 0, {**HELLO, "capabilities": {}}))
        assert opened.status_code == 200, opened.text
        self.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        self.send("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; empty if the door gave none."""
        said = messages(self.send("POST", "/mcp", request(method, 1, params)))
        return next((one for one in said if "id" in one and "method" not in one), {})

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def begin(self, tool: str, /, **arguments: Any) -> threading.Thread:
        """Call a tool, and go on; its answer is appended to `answers`."""
        thread = threading.Thread(target=lambda: self.answers.append(self.call(tool, **arguments)))
        thread.start()
        return thread
