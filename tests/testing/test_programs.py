"""What programs written from outside need of a room: errors over HTTP, progress, models without a framework."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.rooms import open_room
from tests.support.whole import whole

from greenroom import ConfigError, Greenroom, GreenroomError, SearchTool, ToolResult, UnknownTool, UsageError
from greenroom.errors import ToolFailed
from greenroom.protocol import errors
from greenroom.protocol.status import ServerStatus, json_of, status_from
from greenroom.testing import HANG, FakeServer, Fault, FaultScript, tool

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "".join(
    (DOCS / f"{name}.md").read_text("utf-8") for name in ("programs", "models", "sync", "in-process")
)
CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
NOTES = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_notes"]}
PIXEL = base64.b64encode(b"a picture").decode()


def recipe(name: str) -> Any:
    """What a Python block of the pages defines under this name."""
    blocks = re.findall(r"```python\n(.*?)```", PAGES, re.S)
    [block] = [one for one in blocks if re.search(rf"def {name}\(|^{name} = ", one, re.M)]
    names: dict[str, Any] = {}
    exec(compile(block, f"docs: {name}", "exec"), names)
    return names[name]


def room_of(**servers: Mapping[str, Any]) -> Greenroom:
    config = {"mcpServers": servers, "settings": {"bootstrap": False}}
    return Greenroom.open(config, cache_path=":memory:")


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_every_error_has_the_status_of_whose_fault_it_is() -> None:
    found = {
        cls.__name__: 502 if cls is errors.RemoteError else cls._http_status
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, GreenroomError)
    }
    mine = {"GreenroomError", "ConfigError", "CallError", "RpcRefusal", "SessionNeeded", "Bug"}
    assert {name for name, status in found.items() if status == 500} == mine
    assert {status for name, status in found.items() if name.startswith("Unknown")} == {404}
    assert ConfigError(()).http_status == 500
    assert UsageError("no").http_status == 400
    assert errors.RemoteError("no", server="a", rpc_code=-32603).http_status == 502


@pytest.mark.parametrize(("code", "status"), [(-32602, 400), (-32603, 502), (5, 502)])
@in_virtual_time
async def test_a_server_that_refuses_the_arguments_leaves_it_to_the_client(code: int, status: int) -> None:
    async with open_room({"a": FakeServer(call_error=(code, "no"))}) as room:
        await room.connect("a")
        with pytest.raises(errors.RemoteError) as caught:
            await room.call("a_echo")
        assert caught.value.copy().http_status == status
        assert not [name for name in caught.value.as_dict() if "http" in name]


@in_virtual_time
async def test_a_tool_that_failed_raises_if_that_is_asked() -> None:
    said = {"content": [{"type": "text", "text": "no ink"}], "isError": True}
    server = FakeServer(handler=lambda _arguments: said)

    async with open_room({"a": server}) as room:
        result = await room.call("a_echo")
        assert (result.is_error, result.structured) == (True, None)
        with pytest.raises(ToolFailed, match="no ink") as caught:
            result.or_raise()
        error = caught.value
        assert (error.code, error.tool, error.server, error.reach) == (
            "tool_error",
            "a_echo",
            "a",
            "answered",
        )
        assert (error.http_status, error.result) == (422, said)
        server.handler = lambda _arguments: {"content": [], "structuredContent": {"it": 1}}
        assert (await room.call("a_echo")).or_raise().structured == {"it": 1}


# ---- as plain JSON ---------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_is_found_is_plain_json() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    server = FakeServer(tools=[{"name": "count", "description": "Counts", "inputSchema": schema}])

    async with open_room({"a": server}) as room:
        await room.connect("a")
        target = {
            "name": "a_count",
            "server": "a",
            "kind": "tool",
            "original": "count",
            "description": "Counts",
            "input_schema": schema,
        }
        page = room.search("count")
        assert room.describe("a_count").as_dict() == target
        assert page.matches[0].as_dict() == {**target, "score": page.matches[0].score}
        assert json.loads(json.dumps(page.as_dict())) == {
            "matches": [{**target, "score": page.matches[0].score}],
            "total": 1,
            "next_offset": None,
        }


def test_a_server_s_name_is_called_server_and_the_older_word_stays() -> None:
    said = json_of(ServerStatus("clock"))
    assert (said["server"], said["name"]) == ("clock", "clock")
    assert status_from(said).server == "clock"


@in_virtual_time
async def test_the_drain_report_can_be_read_while_the_room_is_open() -> None:
    server = FakeServer(call_latency=5.0)

    room = open_room({"a": server})
    assert room.drain_report is None
    async with room:
        await room.connect("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "a_echo")
            await anyio.sleep(1.0)
            report = room.drain_report
            assert report is not None
            assert (report.accepted, report.open, report.is_final, report.adds_up) == (1, 1, False, True)
        with pytest.raises(UnknownTool):
            await room.call("nobody_has_it")
        report = room.drain_report
        assert report is not None
        assert (report.completed, report.open, report.refused) == (1, 0, 1)
    assert room.drain_report is not None
    assert room.drain_report.is_final


# ---- progress --------------------------------------------------------------------------------------------------------


@in_real_time
async def test_progress_is_read_while_a_real_call_runs() -> None:
    async with room_of(w=whole("w")) as room:
        async with room.stream_call("w_steps", {"count": 3}) as stream:
            told = [progress async for progress in stream]
            result = await stream.result()
        assert [each["message"] for each in told] == ["step 1", "step 2", "step 3"]
        assert (result.text, await stream.result()) == ("done", result)
        assert (await recipe("with_progress")(room, "w_steps", {"count": 1})).text == "done"
        assert (await recipe("in_the_background")(room, "w_steps", {"count": 1})).text == "done"
        async with room.stream_call("w_refuse") as stream:
            assert [progress async for progress in stream] == []
            with pytest.raises(errors.RemoteError):
                await stream.result()
        with pytest.raises(UnknownTool):
            async with room.stream_call("w_nothing"):
                raise AssertionError("it is not entered")


@in_virtual_time
async def test_a_call_is_made_again_where_that_is_safe_and_can_help() -> None:
    again = recipe("call_again_once")
    slow = FakeServer(tools=[tool("echo")], script=FaultScript.of(Fault("start", "crash", start=1)))
    lost = FakeServer(tools=[tool("echo")], script=FaultScript.of(Fault("call", "crash")))

    async with open_room({"slow": slow, "lost": lost}) as room:
        assert (await again(room, "slow_echo", {"text": "hat"})).text == '{"text": "hat"}'
        with pytest.raises(errors.ServerLost):
            await again(room, "lost_echo", {"text": "hat"})
        before = anyio.current_time()
        with pytest.raises(UnknownTool):
            await again(room, "lost_nothing", {})
        assert anyio.current_time() - before < 2
    assert (len(slow.calls), len(lost.calls)) == (1, 1)
    async with open_room({"a": FakeServer(tools=[tool("echo")])}, limits={"a_*": "1/min"}) as room:
        await room.call("a_echo", {"text": "hat"})
        assert (await again(room, "a_echo", {"text": "hat"})).text, "it waited as long as the error says"


@in_virtual_time
async def test_whoever_leaves_a_stream_cancels_its_call() -> None:
    server = FakeServer(call_latency=HANG)

    async with open_room({"a": server}) as room:
        await room.connect("a")
        async with room.stream_call("a_echo") as stream:
            for connection in server.connections:
                await anyio.sleep(0.1)
                connection.progress({"progress": 1})
            assert await anext(aiter(stream)) == {"progress": 1}
        assert server.cancelled == 1
        with anyio.move_on_after(1.0):
            async with room.stream_call("a_echo") as stream:
                await stream.result()
        assert server.cancelled == 2
    assert room.drain_report is not None
    assert room.drain_report.cancelled == 2


# ---- a model without a framework -------------------------------------------------------------------------------------

PICTURE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
ODD_PICTURE = {"type": "image", "data": PIXEL, "mimeType": "image/x-odd"}


def answering(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if "picture" in arguments:
        return {"content": [{"type": "text", "text": "look"}, PICTURE, ODD_PICTURE]}
    return {"content": [{"type": "text", "text": f"got {json.dumps(arguments)}"}]}


def openai(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def as_object(value: Any) -> Any:
    """As an SDK's objects: fields are attributes."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_object(each) for key, each in value.items()})
    return value


