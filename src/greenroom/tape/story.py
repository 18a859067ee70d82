"""A tape as a person would tell it, and as data.

Each line has its time, its server and one thing that happened. What a server did stands at the margin, and its calls
are indented below. A call is one line, where it began; if something else happened to its server before it ended, it is
two: what it asked, and, under the same number, what came of it. Steps on the way to a connection are not lines: the
line of the connection, or of the call, says what was waited for.

A text of the tape is cut to the width, after its characters that a terminal obeys are gone. Only the first and the
last lines of a long tape are told; nothing of a line is made before it is told.

Rejected: a column for each server. At 80 characters three of them leave no room for what was said.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import attrs
import msgspec

from ..protocol.errors import Reach
from ..protocol.events import WAITING, Place
from ..protocol.json_values import array_or_empty, is_object, object_or_empty
from ..protocol.safe_text import counted, one_line
from ..protocol.wait_intervals import QUEUE, waits
from .tape_events import has_failed, is_tool_error
from .tape_lines import OPEN, CallLine, ConfigLine, EventLine, EventRecord, ListingLine, NoticeLine, value_in
from .tape_reader import Tape
from .tape_selection import FAILURES, end_of

MOST: Final = 2_000  # lines, unless all are wanted
WIDTH: Final = 200  # where no window says how wide it is
_NAMES: Final = 16  # characters of a server's name, at most
_WAIT: Final = 0.001  # seconds from which on somebody has waited
_MORE: Final = "All of them: --all. Fewer: --server, --session, --failed, --since"
_BAD: Final = "✗ "
_ROOM: Final = "room"  # to which belongs what belongs to no server
_INDENT: Final = "  "  # of calls
_WAITED_FOR: Final = {
    Place.BREAKER.value: "its circuit breaker",
    Place.SLOT.value: "a slot",
    Place.PERMIT.value: "its turn to start",
    Place.STARTING.value: "its start",
    Place.OPENING.value: "its start",
    Place.LEAVING.value: "its end",
    **{place.value: place.value for place in (Place.INSTALL_TURN, Place.TURN)},
}
_TURN: Final = "its turn"
_PLACES: Final = frozenset(place.value for place in WAITING)


def told(tape: Tape, width: int = WIDTH, most: int | None = MOST) -> Iterator[str]:
    """The lines of the story, each at most about `width` characters long. `most` of them; None: all."""
    yield from _head(tape)
    story = _TapeStory(tape, width)
    parts, left_out = _ends(story.parts(), most)
    if parts:
        yield ""
    for number, (at, label, words) in enumerate(parts):
        if left_out and number == len(parts) // 2:
            yield f"… {left_out:,} lines are left out here. {_MORE}"
        yield story.line(at, label, words())
    if said := ending(tape):
        yield said


def ending(tape: Tape) -> str:
    """How the recording ended; "": in order, or it is of the last minutes of a room."""
    if tape.is_cut:
        return "The tape is cut off here: its process was killed, or its disk was full."
    if tape.end is None and not tape.head.is_part:
        return "The recording was not ended: its process was killed, its disk was full, or it still runs."
    if tape.end is not None and tape.end.why:
        return f"The recording ended before its room did: {one_line(tape.end.why, 200)}."
    return ""


def _ends(parts: list[Part], most: int | None) -> tuple[list[Part], int]:
    if most is None or len(parts) <= most:
        return parts, 0
    half = most // 2
    return parts[:half] + parts[-half:], len(parts) - 2 * half


def _head(tape: Tape) -> Iterator[str]:
    began = datetime.fromtimestamp(tape.head.at, UTC).isoformat(sep=" ", timespec="seconds")[:19]
    version, calls = one_line(tape.head.greenroom, 40), len(tape.calls)
    part = " It has a room's last minutes, not what was before." if tape.head.is_part else ""
    yield f"Recorded {began} UTC by Greenroom {version}, {took(end_of(tape))} long.{part}"
    if tape.head.schedule is not None:
        yield f"It is the run {one_line(tape.head.schedule.run, 100)} of an exploration, which failed."
    failed = sum(map(has_failed, tape.calls))
    sessions = {call.session for call in tape.calls if call.session is not None}
    of_them = f" in {counted(len(sessions), 'session')}" if sessions else ""
    bad = f", of which {failed:,} failed" if failed else ""
    called = {call.server for call in tape.calls} or tape.servers
    yield f"{counted(calls, 'call')} of {counted(len(called), 'server')}{of_them}{bad}."
    if missing := tape.missing:
        folder = one_line(tape.beside.name, 100)
        yield f"{counted(missing, 'large result')} should be in {folder}, and {'is' if missing == 1 else 'are'} not."


def took(seconds: float) -> str:
    """How long something took, in three digits or so."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


