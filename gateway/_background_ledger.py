"""Which requests of an attached client have no answer yet, where it survives the room.

The room reads the client's pipe itself, so when the room is killed, nobody else knows what it had read. Therefore each
attached client brings a piece of memory, which the room maps and writes to: the ids of open requests, a line of which
only the beginning was read, and whether a line may have been written only in part. It stays with the process that
attached. After the room's death that process reads it, and the next room answers for the last one.

An id leaves the ledger once its answer was written and not before. So a room that is killed between the two leads to a
second answer, which clients ignore, and never to none. What is lost is what was read and not yet noted, which takes a
few microseconds; and an id longer than a slot is not noted.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

_SLOT: Final = 128  # bytes: a length, and the id
_SLOTS: Final = 2048  # twice the requests that a client may have open: some answers wait to be written
_HEAD: Final = 1024  # bytes of a line whose end has not come
_SLOTS_AT: Final = 4096
SIZE: Final = _SLOTS_AT + _SLOT * _SLOTS
_CUT_OUT, _CUT_IN, _LENGTH = 0, 1, 2  # where the header has its bytes; the length has two
_HEAD_AT: Final = 8


def new_memory() -> int:
    """A descriptor of new memory for a ledger. A page of it exists once it is written to. Raises `OSError`."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("greenroom-ledger")
    else:
        descriptor, path = tempfile.mkstemp(prefix="greenroom-ledger-")
        os.unlink(path)
    os.ftruncate(descriptor, SIZE)
    return descriptor


class Ledger:
    """The room's side. Closes the descriptor; end it with `close`."""

    def __init__(self, descriptor: int) -> None:
        """Raises `OSError` or `ValueError` for a descriptor that is no such memory."""
        try:
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._memory[:_HEAD_AT] = bytes(_HEAD_AT)
        self._free = list(range(_SLOTS_AT, SIZE, _SLOT))[::-1]
        self._open: dict[bytes, int] = {}  # the place of each id's slot
        self._answered: list[int] = []  # slots whose answers were sent; they may not be written yet
        self._is_cut_in = False

    def began(self, key: bytes) -> None:
        """A request was read."""
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

    def cut_in(self, head: bytes | None) -> None:
        """What is there of a line whose end has not come; None: nothing."""
        if head is None and not self._is_cut_in:
            return
        self._is_cut_in = head is not None
        head, memory = (head or b"")[:_HEAD], self._memory
        memory[_HEAD_AT : _HEAD_AT + len(head)] = head
        memory[_LENGTH : _LENGTH + 2] = len(head).to_bytes(2, "big")
        memory[_CUT_IN] = self._is_cut_in

    def close(self) -> None:
        self._memory.close()

    def _release(self, place: int) -> None:
        self._memory[place] = 0
        self._free.append(place)


def read_ledger(descriptor: int) -> tuple[list[bytes], bytes | None, bool]:
    """After the room's death: the ids that have no answer; what was read of a line whose end has not come, or None;
    whether a line may have been written only in part. Then the memory is empty again."""
    with mmap.mmap(descriptor, SIZE) as memory:
        places = range(_SLOTS_AT, SIZE, _SLOT)
        keys = [memory[place + 1 : place + 1 + memory[place]] for place in places if memory[place]]
        length = min(int.from_bytes(memory[_LENGTH : _LENGTH + 2], "big"), _HEAD)
        head = memory[_HEAD_AT : _HEAD_AT + length] if memory[_CUT_IN] else None
        is_cut_out = bool(memory[_CUT_OUT])
        for place in places:
            if memory[place]:
                memory[place] = 0
        memory[:_HEAD_AT] = bytes(_HEAD_AT)
    return keys, head, is_cut_out
