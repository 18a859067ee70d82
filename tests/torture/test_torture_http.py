"""Rows of the torture table over HTTP: clients at the HTTP door, and behind it a server that misbehaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
from benchmarks._processes import burnt
from tests.gateway.test_http_door import ACCEPT_BOTH, echo, text_of, with_door
from tests.gateway.test_http_serve import call, served
from tests.support import run
from tests.support.asking import AskingServer
from tests.support.gateway import PATIENCE, faulty
from tests.support.http_door import Opened, Person, http_door
from tests.support.http_rooms import room_at
from tests.support.raw_http import raw_http

CHANGED = "notifications/tools/list_changed"


def test_t07_a_server_that_forgot_its_session_is_initialized_once_for_callers_of_many_sessions() -> None:
    async def body() -> None:
        with raw_http() as server:
            async with (
                room_at(server.url, isolation="persistent") as room,
                http_door(room) as opened,
            ):
                people = [await opened.session() for _ in range(5)]
                server.forget_sessions()
                answers: list[str] = []

                async def ask(person: Person, key: int) -> None:
                    answers.append((await person.call("ok", key))["result"]["content"][0]["text"])

                async with anyio.create_task_group() as tasks:
                    for number in range(20):
                        tasks.start_soon(ask, people[number % 5], number + 1)
                assert answers == ["ok"] * 20
                assert server.methods().count("initialize") == 2

    _run(body)


def test_t19_a_huge_answer_takes_linear_time_and_one_over_the_bound_costs_its_own_call(
    tmp_path: Path,
) -> None:
    with served(tmp_path, {"one": faulty(tmp_path, "one")}, maxLineBytes=20 << 20) as one:
        ann, ben = one.session(), one.session()
        for session in (ann, ben):
            assert _text(one.post(call("one_echo", text="hi"), **session).content) == "hi"
        took: list[float] = []
        for size in (2 << 20, 16 << 20):
            before = burnt(one.process.pid)  # what others who keep the machine busy do not add to
            answer = one.post(call("one_echo", size=size), **ann)
            took.append(burnt(one.process.pid) - before)
            assert len(_text(answer.content)) == size
        assert took[1] < 16 * took[0] + 1.0  # eight times the bytes; quadratic would be sixty-four

        over = one.post(call("one_echo", size=24 << 20), **ann)
        assert "over the bound" in over.text
        for session in (ann, ben):
            assert _text(one.post(call("one_echo", text="still here"), **session).content) == "still here"


def test_t24_a_change_is_told_once_to_each_client_that_listens_and_only_if_it_is_real() -> None:
    server = AskingServer({"echo": echo})

    async def body(opened: Opened, server: AskingServer) -> None:
        people = [await opened.session() for _ in range(3)]
        await people[0].call("own_echo")
        async with AsyncExitStack() as stack:
            streams: list[AsyncIterator[str]] = []
            for person in people:
                headers = {"accept": ACCEPT_BOTH, **person.real_headers()}
                stream = await stack.enter_async_context(opened.http.stream("GET", "/mcp", headers=headers))
                streams.append(stream.aiter_lines())
            server.tell(CHANGED)  # the list is what it was
            server.acts["new"] = echo
            for _ in range(5):
                server.tell(CHANGED)
            told: list[list[Any]] = [[await _changed(lines)] for lines in streams]
            assert [tool["name"] for tool in await _tools(people[1])] == ["own_echo", "own_new"]
            assert text_of(await people[1].call("own_new", text="there")) == "there"
            server.tell(CHANGED)  # no change
            del server.acts["new"]
            server.tell(CHANGED)
            for seen, lines in zip(told, streams, strict=True):
                seen.append(await _changed(lines))
            assert [tool["name"] for tool in await _tools(people[2])] == ["own_echo"]
            for person in people:  # ends its stream
                await opened.http.delete("/mcp", headers=person.real_headers())
            rest = [[line async for line in lines if line.startswith("data: {")] for lines in streams]
        assert told == [[CHANGED, CHANGED]] * 3
        assert rest == [[]] * 3, "no further one came"

    with_door(body, server, {"isolation": "persistent"})


def _text(answer: bytes) -> str:
    """The text of an answer, JSON or event stream."""
    line = next(line for line in answer.splitlines() if b'"result"' in line)
    return json.loads(line.removeprefix(b"data: "))["result"]["content"][0]["text"]


async def _tools(person: Person) -> list[Any]:
    return (await person.ask("tools/list"))["result"]["tools"]


async def _changed(lines: AsyncIterator[str]) -> str:
    """The next message of a stream."""
    async for line in lines:
        if line.startswith("data: ") and len(line) > 6:
            return json.loads(line[6:])["method"]
    raise AssertionError("the stream has ended")


def _run(body: Any) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            await body()

    run("asyncio", main)
