"""What the commands share: the configuration, the source of the answers, and printing them.

A `Source` is a running gateway of the same configuration, or else the cache. Both give answers of the same
form, so a command need not know which it is. A line on stderr tells it to the person.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from ..actors.process_tuning import collect_again
from ..gateway.doors.control_protocol import identity, name_of
from ..gateway.next_steps import Commands
from ..protocol.errors import (
    DISABLED,
    UNSET_VARIABLE,
    UNTRUSTED,
    ConfigError,
    GreenroomError,
    Problem,
    UnknownServer,
    UsageError,
    place,
)
from ..protocol.safe_text import one_line, printable, seen_in_json
from .exit_codes import FAILED, OK, USAGE
from .plain_command import Option
from .standard_streams import print_line
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control
    from ..gateway.doors.background_gateway import RoomPlace
    from ..gateway.doors.control_client import GatewayError
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.offline_catalogue import OfflineCatalogue
    from .json_shapes import Shape


_NAMED: Final = 10  # servers that are named in one line
_LONGEST_NAME: Final = 100  # characters of a name: one that a file has made up may have line breaks, too
_NO_SERVERS: Final = "There are none. To add one: greenroom add NAME -- COMMAND"
_RELOADED_WITHIN: Final = 5.0  # seconds for a gateway to read its configuration again
_TOLD: Final = (
    10  # warnings that one command says; a client's own file may have dozens of keys without effect
)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


CONFIG: Final = Option(
    name="--config",
    parameter="config_path",
    takes=Path,
    of_all=True,
    help="Read only this configuration file.",
)
_PID: Final = Option(name="--pid", takes=int, of_all=True, help="Ask the gateway with this process number.")
_JSON: Final = Option(name="--json", parameter="as_json", takes=bool, help="Print JSON.")
RECORD: Final = Option(
    name="--record",
    takes=Path,
    metavar="FOLDER",
    help="Record all calls and answers on a tape in this folder (or at FILE.tape), for greenroom replay.",
)
REDACT: Final = Option(
    name="--redact",
    metavar="NAMES",
    help="With --record: leave the values of these keys out, as in password,pin.",
)


def _with_options(command: F, *options: Option) -> F:
    import click

    for option in reversed(options):
        command = click.option(option.name, option.argument, **option.of_click())(command)
    return command


def config_option(command: F) -> F:
    """`--config FILE`."""
    return _with_options(command, CONFIG)


def common_options(command: F) -> F:
    """`--config`, `--pid` and `--json`."""
    return _with_options(command, CONFIG, _PID, _JSON)


def record_options(command: F) -> F:
    """`--record` and `--redact`, which `recording_in` reads."""
    return _with_options(command, RECORD, REDACT)


def recording_in(record: Path | None, redact: str | None) -> dict[str, Any]:
    """What `Greenroom.open` is given for these options. Raises `UsageError` for one without the other."""
    if record is not None:
        return {"record": record, "redact": names_in(redact)}
    if redact is not None:
        raise UsageError("--redact is for --record FOLDER. Add that, or leave it out.")
    return {}


def names_in(listed: str | None) -> list[str]:
    """The names in an option like `a,b`."""
    return [name.strip() for name in (listed or "").split(",") if name.strip()]


def read_config(
    path: Path | None,
    *,
    always: bool = False,
    most: int | None = _TOLD,
    folder: Path | None = None,
    about: str | None = None,
) -> Config:
    """The configuration, as `load` reads it. Its warnings go to stderr, `most` of them, and each once a day, or
    `always`: also where it has no servers, because a warning may say why. Variables that are not set are one warning.
    `about`: only the warnings about this server, each variable by itself. Raises `ConfigError` when a named file cannot
    be used."""
    try:
        config = load(path, folder)
    except ConfigError:
        _say_who_goes_on(path)
        raise
    if about is None:
        told = list(_warnings(config.problems, with_step=always))
    else:
        told = [str(problem) for problem in config.problems if is_about(problem, about)]
    if told and config.servers and not always:
        from .warnings_file import not_told_lately

        # That a file is not obeyed, or not read, is said by each command: its answer is about the other files alone.
        without = {*config.untrusted, *config.unread}
        left = [str(problem) for problem in config.problems if problem.where in without]
        new = not_told_lately([text for text in told if text not in left], name_of(config))
        _say_some([*left, *new], most, is_new=bool(new))
    else:
        _say_some(told, most, is_new=False)
    return config


def _warnings(problems: Iterable[Problem], *, with_step: bool) -> Iterator[str]:
    """The problems, with one line for all values whose variables are not set. `with_step`: it says how to see them."""
    unset = [problem for problem in problems if problem.code == UNSET_VARIABLE]
    yield from (str(problem) for problem in problems if len(unset) == 1 or problem.code != UNSET_VARIABLE)
    if len(unset) > 1:
        what = (
            f"{len(unset)} values of the configuration refer to variables that are not set, so they are empty"
        )
        yield f"{what}.{' To see them: greenroom doctor' if with_step else ''}"


def is_about(problem: Problem, server: str) -> bool:
    """Whether the place of the problem is in the entry of this server."""
    _, found, inside = problem.where.partition(f": {place('', 'mcpServers', server)}")
    return bool(found) and inside[:1] in ("", ".", "[")


def _say_who_goes_on(path: Path | None) -> None:
    """The file at `path` cannot be used now. Say which gateways run with what it said before, and how to ask them."""
    from ..gateway.doors.control_client import find_gateways

    for gateway in find_gateways(identity([os.fspath(path)]), say_error) if path is not None else ():
        gateway.connection.close()
        who = f"the gateway that runs as process {gateway.pid} goes on with what this file said before"
        say(f"{who}. To ask it: greenroom status --pid {gateway.pid}")


def reload_gateways() -> None:
    """Make every running gateway read its configuration now, which has just been written, and wait until it uses that.
    A file may be part of many configurations. Say of each gateway that does not use it yet; raise nothing, because what
    was to be written is written."""
    from ..gateway.doors.control_client import SILENT, GatewayLost, ask_each, find_gateways

    lost: list[GatewayError] = []
    try:
        gateways = find_gateways(None, lost.append)
    except UsageError as error:
        say(error.message)
        return
    with ExitStack() as stack:
        for gateway in gateways:
            stack.enter_context(gateway)
        answers = ask_each(gateways, "reload", _RELOADED_WITHIN)
    for gateway, answer in zip(gateways, answers, strict=True):
        if isinstance(answer, GatewayLost):
            lost.append(answer)
        elif why := _not_reloaded(answer):
            say(one_line(f"the gateway of process {gateway.pid} does not use this yet: {why}"))
    for error in lost:
        if not isinstance(error, GatewayLost):
            say(error.message)
        elif error.code == SILENT:  # else it has ended
            say(f"{error.why}. It does not use this yet. Continue or end that process.")


def _not_reloaded(answer: Any) -> str:
    if isinstance(answer, GreenroomError):
        return answer.message
    try:
        return str(answer["notReloaded"])
    except (LookupError, TypeError):
        return "it answered something else. Restart it."


def _say_some(warnings: Sequence[str], most: int | None, *, is_new: bool) -> None:
    for text in warnings[:most]:
        say(text)
    more = 0 if most is None else max(0, len(warnings) - most)
    if more:
        say(f"and {more} more about the configuration. To see all of them: greenroom doctor")
    elif is_new:
        say("warnings about the configuration are said once a day. To see all of them: greenroom doctor")


def load(path: Path | None, folder: Path | None = None) -> Config:
    """The configuration, silently; of `folder`, if it is not to be that of the working directory. Raises `ConfigError`
    when a named file cannot be used."""
    from ..config.files import load_config, working_directory

    return load_config(
        path,
        cwd=folder or working_directory(path),
        home=Path.home(),
        environ=os.environ,
        platform=sys.platform,
    )


def load_asked(path: Path | None, pid: int | None) -> Config:
    """The configuration of the gateway that is asked: that of `pid`, whatever file is named beside it, or else what
    `load` finds. Raises `UsageError` when no gateway has that `pid`."""
    if pid is None:
        return load(path)
    with _gateway_of(pid) as gateway:
        said = gateway.ask("hello", quickly=True)
    folder = Path(said["folder"])
    return load(None if said.get("config") is None else folder / said["config"], folder)


def _gateway_of(pid: int) -> control.Gateway:
    from ..gateway.doors.control_client import find_gateway

    gateway = find_gateway("", pid)
    assert gateway is not None  # one with this `pid`, or `UsageError`
    return gateway


def say_whose(config: Config, path: Path | None, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Name on stderr the files of the project that `config` is made of, because they came with the repository and start
    programs. Says nothing if one file was asked for, or if they are the `known` ones. Returns them."""
    from ..config.files import project_files, working_directory

    if path is not None:
        return ()
    of_project = project_files(config, cwd=working_directory(None), home=Path.home(), environ=os.environ)
    found = tuple(file for file in of_project if file not in (*config.untrusted, *config.unread))
    if found and found != known:
        say(
            f"this project also decides which programs are started: {', '.join(found)}. Use --config to name one file."
        )
    return found


