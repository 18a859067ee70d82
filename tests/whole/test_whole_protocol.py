"""The whole protocol through a room, in both eras, each test on one of our loops: nothing dropped, nothing re-shaped.

The far end is a real process that has everything (`testing/servers/whole.py`); what it says raw is the measure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.loops import on_one_loop
from tests.support.stdio import until
from tests.support.whole import LISTS, raw_server, whole

from greenroom import Greenroom, RpcRefusal, ServerRequest, UsageError
from greenroom.errors import AmbiguousTool, InputRefused, RemoteError, UnknownPrompt, UnknownResource
from greenroom.events import Kind, Note, NoteCode
from greenroom.protocol.errors import ProtocolFault
from greenroom.protocol.lifecycle import State

ERAS = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
SAMPLE = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say it"}}],
    "maxTokens": 7,
    "x-odd": [1],
}


def entry(era: str, name: str = "whole") -> dict[str, Any]:
    return whole(name, *(["--modern"] if era == "2026-07-28" else []))


@asynccontextmanager
async def room_of(era: str, **options: Any) -> AsyncGenerator[Greenroom]:
    config = {"mcpServers": {"whole": entry(era)}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, **options) as room:
        yield room
    assert room.drain_report is not None
    assert room.drain_report.adds_up


async def call(room: Greenroom, tool: str, **arguments: Any) -> Any:
    return await room.call(f"whole_{tool}", arguments)


@ERAS
@on_one_loop
@in_real_time
async def test_lists_and_answers_are_the_servers_own_field_by_field(era: str) -> None:
    with raw_server(entry(era), modern=era == "2026-07-28") as raw:
        raw.initialize()
        lists = {kind: raw.list_all(kind) for kind in LISTS}
        read = raw.result("resources/read", {"uri": "whole://two"})
        prompt = raw.result("prompts/get", {"name": "greet", "arguments": {"day": "monday"}})
        argument = {"name": "day", "value": "t"}
        ref = {"type": "ref/prompt", "name": "greet"}
        completion = raw.result("completion/complete", {"ref": ref, "argument": argument})
        odd = raw.call("odd")["result"]
    async with room_of(era) as room:
        await room.connect("whole")
        known = room.entry("whole")
        assert known is not None
        found = (known.tools, known.resources, known.templates, known.prompts)
        assert [list(each or ()) for each in found] == list(lists.values())
        assert [place.uri for place in room.resources()] == [
            "shared://same",
            "whole://one",
            "whole://two",
        ]
        assert [place.uri for place in room.templates("whole")] == [
            "shared://{+rest}",
            "whole://day/{day}",
        ]
        assert [target.name for target in room.prompts()] == ["whole_greet", "whole_plain"]

        assert (await room.read_resource("whole://two")).raw == read
        assert (await room.get_prompt("whole_greet", {"day": "monday"})).raw == prompt
        ours = {"type": "ref/prompt", "name": "whole_greet"}
        completed = await room.complete(ours, argument, context={"arguments": {}})
        assert completed.raw == completion
        assert completed.values == ["tuesday", "thursday"]
        assert (await call(room, "odd")).raw == odd


@on_one_loop
@in_real_time
async def test_a_resource_no_list_names_is_read_where_a_template_says() -> None:
    async with room_of("2025-11-25") as room:
        read = await room.read_resource("whole://day/friday", "whole")  # nothing is known yet
        assert read.text == "whole says whole://day/friday"
        assert (await room.read_resource("whole://day/friday")).raw == read.raw
        template = {"type": "ref/resource", "uri": "whole://day/{day}"}
        completed = await room.complete(template, {"name": "day", "value": "s"})
        assert completed.raw["x-ref"] == template
        assert completed.total == 2


@on_one_loop
@in_real_time
async def test_a_prompt_nobody_knows_yet_connects_the_server_its_prefix_names() -> None:
    async with room_of("2025-11-25") as room:
        prompt = await room.get_prompt("whole_greet", {"day": "monday"})
        assert prompt.messages


@on_one_loop
@in_real_time
async def test_names_that_lead_nowhere_say_what_there_is() -> None:
    servers = {name: entry("2025-11-25", name) for name in ("one", "two")}
    async with Greenroom.open({"mcpServers": servers}, cache_path=":memory:") as room:
        await room.catalogued()
        with pytest.raises(UnknownPrompt, match="There are: one_greet"):
            await room.get_prompt("zebra")
        with pytest.raises(UnknownResource, match="say which server has it: one, two"):
            await room.read_resource("zebra://1")
        with pytest.raises(
            AmbiguousTool, match="greenroom://one/shared://same, greenroom://two/shared://same"
        ):
            await room.read_resource("shared://same")
        assert (await room.read_resource("greenroom://two/shared://same")).text == "two says shared://same"
        assert (await room.read_resource("shared://same", "one")).text == "one says shared://same"
        with pytest.raises(RemoteError) as error:
            await room.read_resource("zebra://1", "one")
        assert (error.value.rpc_code, error.value.data) == (-32002, {"uri": "zebra://1"})
        with pytest.raises(UsageError, match="ref/prompt"):
            await room.complete({"type": "ref/zebra"}, {"name": "a", "value": "b"})


@ERAS
@pytest.mark.parametrize(
    ("method", "option", "declared"),
    [
        ("sampling/createMessage", "on_sampling", {"sampling": {}}),
        ("elicitation/create", "on_elicitation", {"elicitation": {"form": {}, "url": {}}}),
    ],
)
@on_one_loop
@in_real_time
async def test_requests_of_a_server_look_the_same_in_both_eras(
    era: str,
    method: str,
    option: str,
    declared: Any,
) -> None:
    seen: list[ServerRequest] = []

    async def answer(request: ServerRequest) -> Mapping[str, Any]:
        await anyio.lowlevel.checkpoint()
        seen.append(request)
        return {"role": "assistant", "x-more": [None], "content": {"type": "text", "text": "said"}}

    async with room_of(era, **{option: answer}) as room:
        result = await call(room, "ask", method=method, params=SAMPLE)

        assert result.structured["result"]["x-more"] == [None]
        assert [(each.server, each.method, each.params) for each in seen] == [("whole", method, SAMPLE)]
        actor = room._live.servers.actor("whole")
        assert actor.declared == declared


@ERAS
@on_one_loop
@in_real_time
async def test_roots_are_paths_uris_and_objects(era: str) -> None:
    roots = ["/tmp", "https://example.invalid/x", {"uri": "file:///y", "name": "Y", "x-odd": 1}]
    async with room_of(era, roots=roots) as room:
        result = await call(room, "ask", method="roots/list")
        assert result.structured["result"] == {
            "roots": [{"uri": "file:///tmp"}, {"uri": "https://example.invalid/x"}, roots[2]]
        }


@on_one_loop
@in_real_time
async def test_what_nobody_answers_is_not_declared_and_refused() -> None:
    async with room_of("2025-11-25") as room:
        result = await call(room, "ask", method="sampling/createMessage")
        assert result.structured["error"]["code"] == -32601
        assert room._live.servers.actor("whole").declared == {}
    async with room_of("2026-07-28") as room:
        with pytest.raises(InputRefused, match="sampling/createMessage"):
            await call(room, "ask", method="sampling/createMessage")


@on_one_loop
@in_real_time
async def test_a_callback_may_refuse_in_its_own_words_and_its_bugs_stay_here() -> None:
    async def refuse(_request: ServerRequest) -> Mapping[str, Any]:
        raise RpcRefusal(-1, "not today", {"try": "tomorrow"})

    async def fail(_request: ServerRequest) -> Mapping[str, Any]:
        raise ZeroDivisionError("a secret")

    async def odd(_request: ServerRequest) -> Mapping[str, Any]:
        return {"no": object()}

    async with (
        room_of("2025-11-25", on_sampling=refuse, on_elicitation=fail) as room,
        room.events([Kind.NOTE]) as events,
    ):
        said = await call(room, "ask", method="sampling/createMessage")
        assert said.structured["error"] == {
            "code": -1,
            "message": "not today",
            "data": {"try": "tomorrow"},
        }
        said = await call(room, "ask", method="elicitation/create")
        assert said.structured["error"]["code"] == -32603
        assert "secret" not in said.text
        note = await anext(events)
        assert isinstance(note, Note)
        assert note.code is NoteCode.CALLBACK, "it is the program's error, not ours"
        assert note.server == "whole", "and the server that it heard is named"
        assert "ZeroDivisionError" in note.detail
    async with room_of("2025-11-25", on_sampling=odd) as room:
        said = await call(room, "ask", method="sampling/createMessage")
        assert said.structured["error"]["code"] == -32603
    async with room_of("2026-07-28", on_sampling=refuse) as room:
        with pytest.raises(InputRefused, match=r"not today \(-1\)"):
            await call(room, "ask", method="sampling/createMessage")


class Slow:
    """A callback that never answers, and knows how it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0

    async def __call__(self, _request: ServerRequest) -> Mapping[str, Any]:
        self.begun += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled += 1
        return {}


