"""What goes into an operation: its parameters and its body, and under which names a caller gives them.

A caller gives one object of arguments. Each parameter is an argument under its own name. A body that is an object with
known properties gives each of them as an argument; any other body is the argument `body`. Where names clash, the
property of the body keeps its name, and a parameter is called after its place as well (`id__path`). An argument's name
has letters, digits, `_`, `.` and `-` only, at most 64, because APIs of models refuse a list of tools for any other: so
`filter[name]` is given as `filter_name`, and sent under its own name.

If a body may have several media types, one is taken: JSON if there is one, because it can say everything but a file. So
a form that takes one comes before it, if it takes all else as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import attrs

from ..protocol.bounds import HTTP_PLACE_CHARACTERS
from . import swagger2
from .document_names import Names
from .document_references import BrokenReference, Raw, followed_object, is_object, member, objects, text
from .schemas import PROPERTIES, Members, is_file, is_hidden, members, says_nothing

PLACES: Final = ("path", "query", "querystring", "header", "cookie")
STYLES_AT: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"),
    "querystring": (),
    "header": ("simple",),
    "cookie": ("form", "cookie"),
}  # the first is the default
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Headers that a parameter never sets. OpenAPI says so of these, and says elsewhere what they are.
_SAID_ELSEWHERE: Final = frozenset({"accept", "authorization", "content-type"})
# Others would change the message itself.
_FRAMING: Final = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_NOT_SET: Final = _FRAMING | _SAID_ELSEWHERE | {
    "accept-encoding", "content-encoding", "cookie", "proxy-authorization",
    "x-http-method", "x-http-method-override", "x-method-override",  # the method is what a person may be asked about
}  # fmt: skip
_PRINTABLE: Final = re.compile(r"[\x20-\x7e\t]*")
_LONGEST: Final = 64  # characters of an argument's name
_ARGUMENT: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{_LONGEST}}}")
_UNSUITED: Final = re.compile(r"[^A-Za-z0-9.-]+")
_DECLARED: Final = 2 * PROPERTIES  # parameters that are looked at, of a path and of an operation
_PATH: Final = HTTP_PLACE_CHARACTERS  # of a path with its templates
_PARAMETER: Final = 1_000  # characters of a parameter's name: it may be written for each item of a list
TEMPLATE: Final = re.compile(r"\{\+?([^{}]+)\}")
_WITH_SLASHES: Final = re.compile(r"\{\+([^{}]+)\}")  # RFC 6570, reserved expansion
BODY: Final = "body"
FORM: Final = "application/x-www-form-urlencoded"
_OPERATIONS_ON_JSON: Final = "application/json-patch+json"  # RFC 6902


@attrs.frozen
class ConfiguredNames:
    """The names of what the configuration sends with each request. It is not a caller's to say, so no parameter of a
    document has one of these names."""

    headers: frozenset[str] = frozenset()  # in small letters
    query: frozenset[str] = frozenset()
    cookies: frozenset[str] = frozenset()

    def has(self, name: str, place: str) -> bool:
        """Whether a parameter with this name at this place would be sent beside it, or instead."""
        match place:
            case "header":
                return name.lower() in self.headers
            case "query":
                return name in self.query
            case "cookie":
                return name in self.cookies
            case _:
                return False


NOTHING: Final = ConfiguredNames()


@attrs.frozen(eq=False)
class ApiParameter:
    """One parameter: its argument, its name on the wire, and how it is written there."""

    argument: str
    name: str
    place: str
    required: bool
    style: str
    explode: bool
    allow_reserved: bool
    media: str  # the media type of a parameter that is declared by `content`; else empty
    schema: Any = attrs.field(repr=False)
    description: str = attrs.field(repr=False)
    fixed: Any = None  # what is sent when the argument is not given; None: nothing


class Property(NamedTuple):
    """A property of a body that is an argument of its own."""

    name: str  # in the body
    schema: Any
    required: bool
    fixed: Any = None  # what is sent when the argument is not given; None: nothing


@attrs.frozen(eq=False)
class BodyInput:
    """The body in one media type. `properties`: by argument, for an object whose properties are arguments; None when
    the whole body is the argument `argument`."""

    media: str
    schema: Any = attrs.field(repr=False)
    required: bool
    description: str
    encoding: Raw
    properties: Mapping[str, Property] | None = attrs.field(repr=False)
    argument: str = BODY
    fixed: Any = None  # what is sent when the argument is not given; None: nothing

    @property
    def arguments(self) -> list[str]:
        """The names of its arguments."""
        return [self.argument] if self.properties is None else [*self.properties]

    @property
    def needed(self) -> list[str]:
        """The arguments without which it is none."""
        if not self.required:
            return []
        if self.properties is None:
            return [self.argument] if self.fixed is None else []
        return [
            argument for argument, each in self.properties.items() if each.required and each.fixed is None
        ]

    @property
    def defaults(self) -> dict[str, Any]:
        """What is sent for arguments that are not given."""
        if self.properties is None:
            return {} if self.fixed is None else {self.argument: self.fixed}
        return {name: each.fixed for name, each in self.properties.items() if each.fixed is not None}


@attrs.frozen(eq=False)
class Inputs:
    """All that a caller may give."""

    parameters: tuple[ApiParameter, ...]
    body: BodyInput | None
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The names of all arguments."""
        return [
            *(each.argument for each in self.parameters),
            *([] if self.body is None else self.body.arguments),
        ]


