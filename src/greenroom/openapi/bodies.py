"""Bodies of requests: JSON, forms, multipart, text and octets, by their media type.

A file is given as its text, as `{"base64": …}` or as `{"path": …}`, each of the latter with a `filename` if it has one.
Nothing is read here: a body with paths is `UnreadBody`, and whoever sends it decides which files may be read.

In a form, `encoding` says how a property is written; where it says nothing, a list is a field for each item, and an
object is JSON (OpenAPI 3.1.1 §4.8.15.1.2, which says what older versions left open). The boundary of a multipart body
is the hash of what it separates, so no file can be made to hold it.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import attrs

from ..protocol.errors import UsageError
from ..protocol.json_values import is_array
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.safe_text import whole
from .document_references import Raw, is_object, member, text
from .inputs import FORM, BodyInput, essence, is_form, is_json
from .schemas import is_file
from .styles import DEEP, STYLES, deep, encoded, encoded_reserved, plain, within_bounds

OCTETS: Final = "application/octet-stream"
_MEDIA: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(?:;[\x20-\x7e]{0,200})?")
_STYLED: Final = frozenset(
    {"allowReserved", "explode", "style"}
)  # what makes a property of a form one of a URL
_ESCAPES: Final = {'"': "%22", "\r": "%0D", "\n": "%0A"}


class EncodedBody(NamedTuple):
    """A body that can be sent."""

    media: str
    content: bytes


@attrs.frozen
class BodyPart:
    """One part of a multipart body, or the whole body of any other kind."""

    name: str
    content: bytes = attrs.field(repr=False)
    path: str = ""  # of the file whose content it is, while that has not been read
    filename: str = ""
    media: str = ""

    def head(self) -> bytes:
        head = f'Content-Disposition: form-data; name="{_escaped(self.name)}"'
        head += f'; filename="{_escaped(self.filename)}"' if self.filename else ""
        head += f"\r\nContent-Type: {self.media}" if self.media else ""
        return f"{head}\r\n".encode(errors="replace")


@attrs.frozen
class UnreadBody:
    """A body with files that are still to be read. Whoever reads them decides which may be."""

    media: str
    parts: tuple[BodyPart, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, as the caller named them."""
        return tuple(dict.fromkeys(each.path for each in self.parts if each.path))

    def read_if_whole(self) -> EncodedBody | UnreadBody:
        """The body, read unless a file is still to be."""
        return self if self.paths else self.read({})

    def read(self, contents: Mapping[str, bytes]) -> EncodedBody:
        """The body with the content of each of its paths."""
        parts = tuple(
            attrs.evolve(each, path="", content=contents[each.path]) if each.path else each
            for each in self.parts
        )
        if essence(self.media).startswith("multipart/"):
            return _multipart(self.media, parts)
        return EncodedBody(self.media, parts[0].content)


Fault = Callable[[str, str], Exception]  # the error for an argument, from its name and what is wrong with it


def write_body(
    root: Raw, body: BodyInput, given: Mapping[str, Any], fault: Fault
) -> EncodedBody | UnreadBody | None:
    """The body of these arguments (those of the body alone); None when there is none to send."""
    if not given and (body.properties is None or not body.required):
        return None
    if body.properties is None:
        value = given[body.argument]
    else:
        value = {body.properties[argument].name: each for argument, each in given.items()}
        fault = partial(_fault_of, {each.name: argument for argument, each in body.properties.items()}, fault)
    if is_json(body.media):
        return _json(body, value, fault)
    if is_form(body.media):
        if not is_object(value):
            raise fault(body.argument, "it is not an object, and its fields have names")
        if essence(body.media) == FORM:
            return EncodedBody(FORM, "&".join(form_fields(body.encoding, value, fault)).encode())
        return UnreadBody(body.media, tuple(_parts(root, body, value, fault))).read_if_whole()
    media = body.media if _MEDIA.fullmatch(body.media) and "*" not in body.media else OCTETS
    if isinstance(value, str) and media.startswith("text/") and ";" not in media:
        media += "; charset=utf-8"
    return UnreadBody(media, (_file(body.argument, "", value, media, fault),)).read_if_whole()


def _fault_of(arguments: Mapping[str, str], fault: Fault, name: str, problem: str) -> Exception:
    return fault(arguments.get(name, name), problem)


