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
    """The kinds that a reader of the stream can choose from; each class of events has one kind."""

    TRANSITION = "transition"
    STEP = "step"  # a connecting server reached the next step
    START = "start"  # a start came to another place on its way to a connection
    DECISION = "decision"  # a policy decided: circuit breaker, restart, pool
    CALL = "call"
    CATALOGUE = "catalogue"  # what is known of a server changed
    NOTE = "note"  # something worth a log line: junk on stdout, a late answer, a bug's traceback


class Event(msgspec.Struct, frozen=True):
    """The fields of all events. `address` is None if the event concerns the room; `incarnation` is 0 if it concerns
    none."""

    kind: ClassVar[Kind]

    seq: int  # its number in the room, without gaps
    at: float  # the room's monotonic time
    address: Address | None = None  # the server, and its scope: shared, a session or a call
    incarnation: int = 0  # which life of the server it belongs to

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
    """A server went from one state of its lifecycle to the next. When it is ending, the event says why."""

    kind: ClassVar[Kind] = Kind.TRANSITION

    before: State  # where it was
    after: State  # where it is now
    cause: Cause | None = None  # why it ends
    reason: Reason | None = None  # the same, more exactly
    seconds: float | None = None  # of the reason: how long there was no call
    words: str = ""  # what the server or the system said
    in_flight: int = 0  # its calls that are sent and not answered
    queued: int = 0  # its calls that are accepted and not sent

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

    step: ConnectStep  # which one

    @property
    def detail(self) -> str:
        return self.step.value


class StartMoved(Event, frozen=True, kw_only=True):
    """A start has come to another place on its way to a connection. The place says what the start waits for, or what it
    holds."""

    kind: ClassVar[Kind] = Kind.START

    place: Place  # where it is now

    @property
    def detail(self) -> str:
        return self.place.value


# ---- decisions -------------------------------------------------------------------------------------------------------
class BreakerMove(enum.Enum):
    """What happened to a server's circuit breaker."""

    FAILED = "failed"  # one more connect failure, or death
    SILENT = "silent"  # one more call was not answered, and nothing else was heard
    QUARANTINED = "quarantined"  # restarted too often
    HALF_OPEN = "half-open"  # one probe passes
    BY_NAME = "connected by name"  # the next call is the probe
    PROBE_LEFT = "probe left"  # the next call is the probe
    ANSWERED = "answered"  # reset
    SESSION_CONNECTED = "session connected"  # reset
    REDEFINED = "redefined"  # reset
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
    """The circuit breaker of a server or a session is open (it refuses), half-open (one probe passes), or was reset and
    is closed (all pass). `cause`: the cause of the ending behind it."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: BreakerMove  # what happened
    failures: int = 0  # in a row
    open_for: float = 0.0  # seconds from now on for which it refuses; 0: it refuses nothing
    tripped: bool = False  # only an answer resets it
    cause: Cause | None = None  # of the ending behind it
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
    """What happens after an ending. `then` is one of idle, connect, down, gone."""

    kind: ClassVar[Kind] = Kind.DECISION

    cause: Cause  # why it ended
    then: str  # idle, connect, down or gone

    @property
    def detail(self) -> str:
        return f"{self.cause.value}: then {self.then}"


class Eviction(Event, frozen=True, kw_only=True):
    """The pool took the slot of an idle server."""

    kind: ClassVar[Kind] = Kind.DECISION
    cause: ClassVar[Cause] = Cause.EVICTED

    reason: Reason  # why

    @property
    def detail(self) -> str:
        return f"pool: evicted {words_of(self.reason)}"


class WarmMove(enum.Enum):
    """What happened to a child that was started ahead."""

    STARTED = "started"  # it runs, and nobody has spoken to it
    TAKEN = "taken over"  # the next session or call has it
    RETURNED = "returned"  # whoever was to have it left before
    RESETTING = "being reset"  # it was given back, and the room calls its server's own tool
    RESET = "reset"  # that tool has answered: it is there for the next one
    NOT_RESET = "not reset"  # it is being stopped in place of a reset
    LOST = "lost"  # it ended by itself, or could not be started
    ENDED = "ended"  # it is being stopped: it makes room, or is not needed any more


class WarmChildMoved(Event, frozen=True, kw_only=True):
    """A child of a server was started before anybody needed it (`warm`), was taken over, or has ended."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: WarmMove  # what happened
    child: str  # its name, until somebody takes it over
    warm: int  # how many the server has now that nobody has taken over
    by: str | None = None  # the scope that takes it over
    words: str = ""  # why it was lost, or not reset
    uses: int = 0  # how many sessions or calls have had it so far

    @property
    def detail(self) -> str:
        said = f"{self.child} {self.move.value}"
        if self.by is not None:
            said = f"{said} by {self.by}"
        return f"{said}: {self.words}" if self.words else said


