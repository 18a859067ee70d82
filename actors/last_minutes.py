"""The last calls and events of a room, kept for who asks later: a tape of the last minutes, the page's timeline.

They are kept by a watcher (`watchers`) that every room has, so it must cost a call next to nothing. When a call ends,
references to what exists anyway are added to one flat list: the line that was sent, the result, times and names.
Encoding, cutting out secrets and looking for the mark of an error are done when somebody asks. (The mark is also looked
for before a result is forgotten.) If a content is larger than `RECENT_CONTENT`, only its size is kept. What few calls
have is kept outside of the list, and so are the last small notifications of servers.

There are two such lists. The older one is forgotten when the younger one has half of `RECENT_BYTES`, so no call has to
search for what is too old. Whoever asks for some minutes leaves out what is older. A gateway also keeps lines of more
calls without their content, and more events, for the page's timeline (`keep_more`).

Rejected:

* A tuple for each call. It costs half as much again, because memory that is kept is memory that the next call cannot
  use again.
* The `Call` itself. It keeps its caller's callback, and its error keeps all frames that it went through. Nobody knows
  how large these are.
* The beginning of a large content. Where it is cut, nobody recognises half of a secret, half of a web token or half of
  a member that `redact` names; and to clean the whole costs each call too much.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol.address import Address
from ..protocol.bounds import (
    RECENT_BYTES,
    RECENT_CALLS,
    RECENT_CONTENT,
    RECENT_EVENTS,
    RECENT_EVENTS_OF_ROOM,
    RECENT_NOTICES,
    RECENT_REFUSALS,
    RECENT_STEPS,
    RECENT_WORDS,
)
from ..protocol.errors import CallError, Reach, RemoteError, RpcRefusal, UsageError
from ..protocol.events import CallAccepted, CallEnded, CallSent, Event, Kind
from ..protocol.jsonrpc.encoding import encode, encode_json
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.result import says_error

if TYPE_CHECKING:
    from ..catalogue.entries import ServerEntry
    from ..config.known_secrets import KnownSecrets
    from ..config.model import Config
    from ..config.scrubbing import Secrets
    from .call import Call, CallOwner
    from .host import ServerRequest

KINDS: Final = frozenset({Kind.TRANSITION, Kind.START, Kind.DECISION, Kind.NOTE})
MORE_KINDS: Final = frozenset(Kind) - {Kind.CALL, Kind.CATALOGUE}
_HALF: Final = RECENT_BYTES // 2
_MOST: Final = RECENT_CONTENT
_OF_A_CALL: Final = 320  # bytes of a call without its contents: a list's places, numbers, headers of bytes
_MOST_BESIDE: Final = 1 << 10  # bytes of a step of progress, of a question, or of a notification
_WORD: Final = lazy_pattern(r"[^\s/?&=\"']++\Z")  # the last one
_OF_SECRETS: Final = 1 << 12  # bytes of the secrets of one server and session
Step = tuple[float, bytes]  # when, and its params as JSON
Refusal = tuple[float, str, str | None, str | None, str, str]  # when, server, session, tool, code, words
Question = tuple[
    float, str, bytes
]  # when, the method, and as JSON `{"params"}` with its "answer" or "refusal"
Notice = tuple[
    float, Address, str, bytes, int
]  # when, whose, method, params as JSON, and their size if that is all


class CallExtras(msgspec.Struct, frozen=True):
    """What a call had beside its answer, as far as it is kept: as bytes, for they have a known size and nobody changes
    them."""

    steps: list[Step]  # of progress
    questions: list[Question]  # that its server has asked


class RecentCall(msgspec.Struct, frozen=True):
    """One call, ended or not. Times are those of the room's clock. It is made when somebody asks."""

    ended_at: float | None
    address: Address
    incarnation: int
    number: int
    method: str
    tool: str | None
    client: str | None
    accepted_at: float
    sent_at: float
    reach: Reach
    outcome: str  # empty: it has not ended
    is_error: bool = False  # the tool called its result an error; told of one that is forgotten, or too large
    # What it was about, as JSON.
    line: bytes = b""  # as it was sent; empty: it is forgotten. If it was too large, it has "size"
    result: bytes = b""  # empty: none. If it was too large: its size in bytes
    failure: bytes = b""  # `{"code", "message", "rpc"}`
    beside: CallExtras | None = None

    def events(self) -> Iterable[Event]:
        """As the stream tells it."""
        said = (self.address, self.incarnation, self.number, self.method, self.tool, self.client)
        names = ("address", "incarnation", "call", "method", "tool", "client")
        about = dict(zip(names, said, strict=True))
        yield CallAccepted(0, self.accepted_at, **about)  # pyright: ignore[reportArgumentType]
        was_sent = self.reach is not Reach.NOT_SENT
        if was_sent:
            waited = self.sent_at - self.accepted_at
            yield CallSent(0, self.sent_at, waited=waited, **about)  # pyright: ignore[reportArgumentType]
        if self.ended_at is not None:
            since = self.sent_at if was_sent else self.ended_at
            yield CallEnded(
                0,
                self.ended_at,
                outcome=self.outcome,
                is_error=self.is_error or says_error(self.result),
                reach=self.reach,
                waited=since - self.accepted_at,
                taken=self.ended_at - since if was_sent else None,
                **about,  # pyright: ignore[reportArgumentType]
            )


