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
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ..protocol.address import SHARED
from ..protocol.errors import CallError, CredentialNeeded, GreenroomError, UnknownServer
from ..protocol.links import Hello, NoLink
from .host_config import profile_of
from .leases import Granted, HeldBy, Wait

if TYPE_CHECKING:
    from ..gateway.doors.link_door import LinkDoor
    from ..supervisor.room import Greenroom

EPOCH: Final = "greenroom-epoch"  # the header that names the epoch of the host
LINGER: Final = 10.0  # seconds that a server stays where it is after its last link
_BODY: Final = 65_536  # bytes
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Life(Protocol):
    """The life of the host that this door belongs to."""

    @property
    def epoch(self) -> str: ...

    @property
    def may_serve(self) -> bool: ...

    @property
    def is_draining(self) -> bool: ...

    def hurry(self) -> None: ...

    def holds(self, server: str) -> bool:
        """Whether it may run this server: it holds its claim, or none is needed."""
        ...

    async def take(self, server: str) -> Granted | HeldBy | Wait:
        """Claim the server."""
        ...

    async def account(self) -> Mapping[str, Any]: ...


class Fence:
    """An ASGI application around `app`, the HTTP door of `room`; and who may have a link (`Entry`)."""

    links: LinkDoor  # set before this life joins

    def __init__(self, app: App, room: Greenroom, life: Life, token: str) -> None:
        self._app = app
        self._room = room
        self._life = life
        self._token = token

    def is_wanted(self, server: str) -> bool:
        """Whether a front has a link to the server, or had one a moment ago."""
        links = self.links
        return links.open[server] > 0 or time.monotonic() - links.used.get(server, -LINGER) < LINGER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and f"{path}/".startswith("/mcp/"):  # calls come over links
            await _answer(send, 404, {"reason": "path"})
        elif scope["type"] == "http" and path.startswith("/cluster/"):
            status, said = await self._command(path.removeprefix("/cluster/"), scope, receive)
            await _answer(send, status, said)
        else:
            await self._app(scope, receive, send)

    # ---- links ------------------------------------------------------------------------------------------------------

    def admit(self, hello: Hello) -> str:
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token.encode()):
            raise NoLink("token")
        why = self._refusal(hello.epoch)
        if why is not None:
            raise NoLink(why)
        if hello.server not in self._room.config.servers or not self._life.holds(hello.server):
            raise NoLink("moved")
        return profile_of(hello.server)

    def may_call(self, hello: Hello) -> bool:
        return self._life.may_serve and self._life.holds(hello.server)

    def _refusal(self, epoch: str) -> str | None:
        """Why what is meant for the host of this epoch is not for us now; None when it is."""
        if epoch != self._life.epoch:
            return "epoch"
        return None if self._life.may_serve else "lease"

    # ---- what fronts and operators want -----------------------------------------------------------------------------

    async def _command(self, what: str, scope: Scope, receive: Receive) -> tuple[int, Mapping[str, Any]]:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"").decode("latin-1")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return 401, {"reason": "token"}
        if scope["method"] == "GET":
            return (200, await self._life.account()) if what == "status" else (404, {"reason": "path"})
        act = {"open": self._open, "drain": self._drain, "restart": self._restart}.get(what)
        if act is None:
            return 404, {"reason": "path"}
        epoch = headers.get(EPOCH.encode(), b"").decode("latin-1")
        if (why := self._refusal(epoch)) is not None:
            return 409, {"reason": why}
        asked = await _body(receive)
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
            if isinstance(said, HeldBy):
                return 409, {"reason": "held", "by": said.host}
            if isinstance(said, Wait):
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


async def _body(receive: Receive) -> Mapping[str, Any]:
    """The body of a request; nothing if it is no object, or too long."""
    data = b""
    while len(data) <= _BODY:
        message = await receive()
        data += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    try:
        said: Any = json.loads(data) if len(data) <= _BODY else None
    except ValueError:
        said = None
    return cast("Mapping[str, Any]", said) if isinstance(said, dict) else {}


async def _answer(send: Send, status: int, said: Mapping[str, Any]) -> None:
    body = json.dumps(said).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
