"""`greenroom` alone: where one stands, and the next step. It starts nothing, and reads what `status` reads."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError
from ..protocol.safe_text import counted, one_line, tools_in_words
from .answer_sources import GatewaySource, from_cache
from .config_reading import load
from .json_shapes import ElsewhereJson, Shape, says
from .missing_servers import not_read, unread_here
from .printing import from_home, say, say_error, show
from .running_gateways import elsewhere_in_words
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config


class UsedFileJson(Shape, kw_only=True):
    """A file of the configuration."""

    file: Annotated[str, says("its path")]
    whose: Annotated[
        Literal["own", "project", "imported", "named"],
        says("whose it is: yours, this project's, another program's, or the one of `--config`"),
    ]
    state: Annotated[Literal["used", "untrusted", "unread"], says("whether it is obeyed, and can be read")]


class NextStepJson(Shape, kw_only=True):
    """What to do next."""

    what: Annotated[str, says("what for")]
    step: Annotated[str, says("the command")]


class OwnServersJson(Shape, kw_only=True):
    """An MCP client that starts servers itself."""

    client: Annotated[str, says("its name for `init`")]
    servers: Annotated[int, says("that it starts itself", "servers")]
    step: Annotated[str, says("a sentence about them, with the command that moves them")]


class OverviewJson(Shape, kw_only=True):
    """Where one stands, and the next step."""

    files: Annotated[list[UsedFileJson], says("what the configuration is made of, the strongest first")]
    not_read: Annotated[str | None, says("an `mcp.json` in this folder that nobody reads")]
    warnings: Annotated[int, says("about the configuration; `doctor` has them", "warnings")]
    servers: Annotated[dict[str, int], says("how many there are of each `status`", "servers")]
    total_tools: Annotated[int, says("of all servers that are not disabled", "tools")]
    total_resources: Annotated[int, says("theirs that are offered as tools", "resources")]
    gateways: Annotated[
        list[int], says("the processes of those that run for this configuration, the newest first")
    ]
    elsewhere: Annotated[list[ElsewhereJson], says("gateways that run for other configurations")]
    clients: Annotated[list[OwnServersJson], says("clients here that start servers themselves")]
    next: Annotated[list[NextStepJson], says("the next step, and sometimes another one")]


_KNOWN = ("connected", "cached", "draining", "lost")
_NAMED = 5
_WORDS = {  # of a server's status -> in the line of servers; the others are known
    "not-connected": "not asked yet",
    "connecting": "connecting",
    "installing": "installing",
    "waiting": "waiting to start",
    "down": "stopped on purpose",
    "failed": "failed",
    "broken": "broken",
    "needs-auth": "waiting for a login",
    "untrusted": "not trusted",
    "disabled": "disabled",
}

_WHOSE = {"own": "yours", "project": "this project's", "imported": "imported"}
_STATES = {"used": "", "untrusted": ", not trusted", "unread": ", cannot be read"}


def show_overview(path: str | None, as_json: bool) -> None:
    """Print the overview on stdout, of the file at `path` or of those that are found."""
    config = load(None if path is None else Path(path))
    gateways = _gateways(config)
    try:
        status = _status(config, gateways)
    finally:
        for gateway in gateways:
            gateway.connection.close()
    servers: Sequence[Mapping[str, Any]] = status["servers"]
    clients = list(_clients(config))
    details = OverviewJson(
        files=list(_files(config, is_named=path is not None)),
        not_read=None if (unread := unread_here(config)) is None else os.fspath(unread),
        warnings=len(config.problems),
        servers=Counter(server["status"] for server in servers),
        total_tools=status["totalTools"],
        total_resources=status.get("totalResources", 0),
        gateways=[gateway.pid for gateway in gateways],
        elsewhere=[
            ElsewhereJson(pid=one.pid, folder=one.folder) for one in control.find_elsewhere(name_of(config))
        ],
        clients=clients,
        next=list(_next(config, servers, clients, is_served=bool(gateways))),
    )
    show("\n".join(_lines(config, details)), details, as_json)


def _gateways(config: Config) -> list[control.Gateway]:
    """Those of this configuration, the newest first."""
    try:
        return control.find_gateways(name_of(config), say_error)
    except GreenroomError as error:
        say(error.message)
        return []


def _status(config: Config, gateways: Sequence[control.Gateway]) -> dict[str, Any]:
    """The servers' status, from the newest gateway that answers, or else from the cache."""
    for gateway in gateways:
        with suppress(GreenroomError):
            return GatewaySource(gateway).status()
    return from_cache(config).status()


