"""The gateway's MCP methods: both eras, bad messages, cancellation, progress. One conversation, no transport."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, in_virtual_time, run
from tests.support.door_rooms import NOW, FakeCall, FakeRoom, Hiding
from tests.support.memory_client import MemoryClient
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room
from tests.support.rows import for_each
from tests.support.stdio import until

from greenroom import Greenroom
from greenroom.actors.host import Declaration, ServerRequest
from greenroom.actors.router import LearnedEntry
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import ResourceEntry
from greenroom.config.model import Scrub, Settings
from greenroom.gateway.client_host import ClientHost
from greenroom.gateway.exposures import direct_results as answers
from greenroom.gateway.exposures.direct import Direct
from greenroom.gateway.exposures.direct_client import DirectClient
from greenroom.gateway.exposures.proxy import Proxy
from greenroom.gateway.input_required import StateSigner, SuspendableCall, SuspendedCalls
from greenroom.gateway.jobs import Job
from greenroom.gateway.message_origin import (
    attributed_request,
    error_data_of,
    result_without_ours,
    without_ours,
)
from greenroom.gateway.next_steps import Commands
from greenroom.gateway.result_meta import OURS
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.address import Address
from greenroom.protocol.bounds import ERROR_BYTES, LARGE_MESSAGE, LONG_META_BYTES, MESSAGE_VALUES
from greenroom.protocol.errors import Reach, RemoteError, RpcRefusal, ServerLost, UnknownResource
from greenroom.protocol.jsonrpc.terms import RpcFault
from greenroom.supervisor.room import port_of
from greenroom.testing import FakeServer
from greenroom.testing.room_inside import RoomInside
from greenroom.testing.servers import echo

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class McpClient(MemoryClient):
    """A client of the `mcp` tool over a room of the test, or of another exposure."""

    def __init__(self, exposure: Any = None, **options: Any) -> None:
        self.room = FakeRoom()
        super().__init__(exposure or Proxy(self.room), **options)

    def call(self, arguments: Any = None, *, id: Any = 1, **params: Any) -> list[Any]:
        """Call `mcp`. Returns what came back at once."""
        self.begin("tools/call", {"name": "mcp", "arguments": arguments, **params}, id=id)
        return self.fresh


@for_each("version", rpc.HANDSHAKE_VERSIONS)
def test_every_handshake_version_is_agreed_to(version: str) -> None:
    result = McpClient().ask_at_once("initialize", {"protocolVersion": version, "capabilities": {}})
    assert result == {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "serverInfo": {"name": "greenroom", "title": "Greenroom", "version": "9.9"},
    }


def test_our_results_satisfy_the_sdk_types() -> None:
    import mcp_types as types

    client = McpClient()
    types.InitializeResult.model_validate(client.ask_at_once("initialize", {"protocolVersion": "2025-11-25"}))
    types.DiscoverResult.model_validate(client.ask_at_once("server/discover", {"_meta": ENVELOPE}))
    types.ListToolsResult.model_validate(client.ask_at_once("tools/list", {"_meta": ENVELOPE}))
    types.CallToolResult.model_validate(client.call({"search": "issue"})[0]["result"])


@for_each(
    ("method", "params"),
    [("ping", {"_meta": ENVELOPE}), ("server/discover", {}), ("resources/list", None), ("zebra", {})],
)
def test_methods_that_do_not_exist_in_the_requests_era(method: str, params: Any) -> None:
    assert McpClient().ask_at_once(method, params)["code"] == -32601


def test_ids_come_back_as_they_were_written() -> None:
    for key in (0, -7, 12345678901234567890123, "a", "", "\u00e9\n"):
        assert McpClient().ask_at_once("ping", id=key) == {}


@for_each(
    ("line", "code"),
    [
        (b"nonsense", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32600),
        (b'{"params":' + b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp","arguments":[]}}', -32602),
    ],
)
def test_t26_a_bad_message_gets_an_error_and_the_next_one_is_served(line: bytes, code: int) -> None:
    client = McpClient()
    (answer,) = client.say(line)
    assert answer["error"]["code"] == code
    assert "Traceback" not in json.dumps(answer)
    assert client.ask_at_once("ping", id=2) == {}


def test_what_needs_no_answer_gets_none() -> None:
    client = McpClient()
    for line in (
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","method":"notifications/zebra","params":7}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        b'{"jsonrpc":"2.0","id":9,"result":{}}',
        b'{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}',
    ):
        assert client.say(line) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "id": json_values,
        "method": json_values
        | st.sampled_from(["ping", "initialize", "tools/list", "notifications/cancelled"]),
        "params": json_values,
        "result": json_values,
    },
)


@given(messages | json_values | st.binary(max_size=40))
def test_no_message_whatever_breaks_the_conversation(message: Any) -> None:
    client = McpClient()
    for answer in client.say(message if isinstance(message, bytes) else json.dumps(message).encode()):
        assert "error" not in answer or answer["error"]["code"] != -32603
    assert not [note for note in client.notes if "bug" in note]
    assert client.ask_at_once("ping", id="after") == {}


def test_a_call_is_answered_when_it_ends() -> None:
    client = McpClient()
    assert client.call({"tool": "clock_now"}) == []
    assert client.session.in_flight == 1
    client.room.calls[0].end({"content": [{"type": "text", "text": "noon"}]})
    answer = json.loads(client.lines[0])
    assert answer["id"] == 1
    assert answer["result"]["content"] == [{"type": "text", "text": "noon"}]
    assert client.session.in_flight == 0


def test_while_shutting_down_old_calls_are_answered_and_new_ones_refused() -> None:
    client = McpClient()
    client.call({"tool": "clock_now"}, id=1)
    client.session.refuse_new()
    assert "shutting down" in client.call({"tool": "clock_now"}, id=2)[0]["error"]["message"]
    client.room.calls[0].end({"content": []})
    assert json.loads(client.lines[-1])["id"] == 1


def test_numbers_beyond_64_bits_survive() -> None:
    client = McpClient()
    client.call({"tool": "clock_now"})
    client.room.calls[0].end(
        b'{"content":[{"type":"text","text":"x"}],"structuredContent":{"n":%d}}' % 10**30
    )
    answer = json.loads(client.lines[0])
    assert answer["result"]["_meta"]["greenroom/details"]["mcpResult"]["structuredContent"]["n"] == 10**30


class Broken(Proxy):
    """An exposure with a bug."""

    def __init__(self, *, later: bool) -> None:
        self.later = later

    def begin(self, job: Job) -> bool:
        if not self.later:
            raise ZeroDivisionError("secret detail")
        job.run(self._fail)
        return True

    async def _fail(self) -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError("secret detail")


@in_real_time
async def test_a_bug_of_ours_costs_one_request_and_is_noted() -> None:
    async with anyio.create_task_group() as group:
        for later in (False, True):
            client = McpClient(Broken(later=later))
            client.spawn = group.start_soon
            client.call({})
            await anyio.wait_all_tasks_blocked()
            (line,) = client.lines
            assert json.loads(line)["error"]["code"] == -32603
            assert b"secret" not in line
            assert "ZeroDivisionError at test_endpoint.py, line " in client.notes[0]
            assert "secret" not in client.notes[0]
            assert client.ask_at_once("ping", id=2) == {}


@in_real_time
async def test_t03_cancelling_a_job_that_waits_ends_its_task_alone() -> None:
    async with anyio.create_task_group() as group:
        client = McpClient()
        client.spawn = group.start_soon
        client.room.on_connect = lambda server: client.room.learn(server, {**NOW, "name": "hello"})
        client.call({"connect": "fresh"}, id=1)
        client.call({"connect": "fresh"}, id=2)
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await anyio.wait_all_tasks_blocked()
        assert [json.loads(line)["id"] for line in client.lines] == [2]


@pytest.mark.parametrize("name", ["direct", "proxy"])
@in_real_time
async def test_an_answered_call_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    entry = {"command": sys.executable, "args": ["-S", echo.__file__]}
    async with Greenroom.open({"mcpServers": {"a": entry}}, cache_path=":memory:", bootstrap=False) as room:
        await room.connect("a")
        direct = name == "direct"
        client = McpClient(Direct(port_of(room)) if direct else Proxy(port_of(room)))
        client.ask_at_once("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        params = {"name": "a_echo"} if direct else {"name": "mcp", "arguments": {"tool": "a_echo"}}
        gc.collect()
        gc.disable()
        others = [each for each in gc.get_objects() if isinstance(each, Job)]  # of tests before this one
        try:
            for number in range(10):
                client.say({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
                while client.session.in_flight:
                    await anyio.lowlevel.checkpoint()
            assert b'"result"' in client.lines[-1]
            left = [each for each in gc.get_objects() if isinstance(each, Job)]
            assert left == others
        finally:
            gc.enable()


# ---- what is left behind -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_long_error_of_a_client_is_not_read() -> None:
    client = McpClient()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(RpcRefusal, match="The client's error has more than 131,072 bytes"):
                await client.session.ask("x", {})

        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        error = {"code": 1, "message": "no", "data": [0] * ERROR_BYTES}
        client.say({"jsonrpc": "2.0", "id": "greenroom-1", "error": error})


@in_real_time
async def test_the_answer_of_a_client_is_its_own_and_a_request_is_taken_back() -> None:
    client, told, progress = McpClient(), list[Any](), list[Any]()

    async def ask(number: int) -> None:
        try:
            told.append((number, await client.session.ask("x", {"_meta": {"k": 1}}, progress.append)))
        except RpcRefusal as refusal:
            told.append((number, refusal.rpc_code, refusal.message, refusal.data))

    async with anyio.create_task_group() as group:
        for number in (1, 2, 3, 4):
            group.start_soon(ask, number)
            await anyio.wait_all_tasks_blocked()
        sent = [json.loads(line) for line in client.lines]
        assert [one["id"] for one in sent] == [f"greenroom-{n}" for n in (1, 2, 3, 4)]
        assert sent[1]["params"]["_meta"] == {"k": 1, "progressToken": "greenroom-2"}
        said = {"jsonrpc": "2.0", "method": "notifications/progress"}
        client.say({**said, "params": {"progressToken": "greenroom-2", "progress": 5}})
        client.say({**said, "params": {"progressToken": "other", "progress": 6}})
        client.say({"jsonrpc": "2.0", "id": "greenroom-2", "result": {"n": 2}})
        client.say({"jsonrpc": "2.0", "id": "greenroom-2", "result": {"n": "late"}})
        error = {"code": -7, "message": "no", "data": [1]}
        client.say({"jsonrpc": "2.0", "id": "greenroom-1", "error": error})
        client.say({"jsonrpc": "2.0", "id": "greenroom-3", "result": [1]})
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    told.sort(key=lambda one: one[0])
    refused = "The client's answer is not an object."
    assert told == [(1, -7, "no", [1]), (2, {"n": 2}), (3, -32603, refused, None)]
    assert [one["progress"] for one in progress] == [5]
    last = json.loads(client.lines[-1])
    assert (last["method"], last["params"]["requestId"]) == ("notifications/cancelled", "greenroom-4")
    assert len(client.lines) == 5


class Held(Proxy):
    """An exposure that keeps its jobs for the test to end. Its one list says which era it was asked in."""

    suspended: Any = ()

    def __init__(self, settling: float = 0.0) -> None:
        self._settling = settling
        self.jobs: list[Job] = []
        self.met: list[Any] = []
        self.heard_of: list[str] = []

    def capabilities(self) -> Mapping[str, Any]:
        return {}

    def instructions(self) -> str | None:
        return None

    def begin(self, job: Job) -> bool:
        self.jobs.append(job)
        return job.method != "prompts/get"

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [{"modern": modern}]} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        return self._settling

    async def settle(self) -> None:
        await anyio.sleep_forever()

    def came(self, client: Any) -> None:
        self.met.append(dict(client.capabilities))

    def heard(self, client: Any, method: str) -> None:
        self.heard_of.append(method)

    def left(self, client: Any) -> None:
        self.met.append("left")


# ---- the direct door, part by part ---------------------------------------------------------------------------------


class Watching:
    """A room as `DirectClient` sees it: no list of its servers names anything."""

    index = Index.build({}, {}, Settings())

    def __init__(self) -> None:
        self.watched: list[str] = []
        self.asked: list[str] = []
        self.answers = anyio.Event()
        self.catalogue = self.resources = self

    def locate(self, uri: str, server: str | None = None) -> Any:
        if uri.startswith("no:"):
            raise UnknownResource(uri)
        if uri.startswith("as:"):  # another spelling of what is listed
            return ResourceEntry("x:/listed", "s", "x:/own", {})
        return ResourceEntry(uri, "s", uri, {})

    async def watch(self, place: Any) -> None:
        self.watched.append(place.original)
        self.asked.append(place.original)
        await self.answers.wait()

    def unwatch(self, place: Any) -> None:
        self.watched.remove(place.original)


class Ended:
    """A job as an exposure sees it."""

    commands = Commands()
    subscription: Final = {"io.modelcontextprotocol/subscriptionId": 1}
    tasks = None
    ended = False
    in_task = False

    def __init__(self, *, modern: bool = False, method: str = "resources/read", client: Any = None) -> None:
        self.modern, self.method, self.client = modern, method, client
        self.said: list[Any] = []
        self.key, self.params = b"1", {}
        self.declared: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}

    def answer(self, result: Any) -> None:
        self.said.append(result)

    def fail(self, code: int, message: str, data: Any = None) -> None:
        self.said.append((code, message, data))

    def progress(self, params: Any) -> None:
        self.said.append(params)

    def concluded_by(self, step: Any, *what: Any) -> Any:
        return partial(step, *what)

    def let_go(self) -> None:
        self.said.append("let go")

    def follow(self, call: Any) -> None:
        self.said.append(call)


@in_real_time
async def test_a_resource_is_watched_once_for_a_client_and_no_more_when_it_leaves() -> None:
    room, told = Watching(), Asked()
    told.initialized = True
    client, jobs = DirectClient(cast("Any", room), cast("Any", told)), [Ended() for _ in range(4)]
    async with anyio.create_task_group() as group:
        for job, uri in zip(jobs, ("x:/1", "x:/1", "x:/2", "no:/"), strict=True):
            group.start_soon(client.subscribe, cast("Any", job), uri)
        await anyio.wait_all_tasks_blocked()
        room.answers.set()
    assert [job.said for job in jobs[:3]] == [[{}]] * 3
    assert jobs[3].said[0][0] == -32002
    asked = len(room.asked)
    await client.subscribe(cast("Any", Ended()), "x:/1")
    assert (len(room.asked), sorted(room.watched)) == (asked, ["x:/1", "x:/2"])
    own = {"io.modelcontextprotocol/subscriptionId": 9, "greenroom/server": "us"}
    for meta, shown in (({**own, "x": 1}, {"_meta": {"x": 1}}), (own, {})):
        client.tell_update("s", {"uri": "x:/1/part", "_meta": meta})
        assert told.told.pop() == ("notifications/resources/updated", {"uri": "x:/1/part", **shown})
    assert client.links.giver("x:/1/part") == "s", "a part of it is read where it is"
    for _ in range(2):
        client.unsubscribe(cast("Any", Ended()), "x:/2")
        assert room.watched == ["x:/1"]
    for _ in range(2):
        client.leave()
        assert room.watched == []


TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"


@in_real_time
async def test_an_open_stream_is_told_what_it_asked_for_under_its_own_id() -> None:
    room, told = Watching(), Asked()
    room.answers.set()
    client = DirectClient(cast("Any", room), cast("Any", told))
    meta = {"io.modelcontextprotocol/subscriptionId": 1}
    uris = ["x:/a", "no:/", "as:/spelled"]
    wanted = {"toolsListChanged": True, "promptsListChanged": 1, "resourceSubscriptions": uris}
    async with anyio.create_task_group() as group:
        group.start_soon(client.listen, cast("Any", Ended(client=told)), wanted)
        await anyio.wait_all_tasks_blocked()
        granted = {"toolsListChanged": True, "resourceSubscriptions": ["x:/a", "as:/spelled"]}
        acknowledged = {"notifications": granted, "_meta": meta}
        assert told.told == [("notifications/subscriptions/acknowledged", acknowledged)]
        told.told.clear()
        client.tell_change(TOOLS)
        client.tell_change(PROMPTS)
        assert told.told == [(TOOLS, {"_meta": meta})]
        told.told.clear()
        own = {"io.modelcontextprotocol/subscriptionId": 99, "x": 1}
        for server, uri in (
            ("s", "x:/a"), ("s", "x:/a/b"), ("s", "x:/ab"), ("t", "x:/a"), ("s", None), ("s", "x:/own"),
        ):  # fmt: skip
            client.tell_update(server, {"uri": uri, "_meta": own})
        assert told.told == [
            ("notifications/resources/updated", {"uri": uri, "_meta": {"x": 1, **meta}})
            for uri in ("x:/a", "x:/a/b", "as:/spelled")
        ]
        group.cancel_scope.cancel()
    told.told.clear()
    for is_initialized in (False, True):  # an older client is told plainly, once it has initialized
        told.initialized = is_initialized
        client.tell_change(PROMPTS)
    assert (told.told, room.watched) == ([(PROMPTS,)], [])


@in_virtual_time
async def test_what_servers_say_of_themselves_is_said_under_their_names_or_nothing_is() -> None:
    async with open_room({"a": FakeServer(), "b": FakeServer()}) as room:
        direct = Direct(port_of(room))
        assert direct.instructions() is None
        for server in ("a", "b"):
            RoomInside(room).machinery.router.ref.tell(
                LearnedEntry(ServerEntry(server, "", instructions=f"Use {server}."))
            )
        await room.settled()
        assert direct.instructions() == "# a\n\nUse a.\n\n# b\n\nUse b."


@in_virtual_time
async def test_a_first_list_waits_only_while_servers_are_discovered() -> None:
    server = FakeServer(initialize_latency=3.0)
    async with open_room({"a": server}, bootstrap=True, firstListTimeoutMs=7_000) as room:
        direct = Direct(port_of(room))
        await anyio.sleep(1.0)
        assert direct.settling_time == 7.0
        await direct.settle()
        assert direct.settling_time == 0.0
        assert anyio.current_time() == 3.0


@in_virtual_time
async def test_a_name_of_several_is_told_with_whose_it_may_be() -> None:
    async with open_room({"a": FakeServer(), "b": FakeServer()}, toolPrefix="none") as room:
        for server in "ab":
            await room.connect(server)
        client = McpClient(Direct(port_of(room)))
        answer = client.ask_at_once("tools/call", {"name": "echo"})
        assert answer["isError"]
        assert answer["_meta"]["greenroom/error"] == {"error": "ambiguous_tool"}
        assert "a_echo" in answer["content"][0]["text"]


@in_real_time
async def test_a_ticket_is_good_once_and_carries_only_its_own_clients_request() -> None:
    suspended, mine = SuspendedCalls(30.0), object()
    job, call, suspendable, ended = parked(suspended, mine)
    for client, server in ((object(), "s"), (mine, "t")):
        with pytest.raises(RpcRefusal, match="none of its calls is open"):
            await suspended.ask(client, server, {"method": "x"})
    got: list[Any] = []
    empty, again, twice = (Ended(client=mine) for _ in range(3))

    async def ask() -> None:
        got.append(await suspended.ask(mine, "s", {"method": "x"}))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert job.said[:2] == [call, "let go"]
        with pytest.raises(RpcFault, match="lacks an object 'question'"):
            suspended.resume(cast("Any", empty), job.said[2]["requestState"])
        assert comes_back(suspended, again, job) is suspendable
        assert comes_back(suspended, twice, job) is suspendable, "the same answer waits for the same call"
        with pytest.raises(RpcFault, match="answered before, in other words"):
            comes_back(suspended, Ended(client=mine), job, b'"decline"')
    assert got == [{"action": "accept"}]
    assert (suspendable.jobs, again.said[0]) == ([again, twice], call)
    suspendable.ended(call)
    assert ended == [(again, call), (twice, call)]
    with pytest.raises(RpcFault, match="has ended"):
        comes_back(suspended, Ended(client=mine), job)
    with pytest.raises(RpcRefusal):
        await suspended.ask(mine, "s", {"method": "x"})


@pytest.mark.parametrize("leaves_at", [None, 5.0])
@in_virtual_time
async def test_a_parked_call_is_given_up_when_its_client_does_not_come_back(leaves_at: float | None) -> None:
    suspended, mine = SuspendedCalls(30.0), object()
    _, call, suspendable, ended = parked(suspended, mine)

    async def leave() -> None:
        await anyio.sleep(leaves_at or 0.0)
        suspended.left(object())
        assert not call.cancelled
        suspended.left(mine)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        if leaves_at is not None:
            group.start_soon(leave)
        with pytest.raises(RpcRefusal, match="did not come back"):
            await suspended.ask(mine, "s", {"method": "x"})
    assert anyio.current_time() == pytest.approx(leaves_at or 30.0)
    assert call.cancelled
    suspendable.ended(call)
    assert (ended, len(suspended)) == ([], 0)


@in_virtual_time
async def test_a_withdrawn_request_leaves_the_way_to_the_outcome_of_its_call() -> None:
    async def withdraw(suspended: SuspendedCalls, mine: object) -> None:
        with anyio.move_on_after(5.0):
            await suspended.ask(mine, "s", {"method": "x"})

    suspended, mine = SuspendedCalls(30.0), object()
    # The call ends before the client comes back, or still runs then: it gets the outcome, once.
    for ends_first in (True, False):
        job, call, suspendable, ended = parked(suspended, mine)
        await withdraw(suspended, mine)
        if ends_first:
            suspendable.ended(call)
        again = Ended(client=mine)
        assert comes_back(suspended, again, job) is suspendable
        if not ends_first:
            suspendable.ended(call)
        assert (ended, call.cancelled) == ([(again, call)], False)
        with pytest.raises(RpcFault, match="has ended"):
            comes_back(suspended, Ended(client=mine), job)
    # The client does not come back in time: the next request drops the call.
    job, call, _, _ = parked(suspended, mine)
    await withdraw(suspended, mine)
    await anyio.sleep(26.0)
    parked(suspended, mine)
    await withdraw(suspended, mine)
    assert (call.cancelled, comes_back(suspended, Ended(client=mine), job)) == (True, None)
    suspended.left(mine)
    assert len(suspended) == 0, "nothing is kept for who has disconnected"


def test_a_servers_result_is_stamped_for_either_era_and_keeps_its_own() -> None:
    stamp, cached = {"io.modelcontextprotocol/serverInfo": "us"}, {"ttlMs": 0, "cacheScope": "private"}
    theirs = {"io.modelcontextprotocol/serverInfo": "them", "x": 1}
    own = {"resultType": "input_required", "ttlMs": 7, "content": [], "_meta": theirs}
    said = json.loads(rpc.for_modern(json.dumps(own).encode(), stamp, cached))
    assert said == {
        "resultType": "input_required",
        "ttlMs": 7,
        "cacheScope": "private",
        "content": [],
        "_meta": {"io.modelcontextprotocol/serverInfo": "us", "x": 1},
    }
    assert json.loads(rpc.for_modern(b'{"_meta":7}', stamp, {})) == {"resultType": "complete", "_meta": stamp}
    assert json.loads(rpc.for_handshake(json.dumps(own).encode())) == {"content": [], "_meta": {"x": 1}}
    assert json.loads(rpc.for_handshake(b'{"a":1,"_meta":{"io.modelcontextprotocol/y":1}}')) == {"a": 1}


def many_keys(more: bytes = b"") -> bytes:
    """A large result with one text and so many other members that nobody takes it apart."""
    keys = b",".join(b'"%d":1' % number for number in range(LARGE_MESSAGE // 8))
    return b'{"content":[],%b%b}' % (keys, more)


def test_a_large_result_of_many_members_passes_as_it_is() -> None:
    for result in (many_keys(), many_keys(b',"resultType":"complete"')):
        assert rpc.for_modern(result, {"a": 1}, {}) is rpc.for_handshake(result) is result
        assert result_without_ours(result) is result
    with pytest.raises(msgspec.ValidationError, match="its other members are too long"):
        result_without_ours(many_keys(b',"_meta":{"greenroom/details":1}'))


def test_what_is_long_in_the_meta_of_a_result_is_left_out_where_it_is_changed() -> None:
    meta = b'{"greenroom/details":1,"a":"%b"}' % (b"x" * LONG_META_BYTES)
    result = b'{"content":[],"_meta":%b}' % meta
    assert json.loads(result_without_ours(result)) == {"content": [], "_meta": {}}
    assert json.loads(rpc.for_modern(result, {"b": 1}, {}))["_meta"] == {"b": 1}
    assert json.loads(rpc.for_handshake(result)) == {"content": []}
    assert json.loads(result_without_ours(b'{"_meta":{"\\u0067reenroom/x":1,"a":2}}')) == {"_meta": {"a": 2}}


LONG_TEXT = " " * (1 << 18)
CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}


@pytest.mark.parametrize(
    "message",
    [
        {**CALL, "params": {"name": "mcp", "arguments": {"search": "x"}}},
        {
            **CALL,
            "params": {"name": "mcp", "arguments": {"tool": "no", "args": {"x": ["é\ud83d"]}}, "_meta": {}},
        },
        {**CALL, "params": {"name": "mcp", "arguments": {"tool": "no", "args": f'{{"x":{LONG_TEXT}1}}'}}},
        {**CALL, "params": {"name": "mcp", "arguments": {"tool": 7, "args": "{"}}},
        {**CALL, "params": {"name": "mcp", "arguments": []}},
        {**CALL, "params": {"name": "mcp"}},
        {**CALL, "params": {"name": 7}},
        {**CALL, "params": {"name": "another", "arguments": {}}},
        {**CALL, "params": []},
        {**CALL, "params": {"_meta": 7}},
        {**CALL, "method": "prompts/get", "params": {"name": "x"}},
        {**CALL, "method": "no/such", "params": {}},
        {**CALL, "id": {}, "params": {"name": "mcp"}},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": "greenroom-7", "result": {}},
        [CALL],
        b'{"id":1,"params":{"x":',
    ],
    ids=repr,
)
@in_real_time
async def test_a_large_line_is_answered_like_a_short_one(message: Any) -> None:
    line = message if isinstance(message, bytes) else json.dumps(message).encode()
    one, other = McpClient(), McpClient()
    async with anyio.create_task_group() as group:
        one.spawn = other.spawn = group.start_soon
        one.session.receive(line)
        await other.session.receive_large(bytearray(line))
        await until(lambda: len(other.lines) == len(one.lines))
    assert list(map(_but_words, other.lines)) == list(map(_but_words, one.lines))
    assert one.notes == other.notes == []


def _but_words(line: bytes) -> Any:
    """An answer; of an error only its code, for the words may differ."""
    said = json.loads(line)
    return (said["id"], said["error"]["code"]) if "error" in said else said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"method": "initialize", "id": 1}, "not initialize"),
        ({"method": "notifications/x"}, "not notifications/x"),
        (
            {
                **CALL,
                "params": {
                    "name": "mcp",
                    "arguments": {"tool": "x", "args": '{"x":[' + "[]," * MESSAGE_VALUES},
                },
            },
            f"more than {MESSAGE_VALUES:,} values and keys",
        ),
        (
            {**CALL, "params": {"name": "mcp", "arguments": {"tool": "x", "args": "[" + LONG_TEXT}}},
            "truncated",
        ),
        (
            {**CALL, "params": {"name": "x", "inputResponses": [0] * (LARGE_MESSAGE // 2)}},
            "inputResponses has more than 150,000 values and keys",
        ),
        (
            {**CALL, "params": {"name": "mcp", "arguments": {"tool": "x", "args": "\t" * 2_000_001}}},
            "args is a text with more than 2,000,000 escaped characters",
        ),
    ],
    ids=["initialize", "notification", "values in a text", "no json in a text", "responses", "escapes"],
)
@in_real_time
async def test_what_may_not_be_long_is_refused_with_the_reason(message: Any, said: str) -> None:
    client = McpClient()
    async with anyio.create_task_group() as group:
        client.spawn = group.start_soon
        await client.session.receive_large(json.dumps(message).encode())
        await until(lambda: bool(client.lines))
    (answer,) = map(json.loads, client.lines)
    assert said in answer["error"]["message"]


# ---- a client that another gateway has had ---------------------------------------------------------------------------


@pytest.mark.parametrize("initialized", [False, True])
@in_real_time
async def test_what_a_client_said_to_a_gateway_that_is_gone_counts_here(
    initialized: bool,
) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}
    said = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).encode()
    client = McpClient(exposure := Held())
    client.session.initialize_again(said, initialized=initialized, gateways=2)
    assert (exposure.met, client.session.initialized, client.session.modern) == (
        [{"roots": {}}],
        initialized,
        False,
    )
    assert client.lines == [], "it knows the answer"
    async with anyio.create_task_group() as group:
        group.start_soon(client.session.ask, "roots/list", {})
        await anyio.wait_all_tasks_blocked()
        assert json.loads(client.lines[0])["id"] == "greenroom-2000000001"
        group.cancel_scope.cancel()
    for nothing in (b"", b"[]", b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'):
        other = McpClient(exposure := Held())
        other.session.initialize_again(nothing, initialized=True, gateways=0)
        assert (exposure.met, other.session.initialized, other.lines) == ([], False, [])


# ---- what cannot be read ---------------------------------------------------------------------------------------------


@for_each(
    ("line", "id_"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{', 7),
        (b'{"jsonrpc":"2.0","id":"a","method":', "a"),
        (b'{"method":"tools/call"', None),
        (b"{", None),
    ],
)
def test_what_is_no_json_is_answered_under_the_id_that_its_head_shows(line: bytes, id_: Any) -> None:
    client = McpClient()
    (answer,) = client.say(line)
    assert (answer["id"], answer["error"]["code"]) == (id_, -32700)
    client.session.refuse_line(line, "too long")
    said = json.loads(client.lines[-1])
    assert (said["id"], said["error"]["code"], said["error"]["message"]) == (id_, -32600, "too long")


# ---- requests of servers --------------------------------------------------------------------------------------------


class Hidden(FakeRoom):
    """Of what servers say, the word `secret` is hidden at the doors in `doors`."""

    def __init__(self, *doors: Scrub, **settings: Any) -> None:
        self.doors = doors
        super().__init__(**settings)

    def scrubber(self, server: str, door: Scrub, /) -> Any:
        if door not in self.doors:
            return None
        return Hiding()


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("door", [Scrub.MCP, Scrub.ALL])
@in_real_time
async def test_a_request_names_its_server_and_loses_credentials_at_its_door(
    door: Scrub, modern: bool
) -> None:
    for doors, message in (((door,), "Is *** right?"), ((), "Is secret right?")):
        host, client = ClientHost(Hidden(*doors), door=door), Asked(modern=modern, elicitation={})
        host.came(cast("Any", client))
        vars(host.suspended)["ask"] = client.ask
        call: Any = object()
        params = {"message": "Is secret right?"}
        request = ServerRequest(Address("a"), "elicitation/create", params, call=call)
        assert await host.answer(request) == {"action": "accept", "_meta": {"own": 1}}
        said = {"message": f"[a] {message}", "_meta": {"greenroom/server": "a"}}
        if modern:
            what = {"method": "elicitation/create", "params": said}
            assert client.asked.pop() == (client, "a", what, call)
        else:
            assert client.asked.pop() == ("elicitation/create", said, None)
            await host.answer(ServerRequest(Address("a"), "elicitation/create", params, is_ours=True))
            assert client.asked.pop() == ("elicitation/create", params, None), "it is asked in our own name"
        news = {"data": "a secret", "_meta": {"greenroom/x": 1}}
        host.heard(Address("a"), "notifications/message", news)
        ((_, told),) = client.told
        assert told["data"] == ("a ***" if doors else "a secret")
        assert "greenroom/x" not in told.get("_meta", {})


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("modern", [False, True])
@in_virtual_time
async def test_servers_are_initialized_with_what_the_client_can_do(modern: bool, passes: bool) -> None:
    extensions = {"extensions": {"a": {}}}
    async with open_room({}) as room:
        for asked in ({}, {"roots": {"listChanged": True}}, {"elicitation": {}, "sampling": {}}):
            host = ClientHost(port_of(room), passes_extensions=passes)
            host.came(cast("Any", Asked(modern=modern, **asked, **extensions, tools={})))
            found = host.declaration(Address("a"))
            assert found.capabilities == {**asked, **(extensions if passes else {})}
            assert found.by_handshake is (bool(asked) and not modern)
            assert found.log_level == (None if modern else "info")


# ---- calls that wait for their client --------------------------------------------------------------------------------


@in_virtual_time
async def test_the_oldest_request_to_a_server_carries_its_request_unless_it_says_of_which_call_it_is() -> (
    None
):
    suspended, client = SuspendedCalls(30.0), object()
    whose: list[tuple[Any, Any]] = [
        (object(), "s"),
        (client, "t"),
        (client, "s"),
        (client, None),
        (client, "s"),
    ]
    made = [parked(suspended, *each) for each in whose]
    for call, carrier in ((made[4][1], 4), (None, 2), (None, 3), (made[0][1], None)):
        with anyio.move_on_after(1.0):
            try:
                await suspended.ask(client, "s", {"method": "x"}, call)
            except RpcRefusal:
                assert carrier is None
        carried = [number for number, (job, *_) in enumerate(made) if len(job.said) > 1]
        for job, *_ in made:
            del job.said[1:]
        assert carried == ([] if carrier is None else [carrier])


# ---- who speaks ------------------------------------------------------------------------------------------------------


@for_each("letter", range(len("greenroom/x")))
@for_each("spelling", ["\\u%04x", "\\u%04X"])
def test_however_a_key_of_ours_is_spelled_it_is_taken_out(letter: int, spelling: str) -> None:
    key = "greenroom/x"
    spelled = key[:letter] + spelling % ord(key[letter]) + key[letter + 1 :]
    client = McpClient(exposure := Held())
    client.call({})
    exposure.jobs[0].answer_raw(b'{"content":[],"_meta":{"%b":1,"own":2}}' % spelled.encode())
    assert json.loads(client.lines[0])["result"] == {"content": [], "_meta": {"own": 2}}


# ---- which era ------------------------------------------------------------------------------------------------------


def test_each_request_is_of_the_era_that_it_says_and_a_client_is_met_when_it_says_something_new() -> None:
    client = McpClient(exposure := Held())
    hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}
    newer = {"_meta": {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}}}
    stamps, listed_by = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}, dict[str, Any]()
    for _ in range(2):
        assert client.ask_at_once("initialize", hello)["protocolVersion"] == "2025-11-25"
        assert (client.session.modern, client.session.initialized) == (False, False)
        assert client.ask_at_once("tools/list") == {"tools": [{"modern": False}]}
        listed = client.ask_at_once("tools/list", newer)
        assert client.session.modern
        listed_by = listed.pop("_meta")
        assert listed_by["io.modelcontextprotocol/serverInfo"]["name"] == "greenroom"
        assert listed == {"tools": [{"modern": True}], **stamps}
    assert exposure.met == [{"roots": {}}], "it says the same of itself in both"
    found = client.ask_at_once("server/discover", {"_meta": ENVELOPE})
    assert (found["supportedVersions"], found["_meta"]) == (["2026-07-28"], listed_by)
    assert stamps.items() <= found.items()
    assert exposure.met == [{"roots": {}}, {}], "and now something else"
    for method in ("initialize", "ping"):
        assert client.ask_at_once(method, {**hello, **newer})["code"] == -32601
    for params in ({}, newer):
        assert client.ask_at_once("prompts/list", params)["code"] == -32601
    assert (
        client.ask_at_once("initialize", {"protocolVersion": "1999-01-01"})["protocolVersion"] == "2025-11-25"
    )
    for said in ("2031-01-01", 7):
        error = client.ask_at_once("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": said}})
        assert (error["code"], error["data"]) == (
            -32022, {"supported": ["2026-07-28"], "requested": str(said)},
        )  # fmt: skip
    for method, is_initialized in (("x", False), ("initialized", True)):
        client.say({"jsonrpc": "2.0", "method": f"notifications/{method}"})
        assert client.session.initialized is is_initialized
    assert exposure.heard_of == ["notifications/x"]


def test_what_is_told_is_stamped_for_its_era_and_keeps_what_was_said() -> None:
    for meta, fields in (
        ({}, {"content", "_meta"}),
        ({"_meta": ENVELOPE}, {"content", "_meta", "resultType"}),
    ):
        (answer,) = McpClient().call({}, **meta)
        assert set(answer["result"]) == fields
        assert answer["result"]["_meta"]["greenroom/details"]["mode"] == "status"
        assert ("io.modelcontextprotocol/serverInfo" in answer["result"]["_meta"]) is bool(meta)
    for method, params, is_cached in (
        ("resources/read", {"uri": "x:/"}, True),
        ("tools/call", {"name": "x"}, False),
    ):
        client = McpClient(exposure := Held())
        client.say({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": ENVELOPE}})
        exposure.jobs[0].answer_raw(b'{"contents":[]}')
        result = json.loads(client.lines[0])["result"]
        assert (result.get("ttlMs"), result.get("cacheScope")) == (
            (0, "private") if is_cached else (None, None)
        )


# ---- what is in flight ----------------------------------------------------------------------------------------------


def test_t21_a_cancelled_call_is_cancelled_at_the_server_never_answered_and_its_id_is_free() -> None:
    client = McpClient(max_open=1)
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
    client.call({"tool": "clock_now"}, id="x")
    for _ in range(2):
        assert client.say(cancelled) == []
        assert (client.room.calls[0].cancelled, client.session.in_flight) == (True, 0)
    client.room.calls[0].end({"content": []})
    assert client.lines == []
    client.call({"tool": "clock_now"}, id="x")
    client.room.calls[1].end({"content": []})
    assert [json.loads(line)["id"] for line in client.lines] == ["x"]
    for params in ({}, {"requestId": None}, [], {"requestId": {}}):
        assert client.say({**cancelled, "params": params}) == []
    assert [note.partition(": ")[0] for note in client.notes] == ["ignored a cancellation"]


def test_calls_in_flight_have_different_ids_and_are_bounded_and_end_with_their_client() -> None:
    client = McpClient(max_open=2)
    for number, refused in (
        (1, None),
        (1, "still in flight"),
        (2, None),
        (3, "Too many calls in flight (2)"),
    ):
        answers = client.call({"tool": "clock_now"}, id=number)
        assert [refused in each["error"]["message"] for each in answers] == [True] * (refused is not None)
    assert len(client.room.calls) == 2
    client.room.calls[0].end({"content": []})
    for message in (
        {"id": 4, "method": "tools/call", "params": {"name": "mcp", "arguments": {"tool": "no_such"}}},
        {"id": 5, "method": "tools/call", "params": {"name": "zebra"}},
        {"id": 6, "method": "resources/read", "params": {"uri": "x:/"}},
    ):
        client.say({"jsonrpc": "2.0", **message})
        assert client.session.in_flight == 1, "what is refused at once is in flight no more"
    said = len(client.lines)
    client.session.close()
    assert client.room.calls[1].cancelled
    client.room.calls[1].end({"content": []})
    assert len(client.lines) == said


@pytest.mark.parametrize("raw", [False, True])
def test_an_answer_the_client_has_no_room_for_becomes_a_short_error(raw: bool) -> None:
    client = McpClient(exposure := Held())
    client.takes_long_lines = False
    client.call({}, id=5)
    if raw:
        exposure.jobs[0].answer_raw(b'{"content":["%b"]}' % (b"x" * 9000))
    else:
        exposure.jobs[0].answer({"content": ["x" * 9000]})
    (answer,) = map(json.loads, client.lines)
    assert (answer["id"], answer["error"]["code"]) == (5, -32000)
    assert "was dropped" in answer["error"]["message"]


def test_progress_goes_to_who_asked_for_it_under_its_own_token_while_it_waits_and_reads() -> None:
    client = McpClient(exposure := Held())
    for key, meta in ((1, {}), (2, {"_meta": {"progressToken": "mine"}})):
        client.call({}, id=key, **meta)
    unasked, asked = exposure.jobs
    theirs = {"progress": 1, "progressToken": 77, "message": "half", "_meta": {f"{OURS}x": 1, "theirs": 2}}
    for job in (unasked, asked):
        job.progress(theirs)
    (told,) = map(json.loads, client.lines)
    assert told["method"] == "notifications/progress"
    assert told["params"] == {**theirs, "progressToken": "mine", "_meta": {"theirs": 2}}
    client.busy = True
    asked.progress({"progress": 2})
    client.session.tell("notifications/y")
    assert len(client.lines) == 1, "who is behind with reading is told nothing more"
    client.busy = False
    asked.answer({"content": []})
    asked.progress({"progress": 3})
    assert len(client.lines) == 2


@pytest.mark.parametrize("modern", [False, True])
@in_virtual_time
async def test_first_lists_wait_until_the_same_moment_and_are_requests_like_others(modern: bool) -> None:
    params = {"_meta": ENVELOPE} if modern else {}
    client = McpClient(exposure := Held(10.0), max_open=3)
    came: list[tuple[float, int, Any]] = []
    async with anyio.create_task_group() as group:
        client.spawn = group.start_soon
        for key, method, pause in (
            (1, "tools/list", 4.0), (2, "prompts/list", 5.9), (3, "tools/list", 0.0), (3, "tools/list", 0.0),
            (4, "tools/list", 0.2), (5, "tools/list", 0.1),
        ):  # fmt: skip
            client.say({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
            await anyio.sleep(pause)
            new = sorted(map(json.loads, client.lines[len(came) :]), key=lambda answer: answer["id"])
            came += [(round(anyio.current_time(), 1), answer["id"], answer) for answer in new]
        # The id of the second 3 is taken, and for 4 there is no place. At 10 s all are answered, 5 at once.
        assert [(at, key, "error" in answer) for at, key, answer in came] == [
            (9.9, 3, True), (10.1, 1, False), (10.1, 2, True), (10.1, 3, False), (10.1, 4, True), (10.2, 5, False),
        ]  # fmt: skip
        listed, refused = came[1][2]["result"], came[2][2]["error"]
        assert (listed["tools"], "ttlMs" in listed) == ([{"modern": modern}], modern)
        assert refused["code"] == -32601
        client = McpClient(exposure)
        client.spawn = group.start_soon
        client.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert client.session.in_flight == 1
        client.session.close()
    assert (client.session.in_flight, client.lines, client.notes) == (0, [], [])


# ---- requests to a client ------------------------------------------------------------------------------------------

UNREADABLE = (-32603, "The client's answer cannot be read: ")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ('"result":{"n":1}}', {"n": 1}),
        ('"result":{"n":1},"error":null}', {"n": 1}),
        ('"error":{"code":"-7","message":5}}', (-32603, "5")),
        ('"error":{"code":-7}}', (-7, "The client refused.")),
        ('"error":"no"}', (-32603, "The client refused.")),
        ('"x":1}', (-32603, "The client's answer cannot be read: Invalid request: it has no method.")),
        ('"result":[1]}', (-32603, "The client's answer is not an object.")),
        ('"result":{"a":}}', UNREADABLE),
        ('"result":', UNREADABLE),
        (f'"result":{{"a":"{"x" * (1 << 20)}","b":}}}}', UNREADABLE),
    ],
    ids=lambda value: str(value)[:30],
)
@in_real_time
async def test_an_odd_answer_of_a_client_is_read_as_far_as_it_can_be(
    said: str, heard: Any, large: bool
) -> None:
    line = f'{{"jsonrpc":"2.0","id":"greenroom-1",{said}'.encode()
    client, told = McpClient(), list[Any]()

    async def ask() -> None:
        try:
            told.append(await client.session.ask("x", {}))
        except RpcRefusal as refusal:
            told.append((refusal.rpc_code, refusal.message))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        for other in ("1", 1, "1-greenroom", "greenroom-2", "greenroom-"):
            client.say({"jsonrpc": "2.0", "id": other, "result": {"n": "another's"}})
        for progress in ({"progressToken": "greenroom-1", "progress": 1}, []):  # nobody asked for it
            client.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        await anyio.wait_all_tasks_blocked()
        assert told == []
        if large:
            await client.session.receive_large(bytearray(line))
        else:
            client.session.receive(line)
    (outcome,) = told
    if isinstance(heard, dict):
        assert outcome == heard
    else:
        assert (outcome[0], outcome[1].startswith(heard[1])) == (heard[0], True)
    assert len(client.lines) == 1, "answers and notifications are not answered"


@in_real_time
async def test_a_large_answer_of_a_client_is_read_whole() -> None:
    client, heard = McpClient(), list[Any]()
    said = {"jsonrpc": "2.0", "id": "greenroom-1", "result": {"a": 1, "x": "y" * (1 << 20)}}

    async def ask() -> None:
        heard.append(await client.session.ask("roots/list", {}))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await client.session.receive_large(bytearray(json.dumps(said).encode()))
    assert heard == [said["result"]]


@in_real_time
async def test_a_request_that_cannot_be_written_and_one_whose_client_leaves_are_over() -> None:
    client, told = McpClient(), list[str]()

    async def ask() -> None:
        try:
            await client.session.ask("roots/list", {})
        except RpcRefusal as refusal:
            told.append(refusal.message)

    with pytest.raises(TypeError):
        await client.session.ask("roots/list", {"odd": object()})
    assert client.lines == []
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        client.session.close()
    assert (told, len(client.lines)) == (["The client is gone."], 1)


# ---- a job -----------------------------------------------------------------------------------------------------------


class Ends:
    """Takes the ends of jobs."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def job_done(self, job: Job, result: Any, error: Any) -> None:
        self.told.append(result if error is None else (error.code, error.message, error.data))

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        return b"modern " + result if modern else result

    def line_for(self, job: Job, result: Any, *, is_large: bool = False) -> bytes:
        return json.dumps(result).encode()

    def job_line(self, job: Job, line: bytes) -> None:
        self.told.append(line)

    def job_progress(self, job: Job, params: Any) -> None:
        self.told.append(params)

    def job_broke(self, job: Job, error: Exception) -> None:
        self.told.append(str(error))


