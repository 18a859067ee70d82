"""Hosts as real processes, real HTTP between, real servers: what is lost, who holds what, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import attrs
import httpx2
import pytest
from tests.cluster._host_process import TOKEN, serve, times
from tests.support import in_real_time
from tests.support.forked import HOST, popen_forked
from tests.support.patience import PATIENCE

from greenroom.cluster.cluster_host import end_predecessor
from greenroom.cluster.directory import LocalDirectory
from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.leases import Predecessor, Register
from greenroom.errors import CallError, ServerLost
from greenroom.testing.servers import whole

LENGTH = 4.0  # seconds of a lease: a busy machine may not run a host for two
_WANTED = {"type": "object", "properties": {"it": {"type": "string"}}}
QUESTION = {"method": "elicitation/create", "params": {"message": "it?", "requestedSchema": _WANTED}}
TOLD = Path(__file__).resolve().parents[1] / "support" / "answers_when_told.py"


def server(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    args = ["-S", whole.__file__, "--name", name, "--log", str(folder / f"{name}.log")]
    return {"command": sys.executable, "args": args, **more}


@attrs.define(eq=False)
class Cluster:
    """A directory here, and hosts in processes of their own."""

    folder: Path
    directory: LocalDirectory
    hosts: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def socket(self) -> str:
        return str(self.folder / "directory")

    def start(self, name: str) -> None:
        command = [*HOST, self.socket, name, str(self.directory.register.times.length)]
        with (self.folder / f"{name}.err").open("ab") as err:
            self.hosts[name] = popen_forked(command, stderr=err, start_new_session=True)

    def holder(self, server: str) -> str | None:
        view = self.directory.register.view("", time.monotonic())
        return None if view is None else view.held.get(server)

    async def until_hosts(self, room: ClusterRoom, count: int) -> None:
        with anyio.fail_after(PATIENCE):
            while sum(not host.is_late for host in room.hosts()) != count:
                await anyio.sleep(0.05)
                await room.membership.refresh()

    def children(self) -> list[int]:
        """The processes of servers, of whatever host."""
        found: list[int] = []
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                    state = Path(f"/proc/{name}/stat").read_text(encoding="latin-1").rpartition(") ")[2][0]
                except OSError:
                    continue
                if (
                    str(self.folder).encode() in b"".join(words)
                    and whole.__file__.encode() in words
                    and state != "Z"
                ):
                    found.append(int(name))
        return found

    def end(self) -> None:
        for process in self.hosts.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.hosts.values():
            process.kill()
            process.wait()


@asynccontextmanager
async def cluster(
    folder: Path, servers: Mapping[str, Any], *hosts: str, length: float = LENGTH
) -> AsyncGenerator[tuple[Cluster, ClusterRoom]]:
    """A cluster with a front, in which all hosts have joined. When it ends, no server is left anywhere."""
    it = Cluster(folder, LocalDirectory(times(length)))
    config = {"mcpServers": dict(servers)}
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve, it.directory, it.socket)
            for name in hosts:
                it.start(name)
            room = ClusterRoom.open(
                config, directory=it.directory, token=TOKEN, cache_path=":memory:", bootstrap=False
            )
            async with room:
                await it.until_hosts(room, len(hosts))
                yield it, room
            tasks.cancel_scope.cancel()
    finally:
        it.end()
    deadline = time.monotonic() + PATIENCE
    while left := it.children():
        assert time.monotonic() < deadline, f"servers are left: {left}"
        await anyio.sleep(0.05)


async def echo(room: Any, server: str) -> None:
    with anyio.fail_after(PATIENCE):
        result = await room.call(f"{server}_echo", {"text": "it"})
    assert not result.is_error


async def until_called(folder: Path, name: str, count: int) -> None:
    """Until so many calls have reached the server."""
    with anyio.fail_after(PATIENCE):
        while (folder / f"{name}.log").read_text().count("got tools/call") < count:
            await anyio.sleep(0.01)


async def account(room: ClusterRoom, name: str) -> Mapping[str, Any]:
    """What a host says of itself."""
    (host,) = (host for host in room.hosts() if host.name == name)
    return (await room.membership.ask(host, "/cluster/status")).body


@attrs.define
class HeldCall:
    """A call of a server that answers when it is told to."""

    folder: Path
    results: list[Any] = attrs.field(factory=list[Any])

    @property
    def server(self) -> dict[str, Any]:
        return {"command": sys.executable, "args": ["-S", str(TOLD), str(self.folder)]}

    async def begin(self, room: ClusterRoom, tasks: anyio.abc.TaskGroup) -> None:
        """It has reached its server when this returns."""
        tasks.start_soon(self._make, room)
        with anyio.fail_after(PATIENCE):
            while not (self.folder / "asked").exists():
                await anyio.sleep(0.01)

    def end(self) -> None:
        (self.folder / "answer").touch()

    async def _make(self, room: ClusterRoom) -> None:
        self.results.append(await room.call("told_slow", {}))


@in_real_time
async def test_calls_go_through_whatever_host_and_isolation_is_kept(tmp_path: Path) -> None:
    servers = {
        **{name: server(tmp_path, name) for name in ("one", "two", "three", "four", "five", "six")},
        "ses": server(tmp_path, "ses", isolation="per_session"),
        "call": server(tmp_path, "call", isolation="per_call"),
    }
    async with cluster(tmp_path, servers, "a", "b") as (it, room):
        for name in servers:
            if name != "ses":
                await echo(room, name)
        assert {it.holder(name) for name in servers} == {"a", "b", None}
        assert it.holder("ses") is it.holder("call") is None
        async with room.session("ann") as ann, room.session("ben") as ben:
            with anyio.fail_after(PATIENCE):
                while len(it.children()) > 6:  # that of the call ends
                    await anyio.sleep(0.02)
            for _ in range(2):
                await echo(ann, "ses")
                await echo(ben, "ses")
            assert len(it.children()) == 6 + 2, "a child for each session, and no more"
        assert room.drain_report is not None
        assert room.drain_report.adds_up


@in_real_time
async def test_what_servers_say_comes_through(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def answer(_request: Any) -> Any:
        return {"action": "accept", "content": {"it": "yes"}}

    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (_, room):
        await echo(room, "one")
        await room.call("one_steps", {"count": 3}, on_progress=heard.append)
        assert [each["progress"] for each in heard] == [1, 2, 3]
        with pytest.raises(CallError) as refused:
            await room.call("one_refuse", {})
        assert (refused.value.code, "[one]" in refused.value.message) == ("call_failed", False)
        with pytest.raises(CallError) as late:
            await room.call("one_sleep", {"seconds": 60}, timeout=2.0)
        assert (late.value.code, str(late.value.reach)) == ("timeout", "sent")
        async with room.session("ann", on_elicitation=answer) as ann:
            said = await ann.call("one_ask", QUESTION)
            assert "yes" in said.text


@in_real_time
async def test_a_host_that_is_killed_loses_what_was_sent_and_nothing_else(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a", "b") as (it, room):
        await echo(room, "one")
        first = it.holder("one")
        assert first is not None
        ends: list[CallError] = []

        async def sent() -> None:
            with pytest.raises(ServerLost) as lost:
                await room.call("one_sleep", {"seconds": 60})
            ends.append(lost.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sent)
            await until_called(tmp_path, "one", 2)
            it.hosts[first].kill()
            it.hosts.pop(first).wait()
            await echo(room, "one")
        assert [str(end.reach) for end in ends] == ["sent"]
        assert it.holder("one") not in (None, first)
        assert len(it.children()) == 1


@in_real_time
async def test_a_host_that_is_stopped_loses_its_children_before_another_starts_them(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a", "b") as (it, room):
        await echo(room, "one")
        first = it.holder("one")
        assert first is not None
        (child,) = it.children()
        epoch = next(host.epoch for host in room.hosts() if host.name == first)
        it.hosts[first].send_signal(signal.SIGSTOP)
        with anyio.fail_after(PATIENCE):
            while it.holder("one") == first:
                await anyio.sleep(0.02)
            assert child not in it.children(), "it was free before it was gone"
            while any(host.epoch == epoch for host in room.hosts()):  # what is called now is sent, and lost
                await anyio.sleep(0.02)
        await echo(room, "one")
        assert it.holder("one") not in (None, first)
        it.hosts[first].send_signal(signal.SIGCONT)
        await it.until_hosts(room, 2)
        assert next(host.epoch for host in room.hosts() if host.name == first) != epoch
        assert len(it.children()) == 1


@in_real_time
async def test_when_a_paused_machine_goes_on_its_guard_ends_what_lives_elsewhere_by_then(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a", "b") as (it, room):
        await echo(room, "one")
        first = it.holder("one")
        assert first is not None
        (child,) = it.children()
        (guard,) = guards_of(it.hosts[first].pid)
        paused = (it.hosts[first].pid, guard, child)
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        try:
            with anyio.fail_after(PATIENCE):
                while it.holder("one") in (None, first):
                    with suppress(CallError):  # what was sent there before anybody noticed
                        await room.call("one_echo", {}, timeout=1.0)
            await echo(room, "one")
            ran = len(it.children())
        finally:
            for pid in paused:
                with suppress(ProcessLookupError):  # its guard was quicker
                    os.kill(pid, signal.SIGCONT)
        assert ran == 2, "nobody could end it"
        with anyio.fail_after(PATIENCE):
            while child in it.children():
                await anyio.sleep(0.02)
        await it.until_hosts(room, 2)
        await echo(room, "one")
        assert it.holder("one") not in (None, first)
        assert len(it.children()) == 1


def guards_of(owner: int) -> list[int]:
    """The processes that end what this one has started."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-1] == str(owner).encode() and any(b"GREENROOM" in word for word in words):
                found.append(int(name))
    return found


