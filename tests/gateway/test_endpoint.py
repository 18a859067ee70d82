"""The gateway's MCP methods: both eras, bad messages, cancellation, progress. One conversation, no transport."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import AsyncGenerator, Mapping, Sized
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run, run_virtual
from tests.support.door_rooms import NOW, FakeCall, FakeRoom
from tests.support.rooms import open_room

from greenroom import Greenroom
from greenroom.actors.host import Greeting, ServerRequest
from greenroom.actors.router import Learn
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.namespace import Place
from greenroom.config.model import Scrub
from greenroom.gateway.attribution import error_data_of, question_of, result_without_ours, without_ours
from greenroom.gateway.client_host import ClientHost
from greenroom.gateway.clients import Conversations
from greenroom.gateway.endpoint import ClientRequests, Endpoint
from greenroom.gateway.exposures import direct_results as answers
from greenroom.gateway.exposures.direct import Direct
from greenroom.gateway.exposures.direct_client import DirectClient
from greenroom.gateway.exposures.direct_results import readable, readable_tool
from greenroom.gateway.exposures.proxy import Proxy
from greenroom.gateway.input_required import StateSigner, SuspendableCall, SuspendedCalls
from greenroom.gateway.next_steps import Commands
from greenroom.gateway.requests import Answers, Job, open_jobs
from greenroom.gateway.result_meta import OURS
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.address import Address
from greenroom.protocol.cooperative import finish
from greenroom.protocol.errors import Reach, RemoteError, RpcRefusal, ServerLost, UnknownResource
from greenroom.protocol.jsonrpc.terms import RpcFault
from greenroom.supervisor.room import port_of
from greenroom.testing import FakeServer
from greenroom.testing.servers import echo

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Client:
    """What a client sees: lines out."""

    def __init__(self, exposure: Any = None, *, room: FakeRoom | None = None, **options: Any) -> None:
        self.room = room or FakeRoom()
        self.lines: list[bytes] = []
        self.busy = False
        self.takes_long_lines = True
        self.notes: list[str] = []
        exposure = exposure or Proxy(self.room)
        endpoint = Endpoint(exposure, "9.9", note=self.notes.append, **options)
        self.talk = endpoint.open(self, self._spawn)
        self.spawn: Any = None

    def _spawn(self, work: Any) -> None:
        self.spawn(work)

    def send(self, line: bytes) -> bool:
        if len(line) > 4096 and not self.takes_long_lines:
            return False
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        self.lines.append(line)
        return True

    def say(self, message: Any) -> list[Any]:
        """Send one message; what came back at once."""
        before = len(self.lines)
        self.talk.receive(message if isinstance(message, bytes) else json.dumps(message).encode())
        return [json.loads(line) for line in self.lines[before:]]

    def ask(self, method: str, params: Any = None, *, id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        answers = self.say(message if params is None else {**message, "params": params})
        assert len(answers) == 1, answers
        assert answers[0]["id"] == id
        return answers[0].get("result", answers[0].get("error"))

    def call(self, arguments: Any = None, *, id: Any = 1, **params: Any) -> list[Any]:
        params = {"name": "mcp", "arguments": arguments, **params}
        return self.say({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


@pytest.mark.parametrize("way", ["answers", "breaks", "forgets", "is cancelled"])
def test_t38_work_that_is_handed_on_to_another_task_still_ends_its_job_once(backend: str, way: str) -> None:
    said: list[str] = []
    sink: Any = SimpleNamespace(
        job_done=lambda _job, result, _error: said.append(f"answered {result}"),
        job_broke=lambda _job, error: said.append(str(error)),
    )

    async def body() -> None:
        async with anyio.create_task_group() as group:
            job = Job(sink, group.start_soon, b"1")

            async def first() -> None:
                await anyio.sleep(1)
                job.run(second)

            async def second() -> None:
                await anyio.sleep(1)
                if way == "answers":
                    job.answer({})
                elif way == "breaks":
                    raise ValueError("broken")
                elif way == "is cancelled":
                    await anyio.sleep_forever()

            job.run(first)
            await anyio.sleep(5)
            if way == "is cancelled":
                job.cancel()

    run_virtual(backend, body)
    ends = {"answers": ["answered {}"], "breaks": ["broken"], "is cancelled": []}
    assert said == ends.get(way, ["tools/call was left without an answer"])


@pytest.mark.parametrize("version", rpc.HANDSHAKE_VERSIONS)
def test_every_handshake_version_is_agreed_to(version: str) -> None:
    result = Client().ask("initialize", {"protocolVersion": version, "capabilities": {}})
    assert result == {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "serverInfo": {"name": "greenroom", "title": "Greenroom", "version": "9.9"},
    }


def test_an_unknown_version_is_answered_with_our_newest_handshake() -> None:
    assert Client().ask("initialize", {"protocolVersion": "1999-01-01"})["protocolVersion"] == "2025-11-25"


def test_discover_and_stamps_of_2026() -> None:
    result = Client().ask("server/discover", {"_meta": ENVELOPE})
    assert result["supportedVersions"] == ["2026-07-28"]
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "greenroom"
    listed = Client().ask("tools/list", {"_meta": ENVELOPE})
    assert [tool["name"] for tool in listed["tools"]] == ["mcp"]
    assert listed["resultType"] == "complete"
    (answer,) = Client().call({}, _meta=ENVELOPE)
    assert answer["result"]["resultType"] == "complete"
    assert "ttlMs" not in answer["result"]


def test_the_handshake_era_gets_no_stamps() -> None:
    assert set(Client().ask("tools/list")) == {"tools"}
    (answer,) = Client().call({})
    assert set(answer["result"]) == {"content", "_meta"}


def test_our_results_satisfy_the_sdk_types() -> None:
    import mcp_types as types

    client = Client()
    types.InitializeResult.model_validate(client.ask("initialize", {"protocolVersion": "2025-11-25"}))
    types.DiscoverResult.model_validate(client.ask("server/discover", {"_meta": ENVELOPE}))
    types.ListToolsResult.model_validate(client.ask("tools/list", {"_meta": ENVELOPE}))
    types.CallToolResult.model_validate(client.call({"search": "issue"})[0]["result"])


@pytest.mark.parametrize(
    ("method", "params"),
    [("ping", {"_meta": ENVELOPE}), ("server/discover", {}), ("resources/list", None), ("zebra", {})],
)
def test_methods_that_do_not_exist_in_the_requests_era(method: str, params: Any) -> None:
    assert Client().ask(method, params)["code"] == -32601


def test_a_version_we_do_not_speak_names_those_we_do() -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}
    error = Client().ask("tools/list", {"_meta": meta})
    assert error["code"] == -32022
    assert error["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}


def test_ids_come_back_as_they_were_written() -> None:
    for key in (0, -7, 12345678901234567890123, "a", "", "\u00e9\n"):
        assert Client().ask("ping", id=key) == {}


@pytest.mark.parametrize(
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
    client = Client()
    (answer,) = client.say(line)
    assert answer["error"]["code"] == code
    assert "Traceback" not in json.dumps(answer)
    assert client.ask("ping", id=2) == {}


@pytest.mark.parametrize("line", [b"[]", b' \t[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b"7"])
def test_a_batch_is_told_from_what_is_no_message_at_all(line: bytes) -> None:
    (answer,) = Client().say(line)
    what = "Not a JSON-RPC message" if line == b"7" else "Batches are not supported"
    assert answer["error"]["message"] == f"{what}: send one JSON-RPC object per line."


def test_what_needs_no_answer_gets_none() -> None:
    client = Client()
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
    client = Client()
    for answer in client.say(message):
        assert "error" not in answer or answer["error"]["code"] != -32603
    assert not [note for note in client.notes if "bug" in note]
    assert client.ask("ping", id="after") == {}


def test_a_call_is_answered_when_it_ends() -> None:
    client = Client()
    assert client.call({"tool": "clock_now"}) == []
    assert client.talk.in_flight == 1
    client.room.calls[0].end({"content": [{"type": "text", "text": "noon"}]})
    answer = json.loads(client.lines[0])
    assert answer["id"] == 1
    assert answer["result"]["content"] == [{"type": "text", "text": "noon"}]
    assert client.talk.in_flight == 0


def test_a_call_that_waits_for_its_client_to_come_back_is_in_flight(backend: str) -> None:
    """A door ends a silent session only when nothing of it is in flight."""

    async def body() -> None:
        client = Client()
        suspended: Any = client.talk._exposure.suspended
        mine: Any = SimpleNamespace(client=client.talk, let_go=lambda: None, answer=lambda _: None)
        mine.follow = lambda _call: None
        SuspendableCall(suspended, mine, "s", lambda *_: None)
        async with anyio.create_task_group() as group:
            group.start_soon(suspended.ask, client.talk, "s", {"method": "x"})
            await anyio.wait_all_tasks_blocked()
            client.call({"tool": "clock_now"})
            assert (len(suspended), client.talk.in_flight) == (1, 2)
            client.talk.close()
            assert (len(suspended), client.talk.in_flight) == (0, 0)
            group.cancel_scope.cancel()

    run_virtual(backend, body)


def test_t21_a_cancelled_call_is_cancelled_at_the_server_and_never_answered() -> None:
    client = Client()
    client.call({"tool": "clock_now"}, id="x")
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
    assert client.say(cancelled) == []
    assert client.room.calls[0].cancelled
    client.room.calls[0].end({"content": []})
    assert client.lines == []
    assert client.say(cancelled) == []


def test_progress_goes_back_under_the_clients_own_token() -> None:
    client = Client()
    client.call({"tool": "clock_now"}, _meta={"progressToken": "mine"})
    client.room.calls[0].on_progress({"progress": 1, "total": 2, "progressToken": 77, "message": "half"})
    told = json.loads(client.lines[0])
    assert told["method"] == "notifications/progress"
    assert told["params"] == {"progress": 1, "total": 2, "progressToken": "mine", "message": "half"}
    client.busy = True
    client.room.calls[0].on_progress({"progress": 2})
    assert len(client.lines) == 1


def test_an_id_in_flight_cannot_be_used_again() -> None:
    client = Client()
    client.call({"tool": "clock_now"})
    assert client.call({"tool": "clock_now"})[0]["error"]["code"] == -32600
    client.room.calls[0].end({"content": []})
    assert client.call({"tool": "clock_now"}) == []


def test_calls_in_flight_are_bounded() -> None:
    client = Client(max_open=3)
    for number in range(3):
        assert client.call({"tool": "clock_now"}, id=number) == []
    error = client.call({"tool": "clock_now"}, id=3)[0]["error"]
    assert "Too many calls in flight (3)" in error["message"]
    assert len(client.room.calls) == 3


def test_closing_cancels_and_says_nothing_more() -> None:
    client = Client()
    client.call({"tool": "clock_now"})
    client.talk.close()
    assert client.room.calls[0].cancelled
    client.room.calls[0].end({"content": []})
    assert client.lines == []


def test_while_shutting_down_old_calls_are_answered_and_new_ones_refused() -> None:
    client = Client()
    client.call({"tool": "clock_now"}, id=1)
    client.talk.refuse_new()
    assert "shutting down" in client.call({"tool": "clock_now"}, id=2)[0]["error"]["message"]
    client.room.calls[0].end({"content": []})
    assert json.loads(client.lines[-1])["id"] == 1


def test_an_answer_the_client_has_no_room_for_becomes_a_short_error() -> None:
    client = Client()
    client.takes_long_lines = False
    client.call({"tool": "clock_now"})
    client.room.calls[0].end({"content": [{"type": "image", "data": "x" * 9000, "mimeType": "image/png"}]})
    answer = json.loads(client.lines[0])
    assert "was dropped" in answer["error"]["message"]


def test_numbers_beyond_64_bits_survive() -> None:
    client = Client()
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


def test_a_bug_of_ours_costs_one_request_and_is_noted(backend: str) -> None:
    async def body() -> None:
        async with anyio.create_task_group() as group:
            for later in (False, True):
                client = Client(Broken(later=later))
                client.spawn = group.start_soon
                client.call({})
                await anyio.wait_all_tasks_blocked()
                (line,) = client.lines
                assert json.loads(line)["error"]["code"] == -32603
                assert b"secret" not in line
                assert "ZeroDivisionError at test_endpoint.py, line " in client.notes[0]
                assert "secret" not in client.notes[0]
                assert client.ask("ping", id=2) == {}

    run(backend, body)


def test_t03_cancelling_a_job_that_waits_ends_its_task_alone(backend: str) -> None:
    async def body() -> None:
        async with anyio.create_task_group() as group:
            client = Client()
            client.spawn = group.start_soon
            client.room.on_connect = lambda server: client.room.learn(server, {**NOW, "name": "hello"})
            client.call({"connect": "fresh"}, id=1)
            client.call({"connect": "fresh"}, id=2)
            client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
            await anyio.wait_all_tasks_blocked()
            assert [json.loads(line)["id"] for line in client.lines] == [2]

    run(backend, body)


@pytest.mark.parametrize("name", ["direct", "proxy"])
def test_an_answered_call_leaves_nothing_to_the_garbage_collector(backend: str, name: str) -> None:
    async def body() -> None:
        entry = {"command": sys.executable, "args": ["-S", echo.__file__]}
        async with Greenroom.open(
            {"mcpServers": {"a": entry}}, cache_path=":memory:", bootstrap=False
        ) as room:
            await room.connect("a")
            direct = name == "direct"
            client = Client(Direct(port_of(room)) if direct else Proxy(port_of(room)))
            client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            params = {"name": "a_echo"} if direct else {"name": "mcp", "arguments": {"tool": "a_echo"}}
            gc.collect()
            gc.disable()
            others = [each for each in gc.get_objects() if isinstance(each, Job)]  # of tests before this one
            try:
                for number in range(10):
                    client.say({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
                    while client.talk.in_flight:
                        await anyio.lowlevel.checkpoint()
                assert b'"result"' in client.lines[-1]
                left = [each for each in gc.get_objects() if isinstance(each, Job)]
                assert left == others
            finally:
                gc.enable()

    run(backend, body)


# ---- what is left behind -------------------------------------------------------------------------------------------


def _cancel(client: Client, key: Any) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": key}}
    assert client.say(told) == []


def test_a_cancelled_call_is_in_flight_no_more_and_its_id_is_free() -> None:
    client = Client(max_open=1)
    client.call({"tool": "clock_now"}, id="x")
    _cancel(client, "x")
    assert client.talk.in_flight == 0
    assert client.call({"tool": "clock_now"}, id="x") == []
    client.room.calls[1].end({"content": []})
    assert json.loads(client.lines[0])["id"] == "x"


def test_a_client_that_leaves_is_asked_nothing_more(backend: str) -> None:
    async def body() -> None:
        client, told = Client(), list[str]()

        async def ask() -> None:
            try:
                await client.talk.ask("roots/list", {})
            except RpcRefusal as refusal:
                told.append(refusal.message)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert json.loads(client.lines[0])["id"] == "greenroom-1"
                client.talk.close()
        assert told == ["The client is gone."]
        assert len(client.lines) == 1

    run(backend, body)


def test_the_answer_of_a_client_is_its_own_and_a_question_is_taken_back(backend: str) -> None:
    async def body() -> None:
        client, told, progress = Client(), list[Any](), list[Any]()

        async def ask(number: int) -> None:
            try:
                told.append((number, await client.talk.ask("x", {"_meta": {"k": 1}}, progress.append)))
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
        refused = "The client's answer is no object."
        assert told == [(1, -7, "no", [1]), (2, {"n": 2}), (3, -32603, refused, None)]
        assert [one["progress"] for one in progress] == [5]
        last = json.loads(client.lines[-1])
        assert (last["method"], last["params"]["requestId"]) == ("notifications/cancelled", "greenroom-4")
        assert len(client.lines) == 5

    run(backend, body)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"result": {"n": 1}, "error": None}, {"n": 1}),
        ({"error": {"code": "-7", "message": 5}}, (-32603, "5", None)),
        ({"error": {"code": -7}}, (-7, "The client refused.", None)),
        ({"error": "no"}, (-32603, "The client refused.", None)),
        ({}, (-32603, "The client's answer cannot be read: Invalid request: it has no method.", None)),
    ],
)
def test_an_odd_answer_of_a_client_is_read_as_far_as_it_can_be(backend: str, said: Any, heard: Any) -> None:
    async def body() -> None:
        client, told = Client(), list[Any]()

        async def ask() -> None:
            try:
                told.append(await client.talk.ask("x", {}))
            except RpcRefusal as refusal:
                told.append((refusal.rpc_code, refusal.message, refusal.data))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            for other in ("1", 1, "1-greenroom", "greenroom-2", "greenroom-"):
                client.say({"jsonrpc": "2.0", "id": other, "result": {"n": "another's"}})
            progress = {"progressToken": "greenroom-1", "progress": 1}  # nobody asked for it
            client.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
            await anyio.wait_all_tasks_blocked()
            assert told == []
            client.say({"jsonrpc": "2.0", "id": "greenroom-1", **said})
        assert told == [heard]
        assert len(client.lines) == 1, "answers and notifications are not answered"

    run(backend, body)


class Held(Proxy):
    """An exposure that keeps its jobs for the test to end."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.gone: list[Any] = []

    def begin(self, job: Job) -> bool:
        self.jobs.append(job)
        return True

    def came(self, client: Any) -> None:
        pass

    def left(self, client: Any) -> None:
        self.gone.append(client)


