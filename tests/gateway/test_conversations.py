"""Several clients of one room, each with a conversation of its own."""

from __future__ import annotations

import gc
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support import in_real_time, in_virtual_time, run, run_virtual
from tests.support.asking import Asking, AskingServer, Refused, asking_connectors
from tests.support.gateway import alive
from tests.support.http_servers import asker_entry
from tests.support.loops import on_asyncio, on_one_loop
from tests.support.memory_client import MemoryClient
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, settle, teach

from greenroom import Greenroom
from greenroom.catalogue.index import Index
from greenroom.gateway.conversations import Conversations
from greenroom.protocol.errors import UsageError
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool


async def echo(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
    return arguments


def asking_room(servers: Mapping[str, AskingServer], entries: Any = None, **settings: Any) -> Greenroom:
    """A room over these servers, which start when they are called."""
    named: Any = dict.fromkeys(servers)
    return open_room(named, entries=entries, connectors=asking_connectors(servers), **settings)


def begin(person: MemoryClient, expose: str, name: str, **arguments: Any) -> int:
    if expose == "proxy":
        name, arguments = "mcp", {"tool": name, "args": arguments}
    return person.begin("tools/call", {"name": name, "arguments": arguments})


async def call(person: MemoryClient, expose: str, name: str, **arguments: Any) -> dict[str, Any]:
    return await person.answer(begin(person, expose, name, **arguments))


@asynccontextmanager
async def talking(room: Greenroom, expose: str = "direct") -> AsyncGenerator[Any]:
    """A function that opens a conversation: `async with talk("ann", sampling={}) as ann`."""
    notes: list[str] = []
    conversations = Conversations(room, expose=expose, version="1", note=notes.append)
    async with anyio.create_task_group() as tasks:
        await tasks.start(conversations.watch)

        @asynccontextmanager
        async def talk(
            name: str, *, profile: str | None = None, **capabilities: Any
        ) -> AsyncGenerator[MemoryClient]:
            person = MemoryClient()
            opened = conversations.open(person, tasks.start_soon, name=name, profile=profile)
            async with opened as person.session:
                person.initialize(**capabilities)
                yield person

        talk.conversations = conversations  # pyright: ignore[reportFunctionMemberAccess]
        talk.spawn = tasks.start_soon  # pyright: ignore[reportFunctionMemberAccess]
        yield talk
        tasks.cancel_scope.cancel()
    assert not notes


PER_SESSION = {"isolation": "per_session"}


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_a_clients_children_are_its_own_and_end_with_it(expose: str) -> None:
    own = AskingServer({"echo": echo})
    async with (
        asking_room({"own": own}, {"own": PER_SESSION}) as room,
        talking(room, expose) as talk,
    ):
        await teach(room, "own")
        async with talk("ann") as ann:
            async with talk("ben") as ben:
                for person in (ann, ben, ann):
                    answer = await call(person, expose, "own_echo")
                    assert not answer["result"].get("isError"), answer
                assert (own.starts, len(own.live)) == (2, 2)
            assert len(own.live) == 1
        assert not own.live


@in_virtual_time
async def test_who_drains_refuses_every_client_also_those_that_come_later() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room) as talk, talk("ann") as ann:
        assert "result" in await ann.ask("tools/list")
        talk.conversations.refuse_new()
        async with talk("ben") as ben:
            for person in (ann, ben):
                refused = await person.ask("tools/call", {"name": "a_echo", "arguments": {}})
                assert "shutting down" in refused["error"]["message"]
            assert len(talk.conversations) == 2
        assert len(talk.conversations) == 1


@in_virtual_time
async def test_a_name_that_is_taken_and_an_unknown_exposure_are_refused() -> None:
    async with open_room({"a": FakeServer()}) as room, talking(room) as talk, talk("ann"):
        with pytest.raises(UsageError, match="already open"):
            async with talk("ann"):
                raise AssertionError
        with pytest.raises(UsageError, match="exposed"):
            Conversations(room, expose="all", version="1", note=print)


# ---- what a server asks -------------------------------------------------------------------------------------------


async def sample(asking: Asking, arguments: Mapping[str, Any]) -> Any:
    """A tool that asks its client for a message."""
    return await asking.ask("sampling/createMessage", {"messages": [], "for": arguments.get("who")})


