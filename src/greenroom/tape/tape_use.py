"""What became of a tape in one run, or in many: which of its calls were met, and what was asked that it lacks.

Runs are added up, also those of many processes: each appends one line to a file (`append_use`). A line is one write to
a file that is opened for appending, so processes need no lock. One that a full disk has cut is not continued: what
comes next begins on a line of its own, and who reads counts the cut one and goes on. A call that is not on the tape is
kept by its words, as a replay says it; of these at most `_KINDS` are kept, and further ones only counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol.errors import UsageError
from ..protocol.safe_text import counted
from .tape_lines import CallLine

if TYPE_CHECKING:
    from .tape_reader import Tape

_KINDS: Final = 1_000
_MORE: Final = "other calls"


class TapeUse(msgspec.Struct):
    """What became of a tape. `met`: how often a recorded call was answered from it, by its number; `ran`: how often one
    was made and a running server answered (`live_server`). Of calls that are not on it, in words and how often:
    `refused`, and `lacked`, which a running server answered. `runs`: of how many rooms this is the sum. `unread`:
    lines of a file that could not be read."""

    runs: int = 1
    met: dict[int, int] = {}
    ran: dict[int, int] = {}
    refused: dict[str, int] = {}
    lacked: dict[str, int] = {}
    unread: int = 0

    def __add__(self, other: TapeUse) -> TapeUse:
        return TapeUse(
            self.runs + other.runs,
            _sum(self.met, other.met),
            _sum(self.ran, other.ran),
            _kinds(_sum(self.refused, other.refused)),
            _kinds(_sum(self.lacked, other.lacked)),
            self.unread + other.unread,
        )

    @property
    def asked(self) -> int:
        """How many calls were made in all."""
        return sum(sum(each.values()) for each in (self.met, self.ran, self.refused, self.lacked))

    def unmet(self, tape: Tape) -> list[CallLine]:
        """The recorded calls that no run has made."""
        return [call for call in tape.calls if call.n not in self.met and call.n not in self.ran]

    def in_words(self, tape: Tape, *, most: int = 50) -> Iterator[str]:
        """The summary, a line each. `most`: lines of each kind."""
        made = len(tape.calls) - len(self.unmet(tape))
        was = "was" if made == 1 else "were"
        runs, asked = counted(self.runs, "run"), counted(self.asked, "call")
        yield f"{runs}, {asked}. Of {len(tape.calls):,} on the tape {made:,} {was} met."
        if self.unread:
            yield f"{counted(self.unread, 'line')} of the file could not be read: those runs are not counted."
        calls = {call.n: call for call in tape.calls}
        yield from _some(
            [f"  {n:>5,} × #{at} {_name(calls[at])}" for at, n in sorted(self.met.items()) if at in calls],
            most,
        )
        for told, lines in (
            (
                "Run by a server, and on the tape:",
                [
                    f"  {n:>5,} × #{at} {_name(calls[at])}"
                    for at, n in sorted(self.ran.items())
                    if at in calls
                ],
            ),
            ("Run by a server, and not on the tape:", _counts(self.lacked)),
            ("Not on the tape, and refused:", _counts(self.refused)),
            ("On the tape, and never met:", [f"  #{call.n} {_name(call)}" for call in self.unmet(tape)]),
        ):
            if lines:
                yield told
                yield from _some(lines, most)


def count_words(counts: dict[str, int], words: str) -> None:
    """Count this call, by its words."""
    key = words if words in counts or len(counts) < _KINDS else _MORE
    counts[key] = counts.get(key, 0) + 1


def _sum(one: Mapping[Any, int], other: Mapping[Any, int]) -> dict[Any, int]:
    return dict(Counter(one) + Counter(other))


def _kinds(counts: dict[str, int]) -> dict[str, int]:
    """The most frequent of them, and the sum of the others."""
    if len(counts) <= _KINDS:
        return counts
    kinds = {words: count for words, count in counts.items() if words != _MORE}
    most = dict(Counter(kinds).most_common(_KINDS - 1))
    return {**most, _MORE: sum(counts.values()) - sum(most.values())}


def append_use(place: str | os.PathLike[str], use: TapeUse) -> None:
    """Add a line about this run to the file, which many processes may do at once. Raises `UsageError`."""
    line = msgspec.json.encode(use) + b"\n"
    try:
        with _opened(place) as file:
            if _is_cut(file):
                line = b"\n" + line
            written = file.write(line)
    except OSError as error:
        raise _not_written(place, f"{error.strerror}") from None
    if written != len(line):
        raise _not_written(place, f"only {written or 0:,} of {len(line):,} bytes were taken")


def check_use(place: str | os.PathLike[str]) -> None:
    """Check that lines can be added to the file, before a run that is to do so. Raises `UsageError`."""
    try:
        _opened(place).close()
    except OSError as error:
        raise _not_written(place, f"{error.strerror}") from None


def _opened(place: str | os.PathLike[str]) -> FileIO:
    """The file without a buffer, so that a line is one write, and for its owner alone if it is new."""
    return FileIO(place, "a+", opener=lambda path, flags: os.open(path, flags, 0o600))


def _is_cut(file: FileIO) -> bool:
    if not file.seekable() or file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) not in (b"\n", b"")


def _not_written(place: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(f"The summary cannot be written to {os.fspath(place)}: {why}.")


def read_use(place: str | os.PathLike[str]) -> TapeUse:
    """The sum of all lines of such a file. Those that cannot be read are counted. Raises `UsageError` if that is all
    there is."""
    found = TapeUse(0)
    try:
        with Path(place).open("rb") as file:
            for line in filter(bytes.strip, file):
                try:
                    found += msgspec.json.decode(line, type=TapeUse)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    found.unread += 1
    except OSError as error:
        raise UsageError(
            f"{place} cannot be read: {error.strerror}. A replay writes it with --summary."
        ) from None
    if found.unread and not found.runs:
        raise UsageError(f"{place} is not a summary of a replay: none of its lines can be read.")
    return found


def _name(call: CallLine) -> str:
    return f"{call.tool or call.method}"


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [f"  {n:>5,} × {words}" for words, n in Counter(counts).most_common()]


def _some(lines: list[str], most: int) -> Iterator[str]:
    yield from lines[:most]
    if len(lines) > most:
        yield f"  and {len(lines) - most:,} more"
