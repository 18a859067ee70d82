"""A server's tasks reach a client of any exposure as results of calls, whatever the two sides speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.tasker import heard, tasker
from tests.support.whole import direct_door

EXPOSED = pytest.mark.parametrize("expose", ["proxy", "direct", "meta"])
CLIENTS = pytest.mark.parametrize("modern", [False, True], ids=["client 2025", "client 2026"])
SERVERS = ("old", "new")  # that speak 2025-11-25, and 2026-07-28


def taskers(folder: Path) -> dict[str, Any]:
    return {
        server: tasker(log_of(folder, server), *(["--modern"] if server == "new" else []))
        for server in SERVERS
    }


def log_of(folder: Path, server: str) -> Path:
    return folder / f"{server}.log"


def request(expose: str, server: str, arguments: Any) -> dict[str, Any]:
    if expose == "direct":
        return {"name": f"{server}_slow", "arguments": arguments}
    said = {"tool": f"{server}_slow", "args": arguments}
    return (
        {"name": "mcp", "arguments": said} if expose == "proxy" else {"name": "mcp_call", "arguments": said}
    )


@EXPOSED
@CLIENTS
def test_a_task_is_awaited_at_each_exposure(expose: str, modern: bool, tmp_path: Path) -> None:
    with direct_door(tmp_path, taskers(tmp_path), modern=modern, expose=expose) as door:
        hello = door.initialize()
        assert ("tasks" in hello["capabilities"]) is not modern
        if expose == "direct":
            door.wait(lambda: len(door.list_all("tools")) == len(SERVERS), "the catalogue")
            shown = {"old_slow": {"taskSupport": "optional"}, "new_slow": None}
            assert {tool["name"]: tool.get("execution") for tool in door.list_all("tools")} == shown
        for server in SERVERS:
            params = request(expose, server, {"n": 1})
            answer = door.answer(door.send("tools/call", params, progressToken=server))
            assert answer["result"]["content"][0]["text"] == "done"
            progress = [each["params"] for each in door.heard("notifications/progress")]
            told = [each for each in progress if each["progressToken"] == server]
            assert [(each["progress"], each["message"]) for each in told] == [(7, "by itself")]
            log = log_of(tmp_path, server)
            assert len(heard(log, "tasks/get")) == 3
            assert len(heard(log, "tasks/result")) == (server == "old")
        assert len(door.heard("notifications/progress")) == len(SERVERS)


@pytest.mark.parametrize("expose", ["proxy", "direct"])
@CLIENTS
def test_a_task_may_ask_the_client(expose: str, modern: bool, tmp_path: Path) -> None:
    with direct_door(tmp_path, taskers(tmp_path), modern=modern, expose=expose) as door:
        door.answers["elicitation/create"] = lambda _params: {"result": {"action": "decline"}}
        door.initialize(elicitation={"form": {}})
        if expose == "direct":
            door.wait(lambda: len(door.list_all("tools")) == len(SERVERS), "the catalogue")
        for server in SERVERS:
            if expose == "proxy":
                door.call("mcp", {"connect": server})
            params = request(expose, server, {"ask": True})
            answer = door.result("tools/call", params)
            if modern:
                assert answer["resultType"] == "input_required", answer
                ((key, asked),) = answer["inputRequests"].items()
                assert asked["params"]["message"] == f"[{server}] Sure?"
                again = {
                    "inputResponses": {key: {"action": "decline"}},
                    "requestState": answer["requestState"],
                }
                answer = door.result("tools/call", {**params, **again})
            assert answer["content"][0]["text"] == "decline"


@CLIENTS
def test_a_client_that_no_longer_waits_has_the_task_cancelled(modern: bool, tmp_path: Path) -> None:
    with direct_door(tmp_path, taskers(tmp_path), modern=modern, expose="proxy") as door:
        door.initialize()
        for server in SERVERS:
            log = log_of(tmp_path, server)
            number = door.send("tools/call", request("proxy", server, {"endless": True}))
            door.wait(lambda log=log: log.exists() and bool(heard(log, "tasks/get")), "the first look")
            door.tell("notifications/cancelled", {"requestId": number})
            door.wait(lambda log=log: bool(heard(log, "tasks/cancel")), "the cancellation")
            assert heard(log, "tasks/cancel")[0]["taskId"] == "task-1"
