"""An HTTP answer as the result of a tool.

What the API said is given, whether or not it keeps to its document: a call that has run must not end as an error of
ours. JSON is text and `structuredContent`, images and audio are blocks, other bytes are an embedded resource, and the
rest is text. The content type says which, unless it is missing or says nothing.

Any other status than success is an error of the tool, with the status and the beginning of the body, because a model
can often mend what the API complains of. A redirect is one of them: it is not followed, since it may lead anywhere.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from ..protocol.bounds import DECODED_ESCAPES, DECODED_VALUES, MESSAGE_VALUES
from ..protocol.jsonrpc.encoding import UNREADABLE, decode, encode
from ..protocol.safe_text import one_line, shortened
from ..protocol.value_count import has_more_escapes, has_more_values
from .document_references import is_object
from .inputs import essence, is_json
from .operation import RESULT, Operation

ERROR_CHARACTERS: Final = 8_192  # of the body of an answer that is no success
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9._-]{1,40})""", re.IGNORECASE)
# Others are codecs of Python that are no charsets, or slow ones.
_KNOWN: Final = re.compile(
    r"utf-8|utf-16(?:-?[bl]e)?|utf-32(?:-?[bl]e)?|us-ascii|iso-8859-(?:[1-9]|1[013-6])|windows-125[0-8]|koi8-[ru]"
    r"|shift_jis|euc-jp|iso-2022-jp|euc-kr|gb2312|gbk|gb18030|big5"
)
_FILENAME: Final = re.compile(r"""filename\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))""", re.IGNORECASE)
_VAGUE: Final = ("", "text/plain", "application/octet-stream", "binary/octet-stream")
_TEXTS: Final = frozenset({
    "application/ecmascript", "application/graphql", "application/javascript", "application/jwt", "application/sql",
    "application/toml", "application/x-ndjson", "application/x-www-form-urlencoded", "application/x-yaml",
    "application/xml", "application/yaml", "image/svg+xml",
})  # fmt: skip
_FIELDS: Final = 100  # of a query
_TOLD: Final = ("location", "retry-after", "www-authenticate")


def to_result(
    operation: Operation, status: int, headers: Mapping[str, str], body: bytes, advice: str = ""
) -> dict[str, Any]:
    """The result of a call as `tools/call` gives it. `headers`: of the answer; the case of names does not matter.
    `advice`: a sentence that is added to an answer which is no success."""
    said = {name.lower(): value for name, value in headers.items()}
    media = said.get("content-type", "")
    if not 200 <= status < 300:
        return _failure(status, said, media, body, advice)
    if operation.method == "HEAD" or not body:
        return {"content": [_text(_without_body(operation, status, said))]}
    further = [_text(words)] if (words := _next_page(operation, said.get("link", ""))) else []
    if (value := _json(media, body)) is not _NO_JSON:
        structured = value if is_object(value) or _is_raw_object(value) else {RESULT: value}
        return {"content": [_text(_decoded(media, body)), *further], "structuredContent": structured}
    return {"content": [_block(operation, media, said, body), *further]}


_LINK: Final = re.compile(r"<([^>]{1,4000})>([^<]{0,1000})")
_NEXT: Final = re.compile(r"""(?i);\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\b)""")


def _next_page(operation: Operation, links: str) -> str:
    """Where the next page is, if a `Link` says so (RFC 8288): the arguments that lead there. They say it all, because
    a caller cannot follow a URL, and other parts of it may hold credentials."""
    arguments = {each.name: each.argument for each in operation.inputs.parameters if each.place == "query"}
    for url, said in _LINK.findall(links):
        if _NEXT.search(said):
            given = dict[str, Any]()
            for name, values in _query_of(url).items():
                if name in arguments:
                    given[arguments[name]] = values if len(values) > 1 else values[0]
            if given:
                return f"There is a next page: {encode(given).decode()}"
    return ""


def _query_of(url: str) -> dict[str, list[str]]:
    try:
        return parse_qs(urlsplit(url).query, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        return {}


def _is_raw_object(value: object) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value).lstrip()[:1] == b"{"


_NO_JSON: Final = object()
_as_value: Final = msgspec.json.Decoder()
_as_raw: Final = msgspec.json.Decoder(msgspec.Raw)
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")  # in JSON they are white space


def _json(media: str, body: bytes) -> Any:
    """The JSON in the body, where it claims to be some or may well be; else `_NO_JSON`, and so is JSON that would take
    too long to pass over: then its text says it all. What would only take too long to decode stays JSON."""
    kind = essence(media)
    is_likely = kind in _VAGUE and body.lstrip()[:1] in (b"{", b"[")
    if not is_likely and not (is_json(media) and "*" not in kind):
        return _NO_JSON
    said = _decoded(media, body).encode()
    if has_more_values(said, MESSAGE_VALUES) or has_more_escapes(said, DECODED_ESCAPES):
        return _NO_JSON
    try:
        if has_more_values(said, DECODED_VALUES):
            return decode(_as_raw, said.translate(_ONE_LINE))
        return decode(_as_value, said)
    except UNREADABLE:
        return _NO_JSON


def _decoded(media: str, body: bytes) -> str:
    """The body as text; what its charset does not know is replaced."""
    found = _CHARSET.search(media)
    said = found[1].lower() if found and _KNOWN.fullmatch(found[1].lower()) else "utf-8-sig"
    return body.decode("utf-8-sig" if said == "utf-8" else said, "replace")


def _block(operation: Operation, media: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    kind = essence(media)
    if _is_text(kind, body):
        return _text(_decoded(media, body))
    data = b64encode(body).decode()
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
    found = _FILENAME.search(headers.get("content-disposition", ""))
    name = quote(found[1] or found[2], safe="") if found else "answer"
    uri = f"answer:///{operation.name}/{name}"
    resource = {"uri": uri, "mimeType": kind or "application/octet-stream", "blob": data}
    return {"type": "resource", "resource": resource}


def _is_text(kind: str, body: bytes) -> bool:
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+xml", "+yaml")) or is_json(kind or "x"):
        return True
    return not kind and _is_utf8(body)


def _is_utf8(body: bytes) -> bool:
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _without_body(operation: Operation, status: int, headers: Mapping[str, str]) -> str:
    if operation.method == "HEAD":
        return "\n".join([_status(status), *(f"{name}: {value}" for name, value in sorted(headers.items()))])
    location = headers.get("location")
    return f"{_status(status)}, without a body" + (f"; see {one_line(location, 2_000)}" if location else "")


def _failure(status: int, headers: Mapping[str, str], media: str, body: bytes, advice: str) -> dict[str, Any]:
    lines = [f"The API answered {_status(status)}."]
    if 300 <= status < 400:
        lines[0] = f"The API answered {_status(status)}, and redirects are not followed."
    lines += [f"{name}: {one_line(headers[name], 2_000)}" for name in _TOLD if name in headers]
    kind = essence(media)
    if body and (_is_text(kind, body) or (kind in _VAGUE and _is_utf8(body))):
        said = _decoded(media, body)
        lines.append(shortened(said, ERROR_CHARACTERS))
        if len(said) > ERROR_CHARACTERS:
            lines.append(f"({len(said) - ERROR_CHARACTERS:,} characters of it are left out)")
    elif body:
        lines.append(f"({len(body):,} bytes of {kind or 'unknown type'})")
    if advice:
        lines.append(advice)
    structured: dict[str, Any] = {"status": status}
    if len(body) <= ERROR_CHARACTERS and (value := _json(media, body)) is not _NO_JSON:
        structured["body"] = value
    return {"content": [_text("\n".join(lines))], "structuredContent": structured, "isError": True}


def _status(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
