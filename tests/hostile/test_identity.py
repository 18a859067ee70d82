"""Attacks on the tokens of callers: an identity provider, an authorization server, a server or a caller is hostile.

One row for each attack. In all of them the caller is refused, is told that nothing was sent, and in the end: no server
was called, no token went where it does not belong, and no words of a refusal hold one.
"""

from __future__ import annotations

import gc
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from joserfc.jwk import ECKey
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from tests.gateway.test_http_callers import STATIC, bearer, gateway, one, person, refused, who, with_gateway
from tests.support import run
from tests.support.gateway import PATIENCE
from tests.support.http_door import Opened
from tests.support.identity_stage import TYPE, Issuer, Stage, identity_stage, signed

from greenroom import Greenroom

Answer = dict[str, Any]
FOREIGN = ECKey.generate_key("P-256")


@attrs.frozen
class Attack:
    """`by`: turns the stage hostile, before anybody calls. `words`: what the refusal says. `sent`: how many requests
    the server's authorization server got."""

    by: Callable[[Stage], object]
    words: str
    sent: int = 0
    exchange: bool = False  # by token exchange, not by an ID-JAG


def provider_says(**more: Any) -> Callable[[Stage], None]:
    def by(stage: Stage) -> None:
        stage.provider.twist = lambda _form, answer: {**answer, **more}

    return by


def assertion(stage: Stage, kind: str = "oauth-id-jag+jwt", key: ECKey | None = None, **claims: Any) -> str:
    said = {
        "iss": stage.provider.issuer,
        "sub": "ann",
        "aud": stage.one.issuer,
        "resource": stage.one.url,
        "client_id": stage.one.client[0],
        "scope": "notes:read",
        **claims,
    }
    return signed(key or stage.provider.key, kind, **said)


def provider_gives(make: Callable[[Stage], str]) -> Callable[[Stage], None]:
    def by(stage: Stage) -> None:
        stage.provider.twist = lambda _form, answer: {**answer, "access_token": make(stage)}

    return by


def server_says(make: Callable[[Mapping[str, str], Answer], Any]) -> Callable[[Stage], None]:
    def by(stage: Stage) -> None:
        stage.one.twist = make

    return by


def metadata(
    of: Callable[[Stage], Issuer], said: Callable[[Stage], Mapping[str, Any]]
) -> Callable[[Stage], None]:
    def by(stage: Stage) -> None:
        of(stage).metadata = said(stage)

    return by


def unsigned(stage: Stage) -> str:
    import jwt

    claims = {
        "iss": stage.provider.issuer,
        "sub": "ann",
        "aud": stage.one.issuer,
        "jti": "1",
        "exp": time.time() + 60,
    }
    said = {**claims, "resource": stage.one.url, "client_id": stage.one.client[0]}
    return jwt.encode(said, "", "none", {"typ": "oauth-id-jag+jwt"})


def at_two(stage: Stage) -> str:
    """A good token of the same provider, for the other server."""
    said = {"iss": stage.provider.issuer, "sub": "ann", "aud": stage.two.url, "scope": "notes:read"}
    return signed(stage.provider.key, "at+jwt", **said)


