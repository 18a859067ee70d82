"""An HTTP server in a thread that misbehaves on command.

It speaks MCP well enough to be connected (the handshake era with sessions, or 2026-07-28). Each of its tools answers in
its own way: `ok` correctly, `slow` when the test releases it, and every tool in `FAULTS` as its row of the failure
table says. `requests` keeps everything that came in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
from tests.support.staged_http import Stage, StagedHandler, served

from .patience import PATIENCE

MODERN = "2026-07-28"
MIB = 1 << 20


@attrs.frozen
class Seen:
    """One request as it came in."""

    verb: str
    headers: dict[str, str]  # names in lower case
    message: Any  # the decoded body, or None

    @property
    def method(self) -> str:
        return self.message.get("method", "") if isinstance(self.message, dict) else ""


class RawHttp(Stage):
    """What the test holds. `hook(handler, seen)` may answer first; it returns True when it did."""

    def __init__(self, era: str) -> None:
        super().__init__()
        self.era = era
        self.requests: list[Seen] = []
        self.sessions: set[str] = set()
        self.made = 0
        self.tools: list[dict[str, Any]] = [_tool(name) for name in ("ok", "slow", *FAULTS)]
        self.hook: Callable[[Handler, Seen], bool] | None = None
        self.asked = 0  # the id of a call, for a hook that answers it later

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def is_modern(self) -> bool:
        return self.era == MODERN

    def methods(self) -> list[str]:
        return [seen.method for seen in self.requests if seen.verb == "POST"]

    def forget_sessions(self) -> None:
        """Forget all sessions, as a restart does."""
        self.sessions.clear()


@contextmanager
def raw_http(era: str = "2025-11-25", port: int = 0) -> Generator[RawHttp]:
    """A server on loopback. Every connection is closed at the end."""
    stage = RawHttp(era)
    with served(stage, Handler, port):
        yield stage


class Handler(StagedHandler):
    @property
    def stage(self) -> RawHttp:
        return super().stage

    def do_GET(self) -> None:  # noqa: N802
        if not self._hooked(None):
            self.say(405)

    def do_DELETE(self) -> None:  # noqa: N802
        if not self._hooked(None):
            self.stage.sessions.discard(self.headers.get("Mcp-Session-Id", ""))
            self.say(200)

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        message = json.loads(body)
        if self._hooked(message):
            return
        method, session = message.get("method", ""), self.headers.get("Mcp-Session-Id")
        if self.stage.is_modern != (self.headers.get("MCP-Protocol-Version") == MODERN):
            self.error(message, -32000, "Bad Request: Server not initialized", status=400)
        elif not self.stage.is_modern and method != "initialize" and session not in self.stage.sessions:
            self.error(message, -32001, "Session not found", status=404)
        elif "id" not in message or not method:
            self.say(202)
        else:
            self._answer(message, method)

    def _hooked(self, message: Any) -> bool:
        seen = Seen(self.command, {name.lower(): value for name, value in self.headers.items()}, message)
        self.stage.requests.append(seen)
        return self.stage.hook is not None and self.stage.hook(self, seen)

    def _answer(self, message: Any, method: str) -> None:
        capabilities = {"tools": {"listChanged": True}}
        if method == "initialize":
            self.stage.made += 1
            session = f"session-{self.stage.made}"
            self.stage.sessions.add(session)
            result = {
                "protocolVersion": self.stage.era,
                "capabilities": capabilities,
                "serverInfo": {"name": "raw", "version": "1"},
            }
            self.result(message, result, headers={"Mcp-Session-Id": session})
        elif method == "server/discover":
            self.result(message, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}})
        elif method == "tools/list":
            self.result(message, {"tools": self.stage.tools})
        elif method == "tools/call":
            self._call(message, message["params"]["name"])
        else:
            self.error(message, -32601, f"Method not found: {method}")

    def _call(self, message: Any, name: str) -> None:
        if name in FAULTS:
            FAULTS[name](self, message)
            return
        if name == "slow":
            self.stage.release.wait(PATIENCE)
        self.result(message, text(name))

    # -- ways to answer --

    def result(self, message: Any, result: Any, headers: dict[str, str] | None = None) -> None:
        self.json({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    def error(
        self, message: Any, code: int, text: str, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": text}}
        self.json(answer, status, headers)

    def begin_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, value: Any = None, **fields: Any) -> None:
        lines = [f"{name}: {value}" for name, value in fields.items()]
        if value is not None:
            lines.append(f"data: {json.dumps(value)}")
        self.wfile.write(("\n".join(lines) + "\n\n").encode())
        self.wfile.flush()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"{name} it is", "inputSchema": {"type": "object"}}


# ---- the rows of the failure table ---------------------------------------------------------------------------------

Fault = Callable[[Handler, Any], None]
FAULTS: dict[str, Fault] = {}


def _fault(behave: Fault) -> Fault:
    FAULTS[behave.__name__] = behave
    return behave


@_fault
def status_500(handler: Handler, message: Any) -> None:
    handler.say(500, b"out of ink")


@_fault
def status_404_unknown_method(handler: Handler, message: Any) -> None:
    handler.error(message, -32601, "no such thing", status=404 if handler.stage.is_modern else 400)


@_fault
def html(handler: Handler, message: Any) -> None:
    handler.say(200, b"<html><body>Hello!</body></html>", "text/html; charset=utf-8")


@_fault
def broken_json(handler: Handler, message: Any) -> None:
    handler.say(200, b'{"jsonrpc": "2.0", "id": 1, "result": {', "application/json")


@_fault
def accepted(handler: Handler, message: Any) -> None:
    handler.say(202)


@_fault
def wrong_id(handler: Handler, message: Any) -> None:
    handler.json({"jsonrpc": "2.0", "id": message["id"] + 1000, "result": text("for somebody else")})


@_fault
def wrong_id_on_a_stream(handler: Handler, message: Any) -> None:
    handler.begin_events()
    handler.event({"jsonrpc": "2.0", "id": message["id"] + 1000, "result": text("for somebody else")})


@_fault
def no_result(handler: Handler, message: Any) -> None:
    handler.json({"jsonrpc": "2.0", "id": message["id"]})


@_fault
def stream_ends_early(handler: Handler, message: Any) -> None:
    handler.begin_events()
    handler.wfile.write(b": nothing yet\n\n")


@_fault
def long_event(handler: Handler, message: Any) -> None:
    handler.begin_events()
    handler.event({"jsonrpc": "2.0", "id": message["id"], "result": text("x" * 2 * MIB)})


@_fault
def long_body(handler: Handler, message: Any) -> None:
    handler.result(message, text("x" * 2 * MIB))


@_fault
def junk_event(handler: Handler, message: Any) -> None:
    handler.begin_events()
    handler.wfile.write(b"data: not JSON at all\n\n")


@_fault
def dropped(handler: Handler, message: Any) -> None:
    handler.cut()


@_fault
def truncated(handler: Handler, message: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"jsonrpc"')
    handler.cut()


@_fault
def no_http(handler: Handler, message: Any) -> None:
    handler.wfile.write(b"I do not speak this\r\n\r\n")
    handler.close_connection = True


@_fault
def redirected_elsewhere(handler: Handler, message: Any) -> None:
    handler.say(307, headers={"Location": "http://192.0.2.1/mcp"})


@_fault
def silent(handler: Handler, message: Any) -> None:
    """Headers, and then nothing for as long as anybody listens."""
    handler.begin_events()
    with suppress(OSError):
        handler.connection.settimeout(PATIENCE)
        handler.connection.recv(1)
    time.sleep(0)
