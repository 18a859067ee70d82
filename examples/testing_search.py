"""Search for races in an agent's use of its servers: `pytest testing_search.py`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from greenroom.testing.room_machine import RoomMachine


class MyServers(RoomMachine):
    entries: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "search": {"idleTimeout": 0.1, "maxInFlight": 2},
        "notes": {"lifecycle": "keep-alive"},
        "shell": {"isolation": "per_session"},
    }

    @rule(query=st.sampled_from(["", "read", "zebra"]))
    def look_something_up(self, query: str) -> None:
        assert len(self.world.room.search(query).matches) <= 12  # works while nothing runs

    @invariant()
    def the_shell_is_never_shared(self) -> None:
        assert self.world.servers["shell"].live <= len(self.session_names) + 1  # the room may have its own


MyServers.TestCase.settings = settings(max_examples=30, deadline=None)
TestMyServers = MyServers.TestCase