@in_real_time
async def test_a_job_that_ends_while_its_large_answer_is_made_is_answered_once() -> None:
    made = threading.Event()

    class Slow(Ends):
        def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
            made.wait(PATIENCE)
            return result

    ends = Slow()
    job = Job(ends, lambda _work: None, b"1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.answer_large, b"{}")
        await anyio.wait_all_tasks_blocked()
        job.fail(-1, "no")
        made.set()
    assert ends.told == [(-1, "no", None)]


@in_real_time
async def test_a_large_answer_of_a_job_that_becomes_a_task_while_it_is_made_is_made_for_the_task() -> None:
    begun, made = threading.Event(), threading.Event()

    class Slow(Ends):
        def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
            begun.set()
            made.wait(PATIENCE)
            return b"for the client"

    class TaskEnds(Ends):
        def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
            return b"for the task"

    client, task = Slow(), TaskEnds()
    job = Job(client, lambda _work: None, b"1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.answer_large, b"{}")
        await anyio.to_thread.run_sync(begun.wait)
        job.goes_to(task)
        made.set()
    assert (client.told, task.told) == ([], [b"for the task"])


class Followed:
    """A call that a job follows, and that knows the job, as its callback does."""

    job: Job | None = None
    news = None
    cancels = 0

    def cancel(self) -> None:
        self.cancels += 1


def followed() -> tuple[Job, Any, Ends]:
    ends, call = Ends(), Followed()
    call.job = job = Job(ends, lambda _work: None, b"1")
    job.follow(cast("Any", call))
    return job, call, ends


@for_each(
    ("end", "told", "cancels"),
    [
        (lambda job: job.answer({"x": 1}), {"x": 1}, 0),
        (lambda job: job.answer_raw(b"{}"), b"{}", 0),
        (lambda job: job.answer_raw(b"{}", modern=True), b"modern {}", 0),
        (lambda job: job.fail(-1, "no", {"d": 1}), (-1, "no", {"d": 1}), 0),
        (lambda job: job.broke(RpcFault(-2, "odd", [1])), (-2, "odd", [1]), 1),
        (lambda job: job.broke(ValueError("ours")), "ours", 1),
        (lambda job: job.cancel(), None, 1),
    ],
    ids=["answer", "raw", "modern", "fail", "fault", "bug", "cancel"],
)
def test_a_job_ends_once_and_then_follows_nothing(end: Any, told: Any, cancels: int) -> None:
    gc.disable()  # a cycle would be found only by a collection
    try:
        job, call, ends = followed()
        gone = weakref.ref(call)
        end(job)
        assert ends.told == [told] * (told is not None)
        assert (job.ended, call.cancels) == (True, cancels)
        job.answer({"late": 1})
        job.answer_raw(b"late")
        job.fail(-3, "late")
        job.broke(ValueError("late"))
        job.follow(call)
        job.cancel()
        assert (len(ends.told), call.cancels) == (told is not None, cancels)
        del job, call
        assert gone() is None
    finally:
        gc.enable()


def test_a_job_that_lets_its_call_go_does_not_cancel_it() -> None:
    job, call, _ = followed()
    job.let_go()
    job.cancel()
    assert call.cancels == 0


@pytest.mark.parametrize("way", ["answers", "breaks", "forgets", "is cancelled", "is broken", "follows"])
@in_virtual_time
async def test_t38_work_that_is_handed_on_to_another_task_still_ends_its_job_once(way: str) -> None:
    ends, over = Ends(), list[str]()
    async with anyio.create_task_group() as group:
        job = Job(ends, group.start_soon, b"1")

        async def first() -> None:
            await anyio.sleep(1)
            job.run(second)

        async def second() -> None:
            try:
                await anyio.sleep(1)
                if way == "answers":
                    job.answer({})
                elif way == "breaks":
                    raise ValueError("broken")
                elif way == "follows":
                    job.follow(cast("Any", Followed()))
                elif way != "forgets":
                    await anyio.sleep_forever()
            finally:
                over.append("over")

        job.run(first)
        await anyio.sleep(5)
        if way == "is cancelled":
            job.cancel()
        if way == "is broken":
            job.broke(ValueError("broken"))
    told = {
        "answers": [{}],
        "breaks": ["broken"],
        "is broken": ["broken"],
        "forgets": ["tools/call was left without an answer"],
    }
    assert (ends.told, over) == (told.get(way, []), ["over"])


def test_work_is_given_outside_a_task_and_what_is_cancelled_before_it_begins_never_begins(
    backend: str,
) -> None:
    ends, waiting = Ends(), list[Any]()

    async def work(job: Job) -> None:
        job.answer({})

    for is_cancelled in (False, True):
        job = Job(ends, waiting.append, b"1")
        job.run(partial(work, job))  # no loop runs here, as no task runs in a callback
        if is_cancelled:
            job.cancel()
    for task in waiting:
        run(backend, task)
    assert ends.told == [{}]


# ---- who speaks ------------------------------------------------------------------------------------------------------


def test_nobody_speaks_in_our_name_and_who_asks_says_who_it_is() -> None:
    forged, named = {"own": 1, "greenroom/server": "a", "greenroom/x": 2}, {"own": 1, "greenroom/server": "s"}
    assert without_ours({"a": 1, "_meta": forged}) == {"a": 1, "_meta": {"own": 1}}
    for raw in (
        b'["greenroom/x"]',
        b'{"greenroom/x":1}',
        b'{"_meta":"greenroom/x"}',
        b'{"_meta":{"\\u00e9":1}}',
    ):
        assert result_without_ours(raw) is raw
    for method, asked in (
        ("elicitation/create", {"message": "[s] Sure?", "_meta": named}),
        ("sampling/createMessage", {"message": "Sure?", "_meta": named}),
        ("roots/list", {"message": "Sure?", "_meta": {"own": 1}}),
    ):
        assert attributed_request("s", method, {"message": "Sure?", "_meta": forged}) == asked
    assert attributed_request("s", "elicitation/create", {"message": 7})["message"] == 7
    for data in ([1], [], 0, "", False):
        assert error_data_of("s", data) == data
    for data, told in (
        (None, {}),
        ({}, {}),
        ({"greenroom/server": "t", "greenroom/x": 1, "y": 2}, {"y": 2}),
        ({"elicitations": [{"message": "Log in"}, 7]}, {"elicitations": [{"message": "[s] Log in"}, 7]}),
    ):
        assert error_data_of("s", data) == {**told, "greenroom/server": "s"}


def test_how_each_end_of_a_call_is_told() -> None:
    tool, read, newer = Ended(method="tools/call"), Ended(), Ended(modern=True)
    lost = ServerLost("gone", server="s", reach=Reach.SENT)
    details = {"error": "call_failed", "server": "s", "reach": "sent"}
    for job in (tool, read):
        answers.refuse(cast("Any", job), lost)
        answers.fail(cast("Any", job), RemoteError("no", server="s", rpc_code=-7, data={"d": 1}))
    theirs = (-7, "[s] no", {"d": 1, "greenroom/server": "s"})
    text = [{"type": "text", "text": "gone"}]
    assert tool.said == [{"content": text, "isError": True, "_meta": {"greenroom/error": details}}, theirs]
    assert read.said == [(-32603, "gone", details), theirs]
    for job, code, data in ((read, -32002, {"uri": "x:/"}), (newer, -32602, {"error": "resource_not_found"})):
        answers.refuse(cast("Any", job), UnknownResource("x:/"))
        assert (job.said[-1][0], job.said[-1][2]) == (code, data)


# ---- requests of servers --------------------------------------------------------------------------------------------


@in_real_time
async def test_a_client_is_asked_only_for_what_it_declared_and_told_what_is_not_the_doors() -> None:
    updates: list[Any] = []

    def on_update(_client: Any, server: str, params: Any) -> None:
        updates.append((server, params))

    room, changed = FakeRoom(), list[str]()
    room.roots_changed = lambda: changed.append("roots")
    host, client = ClientHost(room, on_update), Asked(roots={"listChanged": True}, x={})
    news = ServerRequest(Address("a"), "roots/list", {"_meta": {"progressToken": 0}})
    for is_here in (False, True, False):
        if is_here:
            host.came(cast("Any", client))
            await host.answer(ServerRequest(Address("a"), "roots/list", {}))
            await host.answer(news)
            assert [(method, progress is not None) for method, _, progress in client.asked] == [
                ("roots/list", False), ("roots/list", True),
            ]  # fmt: skip
        else:
            host.left(cast("Any", client))
            assert host.declaration(Address("a")) == Declaration(), "nobody is there to be asked"
        for method in ("sampling/createMessage", "tools/list", *(["roots/list"] if not is_here else [])):
            with pytest.raises(RpcRefusal) as caught:
                await host.answer(ServerRequest(Address("a"), method, {}))
            assert caught.value.rpc_code == -32601
        for kind in ("tools/list_changed", "resources/list_changed", "prompts/list_changed"):
            host.heard(Address("a"), f"notifications/{kind}", None)
        host.heard(Address("a"), "notifications/subscriptions/acknowledged", {})
        host.heard(Address("a"), "notifications/resources/updated", {"uri": "u"})
        host.heard(Address("a"), "notifications/x", None)
        host.heard(Address("a"), "notifications/message", {"level": "info"})
    assert client.told == [("notifications/x", None), ("notifications/message", {"level": "info"})]
    assert updates == [("a", {"uri": "u"})]
    for kind in ("initialized", "roots/list_changed", "x"):
        host.said(f"notifications/{kind}")
    assert changed == ["roots"]


class Asked:
    """A client that accepts whatever it is asked."""

    def __init__(self, *, modern: bool = False, **capabilities: Any) -> None:
        self.modern, self.capabilities, self.initialized = modern, capabilities, False
        self.version = rpc.MODERN_VERSIONS[0] if modern else rpc.HANDSHAKE_VERSIONS[-1]
        self.asked: list[Any] = []
        self.told: list[Any] = []

    def task_of(self, _call: object) -> None:
        return None

    async def ask(self, *what: Any) -> Any:
        self.asked.append(what)
        return {"action": "accept", "_meta": {"greenroom/server": "forged", "own": 1}}

    def tell(self, *what: Any) -> None:
        self.told.append(what)


# ---- calls that wait for their client --------------------------------------------------------------------------------


def parked(
    suspended: SuspendedCalls, client: object, server: str = "s"
) -> tuple[Any, Any, SuspendableCall, list[Any]]:
    """A call of this client that may be suspended: its job, the call, the two together, and how they ended."""
    ended: list[Any] = []
    job, call = Ended(client=client), FakeCall(cast("Any", None), {}, lambda _: None, None)
    suspendable = SuspendableCall(suspended, cast("Any", job), server, lambda *how: ended.append(how))
    suspendable.follow(cast("Any", call))
    return job, call, suspendable, ended


def test_a_call_that_has_ended_is_cancelled_by_nobody_and_its_progress_goes_to_the_request_that_is_open() -> (
    None
):
    job, call, suspendable, ended = parked(SuspendedCalls(30.0), object())
    suspendable.progress({"progress": 1})
    suspendable.suspend({})
    suspendable.progress({"progress": 2})
    suspendable.ended(call)
    suspendable.follow(call)
    suspendable.drop()
    assert (job.said, call.cancelled, ended) == ([call, {"progress": 1}, "let go", {}], False, [])
    later: Any = Ended()
    suspendable.carry(later)
    assert ended == [(later, call)], "who comes back is told"


@in_virtual_time
async def test_a_suspended_call_counts_until_its_client_is_too_late() -> None:
    client = object()
    async with open_room({}, requestTotalTimeoutMs=30_000, requestTimeoutMs=7_000) as room:
        suspended = ClientHost(port_of(room)).suspended
        for _ in range(2):
            parked(suspended, client)
            with anyio.move_on_after(5.0):
                await suspended.ask(client, "s", {"method": "x"})
        assert (anyio.current_time(), len(suspended)) == (10.0, 2)
        for now, count in ((29.9, 2), (30.1, 1), (35.1, 0)):
            await anyio.sleep(now - anyio.current_time())
            assert len(suspended) == count


def test_a_state_is_sealed_for_one_thing_of_one_server() -> None:
    signer = StateSigner()
    closed = signer.sign("a.b", "s", "tools/call", "t")
    assert signer.verify(closed, "s", "tools/call", "t") == "a.b"
    for what in (
        ("other", "tools/call", "t"), ("s", "prompts/get", "t"), ("s", "tools/call", "u"),
        ("st", "ools/call", "t"), ("stools/callt",), ("s", "tools/call", "t", ""), ("tools/call", "s", "t"),
    ):  # fmt: skip
        with pytest.raises(RpcFault, match="was not given for this request"):
            signer.verify(closed, *what)
    for other, state in ((StateSigner(), closed), (signer, closed + "c")):
        with pytest.raises(RpcFault):
            other.verify(state, "s", "tools/call", "t")


def comes_back(
    suspended: SuspendedCalls, again: Ended, job: Any, action: bytes = b'"accept"'
) -> SuspendableCall | None:
    """The client of `job` sends its request `again`, with the answer it was asked for."""
    again.params = {"inputResponses": msgspec.Raw(b'{"question": {"action": ' + action + b"}}")}
    return suspended.resume(cast("Any", again), job.said[2]["requestState"])
