"""`greenroom serve --http`: a room, its HTTP door, and how it ends.

The ways to end are those of `serve`. *Politely*: `/ready` turns first, new sessions and requests are refused, calls
in flight end and are answered, then every stream and connection is closed. *At once*, by a second signal: calls are
cancelled, and an alarm ends the process whatever holds it up.

The server goes on while the room drains, because it carries the last answers. It is told to close only after the
room has closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import attrs

from ..actors import want_orphans
from ..protocol.config import Config
from . import _serve as stdio
from ._control import Handler
from ._conversations import Conversations
from ._event_log import TOLD, Hear, Log, follow, to_log
from ._garbage import collect_again, set_room_aside
from ._http_door import (
    HEARD,
    WANTED,
    Access,
    Feed,
    GivingWay,
    HttpDoor,
    HttpServer,
    Metrics,
    OAuth,
    Operations,
    Terms,
    Token,
    bound,
    check_tls,
    rules_of,
)

if TYPE_CHECKING:
    import socket


@attrs.frozen
class HttpOptions:
    """Where to listen, who may come, and what they see."""

    host: str
    port: int
    tokens: tuple[Token, ...] = ()
    oauth: Terms | None = None
    profile: str | None = None
    cert: Path | None = None
    key: Path | None = None


async def serve_http(
    config: Config, open_room: stdio.OpenRoom, options: stdio.Options, http: HttpOptions
) -> None:
    """Serve `config` over HTTP until a signal ends it. Raises `UsageError` when it cannot listen there, and when the
    address can be reached by others and no token is needed."""
    collect_again()
    want_orphans()
    log = Log(commands=options.commands)
    settings = config.settings
    oauth = OAuth(http.oauth, log.line) if http.oauth is not None else None
    hosts, origins = settings.http_hosts, settings.http_origins
    access = Access(http.host, http.tokens, oauth=oauth, hosts=hosts, origins=origins)
    check_tls(http.cert, http.key)
    metrics = Metrics() if settings.http_metrics else None
    with ExitStack() as stack:
        hearers = [to_log(log), *stdio.events_file(options.events, stack, log.line)]
        listener = stack.enter_context(bound(http.host, http.port))
        async with anyio.create_task_group() as outer:
            serving = _Serving(config, options, http, access, listener, outer, log, metrics)
            await serving.room(open_room, hearers)
            outer.cancel_scope.cancel()


@attrs.frozen
class _Serving:
    """What the parts of one `serve_http` share."""

    config: Config
    options: stdio.Options
    http: HttpOptions
    access: Access
    listener: socket.socket
    outer: anyio.abc.TaskGroup
    log: Log
    metrics: Metrics | None  # None: nobody wants them

    async def room(self, open_room: stdio.OpenRoom, hearers: list[Hear]) -> None:
        """Run the room and its door."""
        room = open_room(self.config)
        room.expect_clients()
        outer, log = self.outer, self.log
        leaving = stdio.Exit(partial(stdio.close_at_once, room, outer))
        await outer.start(stdio.heed_signals, leaving)
        rules = rules_of(self.config.settings)
        feed = Feed(rules.keep_alive)
        metrics = self.metrics
        giving_way = GivingWay(room, rules.gives_way, rules.look_for_room)
        heard = [*hearers, feed.hear, giving_way.hear, *([metrics.hear] if metrics is not None else [])]
        kinds = TOLD | WANTED | HEARD if metrics is not None else TOLD | WANTED
        await outer.start(partial(follow, room, heard, kinds=None if self.options.events else kinds))
        async with anyio.create_task_group() as owner:
            await room.start(owner)
            set_room_aside()
            conversations = Conversations(
                room,
                expose=self.options.expose,
                version=self.options.version,
                note=log.line,
                commands=self.options.commands,
            )
            operations = Operations(room, self.options.version, feed, metrics, commands=self.options.commands)
            door = operations.door = HttpDoor(
                conversations,
                self.access,
                rules,
                note=log.line,
                profile=self.http.profile,
                session_headers=self.config.settings.http_session_headers,
                pages=operations.pages(),
                open_pages=operations.open_pages(),
            )
            await outer.start(door.run)
            if self.access.oauth is not None:
                outer.start_soon(self.access.oauth.keep)
            outer.start_soon(giving_way.run, door.sessions)
            server = HttpServer(door, self.listener, rules, cert=self.http.cert, key=self.http.key)
            async with anyio.create_task_group() as serving:
                await serving.start(server.run)
                log.line(f"serving {self._url()}")
                try:
                    async with anyio.create_task_group() as attending:
                        await attending.start(conversations.watch)
                        methods = _commands(stdio.commands(room, self.options.version), door)
                        await stdio.attend(attending, room, self.options, log, methods)
                        await leaving.asked.wait()
                        door.refuse_new()
                        attending.cancel_scope.cancel()
                finally:
                    await room.aclose(leaving.patience)
                    door.sessions.end_all()
                    feed.close()
                    server.close()

    def _url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        return f"{'https' if self.http.cert else 'http'}://{named}:{port}/mcp"


def _commands(methods: Mapping[str, Handler], door: HttpDoor) -> Mapping[str, Handler]:
    """The methods of the control socket. The status also shows the clients, and why each is still here."""

    async def status(params: Mapping[str, Any]) -> Any:
        return {**await methods["status"](params), "clients": door.sessions.view()}

    return {**methods, "status": status}