@pytest.mark.parametrize("are_objects", [False, True])
@in_virtual_time
async def test_a_model_s_calls_are_answered_in_its_order_as_openai_takes_them(are_objects: bool) -> None:
    calls = [
        openai(1, "a_echo", '{"n": 1}'),
        openai(2, "a_nothing", "{}"),
        openai(3, "a_echo", '{"n": '),
        openai(4, "a_echo", '{"picture": true}'),
        openai(5, "a_echo", ""),
        openai(6, "a_echo", "[1]"),
    ]

    async with open_room({"a": FakeServer(handler=answering)}) as room:
        await room.connect("a")
        given = [as_object(call) for call in calls] if are_objects else calls
        said = await room.run_tool_calls(given, format="openai")
        assert [each["role"] for each in said] == ["tool"] * 6 + ["user"]
        assert [each["tool_call_id"] for each in said[:6]] == [f"call_{number}" for number in range(1, 7)]
        texts = [each["content"] for each in said[:6]]
        assert (texts[0], texts[4]) == ('got {"n": 1}', "got {}")
        assert '"a_nothing" not found' in texts[1]
        assert "not JSON" in texts[2]
        assert texts[3].startswith("look")
        assert "image/x-odd" in texts[3]
        assert "must be a JSON object" in texts[5]
        about, picture = said[6]["content"]
        assert "call_4" in about["text"]
        assert picture == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
        assert await room.run_tool_calls(None, format="openai") == []
        with pytest.raises(UsageError, match="openai, openai-responses, anthropic"):
            await room.run_tool_calls([], format="other")  # type: ignore[arg-type]


