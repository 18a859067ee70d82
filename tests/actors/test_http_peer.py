"""Exchanges over HTTP beside each other, carried by whatever the test says, in virtual time: who waits for whom, and
what is told when the connection is over.

What the two carriers make of HTTP is in `test_http_carriers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.loops import on_asyncio
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.peer import LostReason
from greenroom.actors.transports.http_faults import (
    BadAnswer,
    ExchangeBroken,
    ExchangeFault,
    LoginNeeded,
    SessionExpired,
    WrongTransport,
)
from greenroom.actors.transports.http_peer import LAST_ANSWERS, LISTENS_WITHIN, Attempt, HttpPeer
from greenroom.actors.transports.streamable_http import AnswerStream
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.incoming import decode_line
from greenroom.protocol.lifecycle import Reason


class Scripted:
    """A carrier that does what the test says. `delivered`: the other messages."""

    def __init__(self, carry: Callable[[Attempt], Awaitable[None]]) -> None:
        self._carry = carry
        self.may_speak_both = False
        self.delivered: list[Any] = []
        self.listened = 0

    async def carry(self, attempt: Attempt) -> None:
        await self._carry(attempt)

    async def deliver(self, line: bytes) -> None:
        self.delivered.append(json.loads(line))

    async def listen(self, settled: Callable[[], object]) -> None:
        self.listened += 1
        await self.hear(settled)

    async def hear(self, settled: Callable[[], object]) -> None:
        """What the test says comes of listening."""

    async def leave(self) -> None:
        raise NotImplementedError


@asynccontextmanager
async def http_peer(
    carry: Callable[[Attempt], Awaitable[None]],
) -> AsyncGenerator[tuple[HttpPeer, Recorder, Scripted]]:
    hooks, carrier = Recorder(), Scripted(carry)
    async with anyio.create_task_group() as tasks:
        peer = HttpPeer(current_backend(), hooks, tasks, 1 << 20)
        peer.carrier = carrier
        yield peer, hooks, carrier
        tasks.cancel_scope.cancel()


async def _forgotten(attempt: Attempt) -> None:
    attempt.did_not_run()
    raise SessionExpired("HTTP 404")


@in_virtual_time
async def test_a_session_that_is_over_is_told_as_soon_as_nothing_is_under_way() -> None:
    async with http_peer(_forgotten) as (peer, hooks, _):
        call = Call("tools/call", {})
        peer.request(call)
        await hooks.lost.wait()
        assert anyio.current_time() == 0.0
        (reason,) = hooks.reasons
        assert (reason.text, reason.loss) == ("session expired: HTTP 404", Reason.EXPIRED)
        assert (call.ends, call.reach) == ([], Reach.NOT_SENT)
        late = Call("tools/call", {})
        peer.request(late)
        assert (late.ends, late.reach) == ([], Reach.NOT_SENT)


@pytest.mark.parametrize(("needs", "told_at"), [(0.4, 0.4), (60.0, LAST_ANSWERS)])
@in_virtual_time
async def test_others_under_way_have_a_moment_to_end(needs: float, told_at: float) -> None:
    async def carry(attempt: Attempt) -> None:
        if attempt.method == "ping":
            await _forgotten(attempt)
        await anyio.sleep(math.inf if attempt.method == "subscriptions/listen" else needs)

    async with http_peer(carry) as (peer, hooks, _):
        for method in ("tools/call", "subscriptions/listen", "ping"):
            peer.request(Call(method, {}))
        await hooks.lost.wait()
        assert anyio.current_time() == pytest.approx(told_at)


@in_virtual_time
async def test_a_loss_with_nothing_under_way_is_told_at_once_and_once() -> None:
    async with http_peer(_forgotten) as (peer, hooks, _):
        for text in ("first", *map(str, range(9))):
            peer.lose(LostReason(text))
        await anyio.sleep(0.01)
        assert [reason.text for reason in hooks.reasons] == ["first"]
        assert peer.is_silent


@in_virtual_time
async def test_a_peer_that_is_about_to_be_lost_sends_nothing_more() -> None:
    carried: list[str] = []

    async def carry(attempt: Attempt) -> None:
        carried.append(attempt.method)
        await anyio.sleep(0.5)

    async with http_peer(carry) as (peer, hooks, _):
        peer.request(Call("tools/call"))
        await anyio.sleep(0.1)
        peer.lose(LostReason("over"))
        late = Call("late")
        peer.request(late)
        await hooks.lost.wait()
        assert anyio.current_time() == pytest.approx(0.5)
        assert (carried, late.ends, late.reach) == (["tools/call"], [], Reach.NOT_SENT)


@in_virtual_time
async def test_a_peer_that_was_silenced_says_nothing_of_what_comes_after() -> None:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        await anyio.sleep(0.5)
        raise ExchangeBroken("reset") if attempt.method == "breaks" else BadAnswer("no")

    async with http_peer(carry) as (peer, hooks, _):
        calls = [Call("breaks"), Call("tools/call")]
        for call in calls:
            peer.request(call)
        await anyio.sleep(0.1)
        peer.lose(LostReason("over"))
        peer.silence()
        peer.gap()
        await anyio.sleep(5)
        answer = decode_line(b'{"jsonrpc":"2.0","id":1,"result":{}}')[0]
        peer.answer(attempts[0], answer)
        assert [call.ends for call in calls] == [[], []]
        assert (hooks.reasons, hooks.gaps) == ([], 0)


@pytest.mark.parametrize(("opens_at", "sent_at"), [(0.4, 0.4), (60.0, LISTENS_WITHIN), (None, 0.0)])
@in_virtual_time
async def test_a_call_waits_until_its_servers_requests_can_be_heard(
    opens_at: float | None, sent_at: float
) -> None:
    sent: list[tuple[str, float]] = []

    async def carry(attempt: Attempt) -> None:
        sent.append((attempt.method, round(anyio.current_time() - 5.0, 3)))

    async with http_peer(carry) as (peer, _, carrier):

        async def hear(settled: Callable[[], object]) -> None:
            if opens_at is not None:  # else there is no such stream
                await anyio.sleep(opens_at)
                settled()
                await anyio.sleep_forever()

        carrier.hear = hear
        await anyio.sleep(5.0)
        peer.notify("notifications/initialized")
        for method in ("tools/list", "tools/call"):
            peer.request(Call(method))
        await anyio.sleep(2.0)
        peer.request(Call("prompts/get"))
        await anyio.sleep(0.1)
        assert dict(sent) == {"tools/list": 0.0, "tools/call": sent_at, "prompts/get": 2.0}


@pytest.mark.parametrize(
    ("method", "waits"),
    [
        ("ping", False),
        ("tools/list", False),
        ("resources/list", False),
        ("resources/templates/list", False),
        ("prompts/list", False),
        ("logging/setLevel", False),
        ("tools/call", True),
        ("prompts/get", True),
        ("resources/read", True),
        ("completion/complete", True),
    ],
)
@on_asyncio
@in_virtual_time
async def test_only_what_may_make_a_server_ask_waits_for_the_stream_of_its_requests(
    method: str, waits: bool
) -> None:
    sent: list[float] = []

    async def carry(attempt: Attempt) -> None:
        sent.append(anyio.current_time())

    async with http_peer(carry) as (peer, _, carrier):

        async def hear(settled: Callable[[], object]) -> None:
            await anyio.sleep_forever()

        carrier.hear = hear
        peer.notify("notifications/initialized")
        peer.request(Call(method))
        await anyio.sleep(3.0)
        assert sent == pytest.approx([1.0 if waits else 0.0])


@in_virtual_time
async def test_progress_on_the_way_to_an_answer_arrives_in_order_and_before_it() -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):
        pauses = iter([3.0, 2.0, 1.0, 0.0])
        deliver = carrier.deliver

        async def deliver_late(line: bytes) -> None:
            await anyio.sleep(next(pauses))
            if b'"progress":2' in line:
                raise BadAnswer("refused")
            await deliver(line)

        carrier.deliver = deliver_late
        for count in (1, 2, 3):
            peer.notify("notifications/progress", {"progressToken": 7, "progress": count})
        peer.reply(7, {})
        await anyio.sleep(5.9)
        assert len(carrier.delivered) == 1
        await anyio.sleep(1.0)
        said = [message.get("params", {}).get("progress", message.get("id")) for message in carrier.delivered]
        assert said == [1, 3, 7], "one that did not get there holds up nobody"


FORGOTTEN = SessionExpired("HTTP 404")


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        (FORGOTTEN, "HTTP 404: "),
        (LoginNeeded("HTTP 401"), "HTTP 401: "),
        (BadAnswer("HTTP 500"), "HTTP 500: "),
        (ExchangeBroken("reset"), "reset: "),
        (None, "not accepted within 30 s: "),
    ],
)
@pytest.mark.parametrize(
    "what", ["notifications/initialized", "notifications/progress", "notifications/x", "reply"]
)
@on_asyncio
@in_virtual_time
async def test_what_becomes_of_a_message_that_is_not_accepted(
    fault: ExchangeFault | None, note: str, what: str
) -> None:
    """It is a note, whatever refused it: requests decide whether the server still knows us."""
    async with http_peer(_forgotten) as (peer, hooks, carrier):

        async def deliver(line: bytes) -> None:
            if fault is not None:
                raise fault
            await anyio.sleep_forever()

        carrier.deliver = deliver
        long = {"x": "y" * 5000}
        if what == "reply":
            peer.reply(7, long)
        else:
            peer.notify(what, long)
        await anyio.sleep(29.9)
        assert bool(hooks.notes) is (fault is not None)
        await anyio.sleep(0.2)
        assert hooks.reasons == []
        (told,) = hooks.notes
        assert told.startswith(f"a message did not reach the server: {note}")
        assert len(told) < 300, "only its beginning is quoted"


@pytest.mark.parametrize("own", [True, False])
@in_virtual_time
async def test_a_large_message_is_read_while_others_have_their_turns(own: bool) -> None:
    text = b'{"text":"%b"}' % (b"\\u00e9" * (LARGE_MESSAGE // 4))
    async with http_peer(_forgotten) as (peer, _, carrier):
        turns = [0, 0]

        async def carry(attempt: Attempt) -> None:
            data = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (attempt.rpc_id, text)
            peer.sent(attempt)
            turns[0] = turns[1]
            await (peer.take_for(attempt, data) if own else peer.hear(data))

        async def count() -> None:
            while not call.ends and turns[1] < 1_000_000:
                turns[1] += 1
                await anyio.lowlevel.checkpoint()

        carrier.carry = carry
        call = Call("tools/call", {})
        peer.request(call)
        await count()
        assert call.ends == [(text, None)]
        assert turns[1] - turns[0] >= 1


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b'{"jsonrpc":"2.0","id":%d,"result":{}}', True),
        (b'{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}', True),  # an error may not know its id
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}', True),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', False),
        (b'{"jsonrpc":"2.0","id":999,"result":{}}', False),
    ],
)
@in_virtual_time
async def test_an_answer_without_an_id_is_one_only_if_it_is_an_error(data: bytes, ends: bool) -> None:
    async with http_peer(_forgotten) as (peer, _, carrier):

        async def carry(attempt: Attempt) -> None:
            await peer.take_for(attempt, data % attempt.rpc_id if b"%d" in data else data)

        carrier.carry = carry
        call = Call("tools/call", {})
        peer.request(call)
        await anyio.sleep(0.1)
        ((_, error),) = call.ends
        assert ("another request" in error.message if error is not None else False) is not ends
        assert call.reach is Reach.ANSWERED


@in_virtual_time
async def test_a_peer_falls_back_once_and_what_it_had_sent_did_not_run() -> None:
    async def carry(attempt: Attempt) -> None:
        attempt.exchange.reach = Reach.SENT
        raise WrongTransport("HTTP 405")

    async with http_peer(carry) as (peer, _, _):
        seen: list[Reach] = []
        refused: list[str] = []

        async def carry_better(attempt: Attempt) -> None:
            seen.append(attempt.exchange.reach)

        def older(refusal: WrongTransport) -> Any:
            refused.append(str(refusal))
            return Scripted(carry_better)

        peer.fall_back = older
        for _ in range(2):
            peer.request(Call("initialize"))
            await anyio.sleep(0.1)
        assert (refused, seen) == (["HTTP 405"], [Reach.NOT_SENT] * 2)
        assert peer.fall_back is None


@in_virtual_time
async def test_an_exchange_that_failed_is_over_and_one_that_was_left_is_not_sent_any_more() -> None:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        if attempt.method == "breaks":
            raise ExchangeBroken("reset")
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, _):
        failed, left = Call("breaks"), Call("tools/call")
        for call in (failed, left):
            peer.request(call)
        await anyio.sleep(0.1)
        peer.abandon(left, "left")
        for attempt in attempts:
            assert not peer.is_open(attempt)
            peer.sent(attempt)
            peer.answer(attempt, decode_line(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % attempt.rpc_id)[0])
        assert (len(failed.ends), left.ends) == (1, [])
        assert (failed.sent_at, left.sent_at) == ([], [])


@in_virtual_time
async def test_a_negotiation_that_is_left_and_a_call_that_has_ended_are_not_cancelled() -> None:
    async def carry(attempt: Attempt) -> None:
        if attempt.method != "prompts/list":  # which never gets that far
            attempt.exchange.reach = Reach.SENT
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, carrier):
        for version, method, said in (
            ("2026-07-28", "tools/call", 0),  # there leaving is all that is said
            ("2025-11-25", "initialize", 0),
            ("2025-11-25", "prompts/list", 0),
            ("2025-11-25", "tools/call", 1),
        ):
            peer.protocol_version = version
            call = Call(method, {})
            peer.request(call)
            await anyio.sleep(0.1)
            peer.abandon(call, "left")
            peer.abandon(call, "left")
            await anyio.sleep(0.1)
            assert [message["method"] for message in carrier.delivered] == ["notifications/cancelled"] * said
        assert carrier.delivered[0]["params"] == {"requestId": call.rpc_id, "reason": "left"}


@in_virtual_time
async def test_what_a_server_asks_on_a_calls_own_stream_is_about_that_call() -> None:
    during: list[Any] = []

    async def carry(attempt: Attempt) -> None:
        await peer_of[0].take_for(attempt, b'{"jsonrpc":"2.0","id":"q","method":"roots/list"}')

    peer_of: list[HttpPeer] = []
    async with http_peer(carry) as (peer, hooks, _):
        peer_of.append(peer)
        asked: Any = hooks
        asked.on_request = lambda rpc_id, method, params, call=None: during.append(call)
        call = Call("tools/call")
        peer.request(call)
        await anyio.sleep(0.1)
        assert during == [call]


class Body:
    """A response whose body is these chunks, at these times; then it stays open."""

    def __init__(self, *chunks: tuple[float, bytes], ends: bool = False) -> None:
        self.chunks, self.ends = chunks, ends
        self.is_left = False

    async def aiter_bytes(self) -> AsyncGenerator[bytes]:
        try:
            for seconds, chunk in self.chunks:
                await anyio.sleep(seconds)
                yield chunk
            if not self.ends:
                await anyio.sleep_forever()
        finally:
            self.is_left = True


@asynccontextmanager
async def answer_stream(version: str | None = None) -> AsyncGenerator[tuple[HttpPeer, AnswerStream, Call]]:
    attempts: list[Attempt] = []

    async def carry(attempt: Attempt) -> None:
        attempts.append(attempt)
        await anyio.sleep_forever()

    async with http_peer(carry) as (peer, _, _):
        peer.protocol_version = version
        call = Call("tools/call", {})
        peer.request(call)
        while not attempts:
            await anyio.sleep(0.001)
        yield peer, AnswerStream(attempts[0], peer, peer.take_for), call


ANSWER = b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'


@in_virtual_time
async def test_an_answered_stream_is_left_a_moment_later() -> None:
    async with answer_stream() as (peer, stream, call):
        began = anyio.current_time()
        response: Any = Body((3.0, ANSWER), (0.04, b": still here\n\n"))
        await stream.read(response)
        assert call.ends == [(b"{}", None)]
        assert response.is_left
        assert anyio.current_time() - began == pytest.approx(3.05)
        assert peer.last_heard - began == pytest.approx(3.04)


@pytest.mark.parametrize(("version", "can"), [("2025-11-25", True), ("2026-07-28", False)])
@in_virtual_time
async def test_only_streams_of_the_older_era_are_resumed(version: str, can: bool) -> None:
    async with answer_stream(version) as (_, stream, _):
        assert not stream.is_resumable
        response: Any = Body((0.0, b"id: e1\n\n"), ends=True)
        await stream.read(response)
        assert stream.last_id == "e1"
        assert stream.is_resumable is can


@in_virtual_time
async def test_a_stream_is_resumed_while_something_comes_and_not_for_ever() -> None:
    opened: list[float] = []
    brings: list[bytes] = [b"", b"id: e2\n\n", b"", b""]
    async with answer_stream() as (peer, stream, _):

        async def again(of: AnswerStream) -> None:
            opened.append(anyio.current_time() - began)
            if not brings:
                raise ExchangeBroken("nobody there")
            response: Any = Body((0.0, brings.pop(0)), ends=True)
            await of.read(response)

        response: Any = Body((0.0, b"id: e1\nretry: 500\n\n"), ends=True)
        await stream.read(response)
        began = anyio.current_time()
        with pytest.raises(ExchangeBroken, match="could not be resumed"):
            await stream.resume(again)
        assert opened == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
        assert peer.notes.counts["resuming an event stream failed"] == 1
