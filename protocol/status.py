"""The status of a server: one record, from which every view of it is made. And what became of a room's calls.

A room reports one record per address; a catalogue without a room does the same with what it knows. `room.status()`,
the answers of the `mcp` tool, `--json`, the tables and the control socket are all made from it. A view may leave
fields out, but it has no other source.

`json_of` writes it as JSON, and `status_from` reads it back. Writing does not use cattrs, because its import takes a
twentieth of a second, which would delay the command line and a busy gateway. Reading checks what another program has
written, and there cattrs is worth it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict, cast, get_type_hints

import msgspec

from .address import DISCOVERY, HANDSHAKE
from .lifecycle import State
from .safe_text import counted

if TYPE_CHECKING:
    from cattrs import Converter


class OpenBreaker(msgspec.Struct, frozen=True):
    """What a circuit breaker tells others while it is open, so that it refuses."""

    failures: int  # in a row
    seconds: float  # until it lets somebody try again
    words: str  # what failed last


class ServerStatus(msgspec.Struct, frozen=True):
    """One address of a server: its shared one, a session's or a call's. All times in seconds."""

    server: str  # its name in the configuration
    scope: str = "shared"  # whose process it is: `shared`, `session:…` or `call:…`
    lifecycle: str = "lazy"  # when it starts: `lazy`, `eager` or `keep-alive`
    state: State = State.IDLE  # of its lifecycle: `IDLE` also after a failure, which `failure` tells
    incarnation: int = 0  # its number, from 1; if none runs, that of the next; 0: there is no room
    in_flight: int = 0  # calls without an answer
    queued: int = 0  # calls that wait to be sent
    waiting_for: str | None = None  # before it connects: breaker, slot, permit …, or the install
    waiting: float | None = None  # seconds that it has waited or been connecting
    last_line: str | None = None  # the last line that it wrote to its stderr while it connects
    tool_count: int | None = None  # None: its tools are unknown
    resource_count: int = 0  # its resources that are offered as tools
    problems: tuple[str, ...] = ()  # what is missing from its lists and why: one that was cut, or failed
    pid: int | None = None  # of its process; None: it has none
    failure: str | None = None  # why it last failed, in this run or an earlier one; cleared when it connects
    failure_kind: str | None = None  # of `failure`: `program`, `connection`, `exit`, `silence` or `other`
    failed_ago: float | None = None  # seconds since it last failed
    failed_starts: int = 0  # starts that failed in a row; 0: it was lost while it ran
    silent_failures: int = 0  # failures in a row, the last a call that timed out; nothing was heard since
    start_took: float | None = None  # seconds of its last start, until its tools were known
    warm: int = 0  # children that wait for somebody: started ahead, or reset
    reused: int = 0  # how often somebody has had a child that the server's own tool had reset
    replaced: str | None = None  # a session's: why its process before was ended, with all that it kept
    odd: str | None = None  # the first odd thing that its latest incarnation did, such as to print to stdout
    odd_code: str | None = None  # of `odd`: `junk`, or `odd` for anything else
    quarantined: str | None = None  # it was restarted too often: how often; until it answers again
    retry_in: float | None = None  # seconds until its circuit breaker lets a call pass; None: it does
    next_try: float | None = None  # seconds until it restarts by itself; None: only if somebody asks
    needs_auth: bool = False  # it waits for a login
    disabled: bool = False  # its owner has taken it out of service
    broken: str | None = None  # its definition cannot be used: why
    untrusted: bool = False  # `broken` only because its owner has not trusted the project's file yet
    down: str | None = None  # it was stopped on purpose, and a call does not start it: why
    session_variables: tuple[str, ...] = ()  # what a session must give before it can be started
    changed: tuple[str, ...] = ()  # tools that are not as they were first shown, by their own names
    flapping: tuple[str, ...] = ()  # those of `changed` that change again and again
    hidden: tuple[str, ...] = ()  # items whose definitions have characters that nobody sees, and which
    faults: tuple[str, ...] = ()  # items in its lists that clients would refuse, and what was done about them
    limited: tuple[str, ...] = ()  # the limits and loop guards that have refused calls of it, and how often

    @property
    def word(self) -> str:
        """What it does now, or why it does not run, in a word. `greenroom status --help` says what each means."""
        return word_of(self, is_known=self.cached)

    @property
    def cached(self) -> bool:
        """Whether anything is known of the server, from this run or from the cache."""
        return self.tool_count is not None

    @property
    def connecting(self) -> bool:
        """Whether it is being started or reached."""
        return self.state is State.CONNECTING

    @property
    def connected(self) -> bool:
        """Whether calls are sent to it."""
        return self.state is State.CONNECTED


_ITEMS: Final = 3  # with hidden characters, that are named in a line
_PLACES: Final = {"slot": "a slot", "permit": "a start permit", "its turn for discovery": "its turn"}
_UNITS: Final = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))


class DrainReport(msgspec.Struct, frozen=True):
    """The outcomes of all calls of a room: `completed + failed + cancelled == accepted`. While the room is open,
    calls without an outcome are `open`."""

    accepted: int  # calls that were sent or queued
    completed: int  # calls that have a result
    failed: int  # calls that ended with an error
    cancelled: int  # calls whose caller left
    refused: int  # calls that were never accepted
    refusals: Mapping[str, int] = msgspec.field(
        default_factory=dict[str, int]
    )  # their number for each error code
    open: int = 0  # calls without an outcome so far
    is_final: bool = True  # the room has closed

    @property
    def adds_up(self) -> bool:
        """Whether every call that was accepted has one outcome or is still open."""
        return self.completed + self.failed + self.cancelled + self.open == self.accepted

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {code}" for code, count in self.refusals.items())
        why = f": {reasons}" if reasons else ""
        return (
            f"{counted(self.accepted, 'call')} accepted: {self.completed} completed, {self.failed} failed, "
            f"{self.cancelled} cancelled{f', {self.open} open' if self.open else ''} ({self.refused} refused{why})"
        )


def word_of(row: ServerStatus, *, is_known: bool) -> str:
    """`ServerStatus.word`, of a row that need not know whether its tools are known."""
    if row.disabled:
        return "disabled"
    if row.broken is not None:
        return "untrusted" if row.untrusted else "broken"
    if row.state is State.CONNECTED:
        return "connected"
    if row.needs_auth:
        return "needs-auth"
    starts = "installing" if row.waiting_for == "install" else "waiting"
    if row.state in (State.CONNECTING, State.DRAINING):
        return "installing" if starts == "installing" else row.state.value
    if row.down is not None:
        return "down"
    if row.waiting_for not in (None, "breaker") and not is_known:
        return starts
    if row.failure is not None:
        return "lost" if is_known and _starts_again(row) else "failed"
    if row.waiting_for is not None:
        return starts
    if row.scope != "shared":
        return "idle"
    return "cached" if is_known else "not-connected"


def _starts_again(row: ServerStatus) -> bool:
    """Whether it ended while it ran, and nothing but a call is wanted to start it again."""
    is_kept_out = row.retry_in is not None or row.waiting_for is not None or row.quarantined is not None
    return not row.failed_starts and not is_kept_out


def word_with(word: str, others: Iterable[str]) -> str:
    """The word for a server whose further addresses have the words `others`: one that runs only for sessions and calls
    does what they do."""
    if word not in ("cached", "not-connected"):
        return word
    found = {*others}
    return next((each for each in ("connected", "connecting", "installing") if each in found), word)


def about(seconds: float) -> str:
    """About how long, in the largest unit of which it is two or more."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def scope_in_words(scope: str) -> str:
    """Whom a further address of a server is for: its scope, which says that, or words for it."""
    return {HANDSHAKE: "older clients", DISCOVERY: "its list reader"}.get(scope, scope)