@in_virtual_time
async def test_a_model_is_not_shown_parameters_when_its_call_was_late() -> None:
    async def never(_call: object) -> str:
        await anyio.sleep_forever()
        return ""

    async with open_room({"a": FakeServer(handler=never)}, requestTimeoutMs=1_000) as room:
        await room.connect("a")
        (said,) = await room.run_tool_calls([openai(1, "a_echo", "{}")], format="openai")
        assert "did not answer" in said["content"]
        assert "Expected parameters" not in said["content"]


@in_virtual_time
async def test_the_items_of_a_response_are_answered_by_items() -> None:
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "a_echo", "arguments": '{"picture": 1}'},
        {"type": "message", "role": "assistant", "content": []},
    ]

    async with open_room({"a": FakeServer(handler=answering)}) as room:
        await room.connect("a")
        answer, images = await room.run_tool_calls(items, format="openai")
        assert (answer["type"], answer["call_id"]) == ("function_call_output", "c1")
        assert answer["output"].startswith("look")
        assert [part["type"] for part in images["content"]] == ["input_text", "input_image"]


@in_virtual_time
async def test_the_blocks_of_a_message_are_answered_in_one_as_anthropic_takes_them() -> None:
    blocks = [
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "t1", "name": "a_echo", "input": {"picture": 1}},
        {"type": "tool_use", "id": "t2", "name": "a_gone", "input": {}},
    ]

    async with open_room({"a": FakeServer(handler=answering)}) as room:
        await room.connect("a")
        (message,) = await room.run_tool_calls(blocks, format="anthropic")
        first, second = message["content"]
        assert (message["role"], first["tool_use_id"], "is_error" in first) == ("user", "t1", False)
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        assert first["content"][-1] == {"type": "image", "source": source}
        assert (second["tool_use_id"], second["is_error"]) == ("t2", True)
        assert await room.run_tool_calls(blocks[:1], format="anthropic") == []


@in_virtual_time
async def test_a_model_is_told_no_credential_and_is_told_what_a_tool_expects() -> None:
    secret = "ghp_" + "a1B2" * 9
    schema = {"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]}
    server = FakeServer(tools=[{"name": "echo", "inputSchema": schema}])

    async with open_room({"a": server}) as room:
        await room.connect("a")
        (said,) = await room.run_tool_calls([openai(1, "a_echo", json.dumps({"t": secret}))], "openai")
        assert secret not in said["content"]
        server.call_error = (-32602, "no repo")
        (said,) = await room.run_tool_calls([openai(1, "a_echo", "{}")], "openai")
        assert "no repo" in said["content"]
        assert "repo (string)" in said["content"]


@in_virtual_time
async def test_calls_of_a_model_run_at_once_and_are_cancelled_with_it() -> None:
    server = FakeServer(call_latency=3.0)

    async with open_room({"a": server}) as room:
        await room.connect("a")
        began = anyio.current_time()
        await room.run_tool_calls([openai(number, "a_echo", "{}") for number in range(5)], "openai")
        assert anyio.current_time() - began == pytest.approx(3.0)
        with anyio.move_on_after(1.0):
            await room.run_tool_calls([openai(number, "a_echo", "{}") for number in range(5)], "openai")
        assert server.cancelled == 5


@in_virtual_time
async def test_a_model_finds_and_calls_with_one_tool() -> None:
    server = FakeServer(tools=[tool("echo", "Says it back")])

    async with open_room({"a": server}) as room, room.session("ann") as ann:
        await room.connect("a")
        for search in (SearchTool(room), SearchTool(room, session=ann)):
            function = search.to_openai()["function"]
            assert (function["name"], search.to_anthropic()["input_schema"]) == (
                "mcp",
                function["parameters"],
            )
            wanted = [
                openai(1, "mcp", '{"search": "says back"}'),
                openai(2, "mcp", '{"tool": "a_echo", "args": {"n": 1}}'),
                openai(3, "mcp", '{"tool": "a_gone"}'),
            ]
            found, called, missing = await room.run_tool_calls(wanted, "openai", also=[search])
            assert "a_echo" in found["content"]
            assert called["content"] == '{"n": 1}'
            assert "not found" in missing["content"]


def test_images_stand_apart_from_the_text() -> None:
    result = ToolResult({"content": [{"type": "text", "text": "look"}, PICTURE]})
    assert (result.text, result.images) == ("look", [PICTURE])


# ---- the page --------------------------------------------------------------------------------------------------------


class Model:
    """A model's client that wants one call and is then content. OpenAI's and Anthropic's in one."""

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted
        self.asked: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.complete))
        self.messages = SimpleNamespace(create=self.answer)

    async def complete(self, **asked: Any) -> Any:
        self.asked.append(asked)
        calls, self.wanted = self.wanted, None
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(tool_calls=calls))])

    async def answer(self, **asked: Any) -> Any:
        self.asked.append(asked)
        content, self.wanted = self.wanted, [{"type": "text", "text": "done"}]
        return SimpleNamespace(content=content)


