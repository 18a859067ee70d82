"""The lines of a tape: a JSON object each, with its kind in `k`.

The first line is the head: the version of this form, when it began, with what, and the configuration without secrets.
Then, in the order in which they ended: what servers listed (`listed`), calls with all that belongs to them (`call`),
notifications (`notice`), what happened to servers (`event`, as in the log of events), and each configuration that took
the place of the one before (`config`). The last line says that the recording was ended (`end`): without it, nobody
knows what came after. Times are in seconds since
the head's `at`. `order` counts the calls by when they were sent, which is what a server saw.

A result over `LARGE` bytes is not in its line: the line has its hash, and the folder beside the tape (its name and
`.d`) a file of that name.

Rejected: the messages as they came over the wire. They differ by transport and version, say nothing of calls that never
reached a server, and a fake server has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypedDict

import msgspec
from msgspec.structs import asdict

from ..protocol.bounds import LARGE_MESSAGE
from ..protocol.errors import Reach
from ..protocol.events import Place
from ..protocol.jsonrpc.encoding import decode, decode_parts, encode
from ..protocol.lifecycle import State
from ..protocol.safe_text import mend_escapes

VERSION: Final = 1
SUFFIX: Final = ".tape"
LARGE: Final = 1 << 16
OPEN: Final = "open"  # in the place of an outcome: the call had not ended
NOTHING: Final = msgspec.Raw()
EMPTY: Final = msgspec.Raw(b"{}")
LONGEST: Final = 16 << 20  # bytes of a line
MOST_LINES: Final = 1 << 20  # of a tape: read, each call takes three quarters of a kilobyte of memory
LARGEST: Final = 1 << 30  # bytes of a tape
# Seconds since the tape began. Beyond thirty years no tape is read: no clock would show it.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]  # a browser counts no further
_Duration = Annotated[float, msgspec.Meta(ge=0)]
_State = Annotated[str, msgspec.Meta(pattern=f"^(?:{'|'.join(state.value for state in State)})$")]


class TapeLine(msgspec.Struct, tag_field="k", omit_defaults=True):
    """What all lines have in common."""


class Schedule(msgspec.Struct, omit_defaults=True):
    """Which run of an exploration it was, and within which bounds that was found: see `testing.exploration`."""

    run: str
    deviations: int
    choices: int
    cancel: list[str] = []


class HeadLine(TapeLine, tag="tape"):
    v: int
    at: float  # seconds since 1970
    greenroom: str
    python: str
    config: dict[str, Any]
    is_part: bool = False  # it has the last minutes of a room, and begins somewhere in the middle
    schedule: Schedule | None = None  # of a run of `explore`


class ConfigLine(TapeLine, tag="config"):
    """Another configuration, without secrets."""

    t: Seconds
    config: dict[str, Any]


class ListingLine(TapeLine, tag="listed"):
    """What a server said of itself, and what it has. A list is None if it has none of the kind. `offers`: the
    capabilities of its client that it was told, by which some servers decide what they have."""

    t: Seconds
    server: str
    scope: str
    incarnation: Number
    version: str
    capabilities: dict[str, Any]
    info: dict[str, Any]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    resources: list[dict[str, Any]] | None = None
    templates: list[dict[str, Any]] | None = None
    prompts: list[dict[str, Any]] | None = None
    skills: list[dict[str, Any]] | None = None
    hashes: dict[str, str] = {}
    offers: list[str] = []


class LargeResult(msgspec.Struct):
    """A result that is beside the tape."""

    sha256: str
    bytes: Number


class CallFailure(msgspec.Struct, omit_defaults=True):
    """How a call failed. `rpc`: the server's own error, if it was one."""

    code: str
    message: str
    rpc: dict[str, Any] | None = None


class ClientQuestion(msgspec.Struct, omit_defaults=True):
    """What a server asked its client during a call. Without an answer, the client refused: `refusal` says how."""

    t: Seconds
    method: str
    params: dict[str, Any]
    answer: dict[str, Any] | None = None
    refusal: dict[str, Any] | None = None


