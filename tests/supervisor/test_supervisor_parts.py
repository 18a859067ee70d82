"""What the supervisor decides for one actor, each decision alone, and a room's own rare turns."""

from __future__ import annotations

import math
import time
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import anyio
import attrs
import pytest
from tests.support import run_virtual
from tests.support.rooms import open_room, settle

from greenroom import Greenroom
from greenroom.actors.host import Greeting, ServerRequest
from greenroom.actors.login import logins as login
from greenroom.actors.server import Decision as ActorDecision
from greenroom.actors.server import Next
from greenroom.actors.transports.in_process import InProcessConnector
from greenroom.actors.transports.npx import NpxConnector
from greenroom.actors.transports.unix_socket import UnixConnector
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import PinKey
from greenroom.catalogue.namespace import Target
from greenroom.catalogue.store import (
    CatalogueFile,
    FileStore,
    Loaded,
    MemoryStore,
    catalogue_keys,
    default_cache_path,
    open_store,
    own_folder,
    pin_keys,
)
from greenroom.config import secret_sources
from greenroom.config.files import with_objects
from greenroom.config.model import Lifecycle, ServerDefinition, Settings
from greenroom.config.parse import parse_config
from greenroom.config.secrets import Hidden, KnownSecrets
from greenroom.protocol.address import Address
from greenroom.protocol.errors import (
    CallError,
    ConnectFailed,
    CredentialNeeded,
    Problem,
    ProtocolFault,
    RoomClosed,
    RpcRefusal,
    ServerDown,
    SessionNeeded,
    UnknownServer,
    UsageError,
)
from greenroom.protocol.events import HOLDS_SLOT, EndDecision, Eviction, GateMove, Note, NoteCode, Place
from greenroom.protocol.lifecycle import Cause, Ending, Reason, State
from greenroom.safety.pins_file import MemoryPins, ServerPins, pin_store
from greenroom.supervisor import caller, circuit_breaker, discovery, login_watch, server_messages
from greenroom.supervisor import runtime as _learned
from greenroom.supervisor import runtime as _runtime
from greenroom.supervisor import runtime as _told
from greenroom.supervisor import supervision as _endings
from greenroom.supervisor import supervision as _supervision
from greenroom.supervisor.admission import Admission, Starter
from greenroom.supervisor.circuit_breaker import Gatekeeper, Gates
from greenroom.supervisor.connectors import AskingConnector, Connectors
from greenroom.supervisor.discovery import Visiting
from greenroom.supervisor.login_watch import LoginWatch
from greenroom.supervisor.pool import Decision as PoolDecision
from greenroom.supervisor.pool import PoolLimits, PoolView
from greenroom.supervisor.records import (
    USABLE,
    ServerRecord,
    Use,
    defined,
    drained,
    needs_login,
    quarantine,
    record_of,
    removed,
)
from greenroom.supervisor.root import Closing, abort
from greenroom.supervisor.runtime import DrainReport, note_callback, note_timer, sole
from greenroom.supervisor.server_messages import Callbacks, LogLevels, Routing, as_root, is_heard
from greenroom.supervisor.sessions import Sessions
from greenroom.supervisor.supervision import Supervision
from greenroom.testing import FakeServer
from greenroom.testing.fake_servers import fake_connectors


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
        patch.setattr("greenroom.supervisor.admission.keeper_of", lambda _actor: keeper)
        starter.withdraw(actor)
    leaves = state is State.IDLE and not by_policy and not is_awaited
    assert done == ([Place.OUT, actor] if leaves else [])


def test_a_visit_goes_on_until_its_last_try_and_each_try_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    visiting: Any = object.__new__(Visiting)
    visiting._over = told.append
    actor: Any = SimpleNamespace(address=SimpleNamespace(server="a"))
    record = SimpleNamespace(visit=actor)
    monkeypatch.setattr(discovery, "record_of", lambda _actor: record)
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


# ---- slots and gates -----------------------------------------------------------------------------------------------


class Timer:
    def __init__(self, when: float) -> None:
        self.when, self.is_cancelled = when, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timers:
    def __init__(self) -> None:
        self.all: list[Timer] = []

    def at(self, when: float, _callback: Any) -> Timer:
        self.all.append(Timer(when))
        return self.all[-1]


def test_a_gate_has_one_timer_and_that_at_the_next_time_that_counts() -> None:
    timers = Timers()
    waiting = [SimpleNamespace(is_asked_for_by_name=False)]
    keeper: Any = object.__new__(Gatekeeper)
    keeper.parent = keeper.timer = None
    keeper.last_start = 9.5
    keeper.gate = SimpleNamespace(shut_until=30.0)
    keeper._gates = SimpleNamespace(waiting_at=lambda _: waiting, context=SimpleNamespace(timers=timers))
    keeper.set_timer(10.0)
    keeper.set_timer(11.0)
    waiting[0].is_asked_for_by_name = True
    keeper.set_timer(10.0)
    keeper.gate.shut_until = 5.0
    keeper.set_timer(10.0)
    keeper.parent = SimpleNamespace(gate=SimpleNamespace(shut_until=50.0), last_start=80.0)
    waiting[0].is_asked_for_by_name = False
    keeper.set_timer(10.0)
    assert [timer.when for timer in timers.all] == [30.0, 30.0, 10.5, 10.5, 50.0]
    assert [timer.is_cancelled for timer in timers.all] == [True, True, True, True, False]
    waiting.clear()
    keeper.set_timer(10.0)
    assert keeper.timer is None
    assert timers.all[-1].is_cancelled, "nobody waits"


@pytest.mark.parametrize("place", [Place.SLOT, Place.OUT])
def test_who_still_waits_for_a_slot_when_others_gave_up_has_a_bound_again(place: Place) -> None:
    timers, told = Timers(), list[Any]()
    admission: Any = object.__new__(Admission)
    admission._context = SimpleNamespace(
        settings=Settings(acquire_timeout=5.0), timers=timers, backend=SimpleNamespace(now=lambda: 20.0)
    )
    admission.view = SimpleNamespace(limits=SimpleNamespace(slots=3))
    actor: Any = SimpleNamespace(
        start=SimpleNamespace(place=place, deadline="the old one"),
        awaited_since=18.0,
        refuse_waiting=lambda why, since: told.append((why, since)),
    )
    admission._too_late(actor, 12.0)
    assert told == [("no slot of 3 became free in time", 12.0)]
    if place is Place.SLOT:
        assert actor.start.deadline.when == 23.0, "from when the next one came"
    else:
        assert (actor.start.deadline, timers.all) == (None, [])


def test_who_is_never_asked_to_make_room_is_listed_without_being_looked_at() -> None:
    done: list[Any] = []
    admission: Any = object.__new__(Admission)
    admission.view = SimpleNamespace(
        rest_order=SimpleNamespace(add=lambda actor, live: done.append((actor, live)))
    )
    admission.starts = SimpleNamespace(count=lambda _place: 4)
    admission.look = lambda: done.append("look")
    for is_shared in (False, True):
        actor: Any = SimpleNamespace(
            address=SimpleNamespace(is_shared=is_shared), idling=SimpleNamespace(is_listed=False)
        )
        admission.rested(actor)
        assert actor.idling.is_listed is not is_shared
        assert done == ([(actor, 4), "look"] if is_shared else [])


def test_for_slots_wait_first_who_has_one_set_aside_then_who_is_called_then_who_is_visited() -> None:
    def actor(name: str, scope: str = "shared") -> Any:
        return SimpleNamespace(
            address=Address(name, scope), start=SimpleNamespace(place=Place.SLOT, since=1.0)
        )

    visited, called, kept = actor("visited"), actor("called"), actor("kept")
    session = actor("called", "session:x")
    asks = SimpleNamespace(
        kept=lambda: {"kept": None}, shared_actor=lambda _: kept, is_visit=lambda who: who is visited
    )
    starts = SimpleNamespace(at=lambda _place: [visited, kept, session, called])
    view = PoolView(cast("Any", None), cast("Any", starts), cast("Any", asks))
    assert [(one.who, one.is_kept, one.group) for one in view._queue()] == [
        (kept, True, None), (session, False, "called"), (called, False, None), (visited, False, None),
    ]  # fmt: skip


@pytest.mark.parametrize("of_visit", [False, True])
def test_an_address_that_was_made_for_a_visit_is_stopped_when_the_lists_are_known(
    of_visit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Any] = []
    visiting: Any = object.__new__(Visiting)
    record = SimpleNamespace(server=SimpleNamespace(visit=None))
    monkeypatch.setattr(discovery, "record_of", lambda _actor: record)
    scope = "call:catalogue" if of_visit else "session:x"
    visiting.learned(
        SimpleNamespace(
            address=Address("a", scope),
            stop=lambda ending, patience: stopped.append((ending.reason, patience)),
        )
    )
    assert stopped == ([(Reason.VISIT_OVER, 0)] if of_visit else [])


def test_a_root_is_a_path_a_uri_or_what_the_caller_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_root("file:///a/b") == {"uri": "file:///a/b"}
    assert as_root(tmp_path) == as_root(str(tmp_path)) == {"uri": tmp_path.as_uri()}
    assert as_root("x y") == {"uri": (tmp_path / "x y").as_uri()}
    assert as_root({"uri": "x:/", "name": "n"}) == {"uri": "x:/", "name": "n"}


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [*product(Place, Place, (False, True))],
    ids=lambda value: value.name.lower() if isinstance(value, Place) else str(value),
)
def test_the_reserve_is_counted_afresh_from_the_end_of_a_connection_over_the_limit(
    before: Place, after: Place, is_kept: bool
) -> None:
    for held in (1, 2, 3, 4):  # of two that there are, when the actor has moved
        admission: Any = object.__new__(Admission)
        actor: Any = SimpleNamespace(start=SimpleNamespace(place=before, deadline=1.0))
        admission._reserve_from = -math.inf
        admission._context = SimpleNamespace(backend=SimpleNamespace(now=lambda: 20.0))
        admission.starts = SimpleNamespace(move=lambda who, place: setattr(who.start, "place", place))
        admission.view = SimpleNamespace(
            is_kept=lambda _actor: is_kept, shared=lambda held=held: held, capacity=2
        )
        admission.look = lambda: None
        admission.move(actor, after)
        is_over = before in HOLDS_SLOT and after not in HOLDS_SLOT and not is_kept and held >= 2
        assert admission._reserve_from == (20.0 if is_over else -math.inf)


