"""`greenroom page`: the page of a gateway that has no door for a browser, in the owner's browser."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import GREENROOM, greenroom_in, popen_forked
from tests.support.gateway import PATIENCE, Gateway, serve
from tests.support.patience import until
from tests.support.shapes import conforms
from tests.support.whole import whole

from greenroom.cli import page_command
from greenroom.cli.main import run
from greenroom.protocol.version import VERSION

ECHO = {
    "command": sys.executable,
    "args": [
        "-S",
        os.fspath(Path(__file__).parents[2] / "src" / "greenroom" / "testing" / "servers" / "echo.py"),
    ],
}


class Page:
    """The page that a command serves, as a browser would use it."""

    def __init__(self, url: str) -> None:
        self.root, self.token = url.split("/#token=")

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        said = {"authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {k: v for k, v in said.items() if v})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if path != "/" else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    @contextmanager
    def watching(self) -> Generator[Iterator[tuple[str, Any]]]:
        request = urllib.request.Request(
            f"{self.root}/page/watch", headers={"authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:

            def messages() -> Iterator[tuple[str, Any]]:
                name = ""
                for line in map(bytes.decode, answer):
                    if line.startswith("event: "):
                        name = line[7:].strip()
                    elif line.startswith("data: "):
                        yield name, json.loads(line[6:])

            yield messages()


@contextmanager
def page_of(folder: Path, *options: str, browser: str | None = None) -> Generator[Page]:
    silent = ["--no-browser"] if browser is None else []
    command = [*GREENROOM, "page", *silent, "--config", os.fspath(folder / "mcp.json"), *options]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
        **({} if browser is None else {"BROWSER": browser}),
    }
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen_forked(command, env=environment, cwd=folder, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = process.stdout.readline()
            if "--json" in options:
                said += "".join(iter(process.stdout.readline, "}\n")) + "}"
                conforms("page", json.loads(said))
            found = re.search(r"http://127\.0\.0\.1:\d+/#token=[\w-]+", said)
            assert found is not None, (said, process.stderr.read())
            yield Page(found[0])
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[Gateway, Path]]:
    servers = {"echo": ECHO, "all": whole("all")}
    with serve(tmp_path, servers, approve=["all_*"]) as one:
        one.initialize()
        yield one, tmp_path


def test_an_owner_looks_and_acts_at_a_gateway_on_stdio(gateway: tuple[Gateway, Path]) -> None:
    _, folder = gateway
    with page_of(folder) as page:
        status, text = page.ask("/", authorization="")
        assert (status, "<script" in text, page.token in text) == (200, True, False)
        assert page.ask("/page/hello")[1]["may"] == "act"
        with page.watching() as messages:
            name, said = next(messages)
            assert name == "snapshot"
            assert {row["name"]: row["state"] for row in said["servers"]} == {"echo": "idle", "all": "idle"}
            assert page.ask("/page/do", {"action": "connect", "server": "echo"})[0] == 200
            for name, said in messages:
                rows = said.get("servers", {}).get("changed", ()) if name == "change" else ()
                if any((row["name"], row["state"]) == ("echo", "connected") for row in rows):
                    break
        shown = json.loads(greenroom_in(folder, "status", "--json").stdout)
        assert {row["name"]: row["state"] for row in shown["servers"]}["echo"] == "connected"
        assert page.ask("/page/do", {"action": "disable", "server": "echo"})[0] == 200
        assert json.loads((folder / "mcp.json").read_text())["mcpServers"]["echo"]["disabled"] is True
        assert page.ask("/page/do", {"action": "enable", "server": "echo"})[0] == 200
        assert "disabled" not in json.loads((folder / "mcp.json").read_text())["mcpServers"]["echo"]


def test_who_has_not_the_address_gets_nothing(gateway: tuple[Gateway, Path]) -> None:
    _, folder = gateway
    with page_of(folder) as page, page_of(folder, "--json") as other:
        assert page.token != other.token
        act = {"action": "drain", "server": "echo"}
        assert page.ask("/page/do", act, authorization="")[0] == 401
        assert page.ask("/page/do", act, authorization=f"Bearer {other.token}")[0] == 401
        assert page.ask("/page/do", act, authorization="", cookie=f"token={page.token}")[0] == 401
        assert page.ask("/page/do", act, origin="https://evil.example")[0] == 403
        assert page.ask("/page/do", act, host="evil.example")[0] == 421
        assert page.ask("/page/watch", authorization="")[0] == 401
        assert page.ask("/page/hello", authorization="")[0] == 401


def test_a_page_outlives_its_gateway_and_goes_to_no_other(gateway: tuple[Gateway, Path]) -> None:
    one, folder = gateway
    with page_of(folder) as page:
        with page.watching() as messages:
            assert next(messages)[0] == "snapshot"
            assert one.process.stdin is not None
            one.process.stdin.close()
            one.process.wait(PATIENCE)
            assert [name for name, _ in messages if name == "snapshot"] == [], (
                "the stream ends with the gateway"
            )
        status, said = page.ask("/page/hello")
        assert (status, said["error"]["code"]) == (502, "no_gateway")
        with serve(folder, {"new": ECHO}) as another:
            another.initialize()
            status, said = page.ask("/page/do", {"action": "disable", "server": "new"})
            assert (status, said["error"]["code"]) == (502, "no_gateway")
            assert said["error"]["message"].endswith("To see one that runs now: greenroom page")
            with page_of(folder) as other:
                assert other.ask("/page/hello")[0] == 200


def test_without_a_gateway_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"echo": ECHO}}))
    done = greenroom_in(tmp_path, "page", "--no-browser")
    assert done.returncode == 1
    assert "To start one: greenroom serve" in done.stderr


def test_a_gateway_of_another_version_has_no_page_here(
    gateway: tuple[Gateway, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gateway[1]
    for name, place in (("HOME", folder), ("XDG_CACHE_HOME", folder / "cache"), ("XDG_RUNTIME_DIR", folder)):
        monkeypatch.setenv(name, os.fspath(place))
    monkeypatch.setattr(page_command, "VERSION", "99.0")
    assert run(["page", "--no-browser", "--config", os.fspath(folder / "mcp.json")]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert f"is Greenroom {VERSION}, and cannot answer the page of 99.0. Restart the client" in said.err


def test_a_browser_is_led_to_it_by_a_file_of_the_owners(gateway: tuple[Gateway, Path]) -> None:
    _, folder = gateway
    told, script = folder / "told", folder / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {told}.part && mv {told}.part {told}\n')
    script.chmod(0o755)
    with page_of(folder, browser=f"{script} %s") as page:
        until(told.exists, "the browser")
        assert page.token not in told.read_text(), "others on this machine can read the words of a command"
        way = Path(told.read_text().removeprefix("file://"))
        assert f"#token={page.token}" in way.read_text()
        assert stat.S_IMODE(way.stat().st_mode) == 0o600
    assert not way.exists()


def test_a_tape_is_shown_without_a_gateway_and_nobody_can_do_anything(tmp_path: Path) -> None:
    large = b'{"content":[{"type":"text","text":"' + b"x" * 100_000 + b'"}]}'
    name = hashlib.sha256(large).hexdigest()
    call = {
        "k": "call",
        "server": "shop",
        "scope": "shared",
        "incarnation": 1,
        "method": "tools/call",
        "params": {"name": "buy", "arguments": {"what": "milk"}},
        "outcome": "result",
        "reach": "answered",
        "accepted": 1.0,
        "sent": 1.5,
        "ended": 2.0,
    }
    lines = [
        {"k": "tape", "v": 1, "at": 1.8e9, "greenroom": "1", "python": "3", "config": {"mcpServers": {}}},
        {**call, "n": 1, "order": 1, "result": {"content": [], "isError": True}},
        {**call, "n": 2, "order": 2, "large": {"sha256": name, "bytes": len(large)}},
        {**call, "n": 3, "order": 3, "large": {"sha256": "../../secret", "bytes": 9}},
    ]
    (tmp_path / "one.tape").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "one.tape.d").mkdir()
    (tmp_path / "one.tape.d" / name).write_bytes(large)
    with page_of(tmp_path, "--tape", "one.tape") as page:
        hello = page.ask("/page/hello")[1]
        assert hello["may"] == "read"
        assert {
            key: hello["tape"][key]
            for key in ("name", "at", "seconds", "calls", "failed", "ending", "isPart")
        } == {
            "name": "one.tape",
            "at": 1.8e9,
            "seconds": 2.0,
            "calls": 3,
            "failed": 1,
            "ending": "The recording was not ended: its process was killed, its disk was full, or it still runs.",
            "isPart": False,
        }
        with page.watching() as messages:
            assert next(messages)[0] == "snapshot"
        assert [call["waited"] for call in page.ask("/page/calls")[1]["calls"]] == [0.5] * 3
        lanes = page.ask("/page/timeline")[1]["lanes"]
        assert (1.5, 2.0) in {(each["start"], each.get("end")) for lane in lanes for each in lane["spans"]}
        shown = page.ask("/page/call?number=2")[1]
        assert shown["params"]["arguments"] == {"what": "milk"}
        assert shown["result"] == json.loads(large)
        assert page.ask("/page/call?number=3")[0] == 400
        assert page.ask("/page/call?number=9")[0] == 400
        assert page.ask("/page/tools")[0] == 404
        assert page.ask("/page/do", {"action": "call", "tool": "shop_buy"})[0] == 400
        assert page.ask("/page/calls", authorization="")[0] == 401
    done = greenroom_in(tmp_path, "page", "--tape", "none.tape")
    assert done.returncode == 2
    assert "There is no tape none.tape" in done.stderr
