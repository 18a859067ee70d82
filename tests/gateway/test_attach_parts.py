"""The parts of `greenroom attach`: where a room is, who may be one, what the ledger keeps, what is no hello."""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.support import run, run_virtual

from greenroom.actors.backend import current_backend
from greenroom.cli.common import room_of
from greenroom.config import private_files
from greenroom.config.files import load_config, project_files
from greenroom.gateway.doors import attach_client
from greenroom.gateway.doors import attach_server as _doorway
from greenroom.gateway.doors.attach_client import Starting, attach, dial
from greenroom.gateway.doors.attach_ledger import (
    _END,
    _INBOX,
    _SLOT,
    _SLOTS_AT,
    SIZE,
    Ledger,
    Left,
    new_memory,
)
from greenroom.gateway.doors.attach_protocol import BadHello, Hello, Words, is_newer, read_hello, send_hello
from greenroom.gateway.doors.attach_server import AttachedDoor, Listener, RecordedJobs
from greenroom.gateway.doors.background import (
    LARGEST,
    NoRoom,
    RoomPlace,
    end_of,
    environment,
    open_log,
    room_place,
)
from greenroom.gateway.requests import REFUSALS, Job
from greenroom.protocol.cooperative import Slices
from greenroom.protocol.large_message import LARGE_MESSAGE

# ---- where a room is -------------------------------------------------------------------------------------------------


def place_seen_from(cwd: Path, home: Path, path: Path | None = None) -> RoomPlace:
    config = load_config(path, cwd=cwd, home=home, environ={})
    is_own = bool(project_files(config, cwd=cwd, home=home, environ={}))
    return room_place(config, path, cwd, of_project=is_own)


def test_projects_have_rooms_of_their_own_and_the_users_own_files_have_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    own = home / ".config" / "mcp" / "mcp.json"
    one, two, plain, other = (tmp_path / name for name in ("one", "two", "plain", "other"))
    for folder in (own.parent, one, two, plain, other):
        folder.mkdir(parents=True)
    for file in (own, one / ".mcp.json", two / ".mcp.json"):
        file.write_text(json.dumps({"mcpServers": {}}))

    first, second = place_seen_from(one, home), place_seen_from(two, home)
    assert first.name != second.name
    assert (first.folder, second.folder) == (one, two)
    assert place_seen_from(plain, home) == place_seen_from(other, home), "whatever folder a client starts in"
    assert place_seen_from(plain, home).folder == own.parent
    named = place_seen_from(plain, home, Path("../one/.mcp.json"))
    assert named.folder == one
    assert place_seen_from(one, home, one / ".mcp.json").name == named.name


