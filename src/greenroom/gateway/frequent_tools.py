"""The tools that were called in most conversations: the next ones show them beside the `mcp` tool from their beginning.

* The setting `frequentTools` says how many; with 0 nothing is counted and no file is written.
* A conversation counts once for each tool that it has called, however often: a loop of a thousand calls decides
  nothing.
* A count halves in thirty days, so what was used in spring leaves the list by summer. What was called in one
  conversation alone is not shown: it takes two in the same weeks.
* What a client is shown is decided when it comes, and stays. So its list, which a model is given in each turn, does not
  change while others call tools, and its prompt cache holds.
* The counts stand in a file beside the catalogue, written when a conversation calls a tool for the first time, under
  the file's lock. So several gateways count together, and one that is killed has lost nothing. It holds exposed names,
  counts and times, and none of a call's contents. A room that keeps no files counts for itself.
* It is a convenience: a file that cannot be used is taken for an empty one, said once, and no call waits for it.

Rejected: to count what searches found. A search finds ten tools of which one is called. Counts for each principal, too:
over HTTP most come too seldom for a count of their own; and what a client may see is decided by its profile, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from ..config.private_files import BrokenFile, LockedFile, make_folder
from ..protocol.safe_text import in_words

FILE: Final = "frequent-tools.json"
_HALF: Final = 30 * 86_400.0  # seconds in which a count halves
_SHOWN_FROM: Final = 1.5  # conversations: two within some weeks
_KEPT: Final = 500  # names, those counted highest
_FORGOTTEN: Final = 0.1  # a count below this is as good as none


class ToolCount(msgspec.Struct, array_like=True):
    """In how many conversations a tool was called, as of the time `at` (wall clock, seconds)."""

    conversations: float
    at: float

    def now(self, now: float) -> float:
        """The count at this time. A clock that was set back changes nothing."""
        return self.conversations * 0.5 ** (max(0.0, now - self.at) / _HALF)


Counts = dict[str, ToolCount]


def most_called(counts: Mapping[str, ToolCount], most: int, now: float) -> tuple[str, ...]:
    """The names of at most so many tools, the one called in most conversations first."""
    scores = {name: each.now(now) for name, each in counts.items()}
    found = sorted(
        (name for name in scores if scores[name] >= _SHOWN_FROM), key=lambda name: (-scores[name], name)
    )
    return tuple(found[:most])


def counted(counts: Mapping[str, ToolCount], name: str, now: float) -> Counts:
    """The counts when one more conversation has called this tool."""
    known = counts.get(name)
    new = {**counts, name: ToolCount(1.0 + (known.now(now) if known is not None else 0.0), now)}
    if len(new) <= _KEPT:
        return new
    best = sorted(new, key=lambda each: (each != name, -new[each].now(now)))[:_KEPT]
    return {each: new[each] for each in best if new[each].now(now) >= _FORGOTTEN}


class FrequentTools:
    """The counts of one room's clients. `folder`: where they are kept; None: they end with the room. `note` is told in
    words, once, that the file cannot be used."""

    def __init__(self, folder: Path | None, note: Callable[[str], None]) -> None:
        self._file = None if folder is None else LockedFile(folder / FILE)
        self._note = note
        self._counts: Counts = {}
        self._is_noted = False

    async def most_called(self, most: int) -> tuple[str, ...]:
        """See `most_called`; with what other gateways have counted."""
        file = self._file
        if file is not None:
            await self._at_the_file(partial(self._read, file))
        return most_called(self._counts, most, time.time())

    async def count(self, name: str) -> None:
        """A conversation has called this tool for the first time."""
        file = self._file
        if file is None:
            self._counts = counted(self._counts, name, time.time())
        else:
            await self._at_the_file(partial(self._write, file, name))

    async def _at_the_file(self, work: Callable[[], None]) -> None:
        try:
            await anyio.to_thread.run_sync(work)  # one that is cancelled leaves when it is done
        except OSError as error:
            if not self._is_noted:
                self._is_noted = True
                self._note(f"frequentTools: {in_words(error)}. What is called often is not counted.")

    def _read(self, file: LockedFile) -> None:
        self._counts = {}  # of what is no file of ours; the next count replaces it
        with suppress(BrokenFile, msgspec.DecodeError):
            data = file.read()
            self._counts = msgspec.json.decode(data, type=Counts) if data else {}

    def _write(self, file: LockedFile, name: str) -> None:
        make_folder(file.path.parent)
        with file.locked():
            self._read(file)
            self._counts = counted(self._counts, name, time.time())
            file.replace(msgspec.json.encode(self._counts))
