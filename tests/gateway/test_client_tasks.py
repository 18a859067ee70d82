"""Tasks for clients: a call outlives its request, and its result is kept for whoever began it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.memory_client import MemoryClient
from tests.support.rooms import open_room, teach
from tests.support.task_servers import TaskServer

from greenroom.gateway import client_tasks as kept
from greenroom.gateway.conversations import Conversations
from greenroom.testing.fake_servers import FakeCall, FakeServer
from greenroom.testing.room_inside import RoomInside

EXTENSION = "io.modelcontextprotocol/tasks"
META = "io.modelcontextprotocol/"
UNKNOWN = -32602
FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}


class TaskClient(MemoryClient):
    """One client of a gateway. `modern`: it speaks 2026-07-28, and declares the extension."""

    def __init__(self, *, modern: bool, extension: bool = True) -> None:
        super().__init__()
        self.modern = modern
        self.introduced: Any = None  # what it was answered (2025-11-25)
        self._capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
        if extension:
            self._capabilities["extensions"] = {EXTENSION: {}}

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result, or the error."""
        return await self.answer(self.begin(method, params))

    async def answer(self, number: int) -> Any:
        """The result of this request, or the error."""
        with anyio.fail_after(1_000):
            answer = await super().answer(number)
        return answer.get("result", answer.get("error"))

    async def hears(self, method: str, count: int = 1) -> Any:
        """The params of the last message of this method, once there are so many."""
        with anyio.fail_after(1_000):
            await self.heard(lambda _: self.methods().count(method) >= count)
        return [each for each in self.told if each["method"] == method][-1]

    @property
    def told(self) -> list[dict[str, Any]]:
        return [each for each in self.said if "method" in each]

    def begin(self, method: str, params: Any = None, *, id: Any = None) -> int:
        said = dict(params or {})
        if self.modern:
            said["_meta"] = {
                META + "protocolVersion": "2026-07-28",
                META + "clientCapabilities": self._capabilities,
            }
        return super().begin(method, said, id=id)

    def said_on(self, stream: int) -> list[tuple[str, Any]]:
        """What it was told on this stream: the methods and params, without `_meta`."""
        told = [(each["method"], dict(each.get("params", {}))) for each in self.told]
        return [
            (method, params)
            for method, params in told
            if params.pop("_meta", {}).get(META + "subscriptionId") == stream
        ]


class Gateway:
    def __init__(self, room: Any, expose: str, tasks: Any) -> None:
        self.clients = Conversations(room, expose=expose, version="1", note=print)
        self.inside = RoomInside(room)
        self._tasks = tasks
        self._count = 0

    @asynccontextmanager
    async def person(
        self,
        *,
        subject: str | None = "ann",
        modern: bool = False,
        version: str = "2025-11-25",
        door: str = "gateway",
        **more: Any,
    ) -> AsyncGenerator[TaskClient]:
        self._count += 1
        person = TaskClient(modern=modern, **more)
        name = f"{subject}-{self._count}"
        async with self.clients.open(
            person, self._tasks.start_soon, name=name, subject=subject, door=door
        ) as session:
            person.session = session
            if not modern:
                able = {"elicitation": {}}
                hello = {"protocolVersion": version, "capabilities": able, "clientInfo": {"name": "t"}}
                person.introduced = await person.ask("initialize", hello)
                session.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            yield person


@asynccontextmanager
async def open_gateway(
    server: FakeServer, expose: str = "direct", **settings: Any
) -> AsyncGenerator[Gateway]:
    async with open_room({"a": server}, **settings) as room:
        await teach(room, "a", server.tools)
        async with anyio.create_task_group() as tasks:
            gateway = Gateway(room, expose, tasks)
            await tasks.start(gateway.clients.watch)
            yield gateway
            tasks.cancel_scope.cancel()


async def slow(call: FakeCall) -> str:
    call.progress(1, message="half")
    await anyio.sleep(call.get("seconds", 10))
    return f"done {call.get('n')}"


CALL = {"name": "a_echo", "arguments": {"n": 1}}


def text(result: Mapping[str, Any]) -> str:
    return result["content"][0]["text"]


