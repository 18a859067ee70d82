"""Tools written by hand: a method, a path and some parameters, for an API without a document.

They become the same operations as those of a document, so there is one way from arguments to a request. The form is
that of mcp-gateway's adapter (`params`, by argument), with a shorter one beside it: an `inputSchema`, whose properties
go where they belong. Those that the path names go there; the others into the query of a method without a body, and into
a JSON body otherwise. Of `params`, those in the body are members of a JSON object, but one that is called `body` is the
body itself.

Unlike a document, this is what the owner wrote, so whatever is wrong with it is a problem that names its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from ..protocol.errors import Problem
from ..protocol.json_values import array_or_empty
from ..protocol.near_names import meant
from .document_references import Raw, is_object, member, text
from .inputs import (
    BODY,
    STYLES_AT,
    ApiParameter,
    BodyInput,
    Inputs,
    Property,
    fault_of,
    fault_of_header,
    fault_of_path,
    made,
    template_names,
)
from .operation import READS, DocumentSource, Operation

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEYS: Final = (
    "body", "description", "headers", "inputSchema", "method", "outputSchema", "params", "path", "title",
)  # fmt: skip
_PARAM_KEYS: Final = (
    "allowReserved", "default", "description", "explode", "in", "name", "required", "schema", "style",
)  # fmt: skip
_BODY_KEYS: Final = ("description", "encoding", "mediaType", "required", "schema")
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_OBJECTS: Final = ("body", "headers", "inputSchema", "outputSchema", "params")
_TEXTS: Final = ("description", "method", "path", "title")
_JSON: Final = "application/json"


def read_tools(declared: Mapping[str, Any], where: str) -> tuple[dict[str, Operation], list[Problem]]:
    """The operations of tools written by hand, by name, and what is wrong with others, which are left out. `where`: the
    place of `declared`, such as `mcp.json: mcpServers.x.http.tools`."""
    found, problems = dict[str, Operation](), list[Problem]()
    for name, said in declared.items():
        faults = [Problem(f"{where}.{name}{place}", what) for place, what in _faults(name, said)]
        if not faults:
            try:
                found[name] = _operation(name, cast("Raw", said))
            except _HttpToolFault as fault:
                faults.append(Problem(f"{where}.{name}.{fault.place}", str(fault)))
        problems += faults
    return found, problems


class _HttpToolFault(Exception):
    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.place = place


def _faults(name: str, said: object) -> Iterator[tuple[str, str]]:
    """What is wrong with the shape of a tool: where in it, and what."""
    if not _NAME.fullmatch(name):
        yield "", "is not a name of a tool: use letters, digits, - and _, at most 64"
    if not is_object(said):
        yield "", "is not an object"
        return
    yield from _unknown("", said, _KEYS)
    for key in _OBJECTS:
        if key in said and not is_object(said[key]):
            yield f".{key}", "is not an object"
    for key in _TEXTS:
        if key in said and not isinstance(said[key], str):
            yield f".{key}", "is not text"
    if text(said, "method").upper() not in _METHODS:
        yield ".method", f"is none of {', '.join(_METHODS)}"
    if "path" not in said:
        yield "", "needs a path (below the server's baseUrl)"
    elif isinstance(said["path"], str) and (fault := fault_of_path(said["path"])):
        yield ".path", fault
    if "inputSchema" in said and "params" in said:
        yield "", "has inputSchema and params, which say the same: leave one out"
    for header, value in member(said, "headers").items():
        fault = fault_of_header(str(header), value) if isinstance(value, str) else "is not text"
        if fault:
            yield f".headers.{header}", fault


def _unknown(place: str, said: Raw, known: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key in said:
        if key not in known:
            yield (
                f"{place}.{key}",
                f"is not known here.{meant(str(key), known)} There are: {', '.join(known)}",
            )


def _operation(name: str, said: Raw) -> Operation:
    method, path = text(said, "method").upper(), text(said, "path")
    outputs = (
        {"200": {"content": {_JSON: {"schema": said["outputSchema"]}}}} if "outputSchema" in said else {}
    )
    return Operation(
        name=name,
        method=method,
        path=path,
        title=text(said, "title"),
        description=text(said, "description") or text(said, "title") or f"{method} {path.partition('?')[0]}",
        tags=(),
        operation_id="",
        source=DocumentSource(member(said, "inputSchema")),
        kept={method: {"responses": outputs}},
        place=(method,),
        own_headers=cast("Mapping[str, str]", member(said, "headers")),
        known_inputs=_from_schema(said, method, path) if "inputSchema" in said else _from_params(said, path),
    )


def _from_schema(said: Raw, method: str, path: str) -> Inputs:
    """The inputs of a tool that has one schema for all arguments."""
    schema = member(said, "inputSchema")
    required = array_or_empty(schema.get("required"))
    in_path, properties = set(template_names(path)), member(schema, "properties")
    of_body = dict[str, Property]()
    parameters = list[ApiParameter]()
    has_body = method not in READS and method != "DELETE"
    for name, each in {**{key: {"type": "string"} for key in in_path}, **properties}.items():
        if has_body and name not in in_path:
            of_body[name] = Property(name, each, name in required)
        else:
            place = "path" if name in in_path else "query"
            parameters.append(_parameter(name, {"schema": each, "required": name in required}, place, path))
    return Inputs(tuple(parameters), _body(said, of_body))


def _from_params(said: Raw, path: str) -> Inputs:
    """The inputs of a tool whose arguments are declared one by one."""
    parameters, of_body = list[ApiParameter](), dict[str, Property]()
    whole: Raw | None = None
    for argument, each in member(said, "params").items():
        place = f"params.{argument}"
        if not is_object(each):
            raise _HttpToolFault(place, "is not an object")
        for where, what in _unknown("", each, _PARAM_KEYS):
            raise _HttpToolFault(f"{place}{where}", what)
        if text(each, "in") == BODY and argument == BODY == (text(each, "name") or argument):
            whole = each
        elif text(each, "in") == BODY:
            of_body[argument] = Property(
                text(each, "name") or argument,
                _schema_of(each),
                each.get("required") is True,
                each.get("default"),
            )
        else:
            parameters.append(_parameter(argument, each, text(each, "in"), path))
    declared = {each.name for each in parameters if each.place == "path"}
    parameters += [
        _parameter(name, {}, "path", path) for name in template_names(path) if name not in declared
    ]
    if whole is None:
        return Inputs(tuple(parameters), _body(said, of_body))
    return Inputs(tuple(parameters), _whole_body(said, whole, of_body))


def _whole_body(said: Raw, whole: Raw, others: Mapping[str, Property]) -> BodyInput:
    """The body that is one argument: `{"body": {"in": "body"}}`, as in mcp-gateway's adapter."""
    if others:
        raise _HttpToolFault(
            f"params.{min(others)}", "cannot go into the body, which is the argument `body` as a whole"
        )
    if "schema" in member(said, "body"):
        raise _HttpToolFault("body.schema", "is said by the argument `body`: leave one of them out")
    declared = {**member(said, "body"), **whole, "schema": _schema_of({"schema": {}, **whole})}
    body = _body({"body": {key: declared[key] for key in _BODY_KEYS if key in declared}}, {})
    assert body is not None
    return attrs.evolve(body, fixed=whole.get("default"))


