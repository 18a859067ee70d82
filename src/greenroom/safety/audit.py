"""The lines of an audit file, and the chain that they make.

A line is one JSON object: what was asked for, by whom, and what came of it. It ends with `prev`, the hash of the line
before, and `hash`, the SHA-256 of the line's own text without that member. So a line that is edited no longer has its
hash, and a line that is taken out, moved or put in no longer follows the one before it. `seq` counts from 1. The hash
is of the bytes as they stand in the file and not of a canonical form: then not even a space can be changed, and nobody
has to agree with us on how a number is written.

There is no key. Whoever can write the whole file can make the whole chain anew, and a chain that lost its end is a
chain still. Both show only to somebody who has noted a hash elsewhere. (A key would have to lie on the same machine, in
reach of the same user, so it would promise more than it keeps.)

The kinds of lines: `opened` (a gateway begins to write), `call`, `act` (what an owner did on the page), `gap` (lines
that could not be written, with their number), `closed` (the gateway ended in order; without it, it was killed, or the
end of the file is missing).

A gateway that is killed, or a full disk, may leave a part of a line at the end. It is not removed, because it is
evidence. The next `opened` line stands on the last whole line, and has the length and the hash of the part in `torn`.
So the part belongs to the chain as well, and is a remark and no fault.

Arguments are never written, only their digest: SHA-256 of their canonical JSON (keys sorted, no spaces, UTF-8), which
anybody can make again with Python's `json`. What is longer than `CANONICAL` bytes is digested as its caller wrote it,
because decoding it would hold everybody up; so is what has one key twice, because it has no such form. Of more than
`DIGESTED` bytes only the length is told.

Pure. `audit_file` writes such a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ..protocol.json_values import object_or_empty
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import counted, one_line, seen_in_json

GENESIS: Final = "0" * 64  # stands for the hash of the line before the first
VERSION: Final = 1
LONGEST_LINE: Final = 16_384  # bytes
LONGEST_TEXT: Final = 512  # characters of a name that somebody else has chosen
CANONICAL: Final = 1 << 16  # bytes of arguments that are digested in their canonical form
DIGESTED: Final = 1 << 23  # bytes of arguments that are digested at all: it takes up to 20 ms
AUDITED: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
OPENED, CALL, ACT, GAP, CLOSED = "opened", "call", "act", "gap", "closed"
_HASH: Final = lazy_pattern(rb',"hash":"([0-9a-f]{64})"\}')
_HASH_SIZE: Final = len(b',"hash":""}') + 64
_BEGINNING: Final = b'{"v":1,"seq":'


# ---- writing ---------------------------------------------------------------------------------------------------------
def line_of(record: Mapping[str, Any], seq: int, prev: str) -> tuple[bytes, str]:
    """The line number `seq`, which follows the line with the hash `prev`; and its own hash."""
    members = {"v": VERSION, "seq": seq, **record, "prev": prev}
    body = seen_in_json(json.dumps(members, separators=(",", ":"), ensure_ascii=False)).encode(
        errors="replace"
    )
    own = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body[:-1], own.encode()), own


def digest_of(arguments: bytes) -> tuple[str | None, int]:
    """The digest of arguments, given as JSON, and their size in bytes. No arguments are `{}`. The digest is None when
    they are too long for one."""
    text = arguments if arguments and arguments != b"null" else b"{}"
    if len(text) > DIGESTED:
        return None, len(text)
    if len(text) <= CANONICAL:
        try:
            value = json.loads(text, object_pairs_hook=_object)
            plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            return f"sha256:{hashlib.sha256(plain.encode()).hexdigest()}", len(text)
        except (
            ValueError,
            RecursionError,
        ):  # no JSON, or a number of thousands of digits, or a key given twice
            pass
    return f"sha256-raw:{hashlib.sha256(text).hexdigest()}", len(text)


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    """The members as an object. Raises `ValueError` when one key is there twice, because servers differ in which value
    they take."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a key is given twice")
    return found


def client_of(said: object, hide: Callable[[str], str] = str) -> dict[str, str]:
    """The client info, within bounds and without secrets."""
    known = object_or_empty(said)
    return {
        key: shown(value, hide) for key in ("name", "version") if isinstance(value := known.get(key), str)
    }


