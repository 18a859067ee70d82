"""What if it had gone wrong: servers on a tape play faults, and the room above reacts as it does in life."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from tests.support import in_virtual_time, run_virtual

from greenroom import CallError, ConfigError, Greenroom, Reach, UsageError
from greenroom.protocol.fault_plan import DEEDS
from greenroom.tape.tape_faults import TapeFault
from greenroom.testing import FakeServer, fake_room, strategies, tool

TOOLS = [tool("get", annotations={"readOnlyHint": True}), tool("put")]
SETTINGS = {"restartBackoff": {"minMs": 1, "maxMs": 1}, "requestTimeoutMs": 5000, "connectTimeoutMs": 5000}
RAN, UNSENT = "sent", "not_sent"


async def record(folder: Path, calls: Sequence[tuple[str, Any]]) -> Path:
    tape = folder / "one.tape"
    state = {"v": "old"}

    def handler(call: Any) -> str:
        if call.tool == "put":
            state["v"] = str(call["v"])
        return state["v"]

    server = FakeServer(tools=TOOLS, handler=handler)
    async with fake_room({"shop": server}, record=tape, settings=SETTINGS) as room:
        for name, arguments in calls:
            await room.call(f"shop_{name}", arguments)
    return tape


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Two writes between reads."""
    calls = [("get", {}), ("put", {"v": "new"}), ("get", {}), ("put", {"v": "newer"}), ("get", {})]
    return run_virtual("trio", record, tmp_path, calls)


async def outcome(room: Greenroom, name: str, arguments: Any = None) -> str:
    try:
        return (await room.call(f"shop_{name}", arguments or {})).text
    except CallError as error:
        return f"{error.code} {error.reach}"


def replayed(tape: Path, *faults: str, **options: Any) -> Greenroom:
    return Greenroom.replay(tape, faults=faults, bootstrap=False, **options)


@in_virtual_time
async def test_a_write_that_may_have_run_is_left_to_its_caller_and_a_read_is_made_again(tape: Path) -> None:
    async with replayed(tape, "shop call 1: crash after sent", "shop call 2: crash exit_code=3") as room:
        assert await outcome(room, "get") == "old", "a read is sent again by the room itself"
        with pytest.raises(CallError, match="exited with code 3") as lost:
            await room.call("shop_put", {"v": "new"})
        assert lost.value.reach is Reach.SENT
        await anyio.sleep(1)
        assert await outcome(room, "get") == "new", "it has run, for all that is known"
        assert await outcome(room, "put", {"v": "new"}) == "new", "made again, it gets the recorded answer"
        assert await outcome(room, "put", {"v": "newer"}) == "newer", "the fault happened once"
        assert room.tape is not None
        assert (room.tape.unplayed, room.tape.refused) == ([], [])


@in_virtual_time
async def test_what_was_never_sent_is_sent_by_the_next_start(tape: Path) -> None:
    async with replayed(tape, "shop call 2: crash before sent") as room:
        assert await outcome(room, "put", {"v": "new"}) == "new"
        assert room.tape is not None
        assert room.tape.unplayed == []
        (status,) = room.status()
        assert status.incarnation == 2


ENDS = [
    ("shop call 2: hang", f"timeout {RAN}"),
    ("shop call 2: drop_answer", f"timeout {RAN}"),
    ("shop call 2: drop answer", f"timeout {RAN}"),
    ("shop call 2: delay seconds=90", f"timeout {RAN}"),
    ("shop call 2: answer late", f"timeout {RAN}"),
    ("shop call 2: delay seconds=2", "new"),
    ("shop call 2: garbage", "new"),
    ("shop call 2: flood notifications=100", "new"),
    ("shop call 2: answer_twice", "new"),
    ("shop call 2: crash signal=SIGKILL", f"call_failed {RAN}"),
    ("shop call 2: expire", "new"),
    ('shop call 2: refuse text="sold out" code=-32001', "call_failed answered"),
    ("shop call tool=put nth=1: crash", f"call_failed {RAN}"),
    ("shop start 1: crash", f"connect_failed {UNSENT}"),
    ("shop start 1: hang", f"connect_failed {UNSENT}"),
    ("shop initialize start=1: refuse text=no", f"connect_failed {UNSENT}"),
    ("shop list start=1: crash", f"connect_failed {UNSENT}"),
    ("shop stop: hang", "new"),
]


