"""What the page asks of a room: who it may be for, a look, an act, and a stream of what changes.

The same answers go to a browser at the HTTP door and, over the control socket, to `greenroom page`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from ...protocol.errors import UsageError
from ...supervisor.room import port_of
from ..commands import approvals_view, audit_view
from ..next_steps import PLAIN, Commands
from .watch import Frame, Watch

if TYPE_CHECKING:
    from ...supervisor.room import Greenroom
    from ...supervisor.room_port import RoomPort

_MOST: Final = 32  # pages that watch at once


class Answers(Protocol):
    """Who answers the page: a room, or a command that asks one."""

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> Any:
        """The answer to a question. `acts`: whether who asks may act. Raises `GreenroomError`."""
        ...

    async def act(self, params: Mapping[str, Any], who: str) -> Any:
        """Do what an owner wants. `who` that is, in words. Raises `GreenroomError`."""
        ...

    def watch(self, *, acts: bool) -> AsyncGenerator[Frame]:
        """Everything, and then what changes. Raises `GreenroomError`."""
        ...


class RoomPage:
    """The page of a room. `clients`: those that are here now, as the status of this door shows them."""

    def __init__(
        self,
        room: Greenroom,
        *,
        version: str,
        door: str,
        clients: Callable[[], list[dict[str, Any]]],
        commands: Commands = PLAIN,
    ) -> None:
        self._room = room
        self.port: RoomPort = port_of(room)
        self.commands = commands
        self.is_over = False
        self._version = version
        self._door = door
        self._clients = clients
        self._started = time.time()
        self._watching = 0

    def close(self) -> None:
        """The gateway ends: pages are told no more."""
        self.is_over = True

    # ---- looks -----------------------------------------------------------------------------------------------------

    async def look(self, what: str, params: Mapping[str, Any], *, acts: bool) -> Any:
        if what == "hello":
            return self._hello(acts)
        raise UsageError(f'The page cannot ask for "{what}".')

    def _hello(self, acts: bool) -> dict[str, Any]:
        from ...config.files import working_directory

        return {
            "may": "act" if acts else "read",
            "version": self._version,
            "gateway": {
                "pid": os.getpid(),
                "folder": os.fspath(working_directory("/")),
                "config": self.commands.config,
                "startedAt": round(self._started, 3),
                "door": self._door,
            },
            "runsOn": {
                "python": platform.python_version(),
                "mcp": metadata.version("mcp"),
                "platform": sys.platform,
            },
            "sections": {"cluster": False, "tasks": True, "approvals": True},
        }

    # ---- acts ------------------------------------------------------------------------------------------------------

    async def act(self, params: Mapping[str, Any], who: str) -> Any:
        raise UsageError("Not yet.")

    # ---- the stream ------------------------------------------------------------------------------------------------

    async def watch(self, *, acts: bool) -> AsyncGenerator[Frame]:
        if self._watching >= _MOST:
            raise UsageError(f"{_MOST} pages watch this gateway already. Close one.", code="overloaded")
        self._watching += 1
        frames = Watch(self, acts=acts).frames()
        try:
            async for frame in frames:
                yield frame
        finally:
            self._watching -= 1
            with anyio.CancelScope(shield=True):
                await frames.aclose()

    def quick(self) -> dict[str, Any]:
        port = self.port
        most = port.config.settings.max_connections
        return {
            "pool": {"held": port.slots_held, "most": most},
            "approvals": approvals_view(port, {}),
            "audit": audit_view(port).get("audit"),
        }

    async def slow(self) -> dict[str, Any]:
        return {"clients": self._clients(), "tasks": [], "hosts": None, "pins": [], "projects": []}
