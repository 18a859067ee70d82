"""No secret leaves: planted in every way in, looked for at every way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import started
from tests.support.loops import on_one_loop
from tests.support.otlp import collector
from tests.support.planted import MARK, assert_clean
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.config.credentials import SecretValue
from greenroom.config.masking import redacted, secrets_of
from greenroom.config.parse import parse_config
from greenroom.config.references import expand_definition
from greenroom.config.scrubbing import Secrets
from greenroom.protocol.errors import CallError, ConfigError
from greenroom.protocol.safe_text import in_words

BLABBER = Path(__file__).parents[1] / "support" / "blabber.py"
BLABBER_HTTP = BLABBER.with_name("blabber_http.py")
PYTHON = [sys.executable, "-S", os.fspath(BLABBER)]


class Plants:
    """Secrets to plant, each another one."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, inside: str = "hidden") -> str:
        self._count += 1
        return f"{MARK}{self._count}-{inside}-{self._count}{MARK}"


def servers(url: str, plant: Plants, folder: Path) -> dict[str, Any]:
    """A server for each way in, with each a failure that would show it."""
    host = url.removeprefix("http://")
    header = {"X-Team-Key": plant()}
    stdio: dict[str, list[str]] = {
        "option": ["--token", plant()],
        "joined": [f"--api-key={plant()}"],
        "short": [f"-k{plant()}"],
        "assigned": ["-e", f"SOME_TOKEN={plant()}"],
        "shell": [
            f"curl -u me:{plant()} -H 'Authorization: Bearer {plant()}' https://me:{plant()}@h/?key={plant()}"
        ],
        "url": [f"https://me:{plant()}@h/mcp?api_key={plant()}#{plant()}"],
        "default": ["${NOT_SET:-" + plant() + "}"],
        "reference": ["--pass", "${PLANTED_ARG}"],
        "quoting": ["--secret", plant("a'b\"c\\d é\u20ac")],
    }
    entries: dict[str, Any] = {
        name: {"command": PYTHON[0], "args": [*PYTHON[1:], when, *args]}
        for name, args in stdio.items()
        for when in ("call",)
    }
    entries["env"] = {
        "command": PYTHON[0],
        "args": [*PYTHON[1:], "call"],
        "env": {"WHATEVER": plant("12345")},
    }
    env_file = folder / "planted.env"
    env_file.write_text(f"WHATEVER_ELSE={plant()}\n")
    entries["env_file"] = {
        "command": PYTHON[0],
        "args": [*PYTHON[1:], "call"],
        "envFile": os.fspath(env_file),
    }
    entries["bad_file"] = {"command": PYTHON[0], "envFile": os.fspath(folder / "bad.env")}
    (folder / "bad.env").write_text(f"A=1\n{plant()} {plant()}\n")
    entries["inherits"] = {"command": PYTHON[0], "args": [*PYTHON[1:], "call"], "inheritEnv": True}
    entries["proxied"] = {
        "command": PYTHON[0],
        "args": [*PYTHON[1:], "start"],
        "env": {"KEY_FILE_TEXT": plant("a\nb")},
    }
    entries["listless"] = {"command": PYTHON[0], "args": [*PYTHON[1:], "tools/list", "--token", plant()]}
    entries["nowhere"] = {
        "command": "/nowhere/at-all",
        "args": ["--token", plant()],
        "env": {"A_TOKEN": plant()},
    }
    entries["of_session"] = {
        "command": PYTHON[0],
        "args": [*PYTHON[1:], "call", "--pass", "${session.PLANTED_ARG}"],
        "env": {"WHATEVER": "${session.OUR_OWN_TOKEN}"},
        "isolation": "per_session",
    }
    entries["of_session_http"] = {
        "url": f"http://me:${{session.PLANTED_ARG}}@{host}/mcp?key=${{session.OUR_OWN_TOKEN}}",
        "headers": {"X-Key": "${session.PLANTED_ARG}"},
        "isolation": "per_session",
    }
    entries["headers"] = {"url": f"{url}/mcp", "headers": header}
    entries["bearer"] = {"url": f"{url}/mcp", "bearerToken": plant()}
    entries["from_file"] = {"url": f"{url}/401", "bearerTokenEnv": "PLANTED_WITH_NEWLINE"}
    entries["accented"] = {"url": f"{url}/mcp", "headers": {"X-Key": "${PLANTED_WITH_ACCENT}"}}
    script = f"printf '%s' '{json.dumps({'X-Signature': plant()})}'"  # it shows every header that it gets
    signed = {"command": "/bin/sh", "args": ["-c", script], "env": {"A_KEY": plant()}}
    entries["signed"] = {"url": f"{url}/mcp", "requestHeadersCommand": signed}
    entries["unsigned"] = {
        "url": f"{url}/mcp",
        "requestHeadersCommand": {"command": "/bin/sh", "args": ["-c", f"echo {plant()}; exit 3"]},
    }
    entries["broken_line"] = {"url": f"{url}/mcp", "headers": {"X-Key": plant("a\nb")}}
    entries["login"] = {"url": f"http://me:{plant()}@{host}/mcp?key={plant()}"}
    entries["failing"] = {"url": f"http://me:{plant()}@{host}/500?key={plant('%C3%A9')}", "headers": header}
    entries["moved"] = {"url": f"http://me:{plant()}@{host}/moved?key={plant()}"}
    entries["refused"] = {"url": f"http://me:{plant()}@127.0.0.1:1/mcp?key={plant()}", "headers": header}
    entries["by_proxy"] = {"url": f"http://me:{plant()}@server.invalid/mcp", "bearerToken": plant()}
    entries["sse"] = {
        "url": f"http://me:{plant()}@127.0.0.1:1/sse",
        "httpTransport": "sse",
        "headers": header,
    }
    entries["extra"] = {
        "command": PYTHON[0],
        "args": [*PYTHON[1:], "start"],
        "oauth": {"clientSecret": plant()},
    }
    return entries


