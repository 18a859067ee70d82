"""A tape that is being recorded: what goes on around it, what is too large for it, and what is not its own."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_virtual_time, run
from tests.support.gateway import PATIENCE
from tests.tape.test_record_and_replay import lines_of, raw, recorded, tape_in

import greenroom.tape.member_redaction
import greenroom.tape.recorder
import greenroom.tape.tape_reader
from greenroom import Greenroom
from greenroom.errors import GreenroomError, RemoteError, UsageError
from greenroom.protocol.bounds import TAPE_ASIDE_BYTES, TAPE_PARAMS_BYTES
from greenroom.protocol.events import Kind
from greenroom.tape.member_redaction import HIDDEN, MemberRedaction
from greenroom.tape.story import ending, told
from greenroom.tape.tape_lines import LARGE
from greenroom.tape.tape_reader import read_tape
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool


def files_of(tape: Path) -> list[Path]:
    return [tape, *sorted(tape.with_name(tape.name + ".d").glob("*"))]


async def note_of(room: Greenroom, word: str, act: Any) -> str:
    """The note with this word that `act` leads to."""
    async with room.events([Kind.NOTE]) as events:
        await act()
        with anyio.fail_after(PATIENCE):
            while True:
                said = str(getattr(await anext(events), "detail", ""))
                if word in said:
                    return said


# ---- the configuration changes -------------------------------------------------------------------------------------


def test_what_a_reload_brings_is_on_the_tape_and_is_replayed(tmp_path: Path) -> None:
    servers = {name: FakeServer(tools=[tool("echo")]) for name in ("old", "new")}
    secrets = {"old": "correct-horse-7-battery", "new": "staple-91-of-tomorrow"}

    def config(*names: str) -> dict[str, Any]:
        return {"mcpServers": {name: {"command": name, "env": {"PASSWORD": secrets[name]}} for name in names}}

    async def main() -> None:
        given: Any = {"connectors": fake_connectors(servers), "cache_path": ":memory:", "bootstrap": False}
        async with Greenroom.open(config("old"), record=tmp_path, **given) as room:
            await room.call("old_echo", {"say": secrets["old"]})
            await room.reload(config("new"))
            await room.call("new_echo", {"say": secrets["new"]})
        tape = tape_in(tmp_path)
        (line,) = (line for line in lines_of(tape) if line["k"] == "config")
        assert list(line["config"]["mcpServers"]) == ["new"]
        assert [each for each in secrets.values() if each in tape.read_text()] == []
        assert read_tape(tape).servers == ["old", "new"]
        async with Greenroom.replay(tape) as room:
            for name, secret in secrets.items():
                await room.call(f"{name}_echo", {"say": secret})

    run("asyncio", main)


def test_many_servers_are_recorded_in_parts(tmp_path: Path) -> None:
    """What a server costs the tape, half a millisecond, is not paid for all of them in one turn of the loop."""
    servers = 200

    def config(version: str) -> dict[str, Any]:
        entry = {"command": "nothing", "args": [version], "env": {"PASSWORD": f"staple-91-{version}"}}
        return {"mcpServers": {f"server{number}": entry for number in range(servers)}}

    async def turns(record: Path | None = None) -> list[int]:
        """The turns of the loop that opening takes, and that a reload takes."""
        count, counts = 0, list[int]()

        async def others() -> None:
            nonlocal count
            while True:
                await anyio.lowlevel.checkpoint()
                count += 1

        given: Any = {"connectors": fake_connectors({}), "cache_path": ":memory:", "bootstrap": False}
        async with anyio.create_task_group() as beside:
            beside.start_soon(others)
            async with Greenroom.open(config("one"), record=record, **given) as room:
                counts.append(count)
                await room.reload(config("two"))
                counts.append(count - counts[0])
            beside.cancel_scope.cancel()
        return counts

    async def main() -> None:
        plain, recorded = await turns(), await turns(tmp_path)
        assert recorded[0] >= plain[0] + servers // 20
        assert recorded[1] >= plain[1] + servers // 20
        (line,) = (line for line in lines_of(tape_in(tmp_path)) if line["k"] == "config")
        assert len(line["config"]["mcpServers"]) == servers
        assert "staple-91-two" not in tape_in(tmp_path).read_text()

    run("asyncio", main)


@in_virtual_time
async def test_a_recorded_reload_that_is_cancelled_is_done_or_not_done(tmp_path: Path) -> None:
    """Whenever it is cancelled, the room has the servers of its configuration and no others."""

    def config(version: str, servers: int) -> dict[str, Any]:
        return {"mcpServers": {f"{version}{number}": {"command": "nothing"} for number in range(servers)}}

    given: Any = {"connectors": fake_connectors({}), "cache_path": ":memory:", "bootstrap": False}
    async with Greenroom.open(config("a", 1), record=tmp_path, **given) as room:
        seen = set[int]()
        for turns in range(0, 60, 2):
            async with anyio.create_task_group() as beside:
                beside.start_soon(room.reload, config("b", 60))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                beside.cancel_scope.cancel()
            assert {each.server for each in room.status()} == {*room.config.servers}, turns
            seen.add(len(room.config.servers))
            await room.reload(config("a", 1))
        assert seen == {1, 60}


def test_profiles_are_on_the_tape(tmp_path: Path) -> None:
    config = {
        "mcpServers": {"shop": {"command": "shop"}},
        "profiles": {"guest": {"servers": ["shop"], "tools": ["look"]}},
    }

    async def main() -> None:
        servers = {"shop": FakeServer(tools=[tool("look"), tool("buy")])}
        given: Any = {"connectors": fake_connectors(servers), "cache_path": ":memory:", "bootstrap": False}
        async with Greenroom.open(config, record=tmp_path, **given) as room:
            await room.connect("shop")
        async with Greenroom.replay(tape_in(tmp_path)) as room:
            await room.connect("shop")
            async with room.session("one", profile="guest") as guest:
                assert [each.name for each in guest.tools()] == ["shop_look"]

    run("asyncio", main)


# ---- where it is written -------------------------------------------------------------------------------------------


def test_a_folder_that_others_may_read_or_write_will_do_and_the_tape_is_for_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "tapes"
    folder.mkdir()
    folder.chmod(0o777)

    async def main() -> None:
        async with recorded(folder, FakeServer(tools=[tool("echo")], handler=lambda _: "x" * LARGE)) as room:
            await room.call("shop_echo", {})

    run("asyncio", main)
    tape = tape_in(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert [stat.S_IMODE(file.stat().st_mode) for file in files_of(tape)] == [0o600, 0o600]
    assert stat.S_IMODE(tape.with_name(tape.name + ".d").stat().st_mode) == 0o700


def test_the_folder_may_be_the_one_where_one_is_and_a_file_of_another_kind_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")

    async def main() -> None:
        async with recorded(Path("."), FakeServer(tools=[tool("echo")])) as room:
            await room.call("shop_echo", {})
        assert len(read_tape(tape_in(tmp_path)).calls) == 1
        with pytest.raises(UsageError, match="Name a folder") as refused:
            async with recorded(tmp_path / "notes.txt", FakeServer()):
                pass
        assert "remove" not in str(refused.value)
        with pytest.raises(UsageError, match="record must be"):
            Greenroom.open({"mcpServers": {}}, record="")

    run("asyncio", main)


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link.tape").symlink_to(tmp_path / "elsewhere.tape")
    server = FakeServer(tools=[tool("echo")])

    async def main() -> None:
        for place in (
            "/proc/one.tape",
            tmp_path / "file" / "one.tape",
            tmp_path / "file",
            tmp_path / "link.tape",
        ):
            with pytest.raises(UsageError, match="No tape can be recorded"):
                async with recorded(Path(place), server):
                    pass
        place = tmp_path / "new" / "one.tape"
        async with recorded(place, server) as room:
            with pytest.raises(UsageError, match="there already"):
                async with recorded(place, server):
                    pass
            await room.call("shop_echo", {})
        assert len(read_tape(place).calls) == 1
        assert server.starts == 1
        assert not (tmp_path / "elsewhere.tape").exists()

    run("asyncio", main)


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_tape_that_somebody_takes_away_ends_when_a_large_result_would_miss_it(
    tmp_path: Path, how: str
) -> None:
    async def main() -> None:
        folder = tmp_path / "tapes"
        server = FakeServer(tools=[tool("echo")], handler=lambda call: "x" * int(call.get("size", 0)))
        async with recorded(folder, server) as room:
            await room.call("shop_echo", {"size": 1})
            tape = tape_in(folder)
            if how == "moved":
                tape.rename(tmp_path / "moved.tape")
            else:
                tape.unlink()
                folder.rmdir()
            await room.call("shop_echo", {"size": 2})
            await room.call("shop_echo", {"size": LARGE})
            said = await note_of(room, "the tape", partial(until_noted, room))
            assert "Calls go on" in said
        if how == "moved":
            calls = {
                call.said["arguments"]["size"]: call for call in read_tape(tmp_path / "moved.tape").calls
            }
            assert {1, 2, LARGE} <= set(calls)
            assert calls[LARGE].left_out.keys() == {"result"}
        else:
            assert not folder.exists(), "it was made again"

    run("asyncio", main)


async def until_noted(room: Greenroom) -> None:
    """What a thread has found is told with the next call that ends."""
    for _ in range(200):
        await room.call("shop_echo", {"size": 3})
        await anyio.sleep(0.005)


def test_a_forked_child_has_nothing_of_the_tape(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, os.fspath(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "the child has []\n"
    tape = read_tape(tape_in(tmp_path))
    assert (len(tape.calls), tape.is_cut) == (2, False)
    assert len([line for line in lines_of(tape.path) if line["k"] == "tape"]) == 1


FORKS = """
import os, sys
from functools import partial
import anyio
from greenroom.testing.fake_servers import FakeServer, fake_room, tool

