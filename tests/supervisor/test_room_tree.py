"""The tree of a room: who is below whom, what holds each, and what time alone will do next."""

from __future__ import annotations

import re
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_virtual_time
from tests.support.rooms import open_room, settle

import greenroom.sync
from greenroom import CallError, TreeNode
from greenroom.actors.peer import LostReason
from greenroom.protocol.tree import TreeDeadline, above, tree_lines
from greenroom.testing.fake_servers import HANG, FakeServer

PER_SESSION = {"a": {"isolation": "per_session"}}


def walk(node: TreeNode) -> Iterator[TreeNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def find(tree: TreeNode, name: str) -> TreeNode:
    (found,) = (node for node in walk(tree) if node.name == name)
    return found


def deadline(node: TreeNode) -> tuple[str, float]:
    assert node.next is not None
    return node.next.what, node.next.seconds


@in_virtual_time
async def test_servers_stand_below_the_supervisor_and_sessions_below_their_server() -> None:
    slow = FakeServer(call_latency=HANG)
    async with open_room({"a": slow, "b": FakeServer()}, entries=PER_SESSION) as room:
        async with (
            room.session("alice") as alice,
            room.session("bob") as bob,
            anyio.create_task_group() as tasks,
        ):
            await room.call("b_echo")
            tasks.start_soon(alice.call, "a_echo")
            tasks.start_soon(alice.call, "a_echo")
            tasks.start_soon(bob.call, "a_echo")
            await settle()
            tree = room.tree()
            (supervisor,) = tree.children
            assert (tree.kind, tree.name, tree.state) == ("room", room.run_id, "open")
            assert [(each.name, each.kind, each.state) for each in supervisor.children] == [
                ("a", "server", "connected"),
                ("b", "server", "connected"),
            ]
            own, _ = supervisor.children
            assert [(each.name, each.kind, each.in_flight) for each in own.children] == [
                ("alice", "session", 2),
                ("bob", "session", 1),
            ]
            assert [own.in_flight, supervisor.in_flight, tree.in_flight] == [3, 3, 3]
            held = {each.name: (each.held, each.most) for each in supervisor.bounds}
            assert held["maxSessionConnections"] == (2, 100)
            assert held["maxConnections"] == (1, 20)
            tasks.cancel_scope.cancel()
        assert [each.children for each in room.tree().children[0].children] == [(), ()]


@in_virtual_time
async def test_the_next_deadline_is_the_first_that_comes() -> None:
    server = FakeServer(start_latency=3.0, call_latency=5.0)
    async with (
        open_room({"a": server}, idleTimeout=1, requestTimeoutMs=20_000, connectTimeoutMs=10_000) as room,
        anyio.create_task_group() as tasks,
    ):
        assert find(room.tree(), "a").next is None
        tasks.start_soon(room.call, "a_echo")
        await anyio.sleep(1)
        a = find(room.tree(), "a")
        assert (a.state, a.oldest_wait) == ("connecting", 1.0)
        assert deadline(a) == ("connect timeout", 9.0)
        await anyio.sleep(3)
        a = find(room.tree(), "a")
        assert (a.state, a.in_flight, a.oldest_wait) == ("connected", 1, None)
        assert deadline(a) == ("call timeout", 19.0)
        await anyio.sleep(5)
        assert deadline(find(room.tree(), "a")) == ("idle eviction", 59.0)
        await anyio.sleep(50)
        assert deadline(find(room.tree(), "a")) == ("idle eviction", 9.0)
        await anyio.sleep(10)
        a = find(room.tree(), "a")
        assert (a.state, a.next, a.incarnation) == ("cached", None, 2)


@in_virtual_time
async def test_a_server_that_drains_says_until_when() -> None:
    server = FakeServer(call_latency=HANG)
    async with (
        open_room({"a": server}, drainTimeoutMs=8_000) as room,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_ignoring, room.call, "a_echo")
        await settle()
        tasks.start_soon(room.drain, "a")
        await anyio.sleep(3)
        a = find(room.tree(), "a")
        assert (a.state, deadline(a)) == ("draining", ("drain over", 5.0))
        await anyio.sleep(6)
        assert (find(room.tree(), "a").state, find(room.tree(), "a").next) == ("down", None)


@in_virtual_time
async def test_a_server_that_failed_says_so_until_it_connects_as_the_status_does() -> None:
    server = FakeServer(refuse_start="no such program")
    async with open_room({"a": server, "b": FakeServer()}) as room:
        await _ignoring(room.call, "a_echo")
        (row,) = (each for each in room.status() if each.server == "a")
        assert row.failure is not None
        a = find(room.tree(), "a")
        assert (a.state, find(room.tree(), "b").state) == ("failed", "not-connected")
        assert str(a).startswith("a  failed")
        server.refuse_start = None
        await room.reconnect("a")
        assert find(room.tree(), "a").state == "connected"
        await room.drain("a")
        assert find(room.tree(), "a").state == "down"


async def _ignoring(call: object, tool: str) -> None:
    with pytest.raises(CallError):
        await call(tool)  # type: ignore[operator]


@in_virtual_time
async def test_a_breaker_says_when_it_half_opens_and_each_restart_counts() -> None:
    server = FakeServer()
    async with open_room({"a": server}, failureThreshold=3, cooldownMs=30_000, backoffJitter=0) as room:
        await room.call("a_echo")
        assert find(room.tree(), "a").restarts_left == 5
        seen: list[tuple[str | None, str | None]] = []
        for _ in range(3):
            server.crash()
            await settle()
            a = find(room.tree(), "a")
            seen.append((a.breaker, a.next.what if a.next is not None else None))
            if a.next is not None and a.next.what == "backoff over":
                await anyio.sleep(a.next.seconds)
            if len(seen) < 3:
                await room.call("a_echo")
        assert seen == [(None, None), ("open", "backoff over"), ("open", "half-open")]
        a = find(room.tree(), "a")
        assert a.restarts_left == 3
        assert a.next == TreeDeadline("half-open", 30.0)
        assert "3 restarts left" in str(a)
        await anyio.sleep(30)
        assert find(room.tree(), "a").breaker == "half-open"


@in_virtual_time
async def test_what_a_start_waits_for_and_how_long() -> None:
    server = FakeServer(call_latency=HANG)
    async with (
        open_room({"a": server, "b": FakeServer()}, maxConnections=1, acquireTimeoutMs=10_000) as room,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(room.call, "a_echo")
        await settle()
        tasks.start_soon(room.call, "b_echo")
        await anyio.sleep(4)
        b = find(room.tree(), "b")
        assert (b.waits_for, b.oldest_wait) == ("slot", 4.0)
        assert deadline(b) == ("slot wait over", 6.0)
        assert room.tree().oldest_wait == 4.0
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_a_sessions_loss_is_its_own() -> None:
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=1) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):
        await alice.call("a_echo")
        await bob.call("a_echo")
        first, _ = tuple(server.connections)
        first.lose(LostReason("exited with code 3", 3))
        await settle()
        tree = room.tree()
        assert find(tree, "alice").breaker == "open"
        assert (find(tree, "bob").breaker, find(tree, "bob").state) == (None, "connected")


