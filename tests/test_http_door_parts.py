"""The parts of the HTTP door that need no socket: bodies and answers, event streams, the feed."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio
import pytest
from tests.support import run_virtual

from greenroom.gateway._http_door import Feed, Rules
from greenroom.gateway._http_door._refusals import CLOSE, Refusal
from greenroom.gateway._http_door._request import Hangup, Request
from greenroom.gateway._http_door._routing import same_token
from greenroom.gateway._http_door._server import _Connection
from greenroom.gateway._http_door._stream import Stream

Headers = Iterable[tuple[bytes, bytes]]


class Wire:
    """What carries one request: its body comes in `pieces`, with `pause` seconds before each."""

    def __init__(self, pieces: Iterable[bytes] = (b"",), pause: float = 0.0) -> None:
        self.sent: list[Any] = []
        self.hangup = Hangup()
        self._pieces = list(pieces)
        self._pause = pause

    async def receive(self) -> dict[str, Any]:
        await anyio.sleep(self._pause if self._pieces else 3600.0)
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    def request(self, method: str = "POST", headers: Headers = ()) -> Request:
        state = {"hangup": self.hangup}
        scope = {"method": method, "raw_path": b"/mcp", "headers": list(headers), "state": state}
        return Request(scope, self.receive, self.send)

    @property
    def written(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)

    @property
    def headers(self) -> Headers:
        return self.sent[0]["headers"]


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    run_virtual("asyncio", body)


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "is_read", "closes"), [("POST", False, True), ("POST", True, False), ("GET", False, False)]
)
def test_a_connection_is_closed_when_the_body_that_comes_on_it_was_not_read(
    method: str, is_read: bool, closes: bool
) -> None:
    async def main() -> None:
        wire = Wire()
        request = wire.request(method)
        if is_read:
            await request.body(100, 1.0)
        await request.refuse(Refusal(415, "no"))
        assert (CLOSE in wire.headers) is closes

    virtually(main)


def test_the_pieces_of_a_body_have_one_time_together() -> None:
    async def main() -> None:
        request = Wire([b"[", b"1", b"]"], pause=20.0).request()
        with pytest.raises(Refusal, match="did not arrive in time"):
            await request.body(100, 50.0)
        assert anyio.current_time() == 50.0

    virtually(main)


def test_a_progress_token_is_a_number_or_a_text_and_never_both() -> None:
    tokens = (1, "1", True, 1.0)
    assert [same_token(one, other) for one, other in itertools.combinations(tokens, 2)] == [False] * 6
    assert all(same_token(one, one) for one in tokens)


class Pipe:
    """What `_Connection._check_flow` reads and calls."""

    def __init__(self, waiting: int, before: int) -> None:
        self.transport: Any = self
        self.waiting, self._unread, self.did = waiting, before, ""

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def _abort(self) -> None:
        self.did = "cut"

    def _watch_flow(self) -> None:
        self.did = "looks again"


@pytest.mark.parametrize(("before", "now", "does"), [(9, 9, "cut"), (9, 12, "cut"), (9, 8, "looks again")])
def test_a_peer_that_reads_slowly_is_not_one_that_does_not_read(before: int, now: int, does: str) -> None:
    pipe: Any = Pipe(now, before)
    _Connection._check_flow(pipe)
    assert pipe.did == does


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_who_claims_to_have_read_what_has_not_come_yet_hears_what_comes() -> None:
    async def main() -> None:
        stream, wire = Stream(0, Rules()), Wire()
        stream.put(b"1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.pump, wire.request("GET"), 900)
            await anyio.sleep(1.0)
            assert wire.written == b""
            stream.put(b"2")
            stream.end()
        assert wire.written == b"id: 0-2\nevent: message\ndata: 2\n\n"

    virtually(main)


# ---- the feed --------------------------------------------------------------------------------------------------------


def test_a_silent_feed_says_now_and_then_that_it_lives() -> None:
    async def main() -> None:
        feed, wire = Feed(15.0), Wire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.show, wire.request("GET"))
            await anyio.sleep(50.0)
            feed.close()
        assert wire.written == b": \n\n" * 4

    virtually(main)
