"""A gateway over HTTP with the page, a client of it, and a tab that looks at it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import attrs
from playwright.sync_api import Browser, BrowserContext, Page
from tests.support.patience import PATIENCE

HERE: Final = Path(__file__).resolve().parent
SERVER: Final = HERE / "rough_server.py"
OWNER: Final = "owner-token-owner-token-1"
READER: Final = "reader-token-reader-token"
_SERVING: Final = re.compile(r"serving http://127\.0\.0\.1:(\d+)")
Entries = Mapping[str, Mapping[str, Any]]


def rough(*args: str, **more: Any) -> dict[str, Any]:
    """The entry of a server that does what its tools are told."""
    return {"command": sys.executable, "args": ["-S", str(SERVER), *args], **more}


@attrs.define(eq=False)
class Room:
    """A gateway that serves HTTP."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> dict[str, Any]:
        asked = urllib.request.Request(f"{self.url}/status", headers={"authorization": f"Bearer {READER}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            return json.load(answer)

    def row(self, server: str) -> dict[str, Any]:
        return next(row for row in self.status()["servers"] if row["name"] == server)

    def until(self, holds: Callable[[], Any]) -> Any:
        """Wait until it holds, and return what it said."""
        ends = time.monotonic() + PATIENCE
        while not (said := holds()):
            assert time.monotonic() < ends, "it did not come true in time"
            time.sleep(0.05)
        return said

    def client(self) -> Client:
        return Client(self.port)


@attrs.define(eq=False)
class Client:
    """A client of the gateway over Streamable HTTP, which cannot be asked anything."""

    port: int
    session: str | None = None
    answers: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])

    def __attrs_post_init__(self) -> None:
        about = {"name": "tester", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def begin(self, tool: str, **arguments: Any) -> threading.Thread:
        """Call it, and go on; the answer is appended to `answers`."""

        def run() -> None:
            self.answers.append(self.call(tool, **arguments))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _post(self, message: Mapping[str, Any]) -> dict[str, Any]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {READER}",
            **({"mcp-session-id": self.session} if self.session else {}),
        }
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/mcp", json.dumps(message), headers)
            answer = connection.getresponse()
            self.session = answer.getheader("mcp-session-id") or self.session
            text = answer.read().decode()
        finally:
            connection.close()
        lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")] or [
            text
        ]
        said = [json.loads(line) for line in lines if line.strip()]
        return next((one for one in said if "id" in one and "method" not in one), {})


def _environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    return {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(home), "LC_ALL": "C.UTF-8"}


def owner_page(room: Room) -> AbstractContextManager[str]:
    """The address that `greenroom page` prints."""
    return _page(room.home, "--config", str(room.home / "greenroom.json"))


def tape_page(tape: Path) -> AbstractContextManager[str]:
    """The address that `greenroom page --tape` prints."""
    return _page(tape.parent, "--tape", str(tape))


@contextmanager
def _page(home: Path, *words: str) -> Generator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "greenroom", "page", "--json", *words],
        cwd=home,
        env=_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):  # the document goes on for some lines
            line = process.stdout.readline().decode()
            assert line, f"greenroom page has ended: {text}"
            text += line
        yield json.loads(text)["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        process.stdout.close()


@contextmanager
def running(entries: Entries, settings: Mapping[str, Any], expose: str = "direct") -> Generator[Room]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        config = home / "greenroom.json"
        http = {"tokens": {"reader": READER}, "ownerTokens": {"owner": OWNER}}
        config.write_text(
            json.dumps(
                {"settings": {"http": http, "isolation": "persistent", **settings}, "mcpServers": entries}
            )
        )
        with serving(home, "serve", "--expose", expose, "--config", str(config)) as room:
            yield room


@contextmanager
def serving(home: Path, *words: str) -> Generator[Room]:
    """What this command serves over HTTP."""
    log = home / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "greenroom", *words, "--http", "127.0.0.1:0"],
            cwd=home,
            env=_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=written,
        )
    try:
        ends = time.monotonic() + PATIENCE
        while not (found := _SERVING.search(log.read_text("utf-8", "replace"))):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.02)
        yield Room(process, int(found[1]), home)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# ---- the browser -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Tab:
    """A tab of the browser, and what it did."""

    browser: Browser
    context: BrowserContext | None = None
    errors: list[str] = attrs.field(factory=list[str])
    requests: list[str] = attrs.field(factory=list[str])
    origin: str = ""

    def open_at(self, url: str, **options: Any) -> Page:
        """The page at an address that has its token."""
        self.origin = url.split("/#")[0]
        self.context = self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        page = self._page()
        page.goto(url)
        page.locator("h1").first.wait_for()
        return page

    def open(
        self, room: Room, where: str = "", *, token: str = OWNER, ready: bool = True, **options: Any
    ) -> Page:
        """The page of a room, with a token, at this place of it (`tools/one_echo`)."""
        self.origin = room.url
        self.context = self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        page = self._page()
        page.goto(f"{room.url}/#token={token}" if token else f"{room.url}/")
        if ready:
            page.get_by_text("live", exact=False).first.wait_for()
            page.locator("h1").first.wait_for()
        if where:
            self.go(page, where)
        return page

    def _page(self) -> Page:
        assert self.context is not None
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.context.on("request", lambda asked: self.requests.append(asked.url))
        return page

    def go(self, page: Page, where: str) -> None:
        page.evaluate("where => { location.hash = `#/${where}` }", where)

    def close(self) -> None:
        if self.context is not None:
            self.context.close()
        strange = [url for url in self.requests if not url.startswith((f"{self.origin}/", "data:"))]
        assert strange == [], strange
        assert self.errors == [], self.errors
