"""Search: which tools and skills answer a query, best first, a page at a time.

It uses only the index, so it finds tools of servers that are not running. The words of a query are joined by *or*: a
tool need not match all of them, and is listed unless the best matches far better (`ranking` has the formula). A search
by pattern takes the caller's own test, because the standard library has no pattern engine that is safe against hostile
patterns.

Where tools are found by meaning too (`tool_vectors`), both orders are joined by reciprocal rank: the tool in place n
of one has 1 / (10 + n) points, and those of both are added. Only places count, because scores of words and of vectors
cannot be compared. What the query names stays first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from .index import Index
from .namespace import Target
from .ranking import EXACT, Hit
from .search_words import STOP_WORDS, words_of

PAGE: Final = 12
MAX_QUERY: Final = 1_000  # characters of a query that are read
_SHORTEST: Final = 3  # letters of a word that says what a query is about
_LONGEST: Final = 40
_FEW: Final = 2  # words of a query that a good match has all of
_MOST_OF: Final = 0.6  # of more words
_NEAREST: Final = 100  # tools that are near in meaning which are listed
_PLACES: Final = 1_000  # of the order by words that count
_FROM_TOP: Final = 10  # the larger, the less the first places of one order count against many middling ones
_POINTS: Final = 100_000  # so that the sum is a whole number, and below `EXACT`


class Match(msgspec.Struct, frozen=True):
    """A tool or skill that a search has found."""

    target: Target  # the tool or skill
    score: int = 0  # higher is better; 0 in an unranked search

    def as_dict(self) -> dict[str, Any]:
        """The tool as plain JSON, with its `score`."""
        return {**self.target.as_dict(), "score": self.score}


class SearchPage(msgspec.Struct, frozen=True):
    """One page of the matches of a search."""

    matches: tuple[Match, ...]  # those of this page, best first
    total: int  # the number of matches on all pages
    next_offset: int | None = None  # the `offset` of the next page; None: this is the last

    @property
    def has_more(self) -> bool:
        """Whether there is another page."""
        return self.next_offset is not None

    def as_dict(self) -> dict[str, Any]:
        """The page as plain JSON: `matches`, `total`, `next_offset`."""
        matches = [match.as_dict() for match in self.matches]
        return {"matches": matches, "total": self.total, "next_offset": self.next_offset}


def search(
    index: Index,
    query: str,
    *,
    server: str | None = None,
    limit: int = PAGE,
    offset: int = 0,
    near: Sequence[bytes] = (),
    skills: bool = True,
) -> SearchPage:
    """The tools and skills that match `query`, best first, and by name when equally good; of
    `server`, if given. `near`: the keys of those that are near to it in meaning, the nearest first, if they are known.
    `skills`: False for tools alone.

    A blank query finds nothing, but with a `server` it lists all of that server. A limit below 1 counts as 1, and
    a negative offset as 0.
    """
    if not query.strip():
        return _page(_searched(index, server, skills) if server is not None else (), limit, offset)
    query = query[:MAX_QUERY]
    everything = _searched(index, None, skills)
    only = None
    if server is not None:
        only = [n for n, one in enumerate(everything) if one.server == server]
    elif len(everything) < len(index.findable()):
        only = list(range(len(everything)))
    start, end = _span(limit, offset)
    if near:
        hits, total = index.ranking.rank(query, max(end + _NEAREST, _PLACES), only)
        left_out = {number for number, score in hits if score == EXACT}
        if only is not None:
            left_out.update(set(range(len(everything))).difference(only))
        places = (index.by_meaning.get(key) for key in near)
        nearest = [*islice((at for at in places if at is not None and at not in left_out), _NEAREST)]
        total += len(nearest) - index.ranking.matching(query, nearest, only)
        hits = _joined(hits, nearest)[:end]
    else:
        hits, total = index.ranking.rank(query, end, only)
    matches = tuple(Match(everything[number], score) for number, score in hits[start:])
    return SearchPage(matches, total, end if end < total else None)


def _joined(hits: Sequence[Hit], near: Sequence[int]) -> list[Hit]:
    """What matches by words and what is near in meaning, best first. `near` has none that the query names."""
    named = [hit for hit in hits if hit[1] == EXACT]
    points = dict[int, int]()
    for order in ([number for number, _ in hits[len(named) :]], near):
        for place, number in enumerate(order, 1):
            points[number] = points.get(number, 0) + _POINTS // (_FROM_TOP + place)
    return [*named, *sorted(points.items(), key=lambda hit: hit[1], reverse=True)]


def fits_well(index: Index, query: str, *, server: str | None = None) -> bool:
    """Whether the best match has what the query says: each of one or two words, most of more."""
    query = query[:MAX_QUERY]
    everything = index.findable()
    only = None if server is None else [n for n, one in enumerate(everything) if one.server == server]
    had, asked_for = index.ranking.coverage(query, only)
    return had >= (asked_for if asked_for <= _FEW else _MOST_OF * asked_for) > 0


def search_matching(
    index: Index,
    matches: Callable[[str], bool],
    *,
    server: str | None = None,
    limit: int = PAGE,
    offset: int = 0,
    skills: bool = True,
) -> SearchPage:
    """The tools and skills whose name or description `matches` accepts, by name, unranked."""
    found = [one for one in _searched(index, server, skills) if matches(one.name) or matches(one.description)]
    return _page(found, limit, offset)


def _searched(index: Index, server: str | None, skills: bool) -> Sequence[Target]:
    return index.findable(server) if skills else index.tools(server)


def _page(found: Sequence[Target], limit: int, offset: int) -> SearchPage:
    start, end = _span(limit, offset)
    return SearchPage(tuple(map(Match, found[start:end])), len(found), end if end < len(found) else None)


def _span(limit: int, offset: int) -> tuple[int, int]:
    """From where to where a page goes."""
    start = max(0, offset)
    return start, start + max(1, limit)


def asked_words(query: str) -> list[str]:
    """The different words of a query that say what it is about, in their order."""
    words = dict.fromkeys(words_of(query[:MAX_QUERY]))
    return [word for word in words if _SHORTEST <= len(word) <= _LONGEST and word not in STOP_WORDS]
