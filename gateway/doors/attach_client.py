"""`greenroom attach`: joins its client to the background room, and waits.

It passes its own standard input and output to the room (SCM_RIGHTS), and the room reads and writes the client's pipes
itself. So nothing of what the client says passes through here, and an attached call costs no forwarder at all. The
other way, to copy bytes between the client and a socket, was rejected: it adds a process and two wake-ups to each
call, and a bridge that does not parse cannot know what is in flight either.

This process keeps the descriptors, too, and its client's ledger (`attach_ledger`). So when the room is killed, the
client notices nothing of it: a new room is started, or found, and gets the same descriptors. What the client wrote and
nobody read is still in its pipe, and is read there. What was read and not handled is in the ledger, and is handled.
What was begun and not answered is answered with an error that says so. How the client introduced itself is said again.
This is done once per loss; a room that is lost within a few seconds is not replaced again, because the next would be
lost as well.

Descriptors that do not block are a property of the pipe and not of a process. The room sets it and resets it. A killed
room cannot, so this process does at the end.

When the client closes its end, the room sees it, ends the session and says so here. A client that is gone is noticed
here as well, in case that the room is stuck.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from ...config.private_files import NotOurs
from ...protocol.errors import GreenroomError
from .attach_ledger import new_memory
from .attach_protocol import OF_CLIENT, STOPPED, Hello, Words, send_hello
from .background import NoRoom, RoomPlace, start_room

_TRIES: Final = 10  # rooms that may be leaving while we come
_ANSWER_WITHIN: Final = 60.0  # seconds for the room's answer to a hello
_LEAVES_WITHIN: Final = 60.0  # seconds for an older room to end
_STUCK: Final = 1.2  # seconds after the client's end, until we no longer wait for the room
_SOON: Final = 5.0  # seconds; a room that is lost sooner after another is not replaced
_LOSSES: Final = 1
_GIVEN_UP: Final = "given up"


class RoomLost(GreenroomError):
    """The background room ended again, right after it had been replaced."""

    code = "room_lost"


class Refused(GreenroomError):
    """The background room does not take this client."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen
class Starting:
    """How a room is started where there is none: `greenroom serve WORDS`, with this environment."""

    place: RoomPlace
    words: Sequence[str]
    environ: Mapping[str, str]

    def start(self) -> bool:
        """True: this process has started it; False: it runs already. Raises `NoRoom`."""
        return start_room(self.place, self.words, self.environ, self._is_there)

    def _is_there(self) -> bool:
        line = self.place.dial()
        if line is not None:
            line.close()
        return line is not None


def attach(starting: Starting, hello: Hello, note: Callable[[str], object]) -> None:
    """Join our standard input and output to the room until the client ends or the room is stopped. Blocking. Raises
    `NoRoom`, `Refused`, `RoomLost`, or `OSError`."""
    memory = new_memory()
    lost = 0  # rooms, one soon after the other
    blocking = {fd: os.get_blocking(fd) for fd in (0, 1)}
    try:
        while True:
            line, words = join(starting, hello, [0, 1, memory])
            since = time.monotonic()
            with line:
                hello, end = _wait(line, words, hello)
            if end == _GIVEN_UP:
                blocking = {}  # the room still reads and writes
                return
            if end == OF_CLIENT:
                return
            if end == STOPPED:
                note("the background room was stopped. Start this client again to start another.")
                return
            lost = lost + 1 if not end and time.monotonic() - since < _SOON else 1
            if lost > _LOSSES:
                raise RoomLost(f"The background room ended again at once. Its log: {starting.place.log}")
            note("the background room has ended; going on with another.")
            hello = attrs.evolve(hello, rooms=hello.rooms + 1)
    finally:
        os.close(memory)
        for fd, was in blocking.items():
            os.set_blocking(fd, was)


def join(starting: Starting, hello: Hello, descriptors: Sequence[int]) -> tuple[socket.socket, Words]:
    """A connection to a room that has taken our client. Starts the room if there is none, and waits for an older one
    to leave. Raises `NoRoom` or `Refused`."""
    for _ in range(_TRIES):
        line = dial(starting.place)
        if line is None:
            starting.start()
            continue
        words = Words(line)
        answer = _answer(line, words, hello, descriptors)
        if answer is not None and "error" in answer:
            line.close()
            raise Refused(str(answer["error"]["message"]), str(answer["error"]["code"]))
        if answer is not None and "leaving" not in answer:
            line.settimeout(None)
            return line, words
        with line:
            _until_gone(line, words)
    raise NoRoom("Each background room that was found was just ending. Try again.")


def dial(place: RoomPlace) -> socket.socket | None:
    """A connection to the room; None: none runs. Raises `NoRoom` for one that must not or cannot be used."""
    try:
        return place.dial()
    except NotOurs as error:
        raise NoRoom(f"The background room at {place.socket} is not used: {error.strerror}.") from None
    except OSError as error:
        text = (
            f"The background room at {place.socket} does not answer ({error}). End its process and try again."
        )
        raise NoRoom(text) from None


def _answer(
    line: socket.socket, words: Words, hello: Hello, descriptors: Sequence[int]
) -> dict[str, Any] | None:
    """The room's answer to a hello. None: it is leaving. Raises `NoRoom`."""
    line.settimeout(_ANSWER_WITHIN)
    try:
        send_hello(line, hello, descriptors)
        return words.next()
    except TimeoutError:
        line.close()
        text = (
            f"The background room did not answer within {_ANSWER_WITHIN:g} s. End its process and try again."
        )
        raise NoRoom(text) from None
    except OSError:  # it has closed the connection
        return None


def _until_gone(line: socket.socket, words: Words) -> None:
    """Wait until a room that is leaving has closed the connection."""
    line.settimeout(_LEAVES_WITHIN)
    try:
        while words.next() is not None:
            pass
    except OSError:
        raise NoRoom("An older background room does not end. Stop it: greenroom stop.") from None


def _wait(line: socket.socket, words: Words, hello: Hello) -> tuple[Hello, str]:
    """Wait for the end of the client or of the room. Returns why it ended, empty for a room that was killed; and the
    hello with what the room has told of the client."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(0, 0)  # tells when the client has closed its end
    until: float | None = None
    while True:
        if not words.has_more:
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            found = dict(poll.poll(left))
            if 0 in found:
                poll.unregister(0)
                until = time.monotonic() + _STUCK
            if not found:
                return hello, _GIVEN_UP
            if line.fileno() not in found:
                continue
        word = words.next()
        if word is None:
            return hello, ""
        if "end" in word:
            return hello, str(word["end"])
        if "initialize" in word:
            greeted = bool(word.get("greeted"))
            hello = attrs.evolve(hello, initialize=word["initialize"], greeted=greeted)
