"""HTTP APIs as servers: what an actor sees of one, whatever the API does. Each against a real one on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.api_server import MIB, PNG, ApiServer, api_server, document, write_document
from tests.support.patience import PATIENCE
from tests.support.stdio import until

from greenroom.actors.login.login_auth import keep
from greenroom.actors.login.login_record import Login
from greenroom.openapi.inputs import STYLES_AT
from greenroom.protocol.errors import (
    ApprovalNeeded,
    CallTimeout,
    ConnectFailed,
    NeedsAuth,
    ProtocolFault,
    Reach,
    ServerDown,
    ServerLost,
    Unavailable,
)
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.supervisor.room import Greenroom


@asynccontextmanager
async def room_of(
    entry: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    cache: str | Path = ":memory:",
    bootstrap: bool = False,
) -> AsyncGenerator[Greenroom]:
    """A room whose one server is this API; its tools have their own names."""
    config = {"mcpServers": {"api": dict(entry)}, "settings": {"toolPrefix": "none", **(settings or {})}}
    async with Greenroom.open(config, cache_path=cache, bootstrap=bootstrap) as room:
        yield room


@asynccontextmanager
async def api_room(
    api: ApiServer, folder: Path, settings: Mapping[str, Any] | None = None, **entry: Any
) -> AsyncGenerator[Greenroom]:
    whole = {"openapi": write_document(folder), "baseUrl": api.url, **entry}
    async with room_of(whole, settings) as room:
        await room.connect("api")
        yield room


def status(room: Greenroom, server: str) -> ServerStatus:
    return next(each for each in room.status() if each.server == server)


# ---- its life -------------------------------------------------------------------------------------------------------


@in_real_time
async def test_its_operations_are_tools_and_nothing_is_sent_before_a_call(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            names = {tool.name for tool in room.tools()}
            assert {"get_item", "put_item", "delete_item", "slow"} <= names
            assert not api.requests
            row = status(room, "api")
            assert (row.state, row.pid) == (State.CONNECTED, None)
            entry = room.entry("api")
            assert entry is not None
            assert entry.server_info == {"name": "Stage", "version": "7"}
            assert entry.protocol_version == "2026-07-28"
            hints = room.describe("delete_item").record["annotations"]
            assert (hints["readOnlyHint"], hints["destructiveHint"]) == (False, True)
            said = (
                await room.call("get_item", {"id": "a/b ü", "q": "1&2", "X-Mark": "m", "crumb": "c"})
            ).structured
            assert said["path"] == "/v1/items/a%2Fb%20%C3%BC"
            assert said["query"] == "q=1%262"
            assert (said["headers"]["x-mark"], said["headers"]["cookie"]) == ("m", "crumb=c")
            said = (await room.call("put_item", {"id": "1", "size": 3})).structured
            assert (said["method"], json.loads(said["body"])) == ("PUT", {"size": 3})
        assert room.drain_report is not None
        assert room.drain_report.completed == 2


@in_real_time
async def test_a_file_s_tools_are_known_before_any_call(tmp_path: Path) -> None:
    with api_server() as api:
        entry = {"openapi": write_document(tmp_path), "baseUrl": api.url}
        async with room_of(entry, bootstrap=True) as room:
            assert await until(lambda: "get_item" in {tool.name for tool in room.tools()})
            assert not api.requests


@in_real_time
async def test_tools_by_hand_need_no_document(tmp_path: Path) -> None:
    tools = {
        "look": {
            "method": "get",
            "path": "/items/{what}",
            "params": {"what": {"in": "path"}, "key": {"in": "query", "default": "${API_KEY:-none}"}},
        },
        "say": {"method": "POST", "path": "/say", "params": {"words": {"in": "body", "required": True}}},
    }
    with api_server() as api:
        async with room_of({"http": tools, "baseUrl": f"{api.url}/?version=2"}) as room:
            await room.connect("api")
            said = (await room.call("look", {"what": "x"})).structured
            assert (said["path"], said["query"]) == ("/v1/items/x", "version=2&key=none")
            assert json.loads((await room.call("say", {"words": "hi"})).structured["body"]) == {"words": "hi"}


@in_real_time
async def test_a_tool_by_hand_may_write_each_style_that_a_document_may() -> None:
    styles = {place: names for place, names in STYLES_AT.items() if names}
    with api_server() as api:
        for place, names in styles.items():
            for style in names:
                params = {"of": {"in": place, "style": style, "schema": {}}}
                path = "/look/{of}" if place == "path" else "/look"
                tools = {"look": {"method": "GET", "path": path, "params": params}}
                async with room_of({"http": tools, "baseUrl": api.url}) as room:
                    await room.connect("api")
                    result = await room.call("look", {"of": {"a": "bcd"}})
                    assert "bcd" in result.text, style


@in_real_time
async def test_a_key_that_is_sent_when_nobody_gives_it_is_shown_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to a model nor in the file of the catalogue, as little as one in the query of a path."""
    monkeypatch.setenv("API_KEY", "a-secret-of-the-api")
    params = {"key": {"in": "query", "default": "${API_KEY}"}, "limit": {"in": "query", "default": 20}}
    tools = {"look": {"method": "GET", "path": "/look?token=another-secret", "params": params}}
    cache = tmp_path / "catalogue.json"
    with api_server() as api:
        async with room_of({"http": tools, "baseUrl": api.url}, cache=cache) as room:
            await room.connect("api")
            said = (await room.call("look")).structured
            assert said["query"] == "token=another-secret&key=a-secret-of-the-api&limit=20"
            record = room.describe("look").record
            assert record["inputSchema"]["properties"]["limit"]["default"] == 20
            assert "secret" not in json.dumps(record)
    assert "secret" not in cache.read_text()


