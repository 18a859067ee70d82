"""What is kept of a login, and what an answer of the authorization server makes of it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tests.actors.sample_login import OURS
from tests.support.rows import for_each

from greenroom.actors.login.login_record import Login, LoginFailed, login_of, usable


def test_no_secret_of_a_login_is_shown_with_it() -> None:
    login = Login("s", "u", "planted-1", refresh_token="planted-2", client_secret="planted-3")
    assert "planted" not in repr(login)


@for_each(
    ("kept", "is_over"),
    [
        ({}, False),
        ({"expires_at": 100.0}, True),
        ({"expires_at": 100.1}, False),
        ({"expires_at": 0.0}, True),
        ({"expires_at": 1.0, "grant": "client_credentials"}, False),
        ({"expires_at": 1.0, "refresh_token": "r", "token_endpoint": "t"}, False),
        ({"expires_at": 1.0, "refresh_token": "r"}, True),
        ({"expires_at": 1.0, "token_endpoint": "t"}, True),
    ],
)
def test_a_login_is_over_when_only_a_person_can_help(kept: dict[str, Any], is_over: bool) -> None:
    assert Login("s", "u", "t", **kept).is_over(100.0) is is_over


@for_each(
    ("answer", "expires_at", "scope"),
    [
        ({"expires_in": 60}, 160.0, "a b"),
        ({"expires_in": 0.5, "scope": "c"}, 100.5, "c"),
        ({"expires_in": 0}, None, "a b"),
        ({"expires_in": -5, "scope": 5}, None, "a b"),
        ({"expires_in": "60", "scope": None}, 160.0, "a b"),
        ({"expires_in": "soon"}, None, "a b"),
        ({"expires_in": True}, None, "a b"),
        ({"token_type": "BEARER"}, None, "a b"),
        ({"token_type": None, "scope": ""}, None, ""),
        *[({"refresh_token": odd}, None, "a b") for odd in ("next", "", None, 5)],
    ],
)
def test_an_answer_says_until_when_and_for_what_its_token_is(
    answer: dict[str, Any], expires_at: float | None, scope: str
) -> None:
    new = attrs.evolve(OURS, expires_at=5.0).renewed({"access_token": "t", **answer}, 100.0)
    assert (new.access_token, new.expires_at, new.scope) == ("t", expires_at, scope)
    assert new.refresh_token == ("next" if answer.get("refresh_token") == "next" else "refresh")
    assert (new.made, new.client_id, new.id == OURS.id) == (OURS.made, "me", False)


@for_each(
    "answer",
    [
        {},
        {"access_token": None},
        {"access_token": 5},
        {"access_token": ""},
        {"access_token": "a b"},
        {"access_token": "a\nb"},
        {"access_token": "ü"},
        {"access_token": "t", "token_type": "mac"},
    ],
)
def test_an_answer_without_a_bearer_token_that_a_header_can_say_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed, match="without a bearer token"):
        OURS.renewed(answer, 100.0)
    assert usable("a-token")


@for_each("name", [field.name for field in attrs.fields(Login)])
def test_a_stored_login_with_a_field_of_another_kind_is_none_of_ours(name: str) -> None:
    values = {**attrs.asdict(OURS), "expires_at": 5, "of_a_later_version": 1}
    assert login_of(values) == attrs.evolve(OURS, expires_at=5)
    for wrong in ([5], {}, True) if name != "expires_at" else ("5", [5]):
        with pytest.raises(LoginFailed, match="not one of ours"):
            login_of({**values, name: wrong})
    if name in ("server", "url", "access_token"):
        with pytest.raises(LoginFailed, match="not one of ours"):
            login_of({each: value for each, value in values.items() if each != name})