async def list_roots(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    return await asking.ask("roots/list")


def held_by(event: anyio.Event) -> Any:
    async def hold(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        await event.wait()
        return arguments

    return hold


BOTH = pytest.mark.parametrize("expose", ["direct", "proxy"])
SAMPLED: Mapping[str, Any] = {"sampling": {}}


def asked(person: MemoryClient) -> list[Any]:
    """The requests that came to this client: their methods, and whom the server meant."""
    return [
        (said["method"], said["params"].get("for"))
        for said in person.said
        if "id" in said and "method" in said
    ]


@BOTH
@in_virtual_time
async def test_t20_a_shared_servers_request_goes_to_the_client_whose_call_it_is_in(expose: str) -> None:
    server = AskingServer({"sample": sample})
    async with asking_room({"s": server}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("sample")])
        async with talk("ann", **SAMPLED) as ann, talk("ben", **SAMPLED) as ben:
            for person, name in ((ann, "ann"), (ben, "ben"), (ann, "ann again")):
                person.answers["sampling/createMessage"] = {"from": name}
                answer = await call(person, expose, "s_sample", who=name)
                assert name in answer["result"]["content"][0]["text"], answer
            assert asked(ann) == [("sampling/createMessage", who) for who in ("ann", "ann again")]
            assert asked(ben) == [("sampling/createMessage", "ben")]
            assert server.starts == 1, "the second client could answer nothing that was not known"


@BOTH
@in_virtual_time
async def test_t20_a_request_that_may_be_of_several_clients_is_refused_and_sent_to_nobody(
    expose: str,
) -> None:
    done = anyio.Event()
    server = AskingServer({"sample": sample, "hold": held_by(done)})
    async with asking_room({"s": server}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("sample"), tool("hold")])
        async with talk("ann", **SAMPLED) as ann, talk("ben", **SAMPLED) as ben:
            begin(ann, expose, "s_hold")
            answer = await call(ben, expose, "s_sample")
            text = answer["result"]["content"][0]["text"]
            assert "-32603" in text
            assert '"isolation": "per_session"' in text
            done.set()
            await ann.answer(2)
            with pytest.raises(Refused, match="several clients"):  # in no call, when two could answer
                await server.live[0].ask("sampling/createMessage", {"messages": []})
            assert asked(ann) == asked(ben) == []
        async with talk("ann", **SAMPLED) as ann, talk("mute"):
            ann.answers["sampling/createMessage"] = {"from": "ann"}
            said = await server.live[0].ask("sampling/createMessage", {"messages": [], "for": "x"})
            assert said == {"from": "ann"}, "only one could answer"
        with pytest.raises(Refused) as caught:
            await server.live[0].ask("sampling/createMessage", {"messages": []})
        assert caught.value.code == -32601, "nobody is here"


@in_virtual_time
async def test_a_request_to_a_client_that_did_not_declare_it_is_refused_with_the_reason() -> None:
    server = AskingServer({"sample": sample, "list_roots": list_roots, "ask_by_url": ask_by_url})
    async with asking_room({"s": server}) as room, talking(room) as talk:
        await teach(room, "s", [tool(name) for name in server.acts])
        async with (
            talk("ann", sampling={}, elicitation={}) as ann,
            talk("ben", roots={}, elicitation={"form": {}, "url": {}}) as ben,
        ):
            for name, missing in (("list_roots", "roots"), ("ask_by_url", "elicitation.url")):
                answer = await call(ann, "direct", f"s_{name}")
                assert f"did not declare {missing}" in answer["result"]["content"][0]["text"]
            assert asked(ann) == asked(ben) == []
            assert server.initialized_with[-1].keys() == {"sampling", "elicitation", "roots"}


