"""A server and a client made with the SDK that tell OpenTelemetry their own spans, each in its own process.

    python -m tests.support.traced_app server
    python -m tests.support.traced_app client URL MODE TOOL

The collector is the one that `OTEL_EXPORTER_OTLP_ENDPOINT` names. The client calls the tool once, in a span of its own.
"""

from __future__ import annotations

import os
import sys

import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def tracer_of(service: str) -> trace.Tracer:
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer(service)


def serve() -> None:
    tracer = tracer_of("server")
    from mcp.server import MCPServer

    server = MCPServer("own", log_level="CRITICAL")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Adds."""
        with tracer.start_as_current_span("work"):
            await anyio.sleep(float(os.environ.get("WORK_SECONDS", "0")))
            return a + b

    server.run("stdio")


async def call(url: str, mode: str, tool: str) -> None:
    tracer = tracer_of("client")
    from mcp import Client

    async with Client(url, mode=mode) as client:  # pyright: ignore[reportArgumentType]
        await client.list_tools()  # the SDK wants to know them before it calls one
        arguments = {"a": 1, "b": 2}
        if tool == "mcp":
            arguments = {"tool": "own_add", "args": arguments}
        with tracer.start_as_current_span("agent"):
            result = await client.call_tool(tool, arguments)
    assert not result.is_error, result


def main(what: str, url: str = "", mode: str = "", tool: str = "") -> None:
    serve() if what == "server" else anyio.run(call, url, mode, tool)


if __name__ == "__main__":
    main(*sys.argv[1:])
