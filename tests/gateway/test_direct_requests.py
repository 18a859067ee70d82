"""The doors' exposures, request by request: what reaches the room, and what becomes of its answer. The room is the
test's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import attrs
import msgspec
import pytest
from tests.support import in_real_time
from tests.support.door_rooms import CREATE_ISSUE, NOW, README, FakeCall, FakeRoom, Hiding
from tests.support.memory_client import MemoryClient
from tests.support.rows import for_each

from greenroom.actors.host import ServerRequest
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.namespace import ResourceEntry, Target
from greenroom.config.model import Scrub
from greenroom.gateway.exposures.direct import Direct, DirectState
from greenroom.gateway.exposures.direct_client import _covers
from greenroom.gateway.exposures.direct_lists import ShownLists
from greenroom.gateway.exposures.proxy import Proxy
from greenroom.gateway.exposures.tool_definition import FOR_PEOPLE
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.address import Address
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import Drained, Reach, ServerLost, UnknownPrompt, UnknownTool, UsageError

META = "io.modelcontextprotocol/"
ENVELOPE = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {"elicitation": {}}}


@attrs.frozen
class Started:
    """A request that was sent: its params as they were written, and how it was asked for."""

    server: str
    method: str
    params: Any
    call: FakeCall
    how: Mapping[str, Any]


class Room(FakeRoom):
    """Also what the direct door asks for. `started` holds the requests that were sent, and how."""

    is_learning = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.started: list[Started] = []
        self.levels: list[tuple[str, str | None]] = []
        self.stateless: set[str] = set()
        self.heard: list[str] = []
        self.watched: list[str] = []

    def start_request(
        self, server: str, method: str, params: Any, on_end: Callable[[Any], None], **how: Any
    ) -> FakeCall:
        if self.refuse is not None:
            raise self.refuse
        target: Any = None
        call = FakeCall(target, params, on_end, how.get("on_progress"))
        sent = json.loads(rpc.encode(params))
        self.started.append(Started(server, method, sent, call, how))
        return call

    def submit(self, server: str, call: Any) -> None:
        how = {"tool": call.tool, "replayable": call.replayable}
        fake = self.start_request(server, call.method, call.params, call.on_end, **how)
        fake.server, fake.asked_by, call.cancel = server, call.asked_by, fake.cancel

    @property
    def last(self) -> Any:
        return self.started[-1]

    async def find(self, tool: str, server: str | None = None) -> Target:
        await anyio.lowlevel.checkpoint()
        found = self.index.resolve(tool)
        if not isinstance(found, Target):
            raise UnknownTool(tool)
        return found

    async def find_prompt(self, name: str, server: str | None = None) -> Target:
        await anyio.lowlevel.checkpoint()
        if name != "late":
            raise UnknownPrompt(name)
        return Target("late", "clock", "prompt", "own_late", {}, "", None)

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        await anyio.lowlevel.checkpoint()
        if ref.get("name") != "late":
            raise UnknownPrompt("none")
        return "clock", {**ref, "name": "own_late"}

    def locate(self, uri: str, server: str | None = None) -> ResourceEntry:
        return ResourceEntry(uri, "github", f"own:{uri}", {})

    async def watch(self, place: ResourceEntry) -> None:
        self.watched.append(place.original)

    def unwatch(self, place: ResourceEntry) -> None:
        self.watched.remove(place.original)

    async def settled(self) -> Any:
        return self.index

    async def catalogued(self) -> None: ...

    def is_stateless(self, server: str) -> bool:
        return server in self.stateless

    def set_log_level(self, level: str, server: str | None = None) -> None:
        if level == "loud":
            raise UsageError("no level loud", code="usage")
        self.levels.append((level, server))

    def client_came(self) -> None:
        self.heard.append("client_came")

    def roots_changed(self) -> None:
        self.heard.append("roots_changed")


# ---- who comes and goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exposure", [Proxy, Direct])
def test_each_exposure_tells_its_host_who_comes_says_something_and_leaves(exposure: Any) -> None:
    room = Room()
    client = MemoryClient.met(exposure(room), roots={})
    assert room.heard == ["client_came"]
    assert room.host.declaration(Address("github")).capabilities == {"roots": {}}
    client.tell("notifications/roots/list_changed")
    assert room.heard == ["client_came", "roots_changed"]
    room.host.heard(Address("github"), "notifications/message", {"data": 1})
    assert [each["params"] for each in client.fresh] == [{"data": 1}]
    client.session.close()
    assert room.host.declaration(Address("github")).capabilities == {}
    room.host.heard(Address("github"), "notifications/message", {"data": 2})
    assert len(client.fresh) == 1


@pytest.mark.parametrize(
    ("exposure", "lists"),
    [
        (Proxy, {"tools/list"}),
        (Direct, {"tools/list", "resources/list", "resources/templates/list", "prompts/list"}),
    ],
)
def test_an_exposure_has_its_lists_and_no_others(exposure: Any, lists: set[str]) -> None:
    shown = exposure(Room(direct_tools=True))
    every = ("tools/list", "resources/list", "resources/templates/list", "prompts/list", "other/list")
    assert {method for method in every if shown.listing(method) is not None} == lists
    client = MemoryClient.met(shown)
    client.begin("other/list", {})
    assert client.outcome["code"] == -32601
    assert (shown.settling_time, shown.instructions()) == (
        0.0,
        None if exposure is Proxy else "# github\n\nBe kind to maintainers.",
    )


# ---- the one tool ------------------------------------------------------------------------------------------------


def test_the_mcp_door_sets_a_level_once_and_says_what_is_wrong_with_one() -> None:
    room, begun = Room(), list[bool]()
    proxy = Proxy(room)
    begin = proxy.begin
    proxy.begin = lambda job: begun.append(begin(job)) or True  # pyright: ignore[reportAttributeAccessIssue]
    client = MemoryClient.met(proxy)
    for level, told in (("info", {}), ("info", {}), ("debug", {})):
        client.begin("logging/setLevel", {"level": level})
        assert client.outcome == told
    client.begin("logging/setLevel", {"level": "loud"})
    assert client.outcome == {"code": -32602, "message": "Invalid params: no level loud"}
    client.begin("logging/setLevel", {"level": 7})
    assert room.levels == [("info", None), ("debug", None), ("7", None)]
    assert begun == [True] * 5, "it has that method"


def test_the_mcp_door_takes_a_level_from_each_newer_request_and_refuses_a_state_that_is_not_its_own() -> None:
    room = Room()
    client = MemoryClient.met(Proxy(room))
    for level in ("debug", "debug", None, 7, "info"):
        meta = {**ENVELOPE, **({} if level is None else {f"{META}logLevel": level})}
        client.begin("tools/call", {"name": "mcp", "arguments": {}, "_meta": meta})
        assert "content" in client.outcome
    assert room.levels == [("debug", None), ("info", None)]
    client.begin("tools/call", {"name": "mcp", "arguments": {}, "requestState": "x", "_meta": ENVELOPE})
    assert client.outcome["code"] == -32602
    assert client.outcome["message"].endswith("this requestState was not given here. Ask again without it.")
    client.begin("tools/call", {"name": "mcp", "arguments": {}, "requestState": "x"})
    assert "content" in client.outcome, "in the older era it means nothing"
    client.begin("tools/call", {"name": "other", "arguments": {}})
    assert client.outcome["isError"]


# ---- the direct door: tools ---------------------------------------------------------------------------------------


RESULT = {"content": [{"type": "text", "text": "done"}]}


def test_a_tool_is_called_under_its_own_name_with_the_arguments_as_they_came() -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    for params, sent in (
        ({"arguments": {"a": 1}}, {"arguments": {"a": 1}}),
        ({}, {}),
        ({"arguments": {}, "task": {"ttl": 1}}, {"arguments": {}}),  # tasks are not declared here
        ({"_meta": {"x": 1, "progressToken": 3, f"{META}other": 1}}, {"_meta": {"x": 1}}),
    ):
        client.begin("tools/call", {"name": "clock_now", **params})
        assert client.fresh == []
        assert room.last.params == {"name": "now", **sent}
        assert (room.last.server, room.last.method, room.last.how["tool"], room.last.how["replayable"]) == (
            "clock", "tools/call", "clock_now", False,
        )  # fmt: skip
        assert (room.last.how.get("on_progress") is not None) == ("_meta" in params)
        room.last.call.end(RESULT)
        assert client.outcome == RESULT
    room.learn("clock", {**NOW, "annotations": {"readOnlyHint": True}})
    for params in ({}, {"_meta": {}}, {"_meta": ENVELOPE}):
        client.begin("tools/call", {"name": "clock_now", **params})
        assert room.last.how["replayable"], "it does no harm twice"


@in_real_time
async def test_a_tool_that_is_spelled_otherwise_unknown_or_not_chosen() -> None:
    room = Room(direct_tools=True)
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        client.begin("tools/call", {"name": "clock-now"})
        assert room.last.params == {"name": "now"}, "spelled otherwise"
        client.begin("tools/call", {"name": "nothing_at_all"})
        assert client.outcome["_meta"]["greenroom/error"] == {"error": "tool_not_found"}
        client.begin("tools/call", {"name": "fresh_late"})
        await anyio.wait_all_tasks_blocked()
        assert client.outcome["_meta"]["greenroom/error"] == {"error": "tool_not_found"}
        client.begin("tools/call", {"name": "fresh_now"})
        room.learn("fresh", NOW)  # before its task looks
        await anyio.wait_all_tasks_blocked()
        assert (room.last.server, room.last.params) == ("fresh", {"name": "now"})
        client.begin("tools/call", {"name": 7})
        assert client.outcome == {"code": -32602, "message": "Invalid params: name must be a string."}
    hidden = Room(direct_tools=("github_*",))
    client = MemoryClient.met(Direct(hidden))
    for name in ("clock_now", "clock-now"):
        client.begin("tools/call", {"name": name})
        assert client.outcome["isError"]
    assert not hidden.started


@pytest.mark.parametrize("params", [{}, {"_meta": {}}, {"_meta": ENVELOPE}], ids=["plain", "older", "newer"])
def test_each_end_of_a_call_is_told_the_client(params: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    client.begin("tools/call", {"name": "clock_now", **params})
    room.last.call.fail(ServerLost("gone", server="clock", reach=Reach.SENT))
    assert client.outcome["isError"]
    client.begin("tools/call", {"name": "clock_now", **params})
    room.last.call.end(b'{"structuredContent":{"a":1}}')
    assert client.outcome["content"] == [{"type": "text", "text": '{"a":1}'}]
    client.begin("tools/call", {"name": "clock_now", **params})
    room.last.call.end({"content": [{"type": "resource_link", "uri": "made:1", "name": "x"}]})
    assert client.outcome["content"][0]["uri"] == "made:1"
    client.begin("resources/read", {"uri": "made:1"})
    assert (room.last.server, room.last.params["uri"]) == ("clock", "made:1")
    room.refuse = Drained("busy", server="clock")
    client.begin("tools/call", {"name": "clock_now", **params})
    assert (client.outcome["isError"], client.outcome["content"][0]["text"]) == (True, "busy")
    assert client.session.in_flight == 1, "the read that nobody ended"


@pytest.mark.parametrize("params", [{}, {"_meta": {}}], ids=["plain", "other"])
@pytest.mark.parametrize("text", ["content", "structuredContent"])
@in_real_time
async def test_a_large_result_is_read_by_the_version_of_the_server_that_sent_it(
    params: Any, text: str
) -> None:
    """It is taken in slices, and meanwhile the server may go: then its version is not known any more."""
    room = Room(direct_tools=True)
    said = (
        [{"type": "text", "text": "x" * LARGE_MESSAGE}] if text == "content" else {"x": "y" * LARGE_MESSAGE}
    )
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        client.begin("tools/call", {"name": "clock_now", **params})
        call = room.last.call
        call.protocol_version = "2026-07-28"
        call.end({"resultType": "complete", text: said})
        call.protocol_version = None
        while not client.fresh:
            await anyio.lowlevel.checkpoint()
        assert "resultType" not in client.outcome, "a client of the handshake does not know it"
        assert client.outcome[text] == said


@pytest.mark.parametrize("params", [{}, {"_meta": {}}, {"_meta": ENVELOPE}], ids=["plain", "older", "newer"])
def test_a_bug_of_ours_at_the_end_of_a_call_ends_that_call_alone(params: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    client.begin("tools/call", {"name": "clock_now", **params})
    client.look()
    room.last.call.result = object()  # no bytes
    room.last.call._on_end(room.last.call)
    assert (client.outcome["code"], len(client.notes), client.session.in_flight) == (-32603, 1, 0)


def test_an_older_server_is_told_a_newer_clients_level_once_and_a_newer_one_reads_it_itself() -> None:
    room = Room(direct_tools=True)
    room.stateless = {"github"}
    client = MemoryClient.met(Direct(room))
    for name, level in (
        ("clock_now", "info"), ("clock_now", "info"), ("clock_now", "debug"), ("clock_now", 7),
        ("github_list_issues", "info"),
    ):  # fmt: skip
        client.begin("tools/call", {"name": name, "_meta": {**ENVELOPE, f"{META}logLevel": level, "x": 1}})
        assert room.last.params["_meta"] == {"x": 1, f"{META}logLevel": level}
        assert (room.last.how["takes_inputs"], room.last.how["tool"]) == (True, name)
        assert (room.last.how["replayable"], room.last.how["on_progress"]) == (False, None)
    assert room.levels == [("info", "clock"), ("debug", "clock")]
    client.begin("logging/setLevel", {"level": "error"})
    assert (client.outcome, room.levels[-1]) == ({}, ("error", None))
    client.begin("logging/setLevel", {"level": "loud"})
    assert client.outcome["code"] == -32602


def test_a_newer_servers_requests_and_state_come_back_to_it_alone_and_name_it() -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    asked = {"method": "elicitation/create", "params": {"message": "Sure?"}}
    needed = {
        "resultType": "input_required",
        "inputRequests": {"q": asked, "odd": 7},
        "requestState": "theirs",
    }
    client.begin("tools/call", {"name": "clock_now", "_meta": ENVELOPE})
    room.last.call.end(needed)
    told = client.outcome
    assert told["resultType"] == "input_required"
    assert told["inputRequests"]["q"]["params"]["message"] == "[clock] Sure?"
    assert told["inputRequests"]["odd"] == 7
    state = told["requestState"]
    assert state != "theirs"
    again = {"name": "clock_now", "inputResponses": {"q": {"action": "accept"}}, "_meta": ENVELOPE}
    client.begin("tools/call", {**again, "requestState": state})
    assert (room.last.params["requestState"], room.last.params["inputResponses"]) == (
        "theirs", {"q": {"action": "accept"}},
    )  # fmt: skip
    for name, given in (("github_list_issues", state), ("clock_now", "forged"), ("clock_now", f"{state}x")):
        before = len(room.started)
        client.begin("tools/call", {**again, "name": name, "requestState": given})
        assert (client.outcome["code"], len(room.started)) == (-32602, before)
    client.begin("tools/call", {"name": "github_list_issues", "_meta": ENVELOPE})
    room.last.call.end(needed)
    of_another_tool, before = client.outcome["requestState"], len(room.started)
    client.begin("tools/call", {**again, "name": "github_create_issue", "requestState": of_another_tool})
    assert (client.outcome["code"], len(room.started)) == (-32602, before), "of the same server"
    client.begin("tools/call", {"name": "clock_now", "_meta": ENVELOPE})
    room.last.call.end({"resultType": "input_required", "inputRequests": "odd"})
    assert (client.outcome["inputRequests"], "requestState" in client.outcome) == ("odd", False)
    client.begin("tools/call", {"name": "clock_now", "_meta": ENVELOPE})
    room.last.call.end({**RESULT, "requestState": "input_required", "inputRequests": {"q": asked}})
    assert client.outcome["requestState"] == "input_required", "it asks for nothing"


# ---- the direct door: the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [{}, {"_meta": ENVELOPE}], ids=["older", "newer"])
@in_real_time
async def test_prompts_and_completions_go_to_whose_they_are_and_wait_for_those_not_known_yet(
    era: Any,
) -> None:
    room = Room()
    known = ServerEntry("github", "h", prompts=({"name": "ask"},))
    room.entries["github"] = known
    room.reindex()
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        client.begin("prompts/get", {"name": "github_ask", "arguments": {"a": "b"}, **era})
        assert (room.last.server, room.last.method) == ("github", "prompts/get")
        meta = {"_meta": {}} if era else {}
        assert room.last.params == {"name": "ask", "arguments": {"a": "b"}, **meta}
        assert room.last.how["on_progress"] is None
        assert (room.last.how["tool"], room.last.how["replayable"]) == (None, False)
        room.last.call.end({"messages": []})
        assert client.outcome["messages"] == []
        argument = {"name": "x", "value": "y"}
        for method, late, none, sent in (
            ("prompts/get", {"name": "late"}, {"name": "none"}, {"name": "own_late"}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "late"}, "argument": argument},
                {"ref": {"type": "ref/prompt", "name": "none"}, "argument": argument},
                {"ref": {"type": "ref/prompt", "name": "own_late"}, "argument": argument},
            ),
        ):
            client.begin(method, {**late, **era})
            await anyio.wait_all_tasks_blocked()
            assert (room.last.server, room.last.method, room.last.params) == (
                "clock",
                method,
                {**sent, **meta},
            )
            room.last.call.end({"x": 1})
            assert client.outcome["x"] == 1
            client.begin(method, {**none, **era})
            await anyio.wait_all_tasks_blocked()
            assert (client.outcome["code"], client.outcome["data"]) == (
                -32602, {"error": "prompt_not_found"},
            )  # fmt: skip
        assert client.session.in_flight == 0


@for_each(
    ("method", "params", "text"),
    [
        ("prompts/get", {}, "name must be a string."),
        ("resources/read", {"uri": None}, "uri must be a string."),
        ("resources/subscribe", {"uri": 1}, "uri must be a string."),
        ("resources/unsubscribe", {}, "uri must be a string."),
        ("completion/complete", {"ref": "x"}, "ref must be an object."),
        ("logging/setLevel", {"level": 1}, "level must be a string."),
        (
            "subscriptions/listen",
            {"_meta": ENVELOPE, "notifications": []},
            "notifications must be an object.",
        ),
    ],
)
def test_params_of_another_kind_are_named(method: str, params: Any, text: str) -> None:
    client = MemoryClient.met(Direct(Room()))
    client.begin(method, params)
    assert client.outcome == {"code": -32602, "message": f"Invalid params: {text}"}


@in_real_time
async def test_a_resource_is_read_and_watched_at_its_server_under_its_own_uri() -> None:
    room = Room()
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        client.begin("resources/read", {"uri": "x:1"})
        assert (room.last.server, room.last.method, room.last.params) == (
            "github", "resources/read", {"uri": "own:x:1"},
        )  # fmt: skip
        room.last.call.end({"contents": [{"uri": "part:1", "text": ""}, {"text": ""}]})
        assert [each["uri"] for each in client.outcome["contents"]] == ["part:1", "x:1"]
        client.begin("resources/subscribe", {"uri": "x:1"})
        await anyio.wait_all_tasks_blocked()
        assert (client.outcome, room.watched) == ({}, ["own:x:1"])
        client.look()
        room.host.heard(Address("github"), "notifications/resources/updated", {"uri": "own:x:1"})
        assert [each["params"] for each in client.fresh] == [{"uri": "x:1"}]
        client.begin("resources/unsubscribe", {"uri": "x:1"})
        assert (client.outcome, room.watched) == ({}, [])
        client.begin("subscriptions/listen", {
            "_meta": ENVELOPE, "notifications": {"resourceSubscriptions": ["x:2"]},
        })  # fmt: skip
        await anyio.wait_all_tasks_blocked()
        assert room.watched == ["own:x:2"]
        client.look()
        room.host.heard(Address("github"), "notifications/resources/updated", {"uri": "own:x:2/part"})
        assert [each["params"]["uri"] for each in client.fresh] == ["own:x:2/part"]
        client.begin("resources/read", {"uri": "own:x:2/part"})
        assert room.last.params["uri"] == "own:x:2/part", "who told of it is asked for it"
        client.begin("resources/subscribe", {"uri": "x:3"})
        await anyio.wait_all_tasks_blocked()
        client.session.close()
        await anyio.wait_all_tasks_blocked()
        assert room.watched == []


# ---- what is shown -------------------------------------------------------------------------------------------------


def test_what_is_listed_has_the_names_of_the_index_and_what_changed_is_announced() -> None:
    room = Room(direct_tools=True)
    room.entries["clock"] = ServerEntry(
        "clock",
        "h",
        tools=({**NOW, "outputSchema": {"type": "array"}, "_meta": {"greenroom/x": 1, "y": 2}},),
        resources=({"name": "rel", "uri": "rel/path"}, {"name": "abs", "uri": "file:///abs"}),
        templates=({"name": "t", "uriTemplate": "made/{id}"},),
        prompts=({"name": "ask"},),
    )
    room.reindex()
    shown = ShownLists(room)

    def listed(method: str, key: str, what: str, *, modern: bool = True) -> list[Any]:
        return [each[key] for each in (shown.listing(method, modern=modern) or {})[what]]

    assert listed("tools/list", "name", "tools") == ["clock_now", "github_create_issue", "github_list_issues"]
    uris = ["file:///abs", README["uri"], "greenroom://clock/rel/path"]
    assert listed("resources/list", "uri", "resources") == uris
    assert listed("resources/templates/list", "uriTemplate", "resourceTemplates") == ["made/{id}"]
    assert listed("prompts/list", "name", "prompts") == ["clock_ask"]
    newer, older = (
        (shown.listing("tools/list", modern=modern) or {})["tools"][0] for modern in (True, False)
    )
    assert (newer["outputSchema"]["type"], older["outputSchema"]["type"]) == ("array", "object")
    assert newer["_meta"] == older["_meta"] == {"y": 2}, "nobody speaks in our name"
    made = shown.listing("tools/list", modern=False)
    assert shown.listing("tools/list", modern=False) is made, "kept until there is another index"
    assert shown.listing("other/list", modern=True) is None

    assert shown.changes() == []
    room.reindex()
    assert shown.changes() == [], "another index with the same text is no change"
    before = room.entries["clock"]
    assert before is not None
    for part, value, told in (
        ("tools", (NOW,), "tools"),
        ("templates", (), "resources"),
        ("resources", (), "resources"),
        ("prompts", (), "prompts"),
    ):
        before = msgspec.structs.replace(before, **{part: value})
        room.entries["clock"] = before
        room.reindex()
        assert shown.changes() == [f"notifications/{told}/list_changed"]
        assert shown.changes() == []


def test_a_tool_is_shown_only_if_it_is_chosen_and_only_while_it_is_there() -> None:
    room = Room(direct_tools=("clock_now",))
    shown = ShownLists(room)
    assert shown.tool("github_create_issue") is None
    assert shown.tool("now") is None
    first = shown.tool("clock_now")
    assert first is not None
    assert shown.tool("clock_now") is first
    room.learn("clock", CREATE_ISSUE)
    assert shown.tool("clock_now") is None


def test_a_list_of_many_is_digested_to_its_last_item() -> None:
    room = Room(direct_tools=True)
    tools = [{**NOW, "name": f"t{number:04}"} for number in range(1201)]
    room.learn("clock", *tools)
    shown = ShownLists(room)
    for at in (0, 499, 500, 999, 1200):
        tools[at] = {**tools[at], "description": "other"}
        room.learn("clock", *tools)
        assert shown.changes() == ["notifications/tools/list_changed"]


@for_each("watched", ["x:/a", "x:/a/"])
@for_each(
    ("told", "covers"),
    [("x:/a", None), ("x:/a/", None), ("x:/a/b", True), ("x:/a/b/c", True), ("x:/ab", False), ("x:/", False)],
)
def test_a_change_of_a_part_is_a_change_of_what_is_watched(
    watched: str, told: str, covers: bool | None
) -> None:
    place = ResourceEntry("own", "s", watched, {})
    expected = covers if covers is not None else told == watched or told == "x:/a/"
    assert _covers(place, "s", told) is expected
    assert not _covers(place, "other", told)


@for_each(
    ("result", "content"),
    [
        (b'{"content":[{"type":"text","text":"a"}]}', [{"type": "text", "text": "a"}]),
        (b'{"structuredContent":{}, "content": []}', []),
        (b'{"content":  [\t]}', []),  # a line has no line break in it
        (b'{"content":"odd"}', [{"type": "text", "text": "odd"}]),
        (b'{"items":[{"a":1}]}', []),  # what stands behind the key it has not
        (b'{"content":null}', []),
        (b"{}", []),
    ],
)
def test_a_result_that_clients_refuse_is_given_content_and_others_pass(result: bytes, content: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    client.begin("tools/call", {"name": "clock_now"})
    room.last.call.end(result)
    assert client.outcome == {**json.loads(result), "content": content}


# ---- on the way there and back ---------------------------------------------------------------------------------------


class Secretive(Room):
    """Of what `clock` says, the word `secret` is hidden at every door."""

    def scrubber(self, server: str, door: Scrub, /) -> Any:
        return Hiding() if server == "clock" and door is Scrub.ALL else None


ERAS = pytest.mark.parametrize(
    "params", [{}, {"_meta": {}}, {"_meta": ENVELOPE}], ids=["plain", "older", "newer"]
)


@ERAS
def test_a_cancelled_call_is_cancelled_at_its_server(params: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    for method, what in (
        ("tools/call", {"name": "clock_now"}),
        ("tools/call", {"name": "clock_now", "arguments": {}}),
        ("resources/read", {"uri": "x:1"}),
    ):
        client.begin(method, {**what, **params})
        call = room.last.call
        client.tell("notifications/cancelled", {"requestId": client.last_id})
        assert (call.cancelled, client.session.in_flight, client.fresh) == (True, 0, [])
        call.end(RESULT)
        assert client.fresh == [], "nobody wants it any more"


@for_each("era", [{}, ENVELOPE], ids=["older", "newer"])
@for_each("token", [0, "", False, 7, "mine", None])
def test_any_token_but_none_asks_for_progress(token: Any, era: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    client.begin("tools/call", {"name": "clock_now", "_meta": {**era, "progressToken": token}})
    assert (room.last.call.on_progress is not None) is (token is not None)
    assert "progressToken" not in room.last.params["_meta"]
    if token is not None:
        room.last.call.on_progress({"progress": 1, "progressToken": "theirs"})
        assert [said["params"] for said in client.fresh] == [{"progress": 1, "progressToken": token}]


@pytest.mark.parametrize("era", [{}, ENVELOPE], ids=["older", "newer"])
def test_a_client_cannot_speak_in_our_name(era: Any) -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    client.begin("tools/call", {"name": "clock_now", "_meta": {**era, "greenroom/server": "x", "own": 1}})
    assert room.last.params["_meta"] == {"own": 1}


@ERAS
@in_real_time
async def test_credentials_are_hidden_of_whatever_ends(params: Any) -> None:
    said = {"content": [{"type": "text", "text": "a secret"}], "contents": [], "messages": []}
    room = Secretive(direct_tools=True)
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        for method, what in (
            ("tools/call", {"name": "clock_now"}),
            ("tools/call", {"name": "github_list_issues"}),
            ("resources/read", {"uri": "x:1"}),
        ):
            client.begin(method, {**what, **params})
            room.last.call.end({**said, "big": ["secret"] * 2})
            await anyio.wait_all_tasks_blocked()
            is_hidden = room.last.server == "clock"
            assert ("secret" in json.dumps(client.outcome)) is not is_hidden
            assert ("***" in json.dumps(client.outcome)) is is_hidden
        client.begin("tools/call", {"name": "clock_now", **params})
        room.last.call.end({"content": [{"type": "text", "text": "secret" + "x" * LARGE_MESSAGE}]})
        while not client.fresh:
            await anyio.lowlevel.checkpoint()
        assert client.outcome["content"][0]["text"][:5] == "***xx"
        assert client.session.in_flight == 0


@pytest.mark.parametrize("params", [{}, {"_meta": {}}], ids=["plain", "other"])
@in_real_time
async def test_a_large_result_is_read_and_remembered_as_a_small_one(params: Any) -> None:
    room = Room(direct_tools=True)
    long = "x" * LARGE_MESSAGE
    link = {"type": "resource_link", "uri": "made:1", "name": "x"}
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        for result, content in (
            ({"content": [{"type": "text", "text": long}, link]}, None),
            ({"structuredContent": {"a": long}}, [{"type": "text", "text": json.dumps({"a": long})}]),
            (
                {"other": 1, "structuredContent": [long], "content": None},
                [{"type": "text", "text": json.dumps([long])}],
            ),
            ({"other": long, "content": []}, []),
        ):
            client.begin("tools/call", {"name": "clock_now", **params})
            room.last.call.end(result)
            while not client.fresh:
                await anyio.lowlevel.checkpoint()
            kept: dict[str, Any] = {key: value for key, value in result.items() if value is not None}
            if isinstance(kept.get("structuredContent"), list):  # which an older client does not know
                kept["structuredContent"] = {"result": kept["structuredContent"]}
            assert client.outcome == {
                **kept,
                "content": content if content is not None else kept["content"],
            }
        client.begin("resources/read", {"uri": "made:1"})
        assert (room.last.server, room.last.params["uri"]) == ("clock", "made:1")
        room.last.call.end({"contents": [{"uri": "made:2", "text": ""}]})
        client.begin("resources/read", {"uri": "made:2"})
        assert room.last.server == "clock", "a part of it, although it is not called a link"


def test_a_newer_clients_state_is_for_the_one_resource_that_it_was_given_for() -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    needed = {"resultType": "input_required", "inputRequests": {}, "requestState": "theirs"}
    client.begin("resources/read", {"uri": "x:1", "_meta": ENVELOPE})
    room.last.call.end(needed)
    state = client.outcome["requestState"]
    for uri, is_taken in (("x:2", False), ("x:1", True)):
        before = len(room.started)
        client.begin("resources/read", {"uri": uri, "requestState": state, "_meta": ENVELOPE})
        assert len(room.started) == before + is_taken, uri
    assert room.last.params["requestState"] == "theirs"


def test_a_request_in_a_result_loses_credentials_and_its_state_stays() -> None:
    room = Secretive(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    asked = {"method": "elicitation/create", "params": {"message": "Is secret right?", "x": "secret"}}
    client.begin("tools/call", {"name": "clock_now", "_meta": ENVELOPE})
    needed = {"resultType": "input_required", "inputRequests": {"q": asked}, "requestState": "secret"}
    room.last.call.end(needed)
    told = client.outcome
    assert told["inputRequests"]["q"]["params"]["message"] == "[clock] Is *** right?"
    assert told["requestState"].endswith(".secret")


def test_a_request_in_a_result_hides_nothing_from_a_person() -> None:
    room = Room(direct_tools=True)
    client = MemoryClient.met(Direct(room))
    params = {
        "message": "\x1b[2KSure\u202e?",
        "requestedSchema": {"properties": {"a": {"title": "\x1b[1Gx"}}},
    }
    seen = {"message": "[clock] Sure?", "requestedSchema": {"properties": {"a": {"title": "x"}}}}
    for each, wanted in ((params, seen), ({"requestedSchema": {"properties": {"\u202ea": {}}}}, None)):
        client.begin("tools/call", {"name": "clock_now", "_meta": ENVELOPE})
        asked = {"method": "elicitation/create", "params": each}
        room.last.call.end({"resultType": "input_required", "inputRequests": {"q": asked}})
        if wanted is not None:
            assert wanted.items() <= client.outcome["inputRequests"]["q"]["params"].items()
        else:
            assert "cannot see" in json.dumps(client.outcome)


def test_what_an_override_hides_is_set_in_every_era() -> None:
    room = Room(direct_tools=True)
    override = {"rename": "tell", "params": {"zone": {"hide": True, "default": "utc"}, "a": {"rename": "b"}}}
    schema = {"type": "object", "properties": {"zone": {"type": "string"}, "a": {}}}
    servers = {**room.config.servers}
    servers["clock"] = msgspec.structs.replace(servers["clock"], tool_overrides={"now": override})
    room.config = msgspec.structs.replace(room.config, servers=servers)
    room.learn("clock", {**NOW, "inputSchema": schema})
    client = MemoryClient.met(Direct(room))
    for params in ({}, {"_meta": {}}, {"_meta": ENVELOPE}):
        client.begin("tools/call", {"name": "clock_tell", "arguments": {"b": 10**30}, **params})
        assert room.last.params["name"] == "now"
        assert room.last.params["arguments"] == {"a": 10**30, "zone": "utc"}
        assert room.last.how["tool"] == "clock_tell"
        room.last.call.end({"content": [{"type": "text", "text": "now: no a"}], "isError": True})
        assert client.outcome["content"][0]["text"] == "tell: no b"
        before = len(room.started)
        client.begin("tools/call", {"name": "clock_tell", "arguments": {"zone": "x"}, **params})
        assert (client.outcome["isError"], len(room.started)) == (True, before)


def test_a_value_that_is_shown_without_hidden_characters_reaches_its_server_with_them() -> None:
    room = Room(direct_tools=True)
    schema = {"type": "object", "properties": {"zo\u200bne": {"type": "string", "enum": ["u\u200btc", "z"]}}}
    room.learn("clock", {**NOW, "inputSchema": schema})
    client = MemoryClient.met(Direct(room))
    shown = ShownLists(room).listing("tools/list", modern=True) or {}
    (zone,) = shown["tools"][0]["inputSchema"]["properties"]
    for params in ({}, {"_meta": {}}, {"_meta": ENVELOPE}):
        client.begin("tools/call", {"name": "clock_now", "arguments": {zone: "utc"}, **params})
        assert room.last.params["arguments"] == {"zo\u200bne": "u\u200btc"}
        room.last.call.end(RESULT)


@in_real_time
async def test_of_several_lists_each_change_is_told_to_every_client() -> None:
    room = Room(direct_tools=True)
    common = DirectState(room)
    clients = [MemoryClient.met(Direct(room, common)) for _ in range(3)]
    clients[1].session.close()
    room.entries["clock"] = ServerEntry(
        "clock", "h", resources=({"name": "r", "uri": "x:r"},), prompts=({"name": "ask"},)
    )
    room.reindex()
    await common.announce()
    await common.announce()
    told = [f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")]
    assert [[said["method"] for said in client.fresh] for client in clients] == [told, [], told]


def test_instructions_say_what_is_left_out_and_have_no_hidden_characters() -> None:
    room = Room()
    room.entries["github"] = ServerEntry("github", "h", instructions="Be \u200bkind.")
    room.config = msgspec.structs.replace(room.config, untrusted=("here/.mcp.json",))
    said = Direct(room).instructions()
    assert said is not None
    first, _, rest = said.partition("\n\n")
    assert "here/.mcp.json" in first
    assert rest.startswith("# github\n\n")
    assert "\u200b" not in rest


@pytest.mark.parametrize("is_learning", [False, True])
def test_only_while_servers_are_met_the_first_list_waits(is_learning: bool) -> None:
    room = Room(first_list_timeout=7.0)
    room.is_learning = is_learning
    assert Direct(room).settling_time == (7.0 if is_learning else 0.0)


@for_each(
    ("meta", "listed"),
    [
        ({"ui": {"resourceUri": "x:page", "b": 1}}, {"ui": {"resourceUri": "x:page", "b": 1}}),
        ({"ui": {"resourceUri": "x:own"}}, {"ui": {"resourceUri": "greenroom://clock/x:own"}}),
        ({"ui/resourceUri": "x:own", "c": 1}, {"ui/resourceUri": "greenroom://clock/x:own", "c": 1}),
        ({"ui/resourceUri": "x:page"}, {"ui/resourceUri": "x:page"}),
        ({"ui/resourceUri": "file:///readme"}, {"ui/resourceUri": "greenroom://clock/file:///readme"}),
        ({"ui": "odd", "ui/resourceUri": 7}, {"ui": "odd", "ui/resourceUri": 7}),
        ({"ui": {"resourceUri": 7}}, {"ui": {"resourceUri": 7}}),
    ],
)
def test_a_tools_page_is_read_from_the_tools_own_server(meta: Any, listed: Any) -> None:
    room = Room(direct_tools=True)
    room.entries["clock"] = ServerEntry(
        "clock", "h", tools=({**NOW, "_meta": meta},), resources=({"name": "p", "uri": "x:page"},)
    )
    room.reindex()
    found = ShownLists(room).listing("tools/list", modern=True) or {}
    assert found["tools"][0]["_meta"] == listed


@pytest.mark.parametrize("exposure", [Direct, Proxy])
@in_real_time
async def test_a_newer_client_that_comes_back_with_an_answer_waits_for_the_call_it_left(
    exposure: Any,
) -> None:
    """An older server asks in the middle of a call."""
    room = Room(direct_tools=True)
    asks = {**ENVELOPE, f"{META}clientCapabilities": {"elicitation": {}}}
    call: dict[str, Any] = {"name": "clock_now", "_meta": asks}
    if exposure is Proxy:
        call = {"name": "mcp", "arguments": {"tool": "clock_now"}, "_meta": asks}
    told: list[Any] = []

    async def ask() -> None:
        request = ServerRequest(Address("clock"), "elicitation/create", {"message": "Sure?"})
        told.append(await room.host.answer(request))

    async with anyio.create_task_group() as group:
        client = MemoryClient.met(exposure(room), group.start_soon)
        client.begin("tools/call", call)
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        asked = client.outcome
        assert asked["resultType"] == "input_required"
        assert client.session.in_flight == 1, "it may come back"
        ((key, request),) = asked["inputRequests"].items()
        assert request["params"]["message"] == "[clock] Sure?"
        begun = len(room.started) + len(room.calls)
        back = {"inputResponses": {key: {"action": "accept"}}, "requestState": asked["requestState"]}
        client.begin("tools/call", {**call, **back})
        assert len(room.started) + len(room.calls) == begun, "it is not called again"
        await anyio.wait_all_tasks_blocked()
        assert told == [{"action": "accept"}]
        (room.last.call if exposure is Direct else room.calls[-1]).end(RESULT)
        assert client.outcome["content"] == RESULT["content"]
        assert client.session.in_flight == 0


@pytest.mark.parametrize(("exposure", "passes"), [(Direct, True), (Proxy, False)])
def test_only_at_the_direct_door_servers_are_told_of_extensions_and_lose_credentials_for_all(
    exposure: Any, passes: bool
) -> None:
    room = Secretive(direct_tools=True)
    client = MemoryClient.met(exposure(room), extensions={"a": {}})
    assert ("extensions" in room.host.declaration(Address("clock")).capabilities) is passes
    room.host.heard(Address("clock"), "notifications/message", {"data": "a secret"})
    assert client.fresh[0]["params"]["data"] == ("a ***" if passes else "a secret")


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "completion/complete"])
@in_real_time
async def test_whatever_keeps_an_item_from_being_found_is_told(
    method: str,
) -> None:
    async def refuse(*_: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        raise Drained("The server is stopped.", server="fresh")

    room: Any = Room(direct_tools=True)
    room.find = room.find_prompt = room.find_reference = refuse
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(Direct(room), group.start_soon)
        client.begin(method, {"name": "fresh_x", "ref": {"type": "ref/prompt", "name": "fresh_x"}})
        await anyio.wait_all_tasks_blocked()
        said = json.dumps(client.outcome)
        assert ("The server is stopped." in said, '"reach": "not_sent"' in said) == (True, True)
        assert client.session.in_flight == 0


def test_an_older_client_is_shown_output_schemas_of_objects_only() -> None:
    room = Room(direct_tools=True)
    schemas: list[Any] = [{"type": "object"}, {"type": "array"}, {}, None]
    room.learn(
        "clock",
        *({**NOW, "name": f"t{number}", "outputSchema": each} for number, each in enumerate(schemas) if each),
        {**NOW, "name": "t9"},
    )
    shown = ShownLists(room)
    for modern, types in ((True, ["object", "array"]), (False, ["object", "object"])):
        listed = shown.listing("tools/list", modern=modern) or {}
        found = [each["outputSchema"]["type"] for each in listed["tools"] if "outputSchema" in each]
        assert found == types


@in_real_time
async def test_the_one_tool_is_called_by_name_and_listens_to_whoever_asks() -> None:
    room = Room(direct_tools=("clock_now",))
    proxy = Proxy(room, hints=FOR_PEOPLE)
    async with anyio.create_task_group() as group:
        client = MemoryClient.met(proxy, group.start_soon)
        client.begin("tools/call", {"name": "clock_now", "arguments": {"a": 1}})
        assert (room.calls[-1].target.name, room.calls[-1].arguments) == ("clock_now", {"a": 1})
        client.begin("tools/call", {"name": "mcp", "arguments": {"search": "zebra"}})
        assert "greenroom" in client.outcome["content"][0]["text"], "in words for who reads it"
        changes = {"toolsListChanged": True}
        for number, (said, granted) in enumerate((({}, {}), ({"notifications": changes}, changes)), 1):
            client.begin("subscriptions/listen", {"_meta": ENVELOPE, **said})
            await anyio.wait_all_tasks_blocked()
            (told,) = client.fresh
            assert told["method"] == "notifications/subscriptions/acknowledged"
            assert told["params"]["notifications"] == granted
            assert client.session.in_flight == 1 + number, "the call, and what listens"
        client.begin("subscriptions/listen", {"_meta": ENVELOPE, "notifications": 7})
        assert client.outcome["code"] == -32602
        client.session.close()
    assert proxy._shared.clients == {}


@for_each("is_learning", [False, True])
@for_each("chosen", [False, ("clock_now",)])
def test_the_one_tool_waits_for_no_server_unless_some_tool_is_chosen(chosen: Any, is_learning: bool) -> None:
    room = Room(direct_tools=chosen, first_list_timeout=7.0)
    room.is_learning = is_learning
    assert Proxy(room).settling_time == (7.0 if chosen and is_learning else 0.0)
    room.config = msgspec.structs.replace(room.config, untrusted=("a/.mcp.json", "b/.mcp.json"))
    said = Proxy(room).instructions() or ""
    assert said.startswith("Greenroom leaves out a/.mcp.json, b/.mcp.json: its owner has not trusted it.")