@in_real_time
async def test_a_directory_that_has_forgotten_everything_is_told_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, room):
        await echo(room, "one")
        children = it.children()
        epochs = {host.epoch for host in room.hosts()}
        it.directory.register = Register(2, it.directory.register.times, time.monotonic())
        await echo(room, "one")
        await it.until_hosts(room, 1)
        assert {host.epoch for host in room.hosts()} == epochs
        assert it.children() == children, "nothing was started again"
        it.start("b")  # and has to be told what it is to run
        await it.until_hosts(room, 2)
        it.hosts["a"].kill()
        it.hosts.pop("a").wait()
        await echo(room, "one")
        assert it.holder("one") == "b"


@in_real_time
async def test_a_configuration_that_cannot_be_used_changes_nothing_and_the_next_one_counts(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, room):
        await echo(room, "one")
        children = it.children()
        await it.directory.post_config(b"greenroom 0.0.0\nof another version")
        with anyio.fail_after(PATIENCE):
            while "0.0.0" not in (it.folder / "a.err").read_text():
                await anyio.sleep(0.05)
        it.start("b")
        with anyio.fail_after(PATIENCE):
            while "0.0.0" not in (it.folder / "b.err").read_text():
                await anyio.sleep(0.05)
        await echo(room, "one")
        assert it.children() == children
        assert [host.name for host in room.hosts()] == ["a"], "the other has nothing to run"
        await room.reload({"mcpServers": {"new": server(tmp_path, "new")}})
        await it.until_hosts(room, 2)
        await echo(room, "new")


