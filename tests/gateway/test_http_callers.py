"""Servers that are called as whoever calls the gateway: enterprise-managed authorization (ID-JAG), and token exchange.

Real servers: an identity provider and two MCP servers with their authorization servers (`identity_stage`), and the
gateway's HTTP door. The attacks are in `tests/hostile/test_identity.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse, Response
from tests.support import run
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened, Person, http_door
from tests.support.identity_stage import Stage, identity_stage

from greenroom import Greenroom
from greenroom.errors import CredentialNeeded, SessionNeeded
from greenroom.gateway.doors.http_auth import Access, BearerToken, OAuth, Terms
from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.state_handles import NEW_STATE, STATE

STATIC = "token-of-ben-0123456789"
Body = Callable[[Opened, Stage, Greenroom], Awaitable[None]]
Entries = Callable[[Stage], Mapping[str, Any]]


def both(stage: Stage) -> Mapping[str, Any]:
    return {"one": stage.entry(stage.one), "two": stage.entry(stage.two)}


def one(stage: Stage) -> Mapping[str, Any]:
    return {"one": stage.entry(stage.one)}


def exchanged(stage: Stage) -> Mapping[str, Any]:
    return {"one": stage.exchange_entry(stage.one), "two": stage.exchange_entry(stage.two)}


@asynccontextmanager
async def gateway(
    stage: Stage,
    entries: Mapping[str, Any],
    kept: Path | None = None,
    tracer_provider: Any = None,
    **door: Any,
) -> AsyncGenerator[tuple[Opened, Greenroom]]:
    notes: list[str] = []

    def access(port: int) -> Access:
        resource = stage.provider.gateway = f"http://127.0.0.1:{port}/mcp"
        terms = Terms(issuer=stage.provider.issuer, resource=resource, audiences=(resource,))
        return Access("127.0.0.1", (BearerToken.of("ben", STATIC),), oauth=OAuth(terms, notes.append))

    options: dict[str, Any] = {"cache_path": ":memory:", "tracer_provider": tracer_provider}
    if kept is not None:
        options |= {"audit": kept / "audit.jsonl", "record": kept / "one.tape", "cache_path": kept / "cache"}
    async with (
        Greenroom.open({"mcpServers": entries}, **options) as room,
        http_door(room, access=access, **door) as opened,
    ):
        yield opened, room
    assert not notes


def with_gateway(body: Body, entries: Entries = both, **door: Any) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE), identity_stage() as stage:
            async with gateway(stage, entries(stage), **door) as (opened, room):
                await body(opened, stage, room)

    run("asyncio", main)


def bearer(token: str) -> str:
    return f"Bearer {token}"


async def person(opened: Opened, stage: Stage, name: str, **claims: Any) -> Person:
    return await opened.session(authorization=bearer(stage.provider.access_token(name, **claims)))


async def who(someone: Person, tool: str = "one_whoami") -> Any:
    answer = await someone.call(tool)
    assert "result" in answer, answer
    result = answer["result"]
    text = result["content"][0]["text"]
    assert not result.get("isError"), text
    return json.loads(text)


async def refused(someone: Person, tool: str = "one_whoami") -> str:
    """The words of a refusal, which says that nothing was sent."""
    answer = await someone.call(tool)
    said = answer.get("result") or answer["error"]
    details = json.dumps(said)
    assert answer.get("error") or said.get("isError"), answer
    assert '"not_sent"' in details or "not sent" in details, answer
    return said["content"][0]["text"] if "content" in said else said["message"]


@pytest.mark.parametrize("entries", [both, exchanged])
def test_each_caller_is_himself_at_each_server(entries: Entries) -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann, bob = await person(opened, stage, "ann"), await person(opened, stage, "bob")
        for name, someone in (("ann", ann), ("bob", bob)):
            for tool in ("one_whoami", "two_whoami"):
                assert await who(someone, tool) == {"sub": name, "scopes": ["notes:read"]}
        # One token for each caller at each server, in four exchanges, and none for two.
        shown = [set(each.shown) for each in (stage.one, stage.two)]
        assert [len(each) for each in shown] == [2, 2]
        assert not shown[0] & shown[1]
        assert len(stage.provider.forms) == 4
        assert not [each.gone for each in (stage.provider, stage.one, stage.two) if each.gone]

    with_gateway(body, entries)


def test_a_client_without_sessions_is_himself_too() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        for name in ("ann", "bob", "ann"):
            token = stage.provider.access_token(name)
            answer = await opened.stateless(
                "tools/call", {"name": "one_whoami", "arguments": {}}, authorization=bearer(token)
            )
            said = answer.json()["result"]
            assert json.loads(said["content"][0]["text"])["sub"] == name

    with_gateway(body)


def test_a_caller_whom_nobody_knows_is_refused_and_told_what_to_do() -> None:
    async def body(opened: Opened, stage: Stage, room: Greenroom) -> None:
        ben = await opened.session(authorization=bearer(STATIC))
        text = await refused(ben)
        assert "nobody knows who calls here" in text
        assert "http.oauth" in text
        async with room.session("program") as session:
            with pytest.raises(CredentialNeeded, match="subjectToken"):
                await session.call("whoami", server="one")
        with pytest.raises(SessionNeeded):
            await room.call("whoami", server="one")
        assert not stage.one.shown
        assert not stage.provider.forms

    with_gateway(body, one)


def test_whom_the_provider_refuses_is_refused_alone() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.provider.denied.add(("bob", stage.one.issuer))
        bob, ann = await person(opened, stage, "bob"), await person(opened, stage, "ann")
        for _ in range(5):
            assert "HTTP 400, invalid_grant" in await refused(bob)
        assert (await who(ann))["sub"] == "ann"  # the server's circuit breaker has not counted it
        assert (await who(bob, "two_whoami"))["sub"] == "bob"
        assert {name for name, _ in stage.one.calls} == {"ann"}

    with_gateway(body)


def test_a_token_is_renewed_before_it_ends_and_when_the_server_refuses_it() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.one.lasts = 2
        ann = await person(opened, stage, "ann")
        await who(ann)
        first = stage.one.shown[-1]
        await anyio.sleep(1.6)  # less than a quarter is left
        await who(ann)
        second = stage.one.shown[-1]
        assert second != first
        stage.one.lasts = 300
        stage.one.expire()
        await who(ann)
        assert stage.one.shown[-1] not in (first, second)
        assert stage.one.opened == 1  # its session at the server has lived through both
        ids = [form["assertion"] for form in stage.one.forms]
        assert len(ids) == len(set(ids)) == 3  # each assertion was used once

    with_gateway(body)


def test_another_token_of_the_caller_takes_the_place_of_the_first() -> None:
    """The one at the server was got by what the caller has shown last."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        await who(ann)
        renewed = stage.provider.access_token("ann")
        ann.headers["authorization"] = bearer(renewed)
        await who(ann)
        assert [form["subject_token"] == renewed for form in stage.provider.forms] == [False, True]
        assert len(set(stage.one.shown)) == 2
        assert stage.one.opened == 1

    with_gateway(body, one)


