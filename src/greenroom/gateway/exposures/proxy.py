"""The exposure `proxy`: the one `mcp` tool for every server, and beside it the tools that were chosen or promoted.

What carries out the requests to the tool is in `mcp_tool`. A gateway lists the tool long before anybody calls it, so
that is loaded in a thread when a client has come (`tool_class`), and with the first call at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from ...actors.workers import aside
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import PROMOTED
from ...protocol.errors import UsageError
from ...protocol.jsonrpc.terms import RpcFault
from ..client_host import ClientHost
from ..jobs import Job, acknowledged
from ..next_steps import PLAIN, Commands
from .exposure import left_out
from .tool_definition import DEFINITION, FOR_MODELS, NAME, Hints, read_plain_request

if TYPE_CHECKING:
    from ...catalogue.namespace import Target
    from ...config.model import Config
    from ...supervisor.port import RoomCatalogue, RoomPort
    from ...supervisor.profiles import ProfileView
    from ..endpoint import ClientSession
    from ..input_required import SuspendedCalls
    from .direct_lists import ShownLists
    from .mcp_tool import McpTool


def tool_class() -> type[McpTool]:
    """What carries out the requests to the tool. Loading it takes a few milliseconds."""
    from .mcp_tool import McpTool

    return McpTool


class Proxy:
    """Every server behind the one `mcp` tool, for one client. `room` is open. `beside`: the tools that are shown beside
    it to all clients of the same profile. `frequent`: those that are shown to this client from the beginning.
    `on_answer` is told the name of each tool whose call was answered."""

    # A tool of ours whose requests are read in the short way, if they are plain.
    _plain_name: str | None = NAME
    _names: Container[str] = (NAME,)  # of our tools

    def __init__(
        self,
        room: RoomPort,
        beside: ChosenTools | None = None,
        *,
        hints: Hints = FOR_MODELS,
        frequent: Sequence[str] = (),
        on_answer: Callable[[str], None] | None = None,
    ) -> None:
        self._room = room
        self._client_host = ClientHost(room)
        self.suspended: SuspendedCalls = self._client_host.suspended
        self._shared = beside or ChosenTools(room.catalogue)
        self._beside = BesideClient(self._shared, room.catalogue, frequent)
        self._hints = hints
        self._on_answer = on_answer
        self._level: str | None = None  # what servers were told last

    @cached_property
    def _tool(self) -> McpTool:
        return tool_class()(
            self._room,
            hints=self._hints,
            suspended=self.suspended,
            promote=self._beside.promote,
            on_answer=self._on_answer,
        )

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {"listChanged": True}, "logging": {}}

    def instructions(self) -> str | None:
        return left_out(self._room.catalogue.config, self._shared.commands)

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [DEFINITION, *self._beside.listed()]} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        if not self._shared.has_chosen:
            return 0.0  # its one tool is always the same
        return (
            self._room.catalogue.config.settings.first_list_timeout
            if self._room.catalogue.is_learning
            else 0.0
        )

    async def settle(self) -> None:
        await self._room.catalogued()

    async def announce(self, client: ClientSession) -> None:
        self._beside.look_at_own()

    def begin(self, job: Job) -> bool:
        plain = job.plain
        if plain is not None and plain.name == self._plain_name and not job.is_large:
            request = read_plain_request(plain.arguments)
            if request is not None:
                self._tool.call(request, job)
                return True
        if job.method == "tools/call":
            if job.is_large:
                job.run(partial(self._call_large, job))
            else:
                call = rpc.read_call(job.raw)
                self._call(call.name, call.arguments, job)
        elif job.method == "logging/setLevel":
            self._set_level(rpc.read_value(job.params.get("level")), job)
        elif job.method == rpc.LISTEN:
            wanted = rpc.read_object(job.params.get("notifications", rpc.ABSENT))
            job.run(partial(self._beside.listen, job, wanted))
        else:
            return False
        return True

    async def _call_large(self, job: Job) -> None:
        """Begin a call whose params take long to read."""
        from .large_call import read_large_call

        call = await aside(partial(read_large_call, job.raw, self._names))
        self._call(call.name, call.arguments, job)

    def _call(self, name: str, arguments: Mapping[str, Any] | msgspec.Raw | None, job: Job) -> None:
        """Carry out a call of a tool. The arguments of a large call of a tool that is not ours are still JSON."""
        if name != NAME:
            if not self._beside.shows(name):
                self._tool.refuse(name, job, arguments or {})
                return
            arguments = {"tool": name, "args": arguments}
        if not self._continues(job):
            assert not isinstance(arguments, msgspec.Raw)
            self._tool.begin(arguments or {}, job)

    def _continues(self, job: Job) -> bool:
        """Read what the params have beside name and arguments, such as a log level. Returns whether the request
        continues a suspended call, or begins it anew, and so is no call of its own. Raises `RpcFault`."""
        if job.meta is not None:
            self._heed_level(job.meta.get(rpc.LOG_LEVEL_KEY))
        return job.modern and (self._resumed(job) or self.suspended.asks_again(job))

    def _set_level(self, level: object, job: Job) -> None:
        try:
            self._heed_level(level if isinstance(level, str) else str(level))
        except UsageError as error:
            job.fail(rpc.INVALID_PARAMS, f"Invalid params: {error.message}")
        else:
            job.answer({})

    def _heed_level(self, level: object) -> None:
        """Tell the servers this log level, if it is a new one. A client of 2026-07-28 names it in each request. Each
        server is told in the way of its protocol version."""
        if isinstance(level, str) and level != self._level:
            self._room.set_log_level(level)
            self._level = level

    def _resumed(self, job: Job) -> bool:
        """Whether this request continues a suspended call, because it has the answer to a server request. Raises
        `RpcFault`."""
        state = rpc.read_value(job.params.get("requestState"))
        if not isinstance(state, str):
            return False
        if self._client_host.suspended.resume(job, state) is None:
            text = "Invalid params: this requestState was not given here. Ask again without it."
            raise RpcFault(rpc.INVALID_PARAMS, text)
        return True

    def came(self, client: ClientSession) -> None:
        self._beside.came(client)
        self._client_host.came(client)

    def heard(self, client: ClientSession, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: ClientSession) -> None:
        self._beside.left()
        self._client_host.left(client)


# ---- What a client of the `mcp` tool is shown beside it --------------------------------------------------------------
#
# Tools that were chosen, and tools that were promoted.
#
# `directTools` chooses: a list of tools, or `true` for one server. These come first, sorted by name, so the list is the
# same as long as the servers have the same tools, and a client's prompt cache holds. (The setting `true` chooses
# nothing here: whoever wants all tools shown uses `direct`.)
#
# A model may promote a tool that it has found, for its own session. Promoted tools come after the chosen ones, in the
# order in which they were promoted, so the part of the list that a client had already stays as it is. There is a bound;
# over it, the promoted tool that was not called for longest leaves the list. The tools that were called in most
# conversations (`frequent_tools`) are promoted when a client comes.
#
# A call of any of them is a call through the `mcp` tool: it is bounded, transformed and refused like one. A change is
# announced to a client of the handshake era, and to a client of 2026-07-28 that listens for it.
#
# `ChosenTools` has what is the same for all clients with one profile. It uses the direct door's lists, which are
# loaded only when there is something to show. Changes are found by comparing with the list that was shown before. For
# a client that asked before they were loaded, that list was empty.

CHANGED: Final = "notifications/tools/list_changed"
_FLAG: Final = "toolsListChanged"


class ChosenTools:
    """The chosen tools of a room, for all clients with the same profile."""

    def __init__(self, catalogue: RoomCatalogue | ProfileView, commands: Commands = PLAIN) -> None:
        self.catalogue = catalogue
        self.commands = commands
        self.clients: dict[BesideClient, None] = {}
        self._config: Config | None = None
        self._has_chosen = False
        self._shown: ShownLists | None = None
        self._listed_none = False

    @property
    def has_chosen(self) -> bool:
        """Whether the configuration chooses any tools."""
        config = self.catalogue.config
        if config is not self._config:
            rules = (config.settings.direct_tools, *(each.direct_tools for each in config.servers.values()))
            self._config = config
            self._has_chosen = isinstance(rules[0], tuple) or any(rules[1:])
        return self._has_chosen

    def shown(self) -> ShownLists:
        """The list, made when it is first needed."""
        if self._shown is None:
            from .direct_lists import ShownLists

            self._shown = ShownLists(
                self.catalogue, self.commands, beside=True, listed_none=self._listed_none
            )
        return self._shown

    def listing(self) -> Sequence[Mapping[str, Any]]:
        """The chosen tools as they are listed."""
        if not self.has_chosen:
            self._listed_none = True
            return ()
        lists = self.shown().listing("tools/list", modern=True) or {"tools": ()}
        return lists["tools"]

    @property
    def may_change(self) -> bool:
        return self._shown is not None or self.has_chosen

    async def announce(self) -> None:
        """The index has just changed: tell the clients whose list changed with it."""
        is_changed = bool(await self.shown().look())
        for client in tuple(self.clients):
            client.look(is_changed=is_changed)


class BesideClient:
    """The tools that one client is shown beside the `mcp` tool."""

    def __init__(
        self,
        beside: ChosenTools,
        catalogue: RoomCatalogue,
        frequent: Sequence[str],
    ) -> None:
        """`catalogue`: what this client sees of the room. `frequent`: the names that are promoted before it asks for
        any; those that it cannot see are not listed."""
        self._beside = beside
        self._catalogue = catalogue
        # What is chosen for it, once its own servers have listed something else.
        self._own: ChosenTools | None = None
        self._client: ClientSession | None = None
        # As last listed, in this order.
        self._promoted: dict[str, Mapping[str, Any] | None] = dict.fromkeys(frequent)
        # The same names, the last one called is the last.
        self._used: dict[str, None] = dict.fromkeys(reversed(frequent))
        self._streams: list[Mapping[str, Any]] = []  # the `_meta` of each that listens

    def came(self, client: ClientSession) -> None:
        self._client = client
        self._beside.clients[self] = None

    def left(self) -> None:
        self._client = None
        self._beside.clients.pop(self, None)

    # ---- the list --------------------------------------------------------------------------------------------

    @property
    def _chosen(self) -> ChosenTools:
        if self._own is None and self._catalogue.index is not self._beside.catalogue.index:
            self._own = ChosenTools(self._catalogue, self._beside.commands)
        return self._own or self._beside

    def listed(self) -> Iterator[Mapping[str, Any]]:
        """The tools, as they are listed after the `mcp` tool."""
        yield from (tool for tool in self._chosen.listing() if tool["name"] != NAME)
        self._renew()
        yield from (record for record in self._promoted.values() if record is not None)

    def shows(self, name: str) -> bool:
        """Whether the tool of this name is shown. For a promoted tool, this counts as a use."""
        if name in self._promoted:
            del self._used[name]
            self._used[name] = None
            if self._promoted[name] is None:
                self._renew()  # it has not listed its tools yet
            return self._promoted[name] is not None
        return self._chosen.has_chosen and self._chosen.shown().tool(name) is not None and name != NAME

    def _renew(self) -> bool:
        """Read the promoted tools again. Returns whether something has changed."""
        before = dict(self._promoted)
        for name in before:
            self._promoted[name] = self._record(self._catalogue.index.get(name))
        return before != self._promoted

    def _record(self, target: Target | None) -> Mapping[str, Any] | None:
        """The tool as it is listed. None if it is gone, cannot be listed, or has been chosen meanwhile."""
        index, shown = self._catalogue.index, self._chosen.shown()
        if (
            target is None
            or target.kind != "tool"
            or target.name == NAME
            or index.is_direct(target, beside=True)
        ):
            return None
        return shown.as_listed(index, target)

    # ---- promoting -------------------------------------------------------------------------------------------

    def promote(self, target: Target) -> tuple[str, ...] | None:
        """List the tool from now on. Returns the names of all that are promoted. None: it cannot be listed, or the
        client cannot be told that its list has changed."""
        if self._client is None or not (self._client.initialized or self._streams):
            return None
        if self._promoted.get(target.name) is not None or self._catalogue.index.is_direct(
            target, beside=True
        ):
            return tuple(self._promoted)
        record = self._record(target)
        if record is None:
            return None
        while len(self._promoted) >= PROMOTED:
            oldest = next(iter(self._used))
            del self._used[oldest], self._promoted[oldest]
        self._promoted[target.name], self._used[target.name] = record, None
        self._tell()
        return tuple(self._promoted)

    # ---- telling ---------------------------------------------------------------------------------------------

    def look(self, *, is_changed: bool) -> None:
        """The index has changed: announce the list if it is another now. `is_changed`: the chosen tools have
        changed."""
        if self._renew() or is_changed:
            self._tell()

    def look_at_own(self) -> None:
        """This client's own servers have listed something."""
        before, chosen = self._own, self._chosen
        is_changed = chosen is self._own and (before is None or bool(chosen.shown().changes()))
        self.look(is_changed=is_changed and chosen.has_chosen)

    def _tell(self) -> None:
        client = self._client
        if client is None:
            return
        if client.initialized:
            client.tell(CHANGED)
        for meta in self._streams:
            client.tell(CHANGED, {"_meta": meta})

    async def listen(self, job: Job, wanted: Mapping[str, Any]) -> None:
        """Keep a stream of 2026-07-28 open until the client ends it."""
        meta = job.subscription
        hears = wanted.get(_FLAG) is True
        if hears:
            self._streams.append(meta)
        try:
            async with acknowledged(job, {_FLAG: True} if hears else {}):
                await anyio.sleep_forever()
        finally:
            if hears:
                self._streams.remove(meta)
