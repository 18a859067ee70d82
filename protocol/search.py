"""Search: which tools answer a query, best first, a page at a time.

It runs on the index alone, so it finds the tools of servers that are not running. The words of a query are
joined by *or*: whatever matches any of them is listed, and how many matched only ranks (`_ranking` has the
formula). Matching by pattern is the same door with the caller's own test, because a pattern engine that is
safe against hostile patterns is not in the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs

from .index import Index, Target

PAGE: Final = 12

T = TypeVar("T")


@attrs.frozen
class Match:
    """A tool that was found; `score` is 0 where nothing was ranked."""

    target: Target
    score: int = 0


@attrs.frozen
class SearchPage:
    """One page of `total` matches; `next_offset` asks for the next one and is None on the last."""

    matches: tuple[Match, ...]
    total: int
    next_offset: int | None = None

    @property
    def has_more(self) -> bool:
        return self.next_offset is not None


def search(
    index: Index, query: str, *, server: str | None = None, limit: int = PAGE, offset: int = 0
) -> SearchPage:
    """The tools that match any word of `query`, best first, equals by name; only those of `server`, if given.

    A blank query finds nothing, but with a `server` lists all it has. A limit below 1 counts as 1, a
    negative offset as 0.
    """
    if not query.strip():
        return _page(index.tools(server) if server is not None else (), Match, limit, offset)
    everything = index.tools()
    hits = index.ranking.rank(query)
    if server is not None:
        hits = [hit for hit in hits if everything[hit[0]].server == server]
    return _page(hits, lambda hit: Match(everything[hit[0]], hit[1]), limit, offset)


def search_matching(
    index: Index,
    matches: Callable[[str], bool],
    *,
    server: str | None = None,
    limit: int = PAGE,
    offset: int = 0,
) -> SearchPage:
    """The tools whose name or description `matches` accepts, by name, unranked."""
    found = [target for target in index.tools(server) if matches(target.name) or matches(target.description)]
    return _page(found, Match, limit, offset)


def _page(found: Sequence[T], match: Callable[[T], Match], limit: int, offset: int) -> SearchPage:
    start = max(0, offset)
    end = start + max(1, limit)
    more = end if end < len(found) else None
    return SearchPage(tuple(match(one) for one in found[start:end]), len(found), more)
