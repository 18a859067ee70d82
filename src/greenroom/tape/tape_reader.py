"""Reads a tape, and trusts nothing in it.

A tape may be cut off (its process was killed), and somebody may have written it to do harm: so lines, their number and
their depth are bounded. Each line is checked here, once: its times go forward, and what is read of it has the form that
a room would have written, or the line is refused with its number and the field. So whatever shows or replays a tape
need not ask. Rejected: to check whether the transitions follow from each other. A tape that tells a wrong story is told
as it stands, and a stranger could make the story right.

What is read of a call is kept: its parameters are what a replay searches, and of the memory that it takes its contents
are a third. Rejected: to keep the place of each line in the file instead. It would save that third, and whoever changes
the file while it is used would change what was checked.

What is large is only taken from the folder beside the tape, under a name that is a hash, and only if it has that hash.
A last line without an end is left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import msgspec

from ..config.argument_checks import path_of
from ..protocol.address import SHARED
from ..protocol.errors import UsageError
from ..protocol.json_values import is_object, object_or_empty
from ..protocol.near_names import meant
from .tape_lines import (
    LARGEST,
    LONGEST,
    MOST_LINES,
    SUFFIX,
    VERSION,
    AnyLine,
    CallLine,
    ConfigLine,
    EndLine,
    EventLine,
    HeadLine,
    LargeResult,
    ListingLine,
    NoticeLine,
    decoded,
)

LATEST: Final = 253_402_300_799  # seconds since 1970: the end of the year 9999
_PIECE: Final = 1 << 18  # bytes that are read in a millisecond at most
_ALIKE: Final = ("server", "scope", "method", "outcome", "session", "tool")  # in many calls
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class BadTape(UsageError):
    """The file is no tape that can be used."""

    code = "bad_tape"


@attrs.frozen(eq=False)
class Tape:
    """A tape that was read. Lines of each kind are in the order of the file; calls in the order in which they were
    sent, and those that were not sent after them."""

    path: Path
    head: HeadLine
    configs: tuple[ConfigLine, ...]  # that took the place of the head's
    calls: tuple[CallLine, ...]
    listed: tuple[ListingLine, ...]
    notices: tuple[NoticeLine, ...]
    events: tuple[EventLine, ...]
    is_cut: bool = False  # its last line is not whole
    end: EndLine | None = None  # None: nobody ended the recording, or not so far
    before: tuple[EventLine, ...] = ()  # of a part: what happened before it began

    @property
    def servers(self) -> list[str]:
        """Every server that was configured or is on the tape. Raises `BadTape` for a configuration of another form."""
        configs = (line.config for line in (self.head, *self.configs))
        named = [name for config in configs for name in _object(self, config, "mcpServers")]
        return list(dict.fromkeys([*named, *(line.server for line in (*self.listed, *self.calls))]))

    def calls_of(self, server: str) -> Sequence[CallLine]:
        """Its calls, in the order in which they were sent."""
        return self._calls.get(server, ())

    def listed_of(self, server: str) -> Sequence[ListingLine]:
        """What it has listed."""
        return self._listed.get(server, ())

    @cached_property
    def _calls(self) -> Mapping[str, Sequence[CallLine]]:
        return _by_server(self.calls)

    @cached_property
    def _listed(self) -> Mapping[str, Sequence[ListingLine]]:
        return _by_server(self.listed)

    def result_of(self, call: CallLine) -> bytes:
        """The result of a call, byte for byte as it was recorded. Raises `BadTape`."""
        return b"".join(self.pieces_of(call))

    def pieces_of(self, call: CallLine) -> Iterator[bytes]:
        """The result of a call in pieces. A result that is beside the tape is known to be right after the last
        piece."""
        if call.large is not None:
            yield from self._large(call.large)
        else:
            yield bytes(call.result)

    def _large(self, large: LargeResult) -> Iterator[bytes]:
        path = self._place_of(large)
        seen, left = hashlib.sha256(), min(large.bytes, LARGEST) + 1
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                while left > 0 and (piece := file.read(min(left, _PIECE))):
                    seen.update(piece)
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise BadTape(f"{path} cannot be read: {error.strerror}. {self._whole_folder}") from None
        if seen.hexdigest() != path.name:
            raise BadTape(f"{path} is not what was recorded: it has another hash. {self._whole_folder}")

    @property
    def missing(self) -> int:
        """How many large results are not there, or have another size: one look at each, and none into it."""
        sizes = {call.large.sha256: call.large for call in self.calls if call.large is not None}
        return sum(not self._is_there(large) for large in sizes.values())

    def _is_there(self, large: LargeResult) -> bool:
        try:
            found = os.lstat(self._place_of(large))
        except (BadTape, OSError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == large.bytes

    def _place_of(self, large: LargeResult) -> Path:
        if not _HASH.fullmatch(large.sha256):
            raise BadTape(f"{self.path}: {large.sha256!r} is not a hash of a large result.")
        return self.beside / large.sha256

    @property
    def beside(self) -> Path:
        """The folder of its large results."""
        return self.path.with_name(self.path.name + ".d")

    @property
    def _whole_folder(self) -> str:
        name = self.beside.name
        return f"Get the folder {name} from whoever made the tape, and put it beside the tape."


OfServer = TypeVar("OfServer", CallLine, ListingLine)


def _by_server(lines: Iterable[OfServer]) -> Mapping[str, Sequence[OfServer]]:
    found: defaultdict[str, list[OfServer]] = defaultdict(list)
    for line in lines:
        found[line.server].append(line)
    return found


def read_tape(place: str | os.PathLike[str]) -> Tape:
    """The tape in this file. Raises `BadTape`; `UsageError` for what is no path."""
    path = Path(os.path.abspath(path_of(place, "tape")))
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise BadTape(f"{path} is over {LARGEST:,} bytes.")
            return _read(path, iter(lambda: file.readline(LONGEST + 1), b""))
    except FileNotFoundError:
        raise BadTape(f"There is no tape {place}. To record one: greenroom serve --record FOLDER") from None
    except IsADirectoryError:
        newest = max((each.name for each in path.glob(f"*{SUFFIX}")), default=None)
        which = "There is none in it" if newest is None else f"The newest in it is {path / newest}"
        raise BadTape(f"{path} is a folder. Name a tape. {which}.") from None
    except OSError as error:
        raise BadTape(f"The tape {path} cannot be read: {error.strerror}.") from None


def _read(path: Path, lines: Iterator[bytes]) -> Tape:
    found: dict[type[Any], list[Any]] = {
        HeadLine: [],
        ConfigLine: [],
        ListingLine: [],
        CallLine: [],
        NoticeLine: [],
        EventLine: [],
        EndLine: [],
    }
    is_cut = False
    texts: dict[Any, Any] = {}  # of each, one is enough,
    nothing: dict[str, Any] = {}  # and of this
    latest = 0.0  # time; a call has its line when it ends, or when what is large of it is written
    shorter: dict[int, int] = {}  # calls whose whole line may follow, by number
    for number, raw in enumerate(lines, 1):
        if number == 1 and not _begins_a_tape(raw):
            raise _no_tape(path, raw)
        if number > MOST_LINES or len(raw) > LONGEST:
            raise BadTape(f"{path}, line {number}: it is over the bound of a tape.")
        if not raw.endswith(b"\n"):
            is_cut = True
            break
        line = _line(path, number, raw)
        if isinstance(line, HeadLine) != (number == 1):
            raise BadTape(f"{path}, line {number}: it is not a tape of Greenroom.")
        if isinstance(line, CallLine):
            if wrong := _wrong_with(line):
                raise BadTape(f"{path}, line {number}: {wrong}.")
            for field in _ALIKE:
                text = getattr(line, field)
                setattr(line, field, texts.setdefault(text, text))
            line.params, line.result = line.params.copy(), line.result.copy()  # they keep all of the line
            if not line.left_out:
                line.left_out = nothing
            if (at := shorter.pop(line.n, None)) is not None:
                found[CallLine][at] = line
                continue
            if line.left_out:
                shorter[line.n] = len(found[CallLine])
        elif isinstance(line, HeadLine | ConfigLine):
            _check(path, number, line)
        if isinstance(line, ConfigLine | ListingLine | NoticeLine | EventLine):
            if line.t < latest:
                raise BadTape(
                    f"{path}, line {number}: its time is {line.t}, and was {latest} before - at `$.t`."
                )
            latest = line.t
        found[type(line)].append(line)
    if not found[HeadLine]:
        raise _no_tape(path)
    if len({call.n for call in found[CallLine]}) < len(found[CallLine]):
        twice, times = Counter(call.n for call in found[CallLine]).most_common(1)[0]
        raise BadTape(f"{path}: call #{twice} is on it {times} times.")
    head: HeadLine = found[HeadLine][0]
    calls = sorted(found[CallLine], key=lambda call: call.order or MOST_LINES + call.n)
    return Tape(
        path,
        head,
        tuple(found[ConfigLine]),
        tuple(calls),
        tuple(found[ListingLine]),
        tuple(found[NoticeLine]),
        tuple(found[EventLine]),
        is_cut,
        found[EndLine][-1] if found[EndLine] else None,
    )


def _begins_a_tape(raw: bytes) -> bool:
    """Whether this is a first line of a tape, or was one: what is wrong with that is told of the line."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _members.decode(raw).get("k") == _HEAD_TAG
    return raw.startswith(b'{"k":"tape"')


