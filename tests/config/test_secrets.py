"""Secrets that are known: in which spellings they are found, which values are taken for one, and whose they are."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.config.credentials import SecretValue, of_environment
from greenroom.config.known_secrets import KnownSecrets
from greenroom.config.scrubbing import Secrets, without_logins
from greenroom.protocol.address import Address
from greenroom.protocol.safe_text import in_words

ODD = 'p/a"s\\s é&<w>%d'  # what each program quotes in its own way


@for_each(
    "spelling",
    [
        ODD,
        "p%2Fa%22s%5Cs%20%C3%A9%26%3Cw%3E%25d",
        "p/a%22s%5Cs%20%C3%A9%26%3Cw%3E%25d",
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        repr(ODD)[1:-1],
        ascii(ODD)[1:-1],
        repr(ODD.encode())[2:-1],
    ],
)
def test_a_secret_is_found_as_programs_quote_it(spelling: str) -> None:
    secrets = Secrets([SecretValue("TOKEN", ODD)])
    assert secrets.without(f"before {spelling} after") == "before *** after"
    assert secrets.stand_in(f"before {spelling} after")


def test_a_secret_that_is_no_utf_8_is_found_as_it_is_read() -> None:
    secrets = Secrets([SecretValue("TOKEN", b"\xe9t9-x4".decode(errors="surrogateescape"))])
    for spelling in ("\udce9t9-x4", "\ufffdt9-x4", "%E9t9-x4", "\\xe9t9-x4", "\\udce9t9-x4"):
        assert secrets.without(f"before {spelling} after") == "before *** after", ascii(spelling)
    assert secrets.scrub('{"a":"is \ufffdt9-x4"}'.encode()) == b'{"a":"is ***"}'
    half = "\ud83dt9-x4"  # a file of JSON may have it
    assert Secrets([SecretValue("TOKEN", half)]).without(f"before {half} after") == "before *** after"


def test_a_secret_that_is_configured_quoted_is_found_unquoted() -> None:
    assert Secrets([SecretValue("TOKEN", "a%2Fb%2Fc-d")]).without("it is a/b/c-d") == "it is ***"


@for_each(
    ("name", "value", "is_hidden"),
    [
        ("TOKEN", "hunte", False),  # five characters
        ("TOKEN", "hunter", True),
        ("TOKEN", "password", True),  # a plain word, but its name says what it is
        ("TOKEN", "123456789", True),
        ("A", "password", False),
        ("A", "hunter-two words", False),
        ("A", "123456.789:0", False),
        ("A", "/srv/some/path", False),
        ("A", "~/some.path", False),
        ("A", "C:\\Users\\me", False),
        ("A", "./x-1-y-2", False),
        ("A", "hunter2hunter", False),
        ("A", "q7Zk2-Wm9x-4TrB", True),
        ("A", "0f8fad5b-d9cb-469f-a165-70867728950e", True),
        ("TOKEN", "https://h.example/x", False),
        ("A", "https://h.example/x1", False),
        ("login", "plainword", True),
        ("login", "plainword", True),
    ],
)
def test_only_what_can_be_told_from_ordinary_text_is_hidden(name: str, value: str, is_hidden: bool) -> None:
    text = f"it said {value} and more"
    assert (Secrets([SecretValue(name, value)]).without(text) != text) is is_hidden


@for_each("scheme", ["Bearer", "bearer", "BASIC", "Token", "ApiKey"])
def test_the_scheme_before_a_secret_is_no_part_of_it(scheme: str) -> None:
    secrets = Secrets([SecretValue("Authorization", f"{scheme}  hunter-2345")])
    assert secrets.without("the value hunter-2345 is wrong") == "the value *** is wrong"
    assert Secrets([SecretValue("X", "bearers")]).without("bearers of news") == "bearers of news"


@for_each(
    ("hidden", "found"),
    [
        (SecretValue("login", "anna:pass-word-1"), ["anna:pass-word-1", "pass-word-1"]),
        (SecretValue("login", "justatoken-1"), ["justatoken-1"]),
        (SecretValue("PROXY", "http://anna:pass-word-1@h/x"), ["anna:pass-word-1", "pass-word-1"]),
        (SecretValue("the login in PROXY", "anna:p%40ss-word", is_login=True), ["p%40ss-word", "p@ss-word"]),
        (
            SecretValue("Authorization", "Basic " + base64.b64encode(b"anna:pass-word-1").decode()),
            ["pass-word-1", base64.b64encode(b"anna:pass-word-1").decode()],
        ),
        (SecretValue("Authorization", "Basic not-base64!"), ["not-base64!"]),
    ],
)
def test_the_password_of_a_login_is_a_secret_of_its_own(hidden: SecretValue, found: list[str]) -> None:
    secrets = Secrets([hidden])
    for one in found:
        assert secrets.without(f"<{one}>") == "<***>"
    assert secrets.without("anna is here") == "anna is here"
    assert found[0] not in repr(hidden)
    assert found[0] not in repr(secrets)


SECRET = "abcdefghijklmnopqrstuvwxyz0123456789"


@for_each("length", range(1, 37))
def test_of_a_secret_that_was_cut_off_half_is_enough_and_at_a_cut_four_characters(length: int) -> None:
    secrets = Secrets([SecretValue("TOKEN", SECRET)])
    begun = SECRET[:length]
    assert ("***" in secrets.without(f"it is {begun} and more")) is (length >= 18)
    for end in ("", "…", '"…', "… and so on"):
        said = secrets.without(f"it is {begun}{end}")
        if length >= 4:
            assert said == f"it is ***{end}", length
        if length < 4:
            assert said == f"it is {begun}{end}"


def test_a_login_of_any_url_is_removed_and_nothing_else_of_it() -> None:
    for url, shown in (
        ("http://u:p@h/x", "http://***@h/x"),
        (
            "see postgres://u@h:5/db?x=1, or git+ssh://a:b@c",
            "see postgres://***@h:5/db?x=1, or git+ssh://***@c",
        ),
        ("http://h/@x", "http://h/@x"),
        ("http://h?a@b", "http://h?a@b"),
        ("mail me@h", "mail me@h"),
    ):
        assert without_logins(url) == shown
        assert Secrets().without(url) == shown
        assert Secrets().stand_in(url) is ("://" in url)


def test_somebody_elses_exception_is_its_kind_and_its_text_alone() -> None:
    assert in_words(ValueError(" bad\n")) == "ValueError: bad"
    assert in_words(ValueError()) == "ValueError"
    with pytest.raises(UnicodeEncodeError) as caught:
        "hunter2\ud800".encode()
    assert "hunter2" not in in_words(caught.value)


@for_each(
    "name",
    [
        "TOKEN", "GITHUB_TOKEN", "githubToken", "API_KEY", "api-key", "apiKey", "ACCESS_KEY", "private-key",
        "SIGNING_KEY", "encryptionKey", "PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "PASS", "DB_PASS", "SECRET",
        "clientSecret",
        "AUTH", "AUTHORIZATION", "BEARER", "CREDENTIALS", "COOKIE", "signature", "JWT", "KEY", "MY_KEY", "PAT",
        "GH_PAT", "PWD_", "DB_PW", "SENTRY_DSN", "someKey",
    ],
)  # fmt: skip
def test_the_name_of_a_secret_is_known(name: str) -> None:
    assert [one.name for one in of_environment({name: "x"})] == [name]


@for_each(
    "name",
    [
        "PATH", "HOME", "AUTHOR", "AUTHORS", "PATTERN", "KEYBOARD", "MONKEY", "PASSENGER", "PATCH", "DSNX", "SPAT",
    ],
)  # fmt: skip
def test_other_names_are_not(name: str) -> None:
    assert of_environment({name: "some-value-1"}) == []


def test_logins_in_urls_of_the_environment_are_secret_whatever_the_variable_is_called() -> None:
    found = of_environment({"A": "http://u:p@h", "B": "http://h", "C": "x@y", "D_TOKEN": "http://v:w@h"})
    assert [(one.name, one.value) for one in found] == [
        ("D_TOKEN", "http://v:w@h"),
        ("the login in A", "u:p"),
        ("the login in D_TOKEN", "v:w"),
    ]


# ---- in JSON -------------------------------------------------------------------------------------------------------


def test_a_secret_in_a_text_of_a_text_is_found_three_deep() -> None:
    secrets = Secrets([SecretValue("TOKEN", 'se"cret/é')])
    value: Any = {"a": 'se"cret/é'}
    for _ in range(3):
        value = json.dumps(value)
        assert "cret" not in secrets.without(value)
    others = Secrets([SecretValue("TOKEN", "the-other-1")], secrets)
    assert set(secrets.in_json()) < set(others.in_json())
    assert list(secrets.in_json()) == sorted(secrets.in_json()), "those that begin alike stand together"
    before = secrets.in_json()
    secrets.learn([SecretValue("TOKEN", "learned-late")])
    assert set(before) < set(secrets.in_json())
    assert secrets.without("learned-late") == "***"


def test_a_value_loses_its_secrets_in_names_and_lists_and_keeps_its_numbers() -> None:
    secrets = Secrets([SecretValue("TOKEN", "hunter22")])
    value = {"hunter22": ["a hunter22", 5, None, True, {"x": ("hunter22",)}]}
    assert secrets.without_any(value) == {"***": ["a ***", 5, None, True, {"x": ["***"]}]}
    assert secrets.without("") == ""


# ---- whose they are ------------------------------------------------------------------------------------------------


def told(known: KnownSecrets, address: Address | None, *values: str) -> list[str]:
    return known.of(address).without(" ".join(values)).split()


def test_each_server_and_session_hides_its_own_and_those_of_everywhere() -> None:
    known = KnownSecrets([SecretValue("TOKEN", "everywhere-1")])
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "of-server-a")])
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "of-session-x")], "x")
    known.add("b", None, [SecretValue("TOKEN", "login-of-b")])
    values = ("everywhere-1", "of-server-a", "of-session-x", "login-of-b")
    assert told(known, None, *values) == ["***", *values[1:]]
    assert told(known, Address("a"), *values) == ["***", "***", *values[2:]]
    assert told(known, Address.of_session("a", "x"), *values) == ["***", "of-server-a", "***", "login-of-b"]
    assert told(known, Address.of_session("a", "y"), *values) == ["***", "***", *values[2:]]
    assert told(known, Address.of_call("a", "1", "x"), *values) == ["***", "of-server-a", "***", "login-of-b"]
    assert told(known, Address("b"), *values) == [*["***"], *values[1:3], "***"]
    known.add("b", None, [SecretValue("TOKEN", "newer-of-b")])
    assert told(known, Address("b"), "login-of-b", "newer-of-b") == ["***", "***"]


def test_the_secrets_of_an_earlier_definition_stay_known() -> None:
    known = KnownSecrets()
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "the-first-1")])
    known.learn("a", 2, lambda: [SecretValue("TOKEN", "the-second-2")])
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "the-third-3")])
    assert told(known, Address("a"), "the-first-1", "the-second-2", "the-third-3") == ["***"] * 3


def test_what_commands_gave_is_hidden_beside_the_rest_and_forgotten_with_its_session() -> None:
    known = KnownSecrets([SecretValue("TOKEN", "everywhere-1")])
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "written-1")], "x")
    known.answered("a", (SecretValue("TOKEN", "answered-1"),), "x")
    known.answered("a", (SecretValue("TOKEN", "answered-2"), SecretValue("TOKEN", "answered-3")), "x")
    values = ("everywhere-1", "written-1", "answered-1", "answered-2", "answered-3")
    own = Address.of_session("a", "x")
    assert told(known, own, *values) == ["***"] * 5
    assert told(known, Address("a"), *values) == ["***", *values[1:]]
    known.add("a", "x", [SecretValue("TOKEN", "login-late")])
    assert told(known, own, "login-late") == ["***"]
    known.forget("y")
    assert told(known, own, *values) == ["***"] * 5
    known.forget("x")
    assert told(known, own, *values) == ["***", *values[1:]]
    known.answered("a", (SecretValue("TOKEN", "answered-4"),), "x")
    assert told(known, own, "answered-1", "answered-4") == ["answered-1", "***"]
    known.learn("a", 1, lambda: [SecretValue("TOKEN", "written-2")], "x")
    assert "written-2" not in told(known, Address.of_session("a", "z"), "nothing")


# ---- over the end of a line ----------------------------------------------------------------------------------------

SPLIT = "q7Zk2Wm9x4TrB8LpYn3V"


@for_each("between", ["\n", "\r\n", "\n  ", " — "])
@for_each("cut", range(1, len(SPLIT)))
def test_a_secret_that_goes_on_in_the_next_line_goes_whole(cut: int, between: str) -> None:
    everywhere = Secrets([SecretValue("TOKEN", SPLIT)])
    for secrets in (everywhere, Secrets([SecretValue("TOKEN", "another-secret-1")], everywhere)):
        text = f"first{between}bad token {SPLIT[:cut]}{between}{SPLIT[cut:]} was refused{between}last"
        assert secrets.without(text) == f"first{between}bad token ***{between}*** was refused{between}last"
        thirds = f"{SPLIT[:cut]}{between}{SPLIT[cut : cut + 2]}{between}{SPLIT[cut + 2 :]}"
        found = secrets.without(thirds)
        assert not [part for part in (SPLIT[:cut], SPLIT[cut + 2 :]) if len(part) > 1 and part in found]


@for_each("cut", range(1, len(SPLIT)))
def test_the_larger_part_of_a_secret_is_known_at_the_beginning_of_a_line(cut: int) -> None:
    """The line before it may not be quoted."""
    found = Secrets([SecretValue("TOKEN", SPLIT)]).without(f"error:\n{SPLIT[cut:]} is wrong")
    assert ("***" in found) is (cut <= len(SPLIT) // 2)


def test_ordinary_lines_stay() -> None:
    secrets = Secrets([SecretValue("PASSWORD", "postgres"), SecretValue("TOKEN", SPLIT)])
    text = "post\ngres is down — the\nlast line of post\n  gres\n"
    assert secrets.without(text) == text


# ---- those of all ----------------------------------------------------------------------------------------------------

QUOTED = 'x"'  # is spelled otherwise in JSON
MANY = [f"{n // 5:02}{QUOTED[::-1][n % 2]} {n}-é/{QUOTED * (n % 15)}q-end" for n in range(100)]


def of_many() -> KnownSecrets:
    """A server and its sessions, each with a secret."""
    known = KnownSecrets([SecretValue("TOKEN", "everywhere-1")])
    for number, value in enumerate(MANY):
        known.add("shop", f"session-{number}", [SecretValue("TOKEN", value)])
    return known


@st.composite
def said(draw: Any, values: list[str]) -> str:
    """A text with secrets in it, whole or cut, quoted in JSON or over the end of a line."""
    parts: list[str] = []
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)):
        begins = draw(st.integers(0, len(value) // 2))
        end = draw(st.integers(1, len(value) - 1))
        how = draw(st.sampled_from([str, json.dumps, lambda text: json.dumps(json.dumps(text)), quote]))
        pieces = value[:begins], value[begins : max(begins, end)], value[max(begins, end) :]
        broken = draw(st.sampled_from([" — ", "\n"])).join(pieces)
        cut = [value[begins:], f"{value[:end]}…", value[begins:end], broken]
        parts.append(draw(st.sampled_from([value, how(value), *cut])))
    between = draw(st.sampled_from(["", " ", "\n", "\\", "00a0", " bad "]))
    return between + between.join(parts) + draw(st.sampled_from(["", " ", "…"]))


@examples(100)
@given(st.data(), st.sampled_from([1, 2, 9, 30]))
def test_those_of_all_are_found_as_if_they_were_those_of_one(data: st.DataObject, count: int) -> None:
    known = KnownSecrets([SecretValue("TOKEN", "everywhere-1")])
    known.add("shop", None, [SecretValue("PASSWORD", "postgres")])
    for number, value in enumerate(MANY[:count]):
        known.add("shop", f"session-{number}", [SecretValue("TOKEN", value)])
    own = known.of_server("shop", None)
    plain = Secrets([SecretValue("TOKEN", each) for each in MANY[:count]], own)
    text = data.draw(said(["postgres", "everywhere-1", *MANY]))
    of_all = known.of_all("shop", None)
    assert of_all.without(text) == plain.without(text)
    for raw in (json.dumps({"a": text}).encode(), json.dumps([text], ensure_ascii=False).encode()):
        assert of_all.scrub(raw) == plain.scrub(raw)
        assert of_all.may_be_in(raw) or of_all.scrub(raw) is raw
    much = raw[:-1] + b" " * 70_000 + raw[-1:]
    assert of_all.scrub(much) == plain.scrub(much)


@for_each(
    ("value", "text"),
    [
        ("z 7Rk2Wm9x4T rB8LpQ", "z\n7Rk2Wm9x4T\nrB\n8LpQ"),  # no four characters are as they were
        ('"7"k2"m9"x4"pQ', json.dumps('the "7"k2"m9"x4"pQ')),
        (SPLIT, f"bad:\n{SPLIT[10:]} is wrong"),
        (SPLIT, f"bad {SPLIT[:5]}…"),
    ],
)
def test_one_of_another_server_is_found_in_pieces(value: str, text: str) -> None:
    known = KnownSecrets()
    known.add("shop", None, [SecretValue("TOKEN", value)])
    found = known.of_all("other", None).without(text)
    assert found == Secrets([SecretValue("TOKEN", value)]).without(text) != text


def test_a_common_word_is_a_secret_of_its_own_server_alone() -> None:
    known = KnownSecrets()
    known.add("a", None, [SecretValue("PASSWORD", "postgres"), SecretValue("TOKEN", MANY[0])])
    known.add("b", None, [])
    text = f"postgres says {MANY[0]}"
    assert known.of_all("a", None).without(text) == "*** says ***"
    assert known.of_all("b", None).without(text) == "postgres says ***"


def test_what_becomes_known_later_is_one_of_all_and_what_is_kept_stays_with_a_session_that_ends() -> None:
    known = of_many()
    before = known.of_all("other", None)
    known.answered("shop", (SecretValue("TOKEN", "a9f3-answered-51c7e2"),), "session-0")
    known.remember("shop", "gone", Secrets([SecretValue("TOKEN", "e7d84b-ended-6fa0c1")]))
    assert known.of_all("other", None).without("a9f3-answered-51c7e2 e7d84b-ended-6fa0c1") == "*** ***"
    for number in range(len(MANY)):
        known.forget(f"session-{number}")
    after = known.of_all("other", None)
    assert [before.without(value) for value in MANY] == ["***"] * len(MANY)
    assert [after.without(value) for value in (*MANY, "everywhere-1")] == [*MANY, "***"], "they are forgotten"
    assert known.copy().of_all("other", None).without("everywhere-1 e7d84b-ended-6fa0c1") == "*** ***"


def test_ten_times_as_many_secrets_do_not_take_ten_times_as_long() -> None:
    """To look through a result on the loop."""

    def takes(count: int) -> float:
        known = KnownSecrets()
        for number in range(count):
            value = hashlib.sha256(b"%d" % number).hexdigest()
            known.add("shop", f"session-{number}", [SecretValue("API_TOKEN", value)])
        secrets = known.of_all("shop", None)
        raw = json.dumps({"text": "hello world " * 5_000}).encode()
        assert secrets.scrub(raw) is raw
        times: list[float] = []
        for _ in range(5):
            began = time.thread_time()
            secrets.scrub(raw)
            times.append(time.thread_time() - began)
        return min(times)

    assert takes(2_000) < 4 * takes(200)
