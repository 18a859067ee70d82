"""No secret of a configuration is ever printed, whatever its place; and what is printed can be read again."""

from __future__ import annotations

import base64
import json
import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.credentials import SecretValue, of_environment
from greenroom.config.known_secrets import KnownSecrets
from greenroom.config.masking import Hider, redacted, redacted_server, secrets_of
from greenroom.config.model import ServerDefinition
from greenroom.config.parse import parse_config
from greenroom.config.schema import config_schema
from greenroom.config.scrubbing import Secrets
from greenroom.protocol.address import Address

SECRET = "hunter2hunter2"


def shown(entry: Any) -> Any:
    return redacted(parse_config({"mcpServers": {"s": entry}}))["mcpServers"]["s"]


@for_each(
    ("entry", "key", "expected"),
    [
        ({"command": "x", "env": {"A": SECRET}}, "env", {"A": "***"}),
        ({"command": "x", "env": {"A": "${A}"}}, "env", {"A": "${A}"}),
        ({"command": "x", "env": {"A": "${A:-" + SECRET + "}"}}, "env", {"A": "***"}),
        ({"command": "x", "env": {"A": ""}}, "env", {"A": "***"}),
        ({"url": "http://h", "headers": {"A": "Bearer ${T}"}}, "headers", {"A": "Bearer ${T}"}),
        ({"url": "http://h", "headers": {"A": f"Bearer {SECRET}"}}, "headers", {"A": "***"}),
        ({"url": "http://h", "bearerToken": SECRET}, "headers", {"Authorization": "***"}),
        ({"url": f"https://me:{SECRET}@h:1/m?k={SECRET}&a=${{A}}#x"}, "url", "https://***@h:1/m?k=***&a=${A}#***"),
        ({"url": "https://${HOST}/mcp/v1"}, "url", "https://${HOST}/mcp/v1"),
        ({"url": "https://h/s/abcdef0123456789abcd/mcp"}, "url", "https://h/s/***/mcp"),
        ({"command": "x", "args": ["--token", SECRET, "-y"]}, "args", ["--token", "***", "-y"]),
        ({"command": "x", "args": [f"--api-key={SECRET}"]}, "args", ["--api-key=***"]),
        ({"command": "x", "args": [f"PASSWORD={SECRET}"]}, "args", ["PASSWORD=***"]),
        ({"command": "x", "args": ["-H", f"Auth: Bearer {SECRET}"]}, "args", ["-H", "Auth: ***"]),
        ({"command": "x", "args": [f"postgres://me:{SECRET}@h/db"]}, "args", ["postgres://***@h/db"]),
        ({"command": "x", "args": ["ghp_abcdefgh1234"]}, "args", ["***"]),
        ({"command": "x", "args": ["--token", "${T}"]}, "args", ["--token", "${T}"]),
        ({"command": "x", "args": ["-y", "@scope/server@1.2", "/tmp"]}, "args", ["-y", "@scope/server@1.2", "/tmp"]),
        ({"command": "x", "oauth": {"clientSecret": SECRET}}, "oauth", "***"),
        ({"url": f"https://h/m?{SECRET}&a="}, "url", "https://h/m?***&a=***"),
        ({"url": f"https://h/m?{SECRET}"}, "url", "https://h/m?***"),
        ({"command": "x", "args": ["--token", f"a={SECRET}", "b=c"]}, "args", ["--token", "***", "b=c"]),
        ({"command": "x", "args": ["auth", "login", "--key=k", "x"]}, "args", ["auth", "login", "--key=***", "x"]),
        ({"command": "x", "args": ["--token", "-v", SECRET]}, "args", ["--token", "-v", SECRET]),
        ({"command": "x", "args": [f"--proxy=http://me:{SECRET}@h/"]}, "args", ["--proxy=http://***@h/"]),
        ({"command": "x", "args": ["a:b", "see https://u:p@h/ there"]}, "args", ["a:b", "see https://***@h/ there"]),
        ({"command": "/opt/sk-abcdef123/x"}, "command", "/opt/***/x"),
        ({"command": "x", "cwd": "/home/ghp_abcdefgh1234"}, "cwd", "/home/***"),
        ({"socket": "/run/glpat-abcdefgh/s"}, "socket", "/run/***/s"),
        ({"baseUrl": "http://h", "http": {"a": {"method": "GET", "path": f"/x/{{id}}?key={SECRET}"}}}, "http",
         {"a": {"method": "GET", "path": "/x/{id}?key=***"}}),
        ({"command": "x", "idleTimeout": 0.5}, "idleTimeout", 0.5),
        ({"command": "x", "lifecycle": "eager"}, "lifecycle", "eager"),
    ],
)  # fmt: skip
def test_what_is_shown_of_a_value(entry: Any, key: str, expected: Any) -> None:
    assert shown(entry)[key] == expected


