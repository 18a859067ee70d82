"""A server's tasks reach a client of any exposure as results of calls, whatever the two sides speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.tasker import heard, tasker
from tests.support.whole import direct_door

EXPOSED = pytest.mark.parametrize("expose", ["proxy", "direct", "meta"])
CLIENTS = pytest.mark.parametrize("modern", [False, True], ids=["client 2025", "client 2026"])
SERVERS = pytest.mark.parametrize("server", [[], ["--modern"]], ids=["server 2025", "server 2026"])


def request(expose: str, arguments: Any) -> dict[str, Any]:
    if expose == "direct":
        return {"name": "t_slow", "arguments": arguments}
    said = {"tool": "t_slow", "args": arguments}
    return (
        {"name": "mcp", "arguments": said} if expose == "proxy" else {"name": "mcp_call", "arguments": said}
    )


@EXPOSED
@CLIENTS
@SERVERS
def test_a_task_is_awaited_at_each_exposure(
    expose: str, modern: bool, server: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with direct_door(tmp_path, {"t": tasker(log, *server)}, modern=modern, expose=expose) as door:
        hello = door.initialize()
        assert ("tasks" in hello["capabilities"]) is not modern
        if expose == "direct":
            door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
            shown = None if server else {"taskSupport": "optional"}
            assert [tool.get("execution") for tool in door.list_all("tools")] == [shown]
        params = request(expose, {"n": 1})
        answer = door.answer(door.send("tools/call", params, progressToken="mine"))
        assert answer["result"]["content"][0]["text"] == "done"
        progress = [each["params"] for each in door.heard("notifications/progress")]
        assert [(each["progressToken"], each["progress"], each["message"]) for each in progress] == [
            ("mine", 7, "by itself")
        ]
        assert len(heard(log, "tasks/get")) == 3
        assert len(heard(log, "tasks/result")) == (not server)


@pytest.mark.parametrize("expose", ["proxy", "direct"])
@CLIENTS
@SERVERS
def test_a_task_may_ask_the_client(expose: str, modern: bool, server: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with direct_door(tmp_path, {"t": tasker(log, *server)}, modern=modern, expose=expose) as door:
        door.answers["elicitation/create"] = lambda _params: {"result": {"action": "decline"}}
        door.initialize(elicitation={"form": {}})
        if expose == "direct":
            door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        else:
            door.call("mcp", {"connect": "t"})
        params = request(expose, {"ask": True})
        answer = door.result("tools/call", params)
        if modern:
            assert answer["resultType"] == "input_required", answer
            ((key, asked),) = answer["inputRequests"].items()
            assert asked["params"]["message"] == "[t] Sure?"
            again = {"inputResponses": {key: {"action": "decline"}}, "requestState": answer["requestState"]}
            answer = door.result("tools/call", {**params, **again})
        assert answer["content"][0]["text"] == "decline"


@CLIENTS
@SERVERS
def test_a_client_that_no_longer_waits_has_the_task_cancelled(
    modern: bool, server: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with direct_door(tmp_path, {"t": tasker(log, *server)}, modern=modern, expose="proxy") as door:
        door.initialize()
        number = door.send("tools/call", request("proxy", {"endless": True}))
        door.wait(lambda: log.exists() and bool(heard(log, "tasks/get")), "the first look")
        door.tell("notifications/cancelled", {"requestId": number})
        door.wait(lambda: bool(heard(log, "tasks/cancel")), "the cancellation")
        assert heard(log, "tasks/cancel")[0]["taskId"] == "task-1"
