"""The sessions of the HTTP door: how many there may be, when they end, and what is kept of what has ended."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.test_http_request import Wire
from tests.support import in_virtual_time, run_virtual
from tests.support.bodies import body_of
from tests.support.kept import paths_to
from tests.support.loops import on_asyncio
from tests.support.rows import for_each

from greenroom.gateway.doors.caller_shares import Shares
from greenroom.gateway.doors.http_messages import PostedMessage
from greenroom.gateway.doors.http_request import Caller, HttpRefusal, Rules
from greenroom.gateway.doors.http_sessions import HttpSession, HttpSessions, Member
from greenroom.gateway.doors.http_streams import PostReply, SseStream
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.errors import UNKNOWN_PROFILE, UsageError

ANN, BOB = Caller("ann"), Caller("bob")


def read(text: bytes, key: bytes = b"") -> PostedMessage:
    return PostedMessage(rpc.read_client_line(text), key)


NOTE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


@attrs.define
class Hears:
    """A conversation that only hears: `receive` is given what its client sends."""

    receive: Callable[..., None] = lambda *_: None
    in_flight: int = 0
    may_be_several: bool = False


class Talk:
    """A session of the door whose conversation only hears."""

    def __init__(self, **rules: Any) -> None:
        self.session = HttpSession(Caller(), None, Rules(**rules), {})
        hears: Any = Hears()
        self.session.client = hears

    def asks(self, key: int | str) -> None:
        said = wired(key)
        self.session.take(
            PostedMessage(rpc.read_client_line(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % said), said)
        )

    def is_answered(self, key: int | str) -> None:
        assert self.session.send(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % wired(key))

    def cancels(self, key: int | str) -> None:
        text = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}' % wired(key)
        assert self.session.take(PostedMessage(rpc.read_client_line(text), b"")) is None


def wired(key: int | str) -> bytes:
    """A request id as it is written."""
    return json.dumps(key).encode()


# ---- one session ---------------------------------------------------------------------------------------------------


@for_each("is_stream", [False, True])
@for_each("end", [Talk.is_answered, Talk.cancels, lambda talk, _: talk.session.close()])
def test_nothing_is_kept_of_a_request_that_has_ended(
    end: Callable[[Talk, str], None], is_stream: bool
) -> None:
    talk = Talk(ended_streams=0)
    talk.asks("the one")
    if is_stream:
        talk.session.send(NOTE)
    assert paths_to(wired("the one"), within=(talk.session,))
    end(talk, "the one")
    assert paths_to(wired("the one"), within=(talk.session,)) == []
    talk.asks("the one")  # its id is free


@for_each(
    ("rules", "left"),
    [
        ({}, [1, 2, 3]),
        ({"ended_streams": 3}, [1, 2, 3]),
        ({"ended_streams": 2}, [2, 3]),
        ({"ended_streams": 0}, []),
        ({"ended_bytes": 3}, [1, 2, 3]),  # of three, each of one byte here
        ({"ended_bytes": 2}, [2, 3]),
        ({"ended_bytes": 0}, [3]),  # the last one is kept however long it is
    ],
)
def test_ended_streams_are_kept_up_to_their_bounds_and_the_oldest_goes_first(
    rules: Mapping[str, int], left: list[int]
) -> None:
    talk = Talk(**rules)
    for key in "abc":
        talk.asks(key)
        talk.session.send(NOTE)
        talk.session._streams[ord(key) - ord("a") + 1].size = 1
        talk.session._keep(talk.session._streams[ord(key) - ord("a") + 1])
    assert [stream.name for stream in talk.session._ended] == left
    assert list(talk.session._streams) == left


@pytest.mark.parametrize(("bound", "is_taken"), [(-1, False), (0, True), (1, True)])
def test_only_what_a_client_has_not_read_holds_notifications_up(bound: int, is_taken: bool) -> None:
    talk = Talk(busy_bytes=0)
    talk.asks("a")
    talk.session.send(NOTE)
    stream = talk.session._streams[1]
    talk.session._rules = Rules(busy_bytes=stream.unread + bound)
    assert talk.session.send(NOTE) is is_taken
    stream.read = stream.last
    talk.session._rules = Rules(busy_bytes=0)
    assert talk.session.send(NOTE), "it has read all that there was"


# ---- all sessions --------------------------------------------------------------------------------------------------


class Conversations:
    """Those of a room, for which each session is a name."""

    wants_callers = False

    def __init__(self) -> None:
        self.open_ones: list[str] = []

    @asynccontextmanager
    async def open(self, member: Member, spawn: Any, *, name: str, **_: Any) -> AsyncGenerator[Any]:
        self.open_ones.append(name)
        yield Hears()
        self.open_ones.remove(name)


async def _with_sessions(
    body: Callable[[HttpSessions, Conversations], Awaitable[None]], shares: int, rules: Rules
) -> None:
    async with anyio.create_task_group() as group:
        conversations = Conversations()
        sessions = HttpSessions(conversations, group, rules, shares=Shares(rules.max_sessions, shares))  # pyright: ignore[reportArgumentType]
        await body(sessions, conversations)
        sessions.end_all()
        await anyio.sleep(0.001)
        assert (len(sessions), conversations.open_ones) == (0, [])
        group.cancel_scope.cancel()


def with_sessions(
    body: Callable[[HttpSessions, Conversations], Awaitable[None]], shares: int = 1, **rules: Any
) -> None:
    run_virtual("asyncio", lambda: _with_sessions(body, shares, Rules(**rules)))


async def opened(sessions: HttpSessions, caller: Caller = ANN, *, has_no_session: bool = False) -> Any:
    if has_no_session:
        return await sessions.stateless_client(caller, None, {}, b"who %d" % len(sessions))
    return await sessions.open_session(caller, None, {})


@pytest.mark.parametrize("has_no_session", [False, True])
@body_of(with_sessions)
async def test_nothing_is_kept_of_a_session_that_has_ended(
    sessions: HttpSessions, conversations: Conversations, /, has_no_session: bool
) -> None:
    member = await opened(sessions, has_no_session=has_no_session)
    other = await opened(sessions, BOB, has_no_session=has_no_session)
    assert paths_to(member, within=(sessions,))
    sessions.end(member)
    sessions.end(member)
    sessions.touch(member)
    await anyio.sleep(0.001)
    assert paths_to(member, within=(sessions,)) == []
    assert (len(sessions), conversations.open_ones) == (1, ["http-2"])
    assert paths_to(other, within=(sessions,))


@pytest.mark.parametrize(("shares", "of_each", "in_all"), [(1, 4, 4), (2, 2, 4)])
@pytest.mark.parametrize("has_no_session", [False, True])
def test_no_one_of_several_callers_can_take_all_places(
    shares: int, of_each: int, in_all: int, has_no_session: bool
) -> None:
    async def main(sessions: HttpSessions, _: Conversations) -> None:
        first = [await opened(sessions, has_no_session=has_no_session) for _ in range(of_each)]
        with pytest.raises(HttpRefusal, match="sessions"):
            await opened(sessions, has_no_session=has_no_session)
        for _place in range(in_all - of_each):
            await opened(sessions, BOB, has_no_session=has_no_session)
        with pytest.raises(HttpRefusal, match="sessions"):
            await opened(sessions, Caller("eve"), has_no_session=has_no_session)
        sessions.end(first[0])
        await opened(sessions, has_no_session=has_no_session)

    with_sessions(main, shares, max_sessions=4)


@body_of(with_sessions)
async def test_a_session_is_found_by_who_opened_it_under_its_profile_and_by_nobody_else(
    sessions: HttpSessions, conversations: Conversations, /
) -> None:
    session = await sessions.open_session(ANN, "work", {})
    assert sessions.find(session.id, ANN, "work") is session
    for id_, caller, profile in (
        ("x", ANN, "work"), (session.id, BOB, "work"), (session.id, ANN, None), (session.id, ANN, "home"),
        (session.id, Caller("ann", "work"), "work"), (session.id, Caller("ann", None, "app"), "work"),
    ):  # fmt: skip
        with pytest.raises(HttpRefusal):
            sessions.find(id_, caller, profile)
    session.over.set()
    with pytest.raises(HttpRefusal):
        sessions.find(session.id, ANN, "work")
    session.over = anyio.Event()


@pytest.mark.parametrize("has_no_session", [False, True])
@body_of(with_sessions)
async def test_who_still_waits_when_a_session_ends_is_answered(
    sessions: HttpSessions, conversations: Conversations, /, has_no_session: bool
) -> None:
    member = await opened(sessions, has_no_session=has_no_session)
    reply = PostReply(b"7", lambda: SseStream(1, Rules()))
    member._replies[7 if has_no_session else b"7"] = reply
    sessions.end(member)
    assert reply.answer is not None
    assert (b'"id":7' in reply.answer, b'"error"' in reply.answer) == (True, True)


# ---- where each line goes --------------------------------------------------------------------------------------------

REQUEST = b'{"jsonrpc":"2.0","id":"greenroom-1","method":"roots/list"}'


def events(stream: SseStream) -> list[bytes]:
    """The messages that no reader has had."""
    text = b"".join(stream._unread_frames())
    return [line[6:] for line in text.splitlines() if line.startswith(b"data: {")]


@for_each("listens", [False, True])
@for_each("waits", [False, True])
def test_a_server_request_goes_to_the_latest_call_and_a_note_to_who_listens(
    listens: bool, waits: bool
) -> None:
    talk = Talk()
    session = talk.session
    if waits:
        talk.asks("a")
        talk.asks("b")
    if listens:
        session._standalone()._reader = cast("Any", object())
    assert session.is_listening is listens
    assert session.send(REQUEST)
    assert session.send(NOTE)
    found = {name: events(stream) for name, stream in session._streams.items()}
    if waits:
        assert found == ({0: [NOTE], 1: [REQUEST]} if listens else {1: [REQUEST, NOTE]})
        assert session._replies[b'"b"'].stream is session._streams[1]
    else:
        assert found == {0: [REQUEST, NOTE]}
    if waits:
        session._streams[1]._reader = cast("Any", object())
        assert session.is_listening, "the stream of a call is one, too"


def test_a_note_does_not_wait_for_a_client_that_no_longer_listens_while_a_call_of_it_waits() -> None:
    talk = Talk()
    assert talk.session.send(NOTE)
    talk.asks("a")
    assert talk.session.send(NOTE)
    found = {name: events(stream) for name, stream in talk.session._streams.items()}
    assert found == {0: [NOTE], 1: [NOTE]}


def test_a_server_request_is_kept_for_a_client_that_does_not_read_and_a_note_is_not() -> None:
    talk = Talk(busy_bytes=0)
    session = talk.session
    session._standalone()._reader = cast("Any", object())
    assert [session.send(NOTE), session.send(NOTE)] == [True, False]
    assert session.send(REQUEST)
    assert events(session._streams[0]) == [NOTE, REQUEST]


def test_progress_goes_to_the_call_that_asked_for_it() -> None:
    talk = Talk()
    for key, token in (("a", None), ("b", b'"1"'), ("c", b"1")):
        meta = b"" if token is None else b',"params":{"_meta":{"progressToken":%b}}' % token
        text = b'{"jsonrpc":"2.0","id":%b,"method":"ping"%b}' % (wired(key), meta)
        talk.session.take(read(text, wired(key)))
    for token, key in ((b"1", "c"), (b'"1"', "b"), (b"null", None), (b"2", None)):
        line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b}}' % token
        assert talk.session.send(line) is (key is not None)
        if key is not None:
            stream = talk.session._replies[wired(key)].stream
            assert stream is not None
            assert events(stream) == [line]
    assert talk.session._replies[wired("a")].stream is None


def test_an_answer_under_an_id_that_nobody_gave_is_that_of_the_request_that_is_read() -> None:
    """An answer to what cannot be read may have no id."""
    talk = Talk()

    def receive(*_: Any) -> None:
        assert talk.session.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}')

    talk.session.client = cast("Any", Hears(receive))
    text = b'{"jsonrpc":"2.0","id":"a","method":"ping"}'
    reply = talk.session.take(read(text, b'"a"'))
    assert reply is not None
    assert reply.answer is not None
    assert talk.session._replies == {}
    assert talk.session.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}')
    assert (talk.session._current, talk.session._replies) == (None, {})


def test_a_session_that_ends_ends_its_streams() -> None:
    talk = Talk()
    talk.asks("a")
    talk.session.send(NOTE)
    standalone = talk.session._standalone()
    talk.session.close()
    assert standalone.ended
    assert all(stream.ended for stream in talk.session._streams.values())


@on_asyncio
@in_virtual_time
async def test_a_stream_that_has_said_something_begins_with_that() -> None:
    talk = Talk()
    talk.session.version = "2025-11-25"
    talk.asks("a")
    talk.session.send(NOTE)
    wire = Wire()
    reply = talk.session._replies[wired("a")]
    talk.is_answered("a")
    talk.session.answer(reply, wire.request())
    await anyio.sleep(0.1)
    assert wire.written.startswith(b"id: 1-1\nevent: message\ndata: " + NOTE)
    assert wire.written.count(b"id: ") == 2
    assert (b"mcp-session-id", talk.session.id.encode()) in wire.headers


@on_asyncio
@in_virtual_time
async def test_a_get_is_answered_at_once_and_names_its_session() -> None:
    talk, wire = Talk(), Wire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk.session.listen, wire.request("GET"), None)
        await anyio.sleep(0.1)
        assert wire.written == b": \n\n"
        assert (b"mcp-session-id", talk.session.id.encode()) in wire.headers
        talk.session.close()


# ---- clients without a session ---------------------------------------------------------------------------------------


@body_of(with_sessions)
async def test_whoever_differs_in_anything_is_another_client(
    sessions: HttpSessions, conversations: Conversations, /
) -> None:
    seen: list[Any] = []
    for caller, profile, variables, who in (
        (ANN, None, {}, b"a"),
        (BOB, None, {}, b"a"),
        (Caller("ann", None, "program"), None, {}, b"a"),
        (ANN, "work", {}, b"a"),
        (ANN, None, {"TOKEN": "x"}, b"a"),
        (ANN, None, {"TOKEN": "y"}, b"a"),
        (ANN, None, {}, b"b"),
    ):
        stateless = await sessions.stateless_client(caller, profile, variables, who)
        assert stateless not in seen
        assert await sessions.stateless_client(caller, profile, dict(variables), who) is stateless
        seen.append(stateless)
    assert len(sessions) == 7


@on_asyncio
@in_virtual_time
async def test_requests_that_come_together_are_of_one_client_also_when_it_cannot_be_let_in() -> None:
    class Slow(Conversations):
        refuses = True

        @asynccontextmanager
        async def open(self, member: Member, spawn: Any, *, name: str, **how: Any) -> AsyncGenerator[Any]:
            await anyio.sleep(1.0)
            if self.refuses:
                raise UsageError("There is no such profile.", code=UNKNOWN_PROFILE)
            async with super().open(member, spawn, name=name, **how) as client:
                yield client

    conversations = Slow()
    async with anyio.create_task_group() as group:
        sessions = HttpSessions(conversations, group, Rules(), shares=Shares(1_000))  # pyright: ignore[reportArgumentType]
        found: list[Any] = []

        async def come() -> None:
            try:
                found.append(await sessions.stateless_client(ANN, None, {}, b"a"))
            except HttpRefusal as refusal:
                found.append(refusal.status)

        for refuses in (True, False):
            conversations.refuses = refuses
            async with anyio.create_task_group() as clients:
                for _ in range(3):
                    clients.start_soon(come)
            if refuses:
                assert (found, len(sessions)) == ([404] * 3, 0)
                found.clear()
        assert len({id(each) for each in found}) == len(conversations.open_ones) == len(sessions) == 1
        first = found[0]
        first.over.set()  # it is just ending
        await come()
        assert found[-1] is not first
        sessions.end_all()
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("most", "of_each"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_of_several_callers_each_has_at_least_one_place(most: int, of_each: int) -> None:
    async def main(sessions: HttpSessions, _: Conversations) -> None:
        for _number in range(of_each):
            await opened(sessions)
        with pytest.raises(HttpRefusal, match="sessions"):
            await opened(sessions)

    with_sessions(main, 2, max_sessions=most)


@given(
    most=st.integers(1, 40),
    tokens=st.integers(2, 6),
    steps=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=200),
)
def test_whatever_others_take_each_caller_gets_something_and_an_owner_more(
    most: int, tokens: int, steps: list[tuple[int, bool]]
) -> None:
    """Of an owner (0) and other callers, each takes and gives back as it likes."""
    shares, held = Shares(most, tokens, has_owners=True), [0] * tokens
    callers = [Caller(f"t{number}", is_owner=number == 0) for number in range(tokens)]
    for number, takes in steps:
        number %= tokens
        if takes:
            held[number] += shares.take(callers[number])
        elif held[number]:
            shares.give_back(callers[number])
            held[number] -= 1
        assert len(shares) == sum(held) <= most
        assert max(held[1:]) <= max(1, most // 2)
    of_others = sum(held[1:])
    if held[0] < most // 4:
        assert shares.has_room_for(callers[0])
        assert of_others <= most - most // 4 + sum(0 < each <= most // (2 * tokens) for each in held)