async def ask_by_url(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
    return await asking.ask("elicitation/create", {"mode": "url", "url": "https://x", "elicitationId": "e1"})


@in_virtual_time
async def test_a_shared_server_is_told_what_anybody_here_can_answer_and_never_restarted_for_who_comes() -> (
    None
):
    server = AskingServer({"echo": echo})
    async with asking_room({"s": server}) as room, talking(room) as talk:
        await teach(room, "s")
        async with talk("ann", sampling={}) as ann:
            await call(ann, "direct", "s_echo")
            async with talk("ben", roots={}) as ben:
                await call(ben, "direct", "s_echo")
                for number in range(20):
                    async with (
                        talk(f"guest {number}", elicitation={}) as guest,
                        talk(f"mute {number}") as mute,
                    ):
                        for one in (guest, mute):
                            await call(one, "direct", "s_echo")
                assert server.initialized_with == [{"sampling": {}}]
                await room.restart("s")
                await call(ann, "direct", "s_echo")
                assert server.initialized_with[1:] == [{"sampling": {}, "roots": {}}]
        assert server.starts == 2


@BOTH
@pytest.mark.parametrize("isolation", ["per_session", "per_call"])
@in_virtual_time
async def test_t20_a_clients_own_child_asks_that_client_and_is_told_only_what_it_can_answer(
    expose: str, isolation: str
) -> None:
    server = AskingServer({"sample": sample})
    async with asking_room({"s": server}, {"s": {"isolation": isolation}}) as room:
        await teach(room, "s", [tool("sample")])
        async with (
            talking(room, expose) as talk,
            talk("ann", sampling={}, roots={}) as ann,
            talk("ben", sampling={"tools": {}}) as ben,
        ):
            for person in (ann, ben):
                begin(person, expose, "s_sample")
            await ann.heard(lambda said: said.get("method") == "sampling/createMessage")
            await ben.heard(lambda said: said.get("method") == "sampling/createMessage")
            assert sorted(map(str, server.initialized_with)) == sorted(
                map(str, ({"sampling": {}, "roots": {}}, {"sampling": {"tools": {}}}))
            )
            assert len(asked(ann)) == len(asked(ben)) == 1, "both calls are in flight"


@BOTH
@in_virtual_time
async def test_t20_input_that_a_call_requires_is_asked_of_its_own_client(expose: str) -> None:
    """A server of 2026-07-28 names the call, so that it does not matter how many are in flight."""

    async def both(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        found = asking.params.get("inputResponses")
        if found is None:
            request = {
                "method": "sampling/createMessage",
                "params": {"messages": [], "for": arguments["who"]},
            }
            return {"resultType": "input_required", "inputRequests": {"q": request}, "requestState": "s"}
        return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(found)}]}

    server = AskingServer({"both": both}, modern=True)
    async with asking_room({"s": server}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("both")])
        async with talk("ann", **SAMPLED) as ann, talk("ben", **SAMPLED) as ben:
            ids = [begin(one, expose, "s_both", who=who) for one, who in ((ann, "ann"), (ben, "ben"))]
            for person, who in ((ann, "ann"), (ben, "ben")):
                await person.heard(lambda said: said.get("method") == "sampling/createMessage")
                assert asked(person) == [("sampling/createMessage", who)]
            for person, who, number in ((ann, "ann", ids[0]), (ben, "ben", ids[1])):
                person.reply({"from": who})
                assert who in (await person.answer(number))["result"]["content"][0]["text"]


@in_virtual_time
async def test_t20_a_client_that_leaves_takes_its_requests_with_it_and_nobody_elses() -> None:
    server = AskingServer({"sample": sample})
    entries = {"s": PER_SESSION}
    async with asking_room({"s": server}, entries) as room, talking(room) as talk:
        await teach(room, "s", [tool("sample")])
        async with talk("ann", **SAMPLED) as ann:
            number = begin(ann, "direct", "s_sample", who="ann")
            async with talk("ben", **SAMPLED) as ben:
                begin(ben, "direct", "s_sample", who="ben")
                await ben.heard(lambda said: said.get("method") == "sampling/createMessage")
            assert len(server.live) == 1
            await ann.heard(lambda said: said.get("method") == "sampling/createMessage")
            ann.reply({"from": "ann"})
            assert "result" in await ann.answer(number)


# ---- what a server says -------------------------------------------------------------------------------------------


def logs(person: MemoryClient) -> list[str]:
    return [said["params"]["data"] for said in person.said if said.get("method") == "notifications/message"]


def say(server: AskingServer, level: str, text: str) -> None:
    server.tell("notifications/message", {"level": level, "data": text})


@in_virtual_time
async def test_a_first_list_is_complete_in_whatever_turn_it_is_asked_for() -> None:
    async with (
        open_room({"s": FakeServer()}, bootstrap=True) as room,
        talking(room) as talk,
        AsyncExitStack() as stack,
    ):
        people: list[MemoryClient] = []
        while not room.tools():  # one more in each turn until the server is known
            people.append(await stack.enter_async_context(talk(f"p{len(people)}")))
            people[-1].begin("tools/list")
            await anyio.lowlevel.checkpoint()
        for person in people:
            listed = await person.answer(2)
            assert [each["name"] for each in listed["result"]["tools"]] == ["s_echo"]