@in_real_time
async def test_hosts_that_cannot_renew_stop_and_come_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, room):
        await echo(room, "one")
        it.directory.is_silent = True
        with anyio.fail_after(PATIENCE):
            while it.children():
                await anyio.sleep(0.05)
        it.directory.is_silent = False
        await echo(room, "one")


@in_real_time
async def test_a_host_started_again_ends_what_its_predecessor_left(tmp_path: Path) -> None:
    length = 4 * PATIENCE  # nobody waits here until that is over
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a", length=length) as (it, room):
        await echo(room, "one")
        former = it.hosts.pop("a")
        (epoch,) = (host.epoch for host in room.hosts())
        former.send_signal(signal.SIGSTOP)
        it.start("a")
        try:
            with anyio.fail_after(PATIENCE):
                while any(host.epoch == epoch for host in room.hosts()):
                    await room.membership.refresh()
                    await anyio.sleep(0.02)  # the link to it ends
            await echo(room, "one")
            assert former.wait(PATIENCE) == -signal.SIGKILL
            assert len(it.children()) == 1
        finally:
            former.kill()
            former.wait()


@in_real_time
async def test_a_drained_host_gives_back_what_rests_and_takes_nothing(tmp_path: Path) -> None:
    servers = {name: server(tmp_path, name) for name in ("one", "two", "three", "four")}
    call, busy = HeldCall(tmp_path), ""

    async with cluster(tmp_path, {**servers, "told": call.server}, "a", "b") as (it, room):
        for name in servers:
            await echo(room, name)
        async with anyio.create_task_group() as tasks:
            await call.begin(room, tasks)
            busy = str(it.holder("told"))
            assert await it.directory.drain(busy, True)
            with anyio.fail_after(PATIENCE):
                while (await account(room, busy))["holds"] != ["told"]:
                    await anyio.sleep(0.05)
            for name in servers:
                await echo(room, name)
                assert it.holder(name) not in (None, busy)
            assert not call.results
            call.end()
        assert [result.is_error for result in call.results] == [False]
        with anyio.fail_after(PATIENCE):
            while it.holder("told") == busy:
                await anyio.sleep(0.05)
        assert not (await room.call("told_slow", {})).is_error
        assert it.holder("told") not in (None, busy)
        told = await account(room, busy)
        assert (told["draining"], told["holds"], told["name"]) == (True, [], busy)
        assert it.hosts[busy].poll() is None, "whoever runs it stops it"
        assert len(it.children()) == len(servers)


