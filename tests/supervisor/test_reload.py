"""Reload in a running room: the least that is needed, and nobody else notices."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support import in_real_time, in_virtual_time, run_virtual
from tests.support.gateway import alive, faulty, logged_pids
from tests.support.loops import on_one_loop
from tests.support.rooms import Outcomes, record_events, settle
from tests.support.teller import room_of, teller

from greenroom import ApprovalRequest, ConfigError, Greenroom, Verdict
from greenroom.config.files import open_config
from greenroom.config.parse import parse_config
from greenroom.errors import CallError, NeedsAuth, ServerDown, Unavailable, UnknownServer
from greenroom.events import BreakerDecision, BreakerMove, Note, NoteCode
from greenroom.gateway.exposures.direct import Direct
from greenroom.gateway.exposures.mcp_tool import McpTool, ask
from greenroom.protocol.events import Transition
from greenroom.protocol.lifecycle import Cause, State
from greenroom.supervisor.program_log import unlogged
from greenroom.supervisor.room import port_of
from greenroom.supervisor.servers import ServerList
from greenroom.testing.fake_servers import FakeServer, fake_connectors
from greenroom.testing.room_inside import RoomInside


def _config(settings: dict[str, Any] | None = None, **entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "mcpServers": {n: {"command": "fake", **e} for n, e in entries.items()},
        "settings": settings or {},
    }


def _room(servers: dict[str, FakeServer], config: dict[str, Any]) -> Greenroom:
    return Greenroom.open(config, cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False)


@in_virtual_time
async def test_a_dry_run_says_what_would_be_done_and_does_nothing() -> None:
    servers = {n: FakeServer() for n in "abc"}
    async with _room(servers, _config(a={}, b={})) as room:
        await room.call("a_echo")
        plan = await room.reload(_config(b={"args": ["x"]}, c={}), dry_run=True)

        assert str(plan) == "drain 2, start 2"
        assert [status.server for status in room.status()] == ["a", "b"]
        await room.call("a_echo")
        assert servers["a"].starts == 1


@on_one_loop
@in_real_time
async def test_t36_thousands_of_new_servers_are_defined_while_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one who is cancelled meanwhile leaves none of them."""
    turns, most, here, define = 0, 0, 0, ServerList.define
    new = _config(a={}, **{f"s{number}": {} for number in range(2_000)})

    def counted(self: ServerList, *args: Any) -> Any:
        nonlocal here, most
        here += 1
        most = max(most, here)
        return define(self, *args)

    async def count() -> None:
        nonlocal turns, here
        while True:
            turns, here = turns + 1, 0
            await anyio.lowlevel.checkpoint()

    async with _room({}, _config(a={})) as room, anyio.create_task_group() as tasks:
        monkeypatch.setattr(ServerList, "define", counted)
        tasks.start_soon(count)
        with anyio.CancelScope() as left:

            async def leave() -> None:
                while len(room.status()) < 500:
                    await anyio.lowlevel.checkpoint()
                left.cancel()

            tasks.start_soon(leave)
            await room.reload(new)
        assert left.cancelled_caught
        assert [status.server for status in room.status()] == ["a"]
        await room.reload(new)
        assert len(room.status()) == 2_001
        assert most <= 100, "defined in one turn"
        tasks.cancel_scope.cancel()


