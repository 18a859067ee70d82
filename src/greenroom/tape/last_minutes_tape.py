"""A tape of the last minutes, made from what a room keeps of them (`actors.last_minutes`).

It is a tape as any other, and may have less: a call whose parameters or result were too large to be kept says how large
they were (`left_out`), and one that has not ended has the outcome `open`. Neither can be replayed, so both are refused
with these words. What a server has is what is known of it now, as if it had been known from the beginning.

Nothing here needs the room's loop, so it is done in a thread: to cut the secrets out of half a megabyte takes a while.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..actors.last_minutes import LastMinutes, RecentCall
from ..config.private_files import open_own, refused
from ..protocol.address import Address
from ..protocol.errors import Reach, UsageError
from ..protocol.jsonrpc.outgoing import without_stamp
from .line_maker import EVENT_KINDS, TapeLineMaker
from .tape_lines import EMPTY, LONGEST, OPEN, CallFailure, CallLine, ClientQuestion, encoded


class _SentLine(msgspec.Struct):
    """A line that was sent, as far as it was kept."""

    params: msgspec.Raw = EMPTY
    size: int = 0


class _RecentQuestion(msgspec.Struct):
    params: dict[str, Any]
    answer: dict[str, Any] | None = None
    refusal: dict[str, Any] | None = None


def tape_of(kept: LastMinutes, redact: Collection[str] = ()) -> Iterator[bytes]:
    """The lines of a tape. `redact`: names of members that are not on it."""
    since = kept.now - kept.seconds
    events = [event for event in kept.events if event.at >= since and event.kind in EVENT_KINDS]
    calls = [call for call in kept.calls if call.line and (call.ended_at is None or call.ended_at >= since)]
    refusals = [each for each in kept.refusals if each[0] >= since]
    notices = [each for each in kept.notices if each[0] >= since]
    times = (
        [event.at for event in events]
        + [call.accepted_at for call in calls]
        + [each[0] for each in (*refusals, *notices)]
    )
    began = min(times, default=kept.now)
    lines = TapeLineMaker(kept.secrets, began, redact)
    yield lines.head(kept.config, kept.wall - (kept.now - began), is_part=True)
    for entry in kept.entries:
        line = lines.known(entry, began)
        if len(line) <= LONGEST:
            yield line
    happened = [(event.at - began, lines.event(event)) for event in events]
    happened += [(each[0] - began, lines.refused(*each)) for each in refusals]
    happened += [(each[0] - began, _notice(lines, *each)) for each in notices]
    for line in _calls(calls, began, kept.now):
        lines.clean(line)
        happened.append((line.ended, encoded(line)))
    yield from (raw for _, raw in sorted(happened, key=lambda each: each[0]))


def call_of(kept: LastMinutes, number: int) -> CallLine | None:
    """The call of this number as a line of a tape, without secrets and with the room's times. None: it is not kept, or
    not any more."""
    call = next((each for each in kept.calls if each.number == number and each.line), None)
    if call is None:
        return None
    line = _call(call, int(call.reach is not Reach.NOT_SENT), 0.0, kept.now)
    lines = TapeLineMaker(kept.secrets, 0.0)
    lines.meet(kept.config)
    lines.clean(line)
    return line


def _notice(
    lines: TapeLineMaker, at: float, address: Address, method: str, params: bytes, left_out: int
) -> bytes:
    return lines.notice(address, method, msgspec.json.decode(params) if params else None, at, left_out)


def _calls(calls: Sequence[RecentCall], began: float, now: float) -> Iterator[CallLine]:
    sent = sorted((call for call in calls if call.reach is not Reach.NOT_SENT), key=lambda each: each.sent_at)
    orders = {call.number: order for order, call in enumerate(sent, 1)}
    for call in calls:
        yield _call(call, orders.get(call.number, 0), began, now)


def _call(call: RecentCall, order: int, began: float, now: float) -> CallLine:
    said = msgspec.json.decode(call.line, type=_SentLine)
    line = CallLine(
        call.number,
        order,
        call.accepted_at - began,
        (now if call.ended_at is None else call.ended_at) - began,
        call.address.server,
        call.address.scope,
        call.incarnation,
        call.method,
        without_stamp(said.params),
        call.outcome or OPEN,
        call.reach,
        call.sent_at - began if order else None,
        call.client,
        call.tool,
    )
    if said.size:
        line.left_out = {"params": said.size}
    if call.result.isdigit():
        line.left_out = {**line.left_out, "result": int(call.result)}
    elif call.result:
        line.result = msgspec.Raw(call.result)
    if call.failure:
        line.error = msgspec.json.decode(call.failure, type=CallFailure)
    if call.beside is not None:
        line.progress = [(at - began, msgspec.json.decode(step)) for at, step in call.beside.steps]
        line.asked = [_asked(at - began, method, raw) for at, method, raw in call.beside.questions]
    return line


def _asked(at: float, method: str, raw: bytes) -> ClientQuestion:
    said = msgspec.json.decode(raw, type=_RecentQuestion)
    return ClientQuestion(at, method, said.params, said.answer, said.refusal)


def write_tape(path: Path, parts: Iterable[bytes]) -> None:
    """Write a new file that only its owner can read. One that is there is not written over. Raises `UsageError`."""
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.writelines(parts)
    except FileExistsError:
        raise UsageError(f"{path} is there already. Name another file.") from None
    except OSError as error:
        raise UsageError(f"No tape can be written to {path}: {refused(error)}") from None
