"""What of Ray's part can be shown without Ray: nothing imports it, who is revived when, and a front's way to the
directory, through a child that meets a Ray of a few lines. `make cluster` shows the rest with the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.tiny_ray import ray as ray

from greenroom import UsageError
from greenroom.cluster.directory import DirectorySilent
from greenroom.cluster.front import ClusterRoom
from greenroom.cluster.leases import JoinReply, JoinRequest, LeaseTimes, RenewalReply
from greenroom.cluster.ray_cluster import carries_host, overdue
from greenroom.cluster.ray_directory import Driver, RayDirectory, connect


@contextmanager
def connected(address: str = "head:1") -> Generator[RayDirectory]:
    directory, token = connect(address, None)
    assert token == "secret"
    try:
        yield directory
    finally:
        directory.close()


def test_nothing_imports_ray_without_need() -> None:
    rooms = "greenroom, greenroom.cluster, greenroom.cluster.ray_cluster, greenroom.cluster.front, greenroom.cli.main"
    code = f"import sys, {rooms}; greenroom.Greenroom; sys.exit('ray' in sys.modules)"
    assert subprocess.run((sys.executable, "-c", code), check=False, timeout=PATIENCE).returncode == 0


# ---- A front's way to the directory ---------------------------------------------------------------------------------


@in_real_time
async def test_a_front_asks_the_directory_through_its_child(ray: Path) -> None:
    with connected() as directory:
        joined = await directory.join(JoinRequest("host", "http://127.0.0.1:1", 1, "", "run"))
        assert isinstance(joined, JoinReply)
        assert isinstance(await directory.renew(joined.epoch, 1, frozenset(), {}), RenewalReply)
        view = await directory.view()
        assert view is not None
        assert [host.name for host in view.hosts] == ["host"]
        assert await directory.view(view.number) is None


@in_real_time
async def test_what_fails_over_there_is_silence_in_words(ray: Path) -> None:
    with connected() as directory:
        with pytest.raises(DirectorySilent, match="cannot be asked: the actor has died"):
            await directory.leave("1.1")
        with pytest.raises(DirectorySilent, match="failed: KeyError"):
            await directory.post_config(b"")


@in_real_time
async def test_a_child_that_has_ended_is_silence_and_then_another(ray: Path) -> None:
    with connected() as directory:
        for child in children():
            os.kill(child, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            assert await until(directory, silent=True)
            assert await until(directory, silent=False)
    assert not children()


@in_real_time
async def test_a_child_that_loses_the_directory_for_good_is_silence_and_then_another(
    ray: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the head comes back, and Ray tells nobody who joined at the node that was lost with it."""
    deaf = tmp_path / "deaf"
    deaf.touch()
    monkeypatch.setenv("DEAF", str(deaf))
    driver = Driver("head:1", None)
    try:
        directory = RayDirectory(driver.ask, within=1.0)
        driver.connect()
        deaf.write_text(str(children()))
        with anyio.fail_after(PATIENCE):
            assert await until(directory, silent=True)
            assert await until(directory, silent=False)
    finally:
        driver.close()