def test_a_servers_own_bytes_that_do_not_fit_become_a_short_error_too() -> None:
    exposure = Held()
    client = Client(exposure)
    client.takes_long_lines = False
    client.call({}, id=5)
    exposure.jobs[0].answer_raw(b'{"content":["%b"]}' % (b"x" * 9000))
    (answer,) = map(json.loads, client.lines)
    assert (answer["id"], answer["error"]["code"]) == (5, -32000)
    assert "was dropped" in answer["error"]["message"]


def test_a_job_that_has_ended_says_nothing_more() -> None:
    exposure = Held()
    client = Client(exposure)
    client.call({}, _meta={"progressToken": 1}, id=1)
    client.call({}, id=2)
    first, second = exposure.jobs
    second.progress({"progress": 0})  # nobody asked
    assert client.lines == []
    first.answer({"content": []})
    first.progress({"progress": 1})
    first.answer({"content": []})
    first.fail(-1, "late")
    first.cancel()
    target: Any = None
    call: Any = FakeCall(target, {}, lambda _: None, None)
    first.follow(call)
    first.cancel()
    assert not call.cancelled
    assert len(client.lines) == 1
    second.follow(call)
    second.let_go()
    client.talk.close()
    assert not call.cancelled
    assert exposure.gone == [client.talk]


def test_what_is_refused_at_once_is_in_flight_no_more() -> None:
    client = Client()
    client.call({"tool": "nothing_like_that"}, id=1)
    client.say({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "zebra"}})
    client.ask("resources/read", {"uri": "x:/"}, id=3)
    assert client.talk.in_flight == 0


def test_a_client_is_met_anew_when_it_says_something_else_of_itself() -> None:
    met: list[Any] = []

    class Met(Held):
        def came(self, client: Any) -> None:
            met.append((client.modern, dict(client.capabilities)))

    client = Client(Met())
    client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}})
    client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}})
    for capabilities in ({"roots": {}}, {"sampling": {}}, {"sampling": {}}, {}):
        meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": capabilities}
        client.ask("server/discover", {"_meta": meta})
        assert client.talk.modern
    assert met == [(False, {"roots": {}}), (True, {"sampling": {}}), (True, {})]


# ---- the direct door, part by part ---------------------------------------------------------------------------------


