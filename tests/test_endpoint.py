"""The gateway's MCP methods: both eras, bad messages, cancellation, progress. One conversation, no transport."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run
from tests.support.door_rooms import NOW, FakeRoom

from greenroom import Greenroom
from greenroom.gateway._direct import Direct
from greenroom.gateway._endpoint import HANDSHAKE_VERSIONS, Endpoint
from greenroom.gateway._exposure import Proxy
from greenroom.gateway._jobs import Job
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
        self.congested = False
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


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_every_handshake_version_is_agreed_to(version: str) -> None:
    result = Client().ask("initialize", {"protocolVersion": version, "capabilities": {}})
    assert result == {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": False}, "logging": {}},
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
    client.congested = True
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
                assert "ZeroDivisionError" in client.notes[0]
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
            client = Client(Direct(room) if direct else Proxy(room))
            client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            params = {"name": "a_echo"} if direct else {"name": "mcp", "arguments": {"tool": "a_echo"}}
            gc.collect()
            gc.disable()
            try:
                for number in range(10):
                    client.say({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
                    while client.talk.in_flight:
                        await anyio.lowlevel.checkpoint()
                assert b'"result"' in client.lines[-1]
                assert not [left for left in gc.get_objects() if isinstance(left, Job)]
            finally:
                gc.enable()

    run(backend, body)
