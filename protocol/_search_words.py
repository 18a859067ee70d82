"""Words: how a text becomes the words that search compares.

camelCase and runs of punctuation are taken apart, case is folded, and each word is reduced to its stem, so that
"creating issues" and `createIssue` agree. The stemmer knows English endings only. It need not find the true stem: it
is enough that the forms of one word end as one. A word of another language keeps its form, except for a last "s".

Rejected: Snowball. It joins a few more forms, and takes ten times as long for each new word, which the first search
would wait for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PUNCTUATION: Final = re.compile(r"[\W_]+")
_WORD: Final = re.compile(r"[^\W_]+")
_LEAST: Final = 3  # letters that a stem keeps
_REMEMBERED: Final = 1 << 16  # words
_HISSES: Final = ("ses", "xes", "zes", "ches", "shes")

# They say how a sentence is built, not what it is about.
STOP_WORDS: Final = frozenset(
    """a about after all also am an and any are as at be because been before being both but by can could did do does
    doing done each either else etc for from had has have having he her here hers him his how i if in into is it its
    itself just let lets like may me might mine more most must my myself no nor not now of off on once one only onto or
    other our ours out over own per please really same shall she should so some something such than that the their
    theirs them then there these they this those through thing things to too under until up upon us use used uses
    using very via want wants was way we were what whatever when where whether which while who whom whose why will
    with within without would you your yours need needs""".split()  # noqa: SIM905 - read as a text, it is a third as long
)


def normalise(text: str) -> str:
    """The text in lower case with its words apart, each by one space."""
    return _PUNCTUATION.sub(" ", _CAMEL.sub(" ", text)).strip().lower()


def words_of(text: str) -> list[str]:
    """The words of a text in plain language: lower case, with repetitions, camelCase kept together."""
    return _WORD.findall(text.lower())


def tokens(text: str) -> list[str]:
    """The different words of a normalised text, in order."""
    return list(dict.fromkeys(_WORD.findall(text)))


class _Roots(dict[str, str]):
    """The stem of each word that was met, and nothing for a stop word. A look-up costs no call of Python's, and the
    first search looks up half a million words."""

    def __missing__(self, word: str) -> str:
        if len(self) > _REMEMBERED:
            self.clear()
        root = self[word] = "" if word in STOP_WORDS else stem(word)
        return root


def stem(word: str) -> str:
    """The part that the forms of a word share."""
    word = _without_plural(word)
    for ending, least in (("ation", 3), ("ating", 4), ("ated", 4), ("ing", 3), ("ion", 4), ("ed", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            if ending == "ion" and word[-4] not in "st":
                continue
            root = word[: -len(ending)]
            if ending.startswith("at"):
                return root + "at"
            if not any(letter in "aeiouy" for letter in root):
                continue
            return _single(root) if ending != "ion" else root
    if word.endswith("e") and len(word) > _LEAST:
        word = word[:-1]
    if word.endswith("y") and len(word) > _LEAST:
        word = word[:-1] + "i"
    return word


def _without_plural(word: str) -> str:
    if len(word) <= _LEAST or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > _LEAST + 1:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(_HISSES) and not word.endswith("ases") else word[:-1]


def _single(root: str) -> str:
    """Without the doubled consonant of "running"; and as the plain verb ends, without its "e"."""
    if len(root) > _LEAST and root[-1] == root[-2] and root[-1] not in "aeiouls":
        root = root[:-1]
    if root.endswith("e") and len(root) > _LEAST:
        root = root[:-1]
    return root[:-1] + "i" if root.endswith("y") and len(root) > _LEAST else root


ROOTS: Final[Mapping[str, str]] = _Roots()
