"""The exposure `meta`: four tools, whatever is configured behind them.

A request to one of them becomes a request to the `mcp` tool, which knows how to search and how to call. So its answers
keep to the same bounds, are refused for the same reasons, and say what went wrong in the same words; only the next
step is worded for these tools. No tools stand beside them: whoever wants that uses `proxy`.

`mcp_provision` looks among the configured servers, and in a registry of others only if one is configured (`_registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...actors import in_turns
from ...protocol import jsonrpc as rpc
from ...protocol.errors import UsageError
from ...protocol.search import search
from .._beside import Beside
from .._commands import PLAIN, Commands
from .._jobs import Job
from .._mcp_tool import FOR_META, Mode, Request
from .._proxy import Proxy
from ._definitions import Execute, Provision, definitions, parse_meta

if TYPE_CHECKING:
    from .._room import SandboxRoom
    from ._runs import Runs


class Meta(Proxy):
    """Every server behind four tools, for one client. `room` is open. `runs`: of all clients of the room."""

    _plain_name = None

    def __init__(self, room: SandboxRoom, runs: Runs, commands: Commands = PLAIN) -> None:
        super().__init__(room, Beside(room, commands), hints=FOR_META)
        self._sandbox_room = room
        self._runs = runs

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {}, "logging": {}}

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": list(definitions())} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        return 0.0  # its tools are always the same

    def _call(self, params: rpc.CallParams, job: Job) -> None:
        arguments = params.arguments or {}
        try:
            request = parse_meta(params.name, arguments)
        except UsageError as error:
            self._tool.misread(error, arguments, job)
            return
        if request is None:
            self._tool.refuse(params.name, job, arguments)
        elif self._continues(job):
            pass
        elif isinstance(request, Execute):
            from ._execute import Execution

            Execution(self._sandbox_room, self._tool, self._runs, request.code).begin(
                self._client_host.suspended, job
            )
        elif isinstance(request, Provision):
            job.run(partial(self._provision, request, job))
        else:
            self._tool.carry_out(request, job)

    async def _provision(self, provision: Provision, job: Job) -> None:
        """Answer with the tools that fit, or with the tools of the server that fits best, once it has started. Unless
        one is started, what the registry has stands behind them."""
        server = await self._best_server(provision) if provision.starts else None
        registry = self._room.config.settings.registry
        if server is not None:
            self._tool.carry_out(Request(Mode.CONNECT, server), job)
        elif registry is None:
            self._tool.carry_out(Request(Mode.SEARCH, provision.words), job)
        else:
            from ._registry import look_up

            found = await look_up(registry, provision.words)
            self._tool.look_with(Request(Mode.SEARCH, provision.words), found, job)

    async def _best_server(self, provision: Provision) -> str | None:
        if provision.intent in self._room.config.servers:
            return provision.intent
        index = self._room.index
        await in_turns(index.preparing())
        found = search(index, provision.words, limit=1).matches
        return found[0].target.server if found else None
