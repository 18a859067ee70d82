"""What the 2026-07-28 era repeats in HTTP headers, so that middle boxes can route without reading bodies.

The headers of each request name its method, and the tool, prompt or resource it is about. A tool may ask that an
argument be mirrored, too (`protocol.mirrored`). A server refuses a request whose headers and body differ, so the
headers are made here, from the body. The specification says that a tool whose annotations break the rules must be
left out of the list: its calls could not be routed as the tool expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...protocol.jsonrpc import read_at
from ...protocol.mirrored import Path, as_text, encode_value, mirrored_in

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class ToolHeaders:
    """Which arguments of which tool are mirrored, learned from the tool lists that pass."""

    def __init__(self) -> None:
        self._mirrored: dict[str, dict[Path, str]] = {}

    def learn(self, tool: Mapping[str, Any]) -> str | None:
        """Take note of a listed tool. Returns why it has to be left out, or None."""
        name = str(tool.get("name"))
        self._mirrored.pop(name, None)
        try:
            mirrored = mirrored_in(tool.get("inputSchema"))
        except ValueError as problem:
            return str(problem)
        if mirrored:
            self._mirrored[name] = mirrored
        return None

    def headers(self, method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
        """The routing headers of one request."""
        headers = {"Mcp-Method": method}
        params = params or {}
        named = params.get(_NAMED_BY.get(method, ""))
        if isinstance(named, str):
            headers["Mcp-Name"] = encode_value(named)
            if method == "tools/call":
                headers.update(self._mirror(named, params.get("arguments")))
        return headers

    def _mirror(self, tool: str, arguments: object) -> Iterator[tuple[str, str]]:
        for path, token in self._mirrored.get(tool, {}).items():
            text = as_text(read_at(arguments, path))
            if text is not None:
                yield f"Mcp-Param-{token}", encode_value(text)
