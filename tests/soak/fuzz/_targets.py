"""Everything that reads bytes from outside, each as a function of some bytes that raises when something is wrong.

What a reader refuses it refuses by its own error; whatever else it raises is a finding, and so is a broken promise:
each target checks what its reader says of itself. A target is bounded by whoever runs it, in time and memory.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import jwt
import msgspec
from msgspec.structs import replace
from tests.support.tiny_model import write_model

from greenroom.actors.transports.event_parser import EventParser
from greenroom.actors.transports.http_bounds import PIECE, _decoder
from greenroom.actors.transports.http_client import _headers
from greenroom.actors.transports.http_faults import BadAnswer
from greenroom.actors.transports.lines import LineSplitter
from greenroom.actors.transports.stderr_ring import StderrRing
from greenroom.catalogue import namespace as uris
from greenroom.catalogue.encoder import Encoder
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import PinKey, agree, fingerprint, skill_print
from greenroom.catalogue.hidden_characters import unhidden_record
from greenroom.catalogue.index import Index
from greenroom.catalogue.list_pages import Items
from greenroom.catalogue.meaning_model import FILES, Unusable
from greenroom.catalogue.schema_repair import fit
from greenroom.catalogue.search import search
from greenroom.catalogue.search_cache import SearchCache, key_of
from greenroom.catalogue.search_file import SearchFile
from greenroom.catalogue.skills import content_of, fault_of, files_of, without_front_matter
from greenroom.catalogue.store import CatalogueFile
from greenroom.catalogue.vector_file import VectorFile
from greenroom.config import file_formats
from greenroom.config.credentials import SecretValue
from greenroom.config.definition_identity import definition_hash
from greenroom.config.file_formats import NotJsonError
from greenroom.config.file_formats import load_jsonc as loads
from greenroom.config.masking import redacted
from greenroom.config.model import ServerDefinition, Settings, selector
from greenroom.config.parse import parse_config
from greenroom.config.references import expand, missing_variables
from greenroom.config.scrubbing import Secrets
from greenroom.config.secret_sources import variables_in
from greenroom.config.trust import Agreements, ProjectFile
from greenroom.gateway.client_tasks import TaskStore
from greenroom.gateway.doors.control_protocol import parse_request
from greenroom.gateway.doors.door_connection import DoorConnection, DoorConnections
from greenroom.gateway.doors.http_auth import OAuth, Terms
from greenroom.gateway.doors.http_request import ClientGone, DoorRequest, HttpRefusal, Rules, body_time
from greenroom.gateway.doors.issuer_keys import IssuerKeys
from greenroom.gateway.exposures.direct_lists import skill_entry
from greenroom.gateway.exposures.output_files import Spill
from greenroom.gateway.exposures.tool_definition import parse_request as parse_mcp
from greenroom.gateway.task_folder import TaskFolder
from greenroom.openapi.answer import to_result
from greenroom.openapi.document import DocumentError, read_document
from greenroom.openapi.request import ArgumentError, build_request
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol import jsonrpc as wire
from greenroom.protocol import safe_text
from greenroom.protocol.content import guard, parameters_text, text_of, to_blocks, to_resource_blocks
from greenroom.protocol.errors import ConfigError, ConnectFailed, UsageError
from greenroom.protocol.jsonrpc import encoding
from greenroom.protocol.jsonrpc.terms import RpcFault
from greenroom.protocol.safe_text import one_line, printable, seen_in_json, unhidden
from greenroom.safety import audit
from greenroom.safety.pins_file import PinsFile, ServerPins

Target = Callable[[bytes], None]
TARGETS: Final[dict[str, Target]] = {}
_OPERATION: Final = read_document(b'{"openapi":"3.1.0","paths":{"/x":{"get":{}}}}', "x").operations["get_x"]
LIMIT: Final = 64  # bytes of a line or an event
NOW: Final = 1_000_000_000.0


def _target(body: Target) -> Target:
    TARGETS[body.__name__] = body
    return body


# ---- what servers say ----------------------------------------------------------------------------------------------


@_target
def envelope(data: bytes) -> None:
    """A line of a server, its envelope and its payloads."""
    whole = safe_text.repair_utf8(data)
    wire.answer_id_in(whole)
    with suppress(*wire.NO_MESSAGE):
        wire.decode_message(whole)
    wire.excerpt(whole).encode()
    try:
        messages = wire.decode_line(whole)
    except wire.WireFault as fault:
        str(fault).encode()
        return
    for message in messages:
        with suppress(wire.WireFault):
            wire.encode_json(wire.decode_result(bytes(message.result)))
        with suppress(wire.WireFault):
            wire.decode_params(message.params)
        if bytes(message.error):
            wire.decode_error(bytes(message.error))
        if message.id is not None:
            json.loads(wire.encode_reply(message.id, {}))


@_target
def large(data: bytes) -> None:
    """A long text that is repaired as it comes in is what it is when it is repaired at once."""
    cut, text = _cut(data)
    repair = safe_text.JsonRepair()
    repaired = b"".join([*map(repair.take, cut), repair.take(b"", is_last=True)])
    whole = bytes(safe_text.repair_utf8(text))
    assert repaired == (safe_text.mend_escapes(whole) or whole)
    assert repair.has_replaced is (whole != text)


@_target
def lenient_parts(data: bytes) -> None:
    """An object by its keys: each part stands in the bytes it came in, or in those that were mended."""
    whole = bytes(safe_text.repair_utf8(data))
    try:
        parts = encoding.decode_parts(whole)
    except (msgspec.MsgspecError, RecursionError):
        return
    mended = safe_text.mend_escapes(whole) or whole
    assert all(bytes(part) in whole or bytes(part) in mended for part in parts.values())


@_target
def mended(data: bytes) -> None:
    """Half characters: mending keeps every length, and what is mended has none."""
    whole = bytes(safe_text.repair_utf8(data))
    whole.decode()
    after = safe_text.mend_escapes(whole)
    if after is not None:
        assert len(after) == len(whole)
        assert safe_text.mend_escapes(after) is None


@_target
def lines(data: bytes) -> None:
    """Lines out of chunks, whatever the chunks: those that fit, in their order; the others are told."""
    cut, text = _cut(data)
    told: list[bytes] = []
    splitter = LineSplitter(LIMIT, lambda head, _bound: told.append(head))
    found = [bytes(line) for piece in cut for line in splitter.feed(piece)]
    ended = text.split(b"\n")[:-1]
    assert found == [line for line in ended if len(line) <= LIMIT]
    assert len(told) >= sum(len(line) > LIMIT for line in ended)


@_target
def events(data: bytes) -> None:
    """Events out of chunks are those of the whole."""
    cut, text = _cut(data)
    told: list[bytes] = []
    parser, at_once = (
        EventParser(LIMIT, lambda head, _bound: told.append(head)),
        EventParser(LIMIT, lambda *_: None),
    )
    found = [event for piece in cut for event in parser.feed(piece)]
    whole = at_once.feed(text)
    if not told:
        assert found == whole
        assert (parser.last_id, parser.retry) == (at_once.last_id, at_once.retry)


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    """The first bytes say where the rest is cut."""
    places, text = data[:4], data[4:]
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(at)], text


@_target
def stderr(data: bytes) -> None:
    """The last words of a server: few, short and printable."""
    ring = StderrRing(4096)
    for piece in _cut(data)[0]:
        ring.feed(piece)
    assert len(ring.last_line()) <= 400
    tail = ring.tail()
    assert len(tail) <= 8
    assert all(len(line) <= 400 and "\x1b" not in line for line in tail)
    str(tail).encode()


@_target
def result(data: bytes) -> None:
    """What a tool answered, as clients are shown it."""
    value = _object(data)
    with suppress(UsageError):
        for blocks in (to_blocks(value), to_resource_blocks(value)):
            text_of(blocks)
            guarded = guard(blocks, max_bytes=200, max_lines=5)
            json.dumps(guarded.blocks)


@_target
def records(data: bytes) -> None:
    """What servers list: names, URIs, schemas, and an index over them."""
    value = _object(data)
    listed = {kind: _listed(value, kind) for kind in ("tools", "resources", "templates", "prompts")}
    config = parse_config({"mcpServers": {"a": {"command": "x"}, "b-b": {"command": "y"}}})
    entries = {name: replace(ServerEntry(name, ""), **listed) for name in config.servers}
    index = Index.build(config.servers, entries, config.settings)
    names = [target.name for target in index.tools()]
    assert len(set(names)) == len(names)
    for target in index.tools():
        assert index.get(target.name) is target
        parameters_text(target.record.get("inputSchema")).encode("utf-8", "replace")
        fit("tool", target.record)
        index.suggest(target.name)
    for place in (*index.resources(), *index.templates()):
        index.resolve_uri(place.uri)
        index.resolve_template(place.uri)
        assert uris.unqualified(uris.qualified(place.server, place.original)) == (
            place.server,
            place.original,
        )


@_target
def skills(data: bytes) -> None:
    """The entry of a skill, as it is listed and remembered, and the content of a file."""
    record = _object(data)
    content_of(record)
    without_front_matter(data.decode(errors="replace"))
    if fault_of(record):
        return
    config = parse_config({"mcpServers": {"a": {"command": "x"}}})
    index = Index.build(config.servers, {"a": ServerEntry("a", "", skills=(record,))}, config.settings)
    (skill,) = index.skills()
    assert index.skill_at(skill_entry(skill)["uri"]) is skill
    paths = [file.path for file in files_of(record) or ()]
    assert len(set(paths)) == len(paths)
    assert not any(part in ("", ".", "..") for path in paths for part in path.split("/"))
    assert agree(skill_print(record), skill_print(skill.record)) or skill.hidden


@_target
def hidden(data: bytes) -> None:
    """A definition as it is shown: nothing in it is hidden, nothing is lost, and what was shown leads back."""
    record = dict(_object(data))
    shown, back = unhidden_record(record)
    again, _ = unhidden_record(shown)
    assert again == shown
    assert all(unhidden(text) == text for text in _texts(shown))
    _same_form(record, shown)
    if back is not None:
        own = back.own(dict.fromkeys(shown, None))
        assert own.keys() == record.keys()
    assert fingerprint(record) == fingerprint(dict(reversed(record.items())))


def _texts(value: Any) -> Generator[str]:
    if isinstance(value, str):
        yield value
    for name, each in value.items() if isinstance(value, dict) else ():
        yield name
        yield from _texts(each)
    for each in value if isinstance(value, list) else ():
        yield from _texts(each)


def _same_form(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict | list):
        assert len(one) == len(other)
        values = (one.values(), other.values()) if isinstance(one, dict) else (one, other)
        for pair in zip(*values, strict=True):
            _same_form(*pair)


def _listed(value: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], ...] | None:
    """What a reader of lists leaves of one: its objects."""
    said = value.get(kind)
    return tuple(record for record in said if isinstance(record, dict)) if isinstance(said, list) else None


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        return wire.decode_result(bytes(safe_text.repair_utf8(data)))
    except wire.WireFault:
        return {}


@_target
def items(data: bytes) -> None:
    """A page of a list, taken apart as a large one is, has what it has when the decoder splits it."""
    page = bytes(safe_text.repair_utf8(data))
    with suppress(wire.WireFault):
        wire.decode_result(page)
        at_once, apart = (_came_of(page, how) for how in (Items.read, Items._read_large))
        if b"\\" not in page and all(page.count(key) < 2 for key in (b'"tools"', b'"nextCursor"')):
            assert at_once == apart


def _came_of(page: bytes, read: Callable[[Items, bytes], object]) -> object:
    found = Items("tools", "name", 20)
    try:
        cursor = read(found, page)
    except wire.WireFault as fault:
        return str(fault)
    return found.found, cursor, found.is_full, dict(found.left_out)


@_target
def text(data: bytes) -> None:
    """Text from outside, as a person may be shown it: nothing that a terminal obeys."""
    said = data.decode(errors="replace")
    for shown in (printable(said), one_line(said, 50)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert len(one_line(said, 50)) <= 50
    assert len(one_line(said, 50).splitlines()) <= 1
    assert json.loads(seen_in_json(json.dumps(said, ensure_ascii=False))) == said


@_target
def body(data: bytes) -> None:
    """An encoded body: in bounded pieces, or refused."""
    with suppress(BadAnswer):
        unpack = _decoder(("gzip", "deflate", "identity", "zebra")[data[0] % 4 if data else 0])
        for piece in _cut(data[1:])[0]:
            assert all(len(part) <= PIECE for part in unpack(piece))


@_target
def request_headers(data: bytes) -> None:
    """What the program of `requestHeadersCommand` writes: headers that can be sent, or what is wrong, in words."""
    said = _headers(data.decode(errors="replace"))
    if isinstance(said, str):
        said.encode()
        return
    for name, value in said.items():
        (name + value).encode("ascii")
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", name + value)


# ---- what clients and commands say ---------------------------------------------------------------------------------


@_target
def door(data: bytes) -> None:
    """A line of a client: its envelope, and its params as each method reads them."""
    rpc.read_head_id(data)
    try:
        message = rpc.read_client_line(data)
        key = rpc.read_id(message)
    except RpcFault as fault:
        json.loads(rpc.error_line(b"", fault))
        return
    readers: tuple[Callable[[msgspec.Raw], object], ...] = (
        *(rpc.read_call, rpc.read_plain_call, rpc.read_cancel),
        *(rpc.read_object, rpc.read_value),
        lambda params: rpc.read_meta(rpc.read_parts(params)),
    )
    for read in readers:
        try:
            read(message.params)
        except RpcFault as fault:
            json.loads(rpc.error_line(key, fault))
    if bytes(message.result):
        for said in (rpc.for_handshake, lambda result: rpc.for_modern(result, {}, {})):
            with suppress(*rpc.UNWRITABLE):
                json.loads(said(bytes(message.result)))


@_target
def token(data: bytes) -> None:
    """An access token: what a client makes up is refused, and what the issuer signs has a caller or is refused."""
    header, _, claims = data.partition(b"\n")
    with suppress(jwt.PyJWTError, ValueError, TypeError, AttributeError, NotImplementedError, RecursionError):
        said = {str(key): value for key, value in json.loads(header).items()}
        _judged(jwt.api_jws.encode(claims, _SECRET, said.pop("alg", "HS256"), said, sort_headers=False))
    _judged(data.decode(errors="replace"))
    signed = jwt.api_jws.encode(claims, _SECRET, "HS256", {"kid": "k"})
    _judged(signed, known=True)


@_target
def issuer_keys(data: bytes) -> None:
    """The keys of an issuer, and a token that names one of them."""
    for signed in (_signed("RS256"), _signed("ES256"), _signed("EdDSA")):
        _judged(signed, data)


_SECRET: Final = "a secret of thirty-two characters or more"
_TERMS: Final = Terms(
    issuer="http://127.0.0.1",
    resource="http://127.0.0.1/mcp",
    audiences=("http://127.0.0.1/mcp",),
    scopes=("a",),
    profile_claim="p",
    profiles={"b": "c"},
    keys="http://127.0.0.1/keys",
)


def _signed(algorithm: str) -> str:
    parts = (json.dumps({"alg": algorithm, "kid": "k"}).encode(), b"{}", b"signed")
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _judged(token: str, keys: bytes = b'{"keys":[{"kty":"RSA","kid":"k"}]}', *, known: bool = False) -> None:
    """Whose token this is, at a door whose issuer has these keys. `known`: whatever it says, it is signed as it
    should be."""

    async def fetch(_url: str, _most: int) -> bytes:
        return keys

    async def judge() -> None:
        door = OAuth(_TERMS, notes.append)
        door._keys = IssuerKeys(_TERMS.issuer, _TERMS.keys, fetch, notes.append)
        if known:
            door._claims = claims
        with suppress(HttpRefusal):
            caller = await door.caller(token.encode(errors="replace"))
            assert known
            str(caller)

    async def claims(token: bytes) -> Mapping[str, Any]:
        try:
            return jwt.decode(
                token,
                _SECRET,
                algorithms=["HS256"],
                audience=_TERMS.audiences,
                issuer=_TERMS.issuer,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise HttpRefusal(401, "") from None

    notes: list[str] = []
    asyncio.run(judge())
    str(notes).encode()


@_target
def kept_output(data: bytes) -> None:
    """A page of a kept text, by what a model says: the pages are the text, whatever their bounds."""
    with suppress(UsageError):
        said = parse_mcp({"output": "x", **_object(data)})
        with TemporaryDirectory() as folder, suppress(OSError):
            Spill(Path(folder)).page(said.subject, said.offset, 100, 5)
    with TemporaryDirectory() as folder:
        spill, wanted = Spill(Path(folder) / "o"), data[2:].decode(errors="replace")
        path = spill.write(wanted)
        lines, most = 1 + (data[:1] or b"\0")[0] % 8, 8 + (data[1:2] or b"\0")[0]
        found, offset = "", 0
        while True:
            page = spill.page(path.stem.removeprefix("output-"), offset, most, lines)
            assert page is not None
            assert page.start == offset
            found, offset = found + page.text, page.end
            if page.end == page.size:
                break
            assert page.text
        assert found == wanted


@_target
def command(data: bytes) -> None:
    """A line on the control socket."""
    with suppress(UsageError):
        method, params = parse_request(data)
        assert isinstance(method, str)
        assert isinstance(params, dict)


@_target
def patterns(data: bytes) -> None:
    """Patterns and names from a configuration and from models, in linear time."""
    pattern, _, name = data.decode(errors="replace").partition("\n")
    selector((pattern,))(name)
    uris.unqualified(pattern)
    expand(pattern, {"A": name})
    missing_variables(pattern, {})


# ---- files ---------------------------------------------------------------------------------------------------------


@_target
def jsonc(data: bytes) -> None:
    """JSON as people keep it: whatever is JSON is read as such."""
    text = data.decode(errors="replace").removeprefix("\ufeff")
    try:
        strict = json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        strict = None
    try:
        value = loads(text)
    except NotJsonError as error:
        said = str(error)
        assert strict is None or "nested too deeply" in said
    else:
        assert strict in (None, json.dumps(value))


@_target
def config(data: bytes) -> None:
    """A configuration file, up to the moment a server is started. Its secrets are in nothing that is shown."""
    try:
        parsed = parse_config(loads(data.decode(errors="replace")), environ={})
    except NotJsonError:
        return
    except ConfigError as error:
        str(error).encode()
        return
    for definition in parsed.servers.values():
        definition_hash(definition, {}, "/")
    json.dumps(redacted(parsed), ensure_ascii=False).encode()
    str(parsed.problems).encode()


@_target
def redaction(data: bytes) -> None:
    """A planted secret is in nothing that is said, whatever stands around it."""
    cut = data[:1] or b"\0"
    text = data[1:].decode(errors="replace")
    at = cut[0] % (len(text) + 1)
    secret = "s3cr3t-of-somebody"
    secrets = Secrets([SecretValue("TOKEN", secret), SecretValue("OTHER_TOKEN", text[:40])])
    for spelled in (secret, json.dumps(secret), secret + "\n"):
        said = secrets.without(text[:at] + spelled + text[at:])
        assert secret not in said
    parsed = parse_config(
        {"mcpServers": {"a": {"command": "x", "env": {"TOKEN": secret}, "args": [text, f"--token={secret}"]}}}
    )
    assert secret not in json.dumps(redacted(parsed))


@_target
def catalogue(data: bytes) -> None:
    """The cache: read or set aside, and then written."""
    with TemporaryDirectory() as folder:
        file = CatalogueFile(Path(folder) / "catalogue.json")
        file.path.write_bytes(data)
        file.load({"s": "h"}, NOW)
        entry = ServerEntry("s", "h", tools=({"name": "t"},), fetched_at=NOW + 1, revision=2**40)
        assert file.save([entry], NOW + 1) is None or file.path.exists()
        again = file.load({"s": "h"}, NOW + 1)
        assert again.entries["s"].tools == entry.tools


@_target
def yaml_text(data: bytes) -> None:
    """A configuration in YAML: read, or refused in words that show no value."""
    repeated: dict[str, None] = {}
    if data.count(b"[") + data.count(b"{") > 200:  # these take the library a second or two, and are known
        return
    try:
        value = file_formats.load_yaml(data.decode(errors="replace"), repeated)
    except NotJsonError as error:
        str(error).encode()
        return
    str([*repeated]).encode()
    with suppress(ConfigError):
        json.dumps(redacted(parse_config(value, environ={})), ensure_ascii=False).encode()


@_target
def api_document(data: bytes) -> None:
    """A document of an API: refused, or tools whose schemas can be listed and whose calls go to their own path."""
    try:
        found = read_document(data, "x")
    except DocumentError as refused:
        str(refused).encode(errors="strict")
        return
    for operation in [*found.operations.values()][:20]:
        tool, _ = operation.listed(with_output=True)
        encoding.encode(tool)
        names = tool["inputSchema"]["properties"]
        assert [*names] == operation.inputs.arguments
        for value in ("..", {"a": ["b", {"c": None}]}, [1.0, "\r\n"], {"base64": "AA=="}, True):
            with suppress(ArgumentError):
                request = build_request(operation, dict.fromkeys(names, value), "http://h/base")
                assert request.url.startswith("http://h/base/"), request.url
                assert request.url.isprintable()
                assert request.url.isascii()
                assert all("\n" not in text and "\r" not in text for pair in request.headers for text in pair)
        encoding.encode(to_result(operation, 200, {"content-type": "application/json"}, data[:100]))


@_target
def api_answer(data: bytes) -> None:
    """An HTTP answer: its first line is the content type, its second the status."""
    media, status, body = (*data.split(b"\n", 2), b"", b"")[:3]
    code = int(status) if status.isdigit() and len(status) == 3 else 200
    found = to_result(_OPERATION, code, {"content-type": media.decode("latin-1"), "location": "x"}, body)
    encoding.encode(found)
    assert found["content"]


class _Wire(asyncio.Transport):
    """Carries the connection of an HTTP client. `close` and `abort` are the end of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_over = False

    def write(self, data: Any) -> None:
        assert not self.is_over
        self.written += data

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True

    def is_closing(self) -> bool:
        return self.is_over

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert not self.is_over

    def resume_reading(self) -> None:
        assert not self.is_over