def template_names(path: str) -> list[str]:
    """The names in braces in a path, in order."""
    return TEMPLATE.findall(path)


def read_inputs(
    root: Raw, item: Raw, operation: Raw, path: str, *, is_swagger: bool, given: ConfiguredNames = NOTHING
) -> Inputs:
    """The inputs of an operation. What cannot be read is left out, with a note."""
    notes = list[str]()
    declared = _declared(
        root, [*objects(item.get("parameters")), *objects(operation.get("parameters"))], notes
    )
    body = _body(root, operation, declared, notes, is_swagger=is_swagger)
    parameters = list[ApiParameter]()
    for said in declared:
        said = swagger2.parameter(said) if is_swagger else said
        name, place = text(said, "name"), text(said, "in")
        if given.has(name, place) or (place == "header" and name.lower() in _SAID_ELSEWHERE):
            continue
        if len(parameters) == PROPERTIES:
            notes.append(f"It has more than {PROPERTIES:,} parameters, and the rest is left out.")
            break
        if said.get("in") in PLACES and (found := _parameter(root, said, path, notes)) is not None:
            parameters.append(found)
    parameters += _undeclared(path, parameters, notes)
    return Inputs(tuple(_apart(parameters, body)), body, tuple(notes))


def _declared(root: Raw, listed: list[Raw], notes: list[str]) -> list[Raw]:
    """The parameters by name and place: those of an operation replace those of its path."""
    found = dict[tuple[str, str], Raw]()
    if len(listed) > _DECLARED:
        notes.append(f"It declares more than {_DECLARED:,} parameters, and the rest is left out.")
    for each in listed[:_DECLARED]:
        try:
            said = followed_object(root, each)
        except BrokenReference as problem:
            notes.append(f"A parameter is left out: the reference {problem}.")
            continue
        found[(text(said, "in"), text(said, "name"))] = said
    return list(found.values())


def _parameter(root: Raw, said: Raw, path: str, notes: list[str]) -> ApiParameter | None:
    name, place = text(said, "name"), text(said, "in")
    if fault := fault_of(name, place, path):
        notes.append(f"The parameter {name[:100]!r} is left out: {fault}.")
        return None
    media, content = next(_contents(said), ("", None))
    schema = said.get("schema") if content is None else content.get("schema")
    style = text(said, "style")
    allowed = STYLES_AT[place]
    if style not in allowed:
        if style:
            notes.append(
                f"The style {style[:100]!r} of the parameter {name[:100]!r} is not for its place: the default is used."
            )
        style = next(iter(allowed), "")
    return made(said, name, name, place, style, path, media=media, schema=schema)


