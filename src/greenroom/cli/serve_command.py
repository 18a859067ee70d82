"""`greenroom serve`: its options, and the loop it runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ..actors.process_tuning import shorten_turns_of_threads
from ..config.model import EXPOSURES, SETTING_KEYS, Isolation
from ..config.parse import fit_keep_alive
from ..config.self_reference import check_depth
from ..gateway.next_steps import Commands
from ..protocol.errors import UsageError
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.status import about
from .config_reading import load, read_config
from .missing_servers import check_profile
from .plain_command import Option, PlainCommand
from .printing import say
from .running_gateways import room_of, running_gateway
from .shared_options import CONFIG, RECORD, REDACT, recording_in
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config, Settings
    from ..gateway.doors.attach_client import RoomStarter


# Places of settings that say who may use the door, and of what they are in.
_GUARDS = lazy_pattern(r": (settings(\.|\[\")http\b.*|adapter\.mcpBearerToken|settings|adapter)\Z")


_OPTIONS: Final = (
    Option(
        name="--expose",
        takes=EXPOSURES,
        default="proxy",
        help="What clients see: one mcp tool for everything (proxy), each tool by its name (direct), or three or four "
        "tools named as in MetaMCP (meta).",
    ),
    Option(
        name="--profile",
        metavar="P",
        help="Show clients only what this profile has (over HTTP: clients whose token names no profile).",
    ),
    Option(name="--events", takes=Path, help="Append every event to this file, as JSON lines."),
    Option(
        name="--audit",
        takes=Path,
        help="Append a line for each call to this file, in a chain of hashes.",
    ),
    RECORD,
    REDACT,
    Option(
        name="--otlp",
        bare="",
        metavar="URL",
        help="Send spans and durations to this OpenTelemetry collector. Without a value: as the variables OTEL_* say.",
    ),
    Option(name="--max-connections", takes=int, least=1, metavar="N", help="Run at most N servers at once."),
    Option(
        name="--idle-timeout",
        takes=int,
        least=0,
        metavar="MS",
        help="Stop servers that are idle this long; 0: never.",
    ),
    Option(
        name="--failure-threshold",
        takes=int,
        least=1,
        metavar="N",
        help="Failures in a row after which a server's circuit breaker refuses calls.",
    ),
    Option(
        name="--cooldown",
        takes=int,
        least=0,
        metavar="MS",
        help="How long the circuit breaker refuses calls then.",
    ),
    Option(
        name="--background",
        takes=bool,
        help="Start the background gateway, which clients join with greenroom attach, and return when it is ready.",
    ),
    Option(name="--as-room", hidden=True, metavar="NAME", help="Be the background gateway of this name."),
    Option(
        name="--ready",
        takes=int,
        hidden=True,
        metavar="FD",
        help="Tell this descriptor that clients can come.",
    ),
    Option(name="--lock", takes=int, hidden=True, metavar="FD", help="Hold this descriptor until then."),
    Option(
        name="--http",
        bare="",
        metavar="HOST:PORT",
        help="Serve Streamable HTTP there, at /mcp, instead of stdio. Without a value: where http.listen says.",
    ),
    Option(name="--token-file", takes=Path, help="With --http: bearer tokens that are accepted."),
    Option(name="--tls-cert", takes=Path, help="With --http: the certificate, for https."),
    Option(name="--tls-key", takes=Path, help="With --http: the certificate's key."),
    Option(
        name="--ray",
        metavar="ADDRESS",
        help="Run the servers on the hosts of this Ray cluster: HOST:PORT of its head, or auto.",
    ),
    CONFIG,
)


def _run(**given: Any) -> None:
    """Run the gateway: on standard input and output, for an MCP client to start, or over HTTP."""
    with ExitStack() as until_end:
        _serve(until_end, _words(given), **given)


def _serve(
    until_end: ExitStack,
    words: Sequence[str],
    *,
    expose: str,
    profile: str | None,
    events: Path | None,
    audit: Path | None,
    record: Path | None,
    redact: str | None,
    otlp: str | None,
    http: str | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_connections: int | None,
    idle_timeout: int | None,
    failure_threshold: int | None,
    cooldown: int | None,
    background: bool,
    as_room: str | None,
    ready: int | None,
    lock: int | None,
    ray: str | None,
    config_path: Path | None,
) -> None:
    """`words`: the options that a background gateway is started with."""
    if as_room is not None:
        from ..gateway.doors.background_gateway import become_room

        become_room(ready, lock)
    if http is None:
        check_start("serve")
    else:
        check_depth(os.environ)
    flags: dict[str, Any] = {
        "max_connections": max_connections,
        "idle_timeout": _seconds(idle_timeout),
        "failure_threshold": failure_threshold,
        "cooldown": _seconds(cooldown),
    }
    only_http = {
        "--token-file": token_file,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
    }
    if http is None and (stray := [flag for flag, value in only_http.items() if value is not None]):
        raise UsageError(f"{stray[0]} is for --http HOST:PORT. Add that, or leave it out.")
    if http is not None and (background or as_room is not None):
        raise UsageError("--background and --http do not go together. Leave one of them out.")
    read = read_config(config_path, always=True, most=None)
    where = None if http is None else address_in(http or _listen_in(read))
    config = as_started(read, over_http=where is not None, **flags)
    if background:
        start_in_background(config, config_path, words, audit)
        return
    check_profile(config, profile)
    told = say_whose(config, config_path)

    def reread() -> Config:
        nonlocal told, read
        before, read = read, load(config_path)
        config = as_started(read, over_http=where is not None, **flags)
        told = say_whose(config, config_path, told)
        for line in unheard(before.settings, read.settings, flags):
            say(line)
        return config

    def switch(server: str, disabled: bool) -> list[str]:
        from .enable_command import switch_in_files

        return [str(file) for file in switch_in_files(config_path, server, disabled)]

    from ..gateway.serve import Options, serve
    from ..protocol.version import VERSION
    from ..supervisor.room import Greenroom

    more = ({} if audit is None else {"audit": audit}) | recording_in(record, redact)
    if otlp is not None:
        from ..observe.otlp import exporting

        more |= until_end.enter_context(exporting(otlp, say))
    hosts: Callable[[Any], list[Any]] | None = None
    if ray is not None:
        from ..cluster.front import ClusterRoom

        open_room = partial(ClusterRoom.open, ray=ray, **more)
        hosts = _hosts
    else:
        open_room = partial(Greenroom.open, **more) if more else Greenroom.open
    options = Options(
        expose=expose,
        profile=profile,
        events=events,
        version=VERSION,
        reread=reread,
        commands=Commands(None if config_path is None else os.path.abspath(config_path.expanduser())),
        hosts=hosts,
        switch=switch,
    )
    if where is not None:
        from ..gateway.doors.http_auth import BearerToken, terms_in, tokens_in
        from ..gateway.serve import HttpOptions, serve_http

        file = None if token_file is None else Path(os.path.abspath(token_file))

        def tokens_of(config: Config) -> tuple[BearerToken, ...]:
            _check_door(config)
            tokens = tokens_in(config.settings, os.environ, file, profile)
            for token in tokens:
                check_profile(config, token.profile)
            return tokens

        tokens, oauth = tokens_of(config), terms_in(config.settings)
        for name in oauth.profiles.values() if oauth else ():
            check_profile(config, name)
        listen = HttpOptions(
            *where,
            tokens=tokens,
            token_file=file,
            tokens_of=tokens_of,
            oauth=oauth,
            profile=profile,
            cert=tls_cert,
            key=tls_key,
        )
        run_gateway(partial(serve_http, config, open_room, options, listen))
        return
    if as_room is None or ready is None or lock is None:
        say_who_comes("serve")
        run_gateway(partial(serve, config, open_room, options))
        return
    from ..gateway.doors.background_gateway import place_named, say_ready
    from ..gateway.serve import Whereabouts, serve_background

    here = Whereabouts(
        place_named(as_room), partial(room_of, path=config_path), partial(say_ready, ready, lock)
    )
    run_gateway(partial(serve_background, config, open_room, options, here))


def _hosts(room: Any) -> list[Any]:
    """The hosts of a room on a cluster, as `cluster status` shows them."""
    from .cluster_command import hosts_in

    return hosts_in(room.membership.view)


def _words(given: Mapping[str, Any]) -> list[str]:
    """The options of this command that its background gateway gets too."""
    words: list[str] = []
    for option in _OPTIONS:
        value = given[option.argument]
        if option.argument in ("background", "as_room", "ready", "lock", "config_path") or value is None:
            continue
        words += [option.name, os.path.abspath(value) if isinstance(value, Path) else str(value)]
    return words


serve_command: Final = PlainCommand("serve", _OPTIONS, _run)


def check_start(command: str) -> None:
    """Raises `UsageError` when this process cannot serve a client: it has no standard input, or a configuration
    seems to start itself."""
    check_depth(os.environ)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  (Python has found it closed)
        text = f"Standard input is closed. An MCP client starts greenroom {command} with a pipe there."
        raise UsageError(text)


def say_who_comes(command: str) -> None:
    """Tell a person who has typed `command` at a terminal that it waits for a program, and how a client gets it."""
    if sys.stdin.isatty():
        what = f"waiting for an MCP client on standard input. A client starts greenroom {command} itself"
        step = "" if command == "replay" else f": {commands_typed().about('init')}"
        say(f"{what}{step}\nCtrl-C ends it.")


def _listen_in(config: Config) -> str:
    """The address that the configuration gives for the door. Raises `UsageError` when it gives none."""
    if config.settings.http_listen is None:
        raise UsageError(
            "--http has no address: the setting http.listen gives none. Type: greenroom serve --http 127.0.0.1:8000"
        )
    return config.settings.http_listen


def _check_door(config: Config) -> None:
    """Check that everything which guards the door could be read. Raises `UsageError`. A file that was found, and not
    named, is used as far as possible; without a part of it, this door might be open to everybody."""
    from ..config.files import find_files, working_directory

    own = find_files(cwd=working_directory("/"), home=Path.home(), environ=os.environ)
    unread = {*map(os.fspath, own)} & {*config.unread}
    for problem in config.problems:
        if problem.where in unread or _GUARDS.search(problem.where):
            raise UsageError(f"The HTTP door is not opened, for it may lack a guard. {problem}. Correct it.")


def address_in(text: str) -> tuple[str, int]:
    """A host and a port. `[::1]:8000` and `:8000` (on 127.0.0.1) are fine; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f'The HTTP door needs HOST:PORT, such as 127.0.0.1:8000, and not "{text}".')
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def run_gateway(main: Callable[[], Awaitable[None]]) -> None:
    """Run the gateway on asyncio; the other commands run on trio.

    A gateway makes two reads and two writes per call. For each, asyncio calls a function, while trio wakes a
    task and registers the descriptor again, which takes twice as long (`benchmarks.b03_gateway` measures a
    bare forwarder on each). `serve` handles signals itself, so it does not need `run_to_end`.
    """
    import anyio

    from ..gateway.event_loop import GatewayLoop

    shorten_turns_of_threads()
    anyio.run(main, backend="asyncio", backend_options={"loop_factory": GatewayLoop})


