"""What a server answers reaches a model as it is, whatever its members are called: only what is known to be a
credential, or has the form of one, is cut out. Names and values are drawn; they come as JSON, code, YAML or
`.env.example`."""

from __future__ import annotations

import json
import re
import secrets as drawn_secrets
import string
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.test_conversations import asking_room, echo, talking
from tests.gateway.test_meta import use
from tests.support import in_real_time
from tests.support.asking import AskingServer

from greenroom.config.credentials import SecretValue
from greenroom.config.scrubbing import Secrets

KNOWN = "correct horse: battery"
SECRETS = Secrets([SecretValue("DB_PASSWORD", KNOWN)])
FIRST = (
    "api",
    "access",
    "refresh",
    "id",
    "auth",
    "client",
    "private",
    "secret",
    "session",
    "x-auth",
    "aws",
    "github",
)
LAST = ("key", "token", "secret", "password", "passwd", "authorization", "credential", "credentials")


@st.composite
def names(draw: Any) -> str:
    """Names that credentials have, and names like them."""
    words = [*draw(st.lists(st.sampled_from(FIRST), max_size=2)), draw(st.sampled_from(LAST))]
    write = draw(st.sampled_from(["_", "-", " upper", "camel", ""]))
    if write == "camel":
        return words[0] + "".join(each.title() for each in words[1:])
    return "_".join(words).upper() if write == " upper" else write.join(words)


WORDS = st.from_regex(r"[A-Za-z]?[a-z]{2,11}", fullmatch=True)
LABELS = st.from_regex(r"[a-z]{3,11}", fullmatch=True)
SUFFIXES = st.from_regex(r"[bcdf2456789]{5,10}|v[0-9]{1,2}", fullmatch=True)  # as Kubernetes writes them
ORDINARY = st.one_of(
    WORDS,
    st.lists(WORDS, min_size=1, max_size=6).map(" ".join),
    st.lists(WORDS, min_size=2, max_size=5).map("-".join),
    st.builds(
        lambda words, tail: "-".join([*words, tail]), st.lists(LABELS, min_size=1, max_size=4), SUFFIXES
    ),
    st.lists(WORDS, min_size=2, max_size=4).map("_".join).map(str.upper),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: "${" + "_".join(words).upper() + "}"),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: "/" + "/".join(words)),
    st.lists(WORDS, min_size=1, max_size=3).map(
        lambda words: "https://" + ".".join(words) + ".example/x?a=b"
    ),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f"<your-{'-'.join(words)}-here>"),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: "{{ " + ".".join(words) + " }}"),
    st.sampled_from(
        ["", "none", "include", "***", "x", "1.2.3", "2026-11-28T20:15:00Z", "true", "xoxb-your-token"]
    ),
    st.sampled_from(["sk-", "ghp_", "xoxb-", "hf_", "sk_live_", "github_pat_"]).map(
        lambda begin: begin + "x" * 40
    ),
    st.lists(WORDS, min_size=5, max_size=6).map(lambda words: "sk-" + "-".join(words)),
    st.text(" .:/{}$\"\\'<>\n", max_size=12),
)
SHAPED = st.builds(
    lambda seed, alphabet, length: "".join(Random(seed).choices(alphabet, k=length)),
    st.integers(0, 1 << 32),
    st.sampled_from(
        [string.ascii_letters + string.digits, "0123456789abcdef", string.ascii_letters + "0123456789-_"]
    ),
    st.integers(32, 64),
).filter(lambda text: max(map(len, re.split("[-_]", text))) >= 24)
TOKENS = st.one_of(  # of some service
    SHAPED.map(lambda text: "sk-" + text.replace("-", "a")),
    SHAPED.map(lambda text: "ghp_" + "".join(filter(str.isalnum, text)) + "aB3" * 7),
    SHAPED.map(lambda text: "glpat-" + text),
    st.just(KNOWN),
)


def as_json(name: str, value: str) -> str:
    return json.dumps({"n": 1, name: value}, indent=1)


WRITERS = {
    "json": as_json,
    "json in json": lambda name, value: json.dumps({"file": json.dumps({name: value})}),
    "code": lambda name, value: f"def f():\n    return {as_json(name, value)}  # see above\n",
    "lexer": lambda name, value: f"const t = {{type: 'NAME', \"{name}\": {json.dumps(value)}}};",
    "yaml": lambda name, value: f"env:\n  {name}: {json.dumps(value)}\n  - {name}\n",
    "env": lambda name, value: f"# set this\n{name}={value}\n",
}  # fmt: skip
FILES = st.sampled_from([*WRITERS.values()])


