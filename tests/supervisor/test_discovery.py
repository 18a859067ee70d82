"""First queue: so many at once, the rest as names, and whoever is called passes ahead of them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_virtual_time, run
from tests.support.loops import on_one_loop
from tests.support.rooms import open_room, settle

from greenroom import CallError, Greenroom, UsageError
from greenroom.actors.server import ServerActor
from greenroom.protocol.lifecycle import State
from greenroom.supervisor.discovery import AT_ONCE, DiscoveryQueue
from greenroom.supervisor.servers import ServerRecord
from greenroom.testing.fake_servers import HANG, FakeServer, fake_connectors, tool
from greenroom.testing.room_inside import RoomInside


@in_virtual_time
async def test_t36_a_first_call_passes_ahead_of_all_discoveries() -> None:
    slow = {f"s{number}": FakeServer(initialize_latency=20.0) for number in range(50)}
    servers = {
        **slow,
        "called": FakeServer(initialize_latency=0.1),
        "later": FakeServer(initialize_latency=0.1),
    }
    async with open_room(servers, bootstrap=True, maxConnections=5, startPermits=5) as room:
        await anyio.sleep(1.0)
        assert sum(server.live for server in servers.values()) == 4, "a fifth is for those who are called"
        for name in ("called", "later"):
            start = anyio.current_time()
            await room.call(f"{name}_echo", {})
            assert anyio.current_time() - start < 0.5
        await room.catalogued()
        assert [server.starts for server in servers.values()] == [1] * 52


@in_virtual_time
async def test_a_server_that_has_listed_what_it_has_stays_for_who_calls_it_and_keeps_nobody_from_a_slot() -> (
    None
):
    servers = {f"s{number}": FakeServer(initialize_latency=0.1) for number in range(8)}
    async with open_room(servers, bootstrap=True, maxConnections=2) as room:
        await room.catalogued()
        assert anyio.current_time() < 5.0, "each of them took the place of one that was idle"
        name = next(name for name, server in servers.items() if server.live)
        await room.call(f"{name}_echo", {})
        assert servers[name].starts == 1, "who waited for its list calls it"
        start = anyio.current_time()
        await room.call(next(f"{name}_echo" for name, server in servers.items() if not server.live), {})
        assert anyio.current_time() - start < 1.0


@on_one_loop
@in_virtual_time
async def test_t36_a_call_for_a_server_that_waits_for_discovery_takes_it_out_of_the_queue() -> None:
    servers = {f"s{number}": FakeServer(initialize_latency=3.0) for number in range(100)}
    async with open_room(servers, bootstrap=True, startPermits=2, maxConnections=4) as room:
        for name in ("s40", "s99"):  # one has an actor that waits for its turn, one is only a name yet
            start = anyio.current_time()
            await room.call(f"{name}_echo", {})
            assert anyio.current_time() - start == pytest.approx(3.0, abs=0.2)
        assert len(RoomInside(room).actors()) <= AT_ONCE + 5  # those that were discovered by now
        await room.catalogued()
        assert [server.starts for server in servers.values()] == [1] * 100


@in_virtual_time
async def test_t36_who_was_called_meanwhile_is_not_discovered_when_its_turn_comes() -> None:
    """Not even when it is idle again by then."""
    slow = {f"s{number:02}": FakeServer(initialize_latency=20.0) for number in range(AT_ONCE)}
    servers = {**slow, "z": FakeServer()}
    async with open_room(servers, entries={"z": {"idleTimeout": 0.05}}, bootstrap=True) as room:
        await anyio.sleep(1.0)
        await room.call("z_echo", {})
        await anyio.sleep(5.0)
        assert servers["z"].live == 0
        await room.catalogued()
        assert servers["z"].starts == 1


@in_virtual_time
async def test_a_server_that_is_to_be_started_only_when_somebody_asks_is_tried_once() -> None:
    """A command that waited for a slow server started one that had failed three times."""
    servers = {"failed": FakeServer(refuse_start="out of order"), "slow": FakeServer(initialize_latency=29.0)}
    async with open_room(servers, bootstrap=False) as room:
        room.refresh()
        await room.catalogued()
        await anyio.sleep(3600.0)
        assert servers["failed"].starts == 1
        room.refresh("failed")
        await room.catalogued()
        assert servers["failed"].starts == 2


@pytest.mark.parametrize("isolation", ["persistent", "per_session", "per_call"])
@in_virtual_time
async def test_who_asks_for_all_that_is_unknown_waits_for_no_circuit_breaker(isolation: str) -> None:
    policy: dict[str, Any] = {"failureThreshold": 1, "cooldownMs": 600_000}
    server = FakeServer(refuse_start="out of order")
    entries = {"a": {"isolation": isolation}}
    async with open_room({"a": server}, entries=entries, bootstrap=True, **policy) as room:
        await room.catalogued()
        (row,) = room.status()
        assert (row.retry_in or 0.0) > 500.0
        server.refuse_start = None
        start = anyio.current_time()
        assert room.refresh() == ["a"]
        await room.catalogued()
        assert anyio.current_time() - start < 2.0
        assert (server.starts, len(room.tools())) == (2, 1)


@pytest.mark.parametrize("isolation", ["persistent", "per_session"])
@in_virtual_time
async def test_a_discovery_that_fails_waits_longer_each_time_and_is_tried_when_somebody_asks(
    isolation: str,
) -> None:
    """It was started every minute, for ever, and nobody had called it (issue 38, 5.5)."""
    server = FakeServer(refuse_start="out of order")
    async with open_room({"a": server}, entries={"a": {"isolation": isolation}}, bootstrap=True) as room:
        await anyio.sleep(44 * 60)
        tried = server.starts
        assert 3 <= tried <= 8
        await anyio.sleep(5 * 3600)
        assert tried + 4 <= server.starts <= tried + 6  # once an hour from then on

        tried, server.refuse_start = server.starts, None
        with suppress(CallError, UsageError):
            await room.connect("a")
        assert (server.starts, len(room.tools())) == (tried + 1, 1)
        await anyio.sleep(7200)
        assert server.starts == tried + 1


@pytest.mark.parametrize("entry", [{}, {"isolation": "per_session"}, {"lifecycle": "keep-alive"}])
@in_virtual_time
async def test_a_server_that_needs_long_becomes_known_in_the_end(entry: dict[str, Any]) -> None:
    """Nobody waits for a discovery, so it may be more patient than a call, the more so the more often it has failed."""
    server = FakeServer(initialize_latency=100.0)
    async with open_room({"a": server}, entries={"a": entry}, bootstrap=True) as room:
        await anyio.sleep(20 * 60)
        assert len(room.tools()) == 1
        assert 2 <= server.starts <= 6


@in_virtual_time
async def test_a_try_that_has_more_time_than_the_setting_says_so() -> None:
    """It named a time that nobody had set, and told to set that."""
    server = FakeServer(initialize_latency=HANG)
    async with open_room({"a": server}, bootstrap=True, connectTimeoutMs=2_000) as room:
        await anyio.sleep(2.5)
        (row,) = room.status()
        assert "within 2 s; if it needs longer" in (row.failure or "")
        await anyio.sleep(10.0)
        (row,) = room.status()
        assert 'within 4 s; "connectTimeoutMs" is 2 s; ' in (row.failure or "")


@pytest.mark.parametrize("installs", [False, True])
@pytest.mark.parametrize("named", [(), ("a",)])
@pytest.mark.parametrize("state", [State.CONNECTING, State.IDLE])
@in_virtual_time
async def test_who_refreshes_a_server_that_hangs_is_told_within_the_configured_time(
    state: State, named: tuple[str, ...], installs: bool
) -> None:
    """Behind a gateway that had tried it some times, `refresh` waited for minutes."""
    server = FakeServer(initialize_latency=HANG)
    entries = {"a": {"command": "npx"}} if installs else {}
    async with open_room({"a": server}, entries=entries, bootstrap=True) as room:
        while server.starts < 4 or room.status()[0].state is not state:
            await anyio.sleep(1.0)
        if state is State.IDLE:
            await anyio.sleep(60.0)  # its circuit breaker refuses nothing any more
        began = anyio.current_time()
        assert room.refresh(*named) == ["a"]
        await room.catalogued()
        assert anyio.current_time() - began < 35.0
        (row,) = room.status()
        assert "30 s; if it needs longer" in (row.failure or "")


@pytest.mark.parametrize("how", ["removed and added", "another entry"])
@in_virtual_time
async def test_the_patience_of_a_discovery_is_of_its_definition(how: str) -> None:
    """It went on with that of the definition before, so a server that hangs was called so minutes later."""
    server = FakeServer(initialize_latency=1e9)
    connectors, settings = fake_connectors({"a": server}), {"connectTimeoutMs": 10_000}
    old = {"mcpServers": {"a": {"command": "fake"}}, "settings": settings}
    new = {"mcpServers": {"a": {"command": "fake", "args": ["new"]}}, "settings": settings}
    async with Greenroom.open(old, cache_path=":memory:", connectors=connectors) as room:
        await anyio.sleep(2 * 3600)
        assert server.starts >= 5
        if how == "removed and added":
            await room.reload({"mcpServers": {}, "settings": settings})
            await anyio.sleep(600)
            new = old
        await room.reload(new)
        began = anyio.current_time()
        await room.catalogued()
        assert anyio.current_time() - began < 20.0


@in_virtual_time
async def test_a_server_that_hangs_has_bounded_patience_and_a_call_of_it_its_own_time() -> None:
    server = FakeServer(initialize_latency=1e9)
    async with open_room({"a": server}, bootstrap=True) as room:
        await anyio.sleep(12 * 3600)
        assert server.starts >= 10, "no try takes more than minutes of each hour"
        start = anyio.current_time()
        with pytest.raises(CallError):
            await room.call("a_echo", {})
        assert anyio.current_time() - start <= 60


@pytest.mark.parametrize("what", ["command", "file", "entry"])
@in_virtual_time
async def test_what_no_second_try_can_mend_is_tried_again_when_something_has_changed(
    what: str, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text("")
    command = tmp_path / "tool" if what == "command" else Path("fake")
    entry = {"command": str(command), "args": [str(script)]}
    server = FakeServer(refuse_start="exited with code 1; stderr: npm error code E404")
    config = {"mcpServers": {"a": entry, "b": {"command": "fake"}}}
    connectors = fake_connectors({"a": server, "b": FakeServer()})
    async with Greenroom.open(config, cache_path=":memory:", connectors=connectors) as room:
        await anyio.sleep(2 * 3600)
        assert server.starts == 1
        others = {**config, "settings": {"idleTimeout": 5}}
        await room.reload(others)
        await anyio.sleep(600)
        assert server.starts == 1

        server.refuse_start = None
        match what:
            case "command":
                command.write_text("")
                command.chmod(0o755)
            case "file":
                script.write_text("import json")
            case _:
                await room.reload({"mcpServers": {**config["mcpServers"], "a": {**entry, "args": ["other"]}}})
        await anyio.sleep(30)
        assert server.starts == 2
        assert {tool.server for tool in room.tools()} == {"a", "b"}


@pytest.mark.parametrize("asked", ["unknown", "known"])
@in_virtual_time
async def test_a_server_that_is_only_asked_for_its_lists_by_name_is_let_go_when_it_has_given_them(
    asked: str,
) -> None:
    """It stayed connected for its whole idle time; one that was called meanwhile still does."""
    servers = {name: FakeServer() for name in ("a", "b", "called")}
    async with open_room(servers, bootstrap=asked == "known") as room:
        if asked == "known":
            await room.catalogued()
            await anyio.sleep(60.0)
        for name in servers:
            room.refresh(name)
        await room.catalogued()
        assert {target.server for target in room.tools()} == {*servers}
        await anyio.sleep(1.0)
        await room.call("called_echo", {"text": "x"})
        await anyio.sleep(60.0)
        assert [server.live for server in servers.values()] == [0, 0, 1]


@in_virtual_time
async def test_to_refresh_a_server_by_name_brings_it_back() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        await room.connect("a")
        await room.drain("a")
        assert room.refresh() == [], "it is known, and down"
        server.tools = [tool("other")]
        assert room.refresh("a") == ["a"]
        await room.catalogued()
        assert [target.name for target in room.tools()] == ["a_other"]
        assert server.starts == 2


@pytest.mark.parametrize("entry", [{}, {"isolation": "per_session"}, {"lifecycle": "keep-alive"}])
@in_virtual_time
async def test_a_server_that_is_asked_for_while_its_failed_try_is_cleaned_up_is_tried_again(
    entry: dict[str, Any],
) -> None:
    """Nothing was started, so `refresh --all` right after one that had failed never ended."""
    server = FakeServer(initialize_latency=HANG, stop_latency=3.0)
    async with open_room({"a": server}, entries={"a": entry}, connectTimeoutMs=2_000) as room:
        assert room.refresh("a") == ["a"]
        with anyio.fail_after(120.0):
            for tries in (1, 2, 3):
                while all(row.state is not State.DRAINING for row in room.status()):
                    await anyio.sleep(0.1)
                assert server.starts == tries
                assert room.refresh("a") == ["a"]
                while server.starts == tries:
                    await anyio.sleep(0.1)
            started = anyio.current_time()
            await room.catalogued()
        assert anyio.current_time() > started + 2.0, "the try that was asked for is waited for"


@pytest.mark.parametrize("asked", ["nobody asked", "changed", "refreshed", "soon too old"])
def test_lists_that_a_server_gives_once_more_are_written_only_if_they_are_news(
    backend: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path, between = FakeServer(), tmp_path / "catalogue.json", 0.0
    config = {"mcpServers": {"a": {"command": "fake"}}, "settings": {"cacheMaxAgeDays": 0.01}}
    true_time, later = time.time, 0.006 * 86_400

    async def main() -> None:
        nonlocal between
        connectors = fake_connectors({"a": server})
        async with Greenroom.open(config, cache_path=path, connectors=connectors, bootstrap=False) as room:
            await room.connect("a")
            await room.drain("a")
            if asked == "soon too old":
                monkeypatch.setattr(time, "time", lambda: true_time() + later)
            between = time.time()
            server.tools = [tool("other")] if asked == "changed" else server.tools
            if asked == "refreshed":
                room.refresh("a")
            await room.connect("a")
            await room.catalogued()
            assert [target.name for target in room.tools()] == [f"a_{each['name']}" for each in server.tools]
        assert server.starts == 2

    run(backend, main)
    (entry,) = json.loads(path.read_bytes())["entries"].values()
    assert (entry["fetched_at"] > between) is (asked != "nobody asked")


@in_virtual_time
async def test_to_refresh_a_connected_server_that_lists_no_more_has_it_started_anew() -> None:
    server = FakeServer()
    async with open_room({"a": server}, requestTimeoutMs=5_000) as room:
        await room.connect("a")
        server.list_latency = HANG
        assert room.refresh("a") == ["a"]
        await anyio.sleep(1.0)
        server.list_latency = 0.0  # for the next who lists: this one never answers
        await anyio.sleep(40.0)
        assert server.starts == 2
        await room.call("a_echo", {})


@on_one_loop
@in_virtual_time
async def test_t36_who_has_its_turn_is_found_without_a_look_at_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = {f"s{number}": FakeServer(initialize_latency=0.1) for number in range(200)}
    looks, is_discovery = 0, ServerRecord.is_discovery

    def counted(self: ServerRecord, actor: ServerActor) -> bool:
        nonlocal looks
        looks += 1
        return is_discovery(self, actor)

    monkeypatch.setattr(ServerRecord, "is_discovery", counted)
    async with open_room(servers, bootstrap=True, startPermits=10, maxConnections=300) as room:
        await room.catalogued()
        assert looks < 100 * len(servers), looks


@given(
    st.lists(st.tuples(st.sampled_from(["ask", "tried"]), st.integers(0, 120)), max_size=300), st.booleans()
)
def test_each_is_begun_once_in_order_and_never_too_many(steps: list[tuple[str, int]], at_once: bool) -> None:
    begun: list[str] = []
    under_way: set[str] = set()

    def begin(server: str) -> bool:
        if server.endswith("7"):
            return False  # it cannot be asked any more
        if server not in under_way:
            begun.append(server)
            under_way.add(server)
        if at_once and server.endswith("3"):
            tried(server)  # it was known already
        return True

    def tried(server: str) -> None:
        under_way.discard(server)
        queue.tried(server)

    queue, asked = DiscoveryQueue(begin), list[str]()
    for what, number in steps:
        server = str(number)
        if what == "ask":
            if server not in under_way and not server.endswith("7"):
                asked.append(server)
            queue.ask([server])
        else:
            tried(server)
        assert len(under_way) <= AT_ONCE
        assert set(begun) <= set(asked)
    while under_way:
        tried(next(iter(under_way)))
    assert not queue


def test_thousands_that_end_as_they_begin_are_no_recursion() -> None:
    queue: DiscoveryQueue = DiscoveryQueue(lambda server: bool(queue.tried(server)) or True)
    queue.ask(str(number) for number in range(20_000))
    assert not queue


@in_virtual_time
async def test_who_waits_for_discoveries_is_let_go_when_they_are_closed() -> None:
    queue = DiscoveryQueue(lambda _: True)
    queue.ask(["a", "b"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(queue.wait))
        await anyio.sleep(1.0)
        queue.tried("a")
        await anyio.sleep(1.0)
        assert queue
        queue.close()
    await queue.wait()


def test_as_many_as_may_be_are_begun_and_one_that_cannot_be_takes_nobodys_place() -> None:
    begun: list[str] = []

    def begin(server: str) -> bool:
        begun.append(server)
        return server != "s3"

    queue = DiscoveryQueue(begin)
    queue.ask(f"s{number}" for number in range(AT_ONCE + 10))
    assert begun == [f"s{number}" for number in range(AT_ONCE + 1)], "one of them is not under way"
    for server in begun[:AT_ONCE]:
        queue.tried(server)
    assert begun == [f"s{number}" for number in range(AT_ONCE + 10)]
    for server in begun:
        queue.tried(server)
    assert not queue


@in_virtual_time
async def test_who_waits_for_discoveries_sleeps_until_the_last_one_was_tried() -> None:
    looks: list[int] = []

    class Watched(DiscoveryQueue):
        def __bool__(self) -> bool:
            looks.append(1)
            return super().__bool__()

    queue, over = Watched(lambda _: True), list[float]()

    async def wait() -> None:
        await queue.wait()
        over.append(anyio.current_time())

    queue.ask(["a"])
    queue.tried("a")
    await queue.wait()
    queue.ask(["b"])  # more to do, after all was done
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        looks.clear()
        await settle(100)
        assert len(looks) < 5
        queue.ask(["c"])
        queue.tried("b")
        await anyio.sleep(1.0)
        assert over == []
        queue.tried("c")
        queue.ask(["d"])  # before the waiter had its turn
        await anyio.sleep(1.0)
        assert over == []
        queue.tried("d")
    assert over == [2.0]