@in_virtual_time
async def test_an_older_client_asks_for_a_task_and_another_connection_of_its_principal_fetches_it() -> None:
    async with open_gateway(FakeServer(handler=slow)) as gateway:
        async with gateway.person() as ann:
            made = (await ann.ask("tools/call", {**CALL, "task": {"ttl": 100_000}}))["task"]
            assert (made["status"], made["ttl"]) == ("working", 100_000)
            await anyio.sleep(1)
            now = await ann.ask("tasks/get", {"taskId": made["taskId"]})
            assert (now["status"], now["statusMessage"]) == ("working", "half")
        async with gateway.person(subject="bob") as bob:
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                of_ann = await bob.ask(method, {"taskId": made["taskId"]})
                assert of_ann == await bob.ask(method, {"taskId": "nobody's"})
                assert of_ann["code"] == UNKNOWN
        async with gateway.person() as again:
            result = await again.ask("tasks/result", {"taskId": made["taskId"]})  # waits for the end
            assert text(result) == "done 1"
            assert result["_meta"][META + "related-task"] == {"taskId": made["taskId"]}
            assert (await again.ask("tasks/get", {"taskId": made["taskId"]}))["status"] == "completed"
            await anyio.sleep(101)
            assert (await again.ask("tasks/get", {"taskId": made["taskId"]}))["code"] == UNKNOWN


@in_virtual_time
async def test_the_client_is_told_of_a_change() -> None:
    async with open_gateway(FakeServer(handler=slow)) as gateway, gateway.person() as ann:
        made = (await ann.ask("tools/call", {**CALL, "task": {}}))["task"]
        await anyio.sleep(11)
        told = [each["params"] for each in ann.told if each["method"] == "notifications/tasks/status"]
        assert [(each["taskId"], each["status"]) for each in told] == [
            (made["taskId"], "working"),
            (made["taskId"], "completed"),
        ]


