"""One operation of an HTTP API as a tool.

Its name, title, description and tags are there at once; its inputs and schemas are made when somebody asks. The inputs
of what is called are kept, because each call needs them. Schemas are not, because whoever lists tools keeps them.
What the document says of an operation stays JSON where it can: as objects, ten thousand operations are a hundred
thousand things that the garbage collector goes over in one go, while no other thread runs.

What the method says of an operation is what its annotations say (RFC 9110 §9.2): GET, HEAD and OPTIONS read, PUT and
DELETE may be repeated, DELETE, PUT and PATCH change or remove what was there. Of a POST nothing is known, so nothing is
said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from ..protocol.jsonrpc.encoding import decode
from . import swagger2
from .inputs import Body, Inputs, Parameter, essence, is_form, is_json, read_inputs
from .references import BrokenReference, Raw, followed_object, is_object, member, objects
from .schemas import SchemaWriter, file_schema

READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "QUERY", "TRACE"})
_REPEATABLE: Final = READS | {"DELETE", "PUT"}
_DESTROYS: Final = frozenset({"DELETE", "PATCH", "PUT"})
_as_object: Final = msgspec.json.Decoder(dict[str, Any])
RESULT: Final = "result"  # under which an answer that is no object stands in a result


@attrs.frozen(eq=False)
class Source:
    """The document that an operation is part of."""

    root: Raw
    is_swagger: bool = False


class Operation(msgspec.Struct, eq=False, gc=False):
    """A tool that is one request of an HTTP API. Nothing that it refers to refers back, so the garbage collector need
    not look at it."""

    name: str  # as a tool, unique in its document
    method: str  # in capital letters
    path: str
    title: str  # may be empty
    description: str  # never empty
    tags: tuple[str, ...]
    operation_id: str
    deprecated: bool
    source: Source
    kept: Raw | msgspec.Raw  # the path item, decoded or as JSON that can be
    place: tuple[str, ...]  # the keys that lead from the path item to the operation
    own_url: str = ""  # the whole URL, for a tool written by hand that has one; then no base URL is needed
    own_headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])  # sent with each request
    known_inputs: Inputs | None = None  # of a tool written by hand; else what was read for the first call

    def __repr__(self) -> str:
        return f"Operation({self.name!r}, {self.method!r}, {self.path!r})"

    @property
    def item(self) -> Raw:
        """The path item as the document has it."""
        return decode(_as_object, self.kept) if isinstance(self.kept, msgspec.Raw) else self.kept

    @property
    def raw(self) -> Raw:
        """The operation as the document has it."""
        return self._raw_in(self.item)

    def _raw_in(self, item: Raw) -> Raw:
        for key in self.place:
            item = item[key]
        return item

    @property
    def inputs(self) -> Inputs:
        """Its parameters and its body."""
        self.known_inputs = inputs = self._inputs()
        return inputs

    def _inputs(self) -> Inputs:
        if self.known_inputs is not None:
            return self.known_inputs
        item = self.item
        return read_inputs(
            self.source.root, item, self._raw_in(item), self.path, is_swagger=self.source.is_swagger
        )

    @property
    def notes(self) -> list[str]:
        """What of it cannot be used or is not described, in sentences."""
        inputs = self._inputs()
        return [*inputs.notes, *self._input(inputs)[1]]

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of servers that the document declares for this operation or its path, as they are written; empty
        when it declares none of their own. Nothing is sent there unless the configuration trusts them."""
        item = self.item
        for said in (self._raw_in(item), item):
            if urls := tuple(
                each["url"] for each in objects(said.get("servers")) if isinstance(each.get("url"), str)
            ):
                return urls
        return ()

    @property
    def security(self) -> tuple[frozenset[str], ...]:
        """The security schemes it needs, by name: one of these sets, all of its schemes. Empty: none."""
        said = self.raw.get("security", self.source.root.get("security"))
        return tuple(frozenset(map(str, each)) for each in objects(said))

    def annotations(self) -> dict[str, Any]:
        """The annotations of the tool, from the method."""
        found: dict[str, Any] = {"readOnlyHint": self.method in READS, "openWorldHint": True}
        if self.method in _REPEATABLE:
            found["idempotentHint"] = True
        if self.method in _DESTROYS:
            found["destructiveHint"] = True
        return found

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments, with what it refers to in `$defs`. Made anew each time."""
        return self._input(self._inputs())[0]

    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of `structuredContent` after success; None when no JSON is declared. An answer that is no
        object is described as the member `result`."""
        declared = self._answer_schema()
        if declared is None:
            return None
        writer = SchemaWriter(self.source.root, "writeOnly")
        said = writer.written(declared)
        definitions = writer.definitions()
        if not _is_of_object(said, definitions):
            said = {"type": "object", "properties": {RESULT: said}, "required": [RESULT]}
        said = {"type": "object", **said} if is_object(said) else {"type": "object"}
        return {**said, "$defs": definitions} if definitions else said

    def tool(self, *, with_output: bool = False) -> dict[str, Any]:
        """The tool as MCP lists it."""
        found: dict[str, Any] = {"name": self.name}
        if self.title:
            found["title"] = self.title
        found |= {
            "description": self.description,
            "inputSchema": self.input_schema(),
            "annotations": self.annotations(),
        }
        if with_output and (output := self.output_schema()) is not None:
            found["outputSchema"] = output
        return found

    def responses(self) -> Raw:
        """The declared responses by status, as OpenAPI 3 writes them."""
        root, raw = self.source.root, self.raw
        return swagger2.responses(root, raw) if self.source.is_swagger else member(raw, "responses")

    def success_media(self) -> Mapping[str, Any]:
        """The media types of a successful answer, with what is declared of each; of the first success that has any."""
        for status, said in sorted(
            self.responses().items(), key=lambda each: (each[0] == "default", str(each[0]))
        ):
            if not (str(status).startswith("2") or str(status) == "default"):
                continue
            try:
                content = member(followed_object(self.source.root, said), "content")
            except BrokenReference:
                continue
            if content:
                return {str(media): each for media, each in content.items()}
        return {}

    def _answer_schema(self) -> object:
        for media, said in self.success_media().items():
            if is_json(media) and is_object(said):
                try:
                    return followed_object(self.source.root, said).get("schema")
                except BrokenReference:
                    return None
        return None

    def _input(self, inputs: Inputs) -> tuple[dict[str, Any], list[str]]:
        """The schema, and what it could not describe."""
        body = inputs.body
        writer = SchemaWriter(
            self.source.root, "readOnly", files=body is not None and not is_json(body.media)
        )
        properties: dict[str, Any] = {}
        required = list[str]()
        for each in inputs.parameters:
            properties[each.argument] = _described(writer.written(each.schema), each)
            if each.required and each.fixed is None:
                required.append(each.argument)
        if body is not None:
            properties |= _of_body(writer, body)
            required += body.needed
        definitions = writer.definitions()
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        if definitions:
            schema["$defs"] = definitions
        return schema, writer.notes


