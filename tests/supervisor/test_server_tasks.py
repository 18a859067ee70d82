"""The tasks of servers, awaited: to the caller a task is one call, in both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.rooms import Outcomes, open_room, settle
from tests.support.task_servers import TaskServer, said

from greenroom import Reach, ServerRequest
from greenroom.errors import CallTimeout, Drained, InputRefused, ProtocolFault, RemoteError, ServerLost
from greenroom.protocol.jsonrpc.terms import RpcError

ERAS = pytest.mark.parametrize("modern", [False, True], ids=["2025-11-25", "2026-07-28"])
FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}


@ERAS
@in_virtual_time
async def test_a_task_is_awaited_and_its_status_is_told_as_progress(modern: bool) -> None:
    server, told = TaskServer(modern), list[Any]()
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow", {"n": 1}, on_progress=told.append)
        await anyio.sleep(0.5)
        server.say("half")
        await anyio.sleep(2)
        assert running.outcome is None
        server.finish(said("done"))
        await anyio.sleep(1)
        assert running.outcome == "done"
        assert [(each["progress"], each["message"]) for each in told] == [(1, "half")]
        assert server.times("tasks/get") == [1, 2, 3], "at its interval"
        assert ("task" in server.fake.calls[0]) is not modern
        assert (await room.call("a_quick")).text == "at once"
        assert "task" not in server.fake.calls[1]
    assert not server.asked("tasks/cancel")


@ERAS
@in_virtual_time
async def test_a_result_is_the_servers_own_without_the_id_of_its_task(modern: bool) -> None:
    server = TaskServer(modern)
    result = said("no", isError=True, structuredContent={"n": 1}, _meta={"kept": 1})
    async with open_room({"a": server.fake}) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(_later, 0.5, server.finish, result)
        found = (await room.call("a_slow")).raw
        assert {key: found[key] for key in result} == result if modern else True
        assert "related-task" not in str(found)
        assert found["structuredContent"] == {"n": 1}


@ERAS
@in_virtual_time
async def test_a_notification_shortens_the_wait_and_no_interval_is_shorter_or_longer_than_the_bounds(
    modern: bool,
) -> None:
    server = TaskServer(modern, interval=3_600_000)
    async with open_room({"a": server.fake}, requestTotalTimeoutMs=300_000) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(70)
        assert server.times("tasks/get") == [60], "not only after an hour"
        listened = [params["notifications"] for params in server.asked("subscriptions/listen")]
        assert [asked.get("taskIds") for asked in listened[-1:]] == ([["t1"]] if modern else [])
        server.finish(said("done"), tell=True)
        await anyio.sleep(0.2)
        assert running.outcome == "done"
    server = TaskServer(modern, interval=0)
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(0.55)
        for _ in range(1_000):
            server.tell()
        await settle()
        assert len(server.asked("tasks/get")) == 5
        running.cancel()


@ERAS
@in_virtual_time
async def test_the_calls_time_counts_from_the_last_answer_up_to_its_total(modern: bool) -> None:
    server = TaskServer(modern)
    times: dict[str, Any] = {"requestTimeoutMs": 3_000, "requestTotalTimeoutMs": 20_000}
    async with open_room({"a": server.fake}, **times) as room, Outcomes() as calls:
        endless = calls.start(room, "a_slow")
        await anyio.sleep(19)
        assert endless.outcome is None
        await anyio.sleep(2)
        assert isinstance(endless.error, CallTimeout)
        assert endless.error.reach is Reach.SENT
        assert server.asked("tasks/cancel") == [{"taskId": "t1"}]
        silent = calls.start(room, "a_slow")
        await anyio.sleep(1.5)
        server.fake.methods["tasks/get"] = lambda _params: anyio.sleep_forever()  # type: ignore[assignment,return-value]
        await anyio.sleep(6)
        assert isinstance(silent.error, CallTimeout)
        assert silent.at is not None
        assert endless.at is not None
        assert silent.at - endless.at < 7


@ERAS
@in_virtual_time
async def test_a_caller_that_leaves_has_the_task_cancelled(modern: bool) -> None:
    server = TaskServer(modern)
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(1.5)
        running.cancel()
        await anyio.sleep(5)
        assert running.outcome == "cancelled"
        assert server.asked("tasks/cancel") == [{"taskId": "t1"}]
        assert len(server.asked("tasks/get")) == 1, "nobody looks any more"
        assert room.status()[0].in_flight == 0


@ERAS
@in_virtual_time
async def test_a_task_that_is_made_of_a_call_that_was_given_up_is_cancelled(modern: bool) -> None:
    server = TaskServer(modern)
    server.fake.call_latency = 1
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(0.5)
        running.cancel()
        await anyio.sleep(5)
        assert server.asked("tasks/cancel") == [{"taskId": "t1"}]
        assert not server.asked("tasks/get")
        server.fake.call_latency = 0
        going_on = calls.start(room, "a_slow")
        await anyio.sleep(0.5)
        for number in range(3):  # it answers again and again, as if that were another task
            (connection,) = server.fake.connections
            again = {"taskId": f"x{number}", "status": "working"}
            said_again = {"resultType": "task", **again} if modern else {"task": again}
            connection.hooks.on_late_answer(json.dumps(said_again).encode())
        await anyio.sleep(5)
        assert len(server.asked("tasks/cancel")) == 1, "no more often than calls were given up"
        server.finish(said("done"), task="t2")
        await anyio.sleep(2)
        assert going_on.outcome == "done"


@ERAS
@in_virtual_time
async def test_the_server_counts_as_in_use_while_its_task_runs_and_is_drained_with_it(modern: bool) -> None:
    server = TaskServer(modern)
    settings: dict[str, Any] = {"idleTimeout": 0.05, "drainTimeoutMs": 2_000, "maxConnections": 1}
    async with open_room({"a": server.fake}, **settings) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(10)
        assert running.outcome is None
        assert room.status()[0].in_flight == 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.restart, "a")
            await anyio.sleep(1)
            assert running.outcome is None
            await anyio.sleep(2)
        assert isinstance(running.error, Drained)
        assert running.error.reach is Reach.SENT
        assert server.asked("tasks/cancel") == [{"taskId": "t1"}]


@ERAS
@in_virtual_time
async def test_a_server_that_is_lost_fails_the_call_and_says_that_it_may_have_run(modern: bool) -> None:
    server = TaskServer(modern)
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(1.5)
        server.fake.crash()
        await anyio.sleep(1)
        assert isinstance(running.error, ServerLost)
        assert running.error.reach is Reach.SENT
        assert not server.asked("tasks/cancel")


@ERAS
@in_virtual_time
async def test_a_harmless_call_is_made_again_on_the_next_incarnation(modern: bool) -> None:
    server = TaskServer(modern)
    server.fake.tools[0]["annotations"] = {"readOnlyHint": True}
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(1.5)
        server.fake.crash()
        await anyio.sleep(1.5)
        assert len(server.fake.calls) == 2
        server.finish(said("again"), task="t2")
        await anyio.sleep(2)
        assert running.outcome == "again"


@ERAS
@in_virtual_time
async def test_a_task_that_fails_or_is_lost_fails_the_call_with_the_servers_words(modern: bool) -> None:
    server = TaskServer(modern)

    async def outcome(act: Any) -> Any:
        async with Outcomes() as calls:
            running = calls.start(room, "a_slow")
            await anyio.sleep(0.5)
            act(f"t{len(server.tasks)}")
        return running.outcome

    async with open_room({"a": server.fake}) as room:
        failed = await outcome(lambda task: server.fail(-32603, "no disk", task=task))
        assert isinstance(failed, RemoteError)
        assert (failed.rpc_code, failed.rpc_message) == (
            -32603,
            "no disk",
        )
        cancelled = await outcome(lambda task: server.say("out of time", task=task, status="cancelled"))
        assert isinstance(cancelled, RemoteError)
        assert "cancelled the task of this call: out of time" in str(cancelled)
        lost = await outcome(lambda task: server.tasks.pop(task))
        assert isinstance(lost, RemoteError)
        assert "the task of this call was lost: Task not found" in str(lost)
        odd = await outcome(lambda task: server.tasks[task].update(status="resting"))
        assert isinstance(odd, ProtocolFault)
        assert "in no known status (resting)" in str(odd)
        other = await outcome(lambda task: server.tasks[task].update(taskId="another"))
        assert isinstance(other, ProtocolFault)
        assert "about another task" in str(other)
        assert room.status()[0].in_flight == 0


@ERAS
@in_virtual_time
async def test_a_look_that_fails_is_repeated_a_few_times(modern: bool) -> None:
    server = TaskServer(modern)
    async with open_room({"a": server.fake}) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(0.5)
        get, misses = server.fake.methods["tasks/get"], list[int]()

        def busy(params: Mapping[str, Any]) -> Any:
            misses.append(1)
            return RpcError(-32000, "busy") if len(misses) < 4 else get(params)

        server.fake.methods["tasks/get"] = busy
        server.finish(said("done"))
        await anyio.sleep(5)
        assert running.outcome == "done"


@in_virtual_time
async def test_what_a_task_asks_is_answered_once_and_a_refusal_ends_the_call() -> None:
    asked: list[Any] = []

    async def elicit(request: ServerRequest) -> Mapping[str, Any]:
        asked.append((request.params["message"], request.call is not None))
        await anyio.sleep(100)
        return {"action": "accept", "content": {"n": 1}}

    server = TaskServer(modern=True)
    request = {"method": "elicitation/create", "params": FORM}
    settings: dict[str, Any] = {
        "callbacks": {"on_elicitation": elicit},
        "entries": {"a": {"era": "stateless"}},
    }
    async with open_room({"a": server.fake}, **settings) as room, Outcomes() as calls:
        running = calls.start(room, "a_slow")
        await anyio.sleep(0.5)
        server.ask({"q": request})
        await anyio.sleep(102)
        assert server.asked("tasks/update") == [
            {"taskId": "t1", "inputResponses": {"q": {"action": "accept", "content": {"n": 1}}}}
        ]
        server.ask({"q": request})  # it still stands there: answered already
        await anyio.sleep(5)
        assert asked == [("Sure?", True)]
        server.finish(said("done"))
        await anyio.sleep(2)
        assert running.outcome == "done"
        refused = calls.start(room, "a_slow")
        await anyio.sleep(0.5)
        server.ask({"q": {"method": "sampling/createMessage", "params": {}}}, task="t2")
        await anyio.sleep(2)
        assert isinstance(refused.error, InputRefused)
        assert server.asked("tasks/cancel") == [{"taskId": "t2"}]


@in_virtual_time
async def test_an_older_task_asks_while_its_result_is_awaited() -> None:
    asked: list[Any] = []

    async def elicit(request: ServerRequest) -> Mapping[str, Any]:
        asked.append(request.call is not None and request.call.tool)
        await anyio.sleep(100)
        return {"action": "accept", "content": {"n": 1}}

    server = TaskServer(modern=False)
    async with (
        open_room({"a": server.fake}, callbacks={"on_elicitation": elicit}) as room,
        Outcomes() as calls,
    ):
        running = calls.start(room, "a_slow")
        await anyio.sleep(0.1)
        other = calls.start(room, "a_slow")
        await anyio.sleep(0.4)
        server.say("asks", status="input_required")
        await anyio.sleep(1)
        assert server.asked("tasks/result") == [{"taskId": "t1"}]
        connection = server.fake.connections[0]
        related = {"io.modelcontextprotocol/related-task": {"taskId": "t1"}}
        connection.hooks.on_request("r", "elicitation/create", {**FORM, "_meta": related})
        await anyio.sleep(101)
        assert asked == ["a_slow"]
        server.finish(said("done"))
        server.finish(said("too"), task="t2")
        await anyio.sleep(2)
        assert (running.outcome, other.outcome) == ("done", "too")


@ERAS
@in_virtual_time
async def test_a_server_that_does_not_declare_tasks_is_called_plainly(modern: bool) -> None:
    server = TaskServer(modern)
    server.fake.capabilities.clear()
    server.fake.methods.pop("server/discover", None)
    async with open_room({"a": server.fake}) as room:
        await room.call("a_quick")
        assert "task" not in server.fake.calls[0]


@in_virtual_time
async def test_a_task_without_an_id_is_no_answer() -> None:
    server = TaskServer(modern=False)
    server.fake.handler = lambda _call: {"task": {"status": "working"}}
    async with open_room({"a": server.fake}) as room:
        with pytest.raises(ProtocolFault, match="a task without an id"):
            await room.call("a_slow")
        assert room.status()[0].in_flight == 0


async def _later(seconds: float, act: Any, *args: Any) -> None:
    await anyio.sleep(seconds)
    act(*args)