def _no_tape(path: Path, raw: bytes = b"") -> BadTape:
    """The error for a file of another kind, which says of which where that can be seen."""
    what = ""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = _members.decode(raw)
        what = next((told for names, told in _OTHERS if members.keys() >= names), "")
    record = "To record a tape: greenroom serve --record FOLDER"
    return BadTape(f"{path} is not a tape of Greenroom.{what} {record}")


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_HEAD_TAG: Final = msgspec.Raw(b'"tape"')
# Members of the first line of other files of ours, and what is said of such a file.
_OTHERS: Final[Sequence[tuple[Set[str], str]]] = (
    ({"k"}, " Its first lines are missing: a tape begins with what it is of."),
    ({"prev", "hash", "seq"}, " It is an audit file, which has no answers; greenroom audit show reads it."),
    ({"kind", "seq"}, " It is a log of events, which has no answers."),
    ({"mcpServers"}, " It is a configuration."),
)


def _wrong_with(call: CallLine) -> str:
    if call.outcome == "result" and not (call.result or call.large or "result" in call.left_out):
        return "it is a call that has a result, without the result - at `$.result`"
    sent = call.accepted if call.sent is None else call.sent
    if sent < call.accepted:
        return f"it is a call that was sent before it was accepted, at {call.accepted} - at `$.sent`"
    if call.ended < sent:
        return f"it is a call that ended before {sent}, when it was sent or accepted - at `$.ended`"
    return ""


