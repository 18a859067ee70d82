"""Serves public OpenAPI documents whole, each against a local API that is made from it.

That API knows nothing but the document: it finds the operations whose path and method fit a request, and answers with
their ids. Each operation of the document is called once, with what its schema asks for, and the answer must name it. So
what is tried is the way from a document to a tool and from arguments to a request; no request leaves this machine.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import attrs

from greenroom import Greenroom
from greenroom.openapi.document import read_document
from greenroom.protocol.errors import CallError

from ._install import InstallFailed, install
from ._table import Api

_NAMED = 5  # operations that a problem names
_DEEPEST = 6
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "QUERY")


@attrs.define
class ApiRow:
    name: str
    pin: str
    operations: int = 0
    reached: int = 0
    listed_after: float = 0.0  # seconds
    problems: list[str] = attrs.field(factory=list[str])


async def play_apis(apis: Sequence[Api], folder: Path) -> list[ApiRow]:
    return [await _played(api, folder) for api in apis]


async def _played(api: Api, folder: Path) -> ApiRow:
    row = ApiRow(api.name, api.pin)
    try:
        home = install("apis", api.pin, "npm alone", [api.pin])
    except InstallFailed as problem:
        row.problems.append(f"not installed: {problem}")
        return row
    file = home / "package" / api.place
    operations = read_document(file.read_bytes(), str(file)).operations
    row.operations = len(operations)
    places = [
        (each.method, each.path.partition("#")[0].partition("?")[0], name)
        for name, each in operations.items()
    ]
    with _served(places) as url:
        entry = {"openapi": str(file), "baseUrl": url, "maxInFlight": 32}
        settings = {"toolPrefix": "none", "nameLimit": 128}
        began = time.monotonic()
        config = {"mcpServers": {"api": entry}, "settings": settings}
        async with Greenroom.open(config, cache_path=folder / "apis" / f"{api.name}.json") as room:
            await room.connect("api")
            row.listed_after = time.monotonic() - began
            tools = {tool.original: tool for tool in room.tools(server="api")}
            if missing := operations.keys() - tools.keys():
                row.problems.append(f"not listed: {_few(missing)}")
            await _call_each(row, room, tools)
    return row


async def _call_each(row: ApiRow, room: Greenroom, tools: Mapping[str, Any]) -> None:
    wrong = list[str]()
    for name, tool in tools.items():
        schema: Any = tool.input_schema
        try:
            result = await room.call(tool.name, _sample(schema, schema, 0), server="api")
        except CallError as error:
            wrong.append(f"{name} ({error.code})")
            continue
        said: Any = result.structured or {}
        if tool.record["annotations"].get("readOnlyHint") and not said and not result.is_error:
            row.reached += 1  # an answer to HEAD has no body
        elif name in said.get("operations", ()):
            row.reached += 1
        else:
            wrong.append(f"{name} ({result.text[:100]})")
    if wrong:
        row.problems.append(f"{len(wrong)} not reached: {_few(wrong)}")


def _few(names: Any) -> str:
    return ", ".join(sorted(names)[:_NAMED])


def _sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    """A value that fits the schema, with nothing that may be left out."""
    if depth > _DEEPEST:
        return {}
    if isinstance(reference := schema.get("$ref"), str):
        return _sample(_object(_object(root.get("$defs")).get(reference.rpartition("/")[2])), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if choices := schema.get("enum"):
        return choices[0]
    for key in ("oneOf", "anyOf", "allOf"):
        if schema.get(key) and "properties" not in schema:
            return _sample(_object(schema[key][0]), root, depth + 1)
    return _of_kind(_kind(schema), schema, root, depth)


def _kind(schema: Mapping[str, Any]) -> str:
    said: Any = schema.get("type", "object" if "properties" in schema else "string")
    return said if isinstance(said, str) else next((each for each in said if each != "null"), "null")


def _of_kind(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            known = _object(schema.get("properties"))
            needed: Sequence[str] = schema.get("required", ())
            return {name: _sample(_object(known.get(name)), root, depth + 1) for name in needed}
        case "array":
            return [_sample(_object(schema.get("items")), root, depth + 1)]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "a" * max(1, int(schema.get("minLength", 1)))


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


@contextmanager
def _served(places: Sequence[tuple[str, str, str]]) -> Generator[str]:
    """The base URL of an API with these operations: method, path and name."""
    by_method: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for method, path, name in places:
        parts = re.split(r"\{[^{}]*\}", path)
        pattern = re.compile("/base" + "[^/]*".join(map(re.escape, parts)))
        by_method.setdefault(method, []).append((pattern, name))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def take(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = urlsplit(self.path).path
            fits = [name for pattern, name in by_method.get(self.command, ()) if pattern.fullmatch(path)]
            body = json.dumps({"operations": fits}).encode()
            self.send_response(200 if fits else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

    for method in _METHODS:
        setattr(Handler, f"do_{method}", Handler.take)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/base"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
