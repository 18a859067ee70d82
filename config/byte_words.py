"""Looks for thousands of byte strings in a text at once.

A text is compared with the first four bytes of all of them: four bytes are one number, and a set of numbers is compared
with all places of a text in one step of the interpreter, whose time does not grow with the set. Only where one of the
numbers stands is more compared. So 60 KiB take some milliseconds, and a small text some microseconds, with ten words
or with ten thousand. Few words are looked for one by one, which is faster.

They are only added to, in the order in which one is reached from the other: so another thread may look meanwhile.

Rejected: one expression for all words, which tries one after another at each place; and an automaton (Aho-Corasick),
which Python does not have, and which would have to be made anew for each word that is added.
"""

from __future__ import annotations

import sys
from typing import Final

_BYTES: Final = 4  # of a start
_FEW: Final = 16  # starts that are looked for one by one
_STEP: Final = 1 << 16  # bytes that are looked at while no other thread can run


class _Places:
    """The first four bytes of words, as numbers."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: set[int] = set()

    def in_(self, raw: bytes) -> set[int]:
        if len(self._starts) <= _FEW:
            return {start for start in tuple(self._starts) if raw.find(_bytes_of(start)) >= 0}
        found: set[int] = set()
        for begins in range(0, len(raw), _STEP):
            for at in range(begins, begins + _BYTES):
                piece = raw[at : at + _STEP]
                whole = memoryview(piece)[: len(piece) // _BYTES * _BYTES]
                found |= self._starts.intersection(whole.cast("I"))
        return found


class Starts(_Places):
    """Words that tell by their first four bytes to what they may belong."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, list[str]] = {}

    def add(self, word: bytes, of: str) -> None:
        """`word`: of at least four bytes."""
        start = _start_of(word)
        self._of.setdefault(start, []).append(of)
        self._starts.add(start)

    def found_in(self, raw: bytes) -> set[str]:
        """To what those belong of which a start is in the text."""
        return {each for start in self.in_(raw) for each in self._of[start]}


class Words(_Places):
    """Words of which each belongs to something."""

    __slots__ = ("_lengths", "_of")

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[bytes, str] = {}
        self._lengths: dict[int, tuple[int, ...]] = {}  # of those that begin so

    def add(self, word: bytes, of: str) -> None:
        """`word`: of at least four bytes. One that is there belongs to what it did."""
        start = _start_of(word)
        self._of.setdefault(word, of)
        lengths = self._lengths.get(start, ())
        if len(word) not in lengths:
            self._lengths[start] = (*lengths, len(word))
        self._starts.add(start)

    def found_in(self, raw: bytes) -> list[tuple[bytes, str]]:
        """Those that are in the text, each once, and to what they belong."""
        found: dict[bytes, str] = {}
        for start in self.in_(raw):
            begins, lengths = _bytes_of(start), self._lengths[start]
            at = raw.find(begins)
            while at >= 0:
                for length in lengths:
                    word = raw[at : at + length]
                    if (of := self._of.get(word)) is not None:
                        found[word] = of
                at = raw.find(begins, at + 1)
        return [*found.items()]


def _start_of(word: bytes) -> int:
    return int.from_bytes(word[:_BYTES], sys.byteorder)


def _bytes_of(start: int) -> bytes:
    return start.to_bytes(_BYTES, sys.byteorder)