@BOTH
@in_virtual_time
async def test_each_client_hears_logs_at_its_own_level_and_a_shared_server_is_told_the_most_talkative(
    expose: str,
) -> None:
    done = anyio.Event()
    server = AskingServer({"echo": echo, "hold": held_by(done)})
    told = lambda: [params["level"] for method, params in server.requests if method == "logging/setLevel"]  # noqa: E731
    async with asking_room({"s": server}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("echo"), tool("hold")])
        async with talk("ann") as ann, talk("ben") as ben, talk("carl") as carl, talk("dora") as dora:
            assert "result" in await ann.ask("logging/setLevel", {"level": "error"})
            await call(ann, expose, "s_echo")
            await settle()
            assert told() == ["error"]
            await ben.ask("logging/setLevel", {"level": "debug"})
            await dora.ask("logging/setLevel", {"level": "debug"})
            await settle()
            assert told() == ["error", "debug"], "once, whoever else wants it"
            begin(carl, expose, "s_hold")
            await settle()
            for level in ("debug", "info", "error"):
                say(server, level, level)
            assert (logs(ann), logs(ben)) == (["error"], ["debug", "info", "error"])
            assert logs(carl) == ["info", "error"], "it set no level, but its call is there"
            done.set()
            await carl.answer(2)
            say(server, "error", "later")
            assert logs(carl) == ["info", "error"], "it asked for none, and has no call there"
            refused = await ann.ask("logging/setLevel", {"level": "loud"})
            assert refused["error"]["code"] == -32602
        await settle()
        assert told() == ["error", "debug", "error"], "who is left wants less; nobody wants nothing"


@in_virtual_time
async def test_t20_a_session_cannot_change_a_shared_server_for_others_by_a_plain_request() -> None:
    server = AskingServer({"echo": echo})
    async with asking_room({"s": server}) as room, room.session("ann") as ann:
        await ann.connect("s")
        with pytest.raises(UsageError, match="set_log_level"):
            await ann.request("s", "logging/setLevel", {"level": "debug"})
        for method in ("resources/unsubscribe", "initialize"):
            with pytest.raises(UsageError, match="shared with others"):
                await ann.request("s", method, {"uri": "x:/"})
        with pytest.raises(UsageError, match="set_log_level"):
            port_of(ann).start_request("s", "logging/setLevel", {"level": "debug"}, None)
        assert await room.request("s", "logging/setLevel", {"level": "error"}) == {}
        await settle()
        assert [params for method, params in server.requests if method == "logging/setLevel"] == [
            {"level": "error"}
        ]


@in_virtual_time
async def test_what_a_server_says_during_a_call_is_told_to_nobody_else() -> None:
    done = anyio.Event()
    server = AskingServer({"hold": held_by(done)})
    async with asking_room({"s": server}) as room, talking(room) as talk:
        await teach(room, "s", [tool("hold")])
        async with talk("ann") as ann, talk("ben") as ben:
            begin(ann, "direct", "s_hold")
            await settle()
            server.tell("x/own", {"secret": 1})
            assert ("x/own" in ann.methods(), "x/own" in ben.methods()) == (True, False)
            done.set()
            await ann.answer(2)
            server.tell("x/later", {"secret": 2})
            assert "x/later" not in (*ann.methods(), *ben.methods())
        async with talk("cora") as cora:
            server.tell("x/sole", {})
            assert "x/sole" in cora.methods(), "it is the only one"


@in_virtual_time
async def test_a_client_is_told_that_what_it_answered_elsewhere_is_complete() -> None:
    server = AskingServer({"ask_by_url": ask_by_url})
    complete, told = "notifications/elicitation/complete", {"elicitationId": "e1"}
    async with asking_room({"s": server}) as room, talking(room) as talk:
        await teach(room, "s", [tool("ask_by_url")])
        able = {"elicitation": {"url": {}}}
        async with talk("ann", **able) as ann, talk("ben", **able) as ben:
            ann.answers["elicitation/create"] = {"action": "accept"}
            await call(ann, "direct", "s_ask_by_url")
            server.tell(complete, told)  # after the call
            server.tell(complete, {"elicitationId": "of nobody"})
            assert (ann.methods().count(complete), ben.methods().count(complete)) == (1, 0)


