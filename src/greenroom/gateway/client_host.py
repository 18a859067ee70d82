"""The `Host` of one client's session, whatever its door shows: passes servers' requests and notifications to it.

What belongs to this client is decided by the room (`supervisor.server_messages`). Here it is put into the client's
words. How a client is asked depends on its version (`input_required`). A client of the handshake era is sent
requests. Its servers are initialized by handshake, because only then can they ask. For a client of 2026-07-28 they
may speak either era.

A request names the server that makes it (`message_origin`), because the person who reads it has to know. When we ask
whether a call may be sent, no server is named. One about a task of the client names the task, and its answer what the
server named: each side has ids of its own. A server's requests and notifications pass without credentials, where
results lose these (`safety.scrubber`), and otherwise unchanged. Two kinds are sent by the door itself: changes of lists
are announced once for all servers, and updates of resources go to the client only if it subscribed to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from ..actors.host import ASKED_FOR, Declaration, ServerRequest, joined, not_found
from ..actors.server_reports import UPDATED
from ..catalogue.skills import EXTENSION as SKILLS
from ..catalogue.skills import has_skills
from ..config.model import Scrub
from ..protocol import jsonrpc as rpc
from ..protocol.address import Address
from ..protocol.bounds import EXTENSIONS_BYTES
from ..protocol.errors import RpcRefusal
from ..protocol.tasks import EXTENSION as TASKS
from ..protocol.tasks import RELATED
from ..protocol.version_differences import knows_notification, older_question
from ..safety.scrubber import names_credential, scrubbed_params, scrubbed_server_request
from .input_required import SuspendedCalls
from .message_origin import attributed_request, without_ours

if TYPE_CHECKING:
    from ..supervisor.port import RoomPort
    from .endpoint import ClientSession


OnUpdate = Callable[["ClientSession", str, Mapping[str, Any]], None]
_UNASKED_LEVEL: Final = "info"
_NOTHING: Final[Mapping[str, Any]] = {}
_OURS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)


def _nobody_watches(_client: ClientSession, _server: str, _params: Mapping[str, Any]) -> None:
    pass


class ClientHost:
    """Stands between one client and the servers. `room` is the client's session, or a whole room with one client.
    `on_update(client, server, params)` is called when a resource changes. `passes_extensions`: servers are told which
    extensions the client has. `door`: the kind of door, which decides where credentials are scrubbed."""

    def __init__(
        self,
        room: RoomPort,
        on_update: OnUpdate = _nobody_watches,
        *,
        door: Scrub = Scrub.MCP,
        passes_extensions: bool = False,
    ) -> None:
        self._room = room
        self._on_update = on_update
        self._door = door
        self._passes_extensions = passes_extensions
        self._client: ClientSession | None = None  # once it has said what it can answer
        self.suspended: SuspendedCalls = SuspendedCalls(room.catalogue.config.settings.call_total_timeout)
        room.answer_with(self)

    # ---- what the client does --------------------------------------------------------------------------------

    def came(self, client: ClientSession) -> None:
        """The client declared its capabilities."""
        self._client = client
        self._room.client_came()

    def said(self, method: str) -> None:
        """The client sent a notification."""
        if method == "notifications/roots/list_changed":
            self._room.roots_changed()

    def left(self, client: ClientSession) -> None:
        self._client = None
        self.suspended.left(client)

    # ---- Host ------------------------------------------------------------------------------------------------

    def declaration(self, address: Address) -> Declaration:
        client = self._client
        if client is None:
            return Declaration()
        said = client.capabilities
        capabilities = {name: said[name] for name in ASKED_FOR.values() if name in said}
        is_asked = bool(capabilities)
        if self._passes_extensions:
            capabilities |= extensions_of(said)
        if client.modern:
            return Declaration(capabilities, modern=True)
        # A client of the handshake era that sets no level gets whatever a server chooses to send.
        return Declaration(capabilities, by_handshake=is_asked, log_level=_UNASKED_LEVEL, modern=False)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        client = self._client
        if client is None or ASKED_FOR.get(request.method) not in client.capabilities:
            raise not_found(request.method)
        params = request.params
        if not request.is_ours:
            params = scrubbed_server_request(
                self._room.scrubber, self._door, request.server, request.method, params
            )
            params = attributed_request(request.server, request.method, params)
            params = older_question(request.method, params, client.version)
        task = client.task_of(request.call)
        if client.modern:
            if request.call is None and client.may_be_several:
                raise _nobody_knows(request)
            asked = {"method": request.method, "params": params}
            if task is not None:
                return without_ours(await task.ask(asked))
            return without_ours(await self.suspended.ask(client, request.server, asked, request.call))
        meta: Mapping[str, Any] = request.params.get("_meta") or {}
        progress = request.progress if "progressToken" in meta else None
        with nullcontext(_NOTHING) if task is None else task.asking() as mark:
            said = without_ours(await client.ask(request.method, _with_meta(params, mark), progress))
        return _with_meta(said, {RELATED: meta[RELATED]} if RELATED in meta else _NOTHING)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        client = self._client
        if method in _OURS or client is None or not knows_notification(method, client.version):
            return
        if method == UPDATED:
            self._on_update(client, address.server, params or {})
        elif not names_credential(self._room.scrubber, self._door, address.server, method):
            said = (
                None
                if params is None
                else scrubbed_params(self._room.scrubber, self._door, address.server, params)
            )
            client.tell(method, None if said is None else without_ours(said))


def _with_meta(params: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**params, "_meta": {**(params.get("_meta") or {}), **more}} if more else params


def _nobody_knows(request: ServerRequest) -> RpcRefusal:
    text = (
        f'Server "{request.server}" works on several calls of this client, or on none, and {request.method} does not '
        "say which call it is for. Over HTTP each call may come from another program, so nobody was asked. Make one "
        "call of this server at a time, or give each call a process of its own: set "
        '"isolation": "per_call" in the entry of the server.'
    )
    return RpcRefusal(rpc.INTERNAL_ERROR, text, {"reason": "several_calls", "server": request.server})


# ---- Extensions of the protocol, such as MCP Apps --------------------------------------------------------------------
#
# What each side declares of them passes through the direct door.
#
# The gateway has no part in an extension. What belongs to one travels in capabilities, in `_meta` and in resources, and
# passes as it is. So servers are told what their client declares (a shared one: what any of its clients declares), and
# a client is told what the servers that it sees have declared, joined.
#
# The gateway has a part in one extension, skills: it lists those of all servers, so it declares that itself.
#
# Two things do not pass. Tasks are the gateway's own on both sides, so it declares them itself. And a declaration above
# the bound does not, because in 2026-07-28 it goes out again with every request.
#
# Beside the `mcp` tool nothing is declared: a client has neither the tools' definitions nor the pages there, so a
# server does well to answer in text.

_KINDS: Final = ("extensions", "experimental")
_NOT_CARRIED: Final = frozenset({TASKS})


def extensions_of(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The extensions that these capabilities declare, without those that do not pass."""
    found: dict[str, Any] = {}
    for kind in _KINDS:
        said: object = capabilities.get(kind)
        if isinstance(said, Mapping):
            passed = {
                name: value
                for name, value in cast("Mapping[str, Any]", said).items()
                if name not in _NOT_CARRIED
            }
            if passed:
                found[kind] = passed
    return found if not found or len(rpc.encode(found)) <= EXTENSIONS_BYTES else {}


def extensions_of_all(capabilities: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The extensions that several servers declare, joined; of skills, what we do ourselves. None: nothing is known of
    a server yet. It may have skills, and many clients look only once whether there may be any."""
    known = list(capabilities)
    said = dict(joined(Declaration(extensions_of(each)) for each in known if each is not None).capabilities)
    if has_skills(said) or None in known:
        said["extensions"] = {**said.get("extensions", {}), SKILLS: {"directoryRead": True}}
    return said
