"""What `greenroom doctor` looks at: a table of small checks. To add one, write a function and a row of `CHECKS`.

A check gets the `Setup` and yields findings. It starts no program, sends nothing to another machine and changes
nothing; only a collector that was named with --otlp is sent requests, with nothing in them. Each finding says what is
wrong and what mends it; values of the configuration are never quoted.
"""

from __future__ import annotations

import enum
import os
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import attrs
import msgspec

from ..catalogue.fingerprints import first_of
from ..catalogue.store import default_cache_path
from ..config.command_faults import file_of, why_not_found, why_not_run
from ..config.files import project_files, unread_file, working_directory
from ..config.installers import is_installer
from ..config.masking import files_with_secrets
from ..config.model import Config, Isolation, Lifecycle, ServerDefinition, with_settings
from ..config.private_files import NotOurs, can_be_written, other_folder, socket_in
from ..config.references import expand_definition, is_url, isolation_of, session_variables
from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import control_directory, name_of
from ..gateway.next_steps import Commands
from ..protocol.address import SHARED
from ..protocol.errors import (
    DISABLED,
    NO_EFFECT_HERE,
    UNTRUSTED,
    ConfigError,
    ConnectFailed,
    FailureKind,
    GreenroomError,
    NeedsAuth,
    place,
)
from ..protocol.events import Event, Kind, Lagged, Note, NoteCode, Transition
from ..protocol.lifecycle import State
from ..protocol.near_names import meant
from ..protocol.status import about, hidden_in_words, silence_in_words
from ..protocol.version import VERSION
from .config_reading import only_asked_for
from .exit_codes import FAILED, NOTED, OK, WARNED

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..gateway.offline_catalogue import OfflineCatalogue
    from ..supervisor.room import Greenroom


# ---- What a check of `greenroom doctor` gets, and what it yields ----------------------------------------------------


class Severity(enum.StrEnum):
    ERROR = "error"  # something does not work
    WARNING = "warning"  # something will go wrong, or is not safe
    NOTE = "note"  # worth knowing


_LEAST_ROOM: Final = 64 << 10  # bytes for what the cache has to keep of a few servers
_CODES: Final = {Severity.ERROR: FAILED, Severity.WARNING: WARNED, Severity.NOTE: NOTED}