ATTACKS: Mapping[str, Attack] = {
    # ---- mix-up: what is for one goes to another
    "an ID-JAG for another authorization server": Attack(
        provider_gives(lambda stage: assertion(stage, aud=stage.two.issuer)),
        "for another authorization server",
    ),
    "an ID-JAG for two authorization servers": Attack(
        provider_gives(lambda stage: assertion(stage, aud=[stage.one.issuer, stage.two.issuer])),
        "for another authorization server",
    ),
    "an ID-JAG for another server": Attack(
        provider_gives(lambda stage: assertion(stage, resource=stage.two.url)), "for another server"
    ),
    "an ID-JAG for another client": Attack(
        provider_gives(lambda stage: assertion(stage, client_id="mallory")), "for another client"
    ),
    "a token of the provider for another server": Attack(
        provider_gives(at_two), "for another server", exchange=True
    ),
    "a token for the gateway itself": Attack(
        provider_gives(lambda stage: stage.provider.access_token("ann")), "for another server", exchange=True
    ),
    "a token of the authorization server for another server": Attack(
        lambda stage: setattr(
            stage.one, "twist", lambda _form, answer: {**answer, "access_token": at_two(stage)}
        ),
        "for another server",
        sent=1,
    ),
    "metadata of another issuer": Attack(
        metadata(lambda stage: stage.one, lambda stage: {"issuer": stage.two.issuer}), "of another issuer"
    ),
    "metadata of the provider of another issuer": Attack(
        metadata(lambda stage: stage.provider, lambda stage: {"issuer": stage.two.issuer}),
        "of another issuer",
    ),
    "a token endpoint without TLS": Attack(
        metadata(lambda stage: stage.one, lambda _: {"token_endpoint": "http://192.0.2.1/token"}),
        "can be trusted",
    ),
    "a token endpoint that cannot be read": Attack(
        metadata(lambda stage: stage.one, lambda _: {"token_endpoint": "https://[bad"}), "can be trusted"
    ),
    "a token endpoint that is none": Attack(
        metadata(lambda stage: stage.one, lambda _: {"token_endpoint": 5}), "can be trusted"
    ),
    "a redirect of the provider to another": Attack(
        lambda stage: setattr(
            stage.provider, "twist", lambda *_: RedirectResponse(f"{stage.two.issuer}/token", status_code=307)
        ),
        "HTTP 307",
    ),
    "a redirect of the authorization server to another": Attack(
        lambda stage: setattr(
            stage.one, "twist", lambda *_: RedirectResponse(f"{stage.two.issuer}/token", status_code=307)
        ),
        "HTTP 307",
        sent=1,
    ),
    # ---- issuer confusion
    "an ID-JAG of another issuer": Attack(
        provider_gives(lambda stage: assertion(stage, iss=stage.two.issuer)), "of another issuer"
    ),
    "an ID-JAG signed by another key": Attack(
        provider_gives(lambda stage: assertion(stage, key=FOREIGN)), "HTTP 400, invalid_grant", sent=1
    ),
    # ---- type confusion
    "an ID token in the place of an ID-JAG": Attack(
        provider_gives(lambda stage: assertion(stage, kind="JWT")), "is none"
    ),
    "an access token in the place of an ID-JAG": Attack(
        provider_gives(lambda stage: assertion(stage, kind="at+jwt")), "is none"
    ),
    "an access token that says that it is one": Attack(
        provider_says(issued_token_type=f"{TYPE}access_token"), "not an ID-JAG"
    ),
    "an answer that says nothing of its type": Attack(provider_says(issued_token_type=None), "not an ID-JAG"),
    "an ID token by token exchange": Attack(
        provider_says(issued_token_type=f"{TYPE}id_token"), "not an access token", exchange=True
    ),
    "a refresh token by token exchange": Attack(
        provider_says(issued_token_type=f"{TYPE}refresh_token"), "not an access token", exchange=True
    ),
    "an assertion by token exchange": Attack(
        provider_gives(lambda stage: assertion(stage, aud=stage.one.url)),
        "not an access token",
        exchange=True,
    ),
    "an ID-JAG without a signature": Attack(provider_gives(unsigned), "is none"),
    "an ID-JAG that is no JWT": Attack(provider_gives(lambda _: "opaque"), "is none"),
    "an ID-JAG about nobody": Attack(
        provider_gives(lambda stage: assertion(stage, sub=None)), "about nobody"
    ),
    "an ID-JAG without an id": Attack(
        provider_gives(lambda stage: assertion(stage, jti=None)), "about nobody"
    ),
    "an ID-JAG that has ended": Attack(
        provider_gives(lambda stage: assertion(stage, exp=int(time.time()) - 40)), "has ended"
    ),
    "an ID-JAG that has just ended by our clock, which its reader judges": Attack(
        provider_gives(lambda stage: assertion(stage, exp=int(time.time()) - 5)), "HTTP 400", sent=1
    ),
    "an ID-JAG without an end": Attack(provider_gives(lambda stage: assertion(stage, exp=None)), "has ended"),
    "a token that is a number": Attack(provider_says(access_token=5), "not an ID-JAG"),
    # ---- what a server may be given
    "the assertion itself as the token": Attack(
        server_says(lambda form, answer: {**answer, "access_token": form["assertion"]}),
        "what it was sent",
        sent=1,
    ),
    "the caller's token itself as the token": Attack(
        lambda stage: setattr(
            stage.provider, "twist", lambda form, answer: {**answer, "access_token": form["subject_token"]}
        ),
        "what it was sent",
        exchange=True,
    ),
    "a token that is no bearer's": Attack(
        server_says(lambda _form, answer: {**answer, "token_type": "DPoP"}), "without a bearer token", sent=1
    ),
    "a token with a line break": Attack(
        server_says(lambda _form, answer: {**answer, "access_token": "a\r\nX-Evil: 1"}),
        "bearer token",
        sent=1,
    ),
    "an empty token": Attack(
        server_says(lambda _form, answer: {**answer, "access_token": ""}), "bearer token", sent=1
    ),
    "a token that has ended": Attack(
        server_says(lambda *_: {"access_token": signed(FOREIGN, "at+jwt", exp=5), "token_type": "Bearer"}),
        "has ended",
        sent=1,
    ),
    # ---- answers that are none
    "a page": Attack(server_says(lambda *_: PlainTextResponse("<html>")), "without a bearer token", sent=1),
    "an answer without an end": Attack(
        server_says(lambda *_: PlainTextResponse("x" * (2 << 20))), "over the bound", sent=1
    ),
    "deep JSON": Attack(server_says(lambda *_: PlainTextResponse("[" * 100_000)), "bearer token", sent=1),
    "an error that quotes the tokens": Attack(
        server_says(lambda form, _: Response(repr(form), 400)), "refuses it (HTTP 400)", sent=1
    ),
    "an error with 200": Attack(
        server_says(lambda *_: {"error": "access_denied", "access_token": "x" * 20, "token_type": "Bearer"}),
        "access_denied",
        sent=1,
    ),
    "an error code with words of its own": Attack(
        server_says(lambda *_: Response(b'{"error": "log in at https://evil.example"}', 400)),
        "refuses it (HTTP 400)",
        sent=1,
    ),
}


