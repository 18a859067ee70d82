"""What a room writes into its audit file: one line for each call that was asked for, whatever became of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.test_conversations import begin, call, talking
from tests.support import in_virtual_time, run, run_virtual
from tests.support.memory_client import MemoryClient
from tests.support.rooms import Outcomes, Running, settle, teach

from greenroom import ApprovalRequest, CallError, Greenroom, UsageError, Verdict
from greenroom.errors import RoomClosed
from greenroom.events import Note, NoteCode
from greenroom.protocol.lifecycle import Cause, Ending
from greenroom.safety import audit
from greenroom.supervisor.attachments import AUDIT
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import HANG, FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside

NO_ARGUMENTS = audit.digest_of(b"{}")[0]


class Audited:
    """The audit file of a test, and rooms that write it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"

    def room(
        self, servers: Mapping[str, FakeServer], entries: Any = None, on_approval: Any = None, **settings: Any
    ) -> Greenroom:
        config = {
            "mcpServers": {name: {"command": "fake", **(entries or {}).get(name, {})} for name in servers},
            "settings": settings,
        }
        return Greenroom.open(
            config,
            cache_path=":memory:",
            bootstrap=False,
            connectors=fake_connectors(servers),
            on_approval=on_approval,
            audit=self.path,
        )

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The lines of calls. The chain is whole."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        assert audit.check(lines).bad is None
        return [record for record in map(json.loads, lines) if record["kind"] == "call"]

    def told(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(record.get(key) for key in keys) for record in self.calls]


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return Audited(tmp_path)


WHAT = ("tool", "outcome", "reach")


@in_virtual_time
async def test_a_call_is_one_line_with_who_asked_for_what_and_what_came_of_it(audited: Audited) -> None:
    server = FakeServer(call_latency=0.25)
    async with audited.room({"a": server}) as room:
        await teach(room, "a")
        await room.call("a_echo", {"b": 1, "a": "s3cret"})
        assert len(audited.calls) == 1, "it is there when its caller goes on"
        async with room.session("ann") as ann:
            await ann.call("a_echo")
    first, second = audited.calls
    known = {"v": 1, "seq": 2, "kind": "call", "door": "embedded", "server": "a", "method": "tools/call"}
    digest = audit.digest_of(b'{"a":"s3cret","b":1}')[0]
    known |= {"tool": "a_echo", "original": "echo", "arguments": digest, "bytes": 20, "call": 1}
    known |= {"outcome": "result", "reach": "answered", "ms": 250.0}
    assert {key: first[key] for key in first if key not in ("time", "prev", "hash")} == known
    assert (second["session"], second["arguments"], second["call"]) == ("ann", NO_ARGUMENTS, 2)
    assert b"s3cret" not in audited.path.read_bytes()


@in_virtual_time
async def test_each_way_to_end_is_one_line_with_the_projects_own_words(audited: Audited) -> None:
    quiet, broken = FakeServer(), FakeServer(refuse_start="no such program")
    servers = {"a": quiet, "broken": broken, "off": FakeServer()}
    entries = {"a": {"callTimeoutMs": 1000}, "off": {"disabled": True}}
    async with audited.room(servers, entries) as room:
        await teach(room, "a", [tool("echo"), tool("only", annotations={"readOnlyHint": True})])
        await teach(room, "broken")
        await teach(room, "off")
        async with Outcomes() as calls:

            async def one(name: str, arguments: Any = None, **options: Any) -> Any:
                running = calls.start(room, name, arguments, **options)
                await settle()
                return running

            await one("a_echo", {"x": 1})
            quiet.handler = lambda _arguments: {"content": [], "isError": True}
            await one("a_echo")
            quiet.call_error = (-32603, "no")
            await one("a_echo")
            quiet.call_error, quiet.call_latency = None, HANG
            left = await one("a_echo")
            left.cancel()
            await settle()
            await one("a_echo", timeout=0.5)
            await anyio.sleep(1)
            await one("a_echo", [1])
            await one("nothing")
            await one("a_nothing")
            await one("a_echo", server="nowhere")
            await one("a_echo")
            quiet.crash("it crashed")
            await settle()
            await one("a_echo")
            await one("broken_echo")
            await one("broken_echo")
            await one("off_echo")
        quiet.call_latency = 0.0
        for ask in (
            lambda: room.read_resource("file:///none"),
            lambda: room.get_prompt("none"),
            lambda: room.request("a", "tools/call", {"name": "echo"}),
            lambda: room.request("a", "resources/read", {"uri": "file:///x"}),
            lambda: room.request("a", "ping", {}),
        ):
            with suppress(CallError):
                await ask()
    assert audited.told(*WHAT) == [
        ("a_echo", "result", "answered"),
        ("a_echo", "result", "answered"),  # the tool calls it an error
        ("a_echo", "call_failed", "answered"),
        ("a_echo", "cancelled", "sent"),
        ("a_echo", "timeout", "sent"),
        ("a_echo", "invalid_args", "not_sent"),
        ("nothing", "tool_not_found", "not_sent"),
        ("a_nothing", "tool_not_found", "not_sent"),
        ("a_echo", "server_not_found", "not_sent"),
        ("a_echo", "call_failed", "sent"),
        ("a_echo", "server_unavailable", "not_sent"),  # its circuit breaker refuses
        ("broken_echo", "connect_failed", "not_sent"),
        ("broken_echo", "server_unavailable", "not_sent"),
        ("off_echo", "server_disabled", "not_sent"),
        ("file:///none", "resource_not_found", "not_sent"),
        ("none", "prompt_not_found", "not_sent"),
        ("echo", "server_unavailable", "not_sent"),
        ("file:///x", "server_unavailable", "not_sent"),
    ]
    assert [record.get("isError") for record in audited.calls[:3]] == [None, True, None]
    assert audited.told("method", "original")[-3:] == [
        ("prompts/get", None), ("tools/call", "echo"), ("resources/read", "file:///x")
    ]  # fmt: skip
    report = room.drain_report
    assert report is not None
    assert report.adds_up
    assert sum("call" in record for record in audited.calls) == report.accepted
    assert sum("call" not in record for record in audited.calls) == report.refused - 1, "a ping is not told"


