"""The port of a room that keeps an audit file: it tells each request that was asked for, once.

A room without an audit file has a plain `RoomPort`, so a call there takes no step more. With one, room and sessions
have this class in its place. It stands where every request to a server passes, before the circuit breakers and the
approvals, and hears of the end by the call's own `on_end`, which is called exactly once. A refusal is told where it is
raised.

A refusal may happen before there is a call: a name that no server has, arguments that do not fit. Calls of the
embedding program meet it here (`noting`). A door that looks names up by itself tells us (`turned_away`). A door may
show us an error that it got from here: that one was told already, so the last one told is remembered.

Rejected: to read the event stream. Its events know no arguments and no refusals, and a field for each would be made for
every reader. Rejected: a hook in the call table. It would be looked at by every call of every room.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..actors.call import Call
from ..config.arguments import file_of
from ..protocol.address import Address
from ..protocol.errors import CallError, GreenroomError, Reach, UsageError
from ..protocol.events import Note, NoteCode
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.result import says_error
from ..safety import audit
from ..safety.audit import AUDITED, Asked
from .profiles import ProfileView
from .room_port import RoomPort
from .runtime import Runtime

if TYPE_CHECKING:
    from ..safety.audit_file import AuditFile

_NOTHING: Final[Mapping[str, Any]] = {}
_NAMES: Final = {"resources/read": "uri"}  # where params have the name of what is asked for; else in `name`


class _Entry(msgspec.Struct, eq=False):
    """A request before it has ended, as the audit will have it."""

    asked: Asked
    original: str | None
    since: float
    digest: str | None
    size: int
    on_end: Callable[[Call], None] | None = None


class AuditedPort(RoomPort):
    """A `RoomPort` whose requests are told to an audit file."""

    def __init__(
        self, file: AuditFile, runtime: Runtime, session: str | None = None, view: ProfileView | None = None
    ) -> None:
        super().__init__(runtime, session, view)
        self._file = file
        self._last: Callable[[], object] = _nobody  # the error that was told last

    # ---- requests that became calls ---------------------------------------------------------------------------------

    def submit(self, server: str, call: Call, *, allowed: bool = False) -> None:
        if allowed or call.method not in AUDITED:
            super().submit(server, call, allowed=allowed)
            return
        params = call.params or {}
        original = str(params.get(_NAMES.get(call.method, "name"), ""))
        asked = Asked(call.method, call.tool or original, server, params.get("arguments"))
        entry = self._entry(asked, original)
        entry.on_end = call.on_end
        if call.on_end is None and self.runtime.is_built:  # as its table would, for a call without a callback
            call.waiter = self.runtime.context.backend.waiter()
        call.on_end = partial(self._ended, entry)
        try:
            super().submit(server, call)
        except BaseException as error:
            self._raised(entry, error, _decided(call))
            raise

    def _ended(self, entry: _Entry, call: Call) -> None:
        try:
            more = _decided(call)
            if call.number:
                more["call"] = call.number
            if call.result is not None and says_error(call.result):
                more["isError"] = True
            self._tell(entry, call.outcome, call.reach, more)
        finally:  # whatever happens here, the call has ended
            if entry.on_end is not None:
                entry.on_end(call)

    # ---- requests that did not --------------------------------------------------------------------------------------

    def refused(self, error: CallError, asked: Asked | None = None) -> CallError:
        super().refused(error, asked)
        if asked is not None:
            self.turned_away(asked, error)
        return error

    @contextmanager
    def counting_refusals(self, asked: Asked | None = None) -> Generator[None]:
        with self.noting(asked) if asked is not None else nullcontext(), super().counting_refusals(asked):
            yield

    @contextmanager
    def noting(self, asked: Asked) -> Generator[None]:
        entry = self._entry(asked, None)
        try:
            yield
        except BaseException as error:
            self._raised(entry, error)
            raise

    def turned_away(self, asked: Asked, why: GreenroomError | str) -> None:
        if isinstance(why, str):
            self._tell(self._entry(asked, None), why, Reach.NOT_SENT, {})
        elif why is not self._last():
            self._raised(self._entry(asked, None), why)

    def _raised(self, entry: _Entry, error: BaseException, more: Mapping[str, Any] = _NOTHING) -> None:
        if isinstance(error, CallError):
            self._tell(entry, error.code, error.reach, more)
        elif isinstance(error, GreenroomError):
            self._tell(entry, error.code, Reach.NOT_SENT, more)
        # One that is thrown away unended says nothing: perhaps the loop has ended, and there is no clock.
        elif not isinstance(error, GeneratorExit):
            self._tell(entry, "bug" if isinstance(error, Exception) else "cancelled", Reach.NOT_SENT, more)
        self._remember(error)

    def _remember(self, error: BaseException) -> None:
        self._last = weakref.ref(error) if isinstance(error, GreenroomError) else _nobody

    # ---- lines ------------------------------------------------------------------------------------------------------

    def _entry(self, asked: Asked, original: str | None) -> _Entry:
        digest, size = _digest(asked.arguments)
        return _Entry(asked, original, self.runtime.events.backend.now(), digest, size)

    def _tell(self, entry: _Entry, outcome: str, reach: Reach, more: Mapping[str, Any]) -> None:
        """Add the line for this request. If that fails, the caller does not notice."""
        try:
            self._file.write(
                {**self._record(entry), "outcome": outcome, "reach": reach.value, **self._took(entry), **more}
            )
        except Exception as error:
            self._file.failed(error)

    def _took(self, entry: _Entry) -> dict[str, Any]:
        return {"ms": round((self.runtime.events.backend.now() - entry.since) * 1000, 1)}

    def _record(self, entry: _Entry) -> dict[str, Any]:
        """The fields of a line that say who asked for what."""
        asked, server = entry.asked, entry.asked.server
        hide = partial(self.runtime.events.hide, _address(server, self.session))
        record: dict[str, Any] = {"door": self.door}
        if self.session is not None:
            record["session"] = audit.shown(self.session, hide)
        if self.client_said is not None:
            record["client"] = audit.client_of(self.client_said, hide)
        if self.subject is not None:
            record["subject"] = audit.shown(self.subject, hide)
        if server is not None:
            record["server"] = audit.shown(server, hide)
        record |= {"method": asked.method, "tool": audit.shown(asked.name, hide)}
        if entry.original is not None:
            record["original"] = audit.shown(entry.original, hide)
        if asked.method != "resources/read":
            record |= {"arguments": entry.digest, "bytes": entry.size}
        return record


def _address(server: str | None, session: str | None) -> Address | None:
    if server is None or session is None:
        return None if server is None else Address(server)
    return Address.of_session(server, session)


def _decided(call: Call) -> dict[str, Any]:
    """What was decided about the call, if somebody had to allow it."""
    return {} if call.approval is None else {"approval": call.approval}


def _digest(arguments: object) -> tuple[str | None, int]:
    if arguments is None:
        return audit.digest_of(b"")
    if isinstance(arguments, msgspec.Raw | bytes):
        return audit.digest_of(bytes(arguments))
    try:
        return audit.digest_of(encode_json(arguments))
    except UsageError:  # they cannot be written as JSON, and the call will be refused for it
        return None, 0


def _nobody() -> None:
    return None


# --------------------------------------------------------------------------------------------------------------
#
#
# Whether a room keeps an audit file, and what it then does otherwise. A room without one loads nothing for it.


def audit_file(place: str | os.PathLike[str] | None) -> AuditFile | None:
    """The file at this place, which nobody has opened yet."""
    if place is None:
        return None
    from ..safety.audit_file import AuditFile

    return AuditFile(file_of(place, "audit"))


@contextmanager
def auditing(runtime: Runtime) -> Generator[None]:
    """Keep the room's audit file open, if it has one. Raises `UsageError` as `AuditFile.open` does."""
    file = runtime.audit
    if file is None:
        yield
        return
    events = runtime.events
    file.open(lambda text: events.emit(Note, code=NoteCode.AUDIT, words=text), events.backend.now)
    try:
        yield
    finally:
        file.close()
