"""Whether a room records a tape, and what it then does otherwise. A room without one loads nothing for it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ..config.arguments import path_of
from ..protocol.errors import UsageError
from ..protocol.events import Note, NoteCode

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..config.model import Config
    from ..tape.recorder import Recorder


def recorder_at(place: str | os.PathLike[str] | None, redact: Collection[str]) -> Recorder | None:
    """What records at this place, which nobody has opened yet."""
    if place is None:
        return None
    from ..tape.recorder import Recorder

    if not os.fspath(path_of(place, "record")):
        raise UsageError("record must be the path of a folder, or of a file that ends with .tape.")
    return Recorder(place, redact)


@asynccontextmanager
async def taping(recorder: Recorder | None) -> AsyncGenerator[None]:
    """Keep the room's tape open, if it records one. Raises `UsageError` as `Recorder.open` does."""
    if recorder is None:
        yield
        return
    recorder.open()
    try:
        yield
    finally:
        if recorder.is_busy:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(recorder.finish)
        recorder.close()


def begin_tape(context: RoomContext, config: Config, recorder: Recorder) -> None:
    """Have everything that happens from now on recorded."""
    from ..tape.hearing import RecordingHost

    events, now = context.events, context.backend.now
    recorder.begin(
        config, context.secrets, now, lambda text: events.emit(Note, code=NoteCode.TAPE, words=text)
    )
    events.emit(Note, code=NoteCode.TAPE, words=f"recording the tape {recorder.path}")  # which is not on it
    context.recording = recorder
    context.host = RecordingHost(context.host, recorder, now)
    events.listen(recorder.heard_event, recorder.kinds)