@pytest.mark.parametrize("isolation", ["persistent", "per_session"])
@in_virtual_time
async def test_t20_updates_of_a_resource_go_to_who_subscribed(isolation: str) -> None:
    updated = "notifications/resources/updated"
    server = AskingServer({"echo": echo}, resources=[{"uri": "x:/a", "name": "a"}])
    async with (
        asking_room({"s": server}, {"s": {"isolation": isolation}}) as room,
        talking(room) as talk,
        talk("ann") as ann,
        talk("ben") as ben,
        talk("cora") as cora,
    ):
        for person in (ann, ben):
            await call(person, "direct", "s_echo")
        for person in (ann, ben):
            assert "result" in await person.ask("resources/subscribe", {"uri": "x:/a"})
        assert "result" in await ben.ask("resources/unsubscribe", {"uri": "x:/a"})
        await settle()
        for person in (ann, ben, cora):
            person.said.clear()
        server.tell(updated, {"uri": "x:/a"})
        assert (ann.methods(), ben.methods(), cora.methods()) == ([updated], [], [])
        if isolation == "per_session":
            of_ben = server.live[1]
            assert "result" in await ben.ask("resources/subscribe", {"uri": "x:/a"})
            ann.said.clear()
            of_ben.tell(updated, {"uri": "x:/a"})
            assert (ann.methods(), ben.methods()) == ([], [updated]), "each has a child of its own"


@in_virtual_time
async def test_a_changed_list_is_announced_to_every_client_once() -> None:
    changed = "notifications/tools/list_changed"
    server = AskingServer({"echo": echo})
    async with (
        asking_room({"s": server}) as room,
        talking(room) as talk,
        talk("ann") as ann,
        talk("ben") as ben,
    ):
        await room.connect("s")
        await ann.heard(lambda said: said.get("method") == changed)
        server.acts["more"] = echo
        server.tell(changed)
        await anyio.sleep(5.0)
        assert (ann.methods().count(changed), ben.methods().count(changed)) == (2, 2)


