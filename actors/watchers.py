"""The watchers of a room: who is told of the moments of calls, and of what happens to servers.

This is the one seam around a call. Whoever wants to know what becomes of calls (the event stream, the last minutes, a
tape, the audit, traces, a program's own count) is a watcher, and there is no other way to hear of it.

| moment | when |
|---|---|
| `began(call)` | somebody asks for it, before its name is looked up |
| `held(call)` | it waits for a person's yes |
| `released(call)` | that wait is over, and it goes on. (One that is not allowed ends.) |
| `accepted(call)` | an actor has taken it: `call.number` counts it from now on |
| `sending(call)` | it is about to be written; once for each attempt, and for each round of more input |
| `sent(call)` | a write has accepted its first byte |
| `progressed(call, params)` | its server has told how far it is |
| `asked(request, began, answer)` | its server has asked the client something at the time `began`, and got this |
| `ended(call)` | it has its one outcome. One that was refused before it was accepted has the number 0 |
| `listed(address, incarnation, handshake, listing, offers)` | a server has listed what it has |
| `noticed(address, method, params)` | a server has sent a notification that is about no call |
| `knew(entry)` | what is known of a server before it runs, when the room begins |
| `await foresee(config)` | the room will have another configuration: what takes long is done now, in parts |
| `reconfigured(config)` | the room has another configuration |
| `forgot(session, secrets)` | a session is over, and its secrets, by server, are no longer known |

The rules:

* A watcher changes nothing, never waits (but in `foresee`, which a reload waits for) and never raises. One that raises
  all the same becomes a note, once a minute, and everything goes on.
* They are told in the order of `Order`, each moment in the step in which it happens, and `ended` before the caller.
* `ended` comes exactly once for each call that has begun, whoever ended it.
* Of a moment that nobody watches, a call pays for one look at an empty tuple.

The numbers of the drain report and the circuit breakers are no watchers: they belong to `CallQueue`, which decides by
them. What is added to a request is not theirs either (`RequestTerms`): no watcher changes a call.

A watcher of ours is any object that has methods of these names, and is given the `Call` itself. A program's own is a
`Watcher`; it is given a `CallView`, whose arguments and result have lost all known secrets.

Rejected: events for all of this. They have no contents, and making one costs more than telling. And ports that wrap one
another, as the audit and the traces once did: each feature then wraps the end of each call again.
"""

from __future__ import annotations

import enum
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from ..protocol.errors import Reach
from ..protocol.jsonrpc.encoding import REFUSED, plainly
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import WireFault

if TYPE_CHECKING:
    from ..config.known_secrets import KnownSecrets
    from ..config.scrubbing import Secrets
    from .call import Call

CALL_MOMENTS: Final = (
    "began", "held", "released", "accepted", "sending", "sent", "progressed", "ended",
)  # fmt: skip
MOMENTS: Final = (*CALL_MOMENTS, "asked", "listed", "noticed", "knew", "foresee", "reconfigured", "forgot")
_QUIET: Final = 60.0  # seconds in which a watcher that raises again is not noted again


class Order(enum.IntEnum):
    """The order in which watchers are told of the same moment."""

    GATES = 0  # those that have to know how their calls end
    EVENTS = 1
    LAST_MINUTES = 2
    TAPE = 3
    AUDIT = 4
    TRACES = 5
    PROGRAM = 6


