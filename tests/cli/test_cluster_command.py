"""`greenroom cluster`, with a directory that lives in the command's own child. The demo needs a real cluster, as `make
cluster` does; what it prints is checked here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.gateway import gone_within
from tests.support.patience import PATIENCE
from tests.support.shapes import conforms
from tests.support.tiny_ray import ray as ray

from greenroom import DrainReport
from greenroom.cli.cluster_demo import ClusterStory
from greenroom.cli.json_shapes import plain
from greenroom.cli.main import run


@pytest.fixture(autouse=True)
def hosts(ray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTS", "4f2a 9b01 9b77")


def test_the_hosts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "status", "--ray", "head:1"]) == 0
    assert capsys.readouterr().out == (
        "4f2a  http://4f2a:1  serving  -\n9b01  http://9b01:1  serving  -\n9b77  http://9b77:1  serving  -\n"
    )


@pytest.mark.parametrize("words", [("status",), ("start",), ("drain", "4f", "--off")])
def test_a_program_reads_the_hosts(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", *words, "--ray", "head:1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    conforms("cluster status", shown)
    conforms("cluster start", shown)
    conforms("cluster drain --off", shown)
    assert [host["state"] for host in shown["hosts"]] == ["serving", "serving", "serving"]


def test_the_start_ends_when_each_node_has_a_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LATE", "c0de")
    assert run(["cluster", "start", "--ray", "head:1"]) == 0
    assert "c0de  http://c0de:1  serving" in capsys.readouterr().out


def test_a_node_without_a_host_is_no_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOST", "dead beef")
    assert run(["cluster", "start", "--wait", "0", "--ray", "head:1"]) == 1
    shown = capsys.readouterr()
    assert "4f2a  http://4f2a:1  serving" in shown.out
    assert "no lease after 0 s: beef, dead" in shown.err


def test_to_start_a_cluster_without_nodes_for_hosts_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOSTS", "")
    assert run(["cluster", "start", "--wait", "0", "--ray", "head:1"]) == 1
    assert "no node of the cluster carries a host" in capsys.readouterr().err


# A Ray whose node starts a process, and then fails.
BROKEN = """
import subprocess, sys

class Cluster:
    def add_node(self, **more):
        agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"agent {agent.pid}", file=sys.stderr, flush=True)
        raise RuntimeError("the port is taken\\nand a second line")

    def shutdown(self):
        raise OSError("nor does it end")
"""
UNFIT = {
    "raise RuntimeError('no shared memory')": (1, "Ray does not work on this machine: no shared memory. See"),
    "import no_such_part": (2, "Ray cannot be imported (No module named 'no_such_part'): pip install"),
    "def Cluster(): raise OSError(28, 'No space left')": (1, "Ray does not work on this machine: [Errno 28]"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the demo needs Linux")
@pytest.mark.parametrize("unfit", UNFIT)
def test_a_ray_that_is_not_fit_is_told_as_that(unfit: str, ray: Path) -> None:
    (ray.parent / "cluster_utils.py").write_text(unfit)
    command = (sys.executable, "-m", "greenroom", "cluster", "demo")
    played = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    code, says = UNFIT[unfit]
    assert (played.returncode, says in played.stderr, "a bug" in played.stderr) == (code, True, False)


@pytest.mark.skipif(sys.platform != "linux", reason="the demo needs Linux")
def test_a_ray_that_does_not_start_is_no_bug_of_ours_and_leaves_nothing(ray: Path) -> None:
    (ray.parent / "cluster_utils.py").write_text(BROKEN)
    command = (sys.executable, "-m", "greenroom", "cluster", "demo")
    played = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert played.returncode == 1
    assert (
        "Ray does not work on this machine: the port is taken and a second line. See what it says: ray start"
        in played.stderr
    )
    (agent,) = re.findall(r"agent (\d+)", played.stderr)
    assert not gone_within({int(agent)})  # a process that is killed takes a moment to end


def test_a_host_that_is_drained_and_says_nothing_has_no_account(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "drain", "4f", "--ray", "head:1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    conforms("cluster drain", shown)
    assert (shown["host"], shown["left"], shown["calls"]) == ("4f2a", [], None)
    assert run(["cluster", "drain", "4f", "--ray", "head:1"]) == 0
    assert capsys.readouterr().out == (
        "4f2a runs nothing any more\nthe host does not say what became of its calls\n"
    )


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ("9b", "Several hosts begin with 9b. There are: 9b01, 9b77."),
        ("x", "No host begins with x. There are: 4f2a, 9b01, 9b77."),
    ],
)
def test_a_node_that_is_not_one_host_is_refused(
    node: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cluster", "drain", node, "--ray", "head:1"]) == 2
    assert says in capsys.readouterr().err


def test_a_cluster_that_cannot_be_used_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "status", "--ray", "refuses:1"]) == 2
    assert (
        "The Ray cluster at refuses:1 cannot be used: no cluster is there. It was" in capsys.readouterr().err
    )


def test_what_the_demo_prints_is_as_the_page_says() -> None:
    story = ClusterStory(as_json=True)
    story.nodes = {"4f2a": None}
    conforms("cluster demo", plain(story.summary(DrainReport(1, 1, 0, 0, 0))))
