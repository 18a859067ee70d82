"""What `greenroom doctor` looks at: a table of small checks. To add one, write a function and a row of `CHECKS`.

A check gets the `Setup` and yields findings. It starts no program, sends nothing to another machine and changes
nothing. Each finding says what is wrong and what mends it; values of the configuration are never quoted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from ...protocol.config import ServerDefinition
from ...protocol.config_parse import place, secrets_of
from ...protocol.errors import DISABLED, NO_EFFECT_HERE, UNTRUSTED, GreenroomError
from ...protocol.interpolate import session_variables
from ...protocol.status import hidden_in_words
from ._finding import Finding, Setup, Severity
from ._running import DIALS_FOR, FAILED, gateways, of_start, sockets

_BEFORE_A_NAME: Final = "mcp__greenroom__"  # what many clients put before a name
_COMES_WITH: Final = {
    "npx": "install Node.js",
    "node": "install Node.js",
    "bunx": "install Bun",
    "uvx": "install uv",
    "uv": "install uv",
    "pipx": "install pipx",
    "docker": "install Docker",
    "podman": "install Podman",
    "deno": "install Deno",
}


_Check = Callable[[Setup], Iterable[Finding]]


def examine(setup: Setup) -> list[Finding]:
    """All findings, the worst first. What keeps a server from starting is said once."""
    found = [finding for check in CHECKS for finding in check(setup)]
    explained = {one.about for one in found if one.check != FAILED and one.severity is Severity.ERROR}
    return _worst_first(one for one in found if one.check != FAILED or one.about not in explained)


def examine_one(setup: Setup, server: str, row: Mapping[str, Any]) -> list[Finding]:
    """What is found about this server and the files of its entry, the worst first. `row`: what is known of it, as in
    the status; no gateway is asked."""
    definition = setup.config.servers[server]
    only = attrs.evolve(setup, config=attrs.evolve(setup.config, servers={server: definition}, broken={}))
    files = {definition.env_file, *definition.sources.values()}
    key = place("", "mcpServers", server)

    def is_about(where: str) -> bool:
        _, colon, at = where.partition(f": {key}")
        return where == server or where in files or (colon != "" and at[:1] in ("", ".", "["))

    found = (finding for check in _OF_SERVERS for finding in check(only) if is_about(finding.about))
    return _worst_first((*found, *of_start(only, server, row)))


def _worst_first(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


# ---- the configuration ---------------------------------------------------------------------------------------


def _files(setup: Setup) -> Iterator[Finding]:
    """Files that cannot be read or parsed, keys that are not known, variables that are not set."""
    places = {*setup.config.places, *setup.config.files}
    untrusted = {*setup.config.untrusted}
    for problem in setup.config.problems:
        if problem.where in untrusted:
            mend = setup.commands.about("trust")
            yield Finding(Severity.WARNING, "trust", problem.where, problem.what, mend)
        elif problem.where in places:
            yield Finding(Severity.ERROR, "file", problem.where, problem.what, f"correct {problem.where}")
        elif problem.code == NO_EFFECT_HERE:
            mend = "leave it for the program that it is for, or write what has an effect here"
            yield Finding(Severity.NOTE, "configuration", problem.where, problem.what, mend)
        else:
            mend = f"correct {_place_in_words(problem.where)}"
            yield Finding(Severity.WARNING, "configuration", problem.where, problem.what, mend)


def _broken(setup: Setup) -> Iterator[Finding]:
    for name, problem in setup.config.broken.items():
        if problem.code not in (UNTRUSTED, DISABLED):  # the first is said once for the whole file
            mend = f"correct {_place_in_words(problem.where)}, or: {setup.commands.about('disable', name)}"
            yield Finding(Severity.ERROR, "server", name, str(problem), mend)


def _nothing(setup: Setup) -> Iterator[Finding]:
    if not setup.config.servers and not setup.config.broken:
        mend = f"{setup.commands.about('add')} NAME -- COMMAND"
        if setup.path is None:
            mend = f"`{mend}`, or those of a client: greenroom init CLIENT --move"
        yield Finding(Severity.WARNING, "configuration", "servers", "there are none", mend)


def _rights(setup: Setup) -> Iterator[Finding]:
    """Files that others may change, and files with secrets that others may read."""
    secret = {
        source
        for server in setup.config.servers.values()
        if secrets_of(server, {})
        for source in server.sources.values()
    }
    for file in setup.config.files:
        try:
            found = os.stat(file)
        except OSError:
            continue
        if found.st_mode & stat.S_IWOTH:
            what = "everybody on this machine may change it, and so start programs as you"
            yield Finding(Severity.ERROR, "rights", file, what, f"chmod go-w {shlex.quote(file)}")
        elif found.st_mode & 0o077 and file in secret:
            what = "holds secrets, and others on this machine may read it"
            yield Finding(Severity.WARNING, "rights", file, what, f"chmod 600 {shlex.quote(file)}")


# ---- servers -------------------------------------------------------------------------------------------------


def _programs(setup: Setup) -> Iterator[Finding]:
    for server in map(setup.expanded, setup.in_service()):
        if server is None or server.command is None or session_variables(server):
            continue
        cwd = Path(server.cwd or os.getcwd())
        if server.cwd is not None and not cwd.is_dir():
            mend = f"mkdir -p {shlex.quote(str(cwd))}"
            yield Finding(Severity.ERROR, "program", server.name, "its working directory is missing", mend)
            continue
        command = server.command if os.sep not in server.command else os.fspath(cwd / server.command)
        if shutil.which(command, path=server.env.get("PATH") or setup.environ.get("PATH")) is None:
            mend = f"{_how_to_get(server)}, or: {setup.commands.about('disable', server.name)}"
            what = f"its program is not found or cannot be run: {server.command}"
            yield Finding(Severity.ERROR, "program", server.name, what, mend)


def _env_files(setup: Setup) -> Iterator[Finding]:
    """Env files that a start could not use, or that others may read."""
    from ...actors.env_file import variables_in

    for server in setup.in_service():
        if (file := server.env_file) is None:
            continue
        try:
            variables_in(file, server.name, server.env_file_asked)
        except GreenroomError as error:
            mend = f"correct its envFile, or: {setup.commands.about('disable', server.name)}"
            yield Finding(Severity.ERROR, "env file", server.name, str(error), mend)
            continue
        with suppress(OSError):
            if os.stat(file).st_mode & 0o077:
                what = "it is an env file, and others on this machine may read it"
                yield Finding(Severity.WARNING, "rights", file, what, f"chmod 600 {shlex.quote(file)}")


def _ports(setup: Setup) -> Iterator[Finding]:
    """Servers of this machine that nobody runs."""
    for server in map(setup.expanded, setup.in_service()):
        if server is None:
            continue
        if server.socket is not None and not Path(server.socket).exists():
            yield Finding(
                Severity.WARNING,
                "port",
                server.name,
                f"there is no socket {server.socket}",
                "start the server",
            )
        place = urlsplit(server.url or "")
        with suppress(ValueError):
            port = place.port or (443 if place.scheme == "https" else 80)
            if place.hostname in ("localhost", "127.0.0.1", "::1") and not _listens(place.hostname, port):
                what = f"nothing listens on port {port} of this machine"
                yield Finding(Severity.WARNING, "port", server.name, what, "start the server")


def _logins(setup: Setup) -> Iterator[Finding]:
    """Servers that want a login and have none, and logins that are over."""
    from ...actors.login import LoginFailed, may_log_in, stored_login

    for server in map(setup.expanded, setup.in_service()):
        if server is None or session_variables(server) or not may_log_in(server):
            continue
        mend = setup.commands.about("auth", server.name)
        try:
            login = stored_login(server)
        except LoginFailed as error:
            yield Finding(Severity.ERROR, "login", server.name, str(error), mend)
            continue
        is_asked = server.auth == "oauth" or bool(server.oauth)
        if login is None and is_asked and (server.oauth or {}).get("grantType") != "client_credentials":
            yield Finding(
                Severity.WARNING, "login", server.name, "its entry says OAuth, and there is no login", mend
            )
        elif login is not None and login.is_over(time.time()):
            what = "its login has ended and cannot be renewed"
            yield Finding(Severity.WARNING, "login", server.name, what, mend)


def _names(setup: Setup) -> Iterator[Finding]:
    """What clients would not take of what is known of a server."""
    for server in setup.in_service():
        for fault in setup.catalogue.index.faults(server.name)[:1]:
            what, mend = fault, "correct its toolOverrides, or those of the settings or the profile"
            if fault.endswith("(calls are refused)"):
                mend = 'name it in "excludeTools" of its server, so that no model tries it'
            elif not fault.startswith("toolOverrides"):  # which are not its author's
                what, mend = f"clients would refuse {fault}", "tell the server's author"
                if not fault.endswith("(left out)"):
                    mend += "; it works here all the same"
            yield Finding(Severity.NOTE, "names", server.name, what, mend)
        tools = setup.catalogue.index.tools(server.name)
        counts = setup.catalogue.index.counts(server.name)
        if counts is not None and counts.hidden:
            what = f"characters that nobody sees: {hidden_in_words(counts.hidden)}"
            mend = "nobody is shown them here; ask the server's author what they are for"
            yield Finding(Severity.WARNING, "hidden", server.name, what, mend)
        if counts is not None and counts.changed:
            what = f"not as first shown: {', '.join(counts.changed[:3])}"
            yield Finding(
                Severity.WARNING, "changed", server.name, what, setup.commands.about("accept", server.name)
            )
        if counts is not None and counts.flapping:
            what = f"changes again and again: {', '.join(counts.flapping[:3])}"
            mend = 'set "pinning": "warn" in its entry, if you trust it'
            yield Finding(Severity.NOTE, "changed", server.name, what, mend)
        settings = setup.config.settings
        before = settings.client_prefix or _BEFORE_A_NAME
        long = [tool.name for tool in tools if len(tool.name) + len(before) > settings.name_limit]
        if long:
            what = f"{len(long)} names are too long for clients that write {before} before them: {long[0]}"
            mend = f'set "clientPrefix": "{before}", or use the mcp tool (--expose proxy)'
            yield Finding(Severity.NOTE, "names", server.name, what, mend)


def _place_in_words(where: str) -> str:
    """`FILE: KEY` as a place to go to."""
    file, colon, key = where.rpartition(": ")
    return f"{key} in {file}" if colon else where


def _how_to_get(server: ServerDefinition) -> str:
    """What brings the program of a server."""
    known = _COMES_WITH.get(PurePath(server.command or "").name)
    where = server.sources.get("command")
    said = f'correct "command" of {server.name}' + (f" in {where}" if where else "")
    return (
        f"{known}, which has it"
        if known and os.sep not in (server.command or "")
        else f"{said}, or install it"
    )


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=DIALS_FOR).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # nobody knows
    return True


_OF_SERVERS: Final[tuple[_Check, ...]] = (
    _files,
    _rights,
    _programs,
    _env_files,
    _ports,
    _logins,
    _names,
)
CHECKS: Final = (_broken, _nothing, *_OF_SERVERS, gateways, sockets)
