"""The events file, whatever becomes of its disk: each event is in it, or counted as missing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.actors.workers import OptionalPart
from greenroom.observe import events_file
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Reach, UsageError
from greenroom.protocol.events import (
    CallEnded,
    Note,
    NoteCode,
    Transition,
)
from greenroom.protocol.lifecycle import State

IDLED = Transition(*(7, 1.5, Address("clock"), 2), before=State.CONNECTED, after=State.DRAINING)
CALLED = CallEnded(
    *(8, 2.0, Address("clock"), 2),
    call=3,
    method="tools/call",
    tool="clock_now",
    client=None,
    outcome="result",
    reach=Reach.ANSWERED,
    waited=0.25,
    taken=0.5,
)


class Disk:
    """The system calls of an events file. `takes`: what each write takes: all, some bytes, or an error."""

    O_WRONLY, O_APPEND, O_CREAT = os.O_WRONLY, os.O_APPEND, os.O_CREAT

    def __init__(self, *takes: int | OSError | None) -> None:
        self.takes = list(takes)
        self.content = b""
        self.opened: list[int] = []

    def open_own(self, _path: Path, _flags: int, *, is_named: bool) -> int:
        assert is_named
        self.opened.append(len(self.opened))
        return self.opened[-1]

    def close(self, fd: int) -> None:
        assert fd == self.opened[-1]

    def write(self, fd: int, data: bytes) -> int:
        assert fd == self.opened[-1]
        take = self.takes.pop(0) if self.takes else None
        if isinstance(take, OSError):
            raise take
        taken = bytes(data)[:take]
        self.content += taken
        return len(taken)


@given(
    st.lists(st.sampled_from(["event", "call"]), min_size=1, max_size=30),
    st.lists(
        st.sampled_from([None, None, BlockingIOError(11, "full"), OSError(28, "no space"), 1, 50, 200]),
        max_size=15,
    ),
)
def test_whatever_the_disk_does_each_event_is_in_the_file_or_counted_as_missing(
    events: list[str], takes: list[Any]
) -> None:
    disk, said = Disk(*takes), list[str]()
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_file, "os", disk)
        patch.setattr(events_file, "open_own", disk.open_own)
        file = events_file.EventsFile(Path("e"), OptionalPart("the file", said.append, now=lambda: now[0]))
        for number, event in enumerate(events):
            now[0] += 100.0  # so that it is tried again
            file(msgspec.structs.replace(IDLED if event == "event" else CALLED, seq=number))
        disk.takes.clear()
        now[0] += 100.0
        file(msgspec.structs.replace(IDLED, seq=len(events)))
        file.close()
    lines = disk.content.split(b"\n")
    assert lines.pop() == b"", "it ends with a whole line"
    read: list[Any] = []
    torn = 0
    for line in lines:
        try:
            read.append(json.loads(line))
        except ValueError:
            torn += 1
    errors = sum(type(take) is OSError for take in takes)
    parts = sum(type(take) is int for take in takes)
    assert torn <= min(errors, parts), "a torn line ends before the next one begins"
    found = [record["seq"] for record in read if record["kind"] != "lagged"]
    missed = sum(record["missed"] for record in read if record["kind"] == "lagged")
    assert found == sorted(set(found)), "each once, in order"
    assert found[-1] == len(events)
    assert len(found) + missed >= len(events) + 1
    if not parts:
        assert len(found) + missed == len(events) + 1
    if not errors:
        assert (len(found), said) == (len(events) + 1, [])


def test_a_file_that_is_read_slowly_keeps_a_bound_and_says_what_it_left_out() -> None:
    blocked = [BlockingIOError(11, "full")] * 10_000
    disk = Disk(*blocked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_file, "os", disk)
        patch.setattr(events_file, "open_own", disk.open_own)
        patch.setattr(events_file, "_MOST", 2_000)
        file = events_file.EventsFile(Path("e"), OptionalPart("the file", print, now=lambda: 0.0))
        for _ in range(50):
            file(IDLED)
        kept = file._events
        assert 0 < kept < 50
        disk.takes.clear()
        file(IDLED)
        file(IDLED)
    read = [json.loads(line) for line in disk.content.splitlines()]
    assert [record["kind"] for record in read] == ["transition"] * kept + ["lagged", "transition"]
    assert read[-2]["missed"] == 50 - kept + 1


def test_an_events_file_that_cannot_be_opened_again_is_tried_later_and_what_is_missing_is_counted() -> None:
    disk, said, now = Disk(OSError(28, "no space")), list[str](), [0.0]
    broken = False

    def open_own(path: Path, flags: int, *, is_named: bool) -> int:
        if broken:
            raise OSError(13, "denied")
        return disk.open_own(path, flags, is_named=is_named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_file, "os", disk)
        patch.setattr(events_file, "open_own", open_own)
        file = events_file.EventsFile(Path("e"), OptionalPart("the file", said.append, now=lambda: now[0]))
        file(msgspec.structs.replace(IDLED, seq=1))  # the disk is full
        broken = True
        for seq in (2, 3):
            now[0] += 100.0
            file(msgspec.structs.replace(IDLED, seq=seq))
        broken = False
        file(msgspec.structs.replace(IDLED, seq=4))  # it is not due
        now[0] += 100.0
        file(msgspec.structs.replace(IDLED, seq=5))
        file.close()
    records = [json.loads(line) for line in disk.content.splitlines()]
    assert [record.get("missed", record.get("seq")) for record in records] == [4, 5]
    assert said == [
        "the file: no space. It is tried again.",
        "the file: denied. It is tried again.",
        "the file: works again",
    ]


@pytest.mark.parametrize("seconds_apart", [0.0, 100.0])
def test_what_was_said_to_be_missing_is_still_missing_when_that_line_is_lost(seconds_apart: float) -> None:
    """The disk is full, and full again when the gap is to be said; what was written before is not missing."""
    disk, now = Disk(None, OSError(28, "no space"), OSError(28, "no space")), [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_file, "os", disk)
        patch.setattr(events_file, "open_own", disk.open_own)
        file = events_file.EventsFile(Path("e"), OptionalPart("the file", print, now=lambda: now[0]))
        for seq in (1, 2, 3):
            file(msgspec.structs.replace(IDLED, seq=seq))
            now[0] += seconds_apart
        now[0] += 1_000.0
        file(msgspec.structs.replace(IDLED, seq=4))
        if not seconds_apart:  # the third was not tried, and this is the one that fails
            now[0] += 1_000.0
            file(msgspec.structs.replace(IDLED, seq=5))
        file.close()
    records = [json.loads(line) for line in disk.content.splitlines()]
    last = 4 if seconds_apart else 5
    assert [record.get("missed", record.get("seq")) for record in records] == [1, last - 2, last]


@for_each(
    ("number", "passes"),
    [
        *(
            (getattr(errno, name), True)
            for name in ["ENXIO", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EAGAIN"]
        ),
        *((getattr(errno, name), False) for name in ["EACCES", "ENOENT", "ENOTDIR", "EISDIR", "EROFS"]),
    ],
)
def test_a_file_that_may_be_there_later_is_no_mistake_of_whoever_named_it(number: int, passes: bool) -> None:
    said = list[str]()

    def open_own(*_: Any, is_named: bool) -> int:
        raise OSError(number, "it is odd")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_file, "open_own", open_own)
        if passes:
            events_file.EventsFile(Path("e"), OptionalPart("the file", said.append, now=lambda: 0.0))
            assert said == ["the file: it is odd. It is tried again."]
        else:
            with pytest.raises(UsageError, match=r"--events e: it is odd\. Name a file that can be written"):
                events_file.EventsFile(Path("e"), OptionalPart("the file", said.append, now=lambda: 0.0))
            assert said == []


def note(number: int) -> Note:
    return Note(number, 1.0, code=NoteCode.ODD, words=f"{number}")


def test_t39_what_an_events_file_missed_stands_in_it_when_it_can_be_written_again(tmp_path: Path) -> None:
    told: list[str] = []
    now = [0.0]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = events_file.EventsFile(fifo, OptionalPart("it", told.append, now=lambda: now[0]))
    file(note(1))
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        file(note(2))  # too soon to be tried again
        now[0] = 2.0
        file(note(3))
        records = [json.loads(line) for line in os.read(reader, 9999).splitlines()]
        assert records[0] == {"kind": "lagged", "missed": 2}
        assert records[1]["detail"] == "3"
        # A pipe that is read too slowly holds nobody up, and the gap is told when there is room again.
        for number in range(40_000):
            file(note(number))
        gaps: list[Any] = []
        rest = b""
        while not gaps:
            rest += os.read(reader, 1 << 16)
            file(note(-1))
            *lines, rest = rest.split(b"\n")
            gaps = [record for record in map(json.loads, lines) if record["kind"] == "lagged"]
        assert gaps[0]["missed"] > 10_000
    finally:
        os.close(reader)
    file(note(4))
    file.close()
    assert [line.partition(" (")[0].partition(".")[0] for line in told] == [
        "it: No such device or address",
        "it: works again",
        "it: Broken pipe",
    ]
