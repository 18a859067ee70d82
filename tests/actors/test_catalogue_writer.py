"""The catalogue writer: a batch is one write, a write that fails costs nothing but the cache."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest
from tests.support import in_real_time, in_virtual_time

from greenroom.actors.backend import current_backend
from greenroom.actors.catalogue_writer import CatalogueWriter, Flush, Save
from greenroom.actors.event_stream import EventStream
from greenroom.actors.mailbox import Reply
from greenroom.catalogue.entries import Failures, ServerEntry
from greenroom.events import Kind


@attrs.define
class Store:
    """Keeps what is saved; refuses while `problem` is set."""

    blocks: bool = False
    problem: str | None = None
    saves: list[dict[str, int]] = attrs.field(factory=list[dict[str, int]])
    threads: set[int] = attrs.field(factory=set[int])

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        self.threads.add(threading.get_ident())
        self.saves.append({name: entry.revision for name, entry in entries.items()})
        return self.problem


@asynccontextmanager
async def writer_at_work(store: Store) -> AsyncGenerator[tuple[CatalogueWriter, list[str]]]:
    loop_backend, notes = current_backend(), list[str]()
    events = EventStream(loop_backend)
    events.listen(lambda event: notes.append(event.detail), [Kind.NOTE])
    writer = CatalogueWriter(loop_backend, events, store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.core.run)
        yield writer, notes
        tasks.cancel_scope.cancel()


def save(writer: CatalogueWriter, server: str, revision: int) -> None:
    writer.ref.tell_system(Save(ServerEntry(server, "hash", revision=revision)))


@in_virtual_time
async def test_a_batch_is_one_write_of_the_newest_of_each() -> None:
    store = Store()
    async with writer_at_work(store) as (writer, _):
        for revision in range(10):
            save(writer, "a", revision)
            save(writer, "b", revision)
        await writer.ref.ask(Flush)
    assert store.saves == [{"a": 9, "b": 9}]


@in_virtual_time
async def test_a_failed_write_is_noted_flushed_and_tried_again_with_the_next() -> None:
    store = Store(problem="the disk is full")
    async with writer_at_work(store) as (writer, notes):
        save(writer, "a", 1)
        await writer.ref.ask(Flush)
        assert notes == ["the disk is full"]
        store.problem = None
        save(writer, "b", 2)
        await writer.ref.ask(Flush)
        save(writer, "c", 3)
        await writer.ref.ask(Flush)
    assert store.saves == [{"a": 1}, {"a": 1, "b": 2}, {"c": 3}]


@in_virtual_time
async def test_what_is_newer_is_not_undone_by_the_retry_of_what_failed() -> None:
    store = Store(problem="locked")
    async with writer_at_work(store) as (writer, _):
        save(writer, "a", 1)
        await writer.ref.ask(Flush)
        save(writer, "a", 2)
        await writer.ref.ask(Flush)
    assert store.saves == [{"a": 1}, {"a": 2}]


@in_real_time
async def test_a_store_that_blocks_is_called_in_a_thread() -> None:
    store = Store(blocks=True)
    async with writer_at_work(store) as (writer, _):
        save(writer, "a", 1)
        await writer.ref.ask(Flush)
    assert store.saves == [{"a": 1}]
    assert threading.get_ident() not in store.threads


@pytest.mark.parametrize("problem", [None, "the disk is full"])
@in_virtual_time
async def test_after_each_try_to_write_and_only_then_it_is_said_once(problem: str | None) -> None:
    """Others look then for what another room has written meanwhile."""
    store, said = Store(problem=problem), list[int]()
    loop_backend = current_backend()
    events = EventStream(loop_backend)
    writer = CatalogueWriter(loop_backend, events, store, lambda: said.append(len(store.saves)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.core.run)
        await writer.ref.ask(Flush)
        assert said == [], "there was nothing to write"
        for revision in (1, 2):
            save(writer, "a", revision)
            save(writer, "b", revision)
            await writer.ref.ask(Flush)
        tasks.cancel_scope.cancel()
    assert said == [1, 2]


@in_virtual_time
async def test_an_empty_flush_is_answered_and_writes_nothing() -> None:
    store = Store()
    async with writer_at_work(store) as (writer, _):
        await writer.ref.ask(Flush, timeout=5)
    assert store.saves == []


@in_virtual_time
async def test_who_waits_for_a_flush_when_the_writer_closes_is_told() -> None:
    loop_backend = current_backend()
    writer = CatalogueWriter(loop_backend, EventStream(loop_backend), Store())
    waiting, queued = Reply[None](loop_backend), Reply[None](loop_backend)
    writer.step(Flush(waiting))
    writer.ref.tell_system(Flush(queued))
    writer.core.close(ZeroDivisionError("closed"))
    for reply in (waiting, queued):
        with pytest.raises(ZeroDivisionError, match="closed"), anyio.fail_after(1):
            await reply.wait()


@in_virtual_time
async def test_in_a_fork_nothing_is_written() -> None:
    store = Store()
    async with writer_at_work(store) as (writer, notes):
        writer.disown()
        save(writer, "a", 1)
        await writer.ref.ask(Flush)
        assert notes == []
    assert store.saves == []