class Watchers:
    """Who is told of what in one room: a tuple of functions for each moment."""

    __slots__ = ("_all", "_noted", "note", *MOMENTS)

    began: tuple[Callable[[Call], object], ...]
    held: tuple[Callable[[Call], object], ...]
    released: tuple[Callable[[Call], object], ...]
    accepted: tuple[Callable[[Call], object], ...]
    sending: tuple[Callable[[Call], object], ...]
    sent: tuple[Callable[[Call], object], ...]
    progressed: tuple[Callable[[Call, Mapping[str, Any]], object], ...]
    ended: tuple[Callable[[Call], object], ...]
    asked: tuple[Callable[..., object], ...]
    listed: tuple[Callable[..., object], ...]
    noticed: tuple[Callable[..., object], ...]
    knew: tuple[Callable[..., object], ...]
    foresee: tuple[Callable[..., Awaitable[object]], ...]
    reconfigured: tuple[Callable[..., object], ...]
    forgot: tuple[Callable[..., object], ...]

    def __init__(self) -> None:
        self._all: list[tuple[Order, object]] = []
        self._noted: dict[object, float] = {}  # when it was last noted that this function raised
        self.note: Callable[[str], object] = _nobody  # is told, in words, that a watcher has raised
        self._arrange()

    def add(self, watcher: object, order: Order) -> None:
        """Tell this watcher from now on."""
        self._all.append((order, watcher))
        self._all.sort(key=lambda each: each[0])  # stable: those of a program stay in its own order
        self._arrange()

    def remove(self, watcher: object) -> None:
        self._all = [each for each in self._all if each[1] is not watcher]
        self._arrange()

    def _arrange(self) -> None:
        for moment in MOMENTS:
            found = (getattr(watcher, moment, None) for _, watcher in self._all)
            told = tuple(each for each in found if each is not None and not _is_empty(each))
            setattr(self, moment, told)

    def tell(self, watching: tuple[Callable[..., object], ...], *about: object) -> None:
        """Tell those that watch this moment. Ask first whether there are any."""
        for each in watching:
            try:
                each(*about)
            except Exception as error:
                self.raised(each, error)

    async def will_reconfigure(self, config: object) -> None:
        """Let those that want to do what takes long for this configuration, before the room has it."""
        for each in self.foresee:
            try:
                await each(config)
            except Exception as error:
                self.raised(each, error)

    def raised(self, told: Callable[..., object], error: Exception) -> None:
        """A watcher raised, which it may not."""
        from anyio import current_time

        now, name = current_time(), getattr(told, "__qualname__", repr(told))
        if now - self._noted.get(name, -math.inf) >= _QUIET:
            self._noted[name] = now
            text = "".join(traceback.format_exception(error))
            self.note(f"the watcher {name} raised, which changes nothing else\n{text}")


def _nobody(_words: str) -> None:
    pass


def _is_empty(method: object) -> bool:
    """Whether it is one of `Watcher` itself, which does nothing."""
    return getattr(method, "__func__", None) in _EMPTY


class CallView:
    """One call, as a program's own watcher sees it. The same object at each moment of the call. Names, texts, arguments
    and results have lost all known secrets, unless the room was opened with `raw=True`. Read only.

    Times are in seconds of the room's clock (`anyio.current_time()`), None before they are reached.
    """

    __slots__ = ("_call", "_secrets")

    def __init__(self, call: Call, secrets: KnownSecrets | None) -> None:
        self._call = call
        self._secrets = secrets

    def __repr__(self) -> str:
        return f"<CallView {self.number or '-'} {self.method} {self.tool!r} {self.outcome or 'open'}>"

    @property
    def number(self) -> int:
        """The number of the call in its room, from 1; 0 for one that was not accepted (yet)."""
        return self._call.number

    @property
    def method(self) -> str:
        """The method in the protocol: `tools/call`, `resources/read`, `prompts/get`, …"""
        return self._call.method

    @property
    def tool(self) -> str | None:
        """The name it was called by; None: it is no call of a tool."""
        return self.shown(self._call.tool)

    @property
    def original(self) -> str | None:
        """The server's own name, or URI, for it; None until its name is found."""
        return self.shown(self._call.original)

    @property
    def server(self) -> str | None:
        """None as long as nobody knows which server has that name."""
        return self.shown(self._call.server)

    @property
    def session(self) -> str | None:
        """The session it came from; None: the room itself."""
        return self.shown(self._call.origin.session)

    @property
    def door(self) -> str:
        """How it came: `embedded`, `stdio`, `http`, …"""
        return self._call.origin.door

    @property
    def subject(self) -> str | None:
        """The principal that it was asked for, if the door knows."""
        return self.shown(self._call.origin.subject)

    @property
    def client(self) -> Mapping[str, Any]:
        """What the client says of itself: its `name` and `version`."""
        said = self._call.origin.client
        return self.shown(dict(cast("Mapping[str, Any]", said))) if isinstance(said, Mapping) else {}

    @property
    def began_at(self) -> float:
        """When it was asked for."""
        return self._call.began_at

    @property
    def accepted_at(self) -> float | None:
        """When it was accepted, on the room's clock in seconds; None: it was not."""
        return self._call.accepted_at if self._call.number else None

    @property
    def sent_at(self) -> float | None:
        """When it was sent, the last time."""
        return None if self._call.reach is Reach.NOT_SENT else self._call.sent_at

    @property
    def ended_at(self) -> float | None:
        """When it had its outcome; None: it has none yet."""
        return self._call.ended_at if self._call.ended else None

    @property
    def reach(self) -> Reach:
        """How far it got."""
        return self._call.reach

    @property
    def outcome(self) -> str | None:
        """`result`, `cancelled`, or the code of its error; None until it has ended."""
        return self._call.outcome if self._call.ended else None

    @property
    def error(self) -> str | None:
        """The message of its error."""
        return None if self._call.error is None else self.shown(self._call.error.message)

    @property
    def approval(self) -> str | None:
        """What was decided, if somebody had to allow it."""
        return self._call.approval

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was asked with (of a resource: its `uri`). It is decoded each time you read it."""
        params: Any = self._decoded(_written(self._call.params))
        if not isinstance(params, dict):
            return {}
        params = cast("dict[str, Any]", params)
        given = params.get("arguments", params if self._call.method != "tools/call" else {})
        return cast("dict[str, Any]", given) if isinstance(given, dict) else {}

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, as the server sent it; None: there is none. It is decoded each time you read it."""
        result = self._call.result
        return None if result is None else self._decoded(result)

    def _of_it(self, secrets: KnownSecrets) -> Secrets:
        return secrets.of_server(self._call.server or "", self._call.client)

    def _decoded(self, raw: bytes) -> Any:
        if self._secrets is not None:
            raw = self._of_it(self._secrets).scrub(raw)
        try:
            return decode_result(raw)
        except WireFault:
            return {}

    def shown(self, value: Any) -> Any:
        """A value of the call as its watcher may see it."""
        if value is None or self._secrets is None:
            return value
        return self._of_it(self._secrets).without_any(value)


