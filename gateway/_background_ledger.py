"""What a room has read from an attached client and not yet answered, where it survives the room.

The room reads the client's pipe itself, so when the room is killed, nobody else knows what it had read. Therefore each
attached client brings a piece of memory, which stays with the process that attached, and which its room maps and
writes to:

* the inbox: what was read last, and how many of its lines have been handled. The next room handles the others, and
  joins the beginning of a line with its rest. Of a line that is longer than the inbox only the head is kept, and it is
  answered with an error. While such a line is read in slices, the inbox has what came behind it.
* the ids of open requests. The next room answers for the last one that they may have run. An id stays until its
  answer was written. So a room that is killed between the two leads to a second answer, which clients ignore, and
  never to none.
* whether a line to the client may have been written only in part.

What is lost is what was read and not yet copied, which takes a microsecond. An id that is longer than a slot is not
kept.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final, NamedTuple

_SLOT: Final = 128  # bytes: a length, and the id
_SLOTS: Final = 2048  # twice the requests that a client may have open: some answers wait to be written
_HEAD: Final = 1024  # bytes of a line that is longer than the inbox
_INBOX: Final = 1 << 18  # bytes: the rest of a line, and what a pipe holds
# Where things are.
_CUT_OUT, _CUT_IN, _LENGTH, _END, _HANDLED, _HEAD_AT, _INBOX_AT = 0, 1, 2, 8, 12, 64, 4096
_WITH_END: Final = 2  # in place of a flag: the end of the line has come
_SLOTS_AT: Final = _INBOX_AT + _INBOX
SIZE: Final = _SLOTS_AT + _SLOT * _SLOTS


def new_memory() -> int:
    """A descriptor of new memory for a ledger. A page of it exists once it is written to. Raises `OSError`."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("greenroom-ledger")
    else:
        descriptor, path = tempfile.mkstemp(prefix="greenroom-ledger-")
        os.unlink(path)
    os.ftruncate(descriptor, SIZE)
    return descriptor


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
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self.left = _read(self._memory)
        self._free = list(range(_SLOTS_AT, SIZE, _SLOT))[::-1]
        self._open: dict[bytes, int] = {}  # the place of each id's slot
        self._answered: list[int] = []  # slots whose answers were sent; they may not be written yet
        self._handled = 0
        self.is_over = False  # what was read does not fit into the inbox

    # ---- what comes in ---------------------------------------------------------------------------------------

    def took(self, data: bytes, held: bytes | bytearray | None) -> None:
        """`data` was read. `held` is what was read before of the line that it continues, None if that is dropped. All
        lines before have been handled."""
        memory = self._memory
        memory[_END : _HANDLED + 4] = bytes(8)
        self._handled = 0
        if held is None or len(held) + len(data) > _INBOX:
            self.is_over = True
            self.cut_in(bytes(held[:_HEAD]) if held else b"")
            return
        if self.is_over:
            self.is_over = False
            self.cut_in(None)
        if held:
            data = bytes(held) + data
        memory[_INBOX_AT : _INBOX_AT + len(data)] = data
        memory[_END : _END + 4] = len(data).to_bytes(4, "big")

    def took_large(self, line: bytes | bytearray, behind: bytes) -> None:
        """`line` does not fit into the inbox, and is being handled; `behind` was read behind it."""
        memory = self._memory
        self.is_over = False
        self.cut_in(bytes(line[:_HEAD]))
        memory[_CUT_IN] = _WITH_END
        memory[_INBOX_AT : _INBOX_AT + len(behind)] = behind
        memory[_END : _END + 4] = len(behind).to_bytes(4, "big")

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
    inbox = memory[_INBOX_AT : _INBOX_AT + min(_number(memory, _END, 4), _INBOX)]
    *lines, fragment = inbox.split(b"\n")
    lines = [line for line in lines if line and not line.isspace()][_number(memory, _HANDLED, 4) :]
    head = memory[_HEAD_AT : _HEAD_AT + min(_number(memory, _LENGTH, 2), _HEAD)] if memory[_CUT_IN] else None
    left = Left(keys, lines, fragment, head, memory[_CUT_IN] == _WITH_END, bool(memory[_CUT_OUT]))
    for place in places:
        memory[place] = 0
    memory[:_HEAD_AT] = bytes(_HEAD_AT)
    return left


def _number(memory: mmap.mmap, place: int, size: int) -> int:
    return int.from_bytes(memory[place : place + size], "big")