@in_virtual_time
async def test_a_call_is_told_once_however_it_ends_while_it_waits(audited: Audited) -> None:
    slow = FakeServer(start_latency=5.0)
    room = audited.room({"a": slow}, {"a": {"maxInFlight": 1}}, drainTimeoutMs=100)
    async with room, Outcomes() as calls:
        looking = calls.start(room, "a_unknown")  # its server is asked first
        await settle()
        looking.cancel()
        await settle()
        await teach(room, "a")
        queued = calls.start(room, "a_echo")
        await settle()
        queued.cancel()
        await settle()
        slow.call_latency = HANG
        calls.start(room, "a_echo")
        calls.start(room, "a_echo")
        await anyio.sleep(10)
        await room.aclose()
    assert audited.told(*WHAT) == [
        ("a_unknown", "cancelled", "not_sent"),
        ("a_echo", "cancelled", "not_sent"),
        ("a_echo", "drained", "sent"),
        ("a_echo", "server_not_connected", "not_sent"),
    ]
    with pytest.raises((RoomClosed, UsageError)):
        await room.call("a_echo")
    assert len(audited.calls) == 4


STEPS = st.tuples(
    st.sampled_from(["a_echo", "a_echo", "a_other", "b_echo", "b_other", "none", "call", "crash", "restart"]),
    st.sampled_from([None, None, 0.0, 0.1, 1.0, 3.0]),  # when its caller leaves
    st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]),  # until the next
)


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=12),
    start=st.sampled_from([0.0, 0.5]),
    patience=st.sampled_from([0, 2]),
)
def test_whatever_happens_each_call_has_one_line_and_it_says_how_it_ended(
    loop: str, steps: list[tuple[str, float | None, float]], start: float, patience: float
) -> None:
    async def body(folder: Path) -> None:
        audited = Audited(folder)
        servers = {
            "a": FakeServer(start_latency=start, call_latency=0.3),
            "b": FakeServer(start_latency=start),
        }
        servers["b"].call_latency = 1.5
        entries = {"a": {"callTimeoutMs": 1000, "maxInFlight": 2}, "b": {"callTimeoutMs": 1000}}
        asked: dict[str | None, Running] = {}
        calls = Outcomes()
        async with calls, audited.room(servers, entries) as room:
            for number, (name, leaves, pause) in enumerate(steps):
                if name == "crash":
                    servers["a"].crash()
                elif name == "restart":
                    RoomInside(room).machinery.servers.take_down("a", Ending(Cause.RESTART))
                else:
                    arguments = {"number": number}
                    running = calls.start(room, name, [arguments] if name == "call" else arguments)
                    text = json.dumps([arguments] if name == "call" else arguments)
                    asked[audit.digest_of(text.encode())[0]] = running
                    if leaves is not None:
                        running.scope.deadline = anyio.current_time() + leaves
                await anyio.sleep(pause)
            await room.aclose(patience)
        told = {record["arguments"]: record for record in audited.calls}
        assert len(audited.calls) == len(told), "no call has two"
        for digest, running in asked.items():
            if isinstance(running.outcome, CallError):
                assert (told[digest]["outcome"], told[digest]["reach"]) == (
                    running.outcome.code,
                    running.outcome.reach,
                )
            elif running.outcome == "cancelled":
                pass  # its caller left before it began, or in the moment in which it ended
            else:
                assert told[digest]["outcome"] == "result"
        report = room.drain_report
        assert report is not None
        ends = Counter(record["outcome"] for record in audited.calls if "call" in record)
        assert (ends["result"], ends["cancelled"]) == (report.completed, report.cancelled)
        assert ends.total() == report.accepted

    with TemporaryDirectory() as folder:
        run_virtual(loop, body, Path(folder))


