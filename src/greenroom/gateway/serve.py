"""`greenroom serve`: a room, the doors to it, and how it all ends.

There are two ways to end. *Politely* (the first SIGTERM, SIGINT or SIGHUP): no new calls are taken, the room drains,
the answers of its last calls are written, and the client has a second to read them. *At once* (the client
closed its end, or a second signal): the client is gone or the user has lost patience, so calls are cancelled
and the room closes without waiting. Clients kill a server that still runs two seconds after they closed its
input. So ending at once also sets an alarm: whatever holds us up, the process ends after 1.2 s, and the guard
ends what it started.

The client's part (reading, writing, waiting jobs) runs in the outer task group, which ends after the room.
Otherwise nobody would write the room's last answers. The room has an owner task beside it and not a context
around it, because the second signal must be able to hurry a close that has begun.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import msgspec
from anyio.lowlevel import checkpoint

from ..actors.backend import current_backend
from ..actors.process_tuning import collect_again, set_room_aside
from ..actors.transports.orphans import want_orphans
from ..actors.workers import OptionalPart, apart
from ..catalogue.store import default_cache_path
from ..config.keys import keys_of
from ..config.model import Config, Settings
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.safe_text import in_words
from ..safety.pins_file import pins_file
from ..supervisor.room import port_of
from .config_watch import NOBODY, Follower, ReloadState, reload, reload_now, watch_configuration
from .conversations import Conversations
from .doors import control_server as control
from .doors.control_protocol import name_of, socket_path
from .doors.stdio_door import StdioDoor, StreamFault, taken_over_stdio
from .endpoint import ClientSession
from .event_log import TOLD, EventLog, Hear, follow, to_log
from .next_steps import PLAIN, Commands

if TYPE_CHECKING:
    import socket

    from ..observe.metrics import Metrics
    from ..supervisor.room import Greenroom
    from .doors.attach_server import Doorway, Listener
    from .doors.background_gateway import RoomPlace
    from .doors.door_connection import Door
    from .doors.http_app import HttpDoor
    from .doors.http_auth import Access, BearerToken, Terms
    from .page.page_actions import Switch
    from .page.room_page import RoomPage


_CLIENT_SESSION: Final = "stdio"  # the name of the only client's session
_LAST_ANSWERS: Final = 1.0  # seconds the client has to read the answers written while the room closed
_CLIENT_WITHIN: Final = 1.0  # seconds in which a client that has started us begins the handshake
_LAST_WORDS: Final = 0.2  # the same for a client that is probably gone
_LAST_RESORT: Final = 1.2  # seconds from ending at once to the alarm; an orderly end takes no longer
OpenRoom = Callable[[Config], "Greenroom"]


class Options(msgspec.Struct, frozen=True):
    """What the command line sets beyond the configuration."""

    expose: str = "proxy"
    profile: str | None = None  # what the client sees; None: everything
    events: Path | None = None
    reread: Callable[[], Config] | None = None  # how to read the configuration again, when its files change
    version: str = "0"
    commands: Commands = msgspec.field(default_factory=Commands)  # as they are typed for this configuration
    # Those of the room's cluster, for the page; None: there is none.
    hosts: Callable[[Any], list[Any]] | None = None
    log_to: int = 2  # a descriptor, for `served_http`
    played: Mapping[str, bool] | None = None  # the servers that a tape plays, and whether it knows them
    switch: Switch | None = None  # how a server is taken out of service, in the file that defines it


class Exit:
    """When and how to end. Signals and the end of the client set it, and `serve` follows it."""

    def __init__(self, hurry: Callable[[], object]) -> None:
        self.asked: anyio.Event = anyio.Event()
        self.patience: float | None = None  # seconds for calls in flight; None: as configured
        self._hurry = hurry

    @property
    def last_words(self) -> float:
        """The seconds that a client has to read the answers written while the room closed."""
        return _LAST_ANSWERS if self.patience is None else _LAST_WORDS

    def politely(self) -> None:
        self.asked.set()

    def at_once(self) -> None:
        self.patience = 0.0
        self.asked.set()
        self._hurry()


def close_at_once(room: Greenroom, group: anyio.abc.TaskGroup) -> None:
    """Close the room without waiting, in `group`, and end this process soon, whatever holds it up."""
    set_alarm(_LAST_RESORT)
    group.start_soon(room.aclose, 0)


def set_alarm(seconds: float) -> None:
    """End this process after `seconds`, whatever it is doing by then. Does nothing on systems without alarms."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


