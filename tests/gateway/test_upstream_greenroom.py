"""A call that another Greenroom carries out for us ends as it ended there: the same error, code, reach and text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support.http_door import http_door

from greenroom import Greenroom
from greenroom.actors.backend import current_backend
from greenroom.actors.transports.http_connection import HttpConnector
from greenroom.protocol.errors import CallError, Reach, RemoteError
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool


@asynccontextmanager
async def linked(
    server: FakeServer, *, trusted: bool = True, on_elicitation: Any = None, **settings: Any
) -> AsyncGenerator[tuple[Greenroom, Greenroom]]:
    """A room with this server, called `one`, and one that reaches it through the first one's door."""
    given = {"toolPrefix": "none", "breaker": {"failures": 1}, **settings}
    there = Greenroom.open(
        {"mcpServers": {"one": {"command": "x"}}, "settings": given},
        connectors=fake_connectors({"one": server}),
        cache_path=":memory:",
        bootstrap=False,
    )
    async with there, http_door(there) as door:
        await there.connect("one")

        def connector(definition: Any, address: Any, incarnation: int) -> HttpConnector:
            return HttpConnector(
                definition, backend=current_backend(), settings=here.config.settings, is_greenroom=trusted
            )

        here = Greenroom.open(
            {"mcpServers": {"one": {"url": door.url}}, "settings": {"toolPrefix": "none"}},
            connectors=connector,
            on_elicitation=on_elicitation,
            cache_path=":memory:",
            bootstrap=False,
        )
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
        async with linked(server) as (there, here):
            await there.restart("one")
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
