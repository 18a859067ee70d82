"""Watchers: whoever wants to know what becomes of calls is told at each moment, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sniffio
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, in_virtual_time, run_virtual

from greenroom import ApprovalRequest, CallView, Reach, Verdict, Watcher
from greenroom.errors import CallError, RoomClosed, UnknownTool, UsageError
from greenroom.events import CallAccepted, CallEnded, CallRefused, CallSent, Event, Kind, Note, NoteCode
from greenroom.testing.fake_servers import HANG, FakeServer, fake_room, tool

HI = {"text": "hi"}


class Notebook(Watcher):
    """Writes down what it is told: the moment, and the call."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, CallView]] = []

    def began(self, call: CallView) -> None:
        self.lines.append(("began", call))

    def held(self, call: CallView) -> None:
        self.lines.append(("held", call))

    def released(self, call: CallView) -> None:
        self.lines.append(("released", call))

    def accepted(self, call: CallView) -> None:
        self.lines.append(("accepted", call))

    def sending(self, call: CallView) -> None:
        self.lines.append(("sending", call))

    def sent(self, call: CallView) -> None:
        self.lines.append(("sent", call))

    def progressed(self, call: CallView, params: Mapping[str, Any]) -> None:
        self.lines.append((f"progressed {params['progress']}", call))

    def ended(self, call: CallView) -> None:
        self.lines.append(("ended", call))

    def of(self, call: CallView) -> list[str]:
        return [moment for moment, each in self.lines if each is call]

    @property
    def calls(self) -> list[CallView]:
        return [call for moment, call in self.lines if moment == "began"]


@in_real_time
async def test_no_watcher_is_run_in_the_thread_of_another_loop() -> None:
    """A call that is refused because it was begun there is no call of the room."""
    threads = set[int]()

    class Threads(Notebook):
        def began(self, call: CallView) -> None:
            threads.add(threading.get_ident())
            super().began(call)

        def ended(self, call: CallView) -> None:
            threads.add(threading.get_ident())
            super().ended(call)

    book = Threads()
    room = fake_room({"a": FakeServer()}, watchers=[book])
    asks = [
        lambda: room.call("a_echo", HI),
        lambda: room.call("echo", HI, server="a"),
        lambda: room.call("unknown", HI),
        lambda: room.read_resource("a://b"),
        lambda: room.get_prompt("hi"),
        lambda: room.complete({"type": "ref/prompt", "name": "hi"}, {"name": "x", "value": "y"}),
    ]
    refused = list[type]()

    async def elsewhere() -> None:
        for ask in asks:
            with pytest.raises((UsageError, RoomClosed)) as told:
                await ask()
            refused.append(told.type)

    backend = sniffio.current_async_library()
    async with room:
        await room.call("a_echo", HI)
        await anyio.to_thread.run_sync(partial(anyio.run, elsewhere, backend=backend))
        with pytest.raises(UnknownTool):
            await room.call("unknown", HI)
    await anyio.to_thread.run_sync(partial(anyio.run, elsewhere, backend=backend))
    assert refused == [UsageError] * len(asks) + [RoomClosed] * len(asks)
    assert threads == {threading.get_ident()}
    assert [moment for moment, _ in book.lines if moment in ("began", "ended")] == ["began", "ended"] * 2
    assert room.drain_report is not None
    assert (room.drain_report.accepted, room.drain_report.refused) == (1, 1)


@in_virtual_time
async def test_a_call_is_told_from_when_it_is_asked_for_to_its_outcome() -> None:
    book = Notebook()
    server = FakeServer(call_latency=2.0, start_latency=3.0)
    async with fake_room({"a": server}, watchers=[book]) as room, room.session("alice") as alice:
        began = anyio.current_time()
        await alice.call("a_echo", HI)
    (call,) = book.calls
    assert book.of(call) == ["began", "accepted", "sending", "sent", "ended"]
    assert (call.number, call.method, call.tool, call.original, call.server) == (
        1, "tools/call", "a_echo", "echo", "a"
    )  # fmt: skip
    assert (call.door, call.session, call.arguments) == ("embedded", "alice", HI)
    assert (call.outcome, call.reach, call.error) == ("result", Reach.ANSWERED, None)
    assert call.result is not None
    assert [call.began_at, call.sent_at, call.ended_at] == pytest.approx([began, began + 3, began + 5])


