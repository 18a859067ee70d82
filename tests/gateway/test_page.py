"""The page at the HTTP door: who gets it, what it is told, what it may do, and what no answer of it holds."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from tests.gateway.test_conversations import asking_room, echo
from tests.gateway.test_http_serve import served
from tests.support import run as run_on
from tests.support.asking import AskingServer
from tests.support.bodies import body_of
from tests.support.gateway import PATIENCE, faulty
from tests.support.http_door import Opened, http_door
from tests.support.rooms import teach

from greenroom import Greenroom
from greenroom.cli.main import run
from greenroom.config.files import open_config
from greenroom.gateway.doors.http_app import Operations
from greenroom.gateway.doors.http_auth import Access, BearerToken, tokens_in
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.doors.http_streams import Feed
from greenroom.gateway.page.page_routes import Routes
from greenroom.gateway.page.room_page import RoomPage
from greenroom.protocol.errors import GreenroomError, UsageError
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import tool

OWNER, READER, BOUND = ("owner-token-owner-token", "reader-token-reader", "bound-token-bound-token")
TOKENS = (
    BearerToken.of("olga", OWNER, is_owner=True),
    BearerToken.of("rita", READER),
    BearerToken.of("bert", BOUND, "small"),
)
_BEFORE_A_LOOK_AT_ALL = 4.0  # seconds


def with_page(
    body: Callable[[Opened, Greenroom], Awaitable[None]],
    entries: Any = None,
    opens: Callable[[], Any] | None = None,
    **door: Any,
) -> None:
    """Run `body(opened, room)` with a door that has the page, over two servers; the tools of one are known. `opens`:
    another room."""

    async def main() -> None:
        servers = {"one": AskingServer({"echo": echo}), "two": AskingServer({"echo": echo})}
        access = Access("127.0.0.1", TOKENS)
        with anyio.fail_after(PATIENCE):
            async with opens() if opens else asking_room(servers, entries) as room:
                port_of(room).services.keep_recent()
                if not opens:
                    await teach(room, "one", [tool("echo", "Says it again.")])
                async with http_door(room, access=access, **door) as opened:
                    operations = Operations(room, "9.9", Feed(15.0), opened.door)
                    page = RoomPage(room, version="9.9", door="http", clients=opened.door.sessions.view)
                    routes = Routes(page, Rules())
                    opened.door.show(operations.open_pages(), operations.pages())
                    opened.door.show(routes.open_pages(), routes.pages(), routes.posts())
                    await body(opened, room)
                    page.close()

    run_on("asyncio", main)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def watching(opened: Opened, token: str = READER) -> AsyncGenerator[Seen]:
    """What a page is told."""
    async with opened.http.stream("GET", "/page/watch", headers=bearer(token), timeout=PATIENCE) as answer:
        assert answer.status_code == 200, await answer.aread()
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


async def do(opened: Opened, token: str = OWNER, /, **act: Any) -> httpx2.Response:
    return await opened.http.post("/page/do", json=act, headers=bearer(token), timeout=PATIENCE)


@body_of(with_page)
async def test_only_an_owner_acts_and_only_with_json_and_the_header(
    opened: Opened, room: Greenroom, /
) -> None:
    act = {"action": "drain", "server": "one"}
    assert (await do(opened, READER, **act)).status_code == 403
    assert (await do(opened, BOUND, **act)).status_code == 404
    assert (await do(opened, "x" * 20, **act)).status_code == 401
    body = json.dumps(act)
    plain = {**bearer(OWNER), "content-type": "text/plain"}
    assert (await opened.http.post("/page/do", content=body, headers=plain)).status_code == 415
    cookie = {"cookie": f"token={OWNER}", "content-type": "application/json"}
    assert (await opened.http.post("/page/do", content=body, headers=cookie)).status_code == 401
    foreign = {**bearer(OWNER), "content-type": "application/json", "origin": "https://evil.example"}
    assert (await opened.http.post("/page/do", content=body, headers=foreign)).status_code == 403
    rebound = {**bearer(OWNER), "content-type": "application/json", "host": "evil.example"}
    assert (await opened.http.post("/page/do", content=body, headers=rebound)).status_code == 421
    asked = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    assert "access-control-allow-origin" not in (await opened.http.options("/page/do", headers=asked)).headers
    assert (await opened.http.get("/page/do", headers=bearer(OWNER))).status_code == 405
    for site in ("cross-site", "same-site"):
        of_another = {**bearer(READER), "sec-fetch-site": site}
        assert (await opened.http.get("/page/watch", headers=of_another)).status_code == 403
    assert [row.down for row in room.status()] == [None, None]
    assert (await do(opened, **act)).json()["done"] is True
    assert [row.down is not None for row in room.status()] == [True, False]
    async with watching(opened) as seen:  # no event of its own tells that an idle server was drained
        await seen.more()
        assert (await do(opened, action="drain", server="two")).status_code == 200
        with anyio.fail_after(_BEFORE_A_LOOK_AT_ALL):
            await seen.until(lambda: bool(seen.rows["two"]["down"]))


@body_of(with_page)
async def test_what_an_owner_does_is_told_in_the_events_and_shown_at_once(
    opened: Opened, room: Greenroom, /
) -> None:
    async with watching(opened) as seen:
        for action in ("connect", "restart", "drain"):
            answer = await do(opened, action=action, server="two")
            assert answer.status_code == 200, answer.text
            assert "two" in answer.json()["said"]
        answer = await do(opened, action="call", tool="one_echo", arguments={"text": "SECRET-ARGUMENT"})
        assert answer.json()["result"]["content"]
        told = {("two", f"the page: olga: {act}") for act in ("connect", "restart", "drain")}
        told |= {(None, "the page: olga: call one_echo")}
        await seen.until(lambda: {(each.get("server"), each.get("detail")) for each in seen.events} >= told)
        assert "SECRET-ARGUMENT" not in json.dumps([*seen.events, seen.sections])


@body_of(with_page)
async def test_what_cannot_be_done_says_why(opened: Opened, room: Greenroom, /) -> None:
    for act, status, said in (
        ({"action": "fly"}, 400, "There is no action"),
        ({"action": "drain", "server": "none"}, 404, "none"),
        ({"action": "disable", "server": "one"}, 400, "edits no file"),
        ({"action": "answer", "number": 1, "verdict": "perhaps"}, 400, "verdict"),
        ({"action": "accept", "server": "one", "name": "echo", "digest": "0"}, 400, "not what was shown"),
        ({"action": "trust", "project": "x", "digest": "0"}, 400, "not what was shown"),
    ):
        answer = await do(opened, **act)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    answer = await opened.http.post(
        "/page/do", content="[", headers={**bearer(OWNER), "content-type": "application/json"}
    )
    assert answer.status_code == 400


@body_of(with_page, {"one": {"approve": True}})
async def test_a_held_call_waits_while_an_owner_looks_and_is_allowed_there(
    opened: Opened, room: Greenroom, /
) -> None:
    results: list[Any] = []

    async def call() -> None:
        try:
            results.append(await room.call("one_echo", {"text": "ARGUMENT"}))
        except GreenroomError as error:
            results.append(error.code)

    async with watching(opened, READER) as reader:
        await reader.more()
        await call()
        assert results == ["approval_required"], "a page that may only look is nobody to be asked"
    async with watching(opened, OWNER) as seen, anyio.create_task_group() as tasks:
        await seen.more()
        tasks.start_soon(call)
        await seen.until(lambda: bool(seen.sections["approvals"]))
        number = seen.sections["approvals"][0]["number"]
        assert "ARGUMENT" in seen.sections["approvals"][0]["question"]
        async with watching(opened, READER) as reader:
            await reader.more()
            assert reader.sections["approvals"][0]["number"] == number
            assert "ARGUMENT" not in json.dumps(reader.sections), "it may be another client's"
        assert (await do(opened, READER, action="answer", number=number, verdict="once")).status_code == 403
        answer = await do(opened, action="answer", number=number, verdict="once")
        assert answer.json()["said"].startswith("Allowed, this once")
        await seen.until(lambda: not seen.sections["approvals"])
    assert results[1].text is not None


@body_of(with_page)
async def test_a_closer_look(opened: Opened, room: Greenroom, /) -> None:
    async def look(path: str) -> Any:
        return (await opened.http.get(f"/page/{path}", headers=bearer(READER))).json()

    server = await look("server?name=one")
    assert server["explain"]["reasons"]
    assert (server["stderr"], server["entry"]) == (None, None), "an owner's alone"
    owned = (await opened.http.get("/page/server?name=one", headers=bearer(OWNER))).json()
    assert owned["entry"] is not None
    assert owned["explain"] == server["explain"]
    listed = await look("tools")
    assert [(each["name"], each["server"], each["own"]) for each in listed["tools"]] == [
        ("one_echo", "one", "echo")
    ]
    assert listed["total"] == 1
    assert (await look("tools?query=says"))["tools"] == listed["tools"]
    assert (await look("tools?query=says&server=two"))["tools"] == []
    assert (await look("tools?offset=1"))["tools"] == []
    said = await look("tool?name=one_echo")
    assert said["tool"]["inputSchema"]
    assert said["needsApproval"] is False
    await room.call("one_echo", {})
    names = [each["name"] for lane in (await look("timeline?seconds=60"))["lanes"] for each in lane["spans"]]
    assert "one_echo" in names
    for wrong, status in (
        ("server?name=none", 404),
        ("tool?name=none", 400),
        ("tools?limit=x", 400),
        ("nothing", 404),
    ):
        answer = await opened.http.get(f"/page/{wrong}", headers=bearer(READER))
        assert answer.status_code == status, wrong
        assert answer.json()["error"]["message"]


@body_of(with_page)
async def test_a_browser_that_does_not_read_holds_up_neither_calls_nor_other_pages(
    opened: Opened, room: Greenroom, /
) -> None:
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        line.connect(("127.0.0.1", opened.port))
        line.setblocking(False)
        head = f"GET /page/watch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {READER}\r\n\r\n"
        async with await anyio.abc.SocketStream.from_socket(line) as deaf:
            await deaf.send(head.encode())
            async with watching(opened) as seen:
                await seen.more()
                for _ in range(5):  # what it is told of them, `test_page_watch` tries
                    for _ in range(500):
                        port_of(room).services.note("x" * 4_000)
                    told = seen.events[-1]["seq"] if seen.events else 0
                    await seen.until(
                        lambda told=told: bool(seen.events) and seen.events[-1]["seq"] >= told + 500
                    )
                    with anyio.fail_after(PATIENCE / 4):
                        await room.call("one_echo", {})
                assert "lagged" not in seen.names


def test_an_act_is_in_the_audit_file_and_arguments_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.jsonl"
    owners = {"ownerTokens": {"olga": OWNER}}
    with served(tmp_path, {"one": faulty(tmp_path, "one")}, "--audit", str(file), http=owners) as one:
        for act in (
            {"action": "connect", "server": "one"},
            {"action": "call", "tool": "one_echo", "arguments": {"text": "ARGUMENT"}},
            {"action": "drain", "server": "none"},
        ):
            url = f"{one.url.removesuffix('/mcp')}/page/do"
            one.http.post(url, json=act, headers=bearer(OWNER), timeout=PATIENCE)
        one.process.terminate()
        one.process.wait(PATIENCE)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    acts = [(each["subject"], each["act"], each["outcome"]) for each in lines if each["kind"] == "act"]
    assert acts == [
        ("olga", "connect", "done"),
        ("olga", "call", "done"),
        ("olga", "drain", "server_not_found"),
    ]
    calls = [(each["door"], each["subject"], each["tool"]) for each in lines if each["kind"] == "call"]
    assert calls == [("page", "olga", "one_echo")]
    assert "ARGUMENT" not in file.read_text()
    assert run(["audit", "verify", str(file)]) == 0
    assert run(["audit", "show", str(file)]) == 0
    assert "drain none" in capsys.readouterr().out


PLANTED = "sk-planted-4711-4711-4711"
SPILLS = f"""
import os, sys
print("the key is", os.environ["KEY"], "or", {PLANTED!r}.upper().lower(), file=sys.stderr, flush=True)
sys.exit("no database for " + os.environ["KEY"])
"""


def test_no_answer_holds_a_secret(tmp_path: Path) -> None:
    servers = {
        "spills": {
            "command": sys.executable,
            "args": ["-S", "-c", SPILLS, "--token", PLANTED],
            "env": {"KEY": PLANTED},
        },
        "far": {
            "url": f"https://user:{PLANTED}@127.0.0.1:9/mcp?key={PLANTED}",
            "headers": {"X-Key": PLANTED},
        },
    }
    owners = {"olga": OWNER}
    with served(tmp_path, servers, http={"ownerTokens": owners}) as one:
        root, headers = one.url.removesuffix("/mcp"), bearer(OWNER)

        def look(path: str) -> str:
            answer = one.http.get(f"{root}/page/{path}", headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.text

        for server in servers:
            answer = one.http.post(
                f"{root}/page/do",
                json={"action": "connect", "server": server},
                headers=headers,
                timeout=PATIENCE,
            )
            assert "error" in answer.json()
            assert PLANTED not in answer.text
        found = [
            look(path)
            for path in ("hello", "tools", "timeline", *(f"server?name={each}" for each in servers))
        ]
        assert any("no database" in text for text in found), "its stderr is shown"
        with one.http.stream("GET", f"{root}/page/watch", headers=headers) as stream:
            for line in stream.iter_lines():
                found.append(line)
                if "spills" in line and line.startswith("data: ["):
                    break
        text = "\n".join(found)
        assert "no database" in text
        assert PLANTED not in text
        assert OWNER not in text
        assert one.http.get(f"{root}/status", headers=headers).status_code == 200, (
            "an owner's token is a token"
        )
        assert one.http.get(f"{root}/page/hello").json()["may"] == "read", "any other token may look"


def test_a_token_of_an_owner_is_his_alone(tmp_path: Path) -> None:
    for http, said in (
        ({"ownerTokens": {"olga": OWNER}, "tokens": {"olga": READER}}, "same name"),
        ({"ownerTokens": {"olga": OWNER}, "tokens": {"rita": OWNER}}, "another's"),
        ({"ownerTokens": {"olga": OWNER}, "tokenProfiles": {"olga": "p"}}, "sees everything"),
        ({"ownerTokens": {"olga": "short"}}, "cannot be used"),
        ({"ownerTokens": {"olga": "${NOT_SET}"}}, "NOT_SET"),
    ):
        settings = open_config({"mcpServers": {}, "settings": {"http": http}}).settings
        with pytest.raises(UsageError, match=said):
            tokens_in(settings, {}, None, None)


async def said_hello(opened: Opened, token: str) -> int:
    """The status of the answer to a client that opens a session."""
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        },
    }
    headers = bearer(token) | {"accept": "application/json, text/event-stream"}
    return (await opened.http.post("/mcp", json=hello, headers=headers)).status_code


def test_a_reader_that_takes_all_it_can_keeps_no_owner_from_deciding() -> None:
    """32 pages of one token once shut the owner out, and calls were refused because nobody could be asked (issue 38).
    So may none of its event streams, sessions or requests in work."""

    async def body(opened: Opened, room: Greenroom) -> None:
        async def decide(seen: Seen) -> None:
            await seen.until(lambda: bool(seen.sections["approvals"]))
            number = seen.sections["approvals"][0]["number"]
            await do(opened, action="answer", number=number, verdict="once")

        async with AsyncExitStack() as stack:
            statuses = list[int]()
            for path in ["/page/watch"] * 33 + ["/events"] * 60:
                stream = opened.http.stream("GET", path, headers=bearer(READER), timeout=PATIENCE)
                statuses.append((await stack.enter_async_context(stream)).status_code)
            assert statuses.count(503) > 10, "it may have half of all requests in work"
            async with watching(opened, OWNER) as seen, anyio.create_task_group() as tasks:
                assert await seen.more() == "snapshot"
                tasks.start_soon(decide, seen)
                assert (await room.call("one_echo", {})).text is not None
        assert 503 in [await said_hello(opened, READER) for _ in range(20)]
        assert [await said_hello(opened, OWNER) for _ in range(4)] == [200] * 4

    rules = Rules(max_sessions=16, connections=128)
    with_page(body, {"one": {"approve": True}}, rules=rules)


FAILING = {"one": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('(of ann) a) key')"]}}


@body_of(with_page, opens=lambda: Greenroom.open({"mcpServers": FAILING}))
async def test_who_may_only_look_is_not_shown_what_a_server_wrote_to_its_stderr(
    opened: Opened, room: Greenroom, /
) -> None:
    """Also where it stands in the text of a failure (issue 38)."""

    async def told(token: str) -> str:
        texts = [
            (await opened.http.get(path, headers=bearer(token))).text
            for path in ("/status", "/page/server?name=one", "/page/timeline?seconds=60")
        ]
        async with watching(opened, token) as seen:
            await seen.until(lambda: bool(seen.events))
            texts.append(json.dumps([seen.rows, seen.sections, seen.events]))
        return "\n".join(texts)

    with pytest.raises(GreenroomError, match=r"a\) key"):
        await room.connect("one")
    of_reader, of_owner = await told(READER), await told(OWNER)
    assert "exited with code 1" in of_reader
    assert "of ann" not in of_reader
    assert "key" not in of_reader.replace('"key', "")
    assert of_owner.count("a) key") >= 3
