"""The keys by which a server is logged in to: what each may be, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.config.model import Config, ServerDefinition
from greenroom.config.parse import parse_config
from greenroom.config.references import expand_definition

HTTP = {"url": "https://h.example"}


def parse(**entry: Any) -> Config:
    return parse_config({"mcpServers": {"s": {**HTTP, **entry}}}, source="m.json")


def read(**entry: Any) -> ServerDefinition:
    config = parse(**entry)
    assert not config.problems, config.problems
    return config.servers["s"]


@for_each(("auth", "means"), [("oauth", "oauth"), (False, False), (None, None), ("bearer", None)])
def test_auth_is_one_of_three_words(auth: Any, means: Any) -> None:
    assert read(auth=auth).auth == means


@for_each("auth", [True, "OAuth", "", 0, 1, [], {}, {"client": "x"}])
def test_any_other_auth_breaks_the_server(auth: Any) -> None:
    assert str(parse(auth=auth).broken["s"]).startswith(
        'm.json: mcpServers.s.auth: must be "oauth", "bearer" or false'
    )


TEXTS = [
    "grantType", "clientId", "clientSecret", "clientMetadataUrl", "issuer", "scope", "redirectUri", "clientName",
    "clientUri", "logoUri",
]  # fmt: skip


def test_every_text_of_a_login_is_kept_and_null_is_nothing() -> None:
    said = {name: "device_code" if name == "grantType" else f"the {name}" for name in TEXTS}
    params = {"audience": "a", "prompt": ""}
    assert read(oauth={**said, "authorizationParams": params}).oauth == {
        **said,
        "authorizationParams": params,
    }
    assert read(oauth=dict.fromkeys([*TEXTS, "authorizationParams"])).oauth == {}
    assert read(oauth=False).oauth is False
    assert read(oauth=True).auth == "oauth"
    assert read(oauth=True, auth=False).auth is False, "what is said in our word is stronger"


@for_each(
    ("oauth", "where", "what"),
    [
        ("x", "", "must be an object or false, is a string"),
        (0, "", "must be an object or false, is a number"),
        *(({name: " "}, f".{name}", "is empty: give it a value") for name in TEXTS if name != "grantType"),
        *(({name: 5}, f".{name}", "must be a string, is a number") for name in TEXTS if name != "grantType"),
        ({"grantType": "password"}, ".grantType", 'must be one of "authorization_code", "client_credentials", "dev'),
        (
            {"grantType": "client_credentials", "clientSecret": "x"},
            ".clientId",
            '"client_credentials" needs it: add "clientId"',
        ),
        (
            {"grantType": "client_credentials", "clientId": "x"},
            ".clientSecret",
            '"client_credentials" needs it: add "clientSecret"',
        ),
        ({"authorizationParams": []}, ".authorizationParams", "must be an object of strings, is an array"),
        (
            {"authorizationParams": {"a": 1}},
            ".authorizationParams.a",
            "must be a string, is a number",
        ),
        *(
            (
                {"authorizationParams": {name: "x"}},
                f".authorizationParams.{name}",
                "is set by the login itself: remove it",
            )
            for name in (
                "response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method",
            )
        ),
    ],
)  # fmt: skip
def test_half_a_login_breaks_the_server_and_says_where(oauth: Any, where: str, what: str) -> None:
    broken = parse(oauth=oauth).broken["s"]
    assert broken.where == f"m.json: mcpServers.s.oauth{where}"
    assert broken.what.startswith(what)
    assert broken.fatal


AS_CALLER: dict[str, dict[str, str]] = {
    "id_jag": {"issuer": "https://i.example", "clientId": "c", "identityProvider": "https://p.example"},
    "token_exchange": {"issuer": "https://i.example", "clientId": "c", "audience": "a"},
}
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@pytest.mark.parametrize("grant", AS_CALLER)
def test_a_server_can_be_called_as_its_caller(grant: str) -> None:
    said = {"grantType": grant, **AS_CALLER[grant], "subjectToken": "${session.T}", "resource": "r"}
    found = read(oauth=said, isolation="per_session")
    assert found.oauth == said
    assert found.is_as_caller
    assert not read(oauth={"clientId": "c"}).is_as_caller
    assert read(
        oauth={**AS_CALLER["token_exchange"], "grantType": EXCHANGE}, isolation="per_session"
    ).is_as_caller


@for_each("grant", AS_CALLER)
@for_each(
    ("more", "where", "what"),
    [
        *(({name: None}, f".{name}", "needs it: add") for name in ("issuer", "clientId")),
        ({"subjectToken": "eyJ"}, ".subjectToken", "must be ${session.NAME} and nothing else"),
        ({"subjectToken": "${session.T:-x}"}, ".subjectToken", "must be ${session.NAME} and nothing else"),
        ({"subjectToken": "${T}"}, ".subjectToken", "must be ${session.NAME} and nothing else"),
        ({"subjectTokenType": "saml2"}, ".subjectTokenType", "must be one of"),
        ({"redirectUri": "http://localhost:1"}, ".redirectUri", "does not go with"),
        ({"authorizationParams": {"a": "b"}}, ".authorizationParams", "does not go with"),
    ],
)
def test_half_of_what_calls_as_somebody_breaks_the_server(
    grant: str, more: dict[str, Any], where: str, what: str
) -> None:
    broken = parse(oauth={"grantType": grant, **AS_CALLER[grant], **more}, isolation="per_session").broken[
        "s"
    ]
    assert broken.where == f"m.json: mcpServers.s.oauth{where}"
    assert what in broken.what


def test_what_belongs_to_one_way_of_calling_as_somebody_does_not_go_with_the_other() -> None:
    both = {**AS_CALLER["id_jag"], **AS_CALLER["token_exchange"]}
    for grant, wrong in (("id_jag", "audience"), ("token_exchange", "identityProvider")):
        broken = parse(oauth={"grantType": grant, **both}, isolation="per_session").broken["s"]
        assert (broken.where, broken.what) == (
            f"m.json: mcpServers.s.oauth.{wrong}",
            f'does not go with "{grant}": remove it',
        )
    without = {name: value for name, value in AS_CALLER["id_jag"].items() if name != "identityProvider"}
    broken = parse(oauth={"grantType": "id_jag", **without}, isolation="per_session").broken["s"]
    assert broken.what == '"id_jag" needs it: add "identityProvider"'


def test_what_calls_as_somebody_has_no_effect_on_another_login() -> None:
    config = parse(oauth={"audience": "a", "subjectToken": "x", "scope": "a"})
    assert not config.broken
    assert [str(problem) for problem in config.problems] == [
        'm.json: mcpServers.s.oauth.audience: has no effect without the "grantType" "token_exchange"',
        'm.json: mcpServers.s.oauth.subjectToken: has no effect without the "grantType" "id_jag" or "token_exchange"',
    ]


@for_each(
    ("more", "what"),
    [
        ({}, 'add "isolation": "per_session"'),
        ({"isolation": "persistent"}, 'add "isolation": "per_session"'),
        ({"isolation": "per_call"}, 'add "isolation": "per_session"'),
        ({"isolation": "per_session", "auth": False}, "nobody logs in"),
        ({"isolation": "per_session", "openapi": "https://a.example/openapi.json"}, "only an MCP server"),
        ({"isolation": "per_session", "requestHeadersCommand": {"command": "x"}}, "another Authorization"),
    ],
)
def test_two_callers_cannot_be_mixed_by_an_entry(more: dict[str, Any], what: str) -> None:
    broken = parse(oauth={"grantType": "id_jag", **AS_CALLER["id_jag"]}, **more).broken["s"]
    assert what in broken.what


@for_each("name", ["issuer", "identityProvider"])
@for_each("url", ["https://[bad", "https://a:b", "ftp://a", "i"])
def test_an_issuer_that_is_no_url_breaks_the_server_and_says_where(name: str, url: str) -> None:
    oauth = {"grantType": "id_jag", **AS_CALLER["id_jag"], name: url}
    broken = parse(oauth=oauth, isolation="per_session").broken["s"]
    assert broken.where == f"m.json: mcpServers.s.oauth.{name}"
    assert "http" in broken.what


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials", "device_code"])
def test_each_grant_may_be_asked_for(grant: str) -> None:
    given = {"grantType": grant, "clientId": "me", "clientSecret": "x"}
    assert read(oauth=given).oauth == given


def test_names_of_other_clients_have_no_effect_on_a_login_and_are_said_one_by_one() -> None:
    config = parse(oauth={"client_id": "x", "zebra": 1, "scope": "a"})
    assert config.servers["s"].oauth == {"scope": "a"}
    assert [str(problem) for problem in config.problems] == [
        'm.json: mcpServers.s.oauth.client_id: has no effect on a login; did you mean "clientId"?',
        "m.json: mcpServers.s.oauth.zebra: has no effect on a login",
    ]
    assert not any(problem.fatal for problem in config.problems)


# ---- tokens --------------------------------------------------------------------------------------------------------


@for_each(
    ("entry", "headers"),
    [
        ({"bearerToken": "t"}, {"Authorization": "Bearer t"}),
        ({"bearerToken": "!get it"}, {"Authorization": "Bearer !get it"}),
        ({"bearerToken": {"keyring": "s/n"}}, {"Authorization": "Bearer ${keyring:s/n}"}),
        ({"bearerTokenEnv": "T"}, {"Authorization": "Bearer ${T}"}),
        ({"bearer_token_env_var": "T"}, {"Authorization": "Bearer ${T}"}),
        ({"bearerToken": "t", "bearerTokenEnv": "T"}, {"Authorization": "Bearer t"}),
        ({"bearerToken": None, "bearerTokenEnv": "T"}, {"Authorization": "Bearer ${T}"}),
        ({"bearerToken": "t", "headers": {"A": "b"}}, {"A": "b", "Authorization": "Bearer t"}),
        ({"bearerToken": "t", "headers": None}, {"Authorization": "Bearer t"}),
        ({"bearerToken": "t", "headers": {"AUTHORIZATION": "mine"}}, {"AUTHORIZATION": "mine"}),
        ({"bearerToken": "t", "auth": "bearer"}, {"Authorization": "Bearer t"}),
    ],
)
def test_a_bearer_token_is_one_more_header(entry: dict[str, Any], headers: dict[str, str]) -> None:
    definition = read(**entry)
    assert definition.headers == headers
    assert definition.auth is None
    assert definition.sources["headers"] == "m.json"


@for_each(
    ("entry", "where"),
    [
        ({"bearerToken": ""}, "bearerToken"),
        ({"bearerToken": ["t"]}, "bearerToken"),
        ({"bearerToken": {"keyring": "s"}}, "bearerToken"),
        ({"bearerToken": {"keyring": "s/n", "x": 1}}, "bearerToken"),
        ({"bearerTokenEnv": 5}, "bearerTokenEnv"),
    ],
)
def test_a_token_that_cannot_be_read_breaks_the_server(entry: dict[str, Any], where: str) -> None:
    config = parse(**entry)
    assert config.broken["s"].where == f"m.json: mcpServers.s.{where}"
    assert "s" not in config.servers


# ---- a program that gives headers ----------------------------------------------------------------------------------


def test_the_command_of_headers_has_ten_seconds_unless_it_says_otherwise_and_no_more_than_a_minute() -> None:
    def given(**said: Any) -> Any:
        return read(requestHeadersCommand={"command": "c", **said}).request_headers_command

    assert given() == {"command": "c", "args": (), "env": {}, "timeoutMs": 10.0}
    assert given(args=None, env=None, timeoutMs=None) == given()
    assert given(timeoutMs=60_000)["timeoutMs"] == 60.0
    assert given(timeoutMs=1)["timeoutMs"] == 0.001
    for wrong in (60_001, 0, -1, "5"):
        broken = parse(requestHeadersCommand={"command": "c", "timeoutMs": wrong}).broken["s"]
        assert broken.where == "m.json: mcpServers.s.requestHeadersCommand.timeoutMs"


def test_the_command_of_headers_is_expanded_in_each_of_its_parts() -> None:
    one = read(requestHeadersCommand={"command": "~/${A}", "args": ["${A}"], "env": {"B": "${A}"}})
    found = expand_definition(one, {"A": "a", "HOME": "/h"}).definition.request_headers_command
    assert found == {"command": "/h/a", "args": ("a",), "env": {"B": "a"}, "timeoutMs": 10.0}
