"""What a server is asked to report, and what it asks for a call, at a room whose server is played in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room, record_events

from greenroom import Greenroom
from greenroom.actors.server_reports import Subscriptions
from greenroom.errors import InputRefused
from greenroom.events import Note
from greenroom.protocol.errors import RpcRefusal
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.testing.fake_servers import FakeServer

LEVEL, SUBSCRIBE, LISTEN = "logging/setLevel", "resources/subscribe", "subscriptions/listen"
Params = Mapping[str, Any]


class Reporter:
    """A server that is asked to report. It keeps with what it was asked, and when."""

    def __init__(self, *, modern: bool, **capabilities: Any) -> None:
        self.said: list[tuple[str, Params, float]] = []
        self.streams: list[anyio.Event] = []  # those that are open: each ends when its event is set
        self.answer: Any = None  # with which it ends a stream at once; None: it keeps it open
        self.fake = FakeServer(resources={"x:/": "x", "a:/": "a"}, capabilities=capabilities)
        methods = self.fake.methods
        for method in (LEVEL, SUBSCRIBE, "resources/unsubscribe"):
            methods[method] = self._noting(method, {})
        methods["tools/list"] = self._noting("tools/list", {"tools": self.fake.tools})
        if modern:
            found = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {}, **capabilities}}
            methods["server/discover"] = lambda _params: found
            methods[LISTEN] = self._listen

    def asked(self, method: str) -> list[Params]:
        return [params for each, params, _at in self.said if each == method]

    def times(self, method: str) -> list[float]:
        return [at for each, _params, at in self.said if each == method]

    def _noting(self, method: str, answer: Any) -> Callable[[Params], Any]:
        def note(params: Params) -> Any:
            self.said.append((method, params, anyio.current_time()))
            return answer

        return note

    async def _listen(self, params: Params) -> Any:
        self.said.append((LISTEN, params["notifications"], anyio.current_time()))
        if self.answer is not None:
            return self.answer
        self.streams.append(anyio.Event())
        await self.streams[-1].wait()
        return {}


def room_of(server: Reporter, **callbacks: Any) -> Greenroom:
    return open_room({"a": server.fake}, callbacks=callbacks)


async def drained(updates: Any) -> int:
    """How many updates have come until now."""
    found = 0
    with anyio.move_on_after(0.0):
        async for _ in updates:
            found += 1
    return found


def test_as_many_drops_as_adds_end_a_wish() -> None:
    subscriptions = Subscriptions()
    assert [subscriptions.add("x"), subscriptions.add("x"), subscriptions.drop("x")] == [True, False, False]
    assert subscriptions.uris == {"x": 1}, "one of two still wants it"
    assert subscriptions.drop("x")
    assert subscriptions.uris == {}
    assert subscriptions.drop("x")


@in_virtual_time
async def test_a_stream_that_ends_is_asked_for_again_at_growing_intervals() -> None:
    server = Reporter(modern=True, tools={"listChanged": True}, prompts={"listChanged": False})
    async with room_of(server) as room:
        await room.connect("a")
        assert server.asked(LISTEN) == [{"toolsListChanged": True}]
        async with room.subscribe("x:/", "a") as updates:
            await anyio.sleep(1.0)
            assert server.asked(LISTEN)[1:] == [{"toolsListChanged": True, "resourceSubscriptions": ["x:/"]}]
            server.answer = {}
            server.said.clear()
            async with room.subscribe("a:/", "a"):  # another stream, which ends at once
                await anyio.sleep(200.0)
                pauses = [after - before for before, after in pairwise(server.times(LISTEN))]
                assert [round(pause, 3) for pause in pauses] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
                assert await drained(updates) > 0, "it may have changed while nobody listened"
                assert len(server.asked("tools/list")) == len(pauses), "and so may the lists"


@in_virtual_time
async def test_why_a_stream_ended_is_noted_and_a_room_that_closes_asks_no_more() -> None:
    server = Reporter(modern=True, tools={"listChanged": True})
    server.answer = RpcError(-32603, "full")
    async with room_of(server) as room:
        notes = record_events(room, Note)
        await room.connect("a")
        await anyio.sleep(0.5)
        assert [note.words for note in notes] == ["subscriptions/listen: full (-32603)"]
    await anyio.sleep(100.0)
    assert len(server.asked(LISTEN)) == 1


@in_virtual_time
async def test_a_new_wish_while_a_stream_is_to_be_asked_for_again_asks_at_once_and_only_once() -> None:
    server = Reporter(modern=True, tools={"listChanged": True})
    server.answer = {}
    async with room_of(server) as room:
        await room.connect("a")
        await anyio.sleep(0.5)
        server.answer = None
        async with room.subscribe("x:/", "a"):
            await anyio.sleep(100.0)
            assert len(server.asked(LISTEN)) == 2


@in_virtual_time
async def test_a_server_that_tells_nothing_is_asked_for_nothing() -> None:
    server = Reporter(modern=True, tools={"listChanged": "yes"}, prompts={}, resources=True)
    async with room_of(server) as room:
        await room.connect("a")
        await anyio.sleep(0.5)
        assert server.asked(LISTEN) == []


@in_virtual_time
async def test_a_stream_that_is_not_known_is_not_asked_for_again() -> None:
    server = Reporter(modern=True, tools={"listChanged": True})
    server.answer = RpcError(-32601, "what?")
    async with room_of(server) as room:
        await room.connect("a")
        await anyio.sleep(100.0)
        assert len(server.asked(LISTEN)) == 1


@in_virtual_time
async def test_a_newer_stream_replaces_the_one_before_whose_end_is_no_news() -> None:
    server = Reporter(modern=True, tools={"listChanged": True})
    async with room_of(server) as room:
        await room.connect("a")
        async with room.subscribe("x:/", "a"):
            await anyio.sleep(1.0)
            async with room.subscribe("a:/", "a"):
                await anyio.sleep(1.0)
                assert server.asked(LISTEN)[-1]["resourceSubscriptions"] == ["a:/", "x:/"]
                for replaced in server.streams[:2]:
                    replaced.set()
                await anyio.sleep(100.0)
                assert len(server.asked(LISTEN)) == 3


@in_virtual_time
async def test_an_older_server_is_told_each_wish_by_itself_and_again_after_a_loss() -> None:
    server = Reporter(modern=False, logging={}, resources={"subscribe": True})
    async with room_of(server) as room:
        room.set_log_level("info")
        await room.connect("a")
        assert server.asked(LEVEL) == [{"level": "info"}]
        async with room.subscribe("x:/", "a") as updates:
            room.set_log_level("error")
            await anyio.sleep(1.0)
            assert server.asked(SUBSCRIBE) == [{"uri": "x:/"}]
            assert server.asked(LEVEL)[1:] == [{"level": "error"}]
            assert await drained(updates) == 0
            server.said.clear()
            server.fake.crash()
            await anyio.sleep(10.0)
            assert (server.asked(LEVEL), server.asked(SUBSCRIBE)) == ([{"level": "error"}], [{"uri": "x:/"}])
            assert await drained(updates) == 1, "it may have changed while nobody listened"


@in_virtual_time
async def test_a_level_that_is_set_while_the_lists_are_read_is_told_when_they_are_there() -> None:
    server = Reporter(modern=False, logging={})
    del server.fake.methods["tools/list"]
    server.fake.list_latency = 1.0
    async with room_of(server) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(room.connect, "a")
        await anyio.sleep(0.5)
        room.set_log_level("debug")
        await anyio.sleep(1.0)
        assert server.asked(LEVEL) == [{"level": "debug"}]


@in_virtual_time
async def test_a_server_without_logs_is_told_no_level() -> None:
    server = Reporter(modern=False)
    async with room_of(server) as room:
        room.set_log_level("info")
        await room.connect("a")
        await anyio.sleep(0.5)
        assert server.asked(LEVEL) == []


@in_virtual_time
async def test_one_refusal_ends_the_other_requests_of_its_result() -> None:
    ended: list[str] = []

    async def answer(request: Any) -> Any:
        what = request.params["message"]
        if what == "no":
            await anyio.sleep(0.5)
            raise RpcRefusal(-1, "no")
        try:
            await anyio.sleep(60.0)
        finally:
            ended.append(what)
        return {}

    def wants(_call: Any) -> Any:
        asked = {key: {"method": "elicitation/create", "params": {"message": key}} for key in ("no", "late")}
        return {"resultType": "input_required", "inputRequests": asked}

    server = Reporter(modern=True, tools={})
    server.fake.handler = wants
    entries = {"a": {"era": "stateless"}}
    async with open_room({"a": server.fake}, entries=entries, callbacks={"on_elicitation": answer}) as room:
        began = anyio.current_time()
        with pytest.raises(InputRefused, match="no"):
            await room.call("a_echo")
        assert (ended, round(anyio.current_time() - began, 3)) == (["late"], 0.5)
        server.fake.handler = lambda _call: {"resultType": "input_required", "inputRequests": {"x": 7}}
        with pytest.raises(InputRefused, match="an input request without a method"):
            await room.call("a_echo")
