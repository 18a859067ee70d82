"""An MCP server made with the SDK, of both eras. It asks its client everything that a server can ask, and logs.

    python -m tests.support.sdk_asker            on stdio
    python -m tests.support.sdk_asker http       Streamable HTTP; the port is printed; it ends when its stdin does

The tool `era` returns the protocol version of its call, so a test sees in which era the server was initialized.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel


class Name(BaseModel):
    name: str


def make_server() -> Any:
    server = MCPServer("asker", log_level="CRITICAL")
    kept: list[str] = []

    @server.tool()
    def put(what: str) -> str:
        """Keeps it. Says what it has kept, and its process."""
        kept.append(what)
        return json.dumps({"pid": os.getpid(), "kept": kept})

    @server.tool()
    def reset() -> str:
        """Forgets what it has kept."""
        kept.clear()
        return "done"

    @server.tool()
    def era(context: Context[Any]) -> str:
        """The version spoken, and the process that speaks it."""
        return f"{context.protocol_version} {os.getpid()}"

    @server.tool()
    def can(context: Context[Any]) -> str:
        """What its client declared, as this call says or `initialize` said, and the version spoken."""
        declared = context.client_capabilities
        said = {} if declared is None else declared.model_dump(exclude_none=True)
        return f"{context.protocol_version} {' '.join(sorted(said))}".strip()

    @server.tool()
    async def elicit(context: Context[Any]) -> str:
        """Asks the user for a name."""
        answer: Any = await context.elicit("Who?", Name)
        return f"{answer.action} {answer.data.name if answer.action == 'accept' else ''}".strip()

    @server.tool()
    async def sample(context: Context[Any]) -> str:
        """Asks for a sampled message, and says how far the client said it was."""
        told: list[str] = []

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            told.append(f"{progress:g}/{total or 0:g} {message}")

        words = types.TextContent(type="text", text="say it")
        params = types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=words)], max_tokens=5
        )
        answer = await context.session.send_request(
            types.CreateMessageRequest(params=params), types.CreateMessageResult, progress_callback=heard
        )
        return f"{getattr(answer.content, 'text', '')} {told}"

    @server.tool()
    async def roots(context: Context[Any]) -> str:
        """Asks for the roots."""
        found = await context.session.list_roots()  # pyright: ignore[reportDeprecated]
        return " ".join(str(root.uri) for root in found.roots)

    @server.tool()
    async def log(text: str, context: Context[Any], level: Any = "warning") -> str:
        """Logs."""
        await context.log(level, text)  # pyright: ignore[reportDeprecated]
        return "logged"

    @server.tool()
    async def steps(context: Context[Any]) -> str:
        """Reports progress."""
        for step in (1, 2):
            await context.report_progress(step, 2)
        return "done"

    return server


def main(*words: str) -> None:
    warnings.simplefilter("ignore")
    server = make_server()
    if not words:
        server.run("stdio")
        return
    from tests.support.sdk_app import serve_with_uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    print(listener.getsockname()[1], flush=True)
    serve_with_uvicorn(server.streamable_http_app(), listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