@pytest.mark.parametrize(("is_stateless", "url"), [*product((False, True), (None, "http://x/mcp"))])
def test_only_a_server_that_keeps_nothing_of_us_gives_its_slot_back(
    is_stateless: bool, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of 2026-07-28 has no session either, but it runs."""
    moved: list[Place] = []
    record = ServerRecord(ServerDefinition("a", url=url), parent=ServerRecord(ServerDefinition("a", url=url)))
    record.gatekeeper = cast("Any", SimpleNamespace(connected=lambda _actor: None))
    for one in (record, record.server):
        one.note_failure("old", 1.0, 2)
    told: list[Any] = []
    monkeypatch.setattr(_supervision, "record_of", lambda _actor: record)
    supervision: Any = object.__new__(Supervision)
    supervision.starter = SimpleNamespace(
        admission=SimpleNamespace(move=lambda _actor, place: moved.append(place))
    )
    supervision.visiting = SimpleNamespace(learned=lambda _actor: None)
    supervision._learn = lambda *_: None
    supervision._failing = lambda *said: told.append(said)
    start = SimpleNamespace(by_policy=True, since=5.0)
    actor: Any = SimpleNamespace(address=Address("a"), start=start, connected_at=7.0)
    hello = SimpleNamespace(is_stateless=is_stateless, is_its_choice=False)
    supervision.ready(actor, hello, None, 1)
    assert moved == [Place.OUT if is_stateless and url else Place.LIVE]
    assert (actor.start.by_policy, record.failure, record.server.failure) == (False, None, None)
    assert (record.failed_starts, record.server.failed_starts, told) == (0, 0, [("a", None)])
    assert (record.start_took, record.server.start_took) == (2.0, 2.0)


# ---- how a server is reached ---------------------------------------------------------------------------------------


class Told:
    """Stands for what the connectors tell of what they learn."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.variables = {"TOKEN": "of-the-session"}

    def connecting(self, definition: ServerDefinition) -> None:
        self.said.append(("connecting", definition.name, definition.url))


def connectors_of(
    told: Told, settings: Settings, *, auth: Any = None, folder: Path | None = None
) -> tuple[Connectors, KnownSecrets, Sessions]:
    secrets, sessions = KnownSecrets(), Sessions(Callbacks())
    made = Connectors(
        cast("Any", "the backend"), lambda: settings, cast("Any", "the guard"), secrets, "run", auth, sessions,
        lambda: cast("Any", told), folder,
    )  # fmt: skip
    return made, secrets, sessions


SESSION = "${session.TOKEN}"
PLANTED = "planted-in-the-session"


@pytest.mark.parametrize("scope", ["session:x", "session:y"])
def test_a_secret_of_a_session_is_known_of_its_own_children_alone(scope: str) -> None:
    made, secrets, sessions = connectors_of(Told(), Settings())
    sessions.open("x", {"TOKEN": PLANTED})
    sessions.open("y", {})
    definition = ServerDefinition("a", command="x", env={"A_TOKEN": SESSION})
    if scope == "session:y":
        with pytest.raises(ConnectFailed, match="TOKEN"):
            made(definition, Address("a", scope), 1)
        return
    connector: Any = made(definition, Address("a", scope), 7)
    assert connector._definition.env == {"A_TOKEN": PLANTED}
    assert secrets.of_server("a", "x").without(PLANTED) == "***"
    assert secrets.of_server("a", "y").without(PLANTED) == PLANTED
    assert secrets.of_server("a", None).without(PLANTED) == PLANTED


def test_a_secret_that_only_the_settings_let_in_is_known_before_the_server_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANY_API_KEY", "planted-in-the-environment")
    monkeypatch.setenv("WHATEVER_ELSE", "q7Zk2Wm9x4TrB8Lp")
    made, secrets, _ = connectors_of(Told(), Settings(inherit_env=True))
    definition = ServerDefinition("a", command="x", env={"A": "${ANY_API_KEY}"})
    connector: Any = made(definition, Address("a"), 1)
    assert (connector._definition.inherit_env, connector._definition.env["A"]) == (
        True,
        "planted-in-the-environment",
    )
    assert secrets.of_server("a", None).without("planted-in-the-environment") == "***"
    assert secrets.of_server("a", None).without("q7Zk2Wm9x4TrB8Lp") == "***", "it is given that, too"


def test_a_child_of_ours_that_is_no_server_is_started_at_the_root_with_a_tag_that_no_server_has() -> None:
    made, _, _ = connectors_of(Told(), Settings())
    first, second = (made.helper("h", ["python", "-I", "x.py"], 1_000) for _ in range(2))
    server: Any = made(ServerDefinition("h", command="python"), Address("h"), 1)
    found: list[Any] = [first, second]
    assert len({*(one._tag for one in found), server._tag}) == 3
    definition = found[0]._definition
    assert (definition.command, definition.args, definition.cwd) == ("python", ("-I", "x.py"), "/")
    assert [one._settings.max_line for one in (*found, server)] == [1_000, 1_000, Settings().max_line]


@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("command", ["npx", "/usr/bin/npx", "npm", "node"])
def test_npm_is_done_without_where_the_server_or_else_the_settings_say_so(
    own: bool | None, general: bool, command: str, tmp_path: Path
) -> None:
    definition = ServerDefinition("a", command=command, args=("exec", "x") if command == "npm" else ("x",))
    definition = attrs.evolve(definition, resolve_npx=own)
    settings = Settings(resolve_npx=general)
    without = (general if own is None else own) and command != "node"
    for folder, notes in ((tmp_path, tmp_path / "npx"), (None, None)):
        made, _, _ = connectors_of(Told(), settings, folder=folder)
        one, another = (made(definition, Address("a"), number) for number in (1, 2))
        assert isinstance(one, NpxConnector) is bool(without)
        if isinstance(one, NpxConnector) and isinstance(another, NpxConnector):
            assert (one.notes, one.silent is another.silent) == (notes, True)


def test_what_a_server_over_http_learns_is_known_of_the_session_it_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(login, "auth_for", lambda definition, **given: asked.append((definition, given)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    told = Told()
    made, secrets, sessions = connectors_of(told, Settings(oauth_dir="/pi"))
    sessions.open("x", {"TOKEN": "planted-token"})
    definition = ServerDefinition("a", url="http://h.example/mcp", headers={"X": SESSION})
    connector: Any = made(definition, Address("a", "session:x"), 1)
    assert told.said == [("connecting", "a", "http://h.example/mcp")]
    connector._auth(connector._definition)
    ((expanded, given),) = asked
    assert (expanded.headers, expanded.pi_logins) == ({"X": "planted-token"}, "/pi")
    assert given["environ"]["session.TOKEN"] == "planted-token"
    given["learn"]((Hidden("TOKEN", "planted-by-login"),))
    connector._learn((Hidden("TOKEN", "planted-by-command"),))
    for text in ("planted-by-login", "planted-by-command"):
        assert secrets.of_server("a", "x").without(text) == "***"
        assert secrets.of_server("a", None).without(text) == text
    own: Any = object()
    made, _, _ = connectors_of(told, Settings(), auth=own)
    last: Any = made(attrs.evolve(definition, headers={}), Address("a"), 1)
    assert last._auth is own, "a program's own goes before ours"


@pytest.mark.parametrize("kind", ["socket", "in process"])
def test_a_server_behind_a_socket_or_in_the_process_is_reached_as_that(kind: str, tmp_path: Path) -> None:
    definition = ServerDefinition("a", socket=str(tmp_path / "s"))
    if kind == "in process":
        definition = ServerDefinition("a", in_process=object())
    made, _, _ = connectors_of(Told(), Settings())
    expected = {"socket": UnixConnector, "in process": InProcessConnector}[kind]
    assert isinstance(made(definition, Address("a"), 1), expected)


@pytest.mark.parametrize("session", [None, "x"])
def test_what_is_asked_for_at_a_start_is_put_in_its_place_and_hidden_for_that_session(
    session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def answers(server: str, commands: Any, limit: float) -> dict[str, str]:
        commands = list(commands)
        asked.append(("commands", server, [(one.command, one.place) for one in commands], limit))
        return {one.command: f"said-by-{one.command}" for one in commands}

    async def kept(server: str, entries: Any, limit: float) -> dict[tuple[str, str], str]:
        asked.append(("keyring", server, [(one.service, one.name, one.place) for one in entries], limit))
        return {("svc", "me"): "kept-in-keyring"}

    monkeypatch.setattr(secret_sources, "answers", answers)
    monkeypatch.setattr(secret_sources, "kept", kept)
    monkeypatch.setattr(
        secret_sources,
        "variables_in",
        lambda file, name, _asked: {"PLAIN_KEY": f"{name}-of-{file}", "OWN": "of-the-file"},
    )
    made, secrets, sessions = connectors_of(Told(), Settings(secret_timeout=3.5, connect_timeout=9.0))
    sessions.open("x", {"TOKEN": "planted-token"})
    entry = {"A": "!one", "B": "${keyring:svc/me}", "OWN": "mine", **({"C": SESSION} if session else {})}
    definition = ServerDefinition(
        "a", command="x", args=("--key", "!one", "!two"), env=entry, env_file="/the/.env"
    )
    address = Address("a") if session is None else Address.of_session("a", session)
    connector: Any = made(definition, address, 1)
    assert isinstance(connector, AskingConnector)

    async def main() -> None:
        complete = await connector._complete()
        assert complete.args == ("--key", "said-by-one", "said-by-two")
        assert dict(complete.env) == {
            "PLAIN_KEY": "a-of-/the/.env",
            "OWN": "mine",
            "A": "said-by-one",
            "B": "kept-in-keyring",
            **({"C": "planted-token"} if session else {}),
        }

    anyio.run(main)
    assert asked == [
        ("commands", "a", [("two", "args.2"), ("one", "args.1")], 3.5)
        if asked[0][2][0][0] == "two"
        else ("commands", "a", [("one", "args.1"), ("two", "args.2")], 3.5),
        ("keyring", "a", [("svc", "me", "env.B")], 3.5),
    ]
    for text in ("said-by-one", "said-by-two", "kept-in-keyring", "a-of-/the/.env"):
        assert secrets.of_server("a", session).without(text) == "***"
        if session is not None:
            assert secrets.of_server("a", None).without(text) == text


@pytest.mark.parametrize(
    ("value", "source"), [("!say", "a command gives"), ("${keyring:s/n}", "the keyring keeps")]
)
def test_a_header_that_cannot_be_sent_says_where_it_came_from_and_nothing_of_it(
    value: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers(*_: Any) -> dict[str, str]:
        return {"say": "planted\nsecret"}

    async def kept(*_: Any) -> dict[tuple[str, str], str]:
        return {("s", "n"): "planted\nsecret"}

    monkeypatch.setattr(secret_sources, "answers", answers)
    monkeypatch.setattr(secret_sources, "kept", kept)
    made, _, _ = connectors_of(Told(), Settings())
    connector: Any = made(
        ServerDefinition("a", url="https://h.example", headers={"X-Key": value}), Address("a"), 1
    )

    async def main() -> None:
        with pytest.raises(ConnectFailed) as failed:
            await connector._complete()
        assert f"headers.X-Key, which {source}: " in str(failed.value)
        assert "planted" not in str(failed.value)
        assert failed.value.server == "a"

    anyio.run(main)


# ---- what is learned, and what is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize("capability", ["tools", "resources", "prompts", "logging"])
def test_a_list_that_failed_is_unknown_and_one_of_a_server_without_it_is_empty(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _learned, "record_of", lambda _: SimpleNamespace(server=SimpleNamespace(era_hint="2025-06-18"))
    )
    hello: Any = SimpleNamespace(
        capabilities={capability: {}},
        instructions="be\u200b kind",
        server_info={"name": "s"},
        protocol_version="2026-07-28",
    )
    said = tuple(f"cut {number}\u200b" for number in range(25))
    lists: Any = SimpleNamespace(tools=None, resources=None, templates=None, prompts=None)
    lists.problems = ("cut 0\u200b", *said)
    actor: Any = SimpleNamespace(address=Address("a", "session:x"), incarnation=None)
    before = time.time()
    entry = _learned.entry_of(actor, "hash", hello, lists, 7)
    expected = {name: None if name == capability else () for name in ("tools", "resources", "prompts")}
    assert {"tools": entry.tools, "resources": entry.resources, "prompts": entry.prompts} == expected
    assert entry.templates == expected["resources"]
    assert (entry.server, entry.definition_hash, entry.revision) == ("a", "hash", 7)
    assert (entry.instructions, entry.server_info) == ("be\u200b kind", {"name": "s"})
    assert entry.capabilities == {capability: {}}
    assert entry.protocol_version == "2025-06-18", "what it chose freely, and not what it was held to"
    assert entry.problems == tuple(f"cut {number}" for number in range(20)), "each once, and not all"
    assert before <= entry.fetched_at <= time.time()
    found = ({"name": "x"},)
    for name in ("tools", "resources", "templates", "prompts"):
        setattr(lists, name, found)
    entry = _learned.entry_of(actor, "hash", hello, lists, 7)
    assert [entry.tools, entry.resources, entry.templates, entry.prompts] == [found] * 4
    hello.instructions = None
    assert _learned.entry_of(actor, "hash", hello, lists, 7).instructions is None


def test_what_two_files_have_to_say_is_both_told_and_older_than_what_is_learned_now() -> None:
    class Kept(MemoryStore):
        def load(self, wanted: Any) -> Any:
            return attrs.evolve(super().load(wanted), warning="of the catalogue")

    class Pinned(MemoryPins):
        def load(self, wanted: Any) -> Any:
            return super().load(wanted)[0], "of the pins"

    config = parse_config({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}})
    hashes = catalogue_keys(config)
    old = ServerEntry("a", hashes["a"], tools=({"name": "t"},), revision=9)
    found = _learned.recall(config, Kept({"a": old, "b": ServerEntry("b", "another", revision=8)}), Pinned())
    assert found.warnings == ["of the catalogue", "of the pins"]
    assert [*found.entries] == ["a"], "another definition's is not its own"
    assert (found.entries["a"].tools, found.entries["a"].revision) == (({"name": "t"},), 0)
    assert (found.hashes, found.pin_keys, found.pins) == (hashes, pin_keys(config), {})
    assert _learned.recall(config, MemoryStore(), MemoryPins()).warnings == []


def test_pins_in_memory_are_changed_by_nobody_who_was_shown_them() -> None:
    pins, key = MemoryPins(), PinKey("k", "origin")

    def add(_: str, known: ServerPins | None) -> ServerPins:
        known = known or ServerPins(1.0)
        known.learn({"pay": "1"}, 1.0)
        return known

    assert list(pins.change({"a": key}, add)[0]) == ["a"]
    shown = pins.load({"a": key, "b": key, "c": key})[0]
    assert list(shown) == ["a"]
    shown["a"].learn({"pay": "2", "look": "3"}, 2.0)
    again = pins.load({"a": key})[0]["a"]
    assert (again.tools, again.changed) == ({"pay": "1"}, {})
    assert pins.load({"a": PinKey("another", "one")}) == ({}, None)
    assert pins.change({"d": key}, lambda _name, _known: None) == ({}, None)


def test_a_store_is_a_file_of_the_user_or_one_that_is_named_or_memory(tmp_path: Path) -> None:
    memory = open_store(":memory:", Settings())
    assert (memory.blocks, own_folder(memory)) == (False, None)
    assert isinstance(pin_store(memory), MemoryPins)
    named = open_store(tmp_path / "mine.json", Settings(cache_max_age=123.0))
    assert isinstance(named, FileStore)
    assert (named.blocks, named.file.path, named.file.max_age) == (True, tmp_path / "mine.json", 123.0)
    assert own_folder(named) == tmp_path
    pins: Any = pin_store(named)
    assert pins.path == tmp_path / "mine.pins.json"
    users = open_store(None, Settings())
    assert isinstance(users, FileStore)
    assert users.file.path == default_cache_path()
    (tmp_path / "mine.json").write_text("{")
    assert named.load({}).warning is not None
    assert FileStore(CatalogueFile(tmp_path / "none.json")).load({}) == Loaded({})


def test_a_server_that_is_given_in_code_is_broken_no_more() -> None:
    config = parse_config({"mcpServers": {"a": {}, "b": {}, "c": {"command": "x"}}})
    given = object()
    found = with_objects(config, {"a": given, "d": given})
    assert ([*found.broken], {*found.servers}) == (["b"], {"c", "a", "d"})
    assert (found.servers["a"].in_process, found.servers["a"].name) == (given, "a")
    assert with_objects(config, {}) is config


# ---- words and sums ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [*product((0, 3), repeat=4)])
def test_a_report_adds_up_when_each_accepted_call_has_one_end(numbers: tuple[int, int, int, int]) -> None:
    accepted, completed, failed, cancelled = numbers
    report = DrainReport(accepted, completed, failed, cancelled, 2, {"timeout": 1, "server_busy": 2})
    assert report.adds_up is (completed + failed + cancelled == accepted)
    assert str(report) == (
        f"{accepted} calls accepted: {completed} completed, {failed} failed, {cancelled} cancelled "
        "(2 refused: 1 timeout, 2 server_busy)"
    )
    assert str(DrainReport(1, 1, 0, 0, 0)).endswith("(0 refused)")


def test_of_wrapped_exceptions_the_only_one_comes_out_and_of_several_none_is_lost() -> None:
    one, two = ValueError("1"), KeyError("2")
    assert sole(ExceptionGroup("", [one])) is one
    assert sole(ExceptionGroup("", [ExceptionGroup("", [ExceptionGroup("", [one])])])) is one
    both = ExceptionGroup("", [one, two])
    assert sole(both) is both
    assert sole(ExceptionGroup("", [both])) is both


def test_what_is_no_result_is_told_with_its_tool_and_its_server_and_that_it_came() -> None:
    target = Target("a_echo", "a", "tool", "echo", {"name": "echo"}, "", None)

    async def main() -> None:
        for raw in (b"[]", b"3", b"{", b""):
            with pytest.raises(ProtocolFault) as small:
                caller.tool_result(raw, target)
            with pytest.raises(ProtocolFault) as large:
                await caller.tool_result_in_turns(raw, target)
            for fault in (small.value, large.value):
                assert (fault.server, fault.tool, fault.reach) == ("a", "a_echo", "answered")
                assert 'Server "a" answered with something that is no result' in str(fault)
        assert caller.tool_result(b'{"a": 1}', target) == {"a": 1}
        assert await caller.tool_result_in_turns(b'{"a": 1}', target) == {"a": 1}

    anyio.run(main)


def test_an_answer_that_is_scrubbed_or_decoded_is_not_lost_to_a_cancellation(backend: str) -> None:
    async def main() -> None:
        found: list[Any] = []

        def work() -> Any:
            yield
            yield
            return b"{}"

        with anyio.CancelScope() as scope:
            scope.cancel()
            found.append(await caller.scrubbed_in_turns(work()))
        with anyio.CancelScope() as scope:
            scope.cancel()
            found.append(await caller.decoded_in_turns(b'{"x": [1, 2]}'))
        assert found == [b"{}", {"x": [1, 2]}]

    run_virtual(backend, main)


def test_each_reason_that_a_server_cannot_be_used_refuses_with_its_own_code_and_next_step() -> None:
    problem = Problem("f: mcpServers.a", "is bad", code="server_untrusted")
    for found, use, code, words in (
        (defined(ServerDefinition("a"), problem), Use.BROKEN, "server_untrusted", "cannot be used: f: mcp"),
        (defined(ServerDefinition("a", disabled=True), problem), Use.BROKEN, "server_untrusted", "is bad"),
        (
            defined(ServerDefinition("a", disabled=True)),
            Use.DISABLED,
            "server_disabled",
            "greenroom enable a",
        ),
        (removed("a"), Use.REMOVED, "server_not_connected", "Add it again"),
        (drained("a"), Use.DOWN, "server_not_connected", "was drained"),
        (needs_login("a", "no token"), Use.NEEDS_LOGIN, "auth_required", "no token"),
    ):
        assert found.refusal is not None
        assert (found.use, found.refusal.code, found.refusal.server) == (use, code, "a")
        assert words in str(found.refusal)
        assert not found.is_usable
        by_definition = use in (Use.BROKEN, Use.DISABLED, Use.REMOVED)
        assert found.is_by_definition is by_definition
        another = drained("b")
        assert found.unless_defined(another) is (found if by_definition else another)
    usable = defined(ServerDefinition("a"))
    assert (usable.is_usable, usable.refusal, usable.is_by_definition) == (True, None, False)


def test_a_callback_that_fails_is_told_of_the_server_it_heard() -> None:
    told: list[Any] = []
    events: Any = SimpleNamespace(
        emit=lambda sort, *address, **more: told.append((sort, address, more["code"], more["words"]))
    )
    try:
        raise ValueError("planted")
    except ValueError as error:
        note_callback(events, Address("a"), error)
        note_timer(events, error)
    (heard, timer) = told
    assert heard[:3] == (Note, (Address("a"),), NoteCode.CALLBACK)
    assert "Traceback" in heard[3]
    assert "planted" in heard[3]
    assert timer == (Note, (), NoteCode.BUG, "a timer failed: ValueError: planted")


# ---- sessions: who they are, what they hear, and who is asked --------------------------------------------------------


def test_a_session_is_open_once_ends_once_and_leaves_nothing_of_its_own() -> None:
    own, of_x, given = Callbacks(), Callbacks(roots=[]), {"TOKEN": "1"}
    sessions, view = Sessions(own), cast("Any", SimpleNamespace(shows=lambda server: server == "a"))

    async def approve(_: Any) -> None: ...

    sessions.open("x", given, of_x, view, approve)
    given["TOKEN"] = "another"
    assert dict(sessions.variables("x")) == {"TOKEN": "1"}, "what was given at the start"
    assert (sessions.variables(None), sessions.variables("y")) == ({}, {})
    assert ([*sessions.with_hosts], sessions.answers_for("x"), sessions.host("x")) == (["x"], "x", of_x)
    assert [sessions.sees("x", name) for name in "ab"] == [True, False]
    assert (list(sessions.who_see("a")), list(sessions.who_see("b"))) == (["x"], [])
    assert (sessions.sees_all("x"), sessions.sees_all(None), sessions.sees(None, "b")) == (False, True, True)
    assert sessions.approvers == {"x": approve}
    with pytest.raises(UsageError, match="is already open"):
        sessions.open("x", {})
    sessions.end("x")
    with pytest.raises(UsageError, match="is just ending"):
        sessions.open("x", {})
    assert not sessions.is_open("x")
    with pytest.raises(KeyError):
        sessions.answers_for("x")
    assert sessions.greeting("x", Address("a")) == Greeting()
    sessions.answer_with(of_x, "x")
    assert (list(sessions.with_hosts), sessions.approvers, sessions.variables("x")) == ([], {}, {})
    assert sessions.sees_all("x")
    sessions.ended("x")
    sessions.open("x", {})
    assert sessions.is_open("x")
    assert (sessions.answers_for("x"), sessions.host(None)) == (None, own)
    sessions.answer_with(of_x, "x")
    assert sessions.answers_for("x") == "x"
    sessions.answer_with(None, "x")
    assert sessions.answers_for("x") is None, "the room answers for it again"
    sessions.answer_with(of_x, None)
    assert (sessions.host(None), sessions.greeting("x", Address("a"))) == (of_x, of_x.greeting(Address("a")))
    sessions.answer_with(None, None)
    assert sessions.host(None) is own


@pytest.mark.parametrize(
    "variables", [{"a-b": "x"}, {"": "x"}, {"a b": "x"}, {"A ": "x"}, {"A": 5}, {"A": None}]
)
def test_a_session_with_a_variable_that_cannot_be_used_is_not_open(variables: dict[str, Any]) -> None:
    sessions = Sessions(Callbacks())
    with pytest.raises(UsageError, match=f"correct {next(iter(variables))!r}"):
        sessions.open("x", {"GOOD": "1", **variables}, Callbacks(roots=[]))
    assert not sessions.is_open("x")
    assert not sessions.with_hosts


@pytest.mark.parametrize("session", [None, "x"])
def test_which_values_a_session_lacks_is_said_with_whose_they_would_be(session: str | None) -> None:
    sessions = Sessions(Callbacks())
    sessions.open("x", {"B": "1"})
    definition = ServerDefinition("a", command="x", env={name: f"${{session.{name}}}" for name in "CBA"})
    missing = ("A", "B", "C") if session is None else ("A", "C")
    assert sessions.missing(definition, session) == missing
    with pytest.raises(CredentialNeeded) as refused:
        sessions.check(definition, session)
    assert refused.value.variables == missing
    assert ("this session does not give it" in str(refused.value)) is (session is not None)
    assert ("this call is in no session" in str(refused.value)) is (session is None)
    sessions.check(ServerDefinition("a", command="x"), session)


class Floor:
    """A directory of two servers and of the children that sessions have of them."""

    def __init__(self) -> None:
        self.sessions = Sessions(Callbacks())
        self.records = {
            name: SimpleNamespace(log_level=None, definition=SimpleNamespace(name=name), parent=None)
            for name in "ab"
        }
        self.told: list[Any] = []
        self.children: list[Any] = []
        self.shared = {name: self._actor(Address(name), self.records[name]) for name in "ab"}
        self.actors: dict[Address, Any] = {}

    def _actor(self, address: Address, record: Any) -> Any:
        actor = SimpleNamespace(address=address, record=record)
        actor.subscriptions_changed = lambda: self.told.append(address)
        return actor

    def child(self, server: str, session: str) -> Any:
        record = SimpleNamespace(parent=self.records[server], log_level=None)
        self.children.append(self._actor(Address.of_session(server, session), record))
        return self.children[-1]

    def in_reach(self, session: str | None) -> list[Any]:
        everybody = [*self.shared.values(), *self.children]
        return [one for one in everybody if session is None or one.address.session == session]

    def shared_actor(self, server: str) -> Any:
        return self.shared[server]


RANKS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def test_a_message_is_heard_at_its_level_and_above_and_so_is_one_of_no_level() -> None:
    for said, least in product(RANKS, RANKS):
        assert is_heard(said, least) is (RANKS.index(said) >= RANKS.index(least))
        assert is_heard(said, None)
    for odd in ("loud", None, 5, ""):
        assert is_heard(odd, "emergency")


@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_each_server_is_told_what_the_most_talkative_wants_and_each_session_its_own(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_messages, "record_of", lambda actor: actor.record)
    chance, floor = Random(seed), Floor()
    only_a: Any = SimpleNamespace(shows=lambda server: server == "a")
    for session, host, view in (("x", Callbacks(), None), ("y", None, None), ("z", Callbacks(), only_a)):
        floor.sessions.open(session, {}, host, view)
    children = {(server, session): floor.child(server, session) for server in "ab" for session in "xyz"}
    levels = LogLevels(cast("Any", floor))
    wanted: dict[Any, dict[Any, str]] = {}
    for _ in range(12):
        session, server = chance.choice([None, "x", "y", "z"]), chance.choice([None, "a", "b"])
        before = {name: record.log_level for name, record in floor.records.items()}
        floor.told.clear()
        is_set = chance.random() < 0.8 or session is None
        if is_set:
            level = chance.choice(RANKS)
            levels.set(level, server, session)
            wanted[session] = {None: level} if server is None else {**wanted.get(session, {}), server: level}
        elif session is not None:
            levels.forget(session)
            wanted.pop(session, None)

        def of(who: Any, name: str) -> str | None:
            own = wanted.get(who, {})
            return own.get(name, own.get(None))

        for name in "ab":
            heard = [of(who, name) for who in (None, "x", *("z" if name == "a" else ""))]
            most = min((one for one in heard if one is not None), key=RANKS.index, default=None)
            assert levels.shared(name) == most
            assert floor.records[name].log_level == (before[name] if most is None else most)
            assert floor.told.count(Address(name)) == (floor.records[name].log_level != before[name])
            for who in (None, "x", "y", "z"):
                assert levels.wanted(who, name) == of(who, name)
                assert levels.least(who, name) == (of(who, name) or of(None, name))
        for (name, who), child in children.items():
            is_told = is_set and session in (None, who) and server in (None, name)
            assert floor.told.count(child.address) == is_told
            if is_told:
                assert child.record.log_level == levels.least(who, name)
                assert levels.of(child.address.scope, cast("Any", floor.records[name])) == levels.least(
                    who, name
                )


def routing_over(floor: Floor) -> Routing:
    directory: Any = SimpleNamespace(actors=floor.actors, log_levels=LogLevels(cast("Any", floor)))
    return Routing(floor.sessions, lambda: directory)


def in_flight(floor: Floor, server: str, *clients: str | None) -> None:
    calls = SimpleNamespace(open=[SimpleNamespace(client=client) for client in clients])
    floor.actors[Address(server)] = SimpleNamespace(calls=calls)


@pytest.mark.parametrize(
    "method",
    [
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
    ],
)
def test_what_is_for_everybody_is_heard_by_everybody_who_sees_the_server(method: str) -> None:
    floor = Floor()
    only_a: Any = SimpleNamespace(shows=lambda server: server == "a")
    for session, view in (("x", None), ("y", None), ("z", only_a)):
        floor.sessions.open(session, {}, Callbacks(), view)
    in_flight(floor, "b", "x")
    assert routing_over(floor).hearers(Address("b"), method, {}) == [None, "x", "y"]
    assert routing_over(floor).hearers(Address("a"), method, {}) == [None, "x", "y", "z"]
    child = Address.of_session("b", "y")
    assert routing_over(floor).hearers(child, method, {}) == [None, "y"], "its own child's is its own"
    assert routing_over(floor).hearers(Address.of_session("b", "z"), method, {}) == [None]
    assert routing_over(floor).hearers(Address.of_session("b", "gone"), method, {}) == [None]


def test_what_belongs_to_a_call_is_heard_by_its_caller_and_what_belongs_to_none_by_the_only_one() -> None:
    floor, said = Floor(), "x/own"
    floor.sessions.open("x", {}, Callbacks())
    routing = routing_over(floor)
    assert routing.hearers(Address("b"), said, {}) == [None, "x"], "it is the only one"
    in_flight(floor, "b", None)
    assert routing.hearers(Address("b"), said, {}) == [None], "it is the room's call"
    in_flight(floor, "b")
    floor.sessions.open("y", {}, Callbacks())
    floor.sessions.open("plain", {})
    assert routing.hearers(Address("b"), said, {}) == [None]
    for clients, heard in (
        (("x",), [None, "x"]),
        (("x", "y"), [None, "x", "y"]),
        (("plain",), [None]),
        (("left", "y"), [None, "y"]),
        ((None, "x"), [None, "x"]),
    ):
        in_flight(floor, "b", *clients)
        assert sorted(routing.hearers(Address("b"), said, {}), key=str) == sorted(heard, key=str)
    only_a: Any = SimpleNamespace(shows=lambda server: server == "a")
    floor.sessions.open("z", {}, Callbacks(), only_a)
    in_flight(floor, "b", "z", "x")
    assert routing.hearers(Address("b"), said, {}) == [None, "x"], "its profile shows it no more"


def test_a_question_of_a_call_goes_to_its_caller_and_one_that_may_be_of_several_to_nobody() -> None:
    async def answer(_: Any) -> Any: ...

    floor = Floor()
    for session in "xy":
        floor.sessions.open(session, {}, Callbacks(on_sampling=answer))
    floor.sessions.open("plain", {})
    routing, sample = routing_over(floor), "sampling/createMessage"

    def asked(address: Address, method: str = sample, call: Any = None, **params: Any) -> Any:
        return routing.asked(ServerRequest(address, method, params, call=call))

    shared = Address("b")
    for client, who in (("x", "x"), ("plain", None), (None, None)):
        assert asked(shared, call=SimpleNamespace(client=client)) == who
    assert asked(Address.of_session("b", "y")) == "y"
    for gone in (
        lambda: asked(shared, call=SimpleNamespace(client="left")),
        lambda: asked(Address.of_session("b", "left")),
    ):
        with pytest.raises(RpcRefusal) as refused:
            gone()
        assert (refused.value.rpc_code, refused.value.data) == (-32603, {"reason": "client_gone"})
    with pytest.raises(RpcRefusal) as refused:
        asked(shared)
    assert refused.value.rpc_code == -32603
    assert refused.value.data == {"reason": "several_clients", "server": "b"}
    assert "which of 2 this" in refused.value.message
    with pytest.raises(RpcRefusal) as refused:
        asked(shared, "roots/list")
    assert refused.value.rpc_code == -32601, "nobody can answer it"
    with pytest.raises(RpcRefusal) as refused:
        asked(shared, "x/own")
    assert refused.value.data == {"reason": "several_clients", "server": "b"}
    in_flight(floor, "b", "y", "left")
    assert asked(shared) == "y"
    in_flight(floor, "b", "y", "x")
    with pytest.raises(RpcRefusal, match="which of 2 this"):
        asked(shared)
    assert routing.able(shared, sample) == ["x", "y"]
    assert routing.able(shared, "x/own") == [None, "x", "y"]


def test_that_an_answer_was_given_elsewhere_is_told_to_who_was_asked_and_not_to_the_next_of_its_name() -> (
    None
):
    floor, done = Floor(), "notifications/elicitation/complete"
    for session in "xy":
        floor.sessions.open(session, {}, Callbacks(roots=[]))
    routing, shared = routing_over(floor), Address("b")

    def ask(client: str, elicitation: Any) -> None:
        call: Any = SimpleNamespace(client=client)
        routing.asked(ServerRequest(shared, "elicitation/create", {"elicitationId": elicitation}, call=call))

    def hears(elicitation: Any, address: Address = shared) -> list[Any]:
        return routing.hearers(address, done, {"elicitationId": elicitation})

    for number in range(3):
        ask("x", f"{number}")
    ask("y", "mine")
    ask("y", 5)
    assert [hears(name) for name in ("0", "2", "mine", "5", "nobody's")] == [
        [None, "x"], [None, "x"], [None, "y"], [None], [None],
    ]  # fmt: skip
    assert hears("0", Address("a")) == [None], "of another server"
    routing.forget("x")
    assert [hears(f"{number}") for number in range(3)] == [[None]] * 3
    assert hears("mine") == [None, "y"]
    for number in range(999):
        ask("x", f"more {number}")
    assert hears("mine") == [None, "y"], "a thousand are remembered"
    ask("x", "one more")
    assert hears("mine") == [None]
    assert hears("more 0") == hears("one more") == [None, "x"], "the oldest is forgotten"


# ---- the end of a room, and what follows the end of a server ---------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "patience"),
    [
        ([None], 7.0),
        ([None, None], 7.0),
        ([3.0, None], 3.0),
        ([None, 9.0], 7.0),
        ([None, 7.0], 7.0),
        ([9.0, 3.0, 5.0], 3.0),
        ([0, None, 4.0], 0),
        ([4.0, 0], 0),
    ],
)
def test_the_least_patience_counts_and_who_says_none_has_the_usual_if_nobody_said_another(
    asked: list[float | None], patience: float
) -> None:
    closing = Closing()
    assert not closing.is_asked_for
    for one in asked:
        closing.ask(one, 7.0)
    assert closing.is_asked_for
    assert closing.patience == patience


def test_a_later_request_with_less_patience_brings_the_end_of_all_servers_nearer(backend: str) -> None:
    closed_with: list[float] = []

    async def main() -> None:
        closing, actor = Closing(), object()
        root: Any = SimpleNamespace(
            close_all=lambda patience: closed_with.append(patience) or [actor],
            supervision=SimpleNamespace(on_closed=lambda *_: None),
        )
        settings = Settings(shutdown_timeout=10.0, stop_timeout=2.0)
        context: Any = SimpleNamespace(
            settings=settings, stop_by=math.inf, backend=SimpleNamespace(now=anyio.current_time)
        )
        closing.ask(None, 30.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(closing.close_servers, context, root)
            await anyio.sleep(1.0)
            assert (closed_with, context.stop_by) == ([8.0], 10.0), "their trees have two seconds of the ten"
            closing.ask(5.0, 30.0)
            assert (closed_with, context.stop_by) == ([8.0, 5.0], 10.0), "it does not begin again"
            closing.ask(20.0, 30.0)
            closing.ask(5.0, 30.0)
            assert closed_with == [8.0, 5.0], "once for the same patience"
            await anyio.sleep(1.0)
            closing.ask(0, 30.0)
            assert closed_with == [8.0, 5.0, 0.0]
            assert context.stop_by == pytest.approx(2.8)
        assert anyio.current_time() == pytest.approx(2.8), "the time is up for all"

    run_virtual(backend, main)


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("is_down", [False, True])
def test_who_may_wait_for_the_next_incarnation_of_a_server_on_its_way_out(
    cause: Cause, by_name: bool, is_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = drained("a").refusal if is_down else None
    monkeypatch.setattr(_endings, "record_of", lambda _: SimpleNamespace(refusal=refusal))
    life = SimpleNamespace(ending=Ending(cause), state=State.DRAINING)
    actor: Any = SimpleNamespace(life=life, is_asked_for_by_name=by_name, address=Address("a"))
    final = cause in (Cause.SCOPE_ENDED, Cause.SHUTDOWN) or (
        cause in (Cause.DRAINED, Cause.DISABLED, Cause.REMOVED) and is_down
    )
    found = _endings.refusal_on_the_way_out(actor)
    if final and not by_name:
        assert found is not None
        assert (found.server, found.code) == ("a", "server_not_connected")
        assert str(found) == f'Server "a" is draining ({Ending(cause)}).'
    else:
        assert found is None
    life.ending = None
    assert _endings.refusal_on_the_way_out(actor) is None


def ended(
    cause: Cause, *, scope: str = "shared", by_name: bool = False, failed: bool = False, is_closing: bool = False,
    visits: bool = False, available: Any = USABLE, lifecycle: Lifecycle = Lifecycle.LAZY,
) -> tuple[Any, Any]:  # fmt: skip
    """What follows this ending, and the record of the server afterwards."""
    failure = ConnectFailed("it failed", server="a") if failed else None
    actor: Any = SimpleNamespace(address=Address("a", scope), is_asked_for_by_name=by_name, failure=failure)
    record = SimpleNamespace(
        visit=actor if visits else None,
        available=available,
        refusal=available.refusal,
        definition=ServerDefinition("a", lifecycle=lifecycle),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_endings, "record_of", lambda _: record)
        return _endings.what_follows(actor, Ending(cause, "why"), None, is_closing=is_closing), record


@pytest.mark.parametrize("cause", list(Cause))
def test_a_room_that_closes_starts_nothing_again_whatever_ended_and_whoever_asked(cause: Cause) -> None:
    for decision, record in (
        ended(cause, is_closing=True, by_name=True, visits=True, lifecycle=Lifecycle.KEEP_ALIVE),
        ended(Cause.SHUTDOWN, by_name=True, visits=True),
    ):
        assert decision.then is Next.GONE
        assert (decision.error.code, decision.error.server) == ("server_not_connected", "a")
        assert record.available is USABLE


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.SHUTDOWN])
def test_a_visit_goes_on_after_an_ending_that_was_not_meant_and_its_failure_is_told(cause: Cause) -> None:
    goes_on = cause in (
        Cause.IDLE_TIMEOUT, Cause.EVICTED, Cause.CONNECT_FAILED, Cause.LOST, Cause.RESTART, Cause.RELOAD,
    )  # fmt: skip
    decision, record = ended(cause, visits=True, failed=True)
    assert (decision.then is Next.CONNECT) is goes_on
    if goes_on:
        failed = cause is Cause.CONNECT_FAILED
        assert (decision.error is not None) is failed
        assert not failed or str(decision.error).endswith("it failed")
        assert record.available is USABLE
    decision, _ = ended(cause, visits=True, available=drained("a"))
    assert decision.then is not Next.CONNECT, "it was taken down meanwhile"


def test_a_child_of_one_call_is_gone_with_its_failure_and_a_login_it_lacked_is_remembered() -> None:
    decision, record = ended(Cause.CONNECT_FAILED, scope="call:1", failed=True)
    assert (decision.then, record.available) == (Next.GONE, USABLE)
    assert str(decision.error).endswith("it failed")
    decision, record = ended(Cause.LOST, scope="call:1")
    assert (decision.then, str(decision.error)) == (Next.GONE, "its call is over")
    decision, record = ended(Cause.NEEDS_AUTH, scope="call:1", failed=True)
    assert (decision.then, record.available.use) == (Next.GONE, Use.NEEDS_LOGIN)
    _, record = ended(Cause.NEEDS_AUTH, scope="call:1", available=removed("a"))
    assert record.available.use is Use.REMOVED, "the definition decides first"


@pytest.mark.parametrize("cause", [Cause.CONNECT_FAILED, Cause.NEEDS_AUTH])
def test_who_asks_by_name_after_a_failure_gets_the_next_start_and_the_others_the_error(cause: Cause) -> None:
    decision, record = ended(cause, by_name=True, failed=True)
    assert decision.then is Next.CONNECT
    assert ("why" if cause is Cause.NEEDS_AUTH else "it failed") in str(decision.error)
    assert record.available is USABLE
    for other in (
        Cause.LOST,
        Cause.BUG,
        Cause.EVICTED,
        Cause.DRAINED,
        Cause.RESTART,
        Cause.RELOAD,
        Cause.IDLE_TIMEOUT,
    ):
        decision, _ = ended(other, by_name=True)
        assert (decision.then, decision.error) == (Next.CONNECT, None)


@pytest.mark.parametrize(
    ("cause", "failed", "use", "words"),
    [
        (Cause.NEEDS_AUTH, True, Use.NEEDS_LOGIN, "why"),
        (Cause.SHUTDOWN, False, None, "The room has closed"),
    ],
)
def test_a_server_that_is_down_says_why(cause: Cause, failed: bool, use: Use | None, words: str) -> None:
    decision, record = ended(cause, failed=failed)
    assert words in str(decision.error)
    if use is None:
        assert decision.then is Next.GONE
        return
    assert (decision.then, record.available.use) == (Next.DOWN, use)
    assert words in str(record.available.refusal)


@pytest.mark.parametrize("cause", [Cause.DRAINED, Cause.DISABLED])
def test_a_server_that_was_taken_down_before_keeps_its_own_reason(cause: Cause) -> None:
    before = drained("a") if cause is Cause.DRAINED else defined(ServerDefinition("a", disabled=True))
    decision, record = ended(cause, available=before)
    assert decision.then is Next.DOWN
    assert decision.error is before.refusal
    assert record.available is before


# ---- a login that somebody makes elsewhere ---------------------------------------------------------------------------


class Logins:
    """What is kept of logins, by where pi keeps its own: the login, and the stamp of its file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[str | None, tuple[str | None, int | None]] = {}
        self.read = 0
        self.now = 50.0
        self.timers: list[tuple[float, Any]] = []
        self.connected: list[str] = []
        self.record = SimpleNamespace(available=needs_login("s", "no token"))
        self.directory: Any = SimpleNamespace(records={"s": self.record}, actors={}, closing=None)
        monkeypatch.setattr(login, "logins", self._at)
        monkeypatch.setattr(login, "may_log_in", lambda definition: definition.name != "never")
        monkeypatch.setattr(login_watch, "record_of", lambda actor: actor.record)
        context: Any = SimpleNamespace(
            backend=SimpleNamespace(now=lambda: self.now),
            timers=SimpleNamespace(at=lambda when, look: self.timers.append((when, look))),
        )
        self.watch = LoginWatch(context, self.directory, self._logged_in)
        self.refuses = False

    def _logged_in(self, server: str) -> None:
        self.connected.append(server)
        if self.refuses:
            raise ConnectFailed("it was disabled", server=server)

    def _at(self, pi: str | None) -> Any:
        def made(_name: str, _url: str) -> str | None:
            self.read += 1
            return self.kept.get(pi, (None, None))[0]

        return SimpleNamespace(made=made, stamp=lambda _name, _url: self.kept.get(pi, (None, None))[1])

    def look(self) -> None:
        """A second later."""
        ((when, look),) = self.timers
        assert when == self.now + 1.0
        self.timers.clear()
        self.now = when
        look()


SITE = ServerDefinition("s", url="http://h/mcp")


def test_a_new_login_connects_its_server_once_and_a_renewed_token_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins = Logins(monkeypatch)
    logins.kept[None] = ("first", 1)
    logins.watch.parked("s")
    assert not logins.timers, "nobody has tried it yet"
    logins.watch.connecting(SITE)
    for _ in range(2):
        logins.watch.parked("s")
    logins.look()
    read = logins.read
    for _ in range(3):
        logins.look()
    assert logins.read == read, "the file has not changed"
    logins.kept[None] = ("first", 2)
    logins.look()
    logins.kept[None] = (None, None)
    logins.look()
    assert logins.connected == []
    logins.kept[None] = ("second", 3)
    logins.look()
    assert (logins.connected, logins.timers) == (["s"], [])
    logins.watch.connecting(SITE)
    logins.watch.parked("s")  # it refuses that one, too
    logins.kept[None] = ("second", 4)
    logins.look()
    assert logins.connected == ["s"]
    logins.kept[None] = ("third", 5)
    logins.look()
    assert logins.connected == ["s", "s"]


def test_nothing_is_looked_at_for_a_server_that_is_parked_no_more_or_in_a_room_that_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins = Logins(monkeypatch)
    logins.watch.connecting(SITE)
    logins.watch.parked("s")
    parked, logins.record.available = logins.record.available, USABLE
    child = SimpleNamespace(record=SimpleNamespace(available=parked))
    logins.directory.actors[Address.of_session("s", "x")] = child
    logins.look()
    assert logins.timers, "a child of it is"
    child.record.available = USABLE
    other = SimpleNamespace(record=SimpleNamespace(available=parked))
    logins.directory.actors[Address.of_session("other", "x")] = other
    logins.look()
    assert not logins.timers
    logins.record.available = parked
    logins.watch.parked("s")
    logins.directory.closing = RoomClosed("closing", server="")
    logins.kept[None] = ("new", 1)
    logins.look()
    assert (logins.connected, logins.timers) == ([], [])


@pytest.mark.parametrize(
    "other",
    [
        ServerDefinition("s", url="http://another/mcp"),
        ServerDefinition("s", url="http://h/mcp", pi_logins="/pi"),
        ServerDefinition("s", command="x"),
    ],
    ids=["another url", "a login of pi", "no url"],
)
def test_a_login_of_what_the_server_was_before_connects_nothing(
    other: ServerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = Logins(monkeypatch)
    logins.watch.connecting(SITE)
    logins.watch.parked("s")
    logins.watch.connecting(other)
    logins.kept[None] = ("of before", 1)
    logins.look()
    assert (logins.connected, logins.timers) == ([], [])
    logins.watch.parked("s")
    if other.url is None:
        assert not logins.timers
        return
    logins.kept["/pi"] = ("of pi", 2)
    logins.look()
    assert logins.connected == ["s"], "where its login is now"


def test_a_server_that_cannot_be_connected_any_more_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins = Logins(monkeypatch)
    logins.watch.connecting(ServerDefinition("never", url="http://h/mcp"))
    logins.watch.parked("never")
    assert not logins.timers
    logins.watch.connecting(SITE)
    logins.watch.parked("s")
    logins.refuses = True
    logins.kept[None] = ("new", 1)
    logins.look()
    assert (logins.connected, logins.timers) == (["s"], [])


# ---- visits ----------------------------------------------------------------------------------------------------------


def visiting_over(
    *, lifecycle: Lifecycle = Lifecycle.LAZY, closing: Any = None, refusal: Any = None, shut: Any = None,
    env: dict[str, str] | None = None, available: Any = USABLE, is_connected: bool = False,
) -> tuple[Visiting, Any, Any, list[Any]]:  # fmt: skip
    """It, the record of the server, the actor that would visit it, and what was done."""
    done: list[Any] = []
    sessions = Sessions(Callbacks())
    sessions.open("x", {})
    definition = ServerDefinition("a", command="c", env=env or {}, lifecycle=lifecycle)
    actor: Any = SimpleNamespace(
        address=Address("a"), is_connected=is_connected, is_awaited=False, is_installing=False,
        life=SimpleNamespace(state=State.IDLE), list_again=lambda told: told(None),
        start=SimpleNamespace(by_policy=True),
        idling=SimpleNamespace(shorten=lambda seconds: done.append(("shorten", seconds))),
        stop=lambda ending, patience: done.append(("stop", ending.reason, patience)),
    )  # fmt: skip
    record: Any = SimpleNamespace(
        definition=definition, available=available, refusal=refusal, visit=None,
        gatekeeper=SimpleNamespace(refuses_start=lambda: shut),
    )  # fmt: skip
    record.server = record
    actor.record = record
    directory: Any = SimpleNamespace(
        records={"a": record}, record=lambda name: {"a": record}[name], sessions=sessions, closing=closing,
        has_standing_address=lambda _server, _session: True, actor=lambda _server, _scope: actor,
        actor_at=lambda address: done.append(address) or actor,
    )  # fmt: skip
    starter: Any = SimpleNamespace(request_by_policy=lambda who: done.append(("asked", who is actor)))
    return Visiting(directory, starter, lambda server: done.append(("over", server))), record, actor, done


def test_a_visit_is_begun_once_and_one_of_a_server_that_is_connected_is_over() -> None:
    visiting, record, actor, done = visiting_over()
    for _ in range(2):
        assert visiting.begin_if_usable("a")
    assert (done, record.visit is actor) == ([("asked", True)], True)
    visiting, record, _, done = visiting_over(is_connected=True)
    assert visiting.begin_if_usable("a")
    assert (done, record.visit) == ([("over", "a")], None)
    for cannot in (
        visiting_over(closing=RoomClosed("closing", server="")),
        visiting_over(available=drained("a")),
        visiting_over(env={"T": SESSION}),
    ):
        assert not cannot[0].begin_if_usable("a")
        assert cannot[3] == []
    assert not visiting.can_begin("nowhere")


def test_a_visit_apart_is_refused_as_a_call_would_be_each_time_with_an_error_of_its_own() -> None:
    closing = RoomClosed("closing", server="")
    down, shut = drained("a").refusal, ServerDown("the gate is shut", server="a")
    for made, expected in (
        (visiting_over(closing=closing, refusal=down), closing),
        (visiting_over(refusal=down, shut=shut), down),
        (visiting_over(shut=shut), shut),
    ):
        errors: list[Any] = []
        for _ in range(2):
            with pytest.raises(CallError) as refused:
                made[0].apart("a", None)
            assert str(refused.value) == str(expected)
            errors.append(refused.value)
        assert len({id(error) for error in (*errors, expected)}) == 3
        assert made[3] == []
    visiting, _, _, done = visiting_over(env={"T": SESSION})
    for session in (None, "x"):
        with pytest.raises(CredentialNeeded):
            visiting.apart("a", session)
    visiting, _, _, done = visiting_over()
    for session in (None, "x"):
        visiting.apart("a", session)
    assert done == [Address.of_call("a", "catalogue"), Address.of_call("a", "catalogue", "x")]
    assert [address.session for address in done] == [None, "x"]


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
@pytest.mark.parametrize("is_awaited", [False, True])
def test_who_was_visited_stays_a_little_while_if_nobody_called_it_and_it_is_not_to_stay(
    lifecycle: Lifecycle, is_awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    visiting, record, actor, done = visiting_over(lifecycle=lifecycle)
    monkeypatch.setattr(discovery, "record_of", lambda who: who.record)
    record.visit, actor.is_awaited = actor, is_awaited
    visiting.learned(actor)
    shortens = lifecycle is Lifecycle.LAZY and not is_awaited
    assert done == [*([("shorten", 10.0)] if shortens else []), ("over", "a")]
    assert (record.visit, actor.start.by_policy) == (None, True)
    visiting.learned(actor)
    assert len(done) == 1 + shortens, "it was over"


@pytest.mark.parametrize("state", list(State))
def test_a_visit_that_has_not_begun_need_not_when_another_has_learned_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    visiting, record, visitor, done = visiting_over()
    monkeypatch.setattr(discovery, "record_of", lambda who: who.record)
    record.visit, visitor.life.state = visitor, state
    another: Any = SimpleNamespace(
        address=Address.of_session("a", "x"), record=SimpleNamespace(server=record)
    )
    visiting.learned(another)
    stops = [("stop", Reason.KNOWN, 0)] if state is State.IDLE else []
    assert done == [*stops, ("over", "a")]
    assert (record.visit, visitor.start.by_policy) == (None, False)


@pytest.mark.parametrize("is_installing", [False, True])
@pytest.mark.parametrize("visits", [False, True])
@pytest.mark.parametrize("state", list(State))
def test_only_a_first_start_is_not_to_be_stopped(
    is_installing: bool, visits: bool, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    visiting, record, actor, _ = visiting_over()
    monkeypatch.setattr(discovery, "record_of", lambda who: who.record)
    record.visit = actor if visits else None
    actor.is_installing, actor.life.state = is_installing, state
    first = is_installing or (visits and state is State.CONNECTING)
    assert visiting.is_first_start(actor) is first


# ---- the root: servers, sessions and their children ------------------------------------------------------------------


def test_a_child_of_a_session_begins_with_what_is_known_of_its_server(backend: str) -> None:
    async def main() -> None:
        entries = {"a": {"isolation": "per_session"}}
        async with open_room({"a": FakeServer()}, entries=entries) as room, room.session("x") as x:
            root = room._runtime.root
            record = root.records["a"]
            record.era_hint = "2026-07-28"
            room.set_log_level("error")
            x.set_log_level("debug")
            quarantine(record, {"pay": ("description",)})
            child = record_of(root.actor_for("a", "x"))
            assert child.load is record.load
            assert (child.parent, child.definition) == (record, record.definition)
            assert (child.era_hint, child.log_level) == ("2026-07-28", "debug")
            assert (child.quarantined, child.guarded) == ({"pay": ("description",)}, True)
            assert child.gatekeeper.parent is record.gatekeeper
            assert child.address == Address.of_session("a", "x")
            record.available = drained("a")
            assert child.refusal is record.available.refusal, "its server is down"
            child.available = needs_login("a", "why")
            assert child.refusal is child.available.refusal
            root.bring_back("a")
            assert (record.available, child.available) == (USABLE, USABLE)
            another = ServerDefinition("a", command="other", isolation=record.definition.isolation)
            child.available = needs_login("a", "why")
            root.redefine(another, same_process=False)
            assert (child.definition, child.available) == (another, USABLE)
            quarantine(record, {})

    run_virtual(backend, main)


def test_a_new_server_is_told_the_level_that_everybody_wants_of_all(backend: str) -> None:
    async def main() -> None:
        async with open_room({"a": FakeServer()}) as room:
            room.set_log_level("error")
            config: Any = {"mcpServers": {name: {"command": "fake"} for name in "ab"}}
            await room.reload(config)
            assert {name: one.log_level for name, one in room._runtime.root.records.items()} == {
                "a": "error",
                "b": "error",
            }

    run_virtual(backend, main)


@pytest.mark.parametrize("session", [None, "x"])
@pytest.mark.parametrize("isolation", ["persistent", "per_session", "per_call"])
def test_whose_child_a_call_goes_to_is_in_its_address(
    backend: str, isolation: str, session: str | None
) -> None:
    async def main() -> None:
        async with open_room({"a": FakeServer()}, isolation=isolation) as room, room.session("x"):
            root = room._runtime.root
            stands = isolation == "persistent" or (isolation == "per_session" and session is not None)
            assert root.has_standing_address("a", session) is stands
            if isolation == "per_session" and session is None:
                with pytest.raises(SessionNeeded) as refused:
                    root.address("a", session)
                assert refused.value.server == "a"
                return
            first, second = (root.address("a", session) for _ in range(2))
            assert (first == second) is stands
            assert first.session == (None if isolation == "persistent" else session)
            assert (first.is_shared, first.is_call) == (isolation == "persistent", isolation == "per_call")
            actor = root.actor_for("a", session)
            assert (root.actor_for("a", session) is actor) is stands
            root.forget_unused(actor)
            assert (actor.address in root.actors) is stands
            assert (actor in root.actors_of("a")) is stands

    run_virtual(backend, main)


@pytest.mark.parametrize("how", ["closing", "aborted"])
def test_a_room_that_closes_says_so_first_whatever_else_is_wrong_with_a_server(
    backend: str, how: str
) -> None:
    async def main() -> None:
        async with open_room({"a": FakeServer(), "b": FakeServer()}) as room:
            await room.connect("a")
            root = room._runtime.root
            root.take_down("b", Ending(Cause.DRAINED))
            if how == "closing":
                root.close_all(0.0)
            else:
                abort(root, RoomClosed("The room has closed.", server=""))
            for name in "ab" if how == "closing" else "":
                with pytest.raises(RoomClosed, match="is closing") as refused:
                    await room.request(name, "ping")
                assert refused.value.server == name
            with pytest.raises(RoomClosed, match=r"is closing|has closed"):
                await room.connect("b")
            with pytest.raises(RoomClosed):
                root.bring_back("b")

    run_virtual(backend, main)


def test_of_many_kept_alive_one_slot_is_left_and_one_that_cannot_run_takes_none(backend: str) -> None:
    async def main() -> None:
        servers = {name: FakeServer() for name in "abcd"}
        async with open_room(servers, maxConnections=3) as room:
            root = room._runtime.root
            for number, name in enumerate("abcd"):
                root.define(ServerDefinition(name, command="fake", lifecycle=Lifecycle.KEEP_ALIVE))
                assert list(root.kept()) == list("abcd"[: min(number + 1, 2)])
            off = ServerDefinition("a", command="fake", lifecycle=Lifecycle.KEEP_ALIVE, disabled=True)
            root.define(off)
            assert list(root.kept()) == ["b", "c"]
            problem = Problem("f", "is bad")
            root.define(ServerDefinition("b", command="fake", lifecycle=Lifecycle.KEEP_ALIVE), problem)
            assert list(root.kept()) == ["c", "d"]
            root.define(ServerDefinition("c", command="fake"))
            assert list(root.kept()) == ["d"]
            root.remove("d")
            assert list(root.kept()) == []
            with pytest.raises(UnknownServer) as unknown:
                root.record("d")
            assert unknown.value.known == ("a", "b", "c")

    run_virtual(backend, main)


# ---- a gate and its keeper -------------------------------------------------------------------------------------------


class Gated:
    """A gatekeeper, and that of a session behind it, over a clock that the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000.0
        self.events: list[Any] = []
        self.waiting: list[Any] = []
        context: Any = SimpleNamespace(
            settings=Settings(**settings),
            backend=SimpleNamespace(now=lambda: self.now),
            events=SimpleNamespace(emit=lambda _sort, address, **said: self.events.append((address, said))),
            timers=Timers(),
        )
        starts: Any = SimpleNamespace(at=lambda _place: self.waiting)
        gates = Gates(context, starts, lambda: (), lambda actor: self.waiting.remove(actor))
        record: Any = SimpleNamespace(quarantined={}, guarded=False)
        self.record, self.child_record = record, cast("Any", SimpleNamespace(quarantined={}, guarded=False))
        self.keeper = Gatekeeper(record, Address("a"), gates)
        self.child = Gatekeeper(self.child_record, Address.of_session("a", "x"), gates, self.keeper)

    def actor(self, state: State = State.IDLE) -> Any:
        return SimpleNamespace(life=SimpleNamespace(state=state), is_asked_for_by_name=False)


def test_what_counts_at_the_gate_is_a_death_or_a_failed_start_and_not_a_hang_or_a_lost_session() -> None:
    for loss in Reason:
        gated = Gated()
        gated.keeper.failed(Ending(Cause.LOST, "gone"), loss)
        counted = loss not in (Reason.UNRESPONSIVE, Reason.EXPIRED)
        assert (gated.keeper.gate.failures, gated.keeper.gate.is_troubled) == (int(counted), counted)
    gated = Gated()
    gated.child.failed(Ending(Cause.LOST, "gone"), Reason.DIED)
    assert (gated.child.gate.failures, gated.keeper.gate.failures) == (1, 0), "its own child's death"
    gated.child.failed(Ending(Cause.CONNECT_FAILED, "no"), None)
    assert (gated.child.gate.failures, gated.keeper.gate.failures) == (2, 1), "no child can start"
    assert [(address, said["cause"], said["words"]) for address, said in gated.events] == [
        (Address.of_session("a", "x"), Cause.LOST, "gone"),
        (Address("a"), Cause.CONNECT_FAILED, "no"),
        (Address.of_session("a", "x"), Cause.CONNECT_FAILED, "no"),
    ]


@pytest.mark.parametrize("state", list(State))
def test_a_call_of_a_session_is_refused_by_its_servers_gate_only_where_it_would_cause_a_start(
    state: State,
) -> None:
    gated, call = Gated(failure_threshold=1), cast("Any", SimpleNamespace(is_probe=False))
    assert gated.child.refuses(gated.actor(state), call) is None
    gated.keeper.failed(Ending(Cause.CONNECT_FAILED, "no python"), None)
    gated.now += 4.0
    refused = gated.child.refuses(gated.actor(state), call)
    assert (refused is not None) is (state in (State.IDLE, State.DRAINING))
    if refused is not None:
        assert (refused.server, refused.failed_ago, refused.reason) == ("a", 4.0, "no python")
        assert refused.retry_in == pytest.approx(26.0)
    why = gated.child.refuses_start()
    assert why is not None
    assert why.retry_in == pytest.approx(26.0)
    assert gated.child.shut_until == gated.keeper.gate.shut_until == 1_030.0


def test_a_gate_that_moves_is_told_with_its_numbers_and_the_record_is_looked_at_while_it_must_be() -> None:
    gated = Gated(failure_threshold=2, backoff_min=4.0, backoff_jitter=0.0)
    gated.keeper.failed(Ending(Cause.CONNECT_FAILED, "no"), None)
    gated.now += 1.0
    gated.keeper.failed(Ending(Cause.CONNECT_FAILED, "no"), None)
    told = [(said["move"], said["failures"], said["shut_for"], said["tripped"]) for _, said in gated.events]
    assert told == [(GateMove.FAILED, 1, 4.0, False), (GateMove.FAILED, 2, 30.0, True)]
    assert gated.record.guarded
    gated.now += 31.0
    gated.keeper.answered(0.0)
    assert (gated.events[-1][1]["move"], gated.events[-1][1]["shut_for"]) == (GateMove.ANSWERED, 0.0)
    assert not gated.record.guarded
    count = len(gated.events)
    gated.keeper.answered(100.0)
    assert len(gated.events) == count, "nothing has changed"
    gated.record.quarantined = {"pay": ("description",)}
    gated.keeper.failed(Ending(Cause.LOST, "x"), Reason.DIED)
    gated.keeper.answered(100.0)
    assert gated.record.guarded, "a tool of it is in quarantine"


@pytest.mark.parametrize("by_name", [False, True])
def test_more_restarts_than_allowed_shut_the_gate_with_their_number_unless_somebody_asked(
    by_name: bool,
) -> None:
    gated = Gated(restart_intensity=3, restart_period=60.0, cooldown=20.0)
    assert [gated.keeper.may_restart(by_name=by_name) for _ in range(4)] == [True, True, True, by_name]
    gate = gated.keeper.gate
    assert gate.tripped is not by_name
    if not by_name:
        assert (gate.reason, gate.shut_until) == ("quarantined: 4 restarts in 60s", 1_020.0)
        assert gated.events[-1][1]["move"] is GateMove.QUARANTINED
        assert gated.events[-1][1]["words"] == "4 restarts in 60s"
    gated.now += 60.0
    assert gated.keeper.may_restart(by_name=False), "those were a minute ago"


def test_starts_of_all_children_count_for_who_goes_around_a_shut_gate() -> None:
    gated = Gated(failure_threshold=1)
    gated.child.note_start()
    gated.child.failed(Ending(Cause.LOST, "x"), Reason.DIED)
    gated.child.failed(Ending(Cause.LOST, "x"), Reason.DIED)
    actor: Any = SimpleNamespace(mailbox=SimpleNamespace(user=[]), is_asked_for_by_name=True)
    assert not gated.child.lets_start(actor)
    gated.now += 1.0
    assert gated.child.lets_start(actor)
    actor.is_asked_for_by_name = False
    assert not gated.child.lets_start(actor)
    assert gated.keeper.last_start == 1_000.0


def test_who_waits_behind_its_servers_gate_applies_again_when_that_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gated = Gated(failure_threshold=1)
    monkeypatch.setattr(circuit_breaker, "keeper_of", lambda actor: actor.keeper)
    waiting: Any = SimpleNamespace(
        keeper=gated.child, is_asked_for_by_name=False, start=SimpleNamespace(place=Place.GATE)
    )
    gated.keeper.failed(Ending(Cause.CONNECT_FAILED, "no"), None)
    gated.waiting.append(waiting)
    gated.child.set_timer(gated.now)
    assert gated.child.timer is not None
    assert gated.child.timer.when == gated.keeper.gate.shut_until  # pyright: ignore[reportAttributeAccessIssue]
    gated.keeper.answered(100.0)
    assert gated.waiting == [], "it was let through at once"


# ---- admission, and what a decision sends away -----------------------------------------------------------------------


@pytest.mark.parametrize("waits", [0, 1])
def test_who_is_sent_away_is_told_whether_another_waits_and_there_is_one_alarm(waits: int) -> None:
    timers, told = Timers(), list[Any]()
    admission: Any = object.__new__(Admission)
    admission._alarm = None
    admission.look = lambda: None
    admission.starts = SimpleNamespace(count=lambda place: waits if place is Place.SLOT else 9)
    admission._context = SimpleNamespace(
        timers=timers,
        events=SimpleNamespace(
            emit=lambda sort, address, number, reason: told.append((sort, number, reason))
        ),
    )
    actor: Any = SimpleNamespace(
        address=Address("a"), life=SimpleNamespace(incarnation=3),
        stop=lambda ending: told.append((ending.cause, ending.reason)),
    )  # fmt: skip
    reason = Reason.MAKES_ROOM if waits else Reason.OVER_LIMIT
    admission._send_away(PoolDecision(evictions=(actor,), look_at=12.0))
    assert told == [(Eviction, 3, reason), (Cause.EVICTED, reason)]
    admission._send_away(PoolDecision(look_at=15.0))
    admission._send_away(PoolDecision())
    assert [(timer.when, timer.is_cancelled) for timer in timers.all] == [(12.0, True), (15.0, True)]
    assert admission._alarm is None


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("staying", [1, 2, 3])
def test_the_minimum_keeps_only_who_holds_a_slot(place: Place, staying: int) -> None:
    admission: Any = object.__new__(Admission)
    limits = PoolLimits(slots=9, minimum=2)
    admission.view = SimpleNamespace(staying=lambda: staying, limits=limits)
    actor: Any = SimpleNamespace(start=SimpleNamespace(place=place))
    assert admission.may_expire(actor) is (place not in HOLDS_SLOT or staying > 2)


# ---- the starter and the supervision ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lets", [True, False])
@pytest.mark.parametrize("after_failure", [True, False])
@pytest.mark.parametrize("may", [True, False])
def test_a_start_whose_turn_has_come_asks_its_gate_once_more_and_counts_if_it_follows_a_failure(
    lets: bool, after_failure: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    keeper = SimpleNamespace(
        lets_start=lambda _: lets,
        may_restart=lambda *, by_name: done.append(("restart", by_name)) or may,
        note_start=lambda: done.append("noted"),
        set_timer=lambda now: done.append(("timer", now)),
    )
    monkeypatch.setattr("greenroom.supervisor.admission.keeper_of", lambda _actor: keeper)
    starter: Any = object.__new__(Starter)
    starter.gates = SimpleNamespace(now=lambda: 5.0)
    starter.admission = SimpleNamespace(
        move=lambda _actor, place: done.append(place),
        starts=SimpleNamespace(move=lambda _actor, place: done.append(place)),
        enter=lambda _actor: done.append("entered"),
    )
    actor: Any = SimpleNamespace(
        start=SimpleNamespace(after_failure=after_failure),
        is_asked_for_by_name="by name",
        steps=SimpleNamespace(connect=lambda: done.append("connects")),
    )
    starter.begin(actor)
    at_gate: list[Any] = [Place.GATE, ("timer", 5.0)]
    starts: list[Any] = ["noted", Place.STARTING, "connects"]
    if not lets:
        assert (done, actor.start.after_failure) == (at_gate, after_failure)
    elif after_failure and not may:
        assert done == [("restart", "by name"), *at_gate, "entered"], "it applies again"
        assert not actor.start.after_failure
    else:
        assert done == [*([("restart", "by name")] if after_failure else []), *starts]
        assert not actor.start.after_failure


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("why", ["closing", "refusal", "gate", None])
def test_who_is_asked_for_as_by_a_call_is_refused_as_a_call_is(
    state: State, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    closing = RoomClosed("closing", server="") if why == "closing" else None
    refusal = drained("a").refusal if why == "refusal" else None
    shut = ServerDown("shut", server="a") if why == "gate" else None
    record = SimpleNamespace(refusal=refusal, gatekeeper=SimpleNamespace(refuses_start=lambda: shut))
    monkeypatch.setattr("greenroom.supervisor.admission.record_of", lambda _actor: record)
    starter: Any = object.__new__(Starter)
    starter._directory = SimpleNamespace(closing=closing)
    actor: Any = SimpleNamespace(
        address=Address("a"), life=SimpleNamespace(state=state), request_start=lambda: started.append(1)
    )
    would_start = state in (State.IDLE, State.DRAINING)
    if why in ("closing", "refusal") or (why == "gate" and would_start):
        with pytest.raises(CallError) as refused:
            starter.request_as_called(actor)
        assert refused.value.server == "a"
        assert refused.value not in (closing, refusal), "each caller has its own"
        assert not started
    else:
        starter.request_as_called(actor)
        assert started == [1]


class Someone(SimpleNamespace):
    """Like an actor, it is itself and no other, whatever it has."""

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


def supervision_of(record: Any, monkeypatch: pytest.MonkeyPatch, **directory: Any) -> tuple[Any, list[Any]]:
    done: list[Any] = []
    monkeypatch.setattr(_supervision, "record_of", lambda _actor: record)
    monkeypatch.setattr(_supervision, "keeper_of", lambda _actor: record.gatekeeper)
    supervision: Any = object.__new__(Supervision)
    supervision._context = SimpleNamespace(
        backend=SimpleNamespace(now=lambda: 30.0),
        settings=Settings(),
        events=SimpleNamespace(emit=lambda sort, *_, cause, then: done.append((sort, cause, then))),
    )
    supervision._directory = SimpleNamespace(
        closing=None, forget=lambda actor: done.append(("forgotten", actor.address.server)), **directory
    )
    supervision.starter = SimpleNamespace(
        admission=SimpleNamespace(move=lambda _actor, place: done.append(place)),
        request_by_policy=lambda actor: done.append(("asked", actor)),
    )
    supervision.visiting = SimpleNamespace(
        tried=lambda _actor, is_over: done.append(("tried", is_over)), learned=lambda _actor: None
    )
    supervision.logins = SimpleNamespace(parked=lambda server: done.append(("parked", server)))
    supervision._failing = lambda *_: None
    supervision._on_closed = {}
    return supervision, done


@pytest.mark.parametrize("scope", ["shared", "session:x", "call:1"])
@pytest.mark.parametrize("cause", list(Cause))
def test_a_failure_is_remembered_of_the_child_and_its_server_and_counts_for_the_next_start(
    scope: str, cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Any] = []
    server = ServerRecord(ServerDefinition("a"))
    record = ServerRecord(ServerDefinition("a"), parent=server)
    record.gatekeeper = cast(
        "Any", SimpleNamespace(failed=lambda ending, loss: counted.append((ending.cause, loss)))
    )
    supervision, _ = supervision_of(record, monkeypatch)
    told: list[Any] = []
    supervision._failing = lambda name, failure: told.append((name, failure.why, failure.starts))
    start = SimpleNamespace(after_failure=False)
    actor: Any = SimpleNamespace(address=Address("a", scope), start=start, loss=Reason.DIED)
    supervision.failed(actor, Ending(cause, "why"))
    failed = cause in (Cause.CONNECT_FAILED, Cause.LOST, Cause.BUG)
    expected = ("why", 30.0) if failed else (None, -math.inf)
    assert (record.failure, record.failed_at) == (server.failure, server.failed_at) == expected
    starts = int(cause is Cause.CONNECT_FAILED)
    assert record.failed_starts == server.failed_starts == starts
    assert told == ([("a", "why", starts)] if failed else [])
    assert counted == ([(cause, Reason.DIED)] if failed else [])
    assert start.after_failure is (failed and scope != "call:1")


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("place", list(Place))
def test_a_bug_gives_back_what_its_start_held(
    state: State, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    record = SimpleNamespace(available=USABLE, gatekeeper=SimpleNamespace(probe_left=left.append))
    supervision, done = supervision_of(record, monkeypatch)
    actor: Any = SimpleNamespace(
        address=Address("a"),
        life=SimpleNamespace(state=state),
        start=SimpleNamespace(place=place, by_policy=True),
    )
    supervision.stopped_for_bug(actor)
    assert record.available is USABLE
    moved = [Place.OUT] if state is State.IDLE else [Place.LEAVING] if place is Place.STARTING else []
    assert done == [("tried", True), *moved]
    assert (left, actor.start.by_policy) == ([actor], False)


@pytest.mark.parametrize("then", list(Next))
@pytest.mark.parametrize("cause", [Cause.LOST, Cause.CONNECT_FAILED, Cause.EVICTED, Cause.NEEDS_AUTH])
@pytest.mark.parametrize("is_closing", [False, True])
def test_what_follows_an_ending_is_done_in_order_and_who_waited_for_it_is_told_last(
    then: Next, cause: Cause, is_closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    available = needs_login("a", "why") if cause is Cause.NEEDS_AUTH else USABLE
    record = SimpleNamespace(available=available, gatekeeper=SimpleNamespace(probe_left=left.append))
    supervision, done = supervision_of(record, monkeypatch)
    supervision._directory.closing = RoomClosed("closing", server="") if is_closing else None
    followed: list[bool] = []

    def follows(*_: Any, is_closing: bool) -> ActorDecision:
        followed.append(is_closing)
        return ActorDecision(then)

    monkeypatch.setattr(_supervision, "what_follows", follows)
    actor: Any = Someone(
        address=Address("a"), life=SimpleNamespace(incarnation=2), start=SimpleNamespace(by_policy=True)
    )
    for number in range(2):
        supervision.on_closed(actor, lambda number=number: done.append(("told", number)))
    assert supervision.closed(actor, Ending(cause)).then is then
    assert followed == [is_closing]
    connects = then is Next.CONNECT
    told = [(EndDecision, cause, then.value)] if then in (Next.CONNECT, Next.DOWN) else []
    no_start = cause in (Cause.CONNECT_FAILED, Cause.NEEDS_AUTH)
    assert done == [
        Place.OUT,
        *([("parked", "a")] if cause is Cause.NEEDS_AUTH else []),
        *([("forgotten", "a")] if then is Next.GONE and not is_closing else []),
        *([("tried", not connects)] if not connects or no_start else []),
        *told,
        ("told", 0),
        ("told", 1),
    ]
    assert actor.start.by_policy is connects
    assert left == ([] if cause in (Cause.LOST, Cause.CONNECT_FAILED) else [actor])
    done.clear()
    supervision.closed(actor, Ending(cause))
    assert ("told", 0) not in done, "once"


@pytest.mark.parametrize("stands", [False, True])
def test_a_server_somebody_has_logged_in_at_is_brought_back_and_connected_if_it_stands(
    stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[str] = []
    supervision, done = supervision_of(
        SimpleNamespace(gatekeeper=None), monkeypatch, bring_back=brought.append,
        has_standing_address=lambda _server, session: stands and session is None, actor=lambda server: f"of {server}",
    )  # fmt: skip
    supervision._logged_in("a")
    assert (brought, done) == (["a"], [("asked", "of a")] if stands else [])


@pytest.mark.parametrize("own", [None, "error"])
@pytest.mark.parametrize("of_host", [None, "debug"])
def test_the_level_of_a_request_is_that_of_its_caller_or_else_of_who_answers_for_it(
    own: str | None, of_host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    supervision, _ = supervision_of(
        SimpleNamespace(gatekeeper=None), monkeypatch,
        log_levels=SimpleNamespace(least=lambda client, server: asked.append((client, server)) or own),
        sessions=SimpleNamespace(greeting=lambda _client, _address: SimpleNamespace(log_level=of_host)),
    )  # fmt: skip
    actor: Any = SimpleNamespace(address=Address("a"))
    assert supervision.log_level(actor, SimpleNamespace(client="x")) == (own or of_host)
    assert asked == [("x", "a")]


# ---- what servers were told of their clients -------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "x"])
def test_who_lacks_something_is_met_anew_but_not_while_it_is_met_for_the_first_time(
    session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[Any] = []
    outdated: list[Any] = []

    def actor(address: Address, state: State = State.CONNECTED, *, is_first: bool = False) -> Any:
        found = Someone(
            address=address, life=SimpleNamespace(state=state), is_first=is_first, is_connected=True
        )
        found.stop = lambda ending: stopped.append((address, ending.cause, ending.reason))
        return found

    def is_outdated(who: Any, greeting: Any) -> bool:
        outdated.append((who.address, greeting))
        return who.address.server != "told"

    names = [state.name for state in State]
    shared = [actor(Address(state.name), state) for state in State]
    shared += [actor(Address("told")), actor(Address("first"), State.CONNECTING, is_first=True)]
    shared += [actor(Address("hidden"))]
    mine, theirs = actor(Address.of_session("own", "x")), actor(Address.of_session("own", "y"))
    everybody = {one.address: one for one in (*shared, mine, theirs)}
    monkeypatch.setattr(_told, "is_outdated", is_outdated)
    monkeypatch.setattr(_told, "shared_actors", lambda _root: shared)
    visiting = SimpleNamespace(is_first_start=lambda who: who.is_first)
    runtime: Any = SimpleNamespace(
        root=SimpleNamespace(
            actors=everybody, in_reach=lambda _session: [mine], supervision=SimpleNamespace(visiting=visiting)
        ),
        sessions=SimpleNamespace(
            greeting=lambda who, address: (who, address), sees=lambda _session, server: server != "hidden"
        ),
    )
    _told.restart_outdated(runtime, session)
    met = ["CONNECTING", "CONNECTED"]
    expected = {Address(name) for name in names if name in met} | {mine.address}
    if session is None:
        expected |= {theirs.address, Address("hidden")}
    assert {address for address, _, _ in stopped} == expected
    assert {(cause, reason) for _, cause, reason in stopped} == {(Cause.RESTART, Reason.NEW_ANSWERS)}
    for address, (who, asked) in outdated:
        assert asked == address
        assert who == (address.session if address.session is not None else session)


def test_changed_roots_are_told_to_who_was_told_of_roots_and_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    def actor(name: str, declared: Any, *, is_connected: bool = True, has_peer: bool = True) -> Any:
        peer = SimpleNamespace(notify=lambda method: told.append(f"{name} {method}"))
        return Someone(
            address=Address(name),
            declared=declared,
            is_connected=is_connected,
            peer=peer if has_peer else None,
        )

    actors = [
        actor("a", {"roots": {}}), actor("b", {"sampling": {}}), actor("c", None),
        actor("d", {"roots": {}}, is_connected=False), actor("e", {"roots": {}}, has_peer=False),
        actor("f", {"roots": {}}),
    ]  # fmt: skip
    monkeypatch.setattr(_told, "declared_to", lambda who: who.declared)
    monkeypatch.setattr(_told, "shared_actors", lambda _root: actors)
    able = {"a": ["x"], "f": ["x", None]}
    runtime: Any = SimpleNamespace(
        root=SimpleNamespace(in_reach=lambda session: [*actors] if session is None else []),
        sessions=SimpleNamespace(sees=lambda _session, _server: True),
        room_host=SimpleNamespace(
            routing=SimpleNamespace(able=lambda address, _method: able.get(address.server, ["x"]))
        ),
    )
    changed = "notifications/roots/list_changed"
    _told.tell_roots_changed(runtime, None)
    assert told == [f"a {changed}", f"f {changed}"]
    told.clear()
    _told.tell_roots_changed(runtime, "x")
    assert told == [f"a {changed}"], "of the other, another could answer too"


# ---- the numbers -----------------------------------------------------------------------------------------------------
