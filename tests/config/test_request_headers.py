"""`requestHeadersCommand`: a program that gives headers for each request. Real programs, a real HTTP server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.support import in_real_time, run
from tests.support.gateway import gone_within
from tests.support.raw_http import raw_http
from tests.support.rows import for_each
from tests.support.stdio import until
from tests.support.teller import room_of

from greenroom import CallError
from greenroom.actors.transports.http_client import OURS, signing
from greenroom.actors.transports.http_faults import ExchangeBroken
from greenroom.config.credentials import SecretValue
from greenroom.config.masking import redacted
from greenroom.config.parse import ConfigLayer, merge, parse_config
from greenroom.errors import ConnectFailed
from greenroom.protocol.errors import Reach


def shell(script: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"command": "/bin/sh", "args": ["-c", script, "sh", *args], **more}


SIGN = 'cat > "$1/$$"; printf \'{"X-Signature": "planted/%s/%s", "X-Team": "of-the-command"}\' $$ "$SALT"'


@in_real_time
async def test_each_request_has_the_headers_that_its_command_gives_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_OURS", "a-salt-of-ours")
    with raw_http() as server:
        asked = shell(SIGN, str(tmp_path), env={"SALT": "${OF_OURS}"})
        entry = {"url": server.url, "headers": {"X-Team": "mine"}, "requestHeadersCommand": asked}
        async with room_of(h=entry) as room:
            assert (await room.call("h_ok")).text == "ok"
            shown = json.dumps(redacted(room.config)) + str(room.status())
            assert "planted" not in shown
            assert "a-salt" not in shown
        assert len(server.requests) >= 3
        for seen in server.requests:
            assert seen.headers["x-team"] == "of-the-command"
            _, number, salt = seen.headers["x-signature"].split("/")
            assert salt == "a-salt-of-ours"
            told = json.loads((tmp_path / number).read_text())
            assert (told["version"], told["method"], told["url"]) == (1, seen.verb, server.url)
            body = base64.b64decode(told["bodyBase64"])
            assert (json.loads(body) if body else None) == seen.message
        assert len({seen.headers["x-signature"] for seen in server.requests}) == len(server.requests)


@in_real_time
async def test_it_runs_for_our_requests_alone_in_our_environment_and_what_it_gives_is_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OF_OURS", "planted")
    asked = shell('printf \'{"X-Signature": "%s-%s"}\' "$OF_OURS" "$MORE"', env={"MORE": "1"})
    config = parse_config({"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": asked}}})
    learned: list[SecretValue] = []
    sign = signing(config.servers["h"], learned.extend)
    login, ours = (httpx2.Request("POST", "http://h", extensions=more) for more in ({}, {OURS: True}))
    for request in (login, ours):
        await sign(request)
    assert "x-signature" not in login.headers
    assert ours.headers["x-signature"] == "planted-1"
    assert learned == [SecretValue("the header X-Signature", "planted-1")]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo planted-secret; exit 3", "failed with exit code 3"),
        ("echo planted-secret", "wrote something that is not JSON"),
        ("echo '[\"planted-secret\"]'", "wrote no JSON object"),
        ('echo \'{"X": ["planted-secret"]}\'', "wrote a header that is not text"),
        ("yes '[' | head -c 60000 | tr -d '\\n'", "wrote something that is not JSON"),
        ('echo \'{"X Y": "planted-secret"}\'', "gives a header that cannot be sent"),
        (r"""printf '%s' '{"X": "planted\nsecret"}'""", "gives a header that cannot be sent"),
        ('echo \'{"Content-Length": "9"}\'', "gives the header Content-Length, which frames the request"),
        ("yes planted-secret | head -c 70000", "wrote more than 65,536 bytes"),
    ],
)
@in_real_time
async def test_a_command_that_fails_fails_the_request_and_nothing_is_sent(script: str, what: str) -> None:
    with raw_http() as server:
        entry = {"url": server.url, "requestHeadersCommand": shell(script)}
        async with room_of(h=entry) as room:
            with pytest.raises(ConnectFailed) as failed:
                await room.call("h_ok")
        assert f"its requestHeadersCommand {what}" in str(failed.value)
        assert "planted" not in str(failed.value)
        assert server.requests == []


@in_real_time
async def test_one_request_that_it_refuses_is_not_sent_and_the_others_go_on(tmp_path: Path) -> None:
    script = 'test -e "$1" && exit 4; echo "{}"'
    with raw_http() as server:
        entry = {"url": server.url, "requestHeadersCommand": shell(script, str(tmp_path / "no"))}
        async with room_of(h=entry) as room:
            assert (await room.call("h_ok")).text == "ok"
            (tmp_path / "no").touch()
            with pytest.raises(CallError, match="failed with exit code 4") as failed:
                await room.call("h_ok")
            assert failed.value.reach is Reach.NOT_SENT
            (tmp_path / "no").unlink()
            assert (await room.call("h_ok")).text == "ok"


@in_real_time
async def test_one_that_takes_too_long_fails_the_request() -> None:
    with raw_http() as server:
        asked = shell("exec sleep 600", timeoutMs=100)
        async with room_of(h={"url": server.url, "requestHeadersCommand": asked}) as room:
            with pytest.raises(ConnectFailed, match=r'has not ended in 0\.1 s \(its "timeoutMs"\)'):
                await room.call("h_ok")
        assert server.requests == []


@in_real_time
async def test_one_that_nobody_waits_for_any_more_ends_with_all_it_has_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = 'sleep 600 & echo $! > "$1.new"; mv "$1.new" "$1"; sleep 600'
    with raw_http() as server:
        asked = shell(script, str(file), timeoutMs=60_000)
        entry = {"url": server.url, "requestHeadersCommand": asked}
        async with room_of(h=entry) as room, anyio.create_task_group() as tasks:
            tasks.start_soon(room.call, "h_ok")
            assert await until(file.exists)
            tasks.cancel_scope.cancel()
        assert gone_within({int(file.read_text())}) == set()


@for_each(
    ("value", "what"),
    [
        ("sign", 'requestHeadersCommand: must be an object like {"command": "…"}, is a string'),
        ({"args": []}, 'requestHeadersCommand: has no "command": add it'),
        ({"command": "x", "args": "a"}, "requestHeadersCommand.args: must be an array of strings"),
        ({"command": "x", "timeoutMs": 60_001}, "requestHeadersCommand.timeoutMs: is too large, 60000 is the most"),
        ({"command": "x", "timeout": 1}, "requestHeadersCommand.timeout: unknown key"),
        ({"command": "x", "envs": {}}, 'requestHeadersCommand.envs: unknown key, did you mean "env"?'),
        ({}, 'requestHeadersCommand: has no "command": add it'),
        ({"command": ""}, "requestHeadersCommand.command: is empty"),
        ({"command": None}, "requestHeadersCommand.command: must be a string"),
        ({"command": "x", "args": [1]}, "requestHeadersCommand.args[0]: must be a string"),
        ({"command": "x", "env": {"A": 1}}, "requestHeadersCommand.env.A: must be a string"),
    ],
)  # fmt: skip
def test_a_wrong_value_breaks_the_server_and_says_where(value: Any, what: str) -> None:
    config = parse_config(
        {"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": value}}}, strict=False
    )
    assert str(config.broken["h"]).startswith(f"config: mcpServers.h.{what}")


def test_it_belongs_to_the_url_that_it_was_written_beside() -> None:
    own = ConfigLayer(
        "own", {"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": {"command": "x"}}}}
    )
    config = merge([ConfigLayer("project", {"mcpServers": {"h": {"url": "http://evil"}}}), own])
    assert config.servers["h"].request_headers_command is None
    config = merge(
        [own, ConfigLayer("weaker", {"mcpServers": {"h": {"url": "http://h", "headers": {"A": "t"}}}})]
    )
    assert config.servers["h"].headers == {}, "and it may see what the others write"


def test_a_variable_that_is_not_set_is_a_warning() -> None:
    asked = {"command": "x", "args": ["${NOT_SET}"]}
    config = parse_config(
        {"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": asked}}}, environ={}
    )
    (problem,) = map(str, config.problems)
    assert problem.startswith("config: mcpServers.h.requestHeadersCommand.args[0]: it refers to the variable")


@in_real_time
async def test_it_is_told_the_whole_request_and_what_it_gives_is_stronger_in_any_case() -> None:
    learned: list[SecretValue] = []
    script = 'printf \'{"x-team": "%s", "X-Args": "\'"$1"\'", "X-Empty": ""}\' "$(base64 | tr -d "\\n")"'
    asked = shell(script, "two words")
    config = parse_config({"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": asked}}})
    sign = signing(config.servers["h"], learned.extend)
    request = httpx2.Request(
        "DELETE", "http://h/a?b=c", headers={"X-Team": "mine"}, content=b"\xff\n", extensions={OURS: True}
    )
    await sign(request)
    told = json.loads(base64.b64decode(request.headers["x-team"]))
    assert told == {"version": 1, "method": "DELETE", "url": "http://h/a?b=c", "bodyBase64": "/wo="}
    assert request.headers.get_list("x-team") == [request.headers["x-team"]]
    assert (request.headers["x-args"], request.headers["x-empty"]) == ("two words", "")
    assert {hidden.value for hidden in learned} == {request.headers["x-team"], "two words", ""}


@for_each("name", ["connection", "Content-Encoding", "CONTENT-LENGTH", "Host", "transfer-encoding"])
def test_it_may_not_make_another_request_of_it(name: str) -> None:
    asked = shell(f'echo \'{{"X-A": "1", "{name}": "x"}}\'')
    config = parse_config({"mcpServers": {"h": {"url": "http://h", "requestHeadersCommand": asked}}})

    async def main() -> None:
        request = httpx2.Request("POST", "http://h", extensions={OURS: True})
        with pytest.raises(ExchangeBroken, match=f"gives the header {name}, which frames the request"):
            await signing(config.servers["h"], lambda _: None)(request)
        assert "x-a" not in request.headers

    run("asyncio", main)
