"""The direct door's exposure: it sends each request to its server, under the server's own name for the item.

The short way is for a listed name. Finding it is a dict look-up, and the parameters stay bytes except for
that name. The call starts in the step that read the request and ends by callback (`_calls`), and its result
is spliced into the answer: no task, no decoding. The long way, in a task, is for requests that must wait for
more than a call: a name that the catalogue does not have yet but whose prefix names a server; watching a
resource; completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ...actors import in_turns
from ...protocol import jsonrpc as rpc
from ...protocol.audit import AUDITED
from ...protocol.config import Scrub
from ...protocol.errors import AmbiguousTool, GreenroomError, UnknownTool
from ...protocol.index import Ambiguous, Missing, Target
from ...protocol.jsonrpc import RpcFault
from ...protocol.plain_text import unhidden
from .._asked import asked_in
from .._client_host import ClientHost
from .._commands import PLAIN, Commands
from .._exposure import Client, left_out
from .._extensions import extensions_of_all
from .._jobs import Job
from .._room import DirectRoom
from .._suspended import StateSigner
from . import _answers as answers
from ._calls import DirectCalls
from ._direct_client import DirectClient, DirectClients
from ._shown import Indexed, Shown


class Common:
    """What the clients of the direct door have in common: the lists, whom to tell of changes, one key."""

    def __init__(self, room: Indexed, commands: Commands = PLAIN) -> None:
        self.room = room
        self.commands = commands
        self.shown = Shown(room, commands)
        self.clients = DirectClients()
        self.signer = StateSigner()

    async def announce(self) -> None:
        """Tell all clients which lists have changed since the last time."""
        for change in await in_turns(self.shown.changing()):
            self.clients.tell_change(change)


class Direct:
    """Everything the servers have, for one client. `room` is open. Clients of one gateway share `common`."""

    def __init__(self, room: DirectRoom, common: Common | None = None) -> None:
        common = common or Common(room)
        self._room = room
        self._common = common
        self._own: Shown | None = None  # what this client alone is shown, once that is something else
        self._direct_clients = common.clients
        self._client_host = ClientHost(room, self._tell_update, door=Scrub.ALL, passes_extensions=True)
        self.suspended = self._client_host.suspended
        self._calls = DirectCalls(room, self._direct_clients, self._client_host.suspended, common.signer)
        self._begin: Final[Mapping[str, Callable[[Job], None]]] = {
            "tools/call": self._call,
            "resources/read": self._read,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            rpc.LISTEN: self._listen,
            "logging/setLevel": self._set_level,
        }

    # ---- what it shows ---------------------------------------------------------------------------------------

    @property
    def _shown(self) -> Shown:
        """The lists, which are its own from when its own servers have listed something else than the room knows."""
        if self._own is None and self._room.index is not self._common.room.index:
            self._own = Shown(self._room, self._common.commands, listed=self._common.shown)
        return self._own or self._common.shown

    async def announce(self, client: Client) -> None:
        """Tell the client which lists of its own have changed since the last time. Others' are told by `Common`."""
        shown = self._shown
        if shown is self._own:
            for change in await in_turns(shown.changing()):
                self._direct_client_of(client).tell_change(change)

    def capabilities(self) -> Mapping[str, Any]:
        known = (self._room.entry(name) for name in self._room.index.servers)
        return {
            **extensions_of_all(entry.capabilities for entry in known if entry is not None),
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def instructions(self) -> str | None:
        """What is left out, and every server's own instructions, under its name."""
        known = {name: self._room.entry(name) for name in self._room.index.servers}
        said = {
            name: unhidden(entry.instructions)
            for name, entry in known.items()
            if entry is not None and entry.instructions
        }
        parts = [
            left_out(self._room.config, self._common.commands),
            *(f"# {name}\n\n{text}" for name, text in said.items()),
        ]
        return "\n\n".join(part for part in parts if part) or None

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return self._shown.listing(method, modern=modern)

    @property
    def settling_time(self) -> float:
        return self._room.config.settings.first_list_timeout if self._room.is_learning else 0.0

    async def settle(self) -> None:
        """Many clients list only once, and do not react when a later `list_changed` announces changes."""
        await self._room.catalogued()

    # ---- clients ---------------------------------------------------------------------------------------------

    def came(self, client: Client) -> None:
        self._direct_clients.of(client, self._room)
        self._client_host.came(client)

    def heard(self, client: Client, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: Client) -> None:
        self._client_host.left(client)
        direct_client = self._direct_clients.pop(client, None)
        if direct_client is not None:
            direct_client.leave()

    def _tell_update(self, client: Client, server: str, params: Mapping[str, Any]) -> None:
        direct_client = self._direct_clients.get(client)
        if direct_client is not None:
            direct_client.tell_update(server, params)

    def _direct_client(self, job: Job) -> DirectClient:
        return self._direct_client_of(job.client)

    def _direct_client_of(self, client: Client) -> DirectClient:
        return self._direct_clients.of(client, self._room)

    # ---- requests --------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> bool:
        begin = self._begin.get(job.method)
        if begin is None:
            return False
        try:
            begin(job)
        except GreenroomError as error:
            _refuse(self._room, job, error)
        return True

    def _call(self, job: Job) -> None:
        plain = job.plain
        name = answers.text_of(job, "name") if plain is None else plain.name
        # What a call may name is a matter of the index alone, whoever else is shown the same.
        target = (self._own or self._common.shown).tool_in(self._room.index, name)
        if target is None:
            self._call_unlisted(name, job)
        else:
            self._calls.start_tool(job, target)

    def _call_unlisted(self, name: str, job: Job) -> None:
        """Handle a name that is not listed: it has another spelling, is not known yet, or does not exist."""
        found = self._room.index.resolve(name)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates)
        if isinstance(found, Missing) and found.servers:
            job.run(partial(self._find_and_call, name, job))
        else:
            self._start_found(name, found, job)

    def _start_found(self, name: str, found: Target | Missing, job: Job) -> None:
        if isinstance(found, Missing) or not self._room.index.is_direct(found):
            raise UnknownTool(name)
        self._calls.start_tool(job, found)

    async def _find_and_call(self, name: str, job: Job) -> None:
        try:
            with self._room.noting(asked_in(job)):
                found = await self._room.find(name)
            self._start_found(name, found, job)
        except GreenroomError as error:
            _refuse(self._room, job, error)

    def _read(self, job: Job) -> None:
        place = self._direct_client(job).locate(answers.text_of(job, "uri"))
        self._calls.start(job, place.server, "uri", place.original)

    def _get_prompt(self, job: Job) -> None:
        name = answers.text_of(job, "name")
        found = self._room.index.resolve_prompt(name)
        if isinstance(found, Target):
            self._calls.start_prompt(job, found)
        else:
            job.run(partial(self._find_prompt, name, job))

    async def _find_prompt(self, name: str, job: Job) -> None:
        try:
            with self._room.noting(asked_in(job)):
                found = await self._room.find_prompt(name)
            self._calls.start_prompt(job, found)
        except GreenroomError as error:
            _refuse(self._room, job, error)

    def _complete(self, job: Job) -> None:
        ref = rpc.read_value(job.params.get("ref"))
        if not isinstance(ref, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: ref must be an object.")
        job.run(partial(self._find_and_complete, ref, job))

    async def _find_and_complete(self, ref: Mapping[str, Any], job: Job) -> None:
        try:
            server, own = await self._room.find_reference(ref)
            self._calls.start(job, server, "ref", own)
        except GreenroomError as error:
            answers.refuse(job, error)

    def _subscribe(self, job: Job) -> None:
        job.run(partial(self._direct_client(job).subscribe, job, answers.text_of(job, "uri")))

    def _unsubscribe(self, job: Job) -> None:
        self._direct_client(job).unsubscribe(job, answers.text_of(job, "uri"))

    def _listen(self, job: Job) -> None:
        wanted = rpc.read_value(job.params.get("notifications"))
        if not isinstance(wanted, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: notifications must be an object.")
        job.run(partial(self._direct_client(job).listen, job, wanted))

    def _set_level(self, job: Job) -> None:
        self._room.set_log_level(answers.text_of(job, "level"))
        job.answer({})


def _refuse(room: DirectRoom, job: Job, error: GreenroomError) -> None:
    if job.method in AUDITED:
        room.turned_away(asked_in(job), error)
    answers.refuse(job, error)
