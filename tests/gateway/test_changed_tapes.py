"""A tape on which anything was changed is refused with its line, or used in every way without an error of ours."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from tests.support import run, run_virtual
from tests.support.profiles import examples
from tests.support.rooms import record_events

from greenroom import Greenroom
from greenroom.errors import ConfigError, GreenroomError
from greenroom.events import Note, NoteCode
from greenroom.gateway.page.tape_page import TapePage
from greenroom.gateway.page.timeline import lanes_of
from greenroom.observe.taped_spans import tell_spans
from greenroom.supervisor.room import port_of
from greenroom.tape.last_minutes_tape import tape_of, write_tape
from greenroom.tape.story import as_json, told
from greenroom.tape.tape_comparison import compare_tapes
from greenroom.tape.tape_events import records_of
from greenroom.tape.tape_reader import BadTape, Tape, read_tape
from greenroom.tape.tape_selection import selected
from greenroom.testing import FakeServer, fake_room, tool

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 7, -0.5, 1e9, 1e10, 1e308, 2**53, 2**63, 2**90, "", "x", "flying", "closed", "shared", [], {},
    "session:", "call:\n", "\x1b[2J", [[]], [{}], {"": None}, {"name": 5}, [1, {}], ["x"], [-1.0, {}],
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> tuple[list[Any], list[Any]]:
    """The lines of a tape, and of one of the last minutes of the same room: with progress, a question, an error, a
    timeout, a crash and a session."""

    async def handler(call: Any) -> Any:
        match call.tool:
            case "ask":
                return str((await call.elicit("Your name?")).get("action"))
            case "steps":
                call.progress(1.0, 2.0, "half")
                return {"content": [{"type": "text", "text": "done"}], "structuredContent": {"done": True}}
            case _:
                return "fine"

    async def answer(_request: object) -> Mapping[str, Any]:
        return {"action": "accept", "content": {"name": "Ann"}}

    async def main(folder: Path) -> None:
        shop = FakeServer(
            tools=[tool("ask"), tool("steps"), tool("get", annotations={"readOnlyHint": True})],
            handler=handler,
        )
        servers = {"shop": shop, "own": FakeServer()}
        entries = {"own": {"isolation": "per_session"}}
        async with fake_room(
            servers, entries=entries, on_elicitation=answer, record=folder / "a.tape"
        ) as room:
            for name in ("get", "ask", "steps", "get"):
                await room.call(f"shop_{name}", {"pin": 4711})
            async with room.session("one") as session:
                await session.call("own_echo", {})
            shop.call_error = (-32001, "no such bill")
            with suppress(GreenroomError):
                await room.call("shop_get", {"bill": 7})
            shop.call_error, shop.call_latency = None, 60.0
            with suppress(GreenroomError):
                await room.call("shop_get", {"late": True}, timeout=0.1)
            shop.crash()
            write_tape(folder / "b.tape", tape_of(port_of(room).services.last_minutes(), ["pin"]))

    with TemporaryDirectory() as folder:
        run_virtual("asyncio", main, Path(folder))
        first, second = (
            [json.loads(line) for line in (Path(folder) / name).read_text().splitlines()]
            for name in ("a.tape", "b.tape")
        )
        return first, second


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in it, as the keys and numbers that lead there."""
    if here:
        yield here
    if isinstance(value, dict | list):
        members: Any = (
            cast("Any", value).items() if isinstance(value, dict) else enumerate(cast("Any", value))
        )
        for key, each in members:
            yield from places(each, (*here, key))


@st.composite
def changed(draw: st.DrawFn, tapes: tuple[list[Any], list[Any]]) -> bytes:
    """One of these tapes on which something was changed."""
    lines = copy.deepcopy(draw(st.sampled_from(tapes)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["put", "put", "put", "drop", "twice", "away", "elsewhere"])):
            case "put" | "drop" as how if lines[at]:
                *before, last = draw(st.sampled_from(list(places(lines[at]))))
                inside = lines[at]
                for key in before:
                    inside = inside[key]
                if how == "put":
                    inside[last] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
                else:
                    del inside[last]
            case "twice":
                lines.insert(draw(st.integers(0, len(lines))), copy.deepcopy(lines[at]))
            case "away":
                del lines[at]
            case _:
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        if not lines:
            break
    raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
    if draw(st.integers(0, 4)) == 0:  # and something that no JSON writer did
        at = draw(st.integers(0, len(raw)))
        raw = (
            raw[:at]
            + draw(st.sampled_from([b"", b"NaN", b"-", b"\n", b'"', b"\xff", b"\\ud800"]))
            + raw[at + 1 :]
        )
    return raw


async def replayed(tape: Tape, pace: str) -> list[str]:
    """Make each of its calls in a room over it. Returns what the room notes of bugs."""
    faults = ["shop call nth=2: list_changed tools=get"] if "shop" in tape.servers else []
    async with Greenroom.replay(tape.path, pace=pace, strict=False, nearest=0.5, faults=faults) as room:
        notes = record_events(room, Note)
        for line in tape.calls:
            params: Any = line.said
            arguments = params.get("arguments") if isinstance(params, dict) else None
            with suppress(GreenroomError):
                await room.call(line.tool or "", arguments if isinstance(arguments, dict) else {})
        for name in tape.servers:
            with suppress(GreenroomError):
                await room.reconnect(name)
    return [note.words for note in notes if note.code is NoteCode.BUG]


def used(tape: Tape) -> None:
    """In each way in which a tape is looked at."""
    "".join(told(tape))
    json.dumps(as_json(tape))
    lanes_of(records_of(tape))
    tell_spans(tape, TracerProvider())
    compare_tapes(tape, tape)
    selected(tape, failed=True, since=-1.0)
    page = TapePage(tape)

    async def looked() -> None:
        for what, params in (
            ("hello", {}),
            ("timeline", {}),
            ("calls", {}),
            *(("call", {"number": str(each.n)}) for each in tape.calls),
        ):
            await page.look(what, params, acts=False)

    run("asyncio", looked)


@contextmanager
def refused_with_its_line() -> Generator[None]:
    try:
        yield
    except BadTape as error:
        words = str(error)
    else:
        return
    assert re.search(r"line \d+: .|call #\d+ is on it|is not a tape of Greenroom|of version", words)


@examples(300)
@given(st.data(), st.sampled_from(["at once", "recorded"]))
def test_whatever_is_changed_is_refused_with_its_line_or_does_no_harm(
    recorded: tuple[list[Any], list[Any]], data: st.DataObject, pace: str
) -> None:
    raw = data.draw(changed(recorded))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "one.tape"
        path.write_bytes(raw)
        tape = None
        with suppress(ConfigError), refused_with_its_line():
            tape = read_tape(path)
        if tape is None:
            return
        used(tape)
        with suppress(ConfigError, BadTape):
            assert run_virtual("asyncio", replayed, tape, pace) == []


def test_a_head_with_a_member_that_is_no_text_is_no_tape(tmp_path: Path) -> None:
    path = tmp_path / "one.tape"
    path.write_bytes(b'{"k": "tape", "v": 1, "\xfft": 1.0}\n')
    with pytest.raises(BadTape, match="is not a tape of Greenroom"):
        read_tape(path)
