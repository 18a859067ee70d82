"""The event stream as log lines and as JSON lines, and a log that nobody reads."""

from __future__ import annotations

import json
import os
import select
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from greenroom.gateway.event_log import EventLog, Teller, line_of, to_log
from greenroom.gateway.serve import events_file
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Reach
from greenroom.protocol.event_records import record_of
from greenroom.protocol.events import (
    BreakerDecision,
    BreakerMove,
    CallAccepted,
    CallEnded,
    CatalogueChanged,
    ConnectStep,
    Lagged,
    Note,
    NoteCode,
    Step,
    Transition,
)
from greenroom.protocol.lifecycle import Cause, Reason, State

CLOCK = Address("clock")
IDLED = Transition(
    *(7, 1.5, CLOCK, 2),
    before=State.CONNECTED,
    after=State.DRAINING,
    cause=Cause.IDLE_TIMEOUT,
    reason=Reason.NO_CALL,
    seconds=600.0,
)
CALLED = CallEnded(
    *(8, 2.0, Address.of_session("clock", "a"), 2),
    call=3,
    method="tools/call",
    tool="clock_now",
    client="a",
    outcome="result",
    reach=Reach.ANSWERED,
    waited=0.25,
    taken=0.5,
)


def test_of_a_server_that_a_tape_plays_no_idle_timeout_is_told() -> None:
    for played, is_told in ((None, True), ({"clock": True}, False), ({"other": True}, True)):
        reading, writing = os.pipe()
        to_log(EventLog(writing), played)(IDLED)
        os.close(writing)
        with open(reading, "rb") as pipe:
            assert bool(pipe.read()) == is_told


def test_a_transition_is_one_line_with_its_reasons() -> None:
    assert line_of(IDLED) == "clock: connected → draining (idle timeout, no call for 600 s)"
    assert line_of(Note(9, 3.0, code=NoteCode.ODD, words="odd")) == "room: odd"
    assert line_of(Lagged(5)) == "5 events were dropped here"
    assert line_of(CALLED) is None


def _step(before: State, after: State, cause: Cause | None = None, detail: str = "") -> str | None:
    return line_of(Transition(9, 3.0, CLOCK, 1, before=before, after=after, cause=cause, words=detail))


def test_each_thing_is_told_once() -> None:
    assert _step(State.IDLE, State.CONNECTING) is None
    assert _step(State.IDLE, State.CLOSED, Cause.SHUTDOWN) is None, "it never ran"
    assert _step(State.CONNECTED, State.DRAINING, Cause.SHUTDOWN) == "clock: connected → draining (shutdown)"
    assert _step(State.DRAINING, State.CLOSED, Cause.SHUTDOWN) is None, (
        "a line for each server that ran is enough"
    )
    over = (Cause.SCOPE_ENDED, "the session is over")
    assert (
        _step(State.CONNECTED, State.DRAINING, *over) == "clock: connected → draining (the session is over)"
    )
    assert _step(State.DRAINING, State.CLOSED, *over) is None
    assert _step(State.CLOSED, State.IDLE, Cause.LOST, "died") is None
    assert _step(State.CONNECTING, State.CONNECTED) == "clock: connecting → connected"
    assert _step(State.DRAINING, State.CLOSED, Cause.LOST, "died") == "clock: draining → closed (lost, died)"
    failed = (Cause.CONNECT_FAILED, "no such file")
    assert _step(State.CONNECTING, State.DRAINING, *failed) == "clock: no such file"
    assert _step(State.DRAINING, State.CLOSED, *failed) is None
    assert _step(State.CONNECTING, State.DRAINING, Cause.CONNECT_FAILED) == "clock: connecting"
    decided = BreakerDecision(9, 3.0, CLOCK, 1, move=BreakerMove.ANSWERED)
    assert line_of(decided) == "clock: circuit breaker: reset: it answered"
    assert line_of(msgspec.structs.replace(decided, cause=Cause.LOST)) is None
    assert line_of(Step(9, 3.0, CLOCK, 1, step=ConnectStep.STARTED)) is None


def _failed(server: str, why: str) -> Transition:
    before, after = State.CONNECTING, State.DRAINING
    return Transition(
        *(9, 3.0, Address(server), 1), before=before, after=after, cause=Cause.CONNECT_FAILED, words=why
    )


def _decision(move: BreakerMove, *, tripped: bool, **more: Any) -> BreakerDecision:
    return BreakerDecision(*(9, 3.0, CLOCK, 1), move=move, tripped=tripped, **more)


def test_a_server_that_fails_as_it_did_before_is_no_news_until_it_works() -> None:
    teller = Teller()
    told = [teller.line(_failed("clock", f"exited (pid {pid}, at 0x7f{pid}a)")) for pid in range(4711, 4726)]
    assert told == ["clock: exited (pid 4711, at 0x7f4711a)", *[None] * 14]
    assert teller.line(_failed("other", "exited")) == "other: exited", "each server by itself"
    assert teller.line(_failed("clock", "no such file")) == "clock: no such file"
    assert teller.line(_failed("clock", "no such file")) is None
    up = Transition(9, 3.0, CLOCK, 1, before=State.CONNECTING, after=State.CONNECTED)
    assert teller.line(up) == "clock: connecting → connected, after 17 failed starts"
    assert teller.line(up) == "clock: connecting → connected"
    assert teller.line(_failed("clock", "no such file")) == "clock: no such file"
    assert teller.line(up) == "clock: connecting → connected, after 1 failed start"