def silence_in_words(failures: int) -> str:
    """That a connected server does not answer; "": it does, or a single call has timed out, which may be slow."""
    return f"does not answer ({failures} failures in a row)" if failures > 1 else ""


def next_try(seconds: float) -> str:
    return f"next try in {about(seconds)}"


def tries_in_words(retry_in: float | None, own_try: float | None) -> str:
    """When a server that does not run is tried again: by a call, which its circuit breaker may refuse for `retry_in`
    seconds, and by itself (`own_try`). "": by a call alone, which may come at any time."""
    left = 0 if retry_in is None else math.ceil(retry_in)
    refuses = f"refuses calls for {about(left)}" if left else ""
    if own_try is None:
        return refuses
    again = next_try(own_try)
    if left and own_try <= left + 1:  # the same moment
        return f"refuses calls, {again}"
    return f"{refuses}, {again}" if refuses else f"{again}, or by a call"


def wait_in_words(
    waiting_for: str | None, waiting: float | None, retry_in: float | None, own_try: float | None = None
) -> str:
    """What a start waits for, for how long, and when it is tried: `waits 30 s, next try in 22 s`, `waiting 4 s for a
    slot`; without one, `tries_in_words`. "": it waits for nothing, and no call is refused."""
    took = "" if waiting is None else f" {waiting:.0f} s"
    since = f" for{took}" if took else ""
    match waiting_for:
        case None:
            return tries_in_words(retry_in, own_try)
        case "breaker":
            said = [f"waits{took}"]
        case "install":
            said = [f"installing{since}"]
        case place:
            said = [f"waiting{took} for {_PLACES.get(place, place)}"]
    return ", ".join([*said, *(() if retry_in is None else (next_try(retry_in),))])