ALONE = [[name] for name in ATTACKS if name.startswith(("metadata", "a token endpoint"))]  # is read once
TOGETHER = [
    [name for name, attack in ATTACKS.items() if [name] not in ALONE and attack.exchange is exchange]
    for exchange in (False, True)
]


@pytest.mark.parametrize(
    "names", [*TOGETHER, *ALONE], ids=["at an ID-JAG", "by token exchange", *map(str, ALONE)]
)
def test_no_token_goes_where_it_does_not_belong(names: list[str]) -> None:
    """Each attack at a caller of its own."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        first = bearer(stage.provider.access_token("first"))
        known = await opened.http.get("/status", headers={"authorization": first})
        assert known.status_code != 401  # the provider's keys are read now
        for number, name in enumerate(names):
            try:
                await attacked(opened, stage, ATTACKS[name], number)
            except Exception as error:
                error.add_note(name)
                raise

    exchange = ATTACKS[names[0]].exchange
    with_gateway(body, (lambda stage: {"one": stage.exchange_entry(stage.one)}) if exchange else one)


async def attacked(opened: Opened, stage: Stage, attack: Attack, number: int) -> None:
    for each in (stage.provider, stage.one, stage.two):
        each.forms.clear()
    stage.one.shown.clear()
    attack.by(stage)
    ann = await person(opened, stage, f"ann-{number}")
    text = await refused(ann)
    assert attack.words in text, text
    assert not any(secret in text for secret in stage.secrets())
    assert not stage.one.shown
    assert not stage.two.shown
    assert not stage.two.forms
    assert len(stage.one.forms) == attack.sent
    assert len(stage.provider.forms) <= 1
    # An attack on one caller's tokens is over when it stops, and has hurt nobody else.
    stage.provider.twist = stage.one.twist = None
    stage.provider.metadata = stage.one.metadata = {}
    assert (await who(await person(opened, stage, f"bob-{number}")))["sub"] == f"bob-{number}"


def test_an_assertion_that_a_provider_gives_twice_is_refused_and_nobody_is_called() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        kept: list[Answer] = []

        def replayed(_form: Mapping[str, str], answer: Answer) -> Answer:
            kept.append(answer)
            return kept[0]

        stage.provider.twist = replayed
        ann = await person(opened, stage, "ann")
        await who(ann)
        calls = len(stage.one.calls)
        stage.one.expire()
        assert "HTTP 400, invalid_grant" in await refused(ann)
        assert stage.one.gone == ["AssertionError: replayed"]
        assert len(stage.one.calls) == calls

    with_gateway(body, one)


def test_a_server_cannot_say_where_its_tokens_come_from() -> None:
    """Its 401 names metadata of an attacker, which nobody asks for; and it is asked twice in all."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        await who(ann)
        stage.one.tokens = {}
        stage.one.lasts = 0  # whatever it gives has ended already
        before = len(stage.one.shown)
        assert "has just given" in await refused(ann)
        assert len(stage.one.shown) == before + 2
        assert not stage.two.forms

    with_gateway(body, one)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("admin", 'the scope "admin"'),
        ("notes:read", "was asked for already"),
        ("a" * 500, "does not say which"),
        (" ".join(f"s{n}" for n in range(200)), "does not say which"),
        ("bad\\scope", "does not say which"),
        ("", "notes:write"),
    ],
)
def test_a_server_that_is_never_content_is_asked_a_bounded_number_of_times(wanted: str, words: str) -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.one.wants = wanted
        if not wanted:
            stage.provider.scopes = frozenset({"notes:read"})
        ann = await person(opened, stage, "ann")
        for _ in range(4):
            assert words in await refused(ann, "one_write")
        assert len(stage.provider.forms) <= 5
        assert not stage.one.calls

    with_gateway(body, one)


