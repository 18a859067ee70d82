"""Supervision of the core actors: one_for_one, with OTP restart intensity.

When a step of a core actor raises, the actor is started again on its old mailbox. The message that broke it is gone,
and the error goes to the sender if it waits for an answer. More than `LIMIT` restarts in `PERIOD` seconds mean that
restarting does not help. Then the error is raised and ends the room. No server can cause this; it is our own bug.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

from ..actors import CoreActor, EventStream
from ..protocol.events import Note, NoteCode
from ._restart import Intensity

LIMIT: Final = 3
PERIOD: Final = 60.0


class CoreActorFailed(RuntimeError):
    """A core actor of Greenroom kept failing. Please report it, with the traceback below."""


async def keep_running(actor: CoreActor[Any], events: EventStream) -> None:
    """Run the actor until this is cancelled. Raises `CoreActorFailed` when it fails too often."""
    intensity = Intensity()
    while True:
        try:
            await actor.run()
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            words = f"the {actor.name} failed and is restarted\n{text}"
            events.emit(Note, code=NoteCode.BUG, words=words)
            intensity, too_often = intensity.restarted(actor.backend.now(), LIMIT, PERIOD)
            if too_often:
                failure = CoreActorFailed(f"the {actor.name} failed more than {LIMIT} times in {PERIOD:g}s")
                actor.close(failure)
                raise failure from error
