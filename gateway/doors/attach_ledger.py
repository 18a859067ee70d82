"""What a room has read from an attached client and not yet answered, where it survives the room.

The room reads the client's pipe itself, so when the room is killed, nobody else knows what it had read. Therefore each
attached client brings a piece of memory, which stays with the process that attached, and which its room maps and
writes to:

* the inbox: what was read last, and how many of its lines have been handled. The next room handles the others, and
  joins the beginning of a line with its rest. The client's pipe is read straight into it, so at no moment is a line in
  neither of the two. How much came is noted afterwards; if the room is killed before, zeros tell where it ends. Of a
  line that is longer than the inbox only the head is kept, and it is answered with an error. While such a line is read
  in slices, the inbox has what came behind it.
* the ids of open requests. The next room answers for the last one that they may have run. An id stays until its
  answer was written. So a room that is killed between the two leads to a second answer, which clients ignore, and
  never to none.
* whether a line to the client may have been written only in part.

The memory has its size for ever (sealed, on Linux). The room takes no other: who attaches could make it smaller under
the room's hands, and the first access beyond its end would end the room and the calls of all its clients.

What is lost, if the room is killed in the wrong microseconds: what comes in one read with the end of a line that is
longer than the inbox, and the beginning of a line while it is moved because the inbox is full. An id that is longer
than a slot is not kept.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
import termios
from contextlib import suppress
from typing import Final, NamedTuple

_SLOT: Final = 128  # bytes: a length, and the id
_SLOTS: Final = 2048  # twice the requests that a client may have open: some answers wait to be written
_HEAD: Final = 1024  # bytes of a line that is longer than the inbox
_FEW: Final = 1 << 12  # bytes that are asked for where nothing waits yet
_INBOX: Final = 1 << 18  # bytes: the rest of a line, and what a pipe holds
# Where things are.
_CUT_OUT, _CUT_IN, _LENGTH, _READS, _END, _HANDLED, _HEAD_AT, _INBOX_AT = 0, 1, 2, 4, 8, 12, 64, 4096
_WITH_END: Final = 2  # in place of a flag: the end of the line has come
_SLOTS_AT: Final = _INBOX_AT + _INBOX
SIZE: Final = _SLOTS_AT + _SLOT * _SLOTS
_CAN_SEAL: Final = sys.platform == "linux"


def new_memory() -> int:
    """A descriptor of new memory for a ledger. A page of it exists once it is written to. Raises `OSError`."""
    if _CAN_SEAL:
        descriptor = os.memfd_create("greenroom-ledger", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor, path = tempfile.mkstemp(prefix="greenroom-ledger-")
        os.unlink(path)
    os.ftruncate(descriptor, SIZE)
    if _CAN_SEAL:
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
    return descriptor


def _check(descriptor: int) -> None:
    """Raises `OSError` or `ValueError` for what is no such memory, or could become smaller."""
    if os.fstat(descriptor).st_size != SIZE:
        raise ValueError("it has another size")
    if _CAN_SEAL and not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("it is not sealed")


class Left(NamedTuple):
    """What a room that is gone had not finished."""

    keys: list[bytes]  # ids of requests that have no answer
    lines: list[
        bytes
    ]  # that were read and not handled; the first may be in `keys`, then it was being handled
    fragment: bytes  # the beginning of a line
    head: bytes | None  # of a line of which the rest was not kept, and which was not handled; None: of none
    has_end: bool  # the end of the line with this head was read; `lines` are behind it
    cut_out: bool  # a line may have been written only in part


class Ledger:
    """The room's side. Closes the descriptor; end it with `close`. `left` is what the room before has left."""

    def __init__(self, descriptor: int) -> None:
        """Raises `OSError` or `ValueError` for a descriptor that is no such memory."""
        try:
            _check(descriptor)
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self.left = _read(self._memory)
        self._free = list(range(_SLOTS_AT, SIZE, _SLOT))[::-1]
        self._open: dict[bytes, int] = {}  # the place of each id's slot
        self._answered: list[int] = []  # slots whose answers were sent; they may not be written yet
        self._end = 0  # of what is in the inbox; behind it are zeros
        self._touched = 0  # up to where the inbox is in memory
        self._handled = 0
        self._has_held = True  # the inbox ends with what has come of the next line
        self.is_over = False  # what was read does not fit into the inbox

    # ---- what comes in ---------------------------------------------------------------------------------------

    def read(self, fd: int, most: int, held: bytes | bytearray | None) -> bytes:
        """Read at most `most` bytes into the inbox. `held` as for `took`. Raises `OSError` as `os.read` does."""
        if held is None or len(held) + most > _INBOX:
            data = os.read(fd, most)
            if data:
                self.took(data, held)
            return data
        if not held or not self._has_held or self._end + most > _INBOX:
            self._fill(bytes(held))
        if self.is_over:
            self._no_longer_over()
        memory, start = self._memory, _INBOX_AT + self._end
        stop = start + self._ready(fd, most)
        memory[_READS] = 1
        try:
            with memoryview(memory) as whole, whole[start:stop] as place:
                count = os.readv(fd, [place])
            self._end += count
            memory[_END : _END + 4] = self._end.to_bytes(4, "big")
        finally:
            memory[_READS] = 0
        return memory[start : start + count]

    def _ready(self, fd: int, most: int) -> int:
        """How much to read. What will be read into is in memory then: a room that is killed while the system still has
        to fetch memory for it would have a part of it both there and in the pipe."""
        waiting = most
        with suppress(OSError):  # it is neither a pipe nor a socket
            waiting = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        count = min(most, waiting) or _FEW
        stop = self._end + count
        if stop > self._touched:
            start = max(self._touched, self._end)
            self._memory[_INBOX_AT + start : _INBOX_AT + stop] = bytes(stop - start)
            self._touched = stop
        return count

    def took(self, data: bytes, held: bytes | bytearray | None) -> None:
        """`data` was read. `held` is what was read before of the line that it continues, None if that is dropped. All
        lines before have been handled."""
        if held is None or len(held) + len(data) > _INBOX:
            self._fill(b"")
            self.is_over, self._has_held = True, False
            self.cut_in(bytes(held[:_HEAD]) if held else b"")
            return
        if self.is_over:
            self._no_longer_over()
        self._fill(bytes(held) + data)

    def _no_longer_over(self) -> None:
        self.is_over = False
        self.cut_in(None)

    def _fill(self, content: bytes) -> None:
        """The inbox has this now, and none of it has been handled."""
        memory, size = self._memory, len(content)
        memory[_END : _HANDLED + 4] = bytes(8)
        self._handled = 0
        if size < self._end:
            memory[_INBOX_AT + size : _INBOX_AT + self._end] = bytes(self._end - size)
        memory[_INBOX_AT : _INBOX_AT + size] = content
        memory[_END : _END + 4] = size.to_bytes(4, "big")
        self._end, self._has_held = size, True
        self._touched = max(self._touched, size)

    def took_large(self, line: bytes | bytearray, behind: bytes) -> None:
        """`line` does not fit into the inbox, and is being handled; `behind` was read behind it."""
        memory = self._memory
        self.is_over = False
        self.cut_in(bytes(line[:_HEAD]))
        memory[_CUT_IN] = _WITH_END
        self._fill(behind)

    def handled_large(self) -> None:
        """The line that did not fit has been handled."""
        self.cut_in(None)

    def handled(self) -> None:
        """One more line of what was read last has been handled."""
        self._handled = count = self._handled + 1
        self._memory[_HANDLED : _HANDLED + 4] = count.to_bytes(4, "big")

    def cut_in(self, head: bytes | None) -> None:
        """What the inbox does not hold ends with a line that begins so, and whose end has not come; None: it ends with
        whole lines."""
        memory, text = self._memory, (head or b"")[:_HEAD]
        memory[_HEAD_AT : _HEAD_AT + len(text)] = text
        memory[_LENGTH : _LENGTH + 2] = len(text).to_bytes(2, "big")
        memory[_CUT_IN] = head is not None

    # ---- what goes out ---------------------------------------------------------------------------------------

    def began(self, key: bytes) -> None:
        """A request is being handled."""
        if key in self._open or len(key) >= _SLOT:
            return
        if not self._free:
            if not self._answered:
                return
            self._release(self._answered.pop(0))
        place = self._open[key] = self._free.pop()
        memory = self._memory
        memory[place + 1 : place + 1 + len(key)] = key
        memory[place] = len(key)

    def ended(self, key: bytes) -> None:
        """A request is about to be answered, or needs no answer."""
        place = self._open.pop(key, None)
        if place is not None:
            self._answered.append(place)

    def written(self) -> None:
        """All that was sent to the client has been written."""
        for place in self._answered:
            self._release(place)
        self._answered.clear()

    def cut_out(self, is_cut: bool) -> None:
        """Whether something waits to be written, so a line may have been written only in part."""
        self._memory[_CUT_OUT] = is_cut

    def close(self) -> None:
        self._memory.close()

    def _release(self, place: int) -> None:
        self._memory[place] = 0
        self._free.append(place)


