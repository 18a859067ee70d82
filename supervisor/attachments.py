"""What is attached to a room: an audit file, a tape, traces. Each is opened before the room and closed after it, and
watches it meanwhile (`actors.watchers`).

Which ones a room wants is found out in `satellites`. Here is what both sides know: what an attachment is, and what it
is given of the room.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ..config.argument_checks import path_of
from ..protocol.errors import UsageError

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..actors.event_stream import EventStream
    from ..actors.watchers import Watchers
    from ..config.known_secrets import KnownSecrets
    from ..config.model import Config
    from ..protocol.trace_context import TraceContext

AUDIT: Final = "audit"  # by these names a room has what is attached to it
TAPE: Final = "tape"
TRACES: Final = "traces"


class RoomSeam(msgspec.Struct, frozen=True, eq=False):
    """What is attached to a room is given this of it, before the room opens. `config`: the configuration as it is then;
    `stamp_with` takes what says with which trace each request is sent."""

    config: Callable[[], Config]
    events: EventStream
    secrets: KnownSecrets
    watchers: Watchers
    stamp_with: Callable[[Callable[[Call], TraceContext | None]], None]


class Attachment(Protocol):
    def attached(self, room: RoomSeam) -> AbstractAsyncContextManager[None]:
        """Put this around the room's life. Raises `UsageError` when a file cannot be written."""
        ...


# Attached to each room that is made meanwhile and is not told where to record: what makes its recorder. `redact`: the
# names of members that are not recorded.
RECORDING_ALL: ContextVar[Callable[[Collection[str]], Attachment] | None] = ContextVar(
    "greenroom_recording_all", default=None
)


@asynccontextmanager
async def attached(room: RoomSeam, attachments: Mapping[str, Attachment]) -> AsyncGenerator[None]:
    """Put this around the room's life. Raises `UsageError` when a file cannot be written."""
    async with AsyncExitStack() as stack:
        for each in attachments.values():
            await stack.enter_async_context(each.attached(room))
        yield


def tape_place(place: object) -> str:
    """Where a tape is to be recorded. Raises `UsageError` for what is no path."""
    if not (text := os.fspath(path_of(place, "record"))):
        raise UsageError("record must be the path of a folder, or of a file that ends with .tape.")
    return text