async def serve(config: Config, open_room: OpenRoom, options: Options) -> None:
    """Serve `config` on standard input and output until the client or a signal ends it.

    Raises `UsageError` when the events file cannot be written, `StreamFault` when standard input or output
    cannot be used.
    """
    collect_again()
    want_orphans()
    log = EventLog(commands=options.commands)
    with ExitStack() as stack:
        hearers = [to_log(log, options.played), *events_file(options.events, stack, log.line)]
        stdin, stdout = stack.enter_context(taken_over_stdio())
        door = StdioDoor(current_backend(), stdin, stdout, max_line=config.settings.max_line)
        stack.enter_context(door.opened())
        async with anyio.create_task_group() as outer:
            await _serve_room(config, open_room, options, door, outer, hearers, log)
            outer.cancel_scope.cancel()
    if door.fault is not None:
        raise StreamFault(door.fault)


async def _serve_room(
    config: Config,
    open_room: OpenRoom,
    options: Options,
    door: StdioDoor,
    outer: anyio.abc.TaskGroup,
    hearers: list[Hear],
    log: EventLog,
) -> None:
    room = open_room(config)
    services = port_of(room).services
    services.await_client(_CLIENT_WITHIN)
    services.keep_recent()
    leaving = Exit(partial(close_at_once, room, outer))
    outer.start_soon(door.write)
    await outer.start(heed_signals, leaving)
    await outer.start(partial(follow, room, hearers, kinds=None if options.events else TOLD))
    async with anyio.create_task_group() as owner:
        await room.start(owner)
        set_room_aside()
        lines = control.ControlConnections(outer)
        conversations = _conversations(room, options, log)
        await outer.start(conversations.keep_tasks)
        # The session ends after the room has closed. An earlier end would cancel the calls that drain.
        async with conversations.open(
            door,
            outer.start_soon,
            name=_CLIENT_SESSION,
            variables=_of_client(os.environ),
            profile=options.profile,
            door="stdio",
        ) as client:

            def clients() -> list[dict[str, Any]]:
                return [{"session": _CLIENT_SESSION, "inFlight": client.in_flight}]

            page = partial(_page, room, options, conversations, "stdio", clients, time.time())
            try:
                async with anyio.create_task_group() as commanding:
                    await commanding.start(conversations.watch)
                    await attend(
                        commanding, room, options, log, partial(_methods, room, options, page), lines
                    )
                    outer.start_soon(_read_client, door, client, leaving)
                    await leaving.asked.wait()
                    lines.leave()
                    conversations.refuse_new()
                    commanding.cancel_scope.cancel()
            finally:
                await room.aclose(leaving.patience)
                await conversations.settled()
                await lines.closed(leaving.last_words)
    await door.flush(leaving.last_words)