@in_real_time
async def test_it_holds_no_slot_and_waits_for_none(tmp_path: Path) -> None:
    """A pool of one slot, which another server holds and does not give back: the API is called all the same."""
    with api_server() as api:
        config = {
            "mcpServers": {
                "api": {"openapi": write_document(tmp_path), "baseUrl": api.url},
                "other": {"command": "sleep", "args": ["60"]},
            },
            "settings": {"toolPrefix": "none", "maxConnections": 1, "acquireTimeoutMs": 1000},
        }
        async with (
            Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room,
            anyio.create_task_group() as tasks,
        ):

            async def other() -> None:
                with pytest.raises(ServerDown):
                    await room.connect("other")

            tasks.start_soon(other)
            assert await until(lambda: status(room, "other").state is State.CONNECTING)
            await room.connect("api")
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
            assert status(room, "other").state is State.CONNECTING
            await room.drain("other")


@in_real_time
async def test_sessions_share_it_unless_something_of_theirs_goes_into_requests(tmp_path: Path) -> None:
    with api_server() as api:
        document_file = write_document(tmp_path)
        settings = {"isolation": "per_session"}
        async with room_of({"openapi": document_file, "baseUrl": api.url}, settings) as room:
            assert (await room.call("get_item", {"id": "1"}, server="api")).structured[
                "path"
            ] == "/v1/items/1"
        headers = {"X-User": "${session.USER}"}
        async with room_of(
            {"openapi": document_file, "baseUrl": api.url, "headers": headers}, settings
        ) as room:
            for user in ("alice", "bob"):
                async with room.session(user, variables={"USER": user}) as session:
                    said = (await session.call("get_item", {"id": "1"}, server="api")).structured
                    assert said["headers"]["x-user"] == user


# ---- the document ---------------------------------------------------------------------------------------------------


@in_real_time
async def test_a_document_that_cannot_be_read_is_a_failure_to_connect_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"a": 1}')
    (tmp_path / "folder").mkdir()
    for place, why in (
        ("missing.json", "there is no document"),
        ("odd.json", "not an OpenAPI document"),
        ("folder", "cannot be read"),
    ):
        async with room_of({"openapi": str(tmp_path / place), "baseUrl": "http://127.0.0.1:9"}) as room:
            with pytest.raises(ConnectFailed, match=why):
                await room.connect("api")


@in_real_time
async def test_a_hash_refuses_another_document(tmp_path: Path) -> None:
    import hashlib

    file = write_document(tmp_path)
    right = hashlib.sha256(document()).hexdigest()
    for said, is_right in ((right, True), (f"sha256:{right.upper()}", True), ("0" * 64, False)):
        async with room_of({"openapi": file, "baseUrl": "http://127.0.0.1:9", "specHash": said}) as room:
            if is_right:
                await room.connect("api")
            else:
                with pytest.raises(ConnectFailed, match=right):
                    await room.connect("api")


