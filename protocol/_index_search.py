"""Search in an index, and suggestions for a mistaken name.

Making the ranked index takes time with thousands of tools. So it is made in slices beforehand, or at the first search.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs

from ._index_part import Part
from ._namespace import Namespace
from ._ranking import Ranking, normalise, tokens
from .config import PrefixMode
from .names import MAX_LENGTH, normal, prefix_of
from .search_forms import SearchForms, key_of
from .slices import Pace, Slices, finish

_ALIKE: Final = 0.8  # of 1: how much two spellings must agree for one to suggest the other
_A_PIECE: Final = 8  # servers whose prefixes are made in one piece of work
_COMPARED: Final = 1000  # tools whose spelling is compared at most: ten milliseconds
_MODES: Final = (PrefixMode.SERVER, PrefixMode.SHORT)


@attrs.define(eq=False)
class Finder:
    _servers: Mapping[str, Part]
    _tools: Namespace
    _forms: SearchForms | None = None
    _ranking: Ranking | None = attrs.field(default=None, init=False)
    # Every prefix that a name may have, in any prefix mode, each with its `_`.
    _prefixes: Collection[str] = attrs.field(default=(), init=False)
    _making: Slices[None] | None = attrs.field(default=None, init=False)

    @property
    def ranking(self) -> Ranking:
        """The ranked index; made now, unless it was prepared."""
        finish(self._preparing_ranking())
        assert self._ranking is not None
        return self._ranking

    def preparing(self) -> Slices[None]:
        """Make what `search` and `suggest` need. A second caller in the same loop continues the work of the first."""
        yield from self._tools.preparing(Pace())
        if not self._prefixes:
            said, pace = set[str](), Pace()
            for number, server in enumerate(self._servers):
                said.update(normal(prefix_of(server, mode)) + "_" for mode in _MODES)
                if number % _A_PIECE == 0 and pace.due():
                    yield
            self._prefixes = said
        yield from self._preparing_ranking()

    def _preparing_ranking(self) -> Slices[None]:
        if self._ranking is None and self._making is None:
            self._making = self._make_ranking()
        while self._ranking is None and self._making is not None:
            try:
                next(self._making)
            except StopIteration:
                self._making = None
            else:
                yield

    def _make_ranking(self) -> Slices[None]:
        tools, forms = self._tools.everything, self._forms or SearchForms()
        missing = yield from forms.recalling(tools, self._key)
        ranking = yield from Ranking.making(target.document for target in tools)
        yield from forms.reporting(tools, missing)
        self._ranking = ranking

    def _key(self, server: str) -> str:
        entry = self._servers[server].entry
        return "" if entry is None else key_of(entry)

    def suggest(self, name: str, limit: int = 5) -> tuple[str, ...]:
        """Up to `limit` exposed names that a mistaken `name` may have meant, the likeliest first: those spelled
        almost like it, then those that share words with it."""
        name = name[: 4 * MAX_LENGTH]  # longer text was never a name
        bare = self._unprefixed(name)
        words = " ".join(word for word in tokens(normalise(bare)) if len(word) > 1)
        sharing = (self._tools.everything[number].name for number, _ in self.ranking.rank(words, limit)[0])
        likeliest = dict.fromkeys((*self._almost(name, limit), *self._almost(bare, limit), *sharing))
        return tuple(likeliest)[:limit]

    def _almost(self, name: str, limit: int) -> list[str]:
        """The names of tools spelled almost like `name`. None when there are too many tools: comparing takes time."""
        if len(self._tools.everything) > _COMPARED or len(name) > 2 * MAX_LENGTH:
            return []
        import difflib  # only ever needed for a mistake

        names = {
            normal(said): tool.name for tool in self._tools.everything for said in (tool.original, tool.name)
        }
        return [names[near] for near in difflib.get_close_matches(normal(name), names, limit, _ALIKE)]

    def _unprefixed(self, name: str) -> str:
        """`name` without the longest server prefix it starts with, in any prefix mode."""
        key = normal(name)
        finish(self.preparing())
        ends = [end for end in range(1, len(key) + 1) if key[:end] in self._prefixes]
        return name[max(ends, default=0) :]
