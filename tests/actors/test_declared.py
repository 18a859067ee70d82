"""From 2026-07-28 on a client declares with each request what it can be asked. Whatever it declares, it is the same
client, with the same children; and it is asked only what its open calls have declared."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import anyio
from tests.gateway.test_many_clients import capable, text
from tests.support import in_real_time
from tests.support.http_door import Opened, http_door
from tests.support.http_servers import asker_entry
from tests.support.loops import on_asyncio
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.actors.host import Declaration, in_common, joined, lacking
from greenroom.supervisor.room import port_of

ANN, BOB = {"name": "ann", "version": "1"}, {"name": "bob", "version": "1"}
INFO, CAPABILITIES = "io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/clientCapabilities"


async def call(
    door: Opened, who: Any, tool: str, arguments: Any = None, /, **capabilities: Any
) -> dict[str, Any]:
    """The result of a call of this client, which declares this with it."""
    meta = {CAPABILITIES: capabilities, **({INFO: who} if who is not None else {})}
    params = {"name": tool, "arguments": arguments or {}, "_meta": meta}
    return (await door.stateless("tools/call", params)).json()["result"]


@on_asyncio
@in_real_time
async def test_a_client_keeps_its_own_child_whatever_it_declares() -> None:
    """The server is of 2026-07-28: it is told with each call what this call's client can be asked."""
    with asker_entry("stdio") as entry:
        config: Any = {"mcpServers": {"a": {**entry, "isolation": "per_session"}}}
        room = Greenroom.open(config, bootstrap=False, cache_path=":memory:")
        port_of(room).services.expect_clients()
        async with room, http_door(room) as door:

            async def process(who: Any, **capabilities: Any) -> str:
                said = text({"result": await call(door, who, "a_can", **capabilities)})
                assert said == " ".join(["2026-07-28", *sorted(capabilities)]), "and no more than that"
                return text({"result": await call(door, who, "a_era", **capabilities)})

            mine = {
                await process(ANN),
                await process(ANN, sampling={}),
                await process(ANN, elicitation={}),
            }
            assert len(mine) == 1
            others = [await process(BOB), await process(None), await process(None, sampling={})]
            assert len({*mine, *others}) == 4, "who does not say who it is is told apart by what it declares"


@on_asyncio
@in_real_time
async def test_while_a_call_is_open_that_cannot_be_asked_no_request_reaches_its_client() -> None:
    """The server is older: it was told once, and does not say which call a request is about."""
    room = Greenroom.open({"mcpServers": {"s": capable(isolation="per_session")}}, cache_path=":memory:")
    port_of(room).services.expect_clients()
    async with room, http_door(room) as door, anyio.create_task_group() as tasks:
        assert text({"result": await call(door, ANN, "s_count", sampling={})}) == "1"
        asked = await call(door, ANN, "s_ask_sampling", sampling={})
        assert "inputRequests" in asked
        refused = await call(door, ANN, "s_ask_sampling")
        assert "inputRequests" not in refused
        tasks.start_soon(partial(call, door, ANN, "s_slow", {"seconds": 1}))
        while sum(row.in_flight for row in room.status()) < 2:  # with the one that waits for an answer
            await anyio.sleep(0.01)
        assert await call(door, ANN, "s_ask_sampling", sampling={}) == asked, "the suspended call, begun anew"
        refused = await call(door, ANN, "s_ask_sampling", {"n": 2}, sampling={})
        assert "inputRequests" not in refused
        assert text({"result": await call(door, ANN, "s_count", sampling={})}) == "2", "the same child"


def test_what_two_declarations_have_in_common() -> None:
    forms, both = (
        {"elicitation": {"form": {}}},
        {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}},
    )
    assert in_common(forms, both) == in_common(both, forms) == forms
    assert in_common(both, both) == both
    assert in_common(both, {}) == {}
    assert in_common({"sampling": {"tools": {}}}, {"sampling": {}}) == {"sampling": {}}
    assert in_common({"sampling": {}}, {"sampling": True}) == {}
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep, "b": len(deep)}
    assert in_common(deep, {**deep, "b": None})


ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


@for_each(
    ("method", "params", "declared", "lacks"),
    [
        (ROOTS, {}, {}, "roots"),
        (ROOTS, {}, {"roots": {}}, None),
        (ROOTS, {}, {"roots": None}, "roots"),
        (ROOTS, {}, {"sampling": {}, "elicitation": {}}, "roots"),
        (SAMPLE, {}, {"roots": {}}, "sampling"),
        (SAMPLE, {}, {"sampling": {}}, None),
        (SAMPLE, {"tools": []}, {"sampling": {}}, None),
        (SAMPLE, {"tools": [{}]}, {"sampling": {}}, "sampling.tools"),
        (SAMPLE, {"tools": [{}]}, {"sampling": {"tools": {}}}, None),
        (SAMPLE, {"mode": "url"}, {"sampling": {}}, None),
        (ELICIT, {}, {"sampling": {}}, "elicitation"),
        (ELICIT, {}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "form"}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "url"}, {"elicitation": {}}, "elicitation.url"),
        (ELICIT, {"mode": "url"}, {"elicitation": {"url": {}}}, None),
        (ELICIT, {}, {"elicitation": {"url": {}}}, "elicitation.form"),
        (ELICIT, {"mode": "form"}, {"elicitation": {"url": {}, "form": {}}}, None),
        (ELICIT, {"tools": [{}]}, {"elicitation": {}}, None),
        ("vendor/asks", {}, {}, None),
    ],
)
def test_a_client_is_not_asked_what_it_has_not_declared(
    method: str, params: dict[str, Any], declared: dict[str, Any], lacks: str | None
) -> None:
    assert lacking(declared, method, params) == lacks


@for_each(
    ("one", "other", "both"),
    [
        ({}, {"roots": {}}, {"roots": {}}),
        ({"roots": {"listChanged": True}}, {"roots": {}}, {"roots": {"listChanged": True}}),
        (
            {"roots": {"listChanged": False}},
            {"roots": {"listChanged": True}},
            {"roots": {"listChanged": True}},
        ),
        ({"sampling": {"tools": {}}}, {"sampling": {"x": {}}}, {"sampling": {"tools": {}, "x": {}}}),
        ({"a": {}}, {"b": {"c": 1}}, {"a": {}, "b": {"c": 1}}),
    ],
)
def test_a_server_that_several_clients_share_is_told_what_any_of_them_can_do(
    one: dict[str, Any], other: dict[str, Any], both: dict[str, Any]
) -> None:
    for left, right in ((one, other), (other, one)):
        found = joined([Declaration(left), Declaration(right)])
        assert found == Declaration(both)
    for hands in product((True, False), repeat=3):
        assert joined(Declaration(by_handshake=each) for each in hands).by_handshake is any(hands)
    assert joined([]) == Declaration()
