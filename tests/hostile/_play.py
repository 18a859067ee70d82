"""Tries one row at one door, and checks what must hold for every row.

* The worst stall of others: the longest stretch in which the loop of the attacked process did not look at its
  descriptors (`watched`). The bound is 50 ms on a machine that copies 8 MiB in 5 ms. What stalls is work on megabytes,
  so on a machine whose memory is slower the bound is as many times higher: ten copies, each as slow as nine in ten that
  are made here just before, while nothing is attacked yet, for an attack makes copies slower, too. (Machines with the
  same processor differ four times in that.) If a calm run of the same process just before is slower, the bound is three
  times its worst stall; the calm run comes just after, if the attack is there from the start. Nobody may wait for ever
  behind short stretches either. So nine in ten calls of a calm neighbour, each a few turns of the loop, take no longer
  than three bounds, or the attacked process uses no more processor time meanwhile: on a machine that is busy with other
  things calls wait, but the process uses no processor time.
* Memory: the peak of the process, above what it had before.
* Each request gets an answer, and no request gets two.
* An orderly end of the door (`end`): exit code 0, no process left, no message about a bug in Greenroom.
"""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from tests.support.gateway import gone_within, named_after

from ._doors import PATIENCE, Door, opened
from ._words import MIB, Row
from .server import blocks

STALL = 0.050  # seconds
TRIES = 3  # a stall counts when it is seen each time
TURNS = 3
COPIES, COPIED = 10, 8 * MIB
BLOCK = b"x" * COPIED
TIMES = 20  # that a copy is made to know how long it takes
END_WITHIN = 60.0


@attrs.frozen
class Measure:
    """How much a neighbour calls: before the attack and after it; for which part of the seconds that a row lasts; and
    how long it waits between two calls."""

    calm: int
    more: int
    part: float
    pause: float  # seconds


ALONE = Measure(calm=30, more=15, part=1.0, pause=0.0)
# No stall counts there: that the neighbours go on is enough.
BESIDE_OTHERS = Measure(calm=1, more=3, part=0.2, pause=0.05)


@attrs.frozen
class Called:
    """A neighbour's call, in seconds."""

    took: float
    burnt: float  # processor seconds of the attacked process meanwhile
    stall: float  # the longest stretch of its loop since the previous call

    @property
    def share(self) -> float:
        return min(self.took, self.burnt)


