"""Whoever joins and leaves a shared room, in whatever version and with whatever capabilities: no call is ended and no
state lost for it, a client is asked only what it declared, and it finds what it would have found alone.

The sequences are drawn. The servers speak the older version, the newer one, or both; then each connection of theirs
speaks the one of its first request for its life.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import anyio
import attrs
import pytest
from tests.gateway.test_conversations import asking_room, talking
from tests.support import in_virtual_time
from tests.support.asking import Act, Asking, AskingServer
from tests.support.memory_client import MemoryClient
from tests.support.rooms import teach

from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import tool

OLDER, NEWER = "2025-11-25", "2026-07-28"
META = "io.modelcontextprotocol/"
FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
KINDS = {"older": (OLDER,), "newer": (NEWER,), "both": (OLDER, NEWER)}
CAPABILITIES: tuple[dict[str, Any], ...] = (
    {},
    {"elicitation": {"form": {}}},
    {"sampling": {}},
    {"roots": {}, "elicitation": {"form": {}, "url": {}}},
)


@attrs.define(eq=False)
class Remembering:
    """A server that counts the calls of each connection, can be kept waiting, and asks its client."""

    released: anyio.Event = attrs.field(factory=anyio.Event)
    counts: dict[Asking, int] = attrs.field(factory=dict[Asking, int])

    async def count(self, asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        self.counts[asking] = self.counts.get(asking, 0) + 1
        return [asking.protocol_version, list(self.counts).index(asking), self.counts[asking]]

    async def wait(self, _asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        await self.released.wait()
        return "waited"

    async def ask(self, asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        if not asking.is_modern:
            return (await asking.ask("elicitation/create", FORM))["action"]
        if said := asking.params.get("inputResponses"):
            return said["q"]["action"]
        wanted = {"q": {"method": "elicitation/create", "params": FORM}}
        return {"resultType": "input_required", "inputRequests": wanted}


class Member(MemoryClient):
    """A client of either version, which accepts every form."""

    def __init__(self, version: str, capabilities: Mapping[str, Any]) -> None:
        super().__init__()
        self.version, self.capabilities = version, capabilities
        self.answers["elicitation/create"] = {"action": "accept", "content": {}}
        self.waits_for: int | None = None

    def begin(self, method: str, params: Any = None, *, id: Any = None) -> int:
        said = dict(params or {})
        if self.version == NEWER:
            said["_meta"] = {META + "protocolVersion": NEWER, META + "clientCapabilities": self.capabilities}
        return super().begin(method, said, id=id)

    def start(self, name: str, **more: Any) -> int:
        return self.begin("tools/call", {"name": f"s_{name}", "arguments": {}, **more})

    async def call(self, name: str, **more: Any) -> dict[str, Any]:
        return (await self.answer(self.start(name, **more)))["result"]

    async def is_asked(self) -> bool:
        """Whether the server gets an answer to its form from this client."""
        result = await self.call("ask")
        if "inputRequests" in result:
            assert self.version == NEWER
            answers = {key: {"action": "accept", "content": {}} for key in result["inputRequests"]}
            state = {key: result[key] for key in ("requestState",) if key in result}
            result = await self.call("ask", inputResponses=answers, **state)
        return text(result) == '"accept"'


def text(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


def spoken(kind: str, version: str) -> str:
    """The version in which a client of this one is served."""
    return version if version in KINDS[kind] else KINDS[kind][0]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_who_joins_and_leaves_changes_nothing_for_the_others(kind: str, seed: int) -> None:
    drawn, remembering = random.Random(f"{kind} {seed}"), Remembering()
    acts: dict[str, Act] = {"count": remembering.count, "wait": remembering.wait, "ask": remembering.ask}
    server = AskingServer(acts, modern=kind == "newer", both=kind == "both")
    entry = {"lifecycle": drawn.choice(["lazy", "eager", "keep-alive"])}
    room = asking_room({"s": server}, {"s": entry})
    port_of(room).services.expect_clients()
    async with room, talking(room) as talk:
        await teach(room, "s", [tool(name) for name in acts])
        members: list[tuple[Member, AsyncExitStack]] = []
        numbers = count()
        seen: dict[str, list[int]] = {}  # by the version spoken: the connection, and its last count

        async def join() -> None:
            member = Member(drawn.choice([OLDER, NEWER]), drawn.choice(CAPABILITIES))
            stack = AsyncExitStack()
            opened = talk.conversations.open(member, talk.spawn, name=f"client {next(numbers)}")
            member.session = await stack.enter_async_context(opened)
            if member.version == OLDER:
                member.initialize(**member.capabilities)
            members.append((member, stack))

        async def finish(member: Member) -> None:
            if member.waits_for is not None:
                assert text((await member.answer(member.waits_for))["result"]) == '"waited"'
                member.waits_for = None

        async def release() -> None:
            remembering.released.set()
            for member, _ in members:
                await finish(member)
            remembering.released = anyio.Event()

        for _ in range(30):
            step = drawn.choice(
                ["join", "join", "leave", "count", "count", "count", "ask", "wait", "release"]
            )
            if step == "join" or not members:
                await join()
                continue
            member, stack = drawn.choice(members)
            match step:
                case "leave" if member.waits_for is None:
                    members.remove((member, stack))
                    await stack.aclose()
                case "count":
                    version, connection, calls = json.loads(text(await member.call("count")))
                    assert version == spoken(kind, member.version)
                    assert [connection, calls - 1] == seen.get(version, [connection, 0]), "one, for its life"
                    seen[version] = [connection, calls]
                case "ask":
                    await release()  # an older server does not say which call it asks for
                    assert await member.is_asked() is ("elicitation" in member.capabilities)
                case "wait" if member.waits_for is None:
                    member.waits_for = member.start("wait")
                case "release":
                    await release()
                case _:
                    pass
            if "elicitation" not in member.capabilities:
                assert "elicitation/create" not in member.methods()
        await release()
        # One that speaks only the newer version has to be asked whether it does.
        assert server.starts <= (1 if kind == "older" else 2)
        for _, stack in members:
            await stack.aclose()
