"""`greenroom cluster demo`: a real cluster on this machine, and a host of it that is killed in the middle of calls.

A head and three nodes of Ray, a front, six servers that all callers share, and a server of each session. Everything is
real; only the machines are one. The story knows how each call may end, and ends with exit code 1 when one ends
otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from msgspec.structs import asdict

from ..actors.timers import in_time
from ..protocol.errors import CallError, GreenroomError, Reach, UsageError
from .interruption import run_to_end
from .json_shapes import DrainReportJson, Shape, says
from .printing import show_json

if TYPE_CHECKING:
    from ..cluster.front import ClusterRoom
    from ..cluster.ray_cluster import LocalCluster
    from ..protocol.status import DrainReport


class ClusterDemoJson(Shape, kw_only=True):
    """What the demo of a cluster did."""

    hosts: Annotated[list[str], says("by name")]
    killed: Annotated[str, says("the host that was killed; empty: the story did not come so far")]
    ended: Annotated[dict[str, int], says("how the calls ended that were in flight", "calls")]
    seconds_until_served: Annotated[
        float | None,
        says("from the kill until all servers of that host were served; null: they were not", "s"),
    ]
    drain_report: Annotated[DrainReportJson, says("what became of all calls")]
    seconds: Annotated[float, says("how long it took", "s")]


SERVERS: Final = tuple(f"server{n}" for n in range(1, 7))
SESSIONS: Final = tuple(f"session{n}" for n in range(1, 7))
LEASE: Final = 4.0  # seconds; short enough to wait for
CALLS: Final = 4  # in flight at each server, and in each session
PATIENCE: Final = 30.0  # seconds for what the story waits for


class UnexpectedEvent(GreenroomError):
    """Something happened that the story does not expect."""


def demo_config() -> dict[str, Any]:
    """The configuration of the demo, as one would write it to `mcp.json`."""
    faulty = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.faulty"]}
    own = {**faulty, "isolation": "per_session"}
    return {"mcpServers": {**dict.fromkeys(SERVERS, faulty), "own": own}}


def run_demo(*, as_json: bool = False) -> int:
    """Play the demo. Returns the exit code. Raises `UsageError` where it cannot be played."""
    if sys.platform != "linux":
        raise UsageError(
            "greenroom cluster demo gives each node a loopback address of its own, which needs Linux."
        )
    from ..cluster.leases import LeaseTimes
    from ..cluster.ray_cluster import LocalCluster
    from ..cluster.ray_directory import connect

    story = ClusterStory(as_json)
    with ExitStack() as stack:
        # The hosts keep what they know of the demo's servers, and that is nothing for the user's own catalogue.
        os.environ["XDG_CACHE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="gr-"))
        story.scene("A head and three nodes of Ray start on this machine")
        story.cluster = LocalCluster(
            health_check_initial_delay_ms=0,
            health_check_period_ms=500,
            health_check_timeout_ms=1000,
            health_check_failure_threshold=5,
        )
        stack.callback(story.cluster.close)
        story.nodes = {node.node_id[:12]: node for node in (story.cluster.add() for _ in range(3))}
        times = LeaseTimes(length=LEASE, renew_every=LEASE / 5, refuse_before=LEASE / 4, drift=LEASE / 10)
        directory, _token = connect(story.cluster.address, times)
        stack.callback(directory.close)
        report, stopped_by = run_to_end(story.play)
    if as_json:
        show_json(story.summary(report))
    if stopped_by is not None:
        print(f"The demo stopped: {stopped_by}", file=sys.stderr)
    return 0 if stopped_by is None else 1


class ClusterStory:
    cluster: LocalCluster
    nodes: dict[str, Any]  # by the name of its host

    def __init__(self, as_json: bool) -> None:
        self._killed = ""
        self._served_after: float | None = None
        self._as_json = as_json
        self._began = time.monotonic()
        self._ended: Counter[str] = Counter()

    def scene(self, title: str) -> None:
        self._print(f"\n{time.monotonic() - self._began:5.1f} s  {title}")

    def say(self, text: str) -> None:
        self._print(f"         {text}")

    def _print(self, text: str) -> None:
        if not self._as_json:
            print(text, flush=True)

    def summary(self, report: DrainReport) -> ClusterDemoJson:
        return ClusterDemoJson(
            hosts=sorted(self.nodes),
            killed=self._killed,
            ended=dict(self._ended),
            seconds_until_served=self._served_after,
            drain_report=DrainReportJson(**asdict(report)),
            seconds=round(time.monotonic() - self._began, 1),
        )

    async def play(self) -> tuple[DrainReport, Exception | None]:
        """Play the scenes. Returns what became of all calls, and what has stopped the story."""
        from ..cluster.front import ClusterRoom

        stopped_by: Exception | None = None
        room = ClusterRoom.open(demo_config(), ray=self.cluster.address, cache_path=":memory:")
        async with room:
            try:
                await self._hosts_join(room)
                await self._servers_spread(room)
                await self._host_dies(room)
            except (GreenroomError, TimeoutError) as error:
                stopped_by = error
        report = room.drain_report
        assert report is not None  # the room has closed
        self.scene("The account")
        self.say(str(report))
        return report, stopped_by

    async def _hosts_join(self, room: ClusterRoom) -> None:
        async with in_time(PATIENCE):
            while len(room.hosts()) < len(self.nodes):  # noqa: ASYNC110 - the directory tells nobody
                await anyio.sleep(0.1)
        self.scene("Each node has a host: a room and its HTTP door, with a lease")
        for host in room.hosts():
            self.say(f"{host.name} at {host.url}")

    async def _servers_spread(self, room: ClusterRoom) -> None:
        self.scene("Six servers, each at one host; and one process for each of six sessions")
        async with in_time(PATIENCE):
            for server in SERVERS:
                await room.call("pid", server=server)
            async with anyio.create_task_group() as group:
                for name in SESSIONS:
                    group.start_soon(self._in_session, room, name, 0.0)
        held = await self._held(room)
        for host, servers in sorted(held.items()):
            self.say(f"{host} has {', '.join(servers)}")

    async def _host_dies(self, room: ClusterRoom) -> None:
        held = await self._held(room)
        host = max(held, key=lambda name: len(held[name]))
        pid = self.cluster.host_of(self.nodes[host])
        if pid is None:
            raise UnexpectedEvent(f"host {host} has no process")
        calls = CALLS * len(SERVERS) + len(SESSIONS)
        self.scene(f"{calls} calls are in flight, and host {host} is killed. What becomes of these {calls}:")
        self._ended.clear()
        killed = 0.0
        async with anyio.create_task_group() as group:
            for server in SERVERS:
                for _ in range(CALLS):
                    group.start_soon(self._call, partial(room.call, server=server), 0.5)
            for name in SESSIONS:
                group.start_soon(self._in_session, room, name, 2.0)
            await anyio.sleep(0.7)
            os.kill(pid, signal.SIGKILL)
            self._killed = host
            killed = time.monotonic()
        for outcome, times in sorted(self._ended.items()):
            self.say(f"{times} {outcome}")
        self.scene("The next call to each server that lived there")
        async with in_time(PATIENCE):
            for server in held[host]:
                while True:
                    try:
                        await room.call("pid", server=server)
                        break
                    except CallError as error:
                        if error.reach is not Reach.NOT_SENT:
                            raise
                        await anyio.sleep(0.05)
        self._served_after = round(time.monotonic() - killed, 2)
        self.say(f"all are served again, {self._served_after:.1f} s after the kill")
        for name, servers in sorted((await self._held(room)).items()):
            self.say(f"{name} has {', '.join(servers)}")

    async def _in_session(self, room: ClusterRoom, name: str, seconds: float) -> None:
        async with room.session(name) as session:
            await self._call(partial(session.call, server="own"), seconds)

    async def _call(self, make: Any, seconds: float) -> None:
        try:
            await make("sleep", {"seconds": seconds})
        except CallError as error:
            words = {Reach.NOT_SENT: "did not run", Reach.SENT: "may have run"}
            self._ended[f"ended with {error.code}: {words.get(error.reach, 'answered')}"] += 1
        else:
            self._ended["answered"] += 1

    async def _held(self, room: ClusterRoom) -> dict[str, list[str]]:
        await room.membership.refresh()
        view = room.membership.view
        held: dict[str, list[str]] = {host.name: [] for host in view.hosts}
        for server, host in sorted(view.held.items()):
            held.setdefault(host, []).append(server)
        return held