class Watching:
    """A room as `DirectClient` sees it."""

    def __init__(self) -> None:
        self.watched: list[str] = []
        self.asked: list[str] = []
        self.wait = anyio.Event()

    index: Any = SimpleNamespace(servers=())

    def locate(self, uri: str, server: str | None = None) -> Any:
        if uri.startswith("no:"):
            raise UnknownResource(uri)
        if uri.startswith("as:"):  # another spelling of what is listed
            return Place("x:/listed", "s", "x:/own", {})
        return Place(uri, "s", uri, {})

    async def watch_resource(self, place: Any) -> None:
        self.watched.append(place.original)
        self.asked.append(place.original)
        await self.wait.wait()

    def unwatch_resource(self, place: Any) -> None:
        self.watched.remove(place.original)


class Ended:
    """A job as an exposure sees it."""

    commands = Commands()

    def __init__(self, *, modern: bool = False, method: str = "resources/read", client: Any = None) -> None:
        self.modern, self.method, self.client = modern, method, client
        self.said: list[Any] = []
        self.key, self.params = b"1", {}

    def answer(self, result: Any) -> None:
        self.said.append(result)

    def fail(self, code: int, message: str, data: Any = None) -> None:
        self.said.append((code, data))

    def concluded_by(self, step: Any, *what: Any) -> Any:
        return partial(step, *what)

    def let_go(self) -> None:
        self.said.append("let go")

    def follow(self, call: Any) -> None:
        self.said.append(call)


def test_a_resource_is_watched_once_for_a_client_and_no_more_when_it_leaves(backend: str) -> None:
    async def body() -> None:
        room: Any = Watching()
        direct_client, jobs = DirectClient(room, Client().talk), [Ended() for _ in range(4)]
        async with anyio.create_task_group() as group:
            for job, uri in zip(jobs, ("x:/1", "x:/1", "x:/2", "no:/"), strict=True):
                group.start_soon(direct_client.subscribe, job, uri)  # pyright: ignore[reportArgumentType]
            await anyio.wait_all_tasks_blocked()
            room.wait.set()
        assert [job.said for job in jobs[:3]] == [[{}]] * 3
        assert jobs[3].said[0][0] == -32002
        asked = len(room.asked)
        await direct_client.subscribe(Ended(), "x:/1")  # pyright: ignore[reportArgumentType]
        assert len(room.asked) == asked
        assert sorted(room.watched) == ["x:/1", "x:/2"]
        direct_client.tell_update("s", {"uri": "x:/1/part"})
        assert direct_client.links.giver("x:/1/part") == "s", "a part of it is read where it is"
        direct_client.unsubscribe(Ended(), "x:/2")  # pyright: ignore[reportArgumentType]
        direct_client.unsubscribe(Ended(), "x:/2")  # pyright: ignore[reportArgumentType]
        assert room.watched == ["x:/1"]
        direct_client.leave()
        direct_client.leave()
        assert room.watched == []

    run(backend, body)


class Told:
    """A client as a direct client sees it."""

    def __init__(self, *, greeted: bool = False) -> None:
        self.greeted = greeted
        self.said: list[tuple[str, Any]] = []

    def tell(self, method: str, params: Any = None) -> None:
        self.said.append((method, params))


TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"


def test_an_open_stream_is_told_what_it_asked_for_under_its_own_id(backend: str) -> None:
    async def body() -> None:
        room, client = Watching(), Told()
        room.wait.set()
        direct_client, job = DirectClient(room, client), Ended()  # pyright: ignore[reportArgumentType]
        meta = {"io.modelcontextprotocol/subscriptionId": 1}
        wanted = {
            "toolsListChanged": True,
            "promptsListChanged": 1,
            "resourceSubscriptions": ["x:/a", "no:/", "as:/spelled"],
        }
        async with anyio.create_task_group() as group:
            group.start_soon(direct_client.listen, job, wanted)  # pyright: ignore[reportArgumentType]
            await anyio.wait_all_tasks_blocked()
            granted = {"toolsListChanged": True, "resourceSubscriptions": ["x:/a", "as:/spelled"]}
            acknowledged = {"notifications": granted, "_meta": meta}
            assert client.said == [("notifications/subscriptions/acknowledged", acknowledged)]
            client.said.clear()
            direct_client.tell_change(TOOLS)
            direct_client.tell_change(PROMPTS)
            assert client.said == [(TOOLS, {"_meta": meta})]
            client.said.clear()
            own = {"io.modelcontextprotocol/subscriptionId": 99, "x": 1}
            updates = (
                ("s", "x:/a"),
                ("s", "x:/a/b"),
                ("s", "x:/ab"),
                ("t", "x:/a"),
                ("s", None),
                ("s", "x:/own"),
            )
            for server, uri in updates:
                direct_client.tell_update(server, {"uri": uri, "_meta": own})
            updated = "notifications/resources/updated"
            assert client.said == [
                (updated, {"uri": "x:/a", "_meta": {"x": 1, **meta}}),
                (updated, {"uri": "x:/a/b", "_meta": {"x": 1, **meta}}),
                (updated, {"uri": "as:/spelled", "_meta": {"x": 1, **meta}}),
            ]
            group.cancel_scope.cancel()
        client.said.clear()
        direct_client.tell_change(TOOLS)
        assert (client.said, room.watched) == ([], [])

    run(backend, body)


def test_an_older_client_is_told_plainly_once_it_has_greeted() -> None:
    early, client = Told(), Told(greeted=True)
    for each in (early, client):
        direct_client = DirectClient(Watching(), each)  # pyright: ignore[reportArgumentType]
        direct_client.tell_change(PROMPTS)
    assert (early.said, client.said) == ([], [(PROMPTS, None)])


def test_a_client_of_the_direct_door_that_leaves_is_forgotten(backend: str) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer()}) as room:
            direct = Direct(port_of(room))
            client, left = Client(direct), list[str]()
            client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            direct_client: Any = direct._direct_clients[client.talk]
            direct_client.leave = lambda: left.append("left")
            client.talk.close()
            client.talk.close()
            assert (left, direct._direct_clients) == (["left"], {})
            assert direct._client_host.greeting(Address("a")) == Greeting(), "nobody is there to be asked"

    run_virtual(backend, body)


@pytest.mark.parametrize(("modern", "code"), [(False, -32002), (True, -32602)])
def test_a_resource_nobody_has_has_the_code_of_its_era(modern: bool, code: int) -> None:
    job: Any = Ended(modern=modern)
    answers.refuse(job, UnknownResource("x:/"))
    assert job.said == [(code, {"uri": "x:/"} if not modern else {"error": "resource_not_found"})]


def test_how_each_end_of_a_call_is_told() -> None:
    tool, read = Ended(method="tools/call"), Ended()
    lost = ServerLost("gone", server="s", reach=Reach.SENT)
    details = {"error": "call_failed", "server": "s", "reach": "sent"}
    for job in (tool, read):
        answers.refuse(job, lost)  # pyright: ignore[reportArgumentType]
        answers.fail(job, RemoteError("no", server="s", rpc_code=-7, data={"d": 1}))  # pyright: ignore[reportArgumentType]
    text = [{"type": "text", "text": "gone"}]
    assert tool.said == [
        {"content": text, "isError": True, "_meta": {"greenroom/error": details}},
        (-7, {"d": 1, "greenroom/server": "s"}),
    ]
    assert read.said == [(-32603, details), (-7, {"d": 1, "greenroom/server": "s"})]


def test_what_a_client_says_of_itself_and_its_token_stay_here(backend: str) -> None:
    server = FakeServer()

    async def body() -> None:
        async with open_room({"a": server}) as room:
            await room.connect("a")
            client = Client(Direct(port_of(room)))
            meta = {"progressToken": "mine", "x-trace": 7, "io.modelcontextprotocol/logLevel": "info"}
            client.say(
                {
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "tools/call",
                    "params": {"name": "a_echo", "_meta": meta},
                }
            )
            await anyio.sleep(1.0)
            assert server.calls[0]["_meta"] == {
                "x-trace": 7,
                "io.modelcontextprotocol/logLevel": "info",
            }
            assert json.loads(client.lines[-1])["result"]["content"]

    run_virtual(backend, body)


def test_what_servers_say_of_themselves_is_said_under_their_names_or_nothing_is(backend: str) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer(), "b": FakeServer()}) as room:
            direct = Direct(port_of(room))
            assert direct.instructions() is None
            for server in ("a", "b"):
                room._runtime.router.ref.tell(Learn(ServerEntry(server, "", instructions=f"Use {server}.")))
            await room.settled()
            assert direct.instructions() == "# a\n\nUse a.\n\n# b\n\nUse b."

    run_virtual(backend, body)


def test_a_first_list_waits_only_while_servers_are_visited(backend: str) -> None:
    async def body() -> None:
        server = FakeServer(greet_latency=3.0)
        async with open_room({"a": server}, bootstrap=True, firstListTimeoutMs=7_000) as room:
            direct = Direct(port_of(room))
            await anyio.sleep(1.0)
            assert direct.settling_time == 7.0
            await direct.settle()
            assert direct.settling_time == 0.0
            assert anyio.current_time() == 3.0

    run_virtual(backend, body)