def room_of(config: Config, path: Path | None) -> RoomPlace:
    """The place of the background gateway of `config`, which was read from `path` or found."""
    from ..config.files import project_files, working_directory
    from ..gateway.doors.background_gateway import room_place

    cwd = working_directory(path)
    near = project_files(config, cwd=cwd, home=Path.home(), environ=os.environ)
    return room_place(config, path, cwd, of_project=any(file not in config.left_out for file in near))


def check_profile(config: Config, profile: str | None) -> None:
    """Raises `UsageError` for a profile that the configuration does not have."""
    if profile is not None and profile not in config.profiles:
        from ..protocol.near_names import meant

        known = f"There are: {', '.join(config.profiles)}." if config.profiles else "It has none."
        text = f'There is no profile "{profile}" in this configuration. {known}'
        raise UsageError(f"{text}{meant(profile, config.profiles)}")


def no_such_server(config: Config, server: str) -> UsageError:
    """The error for the name of a server that the configuration does not have."""
    from ..protocol.near_names import meant

    known = [one_line(name, _LONGEST_NAME) for name in (*config.servers, *config.broken)]
    there = f"There are: {', '.join(known)}.{meant(server, known)}" if known else _NO_SERVERS
    what = f'There is no server "{one_line(server, _LONGEST_NAME)}" in this configuration.'
    return UsageError(f"{what} {there}", server=server)


