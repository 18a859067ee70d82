"""Ranking: how well a document of four text fields answers a query of a few words.

The score of a document is a sum:

- for each field of weight w: 14w when the field is the whole query, 9w when it begins with it, 6w when it
  contains it;
- for each field and each word of the query: 4w when a token of the field is the word, 2w when a token begins with
  the word (or the word with the token, if that has four letters), w when a token contains it;
- 25 when every word was found somewhere, else up to 10 by the share of the words that were found;
- 8 when the first word is a token of the name, and 20 when a whole field is the query.

A document is listed when anything matched; the share of words only ranks. `tests/test_search.py` compares this
with a naive implementation of these sentences.

To be quick, no query is compared with ten thousand documents. A word is compared with the vocabulary of *tokens*,
and each token knows its documents. The scores that a word gives are one long integer with a lane of sixteen bits
for each document (`Lanes`), so adding two such integers adds ten thousand scores. The whole query can only occur
in a field that has every one of its words, so only such fields are read for it. Few of the hits are shown, so only
those are sorted. One subtraction and a count of bits tell how many documents reach a score, and bisection finds the
lowest score among the best.

Rejected: summing scores in dicts, which is as quick for rare words but takes 30 ms for "create an issue in a
repository", where "a" and "in" touch every document. Rejected: dropping such words, which changes the formula.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, compress
from math import floor
from typing import Final

import attrs

from .slices import Pace, Slices, finish

NAME, ORIGINAL, SERVER, DESCRIPTION = range(4)
WEIGHTS: Final = (12, 10, 8, 5)
MAX_WORDS: Final = 64  # of a query; the rest is ignored, for a score must fit into its lane

Lanes = int  # sixteen bits for each document

_TOP_BIT: Final = 15  # of a lane; no score needs it
_TOP: Final = (1 << _TOP_BIT) - 1
_FIELDS: Final = 4
_ALL: Final = (1 << _FIELDS) - 1
_EXACT, _BEGINS, _INSIDE = 0, _FIELDS, 2 * _FIELDS  # in a lane: where each level's four field bits stand
_CAMEL: Final = re.compile(r"([a-z0-9])([A-Z])")
_PUNCTUATION: Final = re.compile(r"[_./:\-]+")
_TOKEN: Final = re.compile(r"[a-z0-9]+")


def normalise(text: str) -> str:
    """The text in lower case with its words apart: camelCase is split, runs of `_ . / : -` become a space."""
    return _PUNCTUATION.sub(" ", _CAMEL.sub(r"\1 \2", text)).lower()


def _normalised(texts: Sequence[str]) -> tuple[str, ...]:
    """`normalise` for each text. They are joined by a letter that no rule touches and done at once, which takes less
    than half the time."""
    fields = tuple(normalise("\0".join(texts)).split("\0"))
    return fields if len(fields) == len(texts) else tuple(map(normalise, texts))


def tokens(text: str) -> list[str]:
    """The different words of a normalised text, in order."""
    return list(dict.fromkeys(_TOKEN.findall(text)))


@attrs.frozen(eq=False)
class Document:
    """One document, prepared: its normalised fields, and for each token a bit for each field that has it."""

    fields: tuple[str, ...]
    tokens: tuple[str, ...]
    masks: bytes

    @classmethod
    def of(cls, name: str, original: str, server: str, description: str) -> Document:
        fields = _normalised((name, original, server, description))
        masks: dict[str, int] = {}
        for field, text in enumerate(fields):
            for token in _TOKEN.findall(text):
                masks[token] = masks.get(token, 0) | 1 << field
        return cls(fields, tuple(map(sys.intern, masks)), bytes(masks.values()))


Hit = tuple[int, int]  # a document's number, and its score


@attrs.frozen
class _Word:
    """The effect of one word of a query on every document."""

    points: Lanes
    matched: Lanes  # 1 where it was found at all
    named: Lanes  # 1 where it is a token of the name
    fields: Lanes  # a bit for each field it may occur in


class Ranking:
    """An inverted index over `documents`, made once. Documents with equal scores keep their order."""

    def __init__(self, documents: Iterable[Document] | None) -> None:
        self._documents: list[Document] = []
        self._postings: dict[str, array[int]] = {}
        self._word = lru_cache(maxsize=64)(self._measure)
        if documents is not None:
            finish(self._take(documents))

    @classmethod
    def making(cls, documents: Iterable[Document]) -> Slices[Ranking]:
        """The same, in slices; `documents` may themselves be made on the way."""
        ranking = cls(None)
        yield from ranking._take(documents)
        return ranking

    def _take(self, documents: Iterable[Document]) -> Slices[None]:
        pace = Pace()
        for number, document in enumerate(documents):
            for token, mask in zip(document.tokens, document.masks, strict=True):
                posting = self._postings.get(token)
                if posting is None:
                    posting = self._postings[token] = array("Q")
                posting.append(number << _FIELDS | mask)
            self._documents.append(document)
            if pace.due(1 + len(document.masks) // 16):
                yield
        self._ones = self._lanes(array("H", [1]) * len(self._documents))
        if pace.due(len(self._postings) // 100):
            yield
        _ = self._text, self._lengths
        if pace.due(len(self._postings) // 100):
            yield

    def rank(self, query: str, most: int, only: Iterable[int] | None = None) -> tuple[list[Hit], int]:
        """The `most` best documents that match the query or any word of it, best first; and how many match.

        `only`: the numbers of the documents to search; all if not given.
        """
        phrase = normalise(query).strip()
        if not phrase:
            return [], 0
        words = tokens(phrase)[:MAX_WORDS]
        found = [self._word(word) for word in words]
        scores = self._score_words(found) + self._score_phrase(phrase, found)
        if only is not None:
            scores &= self._those(only)
        return self._best(scores, most)

    def _score_words(self, found: list[_Word]) -> Lanes:
        """The score of every document without the points for the whole query; 0 if no word matched."""
        if not found:
            return 0
        return sum(word.points for word in found) + self._bonus(found) + 8 * found[0].named

    def _bonus(self, found: list[_Word]) -> Lanes:
        """The points of each document for its share of the words. Counts are small, so the upper byte of a lane is 0,
        and one look-up table serves both bytes."""
        table = bytes([0, *(_coverage(count, len(found)) for count in range(1, len(found) + 1))]).ljust(
            256, b"\0"
        )
        counts = sum(word.matched for word in found)
        return int.from_bytes(self._bytes(counts).translate(table), sys.byteorder)

    def _score_phrase(self, phrase: str, found: list[_Word]) -> Lanes:
        """Points wherever the whole query is, begins or occurs in a field."""
        possible = reduce(int.__and__, (word.fields for word in found), self._ones * _ALL)
        if not possible:
            return 0
        points, fields = self._empty(), self._array(possible)
        for number in compress(range(len(fields)), fields):
            points[number] = _phrase_points(phrase, self._documents[number].fields, fields[number])
        return self._lanes(points)

    def _best(self, scores: Lanes, most: int) -> tuple[list[Hit], int]:
        """The `most` best documents, and how many have a score above 0. Equal scores keep the order of documents."""
        lifted = scores | self._ones << _TOP_BIT
        matching = self._reaching(1, lifted).bit_count()
        most = min(most, matching)
        best = self._array(self._reaching(self._lowest_of(most, lifted), lifted))
        score = self._array(scores)
        numbers = sorted(compress(range(len(best)), best), key=score.__getitem__, reverse=True)  # stable
        return [(number, score[number]) for number in numbers[:most]], matching

    def _lowest_of(self, count: int, lifted: Lanes) -> int:
        """The highest score that at least `count` documents reach, by bisection. At least 1, for 0 means no match."""
        low, high = 1, _TOP
        while low < high:
            middle = (low + high + 1) // 2
            if self._reaching(middle, lifted).bit_count() >= count:
                low = middle
            else:
                high = middle - 1
        return low

    def _reaching(self, least: int, lifted: Lanes) -> Lanes:
        """A bit for each document whose score is at least `least`. The scores have the top bit of their lane set; a
        score that is high enough keeps that bit when `least` is subtracted."""
        return lifted - least * self._ones & self._ones << _TOP_BIT

    def _those(self, numbers: Iterable[int]) -> Lanes:
        """The lanes of these documents, all bits set."""
        marks = self._empty()
        for number in numbers:
            marks[number] = 0xFFFF
        return self._lanes(marks)

    def _measure(self, word: str) -> _Word:
        marks = self._empty()
        for token, level in self._related(word):
            for entry in self._postings[token]:
                marks[entry >> _FIELDS] |= (entry & _ALL) << level
        lanes = self._lanes(marks)
        exact = lanes & self._ones * _ALL
        begins = lanes >> _BEGINS & self._ones * _ALL & ~exact
        inside = lanes >> _INSIDE & self._ones * _ALL & ~exact & ~begins
        fields = exact | begins | inside
        named = exact >> NAME & self._ones
        points = 4 * self._weigh(exact) + 2 * self._weigh(begins) + self._weigh(inside)
        return _Word(points, fields + self._ones * _ALL >> _FIELDS & self._ones, named, fields)

    def _weigh(self, fields: Lanes) -> Lanes:
        """The weights of the fields whose bits are set, summed in each lane."""
        return sum((fields >> field & self._ones) * weight for field, weight in enumerate(WEIGHTS))

    def _related(self, word: str) -> Iterator[tuple[str, int]]:
        """The tokens that match `word`, each with its best kind of match."""
        for token in self._containing(word):
            if token == word:
                yield token, _EXACT
            else:
                yield token, _BEGINS if token.startswith(word) else _INSIDE
        for length in self._lengths:
            if 4 <= length < len(word) and word[:length] in self._postings:
                yield word[:length], _BEGINS

    def _containing(self, word: str) -> Iterator[str]:
        """Every token that contains `word`. One string of all tokens is searched, which is quicker than each token."""
        text, starts, vocabulary = self._text
        at = text.find(word)
        while at >= 0:
            token = bisect_right(starts, at) - 1
            yield vocabulary[token]
            at = text.find(word, starts[token] + len(vocabulary[token]))

    @cached_property
    def _lengths(self) -> frozenset[int]:
        """The lengths that tokens have: fewer than a long word has letters, so fewer cuts to try."""
        return frozenset(map(len, self._postings))

    @cached_property
    def _text(self) -> tuple[str, list[int], list[str]]:
        """The vocabulary as one text, where each token starts in it, and the tokens."""
        vocabulary = list(self._postings)
        starts = list(accumulate((len(token) + 1 for token in vocabulary), initial=0))[:-1]
        return "\n".join(vocabulary), starts, vocabulary

    def _empty(self) -> array[int]:
        return array("H", bytes(2 * len(self._documents)))

    def _lanes(self, numbers: array[int]) -> Lanes:
        return int.from_bytes(numbers.tobytes(), sys.byteorder)

    def _array(self, lanes: Lanes) -> array[int]:
        return array("H", self._bytes(lanes))

    def _bytes(self, lanes: Lanes) -> bytes:
        return lanes.to_bytes(2 * len(self._documents), sys.byteorder)


def _phrase_points(phrase: str, fields: Sequence[str], mask: int) -> int:
    """Points for the whole query in those `fields` whose bit is in `mask`."""
    points = whole = 0
    for number, field in enumerate(fields):
        if mask >> number & 1 and phrase in field:
            if field == phrase:
                points, whole = points + 14 * WEIGHTS[number], 20
            else:
                points += (9 if field.startswith(phrase) else 6) * WEIGHTS[number]
    return points + whole


def _coverage(matched: int, words: int) -> int:
    """25 when every word was found, else a tenth of the percentage, with halves rounded up."""
    return 25 if matched == words else floor(10 * matched / words + 0.5)
