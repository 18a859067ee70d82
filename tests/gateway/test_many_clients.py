"""Many clients of one room: what one can, has or does is no other's, and no other's call pays for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.attached import Background, background
from tests.support.forked import GREENROOM
from tests.support.http_door import Opened, http_door
from tests.support.http_servers import asker_entry
from tests.support.loops import on_asyncio
from tests.support.whole import RawClient, raw_client, whole

from greenroom import Greenroom
from greenroom.supervisor.room import port_of

CAPABLE = Path(__file__).parents[1] / "support" / "capable.py"
ELICITS: Mapping[str, Any] = {"elicitation": {"form": {}}}
NAMED = {"action": "accept", "content": {"name": "Ann"}}


def capable(*names: str, **entry: Any) -> dict[str, Any]:
    """The entry of a server that lists a tool for each capability of its client."""
    return {"command": sys.executable, "args": ["-S", os.fspath(CAPABLE), *names], **entry}


def text(answer: Mapping[str, Any]) -> str:
    assert "result" in answer, answer
    return "".join(block["text"] for block in answer["result"]["content"])


def told(answer: Mapping[str, Any]) -> Any:
    return json.loads(text(answer))


# ---- a client joins ------------------------------------------------------------------------------------------------


def attached(room: Background, *, modern: bool = False) -> AbstractContextManager[RawClient]:
    command = [*GREENROOM, "attach", "--config", os.fspath(room.config), "--expose", "direct"]
    return raw_client(command, modern=modern, env=room.environment, cwd=room.folder)


@pytest.mark.parametrize("modern", [False, True])
def test_t61_a_client_that_can_do_more_ends_no_call_and_no_state_of_another(
    tmp_path: Path, modern: bool
) -> None:
    with background(tmp_path, {"s": capable()}) as room, attached(room) as first:
        first.initialize()
        assert text(first.call("s_count")) == "1"
        slow = first.send("tools/call", {"name": "s_slow", "arguments": {"seconds": 1.0}})
        with attached(room, modern=modern) as second:
            second.answers["elicitation/create"] = lambda _params: {"result": NAMED}
            second.initialize(**ELICITS)
            assert text(second.call("s_count")) == "2", "one server, and it remembers"
            assert text(first.answer(slow)) == "slept"
            if not modern:  # it can be asked all the same
                assert told(second.call("s_ask_elicitation")) == NAMED
            # Who cannot be asked is answered for.
            assert told(first.call("s_ask_elicitation")) == {"action": "decline"}
            assert told(first.call("s_ask_roots")) == {"roots": []}
            assert "declined" in told(first.call("s_ask_sampling"))["message"]
            assert text(first.call("s_count")) == "3"
            assert not first.asked


# ---- each request says what its own client can ---------------------------------------------------------------------


def modern_meta(**capabilities: Any) -> dict[str, Any]:
    return {"_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}}


async def call_as(door: Opened, tool: str, arguments: Any, **capabilities: Any) -> Any:
    """The result of a call by a client of 2026-07-28 that can answer this."""
    params = {"name": tool, "arguments": arguments, **modern_meta(**capabilities)}
    answer = await door.stateless("tools/call", params)
    return answer.json()["result"]


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@on_asyncio
@in_real_time
async def test_a_client_is_asked_only_what_it_declared_itself(expose: str) -> None:
    """The server is of 2026-07-28 and asks whatever it is told to, whether the client can be asked that or not."""
    form = {"message": "Sure?", "requestedSchema": {"type": "object"}}
    elicits: Any = {"method": "elicitation/create", "params": form}
    samples: Any = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    config = {"mcpServers": {"w": whole("w", "--modern")}}
    async with (
        Greenroom.open(config, bootstrap=False, cache_path=":memory:") as room,
        http_door(room, expose=expose) as door,
    ):

        async def asks(what: Any, **capabilities: Any) -> Any:
            tool, given = ("w_ask", what) if expose == "direct" else ("mcp", {"tool": "w_ask", "args": what})
            return await call_as(door, tool, given, **capabilities)

        await room.connect("w")
        both = [await asks(elicits, elicitation={}), await asks(samples, sampling={})]
        for result, asked in zip(both, (elicits, samples), strict=True):
            assert "inputRequests" in result, str(result["content"])
            ((_, request),) = result["inputRequests"].items()
            assert request["method"] == asked["method"], result
        refused = [
            await asks(elicits, sampling={}),
            await asks(samples, elicitation={}),
            await asks(elicits),
        ]
        for result in refused:
            assert result["resultType"] == "complete"
            assert "did not declare" in str(result["content"])


@pytest.mark.parametrize("transport", ["stdio", "http"])
@on_asyncio
@in_real_time
async def test_each_client_is_introduced_as_itself_and_in_its_own_era(transport: str) -> None:
    """The server is of both eras, and shared. On stdio each era has a process; over HTTP it is spoken to in both."""
    with asker_entry(transport) as entry:
        config = {"mcpServers": {"a": {**entry}}}
        room = Greenroom.open(config, bootstrap=False, cache_path=":memory:")
        port_of(room).services.expect_clients()
        async with room, http_door(room) as door:
            older = await door.session(capabilities={"elicitation": {}})
            said = await older.call("a_can")
            assert text(said) == "2025-11-25 elicitation roots sampling"
            for capabilities in ({"sampling": {}}, {"elicitation": {}, "roots": {}}, {}):
                result = await call_as(door, "a_can", {}, **capabilities)
                assert text({"result": result}) == " ".join(["2026-07-28", *sorted(capabilities)])
            assert text(await older.call("a_can")) == text(said)


# ---- lists ---------------------------------------------------------------------------------------------------------


async def names(person: Any, method: str = "tools/list") -> set[str]:
    result = (await person.ask(method))["result"]
    return {item.get("uri", item["name"]) for item in result[method.partition("/")[0]]}


@on_asyncio
@in_real_time
async def test_t62_each_client_sees_and_calls_what_its_own_server_listed(tmp_path: Path) -> None:
    config = {"mcpServers": {"s": capable(isolation="per_session")}}
    cache = tmp_path / "catalogue.json"
    async with (
        Greenroom.open(config, cache_path=cache, bootstrap=False) as room,
        http_door(room) as door,
    ):
        able = await door.session(capabilities={"sampling": {}})
        plain = await door.session()
        assert text(await able.call("s_count")) == "1"
        assert text(await plain.call("s_count")) == "1"
        assert await names(able) == {"s_count", "s_named", "s_slow", "s_ask_sampling"}
        assert await names(plain) == {"s_count", "s_named", "s_slow"}
        assert "not found" in text(await plain.call("s_ask_sampling"))
        # One that comes later is shown at once what a client like it has found.
        other = await door.session(capabilities={"sampling": {}})
        assert "s_ask_sampling" in await names(other)
        assert "s_ask_sampling" not in await names(await door.session())
        # What is called afterwards changes nothing for others.
        assert text(await plain.call("s_named", who="Ann")) == "named"
        for _ in range(200):
            if "user://Ann/mail" in await names(plain, "resources/list"):
                break
            await anyio.sleep(0.02)
        assert await names(plain, "resources/list") == {"user://Ann/mail"}
        assert await names(other, "resources/list") == set()
    async with (
        Greenroom.open(config, cache_path=cache, bootstrap=False) as room,
        http_door(room) as door,
    ):
        assert "s_ask_sampling" in await names(await door.session(capabilities={"sampling": {}}))
        assert "s_ask_sampling" not in await names(await door.session())
    assert b"Ann" not in (tmp_path / "catalogue.json").read_bytes()


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@on_asyncio
@in_real_time
async def test_t63_what_a_server_lists_for_one_user_is_never_shown_to_another(
    expose: str, tmp_path: Path
) -> None:
    """Its lists have the user's name, which it was started with, in them."""
    config = {"mcpServers": {"s": capable("${session.USER}", isolation="per_session", exposeResources=True)}}
    cache = tmp_path / "catalogue.json"
    async with (
        Greenroom.open(config, cache_path=cache) as room,
        http_door(room, expose=expose, session_headers={"x-user": "USER"}) as door,
    ):
        ann, bob = [await door.session(x_user=user) for user in ("Ann", "Bob")]
        for person, own, other in ((ann, "Ann", "Bob"), (bob, "Bob", "Ann"), (ann, "Ann", "Bob")):
            if expose == "direct":
                seen = str(await person.ask("resources/list")) + str(await person.ask("tools/list"))
            else:
                seen = ""
                for _ in range(200):
                    seen = text(await person.call("mcp", search="mail count"))
                    if own in seen:
                        break
                    await anyio.sleep(0.02)
                seen += text(await person.call("mcp", server="s"))
            assert own in seen, seen
            assert "count" in seen
            assert other not in seen
        assert room.tools() == ()
        assert all("Ann" not in str(row) for row in room.status())
    kept = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())  # noqa: ASYNC240
    assert b"Ann" not in kept
    assert b"Bob" not in kept


@on_asyncio
@in_real_time
async def test_a_server_that_no_clients_share_is_first_asked_what_it_has_for_anybody() -> None:
    room = Greenroom.open({"mcpServers": {"s": capable(isolation="per_session")}}, cache_path=":memory:")
    port_of(room).services.expect_clients()
    async with room, http_door(room) as door:
        await room.catalogued()
        assert await names(await door.session()) == {"s_count", "s_named", "s_slow"}
        able = await door.session(capabilities={"sampling": {}})
        assert text(await able.call("s_count")) == "1"
        assert "s_ask_sampling" in await names(able)