def with_given_tokens(stage: Stage) -> Mapping[str, Any]:
    return {"one": stage.entry(stage.one, subjectToken="${session.ID_TOKEN}", subjectTokenType="id_token")}


GIVEN: Mapping[str, tuple[Callable[[Stage], str], str]] = {
    "another person's": (lambda stage: stage.provider.id_token("bob"), "another person's"),
    "one that has ended": (
        lambda stage: stage.provider.id_token("ann", exp=int(time.time()) - 40),
        "has ended",
    ),
    "one of another issuer": (
        lambda stage: stage.provider.id_token("ann", iss=stage.two.issuer),
        "of another issuer",
    ),
    "an access token": (lambda stage: stage.provider.access_token("ann"), "not an ID token"),
    "an ID-JAG": (lambda stage: assertion(stage), "not an ID token"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_token_that_is_not_the_callers_is_not_shown_to_the_provider(name: str) -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        make, words = GIVEN[name]
        said = {"x_id_token": make(stage)}
        ann = await opened.session(authorization=bearer(stage.provider.access_token("ann")), **said)
        text = await refused(ann)
        assert words in text
        assert said["x_id_token"] not in text
        assert not stage.provider.forms
        assert not stage.one.shown

    with_gateway(body, with_given_tokens, session_headers={"x-id-token": "ID_TOKEN"})


def test_a_token_that_somebody_made_up_is_the_providers_to_refuse_and_hurts_nobody_else() -> None:
    """A caller without an identity gives garbage for one. The server's circuit breaker does not open for others."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        for given in (signed(FOREIGN, "JWT", sub="ann"), "garbage", "a.b.c"):
            ben = await opened.session(authorization=bearer(STATIC), x_id_token=given)
            for _ in range(5):
                await refused(ben)
        said = {"x_id_token": stage.provider.id_token("ann")}
        ann = await opened.session(authorization=bearer(stage.provider.access_token("ann")), **said)
        assert (await who(ann))["sub"] == "ann"

    with_gateway(body, with_given_tokens, session_headers={"x-id-token": "ID_TOKEN"})


def test_the_doors_token_is_shown_to_its_issuer_alone() -> None:
    """The entry names an identity provider that did not make it."""

    def entries(stage: Stage) -> Mapping[str, Any]:
        return {"one": stage.entry(stage.one, identityProvider=stage.two.issuer)}

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        assert "is not shown to" in await refused(ann)
        assert not stage.two.forms
        assert not stage.one.shown

    with_gateway(body, entries)


def test_no_reference_can_send_the_callers_token_on() -> None:
    """Passing it through would let a server act as the caller everywhere."""

    def entries(stage: Stage) -> Mapping[str, Any]:
        said = stage.entry(stage.one)
        return {"one": {**said, "headers": {"X-Token": "${session.caller-identity}"}}}

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        await ann.call("one_whoami")
        assert not any(form["subject_token"] in stage.one.shown for form in stage.provider.forms)

    with_gateway(body, entries)


def test_nothing_that_is_written_or_told_holds_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the tape, nor the audit, nor events, status, logs and answers; in good times and in bad."""

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    told: list[str] = []
    tokens: list[str] = []

    async def main() -> None:
        with anyio.fail_after(PATIENCE), identity_stage() as stage:
            async with gateway(stage, one(stage), tmp_path, tracers) as (opened, room):
                ann = await person(opened, stage, "ann")
                told.append(str(await ann.call("one_whoami")))
                stage.provider.scopes = frozenset({"notes:read"})
                told.append(str(await ann.call("one_write")))
                tokens.extend(stage.one.tokens)
                stage.one.expire()
                stage.one.twist = lambda form, _answer: Response(repr(form), 400)
                told.append(str(await ann.call("one_whoami")))
                told.extend([str(room.status()), repr(room), str(room.config)])
                await room.recent_tape(tmp_path / "recent.tape")
            tokens.extend(stage.secrets())

    with caplog.at_level(logging.DEBUG):
        run("asyncio", main)
    written = [file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) >= 3
    assert any("whoami" in text for text in written)
    assert spans.get_finished_spans()
    all_told = [*told, *written, caplog.text, *(span.to_json() for span in spans.get_finished_spans())]
    assert len(tokens) > 5
    for secret in tokens:
        assert not [text for text in all_told if secret in text]


def test_a_token_in_use_stays_masked_whatever_tokens_come_after_it() -> None:
    """A server quotes it, after the provider has refused many tokens by which its caller came meanwhile."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        stage.one.quotes = True
        ann = await person(opened, stage, "ann")
        assert "called by" in str(await ann.call("one_whoami"))
        first = ann.headers["authorization"]
        stage.provider.twist = lambda *_: Response(status_code=503)
        for _ in range(18):
            ann.headers["authorization"] = bearer(stage.provider.access_token("ann"))
            await refused(ann)
        ann.headers["authorization"] = first
        told = str(await ann.call("one_whoami"))
        assert "called by" in told
        assert stage.one.shown[-1] not in told

    with_gateway(body, one)


def test_a_server_that_refuses_every_token_is_not_the_reason_for_many_exchanges() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        await who(ann)
        stage.one.tokens = {}
        stage.one.lasts = 0
        for _ in range(5):
            assert "has just given" in await refused(ann)
        assert len(stage.provider.forms) == 2

    with_gateway(body, one)


def test_a_server_that_wants_ever_further_scopes_is_given_no_endless_token() -> None:
    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        texts: list[str] = []
        for number in range(6):
            stage.one.wants = " ".join(f"scope-number-{number}-{each}" for each in range(40))
            texts.append(await refused(ann))
        assert len(stage.provider.forms) == 3  # the first token, and two steps up
        assert "wanted too many" in texts[-1]
        assert max(map(len, texts)) < 1_000
        stage.one.wants = ""
        assert (await who(ann))["sub"] == "ann"

    with_gateway(body, one)


def test_tokens_go_with_the_session() -> None:
    """Nothing of the room holds one when the session is over."""

    async def body(opened: Opened, stage: Stage, _room: Greenroom) -> None:
        ann = await person(opened, stage, "ann")
        assert (await who(ann))["sub"] == "ann"
        assert held("token-of-ann-")
        await opened.http.delete("/mcp", headers=ann.real_headers())
        with anyio.fail_after(PATIENCE):
            while not stage.one.ended:  # the farewell needs the token, and gets no other
                await anyio.sleep(0.05)
        assert len(stage.provider.forms) == 1
        for each in (stage.provider, stage.one, stage.two):
            each.forms.clear()
        stage.one.tokens.clear()
        stage.one.shown.clear()
        with anyio.fail_after(PATIENCE):
            while held("token-of-ann-"):
                await anyio.sleep(0.05)

    with_gateway(body, one)


def held(start: str) -> list[str]:
    """The kinds of objects that hold a token which begins so."""
    gc.collect()
    token = re.compile(rf"{start}[0-9a-f]{{24}}")
    return [
        type(owner).__name__
        for owner in gc.get_objects()
        if any(type(each) is str and token.search(each) for each in gc.get_referents(owner))
    ]
