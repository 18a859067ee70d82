"""`greenroom tape --otlp`: what a collector is told of a tape is what it was told of the room."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support import run_virtual
from tests.support.otlp import Collector, Received, collector
from tests.support.traced import Telemetry, Told

from greenroom import Greenroom
from greenroom.cli.main import run as command
from greenroom.errors import CallError
from greenroom.testing.fake_servers import FakeServer, fake_room, tool


async def _tried(room: Greenroom, name: str, **arguments: Any) -> None:
    with suppress(CallError):
        await room.call(name, arguments, timeout=0.05 if arguments.get("late") else None)


def recorded(folder: Path) -> tuple[Path, list[Told]]:
    """A tape of calls that ended in different ways, and what was told of them when they were made."""
    telemetry = Telemetry()

    async def main() -> Path:
        def handler(call: Any) -> Any:
            return {"content": [{"type": "text", "text": "no"}], "isError": call.tool == "bad"}

        server = FakeServer(
            tools=[tool("good"), tool("bad"), tool("odd")], handler=handler, start_latency=0.02
        )
        async with fake_room({"shop": server}, record=folder / "one.tape", **telemetry.providers) as room:
            await room.connect("shop")  # a tape knows of no wait before a call was accepted
            await _tried(room, "shop_good", what="milk")
            server.crash()
            await _tried(room, "shop_bad", what="milk")
            server.call_error = (-32001, "no such bill")
            await _tried(room, "shop_odd")
            server.call_error, server.call_latency = None, 60.0
            await _tried(room, "shop_odd", late=True)
        return folder / "one.tape"

    return run_virtual("asyncio", main), sorted(telemetry.spans(), key=_place)


def _shape(span: Told | Received) -> tuple[Any, ...]:
    return span.name, span.kind, span.is_error, {**span.said, "jsonrpc.request.id": None}


def _spans_of(taken: Collector) -> list[Received]:
    return sorted(taken.spans, key=_place)


def _place(span: Told | Received) -> tuple[Any, ...]:
    return span.start, -span.end, span.name


def test_a_collector_is_told_of_a_tape_what_it_was_told_of_the_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape, live = recorded(tmp_path)
    with collector() as taken:
        assert command(["tape", os.fspath(tape), "--otlp", taken.url]) == 0
        assert capsys.readouterr().out == f"{len(live)} spans of 4 calls went to {taken.url}\n"
        spans = _spans_of(taken)
        assert command(["tape", os.fspath(tape), "--otlp", taken.url, "--failed"]) == 0
        assert len(_spans_of(taken)) == len(spans) + len(live) - 2, "all but one call failed"
    assert list(map(_shape, spans)) == list(map(_shape, live))
    assert {span.said.get("error.type") for span in spans} == {None, "tool_error", "-32001", "timeout"}
    assert "connect" in {span.name for span in spans}
    by_id = {span.id: span.name for span in spans}
    assert [by_id.get(span.parent) for span in spans] == [
        next((other.name for other in live if other.id == span.parent), None) for span in live
    ]
    began = spans[0].start - live[0].start
    for span, other in zip(spans, live, strict=True):
        assert abs(span.start - other.start - began) < 1e3  # nanoseconds
        assert abs(span.end - other.end - began) < 1e3


def test_a_file_gets_them_as_a_collector_reads_files(tmp_path: Path) -> None:
    tape, live = recorded(tmp_path)
    file = tmp_path / "spans.jsonl"
    assert command(["tape", os.fspath(tape), "--otlp", os.fspath(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    spans = [
        span
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert sorted(span["name"] for span in spans) == sorted(span.name for span in live)
    assert all(int(span["traceId"], 16) and len(span["traceId"]) == 32 for span in spans)
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)


def test_what_cannot_be_sent_is_said_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape, _ = recorded(tmp_path)
    with collector() as taken:
        taken.paths_refused = ("/v1/traces",)
        assert command(["tape", os.fspath(tape), "--otlp", taken.url]) == 2
    assert "The collector does not take the spans: " in capsys.readouterr().err
    assert command(["tape", os.fspath(tape), "--otlp", os.fspath(tmp_path / "no" / "file")]) == 2
    assert "Name a file that can be written." in capsys.readouterr().err