@in_virtual_time
async def test_a_call_that_takes_long_becomes_a_task_for_a_client_that_declares_the_extension() -> None:
    async with open_gateway(FakeServer(handler=slow), taskAfterMs=2_000) as gateway:
        async with gateway.person(modern=True) as ann:
            assert EXTENSION in (await ann.ask("server/discover"))["capabilities"]["extensions"]
            quick = await ann.ask("tools/call", {"name": "a_echo", "arguments": {"seconds": 1}})
            assert (quick["resultType"], text(quick)) == ("complete", "done None")
            began = anyio.current_time()
            made = await ann.ask("tools/call", CALL)
            assert made["resultType"] == "task"
            assert 2 <= anyio.current_time() - began < 2.1
            now = await ann.ask("tasks/get", {"taskId": made["taskId"]})
            assert (now["resultType"], now["status"]) == ("complete", "working")
            await anyio.sleep(10)
            done = await ann.ask("tasks/get", {"taskId": made["taskId"]})
            assert (done["status"], text(done["result"])) == ("completed", "done 1")
            assert ann.session is not None
            assert ann.session.in_flight == 0
        async with gateway.person(modern=True, extension=False) as bob:
            assert text(await bob.ask("tools/call", CALL)) == "done 1", "it knows no tasks"
            lacks = await bob.ask("tasks/get", {"taskId": made["taskId"]})
            assert lacks["code"] == -32021
            assert lacks["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@in_virtual_time
async def test_a_task_needs_input_and_goes_on_with_the_answer() -> None:
    async def ask(call: FakeCall) -> str:
        await anyio.sleep(5)
        answer = await call.elicit("Sure?")
        return f"{answer['action']} {(await call.elicit('Really?'))['action']}"

    async with (
        open_gateway(FakeServer(handler=ask), taskAfterMs=1_000) as gateway,
        gateway.person(modern=True) as ann,
    ):
        made = await ann.ask("tools/call", CALL)
        names = list[str]()
        for _ in range(2):
            await anyio.sleep(6)
            now = await ann.ask("tasks/get", {"taskId": made["taskId"]})
            assert now["status"] == "input_required"
            ((name, _asked),) = now["inputRequests"].items()
            names.append(name)
            odd = {"taskId": made["taskId"], "inputResponses": {"other": {"action": "decline"}}}
            await ann.ask("tasks/update", odd)
            assert (await ann.ask("tasks/get", {"taskId": made["taskId"]}))["status"] == "input_required"
            given = {name: {"action": "accept"}}
            await ann.ask("tasks/update", {"taskId": made["taskId"], "inputResponses": given})
        assert len(set(names)) == 2, "a name is used once in the life of a task"
        await anyio.sleep(6)
        done = await ann.ask("tasks/get", {"taskId": made["taskId"]})
        assert text(done["result"]) == "accept accept"


@in_virtual_time
async def test_a_task_is_cancelled_with_its_call_and_a_failure_is_told() -> None:
    server = FakeServer(handler=slow)
    async with open_gateway(server) as gateway, gateway.person() as ann:
        made = (await ann.ask("tools/call", {**CALL, "task": {}}))["task"]
        await anyio.sleep(1)
        assert (await ann.ask("tasks/cancel", {"taskId": made["taskId"]}))["status"] == "cancelled"
        assert server.cancelled == 1
        assert (await ann.ask("tasks/cancel", {"taskId": made["taskId"]}))["code"] == UNKNOWN
        assert (await ann.ask("tasks/result", {"taskId": made["taskId"]}))["code"] == UNKNOWN
        server.call_error = (-32_001, "no disk")
        failed = (await ann.ask("tools/call", {**CALL, "task": {}}))["task"]
        await anyio.sleep(1)
        now = await ann.ask("tasks/get", {"taskId": failed["taskId"]})
        assert (now["status"], now["statusMessage"]) == ("failed", "[a] no disk")
        assert (await ann.ask("tasks/result", {"taskId": failed["taskId"]}))["code"] == -32_001
        assert (await ann.ask("tools/call", {**CALL, "task": 3}))["code"] == UNKNOWN


@in_virtual_time
async def test_a_model_calls_in_the_background_and_fetches_the_result() -> None:
    async with open_gateway(FakeServer(handler=slow), "proxy") as gateway:
        async with gateway.person() as ann:
            call = {"tool": "a_echo", "args": {"n": 1, "seconds": 30}, "background": True}
            begun = await ann.ask("tools/call", {"name": "mcp", "arguments": call})
            task = begun["_meta"]["greenroom/details"]["task"]
            assert f'mcp({{ output: "{task}" }})' in text(begun)
            look = {"name": "mcp", "arguments": {"output": task}}
            assert text(await ann.ask("tools/call", look)).startswith("The task still runs: half")
        async with gateway.person(modern=True) as again:
            assert text(await again.ask("tools/call", look)) == "done 1"
            by_name = {"name": "mcp", "arguments": {"task": task}}
            assert text(await again.ask("tools/call", by_name)) == "done 1"
        async with gateway.person(subject="bob") as bob:
            assert (await bob.ask("tools/call", look))["isError"]
            unknown = await bob.ask("tools/call", by_name)
            assert unknown["isError"]
            assert "no such task" in text(unknown)


@in_virtual_time
async def test_tasks_are_bounded_and_those_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "TASKS_OF_ONE", 3)
    monkeypatch.setattr(kept, "TASK_BYTES", 2_000)
    server = FakeServer(handler=lambda call: slow(call) if "n" in call else "x" * call["size"])
    async with open_gateway(server) as gateway, gateway.person() as ann, gateway.person(subject="bob") as bob:

        async def begin(who: TaskClient, **arguments: Any) -> Any:
            made = await who.ask("tools/call", {"name": "a_echo", "arguments": arguments, "task": {}})
            await anyio.sleep(0.1)
            return made.get("task", made)

        async def status(who: TaskClient, task: Any) -> str:
            found = await who.ask("tasks/get", {"taskId": task["taskId"]})
            return found.get("status", "unknown")

        of_bob = await begin(bob, size=20)
        first = await begin(ann, size=20)
        running = [await begin(ann, n=1), await begin(ann, n=2)]
        running.append(await begin(ann, n=3))
        assert await status(ann, first) == "unknown", "the oldest that has ended made room"
        refused = await begin(ann, n=4)
        assert "Too many tasks" in refused["message"]
        assert [await status(ann, each) for each in running] == ["working"] * 3
        assert await status(bob, of_bob) == "completed"
        await anyio.sleep(11)
        large = await begin(ann, size=10_000)
        assert await status(ann, large) == "failed"
        assert await status(bob, of_bob) == "completed"