@in_virtual_time
async def test_what_is_refused_is_a_call_too_and_ends() -> None:
    book = Notebook()
    entries = {"off": {"disabled": True}}
    async with fake_room({"a": FakeServer(), "off": FakeServer()}, entries=entries, watchers=[book]) as room:
        await room.call("a_echo", HI)
        asked: list[Any] = [
            lambda: room.call("nothing"),
            lambda: room.call("a_echo", ["no", "object"]),  # pyright: ignore[reportArgumentType]
            lambda: room.call("a_echo", HI, timeout="soon"),  # pyright: ignore[reportArgumentType]
            lambda: room.call("a_echo", HI, server="nowhere"),
            lambda: room.read_resource("file:///none"),
            lambda: room.get_prompt("none"),
            lambda: room.complete({"type": "ref/prompt", "name": "none"}, {"name": "x", "value": ""}),
            lambda: room.request("off", "resources/read", {"uri": "file:///x"}),
        ]
        for ask in asked:
            with pytest.raises(CallError):
                await ask()
    report = room.drain_report
    assert report is not None
    refused = book.calls[1:]
    assert [book.of(call) for call in refused] == [["began", "ended"]] * len(asked)
    assert {call.number for call in refused} == {0}
    assert [call.outcome for call in refused] == [
        "tool_not_found", "invalid_args", "invalid_args", "server_not_found", "resource_not_found",
        "prompt_not_found", "prompt_not_found", "server_disabled",
    ]  # fmt: skip
    assert (report.accepted, report.refused) == (1, len(asked))


@in_virtual_time
async def test_a_call_that_its_server_kept_from_being_found_has_that_server() -> None:
    book = Notebook()
    servers = {"shut": FakeServer(refuse_start="no such program"), "off": FakeServer()}
    async with fake_room(servers, entries={"off": {"disabled": True}}, watchers=[book]) as room:
        for name in ("shut_look", "off_look", "nobody"):
            with pytest.raises(CallError):
                await room.call(name)
    assert [(call.outcome, call.server) for call in book.calls] == [
        ("connect_failed", "shut"),
        ("server_disabled", "off"),
        ("tool_not_found", None),
    ]


@in_virtual_time
async def test_a_call_that_waits_for_a_person_is_told_so_and_how_that_ends() -> None:
    book = Notebook()
    answers = [Verdict.ONCE, Verdict.DENY]

    async def on_approval(_request: ApprovalRequest) -> Verdict:
        await anyio.sleep(1)
        return answers.pop(0)

    settings = {"approve": "all"}
    async with fake_room(
        {"a": FakeServer()}, settings=settings, on_approval=on_approval, watchers=[book]
    ) as room:
        await room.connect("a")
        await room.call("a_echo", HI)
        with pytest.raises(CallError):
            await room.call("a_echo", {"text": "no"})
    allowed, denied = book.calls
    assert book.of(allowed) == ["began", "held", "released", "accepted", "sending", "sent", "ended"]
    assert book.of(denied) == ["began", "held", "ended"]
    assert (allowed.approval, denied.approval, denied.number) == ("allowed", "denied", 0)


@in_virtual_time
async def test_a_call_that_is_sent_again_is_told_for_each_attempt() -> None:
    book = Notebook()
    server = FakeServer(tools=[tool("look", annotations={"readOnlyHint": True})], call_latency=HANG)
    async with fake_room({"a": server}, watchers=[book]) as room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "a_look")
            await anyio.sleep(1)
            server.call_latency = 0.0
            server.crash()
    (call,) = book.calls
    assert book.of(call) == ["began", "accepted", "sending", "sent", "sending", "sent", "ended"]


@in_virtual_time
async def test_progress_is_told_in_its_order() -> None:
    async def slow(call: Any) -> str:
        call.progress(1)
        call.progress(2)
        return "done"

    book = Notebook()
    async with fake_room({"a": FakeServer(handler=slow)}, watchers=[book]) as room:
        await room.call("a_echo", HI, on_progress=lambda _params: None)
    (call,) = book.calls
    assert book.of(call)[-3:] == ["progressed 1", "progressed 2", "ended"]