LASTING = (
    "shop call 2: hang",
    "shop call tool=put nth=1: crash",
)  # it stays hung; and each start has a first call


@pytest.mark.parametrize(("fault", "end"), ENDS, ids=[fault for fault, _ in ENDS])
@in_virtual_time
async def test_each_fault_ends_a_call_as_it_does_in_life(tape: Path, fault: str, end: str) -> None:
    async with replayed(tape, fault) as room:
        assert await outcome(room, "put", {"v": "new"}) == end
        await anyio.sleep(5)
        if end != "new":
            again = await outcome(room, "put", {"v": "new"})
            assert again == (end if fault in LASTING else "new")
        played = room.tape
        assert played is not None
    assert played.unplayed == []


def test_every_deed_is_among_them() -> None:
    tried = {TapeFault.of(fault).fault.do for fault, _ in ENDS} | {"list_changed", "crash_before"}
    assert tried == set(DEEDS)


@in_virtual_time
async def test_a_server_that_keeps_dying_meets_the_circuit_breaker(tape: Path) -> None:
    async with replayed(tape, "shop start: crash text=broken") as room:
        ends = [await outcome(room, "put", {"v": "new"}) for _ in range(12)]
        assert ends[0] == "connect_failed not_sent"
        assert ends[-1] == "server_unavailable not_sent"


@in_virtual_time
async def test_a_server_comes_back_with_other_tools(tape: Path) -> None:
    async with replayed(tape, "shop call 1: list_changed tools=get,brand_new") as room:
        await outcome(room, "get")
        await anyio.sleep(1)
        entry = room.entry("shop")
        assert entry is not None
        assert [each["name"] for each in entry.tools or ()] == ["get", "brand_new"]


@pytest.mark.parametrize("name", ["put", "shop_put"])
@in_virtual_time
async def test_a_tool_is_named_as_its_server_or_as_an_agent_does(tape: Path, name: str) -> None:
    async with replayed(tape, f"shop call tool={name}: refuse text=no") as room:
        assert await outcome(room, "get") == "old"
        assert await outcome(room, "put", {"v": "new"}) == "call_failed answered"
        assert room.tape is not None
        assert room.tape.unplayed == []