def test_the_printed_configuration_is_one() -> None:
    said = {
        "none": {"command": "x", "includeTools": [], "directTools": [], "inheritEnv": []},
        "s": {
            "command": "x",
            "args": ["-y"],
            "lifecycle": "eager",
            "idleTimeout": 0.5,
            "stopTimeoutMs": 1500,
        },
    }
    settings = {"cooldownMs": 1234.5, "idleTimeout": 0.1, "toolPrefix": "none", "outputGuard": False}
    config = parse_config({"mcpServers": said, "settings": settings})
    printed = redacted(config)
    again = parse_config({key: printed[key] for key in ("mcpServers", "settings")})
    assert not again.problems
    assert (again.servers, again.settings) == (config.servers, config.settings)


_SECRET = st.sampled_from(["", "x-", "Bearer ", "!", "${A}", "${A:-"]).map(lambda before: f"{before}{SECRET}")
_PLACES = st.fixed_dictionaries(
    {},
    optional={
        "env": st.dictionaries(st.text(max_size=4), _SECRET, max_size=2)
        | _SECRET
        | st.lists(_SECRET, max_size=1),
        "headers": st.dictionaries(st.text(max_size=4), _SECRET, max_size=2) | _SECRET,
        "bearerToken": _SECRET | st.lists(_SECRET, max_size=1),
        "oauth": st.fixed_dictionaries({"clientSecret": _SECRET}),
        "tokn": _SECRET | st.lists(_SECRET, max_size=2),
        "args": st.lists(_SECRET, min_size=1, max_size=2).map(lambda secrets: ["--token", secrets[0]]),
        "idleTimeout": _SECRET,
        "disabled": _SECRET,
        "type": _SECRET,
        "url": _SECRET.map(lambda secret: f"https://u:{secret}@h/?k={secret}")
        | _SECRET.map(lambda secret: f"https://h:{secret}/"),
        "command": st.just("x"),
    },
)


@given(_PLACES)
def test_no_secret_leaves_in_the_printed_configuration_or_in_a_problem(entry: Any) -> None:
    config = parse_config({"mcpServers": {"s": entry}}, environ={"A": "a"})
    assert SECRET not in json.dumps(redacted(config))
    assert SECRET not in "\n".join(map(str, [*config.problems, *config.broken.values()]))


def test_the_schema_knows_every_key_and_is_plain_json() -> None:
    schema = config_schema()
    json.dumps(schema)
    assert schema["$defs"]["server"]["properties"]["idleTimeout"] == {
        "description": "It is stopped after it has been idle this long. Fractions are allowed; 0 = never. "
        "Unit: minutes.",
        "type": "number",
        "minimum": 0,
        "maximum": 1e9 / 60,
    }
    settings = schema["properties"]["settings"]["properties"]
    assert settings["idleTimeout"]["default"] == 10
    assert settings["restartBackoff"]["properties"]["minMs"]["default"] == 1000
    assert settings["toolPrefix"]["enum"] == ["mcp", "none", "server", "short"]


# ---- what is known to be secret, in texts that are not ours --------------------------------------------------------


def test_a_secret_is_hidden_line_by_line_and_those_of_everywhere_too() -> None:
    everywhere = Secrets([SecretValue("TOKEN", "everywhere-1234")])
    secrets = Secrets([SecretValue("PRIVATE_KEY", "first-line-99\n  second-line-77  \n")], everywhere)
    for text in ("everywhere-1234", "first-line-99", "second-line-77"):
        assert secrets.without(f"<{text}>") == "<***>"
        assert secrets.stand_in(f"<{text}>")
    assert everywhere.without("<first-line-99>") == "<first-line-99>"
    assert secrets.without_any({"second-line-77": ["first-line-99", 7]}) == {"***": ["***", 7]}


def test_a_login_is_hidden_by_its_password_however_it_is_told() -> None:
    coded = base64.b64encode(b"anna:hunter-2345").decode()
    for secrets in (
        Secrets([SecretValue("Authorization", f"Basic {coded}")]),
        Secrets(of_environment({"HTTP_PROXY": "http://anna:hunter-2345@proxy:1"})),
    ):
        assert secrets.without("the password hunter-2345 is wrong") == "the password *** is wrong"
        assert "anna:hunter" not in secrets.without("anna:hunter-2345")
    (found,) = of_environment({"HTTP_PROXY": "http://anna:hunter-2345@proxy:1", "HOME": "/home/anna"})
    assert (found.name, found.value) == ("the login in HTTP_PROXY", "anna:hunter-2345")


def test_what_only_begins_like_a_secret_stays_and_costs_nothing() -> None:
    secrets = Secrets([SecretValue("TOKEN", "abcdefghijkl" + "0123456789" * 3)])
    text = "abcdefghijkl is the alphabet, abcdefghijkl again, and abcdefghijkl01 once more."
    assert secrets.without(text) == text


