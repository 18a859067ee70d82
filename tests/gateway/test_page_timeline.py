"""The lanes of the page's timeline, made of records of events."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from greenroom.gateway.page.timeline import RoomNow, lanes_of
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Reach
from greenroom.protocol.event_records import record_of
from greenroom.protocol.events import (
    BreakerDecision,
    BreakerMove,
    CallAccepted,
    CallEnded,
    CallSent,
    Event,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Transition,
)
from greenroom.protocol.lifecycle import Cause, Reason, State
from greenroom.protocol.status import ServerStatus

Record = dict[str, Any]


def _record(seq: int, at: float, make: type[Event], **fields: Any) -> Record:
    fields = {"address": Address("a"), "incarnation": 1, **fields}
    return record_of(make(seq=seq, at=at, **fields))


CALL: dict[str, Any] = {"call": 7, "method": "tools/call", "tool": "a_echo", "client": "ann"}


_ENDED: dict[str, Any] = {"outcome": "result"}


def _life() -> list[Record]:
    return [
        _record(1, 0.0, CallAccepted, **CALL),
        _record(2, 0.0, Transition, before=State.IDLE, after=State.CONNECTING),
        _record(3, 0.5, Transition, before=State.CONNECTING, after=State.CONNECTED),
        _record(4, 0.5, CallSent, **CALL, waited=0.5),
        _record(5, 0.75, CallEnded, **CALL, outcome="result", reach=Reach.ANSWERED, waited=0.5, taken=0.25),
        _record(6, 0.8, BreakerDecision, move=BreakerMove.ANSWERED),
        _record(7, 2.0, Transition, before=State.CONNECTED, after=State.DRAINING),
        _record(8, 2.25, Transition, before=State.DRAINING, after=State.CLOSED),
    ]


def _lane(records: Iterable[Record], group: str, name: str) -> list[tuple[str, float, float]]:
    """The spans of this lane of `clients` or `servers`: name, start and end."""
    (lane,) = (each for each in lanes_of(records) if (each["group"], each["name"]) == (group, name))
    return [(each["name"], each["start"], each["end"]) for each in lane["spans"] if each["kind"] != "mark"]


def _of_kind(records: Iterable[Record], kind: str) -> list[dict[str, Any]]:
    return [each for lane in lanes_of(records) for each in lane["spans"] if each["kind"] == kind]


def _marks(records: Iterable[Record]) -> list[tuple[str, str, float, bool]]:
    """Lane, name, moment, and whether it is bad."""
    return [
        (lane["name"], each["name"], each["start"], each["isBad"])
        for lane in lanes_of(records)
        for each in lane["spans"]
        if each["kind"] == "mark"
    ]


def test_each_state_is_a_span_in_the_lane_of_its_address() -> None:
    assert _lane(_life(), "servers", "a") == [
        ("connecting", 0.0, 0.5),
        ("connected", 0.5, 2.0),
        ("draining", 2.0, 2.25),
    ]


def test_a_call_is_a_span_of_its_client_and_one_at_the_server_that_ran_it() -> None:
    assert _lane(_life(), "clients", "ann") == [("queue", 0.0, 0.5), ("a_echo", 0.0, 0.75)]
    assert _lane(_life(), "servers", "a: calls") == [("a_echo", 0.5, 0.75)]
    assert _marks(_life()) == [("a", "circuit breaker: reset: it answered", 0.8, False)]


def test_what_is_open_at_the_last_record_is_closed_there() -> None:
    records = _life()[:4]
    assert _lane(records, "servers", "a") == [("connecting", 0.0, 0.5), ("connected", 0.5, 0.5)]
    assert _lane(records, "clients", "ann") == [("queue", 0.0, 0.5), ("a_echo", 0.0, 0.5)]
    assert [each["about"]["outcome"] for each in _of_kind(records, "run")] == ["open"]


def test_what_a_call_waited_for_is_inside_it_and_calls_at_once_have_lanes_of_their_own() -> None:
    second = {**CALL, "call": 8}
    moves = [(0.0, "slot"), (2.0, "permit"), (2.0, "starting")]
    records = [
        _record(1, 0.0, CallAccepted, **CALL),
        *(_record(2, at, StartMoved, place=Place(place)) for at, place in moves),
        _record(3, 2.5, CallAccepted, **second),
        _record(4, 3.0, StartMoved, place=Place("live")),
        _record(5, 3.0, CallSent, **CALL),
        _record(6, 3.5, CallSent, **second),
        _record(7, 4.0, CallEnded, **CALL, outcome="result"),
        _record(8, 4.0, CallAccepted, **{**CALL, "call": 9, "client": None}),
        _record(9, 5.0, CallEnded, **second, outcome="timeout"),
    ]
    assert _lane(records, "clients", "ann") == [
        ("slot", 0.0, 2.0),
        ("connect", 2.0, 3.0),
        ("a_echo", 0.0, 4.0),
    ]
    assert _lane(records, "clients", "ann (2)") == [
        ("connect", 2.5, 3.0),
        ("queue", 3.0, 3.5),
        ("a_echo", 2.5, 5.0),
    ]
    assert _lane(records, "clients", "the room") == [("a_echo", 4.0, 5.0), ("queue", 4.0, 5.0)]


def test_a_call_that_was_sent_again_has_a_span_at_each_incarnation() -> None:
    records = [
        *_life()[:4],
        _record(5, 0.6, Transition, before=State.CONNECTED, after=State.CLOSED),
        _record(6, 0.7, Transition, before=State.CONNECTING, after=State.CONNECTED, incarnation=2),
        _record(7, 0.7, CallSent, **CALL, incarnation=2),
        _record(8, 0.9, CallEnded, **CALL, incarnation=2, outcome="result"),
    ]
    assert [(each["start"], each["end"], each["about"]) for each in _of_kind(records, "run")] == [
        (0.5, 0.7, {"call": 7, "incarnation": 1, "waited": 0.5, "outcome": "sent again"}),
        (0.7, 0.9, {"call": 7, "incarnation": 2, "outcome": "result", "reach": "not_sent"}),
    ]


def test_what_it_waited_for_before_it_connected_is_a_span_each() -> None:
    places = [
        (0.0, "breaker"),
        (1.0, "slot"),
        (1.0, "permit"),
        (3.5, "starting"),
        (4.0, "live"),
        (8.0, "leaving"),
        (9.0, "out"),
    ]
    records = [_record(n, at, StartMoved, place=Place(place)) for n, (at, place) in enumerate(places)]
    records.append(_record(7, 9.0, StartMoved, place=Place.SLOT, address=Address("b")))
    records.append(_record(8, 9.5, Note, code=NoteCode.ODD))
    assert _lane(records, "servers", "a") == [
        ("waits for the circuit breaker", 0.0, 1.0),
        ("waits for a start permit", 1.0, 3.5),
    ]
    assert _lane(records, "servers", "b") == [("waits for a slot", 9.0, 9.5)]


def test_lanes_are_by_address_and_an_idle_one_is_empty() -> None:
    ann = Address.of_session("a", "ann")
    records = [
        _record(1, 0.0, Transition, before=State.CLOSED, after=State.IDLE),
        _record(2, 1.0, Transition, before=State.IDLE, after=State.CONNECTING, incarnation=2),
        _record(3, 1.0, Transition, before=State.IDLE, after=State.CONNECTING, address=ann),
        _record(4, 2.0, Transition, before=State.CONNECTING, after=State.CLOSED, address=ann),
        _record(5, 3.0, Note, address=None, code=NoteCode.ODD, words="two\nlines"),
        _record(6, 4.0, Transition, before=State.CONNECTING, after=State.IDLE, incarnation=2),
    ]
    assert _lane(records, "servers", "a") == [("connecting", 1.0, 4.0)]
    assert _lane(records, "servers", "a[session:ann]") == [("connecting", 1.0, 2.0)]
    assert _marks(records) == [("room", "two", 3.0, False)]


def test_a_call_is_named_by_its_tool_and_says_who_called() -> None:
    records = [*_life(), {"at": 9, "kind": "call", "call": 8, "server": "a", "detail": "accepted"}]
    answered = {"outcome": "result", "reach": "answered", "waited": 0.5, "taken": 0.25}
    whose = {"call": 7, "method": "tools/call", "client": "ann", "server": "a", "scope": "shared"}
    assert [(each["name"], each["about"]) for each in _of_kind(records, "call")] == [
        ("a_echo", {**whose, **answered}),
        ("call 8", {"call": 8, "server": "a", "outcome": "open"}),
    ]
    assert [each["about"] for each in _of_kind(records, "run")] == [{"call": 7, "incarnation": 1, **answered}]


def test_a_state_says_why_it_began_and_with_how_much_to_do() -> None:
    fields: dict[str, Any] = {"before": State.CONNECTED, "after": State.DRAINING, "incarnation": 3}
    lost = {"cause": Cause.LOST, "reason": Reason.DIED, "in_flight": 2, "queued": 1}
    records = [_record(1, 0.0, Transition, **fields, **lost)]
    (span,) = _of_kind(records, "state")
    said = {"incarnation": 3, "cause": "lost", "reason": Reason.DIED.value, "inFlight": 2, "queued": 1}
    assert {key: value for key, value in span["about"].items() if key != "detail"} == said
    ((lane, name, at, is_bad),) = _marks(records)
    assert (lane, name.partition(":")[0], at, is_bad) == ("a", "lost", 0.0, True)


_SOME_CALLS = st.tuples(st.integers(1, 4), st.sampled_from((CallAccepted, CallSent, CallEnded)))


@given(st.lists(st.tuples(st.integers(0, 3), _SOME_CALLS)))
def test_two_spans_of_a_lane_are_one_inside_the_other_or_apart(moves: list[Any]) -> None:
    at, records = 0.0, list[Record]()
    for seq, (pause, (call, make)) in enumerate(moves):
        at += pause
        records.append(
            _record(seq, at, make, **{**CALL, "call": call}, **_ENDED if make is CallEnded else {})
        )
    for lane in lanes_of(records):
        for one, other in itertools.combinations([(each["start"], each["end"]) for each in lane["spans"]], 2):
            (since, end), (since_2, end_2) = one, other
            apart = end <= since_2 or end_2 <= since
            assert apart or (since <= since_2 and end_2 <= end) or (since_2 <= since and end <= end_2)


def test_what_is_open_in_a_room_that_runs_ends_now() -> None:
    records = _life()[:4]
    (lane,) = (each for each in lanes_of(records, RoomNow(0.0, 50.0, ())) if each["name"] == "ann")
    (call,) = (each for each in lane["spans"] if each["kind"] == "call")
    assert (call["start"], call["end"], call["about"]["outcome"]) == (0.0, 50.0, "open")


def test_what_began_before_the_first_record_is_known_from_how_the_room_is() -> None:
    ended = [_record(1, 20.0, Transition, before=State.CONNECTED, after=State.DRAINING, incarnation=3)]
    rows = [
        ServerStatus("a", state=State.DRAINING, incarnation=3),
        ServerStatus("b", state=State.CONNECTED, incarnation=2),
        ServerStatus("b", "session:ann", state=State.CONNECTING),
        ServerStatus("c", waiting_for="slot", waiting=15.0),
        ServerStatus("d", waiting_for="slot", waiting=500.0),
        ServerStatus("e"),
    ]
    lanes = lanes_of(ended, RoomNow(10.0, 50.0, rows))
    spans = {
        (each["name"], each.get("scope"), span["name"], span["start"], span["end"], span.get("isCut", False))
        for each in lanes
        for span in each["spans"]
    }
    assert spans == {
        ("a", "shared", "connected", 10.0, 20.0, True),
        ("a", "shared", "draining", 20.0, 50.0, False),
        ("b", "shared", "connected", 10.0, 50.0, True),
        ("b[session:ann]", "session:ann", "connecting", 10.0, 50.0, True),
        ("c", "shared", "waits for a slot", 35.0, 50.0, False),
        ("d", "shared", "waits for a slot", 10.0, 50.0, True),
    }
