"""`greenroom attach`: joins its client to the background gateway.

It makes two pipes, passes their far ends to the gateway (SCM_RIGHTS), and copies lines between them and its client
(`attach_bridge`). When the gateway is killed, the client notices nothing but errors for what may have run: another
is started, or found, and gets pipes of its own. How the client introduced itself is said to it again. This is done
once per loss; a gateway that is lost within a few seconds is not replaced again: the next would be lost as well.

The other way, to pass the client's own descriptors to the gateway, was given up. It saves two wake-ups a call. But then
only the gateway knows what it has read and answered, and that has to be in memory that survives it.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ...config.private_files import NotOurs, peer_pid
from ...protocol.errors import GreenroomError
from .attach_bridge import GIVEN_UP, Bridge, Pipes
from .attach_protocol import OF_CLIENT, STOPPED, Hello, RoomLines, send_hello
from .background_gateway import NoRoom, RoomPlace, start_room

_TRIES: Final = 10  # gateways that may be leaving while we come
_ANSWER_WITHIN: Final = 60.0  # seconds for the gateway's answer to a hello
_LEAVES_WITHIN: Final = 60.0  # seconds for an older gateway to end
_TOLD_AFTER: Final = 5.0  # seconds of either, after which is said what is waited for
_SOON: Final = 5.0  # seconds; a gateway that is lost sooner after another is not replaced
_LOSSES: Final = 1


class RoomLost(GreenroomError):
    """The background gateway ended again, right after it had been replaced."""

    code = "room_lost"


class AttachRefused(GreenroomError):
    """The background gateway does not take this client."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class RoomStarter(msgspec.Struct, frozen=True):
    """How a gateway is started where none runs: `greenroom serve WORDS`, with this environment."""

    place: RoomPlace
    words: Sequence[str]
    environ: Mapping[str, str]

    def start(self) -> bool:
        """Start the gateway. Returns False if it runs already. Raises `NoRoom`."""
        return start_room(self.place, self.words, self.environ, self._is_there)

    def _is_there(self) -> bool:
        line = self.place.dial()
        if line is not None:
            line.close()
        return line is not None


def attach(
    find: Callable[[], RoomStarter], hello: Hello, max_line: int, note: Callable[[str], object]
) -> None:
    """Join our standard input and output to the gateway until the client ends or the gateway is stopped. `find` is
    asked before each gateway, because the configuration may be made of other files than for the last one. Blocking.
    Raises `NoRoom`, `AttachRefused`, `RoomLost`, or `OSError`."""
    lost = 0  # gateways that ended in a row, each soon after it was joined
    bridge = Bridge(0, 1, max_line)
    with _without_blocking(1):
        try:
            while True:
                with closing(Pipes()) as pipes:
                    starting = find()
                    line, words = join(starting, hello, pipes.theirs, note)
                    os.close(pipes.theirs.pop())  # only the gateway writes answers
                    since = time.monotonic()
                    with line:
                        end = bridge.run(line, words, pipes)
                    if end == STOPPED:
                        note("the background gateway was stopped. Start this client again to start another.")
                    if end in (GIVEN_UP, OF_CLIENT, STOPPED):
                        return
                    bridge.lose(pipes)
                lost = lost + 1 if not end and time.monotonic() - since < _SOON else 1
                if lost > _LOSSES:
                    raise RoomLost(
                        f"The background gateway ended again at once. Its log: {starting.place.log}"
                    )
                note("the background gateway has ended; going on with another.")
                hello = replace(
                    hello, rooms=hello.rooms + 1, initialize=bridge.initialize, initialized=bridge.initialized
                )
        finally:
            bridge.finish()


@contextmanager
def _without_blocking(fd: int) -> Generator[None]:
    """Make a descriptor non-blocking, and undo that at the end, because others may have the same pipe."""
    mode = os.fstat(fd).st_mode
    is_changed = os.get_blocking(fd) and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))
    if is_changed:
        os.set_blocking(fd, False)
    try:
        yield
    finally:
        if is_changed:
            os.set_blocking(fd, True)


def join(
    starting: RoomStarter, hello: Hello, descriptors: Sequence[int], note: Callable[[str], object]
) -> tuple[socket.socket, RoomLines]:
    """A connection to a gateway that has taken our client. Starts the gateway if there is none, and waits for an
    older one to leave. `note` is told what takes long. Raises `NoRoom` or `AttachRefused`."""
    for _ in range(_TRIES):
        line = dial(starting.place)
        if line is None:
            starting.start()
            continue
        words = RoomLines(line)
        answer = _answer(line, words, hello, descriptors, note)
        if answer is not None and "error" in answer:
            line.close()
            raise AttachRefused(str(answer["error"]["message"]), str(answer["error"]["code"]))
        if answer is not None and "leaving" not in answer:
            line.settimeout(None)
            return line, words
        with line:
            _until_gone(line, words, note)
    raise NoRoom("Each background gateway that was found was just ending. Try again.")


def dial(place: RoomPlace) -> socket.socket | None:
    """A connection to the gateway; None: none runs. Raises `NoRoom` for one that must not or cannot be used."""
    try:
        return place.dial()
    except NotOurs as error:
        raise NoRoom(f"The background gateway at {place.socket} is not used: {error.strerror}.") from None
    except OSError as error:
        text = f"The background gateway at {place.socket} does not answer ({error}). End its process and try again."
        raise NoRoom(text) from None


def _answer(
    line: socket.socket,
    words: RoomLines,
    hello: Hello,
    descriptors: Sequence[int],
    note: Callable[[str], object],
) -> dict[str, Any] | None:
    """The gateway's answer to a hello. None: it is leaving. Raises `NoRoom`."""
    who = _named(line)
    line.settimeout(_ANSWER_WITHIN)
    try:
        send_hello(line, hello, descriptors)
        waits = f"{who} does not answer. It may be stopped, or busy; it is waited for {_ANSWER_WITHIN:g} s."
        return _next(line, words, _ANSWER_WITHIN, partial(note, waits))
    except TimeoutError:
        line.close()
        raise NoRoom(
            f"{who} did not answer within {_ANSWER_WITHIN:g} s. End its process and try again."
        ) from None
    except OSError:  # it has closed the connection
        return None


def _until_gone(line: socket.socket, words: RoomLines, note: Callable[[str], object]) -> None:
    """Wait until a gateway that is leaving has closed the connection."""
    waits = f"{_named(line)} is ending, and lets its calls finish; it is waited for {_LEAVES_WITHIN:g} s."
    try:
        if _next(line, words, _LEAVES_WITHIN, partial(note, waits)) is not None:
            while words.next() is not None:
                pass
    except OSError:
        raise NoRoom("An older background gateway does not end. Stop it: greenroom stop.") from None


def _next(
    line: socket.socket, words: RoomLines, within: float, tell: Callable[[], object]
) -> dict[str, Any] | None:
    """The gateway's next word. `tell` is called when it has not come soon. Raises `TimeoutError`."""
    soon = min(_TOLD_AFTER, within)
    line.settimeout(soon)
    try:
        return words.next()
    except TimeoutError:
        if soon == within:
            raise
    tell()
    line.settimeout(within - soon)
    return words.next()


def _named(line: socket.socket) -> str:
    pid = peer_pid(line)
    return "The background gateway" if pid is None else f"The background gateway (pid {pid})"
