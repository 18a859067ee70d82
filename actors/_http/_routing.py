"""What the 2026-07-28 era repeats in HTTP headers, so that middle boxes can route without reading bodies.

The headers of each request name its method, and the tool, prompt or resource it is about. A tool may ask, with
`x-mcp-header` in its input schema, that an argument be mirrored in a header too. A server refuses a request whose
headers and body differ, so the headers are made here, from the body. The specification says that a tool whose
annotations break the rules must be left out of the list: its calls could not be routed as the tool expects.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...protocol.halves import whole

ANNOTATION = "x-mcp-header"

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN = re.compile(r"[\x20-\x7E]*")
_WRAPPED = re.compile(r"=\?base64\?.*\?=")
_MIRRORABLE = ("string", "integer", "boolean")  # not number: a float can be spelled in several ways

# Where a JSON Schema (2020-12) holds further schemas, by the shape of the keyword's value. Data (`default`, `enum`, …)
# and references are left out: an annotation there annotates nothing.
_ONE = (
    "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties",
    "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("patternProperties", "dependentSchemas", "$defs", "definitions")

_Path = tuple[str, ...]


class ToolHeaders:
    """Which arguments of which tool are mirrored, learned from the tool lists that pass."""

    def __init__(self) -> None:
        self._mirrored: dict[str, dict[_Path, str]] = {}

    def learn(self, tool: Mapping[str, Any]) -> str | None:
        """Take note of a listed tool. Returns why it has to be left out, or None."""
        name = str(tool.get("name"))
        self._mirrored.pop(name, None)
        try:
            mirrored = _annotations(tool.get("inputSchema"))
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
            text = _as_text(_at(arguments, path))
            if text is not None:
                yield f"Mcp-Param-{token}", encode_value(text)


def encode_value(text: str) -> str:
    """The text as a header value: unchanged where a header can carry it, otherwise in base64 and marked so."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(whole(text).encode()).decode('ascii')}?="


def _annotations(schema: object) -> dict[_Path, str]:
    """Property path → header token. Raises a `ValueError` that names the annotation that breaks the rules."""
    found: dict[_Path, str] = {}
    seen: set[str] = set()
    for path, node in _schemas(schema):
        if ANNOTATION not in node:
            continue
        if not path:
            raise ValueError(f"an {ANNOTATION} is not on a property of the arguments")
        token = node[ANNOTATION]
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ValueError(f"the {ANNOTATION} of {'.'.join(path)!r} is not a header name")
        if node.get("type") not in _MIRRORABLE:
            raise ValueError(
                f"{'.'.join(path)!r} has an {ANNOTATION} but is not a string, integer or boolean"
            )
        if token.lower() in seen:
            raise ValueError(f"the {ANNOTATION} {token!r} is there twice")
        seen.add(token.lower())
        found[path] = token
    return found


def _schemas(root: object) -> Iterator[tuple[_Path | None, dict[str, Any]]]:
    """Every schema in `root`, with its path where that is a plain chain of properties. A list, not recursion, because
    a server's schema may be nested to any depth."""
    waiting: list[tuple[_Path | None, object]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        schema = cast("dict[str, Any]", node)
        yield path, schema
        waiting += (
            (None if path is None else (*path, name), sub) for name, sub in _named(schema, "properties")
        )
        waiting += ((None, schema.get(keyword)) for keyword in _ONE)
        waiting += ((None, sub) for keyword in _MANY for sub in _listed(schema, keyword))
        waiting += ((None, sub) for keyword in _NAMED for _, sub in _named(schema, keyword))


def _named(schema: dict[str, Any], keyword: str) -> list[tuple[str, object]]:
    value = schema.get(keyword)
    return list(cast("dict[str, object]", value).items()) if isinstance(value, dict) else []


def _listed(schema: dict[str, Any], keyword: str) -> list[object]:
    value = schema.get(keyword)
    return cast("list[object]", value) if isinstance(value, list) else []


def _at(arguments: object, path: _Path) -> object:
    for key in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = cast("Mapping[str, object]", arguments).get(key)
    return arguments


def _as_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
