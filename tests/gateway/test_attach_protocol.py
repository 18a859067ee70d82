"""What a client of a background gateway says first, and which versions and words are understood."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.gateway.doors.attach_protocol import (
    BadHello,
    Hello,
    RoomLines,
    is_newer,
    read_hello,
    send_hello,
)


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_newer("0.10.0", "0.9.1")
    assert is_newer("1.0", "0.99")
    assert not is_newer("0.1.0", "0.1.0")
    assert not is_newer("0.1.0", "0.1.0.dev3")


@for_each(
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


def test_a_newer_client_may_say_more() -> None:
    assert read_hello(b'{"version": "9", "unheard_of": true}') == Hello("9")


def test_a_value_of_the_session_comes_as_it_is_and_is_not_printed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_hello(ours, Hello("9", variables={"NO_\udcff_TEXT": "half \udcff"}), [])
        heard = read_hello(theirs.recv(1 << 16))
    assert heard.variables == {"NO_\udcff_TEXT": "half \udcff"}
    assert "half" not in repr(heard)


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
        assert RoomLines(line).next() == {"leaving": True}