@pytest.mark.parametrize(
    ("said", "names"),
    [("get,new", ["get", "new"]), ("'[\"a,b\"]'", ["a_b"]), ("[]", []), ('["get","new"]', ["get", "new"])],
)
@in_virtual_time
async def test_tools_of_a_fault_are_names_with_commas_or_json(
    tape: Path, said: str, names: list[str]
) -> None:
    async with replayed(tape, f"shop call 1: list_changed tools={said}") as room:
        await outcome(room, "get")
        await anyio.sleep(1)
        assert [each.name for each in room.tools()] == [f"shop_{name}" for name in names]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"ignore": "pin"}, "ignore must be a list of strings: write ignore=['pin']."),
        ({"ignore": [5]}, "Each of ignore must be a string, got int"),
        ({"ignore": None}, "ignore must be a list of strings, got None"),
        ({"faults": "shop call 1: crash"}, "write faults=['shop call 1: crash']"),
        ({"redact": "pin", "record": "new.tape"}, "write redact=['pin']"),
        ({"nearest": 2}, "nearest must be a number from 0 to 1, got 2"),
        ({"nearest": "x"}, "nearest must be a number from 0 to 1, got str"),
        ({"nearest": float("nan")}, "nearest must be a number from 0 to 1, got nan"),
        ({"strict": "no"}, "strict must be True or False, got str"),
        ({"by_order": 1}, "by_order must be True or False, got int"),
        ({"call_timeout": "5"}, "call_timeout must be a number of seconds, got str"),
        ({"call_timeout": 0}, "call_timeout must be above 0 seconds"),
        ({"call_timeout": float("inf")}, "call_timeout must be finite"),
        ({"pace": ["x"]}, "pace must be one of at once, recorded"),
    ],
)
def test_an_option_that_means_nothing_is_refused(tape: Path, option: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        Greenroom.replay(tape, **option)
    assert why in str(caught.value)


def test_what_is_no_path_is_no_tape() -> None:
    five: Any = 5
    with pytest.raises(UsageError, match="tape must be a path, got int"):
        Greenroom.replay(five)


def test_settings_that_cannot_be_used_are_those_of_the_tape(tape: Path) -> None:
    text = tape.read_text()
    assert '"requestTimeoutMs":5000' in text
    tape.write_text(text.replace('"requestTimeoutMs":5000', '"requestTimeoutMs":-1'))
    with pytest.raises(ConfigError) as caught:
        Greenroom.replay(tape)
    assert str(caught.value).startswith(f"the configuration on {tape}: settings.requestTimeoutMs")


@in_virtual_time
async def test_what_did_not_happen_is_told(tape: Path) -> None:
    async with replayed(tape, "shop call 4: crash", "shop ping: hang") as room:
        await outcome(room, "get")
        assert room.tape is not None
        assert room.tape.unplayed == ["shop call 4: crash", "shop ping: hang"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("", "is not a fault of a tape: write server, step"),
        ("shop call 7", "is not a fault of a tape"),
        ("call 7: crash", "is not a fault of a tape"),
        ("shop call 7: crash", "there is no call 7 on the tape; those of shop: 1, 2, 3, 4, 5"),
        ("shop call 0: crash", "there is no call 0"),
        ("shp call 1: crash", 'no server "shp". Did you mean "shop"?'),
        ("shop call 1: crsh", 'Did you mean "crash"?'),
        ("shop call 1: crash after lunch", "is none of delay"),
        ("shop call 1: crash exitcode=3", 'Did you mean "exit_code"?'),
        ("shop call 1: crash exit_code=many", "must be a whole number"),
        ("shop call 1 tool=get: crash", "leave out start, nth and tool"),
        ("shop call first: crash", "is not a place"),
        ("shop list 2: crash", "nth=3"),
        ("shop start: refuse text=no", 'write "crash"'),
        ("shop call tool=ghost: crash", 'there is no tool "ghost" on the tape. Those of shop: get, put.'),
        ("shop call 1: list_changed tools=[get", '"tools" must be a list of names'),
        ("shop call 1: list_changed tools=[1]", '"tools" must be a list of names'),
        ("shop call 1: list_changed tools=get,,put", '"tools" must be a list of names'),
        ("shop call tool=shop_putt: crash", 'Did you mean "shop_put"?'),
        ("shop call 1: refuse", '"refuse" needs "text"'),
        ("shop call 1: refuse text='no", "No closing quotation"),
    ],
)
def test_nonsense_is_refused_with_what_to_write(tape: Path, fault: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        replayed(tape, fault)
    assert why in str(caught.value)


def test_a_server_may_be_called_like_a_step_and_have_a_space_in_its_name() -> None:
    assert TapeFault.of("call call 7: crash").server == "call"
    assert TapeFault.of("my shop: two call 7: crash").server == "my shop: two"
    odd = "idle call 3: shop start"
    fault = TapeFault.of(f"{odd} call 7: crash", ["idle", "call", odd])
    assert (fault.server, fault.call) == (odd, 7)


@given(strategies.fault_scripts(faults=1))
def test_a_script_is_written_as_lines(script: Any) -> None:
    for fault in script:
        said = fault.as_dict()
        where = {key: said.pop(key) for key in ("start", "nth", "tool", "after") if key in said}
        step, deed = said.pop("at"), said.pop("do")
        words = [f"{key}={_value(value)}" for key, value in said.items()]
        line = f"shop {step} {' '.join(f'{key}={value}' for key, value in where.items())}: {deed} {' '.join(words)}"
        assert TapeFault.of(line).fault == fault


def _value(value: Any) -> str:
    return shlex.quote(json.dumps(value) if isinstance(value, list) else str(value))
