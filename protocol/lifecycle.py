"""The lifecycle: one table, and the step that walks it.

Two rules, after h11's state file:

1. Everything that affects a transition lives here, as data (`TABLE`) or as the one function that reads it
   (`step`). An actor carries a `Life` and asks `step` what the next one is; it never assigns a state.
2. This file knows no clock, no loop, no process and no policy. What has to *happen* comes back as effects; the
   actor performs them at its edge. Who decides what follows `CLOSED` is the supervisor.

Once an incarnation is started, there is one way out. Every ending, good or bad, passes through `DRAINING`. `GONE` is
announced only when nothing of the process tree is left, so a slot freed by `GONE` is truly free, and no incarnation is
half-dead. Draining waits for calls in flight until a deadline; without such calls it stops the tree at once.
`Life.stopping` records that the tree has been told to stop, so it is told exactly once.

Requests that *join* something under way are not events and have no row: a connect during another connect waits for the
same attempt. `READY` and `FAILED` of an attempt that is already ending are late messages, not events: `is_late` tells,
and the actor drops them. Any other event that the table lacks is a bug; it raises and changes nothing.

The diagram in the docs, the exhaustive test and the model of the property tests are made from `TABLE`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from .errors import CallError


class State(enum.Enum):
    """The state of an incarnation. Code, logs, metrics and docs all use these words."""

    IDLE = "idle"  # nothing runs
    CONNECTING = "connecting"  # it is started and initialized, and its lists are read
    CONNECTED = "connected"  # calls are sent
    DRAINING = "draining"  # calls in flight finish, then it is stopped
    CLOSED = "closed"  # no process of it is left


class Trigger(enum.Enum):
    """What can happen to an incarnation."""

    CONNECT = "connect"
    READY = "ready"
    FAILED = "failed"
    DRAIN = "drain"
    STOP = "stop"
    LOST = "lost"
    DEADLINE = "deadline"
    GONE = "gone"


class Means(enum.Flag):
    """What a cause means for the parts of the program that have to decide something."""

    NOTHING = 0
    FAILED = enum.auto()  # it failed by itself: the circuit breaker and the restart intensity may count it
    NO_START = enum.auto()  # an attempt to connect failed, and everybody who waits for it is told
    REQUEUES = enum.auto()  # a call that never reached the server may wait for the next incarnation
    KEEPS_NAMES = enum.auto()  # a caller that asked for the connection by name gets the next one
    KEEPS_DISCOVERIES = enum.auto()  # a discovery that has not learned the server's tools is repeated
    KEEPS_WAITERS = KEEPS_NAMES | KEEPS_DISCOVERIES
    FINAL = enum.auto()  # calls are refused from now on, instead of waiting for a next incarnation
    TAKEN_DOWN = enum.auto()  # somebody took the server down on purpose


class Cause(enum.Enum):
    """Why an incarnation ends. If two causes meet while it drains, the later one in this list counts."""

    _value_: str
    means: Means

    def __new__(cls, words: str, means: Means) -> Cause:
        cause = object.__new__(cls)
        cause._value_ = words
        cause.means = means
        return cause

    IDLE_TIMEOUT = "idle timeout", Means.KEEPS_WAITERS  # it was idle for too long
    EVICTED = "evicted", Means.KEEPS_WAITERS  # another server needs its slot
    CONNECT_FAILED = (
        "failed to connect",
        Means.FAILED | Means.NO_START | Means.KEEPS_DISCOVERIES,
    )  # it could not be started or initialized
    LOST = "lost", Means.FAILED | Means.REQUEUES | Means.KEEPS_WAITERS  # its process or connection ended
    MOVED = "moved", Means.REQUEUES | Means.KEEPS_WAITERS  # it runs on another host now
    BUG = "failed: bug", Means.FAILED | Means.KEEPS_NAMES  # an error in Greenroom's own code
    NEEDS_AUTH = "needs auth", Means.NO_START  # it needs a login
    RESTART = "restart", Means.REQUEUES | Means.KEEPS_WAITERS  # somebody restarted it
    RELOAD = "reload", Means.REQUEUES | Means.KEEPS_WAITERS  # its definition has changed
    DRAINED = "drained", Means.FINAL | Means.TAKEN_DOWN | Means.KEEPS_NAMES  # somebody took it down
    DISABLED = "disabled", Means.FINAL | Means.TAKEN_DOWN  # it was disabled
    REMOVED = "removed", Means.FINAL | Means.TAKEN_DOWN  # it was removed from the configuration
    SCOPE_ENDED = "scope ended", Means.FINAL  # its session or call has ended
    SHUTDOWN = "shutdown", Means.FINAL  # the room closes

    def has(self, means: Means) -> bool:
        """Whether the cause means all of this."""
        return means in self.means


class Reason(enum.Enum):
    """A more exact reason than the `Cause`; a code for programs. Only the cause decides what follows."""

    # A lost connection.
    DIED = "died"  # its process or connection ended
    EXPIRED = "session expired"  # the server runs, but has forgotten the session
    NEEDS_AUTH = "needs auth"  # the server runs, but needs a login
    NO_IDENTITY = "no identity"  # the server runs, but there is no token for the caller
    MOVED = "moved"  # it runs on another host of the cluster now
    UNRESPONSIVE = "unresponsive"  # its calls were not answered, and it sent nothing else
    UNHEALTHY = "unhealthy"  # it failed its health check
    CANCELLED = "cancelled"  # the task that owned the connection was cancelled
    # An ending that was decided here.
    NO_CALL = "no call"  # nobody called it for its idle time
    MAKES_ROOM = "makes room"  # another server needs its slot
    OVER_LIMIT = "over limit"  # more servers are connected than there are slots
    NEW_DEFINITION = "new definition"  # its definition has changed
    BAD_DEFINITION = "bad definition"  # its new definition cannot be used
    SESSION_OVER = "session over"  # its session has ended
    DISCOVERY_OVER = "discovery over"  # it was started for its lists, and nobody has called it
    CALL_OVER = "call over"  # its call has ended
    KNOWN = "known"  # it was to be started for its lists, but they are known by now


_REASON_WORDS: Final[Mapping[Reason, str]] = {
    Reason.NO_CALL: "no call for {seconds:g} s",
    Reason.MAKES_ROOM: "to make room",
    Reason.OVER_LIMIT: "more are live than there are slots",
    Reason.NEW_DEFINITION: "its definition changed",
    Reason.BAD_DEFINITION: "its definition cannot be used any more",
    Reason.SESSION_OVER: "the session is over",
    Reason.DISCOVERY_OVER: "it was only asked for its lists",
    Reason.CALL_OVER: "its call is over",
    Reason.KNOWN: "already known",
}


def words_of(reason: Reason | None, seconds: float | None = None) -> str:
    """A reason in words for a person."""
    if reason is None:
        return ""
    return _REASON_WORDS.get(reason, reason.value).format(seconds=seconds)


_STRENGTH: Final = {cause: rank for rank, cause in enumerate(Cause)}


class Effect(enum.Enum):
    """What the actor must do after a step, in this order."""

    OPEN = "open"  # start the owner task: spawn, shake hands, list
    SERVE = "serve"  # hand the queued calls to the connection
    ARM_DEADLINE = "arm deadline"  # post DEADLINE at `Life.deadline`
    LOSE_CALLS = "lose calls"  # calls in flight end now: the connection is gone
    EXPIRE_CALLS = "expire calls"  # calls in flight end now: the drain deadline has passed
    STOP_TREE = "stop tree"  # close stdin, TERM, KILL, reap; then post GONE
    ANNOUNCE = "announce"  # tell the supervisor: closed, and why


_TABLE: Final[dict[State, dict[Trigger, State]]] = {
    State.IDLE: {
        Trigger.CONNECT: State.CONNECTING,
        Trigger.STOP: State.CLOSED,
    },
    State.CONNECTING: {
        Trigger.READY: State.CONNECTED,
        Trigger.FAILED: State.DRAINING,
        Trigger.STOP: State.DRAINING,
    },
    State.CONNECTED: {
        Trigger.DRAIN: State.DRAINING,
        Trigger.STOP: State.DRAINING,
        Trigger.LOST: State.DRAINING,
    },
    State.DRAINING: {
        Trigger.DRAIN: State.DRAINING,
        Trigger.STOP: State.DRAINING,
        Trigger.LOST: State.DRAINING,
        Trigger.DEADLINE: State.DRAINING,
        Trigger.GONE: State.CLOSED,
    },
    State.CLOSED: {},
}
TABLE: Final[Mapping[State, Mapping[Trigger, State]]] = MappingProxyType(
    {state: MappingProxyType(row) for state, row in _TABLE.items()}
)


class IllegalTransition(AssertionError):
    """An event that the table lacks: always our bug, never a server's."""

    def __init__(self, state: State, trigger: Trigger) -> None:
        super().__init__(f"the lifecycle has no {trigger.value!r} in {state.value!r}")
        self.state = state
        self.trigger = trigger


