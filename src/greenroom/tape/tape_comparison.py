"""Compares tapes: two runs of an agent, or a run with what the same servers answer now.

Two runs are put side by side as a text diff is made (`alignment`): calls of the same server, tool and arguments belong
together, in order. What is then left over on both sides is the same call at another place (`order`), or, between the
same neighbours and of the same tool, one with other arguments. Calls that were made at once in both runs, or by
different sessions, may come in any order. A call that is on one side alone was added or left out.

For the other comparison, somebody has made recorded calls again and recorded that (`server_comparison`): which
calls they were is decided here, and which recorded call belongs to which is known.

In an answer, what a model gets of it counts: its content, or the error. `_meta` does not, and neither do the members
that `ignore` names. How long calls took is told for each tool, by the medians, and is a difference only from a factor
on that is asked for: clocks differ from run to run.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, cast

import attrs
import msgspec

from ..protocol.errors import CallError
from ..protocol.json_values import is_object, object_or_empty
from ..protocol.jsonrpc.outgoing import NEWER
from .alignment import aligned
from .call_matching import CUT_OUT, compared, kind_of
from .json_differences import Change as Change
from .json_differences import Changes, as_json, changes, read_json, shown
from .tape_lines import OPEN, CallLine, ListingLine
from .tape_reader import Tape, check_names, config_of, read_tape, reading_tools

Kind = Literal["tool", "prompt", "resource", "template", "skill", "server"]
DifferenceKind = Literal["answer", "outcome", "arguments", "order", "added", "left_out"]
READ: Final = ("resources/read", "prompts/get", "completion/complete")  # methods that change nothing
MAY_WRITE: Final = "may change something, as far as the tape says"
NOISE: Final = 0.02  # seconds: a difference of less says nothing
_CROSSED: Final = 200  # calls that one may have passed and still been made at once with
# What servers list: the list, and what its items are found by.
_LISTS: Final[Mapping[Kind, tuple[str, str]]] = {
    "tool": ("tools", "name"),
    "prompt": ("prompts", "name"),
    "resource": ("resources", "uri"),
    "template": ("templates", "uriTemplate"),
    "skill": ("skills", "uri"),
}
_SAID: Final = ("instructions", "capabilities")  # what a server says of itself


@attrs.frozen
class DefinitionDifference:
    """A difference in what a server lists, or in its description of itself."""

    kind: Kind  # of the item; `server`: the server's description of itself
    server: str  # the server that lists it
    name: str  # its name there
    what: Literal["gone", "new", "changed", "unreachable"]  # the last: the server could not be asked
    changes: tuple[Change, ...] = ()  # what differs, place by place
    more: int = 0  # how many further changes are not named
    why: str | None = None  # the reason why it was unreachable


@attrs.frozen
class CallDifference:
    """A call that differs between the two runs.

    `what` says how: it has another `answer`, another `outcome` (such as an error instead of an answer), other
    `arguments`, another place in the `order`, or it was `added` or `left_out`."""

    what: DifferenceKind  # which of these
    server: str  # the server that was called
    name: str  # the tool, or what else was asked for
    arguments: str  # their beginning, as JSON
    before: int | None = None  # its number on the first side; None: it is not there
    after: int | None = None  # its number on the second side; None: it is not there
    outcomes: tuple[str | None, str | None] = (None, None)  # `answer`, `tool_error`, or the code of an error
    changes: tuple[Change, ...] = ()  # what differs, place by place
    more: int = 0  # how many further changes are not named
    behind: int | None = None  # the number of an earlier write that was not made again and may be the cause
    why: str | None = None  # what Greenroom says about the second outcome, if the error is not the server's


@attrs.frozen
class Times:
    """How long the calls of a tool took that were answered on both sides: medians in seconds, measured from sending."""

    server: str  # the server that has the tool
    name: str  # the tool
    calls: int  # how many were compared
    before: float  # median of the first tape, in seconds
    after: float  # median of the second, in seconds

    @property
    def factor(self) -> float:
        """The new time divided by the old one."""
        return self.after / max(self.before, 1e-6)

    def is_slower(self, factor: float) -> bool:
        """Whether the calls take at least `factor` times as long, and the difference is more than noise."""
        return self.factor >= factor and self.after - self.before >= NOISE


@attrs.frozen
class UnsentCalls:
    """Recorded calls that were not made again, and why."""

    server: str  # the server that was called
    name: str  # the tool, or what else was asked for
    why: str  # in words
    calls: int  # how many


@attrs.frozen
class Comparison:
    """The differences between two runs."""

    definitions: tuple[DefinitionDifference, ...] = ()  # what is listed otherwise
    calls: tuple[CallDifference, ...] = ()  # calls that are not the same
    same: int = 0  # the number of calls that are the same
    times: tuple[Times, ...] = ()  # how long tools took before and after
    versions: tuple[tuple[str, str, str], ...] = ()  # (server, before, after); this alone is no difference
    not_sent: tuple[UnsentCalls, ...] = ()  # calls that were not made again
    slower: float | None = None  # a tool is slower if it takes this many times as long; None: no tool is
    kept: Path | None = None  # the tape of the servers' new answers, if there is one

    @property
    def slower_tools(self) -> tuple[Times, ...]:
        """Those that count as slower."""
        factor = self.slower
        return () if factor is None else tuple(each for each in self.times if each.is_slower(factor))

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not (self.definitions or self.calls or self.slower_tools)


@attrs.frozen
class CallAnswer:
    """What a call ended with. `raw`: the JSON of its result or error. `why`: what we say of an error, unless it is the
    server's."""

    outcome: str
    raw: bytes
    seconds: float | None = None
    why: str | None = None


