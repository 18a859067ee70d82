"""The vectors of all tools that were told of, and which of them are nearest to a query.

A vector is kept as one byte a number, beside the catalogue (`catalogue.vectors`), under a digest of the text that it
was made of, with the model's digests in the head. Another model, a damaged file or another form is as good as none.
Making one takes twenty milliseconds, so those of thousands of tools take minutes, in a thread that gives way to all
others. Until nearly all are made nothing is near to a query: those that happen to be first would pass the others by.

It imports numpy; see `encoder`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .encoder import Encoder
from .meaning_model import model_folder
from .vector_file import VectorFile, digest_of

LEAST: Final = 0.2  # the cosine from which on two texts have something to do with each other
_LEVELS: Final = 127  # of a number of a vector
_AT_ONCE: Final = 4_096  # vectors that are compared in one step
_ENOUGH: Final = 0.95  # of the texts have vectors
_SAVED_EVERY: Final = 15.0  # seconds
_NICE: Final = 10

Bytes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]


class ToolVectors:
    """`file`: where vectors are kept; None: nowhere."""

    def __init__(self, encoder: Encoder, file: VectorFile | None) -> None:
        self._encoder = encoder
        self._file = file
        self._kept = {} if file is None else file.load()
        self._lock = threading.Lock()  # on the next three, of which `work` is another thread
        self._used: dict[bytes, bytes] = {}  # since the file was written
        self._rows: list[Bytes] = []
        self._numbers: list[int] = []
        self._told = 0  # texts
        self._matrix: Bytes = np.empty((0, encoder.width), np.int8)
        self._lengths: Floats = np.empty(0, np.float32)
        self._to_make: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def learn(self, first: int, texts: Sequence[str]) -> None:
        """Recall the vectors of these texts, which have the numbers from `first` on. `work` makes those that are not
        kept."""
        self._told = first + len(texts)
        for number, text in enumerate(texts, first):
            kept = self._kept.get(digest := digest_of(text))
            if kept is None:
                self._to_make.put((number, text))
            else:
                self._add(number, digest, kept)

    def work(self) -> None:
        """Make what is to be made, and keep it; in a thread of its own. Never returns."""
        _give_way()
        saved = time.monotonic()
        while True:
            with suppress(queue.Empty):
                self.make(*self._to_make.get(timeout=1.0 if self._used else None))
                if time.monotonic() - saved < _SAVED_EVERY:
                    continue
            self.save()
            saved = time.monotonic()

    def make_all(self) -> None:
        """Make what is to be made now."""
        with suppress(queue.Empty):
            while True:
                self.make(*self._to_make.get_nowait())

    def make(self, number: int, text: str) -> None:
        """Make the vector of one text."""
        vector = self._encoder.encode(text)
        row: Bytes = np.round(vector * (_LEVELS / float(np.abs(vector).max()))).astype(np.int8)
        self._add(number, digest_of(text), row.tobytes())

    def save(self) -> None:
        """Write what was used since the last time."""
        with self._lock:
            used, self._used = self._used, {}
        if self._file is not None and used:
            self._file.save(used, time.time())

    def nearest(self, query: str, most: int) -> list[int]:
        """The numbers of the texts that are nearest to the query, at most so many, the nearest first. None while many
        have no vector."""
        self._take_new()
        if len(self._matrix) < _ENOUGH * self._told or not self._told:
            return []
        asked = self._encoder.encode(query)
        parts = [part.astype(np.float32) @ asked for part in _parts_of(self._matrix)]
        near = np.concatenate([np.empty(0, np.float32), *parts]) / self._lengths
        order = np.argsort(-near, kind="stable")[:most]
        return [self._numbers[row] for row in order if near[row] >= LEAST]

    def _add(self, number: int, digest: bytes, vector: bytes) -> None:
        with self._lock:
            self._rows.append(np.frombuffer(vector, np.int8))
            self._numbers.append(number)
            self._used[digest] = vector

    def _take_new(self) -> None:
        """Add the new vectors to the matrix, which is one piece of memory."""
        with self._lock:
            rows, self._rows = self._rows, []
        if rows:
            new = np.array(rows)
            lengths = [np.linalg.norm(part.astype(np.float32), axis=1) for part in _parts_of(new)]
            self._matrix = np.concatenate([self._matrix, new])
            self._lengths = np.concatenate([self._lengths, *lengths])


def opened(model: str | bool, catalogue: Path | None, max_age: float) -> ToolVectors:
    """With the model that the configuration names, and the vectors beside this catalogue. Raises `Unusable`."""
    encoder = Encoder(model_folder(model), is_published=model is True)
    if catalogue is None:
        return ToolVectors(encoder, None)
    place = catalogue.with_name(f"{catalogue.name.removesuffix('.json')}.vectors")
    return ToolVectors(encoder, VectorFile(place, encoder.model, encoder.width, max_age=max_age))


def _parts_of(matrix: Bytes) -> list[Bytes]:
    return [matrix[at : at + _AT_ONCE] for at in range(0, len(matrix), _AT_ONCE)]


def _give_way() -> None:
    """Let this thread run only where nobody else wants to (Linux; elsewhere it is like any other)."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
