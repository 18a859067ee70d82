"""The catalogue on disk: nothing lost between writers, nothing torn for readers, nothing fatal."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from filelock import FileLock
from msgspec.structs import replace
from tests.support import run
from tests.support.patience import PATIENCE

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import (
    CatalogueFile,
    FileStore,
    LoadedCache,
    default_cache_path,
    open_store,
    own_folder,
)
from greenroom.config.model import Settings
from greenroom.config.private_files import MAX_BROKEN
from greenroom.protocol import bounds

NOW = 1_000_000_000.0
DAY = 86_400.0


def entry(server: str = "s", definition_hash: str = "h", **more: Any) -> ServerEntry:
    said: dict[str, Any] = {"tools": ({"name": "t"},), "fetched_at": NOW, **more}
    return ServerEntry(server, definition_hash, **said)


@pytest.fixture
def file(tmp_path: Path) -> CatalogueFile:
    return CatalogueFile(tmp_path / "cache" / "catalogue.json", lock_timeout=0.05)


def same(left: ServerEntry, right: ServerEntry) -> bool:
    return msgspec.structs.asdict(left) == msgspec.structs.asdict(right)


def test_what_was_saved_is_loaded_field_by_field(file: CatalogueFile) -> None:
    whole = entry(
        tools=({"name": "t", "inputSchema": {"type": "object"}, "x-own": [1, None, "é"]},),
        resources=({"uri": "r:1"}, {"uri": "r:2"}),
        templates=({"uriTemplate": "r:{n}"},),
        prompts=({"name": "p"},),
        skills=(
            {
                "uri": "skill://s/SKILL.md",
                "frontmatter": {"name": "s", "description": "S"},
                "resources": "dynamic",
            },
        ),
        instructions="Be kind.",
        server_info={"name": "S", "version": "1"},
        capabilities={"tools": {"listChanged": True}},
        protocol_version="2025-11-25",
        problems=("prompts/list: cut after 2 pages", "half \ud83d"),
        revision=7,
        told="1a2b",
    )
    nothing = msgspec.structs.asdict(ServerEntry("", ""))
    same_as_nothing = {
        name for name, value in msgspec.structs.asdict(whole).items() if value == nothing[name]
    }
    assert same_as_nothing == {"pinned", "prints"}, "these are kept elsewhere"
    assert file.save([whole], NOW) is None
    loaded = file.load({"s": "h"}, NOW)

    assert loaded.warning is None
    assert same(replace(whole, problems=(whole.problems[0], "half \ufffd")), loaded.entries["s"])


def test_each_entry_has_a_line_and_a_file_of_other_lines_is_read_too(file: CatalogueFile) -> None:
    entries = [entry(f"line\n{number}") for number in range(3)]
    assert file.save(entries, NOW) is None
    wanted = {one.server: "h" for one in entries}
    before = file.load(wanted, NOW)
    assert file.path.read_bytes().count(b"\n") == len(entries) + 1
    for indent in (None, 1):  # as it was written once
        file.path.write_text(json.dumps(json.loads(file.path.read_bytes()), indent=indent))
        after = file.load(wanted, NOW)
        assert after.warning is None
        assert all(same(after.entries[name], before.entries[name]) for name in wanted)


def test_unknown_is_not_empty(file: CatalogueFile) -> None:
    file.save([entry("unknown", tools=None), entry("empty", tools=())], NOW)
    loaded = file.load({"unknown": "h", "empty": "h"}, NOW).entries

    assert loaded["unknown"].tools is None
    assert loaded["unknown"].resources is None
    assert loaded["empty"].tools == ()


@pytest.mark.parametrize(
    ("fetched_at", "there"),
    [(NOW, True), (NOW - 7 * DAY, True), (NOW - 7 * DAY - 1, False), (NOW + 60, True), (NOW + DAY, False)],
)
def test_stale_and_future_count_as_absent(file: CatalogueFile, fetched_at: float, there: bool) -> None:
    file.save([entry(fetched_at=fetched_at)], fetched_at)

    assert ("s" in file.load({"s": "h"}, NOW).entries) is there


def test_another_definition_is_another_entry(file: CatalogueFile) -> None:
    file.save([entry("github", "mine", instructions="mine")], NOW)
    file.save([entry("github", "yours", instructions="yours")], NOW)

    assert file.load({"github": "mine"}, NOW).entries["github"].instructions == "mine"
    assert file.load({"github": "yours"}, NOW).entries["github"].instructions == "yours"
    assert file.load({"github": "other"}, NOW).entries == {}


def test_saving_prunes_what_is_too_old_and_nothing_else(file: CatalogueFile) -> None:
    file.save([entry("old"), entry("young", fetched_at=NOW + 2 * DAY)], NOW + 2 * DAY)
    file.save([entry("new", fetched_at=NOW + 8 * DAY)], NOW + 8 * DAY)

    assert sorted(json.loads(file.path.read_bytes())["entries"]) == ["h new", "h young"]


def test_an_older_answer_never_overwrites_a_newer_one(file: CatalogueFile) -> None:
    file.save([entry(fetched_at=NOW, revision=2, instructions="newer")], NOW)
    file.save([entry(fetched_at=NOW - 1, revision=9, instructions="earlier")], NOW)
    file.save([entry(fetched_at=NOW, revision=1, instructions="begun before")], NOW)

    assert file.load({"s": "h"}, NOW).entries["s"].instructions == "newer"
    saved_later: list[dict[str, Any]] = [
        {"fetched_at": NOW, "revision": 2, "instructions": "of the same moment"},
        {"fetched_at": NOW, "revision": 3, "instructions": "begun after"},
        {"fetched_at": NOW + 1, "revision": 0, "instructions": None},
        {"fetched_at": NOW + 2, "revision": 0, "instructions": ""},
    ]
    for later in saved_later:
        file.save([entry(**later)], NOW)
        assert file.load({"s": "h"}, NOW).entries["s"].instructions == later["instructions"]


def test_a_stamp_from_the_future_does_not_hold_its_place(file: CatalogueFile) -> None:
    file.save([entry(fetched_at=NOW + 9 * DAY, instructions="clock was wrong")], NOW + 9 * DAY)
    file.save([entry(instructions="now")], NOW)

    assert file.load({"s": "h"}, NOW).entries["s"].instructions == "now"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"\0" * 100,
        b'{"version": 1}',
        b'{"version": 1, "entries": {"h s": ' + b"[" * 100_000,
        b'{"version": 999, "entries": {}}',
        b'{"entries": {}}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_ours_is_set_aside_and_rebuilt(file: CatalogueFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    loaded = file.load({"s": "h"}, NOW)

    assert loaded.entries == {}
    assert loaded.warning is not None
    assert "set aside as catalogue.json.broken-1" in loaded.warning
    assert file.path.with_name("catalogue.json.broken-1").read_bytes() == content
    assert file.save([entry()], NOW) is None
    assert "s" in file.load({"s": "h"}, NOW).entries


def test_a_writer_sets_aside_too(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(b"junk")
    warning = file.save([entry(), entry("junk", tools=({"name": object()},))], NOW)

    assert warning is not None
    assert "broken-1" in warning
    assert "s" in file.load({"s": "h"}, NOW).entries


def test_what_is_set_aside_does_not_pile_up(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    for _ in range(MAX_BROKEN + 3):
        file.path.write_bytes(b"junk")
        file.load({}, NOW)

    assert len(list(file.path.parent.glob("*.broken-*"))) == MAX_BROKEN


ABYSS = '{"fetched_at": 0, "revision": 1, "body": {"tools": [' + '{"x":' * 50_000 + "1" + "}" * 50_000 + "]}}"


@pytest.mark.parametrize("bad", ["{}", "7", '{"body": {}}', ABYSS])
def test_one_bad_entry_does_not_cost_the_others(file: CatalogueFile, bad: str) -> None:
    file.save([entry("good"), entry("bad")], NOW)
    content = json.loads(file.path.read_bytes())
    content["entries"]["h bad"] = "HERE"
    file.path.write_text(json.dumps(content).replace('"HERE"', bad))

    loaded = file.load({"good": "h", "bad": "h"}, NOW)
    assert list(loaded.entries) == ["good"]
    assert loaded.warning is None
    assert file.save([entry("other")], NOW) is None
    assert sorted(json.loads(file.path.read_bytes())["entries"]) == ["h good", "h other"]


def test_one_bad_body_does_not_cost_the_others(file: CatalogueFile) -> None:
    file.save([entry("good"), entry("bad")], NOW)
    content = json.loads(file.path.read_bytes())
    content["entries"]["h bad"]["body"] = {"tools": 7}
    file.path.write_text(json.dumps(content))

    assert list(file.load({"good": "h", "bad": "h"}, NOW).entries) == ["good"]


@pytest.mark.parametrize("depth", [101, 400])
def test_one_bad_item_does_not_cost_the_others(file: CatalogueFile, depth: int) -> None:
    file.save([entry(tools=({"name": "good"}, {"name": "HERE"}))], NOW)
    deep = b"[" * depth + b"]" * depth
    file.path.write_bytes(file.path.read_bytes().replace(b'"HERE"', deep))

    assert file.load({"s": "h"}, NOW).entries["s"].tools == ({"name": "good"},)


def test_an_entry_that_no_decoder_can_read_costs_no_other_however_deep_that_one_may_be(
    file: CatalogueFile,
) -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    file.save([entry("good", tools=({"name": "a", "x": "GOOD"},)), entry("bad", tools=({"x": "BAD"},))], NOW)
    content = file.path.read_bytes()
    deepest = nested(bounds.DEPTH - 1)  # the item around it counts
    file.path.write_bytes(content.replace(b'"GOOD"', deepest).replace(b'"BAD"', nested(100_000)))

    loaded = file.load({"good": "h", "bad": "h"}, NOW).entries
    assert list(loaded) == ["good"]
    tools = loaded["good"].tools
    assert tools is not None
    assert json.dumps(tools[0]["x"]).encode() == deepest


def test_the_file_has_a_bound_and_the_newest_stay(
    file: CatalogueFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CACHE_BYTES", 6_000)
    for number in range(5):
        fat = entry(f"s{number}", fetched_at=NOW + number, instructions="x" * 1_500)
        assert file.save([fat], NOW + 9) is None
    assert file.path.stat().st_size <= 6_000
    wanted = {f"s{number}": "h" for number in range(5)}
    assert sorted(file.load(wanted, NOW + 9).entries) == ["s2", "s3", "s4"]
    file.path.write_bytes(file.path.read_bytes().ljust(6_000))
    assert sorted(file.load(wanted, NOW + 9).entries) == ["s2", "s3", "s4"]
    file.path.write_bytes(file.path.read_bytes() + b" ")
    assert "has more than 6,000 bytes" in (file.load(wanted, NOW + 9).warning or "")


def test_it_is_for_its_owner_only(file: CatalogueFile) -> None:
    file.save([entry()], NOW)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_killed_writers_leftovers_are_removed(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    leftover = file.path.parent / ".catalogue.json.abc.tmp"
    leftover.write_bytes(b"half")
    file.save([entry()], NOW)

    assert {path.name for path in file.path.parent.iterdir()} <= {"catalogue.json", "catalogue.json.lock"}


def test_a_lock_that_is_not_had_is_a_warning(file: CatalogueFile) -> None:
    file.save([entry()], NOW)
    with FileLock(f"{file.path}.lock"):
        warning = file.save([entry("other")], NOW)
        loaded = file.load({"s": "h"}, NOW)

    assert warning is not None
    assert "not written" in warning
    assert list(loaded.entries) == ["s"]  # reading needs no lock


def test_a_writer_waits_so_long_for_another_and_a_task_that_ends_waits_no_longer(
    file: CatalogueFile, backend: str
) -> None:
    ended: list[str | None] = []

    async def save(lock_timeout: float) -> None:
        patient = CatalogueFile(file.path, lock_timeout=lock_timeout)
        ended.append(await anyio.to_thread.run_sync(patient.save, [entry()], NOW))

    async def body() -> None:
        await save(0.05)
        assert "not written" in (ended[0] or "")
        with anyio.fail_after(PATIENCE), anyio.move_on_after(0.05):
            await save(2 * PATIENCE)
        assert len(ended) == 1

    file.save([], NOW)
    with FileLock(f"{file.path}.lock"):
        run(backend, body)


def test_a_directory_that_cannot_be_had_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = CatalogueFile(tmp_path / "file" / "catalogue.json")

    assert "not written" in (file.save([entry()], NOW) or "")
    assert "cannot be read" in (file.load({"s": "h"}, NOW).warning or "")


def test_what_json_cannot_say_is_a_warning(file: CatalogueFile) -> None:
    junk = entry("junk", tools=({"name": object()},))

    assert 'of "junk" is not cached' in (file.save([junk, entry()], NOW) or "")
    assert list(file.load({"junk": "h", "s": "h"}, NOW).entries) == ["s"]


def test_half_a_character_is_kept_as_a_replacement(file: CatalogueFile) -> None:
    half = entry("half\ud800", tools=({"name": "t", "description": "cut \ud83d", "n": 1},))

    assert file.save([half], NOW) is None
    (found,) = file.load({"half\ud800": "h"}, NOW).entries.values()
    assert found.tools == ({"name": "t", "description": "cut \ufffd", "n": 1},)


def test_half_a_character_in_the_file_breaks_nothing_of_it(file: CatalogueFile) -> None:
    file.save([entry(instructions="cut HERE")], NOW)
    file.path.write_bytes(file.path.read_bytes().replace(b"HERE", rb"\ud83d"))

    (found,) = file.load({"s": "h"}, NOW).entries.values()
    assert found.instructions == "cut \ufffd"


def test_the_default_path_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert default_cache_path().name == "catalogue.json"
    if sys.platform.startswith("linux"):
        assert default_cache_path() == tmp_path / "greenroom" / "catalogue.json"


WRITER = """
import sys
from pathlib import Path
from greenroom.catalogue.store import CatalogueFile
from greenroom.catalogue.entries import ServerEntry

