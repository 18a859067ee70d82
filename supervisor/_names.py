"""From names to servers, for one `Caller`.

A name is looked up in the router's published index. If an unknown name has a server's prefix, that server is connected
(if its gate lets it) and the name is looked up again. The server is leased until the call is made, so that it is not
evicted in between.

A URI that the index does not know goes to the only server that may have it. If there are several, the request is
refused with these candidates, so that no server gets a request that was not meant for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ..actors import Sync, in_turns
from ..protocol.errors import (
    AmbiguousTool,
    CallError,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UsageError,
    some_of,
)
from ..protocol.index import Ambiguous, Missing, Place, Target
from ._caller import Caller
from ._given import name_of, text


class Names:
    """Nothing is kept here: each look-up reads the index of the moment."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def find(self, name: str, server: str | None, leases: ExitStack, wait_by: float) -> Target:
        """The tool of this name. A server that was connected for it is kept connected until `leases` is closed.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and what kept the server from connecting.
        """
        caller = self._caller
        name_of(name, "a tool")
        await in_turns(caller.index.preparing_names())
        found = self.resolve(name, server)
        if not isinstance(found, Missing):
            return found
        refused: CallError | None = None
        connected = list[str]()
        # A server that is given by name is asked even if the index has nothing of it: a disabled one says so.
        for candidate in found.servers or ((server,) if server is not None else ()):
            # One at a time: do not hold the slot of one server while waiting for the slot of the next.
            with ExitStack() as lease:
                lease.callback(caller.lease(candidate))
                try:
                    if await caller.connect(candidate, wait_by=wait_by):
                        connected.append(candidate)
                except CallError as error:
                    refused = refused or error
                    continue
                index = await caller.live.router.ref.ask(Sync)
                if index.get(name) is None:
                    await in_turns(index.preparing_names())
                again = self.resolve(name, server)
                if not isinstance(again, Missing):
                    leases.push(lease.pop_all())
                    return again
        if refused is not None:
            raise refused
        await in_turns(caller.index.preparing())
        raise self.unknown(name, found.servers, connected)

    def resolve(self, name: str, server: str | None) -> Target | Missing:
        """Look a tool's name up in the index. Raises `AmbiguousTool`, `UnknownServer`."""
        self._caller.check_server(server)
        found = self._caller.index.resolve(name_of(name, "a tool"), server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates)
        return found

    def unknown(self, name: str, servers: Sequence[str] = (), connected: Sequence[str] = ()) -> UnknownTool:
        """The error for a name that no server has, with similar names. `connected`: who was connected to look."""
        index = self._caller.index
        names = [target.name for server in servers[:1] for target in index.tools(server)]
        message = f'Tool "{name}" not found.'
        message += f' Server "{servers[0]}" has: {some_of(names)}.' if names else ""
        return UnknownTool(name, message=message, suggestions=index.suggest(name), connected=connected)

    # ---- prompts and resources --------------------------------------------------------------------------------------

    async def find_prompt(self, name: str, server: str | None) -> Target:
        """The prompt of this name. Raises `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`, and what kept the server
        from connecting."""
        caller = self._caller
        caller.check_server(server)
        found = self._resolve_prompt(name, server)
        wait_by = caller.wait_by()
        for candidate in found.servers if isinstance(found, Missing) else ():
            await caller.connect(candidate, wait_by=wait_by)
            await caller.live.router.ref.ask(Sync)
            again = self._resolve_prompt(name, server)
            if isinstance(again, Target):
                return again
        if isinstance(found, Missing):
            raise UnknownPrompt(name, [target.name for target in caller.index.prompts(server)])
        return found

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None
    ) -> tuple[str, Mapping[str, Any]]:
        """(server, the ref in that server's own names) for a completion. Raises as `Calls.complete` does."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                target = await self.find_prompt(name, server)
                return target.server, {**ref, "name": target.original}
            case {"type": "ref/resource", "uri": str(uri)}:
                self._caller.check_server(server)
                place = _placed(uri, server, self._caller.index.resolve_template(uri))
                return place.server, {**ref, "uri": place.original}
            case _:
                raise UsageError(
                    'A completion is for {"type": "ref/prompt", "name": …} or {"type": "ref/resource", "uri": …}.'
                )

    def locate(self, uri: str, server: str | None) -> Place:
        """Where a resource is read. Raises `UnknownResource`, `AmbiguousTool`, `UnknownServer`."""
        self._caller.check_server(server)
        return _placed(uri, server, self._caller.index.resolve_uri(text(uri, "A URI")))

    def _resolve_prompt(self, name: str, server: str | None) -> Target | Missing:
        found = self._caller.index.resolve_prompt(name_of(name, "a prompt"), server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates, what="Prompt")
        return found


def _placed(uri: str, server: str | None, found: Place | Ambiguous | Missing) -> Place:
    if server is not None:
        own = isinstance(found, Place) and found.server == server
        return found if own and isinstance(found, Place) else Place(uri, server, uri, record={})
    if isinstance(found, Place):
        return found
    if isinstance(found, Ambiguous):
        raise AmbiguousTool(uri, found.candidates, what="Resource")
    if len(found.servers) == 1:
        return Place(uri, found.servers[0], uri, record={})
    raise UnknownResource(uri, found.servers)
