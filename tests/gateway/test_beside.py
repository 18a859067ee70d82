"""Tools beside the `mcp` tool: chosen by the configuration, or promoted by a model for its session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import talking
from tests.support import in_virtual_time
from tests.support.memory_client import MemoryClient
from tests.support.rooms import settle, teach
from tests.support.whole import direct_door, whole

from greenroom import Greenroom
from greenroom.actors.router import LearnedEntry
from greenroom.catalogue.entries import ServerEntry
from greenroom.protocol.bounds import PROMOTED
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside

CHANGED = "notifications/tools/list_changed"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def open_room(servers: Mapping[str, FakeServer], chosen: Any = None, **settings: Any) -> Greenroom:
    """`chosen`: `directTools` by server."""
    entries: dict[str, Any] = {name: {"command": "fake"} for name in servers}
    for name, said in (chosen or {}).items():
        entries[name]["directTools"] = said
    config = {"mcpServers": entries, "settings": settings}
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=fake_connectors(servers))


async def names(person: MemoryClient, meta: Mapping[str, Any] | None = None) -> list[str]:
    answer = await person.ask("tools/list", {} if meta is None else {"_meta": meta})
    return [each["name"] for each in answer["result"]["tools"]]


async def mcp(
    person: MemoryClient, meta: Mapping[str, Any] | None = None, **arguments: Any
) -> dict[str, Any]:
    said = {} if meta is None else {"_meta": meta}
    return (await person.ask("tools/call", {"name": "mcp", "arguments": arguments, **said}))["result"]


def details(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["_meta"]["greenroom/details"]


@pytest.mark.parametrize(
    ("chosen", "settings", "listed"),
    [
        (None, {}, []),
        (
            None,
            {"directTools": True},
            [],
        ),  # all of them beside the tool that spares showing them: `direct` is that
        ({"a": True}, {}, ["a_one", "a_two"]),
        ({"a": ["one"], "b": ["b_t*"]}, {}, ["a_one", "b_two"]),
        ({"b": False}, {"directTools": ["two"]}, ["a_two"]),
        ({"a": []}, {"directTools": ["t*"]}, ["b_two"]),
    ],
)
@in_virtual_time
async def test_a_list_chooses_tools_beside_the_mcp_tool(
    chosen: Any, settings: Any, listed: list[str]
) -> None:
    servers = {name: FakeServer() for name in ("b", "a")}
    async with open_room(servers, chosen, **settings) as room, talking(room, "proxy") as talk:
        for name in servers:
            await teach(room, name, [tool("two", outputSchema={"type": "object"}), tool("one")])
        async with talk("ann") as ann:
            for _ in range(2):
                assert await names(ann) == ["mcp", *listed], "sorted, whatever the servers' order is"
                tools = (await ann.ask("tools/list"))["result"]["tools"]
                assert not any("outputSchema" in each for each in tools)
    assert not any(server.starts for server in servers.values())


@in_virtual_time
async def test_a_chosen_tool_is_called_like_through_the_mcp_tool_and_others_are_not() -> None:
    server = FakeServer()
    async with open_room({"a": server}, {"a": ["echo"]}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("echo"), tool("other")])
        async with talk("ann") as ann:
            said = await ann.ask("tools/call", {"name": "a_echo", "arguments": {"x": 1}})
            assert said["result"]["content"][0]["text"] == '{"x": 1}'
            assert details(said["result"])["mode"] == "call"
            other = await ann.ask("tools/call", {"name": "a_other", "arguments": {}})
            assert details(other["result"])["error"] == "tool_not_found"
            modern = {"name": "a_echo", "arguments": {"x": 2}, "_meta": META}
            assert (await ann.ask("tools/call", modern))["result"]["content"][0]["text"] == '{"x": 2}'
    assert len(server.calls) == 2


@in_virtual_time
async def test_a_real_change_of_the_chosen_tools_is_announced_once_and_no_other() -> None:
    server = FakeServer()
    async with open_room({"a": server}, {"a": ["one"]}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("one"), tool("two")])
        async with talk("ann") as ann:
            assert await names(ann) == ["mcp", "a_one"]
            for tools, told in (
                ([tool("one"), tool("two", "changed"), tool("three")], 0),
                ([tool("one", "changed")], 1),
                ([tool("two")], 2),
            ):
                await teach(room, "a", tools)
                await settle()
                assert ann.methods().count(CHANGED) == told
            assert await names(ann) == ["mcp"]
            config = {"mcpServers": {"a": {"command": "fake", "directTools": ["two"]}}}
            await room.reload(config)
            assert await names(ann) == ["mcp", "a_two"]


@in_virtual_time
async def test_the_first_tools_that_a_reload_chooses_are_announced_to_those_that_saw_none() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("one")])

        async def choose(*chosen: str) -> None:
            await room.reload({"mcpServers": {"a": {"command": "fake", "directTools": chosen}}})
            await settle()

        async with talk("ann") as ann, talk("ben") as ben:
            assert await names(ann) == ["mcp"]
            assert await names(ben) == ["mcp"]
            await teach(room, "a", [tool("one"), tool("two")])
            for chosen, told in (((), 0), (("one",), 1), (("one",), 1), ((), 2), (("two",), 3)):
                await choose(*chosen)
                for person in (ann, ben):
                    assert person.methods().count(CHANGED) == told, chosen
                    assert await names(person) == ["mcp", *(f"a_{name}" for name in chosen)]


@in_virtual_time
async def test_who_saw_no_chosen_tools_is_told_also_if_another_asks_right_after_the_reload() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("one")])
        async with talk("ann") as ann, talk("ben") as ben:
            assert await names(ann) == ["mcp"]
            await room.reload({"mcpServers": {"a": {"command": "fake", "directTools": True}}})
            assert await names(ben) == ["mcp", "a_one"]
            await settle()
            assert ann.methods().count(CHANGED) == 1


@in_virtual_time
async def test_nobody_is_told_of_tools_that_were_chosen_before_the_first_list() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("one")])
        async with talk("ann") as ann:
            await room.reload({"mcpServers": {"a": {"command": "fake", "directTools": True}}})
            await settle()
            assert CHANGED not in ann.methods()
            assert await names(ann) == ["mcp", "a_one"]


@in_virtual_time
async def test_a_promoted_tool_is_listed_for_its_session_alone() -> None:
    server = FakeServer([tool("echo", "changed"), tool("zed")])
    async with open_room({"a": server}, {"a": ["zed"]}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("echo"), tool("zed"), tool("more")])
        async with talk("ann") as ann, talk("ben") as ben:
            assert (await ann.ask("tools/call", {"name": "a_more"}))["result"]["isError"]
            promoted = await mcp(ann, promote="a_more")
            assert not promoted.get("isError")
            assert details(promoted)["promoted"] == ["a_more"]
            await mcp(ann, promote="echo", server="a")
            await mcp(ann, promote="a_more")
            assert ann.methods().count(CHANGED) == 2
            # What the client had already stays where it is.
            assert await names(ann) == ["mcp", "a_zed", "a_more", "a_echo"]
            assert (await names(ben), ben.methods()) == (["mcp", "a_zed"], [])
            said = await ann.ask("tools/call", {"name": "a_more", "arguments": {"x": 1}})
            assert said["result"]["content"][0]["text"] == '{"x": 1}'
            await settle()  # the server that was started for it has other tools
            assert ann.methods().count(CHANGED) == 3
            assert await names(ann) == ["mcp", "a_zed", "a_echo"]
            server.tools.append(tool("more"))
            server.announce_tools()
            await anyio.sleep(10)
            assert ann.methods().count(CHANGED) == 4
            assert await names(ann) == ["mcp", "a_zed", "a_more", "a_echo"], "it is back in its place"
        async with talk("ann") as again:
            assert await names(again) == ["mcp", "a_zed"]
        assert not [client for _, each in talk.conversations._beside.values() for client in each.clients]


@in_virtual_time
async def test_a_promoted_tool_that_is_chosen_later_is_listed_once() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("more"), tool("other")])
        async with talk("ann") as ann:
            await mcp(ann, promote="a_more")
            await mcp(ann, promote="a_other")
            await room.reload({"mcpServers": {"a": {"command": "fake", "directTools": ["more"]}}})
            await settle()
            assert await names(ann) == ["mcp", "a_more", "a_other"]


@in_virtual_time
async def test_a_resource_under_a_tools_name_is_not_promoted() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        resources = ({"uri": "file:///x", "name": "x"},)
        RoomInside(room).machinery.router.ref.tell(
            LearnedEntry(ServerEntry("a", "", tools=(), resources=resources))
        )
        await settle()
        async with talk("ann") as ann:
            refused = await mcp(ann, promote="a_get_x")
            assert details(refused)["error"] == "not_promoted"
            assert await names(ann) == ["mcp"]


@in_virtual_time
async def test_the_promoted_tool_that_was_not_called_for_longest_gives_way() -> None:
    server = FakeServer([tool(f"t{number:02}") for number in range(PROMOTED + 2)])
    async with open_room({"a": server}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", server.tools)
        async with talk("ann") as ann:
            for number in range(PROMOTED):
                await mcp(ann, promote=f"a_t{number:02}")
            await ann.ask("tools/call", {"name": "a_t00", "arguments": {}})
            await mcp(ann, promote=f"a_t{PROMOTED}")
            listed = await names(ann)
            assert len(listed) == PROMOTED + 1
            assert "a_t00" in listed
            assert "a_t01" not in listed


@in_virtual_time
async def test_a_client_that_would_not_hear_of_it_is_told_how_to_call_the_tool() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("echo"), tool("mcp")])
        async with talk("ann") as ann:
            refused = await mcp(ann, promote="a_ehco")
            assert (details(refused)["error"], details(refused)["suggestions"]) == (
                "tool_not_found", ["a_echo"]
            )  # fmt: skip
            listening = ann.begin(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}
            )
            await ann.heard(lambda said: said.get("method", "").endswith("/acknowledged"))
            await mcp(ann, promote="a_echo")
            told = [said["params"] for said in ann.said if said.get("method") == CHANGED and "params" in said]
            assert told == [{"_meta": {"io.modelcontextprotocol/subscriptionId": listening}}]
        new = MemoryClient()
        async with talk.conversations.open(new, talk.spawn, name="new") as new.session:
            listening = new.begin(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}
            )
            await new.heard(lambda said: said.get("method", "").endswith("/acknowledged"))
            new.say({"method": "notifications/cancelled", "params": {"requestId": listening}})
            await settle()
            refused = await mcp(new, META, promote="a_echo")
            assert details(refused)["error"] == "not_promoted"
            assert 'mcp({ tool: "a_echo" })' in refused["content"][0]["text"]
            assert await names(new, META) == ["mcp"]


def test_a_gateway_shows_the_chosen_and_promotes_others(tmp_path: Path) -> None:
    with direct_door(tmp_path, {"w": {**whole("w"), "directTools": ["echo"]}}, expose="proxy") as door:
        assert door.initialize()["capabilities"]["tools"] == {"listChanged": True}
        assert [each["name"] for each in door.list_all("tools")] == ["mcp", "w_echo"]
        assert "isError" not in door.call("w_echo", {"text": "hi"})["result"]
        other = next(
            each
            for each in door.call("mcp", {"server": "w"})["result"]["_meta"]["greenroom/details"]["tools"]
            if each != "w_echo"
        )
        door.call("mcp", {"promote": other})
        door.wait(lambda: bool(door.heard(CHANGED)), "the announcement")
        assert [each["name"] for each in door.list_all("tools")] == ["mcp", "w_echo", other]


@in_virtual_time
async def test_a_promoted_tool_that_is_gone_is_no_tool_until_it_is_back_and_each_change_is_told_once() -> (
    None
):
    async with open_room({"a": FakeServer()}, {"a": ["zed"]}) as room, talking(room, "proxy") as talk:
        everything = [tool("more"), tool("zed")]
        await teach(room, "a", everything)
        async with talk("ann") as ann:
            assert await names(ann) == ["mcp", "a_zed"]
            await mcp(ann, promote="a_more")
            assert ann.methods().count(CHANGED) == 1
            (one,) = (each for _, beside in talk.conversations._beside.values() for each in beside.clients)
            assert one.shows("a_more")
            await teach(room, "a", [tool("zed", "changed")])  # both lists are others now
            await settle()
            assert ann.methods().count(CHANGED) == 2
            assert not one.shows("a_more")
            await teach(room, "a", [tool("zed", "changed"), tool("beside")])
            await settle()
            assert ann.methods().count(CHANGED) == 2, "nothing that is listed has changed"
            await teach(room, "a", everything)
            await settle()
            assert ann.methods().count(CHANGED) == 3
            assert one.shows("a_more")


@in_virtual_time
async def test_a_tool_with_the_name_of_ours_is_not_promoted() -> None:
    async with open_room({"a": FakeServer()}, toolPrefix="none") as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("mcp"), tool("other")])
        async with talk("ann") as ann:
            shown = {target.original: target for target in port_of(room).catalogue.index.tools("a")}
            (one,) = (each for _, beside in talk.conversations._beside.values() for each in beside.clients)
            assert (one.promote(shown["mcp"]) is None) is (shown["mcp"].name == "mcp")
            assert one.promote(shown["other"])
            assert (await names(ann)).count("mcp") == 1


@pytest.mark.parametrize("wish", [True, False, None, 1, "true"])
@in_virtual_time
async def test_a_stream_hears_only_what_was_wished_for_in_so_many_words(
    wish: Any,
) -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room, "proxy") as talk:
        await teach(room, "a", [tool("echo")])
        new = MemoryClient()
        async with talk.conversations.open(new, talk.spawn, name="new") as new.session:
            wanted = {} if wish is None else {"toolsListChanged": wish}
            listening = new.begin("subscriptions/listen", {"notifications": wanted, "_meta": META})
            await new.heard(lambda said: said.get("method", "").endswith("/acknowledged"))
            meta = {"io.modelcontextprotocol/subscriptionId": listening}
            heard = {"toolsListChanged": True} if wish is True else {}
            (acknowledged,) = (
                said["params"] for said in new.said if said.get("method", "").endswith("/acknowledged")
            )
            assert acknowledged == {"notifications": heard, "_meta": meta}
            answer = await mcp(new, META, promote="a_echo")
            assert bool(answer.get("isError")) is (wish is not True)
            assert new.methods().count(CHANGED) == (wish is True)
