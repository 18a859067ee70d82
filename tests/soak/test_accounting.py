"""Every call has the one outcome that its server knows about: real processes, killed, stopped and restarted while they
are called, and rooms that close meanwhile.

Each call carries a number. A server writes down every call that it hears, before it answers. After a round each
outcome is held against what was heard: an answer means heard once and answered with this number, `not_sent` means never
heard, and everything else at most once. `make soak` does 150 rounds and 20,000 cancellations; otherwise it is a few.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import attrs
import pytest
from tests.support import run
from tests.support.gateway import named_after

from greenroom import CallError, Greenroom, GreenroomError, Reach
from greenroom.testing import Fault, FaultScript, ScriptedServer


@attrs.frozen
class Scale:
    rounds: int
    cancels: int


FULL, SMALL = Scale(150, 20_000), Scale(3, 200)
SCALE = FULL if os.environ.get("GREENROOM_SOAK") else SMALL
CALLERS = 12
ABREAST = 40  # calls that are cancelled side by side
ROUND = 0.3  # seconds
SETTINGS = {
    "restartBackoff": {"minMs": 1, "maxMs": 20},
    "failureThreshold": 1000,
    "restartIntensity": 1000,
    "startPermits": 3,
    "maxConnections": 2,
}


@attrs.define
class Books:
    """What became of each call, by its number."""

    server: dict[int, str] = attrs.field(factory=dict[int, str])
    outcome: dict[int, Reach | str] = attrs.field(factory=dict[int, "Reach | str"])
    cancelled: int = 0
    trouble: list[str] = attrs.field(factory=list[str])

    def begin(self, server: str) -> int:
        number = len(self.server)
        self.server[number] = server
        return number

    def end(self, number: int, outcome: Reach | str) -> None:
        if number in self.outcome:
            self.trouble.append(f"call {number} ended as {self.outcome[number]} and as {outcome}")
        self.outcome[number] = outcome

    def held_against(self, servers: dict[str, ScriptedServer]) -> list[str]:
        """What does not agree with what the servers heard."""
        heard = {
            name: Counter(int(call["arguments"]["n"]) for call in far.calls) for name, far in servers.items()
        }
        for number, server in self.server.items():
            times, outcome = heard[server][number], self.outcome.get(number, "nothing")
            right = {"answer": times == 1, Reach.ANSWERED: times == 1, Reach.NOT_SENT: times == 0}
            if not right.get(outcome, times <= 1) or outcome == "nothing":
                self.trouble.append(f"call {number} ended as {outcome}, and {server} heard it {times} times")
        return self.trouble


async def call(room: Greenroom, books: Books, server: str) -> None:
    """One call, cancelled or not."""
    number = books.begin(server)
    try:
        result = await room.call(f"{server}_echo", {"n": number})
    except CallError as error:
        books.end(number, error.reach)
    except GreenroomError:
        books.end(number, Reach.NOT_SENT)
    except anyio.get_cancelled_exc_class():
        books.end(number, "cancelled")
        books.cancelled += 1
        raise
    else:
        if f'"n": {number}}}' not in result.text:
            books.trouble.append(f"call {number} has another's answer: {result.text}")
        books.end(number, "answer")


@pytest.mark.parametrize("number", range(SCALE.rounds))
def test_every_call_of_a_round_of_kills_and_stops_is_accounted_for(tmp_path: Path, number: int) -> None:
    seed = f"{os.environ.get('GREENROOM_SEED') or random.SystemRandom().randrange(2**32)}"
    print(f"GREENROOM_SEED={seed}")
    chance = random.Random(f"{seed} {number}")
    scripts = {
        "quick": FaultScript(),
        "slow": FaultScript.of(Fault("call", "delay", seconds=0.01)),
        "frail": FaultScript.of(Fault("call", "crash", nth=chance.randint(2, 30))),
    }
    servers = {name: ScriptedServer(script, tmp_path / name) for name, script in scripts.items()}
    books = Books()

    async def caller(room: Greenroom) -> None:
        while True:
            with anyio.move_on_after(chance.choice((0.0, 0.001, 0.02, 5.0))):
                await call(room, books, chance.choice(list(servers)))
            await anyio.lowlevel.checkpoint()  # a room that has closed refuses without waiting

    async def saboteur(room: Greenroom) -> None:
        while True:
            await anyio.sleep(chance.uniform(0.0, 0.04))
            name = chance.choice(list(servers))
            deed = chance.choice(("kill", "kill", "terminate", "drain", "restart"))
            with suppress(GreenroomError):
                if deed == "drain":
                    await room.drain(name)
                elif deed == "restart":
                    await room.restart(name)
                else:
                    (pid,) = [row.pid for row in room.status() if row.server == name]
                    if pid is not None:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL if deed == "kill" else signal.SIGTERM)

    async def body() -> None:
        entries = {name: far.entry for name, far in servers.items()}
        room = Greenroom.open({"mcpServers": entries, "settings": SETTINGS}, cache_path=":memory:")
        async with anyio.create_task_group() as tasks:
            async with room:
                await room.catalogued()
                for _ in range(CALLERS):
                    tasks.start_soon(caller, room)
                tasks.start_soon(saboteur, room)
                await anyio.sleep(ROUND)
            tasks.cancel_scope.cancel()  # they went on calling while it closed
        report = room.drain_report
        assert report is not None
        assert report.adds_up, str(report)

    run(("trio", "asyncio")[number % 2], body)
    assert books.held_against(servers) == []
    assert named_after(tmp_path) == set()


def test_every_cancelled_call_is_accounted_for_and_the_next_one_is_answered(
    backend: str, tmp_path: Path
) -> None:
    far = ScriptedServer(FaultScript(), tmp_path / "far")
    books = Books()

    async def cancelled(room: Greenroom, turns: int) -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, room, books, "far")
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

    async def body() -> None:
        config = {
            "mcpServers": {"far": far.entry},
            "settings": {"maxInFlight": ABREAST // 4, "maxQueued": ABREAST},
        }
        async with Greenroom.open(config, cache_path=":memory:") as room:
            await room.catalogued()
            while books.cancelled < SCALE.cancels:
                async with anyio.create_task_group() as tasks:
                    for each in range(ABREAST):
                        tasks.start_soon(cancelled, room, each % 13)
                await call(room, books, "far")
            (row,) = room.status()
            assert (row.in_flight, row.queued, row.incarnation) == (0, 0, 1)
        report = room.drain_report
        assert report is not None
        assert report.adds_up, str(report)
        assert report.accepted + report.refused == len(books.server)

    run(backend, body)
    assert books.held_against({"far": far}) == []
