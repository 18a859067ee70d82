"""The page of a tape: what a person sees of a recording in a browser.

It is a page over the file, and not over a replay: a replay is a room of its own, whose servers and times are not the
recorded ones. So it shows what was, and there is nothing to do: who asks may read.

It is the same document, which asks for a hello, and is told here that it is of a tape. It then asks for the timeline
and for all calls, in a few numbers each, and for one call with all that was said when somebody opens it. Of a long tape
it is given the first calls; `MOST` of them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import attrs
import msgspec

from ...actors.workers import apart, aside
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.version import VERSION
from ...tape.lines import CallLine
from ...tape.reading import Tape
from ...tape.records import has_failed, records_of
from ...tape.selection import end_of
from ...tape.story import call_as_json
from ..doors.control_protocol import text_in
from ..timeline import trace_of_records
from .room_page import Answer, answered, failed
from .watch import ALIVE, as_sse

LOOKS: Final = ("hello", "trace", "calls", "call")
MOST: Final = 20_000  # calls that a browser is given
_LONGEST: Final = 256 * 1024  # characters of a result
_FLOWS: Final = frozenset("sf")  # a browser draws no arrows
_SNAPSHOT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("servers", "clients", "tasks", "approvals", "calls", "pins", "projects"), ()),
    **dict.fromkeys(("audit", "hosts")),
    "pool": {},
}


class TapePage:
    """`Answers` of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._shown = attrs.evolve(tape, calls=sorted(tape.calls, key=_accepted)[:MOST])
        self._by_number = {call.n: call for call in reversed(self._shown.calls)}
        self._end = end_of(tape)

    # ---- as `Answers` ----------------------------------------------------------------------------------------------

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> Answer:
        try:
            return await self._look(what, params)
        except GreenroomError as error:
            return await failed(error)

    async def _look(self, what: str, params: Mapping[str, Any]) -> Answer:
        match what:
            case "hello":
                return await answered(self._hello())
            case "trace":
                return await answered({"traceEvents": await aside(self._trace), "displayTimeUnit": "ms"})
            case "calls":
                return await answered({"calls": await aside(self._calls)})
            case "call":
                return await answered(await apart(partial(self._call, text_in(params, "number") or "")))
            case _:
                raise UsageError(f'The page of a tape cannot ask for "{what}".')

    async def act(self, params: Mapping[str, Any], who: str) -> Answer:
        return await failed(UsageError("This is a recording: there is nothing to do."))

    async def watch(self, *, acts: bool) -> AsyncGenerator[bytes]:
        """What was, once. It does not change."""
        at = {"at": self._end, "wall": self._tape.head.at + self._end}
        yield await as_sse(("snapshot", {**at, **_SNAPSHOT}))
        while True:
            await anyio.sleep(ALIVE)
            yield await as_sse(("", None))

    # ---- what is told ----------------------------------------------------------------------------------------------

    def _hello(self) -> dict[str, Any]:
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
                "isCut": tape.is_cut,
                "isPart": tape.head.is_part,
                "servers": len(tape.servers),
                "sessions": len({call.session for call in tape.calls if call.session is not None}),
                "calls": len(tape.calls),
                "failed": sum(map(has_failed, tape.calls)),
                "shown": len(self._shown.calls),
            },
            "sections": {},
        }

    def _trace(self) -> list[dict[str, Any]]:
        events = trace_of_records(records_of(self._shown)).events
        return [event for event in events if event["ph"] not in _FLOWS]

    def _calls(self) -> list[dict[str, Any]]:
        return [_in_short(call) for call in self._shown.calls]

    def _call(self, number: str) -> dict[str, Any]:
        """A call with all that was said. Reads a large result from its file."""
        call = self._by_number.get(int(number)) if number.isascii() and number.isdigit() else None
        if call is None:
            raise UsageError(f'There is no call "{number[:20]}" on this tape.')
        result = self._tape.result_of(call)
        return {
            **call_as_json(call),
            "hasFailed": has_failed(call),
            "scope": call.scope,
            "incarnation": call.incarnation,
            "result": None if result is None else _shortened(result),
            "error": None if call.error is None else msgspec.to_builtins(call.error),
            "progress": [{"at": at, "params": params} for at, params in call.progress],
            "asked": msgspec.to_builtins(call.asked),
        }


def _accepted(call: CallLine) -> float:
    return call.accepted


def _in_short(call: CallLine) -> dict[str, Any]:
    said = call_as_json(call)
    del said["params"]
    return {**said, "hasFailed": has_failed(call)}


def _shortened(result: bytes) -> Any:
    """A result to be shown; one that is very long as the beginning of its text."""
    if len(result) <= _LONGEST:
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(result)
    return f"{result[:_LONGEST].decode(errors='replace')}… ({len(result):,} bytes)"
