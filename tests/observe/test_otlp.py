"""`serve --otlp`: one trace from the SDK's client through a gateway to its server, at a real collector."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import ROOT
from tests.support.gateway import HELLO, PATIENCE, serve
from tests.support.otlp import Collector, collector
from tests.support.patience import until
from tests.support.whole import direct_door, whole

from greenroom.cli.main import run
from greenroom.observe.otlp import exporting

APP = [sys.executable, "-m", "tests.support.traced_app"]


def _entry(taken: Collector) -> dict[str, Any]:
    return {
        "command": APP[0],
        "args": [*APP[1:], "server"],
        "cwd": os.fspath(ROOT),
        "env": {"OTEL_EXPORTER_OTLP_ENDPOINT": taken.url, "PYTHONPATH": os.fspath(ROOT)},
    }


@pytest.mark.parametrize(("mode", "expose"), [("legacy", "direct"), ("2026-07-28", "proxy")])
def test_one_trace_from_the_clients_span_to_the_servers(tmp_path: Path, mode: str, expose: str) -> None:
    with collector() as taken:
        options = ("--http", "127.0.0.1:0", "--expose", expose, "--otlp", taken.url)
        with serve(tmp_path, {"own": _entry(taken)}, *options) as gateway:
            url = _url(tmp_path / "stderr.txt")
            tool = "own_add" if expose == "direct" else "mcp"
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": taken.url}
            command = [*APP, "client", url, mode, tool]
            subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PATIENCE)
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.process.wait(PATIENCE) == 0
        taken.wait_for("agent", "work", "tools/call add", f"tools/call {tool}")
    [work] = [span for span in taken.spans if span.name == "work"]
    by_id, chain = {span.id: span for span in taken.spans}, [work]
    while parent := by_id.get(chain[0].parent):
        chain.insert(0, parent)
    version = "2025-11-25" if mode == "legacy" else mode
    assert [(span.service, span.kind, span.name) for span in chain] == [
        ("client", "INTERNAL", "agent"),
        ("client", "CLIENT", f"MCP send tools/call {tool}"),
        ("greenroom", "SERVER", f"tools/call {tool}"),
        ("greenroom", "CLIENT", "tools/call add"),
        ("server", "SERVER", "tools/call add"),
        ("server", "INTERNAL", "work"),
    ]
    assert len({span.trace for span in chain}) == 1
    assert all(outer.start <= inner.start and inner.end <= outer.end for outer, inner in pairwise(chain))
    assert chain[2].said["mcp.protocol.version"] == version
    waited = [span.name for span in taken.below(chain[2]) if span.kind == "INTERNAL"]
    assert "connect" in waited
    for name in ("mcp.server.operation.duration", "mcp.client.operation.duration"):
        assert any(said["mcp.method.name"] == "tools/call" for said, _ in taken.metrics[name])


def _url(log: Path) -> str:
    return until(lambda: (found := re.search(r"serving (\S+)", log.read_text())) and found[1], "the door")


def test_a_collector_that_is_not_there_costs_a_line_of_the_log_and_holds_nobody_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with direct_door(tmp_path, {"own": whole("own")}, options=("--otlp", f"http://127.0.0.1:{port}")) as door:
        door.initialize()
        for _ in range(3):
            assert "result" in door.answer(door.send("tools/call", {"name": "own_echo", "arguments": {}}))
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE, "it would wait for ever"


def test_a_gateway_whose_client_ends_ends_by_itself_also_when_its_collector_is_not_there(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with serve(tmp_path, {"own": whole("own")}, "--otlp", f"http://127.0.0.1:{port}", cold=True) as gateway:
        gateway.answer(gateway.send("initialize", HELLO))
        gateway.answer(
            gateway.send("tools/call", {"name": "mcp", "arguments": {"tool": "own_echo", "args": {}}})
        )
        assert gateway.process.stdin is not None
        assert gateway.process.stdout is not None
        gateway.process.stdin.close()
        gateway.process.stdout.close()
        assert gateway.process.wait(PATIENCE) == 0, "it was ended by its own alarm"


def test_variables_name_the_collector_and_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as taken:
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": taken.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=blue",
            "OTEL_SERVICE_NAME": "tools",
        }.items():
            monkeypatch.setenv(name, value)
        told = list[str]()
        with exporting("", told.append) as providers:
            providers["tracer_provider"].get_tracer("x").start_span("one").end()
        assert [(span.service, span.name) for span in taken.spans] == [("tools", "one")]
        assert {headers["x-team"] for headers in taken.headers} == {"blue"}
        assert not told


def test_what_is_no_url_and_a_missing_extra_are_said_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    assert run(["serve", "--config", os.fspath(config), "--otlp", "collector:4318"]) == 2
    assert (
        "collector:4318 is no URL for --otlp. Write it like http://127.0.0.1:4318." in capsys.readouterr().err
    )
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert run(["serve", "--config", os.fspath(config), "--otlp", "http://127.0.0.1:4318"]) == 2
    assert "Run: pip install 'greenroom[otel]'" in capsys.readouterr().err
