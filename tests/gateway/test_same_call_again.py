"""A client of 2026-07-28 that begins a suspended call anew is asked the same again, and the call runs once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from tests.gateway.test_conversations import asking_room, talking
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import Asking, AskingServer
from tests.support.http_door import http_door
from tests.support.loops import on_asyncio
from tests.support.memory_client import MemoryClient
from tests.support.patience import PATIENCE
from tests.support.rooms import open_room, teach
from tests.support.whole import RawClient, direct_door, whole

from greenroom.testing.fake_servers import FakeServer, tool

ABLE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
UNABLE = {**ABLE, "io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}
YES = {"action": "accept", "content": {"allow": "once"}}
ANN = {"action": "accept", "content": {"name": "Ann"}}
EXPOSED = pytest.mark.parametrize("expose", ["direct", "proxy", "meta"])
OURS = {"proxy": "mcp", "meta": "mcp_call"}


def request(expose: str, name: str = "s_ask", /, **arguments: Any) -> dict[str, Any]:
    """The params of a call."""
    if expose in OURS:
        return {"name": OURS[expose], "arguments": {"tool": name, "args": arguments}, "_meta": ABLE}
    return {"name": name, "arguments": arguments, "_meta": ABLE}


def again_with(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    assert asked["resultType"] == "input_required", asked
    return {
        "requestState": asked["requestState"],
        "inputResponses": dict.fromkeys(asked["inputRequests"], answer),
    }


@attrs.define(eq=False)
class Counting:
    """A tool of a server of 2025 that asks its client for a name, in so many rounds, and counts its runs."""

    rounds: int = 1
    begun: int = 0
    answers: list[Any] = attrs.field(factory=list[Any])

    async def ask(self, asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        self.begun += 1
        names: list[str] = []
        for number in range(self.rounds):
            said = await asking.ask(
                "elicitation/create", {"message": f"Who {number}?", "requestedSchema": {}}
            )
            self.answers.append(said)
            names.append((said.get("content") or {}).get("name", said["action"]))
        return " ".join(names)


async def use(person: MemoryClient, params: Mapping[str, Any]) -> dict[str, Any]:
    return await person.ask("tools/call", params)


async def result(person: MemoryClient, params: Mapping[str, Any]) -> dict[str, Any]:
    said = await use(person, params)
    assert "result" in said, said
    return said["result"]


def text(said: Mapping[str, Any]) -> str:
    assert said["resultType"] == "complete", said
    return "".join(block["text"] for block in said["content"]).strip('"')


@EXPOSED
@in_virtual_time
async def test_the_same_call_gets_the_same_question_and_the_server_runs_it_once(expose: str) -> None:
    asks = Counting()
    async with asking_room({"s": AskingServer({"ask": asks.ask})}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose, n=1))
            again = await result(ann, request(expose, n=1))
            assert again == first
            done = await result(ann, request(expose, n=1) | again_with(again, ANN))
            assert text(done) == "Ann"
            assert (asks.begun, asks.answers) == (1, [ANN])
            assert ann.session.in_flight == 0
            # Nothing is suspended any more: now it is a call of its own.
            later = await result(ann, request(expose, n=1))
            assert later["requestState"] != first["requestState"]
            assert asks.begun == 2


@EXPOSED
@in_virtual_time
async def test_the_first_call_of_a_tool_that_was_not_known_can_ask_its_client_too(expose: str) -> None:
    asks = Counting()
    async with (
        asking_room({"s": AskingServer({"ask": asks.ask})}) as room,
        talking(room, expose) as talk,
        talk("ann") as ann,
    ):
        asked = await result(ann, request(expose, n=1))
        done = await result(ann, request(expose, n=1) | again_with(asked, ANN))
        assert text(done) == "Ann"
        assert asks.begun == 1


@EXPOSED
@in_virtual_time
async def test_a_request_that_does_not_declare_it_gets_no_question_of_the_same_call(expose: str) -> None:
    asks = Counting(rounds=2)
    async with (
        asking_room({"s": AskingServer({"ask": asks.ask})}, {"s": {"isolation": "per_call"}}) as room,
        talking(room, expose) as talk,
    ):
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose))
            own = await result(ann, request(expose) | {"_meta": UNABLE})
            assert own["resultType"] == "complete"
            assert own["isError"]
            assert asks.begun == 2, "a call of its own"
            assert await result(ann, request(expose)) == first
            second = await result(ann, request(expose) | again_with(first, ANN))
            lacks = await use(ann, request(expose) | again_with(first, ANN) | {"_meta": UNABLE})
            assert lacks["error"]["code"] == -32021
            assert lacks["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}
            assert text(await result(ann, request(expose) | again_with(second, ANN))) == "Ann Ann"
            assert asks.begun == 2


@EXPOSED
@in_virtual_time
async def test_a_call_that_waits_for_approval_is_asked_about_again_and_sent_once(expose: str) -> None:
    server = FakeServer([tool("ask")])
    async with open_room({"s": server}, approve=True) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose, n=1))
            again = await result(ann, request(expose, n=1))
            assert again == first
            assert text(await result(ann, request(expose, n=1) | again_with(again, YES))) == '{"n": 1}'
            assert len(server.calls) == 1


@EXPOSED
@in_virtual_time
async def test_a_client_that_begins_anew_gives_its_earlier_answers_and_comes_to_the_open_question(
    expose: str,
) -> None:
    """As LangGraph does it: an approval, and then two questions of the server. Each answer belongs to its question."""
    asks = Counting(rounds=2)
    server = AskingServer({"ask": asks.ask})
    async with asking_room({"s": server}, approve=True) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            given, said = list[Mapping[str, Any]](), dict[str, Any]()
            names: list[Any] = [YES, ANN, {"action": "accept", "content": {"name": "Ben"}}]
            for answer in names:
                said = await result(ann, request(expose))
                for earlier in given:
                    said = await result(ann, request(expose) | again_with(said, earlier))
                said = await result(ann, request(expose) | again_with(said, answer))
                given.append(answer)
            assert text(said) == "Ann Ben"
            assert (asks.begun, asks.answers) == (1, names[1:])


@EXPOSED
@in_virtual_time
async def test_an_earlier_answer_in_other_words_is_refused_and_the_call_goes_on(expose: str) -> None:
    asks = Counting(rounds=2)
    async with asking_room({"s": AskingServer({"ask": asks.ask})}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose))
            second = await result(ann, request(expose) | again_with(first, ANN))
            refused = await use(ann, request(expose) | again_with(first, {"action": "decline"}))
            assert "answered before, in other words" in refused["error"]["message"]
            assert await result(ann, request(expose) | again_with(first, ANN)) == second
            done = await result(ann, request(expose) | again_with(second, {"action": "decline"}))
            assert text(done) == "Ann decline"
            assert asks.begun == 1


@EXPOSED
@in_virtual_time
async def test_an_answer_that_comes_twice_waits_for_the_one_call_and_after_its_end_is_told_so(
    expose: str,
) -> None:
    may_end, asked = anyio.Event(), list[Any]()

    async def ask(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        asked.append(await asking.ask("elicitation/create", {"message": "Who?", "requestedSchema": {}}))
        await may_end.wait()
        return "done"

    async with asking_room({"s": AskingServer({"ask": ask})}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose))
            back = request(expose) | again_with(first, ANN)
            copies = [ann.begin("tools/call", back) for _ in range(3)]
            ann.say({"method": "notifications/cancelled", "params": {"requestId": copies[0]}})
            await anyio.sleep(1.0)
            assert len(asked) == 1
            may_end.set()
            for number in copies[1:]:
                assert text((await ann.answer(number))["result"]) == "done"
            assert not [said for said in ann.said if said.get("id") == copies[0]]
            over = await use(ann, back)
            assert "has ended" in over["error"]["message"]
            assert len(asked) == 1


@EXPOSED
@in_virtual_time
async def test_the_call_is_cancelled_when_the_last_of_its_requests_is(expose: str) -> None:
    cancelled, asked = list[bool](), list[Any]()

    async def ask(asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        asked.append(await asking.ask("elicitation/create", {"message": "Who?", "requestedSchema": {}}))
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(True)

    async with asking_room({"s": AskingServer({"ask": ask})}) as room, talking(room, expose) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            back = request(expose) | again_with(await result(ann, request(expose)), ANN)
            copies = [ann.begin("tools/call", back) for _ in range(2)]
            for number, is_over in zip(copies, (False, True), strict=True):
                await anyio.sleep(1.0)
                assert not cancelled
                ann.say({"method": "notifications/cancelled", "params": {"requestId": number}})
                await anyio.sleep(1.0)
                assert bool(cancelled) is is_over
            assert (len(asked), ann.session.in_flight) == (1, 0)


@EXPOSED
@in_virtual_time
async def test_when_the_time_of_the_first_is_over_the_same_call_is_a_new_one(expose: str) -> None:
    asks = Counting()
    server = AskingServer({"ask": asks.ask})
    async with (
        asking_room({"s": server}, requestTimeoutMs=10_000, requestTotalTimeoutMs=30_000) as room,
        talking(room, expose) as talk,
    ):
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request(expose))
            await anyio.sleep(31.0)
            assert ann.session.in_flight == 0
            second = await result(ann, request(expose))
            assert second["requestState"] != first["requestState"]
            assert "requestState was not given" in str(
                await use(ann, request(expose) | again_with(first, ANN))
            )
            assert text(await result(ann, request(expose) | again_with(second, ANN))) == "Ann"
            assert (asks.begun, asks.answers) == (2, [ANN])


@EXPOSED
@in_virtual_time
async def test_other_arguments_another_session_and_a_call_that_is_not_suspended_are_calls_of_their_own(
    expose: str,
) -> None:
    asks, entered, may_end = Counting(), list[Any](), anyio.Event()

    async def hold(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        entered.append(arguments)
        await may_end.wait()
        return "held"

    server = AskingServer({"ask": asks.ask, "hold": hold})
    async with (
        asking_room({"s": server}, {"s": {"isolation": "per_call"}}) as room,
        talking(room, expose) as talk,
    ):
        await teach(room, "s", [tool("ask"), tool("hold")])
        async with talk("ann") as ann, talk("ben") as ben:
            states: set[str] = set()
            cases: list[tuple[MemoryClient, dict[str, Any]]] = [
                (ann, {"n": 1}),
                (ann, {"n": 1.0}),
                (ann, {"n": True}),
                (ann, {"n": "1"}),
                (ann, {}),
                (ben, {"n": 1}),
            ]
            for person, arguments in cases:
                said = await result(person, request(expose, **arguments))
                states.add(said["requestState"])
            assert (len(states), asks.begun) == (6, 6)
            twice = [ann.begin("tools/call", request(expose, "s_hold")) for _ in range(2)]
            while len(entered) < 2:
                await anyio.sleep(0.1)
            may_end.set()
            for number in twice:
                assert text((await ann.answer(number))["result"]) == "held"


@in_virtual_time
async def test_the_order_of_keys_and_white_space_are_no_other_arguments() -> None:
    asks = Counting()
    async with asking_room({"s": AskingServer({"ask": asks.ask})}) as room, talking(room) as talk:
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            first = await result(ann, request("direct", a={"x": 1, "y": [1, 2]}, b="é"))
            again = await result(ann, request("direct", b="é", a={"y": [1, 2], "x": 1}))
            meta = {**ABLE, "progressToken": 7, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            third = await result(ann, {**request("direct", a={"x": 1, "y": [1, 2]}, b="é"), "_meta": meta})
            assert first == again == third
            assert asks.begun == 1


@in_virtual_time
async def test_a_call_with_more_questions_than_are_kept_is_called_anew() -> None:
    asks = Counting(rounds=12)
    async with (
        asking_room({"s": AskingServer({"ask": asks.ask})}, {"s": {"isolation": "per_call"}}) as room,
        talking(room) as talk,
    ):
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            said = await result(ann, request("direct"))
            for number in range(12):
                assert "Who" in str(said["inputRequests"]), number
                said = await result(ann, request("direct") | again_with(said, ANN))
                if number == 7:
                    assert (await result(ann, request("direct")))["requestState"] != said["requestState"]
                    assert asks.begun == 2
            assert text(said) == " ".join(["Ann"] * 12)


@in_virtual_time
async def test_a_question_of_a_task_is_not_that_of_a_call() -> None:
    """The task is answered by `tasks/update`; the same call beside it is a call of its own."""
    asks = Counting()
    extension = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}
    meta = {**ABLE, "io.modelcontextprotocol/clientCapabilities": extension}
    slow = anyio.Event()

    async def ask(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        await slow.wait()
        return await asks.ask(asking, arguments)

    server = AskingServer({"ask": ask})
    async with (
        asking_room({"s": server}, {"s": {"isolation": "per_call"}}, taskAfterMs=1_000) as room,
        talking(room) as talk,
    ):
        await teach(room, "s", [tool("ask")])
        async with talk("ann") as ann:
            params = {**request("direct"), "_meta": meta}
            made = await result(ann, params)
            assert made["resultType"] == "task", made
            slow.set()
            while (now := (await ann.ask("tasks/get", {"taskId": made["taskId"], "_meta": meta}))["result"])[
                "status"
            ] != "input_required":
                await anyio.sleep(0.1)
            own = await result(ann, params)
            assert own["resultType"] == "input_required"
            assert asks.begun == 2
            given = dict.fromkeys(now["inputRequests"], ANN)
            await ann.ask("tasks/update", {"taskId": made["taskId"], "inputResponses": given, "_meta": meta})
            assert text(await result(ann, params | again_with(own, ANN))) == "Ann"


# ---- over HTTP, where a session is whoever looks the same -----------------------------------------------------------


@on_asyncio
@in_real_time
async def test_over_http_only_a_client_that_looks_the_same_gets_the_question() -> None:
    asks = Counting()
    server = AskingServer({"ask": asks.ask})
    room = asking_room({"s": server}, {"s": {"isolation": "per_call"}})
    async with room, http_door(room, rules=None) as opened:
        await teach(room, "s", [tool("ask")])

        async def said(params: Mapping[str, Any], program: str = "one") -> Any:
            info = {"io.modelcontextprotocol/clientInfo": {"name": program, "version": "1"}}
            meta = {**params["_meta"], **info}
            return (await opened.stateless("tools/call", {**params, "_meta": meta})).json()["result"]

        with anyio.fail_after(PATIENCE):
            first = await said(request("direct"))
            assert await said(request("direct")) == first
            other = await said(request("direct"), "two")
            assert other["requestState"] != first["requestState"]
            assert asks.begun == 2
            for program, asked in (("one", first), ("two", other)):
                done = await said(request("direct") | again_with(asked, ANN), program)
                assert text(done) == "Ann"
            assert asks.begun == 2


# ---- a real server of 2025, and a real gateway -----------------------------------------------------------------------


def raw_request(expose: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if expose in OURS:
        return {"name": OURS[expose], "arguments": {"tool": name, "args": arguments}}
    return {"name": name, "arguments": arguments}


def heard(door: RawClient, expose: str) -> str:
    """What the server says that it was told."""
    return text(door.result("tools/call", raw_request(expose, "w_heard", {})))


@EXPOSED
@pytest.mark.parametrize("approve", ["off", ["ask"]], ids=["asks", "approval and asks"])
def test_a_real_server_that_asks_is_called_once(expose: str, approve: Any, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    form = {"message": "Who?", "requestedSchema": {"type": "object"}}
    arguments = {"method": "elicitation/create", "params": form}
    servers = {"w": {**whole("w"), "approve": approve}}
    with direct_door(tmp_path, servers, modern=True, expose=expose, events=events, bootstrap=True) as door:
        door.initialize(elicitation={"form": {}})
        if expose == "direct":
            door.wait(lambda: bool(door.list_all("tools")), "the catalogue")
        heard(door, expose)  # from now on its tools are known
        params = raw_request(expose, "w_ask", arguments)
        given, said = list[Mapping[str, Any]](), dict[str, Any]()
        for answer in [ANN] if approve == "off" else [YES, ANN]:
            said = door.result("tools/call", params)
            assert door.result("tools/call", params) == said
            for earlier in (*given, answer):
                said = door.result("tools/call", {**params, **again_with(said, earlier)})
            given.append(answer)
        assert "Ann" in text(said)
        assert heard(door, expose).count("elicitation/create") <= 1
    records = [json.loads(line) for line in events.read_text().splitlines()]
    calls = [each for each in records if each["kind"] == "call" and str(each.get("tool")) == "w_ask"]
    assert [each["detail"] for each in calls] == ["accepted", "sent", "ended"]
    assert calls[-1]["outcome"] == "result"
