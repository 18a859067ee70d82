"""Whatever goes wrong: every call ends once, in bounded time, and the room can be closed."""

from contextlib import suppress

import trio
from hypothesis import given, settings
from trio.testing import MockClock

from greenroom import CallError, Greenroom
from greenroom.testing import FakeServer, FaultScript, assert_one_outcome_each, fake_connectors, strategies

CONFIG = {"mcpServers": {"far": {"command": "not started here"}}}


@settings(max_examples=30, deadline=None)
@given(strategies.fault_scripts(), strategies.tool_results())
def test_every_call_ends(script: FaultScript, result: dict[str, object]) -> None:
    far = FakeServer(script=script, handler=lambda _: result)

    async def call(room: Greenroom, number: int) -> None:
        with suppress(CallError):
            assert (await room.call("far_echo", {"number": number})).raw == result

    async def main() -> None:
        connectors = fake_connectors({"far": far})
        async with Greenroom.open(
            CONFIG, cache_path=":memory:", bootstrap=False, connectors=connectors
        ) as room:
            events = room.events()
            with trio.fail_after(2 * 60):
                async with trio.open_nursery() as callers:
                    for number in range(3):
                        callers.start_soon(call, room, number)
        assert_one_outcome_each([event async for event in events], room.drain_report)

    trio.run(main, clock=MockClock(autojump_threshold=0))