def as_started(read: Config, *, over_http: bool, **options: Any) -> Config:
    """What the files say (`read`), with the options of this start. Over HTTP there are many clients: none of them
    shares a child, unless the files say so. A changed file is read in the same way."""
    given = {name: value for name, value in options.items() if value is not None}
    if over_http and read.settings.isolation is None:
        given["isolation"] = Isolation.PER_SESSION
    settings = replace(read.settings, **given)
    if settings.min_connections >= settings.max_connections:
        raise UsageError(
            f"--max-connections {settings.max_connections} must be above the configured minConnections "
            f"({settings.min_connections})."
        )
    return fit_keep_alive(replace(read, settings=settings))


def unheard(before: Settings, now: Settings, options: Mapping[str, Any]) -> Iterable[str]:
    """What of a changed file has no effect, because an option of this start is stronger; each in a line."""
    for key in SETTING_KEYS:
        attribute = key.attribute
        if options.get(attribute) is not None and getattr(before, attribute) != getattr(now, attribute):
            option = f"--{attribute.replace('_', '-')}"
            yield f"{key.name} has changed in the configuration, and is not followed: {option} of this start counts"


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


# ---- How the commands start the background gateway of a configuration ------------------------------------------------


def start_in_background(
    config: Config, path: Path | None, words: Sequence[str], audit: Path | None = None
) -> None:
    """`greenroom serve --background`: returns when clients can come. Raises `NoRoom`, and `UsageError` when the room
    runs already and does not keep the `audit` file that was asked for."""
    there = starting(config, path, words)
    started = there.start()
    if not started and audit is not None and _audit_of(config) != os.path.abspath(audit):
        text = f"The background gateway runs already, and does not keep the audit file {audit}."
        raise UsageError(f"{text} Run this again after: greenroom stop")
    commands = commands_typed()
    say(
        f"the background gateway {'is ready' if started else 'runs already'}. Its log: {there.place.log}\n"
        f"Clients join it with: {commands.about('attach')}\n"
        f"To end it: {commands.about('stop')}{_or_by_itself(config)}"
    )


def _or_by_itself(config: Config) -> str:
    idle = config.settings.background_idle
    return f". It ends by itself when nobody has used it for {about(idle)} (backgroundIdle)." if idle else ""


def _audit_of(config: Config) -> str | None:
    gateway = running_gateway(config, None)
    status: dict[str, Any] = {} if gateway is None else gateway.ask("status", quickly=True)
    return status.get("audit", {}).get("file")


def starting(config: Config, path: Path | None, words: Sequence[str] = ()) -> RoomStarter:
    """How the room of `config` is started."""
    from ..gateway.doors.attach_client import RoomStarter
    from ..gateway.doors.background_gateway import environment

    say_whose(config, path)
    named = ["--config", os.path.abspath(path.expanduser())] if path is not None else []
    return RoomStarter(
        room_of(config, path), [*named, *words], environment(os.environ, frozenset(session_names(config)))
    )


def session_names(config: Config) -> set[str]:
    """The names of the session values that the configuration uses. Nothing else of a client's environment is passed
    on."""
    from ..config.references import session_variables

    return {name for server in config.servers.values() for name in session_variables(server)}


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
