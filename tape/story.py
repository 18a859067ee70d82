"""A tape as a person would tell it, and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from ..protocol.safe_text import counted, printable
from .lines import CallLine, Happened, Listed
from .reading import Tape

_SHOWN: Final = 90  # characters of arguments, and of an answer


def told(tape: Tape) -> Iterator[str]:
    """A line for each thing that happened."""
    began = datetime.fromtimestamp(tape.head.at, UTC).isoformat(sep=" ", timespec="seconds")
    yield (
        f"Recorded {began[:19]} UTC by Greenroom {printable(tape.head.greenroom)}: "
        f"{counted(len(tape.calls), 'call')} of {counted(len(tape.servers), 'server')}."
    )
    happened: list[tuple[float, int, str]] = []
    for number, line in enumerate((*tape.listed, *tape.events, *tape.calls)):
        words = _words(line)
        if words:
            happened.append((_when(line), number, words))
    for at, _, words in sorted(happened):
        yield f"{at:9.3f} s  {words}"
    if tape.is_cut:
        yield "The tape is cut off here: its process was killed."


def as_json(tape: Tape) -> dict[str, Any]:
    """The same in numbers, with each call."""
    return {
        "recordedAt": tape.head.at,
        "greenroom": tape.head.greenroom,
        "isCut": tape.is_cut,
        "servers": tape.servers,
        "outcomes": dict(Counter(call.outcome for call in tape.calls)),
        "calls": [call_as_json(call) for call in tape.calls],
    }


def call_as_json(call: CallLine) -> dict[str, Any]:
    return {
        "number": call.n,
        "at": round(call.accepted, 6),
        "seconds": round(call.ended - call.accepted, 6),
        "server": call.server,
        "tool": call.tool,
        "method": call.method,
        "params": msgspec.json.decode(call.params),
        "outcome": call.outcome,
        "reach": call.reach,
        "session": call.session,
    }


def _when(line: Listed | Happened | CallLine) -> float:
    return line.accepted if isinstance(line, CallLine) else line.t


def _words(line: Listed | Happened | CallLine) -> str:
    if isinstance(line, CallLine):
        return printable(_call(line))
    if isinstance(line, Listed):
        return printable(f"{line.server}: has {counted(len(line.tools or ()), 'tool')}")
    event = line.event
    if event.get("event") == "Transition":
        cause = f" ({event['cause']})" if "cause" in event else ""
        return printable(f"{event.get('server')}: {event.get('from')} → {event.get('to')}{cause}")
    detail = event.get("detail")
    return printable(f"{event.get('server', 'room')}: {detail}") if detail else ""


def _call(call: CallLine) -> str:
    params: Any = msgspec.json.decode(call.params)
    about: Any = (
        cast("dict[str, Any]", params).get("arguments", params) if isinstance(params, dict) else params
    )
    asked = _short(msgspec.json.encode(about).decode())
    what = call.tool or call.method
    took = f"{(call.ended - call.accepted) * 1000:.1f} ms"
    more = f", {counted(len(call.progress), 'step')} of progress" if call.progress else ""
    more += f", asked its client {counted(len(call.asked), 'time')}" if call.asked else ""
    if call.error is not None:
        end = f"{call.error.code}: {call.error.message}"
    elif call.outcome == "result":
        end = f"{call.large.bytes:,} bytes" if call.large else bytes(call.result).decode(errors="replace")
    else:
        end = call.outcome
    session = f" [{call.session}]" if call.session else ""
    return f"{what} {asked}{session} → {_short(end)} ({took}{more})"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
