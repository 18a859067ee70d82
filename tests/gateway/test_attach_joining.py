"""`greenroom attach` against rooms that were written down beforehand: each word of a room, and each way it can fail."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.support import run as run_async
from tests.support.door_rooms import FakeRoom
from tests.support.patience import PATIENCE

from greenroom.cli import attach_command, serve_command, stop_command
from greenroom.cli.config_reading import read_config
from greenroom.cli.main import run
from greenroom.gateway import serve
from greenroom.gateway.doors import attach_client, attach_server, background_gateway
from greenroom.gateway.doors.attach_client import AttachRefused, dial, join
from greenroom.gateway.doors.attach_protocol import (
    OF_CLIENT,
    REPLACED,
    STOPPED,
    BadHello,
    Hello,
    RoomLines,
    send_hello,
)
from greenroom.gateway.doors.attach_server import Doorway
from greenroom.gateway.doors.background_gateway import (
    LARGEST,
    NoRoom,
    RoomPlace,
    end_of,
    keep_small,
    open_log,
)
from greenroom.gateway.doors.stdio_door import StdioDoor
from greenroom.protocol.version import VERSION

HELLO = Hello("9")
LEAVING: tuple[dict[str, Any], ...] = ({"leaving": True},)


class DialledPlace(RoomPlace, frozen=True):
    """The place of a room of which the test says what dialling it finds."""

    found: Callable[[], socket.socket | None]

    def dial(self) -> socket.socket | None:
        return self.found()


def dialled_place(found: Callable[[], socket.socket | None], folder: Path = Path("FOLDER")) -> RoomPlace:
    return DialledPlace("name", folder, folder / "room.sock", folder / "room.lock", folder / "log", found)


class _Rooms:
    """What dialling finds, one after another: None for no room, or the words of a room; it closes after them unless it
    `stays`."""

    def __init__(self, *found: tuple[dict[str, Any], ...] | None, stays: bool = False) -> None:
        self._found = list(found)
        self._stays = stays
        self._stack = ExitStack()
        self.dialled: list[socket.socket] = []
        self.theirs: list[socket.socket] = []
        self.started = 0
        self.place = dialled_place(self._dial)

    def start(self) -> bool:
        self.started += 1
        return True

    def _dial(self) -> socket.socket | None:
        words = self._found.pop(0)
        if words is None:
            return None
        ours, theirs = map(self._stack.enter_context, socket.socketpair())
        theirs.sendall(b"".join(json.dumps(word).encode() + b"\n" for word in words))
        if not self._stays:
            theirs.shutdown(socket.SHUT_WR)
        self.dialled.append(ours)
        self.theirs.append(theirs)
        return ours

    @contextmanager
    def known(self) -> Generator[Any]:
        with self._stack:
            yield self


def is_open(line: socket.socket) -> bool:
    return line.fileno() != -1


def test_a_room_that_takes_the_client_is_joined_and_its_next_word_may_take_for_ever() -> None:
    with _Rooms(({"pid": 7}, {"end": "x"}), stays=True).known() as rooms:
        line, words = join(rooms, HELLO, [], print)
        assert line.gettimeout() is None
        assert words.next() == {"end": "x"}, "what came with the answer is not lost"
        assert json.loads(rooms.theirs[0].recv(1 << 16))["version"] == "9"
        assert rooms.started == 0


def test_where_no_room_runs_one_is_started_and_where_one_leaves_the_next_is_joined() -> None:
    with _Rooms(None, LEAVING, (), ({"pid": 7},)).known() as rooms:
        line, _ = join(rooms, HELLO, [], print)
        assert rooms.started == 1
        assert [is_open(each) for each in rooms.dialled] == [False, False, True]
        assert line is rooms.dialled[-1]


def test_a_refusal_is_told_with_its_code_and_its_connection_is_closed() -> None:
    refusal = {"error": {"message": "There is no such profile. Name another.", "code": "unknown_profile"}}
    with _Rooms((refusal,)).known() as rooms:
        with pytest.raises(AttachRefused, match="Name another") as caught:
            join(rooms, HELLO, [], print)
        assert caught.value.code == "unknown_profile"
        assert not is_open(rooms.dialled[0])


def test_ten_rooms_that_were_just_ending_are_enough() -> None:
    with _Rooms(*([LEAVING] * 11)).known() as rooms:
        with pytest.raises(NoRoom, match="Try again"):
            join(rooms, HELLO, [], print)
        assert len(rooms.dialled) == 10
        assert not any(map(is_open, rooms.dialled))


@pytest.mark.parametrize(
    ("words", "limit", "said"),
    [
        ((), "_ANSWER_WITHIN", r"\(pid \d+\) did not answer within"),
        (LEAVING, "_LEAVES_WITHIN", "greenroom stop"),
    ],
)
def test_a_room_that_hangs_is_waited_for_so_long_and_the_connection_closed(
    words: tuple[dict[str, Any], ...], limit: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(attach_client, limit) == 60.0
    monkeypatch.setattr(attach_client, limit, 0.01)
    with _Rooms(words, stays=True).known() as rooms:
        with pytest.raises(NoRoom, match=said):
            join(rooms, HELLO, [], print)
        assert not is_open(rooms.dialled[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), r"\(pid \d+\) does not answer. It may be stopped"),
        (LEAVING, "is ending, and lets its calls finish"),
    ],
)
def test_what_is_waited_for_is_told_after_some_seconds(
    words: tuple[dict[str, Any], ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attach_client._TOLD_AFTER == 5.0
    for limit, seconds in (("_TOLD_AFTER", 0.01), ("_ANSWER_WITHIN", 0.05), ("_LEAVES_WITHIN", 0.05)):
        monkeypatch.setattr(attach_client, limit, seconds)
    told = list[str]()
    with _Rooms(words, stays=True).known() as rooms, pytest.raises(NoRoom):
        join(rooms, HELLO, [], told.append)
    [line] = told
    assert re.search(said, line)


def test_a_room_that_is_leaving_is_waited_for_longer_than_for_its_answer() -> None:
    """It lets the calls of its clients finish. What it says meanwhile is passed over."""
    with _Rooms(({"leaving": True}, {"end": "x"}), ({"pid": 1},)).known() as rooms:
        join(rooms, HELLO, [], print)
        assert not is_open(rooms.dialled[0])


def test_a_room_that_cannot_be_dialled_or_understood_says_what_to_do(tmp_path: Path) -> None:
    def broken() -> None:
        raise OSError(111, "full")

    place = dialled_place(broken, tmp_path)
    with pytest.raises(NoRoom, match=r"room\.sock does not answer .*full.*try again"):
        dial(place)
    for said in (b"[]\n", b"x\n", b"1\n", b"[" * 100_000 + b"\n"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(said)
            with pytest.raises(BadHello, match="greenroom stop"):
                RoomLines(ours).next()


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, os.fspath(tmp_path))
    monkeypatch.delenv("GREENROOM_ROOM", raising=False)
    monkeypatch.delenv("GREENROOM_DEPTH", raising=False)
    monkeypatch.chdir(tmp_path)
    server = {"command": "a", "isolation": "per_session", "env": {"TOKEN": "${session.SOME_TOKEN}"}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": server}, "profiles": {"work": {"servers": ["a"]}}}))
    return path


def test_attach_tells_who_its_client_is_and_passes_only_the_values_that_are_used(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[Any, Hello]] = []
    monkeypatch.setattr(
        attach_command, "attach", lambda starting, hello, _most, _note: heard.append((starting, hello))
    )  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("ANOTHER_TOKEN", "hidden")
    assert run(["attach", "--config", "mcp.json", "--expose", "direct", "--profile", "work"]) == 0
    ((find, hello),) = heard
    starting = find()
    assert hello == Hello(
        VERSION, "direct", "work", pid=os.getpid(), room=None, variables={"SOME_TOKEN": "secret"}
    )
    assert list(starting.words) == ["--config", os.fspath(config)], (
        "a room has a working directory of its own"
    )
    assert not {"SOME_TOKEN", "HOME"} <= starting.environ.keys()
    assert starting.environ["HOME"]
    assert list(serve_command.starting(read_config(config), config, ["--events", "x"]).words) == [
        *("--config", os.fspath(config)),
        *("--events", "x"),
    ]


def test_a_profile_that_is_not_there_is_refused_before_a_room_is_started(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attach_command, "attach", lambda *_: pytest.fail("it went on"))  # pyright: ignore[reportUnknownLambdaType]
    assert run(["attach", "--config", os.fspath(config), "--profile", "home"]) == 2
    assert "work" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("words", "said", "told"),
    [
        (None, "no background gateway runs", {"ended": None}),
        (({"pid": 7},), "the background gateway (pid 7) has ended", {"ended": 7}),
        (({"pid": 7}, {"leaving": True}), "the background gateway (pid 7) has ended", {"ended": 7}),
        ((), "the background gateway has ended", {"ended": None}),
    ],
)
def test_stop_says_what_has_ended(
    words: Any,
    said: str,
    told: dict[str, Any],
    as_json: bool,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Rooms(words).known() as rooms:
        monkeypatch.setattr(stop_command, "dial", lambda _: rooms.place.dial())  # pyright: ignore[reportUnknownLambdaType]
        assert run(["stop", "--config", os.fspath(config), *(["--json"] if as_json else [])]) == 0
        captured = capsys.readouterr()
        assert said in captured.err
        assert (json.loads(captured.out) if as_json else captured.out) == (told if as_json else "")
        for theirs in rooms.theirs:
            hello = json.loads(theirs.recv(1 << 16))
            assert (hello["stop"], hello["version"]) == (True, VERSION)
        assert not any(map(is_open, rooms.dialled))


def test_stop_gives_up_on_a_room_that_does_not_end_and_says_what_to_do(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stop_command, "_STOPS_WITHIN", 0.01)
    with _Rooms(({"pid": 7},), stays=True).known() as rooms:
        monkeypatch.setattr(stop_command, "dial", lambda _: rooms.place.dial())  # pyright: ignore[reportUnknownLambdaType]
        assert run(["stop", "--config", os.fspath(config)]) == 1
        assert "end its process" in capsys.readouterr().err
        assert not is_open(rooms.dialled[0])


# ---- its log ---------------------------------------------------------------------------------------------------------


@contextmanager
def standard_error(path: Path) -> Generator[None]:
    kept, log = os.dup(2), open_log(path)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.mark.parametrize(("size", "is_turned"), [(LARGEST - 1, False), (LARGEST, True)])
def test_a_log_that_has_grown_to_its_bound_is_turned_over_while_the_room_writes(
    size: int, is_turned: bool, tmp_path: Path
) -> None:
    path = tmp_path / "room.log"
    with standard_error(path):
        os.truncate(path, size)
        keep_small(path)
        os.write(2, b"next")
    assert path.with_name("room.log.old").exists() == is_turned
    assert path.read_bytes().lstrip(b"\0") == b"next"
    assert path.stat().st_size == (4 if is_turned else size + 4)


def test_the_size_of_the_log_is_looked_at_every_so_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "room.log"
    turned: list[bool] = []
    with standard_error(path):
        log = serve.RoomLog(path)
        os.truncate(path, LARGEST)
        for _ in range(serve._OFTEN):
            turned.append(path.with_name("room.log.old").exists())
            log.line("x")
    assert not any(turned)
    assert path.with_name("room.log.old").exists()
    said = path.with_name("room.log.old").read_bytes().lstrip(b"\0").decode()
    assert re.match(r"greenroom: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+ x\n", said), said
    assert end_of(path.with_name("room.log.old")) == "x x x", "an error quotes no times"


def test_the_end_of_a_log_is_its_last_three_lines_without_our_name(tmp_path: Path) -> None:
    path = tmp_path / "room.log"
    assert end_of(path) == ""
    path.write_text("".join(f"greenroom: line {number}\n" for number in range(9)))
    assert end_of(path) == "line 6 line 7 line 8"
    path.write_text("x" * 5000 + "end")
    assert len(end_of(path)) == 2048


# ---- the room's side -------------------------------------------------------------------------------------------------


def descriptors() -> set[int]:
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return {number for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}


def a_doorway(left: list[bool], notes: list[str], *, is_leaving: bool = False) -> Doorway:
    room = FakeRoom()
    room.run_id = "run-1"
    nothing: Any = None
    return Doorway(
        room, nothing, "9.0", None, 1 << 20, notes.append, lambda: left.append(True), lambda: is_leaving
    )


@pytest.mark.parametrize(
    ("hello", "is_leaving", "has_clients", "said", "why"),
    [
        ({"stop": True}, False, True, {"pid": os.getpid(), "version": "9.0"}, STOPPED),
        ({"stop": True}, True, False, {"pid": os.getpid(), "version": "9.0"}, STOPPED),
        ({}, True, False, None, None),  # it finds no room now, and starts another
        ({"version": "9.1"}, False, False, {"leaving": True}, REPLACED),
        ({"version": "9.1"}, False, True, "without its two pipes", None),
        ({"version": "9.0"}, False, False, "without its two pipes", None),
        ({"version": "8.9"}, False, False, "without its two pipes", None),
        ({"room": "run-1"}, False, False, "its own client", None),
        ({"room": "run-2"}, False, False, "without its two pipes", None),
    ],
)
def test_each_hello_is_welcomed_sent_away_or_refused(
    hello: dict[str, Any],
    is_leaving: bool,
    has_clients: bool,
    said: Any,
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, notes, held = list[bool](), list[str](), list[int]()

    def hold(_self: Doorway, line: socket.socket) -> None:
        held.append(line.fileno())

    monkeypatch.setattr(Doorway, "_hold", hold)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            doorway: Any = a_doorway(left, notes, is_leaving=is_leaving)
            doorway._coming = 1
            if has_clients:
                doorway.clients["a"] = None
            said_hello: Any = {"version": "9.0", **hello}
            send_hello(ours, Hello(**said_hello), [] if said == "without its two pipes" else [2, 2])
            before, line = descriptors(), theirs.fileno()
            await doorway._serve_line(theirs)
            told = RoomLines(ours).next()
            assert descriptors() == before - {line}, "nothing of it stays open"
        if isinstance(said, str):
            assert told is not None
            assert said in told["error"]["message"]
            assert told["error"]["code"]
        else:
            assert told == said
        assert (bool(left), doorway.why if left else None, doorway._coming) == (why is not None, why, 0)
        assert len(held) == (why is not None), "its end is how the other side hears that we are gone"
        assert notes == []

    anyio.run(main)


def test_a_client_whose_connection_fails_is_noted_without_its_words() -> None:
    notes = list[str]()
    doorway = a_doorway([], notes)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inner = ExceptionGroup("group", [ExceptionGroup("inner", [OSError(5, "broken")])])
        doorway._failed(theirs, inner)
        assert len(notes) == 1
        assert "broken" in notes[0]
        doorway._failed(theirs, ExceptionGroup("group", [NoRoom("none. Try again.")]))
        assert RoomLines(ours).next() == {"error": {"code": NoRoom.code, "message": "none. Try again."}}
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("error", "stays_open", "is_noted"),
    [
        (OSError(errno.EMFILE, "too many files"), True, True),
        (OSError(errno.EPROTO, "odd"), True, False),
        (BlockingIOError(), True, False),
        (ConnectionAbortedError(), True, False),
        (InterruptedError(), True, False),
        (anyio.ClosedResourceError(), False, False),
        (ValueError(), False, False),
        (OSError(9, "closed"), False, False),
    ],
)
def test_a_room_goes_on_taking_clients_after_one_could_not_be_taken_until_its_listener_is_shut(
    error: Exception, stays_open: bool, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, served, coming = list[str](), list[Any](), [error, "line"]
    listener: Any = SimpleNamespace(is_open=True)

    def accept() -> Any:
        one = coming.pop(0)
        listener.is_open = stays_open and bool(coming)
        if isinstance(one, Exception):
            raise one
        return one, None

    async def readable(_line: Any) -> None:
        await anyio.lowlevel.checkpoint()

    def serve(_serve: Any, line: Any) -> None:
        served.append(line)

    monkeypatch.setattr(anyio, "wait_readable", readable)
    listener.line = SimpleNamespace(accept=accept)
    connections: Any = SimpleNamespace(start_soon=serve)
    doorway = a_doorway([], notes)
    anyio.run(doorway.take, listener, connections)
    assert (served, doorway._coming) == (["line"] * stays_open, stays_open)
    assert [("too many files" in note, "tried again" in note) for note in notes] == [(True, True)] * is_noted


# ---- a client that is here -------------------------------------------------------------------------------------------


class _Talks:
    """The conversations of a room, which note what they are told."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.did: list[Any] = []
        self.in_flight = 3
        self.client_name = "cursor"
        self.receive_large = None

    @asynccontextmanager
    async def open(self, outlet: StdioDoor, spawn: Any, **more: Any) -> AsyncGenerator[_Talks]:
        self.opened.append(more)
        self.door = outlet
        yield self
        self.did.append("its session has ended")

    def receive(self, line: bytes) -> None:
        self.did.append(line)

    def refuse_line(self, _head: bytes, text: str) -> None:
        self.did.append(("refused", text))

    def initialize_again(self, initialize: bytes, *, initialized: bool, gateways: int) -> None:
        self.did.append(("initialized again", initialize, initialized, gateways))

    def close(self) -> None:
        self.did.append("closed")


