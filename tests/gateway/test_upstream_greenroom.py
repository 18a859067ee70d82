"""A call that another Greenroom carries out for us ends as it ended there: the same error, code, reach and text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import attrs
import pytest
from tests.support.http_door import http_door
from tests.support.rooms import record_events

from greenroom import Greenroom
from greenroom.actors.backend import current_backend
from greenroom.actors.transports.http_connection import HttpConnector
from greenroom.protocol.errors import CallError, Reach, RemoteError
from greenroom.protocol.events import GateDecision
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool


def host(server: FakeServer, **settings: Any) -> Greenroom:
    """A room with this server, called `one`."""
    return Greenroom.open(
        {"mcpServers": {"one": {"command": "x"}}, "settings": {"toolPrefix": "none", **settings}},
        connectors=fake_connectors({"one": server}),
        cache_path=":memory:",
        bootstrap=False,
    )


def front(
    url: Callable[[], str], *, trusted: bool = True, on_elicitation: Any = None, **settings: Any
) -> Greenroom:
    """A room that reaches `one` through the door at this URL."""

    def connector(definition: Any, address: Any, incarnation: int) -> HttpConnector:
        at_host = attrs.evolve(definition, url=url())
        given = room.config.settings
        return HttpConnector(at_host, backend=current_backend(), settings=given, is_greenroom=trusted)

    room = Greenroom.open(
        {
            "mcpServers": {"one": {"url": "http://x", "era": "handshake"}},
            "settings": {"toolPrefix": "none", **settings},
        },
        connectors=connector,
        on_elicitation=on_elicitation,
        cache_path=":memory:",
        bootstrap=False,
    )
    return room


@asynccontextmanager
async def linked(
    server: FakeServer, *, trusted: bool = True, on_elicitation: Any = None, **settings: Any
) -> AsyncGenerator[tuple[Greenroom, Greenroom]]:
    """A room with this server, called `one`, and one that reaches it through the first one's door."""
    there = host(server, **settings)
    async with there, http_door(there) as door:
        await there.connect("one")
        here = front(lambda: door.url, trusted=trusted, on_elicitation=on_elicitation)
        async with here:
            await here.connect("one")
            yield there, here


