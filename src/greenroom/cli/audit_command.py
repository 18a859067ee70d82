"""`greenroom audit`: whether an audit file is whole, and what its last lines say.

Both only read the file, also while a gateway writes it. Whoever checks it need not be its owner.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, cast

import click
from msgspec.structs import asdict

from ..protocol.errors import UsageError
from ..protocol.safe_text import one_line
from ..safety import audit
from .exit_codes import FAILED, OK
from .json_shapes import Shape, says
from .printing import show, show_json, tell
from .shared_options import json_option
from .subcommands import Subcommands
from .tables import aligned


class BadJson(Shape, kw_only=True):
    """The first bad line of an audit file."""

    line: Annotated[int, says("its number, from 1")]
    why: Annotated[str, says("what is wrong")]
    torn: Annotated[bool, says("it is the last one, and not whole")]


class VerifiedJson(Shape, kw_only=True):
    """Whether an audit file is whole."""

    file: Annotated[str, says("the file")]
    whole: Annotated[bool, says("its chain is not broken; else exit code 1")]
    lines: Annotated[int, says("that are good", "lines")]
    calls: Annotated[int, says("in those", "calls")]
    missing: Annotated[int, says("calls that could not be written, as the file says", "calls")]
    first_time: Annotated[str | None, says("the time of the first line", "UTC")]
    last_time: Annotated[str | None, says("the time of the last good line", "UTC")]
    last_hash: Annotated[str, says("its hash, to be noted elsewhere")]
    expected_at: Annotated[
        int | None, says("the line with the hash of `--expect`; 0: the last one of the file before")
    ]
    ended: Annotated[bool, says("the last gateway ended in order")]
    remarks: Annotated[list[str], says("what is worth knowing and no fault")]
    bad: Annotated[BadJson | None, says("the first bad line; null: none")]


_HASH: Final = re.compile("[0-9a-f]{64}")
_SHOWN: Final = 20  # lines
_MOST_SHOWN: Final = 100_000
_REMARKS: Final = 10


def _a_hash(_context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _HASH.fullmatch(value):
        raise UsageError(
            f"--{option.name} {value} is not a hash. Write its 64 characters, 0 to 9 and a to f."
        )
    return value


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group("audit", cls=Subcommands)
def audit_command() -> None:
    """Check a file of `serve --audit`, or show its last lines."""


@audit_command.command("verify")
@_file
@click.option(
    "--expect",
    metavar="HASH",
    callback=_a_hash,
    help="A hash that was noted elsewhere; some line must have it.",
)
@click.option(
    "--after",
    metavar="HASH",
    callback=_a_hash,
    help="The last hash of the file that this one goes on from.",
)
@json_option
def verify_command(file: Path, expect: str | None, after: str | None, as_json: bool) -> int:
    """Check the chain of FILE. Exit code 1, with the first bad line, if it is broken.

    Note the last hash elsewhere: anyone who can write the file can make another whole chain.
    """
    report = audit.check(_lines(file), after=after, expect=expect)
    if not report.lines and audit.is_foreign(_lines(file)):
        raise UsageError(
            f"{file} is not an audit file: no line of it is of one. Name the one of serve --audit."
        )
    if as_json:
        show_json(_verified(file, report))
    else:
        show("\n".join(map(one_line, _words(file, report))), {}, False)
    return OK if report.bad is None else FAILED


@audit_command.command("show")
@_file
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, _MOST_SHOWN),
    metavar="NUMBER",
    default=_SHOWN,
    show_default=True,
    help="How many lines.",
)
@json_option
def show_command(file: Path, count: int, as_json: bool) -> int:
    """Show the last lines of FILE as a table. Checks nothing."""
    lines = deque(_lines(file), count)
    known = [record for line in lines if "hash" in (record := _record(line))]
    if lines and not known:
        raise UsageError(
            f"The last lines of {file} are none of an audit file. Name the one of serve --audit."
        )
    if as_json:
        show_json(known)
    else:
        for line in aligned([*map(_row, known)]):
            tell(line)
    return OK


def _lines(file: Path) -> Iterator[bytes]:
    """The lines, each with its line end. A line that is too long is cut a little above the bound."""
    if not file.is_file():  # to open a pipe is to wait for who writes it
        raise UsageError(
            f"{file} is not a regular file, so it is not an audit file. Name the one of serve --audit."
        )
    with file.open("rb") as opened:
        while line := opened.readline(audit.LONGEST_LINE + 2):
            yield line


def _verified(file: Path, report: audit.AuditReport) -> VerifiedJson:
    found: dict[str, Any] = asdict(report)
    if report.bad is not None:
        found["bad"] = BadJson(**asdict(report.bad))
    return VerifiedJson(file=str(file), whole=report.bad is None, **found)


def _words(file: Path, report: audit.AuditReport) -> Iterator[str]:
    if (more := len(report.remarks) - _REMARKS) > 0:
        yield f"{more} remarks more; --json has all."
    yield from report.remarks[-_REMARKS:]
    if report.bad is not None:
        yield f"{file} is broken. Line {report.bad.line}: {report.bad.why}."
        yield f"Before it: {_count(report)}. The last hash there: {report.last_hash}"
        if report.bad.torn:
            yield "If the gateway was killed, its next start goes on after this line, and the file is whole again."
        return
    yield f"{file} is whole: {_count(report)}."
    if report.expected_at == 0:
        yield "The expected hash is that of the last line of the file before."
    elif report.expected_at is not None:
        yield f"The expected hash is that of line {report.expected_at} of {report.lines}."
    if not report.ended:
        yield "A gateway still writes it, or was killed, or the end was cut off. Only a noted hash tells (--expect)."
    yield f"Last hash: {report.last_hash}"


def _count(report: audit.AuditReport) -> str:
    calls = "1 call" if report.calls == 1 else f"{report.calls:,} calls"
    lines = "1 line" if report.lines == 1 else f"{report.lines:,} lines"
    between = f", {report.first_time} to {report.last_time}" if report.first_time else ""
    return f"{calls} in {lines}{between}"


def _record(line: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a line: time, who, what, outcome."""
    kind = record.get("kind")
    if kind == audit.ACT:
        about = [
            str(record[key])
            for key in ("act", "server", "tool", "name", "number", "project")
            if key in record
        ]
        cells = record.get("time", ""), record.get("subject", ""), " ".join(about), record.get("outcome", "")
        return tuple(one_line(str(cell), 60) for cell in cells)
    if kind != audit.CALL:
        more = record.get("missed", record.get("version", ""))
        return tuple(one_line(str(cell), 60) for cell in (record.get("time", ""), "", f"({kind})", more))
    who = record.get("subject") or record.get("session") or record.get("door") or ""
    came = "tool error" if record.get("isError") else record.get("outcome", "")
    approval = f", {record['approval']}" if record.get("approval") else ""
    cells = record.get("time", ""), who, record.get("tool", ""), f"{came}{approval}, {record.get('ms')} ms"
    return tuple(one_line(str(cell), 60) for cell in cells)
