"""Profiles: what is outside a client's profile does not exist for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.gateway.test_conversations import call, echo, talking
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import Asking, AskingServer, asking_connectors
from tests.support.gateway import PATIENCE
from tests.support.http_door import http_door, request
from tests.support.loops import on_asyncio
from tests.support.memory_client import MemoryClient

from greenroom import Greenroom
from greenroom.config.model import Profile
from greenroom.config.parse import parse_config
from greenroom.config.schema import config_schema
from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.protocol.errors import UnknownServer, UnknownTool, UsageError
from greenroom.supervisor.room import port_of

PLANTED = "zebra"  # in everything that the profile does not show
SECRET = f"{PLANTED}-vault"
NOWHERE = "zulus"  # in nothing at all; as long as the other


def _hidden() -> AskingServer:
    said = {"name": f"{PLANTED}_item", "description": f"the {PLANTED}", "uri": f"x:/{PLANTED}"}

    async def ask(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        return await asking.ask("sampling/createMessage", {"messages": [], "for": PLANTED})

    return AskingServer({f"{PLANTED}_tool": ask}, resources=[said], prompts=[said])


def _shown() -> AskingServer:
    said = {"name": "note", "description": "a note", "uri": "n:/note"}
    acts: dict[str, Any] = {"echo": echo, "write": echo, f"{PLANTED}_write": echo}
    return AskingServer(acts, resources=[said], prompts=[said])


def room_with(servers: Mapping[str, AskingServer], **profiles: Any) -> Greenroom:
    config = {
        "mcpServers": {
            **{name: {"command": "x"} for name in servers},
            f"{PLANTED}-broken": {"nothing": PLANTED},
            f"{PLANTED}-off": {"command": "x", "disabled": True},
        },
        "profiles": {
            "work": {"servers": ["notes"], "tools": ["echo", "wri*", "get_*"]},
            "all": {},
            **profiles,
        },
    }
    connectors = asking_connectors(servers)
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors)


async def learn_all(room: Greenroom, *names: str) -> None:
    for name in names:
        await room.connect(name)
    await room.settled()


def test_a_profile_is_read_and_one_that_cannot_be_is_left_out() -> None:
    servers = {"a": {"command": "x"}}
    profiles: dict[str, Any] = {
        "work": {"servers": ["a"], "tools": ["*_read"], "expose": "direct", "//": "a remark"},
        "all": {},
        "mistyped": {"server": ["a"]},
        "no_list": {"servers": "a"},
        "no_door": {"expose": "metta"},
        "no_object": [],
        "far": {"servers": ["b", "a*"]},
    }
    config = parse_config({"mcpServers": servers, "profiles": profiles})
    assert config.profiles == {
        "work": Profile(("a",), ("*_read",), "direct"),
        "all": Profile(),
        "far": Profile(("b", "a*")),
    }
    said = {problem.where.partition(": ")[2]: problem.what for problem in config.problems}
    assert said.keys() == {
        "profiles.mistyped.server", "profiles.no_list.servers", "profiles.no_door.expose", "profiles.no_object",
        "profiles.far.servers[0]",
    }  # fmt: skip
    assert all("refused" in what for where, what in said.items() if "far" not in where)
    assert parse_config({"profiles": ["work"]}).profiles == {}
    assert set(config_schema()["properties"]["profiles"]["additionalProperties"]["properties"]) == {
        "servers", "tools", "toolOverrides", "expose",
        "limits",
        "loopGuard",
    }  # fmt: skip


def _direct_requests(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Every request of the direct door that names something, about what `name` stands for."""
    tools = [f"{name}-vault_{name}_tool", f"{name}_vault_{name}_tool", f"{name}_tool", f"notes_{name}_write"]
    prompts = [f"{name}-vault_{name}_item", f"{name}_item"]
    uris = [f"x:/{name}", f"{name}-vault:x:/{name}", f"x:/{name}/part"]
    argument = {"name": "a", "value": "x"}
    refs = [{"type": "ref/prompt", "name": one} for one in prompts]
    refs += [{"type": "ref/resource", "uri": one} for one in uris]
    return [
        *(("tools/call", {"name": one, "arguments": {}}) for one in tools),
        *(("prompts/get", {"name": one}) for one in prompts),
        *(("completion/complete", {"ref": ref, "argument": argument}) for ref in refs),
        *(
            (f"resources/{what}", {"uri": one})
            for what in ("read", "subscribe", "unsubscribe")
            for one in uris
        ),
    ]


