"""What a door shows to its clients, and what carries out their requests.

The endpoint knows the protocol but no tools. An `Exposure` knows its tools and little of the protocol.
`proxy` shows exactly one tool, `mcp`, whatever is configured behind it. `direct` (in `_direct`) shows what
the servers have. With both, the `ClientHost` passes the servers' questions, logs and progress on to the
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..actors import in_turns
from ..protocol import jsonrpc as rpc
from ..protocol.errors import UsageError
from ..protocol.jsonrpc import RpcFault
from ._client_host import ClientHost
from ._jobs import Job
from ._mcp_tool import DEFINITION, NAME, McpTool, reading_call

if TYPE_CHECKING:
    from ..protocol.config import Config
    from ._room import HostedRoom

Progress = Mapping[str, Any]


class Client(Protocol):
    """One client, as an exposure sees it."""

    @property
    def modern(self) -> bool:
        """Whether its last request was of 2026-07-28. Such a client cannot be sent requests, only the answer
        that input is required."""
        ...

    @property
    def greeted(self) -> bool:
        """Whether it has sent `notifications/initialized`, so that it may be sent notifications. Never true
        from 2026-07-28 on."""
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it declared that it can answer."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. It is dropped while the client does not read what was sent before."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any], on_progress: Any = None) -> Mapping[str, Any]:
        """Send a request and return the client's result. Raises `RpcRefusal` for its error. Cancelling this
        cancels the request."""
        ...


class Exposure(Protocol):
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the client is told, in the protocol's form."""
        ...

    def instructions(self) -> str | None: ...

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        """The result of a list request, in a stable order. `modern`: for a request of 2026-07-28. None: there
        is no such list."""
        ...

    @property
    def settling_time(self) -> float:
        """The seconds that a client's first lists may wait for `settle`. 0: they are complete already."""
        ...

    async def settle(self) -> None:
        """Wait until everything that is being learned for the lists is known."""
        ...

    def begin(self, job: Job) -> bool:
        """Carry out a request: end `job` exactly once, now or later. False: there is no such method. Must not
        block. May raise `RpcFault`."""
        ...

    def came(self, client: Client) -> None:
        """A client declared its capabilities, for the first time or changed."""
        ...

    def heard(self, client: Client, method: str) -> None:
        """A client sent a notification that is not about a request."""
        ...

    def left(self, client: Client) -> None:
        """A client has disconnected."""
        ...


def left_out(config: Config) -> str | None:
    """What a client is told when files of the project are not obeyed."""
    if not config.untrusted:
        return None
    names = ", ".join(config.untrusted)
    return (
        f"Greenroom leaves out {names}: its owner has not trusted it. To see what it would do and to decide, the owner "
        "runs `greenroom trust` in the project's directory."
    )


class Proxy:
    """Every server behind the one `mcp` tool, for one client. `room` is open."""

    def __init__(self, room: HostedRoom) -> None:
        self._room = room
        self._client_host = ClientHost(room)
        self._tool = McpTool(room, suspended=self._client_host.suspended)
        self._level: str | None = None  # what servers were told last

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {"listChanged": False}, "logging": {}}

    def instructions(self) -> str | None:
        return left_out(self._room.config)

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [DEFINITION]} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        return 0.0  # its one tool is always the same

    async def settle(self) -> None:
        pass

    def begin(self, job: Job) -> bool:
        if job.method == "logging/setLevel":
            self._set_level(rpc.read_value(job.params.get("level")), job)
            return True
        if job.method != "tools/call":
            return False
        if job.is_large:
            job.run(partial(self._call_large, job))
        else:
            self._call(rpc.read_call(job.raw), job)
        return True

    async def _call_large(self, job: Job) -> None:
        """Begin a call whose params take long to decode."""
        self._call(await in_turns(reading_call(bytes(job.raw))), job)

    def _call(self, params: rpc.CallParams, job: Job) -> None:
        if params.name == NAME:
            if job.meta is not None:
                self._heed_level(job.meta.get(rpc.LOG_LEVEL_KEY))
            if not (job.modern and self._resumed(job)):
                self._tool.begin(params.arguments or {}, job)
        else:
            self._tool.refuse(params.name, job)

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
        self._client_host.came(client)

    def heard(self, client: Client, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: Client) -> None:
        self._client_host.left(client)
