"""Who reads a stream of the HTTP door: what came after the last it had, each once, and signs of life between."""

from __future__ import annotations

import itertools
import json

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request as PageRequest
from tests.gateway.test_http_request import Headers, Wire, virtually
from tests.support.bodies import body_of

from greenroom.gateway.doors.http_paths import as_asgi
from greenroom.gateway.doors.http_request import (
    Caller,
    Rules,
)
from greenroom.gateway.doors.http_streams import Feed, PostReply, SseStream, reply_time
from greenroom.protocol.events import Note, NoteCode


@body_of(virtually)
async def test_who_claims_to_have_read_what_has_not_come_yet_hears_what_comes() -> None:
    stream, wire = SseStream(0, Rules()), Wire()
    stream.put(b"1")
    async with anyio.create_task_group() as tasks:
        request = wire.request("GET")
        request.begin_stream()
        tasks.start_soon(stream.pump, request, 900)
        await anyio.sleep(1.0)
        assert wire.written == b""
        stream.put(b"2")
        stream.end()
    assert wire.written == b"id: 0-2\nevent: message\ndata: 2\n\n"


@body_of(virtually)
async def test_an_older_reader_that_goes_takes_nothing_from_the_newer_one() -> None:
    stream, older, newer = SseStream(0, Rules()), Wire(), Wire()
    async with anyio.create_task_group() as tasks:
        first, second = older.request("GET"), newer.request("GET")
        first.begin_stream()
        second.begin_stream()
        tasks.start_soon(stream.pump, first)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(stream.pump, second)
        await anyio.lowlevel.checkpoint()
        older.goes()
        await anyio.sleep(1.0)
        assert stream.has_reader
        stream.put(b"1")
        await anyio.sleep(1.0)
        assert (older.written, newer.written) == (b"", b"id: 0-1\nevent: message\ndata: 1\n\n")
        newer.goes()
        await anyio.sleep(1.0)
        assert not stream.has_reader
    assert stream.unread == 0


@body_of(virtually)
async def test_a_reply_that_is_a_stream_already_is_not_waited_for() -> None:
    reply = PostReply(b"1", lambda: SseStream(1, Rules()))
    reply.become_stream()
    then: list[bool] = []
    reply.when_decided(lambda: then.append(True), reply_time(3600.0))
    assert then == [True]


async def shown(feed: Feed, wire: Wire, headers: Headers = ()) -> None:
    scope, receive, send = as_asgi(wire.request("GET", headers))
    scope["state"]["caller"] = Caller()
    answer = await feed.show(PageRequest(scope))
    await answer(scope, receive, send)


@body_of(virtually)
async def test_a_silent_feed_says_now_and_then_that_it_lives() -> None:
    feed, wire = Feed(15.0), Wire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown, feed, wire)
        await anyio.sleep(50.0)
        feed.close()
    assert wire.written == b": \n\n" * 4


def fed(count: int) -> Feed:
    """One that has heard so many events, of which the first has the number 1000."""
    feed = Feed(15.0)
    for number in range(count):
        feed.hear(Note(seq=1000 + number, at=0.0, code=NoteCode.ODD, words="x"))
    return feed


@pytest.mark.parametrize(
    ("given", "before", "first"),
    [
        (None, None, None),  # from now on
        ("x", None, None),
        ("-1", None, None),
        ("²", None, None),
        ("", None, None),
        ("9" * 30, None, None),
        ("2003", None, None),
        ("2002", None, 2003),
        ("1700", None, 1701),
        ("1004", None, 1005),
        ("1003", None, 1004),  # the latest that is no longer kept: nothing is missed
        ("1002", 1004, 1004),
        ("0", 1004, 1004),
    ],
)
@body_of(virtually)
async def test_a_reader_of_events_hears_all_that_came_after_the_last_it_had(
    given: str | None, before: int | None, first: int | None
) -> None:
    feed, wire = fed(1_004), Wire()
    headers = [(b"last-event-id", given.encode("latin-1"))] if given is not None else []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown, feed, wire, headers)
        await anyio.sleep(1.0)
        feed.hear(Note(seq=2004, at=0.0, code=NoteCode.ODD, words="x"))
        await anyio.sleep(1.0)
        feed.close()
    lines = wire.written.decode().splitlines()
    found = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
    assert found == list(range(first or 2004, 2005))
    missed = [
        json.loads(data.removeprefix("data: "))
        for line, data in itertools.pairwise(lines)
        if line == "event: lagged"
    ]
    assert missed == ([{"before": before}] if before else [])
    assert wire.is_whole, "it has ended"
