"""Whether a room records a tape, and what it then does otherwise. A room without one loads nothing for it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec

from ..config.arguments import path_of, texts
from ..protocol.errors import UsageError
from ..protocol.events import Note, NoteCode

if TYPE_CHECKING:
    from ..actors.room_context import RoomContext
    from ..config.model import Config
    from ..tape.lines import Schedule
    from ..tape.recorder import Recorder


class _Everything(msgspec.Struct, frozen=True):
    """Every room is recorded. `recorders`: those that were made for it."""

    folder: str
    schedule: Schedule
    recorders: list[Recorder] = msgspec.field(default_factory=lambda: list["Recorder"]())


_everything: ContextVar[_Everything | None] = ContextVar("greenroom_taping", default=None)


def recorder_at(place: str | os.PathLike[str] | None, redact: Collection[str]) -> Recorder | None:
    """What records at this place, which nobody has opened yet."""
    everything = _everything.get()
    if place is None and everything is None:
        return None
    from ..tape.recorder import Recorder

    if place is not None or everything is None:
        return Recorder(_checked(place), texts(redact, "redact"))
    recorder = Recorder(everything.folder, texts(redact, "redact"), everything.schedule)
    everything.recorders.append(recorder)
    return recorder


def _checked(place: object) -> str:
    if not (text := os.fspath(path_of(place, "record"))):
        raise UsageError("record must be the path of a folder, or of a file that ends with .tape.")
    return text


@contextmanager
def recording_all(folder: str | os.PathLike[str], schedule: Schedule) -> Generator[list[Recorder]]:
    """Each room that is opened meanwhile, and is not told where to record, records a tape in this folder. Gives those
    that record. Raises `UsageError`."""
    everything = _Everything(_checked(folder), schedule)
    token = _everything.set(everything)
    try:
        yield everything.recorders
    finally:
        _everything.reset(token)


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
