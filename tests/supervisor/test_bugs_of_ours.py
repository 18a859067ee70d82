"""T56: an error in our own code ends one incarnation. Each of its calls has its outcome, and its server comes back.

First the real thing: children whose answers can be read and not be written again. Then errors put into the room, one
place after the other, under every order of its tasks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.gateway import Gateway, serve
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, record_events

from greenroom import CallError, Greenroom, State
from greenroom.actors import call_errors
from greenroom.actors.call_queue import CallQueue
from greenroom.actors.server import ServerActor
from greenroom.actors.timers import Alarm
from greenroom.events import Event, Note, NoteCode, Transition
from greenroom.supervisor.servers import ServerRecord
from greenroom.testing import FakeServer, assert_one_outcome_each, explore, exploring, tool
from greenroom.testing.fake_servers import FakeConnection
from greenroom.testing.room_inside import RoomInside

DEEP = (90, 101, 500, 960, *range(964, 990, 3), 1_500)  # levels: some decode, some decode and do not encode
KINDS = ("error", "request", "log", "progress", "notice")
ANSWERS = r"""
import json, sys
def send(text):
    print(text, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method is None or number is None:
        continue
    head = '{"jsonrpc":"2.0","id":%d,' % number
    if method == "initialize":
        has = {"tools": {}, "logging": {}}
        said = {"protocolVersion": "2025-06-18", "capabilities": has, "serverInfo": {"name": "d", "version": "1"}}
        send(head + '"result":' + json.dumps(said) + "}")
    elif method == "tools/list":
        schema = {"type": "object"}
        tools = [{"name": name, "inputSchema": schema} for name in KINDS]
        send(head + '"result":' + json.dumps({"tools": tools}) + "}")
    elif method == "tools/call":
        kind, levels = message["params"]["name"], message["params"]["arguments"]["levels"]
        token = json.dumps(message["params"].get("_meta", {}).get("progressToken", 0))
        deep = '{"a":' * levels + "1" + "}" * levels
        if kind == "error":
            send(head + '"error":{"code":5,"message":"no ink","data":%s}}' % deep)
            continue
        send({
            "request": '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":'
                '{"message":"m","requestedSchema":%s}}',
            "log": '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":%s}}',
            "progress": '{"jsonrpc":"2.0","method":"notifications/progress","params":'
                '{"progressToken":' + token + ',"progress":1,"more":%s}}',
            "notice": '{"jsonrpc":"2.0","method":"notifications/odd","params":%s}',
        }[kind] % deep)
        send(head + '"result":{"content":[{"type":"text","text":"done"}]}}')
    else:
        send(head + '"error":{"code":-32601,"message":"Method not found"}}')
"""


def deep_server(folder: Path) -> dict[str, Any]:
    file = folder / "deep.py"
    file.write_text(f"KINDS = {KINDS!r}\n{ANSWERS}")
    return {"command": sys.executable, "args": ["-S", str(file)]}


@pytest.mark.parametrize("kind", KINDS)
@in_real_time
async def test_t56_what_is_nested_too_deep_to_be_written_ends_its_call_and_nothing_else(
    tmp_path: Path, kind: str
) -> None:
    config = {"mcpServers": {"d": deep_server(tmp_path)}, "settings": {"bootstrap": False}}
    async with Greenroom.open(config, cache_path=":memory:", on_elicitation=decline) as room:
        await room.connect("d")
        events = record_events(room, Event)
        for levels in DEEP:
            with anyio.fail_after(PATIENCE):
                outcome = await outcome_of(room, f"d_{kind}", levels)
            if kind == "error":
                assert isinstance(outcome, CallError)
                assert outcome.reach == "answered"
                json.dumps(outcome.as_dict())  # whoever shows it can write it
            else:
                assert outcome == "done"
        assert not any(isinstance(each, Note) and each.code is NoteCode.BUG for each in events)
        assert [each.state for each in room.status()] == [State.CONNECTED]
    assert_one_outcome_each(events, room.drain_report)


async def outcome_of(room: Greenroom, name: str, levels: int) -> str | CallError:
    try:
        return (await room.call(name, {"levels": levels}, on_progress=lambda _params: None)).text
    except CallError as error:
        return error


async def decline(_request: Any) -> dict[str, Any]:
    return {"action": "decline"}


@pytest.mark.parametrize("door", ["direct", "proxy"])
def test_t56_a_client_of_a_gateway_has_its_answer(tmp_path: Path, door: str) -> None:
    with serve(tmp_path, {"d": deep_server(tmp_path)}, "--expose", door) as gateway:
        gateway.initialize()
        for levels in DEEP:
            for kind in KINDS:
                answer = gateway.answer(called(gateway, door, kind, levels))
                assert "a bug in Greenroom" not in json.dumps(answer)
                assert ("no ink" in json.dumps(answer)) == (kind == "error" and levels < 960) or levels >= 960
        report = gateway.end()
    assert report == 0


def called(gateway: Gateway, door: str, kind: str, levels: int) -> int:
    if door == "direct":
        return gateway.send("tools/call", {"name": f"d_{kind}", "arguments": {"levels": levels}})
    return gateway.start_mcp(tool=f"d_{kind}", args=json.dumps({"levels": levels}))


# ---- put into the room -----------------------------------------------------------------------------------------------

PLACES: dict[str, tuple[Any, str]] = {
    f"{str(getattr(owner, '__name__', owner)).rpartition('.')[2]}.{name}": (owner, name)
    for owner, names in {
        call_errors: (
            "without_secrets", "answer_error", "lost_error", "timed_out_error",
        ),
        Alarm: ("wake_by",),
        CallQueue: (
            "lose_all", "_expire_sent", "call_over", "share_places", "expire", "_take_off", "serve",
            "_expire_waiting", "_hold_back",
        ),
        ServerRecord: (
            "refuses", "may_send", "answered", "silent", "request_start", "withdraw_start", "ready", "became_idle",
            "leaving", "failed", "closed", "idle_timeout",
        ),
        ServerActor: ("begin_idling", "_on_ready", "_on_lost", "_announce", "_tell_transition"),
        FakeConnection: ("request", "abandon"),
    }.items()
    for name in names
}  # fmt: skip


@asynccontextmanager
async def broken_once(owner: Any, name: str, turn: int) -> AsyncGenerator[list[str]]:
    """`name` raises once, the `turn`-th time that it is called from now on. Yields what has been broken so far."""
    whole, calls, raised = getattr(owner, name), 0, list[str]()

    def broken(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == turn:
            raised.append(name)
            raise ZeroDivisionError(f"put into {name}")
        return whole(*given, **named)

    setattr(owner, name, broken)
    try:
        yield raised
    finally:
        setattr(owner, name, whole)


def refused(_arguments: Any) -> Any:
    raise AssertionError("it is answered with an error")


async def a_room_with_a_fault(place: tuple[Any, str, int]) -> None:
    """Calls that are answered, refused, cancelled, lost and never answered, of a server with one place. Whatever broke,
    each has one outcome, and the next call starts the server again."""
    owner, name, turn = place
    server, other = FakeServer(tools=[tool("echo")]), FakeServer()
    entries = {"a": {"maxInFlight": 1, "requestTimeoutMs": 2_000}, "b": {}}
    async with open_room({"a": server, "b": other}, entries=entries, restartBackoff={"minMs": 1}) as room:
        await room.connect("a")
        await room.connect("b")
        events = record_events(room, Event)
        outcomes: list[str] = []

        async def call(wait: float = 30.0) -> None:
            with anyio.move_on_after(wait):
                try:
                    await room.call("a_echo", {})
                    outcomes.append("result")
                except CallError as error:
                    outcomes.append(error.code)
                return
            outcomes.append("cancelled")

        async with broken_once(owner, name, turn):
            with exploring(), anyio.fail_after(300):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(call)
                server.call_error = (5, "no ink")
                await call()
                server.call_error = None
                server.call_latency = 10.0  # over its time
                await call()
                await call(1.0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    tasks.start_soon(call)
                    await anyio.sleep(1.0)
                    server.crash()
        server.call_latency = 0.0
        await anyio.sleep(200.0)
        assert len(outcomes) == 8
        await room.call("b_echo")
        assert other.starts == 1, "the others serve on"
        for _ in range(2):
            await room.call("a_echo")
        assert RoomInside(room).actor("a").in_flight == 0
        assert (server.live, server.most_live) == (1, 1)
    assert server.live == 0
    assert_one_outcome_each(events, room.drain_report)


@pytest.mark.changes_the_books
@pytest.mark.parametrize("place", PLACES)
def test_t56_whatever_breaks_in_the_room_each_call_has_one_outcome_and_the_server_comes_back(
    backend: str, place: str
) -> None:
    faults = {f"at {turn}": (*PLACES[place], turn) for turn in (1, 2, 4)}
    assert explore(a_room_with_a_fault, faults=faults, backend=backend, deviations=0).exhausted


@pytest.mark.parametrize(
    ("policy", "then"),
    [("never", State.IDLE), ("on_demand", State.IDLE), ("always", State.CONNECTED)],
)
@in_virtual_time
async def test_t56_a_bug_is_followed_by_what_follows_any_loss(policy: str, then: State) -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"restartPolicy": policy}}) as room:
        await room.connect("a")
        events = record_events(room, Transition)
        async with broken_once(call_errors, "answer_error", 1):
            server.call_error = (5, "no ink")
            with pytest.raises(CallError, match="error in Greenroom itself") as caught:
                await room.call("a_echo")
        assert (caught.value.code, caught.value.reach) == ("bug", "answered")
        server.call_error = None
        await anyio.sleep(1.0)
        assert room.status()[0].state is then
        assert "failed: bug" in [each.cause.value for each in events if each.cause is not None]
        if policy == "never":
            with pytest.raises(CallError) as refusal:
                await room.call("a_echo")
            assert refusal.value.code == "bug"
            await room.connect("a")
        await room.call("a_echo")
        assert server.starts == 2


@in_virtual_time
async def test_t56_a_server_that_meets_a_bug_again_and_again_is_quarantined_and_not_for_ever() -> None:
    server = FakeServer()
    async with open_room({"a": server}, entries={"a": {"lifecycle": "keep-alive"}}) as room:
        await room.ready()
        server.call_error = (5, "no ink")
        whole: Callable[..., Any] = call_errors.answer_error
        call_errors.answer_error = always_broken
        try:
            for _ in range(30):
                with pytest.raises(CallError) as caught:
                    await room.call("a_echo")
                assert caught.value.code in ("bug", "server_unavailable")
                await anyio.sleep(1.0)
        finally:
            call_errors.answer_error = whole
        assert server.starts < 12, "the circuit breaker and the restart intensity count it"
        server.call_error = None
        await anyio.sleep(120.0)
        await room.call("a_echo")


def always_broken(*_given: Any, **_named: Any) -> Any:
    raise ZeroDivisionError("put in")
