"""A tape that is being recorded: what goes on around it, what is too large for it, and what is not its own."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run
from tests.support.gateway import PATIENCE
from tests.tape.test_record_and_replay import lines_of, recorded, tape_in

from greenroom import Greenroom
from greenroom.errors import UsageError
from greenroom.protocol.events import Kind
from greenroom.tape.lines import LARGE
from greenroom.tape.reading import read_tape
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

MIB = 1 << 20


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
        async with recorded(tmp_path / "one.tape", server) as room:
            with pytest.raises(UsageError, match="there already"):
                async with recorded(tmp_path / "one.tape", server):
                    pass
            await room.call("shop_echo", {})
        assert len(read_tape(tmp_path / "one.tape").calls) == 1
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
            sizes = [call.said["arguments"]["size"] for call in read_tape(tmp_path / "moved.tape").calls]
            assert sizes[:2] == [1, 2]
            assert LARGE not in sizes
        else:
            assert not folder.exists(), "it was made again"

    run("asyncio", main)


async def until_noted(room: Greenroom) -> None:
    """What a thread has found is told with the next call that ends."""
    for _ in range(200):
        await room.call("shop_echo", {"size": 3})
        await anyio.sleep(0.005)