@attrs.frozen
class Seen:
    """What one row did to its neighbours: each of their calls, before the attack and beside it; memory in bytes; and
    the seconds that a copy of 8 MiB takes here (`copied`), 0 where no stall counts."""

    calm: Sequence[Called]
    beside: Sequence[Called]
    grown: int
    copy: float

    @property
    def bound(self) -> float:
        return max(STALL, 3 * max(call.stall for call in self.calm), COPIES * self.copy)

    @property
    def is_held_up(self) -> bool:
        return max(call.stall for call in self.beside) > self.bound or self.most_take > TURNS * self.bound

    @property
    def most_take(self) -> float:
        """Seconds within which nine in ten calls beside the attack end."""
        return sorted(call.share for call in self.beside)[len(self.beside) * 9 // 10]

    def __str__(self) -> str:
        worst, calm = (max(call.stall for call in calls) * 1e3 for calls in (self.beside, self.calm))
        return (
            f"worst stall {worst:.1f} ms beside it, {calm:.1f} ms without, over {len(self.beside)} calls, nine in ten "
            f"of them within {self.most_take * 1e3:.1f} ms; a copy of 8 MiB takes {self.copy * 1e3:.1f} ms; "
            f"{self.grown / MIB:.1f} MiB more"
        )


def play_all(rows: Sequence[Row], name: str, *, is_alone: bool) -> None:
    """Try these rows, one after the other, at one door, and check what must hold for each. A stall of ours is there
    each time, one of a busy machine is not. So a stall counts when it is seen three times: the second and the third
    time at new doors, which have not been attacked before. It counts only where nothing else runs (`is_alone`): beside
    other tests on a few cores, it is theirs as much as the row's."""
    measure = ALONE if is_alone else BESIDE_OTHERS
    for row, seen in _played(rows, name, measure):
        tries = [seen]
        while is_alone and tries[-1].is_held_up:
            assert len(tries) < TRIES, f"{row.name}: {'; again: '.join(map(str, tries))}"
            tries += [again for _, again in _played([row], name, measure)]
        assert seen.grown <= row.memory, f"{row.name}: {seen}"


def _played(rows: Sequence[Row], name: str, measure: Measure) -> list[tuple[Row, Seen]]:
    copy = copied() if measure is ALONE else 0.0
    with TemporaryDirectory(prefix="gr-") as folder, opened(name, rows, Path(folder)) as door:
        seen = [(row, play(row, door, measure, copy)) for row in rows]
        end(door)
    return seen


def play(row: Row, door: Door, measure: Measure, copy: float) -> Seen:
    """Attack, with neighbours that go on calling. `copy` is that of `Seen`. AssertionError when a request gets no
    answer."""
    neighbour = door.calm_by_command if row.client else door.calm
    _warm(row, door, neighbour)
    calm = [called(door, neighbour) for _ in range(measure.calm)]
    held = door.attacked.held()
    attack = Attack(row, door)
    beside = calls_until(attack.is_over, row.lasts * measure.part, measure, door, neighbour)
    attack.check()
    grown = door.attacked.peak() - held
    attack.close()
    if row.files:  # they were there before
        calm, beside = beside, calm + beside
    return Seen(calm, beside, grown, copy)


def _warm(row: Row, door: Door, neighbour: Callable[[], None]) -> None:
    """Do first what happens only once and is no attack: imports, and the start of an attacker that begins honestly."""
    honest = [f"{row.name}_echo"] if "attack" in row.on else []
    for tool in honest if row.over == "stdio" else [*honest, f"plain_{row.over}_echo"]:
        assert door.attacked.answer(door.ask(tool), PATIENCE), f"{tool}: an honest call was never answered"
    for _ in range(3 + door.neighbours):
        neighbour()
    door.attacked.longest.take()


def called(door: Door, neighbour: Callable[[], None]) -> Called:
    burnt, start = door.attacked.burnt(), time.monotonic()
    neighbour()
    took = time.monotonic() - start
    return Called(took, door.attacked.burnt() - burnt, door.attacked.longest.take())


def calls_until(
    over: Callable[[], bool], lasts: float, measure: Measure, door: Door, neighbour: Callable[[], None]
) -> list[Called]:
    """A neighbour's calls until the attack is over and has lasted, and some more."""
    start, calls, more = time.monotonic(), list[Called](), 0
    while more < measure.more:
        calls.append(called(door, neighbour))
        took = time.monotonic() - start
        more += (over() and took >= lasts) or took > 2 * PATIENCE
        time.sleep(measure.pause)
    return calls


def copied() -> float:
    """Processor seconds within which nine in ten copies of 8 MiB into new memory are made now. Call it before an
    attack."""
    took: list[float] = []
    for _ in range(TIMES):
        start = time.thread_time()
        with mmap.mmap(-1, COPIED) as new:  # what the allocator gives may have been used before
            new.write(BLOCK)
            took.append(time.thread_time() - start)
    return sorted(took)[TIMES * 9 // 10]


class Attack:
    """The attack of a row, once it has begun."""

    def __init__(self, row: Row, door: Door) -> None:
        self.row, self.door = row, door
        self.asked = [door.ask(f"{row.name}_attack") for _ in range(row.calls)] if row.on else []
        self.writer = door.attacked.pour(blocks(list(row.client), None)) if row.client else None
        self.connections: list[socket.socket] = []
        for _ in range(row.connections if row.control else 0):
            with suppress(BlockingIOError):  # nobody is let in any more
                self.connections.append(connection := door.connected())
                connection.settimeout(0.2)
                _say(connection, row)

    def is_over(self) -> bool:
        if self.writer is not None and self.writer.is_alive():
            return False
        said = self.door.attacked.heard.get("h", 0)
        return said >= self.row.answers and all(map(self.door.attacked.has_answered, self.asked))

    def check(self) -> None:
        for number in self.asked:
            assert self.door.attacked.answer(number, 0), f"{self.row.name}: a call was never answered"
        said = self.door.attacked.heard.get("h", 0)
        assert said >= self.row.answers, f"{self.row.name}: {said} of {self.row.answers} answers"
        ours = [
            number
            for number, count in self.door.attacked.heard.items()
            if number not in ("h", None) and count > 1
        ]
        assert not ours, f"{self.row.name}: these requests were answered twice: {ours}"

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def _say(connection: socket.socket, row: Row) -> None:
    try:
        for block in blocks(list(row.control), None):
            connection.sendall(block)
    except OSError:
        pass  # it takes no more, or has hung up


def end(door: Door) -> None:
    """Close the door's input: it must end well and leave no process."""
    code = door.attacked.end(END_WITHIN)
    words = door.attacked.words()
    assert code == 0, f"it ended with {code}:\n{words[-2000:]}"
    assert "bug in Greenroom" not in words, words[-4000:]
    assert "Traceback" not in words, words[-4000:]
    assert gone_within(named_after(door.folder)) == set()
