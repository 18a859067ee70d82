"""The peer: what a server actor sees of a connection, whatever carries it.

Below this line are bytes, HTTP exchanges and SDK sessions; above it only `Exchange`s. The seam is plain functions and
callbacks, not coroutines: a call on a connected server is written in its caller's own task and ended by whichever pump
reads the answer, with no task and no queue in between. The rules both sides keep:

* `Peer.request` never raises for a fault of the other side. Each exchange ends in exactly one `Exchange.end(...)`,
  or is `abandon`ed by its owner and then never ends.
* `Exchange.reach` becomes SENT in the step in which the first byte of it is accepted by a write, not before.
* When the connection is over, `PeerHooks.on_lost` is called exactly once and *afterwards* nothing else is; exchanges
  still open are not ended by the peer but left to the actor, which knows whether they may be replayed.
* Nothing here waits, so nothing here can be cancelled half-way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs

from ..protocol.errors import Reach
from ..protocol.jsonrpc import RpcError
from ..protocol.lifecycle import Reason

# Naming a member of an enum costs ten times as much as a constant on 3.11; every call names these.
NOT_SENT: Final = Reach.NOT_SENT
SENT: Final = Reach.SENT
ANSWERED: Final = Reach.ANSWERED


class Exchange:
    """One request and its one answer. Owners subclass it and override `end`, `sent`, `progress`.

    `params` is a plain dict (without `_meta` of ours: the peer stamps that) or None. `result` arrives as the raw JSON
    bytes of the result value; `decode_result` of `protocol.jsonrpc` turns it into a dict when somebody wants to look.

    What every exchange begins with is said in the class, here and in subclasses: one is made for every call, and most
    of it is never another.
    """

    reach: Reach = NOT_SENT
    rpc_id: int = 0  # the peer's, while it is open
    wants_progress: bool = False

    def __init__(
        self, method: str, params: Mapping[str, Any] | None, *, wants_progress: bool = False
    ) -> None:
        self.method = method
        self.params = params
        if wants_progress:
            self.wants_progress = True

    def sent(self) -> None:
        """The first byte was accepted. `reach` is SENT already."""

    def end(self, result: bytes | None, error: RpcError | None) -> None:
        """The answer: exactly one of the two is not None. `reach` is ANSWERED already."""
        raise NotImplementedError

    def progress(self, params: Mapping[str, Any]) -> None:
        """A notifications/progress for this exchange; `params` as the server sent them."""


@attrs.frozen(eq=False)
class LostReason:
    """Why a connection is over, with what the other side left behind.

    Exchanges that the other side proved not to have run (it answered that it does not know the session, or us) are at
    `Reach.NOT_SENT` again by the time this is told.
    """

    text: str  # "exited with code 3", "closed its stdout", "broken pipe"
    exit_code: int | None = None
    stderr_tail: tuple[str, ...] = ()
    loss: Reason = Reason.DIED


class PeerHooks(Protocol):
    """What a peer tells its owner. Called from the pump, synchronously; must not block or raise."""

    def on_lost(self, reason: LostReason) -> None: ...

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None: ...

    def on_request(self, rpc_id: Any, method: str, params: Mapping[str, Any] | None) -> None:
        """A request from the server. Answer with `Peer.reply`, now or later."""
        ...

    def on_gap(self) -> None:
        """The stream of notifications was interrupted and is back: what changed meanwhile was not told."""
        ...

    def on_note(self, text: str) -> None:
        """Something odd that is worth an event: junk on stdout, an answer nobody asked for."""
        ...


class Peer(Protocol):
    """One live connection's voice."""

    last_heard: float  # room time of the last byte from the other side
    protocol_version: str | None  # set by the handshake; decides how requests are stamped
    client_info: Mapping[str, Any]  # who a stamp says we are, and
    client_capabilities: Mapping[str, Any]  # what we can do: set before `protocol_version`

    def request(self, exchange: Exchange) -> None: ...

    def abandon(self, exchange: Exchange, reason: str) -> None:
        """Its owner no longer wants the answer. Tells the server (`notifications/cancelled`) if it was sent, takes it
        out of the write queue if it was not; a late answer is dropped by id. Harmless when it has already ended."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None: ...

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None: ...