def _written(params: object) -> bytes:
    try:
        return plainly(params or {})
    except REFUSED:
        return b"{}"


class Watcher:
    """Base class of objects that are told about the moments of all calls of a room (`Greenroom.open(watchers=[…])`).
    Override those that you want.

    Each is called in the step in which it happens: it must not wait, and what it raises becomes a note in the log. A
    call that has begun ends exactly once, whether it was ever accepted or not.
    """

    def began(self, call: CallView) -> None:
        """Somebody has asked for this call."""

    def held(self, call: CallView) -> None:
        """It waits for a person's yes."""

    def released(self, call: CallView) -> None:
        """That wait is over, and it goes on. (One that is not allowed ends.)"""

    def accepted(self, call: CallView) -> None:
        """Its server has taken it."""

    def sending(self, call: CallView) -> None:
        """It is about to be written: once for each attempt."""

    def sent(self, call: CallView) -> None:
        """A write has accepted its first byte: from now on it may run."""

    def progressed(self, call: CallView, params: Mapping[str, Any]) -> None:
        """Its server has told how far it is. `params`: those of the notification."""

    def ended(self, call: CallView) -> None:
        """It has its one outcome."""


_EMPTY: Final = frozenset(
    member for member in vars(Watcher).values() if callable(member) and not isinstance(member, type)
)


class ProgramWatcher:
    """A program's watcher, as one of ours: it is told of views. It has the methods that the program's overrides, and
    `began`, without which nobody would know when a call began."""

    def __init__(self, watcher: Watcher, secrets: KnownSecrets | None) -> None:
        """`secrets`: what the contents of calls lose. None: nothing."""
        for moment in CALL_MOMENTS:
            told: Callable[..., object] | None = getattr(watcher, moment, None)
            if told is not None and not _is_empty(told):
                setattr(self, moment, _showing(told, secrets))

    def began(self, call: Call) -> None: ...


def _showing(told: Callable[..., object], secrets: KnownSecrets | None) -> Callable[..., object]:
    def show(call: Call, *more: object) -> None:
        if call.view is None:
            call.view = CallView(call, secrets)
        told(call.view, *map(call.view.shown, more))

    show.__qualname__ = getattr(told, "__qualname__", repr(told))
    return show
