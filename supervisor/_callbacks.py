"""Callbacks: an embedder's functions that answer requests of servers and receive their notifications.

Each callback that is given is declared to servers as a capability. A server that sends a request without a
callback for it is told that the method does not exist. With any callback, servers are greeted by handshake,
because in the newer era they could not ask or log at any moment. Results are the protocol's own objects and
are passed on unchanged. Their content is a matter between the server and the callback.

Callbacks that answer are async and run in tasks of the room. Callbacks that only listen are plain functions.
They are called at once and in order. If one of them raises, that is reported, and the server does not notice.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ..actors import Greeting, ServerRequest, not_found
from ..protocol.address import Address
from ..protocol.approval import ApprovalRequest, Verdict
from ._given import function, json_object, list_or_function

Answer = Callable[[ServerRequest], Awaitable[Mapping[str, Any]]]
Root = str | os.PathLike[str] | Mapping[str, Any]
Roots = Sequence[Root] | Callable[[ServerRequest], Awaitable[Sequence[Root]]]
OnApproval = Callable[[ApprovalRequest], Awaitable[Verdict | None]]
OnLog = Callable[[Address, Mapping[str, Any]], object]
OnNotification = Callable[[Address, str, Mapping[str, Any] | None], object]

LOG: Final = "notifications/message"


def _nothing() -> Mapping[str, Any]:
    return {}


@attrs.frozen(eq=False)
class Callbacks:
    """What a room (or a session) can answer. `capabilities` adds to what is declared: `{"sampling": {"tools":
    {}}}`."""

    on_sampling: Answer | None = None
    on_elicitation: Answer | None = None
    roots: Roots | None = None
    on_log: OnLog | None = None
    on_notification: OnNotification | None = None
    capabilities: Mapping[str, Any] = attrs.field(factory=_nothing)

    def __attrs_post_init__(self) -> None:
        for name in ("on_sampling", "on_elicitation", "on_log", "on_notification"):
            function(getattr(self, name), name)
        list_or_function(self.roots, "roots", "paths, URIs or root objects")
        json_object(self.capabilities, "capabilities")

    def greeting(self, address: Address) -> Greeting:
        """With a callback, servers may ask or notify at any moment, which needs a handshake."""
        declared = self.declared()
        waits = bool(declared) or self.on_log is not None or self.on_notification is not None
        return Greeting(declared, by_handshake=waits)

    def declared(self) -> dict[str, Any]:
        """The client capabilities that these callbacks provide."""
        found: dict[str, Any] = {}
        if self.on_sampling is not None:
            found["sampling"] = {}
        if self.on_elicitation is not None:
            found["elicitation"] = {"form": {}, "url": {}}
        if self.roots is not None:
            found["roots"] = {"listChanged": True}
        return {**found, **self.capabilities}

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        """Raises `RpcRefusal`, and whatever the callback raises."""
        if request.method == "sampling/createMessage" and self.on_sampling is not None:
            return await self.on_sampling(request)
        if request.method == "elicitation/create" and self.on_elicitation is not None:
            return await self.on_elicitation(request)
        if request.method == "roots/list" and self.roots is not None:
            roots = await self.roots(request) if callable(self.roots) else self.roots
            return {"roots": [as_root(root) for root in roots]}
        raise not_found(request.method)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method == LOG and self.on_log is not None:
            self.on_log(address, params or {})
        if self.on_notification is not None:
            self.on_notification(address, method, params)


def as_root(root: Root) -> Mapping[str, Any]:
    """A root as the protocol writes it. A path becomes a `file://` URI, and an object stays as it is."""
    if isinstance(root, Mapping):
        return root
    text = os.fspath(root)
    return {"uri": text if "://" in text else Path(text).absolute().as_uri()}