async def _word(line: socket.socket, words: RoomLines) -> Any:
    if not words.has_more:
        await anyio.wait_readable(line)
    return words.next()


@pytest.mark.parametrize("profile", [None, "home"])
@pytest.mark.parametrize("end", ["the client", "the process that attached", "the room"])
def test_a_client_brings_what_it_is_and_each_of_its_ends_is_told(
    end: str, profile: str | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[float] = []

    async def flush(_self: Any, seconds: float) -> None:
        flushed.append(seconds)

    async def main() -> None:
        talks, ours_is_open = _Talks(), True
        room = FakeRoom()
        room.run_id = "run-1"
        conversations: Any = talks
        doorway = Doorway(
            room, conversations, "9.0", "work", 200, lambda _: None, lambda: None, lambda: False
        )
        ours, theirs = socket.socketpair()
        hello = Hello(
            "9.0", "direct", profile, 5, None, {"A": "1"}, initialize="LINE\udcff", initialized=True, rooms=2
        )
        send_hello(ours, hello, [stdin, stdout])
        doorway._coming = 1
        words = RoomLines(ours)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(doorway._serve_line, theirs)
            assert await _word(ours, words) == {"pid": os.getpid(), "version": "9.0"}
            assert os.get_blocking(stdin) is False
            (shown,) = doorway.view()["clients"]
            seconds = shown.pop("seconds")
            assert 0.0 <= seconds < 60.0
            assert shown == {
                "pid": 5, "name": "cursor", "expose": "direct", "profile": profile or "work", "inFlight": 3
            }  # fmt: skip
            assert talks.opened == [
                {
                    "name": "attached-1",
                    "variables": {"A": "1"},
                    "profile": profile or "work",
                    "expose": "direct",
                    "door": "attach",
                }
            ]
            lines = [b'{"a":1}', b'{"method":"initialize"}', b'{"method":"notifications/initialized"}']
            os.write(client, b"\n".join([*lines, b""]))
            while len(talks.did) < 4:
                await anyio.lowlevel.checkpoint()
            os.write(client, b"x" * 300 + b"\n")
            while len(talks.did) < 5:
                await anyio.lowlevel.checkpoint()
            assert talks.did[:4] == [("initialized again", b"LINE\xff", True, 2), *lines]
            assert talks.did[4][0] == "refused", "it is longer than a line may be"
            del talks.did[:]
            if end == "the client":
                os.close(client)
            elif end == "the process that attached":
                ours.close()
                ours_is_open = False
            else:
                doorway.why = REPLACED
                await doorway.closed()
                assert doorway.clients == {}, "the room waits for its clients"
            while doorway.clients:
                await anyio.lowlevel.checkpoint()
        if ours_is_open:
            why = REPLACED if end == "the room" else OF_CLIENT
            assert await _word(ours, words) == {"end": why}
            assert words.next() is None
            ours.close()
        assert talks.did == [*([] if end == "the room" else ["closed"]), "its session has ended"]
        assert flushed == [1.0 if end == "the room" else 0.2]
        if end != "the client":
            os.close(client)

    monkeypatch.setattr(StdioDoor, "flush", flush)
    stdin, client = os.pipe()
    answers, stdout = os.pipe()
    try:
        run_async(backend, main)
    finally:
        for descriptor in (stdin, answers, stdout):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "descriptors", "said"),
    [
        (b"", 0, None),  # it goes away
        (b'{"version": "9"}', 2, None),  # it goes away in the middle
        (b'{"version": "9"}\n', 2, Hello("9")),
        (b'{"version": "9"}\n', 3, "too long"),
        (b"x" * (1 << 20) + b"\n", 0, "too long"),
        (b"x" * (1 << 20), 0, None),
    ],
)
def test_a_hello_has_an_end_a_bound_and_two_descriptors(
    data: bytes, descriptors: int, said: Any, backend: str
) -> None:
    got: list[int] = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)

            def sends() -> None:
                counts = (
                    [min(descriptors, 2), descriptors - 2][: 1 + (descriptors > 2)] if descriptors else []
                )
                for place, count in enumerate(counts):
                    socket.send_fds(ours, [data[place : place + 1]], [0] * count)
                with suppress(BrokenPipeError):  # it has read enough to refuse
                    ours.sendall(data[len(counts) :])
                    ours.shutdown(socket.SHUT_WR)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, sends)
                if isinstance(said, str):
                    with pytest.raises(BadHello, match=said):
                        await attach_server._hello(theirs, got, PATIENCE)
                else:
                    assert await attach_server._hello(theirs, got, PATIENCE) == said
                    assert len(got) == descriptors
                theirs.close()

    try:
        run_async(backend, main)
    finally:
        for descriptor in got:
            assert os.get_inheritable(descriptor) is False
            os.close(descriptor)