@in_virtual_time
async def test_progress_and_cancellation_belong_to_the_request() -> None:
    """Two clients use the same ids and the same tokens."""

    async def steps(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        for _ in range(2):
            await anyio.sleep(1.0)
            asking.progress(arguments["who"])
        return arguments

    server = AskingServer({"steps": steps})
    async with asking_room({"s": server}) as room, talking(room) as talk:
        await teach(room, "s", [tool("steps")])
        async with talk("ann") as ann, talk("ben") as ben:
            for person, who in ((ann, "ann"), (ben, "ben")):
                params = {"name": "s_steps", "arguments": {"who": who}, "_meta": {"progressToken": "t"}}
                number = person.begin("tools/call", params)
            await anyio.sleep(1.5)
            ann.say({"method": "notifications/cancelled", "params": {"requestId": number}})
            answer = await ben.answer(number)
            assert json.loads(answer["result"]["content"][0]["text"]) == {"who": "ben"}
            for person, who, often in ((ann, "ann", 1), (ben, "ben", 2)):
                told = [one["params"] for one in person.said if one.get("method") == "notifications/progress"]
                assert [one["message"] for one in told] == [who] * often
            assert not [said for said in ann.said if said.get("id") == number]


@in_virtual_time
async def test_changed_roots_are_told_to_who_may_ask_what_they_are() -> None:
    changed = "notifications/roots/list_changed"
    shared, own = AskingServer({"echo": echo}), AskingServer({"echo": echo})
    async with (
        asking_room({"s": shared, "own": own}, {"own": PER_SESSION}) as room,
        talking(room) as talk,
    ):
        for name in ("s", "own"):
            await teach(room, name)
        async with talk("ann", roots={}) as ann:
            for name in ("s", "own"):
                await call(ann, "direct", f"{name}_echo")
            async with talk("ben", roots={}):
                ann.say({"method": changed})
                assert (changed in shared.notified, changed in own.notified) == (False, True)
            ann.say({"method": changed})
            assert changed in shared.notified, "nobody else could be meant"


# ---- embedded -----------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_t20_a_session_may_bring_callbacks_of_its_own() -> None:
    def by(name: str) -> Any:
        async def sampled(request: Any) -> Any:
            return {"from": name, "for": request.params.get("for")}

        return sampled

    shared, own = AskingServer({"sample": sample}), AskingServer({"sample": sample})
    heard: list[tuple[str, Any]] = []
    room = Greenroom.open(
        {"mcpServers": {"s": {"command": "x"}, "own": {"command": "x", **PER_SESSION}}},
        cache_path=":memory:",
        bootstrap=False,
        connectors=asking_connectors({"s": shared, "own": own}),
        on_sampling=by("the room"),
    )
    async with room:
        for name in ("s", "own"):
            await teach(room, name, [tool("sample")])
        log = lambda address, params: heard.append((str(address), params["data"]))  # noqa: E731
        async with (
            room.session("ann", on_sampling=by("ann"), on_log=log) as ann,
            room.session("ben") as ben,
        ):
            for name in ("s", "own"):
                assert (await ann.call(f"{name}_sample", {"who": 1})).text == '{"from": "ann", "for": 1}'
                assert '"the room"' in (await ben.call(f"{name}_sample")).text
            ann.set_log_level("error", "s")
            for server in (shared, own):
                say(server, "info", "i")
                say(server, "error", "e")
                say(server, "loud", "l")
            own_child = "own[session:ann]"
            at_own = [(own_child, "i"), (own_child, "e"), (own_child, "l")]
            assert heard == [("s", "e"), ("s", "l"), *at_own], "a level that nobody knows is heard"
        assert '"the room"' in (await room.call("s_sample")).text


@in_virtual_time
async def test_a_listener_that_raises_keeps_nobody_else_from_hearing() -> None:
    server, heard = AskingServer({"echo": echo}), list[str]()

    def raises(_address: Any, _method: str, _params: Any) -> None:
        raise ZeroDivisionError

    async with asking_room({"s": server}) as room:
        await room.connect("s")
        hear = lambda _address, method, _params: heard.append(method)  # noqa: E731
        async with room.session("a", on_notification=raises), room.session("b", on_notification=hear):
            server.tell("notifications/resources/list_changed")
            assert heard == ["notifications/resources/list_changed"]


# ---- with real servers --------------------------------------------------------------------------------------------


@on_one_loop
def test_t20_over_http_a_request_comes_on_the_stream_of_its_call(backend: str) -> None:
    """A real server over HTTP, shared, of the handshake era. Both calls are in flight when it asks."""

    async def body(entry: Mapping[str, Any]) -> None:
        both, asked_so_far = anyio.Event(), list[str]()

        def by(name: str) -> Any:
            async def answer(_request: Any) -> Any:
                asked_so_far.append(name)
                if len(asked_so_far) == 2:
                    both.set()
                await both.wait()
                return {"action": "accept", "content": {"name": name}}

            return answer

        said: dict[str, str] = {}

        async def ask(session: Any) -> None:
            said[session.name] = (await session.call("asker_elicit")).text

        config = {"mcpServers": {"asker": dict(entry)}}
        async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
            ann = room.session("ann", on_elicitation=by("ann"))
            ben = room.session("ben", on_elicitation=by("ben"))
            async with ann, ben, anyio.create_task_group() as tasks:
                tasks.start_soon(ask, ann)
                tasks.start_soon(ask, ben)
        assert said == {"ann": "accept ann", "ben": "accept ben"}
        assert sorted(asked_so_far) == ["ann", "ben"]

    with asker_entry("http") as entry:
        run(backend, body, entry)


@BOTH
@on_one_loop
def test_t20_each_client_has_a_process_of_its_own_that_asks_only_it(backend: str, expose: str) -> None:
    """Real processes: what each is asked says its own process, and the process ends with its client."""

    async def body(entry: Mapping[str, Any]) -> None:
        config = {"mcpServers": {"asker": {**entry, **PER_SESSION}}}
        async with (
            Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room,
            talking(room, expose) as talk,
            talk("ann", elicitation={}) as ann,
        ):
            async with talk("ben", elicitation={}) as ben:
                numbers = [begin(one, expose, "asker_elicit") for one in (ann, ben)]
                for person, name in ((ann, "Ann"), (ben, "Ben")):
                    await person.heard(lambda said: said.get("method") == "elicitation/create")
                    person.reply({"action": "accept", "content": {"name": name}})
                for person, name, number in ((ann, "Ann", numbers[0]), (ben, "Ben", numbers[1])):
                    answer = await person.answer(number)
                    assert answer["result"]["content"][0]["text"] == f"accept {name}"
                    assert person.methods().count("elicitation/create") == 1
                mine = {row.scope: row.pid for row in room.status() if row.pid is not None}
                assert len(set(mine.values())) == 2
            left = [row.pid for row in room.status() if row.pid is not None]
            assert left == [mine["session:ann"]]
            assert mine["session:ben"] is not None
            assert not alive({mine["session:ben"]})

    with asker_entry("stdio") as entry:
        run(backend, body, entry)


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@on_asyncio
@in_virtual_time
async def test_an_idle_client_costs_little_and_leaves_nothing(expose: str) -> None:
    """B17: at most 24 KiB each, after a list and a call."""
    many = 100
    server = AskingServer({"echo": echo})
    async with asking_room({"s": server}) as room, talking(room, expose) as talk:
        await teach(room, "s")

        async def come(stack: AsyncExitStack) -> None:
            for number in range(many):
                person = await stack.enter_async_context(talk(f"client {number}", sampling={}))
                await person.ask("tools/list")
                await call(person, expose, "s_echo")
                person.said.clear()

        async with AsyncExitStack() as stack:  # everything is there that is made once
            await come(stack)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            async with AsyncExitStack() as stack:
                await come(stack)
                gc.collect()
                each = (tracemalloc.get_traced_memory()[0] - before) / many
            gc.collect()
            left = (tracemalloc.get_traced_memory()[0] - before) / many
        finally:
            tracemalloc.stop()
        assert each < 24 * 1024
        assert left < 2048, "tables that have grown"
        assert server.starts == 1


@pytest.mark.parametrize(("expose", "profile"), [("proxy", None), ("meta", None), ("proxy", "work")])
@in_real_time
async def test_a_large_catalogue_is_made_searchable_before_anybody_searches(
    expose: str, profile: str | None
) -> None:
    async with (
        with_tools(600) as room,
        talking(room, expose) as talk,
        talk("ann", profile=profile),
        talk("ben", profile=profile) as ben,
    ):
        seen = port_of(room).catalogue if profile is None else talk.conversations._beside[profile][0]
        await made_by_a_thread(lambda: seen.index.is_searchable)
        if expose == "proxy":
            asked = {"name": "mcp", "arguments": {"search": "tool7", "limit": 1}}
            found = await ben.ask("tools/call", asked)
            assert "tool7" in found["result"]["content"][0]["text"]


@pytest.mark.parametrize(("count", "expose"), [(600, "direct"), (20, "proxy")])
@in_virtual_time
async def test_where_nobody_searches_or_a_search_is_quick_nothing_is_made_beforehand(
    count: int, expose: str
) -> None:
    async with with_tools(count) as room, talking(room, expose) as talk, talk("ann"):
        await anyio.sleep(1.0)
        assert not port_of(room).catalogue.index.is_searchable


@asynccontextmanager
async def with_tools(count: int) -> AsyncGenerator[Greenroom]:
    """A room with a server that has listed so many tools."""
    many = FakeServer(tools=[tool(f"tool{number}", "Does a thing") for number in range(count)])
    config = {"mcpServers": {"s": {"command": "x"}}, "profiles": {"work": {"servers": ["s"]}}}
    opened = Greenroom.open(config, cache_path=":memory:", connectors=fake_connectors({"s": many}))
    async with opened as room:
        await room.connect("s")
        await room.settled()
        yield room


async def made_by_a_thread(is_made: Callable[[], bool]) -> None:
    """Wait for it. A thread takes no virtual time, so it is given some of ours."""
    gives_up = time.monotonic() + PATIENCE
    while not is_made():
        assert time.monotonic() < gives_up
        threading.Event().wait(0.001)
        await anyio.sleep(0.001)


@in_real_time
async def test_a_client_that_leaves_at_once_leaves_the_next_one_to_prepare_the_search() -> None:
    async with with_tools(600) as room:
        conversations = Conversations(room, expose="proxy", version="1", note=lambda _text: None)
        for is_patient in (False, True):
            async with anyio.create_task_group() as tasks:
                async with conversations.open(MemoryClient(), tasks.start_soon, name="ann"):
                    if is_patient:
                        await made_by_a_thread(lambda: port_of(room).catalogue.index.is_searchable)
                tasks.cancel_scope.cancel()
            assert port_of(room).catalogue.index.is_searchable is is_patient


def test_a_search_that_cannot_be_prepared_ends_nobody(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_index: Any) -> Any:
        raise UsageError("a reload has removed it")

    async def body() -> None:
        many = FakeServer(tools=[tool(f"tool{number}") for number in range(600)])
        async with open_room({"s": many}) as room, talking(room, "proxy") as talk, talk("ann") as ann:
            await room.connect("s")
            await anyio.sleep(1.0)
            assert (await ann.ask("ping"))["result"] == {}
            await made_by_a_thread(lambda: talk.conversations._searchable == set())

    monkeypatch.setattr(Index, "prepare", broken)
    run_virtual(backend, body)


# ---- what is shown to whom -------------------------------------------------------------------------------------------


def profiled_room(**settings: Any) -> Greenroom:
    """Servers `a` and `b`, each with a tool of its own; profiles that show one of them, two that say how."""
    servers = {name: FakeServer(tools=[tool(f"of_{name}")]) for name in ("a", "b")}
    entries = {
        "a": {"command": "x", "directTools": ["of_*"], "env": {"TOKEN": "${session.TOKEN:-none}"}},
        "b": {"command": "x", "directTools": ["of_*"]},
    }
    profiles = {
        "a": {"servers": ["a"]},
        "direct": {"servers": ["a"], "expose": "direct"},
        "proxy": {"servers": ["b"], "expose": "proxy"},
    }
    config = {"mcpServers": entries, "profiles": profiles, "settings": settings}
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False, connectors=fake_connectors(servers))