@in_virtual_time
async def test_the_longest_line_is_one_that_can_be_read(audited: Audited) -> None:
    long = "\U0001f600" * 9999
    async with audited.room({"a": FakeServer()}) as room, room.session(long) as session:
        port_of(session).came_by("http", long)
        port_of(session).introduced({"name": long, "version": '"' * 9999})
        for ask in (
            lambda: session.call(long, server=long),
            lambda: session.request("a", "tools/call", {"name": long, "arguments": {}}),
        ):
            with suppress(CallError):
                await ask()
    assert len(audited.calls) == 2
    assert max(map(len, audited.path.read_bytes().splitlines())) > audit.LONGEST_LINE // 2


@in_virtual_time
async def test_what_was_decided_about_a_call_is_on_its_line(audited: Audited) -> None:
    answers = [Verdict.ONCE, Verdict.SESSION, Verdict.DENY, None]

    async def decide(request: ApprovalRequest) -> Verdict | None:
        return answers.pop(0)

    server = FakeServer()
    async with audited.room({"a": server}, {"a": {"approve": "all"}}, decide) as room:
        await teach(room, "a")
        for arguments in ({"n": 1}, {"n": 2}, {"n": 2}, {"n": 3}, {"n": 4}):
            with suppress(CallError):
                await room.call("a_echo", arguments)
        async with Outcomes() as calls:
            answers.append(Verdict.ONCE)
            RoomInside(room).machinery.sessions.approve_with(_never)
            held = calls.start(room, "a_echo")
            await settle()
            held.cancel()
        RoomInside(room).machinery.sessions.approve_with(decide)
    async with audited.room({"a": server}, {"a": {"approve": "all"}}) as room:
        await teach(room, "a")
        with suppress(CallError):
            await room.call("a_echo")  # there is nobody to ask
    assert audited.told("outcome", "reach", "approval") == [
        ("result", "answered", "allowed"),
        ("result", "answered", "allowed for the session"),
        ("result", "answered", "remembered"),
        ("approval_denied", "not_sent", "denied"),
        ("approval_required", "not_sent", "unanswered"),
        ("cancelled", "not_sent", "left"),
        ("approval_required", "not_sent", "unanswered"),
    ]


def _nothing(_arguments: object) -> Mapping[str, Any]:
    return {"content": []}


async def _never(_request: ApprovalRequest) -> Verdict:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("expose", ["proxy", "direct", "meta"])
@in_virtual_time
async def test_a_door_tells_each_request_once_also_what_it_refuses_itself(
    audited: Audited, expose: str
) -> None:
    async def ask(person: MemoryClient, name: str, arguments: Any, server: str | None = None) -> None:
        if expose != "direct":
            said = {"tool": name, "args": arguments, **({"server": server} if server else {})}
            name, arguments = ("mcp", said) if expose == "proxy" else ("mcp_call", said)
        await person.ask("tools/call", {"name": name, "arguments": arguments})

    servers = {
        "a": FakeServer(handler=_nothing),
        "b": FakeServer(handler=_nothing, start_latency=1.0),
    }
    async with audited.room(servers) as room, talking(room, expose) as talk:
        await teach(room, "a", servers["a"].tools)
        async with talk("ann") as ann:
            await ask(ann, "a_echo", {"x": 1})
            await ask(ann, "a-echo", {})  # another spelling
            await ask(ann, "nothing", {"y": 1})
            await ask(ann, "b_nothing", {})  # its server is asked first
            await ask(ann, "b_echo", {})
            if expose == "direct":
                await ann.ask("resources/read", {"uri": "file:///none"})
                await ann.ask("prompts/get", {"name": "a_none"})
                await ann.ask("prompts/get", {"name": "none"})
            else:
                await ask(ann, "a_echo", "{broken")
                await ask(ann, "a_echo", {}, server="nowhere")
                await ann.ask("tools/call", {"name": "other", "arguments": {}})
            await ann.ask("tools/list")
    records = audited.calls
    assert {(each["door"], each["session"], each["client"]["name"]) for each in records} == {
        ("gateway", "ann", "t")
    }
    assert audited.told("tool", "outcome")[:5] == [
        ("a_echo", "result"),
        ("a_echo", "result"),
        ("nothing", "tool_not_found"),
        ("b_nothing", records[3]["outcome"]),
        ("b_echo", "result"),
    ]
    assert records[3]["outcome"].startswith("tool_not_found")
    assert records[2]["arguments"] == audit.digest_of(b'{"y":1}')[0]
    assert audited.told("tool", "outcome")[5:] == (
        [
            ("file:///none", "resource_not_found"),
            ("a_none", "prompt_not_found"),
            ("none", "prompt_not_found"),
        ]
        if expose == "direct"
        else [("a_echo", "invalid_args"), ("a_echo", "server_not_found"), ("other", "tool_not_found")]
    )


