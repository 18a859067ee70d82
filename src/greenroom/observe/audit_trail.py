"""The audit of a room: a watcher that adds a line to the audit file for each call that ends.

A line says who asked for what, and what came of it: the one outcome of the call, whoever refused it. It has a digest of
the arguments, made when the call begins: as its caller wrote them, before an override changes them. Calls of methods
that are not audited (`safety.audit.AUDITED`) have no line.

Rejected: to read the event stream. Its events know no arguments.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..actors.watchers import Order
from ..protocol.address import Address
from ..protocol.errors import RateLimited, RepeatedCall, UsageError
from ..protocol.events import Note, NoteCode
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.result import says_error
from ..safety import audit
from ..safety.audit_file import AuditFile

if TYPE_CHECKING:
    from pathlib import Path

    from ..actors.call import Call
    from ..actors.event_stream import EventStream
    from ..supervisor.attachments import RoomSeam

_NAMES = {"resources/read": "uri"}  # where params have the name of what is asked for; else in `name`


class _AuditedQuestion(msgspec.Struct, frozen=True, gc=False):
    """What a call asked for, when it began."""

    name: str
    digest: str | None
    size: int


class AuditTrail:
    """Writes a line for each call that ends, into the file at this place, which nobody has opened yet."""

    _events: EventStream  # of the room that it is attached to

    def __init__(self, place: Path) -> None:
        self.file: AuditFile = AuditFile(place)
        self._open: dict[Call, _AuditedQuestion] = {}

    @asynccontextmanager
    async def attached(self, room: RoomSeam) -> AsyncGenerator[None]:
        events = self._events = room.events
        self.file.open(lambda text: events.emit(Note, code=NoteCode.AUDIT, words=text), events.backend.now)
        room.watchers.add(self, Order.AUDIT)
        try:
            yield
        finally:
            self.file.close()

    def began(self, call: Call) -> None:
        if call.method in audit.AUDITED:
            params = call.params or {}
            name = call.tool or params.get(_NAMES.get(call.method, "name"), "")
            self._open[call] = _AuditedQuestion(name, *_digest(params.get("arguments")))

    def ended(self, call: Call) -> None:
        question = self._open.pop(call, None)
        if question is None:
            return
        try:
            self.file.write(self._record(call, question))
        except Exception as error:
            self.file.failed(error)

    def _record(self, call: Call, question: _AuditedQuestion) -> dict[str, Any]:
        origin, server = call.origin, call.server
        hide = partial(self._events.hide, _address(server, origin.session))
        record: dict[str, Any] = {"door": origin.door}
        if origin.session is not None:
            record["session"] = audit.shown(origin.session, hide)
        if origin.client is not None:
            record["client"] = audit.client_of(origin.client, hide)
        if origin.subject is not None:
            record["subject"] = audit.shown(origin.subject, hide)
        if server is not None:
            record["server"] = audit.shown(server, hide)
        record |= {"method": call.method, "tool": audit.shown(call.tool or question.name, hide)}
        if call.original is not None:
            record["original"] = audit.shown(call.original, hide)
        if call.method != "resources/read":
            record |= {"arguments": question.digest, "bytes": question.size}
        record |= {"outcome": call.outcome, "reach": call.reach.value}
        record["ms"] = round((call.ended_at - call.began_at) * 1000, 1)
        return {**record, **_more(call)}


def _more(call: Call) -> dict[str, Any]:
    """What only some calls have."""
    more: dict[str, Any] = {} if call.approval is None else {"approval": call.approval}
    if isinstance(call.error, RateLimited | RepeatedCall):
        more["limit"] = call.error.limit
    if call.number:
        more["call"] = call.number
    if call.result is not None and says_error(call.result):
        more["isError"] = True
    return more


def _address(server: str | None, session: str | None) -> Address | None:
    if server is None or session is None:
        return None if server is None else Address(server)
    return Address.of_session(server, session)


def _digest(arguments: object) -> tuple[str | None, int]:
    if arguments is None:
        return audit.digest_of(b"")
    if isinstance(arguments, msgspec.Raw | bytes):
        return audit.digest_of(bytes(arguments))
    try:
        return audit.digest_of(encode_json(arguments))
    except UsageError:  # they cannot be written as JSON, and the call will be refused for it
        return None, 0
