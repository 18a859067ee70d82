"""What one call costs, counted and not timed: the functions of ours that are called for it, however busy the machine.

A bound that a change goes over on purpose is raised with it; a change that goes over it by accident is found here.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.loops import on_asyncio
from tests.support.patience import PATIENCE

from greenroom import Greenroom
from greenroom.actors.call import Call
from greenroom.gateway.endpoint import ClientSession, Endpoint
from greenroom.gateway.exposures.direct import Direct
from greenroom.gateway.exposures.proxy import Proxy
from greenroom.gateway.inbound_budget import InboundBudget
from greenroom.supervisor.room import port_of

ECHO = {"command": sys.executable, "args": ["-S", "src/greenroom/testing/servers/echo.py"]}
# Functions of ours called for one call, and one more; at a door the index is its client's own.
EMBEDDED, DIRECT, PROXY = 44, 47, 55
CALLS = 20
FIELDS = 30  # of an object with a `__dict__`: with as many, CPython 3.11 reads them the slow way


class Count:
    """While it is entered it counts calls of functions of ours, in this thread."""

    def __init__(self) -> None:
        self.calls = 0
        self._names: dict[Any, bool] = {}

    def _see(self, frame: Any, what: str, _argument: object) -> None:
        if what == "call":
            code = frame.f_code
            ours = self._names.get(code)
            if ours is None:
                ours = self._names[code] = frame.f_globals.get("__name__", "").startswith("greenroom.")
            self.calls += ours

    def __enter__(self) -> Count:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)


def opened() -> Greenroom:
    return Greenroom.open({"mcpServers": {"e": ECHO}}, cache_path=":memory:")


@in_real_time
async def test_an_embedded_call_is_few_calls_of_ours() -> None:
    async with opened() as room:
        await room.connect("e")
        await room.call("e_echo", {"text": "hi"})
        with Count() as count:
            for _ in range(CALLS):
                await room.call("e_echo", {"text": "hi"})
        assert 10 < count.calls / CALLS <= EMBEDDED


@pytest.mark.parametrize(
    ("door", "params", "most"),
    [
        (Direct, {"name": "e_echo", "arguments": {"text": "hi"}}, DIRECT),
        (Proxy, {"name": "mcp", "arguments": {"tool": "e_echo", "args": {"text": "hi"}}}, PROXY),
    ],
)
@in_real_time
async def test_a_call_at_a_door_is_few_calls_of_ours(
    door: Callable[[Any], Any], params: Mapping[str, Any], most: int
) -> None:
    class Outlet:
        busy = False

        def __init__(self) -> None:
            self.lines: list[bytes] = []
            self.came = anyio.Event()

        def send(self, line: bytes) -> bool:
            self.lines.append(line)
            self.came.set()
            return True

    def ask(number: int) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()

    outlet, count = Outlet(), Count()
    async with opened() as room, room.session("door") as session, anyio.create_task_group() as tasks:
        await room.connect("e")
        seen = port_of(session)
        await seen.catalogued()  # else its lists may come, and be taken in, while calls are counted
        await seen.settled()
        endpoint = Endpoint("1", print, InboundBudget(lambda: 1 << 30))
        client = ClientSession(endpoint, door(seen), outlet, tasks.start_soon)
        lines = [ask(number) for number in range(CALLS + 1)]

        async def call(line: bytes) -> None:
            outlet.came = anyio.Event()
            client.receive(line)
            await outlet.came.wait()

        await call(lines.pop())
        with count:
            for line in lines:
                await call(line)
        client.close()
    assert all(b'"hi"' in line for line in outlet.lines)
    assert len(outlet.lines) == CALLS + 1
    assert 10 < count.calls / CALLS <= most


@on_asyncio
@in_real_time
async def test_no_object_that_a_call_meets_has_so_many_fields_that_reading_them_is_slow() -> None:
    async with opened() as room:
        await room.connect("e")
        found = {
            type(each).__name__: len(vars(each))
            for each in gc.get_objects()
            if str(type(each).__module__).startswith("greenroom.actors") and hasattr(each, "__dict__")
        }
        assert found["StdioConnection"]
        assert not {name: fields for name, fields in found.items() if fields >= FIELDS}


@on_asyncio
@in_real_time
async def test_no_call_sets_so_many_fields_that_reading_them_is_slow_not_even_one_that_waited() -> None:
    """CPython keeps one list of names for all calls, so those count that only the first one sets, which often waits."""
    names, ended = set[str](), list[Call]()
    async with Greenroom.open(
        {"mcpServers": {"e": {**ECHO, "maxInFlight": 1}}}, cache_path=":memory:"
    ) as room:
        await room.connect("e")
        target = room.describe("e_echo")
        for _ in range(2):
            port_of(room).start_call(target, {"text": "hi"}, ended.append).asked_by = "a door"
        with anyio.fail_after(PATIENCE):
            while len(ended) < 2:
                await anyio.lowlevel.checkpoint()
        names.update(*map(vars, ended))
    assert {"weight", "asked_by", "result"} < names
    assert len(names) < FIELDS
