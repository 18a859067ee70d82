"""Calls that wait for a person at a terminal: the first answer counts, and nothing waits for nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import begin, talking
from tests.safety.test_approval import (
    OLDER,
    ONCE,
    begin_modern,
    details,
    door_room,
    echo,
    moves,
    open_room,
    waiting_for,
)
from tests.support import in_virtual_time, run_virtual
from tests.support.asking import AskingServer
from tests.support.rooms import Outcomes, record_events, settle, teach
from tests.support.rows import for_each

from greenroom import ApprovalRequest, CallError, Greenroom, Reach, UsageError, Verdict
from greenroom.errors import ApprovalDenied, ApprovalNeeded, Bug, RoomClosed
from greenroom.events import ApprovalDecision, ApprovalMove, Note, NoteCode
from greenroom.gateway.control_methods import allowing, approval_methods, commands
from greenroom.protocol.bounds import APPROVALS_ENDED, APPROVALS_LISTED, APPROVALS_WAITING
from greenroom.safety.approval_desk import LONGEST_LOOK, ApprovalDesk, ApprovalQuestion
from greenroom.supervisor.room import port_of
from greenroom.supervisor.servers import ServerList
from greenroom.testing.fake_servers import FakeServer
from greenroom.testing.room_inside import RoomInside

ALLOWED, DENIED, ASKED = ApprovalMove.ALLOWED, ApprovalMove.DENIED, ApprovalMove.ASKED


# ---- the desk alone -----------------------------------------------------------------------------------------------


def request(number: int = 0) -> ApprovalRequest:
    return ApprovalRequest("s", "s_do", "do", "ann", {}, "?", json.dumps({"n": number}).encode())


def deciding(desk: ApprovalDesk, said: list[Verdict], **more: Any) -> int:
    """A question whose call ends with the answer, as those of a room do."""

    def decide(verdict: Verdict) -> None:
        said.append(verdict)
        desk.take(number, DENIED if verdict is Verdict.DENY else ALLOWED)

    number = desk.put(request(), 0.0, 9.0, decide, **more)
    return number


def test_an_answer_goes_to_the_question_with_its_number_and_only_once() -> None:
    desk, said, other = ApprovalDesk(lambda: 0.0), list[Verdict](), list[Verdict]()
    number, second = deciding(desk, said), deciding(desk, other)
    assert second == number + 1
    assert [each.number for each in desk.waiting()] == [number, second]
    assert desk.answer(number, Verdict.ONCE).number == number
    with pytest.raises(UsageError, match=r"allowed already.*greenroom approve") as late:
        desk.answer(number, Verdict.DENY)
    assert late.value.code == "not_waiting"
    assert (said, other, len(desk)) == ([Verdict.ONCE], [], 1)
    for unknown in (0, -1, second + 1):
        with pytest.raises(UsageError, match=f"No call with the number {unknown} waits"):
            desk.answer(unknown, Verdict.ONCE)


@for_each(
    ("move", "words"),
    [
        (ApprovalMove.ALLOWED_FOR_SESSION, "allowed already, for its session"),
        (ApprovalMove.DENIED, "refused already"),
        (ApprovalMove.UNANSWERED, "nobody answered in time"),
        (ApprovalMove.LEFT, "withdrawn"),
    ],
)
def test_a_late_answer_is_told_what_became_of_the_call(move: ApprovalMove, words: str) -> None:
    desk = ApprovalDesk(lambda: 0.0)
    number = deciding(desk, [])
    desk.take(number, move)
    desk.take(number, ALLOWED)  # it has ended once
    with pytest.raises(UsageError, match=words):
        desk.answer(number, Verdict.ONCE)


def test_the_last_outcomes_are_remembered_and_the_first_questions_listed() -> None:
    desk = ApprovalDesk(lambda: 0.0)
    numbers = [deciding(desk, []) for _ in range(APPROVALS_ENDED + 1)]
    for number in numbers:
        desk.take(number, DENIED)
    with pytest.raises(UsageError, match="No call with the number"):
        desk.answer(numbers[0], Verdict.ONCE)
    with pytest.raises(UsageError, match="refused already"):
        desk.answer(numbers[1], Verdict.ONCE)
    more = [deciding(desk, []) for _ in range(APPROVALS_LISTED + 1)]
    assert [each.number for each in desk.waiting()] == more[:-1]
    assert len(desk) == len(more)


def test_numbers_of_another_room_mean_other_calls() -> None:
    """A number read off one gateway must not allow a call of the next."""
    assert len({deciding(ApprovalDesk(lambda: 0.0), []) for _ in range(20)}) > 1


def test_a_look_counts_for_its_time_and_the_longest_counts() -> None:
    now = [0.0]
    desk = ApprovalDesk(lambda: now[0])
    assert not desk.is_watched(None)
    for seconds in (-1.0, 0.0, float("nan")):
        desk.watch(seconds)
        assert not desk.is_watched(None)
    desk.watch(5.0)
    desk.watch(1.0)
    now[0] = 4.9
    assert desk.is_watched("ann")
    with desk.asked_elsewhere("ann"):
        assert not desk.is_watched("ann")
        assert desk.is_watched("ben")
    assert desk.is_watched("ann")
    now[0] = 5.0
    assert not desk.is_watched("ann")
    desk.watch(float("inf"))
    now[0] += LONGEST_LOOK
    assert not desk.is_watched("ann")


@in_virtual_time
async def test_a_look_may_end_between_two_glances_at_the_clock() -> None:
    """As on a busy machine. A sleep of less than nothing is an error of anyio."""
    times = iter([0.0, 0.9, 1.1, 1.2])
    desk = ApprovalDesk(lambda: next(times))
    desk.watch(1.0)
    await desk.unwatched(None)
    assert not list(times)


# ---- in a room ----------------------------------------------------------------------------------------------------


def only(room: Greenroom) -> ApprovalQuestion:
    (question,) = port_of(room).services.approvals.waiting()
    return question


@pytest.mark.parametrize("verdict", list(Verdict))
@in_virtual_time
async def test_a_call_that_nobody_else_can_be_asked_about_waits_for_a_terminal(verdict: Verdict) -> None:
    server = FakeServer()
    async with open_room(server) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        port_of(room).services.approvals.watch(60)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo", {"x": 1})
            await settle()
            assert '{"x":1}' in only(room).request.text
            assert server.starts == 0
            number = only(room).number
            port_of(room).services.approvals.answer(number, verdict)
            assert not port_of(room).services.approvals.waiting(), "an answer takes effect at once"
            with pytest.raises(UsageError, match="already"):
                port_of(room).services.approvals.answer(number, Verdict.ONCE)
        if verdict is Verdict.DENY:
            assert isinstance(one.outcome, ApprovalDenied)
        else:
            assert json.loads(str(one.outcome)) == {"x": 1}
        async with Outcomes() as calls:
            again = calls.start(room, "a_echo", {"x": 1})
            await settle()
            assert len(port_of(room).services.approvals) == (verdict is not Verdict.SESSION)
            again.cancel()
        assert [event.at_terminal for event in events[:2]] == [False, True]
        assert ("at a terminal" in events[1].detail) is True
    assert room.drain_report is not None
    assert room.drain_report.adds_up


@in_virtual_time
async def test_with_nobody_watching_it_is_refused_at_once_and_told_of_the_terminal() -> None:
    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        port_of(room).services.approvals.watch(1)
        await anyio.sleep(1)
        with pytest.raises(ApprovalNeeded, match="`greenroom approve`") as refused:
            await room.call("a_echo")
        assert refused.value.reason == "nobody"
        assert anyio.current_time() == 1.0


@pytest.mark.parametrize(("looks", "ends", "reason"), [(2, 7.0, "nobody"), (99, 10.0, "expired")])
@in_virtual_time
async def test_when_the_terminal_is_gone_the_call_is_refused_when_its_look_is_over(
    looks: int, ends: float, reason: str
) -> None:
    """Or when its time is over, whatever is first."""

    server = FakeServer()
    async with open_room(server, approvalTimeoutMs=10_000) as room:
        await teach(room, "a")
        port_of(room).services.approvals.watch(5)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            for _ in range(looks):
                if one.outcome is None:
                    port_of(room).services.approvals.watch(5)
                    await anyio.sleep(2)
        assert isinstance(one.error, ApprovalNeeded)
        assert (one.error.reason, one.at) == (reason, ends)
        assert not port_of(room).services.approvals.waiting()
        assert RoomInside(room).waiting_bytes == 0
    assert server.starts == 0


@pytest.mark.parametrize("first", ["terminal", "hook"])
@in_virtual_time
async def test_the_first_answer_counts_and_the_other_question_is_withdrawn(first: str) -> None:
    server, event, withdrawn = FakeServer(), anyio.Event(), list[str]()

    async def hook(_request: ApprovalRequest) -> Verdict:
        try:
            await event.wait()
        except BaseException:
            withdrawn.append("withdrawn")
            raise
        return Verdict.DENY

    async with open_room(server, on_approval=hook) as room:
        await teach(room, "a")
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            await settle()
            number = only(room).number
            if first == "terminal":
                port_of(room).services.approvals.answer(number, Verdict.ONCE)
            else:
                event.set()
                await settle()
                with pytest.raises(UsageError, match="refused already"):
                    port_of(room).services.approvals.answer(number, Verdict.ONCE)
        if first == "terminal":
            assert (one.outcome, withdrawn) == ("{}", ["withdrawn"])
        else:
            assert isinstance(one.outcome, ApprovalDenied)
        assert len(server.calls) == (first == "terminal")


@pytest.mark.parametrize("hook", [Verdict.DENY, Verdict.SESSION])
@in_virtual_time
async def test_both_answer_in_one_turn_and_what_the_terminal_was_told_is_true(hook: Verdict) -> None:
    server, event, is_yes = FakeServer(), anyio.Event(), hook is Verdict.DENY
    async with open_room(server, on_approval=waiting_for(event, hook)) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            await settle()
            event.set()  # whoever is asked has not been heard yet
            port_of(room).services.approvals.answer(
                only(room).number, Verdict.ONCE if is_yes else Verdict.DENY
            )
        assert one.outcome == "{}" if is_yes else isinstance(one.outcome, ApprovalDenied)
        assert moves(events) == [ASKED, ALLOWED if is_yes else DENIED]
        async with Outcomes() as calls:
            calls.start(room, "a_echo")
        assert moves(events).count(ASKED) == 2, "what came second is not remembered"
    assert len(server.calls) == 1, "of the two calls one was allowed"


@pytest.mark.parametrize("what", ["caller", "room", "session", "server"])
@in_virtual_time
async def test_whoever_goes_while_a_call_waits_takes_its_question_off_the_desk(what: str) -> None:
    server = FakeServer()
    async with open_room(server) as room:
        await teach(room, "a")
        desk = port_of(room).services.approvals
        desk.watch(60)
        async with room.session("ann") as session, Outcomes() as calls:
            one = calls.start(session, "a_echo")
            await settle()
            number = only(room).number
            if what == "caller":
                one.cancel()
            elif what == "server":
                await room.reload({"mcpServers": {"a": {"command": "another", "approve": "all"}}})
            elif what == "session":
                await session.aclose()
            else:
                await room.aclose()
            await settle()
            with pytest.raises(UsageError, match=r"was withdrawn|server was changed"):
                desk.answer(number, Verdict.ONCE)
            if what != "caller":
                assert isinstance(one.error, ApprovalNeeded if what == "server" else RoomClosed)
    assert server.starts == 0
    assert room.drain_report is not None
    assert room.drain_report.adds_up


@pytest.mark.parametrize("what", ["caller", "room", "drain"])
@in_virtual_time
async def test_whoever_goes_right_after_the_answer_finds_the_call_sent_or_refused_once(what: str) -> None:
    server = FakeServer()
    async with open_room(server) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        port_of(room).services.approvals.watch(60)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            await settle()
            port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
            if what == "caller":
                one.cancel()
            elif what == "room":
                await room.aclose()
            else:
                await room.drain("a")
        assert one.outcome is not None
        assert moves(events) == [ASKED, ALLOWED]
    assert room.drain_report is not None
    assert room.drain_report.adds_up


@in_virtual_time
async def test_a_call_that_leaves_just_when_its_turn_comes_is_not_asked_about() -> None:
    """It waited for the answer to another with the same question."""

    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        port_of(room).services.approvals.watch(60)
        target = room.describe("a_echo")
        for ticks in range(12):
            ahead = port_of(room).start_call(target, {"n": ticks}, None)
            await settle()
            behind = port_of(room).start_call(target, {"n": ticks}, None)
            await settle()
            port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            behind.cancel()
            asked = moves(events).count(ASKED)
            await settle()
            assert moves(events).count(ASKED) == asked, f"after {ticks} ticks"
            assert not port_of(room).services.approvals.waiting()
            assert ahead.error is None


@in_virtual_time
async def test_an_answer_for_a_server_that_was_taken_down_meanwhile_starts_nothing() -> None:
    server = FakeServer()
    async with open_room(server) as room:
        await teach(room, "a")
        port_of(room).services.approvals.watch(60)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo")
            await settle()
            await room.drain("a")
            port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
        assert isinstance(one.outcome, CallError)
        assert "drained" in str(one.outcome)
    assert server.starts == 0


@in_virtual_time
async def test_a_call_whose_handing_over_fails_because_of_us_has_an_outcome_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        notes = record_events(room, Note)
        port_of(room).services.approvals.watch(60)
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo", {"x": 1})
            await settle()

            def fails(_servers: ServerList, *_: Any) -> Any:
                raise KeyError("lost")

            with monkeypatch.context() as patch:
                patch.setattr(ServerList, "actor_for", fails)
                port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
            await settle()
            assert isinstance(one.outcome, Bug)
            assert "failed in Greenroom itself: KeyError: 'lost'" in str(one.outcome)
            assert one.outcome.reach is Reach.NOT_SENT
            assert one.outcome.server == "a"
            again = calls.start(room, "a_echo", {"x": 2})
            await settle()
            port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
        assert json.loads(str(again.outcome)) == {"x": 2}
        assert [note.code for note in notes] == [NoteCode.BUG]
        assert "KeyError: 'lost'" in notes[0].words
    assert room.drain_report is not None
    assert room.drain_report.adds_up
    assert (room.drain_report.refused, port_of(room).services.refusals) == (1, {"bug": 1})


@in_virtual_time
async def test_a_thousand_calls_wait_and_each_is_answered_for_itself() -> None:
    server, sessions = FakeServer(), 1_000 // APPROVALS_WAITING
    async with open_room(server) as room, anyio.create_task_group() as open_sessions:
        await teach(room, "a")
        port_of(room).services.approvals.watch(90)
        async with Outcomes() as calls:
            for name in range(sessions):
                session = room.session(f"s{name}")
                await session.__aenter__()
                for number in range(APPROVALS_WAITING):
                    calls.start(session, "a_echo", {"n": number})
                await settle()
                with pytest.raises(ApprovalNeeded, match="wait already"):
                    await session.call("a_echo", {"n": -1})
            questions = port_of(room).services.approvals.waiting(2_000)
            assert len(questions) == len(port_of(room).services.approvals) == sessions * APPROVALS_WAITING
            status = await approval_methods(port_of(room))["approvals"]({})
            assert len(status["approvals"]) == APPROVALS_LISTED
            assert status["waitingForApproval"] == len(questions)
            for place, question in enumerate(reversed(questions)):
                port_of(room).services.approvals.answer(
                    question.number, Verdict.DENY if place % 2 else Verdict.ONCE
                )
        denied = [one for one in calls.all if isinstance(one.outcome, ApprovalDenied)]
        assert len(denied) == len(server.calls) == len(questions) // 2
        assert RoomInside(room).waiting_bytes == 0
        open_sessions.cancel_scope.cancel()


# ---- at the doors -------------------------------------------------------------------------------------------------


@OLDER
@in_virtual_time
async def test_a_client_that_cannot_be_asked_waits_for_the_terminal(expose: str) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        port_of(room).services.approvals.watch(60)
        async with talk("ann") as ann:
            number = begin(ann, expose, "a_echo", x=1)
            await settle()
            assert only(room).request.session == "ann"
            port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
            assert not (await ann.answer(number))["result"].get("isError")


@OLDER
@in_virtual_time
async def test_a_question_at_a_client_is_withdrawn_when_the_terminal_answers(expose: str) -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann", elicitation={}) as ann:
            number = begin(ann, expose, "a_echo", x=1)
            await ann.heard(lambda said: said.get("method") == "elicitation/create")
            port_of(room).services.approvals.answer(only(room).number, Verdict.DENY)
            assert details(await ann.answer(number))["error"] == "approval_denied"
            await ann.heard(lambda said: said.get("method") == "notifications/cancelled")
            ann.reply(ONCE)  # too late
            await settle()
    assert server.starts == 0


@OLDER
@pytest.mark.parametrize("verdict", [Verdict.ONCE, Verdict.DENY])
@in_virtual_time
async def test_a_client_of_2026_comes_back_for_what_the_terminal_decided(
    expose: str, verdict: Verdict
) -> None:
    """Whatever it brings as its own answer."""

    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, expose) as talk:
        await teach(room, "a")
        async with talk("ann") as ann:
            asked = (await ann.answer(begin_modern(ann, expose, "a_echo", {"x": 1})))["result"]
            port_of(room).services.approvals.answer(only(room).number, verdict)
            await settle()
            said: Mapping[str, Any] = {"action": "decline"} if verdict is Verdict.ONCE else ONCE
            more = {"inputResponses": dict.fromkeys(asked["inputRequests"], said)}
            state = {"requestState": asked["requestState"]}
            again = begin_modern(ann, expose, "a_echo", {"x": 1}, **state, **more)
            answer = (await ann.answer(again))["result"]
            assert bool(answer.get("isError")) is (verdict is Verdict.DENY), answer


@in_virtual_time
async def test_a_client_whose_question_fails_waits_for_the_terminal_alone() -> None:
    server = AskingServer({"echo": echo})
    async with door_room(server) as room, talking(room, "direct") as talk:
        await teach(room, "a")
        async with talk("ann", elicitation={}) as ann:
            for watching in (True, False):
                if watching:
                    port_of(room).services.approvals.watch(30)
                number = begin(ann, "direct", "a_echo", x=watching)
                await settle()
                question = [said for said in ann.said if said.get("method") == "elicitation/create"][-1]
                ann.say({"id": question["id"], "error": {"code": -32601, "message": "no"}})
                await settle()
                if watching:
                    port_of(room).services.approvals.answer(only(room).number, Verdict.ONCE)
                    assert not (await ann.answer(number))["result"].get("isError")
                    await anyio.sleep(30)
                else:
                    assert details(await ann.answer(number))["error"] == "approval_required"


@in_virtual_time
async def test_a_command_is_never_held_for_a_terminal() -> None:
    """Its own person is asked by it."""

    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        methods = commands(room, "0")
        port_of(room).services.approvals.watch(60)
        refused = await methods["mcp"]({"arguments": {"tool": "a_echo", "args": {}}})
        assert refused["isError"] is True
        assert anyio.current_time() == 0.0
        assert not port_of(room).services.approvals.waiting()


@in_virtual_time
async def test_the_methods_of_the_control_socket() -> None:
    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        methods = commands(room, "0")
        assert (await methods["status"]({}))["waitingForApproval"] == 0
        await methods["approvals"]({})
        assert not port_of(room).services.approvals.is_watched(None), "a look without a wish is no watching"
        assert (await methods["approvals"]({"watching": 9}))["approvals"] == []
        async with Outcomes() as calls:
            one = calls.start(room, "a_echo", {"x": "\x1b[2J\u202e" + "y" * 100_000})
            await anyio.sleep(2)
            ((call,), count) = (await methods["approvals"]({})).values()
            assert (call["tool"], call["session"], call["waiting"], call["left"], count) == (
                "a_echo", None, 2.0, 298.0, 1
            )  # fmt: skip
            assert len(call["question"]) < 2_500
            assert "\x1b" not in call["question"]
            assert (await methods["approvals"]({"number": 5}))["approvals"] == []
            number = call["number"]
            assert (await methods["approvals"]({"number": number}))["approvals"] == [call]
            for wrong, fault in (
                ({"number": number}, '"verdict" must be one of once, session, deny'),
                ({"number": number, "verdict": "yes"}, '"verdict" must be one of'),
                ({"number": "1", "verdict": "once"}, '"number" must be a number'),
                ({"number": True, "verdict": "once"}, '"number" must be a number'),
                ({"number": float("inf"), "verdict": "once"}, '"number" must be a whole number'),
                ({"number": 5, "verdict": "once"}, "No call with the number 5 waits"),
            ):
                with pytest.raises(UsageError, match=fault):
                    await methods["approve"](wrong)
            done = await methods["approve"]({"number": number, "verdict": "deny"})
            assert done == {"server": "a", "tool": "a_echo", "session": None}
        assert isinstance(one.outcome, ApprovalDenied)
        assert set(approval_methods(port_of(room))) == {"approvals", "approve"}


@in_virtual_time
async def test_a_look_at_one_call_tells_whether_it_has_ended_and_how_many_wait() -> None:
    async with open_room(FakeServer()) as room:
        await teach(room, "a")
        methods = commands(room, "0")
        await methods["approvals"]({"watching": 60})
        async with Outcomes() as calls:
            for number in range(2):
                calls.start(room, "a_echo", {"n": number})
            await anyio.sleep(2.34)
            both = await methods["approvals"]({})
            assert "hasEnded" not in both
            assert [(each["waiting"], each["left"]) for each in both["approvals"]] == [(2.3, 297.7)] * 2
            first, second = both["approvals"]

            async def seen(number: int) -> Any:
                said = await methods["approvals"]({"number": number})
                return said["approvals"], said["waitingForApproval"], said["hasEnded"]

            assert await seen(first["number"]) == ([first], 2, False)
            assert await seen(99) == ([], 2, False)
            await methods["approve"]({"number": first["number"], "verdict": "once"})
            await settle()
            assert await seen(first["number"]) == ([], 1, True)
            assert (await methods["status"]({}))["waitingForApproval"] == 1
            await methods["approve"]({"number": second["number"], "verdict": "deny"})
        assert not (await methods["approvals"]({}))["approvals"]


@pytest.mark.parametrize(
    ("said", "is_sent"),
    [
        ({"allowed": True}, True),
        *(({"allowed": no}, False) for no in (False, None, 1, "true", [True])),
        ({}, False),
    ],
)
def test_a_command_sends_a_call_that_has_to_be_allowed_only_after_a_plain_yes(
    said: dict[str, Any], is_sent: bool, backend: str
) -> None:
    async def body() -> None:
        server = FakeServer()
        async with open_room(server) as room:
            await teach(room, "a")
            mcp = commands(room, "0")["mcp"]
            answer = await mcp({"arguments": {"tool": "a_echo", "args": {"x": 1}}, **said})
            assert bool(answer.get("isError")) is not is_sent
            assert len(server.calls) == is_sent
            again = await mcp({"arguments": {"tool": "a_echo", "args": {"x": 1}}})
            assert again["isError"], "one yes is for one call"

    run_virtual(backend, body)
    assert anyio.run(allowing, None) is Verdict.ONCE