def _check(path: Path, number: int, line: HeadLine | ConfigLine) -> None:
    if isinstance(line, HeadLine):
        if line.v != VERSION:
            raise BadTape(
                f"{path} is a tape of version {line.v}, and this Greenroom reads version {VERSION}."
            )
        if not 0 <= line.at <= LATEST:
            raise BadTape(f"{path}, line 1: it has no time at which it began.")
    if not isinstance(line.config.get("mcpServers", {}), dict):
        raise BadTape(f"{path}, line {number}: its configuration has another form.")


def _line(path: Path, number: int, raw: bytes) -> AnyLine:
    try:
        try:
            return decoded(raw)
        except RecursionError:
            # It nests nearly as deeply as Python reads. It was read before, where the stack was not as deep as here.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(decoded, raw).result()
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadTape(f"{path}, line {number}: {error}.") from None


def check_names(names: Collection[str], known: Iterable[str], what: str) -> None:
    """Raises `UsageError` for a name that is not on the tape. `what`: what the names are of."""
    there = dict.fromkeys(known)
    for name in names:
        if name not in there:
            raise UsageError(f'There is no {what} "{name}" on the tape.{meant(name, there)}')


def reading_tools(listed: Collection[ListingLine]) -> set[str]:
    """The tools that only read, as all lists say."""
    tools = [tool for line in listed for tool in line.tools or ()]
    return {str(tool.get("name")) for tool in tools if only_reads(tool)} - {
        str(tool.get("name")) for tool in tools if not only_reads(tool)
    }


