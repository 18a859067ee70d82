"""Several clients of one room, each with a conversation of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support import run_virtual
from tests.support.asking import Asking, AskingServer, asking_connectors
from tests.support.rooms import open_room, teach

from greenroom import Greenroom
from greenroom.gateway._conversations import Conversations
from greenroom.gateway._endpoint import ClientSession
from greenroom.protocol.errors import UsageError
from greenroom.testing._fake import FakeServer

HELLO: Mapping[str, Any] = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "t", "version": "1"}}


class Person:
    """One client with an outlet in memory. `said` has all messages that came to it, in order."""

    busy = False
    session: ClientSession

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self._number = 0
        self._news = anyio.Event()

    def send(self, line: bytes) -> bool:
        self.said.append(json.loads(line))
        self._news.set()
        self._news = anyio.Event()
        return True

    def write(self, message: Mapping[str, Any]) -> None:
        self.session.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        self._number += 1
        self.write({"id": self._number, "method": method, "params": dict(params or {})})
        return self._number

    async def answer(self, number: int) -> dict[str, Any]:
        return await self.heard(lambda said: said.get("id") == number and "method" not in said)

    async def heard(self, wanted: Any) -> dict[str, Any]:
        """The first message that is `wanted`, which may still have to come."""
        while not (found := [said for said in self.said if wanted(said)]):
            await self._news.wait()
        return found[0]

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer(self.begin(method, params))

    def greet(self, **capabilities: Any) -> None:
        self.begin("initialize", {**HELLO, "capabilities": capabilities})
        self.write({"method": "notifications/initialized"})

    def methods(self) -> list[str]:
        return [said["method"] for said in self.said if "method" in said]


async def echo(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
    return arguments


def asking_room(servers: Mapping[str, AskingServer], entries: Any = None, **settings: Any) -> Greenroom:
    """A room over these servers, which start when they are called."""
    named: Any = dict.fromkeys(servers)
    return open_room(named, entries=entries, connectors=asking_connectors(servers), **settings)


async def call(person: Person, expose: str, name: str, **arguments: Any) -> dict[str, Any]:
    if expose == "proxy":
        return await person.ask("tools/call", {"name": "mcp", "arguments": {"tool": name, "args": arguments}})
    return await person.ask("tools/call", {"name": name, "arguments": arguments})


@asynccontextmanager
async def talking(room: Greenroom, expose: str = "direct") -> AsyncGenerator[Any]:
    """A function that opens a conversation: `async with talk("ann", sampling={}) as ann`."""
    notes: list[str] = []
    conversations = Conversations(room, expose=expose, version="1", note=notes.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(conversations.watch)

        @asynccontextmanager
        async def talk(name: str, *, greeted: bool = True, **capabilities: Any) -> AsyncGenerator[Person]:
            person = Person()
            async with conversations.open(person, tasks.start_soon, name=name) as person.session:
                if greeted:
                    person.greet(**capabilities)
                yield person

        talk.conversations = conversations  # pyright: ignore[reportFunctionMemberAccess]
        yield talk
        tasks.cancel_scope.cancel()
    assert not notes


PER_SESSION = {"isolation": "per_session"}


@pytest.mark.parametrize("expose", ["direct", "proxy"])
def test_a_clients_children_are_its_own_and_end_with_it(backend: str, expose: str) -> None:
    async def body() -> None:
        own = AskingServer({"echo": echo})
        async with (
            asking_room({"own": own}, {"own": PER_SESSION}) as room,
            talking(room, expose) as talk,
        ):
            await teach(room, "own")
            async with talk("ann") as ann:
                async with talk("ben") as ben:
                    for person in (ann, ben, ann):
                        answer = await call(person, expose, "own_echo")
                        assert not answer["result"].get("isError"), answer
                    assert (own.starts, len(own.live)) == (2, 2)
                assert len(own.live) == 1
            assert not own.live

    run_virtual(backend, body)


def test_who_drains_refuses_every_client_also_those_that_come_later(backend: str) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer()}) as room, talking(room) as talk, talk("ann") as ann:
            assert "result" in await ann.ask("tools/list")
            talk.conversations.refuse_new()
            async with talk("ben") as ben:
                for person in (ann, ben):
                    refused = await person.ask("tools/call", {"name": "a_echo", "arguments": {}})
                    assert "shutting down" in refused["error"]["message"]
                assert len(talk.conversations) == 2
            assert len(talk.conversations) == 1

    run_virtual(backend, body)


def test_a_name_that_is_taken_and_an_unknown_exposure_are_refused(backend: str) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer()}) as room, talking(room) as talk, talk("ann"):
            with pytest.raises(UsageError, match="already open"):
                async with talk("ann"):
                    raise AssertionError
            with pytest.raises(UsageError, match="exposed"):
                Conversations(room, expose="all", version="1", note=print)

    run_virtual(backend, body)