def _of_client(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The values of the client's session, for servers that name `${session.NAME}`. They are our environment: there is
    one client, and it started us with its own."""
    return {name: value for name, value in environ.items() if name.isidentifier()}


def _conversations(room: Greenroom, options: Options, log: EventLog) -> Conversations:
    """All clients of this gateway."""
    return Conversations(
        room, expose=options.expose, version=options.version, note=log.line, commands=options.commands
    )


async def attend(
    commanding: anyio.abc.TaskGroup,
    room: Greenroom,
    options: Options,
    log: EventLog,
    make_methods: Callable[[], Mapping[str, control.Handler]],
    lines: control.ControlConnections,
    reloaded: Callable[[], Awaitable[object]] = checkpoint,
    follower: Follower = NOBODY,
) -> None:
    """Begin what runs beside every door: serve commands on `lines`, and load a changed configuration. `reloaded` is
    awaited after a reload, and `follower` follows each."""
    control_socket = OptionalPart(
        "the control socket", log.line, "greenroom status and the like do not find this gateway."
    )
    state = ReloadState()
    reread = options.reread

    async def moved() -> None:
        _follow(place, room, control_socket)
        await reloaded()

    def make() -> Mapping[str, control.Handler]:
        methods = {**make_methods()}
        methods["status"] = state.in_status(methods["status"])
        if reread is not None:

            async def again(reread: Callable[[], Config] = reread) -> None:
                if await reload(room, reread, log, state, follower):
                    await moved()

            methods["reload"] = reload_now(commanding, again, state)
        return methods

    methods = control.ControlMethods(make)
    serving = partial(control.serve_control, _socket_of(room), methods, control_socket, lines)
    place: control.ControlSocket = await commanding.start(serving)
    if reread is not None:
        watching = OptionalPart("watching the configuration", log.line, "A changed file is not noticed.")
        pins = [pins_file(default_cache_path()).path]
        commanding.start_soon(
            watching.keep,
            partial(watch_configuration, room, reread, log, moved, pins, state, follower),
        )


async def _read_client(door: StdioDoor, client: ClientSession, leaving: Exit) -> None:
    await door.read(client.receive, client.refuse_line, client.receive_large)
    client.close()
    leaving.at_once()


async def heed_signals(
    leaving: Exit, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(*_ending_signals()) as signals:
        task_status.started()
        async for _ in signals:
            if leaving.asked.is_set():
                leaving.at_once()
            leaving.politely()


def _ending_signals() -> list[signal.Signals]:
    """Those that ask for an end. SIGHUP says that the terminal was closed. `nohup` has it ignored, so that we stay."""
    ending = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    return ending


def _methods(
    room: Greenroom,
    options: Options,
    page: Callable[[], RoomPage],
    more: Callable[[], Mapping[str, Any]] = dict,
) -> Mapping[str, control.Handler]:
    """The methods of the control socket. `more`: what the status also says."""
    from .control_methods import commands
    from .page.page_methods import page_methods

    methods = commands(room, options.version, options.commands.config)

    async def status(params: Mapping[str, Any]) -> Any:
        return {**await methods["status"](params), **more()}

    return {**methods, "status": status, **page_methods(page)}


def _page(
    room: Greenroom,
    options: Options,
    conversations: Conversations,
    door: str,
    clients: Callable[[], list[dict[str, Any]]],
    started: float | None = None,
) -> RoomPage:
    """The page of a room. Nothing of it is imported before somebody looks."""
    from .page.room_page import RoomPage

    return RoomPage(
        room,
        version=options.version,
        door=door,
        started=started,
        clients=clients,
        tasks=conversations.task_store.view,
        hosts=None if options.hosts is None else partial(options.hosts, room),
        commands=options.commands,
        switch=options.switch,
    )


def _follow(place: control.ControlSocket, room: Greenroom, part: OptionalPart) -> None:
    """Rename the socket after a reload. The configuration may consist of other files now, and commands derive the
    socket's name from these."""
    try:
        place.move(_socket_of(room))
    except OSError as error:
        part.failed(error)


def _socket_of(room: Greenroom) -> Path:
    return socket_path(name_of(room.config), os.getpid())


def events_file(path: Path | None, stack: ExitStack, tell: Callable[[str], object]) -> list[Hear]:
    """The hearer that writes events to `path`; none without a path. Raises `UsageError` when it can never be
    written."""
    if path is None:
        return []
    from ..observe.events_file import EventsFile

    file = EventsFile(path, OptionalPart(f"the events file {path}", tell))
    stack.callback(file.close)
    return [file]


# ---- `greenroom serve --http`: a room, its HTTP door, and how it ends -----------------------------------------------
#
# The ways to end are those of `serve`. *Politely*: `/ready` turns first, new sessions and requests are refused, calls
# in flight end and are answered, then every stream and connection is closed. *At once*, by a second signal: calls are
# cancelled, and an alarm ends the process whatever holds it up.
#
# The server goes on while the room drains, because it carries the last answers. It is told to close only after the
# room has closed.
#
# A program may serve a room in one of its threads (`served_http`). It decides when that ends, and its process is not
# ours: what `serve_http` does to a process, it does around the part that both share.


_FOLLOWED: Final = frozenset(
    {"http_tokens", "http_token_profiles", "http_owner_tokens", "http_hosts", "http_origins"}
)


class HttpOptions(msgspec.Struct, frozen=True):
    """Where to listen, who may connect, and what clients see."""

    host: str
    port: int
    tokens: tuple[BearerToken, ...] = ()
    token_file: Path | None = None  # for `tokens_of`
    tokens_of: Callable[[Config], tuple[BearerToken, ...]] | None = None  # reads them again; None: they stay
    oauth: Terms | None = None
    profile: str | None = None
    cert: Path | None = None
    key: Path | None = None


def _as_it_is(door: Door, _room: Greenroom) -> Door:
    return door


async def serve_http(config: Config, open_room: OpenRoom, options: Options, http: HttpOptions) -> None:
    """Serve `config` over HTTP until a signal ends it. Raises `UsageError` when it cannot listen there, and when the
    address can be reached by others and no token is needed."""
    collect_again()
    want_orphans()
    with _prepared(config, options, http) as serving:
        async with anyio.create_task_group() as outer:
            room = open_room(config)
            leaving = Exit(partial(close_at_once, room, outer))
            await outer.start(heed_signals, leaving)
            async with serving.opened(room, outer, leaving) as opened:
                set_room_aside()
                await serving.until_asked(opened, leaving)
            outer.cancel_scope.cancel()


class ServedRoom(msgspec.Struct, frozen=True, eq=False):
    """A room that is served by `served_http`."""

    room: Greenroom
    url: str  # of its MCP endpoint, with the port that was chosen
    conversations: Conversations  # of all its clients, for another door
    _door: HttpDoor
    _leaving: Exit

    async def end(self, patience: float | None = None) -> None:
        """Refuse new sessions and requests, and close the room. Calls in flight have `patience` seconds to end and be
        answered; None: as configured. Called once more meanwhile, with less, it hurries the first."""
        self._door.refuse_new()
        self._leaving.patience = patience
        await self.room.aclose(patience)


@asynccontextmanager
async def served_http(
    config: Config,
    open_room: OpenRoom,
    options: Options,
    http: HttpOptions,
    *,
    wrap: Callable[[Door, Greenroom], Door] = _as_it_is,
) -> AsyncGenerator[ServedRoom]:
    """A room with its HTTP door, inside a program that has other things to do. The end comes from outside: by
    `ServedRoom.end`, or when the block is left. Nothing of the process is touched: no signals, no alarm, no tuning, and
    there are no commands and no watch over configuration files. So it may be in any thread, on asyncio.

    `wrap` is given the door and the room, and returns the door that is served instead. Port 0
    chooses a free port. Raises `UsageError` as `serve_http` does.
    """
    with _prepared(config, options, http) as serving:
        async with anyio.create_task_group() as outer:
            leaving = Exit(lambda: None)
            async with serving.opened(open_room(config), outer, leaving, wrap) as opened:
                yield ServedRoom(opened.room, opened.url, opened.conversations, opened.door, leaving)
            outer.cancel_scope.cancel()


@contextmanager
def _prepared(config: Config, options: Options, http: HttpOptions) -> Generator[_HttpService]:
    """Check all that can be checked before a room is opened, and listen. Raises `UsageError`."""
    from ..observe.metrics import Metrics
    from .doors.http_auth import Access, OAuth
    from .doors.http_server import bound, check_tls

    log = EventLog(options.log_to, options.commands)
    settings = config.settings
    oauth = OAuth(http.oauth, log.line) if http.oauth is not None else None
    access = Access(
        http.host, http.tokens, oauth=oauth, hosts=settings.http_hosts, origins=settings.http_origins
    )
    check_tls(http.cert, http.key)
    metrics = Metrics(settings.http_metrics_tools) if settings.http_metrics else None
    with ExitStack() as stack:
        hearers = [to_log(log, options.played), *events_file(options.events, stack, log.line)]
        listener = stack.enter_context(bound(http.host, http.port))
        yield _HttpService(config, options, http, access, listener, log, hearers, metrics)


class _OpenDoor(msgspec.Struct, frozen=True):
    """A room whose door is open, and the lines of the commands that it may answer."""

    room: Greenroom
    conversations: Conversations
    door: HttpDoor
    page: RoomPage
    url: str
    lines: control.ControlConnections


class _HttpService(msgspec.Struct, frozen=True):
    """What the parts of serving one room over HTTP share. All of it is there before the room."""

    config: Config
    options: Options
    http: HttpOptions
    access: Access
    listener: socket.socket
    log: EventLog
    hearers: list[Hear]
    metrics: Metrics | None  # None: nobody wants them

    @asynccontextmanager
    async def opened(
        self,
        room: Greenroom,
        outer: anyio.abc.TaskGroup,
        leaving: Exit,
        wrap: Callable[[Door, Greenroom], Door] = _as_it_is,
    ) -> AsyncGenerator[_OpenDoor]:
        """Run the room and its door until the block is left. Then the room drains while the door still answers."""
        # A gateway on standard input and output needs none of these, nor starlette and httptools below them.
        from ..observe.metrics import HEARD
        from .doors.http_app import HttpDoor, Operations
        from .doors.http_request import rules_of
        from .doors.http_server import HttpServer
        from .doors.http_streams import Feed
        from .page.page_routes import Routes

        services = port_of(room).services
        services.expect_clients()
        services.keep_recent()
        log, access, metrics = self.log, self.access, self.metrics
        rules = rules_of(self.config.settings)
        feed = Feed(rules.keep_alive)
        heard = [*self.hearers, feed.hear]
        if metrics is not None:
            heard.append(metrics.hear)
        kinds = TOLD | HEARD if metrics is not None else TOLD
        await outer.start(partial(follow, room, heard, kinds=None if self.options.events else kinds))
        async with anyio.create_task_group() as owner:
            await room.start(owner)
            conversations = _conversations(room, self.options, log)
            door = HttpDoor(
                conversations,
                access,
                rules,
                note=log.line,
                on_end=log.line,
                profile=self.http.profile,
                session_headers=self.config.settings.http_session_headers,
            )
            operations = Operations(room, self.options.version, feed, door, metrics, self.options.commands)
            page = _page(room, self.options, conversations, "http", lambda: door.sessions.view())
            routes = Routes(page, rules)
            door.show(operations.open_pages(), operations.pages())
            door.show(routes.open_pages(), routes.pages(), routes.posts())
            await outer.start(door.run)
            if access.oauth is not None:
                outer.start_soon(access.oauth.keep)
            server = HttpServer(
                wrap(door, room), self.listener, rules, cert=self.http.cert, key=self.http.key
            )
            url, lines = _url(self.listener, self.http), control.ControlConnections(outer)
            opened = _OpenDoor(room, conversations, door, page, url, lines)
            await outer.start(conversations.keep_tasks)
            async with anyio.create_task_group() as serving:
                await serving.start(server.run)
                log.line(f"serving {opened.url}")
                log.line(f"the page: {opened.url.removesuffix('mcp')}")
                try:
                    async with anyio.create_task_group() as watching:
                        await watching.start(conversations.watch)
                        yield opened
                        door.refuse_new()
                        watching.cancel_scope.cancel()
                finally:
                    await room.aclose(leaving.patience)
                    await conversations.settled()
                    door.sessions.end_all()
                    feed.close()
                    page.close()
                    server.close()
                    await lines.closed(leaving.last_words)

    async def until_asked(self, opened: _OpenDoor, leaving: Exit) -> None:
        """Serve commands and follow the configuration's files, until it is time to end."""
        options, log = self.options, self.log
        async with anyio.create_task_group() as attending:
            sessions = opened.door.sessions
            methods = partial(
                _methods, opened.room, options, lambda: opened.page, lambda: {"clients": sessions.view()}
            )
            follower = self._follower(opened.door)
            await attend(attending, opened.room, options, log, methods, opened.lines, follower=follower)
            await leaving.asked.wait()
            opened.lines.leave()
            opened.door.refuse_new()
            attending.cancel_scope.cancel()

    def _follower(self, door: HttpDoor) -> Follower:
        """Who may come follows the configuration and the token file. The rest of the door is as it was made."""
        from .doors.http_auth import Access

        http, oauth, log = self.http, self.access.oauth, self.log
        told = _made_of(self.config.settings)

        def prepare(config: Config) -> Callable[[], object]:
            tokens = http.tokens if http.tokens_of is None else http.tokens_of(config)
            hosts, origins = config.settings.http_hosts, config.settings.http_origins
            access = Access(http.host, tokens, oauth=oauth, hosts=hosts, origins=origins)
            # Perhaps only because a file is away for a moment.
            if http.tokens and not tokens and oauth is None:
                raise UsageError(
                    "No token is left. To open the HTTP door to everybody who reaches it, start the gateway again."
                )
            return partial(go_by, access, config.settings)

        def go_by(access: Access, settings: Settings) -> None:
            nonlocal told
            door.admit(access)
            made = _made_of(settings)
            if late := ", ".join(name for name in made if made[name] != told[name]):
                log.line(f"not followed while the HTTP door is open, only when it is opened again: {late}")
            told = made

        return Follower(prepare, () if http.token_file is None else (http.token_file,))


def _made_of(settings: Settings) -> Mapping[str, object]:
    """The settings by which an open door does not go anew, by their names."""
    door = [key for key in keys_of(Settings) if key.name.startswith("http.")]
    return {key.name: getattr(settings, key.attribute) for key in door if key.attribute not in _FOLLOWED}


def _url(listener: socket.socket, http: HttpOptions) -> str:
    host, port = listener.getsockname()[:2]
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if http.cert else 'http'}://{named}:{port}/mcp"