def _parameter(argument: str, said: Raw, place: str, path: str) -> ApiParameter:
    where, name = f"params.{argument}", text(said, "name") or argument
    if place not in STYLES_AT or place == "querystring":
        raise _HttpToolFault(f"{where}.in", "is none of path, query, header, cookie, body")
    if fault := fault_of(name, place, path):
        raise _HttpToolFault(where, f"cannot be sent: {fault}")
    style = text(said, "style") or STYLES_AT[place][0]
    if style not in STYLES_AT[place]:
        raise _HttpToolFault(f"{where}.style", f"is none of {', '.join(STYLES_AT[place])}")
    return made(said, argument, name, place, style, path, schema=_schema_of(said), fixed=said.get("default"))


def _schema_of(said: Raw) -> Any:
    """The schema, with the default that is sent. A text is not told: it may come from a variable, and be a key."""
    schema = said.get("schema", {"type": "string"})
    if "default" in said and not isinstance(said["default"], str) and is_object(schema):
        return {**schema, "default": said["default"]}
    return schema


def _body(said: Raw, properties: dict[str, Property]) -> BodyInput | None:
    """The body: of the arguments that go there, or of `body`, whose schema is the argument `body`."""
    declared = member(said, "body")
    for where, what in _unknown("", declared, _BODY_KEYS):
        raise _HttpToolFault(f"body{where}", what)
    if properties and "schema" in declared:
        raise _HttpToolFault(
            "body.schema", "is said by the arguments that go into the body: leave one of them out"
        )
    if not properties and not declared:
        return None
    return BodyInput(
        media=text(declared, "mediaType") or _JSON,
        schema=declared.get("schema", {}),
        required=declared.get("required", any(each.required for each in properties.values())) is True,
        description=text(declared, "description"),
        encoding=member(declared, "encoding"),
        properties=properties or None,
    )
