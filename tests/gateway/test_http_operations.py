"""What operators ask the HTTP door: health, readiness, status, the map of everything, and the room's events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import anyio
import msgspec
import pytest
from starlette.requests import Request
from tests.gateway.test_conversations import asking_room, echo
from tests.gateway.test_http_door_attacks import ANN, TOKENS
from tests.gateway.test_http_request import virtually
from tests.support import in_virtual_time, run
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.door_rooms import CREATE_ISSUE, README, FakeRoom, KnownRoom
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, http_door
from tests.support.loops import on_asyncio
from tests.support.rooms import teach

from greenroom import CallError, Greenroom
from greenroom.actors.peer import PeerHooks
from greenroom.catalogue.entries import ServerEntry
from greenroom.gateway.doors.http_app import HttpDoor, Operations
from greenroom.gateway.doors.http_auth import Access
from greenroom.gateway.doors.http_request import Caller, Rules
from greenroom.gateway.doors.http_streams import Feed
from greenroom.gateway.event_log import TOLD, follow
from greenroom.protocol.errors import ConnectFailed
from greenroom.protocol.events import Note, NoteCode
from greenroom.testing.fake_servers import tool


def with_operations(
    body: Callable[[Opened, Greenroom, Feed], Awaitable[None]],
    entries: Any = None,
    two: type[AskingServer] = AskingServer,
    **door: Any,
) -> None:
    """Run `body(opened, room, feed)` with a door over two servers; the tools of one are known."""

    async def main() -> None:
        servers = {"one": AskingServer({"echo": echo}), "two": two({"echo": echo})}
        with anyio.fail_after(PATIENCE):
            async with asking_room(servers, entries) as room, anyio.create_task_group() as tasks:
                await teach(room, "one", [tool("echo", "Says it again.")])
                feed = Feed(15.0)
                await tasks.start(
                    lambda task_status: follow(room, [feed.hear], kinds=TOLD, task_status=task_status)
                )
                async with http_door(room, **door) as opened:
                    operations = Operations(room, "9.9", feed, opened.door)
                    opened.door.show(operations.open_pages(), operations.pages())
                    await body(opened, room, feed)
                    feed.close()
                tasks.cancel_scope.cancel()

    run("asyncio", main)


@body_of(with_operations)
async def test_health_and_readiness(opened: Opened, room: Greenroom, feed: Feed, /) -> None:
    async def asked(path: str) -> tuple[int, Any]:
        answer = await opened.http.get(path)
        return answer.status_code, answer.json()

    assert await asked("/health") == (200, {"status": "healthy"})
    assert await asked("/ready") == (200, {"status": "ready"})
    status, said = await asked("/health/any")
    assert (status, said["alive_servers"], said["dead_servers"]) == (200, ["one", "two"], [])
    assert await asked("/health/all") == (
        200,
        {"status": "healthy", "servers": {"one": "idle", "two": "idle"}},
    )
    await room.drain("two")
    status, said = await asked("/health/any")
    assert (status, said["alive_servers"], said["dead_servers"]) == (200, ["one"], ["two"])
    assert (await asked("/health/all")) == (
        503,
        {"status": "unhealthy", "servers": {"one": "idle", "two": "down"}},
    )
    await room.drain("one")
    assert (await asked("/health/any"))[0] == 503
    opened.door.refuse_new()
    assert await asked("/ready") == (503, {"status": "not_ready"})
    assert (await asked("/health"))[0] == 200


class AbsentServer(AskingServer):
    """A server whose program is not there."""

    def open(self, hooks: PeerHooks) -> Any:
        raise ConnectFailed("its program is not there", server="two")


@body_of(with_operations, two=AbsentServer)
async def test_a_lazy_server_whose_start_failed_is_not_healthy(
    opened: Opened, room: Greenroom, feed: Feed, /
) -> None:
    with pytest.raises(CallError, match="is not there"):
        await room.connect("two")
    answer = await opened.http.get("/health/all")
    assert (answer.status_code, answer.json()["servers"]) == (503, {"one": "idle", "two": "failed"})


@body_of(with_operations, {"two": {"disabled": True}})
async def test_a_server_that_is_disabled_is_not_ill(opened: Opened, room: Greenroom, feed: Feed, /) -> None:
    answer = await opened.http.get("/health/all")
    assert (answer.status_code, answer.json()["servers"]) == (200, {"one": "idle"})
    said = (await opened.http.get("/health/any")).json()
    assert (said["alive_servers"], said["dead_servers"]) == (["one"], [])


@body_of(with_operations)
async def test_status_and_map(opened: Opened, room: Greenroom, feed: Feed, /) -> None:
    await opened.session()
    await room.connect("one")
    status = (await opened.http.get("/status")).json()
    assert (status["version"], status["sessions"], status["waitingForApproval"]) == ("9.9", 1, 0)
    assert 0.0 <= status["uptimeSeconds"] < PATIENCE
    assert [(each["name"], each["state"]) for each in status["servers"]] == [
        ("one", "connected"),
        ("two", "idle"),
    ]
    shown = (await opened.http.get("/map")).json()
    (found,) = shown["tools"]
    assert (found["name"], found["server"], found["original"]) == ("one_echo", "one", "echo")
    assert found["inputSchema"]["type"] == "object"
    assert shown["counts"] == {"one": {"tools": 1, "resources": 0, "prompts": 0, "skills": 0}}
    assert shown["unknownServers"] == ["two"]


@body_of(with_operations)
async def test_events_come_as_they_happen_and_can_be_resumed(
    opened: Opened, room: Greenroom, feed: Feed, /
) -> None:
    last = ""
    async with opened.http.stream("GET", "/events") as stream:
        events = event_stream(stream)
        await room.connect("one")
        first = await anext(events)
        assert first[1]["server"] == "one"
        async for name, event in events:
            if event.get("to") == "connected":
                last = name
                break
    async with opened.http.stream("GET", "/events", headers={"last-event-id": first[0]}) as stream:
        async for name, event in event_stream(stream):
            assert int(name) > int(first[0])
            if name == last:
                assert event["to"] == "connected"
                break


async def event_stream(stream: Any) -> AsyncGenerator[tuple[str, Any]]:
    """Id and record of each event."""
    name = ""
    async for line in stream.aiter_lines():
        if line.startswith("id: "):
            name = line[4:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


@body_of(with_operations)
async def test_who_comes_back_too_late_is_told_so(opened: Opened, room: Greenroom, feed: Feed, /) -> None:
    for number in range(1_004):
        feed.hear(Note(seq=number + 1_000, at=0.0, code=NoteCode.ODD, words="x"))
    async with opened.http.stream("GET", "/events", headers={"last-event-id": "1000"}) as stream:
        events = event_stream(stream)
        assert await anext(events) == ("", {"before": 1004})
        name, event = await anext(events)
        assert (name, event["detail"]) == ("1004", "x")


@pytest.mark.parametrize("path", ["/health/any", "/health/all", "/status", "/map", "/events"])
@body_of(with_operations, access=Access("127.0.0.1", TOKENS))
async def test_all_but_health_and_readiness_need_a_token_without_a_profile(
    opened: Opened, room: Greenroom, feed: Feed, /, path: str
) -> None:
    assert (await opened.http.get(path)).status_code == 401
    assert (await opened.http.get("/health")).status_code == 200
    assert (await opened.http.get("/ready")).status_code == 200
    bound = {"authorization": "Bearer token-of-cyd-0123456789"}
    assert (await opened.http.get(path, headers=bound)).status_code == 404
    assert (await opened.http.post(path, headers={"authorization": f"Bearer {ANN}"})).status_code == 405
    if path != "/events":
        assert (await opened.http.get(path, headers={"authorization": f"Bearer {ANN}"})).status_code == 200


@body_of(with_operations, profile="work")
async def test_a_door_that_shows_a_profile_has_no_pages_about_the_rest(
    opened: Opened, room: Greenroom, feed: Feed, /
) -> None:
    assert (await opened.http.get("/map")).status_code == 404
    assert (await opened.http.get("/health")).status_code == 200


@on_asyncio
@in_virtual_time
async def test_a_room_without_servers_is_well_and_what_waits_for_somebody_is_counted() -> None:
    room: Any = FakeRoom()
    room.config = msgspec.structs.replace(room.config, servers={}, broken={})
    room.approvals = ["one", "two"]
    door, said = HttpDoor(cast("Any", None), Access("127.0.0.1"), Rules(), note=print), list[Any]()
    async with anyio.create_task_group() as tasks:
        await tasks.start(door.run)
        operations = Operations(room, "9.9", Feed(15.0), door)
        await anyio.sleep(100.04)
        for page in (operations._any, operations._all, operations._status):
            answer = await page(Request({"type": "http", "state": {"caller": Caller()}}))
            said.append((answer.status_code, json.loads(bytes(answer.body))))
        tasks.cancel_scope.cancel()
    assert said[0] == (200, {"status": "healthy", "alive_servers": [], "dead_servers": []})
    assert said[1] == (200, {"status": "healthy", "servers": {}})
    status, about = said[2]
    assert (status, about["uptimeSeconds"], about["waitingForApproval"], about["sessions"]) == (
        200,
        100.0,
        2,
        0,
    )


def test_the_map_has_everything_under_its_own_name_and_no_hidden_characters() -> None:
    hidden = "What \u200bit is"
    room = KnownRoom()
    room.entries["github"] = ServerEntry(
        "github",
        "h",
        tools=(CREATE_ISSUE,),
        resources=(README, {"name": "rel", "uri": "rel/path", "mimeType": "text/plain"}),
        templates=({"name": "day", "uriTemplate": "day://{n}", "description": hidden},),
        prompts=({"name": "ask", "arguments": [{"name": "a"}]}, {"name": "plain"}, {"name": "third"}),
    )
    said: dict[str, Any] = {}

    async def main() -> None:
        async with room.open() as opened:
            pages = Operations(opened, "9.9", Feed(15.0), cast("Any", None)).pages()
            said.update(json.loads(bytes((await pages["/map"](cast("Any", None))).body)))

    virtually(main)
    assert {tool["name"]: tool["original"] for tool in said["tools"] if tool["kind"] == "tool"} == {
        "clock_now": "now",
        "github_create_issue": "create_issue",
    }
    assert [(each["name"], each["original"], each["arguments"]) for each in said["prompts"]] == [
        ("github_ask", "ask", [{"name": "a"}]),
        ("github_plain", "plain", []),
        ("github_third", "third", []),
    ]
    assert said["resources"] == [
        {
            "uri": "file:///readme",
            "server": "github",
            "original": "file:///readme",
            "name": "Read Me",
            "description": "What it is",
        },
        {
            "uri": "rel/path",
            "server": "github",
            "original": "rel/path",
            "name": "rel",
            "mimeType": "text/plain",
        },
    ]
    ((template,)) = said["templates"]
    assert (template["uri"], template["server"], "\u200b" in template["description"]) == (
        "day://{n}", "github", False,
    )  # fmt: skip
    assert said["counts"] == {
        "github": {"tools": 1, "resources": 2, "prompts": 3, "skills": 0},
        "clock": {"tools": 1, "resources": 0, "prompts": 0, "skills": 0},
    }
    assert said["unknownServers"] == ["fresh"]