_RESULTS: Final = frozenset({"answer", "tool_error"})
_UNANSWERED: Final = CallAnswer("unanswered", b"null")


# ---- two runs --------------------------------------------------------------------------------------------------------


def compare_tapes(
    before: str | os.PathLike[str] | Tape,
    after: str | os.PathLike[str] | Tape,
    *,
    ignore: Collection[str] = (),
    slower: float | None = None,
) -> Comparison:
    """Compare two runs: calls that were added, left out, or made with other arguments or in another order; other
    answers and outcomes; other tools.

    `ignore`: names of members that may differ, anywhere in arguments and answers. `slower`: report a tool if its
    median time has grown by at least this factor. It reads files, and takes seconds for long tapes. Raises `BadTape`
    for a tape, or a large result on it, that cannot be used."""
    first, second = (each if isinstance(each, Tape) else read_tape(each) for each in (before, after))
    pairs = _CallPairs(first.calls, second.calls, frozenset(ignore))
    clock = _CallTimes()
    found: list[tuple[tuple[float, int], CallDifference]] = []
    same = 0
    for at, other in pairs.same:
        call, again = first.calls[at], second.calls[other]
        clock.took(call, _seconds(call), _seconds(again))
        difference = _answers_differ(first, call, second, again, ignore)
        if (at, other) in pairs.moved:
            found.append(((at, other), _difference("order", call, again)))
        if difference is not None:
            found.append(((at, other), difference))
        elif (at, other) not in pairs.moved:
            same += 1
    for at, other in pairs.changed:
        call, again = first.calls[at], second.calls[other]
        changed = changes(_arguments(call), _arguments(again), ignore)
        found.append(((at, other), _difference("arguments", call, again, changed)))
    found += [((at, -1), _difference("left_out", first.calls[at], None)) for at in pairs.left_out]
    found += [
        ((pairs.place(other), other), _difference("added", None, second.calls[other]))
        for other in pairs.added
    ]
    lists = _both_listed(first, second, dict.fromkeys((*first.servers, *second.servers)))
    return Comparison(
        tuple(each for name, old, new in lists for each in definitions_differ(name, old, new)),
        tuple(difference for _, difference in sorted(found, key=lambda each: each[0])),
        same,
        clock.times(),
        tuple(versions_differ(lists)),
        slower=slower,
    )


