"""A document that describes an HTTP API: OpenAPI 3.0, 3.1 and 3.2, Swagger 2.0; in JSON or YAML.

Decoding GitHub's twelve megabytes takes a tenth of a second and YAML much longer: `read_document` needs nothing of its
caller's thread, so a caller with an event loop gives it to another one. All that is asked of an operation afterwards
takes milliseconds.

A document that is none is refused. Anything less costs one operation, or a part of it, and is told in `notes`.

What came in bounds nothing of what is made of it: one path item may be referred to from thousands of paths, and one URL
may have thousands of places for a long default. So whatever is made for each path, operation or place has a bound of
its own, in characters or items. Whoever has given up waiting ends the reading by `checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from itertools import islice
from typing import Any, Final, NamedTuple

import attrs
import msgspec

from ..config.file_formats import NotYamlError, load_large_yaml
from ..protocol.bounds import HTTP_PLACE_CHARACTERS, ITEM_BYTES, KIB, MIB
from ..protocol.json_values import array_or_empty
from ..protocol.jsonrpc.encoding import UNREADABLE, decode
from ..protocol.safe_text import one_line
from ..protocol.value_count import has_more_escapes, has_more_values
from . import swagger2
from .document_names import Names
from .document_references import BrokenReference, Raw, followed_object, is_object, member, objects, text
from .inputs import NOTHING, ConfiguredNames, fault_of_path
from .operation import DocumentSource, Operation, host_of

DOCUMENT_BYTES: Final = 64 * MIB
DOCUMENT_VALUES: Final = 4_000_000  # and keys, of one in JSON: passing over them takes some 30 ms
DOCUMENT_ESCAPES: Final = 5_000_000  # of the same
YAML_BYTES: Final = 16 * MIB
OPERATIONS: Final = 20_000  # Microsoft Graph has 16,000
TEXT: Final = 64 * KIB  # characters of a text that a tool shows, or that its name is made of
NAME: Final = 64  # characters of a tool's name
_WORDS: Final = 8 * MIB  # characters of all texts that operations show; Microsoft Graph has less than that
_LOOKED_AT: Final = 10 * OPERATIONS  # paths, and what stands in them, whether it is an operation or not
_TAGS: Final = 100  # of one operation
_SERVERS: Final = 1_000
_LABEL: Final = 1_000  # characters of an operationId, or of the version of an API
_SCHEME: Final = 100  # characters of a scheme of HTTP's authentication
_PIECE: Final = 64 * KIB  # bytes of JSON that are decoded in one go
_as_value: Final = msgspec.json.Decoder()
_as_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTES: Final = 100
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_PLACES: Final = {method: (method,) for method in _METHODS}
_OTHERS: Final = "additionalOperations"
_OF_ITEM: Final = (*_METHODS, _OTHERS, "description", "parameters", "servers", "summary")
_VALID: Final = re.compile("[A-Za-z0-9_-]+")
_UNSUITED: Final = re.compile(r"[^A-Za-z0-9-]+")
_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z-]{0,30}")
_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")


class DocumentError(ValueError):
    """The bytes are no document that is read here. The message says what is wrong, and begins with where it is."""


@attrs.frozen
class SecurityScheme:
    """How a request may show who sends it, as the document declares it."""

    name: str  # in the document
    kind: str  # apiKey, http, oauth2, openIdConnect, mutualTLS
    place: str = ""  # of an apiKey: query, header or cookie
    field: str = ""  # of an apiKey: the name of the parameter, header or cookie
    scheme: str = ""  # of http: basic, bearer, …, in small letters

    @property
    def in_words(self) -> str:
        """What it is, and where a configuration gives it; empty for what it cannot give."""
        field = f'"{one_line(self.field, 100)}"'
        match self.kind, self.place or self.scheme:
            case "apiKey", "query":
                return f'{field} in the query: add it to the "baseUrl"'
            case "apiKey", "header":
                return f'the header {field}: set it in "headers"'
            case "apiKey", "cookie":
                return f'the cookie {field}: set it in "headers", under Cookie'
            case "http", "bearer":
                return 'a token: set "bearerToken"'
            case "http", "basic":
                return 'a user and a password: set the header Authorization in "headers"'
            case _:
                return ""


@attrs.frozen(eq=False)
class ApiDocument:
    """What a document says of an API."""

    title: str
    version: str  # of the API
    servers: tuple[str, ...]  # the URLs it declares, variables filled in with their defaults; may be relative
    security_schemes: Mapping[str, SecurityScheme] = attrs.field(repr=False)
    operations: Mapping[str, Operation] = attrs.field(
        repr=False
    )  # by the name of the tool, in the document's order
    notes: tuple[str, ...] = ()  # what was left out, in sentences


class _PathOperation(NamedTuple):
    """An operation in its path item, both decoded, and the keys that lead there."""

    method: str
    item: Raw
    raw: Raw
    place: tuple[str, ...]


def read_document(
    data: bytes, where: str, given: ConfiguredNames = NOTHING, checkpoint: Callable[[], object] = lambda: None
) -> ApiDocument:
    """The document in these bytes. `where`: a file or URL, for messages; `given`: what the configuration sends with
    each request. `checkpoint` is called every few milliseconds; what it raises ends the reading. Raises
    `DocumentError`."""
    if len(data) > DOCUMENT_BYTES:
        raise DocumentError(f"{where}: has more than {DOCUMENT_BYTES:,} bytes")
    root = _decoded(data, where, checkpoint)
    dialect = _dialect(root, where)
    checkpoint()
    return read_root(root, dialect, where, given, checkpoint)


def read_root(
    root: Raw,
    dialect: str,
    where: str,
    given: ConfiguredNames = NOTHING,
    checkpoint: Callable[[], object] = lambda: None,
) -> ApiDocument:
    """The document of which this is the decoded content. `dialect`: 2.0, 3.0.3, 3.1.0, …"""
    is_swagger = dialect.startswith("2")
    info, notes = member(root, "info"), dict[str, None]()
    operations = dict[str, Operation]()
    paths = root.get("paths")
    if not is_object(paths) and not any(key in root for key in ("webhooks", "components")):
        raise DocumentError(f"{where}: has no paths, so it describes no requests")
    servers = tuple(_servers(swagger2.servers(root) if is_swagger else objects(root.get("servers")), notes))
    source, names = DocumentSource(root, is_swagger, given, frozenset(map(host_of, servers))), Names(NAME)
    words = 0
    for path, kept, said in _listed(root, member(root, "paths"), notes):
        checkpoint()
        if len(operations) == OPERATIONS:
            notes.setdefault(f"There are more than {OPERATIONS:,} operations; the rest is left out.")
            break
        operation = _operation(source, path, kept, said, names, shown=words < _WORDS)
        words += len(operation.title) + len(operation.description)
        if words >= _WORDS:
            notes.setdefault(f"Its texts have more than {_WORDS:,} characters; the rest is left out.")
        operations[operation.name] = operation
    schemes = (
        swagger2.security_schemes(root)
        if is_swagger
        else member(member(root, "components"), "securitySchemes")
    )
    return ApiDocument(
        title=text(info, "title"),
        version=_plain(info.get("version")),
        servers=servers,
        security_schemes=_security_schemes(root, schemes),
        operations=operations,
        notes=tuple(notes)[:_NOTES],
    )


def tool_name(said: str, names: Names) -> str:
    """A valid name for a tool, which no other one has."""
    return names.new(said if _VALID.fullmatch(said) else _UNSUITED.sub("_", said).strip("_-") or "operation")


def _plain(value: object) -> str:
    """A plain value as text; empty for anything that may be large when it is written out."""
    if isinstance(value, str | int | float):
        return str(value) if not isinstance(value, str) or len(value) <= _LABEL else value[:_LABEL]
    return ""


def _decoded(data: bytes, where: str, checkpoint: Callable[[], object]) -> Raw:
    data = data.removeprefix(b"\xef\xbb\xbf")
    is_json = data.lstrip()[:1] in (b"{", b"[", b"")
    # Splitting it into its members holds the interpreter, too.
    if is_json and has_more_values(data, DOCUMENT_VALUES, checkpoint):
        raise DocumentError(f"{where}: has more than {DOCUMENT_VALUES:,} values and keys")
    if is_json and has_more_escapes(data, DOCUMENT_ESCAPES):
        raise DocumentError(f"{where}: has more than {DOCUMENT_ESCAPES:,} escaped characters")
    try:
        root = _in_pieces(data) if is_json else _from_yaml(data, checkpoint)
    except UNREADABLE as problem:
        raise DocumentError(f"{where}: is not {'JSON' if is_json else 'text'}: {problem}") from None
    except NotYamlError as problem:
        raise DocumentError(f"{where}: {problem}") from None
    if not is_object(root):
        raise DocumentError(f"{where}: is not an object, so it is not an OpenAPI document")
    return root


def _in_pieces(data: bytes | msgspec.Raw) -> Any:
    """The value of JSON. Each member of a large object is decoded by itself, when somebody asks for it. Decoding lets
    no other thread run, so a thread that reads a document never keeps another one waiting for all of it; and most of a
    large document is never asked for, such as its examples. A text or an array cannot be taken apart: one that is
    larger than a tool may be is null."""
    size = len(memoryview(data))
    if size < _PIECE:
        return decode(_as_value, data)
    if size > ITEM_BYTES and bytes(memoryview(data)[:1]) in (b'"', b"["):
        return None  # the decoder would read all of it, to say that it is no object
    try:
        return _LargeObject(decode(_as_members, data))
    except msgspec.ValidationError:  # it is no object
        return decode(_as_value, data) if size <= ITEM_BYTES else None


class _LargeObject(dict[str, Any]):
    """A large object. What of it cannot be decoded is null."""

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # or `{**it}` would copy what has not been decoded

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, msgspec.Raw):
            try:
                value = _in_pieces(value)
            except UNREADABLE:
                value = None
            self[name] = value
        return value

    def get(self, name: str, default: Any = None, /) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (that is this)

    def unopened(self) -> Iterator[tuple[str, Any, Any]]:
        """Each name with its value, decoded only for the caller, and what to keep of that: JSON where it is short."""
        for name, value in super().items():
            if isinstance(value, msgspec.Raw) and len(memoryview(value)) < _PIECE:
                try:
                    yield name, decode(_as_value, value), value
                except UNREADABLE:
                    yield name, None, None
            else:
                value = self[name]
                yield name, value, value

    def items(self) -> Any:
        return ItemsView(self)

    def values(self) -> Any:
        return ValuesView(self)


def _from_yaml(data: bytes, checkpoint: Callable[[], object]) -> Any:
    if len(data) > YAML_BYTES:
        raise NotYamlError(f"has more than {YAML_BYTES:,} bytes, too many for YAML: write it as JSON")
    return load_large_yaml(data.decode(), checkpoint)


def _dialect(root: Raw, where: str) -> str:
    """The version of OpenAPI. YAML may have made a number of it."""
    said = str(root.get("openapi") or root.get("swagger") or "")
    if said.startswith("3.") or said in ("2", "2.0"):
        return said
    if not said:
        raise DocumentError(
            f'{where}: says neither "openapi" nor "swagger", so it is not an OpenAPI document'
        )
    raise DocumentError(f"{where}: is OpenAPI {said[:20]!r}; what is read is 3.x and Swagger 2.0")


def _members(paths: Raw) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(paths, _LargeObject):
        return paths.unopened()
    return ((path, said, said) for path, said in paths.items())


def _listed(
    root: Raw, paths: Raw, notes: dict[str, None]
) -> Iterator[tuple[str, Raw | msgspec.Raw, _PathOperation]]:
    """Of each operation its path, the path item as it is kept, and what the document says."""
    looked_at = 0
    for path, said, kept in _members(paths):
        if path.startswith("x-"):
            continue
        looked_at += 1
        if fault := fault_of_path(path):
            _note(notes, f"{path[:100]!r} is left out: it {fault}.")
            continue
        try:
            item = followed_object(root, said)
        except BrokenReference as problem:
            _note(notes, f"{path[:100]} is left out: {problem}.")
            continue
        if item is not said and is_object(said):
            item = kept = {key: each[key] for each in (item, said) for key in _OF_ITEM if key in each}
        found = [
            _PathOperation(key.upper(), item, item[key], place)
            for key, place in _PLACES.items()
            if key in item
        ]
        others = [
            _PathOperation(
                str(method).upper(), item, raw, (_OTHERS, method)
            )  # YAML may have made something else of it
            for method, raw in islice(member(item, _OTHERS).items(), max(0, _LOOKED_AT - looked_at))
        ]
        looked_at += len(others)
        for one in [*found, *others]:
            method = one.method
            if is_object(one.raw) and _METHOD.fullmatch(method) and method != "CONNECT":
                yield path, kept, one
            else:
                _note(notes, f"{method[:40]} {path[:100]} is left out: it is not an operation.")
        if looked_at >= _LOOKED_AT:
            notes.setdefault(f"It has more than {_LOOKED_AT:,} paths; the rest is left out.")
            return


def _note(notes: dict[str, None], words: str) -> None:
    """Add a note, unless there are enough. The few that tell of the whole document are always added."""
    if len(notes) < _NOTES:
        notes[words] = None


def _operation(
    source: DocumentSource,
    path: str,
    kept: Raw | msgspec.Raw,
    said: _PathOperation,
    names: Names,
    *,
    shown: bool,
) -> Operation:
    """`shown`: whether its title and its description are shown."""
    method, item, raw = said.method, said.item, said.raw
    operation_id = text(raw, "operationId")[:_LABEL]
    title, description = (
        (text(raw, name)[:TEXT].strip() or text(item, name)[:TEXT].strip()) if shown else ""
        for name in ("summary", "description")
    )
    words = ["Deprecated."] if raw.get("deprecated") is True else []
    words += [title] if title and title not in description else []
    words += [description] if description else []
    return Operation(
        name=tool_name(operation_id or f"{method.lower()}_{path}", names),
        method=method,
        path=path,
        title=title,
        description="\n\n".join(words) or f"{method} {path}",
        tags=tuple(each for each in array_or_empty(raw.get("tags"))[:_TAGS] if isinstance(each, str)),
        operation_id=operation_id,
        source=source,
        kept=kept,
        place=said.place,
    )


def _servers(listed: list[Raw], notes: dict[str, None]) -> Iterator[str]:
    for said in listed[:_SERVERS]:
        url = _expanded(text(said, "url"), member(said, "variables"))
        if url is None:
            _note(notes, "A server is left out: its URL is too long.")
        elif url:
            yield url
    if len(listed) > _SERVERS:
        notes.setdefault(f"It has more than {_SERVERS:,} servers; the rest is left out.")


def _expanded(url: str, variables: Raw) -> str | None:
    """The URL with the defaults of its variables; None where that is longer than a URL may be."""
    found, done = list[str](), 0
    left = HTTP_PLACE_CHARACTERS - len(url)
    for match in _VARIABLE.finditer(url) if left >= 0 else ():
        said = variables.get(match[1])
        default = said.get("default") if is_object(said) else None
        value = default if isinstance(default, str) else _plain(default)
        if default is not None and not isinstance(default, dict | list):
            left -= len(value) - len(match[0])
            if left < 0:
                break
            found += (url[done : match.start()], value)
            done = match.end()
    return None if left < 0 else "".join(found) + url[done:]


def _security_schemes(root: Raw, declared: Raw) -> dict[str, SecurityScheme]:
    found = dict[str, SecurityScheme]()
    for name, each in declared.items():
        try:
            said = followed_object(root, each)
        except BrokenReference:
            continue
        found[str(name)] = SecurityScheme(
            str(name),
            text(said, "type"),
            text(said, "in"),
            text(said, "name"),
            text(said, "scheme")[:_SCHEME].lower(),
        )
    return found
