"""Ordinary values of a configuration and of the environment stay in what a server says, and credentials do not."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import in_real_time
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import HELLO, started
from tests.support.lister import lister, tool
from tests.support.rows import for_each
from tests.support.teller import room_of, teller

from greenroom import CallError
from greenroom.config.credentials import SECRET_WORD, SecretValue, of_environment
from greenroom.config.masking import secrets_of
from greenroom.config.parse import parse_config
from greenroom.config.scrubbing import Secrets, scrubbed

ORDINARY = {
    "AWS_REGION": "us-east-1",
    "MODEL": "gpt-4o-mini",
    "PGDATABASE": "analytics_2",
    "PGHOST": "db01.eu-west-1.rds.example.com",
    "EMBEDDING": "meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "INSTANCE": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "API_VERSION": "2024-06-01-preview",
    "SINCE": "2025-11-25T00:00:00Z",
    "IMAGE": "ghcr.io/example/server:v1.2.3-alpine3.19",
    "PGPORT": "5432123",
    "MAX_TOKENS": "128000",
    "TOKEN_LIMIT": "4096000",
    "TOKENIZER": "o200k_base",
    "AUTH_TYPE": "client_credentials",
    "API_KEY_NAME": "production",
    "NOTION_DATABASE_ID": "1f2e3d4c5b6a79880716253443526170",
    "DATABASE_URL": "postgres://db.internal/main",
    "AUTH_URL": "https://login.example.com/oauth2/v1",
    "KEYCLOAK_REALM": "engineering",
    "LOG_FORMAT": "%(levelname)s %(message)s",
    "MAC": "00:1a:2b:3c:4d:5e",
    "MODE": "read-only",
    "CONTACT": "team-42@example.com",
}
PLACES = {
    "PWD": "/srv/shop/foo",
    "OLDPWD": "/foo",
    "INIT_CWD": "/srv/shop/foo",
    "SSH_AUTH_SOCK": "/tmp/ssh-Ab3dEfGh12Kl/agent.4242",
    "PASSWORD_STORE_DIR": "/srv/shop/.password-store",
    "COOKIE_DIR": "cookies/jar1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/srv/keys/project-1a2b3c4d5e6f.json",
    "GITHUB_TOKEN_FILE": "~/.config/github-token",
    "API_KEYS_HOME": "C:\\Users\\me\\keys",
}
CREDENTIALS = {
    "DB_PASSWORD": "hunter2",
    "API_TOKEN": "12345678",
    "SIGNING_KEY": "correct horse battery",
    "X_SECRET_ID": "5e884898-da28-4715-8d15-49d7f0c3b8a1",
    "ANYTHING": "q7Zk2Wm9x4TrB8Lp",
    "ELSE": "5f4dcc3b5aa765d61d8327deb882cf99",
    "HEADERS": '{"Authorization": "Bearer ntn_12ab34CD56ef78", "Version": "2022-06-28"}',
    "SENTRY": "https://5d41402abc4b2a76b9719d911017c592@o1.ingest.example.com/2",
    "AMQP": "amqp://app:s3cr3t-word@mq.internal/",
    "BASE": "https://h.example/v1?api_key=some-key-1&lang=en",
    "OPTIONS": "--verbose --token my-token-1",
    "AWS_SECRET_ACCESS_KEY": "/JalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEYaB",
}
SPOKEN = {  # what of it a text would quote
    "HEADERS": "ntn_12ab34CD56ef78",
    "SENTRY": "5d41402abc4b2a76b9719d911017c592",
    "AMQP": "s3cr3t-word",
    "BASE": "some-key-1",
    "OPTIONS": "my-token-1",
}


def secrets(env: dict[str, str], environ: dict[str, str] | None = None) -> Secrets:
    config = parse_config({"mcpServers": {"s": {"command": "x", "env": env}}})
    return Secrets(secrets_of(config.servers["s"], environ or {}), Secrets(of_environment(environ or {})))


def texts(value: str) -> list[str]:
    return [
        value,
        f"it is {value}.",
        f'{{"a": "{value}"}}',
        f"A={value}",
        f"({value}), and so on",
        f"{value}\nx",
    ]


@for_each("name", [*ORDINARY, *PLACES])
@for_each("how", ["written", "referred to", "inherited"])
def test_t55_ordinary_values_and_paths_pass(name: str, how: str) -> None:
    value = (ORDINARY | PLACES)[name]
    known = {
        "written": lambda: secrets({name: value}),
        "referred to": lambda: secrets({name: f"${{{name}}}"}, {name: value}),
        "inherited": lambda: secrets({}, {name: value}),
    }[how]()
    for text in (*texts(value), f"{value}/src/main.py", f"{value}bar"):
        assert known.without(text) == text
        raw = json.dumps([text, {text: 1}]).encode()
        assert scrubbed(raw, known.in_json()) is raw


@for_each("name", CREDENTIALS)
def test_t55_credentials_do_not(name: str) -> None:
    value = CREDENTIALS[name]
    said = SPOKEN.get(name, value)
    for known in (secrets({name: value}), secrets({name: f"${{{name}}}"}, {name: value})):
        for text in texts(said):
            assert said not in known.without(text), text
            raw = json.dumps([text, {text: 1}]).encode()
            assert said not in scrubbed(raw, known.in_json()).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hunter2", "hunter20 xhunter2 my_hunter2 hunter2-3 /srv/hunter2/x hunter2.example.com a.hunter2"),
        ("postgres", "postgresql /var/lib/postgres/data https://postgres.internal/x postgres-16 postgres.conf"),
        ("12345678", "123456789 1.12345678 12345678.5 id-12345678 /12345678/"),
    ],
)  # fmt: skip
def test_t55_a_credential_that_is_a_word_goes_only_where_it_stands_alone(value: str, text: str) -> None:
    known = secrets({"DB_PASSWORD": value})
    assert known.without(text) == text
    raw = json.dumps({"a": text, "b": text.split()}).encode()
    assert scrubbed(raw, known.in_json()) is raw
    alone = f"{value}, app:{value}@db \"{value}\" '{value}' x={value}; {value}. \n{value}\t{value}"
    assert known.without(alone) == alone.replace(value, "***")
    for written in (json.dumps([alone]), json.dumps([json.dumps(alone)])):
        found = scrubbed(written.encode(), known.in_json()).decode()
        assert found == written.replace(value, "***")


def test_t55_what_a_command_or_the_keyring_gives_is_a_credential_whatever_its_name() -> None:
    for value in ("hunter2", "develop", "20251124"):
        known = Secrets([SecretValue("BRANCH", value, known=True)])
        assert known.without(f"<{value}>") == "<***>"
    for name, value in (
        ("PROJECT_ROOT", "/srv/shop"),
        ("CONFIG", "/srv/shop/foo"),
        ("URL", "https://h.example/x"),
    ):
        assert Secrets([SecretValue(name, value, known=True)]).without(value) == value


# A word for a credential, with a colon behind it, makes one of what follows.
WORDS = st.from_regex(r"[A-Z]?[a-z]{3,9}", fullmatch=True).filter(lambda word: not SECRET_WORD.search(word))
ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_letters + string.digits + "-_",
    "0123456789abcdef",
)


@st.composite
def ordinary(draw: Any) -> str:
    """Words, numbers and versions, joined as they are in names of models, regions and hosts."""
    number = st.integers(0, 99).map(str)
    part = st.one_of(
        WORDS, number, number.map(lambda digits: f"{digits}B"), number.map(lambda digits: f"v{digits}")
    )
    parts = draw(st.lists(part, min_size=1, max_size=5))
    return draw(WORDS) + "".join(draw(st.sampled_from("-_./: ")) + each for each in parts)


@given(ordinary(), st.sampled_from(ALPHABETS), st.integers(0, 1 << 32), st.sampled_from([*CREDENTIALS]))
@example("claude-sonnet-4-20250514-v1:0", ALPHABETS[0], 1, "DB_PASSWORD")
def test_t55_of_planted_values_exactly_the_credentials_go(
    value: str, alphabet: str, seed: int, other: str
) -> None:
    choice = Random(seed).choice
    token = "".join(choice(alphabet) for _ in range(40))
    env = {"MODEL": value, "SOMETHING": token, other: CREDENTIALS[other]}
    said = SPOKEN.get(other, CREDENTIALS[other])
    text = f"{value} | {token} | {said} | {value}"
    known = secrets(env)
    assert known.without(text) == f"{value} | *** | *** | {value}"
    found = scrubbed(json.dumps([text]).encode(), known.in_json())
    assert json.loads(found) == [f"{value} | *** | *** | {value}"]


# ---- at the doors ----------------------------------------------------------------------------------------------------


def test_t55_a_gateway_passes_paths_and_ordinary_values_on_and_no_credential(tmp_path: Path) -> None:
    folder = tmp_path / "foo"
    folder.mkdir()
    named = {
        "PWD": os.fspath(folder),
        "SSH_AUTH_SOCK": f"{folder}/ssh/agent.1",
        "PASSWORD_STORE_DIR": f"{folder}/pw",
    }
    stays = [
        f"{folder}/src/main.py",
        f"{folder}bar",
        named["SSH_AUTH_SOCK"],
        "us-east-1",
        "gpt-4o-mini",
        "analytics_2",
    ]
    goes = ["hunter2", "q7Zk2Wm9x4TrB8Lp"]
    said = " ".join((*stays, *goes))
    entry = lister(
        folder, "s", tools=[tool("say")], results={"say": {"content": [{"type": "text", "text": said}]}}
    )
    entry["env"] = {
        "AWS_REGION": "us-east-1", "MODEL": "${MODEL}", "PGDATABASE": "analytics_2",
        "DB_PASSWORD": goes[0], "SOMETHING": goes[1],
    }  # fmt: skip
    entry["inheritEnv"] = True
    missing = {"command": f"{folder}/bin/server", "env": {"DB_PASSWORD": goes[0]}}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": entry, "gone": missing}}))
    environment = {
        **named, "PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path), "MODEL": "gpt-4o-mini",
        "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"), "XDG_RUNTIME_DIR": os.fspath(tmp_path),
    }  # fmt: skip
    log = tmp_path / "log.txt"

    def check(where: str, text: str) -> None:
        assert [each for each in stays if each not in text] == [], where
        assert [each for each in goes if each in text] == [], where

    for exposed in ("proxy", "meta"):
        options = ["--config", os.fspath(config), "--expose", exposed]
        with (
            log.open("wb") as stderr,
            started(*GREENROOM, "serve", *options, env=environment, cwd=folder, stderr=stderr) as gateway,
        ):
            gateway.answer(gateway.send("initialize", HELLO))
            gateway.tell("notifications/initialized")
            if exposed == "proxy":
                check("mcp", json.dumps(gateway.mcp(tool="s_say")))
                lost = json.dumps(gateway.mcp(tool="x", server="gone"))
                assert f"{folder}/bin/server" in lost, "the error of a program that is not there"
            else:
                code = 'r = await call("s", "say", {})\nstr(r)'
                params = {"name": "mcp_execute", "arguments": {"code": code}}
                check("mcp_execute", json.dumps(gateway.answer(gateway.send("tools/call", params))))
            assert gateway.end() == 0
        assert f"{folder}/bin/server" in log.read_text() or exposed == "meta"
    done = run_forked(
        [*GREENROOM, "call", "s_say", "--config", os.fspath(config)], env=environment, cwd=folder, text=True
    )
    assert [each for each in stays if each not in done.stdout] == []


@in_real_time
async def test_what_the_settings_let_every_server_inherit_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "q7Zk2Wm9x4TrB8Lp")
    async with room_of({"inheritEnv": True}, t=teller()) as room:
        with pytest.raises(CallError, match="fatal") as lost:
            await room.call("t_die")
    assert 'fatal: ["***"' in str(lost.value), "it was started with it"
