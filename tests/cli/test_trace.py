"""The timeline that is made of an event log."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import until
from tests.support.gateway import faulty, serve

from greenroom.gateway.timeline import Trace, trace_of
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Reach
from greenroom.protocol.event_records import record_of
from greenroom.protocol.events import (
    CallAccepted,
    CallEnded,
    CallSent,
    Event,
    GateDecision,
    GateMove,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Transition,
)
from greenroom.protocol.lifecycle import Cause, Reason, State


def _line(seq: int, at: float, make: type[Event], **fields: Any) -> str:
    fields = {"address": Address("a"), "incarnation": 1, **fields}
    return json.dumps(record_of(make(seq=seq, at=at, **fields)))


CALL: dict[str, Any] = {"call": 7, "method": "tools/call", "tool": "a_echo", "client": "ann"}


_ENDED: dict[str, Any] = {"outcome": "result"}


def _life() -> list[str]:
    return [
        _line(1, 0.0, CallAccepted, **CALL),
        _line(2, 0.0, Transition, before=State.IDLE, after=State.CONNECTING),
        _line(3, 0.5, Transition, before=State.CONNECTING, after=State.CONNECTED),
        _line(4, 0.5, CallSent, **CALL, waited=0.5),
        _line(5, 0.75, CallEnded, **CALL, outcome="result", reach=Reach.ANSWERED, waited=0.5, taken=0.25),
        _line(6, 0.8, GateDecision, move=GateMove.ANSWERED),
        _line(7, 2.0, Transition, before=State.CONNECTED, after=State.DRAINING),
        _line(8, 2.25, Transition, before=State.DRAINING, after=State.CLOSED),
    ]


def test_each_state_is_a_span_in_the_lane_of_its_address() -> None:
    trace = trace_of(_life())

    spans = [(e["name"], e["ts"], e["dur"]) for e in _in_lane(trace, "servers", "a") if e["ph"] == "X"]
    assert spans == [
        ("connecting", 0, 500_000),
        ("connected", 500_000, 1_500_000),
        ("draining", 2_000_000, 250_000),
    ]
    assert {"name": "thread_name", "ph": "M", "pid": 2, "tid": 1, "args": {"name": "a"}} in trace.events


def _in_lane(trace: Trace, group: str, lane: str) -> list[dict[str, Any]]:
    """The events in this lane of `clients` or `servers`."""
    pid = next(e["pid"] for e in trace.events if e["ph"] == "M" and e["args"]["name"] == group)
    names = {(e["pid"], e["args"]["name"]): e["tid"] for e in trace.events if e["name"] == "thread_name"}
    where = pid, names[pid, lane]
    return [e for e in trace.events if (e["pid"], e["tid"]) == where and e["ph"] != "M"]


def _runs(trace: Trace) -> list[dict[str, Any]]:
    """The spans of calls at their servers."""
    return [e for e in trace.events if e["ph"] == "X" and e["cat"] == "run"]


def _around(trace: Trace, event: dict[str, Any]) -> list[str]:
    """The names of the spans of the same lane in which it happened."""
    same = [
        e for e in trace.events if e["ph"] == "X" and (e["pid"], e["tid"]) == (event["pid"], event["tid"])
    ]
    return [e["name"] for e in same if e["ts"] <= event["ts"] <= e["ts"] + e["dur"]]


def test_a_call_is_a_span_of_its_client_with_a_flow_into_the_incarnation_that_ran_it() -> None:
    trace = trace_of(_life())

    spans = [(e["name"], e["ts"], e["dur"]) for e in _in_lane(trace, "clients", "ann") if e["ph"] == "X"]
    assert spans == [("queue", 0, 500_000), ("a_echo", 0, 750_000)]
    run = [(e["ph"], e["ts"]) for e in _in_lane(trace, "servers", "a: calls")]
    assert run == [("f", 500_000), ("X", 500_000)]
    start, end = (next(e for e in trace.events if e["ph"] == phase) for phase in "sf")
    assert start["id"] == end["id"]
    assert _around(trace, start) == ["queue", "a_echo"]
    assert _around(trace, end) == ["a_echo"]
    assert [e["name"] for e in trace.events if e["ph"] == "i"] == ["circuit breaker: reset: it answered"]


def test_what_is_open_when_the_log_ends_is_closed_there() -> None:
    trace = trace_of(_life()[:4])

    spans = [(e["name"], e["dur"]) for e in trace.events if e["ph"] == "X"]
    call = [("a_echo", 500_000), ("a_echo", 1)]  # an arrow does not find a span of no length
    assert spans == [("connecting", 500_000), ("queue", 500_000), ("connected", 0), *call]
    assert [e["args"]["outcome"] for e in _runs(trace)] == ["open at the end of the log"]


def test_what_a_call_waited_for_is_inside_it_and_calls_at_once_have_lanes_of_their_own() -> None:
    second = {**CALL, "call": 8}
    moves = [(0.0, "slot"), (2.0, "permit"), (2.0, "starting"), (3.0, "live")]
    lines = [
        _line(1, 0.0, CallAccepted, **CALL),
        *(_line(2, at, StartMoved, place=Place(place)) for at, place in moves if at < 3),
        _line(3, 2.5, CallAccepted, **second),
        _line(4, 3.0, StartMoved, place=Place("live")),
        _line(5, 3.0, CallSent, **CALL),
        _line(6, 3.5, CallSent, **second),
        _line(7, 4.0, CallEnded, **CALL, outcome="result"),
        _line(8, 4.0, CallAccepted, **{**CALL, "call": 9, "client": None}),
        _line(9, 5.0, CallEnded, **second, outcome="timeout"),
    ]
    trace = trace_of(lines)

    def spans(lane: str) -> list[tuple[str, int, int]]:
        return [(e["name"], e["ts"], e["dur"]) for e in _in_lane(trace, "clients", lane) if e["ph"] == "X"]

    assert spans("ann") == [
        ("slot", 0, 2_000_000),
        ("connect", 2_000_000, 1_000_000),
        ("a_echo", 0, 4_000_000),
    ]
    assert spans("ann (2)") == [
        ("connect", 2_500_000, 500_000),
        ("queue", 3_000_000, 500_000),
        ("a_echo", 2_500_000, 2_500_000),
    ]
    assert spans("the room") == [("a_echo", 4_000_000, 1_000_000), ("queue", 4_000_000, 1_000_000)]


def test_a_call_that_was_sent_again_has_an_arrow_to_each_incarnation() -> None:
    lines = [
        *_life()[:4],
        _line(5, 0.6, Transition, before=State.CONNECTED, after=State.CLOSED),
        _line(6, 0.7, Transition, before=State.CONNECTING, after=State.CONNECTED, incarnation=2),
        _line(7, 0.7, CallSent, **CALL, incarnation=2),
        _line(8, 0.9, CallEnded, **CALL, incarnation=2, outcome="result"),
    ]
    trace = trace_of(lines)
    assert [(e["ts"], e["dur"], e["args"]) for e in _runs(trace)] == [
        (500_000, 200_000, {"call": 7, "incarnation": 1, "waited": 0.5, "outcome": "sent again"}),
        (700_000, 200_000, {"call": 7, "incarnation": 2, "outcome": "result", "reach": "not_sent"}),
    ]
    ends = [e for e in trace.events if e["ph"] == "f"]
    assert len({e["id"] for e in ends}) == 2
    assert [e["ts"] for e in ends] == [500_000, 700_000]


def test_what_it_waited_for_before_it_connected_is_a_span_each() -> None:
    places = [
        (0.0, "gate"),
        (1.0, "slot"),
        (1.0, "permit"),
        (3.5, "starting"),
        (4.0, "live"),
        (8.0, "leaving"),
        (9.0, "out"),
    ]
    lines = [_line(n, at, StartMoved, place=Place(place)) for n, (at, place) in enumerate(places)]
    lines.append(_line(7, 9.0, StartMoved, place=Place.SLOT, address=Address("b")))
    lines.append(_line(8, 9.5, Note, code=NoteCode.ODD))

    spans = [(e["name"], e["cat"], e["ts"], e["dur"]) for e in trace_of(lines).events if e["ph"] == "X"]
    assert spans == [
        ("waits for circuit breaker", "wait", 0, 1_000_000),
        ("waits for permit", "wait", 1_000_000, 2_500_000),
        ("waits for slot", "wait", 9_000_000, 500_000),
    ]


def test_lanes_are_by_address_and_an_idle_one_is_empty() -> None:
    ann = Address.of_session("a", "ann")
    lines = [
        _line(1, 0.0, Transition, before=State.CLOSED, after=State.IDLE),
        _line(2, 1.0, Transition, before=State.IDLE, after=State.CONNECTING, incarnation=2),
        _line(3, 1.0, Transition, before=State.IDLE, after=State.CONNECTING, address=ann),
        _line(4, 2.0, Transition, before=State.CONNECTING, after=State.CLOSED, address=ann),
        _line(5, 3.0, Note, address=None, code=NoteCode.ODD, words="two\nlines"),
        _line(6, 4.0, Transition, before=State.CONNECTING, after=State.IDLE, incarnation=2),
        "",
        "no record",
        "[]",
        '{"at": "now"}',
    ]
    trace = trace_of(lines)

    spans = [(e["tid"], e["ts"], e["dur"], e["args"]["incarnation"]) for e in trace.events if e["ph"] == "X"]
    assert spans == [(1, 1_000_000, 1_000_000, 1), (3, 1_000_000, 3_000_000, 2)]
    lanes = {e["tid"]: e["args"]["name"] for e in trace.events if e["name"] == "thread_name"}
    assert lanes == {1: "a[session:ann]", 2: "room", 3: "a"}
    assert [(e["name"], e["tid"]) for e in trace.events if e["ph"] == "i"] == [("two", 2)]
    assert trace.skipped == 3


def test_a_call_that_has_ended_is_open_no_more() -> None:
    trace = trace_of(_life())
    said = {"outcome": "result", "reach": "answered", "waited": 0.5, "taken": 0.25}
    assert [e["args"] for e in _runs(trace)] == [{"call": 7, "incarnation": 1, **said}]


def test_a_call_is_named_by_its_tool_and_says_who_called() -> None:
    lines = [*_life(), '{"at": 9, "kind": "call", "call": 8, "server": "a", "detail": "accepted"}']
    spans = [(e["name"], e["args"]) for e in trace_of(lines).events if e["ph"] == "X" and e["cat"] == "call"]
    answered = {"outcome": "result", "reach": "answered", "waited": 0.5, "taken": 0.25}
    assert spans == [
        (
            "a_echo",
            {
                "call": 7,
                "method": "tools/call",
                "client": "ann",
                "server": "a",
                "scope": "shared",
                **answered,
            },
        ),
        (
            "call 8",
            {"call": 8, "server": "a", "outcome": "open at the end of the log"},
        ),  # of an earlier version
    ]


def test_a_state_says_why_it_began_and_with_how_much_to_do() -> None:
    fields: dict[str, Any] = {"before": State.CONNECTED, "after": State.DRAINING, "incarnation": 3}
    lost = {"cause": Cause.LOST, "reason": Reason.DIED, "in_flight": 2, "queued": 1}
    trace = trace_of([_line(1, 0.0, Transition, **fields, **lost)])
    (span,) = [e for e in trace.events if e["ph"] == "X"]
    said = {"cause": "lost", "reason": Reason.DIED.value, "inFlight": 2, "queued": 1}
    assert {key: value for key, value in span["args"].items() if key != "detail"} == {
        "incarnation": 3,
        **said,
    }


def test_the_arrows_of_calls_at_once_lead_to_lanes_of_their_own() -> None:
    second = {**CALL, "call": 8}
    lines = [*_life()[:4], _line(5, 0.6, CallAccepted, **second), _line(6, 0.6, CallSent, **second)]
    trace = trace_of([*lines, _line(7, 0.7, CallEnded, **CALL, outcome="result")])
    ends = [e for e in trace.events if e["ph"] == "f"]
    assert [type(e["id"]) for e in ends] == [int, int]  # Perfetto leaves out an arrow whose id is no number
    assert [_around(trace, end) for end in ends] == [["a_echo"], ["a_echo"]]
    assert len({e["tid"] for e in ends}) == 2


_SOME_CALLS = st.tuples(st.integers(1, 4), st.sampled_from((CallAccepted, CallSent, CallEnded)))


@given(st.lists(st.tuples(st.integers(0, 3), _SOME_CALLS)))
def test_two_spans_of_a_lane_are_one_inside_the_other_or_apart(moves: list[Any]) -> None:
    at, lines = 0.0, list[str]()
    for seq, (pause, (call, make)) in enumerate(moves):
        at += pause * 1e-6
        lines.append(_line(seq, at, make, **{**CALL, "call": call}, **_ENDED if make is CallEnded else {}))
    spans = [e for e in trace_of(lines).events if e["ph"] == "X"]
    for first, second in itertools.combinations(spans, 2):
        if (first["pid"], first["tid"]) == (second["pid"], second["tid"]):
            (since, end), (since_2, end_2) = ((e["ts"], e["ts"] + e["dur"]) for e in (first, second))
            apart = end <= since_2 or end_2 <= since
            assert apart or (since <= since_2 and end_2 <= end) or (since_2 <= since and end <= end_2)


@given(st.lists(st.one_of(st.text(), st.sampled_from(_life()))))
def test_no_line_breaks_it(lines: list[str]) -> None:
    json.loads(trace_of(lines).to_json())


def test_the_log_of_a_real_gateway_becomes_a_timeline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from greenroom.cli.main import run

    log = tmp_path / "events.jsonl"
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, "--events", str(log)) as gateway:
        gateway.initialize()
        for text in ("one", "two"):
            gateway.mcp(tool="a_echo", args={"text": text})
        gateway.end()

    assert run(["trace", str(log)]) == 0

    trace = json.loads(capfd.readouterr().out)["traceEvents"]
    assert [e["name"] for e in trace if e.get("cat") == "state"][:2] == ["connecting", "connected"]
    calls = [e for e in trace if e["ph"] == "X" and e["cat"] == "call"]
    assert [(e["name"], e["args"]["method"], e["args"]["client"]) for e in calls] == [
        ("a_echo", "tools/call", "stdio")
    ] * 2
    assert [(e["args"]["outcome"], e["args"]["reach"]) for e in calls] == [("result", "answered")] * 2
    assert all(e["args"]["taken"] > 0 and e["args"]["waited"] >= 0 for e in calls)

    written = tmp_path / "timeline.json"
    assert run(["trace", str(log), "--output", str(written), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told == {"output": str(written), "events": len(trace), "skipped": 0}
    assert json.loads(written.read_text())["traceEvents"] == trace


def test_the_last_minutes_of_a_running_gateway_become_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenroom.cli.main import run

    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={"text": "one"})
        hung = gateway.start_mcp(tool="a_sleep", args={"seconds": 60})
        for name, value in (
            ("XDG_RUNTIME_DIR", tmp_path),
            ("XDG_CACHE_HOME", tmp_path / "cache"),
            ("HOME", tmp_path),
        ):
            monkeypatch.setenv(name, os.fspath(value))
        where = ("--config", os.fspath(tmp_path / "mcp.json"))

        def traced(*options: str) -> list[dict[str, Any]]:
            assert run(["trace", *where, *options]) == 0
            return json.loads(capfd.readouterr().out)["traceEvents"]

        def open_calls() -> list[dict[str, Any]]:
            found = [
                e
                for e in traced("--pid", str(gateway.process.pid))
                if e.get("cat") == "call" and e["ph"] == "X"
            ]
            return found if len(found) == 2 else []

        echo, sleep = until(open_calls, "both calls")
        assert (echo["name"], echo["args"]["outcome"]) == ("a_echo", "result")
        assert (sleep["name"], sleep["args"]["outcome"]) == ("a_sleep", "open at the end of the log")
        whole = traced()
        assert [e["name"] for e in whole if e.get("cat") == "state"] == ["connecting", "connected"]
        assert len([e for e in whole if e["ph"] == "f"]) == 2
        time.sleep(0.2)
        late = traced("--minutes", "0.001")
        assert [e["name"] for e in late if e.get("cat") == "call" and e["ph"] == "X"] == ["a_sleep"]
        assert run(["trace", *where, "--minutes", "1", os.fspath(tmp_path / "mcp.json")]) == 2
        assert "for a running gateway" in capfd.readouterr().err
        gateway.notify("notifications/cancelled", {"requestId": hung})
        gateway.end()
    assert run(["trace", *where]) == 2
    assert "No gateway runs for this configuration" in capfd.readouterr().err
