"""One bad HTTP answer ends one call: every row of the failure table, with a real server that does it.

For each: what the call gets and how soon, that a call in flight beside it is answered, and that the next call is.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.http_rooms import room_at
from tests.support.patience import PATIENCE
from tests.support.raw_http import FAULTS, MIB, MODERN, RawHttp, raw_http
from tests.support.stdio import until

from greenroom.protocol.errors import (
    CallError,
    CallTimeout,
    ConnectFailed,
    ProtocolFault,
    Reach,
    RemoteError,
    ServerLost,
)

ERAS = ("2025-11-25", MODERN)


ANSWERED, SENT = Reach.ANSWERED, Reach.SENT
EXPECTED: dict[str, tuple[type[CallError], Reach, str]] = {
    "status_500": (ProtocolFault, ANSWERED, 'HTTP 500 Internal Server Error: "out of ink"'),
    "status_404_unknown_method": (RemoteError, ANSWERED, "no such thing"),
    "html": (ProtocolFault, ANSWERED, "text/html: an HTML page"),
    "broken_json": (ProtocolFault, ANSWERED, "not JSON-RPC"),
    "accepted": (ProtocolFault, ANSWERED, "HTTP 202 Accepted and no answer"),
    "wrong_id": (ProtocolFault, ANSWERED, "to another request"),
    "wrong_id_on_a_stream": (ProtocolFault, ANSWERED, "to another request"),
    "no_result": (ProtocolFault, ANSWERED, "no result object"),
    "stream_ends_early": (ServerLost, SENT, "ended without an answer"),
    "long_event": (ProtocolFault, ANSWERED, "over the bound of 1,048,576 bytes an event"),
    "long_body": (ProtocolFault, ANSWERED, "over the bound of 1,048,576 bytes"),
    "junk_event": (ProtocolFault, ANSWERED, "not JSON-RPC"),
    "dropped": (ServerLost, SENT, "the connection broke"),
    "truncated": (ServerLost, SENT, "the connection broke"),
    "no_http": (ServerLost, SENT, "the connection broke"),
    "redirected_elsewhere": (ProtocolFault, ANSWERED, "redirected to http://192.0.2.1/mcp"),
    "silent": (CallTimeout, SENT, "did not answer within 2 s"),
}


def test_the_table_is_complete() -> None:
    assert EXPECTED.keys() == FAULTS.keys()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fault", EXPECTED)
@in_real_time
async def test_t04_a_fault_ends_its_own_call_and_no_other(fault: str, era: str) -> None:
    kind, reach, words = EXPECTED[fault]
    beside: list[str] = []
    with raw_http(era) as server:
        async with room_at(server.url, {"maxLineBytes": MIB}) as room, anyio.create_task_group() as tasks:

            async def sibling() -> None:
                beside.append((await room.call("slow")).text)

            tasks.start_soon(sibling)
            assert await until(lambda: "slow" in map(_tool, server.requests))
            with anyio.fail_after(PATIENCE), pytest.raises(kind) as caught:
                await room.call(fault, timeout=2.0 if fault == "silent" else 300)
            assert caught.value.reach is reach
            assert words in str(caught.value)
            assert beside == []
            server.release.set()
            assert (await room.call("ok")).text == "ok"
        assert beside == ["slow"]
        assert server.methods().count("initialize") == (0 if era == MODERN else 1)
        assert room.drain_report is not None
        assert room.drain_report.failed == 1


def _is_told(server: RawHttp) -> bool:
    return "notifications/cancelled" in server.methods()


def _tool(seen: Any) -> str:
    return seen.message["params"].get("name", "") if seen.method == "tools/call" else ""


@in_real_time
async def test_t04_a_server_that_is_gone_fails_calls_as_unsent_and_is_used_again_when_it_is_back() -> None:
    with ExitStack() as first, ExitStack() as second:
        server = first.enter_context(raw_http(MODERN))
        async with room_at(server.url, {"maxLineBytes": MIB}) as room:
            first.close()
            with pytest.raises(ServerLost, match="no connection can be made") as caught:
                await room.call("ok")
            assert caught.value.reach is Reach.NOT_SENT
            second.enter_context(raw_http(MODERN, server.port))
            assert (await room.call("ok")).text == "ok"


@in_real_time
async def test_a_server_that_nobody_runs_is_not_said_to_have_been_asked_anything() -> None:
    with raw_http(MODERN) as server:
        url = server.url
    with pytest.raises(ConnectFailed, match="no connection can be made") as caught:
        async with room_at(url, {}):
            pass
    assert not any(method in str(caught.value) for method in ("server/discover", "initialize"))


@in_real_time
async def test_a_harmless_call_whose_exchange_breaks_is_sent_once_more() -> None:
    with raw_http(MODERN) as server:
        for tool in server.tools:
            tool["annotations"] = {"readOnlyHint": True}
        async with room_at(server.url, {"maxLineBytes": MIB}) as room:
            with pytest.raises(ServerLost):
                await room.call("dropped")
        assert [_tool(seen) for seen in server.requests if _tool(seen)] == ["dropped", "dropped"]


@in_real_time
async def test_t21_cancelling_closes_the_stream_in_the_new_era_and_notifies_in_the_old() -> None:
    for era, notified in (("2025-11-25", True), (MODERN, False)):
        with raw_http(era) as server:
            async with room_at(server.url, {"maxLineBytes": MIB}) as room:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(room.call, "slow")
                    assert await until(lambda server=server: "slow" in map(_tool, server.requests))
                    tasks.cancel_scope.cancel()
                assert (await room.call("ok")).text == "ok"
                told = await until(lambda: _is_told(server), 60.0 if notified else 0.05)
                server.release.set()
            assert told is notified
