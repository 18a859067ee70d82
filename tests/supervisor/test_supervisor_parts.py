"""What the supervisor decides for one actor, each decision alone, and a room's own rare turns."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import attrs
import pytest
from msgspec.structs import replace
from tests.support import in_virtual_time
from tests.support.rooms import open_room, settle

from greenroom import Greenroom
from greenroom.actors.host import Declaration
from greenroom.actors.login import logins as login
from greenroom.actors.transports.in_process import InProcessConnector
from greenroom.actors.transports.npx import NpxConnector
from greenroom.actors.transports.unix_socket import UnixConnector
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import PinKey
from greenroom.catalogue.namespace import Target
from greenroom.catalogue.quarantine import NOTHING, Quarantine
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
from greenroom.config.model import Lifecycle, ServerDefinition, Settings
from greenroom.config.parse import parse_config
from greenroom.config.secrets import Hidden, KnownSecrets
from greenroom.protocol.address import Address
from greenroom.protocol.bounds import LARGE_MESSAGE
from greenroom.protocol.errors import (
    ConnectFailed,
    CredentialNeeded,
    Problem,
    ProtocolFault,
    RoomClosed,
    SessionNeeded,
    UnknownServer,
    UsageError,
)
from greenroom.protocol.events import Note, NoteCode
from greenroom.protocol.lifecycle import Cause, Ending
from greenroom.safety.pins_file import MemoryPins, ServerPins, pin_store
from greenroom.supervisor import caller
from greenroom.supervisor import runtime as _learned
from greenroom.supervisor import runtime as _runtime
from greenroom.supervisor.connectors import AskingConnector, Connectors
from greenroom.supervisor.records import (
    USABLE,
    drained,
    needs_login,
    quarantine,
    record_of,
)
from greenroom.supervisor.root import Closing, abort
from greenroom.supervisor.runtime import DrainReport, note_callback, note_timer, sole
from greenroom.supervisor.server_messages import Callbacks, is_heard
from greenroom.supervisor.sessions import Sessions
from greenroom.testing import FakeServer
from greenroom.testing.fake_servers import fake_connectors


@in_virtual_time
async def test_a_room_that_is_asked_to_stop_before_it_was_built_ends_at_once() -> None:
    server = FakeServer()
    room: Any = open_room({"a": server}, entries={"a": {"lifecycle": "eager"}})
    room._owner._runtime.request_stop(0)
    async with anyio.create_task_group() as tasks:
        await room.start(tasks)
        with anyio.fail_after(600):
            await room._owner._ended.wait()
    assert room.drain_report is not None
    assert server.live == 0


@in_virtual_time
async def test_a_reload_starts_the_servers_that_stand_anew_and_no_others() -> None:
    servers = {name: FakeServer() for name in ("old", "new", "lazy")}

    def config(*names: str) -> dict[str, Any]:
        entries: dict[str, Any] = {
            "old": {"command": "fake", "lifecycle": "eager", "idleTimeout": 1},
            "new": {"command": "fake", "lifecycle": "eager"},
            "lazy": {"command": "fake"},
        }
        return {"mcpServers": {name: entries[name] for name in names}, "settings": {"minConnections": 0}}

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


@in_virtual_time
async def test_what_a_session_gave_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(_runtime, "forget_credentials", lambda _root, name: forgotten.append(name))
    async with open_room({"a": FakeServer()}) as room:
        async with room.session("x"):
            assert forgotten == []
        assert forgotten == ["x"]
        late = room.session("y")
        await late.__aenter__()
    await late.aclose()
    assert forgotten == ["x", "y"], "also after the room"


# ---- slots and breakers --------------------------------------------------------------------------------------------


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


def test_what_two_files_have_to_say_is_both_told_and_older_than_what_is_learned_now() -> None:
    class Kept(MemoryStore):
        def load(self, wanted: Any) -> Any:
            return replace(super().load(wanted), warning="of the catalogue")

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
    for raw in (b"[]", b"3", b"{", b"", b"[" + b" " * LARGE_MESSAGE + b"]"):
        with pytest.raises(ProtocolFault) as told:
            assert caller.tool_result(raw, target).raw
        fault = told.value
        assert (fault.server, fault.tool, fault.reach) == ("a", "a_echo", "answered")
        assert 'Server "a" answered with something that is no result' in str(fault)
    for raw in (b'{"a": 1}', b'{"a": 1' + b" " * LARGE_MESSAGE + b"}"):
        result = caller.tool_result(raw, target)
        assert result.raw == {"a": 1}
        assert result.raw is result.raw, "it is decoded once"


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
    assert sessions.declaration("x", Address("a")) == Declaration()
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
    assert (sessions.host(None), sessions.declaration("x", Address("a"))) == (
        of_x,
        of_x.declaration(Address("a")),
    )
    sessions.answer_with(None, None)
    assert sessions.host(None) is own


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


RANKS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def test_a_message_is_heard_at_its_level_and_above_and_so_is_one_of_no_level() -> None:
    for said, least in product(RANKS, RANKS):
        assert is_heard(said, least) is (RANKS.index(said) >= RANKS.index(least))
        assert is_heard(said, None)
    for odd in ("loud", None, 5, ""):
        assert is_heard(odd, "emergency")


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


# ---- the root: servers, sessions and their children ------------------------------------------------------------------


@in_virtual_time
async def test_a_child_of_a_session_begins_with_what_is_known_of_its_server() -> None:
    entries = {"a": {"isolation": "per_session"}}
    async with open_room({"a": FakeServer()}, entries=entries) as room, room.session("x") as x:
        root = room._runtime.root
        record = root.records["a"]
        record.era_hint = "2026-07-28"
        room.set_log_level("error")
        x.set_log_level("debug")
        kept_out = Quarantine({"pay": ("description",)})
        quarantine(record, kept_out)
        child = record_of(root.actor_for("a", "x"))
        assert child.load is record.load
        assert (child.parent, child.definition) == (record, record.definition)
        assert (child.era_hint, child.log_level) == ("2026-07-28", "debug")
        assert (child.quarantined, child.guarded) == (kept_out, True)
        assert child.breaker.parent is record.breaker
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
        quarantine(record, NOTHING)


@in_virtual_time
async def test_a_new_server_is_told_the_level_that_everybody_wants_of_all() -> None:
    async with open_room({"a": FakeServer()}) as room:
        room.set_log_level("error")
        config: Any = {"mcpServers": {name: {"command": "fake"} for name in "ab"}}
        await room.reload(config)
        assert {name: one.log_level for name, one in room._runtime.root.records.items()} == {
            "a": "error",
            "b": "error",
        }


@pytest.mark.parametrize("session", [None, "x"])
@pytest.mark.parametrize("isolation", ["persistent", "per_session", "per_call"])
@in_virtual_time
async def test_whose_child_a_call_goes_to_is_in_its_address(isolation: str, session: str | None) -> None:
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
        assert (actor in root.actors_of("a")) is stands


@pytest.mark.parametrize("how", ["closing", "aborted"])
@in_virtual_time
async def test_a_room_that_closes_says_so_first_whatever_else_is_wrong_with_a_server(how: str) -> None:
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


@in_virtual_time
async def test_of_many_kept_alive_one_slot_is_left_and_one_that_cannot_run_takes_none() -> None:
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
