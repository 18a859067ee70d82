"""The last failure of a server is remembered: in the cache, in every view, and until the server works again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import HELLO, faulty, logged_when_all, serve
from tests.support.patience import until
from tests.support.rooms import open_room

from greenroom import Greenroom
from greenroom.actors.backend import current_backend
from greenroom.actors.catalogue_writer import CatalogueWriter, Flush, SaveFailure
from greenroom.actors.event_stream import EventStream
from greenroom.catalogue.entries import Failures, LastFailure, ServerEntry
from greenroom.catalogue.store import CatalogueFile
from greenroom.errors import ConnectFailed
from greenroom.protocol import bounds
from greenroom.testing.fake_servers import FakeServer, fake_connectors

SECRET = "sk-planted-4711"
NOW = 1_000_000_000.0
DAY = 86_400.0


# ---- at the command line --------------------------------------------------------------------------------------------


def dying(why: str) -> dict[str, Any]:
    return {"command": "sh", "args": ["-c", f"echo '{why}' >&2; exit 3"]}


def configure(folder: Path, **servers: Any) -> None:
    settings = {"connectTimeoutMs": 20_000}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers, "settings": settings}))


def greenroom(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }
    command = [*GREENROOM, *words, "--config", os.fspath(folder / "mcp.json")]
    return run_forked(command, env=environment, text=True)


def said(folder: Path, *words: str) -> str:
    done = greenroom(folder, *words)
    return done.stdout + done.stderr


def test_each_command_says_why_a_server_failed_in_an_earlier_one(tmp_path: Path) -> None:
    configure(tmp_path, bad=dying("Error: no token"), never=faulty(tmp_path, "never"))
    assert greenroom(tmp_path, "refresh", "bad").returncode == 1
    looks = (
        ("status",),
        ("tools", "bad"),
        ("search", "x", "--server", "bad"),
        ("describe", "bad_x"),
        ("explain", "bad"),
    )
    for words in (*looks, ("doctor",)):
        shown = said(tmp_path, *words)
        assert "exited with code 3 (stderr: Error: no token)" in shown, words
        assert "bad (not asked yet)" not in shown, words
    for words in (("tools",), ("search", "x")):
        assert "The tools of 2 servers are not known yet. To read them: greenroom refresh" in said(
            tmp_path, *words
        )
    assert "greenroom explain --config" in said(tmp_path, "tools", "bad")
    assert greenroom(tmp_path, "doctor").returncode == 1
    (row,) = [
        one for one in json.loads(greenroom(tmp_path, "status", "--json").stdout)["servers"] if one["failure"]
    ]
    assert (row["name"], row["status"], row["failedStarts"]) == ("bad", "failed", 1)
    assert 0 <= row["failedAgo"] < 600
    greenroom(tmp_path, "refresh", "bad")
    assert "(2 in a row)" in said(tmp_path, "explain", "bad")


def test_a_server_that_works_again_has_not_failed(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    good = faulty(tmp_path, "s")
    script = 'test -e "$0" || { echo "Error: not yet" >&2; exit 3; }; exec "$@"'
    entry = {"command": "sh", "args": ["-c", script, os.fspath(switch), good["command"], *good["args"]]}
    configure(tmp_path, s=entry)
    assert greenroom(tmp_path, "refresh").returncode == 1
    assert "exited with code 3" in said(tmp_path, "status")
    switch.touch()
    assert greenroom(tmp_path, "refresh").returncode == 0
    for words in (("status",), ("explain", "s"), ("doctor",)):
        assert "exited with code 3" not in said(tmp_path, *words), words
    assert greenroom(tmp_path, "doctor").returncode == 0


def test_another_definition_has_not_failed(tmp_path: Path) -> None:
    configure(tmp_path, s=dying("Error: no token"))
    greenroom(tmp_path, "refresh")
    configure(tmp_path, s=faulty(tmp_path, "s"))
    assert "The tools of s are not known yet" in said(tmp_path, "tools")


def test_what_is_kept_of_a_failure_has_no_secret_in_it(tmp_path: Path) -> None:
    entry = {"command": "sh", "args": ["-c", 'echo "Error: $API_TOKEN refused" >&2; exit 3']}
    configure(tmp_path, s={**entry, "env": {"API_TOKEN": SECRET}})
    greenroom(tmp_path, "refresh")
    assert "refused" in said(tmp_path, "status")
    for file in (tmp_path / "cache").rglob("*"):
        assert file.is_dir() or SECRET not in file.read_text(), file


def test_each_command_says_that_a_connected_server_does_not_answer_its_calls(tmp_path: Path) -> None:
    """It looked healthy until it was ended as hung, after five of them."""
    looks = (("status",), ("explain", "s"), ("doctor",))
    with serve(
        tmp_path, {"s": faulty(tmp_path, "s", "--hang-at", "call:sleep")}, requestTimeoutMs=500
    ) as gateway:
        gateway.initialize()
        for seconds in range(3):
            gateway.mcp(tool="s_sleep", args={"seconds": seconds})
        for words in looks:
            shown = " ".join(said(tmp_path, *words).split())
            assert "does not answer (3 failures in a row)" in shown, shown
            assert "greenroom reconnect --config" in shown, shown
        gateway.mcp(tool="s_echo", args={"text": "x"})  # it answers again
        for words in looks:
            assert "does not answer" not in said(tmp_path, *words), words
        gateway.end()


def test_doctor_sees_dead_servers_in_a_running_gateway_and_a_new_one_remembers_them(tmp_path: Path) -> None:
    dead = {f"dead{number}": dying(f"Error: reason {number}") for number in range(7)}
    entries = {**dead, "good": faulty(tmp_path, "good")}
    with serve(tmp_path, entries) as gateway:
        gateway.initialize()
        for name in dead:
            gateway.mcp(connect=name)
        done = greenroom(tmp_path, "doctor", "--json")
        assert done.returncode == 1, done.stdout + done.stderr
        found = {one["about"]: one for one in json.loads(done.stdout)["findings"]}
        gateway.end()
    assert found.keys() == dead.keys()
    for number in range(7):
        assert f"reason {number}" in found[f"dead{number}"]["what"]
        assert (
            f"greenroom refresh --config {tmp_path}/mcp.json dead{number}" in found[f"dead{number}"]["mend"]
        )
    with serve(tmp_path, entries) as gateway:
        gateway.initialize()
        assert "reason 3" in said(tmp_path, "explain", "dead3")
        gateway.end()


# ---- the file --------------------------------------------------------------------------------------------------------


def entry(server: str = "s", **more: Any) -> ServerEntry:
    facts: dict[str, Any] = {"tools": ({"name": "t"},), "fetched_at": NOW, **more}
    return ServerEntry(server, "h", **facts)


def failures_in(file: CatalogueFile, now: float = NOW, *servers: str) -> dict[str, LastFailure]:
    return file.load(dict.fromkeys(servers or ("s",), "h"), now).failures


def test_a_failure_stands_beside_the_entry_until_the_server_lists_again(tmp_path: Path) -> None:
    file = CatalogueFile(tmp_path / "catalogue.json")
    last = LastFailure(NOW + 5, "exited with code 3", 4)
    login = LastFailure(NOW, "401", needs_login=True)
    file.save([entry()], NOW)
    file.save([], NOW + 5, {("s", "h"): last, ("t", "h"): login})
    assert failures_in(file, NOW + 6, "s", "t") == {"s": last, "t": login}
    assert [*file.load({"s": "h"}, NOW + 6).entries] == ["s"], "what was known is still known"
    assert file.load({"s": "another"}, NOW + 6).failures == {}
    file.save([entry(fetched_at=NOW + 7)], NOW + 7)
    assert failures_in(file, NOW + 8) == {}
    file.save([], NOW + 9, {("t", "h"): None})
    assert failures_in(file, NOW + 9, "s", "t") == {}
    assert "exited" not in file.path.read_text()


def test_a_file_without_failures_loads_and_a_broken_failure_costs_only_itself(tmp_path: Path) -> None:
    file = CatalogueFile(tmp_path / "catalogue.json")
    file.save([entry()], NOW, {("s", "h"): LastFailure(NOW, "why")})
    content = json.loads(file.path.read_text())
    del content["failures"]
    file.path.write_text(json.dumps(content))
    assert (file.load({"s": "h"}, NOW).failures, [*file.load({"s": "h"}, NOW).entries]) == ({}, ["s"])
    file.path.write_text(json.dumps({**content, "failures": {"h s": {"at": "soon"}, "h t": {"at": NOW}}}))
    found = file.load({"s": "h", "t": "h"}, NOW)
    assert (found.failures, [*found.entries], found.warning) == ({"t": LastFailure(NOW)}, ["s"], None)


def test_failures_are_bounded_in_age_length_and_number(tmp_path: Path) -> None:
    file = CatalogueFile(tmp_path / "catalogue.json")
    many: Failures = {(f"s{n}", "h"): LastFailure(NOW + n, "x" * 9_000) for n in range(bounds.FAILURES + 3)}
    file.save([], NOW + 10_000, many)
    kept = failures_in(file, NOW + 10_000, *(name for name, _ in many))
    assert len(kept) == bounds.FAILURES
    assert "s2" not in kept, "the oldest go first"
    assert {len(one.why) for one in kept.values()} == {bounds.FAILURE}
    assert failures_in(file, NOW + 8 * DAY, "s9") == {}
    assert failures_in(file, NOW - DAY, "s9") == {}, "from the future"


# ---- the room --------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_starts_that_fail_are_counted_until_one_succeeds() -> None:
    fake = FakeServer(refuse_start="it has no token")
    async with open_room({"a": fake}) as room:

        def row() -> tuple[str | None, int]:
            (found,) = room.status()
            return found.failure, found.failed_starts

        for number in range(1, 4):
            with pytest.raises(ConnectFailed):
                await room.connect("a")
            assert row() == ("it has no token", number)
            await anyio.sleep(100)
        fake.refuse_start = None
        await room.connect("a")
        assert row() == (None, 0)
        fake.crash("exited with code 9")
        await anyio.sleep(1)
        assert row() == ("exited with code 9", 0), "it started, and was lost while it ran"


@pytest.mark.parametrize("is_fixed", [False, True])
@in_real_time
async def test_a_room_knows_how_its_servers_failed_in_the_one_before(tmp_path: Path, is_fixed: bool) -> None:
    config = {"mcpServers": {"a": {"command": "fake"}}}
    fake = FakeServer(refuse_start="it has no token")

    def room() -> Greenroom:
        path = tmp_path / "catalogue.json"
        return Greenroom.open(
            config, cache_path=path, connectors=fake_connectors({"a": fake}), bootstrap=False
        )

    async with room() as first:
        with pytest.raises(ConnectFailed):
            await first.connect("a")
    async with room() as second:
        (row,) = second.status()
        assert (row.failure, row.failed_starts) == ("it has no token", 1)
        assert row.failed_ago is not None
        assert 0 <= row.failed_ago < 60
        assert row.retry_in is None, "it is not refused for what happened to another room"
        if is_fixed:
            fake.refuse_start = None
            await second.connect("a")
        else:
            await second.reload({"mcpServers": {"a": {"command": "fake", "args": ["--token"]}}})
        assert second.status()[0].failure is None
    async with room() as third:
        assert (third.status()[0].failure is None) == is_fixed


@attrs.define
class Store:
    blocks: bool = False
    saves: list[Failures] = attrs.field(factory=list[Failures])

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        self.saves.append(failures)
        return None


@in_virtual_time
async def test_a_server_that_fails_for_the_same_reason_is_not_written_each_time() -> None:
    store = Store()
    loop_backend = current_backend()
    writer = CatalogueWriter(loop_backend, EventStream(loop_backend), store)

    async def tell(failure: LastFailure | None) -> None:
        writer.ref.tell_system(SaveFailure("s", "h", failure))
        await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.core.run)
        for at in range(100):
            await tell(LastFailure(NOW + at, "the same", at + 1))
        await tell(LastFailure(NOW + 100, "another"))
        await tell(LastFailure(NOW + 101, "another"))
        await writer.ref.ask(Flush)
        await tell(None)
        tasks.cancel_scope.cancel()
    written = [one for save in store.saves for one in save.values()]
    assert [None if one is None else (one.at - NOW, one.starts) for one in written] == [
        (0, 1),
        (60, 61),
        (100, 0),
        (101, 0),
        None,
    ]


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_fifteen_starts_that_fail_alike_are_a_line_and_quarantine_is_said_by_that_word(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"restartBackoff": {"minMs": 1, "maxMs": 1}, "cooldownMs": 600_000}
    settings |= {"failureThreshold": 100, "restartIntensity": 15}
    entries = {"dead": {**dying("Error: no token"), "lifecycle": "keep-alive"}}
    with serve(tmp_path, entries, **settings) as gateway:
        gateway.initialize()
        until(lambda: "quarantined" in said(tmp_path, "status"))
        assert "quarantined: 16 restarts in 60 s" in said(tmp_path, "status")
        assert "It is quarantined" in said(tmp_path, "explain", "dead")
        gateway.end()
    log = (tmp_path / "stderr.txt").read_text()
    lines = [line for line in log.splitlines() if "dead:" in line and "closed" not in line]
    assert len(lines) == 2, log
    assert "Error: no token" in lines[0]
    assert "quarantined" in lines[1]


# ---- a cold start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", ["lazy", "eager", "keep-alive"])
def test_at_a_cold_start_no_server_is_started_twice_to_be_told_what_the_client_can(
    tmp_path: Path, lifecycle: str
) -> None:
    entries = {
        f"s{number}": {**faulty(tmp_path, f"s{number}"), "lifecycle": lifecycle} for number in range(3)
    }
    hello = {**HELLO, "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}}}
    with serve(tmp_path, entries, bootstrap=True) as gateway:
        gateway.answer(gateway.send("initialize", hello))
        gateway.tell("notifications/initialized")
        for name in entries:
            assert "pid" in json.dumps(gateway.mcp(tool=f"{name}_pid"))
        gateway.end()
    assert [(tmp_path / f"{name}.log").read_text().count("start ") for name in entries] == [1, 1, 1]


def test_servers_that_need_no_call_are_started_although_no_client_says_anything(tmp_path: Path) -> None:
    entries = {"s": {**faulty(tmp_path, "s"), "lifecycle": "eager"}}
    with serve(tmp_path, entries) as gateway:
        assert len(logged_when_all(tmp_path, 1)) == 1
        gateway.end()
