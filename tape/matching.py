"""Which recorded call a call on a tape is answered from. Pure.

Of the recorded calls of a server with the same method and the same parameters, the first one is taken that was not
taken before. A call that may change something (its tool is not marked as one that only reads) moves a mark: after it,
what was recorded behind it comes first, so what is read after a write is what was read after the write. Nothing is
refused for its order, because calls that were made at once may come in any.

Parameters are compared without `_meta`, and without members that `ignore` names. Where no call is the same, `nearest`
takes the most similar one of the same tool, if it is similar enough, and `by_order` the next one of the same tool,
whatever its arguments. A call that was taken is not taken again, unless the matcher is lenient: then the last one that
fits is.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, cast

import attrs
import msgspec

from .lines import CallLine

_COMPARED: Final = 2_000  # characters of parameters that are compared for their similarity
_LIKELY: Final = 8  # calls that are compared exactly
_LOOKED_AT: Final = 2_000  # calls that are compared


@attrs.frozen
class Match:
    """How a call is found. `is_strict`: a recorded call answers once. `ignore`: names of members that may differ.
    `by_order`: any arguments. `nearest`: from which similarity on (0 to 1) another call will do; None: none will."""

    is_strict: bool = True
    ignore: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    by_order: bool = False
    nearest: float | None = None


class Recorded:
    """The recorded calls of one server. `reads`: the server's own names of tools that only read."""

    def __init__(self, calls: Sequence[CallLine], match: Match, reads: Collection[str] = ()) -> None:
        self.calls = calls
        self._match = match
        self._reads = reads
        self._taken: set[int] = set()
        self._missed: set[int] = set()  # made, and not answered because of a fault
        self._first = 0  # all before it were made
        self._mark = 0  # calls before it come last
        self._same: dict[str, list[int]] = defaultdict(list)
        self._alike: dict[str, list[int]] = defaultdict(list)
        self._texts: list[str] = []
        for at, call in enumerate(calls):
            params = msgspec.json.decode(call.params)
            kind, text = kind_of(call.method, params), compared(params, match.ignore)
            self._texts.append(text)
            if "params" not in call.left_out:
                self._same[f"{kind}\n{text}"].append(at)
            self._alike[kind].append(at)

    def take(self, method: str, params: Mapping[str, Any] | None) -> CallLine | None:
        """The recorded call that answers this one; None: there is none."""
        at = self.find(method, params)
        if at is None:
            return None
        self._taken.add(at)
        self._moves(at, method, params)
        return self.calls[at]

    def look(self, method: str, params: Mapping[str, Any] | None) -> CallLine | None:
        """The same, and it may be taken again."""
        at = self.find(method, params)
        return None if at is None else self.calls[at]

    def miss(self, at: int, method: str, params: Mapping[str, Any] | None, *, has_run: bool) -> None:
        """The call at this place was made and gets no answer, because of a fault. It may be made again."""
        self._missed.add(at)
        if has_run:
            self._moves(at, method, params)

    def find(self, method: str, params: Mapping[str, Any] | None) -> int | None:
        """The place of the recorded call that would answer this one, from 0; None: there is none."""
        kind, text = kind_of(method, params), compared(params, self._match.ignore)
        at = self._next(self._same.get(f"{kind}\n{text}", ()))
        if at is None and self._match.by_order:
            at = self._next(self._alike.get(kind, ()))
        if at is None and self._match.nearest is not None:
            left = [each for each in self._alike.get(kind, ()) if self._is_free(each)]
            best = self._best(left, text)
            at = best[1] if best is not None and best[0] >= self._match.nearest else None
        return at

    def nearest_to(self, method: str, params: Mapping[str, Any] | None) -> CallLine | None:
        """The most similar recorded call of the same tool, taken or not."""
        best = self._best(self._alike.get(kind_of(method, params), ()), compared(params, self._match.ignore))
        return None if best is None else self.calls[best[1]]

    @property
    def next_at(self) -> float:
        """When the first call was accepted that nobody has made so far."""
        while self._first in self._taken or self._first in self._missed:
            self._first += 1
        return self.calls[self._first].accepted if self._first < len(self.calls) else math.inf

    @property
    def untaken(self) -> list[CallLine]:
        """Those that nobody has made so far."""
        return [call for at, call in enumerate(self.calls) if at not in self._taken | self._missed]

    def _moves(self, at: int, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "tools/call" and (params or {}).get("name") not in self._reads:
            self._mark = at

    def _is_free(self, at: int) -> bool:
        return not self._match.is_strict or at not in self._taken

    def _next(self, places: Sequence[int]) -> int | None:
        free = [at for at in places if at not in self._taken]
        if not free:
            return places[-1] if places and not self._match.is_strict else None
        return next((at for at in free if at >= self._mark), free[0])

    def _best(self, places: Sequence[int], text: str) -> tuple[float, int] | None:
        matcher = SequenceMatcher(b=text[:_COMPARED], autojunk=False)

        def similarity(at: int, how: Callable[[], float]) -> tuple[float, int]:
            matcher.set_seq1(self._texts[at][:_COMPARED])
            return how(), -at

        # The quick one is never too low, and often too high.
        likely = sorted((similarity(at, matcher.quick_ratio) for at in places[:_LOOKED_AT]), reverse=True)
        best = max((similarity(-at, matcher.ratio) for _, at in likely[:_LIKELY]), default=None)
        return None if best is None else (best[0], -best[1])


def compared(params: Any, ignore: Collection[str] = ()) -> str:
    """Parameters as a text that is the same for parameters that are to be taken as the same."""
    if isinstance(params, Mapping):
        params = {key: each for key, each in cast("Mapping[str, Any]", params).items() if key != "_meta"}
    return text_of(params or {}, ignore)


def text_of(value: Any, ignore: Collection[str] = ()) -> str:
    """A JSON value as a text that is the same for values that are to be taken as the same."""
    return json.dumps(plain(value, ignore), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def kind_of(method: str, params: Any) -> str:
    """The method, with the tool or the place that it is about."""
    if not isinstance(params, Mapping):
        return method
    said = cast("Mapping[str, Any]", params)
    return f"{method} {said.get('name', said.get('uri', ''))}"


def plain(value: Any, ignore: Collection[str] = ()) -> Any:
    """A copy of parameters in plain data, without the members that `ignore` names."""
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {str(key): plain(each, ignore) for key, each in members.items() if key not in ignore}
    if isinstance(value, list | tuple):
        return [plain(each, ignore) for each in cast("Sequence[Any]", value)]
    return value
