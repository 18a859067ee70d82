"""`greenroom bench churn`: the machinery in virtual time, and the command on a real server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support import run, run_virtual

from greenroom import Greenroom, UnknownTool
from greenroom.cli import bench_command as churning
from greenroom.cli.bench_command import (
    CYCLE,
    PHASES,
    BenchPlan,
    BenchResult,
    Holdings,
    Leaks,
    Scale,
    churn,
    report,
)
from greenroom.cli.command_group import cli
from greenroom.config.model import Config, ServerDefinition
from greenroom.errors import UnknownServer
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool
from greenroom.testing.servers import echo

READS = tool("look", annotations={"readOnlyHint": True})
CONFIG = Config(servers={"s": ServerDefinition("s", command="x")})


def _churned(backend: str, plan: BenchPlan, server: FakeServer, told: list[int] | None = None) -> BenchResult:
    connectors = fake_connectors({f"churn{number}": server for number in range(plan.concurrency)})
    open_room = partial(Greenroom.open, bootstrap=False, cache_path=":memory:", connectors=connectors)
    tell = (lambda _done: None) if told is None else told.append
    return run_virtual(backend, churn, CONFIG, "s", plan, open_room, tell)


def test_each_phase_is_timed_by_the_rooms_own_clock(backend: str) -> None:
    server = FakeServer(
        tools=[READS], start_latency=1, initialize_latency=2, list_latency=3, call_latency=4, stop_latency=5
    )
    churned = _churned(backend, BenchPlan(cycles=3), server)
    seen = {phase: [round(sample, 3) for sample in churned.samples[phase]] for phase in (*PHASES, CYCLE)}
    assert seen == {
        "spawn": [1] * 3, "handshake": [2] * 3, "list": [3] * 3, "call": [4] * 3, "close": [5] * 3, "cycle": [15] * 3,
    }  # fmt: skip
    assert round(churned.seconds, 3) == 45
    assert server.starts == 3 + 2  # a look at its tools and a warm-up come first and are not counted


def test_cycles_run_side_by_side_and_are_told_one_by_one(backend: str) -> None:
    server, told = FakeServer(tools=[READS], initialize_latency=1), list[int]()
    churned = _churned(backend, BenchPlan(cycles=8, concurrency=4), server, told)
    assert server.most_live == 4
    assert len(churned.samples[CYCLE]) == 8
    assert round(churned.seconds, 3) == 2
    assert told[-8:] == [1, 2, 3, 4, 5, 6, 7, 8]


ASKS = {"type": "object", "required": ["path"]}


@pytest.mark.parametrize(
    "offered",
    [
        tool("write"),
        tool("look", annotations={"readOnlyHint": "yes"}),
        tool("look", annotations={"readOnlyHint": True}, inputSchema=ASKS),
    ],
)
def test_a_tool_that_may_do_harm_or_needs_arguments_is_not_called_unasked(offered: dict[str, Any]) -> None:
    server = FakeServer(tools=[offered])
    churned = _churned("trio", BenchPlan(cycles=2), server)
    assert churned.tool is None
    assert server.calls == []
    assert churned.samples["call"] == []
    assert len(churned.samples[CYCLE]) == 2


def test_the_tool_that_was_asked_for_is_called_with_its_arguments() -> None:
    server = FakeServer(tools=[tool("write")])
    churned = _churned("trio", BenchPlan(cycles=2, tool="write", arguments={"a": 1}), server)
    assert churned.tool == "write"
    assert [call["arguments"] for call in server.calls] == [{"a": 1}] * 3


def test_a_name_nobody_has_is_said_before_anything_is_measured() -> None:
    with pytest.raises(UnknownTool, match="It has: look"):
        _churned("trio", BenchPlan(tool="nope"), FakeServer(tools=[READS]))
    with pytest.raises(UnknownServer):
        run_virtual("trio", churn, CONFIG, "nope", BenchPlan(), Greenroom.open)


def test_a_cycle_that_fails_is_counted_and_the_others_go_on() -> None:
    server = FakeServer(tools=[tool("write")])

    def handler(_arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(server.calls) == 3:  # the warm-up is the first
            server.crash()
        return {"content": []}

    server.handler = handler
    churned = _churned("trio", BenchPlan(cycles=4, tool="write"), server)
    assert [failure.partition(":")[0] for failure in churned.failures] == ['Server "churn0" was lost']
    assert len(churned.samples["call"]) >= 3


def test_what_is_left_is_shared_out_over_the_measured_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Holdings({1: "old"}, 5, 1_000), Holdings({1: "old", 7: "node"}, 6, 9_000)]
    monkeypatch.setattr(churning.Holdings, "now", classmethod(lambda _cls: held.pop(0)))
    churned = _churned("trio", BenchPlan(cycles=4), FakeServer(tools=[READS]))
    assert churned.leaks == Leaks(("node (7)",), 1, 2_000.0)


def test_what_was_not_there_before_is_a_leak() -> None:
    before, after = Holdings({1: "old"}, 10, 1000), Holdings({1: "old", 2: "node x.js"}, 12, 5000)
    leaks = Leaks.between(before, after, 4)
    assert leaks == Leaks(("node x.js (2)",), 2, 1000.0)
    assert leaks.found
    assert not Leaks.between(before, Holdings({}, 9, 9000), 4).found


def test_a_descriptor_left_open_in_a_cycle_is_found() -> None:
    opened: list[int] = []
    server = FakeServer(tools=[READS], handler=lambda _arguments: opened.append(os.dup(0)) or {"content": []})
    churned = _churned("trio", BenchPlan(cycles=3), server)
    for descriptor in opened:
        os.close(descriptor)
    assert churned.leaks.descriptors == 3
    assert "left behind: 3 descriptors" in "\n".join(report("s", churned))


def test_the_picture_shows_every_sample() -> None:
    scale = Scale(0.001, 1.0, columns=3)
    assert scale.counts([0.001, 0.05, 0.05, 1.0, 0.0001]) == [2, 2, 1]
    assert scale.bars([0.001, 0.05, 0.05]) == "▄█"
    assert scale.axis() == "1.001000.0 ms", "too narrow: one behind the other"
    assert Scale(0.001, 1.0, columns=20).axis() == "1.00       1000.0 ms"


def test_a_real_server_leaves_nothing(backend: str) -> None:
    config = Config(
        servers={"e": ServerDefinition("e", command=sys.executable, args=("-S", str(echo.__file__)))}
    )
    open_room = partial(Greenroom.open, bootstrap=False, cache_path=":memory:")
    churned = run(backend, churn, config, "e", BenchPlan(cycles=4, concurrency=2), open_room)
    assert churned.failures == []
    assert not churned.leaks.found
    assert len(churned.samples[CYCLE]) == 4
    assert all(sample > 0 for samples in churned.samples.values() for sample in samples)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": ["-S", str(echo.__file__)]}
    config.write_text(json.dumps({"mcpServers": {"e": entry}}))
    common = ["bench", "churn", "e", "--config", str(config), "--cycles", "2"]
    printed = CliRunner().invoke(cli, common, standalone_mode=False)
    assert printed.return_value == 0, printed.output
    assert "left behind: nothing" in printed.output
    told = json.loads(CliRunner().invoke(cli, [*common, "--json"], standalone_mode=False).stdout)
    assert told["cycles"] == 2
    assert set(told["milliseconds"]) == {*PHASES, CYCLE}
    assert told["leaks"]["processes"] == []
