"""`greenroom serve`: its options, and the loop it runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ..actors.process_tuning import shorten_turns_of_threads
from ..config.model import SETTING_KEYS, Isolation
from ..config.parse import fit_keep_alive
from ..config.self_reference import check_depth
from ..gateway.next_steps import Commands
from ..protocol.errors import UsageError
from ..protocol.patterns import lazy_pattern
from .common import (
    check_profile,
    commands_typed,
    config_option,
    load,
    read_config,
    record_options,
    recording_in,
    room_of,
    running_gateway,
    say,
    say_whose,
)

if TYPE_CHECKING:
    from ..config.model import Config, Settings
    from ..gateway.doors.attach_client import Starting


# Places of settings that say who may use the door, and of what they are in.
_GUARDS = lazy_pattern(r": (settings(\.|\[\")http\b.*|adapter\.mcpBearerToken|settings|adapter)\Z")


@click.command("serve")
@click.option(
    "--expose",
    type=click.Choice(["proxy", "direct", "meta"]),
    default="proxy",
    show_default=True,
    help="What clients see: one mcp tool for everything (proxy), each tool by its name (direct), or three or four "
    "tools named as in MetaMCP (meta).",
)
@click.option(
    "--profile",
    metavar="P",
    help="Show clients only what this profile has (over HTTP: clients whose token names no profile).",
)
@click.option(
    "--events", type=click.Path(path_type=Path), help="Append every event to this file, as JSON lines."
)
@click.option(
    "--audit",
    type=click.Path(path_type=Path),
    help="Append a line for each call to this file, in a chain of hashes.",
)
@record_options
@click.option(
    "--otlp",
    is_flag=False,
    flag_value="",
    metavar="URL",
    help="Send spans and durations to this OpenTelemetry collector. Without a value: as the variables OTEL_* say.",
)
@click.option("--max-connections", type=click.IntRange(1), metavar="N", help="Run at most N servers at once.")
@click.option(
    "--idle-timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="Stop servers that are idle this long; 0: never.",
)
@click.option(
    "--failure-threshold",
    type=click.IntRange(1),
    metavar="N",
    help="Failures in a row after which a server's circuit breaker refuses calls.",
)
@click.option("--cooldown", type=click.IntRange(0), metavar="MS", help="How long it refuses them then.")
@click.option(
    "--background",
    is_flag=True,
    help="Start the room that clients join with greenroom attach, and return when it is ready.",
)
@click.option("--as-room", hidden=True, metavar="NAME", help="Be the background room of this name.")
@click.option(
    "--ready", type=int, hidden=True, metavar="FD", help="Tell this descriptor that clients can come."
)
@click.option("--lock", type=int, hidden=True, metavar="FD", help="Hold this descriptor until then.")
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="HOST:PORT",
    help="Serve Streamable HTTP there, at /mcp, instead of stdio. Without a value: where http.listen says.",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="With --http: bearer tokens that are accepted."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="With --http: the certificate, for https.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="With --http: the certificate's key.")
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Run the servers on the hosts of this Ray cluster: HOST:PORT of its head, or auto.",
)
@config_option
def serve_command(
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
    """Run the gateway: on standard input and output, for an MCP client to start, or over HTTP."""
    if as_room is not None:
        from ..gateway.doors.background import become_room

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
        start_in_background(config, config_path, _words(click.get_current_context()), audit)
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

        more |= click.get_current_context().with_resource(exporting(otlp, say))
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
        from ..gateway.doors.http_auth import Token, terms_in, tokens_in
        from ..gateway.serve import HttpOptions, serve_http

        file = None if token_file is None else Path(os.path.abspath(token_file))

        def tokens_of(config: Config) -> tuple[Token, ...]:
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
        run_gateway(partial(serve, config, open_room, options))
        return
    from ..gateway.doors.background import place_named, say_ready
    from ..gateway.serve import Whereabouts, serve_background

    here = Whereabouts(
        place_named(as_room), partial(room_of, path=config_path), partial(say_ready, ready, lock)
    )
    run_gateway(partial(serve_background, config, open_room, options, here))


def _hosts(room: Any) -> list[Any]:
    """The hosts of a room on a cluster, as `cluster status` shows them."""
    from .cluster_command import hosts_in

    return hosts_in(room.membership.view)


def _words(context: click.Context) -> list[str]:
    """The options of this command that its background room gets too."""
    words: list[str] = []
    for option in context.command.params:
        name, value = option.name or "", context.params[option.name or ""]
        if name in ("background", "as_room", "ready", "lock", "config_path") or value is None:
            continue
        words += [option.opts[0], os.path.abspath(value) if isinstance(value, Path) else str(value)]
    return words


def check_start(command: str) -> None:
    """Raises `UsageError` when this process cannot serve a client: it has no standard input, or a configuration
    seems to start itself."""
    check_depth(os.environ)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  (Python has found it closed)
        text = f"Standard input is closed. An MCP client starts greenroom {command} with a pipe there."
        raise UsageError(text)


def _listen_in(config: Config) -> str:
    """The address that the configuration gives for the door. Raises `UsageError` when it gives none."""
    if config.settings.http_listen is None:
        raise UsageError(
            "--http needs HOST:PORT, such as 127.0.0.1:8000, or the setting http.listen. Give one."
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
        raise UsageError(f"{text} is no HOST:PORT for the HTTP door. Write it like 127.0.0.1:8000.")
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
    if over_http and read.settings.isolation is None:
        options = {**options, "isolation": Isolation.PER_SESSION}
    return override(read, **options)


def unheard(before: Settings, now: Settings, options: Mapping[str, Any]) -> Iterable[str]:
    """What of a changed file has no effect, because an option of this start is stronger; each in a line."""
    for key in SETTING_KEYS:
        attribute = key.attribute
        if options.get(attribute) is not None and getattr(before, attribute) != getattr(now, attribute):
            option = f"--{attribute.replace('_', '-')}"
            yield f"{key.name} has changed in the configuration, and is not followed: {option} of this start counts"


def override(config: Config, **settings: Any) -> Config:
    """`config` with the settings that were given on the command line."""
    given = {key: value for key, value in settings.items() if value is not None}
    changed = attrs.evolve(config, settings=attrs.evolve(config.settings, **given))
    if changed.settings.min_connections >= changed.settings.max_connections:
        raise UsageError(
            f"--max-connections {changed.settings.max_connections} must be above the configured minConnections "
            f"({changed.settings.min_connections})."
        )
    return fit_keep_alive(changed)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


# ---- How the commands start the background room of a configuration --------------------------------------------------


def start_in_background(
    config: Config, path: Path | None, words: Sequence[str], audit: Path | None = None
) -> None:
    """`greenroom serve --background`: returns when clients can come. Raises `NoRoom`, and `UsageError` when the room
    runs already and does not keep the `audit` file that was asked for."""
    there = starting(config, path, words)
    started = there.start()
    if not started and audit is not None and _audit_of(config) != os.path.abspath(audit):
        text = f"The background room runs already, and does not keep the audit file {audit}."
        raise UsageError(f"{text} Run this again after: greenroom stop")
    commands = commands_typed()
    say(
        f"the background room {'is ready' if started else 'runs already'}. Its log: {there.place.log}\n"
        f"Clients join it with: {commands.about('attach')}\n"
        f"To end it: {commands.about('stop')}"
    )


def _audit_of(config: Config) -> str | None:
    gateway = running_gateway(config, None)
    status: dict[str, Any] = {} if gateway is None else gateway.ask("status", quickly=True)
    return status.get("audit", {}).get("file")


def starting(config: Config, path: Path | None, words: Sequence[str] = ()) -> Starting:
    """How the room of `config` is started."""
    from ..gateway.doors.attach_client import Starting
    from ..gateway.doors.background import environment

    say_whose(config, path)
    named = ["--config", os.path.abspath(path.expanduser())] if path is not None else []
    return Starting(
        room_of(config, path), [*named, *words], environment(os.environ, frozenset(session_names(config)))
    )


def session_names(config: Config) -> set[str]:
    """The names of the session values that the configuration uses. Nothing else of a client's environment is passed
    on."""
    from ..config.references import session_variables

    return {name for server in config.servers.values() for name in session_variables(server)}