def shown(text: str, hide: Callable[[str], str]) -> str:
    """A name from outside as an audit file shows it: on one line, and without secrets."""
    return one_line(hide(str(text)[: 8 * LONGEST_TEXT]), LONGEST_TEXT)  # a program may give what is no text


# ---- reading ---------------------------------------------------------------------------------------------------------
class BadAuditLine(Exception):
    """The text is no line of an audit file. The message says why."""


class AuditLine(msgspec.Struct, frozen=True):
    """A line whose hash is right."""

    record: Mapping[str, Any]
    seq: int
    prev: str
    hash: str

    def vouches_for(self, suspect: _SuspectLine) -> bool:
        """Whether this line says that the suspect line before it is a torn part."""
        return self.record.get("kind") == OPENED and self.record.get("torn") == torn_as(suspect.text)


def read_line(text: bytes) -> AuditLine:
    """A line, without its end. Raises `BadAuditLine`."""
    found = _HASH.fullmatch(text, len(text) - _HASH_SIZE) if len(text) > _HASH_SIZE else None
    if found is None:
        raise BadAuditLine("it does not end with a hash")
    said = found[1].decode()
    if hashlib.sha256(text[: found.start()] + b"}").hexdigest() != said:
        raise BadAuditLine("it was changed: its hash is not that of its text")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    record = object_or_empty(value)
    seq, prev = record.get("seq"), record.get("prev")
    if type(seq) is not int or not isinstance(prev, str):
        raise BadAuditLine("it is not a line of an audit file")
    return AuditLine(record, seq, prev, said)


def is_foreign(lines: Iterable[bytes]) -> bool:
    """Whether a file with these lines never was an audit file: it has some, and none has the form of ours, changed or
    torn as it may be."""
    is_empty = True
    for line in lines:
        is_empty = False
        text = line.removesuffix(b"\n")
        if text[: len(_BEGINNING)] in (_BEGINNING, _BEGINNING[: len(text)]) or _HASH.search(text):
            return False
    return not is_empty


def torn_as(part: bytes) -> dict[str, Any]:
    """What an `opened` line says about the torn line before it."""
    return {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}


class AuditEnd(msgspec.Struct, frozen=True):
    """Where a file ends: its last whole line, and the torn part after it. `lacks_end`: the last line is whole, but for
    its newline."""

    seq: int = 0
    hash: str = GENESIS
    part: bytes = b""
    lacks_end: bool = False


def end_of(tail: bytes, *, is_all: bool) -> AuditEnd:
    """The end of the file, whose last bytes are `tail`. `is_all`: `tail` is the whole file. Raises `BadAuditLine` when
    this is no audit file, or was changed there."""
    head, newline, part = tail.rpartition(b"\n")
    try:
        found = read_line(part)
    except BadAuditLine:
        if len(part) > LONGEST_LINE or not (
            newline or (is_all and _BEGINNING.startswith(part[: len(_BEGINNING)]))
        ):
            raise
        if not newline:
            return AuditEnd(part=part)
        found = read_line(head.rpartition(b"\n")[2])
        return AuditEnd(found.seq, found.hash, part)
    return AuditEnd(found.seq, found.hash, lacks_end=True)


# ---- checking --------------------------------------------------------------------------------------------------------
class AuditFault(msgspec.Struct, frozen=True):
    """The first bad line of a file. `torn`: it is the last line, and not whole."""

    line: int
    why: str
    torn: bool = False


class AuditReport(msgspec.Struct):
    """What a check has found. `remarks` are no faults. Times are those of lines, as they are written there."""

    lines: int = 0
    calls: int = 0
    missing: int = 0  # calls that could not be written, as the file itself says
    first_time: str | None = None
    last_time: str | None = None
    last_hash: str = GENESIS
    expected_at: int | None = (
        None  # the line with the hash that was noted elsewhere; 0: the last one of the file before
    )
    ended: bool = False  # the last gateway ended in order
    remarks: list[str] = msgspec.field(default_factory=list[str])
    bad: AuditFault | None = None


