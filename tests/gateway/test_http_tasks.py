"""Tasks over real HTTP: what belongs to one comes on some stream, and a gateway that ends carries on about them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from tests.gateway.test_client_tasks import EXTENSION, META, RELATED
from tests.gateway.test_http_door import ACCEPT_BOTH, message_in
from tests.support import run
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, Person, http_door, request
from tests.support.rooms import open_room, teach

from greenroom.gateway.doors.http_auth import Access, BearerToken
from greenroom.testing.fake_servers import FakeCall, FakeServer

DECLARED = {"_meta": {META + "clientCapabilities": {"extensions": {EXTENSION: {}}}}}
ANN, BOB = ({"authorization": f"Bearer {name}{'x' * 30}"} for name in ("ann", "bob"))


def _token(name: str) -> BearerToken:
    return BearerToken.of(name, f"{name}{'x' * 30}")


@asynccontextmanager
async def door(server: FakeServer, *, tokens: bool = True, **settings: Any) -> AsyncGenerator[Opened]:
    access = Access("127.0.0.1", tuple(_token(name) for name in ("ann", "bob")) if tokens else ())
    with anyio.fail_after(PATIENCE):
        async with open_room({"a": server}, isolation="persistent", **settings) as room:
            await teach(room, "a", server.tools)
            async with http_door(room, access=access) as opened:
                yield opened


async def begin(person: Person, **more: Any) -> str:
    params = {"name": "a_echo", "arguments": {}, "task": {}, **more}
    return (await person.ask("tools/call", params))["result"]["task"]["taskId"]


def test_what_is_asked_for_a_task_comes_on_the_stream_that_awaits_its_result() -> None:
    async def asks(call: FakeCall) -> str:
        call.progress(1, message="half")
        return (await call.elicit("Sure?"))["action"]

    async def main() -> None:
        async with door(FakeServer(handler=asks)) as opened:
            person = await opened.session(capabilities={"elicitation": {}}, **ANN)
            task = await begin(person, _meta={"progressToken": "p"})
            fetch = request("tasks/result", 5, {"taskId": task})
            headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
            async with (
                opened.http.stream(
                    "GET", "/mcp", headers={**headers, "accept": "text/event-stream"}
                ) as beside,
                opened.http.stream("POST", "/mcp", json=fetch, headers=headers) as answer,
            ):
                lines, others = answer.aiter_lines(), beside.aiter_lines()
                found = dict[str, Any]()
                async with anyio.create_task_group() as tasks:

                    async def read(some: Any) -> None:
                        while not {"elicitation/create", "notifications/progress"} <= found.keys():
                            said = await message_in(some)
                            found[said["method"]] = said
                        tasks.cancel_scope.cancel()

                    tasks.start_soon(read, lines)
                    tasks.start_soon(read, others)
                asked = found["elicitation/create"]
                assert asked["params"]["_meta"][RELATED] == {"taskId": task}
                said = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}
                assert (await person.post(said)).status_code == 202
            result = (await person.ask("tasks/result", {"taskId": task}, 6))["result"]
            assert (result["content"][0]["text"], result["_meta"][RELATED]) == ("accept", {"taskId": task})
            progress = found["notifications/progress"]["params"]
            assert (progress["progressToken"], progress["_meta"][RELATED]) == ("p", {"taskId": task})

    run("asyncio", main)


def test_tasks_are_of_whoever_the_token_names_and_of_nobody_else() -> None:
    async def main() -> None:
        async with door(FakeServer()) as opened:
            ann, again, bob = [await opened.session(**who) for who in (ANN, ANN, BOB)]
            task = await begin(ann)
            assert [each["taskId"] for each in (await again.ask("tasks/list"))["result"]["tasks"]] == [task]
            assert (await bob.ask("tasks/list"))["result"] == {"tasks": []}
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert (await bob.ask(method, {"taskId": task}))["error"]["code"] == -32602
                answer = await opened.stateless(
                    "tasks/get", {"taskId": task, **DECLARED}, mcp_name=task, **BOB
                )
                assert answer.json()["error"]["code"] == -32602
            await opened.http.delete("/mcp", headers=ann.real_headers())
            answer = await opened.stateless("tasks/get", {"taskId": task, **DECLARED}, mcp_name=task, **ANN)
            assert answer.json()["result"]["status"] == "completed"
        async with door(FakeServer(), tokens=False) as opened:
            anybody = await opened.session()
            task = await begin(anybody)
            assert (await anybody.ask("tasks/list"))["error"]["code"] == -32601
            assert "result" in await (await opened.session()).ask("tasks/get", {"taskId": task})

    run("asyncio", main)


def test_a_gateway_that_ends_carries_out_requests_about_tasks() -> None:
    async def slow(_call: FakeCall) -> str:
        await released.wait()
        return "done"

    released = anyio.Event()

    async def main() -> None:
        async with door(FakeServer(handler=slow)) as opened:
            person = await opened.session(**ANN)
            task = await begin(person)
            opened.door.refuse_new()
            assert (await person.post(request("tools/call", 3, {"name": "a_echo"}))).status_code == 503
            seen = (await person.ask("tasks/get", {"taskId": task}))["result"]
            assert (seen["status"], seen["pollInterval"]) == ("working", 250)
            assert "The gateway ends in " in seen["statusMessage"]
            answer = await opened.stateless("tasks/get", {"taskId": task, **DECLARED}, mcp_name=task, **ANN)
            assert answer.json()["result"]["pollIntervalMs"] == 250
            released.set()
            assert (await person.ask("tasks/result", {"taskId": task}))["result"]["content"][0][
                "text"
            ] == "done"

    run("asyncio", main)


def test_whoever_listens_is_told_a_result_of_megabytes_and_may_vanish() -> None:
    may_end = anyio.Event()

    async def large(_call: FakeCall) -> str:
        await may_end.wait()
        return "x" * (2 << 20)

    async def main() -> None:
        async with door(FakeServer(handler=large), taskAfterMs=50) as opened:
            headers: Any = {"accept": ACCEPT_BOTH, "mcp-protocol-version": "2026-07-28", **ANN}

            async def listen(task: str) -> Any:
                said = {
                    META + "protocolVersion": "2026-07-28",
                    META + "clientInfo": {"name": "t", "version": "1"},
                }
                meta = {**said, META + "clientCapabilities": {"extensions": {EXTENSION: {}}}}
                params = {"notifications": {"taskIds": [task]}, "_meta": meta}
                routed = {**headers, "mcp-method": "subscriptions/listen"}
                return opened.http.stream(
                    "POST", "/mcp", json=request("subscriptions/listen", "mine", params), headers=routed
                )

            made = await opened.stateless(
                "tools/call", {"name": "a_echo", "arguments": {}, **DECLARED}, **ANN
            )
            task = made.json()["result"]["taskId"]
            async with await listen(task) as first:
                await message_in(first.aiter_lines())  # and it vanishes
            async with await listen(task) as stream:
                lines = stream.aiter_lines()
                await message_in(lines)
                may_end.set()
                told = (await message_in(lines))["params"]
            assert told["_meta"] == {META + "subscriptionId": "mine"}
            assert (told["taskId"], told["status"]) == (task, "completed")
            assert told["result"]["content"][0]["text"] == "x" * (2 << 20)
            got = await opened.stateless("tasks/get", {"taskId": task, **DECLARED}, mcp_name=task, **ANN)
            assert json.dumps(got.json()["result"]["result"]) == json.dumps(told["result"])

    run("asyncio", main)