def check_usable(config: Config, server: str) -> None:
    """Raises `UsageError` for a server that the configuration does not have, or whose entry cannot be used."""
    if (problem := config.broken.get(server)) is not None:
        raise UsageError(f'Server "{server}" cannot be used: {problem}', server=server)
    if server not in config.servers:
        raise no_such_server(config, server)


def none_in_service(config: Config) -> Iterator[str]:
    """The text for a configuration without servers where some are wanted, with the next step."""
    if config.broken or not all(server.disabled for server in config.servers.values()):
        return
    if config.servers:
        yield "Every server is disabled."
        yield f"To bring one back into service: {commands_typed().about('enable', next(iter(config.servers)))}"
    elif config.unread:
        yield f"No server is known, because a file cannot be read: {one_line(config.unread[0])}"
        yield f"To see why: {commands_typed().about('doctor')}"
    else:
        yield "No servers are configured."
        yield f"To add one: {commands_typed().about('add')} NAME -- COMMAND"


def left_out(config: Config) -> Iterator[str]:
    """One line for each reason why configured servers are not used, with their names and the next step."""
    untrusted = [name for name, problem in config.broken.items() if problem.code == UNTRUSTED]
    broken = [name for name, problem in config.broken.items() if problem.code not in (UNTRUSTED, DISABLED)]
    about = commands_typed().about
    if untrusted:
        yield f"Not trusted, so not used: {_first(untrusted)}. To see them, and decide: {about('trust')}"
    if broken:
        yield f"Cannot be used: {_first(broken)}. To see why: {about('doctor')}"


def from_home(path: str, home: Path) -> str:
    """The path as it is shown to a person: `~` stands for the home folder."""
    with suppress(ValueError):
        return f"~/{Path(path).relative_to(home)}"
    return path


def unread_here(config: Config) -> Path | None:
    """An `mcp.json` in this folder that is not read. None, too, if one file was named."""
    from ..config.files import unread_file, working_directory

    return None if commands_typed().config is not None else unread_file(working_directory(None), config.files)


def not_read(config: Config) -> Iterator[str]:
    """The text about an `mcp.json` in this folder that is not read, with the next step."""
    unread = unread_here(config)
    if unread is not None:
        yield f"{one_line(os.fspath(unread))} is not read: of a folder only .mcp.json and .greenroom/mcp.json are."
        yield "To use it, give it one of these names, or: greenroom --config mcp.json"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return one_line(", ".join(names[:_NAMED])) + more


def running_gateway(config: Config, pid: int | None) -> control.Gateway | None:
    """The gateway to ask, if one runs. The connection is closed when the command ends. Raises `UsageError`
    when no gateway has that `pid`."""
    import click

    from ..gateway.doors.control_client import find_gateway

    gateway = find_gateway(name_of(config), pid)
    return None if gateway is None else click.get_current_context().with_resource(gateway)


def only_asked_for(config: Config) -> Config:
    """The configuration of a room for one command: a server starts when the command asks for it, once, and nothing is
    kept running or started ahead."""
    from ..config.model import Lifecycle, RestartPolicy

    way: dict[str, Any] = {
        "lifecycle": Lifecycle.LAZY,
        "restart_policy": RestartPolicy.ON_DEMAND,
        "warm": 0,
    }
    servers = {name: msgspec.structs.replace(one, **way) for name, one in config.servers.items()}
    return msgspec.structs.replace(config, servers=servers)


