"""`/metrics` of the HTTP door: what it counts, as the client library's own parsers read it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.test_conversations import asking_room, echo
from tests.gateway.test_http_door_attacks import ANN, TOKENS
from tests.support import in_virtual_time, run
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.door_rooms import FakeRoom
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, http_door
from tests.support.kept import paths_to
from tests.support.rooms import open_room, record_events, teach
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.gateway.doors.http_app import Operations
from greenroom.gateway.doors.http_auth import Access
from greenroom.gateway.doors.http_streams import Feed
from greenroom.gateway.event_log import TOLD, follow
from greenroom.observe.metrics import HEARD, METRICS, Metrics, _snapshot, is_usable, word_of
from greenroom.protocol.address import Address
from greenroom.protocol.errors import CallError, UsageError
from greenroom.protocol.events import BreakerDecision, BreakerMove, CallEnded, Eviction, Lagged, Transition
from greenroom.protocol.lifecycle import Cause, Reason, State
from greenroom.protocol.status import ServerStatus
from greenroom.testing.fake_servers import FakeServer, tool


def with_metrics(
    body: Callable[[Opened, Greenroom, Metrics], Awaitable[None]], *, on: bool = True, **door: Any
) -> None:
    """Run `body(opened, room, metrics)` with a door over two servers; the tools of one are known."""

    async def main() -> None:
        servers = {"one": AskingServer({"echo": echo}), "two": AskingServer({"echo": echo})}
        metrics = Metrics()
        with anyio.fail_after(PATIENCE):
            async with asking_room(servers) as room, anyio.create_task_group() as tasks:
                await teach(room, "one", [tool("echo", "Says it again.")])
                await tasks.start(
                    lambda task_status: follow(
                        room, [metrics.hear], kinds=TOLD | HEARD, task_status=task_status
                    )
                )
                async with http_door(room, **door) as opened:
                    operations = Operations(room, "9.9", Feed(15.0), opened.door, metrics if on else None)
                    opened.door.show(operations.open_pages(), operations.pages())
                    await body(opened, room, metrics)
                tasks.cancel_scope.cancel()

    run("asyncio", main)


Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(text: str) -> Samples:
    """Value by name and the values of the labels, in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(opened: Opened) -> Samples:
    answer = await opened.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


async def scraped(opened: Opened, has: Callable[[Samples], bool]) -> Samples:
    """The first scrape in which something is counted: events come a little after what they tell of."""
    while not has(found := await scrape(opened)):
        await anyio.sleep(0.01)
    return found


@body_of(with_metrics)
async def test_what_happens_is_counted(opened: Opened, room: Greenroom, metrics: Metrics, /) -> None:
    await opened.session()
    for _ in range(3):
        await room.call("one_echo", {})
    with pytest.raises(CallError):
        await room.call("nobody_has_this", {})
    await room.restart("one")
    await room.call("one_echo", {})
    await room.drain("two")
    metrics.hear(Lagged(7))
    one_call: Any = {
        "call": 0,
        "method": "tools/call",
        "tool": "two_echo",
        "client": None,
        "outcome": "timeout",
    }
    metrics.hear(CallEnded(seq=0, at=9.0, address=Address("two"), waited=2.0, taken=0.5, **one_call))
    metrics.hear(CallEnded(seq=0, at=9.0, address=Address("two"), waited=4.0, **one_call))
    metrics.hear(CallEnded(seq=0, at=9.0, address=Address("two"), waited=0.0, taken=0.0, **one_call))
    found = await scraped(opened, lambda found: found.get(("greenroom_calls_total", ("result", "one"))) == 4)
    assert found["greenroom_call_seconds_count", ("one",)] == 4
    assert found["greenroom_call_seconds_bucket", ("+Inf", "one")] == 4
    assert found["greenroom_call_wait_seconds_count", ("one",)] == 4
    assert found["greenroom_calls_total", ("timeout", "two")] == 3
    assert found["greenroom_call_wait_seconds_sum", ("two",)] == 6.0
    assert found["greenroom_call_seconds_sum", ("two",)] == 0.5
    assert found["greenroom_call_seconds_count", ("two",)] == 2, "one was not sent"
    assert found["greenroom_transitions_total", ("one", "connected")] == 2
    assert found["greenroom_restarts_total", ("one",)] == 1
    assert found["greenroom_endings_total", ("restart", "one")] == 1
    assert found["greenroom_connections", ("one", "connected")] == 1
    assert found["greenroom_refused_total", ("tool_not_found",)] == 1
    assert (
        found["greenroom_server_usable", ("one",)],
        found["greenroom_server_usable", ("two",)],
    ) == (1, 0)
    assert (found["greenroom_in_flight", ("one",)], found["greenroom_queued", ("one",)]) == (0, 0)
    assert (found["greenroom_pool_held", ()], found["greenroom_pool_slots", ()]) == (1, 20)
    assert (found["greenroom_http_sessions", ()], found["greenroom_events_lost_total", ()]) == (1, 7)


