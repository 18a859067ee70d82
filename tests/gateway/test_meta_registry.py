"""`mcp_provision` and a registry of servers, which is asked by real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import attrs
import pytest
from tests.gateway.test_conversations import talking
from tests.gateway.test_meta import text, use
from tests.support import in_real_time
from tests.support.gateway import PATIENCE
from tests.support.loops import on_asyncio
from tests.support.rooms import open_room, teach
from tests.support.rows import for_each

from greenroom.catalogue.search import asked_words
from greenroom.config.parse import parse_config
from greenroom.gateway.exposures.meta import Offer, offers_in
from greenroom.protocol.bounds import REGISTRY_BYTES
from greenroom.testing.fake_servers import FakeServer, tool

SUM = tool("sum", "Adds two numbers")
WEATHER = {
    "name": "io.github.sky/weather",
    "description": "Forecasts of the weather",
    "packages": [{"registryType": "npm", "identifier": "@sky/weather", "version": "1.2.3"}],
}
HOSTED = {
    "name": "org.clouds/rain",
    "remotes": [{"type": "streamable-http", "url": "https://clouds.example/mcp"}],
}


@attrs.define
class Registry:
    """What it answers to each word, and what it was asked."""

    url: str
    servers: dict[str, Sequence[Any]] = attrs.field(factory=dict)
    raw: bytes | None = None
    status: int = 200
    asked: list[Mapping[str, list[str]]] = attrs.field(factory=list)
    heads: list[bytes] = attrs.field(factory=list)

    def answer(self, target: str) -> bytes:
        parts = urlsplit(target)
        assert parts.path == "/base/v0.1/servers"
        asked = parse_qs(parts.query)
        self.asked.append(asked)
        if self.raw is not None:
            return self.raw
        found = self.servers.get(asked["search"][0], ())
        return json.dumps(
            {"servers": [{"server": each, "_meta": {}} for each in found], "metadata": {}}
        ).encode()


@asynccontextmanager
async def registry() -> AsyncGenerator[Registry]:
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        its = Registry(f"http://127.0.0.1:{port}/base/")

        async def serve(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                its.heads.append(head)
                body = its.answer(head.split()[1].decode())
                status = f"HTTP/1.1 {its.status} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
                await stream.send(f"{status}content-length: {len(body)}\r\n\r\n".encode())
                with anyio.CancelScope(shield=False):
                    try:
                        await stream.send(body)
                    except (anyio.BrokenResourceError, OSError):
                        return  # it was more than anybody takes

        tasks.start_soon(listener.serve, serve)
        yield its
        tasks.cancel_scope.cancel()


async def provisioned(its: Registry | None, server: FakeServer | None = None, **said: Any) -> str:
    """What a model is answered, with one server for sums."""
    settings: dict[str, Any] = {} if its is None else {"registry": its.url}
    calc = server or FakeServer([SUM])
    with anyio.fail_after(PATIENCE):
        async with open_room({"calc": calc}, **settings) as room, talking(room, "meta") as talk:
            await teach(room, "calc", [SUM])
            async with talk("ann") as ann:
                result = await use(ann, "mcp_provision", **said)
                assert not result.get("isError")
                return text(result)


@in_real_time
async def test_what_the_registry_has_stands_behind_what_is_configured() -> None:
    async with registry() as its:
        its.servers = {"weather": [WEATHER, HOSTED], "sum": []}
        said = await provisioned(its, intent="the sum of all weather")
        local, _, offered = said.partition("Not configured")
        assert "calc_sum" in local
        assert "io.github.sky/weather: Forecasts of the weather\n  npx -y @sky/weather@1.2.3\n" in offered
        assert "org.clouds/rain\n  https://clouds.example/mcp\n" in offered
        assert offered.index("sky/weather") < offered.index("clouds/rain")
        assert "nothing was installed" in offered
        assert "Ask them first." in offered
        # Only words leave the machine, each with a request of its own.
        assert sorted(query["search"] for query in its.asked) == [["sum"], ["weather"]]
        assert {tuple(query["version"] + query["limit"]) for query in its.asked} == {("latest", "30")}


@in_real_time
async def test_at_most_three_words_are_asked_for_the_longest_first() -> None:
    async with registry() as its:
        said = await provisioned(its, intent="please show me some tide tables", context="in Hamburg harbour")
        assert sorted(query["search"][0] for query in its.asked) == ["hamburg", "harbour", "tables"]
        assert "it has none whose name fits" in said


@in_real_time
async def test_without_a_registry_and_where_a_server_is_started_nobody_is_asked() -> None:
    async with registry() as its:
        assert "registry" not in await provisioned(None, intent="sum")
        calc = FakeServer([SUM])
        said = await provisioned(its, calc, intent="sum", autoProvision=True)
        assert calc.starts == 1
        assert "registry" not in said
        assert await provisioned(its, intent="how to do it")  # nothing but words that say nothing
        assert its.asked == []
        said = await provisioned(its, intent="weather", autoProvision=True)  # there is none to start
        assert "Not configured" in said
        assert len(its.asked) == 1


@pytest.mark.parametrize(
    ("status", "raw", "why"),
    [
        (503, b"", "503"),
        (200, b"<html>", "what came is not JSON"),
        (200, b"[" * 100_000, "what came is not JSON"),
        (200, b'"' + b"x" * 300_000, "what came is not JSON"),
        (200, b" " * (REGISTRY_BYTES + 1), f"over the bound of {REGISTRY_BYTES:,} bytes"),
        (200, b'"' + b"x" * (REGISTRY_BYTES - 2) + b'"', "it has none whose name fits"),
        (200, b"null", "it has none whose name fits"),
    ],
)
@on_asyncio
@in_real_time
async def test_a_registry_that_gives_no_list_costs_its_part_of_the_answer(
    status: int, raw: bytes, why: str
) -> None:
    async with registry() as its:
        its.status, its.raw = status, raw
        said = await provisioned(its, intent="sum")
        assert "calc_sum" in said
        assert why in said.partition("Not configured")[2]


@on_asyncio
@in_real_time
async def test_a_registry_that_is_not_there_is_named() -> None:
    async with registry() as its:
        gone = attrs.evolve(its)
    said = await provisioned(gone, intent="sum")
    assert f"in the registry {gone.url}: it could not be asked" in said


# ---- what strangers write --------------------------------------------------------------------------------------------


@for_each(
    ("server", "start"),
    [
        (
            {"packages": [{"registryType": "pypi", "identifier": "mcp-git", "version": "2.0"}]},
            "uvx mcp-git==2.0",
        ),
        ({"packages": [{"registryType": "npm", "identifier": "a; rm -rf ~", "version": "1"}]}, ""),
        ({"packages": [{"registryType": "npm", "identifier": "-rf", "version": "1"}]}, ""),
        ({"packages": [{"registryType": "npm", "identifier": "ok", "version": "1 && x"}]}, ""),
        ({"packages": [{"registryType": "npm", "identifier": "ok"}]}, ""),
        ({"packages": [{"registryType": "oci", "identifier": "x/y", "version": "1"}]}, ""),
        ({"packages": "x", "remotes": 3}, ""),
        ({"packages": [7, {}], "remotes": [{"url": "https://a.example/mcp"}]}, "https://a.example/mcp"),
        ({"remotes": [{"url": "http://a.example/mcp"}]}, ""),
        ({"remotes": [{"url": "https://me:pw@a.example/"}]}, ""),
        ({"remotes": [{"url": "https://a.example/ and then say"}]}, ""),
        ({"remotes": [{"url": ["https://a.example/"]}, {"url": "https://b.example"}]}, "https://b.example"),
    ],
)
def test_a_package_or_an_address_is_shown_if_it_looks_like_one(server: Mapping[str, Any], start: str) -> None:
    (offer,) = offers_in({"servers": [{"server": {"name": "n", **server}}]})
    assert offer.start == start


def test_names_and_descriptions_are_one_line_bounded_and_without_hidden_characters() -> None:
    long = {"name": "n" * 500, "description": "d\u200bo\nthis\x1b[31m " + "x" * 500}
    (offer,) = offers_in({"servers": [long]})  # also as older registries list them
    assert len(offer.name) == 100
    assert offer.description.startswith("do this x")
    assert len(offer.description) == 200


@for_each(
    "said", [None, [], {}, {"servers": {}}, {"servers": [None, [], {"server": 1}, {"name": 4}, {"name": ""}]}]
)
def test_what_is_no_list_of_servers_has_none(said: Any) -> None:
    assert offers_in(said) == []


def test_no_more_than_one_page_is_read() -> None:
    assert len(offers_in({"servers": [{"name": f"n{number}"} for number in range(50)]})) == 30


@for_each(
    ("name", "description", "points"),
    [
        ("a/git", "", 10),
        ("git/a", "", 0),
        ("a/gitlab", "", 5),
        ("a/b", "about GIT", 2),
        ("a/git", "git tools", 14),
    ],
)
def test_points(name: str, description: str, points: int) -> None:
    assert Offer(name, description, "").points(["git", "tools"]) == points


@in_real_time
async def test_five_servers_are_shown_the_best_first() -> None:
    async with registry() as its:
        names = [*(f"x/weather{number}" for number in range(9)), "x/weather"]
        its.servers = {"weather": [{"name": name} for name in names]}
        said = await provisioned(its, intent="weather")
        shown = [line for line in said.splitlines() if line.startswith("- x/")]
        assert shown == ["- x/weather", *(f"- x/weather{number}" for number in range(4))]


def test_the_words_of_a_query_are_those_that_say_what_it_is_about() -> None:
    assert asked_words("Please show me the WEATHER, in the weather of an " + "x" * 41) == ["show", "weather"]
    assert asked_words("ab abc") == ["abc"]


@for_each(
    ("url", "is_taken"),
    [
        ("https://registry.example", True),
        ("http://127.0.0.1:8080/base", True),
        ("http://[::1]:80", True),
        ("http://registry.example", False),
        ("https://user:pw@registry.example", False),
        ("https://registry.example/?key=1", False),
        ("https://registry.example:x", False),
        ("registry.example", False),
        ("file:///etc", False),
        (7, False),
    ],
)
def test_a_registry_is_asked_over_tls_or_on_this_machine(url: Any, is_taken: bool) -> None:
    config = parse_config({"mcpServers": {}, "settings": {"registry": url}}, strict=False)
    assert (config.settings.registry == url) is is_taken
    assert bool(config.problems) is not is_taken
