"""One operation of an HTTP API as a tool.

Its name, title, description and tags are there at once; its inputs and schemas are made when somebody asks. The inputs
of what is called are kept, because each call needs them. Schemas are not, because whoever lists tools keeps them.
What the document says of an operation stays JSON where it can: as objects, ten thousand operations are a hundred
thousand things that the garbage collector goes over in one go, while no other thread runs.

What the method says of an operation is what its annotations say (RFC 9110 §9.2): GET, HEAD and OPTIONS read, PUT and
DELETE may be repeated, DELETE, PUT and PATCH change or remove what was there. Nothing is known of a POST, so nothing is
said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs
import msgspec

from ..protocol.jsonrpc.encoding import decode
from ..protocol.safe_text import one_line
from . import swagger2
from .document_names import Names
from .document_references import BrokenReference, Raw, followed_object, is_object, member, objects
from .inputs import NOTHING, BodyInput, ConfiguredNames, Inputs, essence, is_form, is_json, read_inputs
from .schemas import MOST, SchemaWriter, cut, file_schema
from .swagger2 import MEDIA

READS: Final = frozenset({"GET", "HEAD", "OPTIONS", "QUERY", "TRACE"})
_REPEATABLE: Final = READS | {"DELETE", "PUT"}
_DESTROYS: Final = frozenset({"DELETE", "PATCH", "PUT"})
_as_object: Final = msgspec.json.Decoder(dict[str, Any])
_MEDIA: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+*-]{1,100}")
_ANY_MEDIA: Final = "application/json, */*;q=0.1"
MOST_OF_ANSWER: Final = MOST // 4  # bytes of the schema of an answer, of which a model needs less
RESULT: Final = "result"  # under which an answer that is no object stands in a result


@attrs.frozen(eq=False)
class DocumentSource:
    """The document that an operation is part of."""

    root: Raw
    is_swagger: bool = False
    given: ConfiguredNames = NOTHING
    hosts: frozenset[str] = frozenset()  # of the servers that it declares for all operations


def host_of(url: str) -> str:
    """The host of a URL in a document, and its port; empty when it is relative, or none."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


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
    source: DocumentSource
    kept: Raw | msgspec.Raw  # the path item, decoded or as JSON that can be
    place: tuple[str, ...]  # the keys that lead from the path item to the operation
    own_headers: Mapping[str, str] | None = None  # sent with each request
    known_inputs: Inputs | None = None  # of a tool written by hand; else what was read for the first call
    known_accepts: str | None = None

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
    def is_read(self) -> bool:
        """Whether `inputs` and `accepts` are known. To read them takes some milliseconds where there is much to read,
        or nothing has been read of a large document."""
        return self.known_inputs is not None and self.known_accepts is not None

    @property
    def inputs(self) -> Inputs:
        """Its parameters and its body."""
        self.known_inputs = inputs = self._inputs()
        return inputs

    @property
    def accepts(self) -> str:
        """What it asks for in `Accept`: JSON first, then whatever else is declared, then anything."""
        if self.known_accepts is None:
            declared = [essence(media) for media in self.success_media()]
            known = list(dict.fromkeys(each for each in declared if _MEDIA.fullmatch(each) and each != "*/*"))
            known.sort(key=lambda media: not is_json(media))
            self.known_accepts = ", ".join([*known[:10], "*/*;q=0.1"]) if known else _ANY_MEDIA
        return self.known_accepts

    def _inputs(self) -> Inputs:
        if self.known_inputs is not None:
            return self.known_inputs
        item = self.item
        source = self.source
        return read_inputs(
            source.root,
            item,
            self._raw_in(item),
            self.path,
            is_swagger=source.is_swagger,
            given=source.given,
        )

    @property
    def notes(self) -> list[str]:
        """What of it cannot be used or is not described, in sentences."""
        return self.listed()[1]

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

    def output_schema(self, most: int = MOST_OF_ANSWER) -> dict[str, Any] | None:
        """The JSON Schema of `structuredContent` after success; None when no JSON is declared. An answer that is no
        object is described as the member `result`."""
        declared = self._answer_schema()
        if declared is None:
            return None
        writer = SchemaWriter(self.source.root, "writeOnly", most=most)
        said = writer.place(declared)
        definitions = writer.finish()
        return _of_result(said, definitions)

    def listed(self, *, with_output: bool = False, most: int = MOST) -> tuple[dict[str, Any], list[str]]:
        """The tool as MCP lists it, and what of the operation cannot be used or is not described, in sentences. Its
        schemas have what they refer to in `$defs`. `most`: bytes of each, about, if that is less than it may have at
        all."""
        inputs = self._inputs()
        schema, notes = self._input(inputs, min(most, MOST))
        found: dict[str, Any] = {"name": self.name}
        if self.title:
            found["title"] = self.title
        found |= {"description": self.description, "inputSchema": schema, "annotations": self.annotations()}
        if with_output and (output := self.output_schema(min(most, MOST_OF_ANSWER))) is not None:
            found["outputSchema"] = output
        return found, [*inputs.notes, *notes, *self._elsewhere()]

    def _elsewhere(self) -> Iterator[str]:
        """A server of its own, to which nothing is sent."""
        own, others = self.servers, self.source.hosts - {""}
        hosts = {host_of(each) for each in own} - {""}
        if hosts and others and not hosts & others:
            url = one_line(own[0], 200)
            yield f"The document has a server of its own for it, {url}, and it is sent to the base URL."

    def success_media(self) -> Mapping[str, Any]:
        """The media types of a successful answer, with what is declared of each; of the first success that has any."""
        root, raw = self.source.root, self.raw
        for status, said in sorted(
            member(raw, "responses").items(), key=lambda each: (each[0] == "default", str(each[0]))
        ):
            if not (str(status).startswith("2") or str(status) == "default"):
                continue
            try:
                answer = followed_object(root, said)
            except BrokenReference:
                continue
            declared = (
                swagger2.content(root, raw, answer) if self.source.is_swagger else member(answer, "content")
            )
            if declared:
                return {str(media): each for media, each in islice(declared.items(), MEDIA)}
        return {}

    def _answer_schema(self) -> object:
        for media, said in self.success_media().items():
            if is_json(media) and is_object(said):
                try:
                    return followed_object(self.source.root, said).get("schema")
                except BrokenReference:
                    return None
        return None

    def _input(self, inputs: Inputs, most: int) -> tuple[dict[str, Any], list[str]]:
        """The schema of its arguments, and what it could not describe."""
        body = inputs.body
        writer = SchemaWriter(
            self.source.root, "readOnly", files=body is not None and not is_json(body.media), most=most
        )
        properties = {
            each.argument: writer.place(each.schema, each.description) for each in inputs.parameters
        }
        required = [each.argument for each in inputs.parameters if each.required and each.fixed is None]
        if body is not None:
            properties |= _of_body(writer, body)
            required += body.needed
        definitions = writer.finish()
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        if definitions:
            schema["$defs"] = definitions
        return schema, writer.notes


