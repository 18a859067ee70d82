"""A gateway over HTTP with the page, a client of it, and a tab that looks at it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs
from playwright.sync_api import Browser, BrowserContext, Page
from tests.support.http_client import HttpClient
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
        return self.ask("/status")

    def ask(self, path: str) -> dict[str, Any]:
        """What the gateway answers to a reader."""
        asked = urllib.request.Request(f"{self.url}{path}", headers={"authorization": f"Bearer {READER}"})
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

    def client(self) -> HttpClient:
        """A client that is initialized."""
        client = HttpClient(self.url, READER)
        client.initialize()
        return client

    @contextmanager
    def anew(self) -> Generator[Room]:
        """The gateway killed, and another one of the same configuration at the same port."""
        self.process.kill()
        self.process.wait()
        words = ("serve", "--expose", "direct", "--config", str(self.home / "greenroom.json"))
        with serving(self.home, *words, port=self.port) as room:
            yield room


def hanging_call(client: HttpClient) -> threading.Thread:
    """Start `one`, and let `one_erase` be in flight until `one` dies. Returns what waits for its answer."""
    client.call("one_echo", text="up")
    return client.begin("one_erase", text="all", seconds=600)


def room_that_bills(start: Callable[..., Room], about: Path) -> tuple[Room, HttpClient]:
    """A room whose `one` has a tool `pay` that is known, and is described by what `about` holds when `one` starts."""
    about.write_text("Pays a bill, once.")
    room = start({"one": rough("pay", f"@{about}")})
    client = room.client()
    client.call("one_pay", text="a")
    return room, client


@attrs.define(eq=False)
class Cable:
    """What lies between a browser and a gateway, and can be cut."""

    listener: socket.socket
    to: int
    ends: list[socket.socket] = attrs.field(factory=list[socket.socket])
    is_cut: bool = False

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def run(self) -> None:
        """Until the listener is closed."""
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                self.ends += (near, far)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while some := one.recv(1 << 16):
                other.sendall(some)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@contextmanager
def cable_to(room: Room) -> Generator[Cable]:
    cable = Cable(socket.create_server(("127.0.0.1", 0)), room.port)
    thread = threading.Thread(target=cable.run)
    thread.start()
    try:
        yield cable
    finally:
        with suppress(OSError):
            cable.listener.shutdown(socket.SHUT_RDWR)
        cable.listener.close()
        cable.cut()
        thread.join(PATIENCE)
        for end in cable.ends:
            end.close()


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
def serving(home: Path, *words: str, port: int = 0) -> Generator[Room]:
    """What this command serves over HTTP, at a port that is free unless one is named."""
    log = home / f"log-{port}"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "greenroom", *words, "--http", f"127.0.0.1:{port}"],
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
