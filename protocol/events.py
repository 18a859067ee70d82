"""Events: one ordered stream that the log, the metrics, the status page and the tests all read.

Every transition, every policy decision and every call (accepted, sent, ended) is one event. Each kind of event is a
class whose fields say what happened. `detail` says the same in words; it is made from the fields, and only here.
Programs read the fields. Only the field `words` holds somebody else's text: what a server, a library or the system
said, without secrets.

The sequence number counts the events of a room without gaps. (Events of calls that nobody reads are not made, and have
none.) `at` is the room's monotonic time
in seconds.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

import msgspec

from .address import Address
from .errors import Reach
from .lifecycle import Cause, Reason, State, words_of


class Kind(enum.Enum):
    """The kinds of events. A reader of the stream can choose some of them."""

    TRANSITION = "transition"  # a server went from one state to the next
    STEP = "step"  # a connecting server reached the next step
    START = "start"  # a start waits for something else now, or has got it
    DECISION = "decision"  # a policy decided: circuit breaker, restart, pool
    CALL = "call"  # a call was accepted, sent, refused, or has ended
    CATALOGUE = "catalogue"  # the known lists of a server have changed
    NOTE = "note"  # something worth a log line: junk on stdout, a late answer, a bug's traceback


class Event(msgspec.Struct, frozen=True):
    """The fields of all events. `address` is None if the event concerns the room; `incarnation` is 0 if it concerns
    none."""

    kind: ClassVar[Kind]

    seq: int  # its number in the room; the numbers have no gaps
    at: float  # the monotonic time of the room
    address: Address | None = None  # the server, and the scope of its process
    incarnation: int = 0  # the incarnation of the server that it belongs to

    @property
    def server(self) -> str | None:
        return self.address.server if self.address is not None else None

    @property
    def scope(self) -> str | None:
        return self.address.scope if self.address is not None else None

    @property
    def detail(self) -> str:
        """What happened, in words for a person."""
        return ""


# ---- servers ---------------------------------------------------------------------------------------------------------
class Transition(Event, frozen=True, kw_only=True):
    """A server went from one state of its lifecycle to the next. If it is ending, `cause` and `reason` say why."""

    kind: ClassVar[Kind] = Kind.TRANSITION

    before: State  # where it was
    after: State  # where it is now
    cause: Cause | None = None  # why it ends
    reason: Reason | None = None  # why, more exactly
    seconds: float | None = None  # with the reason `no call`: how long there was no call
    words: str = ""  # what the server or the system said
    in_flight: int = 0  # how many of its calls are sent and not answered
    queued: int = 0  # how many of its calls are accepted and not sent

    @property
    def detail(self) -> str:
        return self.words or words_of(self.reason, self.seconds)


class ConnectStep(enum.Enum):
    """The steps between starting and being connected."""

    STARTED = "started"  # the process runs, or the connection is open
    INITIALIZED = "greeted"  # the protocol version is agreed


class Step(Event, frozen=True, kw_only=True):
    """A connecting server reached the next step."""

    kind: ClassVar[Kind] = Kind.STEP

    step: ConnectStep  # the step

    @property
    def detail(self) -> str:
        return self.step.value


class StartMoved(Event, frozen=True, kw_only=True):
    """A start has come to its next place on the way to a connection. The place says what the start waits for, or what
    it holds."""

    kind: ClassVar[Kind] = Kind.START

    place: Place  # where it is now

    @property
    def detail(self) -> str:
        return self.place.value


# ---- decisions -------------------------------------------------------------------------------------------------------
class BreakerMove(enum.Enum):
    """What happened to a server's circuit breaker."""

    FAILED = "failed"  # an attempt to connect failed, or the process died
    SILENT = "silent"  # a call was not answered in time, and the server sent nothing else
    QUARANTINED = "quarantined"  # the server was restarted too often
    HALF_OPEN = "half-open"  # one call may pass, as a probe
    BY_NAME = "connected by name"  # somebody connects the server; the next call is the probe
    PROBE_LEFT = "probe left"  # the caller of the probe has left; the next call is the probe
    ANSWERED = "answered"  # the server answered, so the breaker is reset
    SESSION_CONNECTED = "session connected"  # the process of a session connected, so the breaker is reset
    REDEFINED = "redefined"  # the server has another definition, so the breaker is reset
    TOLD = "told"  # another host of the cluster refuses the server


_BREAKER_WORDS = {
    BreakerMove.HALF_OPEN: "half-open: one probe passes",
    BreakerMove.BY_NAME: "connected by name: the next call is the probe",
    BreakerMove.PROBE_LEFT: "the probe has left: the next call is the probe",
    BreakerMove.ANSWERED: "reset: it answered",
    BreakerMove.SESSION_CONNECTED: "reset: a session connected",
    BreakerMove.REDEFINED: "reset: the server has another definition",
}


_RESETS = (BreakerMove.ANSWERED, BreakerMove.SESSION_CONNECTED, BreakerMove.REDEFINED)


