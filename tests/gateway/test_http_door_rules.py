"""Sessions, clients of both eras and profiles at the HTTP door, decision by decision: no network, in virtual time. What
real clients meet is in `test_http_door`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from tests.gateway.test_http_request import Wire, virtually
from tests.support.bodies import body_of
from tests.support.rows import for_each

from greenroom.gateway.doors.http_app import HttpDoor
from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.gateway.doors.http_request import (
    Caller,
    Rules,
)
from greenroom.gateway.inbound_budget import InboundBudget
from greenroom.protocol import jsonrpc as rpc
from greenroom.protocol.errors import UNKNOWN_PROFILE, UsageError


class Guest:
    """A client of the room, which answers each request but `held`; `progresses` and `floods` after progress."""

    def __init__(self, outlet: Any, opened: Mapping[str, Any]) -> None:
        self.outlet, self.opened = outlet, opened
        self.in_flight = 0
        self.heard: list[str | None] = []

    def receive(self, line: bytes, envelope: Any = None, _size: int = 0) -> None:
        message = envelope or rpc.read_client_line(line)
        self.heard.append(message.method)
        key = rpc.read_id(message)
        if message.method in ("progresses", "floods"):
            meta = json.loads(bytes(message.params))["_meta"]
            if "progressToken" in meta:
                told = {"progressToken": meta["progressToken"], "progress": 5}
                line = rpc.encode_notification("notifications/progress", told, rpc.encode)
                for _ in range(3 if message.method == "floods" else 1):
                    self.outlet.send(line)
        if key and message.method not in (None, "held"):
            self.outlet.send(b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % key)


class Guests:
    """The conversations of a room."""

    wants_callers = False

    def __init__(self) -> None:
        self.all: list[Guest] = []
        self.looked_up: list[tuple[Any, Any]] = []
        self.refuses = False
        self.inbound_budget = InboundBudget(lambda: 1 << 20)

    @asynccontextmanager
    async def open(self, outlet: Any, _spawn: Any, **how: Any) -> AsyncGenerator[Guest]:
        if how["profile"] == "none":
            raise UsageError("There is no such profile.", code=UNKNOWN_PROFILE)
        self.all.append(guest := Guest(outlet, how))
        yield guest

    def listed(self, name: Any, profile: Any) -> None:
        self.looked_up.append((name, profile))

    def refuse_new(self) -> None:
        self.refuses = True


class Apart:
    """A door of which each request is a call."""

    def __init__(self, door: HttpDoor, guests: Guests) -> None:
        self.door, self.guests = door, guests

    async def __call__(
        self,
        message: Any = None,
        method: str = "POST",
        path: str = "/mcp",
        pause: float = 0.0,
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """The status, the headers and the body of the answer."""
        wire = Wire([json.dumps(message).encode()] if method == "POST" else [], pause, self.door)
        usual = {"host": "localhost", "content_type": "application/json", "accept": "*/*", **headers}
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in usual.items()]
        await wire.request(method, given, path.encode()).disconnected()
        head = {name.decode(): value.decode() for name, value in wire.headers}
        return wire.status, head, wire.written

    async def session(self, version: str = "2025-11-25") -> str:
        hello = {"protocolVersion": version, "capabilities": {}}
        status, head, _ = await self(asking("initialize", 0, **hello))
        assert status == 200
        return head["mcp-session-id"]

    async def stateless(
        self,
        method: str,
        pause: float = 0.0,
        path: str = "/mcp",
        key: Any = 1,
        more: Any = None,
        **params: Any,
    ) -> Any:
        """`more`: members of its `_meta`."""
        meta = {
            f"{rpc.META}protocolVersion": "2026-07-28",
            f"{rpc.META}clientCapabilities": {},
            **(more or {}),
        }
        given: Any = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
        if "name" in params:
            given["mcp_name"] = params["name"]
        return await self(asking(method, key, **params, _meta=meta), path=path, pause=pause, **given)


def asking(method: str, key: Any = None, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **({} if key is None else {"id": key}), "method": method, "params": params}


def apart(body: Callable[[Apart], Awaitable[None]], rules: Rules | None = None, **more: Any) -> None:
    async def main() -> None:
        guests, notes = Guests(), list[str]()
        access = more.pop("access", Access("127.0.0.1"))
        door = HttpDoor(cast("Any", guests), access, rules or Rules(), note=notes.append, **more)
        async with anyio.create_task_group() as tasks:
            await tasks.start(door.run)
            await body(Apart(door, guests))
            tasks.cancel_scope.cancel()
        assert (notes, len(door.sessions)) == ([], 0)

    virtually(main)


@body_of(apart, Rules(session_idle=10.0))
async def test_who_speaks_now_and_then_stays_and_who_is_silent_ends_in_both_eras(ask: Apart, /) -> None:
    session = await ask.session()
    await ask.stateless("tools/list")
    for _ in range(4):
        await anyio.sleep(6.0)
        assert (await ask(asking("ping", 1), mcp_session_id=session))[0] == 200
        await ask.stateless("tools/list")
    assert (len(ask.guests.all), len(ask.door.sessions)) == (2, 2)
    await anyio.sleep(6.0)
    await ask(asking("notifications/roots/list_changed"), mcp_session_id=session)
    await anyio.sleep(5.0)
    assert len(ask.door.sessions) == 1, "a notification is a word, too"
    await anyio.sleep(6.0)
    assert len(ask.door.sessions) == 0


@body_of(apart, Rules(session_life=5.0))
async def test_each_session_lives_as_long_as_it_may_even_if_another_came_while_none_was_there(
    ask: Apart, /
) -> None:
    for _ in range(2):
        await ask.session()
        await anyio.sleep(4.9)
        assert len(ask.door.sessions) == 1
        await anyio.sleep(0.2)
        assert len(ask.door.sessions) == 0
        await anyio.sleep(50.0)


@body_of(apart)
async def test_a_door_that_ends_refuses_requests_takes_notifications_and_ends_all_sessions(
    ask: Apart, /
) -> None:
    session = await ask.session()
    ask.door.refuse_new()
    assert ask.guests.refuses
    for message, status in (
        (asking("ping", 1), 503),
        (asking("notifications/roots/list_changed"), 202),
        ({"jsonrpc": "2.0", "id": "greenroom-1", "result": {}}, 202),
    ):
        found, head, _ = await ask(message, mcp_session_id=session)
        assert (found, head.get("retry-after")) == (status, "5" if status == 503 else None)
    assert (await ask(asking("initialize", 1, protocolVersion="2025-11-25")))[0] == 503
    assert (await ask.stateless("tools/list"))[0] == 503
    assert ask.guests.all[0].heard == ["initialize", "notifications/roots/list_changed", None]


@body_of(apart)
async def test_the_answers_of_a_session_name_it_and_those_without_one_do_not(ask: Apart, /) -> None:
    session = await ask.session()
    for message in (asking("ping", 1), asking("notifications/initialized")):
        _, head, _ = await ask(message, mcp_session_id=session)
        assert head["mcp-session-id"] == session
    answers: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            answers.append(await ask(asking("held", 2), mcp_session_id=session))

        tasks.start_soon(hold)
        await anyio.sleep(3.0)
        ask.guests.all[0].outlet.send(b'{"jsonrpc":"2.0","id":2,"result":{}}\n')
    (status, head, _), *_ = answers
    assert (status, head["content-type"], head["mcp-session-id"]) == (200, "text/event-stream", session)
    _, head, _ = await ask.stateless("tools/list")
    assert "mcp-session-id" not in head
    status, head, written = await ask(method="DELETE", mcp_session_id=session)
    assert (status, written, "mcp-session-id" in head) == (200, b"", False)
    assert (await ask(asking("ping", 1), mcp_session_id=session))[0] == 404


@body_of(apart)
async def test_an_answer_without_a_session_is_a_stream_only_when_its_client_must_see_that_we_live(
    ask: Apart, /
) -> None:
    kinds: list[tuple[float, str]] = []

    async def hold() -> None:
        _, head, _ = await ask.stateless("held")
        kinds.append((anyio.current_time(), head["content-type"]))

    for late in (14.0, 16.0):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            await anyio.sleep(late)
            (guest,) = ask.guests.all
            guest.outlet.send(b'{"jsonrpc":"2.0","id":%d,"result":{}}\n' % len(guest.heard))
    assert [kind for _, kind in kinds] == ["application/json", "text/event-stream"]


@body_of(apart)
async def test_a_call_is_compared_with_the_tool_that_its_profile_shows(ask: Apart, /) -> None:
    for path in ("/mcp", "/mcp/work", "/mcp/"):
        assert (await ask.stateless("tools/call", path=path, name="own_echo"))[0] == 200
    await ask.stateless("prompts/get", name="own_echo")
    assert ask.guests.looked_up == [("own_echo", None), ("own_echo", "work"), ("own_echo", None)]
    assert [guest.opened["profile"] for guest in ask.guests.all] == [None, "work"]
    assert (await ask.stateless("tools/call", path="/mcp/none", name="own_echo"))[0] == 404
    assert len(ask.door.sessions) == 2


@for_each(
    ("of_door", "of_token", "path", "seen"),
    [
        (None, None, "/mcp", None),
        (None, None, "/mcp/work", "work"),
        ("home", None, "/mcp", "home"),
        ("home", None, "/mcp/home", "home"),
        ("home", None, "/mcp/work", 404),
        ("home", "work", "/mcp", "work"),
        ("home", "work", "/mcp/home", 404),
        (None, "work", "/mcp/work", "work"),
        (None, "work", "/mcp/home", 404),
    ],
)
def test_a_client_sees_its_own_profile_else_the_doors_else_the_one_it_names(
    of_door: str | None, of_token: str | None, path: str, seen: str | int | None
) -> None:
    token = "0123456789abcdef"
    access = Access("127.0.0.1", [BearerToken.of("ann", token, of_token)])

    async def body(ask: Apart) -> None:
        hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
        status, _, _ = await ask(hello, path=path, authorization=f"Bearer {token}")
        found = [guest.opened["profile"] for guest in ask.guests.all]
        assert (status, found) == ((404, []) if seen == 404 else (200, [seen]))

    apart(body, access=access, profile=of_door)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/json ;x=y", 200),
        ("application/jsonp", 415),
        ("text/plain; application/json", 415),
        ("", 415),
    ],
)
@body_of(apart)
async def test_what_is_sent_is_json(ask: Apart, /, kind: str, status: int) -> None:
    hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
    assert (await ask(hello, content_type=kind))[0] == status


@body_of(apart, session_headers={"X-My-Token": "TOKEN", "X-Other": "OTHER"})
async def test_the_values_that_a_client_brings_in_headers_are_its_conversations(ask: Apart, /) -> None:
    hello = asking("initialize", 0, protocolVersion="2025-11-25", capabilities={})
    meta = {f"{rpc.META}protocolVersion": "2026-07-28", f"{rpc.META}clientCapabilities": {}}
    newer = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}
    for message, era in ((hello, {}), (asking("tools/list", 1, _meta=meta), newer)):
        for given, brought in (
            ({}, {}),
            ({"x_my_token": "a"}, {"TOKEN": "a"}),
            ({"x_my_token": "", "x_other": "b"}, {"TOKEN": "", "OTHER": "b"}),
        ):
            headers: Any = {**era, **given}
            assert (await ask(message, **headers))[0] == 200
            assert ask.guests.all[-1].opened["variables"] == brought
    assert len(ask.guests.all) == 6, "who brings other values is another client"


@body_of(apart)
async def test_nothing_but_a_request_to_begin_opens_a_session(ask: Apart, /) -> None:
    for message in (
        asking("initialize", protocolVersion="2025-11-25"),
        asking("ping", 1),
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        assert (await ask(message))[0] == 400
    newer: Any = {"mcp_protocol_version": "2026-07-28"}
    for nothing in ({"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "result": {}}):
        assert (await ask(nothing, **newer))[0] == 400
    assert ask.guests.all == []
    session = await ask.session()
    again = asking("initialize", 9, protocolVersion="2025-03-26", capabilities={})
    assert (await ask(again, mcp_session_id=session))[0] == 200
    assert (len(ask.guests.all), ask.door.sessions.find(session, Caller(), None).version) == (
        1,
        "2025-03-26",
    )


@pytest.mark.parametrize("modern", [False, True])
@body_of(apart, Rules(open_requests=2))
async def test_so_many_requests_of_a_client_are_open_and_no_more(ask: Apart, /, modern: bool) -> None:
    session = None if modern else await ask.session()

    async def hold(key: int | str) -> None:
        if session is None:
            await ask.stateless("held", key=key)
        else:
            await ask(asking("held", key), mcp_session_id=session)

    async with anyio.create_task_group() as tasks:
        for key in (1, "1"):
            tasks.start_soon(hold, key)
        await anyio.sleep(1.0)
        if session is None:
            status, head, written = await ask.stateless("tools/list", key=3)
        else:
            status, head, written = await ask(asking("ping", 3), mcp_session_id=session)
            twice, _, told = await ask(asking("ping", 1), mcp_session_id=session)
            assert (twice, json.loads(told)["id"]) == (400, 1), "an id that is in flight"
            assert "in flight" in json.loads(told)["error"]["message"]
        assert (status, json.loads(written)["error"]["code"], head["retry-after"]) == (
            503,
            rpc.OVERLOADED,
            "5",
        )
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("version", "is_primed"), [("2025-06-18", False), ("2025-11-25", True)])
@body_of(apart, Rules(commit_time=1.0))
async def test_a_client_that_cannot_read_an_event_without_a_message_gets_none(
    ask: Apart, /, version: str, is_primed: bool
) -> None:
    """What can be resumed begins with one, in which there is only its id."""
    session, written = await ask.session(version), list[bytes]()

    async def hold() -> None:
        _, _, body = await ask(asking("held", 2), mcp_session_id=session)
        written.append(body)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.sleep(3.0)
        ask.guests.all[0].outlet.send(b'{"jsonrpc":"2.0","id":2,"result":{}}\n')
    assert written[0].count(b"id: ") == 1 + is_primed


@pytest.mark.parametrize("event_id", ["9-1", "x", "1", "1-x", "-1-1"])
@body_of(apart)
async def test_who_comes_back_for_a_stream_that_is_gone_is_told_what_to_do(
    ask: Apart, /, event_id: str
) -> None:
    session = await ask.session()
    status, _, written = await ask(method="GET", mcp_session_id=session, last_event_id=event_id)
    assert status == 400
    assert b"Open one without Last-Event-ID" in written


@pytest.mark.parametrize("token", [0, "", 7, "theirs", None])
@body_of(apart)
async def test_whatever_progress_token_a_client_without_a_session_gives_it_hears_progress_under_it(
    ask: Apart, /, token: int | str | None
) -> None:
    """Zero and the empty text are tokens, too."""
    more: dict[str, Any] = {} if token is None else {"progressToken": token}
    _, _, written = await ask.stateless("progresses", key="theirs", more=more)
    said = [json.loads(line[line.index("{") :]) for line in written.decode().splitlines() if "{" in line]
    heard = [{"progressToken": token, "progress": 5}] if more else []
    assert [each.get("params") for each in said] == [*heard, None]
    assert said[-1]["id"] == "theirs"


@pytest.mark.parametrize(("busy_bytes", "heard"), [(0, 1), (1 << 16, 3)])
def test_a_client_without_a_session_that_does_not_read_hears_no_further_notifications(
    busy_bytes: int, heard: int
) -> None:
    async def body(ask: Apart) -> None:
        _, _, written = await ask.stateless("floods", more={"progressToken": 1})
        assert written.count(b"notifications/progress") == heard
        assert b'"result"' in written, "but its answer"

    apart(body, Rules(busy_bytes=busy_bytes))


def stateless_message(**meta: Any) -> dict[str, Any]:
    named = {f"{rpc.META}{name}": value for name, value in meta.items()}
    return asking("tools/list", "mine", _meta=named)


NEWER: Any = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}


@body_of(apart)
async def test_clients_that_say_the_same_of_themselves_are_one(ask: Apart, /) -> None:
    version = {"protocolVersion": "2026-07-28"}
    one: dict[str, Any] = {**version, "clientCapabilities": {}}
    for count, meta in (
        (1, one),
        (1, {**one, "logLevel": "info"}),
        (2, {**one, "clientInfo": {"name": "a"}}),
        (3, {**one, "clientInfo": {"name": "b"}}),
        (4, {**one, "clientCapabilities": {"roots": {}}}),
        (4, {**one, "clientInfo": {"name": "a"}}),
    ):
        assert (await ask(stateless_message(**meta), **NEWER))[0] == 200
        assert len(ask.guests.all) == count, meta


@body_of(apart)
async def test_whatever_is_wrong_with_a_newer_request_is_told_under_its_id(ask: Apart, /) -> None:
    good = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    rows: Any = (
        (-32602, {"protocolVersion": "2026-07-28"}, NEWER),
        (-32020, good, {**NEWER, "mcp_method": "tools/call"}),
        (-32020, good, {**NEWER, "mcp_protocol_version": "2099-01-01"}),
        (
            -32022,
            {**good, "protocolVersion": "2099-01-01"},
            {**NEWER, "mcp_protocol_version": "2099-01-01"},
        ),
    )
    for code, meta, headers in rows:
        status, _, written = await ask(stateless_message(**meta), **headers)
        said = json.loads(written)
        assert (status, said["id"], said["error"]["code"]) == (400, "mine", code)
    for params in ([], {"_meta": 7}):
        status, _, written = await ask({**asking("tools/list", "mine"), "params": params}, **NEWER)
        said = json.loads(written)
        assert (status, said["id"], said["error"]["code"]) == (400, "mine", -32602)
    assert ask.guests.all == []


@body_of(apart)
async def test_an_answer_to_our_request_is_taken_whatever_it_is(ask: Apart, /) -> None:
    session = await ask.session()
    for answer, status in (
        ({"result": {}}, 202),
        ({"error": {"code": -1, "message": "no"}}, 202),
        ({"result": {}, "error": None}, 202),
        ({}, 400),
    ):
        said = {"jsonrpc": "2.0", "id": "greenroom-1", **answer}
        assert (await ask(said, mcp_session_id=session))[0] == status