@in_real_time
async def test_operations_are_chosen_by_tag_id_and_path(tmp_path: Path) -> None:
    for include, exclude, names in (
        (["tag:items"], [], {"get_item", "put_item", "delete_item"}),
        (["tag:items"], ["DELETE *"], {"get_item", "put_item"}),
        (["get_*", "/busy"], [], {"get_item", "busy", "busy_again"}),
        (["GET /busy"], [], {"busy"}),
        ([], [], set[str]()),
    ):
        entry = {"openapi": write_document(tmp_path), "baseUrl": "http://127.0.0.1:9"}
        async with room_of({**entry, "includeOperations": include, "excludeOperations": exclude}) as room:
            await room.connect("api")
            assert {tool.name for tool in room.tools()} == names


def everything_named(operations: int) -> dict[str, Any]:
    """A document each of whose operations takes and answers what names all its schemas, a megabyte."""
    schemas = {
        f"S{number}": {
            "description": "d" * 1_000,
            "properties": {
                f"p{step}": {"$ref": f"#/components/schemas/S{number * step % 1_000}"} for step in range(1, 9)
            },
        }
        for number in range(1_000)
    }
    content = {
        "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/S7"}}}
    }
    said = {"requestBody": {"content": content}, "responses": {"200": {"content": content}}}
    paths = {f"/v/{number}": {"post": {"operationId": f"op{number}", **said}} for number in range(operations)}
    return {"paths": paths, "components": {"schemas": schemas}}


@in_real_time
async def test_an_operation_with_a_schema_of_any_size_is_a_tool(tmp_path: Path) -> None:
    """All of them are listed, whatever the list may have; what is missing is said in the schema and in a note."""
    with api_server() as api:
        for operations, most in ((3, 16 * MIB), (150, MIB)):
            file = write_document(tmp_path, **everything_named(operations))
            entry = {"openapi": file, "baseUrl": api.url, "outputSchemas": True}
            async with room_of(entry, {"maxListBytes": most}) as room:
                await room.connect("api")
                assert len(room.tools()) == operations
                assert "op0: Its schema is too large" in str(status(room, "api").odd)
                last = f"op{operations - 1}"
                record = room.describe(last).record
                assert record["inputSchema"]["properties"]["body"]["items"] == {"$ref": "#/$defs/S7"}
                assert "Not shown: too large" in json.dumps(record["outputSchema"])
                result = await room.call(last, {"body": [1]})
                assert result.structured["body"] == "[1]"


@in_real_time
async def test_a_document_from_a_url_is_fetched_once_and_asked_for_again_by_its_tag(tmp_path: Path) -> None:
    with api_server() as api:
        entry = {"openapi": f"{api.root}/openapi.json", "baseUrl": api.url, "bearerToken": "secret-token-1"}
        async with room_of(entry, cache=tmp_path / "catalogue.json") as room:
            await room.connect("api")
            assert "get_item" in {tool.name for tool in room.tools()}
            await room.restart("api")
            await room.connect("api")
            first, second = api.seen("/openapi.json")
            assert "if-none-match" not in first.headers
            assert second.headers["if-none-match"] == '"one"'
            assert first.headers["authorization"] == "Bearer secret-token-1"  # it is of the same origin
            api.document, api.tag = document(tags=[]), '"two"'
            await room.restart("api")
            await room.connect("api")
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
            api.document = None  # it cannot be had any more
            await room.restart("api")
            await room.connect("api")
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
            assert "the one that came last is used" in str(status(room, "api").odd)


@in_real_time
async def test_credentials_do_not_go_to_another_host_for_a_document(tmp_path: Path) -> None:
    with api_server() as api, api_server() as other:
        entry = {"openapi": f"{other.root}/openapi.json", "baseUrl": api.url, "bearerToken": "secret-token-1"}
        async with room_of({**entry, "headers": {"X-Key": "k"}}) as room:
            await room.connect("api")
        (seen,) = other.seen("/openapi.json")
        assert not {"authorization", "x-key"} & seen.headers.keys()