@in_virtual_time
async def test_nobody_takes_all_the_room_for_tasks_and_nobody_loses_one_to_who_has_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "TASKS", 6)
    monkeypatch.setattr(kept, "TASK_BYTES", 10_000)
    server = FakeServer(handler=lambda call: "x" * call["size"])
    async with open_gateway(server) as gateway, gateway.person() as ann, gateway.person(subject="bob") as bob:

        async def begin(who: TaskClient, size: int) -> str:
            made = await who.ask("tools/call", {"name": "a_echo", "arguments": {"size": size}, "task": {}})
            await anyio.sleep(0.1)
            return made["task"]["taskId"]

        async def statuses(who: TaskClient, *tasks: str) -> list[str]:
            found = [await who.ask("tasks/get", {"taskId": task}) for task in tasks]
            return [each.get("status", "unknown") for each in found]

        of_ann = [await begin(ann, 2_000) for _ in range(4)]
        of_bob = await begin(bob, 2_000)
        assert await statuses(bob, of_bob) == ["completed"], "all the bytes were Ann's"
        assert await statuses(ann, *of_ann) == ["unknown", *["completed"] * 3]
        late = await begin(ann, 3_500)
        assert await statuses(ann, *of_ann[1:], late) == ["unknown"] * 2 + ["completed"] * 2
        too_large = await begin(bob, 9_000)
        assert await statuses(bob, of_bob, too_large) == ["completed", "failed"]
        assert await statuses(ann, of_ann[3], late) == ["completed"] * 2, "Bob would have more"
        small = [await begin(ann, 1) for _ in range(2)]
        another = await begin(bob, 1)
        assert await statuses(bob, of_bob, too_large, another) == ["completed", "failed", "completed"]
        assert await statuses(ann, of_ann[3], late, *small) == ["unknown", *["completed"] * 3]


@pytest.mark.parametrize("in_a_result", [True, False])
@in_virtual_time
async def test_what_a_waiting_task_asks_counts_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, in_a_result: bool
) -> None:
    monkeypatch.setattr(kept, "TASK_BYTES", 10_000)
    monkeypatch.setattr(kept, "ASKED_BYTES_OF_ONE", 7_000)

    async def ask(call: FakeCall) -> Any:
        await anyio.sleep(5)
        request: dict[str, Any] = {"method": "elicitation/create"}
        request["params"] = {**FORM, "message": "x" * call["size"]}
        if not in_a_result:
            return (await call.ask(request["method"], request["params"]))["action"]
        is_answered = bytes(server.calls[-1].get("inputResponses") or b"null") != b"null"
        more = {"resultType": "input_required", "inputRequests": {"q": request}, "requestState": "s"}
        return "done" if is_answered else more

    server = FakeServer(handler=ask)
    if in_a_result:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        server.methods["server/discover"] = lambda _params: found
    async with (
        open_gateway(server, taskAfterMs=1_000) as gateway,
        gateway.person(modern=True) as ann,
        gateway.person(modern=True, subject="bob") as bob,
    ):

        async def begin(who: TaskClient, size: int) -> Any:
            made = await who.ask("tools/call", {"name": "a_echo", "arguments": {"size": size}})
            await anyio.sleep(6)
            return await who.ask("tasks/get", {"taskId": made["taskId"]})

        first = await begin(ann, 5_000)
        assert first["status"] == "input_required"
        refused = await begin(ann, 3_000)
        assert "no room left to keep what the task asks" in refused["error"]["message"]
        of_bob = await begin(bob, 3_000)
        assert of_bob["status"] == "input_required", "Ann has not all the room"
        for who, task in ((ann, first), (bob, of_bob)):
            (name,) = task["inputRequests"]
            given = {"taskId": task["taskId"], "inputResponses": {name: YES}}
            await who.ask("tasks/update", given)
        await anyio.sleep(10)
        assert (await ann.ask("tasks/get", {"taskId": first["taskId"]}))["status"] == "completed"
        again = await begin(ann, 6_500)
        assert again["status"] == "input_required", "what was answered counts no more"
        await ann.ask("tasks/cancel", {"taskId": again["taskId"]})
        assert (await begin(ann, 6_500))["status"] == "input_required", "nor what was cancelled"


