"""Sessions of the SDK at the door for clients in the program's own process: all that they may do, over streams and with
a dispatcher of ours."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, MCPError
from mcp.client.subscriptions import ToolsListChanged, listen
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    CreateMessageResult,
    ElicitResult,
    ErrorData,
    TextContent,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from tests.support import in_real_time, in_virtual_time
from tests.support.rooms import open_room, settle

from greenroom import Greenroom, InProcessDoor, UsageError
from greenroom.testing import HANG, FakeServer, tool
from greenroom.testing.servers import whole

WHOLE = Path(whole.__file__)
CARRIERS = pytest.mark.parametrize("carrier", ["streams", "dispatcher"])


@asynccontextmanager
async def session_at(
    door: InProcessDoor, carrier: str, *, session: str | None = None, **how: Any
) -> AsyncGenerator[ClientSession]:
    """`how`: what `ClientSession` takes."""
    async with AsyncExitStack() as ends:
        if carrier == "streams":
            read, write = await ends.enter_async_context(door.streams(session=session))
            client = ClientSession(read, write, **how)
        else:
            dispatcher = await ends.enter_async_context(door.dispatcher(session=session))
            client = ClientSession(dispatcher=dispatcher, **how)
        yield await ends.enter_async_context(client)


@CARRIERS
def test_progress_comes_where_nobody_has_told_anyio_which_loop_runs(carrier: str) -> None:
    """`asyncio.run` does not, and what a server says is read outside any task."""
    heard: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async def program() -> None:
        server = {"command": sys.executable, "args": ["-S", os.fspath(WHOLE)]}
        opened = Greenroom.open({"mcpServers": {"w": server}}, cache_path=":memory:")
        async with opened as room, client_of(room, carrier) as client:
            await client.list_tools()
            await client.call_tool("w_steps", {"count": 3}, progress_callback=progressed)

    asyncio.run(program())
    assert heard == [1, 2, 3]


@asynccontextmanager
async def client_of(
    room: Greenroom, carrier: str, *, modern: bool = False, **how: Any
) -> AsyncGenerator[ClientSession]:
    async with InProcessDoor.open(room) as door, session_at(door, carrier, **how) as session:
        await (session.discover() if modern else session.initialize())
        yield session


@asynccontextmanager
async def client_and_server(
    carrier: str, server: FakeServer, *, modern: bool = False, **how: Any
) -> AsyncGenerator[ClientSession]:
    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with client_of(room, carrier, modern=modern, **how) as client:
            yield client


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def said(result: Any) -> str:
    return result.content[0].text


@CARRIERS
@in_virtual_time
async def test_it_lists_and_calls(carrier: str) -> None:
    async with client_and_server(carrier, FakeServer()) as client:
        assert [one.name for one in (await client.list_tools()).tools] == ["a_echo"]
        assert json.loads(said(await client.call_tool("a_echo", {"text": "cue"}))) == {"text": "cue"}


@CARRIERS
@in_virtual_time
async def test_an_error_of_a_server_has_its_code_and_what_it_says(carrier: str) -> None:
    async with client_and_server(carrier, FakeServer(call_error=(-32050, "no ink"))) as client:
        with pytest.raises(MCPError, match="no ink") as raised:
            await client.call_tool("a_echo", {})
        assert raised.value.code == -32050
        assert raised.value.data == {"greenroom/server": "a"}


@CARRIERS
@in_virtual_time
async def test_a_cancelled_call_is_cancelled_at_its_server(carrier: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with client_and_server(carrier, server) as client:
        with anyio.move_on_after(5):
            await client.call_tool("a_echo", {})
        await settle()
        assert server.cancelled == 1


@CARRIERS
@in_virtual_time
async def test_a_call_that_the_client_waits_for_no_longer_is_cancelled_at_its_server(carrier: str) -> None:
    server = FakeServer(call_latency=HANG)
    async with client_and_server(carrier, server) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("a_echo", {}, read_timeout_seconds=5)
        assert raised.value.code == REQUEST_TIMEOUT
        await settle()
        assert server.cancelled == 1


@CARRIERS
@in_virtual_time
async def test_a_call_in_flight_ends_with_its_session(carrier: str) -> None:
    server = FakeServer(call_latency=HANG)
    codes: list[int] = []

    async def call(client: ClientSession) -> None:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("a_echo", {})
        codes.append(raised.value.code)

    async with open_room({"a": server}) as room, anyio.create_task_group() as tasks:
        await room.connect("a")
        async with client_of(room, carrier) as client:
            for _ in range(3):
                tasks.start_soon(call, client)
            await settle()
        await settle()
        assert codes == 3 * [CONNECTION_CLOSED]
        assert server.cancelled == 3
        with pytest.raises(MCPError) as raised:
            await client.list_tools()
        assert raised.value.code == CONNECTION_CLOSED


@CARRIERS
@in_virtual_time
async def test_progress_comes_to_who_asked_and_before_the_answer(carrier: str) -> None:
    wanted: list[bool] = []
    told: list[tuple[float, float | None, str | None]] = []

    async def work(call: Any) -> Any:
        wanted.append(call._exchange.on_progress is not None)
        call.progress(1, 2, "half")
        await anyio.sleep(1)
        call.progress("much")  # what is not a number is not told
        call.progress(2)
        return text("done")

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with client_and_server(carrier, FakeServer(handler=work)) as client:
        assert said(await client.call_tool("a_echo", {}, progress_callback=on_progress)) == "done"
        await settle()
        assert told == [(1.0, 2.0, "half"), (2.0, None, None)]
        assert said(await client.call_tool("a_echo", {})) == "done"
        assert wanted == [True, False]


@CARRIERS
@in_virtual_time
async def test_what_a_server_asks_is_answered_by_the_client(carrier: str) -> None:
    async def ask(call: Any) -> Any:
        ink = await call.elicit("which ink?", {"type": "object", "properties": {"ink": {"type": "string"}}})
        line = await call.sample("a line")
        return text(f"{line['content']['text']} in {ink['content']['ink']}")

    async def choose(_context: Any, params: Any) -> ElicitResult:
        assert "which ink?" in params.message
        return ElicitResult(action="accept", content={"ink": "green"})

    async def write(_context: Any, params: Any) -> CreateMessageResult:
        assert params.max_tokens == 1000
        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="words"), model="m"
        )

    server = FakeServer(handler=ask)
    async with client_and_server(
        carrier, server, elicitation_callback=choose, sampling_callback=write
    ) as client:
        assert said(await client.call_tool("a_echo", {})) == "words in green"


@CARRIERS
@in_virtual_time
async def test_what_the_client_refuses_or_fails_at_is_told_to_the_server(carrier: str) -> None:
    async def ask(call: Any) -> Any:
        await call.elicit("which ink?")

    async def refuse(_context: Any, params: Any) -> ErrorData:
        return ErrorData(code=-32042, message="not now")

    async def fail(_context: Any, params: Any) -> ErrorData:
        raise KeyError("no pen")

    for callback, words in ((refuse, "not now"), (fail, "no pen")):
        server = FakeServer(handler=ask)
        async with client_and_server(carrier, server, elicitation_callback=callback) as client:
            with pytest.raises(MCPError, match=words):
                await client.call_tool("a_echo", {})
            server.handler = lambda _given: text("again")
            assert said(await client.call_tool("a_echo", {})) == "again"


@CARRIERS
@in_virtual_time
async def test_a_question_that_nobody_waits_for_any_more_is_cancelled_at_the_client(carrier: str) -> None:
    ends: list[str] = []
    begun = anyio.Event()

    async def ask(call: Any) -> Any:
        await call.elicit("which ink?")

    async def ponder(_context: Any, _params: Any) -> Any:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("told")

    async def die() -> None:
        await begun.wait()
        server.crash()

    server = FakeServer(handler=ask)
    async with (
        client_and_server(carrier, server, elicitation_callback=ponder) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(die)
        assert (await client.call_tool("a_echo", {})).is_error
        await settle()
        assert ends == ["told"]


@CARRIERS
@in_virtual_time
async def test_callbacks_run_in_the_context_in_which_the_session_began(carrier: str) -> None:
    who = ContextVar("who", default="nobody")
    seen: list[str] = []

    async def work(call: Any) -> Any:
        call.progress(1)
        return text((await call.elicit("who?"))["content"]["name"])

    async def answer(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": who.get()})

    async def on_log(_params: Any) -> None:
        seen.append(who.get())

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(who.get())

    server = FakeServer(handler=work, capabilities={"logging": {}})
    async with open_room({"a": server}) as room:
        await room.connect("a")
        who.set("ann")
        async with client_of(room, carrier, elicitation_callback=answer, logging_callback=on_log) as client:
            who.set("bob")
            assert said(await client.call_tool("a_echo", {}, progress_callback=on_progress)) == "ann"
            server.connections[-1].tell("notifications/message", {"level": "error", "data": 1})
            await settle()
            assert seen == ["ann", "ann"]


@CARRIERS
@in_virtual_time
async def test_a_callback_may_call_and_ends_with_its_session(carrier: str) -> None:
    inner: list[str] = []
    ends: list[str] = []
    clients: list[ClientSession] = []

    async def ask(call: Any) -> Any:
        if "leaf" in call:
            return text("leaf")
        return await call.elicit("go on?")

    async def call_and_wait(_context: Any, _params: Any) -> Any:
        inner.append(said(await clients[0].call_tool("a_echo", {"leaf": 1})))
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")

    async def call(client: ClientSession) -> None:
        with pytest.raises(MCPError):
            await client.call_tool("a_echo", {})

    server = FakeServer(handler=ask)
    async with anyio.create_task_group() as tasks:
        async with client_and_server(carrier, server, elicitation_callback=call_and_wait) as client:
            clients.append(client)
            tasks.start_soon(call, client)
            await anyio.sleep(1)
            assert inner == ["leaf"]
        assert ends == ["cancelled"]


@CARRIERS
@in_virtual_time
async def test_logging_and_changes_of_the_lists_are_told(carrier: str) -> None:
    server = FakeServer(tools=[tool("echo")], capabilities={"logging": {}})
    logged: list[Any] = []
    heard: list[str] = []

    async def on_log(params: Any) -> None:
        logged.append(params.data)

    async def on_message(message: Any) -> None:
        heard.append(message.method)

    async with client_and_server(
        carrier, server, logging_callback=on_log, message_handler=on_message
    ) as client:
        await client.list_tools()
        server.connections[-1].tell("notifications/message", {"level": "error", "data": "no ink"})
        server.tools = [tool("echo"), tool("more")]
        server.announce_tools()
        await anyio.sleep(10)
        assert logged == ["no ink"]
        assert set(heard) == {"notifications/message", "notifications/tools/list_changed"}
        assert {one.name for one in (await client.list_tools()).tools} == {"a_echo", "a_more"}


@in_virtual_time
async def test_a_client_that_is_busy_with_what_it_was_told_is_told_no_more_but_answered() -> None:
    begun, go_on = 0, anyio.Event()

    async def ponder(_params: Any) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    server = FakeServer(capabilities={"logging": {}})
    async with client_and_server("dispatcher", server, logging_callback=ponder) as client:

        async def log(times: int) -> None:
            for _ in range(times):
                server.connections[-1].tell("notifications/message", {"level": "error", "data": 10_000 * "x"})
                await settle(3)

        await log(200)
        assert 100 <= begun <= 110
        assert not (await client.call_tool("a_echo", {})).is_error
        go_on.set()
        await settle()
        before = begun
        await log(5)
        assert begun == before + 5


@CARRIERS
@in_virtual_time
async def test_a_client_of_2026_listens_for_changes(carrier: str) -> None:
    server = FakeServer(tools=[tool("echo")])
    async with client_and_server(carrier, server, modern=True) as client:
        await client.list_tools()
        async with listen(client, tools_list_changed=True) as changes:
            server.tools = [tool("echo"), tool("more")]
            server.announce_tools()
            async for change in changes:
                assert isinstance(change, ToolsListChanged)
                break
        assert {one.name for one in (await client.list_tools()).tools} == {"a_echo", "a_more"}


@CARRIERS
@in_virtual_time
async def test_the_trace_of_the_caller_comes_to_the_server(carrier: str) -> None:
    metas: list[Mapping[str, Any]] = []

    def note(call: Any) -> Any:
        metas.append(call.meta)
        return text("done")

    trace = SpanContext(7, 9, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    async with client_and_server(carrier, FakeServer(handler=note)) as client:
        with use_span(NonRecordingSpan(trace)):
            await client.call_tool("a_echo", {}, meta={"team": "blue"})
        await client.call_tool("a_echo", {})
    assert metas[0]["team"] == "blue"
    assert metas[0]["traceparent"].startswith(f"00-{7:032x}-{9:016x}")
    assert "traceparent" not in metas[1]


@CARRIERS
@in_virtual_time
async def test_half_characters_and_long_numbers_pass(carrier: str) -> None:
    calls: list[Mapping[str, Any]] = []

    def note(call: Any) -> Any:
        calls.append(dict(call))
        return {**text("half \ud83d"), "structuredContent": {"n": 10**30}}

    async with client_and_server(carrier, FakeServer(handler=note)) as client:
        result = await client.call_tool("a_echo", {"n": 10**30})
        assert said(result) == "half �"
        assert result.structured_content == {"n": 10**30}
        assert calls == [{"n": 10**30}]


@CARRIERS
@in_virtual_time
async def test_an_answer_that_the_sdk_cannot_read_ends_its_call(carrier: str) -> None:
    deep: Any = 7
    for _ in range(400):
        deep = [deep]
    server = FakeServer(handler=lambda _given: {**text("deep"), "structuredContent": {"deep": deep}})
    async with client_and_server(carrier, server) as client:
        with pytest.raises((MCPError, ValueError), match=r"nested too deep|depth exceeded"):
            await client.call_tool("a_echo", {})
        server.handler = lambda _given: text("flat")
        assert said(await client.call_tool("a_echo", {})) == "flat"


@in_virtual_time
async def test_an_answer_that_we_cannot_read_ends_its_call() -> None:
    server = FakeServer(handler=lambda _given: {**text("much"), "structuredContent": {"n": math.inf}})
    async with client_and_server("dispatcher", server) as client:
        with pytest.raises(MCPError, match="out of range") as raised:
            await client.call_tool("a_echo", {})
        assert raised.value.code == INTERNAL_ERROR
        server.handler = lambda _given: text("little")
        assert said(await client.call_tool("a_echo", {})) == "little"


@CARRIERS
@in_real_time
async def test_megabytes_pass_both_ways(carrier: str) -> None:
    long = "x" * 3_000_000
    async with client_and_server(carrier, FakeServer(handler=lambda given: text(given["t"]))) as client:
        assert said(await client.call_tool("a_echo", {"t": long})) == long


@CARRIERS
@in_virtual_time
async def test_many_calls_at_once_each_have_their_own_answer(carrier: str) -> None:
    async def late(call: Any) -> Any:
        await anyio.sleep(call["wait"])
        return text(str(call["n"]))

    answers: dict[int, str] = {}

    async def call(client: ClientSession, n: int) -> None:
        answers[n] = said(await client.call_tool("a_echo", {"n": n, "wait": n * 7 % 11}))

    async with client_and_server(carrier, FakeServer(handler=late)) as client:
        async with anyio.create_task_group() as tasks:
            for n in range(50):
                tasks.start_soon(call, client, n)
        assert answers == {n: str(n) for n in range(50)}


@in_virtual_time
async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    async with open_room({"a": FakeServer()}) as room, InProcessDoor.open(room) as door:
        with pytest.raises(KeyError, match="mine"):
            async with door.dispatcher():
                raise KeyError("mine")


@CARRIERS
@in_virtual_time
async def test_a_session_has_its_name_alone_and_until_it_ends(carrier: str) -> None:
    async with open_room({"a": FakeServer()}) as room, InProcessDoor.open(room) as door:
        for _ in range(2):
            async with session_at(door, carrier, session="alice") as client:
                await client.initialize()
                with pytest.raises(UsageError):
                    async with session_at(door, carrier, session="alice"):
                        pass


@in_virtual_time
async def test_with_an_older_sdk_a_dispatcher_is_refused_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.shared.direct_dispatcher", None)  # it has none
    monkeypatch.delitem(sys.modules, "greenroom.gateway.doors.in_process_dispatcher", raising=False)
    async with open_room({"a": FakeServer()}) as room, InProcessDoor.open(room) as door:
        with pytest.raises(UsageError, match="mcp>=2"):
            async with door.dispatcher():
                pass