def _proxy_requests(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Every request of the `mcp` tool that names something."""
    tools = [
        f"{name}-vault_{name}_tool",
        f"{name}_tool",
        f"notes_{name}_write",
        f"{name}-vault_get_{name}_item",
    ]
    servers = [f"{name}-vault", f"{name}-broken", f"{name}-off"]
    asked: list[dict[str, Any]] = [{"search": f"{name} tool"}, {"search": f"{name}.*", "regex": True}]
    for server in servers:
        asked += [{"search": "tool", "server": server}, {"server": server}, {"connect": server}]
        asked += [{"instructions": server}]
        asked += [{"tool": one, "server": server} for one in tools]
    asked += [{"describe": one} for one in tools] + [{"tool": one, "args": {}} for one in tools]
    return [("tools/call", {"name": "mcp", "arguments": one}) for one in asked]


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_t20_nothing_outside_a_profile_exists_for_its_clients(expose: str) -> None:
    """Every method, with every name outside the profile: what comes back is what comes back for a name that does not
    exist at all. And nothing that was not asked for holds what was planted there."""
    hidden, shown = _hidden(), _shown()
    named = _direct_requests if expose == "direct" else _proxy_requests
    lists = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]
    plain: list[tuple[str, dict[str, Any]]] = [(method, {}) for method in lists if expose == "direct"]
    if expose == "proxy":
        asked: list[dict[str, Any]] = [{}, {"search": "tool item write note"}, {"search": ".", "regex": True}]
        plain = [("tools/call", {"name": "mcp", "arguments": one}) for one in (*asked, {"server": "notes"})]
    plain += [("initialize", {"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}}})]
    plain += [("logging/setLevel", {"level": "debug"})]
    async with (
        room_with({SECRET: hidden, "notes": shown}) as room,
        talking(room, expose) as talk,
        talk("ann", profile="work", sampling={}) as ann,
    ):
        await learn_all(room, SECRET, "notes")

        async def answer_to(method: str, params: dict[str, Any]) -> str:
            answer = await ann.ask(method, params)
            return json.dumps({key: value for key, value in answer.items() if key != "id"})

        for method, params in plain:
            assert PLANTED not in await answer_to(method, params), (method, params)
        for there, nowhere in zip(named(PLANTED), named(NOWHERE), strict=True):
            answers = await answer_to(*there), await answer_to(*nowhere)
            assert answers[0] == answers[1].replace(NOWHERE, PLANTED), there
        assert hidden.starts == 1, "nothing that it asked for started it"
        ann.said.clear()
        hidden.acts["more"] = echo
        hidden.tell("notifications/tools/list_changed")
        hidden.tell("notifications/message", {"level": "error", "data": PLANTED})
        hidden.tell("notifications/resources/updated", {"uri": f"x:/{PLANTED}"})
        hidden.tell("x/own", {"said": PLANTED})
        async with talk("ben", sampling={}) as ben:  # sees everything
            ben.answers["sampling/createMessage"] = {"model": PLANTED}
            seen = await call(ben, expose, f"{SECRET}_{PLANTED}_tool")
            assert "isError" not in seen["result"]
            await anyio.sleep(5.0)
        assert ann.said == []
        answer = await call(ann, expose, "notes_echo", a=1)
        assert not answer["result"].get("isError"), answer


@in_virtual_time
async def test_embedded_a_session_with_a_profile_finds_nothing_else() -> None:
    async with room_with({SECRET: _hidden(), "notes": _shown()}) as room:
        await learn_all(room, SECRET, "notes")
        async with room.session("ann", profile="work") as ann, room.session("ben", profile="all") as ben:
            assert [target.name for target in port_of(ann).catalogue.index.tools()] == [
                "notes_echo",
                "notes_get_note",
                "notes_write",
            ]
            assert len(port_of(ben).catalogue.index.tools()) == len(room.tools())
            assert (await ann.call("notes_echo", {"a": 1})).text == '{"a": 1}'
            hidden = f"{SECRET}_{PLANTED}_tool"
            assert port_of(room).catalogue.index.get(hidden), "it is there"
            with pytest.raises(UnknownTool) as unknown:
                await ann.call(hidden)
            assert SECRET not in unknown.value.suggestions
            for wrong in (
                ann.connect(SECRET),
                ann.request(SECRET, "tools/list"),
                ann.request(SECRET, "logging/setLevel", {"level": "info"}),
                ann.request(SECRET, "initialize"),
                ann.read_resource(f"x:/{PLANTED}", SECRET),
                ann.get_prompt("item", server=SECRET),
                ann.call("item", server=SECRET),
            ):
                with pytest.raises(UnknownServer) as caught:
                    await wrong
                assert caught.value.known == ("notes",)
            for refused in (ann.resources, ann.templates, ann.prompts, port_of(ann).is_stateless):
                with pytest.raises(UnknownServer):
                    refused(SECRET)
            with pytest.raises(UnknownServer):
                port_of(ann).start_request(SECRET, "tools/list", {}, None)
            with pytest.raises(UnknownServer):
                ann.set_log_level("info", SECRET)
        with pytest.raises(UsageError, match="There are: work, all"):
            room.session("cora", profile="none")


@in_virtual_time
async def test_a_profile_that_a_reload_takes_away_shows_nothing_and_one_that_it_changes_shows_that() -> None:
    servers = {SECRET: _hidden(), "notes": _shown()}
    async with room_with(servers) as room, room.session("ann", profile="work") as ann:
        await learn_all(room, "notes")
        assert len(port_of(ann).catalogue.index.tools()) == 3
        config = {"mcpServers": {name: {"command": "x"} for name in servers}}
        await room.reload({**config, "profiles": {"work": {"servers": ["notes"], "tools": ["write"]}}})
        assert [target.name for target in port_of(ann).catalogue.index.tools()] == ["notes_write"]
        await room.reload(config)
        assert not port_of(ann).catalogue.index.tools()
        with pytest.raises(UnknownTool):
            await ann.call("notes_write")


@in_virtual_time
async def test_a_profile_says_how_its_clients_are_shown_what_they_see() -> None:
    plain = {"servers": ["notes"], "expose": "direct"}
    async with room_with({"notes": _shown()}, plain=plain) as room, talking(room, "proxy") as talk:
        await learn_all(room, "notes")
        async with talk("ann", profile="plain") as ann, talk("ben", profile="work") as ben:
            listed = [await one.ask("tools/list") for one in (ann, ben)]
            names = [[tool["name"] for tool in one["result"]["tools"]] for one in listed]
            assert names == [["notes_echo", "notes_write", f"notes_{PLANTED}_write"], ["mcp"]]
        dan = MemoryClient()
        opened = talk.conversations.open(dan, talk.spawn, name="dan", profile="plain", expose="proxy")
        async with opened as dan.session:
            dan.initialize()
            listed = await dan.ask("tools/list")
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["mcp"], (
                "a client's own word is stronger"
            )
        with pytest.raises(UsageError, match="no profile"):
            async with talk("cora", profile="none"):
                raise AssertionError


@in_virtual_time
async def test_a_changed_list_is_announced_only_where_it_can_be_seen() -> None:
    changed = "notifications/tools/list_changed"
    servers = {"notes": _shown(), SECRET: _hidden()}
    async with room_with(servers) as room, talking(room, "direct") as talk:
        await learn_all(room, *servers)
        async with talk("ann", profile="work") as ann, talk("ben") as ben:
            await anyio.sleep(5.0)
            for person in (ann, ben):
                person.said.clear()
            servers[SECRET].acts["new"] = echo
            servers[SECRET].tell(changed)
            await anyio.sleep(5.0)
            assert (ann.methods(), ben.methods()) == ([], [changed])
            servers["notes"].acts["writer"] = echo
            servers["notes"].tell(changed)
            await anyio.sleep(5.0)
            assert (ann.methods(), ben.methods()) == ([changed], [changed] * 2)


@in_virtual_time
async def test_a_reload_that_changes_what_is_shown_is_announced_to_those_that_see_it() -> None:
    tools, others = (f"notifications/{kind}/list_changed" for kind in ("tools", "resources"))
    notes, hidden, work = {"command": "x"}, {"command": "x"}, {"servers": ["notes"]}
    servers = {"notes": _shown(), SECRET: _hidden()}
    async with room_with(servers, work=work) as room, talking(room, "direct") as talk:
        await learn_all(room, *servers)
        async with talk("ann", profile="work") as ann, talk("ben") as ben:
            await anyio.sleep(5.0)
            for entries, more, told in (
                ({"notes": notes, SECRET: hidden}, {}, ((), ())),
                (
                    {"notes": {**notes, "toolOverrides": {"write": {"hide": True}}}, SECRET: hidden},
                    {},
                    ((tools,), (tools,)),
                ),
                ({"notes": {**notes, "directTools": ["echo"]}, SECRET: hidden}, {}, ((tools,), (tools,))),
                ({"notes": notes}, {"profiles": {"work": work}}, ((tools,), (tools, others))),
                ({"notes": notes}, {}, ((tools, others), ())),  # a profile that is gone shows nothing
            ):
                for person in (ann, ben):
                    person.said.clear()
                profiles = {"profiles": {"work": work}} if SECRET in entries else more
                await room.reload({"mcpServers": entries, **profiles})
                await anyio.sleep(5.0)
                for person, expected in ((ann, told[0]), (ben, told[1])):
                    heard = [
                        name for name in person.methods() if not name.startswith("notifications/prompts")
                    ]
                    assert sorted(heard) == sorted(expected), (entries, profiles)


@in_virtual_time
async def test_the_first_tools_chosen_beside_the_mcp_tool_are_announced_where_they_can_be_seen() -> None:
    servers = {"notes": _shown(), SECRET: _hidden()}
    async with room_with(servers) as room, talking(room, "proxy") as talk:
        await learn_all(room, *servers)
        async with talk("ann", profile="work") as ann, talk("ben") as ben:
            people, listed = (ann, ben), list[list[int]]()
            for chosen in ({}, {SECRET: True}, {SECRET: True, "notes": ["echo"]}, {}):
                entries = {name: {"command": "x", "directTools": chosen.get(name)} for name in servers}
                await room.reload({"mcpServers": entries, "profiles": {"work": {"servers": ["notes"]}}})
                await anyio.sleep(5.0)
                heard = [one.methods().count("notifications/tools/list_changed") for one in people]
                tools = [(await one.ask("tools/list"))["result"]["tools"] for one in people]
                listed.append([*heard, *(len(each) for each in tools)])
            assert listed == [[0, 0, 1, 1], [0, 1, 1, 2], [1, 2, 2, 3], [2, 3, 1, 1]]


@on_asyncio
@in_real_time
async def test_a_path_and_a_token_choose_the_profile_over_http() -> None:
    tokens = (
        BearerToken.of("ann", "token-of-ann-0123456789"),
        BearerToken.of("ben", "token-of-ben-0123456789", "work"),
    )
    ann, ben = ({"authorization": f"Bearer token-of-{name}-0123456789"} for name in ("ann", "ben"))
    with anyio.fail_after(PATIENCE):
        async with room_with({"notes": _shown(), SECRET: _hidden()}) as room:
            await learn_all(room, "notes", SECRET)
            async with http_door(room, access=Access("127.0.0.1", tokens)) as opened:
                for path, who in (("/mcp/work", ann), ("/mcp", ben), ("/mcp/work", ben)):
                    person = await opened.session(path, **who)
                    shown = json.dumps(await person.ask("tools/list"))
                    assert "notes_echo" in shown
                    assert PLANTED not in shown
                    refused = await person.call(f"{SECRET}_{PLANTED}_tool")
                    assert refused == json.loads(
                        json.dumps(await person.call(f"{NOWHERE}-vault_{NOWHERE}_tool")).replace(
                            NOWHERE, PLANTED
                        )
                    )
                    elsewhere = "/mcp/all" if path == "/mcp/work" else "/mcp/work"
                    if who is ann:  # the session exists under its own path alone
                        answer = await opened.post(request("ping"), elsewhere, **person.headers)
                        assert answer.status_code == 404
                everything = json.dumps(await (await opened.session(**ann)).ask("tools/list"))
                assert PLANTED in everything
                listed = await opened.stateless("tools/list", **ben)
                assert PLANTED not in listed.text
                for path, who in (("/mcp/none", ann), ("/mcp/all", ben)):
                    assert (await opened.post(HELLO, path, **who)).status_code == 404


HELLO = request("initialize", 1, {"protocolVersion": "2025-11-25", "capabilities": {}})