@in_virtual_time
async def test_a_session_waits_for_its_servers_breaker_too() -> None:
    """What keeps any child from starting counts in the server's: a session that was well may not start again."""
    server = FakeServer()
    async with (
        open_room({"a": server}, entries=PER_SESSION, failureThreshold=1, cooldownMs=30_000) as room,
        room.session("alice") as alice,
        room.session("bob") as bob,
    ):
        await alice.call("a_echo")
        server.refuse_start = "no"
        with pytest.raises(CallError):
            await bob.call("a_echo")
        alices = find(room.tree(), "alice")
        assert (alices.state, alices.breaker) == ("connected", "open")
        assert alices.next == TreeDeadline("half-open", 30.0)
        await anyio.sleep(1.23456)
        assert deadline(find(room.tree(), "alice")) == ("half-open", 28.765)


def test_the_synchronous_door_has_it_too() -> None:
    with greenroom.sync.Room(open_room({"a": FakeServer()})) as room:
        room.call("a_echo")
        assert find(room.tree(), "a").state == "connected"


# ---- how it is shown -------------------------------------------------------------------------------------------------

LEAVES = st.builds(
    TreeNode,
    kind=st.sampled_from(["server", "session", "call"]),
    name=st.text(max_size=60),
    state=st.sampled_from(["idle", "connected", "draining", "down"]),
    in_flight=st.integers(0, 3),
    queued=st.integers(0, 3),
    oldest_wait=st.none() | st.floats(0, 1e6),
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.builds(
        above, st.just("server"), st.text(max_size=60), st.just("idle"), st.lists(below, max_size=4)
    ),
    max_leaves=12,
)