def test_a_session_that_is_opened_again_by_the_same_name_has_its_secrets_hidden_again() -> None:
    known, definition = KnownSecrets([SecretValue("TOKEN", "everywhere-1234")]), object()
    own, general = SecretValue("TOKEN", "of-the-session-1"), SecretValue("TOKEN", "of-the-server-1")
    text = "everywhere-1234 of-the-server-1 of-the-session-1"
    asked: list[str] = []

    def find(*found: SecretValue) -> list[SecretValue]:
        asked.append(found[0].value)
        return [*found]

    known.learn("s", definition, lambda: find(general))
    known.learn("s", definition, lambda: find(general))
    assert asked == ["of-the-server-1"], "one definition is looked at once"
    address = Address.of_session("s", "x")
    for _ in range(2):
        known.learn("s", definition, lambda: find(own), "x")
        assert "of-the-session-1" not in known.of(address).without(text)
        assert "of-the-session-1" in known.of(Address("s")).without(text)
        assert known.of(Address.of_session("t", "x")).without(text) == f"*** {text.partition(' ')[2]}"
        known.forget("y")
        assert "of-the-session-1" not in known.of(address).without(text)
        known.forget("x")
        assert known.of(address).without(text) == "*** *** of-the-session-1"


@for_each("letter", string.ascii_letters)
def test_what_a_short_option_takes_is_hidden_where_it_may_be_a_secret(letter: str) -> None:
    secret = letter in "kKpPtTuU"
    for arg, kept in ((f"-{letter}Hunter-2", f"-{letter}"), (f"-{letter}=Hunter-2", f"-{letter}=")):
        assert Hider().arguments([arg]) == [f"{kept}***" if secret else arg]
    for plain in ("verbose", "8080", "127.0.0.1:80", "./file", "@file"):
        assert Hider().arguments([f"-{letter}{plain}"]) == [f"-{letter}{plain}"]


def test_what_a_reference_stands_for_is_secret_also_when_its_server_cannot_be_reached() -> None:
    definition = ServerDefinition(
        "s", url="https://h/${GREENROOM_TEST_MISSING}", headers={"Authorization": "Bearer ${TOK}"}
    )
    found = {hidden.value for hidden in secrets_of(definition, {"TOK": "the-value-of-it"})}
    assert "the-value-of-it" in found


def test_what_is_inherited_may_be_secret() -> None:
    environ = {"TOKEN_A": "s3cret", "OTHER": "not asked for", "LANG": "C", "LC_ALL": "C"}
    for wanted, names in (
        (("TOKEN*", "LANG"), {"TOKEN_A", "LANG"}),
        (True, {"TOKEN_A", "OTHER", "LANG", "LC_ALL"}),
        (None, set[str]()),
    ):
        hidden = secrets_of(ServerDefinition("s", command="x", inherit_env=wanted), environ)
        assert {one.name for one in hidden} == names
    broken = ServerDefinition("s", command="${NOWHERE}", args=("x",), inherit_env=("TOKEN*",))
    assert [one.name for one in secrets_of(broken, environ) if one.name in environ] == ["TOKEN_A"]


TOGETHER = "${FIRST}${SECOND}"
PLACES: dict[str, dict[str, Any]] = {
    "env": {"command": "x", "env": {"A": TOGETHER}},
    "args": {"command": "x", "args": ["--token", TOGETHER]},
    "headers": {"url": "https://h", "headers": {"A": TOGETHER}},
    "url": {"url": f"https://h/?key={TOGETHER}"},
    "of the command, env": {
        "url": "https://h", "requestHeadersCommand": {"command": "x", "env": {"A": TOGETHER}},
    },
    "of the command, args": {
        "url": "https://h", "requestHeadersCommand": {"command": "x", "args": ["--token", TOGETHER]},
    },
}  # fmt: skip


@for_each("place", PLACES)
def test_what_references_make_together_is_a_secret_wherever_they_stand(place: str) -> None:
    """Each part alone may be too short to be hidden in a text."""
    definition = parse_config({"mcpServers": {"s": PLACES[place]}}).servers["s"]
    found = {hidden.value for hidden in secrets_of(definition, {"FIRST": "abc", "SECOND": "xyz"})}
    assert any("abcxyz" in value for value in found)


@for_each("place", ["command", "cwd", "socket", "env_file"])
def test_a_path_shows_no_default_and_no_password(place: str) -> None:
    said = {"command": "x", place: "/a/${KEY:-ghp_abcdefghijklmnopqrstuvwxyz012345}/b"}
    if place == "socket":
        del said["command"]
    definition = ServerDefinition("s", **said)  # pyright: ignore[reportArgumentType]
    assert "ghp_" not in json.dumps(redacted_server(definition))
