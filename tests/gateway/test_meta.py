"""The exposure `meta`: requests to its tools are carried out as those to the `mcp` tool are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.gateway.test_conversations import talking
from tests.support import in_real_time, in_virtual_time
from tests.support.memory_client import MemoryClient
from tests.support.rooms import open_room, teach

from greenroom.gateway.exposures import meta as _definitions
from greenroom.gateway.exposures.meta import ExecuteRequest, ProvisionRequest, definitions, parse_meta
from greenroom.protocol.errors import UsageError
from greenroom.testing.fake_servers import FakeServer, tool

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ERAS = pytest.mark.parametrize("meta", [None, META], ids=["handshake", "modern"])
FIRST = {"type": "object", "properties": {"first": {"type": "number", "description": "a number"}}}
SUM = tool("sum", "Adds two numbers", inputSchema=FIRST)
ALLOWED = {"action": "accept", "content": {"allow": "once"}}


async def use(
    person: MemoryClient, name: str, meta: Mapping[str, Any] | None = None, **arguments: Any
) -> dict[str, Any]:
    said = {} if meta is None else {"_meta": meta}
    return (await person.ask("tools/call", {"name": name, "arguments": arguments, **said}))["result"]


def text(result: Mapping[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


def details(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result["_meta"]["greenroom/details"]


@ERAS
@in_virtual_time
async def test_a_model_finds_a_tool_with_its_parameters_and_calls_it(meta: Mapping[str, Any] | None) -> None:
    server = FakeServer([SUM])
    async with open_room({"calc": server}) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM, tool("other")])
        async with talk("ann") as ann:
            listed = await ann.ask("tools/list", {} if meta is None else {"_meta": meta})
            assert [each["name"] for each in listed["result"]["tools"]] == [
                each["name"] for each in definitions()
            ]
            assert "calc" in text(await use(ann, "mcp_discover", meta))
            found = text(await use(ann, "mcp_discover", meta, query="add numbers"))
            assert "calc_sum" in found
            assert "a number" in found, "a model learns the parameters"
            tools = text(await use(ann, "mcp_discover", meta, server="calc", limit=1))
            assert "1 of 2 — offset: 1 for more" in tools
            assert server.starts == 0, "looking starts nothing"
            for said in ({"server": "calc", "tool": "sum"}, {"tool": "calc_sum"}):
                result = await use(ann, "mcp_call", meta, **said, args={"first": 1})
                assert text(result) == '{"first": 1}'


@ERAS
@in_virtual_time
async def test_provision_finds_and_starts_a_server_when_it_is_told_to(meta: Mapping[str, Any] | None) -> None:
    servers = {"calc": FakeServer([SUM]), "down": FakeServer(refuse_start="it has no engine")}
    async with open_room(servers) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM])
        async with talk("ann") as ann:
            found = await use(ann, "mcp_provision", meta, intent="numbers", context="to add")
            assert "calc_sum" in text(found)
            assert servers["calc"].starts == 0
            begun = await use(ann, "mcp_provision", meta, intent="add", autoProvision=True)
            assert (servers["calc"].starts, details(begun)["server"]) == (1, "calc")
            nothing = await use(ann, "mcp_provision", meta, intent="weather")
            assert "mcp_provision(" in text(nothing), "`down` was never asked what it has"
            failed = await use(ann, "mcp_provision", meta, intent="down", autoProvision=True)
            assert failed["isError"]
            assert "it has no engine" in text(failed)


@in_virtual_time
async def test_what_goes_wrong_says_the_next_step_in_the_words_of_these_tools() -> None:
    async with open_room({"calc": FakeServer([SUM])}) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM])
        async with talk("ann") as ann:
            cases: tuple[tuple[str, Any, str], ...] = (
                ("mcp_call", {"tool": "summ"}, "Did you mean: calc_sum"),
                ("mcp_call", {"tool": "sum", "server": "calk"}, "mcp_discover({})"),
                ("mcp_call", {"tool": "calc_sum", "args": [1]}, "first"),
                ("mcp_call", {"server": "calc"}, "Missing required parameter: tool"),
                ("mcp_provision", {}, "Missing required parameter: intent"),
                ("mcp_discover", {"query": 1}, "Invalid query: expected a string, got number."),
                ("calc_sum", {}, 'mcp_call({ tool: "calc_sum" })'),
                ("mcp", {"tool": "calc_sum"}, "Unknown tool: mcp."),
            )
            for name, arguments, said in cases:
                result = await use(ann, name, None, **arguments)
                assert result["isError"]
                assert said in text(result)
                assert "mcp({" not in text(result)


@in_real_time
async def test_a_long_output_is_read_on_by_discover() -> None:
    """In real time, because a thread writes the file."""
    async with (
        open_room({"calc": FakeServer([SUM])}, outputGuard={"maxBytes": 1_000}) as room,
        talking(room, "meta") as talk,
    ):
        await teach(room, "calc", [SUM])
        async with talk("ann") as ann:
            cut = await use(ann, "mcp_call", tool="calc_sum", args={"first": "0123456789" * 300})
            output = details(cut)["outputGuard"]["output"]
            assert f'Next part: mcp_discover({{ output: "{output}", offset: ' in text(cut)
            page = await use(ann, "mcp_discover", output=output, offset=2_500)
            assert 'Next part: mcp_discover({ output: "' not in text(page)
            assert "This is the end." in text(page)


@ERAS
@in_virtual_time
async def test_a_call_that_needs_approval_is_asked_about(meta: Mapping[str, Any] | None) -> None:
    server = FakeServer([SUM])
    can = {"elicitation": {}}
    async with open_room({"calc": server}, approve=True) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM])
        async with talk("mute") as mute:
            refused = await use(mute, "mcp_call", meta, tool="calc_sum")
            assert details(refused)["error"] == "approval_required"
            assert not server.calls
        async with talk("ann", **can) as ann:
            if meta is None:
                ann.answers["elicitation/create"] = ALLOWED
                result = await use(ann, "mcp_call", tool="calc_sum")
            else:
                able = {**meta, "io.modelcontextprotocol/clientCapabilities": can}
                asked = await use(ann, "mcp_call", able, tool="calc_sum")
                request = {"name": "mcp_call", "arguments": {"tool": "calc_sum"}, "_meta": able}
                (key,) = asked["inputRequests"]
                again = {"requestState": asked["requestState"], "inputResponses": {key: ALLOWED}}
                result = (await ann.ask("tools/call", request | again))["result"]
            assert text(result) == "{}"
            assert len(server.calls) == 1


@in_virtual_time
async def test_a_profile_may_show_it() -> None:
    from greenroom import Greenroom
    from greenroom.testing.fake_servers import fake_connectors

    servers = {"calc": FakeServer([SUM]), "hidden": FakeServer()}
    config = {
        "mcpServers": {name: {"command": "fake"} for name in servers},
        "profiles": {"few": {"servers": ["calc"], "expose": "meta"}},
    }
    connectors = fake_connectors(servers)
    async with (
        Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors) as room,
        talking(room, "proxy") as talk,
    ):
        for name, server in servers.items():
            await teach(room, name, server.tools)
        async with talk("ann", profile="few") as ann:
            assert "hidden" not in text(await use(ann, "mcp_discover"))
            assert text(await use(ann, "mcp_call", tool="sum", server="calc", args={"x": 1})) == '{"x": 1}'
            assert (await use(ann, "mcp_call", tool="echo", server="hidden"))["isError"]
        with pytest.raises(UsageError, match="proxy, direct, meta"):
            async with talk.conversations.open(ann, talk.spawn, name="x", expose="all"):
                pass


def test_whatever_is_not_required_is_nullable_for_agents_that_require_the_rest() -> None:
    for schema in (each["inputSchema"] for each in definitions()):
        optional = schema["properties"].keys() - {*schema.get("required", ())}
        assert {name for name, each in schema["properties"].items() if each.get("nullable")} == optional


def test_parameters_that_are_filled_in_with_nothing_count_as_absent() -> None:
    with pytest.raises(UsageError, match=r'"querry"; did you mean "query"\?'):
        parse_meta("mcp_discover", {"querry": "time"})
    status = parse_meta("mcp_discover", {"query": "", "server": "", "output": "", "limit": None})
    assert status == parse_meta("mcp_discover", {})
    assert parse_meta(
        "mcp_provision", {"intent": "x", "context": "", "autoProvision": None}
    ) == ProvisionRequest("x")
    with pytest.raises(UsageError, match="autoProvision: expected true or false, got string"):
        parse_meta("mcp_provision", {"intent": "x", "autoProvision": "yes"})


@pytest.mark.parametrize(
    ("code", "size"),
    [("x" * 51_200, None), ("x" * 51_201, "51,201"), ("ü" * 25_600, None), ("ü" * 25_601, "51,202")],
)
def test_code_may_have_fifty_kibibytes(monkeypatch: pytest.MonkeyPatch, code: str, size: str | None) -> None:
    monkeypatch.setattr(_definitions, "can_execute", lambda: True)
    if size is None:
        assert parse_meta("mcp_execute", {"code": code}) == ExecuteRequest(code)
        return
    with pytest.raises(UsageError, match=f"it has {size} bytes, at most 51,200 are run") as caught:
        parse_meta("mcp_execute", {"code": code})
    assert caught.value.code == "invalid_args"