class BreakerDecision(Event, frozen=True, kw_only=True):
    """Something happened to the circuit breaker of a server or a session: `move` says what."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: BreakerMove  # what happened
    failures: int = 0  # how many failures in a row
    open_for: float = 0.0  # how long it refuses calls from now on; 0: not at all
    tripped: bool = False  # true: it has tripped, and only an answer resets it
    cause: Cause | None = None  # why the server ended, if an ending was counted
    words: str = ""  # why it failed

    @property
    def is_reset(self) -> bool:
        return self.move in _RESETS

    @property
    def detail(self) -> str:
        match self.move:
            case BreakerMove.FAILED:
                return f"circuit breaker: failure {self.failures}: {self.words}"
            case BreakerMove.SILENT:
                return f"circuit breaker: {self.failures} timeouts or failures in a row"
            case BreakerMove.QUARANTINED:
                return f"circuit breaker: quarantined: {self.words}"
            case BreakerMove.TOLD:
                return f"circuit breaker: open as on another host: {self.words}"
            case _:
                return f"circuit breaker: {_BREAKER_WORDS[self.move]}"


class EndDecision(Event, frozen=True, kw_only=True):
    """What happens to a server after it has ended."""

    kind: ClassVar[Kind] = Kind.DECISION

    cause: Cause  # why it ended
    then: str  # `idle`: a call can start it; `connect`: it restarts; `down`: out of service; `gone`: not needed again

    @property
    def detail(self) -> str:
        return f"{self.cause.value}: then {self.then}"


class Eviction(Event, frozen=True, kw_only=True):
    """The pool took the slot of an idle server, which is stopped."""

    kind: ClassVar[Kind] = Kind.DECISION
    cause: ClassVar[Cause] = Cause.EVICTED

    reason: Reason  # why

    @property
    def detail(self) -> str:
        return f"pool: evicted {words_of(self.reason)}"


class WarmMove(enum.Enum):
    """What happened to a child that was started ahead."""

    STARTED = "started"  # it runs, and has got no message yet
    TAKEN = "taken over"  # a session or call uses it now
    RETURNED = "returned"  # the session or call that should get it has left
    RESETTING = "being reset"  # its session or call is over, and the room calls the tool that resets it
    RESET = "reset"  # it was reset, and is ready for the next session or call
    NOT_RESET = "not reset"  # it is stopped instead of being reset
    LOST = "lost"  # it ended by itself, or could not be started
    ENDED = "ended"  # it is stopped, to make room or because it is not needed any more


class WarmChildMoved(Event, frozen=True, kw_only=True):
    """Something happened to a child that was started ahead (`warm`)."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: WarmMove  # what happened
    child: str  # its name, until a session or call takes it over
    warm: int  # how many children of the server are ready now
    by: str | None = None  # the scope of the session or call that takes it over
    words: str = ""  # why it was lost or not reset
    uses: int = 0  # how many sessions or calls have used it so far

    @property
    def detail(self) -> str:
        said = f"{self.child} {self.move.value}"
        if self.by is not None:
            said = f"{said} by {self.by}"
        return f"{said}: {self.words}" if self.words else said


class ApprovalMove(enum.Enum):
    """What happened to a call that a person must allow. After `asked` there is exactly one more move."""

    ASKED = "asked"  # a person or a program was asked
    ALLOWED = "allowed"  # for this call
    ALLOWED_FOR_SESSION = "allowed for the session"  # for this call, and the same call later
    REMEMBERED = "remembered"  # it was allowed for the session before, so nobody was asked
    CONTINUED = "continued"  # it was allowed before, and goes on with input for its server
    DENIED = "denied"  # by a person or a program
    UNANSWERED = "unanswered"  # nobody could be asked, or nobody answered in time
    LEFT = "left"  # the caller has left, or the room or session is closing