# ---- The background gateway: one room for all clients of a configuration, without a client of its own ----------------
#
# It is `greenroom serve`, started by `doors.background_gateway` with standard input and output to nowhere. Clients come
# through its socket (`attach_server`), and commands through its control socket, as to any gateway.
#
# It ends politely: after a SIGTERM, when `greenroom stop` or a newer Greenroom asks for it, or when nobody has been
# attached for `backgroundIdle`. First its socket is removed, so that whoever comes from then on starts another room.
# Then no new calls are taken, the room drains, and each client can read its last answers and is told why the room ends.
# A second signal ends it at once.

_OFTEN: Final = 64  # lines between two looks at the size of the log
# Seconds from ending at once to the alarm; nobody waits for this process.
_LAST_RESORT_IN_BACKGROUND: Final = 5.0


class RoomLog(EventLog):
    """Writes to the room's standard error, which goes to a file of bounded size. Each line says when."""

    def __init__(self, path: Path, commands: Commands = PLAIN) -> None:
        super().__init__(commands=commands)
        self._path = path
        self._lines = 0

    def go_on_at(self, path: Path) -> None:
        """Write to this file from now on. Raises `OSError`."""
        from .doors.background_gateway import direct_log

        self.line(f"the configuration is made of other files now; this log goes on at {path}")
        self._path = path
        direct_log(path)

    def line(self, text: str) -> None:
        from .doors.background_gateway import keep_small

        super().line(f"{datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')} {text}")
        self._lines += 1
        if self._lines % _OFTEN == 0:
            with suppress(OSError):
                keep_small(self._path)