# The fields that are kept of every call, and two more: its line and its result, or, when these are forgotten, its
# outcome and `is_error`.
_ABOUT: Final = 10
_KEPT: Final = _ABOUT + 2
_NUMBER: Final = 3  # the place of its number


class _CallDetails(msgspec.Struct, frozen=True):
    """What only few calls have."""

    outcome: str = "result"
    is_error: bool = False  # of a result that is too large to be kept
    failure: bytes = b""
    beside: CallExtras | None = None


_NO_MORE: Final = _CallDetails()


class _CallGeneration:
    """Calls that have ended: in `kept` those fields of a `RecentCall` that all have, one call after another, and in
    `more` what some have, by number."""

    __slots__ = ("kept", "more")

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.more: dict[int, _CallDetails] = {}

    def __iter__(self) -> Iterator[RecentCall]:
        kept = self.kept
        for at in range(0, len(kept), _KEPT):
            fields: list[Any] = kept[at : at + _KEPT]
            more = self.more.get(fields[_NUMBER], _NO_MORE)
            about, contents = fields[:_ABOUT], fields[_ABOUT:]
            said: list[Any] = [*about, more.outcome, more.is_error, *contents, more.failure, more.beside]
            yield RecentCall(*said)

    def without_contents(self) -> list[Any]:
        """The first fields of a `RecentCall` of all of them, one call after another. A column is written at once: this
        comes to each call of a gateway, and one by one it took as long as a thirtieth of a call."""
        lines, calls = self.kept[:], len(self.kept) // _KEPT
        lines[_ABOUT::_KEPT] = [_NO_MORE.outcome] * calls
        results = lines[_ABOUT + 1 :: _KEPT]
        may_say = b'"isError"' in b"".join(results)
        lines[_ABOUT + 1 :: _KEPT] = list(map(says_error, results)) if may_say else [False] * calls
        if self.more:
            for at in range(0, len(lines), _KEPT):
                if (more := self.more.get(lines[at + _NUMBER])) is not None:
                    lines[at + _ABOUT] = more.outcome
                    lines[at + _ABOUT + 1] |= more.is_error
        return lines