def environment(folder: Path, plant: Plants) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
        "PLANTED_ARG": plant(),
        "PLANTED_WITH_NEWLINE": plant() + "\r\n",
        "PLANTED_WITH_ACCENT": plant("ß"),
        "OUR_OWN_TOKEN": plant(),
        "HTTP_PROXY": f"http://me:{plant()}@127.0.0.1:1/",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def over_http() -> Generator[str]:
    process = subprocess.Popen([sys.executable, "-S", BLABBER_HTTP], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def greenroom(env: dict[str, str], folder: Path, *arguments: str) -> str:
    command = [*GREENROOM, *arguments]
    done = run_forked(command, env=env, cwd=folder, text=True)
    return f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("door", ["proxy", "direct"])
def test_t40_no_planted_secret_leaves_a_gateway(tmp_path: Path, door: str) -> None:
    plant = Plants()
    events, log, config = tmp_path / "events.jsonl", tmp_path / "stderr.txt", tmp_path / "mcp.json"
    env = environment(tmp_path, plant)
    trace = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": f"a={env['OUR_OWN_TOKEN']}",
        "baggage": f"a={env['OUR_OWN_TOKEN']}",
    }
    with over_http() as url, collector() as taken:
        entries = servers(url, plant, tmp_path)
        settings = {"bootstrap": False, "requestTimeoutMs": 60_000, "connectTimeoutMs": 60_000}
        config.write_text(json.dumps({"mcpServers": entries, "settings": settings}))
        options = ["--config", os.fspath(config), "--expose", door, "--events", os.fspath(events)]
        options += ["--otlp", taken.url]
        with (
            log.open("wb") as stderr,
            started(*GREENROOM, "serve", *options, env=env, cwd=tmp_path, stderr=stderr) as gateway,
        ):
            gateway.initialize()
            asked = [
                gateway.send("tools/call", {"name": f"{name}_{tool}", "arguments": {}, "_meta": trace})
                if door == "direct"
                else gateway.start_mcp(tool=tool, server=name)
                for name in entries
                for tool in ("refuse", "junk")
            ]
            if door == "proxy":
                asked += [gateway.start_mcp(connect=name) for name in entries]
                asked += [
                    gateway.start_mcp(),
                    gateway.start_mcp(server="option"),
                    gateway.start_mcp(search="refuse"),
                ]
            for number in asked:
                gateway.answer(number)
            last = [
                gateway.send("tools/call", {"name": f"{name}_die", "arguments": {}})
                if door == "direct"
                else gateway.start_mcp(tool="die", server=name)
                for name in ("option", "env", "env_file", "inherits", "quoting", "of_session", "headers")
            ]
            for number in last:
                gateway.answer(number)
            for command in (
                (["status"], ["status", "--json"], ["reconnect", "extra"]) if door == "proxy" else ()
            ):
                assert_clean(
                    " ".join(command), greenroom(env, tmp_path, *command, "--config", os.fspath(config))
                )
            assert gateway.end() == 0
            assert_clean("answers", json.dumps(gateway.answered, ensure_ascii=False))
            assert_clean("messages", json.dumps([*gateway.told, *gateway.asked], ensure_ascii=False))
            texts = json.dumps(gateway.answered) + log.read_text()
    for word in ("***", "no connection can be made", "X-Key"):
        assert word in texts, "they have failed, and said so"
    assert_clean("log", log.read_text())
    assert {"tools/call refuse", "connect"} <= {span.name for span in taken.spans}
    assert_clean("what a collector is told", b"".join(taken.bodies).decode(errors="replace"))
    assert_clean("events", events.read_text())
    alone = ("config", "call option_refuse", "call nowhere_refuse", "refresh extra", "status")
    for command in map(str.split, alone if door == "proxy" else ()):
        assert_clean(" ".join(command), greenroom(env, tmp_path, *command, "--config", os.fspath(config)))
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            assert_clean(file.name, file.read_bytes().decode(errors="replace"))


