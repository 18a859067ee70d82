"""Arguments as the request of an operation.

A model writes the arguments, so none of them may leave its place. In a URL everything is encoded; a path that would be
another one (`..`, or nothing where a part was) is refused, and so is whatever would end a header. An argument that an
operation does not have is refused by name, because dropping it would carry out something else than was asked for.
Arguments are not otherwise checked: that is the server's to do, and it says more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import attrs

from ..protocol.errors import UsageError
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.near_names import meant
from ..protocol.safe_text import one_line
from .bodies import UnreadBody, form_fields, write_body
from .document_references import is_object
from .inputs import FORM, TEMPLATE, ApiParameter, Inputs, essence, is_json, template_names
from .operation import Operation
from .styles import (
    DEEP,
    STYLES,
    WRITTEN,
    Encode,
    deep,
    encoded,
    encoded_path,
    encoded_reserved,
    plain,
)

_LITERAL: Final = "/:@!$&'()*+,;=~%"  # what stays as it is in a path of a document
_SLASHES: Final = re.compile(r"[/\\]")
_IN_HEADER: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")  # it may be empty
_IN_COOKIE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_DECODINGS: Final = 5


class ArgumentError(ValueError):
    """An argument is missing, unknown or cannot be sent; nothing was sent. The message names it."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


@attrs.frozen
class HttpRequest:
    """One request, ready but for its credentials, and for the files of `unread`."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]  # with the content type, without lengths
    body: bytes | None = attrs.field(default=None, repr=False)
    unread: UnreadBody | None = None  # the body, while files of it have not been read

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are part of the body, as the caller named them. They are to be read before it is sent, if
        the configuration allows it."""
        return () if self.unread is None else self.unread.paths

    def filled(self, contents: Mapping[str, bytes]) -> HttpRequest:
        """The request with the content of each of its `paths`."""
        if self.unread is None:
            return self
        media, content = self.unread.read(contents)
        return attrs.evolve(self, headers=(*self.headers, ("Content-Type", media)), body=content, unread=None)


def build_request(operation: Operation, arguments: Mapping[str, Any], base_url: str) -> HttpRequest:
    """The request of a call. `base_url`: an `http` or `https` URL that the configuration gives. Raises `ArgumentError`;
    `ValueError` for a base URL that is none."""
    inputs = operation.inputs
    _check_names(operation, inputs, arguments)
    values = {each.argument: arguments.get(each.argument, each.fixed) for each in inputs.parameters}
    defaults = {} if inputs.body is None else inputs.body.defaults
    of_body = {**defaults, **{name: each for name, each in arguments.items() if name not in values}}
    by_place: dict[str, list[tuple[ApiParameter, Any]]] = {}
    for each in inputs.parameters:
        if values[each.argument] is not None:
            by_place.setdefault(each.place, []).append((each, values[each.argument]))
    root = operation.source.root
    query = [*_query(inputs, by_place.get("query", [])), *_query_string(by_place.get("querystring", []))]
    url = _url(operation.path, base_url, by_place.get("path", []), query)
    headers = [*_headers(by_place.get("header", []))]
    given = {name.lower() for name, _ in headers}
    headers = [
        *((name, each) for name, each in (operation.own_headers or {}).items() if name.lower() not in given),
        *headers,
    ]
    if cookie := _cookie(by_place.get("cookie", [])):
        headers.append(("Cookie", cookie))
    if not any(name.lower() == "accept" for name, _ in headers):
        headers.insert(0, ("Accept", operation.accepts))
    body = None if inputs.body is None else write_body(root, inputs.body, of_body, _fault)
    if isinstance(body, UnreadBody):
        return HttpRequest(operation.method, url, tuple(headers), unread=body)
    if body is None:
        return HttpRequest(operation.method, url, tuple(headers))
    return HttpRequest(operation.method, url, (*headers, ("Content-Type", body.media)), body.content)


def _check_names(operation: Operation, inputs: Inputs, arguments: Mapping[str, Any]) -> None:
    known = inputs.arguments
    for name in arguments:
        if name not in known:
            there = f" It has: {', '.join(known[:60])}." if known else " It has none."
            raise ArgumentError(
                name, f"{operation.name} has no argument {_quoted(name)}.{meant(name, known)}{there}"
            )
    needed = [each.argument for each in inputs.parameters if each.required and each.fixed is None]
    of_body = list[str]() if inputs.body is None else inputs.body.arguments
    needed += [] if inputs.body is None else inputs.body.needed
    for name in needed:
        if name not in arguments or (arguments[name] is None and name not in of_body):
            raise ArgumentError(name, f"{operation.name} needs the argument {_quoted(name)}.")


def _url(path: str, base_url: str, parameters: list[tuple[ApiParameter, Any]], query: list[str]) -> str:
    base = urlsplit(base_url)
    if base.scheme not in ("http", "https") or not base.hostname:
        raise ValueError(f"{base_url!r} is not a base URL: it begins with http:// or https://")
    template, _, own_query = path.partition("#")[0].partition("?")
    values = {each.name: _in_path(each, value) for each, value in parameters}
    arguments = {each.name: each.argument for each, _ in parameters}
    _check_size(path, values, arguments)
    filled = "/".join(_segment(each, values, arguments) for each in template.split("/"))
    queries = [base.query, _filled(own_query, values), *query]
    _check_query(base.query, queries[1:])
    return urlunsplit(
        (base.scheme, base.netloc, base.path.rstrip("/") + filled, "&".join(filter(None, queries)), "")
    )


