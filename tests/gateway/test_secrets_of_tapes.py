"""No secret that was planted in what is called, answered, asked or told is on a tape, or in whatever shows one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run, run_virtual
from tests.support.planted import MARK, TOKENS, assert_clean, planted
from tests.support.profiles import examples
from tests.support.rooms import Outcomes
from tests.support.traced import Telemetry

from greenroom.errors import GreenroomError
from greenroom.gateway.page.tape_page import TapePage
from greenroom.gateway.timeline import trace_of_records
from greenroom.supervisor.room import port_of
from greenroom.supervisor.taped_spans import tell_spans
from greenroom.tape.reading import Tape, read_tape
from greenroom.tape.recent import tape_of, write_tape
from greenroom.tape.records import records_of
from greenroom.tape.story import as_json, told
from greenroom.testing import FakeServer, fake_room, tool

# Of a variable of the configuration; `$` would name another one.
known = st.text(st.characters(exclude_characters="$", exclude_categories=["Cc", "Cs"]), max_size=20).map(
    lambda text: f"{MARK}-4f8a1c9d-{text}{MARK}"
)


LARGE = " and more" * 5_000  # more than the last minutes have
ODD = f"odd-ghp_{MARK}defghijklmnopqrst0123"  # the name of a tool


async def recorded(folder: Path, known: str, value: Any, cut: int) -> None:
    """A room in which everybody says this value, also a server that was never given the secret: `a.tape`, and `b.tape`
    of the last minutes."""
    text = value if isinstance(value, str) else json.dumps(value)
    broken = f"{known[:cut]}\n{known[cut:]}"

    async def handler(call: Any) -> Any:
        call.progress(1.0, 2.0, text)
        with suppress(GreenroomError):
            await call.elicit(text)
        for connection in (*shop.connections, *other.connections):
            connection.tell("notifications/message", {"level": "error", "logger": text, "data": value})
            connection.tell(f"notifications/{text}", {"data": value})
        more = LARGE if call.tool == "bad" else ""
        return {
            "content": [
                {"type": "text", "text": text + more},
                {"type": "resource_link", "uri": text, "name": text},
            ],
            "structuredContent": {"found": value},
            "_meta": {"found": value},
            "isError": call.tool == "bad",
        }

    async def answer(_request: object) -> Mapping[str, Any]:
        return {"action": "accept", "content": {"said": text}}

    tools = [tool("get", f"needs {text}", annotations={"title": text}), tool("bad"), tool(ODD)]
    shop = FakeServer(tools=tools, handler=handler, resources={"made:one": text})
    other = FakeServer(tools=tools, handler=handler)
    entries = {"shop": {"env": {"SHOP_TOKEN": known}}}
    async with fake_room(
        {"shop": shop, "other": other}, entries=entries, on_elicitation=answer, record=folder / "a.tape"
    ) as room:

        async def say(name: str, **arguments: Any) -> None:
            with suppress(GreenroomError):
                await room.call(name, arguments, on_progress=lambda _: None)

        await say("other_get", text=text, value=value)
        await say("shop_get", text=text, value=value)
        await say("shop_bad", **{text: value})
        await say("shop_bad", text=text, value=value, large=LARGE)
        await say(f"shop_{text}")
        await say(f"shop_{ODD}")
        with suppress(GreenroomError):
            await room.read_resource("made:one", "shop")
        with suppress(GreenroomError):
            await room.read_resource(f"made:{text}", "shop")
        shop.call_error = other.call_error = (-32001, text)
        await say("shop_get")
        await say("other_get")
        shop.call_error, shop.call_latency = None, 60.0
        async with Outcomes() as calls:
            calls.start(room, "shop_get", {"open": value})
            await anyio.sleep(1)
            write_tape(folder / "open.tape", tape_of(port_of(room).last_minutes()))
            shop.crash(f"wrote: {broken} is wrong, {text}")
            other.crash(f"wrote: {broken} is wrong, {text}")
        shop.refuse_start = broken
        await say("shop_get", again=value)
        write_tape(folder / "b.tape", tape_of(port_of(room).last_minutes()))


def shown(tape: Tape) -> dict[str, str]:
    """All that shows a tape, and what it shows."""
    telemetry, page = Telemetry(), TapePage(tape)
    tell_spans(tape, telemetry.tracers)

    async def looked() -> str:
        asked = [("hello", {}), ("trace", {}), ("calls", {})]
        asked += [("call", {"number": str(call.n)}) for call in tape.calls]
        return "".join([(await page.look(what, params, acts=False)).body.decode() for what, params in asked])

    return {
        "story": "\n".join(told(tape, width=100_000)),
        "json": json.dumps(as_json(tape), ensure_ascii=False),
        "timeline": trace_of_records(records_of(tape)).to_json(),
        "spans": "".join(span.to_json() for span in telemetry.exporter.get_finished_spans()),
        "page": run("asyncio", looked),
    }


@examples(60)
@given(known, st.data())
def test_what_was_planted_is_on_no_tape_and_nothing_that_shows_one(known: str, data: st.DataObject) -> None:
    value = data.draw(planted([known, *TOKENS[1:]]))
    cut = data.draw(st.integers(6, len(known) - 1))
    with TemporaryDirectory() as folder:
        run_virtual("asyncio", recorded, Path(folder), known, value, cut)
        for name in ("a.tape", "b.tape", "open.tape"):
            path = Path(folder) / name
            assert_clean(name, path.read_text())
            tape = read_tape(path)
            assert len(tape.calls) > 4
            for what, text in shown(tape).items():
                assert_clean(f"{what} of {name}", text)