def passed(text: str) -> str:
    """A text of a result, as a model is shown it."""
    raw = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    return json.loads(SECRETS.scrub(raw))["content"][0]["text"]


@given(names(), ORDINARY, FILES)
@example("token", "${ENV_TOKEN}", as_json)
@example("credentials", "include", as_json)
@example("secret", "arn:aws:secretsmanager:us-east-1:123456789012:secret:db", as_json)
def test_an_ordinary_value_stays_under_any_name(name: str, value: str, write: Any) -> None:
    text = write(name, value)
    assert passed(text) == text
    raw = json.dumps({"structuredContent": {name: value, "list": [{name: value}]}}).encode()
    assert SECRETS.scrub(raw) is raw


@given(st.one_of(names(), WORDS), TOKENS, FILES)
def test_a_token_and_a_known_secret_go_under_any_name(name: str, value: str, write: Any) -> None:
    assert value not in passed(write(name, value))


@given(st.sampled_from(["token", "api_key", "clientSecret", "PASSWORD", "x-api-key"]), SHAPED, st.booleans())
@example("token", "hqqka_TUONwa7b_hRXlSxXis9FPrL0-Hr2NcSZgYw20", False)  # words by chance
@example("token", "teb_zB187R5p4-f9hW_Z5k-3odsorWg0K-D-Y6f70J8", False)
def test_a_random_value_goes_under_the_name_of_a_credential(name: str, value: str, scheme: bool) -> None:
    said = f"Bearer {value}" if scheme else value
    for write in (WRITERS["json"], WRITERS["json in json"], WRITERS["code"]):
        assert value not in passed(write(name, said))


@given(SHAPED)
def test_a_random_value_stays_under_a_name_that_says_nothing(value: str) -> None:
    """A hash, a commit, an id, the integrity of a package: nothing says that they are secret."""
    for text in (f'{{"integrity": "{value}"}}', f"commit {value}", f"id: {value}"):
        assert passed(text) == text


def test_a_private_key_goes_and_a_word_about_one_stays() -> None:
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    body = "\n".join(drawn_secrets.token_urlsafe(48) for _ in range(12))
    key = f"{begin}\n{body}\n{end}\n"
    for text in (as_json("private_key", key), WRITERS["json in json"]("privateKey", key)):
        assert not any(line in passed(text) for line in body.splitlines())
    for value in (begin, f"{begin}\n...\n{end}\n", "the key that begins with -----BEGIN PRIVATE KEY-----"):
        assert passed(as_json("private_key", value)) == as_json("private_key", value)


SAID = [
    '{"token": "${ENV_TOKEN}", "password": "see-vault"}',
    '{"token":"identifier","type":"NAME"}',
    'fetch("/x", {"credentials":"include"})',
    '{"authorization":"none"}',
    'kind: X\nspec: {"secret":"db-credentials"}',
    'return {"secret": "x"}',
    '<div class="sk-toggleable__label-arrow">',
    "SLACK_BOT_TOKEN=xoxb-your-token\nOPENAI_API_KEY=sk-your-openai-api-key-here\n",
]


@pytest.mark.parametrize("exposed", ["proxy", "meta"])
@in_real_time
async def test_a_file_that_a_model_reads_is_the_file(exposed: str) -> None:
    room = asking_room({"s": AskingServer({"echo": echo})})
    async with room, talking(room, exposed) as talk, talk("ann") as ann:
        for text in SAID:
            given: dict[str, Any] = {"tool": "s_echo", "args": {"a": text}}
            if exposed == "meta":
                given = {"server": "s", "tool": "echo", "args": {"a": text}}
            said = await use(ann, "mcp" if exposed == "proxy" else "mcp_call", **given)
            assert _shows(said, text)


def _shows(said: Any, text: str) -> bool:
    """Whether a text is somewhere in a value, also in JSON in its texts."""
    if isinstance(said, str):
        inner = json.loads(said) if said[:1] in ("{", "[", '"') and _is_json(said) else None
        return text in said or (inner is not None and _shows(inner, text))
    each = [*said.values()] if isinstance(said, dict) else said if isinstance(said, list) else []
    return any(_shows(one, text) for one in each)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
