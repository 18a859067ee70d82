"""Events out of chunks: the same however they are cut, within a bound, at little more than the cost of their bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.actors.transports.event_parser import EventParser, ServerEvent


def parser(limit: int = 1 << 20) -> tuple[EventParser, list[bytes]]:
    heads: list[bytes] = []
    return EventParser(limit, lambda head, _bound: heads.append(head)), heads


STREAM = (
    b": hello\r\nid: 7\nretry: 250\n\nevent: endpoint\r\ndata:/a\r\n\r\n"
    b"data: one\rdata:  two\r\rdata\n\nid: 8\ndata: {}\n\n"
)
EVENTS = [
    ServerEvent("endpoint", b"/a"),
    ServerEvent("message", b"one\n two"),
    ServerEvent("message", b"{}"),
]


@given(st.lists(st.integers(1, 12), max_size=60))
def test_events_are_the_same_however_they_are_cut(sizes: list[int]) -> None:
    events, _ = parser()
    found: list[ServerEvent] = []
    rest = STREAM
    for size in sizes:
        found += events.feed(rest[:size])
        rest = rest[size:]
    found += events.feed(rest)
    assert found == EVENTS
    assert (events.last_id, events.retry) == ("8", 0.25)


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_an_event_over_the_bound_ends_where_it_ends_wherever_it_is_cut(ending: bytes) -> None:
    lines = [
        b"id: 1",
        b"data: " + b"y" * 20,
        b": note",
        b"data: more",
        b"data: tail",
        b"",
        b"data: after",
        b"",
        b"",
    ]
    data = ending.join(lines)
    for first in range(len(data)):
        for second in range(first, len(data)):
            events, heads = parser(limit=10)
            pieces = (data[:first], data[first:second], data[second:])
            found = [event for piece in pieces for event in events.feed(piece)]
            assert found == [ServerEvent("message", b"after")], pieces
            assert len(heads) == 1
    events, heads = parser(limit=10)
    found = [event for at in range(len(data)) for event in events.feed(data[at : at + 1])]
    assert (found, len(heads)) == ([ServerEvent("message", b"after")], 1)


@for_each("line", [b"data: " + b"x" * 100, b"data:\n", b"data: x\r\n"])
@for_each("size", [7, 1 << 13])
def test_an_event_costs_little_more_than_its_bytes(line: bytes, size: int) -> None:
    limit = 1 << 17
    events, heads = parser(limit)
    data = line * (limit // len(line) - 1)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    tracemalloc.start()
    try:
        for piece in pieces:
            assert events.feed(piece) == []
        found = [event for end in (b"\n", b"\n", b"\n") for event in events.feed(end)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found), heads) == (1, [])
    assert peak < 2 * len(data) + 50 * size + 16_384  # what else of the process allocates meanwhile


@for_each(
    ("stream", "found"),
    [
        (b"event: ping\n\ndata: x\n\n", [("message", b"x")]),  # a name is of one event, with or without data
        (b"event: ping\ndata: x\n\ndata: y\n\n", [("ping", b"x"), ("message", b"y")]),
        (b"event: a\nevent: b\ndata: x\n\n", [("b", b"x")]),
        (b"event:\ndata: x\n\n", [("message", b"x")]),
        (b"event: " + b"n" * 300 + b"\ndata: x\n\n", [("n" * 256, b"x")]),
        (b"data:\ndata: x\n\n", [("message", b"\nx")]),
        (b"data:\ndata:\n\n", [("message", b"\n")]),
        (b"data\n\ndata:  x \n\n", [("message", b" x ")]),
        (b"datas: x\n\n: data: y\n\n", []),
        (b"data: x", []),
    ],
)
def test_what_an_event_is(stream: bytes, found: list[tuple[str, bytes]]) -> None:
    for size in (1, 2, 3, len(stream)):
        events, heads = parser()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        seen = [event for piece in pieces for event in (*events.feed(piece), *events.feed(b""))]
        assert [(event.name, bytes(event.data)) for event in seen] == found
        assert heads == []


def test_a_line_that_ends_in_both_ways_ends_once_however_it_is_cut() -> None:
    for pieces in (
        (b"data: a\r", b"", b"\n\r", b"\n"),
        (b"data: a\r", b"\ndata: b\r\n\r\n"),
        (b"data: a\r", b"\r"),
    ):
        events, _ = parser()
        seen = [bytes(event.data) for piece in pieces for event in events.feed(piece)]
        assert seen == [b"a\nb" if b"data: b" in b"".join(pieces) else b"a"]


@for_each(("size", "fits"), [(64, True), (65, False)])
@for_each("cut", [3, 40, 200])
def test_an_event_of_just_the_bound_is_kept_and_one_over_it_is_told(size: int, fits: bool, cut: int) -> None:
    told: list[tuple[bytes, str]] = []
    events = EventParser(64, lambda head, bound: told.append((head, bound)))
    data = b"data: " + b"x" * size + b"\n\n"
    seen = [event for piece in (data[:cut], data[cut:]) for event in events.feed(piece)]
    assert [len(event.data) for event in seen] == ([size] if fits else [])
    assert told == ([] if fits else [(b"x" * size, "64 bytes an event")])


@for_each(
    ("said", "seconds"),
    [
        *[(b"0", 0.02), (b"19", 0.02), (b"21", 0.021), (b"999999999", 999_999.999), (b"1000000000", None)],
        *[(b"-5", None), (b"soon", None), (b"1e3", None)],
    ],
)
def test_the_time_until_a_stream_is_opened_again_is_in_milliseconds_and_never_nothing(
    said: bytes, seconds: float | None
) -> None:
    events, _ = parser()
    events.feed(b"retry: " + said + b"\n\n")
    assert events.retry == seconds


def test_an_id_has_its_bound_and_a_line_that_is_no_data_too() -> None:
    events, _ = parser()
    for said, kept in (("e1", True), ("é", True), ("a\tb", False), ("x" * 4096, True), ("x" * 4097, False)):
        events.feed(b"id: " + said.encode() + b"\n\n")
        assert events.last_id == (said if kept else "")
    events.feed(b"id: 7\n\n" + b"id: 8\0\n\n")
    assert events.last_id == "7", "one with a zero byte is none"
    events.feed(b"id\n\n")
    assert events.last_id == "", "an empty one resets it"
    for _ in range(50):
        assert events.feed(b": " + b"x" * 1000) == []
    assert [bytes(event.data) for event in events.feed(b"\ndata: y\n\n")] == [b"y"]
