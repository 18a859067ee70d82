"""A calm: the chaos stops, and everything must come back to what it was.

First the lasting faults are undone: stopped processes go on, the file is restored, and servers that should always be
connected are connected again. Then every request must be answered, no other server may be live, no process of an ended
incarnation may be left, and no child may be a zombie. The gateway must hold exactly as many descriptors and tasks as in
the calm after the first phase.

Its memory is compared with the second calm. By then its code is loaded, its buffers have grown, and the allocator keeps
what the worst moment took. `ROOM_TO_GROW` is for fragments and for worse moments. A leak in each of a run's hundreds of
incarnations or thousands of calls grows beyond that, phase by phase, so memory is judged by the long runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs

from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus, status_from

from . import _look as look
from ._events import EventLog
from ._ledger import Contradiction
from ._server_file import STANDING
from ._world import World

ROOM_TO_GROW: Final = 16.0  # MiB
_PATIENCE: Final = (
    90.0  # seconds: enough for two timeouts, a wait for a slot and a circuit breaker, one after the other
)
_TWICE: Final = 2  # how many looks in a row must find calm: a reload may begin between two of them


@attrs.frozen
class Holdings:
    """The resources that a gateway holds in a calm."""

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
        world.server_file.restore()
        world.server_file.write()
        world.loop.run_for(1.0)  # the file is watched: its change is one reload, half a second later

    def _wait(self, what: str, trouble: Callable[[], object], looks: int = 1) -> None:
        """Wait until `looks` looks in a row find no trouble. Raises `Contradiction` after `_PATIENCE`."""
        calm = 0
        last: object = None
        deadline = _PATIENCE
        while calm < looks:
            last = trouble()
            calm = calm + 1 if last is None else 0
            self.world.loop.run_for(0.15)
            deadline -= 0.15
            if deadline < 0:
                raise Contradiction(f"{what}: not within {_PATIENCE:g} s; {last}")

    def _unanswered(self) -> list[str]:
        return [f"{request.number}: {request.what}" for request in self.world.ledger.open.values()]

    def _restless(self) -> object:
        """The servers in a wrong state. Servers that should always be connected and are down are asked to connect."""
        rows = self._rows()
        wanted = set(self.world.server_file.present)
        if set(rows) != wanted:
            strange = [rows[name] for name in set(rows) - wanted]
            return f"missing: {sorted(wanted - set(rows))}, unexpected: {strange}"
        restless = {name: row for name, row in rows.items() if not _rests(name, row)}
        for name in set(restless) & set(STANDING):
            if restless[name].state is State.IDLE:
                self.world.gateway.ask("reconnect", _PATIENCE, server=name)
        return restless or None

    def _rows(self) -> dict[str, ServerStatus]:
        status = self.world.gateway.ask("status", _PATIENCE)
        others = [status_from(row) for row in status.get("addresses", ())]
        rows = {row.server: row for row in map(status_from, status["servers"])}
        return rows | {f"{row.server}[{row.scope}]": row for row in others}

    def _strays(self) -> object:
        pid = self.world.gateway.pid
        everybody = look.marked(self.world.server_file.token)
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
