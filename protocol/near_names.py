"""What was probably meant by a name that does not exist. Case, `-` and `_` do not count."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is closest to `word`, if one is close."""
    import difflib  # only ever needed for a mistake

    folded = {_folded(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_folded(word), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None


def meant(word: str, known: Iterable[str]) -> str:
    """` Did you mean "…"?` with the known name that is near; empty if none is."""
    near = nearest(word, known)
    return "" if near is None else f' Did you mean "{near}"?'


def _folded(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
