"""What the page asks of a room: who it may be for, a look, an act, and a stream of what changes.

Who may only look sees what `/status`, `/map` and `/events` show to the same token, and what follows from it. What may
be somebody else's is an owner's alone: the arguments of a held call, what a server wrote to stderr, its entry, and what
a project's file would do.

The same answers go to a browser at the HTTP door and, over the control socket, to `greenroom page`. So they are bytes:
whoever passes them on need not understand them.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from ...actors.workers import apart, aside_if_many
from ...catalogue.hidden_characters import unhidden_value
from ...config.files import working_directory
from ...protocol import jsonrpc as rpc
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.json_values import is_array, is_object
from ...protocol.safe_text import without_stderr
from ...supervisor.room import port_of
from ..control_methods import approvals_view, audit_view, held_view
from ..doors.caller_shares import Shares
from ..next_steps import PLAIN, Commands
from . import page_queries
from .page_actions import PageActions, Switch, projects
from .page_feed import PageFeed, as_sse

if TYPE_CHECKING:
    from ...config.model import Config
    from ...supervisor.port import RoomPort
    from ...supervisor.room import Greenroom
    from ..doors.http_request import Caller

LOOKS: Final = ("hello", "server", "tools", "tool", "call", "timeline", "tree")
# Commands that the page tells of itself.
_NAMED: Final = ("accept", "approve", "auth", "call", "page", "status", "trust")
_NOT_SHOWN: Final = "Its arguments are shown to an owner alone."  # they may be another client's
_MOST: Final = 32  # pages that watch at once
_CALLERS: Final = 4  # for whom something is kept of them


@attrs.frozen
class PageAnswer:
    """An answer in JSON, with its HTTP status."""

    status: int
    body: bytes


class PageResponder(Protocol):
    """Who answers the page: a room, or a command that asks one. Errors are answers, too."""

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> PageAnswer:
        """The answer to a question. `acts`: whether the one who asks may act."""
        ...

    async def act(self, params: Mapping[str, Any], who: str) -> PageAnswer:
        """Do what an owner wants. `who`: the owner, in words."""
        ...

    def watch(self, caller: Caller) -> AsyncGenerator[bytes]:
        """Everything, and then what changes, as server-sent events. An owner may act."""
        ...


class RoomPage:
    """The page of a room. `clients`: those that are here now, as the status of this door shows them. `tasks`: those
    that are kept. `hosts`: those of a cluster; None: there is none. `started`: when the gateway was, if
    not now. `switch`: see `PageActions`."""

    def __init__(
        self,
        room: Greenroom,
        *,
        version: str,
        door: str,
        started: float | None = None,
        clients: Callable[[], list[dict[str, Any]]],
        tasks: Callable[[], list[dict[str, Any]]] = list,
        hosts: Callable[[], list[Any]] | None = None,
        commands: Commands = PLAIN,
        switch: Switch | None = None,
    ) -> None:
        self.port: RoomPort = port_of(room)
        self.commands = commands
        self.is_over = False
        self._replay = room.tape
        self._acts = PageActions(room, commands, switch)
        self._version = version
        self._door = door
        self._clients = clients
        self._tasks = tasks
        self._hosts = hosts
        self._started = time.time() if started is None else started
        self._watching = Shares(_MOST, _CALLERS, has_owners=True)
        self._projects: tuple[Config | None, list[dict[str, Any]]] = (None, [])

    def close(self) -> None:
        """The gateway ends: pages are told no more."""
        self.is_over: bool = True

    # ---- looks -----------------------------------------------------------------------------------------------------

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> PageAnswer:
        port = self.port
        looks: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "hello": partial(self._hello, acts),
            "server": partial(page_queries.server, port, self.commands, params, acts),
            "tools": partial(page_queries.tools, port, params),
            "tool": partial(page_queries.tool, port, params),
            "call": partial(page_queries.call, port, params, acts),
            "timeline": partial(page_queries.timeline, port, params),
            "tree": partial(page_queries.tree, port),
        }
        if what not in looks:
            return await failed(UsageError(f'The page cannot ask for "{what}".'))
        return await _answer(looks[what], acts)

    async def _hello(self, acts: bool) -> dict[str, Any]:
        return {
            "may": "act" if acts else "read",
            "version": self._version,
            "gateway": {
                "pid": os.getpid(),
                "folder": os.fspath(working_directory("/")),
                "config": self.commands.config,
                "startedAt": round(self._started, 3),
            },
            "session": {"door": self._door},
            "commands": {verb: self.commands.filled(f"greenroom {verb}") for verb in _NAMED},
            **({} if self._replay is None else {"replay": {"tape": self._replay.tape.path.name}}),
            "sections": {"cluster": self._hosts is not None, "tasks": True, "approvals": True},
        }

    # ---- acts ------------------------------------------------------------------------------------------------------

    async def act(self, params: Mapping[str, Any], who: str) -> PageAnswer:
        return await _answer(partial(self._acts.do, params, who), True)

    # ---- the stream ------------------------------------------------------------------------------------------------

    async def watch(self, caller: Caller) -> AsyncGenerator[bytes]:
        with self._watching.place(caller) as is_there:
            if not is_there:
                text = "Too many pages watch this gateway already. Close one."
                yield await as_sse(("refused", {"error": {"code": "overloaded", "message": text}}))
                return
            async with aclosing(PageFeed(self, acts=caller.is_owner).frames()) as frames:
                async for frame in frames:
                    yield await as_sse(frame, everything if caller.is_owner else without_stderr)

    def quick(self, acts: bool) -> dict[str, Any]:
        """The sections that are small, and may change at any time. `acts`: as an owner sees them. One that is None is
        not there."""
        port = self.port
        waiting = approvals_view(port, {})
        return {
            "pool": {
                "held": port.services.slots_held,
                "most": port.catalogue.config.settings.max_connections,
                "sessionsHeld": port.services.session_slots_held,
                "sessionsMost": port.catalogue.config.settings.max_session_connections,
            },
            "approvals": waiting if acts else [{**each, "question": _NOT_SHOWN} for each in waiting],
            "audit": audit_view(port).get("audit"),
            "held": held_view(port).get("held", []),
        }

    async def slow(self, changed: Iterable[str], acts: bool) -> dict[str, Any]:
        """The sections that may be long, or come from files. `changed`: servers with definitions that have changed."""
        projects = await self._untrusted()
        return {
            "clients": self._clients(),
            "tasks": self._tasks(),
            "hosts": None if self._hosts is None else self._hosts(),
            "pins": list(page_queries.changed(self.port, changed)),
            "projects": projects if acts else [{**each, "matters": None} for each in projects],
        }

    async def _untrusted(self) -> list[dict[str, Any]]:
        """The project's files that are not obeyed. They are read once for each configuration that is loaded."""
        config = self.port.catalogue.config
        if config is not self._projects[0]:
            try:
                found = await apart(partial(projects, config, self.commands)) if config.untrusted else []
            except (GreenroomError, OSError):  # the log has said why
                found = []
            self._projects = config, found
        return self._projects[1]


async def _answer(make: Callable[[], Awaitable[Any]], acts: bool) -> PageAnswer:
    """`acts`: it is for an owner, who may see what servers wrote to their stderr."""
    try:
        said = await make()
    except GreenroomError as error:
        return await failed(error)
    except OSError as error:
        text = f"This could not be read or written: {error.strerror or error}."
        return await failed(GreenroomError(text))
    return await answered(said, shown=everything if acts else without_stderr)


def everything(said: Any) -> Any:
    """What an owner may see."""
    return said


async def answered(said: Any, status: int = 200, shown: Callable[[Any], Any] = everything) -> PageAnswer:
    """`shown`: what of it whoever asks may see."""
    lists = [each for each in said.values() if is_array(each)] if is_object(said) else ()
    many = max(map(len, lists), default=0)
    return PageAnswer(status, await aside_if_many(many, lambda: rpc.encode(unhidden_value(shown(said)))))


async def failed(error: GreenroomError) -> PageAnswer:
    return await answered({"error": {"code": error.code, "message": error.message}}, error.http_status)
