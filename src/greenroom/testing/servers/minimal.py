"""The smallest honest MCP server: one loop over stdin, tools and resources as plain functions.

It speaks the handshake protocol over stdio and nothing else: a method it does not have is answered with -32601, which
is also how a client finds out that it has to say `initialize`. One request at a time, in order; a demo needs no
more. It uses only the standard library, so a child is up in the time the interpreter takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602

Json = dict[str, Any]


class ToolError(Exception):
    """Raised by a tool that cannot do what was asked; told to the caller as `isError`."""


class MinimalTool(NamedTuple):
    """One tool: `run` takes the arguments object and returns text, or a dict for a structured answer."""

    description: str
    properties: Mapping[str, Mapping[str, Any]]
    run: Callable[[Json], str | Json]
    required: tuple[str, ...] = ()
    read_only: bool = False


class Resource(NamedTuple):
    """One resource, as text."""

    name: str
    description: str
    read: Callable[[], str]


class RequestError(Exception):
    """A request that ends in a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(
    name: str, tools: Mapping[str, MinimalTool], resources: Mapping[str, Resource] | None = None
) -> None:
    """Answer requests from stdin on stdout until stdin ends."""
    server = _Server(name, tools, resources or {})
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(json.dumps(server.answer(message)), flush=True)


class _Server:
    def __init__(
        self, name: str, tools: Mapping[str, MinimalTool], resources: Mapping[str, Resource]
    ) -> None:
        self._name = name
        self._tools = tools
        self._resources = resources
        self._methods: dict[str, Callable[[Json], Json]] = {
            "initialize": self._initialize,
            "ping": lambda _params: {},
            "tools/list": self._list_tools,
            "tools/call": self._call,
        }
        if resources:
            self._methods |= {"resources/list": self._list_resources, "resources/read": self._read}

    def answer(self, message: Json) -> Json:
        head = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            method = self._methods.get(message["method"])
            if method is None:
                raise RequestError(METHOD_NOT_FOUND, f"Method not found: {message['method']}")
            return {**head, "result": method(message.get("params") or {})}
        except RequestError as error:
            return {**head, "error": {"code": error.code, "message": str(error)}}

    def _initialize(self, params: Json) -> Json:
        asked = params.get("protocolVersion")
        capabilities: Json = {"tools": {}, **({"resources": {}} if self._resources else {})}
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": capabilities,
            "serverInfo": {"name": self._name, "version": "1.0"},
        }

    def _list_tools(self, _params: Json) -> Json:
        return {"tools": [_described(name, tool) for name, tool in self._tools.items()]}

    def _call(self, params: Json) -> Json:
        tool = self._tools.get(params.get("name", ""))
        if tool is None:
            raise RequestError(INVALID_PARAMS, f"Unknown tool: {params.get('name')}")
        arguments: Json = params.get("arguments") or {}
        try:
            _check(tool, arguments)
            return _result(tool.run(arguments))
        except ToolError as error:
            return {**_result(str(error)), "isError": True}

    def _list_resources(self, _params: Json) -> Json:
        return {
            "resources": [
                {"uri": uri, "name": it.name, "description": it.description, "mimeType": "text/plain"}
                for uri, it in self._resources.items()
            ]
        }

    def _read(self, params: Json) -> Json:
        uri = params.get("uri", "")
        if uri not in self._resources:
            raise RequestError(INVALID_PARAMS, f"Unknown resource: {uri}")
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": self._resources[uri].read()}]}


def _described(name: str, tool: MinimalTool) -> Json:
    return {
        "name": name,
        "description": tool.description,
        "inputSchema": {
            "type": "object",
            "properties": dict(tool.properties),
            "required": list(tool.required),
        },
        "annotations": {"readOnlyHint": tool.read_only},
    }


def _check(tool: MinimalTool, arguments: Json) -> None:
    missing = [name for name in tool.required if name not in arguments]
    if missing:
        raise ToolError(f"missing argument: {', '.join(missing)}")


def _result(value: str | Json) -> Json:
    if isinstance(value, str):
        return {"content": [{"type": "text", "text": value}]}
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