class _CallPairs:
    """Which calls of two runs belong together. Each is a pair of places, or a place."""

    def __init__(self, first: Sequence[CallLine], second: Sequence[CallLine], ignore: frozenset[str]) -> None:
        keys = [[_key(call, ignore) for call in calls] for calls in (first, second)]
        tools = [[_tool_key(call) for call in calls] for calls in (first, second)]
        self._fixed = aligned(keys[0], keys[1], lambda at, other: tools[0][at] == tools[1][other])
        self._starts = [at for at, _ in self._fixed]
        self._others = [other for _, other in self._fixed]
        left = sorted({*range(len(first))} - {*self._starts})
        new = sorted({*range(len(second))} - {*self._others})
        elsewhere = _matched(left, new, lambda at: keys[0][at], lambda other: keys[1][other])
        self.moved = {(at, other) for at, other in elsewhere if not self._is_free(at, other, first, second)}
        self.same = sorted([*self._fixed, *elsewhere])
        left, new = _without(left, new, elsewhere)
        self.changed = _matched(
            left,
            new,
            lambda at: (bisect_left(self._starts, at), tools[0][at]),
            lambda other: (bisect_left(self._others, other), tools[1][other]),
        )
        self.left_out, self.added = _without(left, new, self.changed)

    def place(self, other: int) -> float:
        """Where a call of the second run stands among those of the first: half a step behind the call before it."""
        before = bisect_left(self._others, other)
        return self._starts[before - 1] + 0.5 if before else -0.5

    def _is_free(self, at: int, other: int, first: Sequence[CallLine], second: Sequence[CallLine]) -> bool:
        """Whether the order of the call and of each one that it has passed says nothing, in both runs."""
        ends = sorted((bisect_left(self._starts, at), bisect_left(self._others, other)))
        passed = self._fixed[ends[0] : ends[1]]
        return len(passed) <= _CROSSED and all(
            _has_no_order(first[at], first[here]) and _has_no_order(second[other], second[there])
            for here, there in passed
        )


def _matched(
    left: Sequence[int],
    new: Sequence[int],
    left_key: Callable[[int], Hashable],
    new_key: Callable[[int], Hashable],
) -> list[tuple[int, int]]:
    """The places of the same key, in their order."""
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for other in reversed(new):
        waiting[new_key(other)].append(other)
    found: list[tuple[int, int]] = []
    for at in left:
        others = waiting.get(left_key(at))
        if others:
            found.append((at, others.pop()))
    return found