def only_reads(tool: Mapping[str, Any]) -> bool:
    """Whether a definition says that its tool changes nothing (`readOnlyHint`)."""
    return object_or_empty(tool.get("annotations")).get("readOnlyHint") is True


# What of a configuration on a tape counts: how tools are named and shown, who must allow a call, who shares a server,
# what is left out of results, how long is waited and what follows when a server goes wrong. Nothing that starts, asks,
# listens or writes; whoever made the tape would choose what.
_REACTIONS: Final = ("restartPolicy", "connectTimeoutMs", "requestTimeoutMs")
_OF_A_SERVER: Final = (
    *_REACTIONS,
    "toolPrefix", "includeTools", "excludeTools", "directTools", "exposeResources", "toolOverrides", "approve", "scrub",
    "disabled", "isolation",
)  # fmt: skip
_SETTINGS: Final = (
    *_REACTIONS,
    "requestTotalTimeoutMs", "restartBackoff", "backoffJitter", "failureBackoff", "failureThreshold", "cooldownMs",
    "stableAfterMs", "restartIntensity", "restartPeriodMs",
    "toolPrefix", "nameLimit", "clientPrefix", "directTools", "toolOverrides", "approve", "approvalTimeoutMs", "scrub",
    "isolation",
)  # fmt: skip


def config_of(
    tape: Tape, call_timeout: float | None = None, *, per_session: bool = False
) -> Mapping[str, Any]:
    """The configuration of a room over the tape: the last one on it, and servers that only an earlier one has.
    `call_timeout`: seconds for each call, instead of what is on the tape. `per_session`: each session has servers of
    its own, however many there are. Raises `BadTape` for one of another form."""
    configs = [line.config for line in (tape.head, *tape.configs)]
    config = configs[-1]
    entries = {name: each for one in configs for name, each in _object(tape, one, "mcpServers").items()}
    settings = _object(tape, config, "settings")
    made = {call.server for call in tape.calls}
    shared = {call.server for call in tape.calls if call.scope == SHARED}
    servers: dict[str, Any] = {}
    for name in tape.servers:
        servers[name] = {"command": "tape", **_only(_object(tape, entries, name), _OF_A_SERVER)}
        if name in made:
            servers[name]["disabled"] = False  # it was in service when it was called
        if name in shared and "isolation" in settings:
            servers[name]["isolation"] = "persistent"  # the settings do not hold for an HTTP API
    profiles = {"profiles": config["profiles"]} if "profiles" in config else {}
    kept = _only(settings, _SETTINGS)
    if call_timeout is not None:
        kept["requestTimeoutMs"] = max(1, round(call_timeout * 1000))
        for entry in servers.values():
            entry.pop("requestTimeoutMs", None)
    if per_session:
        kept["maxSessionConnections"] = MOST_LINES  # nothing runs
        for entry in servers.values():
            entry["isolation"] = "per_session"
    return {"mcpServers": servers, "settings": kept, **profiles}


def _object(tape: Tape, where: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = where.get(name, {})
    if not is_object(found):
        raise BadTape(f"{tape.path}: a configuration on it has another form.")
    return found


def _only(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