@on_one_loop
@in_real_time
async def test_t21_the_server_may_cancel_its_request() -> None:
    slow = Slow()
    async with room_of("2025-11-25", on_sampling=slow) as room:
        await call(room, "ask_and_leave")
        assert await until(lambda: slow.cancelled == slow.begun and not _requests(room))
        assert (await call(room, "echo", text="still here")).structured == {"text": "still here"}


@ERAS
@on_one_loop
@in_real_time
async def test_requests_end_with_what_asked_them(era: str) -> None:
    """With the incarnation (older), with the call (newer)."""
    slow = Slow()
    async with room_of(era, on_sampling=slow) as room, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: call(room, "ask", method="sampling/createMessage"))
        assert await until(lambda: slow.begun == 1)
        if era == "2026-07-28":
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                assert await until(lambda: slow.cancelled == 1)
        else:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await room.restart("whole")
                assert slow.cancelled == 1


@on_one_loop
@in_real_time
async def test_a_call_waits_for_people_longer_than_for_servers() -> None:
    """The call's own time is 3 s, which is plenty for the server; the person takes a bit more."""

    async def think(_request: ServerRequest) -> Mapping[str, Any]:
        await anyio.sleep(3.2)
        return {"action": "accept", "content": {}}

    async def ask(era: str) -> None:
        async with room_of(era, on_elicitation=think) as room:
            await room.connect("whole")
            arguments = {"method": "elicitation/create"}
            result = await room.call("whole_ask", arguments, timeout=3.0)
            assert result.structured["result"]["action"] == "accept"

    async with anyio.create_task_group() as both:
        for era in ("2025-11-25", "2026-07-28"):
            both.start_soon(ask, era)


