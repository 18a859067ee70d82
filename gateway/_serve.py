"""`greenroom serve`: a room, the doors to it, and how it all ends.

There are two ways to end. *Politely* (the first SIGTERM or SIGINT): no new calls are taken, the room drains,
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

import itertools
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import attrs

from ..actors import Part, current_backend, default_cache_path, in_turns, want_orphans
from ..protocol.approval import Verdict
from ..protocol.config import Config
from ..supervisor.catalogue_keys import pins_file
from . import _control as control
from ._approving import approval_methods
from ._commands import Commands
from ._control_place import identity, socket_path
from ._control_request import number_in, object_in, text_in, texts_in, whole_in
from ._conversations import Conversations
from ._endpoint import ClientSession
from ._event_log import TOLD, Hear, Log, follow, to_log
from ._events_file import EventsFile
from ._garbage import collect_again, set_room_aside
from ._in_session import InSession
from ._mcp_tool import FOR_PEOPLE, CatalogueReader, McpTool, ask
from ._refresh import begin, look
from ._room import Room
from ._stdio_door import StdioDoor, StreamFault, taken_over_stdio
from ._views import status_view, tools_view
from ._watch import watch_configuration

if TYPE_CHECKING:
    from ..supervisor import Greenroom

_CLIENT_SESSION: Final = "stdio"  # the name of the only client's session
_LAST_ANSWERS: Final = 1.0  # seconds the client has to read the answers written while the room closed
_CLIENT_WITHIN: Final = 1.0  # seconds in which a client that has started us greets us
_LAST_WORDS: Final = 0.2  # the same for a client that is probably gone
_LAST_RESORT: Final = 1.2  # seconds from ending at once to the alarm; an orderly end takes no longer

OpenRoom = Callable[[Config], Any]  # Greenroom.open: returns a `Room` that has `start` and `aclose` too


@attrs.frozen
class Options:
    """What the command line sets beyond the configuration."""

    expose: str = "proxy"
    profile: str | None = None  # what the client sees; None: everything
    events: Path | None = None
    reread: Callable[[], Config] | None = None  # how to read the configuration again, when its files change
    version: str = "0"
    commands: Commands = attrs.field(factory=Commands)  # as they are typed for this configuration


class Exit:
    """When and how to end. Signals and the client's end ask for it, and `serve` does it."""

    def __init__(self, hurry: Callable[[], object]) -> None:
        self.asked = anyio.Event()
        self.patience: float | None = None  # seconds for calls in flight; None: as configured
        self._hurry = hurry

    def politely(self) -> None:
        self.asked.set()

    def at_once(self) -> None:
        self.patience = 0.0
        self.asked.set()
        self._hurry()


def close_at_once(room: Any, group: anyio.abc.TaskGroup) -> None:
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
    log = Log(commands=options.commands)
    with ExitStack() as stack:
        hearers = [to_log(log), *events_file(options.events, stack, log.line)]
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
    log: Log,
) -> None:
    room = open_room(config)
    room.await_client(_CLIENT_WITHIN)
    leaving = Exit(partial(close_at_once, room, outer))
    outer.start_soon(door.write)
    await outer.start(heed_signals, leaving)
    await outer.start(partial(follow, room, hearers, kinds=None if options.events else TOLD))
    async with anyio.create_task_group() as owner:
        await room.start(owner)
        set_room_aside()
        conversations = Conversations(
            room, expose=options.expose, version=options.version, note=log.line, commands=options.commands
        )
        # The session ends after the room has closed. An earlier end would cancel the calls that drain.
        async with conversations.open(
            door,
            outer.start_soon,
            name=_CLIENT_SESSION,
            variables=_of_client(os.environ),
            profile=options.profile,
            door="stdio",
        ) as client:
            try:
                await _until_asked(room, conversations, client, options, door, outer, leaving, log)
            finally:
                await room.aclose(leaving.patience)
    await door.flush(_LAST_ANSWERS if leaving.patience is None else _LAST_WORDS)


