"""The contract with the SDK (`transports.in_process`, `protocol.result`), in either of its majors.

`make test` runs it with the one that is installed, `make older-sdk` with 1.x in an environment of its own: so nothing
here imports what only one of them has. A tool, progress, `_meta`, an error, a second run and typed results are shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import AsyncGenerator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.support import in_real_time, run

from greenroom import Greenroom
from greenroom.actors.transports.http_client import make_client
from greenroom.actors.transports.in_process import as_server
from greenroom.config.model import ServerDefinition

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EMPTY: dict[str, Any] = {"mcpServers": {}, "settings": {"toolPrefix": "none"}}


def _kinds() -> list[tuple[str, Any]]:
    """Each class of servers that is installed here, with its context's."""
    found: list[tuple[str, Any]] = []
    for module, name in (
        ("mcp.server.mcpserver", "MCPServer"),
        ("mcp.server.fastmcp", "FastMCP"),
        ("fastmcp", "FastMCP"),
    ):
        try:
            home = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        found.append((f"{module}.{name}", home))
    assert found
    return found


def _server(home: Any) -> Any:
    kind = getattr(home, "MCPServer", None) or home.FastMCP
    server = kind("within")

    async def steps(count: int, context: Any) -> str:
        for step in range(count):
            await context.report_progress(step + 1, count)
        meta = context.request_context.meta
        extra = meta if isinstance(meta, dict) else (meta.model_extra or {}) if meta is not None else {}
        return str(extra.get("traceparent"))

    def add(a: int, b: int) -> int:
        return a + b

    def fail() -> str:
        raise ValueError("as it should")

    steps.__annotations__["context"] = home.Context
    for function in (steps, add, fail):
        function.__annotations__ = {
            key: {"int": int, "str": str}.get(value, value) for key, value in function.__annotations__.items()
        }
        server.tool()(function)
    return server


@pytest.mark.parametrize("home", [home for _, home in _kinds()], ids=[name for name, _ in _kinds()])
@in_real_time
async def test_a_server_of_any_kind_runs_in_our_process(home: Any) -> None:
    server, progress = _server(home), list[Any]()
    async with Greenroom.open(EMPTY, cache_path=":memory:", in_process={"in": server}) as room:
        await room.connect("in")
        traced = await room.call(
            "steps", {"count": 2}, meta={"traceparent": PARENT}, on_progress=progress.append
        )
        assert (traced.text, [step["progress"] for step in progress]) == (PARENT, [1, 2])
        added = await room.call("add", {"a": 1, "b": 2})
        assert (added.text, added.is_error) == ("3", False)
        assert added.to_mcp().content[0].text == "3"  # type: ignore[union-attr]
        failed = await room.call("fail")
        assert failed.is_error
        assert "fail" in failed.text
        assert room.describe("add").to_mcp().name == "add"
        await room.restart("in")  # an object is run again
        assert (await room.call("add", {"a": 2, "b": 2})).text == "4"


def test_what_is_no_server_is_none() -> None:
    assert as_server("a text") is None
    assert as_server(object()) is None


class Vault(BaseHTTPRequestHandler):
    """Gives a token to whoever posts the password, and lets in who shows it."""

    def do_POST(self) -> None:
        told = self.rfile.read(int(self.headers["content-length"]))
        token = "sesame" if told == b"password=open" else "nothing"
        self._say(200, token.encode())

    def do_GET(self) -> None:
        is_in = self.headers.get("authorization") == "Bearer sesame"
        self._say(200 if is_in else 401, b"{}")

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _auth(web: Any, url: str) -> Any:
    """As the SDK's providers do it: on a 401 a request of its own, then the first one again."""

    class Login(web.Auth):
        requires_response_body = True

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            response = yield request
            if response.status_code == 401:
                told = yield web.Request("POST", url, content=b"password=open")
                request.headers["Authorization"] = f"Bearer {(await told.aread()).decode()}"
                yield request

    return Login()


WEBS = [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name) is not None]


@pytest.mark.parametrize("name", WEBS)
def test_a_login_speaks_either_http_library(name: str, backend: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vault)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"

    async def main() -> None:
        auth = _auth(importlib.import_module(name), url)
        async with make_client(ServerDefinition("a", url=url), auth, 5.0) as client:
            assert (await client.get(url)).status_code == 200

    try:
        run(backend, main)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