def test_what_is_refused_at_once_carries_no_question_and_what_is_harmless_is_sent_again(backend: str) -> None:
    echo = {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    server = FakeServer(tools=[echo], call_latency=5.0)

    async def body() -> None:
        async with open_room({"a": server}) as room:
            await room.connect("a")
            direct = Direct(port_of(room))
            client = Client(direct)
            client.ask("server/discover", {"_meta": ENVELOPE})
            for number, params in enumerate(({}, {"_meta": ENVELOPE}), 1):
                client.say(
                    {
                        "jsonrpc": "2.0",
                        "id": number,
                        "method": "tools/call",
                        "params": {"name": "a_echo", **params},
                    }
                )
            await anyio.sleep(1.0)
            server.crash()
            await anyio.sleep(10.0)
            assert len(server.calls) == 4, "each was sent twice"
            assert all("result" in json.loads(line) for line in client.lines)
            await room.drain("a")
            refused = client.ask("tools/call", {"name": "a_echo", "_meta": ENVELOPE}, id=9)
            assert refused["isError"]
            assert not direct._client_host.suspended._running

    run_virtual(backend, body)


def test_an_older_client_is_told_of_an_update_without_what_the_newer_era_says(backend: str) -> None:
    async def body() -> None:
        room: Any = Watching()
        room.wait.set()
        told: Any = Told(greeted=True)
        client = DirectClient(room, told)
        await client.subscribe(Ended(), "x:/1")  # pyright: ignore[reportArgumentType]
        own = {"io.modelcontextprotocol/subscriptionId": 9, "greenroom/server": "us", "x": 1}
        client.tell_update("s", {"uri": "x:/1", "_meta": own})
        client.tell_update("s", {"uri": "x:/1", "_meta": {"greenroom/server": "us"}})
        updated = "notifications/resources/updated"
        assert told.said == [(updated, {"uri": "x:/1", "_meta": {"x": 1}}), (updated, {"uri": "x:/1"})]

    run(backend, body)


def test_a_link_is_read_at_who_gave_it_unless_somebody_lists_it() -> None:
    room: Any = Watching()
    room.index = SimpleNamespace(servers=("s", "t"), lists_resource=lambda uri: uri == "x:/listed")
    told: Any = Told()
    client = DirectClient(room, told)
    for uri in ("x:/listed", "x:/own"):
        client.links.add("t", uri)
    client.links.add("gone", "x:/old")
    found = {uri: client.locate(uri).server for uri in ("x:/listed", "x:/own", "x:/old", "x:/new")}
    assert found == {"x:/listed": "s", "x:/own": "t", "x:/old": "s", "x:/new": "s"}


def test_nobody_speaks_in_our_name_and_who_asks_says_who_it_is() -> None:
    forged, theirs = {"greenroom/server": "a", "x": 1}, {"x": 1}
    assert without_ours({"a": 1, "_meta": forged}) == {"a": 1, "_meta": theirs}
    for key in (
        '"greenroom/error"',
        '"\\u0067reenroom/error"',
        '"green\\u0072oom/error"',
        '"greenroom\\u002ferror"',
    ):
        said = b'{"content": [], "_meta": {' + key.encode() + b': 1, "y": 2}}'
        assert json.loads(result_without_ours(said)) == {"content": [], "_meta": {"y": 2}}
    plain = b'{"content": [], "_meta": {"\\u00e9": 1}}'
    assert result_without_ours(plain) is plain
    asked = {"message": "Password?", "_meta": forged}
    named = {"x": 1, "greenroom/server": "s"}
    assert question_of("s", "elicitation/create", asked) == {"message": "[s] Password?", "_meta": named}
    assert question_of("s", "sampling/createMessage", asked) == {"message": "Password?", "_meta": named}
    assert question_of("s", "roots/list", asked) == {"message": "Password?", "_meta": theirs}
    assert error_data_of("s", None) == {"greenroom/server": "s"}
    assert error_data_of("s", [1]) == [1]
    assert error_data_of("s", {"greenroom/error": 1, "elicitations": [{"message": "Log in"}, 7], "y": 2}) == {
        "y": 2,
        "elicitations": [{"message": "[s] Log in"}, 7],
        "greenroom/server": "s",
    }


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("resources/read", {"contents": [{"uri": "x:/part"}]}),
        ("prompts/get", {"messages": [{"content": {"uri": "x:/part"}}]}),
        ("tools/call", {"content": [{"type": "resource_link", "uri": "x:/part"}]}),
    ],
)
def test_whatever_points_to_a_resource_is_remembered_for_who_was_given_it(
    method: str, result: dict[str, Any], backend: str
) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer()}) as room:
            direct = Direct(port_of(room))
            client = Client(direct)
            client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            call: Any = FakeCall(None, {}, lambda _: None, None)  # pyright: ignore[reportArgumentType]
            call.result = json.dumps(result).encode()
            job: Any = Ended(method=method, client=client.talk)
            job.plain, job.answer_raw = None, lambda raw, modern: job.answer(raw)
            direct._calls._ended(job, "a", None, call)
            assert direct._direct_clients[client.talk].links.giver("x:/part") == "a"

    run_virtual(backend, body)


def test_the_message_of_a_servers_error_says_whose_it_is() -> None:
    said: list[str] = []
    job: Any = Ended()
    job.fail = lambda _code, message, _data: said.append(message)
    answers.fail(job, RemoteError("no", server="s", rpc_code=-7))
    assert said == ["[s] no"]


def test_what_strict_clients_refuse_is_mended_and_the_rest_is_not_touched() -> None:
    for untouched in (b'{"task": {"taskId": "1"}}', b'{"resultType": "input_required"}', b'{"content": [ ]}'):
        assert readable_tool(untouched) is untouched
    mended = json.loads(readable_tool(b'{"structuredContent": {"a": 1}, "isError": null}'))
    assert mended == {"structuredContent": {"a": 1}, "content": [{"type": "text", "text": '{"a": 1}'}]}
    values = [str(n) for n in range(101)]
    few, many = ({"completion": {"values": some, "total": 101}} for some in (values[:100], values))
    assert readable("completion/complete", {}, json.dumps(few).encode()) == json.dumps(few).encode()
    assert json.loads(readable("completion/complete", {}, json.dumps(many).encode())) == {
        "completion": {"values": values[:100], "total": 101, "hasMore": True}
    }
    read = b'{"contents": [{"text": "x"}, {"uri": "y:/"}, 7]}'
    assert json.loads(readable("resources/read", {"uri": msgspec.Raw(b'"x:/"')}, read)) == {
        "contents": [{"text": "x", "uri": "x:/"}, {"uri": "y:/"}]
    }


def test_a_call_that_has_ended_is_cancelled_by_nobody() -> None:
    suspended, client = SuspendedCalls(30.0), object()
    job: Any = Ended(client=client)
    suspendable = SuspendableCall(suspended, job, "s", lambda *_: None)
    call: Any = FakeCall(None, {}, lambda _: None, None)  # pyright: ignore[reportArgumentType]
    suspendable.follow(call)
    suspendable.ended(call)
    suspendable.drop()
    assert not call.cancelled


def test_what_a_job_runs_is_cancelled_when_the_job_breaks(backend: str) -> None:
    over: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            over.append("cancelled")

    async def body() -> None:
        sink: Any = SimpleNamespace(job_broke=lambda _job, error: over.append(str(error)))
        async with anyio.create_task_group() as group:
            job = Job(sink, group.start_soon, b"1")
            job.run(work)
            await anyio.wait_all_tasks_blocked()
            job.broke(ValueError("ours"))
            await anyio.wait_all_tasks_blocked()
        assert over == ["ours", "cancelled"]

    run(backend, body)


def test_work_is_given_outside_a_task_and_what_is_cancelled_before_it_begins_never_begins(
    backend: str,
) -> None:
    begun, waiting = list[str](), list[Any]()
    sink: Any = SimpleNamespace(job_done=lambda _job, result, _error: begun.append(result))

    async def work(job: Job) -> None:
        begun.append("began")
        job.answer({})

    for is_cancelled in (False, True):
        job = Job(sink, waiting.append, b"1")
        job.run(partial(work, job))  # no loop runs here, as no task runs in a callback
        if is_cancelled:
            job.cancel()

    for task in waiting:
        run(backend, task)
    assert begun == ["began", {}]


def test_a_name_of_several_is_told_with_whose_it_may_be(backend: str) -> None:
    async def body() -> None:
        async with open_room({"a": FakeServer(), "b": FakeServer()}, toolPrefix="none") as room:
            for server in "ab":
                await room.connect(server)
            client = Client(Direct(port_of(room)))
            answer = client.ask("tools/call", {"name": "echo"})
            assert answer["isError"]
            assert answer["_meta"]["greenroom/error"] == {"error": "ambiguous_tool"}
            assert "a_echo" in answer["content"][0]["text"]

    run_virtual(backend, body)


def test_only_who_asked_for_progress_has_a_server_report_it(backend: str) -> None:
    server = FakeServer()

    async def body() -> None:
        async with open_room({"a": server}) as room:
            await room.connect("a")
            (connection,) = server.connections
            request, asked = connection.request, list[bool]()

            def note(exchange: Any) -> None:
                asked.append(exchange.wants_progress)
                request(exchange)

            connection.request = note
            client = Client(Direct(port_of(room)))
            for number, meta in enumerate(({}, {"x": 1}, ENVELOPE), 1):
                for said in (meta, {**meta, "progressToken": 0}):
                    params = {"name": "a_echo", "_meta": said}
                    message = {
                        "jsonrpc": "2.0",
                        "id": f"{number}{said}",
                        "method": "tools/call",
                        "params": params,
                    }
                    client.say(message)
            assert asked == [False, True] * 3

    run_virtual(backend, body)


def test_a_change_is_announced_when_it_can_be_seen(backend: str) -> None:
    order: list[str] = []

    class Changing:
        @asynccontextmanager
        async def events(self, kinds: Any) -> AsyncGenerator[Any]:
            async def two() -> AsyncGenerator[str]:
                for name in ("one", "two"):
                    yield name

            yield two()

        async def settled(self) -> None:
            await anyio.lowlevel.checkpoint()
            order.append("settled")

    async def looked() -> None:
        order.append("looked")

    async def body() -> None:
        conversations: Any = Conversations.__new__(Conversations)
        conversations._room = conversations._port = Changing()
        conversations._common = {None: (None, SimpleNamespace(announce=looked))}
        conversations._beside = {}
        async with anyio.create_task_group() as group:
            await group.start(conversations.watch)

    run(backend, body)
    assert order == ["settled", "looked"] * 2