class ApprovalMove(enum.Enum):
    """What happened to a call that somebody has to allow. A call that somebody was asked about has one more."""

    ASKED = "asked"  # somebody
    ALLOWED = "allowed"  # this once
    ALLOWED_FOR_SESSION = "allowed for the session"
    REMEMBERED = "remembered"  # allowed before, for the session: nobody was asked
    CONTINUED = "continued"  # the same call, with input that its server asked for: nobody was asked again
    DENIED = "denied"  # by a person or a program
    UNANSWERED = "unanswered"  # nobody can be asked, or did not answer in time, or did not want to
    LEFT = "left"  # its caller left, or the room or the session is closing


class ApprovalDecision(Event, frozen=True, kw_only=True):
    """Somebody was asked about a call of a tool, or decided about it."""

    kind: ClassVar[Kind] = Kind.DECISION

    move: ApprovalMove  # what happened
    tool: str  # the name it was called by
    client: str | None  # the session of the call; None: the room's own
    at_terminal: bool = False  # answered by `greenroom approve`

    @property
    def detail(self) -> str:
        return f"approval: {self.tool}: {self.move.value}{' at a terminal' if self.at_terminal else ''}"


# ---- calls -----------------------------------------------------------------------------------------------------------
class CallEvent(Event, frozen=True, kw_only=True):
    """Something happened to one call. `call` is its number in the room."""

    kind: ClassVar[Kind] = Kind.CALL

    call: int  # its number in the room
    method: str  # of the protocol: tools/call, …
    tool: str | None  # the name it was called by; None: it is not a call of a tool
    client: str | None  # the session it came from; None: the room's own
    in_flight: int = 0  # its server's calls that are sent and not answered
    queued: int = 0  # its server's calls that are accepted and not sent


class CallAccepted(CallEvent, frozen=True, kw_only=True):
    """A call has a place with its server. It has not been sent."""

    @property
    def detail(self) -> str:
        return "accepted"


class CallSent(CallEvent, frozen=True, kw_only=True):
    """The server accepted the first byte of the call. After a lost connection a call may be sent once more."""

    waited: float = 0.0  # seconds since it was accepted

    @property
    def detail(self) -> str:
        return "sent"


class CallEnded(CallEvent, frozen=True, kw_only=True):
    """A call has its one outcome."""

    outcome: str = ""  # result, an error's code, or cancelled
    is_error: bool = False  # it is a result that the tool itself calls an error (results up to 1 MiB)
    reach: Reach = Reach.NOT_SENT  # how far it got
    waited: float = 0.0  # seconds until it was sent (last), or until its end if it never was
    taken: float | None = None  # seconds from then to its end

    @property
    def detail(self) -> str:
        return "ended"


