"""Failures of the machinery itself: the one that ends a room, and those that are only reported."""

from __future__ import annotations

import traceback
from typing import cast

from ..actors import EventStream
from ..protocol.address import Address
from ..protocol.events import Note, NoteCode
from ..protocol.secrets import in_words


def sole(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception that task groups wrapped, or the group when there are more."""
    first, *others = group.exceptions
    if others:
        return group
    return (
        sole(cast("BaseExceptionGroup[BaseException]", first))
        if isinstance(first, BaseExceptionGroup)
        else first
    )


def note_timer(events: EventStream, error: BaseException) -> None:
    events.emit(Note, code=NoteCode.BUG, words=f"a timer failed: {in_words(error)}")


def note_callback(events: EventStream, address: Address, error: Exception) -> None:
    """A callback that only listens has raised: report it with its traceback; nobody else is affected."""
    text = "".join(traceback.format_exception(error))
    events.emit(Note, address, code=NoteCode.CALLBACK, words=f"a callback of the room failed: {text}")