@in_virtual_time
async def test_the_task_of_a_server_is_passed_under_an_id_of_ours() -> None:
    server = TaskServer(modern=True)
    async with open_gateway(server.fake) as gateway:
        async with gateway.person(modern=True) as ann:
            await ann.ask("tools/call", {"name": "a_quick"})  # its server is known from now on
            assert EXTENSION in (await ann.ask("server/discover"))["capabilities"]["extensions"]

            async def begin() -> str:
                made = await ann.ask("tools/call", {"name": "a_slow"})
                assert made["resultType"] == "task"
                return made["taskId"]

            task, other, gone = await begin(), await begin(), await begin()
            assert not {task, other, gone} & server.tasks.keys()
            server.say("half")
            await anyio.sleep(2)
            now = await ann.ask("tasks/get", {"taskId": task})
            assert (now["status"], now["statusMessage"]) == ("working", "half")
            server.finish({"content": [{"type": "text", "text": "done"}]})
            await ann.ask("tasks/cancel", {"taskId": other})
            await anyio.sleep(2)
            assert text((await ann.ask("tasks/get", {"taskId": task}))["result"]) == "done"
            assert server.asked("tasks/cancel") == [{"taskId": "t2"}]
            server.fake.crash()
            await anyio.sleep(1)
            lost = (await ann.ask("tasks/get", {"taskId": gone}))["result"]
            assert lost["isError"]
            assert lost["_meta"]["greenroom/error"] == {
                "error": "call_failed",
                "server": "a",
                "reach": "sent",
            }
            assert not [each for each in ann.told if each["method"] == "notifications/progress"]
        async with gateway.person(modern=True, extension=False) as bob:
            server.interval = 100
            with anyio.move_on_after(5) as scope:
                await bob.ask("tools/call", {"name": "a_slow"})
            assert scope.cancelled_caught, "it is awaited: this client knows no tasks"


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_a_client_listens_for_changes_of_its_tasks(expose: str) -> None:
    async def ask(call: FakeCall) -> str:
        await anyio.sleep(5)
        return (await call.elicit("Sure?"))["action"]

    ack, news = "notifications/subscriptions/acknowledged", "notifications/tasks"
    name = "a_echo" if expose == "direct" else "mcp"
    arguments = {} if expose == "direct" else {"tool": "a_echo", "args": {}}
    async with (
        open_gateway(FakeServer(handler=ask), expose, taskAfterMs=1_000) as gateway,
        gateway.person(modern=True) as ann,
        gateway.person(subject="bob", modern=True) as bob,
    ):

        async def begin(who: TaskClient) -> str:
            return (await who.ask("tools/call", {"name": name, "arguments": arguments}))["taskId"]

        task, of_bob = await begin(ann), await begin(bob)
        wanted = {"taskIds": [task, of_bob, task, "nobody's", 7], "toolsListChanged": True}
        stream = ann.begin("subscriptions/listen", {"notifications": wanted})
        await anyio.sleep(1)
        assert ann.said_on(stream) == [
            (ack, {"notifications": {"toolsListChanged": True, "taskIds": [task]}})
        ]
        await anyio.sleep(5)
        method, asks = ann.said_on(stream)[1]
        assert (method, asks["taskId"], asks["status"]) == (news, task, "input_required")
        late = ann.begin("subscriptions/listen", {"notifications": {"taskIds": [task]}})
        await anyio.sleep(1)
        assert ann.said_on(late)[1:] == [(news, asks)], "it had changed before"
        (question,) = asks["inputRequests"]
        given = {"taskId": task, "inputResponses": {question: {"action": "accept"}}}
        await ann.ask("tasks/update", given)
        await anyio.sleep(1)
        told = [params for _, params in ann.said_on(stream)[2:]]
        assert [params["status"] for params in told] == ["working", "completed"]
        full = await ann.ask("tasks/get", {"taskId": task})
        assert told[-1] == {key: value for key, value in full.items() if key not in ("resultType", "_meta")}
        assert text(told[-1]["result"]) == "accept"
        assert not [each for each in bob.told if each["method"] == news], "it does not listen"
        done = ann.begin("subscriptions/listen", {"notifications": {"taskIds": [task]}})
        await anyio.sleep(1)
        assert ann.said_on(done)[1:] == [(news, told[-1])]