class CallLine(TapeLine, tag="call", gc=False):
    """A call that has ended. `sent` is None if it was not. `outcome`: `result`, `cancelled`, or an error's code; on a
    tape of the last minutes also `open`, for one that had not ended when the tape was made."""

    n: Number
    order: Number
    accepted: Seconds
    ended: Seconds
    server: str
    scope: str
    incarnation: Number
    method: str
    params: msgspec.Raw
    outcome: str
    reach: Reach
    sent: Seconds | None = None
    session: str | None = None
    tool: str | None = None  # the name it was called by
    result: msgspec.Raw = NOTHING  # `NOTHING` if there is none, or if it is large
    large: LargeResult | None = None
    error: CallFailure | None = None
    progress: Sequence[tuple[Seconds, dict[str, Any]]] = ()
    asked: Sequence[ClientQuestion] = ()
    left_out: dict[str, Number] = {}  # what was too large for the tape, in bytes: params, result
    hidden: bool = False  # something was cut out of its params. (They may have stars of their own.)

    @property
    def waited(self) -> float:
        """How long it waited until it was sent; if it was not, until it ended."""
        return (self.ended if self.sent is None else self.sent) - self.accepted

    @property
    def said(self) -> Any:
        """Its parameters; `{}` for those that nest deeper, or have a number that is larger, than Python reads."""
        try:
            return value_in(self.params)
        except (RecursionError, msgspec.DecodeError):
            return {}


class NoticeLine(TapeLine, tag="notice"):
    """A notification of a server."""

    t: Seconds
    server: str
    scope: str
    method: str
    params: dict[str, Any] | None = None
    left_out: Number = 0  # bytes of params that are too large


# Of an event, what is read from a tape. There may be more, as in `serve --events`. See `_in_todays_words` of `shutFor`.
EventRecord = TypedDict(
    "EventRecord",
    {
        "seq": Number, "kind": str, "event": str, "server": str, "scope": str, "incarnation": Number, "from": _State,
        "to": _State, "cause": str, "reason": str, "detail": str, "place": str, "move": str, "then": str,
        "inFlight": Number, "queued": Number, "failures": Number, "code": str,
        "openFor": _Duration, "shutFor": _Duration,
    },
    total=False,
)  # fmt: skip


class EventLine(TapeLine, tag="event"):
    """An event of the room."""

    t: Seconds
    event: EventRecord


class EndLine(TapeLine, tag="end"):
    """The recording was ended. `why`: it ended before its room did."""

    why: str = ""


AnyLine = HeadLine | ConfigLine | ListingLine | CallLine | NoticeLine | EventLine | EndLine
_decoder: Final = msgspec.json.Decoder(AnyLine)
_encoder: Final = msgspec.json.Encoder()


_value: Final = msgspec.json.Decoder()


def encoded(line: TapeLine) -> bytes:
    try:
        return _encoder.encode(line) + b"\n"
    except UnicodeEncodeError:  # half of a character, in a name or in an answer
        parts = {name: _mended(each) for name, each in asdict(line).items() if each is not NOTHING}
        return _encoder.encode({"k": line.__struct_config__.tag, **parts}) + b"\n"


def _mended(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(encode(msgspec.to_builtins(value)))


def decoded(line: bytes) -> AnyLine:
    """Raises `msgspec.DecodeError`, `RecursionError`. Half a character is mended wherever it is, but in a result, which
    stays byte for byte as it was. (Of a large line it is mended, too: so it was as it came.)"""
    try:
        return _in_todays_words(_decoder.decode(line))
    except msgspec.DecodeError:
        mended = mend_escapes(line)
        if mended is None:
            raise
    found = _in_todays_words(_decoder.decode(mended))
    if isinstance(found, CallLine) and len(line) < LARGE_MESSAGE:
        found.result = decode_parts(line).get("result", NOTHING)
    return found


def _in_todays_words(line: AnyLine) -> AnyLine:
    """The first tapes call the circuit breaker `gate`, and how long it is open `shutFor`."""
    if isinstance(line, EventLine):
        event = line.event
        if event.get("event") == "GateDecision":
            event["event"] = "BreakerDecision"
        if event.get("place") == "gate":
            event["place"] = event["detail"] = Place.BREAKER.value
        if "shutFor" in event:
            event["openFor"] = event.pop("shutFor")
    return line


def value_in(raw: bytes | msgspec.Raw) -> Any:
    """The value of params or of a result. Raises as `decoded` does."""
    return decode(_value, raw)
