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
import time
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import click
from msgspec import UNSET, UnsetType

from ..protocol.errors import UsageError
from .completion import complete_servers
from .config_reading import read_config
from .interruption import run_to_end
from .json_shapes import Shape, says
from .missing_servers import check_usable
from .printing import say, show
from .shared_options import config_option, json_option

if TYPE_CHECKING:
    from ..actors.login.login_record import Login
    from ..config.model import Config, ServerDefinition


class LoginJson(Shape, kw_only=True):
    """A server that may have a login."""

    server: Annotated[str, says("the server")]
    state: Annotated[Literal["logged in", "expired", "none", "unreadable"], says("how it is")]
    why: Annotated[str | UnsetType, says("why it cannot be read", when="`unreadable`")] = UNSET
    issuer: Annotated[
        str | UnsetType | None, says("who gave it; null: the server itself", when="there is one")
    ] = UNSET
    scope: Annotated[str | UnsetType | None, says("its scopes", when="there is one")] = UNSET
    expires_at: Annotated[
        float | UnsetType | None, says("when its token is over", "s since 1970", when="there is one")
    ] = UNSET
    renewable: Annotated[bool | UnsetType, says("it is renewed without a person", when="there is one")] = (
        UNSET
    )
    grant: Annotated[str | UnsetType, says("how it was got", when="there is one")] = UNSET


class LoginsJson(Shape, kw_only=True):
    """The logins."""

    logins: Annotated[list[LoginJson], says("of each server that may have one")]


class LoggedOutJson(Shape, kw_only=True):
    """What became of the login of a server that was to be forgotten."""

    server: Annotated[str, says("the server")]
    state: Annotated[Literal["none"], says("there is no login now")]
    was_there: Annotated[bool, says("there was one")]
    not_revoked: Annotated[str | None, says("why its server was not told; null: it was, or none was there")]


# ---- `greenroom auth`: which logins there are; log in at a server, or out -------------------------------------------
#
# The login runs in this process and in front of a person, never in a room. Nothing is stored before it is complete, so
# Ctrl-C at any moment leaves what was there before. A running gateway notices the new login by itself.


@click.command("auth")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.option("--logout", is_flag=True, help="Revoke the login and forget it.")
@click.option("--no-browser", is_flag=True, help="Print the address, and read the answer that you paste.")
@click.option(
    "--device", is_flag=True, help="Show a code to enter in any browser, if the server offers that."
)
@click.option("--scope", help="Ask for these scopes, separated by spaces.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this many seconds.",
)
@json_option
@config_option
def auth_command(
    server: str | None,
    logout: bool,
    no_browser: bool,
    device: bool,
    scope: str | None,
    timeout: float,
    config_path: Path | None,
    as_json: bool,
) -> int:
    """Log in at SERVER, or list the logins.

    It opens your browser and waits for its answer. Without a browser here, open the printed address on any machine,
    and paste the address where you end up.
    """
    from ..actors.login.login_record import LoginFailed
    from ..gateway.offline_catalogue import forget_failure

    config = read_config(config_path)
    if server is None:
        if logout or no_browser or device or scope:
            raise UsageError("Name the server. Without options the logins are listed: greenroom auth")
        return _list(config, as_json)
    try:
        if logout:
            return _log_out(_definition(config, server), as_json)
        code = _log_in(_definition(config, server), no_browser, device, scope, timeout, as_json)
        forget_failure(config, server)
        return code
    except LoginFailed as error:
        say(f"{server}: {error}. Nothing was changed.")
        return 1


def _definition(config: Config, server: str) -> ServerDefinition:
    """The expanded definition of a server that may have a login. Raises `UsageError`, `ConfigError`."""
    from ..actors.login.login_auth import may_log_in

    check_usable(config, server)
    found = config.servers[server]
    if found.url is None:
        raise UsageError(f'Server "{server}" is a program and not an HTTP server: it has no login.')
    if found.is_as_caller:
        text = f'Server "{server}" is called as its caller, so each caller has a token of his own'
        raise UsageError(f"{text}, and nobody logs in here.")
    if not may_log_in(found):
        raise UsageError(
            f'Server "{server}" has another credential in its entry, or "auth": false. '
            'Remove that, or write "auth": "oauth".'
        )
    return _expanded(config, server)


def _expanded(config: Config, server: str) -> ServerDefinition:
    """The definition as its login needs it. Raises `ConfigError`."""
    from ..config.model import with_settings
    from ..config.references import expand_definition, without_asked

    definition = with_settings(config.servers[server], config.settings)
    return without_asked(expand_definition(definition, os.environ).definition)


