"""The HTTP door: both eras over real HTTP, sessions, answers in one piece and as streams, replay, limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.gateway.test_conversations import PER_SESSION, asking_room
from tests.support import in_real_time, run
from tests.support.asking import Asking, AskingServer
from tests.support.bodies import body_of
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, Person, events_in, http_door, messages, request
from tests.support.loops import on_asyncio
from tests.support.rooms import teach

from greenroom.gateway.doors.http_request import Caller, Rules
from greenroom.testing.fake_servers import tool


async def echo(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
    return arguments.get("text")


async def ask_a_name(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    request = {"message": "name?", "requestedSchema": {"type": "object"}}
    return (await asking.ask("elicitation/create", request))["action"]


async def step(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    """Report progress once."""
    asking.progress("on it")
    return "done"


Body = Callable[..., Awaitable[None]]


def with_door(body: Body, server: AskingServer | None = None, entry: Any = None, **door: Any) -> None:
    """Run `body(opened, server)` with a door over one server, `own`, whose tools are known."""
    own = server or AskingServer({"echo": echo})

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with asking_room({"own": own}, {"own": entry or PER_SESSION}) as room:
                await teach(room, "own", [tool(name) for name in own.acts])
                async with http_door(room, **door) as opened:
                    await body(opened, own)

    run("asyncio", main)


def text_of(answer: Any) -> Any:
    return json.loads(answer["result"]["content"][0]["text"])


@on_asyncio
@in_real_time
async def test_2026_headers_that_repeat_an_argument_must_say_the_same() -> None:
    """As the SDK's server does."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    with anyio.fail_after(PATIENCE):
        own = AskingServer({"echo": echo})
        async with asking_room({"own": own}, {"own": PER_SESSION}) as room:
            await teach(room, "own", [tool("echo", inputSchema=schema)])
            async with http_door(room) as opened:
                params = {"name": "own_echo", "arguments": {"region": "north"}}
                for headers in (
                    {},
                    {"mcp_param_region": "south"},
                    {"mcp_param_region": "=?base64?bm9y?dGg=?="},
                ):
                    refused = await opened.stateless("tools/call", params, 7, **headers)
                    assert refused.status_code == 400
                    assert (refused.json()["id"], refused.json()["error"]["code"]) == (7, -32020)
                answer = await opened.stateless("tools/call", params, 8, mcp_param_region="north")
                assert (answer.status_code, answer.json()["id"]) == (200, 8)
                assert "result" in answer.json()