@in_virtual_time
async def test_a_stream_that_has_ended_is_told_of_no_task_and_without_the_extension_there_is_none() -> None:
    async with open_gateway(FakeServer(handler=slow), taskAfterMs=1_000) as gateway:
        async with gateway.person(modern=True) as ann, gateway.person(modern=True) as other:
            task = (await ann.ask("tools/call", CALL))["taskId"]
            wanted = {"notifications": {"taskIds": [task]}}
            ended, open_one = (
                ann.begin("subscriptions/listen", wanted),
                other.begin("subscriptions/listen", wanted),
            )
            await anyio.sleep(1)
            assert ann.session is not None
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": ended}}
            ann.session.receive(json.dumps({"jsonrpc": "2.0", **cancelled}).encode())
            await anyio.sleep(10)
            assert len(ann.said_on(ended)) == 1
            assert [params["status"] for _, params in other.said_on(open_one)[1:]] == ["completed"]
        async with gateway.person(modern=True, extension=False) as plain:
            lacks = await plain.ask("subscriptions/listen", wanted)
            assert lacks["code"] == -32021
            assert lacks["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


LIST = "tasks/list"


async def asks(call: FakeCall) -> str:
    call.progress(1, message="half")
    mark = {RELATED: {"taskId": "the server's"}, "x": 1}
    said = await call.ask("elicitation/create", {**FORM, "_meta": mark})
    assert said.get("_meta") == {RELATED: {"taskId": "the server's"}}
    return said["action"]


RELATED = META + "related-task"


@pytest.mark.parametrize("expose", ["direct", "proxy"])
@in_virtual_time
async def test_what_belongs_to_a_task_names_it_and_a_task_that_asks_needs_input(expose: str) -> None:
    server = FakeServer(handler=asks)
    async with open_gateway(server, expose) as gateway, gateway.person() as ann:
        name, arguments = ("a_echo", {}) if expose == "direct" else ("mcp", {"tool": "a_echo", "args": {}})
        params = {"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}}
        task = (await ann.ask("tools/call", {**params, "task": {}}))["task"]["taskId"]
        asked = await ann.hears("elicitation/create")
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}, "x": 1, "greenroom/server": "a"}
        assert (await ann.ask("tasks/get", {"taskId": task}))["status"] == "input_required"
        progress = (await ann.hears("notifications/progress"))["params"]
        assert (progress["progressToken"], progress["_meta"]) == ("p", {RELATED: {"taskId": task}})
        ann.reply({"action": "accept", "_meta": {RELATED: {"taskId": task}}}, asked)
        result = await ann.ask("tasks/result", {"taskId": task})
        assert (text(result), result["_meta"][RELATED]) == ("accept", {"taskId": task})
        told = [
            each["params"]["status"] for each in ann.told if each["method"] == "notifications/tasks/status"
        ]
        assert told == ["working", "input_required", "working", "completed"]
        call = ann.begin("tools/call", params)
        again = await ann.hears("elicitation/create", 2)
        assert RELATED not in again["params"]["_meta"], "it is no task"
        ann.reply({"action": "decline"}, again)
        assert text(await ann.answer(call)) == "decline"


@in_virtual_time
async def test_a_client_lists_its_tasks_in_pages_and_nobody_elses() -> None:
    server = TaskServer(modern=False)
    async with (
        open_gateway(server.fake) as gateway,
        gateway.person() as ann,
        gateway.person(subject="bob") as bob,
    ):
        assert ann.introduced["capabilities"]["tasks"]["list"] == {}

        async def begin(who: TaskClient, tool: str = "a_slow") -> str:
            return (await who.ask("tools/call", {"name": tool, "task": {}}))["task"]["taskId"]

        assert await ann.ask(LIST) == {"tasks": []}
        mine = [await begin(ann), *[await begin(ann, "a_quick") for _ in range(60)]]
        of_bob = await begin(bob)
        mine.append(await begin(ann))
        assert not server.tasks.keys() & {*mine, of_bob}
        found, cursor = list[Any](), None
        while True:
            page = await ann.ask(LIST, {} if cursor is None else {"cursor": cursor})
            found += page["tasks"]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
            assert len(page["tasks"]) == 50
        assert sorted(each["taskId"] for each in found) == sorted(mine)
        for each in found:
            assert each == await ann.ask("tasks/get", {"taskId": each["taskId"]})
        assert [each["taskId"] for each in (await bob.ask(LIST))["tasks"]] == [of_bob]
        for odd in ("x", 7, f"{'9' * 10}", f"{found[0]['createdAt']}/../"):
            assert (await ann.ask(LIST, {"cursor": odd}))["code"] == UNKNOWN
        async with gateway.person(modern=True) as new:
            assert (await new.ask(LIST))["code"] == -32601
        async with gateway.person(subject=None, door="http") as anybody:
            assert "list" not in anybody.introduced["capabilities"]["tasks"]
            assert (await anybody.ask(LIST))["code"] == -32601
            task = await begin(anybody)
            async with gateway.person(subject=None, door="http") as somebody:
                assert (await somebody.ask("tasks/get", {"taskId": task}))["status"] == "working"
        async with gateway.person(subject=None, door="stdio") as owner:
            assert (await owner.ask("tasks/get", {"taskId": task}))["code"] == UNKNOWN


