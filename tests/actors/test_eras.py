"""The era follows whoever must answer: a server that speaks both can ask, and log, only where it was initialized so.

The server is the SDK's, of both eras, in a process of its own; what a client with nothing between would see is the
measure for a room with callbacks and for both exposures of the gateway.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.forked import forked
from tests.support.http_servers import asker_entry
from tests.support.stdio import until
from tests.support.whole import META, RawClient, direct_door, whole

from greenroom import Greenroom, ServerRequest

CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
NAMED = {"action": "accept", "content": {"name": "Ann"}}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "said"}}
ROOTS = {"roots": [{"uri": "file:///stage"}]}
OLDER, NEWER = "2025-11-25", "2026-07-28"
EXPOSED = pytest.mark.parametrize("expose", ["proxy", "direct"])


def answer_all(client: RawClient) -> None:
    client.answers["elicitation/create"] = lambda _params: {"result": NAMED}
    client.answers["roots/list"] = lambda _params: {"result": ROOTS}

    def sample(params: Any) -> Mapping[str, Any]:
        token = params["_meta"]["progressToken"]
        told = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        client.tell("notifications/progress", told)
        return {"result": SAMPLED}

    client.answers["sampling/createMessage"] = sample


def call(door: RawClient, expose: str, tool: str, arguments: Any = None, **meta: Any) -> dict[str, Any]:
    """The result of a tool, whatever shows it."""
    if expose == "direct":
        return door.call(tool, arguments, **meta)["result"]
    return door.call("mcp", {"tool": tool, "args": arguments or {}}, **meta)["result"]


def text(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


@pytest.mark.parametrize("transport", ["stdio", "http"])
@in_real_time
async def test_t49_callbacks_are_asked_by_a_server_of_both_eras(transport: str) -> None:
    logs: list[Any] = []

    async def elicit(_request: ServerRequest) -> Mapping[str, Any]:
        return NAMED

    async def sample(request: ServerRequest) -> Mapping[str, Any]:
        request.progress({"progress": 1, "total": 2, "message": "half"})
        return SAMPLED

    with asker_entry(transport) as entry:
        async with Greenroom.open(
            {"mcpServers": {"a": entry}},
            cache_path=":memory:",
            bootstrap=False,
            on_elicitation=elicit,
            on_sampling=sample,
            roots=["file:///stage"],
            on_log=lambda _address, params: logs.append(params["data"]),
        ) as room:
            assert (await room.call("a_elicit")).text == "accept Ann"
            assert (await room.call("a_sample")).text == "said ['1/2 half']"
            assert (await room.call("a_roots")).text == "file:///stage"
            await room.call("a_log", {"text": "hear"})
            assert await until(lambda: logs == ["hear"])  # it may come on a stream of its own


@in_real_time
async def test_t49_without_callbacks_the_newer_era_comes_first_and_an_entry_may_insist() -> None:
    async def version(entry: Mapping[str, Any], **callbacks: Any) -> str:
        async with Greenroom.open({"mcpServers": {"a": entry}}, bootstrap=False, **callbacks) as room:
            return (await room.call("a_era")).text.split()[0]

    with asker_entry("stdio") as entry:
        assert await version(entry) == NEWER
        assert await version({**entry, "era": "handshake"}) == OLDER
        assert await version(entry, roots=["file:///x"]) == OLDER
        assert await version({**entry, "era": "stateless"}, roots=["file:///x"]) == NEWER
        # How it was met for somebody is no hint for anybody else: it speaks both.
        assert await version(entry) == NEWER


@in_real_time
async def test_t49_a_reload_that_changes_the_era_starts_the_next_incarnation() -> None:
    with asker_entry("stdio") as entry:
        config = {"mcpServers": {"a": entry}}
        async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
            first = (await room.call("a_era")).text.split()
            changed = {"mcpServers": {"a": {**entry, "era": "handshake"}}}
            assert (await room.reload(changed)).replace == ("a",)
            assert room.tools("a")  # it has the tools it had
            second = (await room.call("a_era")).text.split()
            assert (first[0], second[0]) == (NEWER, OLDER)
            assert first[1] != second[1]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
@in_real_time
async def test_t49_a_server_that_does_not_speak_the_era_insisted_on_says_what_to_change(era: str) -> None:
    entry = {**whole("w", *(["--modern"] if era == "handshake" else [])), "era": era}
    async with Greenroom.open({"mcpServers": {"w": entry}}, cache_path=":memory:", bootstrap=False) as room:
        with pytest.raises(Exception, match=f'says "era": "{era}": try "auto"'):
            await room.connect("w")


@EXPOSED
def test_t49_a_client_that_can_be_asked_is_asked_by_a_server_of_both_eras(
    expose: str, tmp_path: Path
) -> None:
    with (
        asker_entry("stdio") as over_pipes,
        asker_entry("http") as over_http,
        direct_door(
            tmp_path, {"pipes": over_pipes, "http": over_http}, expose=expose, bootstrap=False
        ) as door,
    ):
        answer_all(door)
        door.initialize(**CAPABILITIES)
        for name in ("pipes", "http"):
            assert text(call(door, expose, f"{name}_elicit")) == "accept Ann"
            assert text(call(door, expose, f"{name}_sample")) == "said ['1/2 half']"
            assert text(call(door, expose, f"{name}_roots")) == "file:///stage"
            call(door, expose, f"{name}_log", {"text": name})

        def logs() -> list[Any]:
            return [each["params"]["data"] for each in door.heard("notifications/message")]

        door.wait(lambda: len(logs()) == 2, "the logs: they may come on a stream of their own")
        assert sorted(logs()) == ["http", "pipes"]


@EXPOSED
def test_t49_an_eager_server_is_met_anew_for_a_client_that_comes_late(expose: str, tmp_path: Path) -> None:
    with asker_entry("stdio") as entry:
        servers = {"a": {**entry, "lifecycle": "eager"}}
        with direct_door(tmp_path, servers, expose=expose) as door:
            if expose == "direct":
                door.wait(lambda: bool(door.list_all("tools")), "it to be met")
            else:
                door.wait(lambda: "a_era" in str(door.call("mcp", {"server": "a"})), "it to be met")
            answer_all(door)
            door.initialize(**CAPABILITIES)
            assert text(call(door, expose, "a_elicit")) == "accept Ann"
            assert text(call(door, expose, "a_era")).startswith(OLDER)


@EXPOSED
def test_t49_a_client_that_cannot_be_asked_changes_nothing(expose: str, tmp_path: Path) -> None:
    with (
        asker_entry("stdio") as entry,
        direct_door(tmp_path, {"a": entry}, expose=expose, bootstrap=False) as door,
    ):
        door.initialize()
        assert text(call(door, expose, "a_era")).startswith(NEWER)


@EXPOSED
def test_t49_a_client_that_declared_nothing_hears_what_servers_log(expose: str, tmp_path: Path) -> None:
    command, *args = forked("tests.support.fastmcp_logger")
    entry = {"command": command, "args": args}
    patience: dict[str, Any] = {
        "probeTimeoutMs": 20_000,
        "connectTimeoutMs": 120_000,
    }  # it has much to import
    with direct_door(tmp_path, {"a": entry}, expose=expose, bootstrap=False, **patience) as door:
        door.initialize()
        call(door, expose, "a_log", {"text": "too fine", "level": "debug"})
        call(door, expose, "a_log", {"text": "hear", "level": "info"})
        heard = [each["params"]["data"]["msg"] for each in door.heard("notifications/message")]
        assert heard == ["hear"]


# A server of 2025-11-25. Its tool `ask` asks the client. Its tool `withdraw` cancels that request, and ends the call.
WITHDRAWER = """
import json, sys
asking = None
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def said(text):
    return {"content": [{"type": "text", "text": text}]}
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        info = {"name": "withdrawer", "version": "1"}
        send(id=number, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("ask", "withdraw")]
        send(id=number, result={"tools": tools})
    elif method == "tools/call" and message["params"]["name"] == "ask":
        asking = number
        form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
        send(id="q", method="elicitation/create", params=form)
    elif method == "tools/call":
        send(method="notifications/cancelled", params={"requestId": "q"})
        send(id=asking, result=said("decided without you"))
        send(id=number, result=said("withdrawn"))
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "Method not found"})
"""


@EXPOSED
def test_t49_a_newer_client_gets_the_outcome_although_the_request_was_withdrawn(
    expose: str, tmp_path: Path
) -> None:
    entry = {"command": sys.executable, "args": ["-c", WITHDRAWER]}
    with direct_door(tmp_path, {"w": entry}, modern=True, expose=expose) as door:
        door.initialize(elicitation={"form": {}})
        if expose == "proxy":
            door.call("mcp", {"connect": "w"})
            params: dict[str, Any] = {"name": "mcp", "arguments": {"tool": "w_ask"}}
        else:
            door.wait(lambda: bool(door.list_all("tools")), "the tools of the server")
            params = {"name": "w_ask", "arguments": {}}
        first = door.result("tools/call", params)
        assert first["resultType"] == "input_required"
        (key,) = first["inputRequests"]
        assert text(call(door, expose, "w_withdraw")) == "withdrawn"
        again = {**params, "inputResponses": {key: NAMED}, "requestState": first["requestState"]}
        assert text(door.result("tools/call", again)) == "decided without you"


@pytest.mark.parametrize("server", ["old", "new"])
def test_t49_the_mcp_tool_asks_a_newer_client_by_needing_input(server: str, tmp_path: Path) -> None:
    servers = {"old": whole("old"), "new": whole("new", "--modern")}
    form = {"message": "Sure?", "requestedSchema": {"type": "object"}}
    with direct_door(tmp_path, servers, modern=True, expose="proxy", bootstrap=False) as door:
        door.initialize(elicitation={"form": {}})
        arguments = {"connect": server}
        assert "result" in door.call("mcp", arguments)
        asked = {"tool": f"{server}_ask", "args": {"method": "elicitation/create", "params": form}}
        params = {"name": "mcp", "arguments": asked}
        first = door.result("tools/call", params)
        assert first["resultType"] == "input_required"
        ((key, request),) = first["inputRequests"].items()
        asked_by = {"message": f"[{server}] Sure?", "_meta": {"greenroom/server": server}}
        assert request == {"method": "elicitation/create", "params": {**form, **asked_by}}
        again = {**params, "inputResponses": {key: NAMED}, "requestState": first["requestState"]}
        final = door.result("tools/call", again)
        assert final["resultType"] == "complete"
        assert '"Ann"' in text(final)
        assert door.ask("tools/call", again)["error"]["code"] == -32602  # a suspended call is resumed once
        door.call("mcp", {"tool": f"{server}_log", "args": {"text": "hear"}}, **{META + "logLevel": "info"})
        assert [each["params"]["data"] for each in door.heard("notifications/message")] == [{"text": "hear"}]