class Ending(msgspec.Struct, frozen=True):
    """Why an incarnation ends. `words`: what a server, a library or the system said about it."""

    cause: Cause
    words: str = ""
    reason: Reason | None = None
    seconds: float | None = None  # of the reason: how long there was no call
    error: CallError | None = None  # what it failed with

    @property
    def is_of_caller(self) -> bool:
        """Whether it says nothing of the server, but only of the one who calls it."""
        return self.reason is Reason.NO_IDENTITY

    @property
    def detail(self) -> str:
        """The exact reason, in words for a person."""
        return self.words or words_of(self.reason, self.seconds)

    def stronger(self, other: Ending | None) -> Ending:
        """The stronger of two endings; the earlier one when they are equally strong."""
        if other is None or _STRENGTH[self.cause] > _STRENGTH[other.cause]:
            return self
        return other

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


class Life(msgspec.Struct, frozen=True):
    """Where one incarnation stands. Immutable: `step` returns the next one."""

    incarnation: int = 1
    state: State = State.IDLE
    ending: Ending | None = None
    deadline: float | None = None  # absolute time at which draining stops waiting for calls
    stopping: bool = False  # the tree has been told to stop


def is_late(life: Life, trigger: Trigger) -> bool:
    """Whether this message is about an attempt that is already ending. It is no event, so drop it."""
    return trigger in (Trigger.READY, Trigger.FAILED) and life.state in (State.DRAINING, State.CLOSED)