def test_a_ticket_is_good_once_and_carries_only_its_own_clients_question(backend: str) -> None:
    async def body() -> None:
        suspended, mine, other = SuspendedCalls(30.0), object(), object()
        job: Any = Ended(client=mine)
        ended: list[Any] = []
        suspendable = SuspendableCall(suspended, job, "s", lambda *how: ended.append(how))
        call: Any = FakeCall(None, {}, lambda _: None, None)  # pyright: ignore[reportArgumentType]
        suspendable.follow(call)
        for client, server in ((other, "s"), (mine, "t")):
            with pytest.raises(RpcRefusal, match="none of its calls is open"):
                await suspended.ask(client, server, {"method": "x"})
        got: list[Any] = []
        again, twice, empty = (Ended(client=mine) for _ in range(3))

        async def ask() -> None:
            got.append(await suspended.ask(mine, "s", {"method": "x"}))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert job.said[:2] == [call, "let go"]
            name = job.said[2]["requestState"]
            responses = msgspec.Raw(b'{"question": {"action": "accept"}}')
            for each in (again, twice):
                each.params = {"inputResponses": responses}
            with pytest.raises(RpcFault, match="lacks an object 'question'"):
                suspended.resume(empty, name)  # pyright: ignore[reportArgumentType]
            assert suspended.resume(again, name) is suspendable  # pyright: ignore[reportArgumentType]
            assert suspended.resume(twice, name) is None  # pyright: ignore[reportArgumentType]
        assert got == [{"action": "accept"}]
        assert (suspendable.job, again.said) == (again, [call])
        suspendable.ended(call)
        assert ended == [(again, call)]
        with pytest.raises(RpcRefusal):
            await suspended.ask(mine, "s", {"method": "x"})

    run(backend, body)


def test_a_parked_call_is_given_up_when_its_client_does_not_come_back(backend: str) -> None:
    async def leave_at_five(suspended: SuspendedCalls, mine: object, call: Any, group: Any) -> None:
        await anyio.sleep(5.0)
        suspended.left(object())
        assert not call.cancelled
        suspended.left(mine)
        group.cancel_scope.cancel()

    async def body() -> None:
        suspended, mine, ended = SuspendedCalls(30.0), object(), list[Any]()
        for how in ("late", "left"):
            job: Any = Ended(client=mine)
            suspendable = SuspendableCall(suspended, job, "s", lambda *how: ended.append(how))
            call: Any = FakeCall(None, {}, lambda _: None, None)  # pyright: ignore[reportArgumentType]
            suspendable.follow(call)
            began = anyio.current_time()
            with anyio.move_on_after(60.0):
                async with anyio.create_task_group() as group:
                    if how == "left":
                        group.start_soon(leave_at_five, suspended, mine, call, group)
                        await suspended.ask(mine, "s", {"method": "x"})
                    with pytest.raises(RpcRefusal, match="did not come back"):
                        await suspended.ask(mine, "s", {"method": "x"})
            assert anyio.current_time() - began == pytest.approx(30.0 if how == "late" else 5.0)
            assert call.cancelled
            suspendable.ended(call)
            assert (ended, suspended._suspensions) == ([], {})

    run_virtual(backend, body)


def test_a_withdrawn_question_leaves_the_way_to_the_outcome_of_its_call(backend: str) -> None:
    async def withdrawn(suspended: SuspendedCalls, mine: object, suspendable: SuspendableCall) -> str:
        """Ask, and cancel that. Returns the state that the client was given."""
        job: Any = suspendable.job
        with anyio.move_on_after(5.0):
            await suspended.ask(mine, "s", {"method": "x"})
        return job.said[2]["requestState"]

    def started(suspended: SuspendedCalls, mine: object, ended: list[Any]) -> tuple[SuspendableCall, Any]:
        job: Any = Ended(client=mine)
        suspendable = SuspendableCall(suspended, job, "s", lambda *how: ended.append(how))
        call: Any = FakeCall(None, {}, lambda _: None, None)  # pyright: ignore[reportArgumentType]
        suspendable.follow(call)
        return suspendable, call

    def comes_back(suspended: SuspendedCalls, mine: object, name: str) -> tuple[Any, SuspendableCall | None]:
        job: Any = Ended(client=mine)
        job.params = {"inputResponses": msgspec.Raw(b'{"question": {"action": "accept"}}')}
        return job, suspended.resume(job, name)

    async def body() -> None:
        suspended, mine, ended = SuspendedCalls(30.0), object(), list[Any]()
        # The call ends before the client comes back: it gets the outcome, once.
        suspendable, call = started(suspended, mine, ended)
        name = await withdrawn(suspended, mine, suspendable)
        suspendable.ended(call)
        again, found = comes_back(suspended, mine, name)
        assert found is suspendable
        assert (ended, call.cancelled) == ([(again, call)], False)
        assert comes_back(suspended, mine, name)[1] is None
        # The call still runs when the client comes back: the client waits for it.
        suspendable, call = started(suspended, mine, ended)
        name = await withdrawn(suspended, mine, suspendable)
        again, found = comes_back(suspended, mine, name)
        assert (found, suspendable.job) == (suspendable, again)
        suspendable.ended(call)
        assert ended[1:] == [(again, call)]
        # The client does not come back in time: the next question drops the call.
        suspendable, call = started(suspended, mine, ended)
        name = await withdrawn(suspended, mine, suspendable)
        await anyio.sleep(26.0)
        other, _ = started(suspended, mine, ended)
        await withdrawn(suspended, mine, other)
        assert call.cancelled
        assert comes_back(suspended, mine, name)[1] is None
        # The client has disconnected: nothing is kept for it.
        suspended.left(mine)
        assert not suspended._suspensions

    run_virtual(backend, body)


def test_a_state_is_sealed_for_one_thing_of_one_server() -> None:
    signer = StateSigner()
    closed = signer.sign("a.b", "s", "tools/call", "t")
    assert signer.verify(closed, "s", "tools/call", "t") == "a.b"
    for what in (("other", "tools/call", "t"), ("s", "prompts/get", "t"), ("s", "tools/call", "u")):
        with pytest.raises(RpcFault, match="was not given for this request"):
            signer.verify(closed, *what)
    with pytest.raises(RpcFault):
        StateSigner().verify(closed, "s", "tools/call", "t")
    with pytest.raises(RpcFault):
        signer.verify(closed + "c", "s", "tools/call", "t")


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


def test_what_a_cancelled_job_runs_is_cancelled_with_it(backend: str) -> None:
    async def body() -> None:
        exposure, ended = Held(), list[str]()
        client = Client(exposure)

        async def work() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("ended")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                client.spawn = group.start_soon
                client.call({}, id=1)
                exposure.jobs[0].run(work)
                await anyio.wait_all_tasks_blocked()
                _cancel(client, 1)
        assert (ended, client.lines) == (["ended"], [])

    run(backend, body)


def test_what_a_result_says_beside_its_content_stays_when_it_is_stamped() -> None:
    (answer,) = Client().call({}, _meta=ENVELOPE)
    meta = answer["result"]["_meta"]
    assert meta["greenroom/details"]["mode"] == "status"
    assert meta["io.modelcontextprotocol/serverInfo"]["name"] == "greenroom"
    said = {"resultType": "input_required", "ttlMs": 5}
    assert {**Client().talk._answers.stamped(said, cacheable=True), "_meta": 0} == {
        **said, "cacheScope": "private", "_meta": 0,
    }  # fmt: skip


def test_all_first_lists_of_a_client_wait_until_the_same_moment(backend: str) -> None:
    class Settling(Proxy):
        @property
        def settling_time(self) -> float:
            return 10.0

        async def settle(self) -> None:
            await anyio.sleep_forever()

    async def body() -> None:
        client, came = Client(Settling(FakeRoom())), list[tuple[int, int]]()
        async with anyio.create_task_group() as group:
            client.spawn = group.start_soon
            for number, pause in ((1, 4.0), (2, 5.9), (3, 0.2), (4, 0.1)):
                client.say({"jsonrpc": "2.0", "id": number, "method": "tools/list"})
                await anyio.sleep(pause)
                came += [(json.loads(line)["id"], number) for line in client.lines[len(came) :]]
        # At 9.9 s two wait; at 10.1 s, after the third had asked, all have been answered; the fourth at once.
        assert sorted(came) == [(1, 3), (2, 3), (3, 3), (4, 4)]

    run_virtual(backend, body)


def test_a_list_that_waits_is_a_request_in_flight(backend: str) -> None:
    class Settling(Proxy):
        @property
        def settling_time(self) -> float:
            return 10.0

        async def settle(self) -> None:
            await anyio.sleep_forever()

    async def body() -> None:
        client = Client(Settling(FakeRoom()), max_open=2)
        async with anyio.create_task_group() as group:
            client.spawn = group.start_soon
            answers = [
                client.say({"jsonrpc": "2.0", "id": number, "method": "tools/list"})
                for number in (1, 1, 2, 3)
            ]
            refused = [(one[0]["id"], "error" in one[0]) for one in answers if one]
            assert refused == [(1, True), (3, True)], "its id is taken, and there is no place"
            assert client.talk.in_flight == 2
            client.talk.close()
        assert client.talk.in_flight == 0
        assert len(client.lines) == 2, "nobody is there to be answered"

    run_virtual(backend, body)


class Fake(SimpleNamespace):
    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)


