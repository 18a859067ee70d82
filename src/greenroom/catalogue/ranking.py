"""Ranking: how well each tool answers a query of a few words.

A tool is a document of fields: its own name, its title, its server's name, what its description says first, the rest of
that, the names of its parameters, and what is said of those.
Words are compared by their stems. For each word of the query a tool has points by BM25F: the occurrences in its fields,
weighted by field and divided by the field's length, saturate; and a word that few tools have counts more than one that
many have. Beside the word itself count, with less weight: what people call the same thing (`search_words`), words
that begin with it, and, for a word that no tool has, words that contain it or are one slip of the finger away.

The points of the words are added. Words are joined by *or*: a tool need not have all of them. Being there at all
brings points too, so that two words found once count more than one found often. What has less than a quarter of the
points of the best is not listed: it has one common word of many, and was never the answer in our measurements. A tool
whose whole name is the query, in any spelling, is always first.

Articles, pronouns and the like are left out, of tools and of queries. They count where they are all that a tool or a
server is called: such a name is found by them, and beside other words of a query they count a little (`ASIDE`), so
that "how do I create it" is not a question for the tool `do`. A query of nothing else is searched by what its words are
part of, too.

To be quick: what a document says is reduced to stems and points once, when it is made; a list of documents is only
joined into postings. The points that a word of a query gives are one long integer with a lane of sixteen bits for each
document (`Lanes`), kept for the next query with that word: adding two such integers adds ten thousand scores. One
subtraction and a count of bits tell how many documents reach a score, and bisection finds the lowest score among the
best.

Rejected: the sum of fixed points for whole words, beginnings and parts in four fields that stood here before. It is
what other gateways do, knows nothing of rare and common words, and finds half as many tools at the first try
(docs/finding-tools.md has the figures). Rejected: a search library. BM25 from one found a third fewer, for it does not
know the synonyms of this trade, and they bring numpy or a binary of several megabytes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, compress, pairwise, repeat
from math import log
from typing import Any, Final

import msgspec

from ..config.model import PrefixMode
from ..protocol.json_values import array_or_empty, is_object, object_or_empty
from ..protocol.lazy_patterns import lazy_pattern
from .names import prefix_of
from .search_words import ROOTS, STOP_WORDS, normalise, paired, phrases, stem, synonyms, tokens, words_of

MAX_WORDS: Final = 32  # of a query; the rest is ignored
_PARAMETERS: Final = 40  # of one tool that are read
_SAID: Final = 400  # characters of a parameter's description that are read
# For each field: its weight, the length that is usual for it in words, and how much another length matters.
_NAME: Final = (6.0, 3.0, 0.5)
_TITLE: Final = (2.0, 3.0, 0.5)
_SERVER: Final = (6.0, 1.0, 0.0)
_PURPOSE: Final = (2.0, 10.0, 0.5)
_DESCRIPTION: Final = (0.4, 40.0, 0.75)
_PARAMETER: Final = (0.3, 4.0, 0.5)
_PARAMETER_TEXT: Final = (0.3, 20.0, 0.5)
_SATURATION: Final = 2.0  # the weighted occurrences that give half of what many give
_FULL: Final = 255  # the points of saturation; a byte holds them
_BYTE: Final = 8  # bits; a posting is a document's number and, in its lowest byte, the points
_SYNONYM: Final = 0.6
PHRASE: Final = 0.7
_BEGINS: Final = 0.45
_INSIDE: Final = 0.4
_SLIP: Final = 0.75
ASIDE: Final = 0.1  # a stop word that is a name, beside words that say more
_MOST_RELATED: Final = 60  # words that one word of a query stands for by its letters
_END_OF_PURPOSE: Final = lazy_pattern(r"[.!?\n](?:\s|\Z)")  # a description says first what a tool is for
_SHORTEST, _LONGEST = 20, 240  # characters of that
_LONGEST_PHRASE: Final = 3  # words
_MEANT: Final = 8  # words that the phrases of one query stand for
PRESENT: Final = 60  # points, of `_FULL`, for being there at all
RAREST: Final = 6.0  # how much a word counts that one tool of ten thousand has
_OF_BEST: Final = 4  # a tool is listed that has one of so many parts of the best score
SCALE: Final = 3  # so that `MAX_WORDS` of the rarest words, and `_MEANT` others, fit into a lane
Lanes = (
    int  # sixteen bits for each document: two of these are added in one step, and so are ten thousand scores
)
_LANE: Final = 0xFFFF
_TOP_BIT: Final = 15  # of a lane; no score needs it
_TOP: Final = (1 << _TOP_BIT) - 1
EXACT: Final = _TOP  # the score of what the query names


class ToolDocument(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One tool, prepared: the spellings of its name, its stems, and a byte of points for each. The garbage collector
    need not look at it, for it has texts only.

    Documents that were kept share one list of `words`, and `numbers` has the place of each stem in it, in four bytes.
    """

    plain: str
    shown: str
    words: Sequence[str]
    points: bytes
    numbers: bytes | None = None  # None: the words are the stems

    @property
    def names(self) -> tuple[str, str]:
        return self.plain, self.shown

    @property
    def stems(self) -> tuple[str, ...]:
        if self.numbers is None:
            return tuple(self.words)
        return tuple(map(self.words.__getitem__, array("I", self.numbers)))

    @classmethod
    def of(
        cls,
        name: str,
        original: str,
        server: str,
        description: str,
        *,
        title: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> ToolDocument:
        """`name` is what clients see, `original` what the server calls it."""
        plain = normalise(original)
        before = name.removesuffix(original)  # a server's prefix, as a rule
        shown = f"{_often(before)} {plain}".strip() if before.endswith("_") else normalise(name)
        weights: dict[str, float] = {}
        _add(weights, [*paired(plain).split(), *_together(plain)], _NAME)
        _add(weights, paired(_often(server)).split(), _SERVER)
        _add_stop_words(weights, plain, _NAME)
        _add_stop_words(weights, _short(server), _SERVER)
        end = _END_OF_PURPOSE.search(description, _SHORTEST, _LONGEST)
        at = end.end() if end is not None else _LONGEST
        _add(weights, words_of(description[:at]), _PURPOSE)
        if len(description) > at:
            _add(weights, words_of(description[at:]), _DESCRIPTION)
        if title:
            _add(weights, words_of(title), _TITLE)
        if schema is not None:
            _add_parameters(weights, schema)
        weights.pop("", None)  # the stop words
        points = bytes(int(_FULL * weight / (weight + _SATURATION)) for weight in weights.values())
        return cls(plain, shown, tuple(weights), points)


_often = lru_cache(maxsize=1 << 12)(normalise)  # for what many tools share: servers, and names of parameters


@lru_cache(maxsize=1 << 12)
def _short(server: str) -> str:
    """What a server is called without the `-mcp` that many end with."""
    return normalise(prefix_of(server, PrefixMode.SHORT))


def _together(name: str) -> list[str]:
    """Words whose parts stand apart in a name and are often written as one: `gitHub`, `screen_shot`."""
    parts = name.split()
    return [one + other for one, other in pairwise(parts) if len(one) > 2 and len(other) > 2][:8]


def _add(weights: dict[str, float], words: Sequence[str], field: tuple[float, float, float]) -> None:
    """Count the words of one field."""
    weight, usual, matters = field
    each = weight / (1 - matters + matters * max(len(words), 1) / usual)
    for word in words:
        root = ROOTS[word]
        weights[root] = weights.get(root, 0.0) + each


def _add_stop_words(weights: dict[str, float], name: str, field: tuple[float, float, float]) -> None:
    """Count the words of a name that has no others than stop words."""
    words = name.split()
    if STOP_WORDS.issuperset(words):
        weight = field[0]
        weights.update((root, weights.get(root, 0.0) + weight) for root in map(stem, words))


def _add_parameters(weights: dict[str, float], schema: Mapping[str, Any]) -> None:
    properties = object_or_empty(schema.get("properties"))
    names, texts = list[str](), list[str]()
    for name, said in list(properties.items())[:_PARAMETERS]:
        names += paired(_often(name)).split()
        if is_object(said):
            text, choices = said.get("description"), array_or_empty(said.get("enum"))
            if isinstance(text, str):
                texts += words_of(text[:_SAID])
            texts += [one.lower() for one in choices[:20] if isinstance(one, str)]
    _add(weights, names, _PARAMETER)
    _add(weights, texts, _PARAMETER_TEXT)


class _Scores(dict[int, int]):
    """What each number of points of a term is worth, worked out once."""

    def __init__(self, each: float) -> None:
        self._each = each

    def __missing__(self, points: int) -> int:
        score = self[points] = int(points * self._each + self._each * PRESENT) + 1
        return score


Hit = tuple[int, int]  # a document's number, and its score


class Ranking:
    """An inverted index over `documents`, made once. Documents with equal scores keep their order."""

    def __init__(self, documents: Iterable[ToolDocument]) -> None:
        self._count = 0
        self._names: dict[str, int] = {}  # the first document of each name
        self._namesakes: dict[str, list[int]] = {}  # the others
        self._postings: dict[str, array[int]] = defaultdict(partial(array, "I"))
        self._word = lru_cache(maxsize=256)(self._measure)
        self._take(documents)

    def _take(self, documents: Iterable[ToolDocument]) -> None:
        postings = self._postings
        find = postings.__getitem__
        shared: dict[int, list[array[int]]] = {}  # the postings of the words that documents share
        for number, document in enumerate(documents):
            for name in (document.plain, document.shown):
                if self._names.setdefault(name, number) != number:
                    self._namesakes.setdefault(name, []).append(number)
            words = document.words
            if document.numbers is None:
                found = map(find, words)
            else:
                if id(words) not in shared:
                    shared[id(words)] = list(map(find, words))
                found = map(shared[id(words)].__getitem__, array("I", document.numbers))
            here = number << _BYTE
            for posting, points in zip(found, document.points, strict=True):
                posting.append(here | points)
            self._count = number + 1
        for term in [term for term, posting in postings.items() if not posting]:
            del postings[term]  # of a tool that was kept, and is not in this list
        self._ones = self._lanes(array("H", [1]) * self._count)
        self._tops = self._ones << _TOP_BIT
        _ = self._text

    def rank(self, query: str, most: int, only: Iterable[int] | None = None) -> tuple[list[Hit], int]:
        """The `most` best documents of those that match the query, best first; and how many match.

        `only`: the numbers of the documents to search; all if not given.
        """
        if not query.strip():
            return [], 0
        plain = normalise(query)
        scores = self._scores(plain)
        first = [self._names[plain]] if plain in self._names else []
        named = dict.fromkeys([*first, *self._namesakes.get(plain, ())])
        if only is not None:
            allowed = frozenset(only)
            scores &= self._those(allowed)
            named = {number: None for number in named if number in allowed}
        best, matching, least = self._best(scores, most)
        if not named:
            return best, matching
        of_name = [(number, EXACT) for number in named]
        unlisted = sum((scores >> 16 * number & _LANE) < least for number in named)
        return [*of_name, *(hit for hit in best if hit[0] not in named)][:most], matching + unlisted

    def matching(self, query: str, numbers: Iterable[int], only: Iterable[int] | None = None) -> int:
        """How many of these documents match the query. `only`: as in `rank`."""
        scores = self._scores(normalise(query))
        if only is not None:
            scores &= self._those(only)
        least, score = self._least(scores | self._tops), self._array(scores)
        return sum(score[number] >= least for number in numbers)

    def _scores(self, plain: str) -> Lanes:
        words, meant = asked(plain)
        scores = sum(map(self._word, words, repeat(1.0))) + sum(map(self._word, meant, repeat(PHRASE)))
        return scores + sum(map(self._word, filter(self._postings.__contains__, aside(plain)), repeat(ASIDE)))

    def coverage(self, query: str, only: Iterable[int] | None = None) -> tuple[int, int]:
        """How many words of `query` its best document has, in any form that counts; and how many there are."""
        words = asked(normalise(query))[0]
        best = self.rank(query, 1, only)[0]
        if not best or best[0][1] == EXACT:
            return (len(words) if best else 0), len(words)
        at = 16 * best[0][0]
        return sum(bool(self._word(word, 1.0) >> at & _LANE) for word in words), len(words)

    def _rarity(self, term: str) -> float:
        posting = self._postings.get(term)
        having = len(posting) if posting is not None else 0
        return min(RAREST, log(1 + (self._count - having + 0.5) / (having + 0.5)))

    def _measure(self, word: str, factor: float) -> Lanes:
        """The points of every document for one word of a query, by the best of what the word stands for."""
        marks, rarity = self._empty(), self._rarity(word)
        standing = {word: 1.0} if factor == ASIDE else self.standing_for(word)
        for term, weight in standing.items():
            scores = _Scores(factor * weight * min(self._rarity(term), rarity) / SCALE)
            for posted in self._postings[term]:
                number, score = posted >> _BYTE, scores[posted & _FULL]
                if score > marks[number]:
                    marks[number] = score
        return self._lanes(marks)

    def standing_for(self, word: str) -> dict[str, float]:
        """The stems of the vocabulary that count for a word, each with its weight."""
        terms: dict[str, float] = {}
        for term in self._beginning_with(word) if len(word) > 2 else ():
            terms[term] = _BEGINS * (0.5 + 0.5 * len(word) / len(term))
        for term in synonyms().get(word, ()):
            terms[term] = max(terms.get(term, 0.0), _SYNONYM)
        terms[word] = 1.0
        known = {term: weight for term, weight in terms.items() if term in self._postings}
        if known:
            return known
        return dict.fromkeys(self._one_slip_from(word), _SLIP) or dict.fromkeys(
            self._containing(word), _INSIDE
        )

    def _beginning_with(self, word: str) -> Iterator[str]:
        vocabulary = self._vocabulary
        at = bisect_left(vocabulary, word)
        for term in vocabulary[at : at + _MOST_RELATED]:
            if not term.startswith(word):
                return
            yield term

    def _containing(self, word: str) -> list[str]:
        """Stems that contain `word`. One string of all stems is searched, which is quicker than each stem."""
        text, starts = self._text
        found, at = list[str](), text.find(word)
        while at >= 0 and len(found) < _MOST_RELATED:
            number = bisect_right(starts, at) - 1
            found.append(self._vocabulary[number])
            at = text.find(word, starts[number] + len(found[-1]))
        return found

    def _one_slip_from(self, word: str) -> list[str]:
        """The stems that a letter left out, added, changed or exchanged with the next makes of it."""
        if len(word) < 4 or len(word) > 24 or not word.isalpha():
            return []
        return [term for term in dict.fromkeys(_slips(word)) if term in self._postings]

    @cached_property
    def _vocabulary(self) -> list[str]:
        return sorted(self._postings)

    @cached_property
    def _text(self) -> tuple[str, list[int]]:
        """The vocabulary as one text, and where each stem starts in it."""
        starts = accumulate((len(term) + 1 for term in self._vocabulary), initial=0)
        return "\n".join(self._vocabulary), list(starts)[:-1]

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def _best(self, scores: Lanes, most: int) -> tuple[list[Hit], int, int]:
        """The `most` best documents, how many match, and the least score of these. Equal scores keep the order of
        documents."""
        lifted = scores | self._tops
        least = self._least(lifted)
        matching = self._reaching(least, lifted).bit_count()
        most = min(most, matching)
        best = self._array(self._reaching(self._lowest_of(most, lifted, least), lifted))
        score = self._array(scores)
        numbers = sorted(compress(range(len(best)), best), key=score.__getitem__, reverse=True)  # stable
        return [(number, score[number]) for number in numbers[:most]], matching, least

    def _least(self, lifted: Lanes) -> int:
        """The score from which on a document is listed. At least 1, for 0 means no match."""
        return -(-self._lowest_of(1, lifted, 1) // _OF_BEST)

    def _lowest_of(self, count: int, lifted: Lanes, low: int) -> int:
        """The highest score that at least `count` documents reach, by bisection; at least `low`."""
        high = _TOP
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
        return lifted - least * self._ones & self._tops

    def _those(self, numbers: Iterable[int]) -> Lanes:
        """The lanes of these documents, all bits set."""
        marks = self._empty()
        for number in numbers:
            marks[number] = _LANE
        return self._lanes(marks)

    def _empty(self) -> array[int]:
        return array("H", bytes(2 * self._count))

    def _lanes(self, numbers: array[int]) -> Lanes:
        return int.from_bytes(numbers.tobytes(), sys.byteorder)

    def _array(self, lanes: Lanes) -> array[int]:
        return array("H", lanes.to_bytes(2 * self._count, sys.byteorder))


def asked(plain: str) -> tuple[list[str], list[str]]:
    """The stems of a query's words, and those that its phrases stand for."""
    said = tokens(plain)[:MAX_WORDS]
    stems = [stem(word) for word in said]
    ends = range(1, len(said) + 1)
    spans = [tuple(stems[start:end]) for end in ends for start in range(max(0, end - _LONGEST_PHRASE), end)]
    words = [root for root, word in zip(stems, said, strict=True) if word not in STOP_WORDS] or stems
    meant = [term for span in spans for term in phrases().get(span, ()) if term not in words]
    return list(dict.fromkeys(words)), list(dict.fromkeys(meant))[:_MEANT]


def aside(plain: str) -> list[str]:
    """The stems of a query's stop words. They count only where a tool has such a name. Empty if the query has no other
    words."""
    said = tokens(plain)[:MAX_WORDS]
    stopped = [word for word in said if word in STOP_WORDS]
    return list(dict.fromkeys(map(stem, stopped))) if len(stopped) < len(said) else []


def _slips(word: str) -> Iterator[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if after:
            yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in letters:
            yield before + letter + after
            if after:
                yield before + letter + after[1:]