@in_real_time
async def test_a_server_that_is_asked_again_and_again_moves_from_a_drained_host_at_once(
    tmp_path: Path,
) -> None:
    """The next call, which comes while it ends there, must not start it there once more."""
    has_moved = anyio.Event()

    def starts() -> int:
        return (tmp_path / "one.log").read_text().count("got initialize")

    async def ask(room: ClusterRoom) -> None:
        while not has_moved.is_set():
            await echo(room, "one")
            await anyio.sleep(0.005)

    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a", "b") as (it, room):
        await echo(room, "one")
        former, before = str(it.holder("one")), starts()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, room)
            assert await it.directory.drain(former, True)
            with anyio.fail_after(PATIENCE):
                while it.holder("one") in (former, None):
                    await anyio.sleep(0.05)
            has_moved.set()
        await echo(room, "one")
        assert starts() == before + 1


@in_real_time
async def test_a_server_that_never_rests_moves_from_a_drained_host_all_the_same(tmp_path: Path) -> None:
    """Some call is always under way. All of them are answered."""
    has_moved = anyio.Event()
    answers: list[bool] = []

    async def ask(room: ClusterRoom, first: float) -> None:
        await anyio.sleep(first)
        while not has_moved.is_set():
            answers.append((await room.call("one_sleep", {"seconds": 0.5})).is_error)

    servers = {"one": server(tmp_path, "one", drainTimeoutMs=1_000)}
    async with cluster(tmp_path, servers, "a", "b") as (it, room):
        await echo(room, "one")
        former = str(it.holder("one"))
        async with anyio.create_task_group() as tasks:
            for first in (0.0, 0.2, 0.4):
                tasks.start_soon(ask, room, first)
            await until_called(tmp_path, "one", 6)
            assert await it.directory.drain(former, True)
            with anyio.fail_after(PATIENCE):
                while it.holder("one") in (former, None):
                    await anyio.sleep(0.05)
            has_moved.set()
        assert answers
        assert not any(answers)


@in_real_time
async def test_a_busy_server_is_not_started_anew_when_the_drain_is_taken_back(tmp_path: Path) -> None:
    is_asked, may_answer = anyio.Event(), anyio.Event()

    async def answer(_request: Any) -> Any:
        is_asked.set()
        await may_answer.wait()
        return {"action": "decline"}

    async def ask(room: ClusterRoom) -> None:
        async with room.session("ann", on_elicitation=answer) as ann:
            await ann.call("one_ask", QUESTION)

    servers = {"one": server(tmp_path, "one", drainTimeoutMs=100)}
    async with cluster(tmp_path, servers, "a") as (it, room), anyio.create_task_group() as tasks:
        await echo(room, "one")
        (child,) = it.children()
        tasks.start_soon(ask, room)
        await is_asked.wait()
        assert await it.directory.drain("a", True)
        with anyio.fail_after(PATIENCE):
            while await answers_soon(room, "one"):
                await anyio.sleep(0.05)
        assert await it.directory.drain("a", False)
        with anyio.fail_after(PATIENCE):
            while (await account(room, "a"))["draining"]:
                await anyio.sleep(0.05)
        await anyio.sleep(LENGTH / 2)  # it looks at what it holds now and then, and nobody is told of that
        may_answer.set()
        await echo(room, "one")
        assert it.children() == [child], "what it keeps in memory is lost"


async def answers_soon(room: ClusterRoom, server: str) -> bool:
    with anyio.move_on_after(0.5):
        await echo(room, server)
        return True
    return False


