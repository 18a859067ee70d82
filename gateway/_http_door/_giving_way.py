"""Abandoned sessions give way: when a server waits for a slot, sessions whose client has most likely gone are ended.

Many clients never send DELETE. The children of their sessions would hold their slots until the session's idle limit,
half an hour, and meanwhile nobody else's could start. So while something waits for a slot, a session ends that has a
child that rests, no open request, no open event stream, and has sent nothing for a minute: the one that has been
silent for longest first, and one for each that waits. A client that is there after all is told that its session is
gone (404), and opens another one: it knows that its child's state is lost, which it would not know if only the child
ended.

The pool itself never takes a session's child (`supervisor._pool`): whether a client has gone, only the door can tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import anyio

from ...protocol.events import Event, Kind, Lagged, StartMoved
from ...protocol.lifecycle import State
from ...protocol.start import Place
from ...protocol.status import ServerStatus

WANTED: Final = frozenset({Kind.START})  # the events that `hear` reads
_SLOT: Final = Place.SLOT.value
_SESSION: Final = "session:"


class Silent(Protocol):
    """The sessions of the door."""

    def silent(self, since: float) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name in the room, and what ends it, of those that have been silent since then; the longest first."""
        ...


class GivingWay:
    """`room` is looked at only while something waits for a slot."""

    def __init__(self, room: Any, patience: float, look_every: float) -> None:
        self._room = room
        self._patience = patience
        self._look_every = look_every
        self._wanted = anyio.Event()

    def hear(self, event: Event | Lagged) -> None:
        if isinstance(event, Lagged) or (isinstance(event, StartMoved) and event.place is Place.SLOT):
            self._wanted.set()

    async def run(self, sessions: Silent) -> None:
        """Runs until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            if self._make_room(
                sessions
            ):  # then look again soon: time alone may make others silent for long enough
                with anyio.move_on_after(self._look_every):
                    await self._wanted.wait()
                self._wanted.set()

    def _make_room(self, sessions: Silent) -> bool:
        """End what may end now. Whether anything waits."""
        rows: list[ServerStatus] = self._room.status()
        if not any(row.waiting_for == _SLOT for row in rows):
            return False
        silent = dict(sessions.silent(anyio.current_time() - self._patience))
        for name in who_gives_way(rows, silent):
            silent[name]()
        return True


def who_gives_way(rows: Iterable[ServerStatus], silent: Iterable[str]) -> list[str]:
    """The sessions that end, out of `silent`, in their order. One for each that waits, less those whose children are
    just ending: of the same server if that is what is short (a session's child waits, and its server has others that
    rest), otherwise of any."""
    rows = tuple(rows)
    resting: dict[str, list[str]] = {}
    for row in rows:
        if (
            row.scope.startswith(_SESSION)
            and row.state is State.CONNECTED
            and not (row.in_flight or row.queued)
        ):
            resting.setdefault(row.scope.removeprefix(_SESSION), []).append(row.server)
    left = [name for name in silent if name in resting]
    leaving = Counter(row.server for row in rows if row.state is State.DRAINING)
    gone: list[str] = []
    for row in rows:
        if row.waiting_for != _SLOT:
            continue
        if row.scope != "shared" and leaving[row.server] > 0:
            leaving[row.server] -= 1
        elif row.scope == "shared" and leaving.total() > 0:
            leaving[max(leaving, key=leaving.__getitem__)] -= 1
        elif left:
            own = [name for name in left if row.scope != "shared" and row.server in resting[name]]
            name = (own or left)[0]
            left.remove(name)
            gone.append(name)
    return gone
