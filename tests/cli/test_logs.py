"""`greenroom logs`: what servers write to their stderr is kept, bounded, without secrets, and costs nobody a call."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import in_real_time, run
from tests.support.forked import GREENROOM, environment_of, greenroom_in, popen_forked
from tests.support.gateway import faulty, serve
from tests.support.homes import own_config
from tests.support.patience import until

from greenroom import Greenroom
from greenroom.actors.transports.stderr_log import StderrLogs, older_log, stderr_log_path
from greenroom.cli import logs_command
from greenroom.cli.main import run as run_command
from greenroom.events import Kind
from greenroom.protocol import bounds
from greenroom.protocol.address import Address
from greenroom.testing.room_inside import RoomInside

SECRET = "sk-planted-4711"
NOBODY: Any = SimpleNamespace(waiter=lambda: SimpleNamespace(set=lambda: None))  # no task writes


def command(folder: Path, *words: str) -> list[str]:
    return [*GREENROOM, *words, "--config", os.fspath(folder / "mcp.json")]


def configure(folder: Path, **servers: Any) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


def dying(*said: str) -> dict[str, Any]:
    return {"command": "sh", "args": ["-c", "".join(f'echo "{line}" >&2; ' for line in said) + "exit 3"]}


# ---- at the command line ---------------------------------------------------------------------------------------------


def test_what_a_server_said_is_shown_start_by_start_without_its_secrets(tmp_path: Path) -> None:
    configure(
        tmp_path, s={**dying("hello", "my token is $API_TOKEN", "--- forged"), "env": {"API_TOKEN": SECRET}}
    )
    for _ in range(2):
        greenroom_in(tmp_path, "refresh", "s")
    done = greenroom_in(tmp_path, "logs", "s")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ours = [line for line in lines if line.startswith("--- ")]
    assert [line.split()[3].rstrip(":") for line in ours] == ["started", "ended"] * 2
    assert "incarnation 1" in ours[0]
    assert ours[1].endswith("exited with code 3")
    assert [line for line in lines if line not in ours] == ["hello", "my token is ***", " --- forged"] * 2
    (file,) = (tmp_path / "cache" / "greenroom" / "logs").iterdir()
    assert SECRET not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = json.loads(greenroom_in(tmp_path, "logs", "s", "--json", "-n", "2").stdout)
    assert (said["server"], said["file"]) == ("s", str(file))
    assert [one["from"] for one in said["lines"]] == ["server", "greenroom"]


def test_each_process_that_was_stopped_has_its_end_with_the_reason(tmp_path: Path) -> None:
    """It looked as if several still ran."""
    hangs = faulty(tmp_path, "hangs", "--hang-at", "start") | {"connectTimeoutMs": 300}
    forges = """