def test_a_step_up_is_asked_for_once_or_told_to_the_client() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        assert (await who(ann))["scopes"] == ["notes:read"]
        assert (await who(ann, "one_write"))["scopes"] == ["notes:read", "notes:write"]
        assert (await who(ann))["scopes"] == ["notes:read", "notes:write"]
        assert len(stage.one.forms) == 2
        stage.provider.scopes = frozenset({"notes:read"})
        bob = await person(opened, stage, "bob")
        asked = len(stage.provider.forms)
        for _ in range(3):
            text = await refused(bob, "one_write")
            assert 'the scope "notes:write"' in text
            assert "can allow it" in text
        assert len(stage.provider.forms) == asked + 2  # the first token, and one step up
        assert (await who(bob))["scopes"] == ["notes:read"]  # the token that he has goes on
        assert ("bob", "write") not in stage.one.calls

    with_gateway(body, one)


def test_an_id_token_of_a_header_is_exchanged() -> None:
    def entries(stage: Stage) -> Mapping[str, Any]:
        given = {"subjectToken": "${session.ID_TOKEN}", "subjectTokenType": "id_token"}
        return {"one": stage.entry(stage.one, **given)}

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        said = {"x_id_token": stage.provider.id_token("ann")}
        token = stage.provider.access_token("ann")
        ann = await opened.session(authorization=bearer(token), **said)
        assert (await who(ann))["sub"] == "ann"
        assert stage.provider.forms[0]["subject_token"] == said["x_id_token"]
        without = await person(opened, stage, "ann")
        assert "${session.ID_TOKEN}" in await refused(without)

    with_gateway(body, entries, session_headers={"x-id-token": "ID_TOKEN"})


def test_a_program_gives_the_token_of_whom_it_works_for(backend: str) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE), identity_stage() as stage:
            stage.provider.gateway = "https://agent.example"
            given = {"subjectToken": "${session.TOKEN}"}
            entries = {"one": stage.exchange_entry(stage.one, **given)}
            async with Greenroom.open({"mcpServers": entries}, cache_path=":memory:") as room:
                for name in ("ann", "bob"):
                    token = stage.provider.access_token(name)
                    async with room.session(name, variables={"TOKEN": token}) as session:
                        said = await session.call("whoami", server="one")
                        assert json.loads(said.text)["sub"] == name

    run(backend, main)


