"""The page of a tape: what a person sees of a recording in a browser.

It is a page over the file, and not over a replay: a replay is a room of its own, whose servers and times are not the
recorded ones. So it shows what was, and there is nothing to do: who asks may read.

It is the same document, which asks for a hello, and is told here that it is of a tape. It then asks for the timeline
and for the calls, in a few numbers each, and for one call with all that was said when somebody opens it. A long tape
comes in parts, of so many calls each that a browser can show them (`MOST`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import msgspec

from ...actors.workers import apart, aside
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.version import VERSION
from ...tape.story import call_as_json, ending, whole_call_as_json
from ...tape.tape_events import has_failed, records_of
from ...tape.tape_lines import CallLine, value_in
from ...tape.tape_reader import Tape
from ...tape.tape_selection import end_of
from ..doors.control_protocol import text_in
from .page_feed import ALIVE, as_sse
from .room_page import PageAnswer, answered, failed
from .timeline import lanes_of

if TYPE_CHECKING:
    from ..doors.http_request import Caller

LOOKS: Final = ("hello", "timeline", "calls", "call")
MOST: Final = 20_000  # calls that a browser is given at once
_EVENTS: Final = 50_000  # that come with them: the last ones
_LONGEST: Final = 256 * 1024  # bytes of a result
_SNAPSHOT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("servers", "clients", "tasks", "approvals", "calls", "pins", "projects"), ()),
    **dict.fromkeys(("audit", "hosts")),
    "pool": {},
}


class TapePage:
    """`PageResponder` of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._calls = sorted(tape.calls, key=_accepted)
        self._by_number = {call.n: call for call in reversed(self._calls)}
        self._end = end_of(tape)
        self._hello = self._about()

    # ---- as `PageResponder` ----------------------------------------------------------------------------------------

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> PageAnswer:
        try:
            return await self._look(what, params)
        except GreenroomError as error:
            return await failed(error)

    async def _look(self, what: str, params: Mapping[str, Any]) -> PageAnswer:
        match what:
            case "hello":
                return await answered(self._hello)
            case "timeline":
                part = self._part(text_in(params, "first"))
                return await answered({"lanes": await aside(lambda: lanes_of(records_of(part)))})
            case "calls":
                part = self._part(text_in(params, "first"))
                return await answered(await aside(partial(_in_short, part, self._end)))
            case "call":
                return await answered(await apart(partial(self._call, text_in(params, "number") or "")))
            case _:
                raise UsageError(f'The page of a tape cannot ask for "{what}".')

    async def act(self, params: Mapping[str, Any], who: str) -> PageAnswer:
        return await failed(UsageError("This is a recording: there is nothing to do."))

    async def watch(self, caller: Caller) -> AsyncGenerator[bytes]:
        """What was, once. It does not change."""
        at = {"at": self._end, "wall": self._tape.head.at + self._end}
        yield await as_sse(("snapshot", {**at, **_SNAPSHOT}))
        while True:
            await anyio.sleep(ALIVE)
            yield await as_sse(("", None))

    # ---- what is told ----------------------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        tape = self._tape
        return {
            "may": "read",
            "version": VERSION,
            "gateway": {"pid": os.getpid(), "folder": os.fspath(tape.path.parent), "config": None},
            "tape": {
                "name": tape.path.name,
                "at": tape.head.at,
                "seconds": self._end,
                "greenroom": tape.head.greenroom,
                "ending": ending(tape),
                "isPart": tape.head.is_part,
                "servers": len(tape.servers),
                "sessions": len({call.session for call in tape.calls if call.session is not None}),
                "calls": len(tape.calls),
                "failed": sum(map(has_failed, tape.calls)),
                "most": MOST,
            },
            "sections": {},
        }

    def _part(self, first: str | None) -> Tape:
        """The tape with the calls from this one on, and with what happened until they had ended."""
        start = int(first) if first is not None and first.isascii() and first.isdigit() else 0
        calls = self._calls[start : start + MOST]
        events = self._tape.events
        if calls and start + MOST < len(self._calls):
            end = max(call.ended for call in calls)
            events = [line for line in events if line.t <= end]
        return attrs.evolve(self._tape, calls=calls, events=events[-_EVENTS:])

    def _call(self, number: str) -> dict[str, Any]:
        """A call with all that was said. Reads a large result from its file."""
        call = self._by_number.get(int(number)) if number.isascii() and number.isdigit() else None
        if call is None:
            raise UsageError(f'There is no call "{number[:20]}" on this tape.')
        return whole_call_as_json(call, self._result(call))

    def _result(self, call: CallLine) -> Any:
        """A result to be shown; one that is very long as the beginning of its text. All of it is read, for only then it
        is known to be what was recorded."""
        kept, size = bytearray(), 0
        for piece in self._tape.pieces_of(call):
            size += len(piece)
            if len(kept) < _LONGEST:
                kept += piece
        if size <= _LONGEST:
            with suppress(msgspec.DecodeError, RecursionError):
                return value_in(bytes(kept)) if kept else None
        return f"{kept[:_LONGEST].decode(errors='replace')}… ({size:,} bytes)"


def _accepted(call: CallLine) -> float:
    return call.accepted


def _in_short(part: Tape, end: float) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for call in part.calls:
        said = call_as_json(call)
        del said["params"]
        calls.append({**said, "hasFailed": has_failed(call)})
    return {"calls": calls, "end": max((call.ended for call in part.calls), default=end)}
