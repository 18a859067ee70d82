"""What a session sees of its room through a profile: the view, without a room."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace
from tests.support import in_real_time
from tests.support.rows import for_each

from greenroom.actors.workers import MANY_ITEMS
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.config.model import Config, Settings
from greenroom.config.parse import parse_config
from greenroom.protocol.errors import UnknownServer, UsageError
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.profiles import Profiles, ProfileView


class House:
    """A configuration and an index that may be replaced, and a view of them by the profile `one`."""

    def __init__(self, profile: Any) -> None:
        self.index = Index.build({}, {}, Settings())
        self.configure(profile)
        self.learn()
        self.view = ProfileView("one", lambda: self.config, lambda: self.index)

    def configure(self, profile: Any) -> None:
        servers = {"notes": {"command": "x"}, "vault": {"command": "y"}}
        broken: Any = {"notes-bad": {"odd": 1}, "vault-bad": {"odd": 1}}
        raw = {"mcpServers": {**servers, **broken}, "profiles": {"one": profile, "two": {}}}
        self.config = msgspec.structs.replace(parse_config(raw), untrusted=("/p/.mcp.json",))

    def learn(self, *more: str) -> None:
        wrong: Any = {"name": "wrong", "inputSchema": {"type": "array"}}
        schema = {"type": "object"}
        tools = (*({"name": name, "inputSchema": schema} for name in ("read", "write", *more)), wrong)
        notes = ServerEntry(
            "notes", "", tools=tools, resources=({"uri": "x:/1", "name": "r"},), problems=("cut",)
        )
        self.entries = {"notes": notes, "vault": ServerEntry("vault", "", tools=({"name": "open"},))}
        self.index = Index.build(self.config.servers, self.entries, self.config.settings)

    def names(self) -> list[str]:
        return [target.name for target in self.view.index.tools()]


ROW = ServerStatus("notes", tool_count=99, problems=("cut",), changed=("gone",), faults=("old",))


def test_a_profile_without_servers_shows_all_and_one_with_none_shows_none() -> None:
    for profile, shown in (
        ({}, ["notes", "vault"]),
        ({"servers": []}, []),
        ({"servers": ["note*"]}, ["notes"]),
    ):
        house = House(profile)
        assert [name for name in ("notes", "vault") if house.view.shows(name)] == shown
        assert [*house.view.config.servers] == shown
        assert {target.server for target in house.view.index.tools()} == {*shown}
        for name in ("notes", "vault", "nowhere"):
            if name in shown:
                house.view.check(name)
            elif profile or name != "nowhere":
                with pytest.raises(UnknownServer) as unknown:
                    house.view.check(name)
                assert unknown.value.known == tuple(shown)


def test_of_a_configuration_a_view_has_its_servers_and_nothing_that_names_others() -> None:
    view = House({"servers": ["notes*"]}).view
    assert ([*view.config.servers], [*view.config.broken]) == (["notes"], ["notes-bad"])
    assert (view.config.untrusted, view.config.problems, view.config.profiles) == ((), (), {})
    assert view.config is view.config, "it is made once"


@for_each(
    ("profile", "tools", "narrows"),
    [
        ({}, ["read", "write", "wrong"], False),
        ({"servers": ["notes"]}, ["read", "write", "wrong"], False),
        ({"tools": ["read"]}, ["read"], True),
        ({"tools": []}, [], True),
        ({"tools": ["read", "get_r"]}, ["read"], True),
        ({"toolOverrides": {"notes": {"read": {"rename": "look"}}}}, ["read", "write", "wrong"], True),
    ],
)
def test_what_is_known_of_a_server_is_shown_without_the_tools_that_are_not(
    profile: Any, tools: list[str], narrows: bool
) -> None:
    house = House(profile)
    entry = house.entries["notes"]
    shown = house.view.entry(entry)
    assert shown is not None
    assert [tool["name"] for tool in shown.tools or ()] == tools
    assert (shown is entry) is not narrows
    assert shown.problems == (() if narrows else ("cut",))
    assert house.view.entry(None) is None
    unknown = replace(entry, tools=None)
    assert house.view.entry(unknown) is unknown
    row = house.view.row(ROW)
    assert (row is ROW) is not narrows
    if narrows:
        count = len(house.view.index.tools("notes"))
        assert (row.tool_count, row.problems, row.changed) == (len(tools), (), ())
        assert len(tools) + row.resource_count == count
        assert bool(row.faults) is ("wrong" in tools)


def test_a_view_follows_its_room_at_once_and_makes_nothing_twice() -> None:
    house = House({"servers": ["notes"], "tools": ["rea?", "new*"]})
    assert house.names() == ["notes_read"]
    assert house.view.index is house.view.index
    config, index = house.view.config, house.view.index
    house.learn("new")
    assert house.names() == ["notes_new", "notes_read"], "the room has learned more"
    assert house.view.config is config
    house.configure({"servers": ["vault"]})
    assert house.names() == ["vault_open"], "with the same index"
    assert not house.view.shows("notes")
    assert [*house.view.config.servers] == ["vault"]
    assert house.view.index is not index
    house.configure({})
    house.config = msgspec.structs.replace(house.config, profiles={})
    assert house.names() == [], "it is gone"


def test_a_profile_is_seen_by_all_its_sessions_in_one_view() -> None:
    house = House({})
    profiles = Profiles(lambda: house.config, lambda: house.index)
    assert profiles.view("one") is profiles.view("one") is not profiles.view("two")
    with pytest.raises(UsageError, match="There are: one, two") as unknown:
        profiles.view("three")
    assert unknown.value.code == "unknown_profile"
    house.config = msgspec.structs.replace(house.config, profiles={})
    with pytest.raises(UsageError, match="There are: none"):
        profiles.view("one")


@in_real_time
async def test_the_index_of_many_tools_is_made_in_a_thread_that_touches_nothing_of_the_view() -> None:
    house = House({"servers": ["notes"]})
    house.learn(*(f"tool_{number}" for number in range(MANY_ITEMS)))
    threads = set[threading.Thread]()

    def config() -> Config:
        threads.add(threading.current_thread())
        return house.config

    house.view = ProfileView("one", config, lambda: house.index)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.view.prepare)
        await anyio.lowlevel.checkpoint()
        house.configure({"servers": ["vault"]})
        assert not house.view.shows("notes")
    assert house.names() == ["vault_open"], "what was made of the configuration before is not kept"
    assert threads == {threading.current_thread()}