def step(
    life: Life,
    trigger: Trigger,
    *,
    ending: Ending | None = None,
    deadline: float | None = None,
    in_flight: int = 0,
) -> tuple[Life, tuple[Effect, ...]]:
    """One step: the next life, and the effects to carry out.

    `ending` is required by every trigger that ends it (`STOP`, `DRAIN`, `LOST`, `FAILED`), `deadline` (absolute) by
    `DRAIN`. `in_flight` is the number of calls without an answer. Raises `IllegalTransition`, and changes nothing, when
    the table lacks the event.
    """
    target = TABLE[life.state].get(trigger)
    if target is None:
        raise IllegalTransition(life.state, trigger)
    match target:
        case State.CONNECTING:
            return replace(life, state=target), (Effect.OPEN,)
        case State.CONNECTED:
            return replace(life, state=target), (Effect.SERVE,)
        case State.CLOSED:
            assert in_flight == 0, "gone is announced only when no call is in flight"
            final = life.ending if trigger is Trigger.GONE else ending
            assert final is not None, f"{trigger.value} needs an ending"
            return replace(life, state=target, ending=final, deadline=None), (Effect.ANNOUNCE,)
        case _:
            return _drain(life, trigger, ending, deadline, in_flight)


def settle(life: Life) -> tuple[Life, tuple[Effect, ...]]:
    """The last call in flight has ended. While draining the tree is stopped now; in other states nothing happens."""
    if life.state is not State.DRAINING or life.stopping:
        return life, ()
    return replace(life, stopping=True), (Effect.STOP_TREE,)


def _drain(
    life: Life, trigger: Trigger, ending: Ending | None, deadline: float | None, in_flight: int
) -> tuple[Life, tuple[Effect, ...]]:
    """Into `DRAINING`, or deeper into it: the stronger cause wins, the deadline only shrinks."""
    if trigger is not Trigger.DEADLINE:
        assert ending is not None, f"{trigger.value} needs an ending"
        ending = ending.stronger(life.ending)
    else:
        ending = life.ending
    patient = trigger is Trigger.DRAIN and in_flight > 0
    effects: list[Effect] = []
    if patient:
        assert deadline is not None, "drain needs a deadline"
        deadline = deadline if life.deadline is None else min(deadline, life.deadline)
        if not life.stopping and deadline != life.deadline:
            effects.append(Effect.ARM_DEADLINE)
    else:
        deadline = life.deadline
        if in_flight:
            effects.append(Effect.LOSE_CALLS if trigger is Trigger.LOST else Effect.EXPIRE_CALLS)
        if not life.stopping:
            effects.append(Effect.STOP_TREE)
    stopping = life.stopping or Effect.STOP_TREE in effects
    return (
        replace(life, state=State.DRAINING, ending=ending, deadline=deadline, stopping=stopping),
        tuple(effects),
    )
