"""The doors of a host: links carry calls, and HTTP is for what fronts and operators want of the host itself.

Every link and every command carries the cluster's token, and the epoch of the host that it is meant for. The fence lets
a call pass only while this life of the host goes on, its lease is good, and it holds the server's claim where one is
needed. Otherwise it answers that the server has moved and that the call was not sent; so the front queues the call
again, and asks where the address lives now.

Paths: `POST /cluster/open` (take the server, and start it), `/cluster/drain`, `/cluster/restart`, and
`GET /cluster/status`. A refusal says in `reason` what the front should do, and one that is worth waiting for says how
long in `seconds`.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..gateway.doors.http_request import ClientGone, DoorRequest, HttpRefusal, Rules, body_time
from ..protocol.address import SHARED
from ..protocol.errors import CallError, CredentialNeeded, GreenroomError, UnknownServer
from ..protocol.json_values import object_or_empty
from ..protocol.links import LinkHello, NoLink
from .host_config import profile_of
from .leases import HolderReply, WaitReply

if TYPE_CHECKING:
    from ..gateway.doors.door_connection import Door
    from ..gateway.doors.link_door import LinkDoor
    from ..supervisor.room import Greenroom
    from .cluster_host import HostLife

EPOCH: Final = "greenroom-epoch"  # the header that names the epoch of the host
LINGER: Final = 10.0  # seconds that a server stays where it is after its last link
_BODY: Final = 65_536  # bytes
_COMMANDS: Final = b"/cluster/"


class Fence:
    """Stands before `door`, the HTTP door of `room`; and says who may have a link (`LinkAdmission`)."""

    links: LinkDoor  # set before this life joins

    def __init__(self, door: Door, room: Greenroom, life: HostLife, token: str) -> None:
        self._door = door
        self._room = room
        self._life = life
        self._token = token
        self._body_time = body_time(Rules())

    def is_wanted(self, server: str) -> bool:
        """Whether a front has a link to the server, or had one a moment ago."""
        links = self.links
        return links.open[server] > 0 or time.monotonic() - links.used.get(server, -LINGER) < LINGER

    def __call__(self, request: DoorRequest) -> None:
        if request.fault is None and (request.path + b"/").startswith(b"/mcp/"):  # calls come over links
            _answer(request, 404, {"reason": "path"})
        elif request.fault is None and request.path.startswith(_COMMANDS):
            request.later(self._commanded(request))
        else:
            self._door(request)

    # ---- links ------------------------------------------------------------------------------------------------------

    def admit(self, hello: LinkHello) -> str:
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token.encode()):
            raise NoLink("token")
        why = self._refusal(hello.epoch)
        if why is not None:
            raise NoLink(why)
        if hello.server not in self._room.config.servers or not self._life.holds(hello.server):
            raise NoLink("moved")
        return profile_of(hello.server)

    def may_call(self, hello: LinkHello) -> bool:
        return self._life.may_serve and self._life.holds(hello.server)

    def _refusal(self, epoch: str) -> str | None:
        """Why what is meant for the host of this epoch is not for us now; None when it is."""
        if epoch != self._life.epoch:
            return "epoch"
        return None if self._life.may_serve else "lease"

    # ---- what fronts and operators want -----------------------------------------------------------------------------

    async def _commanded(self, request: DoorRequest) -> None:
        with suppress(ClientGone):
            _answer(request, *await self._command(request))

    async def _command(self, request: DoorRequest) -> tuple[int, Mapping[str, Any]]:
        what = request.path.removeprefix(_COMMANDS).decode("latin-1")
        given = request.text(b"authorization") or ""
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return 401, {"reason": "token"}
        if request.method == "GET":
            return (200, await self._life.account()) if what == "status" else (404, {"reason": "path"})
        act = {"open": self._open, "drain": self._drain, "restart": self._restart}.get(what)
        if act is None:
            return 404, {"reason": "path"}
        epoch = request.text(EPOCH.encode()) or ""
        if (why := self._refusal(epoch)) is not None:
            return 409, {"reason": why}
        asked = await self._body(request)
        server = asked.get("server")
        if not isinstance(server, str):
            return 400, {"reason": "server"}
        try:
            return await act(server, str(asked.get("scope", SHARED)))
        except UnknownServer:
            return 425, {"reason": "configuration", "seconds": 0.5}  # it has not come here yet
        except CallError as error:
            if (why := self._refusal(epoch)) is not None:  # it is no fault of the server
                return 409, {"reason": why}
            return 502, {"error": error.code, "message": error.message, "reach": str(error.reach)}
        except GreenroomError as error:
            return 502, {"error": error.code, "message": error.message}

    async def _open(self, server: str, scope: str) -> tuple[int, Mapping[str, Any]]:
        if server not in self._room.config.servers:
            self._life.hurry()
            return 425, {"reason": "configuration", "seconds": 0.5}
        if not self._life.holds(server):
            if self._life.is_draining:
                return 409, {"reason": "draining"}
            said = await self._life.take(server)
            if isinstance(said, HolderReply):
                return 409, {"reason": "held", "by": said.host}
            if isinstance(said, WaitReply):
                return 425, {"reason": "wait", "seconds": said.seconds}
        self.links.used[server] = time.monotonic()
        if scope == SHARED:
            await self._room.connect(server)
        else:
            await self._discover(server)
        return 200, {}

    async def _discover(self, server: str) -> None:
        """Learn what the server has, for a link that lists it before anything is started for the link itself."""
        entry = self._room.entry(server)
        if entry is None or not entry.known:
            with suppress(CredentialNeeded):  # then the link's own child tells
                self._room.refresh(server)
                await self._room.catalogued()

    async def _drain(self, server: str, _scope: str) -> tuple[int, Mapping[str, Any]]:
        await self._room.drain(server)
        return 200, {}

    async def _restart(self, server: str, _scope: str) -> tuple[int, Mapping[str, Any]]:
        if self._life.holds(server):
            await self._room.restart(server)
        return 200, {}

    async def _body(self, request: DoorRequest) -> Mapping[str, Any]:
        """The body of a request; nothing if it is no object, or none that can be had."""
        try:
            said: Any = json.loads(await request.body(_BODY, self._body_time))
        except (ValueError, HttpRefusal):
            said = None
        return object_or_empty(said)


def _answer(request: DoorRequest, status: int, said: Mapping[str, Any]) -> None:
    request.answer(status, json.dumps(said).encode())
