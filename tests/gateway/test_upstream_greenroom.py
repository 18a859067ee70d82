"""A call that another Greenroom carries out for us ends as it ended there: the same error, code, reach and text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import attrs
import pytest
from tests.support.http_door import http_door
from tests.support.patience import PATIENCE
from tests.support.rooms import record_events

from greenroom import Greenroom
from greenroom.actors.backend import current_backend
from greenroom.actors.transports.http_connection import HttpConnector
from greenroom.actors.transports.link import linked
from greenroom.config.model import ServerDefinition, Settings
from greenroom.gateway.conversations import Conversations
from greenroom.gateway.doors.http_server import bound
from greenroom.gateway.doors.link_door import LinkDoor
from greenroom.protocol.errors import CallError, Reach, RemoteError
from greenroom.protocol.events import BreakerDecision
from greenroom.protocol.links import OPEN, LinkHello, NoLink
from greenroom.testing.fake_servers import FakeCall, FakeServer, fake_connectors, tool


def host(server: FakeServer, **settings: Any) -> Greenroom:
    """A room with this server, called `one`."""
    return Greenroom.open(
        {"mcpServers": {"one": {"command": "x"}}, "settings": {"toolPrefix": "none", **settings}},
        connectors=fake_connectors({"one": server}),
        cache_path=":memory:",
        bootstrap=False,
    )


@attrs.define(eq=False)
class Entry:
    """Who lets links in, as the fence of a host does. `here`: whether the server is."""

    here: bool = True

    def admit(self, hello: LinkHello) -> str | None:
        if not self.here:
            raise NoLink("moved")
        return None

    def may_call(self, _hello: LinkHello) -> bool:
        return self.here


@attrs.define(eq=False)
class Links:
    port: int
    door: LinkDoor
    entry: Entry


@asynccontextmanager
async def link_door(room: Greenroom) -> AsyncGenerator[Links]:
    """The door for links of a room."""
    conversations = Conversations(room, expose="direct", version="1", note=lambda _text: None)
    entry: Any = Entry()
    door = LinkDoor(conversations, entry, room.config.settings.max_line, lambda _text: None)
    with bound("127.0.0.1", 0) as listener:
        async with anyio.create_task_group() as tasks:
            await tasks.start(conversations.watch)
            tasks.start_soon(door.run, listener)
            yield Links(listener.getsockname()[1], door, entry)
            await door.close()
            tasks.cancel_scope.cancel()


@attrs.frozen
class Connector:
    """Reaches `one` over a link to this port."""

    port: int

    @asynccontextmanager
    async def open(self, hooks: Any) -> AsyncGenerator[Any]:
        hello, backend = LinkHello("token", "1.1", "one"), current_backend()
        async with linked("127.0.0.1", self.port, hello, hooks, backend, Settings(), 5.0) as connection:
            yield connection


def front(connector: Callable[..., Any], *, on_elicitation: Any = None, **settings: Any) -> Greenroom:
    """A room that reaches `one` as `connector` does."""
    return Greenroom.open(
        {
            "mcpServers": {"one": {"url": "http://x", "era": "handshake"}},
            "settings": {"toolPrefix": "none", **settings},
        },
        connectors=connector,
        on_elicitation=on_elicitation,
        cache_path=":memory:",
        bootstrap=False,
    )


@asynccontextmanager
async def linked_rooms(
    server: FakeServer, *, on_elicitation: Any = None, **settings: Any
) -> AsyncGenerator[tuple[Greenroom, Greenroom]]:
    """A room with this server, called `one`, and one that reaches it over a link."""
    there = host(server, **settings)
    async with there, link_door(there) as door:
        await there.connect("one")
        here = front(lambda *_: Connector(door.port), on_elicitation=on_elicitation)
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
        async with linked_rooms(server) as (there, here):
            error = await failure(here)
            assert isinstance(error, RemoteError)
            assert (error.rpc_code, error.rpc_message, error.data) == (-32001, "no such bill", None)
            same(await failure(there), error)

    run(errors)


def test_a_lost_call_says_that_it_may_have_run() -> None:
    async def loses() -> None:
        server = FakeServer(call_latency=60.0)
        async with linked_rooms(server) as (there, here), anyio.create_task_group() as tasks:
            told: list[CallError] = []

            async def ask(room: Greenroom) -> None:
                told.append(await failure(room))

            for room in (there, here):
                tasks.start_soon(ask, room)
            with anyio.fail_after(PATIENCE):
                while len(server.calls) < 2:
                    await anyio.sleep(0.01)
            server.crash("exited with code 3", 3)
            with anyio.fail_after(PATIENCE):
                while len(told) < 2:
                    await anyio.sleep(0.01)
            same(*told)
            assert told[0].reach is Reach.SENT

    run(loses)


def test_a_timeout_is_one() -> None:
    async def waits() -> None:
        async with linked_rooms(FakeServer(call_latency=60.0), requestTimeoutMs=1_000) as (there, here):
            same(await failure(there), await failure(here))

    run(waits)


def test_a_server_that_cannot_be_started_was_sent_nothing() -> None:
    async def refuses() -> None:
        server = FakeServer()
        async with linked_rooms(server, failureThreshold=1) as (there, here):
            server.refuse_start = "no such file"
            server.crash()
            first = await failure(here)
            assert first.reach is Reach.NOT_SENT
            with anyio.fail_after(PATIENCE):
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
        async with linked_rooms(server) as (_, here):
            result = await here.call("echo", {})
            assert (result.is_error, result.text) == (True, "I did not run it")
        there = host(FakeServer(call_latency=60.0), requestTimeoutMs=2_000)
        async with there, http_door(there) as door:
            await there.connect("one")
            at_host = ServerDefinition("one", url=door.url)
            here = front(lambda *_: HttpConnector(at_host, backend=current_backend(), settings=Settings()))
            async with here:
                await here.connect("one")
                result = await here.call("echo", {})
            assert result.is_error
            assert "did not answer within" in result.text

    run(lies)


def test_what_is_no_call_of_a_tool_ends_alike() -> None:
    async def reads() -> None:
        server = FakeServer(resources={"made://one": "text"}, prompts={"p": "said"})
        async with linked_rooms(server) as (there, here):
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

        async with linked_rooms(FakeServer(handler=handler), on_elicitation=answer) as (_, here):
            result = await here.call("echo", {})
            assert (result.text, asked) == ("decline", ["Your name?"])

    run(asks)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_call_follows_its_server_to_another_host(loop: str) -> None:
    """One host says that the server is elsewhere, the next one ends its link: neither is a failure."""

    async def moves() -> None:
        servers = [FakeServer(), FakeServer(), FakeServer()]
        rooms = [host(server) for server in servers]
        async with AsyncExitStack() as stack:
            for room in rooms:
                await stack.enter_async_context(room)
                await room.connect("one")
            doors = [await stack.enter_async_context(link_door(room)) for room in rooms]
            doors.reverse()
            here = front(lambda *_: Connector(doors[-1].port), restartPolicy="never", failureThreshold=1)
            async with here:
                decisions = record_events(here, BreakerDecision)
                await here.connect("one")
                await here.call("echo", {})
                doors.pop().entry.here = False
                await here.call("echo", {})
                doors.pop().door.unlink("one")
                await anyio.sleep(0.1)
                await here.call("echo", {})
                assert [len(server.calls) for server in servers] == [1, 1, 1]
                assert decisions == []

    anyio.run(moves, backend=loop)


def test_what_was_sent_is_answered_before_a_link_ends() -> None:
    async def ends() -> None:
        may_end, results = anyio.Event(), list[str]()

        async def held(_call: FakeCall) -> str:
            await may_end.wait()
            return "it"

        server = FakeServer(handler=held)
        there = host(server)
        async with there, link_door(there) as door:
            await there.connect("one")
            here = front(lambda *_: Connector(door.port))
            async with here:
                await here.connect("one")

                async def call() -> None:
                    results.append((await here.call("echo", {"text": "it"})).text)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    while not server.calls:
                        await anyio.sleep(0.01)
                    door.entry.here = False
                    tasks.start_soon(call)
                    await anyio.sleep(0.1)
                    assert (len(server.calls), results) == (1, [])
                    may_end.set()
                    door.entry.here = True
                assert len(results) == len(server.calls) == 2

    run(ends)


@pytest.mark.parametrize("how", ["a call", "another request"])
def test_what_was_taken_and_may_not_be_sent_any_more_goes_elsewhere(how: str) -> None:
    """The server is given back between the coming of a call and the start that it waits for."""

    async def moves() -> None:
        first, second = FakeServer(), FakeServer(resources={"x://y": "it"})
        rooms = [host(first, idleTimeout=0.01), host(second)]
        first.resources = second.resources
        async with rooms[0], rooms[1], link_door(rooms[0]) as old, link_door(rooms[1]) as new:
            ports = [new.port, old.port]
            here = front(lambda *_: Connector(ports.pop()), restartPolicy="never", failureThreshold=1)
            async with here:
                for room in (*rooms, here):
                    await room.connect("one")
                while first.live:  # it idles there, and is linked
                    await anyio.sleep(0.01)
                first.initialize_latency, first.refuse_initialize = 0.3, "it may not run here"
                results: list[str] = []

                async def call() -> None:
                    if how == "a call":
                        results.append((await here.call("echo", {"text": "it"})).text)
                    else:
                        results.append(str(await here.request("one", "resources/read", {"uri": "x://y"})))

                starts = first.starts
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    while first.starts == starts:
                        await anyio.sleep(0.01)
                    old.entry.here = False
                assert len(results) == 1
                assert "it" in results[0]

    run(moves)


def test_connections_that_say_nothing_keep_nobody_out() -> None:
    async def crowd() -> None:
        there = host(FakeServer())
        async with there, link_door(there) as door, AsyncExitStack() as stack:
            await there.connect("one")
            silent = [
                await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", door.port))
                for _ in range(300)
            ]
            here = front(lambda *_: Connector(door.port))
            async with here:
                await here.connect("one")
                await here.call("echo", {})
            with pytest.raises(anyio.EndOfStream), anyio.fail_after(PATIENCE):
                await silent[0].receive()

    run(crowd)


def test_a_link_that_breaks_while_it_is_made_is_made_again() -> None:
    async def breaks() -> None:
        there = host(FakeServer())
        async with there, link_door(there) as door, await anyio.create_tcp_listener(local_port=0) as listener:
            address: Any = listener.extra(anyio.abc.SocketAttribute.local_address)
            ports = [address[1]]
            await there.connect("one")

            async def hang_up(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    await stream.receive()
                    await stream.send(OPEN)
                    ports.append(door.port)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, hang_up)
                here = front(lambda *_: Connector(ports[-1]), failureThreshold=1)
                async with here:
                    decisions = record_events(here, BreakerDecision)
                    await here.connect("one")
                    assert (len(ports), decisions) == (2, [])
                tasks.cancel_scope.cancel()

    run(breaks)
