"""The terms on which a server of the newer versions takes requests: what is added to each, and how an answer may go on.

What is added (its stamps) comes from what the call carries, and from this one place: what its client can answer, the
log level, the wish for a task. Nothing else changes a request on its way; its trace alone is made anew for each
attempt, where it is sent.

A result need not be final. The server may run a task for the call (`server_tasks`), or want more input first: servers
of 2026-07-28 do not ask their client while they work, but answer `input_required`. Either way the call stays in flight.

Most servers of the older versions have no such terms. Then a call pays for one look at None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol.errors import ProtocolFault
from ..protocol.jsonrpc.incoming import decode_result, wants_input
from ..protocol.jsonrpc.terms import LOG_LEVEL_KEY, MODERN_VERSIONS, WireFault
from ..protocol.result import check_input_size
from ..protocol.tasks import Task, has_tasks, made_in, runs_only_so, with_extension
from .server_tasks import makes_tasks

if TYPE_CHECKING:
    from .call import Call
    from .peer import Handshake, Listing, Peer
    from .server import ServerActor


class RequestTerms(msgspec.Struct, eq=False):
    """What one connected server takes. `introduces`: requests say what their client can answer, or some of them do
    (2026-07-28). `logs`: those that want logs say so, too. `has_tasks`: a call may be answered with a task.
    `only_as_task`: the tools that must be asked for one (2025-11-25)."""

    introduces: bool
    logs: bool
    has_tasks: bool
    only_as_task: frozenset[str] = frozenset()

    @classmethod
    def of(cls, peer: Peer, handshake: Handshake, listing: Listing) -> RequestTerms | None:
        """The terms of a server that has just been initialized. None: it takes requests as they are."""
        introduces = peer.protocol_version in MODERN_VERSIONS or peer.beside is not None
        has_tasks = makes_tasks(handshake)
        if not (introduces or has_tasks):
            return None
        terms = cls(introduces, introduces and "logging" in handshake.capabilities, has_tasks)
        terms.learn(handshake, listing)
        return terms

    def learn(self, handshake: Handshake, listing: Listing) -> None:
        """Which tools run only as tasks. A server that does not declare tasks is not asked for any."""
        asks = not handshake.is_stateless and has_tasks(handshake.protocol_version, handshake.capabilities)
        tools = (listing.tools or ()) if asks else ()
        self.only_as_task = frozenset(str(tool.get("name")) for tool in tools if runs_only_so(tool))

    # The stamps.

    def stamp(self, call: Call, actor: ServerActor) -> None:
        """Add to the request what its server wants to be told. May be done again."""
        if self.introduces:
            self._introduce(call, actor)
        if self.logs or actor.record.log_level is not None:
            self._ask_for_logs(call, actor)
        if self.only_as_task:
            self._ask_for_task(call, actor.context.settings.call_total_timeout)

    def _introduce(self, call: Call, actor: ServerActor) -> None:
        """Say what the client of this call can answer, as each request does from 2026-07-28 on. A client of that
        version is served in it, if the server can, even on a connection that was made for older clients."""
        peer, declaration = actor.peer, actor.record.declaration(actor, call)
        assert peer is not None
        call.version = peer.beside if declaration.modern else None
        if call.version is not None or peer.protocol_version in MODERN_VERSIONS:
            said = declaration.capabilities
            call.declares = with_extension(said) if self.has_tasks else said

    def _ask_for_logs(self, call: Call, actor: ServerActor) -> None:
        """Add the log level, as each request has one from 2026-07-28 on. A level that the caller set stays."""
        level = actor.record.level_for(actor, call)
        if level is not None and call.protocol_version in MODERN_VERSIONS:
            params = call.params or {}
            said: Mapping[str, Any] = params.get("_meta") or {}
            call.params = {**params, "_meta": {LOG_LEVEL_KEY: level, **said}}

    def _ask_for_task(self, call: Call, total: float) -> None:
        """The tool runs only as a task. In 2026-07-28 the server decides that, also for one call in that version."""
        params = call.params or {}
        if call.method == "tools/call" and call.version is None and params.get("name") in self.only_as_task:
            call.params = {**params, "task": {"ttl": round(total * 1000)}}

    # Results that are not final.

    def task_in(self, call: Call, result: bytes) -> Task | None:
        """The task that the server runs for this call, if this answer is one. Raises `ProtocolFault` for one that
        cannot be understood."""
        modern = call.protocol_version in MODERN_VERSIONS
        is_task = self.has_tasks and call.task is None and call.method == "tools/call"
        if not is_task or not (modern or "task" in (call.params or {})):
            return None
        try:
            return made_in(result, modern=modern)
        except WireFault as problem:
            server = call.owner.address.server if call.owner is not None else ""
            raise ProtocolFault(
                f"the answer is {problem}", server=server, reach=call.reach, tool=call.tool
            ) from None

    def input_in(self, call: Call, result: bytes) -> dict[str, Any] | None:
        """The result, decoded, if it asks for more input and the caller does not handle that itself. Raises
        `ProtocolFault` for one over the bound."""
        if not self.introduces or call.protocol_version not in MODERN_VERSIONS:
            return None
        if call.takes_inputs or not wants_input(result):
            return None
        check_input_size(call.owner.address.server if call.owner is not None else "", result)
        try:
            return decode_result(result)
        except WireFault:
            return None
