"""Calls that somebody has to allow: which, who is asked, and that a call is sent exactly when it was allowed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import begin, call, talking
from tests.support import in_virtual_time
from tests.support.asking import Asking, AskingServer, asking_connectors
from tests.support.memory_client import MemoryClient
from tests.support.rooms import Outcomes, record_events, settle, teach
from tests.support.rows import for_each
from tests.support.whole import direct_door, whole

from greenroom import ApprovalRequest, CallError, Greenroom, Session, UsageError, Verdict
from greenroom.actors.call import Call
from greenroom.catalogue.namespace import Kind, Target
from greenroom.cli.main import run as command_line
from greenroom.config.model import Approve
from greenroom.config.parse import parse_config
from greenroom.errors import ApprovalDenied, ApprovalNeeded, RoomClosed
from greenroom.events import ApprovalDecision, ApprovalMove, Note, NoteCode
from greenroom.protocol.bounds import APPROVALS_REMEMBERED
from greenroom.protocol.errors import BadArguments
from greenroom.safety.approval import Rule, asks_about, question, verdict_of
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside

OLDER = pytest.mark.parametrize("expose", ["proxy", "direct"])
ONCE: Mapping[str, Any] = {"action": "accept", "content": {"allow": "once"}}
SESSION: Mapping[str, Any] = {"action": "accept", "content": {"allow": "session"}}


def target(hints: Mapping[str, Any], kind: Kind = "tool", name: str = "do") -> Target:
    record = {"name": name, "annotations": hints} if hints else {"name": name}
    return Target(f"s_{name}", "s", kind, name, record, "", None)


# ---- the policy ---------------------------------------------------------------------------------------------------

OFF, ALL, WRITES = Approve.OFF, Approve.ALL, Approve.WRITES
DESTRUCTIVE, OPEN_WORLD = Approve.DESTRUCTIVE, Approve.OPEN_WORLD
READS = {"readOnlyHint": True}


@for_each(
    ("rule", "hints", "asked"),
    [
        (OFF, {"destructiveHint": True}, False),
        (ALL, {**READS, "destructiveHint": False, "openWorldHint": False}, True),
        # A tool that says nothing is what the protocol says it is: it writes, it may destroy, it reaches outside.
        *((rule, {}, True) for rule in (WRITES, DESTRUCTIVE, OPEN_WORLD)),
        (WRITES, {"destructiveHint": False}, True),
        (WRITES, READS, False),
        (WRITES, {"readOnlyHint": "yes"}, True),
        (DESTRUCTIVE, {"destructiveHint": True}, True),
        (DESTRUCTIVE, {"destructiveHint": False}, False),
        (DESTRUCTIVE, {"destructiveHint": None}, True),
        (DESTRUCTIVE, READS, False),
        (
            DESTRUCTIVE,
            {**READS, "destructiveHint": True},
            False,
        ),  # the one hint counts only without the other
        (OPEN_WORLD, {"openWorldHint": False}, False),
        (OPEN_WORLD, READS, True),
    ],
)
def test_the_words_go_by_what_a_tool_says_of_itself(
    rule: Rule, hints: Mapping[str, Any], asked: bool
) -> None:
    assert asks_about(rule, "s", "do", target(hints)) is asked


@for_each(
    ("rule", "asked"),
    [
        (["do"], True),
        (["s_do"], True),
        (["d*"], True),
        (["other", "?o"], True),
        (["done"], False),
        ([], False),
    ],
)
def test_a_list_names_tools_in_any_spelling(rule: list[str], asked: bool) -> None:
    assert asks_about(tuple(rule), "s", "do", target(READS)) is asked
    assert asks_about(tuple(rule), "s", "do", None) is asked, "also when nothing is known of the tool"


def test_what_is_unknown_is_asked_about_and_a_resource_only_reads() -> None:
    assert all(asks_about(rule, "s", "do", None) for rule in (ALL, WRITES, DESTRUCTIVE, OPEN_WORLD))
    resource = target({}, "resource", "file:///x")
    assert not any(asks_about(rule, "s", "file:///x", resource) for rule in (WRITES, DESTRUCTIVE, OPEN_WORLD))
    assert asks_about(ALL, "s", "file:///x", resource)


@for_each(
    ("said", "read"),
    [("destructive", DESTRUCTIVE), (True, ALL), (False, OFF), (["a*", "b"], ("a*", "b")), ([], ())],
)
def test_the_key_is_a_word_or_a_list_for_a_server_and_for_all(said: Any, read: Rule) -> None:
    entry = {"command": "x", "approve": said}
    config = parse_config({"mcpServers": {"s": entry}, "settings": {"approve": said}}, strict=True)
    assert config.servers["s"].approve == config.settings.approve == read
    assert not config.problems
    adapter = parse_config({"mcpServers": {"s": {"command": "x", "approveTools": said}}}, strict=True)
    assert adapter.servers["s"].approve == read


@for_each("said", ["destructiv", ["destructive"], 1, ["a", 2], {}])
def test_a_key_that_cannot_be_read_lets_nothing_pass(said: Any) -> None:
    broken = parse_config({"mcpServers": {"s": {"command": "x", "approve": said}}}, strict=False)
    assert "s" in broken.broken
    lenient = parse_config({"mcpServers": {}, "settings": {"approve": said}}, strict=False)
    assert lenient.settings.approve is Approve.ALL
    assert lenient.problems


def test_a_person_reads_the_letters_that_a_client_writes_as_escapes() -> None:
    """Many clients write all that is not ASCII like this, and anybody can write anything like this."""
    rest = rb'"b":"\\u0041 \u0022,\u202e\u200b\ud83d\u000a"}'
    raw = rb'{"run":"\u0072\u006d -rf caf\u00e9 \uD83D\uDE00","key":"\u0068unter22",%b' % rest
    text = question("s", "t", raw, lambda said: said.replace("hunter22", "***"))
    said = text.partition("Arguments: ")[2].rpartition("\n")[0]
    assert said == f'{{"run":"rm -rf café 😀","key":"***",{rest.decode()}'
    long = question("s", "t", rb'{"a":"%b"}' % (rb"\u0061" * 20_000), lambda _: "{}…")
    assert "not all of them are shown" in long


def test_a_secret_at_the_cut_is_not_shown_in_part() -> None:
    from greenroom.config.credentials import SecretValue
    from greenroom.config.scrubbing import Secrets

    secrets = Secrets([SecretValue("TOKEN", "tok-0123456789abcdef")])
    for filling in range(1_960, 2_010):
        text = question(
            "s", "t", json.dumps({"a": "y" * filling + "tok-0123456789abcdef"}).encode(), secrets.without
        )
        assert "tok-" not in text


@for_each(
    ("answer", "meant"),
    [
        (ONCE, Verdict.ONCE),
        (SESSION, Verdict.SESSION),
        ({"action": "accept", "content": {"allow": "deny"}}, Verdict.DENY),
        ({"action": "decline"}, Verdict.DENY),
        ({"action": "cancel"}, None),
        # Whatever is not plainly a yes is a no.
        *(
            (answer, Verdict.DENY)
            for answer in (
                {"action": "accept"},
                {"action": "accept", "content": {}},
                {"action": "accept", "content": {"allow": True}},
                {"action": "accept", "content": {"allow": "always"}},
                {"action": "accept", "content": {"allow": ["once"]}},
                {"action": "accept", "content": "once"},
                {"content": {"allow": "once"}},
                {},
            )
        ),
    ],
)
def test_only_a_plain_yes_is_a_yes(answer: Mapping[str, Any], meant: Verdict | None) -> None:
    assert verdict_of(answer) is meant


# ---- programs -----------------------------------------------------------------------------------------------------

Hook = Callable[[ApprovalRequest], Awaitable[Any]]


def saying(*verdicts: Any) -> tuple[Hook, list[ApprovalRequest]]:
    """A hook that gives these answers, the last one again and again, and what it was asked."""
    asked: list[ApprovalRequest] = []

    async def hook(request: ApprovalRequest) -> Any:
        asked.append(request)
        verdict = verdicts[min(len(asked), len(verdicts)) - 1]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    return hook, asked


def waiting_for(event: anyio.Event, verdict: Verdict) -> Hook:
    async def hook(_request: ApprovalRequest) -> Verdict:
        await event.wait()
        return verdict

    return hook


def open_room(
    server: FakeServer, *, approve: Any = "all", on_approval: Any = None, **settings: Any
) -> Greenroom:
    config = {"mcpServers": {"a": {"command": "fake", "approve": approve}}, "settings": settings}
    connectors = fake_connectors({"a": server})
    return Greenroom.open(
        config, cache_path=":memory:", bootstrap=False, connectors=connectors, on_approval=on_approval
    )


def moves(events: list[ApprovalDecision]) -> list[ApprovalMove]:
    return [event.move for event in events]


@in_virtual_time
async def test_a_program_is_asked_before_anything_starts_and_may_allow_it_once_or_for_the_session() -> None:
    server = FakeServer()
    starts: list[int] = []
    hook, asked = saying(Verdict.ONCE, Verdict.SESSION)

    async def noting(request: ApprovalRequest) -> Verdict:
        starts.append(server.starts)
        return await hook(request)

    async with open_room(server, on_approval=noting) as room:
        await teach(room, "a", [tool("echo", annotations=READS)])
        events = record_events(room, ApprovalDecision)
        for _ in range(4):
            assert json.loads((await room.call("a_echo", {"x": 1})).text) == {"x": 1}
        assert len(asked) == 2, "the second answer holds for the session"
        assert starts == [0, 1]
        request = asked[0]
        assert (request.server, request.tool, request.original) == ("a", "a_echo", "echo")
        assert (request.arguments, request.hints, request.session) == ({"x": 1}, READS, None)
        await room.call("a_echo", {"x": 2})  # other arguments are asked about
        async with room.session("ann") as ann:
            await ann.call("a_echo", {"x": 1})  # another session too
        assert [each.session for each in asked] == [None, None, None, "ann"]
    asked_and, remembered = ApprovalMove.ASKED, ApprovalMove.REMEMBERED
    session = ApprovalMove.ALLOWED_FOR_SESSION
    allowed = [asked_and, ApprovalMove.ALLOWED, asked_and, session, remembered, remembered]
    assert moves(events) == [*allowed, asked_and, session, asked_and, session]
    assert {(event.tool, event.server) for event in events} == {("a_echo", "a")}
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert room.drain_report.completed == len(server.calls) == 6


@pytest.mark.parametrize("verdict", [Verdict.DENY, True, "once", RuntimeError("oops")], ids=repr)
@in_virtual_time
async def test_whatever_is_not_a_yes_refuses_the_call_and_it_was_never_sent(verdict: Any) -> None:
    server = FakeServer()
    hook, asked = saying(verdict)
    async with open_room(server, on_approval=hook) as room:
        await teach(room, "a")
        with pytest.raises(ApprovalDenied) as refused:
            await room.call("a_echo")
        assert (refused.value.code, refused.value.reach) == ("approval_denied", "not_sent")
        assert refused.value.tool == "a_echo"
        assert len(asked) == 1
        assert port_of(room).services.refusals == {"approval_denied": 1}
    assert (server.starts, server.calls) == (0, [])
    assert room.drain_report is not None
    assert room.drain_report.accepted == 0


@in_virtual_time
async def test_with_nobody_to_ask_a_call_is_refused_at_once_with_how_to_allow_it() -> None:
    server = FakeServer()
    async with open_room(server) as room:
        await teach(room, "a")
        for ask in (
            lambda: room.call("a_echo", {"x": 1}),
            lambda: room.request("a", "tools/call", {"name": "echo", "arguments": {"x": 1}}),
        ):
            with pytest.raises(ApprovalNeeded, match=r'greenroom call.*"approve"') as refused:
                await ask()
            assert (refused.value.code, refused.value.reason) == ("approval_required", "nobody")
            assert '{"x":1}' in refused.value.question
    assert server.starts == 0


@in_virtual_time
async def test_a_hook_may_leave_it_to_the_next_and_the_sessions_own_is_first() -> None:
    server = FakeServer()
    of_room, asked_room = saying(Verdict.ONCE)
    of_ann, asked_ann = saying(None, Verdict.DENY)
    async with open_room(server, on_approval=of_room) as room:
        await teach(room, "a")
        async with room.session("ann", on_approval=of_ann) as ann:
            await ann.call("a_echo")
            assert (len(asked_ann), len(asked_room)) == (1, 1)
            with pytest.raises(ApprovalDenied):
                await ann.call("a_echo")
            assert len(asked_room) == 1


@in_virtual_time
async def test_what_a_session_allowed_ends_with_it() -> None:
    server = FakeServer()
    hook, asked = saying(Verdict.SESSION)
    async with open_room(server, on_approval=hook) as room:
        await teach(room, "a")
        for count in (1, 2):
            async with room.session("ann") as ann:
                await ann.call("a_echo")
                await ann.call("a_echo")
            assert len(asked) == count
        async with room.session("ann") as ann:
            for number in (*range(APPROVALS_REMEMBERED), 0, APPROVALS_REMEMBERED):
                await ann.call("a_echo", {"n": number})
            before = len(asked)
            for number in (0, 2):
                await ann.call("a_echo", {"n": number})
            assert len(asked) == before, "the latest are remembered"
            await ann.call("a_echo", {"n": 1})
            assert len(asked) == before + 1, "that which was not used for longest is forgotten"


@in_virtual_time
async def test_a_yes_that_comes_after_its_session_is_for_nobody() -> None:
    server, event = FakeServer(), anyio.Event()
    asked: list[ApprovalRequest] = []

    async def hook(request: ApprovalRequest) -> Verdict:
        asked.append(request)
        with anyio.CancelScope(shield=True):
            await event.wait()
        return Verdict.SESSION

    async def call(session: Session) -> None:
        with pytest.raises(RoomClosed):
            await session.call("a_echo")

    async with open_room(server, on_approval=hook) as room, anyio.create_task_group() as tasks:
        await teach(room, "a")
        async with room.session("ann") as ann:
            tasks.start_soon(call, ann)
            await settle()
        event.set()
        await settle()
        async with room.session("ann") as another:
            await another.call("a_echo")
        assert len(asked) == 2


@in_virtual_time
async def test_a_list_may_name_a_tool_by_its_new_name_and_what_cannot_be_used_is_not_asked_about() -> None:
    hook, asked = saying(Verdict.ONCE)
    renamed = {"toolOverrides": {"echo": {"rename": "say"}}, "approve": ["say"]}
    async with open_room(FakeServer(), on_approval=hook) as room:
        await teach(room, "a")
        await room.reload({"mcpServers": {"a": {"command": "fake", **renamed}}})
        await room.call("a_say")
        assert len(asked) == 1
        await room.drain("a")
        with pytest.raises(CallError, match="was drained"):
            await room.call("a_say")
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("verdict", "questions", "sent"), [(Verdict.ONCE, 3, 3), (Verdict.SESSION, 1, 3), (Verdict.DENY, 1, 0)]
)
@in_virtual_time
async def test_calls_with_the_same_question_wait_for_one_another(
    verdict: Verdict, questions: int, sent: int
) -> None:
    server, event = FakeServer(), anyio.Event()
    async with open_room(server, on_approval=waiting_for(event, verdict)) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        async with Outcomes() as calls:
            for _ in range(3):
                calls.start(room, "a_echo", {"x": 1})
            await settle()
            assert moves(events) == [ApprovalMove.ASKED], "nobody is asked the same three times at once"
            event.set()
        assert moves(events).count(ApprovalMove.ASKED) == questions
        assert len(events) == questions + 3, "each call has exactly one end"
        assert len(server.calls) == sent
        denied = [one.outcome for one in calls.all if isinstance(one.outcome, ApprovalDenied)]
        assert len(denied) == 3 - sent


@in_virtual_time
async def test_a_caller_that_leaves_withdraws_the_question() -> None:
    server, left = FakeServer(), list[str]()

    async def hook(_request: ApprovalRequest) -> Verdict:
        try:
            await anyio.sleep_forever()
            raise AssertionError
        finally:
            left.append("withdrawn")

    async with open_room(server, on_approval=hook) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            await settle()
            behind = calls.start(room, "a_echo")
            await settle()
            one.cancel()
            await settle()
            assert (one.outcome, left) == ("cancelled", ["withdrawn"])
            assert moves(events) == [ApprovalMove.ASKED, ApprovalMove.LEFT, ApprovalMove.ASKED]
            behind.cancel()
        assert port_of(room).services.refusals == {"cancelled": 2}
    assert server.starts == 0


@in_virtual_time
async def test_waiting_counts_as_use_and_starts_nothing_that_is_down() -> None:
    server, event = FakeServer(), anyio.Event()
    hook = waiting_for(event, Verdict.ONCE)
    async with open_room(server, approve=["echo"], on_approval=hook, idleTimeout=1) as room:
        server.tools = [tool("echo"), tool("free")]
        await room.connect("a")
        await room.call("a_free")
        async with Outcomes() as calls:
            calls.start(room, "a_echo")
            await anyio.sleep(290)
            assert server.live == 1, "its idle time is one minute"
            event.set()
        assert (server.starts, len(server.calls)) == (1, 2)
        await anyio.sleep(61)
        assert server.live == 0, "and it counts again from the end of the call"
        await room.drain("a")
        with pytest.raises(CallError, match=r"drained|stopped|down"):
            await room.call("a_echo")  # nobody is asked about a call that would be refused


@in_virtual_time
async def test_what_was_allowed_is_what_is_sent() -> None:
    server = FakeServer()
    arguments: dict[str, Any] = {"path": {"to": "/tmp/x"}}

    async def hook(request: ApprovalRequest) -> Verdict:
        arguments["path"]["to"] = "/"
        assert request.arguments == {"path": {"to": "/tmp/x"}}
        return Verdict.ONCE

    async with open_room(server, on_approval=hook) as room:
        await teach(room, "a")
        await room.call("a_echo", arguments)
        assert [each["arguments"] for each in server.calls] == [{"path": {"to": "/tmp/x"}}]
        with pytest.raises((UsageError, BadArguments), match="JSON"):
            await room.call("a_echo", {"x": object()})


@in_virtual_time
async def test_a_reload_changes_who_is_asked_at_once() -> None:
    server = FakeServer()
    hook, asked = saying(Verdict.ONCE)
    async with open_room(server, approve="off", on_approval=hook) as room:
        await room.call("a_echo")
        for rule, count in (("all", 1), ("off", 1), (["echo"], 2)):
            entry = {"command": "fake", "approve": rule}
            assert not (await room.reload({"mcpServers": {"a": entry}})).replace
            await room.call("a_echo")
            assert len(asked) == count
        await room.reload({"mcpServers": {"a": {"command": "fake"}}, "settings": {"approve": "all"}})
        await room.call("a_echo")
        assert len(asked) == 3
        assert server.starts == 1, "it is policy: no process notices"


@in_virtual_time
async def test_nothing_that_was_allowed_or_waits_for_a_changed_server_stays_and_all_of_another_does() -> None:
    def config(argument: str) -> dict[str, Any]:
        entries = {"a": {"command": "fake", "args": [argument]}, "b": {"command": "fake"}}
        return {"mcpServers": entries, "settings": {"approve": "all"}}

    servers, event = {name: FakeServer() for name in "ab"}, anyio.Event()
    asked: list[str] = []

    async def hook(request: ApprovalRequest) -> Verdict:
        asked.append(request.tool)
        if request.arguments["n"] < 0:
            await event.wait()
        return Verdict.SESSION

    connectors = fake_connectors(servers)
    room = Greenroom.open(
        config("old"), cache_path=":memory:", bootstrap=False, connectors=connectors, on_approval=hook
    )
    async with room:
        for name in servers:
            await teach(room, name)

        async def call_all() -> None:
            asked.clear()
            for name in servers:
                for number in range(3):
                    await room.call(f"{name}_echo", {"n": number})

        await call_all()
        async with Outcomes() as calls:
            gone = [calls.start(room, "a_echo", {"n": -number}) for number in (1, 2, 3)]
            kept = [calls.start(room, "b_echo", {"n": -number}) for number in (1, 2, 3)]
            await settle()
            await room.reload(config("new"))
            await settle()
            for one in gone:
                assert isinstance(one.error, ApprovalNeeded)
                assert (one.error.reason, one.error.server, one.error.tool) == ("changed", "a", "a_echo")
            assert [one.outcome for one in kept] == [None, None, None]
            event.set()
        await call_all()
        assert asked == ["a_echo"] * 3, "what was allowed of the other still is"


@pytest.mark.parametrize("rule", ["off", []], ids=["off", "no tool"])
@in_virtual_time
async def test_a_server_may_ask_about_nothing_where_the_others_ask_about_all(rule: Any) -> None:
    hook, asked = saying(Verdict.DENY)
    async with open_room(FakeServer(), approve=rule, on_approval=hook) as room:
        await room.reload(
            {"mcpServers": {"a": {"command": "fake", "approve": rule}}, "settings": {"approve": "all"}}
        )
        await room.call("a_echo")
        assert asked == []


@pytest.mark.parametrize("reason", ["nobody", "busy"])
@in_virtual_time
async def test_also_a_call_that_is_refused_at_once_is_told_of_and_counted(reason: str) -> None:
    hook = None if reason == "nobody" else waiting_for(anyio.Event(), Verdict.ONCE)
    async with open_room(FakeServer(), on_approval=hook) as room:
        await teach(room, "a")
        RoomInside(room).machinery.context.queued_bytes = 64 * 1024 * 1024 if reason == "busy" else 0
        events = record_events(room, ApprovalDecision)
        async with room.session("ann") as ann:
            with pytest.raises(ApprovalNeeded) as refused:
                await ann.call("a_echo", {"x": 1})
        assert refused.value.reason == reason
        assert [(one.move, one.tool, one.client, one.server) for one in events] == [
            (ApprovalMove.UNANSWERED, "a_echo", "ann", "a")
        ]
        assert not events[0].at_terminal
        assert port_of(room).services.refusals == {"approval_required": 1}
        RoomInside(room).machinery.context.queued_bytes = 0


@in_virtual_time
async def test_each_session_has_a_queue_of_its_own_for_calls_that_wait_for_a_yes() -> None:
    hook = waiting_for(anyio.Event(), Verdict.ONCE)
    async with open_room(FakeServer(), on_approval=hook) as room:
        await teach(room, "a")
        async with room.session("ann") as ann, Outcomes() as calls:
            for number in range(64):
                calls.start(room, "a_echo", {"n": number})
            await settle()
            one = calls.start(ann, "a_echo", {"n": 0})
            await settle()
            assert one.outcome is None, "the room's calls are not hers"
            with pytest.raises(ApprovalNeeded, match="64 other calls of this session wait already"):
                await room.call("a_echo")
            for each in calls.all:
                each.cancel()


@in_virtual_time
async def test_the_time_of_a_question_counts_from_its_call_also_for_who_waited_behind_another() -> None:
    hook = waiting_for(anyio.Event(), Verdict.ONCE)
    async with open_room(FakeServer(), on_approval=hook, approvalTimeoutMs=10_000) as room:
        await teach(room, "a")
        async with Outcomes() as calls:
            first = calls.start(room, "a_echo", {"x": 1})
            await anyio.sleep(4.0)
            behind = calls.start(room, "a_echo", {"x": 1})
            await settle()
            (question,) = port_of(room).services.approvals.waiting()
            assert (question.since, question.until) == (0.0, 10.0)
            first.cancel()
            await anyio.sleep(1.0)
            (question,) = port_of(room).services.approvals.waiting()
            assert (question.since, question.until) == (4.0, 14.0)
        assert isinstance(behind.error, ApprovalNeeded)
        assert (behind.error.reason, behind.at) == ("expired", 14.0)
        assert "within 10 s" in str(behind.error)


@pytest.mark.parametrize("error", [RuntimeError("planted"), ExceptionGroup("planted", [ValueError("x")])])
@in_virtual_time
async def test_a_hook_that_fails_is_told_with_its_traceback_and_the_server_it_was_about(
    error: Exception,
) -> None:
    hook, _ = saying(error)
    async with open_room(FakeServer(), on_approval=hook) as room:
        await teach(room, "a")
        notes = record_events(room, Note)
        with pytest.raises(ApprovalDenied):
            await room.call("a_echo")
        (note,) = [note for note in notes if note.code is NoteCode.CALLBACK]
        assert note.server == "a"
        assert "while a call waited for approval" in note.words
        assert "planted" in note.words
        assert "in hook" in note.words, "where it was raised"


@in_virtual_time
async def test_an_owner_that_fails_when_its_call_is_refused_is_told_and_the_others_are_refused_too() -> None:
    ended: list[CallError | None] = []

    def raising(call: Call) -> None:
        ended.append(call.error)
        raise RuntimeError("planted")

    hook = waiting_for(anyio.Event(), Verdict.ONCE)
    async with open_room(FakeServer(), on_approval=hook) as room:
        await teach(room, "a")
        notes = record_events(room, Note)
        for number in range(3):
            port_of(room).start_call(room.describe("a_echo"), {"n": number}, raising)
        await settle()
        await room.aclose()
        assert [note.code for note in notes if "planted" in note.words] == [NoteCode.CALLBACK] * 3
    assert len(ended) == len({*map(id, ended)}) == 3, "each has an error of its own"
    assert all(isinstance(error, RoomClosed) for error in ended)


@in_virtual_time
async def test_a_resource_is_allowed_by_its_own_uri_and_not_with_another() -> None:
    async def read(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        raise AssertionError

    found = [{"uri": f"x:/{number}", "name": f"r{number}"} for number in (1, 2)]
    server = AskingServer({"do": read}, resources=found)
    hook, asked = saying(Verdict.SESSION)
    config = {"mcpServers": {"a": {"command": "fake"}}, "settings": {"approve": "all"}}
    connectors = asking_connectors({"a": server})
    room = Greenroom.open(
        config, cache_path=":memory:", bootstrap=False, connectors=connectors, on_approval=hook
    )
    async with room:
        await room.connect("a")
        names = [one.name for one in room.tools("a") if one.kind == "resource"]
        assert len(names) == 2
        for name in (*names, *names):
            await room.call(name)
        assert [one.original for one in asked] == ["x:/1", "x:/2"]
        assert [one.tool for one in asked] == names
        await room.read_resource("x:/1")
        assert len(asked) == 2, "to read it by its URI is no call of a tool"


# ---- doors --------------------------------------------------------------------------------------------------------


async def echo(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
    return arguments


async def nothing(_asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    return {}


def door_room(server: AskingServer, **settings: Any) -> Greenroom:
    config = {"mcpServers": {"a": {"command": "fake"}}, "settings": {"approve": "all", **settings}}
    connectors = asking_connectors({"a": server})
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors)


def details(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = answer["result"]["_meta"]
    return meta.get("greenroom/details") or meta["greenroom/error"]


@OLDER
@in_virtual_time
async def test_a_client_is_asked_by_elicitation_while_its_call_waits(expose: str) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann", elicitation={}) as ann:
            number = begin(ann, expose, "a_echo", x=1)
            asked = await ann.heard(lambda said: said.get("method") == "elicitation/create")
            assert asked["params"]["message"].startswith('Greenroom asks before it calls the tool "a_echo"')
            assert '{"x":1}' in asked["params"]["message"].replace(": ", ":")
            assert asked["params"]["requestedSchema"]["required"] == ["allow"]
            assert server.starts == 0, "a question starts nothing"
            ann.reply(ONCE)
            assert not (await ann.answer(number))["result"].get("isError")
            ann.answers["elicitation/create"] = {"action": "decline"}
            denied = await call(ann, expose, "a_echo", x=1)
            assert denied["result"]["isError"] is True
            assert details(denied)["error"] == "approval_denied"
            assert details(denied)["reach"] == "not_sent"
            ann.answers["elicitation/create"] = {"action": "cancel"}
            dismissed = await call(ann, expose, "a_echo", x=1)
            assert details(dismissed)["error"] == "approval_required"
            ann.answers["elicitation/create"] = SESSION
            for _ in range(3):
                assert not (await call(ann, expose, "a_echo", x=1))["result"].get("isError")
            assert ann.methods().count("elicitation/create") == 4
        async with talk("ben", elicitation={}) as ben:
            number = begin(ben, expose, "a_echo", x=1)
            await ben.heard(lambda said: said.get("method") == "elicitation/create")
            ben.reply(ONCE)
            await ben.answer(number)
    assert len(server.requests) >= 1


@OLDER
@in_virtual_time
async def test_the_same_arguments_with_other_spaces_between_them_are_not_asked_about_again(
    expose: str,
) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann", elicitation={}) as ann:
            ann.answers["elicitation/create"] = SESSION
            await call(ann, expose, "a_echo", x=1)
            params = {"name": "a_echo", "arguments": {"x": 1}}
            if expose == "proxy":
                params = {"name": "mcp", "arguments": {"tool": "a_echo", "args": {"x": 1}}}
            request = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params}
            ann.session.receive(json.dumps(request, separators=("  ,", " :  ")).encode())
            assert not (await ann.answer(99))["result"].get("isError")
            assert len([said for said in ann.said if said.get("method") == "elicitation/create"]) == 1


@OLDER
@in_virtual_time
async def test_arguments_nested_as_deep_as_can_be_are_asked_about_as_others_are(expose: str) -> None:
    server = AskingServer({"echo": nothing})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann", elicitation={}) as ann:
            ann.answers["elicitation/create"] = SESSION
            for depth in range(850, 1_000, 5):
                deep = b'{"a":%b%b}' % (b"[" * depth, b"]" * depth)
                named = b"a_echo", deep
                if expose == "proxy":
                    named = b"mcp", b'{"tool":"a_echo","args":%b}' % deep
                params = b'{"name":"%b","arguments":%b}' % named
                head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}'
                ann.session.receive(head % (depth, params))
                answer = await ann.answer(depth)
                assert "result" in answer or answer["error"]["code"] != -32603, answer


@OLDER
@pytest.mark.parametrize("declared", [{}, {"elicitation": {"url": {}}}], ids=["nothing", "pages only"])
@in_virtual_time
async def test_a_client_that_takes_no_forms_is_refused_with_how_to_allow_it(
    expose: str, declared: Mapping[str, Any]
) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann", **declared) as ann:
            refused = await call(ann, expose, "a_echo")
            assert details(refused)["error"] == "approval_required"
            assert "takes elicitations" in refused["result"]["content"][0]["text"]
    assert server.starts == 0


@OLDER
@in_virtual_time
async def test_a_client_that_cancels_or_goes_while_asked_has_not_called(expose: str) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        async with talk("ann", elicitation={}) as ann:
            number = begin(ann, expose, "a_echo")
            await ann.heard(lambda said: said.get("method") == "elicitation/create")
            ann.say({"method": "notifications/cancelled", "params": {"requestId": number}})
            await ann.heard(lambda said: said.get("method") == "notifications/cancelled")
            ann.reply(ONCE)  # too late
            await settle()
            begin(ann, expose, "a_echo")
            await settle()
        await settle()
        asked, left = ApprovalMove.ASKED, ApprovalMove.LEFT
        assert moves(events) == [asked, left, asked, left]
        assert not RoomInside(room).held_calls
    assert server.starts == 0


MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def begin_modern(
    person: MemoryClient, expose: str, name: str, arguments: Mapping[str, Any], **more: Any
) -> int:
    meta = {
        **MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "roots": {}},
    }
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if expose == "proxy":
        params = {"name": "mcp", "arguments": {"tool": name, "args": arguments}}
    return person.begin("tools/call", {**params, "_meta": meta, **more})


@OLDER
@in_virtual_time
async def test_a_client_of_2026_is_asked_by_a_result_that_needs_input(expose: str) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server, approvalTimeoutMs=60_000) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann") as ann:
            asked: list[Mapping[str, Any]] = []
            for x in (1, 2):  # both are open at once, and each is asked about in its own answer
                asked.append((await ann.answer(begin_modern(ann, expose, "a_echo", {"x": x})))["result"])
            assert server.starts == 0
            for x, result in enumerate(asked, 1):
                assert result["resultType"] == "input_required"
                ((key, request),) = result["inputRequests"].items()
                assert f'{{"x":{x}}}' in request["params"]["message"].replace(": ", ":")
                state = {"requestState": result["requestState"]}
                answers = {"inputResponses": {key: ONCE if x == 1 else {"action": "decline"}}}
                again = begin_modern(ann, expose, "a_echo", {"x": x}, **state, **answers)
                answer = await ann.answer(again)
                assert bool(answer["result"].get("isError")) is (x == 2), answer
            late = (await ann.answer(begin_modern(ann, expose, "a_echo", {"x": 3})))["result"]
            await anyio.sleep(61)
            answers = {"inputResponses": dict.fromkeys(late["inputRequests"], ONCE)}
            state = {"requestState": late["requestState"]}
            too_late = await ann.answer(begin_modern(ann, expose, "a_echo", {"x": 3}, **state, **answers))
            assert details(too_late)["error"] == "approval_required"


@in_virtual_time
async def test_a_question_about_a_call_is_carried_by_its_own_request() -> None:
    event = anyio.Event()

    async def wait(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        await event.wait()
        return arguments

    server = AskingServer({"echo": echo, "wait": wait})
    async with door_room(server, approve=["echo"]) as room, talking(room, "direct") as talk:
        await teach(room, "a", [tool("echo"), tool("wait")])
        async with talk("ann") as ann:
            waiting = begin_modern(ann, "direct", "a_wait", {})
            await settle()
            asked = await ann.answer(begin_modern(ann, "direct", "a_echo", {"x": 1}))
            assert asked["result"]["resultType"] == "input_required"
            event.set()
            assert (await ann.answer(waiting))["result"]["resultType"] == "complete"


@in_virtual_time
async def test_more_input_for_an_allowed_call_is_the_same_call() -> None:
    asks_more = [0]

    async def ask(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        if "inputResponses" in asking.params and not asks_more[0]:
            return {"content": [{"type": "text", "text": "done"}]}
        wanted = {"q": {"method": "elicitation/create", "params": {"message": "?"}}}
        return {"resultType": "input_required", "inputRequests": wanted, "requestState": "s"}

    server = AskingServer({"ask": ask}, modern=True)
    async with door_room(server) as room, talking(room, "direct") as talk:
        await teach(room, "a", [tool("ask")])
        async with talk("ann") as ann:

            async def answered(result: Mapping[str, Any], arguments: Any, answer: Any) -> Any:
                more = {"inputResponses": dict.fromkeys(result["inputRequests"], answer)}
                state = {"requestState": result["requestState"]}
                number = begin_modern(ann, "direct", "a_ask", arguments, **more, **state)
                return (await ann.answer(number))["result"]

            first = (await ann.answer(begin_modern(ann, "direct", "a_ask", {"x": 1})))["result"]
            assert "Greenroom asks" in json.dumps(first)
            wants = await answered(first, {"x": 1}, ONCE)
            assert wants["inputRequests"]["q"]["params"]["message"] == "[a] ?"
            other = await answered(wants, {"x": 2}, {"action": "accept"})
            assert "Greenroom asks" in json.dumps(other), "other arguments are another call"
            done = await answered(wants, {"x": 1}, {"action": "accept"})
            assert done["content"][0]["text"] == "done"
            again = await answered(wants, {"x": 1}, {"action": "accept"})
            assert "Greenroom asks" in json.dumps(again), "it was allowed once, and has had its input"
            asks_more[0] = 4
            wants = await answered(again, {"x": 1}, ONCE)
            for rest in (3, 2, 1, 0):
                asks_more[0] = rest
                wants = await answered(wants, {"x": 1}, {"action": "accept"})
                assert "Greenroom asks" not in json.dumps(wants), "it may want more, again and again"
            assert wants["content"][0]["text"] == "done"
            last = (await ann.answer(begin_modern(ann, "direct", "a_ask", {"x": 3})))["result"]
            wants = await answered(last, {"x": 3}, ONCE)
            assert wants["inputRequests"]["q"]["params"]["message"] == "[a] ?"
        async with talk("ann") as ann:  # another session with that name
            of_before = await answered(wants, {"x": 3}, {"action": "accept"})
            assert "Greenroom asks" in json.dumps(of_before), "what is open ends with its session"


@pytest.mark.parametrize("kind", ["question", "result"])
@in_virtual_time
async def test_only_an_open_question_lets_the_same_call_pass_again(kind: str) -> None:
    """A question needs no state. A final result may contain the word that marks one."""

    async def ask(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        if kind == "result" or "inputResponses" in asking.params:
            return {"content": [{"type": "text", "text": "done: input_required"}]}
        return {"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}

    server = AskingServer({"ask": ask}, modern=True)
    async with door_room(server) as room, talking(room, "direct") as talk:
        await teach(room, "a", [tool("ask")])
        async with talk("ann") as ann:

            async def ended(**more: Any) -> Any:
                return (await ann.answer(begin_modern(ann, "direct", "a_ask", {}, **more)))["result"]

            first = await ended()
            assert "Greenroom asks" in json.dumps(first)
            answers = {"inputResponses": dict.fromkeys(first["inputRequests"], ONCE)}
            wants = await ended(requestState=first["requestState"], **answers)
            if kind == "question":
                assert list(wants["inputRequests"]) == ["q"]
                done = await ended(inputResponses={"q": {"roots": []}})
                assert "done" in json.dumps(done), "it is the same call"
            else:
                assert "done" in json.dumps(wants)
            more = {"inputResponses": {"q": {"roots": []}}} if kind == "question" else {"requestState": 1}
            assert "Greenroom asks" in json.dumps(await ended(**more)), "it has ended"


# ---- real processes -----------------------------------------------------------------------------------------------


@contextmanager
def at_terminal(text: str) -> Generator[None]:
    """Our standard input is a terminal at which somebody types."""
    person, ours = os.openpty()
    with pytest.MonkeyPatch.context() as patched, open(person, "w") as keys, open(ours) as stdin:
        patched.setattr(sys, "stdin", stdin)
        patched.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        keys.write(text)
        keys.flush()
        yield


def test_a_gateway_asks_its_client_and_a_command_asks_at_its_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, os.fspath(tmp_path / "cache" if "CACHE" in name else tmp_path))
    events = tmp_path / "events"
    where = ["--config", os.fspath(tmp_path / "mcp.json")]
    with direct_door(tmp_path, {"w": whole("w")}, events=events, approve=["echo"]) as door:
        door.answers["elicitation/create"] = lambda _params: {"result": ONCE}
        door.initialize(elicitation={})
        assert "isError" not in door.call("w_echo", {"text": "hi"})["result"]
        assert [each["method"] for each in door.asked] == ["elicitation/create"]
        door.answers["elicitation/create"] = lambda _params: {"result": {"action": "decline"}}
        refused = door.call("w_echo", {"text": "hi"})["result"]
        assert refused["_meta"]["greenroom/error"] == {
            "error": "approval_denied", "server": "w", "reach": "not_sent"
        }  # fmt: skip
        assert command_line(["call", "w_echo", "text=hi", *where]) == 1
        said = capsys.readouterr()
        assert "needs a person's approval" in said.err
        assert "--yes allows the call" in said.err
        assert command_line(["call", "w_echo", "text=hi", "--yes", *where]) == 0
        assert "hi" in capsys.readouterr().out
        for typed, code in (("y\n", 0), ("n\n", 1)):
            with at_terminal(typed):
                assert command_line(["call", "w_echo", "text=hi", *where]) == code
            said = capsys.readouterr()
            assert "Greenroom asks before it calls" in said.err
            assert ("You did not allow the call, so it was not sent." in said.err) == (typed == "n\n")
        with at_terminal("n\n"):
            assert command_line(["call", "w_echo", "text=hi", "--json", *where]) == 1
        denied = capsys.readouterr().out
        denied = json.loads(denied[denied.index("{\n") :])
        assert (denied["error"], denied["reach"], denied["tool"]) == (
            "approval_denied",
            "not_sent",
            "w_echo",
        )
        assert not denied.keys() & {"reason", "question"}
    assert command_line(["call", "w_echo", "text=hi", *where]) == 1, "also without a gateway"
    assert command_line(["call", "w_echo", "text=hi", "--yes", *where]) == 0
    logged = map(json.loads, events.read_text().splitlines())
    told = [event["move"] for event in logged if event.get("tool") == "w_echo" and "move" in event]
    by_client = ["asked", "allowed", "asked", "denied"]
    assert told == [
        *by_client,
        "unanswered",
        "asked",
        "allowed",
        *("asked", "allowed", "asked", "denied", "asked", "denied"),
    ], "of those that were asked about at a terminal each says what was answered"


@for_each("rule", ["get_my_file", "read_my_file", "s_read_*", "get-my-*", "u:x"])
def test_a_resource_that_is_offered_as_a_tool_is_asked_about_by_either_of_its_names(rule: str) -> None:
    resource = Target("s_get_my_file", "s", "resource", "u:x", {"uri": "u:x", "name": "My File"}, "", None)
    assert asks_about((rule,), "s", "u:x", resource)
    assert not asks_about(("read_other",), "s", "u:x", resource)
