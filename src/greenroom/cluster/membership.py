"""What a front knows of the cluster: the hosts, where an address lives, and how to ask a host for something.

One task asks the directory every second while there are links, and tells whoever waits for a change. Whoever finds
that it knows too little, because a host refused it, asks at once. When the directory does not answer, what is known
stays in use: hosts refuse what is not theirs, so nothing wrong can come of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from ..actors.backend import pump_group
from ..actors.peer import LostReason, connect_failed
from ..actors.timers import at_most, in_time
from ..actors.transports.http_client import make_client
from ..actors.transports.link import Cover
from ..actors.workers import apart
from ..config.model import ServerDefinition
from ..protocol.address import Address
from ..protocol.errors import GreenroomError
from ..protocol.json_values import object_or_empty
from ..protocol.links import LinkHello
from ..protocol.safe_text import in_words
from .directory import Directory, DirectorySilent
from .encryption import Encryption, encryption
from .host_door import EPOCH
from .placement import ClusterView, HostInfo, owner, why_nowhere

if TYPE_CHECKING:
    import httpx2

OPEN: Final = "/cluster/open"
_LASTS: Final = 3  # looks in vain, until it is said why there is no host
_NOTHING: Final = 0  # the status of no answer
_AGAIN: Final = 0.1  # seconds until a host is asked again that refused
_ANSWER_WITHIN: Final = 5.0  # seconds, where a host has nothing to wait for


class HostSilent(GreenroomError):
    """A host of the cluster does not answer."""


@attrs.frozen
class HostReply:
    """The answer of a host: its HTTP status, and what its body says."""

    status: int
    body: Mapping[str, Any]


@attrs.define
class _OpenAttempt:
    """A host is being asked to open something."""

    ended: anyio.Event = attrs.field(factory=anyio.Event)
    said: HostReply | None = None  # at the end; None: whoever asked has given up


class Membership:
    """The view of one front. `token`: gives the cluster's, which every request to a host carries. `closes`: ends
    what reaches the directory; plain, and idempotent. Raises `UsageError`: the files to encrypt with cannot be used."""

    def __init__(
        self, directory: Directory, token: Callable[[], str], closes: Callable[[], object] = bool
    ) -> None:
        self.encryption: Encryption | None = encryption()
        self.directory = directory
        self._closes = closes
        self.view: ClusterView = ClusterView("")
        self.followed: Callable[[int], Awaitable[None]] | None = (
            None  # told of a newer configuration's version
        )
        self._token = token
        self._changed = anyio.Event()
        self._asking = anyio.Lock()
        self._opening: dict[tuple[str, str, bool], _OpenAttempt] = {}
        self._making = anyio.Lock()
        self._client: httpx2.AsyncClient | None = None

    # ---- what is known ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the view fresh. Runs until cancelled."""
        try:
            while True:
                await self.refresh()
                if self.followed is not None:
                    await self.followed(self.view.config_version)
                await anyio.sleep(self.directory.look_every)
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def refresh(self) -> None:
        """Ask the directory. If it does not answer, what is known stays."""
        asked_after = self.view
        async with self._asking:
            if self.view is not asked_after:
                return  # somebody asked while we waited
            with suppress(DirectorySilent):
                view = await self.directory.view(self.view.number)
                if view is not None:
                    self.view, changed, self._changed = view, self._changed, anyio.Event()
                    changed.set()

    async def changed(self) -> None:
        """Wait until more is known than now, or some time has passed."""
        async with at_most(self.directory.look_every):
            await self._changed.wait()

    def life_of(self, host: HostInfo) -> HostInfo | None:
        """What is known now of this life of a host; None: it is over."""
        return next((each for each in self.view.hosts if each.epoch == host.epoch), None)

    async def until_gone(self, host: HostInfo) -> None:
        """Wait until this life of a host is over."""
        while self.life_of(host) is not None:
            await self.next_view()

    async def next_view(self) -> None:
        """Wait until the directory says something else."""
        await self._changed.wait()

    # ---- where an address lives -------------------------------------------------------------------------------------

    async def place(
        self, definition: ServerDefinition, address: Address, note: Callable[[str], object] = bool
    ) -> HostInfo:
        """The host where an address lives, which is ready to serve it: waits until there is one. `note`: told why there
        is none, if that lasts. Raises `ConnectFailed` when the host cannot start the server."""
        looked = 0
        while True:
            host = owner(address, definition.placement, self.view)
            if host is None:
                said = HostReply(_NOTHING, {"message": why_nowhere(address, definition.placement, self.view)})
            else:
                said = await self._open(host, address)
                if said.status == 200:
                    return host
            text = str(said.body.get("message", "its host could not start it"))
            if said.status == 502:
                raise connect_failed(address.server, LostReason(text))
            if said.status == _NOTHING:
                looked += 1
                if looked == _LASTS:
                    note(text)
                await self.look_again()
                continue
            await anyio.sleep(min(float(said.body.get("seconds", _AGAIN)), self.directory.look_every))
            await self.refresh()

    async def _open(self, host: HostInfo, address: Address) -> HostReply:
        """Ask a host to take an address. That may last as long as its server takes to start, but no longer than this
        life of the host goes on. `_NOTHING`: it did not answer. A thousand sessions of one server ask once: for all
        of them the host does the same."""
        key = (host.epoch, address.server, address.is_shared)
        while (other := self._opening.get(key)) is not None:
            await other.ended.wait()
            if other.said is not None:
                return other.said
        mine = self._opening[key] = _OpenAttempt()
        try:
            mine.said = await self._ask_to_open(host, address)
            return mine.said
        finally:
            del self._opening[key]
            mine.ended.set()

    async def _ask_to_open(self, host: HostInfo, address: Address) -> HostReply:
        said = HostReply(_NOTHING, {"message": f'its host "{host.name}" is gone'})
        body = {"server": address.server, "scope": address.scope}

        async def ask() -> None:
            nonlocal said
            try:
                said = await self.ask(host, OPEN, body, within=None)
            except HostSilent as silent:
                said = HostReply(_NOTHING, {"message": str(silent)})
            tasks.cancel_scope.cancel()

        async with pump_group() as tasks:
            tasks.start_soon(ask)
            await self.until_gone(host)
            tasks.cancel_scope.cancel()
        return said

    async def look_again(self) -> None:
        """Wait a little, or until more is known, and ask the directory."""
        await self.changed()
        await self.refresh()

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def hello(self, host: HostInfo, server: str, variables: Mapping[str, str]) -> LinkHello:
        """What a link to a server at this host begins with."""
        return LinkHello(self._token(), host.epoch, server, variables)

    def cover(self, note: Callable[[str], object]) -> Cover:
        """What a link is encrypted with, if it is."""
        return (
            nullcontext
            if self.encryption is None
            else partial(self.encryption.over, is_server=False, note=note)
        )

    def headers(self, host: HostInfo) -> dict[str, str]:
        """What every command to this host carries."""
        return {"Authorization": f"Bearer {self._token()}", EPOCH: host.epoch}

    async def ask(
        self,
        host: HostInfo,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        within: float | None = _ANSWER_WITHIN,
    ) -> HostReply:
        """Ask a host for something. `body`: None to look only. `within`: seconds; None: as long as the caller waits.
        Raises `HostSilent`."""
        import httpx2

        async with self._making:
            if self._client is None:
                at, trust = (
                    ServerDefinition("cluster", url=host.url),
                    self.encryption and self.encryption.connecting,
                )
                self._client = await apart(partial(make_client, at, None, _ANSWER_WITHIN, trust=trust))
        method = "GET" if body is None else "POST"
        try:
            async with in_time(math.inf if within is None else within):
                answer = await self._client.request(
                    method, host.url + path, headers=self.headers(host), json=body
                )
            said: Any = json.loads(answer.content or b"{}")
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            text = f'The host "{host.name}" of the cluster does not answer: {_why(error)}.'
            raise HostSilent(text) from None
        return HostReply(answer.status_code, object_or_empty(said))

    async def close(self) -> None:
        self._closes()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _why(error: BaseException) -> str:
    """What an error says, or what has caused it."""
    while not str(error) and error.__context__ is not None:
        error = error.__context__
    return in_words(error)