# ---- the list --------------------------------------------------------------------------------------------------------
def _list(config: Config, as_json: bool) -> int:
    rows = [row for name in config.servers if (row := _row(config, name)) is not None]
    lines = [f"{row.server}: {_state_in_words(row)}" for row in rows]
    show("\n".join(lines) or "No configured server may have a login.", LoginsJson(logins=rows), as_json)
    return 0


def _row(config: Config, name: str) -> LoginJson | None:
    from ..actors.login.login_auth import may_log_in, stored_login
    from ..actors.login.login_record import LoginFailed
    from ..protocol.errors import ConfigError

    if not may_log_in(config.servers[name]):
        return None
    try:
        login = stored_login(_expanded(config, name))
    except (ConfigError, LoginFailed) as error:
        return LoginJson(server=name, state="unreadable", why=str(error))
    return LoginJson(server=name, state="none") if login is None else _shown(name, login)


def _shown(server: str, login: Login) -> LoginJson:
    """What of a login may be shown; none of it is secret."""
    return LoginJson(
        server=server,
        state="expired" if login.is_over(time.time()) else "logged in",
        issuer=login.issuer,
        scope=login.scope,
        expires_at=login.expires_at,
        renewable=login.can_be_renewed or login.is_of_client,
        grant=login.grant,
    )


def _state_in_words(row: LoginJson) -> str:
    match row.state:
        case "none":
            return "no login"
        case "unreadable":
            return f"unreadable ({row.why})"
        case state:
            scope = f", scope {row.scope}" if row.scope else ""
            by = " by pi" if row.grant == "pi" else ""
            return f"{state}{by} at {row.issuer or 'its own server'}{scope}"


# ---- in and out ------------------------------------------------------------------------------------------------------
def _log_in(
    definition: ServerDefinition,
    no_browser: bool,
    device: bool,
    scope: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    from ..actors.login.login_auth import keep, oauth_of, obtain
    from ..actors.login.login_record import LoginFailed

    oauth = oauth_of(definition, os.environ)
    if oauth.get("grantType") == "client_credentials":
        login = obtain(definition, oauth)
    else:
        browses = not no_browser and not device and can_browse()
        with TerminalLogin(
            definition.name,
            oauth.get("redirectUri"),
            browses=browses,
            prefers_device=not browses and not no_browser,
            insists_on_device=device,
        ) as person:
            found = run_to_end(partial(_within, timeout, definition, oauth, person, scope))
        if found is None:
            raise LoginFailed(f"nobody logged in within {timeout:g} s")
        login = keep(found)
    text = f"Logged in at {definition.name}. A running gateway connects it by itself."
    show(text, _shown(definition.name, login), as_json)
    return 0


async def _within(
    timeout: float, definition: ServerDefinition, oauth: Mapping[str, Any], person: Any, scope: str | None
) -> Login | None:
    from ..actors.login.login_auth import log_in
    from ..actors.timers import at_most

    async with at_most(timeout):
        return await log_in(definition, oauth, person, scope)
    return None


def _log_out(definition: ServerDefinition, as_json: bool) -> int:
    from ..actors.login.login_auth import log_out

    there, problem = log_out(definition)
    if problem is not None:
        say(f"{definition.name}: the login is forgotten here, but it was not revoked: {problem}.")
    text = f"Logged out of {definition.name}." if there else f"There was no login for {definition.name}."
    details = LoggedOutJson(server=definition.name, state="none", was_there=there, not_revoked=problem)
    show(text, details, as_json)
    return 0


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


class TerminalLogin:
    """A `Person` at the terminal. The port is open inside `with`."""

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

    def __enter__(self) -> TerminalLogin:
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
                from ..actors.login.login_record import LoginFailed

                why = error.strerror or error
                raise LoginFailed(
                    f"port {self._port} of the redirect address cannot be used: {why}"
                ) from None
            self._http.daemon_threads = True
            self._port = self._http.server_port
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        if not self.redirect_uri:
            self.redirect_uri: str = f"http://127.0.0.1:{self._port}{self._path}"
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
        from ..actors.workers import apart

        return await apart(self._answers.get)

    def show_code(self, url: str, code: str, complete: str | None) -> None:
        further = f"\nOr open: {complete}" if complete else ""
        _tell(f"Open {url} in any browser, and enter this code: {code}{further}")

    # -- answers --

    def hear(self, request: BaseHTTPRequestHandler) -> None:
        """Handle a request to our port."""
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
                        "That is not an answer of this login. Paste the whole address that the browser ended at."
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
    from .text_wrapping import fitted

    click.echo(fitted(text, sys.stderr), err=True)


_DONE = (
    b"<!doctype html><title>Greenroom</title><p>The login is done, or was refused. You can close this page."
)
_ELSE = b"<!doctype html><title>Greenroom</title><p>This is not an answer that anybody waits for."
