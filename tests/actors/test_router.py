"""The router: what it learns, what it publishes, whom it tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support import in_virtual_time, run_virtual
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room

from greenroom.actors.backend import current_backend
from greenroom.actors.event_stream import EventStream
from greenroom.actors.mailbox import Reply
from greenroom.actors.router import DefinedServers, IndexRequest, LearnedEntry, Router
from greenroom.catalogue.entries import DefinitionPins, ServerEntry
from greenroom.config.model import PrefixMode, ServerDefinition, Settings
from greenroom.events import Kind
from greenroom.protocol.events import NoteCode
from greenroom.testing.fake_servers import FakeServer, tool
from greenroom.testing.room_inside import RoomInside


def entry(server: str, *names: str, revision: int = 1, **more: Any) -> ServerEntry:
    return ServerEntry(server, "hash", tools=tuple(tool(name) for name in names), revision=revision, **more)


class Bench:
    """A router at work, what it said had changed, and the catalogue events."""

    def __init__(self, servers: Mapping[str, ServerDefinition]) -> None:
        loop_backend = current_backend()
        self.events = EventStream(loop_backend)
        self.changed: list[ServerEntry] = []
        self.announced: list[str] = []
        self.events.listen(lambda event: self.announced.append(event.detail), [Kind.CATALOGUE])
        self.router = Router(loop_backend, self.events, servers, {}, Settings(), self.changed.append)

    async def learn(self, *entries: ServerEntry) -> None:
        for one in entries:
            self.router.ref.tell(LearnedEntry(one))
        await self.router.ref.ask(IndexRequest, timeout=10)

    def names(self) -> list[str]:
        return [target.name for target in self.router.index.tools()]


def definitions(*names: str) -> dict[str, ServerDefinition]:
    return {name: ServerDefinition(name, command="x") for name in names}


@asynccontextmanager
async def router_at_work() -> AsyncGenerator[Bench]:
    bench = Bench(definitions("a", "b"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.router.core.run)
        yield bench
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_what_is_learned_is_in_the_published_index_after_a_sync() -> None:
    async with router_at_work() as bench:
        before = bench.router.index
        await bench.learn(entry("a", "one"), entry("b", "two"))
        assert bench.names() == ["a_one", "b_two"]
        assert before.tools() == (), "a published index was changed"


@in_virtual_time
async def test_an_older_answer_never_overwrites_a_newer_one() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "new", revision=5), entry("a", "old", revision=4))
        assert bench.names() == ["a_new"]
        assert [one.revision for one in bench.changed] == [5]


@in_virtual_time
async def test_t24_the_same_again_is_kept_and_announced_to_nobody() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "one", revision=1))
        index = bench.router.index
        await bench.learn(entry("a", "one", revision=2, protocol_version="2026-07-28"))
        assert bench.announced == ["a"]
        assert bench.router.index is index
        known = bench.router.entry("a")
        assert known is not None
        assert known.protocol_version == "2026-07-28"
        assert len(bench.changed) == 2, "the cache keeps what is newer, also when it says the same"


@in_virtual_time
async def test_a_burst_costs_one_index() -> None:
    async with router_at_work() as bench:
        seen = {id(bench.router.index)}
        for n in range(50):
            bench.router.ref.tell(LearnedEntry(entry("a", f"t{n}", revision=n)))
        await bench.router.ref.ask(IndexRequest)
        seen.add(id(bench.router.index))
        assert len(seen) == 2
        assert bench.names() == ["a_t49"]


@in_virtual_time
async def test_a_server_nobody_configured_is_not_learned() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("stranger", "one"))
        assert (bench.names(), bench.announced, bench.changed) == ([], [], [])


@pytest.mark.parametrize("faulty", [0, 1, 10, 11, 25])
@in_virtual_time
async def test_the_log_is_told_what_clients_would_refuse_and_of_many_how_many_more(faulty: int) -> None:
    async with router_at_work() as bench:
        told: list[tuple[str, str]] = []

        def take(event: Any) -> None:
            assert event.code is NoteCode.REFUSED_BY_CLIENTS
            told.append((event.address.server, event.words))

        bench.events.listen(take, [Kind.NOTE])
        tools = tuple({"name": f"t{n:02}", "inputSchema": 7} for n in range(faulty))
        await bench.learn(ServerEntry("a", "hash", tools=(*tools, tool("fine")), revision=1))
        assert {server for server, _ in told} <= {"a"}
        words = [words for _, words in told]
        assert all(f"t{n:02}" in said for n, said in enumerate(words[:10]))
        assert all(said.startswith("clients would refuse ") for said in words)
        assert words[10:] == (
            [f"clients would refuse {faulty - 10} more; its status names them"] if faulty > 10 else []
        )
        assert len(words[:10]) == min(faulty, 10)


@in_virtual_time
async def test_new_definitions_make_unknown_what_does_not_fit_them() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "one"), entry("b", "two"))
        kept = bench.router.entry("b")
        assert kept is not None
        bench.router.ref.tell(DefinedServers(definitions("b", "c"), {"b": kept}, Settings()))
        await bench.router.ref.ask(IndexRequest)
        assert bench.names() == ["b_two"]
        assert bench.router.entry("a") is None
        index = bench.router.index
        await bench.router.ref.ask(IndexRequest)
        assert bench.router.index is index, "an index is made anew only for what is new"


@in_virtual_time
async def test_new_settings_name_what_is_known_anew_and_of_one_revision_the_reload_counts() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "one"))
        told = entry("a", "one", "two")
        plain = Settings(tool_prefix=PrefixMode.NONE)
        bench.router.ref.tell(DefinedServers(definitions("a"), {"a": told}, plain))
        await bench.router.ref.ask(IndexRequest)
        assert bench.names() == ["one", "two"]
        assert bench.router.entry("a") is told
        await bench.learn(entry("a", "three", revision=2))
        assert bench.names() == ["three"], "the settings stay"


@in_virtual_time
async def test_a_batch_is_compared_with_what_was_known_before_it() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "one"), entry("a", "one", revision=2))
        assert bench.announced == ["a"], "nothing was known"
        await bench.learn(entry("a", "two", revision=3), entry("a", "one", revision=4))
        assert bench.announced == ["a"], "it is as it was"
        await bench.learn(entry("a", "two", revision=5), entry("a", "two", revision=6))
        assert bench.announced == ["a", "a"]


@in_virtual_time
async def test_a_reload_that_looked_before_a_server_spoke_does_not_forget_what_it_said() -> None:
    async with router_at_work() as bench:
        old, new = (
            replace(entry("a", name), revision=number) for number, name in enumerate(["old", "new"], 1)
        )
        await bench.learn(new)
        bench.router.ref.tell(DefinedServers(definitions("a"), {"a": old}, Settings()))
        await bench.router.ref.ask(IndexRequest)
        assert bench.router.entry("a") is new
        redefined = replace(old, definition_hash="another")
        bench.router.ref.tell(DefinedServers(definitions("a"), {"a": redefined}, Settings()))
        await bench.router.ref.ask(IndexRequest)
        assert bench.router.entry("a") is redefined


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.text(min_size=1, max_size=80)},
            optional={"description": ODD, "inputSchema": ODD, "annotations": ODD, "title": ODD, "_meta": ODD},
        ),
        max_size=4,
    )
)
def test_nothing_a_server_says_of_itself_breaks_the_router(tools: list[dict[str, Any]]) -> None:
    async def body() -> None:
        async with router_at_work() as bench:
            with anyio.fail_after(PATIENCE):
                await bench.learn(
                    ServerEntry("a", "hash", tools=tuple(tools), resources=tuple(tools), revision=1)
                )
            for target in bench.router.index.tools():
                assert bench.router.index.get(target.name) is target

    run_virtual("trio", body)


@pytest.mark.parametrize("changes", [1, 5])
@in_virtual_time
async def test_t24_a_changed_list_is_read_again_once_and_told_once(changes: int) -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        announced = list[str]()
        RoomInside(room).events.listen(lambda event: announced.append(event.detail), [Kind.CATALOGUE])
        server.tools = [tool("other")]
        for _ in range(changes):
            server.announce_tools()
        await anyio.sleep(1.0)
        assert [target.name for target in room.tools()] == ["a_other"]
        assert announced == ["a"]
        server.announce_tools()
        await anyio.sleep(1.0)
        assert announced == ["a"], "nothing had changed"


@in_virtual_time
async def test_of_one_revision_the_later_answer_counts() -> None:
    """What was read from the cache has none of this room's: it is 0, as often as it is read."""
    async with router_at_work() as bench:
        await bench.learn(entry("a", "cached", revision=0))
        await bench.learn(entry("a", "anew", revision=0))
        assert bench.names() == ["a_anew"]
        assert bench.announced == ["a", "a"]


