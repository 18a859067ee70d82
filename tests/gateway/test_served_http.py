"""A room served over HTTP inside a program: in any thread, ended from outside, with the door's application wrapped."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids
from tests.support.http_door import ACCEPT, HELLO, NO_CERTIFICATES, request

from greenroom import Greenroom
from greenroom.config.model import Config
from greenroom.config.parse import parse_config
from greenroom.gateway.doors.door_connection import Door
from greenroom.gateway.doors.http_auth import BearerToken
from greenroom.gateway.doors.http_request import DoorRequest
from greenroom.gateway.serve import HttpOptions, Options, ServedRoom, served_http
from greenroom.protocol.errors import UsageError

TOKEN = "a-token-of-the-tests-0123456789"
EMBEDDED = HttpOptions("127.0.0.1", 0, tokens=(BearerToken.of("tests", TOKEN),))


def config_of(folder: Path, *servers: str, **settings: Any) -> Config:
    entries = {name: faulty(folder, name) for name in servers}
    return parse_config({"mcpServers": entries, "settings": {"toolPrefix": "none", **settings}})


def open_room(config: Config) -> Greenroom:
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False)


@asynccontextmanager
async def served(
    folder: Path, *servers: str, **more: Any
) -> AsyncGenerator[tuple[ServedRoom, httpx2.AsyncClient]]:
    headers = {**ACCEPT, "authorization": f"Bearer {TOKEN}"}
    config = config_of(folder, *servers)
    async with (
        httpx2.AsyncClient(trust_env=False, verify=NO_CERTIFICATES, headers=headers) as http,
        served_http(config, open_room, Options(expose="direct"), EMBEDDED, **more) as one,
    ):
        yield one, http
    gone_within(logged_pids(folder))


async def opened(http: httpx2.AsyncClient, url: str) -> dict[str, str]:
    hello = request("initialize", 0, {**HELLO, "capabilities": {}})
    answer = await http.post(url, json=hello)
    assert answer.status_code == 200, answer.text
    return {"mcp-session-id": answer.headers["mcp-session-id"]}


def call(name: str, **arguments: Any) -> Any:
    return request("tools/call", 1, {"name": name, "arguments": arguments})


async def begun(folder: Path) -> None:
    """Wait until the server has the call."""
    log = folder / "one.log"
    with anyio.fail_after(PATIENCE):
        while not log.exists() or "call sleep" not in log.read_text():
            await anyio.sleep(0.01)


def in_a_thread(test: Any) -> None:
    """Run it in a loop of a thread that is not the main one."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            anyio.run(test)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def test_it_serves_in_a_thread_and_a_call_in_flight_is_answered_at_its_end(tmp_path: Path) -> None:
    async def serves() -> None:
        async with served(tmp_path, "one") as (one, http), anyio.create_task_group() as tasks:
            await one.room.connect("one")
            session = await opened(http, one.url)
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await http.post(one.url, json=call("sleep", seconds=0.5), headers=session))

            tasks.start_soon(ask)
            await begun(tmp_path)
            await one.end()
            with anyio.fail_after(PATIENCE):
                while not answers:
                    await anyio.sleep(0.01)
            assert not answers[0].json()["result"].get("isError")

    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    in_a_thread(serves)
    assert handlers == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]


def test_an_end_without_patience_hurries_the_one_that_waits(tmp_path: Path) -> None:
    async def serves() -> None:
        async with served(tmp_path, "one") as (one, http), anyio.create_task_group() as tasks:
            await one.room.connect("one")
            session = await opened(http, one.url)
            tasks.start_soon(partial(http.post, one.url, json=call("sleep", seconds=60), headers=session))
            await begun(tmp_path)
            tasks.start_soon(one.end)
            await anyio.sleep(0.05)
            with anyio.fail_after(PATIENCE):
                await one.end(0)

    in_a_thread(serves)


def test_new_requests_are_refused_while_it_ends(tmp_path: Path) -> None:
    async def serves() -> None:
        async with served(tmp_path) as (one, http):
            await one.end()
            answer = await http.post(one.url, json=request("initialize", 0, {**HELLO, "capabilities": {}}))
            assert answer.status_code == 503

    in_a_thread(serves)


def test_the_door_may_be_wrapped(tmp_path: Path) -> None:
    rooms: list[Greenroom] = []

    def wrap(door: Door, room: Greenroom) -> Door:
        rooms.append(room)

        def mine(request: DoorRequest) -> None:
            if request.path == b"/mine":
                request.answer(200, b"mine")
            else:
                door(request)

        return mine

    async def serves() -> None:
        async with served(tmp_path, wrap=wrap) as (one, http):
            assert rooms == [one.room]
            assert (await http.get(one.url.replace("/mcp", "/mine"))).text == "mine"
            await opened(http, one.url)

    in_a_thread(serves)


def test_what_cannot_be_served_is_said_before_a_room_is_opened(tmp_path: Path) -> None:
    async def serves() -> None:
        everywhere = HttpOptions("0.0.0.0", 0)
        with pytest.raises(UsageError, match="no token is needed"):
            async with served_http(config_of(tmp_path), open_room, Options(), everywhere):
                raise AssertionError

    in_a_thread(serves)