class CallRefused(Event, frozen=True, kw_only=True):
    """A call ended before it was accepted. It has no number, and is no part of the drain report's sum."""

    kind: ClassVar[Kind] = Kind.CALL

    method: str  # of the protocol: tools/call, …
    tool: str | None  # the name it was called by; None: it is not a call of a tool
    client: str | None  # the session it came from; None: the room's own
    outcome: str  # an error's code, or cancelled

    @property
    def detail(self) -> str:
        return f"refused: {self.outcome}"


# ---- the rest --------------------------------------------------------------------------------------------------------
class CatalogueChanged(Event, frozen=True, kw_only=True):
    """The known tools, resources or prompts of a server have changed. Without an address: the room has another
    configuration, which may show other servers, or other parts of what they have."""

    kind: ClassVar[Kind] = Kind.CATALOGUE

    @property
    def detail(self) -> str:
        return self.server or ""


class NoteCode(enum.Enum):
    """What a note is about."""

    ODD = "odd"  # the server does what it should not: junk, late answers, messages that do not fit
    INSTALLING = "installing"  # the command of a server is installing it
    UNREAD = "unread"  # some of its data could not be read: its lists, updates of its resources
    CHANGED = "changed"  # a tool is not as it was first shown
    HIDDEN_CHARACTERS = "hidden characters"  # a definition has some that nobody sees
    REFUSED_BY_CLIENTS = "refused by clients"  # a definition that many clients would not take
    CONFIGURATION = "configuration"  # what was read, and what is wrong with it
    CATALOGUE_FILE = "catalogue file"  # it cannot be read or written
    STDERR_LOG = "stderr log"  # what servers write to stderr cannot be logged any more
    GUARD = "guard"  # of the process that ends our children when we are killed
    MEANING = "finding by meaning"  # tools are not found by meaning, or are again
    AUDIT = "audit"  # the audit file cannot be written, or can be again
    TAPE = "tape"  # where the tape is that is recorded, or that it cannot be written any more
    CALLBACK = "callback"  # a callback of the embedding program raised
    READER = "reader"  # a reader of events raised; it gets no more events
    OWNER = "owner"  # what its owner has done on the page
    RESET = "reset"  # the tool that is to reset a server has not: its sessions or calls get new processes
    NEW_PROCESS = "new process"  # a session has another one than before; what that one kept is gone
    BUG = "bug"  # an error in our own code, with its traceback


class Note(Event, frozen=True, kw_only=True):
    """Something worth a line of the log."""

    kind: ClassVar[Kind] = Kind.NOTE

    code: NoteCode  # what it is about
    words: str = ""  # the line

    @property
    def detail(self) -> str:
        return self.words


class Lagged(msgspec.Struct, frozen=True):
    """Takes the place of the `missed` events that were dropped from the stream of a slow subscriber."""

    missed: int


# ---- Where a start is on its way to a connection ---------------------------------------------------------------------
#
# Every actor's start is in exactly one place.


class Place(enum.Enum):
    """The values of waiting places are shown to people after "waiting for"."""

    OUT = "out"  # it waits for nothing and holds nothing
    BREAKER = "breaker"  # waits for its server's circuit breaker
    INSTALL_TURN = "its turn to install"  # only for discovery, and may have to be installed first
    TURN = "its turn for discovery"  # only for discovery
    SLOT = "slot"  # waits for a slot of the pool
    PERMIT = "permit"  # has its slot, waits for a start permit
    STARTING = "starting"  # has both: it connects, or a failed attempt is being cleaned up
    OPENING = "opening"  # connects to an HTTP API, for which there is neither slot nor permit
    LIVE = "live"  # has its slot: it is connected
    LEAVING = "leaving"  # has its slot until nothing of its process tree is left


WAITING: Final = frozenset({Place.BREAKER, Place.INSTALL_TURN, Place.TURN, Place.SLOT, Place.PERMIT})
TURNS: Final = frozenset({Place.INSTALL_TURN, Place.TURN})
HOLDS_SLOT: Final = frozenset({Place.PERMIT, Place.STARTING, Place.LIVE, Place.LEAVING})
