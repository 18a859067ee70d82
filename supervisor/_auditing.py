"""Whether a room keeps an audit file, and what it then does otherwise. A room without one loads nothing for it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..protocol.events import Note, NoteCode
from ._caller import Caller
from ._given import path

if TYPE_CHECKING:
    from ..actors import AuditFile
    from ._profile_view import ProfileView
    from ._runtime import Runtime


def audit_file(place: str | os.PathLike[str] | None) -> AuditFile | None:
    """The file at this place, which nobody has opened yet."""
    if place is None:
        return None
    from ..actors import AuditFile

    return AuditFile(path(place, "audit"))


def caller_of(runtime: Runtime, session: str | None = None, view: ProfileView | None = None) -> Caller:
    """The caller of a room or of a session."""
    if runtime.audit is None:
        return Caller(runtime, session, view)
    from ._audited import AuditedCaller

    return AuditedCaller(runtime.audit, runtime, session, view)


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
