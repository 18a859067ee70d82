"""The exposure `proxy`: the one `mcp` tool for every server, and beside it the tools that were chosen or promoted.

What carries out the requests to the tool is in `_mcp_tool`, and what is shown beside it in `_beside`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..actors import in_turns
from ..protocol import jsonrpc as rpc
from ..protocol.errors import UsageError
from ..protocol.jsonrpc import RpcFault
from ._beside import Beside, BesideClient
from ._client_host import ClientHost
from ._exposure import Client, left_out
from ._jobs import Job
from ._mcp_tool import DEFINITION, FOR_MODELS, NAME, Hints, McpTool, read_plain_request, reading_call

if TYPE_CHECKING:
    from ._room import HostedRoom


class Proxy:
    """Every server behind the one `mcp` tool, for one client. `room` is open. `beside`: what clients that see the same
    are shown beside it."""

    _plain_name: str | None = (
        NAME  # a tool of ours whose requests are read in the short way, if they are plain
    )

    def __init__(self, room: HostedRoom, beside: Beside | None = None, *, hints: Hints = FOR_MODELS) -> None:
        self._room = room
        self._client_host = ClientHost(room)
        self.suspended = self._client_host.suspended
        self._shared = beside or Beside(room)
        self._beside = BesideClient(self._shared, room)
        suspended = self._client_host.suspended
        self._tool = McpTool(room, hints=hints, suspended=suspended, beside=self._beside)
        self._level: str | None = None  # what servers were told last

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {"listChanged": True}, "logging": {}}

    def instructions(self) -> str | None:
        return left_out(self._room.config, self._shared.commands)

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [DEFINITION, *self._beside.listed()]} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        if not self._shared.has_chosen:
            return 0.0  # its one tool is always the same
        return self._room.config.settings.first_list_timeout if self._room.is_learning else 0.0

    async def settle(self) -> None:
        await self._room.catalogued()

    async def announce(self, client: Client) -> None:
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
                self._call(rpc.read_call(job.raw), job)
        elif job.method == "logging/setLevel":
            self._set_level(rpc.read_value(job.params.get("level")), job)
        elif job.method == rpc.LISTEN:
            wanted = rpc.read_object(job.params.get("notifications", rpc.ABSENT))
            job.run(partial(self._beside.listen, job, wanted))
        else:
            return False
        return True

    async def _call_large(self, job: Job) -> None:
        """Begin a call whose params take long to decode."""
        self._call(await in_turns(reading_call(bytes(job.raw))), job)

    def _call(self, params: rpc.CallParams, job: Job) -> None:
        arguments = params.arguments or {}
        if params.name != NAME:
            if not self._beside.shows(params.name):
                self._tool.refuse(params.name, job, arguments)
                return
            arguments = {"tool": params.name, "args": arguments}
        if not self._continues(job):
            self._tool.begin(arguments, job)

    def _continues(self, job: Job) -> bool:
        """Heed what a call says beside its arguments. Whether it continues a suspended call. Raises `RpcFault`."""
        if job.meta is not None:
            self._heed_level(job.meta.get(rpc.LOG_LEVEL_KEY))
        return job.modern and self._resumed(job)

    def _set_level(self, level: object, job: Job) -> None:
        try:
            self._heed_level(level if isinstance(level, str) else str(level))
        except UsageError as error:
            job.fail(rpc.INVALID_PARAMS, f"Invalid params: {error.message}")
        else:
            job.answer({})

    def _heed_level(self, level: object) -> None:
        """Set the log level, if it is another one. A client of 2026-07-28 names it in each request. Each
        server is told in the way that its own version knows."""
        if isinstance(level, str) and level != self._level:
            self._room.set_log_level(level)
            self._level = level

    def _resumed(self, job: Job) -> bool:
        """Whether this request continues a suspended call, with the answer to its question. Raises
        `RpcFault`."""
        state = rpc.read_value(job.params.get("requestState"))
        if not isinstance(state, str):
            return False
        if self._client_host.suspended.resume(job, state) is None:
            text = "Invalid params: this requestState was not given here. Ask again without it."
            raise RpcFault(rpc.INVALID_PARAMS, text)
        return True

    def came(self, client: Client) -> None:
        self._beside.came(client)
        self._client_host.came(client)

    def heard(self, client: Client, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: Client) -> None:
        self._beside.left()
        self._client_host.left(client)