def run_to_end(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on trio. Ctrl-C is raised only in `main`, where it waits. Raised at an arbitrary place, it
    would end a task of the room."""
    import anyio

    collect_again()
    return anyio.run(
        main, backend="trio", backend_options={"restrict_keyboard_interrupt_to_checkpoints": True}
    )


async def until_told(main: Callable[[], Awaitable[T]]) -> T | None:
    """What `main` gives; None: we were told to end, or the terminal was closed. Then it is cancelled, so that nothing
    of ours is left."""
    import signal

    import anyio

    from ..actors.backend import pump_group

    async with pump_group() as tasks:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        return await main()
    return None


class Source(Protocol):
    """Where the answers come from. `origin` names it, for `--json`."""

    origin: Mapping[str, Any]

    def status(self) -> dict[str, Any]: ...

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        """What `explained` says of this server."""
        ...

    def tools(self, server: str | None) -> dict[str, Any]: ...

    def tree(self) -> dict[str, Any]:
        """The room as `tree`, a `TreeNode` in JSON."""
        ...

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request to the `mcp` tool that only looks."""
        ...


class GatewaySource:
    def __init__(self, gateway: control.Gateway) -> None:
        self._gateway = gateway
        self.origin: Mapping[str, Any] = {"source": "gateway", "pid": gateway.pid}

    def status(self) -> dict[str, Any]:
        return self._gateway.ask("status", quickly=True)

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        return self._gateway.ask("explain", quickly=True, server=server, **msgspec.structs.asdict(commands))

    def tools(self, server: str | None) -> dict[str, Any]:
        return self._gateway.ask("tools", quickly=True, server=server)

    def tree(self) -> dict[str, Any]:
        return self._gateway.ask("tree", quickly=True)

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._gateway.ask("mcp", quickly=True, arguments=dict(arguments))


class CacheSource:
    def __init__(
        self, catalogue: OfflineCatalogue, reader: CatalogueReader, origin: Mapping[str, Any]
    ) -> None:
        self._catalogue = catalogue
        self._reader = reader
        self.origin = origin

    def status(self) -> dict[str, Any]:
        from ..gateway.json_views import status_view

        return status_view(self._catalogue)

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        from ..gateway.explain import explained

        return explained(self.status(), self._catalogue.config, server, commands, runs=False)

    def tools(self, server: str | None) -> dict[str, Any]:
        from ..gateway.json_views import tools_view

        return tools_view(self._catalogue, server)

    def tree(self) -> dict[str, Any]:
        from ..gateway.json_views import offline_tree_view

        return offline_tree_view(self._catalogue)

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from ..catalogue.meaning_model import Unusable
        from ..gateway.exposures.tool_definition import Mode, parse_request

        request = parse_request(arguments)
        if request.mode is Mode.SEARCH and not request.regex:
            try:
                request = msgspec.structs.replace(request, near=self._catalogue.near(request.subject))
            except Unusable as error:
                say(f"tools are found by their words alone: {error}")
        return self._reader.answer(request).as_result()


def open_source(path: Path | None, pid: int | None, config: Config | None = None) -> Source:
    """The running gateway of this configuration, or else the cache; then a line on stderr says so. `config`: if it has
    been read already."""
    import click

    config = config or read_config(path)
    gateway = running_gateway(config, pid)
    if gateway is not None:
        return GatewaySource(gateway)
    say_at_terminal("no gateway runs for this configuration; this is what the cache knows.", config)
    if click.get_current_context().command.name != "status":  # which says it in its answer
        say_if_none(config)
    return from_cache(config, say_elsewhere(config), warns=True)


def say_if_none(config: Config) -> None:
    """Say on stderr if no server is in service."""
    for text in none_in_service(config):
        say(text)


def from_cache(
    config: Config, elsewhere: Mapping[str, Any] | None = None, *, warns: bool = False
) -> CacheSource:
    """The cache as a source. `warns`: a line on stderr says if it cannot be read."""
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.exposures.tool_definition import FOR_PEOPLE
    from ..gateway.offline_catalogue import open_catalogue

    catalogue = open_catalogue(config)
    if warns and catalogue.warning is not None:
        say(catalogue.warning)
    origin = {"source": "cache", **(elsewhere or {})}
    return CacheSource(catalogue, CatalogueReader(catalogue, hints=FOR_PEOPLE), origin)


def say_elsewhere(config: Config) -> dict[str, Any]:
    """Name the gateways that run for other configurations, and how to see one of them: `status` names all, any other
    command those that no command has named in the last day. Returns them, for `--json`."""
    import attrs
    import click

    from ..gateway.doors.control_client import find_elsewhere
    from .warnings_file import not_told_lately

    name, command = name_of(config), click.get_current_context().info_name
    found = find_elsewhere(name)
    shows = "tools" if command == "tools" else "status"  # others need more words
    new = not_told_lately([str(one) for one in found], name)
    for one in found:
        if command == "status" or str(one) in new:
            say(elsewhere_in_words(one, shows))
    return {"elsewhere": [attrs.asdict(one) for one in found]} if found else {}


def elsewhere_in_words(gateway: control.OtherGateway, command: str = "status") -> str:
    where = f" in {one_line(gateway.folder)}" if gateway.folder else ""
    return f"a gateway of another configuration runs{where}: greenroom {command} --pid {gateway.pid}"


def show(
    text: str, details: Mapping[str, Any] | Shape, as_json: bool, *shapes: type[Shape], ours: bool = True
) -> None:
    """The answer, on stdout. `details`: for JSON, a struct or what fits one of `shapes`. `ours`: the commands that it
    names, as text or in its JSON, are next steps."""
    commands = commands_typed() if ours else Commands()
    if as_json:
        from .json_shapes import plain

        show_json(commands.filled_in(plain(details, *shapes)))
    elif ours:
        tell(text)
    else:
        print_line(printable(text), sys.stdout)


def tell(text: str) -> None:
    """Print a text of ours on stdout; at a terminal it is wrapped to fit."""
    from .text_wrapping import fitted

    print_line(fitted(commands_typed().filled(text)), sys.stdout)


def show_json(value: Any, *shapes: type[Shape]) -> None:
    """Print `value` as JSON on stdout, in characters that stdout can encode. It is a struct, or fits one of `shapes`;
    without these it is printed as it is."""
    from .json_shapes import Shape, plain

    value = plain(value, *shapes) if shapes or isinstance(value, Shape) else value
    encoding = sys.stdout.encoding or "" if sys.stdout is not None else ""
    text = json.dumps(value, indent=2, ensure_ascii=encoding.lower() not in ("utf-8", "utf8"))
    print_line(seen_in_json(text), sys.stdout)


def show_result(
    result: Mapping[str, Any], origin: Mapping[str, Any], as_json: bool, *shapes: type[Shape]
) -> int:
    """The result of the `mcp` tool, on stdout, by `shapes` or refused. Returns the exit code."""
    from ..gateway.result_meta import details_of
    from .json_shapes import RefusedJson

    details = {**details_of(result), **origin}
    if details.get("mode") == "call":  # in other modes the details say everything that the text says
        details["content"] = result["content"]
    failed = "error" in details
    text = text_of(result)
    if failed and details["error"] == "tool_error":
        details.pop("message", None)  # its words are in the content alone
    elif failed:
        details["message"] = commands_typed().filled(text)
        if "content" in details:
            details["content"] = [{"type": "text", "text": details["message"]}]
    is_theirs = details.get("mode") == "call" and details.get("error") in (None, "tool_error")
    if failed and is_theirs and not as_json:
        print_line(printable(text), sys.stderr)
    elif failed and not as_json:
        say(text)
    else:
        show(text, details, as_json, RefusedJson, *shapes, ours=not is_theirs)
    return exit_code_of(details)


def exit_code_of(details: Mapping[str, Any]) -> int:
    """A server that the configuration does not have is bad usage, whatever command it was typed behind."""
    if "error" not in details:
        return OK
    return USAGE if details["error"] == UnknownServer.code else FAILED


def text_of(result: Mapping[str, Any]) -> str:
    """The content as text. Anything else is named, with its size."""
    return "\n".join(_block_text(block) for block in result["content"])


def say(text: str, *, ours: bool = True) -> None:
    """Print a message about the answer on stderr. `ours`: as for `show`."""
    from .text_wrapping import fitted

    line = f"greenroom: {commands_typed().filled(text) if ours else text}"
    print_line(fitted(line, sys.stderr), sys.stderr)


def say_error(error: GreenroomError) -> None:
    """Print an error that does not end the command."""
    say(error.message)


def say_at_terminal(text: str, config: Config) -> None:
    """Say on stderr what only a person wants to know, once a day."""
    from .text_wrapping import on_terminal
    from .warnings_file import not_told_lately

    if on_terminal(sys.stderr) and not_told_lately([text], name_of(config)):
        say(text)


def _block_text(block: Mapping[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    size = len(str(block.get("data", "")))
    return f"[{block.get('type')}: {block.get('mimeType', 'unknown type')}, {size} characters of base64]"
