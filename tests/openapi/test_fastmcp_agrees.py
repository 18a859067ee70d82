"""Where FastMCP's OpenAPI provider sends what a document means, the same arrives from us: at a real server.

What it does otherwise is not compared: path styles other than simple, nested deepObject, `content`, `allowReserved`,
styles in forms, files, arguments that an operation does not have, and (before 4.2) lists in a path and null.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
import httpx2
from fastmcp import Client, FastMCP
from tests.openapi.test_request import DOCUMENT, TOOLS
from tests.support import run
from tests.support.rows import for_each

from greenroom.openapi.answer import to_result
from greenroom.openapi.request import build_request

CASES: list[tuple[str, dict[str, Any]]] = [
    ("simple", {"id": "a/b c", "q": "x&y=z é", "flag": True, "page": 2, "X-Trace": "t"}),
    ("simple", {"id": "1", "sid": "c1"}),
    ("form", {"a": ["1", "2 3"]}),
    ("csv", {"a": ["1", "2"]}),
    ("pipe", {"a": ["1", "2"]}),
    ("space", {"a": ["1", "2"]}),
    ("deep", {"f": {"R": 1, "G": 2}}),
    ("object", {"f": {"R": 1, "G": 2}}),
    ("clash", {"id__path": "p", "id__query": "q", "id": 3}),
    ("tree", {"name": "r", "kids": [{"name": "k"}]}),
    ("list_body", {"body": [{"name": "x"}]}),
    ("all_of", {"name": "n", "extra": "e"}),
    ("raw", {"body": "hello"}),
    ("formed", {"a": "1 &", "xs": ["p", "q"]}),
    ("text", {"body": "hello é"}),
]


def alone(tool: str) -> dict[str, Any]:
    """The document with this operation alone: FastMCP refuses all of it for one that lacks `responses`."""
    paths = {
        path: item
        for path, item in DOCUMENT["paths"].items()
        if any(isinstance(each, dict) and each.get("operationId") == tool for each in item.values())
    }
    return {**DOCUMENT, "paths": paths}


@asynccontextmanager
async def echo() -> AsyncGenerator[str]:
    """A server that answers what arrived; gives its URL."""

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            while len(body) < int(headers.get("content-length", 0)):
                body += await stream.receive()
            said = json.dumps({"first": first, "headers": headers, "body": body.decode()}).encode()
            await stream.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(said), said)
            )

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}/base"
        tasks.cancel_scope.cancel()


def meaning(arrived: dict[str, Any]) -> dict[str, Any]:
    """What a server understands of a request."""
    headers, body = arrived["headers"], arrived["body"]
    method, target, _ = arrived["first"].split(" ")
    url, media = urlsplit(target), headers.get("content-type", "").partition(";")[0]
    match media:
        case "application/json":
            body = json.loads(body)
        case "application/x-www-form-urlencoded":
            body = parse_qsl(body, keep_blank_values=True)
        case _:
            pass
    return {
        "method": method,
        "path": [unquote(part) for part in url.path.split("/")],
        "query": sorted(parse_qsl(url.query, keep_blank_values=True)),
        "headers": {name: headers.get(name) for name in ("x-trace", "cookie")},
        "media": media,
        "body": body,
    }


@for_each(("tool", "arguments"), CASES)
def test_the_same_arrives(tool: str, arguments: dict[str, Any]) -> None:
    async def body() -> None:
        async with echo() as base, httpx2.AsyncClient(base_url=base) as client:
            server = FastMCP.from_openapi(alone(tool), client=client, validate_output=False)
            async with Client(server) as theirs:
                found = await theirs.call_tool(tool, arguments)
            request = build_request(TOOLS[tool], arguments, base)
            answer = await client.request(
                request.method, request.url, headers=[*request.headers], content=request.body
            )
            ours = to_result(TOOLS[tool], answer.status_code, answer.headers, answer.content)
        assert found.structured_content is not None
        assert meaning(ours["structuredContent"]) == meaning(found.structured_content)

    run("asyncio", body)