def _of_body(writer: SchemaWriter, body: Body) -> dict[str, Any]:
    if body.properties is not None:
        return {argument: writer.written(each.schema) for argument, each in body.properties.items()}
    kind = essence(body.media)
    if is_json(kind) or is_form(kind):
        said = writer.written(body.schema)
        return {
            body.argument: {"description": body.description, **said}
            if body.description and is_object(said)
            else said
        }
    if kind.startswith("text/") or kind.endswith("xml"):
        words = f"{body.description} (as {kind})" if body.description else f"The body as {kind}"
        return {body.argument: {"type": "string", "description": words}}
    return {body.argument: file_schema(body.description)}


def _described(said: Any, parameter: Parameter) -> Any:
    if parameter.description and is_object(said):
        return {**said, "description": parameter.description}
    return said


def _is_of_object(said: Any, definitions: Raw) -> bool:
    """Whether a written schema allows objects only. Its references may go in circles."""
    waiting, followed = [said], set[str]()
    while waiting:
        said = waiting.pop()
        if not is_object(said):
            continue
        if "$ref" in said:
            name = str(said["$ref"]).removeprefix("#/$defs/")
            if name not in followed:
                followed.add(name)
                waiting.append(definitions.get(name))
        elif said.get("type") == "object" or ("type" not in said and "properties" in said):
            return True
        elif "type" not in said:
            waiting += cast("list[Any]", said.get("allOf", ()))
    return False
