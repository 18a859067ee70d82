"""A search in a gateway that is still asking its servers waits for them, if it finds nothing that fits well."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room

from greenroom import Greenroom
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, tool

WEATHER = tool("get_forecast", "The weather of the next days")
MAIL = tool("send_mail", "Send a mail to somebody")


async def search(room_tool: McpTool, query: str, **more: Any) -> tuple[list[str], float]:
    """What is found, and after how many seconds."""
    began = anyio.current_time()
    result = await ask(room_tool, {"search": query, **more})
    details = result["_meta"]["greenroom/details"]
    return [match["tool"] for match in details["matches"]], anyio.current_time() - began


def cold(servers: dict[str, FakeServer], **settings: Any) -> Greenroom:
    return open_room(servers, bootstrap=True, **settings)


@in_virtual_time
async def test_a_cold_search_waits_for_the_server_that_has_it_and_no_longer() -> None:
    servers = {
        "weather": FakeServer(tools=[WEATHER], initialize_latency=2.0),
        "mail": FakeServer(tools=[MAIL]),
        "slow": FakeServer(initialize_latency=8.0),
    }
    async with cold(servers) as room:
        await anyio.sleep(0.5)
        found, took = await search(McpTool(port_of(room)), "weather forecast")
        assert found[0] == "weather_get_forecast"
        assert 1.0 < took < 2.5
        found, took = await search(McpTool(port_of(room)), "send mail")
        assert (found[0], took) == ("mail_send_mail", 0.0), "what fits well is not kept back"


@pytest.mark.parametrize("timeout", [0, 3_000])
@in_virtual_time
async def test_a_search_that_finds_nothing_waits_as_long_as_a_first_list_does(timeout: int) -> None:
    servers = {"dead": FakeServer(initialize_latency=math.inf), "mail": FakeServer(tools=[MAIL])}
    async with cold(servers, firstListTimeoutMs=timeout) as room:
        await anyio.sleep(0.5)
        mcp = McpTool(port_of(room))
        found, took = await search(mcp, "weather forecast")
        assert (found, took) == ([], pytest.approx(timeout / 1000, abs=0.01))
        again: tuple[dict[str, Any], ...] = ({"query": "weather"}, {"query": "^x", "regex": True})
        for query in again:
            found, took = await search(mcp, **query)
            assert (found, took) == ([], 0.0), "a client waits once"


@in_virtual_time
async def test_nobody_waits_for_servers_that_a_search_is_not_about_or_that_are_known() -> None:
    servers = {"dead": FakeServer(initialize_latency=math.inf), "mail": FakeServer(tools=[MAIL])}
    async with cold(servers) as room:
        await anyio.sleep(0.5)
        unconcerned: tuple[dict[str, Any], ...] = (
            {"query": "weather", "server": "mail"},
            {"query": "", "server": "mail"},
            {"query": "weather", "server": "nope"},
            {"query": "se.d", "regex": True},
        )
        for given in unconcerned:
            assert (await search_or_refusal(room, **given)) == 0.0, given
        _, took = await search(McpTool(port_of(room)), "", server="dead")
        assert took == pytest.approx(10.0, abs=0.01)
    async with open_room({"mail": servers["mail"]}, bootstrap=False) as room:
        _, took = await search(McpTool(port_of(room)), "weather")
        assert took == 0.0, "nobody is being asked"


async def search_or_refusal(room: Greenroom, query: str, **more: Any) -> float:
    began = anyio.current_time()
    await ask(McpTool(port_of(room)), {"search": query, **more})
    return anyio.current_time() - began


@in_virtual_time
async def test_a_search_of_many_words_fits_well_when_it_has_most_of_them() -> None:
    servers = {"dead": FakeServer(initialize_latency=math.inf), "mail": FakeServer(tools=[MAIL])}
    async with cold(servers) as room:
        await anyio.sleep(0.5)
        for query, waits in (
            ("send a mail to my grandmother", False),
            ("send grandmother zebra quux", True),
            ("send zebra", True),
            ("mail", False),
        ):
            _, took = await search(McpTool(port_of(room)), query)
            assert (took > 1.0) is waits, query