@in_virtual_time
async def test_nothing_is_learned_of_who_is_not_configured() -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("stranger", "tool"))
        assert (bench.names(), bench.changed, bench.announced) == ([], [], [])
        assert bench.router.entry("stranger") is None


@pytest.mark.parametrize(
    "more",
    [
        {"resources": ({"uri": "x:/"},)},
        {"templates": ({"uriTemplate": "x:/{a}"},)},
        {"prompts": ({"name": "p"},)},
        {"instructions": "Be kind."},
        {"resources": ()},
        {"templates": ()},
        {"prompts": ()},
        {"problems": ("prompts/list: cut after 2 pages",)},
        {"pinned": DefinitionPins(changed={"t": ("description",)})},
    ],
)
@in_virtual_time
async def test_whatever_a_reader_could_see_is_announced(more: dict[str, Any]) -> None:
    async with router_at_work() as bench:
        await bench.learn(entry("a", "t"))
        await bench.learn(entry("a", "t", revision=2, **more))
        assert bench.announced == ["a", "a"]


@in_virtual_time
async def test_who_waits_for_the_index_when_the_router_closes_is_told() -> None:
    router = Bench(definitions("a")).router
    waiting, queued = Reply[Any](router.core.backend), Reply[Any](router.core.backend)
    router.step(IndexRequest(waiting))
    router.ref.tell_system(IndexRequest(queued))
    router.core.close(ZeroDivisionError("closed"))
    for reply in (waiting, queued):
        with pytest.raises(ZeroDivisionError, match="closed"), anyio.fail_after(1):
            await reply.wait()
