"""No secret leaves the HTTP door: what clients bring is planted too, their tokens and the values of their sessions."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.gateway.test_http_serve import Served
from tests.support.forked import GREENROOM
from tests.support.gateway import PATIENCE, started
from tests.support.http_client import HttpClient
from tests.support.http_door import HELLO, request
from tests.support.planted import MARK, assert_clean
from tests.torture.test_torture_secrets import Plants, environment, greenroom, over_http, servers

PAGES = ("/health", "/health/all", "/ready", "/status", "/map", "/metrics", "/")
VARIABLES = {"x-planted-arg": "PLANTED_ARG", "x-own-token": "OUR_OWN_TOKEN"}


def client_of(one: Served, token: str, plant: Plants) -> HttpClient:
    """A client that brings a secret in each header where one may stand."""
    brought = {name: plant() for name in VARIABLES}
    return HttpClient(one.url.removesuffix("/mcp"), token, cookie=f"a={plant()}", **brought)


def call(client: HttpClient, server: str, tool: str) -> str:
    return json.dumps(client.call("mcp", tool=tool, server=server))


def test_t40_no_planted_secret_leaves_the_http_door(tmp_path: Path) -> None:
    plant = Plants()
    events, config, tokens = tmp_path / "events.jsonl", tmp_path / "mcp.json", tmp_path / "tokens"
    named, in_file = plant(), plant()
    env = {**environment(tmp_path, plant), "NAMED_TOKEN": named}
    tokens.write_text(f"ann {in_file}\n")
    http = {"tokens": {"ben": "${NAMED_TOKEN}"}, "sessionHeaders": VARIABLES, "metrics": True}
    http |= {"oauth": {"issuer": "http://127.0.0.1:1", "resource": "https://gateway.example/mcp"}}
    settings = {"bootstrap": False, "requestTimeoutMs": 60_000, "connectTimeoutMs": 60_000, "http": http}
    with over_http() as url:
        entries = servers(url, plant, tmp_path)
        config.write_text(json.dumps({"mcpServers": entries, "settings": settings}))
        options = ["--http", "127.0.0.1:0", "--token-file", os.fspath(tokens), "--events", os.fspath(events)]
        command = [*GREENROOM, "serve", "--config", os.fspath(config), *options]
        log = tmp_path / "stderr.txt"
        with (
            log.open("wb") as stderr,
            started(*command, env=env, cwd=tmp_path, stderr=stderr) as gateway,
        ):
            one = Served(gateway.process, log)
            with one.http:
                clients = [client_of(one, token, plant) for token in (in_file, named)]
                ann = clients[0]
                attack(ann, plant)
                for client in clients:
                    client.initialize()
                    for name in ("of_session", "of_session_http"):
                        assert "***" in call(client, name, "refuse"), "it has the values, and failed"
                    for name in ("of_session", "of_session_http", "login", "failing"):
                        for tool in ("junk", "die"):
                            call(client, name, tool)
                    client.call("mcp")
                for path in PAGES:
                    ann.send("GET", path)
                with one.http.stream(
                    "GET", one.url.replace("/mcp", "/events"), headers={**ann.headers, "last-event-id": "1"}
                ) as stream:
                    assert stream.status_code == 200
                    lines = stream.iter_lines()
                    ann.said += [next(lines) for _ in range(30)]
                status = greenroom(env, tmp_path, "status", "--json", "--config", os.fspath(config))
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE) == 0
    for client in clients:
        assert_clean("answers", "\n".join(client.said))
        session = client.headers["mcp-session-id"]
        for where, text in (("log", log.read_text()), ("events", events.read_text()), ("status", status)):
            assert session not in text, where
    assert_clean("status", status)
    assert_clean("log", log.read_text())
    assert_clean("events", events.read_text())
    assert_clean("config", greenroom(env, tmp_path, "config", "--config", os.fspath(config)))
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            assert_clean(file.name, file.read_bytes().decode(errors="replace"))


def attack(client: HttpClient, plant: Plants) -> None:
    """What is refused, with a secret in each place."""
    hello = request("initialize", 0, {**HELLO, "capabilities": {}})
    statuses = [
        client.send("POST", path, hello, **headers).status_code
        for path, headers in (
            ("/mcp", {"authorization": f"Bearer {plant()}"}),
            ("/mcp", {"authorization": f"Bearer eyJhbGciOiJFUzI1NiJ9.e30.{plant()}"}),
            ("/mcp", {"authorization": f"Basic {plant()}"}),
            (f"/mcp?token={plant()}", {"authorization": ""}),
            (f"/mcp/{plant()}", {}),
            (f"/{plant()}", {}),
            ("/mcp", {"mcp-session-id": plant()}),
            ("/mcp", {"origin": f"https://{plant()}.example"}),
            ("/mcp", {"host": f"{plant()}.example"}),
            ("/mcp", {"content-type": plant()}),
            ("/mcp", {"accept": plant()}),
            ("/mcp", {"mcp-protocol-version": plant()}),
        )
    ]
    assert statuses == [401, 401, 401, 401, 404, 404, 404, 403, 421, 415, 406, 400]
    client.said = [
        said.replace(MARK, "") if "Unsupported protocol version" in said else said for said in client.said
    ]