def test_all_metrics_are_exported_as_they_are_described() -> None:
    async def body(opened: Opened, room: Greenroom, _metrics: Metrics) -> None:
        await room.call("one_echo", {})
        await scraped(opened, lambda found: ("greenroom_calls_total", ("result", "one")) in found)
        text = (await opened.http.get("/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        exported = {named.exported.removesuffix("_total"): named for named in METRICS}
        assert families.keys() == exported.keys()
        for name, family in families.items():
            assert (family.type, family.documentation) == (exported[name].kind, exported[name].text)
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert labels <= set(exported[name].labels)
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = await opened.http.get("/metrics", headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        found = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
        assert found == exported.keys()

    with_metrics(body)


def test_tools_are_counted_up_to_a_number_and_the_rest_together() -> None:
    metrics = Metrics(tools=2)

    def ended(server: str, name: str, outcome: str = "result", *, is_error: bool = False) -> None:
        call: Any = {"call": 0, "method": "tools/call", "tool": name, "client": None, "outcome": outcome}
        metrics.hear(CallEnded(0, 9.0, Address(server), taken=0.5, is_error=is_error, **call))

    for name in ("a", "b", "c", "a", "d"):
        ended("one", name)
    ended("two", "a")
    ended("one", "a", "timeout")
    ended("one", "a", is_error=True)
    metrics.hear(
        CallEnded(0, 9.0, Address("one"), call=0, method="ping", tool=None, client=None, outcome="result")
    )

    def counted(prefix: str) -> Samples:
        text = generate_latest(metrics._registry).decode()
        return {key: value for key, value in samples(text).items() if key[0].startswith(prefix)}

    assert counted("greenroom_tool_calls_total") == {
        ("greenroom_tool_calls_total", labels): count
        for labels, count in {
            ("result", "one", "a"): 2,
            ("tool_error", "one", "a"): 1,
            ("timeout", "one", "a"): 1,
            ("result", "one", "b"): 1,
            ("result", "one", "other"): 2,
            ("result", "two", "other"): 1,
        }.items()
    }
    assert counted("greenroom_tool_call_seconds_sum")["greenroom_tool_call_seconds_sum", ("one", "a")] == 2.0
    metrics._forget({"one"})
    ended("two", "z")
    assert counted("greenroom_tool_calls_total").keys() == {
        ("greenroom_tool_calls_total", ("result", "two", "other")),
        ("greenroom_tool_calls_total", ("result", "two", "z")),
    }


@in_virtual_time
async def test_a_result_that_its_tool_calls_an_error_is_told_in_the_event() -> None:
    server = FakeServer(handler=lambda call: {"content": [], "isError": bool(call.get("wrong"))})
    async with open_room({"a": server}) as room:
        ends = record_events(room, CallEnded)
        await room.call("a_echo", {"wrong": True}, server="a")
        await room.call("a_echo")
    assert [(end.outcome, end.is_error) for end in ends] == [("result", True), ("result", False)]


@body_of(with_metrics)
async def test_a_server_that_is_removed_is_forgotten(
    opened: Opened, room: Greenroom, metrics: Metrics, /
) -> None:
    await room.call("one_echo", {})
    await scraped(opened, lambda found: ("greenroom_calls_total", ("result", "one")) in found)
    await room.reload({"mcpServers": {"three": {"command": "true", "enabled": False}}})
    found = await scraped(opened, lambda found: not any("one" in labels for _, labels in found))
    assert found["greenroom_server_usable", ("three",)] == 0, "it is disabled"
    assert paths_to("one", within=(metrics._seen,)) == []


@body_of(with_metrics, access=Access("127.0.0.1", TOKENS))
async def test_they_need_a_token_without_a_profile(
    opened: Opened, room: Greenroom, metrics: Metrics, /
) -> None:
    async def status(token: str | None) -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return (await opened.http.get("/metrics", headers=headers)).status_code

    assert await status(None) == 401
    assert await status("token-of-cyd-0123456789") == 404  # bound to a profile
    assert await status(ANN) == 200


@body_of(with_metrics, on=False)
async def test_the_next_step_is_named_when_they_are_off(
    opened: Opened, room: Greenroom, metrics: Metrics, /
) -> None:
    answer = await opened.http.get("/metrics")
    assert answer.status_code == 404
    assert '"http": {"metrics": true}' in answer.json()["error"]["message"]


def test_without_the_package_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'greenroom\[metrics\]'"):
        Metrics()


def test_each_event_is_counted_once_under_its_own_words() -> None:
    metrics = Metrics()
    one: Any = {"seq": 0, "at": 9.0, "address": Address("one")}
    step: Any = {**one, "before": State.IDLE}
    for number in (1, 2, 3):
        metrics.hear(Transition(**step, after=State.CONNECTING, incarnation=number))
    metrics.hear(Transition(**step, after=State.CLOSED, cause=Cause.EVICTED))
    metrics.hear(Transition(**step, after=State.CLOSED))
    metrics.hear(Transition(**step, after=State.DRAINING, cause=Cause.EVICTED))
    for move in BreakerMove:
        metrics.hear(BreakerDecision(**one, move=move))
    metrics.hear(Eviction(**one, reason=next(iter(Reason))))
    metrics.hear(Transition(seq=0, at=9.0, before=State.IDLE, after=State.CONNECTED))  # of no server
    metrics.hear(Lagged(2))
    metrics.hear(Lagged(3))
    found: dict[Any, float] = {
        (sample.name.removeprefix("greenroom_"), *sample.labels.values()): sample.value
        for family in metrics._registry.collect()
        for sample in family.samples
    }
    assert found == {
        ("transitions_total", "one", "connecting"): 3,
        ("transitions_total", "one", "closed"): 2,
        ("transitions_total", "one", "draining"): 1,
        ("restarts_total", "one"): 2,
        ("endings_total", "one", Cause.EVICTED.value): 1,
        **{("breaker_moves_total", "one", move.value): 1 for move in BreakerMove},
        ("evictions_total", "one"): 1,
        ("events_lost_total",): 5,
    }
    assert metrics._seen == {"one"}


def test_what_is_there_now_is_added_up_over_the_addresses_of_a_server() -> None:
    rows = [
        ServerStatus("one", state=State.CONNECTED, in_flight=2, queued=3, waiting_for="breaker"),
        ServerStatus("one", "session:a", state=State.CONNECTED, in_flight=4, queued=5, waiting_for="slot"),
        ServerStatus("one", "session:b", state=State.IDLE, queued=1, waiting_for="slot", retry_in=1.0),
        ServerStatus("two", retry_in=0.0),
    ]
    room = FakeRoom(max_connections=20)
    room.slots_held, room.session_slots_held, room.refusals = 6, 30, {"busy": 7}
    room.limited = {"settings.limits.x: 1/s": 3}
    found = {
        (sample.name.removeprefix("greenroom_"), *sample.labels.values()): sample.value
        for family in _snapshot(room, rows, 8)
        for sample in family.samples
    }
    assert found == {
        ("connections", "one", "connected"): 2,
        ("connections", "one", "idle"): 1,
        ("connections", "two", "idle"): 1,
        ("server_usable", "one"): 1,
        ("server_usable", "two"): 0,
        ("breaker_open", "one"): 0,
        ("breaker_open", "two"): 1,
        ("in_flight", "one"): 6,
        ("in_flight", "two"): 0,
        ("queued", "one"): 9,
        ("queued", "two"): 0,
        ("pool_slots",): 20,
        ("pool_held",): 6,
        ("session_slots",): 100,
        ("session_slots_held",): 30,
        ("pool_waiting",): 2,
        ("http_sessions",): 8,
        ("refused_total", "busy"): 7,
        ("limited_total", "settings.limits.x: 1/s"): 3,
    }


HEALTH = {"state": State.CONNECTED}


@for_each(
    ("row", "word", "usable"),
    [
        ({}, "idle", True),
        (HEALTH, "connected", True),
        ({**HEALTH, "disabled": True}, "connected", False),
        ({**HEALTH, "retry_in": 0.0}, "failed", False),
        ({"failed_ago": 9.0}, "failed", True),
        ({**HEALTH, "failed_ago": 9.0}, "connected", True),
        ({**HEALTH, "retry_in": 2.0, "down": "x"}, "down", False),
        ({"needs_auth": True, "retry_in": 2.0, "down": "x"}, "needs_login", False),
        ({"broken": "", "needs_auth": True}, "broken", False),
        ({"state": State.DRAINING}, "draining", True),
    ],
)
def test_the_state_of_a_server_in_one_word(row: Any, word: str, usable: bool) -> None:
    status = ServerStatus("own", **row)
    assert (word_of(status), is_usable(status)) == (word, usable)