@on_one_loop
def test_t40_no_planted_secret_is_in_an_error_of_an_embedded_room(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plants()
    for name, value in environment(tmp_path, plant).items():
        if name not in ("PATH", "HOME"):
            monkeypatch.setenv(name, value)

    async def body(url: str) -> None:
        entries = servers(url, plant, tmp_path)
        cache = tmp_path / "cache.json"
        variables = {"PLANTED_ARG": plant(), "OUR_OWN_TOKEN": plant()}
        async with (
            Greenroom.open({"mcpServers": entries}, cache_path=cache, bootstrap=False) as room,
            room.session("ann", variables=variables) as session,
        ):
            said: list[str] = [repr(room.config), str(room.config), repr(session), str(session)]
            for name in entries:
                for tool in ("refuse", "die", "refuse"):
                    try:
                        await (session if "session" in name else room).call(f"{name}_{tool}", {})
                    except CallError as error:
                        said += [
                            str(error),
                            repr(error),
                            json.dumps(error.as_dict(), default=str),
                            error.message,
                        ]
            said += map(repr, room.status())
        assert sum("of_session" in each and "***" in each for each in said) > 3, (
            "they have the values, and failed"
        )
        for each in said:
            assert_clean("error", each)
        assert_clean("cache", cache.read_text() if cache.exists() else "")

    with over_http() as url:
        run(backend, lambda: body(url))


# ---- what the definition says ----------------------------------------------------------------------------------------


@for_each("value", ["Bearer x\n", "\r\nBearer x \r\n", " Bearer x\t"])
def test_t40_a_header_is_stripped_when_it_is_resolved(value: str) -> None:
    entry = {"url": "http://h", "headers": {"Authorization": "${T}"}}
    definition = parse_config({"mcpServers": {"s": entry}}).servers["s"]
    assert expand_definition(definition, {"T": value}).definition.headers == {"Authorization": "Bearer x"}


@for_each("value", ["a\nb", "a\x00b", "caf\u00e9-Qz7", "\ud83d"])
def test_t40_a_header_that_cannot_be_sent_is_named_and_not_quoted(value: str) -> None:
    entry = {"url": "http://h", "headers": {"X-Api-Key": "${T}"}}
    config = parse_config({"mcpServers": {"s": entry}}, environ={"T": value})
    assert "X-Api-Key" in str(config.broken["s"])
    assert "Qz7" not in str(config.broken["s"])
    with pytest.raises(ConfigError, match="X-Api-Key"):
        expand_definition(parse_config({"mcpServers": {"s": entry}}).servers["s"], {"T": value})


@for_each(
    ("argument", "shown"),
    [
        ("${X:-Qz7}", "${X:-***}"),
        ("-kQz7SECRET", "-k***"),
        (
            "sh -c 'curl -H \"Authorization: Bearer Qz7\" h'",
            "sh -c 'curl -H \"Authorization: Bearer ***\" h'",
        ),
        ("TOKEN='Qz7' node x.js", "TOKEN='***' node x.js"),
        ("run --password Qz7 --verbose", "run --password *** --verbose"),
        ("curl https://me:Qz7@h/p?k=Qz7", "curl https://***@h/p?k=***"),
        ("--env=API_KEY=Qz7", "--env=API_KEY=***"),
        ("X-Api-Key:Qz7", "X-Api-Key: ***"),
        ("-p8080:80", "-p8080:80"),
        ("-transport", "-transport"),
        ("--author", "--author"),
        ("echo hello && ls /tmp", "echo hello && ls /tmp"),
    ],
)
def test_t40_what_is_shown_of_an_argument(argument: str, shown: str) -> None:
    entry = {"command": "sh", "args": [argument]}
    assert redacted(parse_config({"mcpServers": {"s": entry}}))["mcpServers"]["s"]["args"] == [shown]


# ---- the known secrets, in any text ----------------------------------------------------------------------------------


@given(st.text(min_size=8, max_size=60), st.text(max_size=20), st.text(max_size=20))
def test_t40_a_known_secret_is_found_however_it_is_quoted(value: str, before: str, after: str) -> None:
    secret = f"{MARK}{value.strip()}{MARK}".replace("\ud800", "x")
    try:
        secret.encode()
    except UnicodeEncodeError:
        return
    known = Secrets([SecretValue("TOKEN", secret)])
    for spelling in (secret, json.dumps(secret), repr(secret), ascii(secret), repr(secret.encode())):
        assert MARK not in known.without(f"{before}{spelling}{after}").replace(before, "").replace(after, "")
    assert MARK not in json.dumps(known.without_any({"a": [secret, {secret: secret}]}))


def test_t40_a_secret_that_is_cut_short_is_found_and_ordinary_words_stay() -> None:
    known = Secrets(
        [SecretValue("API_TOKEN", "abcdefghijklmnopqrstuvwxyz"), SecretValue("NODE_ENV", "production")]
    )
    assert known.without("header abcdefghijklmnopqr… is bad") == "header ***… is bad"
    assert known.without("it said abcdefg") == "it said ***"
    assert known.without("in production, abcdefg is said") == "in production, abcdefg is said"
    assert known.without("http://me:pw@h/ and http://h/") == "http://***@h/ and http://h/"


def test_t40_an_exception_that_is_not_ours_says_what_it_says_and_not_what_it_was_made_from() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        f"{MARK}é".encode("ascii")
    assert MARK in repr(caught.value)
    assert MARK not in in_words(caught.value)


def test_t40_the_secrets_of_a_definition_are_what_its_file_and_its_environment_hold() -> None:
    entry = {
        "command": "x",
        "args": ["--token", "${T}", "${D_KEY:-default-1}"],
        "env": {"A_TOKEN": "value-12", "LOG": "debug", "HOME": "/home/me"},
        "oauth": {"clientSecret": "inner-123"},
    }
    found = secrets_of(parse_config({"mcpServers": {"s": entry}}).servers["s"], {"T": "token-1234"})
    text = "token-1234 default-1 value-12 inner-123 /home/me debug"
    assert Secrets(found).without(text) == "*** *** *** *** /home/me debug"
