"""Servers in our own process: an object or a factory of the SDK's, supervised like any other.

It is also the contract with the SDK's provisional API (`transports.in_process`): a tool, progress, an error, a change
of the tools and the end of the server are all that we need of it, and all of them are shown here with the real thing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from tests.support import in_real_time, in_virtual_time, run
from tests.support.patience import PATIENCE
from tests.support.rows import for_each
from tests.support.stdio import Call, Recorder, until

from greenroom.actors.backend import current_backend, pump_group
from greenroom.actors.transports import in_process
from greenroom.actors.transports.in_process import InProcessConnector, as_server, from_message, to_message
from greenroom.config.model import ServerDefinition
from greenroom.protocol.errors import CallError, ConnectFailed, Reach
from greenroom.protocol.lifecycle import State
from greenroom.supervisor.room import Greenroom

EMPTY: dict[str, Any] = {"mcpServers": {}, "settings": {"toolPrefix": "none"}}


def make_server(cancelled: list[str] | None = None, begun: anyio.Event | None = None) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("within", log_level="CRITICAL")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def steps(count: int, context: Context[Any]) -> str:
        for step in range(count):
            await context.report_progress(step + 1, count)
        return "done"

    @server.tool()
    async def wait() -> str:
        if begun is not None:
            begun.set()
        try:
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            assert cancelled is not None
            cancelled.append("wait")
            raise
        return "waited"

    @server.tool()
    async def grow(context: Context[Any]) -> str:
        server.add_tool(lambda: "new", name="newcomer")
        await context.notify_tools_changed()
        return "grown"

    return server


def room_of(**servers: Any) -> Greenroom:
    return Greenroom.open(EMPTY, cache_path=":memory:", bootstrap=False, in_process=servers)


@in_real_time
async def test_an_object_is_a_server_like_any_other() -> None:
    async with room_of(within=make_server()) as room:
        await room.connect("within")
        assert [target.name for target in room.tools()] == ["add", "grow", "steps", "wait"]
        result = await room.call("add", {"a": 2, "b": 40})
        assert (result.text, result.structured) == ("42", {"result": 42})
        seen: list[Any] = []
        await room.call("steps", {"count": 3}, on_progress=seen.append)
        assert [step["progress"] for step in seen] == [1, 2, 3]
        assert (await room.call("add", {"a": "two"})).is_error
        await room.call("grow")
        assert await until(lambda: "newcomer" in [target.name for target in room.tools()])
        assert (await room.call("newcomer")).text == "new"


@in_real_time
async def test_cancelling_a_call_cancels_the_handler() -> None:
    cancelled, begun = list[str](), anyio.Event()
    async with room_of(within=make_server(cancelled, begun)) as room:
        await room.connect("within")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "wait")
            await begun.wait()
            tasks.cancel_scope.cancel()
        assert await until(lambda: cancelled == ["wait"])


@in_real_time
async def test_an_object_is_run_again_and_a_factory_called_again() -> None:
    made: list[Any] = []

    def factory() -> Any:
        made.append(make_server())
        return made[-1]

    async with room_of(one=make_server(), many=factory) as room:
        for server in ("one", "many"):
            await room.connect(server)
            await room.restart(server)
            assert (await room.call("add", {"a": 1, "b": 1}, server=server)).text == "2"
    assert len(made) == 2


@in_real_time
async def test_a_low_level_server_that_raises_is_lost_and_comes_back() -> None:
    fall = anyio.Event()

    @asynccontextmanager
    async def lifespan(_server: Any) -> AsyncGenerator[dict[str, Any]]:
        async with anyio.create_task_group() as tasks:

            async def falls() -> None:
                await fall.wait()
                raise RuntimeError("the roof")

            tasks.start_soon(falls)
            yield {}
            tasks.cancel_scope.cancel()

    async def hang(_context: Any, _params: Any) -> Any:
        await anyio.sleep_forever()

    async def listed(_context: Any, _params: Any) -> Any:
        tools = [{"name": "hang", "inputSchema": {"type": "object"}}]
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": tools}

    server: Any = Server("low", lifespan=lifespan, on_list_tools=listed, on_call_tool=hang)
    async with room_of(low=server) as room, anyio.create_task_group() as tasks:
        await room.connect("low")

        async def call() -> None:
            with pytest.raises(CallError):  # the SDK's server answers what is open on its way down
                await room.call("hang")

        tasks.start_soon(call)
        await anyio.sleep(0.05)
        fall.set()
        assert await until(lambda: "its code raised" in (room.status()[0].failure or ""))
        fall = anyio.Event()
        await room.connect("low")
        assert room.status()[0].state is State.CONNECTED


@in_real_time
async def test_a_program_may_change_its_own_tools(tmp_path: Path) -> None:
    """Whoever can change the object can change the program. And `greenroom accept` knows no such server."""

    def made(description: str) -> MCPServer[Any]:
        server: MCPServer[Any] = MCPServer("within", log_level="CRITICAL")
        server.add_tool(lambda: "yes", name="ask", description=description)
        return server

    for description in ("answers", "answers kindly"):
        servers = {"within": made(description)}
        async with Greenroom.open(EMPTY, cache_path=tmp_path / "catalogue.json", in_process=servers) as room:
            await room.connect("within")
            assert (await room.call("ask")).text == "yes"
            assert room.tools()[0].description == description


@pytest.mark.parametrize("given", [object(), lambda: 3])
def test_what_is_no_server_is_refused_in_words(given: Any, backend: str) -> None:
    async def body() -> None:
        async with room_of(odd=given) as room:
            with pytest.raises(ConnectFailed, match="not an MCP server of the SDK or FastMCP") as caught:
                await room.connect("odd")
            assert caught.value.server == "odd"

    run(backend, body)


@in_real_time
async def test_a_factory_that_fails_is_told_in_words() -> None:
    def factory() -> Any:
        raise ValueError("no stage")

    async with room_of(odd=factory) as room:
        with pytest.raises(ConnectFailed, match="could not be made: ValueError") as caught:
            await room.connect("odd")
        assert caught.value.server == "odd"


@for_each(
    "message",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"vendor":{"x":null},"n":1.5}}',
        b'{"jsonrpc":"2.0","id":"a","error":{"code":-1,"message":"no"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":0}}',
        b'{"jsonrpc":"2.0","method":"notifications/x"}',
        b'{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"a":null}}}',
        b'{"jsonrpc":"2.0","id":0,"method":"ping"}',
    ],
)
def test_messages_keep_every_field_both_ways_and_get_no_other(message: bytes) -> None:
    read = from_message(to_message(message))
    assert json.loads(read) == json.loads(message)


def test_half_a_character_is_mended_on_its_way_to_the_server() -> None:
    said = b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"cut HERE","data":{"HERE":["HERE"]}}}'
    half, whole = said.replace(b"HERE", b"\\ud83d"), said.replace(b"HERE", b"\\ufffd")
    assert json.loads(from_message(to_message(half))) == json.loads(whole)


def test_what_is_no_message_is_not_handed_over() -> None:
    for line in (b'{"jsonrpc":"2.0"}', b"[]", b'{"jsonrpc":"1.0","id":1,"method":"ping"}'):
        with pytest.raises(ValueError, match="validation error"):
            to_message(line)
    assert as_server("a text") is None


@in_real_time
async def test_what_a_server_has_around_its_life_is_entered_and_left() -> None:
    """FastMCP puts its own lifespan around every way to run a server."""
    lives: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        lives.append("begun")
        yield
        lives.append("over")

    server: Any = make_server()
    server._lifespan_manager = lifespan
    async with room_of(within=server) as room:
        await room.connect("within")
        assert lives == ["begun"]
        await room.drain("within")
        assert lives == ["begun", "over"]


# ---- one connection, and a server that does what the test says -------------------------------------------------------


class Within:
    """A running "server": `connection` to it, what its hooks heard, and what it was sent (`read`)."""

    def __init__(self, serve: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self.hooks = Recorder()
        self.connection: Any = None
        self.read: list[bytes] = []
        self._serve = serve

    async def serve(self, _server: Any, incoming: Any, outgoing: Any) -> None:
        self.outgoing = outgoing
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, incoming)
            try:
                await self._serve()
            except ValueError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _listen(self, incoming: Any) -> None:
        async for message in incoming:
            self.read.append(from_message(message))


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[[], Coroutine[Any, Any, object]] = anyio.sleep_forever
) -> AsyncGenerator[Within]:
    within = Within(serve)
    monkeypatch.setattr(in_process, "serve", within.serve)
    connector = InProcessConnector(ServerDefinition("s", in_process=make_server), backend=current_backend())
    async with connector.open(within.hooks) as within.connection:
        await anyio.wait_all_tasks_blocked()
        yield within
    assert within.connection.peer.is_silent


async def fall() -> None:
    raise ValueError("no floor")


async def leave() -> None:
    pass


@pytest.mark.parametrize(
    ("serve", "why"),
    [(fall, "its code raised ValueError"), (leave, "ended by itself"), (anyio.sleep_forever, None)],
)
@in_virtual_time
async def test_the_end_of_a_server_is_told_once_and_after_it_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, serve: Any, why: str | None
) -> None:
    call = Call("ping")
    async with running(monkeypatch, serve) as within:
        peer = within.connection.peer
        assert peer.is_silent is (why is not None)
        peer.request(call)
        peer.notify("notifications/x", {"a": 1})
        peer.reply(7, {"b": 2})
        await anyio.wait_all_tasks_blocked()
        if why is None:
            assert (call.reach, call.sent_at) == (Reach.SENT, [Reach.SENT])
            assert [json.loads(line) for line in within.read] == [
                {"jsonrpc": "2.0", "id": 1, "method": "ping"},
                {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}},
                {"jsonrpc": "2.0", "id": 7, "result": {"b": 2}},
            ]
        else:
            assert (call.reach, call.sent_at, within.read) == (Reach.NOT_SENT, [], [])
    told = [reason.text for reason in within.hooks.reasons]
    assert len(told) == (why is not None)
    assert why is None or told[0].startswith(why)


@pytest.mark.parametrize(("needs", "takes"), [(0.5, 0.5), (2.0, 2.0), (9.0, 3.0)])
@in_virtual_time
async def test_a_server_has_its_time_to_end_and_no_more(
    monkeypatch: pytest.MonkeyPatch, needs: float, takes: float
) -> None:
    async with running(monkeypatch, lambda: anyio.sleep(needs)) as within:
        begun = anyio.current_time()  # a little after it was started
        await within.connection.stop(3.0)
        assert anyio.current_time() - begun == pytest.approx(takes, abs=0.3)
        await within.connection.stop(3.0)
    assert within.hooks.reasons == [], "we ended it ourselves"


@in_virtual_time
async def test_whatever_it_says_it_has_been_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as within:
        await anyio.sleep(7.0)
        assert within.connection.peer.last_heard == 0.0
        now = anyio.current_time()
        await within.outgoing.send(to_message(b'{"jsonrpc":"2.0","method":"notifications/x"}'))
        await anyio.wait_all_tasks_blocked()
        assert within.connection.peer.last_heard == pytest.approx(now)
        assert within.hooks.notifications == [("notifications/x", None)]


# ---- the task group of a connection ----------------------------------------------------------------------------------


def test_pumps_live_as_long_as_their_connection_and_an_error_comes_out_as_itself(backend: str) -> None:
    async def body() -> None:
        ended: list[str] = []

        async def pump(name: str) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(name)

        async def fails(what: str) -> None:
            raise LookupError(what)

        async def connection(body: str, *pumps: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async with pump_group() as tasks:
                for each in pumps:
                    tasks.start_soon(each)
                await anyio.lowlevel.checkpoint()
                if body == "fails":
                    raise ValueError("the body's")
                if body == "waits":
                    await anyio.sleep_forever()

        with anyio.fail_after(PATIENCE):
            await connection("ends", partial(pump, "one"))
            assert ended == ["one"]
            with pytest.raises(ValueError, match="the body's"):
                await connection("fails", partial(pump, "two"))
            assert ended == ["one", "two"]
            with pytest.raises(LookupError, match="a pump's"):
                await connection("waits", partial(fails, "a pump's"))
            with pytest.raises(BaseExceptionGroup) as caught:
                await connection("fails", partial(fails, "one"), partial(fails, "other"))
            assert len(caught.value.exceptions) >= 2

    run(backend, body)