@on_one_loop
@in_real_time
async def test_t36_thousands_of_servers_are_removed_while_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And whoever is cancelled meanwhile leaves none of them."""
    most, here, remove = 0, 0, ServerList.remove
    old = _config(a={}, **{f"s{number}": {} for number in range(2_000)})

    def counted(self: ServerList, server: str) -> None:
        nonlocal here, most
        here += 1
        most = max(most, here)
        remove(self, server)

    async def count() -> None:
        nonlocal here
        while True:
            here = 0
            await anyio.lowlevel.checkpoint()

    async with _room({"a": FakeServer()}, old) as room, anyio.create_task_group() as tasks:
        await room.call("a_echo")
        monkeypatch.setattr(ServerList, "remove", counted)
        tasks.start_soon(count)
        with anyio.CancelScope() as left:

            async def leave() -> None:
                while len(RoomInside(room).servers) > 1_500:
                    await anyio.lowlevel.checkpoint()
                left.cancel()

            tasks.start_soon(leave)
            await room.reload(_config(a={}))
        assert left.cancelled_caught
        assert [status.server for status in room.status()] == ["a"]
        assert list(RoomInside(room).servers) == ["a"]
        await room.call("a_echo")
        assert 0 < most <= 100, "removed in one turn"
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_t27_unchanged_servers_notice_nothing_and_changed_ones_finish_their_calls_first() -> None:
    servers = {n: FakeServer() for n in "abc"}
    async with _room(servers, _config(a={}, b={}, c={})) as room, Outcomes() as calls:
        for name in "abc":
            await room.call(f"{name}_echo")
        servers["b"].call_latency = 3.0
        running = calls.start(room, "b_echo")
        await settle()

        plan = await room.reload(_config(a={}, b={"args": ["new"]}))
        assert (plan.keep, plan.replace, plan.remove) == (("a",), ("b",), ("c",))
        queued = calls.start(room, "b_echo")
        await anyio.sleep(10)

        assert running.outcome == queued.outcome == "{}"
        assert [servers[n].starts for n in "abc"] == [1, 2, 1]
        assert [status.server for status in room.status()] == ["a", "b"]
        assert servers["c"].live == 0
        with pytest.raises(UnknownServer):
            room.entry("c")


@in_virtual_time
async def test_a_call_between_the_removal_of_a_server_and_that_of_its_names_is_told_so() -> None:
    """The index is published a moment after the reload: until then it has a tool whose server is gone."""
    async with _room({"a": FakeServer(), "b": FakeServer()}, _config(a={"idleTimeout": 0.1}, b={})) as room:
        await room.call("a_echo")
        await anyio.sleep(10)
        assert room.status()[0].state is State.IDLE
        plan = await room.reload(_config(b={}), dry_run=True)
        config = open_config(_config(b={}))
        runtime = RoomInside(room).machinery
        for step in runtime.apply(config, plan, runtime.recall(config)):
            step()
        assert port_of(room).catalogue.index.get("a_echo") is not None
        answer = await ask(McpTool(port_of(room)), {"tool": "a_echo"})
        assert answer["_meta"]["greenroom/details"]["error"] == "server_not_found"


@in_virtual_time
async def test_a_program_reads_each_problem_of_its_configuration_once_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = {**_config(a={}), "setings": {}}, {**_config(a={}), "setings": {}, "profile": {}}
    async with _room({"a": FakeServer()}, first) as room:
        await room.reload(second)
        await room.reload(second)
    assert [(each.name, each.levelname) for each in caplog.records] == [("greenroom", "WARNING")] * 2
    assert ['"settings"' in each.getMessage() for each in caplog.records] == [True, False]
    caplog.clear()
    with unlogged():
        async with _room({"a": FakeServer()}, first):
            pass
    assert caplog.records == [], "a command says them itself"


@in_virtual_time
async def test_a_programs_log_has_bugs_and_lost_readers_and_no_known_secret(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "correct-horse-battery-17"
    monkeypatch.setenv("API_TOKEN", secret)
    async with _room({"a": FakeServer()}, {**_config(a={}), secret: {}}) as room:
        note = port_of(room).services.note
        note("for whoever asks", "a")
        note(f"ours, with {secret}", "a", code=NoteCode.BUG)
        note("no more events", code=NoteCode.READER)
    problem, *others = [record.getMessage() for record in caplog.records]
    assert ("unknown key" in problem, secret in problem) == (True, False), problem
    assert others == ["a: ours, with ***", "no more events"]


@in_virtual_time
async def test_a_policy_is_applied_live() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config(a={"idleTimeout": 60})) as room:
        await room.call("a_echo")
        events = record_events(room, Transition)
        plan = await room.reload(_config(a={"idleTimeout": 0.5}))
        assert plan.live == ("a",)
        assert room.status()[0].state is State.CONNECTED

        await anyio.sleep(31)

        assert [e.cause for e in events if e.after is State.DRAINING] == [Cause.IDLE_TIMEOUT]
        assert servers["a"].starts == 1


@in_virtual_time
async def test_settings_are_applied_live() -> None:
    servers = {n: FakeServer() for n in "abc"}
    async with _room(servers, _config({"maxConnections": 3}, a={}, b={}, c={})) as room:
        for name in "abc":
            await room.call(f"{name}_echo")
        await room.reload(_config({"maxConnections": 1}, a={}, b={}, c={}))
        await room.call("b_echo")
        await settle()
        assert sum(server.live for server in servers.values()) == 1


@in_virtual_time
async def test_the_settings_restart_policy_reaches_the_servers() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config({"restartPolicy": "never"}, a={})) as room:
        await room.call("a_echo")
        servers["a"].crash()
        await settle()
        with pytest.raises(ServerDown):
            await room.call("a_echo")


@in_virtual_time
async def test_disabling_stops_a_server_and_enabling_brings_it_back() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        await room.reload(_config(a={"disabled": True}))
        assert servers["a"].live == 0
        with pytest.raises(ServerDown, match="disabled"):
            await room.call("echo", server="a")
        await room.reload(_config(a={}))
        await room.call("a_echo")
        assert servers["a"].starts == 2


@in_virtual_time
async def test_a_new_eager_server_connects_and_one_that_is_configured_again_comes_back() -> None:
    servers = {"a": FakeServer(stop_latency=5.0), "b": FakeServer()}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        await room.reload(_config(b={"lifecycle": "eager"}))
        await room.reload(_config(a={}, b={"lifecycle": "eager"}))  # while the old one is still going
        await anyio.sleep(10)
        assert servers["b"].live == 1
        await room.call("a_echo")
        assert (servers["a"].starts, servers["a"].most_live) == (2, 1)


@in_virtual_time
async def test_a_broken_configuration_changes_nothing(tmp_path: Path) -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        broken = tmp_path / "mcp.json"
        broken.write_text('{"mcpServers": [')
        with pytest.raises(ConfigError):
            await room.reload(broken)
        await room.call("a_echo")
        assert servers["a"].starts == 1


@in_virtual_time
async def test_a_server_whose_entry_breaks_finishes_its_calls_and_stops() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    async with _room(servers, _config(a={}, b={})) as room, Outcomes() as calls:
        await room.connect("b")
        await room.connect("a")
        servers["a"].call_latency = 3.0
        running = calls.start(room, "a_echo", {"n": 1})
        await settle()
        broken = _config(b={})
        broken["mcpServers"]["a"] = {}
        await room.reload(broken)
        with pytest.raises(ServerDown, match=r'Server "a" cannot be used: .*has neither command'):
            await room.call("a_echo", server="a")
        await anyio.sleep(5.0)
        assert running.outcome == '{"n": 1}'
        assert (servers["a"].live, servers["b"].live) == (0, 1)


@in_virtual_time
async def test_what_a_reload_brings_is_discovered_as_on_a_first_run() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    connectors = fake_connectors(servers)
    async with Greenroom.open(
        _config(a={}), cache_path=":memory:", connectors=connectors, bootstrap=True
    ) as room:
        await room.catalogued()
        await room.reload(_config(a={}, b={}))
        await room.catalogued()
        assert [target.name for target in room.tools()] == ["a_echo", "b_echo"]
        assert servers["a"].starts == 1


@in_real_time
async def test_real_processes_survive_a_reload_that_does_not_concern_them(tmp_path: Path) -> None:
    def config(**extra: Any) -> dict[str, Any]:
        entries = {"a": faulty(tmp_path, "a"), "b": {**faulty(tmp_path, "b"), **extra}}
        return {"mcpServers": entries, "settings": {"bootstrap": False}}

    async with Greenroom.open(config(), cache_path=":memory:") as room:
        before = {name: int((await room.call(f"{name}_pid")).text) for name in "ab"}
        plan = await room.reload(config(env={"NEW": "1"}))
        assert (plan.keep, plan.replace) == (("a",), ("b",))
        after = {name: int((await room.call(f"{name}_pid")).text) for name in "ab"}
        assert after["a"] == before["a"]
        assert after["b"] != before["b"]
        assert alive({before["b"]}) == set()
    assert alive(logged_pids(tmp_path)) == set()
    assert os.getpid() not in logged_pids(tmp_path)


@on_one_loop
@in_real_time
async def test_the_child_of_a_session_that_is_open_is_started_anew_as_the_new_entry_says() -> None:
    before = {"t": teller(isolation="per_session", env={"TOKEN": "before"})}
    after = {"t": teller(isolation="per_session", env={"TOKEN": "after"})}
    async with room_of(**before) as room, room.session("ann") as ann:
        assert json.loads((await ann.call("t_tell")).text)[0] == "before"
        await room.reload({"mcpServers": after})
        assert json.loads((await ann.call("t_tell")).text)[0] == "after"


@in_virtual_time
async def test_a_session_whose_child_needed_a_login_is_served_by_the_new_entry() -> None:
    server = FakeServer(start_error=NeedsAuth("log in", server="a"))
    entry = {"isolation": "per_session"}
    async with _room({"a": server}, _config(a=entry)) as room, room.session("ann") as ann:
        with pytest.raises(NeedsAuth):
            await ann.connect("a")
        server.start_error = None
        await room.reload(_config(a={**entry, "args": ["other"]}))
        assert (await ann.call("a_echo")).text


@in_virtual_time
async def test_one_slot_is_left_for_the_others_also_while_one_that_was_kept_still_stops() -> None:
    servers = {n: FakeServer(stop_latency=3.0) for n in "abc"}
    keep, slots = {"lifecycle": "keep-alive"}, {"maxConnections": 2}
    async with _room(servers, _config(slots, a=keep, c={})) as room:
        await room.ready()
        await room.reload(_config(slots, b=keep, c={}))
        inside = RoomInside(room)

        def kept() -> list[str]:
            return [str(actor.address) for actor in inside.actors() if inside.is_kept(actor)]

        assert (kept(), inside.free_for_all) == (["a"], 1)
        await anyio.sleep(5)
        assert (kept(), inside.free_for_all) == (["b"], 1)


@in_virtual_time
async def test_slots_set_aside_follow_the_configuration() -> None:
    """Keep-alive comes and goes, live and by removal: what was set aside is given back."""
    servers = {n: FakeServer() for n in "abc"}
    keep = {"lifecycle": "keep-alive"}
    slots = {"maxConnections": 2}
    async with _room(servers, _config(slots, a=keep, b={}, c={})) as room:
        pool = RoomInside(room)
        await room.ready()
        assert pool.free_for_all == 1
        await room.reload(_config(slots, a={}, b={}, c={}))
        assert pool.free_for_all == 2
        await room.reload(_config(slots, a={}, b=keep, c={}))
        await room.ready()
        await anyio.sleep(1)
        assert (pool.free_for_all, servers["b"].live) == (1, 1)
        await room.reload(_config(slots, a={}, c={}))
        await anyio.sleep(1)
        assert pool.free_for_all == 2
        for name in "ac":
            await room.call(f"{name}_echo")
        assert [servers[n].live for n in "abc"] == [1, 0, 1]


@in_virtual_time
async def test_a_server_that_is_kept_alive_and_disabled_takes_no_slot_from_others() -> None:
    servers = {n: FakeServer() for n in "abc"}
    config = _config({"maxConnections": 2}, a={"lifecycle": "keep-alive", "disabled": True}, b={}, c={})
    async with _room(servers, config) as room:
        for name in "bc":
            await room.call(f"{name}_echo")
        assert [servers[n].live for n in "abc"] == [0, 1, 1]


@in_virtual_time
async def test_the_slot_of_a_removed_server_goes_to_whoever_waits() -> None:
    """A slot was set aside for it; the one who waits for another is not told to wait for more than its end."""
    servers = {n: FakeServer(stop_latency=1.0) for n in "abc"}
    servers["b"].call_latency = 20.0
    config = _config({"maxConnections": 2}, a={"lifecycle": "keep-alive"}, b={}, c={})
    async with _room(servers, config) as room, Outcomes() as calls:
        await room.ready()
        busy = calls.start(room, "b_echo")
        await settle()
        waits = calls.start(room, "c_echo")
        await settle()
        assert room.status()[2].waiting_for == "slot"
        await room.reload(_config({"maxConnections": 2}, b={}, c={}))
        await anyio.sleep(2.0)
        assert (waits.outcome is None, busy.outcome is None) == (False, True)


@in_virtual_time
async def test_a_server_that_becomes_keep_alive_is_looked_after_from_then_on() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        await room.reload(_config(a={"lifecycle": "keep-alive"}))
        servers["a"].deaf = True
        await anyio.sleep(121)
        assert servers["a"].starts > 1


@in_virtual_time
async def test_a_shorter_idle_time_of_the_settings_applies_to_who_idles_already() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        await room.reload(_config({"idleTimeout": 0.5}, a={}))
        await anyio.sleep(31)
        assert servers["a"].live == 0


@in_virtual_time
async def test_what_only_the_minimum_kept_is_let_go_when_there_is_no_minimum_any_more() -> None:
    servers = {"a": FakeServer()}
    async with _room(servers, _config({"minConnections": 1, "idleTimeout": 1}, a={})) as room:
        await room.call("a_echo")
        await anyio.sleep(1_000)
        assert servers["a"].live == 1
        await room.reload(_config({"minConnections": 0, "idleTimeout": 1}, a={}))
        await anyio.sleep(61)
        assert servers["a"].live == 0


@in_virtual_time
async def test_a_longer_idle_time_applies_to_what_only_the_minimum_kept() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    async with _room(servers, _config({"minConnections": 1, "idleTimeout": 1}, a={}, b={})) as room:
        await room.call("a_echo")
        await anyio.sleep(1_000)
        assert servers["a"].live == 1
        await room.reload(_config({"minConnections": 1, "idleTimeout": 60}, a={}, b={}))
        await room.call("b_echo")
        await anyio.sleep(1_000)
        assert (servers["a"].live, servers["b"].live) == (1, 1), "its hour is not over"
        await anyio.sleep(3_600)
        assert servers["a"].live + servers["b"].live == 1


@in_virtual_time
async def test_a_server_enabled_again_while_it_stops_is_not_down() -> None:
    servers = {"a": FakeServer(stop_latency=3.0)}
    async with _room(servers, _config(a={})) as room:
        await room.call("a_echo")
        await room.reload(_config(a={"disabled": True}))
        await room.reload(_config(a={}))
        await anyio.sleep(5)
        await room.call("a_echo")
        assert (servers["a"].starts, servers["a"].most_live) == (2, 1)


@in_virtual_time
async def test_what_was_known_of_another_definition_is_known_no_more() -> None:
    servers = {"a": FakeServer(), "b": FakeServer()}
    async with _room(servers, _config(a={}, b={})) as room:
        for name in servers:
            await room.connect(name)
        await room.settled()
        assert [target.name for target in room.tools()] == ["a_echo", "b_echo"]
        await room.drain("a")
        await room.reload(_config(a={"args": ["other"]}, b={"idleTimeout": 7}))
        await room.settled()
        assert room.entry("a") is None
        assert [target.name for target in room.tools()] == ["b_echo"]


@in_virtual_time
async def test_what_a_door_lists_during_a_reload_is_what_one_configuration_has() -> None:
    """The room has the new configuration before the index that follows from it is published."""
    servers = {n: FakeServer() for n in "ab"}
    async with _room(servers, _config(a={}, b={})) as room, anyio.create_task_group() as tasks:
        for name in "ab":
            await room.call(f"{name}_echo")
        await room.settled()
        seen: list[set[str]] = []

        async def look() -> None:
            while True:
                door = Direct(port_of(room))  # without what it found before
                listing = door.listing("tools/list")
                assert listing is not None
                found = {tool["name"] for tool in listing["tools"]}
                if not seen or seen[-1] != found:
                    seen.append(found)
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(look)
        await anyio.lowlevel.checkpoint()
        await room.reload(_config({"directTools": False}, a={}))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

        both = {f"{name}_{tool}" for name in "ab" for tool in ("echo",)}
        assert seen[0] >= both
        assert seen[1:] == [set()]


@in_virtual_time
async def test_a_server_comes_back_by_the_very_configuration_that_it_was_removed_from() -> None:
    """While what is left of it still ends: its record has that definition already, and is a removed one."""
    servers = {n: FakeServer() for n in "ab"}
    both = parse_config(_config(a={}, b={}))
    room = Greenroom.open(both, cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False)
    async with room, Outcomes() as calls:
        await room.call("b_echo")
        servers["b"].call_latency = 3.0
        calls.start(room, "b_echo")
        await settle()
        await room.reload(_config(a={}))
        await room.reload(both)
        await anyio.sleep(10.0)
        servers["b"].call_latency = 0.0
        await room.connect("b")
        assert [status.server for status in room.status()] == ["a", "b"]
        await room.call("b_echo")


@in_virtual_time
async def test_a_reload_is_told_with_its_plan_and_the_problems_that_are_new() -> None:
    servers = {n: FakeServer() for n in "ab"}
    async with _room(servers, _config(a={"odd": 1})) as room:
        notes = record_events(room, Note)
        for config in (_config(a={"odd": 1}, b={"strange": 1}), _config(a={"odd": 1}, b={"strange": 1})):
            await room.reload(config)
        told = [note.words for note in notes if note.code is NoteCode.CONFIGURATION]
        assert len(told) == 2
        assert told[0].startswith("configuration reloaded: keep 1, start 1. Problems: ")
        assert ("strange" in told[0], "odd" in told[0]) == (True, False), "that one was told before"
        assert told[1] == "configuration reloaded: keep 2"


@in_virtual_time
async def test_what_was_allowed_of_a_server_that_was_removed_is_asked_about_when_another_has_its_name() -> (
    None
):
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> Verdict:
        asked.append(request.tool)
        return Verdict.SESSION

    servers = {n: FakeServer() for n in "ab"}
    both = _config({"approve": "all"}, a={}, b={})
    room = Greenroom.open(
        both,
        cache_path=":memory:",
        connectors=fake_connectors(servers),
        bootstrap=False,
        on_approval=approve,
    )
    async with room:
        for name in "abab":
            await room.call(f"{name}_echo")
        assert asked == ["a_echo", "b_echo"]
        await room.reload(_config({"approve": "all"}, b={}))
        await settle()
        await room.reload(_config({"approve": "all"}, a={"args": ["another"]}, b={}))
        for name in "ab":
            await room.call(f"{name}_echo")
        assert asked == ["a_echo", "b_echo", "a_echo"]


@in_virtual_time
async def test_a_server_that_could_not_be_used_and_is_no_longer_configured_is_gone() -> None:
    server = FakeServer()
    room = _room({"a": server, "b": server}, _config(a={}, b={"command": 7}))
    async with room:
        assert [row.server for row in room.status()] == ["a", "b"]
        await room.reload(_config(a={}))
        assert [row.server for row in room.status()] == ["a"]
        with pytest.raises(UnknownServer):
            await room.connect("b")
        await room.reload(_config(a={}, b={}))
        await room.call("b_echo", server="b")


@in_virtual_time
async def test_a_reload_while_the_room_closes_starts_nothing() -> None:
    slow, eager, kept = FakeServer(call_latency=5.0), FakeServer(), FakeServer()
    room = _room({"slow": slow, "eager": eager, "kept": kept}, _config(slow={}, kept={}))
    new = _config(slow={}, eager={"lifecycle": "eager"}, kept={"lifecycle": "keep-alive"})
    calls = Outcomes()
    async with anyio.create_task_group() as tasks:
        await room.start(tasks)
        async with calls:
            await room.connect("slow")
            calls.start(room, "slow_echo")
            await anyio.sleep(1)
            tasks.start_soon(room.aclose)
            await anyio.sleep(1)
            await room.reload(new)
    assert [each.outcome for each in calls.all] == ["{}"]
    assert (eager.starts, kept.starts) == (0, 0)


@pytest.mark.parametrize("isolation", ["persistent", "per_session"])
@in_virtual_time
async def test_a_corrected_entry_is_tried_at_once_and_another_policy_waits_on(isolation: str) -> None:
    """It waited until the circuit breaker of the old entry had cooled down (issue 38, 5.5)."""
    server = FakeServer(refuse_start="out of order")
    entry, settings = {"isolation": isolation}, {"failureThreshold": 1, "cooldownMs": 300_000}
    async with _room({"a": server}, _config(settings, a=entry)) as room, room.session("ann") as ann:
        with pytest.raises(CallError):
            await ann.call("a_echo")
        server.refuse_start = None
        await room.reload(_config(settings, a={**entry, "idleTimeout": 77}))
        with pytest.raises(Unavailable):
            await ann.call("a_echo")

        moves = record_events(room, BreakerDecision)
        await room.reload(_config(settings, a={**entry, "args": ["right"]}))
        began = anyio.current_time()
        await ann.call("a_echo")
        assert anyio.current_time() - began < 5.0
        said = [each.move for each in moves if each.is_reset]
        assert set(said) == {BreakerMove.REDEFINED}
        assert server.starts == 2


@in_virtual_time
async def test_what_waits_behind_the_breaker_of_an_entry_is_let_go_when_it_is_corrected() -> None:
    server = FakeServer(refuse_start="out of order")
    settings = {"failureThreshold": 1, "cooldownMs": 3_600_000}
    async with _room({"a": server}, _config(settings, a={"lifecycle": "keep-alive"})) as room:
        await anyio.sleep(60.0)
        tried, server.refuse_start = server.starts, None
        await room.reload(_config(settings, a={"lifecycle": "keep-alive", "args": ["right"]}))
        await anyio.sleep(5.0)
        assert (server.live, server.starts) == (1, tried + 1)


@in_virtual_time
async def test_a_corrected_entry_is_discovered_at_once() -> None:
    server = FakeServer(refuse_start="out of order")
    servers, settings = {"a": server}, {"failureThreshold": 1, "cooldownMs": 3_600_000}
    connectors = fake_connectors(servers)
    async with Greenroom.open(_config(settings, a={}), cache_path=":memory:", connectors=connectors) as room:
        await room.catalogued()
        server.refuse_start = None
        await room.reload(_config(settings, a={"args": ["right"]}))
        await room.catalogued()
        assert [tool.name for tool in room.tools()] == ["a_echo"]
        assert anyio.current_time() < 60.0


@in_virtual_time
async def test_restarts_of_the_entry_before_are_forgotten_and_that_is_told() -> None:
    """Its calls are answered between its crashes, so its circuit breaker is closed all the time, and only the count of
    its restarts says how often it was lost."""
    server = FakeServer()
    settings = {"restartIntensity": 2, "restartPeriodMs": 3_600_000}
    async with _room({"a": server}, _config(settings, a={})) as room:
        moves = record_events(room, BreakerDecision)
        for args in ([], ["other"]):
            await room.reload(_config(settings, a={"args": args} if args else {}))
            for _ in range(2):
                await room.call("a_echo")
                server.crash()
                await anyio.sleep(2.0)
            await room.call("a_echo")
            await anyio.sleep(100.0)
            await room.call("a_echo")
        assert BreakerMove.REDEFINED in [each.move for each in moves]
        assert server.starts >= 5


@on_one_loop
def test_a_reload_does_not_cost_more_for_a_server_when_many_have_problems(backend: str) -> None:
    """Counted, not timed: how many functions a reload calls."""
    counts: list[int] = []

    def counted(_frame: Any, what: str, _argument: object) -> None:
        counts[-1] += what == "call"

    async def main(servers: int) -> None:
        def config(version: str) -> dict[str, Any]:
            entry = {"command": "fake", "args": [version], "noSuchKey": True}
            return {"mcpServers": {f"s{number}": entry for number in range(servers)}}

        async with Greenroom.open(config("one"), cache_path=":memory:", bootstrap=False) as room:
            assert len(room.config.problems) == servers
            counts.append(0)
            sys.setprofile(counted)
            await room.reload(config("two"))
            sys.setprofile(None)

    for servers in (40, 40, 360):  # the first makes what all share
        run_virtual(backend, lambda servers=servers: main(servers))
    assert counts[2] < 11 * counts[1]