def test_another_definition_that_fails_is_news() -> None:
    teller = Teller()
    assert teller.line(_failed("clock", "no such file")) is not None
    teller.line(Transition(9, 3.0, CLOCK, 1, before=State.DRAINING, after=State.CLOSED, cause=Cause.RELOAD))
    assert teller.line(_failed("clock", "no such file")) is not None


def test_a_breaker_is_told_when_it_trips_is_quarantined_and_is_reset() -> None:
    teller = Teller()
    failure: dict[str, Any] = {"cause": Cause.CONNECT_FAILED, "open_for": 30.0}
    told = [
        teller.line(_decision(BreakerMove.FAILED, tripped=n >= 5, failures=n, **failure))
        for n in range(1, 16)
    ]
    shut = "calls are refused for 30 s, then one is let through"
    assert told == [*[None] * 4, f"clock: circuit breaker: 5 failures in a row; {shut}", *[None] * 10]
    assert teller.line(_decision(BreakerMove.HALF_OPEN, tripped=True)) is None
    assert teller.line(_decision(BreakerMove.PROBE_LEFT, tripped=True)) is None
    kept_out = _decision(BreakerMove.QUARANTINED, tripped=True, words="6 restarts", open_for=30.0)
    assert teller.line(kept_out) == f"clock: circuit breaker: quarantined: 6 restarts; {shut}"
    assert teller.line(kept_out) is None
    assert (
        teller.line(_decision(BreakerMove.ANSWERED, tripped=False))
        == "clock: circuit breaker: reset: it answered"
    )
    assert teller.line(_decision(BreakerMove.ANSWERED, tripped=False)) is None
    assert teller.line(kept_out) is not None


def test_what_an_event_does_not_say_is_left_out_and_a_zero_is_said() -> None:
    bare = CatalogueChanged(0, 1.23456789)
    what = {"kind": "catalogue", "event": "CatalogueChanged"}
    assert record_of(bare) == {"seq": 0, "at": 1.234568, **what, "inFlight": 0, "queued": 0}
    call = CallAccepted(0, 1.0, call=0, method="ping", tool=None, client=None, in_flight=2, queued=3)
    said = {"call": 0, "method": "ping", "detail": "accepted", "inFlight": 2, "queued": 3}
    assert record_of(call) == {"seq": 0, "at": 1.0, "kind": "call", "event": "CallAccepted", **said}
    never_sent = CallEnded(0, 1.0, call=0, method="ping", tool=None, client=None, outcome="cancelled")
    fields = {key: record_of(never_sent).get(key) for key in ("event", "outcome", "reach")}
    assert fields == {"event": "CallEnded", "outcome": "cancelled", "reach": "not_sent"}


def test_every_event_is_one_json_object_in_the_file(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (hear,) = events_file(tmp_path / "events.jsonl", stack, print)
        for event in (IDLED, CALLED, Lagged(2)):
            hear(event)
    first, second, third = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert first == {
        "seq": 7,
        "at": 1.5,
        "kind": "transition",
        "event": "Transition",
        "server": "clock",
        "scope": "shared",
        "incarnation": 2,
        "from": "connected",
        "to": "draining",
        "cause": "idle timeout",
        "reason": "no call",
        "seconds": 600.0,
        "detail": "no call for 600 s",
        "inFlight": 0,
        "queued": 0,
    }
    assert second == {
        "seq": 8,
        "at": 2.0,
        "kind": "call",
        "event": "CallEnded",
        "server": "clock",
        "scope": "session:a",
        "incarnation": 2,
        "call": 3,
        "method": "tools/call",
        "tool": "clock_now",
        "client": "a",
        "detail": "ended",
        "outcome": "result",
        "reach": "answered",
        "waited": 0.25,
        "taken": 0.5,
        "inFlight": 0,
        "queued": 0,
    }
    assert third == {"kind": "lagged", "missed": 2}
    assert record_of(IDLED) == first


def test_t15_a_log_that_nobody_reads_stops_nothing_and_says_what_it_left_out() -> None:
    reader, writer = os.pipe()
    try:
        log = EventLog(writer)
        for _ in range(2000):
            log.line("x" * 200)
        os.set_blocking(reader, False)
        told = len(os.read(reader, 1 << 20).splitlines())
        assert 0 < told < 2000
        log.line("again")
        assert os.read(reader, 1000).decode() == f"greenroom: ({2000 - told} lines left out) again\n"
    finally:
        os.close(reader)
    log.line("to nobody at all")
    os.close(writer)
    log.line("to a closed descriptor")


def test_what_was_left_out_is_said_once() -> None:
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        log = EventLog(writer)
        for _ in range(3):
            while select.select((), (writer,), (), 0)[1]:
                os.write(writer, b"x" * 4096)
            log.line("lost")
            log.line("lost too")
            while select.select((reader,), (), (), 0)[0]:
                os.read(reader, 1 << 20)
            log.line("one")
            log.line("two")
            assert os.read(reader, 1000) == b"greenroom: (2 lines left out) one\ngreenroom: two\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_line_of_the_log_is_one_line_and_no_longer_than_is_written_at_once() -> None:
    reader, writer = os.pipe()
    try:
        EventLog(writer).line("a\n  b\tc " + "\U0001f600" * 5000)
        said = os.read(reader, 1 << 20)
        assert said.startswith(b"greenroom: a b c ")
        assert said.count(b"\n") == 1
        assert len(said) <= select.PIPE_BUF
    finally:
        os.close(reader)
        os.close(writer)


def test_calls_reach_the_file_with_the_next_other_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with ExitStack() as stack:
        (hear,) = events_file(path, stack, print)
        hear(CALLED)
        assert path.read_text() == ""
        hear(IDLED)
        assert path.read_text().count("\n") == 2
        hear(CALLED)
    assert path.read_text().count("\n") == 3
