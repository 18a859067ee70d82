"""The arguments of tools that a client of 2026-07-28 mirrors in HTTP headers.

A tool may ask, with `x-mcp-header` in its input schema, that an argument be repeated in the header `Mcp-Param-…`, so
that middle boxes can route without reading bodies. A client makes these headers from the body, and a server refuses
a request whose headers and body differ.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, cast

from .jsonrpc.incoming import read_at
from .lazy_patterns import lazy_pattern
from .safe_text import whole

ANNOTATION = "x-mcp-header"
_TOKEN = lazy_pattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN = lazy_pattern(r"[\x20-\x7E]*")
_WRAPPED = lazy_pattern(r"=\?base64\?(.*)\?=")
_NUMBER = lazy_pattern(r"(-?(?:0|[1-9][0-9]{0,20}))(?:\.0{1,20})?")
_MIRRORABLE = ("string", "integer", "boolean")  # not number: a float can be spelled in several ways
# Where a JSON Schema (2020-12) holds further schemas, by the shape of the keyword's value. Data (`default`, `enum`, …)
# and references are left out: an annotation there annotates nothing.
_ONE = (
    "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties",
    "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("patternProperties", "dependentSchemas", "$defs", "definitions")
Path = tuple[str, ...]  # the names of properties, one inside the other


def encode_value(text: str) -> str:
    """The text as a header value: unchanged where a header can carry it, otherwise in base64 and marked so."""
    if _PLAIN.fullmatch(text) and text == text.strip() and not _WRAPPED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(whole(text).encode()).decode('ascii')}?="


def decode_value(text: str) -> str | None:
    """What a header value stands for. None when its base64 is broken."""
    found = _WRAPPED.fullmatch(text)
    if found is None:
        return text
    try:
        decoded = base64.b64decode(found[1], validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == found[1] else None
    except ValueError:  # no base64, no UTF-8, or not even ASCII
        return None


def mirrored_in(schema: object) -> dict[Path, str]:
    """Property path → header token. Raises a `ValueError` that names the annotation that breaks the rules."""
    found: dict[Path, str] = {}
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


def _schemas(root: object) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Every schema in `root`, with its path where that is a plain chain of properties. A list, not recursion, because
    a server's schema may be nested to any depth."""
    waiting: list[tuple[Path | None, object]] = [((), root)]
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


def as_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def mismatch(mirrored: Mapping[Path, str], arguments: object, headers: Mapping[bytes, bytes]) -> str | None:
    """The header that contradicts the arguments of a call; None when all agree. `headers`: by lower-case name."""
    for path, token in mirrored.items():
        given = headers.get(b"mcp-param-" + token.lower().encode())
        value = read_at(arguments, path)
        text = as_text(value)
        if (given is None) != (text is None) or (
            given is not None and not _says(decode_value(given.decode("latin-1")), value, text)
        ):
            return f"Mcp-Param-{token}"
    return None


def _says(decoded: str | None, value: object, text: str | None) -> bool:
    """Whether a header's text stands for this value. Whole numbers may be written with a fraction of zeros."""
    if decoded is None or decoded == text:
        return decoded is not None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return False
    number = _NUMBER.fullmatch(decoded)
    return number is not None and value == int(value) and number[1] == str(int(value))