def _lines(config: Config, details: OverviewJson) -> Iterator[str]:
    files = details.files
    if not files:
        yield "Configuration: no file was found."
    elif files[0].whose == "named":
        yield one_line(f"Configuration: {', '.join(one.file for one in files)} (named by --config)")
    else:
        yield "Configuration:"
        for one in files:
            yield f"  {one_line(from_home(one.file, Path.home()))} ({_WHOSE[one.whose]}{_STATES[one.state]})"
    if details.warnings:
        yield f"  {counted(details.warnings, 'warning')} about it: {commands_typed().about('doctor')}"
    yield from not_read(config)
    yield f"Servers: {_servers(details.servers, tools_in_words(details.total_tools, details.total_resources))}"
    yield from _running(details)
    for client in details.clients:
        yield client.step
    yield ""
    for number, step in enumerate(details.next):
        yield f"{'Or' if number else 'Next,'} {one_line(step.what)}: {step.step}"
    yield "All commands: greenroom --help"


def _files(config: Config, *, is_named: bool) -> Iterator[UsedFileJson]:
    from ..config.files import find_files, own_file, project_files, working_directory

    around: dict[str, Any] = {"home": Path.home(), "environ": os.environ}
    cwd = working_directory(None)
    of_project = project_files(config, cwd=cwd, **around)
    ours = {os.fspath(own_file(**around)), *(os.fspath(path) for path in find_files(cwd=cwd, **around))}
    for file in config.files:
        whose = "project" if file in of_project else "own" if file in ours else "imported"
        state = "unread" if file in config.unread else "untrusted" if file in config.untrusted else "used"
        yield UsedFileJson(file=file, whose="named" if is_named else whose, state=state)


def _clients(config: Config) -> Iterator[OwnServersJson]:
    """The clients on this machine that start servers themselves."""
    from .client_files import CLIENTS, of_its_own, surroundings
    from .init_command import left_in

    around = surroundings(os.environ, sys.platform)
    for key, client in CLIENTS.items():
        if client.is_found(around) and (own := of_its_own(key, client, around)):
            yield OwnServersJson(client=key, servers=len(own), step=left_in(key, around, config))


def _servers(counts: Mapping[str, int], tools: str) -> str:
    known = sum(counts.get(word, 0) for word in _KNOWN)
    of_known = f" ({tools})"
    failed = counts.get("failed", 0)  # whose tools may be known, too
    said = [f"{known} known{'' if failed else of_known}"] if known else []
    said += [f"{counts[word]} {words}" for word, words in _WORDS.items() if counts.get(word)]
    return (", ".join(said) or "none") + (
        f"; {tools} in all" if failed and tools != tools_in_words(0) else ""
    )


def _running(details: OverviewJson) -> Iterator[str]:
    pids = details.gateways
    named = ", ".join(map(str, pids[:_NAMED]))
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    yield f"Gateways of this configuration: {f'pid {named}{more}' if pids else 'none'}"
    for one in details.elsewhere:
        yield f"  {elsewhere_in_words(control.OtherGateway(one.pid, one.folder))}"


def _next(
    config: Config,
    servers: Sequence[Mapping[str, Any]],
    clients: Sequence[OwnServersJson],
    *,
    is_served: bool,
) -> Iterator[NextStepJson]:
    """The next step. If there are several, the one without which the others would not help."""
    first: dict[str, str] = {}  # of each status, the first server
    for server in servers:
        first.setdefault(server["status"], server["name"])
    changed = next((server["name"] for server in servers if server.get("changed")), None)
    about = commands_typed().about
    if config.unread:
        yield NextStepJson(what=f"see why {config.unread[0]} cannot be read", step=about("doctor"))
    elif config.untrusted:
        yield NextStepJson(what="see what this project's file would do, and decide", step=about("trust"))
    elif not servers:
        for client in clients[:1]:
            what = "let Greenroom run the servers that a client has"
            yield NextStepJson(what=what, step=f"{about('init', client.client)} --move")
        yield NextStepJson(what="add a server", step=f"{about('add')} NAME -- COMMAND")
        yield NextStepJson(what="see Greenroom work with servers that it brings along", step="greenroom demo")
    elif (bad := first.get("broken")) is not None:
        yield NextStepJson(what=f"see why {bad} cannot be used", step=about("explain", bad))
    elif (bad := first.get("failed")) is not None:
        yield NextStepJson(what=f"see why {bad} failed", step=about("explain", bad))
    elif "needs-auth" in first:
        yield NextStepJson(what="log in", step=about("auth", first["needs-auth"]))
    elif "not-connected" in first:
        yield NextStepJson(what="ask the servers what they have", step=about("refresh"))
    elif changed is not None:
        yield NextStepJson(
            what=f"see what has changed at {changed}, and decide", step=about("accept", changed)
        )
    elif first.keys() == {"disabled"}:
        yield NextStepJson(what="bring a server back into service", step=about("enable", first["disabled"]))
    elif is_served:
        yield NextStepJson(what="watch the servers", step=f"{about('status')} --watch")
    else:
        yield NextStepJson(what="find a tool", step=f"{about('search')} WORDS")
        yield NextStepJson(what="let your MCP clients use it", step=about("init"))
