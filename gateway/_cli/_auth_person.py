"""The person at the terminal who logs in: with a browser here, or with one elsewhere.

The answer comes from whichever is first: the browser's redirect to a port of ours on this machine, or a line that is
pasted into the terminal. The port takes one answer, for this login alone (its `state`); anything else that is sent to
it changes nothing.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from ...protocol.plain_text import printable

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def can_browse() -> bool:
    """Whether a browser that opens here is one that the person sees."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("CI"):
        return False
    if sys.platform not in ("darwin", "win32") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


class AtTheTerminal:
    """A `Person`. The port is open inside `with`."""

    def __init__(
        self,
        server: str,
        redirect_uri: str | None,
        *,
        browses: bool,
        prefers_device: bool,
        insists_on_device: bool,
    ) -> None:
        self.prefers_device = prefers_device
        self.insists_on_device = insists_on_device
        self._server = server
        self._browses = browses
        self._state = ""
        self._answers: queue.Queue[Mapping[str, str]] = queue.Queue()
        self.redirect_uri = redirect_uri or ""
        parts = urlsplit(self.redirect_uri)
        self._listens = not redirect_uri or parts.hostname in _LOOPBACK
        self._path = parts.path or "/callback"
        self._port: int = (parts.port or 80) if redirect_uri else 0
        self._http: ThreadingHTTPServer | None = None
        self._end: tuple[int, int] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> AtTheTerminal:
        if self._listens:
            person = self

            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    person.hear(self)

                def log_message(self, format: str, *args: Any) -> None:
                    pass  # a request line holds the code

            try:
                self._http = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
            except OSError as error:
                from ...actors.login import LoginFailed

                why = error.strerror or error
                raise LoginFailed(
                    f"port {self._port} of the redirect address cannot be used: {why}"
                ) from None
            self._http.daemon_threads = True
            self._port = self._http.server_port
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        if not self.redirect_uri:
            self.redirect_uri = f"http://127.0.0.1:{self._port}{self._path}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._answers.put({})  # for a thread that still waits for an answer
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        if self._end is not None:
            os.close(self._end[1])
            if self._reader is not None:
                self._reader.join()
            os.close(self._end[0])

    # -- what the login asks --

    async def send_to(self, url: str) -> None:
        self._state = (parse_qs(urlsplit(url).query).get("state") or [""])[0]
        if self._browses and webbrowser.open(url):
            _tell(f"Your browser shows the login of {self._server}. If it does not, open:\n{url}")
        else:
            _tell(
                f"Open this address in a browser, log in at {self._server}, and paste the address that it ends "
                f"at (or only its code) here:\n{url}"
            )
        with suppress(OSError, ValueError, AttributeError):  # there is no standard input
            self._end = os.pipe()
            words = (sys.stdin.fileno(), self._end[0])
            self._reader = threading.Thread(target=self._read_pasted, args=words, daemon=True)
            self._reader.start()

    async def answer(self) -> Mapping[str, str]:
        from ...actors.apart import apart

        return await apart(self._answers.get)

    def show_code(self, url: str, code: str, complete: str | None) -> None:
        further = f"\nOr open: {complete}" if complete else ""
        _tell(f"Open {url} in any browser, and enter this code: {code}{further}")

    # -- answers --

    def hear(self, request: BaseHTTPRequestHandler) -> None:
        """A request to our port."""
        parts = urlsplit(request.path)
        said = {name: values[0] for name, values in parse_qs(parts.query).items()}
        is_ours = parts.path == self._path and self._state != "" and said.get("state") == self._state
        page = _DONE if is_ours else _ELSE
        request.send_response(200 if is_ours else 400)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.send_header("Content-Length", str(len(page)))
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(page)
        if is_ours:
            self._answers.put(said)

    def _read_pasted(self, stdin: int, end: int) -> None:
        """Read lines until one is an answer. Not through `sys.stdin`: a thread that waits in it would keep the
        interpreter from ending."""
        waiting = b""
        while end not in select.select([stdin, end], [], [])[0]:
            piece = os.read(stdin, 4096)
            if not piece:
                return  # standard input has ended; the port may still bring the answer
            *lines, waiting = (waiting + piece).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                found = pasted(text, self._state)
                if found is not None:
                    self._answers.put(found)
                    return
                if text.strip():
                    _tell(
                        "That is no answer of this login. Paste the whole address that the browser ended at."
                    )


def pasted(line: str, state: str) -> Mapping[str, str] | None:
    """The parameters in a pasted address, or in a pasted code; None when it is neither, or of another login."""
    line = line.strip().strip("'\"<>")
    if not line or " " in line:
        return None
    if "code=" in line or "error=" in line:
        query = urlsplit(line).query or line.partition("?")[2] or line
        said = {name: values[0] for name, values in parse_qs(query).items()}
        said.setdefault("state", state)
        return said if said["state"] == state and ("code" in said or "error" in said) else None
    return None if "://" in line else {"code": line, "state": state}


def _tell(text: str) -> None:
    """Tell the person something: on stderr, because stdout is the command's answer."""
    click.echo(printable(text), err=True)


_DONE = (
    b"<!doctype html><title>Greenroom</title><p>The login is done, or was refused. You can close this page."
)
_ELSE = b"<!doctype html><title>Greenroom</title><p>This is no answer that anybody waits for."
