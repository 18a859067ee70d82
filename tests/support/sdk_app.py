"""An MCP server made with the SDK over HTTP, in its own process.

    python -m tests.support.sdk_app HOST KIND

HOST is `uvicorn` (asyncio) or `hypercorn` (trio); KIND is `http` (streamable, event streams), `json` (streamable, JSON
bodies), `stateless`, `legacy` (as `http`, but knows nothing of 2026-07-28) or `sse` (2024-11-05). The port is printed,
in a line, once it listens. It ends when its stdin does.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import warnings
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context


def make_server() -> Any:
    server = MCPServer("stage", log_level="CRITICAL")
    begun: list[str] = []
    cancelled: list[str] = []

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    async def wait(seconds: float, name: str = "") -> str:
        """Waits, and remembers when it was not allowed to the end."""
        begun.append(name)
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            cancelled.append(name)
            raise
        return "waited"

    @server.tool()
    def has_begun() -> str:
        """Who has begun to wait."""
        return ",".join(begun)

    @server.tool()
    def was_cancelled() -> str:
        """Who was cancelled."""
        return ",".join(cancelled)

    @server.tool()
    async def steps(count: int, context: Context[Any]) -> str:
        """Reports progress."""
        for step in range(count):
            await context.report_progress(step + 1, count)
        return "done"

    @server.tool()
    def big(size: int) -> str:
        """Says x."""
        return "x" * size

    @server.tool()
    async def grow(context: Context[Any]) -> str:
        """Adds a tool, and says so."""
        server.add_tool(lambda: "new", name="newcomer", description="Came later")
        await context.session.send_tool_list_changed()
        await context.notify_tools_changed()
        return "grown"

    @server.resource("stage://prop/{name}")
    def prop(name: str) -> str:
        """A prop."""
        return f"a {name}"

    @server.resource("stage://programme")
    def programme() -> str:
        """What is played."""
        return "tonight: Hamlet"

    return server


def make_app(kind: str) -> Any:
    server = make_server()
    if kind == "sse":
        return server.sse_app()
    app = server.streamable_http_app(json_response=kind == "json", stateless_http=kind == "stateless")
    return _before_2026(app) if kind == "legacy" else app


def _before_2026(app: Any) -> Any:
    """The same application, but it answers requests of the newer era like servers that do not know that era."""

    async def older(scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-protocol-version", b"2026-07-28") not in scope.get("headers", ()):
            await app(scope, receive, send)
            return
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Missing session ID"}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(error).encode()})

    return older


def main(host: str, kind: str) -> None:
    warnings.simplefilter("ignore")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    print(listener.getsockname()[1], flush=True)
    (serve_with_uvicorn if host == "uvicorn" else _hypercorn)(make_app(kind), listener)


def serve_with_uvicorn(app: Any, listener: socket.socket) -> None:
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0, lifespan="on")
    )

    def watch() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[listener])


def _hypercorn(app: Any, listener: socket.socket) -> None:
    import trio
    from hypercorn.config import Config
    from hypercorn.trio import serve

    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.graceful_timeout = 0.1
    config.errorlog = None
    config.accesslog = None

    async def run() -> None:
        stop = trio.Event()

        async def watch() -> None:
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            stop.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await serve(app, config, shutdown_trigger=stop.wait)
            nursery.cancel_scope.cancel()

    trio.run(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