def test_a_client_is_asked_only_for_what_it_declared_and_told_what_is_not_the_doors(backend: str) -> None:
    async def body() -> None:
        heard = list[Any]()
        updated = lambda _client, server, params: heard.append((server, params))  # noqa: E731

        def client(modern: bool, **capabilities: Any) -> Any:
            async def ask(method: str, params: Any, progress: Any) -> Any:
                return {"asked": method, "progress": progress is not None}

            return Fake(
                modern=modern,
                capabilities=capabilities,
                ask=ask,
                tell=lambda method, params: heard.append((method, params)),
            )

        def request(method: str, **params: Any) -> ServerRequest:
            return ServerRequest(Address("a"), method, params)

        client_host = ClientHost(FakeRoom(), updated)
        assert client_host.greeting(Address("a")) == Greeting(), "it has said nothing yet"
        client_host.heard(Address("a"), "notifications/message", {"level": "info"})
        with pytest.raises(RpcRefusal):
            await client_host.answer(request("roots/list"))
        assert not heard
        old = client(False, roots={"listChanged": True}, x={})
        client_host.came(old)
        assert client_host.greeting(Address("a")) == Greeting(
            {"roots": {"listChanged": True}}, by_handshake=True
        )
        assert await client_host.answer(request("roots/list")) == {"asked": "roots/list", "progress": False}
        marked = request("roots/list", _meta={"progressToken": 0})
        assert (await client_host.answer(marked))["progress"]
        for other in ("sampling/createMessage", "tools/list"):
            with pytest.raises(RpcRefusal) as caught:
                await client_host.answer(request(other))
            assert caught.value.rpc_code == -32601
        client_host.heard(Address("a"), "notifications/message", {"level": "info"})
        client_host.heard(Address("a"), "notifications/tools/list_changed", None)
        client_host.heard(Address("a"), "notifications/resources/updated", {"uri": "u"})
        assert heard == [("notifications/message", {"level": "info"}), ("a", {"uri": "u"})]
        gone: list[Any] = []
        vars(client_host.suspended)["left"] = gone.append
        client_host.left(old)
        assert gone == [old], "what it left suspended goes too"
        assert client_host.greeting(Address("a")) == Greeting(), "nobody is there to be asked"
        for its in (client(True, sampling={}), client(False)):
            client_host = ClientHost(FakeRoom(), updated)
            client_host.came(its)
            found = client_host.greeting(Address("a"))
            assert found == Greeting(its.capabilities), "the newer era can be asked as it is"

    run(backend, body)


def _followed() -> tuple[Job, Any]:
    ended: list[Any] = []
    sink: Any = SimpleNamespace(
        job_done=lambda _job, result, error: ended.append(result or error),
        job_broke=lambda _job, error: ended.append(error),
    )
    call: Any = Fake(cancels=0, ended=ended)

    def cancel() -> None:
        call.cancels += 1

    call.cancel = cancel
    job = Job(sink, lambda _work: None, b"1")
    job.follow(call)
    return job, call


def test_a_job_that_breaks_or_is_cancelled_cancels_what_it_follows_once() -> None:
    job, call = _followed()
    job.broke(RpcFault(-1, "no"))
    job.broke(ValueError())
    job.cancel()
    assert (call.cancels, [error.message for error in call.ended]) == (1, ["no"])
    job, call = _followed()
    job.cancel()
    job.cancel()
    job.answer({"late": 1})
    assert (call.cancels, call.ended) == (1, [])
    job, call = _followed()
    job.let_go()
    job.cancel()
    assert call.cancels == 0


def test_the_end_of_a_job_is_passed_on_whole_and_lets_go_of_its_call() -> None:
    told: list[Any] = []

    def done(_job: Job, result: Any, error: Any) -> None:
        told.append(result if error is None else (error.code, error.message, error.data))

    def raw(_job: Job, result: bytes, **more: Any) -> None:
        told.append((result, more))

    sink: Any = SimpleNamespace(job_done=done, job_raw=raw, job_broke=lambda _job, error: told.append(error))  # pyright: ignore[reportUnknownLambdaType]
    broken, filled = ValueError(), bytes.upper
    gc.disable()  # a cycle would be found only by a collection
    try:
        for end, said in (
            (lambda job: job.answer({"x": 1}), {"x": 1}),
            (lambda job: job.answer_raw(b"{}"), (b"{}", {"modern": False, "filled": None})),
            (
                lambda job: job.answer_raw(b"{}", modern=True, filled=filled),
                (b"{}", {"modern": True, "filled": filled}),
            ),
            (lambda job: job.fail(-1, "no"), (-1, "no", None)),
            (lambda job: job.fail(-1, "no", {"d": 1}), (-1, "no", {"d": 1})),
            (lambda job: job.broke(RpcFault(-2, "odd", [1])), (-2, "odd", [1])),
            (lambda job: job.broke(broken), broken),
            (lambda job: job.cancel(), None),
        ):
            job, call = Job(sink, cast("Any", None), b"1"), _Cancelled()
            job.follow(cast("Any", call))
            call.job = job  # as its callback does
            gone = weakref.ref(call)
            end(job)
            assert told == [said] * (said is not None)
            assert job.ended
            job.answer({"late": 1})
            job.answer_raw(b"late")
            job.fail(-3, "late")
            assert len(told) == (said is not None)
            told.clear()
            del job, call
            assert gone() is None
    finally:
        gc.enable()


class _Cancelled:
    job: Job | None = None

    def cancel(self) -> None:
        pass


def test_a_task_may_pass_its_job_on_to_a_call_or_to_a_later_task(backend: str) -> None:
    async def body() -> None:
        for goes_on in ("a call", "a task", "an end", "nothing"):
            told: list[Any] = []
            sink: Any = SimpleNamespace(
                job_done=lambda _job, result, _error, told=told: told.append(result),  # pyright: ignore[reportUnknownLambdaType]
                job_broke=lambda _job, error, told=told: told.append(error),  # pyright: ignore[reportUnknownLambdaType]
            )
            async with anyio.create_task_group() as tasks:
                job = Job(sink, tasks.start_soon, b"1", "x/y")

                async def later(job: Job = job) -> None:
                    await anyio.lowlevel.checkpoint()
                    job.answer({"later": 1})

                async def first(job: Job = job, goes_on: str = goes_on, later: Any = later) -> None:
                    if goes_on == "a call":
                        job.follow(cast("Any", _Cancelled()))
                    elif goes_on == "a task":
                        job.run(later)
                    elif goes_on == "an end":
                        job.answer({"at once": 1})

                job.run(first)
            if goes_on == "nothing":
                assert [str(error) for error in told] == ["x/y was left without an answer"]
            else:
                assert told == {"a call": [], "a task": [{"later": 1}], "an end": [{"at once": 1}]}[goes_on]

    run(backend, body)


def test_a_job_that_has_ended_follows_nothing() -> None:
    job, call = _followed()
    job.answer({"a": 1})
    job.follow(call)
    assert job._call is None, "each would keep the other"
    job.broke(ValueError())
    job.cancel()
    assert (call.cancels, call.ended) == (0, [{"a": 1}])


def test_a_state_is_not_sealed_for_what_only_reads_the_same() -> None:
    signer = StateSigner()
    signed_state = signer.sign("state", "ab", "c")
    assert signer.verify(signed_state, "ab", "c") == "state"
    for other in (("a", "bc"), ("abc",), ("ab", "c", ""), ("c", "ab")):
        with pytest.raises(RpcFault):
            signer.verify(signed_state, *other)


def test_a_call_that_ends_while_nobody_waits_is_told_to_who_comes_back() -> None:
    suspended, told = SuspendedCalls(30.0), list[Any]()
    job, call = _followed()
    suspendable = SuspendableCall(suspended, job, "s", lambda job, call: told.append((job, call)))
    suspendable.follow(call)
    job.let_go()
    suspendable.job = None  # it was answered that input is needed
    suspendable.ended(call)
    assert told == []
    later, _ = _followed()
    suspendable.carry(later)
    assert told == [(later, call)]


def test_a_question_that_cannot_be_said_leaves_nothing_open() -> None:
    said: list[bytes] = []
    requests = ClientRequests(lambda line: bool(said.append(line)) or True)

    async def body() -> None:
        with pytest.raises(TypeError):
            await requests.ask("roots/list", {"odd": object()})
        assert not requests.broken(b'"greenroom-1"', RpcFault(rpc.PARSE_ERROR, "?"))
        assert said == []

    run("asyncio", body)


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
def test_a_long_line_read_in_slices_is_answered_like_a_short_one(backend: str, message: Any) -> None:
    line = message if isinstance(message, bytes) else json.dumps(message).encode()

    async def body() -> None:
        one, other = Client(), Client()
        async with anyio.create_task_group() as group:
            one.spawn = other.spawn = group.start_soon
            one.talk.receive(line)
            finish(other.talk.receiving(bytearray(line)))
            await anyio.sleep(1)
        assert list(map(_but_words, other.lines)) == list(map(_but_words, one.lines))
        assert one.notes == other.notes == []

    run_virtual(backend, body)


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
                "params": {"name": "mcp", "arguments": {"tool": "x", "args": '{"x":[' + "[]," * 200_000}},
            },
            "more than 100,000 objects and arrays",
        ),
        (
            {**CALL, "params": {"name": "mcp", "arguments": {"tool": "x", "args": "[" + LONG_TEXT}}},
            "it ends too early",
        ),
    ],
    ids=["initialize", "notification", "values in a text", "no json in a text"],
)
def test_what_may_not_be_long_is_refused_with_the_reason(backend: str, message: Any, said: str) -> None:
    async def body() -> None:
        client = Client()
        async with anyio.create_task_group() as group:
            client.spawn = group.start_soon
            finish(client.talk.receiving(json.dumps(message).encode()))
            await anyio.sleep(1)
        (answer,) = map(json.loads, client.lines)
        assert said in answer["error"]["message"]

    run_virtual(backend, body)


def test_progress_passes_without_what_we_sign_and_under_the_clients_own_token() -> None:
    told: list[Any] = []
    sink = Answers(open_jobs(1), lambda _: True, lambda *said: told.append(said), {}, print)
    job: Any = SimpleNamespace(token="mine")
    sink.job_progress(job, {"progress": 1, "progressToken": 7, "_meta": {f"{OURS}x": 1, "theirs": 2}})
    assert told == [(rpc.PROGRESS, {"progress": 1, "progressToken": "mine", "_meta": {"theirs": 2}})]


# ---- a client that another gateway has had ---------------------------------------------------------------------------