def made(
    said: Raw,
    argument: str,
    name: str,
    place: str,
    style: str,
    path: str,
    *,
    schema: Any,
    media: str = "",
    fixed: Any = None,
) -> ApiParameter:
    """A parameter whose name and style fit its place."""
    explode = said.get("explode")
    return ApiParameter(
        argument=argument,
        name=name,
        place=place,
        required=said.get("required") is True or place == "path",
        style=style,
        explode=explode if isinstance(explode, bool) else style in ("form", "cookie", "deepObject"),
        allow_reserved=said.get("allowReserved") is True
        or (place == "path" and name in _WITH_SLASHES.findall(path)),
        media=media,
        schema=schema,
        description=text(said, "description"),
        fixed=fixed,
    )


def _contents(said: Raw) -> Iterator[tuple[str, Raw]]:
    for media, each in member(said, "content").items():
        if is_object(each):
            yield str(media), each


def fault_of_path(path: str) -> str:
    """Why a path cannot be one of an operation, as the rest of a sentence; empty if it can."""
    if not path.startswith("/"):
        return "begins with no slash"
    if len(path) > _PATH:
        return f"has more than {_PATH:,} characters"
    steps = re.split(r"[/\\]", unquote(path.partition("#")[0].partition("?")[0]))
    return "has a step upwards" if "." in steps or ".." in steps else ""


def fault_of(name: str, place: str, path: str) -> str:
    """Why a parameter cannot be sent, as the rest of a sentence; empty if it can."""
    if not name:
        return "it has no name"
    if len(name) > _PARAMETER:
        return f"its name has more than {_PARAMETER:,} characters"
    if place == "path" and name not in template_names(path):
        return "its path has no place for it"
    if place == "header" and not _TOKEN.fullmatch(name):
        return "no header can have that name"
    if place == "header" and name.lower() in _NOT_SET:
        return "that header is not a parameter's to set"
    if place == "cookie" and not _TOKEN.fullmatch(name):
        return "no cookie can have that name"
    return ""


def fault_of_header(name: str, value: str) -> str:
    """Why a header that the configuration gives cannot be sent, as the rest of a sentence; empty if it can."""
    if not _TOKEN.fullmatch(name) or name.lower() in _FRAMING:
        return "is not a header that a request may have"
    return "" if _PRINTABLE.fullmatch(value) else "holds characters that a header cannot"


def _undeclared(path: str, parameters: list[ApiParameter], notes: list[str]) -> list[ApiParameter]:
    """Parameters for the names in the path that nobody declares."""
    known = {each.name for each in parameters if each.place == "path"}
    missing = [name for name in dict.fromkeys(template_names(path)) if name not in known]
    notes += [
        f"The path has {{{name[:100]}}}, which is not declared: it is taken as a text." for name in missing
    ]
    return [made({}, name, name, "path", "simple", path, schema={"type": "string"}) for name in missing]


def _body(
    root: Raw, operation: Raw, declared: list[Raw], notes: list[str], *, is_swagger: bool
) -> BodyInput | None:
    if is_swagger:
        said = swagger2.request_body(root, operation, declared)
    else:
        try:
            said = followed_object(root, operation["requestBody"]) if "requestBody" in operation else None
        except BrokenReference as problem:
            notes.append(f"Its body is left out: the reference {problem}.")
            return None
    if said is None:
        return None
    content = {str(media): each for media, each in islice(member(said, "content").items(), swagger2.MEDIA)}
    if not content:
        return None
    media = _chosen_media(root, content)
    form = _followed_or_empty(root, content[media], notes)
    schema = form.get("schema")
    if says_nothing(root, schema) and said.get("required") is not True:
        return None
    found = members(root, schema) if is_json(media) or is_form(media) else None
    properties = None if found is None else _properties(root, found)
    return BodyInput(
        media=media,
        schema=schema,
        required=said.get("required") is True,
        description=text(said, "description"),
        encoding=member(form, "encoding"),
        properties=properties or None,
    )


