"""`greenroom cluster`, with a directory that lives in the command's own child. The demo needs a real cluster, as `make
cluster` does; what it prints is checked here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.shapes import conforms
from tests.support.tiny_ray import ray as ray

from greenroom import DrainReport
from greenroom.cli.cluster_demo import Story
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
    assert run(["cluster", "status", "--ray", "refuses"]) == 2
    assert "The Ray cluster at refuses cannot be used: no cluster is there" in capsys.readouterr().err


def test_what_the_demo_prints_is_as_the_page_says() -> None:
    story = Story(as_json=True)
    story.nodes = {"4f2a": None}
    conforms("cluster demo", story.summary(DrainReport(1, 1, 0, 0, 0)))