def _read(memory: mmap.mmap) -> Left:
    """What is in the memory, which is empty afterwards."""
    places = [place for place in range(_SLOTS_AT, SIZE, _SLOT) if memory[place]]
    keys = [memory[place + 1 : place + 1 + memory[place]] for place in places]
    end = min(_number(memory, _END, 4), _INBOX)
    if memory[_READS]:
        end = max(end, memory.find(b"\0", _INBOX_AT + end, _SLOTS_AT) - _INBOX_AT)
    inbox = memory[_INBOX_AT : _INBOX_AT + end]
    *lines, fragment = inbox.split(b"\n")
    lines = [line for line in lines if line and not line.isspace()][_number(memory, _HANDLED, 4) :]
    head = memory[_HEAD_AT : _HEAD_AT + min(_number(memory, _LENGTH, 2), _HEAD)] if memory[_CUT_IN] else None
    left = Left(keys, lines, fragment, head, memory[_CUT_IN] == _WITH_END, bool(memory[_CUT_OUT]))
    for place in places:
        memory[place] = 0
    memory[_INBOX_AT : _INBOX_AT + end] = bytes(end)
    memory[:_HEAD_AT] = bytes(_HEAD_AT)
    return left


def _number(memory: mmap.mmap, place: int, size: int) -> int:
    return int.from_bytes(memory[place : place + size], "big")