@on_one_loop
@in_real_time
async def test_rounds_are_bounded() -> None:
    async with room_of("2026-07-28") as room:
        assert (await call(room, "state", rounds=3)).text == "after 3"
        with pytest.raises(ProtocolFault, match="10 times"):
            await call(room, "state", rounds=100)


@ERAS
@on_one_loop
@in_real_time
async def test_updates_of_a_resource_reach_its_watchers(era: str) -> None:
    async with room_of(era) as room:
        async with (
            room.subscribe("whole://one", "whole") as updates,
            room.subscribe("whole://one") as twice,
        ):
            await _touch_until_heard(room, updates)
            assert (await anext(twice))["uri"] == "whole://one"
            update = await anext(updates)
            assert update["uri"] == "whole://one"
            assert update["x-vendor"]["kept"][2] == "é"
            heard = (await call(room, "heard")).structured["methods"]
            assert heard.count("resources/subscribe") == (1 if era == "2025-11-25" else 0)

            # A new incarnation is asked again, and what may have been missed is told.
            await room.restart("whole")
            assert (await anext(twice))["uri"] == "whole://one"
            while True:
                heard = (await call(room, "heard")).structured["methods"]
                if "resources/subscribe" in heard or "subscriptions/listen" in heard:
                    break
        assert room._live.servers.actor("whole").subscriptions.uris == {}
        await call(room, "echo")
        heard = (await call(room, "heard")).structured["methods"]
        assert ("resources/unsubscribe" in heard) is (era == "2025-11-25")


