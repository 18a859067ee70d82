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
from tests.support.planted import AROUND, MARK, NAMED, TOKENS, assert_clean, planted
from tests.support.profiles import examples
from tests.support.rooms import Outcomes
from tests.support.traced import Telemetry

from greenroom.errors import GreenroomError
from greenroom.gateway.page.tape_page import TapePage
from greenroom.observe.taped_spans import tell_spans
from greenroom.supervisor.room import port_of
from greenroom.tape.last_minutes_tape import tape_of, write_tape
from greenroom.tape.story import as_json, told
from greenroom.tape.tape_reader import Tape, read_tape
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
            write_tape(folder / "open.tape", tape_of(port_of(room).services.last_minutes()))
            shop.crash(f"wrote: {broken} is wrong, {text}")
            other.crash(f"wrote: {broken} is wrong, {text}")
        shop.refuse_start = broken
        await say("shop_get", again=value)
        write_tape(folder / "b.tape", tape_of(port_of(room).services.last_minutes()))


def shown(tape: Tape) -> dict[str, str]:
    """All that shows a tape, and what it shows."""
    telemetry, page = Telemetry(), TapePage(tape)
    tell_spans(tape, telemetry.tracers)

    async def looked() -> str:
        asked = [("hello", {}), ("timeline", {}), ("calls", {})]
        asked += [("call", {"number": str(call.n)}) for call in tape.calls]
        return "".join([(await page.look(what, params, acts=False)).body.decode() for what, params in asked])

    return {
        "story": "\n".join(told(tape, width=100_000)),
        "json": json.dumps(as_json(tape), ensure_ascii=False),
        "spans": "".join(span.to_json() for span in telemetry.exporter.get_finished_spans()),
        "page": run("asyncio", looked),
    }


@examples(60)
@given(known, st.data())
def test_what_was_planted_is_on_no_tape_and_nothing_that_shows_one(known: str, data: st.DataObject) -> None:
    value = data.draw(planted([known, *TOKENS[1:]], member=NAMED))
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


@st.composite
def long_secrets(draw: Any) -> list[str]:
    """Two values of the environment, of which each part of ten characters has `MARK`, or a half of it, in it."""
    lengths = draw(st.lists(st.sampled_from([30, 300, 3_950, 4_090, 6_000]), min_size=2, max_size=2))
    return [
        (f"{start}-{MARK}/" * (length // 5))[:length] for start, length in zip("ab", lengths, strict=True)
    ]


@st.composite
def large(draw: Any, secrets: list[str]) -> str:
    """A text that is too large for the last minutes, with secrets near its beginning: values of the environment, a
    member that is left out, and what is found only by its form."""
    row = f"{MARK} " * draw(st.sampled_from([1, 1_000]))
    token = f"eyJhbGciOiJIUzI1NiJ9.{MARK * draw(st.sampled_from([3, 1_000]))}.{MARK}zjgNryP4J3jVmNHl0w5N"
    found = draw(st.permutations([*secrets, token]))
    how = draw(st.sampled_from(["text", "nickname", "password"]))
    if how == "text":
        return draw(AROUND) + draw(AROUND).join(found) + LARGE
    said = {how: row, "said": found, "rows": LARGE}
    return json.dumps([said] if draw(st.booleans()) else said)


@examples(100)
@given(long_secrets(), st.data())
def test_of_what_is_too_large_no_half_of_a_secret_is_on_a_tape_of_the_last_minutes(
    secrets: list[str], data: st.DataObject
) -> None:
    text = data.draw(large(secrets))

    async def said(path: Path) -> None:
        async def handler(call: Any) -> str:
            return text if "get" in call else "fine"

        server = FakeServer(handler=handler, resources={"made:one": text})
        entries = {"shop": {"env": dict(zip(["A_KEY", "B_TOKEN"], secrets, strict=True))}}
        async with fake_room({"shop": server}, entries=entries) as room:
            await room.call("shop_echo", {"get": "it"})
            await room.call("shop_echo", {"said": text})
            await room.read_resource("made:one", "shop")
            with suppress(GreenroomError):
                await room.read_resource(f"made:{text}", "shop")
            server.connections[0].tell("notifications/message", {"level": "info", "data": text})
            write_tape(path, tape_of(port_of(room).services.last_minutes(), ["nickname"]))

    with TemporaryDirectory() as folder:
        run_virtual("asyncio", said, path := Path(folder) / "x.tape")
        assert_clean("x.tape", path.read_text())
        tape = read_tape(path)
        assert [*tape.calls[0].left_out, *tape.calls[1].left_out] == ["result", "params"]