async def _requests_in(pieces: list[bytes]) -> tuple[list[object], bool]:
    """The requests that came on a connection, each with its body or how it was refused; and whether it was closed."""
    came: list[object] = []

    async def answer(request: DoorRequest) -> None:
        try:
            body = bytes(await request.body(1 << 20, time))
        except HttpRefusal as refusal:
            came.append(refusal.status)
            request.refuse(refusal)
        except ClientGone:
            pass
        else:
            came.append((request.method, request.path, request.headers, body))
            request.answer(200, b"{}")

    def door(request: DoorRequest) -> None:
        if request.fault is None:
            request.later(answer(request))
        else:
            came.append(request.fault.status)
            request.refuse(request.fault)

    rules = Rules(sent_at_once=1 << 20)
    time = body_time(rules)
    connections, line = DoorConnections(door, rules), _Wire()
    connection = DoorConnection(connections)
    connection.connection_made(line)
    for piece in pieces:
        connection.data_received(piece)
        while tasks := connections.tasks:  # until nothing more is answered without what comes next
            done, _ = await asyncio.wait(tuple(tasks), timeout=0)
            await asyncio.sleep(0)
            if not done:
                break
    is_over = line.is_over
    connection.connection_lost(None)
    await asyncio.gather(*connections.tasks)
    assert line.written.count(b"HTTP/1.1 200 OK") == sum(isinstance(each, tuple) for each in came)
    assert not connections.open
    return came, is_over


