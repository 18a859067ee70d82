"""What the supervisor decides for one actor, each decision alone, and a room's own rare turns."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.support import run_virtual
from tests.support.rooms import open_room, settle

from greenroom import Greenroom
from greenroom.protocol.config import Lifecycle, ServerDefinition, Settings
from greenroom.protocol.lifecycle import State
from greenroom.protocol.start import Place
from greenroom.supervisor import _runtime, _visiting
from greenroom.supervisor._starter import Starter
from greenroom.supervisor._supervision import Supervision
from greenroom.supervisor._visiting import Visiting
from greenroom.testing import FakeServer
from greenroom.testing._fake import fake_connectors


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
@pytest.mark.parametrize("own", [None, 0.0, 5.0])
@pytest.mark.parametrize("general", [0.0, 7.0])
def test_who_may_idle_away_and_after_how_long(
    lifecycle: Lifecycle, own: float | None, general: float
) -> None:
    supervision: Any = object.__new__(Supervision)
    supervision._context = SimpleNamespace(settings=Settings(idle_timeout=general))
    definition = ServerDefinition("a", lifecycle=lifecycle, idle_timeout=own)
    for is_shared, uris in product((True, False), ({}, {"x:/": 1})):
        actor: Any = SimpleNamespace(
            record=SimpleNamespace(definition=definition),
            subscriptions=SimpleNamespace(uris=uris),
            address=SimpleNamespace(is_shared=is_shared),
        )
        usual = {Lifecycle.LAZY: general, Lifecycle.EAGER: 0.0, Lifecycle.KEEP_ALIVE: 0.0}[lifecycle]
        seconds = usual if own is None or lifecycle is Lifecycle.KEEP_ALIVE else own
        may = is_shared and not uris and seconds
        assert supervision.idle_timeout(actor) == (seconds if may else math.inf)


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
@pytest.mark.parametrize("place", [Place.OUT, Place.GATE])
def test_who_is_asked_for_by_name_goes_around_its_gate_and_is_kept_alive_again(
    lifecycle: Lifecycle, place: Place
) -> None:
    done: list[str] = []
    starter: Any = object.__new__(Starter)
    starter._directory = SimpleNamespace(bring_back=lambda server: done.append(f"brought back {server}"))
    starter._apply = lambda _actor: done.append("applied")
    actor: Any = SimpleNamespace(
        address=SimpleNamespace(server="a"),
        record=SimpleNamespace(definition=ServerDefinition("a", lifecycle=lifecycle)),
        start=SimpleNamespace(place=place, by_policy=False),
        request_start=lambda: done.append("asked to start"),
    )
    starter.request_by_name(actor)
    assert done == ["brought back a", "applied" if place is Place.GATE else "asked to start"]
    assert actor.start.by_policy is (lifecycle is Lifecycle.KEEP_ALIVE)


@pytest.mark.parametrize(
    ("state", "by_policy", "is_awaited"), [*product(State, (False, True), (False, True))]
)
def test_a_start_leaves_its_queue_with_its_last_reason(
    state: State, by_policy: bool, is_awaited: bool
) -> None:
    done: list[Any] = []
    starter: Any = object.__new__(Starter)
    starter.admission = SimpleNamespace(move=lambda _actor, place: done.append(place))
    actor: Any = SimpleNamespace(
        life=SimpleNamespace(state=state), start=SimpleNamespace(by_policy=by_policy), is_awaited=is_awaited
    )
    with pytest.MonkeyPatch.context() as patch:
        keeper = SimpleNamespace(probe_left=lambda who: done.append(who))
        patch.setattr("greenroom.supervisor._starter.keeper_of", lambda _actor: keeper)
        starter.withdraw(actor)
    leaves = state is State.IDLE and not by_policy and not is_awaited
    assert done == ([Place.OUT, actor] if leaves else [])


def test_a_visit_goes_on_until_its_last_try_and_each_try_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    visiting: Any = object.__new__(Visiting)
    visiting._over = told.append
    actor: Any = SimpleNamespace(address=SimpleNamespace(server="a"))
    record = SimpleNamespace(visit=actor)
    monkeypatch.setattr(_visiting, "record_of", lambda _actor: record)
    visiting.tried(SimpleNamespace(address=actor.address), is_over=True)
    assert (told, record.visit) == ([], actor), "another's end is not the visit's"
    visiting.tried(actor, is_over=False)
    assert (told, record.visit) == (["a"], actor)
    visiting.tried(actor, is_over=True)
    assert (told, record.visit) == (["a", "a"], None)
    visiting.tried(actor, is_over=True)
    assert told == ["a", "a"]


def test_a_room_that_is_asked_to_stop_before_it_was_built_ends_at_once(backend: str) -> None:
    server = FakeServer()

    async def main() -> None:
        room: Any = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})
        room._owner._runtime.request_stop(0)
        async with anyio.create_task_group() as tasks:
            await room.start(tasks)
            with anyio.fail_after(600):
                await room._owner._ended.wait()
        assert room.drain_report is not None
        assert server.live == 0

    run_virtual(backend, main)


def test_a_reload_starts_the_servers_that_stand_anew_and_no_others(backend: str) -> None:
    servers = {name: FakeServer() for name in ("old", "new", "lazy")}

    def config(*names: str) -> dict[str, Any]:
        entries: dict[str, Any] = {
            "old": {"command": "fake", "lifecycle": "eager", "idleTimeout": 1},
            "new": {"command": "fake", "lifecycle": "eager"},
            "lazy": {"command": "fake"},
        }
        return {"mcpServers": {name: entries[name] for name in names}, "settings": {"minConnections": 0}}

    async def main() -> None:
        async with Greenroom.open(
            config("old"), cache_path=":memory:", connectors=fake_connectors(servers), bootstrap=False
        ) as room:
            await room.ready()
            await anyio.sleep(100.0)
            assert (servers["old"].starts, servers["old"].live) == (1, 0), "it has idled away"
            await room.reload(config("old", "new", "lazy"))
            await settle()
            await anyio.sleep(1.0)
            assert {name: server.starts for name, server in servers.items()} == {
                "old": 1,
                "new": 1,
                "lazy": 0,
            }

    run_virtual(backend, main)


def test_what_a_session_gave_is_forgotten_with_it(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(_runtime, "forget_credentials", lambda _root, name: forgotten.append(name))

    async def main() -> None:
        async with open_room({"a": FakeServer()}) as room:
            async with room.session("x"):
                assert forgotten == []
            assert forgotten == ["x"]
            late = room.session("y")
            await late.__aenter__()
        await late.aclose()
        assert forgotten == ["x", "y"], "also after the room"

    run_virtual(backend, main)
