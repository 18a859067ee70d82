"""What `greenroom cluster drain` says of a host, with real hosts and real servers."""

from __future__ import annotations

from pathlib import Path

import anyio
from tests.cluster._host_process import TOKEN
from tests.cluster.test_hosts import HeldCall, cluster, echo, server
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.shapes import conforms

from greenroom.cli.cluster_drain import HostDrain, drain_host
from greenroom.cli.json_shapes import plain
from greenroom.cluster.front import ClusterRoom


@in_real_time
async def test_whoever_drains_a_host_is_told_what_moved_what_ended_and_what_became_of_its_calls(
    tmp_path: Path,
) -> None:
    servers = {
        **{name: server(tmp_path, name) for name in ("one", "two", "three", "four")},
        "ses": {**HeldCall(tmp_path).server, "isolation": "per_session"},
    }
    told: list[HostDrain] = []

    async with cluster(tmp_path, servers, "a", "b") as (it, room):
        for name in list(servers)[:4]:
            await echo(room, name)
        had = [name for name in servers if it.holder(name) == "a"]
        host = next(host for host in room.hosts() if host.name == "a")

        async def drain() -> None:
            told.append(await drain_host(it.directory, TOKEN, host, PATIENCE))

        async with anyio.create_task_group() as tasks, anyio.create_task_group() as sessions:
            for n in range(6):  # some of them at this host
                sessions.start_soon(use_session, room, f"ann{n}")
            with anyio.fail_after(PATIENCE):
                while "ses" not in (await room.membership.ask(host, "/cluster/status")).body["links"]:
                    await anyio.sleep(0.05)
            tasks.start_soon(drain)
            with anyio.fail_after(PATIENCE):
                while not any(each.is_draining for each in room.hosts()):  # so what it had was looked at
                    await anyio.sleep(0.05)
            brief = await drain_host(it.directory, TOKEN, host, 0.0)
            assert "ses" in brief.left
            while had[0] in room.membership.view.held_by("a"):
                await anyio.sleep(0.05)
            await echo(room, had[0])
            HeldCall(tmp_path).end()
        (drained,) = told
        assert drained.left == []
        assert drained.moved == {had[0]: "b"}
        assert drained.free == sorted(had[1:])
        assert drained.ended == ["ses"]
        assert drained.calls is not None
        assert drained.calls.adds_up
        assert (drained.calls.open, drained.calls.completed >= len(had)) == (0, True)
        conforms("cluster drain", plain(drained.summary()))
        assert f"{had[0]} runs at b now" in drained.lines()


@in_real_time
async def test_whoever_drains_the_only_host_is_told_that_nothing_can_start_now(tmp_path: Path) -> None:
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, room):
        await echo(room, "one")
        (host,) = room.hosts()
        drained = await drain_host(it.directory, TOKEN, host, PATIENCE)
        assert drained.lines()[:2] == [
            "one: will start when another host is in service: there is none",
            "a runs nothing any more",
        ]
        await it.directory.drain("a", False)
        await echo(room, "one")


async def use_session(room: ClusterRoom, name: str) -> None:
    async with room.session(name) as session:
        await session.call("ses_slow", {})