@_target
def http_door(data: bytes) -> None:
    """What comes at the HTTP door: the same requests, however it is cut."""
    cut, text = _cut(data)
    assert asyncio.run(_requests_in(cut)) == asyncio.run(_requests_in([text]))


@_target
def env_file(data: bytes) -> None:
    """An environment file: variables that a process can be given, or whose it is and what to do."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / ".env"
        file.write_bytes(data)
        try:
            found = variables_in(str(file), "s")
        except ConnectFailed as error:
            str(error).encode()
            return
        for name, value in found.items():
            assert "\0" not in (name + value)
            assert name
            assert "=" not in name
            (name + value).encode()


@_target
def pins(data: bytes) -> None:
    """The pins: read or set aside, compared, and then written."""
    with TemporaryDirectory() as folder:
        file = PinsFile(Path(folder) / "pins.json")
        file.path.write_bytes(data)
        wanted = {"s": PinKey("k", "origin")}
        found, _ = file.load(wanted)

        def learn(_: str, known: ServerPins | None) -> ServerPins:
            known = known or ServerPins(NOW)
            known.learn({"t": fingerprint({"name": "t"})}, NOW)
            str(known.pinned)
            return known

        after, warning = file.change(wanted, learn)
        assert warning is None
        assert "t" in after["s"].tools
        assert found.keys() <= after.keys()


OWNER: Final = "0" * 64
TASK: Final = "a" * 32


@_target
def kept_task(data: bytes) -> None:
    """The file of a task that another gateway has left: found and listed, or passed over."""

    async def look(folder: Path) -> None:
        tasks = TaskStore(TaskFolder(folder, print))
        await tasks.open()
        try:
            listed = [task.id for task in await tasks.all_of(OWNER)]
            with suppress(RpcFault):
                task = await tasks.find(TASK, OWNER)
                assert task.id in listed
                assert task.result is None or task.result.startswith(b"{")
                with suppress(*wire.UNWRITABLE):
                    rpc.encode(task.in_full())
                    rpc.encode(task.said(modern=False))
        finally:
            tasks.close()

    with TemporaryDirectory() as name:
        left = Path(name) / f"gateway-{'b' * 22}"
        left.mkdir(mode=0o700)
        file = left / f"{OWNER}-{TASK}.task"
        file.write_bytes(data)
        os.utime(file, (2**33, 2**33))
        asyncio.run(look(Path(name)))


@_target
def search_forms(data: bytes) -> None:
    """What search has made of tools: as a file and as a record of it. Nothing else is found for it."""
    entry = ServerEntry("s", "h", tools=({"name": "create_issue", "description": "Create an issue"},))

    def found(forms: SearchCache | None) -> list[tuple[str, int]]:
        index = Index.build({"s": ServerDefinition("s", command="x")}, {"s": entry}, Settings(), forms=forms)
        return [(match.target.name, match.score) for match in search(index, "issues").matches]

    assert found(SearchCache({key_of(entry): data})) == found(None)
    with TemporaryDirectory() as folder:
        file = SearchFile(Path(folder) / "catalogue.json", max_age=0)
        file.path.write_bytes(data)
        forms = SearchCache(file.load([key_of(entry)]), lambda news: file.save(news, NOW))
        assert found(forms) == found(None)
        assert key_of(entry) in file.load([key_of(entry)])


@_target
def vectors(data: bytes) -> None:
    """The vectors of tools: read, or there are none; then one is written and found again."""
    with TemporaryDirectory() as folder:
        file = VectorFile(Path(folder) / "catalogue.vectors", "model", 4, max_age=0)
        file.path.write_bytes(data)
        assert all(len(vector) == 4 for vector in file.load().values())
        file.save({b"digest": b"1234"}, NOW)
        assert file.load()[b"digest"] == b"1234"


@_target
def meaning_model(data: bytes) -> None:
    """Each file of a model: it is refused, or texts have vectors."""
    for name in FILES:
        with TemporaryDirectory() as folder:
            model = write_model(Path(folder))
            (model / name).write_bytes(data)
            with suppress(Unusable):
                assert len(Encoder(model).encode("search files")) > 0


@_target
def agreements(data: bytes) -> None:
    """What was agreed to: read, or nothing is; then a yes is written and found again."""
    with TemporaryDirectory() as folder:
        file = Agreements(Path(folder) / "trust.json")
        file.path.write_bytes(data)
        file.path.chmod(0o600)
        one = ProjectFile("/a/.mcp.json", "/a", {}, ("s",), "f" * 64)
        assert not file.allows(one) or b"f" * 64 in data or b"\\u" in data
        file.add([one])
        assert file.allows(one)
        assert "/a/.mcp.json" in file.forget("/a")
        assert not file.allows(one)


@_target
def audit_lines(data: bytes) -> None:
    """An audit file: checked, and gone on with if it may be. What was bad before is bad after."""
    report = audit.check(io.BytesIO(data))
    assert report.bad is None or report.bad.why
    with suppress(audit.BadAuditLine):
        end = audit.end_of(data, is_all=True)
        torn = {"torn": audit.torn_as(end.part)} if end.part else {}
        line, _ = audit.line_of({"kind": audit.OPENED, **torn}, end.seq + 1, end.hash)
        again = audit.check(io.BytesIO(data + (b"\n" if end.part or end.lacks_end else b"") + line))
        assert again.bad is not None or report.bad is None or report.bad.torn or not data
    audit.digest_of(data)
