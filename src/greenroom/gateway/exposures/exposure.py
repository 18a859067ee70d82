"""What a door shows to its clients, and what carries out their requests.

The endpoint knows the protocol but no tools. An `Exposure` knows its tools and little of the protocol. `proxy` shows
one tool, `mcp`, for all servers, and `meta` a few tools in its place. `direct` shows what the servers have. With each
of them, the `ClientHost` passes the servers' requests, logs and progress on to the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol

from ..jobs import Job

if TYPE_CHECKING:
    from ...config.model import Config
    from ..endpoint import ClientSession
    from ..next_steps import Commands


class Exposure(Protocol):
    def capabilities(self) -> Mapping[str, Any]:
        """The server capabilities that the client is told, in the protocol's form."""
        ...

    def instructions(self) -> str | None: ...

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        """The result of a list request, in a stable order; None if the exposure has no such list. `modern`: for a
        request of 2026-07-28."""
        ...

    @property
    def settling_time(self) -> float:
        """The seconds for which `settle` may delay a client's first lists. 0: the lists are complete already."""
        ...

    async def settle(self) -> None:
        """Wait until all servers are known whose lists are being read now."""
        ...

    async def announce(self, client: ClientSession) -> None:
        """The client's own servers may have listed something else: announce those of its lists that changed."""
        ...

    @property
    def suspended(self) -> Sized:
        """The calls that wait until their client comes back with an answer. They have no open request meanwhile."""
        ...

    def begin(self, job: Job) -> bool:
        """Carry out a request: end `job` exactly once, now or later. Returns False if there is no such method. Must not
        block. May raise `RpcFault`."""
        ...

    def came(self, client: ClientSession) -> None:
        """A client has declared its capabilities, for the first time or anew."""
        ...

    def heard(self, client: ClientSession, method: str) -> None:
        """A client sent a notification that is not about a request."""
        ...

    def left(self, client: ClientSession) -> None:
        """A client has disconnected."""
        ...


def left_out(config: Config, commands: Commands) -> str | None:
    """The text that tells a client which files of the project are not used because nobody has trusted them."""
    if not config.untrusted:
        return None
    names = ", ".join(config.untrusted)
    return (
        f"Greenroom leaves out {names}: its owner has not trusted it. To see what it would do and to decide, the owner "
        f"runs `{commands.about('trust')}` in the project's directory."
    )