@in_real_time
async def test_a_url_without_a_document_fails_to_connect(tmp_path: Path) -> None:
    with api_server() as api:
        async with room_of({"openapi": f"{api.root}/openapi.json", "baseUrl": api.url}) as room:
            api.document = None
            with pytest.raises(ConnectFailed, match="HTTP 503"):
                await room.connect("api")
        async with room_of({"openapi": f"{api.root}/openapi.json", "baseUrl": api.url}) as room:
            api.document = b"[" * 200_000
            with pytest.raises(ConnectFailed, match="its document"):
                await room.connect("api")


# ---- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"id": ".."}, "another path"),
        ({"id": "%2e%2e"}, ""),
        ({"id": "1", "X-Mark": "a\r\nX-Other: b"}, "X-Mark"),
        ({"id": "1", "crumb": "a; admin=1"}, ""),
        ({"id": "1", "other": "x"}, '"other"'),
        ({}, '"id"'),
    ],
)
@in_real_time
async def test_an_argument_that_cannot_be_sent_is_refused_by_name_and_stays_in_its_place(
    tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            result = await room.call("get_item", arguments)
            if why:
                assert result.is_error
                assert why in result.text
                assert not api.requests
            for seen in api.requests:
                assert seen.path.startswith("/v1/items/")
                assert seen.path.count("/") == 3
                assert "x-other" not in seen.headers
                assert "admin=1" not in seen.headers.get("cookie", "").split("; ")


@in_real_time
async def test_a_failed_http_request_is_a_result_that_says_so(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            result = await room.call("refuses")
            assert result.is_error
            assert "422" in result.text
            assert "the name is taken" in result.text
            result = await room.call("away")
            assert result.is_error
            assert "localhost:9" in result.text
            assert "redirects are not followed" in result.text
            result = await room.call("walled")
            assert "<h1>Log in first</h1>" in result.text
            assert "greenroom auth api" in result.text
            assert "MCP" not in result.text
            assert result.structured == {"status": 401}
            result = await room.call("scoped")
            assert 'the login lacks the scope "items:write"' in result.text
            assert result.structured == {"status": 403, "body": {"message": "no"}}
            assert (await room.call("along")).structured["path"] == "/v1/items/moved"
            assert status(room, "api").retry_in is None


@in_real_time
async def test_images_and_large_answers(tmp_path: Path) -> None:
    from base64 import b64decode

    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            (block,) = (await room.call("image")).content
            assert (block["type"], block["mimeType"], b64decode(block["data"])) == ("image", "image/png", PNG)
            (block,) = (await room.call("large_image")).content
            assert b64decode(block["data"]) == PNG * (MIB // 8)
            result = await room.call("large")
            assert json.loads(result.text) == {"x": "é\n" * MIB}
            assert not result.is_error


@in_real_time
async def test_an_answer_over_the_bound_ends_its_call_alone(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path, {"maxLineBytes": 8 * MIB}) as room:
            with pytest.raises(ProtocolFault, match="over the bound of 8,388,608 bytes") as caught:
                await room.call("flood")
            assert caught.value.reach is Reach.ANSWERED
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
            assert status(room, "api").state is State.CONNECTED


@in_real_time
async def test_a_call_that_is_cancelled_hangs_up_and_others_go_on(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(room.call, "slow")
                assert await until(lambda: bool(api.seen("/v1/slow")))
                tasks.cancel_scope.cancel()
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
            with pytest.raises(CallTimeout) as caught:
                await room.call("hangs", timeout=2.0)
            assert caught.value.reach is Reach.SENT
        assert room.drain_report is not None
        assert (room.drain_report.cancelled, room.drain_report.failed) == (1, 1)


@in_real_time
async def test_an_answer_that_breaks_off_is_asked_for_again_only_where_that_is_harmless(
    tmp_path: Path,
) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            with pytest.raises(ServerLost) as caught:
                await room.call("dies_again")  # a POST
            assert caught.value.reach is Reach.SENT
            assert len(api.seen("/v1/dies")) == 1
            with pytest.raises(ServerLost):
                await room.call("dies")
            assert len(api.seen("/v1/dies")) == 3
            assert status(room, "api").state is State.CONNECTED


@in_real_time
async def test_an_api_that_wants_time_gets_it(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            for tool, refusals, sent, is_error in (
                ("busy", [(429, "0")], 2, False),
                ("busy_again", [(429, "0")], 2, False),  # 429 says that it did not run, so a POST too
                ("busy", [(503, "0")], 2, False),
                ("busy_again", [(503, "0")], 1, True),
                ("busy", [(429, "600")], 1, True),  # too long
                ("busy", [(429, "")], 1, True),  # nobody says how long
                ("busy", [(429, "0")] * 9, 4, True),
            ):
                api.requests.clear()
                api.busy = list(refusals)
                result = await room.call(tool)
                assert (len(api.requests), result.is_error) == (sent, is_error), (tool, refusals)
                if is_error:
                    assert str(refusals[0][0]) in result.text
            for tool, status_said in (("busy_again", 429), ("busy", 503)):
                api.busy = [(status_said, "50")]
                result = await room.call(tool, timeout=45.0)
                assert result.is_error, "the call would end before it may be sent again"
                assert f"{status_said}" in result.text
                assert "asked again after 50 s" in result.text


@in_real_time
async def test_files_are_sent_from_one_folder_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("the content")
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "secret.txt")
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            result = await room.call("send_file", {"file": {"path": "a.txt"}})
            assert result.is_error
            assert "uploads" in result.text
        async with api_room(api, tmp_path, uploads=str(tmp_path / "out")) as room:
            assert (
                "the content"
                in (await room.call("send_file", {"file": {"path": "a.txt"}})).structured["body"]
            )
            api.requests.clear()
            for path in ("../secret.txt", str(tmp_path / "secret.txt"), "link", "none.txt", "\0"):
                assert (await room.call("send_file", {"file": {"path": path}})).is_error
            assert not api.requests
            said = (await room.call("send_file", {"file": {"base64": "aGk=", "filename": "b"}})).structured
            assert "hi" in said["body"]


@in_real_time
async def test_no_cookie_of_one_call_goes_with_another(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            for _ in range(2):
                assert (await room.call("sets_cookie")).structured == {"cookie": None}


@in_real_time
async def test_what_the_configuration_sends_is_not_a_caller_s_to_say(tmp_path: Path) -> None:
    """Such as the tenant, or the API's key: a document that declares it as a parameter does not give it away."""
    headers = {"X-mark": "ours", "Cookie": "login=ours; crumb=ours"}
    extra = {"name": "more", "in": "query", "style": "form", "explode": True, "schema": {"type": "object"}}
    names = (
        ("X-Mark", "header"),
        ("login", "cookie"),
        ("crumb", "cookie"),
        ("mine", "cookie"),
        ("q", "query"),
    )
    parameters = [{"name": name, "in": place, "schema": {"type": "string"}} for name, place in names]
    look = {"get": {"operationId": "look", "parameters": [*parameters, extra]}}
    file = write_document(tmp_path, paths={"/look": look})
    with api_server() as api:
        entry = {"openapi": file, "baseUrl": f"{api.url}?q=ours&r=ours", "headers": headers}
        async with room_of(entry) as room:
            await room.connect("api")
            assert {*room.describe("look").record["inputSchema"]["properties"]} == {"mine", "more"}
            said = (await room.call("look", {"mine": "m", "more": {"s": "1"}})).structured
            assert said["query"] == "q=ours&r=ours&s=1"
            assert said["headers"]["x-mark"] == "ours"
            assert said["headers"]["cookie"] == "login=ours; crumb=ours; mine=m"
            api.requests.clear()
            for arguments in (
                {"more": {"r": "theirs"}},
                {"more": {"q": "theirs"}},
                {"q": "x"},
                {"X-Mark": "x"},
            ):
                assert (await room.call("look", arguments)).is_error
            assert not api.requests


@in_real_time
async def test_the_method_says_what_has_to_be_allowed(tmp_path: Path) -> None:
    asked = {
        "off": set[str](),
        "destructive": {"delete_item", "put_item", "send_file"},  # of a POST nobody knows
        "writes": {"delete_item", "put_item", "send_file"},
        "all": {"get_item", "delete_item", "put_item", "send_file"},
    }
    with api_server() as api:
        for approve, tools in asked.items():
            async with api_room(api, tmp_path, approve=approve) as room:
                mine = ("get_item", "put_item", "delete_item", "send_file")
                assert {tool for tool in mine if room.needs_approval(tool)} == tools
                if "delete_item" in tools:
                    with pytest.raises(ApprovalNeeded):
                        await room.call("delete_item", {"id": "1"})
                    assert not api.requests
                if "get_item" not in tools:
                    assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
                    api.requests.clear()


# ---- an API that is gone --------------------------------------------------------------------------------------------


@in_real_time
async def test_an_api_that_is_down_trips_the_circuit_breaker_and_the_first_answer_resets_it(
    tmp_path: Path,
) -> None:
    settings = {
        "failureThreshold": 2,
        "cooldownMs": 1500,
        "backoffJitter": 0,
        "restartBackoff": {"minMs": 1, "maxMs": 2},
    }
    with api_server() as api:
        port = api.port
    entry = {"openapi": write_document(tmp_path), "baseUrl": f"http://127.0.0.1:{port}/v1"}
    async with room_of(entry, settings) as room:
        await room.connect("api")
        with pytest.raises(ServerLost, match="not reached") as caught:
            await room.call("get_item", {"id": "1"})
        assert caught.value.reach is Reach.NOT_SENT
        assert await until(lambda: status(room, "api").retry_in is not None)
        with pytest.raises(Unavailable):
            await room.call("get_item", {"id": "1"})
        with pytest.raises(ServerLost):  # half-open: the probe fails
            await _passed(room)
        assert await until(lambda: status(room, "api").retry_in is not None)
        with api_server(port):
            assert (await _passed(room)).structured["path"] == "/v1/items/1"
            assert status(room, "api").retry_in is None


async def _passed(room: Greenroom) -> Any:
    """What comes of the first call that the circuit breaker lets pass."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await room.call("get_item", {"id": "1"})
            except Unavailable:
                await anyio.sleep(0.01)


# ---- logging in -----------------------------------------------------------------------------------------------------


@in_real_time
async def test_a_401_is_the_answer_where_no_login_is_used(tmp_path: Path) -> None:
    with api_server() as api:
        async with api_room(api, tmp_path) as room:
            result = await room.call("private")
            assert result.is_error
            assert "who are you?" in result.text
            assert "greenroom auth api" in result.text
            assert not status(room, "api").needs_auth
            assert (await room.call("get_item", {"id": "1"})).structured["path"] == "/v1/items/1"
        api.tokens.add("sesame")
        async with api_room(api, tmp_path, bearerToken="sesame") as room:
            assert (await room.call("private")).structured == {"in": True}


@in_real_time
async def test_a_401_comes_with_what_the_document_asks_for(tmp_path: Path) -> None:
    schemes = {
        "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        "query": {"type": "apiKey", "in": "query", "name": "key"},
        "crumb": {"type": "apiKey", "in": "cookie", "name": "sid"},
        "token": {"type": "http", "scheme": "Bearer"},
        "user": {"type": "http", "scheme": "basic"},
        "page": {"type": "oauth2"},
    }
    expected = {
        "key": 'Its document asks for the header "X-Api-Key": set it in "headers".',
        "query": 'Its document asks for "key" in the query: add it to the "baseUrl".',
        "crumb": 'Its document asks for the cookie "sid": set it in "headers", under Cookie.',
        "token": 'Its document asks for a token: set "bearerToken".',
        "user": 'Its document asks for a user and a password: set the header Authorization in "headers".',
        "page": "It may want a login: log in (greenroom auth api",
    }
    for name, words in expected.items():
        (tmp_path / name).mkdir()
        with api_server() as api:
            more = {"components": {"securitySchemes": schemes}, "security": [{name: []}]}
            entry = {"openapi": write_document(tmp_path / name, **more), "baseUrl": api.url}
            async with room_of(entry) as room:
                await room.connect("api")
                assert words in (await room.call("private")).text


@in_real_time
async def test_a_login_is_renewed_and_a_refused_one_parks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with api_server() as api:
        login = Login(
            "api",
            api.url,
            "old",
            token_endpoint=f"{api.root}/token",
            refresh_token="again",
            expires_at=time.time() + 3000,
        )
        keep(login)
        async with api_room(api, tmp_path, auth="oauth") as room:
            assert (await room.call("private")).structured == {"in": True}  # refused, renewed, sent again
            assert len(api.refreshes) == 1
            assert "again" in api.refreshes[0]
            assert (await room.call("private")).structured == {"in": True}
            assert len(api.refreshes) == 1
            api.refuses_all = True
            with pytest.raises(NeedsAuth) as caught:
                await room.call("private")
            assert caught.value.reach is Reach.NOT_SENT
            assert await until(lambda: status(room, "api").needs_auth)
