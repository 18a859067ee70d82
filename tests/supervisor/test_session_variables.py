"""`${session.NAME}`: credentials of each caller, in children that are theirs alone. Real processes, real HTTP."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.gateway import serve
from tests.support.loops import on_asyncio
from tests.support.patience import PATIENCE
from tests.support.raw_http import raw_http
from tests.support.rooms import open_room

from greenroom import CallError, Greenroom, UsageError
from greenroom.actors.watchers import Order
from greenroom.catalogue.search import search
from greenroom.config.definition_identity import definition_hash
from greenroom.config.masking import redacted
from greenroom.config.parse import parse_config
from greenroom.errors import CredentialNeeded, SessionNeeded
from greenroom.protocol.address import Address
from greenroom.supervisor.room import Session, port_of
from greenroom.testing import servers
from greenroom.testing.fake_servers import FakeServer
from greenroom.testing.room_inside import RoomInside

# Answers with its environment and its arguments, or says them on stderr and exits. With `--linger-in-call FOLDER`,
# or `--linger-at-end FOLDER`, it makes a file `lingers` there, and does not go on before there is a file `go`.
# Each of these tests starts several, so it imports little.
TELLER = """
import os, sys, time
sys.path.insert(0, SERVERS)
import quick_json as json
def linger(when):
    if sys.argv[1:2] == ["--linger-" + when]:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(os.path.join(sys.argv[2], "lingers"), "w").close()
        while not os.path.exists(os.path.join(sys.argv[2], "go")):
            time.sleep(0.01)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "teller", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("tell", "die")]}
    elif message["method"] == "tools/call":
        said = json.dumps([os.environ.get("TOKEN"), sys.argv[1:]])
        if message["params"]["name"] == "die":
            linger("in-call")
            print("fatal:", said, file=sys.stderr, flush=True)
            sys.exit(3)
        result = {"content": [{"type": "text", "text": said}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
linger("at-end")
""".replace("SERVERS", repr(os.path.dirname(servers.__file__)))


def teller(isolation: str = "per_session", *args: str) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": ["-S", "-c", TELLER, *args],
        "env": {"TOKEN": "${session.TOKEN}"},
        "isolation": isolation,
    }


def room_of(**servers: Any) -> Greenroom:
    return Greenroom.open({"mcpServers": servers}, cache_path=":memory:")


@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_real_time
async def test_each_sessions_children_have_its_credentials_and_no_others(isolation: str) -> None:
    async with (
        room_of(t=teller(isolation, "--who=${session.WHO:-nobody}")) as room,
        room.session("alice", variables={"TOKEN": "of-alice", "WHO": "al"}) as alice,
        room.session("bob", variables={"TOKEN": "of-bob"}) as bob,
    ):
        for _ in range(2):
            assert json.loads((await alice.call("t_tell")).text) == ["of-alice", ["--who=al"]]
            assert json.loads((await bob.call("t_tell")).text) == ["of-bob", ["--who=nobody"]]


@in_real_time
async def test_headers_and_the_url_are_filled_in_for_each_session() -> None:
    with raw_http() as server:
        entry = {
            "url": server.url + "?who=${session.WHO}",
            "headers": {"Authorization": "Bearer ${session.TOKEN}"},
            "isolation": "per_session",
        }
        async with (
            room_of(h=entry) as room,
            room.session("alice", variables={"TOKEN": "of-alice", "WHO": "al"}) as alice,
            room.session("bob", variables={"TOKEN": "of-bob", "WHO": "bo"}) as bob,
        ):
            assert (await alice.call("h_ok")).text == "ok"
            assert {seen.headers["authorization"] for seen in server.requests} == {"Bearer of-alice"}
            server.requests.clear()
            assert (await bob.call("h_ok")).text == "ok"
            assert {seen.headers["authorization"] for seen in server.requests} == {"Bearer of-bob"}


@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_virtual_time
async def test_what_a_session_does_not_give_is_named_and_nothing_is_started(isolation: str) -> None:
    server = FakeServer()
    entry = {"isolation": isolation, "args": ["${session.TOKEN}", "${session.ORG}"]}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        async with room.session("alice", variables={"TOKEN": "of-alice"}) as alice:
            for asked in (alice.call("a_echo"), alice.connect("a"), port_of(alice).find("a_echo")):
                with pytest.raises(
                    CredentialNeeded, match=r"needs \$\{session\.ORG\}, and this session"
                ) as said:
                    await asked
                assert said.value.variables == ("ORG",)
        for asked in (room.call("a_echo"), room.connect("a")):
            with pytest.raises(SessionNeeded):
                await asked
        with pytest.raises(CredentialNeeded, match="this call is in no session"):
            room.refresh("a")
        await room.catalogued()
        assert server.starts == 0
        (row,) = room.status()
        assert (row.failure, row.session_variables) == (None, ("ORG", "TOKEN"))


@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_virtual_time
async def test_t58_an_empty_value_of_a_session_is_none_and_nothing_is_started(isolation: str) -> None:
    server = FakeServer()
    entry = {"isolation": isolation, "args": ["${session.TOKEN}"]}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        for name, value in (("alice", ""), ("bob", " \n")):
            async with room.session(name, variables={"TOKEN": value}) as session:
                with pytest.raises(CredentialNeeded) as said:
                    await session.call("a_echo")
                assert said.value.variables == ("TOKEN",)
        assert server.starts == 0
        for name in ("", " "):
            with pytest.raises(UsageError, match="needs a name"):
                async with room.session(name):
                    pass


@in_virtual_time
async def test_the_breaker_does_not_count_a_missing_credential_and_who_has_them_is_served() -> None:
    server = FakeServer()
    entry = {"isolation": "per_session", "args": ["${session.TOKEN}"]}
    async with open_room({"a": server}, entries={"a": entry}, failureThreshold=1) as room:
        async with room.session("poor") as poor:
            for _ in range(3):
                with pytest.raises(CredentialNeeded):
                    await poor.call("a_echo")
        async with room.session("rich", variables={"TOKEN": "t"}) as rich:
            await rich.call("a_echo")
        assert room.drain_report is not None
        assert (room.drain_report.refused, room.drain_report.is_final) == (3, False)
    assert room.drain_report is not None
    assert room.drain_report.refused == 3


@in_real_time
async def test_a_server_is_first_asked_by_the_session_that_can_and_is_known_to_that_alone() -> None:
    async with room_of(t=teller()) as room:
        await room.catalogued()
        assert room.tools() == ()
        async with room.session("alice", variables={"TOKEN": "of-alice"}) as alice:
            await alice.call("t_tell")
            assert [target.name for target in port_of(alice).catalogue.index.tools()] == ["t_die", "t_tell"]
            async with room.session("bob", variables={"TOKEN": "of-bob"}) as bob:
                assert port_of(bob).catalogue.index.tools() == ()
                await bob.connect("t")
                assert len(port_of(bob).catalogue.index.tools()) == 2
        assert room.tools() == ()


@in_real_time
async def test_a_credential_is_in_no_error_event_status_or_cache(tmp_path: Path) -> None:
    secret = "Zq7-plain-words"
    cache = tmp_path / "cache.json"
    said: list[str] = []
    config = {"mcpServers": {"t": teller("per_session", "--key", "${session.TOKEN}")}}
    async with Greenroom.open(config, cache_path=cache) as room, room.events() as events:
        async with room.session("alice", variables={"TOKEN": secret}) as alice:
            await alice.call("t_tell")
            assert search(port_of(alice).catalogue.index, "tell").total
            assert not room.search("tell").total
            with pytest.raises(CallError) as lost:
                await alice.call("t_die")
            said += [str(lost.value), repr(lost.value), json.dumps(lost.value.as_dict()), repr(alice)]
            said += [repr(room.status()), repr(room.config)]
            assert "fatal: [" in said[0]
        events.close()
        said += [repr(one) async for one in events]
    said.append(cache.read_text())
    assert all("Zq7" not in text for text in said), said
    assert not cache.with_suffix(".search").exists(), "what a session's own server lists is not kept"


@in_virtual_time
async def test_credentials_are_forgotten_with_their_session() -> None:
    server = FakeServer()
    entry = {"isolation": "per_session", "args": ["${session.TOKEN}"]}
    async with open_room({"a": server}, entries={"a": entry}) as room:
        async with room.session("alice", variables={"TOKEN": "t"}) as alice:
            await alice.call("a_echo")
        async with room.session("alice") as again:
            with pytest.raises(CredentialNeeded):
                await again.call("a_echo")


@pytest.mark.parametrize("when", ["while it closes", "when it has closed"])
@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_virtual_time
async def test_the_secrets_of_a_session_that_ends_as_its_room_closes_are_forgotten(
    isolation: str, when: str
) -> None:
    """Its children stayed in the records of the closed room, and the end of the last one was waited for in vain."""
    forgotten: list[str] = []

    class Forgets:
        def forgot(self, session: str, _secrets: Mapping[str, Any]) -> None:
            forgotten.append(session)

    server = FakeServer(call_latency=2.0, stop_latency=1.0)
    entry = {"isolation": isolation, "args": ["${session.TOKEN}"]}
    room = open_room({"a": server}, entries={"a": entry})
    async with anyio.create_task_group() as tasks:
        await room.start(tasks)
        RoomInside(room).machinery.watchers.add(Forgets(), Order.PROGRAM)
        alice = await room.session("alice", variables={"TOKEN": "Zq7-plain-words"}).__aenter__()

        async def call() -> None:
            with suppress(CallError):
                await alice.call("a_echo")

        tasks.start_soon(call)
        await anyio.sleep(1.0)
        tasks.start_soon(room.aclose)
        await anyio.sleep(0.5 if when == "while it closes" else 60.0)
        await alice.aclose()
    assert forgotten == ["alice"]


async def _lingers(folder: Path) -> None:
    """Wait until a child of `lingering` says that it waits to be let go."""
    with anyio.fail_after(PATIENCE):
        while not (folder / "lingers").exists():
            await anyio.sleep(0.01)


@in_real_time
async def test_a_credential_is_hidden_as_long_as_a_child_runs_that_has_it(tmp_path: Path) -> None:
    """A call goes on when its session has ended, and so does a child that was started for it alone."""
    secret = "Zq7-plain-words"
    lost: list[str] = []

    async def die(session: Session) -> None:
        with pytest.raises(CallError) as error:
            await session.call("t_die")
        lost.append(str(error.value))

    async with room_of(t=teller("per_call", "--linger-in-call", os.fspath(tmp_path))) as room:
        async with room.session("teacher", variables={"TOKEN": "x"}) as teacher:
            await teacher.call("t_tell")
        async with anyio.create_task_group() as calls:
            async with room.session("alice", variables={"TOKEN": secret}) as alice:
                calls.start_soon(die, alice)
                await _lingers(tmp_path)
            (tmp_path / "go").touch()
        address, known = Address.of_call("t", "1", "alice"), RoomInside(room).machinery.context.secrets
        with anyio.fail_after(PATIENCE):  # when the child is gone, its credential is forgotten
            while known.of(address).without(secret) != secret:
                await anyio.sleep(0.01)
    assert "fatal: [" in lost[0]
    assert "Zq7" not in lost[0]


@in_real_time
async def test_the_end_of_a_session_does_not_show_the_credentials_of_the_next_of_its_name(
    tmp_path: Path,
) -> None:
    secret = "Zq7-plain-words"
    slow = teller("per_call", "--linger-at-end", os.fspath(tmp_path))
    async with room_of(slow=slow, t=teller()) as room:
        async with room.session("alice", variables={"TOKEN": "x"}) as first:
            await first.call("slow_tell")
            await _lingers(tmp_path)
        async with room.session("alice", variables={"TOKEN": secret}) as second:
            await second.call("t_tell")
            (tmp_path / "go").touch()
            with anyio.fail_after(PATIENCE):
                while any(row.server == "slow" and row.scope != "shared" for row in room.status()):
                    await anyio.sleep(0.01)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(CallError) as lost:
                await second.call("t_die")
            assert "fatal: [" in str(lost.value)
            assert "Zq7" not in str(lost.value)


@on_asyncio
@in_real_time
async def test_a_variable_has_a_usable_name_and_a_text() -> None:
    async with room_of() as room:
        wrongs: list[Any] = [{"A-B": "x"}, {"": "x"}, {"A": 1}]
        for wrong in wrongs:
            with pytest.raises(UsageError, match="letters, digits and underscores"):
                async with room.session("alice", variables=wrong):
                    pass


@pytest.mark.parametrize("isolation", [None, "persistent"])
def test_a_shared_server_may_not_have_a_credential_of_one_session(isolation: str | None) -> None:
    entry: dict[str, Any] = {"command": "x", "env": {"A": "${session.TOKEN}"}}
    if isolation:
        entry["isolation"] = isolation
    config = parse_config({"mcpServers": {"a": entry}}, environ={})
    assert '"isolation": "per_session"' in str(config.broken["a"])
    shared = parse_config({"mcpServers": {"a": entry}, "settings": {"isolation": "per_call"}}, environ={})
    assert ("a" in shared.broken) is (isolation is not None)


@pytest.mark.parametrize("key", ["command", "cwd"])
def test_a_session_does_not_choose_the_program(key: str) -> None:
    entry = {"command": "x", "isolation": "per_session", key: "${session.TOKEN}"}
    config = parse_config({"mcpServers": {"a": entry}}, environ={})
    assert "env, headers, url or args" in str(config.broken["a"])


def test_what_is_printed_and_hashed_holds_the_reference_alone() -> None:
    raw = {"mcpServers": {"a": teller()}}
    config = parse_config(raw, environ={})
    assert not config.problems
    assert redacted(config)["mcpServers"]["a"]["env"] == {"TOKEN": "${session.TOKEN}"}
    other = {**teller(), "env": {"TOKEN": "${session.OTHER}"}}
    changed = parse_config({"mcpServers": {"a": other}}, environ={})
    hashes = {definition_hash(one.servers["a"], {"TOKEN": "x"}, "/") for one in (config, changed)}
    assert len(hashes) == 2


def test_at_a_gateway_on_stdio_they_are_in_the_clients_environment(tmp_path: Path) -> None:
    servers = {
        "t": {**teller(), "env": {"TOKEN": "${session.HOME}"}, "scrub": "off"},
        "poor": {**teller(), "env": {"TOKEN": "${session.NOT_THERE}"}},
    }
    with serve(tmp_path, servers, bootstrap=True) as gateway:
        gateway.initialize()
        gateway.mcp(connect="t")
        told = gateway.mcp(tool="t_tell")
        assert json.loads(told["content"][0]["text"]) == [os.fspath(tmp_path), []]
        refused = gateway.mcp(connect="poor")
        assert refused["isError"]
        assert "${session.NOT_THERE}" in refused["content"][0]["text"]
        waiting = gateway.mcp(search="zebra")
        assert "poor (asked when a session gives it NOT_THERE)" in waiting["content"][0]["text"]
        gateway.end()