def check(lines: Iterable[bytes], *, after: str | None = None, expect: str | None = None) -> AuditReport:
    """Check the lines of a file, each given with its line end. `after`: the hash of the last line of the file before
    this one. `expect`: a noted hash, which some line must have."""
    chain = _AuditChain(GENESIS if after is None else after, goes_on=after is not None, expect=expect)
    for line in lines:
        if not chain.take(line):
            break
    return chain.end()


class _SuspectLine(msgspec.Struct, frozen=True):
    """A line that is bad in itself. The next line may say that it is a torn part."""

    number: int
    text: bytes
    why: str
    is_part: bool  # it has no end, so it is the last


class _AuditChain:
    """One pass over a file."""

    def __init__(self, prev: str, *, goes_on: bool, expect: str | None) -> None:
        self._report = AuditReport(last_hash=prev)
        if goes_on and expect == prev:
            self._report.expected_at = 0
        self._goes_on = goes_on
        self._expect = expect
        self._seq: int | None = None if goes_on else 0
        self._number = 0
        self._suspect: _SuspectLine | None = None

    def take(self, line: bytes) -> bool:
        """Check the next line. Returns False when a line is bad; nothing after it counts."""
        self._number += 1
        text = line.removesuffix(b"\n")
        suspect, self._suspect = self._suspect, None
        try:
            if len(text) > LONGEST_LINE:
                raise BadAuditLine("it is too long")
            if text is line:
                raise BadAuditLine("it has no end")
            found = read_line(text)
        except BadAuditLine as bad:
            self._suspect = suspect or _SuspectLine(self._number, text, str(bad), is_part=text is line)
            return suspect is None
        if suspect is not None and not found.vouches_for(suspect):
            self._suspect = suspect
            return False
        why = self._break_in(found)
        if not why and suspect is None and found.record.get("kind") == OPENED and "torn" in found.record:
            why = "it says that a torn part stands before it, and that part was taken out"
        if why:
            self._report.bad = AuditFault(self._number, why)
            return False
        self._add(found, suspect)
        return True

    def _break_in(self, line: AuditLine) -> str:
        """Why this line, which is right in itself, may not stand at this place; "" if it may."""
        report = self._report
        if line.prev == report.last_hash and (self._seq is None or line.seq == self._seq + 1):
            return ""
        if report.lines:
            return "it does not follow the line before it: a line was taken out, moved or put in"
        if self._goes_on:
            return "it does not go on from the hash that --after names"
        return (
            f"what was before it is missing, as it has the number {line.seq}. If this file goes on from another, "
            "name the last hash of that one with --after"
        )

    def _add(self, line: AuditLine, torn: _SuspectLine | None) -> None:
        report, record = self._report, line.record
        kind, time, missed = record.get("kind"), record.get("time"), record.get("missed")
        if torn is not None:
            report.remarks.append(
                f"Line {torn.number} is torn: the gateway was killed while it wrote, or the disk was full. "
                "The next start went on after it."
            )
        elif kind == OPENED and report.lines and not report.ended:
            report.remarks.append(f"Before line {self._number} the gateway did not end in order.")
        if kind == GAP and isinstance(missed, int):
            report.missing += missed
            report.remarks.append(
                f"Line {self._number} says that {counted(missed, 'call')} could not be written."
            )
        report.lines = self._number
        report.calls += kind == CALL
        report.ended = kind == CLOSED
        report.last_hash, self._seq = line.hash, line.seq
        if isinstance(time, str):
            report.first_time = report.first_time or time
            report.last_time = time
        if line.hash == self._expect:
            report.expected_at = self._number

    def end(self) -> AuditReport:
        report, suspect = self._report, self._suspect
        if suspect is not None:
            torn = suspect.is_part and len(suspect.text) <= LONGEST_LINE
            why = "it is torn: the gateway was killed while it wrote, or the file was cut there"
            report.bad = AuditFault(suspect.number, why if torn else suspect.why, torn)
        elif report.bad is None and not report.lines:
            report.bad = AuditFault(
                1,
                "it is not there: the file is empty, and each begins with a line of the gateway that made it",
            )
        elif report.bad is None and self._expect is not None and report.expected_at is None:
            why = "no line has the hash that was expected: the file was cut before it, or written anew"
            report.bad = AuditFault(self._number + 1, why)
        return report