def test_a_silent_line_is_closed_and_whoever_asked_the_room_to_stop_sees_its_end() -> None:
    left, notes = list[bool](), list[str]()

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            doorway = a_doorway(left, notes)
            doorway.hello_within, doorway._coming = 0.02, 1
            await doorway._serve_line(theirs)
            assert ours.recv(10) == b""
        assert (left, notes, doorway._coming) == ([], [], 0)
        ours, theirs = socket.socketpair()
        with ours:
            doorway._coming = 1
            send_hello(ours, Hello("9.0", stop=True), [])
            before = descriptors()
            await doorway._serve_line(theirs)
            assert RoomLines(ours).next() == {"pid": os.getpid(), "version": "9.0"}
            ours.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is open until our process ends
                ours.recv(10)
            for held in descriptors() - before:
                os.close(held)
            assert ours.recv(10) == b""
        assert left == [True]

    anyio.run(main)


# ---- starting one ----------------------------------------------------------------------------------------------------


def test_who_waits_too_long_for_the_one_that_starts_a_room_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        background_gateway.take_lock(first)
        with pytest.raises(NoRoom, match=r"Another process has been starting.*Try again"):
            background_gateway.take_lock(second, within=0.05)
        os.close(first)
        background_gateway.take_lock(second)
    finally:
        os.close(second)