def test_an_outage_of_the_provider_is_no_refusal_and_passes() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        from starlette.responses import Response

        ann = await person(opened, stage, "ann")
        await who(ann)
        stage.provider.twist = lambda _form, _answer: Response(status_code=503)
        stage.one.expire()
        assert "try again later" in await refused(ann)
        stage.provider.twist = None
        ann.headers["authorization"] = bearer(stage.provider.access_token("ann"))
        assert (await who(ann))["sub"] == "ann"
        assert stage.one.opened == 1

    with_gateway(body)


def test_a_server_is_named_to_the_provider_without_the_secrets_in_its_url() -> None:
    def entries(stage: Stage) -> Mapping[str, Any]:
        url = stage.one.url.replace("http://", "http://user:pass-word@") + "?key=of-the-url"
        return {"one": {**stage.entry(stage.one), "url": url}}

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        assert (await who(await person(opened, stage, "ann")))["sub"] == "ann"
        named = [form["resource"] for form in (*stage.provider.forms, *stage.one.forms)]
        assert set(named) == {stage.one.url}

    with_gateway(body, entries)


def test_a_page_where_metadata_may_be_is_none_and_the_next_place_is_asked() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.one.is_openid = True
        assert (await who(await person(opened, stage, "ann")))["sub"] == "ann"

    with_gateway(body, one)


@pytest.mark.parametrize("methods", [None, ("client_secret_post",)])
def test_a_client_is_known_as_the_provider_wants_it(methods: tuple[str, ...] | None) -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.provider.methods = methods
        assert (await who(await person(opened, stage, "ann")))["sub"] == "ann"
        assert ("client_secret" in stage.provider.forms[0]) is (methods is not None)

    with_gateway(body)


def strict(stage: Stage) -> None:
    """The provider gives no scope that the token by which a caller came lacks."""

    def by(form: Mapping[str, str], answer: dict[str, Any]) -> dict[str, Any] | Response:
        said = stage.provider.read(form["subject_token"], stage.provider.key, "at+jwt")
        lacks = set(form["scope"].split()) - set(said["scope"].split())
        return JSONResponse({"error": "invalid_scope"}, 400) if lacks else answer

    stage.provider.twist = by


NARROW, WIDE = "notes:read", "notes:read notes:write"


def test_a_token_that_may_do_less_never_gets_what_a_wider_one_has_got() -> None:
    """Two agents of one person look exactly alike, but for what their tokens may do, and call at the same time."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        strict(stage)
        failed: dict[str, list[bool]] = {NARROW: [], WIDE: []}

        async def write(scope: str, token: str) -> None:
            call = {"name": "one_write", "arguments": {}}
            answer = await opened.stateless("tools/call", call, authorization=bearer(token))
            said = answer.json()
            failed[scope].append("error" in said or bool(said["result"].get("isError")))

        tokens = {scope: stage.provider.access_token("ann", scope=scope) for scope in failed}
        for _ in range(3):
            async with anyio.create_task_group() as group:
                for scope in (NARROW, WIDE) * 2:
                    group.start_soon(write, scope, tokens[scope])
        assert failed == {NARROW: [True] * 6, WIDE: [False] * 6}
        assert stage.one.opened == 2  # each has a session of its own
        await write(WIDE, stage.provider.access_token("ann", scope=WIDE))
        assert failed[WIDE] == [False] * 7
        assert stage.one.opened == 2  # a token that was renewed finds it

    with_gateway(body, one)


def test_a_handle_is_used_by_tokens_of_the_same_scopes_alone() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        async def said(token: str, name: str, **arguments: Any) -> Any:
            call = {"name": name, "arguments": arguments}
            answer = await opened.stateless("tools/call", call, authorization=bearer(token))
            return answer.json()["result"]

        wide = stage.provider.access_token("ann", scope=WIDE)
        state = (await said(wide, NEW_STATE))["structuredContent"][STATE]
        assert not (await said(wide, "one_whoami", **{STATE: state})).get("isError")
        called = len(stage.one.calls)
        narrow = stage.provider.access_token("ann", scope=NARROW)
        assert (await said(narrow, "one_whoami", **{STATE: state}))["isError"]
        assert len(stage.one.calls) == called

    with_gateway(body, one, rules=Rules(state_handles=True))


def test_a_session_is_used_by_tokens_of_the_same_scopes_alone() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        strict(stage)
        ann = await person(opened, stage, "ann", scope=WIDE)
        assert (await who(ann, "one_write"))["scopes"] == ["notes:read", "notes:write"]
        ann.headers["authorization"] = bearer(stage.provider.access_token("ann", scope=NARROW))
        called = len(stage.one.calls)
        answer = await ann.post(
            {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "one_write"}}
        )
        assert answer.status_code == 404  # by which a client knows to open another session
        assert len(stage.one.calls) == called
        ann.headers["authorization"] = bearer(stage.provider.access_token("ann", scope=WIDE))
        assert (await who(ann, "one_write"))["sub"] == "ann"

    with_gateway(body, one)