def of_tapes():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [link for link in links if os.path.islink(link) and ".tape" in os.readlink(link)]

async def main():
    async with fake_room({"shop": FakeServer(tools=[tool("echo")])}, record=sys.argv[1]) as room:
        await room.call("shop_echo", {})
        assert of_tapes(), "nothing is recorded"
        child = os.fork()
        if not child:
            print("the child has", of_tapes(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        await room.call("shop_echo", {})

anyio.run(main)
"""


# ---- what is large -------------------------------------------------------------------------------------------------


def test_what_is_large_is_recorded_whole_with_members_left_out(tmp_path: Path) -> None:
    answer = {"rows": [{"pin": {"is": ["4711", number]}, "text": "x" * 500} for number in range(10_000)]}

    async def main() -> None:
        result = {"content": [{"type": "text", "text": "'pin': 4711"}], "structuredContent": answer}
        server = FakeServer(tools=[tool("echo")], handler=lambda _: result)
        async with recorded(tmp_path, server, redact=["pin"]) as room:
            await room.call("shop_echo", {"pin": 4711, "text": "y" * LARGE})
            await room.call("shop_echo", {"pin": [4711], "n": 1})
        tape = read_tape(tape_in(tmp_path))
        assert [call.said["arguments"]["pin"] for call in tape.calls] == ["[REDACTED]"] * 2
        async with Greenroom.replay(tape.path) as room:
            again = await room.call("shop_echo", {"pin": "another", "text": "y" * LARGE})
            rows = again.structured["rows"]
            assert [row["pin"] for row in rows] == ["[REDACTED]"] * 10_000
            assert rows[-1]["text"] == "x" * 500
            assert again.text == "'pin': 4711", "what stands in a text stays"
            assert room.tape is not None
            assert [call["arguments"]["n"] for call in map(itemgetter("params"), room.tape.untaken)] == [1]

    run("asyncio", main)


TELLTALE = """
import json, os, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

token = os.environ["TOKEN"]
about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
tool = {"name": "tell", "description": f"for {token}", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            say(id=asked["id"], result={**about, "instructions": f"with {token}"})
        case "tools/list":
            say(id=asked["id"], result={"tools": [tool]})
        case "tools/call":
            say(method="notifications/message", params={"level": "info", "data": f"used {token}"})
            text = "x" * asked["params"]["arguments"]["size"] + token
            say(id=asked["id"], result={"content": [{"type": "text", "text": text}]})
        case method if "id" in asked:
            say(id=asked["id"], error={"code": -32601, "message": f"no {method}"})
"""


@pytest.mark.parametrize("scrub", ["mcp", "off"])
def test_the_secrets_of_a_session_are_cut_out_of_all_that_its_own_server_says(
    tmp_path: Path, scrub: str
) -> None:
    token = "tok-9f3Kq81zLmWv77aa"
    script = tmp_path / "telltale.py"
    script.write_text(TELLTALE)
    entry = {"command": sys.executable, "args": ["-S", str(script)], "env": {"TOKEN": "${session.TOKEN}"}}
    config = {"mcpServers": {"own": {**entry, "isolation": "per_session", "scrub": scrub}}}
    place = tmp_path / "one.tape"

    async def main() -> None:
        async with (
            Greenroom.open(config, record=place, cache_path=":memory:", bootstrap=False) as room,
            room.session("ann", variables={"TOKEN": token}) as session,
        ):
            await session.call("own_tell", {"size": 1}, server="own")
            async with anyio.create_task_group() as calls:  # more than the thread has written at the end
                for _ in range(5):
                    calls.start_soon(partial(session.call, "own_tell", {"size": 4_000_000}, server="own"))

    run("asyncio", main)
    tape = read_tape(place)
    assert [len(found) for found in (tape.calls, tape.notices, tape.listed)] == [6, 6, 1]
    assert [file.name for file in files_of(place) if token in file.read_text()] == []


def test_arguments_that_are_too_large_are_left_out_and_the_tape_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")], handler=lambda _: "ok")) as room:
            await room.call("shop_echo", {"text": "x" * TAPE_PARAMS_BYTES})
            await room.call("shop_echo", {"n": 1})
        tape = read_tape(tape_in(tmp_path))
        assert sorted(call.left_out.get("params", 0) > TAPE_PARAMS_BYTES for call in tape.calls) == [
            False,
            True,
        ]
        async with Greenroom.replay(tape.path) as room:
            await room.call("shop_echo", {"n": 1})
            with pytest.raises(RemoteError, match="Not on the tape"):
                await room.call("shop_echo", {"text": "x" * TAPE_PARAMS_BYTES})

    run("asyncio", main)


def test_of_endless_progress_a_bounded_part_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        def handler(call: Any) -> str:
            for number in range(200):
                call.progress(number, 200.0, "x" * 10_000)
            return "done"

        async with recorded(tmp_path, FakeServer(tools=[tool("long")], handler=handler)) as room:
            await room.call("shop_long", {}, on_progress=lambda _: None)
        (call,) = read_tape(tape_in(tmp_path)).calls
        assert [step["progress"] for _, step in call.progress] == list(range(len(call.progress)))
        assert TAPE_ASIDE_BYTES * 0.9 < len(call.progress) * 10_000 < TAPE_ASIDE_BYTES

    run("asyncio", main)


def test_a_full_disk_ends_the_tape_beside_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeServer(tools=[tool("echo")], handler=lambda call: "x" * int(call.get("size", 0)))
        async with recorded(tmp_path, server) as room:
            await room.call("shop_echo", {"size": 1})
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, most[1]))
            try:
                await room.call("shop_echo", {"size": 2 * LARGE})
                said = await note_of(room, "the tape", partial(until_noted, room))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
            assert "File too large" in said
            assert (await room.call("shop_echo", {"size": 5})).text == "xxxxx"
        tape = read_tape(tape_in(tmp_path))
        assert [call.said["arguments"] for call in tape.calls][:1] == [{"size": 1}]
        assert not tape.is_cut
        assert ending(tape) == "The recording ended before its room did: File too large."

    run("asyncio", main)


def test_a_tape_ends_before_it_is_too_long_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (greenroom.tape.recorder, greenroom.tape.tape_reader):
        monkeypatch.setattr(module, "MOST_LINES", 40)

    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")])) as room:
            said = await note_of(room, "the tape", partial(until_noted, room))
            assert "it has 40 lines" in said
        tape = read_tape(tape_in(tmp_path))
        assert len(tape.calls) > 20
        assert ending(tape).startswith("The recording ended before its room did: it has 40 lines")

    run("asyncio", main)


# ---- what cannot be written ----------------------------------------------------------------------------------------


def test_a_call_that_is_no_json_is_on_the_tape_as_it_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")])) as room:
            with pytest.raises(GreenroomError) as refused:
                await room.call("shop_echo", {"what": object()})
            await room.call("shop_echo", {})
        outcomes = {call.outcome for call in read_tape(tape_in(tmp_path)).calls}
        assert outcomes <= {"result", refused.value.code}

    run("asyncio", main)


def test_half_a_character_makes_no_tape_unreadable(tmp_path: Path) -> None:
    half = "cut off \ud83d"

    async def handler(call: Any) -> str:
        call.progress(1.0, 2.0, half)
        return half + str((await call.elicit(half)).get("action"))

    async def answer(_request: Any) -> Any:
        return {"action": "accept", "content": {"name": half}}

    async def answers(room: Greenroom) -> list[bytes]:
        return [await raw(room, "shop_echo", {"text": text}) for text in (half, "whole")]

    async def main() -> None:
        server = FakeServer(tools=[tool("echo", half)], handler=handler)
        async with recorded(tmp_path / "one.tape", server, on_elicitation=answer) as room:
            first = await answers(room)
            async with room.session(half) as session:
                await session.call("shop_echo", {"n": 1})
            await room.recent_tape(tmp_path / "recent.tape")
        for place in (tmp_path / "one.tape", tmp_path / "recent.tape"):
            tape = read_tape(place)
            assert len(tape.calls) == 3
            assert "cut off" in "".join(told(tape))
            async with Greenroom.replay(place, on_elicitation=answer) as room:
                assert await answers(room) == first

    run("asyncio", main)


@pytest.mark.parametrize("depth", [90, 300, 600, 900])
def test_arguments_that_nest_deeply_are_found_again(tmp_path: Path, depth: int) -> None:
    def nested(core: Any) -> Any:
        for _ in range(depth):
            core = [core]
        return core

    async def main() -> None:
        async with recorded(tmp_path, FakeServer(tools=[tool("echo")], handler=lambda _: "ok")) as room:
            await room.call("shop_echo", {"a": nested(1)})
        async with Greenroom.replay(tape_in(tmp_path)) as room:
            assert (await room.call("shop_echo", {"a": nested(1)})).text == "ok"

    run("asyncio", main)


# ---- members ---------------------------------------------------------------------------------------------------------

NAMES = ("pin", 'a"b', "x/y", "ä𝄞", "\\", "")
WORDS = st.text().filter(lambda text: '"' not in text)  # what has quotes may be JSON
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from((*NAMES, "pins", "text")) | WORDS, inner, max_size=4)
    ),
    max_leaves=20,
)
WRITERS = (
    json.dumps,
    partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    partial(json.dumps, indent="\t"),
    lambda value: json.dumps(value).replace("/", "\\/"),
)


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: json.loads(HIDDEN) if key in NAMES else without(each)
            for key, each in cast("dict[str, Any]", value).items()
        }
    return [without(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


@given(VALUES, st.sampled_from(WRITERS), st.sampled_from(WRITERS), st.integers(1, 3))
def test_so_do_those_in_a_text_that_is_json_itself(value: Any, write: Any, outer: Any, depth: int) -> None:
    text = write(value)
    for _ in range(depth):
        text = outer({"text": text})
    raw = text.encode(errors="surrogatepass")
    found = MemberRedaction(NAMES).without(raw)
    assert (found is raw) == (without(value) == value or b"[REDACTED]" not in found)
    seen = json.loads(found.decode(errors="surrogatepass"))
    for _ in range(depth):
        seen = json.loads(seen["text"])
    assert seen == without(value)


@given(st.text(alphabet=st.sampled_from('{}[]"\\:, pin1\n')))
def test_prose_with_quotes_stays_a_text(text: str) -> None:
    found = json.loads(MemberRedaction(["pin"]).without(json.dumps({"text": text}).encode()))
    assert list(found) == ["text"]
    assert '"pin"' in text or found["text"] == text


@given(VALUES, st.sampled_from(WRITERS), st.sampled_from([3, 1 << 18]))
def test_members_of_these_names_lose_their_values_and_all_else_stays(
    value: Any, write: Any, step: int
) -> None:
    raw = write(value).encode(errors="surrogatepass")
    with patch.object(greenroom.tape.member_redaction, "_STEP", step):
        found = MemberRedaction(NAMES).without(raw)
    assert json.loads(found.decode(errors="surrogatepass")) == without(value)
    assert (found is raw) == (without(value) == value or b"[REDACTED]" not in found)