class Keeping:
    """An exposure that keeps its jobs for the test to end, and whom it has met."""

    suspended: Sized = ()
    settling_time = 0.0

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.met: list[Any] = []

    def capabilities(self) -> Mapping[str, Any]:
        return {}

    def instructions(self) -> str | None:
        return None

    def begin(self, job: Job) -> bool:
        self.jobs.append(job)
        return True

    def came(self, client: Any) -> None:
        self.met.append(dict(client.capabilities))

    def left(self, client: Any) -> None:
        self.met.append("left")


@pytest.mark.parametrize("greeted", [False, True])
def test_what_a_client_said_to_a_gateway_that_is_gone_counts_here(greeted: bool, backend: str) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}
    said = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).encode()

    async def body() -> None:
        client = Client(exposure := Keeping())
        client.talk.greet_again(said, greeted=greeted, gateways=2)
        assert (exposure.met, client.talk.greeted, client.talk.modern) == ([{"roots": {}}], greeted, False)
        assert client.lines == [], "it knows the answer"
        async with anyio.create_task_group() as group:
            group.start_soon(client.talk.ask, "roots/list", {})
            await anyio.wait_all_tasks_blocked()
            assert json.loads(client.lines[0])["id"] == "greenroom-2000000001"
            group.cancel_scope.cancel()
        for nothing in (b"", b"[]", b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'):
            other = Client(exposure := Keeping())
            other.talk.greet_again(nothing, greeted=True, gateways=0)
            assert (exposure.met, other.talk.greeted, other.lines) == ([], False, [])

    run(backend, body)


# ---- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"jsonrpc":"2.0","id":"greenroom-1","result":{"a":}}', "cannot be read"),
        (b'{"jsonrpc":"2.0","id":"greenroom-1","result":', "cannot be read"),
        (b'{"jsonrpc":"2.0","id":"greenroom-1","result":[1]}', "is no object"),
    ],
)
def test_an_answer_that_cannot_be_read_fails_the_question_and_is_not_answered(
    line: bytes, told: str, is_large: bool, backend: str
) -> None:
    async def body() -> None:
        client, heard = Client(), list[str]()

        async def ask() -> None:
            try:
                await client.talk.ask("roots/list", {})
            except RpcRefusal as refusal:
                heard.append(refusal.message)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            if is_large:
                finish(client.talk.receiving(bytearray(line)))
            else:
                client.talk.receive(line)
        assert len(heard) == 1
        assert told in heard[0]
        assert len(client.lines) == 1

    run(backend, body)


@pytest.mark.parametrize("size", [0, 1 << 20])
@pytest.mark.parametrize("end", [b"}", b',"x":"%b"}'])
def test_an_answer_of_any_size_is_read(size: int, end: bytes, backend: str) -> None:
    text = b"y" * size
    line = (
        b'{"jsonrpc":"2.0","id":"greenroom-1","result":{"a":1' + (end % text if b"%" in end else end) + b"}"
    )

    async def body() -> None:
        client, heard = Client(), list[Any]()

        async def ask() -> None:
            heard.append(await client.talk.ask("roots/list", {}))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            finish(client.talk.receiving(bytearray(line)))
        assert heard == [{"a": 1} if b"%" not in end else {"a": 1, "x": text.decode()}]

    run(backend, body)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_an_answer_that_is_no_json_is_an_error_for_who_asked(size: int, backend: str) -> None:
    async def body() -> None:
        requests = ClientRequests(lambda _line: True)
        heard: list[Any] = []

        async def ask() -> None:
            try:
                await requests.ask("roots/list", {})
            except RpcRefusal as refusal:
                heard.append((refusal.rpc_code, refusal.message[:30]))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            raw = b'{"a":"' + b"x" * size + b'","b":}'
            requests.answered(b'"greenroom-1"', rpc.ClientMessage(result=msgspec.Raw(raw)))
        assert heard == [(-32603, "The client's answer cannot be ")]

    run(backend, body)


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{', 7),
        (b'{"jsonrpc":"2.0","id":"a","method":', "a"),
        (b'{"method":"tools/call"', None),
        (b"{", None),
    ],
)
def test_what_is_no_json_is_answered_under_the_id_that_its_head_shows(line: bytes, id_: Any) -> None:
    client = Client()
    (answer,) = client.say(line)
    assert (answer["id"], answer["error"]["code"]) == (id_, -32700)
    client.talk.refuse_line(line, "too long")
    said = json.loads(client.lines[-1])
    assert (said["id"], said["error"]["code"], said["error"]["message"]) == (id_, -32600, "too long")


def test_a_cancellation_that_names_nothing_is_noted_and_not_answered() -> None:
    client = Client()
    for params in ({}, {"requestId": None}, [], {"requestId": {}}):
        assert client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}) == []
    assert all(note.startswith("ignored a cancellation: ") for note in client.notes)
    assert client.ask("ping") == {}
    assert client.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": []}) == []


# ---- which era ------------------------------------------------------------------------------------------------------


class Lists(Keeping):
    """An exposure with one list, which says of which era it is."""

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [{"modern": modern}]} if method == "tools/list" else None

    def heard(self, client: Any, method: str) -> None:
        self.met.append(method)


def test_each_request_is_of_the_era_that_it_says() -> None:
    client = Client(exposure := Lists())
    hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}}
    newer = {"_meta": {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}}}
    cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    for _ in range(2):
        assert client.ask("initialize", hello)["protocolVersion"] == "2025-11-25"
        assert not client.talk.modern
        assert client.ask("tools/list") == {"tools": [{"modern": False}]}
        found = client.ask("tools/list", newer)
        assert client.talk.modern
        assert found.pop("_meta")["io.modelcontextprotocol/serverInfo"]["name"] == "greenroom"
        assert found == {"tools": [{"modern": True}], **cached}
    assert exposure.met == [{"roots": {}}], "it says the same of itself in both"
    for method in ("initialize", "ping"):
        assert client.ask(method, {**hello, **newer})["code"] == -32601
    for params in ({}, newer):
        assert client.ask("prompts/list", params)["code"] == -32601
    assert (
        client.ask("initialize", {**hello, "protocolVersion": "1999-01-01"})["protocolVersion"]
        == "2025-11-25"
    )


def test_a_client_is_greeted_when_it_says_so_and_the_rest_is_heard_by_the_exposure() -> None:
    client = Client(exposure := Lists())
    client.ask("initialize", {"protocolVersion": "2025-11-25"})
    assert (exposure.met, client.talk.greeted) == ([{}], False), "who can do nothing has come as well"
    client.say({"jsonrpc": "2.0", "method": "notifications/x"})
    assert not client.talk.greeted
    client.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (exposure.met, client.talk.greeted) == ([{}, "notifications/x"], True)


def test_who_is_behind_with_reading_is_told_nothing_more() -> None:
    client = Client(Lists())
    client.talk.tell("notifications/x")
    client.busy = True
    client.talk.tell("notifications/y")
    assert [json.loads(line)["method"] for line in client.lines] == ["notifications/x"]


def test_a_first_list_that_waits_is_a_request_like_others(backend: str) -> None:
    class Late(Lists):
        settling_time = 5.0

        def __init__(self) -> None:
            super().__init__()
            self.settled = anyio.Event()

        async def settle(self) -> None:
            await self.settled.wait()

    async def body() -> None:
        client = Client(exposure := Late(), max_open=3)
        async with anyio.create_task_group() as group:
            client.spawn = group.start_soon
            for key, method, params in (
                (1, "tools/list", {}),
                (2, "tools/list", {"_meta": ENVELOPE}),
                (3, "prompts/list", {}),
            ):
                assert client.say({"jsonrpc": "2.0", "id": key, "method": method, "params": params}) == []
            for key in (3, 4):
                assert "error" in client.say({"jsonrpc": "2.0", "id": key, "method": "tools/list"})[0]
            refused = len(client.lines)
            await anyio.sleep(4.9)
            assert len(client.lines) == refused
            await anyio.sleep(0.2)
            said = {each["id"]: each for each in map(json.loads, client.lines[refused:])}
            assert said[1]["result"] == {"tools": [{"modern": False}]}
            assert said[2]["result"]["ttlMs"] == 0
            assert said[3]["error"]["code"] == -32601
            client.say({"jsonrpc": "2.0", "id": 5, "method": "tools/list"})
            await anyio.sleep(0.1)
            assert json.loads(client.lines[-1])["id"] == 5, "its time is over for good"
        assert client.notes == []
        assert not exposure.settled.is_set()

    run_virtual(backend, body)


def test_a_bug_at_the_beginning_of_a_request_is_its_own_affair() -> None:
    class Broken(Keeping):
        def begin(self, job: Job) -> bool:
            if job.method == "tools/call":
                raise ValueError("a secret")
            return False

    client = Client(Broken())
    (answer,) = client.call({})
    assert (answer["error"]["code"], client.talk.in_flight, len(client.notes)) == (-32603, 0, 1)
    assert "secret" not in client.notes[0] + json.dumps(answer)
    assert client.ask("prompts/get", {"name": "x"})["code"] == -32601
    assert client.talk.in_flight == 0


# ---- what a session of a profile sees --------------------------------------------------------------------------------


# ---- questions of servers --------------------------------------------------------------------------------------------