path, writer, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
file = CatalogueFile(path, lock_timeout=120)
tools = tuple({"name": f"tool{n}", "description": "x" * 500} for n in range(20))
for n in range(rounds):
    own = ServerEntry(f"{writer}-{n}", "h", tools=tools, fetched_at=1e9)
    shared = ServerEntry("shared", "h", tools=tools, fetched_at=1e9 + n, instructions=writer)
    warning = file.save([own, shared], 1e9)
    assert warning is None, warning
    loaded = file.load({own.server: "h", "shared": "h"}, 1e9)
    assert loaded.warning is None, loaded.warning
    assert loaded.entries[own.server].tools == tools
    assert loaded.entries["shared"].fetched_at >= shared.fetched_at
"""


def test_four_writing_processes_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    path, rounds = tmp_path / "catalogue.json", 15
    wanted = {f"w{writer}-{n}": "h" for writer in range(4) for n in range(rounds)}
    file = CatalogueFile(path)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), f"w{n}", str(rounds)], stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    try:
        seen = 0
        while any(writer.poll() is None for writer in writers):
            loaded = file.load(wanted, NOW)
            assert loaded.warning is None
            assert len(loaded.entries) >= seen  # what was there once stays
            seen = len(loaded.entries)
            os.sched_yield()
        errors = [writer.communicate(timeout=PATIENCE)[1].decode() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()

    assert errors == [""] * 4
    loaded = file.load({**wanted, "shared": "h"}, NOW)
    assert set(loaded.entries) == {*wanted, "shared"}
    assert loaded.entries["shared"].fetched_at == 1e9 + rounds - 1


def test_a_write_that_fails_leaves_no_half_file(file: CatalogueFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.save([entry()], NOW)
    before = sorted(path.name for path in file.path.parent.iterdir())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert "No space left" in (file.save([entry("other")], NOW) or "")

    assert sorted(path.name for path in file.path.parent.iterdir()) == before
    assert list(file.load({"s": "h", "other": "h"}, NOW).entries) == ["s"]


def test_a_reader_sets_a_broken_file_aside_only_when_no_writer_is_at_work(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(b"half of what a writer of another ver")
    with FileLock(f"{file.path}.lock"):
        loaded = file.load({"s": "h"}, NOW)
    assert "is broken and stays" in (loaded.warning or "")
    assert file.path.read_bytes().startswith(b"half")
    assert not list(file.path.parent.glob("*.broken-*"))


def test_its_lock_is_for_its_owner_only_too(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    with file.locked():
        assert stat.S_IMODE(Path(f"{file.path}.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize(("age", "there"), [(10.0, True), (10.1, False), (-299.0, True), (-301.0, False)])
def test_how_old_and_how_new_an_entry_may_be(file: CatalogueFile, age: float, there: bool) -> None:
    short = CatalogueFile(file.path, max_age=10.0)
    file.save([entry(fetched_at=NOW - age)], NOW - age)
    assert ("s" in short.load({"s": "h"}, NOW).entries) is there
    if age > 0:
        assert "s" in CatalogueFile(file.path, max_age=0).load({"s": "h"}, NOW + 1e6).entries


def test_a_file_that_was_set_aside_is_not_overwritten_while_there_is_room(file: CatalogueFile) -> None:
    file.path.parent.mkdir()
    for number in range(MAX_BROKEN + 1):
        file.path.write_bytes(b"junk %d" % number)
        file.load({}, NOW)
    kept = [file.path.with_name(f"catalogue.json.broken-{n}").read_bytes() for n in range(1, MAX_BROKEN + 1)]
    assert kept == [b"junk 0", b"junk 1", b"junk 2", b"junk 3", b"junk 5"]


def test_a_store_is_a_file_of_the_user_or_one_that_is_named_or_memory(tmp_path: Path) -> None:
    memory = open_store(":memory:", Settings())
    assert (memory.blocks, own_folder(memory)) == (False, None)
    named = open_store(tmp_path / "mine.json", Settings(cache_max_age=123.0))
    assert isinstance(named, FileStore)
    assert (named.blocks, named.file.path, named.file.max_age) == (True, tmp_path / "mine.json", 123.0)
    assert own_folder(named) == tmp_path
    users = open_store(None, Settings())
    assert isinstance(users, FileStore)
    assert users.file.path == default_cache_path()
    (tmp_path / "mine.json").write_text("{")
    assert named.load({}).warning is not None
    assert FileStore(CatalogueFile(tmp_path / "none.json")).load({}) == LoadedCache({})