@pytest.mark.parametrize(
    ("happens", "log", "said"),
    [
        ("is ready", "", None),
        ("ends", "", "it ended without a word"),
        ("ends", "greenroom: no such file\n", "no such file"),
        ("nothing", "greenroom: slow\n", "it was not ready within 0.05 s"),
    ],
)
def test_a_room_that_does_not_become_ready_says_why_and_where_its_log_is(
    happens: str, log: str, said: str | None, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(log)
    place = dialled_place(lambda: None, tmp_path)
    ready, theirs = os.pipe()
    try:
        if happens == "is ready":
            os.write(theirs, b"ready")
        if happens == "ends":
            os.close(theirs)
        if said is None:
            background_gateway.await_ready(ready, place, within=0.05)
        else:
            with pytest.raises(NoRoom, match=said) as caught:
                background_gateway.await_ready(ready, place, within=0.05)
            assert os.fspath(place.log) in caught.value.message
    finally:
        os.close(ready)
        if happens != "ends":
            os.close(theirs)


def test_what_starts_a_room_tells_that_it_is_ready_and_frees_the_lock(tmp_path: Path) -> None:
    ready, theirs = os.pipe()
    lock, other = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        background_gateway.take_lock(lock)
        background_gateway.say_ready(theirs, lock)
        assert os.read(ready, 64)
        assert os.read(ready, 64) == b"", "it is closed"
        background_gateway.take_lock(other)
    finally:
        os.close(ready)
        os.close(other)
    ready, theirs = os.pipe()
    os.close(ready)
    background_gateway.say_ready(theirs, os.open(tmp_path / "lock", os.O_RDWR))  # nobody waits any more


def test_attach_takes_only_what_a_client_can_be_shown(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_command, "attach", lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
    for shown in ("proxy", "direct", "meta"):
        assert run(["attach", "--config", os.fspath(config), "--expose", shown]) == 0
    assert run(["attach", "--config", os.fspath(config), "--expose", "all"]) == 2
    assert "'proxy', 'direct', 'meta'" in capsys.readouterr().err