class ApprovalDecision(Event, frozen=True, kw_only=True):
    """Somebody was asked to allow a call of a tool, or has decided about it."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: ApprovalMove  # what happened
    tool: str  # the name that was called
    client: str | None  # the session that made the call; None: the room itself
    at_terminal: bool = False  # true: it was answered by `greenroom approve`

    @property
    def detail(self) -> str:
        return f"approval: {self.tool}: {self.move.value}{' at a terminal' if self.at_terminal else ''}"


# ---- calls -----------------------------------------------------------------------------------------------------------
class CallEvent(Event, frozen=True, kw_only=True):
    """The fields of all events of a call that was accepted."""

    kind: ClassVar[Kind] = Kind.CALL

    call: int  # the number of the call in the room
    method: str  # the method of the protocol, such as `tools/call`
    tool: str | None  # the name that was called; None: it is not a call of a tool
    client: str | None  # the session that made the call; None: the room itself
    in_flight: int = 0  # how many calls of its server are sent and not answered
    queued: int = 0  # how many calls of its server are accepted and not sent


class CallAccepted(CallEvent, frozen=True, kw_only=True):
    """A call was accepted for its server. It has not been sent yet."""

    @property
    def detail(self) -> str:
        return "accepted"


class CallSent(CallEvent, frozen=True, kw_only=True):
    """The first byte of the call was written. If the connection is lost, the call may be sent once more."""

    waited: float = 0.0  # since it was accepted

    @property
    def detail(self) -> str:
        return "sent"


class CallEnded(CallEvent, frozen=True, kw_only=True):
    """A call has its one outcome."""

    outcome: str = ""  # `result`, `cancelled`, or the code of the error
    is_error: bool = False  # true: the tool itself reported an error (known for results up to 1 MiB)
    reach: Reach = Reach.NOT_SENT  # how far the call got
    waited: float = 0.0  # from its acceptance until it was last sent; if it was never sent, until its end
    taken: float | None = None  # from when it was last sent until its end; None: it was never sent

    @property
    def detail(self) -> str:
        return "ended"


class CallRefused(Event, frozen=True, kw_only=True):
    """A call ended before it was accepted. It has no number, and does not count as accepted in the drain report."""

    kind: ClassVar[Kind] = Kind.CALL

    method: str  # the method of the protocol, such as `tools/call`
    tool: str | None  # the name that was called; None: it is not a call of a tool
    client: str | None  # the session that made the call; None: the room itself
    outcome: str  # the code of the error, or `cancelled`

    @property
    def detail(self) -> str:
        return f"refused: {self.outcome}"


# ---- the rest --------------------------------------------------------------------------------------------------------
class CatalogueChanged(Event, frozen=True, kw_only=True):
    """The known tools, resources, prompts or skills of a server have changed. Without an address, the room has a new
    configuration, so any list may have changed."""

    kind: ClassVar[Kind] = Kind.CATALOGUE

    @property
    def detail(self) -> str:
        return self.server or ""


class NoteCode(enum.Enum):
    """What a note is about."""

    ODD = "odd"  # a server does something wrong: it sends messages that do not fit
    JUNK = "junk"  # a server sends what is no message: it prints to its stdout
    LATE_ANSWER = "late answer"  # a server answers a request for which nobody waits any more
    INSTALLING = "installing"  # the command of a server installs something
    UNREAD = "unread"  # lists of a server, or updates of its resources, could not be read
    CHANGED = "changed"  # a definition is not as it was first shown
    HIDDEN_CHARACTERS = "hidden characters"  # a definition has characters that a person does not see
    REFUSED_BY_CLIENTS = "refused by clients"  # many clients would refuse a definition
    CONFIGURATION = "configuration"  # which configuration was read, and its problems
    CATALOGUE_FILE = "catalogue file"  # the file of the catalogue cannot be read or written
    STDERR_LOG = "stderr log"  # the stderr of servers cannot be logged any more
    GUARD = "guard"  # the guard, the process that ends the servers if Greenroom is killed
    MEANING = "finding by meaning"  # tools cannot be found by meaning, or can be again
    AUDIT = "audit"  # the audit file cannot be written, or can be again
    TAPE = "tape"  # the place of the tape that is recorded; or it cannot be written any more
    CALLBACK = "callback"  # a callback of your program raised an exception
    READER = "reader"  # a reader of events raised an exception, and gets no more events
    OWNER = "owner"  # an owner did something on the page
    RESET = "reset"  # a server was not reset by its tool, so its sessions or calls get new processes
    NEW_PROCESS = "new process"  # a session has a new process, and the state of the old one is lost
    BUG = "bug"  # an error in Greenroom's own code, with its traceback


class Note(Event, frozen=True, kw_only=True):
    """A line of the log."""

    kind: ClassVar[Kind] = Kind.NOTE

    code: NoteCode  # what it is about
    words: str = ""  # the text of the line

    @property
    def detail(self) -> str:
        return self.words


class Lagged(msgspec.Struct, frozen=True):
    """Replaces the `missed` events that a slow reader of the stream did not get."""

    missed: int


# ---- Where a start is on its way to a connection ---------------------------------------------------------------------
#
# Every actor's start is in exactly one place.


class Place(enum.Enum):
    """What a start waits for, or what it holds. People see the value after "waiting for"."""

    OUT = "out"  # nothing
    BREAKER = "breaker"  # waits for the circuit breaker of its server
    INSTALL_TURN = "its turn to install"  # the same as the next, for a command that may install something
    TURN = "its turn for discovery"  # waits for its turn: it is started for its lists
    SLOT = "slot"  # waits for a slot of the pool
    PERMIT = "permit"  # has a slot, and waits for a start permit
    STARTING = "starting"  # has a slot and a permit: it connects, or a failed attempt is being cleaned up
    OPENING = "opening"  # connects to an HTTP API, which needs no slot and no permit
    LIVE = "live"  # has a slot: it is connected
    LEAVING = "leaving"  # has a slot until its whole process tree has ended


WAITING: Final = frozenset({Place.BREAKER, Place.INSTALL_TURN, Place.TURN, Place.SLOT, Place.PERMIT})
TURNS: Final = frozenset({Place.INSTALL_TURN, Place.TURN})
HOLDS_SLOT: Final = frozenset({Place.PERMIT, Place.STARTING, Place.LIVE, Place.LEAVING})
