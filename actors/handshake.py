"""The handshake with a server, whatever carries its messages: which era the server speaks, and its name and version.

The newer era is tried first with one short probe (`server/discover`). Any answer that does not prove the newer era
leads back to `initialize`. A hint from last time saves the probe. It is only a hint: when it proves wrong, the
other way is tried. A server may take the probe after we have given up on it; it then refuses `initialize` by
naming its versions, which is proof too.

A server that speaks both eras can ask its client something only in the older one. So for a client that expects to
be asked, `initialize` comes first, whatever the hint. A configuration may also insist on either era. Over HTTP such a
server can be spoken to in both eras at once (`Peer.beside`), which is found out when clients of both may call it.

What a server says about itself is kept as long as the server is configured, so it has the bounds of an item of its
lists. (Lists are read in `list_reader`.)

Nothing here decides what a failure means. It is raised as `RpcFailure`; the actor knows the server's name and its
circuit breaker.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from ..catalogue.entries import Raw
from ..catalogue.list_pages import take_object
from ..config.model import Era, Settings
from ..protocol.bounds import REASON_CHARACTERS
from ..protocol.errors import GreenroomError
from ..protocol.jsonrpc.terms import (
    HANDSHAKE_VERSIONS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    UNSUPPORTED_VERSION,
    RpcError,
    WireFault,
    fault,
)
from ..protocol.safe_text import shortened
from .backend import Backend
from .host import Declaration
from .peer import EndOnlyOwner, Exchange, Handshake, Peer
from .timers import Timers

_LEAST_TIME = 1.0  # seconds; `initialize` gets at least this, even when the probe used up everything


class RpcFailure(GreenroomError):
    """A request to a server brought no result: it got an error, a broken answer, or none in time.

    `error` is the server's error; None: the server said nothing.
    """

    code = "rpc_failed"

    def __init__(self, method: str, text: str, *, error: RpcError | None = None) -> None:
        self.method = method
        self.error = error
        self.text = text
        was_reached = error is None or not error.unreached  # else nobody asked it anything
        super().__init__(f"{method}: {text}" if was_reached else text)

    @property
    def is_lacking(self) -> bool:
        """Whether the server answered that it does not have this method."""
        return self.error is not None and self.error.code == METHOD_NOT_FOUND

    @property
    def timed_out(self) -> bool:
        return self.error is None


class _AnswerWait(EndOnlyOwner):
    """An answer, and the task that waits for it."""

    def __init__(self, backend: Backend) -> None:
        self.waiter = backend.waiter()
        self.answer: bytes | RpcError | None = None

    def exchange_ended(self, exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self.answer = error if result is None else result
        self.waiter.set()


async def ask(
    peer: Peer,
    backend: Backend,
    timers: Timers,
    method: str,
    params: Mapping[str, Any] | None,
    timeout: float,
    *,
    beside: str | None = None,
) -> dict[str, Any]:
    """Ask the server and wait at most `timeout` seconds for the result, with every field as the server sent it.

    `beside`: ask in this version, and not in the connection's own. Raises `RpcFailure` as `ask_raw` does, and for a
    result that is not an object or is over the bounds of what is kept.
    """
    answer = await ask_raw(peer, backend, timers, method, params, timeout, beside=beside)
    try:
        return take_object(answer)
    except WireFault as problem:
        text = f"its answer is one {problem}"
        raise RpcFailure(method, text, error=fault(text)) from None


async def ask_raw(
    peer: Peer,
    backend: Backend,
    timers: Timers,
    method: str,
    params: Mapping[str, Any] | None,
    timeout: float,
    *,
    within: float | None = None,
    beside: str | None = None,
    of: Exchange | None = None,
) -> bytes:
    """Ask the server and wait at most `timeout` seconds for the raw result.

    `within`: the whole time, of which `timeout` is the rest; the error names it. `beside`: as in `ask`. `of`: the
    request that it belongs to. It is spoken in the same version, says the same of its client, and has the same trace.
    Raises `RpcFailure`. A cancelled or timed-out request is abandoned. When the connection is lost meanwhile, the
    connection's owner hears of it (`PeerHooks.on_lost`) and cancels this.
    """
    # Who was given up asks nothing: the peer may be closed by now.
    await anyio.lowlevel.checkpoint_if_cancelled()
    asked = _AnswerWait(backend)
    exchange = Exchange(asked, method, params)
    if of is not None:
        exchange.version, exchange.declares, exchange.trace = of.version, of.declares, of.trace
    if beside is not None:
        exchange.version, exchange.declares = beside, peer.client_capabilities
    peer.request(exchange)
    limit = timers.at(backend.now() + timeout, asked.waiter.set) if timeout < math.inf else None
    try:
        await asked.waiter.wait()
    finally:
        if limit is not None:
            limit.cancel()
        if asked.answer is None:
            peer.abandon(exchange, "timed out")
    answer = asked.answer
    if answer is None:
        raise RpcFailure(method, f"no answer within {within or timeout:.3g} s")
    if isinstance(answer, RpcError):
        said = shortened(answer.message, REASON_CHARACTERS)
        text = said if answer.fault or answer.broken else f"{said} ({answer.code})"
        raise RpcFailure(method, text, error=answer)
    return answer


async def shake_hands(
    peer: Peer,
    backend: Backend,
    timers: Timers,
    *,
    settings: Settings,
    client_info: Mapping[str, Any],
    declaration: Declaration,
    era: Era = Era.AUTO,
    era_hint: str | None = None,
    deadline: float | None = None,
) -> Handshake:
    """Agree on a protocol version and learn who the server is, until `deadline` or within
    `settings.connect_timeout` seconds.

    Unless `era` is `auto`, only that era is tried. `era_hint` is the version the server chose last time. On return
    `peer.protocol_version` is set, so what follows is stamped as its era requires. Raises `RpcFailure` when the
    server does not answer in an era that may be tried, or speaks no version we know.
    """
    peer.client_info = client_info
    peer.client_capabilities = declaration.capabilities
    if deadline is None:
        deadline = backend.now() + settings.connect_timeout
    attempt = _HandshakeAttempt(peer, backend, timers, settings, era, declaration, era_hint, deadline)
    return await attempt.run()


class _HandshakeAttempt(msgspec.Struct, eq=False):
    """One handshake: by `initialize` or in the newer era, and when to change from one to the other."""

    peer: Peer
    backend: Backend
    timers: Timers
    settings: Settings
    era: Era
    declaration: Declaration
    hint: str | None
    deadline: float

    async def run(self) -> Handshake:
        if self.era is Era.HANDSHAKE:
            return replace(await self._insist(self._initialize), is_its_choice=False)
        if self.era is Era.STATELESS:
            return replace(await self._insist(self._discover_only), is_its_choice=False)
        serves_both = self.declaration.for_many and self.peer.may_speak_both
        if self.declaration.by_handshake or serves_both:
            handshake = await self._initialize_first()
            if serves_both and not handshake.is_stateless and self.hint not in HANDSHAKE_VERSIONS:
                beside = await self._said_beside()
                return replace(handshake, is_its_choice=beside is None, beside=beside or {})
            return replace(handshake, is_its_choice=handshake.is_stateless)
        if self.hint in HANDSHAKE_VERSIONS:
            return await self._initialize_first()
        handshake = await self._discover(self._probe_time())
        if handshake is not None:
            return handshake
        try:
            return await self._initialize()
        except RpcFailure as refusal:
            return await self._discover_after(refusal)

    async def _insist(self, attempt: Callable[[], Awaitable[Handshake]]) -> Handshake:
        try:
            return await attempt()
        except RpcFailure as refusal:
            text = f'{refusal.text}; its entry says "era": "{self.era.value}": try "auto"'
            raise RpcFailure(refusal.method, text, error=refusal.error) from None

    async def _said_beside(self) -> Raw | None:
        """What a server that was initialized by handshake can do in the newer era. Then each client is served in its
        own era. None: it takes no requests of the newer one."""
        try:
            version = MODERN_VERSIONS[-1]
            found = await self._ask("server/discover", None, self._probe_time(), beside=version)
        except RpcFailure:
            return None
        self.peer.beside = _newest(MODERN_VERSIONS, _versions(found.get("supportedVersions")))
        return None if self.peer.beside is None else _mapping(found.get("capabilities"))

    async def _discover_only(self) -> Handshake:
        handshake = await self._discover(self._time_left())
        if handshake is None:
            text = "no proof that it speaks 2026-07-28"
            raise RpcFailure("server/discover", text, error=fault(text))
        return handshake

    async def _initialize_first(self) -> Handshake:
        try:
            return await self._initialize()
        except RpcFailure as refusal:
            if refusal.error is None or refusal.error.fault:
                raise
            return await self._discover_after(refusal)

    async def _discover_after(self, refusal: RpcFailure) -> Handshake:
        """`initialize` was refused. Unless the server now proves to speak the newer era, that refusal is the
        result."""
        handshake = None if refusal.timed_out else await self._discover(self._probe_time())
        if handshake is None:
            raise refusal
        return handshake

    async def _discover(self, timeout: float) -> Handshake | None:
        """Ask the server in the newer era. None: no proof that it speaks that.

        Raises `RpcFailure` when it proves to speak only versions that we do not know.
        """
        self.peer.protocol_version = MODERN_VERSIONS[-1]
        try:
            result = await self._ask_in_common(timeout)
        except RpcFailure as failure:
            supported = _supported_by(failure)
        else:
            supported = _versions(result.get("supportedVersions"))
            if version := _newest(MODERN_VERSIONS, supported):
                self.peer.protocol_version = version
                return _handshake_of(
                    version, result, _mapping(_mapping(result.get("_meta")).get(SERVER_INFO_KEY))
                )
        self.peer.protocol_version = None
        if supported and not _newest(HANDSHAKE_VERSIONS, supported):
            raise _no_common_version("server/discover", ", ".join(supported))
        return None

    async def _ask_in_common(self, timeout: float) -> dict[str, Any]:
        """Ask in our newest version. If the server refuses and names a version that we know, ask once more in that."""
        try:
            return await self._ask("server/discover", None, timeout)
        except RpcFailure as refusal:
            version = _newest(MODERN_VERSIONS, _supported_by(refusal))
            if version is None:
                raise
            self.peer.protocol_version = version
            return await self._ask("server/discover", None, self._probe_time())

    async def _initialize(self) -> Handshake:
        """Initialize it, in the handshake era: offer the newest version, take any that we know."""
        self.peer.protocol_version = None
        params = {
            "protocolVersion": HANDSHAKE_VERSIONS[-1],
            "capabilities": self.peer.client_capabilities,
            "clientInfo": self.peer.client_info,
        }
        result = await self._ask("initialize", params, self._time_left())
        version = result.get("protocolVersion")
        if version in MODERN_VERSIONS:
            text = f"the server answers it with {version}, a version without this method. Update the server."
            raise RpcFailure("initialize", text, error=fault(text))
        if version not in HANDSHAKE_VERSIONS:
            raise _no_common_version("initialize", repr(version))
        self.peer.protocol_version = version
        self.peer.notify("notifications/initialized")
        return _handshake_of(version, result, _mapping(result.get("serverInfo")))

    async def _ask(
        self, method: str, params: Mapping[str, Any] | None, timeout: float, *, beside: str | None = None
    ) -> dict[str, Any]:
        return await ask(self.peer, self.backend, self.timers, method, params, timeout, beside=beside)

    def _probe_time(self) -> float:
        """The timeout of the probe. It is longer for a server that spoke the newer era last time, which may only be
        slow to start."""
        known = self.hint in MODERN_VERSIONS
        probe = max(self.settings.probe_timeout, self.settings.connect_timeout / 2) if known else None
        return min(probe or self.settings.probe_timeout, self._time_left())

    def _time_left(self) -> float:
        return max(self.deadline - self.backend.now(), _LEAST_TIME)


def _supported_by(refusal: RpcFailure) -> tuple[str, ...]:
    """The versions a server names when it refuses ours; none when it refused for another reason."""
    error = refusal.error
    if error is None or error.code != UNSUPPORTED_VERSION:
        return ()
    return _versions(_mapping(error.data).get("supported"))


def _versions(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def _newest(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str | None:
    return next((version for version in reversed(ours) if version in theirs), None)


def _no_common_version(method: str, theirs: str) -> RpcFailure:
    known = ", ".join((*HANDSHAKE_VERSIONS, *MODERN_VERSIONS))
    text = f"the server speaks protocol version {theirs}; Greenroom knows {known}. Update the server or Greenroom."
    return RpcFailure(method, text, error=fault(text))


def _handshake_of(version: str, result: Mapping[str, Any], server_info: Raw) -> Handshake:
    instructions = result.get("instructions")
    return Handshake(
        protocol_version=version,
        capabilities=_mapping(result.get("capabilities")),
        server_info=server_info,
        instructions=instructions if isinstance(instructions, str) else None,
    )


def _mapping(value: object) -> Raw:
    return cast("Raw", value) if isinstance(value, dict) else {}