def test_every_recipe_of_the_pages_is_run_here() -> None:
    tried = re.sub(r"<!-- not run: .*?```python.*?```", "", PAGES, flags=re.S)
    defined = set(re.findall(r"^(?:async )?def (\w+)\(", tried, re.M))
    ours = set(re.findall(r'recipe\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert defined == ours | {"make_desk"}, "this one is part of `greeting`"


@in_real_time
async def test_the_recipes_of_the_pages_run_as_they_are_written_there() -> None:
    notes = {**NOTES, "isolation": "per_session", "env": {"TOKEN": "${session.TOKEN}"}}
    said: list[str] = []
    async with room_of(clock=CLOCK, notes=notes) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(recipe("watch"), room, said.append)
        await anyio.wait_all_tasks_blocked()  # it listens
        assert (await recipe("weekday")(room)).endswith("day")
        model, messages = Model([openai(1, "clock_now", "{}")]), list[Any]()
        turn = recipe("turn")
        assert await turn(room, model, messages)
        assert not await turn(room, model, messages)
        assert messages[1]["role"] == "tool"
        assert {"clock_now"} <= {each["function"]["name"] for each in model.asked[0]["tools"]}
        block = {"type": "tool_use", "id": "t", "name": "mcp", "input": {"tool": "clock_now"}}
        model, messages = Model([block]), []
        turn = recipe("turn_with_search")
        assert await turn(room, model, messages)
        assert not await turn(room, model, messages)
        assert "is_error" not in messages[1]["content"][0]
        text, is_error = await recipe("told")(room, "clock_now", {}, None)
        assert "weekday" in text
        assert not is_error
        user = SimpleNamespace(name="ann", token="hush")
        assert await recipe("note")(room, user, "buy ink")
        await room.restart("clock")
        tasks.cancel_scope.cancel()
    assert "clock: idle → connecting ()" in said


def test_a_thread_hands_its_call_to_the_loop_of_the_room() -> None:
    async def main() -> ToolResult:
        hand_over, loop = recipe("call_from_a_thread"), asyncio.get_running_loop()
        async with open_room({"a": FakeServer()}) as room:
            return await asyncio.to_thread(hand_over, room, loop, "a_echo", {"it": 1})

    assert asyncio.run(main()).text == '{"it": 1}'


def test_a_program_without_an_event_loop_calls_a_tool(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert recipe("weekday_now")().endswith("day")


@in_real_time
async def test_the_first_list_waits_for_servers_that_nobody_knows() -> None:
    async with Greenroom.open({"mcpServers": {"clock": CLOCK}}, cache_path=":memory:") as room:
        tools = await recipe("tools_for_a_model")(room)
    assert {tool["name"] for tool in tools} == {"clock_between", "clock_now"}
    assert all(tool["input_schema"]["type"] == "object" for tool in tools)


@in_real_time
async def test_a_server_in_this_process_is_called_beside_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert await recipe("greeting")({"mcpServers": {"clock": CLOCK}}, "Ada") == "Good evening, Ada."
