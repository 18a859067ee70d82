"""No error of a client or of a file is called a bug of ours."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, cast

import anyio
import msgspec
import pytest
from tests.support import in_real_time, in_virtual_time, run
from tests.support.http_door import http_door
from tests.support.rooms import Outcomes, open_room
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.config.argument_checks import kinds_of
from greenroom.config.parse import parse_config
from greenroom.protocol.errors import (
    UNTRUSTED,
    CallCancelled,
    ConfigError,
    ConnectFailed,
    GreenroomError,
    Problem,
    Reach,
    UsageError,
)
from greenroom.testing import FakeServer

LEVEL = "io.modelcontextprotocol/logLevel"


@pytest.mark.parametrize("expose", ["proxy", "meta", "direct"])
def test_a_log_level_that_does_not_exist_is_the_clients_mistake(expose: str) -> None:
    async def main() -> None:
        names = {"proxy": ("mcp", {}), "meta": ("mcp_discover", {}), "direct": ("a_echo", {"text": "hi"})}
        name, arguments = names[expose]
        async with open_room({"a": FakeServer()}) as room, http_door(room, expose=expose) as opened:
            await room.connect("a")
            params: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": {LEVEL: "loud"}}
            answer = (await opened.stateless("tools/call", params)).json()
            assert "loud" in str(answer)
            assert answer.get("error", {}).get("code") in (None, -32602)
            assert "result" not in answer or answer["result"]["isError"]
            good = {**params, "_meta": {LEVEL: "info"}}
            assert "result" in (await opened.stateless("tools/call", good)).json()

    run("asyncio", main)


@pytest.mark.parametrize("lifecycle", ["lazy", "eager", "keep-alive"])
@in_virtual_time
async def test_a_reload_that_takes_the_definition_away_while_it_connects_says_so(lifecycle: str) -> None:
    server = FakeServer(initialize_latency=5.0)
    async with (
        open_room({"a": server}, entries={"a": {"lifecycle": lifecycle}}) as room,
        Outcomes() as calls,
    ):
        waiting = calls.start(room, "a_echo")
        await anyio.sleep(1)
        why = Problem("mcp.json", "is not trusted", code=UNTRUSTED)
        before = room.config
        await room.reload(msgspec.structs.replace(before, servers={}, broken={"a": why}))
        await anyio.sleep(30)
        assert (waiting.error.code, waiting.error.reach.value) == (UNTRUSTED, "not_sent")
        assert server.starts == 1, "there is nothing to start"
        await room.reload(before)
        assert (await room.call("a_echo", {"text": "hi"})).text


ODD: Any = object()
HI = {"text": "hi"}
# What a program may do wrong with an open room, or with a session of it.
MISTAKES: dict[str, Callable[[Any], Any]] = {
    "no name": lambda room: room.call(None),
    "a number for a name": lambda room: room.call(5, HI),
    "a list for a name": lambda room: room.call(["a_echo"], HI),
    "a server that is not a name": lambda room: room.call("a_echo", HI, server=5),
    "arguments in a list": lambda room: room.call("a_echo", ["hi"]),
    "a timeout in words": lambda room: room.call("a_echo", HI, timeout="5"),
    "a timeout that is not a number": lambda room: room.call("a_echo", HI, timeout=math.nan),
    "a timeout of nothing": lambda room: room.call("a_echo", HI, timeout=0),
    "a timeout that is over": lambda room: room.call("a_echo", HI, timeout=-3),
    "a task with a timeout of nothing": lambda room: room.start_task("a_echo", HI, timeout=0),
    "a stream with a timeout of nothing": lambda room: entered(room.stream_call("a_echo", HI, timeout=0)),
    "a request with a timeout of nothing": lambda room: room.request("a", "ping", timeout=0),
    "a prompt with a timeout of nothing": lambda room: room.get_prompt("a_greet", timeout=0),
    "a resource with a timeout of nothing": lambda room: room.read_resource("note://a", timeout=-1.0),
    "a completion with a timeout of nothing": lambda room: room.complete({}, {}, timeout=0),
    "progress to nobody": lambda room: room.call("a_echo", HI, on_progress=5),
    "meta that is a list": lambda room: room.call("a_echo", HI, meta=[1]),
    "params that are a number": lambda room: room.request("a", "tools/call", 5),
    "a method that is a number": lambda room: room.request("a", 5),
    "a request with a timeout in words": lambda room: room.request("a", "ping", timeout="soon"),
    "a connect to nothing": lambda room: room.connect(None),
    "a prompt that is a number": lambda room: room.get_prompt(5),
    "a URI that is a number": lambda room: room.read_resource(5),
    "a log level that is a list": lambda room: room.set_log_level([]),
    "a completion of nothing": lambda room: room.complete(5, {}),
}
OF_A_ROOM: dict[str, Callable[[Any], Any]] = {
    "a search for a number": lambda room: room.search(5),
    "a limit in words": lambda room: room.search("echo", limit="5"),
    "an offset that is no whole number": lambda room: room.search("echo", offset=0.5),
    "a description of nothing": lambda room: room.describe(None),
    "events of a word": lambda room: room.events("call"),
    "an entry of a number": lambda room: room.entry(5),
    "a restart of a list": lambda room: room.restart(["a"]),
    "a reload of a number": lambda room: room.reload(5),
    "an acceptance of a number": lambda room: room.accept("a", 5),
    "a session without a name": lambda room: entered(room.session(None)),
    "a session with bad values": lambda room: entered(room.session("s", variables=["x"])),
    "a session with a bad value's name": lambda room: entered(room.session("s", variables={5: "x"})),
    "a session with a profile in a list": lambda room: room.session("s", profile=[]),
    "a session that answers with a number": lambda room: room.session("s", on_sampling=5),
    "capabilities that are no JSON": lambda room: room.session("s", capabilities={"x": ODD}),
    "capabilities in a list": lambda room: room.session("s", capabilities=["sampling"]),
    "roots in one text": lambda room: room.session("s", roots="/tmp"),
    "calls in an unknown format": lambda room: room.run_tool_calls([], format=[]),
}


async def entered(context: Any) -> None:
    async with context:
        pass


async def told(mistake: Callable[[Any], Any], room: Any) -> GreenroomError:
    try:
        made = mistake(room)
        if hasattr(made, "__await__"):
            await made
    except GreenroomError as error:
        return error
    raise AssertionError("it was taken")


@pytest.mark.parametrize("mistake", [*MISTAKES, *OF_A_ROOM])
@in_virtual_time
async def test_a_mistake_of_a_program_is_told_to_it_and_costs_nobody_else(mistake: str) -> None:
    server = FakeServer(call_latency=5.0)
    async with open_room({"a": server}) as room, room.session("ann") as ann, Outcomes() as calls:
        await room.connect("a")
        waiting = calls.start(room, "a_echo")
        await anyio.sleep(1)
        for who in (room, ann) if mistake in MISTAKES else (room,):
            error = await told(MISTAKES.get(mistake) or OF_A_ROOM[mistake], who)
            assert isinstance(error, UsageError | ConfigError), error
        await anyio.sleep(30)
        assert isinstance(waiting.outcome, str)
        assert server.starts == 1, "no call of anybody else was lost"


@in_virtual_time
async def test_arguments_and_options_that_are_none_start_no_server() -> None:
    server = FakeServer()
    async with open_room({"a": server}) as room:
        for start in (room.call, lambda *given: entered(room.stream_call(*given))):
            with pytest.raises(UsageError, match="must be an object of named values, got list"):
                await start("a_echo", cast("Any", ["hi"]))
        for options in ({"timeout": "soon"}, {"on_progress": 5}):
            with pytest.raises(UsageError):
                await room.call("a_echo", HI, **cast("Any", options))
        assert server.starts == 0


def test_a_kind_of_events_in_words_is_named_whole() -> None:
    with pytest.raises(UsageError, match="'call' is not a kind"):
        kinds_of("call")


NO_JSON: list[Callable[[Any], Any]] = [
    lambda room: room.call("a_echo", {"text": ODD}),
    lambda room: room.call("a_echo", HI, meta={"x": ODD}),
    lambda room: room.request("a", "tools/call", {"name": ODD}),
]


@in_real_time
async def test_what_cannot_be_sent_is_the_callers_mistake_and_the_server_goes_on() -> None:
    entry = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.echo"]}
    async with Greenroom.open({"mcpServers": {"a": entry}}, cache_path=":memory:") as room:
        await room.call("a_echo", HI)
        for mistake in NO_JSON:
            error = await told(mistake, room)
            assert (error.code, error.http_status) == ("invalid_request", 400)
        assert (await room.call("a_echo", HI)).text == "hi"
        assert [row.incarnation for row in room.status()] == [1]


@pytest.mark.parametrize(
    "given",
    [
        {"config": 5},
        {"config": None},
        {"config": "\0"},
        {"on_sampling": 5},
        {"on_log": "print"},
        {"on_approval": True},
        {"roots": 5},
        {"capabilities": {"x": ODD}},
        {"connectors": "fake"},
        {"auth": "token"},
        {"in_process": [1]},
        {"in_process": {"p": None}},
        {"cache_path": 5},
        {"cache_path": "\ud800"},
        {"cache_path": ""},
        {"audit": 5},
        {"audit": "/"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_room_that_is_opened_with_what_it_cannot_use_says_so_at_once(given: dict[str, Any]) -> None:
    with pytest.raises((UsageError, ConfigError)) as raised:
        Greenroom.open(**cast("Any", {"config": {"mcpServers": {}}, "cache_path": ":memory:", **given}))
    assert "bug" not in str(raised.value).lower()


@for_each(
    ("headers", "where", "instead"),
    [
        ({"x-a": "not-a-name"}, "x-a", "letters, digits and underscores"),
        ({"x-a": "${session.TOKEN}"}, "x-a", '"TOKEN"'),
        ({"x-a": ""}, "x-a", "letters"),
        ({"x a": "TOKEN"}, "x a", "letters, digits and hyphens"),
        ({"x-a": "TOKEN", "X-A": "OTHER"}, "X-A", "take one"),
    ],
)
def test_a_header_that_no_session_can_have_is_refused_where_it_is_written(
    headers: dict[str, str], where: str, instead: str
) -> None:
    written = {"mcpServers": {}, "settings": {"http": {"sessionHeaders": headers}}}
    with pytest.raises(ConfigError) as raised:
        parse_config(written, source="mcp.json")
    (problem,) = raised.value.problems
    assert problem.where.startswith("mcp.json: settings.http.sessionHeaders")
    assert where in problem.where
    assert instead in str(problem)


def no_auth(_definition: object) -> Any:
    return 5


def raising(*_given: object) -> Any:
    raise ValueError("no token today")


@pytest.mark.parametrize(
    ("given", "name", "says"),
    [
        ({"auth": no_auth}, "http", "`auth` must return"),
        ({"auth": raising}, "http", "no token today"),
        ({"auth": lambda: None}, "http", "`auth` could not make"),
        ({"connectors": raising}, "a", "no token today"),
        ({"connectors": lambda *_given: 5}, "a", "`connectors` must return"),
        ({"in_process": {"p": raising}}, "p", "no token today"),
        ({"in_process": {"p": lambda: 5}}, "p", "Pass one of these"),
    ],
)
def test_what_a_programs_own_function_makes_wrong_is_not_called_our_bug(
    given: dict[str, Any], name: str, says: str, backend: str
) -> None:
    async def main() -> None:
        servers = {"a": {"command": "true"}, "http": {"url": "http://127.0.0.1:9/mcp"}}
        config: Any = {"mcpServers": servers, "settings": {"bootstrap": False}}
        async with Greenroom.open(config, cache_path=":memory:", **given) as room:
            with pytest.raises(ConnectFailed) as raised:
                await room.connect(name)
            assert raised.value.server == name
            assert says in str(raised.value)

    run(backend, main)


@in_real_time
async def test_a_room_that_is_used_out_of_order_says_what_to_do(backend: str) -> None:
    room = Greenroom.open({"mcpServers": {}}, cache_path=":memory:")
    with pytest.raises(UsageError, match="task group"):
        await room.start(5)
    if backend == "trio":
        with pytest.raises(UsageError, match="nursery"):
            await room.start()
    await room.aclose()
    async with room:  # nothing of that has used it up
        pass
    with pytest.raises(UsageError, match="opened once"):
        await room.start()


@in_virtual_time
async def test_the_result_of_a_call_whose_block_was_left_is_asked_for_too_late() -> None:
    async with open_room({"a": FakeServer(call_latency=5.0)}) as room:
        async with room.stream_call("a_echo", HI) as left:
            pass
        with pytest.raises(CallCancelled, match="because its `async with` block was left") as raised:
            await left.result()
        assert raised.value.reach is Reach.SENT
