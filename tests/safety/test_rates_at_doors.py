"""Limits and the loop guard where calls are made: embedded, through each door, in code, over HTTP."""

from __future__ import annotations

import contextlib
import gc
import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.gateway.test_conversations import asking_room, call, echo, talking
from tests.gateway.test_meta import details, text, use
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import AskingServer
from tests.support.http_door import http_door
from tests.support.loops import on_asyncio
from tests.support.rooms import open_room, teach

from greenroom import ApprovalRequest, ConfigError, Greenroom, Verdict
from greenroom.config.model import Config
from greenroom.config.parse import parse_config
from greenroom.errors import CallError, RateLimited, RepeatedCall
from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.gateway.explain import reasons
from greenroom.gateway.next_steps import Commands
from greenroom.protocol.errors import Reach
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

EXPOSED = pytest.mark.parametrize("expose", ["direct", "proxy"])
TOOLS = [tool("echo"), tool("other"), tool("get_job_status", "The status of a job")]


async def refused(room: Any, name: str = "a_echo", **arguments: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await room.call(name, arguments)
    return caught.value


def room_of(entry: Mapping[str, Any], tools: Any = TOOLS, **settings: Any) -> Greenroom:
    return open_room({"a": FakeServer(tools)}, entries={"a": entry}, **settings)


def server_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a failed call says of itself, at either door."""
    meta = answer["result"]["_meta"] if "result" in answer else {"greenroom/error": answer["error"]["data"]}
    return dict(meta.get("greenroom/details") or meta["greenroom/error"])


@in_virtual_time
async def test_a_call_over_the_limit_was_not_sent_and_passes_when_it_says() -> None:
    server = FakeServer(TOOLS)
    limits = {"a_*": "2/min"}
    async with open_room({"a": server}, limits=limits) as room:
        await teach(room, "a", TOOLS)
        await room.call("a_echo", {"n": 1})
        await room.call("a_other", {})
        error = await refused(room)
        assert isinstance(error, RateLimited)
        assert (error.code, error.reach, error.http_status) == ("rate_limited", Reach.NOT_SENT, 429)
        assert error.limit == 'settings.limits["a_*"]: 2/min'
        assert error.retry_in == pytest.approx(30.0, abs=0.1)
        assert "Retry in 30" in error.message
        await anyio.sleep(error.retry_in)
        await room.call("a_echo", {})
        await refused(room)
    assert room.drain_report is not None
    assert room.drain_report.refusals == {"rate_limited": 2}
    assert room.drain_report.completed == 3


@pytest.mark.parametrize(
    ("per", "passes"),
    [
        ("", ["ann a_echo"]),
        (" per session", ["ann a_echo", "ben a_echo"]),
        (" per tool", ["ann a_echo", "ann a_other", "ann b_echo"]),
        (" per server", ["ann a_echo", "ann b_echo"]),
        (" per session and server", ["ann a_echo", "ann b_echo", "ben a_echo"]),
    ],
)
@in_virtual_time
async def test_a_limit_counts_for_each_of_what_it_names(per: str, passes: list[str]) -> None:
    servers = {"a": FakeServer(TOOLS), "b": FakeServer(TOOLS)}
    async with open_room(servers, limits={"*": f"1/h{per}"}) as room:
        for name in servers:
            await teach(room, name, TOOLS)
        async with room.session("ann") as ann, room.session("ben") as ben:
            passed = list[str]()
            for who, session in (("ann", ann), ("ben", ben)):
                for name in ("a_echo", "a_other", "b_echo"):
                    try:
                        await session.call(name, {})
                        passed.append(f"{who} {name}")
                    except RateLimited:
                        pass
    assert set(passes) <= set(passed)
    assert len(passed) == {"": 1, " per session": 2, " per tool": 3, " per server": 2}.get(per, 4)


@EXPOSED
@in_virtual_time
async def test_each_door_answers_with_the_limit_and_when_to_try_again(expose: str) -> None:
    entry = {"limits": {"echo": "1/min per session"}}
    async with (
        asking_room({"a": AskingServer({"echo": echo})}, {"a": entry}) as room,
        talking(room, expose) as talk,
    ):
        await teach(room, "a")
        async with talk("ann") as ann, talk("ben") as ben:
            for person in (ann, ben):
                assert not (await call(person, expose, "a_echo"))["result"].get("isError")
            said = server_of(await call(ann, expose, "a_echo"))
        assert said["error"] == "rate_limited"
        assert said["reach"] == "not_sent"
        assert said["limit"] == "mcpServers.a.limits.echo: 1/min per session"
        assert said.get("retryIn", said.get("retryAfter")) == pytest.approx(60.0, abs=0.2)


@in_real_time
async def test_code_of_a_model_is_held_to_the_same_limits() -> None:
    async with (
        room_of({"limits": {"echo": "3/h"}}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        await teach(room, "a", TOOLS)
        code = "for n in range(9):\n    print(n, (await call('a', 'echo', {'n': n}))['content'][0]['text'])"
        result = await use(ann, "mcp_execute", code=code)
        assert "over a limit (mcpServers.a.limits.echo: 3/h)" in text(result)
        assert port_of(room).services.refusals["rate_limited"] >= 1
        assert port_of(room).services.limited == {
            "mcpServers.a.limits.echo: 3/h": port_of(room).services.refusals["rate_limited"]
        }
        assert details(result)["mode"] == "execute"


@on_asyncio
@in_real_time
async def test_a_principal_over_http_has_one_limit_in_all_his_sessions() -> None:
    tokens = [BearerToken.of(who, f"token-of-{who}-0123456789") for who in ("ann", "ben")]
    access = Access("127.0.0.1", tokens=tokens)
    async with (
        room_of({}, limits={"*": "2/h per principal"}) as room,
        http_door(room, access=access) as opened,
    ):
        await teach(room, "a", TOOLS)
        outcomes = list[bool]()
        for who in ("ann", "ann", "ann", "ben"):
            person = await opened.session(authorization=f"Bearer token-of-{who}-0123456789")
            answer = await person.ask("tools/call", {"name": "a_echo", "arguments": {}})
            outcomes.append("rate_limited" in json.dumps(answer))
        assert outcomes == [False, False, True, False]


@in_virtual_time
async def test_a_profile_has_limits_of_its_own() -> None:
    config = {
        "mcpServers": {"a": {"command": "fake"}},
        "profiles": {"few": {"limits": "1/h"}, "many": {}},
    }
    servers = {"a": FakeServer(TOOLS)}
    room = Greenroom.open(config, cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False)
    async with room:
        await teach(room, "a", TOOLS)
        async with room.session("x", profile="few") as few, room.session("y", profile="many") as many:
            await few.call("a_echo", {})
            error = await refused(few)
            assert isinstance(error, RateLimited)
            assert error.limit == 'profiles.few.limits["*"]: 1/h'
            for _ in range(3):
                await many.call("a_echo", {})


@in_virtual_time
async def test_a_loop_is_answered_by_an_error_that_says_so_and_other_calls_go_on() -> None:
    async with room_of({"loopGuard": "3/min"}) as room:
        await teach(room, "a", TOOLS)
        for _ in range(3):
            await room.call("a_echo", {"x": 1, "y": 2})
        error = await refused(room, y=2, x=1)  # the order of members makes no other call
        assert isinstance(error, RepeatedCall)
        assert (error.reach, error.limit) == (Reach.NOT_SENT, 'mcpServers.a.loopGuard["*"]: 3/min')
        assert "made 3 times in 60 s with the same arguments" in error.message
        await room.call("a_echo", {"x": 1, "y": 3})
        for _ in range(9):
            await room.call("a_get_job_status", {"job": 7})
        await anyio.sleep(error.retry_in)
        await room.call("a_echo", {"x": 1, "y": 2})


@in_virtual_time
async def test_two_calls_by_turns_are_a_loop_too() -> None:
    async with room_of({}, loopGuard="4/min") as room:
        await teach(room, "a", TOOLS)
        for _ in range(3):
            await room.call("a_echo", {})
            await room.call("a_other", {})
        error = await refused(room)
        assert "the last 6 calls were the same 2 over and over" in error.message


@in_virtual_time
async def test_who_polls_is_named_by_the_tool_or_by_the_owner() -> None:
    says = tool("look", "Polls the queue once; call it again until it is empty.")
    tools = [says, *TOOLS]
    guard = {"other": False, "get_job_*": "1/min", "*": "2/min"}
    async with room_of({"loopGuard": guard}, tools) as room:
        await teach(room, "a", tools)
        for _ in range(5):
            await room.call("a_look", {})
            await room.call("a_other", {})
        await room.call("a_get_job_status", {})
        assert isinstance(await refused(room, "a_get_job_status"), RepeatedCall)


@in_virtual_time
async def test_a_reload_changes_limits_and_what_it_leaves_alone_stays_filled() -> None:
    def config(**settings: Any) -> dict[str, Any]:
        return {"mcpServers": {"a": {"command": "fake"}}, "settings": settings}

    server = FakeServer(TOOLS)
    opened = Greenroom.open(
        config(), cache_path=":memory:", connectors=fake_connectors({"a": server}), bootstrap=False
    )
    async with opened as room:
        await teach(room, "a", TOOLS)
        for _ in range(4):
            await room.call("a_echo", {})
        await room.reload(config(limits={"a_echo": "1/h"}))
        await room.call("a_echo", {})
        await refused(room)
        await room.reload(config(limits={"a_echo": "1/h", "a_other": "1/h"}))
        await refused(room)
        await room.reload(config(limits={"a_echo": "2/h"}))
        await room.call("a_echo", {})
        await room.reload(config())
        await room.call("a_echo", {})
        assert server.starts == 1


@in_virtual_time
async def test_status_and_explain_say_which_limit_refused() -> None:
    async with room_of({"limits": {"echo": "1/h"}}) as room:
        await teach(room, "a", TOOLS)
        await room.call("a_echo", {})
        await refused(room)
        await refused(room)
        [row] = room.status()
        assert row.limited == ("mcpServers.a.limits.echo: 1/h refused 2 calls",)
        config: Config = port_of(room).catalogue.config
        said = reasons(row, config.servers["a"], config.settings, Commands(), runs=True)
        assert any("mcpServers.a.limits.echo: 1/h refused 2 calls" in one.what for one in said)
        both = msgspec.structs.replace(
            row, limited=(*row.limited, "settings.limits.other: 2/h refused 1 call")
        )
        said = reasons(both, config.servers["a"], config.settings, Commands(), runs=True)
        steps = [one.step for one in said if "A limit refuses" in one.what]
        assert steps == [None, "wait: the error of a call says how long; or raise it where it stands"]


@in_virtual_time
async def test_the_audit_says_which_limit_refused(tmp_path: Path) -> None:
    servers = {"a": FakeServer(TOOLS)}
    config = {"mcpServers": {"a": {"command": "fake", "loopGuard": "1/h"}}}
    path = tmp_path / "audit.jsonl"
    room = Greenroom.open(
        config, cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False, audit=path
    )
    async with room:
        await teach(room, "a", TOOLS)
        await room.call("a_echo", {})
        await refused(room)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made, again = [line for line in lines if line["kind"] == "call"]
    assert "limit" not in made
    assert (again["outcome"], again["limit"]) == ("repeated_call", 'mcpServers.a.loopGuard["*"]: 1/h')


def test_a_mistake_in_a_limit_stops_only_itself_and_is_told() -> None:
    config = parse_config(
        {
            "mcpServers": {"a": {"command": "x", "limits": {"echo": "1/min", "other": "now and then"}}},
            "settings": {"limits": {"*": "9/min", "b": "3/fortnight"}, "loopGuard": {"*": "5/min", "c": 1}},
            "profiles": {"p": {"limits": {"d": "?"}}},
        },
        source="mcp.json",
    )
    assert config.servers["a"].limits == {"echo": "1/min"}
    assert config.settings.limits == {"*": "9/min"}
    assert config.settings.loop_guard == {"*": "5/min"}
    assert config.profiles["p"].limits == {}
    assert not config.broken
    assert sorted(problem.where for problem in config.problems) == [
        "mcp.json: mcpServers.a.limits.other",
        "mcp.json: profiles.p.limits.d",
        "mcp.json: settings.limits.b",
        "mcp.json: settings.loopGuard.c",
    ]
    assert not any(problem.fatal for problem in config.problems)
    with pytest.raises(ConfigError, match="limits"):
        parse_config({"mcpServers": {}, "settings": {"limits": 3}})


@in_virtual_time
async def test_limits_of_an_entry_and_of_a_profile_change_while_the_process_stays() -> None:
    def config(entry: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
        return {"mcpServers": {"a": {"command": "fake", **entry}}, "profiles": {"p": dict(profile)}}

    server = FakeServer(TOOLS)
    opened = Greenroom.open(
        config({}, {}), cache_path=":memory:", connectors=fake_connectors({"a": server}), bootstrap=False
    )
    async with opened as room, room.session("x", profile="p") as session:
        await teach(room, "a", TOOLS)
        await session.call("a_echo", {})
        await room.reload(config({"limits": "1/h"}, {}))
        await room.call("a_echo", {})
        await refused(session)
        await room.reload(config({}, {"limits": "1/h"}))
        await session.call("a_echo", {})
        error = await refused(session)
        assert isinstance(error, RateLimited)
        assert error.limit.startswith("profiles.p.limits")
        await room.call("a_echo", {})
        assert server.starts == 1


@in_virtual_time
async def test_a_call_that_is_over_a_limit_asks_no_person_and_starts_no_server() -> None:
    asked = list[str]()

    async def decide(request: ApprovalRequest) -> Verdict:
        asked.append(request.tool)
        return Verdict.ONCE

    server = FakeServer(TOOLS)
    entry = {"approve": "all", "limits": "1/h"}
    async with (
        open_room({"a": server}, entries={"a": entry}) as room,
        room.session("ann", on_approval=decide) as ann,
    ):
        await teach(room, "a", TOOLS)
        await ann.call("a_echo", {})
        await room.drain("a")
        await refused(ann)
        assert asked == ["a_echo"]
        assert server.starts == 1


@EXPOSED
@in_virtual_time
async def test_a_call_that_was_never_sent_does_not_count_as_one_of_a_loop(expose: str) -> None:
    async def yes(_: ApprovalRequest) -> Verdict:
        return Verdict.ONCE

    entry = {"approve": ["echo"], "loopGuard": "3/min", "limits": "9/min"}
    async with (
        asking_room({"a": AskingServer({"echo": echo})}, {"a": entry}) as room,
        talking(room, expose) as talk,
        talk("ann") as ann,
    ):
        await teach(room, "a")
        for _ in range(5):
            said = server_of(await call(ann, expose, "a_echo"))
            assert (said["error"], said["reach"]) == ("approval_required", "not_sent")
        async with room.session("ben", on_approval=yes) as ben:
            for _ in range(3):
                await ben.call("a_echo", {})
            assert isinstance(await refused(ben), RepeatedCall)
        errors = [server_of(await call(ann, expose, "a_echo"))["error"] for _ in range(2)]
        assert errors == ["approval_required", "rate_limited"], "for limits it counts"


@in_virtual_time
async def test_only_what_was_sent_counts_for_a_round_of_calls() -> None:
    answers = [Verdict.DENY, Verdict.ONCE]

    async def answer(_: ApprovalRequest) -> Verdict:
        return answers[0]

    entry = {"approve": ["echo"], "loopGuard": "4/min"}
    async with (
        open_room({"a": FakeServer(TOOLS)}, entries={"a": entry}) as room,
        room.session("ann", on_approval=answer) as ann,
    ):
        await teach(room, "a", TOOLS)
        for n in range(4):
            assert (await refused(ann)).code == "approval_denied"
            await ann.call("a_other", {"n": n % 2})
        assert (await refused(ann)).code == "approval_denied"
        answers.reverse()
        for _ in range(4):
            await ann.call("a_echo", {})
        assert isinstance(await refused(ann), RepeatedCall)


@in_virtual_time
async def test_what_is_kept_of_calls_is_small_however_long_their_names_and_answers_are() -> None:
    entry = {"loopGuard": "3/min", "limits": "100/min per tool"}
    server = AskingServer({"echo": echo})
    async with (
        asking_room({"a": server}, {"a": entry}) as room,
        talking(room) as talk,
        talk("ann") as ann,
    ):
        await teach(room, "a")

        async def forty_calls() -> None:
            for number in range(20):
                long = f"{number}{'y' * 100_000}"
                call = {"name": "a_echo", "arguments": {}, "inputResponses": {"a": long}, "requestState": "s"}
                assert "error" not in await ann.answer(ann.begin("tools/call", call))
                with contextlib.suppress(CallError):
                    await room.read_resource(f"file:///{long}", "a")
            ann.said.clear()
            server.requests.clear()

        await forty_calls()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await anyio.sleep(60)
            await forty_calls()
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < 500_000, "more than the last call"
        finally:
            tracemalloc.stop()
        long = "z" * 400
        for _ in range(3):
            with contextlib.suppress(CallError):
                await room.read_resource(f"file:///{long}", "a")
        with pytest.raises(RepeatedCall):
            await room.read_resource(f"file:///{long}", "a")
