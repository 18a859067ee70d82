"""Which recorded call a call on a tape is answered from. Pure.

A call is answered with the first recorded call of its server that has the same method and parameters and was not taken
before. A call that may change something (its tool is not marked as one that only reads) moves a mark: after it,
what was recorded behind it comes first, so what is read after a write is what was read after the write. Nothing is
refused for its order, because calls that were made at once may come in any. But a read that is answered with what was
read after a write, while nobody has made that write, is told (`early`): its agent sees what it has not done.

Parameters are compared without `_meta`, and without members that `ignore` names. What was cut out of a recorded call, a
secret for instance, may be anything. Where no call is the same, `nearest` takes the most similar one of the same tool,
if it is similar enough, and `by_order` the next one of the same tool, whatever its arguments. A call that was taken is
not taken again, unless the matcher is lenient: then the last one that fits is.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import attrs
import msgspec

from ..protocol.bounds import DEPTH
from ..protocol.errors import Reach
from ..protocol.json_values import is_array, is_object, object_or_empty
from ..protocol.safe_text import whole
from .tape_lines import CallLine, ClientQuestion

_COMPARED: Final = 1_000  # characters of parameters that are compared for their similarity, in 0.2 ms
# What stands in the place of what was not recorded: a member, a token, a known secret.
CUT_OUT: Final = re.compile(r'"\[REDACTED\]"|\[REDACTED(?::[A-Z]+)?\]|\*\*\*')
_LOOKED_AT: Final = 2_000  # calls that are compared
_STEP: Final = 16  # of them at once
_FITTED: Final = 1_000  # calls of which something was cut out, at once
Found = TypeVar("Found")
Steps = Generator[
    None, None, Found
]  # work that takes a while: after each step, others may have their turn, and take


@attrs.frozen
class MatchRule:
    """How a call is found. `is_strict`: a recorded call answers once. `ignore`: names of members that may differ.
    `by_order`: any arguments. `nearest`: from which similarity on (0 to 1) another call will do; None: none will."""

    is_strict: bool = True
    ignore: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    by_order: bool = False
    nearest: float | None = None


_Places = list[int]  # of calls that are alike, in order
_NO_PLACES: Final[_Places] = []
_NOTHING: Final[Mapping[int, int]] = {}


class CallIndex:
    """The recorded calls of one server, found by what they are. It never changes. `reads`: the server's own names of
    tools that only read."""

    def __init__(self, calls: Sequence[CallLine], match: MatchRule, reads: Collection[str] = ()) -> None:
        self.calls = calls
        self.match = match
        self.reads = reads
        self.writes: dict[str, list[int]] = defaultdict(list[int])  # by whose server it was, as they ended
        self.same: dict[str, dict[str, _Places]] = defaultdict(dict[str, _Places])
        self.alike: dict[str, _Places] = defaultdict(_Places)
        self.texts: list[str] = []
        # By the text, the pieces between what was cut out of it.
        self.hidden: dict[str, dict[str, tuple[list[str], _Places]]] = defaultdict(dict)
        for at, call in enumerate(calls):
            params = call.said
            kind, text = kind_of(call.method, params), compared(params, match.ignore)
            self.texts.append(text)
            if (
                call.sent is not None
                and call.reach is not Reach.NOT_SENT
                and self.may_change(call.method, params)
            ):
                self.writes[call.scope].append(at)
            if "params" not in call.left_out:
                pieces = CUT_OUT.split(text) if call.hidden else [text]
                if len(pieces) > 1:
                    places = self.hidden[kind].setdefault(text, (pieces, []))[1]
                else:
                    places = self.same[kind].setdefault(text, [])
                places.append(at)
            self.alike[kind].append(at)
        for writes in self.writes.values():
            writes.sort(key=lambda at: calls[at].ended)

    def may_change(self, method: str, params: Any) -> bool:
        name = params.get("name") if is_object(params) else None
        return method == "tools/call" and str(name) not in self.reads


class RecordedCalls:
    """The recorded calls of one server, and which of them were made."""

    def __init__(self, index: CallIndex) -> None:
        self._index = index
        self.calls: Sequence[CallLine] = index.calls
        self._match = index.match
        self._taken: set[int] = set()
        self._missed: set[int] = set()  # made, and not answered from the tape
        self._first = 0  # all before it were made
        self._mark = 0  # calls before it come last
        self._writes = {scope: deque(writes) for scope, writes in index.writes.items()}
        self._told: set[int] = set()  # writes of which it was said that they were read too early
        # Which of the places are taken is asked again and again, so it is remembered how far one can go: there may be a
        # hundred thousand of them. From one that is taken, to where to go on.
        self._skips: dict[int, dict[int, int]] = {}  # by the identity of the places

    def anew(self) -> RecordedCalls:
        """These calls as if none of them had been made yet."""
        return RecordedCalls(self._index)

    def take(self, at: int, method: str, params: Mapping[str, Any] | None) -> CallLine:
        """The recorded call at this place, which answers this one."""
        self._taken.add(at)
        self._moves(at, method, params)
        return self.calls[at]

    def miss(self, at: int, method: str, params: Mapping[str, Any] | None, *, has_run: bool) -> None:
        """The call at this place was made and gets no answer, because of a fault. It may be made again."""
        self._missed.add(at)
        if has_run:
            self._moves(at, method, params)

    def find(self, method: str, params: Mapping[str, Any] | None) -> Steps[int | None]:
        """The place of the recorded call that would answer this one, from 0; None: there is none. When it is returned,
        nobody has taken it."""
        kind, text = kind_of(method, params), compared(params, self._match.ignore)
        for places in self._same_as(kind, text):
            if places is None:
                yield
            elif (at := self._next(places)) is not None:
                return at
        alike = self._index.alike.get(kind, _NO_PLACES)
        if self._match.by_order and (at := self._next(alike)) is not None:
            return at
        while self._match.nearest is not None:
            best = yield from self._best(self._free(alike), text)
            if best is None or best[0] < self._match.nearest:
                break
            if self._is_free(best[1]):  # nobody has taken it meanwhile
                return best[1]
        return None

    def last_same(self, method: str, params: Mapping[str, Any] | None) -> Steps[CallLine | None]:
        """The last recorded call with the same parameters, taken or not."""
        for places in self._same_as(kind_of(method, params), compared(params, self._match.ignore)):
            if places is not None:
                return self.calls[places[-1]]
            yield
        return None

    def _same_as(self, kind: str, text: str) -> Iterator[_Places | None]:
        """The places of calls with these parameters, and of those of which only something was cut out. None: others may
        have their turn."""
        if (same := self._index.same.get(kind, {}).get(text)) is not None:
            yield same
        for number, (pieces, places) in enumerate(self._index.hidden.get(kind, {}).values(), 1):
            if number % _FITTED == 0:
                yield None
            if _fits(text, pieces):
                yield places

    def nearest_to(self, method: str, params: Mapping[str, Any] | None) -> Steps[CallLine | None]:
        """Find the most similar recorded call of the same tool, taken or not."""
        places = self._index.alike.get(kind_of(method, params), _NO_PLACES)
        best = yield from self._best(places, compared(params, self._match.ignore))
        return None if best is None else self.calls[best[1]]

    @property
    def next_at(self) -> float:
        """When the first call was accepted that nobody has made so far."""
        while self._first in self._taken or self._first in self._missed:
            self._first += 1
        return self.calls[self._first].accepted if self._first < len(self.calls) else math.inf

    def early(self, read: CallLine) -> CallLine | None:
        """The first write that had ended when this read was asked, and that nobody has made so far; each only once.
        None: there is none, or this is no read."""
        writes = self._writes.get(read.scope)
        while writes and (writes[0] in self._taken or writes[0] in self._missed):
            writes.popleft()
        if not writes or writes[0] in self._told:
            return None
        write = self.calls[writes[0]]
        # In virtual time many things happen at one time, and what began then was made at once.
        was_before = write.ended <= read.accepted and write.accepted < read.accepted
        if not was_before or self.may_change(read.method, read.said):
            return None
        self._told.add(writes[0])
        return write

    def may_change(self, method: str, params: Any) -> bool:
        """Whether this call may change something: it is of a tool that is not marked as one that only reads."""
        return self._index.may_change(method, params)

    def _moves(self, at: int, method: str, params: Mapping[str, Any] | None) -> None:
        if self.may_change(method, params):
            self._mark = at

    def _is_free(self, at: int) -> bool:
        return not self._match.is_strict or at not in self._taken

    def _next(self, places: _Places) -> int | None:
        for least in (self._mark, 0):
            at = self._first_free(places, least)
            if at is not None:
                return at
        return places[-1] if places and not self._match.is_strict else None

    def _first_free(self, places: _Places, least: int) -> int | None:
        """The first one of them from the place `least` on that is not taken."""
        at, passed = bisect_left(places, least), list[int]()
        skips = self._skips.get(id(places), _NOTHING)
        while at < len(places) and places[at] in self._taken:
            passed.append(at)
            at = skips.get(at, at + 1)
        if passed:
            self._skips.setdefault(id(places), {}).update(dict.fromkeys(passed, at))
        return places[at] if at < len(places) else None

    def _free(self, places: _Places) -> Iterator[int]:
        """Those of them that nobody has taken, in order."""
        if not self._match.is_strict:
            yield from places
            return
        at = self._first_free(places, 0)
        while at is not None:
            yield at
            at = self._first_free(places, at + 1)

    def _best(self, places: Iterable[int], text: str) -> Steps[tuple[float, int] | None]:
        """The most similar one, with its similarity."""
        similarity, best = _similarity_to(text[:_COMPARED]), (-1.0, 0)
        for number, at in enumerate(islice(places, _LOOKED_AT), 1):
            best = max(best, (similarity(self._index.texts[at][:_COMPARED]), -at))
            if number % _STEP == 0:
                yield
        return None if best[0] < 0 else (best[0], -best[1])


def _similarity_to(text: str) -> Callable[[str], float]:
    """How similar another text is to this one, from 0 to 1: twice the length of what they have in common, in order (the
    longest common subsequence), by the length of both.

    It is counted with a bit for each character of the text, by the method of Hyyrö (2004). So it takes an addition for
    each character of the other text, whatever the texts are. `SequenceMatcher` takes ten seconds for two texts of 1,000
    characters that somebody has chosen for that.
    """
    all_of_it = (1 << len(text)) - 1
    places: dict[str, int] = {}
    for at, character in enumerate(text):
        places[character] = places.get(character, 0) | 1 << at

    def similarity(other: str) -> float:
        rest = all_of_it  # its zeros are what is in common
        for character in other:
            found = rest & places.get(character, 0)
            rest = (rest + found | rest - found) & all_of_it
        in_common = len(text) - rest.bit_count()
        return 2 * in_common / (len(text) + len(other) or 1)

    return similarity


def compared(params: Any, ignore: Collection[str] = ()) -> str:
    """Parameters as a text that is the same for parameters that are to be taken as the same."""
    if is_object(params):
        params = {key: each for key, each in params.items() if key != "_meta"}
    return text_of(params or {}, ignore)


def text_of(value: Any, ignore: Collection[str] = ()) -> str:
    """A JSON value as a text that is the same for values that are to be taken as the same."""
    text = json.dumps(plain(value, ignore), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text if text.isascii() else whole(text)  # a tape has no half characters


def kind_of(method: str, params: Any) -> str:
    """The method, with the tool or the place that it is about."""
    if not is_object(params):
        return method
    return f"{method} {params.get('name', params.get('uri', ''))}"


def answered_otherwise(
    asked: ClientQuestion, answer: Mapping[str, Any] | None, ignore: Collection[str] = ()
) -> str:
    """How a client's answer (None: it refused) is another than the recorded one, in words; empty: it is not. What a
    model writes, and where folders are, may differ. What a person types is not shown."""
    was = asked.answer
    if was is None or answer is None:
        return (
            ""
            if was is answer
            else f"refused, and was {_said(was)}"
            if was
            else f"{_said(answer)}, and was refused"
        )
    if asked.method != "elicitation/create":
        return ""
    if was.get("action") != answer.get("action"):
        return f"{_said(answer)}, and was {_said(was)}"
    before, now = (object_or_empty(each.get("content")) for each in (was, answer))
    other = [
        name for name in {**before, **now} if name not in ignore and not _is_as(before, now, name, ignore)
    ]
    return f"other content ({', '.join(other)})" if other else ""


def _said(answer: Mapping[str, Any] | None) -> str:
    action = (answer or {}).get("action")
    return f'"{action}"' if isinstance(action, str) else "answered"


def _is_as(recorded: Mapping[str, Any], given: Mapping[str, Any], name: str, ignore: Collection[str]) -> bool:
    if (name in recorded) != (name in given):
        return False
    text, pieces = text_of(given[name], ignore), CUT_OUT.split(text_of(recorded[name], ignore))
    return pieces == [text] or (len(pieces) > 1 and _fits(text, pieces))


def _fits(text: str, pieces: Sequence[str]) -> bool:
    """Whether the text has these pieces, in order, with anything between them."""
    first, *between, last = pieces
    at, end = len(first), len(text) - len(last)
    for piece in between:
        at = text.find(piece, at) + len(piece)
        if at < len(piece) + len(first):
            return False
    return at <= end and text.startswith(first) and text.endswith(last)


def plain(value: Any, ignore: Collection[str] = (), depth: int = DEPTH) -> Any:
    """A copy of parameters in plain data, without the members that `ignore` names. What is below `depth` levels is its
    JSON text, or dots if Python cannot write it."""
    if depth == 0:
        try:
            return msgspec.json.encode(value, order="sorted").decode()
        except RecursionError:
            return "…"
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if is_object(value):
        return {str(key): plain(each, ignore, depth - 1) for key, each in value.items() if key not in ignore}
    if is_array(value):
        return [plain(each, ignore, depth - 1) for each in value]
    return value