def form_fields(encoding: Raw, value: Mapping[str, Any], fault: Fault) -> Iterator[str]:
    """The pairs of a form, as it is encoded in a URL."""
    for name, each in value.items():
        said = member(encoding, name)
        try:
            yield from _field(name, each, said)
        except (ValueError, UsageError) as problem:
            raise fault(name, str(problem)) from None


def _field(name: str, value: Any, said: Raw) -> Iterator[str]:
    if not said.keys() & _STYLED:
        items = value if is_array(value) else [value]
        label = encoded(name)
        yield from within_bounds(f"{label}={encoded(plain(each))}" for each in items if each is not None)
        return
    style = text(said, "style") or "form"
    encode = encoded_reserved if said.get("allowReserved") is True else encoded
    if style == DEEP:
        yield from deep(name, value, encode)
        return
    explode = said.get("explode", style == "form") is True
    pairs = STYLES.get(style, STYLES["form"]).expanded(encoded(name), value, encode, explode=explode)
    if pairs is not None:
        yield pairs


def _json(body: BodyInput, value: Any, fault: Fault) -> EncodedBody:
    try:
        content = encode_json(value)
    except UsageError as problem:
        raise fault(body.argument, str(problem)) from None
    media = body.media if _MEDIA.fullmatch(body.media) and "*" not in body.media else "application/json"
    return EncodedBody(media, content)


def _parts(root: Raw, body: BodyInput, value: Mapping[str, Any], fault: Fault) -> Iterator[BodyPart]:
    properties = member(body.schema, "properties")
    if body.properties is not None:
        properties = {each.name: each.schema for each in body.properties.values()}
    for name, each in value.items():
        if each is None:
            continue
        schema, encoding = properties.get(name), member(body.encoding, name)
        if encoding.keys() & _STYLED:
            pairs = (pair.partition("=") for pair in form_fields(body.encoding, {name: each}, fault))
            yield from (BodyPart(unquote(key), unquote(said).encode()) for key, _, said in pairs)
            continue
        media = text(encoding, "contentType").partition(",")[0].strip()
        media = media if _MEDIA.fullmatch(media) and "*" not in media else ""
        items = each if is_array(each) else [each]
        for item in items:
            if is_file(root, schema) or is_file(root, member(schema, "items")):
                yield _file(name, name, item, media or OCTETS, fault)
            else:
                kind = media or ("application/json" if isinstance(item, dict | list) else "")
                yield BodyPart(name, plain(item).encode(errors="replace"), media=kind)


def _file(argument: str, name: str, value: Any, media: str, fault: Fault) -> BodyPart:
    """The part that a caller gave as a file."""
    match value:
        case str():
            return BodyPart(name, whole(value).encode(), filename="file", media=media)
        case {"path": str(path)} if path:
            return BodyPart(name, b"", path, _filename(value, re.split(r"[/\\]", path)[-1]), media)
        case {"base64": str(said)}:
            try:
                content = b64decode("".join(said.split()), validate=True)
            except ValueError:
                raise fault(argument, "its base64 cannot be decoded") from None
            return BodyPart(name, content, "", _filename(value, "file"), media)
        case _:
            raise fault(argument, 'a file is a text, or an object with "path" or "base64"')


def _filename(value: Mapping[str, Any], otherwise: str) -> str:
    said = value.get("filename")
    return said if isinstance(said, str) and said else otherwise


def _multipart(media: str, parts: tuple[BodyPart, ...]) -> EncodedBody:
    heads = [each.head() for each in parts]
    seal = hashlib.sha256()
    for head, part in zip(heads, parts, strict=True):
        seal.update(head)
        seal.update(part.content)
    boundary = seal.hexdigest()[:48].encode()
    content = b"".join(
        b"--%b\r\n%b\r\n%b\r\n" % (boundary, head, part.content)
        for head, part in zip(heads, parts, strict=True)
    )
    kind = essence(media) if _MEDIA.fullmatch(essence(media)) and "*" not in media else "multipart/form-data"
    return EncodedBody(f"{kind}; boundary={boundary.decode()}", content + b"--%b--\r\n" % boundary)


def _escaped(name: str) -> str:
    return "".join(_ESCAPES.get(each, each) for each in name)
