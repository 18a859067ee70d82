"""What a program reads in Python's `logging`, under the name "greenroom": each problem of its configuration, and each
exception with its traceback that its own code (watchers, callbacks, readers of events) or a bug of ours has raised.

Everything else is an event, which a program asks for. A command says all of this itself, so it turns this off
(`unlogged`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..actors.event_stream import EventStream
    from ..protocol.errors import Problem
    from ..protocol.events import Event

_IS_UNLOGGED: Final = ContextVar("greenroom_is_unlogged", default=False)


@contextmanager
def unlogged() -> Generator[None]:
    """While this is open, a room that is made logs nothing, however long it lives."""
    token = _IS_UNLOGGED.set(True)
    try:
        yield
    finally:
        _IS_UNLOGGED.reset(token)


def is_unlogged() -> bool:
    """Whether a room that is made now logs nothing."""
    return _IS_UNLOGGED.get()


def log_notes(events: EventStream) -> Callable[[Iterable[Problem]], None]:
    """Log those notes of a room from now on. Returns the function that logs problems of its configuration."""
    from ..protocol.events import Kind, Note, NoteCode  # a command that asks no room loads no events

    told = {NoteCode.BUG, NoteCode.CALLBACK, NoteCode.READER}

    def heard(event: Event) -> None:
        if isinstance(event, Note) and event.code in told:
            _warn(f"{event.address}: {event.words}" if event.address is not None else event.words)

    def problems_found(problems: Iterable[Problem]) -> None:
        for problem in problems:
            _warn(events.hide(None, str(problem)))

    events.listen(heard, [Kind.NOTE])
    return problems_found


def _warn(text: str) -> None:
    import logging  # most rooms have nothing to say

    logging.getLogger("greenroom").warning("%s", text)