@attrs.frozen
class Finding:
    """One thing that is wrong. `about`: a server, a file or a process. `mend`: a command, or what to do."""

    severity: Severity
    check: str
    about: str
    what: str
    mend: str

    def as_dict(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        said = {"check": self.check, "about": self.about, "what": self.what, "mend": self.mend}
        return {"severity": self.severity.value, **said}


@attrs.define(slots=False)
class Setup:
    """What the checks look at, and which starts they have seen. `path`: the file that was named; `commands`: ours, as
    they are typed for it."""

    config: Config
    path: Path | None
    environ: Mapping[str, str]
    commands: Commands = attrs.field(factory=Commands)
    otlp: str | None = None  # as of `serve --otlp`: the collector's URL; empty: as OTEL_* says
    seen_starting: set[str] = attrs.field(
        factory=set[str]
    )  # servers of which a running gateway or the cache knows a start
    tools: dict[str, int] = attrs.field(factory=dict[str, int])  # how many each has that was started here
    is_preflight: bool = False  # its servers are needed, so to disable one mends nothing

    @cached_property
    def catalogue(self) -> OfflineCatalogue:
        """The catalogue of the cache. Starts nothing."""
        from ..gateway.offline_catalogue import open_catalogue

        return open_catalogue(self.config)

    def or_disable(self, server: str) -> str:
        """The end of a mend for who can do without the server."""
        return "" if self.is_preflight else f", or: `{self.commands.about('disable', server)}`"

    def in_service(self) -> Iterator[ServerDefinition]:
        return (server for server in self.config.servers.values() if not server.disabled)

    def expanded(self, server: ServerDefinition) -> ServerDefinition | None:
        """The definition with its references expanded; None when that cannot be done (another check says why)."""
        with suppress(ConfigError):
            return expand_definition(with_settings(server, self.config.settings), self.environ).definition
        return None


# ---- What `greenroom doctor` sees of gateways ------------------------------------------------------------------------
#
# What a running one knows of its servers, and the sockets of ended ones.

DIALS_FOR: Final = 0.5  # seconds
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
LAST: Final = "failure"  # the check that tells of the last failures
_ODD: Final = (NoteCode.ODD, NoteCode.JUNK)  # the notes that say that a server does not behave
_SLOW: Final = 5.0  # seconds from the start of the program to its tools


def started_slowly(setup: Setup, server: str, took: float) -> Iterator[Finding]:
    """The finding about a start that took this many seconds; none if that is quick enough, or if nothing can be done
    about it."""
    definition = setup.config.servers.get(server)
    steps = list[str]()
    if definition is not None and isolation_of(definition, setup.config.settings) is not Isolation.PERSISTENT:
        is_ahead = definition.warm or definition.command is None or session_variables(definition)
        steps += [] if is_ahead else [f'"warm": 1 for {server} starts the next process ahead']
    elif definition is None or definition.lifecycle is not Lifecycle.KEEP_ALIVE:
        steps += [f'"lifecycle": "keep-alive" for {server} keeps it running']
    if definition is not None and is_installer(definition.command, definition.args):
        steps += ["install what its command fetches at each start"]
    if took > _SLOW and steps:
        what = f"it took {took:.0f} s to start"
        yield Finding(Severity.WARNING, "start", server, what, ", or ".join(steps))


def behaved_oddly(setup: Setup, server: str, words: str, code: NoteCode) -> Finding:
    """The finding about a server that did something odd: the first odd thing that was noted, and of what kind it is."""
    definition = setup.config.servers.get(server)
    prints = code is NoteCode.JUNK and definition is not None and definition.command is not None
    mend = (
        "let it print to stderr: stdout is for the protocol"
        if prints
        else "tell the server's author; it works here anyway"
    )
    return Finding(Severity.WARNING, "start", server, words, mend)


def gateways(setup: Setup) -> Iterator[Finding]:
    """What is wrong with the gateway of this configuration, and what is wrong with its servers as far as it knows. If
    no gateway runs, the cache is asked about the servers."""
    try:
        gateway = control.find_gateway(name_of(setup.config))
        if gateway is None:
            yield from _of_rows(setup, _cached_rows(setup))
            return
        with gateway:
            version: Any = gateway.ask("hello", quickly=True).get("version")
            rows: Any = gateway.ask("status", quickly=True)["servers"] if version == VERSION else ()
    except GreenroomError as error:
        yield Finding(Severity.ERROR, "gateway", "the running gateway", error.message, "end that process")
        return
    if version != VERSION:
        what = f"runs Greenroom {version}, and this command is {VERSION}"
        stop = setup.commands.about("stop")
        mend = f"restart the client that started process {gateway.pid}, or, if it is the background gateway: `{stop}`"
        yield Finding(Severity.WARNING, "gateway", f"process {gateway.pid}", what, mend)
    yield from _of_rows(setup, rows)


def _cached_rows(setup: Setup) -> Iterable[Mapping[str, Any]]:
    from ..gateway.json_views import status_view

    return status_view(setup.catalogue)["servers"]


def _of_rows(setup: Setup, rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        name = str(row["name"])
        if row.get("disabled") or row.get("broken"):
            continue  # said by the checks of the configuration
        if row["status"] == "needs-auth":
            setup.seen_starting.add(name)
            what = 'it refuses requests until somebody logs in, or its entry has its token ("bearerToken")'
            yield Finding(Severity.WARNING, "login", name, what, setup.commands.about("auth", name))
        if row.get("failure") is not None:
            setup.seen_starting.add(name)
            yield _last_failed(setup, name, row)
        elif row.get("cached"):
            setup.seen_starting.add(name)
        if silence := silence_in_words(row.get("silentFailures") or 0):
            mend = setup.commands.about("reconnect", name)
            yield Finding(Severity.WARNING, "calls", name, f"it is connected, but {silence}", mend)
        yield from of_start(setup, name, row)


_FIRST_STEPS: Final[Mapping[str, str]] = {  # of the kind of a failure
    FailureKind.PROGRAM: "install its program, or correct its entry",
    FailureKind.CONNECTION: "start it where its entry says, or correct that",
}


def _last_failed(setup: Setup, name: str, row: Mapping[str, Any]) -> Finding:
    """The finding about a failure after which the server has not worked: an error, unless a server that works was lost
    once."""
    ago = f"{about(row['failedAgo'])} ago" if row.get("failedAgo") is not None else "the last time"
    starts, quarantined = int(row.get("failedStarts") or 0), bool(row.get("quarantined"))
    if starts:
        often = f" ({starts} in a row)" if starts > 1 else ""
        what = f"its start failed {ago}{often}: {row['failure']}"
    else:
        what = f"it was lost {ago}: {row['failure']}"
    works = not starts and not quarantined and row.get("cached")
    refresh, explain = (setup.commands.about(verb, name) for verb in ("refresh", "explain"))
    first = _FIRST_STEPS.get(row.get("failureKind") or "")
    mend = f"{first}, then: `{refresh}`" if first else f"see why: `{explain}`; try it again: `{refresh}`"
    if works:
        mend = f"the next call starts it again. To see why it ended: `{explain}`"
    return Finding(Severity.WARNING if works else Severity.ERROR, LAST, name, what, mend)


def of_start(setup: Setup, name: str, row: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings about a server's start that a running gateway has seen."""
    took, words = row.get("startTook"), row.get("odd")
    if took is not None:
        setup.seen_starting.add(name)
        yield from started_slowly(setup, name, took)
    if words is not None:
        yield behaved_oddly(setup, name, words, NoteCode(row["oddCode"]))


def sockets(_setup: Setup) -> Iterator[Finding]:
    """Sockets of gateways that are gone."""
    folder = control_directory()
    try:
        with socket_in(folder) as (_, prefix):
            names = [name for name in sorted(os.listdir(folder)) if name.endswith(".sock")]
            dead = [name for name in names if _is_dead(prefix + name)]
    except FileNotFoundError:
        return
    except NotOurs as error:
        what = f"cannot hold our sockets: {error.strerror}"
        yield Finding(Severity.ERROR, "sockets", str(folder), what, f"rm -r {shlex.quote(str(folder))}")
        return
    for name in dead:
        yield Finding(
            Severity.NOTE,
            "sockets",
            str(folder / name),
            "nobody listens on it any more",
            f"rm {shlex.quote(str(folder / name))}",
        )


def _is_dead(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(DIALS_FOR)
        try:
            line.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


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
    """All findings, the worst first. What keeps a server from starting is said once, and so is a missing login."""
    found = [finding for check in CHECKS for finding in check(setup)]
    explained = {one.about for one in found if one.check != LAST and one.severity is Severity.ERROR}
    found = [one for one in found if one.check != LAST or one.about not in explained]
    failed = {one.about for one in found if one.check == LAST}
    logins = {one.about: one for one in reversed(found) if one.check == "login"}
    found = [one for one in found if one.check != "login" or one is logins[one.about]]
    return worst_first(one for one in found if one.check != "port" or one.about not in failed)


def examine_one(setup: Setup, server: str, row: Mapping[str, Any]) -> list[Finding]:
    """What is found about this server and the files of its entry, the worst first. `row`: what is known of it, as in
    the status; no gateway is asked."""
    definition = setup.config.servers[server]
    only = attrs.evolve(
        setup, config=msgspec.structs.replace(setup.config, servers={server: definition}, broken={})
    )
    files = {definition.env_file, *definition.sources.values()}
    key = place("", "mcpServers", server)

    def is_about(where: str) -> bool:
        _, colon, at = where.partition(f": {key}")
        return where == server or where in files or (colon != "" and at[:1] in ("", ".", "["))

    found = (finding for check in _OF_SERVERS for finding in check(only) if is_about(finding.about))
    return worst_first((*found, *of_start(only, server, row)))


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """The findings in the order in which they are printed."""
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def exit_code(found: Iterable[Finding], least: Severity) -> int:
    """The code of the worst finding, if it weighs at least as much as `least`; else 0."""
    worst = min((list(Severity).index(one.severity) for one in found), default=None)
    if worst is None or worst > list(Severity).index(least):
        return OK
    return _CODES[list(Severity)[worst]]


def examine_required(setup: Setup, servers: Iterable[str]) -> list[Finding]:
    """What is found about these servers and the files of their entries, and why one of them cannot be started."""
    found: list[Finding] = []
    for name in servers:
        found += _in_the_way(setup, name)
        if name in setup.config.servers and not setup.config.servers[name].disabled:
            found += examine_one(setup, name, {})
    return worst_first(dict.fromkeys(found))  # two may be of one file


def _in_the_way(setup: Setup, name: str) -> Iterator[Finding]:
    """Why a server that is required cannot be started at all."""
    about = setup.commands.about
    problem, server = setup.config.broken.get(name), setup.config.servers.get(name)
    if problem is not None and problem.code == UNTRUSTED:
        yield Finding(Severity.ERROR, "trust", name, str(problem), about("trust"))
    elif problem is not None:
        mend = _to_correct(problem.where)
        yield Finding(Severity.ERROR, "server", name, str(problem), mend)
    elif server is None:
        known = (*setup.config.servers, *setup.config.broken)
        what = f"there is no server of this name.{meant(name, known)}"
        mend = f"{about('add', name)} -- COMMAND"
        if setup.config.unread:
            what, mend = f"{what} A file cannot be read: {setup.config.unread[0]}", about("doctor")
        yield Finding(Severity.ERROR, "required", name, what, mend)
    elif server.disabled:
        yield Finding(Severity.ERROR, "required", name, "it is disabled", about("enable", name))
    elif server.is_as_caller:
        what = "it is called as its caller, so it starts for sessions alone"
        yield Finding(Severity.ERROR, "required", name, what, "remove it from what is required")
    elif needed := session_variables(server):
        what = f"its start needs what only a session gives: {', '.join(sorted(needed))}"
        mend = f"write a default into its entry: ${{session.{min(needed)}:-VALUE}}"
        yield Finding(Severity.ERROR, "required", name, what, mend)


# ---- the configuration ---------------------------------------------------------------------------------------
def _files(setup: Setup) -> Iterator[Finding]:
    """Files that cannot be read or parsed, keys that are not known, variables that are not set."""
    places = {*setup.config.places, *setup.config.files}
    untrusted = {*setup.config.untrusted}
    of_servers = {why.where for why in setup.config.broken.values() if why.code not in (UNTRUSTED, DISABLED)}
    for problem in setup.config.problems:
        if problem.fatal and problem.where in of_servers:
            continue  # said of its server
        if problem.where in untrusted:
            mend, what = setup.commands.about("trust"), problem.what
            if names := [name for name, why in setup.config.broken.items() if why.where == problem.where]:
                what = f"{what}; its servers: {', '.join(names)}"
            yield Finding(Severity.WARNING, "trust", problem.where, what, mend)
        elif problem.where in places:
            yield Finding(Severity.ERROR, "file", problem.where, problem.what, f"correct {problem.where}")
        elif problem.code == NO_EFFECT_HERE:
            mend = "leave it for the program that it is for, or write what has an effect here"
            yield Finding(Severity.NOTE, "configuration", problem.where, problem.what, mend)
        else:
            mend = (
                f"{problem.step[0].lower()}{problem.step[1:]}" if problem.step else _to_correct(problem.where)
            )
            yield Finding(Severity.WARNING, "configuration", problem.where, problem.what, mend)


def _broken(setup: Setup) -> Iterator[Finding]:
    for name, problem in setup.config.broken.items():
        if problem.code not in (UNTRUSTED, DISABLED):  # the first is said once for the whole file
            mend = f"{_to_correct(problem.where)}{setup.or_disable(name)}"
            yield Finding(Severity.ERROR, "server", name, str(problem), mend)


def _nothing(setup: Setup) -> Iterator[Finding]:
    if not (setup.config.servers or setup.config.broken or setup.config.unread):
        mend = f"{setup.commands.about('add')} NAME -- COMMAND"
        if setup.path is None:
            mend = f"`{mend}`, or those of a client: `greenroom init CLIENT --move`"
        yield Finding(Severity.WARNING, "configuration", "servers", "there are none", mend)


def _unread(setup: Setup) -> Iterator[Finding]:
    """An `mcp.json` of this folder that nobody reads."""
    unread = unread_file(working_directory(None), setup.config.files) if setup.path is None else None
    if unread is not None:
        what = "it is not read: of a folder only .mcp.json and .greenroom/mcp.json are"
        mend = "give it one of these names, or: `greenroom --config mcp.json`"
        yield Finding(Severity.NOTE, "configuration", os.fspath(unread), what, mend)


def _rights(setup: Setup) -> Iterator[Finding]:
    """Files that others may change, and files with secrets that others may read."""
    secret = files_with_secrets(setup.config)
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


def _room_for(folder: Path) -> int:
    """The bytes that are left on the disk of a folder, which need not exist yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(there).free


def _cache(_setup: Setup) -> Iterator[Finding]:
    """The folder of the cache, in which nothing can be kept."""
    folder = default_cache_path().parent
    if not can_be_written(folder):
        what = "cannot be written: what servers have is not known next time, and what changes meanwhile is not noticed"
        yield Finding(Severity.ERROR, "cache", os.fspath(folder), what, other_folder(folder))
    elif _room_for(folder) < _LEAST_ROOM:
        what = "its disk is full: what servers have is not known next time, and what changes meanwhile is not noticed"
        yield Finding(Severity.ERROR, "cache", os.fspath(folder), what, "make room on that disk")


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
        if not server.command.strip():
            written = setup.config.servers[server.name].command
            what = f"its command is empty, because the variables in it are: {written}"
            mend = f'set them, or correct "command"{setup.or_disable(server.name)}'
            yield Finding(Severity.ERROR, "program", server.name, what, mend)
            continue
        path = server.env.get("PATH") or setup.environ.get("PATH")
        file = file_of(server.command, server.cwd, path)
        words = (server.command, server.args, server.cwd, path)
        fault = why_not_found(*words) if file is None else why_not_run(file)
        if fault is not None:
            mend = f"{fault.mend[0].lower()}{fault.mend[1:]}{setup.or_disable(server.name)}"
            yield Finding(Severity.ERROR, "program", server.name, fault.what, mend)
        elif file is None or not os.access(file, os.X_OK):
            mend = f"{_how_to_get(server)}{setup.or_disable(server.name)}"
            what = f"its program is not found or cannot be run: {server.command}"
            yield Finding(Severity.ERROR, "program", server.name, what, mend)


_SCRIPTS: Final = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".rb")


def _folders(setup: Setup) -> Iterator[Finding]:
    """Relative paths in entries that are not the project's, of which the background gateway finds no file: it starts
    servers in a folder of its own, whatever folder they were tried in. There is none on Windows."""
    if sys.platform == "win32":
        return
    from .running_gateways import room_of

    here = working_directory(setup.path)
    there = room_of(setup.config, setup.path).folder
    near = project_files(setup.config, cwd=here, home=Path.home(), environ=setup.environ)
    for server in map(setup.expanded, setup.in_service()):
        if server is None or server.command is None or server.cwd is not None or session_variables(server):
            continue
        if {server.sources.get(key) for key in ("command", "args")}.intersection(near):
            continue
        missing = (word for word in _paths(server, here) if not (there / word).exists())
        for word in islice(missing, 1):
            what = f"the background gateway starts it in {there}, where there is no {word}"
            mend = (
                f'write its whole path in the entry, or the folder it is in as "cwd"{_as_found(here / word)}'
            )
            yield Finding(Severity.WARNING, "folder", server.name, what, mend)


def _as_found(file: Path) -> str:
    return f": {file}" if file.exists() else ""


def _paths(server: ServerDefinition, here: Path) -> Iterator[str]:
    """The words of a command that are relative paths: that say so, exist in this folder, or name a script to run."""
    command = server.command or ""
    if os.sep in command and not os.path.isabs(command):
        yield command
    first = next((word for word in server.args if word != "run"), "")
    for word in server.args:
        if not word or word[0] in "-/~" or "\0" in word:
            continue
        is_script = word is first and word.endswith(_SCRIPTS) and not is_installer(command, server.args)
        if is_script or word.startswith(("./", "../")) or (here / word).is_file():
            yield word


def _env_files(setup: Setup) -> Iterator[Finding]:
    """Env files that a start could not use, or that others may read."""
    from ..config.secret_sources import variables_in

    for server in setup.in_service():
        if (file := server.env_file) is None:
            continue
        try:
            variables_in(file, server.name, server.env_file_agreed)
        except GreenroomError as error:
            mend = f"correct its envFile{setup.or_disable(server.name)}"
            yield Finding(Severity.ERROR, "env file", server.name, str(error), mend)
            continue
        with suppress(OSError):
            if os.stat(file).st_mode & 0o077:
                what = "it is an env file, and others on this machine may read it"
                yield Finding(Severity.WARNING, "rights", file, what, f"chmod 600 {shlex.quote(file)}")


_OPERATIONS: Final = 500  # of one document, whose parts are looked at


def _documents(setup: Setup) -> Iterator[Finding]:
    """OpenAPI documents that cannot be read, and what was left out of the others. Those at a URL are not fetched."""
    from ..actors.transports.api_document import api_in_file

    for server in map(setup.expanded, setup.in_service()):
        if server is None or not server.is_api or (server.openapi is not None and is_url(server.openapi)):
            continue
        try:
            api = api_in_file(server)
        except ConnectFailed as error:
            mend = f"correct its entry{setup.or_disable(server.name)}"
            yield Finding(Severity.ERROR, "document", server.name, error.reason, mend)
            continue
        for note in islice(api.all_notes(_OPERATIONS), 3):
            mend = "correct the document, or leave it: the rest of it works"
            yield Finding(Severity.NOTE, "document", server.name, note, mend)


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
                'start the server, or correct its "socket"',
            )
        place = urlsplit(server.url or "")
        with suppress(ValueError):
            port = place.port or (443 if place.scheme == "https" else 80)
            if place.hostname in _THIS_MACHINE and not _listens(place.hostname, port):
                what = f"nothing listens on port {port} of this machine"
                mend = 'start the server, or correct its "url"'
                yield Finding(Severity.WARNING, "port", server.name, what, mend)


def _logins(setup: Setup) -> Iterator[Finding]:
    """Servers that want a login and have none, and logins that are over."""
    from ..actors.login.login_auth import may_log_in, stored_login
    from ..actors.login.login_record import LoginFailed

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


_FAULTS: Final = 5  # of one server, that are named


def _names(setup: Setup) -> Iterator[Finding]:
    """The parts of what is known of servers that clients would refuse."""
    for server in setup.in_service():
        faults = setup.catalogue.index.list_faults(server.name)
        for fault in faults[:_FAULTS]:
            what, mend = fault.words, "correct its toolOverrides, or those of the settings or the profile"
            if not fault.is_override:
                what, mend = f"clients would refuse {fault.words}", "tell the server's author"
                if not fault.is_left_out:
                    mend += "; it works here anyway"
            yield Finding(Severity.NOTE, "names", server.name, what, mend)
        if len(faults) > _FAULTS:
            what = f"{len(faults) - _FAULTS} more that clients would refuse"
            yield Finding(
                Severity.NOTE, "names", server.name, what, "`greenroom status --json` names them: faults"
            )
        tools = setup.catalogue.index.tools(server.name)
        counts = setup.catalogue.index.counts(server.name)
        if counts is not None and counts.hidden:
            what = f"characters that nobody sees: {hidden_in_words(counts.hidden)}"
            mend = "nobody is shown them here; ask the server's author what they are for"
            yield Finding(Severity.WARNING, "hidden", server.name, what, mend)
        if counts is not None and counts.changed:
            what = f"not as first shown: {first_of(counts.changed)}"
            yield Finding(
                Severity.WARNING, "changed", server.name, what, setup.commands.about("accept", server.name)
            )
        if counts is not None and counts.flapping:
            what = f"changes again and again: {first_of(counts.flapping)}"
            mend = 'set "pinning": "warn" in its entry, if you trust it'
            yield Finding(Severity.NOTE, "changed", server.name, what, mend)
        settings = setup.config.settings
        before = settings.client_prefix or _BEFORE_A_NAME
        long = [tool.name for tool in tools if len(tool.name) + len(before) > settings.name_limit]
        if long:
            what = f"{len(long)} names are too long for clients that write {before} before them: {long[0]}"
            mend = f'set "clientPrefix": "{before}", or use the mcp tool (--expose proxy)'
            yield Finding(Severity.NOTE, "names", server.name, what, mend)


def _resets(setup: Setup) -> Iterator[Finding]:
    """The tools that are to reset a server and that it does not list."""
    for server in setup.in_service():
        entry = setup.catalogue.index.entry(server.name)
        if server.reset is None or entry is None or entry.tools is None:
            continue
        names = [str(each.get("name")) for each in entry.tools]
        if server.reset not in names:
            near = meant(server.reset, names)
            what = f"the tool that is to reset it is not listed, so each session or call gets a new process.{near}"
            mend = 'write the name of one of its tools as "reset", or remove it'
            yield Finding(Severity.WARNING, "reset", server.name, what, mend)


def _to_correct(where: str) -> str:
    """The step that corrects what is wrong at `FILE: KEY`."""
    file, colon, key = where.rpartition(": ")
    return f"correct {key} in {file}" if colon else f"correct {where}"


def _how_to_get(server: ServerDefinition) -> str:
    """The command or the text that says how to get a server's program."""
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


def _meaning(setup: Setup) -> Iterator[Finding]:
    """What is missing to find tools by meaning, where the setting is on."""
    from ..catalogue.meaning_model import Unusable, model_folder

    model = setup.config.settings.semantic_search
    if model is not False:
        try:
            model_folder(model)
        except Unusable as error:
            yield Finding(Severity.ERROR, "semantic search", "semanticSearch", error.what, error.mend)


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def collector(setup: Setup) -> Iterator[Finding]:
    """What keeps `serve --otlp` from being heard: all of it if --otlp is given here too, else what can be seen without
    sending anything."""
    if setup.otlp is not None:
        from ..observe.otlp import wrong_with

        for what, mend in wrong_with(setup.otlp):
            yield Finding(Severity.ERROR, "otlp", "--otlp", what, mend)
        return
    for name in _ENDPOINTS:
        place = urlsplit(setup.environ.get(name, ""))
        with suppress(ValueError):
            if place.hostname in _THIS_MACHINE and not _listens(place.hostname, place.port or 80):
                what = "nothing listens at the place on this machine that it names"
                mend = f"to see what `serve --otlp` would do: `{setup.commands.about('doctor', options=('--otlp',))}`"
                yield Finding(Severity.NOTE, "otlp", name, what, mend)


_OF_SERVERS: Final[tuple[_Check, ...]] = (
    _files,
    _rights,
    _programs,
    _folders,
    _env_files,
    _documents,
    _ports,
    _logins,
    _names,
    _resets,
)
CHECKS: Final = (_broken, _nothing, _unread, _cache, *_OF_SERVERS, _meaning, collector, gateways, sockets)


# ---- Starts every server once, in a room of its own, and says what was wrong -----------------------------------------
#
# For `greenroom doctor --start`.


async def try_servers(
    setup: Setup,
    known: Collection[str],
    tell: Callable[[str], object],
    required: Collection[str] | None = None,
) -> list[Finding]:
    """What is wrong with the servers in service that need no session, or with those of them that are `required`. Each
    is started once and ended, without those that are `known` to fail. What they have and print is kept, as that of
    every start. A server that is required must list its tools, too."""
    from ..supervisor.room import Greenroom
    from .logs_command import has_printed

    room = Greenroom.open(only_asked_for(setup.config), bootstrap=False)
    findings: list[Finding] = []
    began: dict[str, float] = {}
    odd: set[str] = set()
    able = (server for server in setup.in_service() if not session_variables(server))
    names = [server.name for server in able if server.name not in known]
    if required is not None:
        names = [name for name in names if name in required]

    def heard(event: Event | Lagged) -> None:
        server = event.server if isinstance(event, Event) else None
        if server is None:
            return
        if isinstance(event, Note) and event.code in _ODD and server not in odd:
            odd.add(server)
            findings.append(behaved_oddly(setup, server, event.words, event.code))
        elif isinstance(event, Transition) and event.after is State.CONNECTING:
            began[server] = event.at
        elif isinstance(event, Transition) and event.after is State.CONNECTED:
            findings.extend(started_slowly(setup, server, event.at - began.get(server, event.at)))

    async def one(room: Greenroom, name: str) -> None:
        tell(f"starting {name}")
        try:
            await room.connect(name)
            (row,) = (row for row in room.status() if row.server == name and row.scope == SHARED)
            setup.tools[name] = row.tool_count or 0
            if required is not None and not row.tool_count:
                findings.append(_without_tools(setup, name, row.problems))
            await room.drain(name)
        except NeedsAuth as error:
            mend = setup.commands.about("auth", name)
            findings.append(Finding(Severity.ERROR, "login", name, error.message, mend))
        except GreenroomError as error:
            logs = (
                f". What it printed: `{setup.commands.about('logs', name)}`"
                if has_printed(setup.config, name)
                else ""
            )
            mend = f"correct its entry{setup.or_disable(name)}{logs}"
            findings.append(Finding(Severity.ERROR, "start", name, error.message, mend))

    async with room.events([Kind.NOTE, Kind.TRANSITION]) as events, anyio.create_task_group() as readers:

        async def read() -> None:
            async for event in events:
                heard(event)

        readers.start_soon(read)
        async with room, anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, room, name)
        events.close()  # the reader reads the rest and ends
    return findings


def _without_tools(setup: Setup, name: str, problems: Sequence[str]) -> Finding:
    """The finding about a server that is required, has started, and has listed no tool."""
    what = f"it started, and lists no tools{f': {problems[0]}' if problems else ''}"
    mend = f"see what its entry passes to it, and what it says: `{setup.commands.about('explain', name)}`"
    return Finding(Severity.ERROR, "start", name, what, mend)