class RecentHistory:
    __slots__ = (
        "_beside", "_calls", "_kept", "_left", "_lines", "_most_lines", "_older", "events", "forgotten", "kinds",
        "notices", "now", "refusals",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now: Callable[[], float] = monotonic  # the room sets its own
        self._older = _CallGeneration()
        self._calls = _CallGeneration()
        self._kept = self._calls.kept
        self._left = _HALF  # bytes until the older ones are forgotten
        self._beside: dict[Call, CallExtras] = {}  # of calls that have not ended
        self._lines: list[Any] = []  # calls without their contents, as `without_contents` returns them
        self._most_lines = 0  # calls
        self.kinds: frozenset[Kind] = KINDS
        self.events: deque[Event] = deque(maxlen=RECENT_EVENTS_OF_ROOM)
        self.refusals: deque[Refusal] = deque(maxlen=RECENT_REFUSALS)
        self.notices: deque[Notice] = deque(maxlen=RECENT_NOTICES)
        # Those of sessions that have ended, as long as their calls are kept: the server, the session and its secrets.
        self.forgotten: list[tuple[float, str, str, Secrets]] = []

    def keep_more(self) -> None:
        """Keep more events, and lines of more calls. To be called before the room opens."""
        self._most_lines = RECENT_CALLS
        self.events = deque(maxlen=RECENT_EVENTS)
        self.kinds = MORE_KINDS

    # What it is told.

    def heard(self, event: Event) -> None:
        words: str = getattr(event, "words", "")
        if len(words) > RECENT_WORDS:
            event = msgspec.structs.replace(event, words=_beginning(words))
        self.events.append(event)

    def ended(self, call: Call) -> None:
        """A call has its outcome."""
        result, line, left = call.result, call.line, self._left
        if (
            result is None
            or not line
            or (size := len(result) + len(line)) > _MOST
            or size > left
            or self._beside
        ):
            self._keep(call) if call.number else self.refusals.append(refusal_of(call))
            return
        owner: CallOwner = call.owner  # pyright: ignore[reportAssignmentType]  # it has one: it was accepted
        self._kept += (
            call.ended_at, owner.address, owner.incarnation(), call.number, call.method, call.tool,
            call.origin.session, call.accepted_at, call.sent_at, call.reach, line, result,
        )  # fmt: skip
        self._left = left - size - _OF_A_CALL

    def _keep(self, call: Call) -> None:
        """Keep any accepted call that has ended, with all that is known of it."""
        owner = call.owner
        assert owner is not None
        line, result = call.line or _line_of(call), call.result or b""
        is_error = False
        if len(result) > _MOST:
            result, is_error = b"%d" % len(result), says_error(result)
        self._kept += (
            call.ended_at, owner.address, owner.incarnation(), call.number, call.method, call.tool, call.client,
            call.accepted_at, call.sent_at, call.reach, line, result,
        )  # fmt: skip
        self._left -= _OF_A_CALL + len(line) + len(result)
        more = _CallDetails(
            call.outcome,
            is_error,
            b"" if call.error is None else _failure(call.error),
            self._beside.pop(call, None),
        )
        if more != _NO_MORE:
            self._calls.more[call.number] = more
            beside = 0 if more.beside is None else len(more.beside.steps) + len(more.beside.questions)
            self._left -= _OF_A_CALL + len(more.failure) + _MOST_BESIDE * beside
        if self._left < 0:
            self._turn()

    def _turn(self) -> None:
        """Forget the older calls."""
        if self._most_lines:
            self._lines += self._older.without_contents()
            del self._lines[: -self._most_lines * _KEPT]
        self._older, self._calls = self._calls, _CallGeneration()
        self._kept, self._left = self._calls.kept, _HALF
        if self.forgotten:
            since = self._older.kept[0]
            self.forgotten = [one for one in self.forgotten if one[0] >= since]

    def progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """The server has told how far the call is."""
        steps = self._of(call).steps
        if len(steps) < RECENT_STEPS and (said := _json(params, _MOST_BESIDE)):
            steps.append((self.now(), said))

    def noticed(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        """The server has told something that is about no call. It has no more than `NOTICE_BYTES`, which are written as
        JSON in a third of a millisecond: larger ones are dropped where lines are read."""
        values = () if params is None else params.values()
        size = max((len(each) for each in values if isinstance(each, str)), default=0)
        raw = b"" if params is None or size > _MOST_BESIDE else _json(params, math.inf)
        if (size := max(size, len(raw))) > _MOST_BESIDE:
            self.notices.append((self.now(), address, _whole(method), b"", size))
        else:
            self.notices.append((self.now(), address, _whole(method), raw, 0))

    def asked(self, request: ServerRequest, began: float, answer: Mapping[str, Any] | RpcRefusal) -> None:
        """The server has asked its client something, and got this."""
        if request.call is None or request.call.ended:
            return
        got: dict[str, Any] = {"answer": answer}
        if isinstance(answer, RpcRefusal):
            got = {"refusal": {"code": answer.rpc_code, "message": answer.message}}
        questions = self._of(request.call).questions
        said = _json({"params": request.params, **got}, _MOST_BESIDE)
        if said and len(questions) < RECENT_STEPS:
            questions.append((began, request.method, said))

    def _of(self, call: Call) -> CallExtras:
        found = self._beside.get(call)
        if found is None:
            found = self._beside[call] = CallExtras([], [])
        return found

    def forgot(self, session: str, secrets: Mapping[str, Secrets]) -> None:
        """A session and its secrets, by server, are forgotten. Its calls that are kept may have to lose them. What its
        servers have told is not kept any longer than it."""
        if self.notices and secrets:
            self.notices = deque((one for one in self.notices if one[1].session != session), RECENT_NOTICES)
        if secrets and any(call.client == session for call in (*self._older, *self._calls)):
            self.forgotten += [(self.now(), server, session, found) for server, found in secrets.items()]
            self._left -= _OF_SECRETS * len(secrets)

    # What is asked.

    def ended_calls(self) -> list[RecentCall]:
        """The last calls that have ended, oldest first."""
        whole = [*self._older, *self._calls]
        lines = self._lines
        found = [*(RecentCall(*lines[at : at + _KEPT]) for at in range(0, len(lines), _KEPT)), *whole]
        return found[-max(self._most_lines, len(whole)) :] if found else []

    def open_call(self, call: Call, address: Address, incarnation: int) -> RecentCall:
        """One that has not ended."""
        beside = self._beside.get(call)
        return RecentCall(
            None, address, incarnation, call.number, call.method, call.tool, call.client, call.accepted_at,
            call.sent_at, call.reach, "", False, call.line or _line_of(call),
            beside=None if beside is None else CallExtras(beside.steps[:], beside.questions[:]),
        )  # fmt: skip


def refusal_of(call: Call) -> Refusal:
    """What is kept of a call that was not accepted."""
    error, name = call.error, call.tool
    server = call.server or ("" if error is None else error.server)
    said = _whole(server), None if name is None else _whole(str(name))  # it may be anything
    words = "" if error is None else _whole(error.message)
    return call.ended_at, said[0], call.client, said[1], call.outcome, words


def _whole(text: str) -> str:
    """A text that is kept as it came; nothing of a long one, for of half a secret nobody knows that it is one."""
    return text if len(text) <= RECENT_WORDS else "…"


def _beginning(text: str) -> str:
    """The beginning of a long text that has lost its secrets before. It ends between two words."""
    return text if len(text) <= RECENT_WORDS else f"{_WORD.sub('', text[:RECENT_WORDS])}…"


def without_content(params: Mapping[str, Any] | None, size: int) -> bytes:
    """What is kept of a line that is too large: its size, and whom it was for, unless that is long, too."""
    names = {key: str((params or {})[key]) for key in ("name", "uri") if key in (params or {})}
    return encode({"params": {key: _whole(name) for key, name in names.items()}, "size": size})


def _line_of(call: Call) -> bytes:
    """What would have been sent of a call whose line nobody made: it was never sent, or to a server without lines."""
    size = call.weight
    if size <= _MOST:
        line = _json({"params": call.params}, math.inf)
        if len(line) <= _MOST:
            return line
        size = len(line)
    return without_content(call.params, size)


def _failure(error: CallError) -> bytes:
    """Without the error itself, which refers to all that was going on where it was raised."""
    said: dict[str, Any] = {"code": error.code, "message": error.message}
    if isinstance(error, RemoteError):
        said["rpc"] = {"code": error.rpc_code, "message": error.rpc_message, "data": error.data}
    short = {"code": error.code, "message": _whole(error.message)}
    return _json(said, _MOST) or _json(short, _MOST)


def _json(value: object, most: float) -> bytes:
    """The value as JSON. Nothing, if it is too large or cannot be written."""
    try:
        raw = encode_json(value)
    except UsageError:
        return b""
    return raw if len(raw) <= most else b""


def in_order(events: Iterable[Event], calls: Iterable[RecentCall], since: float) -> list[Event]:
    """All of it since then, as the stream would have told it. A call counts if it ended later than that."""
    late = [event for event in events if event.at >= since]
    of_calls = [
        event for call in calls if call.ended_at is None or call.ended_at >= since for event in call.events()
    ]
    return sorted((*late, *of_calls), key=lambda event: event.at)


class LastMinutes(msgspec.Struct, frozen=True, eq=False):
    """What a room kept, for a tape of it (`tape.last_minutes_tape`). Times are the room's. `secrets`: a copy, as a
    session may end before the tape is made; with those of sessions that have ended."""

    config: Config
    secrets: KnownSecrets
    entries: Sequence[ServerEntry]
    events: Sequence[Event]
    calls: Sequence[RecentCall]
    refusals: Sequence[Refusal]
    notices: Sequence[Notice]
    now: float
    seconds: float  # that are wanted
    wall: float = msgspec.field(default_factory=time)  # when it is `now`
