"""The host answers what servers ask of their client, and receives their unrequested notifications.

A server may ask for a sampled message, for something from the user, or for its roots. It may log, report that a
resource changed, or send what no version of the protocol knows. No actor decides about any of that. It asks the
room's `Host`, by address. So the owner of a session answers for that session's servers and for no other.

What a host can answer is declared to a server once, by `initialize`. The era is chosen then, too: only a server
of the handshake era can ask at any moment. So `declaration` is called once for each incarnation, and what it says is
true for as long as that lives: nothing is ended because a client that can answer more has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc.terms import METHOD_NOT_FOUND

if TYPE_CHECKING:
    from .call import Call


# What a server asks of its client -> the capability with which a client declares that it answers that.
ASKED_FOR: Final[Mapping[str, str]] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
_ABSENT: Final = object()


def _nowhere(_params: Mapping[str, Any]) -> None:
    pass


class ServerRequest(msgspec.Struct, frozen=True, eq=False):
    """One request of a server to its client, in either era of the protocol.

    `call` is known if the request names it (in 2026-07-28, and over HTTP), or if the server is working on one call
    only.
    """

    address: Address  # the server, and whose process of it
    method: str  # such as `sampling/createMessage`
    params: Mapping[str, Any]  # as the server sent them
    progress: Callable[[Mapping[str, Any]], None] = _nowhere  # sends progress back, if the server wants it
    call: Call | None = None  # the call that the request belongs to, if that is known
    is_ours: bool = False  # Greenroom itself asks for approval, and the server knows nothing of it

    @property
    def server(self) -> str:
        """The server that asks."""
        return self.address.server


def _nothing() -> Mapping[str, Any]:
    return {}


class Declaration(msgspec.Struct, frozen=True):
    """What a server is told of its client. `capabilities`: what the client can do, as the protocol writes it.
    `by_handshake`: the client expects to be asked or told something, which no server can do from 2026-07-28 on.
    `log_level`: the least level of logs to hear when the client set none. It is sent with each request, so a new level
    needs no new connection. `modern`: whether the client itself speaks 2026-07-28; None: it is no client of MCP.
    `for_many`: clients of both eras come and go."""

    capabilities: Mapping[str, Any] = msgspec.field(default_factory=_nothing)
    by_handshake: bool = False
    log_level: str | None = None
    modern: bool | None = None
    for_many: bool = False


class Host(Protocol):
    def declaration(self, address: Address) -> Declaration: ...

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        """Answer a server request, and return the result. Raises `RpcRefusal`. Cancelled when the server does not want
        it any more, or is gone."""
        ...

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification, except progress. Called from the pump, so it must not block."""
        ...


class NoHost:
    """Can do nothing and hears nothing."""

    def declaration(self, address: Address) -> Declaration:
        return Declaration()

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        raise not_found(request.method)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        pass


def lacking(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> str | None:
    """The capability that a client would have to declare to be sent this request, and has not declared. None: it can be
    sent this; so for a method that needs no capability."""
    needed = ASKED_FOR.get(method)
    if needed is None:
        return None
    declared: object = capabilities.get(needed)
    if not isinstance(declared, Mapping):
        return needed
    if method == "elicitation/create":
        return _lacking_mode(
            cast("Mapping[str, Any]", declared), "url" if params.get("mode") == "url" else "form"
        )
    if method == "sampling/createMessage" and params.get("tools") and "tools" not in declared:
        return "sampling.tools"
    return None


def _lacking_mode(declared: Mapping[str, Any], mode: str) -> str | None:
    """The mode of elicitation that a client has not declared. One that declares no mode takes forms."""
    takes = mode in declared or (mode == "form" and "url" not in declared)
    return None if takes else f"elicitation.{mode}"


_DEPTH: Final = 4  # to which capabilities are looked into; deeper ones are the same, or not in common


def in_common(one: Mapping[str, Any], other: Mapping[str, Any], depth: int = _DEPTH) -> Mapping[str, Any]:
    """The capabilities that two declarations have in common."""
    shared: dict[str, Any] = {}
    for name, said in one.items():
        also: object = other.get(name, _ABSENT)
        if said == also:
            shared[name] = said
        elif depth and isinstance(said, Mapping) and isinstance(also, Mapping):
            parts = cast("Mapping[str, Any]", said), cast("Mapping[str, Any]", also)
            shared[name] = in_common(*parts, depth - 1)
    return shared


def joined(declarations: Iterable[Declaration]) -> Declaration:
    """One declaration for a server that several clients share: everything that any of them can answer, by handshake if
    any of them needs that."""
    capabilities: dict[str, Any] = {}
    by_handshake = False
    for each in declarations:
        capabilities = _joined(capabilities, each.capabilities)
        by_handshake = by_handshake or each.by_handshake
    return Declaration(capabilities, by_handshake)


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for name, value in other.items():
        known = both.get(name)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            both[name] = _joined(cast("Mapping[str, Any]", known), cast("Mapping[str, Any]", value))
        elif not known:
            both[name] = value
    return both


def not_found(method: str) -> RpcRefusal:
    return RpcRefusal(METHOD_NOT_FOUND, f"Method not found: {method}")