def test_a_file_that_says_something_else_in_each_project_is_another_configuration_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, one, two, plain = (tmp_path / name for name in ("home", "one", "two", "plain"))
    own = home / ".config" / "mcp" / "mcp.json"
    for folder in (own.parent, one, two, plain):
        folder.mkdir(parents=True)
    own.write_text(json.dumps({"imports": ["claude-code"], "mcpServers": {}}))
    projects = {os.fspath(folder): {"mcpServers": {"a": {"command": "a"}}} for folder in (one, two)}
    (home / ".claude.json").write_text(json.dumps({"projects": projects}))
    monkeypatch.setenv("HOME", os.fspath(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def seen_from(cwd: Path) -> RoomPlace:
        monkeypatch.chdir(cwd)
        return room_of(load_config(cwd=cwd, home=home, environ=os.environ), None)

    places = [seen_from(folder) for folder in (one, two, plain)]
    assert len({place.name for place in places}) == 3
    assert [place.folder for place in places] == [one, two, own.parent]


def test_a_room_does_not_inherit_what_belongs_to_the_process_that_starts_it() -> None:
    given = {
        "PATH": "/bin",
        "GREENROOM_ROOM": "run",
        "GREENROOM_INCARNATION": "run:a#1",
        "GREENROOM_DEPTH": "2",
    }
    assert environment({**given, "TOKEN": "secret"}, frozenset({"TOKEN"})) == {"PATH": "/bin"}


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_newer("0.10.0", "0.9.1")
    assert is_newer("1.0", "0.99")
    assert not is_newer("0.1.0", "0.1.0")
    assert not is_newer("0.1.0", "0.1.0.dev3")


# ---- who may be a room -----------------------------------------------------------------------------------------------


@contextmanager
def listening(folder: Path) -> Generator[RoomPlace]:
    """Something listens where the room would."""
    run = folder / "run"
    run.mkdir(mode=0o700)
    place = RoomPlace("x", folder, run / "room-x.sock", run / "room-x.lock", folder / "x.log")
    with private_files.bind_own(place.socket, 4):
        yield place


def test_a_socket_in_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as place:
        place.socket.parent.chmod(0o755)
        with pytest.raises(NoRoom, match="of your own"):
            dial(place)
        with pytest.raises(NoRoom, match="of your own"):
            Starting(place, [], {}).start()


def test_a_room_that_runs_as_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def somebody(_line: socket.socket) -> int:
        return os.geteuid() + 1

    with listening(tmp_path) as place:
        monkeypatch.setattr(private_files, "_peer_uid", somebody)
        with pytest.raises(NoRoom, match="is not yours"):
            attach(Starting(place, [], {}), Hello("0"), print)


def test_a_room_that_cannot_start_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    place = RoomPlace("x", tmp_path, run / "room-x.sock", run / "room-x.lock", tmp_path / "log" / "x.log")
    missing = os.fspath(tmp_path / "missing.json")
    with pytest.raises(NoRoom, match=r"missing\.json.*does not exist") as caught:
        Starting(place, ["--config", missing], dict(os.environ)).start()
    assert os.fspath(place.log) in caught.value.message


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": "1", "pid": "1"}',
        b'{"version": "1", "variables": {"A": 1}}',
        b'{"version": "1", "variables": []}',
        b'{"version": "1", "rooms": "1"}',
        b'{"version": "1", "profile": {}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_hello_is_refused(said: bytes) -> None:
    with pytest.raises(BadHello):
        read_hello(said)


class _ToAQuickRoom(socket.socket):
    """A connection whose room has read all, answered and closed before the sender runs again."""

    room: socket.socket

    def sendmsg(self, *args: Any, **kwargs: Any) -> int:
        sent = super().sendmsg(*args, **kwargs)
        self.room.recv(1 << 20)
        self.room.sendall(b'{"leaving": true}\n')
        self.room.close()
        return sent


def test_a_room_that_answers_and_closes_at_once_is_heard() -> None:
    ours, theirs = socket.socketpair()
    with theirs, _ToAQuickRoom(fileno=ours.detach()) as line:
        line.room = theirs
        send_hello(line, Hello(version="999.0"), [])
        assert Words(line).next() == {"leaving": True}


def test_a_newer_client_may_say_more() -> None:
    assert read_hello(b'{"version": "9", "unheard_of": true}') == Hello("9")


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_the_log_has_two_files_at_most_and_only_the_user_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "state" / "room.log"
    for text in (b"first", b"second"):
        log = open_log(path)
        os.write(log, text.ljust(LARGEST, b".") + b"\ngreenroom: the last word\n")
        os.close(log)
    os.close(open_log(path))
    assert sorted(file.name for file in path.parent.iterdir()) == ["room.log", "room.log.old"]
    assert (tmp_path / "state" / "room.log.old").read_bytes().startswith(b"second")
    assert path.stat().st_mode & 0o777 == 0o600
    assert end_of(path.with_name("room.log.old")).endswith("the last word")


# ---- the ledger ------------------------------------------------------------------------------------------------------


@contextmanager
def ledger() -> Generator[tuple[Ledger, int]]:
    memory = new_memory()
    kept = Ledger(os.dup(memory))
    try:
        yield kept, memory
    finally:
        kept.close()
        os.close(memory)


def left_in(memory: int) -> Left:
    """What the next room finds. The memory is empty afterwards."""
    after = Ledger(os.dup(memory))
    after.close()
    return after.left


NOTHING = Left([], [], b"", None, False, False)


def test_an_id_is_in_the_ledger_until_its_answer_was_written() -> None:
    with ledger() as (kept, memory):
        for key in (b"1", b'"two"', b"3"):
            kept.began(key)
        kept.ended(b"1")
        kept.written()
        kept.ended(b'"two"')
        kept.cut_out(True)
        assert left_in(memory) == Left([b'"two"', b"3"], [], b"", None, False, True)
        assert left_in(memory) == NOTHING


def test_what_was_written_is_taken_out_of_the_ledger_once() -> None:
    with ledger() as (kept, memory):
        kept.began(b"1")
        kept.ended(b"1")
        kept.written()
        kept.began(b"2")  # in the place of the first
        kept.written()
        assert left_in(memory).keys == [b"2"]


def test_lines_are_in_the_ledger_until_they_are_handled() -> None:
    with ledger() as (kept, memory):
        kept.took(b"one\n \ntwo\nthr", b"")
        kept.handled()
        kept.handled()
        kept.took(b"ee\nfour\nfi", b"thr")
        kept.handled()
        assert left_in(memory) == Left([], [b"four"], b"fi", None, False, False)


def test_of_a_line_that_is_longer_than_the_inbox_only_the_head_is_kept() -> None:
    with ledger() as (kept, memory):
        kept.took(b"x" * 60_000, b'{"id": 7,' + b"x" * 250_000)
        assert kept.is_over
        left = left_in(memory)
        assert left.head is not None
        assert left.head.startswith(b'{"id": 7,')
        assert (left.lines, left.fragment) == ([], b"")
        kept.took(b"next\n", b"")
        assert left_in(memory) == Left([], [b"next"], b"", None, False, False)


def test_more_ids_than_the_ledger_has_room_for_displace_only_answered_ones() -> None:
    with ledger() as (kept, memory):
        for number in range(1500):
            kept.began(b"a%d" % number)
            kept.ended(b"a%d" % number)
        for number in range(1500):
            kept.began(b"b%d" % number)
        assert {b"b%d" % number for number in range(1500)} <= set(left_in(memory).keys)
        kept.began(b"x" * 1000)  # too long to be kept
        assert left_in(memory) == NOTHING


def test_an_id_that_fits_its_place_is_kept_whole_and_a_longer_one_not_at_all() -> None:
    for length in range(_SLOT - 3, _SLOT + 3):
        with ledger() as (kept, memory):
            kept.began(b"before")
            kept.began(b"x" * length)
            kept.began(b"behind")
            fits = [b"x" * length] if length < _SLOT else []
            assert sorted(left_in(memory).keys) == [b"before", b"behind", *fits], length


def test_each_end_of_a_request_makes_its_place_free_once() -> None:
    with ledger() as (kept, memory):
        places = len(kept._free)
        for _ in range(2):
            for key in (b"a", b"b"):
                kept.began(key)
                kept.began(key)
            kept.ended(b"a")
            kept.ended(b"a")
            kept.ended(b"b")
            kept.written()
            kept.written()
        assert len(set(kept._free)) == len(kept._free) == places
        assert left_in(memory) == NOTHING


@pytest.mark.parametrize("count", [1, 255, 256, 300, 65_535, 65_536])
def test_as_many_lines_as_were_handled_are_not_handled_again(count: int) -> None:
    with ledger() as (kept, memory):
        kept.took(b"x\n" * (count + 1), b"")
        for _ in range(count):
            kept.handled()
        assert left_in(memory).lines == [b"x"]


@pytest.mark.parametrize(
    ("lived", "is_over"),
    [
        ([0.0], False),
        ([4.9], False),
        ([0.0, 4.9], True),  # one soon after the other
        ([0.0, 5.0], False),
        ([4.9, 5.0, 4.9], True),
        ([60.0, 60.0, 60.0], False),
        ([60.0, 1.0], True),
    ],
)
def test_a_room_that_is_lost_soon_after_another_was_is_not_replaced(
    lived: list[float], is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([*((seconds, "") for seconds in lived), (1.0, "client")])
    clock, notes, greetings = [0.0], list[str](), list[int]()

    def join(_starting: Any, hello: Hello, _descriptors: Any) -> Any:
        greetings.append(hello.rooms)
        return socket.socket(), None

    def wait(_line: Any, _words: Any, hello: Hello) -> Any:
        seconds, why = next(ends)
        clock[0] += seconds
        return hello, attach_client.OF_CLIENT if why else ""

    monkeypatch.setattr(attach_client, "join", join)
    monkeypatch.setattr(attach_client, "_wait", wait)
    monkeypatch.setattr(attach_client, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    starting: Any = SimpleNamespace(place=SimpleNamespace(log="LOG"))
    if is_over:
        with pytest.raises(attach_client.RoomLost, match="LOG"):
            attach(starting, Hello("9"), notes.append)
    else:
        attach(starting, Hello("9"), notes.append)
    assert greetings == list(range(len(lived) + (not is_over)))
    assert len(notes) == len(lived) - is_over


def test_the_next_door_goes_on_where_the_one_before_was_cut_off(backend: str) -> None:
    """The first door is gone in the middle of four lines. The second was begun, so it may have run; the third was not;
    of the fourth a part was read."""
    lines = [b'{"id":%d,"method":"tools/call","params":{}}' % number for number in range(4)]

    async def main() -> None:
        theirs, stdin = os.pipe()
        out, stdout = os.pipe()
        with ledger() as (kept, memory):
            kept.took(b"\n".join(lines)[:-5], b"")
            kept.handled()
            kept.began(b"1")
            kept.cut_out(True)
            after = Ledger(os.dup(memory))
            door = AttachedDoor(current_backend(), theirs, stdout, after, lambda *_: None, max_line=1 << 20)
            seen: list[bytes] = []
            with door.opened():
                door.answer_what_was_lost()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(door.write)
                    tasks.start_soon(door.read, seen.append)
                    os.write(stdin, lines[3][-5:] + b"\n")
                    while len(seen) < 2 or after._answered:
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            after.close()
            assert seen == lines[2:]
            torn, answer, rest = os.read(out, 1 << 16).split(b"\n")
            assert (torn, rest) == (b"", b"")
            assert json.loads(answer)["error"]["data"] == {"error": "room_lost", "reach": "sent"}
            assert left_in(memory) == NOTHING
        for descriptor in (theirs, stdin, out, stdout):
            os.close(descriptor)

    run(backend, main)


def test_an_answer_that_the_client_does_not_read_stays_in_the_ledger(backend: str) -> None:
    async def main() -> None:
        theirs, stdin = os.pipe()
        out, stdout = os.pipe()
        with ledger() as (kept, memory):
            door = AttachedDoor(current_backend(), theirs, stdout, kept, lambda *_: None, max_line=1 << 20)
            jobs = RecordedJobs(8, REFUSALS)
            jobs.ledger = kept
            with door.opened():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(door.write)
                    for key in (b"1", b"2"):
                        jobs[key] = Job(cast("Any", None), lambda _work: None, key)
                    jobs.pop(b"1")
                    door.send(b"small\n")
                    jobs.pop(b"2")
                    door.send(b"x" * (1 << 18) + b"\n")
                    assert left_in(memory) == Left([b"2"], [], b"", None, False, True)
                    jobs[b"3"] = Job(cast("Any", None), lambda _work: None, b"3")
                    jobs.pop(b"3")
                    door.send(b"last\n")
                    got = b""
                    while not got.endswith(b"last\n"):
                        await anyio.wait_readable(out)
                        got += os.read(out, 1 << 16)
                    while kept._answered:
                        await anyio.lowlevel.checkpoint()
                    assert left_in(memory) == NOTHING
                    tasks.cancel_scope.cancel()
        for descriptor in (theirs, stdin, out, stdout):
            os.close(descriptor)

    run(backend, main)


def test_a_large_line_is_read_in_slices_and_the_next_door_knows_what_came_behind_it(backend: str) -> None:
    """The first door is gone in the middle of a large line, whose end it has read, together with what came behind."""
    line = b'{"id":7,"method":"tools/call","params":"' + b"x" * LARGE_MESSAGE + b'"}'
    turns: list[int] = []

    async def main() -> None:
        theirs, stdin = os.pipe()
        out, stdout = os.pipe()
        with ledger() as (kept, memory):
            door = AttachedDoor(current_backend(), theirs, stdout, kept, lambda *_: None, max_line=1 << 24)
            turn, cut = 0, anyio.Event()

            def receiving(_line: bytearray) -> Slices[None]:
                for _ in range(4):
                    turns.append(turn)
                    yield
                cut.set()
                while True:
                    yield

            async def others() -> None:
                nonlocal turn
                while True:
                    turn += 1
                    await anyio.lowlevel.checkpoint()

            async def write() -> None:
                data = line + b'\n{"id":8}\n{"id"'
                os.set_blocking(stdin, False)
                while data:
                    await anyio.wait_writable(stdin)
                    data = data[os.write(stdin, data[: 1 << 16]) :]

            with door.opened():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(others)
                    tasks.start_soon(write)
                    tasks.start_soon(door.read, lambda _line: None, None, receiving)
                    await cut.wait()
                    tasks.cancel_scope.cancel()
                # Others had their turns between the slices. Trio shuffles each round, so two slices can be neighbours.
                assert turns[0] < turns[2]
                assert turns[1] < turns[3]
                after = Ledger(os.dup(memory))
                assert after.left.has_end
                assert (after.left.lines, after.left.fragment) == ([b'{"id":8}'], b'{"id"')
                door = AttachedDoor(
                    current_backend(), theirs, stdout, after, lambda *_: None, max_line=1 << 24
                )
                seen: list[bytes] = []
                door.answer_what_was_lost()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(door.write)
                    tasks.start_soon(door.read, seen.append)
                    os.write(stdin, b":9}\n")
                    while len(seen) < 2 or after._answered:
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                after.close()
                assert seen == [b'{"id":8}', b'{"id":9}']
                answer = json.loads(os.read(out, 1 << 16))
                assert (answer["id"], answer["error"]["data"]["error"]) == (7, "room_lost")
        for descriptor in (theirs, stdin, out, stdout):
            os.close(descriptor)

    run(backend, main)


def test_a_large_line_that_was_handled_is_not_in_the_ledger() -> None:
    with ledger() as (kept, memory):
        kept.took(b"x" * 60_000, b'{"id": 7,' + b"x" * 250_000)
        kept.took_large(b'{"id": 7,' + b"x" * 310_000, b"next\n")
        kept.handled_large()
        assert left_in(memory) == Left([], [b"next"], b"", None, False, False)


@pytest.mark.parametrize("ends", ["says nothing", "is refused", "is another user", "is taken"])
def test_the_descriptors_of_a_visitor_are_closed_however_its_visit_ends(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        given = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]

        async def hello(_line: Any, descriptors: list[int]) -> Hello | None:
            descriptors += given
            if ends == "is refused":
                raise BadHello("no")
            return Hello("9") if ends == "is taken" else None

        def check(_line: Any) -> None:
            if ends == "is another user":
                raise private_files.NotOurs(1, "another")

        async def welcome(_self: Any, _hello: Any, _line: Any, _descriptors: Any) -> None:
            raise BadHello("later")

        monkeypatch.setattr(_doorway, "_hello", hello)
        monkeypatch.setattr(_doorway, "check_peer", check)
        monkeypatch.setattr(_doorway.Doorway, "_welcome", welcome)
        doorway: Any = object.__new__(_doorway.Doorway)
        doorway._coming = 1
        doorway._changed = anyio.Event()
        doorway.note = lambda _text: None
        with theirs:
            await doorway._visit(ours)
        assert doorway._coming == 0
        if ends == "is another user":  # its hello was not read
            for descriptor in given:
                os.close(descriptor)
        for descriptor in given:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    run("asyncio", main)


@pytest.mark.parametrize(("stays", "idle", "left_at"), [(0.0, 5.0, 5.0), (7.0, 5.0, 12.0), (3.0, 0.0, None)])
@pytest.mark.parametrize("who", ["client", "visitor"])
def test_a_room_leaves_when_nobody_has_been_there_or_coming_for_so_long(
    who: str, stays: float, idle: float, left_at: float | None
) -> None:
    left: list[float] = []

    async def main() -> None:
        nothing: Any = None
        start = anyio.current_time()
        doorway = _doorway.Doorway(
            nothing,
            nothing,
            "9",
            None,
            1,
            lambda _: None,
            lambda: left.append(anyio.current_time() - start),
            bool,
        )
        if stays and who == "client":
            doorway.clients["a"] = nothing
        elif stays:
            doorway._coming = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(doorway.leave_when_idle, idle)
            await anyio.sleep(stays)
            doorway.clients.clear()
            doorway._coming = 0
            doorway._tell()
            await anyio.sleep(60.0)
            tasks.cancel_scope.cancel()
        assert left == ([] if left_at is None else [pytest.approx(left_at)])

    run_virtual("asyncio", main)


def test_what_the_client_has_not_read_is_noted_again_each_time(backend: str) -> None:
    """And meanwhile nobody looks: the one that notes it waits until there is something to note."""
    rounds: list[int] = []

    async def main() -> None:
        theirs, stdin = os.pipe()
        out, stdout = os.pipe()
        with ledger() as (kept, _memory):
            door = AttachedDoor(current_backend(), theirs, stdout, kept, lambda *_: None, max_line=1 << 20)
            flushed = door._writer.flushed

            async def counted() -> None:
                rounds.append(1)
                await flushed()

            door._writer.flushed = counted
            with door.opened():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(door.write)
                    for number in (1, 2):
                        door.send(b"x" * (1 << 18) + b"\n")
                        got = b""
                        while not got.endswith(b"\n"):
                            await anyio.wait_readable(out)
                            got += os.read(out, 1 << 16)
                        for _ in range(50):
                            await anyio.lowlevel.checkpoint()
                        assert len(rounds) == number
                    tasks.cancel_scope.cancel()
        for descriptor in (theirs, stdin, out, stdout):
            os.close(descriptor)

    run(backend, main)


def test_numbers_in_the_ledger_that_cannot_be_lead_to_nothing_outside_of_their_part() -> None:
    with ledger() as (kept, memory):
        kept.took(b"a\nb\n", b"")
        with mmap.mmap(memory, SIZE) as raw:
            raw[_END : _END + 4] = b"\xff" * 4
            raw[_SLOTS_AT] = 3
            raw[_SLOTS_AT + 1 : _SLOTS_AT + 4] = b"123"
        left = left_in(memory)
    assert left.lines == [b"a", b"b"]
    assert left.keys == [b"123"]
    assert len(left.fragment) == _INBOX - len(b"a\nb\n")


def test_a_listener_that_is_shut_twice_leaves_the_socket_of_the_next_room(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "run" / "room.sock"
        first = Listener(path)
        first.shut()
        assert not path.exists()
        path.touch()  # of the next one
        first._inode = path.stat().st_ino
        first.shut()
        assert path.exists()

    anyio.run(main)