_Line = ListingLine | EventLine | NoticeLine | ConfigLine
Part = tuple[float, str, Callable[[], str]]  # its time, whose it is, and its words


@attrs.define
class _AddressStory:
    """What is known of an address while its story is told."""

    since: float = 0.0  # when it came into its state
    is_connected: bool = False
    lists: ListingLine | None = None  # that nobody has told
    moves: list[tuple[float, str]] = attrs.field(factory=list[tuple[float, str]])  # of its starts
    was_lost: bool = False  # and nobody has told of its next start
    gave_up: float = 0.0  # when a start was given up last: what that waited for is not the next one's


class _TapeStory:
    def __init__(self, tape: Tape, width: int) -> None:
        self._tape = tape
        self._lives = defaultdict[str, _AddressStory](_AddressStory)
        names = {_label(line.server, line.scope) for line in (*tape.listed, *tape.calls)}
        names |= {_whose(line) for line in tape.events}
        self._names = min(_NAMES, max(map(len, names), default=0))
        self._room = max(30, width - 13 - self._names)  # for the words

    def line(self, at: float, label: str, words: str) -> str:
        """A line of the story."""
        indent = _INDENT if words.startswith(_INDENT) else ""
        said = indent + _short(words, self._room - len(indent))
        return f"{at:9.3f}  {one_line(label, _NAMES):{self._names}}  {said}"

    def parts(self) -> list[Part]:
        """All that happened, in the order of time."""
        tape = self._tape
        lines: list[tuple[float, int, _Line]] = []
        for line in tape.before:
            self._part(line)
        for number, line in enumerate((*tape.listed, *tape.notices, *tape.configs, *tape.events)):
            lines.append((line.t, number, line))
        lines.sort(key=lambda each: each[:2])
        parts = [part for _, _, line in lines if (part := self._part(line)) is not None]
        parts += self._calls([(at, label) for at, label, _ in parts])
        return sorted(parts, key=lambda part: part[0])

    # ---- servers ----------------------------------------------------------------------------------------------------

    def _part(self, line: _Line) -> Part | None:
        if isinstance(line, ConfigLine):
            label, words = _ROOM, "has another configuration"
        elif isinstance(line, EventLine):
            label = _whose(line)
            words = self._happened(line.event, line.t, self._lives[label])
        else:
            label = _label(line.server, line.scope)
            words = _noticed(line) if isinstance(line, NoticeLine) else self._listed(line, self._lives[label])
        return None if not words else (line.t, label, partial(str, words))

    def _listed(self, line: ListingLine, life: _AddressStory) -> str:
        if line.incarnation == 0:
            return f"was known before: {_lists(line)}"
        if life.is_connected:
            return f"has other lists now: {_lists(line)}"
        life.lists = line
        return ""

    def _happened(self, record: EventRecord, at: float, life: _AddressStory) -> str:
        match record.get("event"):
            case "StartMoved":
                life.moves.append((at, record.get("place", "")))
                if record.get("place") == Place.OUT.value:
                    life.gave_up = at
                return ""
            case "Transition":
                since, life.since = life.since, at
                life.is_connected = record.get("to") == "connected"
                return self._moved(record, at, since, life)
            case "BreakerDecision":
                open_for = record.get("openFor")
                bad = _BAD if record.get("move") in ("failed", "silent", "quarantined") else ""
                said = record.get("detail", "")
                if record.get("move") == "failed":  # why, the line before says
                    said = f"circuit breaker: failure {record.get('failures', 1)}"
                return f"{bad}{said}{f', refuses calls for {took(open_for)}' if open_for else ''}"
            case "EndDecision":
                return "stays down until somebody connects it" if record.get("then") == "down" else ""
            case "Eviction":
                return ""
            case "WarmChildMoved" if record.get("move") != "lost":
                return ""
            case "Refusal":
                return f"{_INDENT}refused: {_BAD}{record.get('detail', '')}"
            case _:
                return record.get("detail", "")

    def _moved(self, record: EventRecord, at: float, since: float, life: _AddressStory) -> str:
        cause, detail = record.get("cause", ""), record.get("detail", "")
        match record.get("to"):
            case "connecting":
                again = " again" if life.was_lost else ""
                life.was_lost = False
                return f"starts{again}{self._waited(life, max(since, life.gave_up), at, _PLACES)}"
            case "connected":
                has = f": {_lists(life.lists)}" if life.lists is not None else ""
                life.lists = None
                return f"is connected after {took(at - since)}{has}"
            case "draining" if cause in FAILURES:
                life.was_lost = True
                there = (record.get("inFlight", 0), "in flight"), (record.get("queued", 0), "waiting")
                calls = [f"{counted(count, 'call')} {words}" for count, words in there if count]
                with_calls = f" ({', '.join(calls)})" if calls else ""
                return f"{_BAD}{cause.upper()}{with_calls}{': ' if detail else ''}{detail}"
            case "draining":
                return f"ends: {cause}{' ' if detail else ''}{detail}"
            case "closed" if at - since >= 1 and record.get("from") == "draining":
                return f"has ended after {took(at - since)}"
            case _:
                return ""

    def _waited(
        self, life: _AddressStory, since: float, until: float, places: frozenset[str] | None = None
    ) -> str:
        """` after 2.0 s of waiting for a slot`: what was waited for, if it took time."""

        def name_of(place: str) -> str:
            return _WAITED_FOR.get(place, QUEUE) if places is None or place in places else QUEUE

        near = life.moves[max(0, bisect_right(life.moves, (since, "\U0010ffff")) - 1) :]
        found = defaultdict[str, float](float)
        for name, begin, end in waits(near, since, until, name_of):
            if places is None or name != QUEUE:
                found[name] += end - begin
        longest = sorted(found.items(), key=lambda each: -each[1])[:2]
        said = [
            f"{took(each)} for {_TURN if name == QUEUE else name}" for name, each in longest if each >= _WAIT
        ]
        return f", waited {' and '.join(said)}" if said else ""

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _calls(self, others: list[tuple[float, str]]) -> Iterator[Part]:
        times = defaultdict[str, list[float]](list)
        for at, label in others:
            times[label].append(at)
        for call in self._tape.calls:
            times[_label(call.server, call.scope)] += call.accepted, call.ended
        for each in times.values():
            each.sort()
        for call in self._tape.calls:
            label = _label(call.server, call.scope)
            between = times[label]
            if bisect_left(between, call.ended) - bisect_right(between, call.accepted) <= 0:
                yield call.accepted, label, partial(self._whole, call)
            else:
                yield call.accepted, label, partial(self._begin, call)
                yield call.ended, label, partial(self._end, call)

    def _whole(self, call: CallLine) -> str:
        head, tail = _asks(call), self._tail(call)
        room = max(20, self._room - len(head) - len(tail) - 5)
        answer, asked = _answer(call), _arguments(call)
        asked = _short(asked, max(room // 2, room - len(answer)))
        return f"{head} {asked} → {_short(answer, max(10, room - len(asked)))}{tail}"

    def _begin(self, call: CallLine) -> str:
        return f"{_asks(call)} {_arguments(call)} …"

    def _end(self, call: CallLine) -> str:
        head, tail = f"{_INDENT}#{call.n} → ", self._tail(call)
        return f"{head}{_short(_answer(call), max(20, self._room - len(head) - len(tail)))}{tail}"

    def _tail(self, call: CallLine) -> str:
        life = self._lives[_label(call.server, call.scope)]
        taken = took(call.ended - call.accepted)
        said = taken + self._waited(life, call.accepted, call.accepted + call.waited)
        if call.progress:
            said += f", {counted(len(call.progress), 'step')} of progress"
        if call.asked:
            said += f", asked its client {counted(len(call.asked), 'time')}"
        return f" ({said})" if len(said) < self._room // 2 else f" ({taken})"


def _label(server: str, scope: str) -> str:
    return server if scope == "shared" else f"{server}[{scope}]"


def _whose(line: EventLine) -> str:
    record = line.event
    return _label(record["server"], record.get("scope", "shared")) if "server" in record else _ROOM


def _lists(line: ListingLine) -> str:
    kinds = ("tools", "resources", "templates", "prompts", "skills")
    found = [counted(len(items), kind[:-1]) for kind in kinds if (items := getattr(line, kind))]
    return ", ".join(found) or "nothing"


def _noticed(line: NoticeLine) -> str:
    what = line.method.removeprefix("notifications/")
    if line.left_out:
        return f"says {what}, with {line.left_out:,} bytes, which are not on the tape"
    said = "" if not line.params else f" {msgspec.json.encode(line.params).decode()}"
    return f"says {what}{said}"


def _asks(call: CallLine) -> str:
    whose = f" [{one_line(call.session, 24)}]" if call.session else ""
    return f"{_INDENT}#{call.n}{whose} {one_line(call.tool or call.method, 60)}"


def _arguments(call: CallLine) -> str:
    if "params" in call.left_out:
        return _left_out(call, "params")
    params: Any = call.said
    if call.method == "tools/call" and is_object(params):
        params = params.get("arguments") or {}
    return one_line(msgspec.json.encode(params).decode())


def _answer(call: CallLine) -> str:
    """What came of it, in words."""
    if call.error is not None:
        reach = "" if call.reach is Reach.ANSWERED else f", {call.reach.replace('_', ' ')}"
        return f"{_BAD}{call.error.code}{reach}: {call.error.message}"
    if call.outcome == OPEN:
        return "has not ended"
    if call.outcome != "result":
        return call.outcome
    if "result" in call.left_out:
        return _left_out(call, "result")
    if call.large is not None:
        return f"{call.large.bytes:,} bytes"
    return f"{_BAD if is_tool_error(call) else ''}{text_in(bytes(call.result))}"


def _left_out(call: CallLine, what: str) -> str:
    return f"{call.left_out[what]:,} bytes, which are not on the tape"


def text_in(result: bytes) -> str:
    """The texts of a result; without any, all of it."""
    try:
        found: Any = value_in(result) if result else {}
    except RecursionError:
        return "…"
    if blocks := array_or_empty(object_or_empty(found).get("content")):
        return " ".join(map(_block, blocks[:20]))
    return msgspec.json.encode(found).decode()


def _block(block: Any) -> str:
    said = object_or_empty(block)
    text = said.get("text")
    return text if isinstance(text, str) else f"[{said.get('type', 'content')}]"


def _short(text: str, most: int) -> str:
    return one_line(text, max(1, most))


# ---- as data ---------------------------------------------------------------------------------------------------------


def as_json(tape: Tape) -> dict[str, Any]:
    """What it tells, in numbers and with each call."""
    return {
        "recordedAt": tape.head.at,
        "greenroom": tape.head.greenroom,
        "isCut": tape.is_cut,
        "isEnded": not ending(tape),
        "servers": tape.servers,
        "outcomes": dict(Counter(call.outcome for call in tape.calls)),
        "calls": [call_as_json(call) for call in tape.calls],
    }


def whole_call_as_json(call: CallLine, result: Any) -> dict[str, Any]:
    """All that was said in a call. `result`: as much of it as is to be shown."""
    return {
        **call_as_json(call),
        "hasFailed": has_failed(call),
        "scope": call.scope,
        "incarnation": call.incarnation,
        "result": result,
        "error": None if call.error is None else msgspec.to_builtins(call.error),
        "progress": [{"at": at, "params": params} for at, params in call.progress],
        "asked": msgspec.to_builtins(call.asked),
    }


def call_as_json(call: CallLine) -> dict[str, Any]:
    return {
        "number": call.n,
        "at": round(call.accepted, 6),
        "seconds": round(call.ended - call.accepted, 6),
        "waited": round(call.waited, 6),
        "server": call.server,
        "tool": call.tool,
        "method": call.method,
        "params": call.said,
        "outcome": call.outcome,
        "isError": is_tool_error(call),
        "reach": call.reach,
        "session": call.session,
        **({"leftOut": call.left_out} if call.left_out else {}),
    }