def _of_body(writer: SchemaWriter, body: BodyInput) -> dict[str, Any]:
    if body.properties is not None:
        return {argument: writer.place(each.schema) for argument, each in body.properties.items()}
    kind = essence(body.media)
    if is_json(kind) or is_form(kind):
        return {body.argument: writer.place(body.schema, body.description)}
    if kind.startswith("text/") or kind.endswith("xml"):
        words = f"{cut(body.description)} (as {kind})" if body.description else f"The body as {kind}"
        return {body.argument: {"type": "string", "description": words}}
    return {body.argument: file_schema(cut(body.description))}


# ---- What an answer may be ------------------------------------------------------------------------------------------

_ANSWER: Final = "answer"


def _of_result(said: Any, definitions: Raw) -> dict[str, Any]:
    """The schema of a result whose answer is described by `said`: an object is one itself, all else is its member
    `result`. Often a document leaves open which of them it is."""
    may_be = _kinds(said, definitions)
    if may_be == _OBJECT:
        result: Raw = {"type": "object", **said}
    elif may_be == _OTHER:
        result = {"type": "object", "properties": {RESULT: said}, "required": [RESULT]}
    else:
        name = Names(64, definitions).new(_ANSWER)
        definitions, place = {**definitions, name: said}, {"$ref": f"#/$defs/{name}"}
        wrapped = {"properties": {RESULT: place}, "required": [RESULT]}
        result = {"type": "object", "anyOf": [place, wrapped]}
    return {**result, "$defs": definitions} if definitions else result


_OBJECT: Final = frozenset({"object"})
_OTHER: Final = frozenset({"other"})
_EITHER: Final = _OBJECT | _OTHER


def _kinds(said: Any, definitions: Raw) -> frozenset[str]:
    """Whether a written schema allows objects, other values, or both. Its references may go in circles, and lead
    further than Python recurses; then it may be either."""
    known = dict[str, frozenset[str]]()

    def of(said: Any, depth: int) -> frozenset[str]:
        if not is_object(said) or depth > _FOLLOWED:
            return _EITHER
        if "type" in said:
            types = [said["type"]] if isinstance(said["type"], str) else cast("list[str]", said["type"])
            return frozenset(_KIND.get(each, "other") for each in types)
        found = _OBJECT if "properties" in said else _EITHER
        if "$ref" in said:
            found &= of_reference(str(said["$ref"]).removeprefix("#/$defs/"), depth)
        for each in cast("list[Any]", said.get("allOf", ())):
            found &= of(each, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if choices := cast("list[Any]", said.get(keyword)):
                found &= frozenset[str]().union(*(of(each, depth + 1) for each in choices))
        return found or _EITHER

    def of_reference(name: str, depth: int) -> frozenset[str]:
        if name not in known:
            known[name] = _EITHER
            known[name] = of(definitions.get(name), depth + 1)
        return known[name]

    return of(said, 0)


_KIND: Final = {"object": "object"}
_FOLLOWED: Final = 100
