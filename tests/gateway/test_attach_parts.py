"""The parts of `greenroom attach`: where a room is, who may be one, what is no hello."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.loops import on_asyncio

from greenroom.config import private_files
from greenroom.config.files import load_config, project_files
from greenroom.gateway.doors import attach_client
from greenroom.gateway.doors import attach_server as _doorway
from greenroom.gateway.doors.attach_bridge import Bridge
from greenroom.gateway.doors.attach_client import Starting, attach, dial
from greenroom.gateway.doors.attach_protocol import (
    STOPPED,
    BadHello,
    Hello,
    Words,
    is_newer,
    read_hello,
    send_hello,
)
from greenroom.gateway.doors.attach_server import Listener
from greenroom.gateway.doors.background import (
    LARGEST,
    NoRoom,
    RoomPlace,
    end_of,
    environment,
    open_log,
    room_place,
)

# ---- where a room is -------------------------------------------------------------------------------------------------


def place_seen_from(cwd: Path, home: Path, path: Path | None = None) -> RoomPlace:
    environ = {"HOME": os.fspath(home)}
    config = load_config(path, cwd=cwd, home=home, environ=environ)
    is_own = bool(project_files(config, cwd=cwd, home=home, environ=environ))
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
            attach(lambda: Starting(place, [], {}), Hello("0"), 1 << 20, print)


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


class Clock:
    """The time that a blocking part of `attach` is told."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


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
    clock, notes, hellos = Clock(), list[str](), list[int]()

    def join(_starting: Any, hello: Hello, _descriptors: Any, _note: Any) -> Any:
        hellos.append(hello.rooms)
        return socket.socket(), None

    def run(_bridge: Any, _line: Any, _words: Any, _pipes: Any) -> str:
        seconds, why = next(ends)
        clock.now += seconds
        return attach_client.OF_CLIENT if why else ""

    monkeypatch.setattr(attach_client, "join", join)
    monkeypatch.setattr(Bridge, "run", run)
    monkeypatch.setattr(attach_client, "time", clock)
    nowhere = Path("nowhere")
    starting = Starting(RoomPlace("x", nowhere, nowhere, nowhere, Path("LOG")), (), {})
    if is_over:
        with pytest.raises(attach_client.RoomLost, match="LOG"):
            attach(lambda: starting, Hello("9"), 1 << 20, notes.append)
    else:
        attach(lambda: starting, Hello("9"), 1 << 20, notes.append)
    assert hellos == list(range(len(lived) + (not is_over)))
    assert len(notes) == len(lived) - is_over


@pytest.mark.parametrize(("stays", "idle", "left_at"), [(0.0, 5.0, 5.0), (7.0, 5.0, 12.0), (3.0, 0.0, None)])
@pytest.mark.parametrize("who", ["client", "stateless"])
@on_asyncio
@in_virtual_time
async def test_a_room_leaves_when_nobody_has_been_there_or_coming_for_so_long(
    who: str, stays: float, idle: float, left_at: float | None
) -> None:
    left, notes = list[float](), list[str]()
    nothing: Any = None
    start = anyio.current_time()
    doorway = _doorway.Doorway(
        nothing,
        nothing,
        "9",
        None,
        1,
        notes.append,
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
    if left_at is not None:
        told = f"nobody has been attached for {idle / 60:g} min: the background room ends"
        assert (doorway.why, notes) == (STOPPED, [told])


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
