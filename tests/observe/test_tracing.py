"""What a room tells to OpenTelemetry about the calls of its program: spans with their parents, and durations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from tests.support import in_virtual_time
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, settle, teach
from tests.support.traced import Telemetry, Told

from greenroom import CallError, Greenroom, UsageError, Verdict
from greenroom.config.credentials import SecretValue
from greenroom.protocol.bounds import TRACED_TOOLS
from greenroom.supervisor.attachments import TRACES
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, tool
from greenroom.testing.room_inside import RoomInside

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID, SPAN_ID = int(PARENT[3:35], 16), int(PARENT[36:52], 16)


def traced(
    servers: Any, telemetry: Telemetry, *, entries: Any = None, more: Any = None, **settings: Any
) -> Greenroom:
    callbacks = {**telemetry.providers, **(more or {})}
    return open_room(servers, entries=entries, callbacks=callbacks, **settings)


@contextmanager
def within_baggage(name: str, value: str) -> Generator[None]:
    token = context.attach(baggage.set_baggage(name, value))
    try:
        yield
    finally:
        context.detach(token)


def _steps(told: list[Told]) -> list[tuple[str, str, float]]:
    return [(each.name, each.kind, round(each.seconds, 3)) for each in told]


@in_virtual_time
async def test_a_call_is_a_client_span_below_the_programs_own_and_the_server_is_told_of_it() -> None:
    telemetry, server = Telemetry(), FakeServer(call_latency=0.5)
    tracer = telemetry.tracers.get_tracer("program")
    async with traced({"a": server}, telemetry) as room:
        await room.connect("a")
        with tracer.start_as_current_span("agent") as agent, within_baggage("team", "blue"):
            await room.call("a_echo", {"x": "an argument"})
    [call] = telemetry.of("CLIENT")
    assert (call.name, call.seconds) == ("tools/call echo", 0.5)
    assert (call.parent, call.trace) == (agent.get_span_context().span_id, agent.get_span_context().trace_id)
    said = dict(call.said)
    assert said == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "mcp.protocol.version": "2025-11-25",
        "network.transport": "pipe",
        "greenroom.server": "a",
        "greenroom.incarnation": 1,
        "greenroom.outcome": "result",
        "greenroom.reach": "answered",
    }
    told = server.calls[0]["_meta"]["traceparent"]
    assert server.calls[0]["_meta"]["baggage"] == "team=blue"
    assert told.startswith(f"00-{call.trace:032x}-{call.id:016x}-0")


@in_virtual_time
async def test_what_a_call_waited_for_stands_before_it_and_nothing_else_does() -> None:
    telemetry = Telemetry()
    slow, other = FakeServer(initialize_latency=2.0, call_latency=0.25), FakeServer(call_latency=3.0)
    async with traced({"a": slow, "b": other}, telemetry, maxConnections=1) as room:
        await teach(room, "a")
        await teach(room, "b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "b_echo")
            await anyio.sleep(1)
            await room.call("a_echo", meta={"traceparent": PARENT})
        await room.call("a_echo", meta={"traceparent": PARENT})
    mine = [told for told in telemetry.spans() if told.trace == TRACE_ID]
    assert _steps(mine) == [
        ("slot", "INTERNAL", 2.0),
        ("connect", "INTERNAL", 2.0),
        ("tools/call echo", "CLIENT", 0.25),
        ("tools/call echo", "CLIENT", 0.25),
    ]
    assert {told.parent for told in mine} == {SPAN_ID}
    for one, after in pairwise(mine[:3]):
        assert one.end == after.start


@in_virtual_time
async def test_a_call_behind_others_was_in_the_queue() -> None:
    telemetry, server = Telemetry(), FakeServer(call_latency=1.0)
    async with traced({"a": server}, telemetry, entries={"a": {"maxInFlight": 1}}) as room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(room.call, "a_echo")
    whole = sorted(
        (told for told in telemetry.spans() if told.name == "a_echo"), key=lambda told: told.seconds
    )
    steps = [_steps([told for told in telemetry.spans() if told.parent == one.id]) for one in whole]
    call = ("tools/call echo", "CLIENT", 1.0)
    assert steps == [[call], [("queue", "INTERNAL", 1.0), call]], "each has a span for all that it does"


@in_virtual_time
async def test_a_call_that_never_was_sent_says_so_where_it_waited() -> None:
    telemetry, server = Telemetry(), FakeServer(initialize_latency=1e6)
    async with traced({"a": server}, telemetry, queueTimeoutMs=5_000, connectTimeoutMs=600_000) as room:
        await teach(room, "a")
        with pytest.raises(CallError):
            await room.call("a_echo", meta={"traceparent": PARENT})
    [told] = telemetry.spans()
    assert (told.name, told.is_error, told.error) == ("connect", True, "timeout")
    assert not telemetry.durations("mcp.client.operation.duration")


@pytest.mark.parametrize("allows", [True, False])
@in_virtual_time
async def test_a_person_who_is_asked_takes_time_too(allows: bool) -> None:
    telemetry, server = Telemetry(), FakeServer()

    async def decide(_request: object) -> Verdict:
        await anyio.sleep(30)
        return Verdict.ONCE if allows else Verdict.DENY

    async with traced({"a": server}, telemetry, more={"on_approval": decide}, approve=True) as room:
        await room.connect("a")
        try:
            await room.call("a_echo", meta={"traceparent": PARENT})
        except CallError:
            assert not allows
    asked, *calls = [told for told in telemetry.spans() if told.trace == TRACE_ID]
    assert (asked.name, asked.seconds, asked.error) == (
        "approval",
        30.0,
        None if allows else "approval_denied",
    )
    assert [call.name for call in calls] == (["tools/call echo"] if allows else [])


@in_virtual_time
async def test_what_goes_wrong_is_an_error_of_a_kind_and_quotes_nothing() -> None:
    telemetry = Telemetry()

    def handler(call: Any) -> Any:
        return {"content": [{"type": "text", "text": f"no {call['x']}"}], "isError": True}

    servers = {
        "own": FakeServer(handler=handler),
        "rpc": FakeServer(call_error=(-32602, "no hunter2")),
        "late": FakeServer(call_latency=1e6),
        "left": FakeServer(call_latency=1e6),
        "lost": FakeServer(call_latency=1e6),
    }
    async with traced(servers, telemetry, requestTimeoutMs=5_000) as room:
        for name in servers:
            await room.connect(name)
        result = await room.call("own_echo", {"x": "hunter2"})
        assert result.is_error
        for name in ("rpc", "late"):
            with pytest.raises(CallError):
                await room.call(f"{name}_echo", {"x": "hunter2"})
        with anyio.move_on_after(1):
            await room.call("left_echo", {"x": "hunter2"})
        async with anyio.create_task_group() as tasks:

            async def lose() -> None:
                with pytest.raises(CallError):
                    await room.call("lost_echo", {"x": "hunter2"})

            tasks.start_soon(lose)
            await settle()
            servers["lost"].crash("it died of hunter2")
    found = {
        told.said["greenroom.server"]: (told.error, told.is_error, told.said["greenroom.outcome"])
        for told in telemetry.of("CLIENT")
    }
    assert found == {
        "own": ("tool_error", True, "tool_error"),
        "rpc": ("-32602", True, "call_failed"),
        "late": ("timeout", True, "timeout"),
        "left": (None, False, "cancelled"),
        "lost": ("call_failed", True, "call_failed"),
    }
    exported = "".join(told.span.to_json() for told in telemetry.spans())
    assert "hunter2" not in exported
    codes = {
        attributes["greenroom.server"]: attributes.get("rpc.response.status_code")
        for attributes, _ in telemetry.durations("mcp.client.operation.duration")
    }
    assert codes == {"own": None, "rpc": "-32602", "late": None, "left": None, "lost": None}


@in_virtual_time
async def test_a_call_that_is_sent_again_has_a_span_for_each_time() -> None:
    telemetry = Telemetry()
    tools = [{**tool("echo"), "annotations": {"readOnlyHint": True}}]
    server = FakeServer(tools, call_latency=1.0)
    async with traced({"a": server}, telemetry) as room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "a_echo")
            await anyio.sleep(0.5)
            server.crash()
    first, second = telemetry.of("CLIENT")
    assert (first.said["greenroom.incarnation"], first.said["greenroom.outcome"]) == (1, "sent again")
    assert (second.said["greenroom.incarnation"], second.said["greenroom.outcome"]) == (2, "result")
    spans = [int(call["_meta"]["traceparent"].split("-")[2], 16) for call in server.calls]
    assert spans == [first.id, second.id]


@in_virtual_time
async def test_durations_are_told_of_two_hundred_tools_at_most() -> None:
    telemetry = Telemetry()
    server = FakeServer([tool(f"t{number}") for number in range(TRACED_TOOLS + 5)], call_latency=0.3)
    async with traced({"a": server}, telemetry) as room:
        await room.connect("a")
        for number in range(TRACED_TOOLS + 5):
            await room.call(f"a_t{number}")
        await room.restart("a")
        connected = telemetry.durations("mcp.client.session.duration")
    found = telemetry.durations("mcp.client.operation.duration")
    assert len(found) == TRACED_TOOLS + 1
    [other] = [point for attributes, point in found if attributes["gen_ai.tool.name"] == "other"]
    assert (other.count, round(other.sum, 3)) == (5, 1.5)
    assert list(other.explicit_bounds) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
    [(attributes, session)] = connected
    assert (attributes, round(session.sum, 1)) == ({"greenroom.server": "a"}, 61.5)


@in_virtual_time
async def test_names_lose_secrets_and_so_does_a_state_that_has_one() -> None:
    telemetry, secret = Telemetry(), "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    server = FakeServer([tool(f"say_{secret}")], resources={f"x://{secret}": "x"})
    async with traced({"a": server}, telemetry) as room:
        await room.connect("a")
        meta = {"traceparent": PARENT, "tracestate": f"a={secret}", "baggage": f"b={secret}"}
        await room.call(f"a_say_{secret}", meta=meta)
        await room.read_resource(f"x://{secret}")
    exported = "".join(told.span.to_json() for told in telemetry.spans())
    told = server.calls[0]["_meta"]
    assert (told["tracestate"], told["baggage"]) == (meta["tracestate"], meta["baggage"])
    assert "tools/call say_" in exported
    assert secret not in exported
    assert secret not in str(telemetry.reader.get_metrics_data())


@in_virtual_time
async def test_names_lose_a_secret_that_becomes_known_later_too() -> None:
    telemetry, secret = Telemetry(), "quiet-river-4711-stone"
    server = FakeServer([tool(f"say_{secret}")])
    async with traced({"a": server}, telemetry) as room:
        await room.call(f"a_say_{secret}")
        assert secret in "".join(told.span.to_json() for told in telemetry.spans()), "nobody knows it yet"
        before = len(telemetry.spans())
        RoomInside(room).machinery.context.secrets.add("a", None, [SecretValue("token", secret, known=True)])
        await room.call(f"a_say_{secret}")
        later = telemetry.spans()[before:]
        assert {told.name for told in later} == {"a_say_***", "tools/call say_***"}
        assert secret not in "".join(told.span.to_json() for told in later)


@in_virtual_time
async def test_a_session_and_a_room_with_an_audit_file_are_traced_as_well(tmp_path: Any) -> None:
    telemetry, server = Telemetry(), FakeServer()
    more = {"audit": tmp_path / "audit.jsonl"}
    async with (
        traced({"a": server}, telemetry, more=more) as room,
        room.session("ann") as ann,
    ):
        await ann.call("a_echo", meta={"traceparent": PARENT})
    assert [told.name for told in telemetry.of("CLIENT")] == ["tools/call echo"]
    assert (tmp_path / "audit.jsonl").read_text().count('"kind":"call"') == 1


@pytest.mark.parametrize("name", ["tracer_provider", "meter_provider"])
def test_what_is_no_provider_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a provider of OpenTelemetry, got int"):
        Greenroom.open({"mcpServers": {}}, **{name: 7})  # type: ignore[arg-type]


RUN = """
import anyio, sys
from greenroom import Greenroom
from greenroom.testing.fake_servers import FakeServer, fake_connectors
{first}
async def main():
    config = {{"mcpServers": {{"a": {{"command": "x"}}}}}}
    connectors = fake_connectors({{"a": FakeServer()}})
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=connectors) as room:
        await room.call("a_echo", server="a")