@given(TREES)
def test_each_node_is_one_line_and_sums_are_those_below(tree: TreeNode) -> None:
    nodes = [*walk(tree)]
    assert len(str(tree).split("\n")) == len(nodes)
    leaves = [node for node in nodes if not node.children]
    assert tree.in_flight == sum(node.in_flight for node in leaves)
    waits = [node.oldest_wait for node in leaves if node.oldest_wait is not None]
    assert tree.oldest_wait == max(waits, default=None)


def test_a_deadline_far_away_is_said_in_a_large_unit() -> None:
    said = [str(TreeDeadline("next try", seconds)) for seconds in (4.25, 42.0, 3_597.0, 9_000.0)]
    assert said == ["next try in 4.2 s", "next try in 42 s", "next try in 60 min", "next try in 2 h"]


@given(TREES)
def test_no_name_breaks_out_of_a_mermaid_label(tree: TreeNode) -> None:
    lines = tree.mermaid().split("\n")
    nodes = [
        line for line in lines if re.fullmatch(r'  n\d+\["[\w \-.,:/·#;]*(<br/>[\w \-.,:/·#;]*)?"\]', line)
    ]
    arrows = [line for line in lines if re.fullmatch(r"  n\d+ --> n\d+", line)]
    styles = [line for line in lines if re.fullmatch(r"  class(Def \w+ stroke:#\w+| [n\d,]+ \w+)", line)]
    assert len(nodes) == len([*walk(tree)]) == len(arrows) + 1
    assert len(lines) == 1 + len(nodes) + len(arrows) + len(styles)


def test_of_many_sessions_the_busy_ones_are_shown() -> None:
    idle = [TreeNode(kind="session", name=f"s{number}", state="connected") for number in range(30)]
    busy = TreeNode(kind="session", name="busy", state="connected", in_flight=1)
    lines = [*tree_lines(above("server", "a", "idle", [*idle, busy]), 5)]
    assert len(lines) == 1 + 5 + 1
    assert "busy" in lines[1]
    assert lines[-1] == "└─ and 26 more: greenroom tree --json"


@in_virtual_time
async def test_a_server_that_failed_shows_when_it_is_tried_again_as_the_status_does() -> None:
    async with open_room({"a": FakeServer(refuse_start="no")}, bootstrap=True) as room:
        await room.catalogued()
        await anyio.sleep(2.0)  # its circuit breaker would let it pass
        (row,) = room.status()
        deadline = find(room.tree(), "a").next
        assert deadline is not None
        assert (deadline.what, deadline.seconds) == ("next try", row.next_try)


@in_virtual_time
async def test_a_server_has_the_word_that_the_status_has_for_it() -> None:
    """Whoever reads both commands hears one word for one thing."""
    config = {"a": FakeServer(), "b": FakeServer(), "c": FakeServer(refuse_start="no such program")}
    async with open_room(config) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(_ignoring, room.call, "c_echo")
        await room.call("b_echo")

        def words() -> dict[str, str]:
            found = {name: find(room.tree(), name).state for name in config}
            assert found == {row.server: row.word for row in room.status()}
            return found

        assert words() == {"a": "not-connected", "b": "connected", "c": "failed"}
        await anyio.sleep(3_600)
        assert words() == {"a": "not-connected", "b": "cached", "c": "failed"}
        await room.drain("b")
        assert words()["b"] == "down"


@in_virtual_time
async def test_what_lists_are_read_from_is_called_so() -> None:
    server = FakeServer(start_latency=5.0)
    async with open_room({"a": server}, entries=PER_SESSION) as room:
        room.refresh("a")
        await anyio.sleep(1)
        lines = str(room.tree()).splitlines()
        assert any("its list reader  connecting" in line for line in lines), lines
        assert not any("catalogue" in line for line in [*lines, room.tree().mermaid()])
