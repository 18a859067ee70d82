"""One operation of Swagger 2.0 as OpenAPI 3 writes it, so that all else knows one dialect.

Only what stands in the operation itself is rewritten, when it is asked for; what it refers to stays where it is in the
document. `collectionFormat` becomes a style, the parameters of a form become a body, `consumes` and `produces` become
media types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..protocol.json_values import array_or_empty
from .document_references import Raw, is_object, member, text

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_JSON: Final = "application/json"
_FORMATS: Final[Mapping[str, tuple[str, bool]]] = {
    "csv": ("form", False),
    "ssv": ("spaceDelimited", False),
    "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("form", True),
}
_SCHEMES: Final = ("http", "https", "ws", "wss")  # all that there are
MEDIA: Final = 100  # media types of one body or answer that are looked at
_OF_PARAMETER: Final = frozenset(
    {"allowEmptyValue", "collectionFormat", "description", "in", "name", "required"}
)


def parameter(said: Raw) -> Raw:
    """A parameter in path, query or header: what describes its value goes into `schema`."""
    style, explode = _format(said)
    kept = {
        name: said[name]
        for name in ("allowEmptyValue", "description", "in", "name", "required")
        if name in said
    }
    if said.get("in") == "query" and said.get("type") == "array":
        kept |= {"style": style, "explode": explode}
    return {**kept, "schema": schema(said)}


def schema(said: Raw) -> Raw:
    """What describes the value of a parameter."""
    return {name: each for name, each in said.items() if name not in _OF_PARAMETER}


def request_body(root: Raw, operation: Raw, parameters: list[Raw]) -> Raw | None:
    """The body of the parameters in `body` or `formData`; None when there are none."""
    consumes = media_types(root, operation, "consumes")
    for said in parameters:
        if said.get("in") == "body":
            content = {media: {"schema": said.get("schema", {})} for media in consumes or [_JSON]}
            return {
                "content": content,
                "required": said.get("required") is True,
                "description": said.get("description"),
            }
    fields = [said for said in parameters if said.get("in") == "formData" and text(said, "name")]
    if not fields:
        return None
    has_file = any(said.get("type") == "file" for said in fields)
    forms = [media for media in consumes if media in (_FORM, _MULTIPART)]
    media = _MULTIPART if has_file else (forms or [_FORM])[0]
    properties = {text(said, "name"): _described(said) for said in fields}
    required = [text(said, "name") for said in fields if said.get("required") is True]
    encoding = {
        text(said, "name"): dict(zip(("style", "explode"), _format(said), strict=True))
        for said in fields
        if said.get("type") == "array"
    }
    body = {"type": "object", "properties": properties, "required": required}
    return {"content": {media: {"schema": body, "encoding": encoding}}, "required": bool(required)}


def content(root: Raw, operation: Raw, response: Raw) -> Raw:
    """What a response holds, by each media type of `produces`."""
    if not is_object(response.get("schema")):
        return {}
    produces = media_types(root, operation, "produces") or [_JSON]
    return {media: {"schema": response["schema"]} for media in produces}


def media_types(root: Raw, operation: Raw, key: str) -> list[str]:
    """What an operation consumes or produces, of its own or as the whole document says."""
    said = operation.get(key, root.get(key))
    return [each for each in array_or_empty(said)[:MEDIA] if isinstance(each, str)]


def servers(root: Raw) -> list[Raw]:
    """The servers that `schemes`, `host` and `basePath` say."""
    host, base = text(root, "host"), text(root, "basePath")
    schemes = [each for each in _SCHEMES if each in array_or_empty(root.get("schemes"))]
    if not host:
        return [{"url": base}] if base else []
    return [{"url": f"{scheme}://{host}{base}"} for scheme in schemes or ["https"]]


def security_schemes(root: Raw) -> Raw:
    """`securityDefinitions` in the words of OpenAPI 3."""
    found = dict[str, Any]()
    for name, said in member(root, "securityDefinitions").items():
        if is_object(said):
            found[name] = {**said, "type": "http", "scheme": "basic"} if said.get("type") == "basic" else said
    return found


def _format(said: Raw) -> tuple[str, bool]:
    return _FORMATS.get(text(said, "collectionFormat"), _FORMATS["csv"])


def _described(said: Raw) -> Raw:
    described = schema(said)
    return (
        {**described, "description": said["description"]}
        if isinstance(said.get("description"), str)
        else described
    )