@body_of(with_door)
async def test_2026_has_no_initialize(opened: Opened, server: AskingServer, /) -> None:
    refused = await opened.stateless("initialize", {}, 3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@body_of(with_door)
async def test_the_sdks_client_lists_and_calls(opened: Opened, server: AskingServer, /, mode: str) -> None:
    from mcp import Client

    async with Client(opened.url, mode=mode) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["own_echo"]
        result = await client.call_tool("own_echo", {"text": "hello"})
        assert json.loads(result.content[0].text) == "hello"  # pyright: ignore


@body_of(with_door)
async def test_a_session_is_opened_used_and_ended(opened: Opened, server: AskingServer, /) -> None:
    person = await opened.session()
    assert len(person.headers["mcp_session_id"]) >= 32
    assert text_of(await person.call("own_echo", text="a")) == "a"
    assert text_of(await person.call("own_echo", text="b")) == "b"
    assert (server.starts, len(opened.door.sessions)) == (1, 1)
    ended = await opened.http.delete("/mcp", headers=person.real_headers())
    assert (ended.status_code, len(opened.door.sessions)) == (200, 0)
    assert (await person.post(request("ping"))).status_code == 404
    while server.live:
        await anyio.lowlevel.checkpoint()


@body_of(with_door)
async def test_t20_each_session_has_children_of_its_own(opened: Opened, server: AskingServer, /) -> None:
    first, second = await opened.session(), await opened.session()
    for person in (first, second, first):
        await person.call("own_echo")
    assert (server.starts, len(server.live)) == (2, 2)


@body_of(with_door)
async def test_requests_of_2026_need_no_session_and_choose_their_ids_themselves(
    opened: Opened, server: AskingServer, /
) -> None:
    found = await opened.stateless("server/discover")
    assert found.json()["result"]["supportedVersions"] == ["2026-07-28"]
    assert "mcp-session-id" not in found.headers
    answers: dict[str, Any] = {}

    async def call(text: str, key: Any) -> None:
        params = {"name": "own_echo", "arguments": {"text": text}}
        answers[text] = (await opened.stateless("tools/call", params, key)).json()

    async with anyio.create_task_group() as calls:
        for text, key in (("a", 1), ("b", 1), ("c", "one"), ("d", -0.5)):
            calls.start_soon(call, text, key)
    assert {text: text_of(said) for text, said in answers.items()} == dict(zip("abcd", "abcd", strict=True))
    assert [answers[name]["id"] for name in "abcd"] == [1, 1, "one", -0.5]
    assert (server.starts, len(opened.door.sessions)) == (1, 1)


@body_of(with_door, AskingServer({"step": step}))
async def test_progress_makes_an_event_stream_of_the_answer_in_both_eras(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    params = {"name": "own_step", "arguments": {}, "_meta": {"progressToken": "mine"}}
    for answer in (
        await person.post(request("tools/call", 7, params)),
        await opened.stateless("tools/call", params, 7),
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        progress, result = messages(answer)
        assert (progress["params"]["progressToken"], progress["params"]["progress"]) == ("mine", 1)
        assert (result["id"], text_of(result)) == (7, "done")


@body_of(with_door, AskingServer({"ask_a_name": ask_a_name}))
async def test_a_request_comes_on_the_stream_of_the_call_it_belongs_to(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session(capabilities={"elicitation": {}})
    call = request("tools/call", 5, {"name": "own_ask_a_name", "arguments": {}})
    async with opened.http.stream(
        "POST", "/mcp", json=call, headers={"accept": ACCEPT_BOTH, **person.real_headers()}
    ) as answer:
        lines = answer.aiter_lines()
        asked = await message_in(lines)
        assert asked["method"] == "elicitation/create"
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
        assert (await person.post(said)).status_code == 202
        assert text_of(await message_in(lines)) == "decline"


ACCEPT_BOTH = "application/json, text/event-stream"


async def message_in(lines: Any) -> Any:
    """The next message of an event stream."""
    async for line in lines:
        if line.startswith("data: {"):
            return json.loads(line[6:])
    raise AssertionError("the stream has ended")


class Held:
    """A tool that reports progress, then waits until it may end. `cancelled`: its call was cancelled."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.cancelled = anyio.Event(), anyio.Event(), anyio.Event()

    async def act(self, asking: Asking, arguments: Mapping[str, Any]) -> Any:
        asking.progress("on it")
        self.begun.set()
        try:
            await self.may_end.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return "late"


def with_held(body: Body, **door: Any) -> None:
    """Run `body(opened, server, held)` with a door over a server whose one tool is held."""
    held = Held()
    with_door(lambda opened, server: body(opened, server, held), AskingServer({"held": held.act}), **door)


def held_call(key: Any = 9) -> Any:
    return request("tools/call", key, {"name": "own_held", "arguments": {}, "_meta": {"progressToken": 1}})


@body_of(with_held)
async def test_who_disconnects_in_a_call_fetches_its_result_by_the_last_event_id(
    opened: Opened, server: AskingServer, held: Held, /
) -> None:
    person = await opened.session()
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    async with opened.http.stream("POST", "/mcp", json=held_call(), headers=headers) as answer:
        last = (await anext(answer.aiter_lines())).removeprefix("id: ")
    held.may_end.set()
    resumed = await opened.http.get("/mcp", headers={**headers, "last-event-id": last})
    ((name, result),) = events_in(resumed.text)
    assert (result["id"], text_of(result)) == (9, "late")
    assert name != last
    again = await opened.http.get("/mcp", headers={**headers, "last-event-id": last})
    assert events_in(again.text) == [(name, result)]
    assert not held.cancelled.is_set()


@body_of(with_held)
async def test_who_disconnects_in_a_stateless_call_has_cancelled_it(
    opened: Opened, server: AskingServer, held: Held, /
) -> None:
    async def call() -> None:
        await opened.stateless("tools/call", {"name": "own_held", "arguments": {}})

    async with anyio.create_task_group() as calls:
        calls.start_soon(call)
        await held.begun.wait()
        calls.cancel_scope.cancel()
    await held.cancelled.wait()


@body_of(with_held, rules=Rules(commit_time=0.01))
async def test_a_call_that_takes_long_becomes_a_stream_that_can_be_resumed(
    opened: Opened, server: AskingServer, held: Held, /
) -> None:
    person = await opened.session()
    call = request("tools/call", 3, {"name": "own_held", "arguments": {}})
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    async with opened.http.stream("POST", "/mcp", json=call, headers=headers) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("id: 1-1")
        held.may_end.set()
        assert text_of(await message_in(lines)) == "late"


@body_of(with_held)
async def test_a_cancelled_request_ends_its_post(opened: Opened, server: AskingServer, held: Held, /) -> None:
    person = await opened.session()
    ended: list[Any] = []

    async def call() -> None:
        ended.append(await person.ask("tools/call", {"name": "own_held", "arguments": {}}, key="x"))

    async with anyio.create_task_group() as calls:
        calls.start_soon(call)
        await held.begun.wait()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
        assert (await person.post(cancel)).status_code == 202
    assert ended[0]["error"]["code"] == -32800
    await held.cancelled.wait()


@body_of(with_door)
async def test_messages_without_a_request_come_on_the_get_and_are_replayed(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    await person.call("own_echo")
    server.tell("notifications/message", {"level": "info", "data": "one"})
    async with opened.http.stream("GET", "/mcp", headers=headers) as stream:
        lines = stream.aiter_lines()
        assert (await message_in(lines))["params"]["data"] == "one"
        server.tell("notifications/message", {"level": "info", "data": "two"})
        assert (await message_in(lines))["params"]["data"] == "two"
    async with opened.http.stream("GET", "/mcp", headers={**headers, "last-event-id": "0-1"}) as stream:
        assert (await message_in(stream.aiter_lines()))["params"]["data"] == "two"


@body_of(with_door)
async def test_what_comes_after_a_client_left_its_get_waits_for_the_next_one(
    opened: Opened, server: AskingServer, /
) -> None:
    person = await opened.session()
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    await person.call("own_echo")
    session = opened.door.sessions.find(person.headers["mcp_session_id"], Caller(), None)
    async with opened.http.stream("GET", "/mcp", headers=headers):
        assert session.is_listening
    while session.is_listening:
        await anyio.sleep(0.005)
    server.tell("notifications/message", {"level": "info", "data": "late"})
    async with opened.http.stream("GET", "/mcp", headers=headers) as stream:
        assert (await message_in(stream.aiter_lines()))["params"]["data"] == "late"


@body_of(with_door, rules=Rules(replay_events=2))
async def test_what_is_gone_from_a_stream_says_so(opened: Opened, server: AskingServer, /) -> None:
    person = await opened.session()
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    await person.call("own_echo")
    for number in range(5):
        server.tell("notifications/message", {"level": "info", "data": number})
    async with opened.http.stream("GET", "/mcp", headers={**headers, "last-event-id": "0-1"}) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == ": the events up to 0-3 are gone"
        assert (await message_in(lines))["params"]["data"] == 3
    for lost in ("7-1", "x", "0", "-1"):
        unknown = await opened.http.get("/mcp", headers={**headers, "last-event-id": lost})
        assert unknown.status_code == 400


@body_of(with_door)
async def test_a_newer_get_takes_the_place_of_an_older_one(opened: Opened, server: AskingServer, /) -> None:
    person = await opened.session()
    headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
    async with opened.http.stream("GET", "/mcp", headers=headers) as first:
        assert first.status_code == 200
        async with opened.http.stream("GET", "/mcp", headers=headers) as second:
            assert second.status_code == 200
            assert not [line async for line in first.aiter_lines() if line.strip(": ")]


@body_of(with_held, rules=Rules(session_idle=2.0))
async def test_t28_a_session_ends_soon_after_its_last_request_and_says_why_it_stays(
    opened: Opened, server: AskingServer, held: Held, /
) -> None:
    """Its client has sent nothing for longer than the limit while a call ran. The limit does not begin anew then."""
    person = await opened.session()
    sessions = opened.door.sessions
    (said,) = sessions.view()
    assert (said["inFlight"], said["endsInSeconds"] is None) == (0, False)
    async with anyio.create_task_group() as calls:
        calls.start_soon(person.call, "own_held")
        await held.begun.wait()
        with anyio.fail_after(PATIENCE):  # since its last message, whatever is open
            while sessions.view()[0]["silentSeconds"] < 2.5:
                await anyio.sleep(0.01)
        (said,) = sessions.view()
        assert (said["inFlight"], said["endsInSeconds"]) == (1, None)
        held.may_end.set()
    with anyio.fail_after(PATIENCE):
        while server.live or len(sessions):
            await anyio.sleep(0.01)
    assert sessions.view() == []


def test_a_client_of_2026_whose_person_is_asked_is_not_idle() -> None:
    async def body(opened: Opened, server: AskingServer) -> None:
        name = {"name": "mcp", "arguments": {"tool": "own_echo", "args": {"text": "hi"}}}
        meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        asked = (await opened.stateless("tools/call", {**name, "_meta": meta})).json()["result"]
        assert asked["resultType"] == "input_required", asked
        await anyio.sleep(0.3)  # several idle times, of which none may end it
        assert len(opened.door.sessions) == 1
        yes = {"action": "accept", "content": {"allow": "once"}}
        back = {
            "inputResponses": dict.fromkeys(asked["inputRequests"], yes),
            "requestState": asked["requestState"],
        }
        answer = (await opened.stateless("tools/call", {**name, **back, "_meta": meta})).json()
        assert answer["result"]["content"][0]["text"] == '"hi"'
        while len(opened.door.sessions) or server.live:
            await anyio.sleep(0.01)

    entry = {**PER_SESSION, "approve": "all"}
    with_door(body, entry=entry, expose="proxy", rules=Rules(session_idle=0.05))


def test_what_a_server_asks_about_the_call_of_one_program_never_reaches_another() -> None:
    """Two programs of 2026-07-28 say the same of themselves. The server does not say which call it asks about."""
    held = Held()

    async def body(opened: Opened, _server: AskingServer) -> None:
        meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        asks = {"name": "own_ask_a_name", "arguments": {}, "_meta": meta}
        ended: list[Any] = []

        async def other_program() -> None:
            said = {"name": "own_held", "arguments": {}, "_meta": meta}
            ended.append((await opened.stateless("tools/call", said)).json())

        async with anyio.create_task_group() as calls:
            calls.start_soon(other_program)
            await held.begun.wait()
            refused = (await opened.stateless("tools/call", asks)).json()["result"]
            text = refused["content"][0]["text"]
            assert refused["isError"]
            assert "works on several calls of this client" in text
            assert '"isolation": "per_call"' in text
            assert not ended  # and it was asked nothing
            held.may_end.set()
        assert text_of(ended[0]) == "late"
        alone = (await opened.stateless("tools/call", asks)).json()["result"]
        assert alone["resultType"] == "input_required"
        # The call of the first program waits for its person. The other one's request is open.
        back = {
            "inputResponses": {key: {"action": "decline"} for key in alone["inputRequests"]},
            "requestState": alone["requestState"],
        }
        assert text_of((await opened.stateless("tools/call", {**asks, **back})).json()) == "decline"

    with_door(body, AskingServer({"ask_a_name": ask_a_name, "held": held.act}))


def test_a_refused_request_closes_its_connection_once_and_is_counted() -> None:
    async def body(opened: Opened, _server: AskingServer) -> None:
        refused = await opened.post(request("ping"), origin="https://evil.example")
        assert (refused.status_code, refused.headers.get_list("connection")) == (403, ["close"])
        assert (await opened.post(request("ping"))).status_code == 400, "it has no session"
        assert opened.door.refusals == {403: 1, 400: 1}

    with_door(body)


def test_it_is_told_when_a_session_ends_and_why() -> None:
    told: list[str] = []

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        await opened.http.delete("/mcp", headers=person.real_headers())
        await opened.session()
        while len(opened.door.sessions):
            await anyio.sleep(0.01)
        assert told[0] == "http-1: the client's session has ended: its client has ended it"
        assert "http-2: the client's session has ended: no message came for" in told[1]
        await opened.session()

    with_door(body, rules=Rules(session_idle=0.3), on_end=told.append)
    assert len(told) == 2, "that the gateway ends is told once, and elsewhere"


def test_the_mcp_tool_says_which_argument_of_a_renamed_tool_cannot_be_read() -> None:
    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        for args in ('{"text":1e999}', '"{\\"text\\":1e999}"'):
            call = f'{{"tool":"own_put","args":{args}}}'
            line = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"mcp","arguments":{call}}}}}'
            result = (await person.post(line.encode())).json()["result"]
            text = result["content"][0]["text"]
            assert (result["isError"], "Invalid args" in text) == (True, True), text
            assert "text" in text or "1e999" in text

    with_door(body, entry={**PER_SESSION, "toolOverrides": {"echo": {"rename": "put"}}}, expose="proxy")


@body_of(with_door, rules=Rules(max_sessions=2))
async def test_beyond_the_most_sessions_new_ones_are_refused_and_the_others_served(
    opened: Opened, server: AskingServer, /
) -> None:
    people: list[Person] = [await opened.session() for _ in range(2)]
    refused = await opened.post(request("initialize", 1, {"protocolVersion": "2025-11-25"}))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert (await opened.stateless("server/discover")).status_code == 503
    for person in people:
        assert (await person.ask("ping"))["result"] == {}
    await opened.http.delete("/mcp", headers=people[0].real_headers())
    await opened.session()


@body_of(with_door)
async def test_an_initialize_that_fails_leaves_no_session(opened: Opened, server: AskingServer, /) -> None:
    failed = await opened.post(request("initialize", 1, {"protocolVersion": 7}))
    assert failed.json()["error"]["code"] == -32602
    assert "mcp-session-id" not in failed.headers
    assert len(opened.door.sessions) == 0


def test_headers_become_values_of_the_session() -> None:
    async def body(opened: Opened, server: AskingServer) -> None:
        poor = await opened.session()
        assert "GITHUB_TOKEN" in json.dumps(await poor.call("own_echo"))
        assert not server.starts
        rich = await opened.session(x_github_token="secret-of-ann")
        assert text_of(await rich.call("own_echo", text="hi")) == "hi"
        params = {"name": "own_echo", "arguments": {"text": "ho"}}
        answer = await opened.stateless("tools/call", params, x_github_token="secret-of-ben")
        assert text_of(answer.json()) == "ho"
        assert server.starts == 2

    entry = {**PER_SESSION, "env": {"TOKEN": "${session.GITHUB_TOKEN}"}}
    with_door(body, entry=entry, session_headers={"X-GitHub-Token": "GITHUB_TOKEN"})


def test_requests_in_one_write_are_answered_in_their_order() -> None:
    """As HTTP/1.1 wants it; also one that is answered at once behind one that waits for its server."""

    async def slowly(_asking: Any, _arguments: Any) -> Any:
        await anyio.sleep(0.05)
        return "slow"

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        said = [
            request("tools/call", 11, {"name": "own_slowly", "arguments": {}}),
            request("ping", 12),
            {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
            request("tools/call", 13, {"name": "own_echo", "arguments": {"text": "hi"}}),
        ]
        wire = b""
        for message in said:
            data = json.dumps(message).encode()
            lines = [f"{name}: {value}" for name, value in person.real_headers().items()]
            head = "\r\n".join(
                [
                    "POST /mcp HTTP/1.1",
                    f"host: 127.0.0.1:{opened.port}",
                    "accept: application/json, text/event-stream",
                    "content-type: application/json",
                    f"content-length: {len(data)}",
                    *lines,
                ]
            )
            wire += head.encode() + b"\r\n\r\n" + data
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
        bodies: list[Any] = []
        try:
            writer.write(wire)
            for _ in said:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                found = await reader.readexactly(int(fields[b"content-length"]))
                bodies.append((head.split()[1], json.loads(found)["id"] if found else None))
        finally:
            writer.close()
            await writer.wait_closed()
        assert not opened.notes, opened.notes
        assert bodies == [(b"200", 11), (b"200", 12), (b"202", None), (b"200", 13)]

    with_door(body, AskingServer({"echo": echo, "slowly": slowly}))


@pytest.mark.parametrize("expose", ["direct", "proxy", "meta"])
@on_asyncio
@in_real_time
async def test_a_cursor_that_nobody_gave_is_refused(expose: str) -> None:
    """Every list of a gateway has one page, so none has a next one."""
    with anyio.fail_after(PATIENCE):
        own = AskingServer({"echo": echo})
        async with asking_room({"own": own}, {"own": PER_SESSION}) as room:
            await teach(room, "own", [tool("echo")])
            async with http_door(room, expose=expose) as opened:
                person = await opened.session()
                lists = ["tools/list"]
                if expose == "direct":
                    lists += ["prompts/list", "resources/list", "resources/templates/list", "skills/list"]
                for method in lists:
                    for cursor in ("bogus", 7):
                        refused = await person.ask(method, {"cursor": cursor})
                        assert refused["error"]["code"] == -32602, (method, refused)
                        newer = await opened.stateless(method, {"cursor": cursor})
                        assert newer.json()["error"]["code"] == -32602, (method, newer.text)
                    assert "result" in await person.ask(method, {"cursor": None})
