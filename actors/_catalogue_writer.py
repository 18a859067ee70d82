"""The catalogue writer: the one actor that writes the catalogue's file.

The entries of one batch are one write. It runs in a worker thread, because it locks, reads, merges and writes a
file. A write that fails costs nothing but the cache: it is noted, and the entries stay here for the next try.
`Flush` is answered when everything sent before it has been written or has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio.to_thread
import attrs

from ..protocol.catalogue import ServerEntry
from ..protocol.events import Note, NoteCode
from ._backend import Backend
from ._core import CoreActor
from ._ref import Reply
from ._stream import EventStream
from .fork import inert_in_forks


class Store(Protocol):
    """Where entries are kept: the file of this user, or a test's memory."""

    blocks: bool  # its functions do I/O: call them in a thread

    def save(self, entries: Mapping[str, ServerEntry]) -> str | None:
        """Merge `entries` (by server) into what is there; what went wrong, in words. Raises nothing."""
        ...


class _Nowhere:
    blocks = False

    def save(self, entries: Mapping[str, ServerEntry]) -> str | None:
        return None


@attrs.frozen(eq=False)
class Save:
    entry: ServerEntry


@attrs.frozen(eq=False)
class Flush:
    reply: Reply[None]


WriterMessage = Save | Flush


class CatalogueWriter:
    def __init__(
        self,
        backend: Backend,
        events: EventStream,
        store: Store,
        on_saved: Callable[[], object] = lambda: None,
    ) -> None:

        self.core: CoreActor[WriterMessage] = CoreActor("catalogue writer", backend, self)
        self.ref = self.core.ref
        self._events = events
        self._store: Store = store
        self._on_saved = on_saved
        self._pending: dict[str, ServerEntry] = {}
        self._waiting: list[Reply[None]] = []
        inert_in_forks(self)

    def disown(self) -> None:
        """In a fork: the parent writes what is not written yet."""
        self._store = _Nowhere()

    def step(self, message: WriterMessage) -> None:
        match message:
            case Save(entry):
                self._pending[entry.server] = entry
            case Flush(reply):
                self._waiting.append(reply)

    async def after_batch(self) -> None:
        pending, self._pending = self._pending, {}
        problem = await self._write(pending) if pending else None
        if problem is not None:
            self._pending = pending  # for the next batch: no entry is taken while one is written
            self._events.emit(Note, code=NoteCode.CATALOGUE_FILE, words=problem)
        if pending:
            self._on_saved()
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply.send(None)

    def close(self, error: Exception) -> None:
        for reply in self._waiting:
            reply.fail(error)

    async def _write(self, pending: Mapping[str, ServerEntry]) -> str | None:
        if self._store.blocks:
            return await anyio.to_thread.run_sync(self._store.save, pending)
        return self._store.save(pending)