def _of_client(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The values of the client's session, for servers that name `${session.NAME}`: our environment, because the client
    started us with its own, and there is no other client."""
    return {name: value for name, value in environ.items() if name.isidentifier()}


async def _until_asked(
    room: Greenroom,
    conversations: Conversations,
    client: ClientSession,
    options: Options,
    door: StdioDoor,
    outer: anyio.abc.TaskGroup,
    leaving: Exit,
    log: Log,
) -> None:
    """Serve the client and commands, until it is time to end."""
    async with anyio.create_task_group() as commanding:
        await commanding.start(conversations.watch)
        await attend(commanding, room, options, log, commands(room, options.version))
        outer.start_soon(_read_client, door, client, leaving)
        await leaving.asked.wait()
        conversations.refuse_new()
        commanding.cancel_scope.cancel()


async def attend(
    commanding: anyio.abc.TaskGroup,
    room: Greenroom,
    options: Options,
    log: Log,
    methods: Mapping[str, control.Handler],
) -> None:
    """Begin what runs beside every door: commands are served, and a changed configuration is loaded again."""
    control_socket = Part(
        "the control socket", log.line, "greenroom status and the like do not find this gateway."
    )
    serving = partial(control.serve_control, _socket_of(room), methods, control_socket)
    place: control.Place = await commanding.start(serving)
    if options.reread is not None:
        watching = Part("watching the configuration", log.line, "A changed file is not noticed.")
        moved = partial(_follow, place, room, control_socket)
        pins = [pins_file(default_cache_path()).path]
        commanding.start_soon(
            watching.keep, partial(watch_configuration, room, options.reread, log, moved, pins)
        )


async def _read_client(door: StdioDoor, client: ClientSession, leaving: Exit) -> None:
    await door.read(client.receive, client.refuse_line, client.receiving)
    client.close()
    leaving.at_once()


async def heed_signals(
    leaving: Exit, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if leaving.asked.is_set():
                leaving.at_once()
            leaving.politely()


def _follow(place: control.Place, room: Room, part: Part) -> None:
    """Rename the socket after a reload. The configuration may consist of other files now, and commands find
    the socket by their names."""
    try:
        place.move(_socket_of(room))
    except OSError as error:
        part.failed(error)


def _socket_of(room: Room) -> Path:
    return socket_path(identity(room.config.files), os.getpid())


def commands(room: Any, version: str) -> Mapping[str, control.Handler]:
    """The methods of the control socket. The answers are those of the `mcp` tool, in words for people.
    `vitals` is for leak checks: it tells what the process holds that cannot be seen from outside."""
    reader = CatalogueReader(room, hints=FOR_PEOPLE)
    numbers = itertools.count(1)

    async def hello(_params: Mapping[str, Any]) -> Any:
        from ..supervisor.config_files import working_directory

        return {"pid": os.getpid(), "version": version, "folder": os.fspath(working_directory("/"))}

    async def status(_params: Mapping[str, Any]) -> Any:
        said = await in_turns(status_view(reader, room))
        return {**said, "waitingForApproval": len(room.approvals), **_audit_view(room)}

    async def explain(params: Mapping[str, Any]) -> Any:
        from ._why import explained

        view = await in_turns(status_view(reader, room))
        pid = None if params.get("pid") is None else whole_in(params, "pid")
        typed = Commands(text_in(params, "config"), pid)
        return explained(view, room.config, text_in(params, "server") or "", typed, runs=True)

    async def keys(_params: Mapping[str, Any]) -> Any:
        return {name: [one.key, one.origin] for name, one in room.pin_keys.items()}

    async def tools(params: Mapping[str, Any]) -> Any:
        return await in_turns(tools_view(reader, room, text_in(params, "server")))

    async def mcp(params: Mapping[str, Any]) -> Any:
        # A command has a session of its own, and its children per session end with it. Whoever may use the control
        # socket is the owner, so a command that was told "yes" may say so.
        allow = allowing if params.get("allowed") is True else None
        name = f"command-{next(numbers)}"
        async with room.session(name, on_approval=allow) as session:
            session.came_by("command line")
            with room.approvals.asked_elsewhere(name):
                return await ask(
                    McpTool(InSession(room, session), hints=FOR_PEOPLE), object_in(params, "arguments")
                )

    async def reconnect(params: Mapping[str, Any]) -> Any:
        ended = await room.reconnect(text_in(params, "server"))
        return {
            "servers": [
                {"server": name, "name": name, "error": str(error) if error else None}
                for name, error in ended
            ]
        }

    async def refresh(params: Mapping[str, Any]) -> Any:
        return begin(room, text_in(params, "server"))

    async def refreshed(params: Mapping[str, Any]) -> Any:
        asked = {"names": texts_in(params, "names"), "since": number_in(params, "since")}
        return await in_turns(look(room, reader, asked))

    async def vitals(_params: Mapping[str, Any]) -> Any:
        return {
            "pid": os.getpid(),
            "tasks": len(anyio.get_running_tasks()),
            "threads": threading.active_count(),
        }

    return {
        "hello": hello,
        "status": status,
        "explain": explain,
        "keys": keys,
        "tools": tools,
        "mcp": mcp,
        "reconnect": reconnect,
        "refresh": refresh,
        "refreshed": refreshed,
        **approval_methods(room),
        "vitals": vitals,
    }


def _audit_view(room: Any) -> dict[str, Any]:
    """The audit file, if there is one."""
    file = room.audit
    if file is None:
        return {}
    return {"audit": {"file": str(file.path), "failing": file.failing, "missed": file.missed}}


async def allowing(_request: object) -> Verdict:
    """For a command whose user has allowed its one call."""
    return Verdict.ONCE


def events_file(path: Path | None, stack: ExitStack, tell: Callable[[str], object]) -> list[Hear]:
    """The hearer that writes events to `path`; none without a path. Raises `UsageError` when it can never be
    written."""
    if path is None:
        return []
    file = EventsFile(path, Part(f"the events file {path}", tell))
    stack.callback(file.close)
    return [file]
