"""The reference server from npm, whole: through a room and through the direct door, as it speaks for itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.loops import on_one_loop
from tests.support.patience import PATIENCE
from tests.support.real_servers import real_server
from tests.support.whole import LISTS, RawClient, direct_door, raw_server

from greenroom import Greenroom, ServerRequest

NAME = {"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}
CAPABILITIES: dict[str, Any] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "sampled words"}}
COMPLETE = {
    "ref": {"type": "ref/prompt", "name": "completable-prompt"},
    "argument": {"name": "department", "value": "E"},
}


class Measure:
    """What the server says when nothing is between."""

    def __init__(self, raw: RawClient) -> None:
        answer_all(raw)
        raw.initialize(**CAPABILITIES)
        self.sampled = raw.call("trigger-sampling-request", {"prompt": "hi", "maxTokens": 5})["result"]
        self.lists = {kind: raw.list_all(kind) for kind in LISTS}
        self.uri = self.lists["resources"][0]["uri"]
        self.read = raw.result("resources/read", {"uri": self.uri})
        self.prompt = raw.result("prompts/get", {"name": "args-prompt", "arguments": {"city": "Oslo"}})
        self.completion = raw.result("completion/complete", COMPLETE)


def answer_all(client: RawClient) -> None:
    client.answers["sampling/createMessage"] = lambda _params: {"result": SAMPLED}
    client.answers["roots/list"] = lambda _params: {"result": {"roots": []}}


@pytest.fixture
def entry(tmp_path: Path) -> Mapping[str, Any]:
    return real_server("everything", tmp_path).entry


@on_one_loop
@in_real_time
async def test_all_of_it_through_a_room(entry: Mapping[str, Any]) -> None:
    with raw_server(entry) as raw:
        measure = Measure(raw)

    async def sample(_request: ServerRequest) -> Mapping[str, Any]:
        return SAMPLED

    async def elicit(_request: ServerRequest) -> Mapping[str, Any]:
        return {"action": "decline"}

    config = {"mcpServers": {"e": entry}}
    async with Greenroom.open(
        config,
        cache_path=":memory:",
        bootstrap=False,
        on_sampling=sample,
        on_elicitation=elicit,
        roots=[],
    ) as room:
        sampled = await room.call("e_trigger-sampling-request", {"prompt": "hi", "maxTokens": 5})
        assert sampled.raw == measure.sampled
        assert "sampled words" in sampled.text
        while len(room.tools("e")) - len(room.resources("e")) < len(measure.lists["tools"]):
            await room.settled()  # it adds tools once it has heard who its client is
            await room.call("e_echo", {"message": "turn"})
        known = room.entry("e")
        assert known is not None
        found = (known.tools, known.resources, known.templates, known.prompts)
        for kind, items in zip(LISTS, found, strict=True):
            assert sorted(items or (), key=lambda one, kind=kind: one[NAME[kind]]) == sorted(
                measure.lists[kind], key=lambda one, kind=kind: one[NAME[kind]]
            )
        assert (await room.read_resource(measure.uri)).raw == measure.read
        assert (await room.get_prompt("e_args-prompt", {"city": "Oslo"})).raw == measure.prompt
        ref = {"type": "ref/prompt", "name": "e_completable-prompt"}
        assert (await room.complete(ref, COMPLETE["argument"])).raw == measure.completion


def as_task(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it is listed. A tool that its server runs only as a task can be called without one here."""
    needs_task = item.get("execution", {}).get("taskSupport") == "required"
    return {**item, "execution": {"taskSupport": "optional"}} if needs_task else dict(item)


def test_all_of_it_through_the_direct_door(entry: Mapping[str, Any], tmp_path: Path) -> None:
    with raw_server(entry) as raw:
        measure = Measure(raw)
    with direct_door(tmp_path, {"e": entry}) as door:
        answer_all(door)
        door.initialize(**CAPABILITIES)
        sampled = door.call("e_trigger-sampling-request", {"prompt": "hi", "maxTokens": 5})["result"]
        assert sampled == measure.sampled
        wanted = len(measure.lists["tools"])
        door.wait(lambda: len(door.list_all("tools")) == wanted, "the tools for this client")
        for kind in LISTS:
            prefix = "e_" if NAME[kind] == "name" else ""
            theirs = [{**as_task(one), NAME[kind]: prefix + one[NAME[kind]]} for one in measure.lists[kind]]
            assert door.list_all(kind) == sorted(theirs, key=lambda one, kind=kind: one[NAME[kind]])
        assert door.result("resources/read", {"uri": measure.uri}) == measure.read
        asked = {"name": "e_args-prompt", "arguments": {"city": "Oslo"}}
        assert door.result("prompts/get", asked) == measure.prompt
        ref = {"type": "ref/prompt", "name": "e_completable-prompt"}
        assert door.result("completion/complete", {**COMPLETE, "ref": ref}) == measure.completion


@on_one_loop
@in_real_time
async def test_t54_the_first_call_waits_for_what_the_server_asked_on_initialize(tmp_path: Path) -> None:
    """The server is given one folder, and asks its client for others; until it has them, it denies them."""
    given, root = tmp_path / "given", tmp_path / "root"
    given.mkdir()
    root.mkdir()
    (root / "cue.txt").write_text("exit ghost")
    config = {"mcpServers": {"files": real_server("filesystem", given).entry}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, roots=[root]) as room:
        for _ in range(3):
            result = await room.call("files_read_text_file", {"path": str(root / "cue.txt")})
            assert (result.is_error, result.text) == (False, "exit ghost")
            await room.restart("files")


@on_one_loop
@in_real_time
async def test_t54_a_client_that_takes_its_time_keeps_nobody_waiting_for_ever(tmp_path: Path) -> None:
    async def think(_request: ServerRequest) -> list[str]:
        await anyio.sleep_forever()
        return []

    server = real_server("filesystem", tmp_path)
    config = {"mcpServers": {"files": server.entry}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False, roots=think) as room:
        with anyio.fail_after(PATIENCE):
            assert "enter ghost" in (await room.call("files_read_text_file", server.arguments)).text