@pytest.mark.parametrize("expose", ["proxy", "direct", "meta"])
@in_virtual_time
async def test_what_is_refused_unread_because_too_much_is_open_or_the_gateway_ends_is_told(
    audited: Audited, expose: str
) -> None:
    name = {"proxy": "mcp", "meta": "mcp_call"}.get(expose, "a_echo")
    arguments: dict[str, Any] = {"n": 1}
    if expose != "direct":
        arguments = {"tool": "a_echo", "server": "a", "args": arguments}

    server = FakeServer(call_latency=1.0, handler=_nothing)
    async with audited.room({"a": server}) as room, talking(room, expose) as talk, talk("ann") as ann:
        await teach(room, "a")
        first = ann.begin("tools/call", {"name": name, "arguments": arguments})
        ann.say({"id": first, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
        ann.session._open.limit = 1
        await ann.ask("tools/call", {"name": name, "arguments": arguments, "_meta": {}})
        talk.conversations.refuse_new()
        await ann.ask("tools/call", {"name": name, "arguments": arguments})
        await ann.ask("completion/complete", {})
        if expose != "direct":
            await ann.ask("tools/call", {"name": name, "arguments": {"search": "x"}})
        await anyio.sleep(2)
    assert audited.told("tool", "outcome") == [
        ("a_echo", "invalid_request"),
        ("a_echo", "server_busy"),
        ("a_echo", "server_not_connected"),
        ("a_echo", "result"),
    ]
    assert {record["arguments"] for record in audited.calls} == {audit.digest_of(b'{"n":1}')[0]}


@pytest.mark.parametrize("expose", ["proxy", "direct"])
@in_virtual_time
async def test_a_request_that_its_client_takes_back_is_told_as_cancelled(
    audited: Audited, expose: str
) -> None:
    server = FakeServer(start_latency=5.0, call_latency=HANG)
    async with audited.room({"a": server}) as room, talking(room, expose) as talk, talk("ann") as ann:
        for known in (False, True):
            if known:
                await teach(room, "a")
            number = begin(ann, expose, "a_echo")
            await settle()
            ann.say({"method": "notifications/cancelled", "params": {"requestId": number}})
            await settle()
        begin(ann, expose, "a_echo")
        await settle()
    assert audited.told(*WHAT) == [("a_echo", "cancelled", "not_sent")] * 3


@in_virtual_time
async def test_secrets_are_not_in_names_either(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "pl4nted-in-the-environment")
    async with audited.room({"a": FakeServer()}) as room, talking(room) as talk:
        await teach(room, "a")
        async with talk("ann") as ann:
            await ann.ask("resources/read", {"uri": "file:///pl4nted-in-the-environment"})
            await call(ann, "direct", "x_pl4nted-in-the-environment")
            await call(ann, "direct", "ghp_abcdefghijklmnopqrst0123456789ABCDEF")
    assert len(audited.calls) == 3
    text = audited.path.read_text()
    assert "pl4nted" not in text
    assert "ghp_" not in text


@in_virtual_time
async def test_a_file_that_cannot_be_written_is_told_in_the_log_and_no_call_ends(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited.room({"a": FakeServer()}) as room, room.events([Note.kind]) as events:
        await teach(room, "a")
        await room.call("a_echo")
        audit_file = port_of(room).services.attachment(AUDIT).file
        assert not audit_file.failing
        fd, write = audit_file._fd, os.write
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda to, data: 0 if to == fd else write(to, data))
            for _ in range(3):
                assert (await room.call("a_echo")).text == "{}"
            assert audit_file.failing
        notes = [note for note in [await events.__anext__()] if isinstance(note, Note)]
        assert [note.code for note in notes] == [NoteCode.AUDIT]
        assert "No space left on device. Calls go on without it." in notes[0].words
    assert len(audited.calls) == 4


def test_a_room_that_is_torn_down_still_tells_its_calls(audited: Audited) -> None:
    async def body() -> None:
        async def host() -> None:
            async with audited.room({"a": server}) as room:
                await teach(room, "a")
                await room.call("a_echo")

        server = FakeServer(call_latency=HANG)
        task = asyncio.ensure_future(host())
        while not server.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run("asyncio", body)
    assert audited.told(*WHAT) == [("a_echo", "cancelled", "sent")]
    assert audit.check(audited.path.read_bytes().splitlines(keepends=True)).ended
