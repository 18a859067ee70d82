"""Where the background gateway of a configuration is, who may be one, and what its log keeps."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from greenroom.config import private_files
from greenroom.config.files import load_config, project_files
from greenroom.gateway.doors.attach_client import RoomStarter, attach, dial
from greenroom.gateway.doors.attach_protocol import (
    Hello,
)
from greenroom.gateway.doors.attach_server import Listener
from greenroom.gateway.doors.background_gateway import (
    LARGEST,
    NoRoom,
    RoomPlace,
    end_of,
    environment,
    open_log,
    room_place,
)


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
            RoomStarter(place, [], {}).start()


def test_a_room_that_runs_as_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def somebody(_line: socket.socket) -> int:
        return os.geteuid() + 1

    with listening(tmp_path) as place:
        monkeypatch.setattr(private_files, "peer_uid", somebody)
        with pytest.raises(NoRoom, match="is not yours"):
            attach(lambda: RoomStarter(place, [], {}), Hello("0"), 1 << 20, print)


def test_a_room_that_cannot_start_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    place = RoomPlace("x", tmp_path, run / "room-x.sock", run / "room-x.lock", tmp_path / "log" / "x.log")
    missing = os.fspath(tmp_path / "missing.json")
    with pytest.raises(NoRoom, match=r"missing\.json.*does not exist") as caught:
        RoomStarter(place, ["--config", missing], dict(os.environ)).start()
    assert os.fspath(place.log) in caught.value.message


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


def test_a_listener_that_is_shut_twice_leaves_the_socket_of_the_next_room(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "run" / "room.sock"
        first = Listener(path)
        first.shut()
        assert not path.exists()
        second = Listener(path)
        first.shut()
        assert path.exists()
        second.shut()

    anyio.run(main)