def _without(
    left: Sequence[int], new: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    taken, others = {at for at, _ in pairs}, {other for _, other in pairs}
    return [at for at in left if at not in taken], [other for other in new if other not in others]


def _has_no_order(call: CallLine, other: CallLine) -> bool:
    """Whether two calls were made at once, or by different sessions."""
    return call.session != other.session or (call.accepted < other.ended and other.accepted < call.ended)


# ---- a tape, and the servers as they are now -------------------------------------------------------------------------


@attrs.frozen
class RepeatableCall:
    """A recorded call that may be made again. `behind`: as in `CallDifference`. `is_listed`: the user has listed its
    tool, so it need not say that it only reads."""

    call: CallLine
    params: Mapping[str, Any]
    behind: int | None
    is_listed: bool


@attrs.frozen
class ComparisonPlan:
    """What is to be asked again, by server, and what is not. A server without calls is asked what it has."""

    calls: Mapping[str, Sequence[RepeatableCall]]  # those that are asked again, by server
    not_sent: Sequence[tuple[CallLine, str]]  # those that are not, each with why


def plan_of(
    tape: Tape,
    servers: Collection[str] = (),
    only: Collection[str] | None = None,
    reads: Collection[str] = (),
) -> ComparisonPlan:
    """The recorded calls that only read. `servers`: of these alone. `only`: of these tools alone, whether they say that
    they only read or not; `reads`: tools that only read, though they do not say so. Raises `UsageError` for a name that
    is not on the tape."""
    check_names(servers, tape.servers, "server")
    check_names((*(only or ()), *reads), map(call_name, tape.calls), "call of")
    listed = {*(only or ()), *reads}
    asked = set(servers) or _in_service(tape)
    say_so = {name: reading_tools(tape.listed_of(name)) for name in asked}
    calls: dict[str, list[RepeatableCall]] = {name: [] for name in tape.servers if name in asked}
    not_sent: list[tuple[CallLine, str]] = []
    changed: dict[str, int] = {}
    for call in tape.calls:
        if call.server not in asked:
            continue
        params = object_or_empty(_params(call))
        name, own = call_name(call), str(params.get("name"))
        is_listed = name in listed
        only_reads = call.method in READ or own in say_so[call.server] or name in reads
        why = _why_not(call, may_be_sent=only_reads or is_listed)
        if why is None and (only is None or is_listed):
            calls[call.server].append(RepeatableCall(call, params, changed.get(call.server), is_listed))
            continue
        if only is None:
            not_sent.append((call, cast("str", why)))
        if not only_reads and call.sent is not None:
            changed[call.server] = call.n
    return ComparisonPlan(calls, not_sent)


def _in_service(tape: Tape) -> set[str]:
    """The servers that were in service and of which the tape knows anything."""
    entries = config_of(tape)["mcpServers"]
    known = {line.server for line in (*tape.listed, *tape.calls)}
    return {name for name in known if not entries[name].get("disabled")}


def _why_not(call: CallLine, *, may_be_sent: bool) -> str | None:
    """Why the call is not made again; None: it is."""
    if call.method not in (*READ, "tools/call"):
        return "no request that only reads"
    if not may_be_sent:
        return MAY_WRITE
    if call.outcome == "cancelled":
        return "was cancelled"
    if call.sent is None:
        return "was never sent"
    if call.outcome == OPEN:
        return "had not ended"
    if call.left_out:
        return "was too large for the tape"
    if CUT_OUT.search(bytes(call.params).decode(errors="replace")):
        return "arguments are hidden on the tape"
    return None


@attrs.frozen
class RepeatOutcome:
    """A call that was made again. `number`: that of the call on the new tape. `refusal`: how it ended, for a call that
    was refused at once and so is not there."""

    again: RepeatableCall
    number: int
    refusal: CallAnswer | None = None


def refusal(error: CallError) -> CallAnswer:
    return CallAnswer(error.code, msgspec.json.encode({"message": error.message}), why=error.message)


def compare_asked(
    tape: Tape,
    now: Tape,
    asked: Sequence[RepeatOutcome],
    *,
    not_sent: Sequence[tuple[CallLine, str]] = (),
    unreachable: Mapping[str, str] | None = None,
    servers: Collection[str] = (),
    ignore: Collection[str] = (),
    slower: float | None = None,
) -> Comparison:
    """What is other now. `unreachable`: servers that could not be asked, and why. Raises as `compare_tapes` does."""
    lost = unreachable or {}
    new_calls = {call.n: call for call in now.calls}
    clock = _CallTimes()
    found: list[CallDifference] = []
    for each in asked:
        call = each.again.call
        new = new_calls.get(each.number)
        answer = (each.refusal or _UNANSWERED) if new is None else answer_of(now, new)
        clock.took(call, _seconds(call), answer.seconds)
        difference = _differ(call, answer_of(tape, call), answer, ignore)
        if difference is not None:
            found.append(attrs.evolve(difference, behind=each.again.behind))
    lists = _both_listed(tape, now, [name for name in servers if name not in lost])
    definitions = [
        DefinitionDifference("server", name, name, "unreachable", why=why) for name, why in lost.items()
    ]
    definitions += (each for name, old, new in lists for each in definitions_differ(name, old, new))
    return Comparison(
        tuple(definitions),
        tuple(sorted(found, key=lambda each: each.before or 0)),
        len(asked) - len(found),
        clock.times(),
        tuple(versions_differ(lists)),
        tuple(_counted(not_sent)),
        slower,
    )


def _counted(not_sent: Sequence[tuple[CallLine, str]]) -> Iterator[UnsentCalls]:
    counts: dict[tuple[str, str, str], int] = {}
    for call, why in not_sent:
        key = call.server, call_name(call), why
        counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        yield UnsentCalls(*key, count)


# ---- what both have in common ----------------------------------------------------------------------------------------


def call_name(call: CallLine) -> str:
    """What was called: the name of the tool as its caller knew it, or the method and what it is about."""
    return call.tool or kind_of(call.method, _params(call)).strip()


def _both_listed(
    before: Tape, after: Tape, servers: Iterable[str]
) -> list[tuple[str, ListingLine | None, ListingLine | None]]:
    """What each server had at the end; None: nothing is known of it. What was known before it ran counts if it never
    listed anything itself."""

    def last(lines: Sequence[ListingLine]) -> ListingLine | None:
        return max(lines, key=lambda line: (line.incarnation > 0, line.t), default=None)

    return [(name, last(before.listed_of(name)), last(after.listed_of(name))) for name in servers]


def answer_of(tape: Tape, call: CallLine) -> CallAnswer:
    """Raises `BadTape` for a large result that is not as it was recorded."""
    if call.error is not None:
        rpc, why = call.error.rpc, call.error.message
        raw = msgspec.json.encode(rpc or {"message": why})
        return CallAnswer(call.error.code, raw, _seconds(call), None if rpc else why)
    if call.outcome != "result":
        return CallAnswer(call.outcome, b"null", _seconds(call))
    return CallAnswer("answer", tape.result_of(call) or b"{}", _seconds(call))


def definitions_differ(
    server: str, before: ListingLine | None, after: ListingLine | None
) -> Iterator[DefinitionDifference]:
    """What the server lists otherwise. Nothing if either is not known."""
    if before is None or after is None:
        return
    # In another version of the protocol a server declares other capabilities, though nothing of it has changed.
    said = _SAID if before.version == after.version else _SAID[:1]
    changed = changes(*({name: getattr(line, name) for name in said} for line in (before, after)))
    if changed:
        yield DefinitionDifference("server", server, server, "changed", tuple(changed.shown), changed.more)
    for kind, (member, key) in _LISTS.items():
        old, new = (_by_key(getattr(line, member), key) for line in (before, after))
        for name in {**old, **new}:
            if name not in new:
                yield DefinitionDifference(kind, server, name, "gone")
            elif name not in old:
                yield DefinitionDifference(kind, server, name, "new")
            elif found := changes(old[name], new[name]):
                yield DefinitionDifference(kind, server, name, "changed", tuple(found.shown), found.more)


def versions_differ(
    lists: Sequence[tuple[str, ListingLine | None, ListingLine | None]],
) -> Iterator[tuple[str, str, str]]:
    for name, old, new in lists:
        if old is not None and new is not None:
            before, after = (str(line.info.get("version", "")) for line in (old, new))
            if before != after:
                yield name, before, after


def _by_key(items: Sequence[Mapping[str, Any]] | None, key: str) -> dict[str, Mapping[str, Any]]:
    return {str(item.get(key)): _without_meta(item) for item in items or ()}


def _answers_differ(
    first: Tape, call: CallLine, second: Tape, again: CallLine, ignore: Collection[str]
) -> CallDifference | None:
    if call.large is not None and call.large == again.large:
        return None
    if any(each.outcome == OPEN or "result" in each.left_out for each in (call, again)):
        return None  # what it was answered is not on the tape
    return _differ(call, answer_of(first, call), answer_of(second, again), ignore, again)


def _differ(
    call: CallLine,
    before: CallAnswer,
    after: CallAnswer,
    ignore: Collection[str],
    again: CallLine | None = None,
) -> CallDifference | None:
    """How the answer differs; None: it does not."""
    if (before.outcome, before.raw) == (after.outcome, after.raw):
        return None
    old, new = (_content_of(read_json(answer.raw)) for answer in (before, after))
    outcomes = _outcome(before.outcome, old), _outcome(after.outcome, new)
    if not {*outcomes} <= _RESULTS:
        old, new = (_words_of(*each) for each in zip(outcomes, (old, new), strict=True))
    elif _has_structure(old) and _has_structure(new):
        old, new = _without_doubles(old), _without_doubles(new)
    changed = changes(old, new, ignore)
    if outcomes[0] == outcomes[1] and not changed:
        return None
    what: DifferenceKind = "answer" if outcomes[0] == outcomes[1] else "outcome"
    return attrs.evolve(_difference(what, call, again, changed, outcomes), why=after.why)


def _without_meta(value: Any) -> Any:
    if not is_object(value):
        return value
    return {key: each for key, each in value.items() if key != "_meta"}


def _content_of(answer: Any) -> Any:
    """An answer without what only one era of MCP says beside the content: the same server may speak another one now."""
    if not is_object(answer):
        return answer
    return {key: each for key, each in answer.items() if key not in NEWER}


def _outcome(outcome: str, value: Any) -> str:
    is_error = object_or_empty(value).get("isError") is True
    return "tool_error" if outcome == "answer" and is_error else outcome


def _words_of(outcome: str, value: Any) -> Any:
    """What is compared where not both sides are results: the error alone."""
    return {} if outcome in _RESULTS else value


def _has_structure(value: Any) -> bool:
    return isinstance(object_or_empty(value).get("content"), list) and "structuredContent" in value


def _without_doubles(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result without texts that only say once more what its structured content says."""
    structure = value["structuredContent"]
    return {**value, "content": [block for block in value["content"] if not _says(block, structure)]}


def _says(block: Any, structure: Any) -> bool:
    text = object_or_empty(block).get("text")
    return isinstance(text, str) and as_json(text) == structure


def _difference(
    what: DifferenceKind,
    call: CallLine | None,
    again: CallLine | None,
    changed: Changes | None = None,
    outcomes: tuple[str | None, str | None] = (None, None),
) -> CallDifference:
    one = call or again
    assert one is not None
    found = changed or Changes()
    return CallDifference(
        what,
        one.server,
        call_name(one),
        shown(_arguments(one)),
        None if call is None else call.n,
        None if again is None else again.n,
        outcomes,
        tuple(found.shown),
        found.more,
    )


def _params(call: CallLine) -> Any:
    return read_json(bytes(call.params))


def _arguments(call: CallLine) -> Any:
    """What the call was made with, without what is in its name."""
    params = _params(call)
    left = {key: each for key, each in object_or_empty(params).items() if key not in ("_meta", "name", "uri")}
    return left.get("arguments", left) if is_object(params) else params


def _key(call: CallLine, ignore: Collection[str]) -> str:
    params = _params(call)
    try:
        text = compared(params, ignore) if not isinstance(params, bytes) else repr(params)
    except RecursionError:  # nested too deeply
        text = repr(bytes(call.params))
    return f"{_tool_key(call)}\n{text}"


def _tool_key(call: CallLine) -> str:
    return f"{call.server}\n{kind_of(call.method, _params(call))}"


def _seconds(call: CallLine) -> float | None:
    """How long the call took, if it was answered."""
    return call.ended - call.sent if call.sent is not None and call.outcome == "result" else None


class _CallTimes:
    """Collects how long calls took."""

    def __init__(self) -> None:
        self._took: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)

    def took(self, call: CallLine, before: float | None, after: float | None) -> None:
        if before is not None and after is not None:
            self._took[call.server, call_name(call)].append((before, after))

    def times(self) -> tuple[Times, ...]:
        return tuple(
            Times(*key, len(took), median(old for old, _ in took), median(new for _, new in took))
            for key, took in sorted(self._took.items())
        )
