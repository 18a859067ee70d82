"""Tries one row at one door, and checks what must hold for every row.

* The worst stall of others: the longest stretch in which the loop of the attacked process did not look at its
  descriptors (`watched`). The bound is 50 ms. If a calm run of the same process just before is slower, the bound is
  three times its worst stall; the calm run comes just after, if the attack is there from the start. A message of
  megabytes is copied whole now and then, and a busy machine takes long for that: so the bound has room for two copies
  of 8 MiB, each as slow as nine in ten that are made here beside the attack. (On a calm machine they take less than
  that.) Nobody may wait for ever behind short stretches either. So nine in ten calls of a calm neighbour, each a few
  turns of the loop, take no longer than three bounds, or the attacked process uses no more processor time meanwhile: on
  a machine that is busy with other things calls wait, but the process uses no processor time.
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
CALM_CALLS, MORE_CALLS = 30, 15
COPIES, COPIED = 2, 8 * MIB
COPY_EACH = 10  # calls
BLOCK = b"x" * COPIED
END_WITHIN = 60.0


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
    the seconds within which nine in ten copies of 8 MiB were made here meanwhile."""

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
    for row, seen in _played(rows, name):
        tries = [seen]
        while is_alone and tries[-1].is_held_up:
            assert len(tries) < TRIES, f"{row.name}: {'; again: '.join(map(str, tries))}"
            tries += [again for _, again in _played([row], name)]
        assert seen.grown <= row.memory, f"{row.name}: {seen}"


def _played(rows: Sequence[Row], name: str) -> list[tuple[Row, Seen]]:
    with TemporaryDirectory(prefix="gr-") as folder, opened(name, rows, Path(folder)) as door:
        seen = [(row, play(row, door)) for row in rows]
        end(door)
    return seen


def play(row: Row, door: Door) -> Seen:
    """Attack, with neighbours that go on calling. AssertionError when a request gets no answer."""
    neighbour = door.calm_by_command if row.client else door.calm
    _warm(row, door, neighbour)
    calm = [called(door, neighbour) for _ in range(CALM_CALLS)]
    held = door.attacked.held()
    attack = Attack(row, door)
    beside, copy = calls_until(attack.is_over, row.lasts, door, neighbour)
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
    over: Callable[[], bool], lasts: float, door: Door, neighbour: Callable[[], None]
) -> tuple[list[Called], float]:
    """A neighbour's calls until the attack is over, and some more; and what nine in ten copies took meanwhile."""
    start, calls, more, copies = time.monotonic(), list[Called](), 0, list[float]()
    while more < MORE_CALLS:
        if len(calls) % COPY_EACH == 0:
            copies.append(copied())
        calls.append(called(door, neighbour))
        took = time.monotonic() - start
        more += (over() and took >= lasts) or took > 2 * PATIENCE
    return calls, sorted(copies)[len(copies) * 9 // 10]


def copied() -> float:
    """Processor seconds that a copy of 8 MiB into new memory takes now."""
    start = time.thread_time()
    with mmap.mmap(-1, COPIED) as new:  # what the allocator gives may have been used before
        new.write(BLOCK)
        return time.thread_time() - start


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
