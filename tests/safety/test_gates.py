"""Gates decide about calls, and change nothing: what is noted, remembered or held is at the rim, when a call is handed
over."""

from __future__ import annotations

from typing import Any

from tests.support import in_virtual_time
from tests.support.rooms import open_room, record_events, settle, teach

from greenroom import ApprovalRequest, Verdict
from greenroom.actors.call import Call
from greenroom.events import ApprovalDecision
from greenroom.safety.gates import GateCase, Ruling
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer
from greenroom.testing.room_inside import RoomInside


def _ruling(room: Any, session: str | None, tool: str, **more: Any) -> Ruling | None:
    """What the room's gates decide about a call that nobody has made."""
    call = Call("tools/call", {"name": tool, "arguments": {"n": 1}, **more}, tool=f"a_{tool}")
    inside = RoomInside(room)
    case = GateCase(session, "a", call, port_of(room).catalogue.index)
    [gate] = inside.machinery.servers.gates
    return gate.judge(case)


@in_virtual_time
async def test_a_gate_that_is_asked_again_and_again_changes_nothing() -> None:
    asked = list[ApprovalRequest]()

    async def decide(request: ApprovalRequest) -> Verdict:
        asked.append(request)
        return Verdict.SESSION

    entries = {"a": {"approve": ["echo"]}}
    async with (
        open_room({"a": FakeServer()}, entries=entries) as room,
        room.session("ann", on_approval=decide),
    ):
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        for _ in range(3):
            held = _ruling(room, "ann", "echo")
            assert held is not None
            assert held.hold is not None
            refused = _ruling(room, None, "echo")
            assert refused is not None
            assert refused.error is not None, "outside of the session nobody can be asked"
            assert _ruling(room, "ann", "other") is None
        await settle()
        assert not asked
        assert not events
        assert not port_of(room).services.refusals


@in_virtual_time
async def test_what_was_allowed_for_a_session_passes_and_only_a_call_is_noted() -> None:
    async def decide(_request: ApprovalRequest) -> Verdict:
        return Verdict.SESSION

    entries = {"a": {"approve": ["echo"]}}
    opened = open_room({"a": FakeServer()}, entries=entries)
    async with opened as room, room.session("ann", on_approval=decide) as ann:
        await teach(room, "a")
        await ann.call("a_echo", {"n": 1})
        events = record_events(room, ApprovalDecision)
        passed = _ruling(room, "ann", "echo")
        assert passed is not None
        assert (passed.error, passed.hold) == (None, None)
        await settle()
        assert not events
        await ann.call("a_echo", {"n": 1})
        await settle()
        assert len(events) == 1
