"""A real child that crashes in its second call, comes back, and leaves nothing behind."""

from pathlib import Path

import anyio
import pytest

from greenroom import CallError, Greenroom
from greenroom.testing import Fault, FaultScript, ScriptedServer, assert_no_orphans, assert_one_outcome_each


def test_it_comes_back_after_a_crash(tmp_path: Path) -> None:
    crashes = FaultScript.of(Fault("call", "crash", start=1, nth=2, exit_code=3, text="out of paper"))
    server = ScriptedServer(crashes, tmp_path / "server.log")

    async def main() -> Greenroom:
        config = {"mcpServers": {"printer": server.entry}}
        async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
            events = room.events()
            assert (await room.call("printer_echo", {"page": 1})).text == '{"page": 1}'
            with pytest.raises(CallError, match="exited with code 3") as caught:
                await room.call("printer_echo", {"page": 2})
            assert "out of paper" in caught.value.message
            assert (await room.call("printer_echo", {"page": 3})).text == '{"page": 3}'
        assert_one_outcome_each([event async for event in events], room.drain_report)
        return room

    room = anyio.run(main)

    assert server.starts == 2
    assert [fault.do for _, fault in server.played] == ["crash"]
    assert_no_orphans(room)