def _properties(root: Raw, found: Members) -> dict[str, Property]:
    """The properties that a caller may give, by argument."""
    schemas = {
        name: said[0] if len(said) == 1 else {"allOf": said}
        for name, said in found.properties.items()
        if not any(is_hidden(root, each, "readOnly") for each in said)
    }
    names = Names(_LONGEST)
    return {
        names.new(_argument(name)): Property(name, schemas[name], name in found.required)
        for name in sorted(schemas, key=_has_to_change)
    }


def _followed_or_empty(root: Raw, value: object, notes: list[str]) -> Raw:
    try:
        return followed_object(root, value)
    except BrokenReference as problem:
        notes.append(f"What its body holds is not described: {problem}.")
        return {}


def _chosen_media(root: Raw, content: Mapping[str, Any]) -> str:
    """The media type that a body is sent in: JSON before forms before all else, as they are listed; but a list of
    operations on JSON after all other JSON, because Kubernetes describes each kind of a patch as an object."""
    chosen = min(
        content,
        key=lambda media: (not is_json(media), essence(media) == _OPERATIONS_ON_JSON, not is_form(media)),
    )
    if not is_json(chosen):
        return chosen
    names = _schemas_in(root, content[chosen]).keys()
    forms = ((media, _schemas_in(root, said)) for media, said in content.items() if is_form(media))
    with_file = (
        media
        for media, schemas in forms
        if names <= schemas.keys() and any(_takes_file(root, each) for each in schemas.values())
    )
    return next(with_file, chosen)


def _schemas_in(root: Raw, said: object) -> Mapping[str, list[Any]]:
    """What a body has, as far as its properties are known."""
    found = members(root, said.get("schema")) if is_object(said) else None
    return {} if found is None else found.properties


def _takes_file(root: Raw, schemas: list[Any]) -> bool:
    return any(is_file(root, each) or is_file(root, member(each, "items")) for each in schemas)


def essence(media: str) -> str:
    """A media type without its parameters, in small letters."""
    return media.partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """Whether a body of this media type is written as JSON: also where any type will do."""
    kind = essence(media)
    return kind in ("application/json", "text/json", "*/*", "application/*") or kind.endswith("+json")


def is_form(media: str) -> bool:
    """Whether a body of this media type is a form."""
    return essence(media) == FORM or essence(media).startswith("multipart/")


def _apart(parameters: list[ApiParameter], body: BodyInput | None) -> list[ApiParameter]:
    """The parameters under arguments that differ from each other and from those of the body."""
    of_body = set[str]() if body is None else set(body.arguments)
    count, names = Counter(each.name for each in parameters), Names(_LONGEST, of_body)
    arguments = dict[int, str]()
    for position, each in sorted(enumerate(parameters), key=lambda one: _has_to_change(one[1].name)):
        clashes = each.name in of_body or count[each.name] > 1
        arguments[position] = names.new(_argument(f"{each.name}__{each.place}" if clashes else each.name))
    return [attrs.evolve(each, argument=arguments[position]) for position, each in enumerate(parameters)]


def _argument(name: str) -> str:
    """What an argument of this name is called where APIs of models do not take it."""
    return name if _ARGUMENT.fullmatch(name) else _UNSUITED.sub("_", name).strip("_") or "argument"


def _has_to_change(name: str) -> bool:
    """Whether it cannot be an argument's. Those that can get theirs first."""
    return _ARGUMENT.fullmatch(name) is None