@in_real_time
async def test_what_only_a_host_knows_reaches_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a1B2c3D4e5F6g7H8"
    one = server(tmp_path, "one", env={"API_KEY": "${KEY_OF_HOSTS}"})
    async with cluster(tmp_path, {"one": one}) as (it, room):
        with monkeypatch.context() as at_host:
            at_host.setenv("KEY_OF_HOSTS", secret)
            it.start("a")
        await it.until_hosts(room, 1)
        said = await room.call_for_model("one_echo", {"text": f"it is {secret}"})
        assert "it is" in said.text
        assert secret not in said.text


@in_real_time
async def test_a_reload_reaches_the_hosts_and_other_fronts(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, room):
        config = {"mcpServers": {"one": server(tmp_path, "one")}}
        async with ClusterRoom.open(
            config, directory=it.directory, token=TOKEN, cache_path=":memory:"
        ) as other:
            await echo(other, "one")
            await room.reload({"mcpServers": {"new": server(tmp_path, "new")}})
            await echo(room, "new")
            with anyio.fail_after(PATIENCE):
                while list(other.config.servers) != ["new"]:
                    await anyio.sleep(0.05)
            await echo(other, "new")
            with anyio.fail_after(PATIENCE):
                while len(it.children()) > 1:
                    await anyio.sleep(0.05)


@in_real_time
async def test_only_the_cluster_is_let_in_and_only_where_the_host_may(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (_, room),
        httpx2.AsyncClient() as client,
    ):
        (host,) = room.hosts()
        given = room.membership.headers(host)
        hello = room.membership.hello(host, "one", {})

        async def status(path: str, headers: Mapping[str, str], body: Any) -> int:
            return (await client.post(host.url + path, headers=headers, json=body)).status_code

        async def refused(line: bytes) -> str | None:
            address = urlsplit(host.url).hostname or ""
            async with await anyio.connect_tcp(address, host.link_port) as stream:
                await stream.send(line)
                try:
                    return json.loads(await stream.receive()).get("refused")
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return "without a word"

        wrong = {**given, "Authorization": "Bearer 0123456789abcdef-another"}
        assert await status("/cluster/open", wrong, {"server": "one"}) == 401
        assert await status("/cluster/open", {**given, "greenroom-epoch": "1.99"}, {"server": "one"}) == 409
        assert await refused(attrs.evolve(hello, epoch="1.99").line()) == "epoch"
        assert await refused(hello.line()) == "moved", "it holds no claim yet"
        assert await status("/cluster/open", given, {"server": "one"}) == 200
        assert await refused(attrs.evolve(hello, token="0123456789abcdef-another").line()) == "token"
        assert await refused(attrs.evolve(hello, server="none").line()) == "moved"
        assert await refused(b'{"token": "\\ud800", "epoch": "", "server": "one"}\n') == "token"
        assert await refused(b"GET / HTTP/1.1\r\n\r\n") == "no hello"
        assert await refused(b"x" * (1 << 20)) == "without a word"
        assert await refused(hello.line()) is None
        for path in ("/mcp", "/mcp/one"):
            assert await status(path, given, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}) == 404
        assert await status("/cluster/open", given, {"server": "none"}) == 425


@in_real_time
async def test_a_host_asked_to_end_keeps_its_lease_until_its_calls_have_ended(tmp_path: Path) -> None:
    call, first = HeldCall(tmp_path), ""
    servers = {name: server(tmp_path, name) for name in ("one", "two", "three", "four", "five", "six")}
    async with cluster(tmp_path, {**servers, "told": call.server}, "a", "b") as (it, room):
        async with anyio.create_task_group() as tasks:
            await call.begin(room, tasks)
            first = str(it.holder("told"))
            other = next(name for name in servers if room.host_of(name) == room.host_of("told"))
            it.hosts[first].terminate()
            with anyio.fail_after(PATIENCE):
                while not any(host.is_draining for host in room.hosts() if host.name == first):
                    await anyio.sleep(0.05)
            await echo(room, other)
            assert it.holder(other) not in (None, first)
            assert not call.results, "it had to wait until the host was gone"
            call.end()
        assert [result.is_error for result in call.results] == [False]
        with anyio.fail_after(PATIENCE):
            while it.hosts[first].poll() is None:
                await anyio.sleep(0.05)
        assert not (await room.call("told_slow", {})).is_error
        assert it.holder("told") not in (None, first)


@pytest.mark.parametrize("began", ["", "1 another-machine pid:[1]"])
def test_a_predecessor_elsewhere_is_not_taken_to_be_gone(began: str) -> None:
    former = Predecessor("1.1", os.getpid(), "a run of another host", began)
    assert not end_predecessor(former)