@in_virtual_time
async def test_a_watcher_that_raises_becomes_one_note_a_minute_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Watcher):
        def ended(self, call: CallView) -> None:
            raise RuntimeError(f"no room for {call.tool}")

    book, notes = Notebook(), list[Event]()
    async with fake_room({"a": FakeServer()}, watchers=[Broken(), book]) as room:
        room.events()
        async with room.events([Kind.NOTE]) as events:
            for wait in (0, 1, 61):
                await anyio.sleep(wait)
                assert (await room.call("a_echo", HI)).text
            with anyio.move_on_after(1):
                async for event in events:
                    notes.append(event)  # pyright: ignore[reportArgumentType]
    assert [moment for moment, _ in book.lines].count("ended") == 3
    told = [event for event in notes if isinstance(event, Note) and event.code is NoteCode.CALLBACK]
    assert [("Broken.ended" in note.words, "no room for a_echo" in note.words) for note in told] == [
        (True, True)
    ] * 2
    assert [record.name for record in caplog.records] == ["greenroom"] * 2
    assert "RuntimeError: no room for a_echo" in caplog.records[0].getMessage(), "with its traceback"


@pytest.mark.parametrize("raw", [False, True])
@in_virtual_time
async def test_a_watcher_sees_no_known_secret_unless_it_is_asked_for(
    raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "correct-horse-battery-17"
    monkeypatch.setenv("API_TOKEN", secret)
    book, seen = Notebook(), list[Any]()

    def say(call: Any) -> str:
        call.progress(1, message=f"reading {call['text']}")
        return f"you said {call['text']}"

    server = FakeServer(handler=say)

    class Reader(Watcher):
        def ended(self, call: CallView) -> None:
            seen.append((call.arguments, call.result))

    class Follower(Watcher):
        def progressed(self, call: CallView, params: Mapping[str, Any]) -> None:
            seen.append(params)

    async with fake_room({"a": server}, watchers=[Reader(), Follower(), book], raw=raw) as room:
        await room.call("a_echo", {"text": f"it is {secret}"}, on_progress=lambda _params: None)
    assert [secret in str(each) for each in seen] == [raw, raw]
    assert "you said it is" in str(seen)


@in_virtual_time
async def test_the_event_stream_tells_refusals_beside_calls() -> None:
    server, events = FakeServer(call_latency=3.0), list[Event]()
    async with fake_room({"a": server}) as room:
        await room.connect("a")
        async with room.events([Kind.CALL]) as stream:
            await room.call("a_echo", HI)
            with pytest.raises(UnknownTool):
                await room.call("a_nothing")
            with anyio.move_on_after(1):
                async for event in stream:
                    events.append(event)  # pyright: ignore[reportArgumentType]
    accepted, sent, ended, refused = events
    assert isinstance(accepted, CallAccepted)
    assert isinstance(sent, CallSent)
    assert isinstance(ended, CallEnded)
    assert isinstance(refused, CallRefused)
    assert (ended.outcome, ended.taken, sent.waited) == ("result", pytest.approx(3.0), pytest.approx(0.0))
    assert (refused.outcome, refused.tool, refused.address) == ("tool_not_found", "a_nothing", None)


STEPS = ("call", "unknown", "leave", "crash", "wait", "long wait", "drain", "connect")


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=12), st.sampled_from(["trio", "asyncio"]))
def test_every_call_that_has_begun_ends_once_and_the_report_adds_up(steps: list[str], loop: str) -> None:
    book = Notebook()
    server = FakeServer(
        tools=[tool("echo"), tool("look", annotations={"readOnlyHint": True})], call_latency=2.0
    )

    async def ask(room: Any, name: str) -> None:
        with suppress(CallError):
            await room.call(name, HI)

    async def main() -> Any:
        async with fake_room({"a": server}, watchers=[book]) as room, anyio.create_task_group() as callers:

            async def leave() -> None:
                with anyio.move_on_after(0.5):
                    await ask(room, "a_echo")

            for step in steps:
                match step:
                    case "call":
                        callers.start_soon(ask, room, "a_look")
                    case "unknown":
                        callers.start_soon(ask, room, "a_nothing")
                    case "leave":
                        callers.start_soon(leave)
                    case "crash":
                        server.crash()
                    case "drain":
                        callers.start_soon(room.drain, "a")
                    case "connect":
                        with suppress(CallError):
                            await room.connect("a")
                    case _:
                        await anyio.sleep(1.0 if step == "wait" else 40.0)
        return room.drain_report

    report = run_virtual(loop, main)
    for call in book.calls:
        told = book.of(call)
        assert (told[0], told[-1], told.count("ended")) == ("began", "ended", 1)
        assert ("accepted" in told) == (call.number > 0)
    assert report.adds_up
    assert report.accepted == sum(call.number > 0 for call in book.calls)
    assert report.refused == sum(call.number == 0 for call in book.calls)