anyio.run(main)
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"] if {bare} else names())
"""
OF_THE_PROCESS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
def names():
    return sorted({span.name for span in exporter.get_finished_spans()} - {"connect", "queue"})
"""


@pytest.mark.parametrize(
    ("first", "bare", "printed"), [("", True, "[]"), (OF_THE_PROCESS, False, "['a_echo', 'tools/call echo']")]
)
def test_the_provider_of_the_process_counts_and_without_one_nothing_is_loaded(
    first: str, bare: bool, printed: str
) -> None:
    code = RUN.format(first=first, bare=bare)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.strip() == printed


def test_the_apis_own_provider_is_none() -> None:
    """A program may have loaded the API, as the SDK does, and set no provider."""
    assert type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")
    room = Greenroom.open({"mcpServers": {}}, cache_path=":memory:")
    assert port_of(room).services.attachment(TRACES) is None


@pytest.mark.parametrize("kind", [trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT])
@in_virtual_time
async def test_an_exporter_that_raises_costs_no_call_and_no_server(kind: trace.SpanKind) -> None:
    """Whether it raises when the call begins, or when its request is about to be written."""

    class Broken(SpanProcessor):
        def on_start(self, span: Span, parent_context: context.Context | None = None) -> None:
            if span.kind is kind:
                raise RuntimeError("no room for a span")

    provider, server = TracerProvider(), FakeServer()
    provider.add_span_processor(Broken())
    async with open_room({"a": server}, tracer_provider=provider) as room:
        for _ in range(2):
            assert (await room.call("a_echo")).text == "{}"
    assert server.starts == 1