SHOWN = {"direct": [], "proxy": ["mcp"]}


@pytest.mark.parametrize(
    ("of_gateway", "profile", "own", "expose"),
    [
        ("direct", None, None, "direct"),
        ("proxy", None, None, "proxy"),
        ("proxy", "a", None, "proxy"),
        ("proxy", "direct", None, "direct"),
        ("direct", "proxy", None, "proxy"),
        ("direct", None, "proxy", "proxy"),
        ("proxy", "direct", "proxy", "proxy"),
        ("direct", "proxy", "direct", "direct"),
    ],
)
@in_virtual_time
async def test_a_client_is_shown_what_it_asked_for_else_what_its_profile_says_else_what_the_gateway_does(
    of_gateway: str,
    profile: str | None,
    own: str | None,
    expose: str,
) -> None:
    async with profiled_room() as room, talking(room, of_gateway) as talk:
        for name in ("a", "b"):
            await room.connect(name)
        await room.settled()
        person = MemoryClient()
        opened = talk.conversations.open(person, talk.spawn, name="ann", profile=profile, expose=own)
        async with opened as person.session:
            person.initialize()
            listed = (await person.ask("tools/list"))["result"]["tools"]
            seen = {None: ["a_of_a", "b_of_b"], "proxy": ["b_of_b"]}.get(profile, ["a_of_a"])
            assert sorted(each["name"] for each in listed) == sorted([*SHOWN[expose], *seen])
        with pytest.raises(UsageError, match="Nothing is exposed"):
            async with talk.conversations.open(MemoryClient(), talk.spawn, name="ben", expose="all"):
                raise AssertionError
        assert len(talk.conversations) == 0


