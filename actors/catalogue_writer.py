"""The catalogue writer: the one actor that writes the catalogue's file, and what belongs beside it.

The entries of one batch are one write. It runs in a worker thread, because it locks, reads, merges and writes a
file. A write that fails costs nothing but the cache: it is noted, and the entries stay here for the next try. A server
that fails again and again for the same reason is written once a minute, and at a flush.
`Flush` is answered when everything sent before it has been written or has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import anyio.to_thread
import msgspec

from ..catalogue.entries import Failures, LastFailure, ServerEntry
from ..catalogue.store import NoStore, Store
from ..protocol.events import Note, NoteCode
from .backend import Backend
from .event_stream import EventStream
from .fork import inert_in_forks
from .mailbox import CoreActor, Ref, Reply

_AGAIN: Final = 60.0  # seconds until the same failure is written again


class Save(msgspec.Struct, frozen=True, eq=False):
    entry: ServerEntry


class SaveFailure(msgspec.Struct, frozen=True, eq=False):
    """Save how a server has just failed; None: it works again."""

    server: str
    definition_hash: str
    failure: LastFailure | None


class Flush(msgspec.Struct, frozen=True, eq=False):
    reply: Reply[None]


class WriteOrder(msgspec.Struct, frozen=True, eq=False):
    """Let `write()` save something else, in a thread. It must not raise."""

    write: Callable[[], None]


WriterMessage = Save | SaveFailure | Flush | WriteOrder


class CatalogueWriter:
    def __init__(
        self,
        backend: Backend,
        events: EventStream,
        store: Store,
        on_saved: Callable[[], object] = lambda: None,
    ) -> None:

        self.core: CoreActor[WriterMessage] = CoreActor("catalogue writer", backend, self)
        self.ref: Ref[WriterMessage] = self.core.ref
        self._events = events
        self._store: Store = store
        self._on_saved = on_saved
        self._pending: dict[str, ServerEntry] = {}
        self._failures: dict[tuple[str, str], LastFailure | None] = {}
        self._written: dict[tuple[str, str], LastFailure | None] = {}  # of those, what the file has
        self._writes: list[Callable[[], None]] = []
        self._waiting: list[Reply[None]] = []
        inert_in_forks(self)

    def disown(self) -> None:
        """In a fork: the parent writes what is not written yet."""
        self._store = NoStore()
        self._writes.clear()

    def step(self, message: WriterMessage) -> None:
        match message:
            case Save(entry):
                self._pending[entry.server] = entry
            case SaveFailure(server, definition_hash, failure):
                self._failures[server, definition_hash] = failure
            case Flush(reply):
                self._waiting.append(reply)
            case WriteOrder(write):
                self._writes.append(write)

    async def after_batch(self) -> None:
        pending, self._pending = self._pending, {}
        is_due = pending or any(self._is_news(of, one) for of, one in self._failures.items())
        failures: Failures = {}
        if is_due or self._waiting:
            failures, self._failures = self._failures, {}
        problem = await self._write(pending, failures) if pending or failures else None
        if problem is not None:
            # For the next batch: no message is taken while one is written.
            self._pending, self._failures = pending, dict(failures)
            self._events.emit(Note, code=NoteCode.CATALOGUE_FILE, words=problem)
        else:
            self._written.update(failures)
        if pending:
            self._on_saved()
        writes, self._writes = self._writes, []
        for write in writes:
            await anyio.to_thread.run_sync(write)
        waiting, self._waiting = self._waiting, []
        for reply in waiting:
            reply.send(None)

    def close(self, error: Exception) -> None:
        for reply in self._waiting:
            reply.fail(error)

    def _is_news(self, of: tuple[str, str], failure: LastFailure | None) -> bool:
        known = self._written.get(of)
        if failure is None or known is None:
            return True
        return failure.why != known.why or failure.at - known.at >= _AGAIN

    async def _write(self, pending: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        if self._store.blocks:
            return await anyio.to_thread.run_sync(self._store.save, pending, failures)
        return self._store.save(pending, failures)