@in_real_time
async def test_another_cluster_at_the_address_has_another_token(
    ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected() as directory:
        assert directory.token() == "secret"
        monkeypatch.setenv("SECRET", "another")
        for child in children():
            os.kill(child, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            assert await until(directory, silent=True)
            assert await until(directory, silent=False)
        assert directory.token() == "another"


async def until(directory: RayDirectory, *, silent: bool) -> bool:
    while True:
        try:
            await directory.view()
        except DirectorySilent:
            if silent:
                return True
        else:
            if not silent:
                return True
        await anyio.sleep(0.05)


def children() -> list[int]:
    listed = subprocess.run(
        ("ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())), capture_output=True, text=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "cluster.ray_cluster" in line]


@pytest.mark.parametrize(
    ("variables", "address", "says"),
    [
        ({}, "refuses:1", r"no cluster is there\. It was looked for\. .*: ray status --address=refuses:1$"),
        ({}, "other:1", r"with: Ray: 2\.1 Python: 3\.9\. .* versions of Ray and Python"),
        ({}, "exits:1", r"Ray has ended it\. .*: ray status --address=exits:1$"),
        ({}, "dies:1", r"the process that asks Ray has ended\. .*: ray status --address=dies:1$"),
        ({"RAY_ADDRESS": "refuses:1"}, "auto", "The Ray cluster at refuses:1 cannot be used"),
        ({"RAY_ADDRESS": "local"}, "auto", "'local' is not an address of a Ray cluster"),
        ({}, "local", "Write HOST:PORT of its head, or auto"),
        ({}, "ray://head:10001", "Write HOST:PORT of its head, or auto"),
        ({}, "head", "Write HOST:PORT of its head, or auto"),
        ({"OTHER": "0.0.1"}, "head:1", "its hosts have Greenroom 0.0.1, and this is"),
        ({"NONE": "1"}, "head:1", "begin with `greenroom cluster start`"),
    ],
)
@pytest.mark.usefixtures("ray")
def test_a_cluster_that_cannot_be_used_says_why(
    variables: dict[str, str], address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=says):
        connect(address, None)
    assert not children()


@in_real_time
async def test_a_front_whose_directory_is_dead_says_so_when_it_is_entered(
    ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEAD", "1")
    monkeypatch.setattr(RayDirectory, "look_every", 0.0)
    with pytest.raises(
        UsageError, match=r"at head:1 cannot be used: .*head is dead\. .*ray status --address"
    ):
        async with ClusterRoom.open({"mcpServers": {}}, ray="head:1"):
            pass
    assert not children()


def test_a_machine_that_is_no_node_of_the_cluster_is_told_how_to_become_one(ray: Path) -> None:
    services = ray.parent / "_private" / "services.py"
    services.parent.mkdir()
    services.write_text("def find_node_ids(): return set()")
    with pytest.raises(UsageError, match=r"start one: ray start --address=10\.0\.0\.1:6379 --num-cpus=0$"):
        connect("10.0.0.1:6379", None)


def test_without_ray_one_is_told_what_to_install(ray: Path) -> None:
    ray.write_text("raise ModuleNotFoundError('no Ray here', name='ray')")
    with pytest.raises(UsageError, match=r'Ray is not installed: pip install "greenroom\[ray\]"'):
        connect("head:1", LeaseTimes())
    ray.write_text("import no_such_part")
    with pytest.raises(UsageError, match=r"No module named 'no_such_part'\): pip install"):
        connect("head:1", LeaseTimes())


@pytest.mark.parametrize(("newest", "ends"), [(7, False), (8, True)])
def test_a_directory_that_is_not_the_newest_ends(ray: Path, newest: int, ends: bool) -> None:
    store = ray.parent / "experimental" / "internal_kv.py"
    store.parent.mkdir()
    store.write_text(f"def _internal_kv_list(prefix, namespace): return [b'dir/6', b'dir/{newest}']")
    ray.write_text(ray.read_text() + "def nodes(): os._exit(0)  # it goes on")
    code = """
from greenroom.cluster.leases import LeaseTimes
from greenroom.cluster.ray_cluster import NodeWatch
from greenroom.cluster.ray_directory import ClusterAbout
NodeWatch(ClusterAbout("1", "token", LeaseTimes(), 7), None).run()
"""
    ended = subprocess.run(
        (sys.executable, "-c", code), check=False, timeout=PATIENCE, capture_output=True, text=True
    )
    assert (ended.returncode, "there is a newer directory" in ended.stdout) == (int(ends), ends)


# ---- Who is revived -------------------------------------------------------------------------------------------------


def test_a_host_without_a_lease_is_overdue_and_then_has_time_to_start() -> None:
    patience: dict[str, float] = {}
    assert overdue(patience, {"a", "b"}, {"a", "b"}, 100.0) == []
    assert overdue(patience, {"a"}, {"a", "b"}, 102.0) == ["b"]
    assert overdue(patience, {"a"}, {"a", "b"}, 120.0) == []
    assert overdue(patience, {"a"}, {"a", "b"}, 200.0) == ["b"]


def test_a_worker_that_this_directory_has_not_made_has_time_to_join() -> None:
    patience: dict[str, float] = {}
    assert overdue(patience, set(), {"a"}, 100.0) == []
    assert overdue(patience, set(), {"a"}, 120.0) == []
    assert overdue(patience, set(), {"a"}, 140.0) == ["a"]
    assert overdue(patience, set(), set(), 200.0) == []
    assert patience == {}


def test_a_node_that_is_dead_or_has_no_processors_gets_no_host() -> None:
    assert carries_host({"Alive": True, "Resources": {"CPU": 1.0}})
    assert not carries_host({"Alive": True, "Resources": {}})
    assert not carries_host({"Alive": False, "Resources": {"CPU": 1.0}})
