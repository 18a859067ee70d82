"""A calm: the chaos stops, and everything must come back to what it was.

First whatever lasts is undone (who was stopped goes on, the file is what it was, servers that stand are connected
again). Then every request is answered, nobody but the standing servers is live, no process is left of an incarnation
that is over, no child is a zombie. What the gateway then holds (descriptors, tasks) is exactly what it held in the calm
after the first act.

Its memory is compared with what it was in the second calm: by then its code is loaded, its buffers have had their size,
and the allocator holds on to what the worst moment took. `ROOM_TO_GROW` is for fragments and for worse moments; what
leaks with each of a run's hundreds of incarnations and thousands of calls grows beyond that, act by act. So it is the
long runs that judge of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs

from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus, status_from

from . import _look as look
from ._books import Contradiction
from ._cast import STANDING
from ._events import EventLog
from ._world import World

ROOM_TO_GROW: Final = 16.0  # MiB
_PATIENCE: Final = 40.0  # seconds: two timeouts, a wait for a slot and a gate, one after the other
_TWICE: Final = 2  # looks in a row that must find calm: between two, a reload may begin


@attrs.frozen
class Holdings:
    """What a gateway holds in a calm."""

    resident: float
    descriptors: Counter[str]
    tasks: int
    threads: int

    def __str__(self) -> str:
        count = self.descriptors.total()
        return f"{self.resident:.1f} MiB, {count} descriptors, {self.tasks} tasks, {self.threads} threads"


@attrs.define
class Calm:
    world: World
    log: EventLog
    base: Holdings | None = None  # in the first calm
    warm: Holdings | None = None  # in the second
    last: Holdings | None = None

    def come(self) -> None:
        """Make it calm, and look around. Raises `Contradiction`."""
        self._undo()
        self._wait("every request is answered", lambda: self._unanswered() or None)
        self._wait("every server is where it belongs", self._restless, looks=_TWICE)
        self._wait("no process is left of an incarnation that is over", self._strays)
        self._wait("no child is a zombie", lambda: look.zombies(self.world.gateway.pid) or None)
        self.log.read_on()
        self._compare()

    def _undo(self) -> None:
        world = self.world
        world.loop.ring_all()
        world.cast.restore()
        world.cast.write()
        world.loop.run_for(1.0)  # the file is watched: its change is one reload, half a second later

    def _wait(self, what: str, trouble: Callable[[], object], looks: int = 1) -> None:
        """Until there is no trouble, so many times in a row."""
        calm = 0
        last: object = None
        deadline = _PATIENCE
        while calm < looks:
            last = trouble()
            calm = calm + 1 if last is None else 0
            self.world.loop.run_for(0.15)
            deadline -= 0.15
            if deadline < 0:
                raise Contradiction(f"{what}: not within {_PATIENCE:g}s; {last}")

    def _unanswered(self) -> list[str]:
        return [f"{question.number}: {question.what}" for question in self.world.books.open.values()]

    def _restless(self) -> object:
        """Who is not where it belongs. Standing servers that are down are asked to come back."""
        rows = self._rows()
        wanted = set(self.world.cast.present)
        if set(rows) != wanted:
            strange = [rows[name] for name in set(rows) - wanted]
            return f"missing: {sorted(wanted - set(rows))}, there besides: {strange}"
        restless = {name: row for name, row in rows.items() if not _rests(name, row)}
        for name in set(restless) & set(STANDING):
            if restless[name].state is State.IDLE:
                self.world.gateway.ask("reconnect", _PATIENCE, server=name)
        return restless or None

    def _rows(self) -> dict[str, ServerStatus]:
        status = self.world.gateway.ask("status", 10.0)
        others = [status_from(row) for row in status.get("addresses", ())]
        rows = {row.server: row for row in map(status_from, status["servers"])}
        return rows | {f"{row.server}[{row.scope}]": row for row in others}

    def _strays(self) -> object:
        pid = self.world.gateway.pid
        everybody = look.marked(self.world.cast.token)
        present = {look.incarnation(child) for child in everybody & look.children(pid)}
        strays = [look.describe(pid) for pid in everybody if look.incarnation(pid) not in present]
        return strays or (None if len(present) == len(STANDING) else f"live: {sorted(present)}")

    def _compare(self) -> None:
        if self.base is None:
            self._wait(
                "the guard is there", lambda: None if look.guard_of(self.world.gateway.pid) else "it is not"
            )
            self.last = self.base = self._holdings()
            return
        self._wait("descriptors and tasks are as they were", self._surplus)
        assert self.last is not None
        self.warm = self.warm or self.last
        if self.last.resident > self.warm.resident + ROOM_TO_GROW:
            raise Contradiction(f"it has grown from {self.warm} to {self.last}")

    def _surplus(self) -> object:
        assert self.base is not None
        now = self.last = self._holdings()
        more = now.descriptors - self.base.descriptors
        less = self.base.descriptors - now.descriptors
        if more or less or now.tasks != self.base.tasks:
            return f"more: {dict(more)}, less: {dict(less)}, tasks: {self.base.tasks} before, {now.tasks} now"
        return None

    def _holdings(self) -> Holdings:
        vitals = self.world.gateway.ask("vitals", 10.0)
        pid = self.world.gateway.pid
        return Holdings(
            look.resident(pid), Counter(look.descriptors(pid)), vitals["tasks"], vitals["threads"]
        )


def _rests(name: str, row: ServerStatus) -> bool:
    wanted = State.CONNECTED if name in STANDING else State.IDLE
    return row.state is wanted and not (row.in_flight or row.queued or row.waiting_for)
