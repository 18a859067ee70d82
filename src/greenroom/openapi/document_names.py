"""Names for what a document calls as it likes: of tools, of arguments, of definitions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

_DIGITS: Final = 7  # of a number that is added to a name


class Names:
    """Names that differ from each other. What has the name of another one gets a number, and the numbers go on where
    they were: a document may have ten thousand things of one name, or of names that begin alike and are cut.
    `longest`: characters of a name."""

    def __init__(self, longest: int, taken: Iterable[str] = ()) -> None:
        self._longest = longest
        self._taken = set(taken)
        self._numbers = dict[
            str, int
        ]()  # the last one that a name got, by what is left of it beside a number

    def new(self, plain: str) -> str:
        """This name, or one like it that nothing else has."""
        plain = self._cut(plain)
        stem = plain[: self._longest - _DIGITS - 1]
        number, name = self._numbers.get(stem, 1), plain
        while name in self._taken:
            number += 1
            name = f"{plain[: self._longest - len(str(number)) - 1]}_{number}"
        self._numbers[stem] = number
        self._taken.add(name)
        return name

    def _cut(self, plain: str) -> str:
        if len(plain) <= self._longest:
            return plain
        return (
            f"{plain[: self._longest - 9]}_{hashlib.sha256(plain.encode(errors='replace')).hexdigest()[:8]}"
        )