import json, sys
for line in sys.stdin:
    error = {"code": 1, "message": "no\\n--- forged"}
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line).get("id"), "error": error}), flush=True)
"""
    servers = {
        "hangs": hangs,
        "works": faulty(tmp_path, "works"),
        "forges": {"command": sys.executable, "args": ["-c", forges]},
    }
    with serve(tmp_path, servers) as gateway:
        gateway.initialize()
        greenroom_in(tmp_path, "refresh")
        gateway.end()
    ends = {}
    for name in ("hangs", "works", "forges"):
        ours = greenroom_in(tmp_path, "logs", name).stdout.splitlines()
        assert [line.split()[3] for line in ours if line.startswith("--- ")] == ["started:", "ended:"], ours
        ends[name] = ours[-1].partition("ended: ")[2]
    assert ends["hangs"].startswith("stopped (no answer to the handshake within 0.3 s")
    assert ends["hangs"].endswith("; it printed nothing")
    assert ends["works"].startswith("stopped (")
    assert "forged" in ends["forges"]


def test_a_server_that_is_not_there_has_no_program_or_never_ran_is_said_to(tmp_path: Path) -> None:
    configure(tmp_path, github=faulty(tmp_path, "github"), web={"url": "http://127.0.0.1:9/mcp"})
    wrong = greenroom_in(tmp_path, "logs", "githbu")
    assert (wrong.returncode, 'Did you mean "github"?' in wrong.stderr) == (2, True), wrong.stderr
    web = greenroom_in(tmp_path, "logs", "web")
    assert (web.returncode, web.stdout) == (1, "")
    assert '"web" is reached at an address' in web.stderr
    never = greenroom_in(tmp_path, "logs", "github")
    assert (never.returncode, never.stdout) == (0, "")
    assert "was not started" in never.stderr


def test_explain_names_the_log_of_a_server_that_failed(tmp_path: Path) -> None:
    configure(tmp_path, s=dying("no token"))
    greenroom_in(tmp_path, "refresh")
    assert f"→ greenroom logs --config {tmp_path}/mcp.json s" in greenroom_in(tmp_path, "explain", "s").stdout


def test_explain_names_no_log_that_holds_nothing_of_the_server(tmp_path: Path) -> None:
    configure(tmp_path, quiet=dying(), told=dying("no token"))
    greenroom_in(tmp_path, "refresh")
    for name, is_named in (("quiet", False), ("told", True)):
        said = greenroom_in(tmp_path, "explain", name).stdout
        assert "Its last start failed" in said
        assert (f"→ greenroom logs --config {tmp_path}/mcp.json {name}" in said) is is_named, said


def test_follow_shows_whole_lines_as_they_come_also_over_a_new_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps({"mcpServers": {"s": {"command": "sh"}}}))
    assert run_command(["logs", "s", "--json"]) == 0
    log = Path(json.loads(capsys.readouterr().out)["file"])
    log.parent.mkdir(parents=True)

    def add(text: bytes) -> None:
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(text)

    def begin_anew() -> None:
        add(b"last of the old\n")
        log.rename(older_log(log))
        add(b"first of the new\n")

    comes = iter(
        [
            (partial(add, b"hal"), ["one", "red"]),
            (partial(add, b"f\ntwo\n"), []),
            (begin_anew, ["half", "two"]),
            (lambda: None, ["last of the old", "first of the new"]),
            (partial(add, b"more\n"), []),
            (partial(signal.raise_signal, signal.SIGINT), ["more"]),
        ]
    )

    def wait(_seconds: float) -> None:
        happens, shown = next(comes)
        assert capsys.readouterr().out.splitlines() == shown
        happens()

    add(b"one\n\x07red\n")
    monkeypatch.setattr(logs_command.time, "sleep", wait)
    assert run_command(["logs", "s", "-f"]) == 130


def test_follow_does_not_keep_what_it_shows_to_itself(tmp_path: Path) -> None:
    configure(tmp_path, s=dying("no token"))
    greenroom_in(tmp_path, "refresh", "s")
    shown = tmp_path / "shown"
    with (
        shown.open("wb") as out,
        popen_forked(
            command(tmp_path, "logs", "s", "-f"),
            env=environment_of(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
        ) as follower,
    ):
        try:
            until(lambda: b"no token\n" in shown.read_bytes())
        finally:
            follower.kill()


# ---- in a room -------------------------------------------------------------------------------------------------------


def notes_of(room: Greenroom) -> list[str]:
    notes: list[str] = []
    RoomInside(room).events.listen(lambda event: notes.append(event.detail), [Kind.NOTE])
    return notes


@pytest.mark.parametrize("where", ["a file in the way", "a folder of nobody's", "a full disk"])
def test_a_log_that_cannot_be_written_is_off_and_calls_go_on(
    tmp_path: Path, backend: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    if where == "a file in the way":
        (cache / "logs").write_text("")
    elif where == "a full disk":

        def full(self: StderrLogs, path: Path, data: bytes) -> None:
            raise OSError(28, os.strerror(28), str(path))

        monkeypatch.setattr(StderrLogs, "append", full)
    else:
        (cache / "logs").symlink_to(tmp_path / "nowhere")
    config = {"mcpServers": {name: faulty(tmp_path, name) for name in ("a", "b")}}

    async def body() -> None:
        async with Greenroom.open(config, cache_path=cache / "catalogue.json", bootstrap=False) as room:
            notes = notes_of(room)
            for name in ("a", "b", "a"):
                assert not (await room.call(f"{name}_stderr", {"text": "hello"})).is_error
        # The room has closed, so all that the servers wrote has been read.
        assert len([note for note in notes if "not logged any more" in note]) == 1, notes

    run(backend, body)


@in_real_time
async def test_a_room_without_a_file_for_its_catalogue_leaves_no_log(tmp_path: Path) -> None:
    config = {"mcpServers": {"a": faulty(tmp_path, "a")}}

    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        assert RoomInside(room).machinery._stderr_logs is None
        await room.call("a_stderr", {"text": "hello"})


@in_real_time
async def test_children_of_sessions_are_told_apart_and_their_values_are_hidden(tmp_path: Path) -> None:
    script = 'echo "token $TOKEN" >&2; exec "$@"'
    server = faulty(tmp_path, "s")
    entry = {"command": "sh", "args": ["-c", script, "sh", server["command"], *server["args"]]}
    entry |= {"env": {"TOKEN": "${session.TOKEN}"}, "isolation": "per_session"}

    path = tmp_path / "cache" / "catalogue.json"
    async with Greenroom.open({"mcpServers": {"s": entry}}, cache_path=path, bootstrap=False) as room:
        for name in ("alice", "bob"):
            async with room.session(name, variables={"TOKEN": f"{SECRET}-{name}"}) as session:
                await session.call("s_echo", {"text": "x"})
    (log,) = path.with_name("logs").iterdir()
    lines = log.read_text().splitlines()
    assert [line for line in lines if "token" in line] == [
        "[session:alice] token ***",
        "[session:bob] token ***",
    ]
    assert SECRET not in log.read_text()


# ---- the file --------------------------------------------------------------------------------------------------------


def logs_in(folder: Path) -> StderrLogs:
    def tell(text: str) -> None:
        raise AssertionError(text)

    return StderrLogs(folder, tell, NOBODY)


def written(folder: Path, *chunks: bytes) -> str:
    log = logs_in(folder).of("key", Address("s"), 1, lambda: str)
    assert log is not None
    for chunk in chunks:
        log.feed(chunk)
    log.end("")
    return stderr_log_path(folder, "s", "key").read_text()


def test_a_log_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    log = logs_in(tmp_path).of("key", Address("s"), 1, lambda: str)
    assert log is not None
    for number in range(5_000):
        log.feed(b"%05d %s\n" % (number, b"x" * 1_000))
        log.end("")
    path = stderr_log_path(tmp_path, "s", "key")
    assert path.stat().st_size + older_log(path).stat().st_size < 2 * bounds.STDERR_LOG + 10_000
    assert path.read_text().splitlines()[-1].startswith("04999")
    assert len([*path.parent.iterdir()]) == 2


def test_of_a_flood_the_first_and_the_last_lines_are_kept_and_what_is_left_out_is_counted(
    tmp_path: Path,
) -> None:
    flood = b"".join(b"%06d token=%s\n" % (number, b"s" * 80) for number in range(9_000))
    text = written(
        tmp_path, *(flood[at : at + 65_536] for at in range(0, len(flood), 65_536)), b"out of luck"
    )
    lines = text.splitlines()
    hole = next(at for at, line in enumerate(lines) if line.startswith("--- "))
    first, last = lines[:hole], lines[hole + 1 :]
    size = len(flood) // 9_000
    assert [int(line[:6]) for line in first] == [*range(len(first))]
    assert last.pop() == "out of luck"
    assert [int(line[:6]) for line in last] == [*range(9_000 - len(last), 9_000)]
    assert {len(line) for line in first + last} == {size - 1}, "no half of a line"
    assert len(first) > 100
    assert len(last) > 100
    assert lines[hole] == f"--- {len(flood) - size * len(first + last):,} bytes were left out here"


@pytest.mark.parametrize("size", [1, 40_000, 100_000])
def test_of_a_line_without_an_end_nothing_is_kept_but_its_size(tmp_path: Path, size: int) -> None:
    chunks = [b"first\n", *[b"s" * size] * (300_000 // size), b"\nlast\n"]
    assert written(tmp_path, *chunks).splitlines() == [
        "first",
        f"--- {len(b''.join(chunks[1:-1])) + 1:,} bytes were left out here",
        "last",
    ]


def test_lines_are_cut_and_escapes_of_a_terminal_are_taken_out(tmp_path: Path) -> None:
    text = written(tmp_path, b"a" * 9_000 + b"\n", b"\x1b[31mred\x1b[0m \xff\n", b"10%\r20%\r")
    first, second, *rest = text.splitlines()
    assert (len(first), second) == (4_001, "red \ufffd")
    assert rest == ["10%", "20%"]


def test_servers_of_one_name_have_a_log_each_and_old_ones_are_removed(tmp_path: Path) -> None:
    paths = {stderr_log_path(tmp_path, name, key) for name in ("a/b", "a_b", "…" * 300) for key in ("1", "2")}
    assert len(paths) == 6
    assert {path.parent for path in paths} == {tmp_path / "logs"}
    assert max(len(path.name) for path in paths) < 100
    (tmp_path / "logs").mkdir()
    old, other = tmp_path / "logs" / "gone-1.log", tmp_path / "logs" / "notes.txt"
    for file in (old, other):
        file.write_text("x")
        os.utime(file, (1, 1))
    written(tmp_path, b"hello\n")
    assert (old.exists(), other.exists()) == (False, True)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    path, target = stderr_log_path(tmp_path, "s", "key"), tmp_path / "target"
    path.parent.mkdir()
    path.symlink_to(target)
    told: list[str] = []
    log = StderrLogs(tmp_path, told.append, NOBODY).of("key", Address("s"), 1, lambda: str)
    assert log is not None
    log.feed(b"hello\n")
    log.end("")
    assert not target.exists()
    assert len(told) == 1


def test_explain_does_not_name_a_log_that_is_not_there(tmp_path: Path) -> None:
    configure(tmp_path, s={"command": "/no/such/program"})
    greenroom_in(tmp_path, "refresh")
    said = greenroom_in(tmp_path, "explain", "s").stdout
    assert "Its last start failed" in said
    assert "greenroom logs" not in said