def hidden_in_words(items: Sequence[str]) -> str:
    """The items with hidden characters: the first ones, and how many more there are."""
    more = len(items) - _ITEMS
    return "; ".join(items[:_ITEMS]) + (f"; and {more} more" if more > 0 else "")


# ---- as JSON ---------------------------------------------------------------------------------------------------------
def _key(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_KEYS: Final[Mapping[str, str]] = {
    field: "name" if field == "server" else _key(field) for field in ServerStatus.__struct_fields__
}


def json_of(status: ServerStatus) -> dict[str, Any]:
    """Every field by its name in JSON; seconds to one decimal. `status` is its word, and `cached` says whether
    `toolCount` is known. The server's name is `server`, as everywhere; `name` is the older word for it, and stays."""
    said = {key: _plain(getattr(status, name)) for name, key in _KEYS.items()}
    return {"server": status.server, **said, "status": status.word, "cached": status.cached}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return round(value, 1)
    return list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def status_from(said: Mapping[str, Any]) -> ServerStatus:
    """Read what `json_of` wrote, or a view with more keys, where 0 tools may mean unknown. Raises a `ValueError` that
    names the wrong fields."""
    from cattrs import transform_error

    if not said.get("cached", True):
        said = {**said, "toolCount": None}
    try:
        converter, fields = _converter()
        read: Any = converter.structure(said, fields)
    except Exception as error:
        raise ValueError("; ".join(transform_error(error, path="status"))) from None
    return ServerStatus(**{name: read[name] for name in _KEYS if name in read})


@cache
def _converter() -> tuple[Converter, Any]:
    """A converter, and what it makes: the fields of a status by their names. It makes no structs."""
    from cattrs import Converter
    from cattrs.gen import override, typeddicts

    # Made at run time, of the fields that are there.
    kind, gen = cast("tuple[Any, Any]", (TypedDict, typeddicts))
    fields = kind("ServerStatus", {**get_type_hints(ServerStatus), "server": Required[str]}, total=False)
    converter = Converter()
    names = {name: override(rename=key) for name, key in _KEYS.items() if key != name}
    converter.register_structure_hook(fields, gen.make_dict_structure_fn(fields, converter, **names))
    return converter, fields
