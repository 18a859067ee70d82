"""What was probably meant by a name that does not exist. Case, `-` and `_` do not count."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from .safe_text import one_line

# What is compared, because a server may have made up its names so that this takes long.
_LONGEST: Final = 64  # characters of a name
_MOST: Final = 1_000  # names of about the same length


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is closest to `word`, if one is close."""
    import difflib  # only ever needed for a mistake

    if len(word) > _LONGEST:
        return None
    sought = _folded(word)
    names = ((_folded(candidate), candidate) for candidate in known if len(candidate) <= _LONGEST)
    alike = (pair for pair in names if 0.6 * len(sought) <= len(pair[0]) <= len(sought) / 0.6)
    folded = dict(islice(alike, _MOST))
    close = difflib.get_close_matches(sought, folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None


def meant(word: str, known: Iterable[str]) -> str:
    """` Did you mean "…"?` with the known name that is near; empty if none is."""
    near = nearest(word, known)
    return "" if near is None else f' Did you mean "{one_line(near)}"?'


def _folded(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
