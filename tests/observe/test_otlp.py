"""`serve --otlp`: one trace from the SDK's client through a gateway to its server, at a real collector."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import GREENROOM, ROOT, forked
from tests.support.gateway import PATIENCE, serve, started
from tests.support.otlp import Collector, collector
from tests.support.patience import until
from tests.support.whole import direct_door, whole

from greenroom.cli.main import run
from greenroom.observe.otlp import exporting

APP = "tests.support.traced_app"


def _entry(taken: Collector) -> dict[str, Any]:
    command, *words = forked(APP, "server")
    return {
        "command": command,
        "args": words,
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
            command = forked(APP, "client", url, mode, tool)
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


def test_whoever_stops_exporting_does_not_wait_for_the_collector() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        with exporting(f"http://127.0.0.1:{never_answers.getsockname()[1]}", print) as providers:
            providers["tracer_provider"].get_tracer("x").start_span("one").end()
        still_sending = set(threading.enumerate()) - before
        assert still_sending, "it was waited for until the SDK had given up"
    until(lambda: not any(each.is_alive() for each in still_sending), "the end of what could not be sent")


def test_a_gateway_whose_collector_never_answers_ends_well(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"own": whole("own")}}))
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        port = never_answers.getsockname()[1]
        home = os.fspath(tmp_path)
        env = {"PATH": os.environ["PATH"], "HOME": home, "XDG_CACHE_HOME": home, "XDG_RUNTIME_DIR": home}
        env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1000"
        options = ("--config", os.fspath(config), "--otlp", f"http://127.0.0.1:{port}")
        with started(*GREENROOM, "serve", *options, env=env, cwd=tmp_path) as gateway:
            gateway.initialize()
            gateway.mcp(tool="own_echo", args={})
            assert gateway.end() == 0


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
        "collector:4318 is not a URL for --otlp. To fix it: write it like http://127.0.0.1:4318"
        in capsys.readouterr().err
    )
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert run(["serve", "--config", os.fspath(config), "--otlp", "http://127.0.0.1:4318"]) == 2
    assert "To fix it: pip install 'greenroom[otel]'" in capsys.readouterr().err
