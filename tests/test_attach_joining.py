"""`greenroom attach` against rooms that were written down beforehand: each word of a room, and each way it can fail."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greenroom.gateway import _attach
from greenroom.gateway._attach import Refused, attach, dial, join
from greenroom.gateway._background_start import NoRoom
from greenroom.gateway._background_wire import OF_CLIENT, STOPPED, BadHello, Hello, Words

HELLO = Hello("9")
LEAVING: tuple[dict[str, Any], ...] = ({"leaving": True},)


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
        self.place = SimpleNamespace(dial=self._dial, socket="SOCKET", log="LOG")

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
        line, words = join(rooms, HELLO, [])
        assert line.gettimeout() is None
        assert words.next() == {"end": "x"}, "what came with the answer is not lost"
        assert json.loads(rooms.theirs[0].recv(1 << 16))["version"] == "9"
        assert rooms.started == 0


def test_where_no_room_runs_one_is_started_and_where_one_leaves_the_next_is_joined() -> None:
    with _Rooms(None, LEAVING, (), ({"pid": 7},)).known() as rooms:
        line, _ = join(rooms, HELLO, [])
        assert rooms.started == 1
        assert [is_open(each) for each in rooms.dialled] == [False, False, True]
        assert line is rooms.dialled[-1]


def test_a_refusal_is_told_with_its_code_and_its_connection_is_closed() -> None:
    refusal = {"error": {"message": "There is no such profile. Name another.", "code": "unknown_profile"}}
    with _Rooms((refusal,)).known() as rooms:
        with pytest.raises(Refused, match="Name another") as caught:
            join(rooms, HELLO, [])
        assert caught.value.code == "unknown_profile"
        assert not is_open(rooms.dialled[0])


def test_ten_rooms_that_were_just_ending_are_enough() -> None:
    with _Rooms(*([LEAVING] * 11)).known() as rooms:
        with pytest.raises(NoRoom, match="Try again"):
            join(rooms, HELLO, [])
        assert len(rooms.dialled) == 10
        assert not any(map(is_open, rooms.dialled))


@pytest.mark.parametrize(
    ("words", "limit", "said"),
    [((), "_ANSWER_WITHIN", "did not answer within"), (LEAVING, "_LEAVES_WITHIN", "greenroom stop")],
)
def test_a_room_that_hangs_is_waited_for_so_long_and_the_connection_closed(
    words: tuple[dict[str, Any], ...], limit: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(_attach, limit) == 60.0
    monkeypatch.setattr(_attach, limit, 0.01)
    with _Rooms(words, stays=True).known() as rooms:
        with pytest.raises(NoRoom, match=said):
            join(rooms, HELLO, [])
        assert not is_open(rooms.dialled[0])


def test_a_room_that_is_leaving_is_waited_for_longer_than_for_its_answer() -> None:
    """It lets the calls of its clients finish. What it says meanwhile is passed over."""
    with _Rooms(({"leaving": True}, {"end": "x"}), ({"pid": 1},)).known() as rooms:
        join(rooms, HELLO, [])
        assert not is_open(rooms.dialled[0])


def test_a_room_that_cannot_be_dialled_or_understood_says_what_to_do(tmp_path: Path) -> None:
    def broken() -> None:
        raise OSError(111, "full")

    place: Any = SimpleNamespace(dial=broken, socket=tmp_path / "room.sock")
    with pytest.raises(NoRoom, match=r"room\.sock does not answer .*full.*try again"):
        dial(place)
    for said in (b"[]\n", b"x\n", b"1\n", b"[" * 100_000 + b"\n"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(said)
            with pytest.raises(BadHello, match="greenroom stop"):
                Words(ours).next()


# ---- once it is joined -----------------------------------------------------------------------------------------------


@contextmanager
def standard_input() -> Generator[Callable[[], None]]:
    """Standard input is a pipe meanwhile. Gives what closes the client's end of it."""
    kept = os.dup(0)
    reads, writes = os.pipe()
    ends = [writes]
    os.dup2(reads, 0)
    os.close(reads)
    try:
        yield lambda: os.close(ends.pop())
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("client", ["stays", "has ended"])
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (({"end": "client"},), "client"),
        (({"end": "stopped"},), "stopped"),
        ((), ""),
        (({"unheard": "of"}, {"end": "client"}, {"end": "stopped"}), "client"),
    ],
)
def test_the_end_of_a_room_is_what_it_said_last(words: Any, why: str, client: str) -> None:
    with standard_input() as close, _Rooms(words).known() as rooms:
        if client == "has ended":
            close()
        line = rooms.place.dial()
        assert _attach._wait(line, Words(line), HELLO) == (HELLO, why)


@pytest.mark.parametrize("greeted", [True, False])
def test_what_the_room_tells_of_the_client_is_told_to_the_next_room(greeted: bool) -> None:
    words = ({"initialize": "LINE", "greeted": greeted},)
    with standard_input(), _Rooms(words).known() as rooms:
        line = rooms.place.dial()
        hello, why = _attach._wait(line, Words(line), HELLO)
    assert (hello.initialize, hello.greeted, why) == ("LINE", greeted, "")


def test_a_room_that_says_nothing_after_the_client_has_ended_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _attach._STUCK == 1.2, "longer than the 1.0 s in which a room says that it has noticed"
    monkeypatch.setattr(_attach, "_STUCK", 0.05)
    with standard_input() as close, _Rooms((), stays=True).known() as rooms:
        close()
        line = rooms.place.dial()
        assert _attach._wait(line, Words(line), HELLO) == (HELLO, _attach._GIVEN_UP)


@pytest.mark.parametrize(
    ("end", "restored", "noted"),
    [
        (OF_CLIENT, True, []),
        (STOPPED, True, ["Start this client again"]),
        (_attach._GIVEN_UP, False, []),  # the room still reads and writes
    ],
)
def test_how_the_pipes_were_is_restored_unless_the_room_still_uses_them(
    end: str, restored: bool, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    was = {0: True, 1: False}
    changed: dict[int, bool] = {}
    closed: list[int] = []
    notes: list[str] = []
    monkeypatch.setattr(_attach, "_wait", lambda _line, _words, hello: (hello, end))  # pyright: ignore[reportUnknownLambdaType]
    memory = _attach.new_memory()

    def close(descriptor: int) -> None:
        os.close(descriptor)
        closed.append(descriptor)

    monkeypatch.setattr(_attach, "new_memory", lambda: memory)
    names = SimpleNamespace(get_blocking=was.get, set_blocking=changed.__setitem__, close=close)
    monkeypatch.setattr(_attach, "os", names)
    with _Rooms(({"pid": 1},), stays=True).known() as rooms:
        attach(rooms, HELLO, notes.append)
        assert not is_open(rooms.dialled[0])
    assert closed == [memory]
    assert changed == (was if restored else {})
    assert len(notes) == len(noted)
    assert all(part in note for part, note in zip(noted, notes, strict=True))
