"""Calls, looks, answers, cancellations, reloads and ends in any order: each call ends once, and nothing is left."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from tests.safety.test_approval import open_room
from tests.support import in_virtual_time
from tests.support.rooms import Outcomes, record_events, settle, teach

from greenroom import ApprovalRequest, Greenroom, Session, UsageError, Verdict
from greenroom.events import ApprovalDecision, ApprovalMove
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer
from greenroom.testing.room_inside import RoomInside

MOVES = {
    Verdict.ONCE: ApprovalMove.ALLOWED,
    Verdict.SESSION: ApprovalMove.ALLOWED_FOR_SESSION,
    Verdict.DENY: ApprovalMove.DENIED,
}
PATIENCE = {"approvalTimeoutMs": 6_000}


class Play:
    """One room, and what chance does to it."""

    def __init__(self, room: Greenroom, calls: Outcomes, chance: Random) -> None:
        self.room = room
        self.calls = calls
        self.chance = chance
        self.sessions: list[Session] = []
        self.answered: list[ApprovalMove] = []  # what a terminal was told to be done

    async def step(self, number: int) -> None:
        what = self.chance.choices(
            (self.call, self.look, self.answer, self.cancel, self.reload, self.end, self.wait),
            (35, 15, 25, 5, 2, 2, 16),
        )[0]
        await what(number)
        if self.chance.random() < 0.5:
            await settle()

    async def call(self, _: int) -> None:
        self.calls.start(
            self.chance.choice([self.room, *self.sessions]), "a_echo", {"n": self.chance.randrange(3)}
        )

    async def look(self, _: int) -> None:
        port_of(self.room).services.approvals.watch(5 * self.chance.random())

    async def answer(self, _: int) -> None:
        waiting = port_of(self.room).services.approvals.waiting()
        if waiting:
            number, verdict = self.chance.choice(waiting).number, self.chance.choice(list(Verdict))
            port_of(self.room).services.approvals.answer(number, verdict)
            self.answered.append(MOVES[verdict])
            with pytest.raises(UsageError, match="already"):
                port_of(self.room).services.approvals.answer(number, Verdict.ONCE)

    async def cancel(self, _: int) -> None:
        if self.calls.all:
            self.chance.choice(self.calls.all).cancel()

    async def reload(self, number: int) -> None:
        entry = {"command": f"fake{number}", "approve": "all"}
        await self.room.reload({"mcpServers": {"a": entry}, "settings": PATIENCE})

    async def end(self, _: int) -> None:
        if self.sessions:
            await self.sessions.pop(self.chance.randrange(len(self.sessions))).aclose()

    async def wait(self, _: int) -> None:
        await anyio.sleep(2 * self.chance.random())


def hook_of(chance: Random) -> Any:
    """Leaves it to the terminal, at once or later, or answers late, or fails."""

    async def hook(_request: ApprovalRequest) -> Verdict | None:
        kind = chance.random()
        if kind < 0.3:
            return None
        await anyio.sleep(8 * chance.random())
        if kind < 0.35:
            raise RuntimeError("oops")
        return None if kind < 0.4 else chance.choice(list(Verdict))

    return hook if chance.random() < 0.7 else None


@pytest.mark.parametrize("seed", range(30))
@in_virtual_time
async def test_in_any_order_each_call_ends_once_and_nothing_is_left(seed: int) -> None:
    chance = Random(seed)
    async with open_room(FakeServer(), on_approval=hook_of(chance), **PATIENCE) as room:
        await teach(room, "a")
        events = record_events(room, ApprovalDecision)
        async with Outcomes() as calls:
            play = Play(room, calls, chance)
            for name in ("ann", "ben", "cat"):
                play.sessions.append(await room.session(name).__aenter__())
            for number in range(60):
                await play.step(number)
            if chance.random() < 0.3:
                await room.aclose(0)
        for session in play.sessions:
            await session.aclose()
        assert not RoomInside(room).held_calls
        assert not port_of(room).services.approvals.waiting()
        assert RoomInside(room).waiting_bytes == 0
        assert [event.move for event in events if event.at_terminal] == play.answered
        assert all(one.outcome is not None for one in calls.all)
    assert room.drain_report is not None
    assert room.drain_report.adds_up