@in_virtual_time
async def test_a_listed_tool_is_looked_up_in_what_the_clients_of_a_profile_are_shown() -> None:
    async with profiled_room() as room, talking(room) as talk:
        conversations = talk.conversations
        for name in ("a", "b"):
            await room.connect(name)
        await room.settled()
        assert conversations.listed("a_of_a", None) is None, "nobody has come yet"
        async with talk("ann"), talk("ben", profile="a"), talk("cyd", profile="proxy"):
            for profile, seen in ((None, ["a_of_a", "b_of_b"]), ("a", ["a_of_a"]), ("proxy", [])):
                found = [conversations.listed(name, profile) for name in ("a_of_a", "b_of_b")]
                assert [target.name for target in found if target is not None] == seen
            for name in (None, 7, ["a_of_a"], {}):
                assert conversations.listed(name, None) is None


@in_virtual_time
async def test_the_values_that_a_client_brings_are_its_sessions_and_each_profile_is_prepared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    real = Greenroom.session

    def session(room: Greenroom, name: str, **how: Any) -> Any:
        given.append((name, how["variables"], how["profile"]))
        return real(room, name, **how)

    monkeypatch.setattr(Greenroom, "session", session)
    async with profiled_room() as room, talking(room, "proxy") as talk:
        spawned: list[Any] = []
        opened = talk.conversations.open(
            MemoryClient(), spawned.append, name="ann", variables={"TOKEN": "of-ann"}
        )
        async with opened:
            assert given == [("ann", {"TOKEN": "of-ann"}, None)]
            for name, profile in (("ben", None), ("cyd", "a"), ("dan", "a"), ("eve", "direct")):
                async with talk.conversations.open(
                    MemoryClient(), spawned.append, name=name, profile=profile
                ):
                    pass
        assert given[1:3] == [("ben", {}, None), ("cyd", {}, "a")]
        assert len(spawned) == 2, "for who sees everything, and for `a`; who is shown all searches itself"


@in_virtual_time
async def test_the_runs_of_all_clients_count_together() -> None:
    async with profiled_room() as room, talking(room, "meta") as talk, talk("ann"):
        runs = talk.conversations._runs
        async with talk("ben"):
            assert talk.conversations._runs is runs is not None
