"""What a door shows to its clients, and who carries out what they ask for.

The endpoint knows the protocol and not one tool; an `Exposure` knows its tools and little of the protocol. `proxy`
shows exactly one tool, `mcp`, whatever is configured behind it; `direct` (in `_direct`) shows what the servers have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from . import _rpc as rpc
from ._jobs import Job
from ._mcp_tool import DEFINITION, NAME, McpTool

if TYPE_CHECKING:
    import anyio.abc

Progress = Mapping[str, Any]


class Client(Protocol):
    """One client, as an exposure sees it."""

    @property
    def modern(self) -> bool:
        """Its last request was of 2026-07-28: it cannot be asked, only answered that input is needed."""
        ...

    @property
    def greeted(self) -> bool:
        """It has said that it is ready to be told things. Never, from 2026-07-28 on."""
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it declared that it can answer."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """A notification. Left out while the client does not read what was sent before."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any], on_progress: Any = None) -> Mapping[str, Any]:
        """Its answer to a request of ours. Raises `RpcRefusal` for its error; cancelling tells it so."""
        ...


class Exposure(Protocol):
    def capabilities(self) -> Mapping[str, Any]:
        """What it can do, as the protocol declares it."""
        ...

    def instructions(self) -> str | None: ...

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        """The result of a list, in a stable order, for a client of either era; None: it has no such list."""
        ...

    @property
    def settling_time(self) -> float:
        """Seconds that a client's first lists may wait for `settle`; 0: they are as whole as they will be."""
        ...

    async def settle(self) -> None:
        """Wait until what the lists are made of is known, as far as it is being found out."""
        ...

    def begin(self, job: Job) -> bool:
        """Carry out a request; end `job` exactly once, now or later. False: it has no such method. Must not block.
        May raise `RpcFault`."""
        ...

    def came(self, client: Client) -> None:
        """A client said what it can do: at first, and whenever that changes."""
        ...

    def heard(self, client: Client, method: str) -> None:
        """A notification of a client that is not about a request."""
        ...

    def left(self, client: Client) -> None: ...

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """A task of the door's, for whatever the exposure has to look after. Runs until cancelled."""
        ...


class Proxy:
    """Every server behind the one `mcp` tool."""

    def __init__(self, tool: McpTool) -> None:
        self._tool = tool

    def capabilities(self) -> Mapping[str, Any]:
        return {"tools": {"listChanged": False}}

    def instructions(self) -> str | None:
        return None

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return {"tools": [DEFINITION]} if method == "tools/list" else None

    @property
    def settling_time(self) -> float:
        return 0.0  # its one tool is always the same

    async def settle(self) -> None:
        pass

    def begin(self, job: Job) -> bool:
        if job.method != "tools/call":
            return False
        params = rpc.read_call(job.raw)
        if params.name == NAME:
            self._tool.begin(params.arguments or {}, job)
        else:
            self._tool.refuse(params.name, job)
        return True

    def came(self, client: Client) -> None:
        pass

    def heard(self, client: Client, method: str) -> None:
        pass

    def left(self, client: Client) -> None:
        pass

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