@in_virtual_time
async def test_a_tool_that_failed_is_a_failed_task_only_in_the_older_version() -> None:
    server = FakeServer(handler=lambda _call: {"content": [], "isError": True})
    async with open_gateway(server) as gateway, gateway.person() as ann, gateway.person(modern=True) as new:
        task = (await ann.ask("tools/call", {**CALL, "task": {}}))["task"]["taskId"]
        assert (await ann.ask("tasks/result", {"taskId": task}))["isError"] is True
        assert (await ann.ask("tasks/get", {"taskId": task}))["status"] == "failed"
        seen = await new.ask("tasks/get", {"taskId": task})
        assert (seen["status"], seen["result"]["isError"]) == ("completed", True)


@in_virtual_time
async def test_a_draining_gateway_says_when_to_come_back_and_goes_on_about_tasks() -> None:
    async with (
        open_gateway(FakeServer(handler=slow), taskAfterMs=1_000, drainTimeoutMs=20_000) as gateway,
        gateway.person() as ann,
        gateway.person(modern=True) as new,
    ):
        task = (await ann.ask("tools/call", {**CALL, "task": {}}))["task"]["taskId"]
        other = (await new.ask("tools/call", CALL))["taskId"]
        stream = new.begin("subscriptions/listen", {"notifications": {"taskIds": [other]}})
        await anyio.sleep(1)
        gateway.clients.refuse_new()
        told = (await ann.hears("notifications/tasks/status", 2))["params"]
        text_of = "The gateway ends in {} s at the latest, and its tasks with it: await the result now."
        assert told["statusMessage"] == f"{text_of.format(20)} Before that: half"
        heard = new.said_on(stream)[-1][1]
        assert (heard["statusMessage"], heard["pollIntervalMs"]) == (text_of.format(20), 250)
        await anyio.sleep(2)
        seen = await ann.ask("tasks/get", {"taskId": task})
        assert (seen["status"], seen["pollInterval"]) == ("working", 250)
        assert seen["statusMessage"].startswith(text_of.format(18))
        assert "is shutting down" in (await ann.ask("tools/call", {**CALL, "task": {}}))["message"]
        assert text(await ann.ask("tasks/result", {"taskId": task})) == "done 1"
        done = await new.ask("tasks/get", {"taskId": other})
        assert (done["status"], done["pollIntervalMs"]) == ("completed", 1_000)


@in_virtual_time
async def test_nothing_is_left_of_a_call_that_did_not_become_a_task() -> None:
    async with open_gateway(FakeServer(handler=slow), taskAfterMs=3_600_000) as gateway:
        inside = gateway.inside
        async with gateway.person(modern=True) as ann:
            await ann.ask("tools/call", CALL)
            await anyio.sleep(1)
            before = inside.timer_count
            calls = [ann.begin("tools/call", CALL) for _ in range(20)]
            given_up = ann.begin("tools/call", CALL)
            await anyio.sleep(1)
            assert inside.timer_count == before + 21
            assert not [task for task in anyio.get_running_tasks() if "TaskHandler" in str(task.name)]
            assert ann.session is not None
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": given_up}}
            ann.session.receive(json.dumps({"jsonrpc": "2.0", **cancelled}).encode())
            for call in calls:
                await ann.answer(call)
            assert inside.timer_count == before


TWO = {
    "one": {"method": "elicitation/create", "params": FORM},
    "two": {"method": "elicitation/create", "params": FORM},
}
YES = {"action": "accept"}


async def needs_input(who: TaskClient, task: str, count: int) -> list[str]:
    """The names of what is asked, once there are so many."""
    with anyio.fail_after(1_000):
        while True:
            seen = await who.ask("tasks/get", {"taskId": task})
            if len(asked := seen.get("inputRequests", {})) == count and seen["status"] == "input_required":
                return list(asked)
            await anyio.sleep(0.1)


