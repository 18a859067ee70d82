"""The page at the HTTP door: who gets it, what it is told, and what it may do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from tests.gateway.test_conversations import asking_room, echo
from tests.support import run
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, http_door
from tests.support.rooms import teach

from greenroom import Greenroom
from greenroom.gateway.doors.http_app import Operations
from greenroom.gateway.doors.http_auth import Access, Token
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.doors.http_streams import Feed
from greenroom.gateway.page.room_page import RoomPage
from greenroom.gateway.page.routes import Routes
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import tool

OWNER, READER, BOUND = ("owner-token-owner-token", "reader-token-reader", "bound-token-bound-token")
TOKENS = (
    Token.of("olga", OWNER, is_owner=True),
    Token.of("rita", READER),
    Token.of("bert", BOUND, "small"),
)
PROFILES = {"profiles": {"small": {"servers": ["one"]}}}


def with_page(body: Callable[[Opened, Greenroom], Awaitable[None]], entries: Any = None, **door: Any) -> None:
    """Run `body(opened, room)` with a door that has the page, over two servers; the tools of one are known."""

    async def main() -> None:
        servers = {"one": AskingServer({"echo": echo}), "two": AskingServer({"echo": echo})}
        access = Access("127.0.0.1", TOKENS)
        with anyio.fail_after(PATIENCE):
            async with asking_room(servers, entries) as room:
                port_of(room).keep_recent()
                await teach(room, "one", [tool("echo", "Says it again.")])
                operations = Operations(room, "9.9", Feed(15.0))
                page = RoomPage(room, version="9.9", door="http", clients=operations.clients)
                routes = Routes(page, Rules())
                pages: Any = {
                    "pages": {**operations.pages(), **routes.pages()},
                    "open_pages": {**operations.open_pages(), **routes.open_pages()},
                    "posts": routes.posts(),
                }
                async with http_door(room, access=access, **pages, **door) as opened:
                    operations.door = opened.door
                    await body(opened, room)
                    page.close()

    run("asyncio", main)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def watching(opened: Opened, token: str = READER) -> AsyncGenerator[Seen]:
    """What a page is told."""
    async with opened.http.stream("GET", "/page/watch", headers=bearer(token), timeout=PATIENCE) as answer:
        assert answer.status_code == 200
        yield Seen(answer)


class Seen:
    """A page: it keeps what it is told, as the script in the browser does."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()
        self.rows: dict[str, dict[str, Any]] = {}
        self.sections: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.names: list[str] = []

    async def more(self) -> str:
        """Take one message. Returns its name."""
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                self._take(name, json.loads(line.removeprefix("data: ")))
                self.names.append(name)
                return name
        raise EOFError

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self.more()

    def _take(self, name: str, said: Any) -> None:
        if name == "events":
            self.events += said
        elif name in ("snapshot", "change"):
            servers = said.pop("servers", {})
            if name == "snapshot":
                servers = {"changed": servers, "gone": []}
            self.rows.update((row["name"], row) for row in servers.get("changed", ()))
            for gone in servers.get("gone", ()):
                del self.rows[gone]
            self.sections |= said


@body_of(with_page)
async def test_the_document_is_for_everybody_and_holds_nothing(opened: Opened, room: Greenroom, /) -> None:
    answer = await opened.http.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert "one_echo" not in answer.text
    assert "set-cookie" not in answer.headers


@body_of(with_page)
async def test_what_a_page_is_told_is_what_the_status_says(opened: Opened, room: Greenroom, /) -> None:
    async with watching(opened) as seen:
        assert await seen.more() == "snapshot"
        assert set(seen.rows) == {"one", "two"}
        await room.connect("two")
        await room.call("one_echo", {})
        await room.drain("two")
        await seen.until(lambda: seen.rows["two"]["status"] == "failed" or bool(seen.rows["two"]["down"]))
        await seen.until(lambda: seen.rows["one"]["state"] == "connected")
        status = (await opened.http.get("/status", headers=bearer(READER))).json()
        for row in status["servers"]:
            assert {**seen.rows[row["name"]], "addresses": 0} == {**row, "addresses": 0}
        await seen.until(lambda: any(each.get("event") == "CallEnded" for each in seen.events))


@body_of(with_page)
async def test_who_may_look_and_who_may_act(opened: Opened, room: Greenroom, /) -> None:
    async def hello(headers: dict[str, str]) -> Any:
        answer = await opened.http.get("/page/hello", headers=headers)
        return answer.json()["may"] if answer.status_code == 200 else answer.status_code

    assert await hello(bearer(OWNER)) == "act"
    assert await hello(bearer(READER)) == "read"
    assert await hello(bearer(BOUND)) == 404
    assert await hello(bearer("x" * 20)) == 401
    assert await hello({}) == 401
    assert await hello({"cookie": f"token={OWNER}; authorization=Bearer {OWNER}"}) == 401