class Whereabouts(msgspec.Struct, frozen=True):
    """Where the background gateway is (`place`). `place_of` says where the room of another configuration would be, and
    may read files. `on_ready` is called once clients can attach."""

    place: RoomPlace
    place_of: Callable[[Config], RoomPlace]
    on_ready: Callable[[], None]


async def serve_background(config: Config, open_room: OpenRoom, options: Options, where: Whereabouts) -> None:
    """Serve the clients of the background gateway until it ends. Raises `UsageError` when the events file cannot be
    written, `OSError` when the socket cannot be made."""
    from .doors.attach_server import Listener

    collect_again()
    want_orphans()
    log = RoomLog(where.place.log, options.commands)
    with ExitStack() as stack:
        hearers = [to_log(log, options.played), *events_file(options.events, stack, log.line)]
        async with anyio.create_task_group() as outer:
            room = open_room(config)
            services = port_of(room).services
            services.expect_clients()
            services.keep_recent()

            def hurry() -> None:
                set_alarm(_LAST_RESORT_IN_BACKGROUND)
                outer.start_soon(room.aclose, 0)

            leaving = Exit(hurry)
            await outer.start(heed_signals, leaving)
            await outer.start(partial(follow, room, hearers, kinds=None if options.events else TOLD))
            async with anyio.create_task_group() as owner:
                await room.start(owner)
                set_room_aside()
                listener, lines = Listener(where.place.socket), control.ControlConnections(outer)
                doorway = _doorway(room, options, listener, leaving, log)
                await outer.start(doorway.conversations.keep_tasks)

                def clients() -> list[dict[str, Any]]:
                    return doorway.view()["clients"]

                page = partial(
                    _page, room, options, doorway.conversations, "background", clients, time.time()
                )
                methods = partial(_methods, room, options, page, lambda: {"background": doorway.view()})
                reloaded = partial(_move, room, doorway, listener, where, log)
                try:
                    async with anyio.create_task_group() as commanding:
                        await commanding.start(doorway.conversations.watch)
                        await attend(commanding, room, options, log, methods, lines, reloaded)
                        commanding.start_soon(doorway.take, listener, outer)
                        commanding.start_soon(doorway.leave_when_idle, room.config.settings.background_idle)
                        where.on_ready()
                        await leaving.asked.wait()
                        lines.leave()
                        listener.shut()
                        doorway.conversations.refuse_new()
                        commanding.cancel_scope.cancel()
                finally:
                    listener.shut()
                    await room.aclose(leaving.patience)
                    await doorway.conversations.settled()
                await doorway.closed()
                await lines.closed(leaving.last_words)
            outer.cancel_scope.cancel()


def _doorway(room: Greenroom, options: Options, listener: Listener, leaving: Exit, log: RoomLog) -> Doorway:
    from .doors.attach_server import Doorway

    def leave() -> None:
        listener.shut()
        leaving.politely()

    return Doorway(
        room,
        _conversations(room, options, log),
        options.version,
        options.profile,
        room.config.settings.max_line,
        log.line,
        leave,
        leaving.asked.is_set,
    )


async def _move(
    room: Greenroom, doorway: Doorway, listener: Listener, where: Whereabouts, log: RoomLog
) -> None:
    """Move to where clients and commands look for the room of the present configuration: its socket, its log and its
    working directory. If another room is there already, give way to it."""
    from .doors.background_gateway import move_room

    try:
        place = await apart(partial(where.place_of, room.config))
        if place.socket == listener.path:
            return
        if not await apart(partial(move_room, listener.path, place)):
            log.line("another background gateway runs for the files that the configuration is made of now")
            doorway.give_way()
            return
        listener.path = place.socket
        log.go_on_at(place.log)
        os.chdir(place.folder)
    except (GreenroomError, OSError) as error:
        log.line(f"clients that attach from now on may start another background gateway: {in_words(error)}")