class Hidden(FakeRoom):
    """Of what servers say, the word `secret` is hidden at the doors in `doors`."""

    def __init__(self, *doors: Scrub, **settings: Any) -> None:
        self.doors = doors
        super().__init__(**settings)

    def scrubber(self, server: str, door: Scrub, /) -> Any:
        if door not in self.doors:
            return None
        return SimpleNamespace(scrub=lambda raw: raw.replace(b"secret", b"***"))


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("door", [Scrub.MCP, Scrub.ALL])
def test_a_question_names_its_server_and_loses_credentials_at_its_door(
    backend: str, door: Scrub, modern: bool
) -> None:
    asked: list[Any] = []
    theirs = {"action": "accept", "_meta": {"greenroom/server": "forged", "own": 1}}

    async def ask(*what: Any) -> Any:
        asked.append(what)
        return theirs

    async def body() -> None:
        for doors, message in (((door,), "Is *** right?"), ((), "Is secret right?")):
            room = Hidden(*doors)
            host = ClientHost(room, door=door)
            told: list[Any] = []
            client: Any = Fake(modern=modern, capabilities={"elicitation": {}}, ask=ask)
            client.tell = lambda method, params, told=told: told.append(params)
            host.came(client)
            vars(host.suspended)["ask"] = ask
            call: Any = object()
            params = {"message": "Is secret right?"}
            request = ServerRequest(Address("a"), "elicitation/create", params, call=call)
            assert await host.answer(request) == {"action": "accept", "_meta": {"own": 1}}
            said = {"message": f"[a] {message}", "_meta": {"greenroom/server": "a"}}
            if modern:
                what = {"method": "elicitation/create", "params": said}
                assert asked.pop() == (client, "a", what, call)
            else:
                assert asked.pop() == ("elicitation/create", said, None)
            host.heard(
                Address("a"), "notifications/message", {"data": "a secret", "_meta": {"greenroom/x": 1}}
            )
            hides = bool(doors)
            assert told[0]["data"] == ("a ***" if hides else "a secret")
            assert "greenroom/x" not in told[0].get("_meta", {})

    run(backend, body)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("modern", [False, True])
def test_servers_are_greeted_with_what_the_client_can_do(modern: bool, passes: bool) -> None:
    client: Any = Fake(modern=modern)
    host = ClientHost(FakeRoom(), passes_extensions=passes)
    host.came(client)
    extensions = {"extensions": {"a": {}}}
    for asked in ({}, {"roots": {}}, {"elicitation": {}, "sampling": {}}):
        client.capabilities = {**asked, **extensions, "tools": {}}
        found = host.greeting(Address("a"))
        assert found.capabilities == {**asked, **(extensions if passes else {})}
        assert found.by_handshake is (bool(asked) and not modern)
        assert found.log_level == (None if modern else "info")


def test_what_the_door_tells_itself_or_nobody_heard_of_is_told_as_it_is() -> None:
    host, told = ClientHost(FakeRoom()), list[Any]()
    client: Any = Fake(modern=False, capabilities={}, tell=lambda *said: told.append(said))
    host.came(client)
    for kind in ("tools/list_changed", "resources/list_changed", "prompts/list_changed"):
        host.heard(Address("a"), f"notifications/{kind}", None)
    host.heard(Address("a"), "notifications/subscriptions/acknowledged", {})
    host.heard(Address("a"), "notifications/resources/updated", {"uri": "x:1"})
    assert told == []
    host.heard(Address("a"), "notifications/x", None)
    host.heard(Address("a"), "notifications/y", {})
    assert told == [("notifications/x", None), ("notifications/y", {})]


def test_only_a_change_of_roots_is_one() -> None:
    room, changed = FakeRoom(), list[str]()
    room.roots_changed = lambda: changed.append("roots")
    host = ClientHost(room)
    for kind in ("initialized", "roots/list_changed", "x"):
        host.said(f"notifications/{kind}")
    assert changed == ["roots"]


# ---- calls that wait for their client --------------------------------------------------------------------------------


def test_a_suspended_call_counts_until_its_client_is_too_late(backend: str) -> None:
    async def body() -> None:
        client, room = object(), FakeRoom(call_total_timeout=30.0, call_timeout=7.0)
        suspended = ClientHost(room).suspended
        for _ in range(2):
            job: Any = Ended(client=client)
            SuspendableCall(suspended, job, "s", lambda *_: None)
            with anyio.move_on_after(5.0):
                await suspended.ask(client, "s", {"method": "x"})
        assert (anyio.current_time(), len(suspended)) == (10.0, 2)
        for now, count in ((29.9, 2), (30.1, 1), (35.1, 0)):
            await anyio.sleep(now - anyio.current_time())
            assert len(suspended) == count

    run_virtual(backend, body)


def test_the_oldest_request_to_a_server_carries_its_question_unless_it_says_of_which_call_it_is(
    backend: str,
) -> None:
    async def body() -> None:
        suspended, client = SuspendedCalls(30.0), object()
        jobs: list[Any] = []
        calls: list[Any] = []
        for whose, server in ((object(), "s"), (client, "t"), (client, "s"), (client, None), (client, "s")):
            jobs.append(Ended(client=whose))
            suspendable = SuspendableCall(suspended, jobs[-1], server, lambda *_: None)
            calls.append(Fake(cancel=lambda: None))
            suspendable.follow(calls[-1])
        for call, carrier in ((calls[4], 4), (None, 2), (None, 3), (calls[0], None)):
            with anyio.move_on_after(1.0):
                try:
                    await suspended.ask(client, "s", {"method": "x"}, call)
                except RpcRefusal:
                    assert carrier is None
            carried = [number for number, job in enumerate(jobs) if len(job.said) > 1]
            for job in jobs:
                del job.said[1:]
            assert carried == ([] if carrier is None else [carrier])

    run_virtual(backend, body)


def test_a_call_that_ends_before_it_is_followed_is_cancelled_by_nobody() -> None:
    job, cancelled = Ended(), list[str]()
    suspendable = SuspendableCall(SuspendedCalls(1.0), cast("Any", job), "s", lambda *_: None)
    call: Any = Fake(cancel=lambda: cancelled.append("cancelled"))
    suspendable.ended(call)
    suspendable.follow(call)
    suspendable.drop()
    assert (cancelled, job.said) == ([], [])


def test_a_resource_may_not_be_cached_and_a_version_is_told_as_text() -> None:
    sent, jobs = list[bytes](), open_jobs(2)
    sink = Answers(jobs, lambda line: bool(sent.append(line)) or True, lambda *_: None, {}, print)
    for method, is_cached in (("resources/read", True), ("tools/call", False)):
        job: Any = SimpleNamespace(key=b"1", modern=True, method=method)
        jobs[b"1"] = job
        sink.job_raw(job, b'{"contents":[]}', modern=False)
        said = json.loads(sent.pop())["result"]
        assert (said.get("ttlMs"), said.get("cacheScope")) == ((0, "private") if is_cached else (None, None))
    version = {"io.modelcontextprotocol/protocolVersion": 7}
    data = Client().ask("ping", {"_meta": version})["data"]
    assert data == {"supported": ["2026-07-28"], "requested": "7"}


def test_a_question_of_ours_is_asked_in_our_own_name(backend: str) -> None:
    asked: list[Any] = []

    async def ask(*what: Any) -> Any:
        asked.append(what)
        return {}

    async def body() -> None:
        host = ClientHost(Hidden(Scrub.MCP))
        host.came(cast("Any", Fake(modern=False, capabilities={"elicitation": {}}, ask=ask)))
        params = {"message": "May a secret be sent?"}
        await host.answer(ServerRequest(Address("a"), "elicitation/create", params, is_ours=True))
        assert asked == [("elicitation/create", params, None)]

    run(backend, body)


def test_progress_of_a_suspendable_call_goes_to_the_request_that_is_open() -> None:
    job, heard = Ended(), list[Any]()
    vars(job)["progress"] = heard.append
    suspendable = SuspendableCall(SuspendedCalls(1.0), cast("Any", job), "s", lambda *_: None)
    suspendable.progress({"progress": 1})
    suspendable.job = None
    suspendable.progress({"progress": 2})
    assert heard == [{"progress": 1}]


# ---- who speaks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", range(len("greenroom/x")))
@pytest.mark.parametrize("spelling", ["\\u%04x", "\\u%04X"])
def test_however_a_key_of_ours_is_spelled_it_is_taken_out(letter: int, spelling: str) -> None:
    key = "greenroom/x"
    spelled = key[:letter] + spelling % ord(key[letter]) + key[letter + 1 :]
    said = b'{"content":[],"_meta":{"%b":1,"own":2}}' % spelled.encode()
    sent, jobs = list[bytes](), open_jobs(1)
    sink = Answers(jobs, lambda line: bool(sent.append(line)) or True, lambda *_: None, {}, print)
    job: Any = SimpleNamespace(key=b"1", modern=False, method="tools/call")
    jobs[b"1"] = job
    sink.job_raw(job, said, modern=False)
    assert json.loads(sent[0])["result"] == {"content": [], "_meta": {"own": 2}}


def test_what_is_no_object_has_no_keys_of_ours_and_others_keep_theirs() -> None:
    for raw in (b'["greenroom/x"]', b'"greenroom/x"', b'{"greenroom/x":1}', b'{"_meta":"greenroom/x"}'):
        assert result_without_ours(raw) is raw
    theirs = {"message": "Sure?", "_meta": {"own": 1, "greenroom/other": 2}}
    named = {"own": 1, "greenroom/server": "s"}
    assert question_of("s", "elicitation/create", theirs) == {"message": "[s] Sure?", "_meta": named}
    assert question_of("s", "elicitation/create", {"message": 7})["message"] == 7
    for data in ([], 0, "", False):
        assert error_data_of("s", data) == data
    assert error_data_of("s", {}) == {"greenroom/server": "s"}
    assert error_data_of("s", {"greenroom/server": "t", "greenroom/x": 1}) == {"greenroom/server": "s"}


def test_a_list_that_waits_is_of_the_era_of_its_request(backend: str) -> None:
    class Learning(Proxy):
        settling_time = 10.0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

        async def settle(self) -> None:
            await anyio.lowlevel.checkpoint()

        def listing(self, method: str, *, modern: bool = False) -> dict[str, Any]:
            return {"tools": [{"name": f"{method}, modern: {modern}"}]}

    async def main() -> None:
        room = FakeRoom()
        client = Client(Learning(room), room=room)
        async with anyio.create_task_group() as group:
            client.spawn = group.start_soon
            for params in ({}, {"_meta": ENVELOPE}):
                client.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
                while not client.lines:
                    await anyio.lowlevel.checkpoint()
                result = json.loads(client.lines.pop())["result"]
                assert result["tools"] == [{"name": f"tools/list, modern: {bool(params)}"}]
                assert ("ttlMs" in result, "resultType" in result) == (bool(params),) * 2

    run(backend, main)