@on_one_loop
@in_real_time
async def test_a_watched_server_does_not_idle_away_and_comes_back() -> None:
    config = {"mcpServers": {"whole": {**entry("2025-11-25"), "idleTimeout": 0.001}}}
    async with (
        Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room,
        room.subscribe("whole://one", "whole") as updates,
    ):
        (status,) = room.status()
        await anyio.sleep(0.2)
        assert room.status()[0].state is State.CONNECTED
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        assert (await anext(updates))["uri"] == "whole://one"
        assert room.status()[0].incarnation == 2


@ERAS
@on_one_loop
@in_real_time
async def test_logs_come_from_the_level_asked_for(era: str) -> None:
    logs: list[Mapping[str, Any]] = []
    async with room_of(era, on_log=lambda _address, params: logs.append(params)) as room:
        room.set_log_level("warning")
        for level in ("info", "error"):
            await call(room, "log", level=level, text=level)
        assert [log["data"]["text"] for log in logs] == ["error"]
        assert logs[0]["x-vendor"]["kept"] == [1, None, "é"]
        room.set_log_level("debug", "whole")
        await call(room, "log", level="info", text="now")
        assert logs[-1]["data"]["text"] == "now"
        with pytest.raises(UsageError, match="Use one of: debug"):
            room.set_log_level("loud")


@ERAS
@on_one_loop
@in_real_time
async def test_progress_comes_as_the_server_sent_it(era: str) -> None:
    told: list[Mapping[str, Any]] = []
    async with room_of(era) as room:
        await room.call("whole_steps", {"count": 3}, on_progress=told.append)
        assert [each["progress"] for each in told] == [1, 2, 3]
        assert all(each["x-vendor"] and each["total"] == 3 for each in told)


@ERAS
@on_one_loop
@in_real_time
async def test_t24_a_change_is_learned_once_in_both_eras(era: str) -> None:
    async with room_of(era) as room:
        await room.connect("whole")
        before = len(room.tools())
        async with room.events([Kind.CATALOGUE]) as events:
            await call(room, "same")
            await call(room, "grow")
            await anext(events)
            await room.settled()
            assert len(room.tools()) == before + 1
            await call(room, "same")
            await anyio.sleep(0.4)  # longer than a burst of announcements is waited for
            events.close()
            assert [event async for event in events] == []


@on_one_loop
@in_real_time
async def test_everything_said_unasked_is_heard() -> None:
    heard: list[str] = []

    def hear(_address: Any, method: str, _params: Any) -> None:
        heard.append(method)
        raise ZeroDivisionError("a callback of somebody's")

    async with room_of("2025-11-25", on_notification=hear) as room:
        room.set_log_level("debug")
        await call(room, "log", level="error", text="x")
        await call(room, "same")
        assert heard[0] == "notifications/message"
        assert heard.count("notifications/tools/list_changed") == 20


@on_one_loop
@in_real_time
async def test_roots_that_changed_are_announced_to_those_who_know_of_roots() -> None:
    async with room_of("2025-11-25", roots=["/tmp"]) as room:
        await room.connect("whole")
        room.roots_changed()
        heard = (await call(room, "heard")).structured["methods"]
        assert "notifications/roots/list_changed" in heard


def _requests(room: Greenroom) -> int:
    incarnation = room._live.servers.actor("whole").incarnation
    return len(incarnation.requests) if incarnation is not None else 0


async def _touch_until_heard(room: Greenroom, updates: Any) -> None:
    """A newer server is asked to tell without an answer that could be waited for."""
    while not updates._found:
        await call(room, "touch", uri="whole://one")