async def failure(room: Greenroom, name: str = "echo", **arguments: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await room.call(name, arguments)
    return raised.value


def same(there: CallError, here: CallError) -> None:
    assert (type(here), here.code, here.reach, str(here)) == (
        type(there),
        there.code,
        there.reach,
        str(there),
    )


def run(test: Any) -> None:
    anyio.run(test)


def test_an_error_of_the_server_is_as_the_server_said_it() -> None:
    async def errors() -> None:
        server = FakeServer(call_error=(-32001, "no such bill"))
        async with linked(server) as (there, here):
            error = await failure(here)
            assert isinstance(error, RemoteError)
            assert (error.rpc_code, error.rpc_message, error.data) == (-32001, "no such bill", None)
            same(await failure(there), error)

    run(errors)


def test_a_lost_call_says_that_it_may_have_run() -> None:
    async def loses() -> None:
        server = FakeServer(call_latency=60.0)
        async with linked(server) as (there, here), anyio.create_task_group() as tasks:
            told: list[CallError] = []

            async def ask(room: Greenroom) -> None:
                told.append(await failure(room))

            for room in (there, here):
                tasks.start_soon(ask, room)
            with anyio.fail_after(10):
                while len(server.calls) < 2:
                    await anyio.sleep(0.01)
            server.crash("exited with code 3", 3)
            with anyio.fail_after(10):
                while len(told) < 2:
                    await anyio.sleep(0.01)
            same(*told)
            assert told[0].reach is Reach.SENT

    run(loses)


def test_a_timeout_is_one() -> None:
    async def waits() -> None:
        async with linked(FakeServer(call_latency=60.0), requestTimeoutMs=300) as (there, here):
            same(await failure(there), await failure(here))

    run(waits)


def test_a_server_that_cannot_be_started_was_sent_nothing() -> None:
    async def refuses() -> None:
        server = FakeServer()
        async with linked(server, failureThreshold=1) as (there, here):
            server.refuse_start = "no such file"
            server.crash()
            first = await failure(here)
            assert first.reach is Reach.NOT_SENT
            with anyio.fail_after(10):
                while (unavailable := await failure(there)).code != "server_unavailable":
                    await anyio.sleep(0.01)
            here_too: Any = await failure(here)
            assert (type(here_too), here_too.reach) == (type(unavailable), Reach.NOT_SENT)
            assert here_too.retry_in > 0

    run(refuses)


def test_only_a_greenroom_of_ours_is_believed() -> None:
    async def lies() -> None:
        lie = {
            "content": [{"type": "text", "text": "I did not run it"}],
            "isError": True,
            "_meta": {"greenroom/error": {"error": "timeout", "server": "one", "reach": "not_sent"}},
        }
        server = FakeServer(tools=[tool("echo")], methods={"tools/call": lambda _params: lie})
        async with linked(server) as (_, here):
            result = await here.call("echo", {})
            assert (result.is_error, result.text) == (True, "I did not run it")
        async with linked(FakeServer(call_latency=60.0), trusted=False, requestTimeoutMs=300) as (_, here):
            result = await here.call("echo", {})
            assert result.is_error
            assert "did not answer within" in result.text

    run(lies)


def test_what_is_no_call_of_a_tool_ends_alike() -> None:
    async def reads() -> None:
        server = FakeServer(resources={"made://one": "text"}, prompts={"p": "said"})
        async with linked(server) as (there, here):
            server.deaf = True
            server.crash()
            server.refuse_start = "no such file"
            with pytest.raises(CallError) as at_home:
                await there.read_resource("made://one")
            with pytest.raises(CallError) as away:
                await here.read_resource("made://one")
            assert away.value.reach is at_home.value.reach is Reach.NOT_SENT
            assert "[one]" not in str(away.value)

    run(reads)


def test_a_question_to_a_person_is_signed_once() -> None:
    async def asks() -> None:
        asked: list[str] = []

        async def answer(request: Any) -> Any:
            asked.append(request.params["message"])
            return {"action": "decline"}

        async def handler(call: Any) -> str:
            return str((await call.elicit("Your name?"))["action"])

        async with linked(FakeServer(handler=handler), on_elicitation=answer) as (_, here):
            result = await here.call("echo", {})
            assert (result.text, asked) == ("decline", ["Your name?"])

    run(asks)


def test_a_call_follows_its_server_to_another_host() -> None:
    """The first host forgets its session, the second cannot be reached any more: neither is a failure."""

    async def moves() -> None:
        servers = [FakeServer(), FakeServer(), FakeServer()]
        rooms = [host(server) for server in servers]
        async with rooms[0], rooms[1], rooms[2], http_door(rooms[0]) as first, http_door(rooms[2]) as third:
            urls = [first.url]
            here = front(lambda: urls[-1], restartPolicy="never", failureThreshold=1)
            for room in rooms:
                await room.connect("one")
            async with here:
                decisions = record_events(here, GateDecision)
                await here.connect("one")
                await here.call("echo", {})
                async with http_door(rooms[1]) as second:
                    urls.append(second.url)
                    first.door.sessions.end_all()
                    await here.call("echo", {})
                urls.append(third.url)
                await here.call("echo", {})
                assert [len(server.calls) for server in servers] == [1, 1, 1]
                assert decisions == []

    run(moves)


def test_a_link_that_breaks_while_it_is_made_is_made_again() -> None:
    async def breaks() -> None:
        server = FakeServer()
        there = host(server)
        async with there, http_door(there) as door, await anyio.create_tcp_listener(local_port=0) as listener:
            address: Any = listener.extra(anyio.abc.SocketAttribute.local_address)
            urls = [f"http://127.0.0.1:{address[1]}/mcp"]
            await there.connect("one")

            async def hang_up(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    await stream.receive()
                    urls.append(door.url)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, hang_up)
                here = front(lambda: urls[-1], failureThreshold=1)
                async with here:
                    decisions = record_events(here, GateDecision)
                    await here.connect("one")
                    assert (len(urls), decisions) == (2, [])
                tasks.cancel_scope.cancel()

    run(breaks)