def _check_size(path: str, values: Mapping[str, str], arguments: Mapping[str, str]) -> None:
    """A path may name an argument any number of times."""
    size = Counter(
        {name: times * len(values.get(name, "")) for name, times in Counter(template_names(path)).items()}
    )
    if size.total() > WRITTEN:
        ((name, _),) = size.most_common(1)
        raise _fault(arguments[name], f"the URL would have more than {WRITTEN:,} characters")


def _check_query(of_base: str, queries: list[str]) -> None:
    """What the query of the base URL says is not a caller's to say. Names may be keys of an argument."""
    said = dict(parse_qsl(of_base, keep_blank_values=True))
    for each in queries if said else ():
        for name, _ in parse_qsl(each, keep_blank_values=True):
            if name in said:
                raise ArgumentError(
                    name, f"An argument would set {_quoted(name)} in the query, which the base URL sets."
                )


def _segment(template: str, values: Mapping[str, str], arguments: Mapping[str, str]) -> str:
    """One segment of a path, or several where the path allows it. Refused when it would be none, or a step upwards."""
    filled = _filled(template, values)
    if filled == template:
        return filled
    decoded = filled
    for _ in range(_DECODINGS):
        decoded = unquote(decoded)
    if not filled or any(part in (".", "..") for part in _SLASHES.split(decoded)):
        argument = next((arguments[name] for name in template_names(template) if name in arguments), template)
        raise ArgumentError(
            argument,
            f"The argument {_quoted(argument)} would lead to another path: give a name that is none.",
        )
    return filled


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with each name replaced, and its own characters as a URL may have them."""
    found = ""
    for number, part in enumerate(TEMPLATE.split(template)):
        found += values.get(part, "") if number % 2 else quote(part, safe=_LITERAL)
    return found


def _in_path(parameter: ApiParameter, value: Any) -> str:
    said = _written(parameter, value, encoded_path if parameter.allow_reserved else encoded)
    if not said:
        raise ArgumentError(
            parameter.argument, f"The argument {_quoted(parameter.argument)} is empty, and a path needs it."
        )
    return said


def _query(inputs: Inputs, parameters: list[tuple[ApiParameter, Any]]) -> Iterator[str]:
    names = {each.name for each in inputs.parameters if each.place == "query"}
    for each, value in parameters:
        encode = encoded_reserved if each.allow_reserved else encoded
        if each.style == DEEP and not each.media:
            yield from _told(
                each, lambda each=each, value=value, encode=encode: deep(each.name, value, encode)
            )
            continue
        if each.explode and is_object(value) and not each.media:
            _check_keys(each, value, names)
        if (said := _written(each, value, encode)) is not None:
            yield said


def _check_keys(parameter: ApiParameter, value: Mapping[str, Any], names: Collection[str]) -> None:
    """The keys of an exploded object are parameters themselves, and must not pass for another one."""
    for key in value:
        if key in names and key != parameter.name:
            raise _fault(parameter.argument, f"its key {_quoted(key)} is an argument of its own")


def _query_string(parameters: list[tuple[ApiParameter, Any]]) -> Iterator[str]:
    """A parameter that is the whole query (OpenAPI 3.2)."""
    for each, value in parameters:
        if essence(each.media) == FORM and is_object(value):
            yield from form_fields({}, value, _fault)
        else:
            yield _told(each, lambda value=value: encoded(plain(value)))


def _headers(parameters: list[tuple[ApiParameter, Any]]) -> Iterator[tuple[str, str]]:
    for each, value in parameters:
        said = _written(each, value, _in_header)
        if said is not None:
            yield each.name, said


def _cookie(parameters: list[tuple[ApiParameter, Any]]) -> str:
    pairs = (
        _written(each, value, _in_cookie if each.style == "cookie" else encoded) for each, value in parameters
    )
    return "; ".join(pair for pair in pairs if pair is not None)


def _written(parameter: ApiParameter, value: Any, encode: Encode) -> str | None:
    """The parameter in its style; None when it is no value."""
    name = encoded(parameter.name)
    if not parameter.media:
        style = STYLES["cookie" if parameter.place == "cookie" else parameter.style]
        return _told(parameter, lambda: style.expanded(name, value, encode, explode=parameter.explode))
    said = _told(
        parameter, lambda: encode(encode_json(value).decode() if is_json(parameter.media) else plain(value))
    )
    return f"{name}={said}" if parameter.place in ("query", "cookie") else said


T = TypeVar("T")


def _told(parameter: ApiParameter, write: Callable[[], T]) -> T:
    """What `write` returns, or its error with the argument's name."""
    try:
        return write()
    except (ValueError, UsageError) as problem:
        raise _fault(parameter.argument, str(problem)) from None


def _in_header(text: str) -> str:
    if not _IN_HEADER.fullmatch(text):
        raise ValueError("a header cannot hold it: it takes printable ASCII, with no space around it")
    return text


def _in_cookie(text: str) -> str:
    if not _IN_COOKIE.fullmatch(text):
        raise ValueError(
            "a cookie cannot hold it: it takes printable ASCII without space, comma, semicolon and quote"
        )
    return text


def _fault(argument: str, problem: str) -> ArgumentError:
    return ArgumentError(argument, f"The argument {_quoted(argument)} cannot be sent: {problem}.")


def _quoted(name: str) -> str:
    return f'"{one_line(name, 100)}"'