@pytest.mark.parametrize("makes_tasks", [True, False], ids=["of the server", "ours"])
@in_virtual_time
async def test_a_task_that_asks_several_things_goes_on_when_all_are_answered(makes_tasks: bool) -> None:
    server = TaskServer(modern=True)
    given = list[Any]()

    async def plain(call: FakeCall) -> Any:
        await anyio.sleep(5)
        given.append(json.loads(bytes(server.fake.calls[-1].get("inputResponses") or b"null")))
        more = {"resultType": "input_required", "inputRequests": TWO, "requestState": "s"}
        return "done" if given[-1] else more

    if not makes_tasks:
        server.fake.handler = plain
    async with open_gateway(server.fake, taskAfterMs=1_000) as gateway, gateway.person(modern=True) as ann:
        await ann.ask("tools/call", {"name": "a_quick"})
        task = (await ann.ask("tools/call", {"name": "a_slow"}))["taskId"]
        if makes_tasks:
            server.ask(TWO)
        one, two = await needs_input(ann, task, 2)
        for odd in ({one: 7} if makes_tasks else {}, {"other": YES}):
            await ann.ask("tasks/update", {"taskId": task, "inputResponses": odd})
        await ann.ask("tasks/update", {"taskId": task, "inputResponses": {one: YES}})
        assert await needs_input(ann, task, 1) == [two]
        await ann.ask("tasks/update", {"taskId": task, "inputResponses": {one: YES}})
        assert (await ann.ask("tasks/get", {"taskId": task}))["status"] == "input_required"
        await ann.ask("tasks/update", {"taskId": task, "inputResponses": {two: YES}})
        await anyio.sleep(6)
        if makes_tasks:
            update = {"taskId": "t1", "inputResponses": {"one": YES, "two": YES}}
            assert server.asked("tasks/update") == [update]
            server.finish({"content": [{"type": "text", "text": "done"}]})
            await anyio.sleep(2)
        else:
            assert given[-1] == {"one": YES, "two": YES}
        assert text((await ann.ask("tasks/get", {"taskId": task}))["result"]) == "done"


@in_virtual_time
async def test_a_question_of_a_task_is_withdrawn_with_its_call() -> None:
    server = FakeServer(handler=asks_twice)
    async with open_gateway(server, taskAfterMs=1_000) as gateway, gateway.person(modern=True) as ann:
        task = (await ann.ask("tools/call", CALL))["taskId"]
        (name,) = await needs_input(ann, task, 1)
        server.crash()
        await anyio.sleep(1)
        seen = await ann.ask("tasks/get", {"taskId": task})
        assert (seen["status"], "inputRequests" in seen) == ("completed", False)
        assert seen["result"]["_meta"]["greenroom/error"]["reach"] == "sent"
        assert (await ann.ask("tasks/update", {"taskId": task, "inputResponses": {name: YES}})).keys() == {
            "resultType",
            "_meta",
        }
        other = (await ann.ask("tools/call", CALL))["taskId"]
        await needs_input(ann, other, 1)
        await ann.ask("tasks/cancel", {"taskId": other})
        assert "inputRequests" not in await ann.ask("tasks/get", {"taskId": other})


async def asks_twice(call: FakeCall) -> str:
    await anyio.sleep(5)
    return (await call.elicit("Sure?"))["action"]


@pytest.mark.parametrize("modern", [True, False])
@in_virtual_time
async def test_a_question_in_the_background_reaches_only_a_client_that_can_be_asked(modern: bool) -> None:
    async with (
        open_gateway(FakeServer(handler=asks_twice), "proxy") as gateway,
        gateway.person(modern=modern) as ann,
    ):
        call = {"tool": "a_echo", "args": {}, "background": True}
        begun = await ann.ask("tools/call", {"name": "mcp", "arguments": call})
        task = begun["_meta"]["greenroom/details"]["task"]
        if not modern:
            asked = await ann.hears("elicitation/create")
            assert asked["params"]["_meta"][RELATED] == {"taskId": task}
            ann.reply(YES, asked)
        began = anyio.current_time()
        done = await ann.ask("tools/call", {"name": "mcp", "arguments": {"task": task}})
        assert anyio.current_time() - began < 10
        assert ("cannot be asked" in text(done)) if modern else (text(done) == "accept")
