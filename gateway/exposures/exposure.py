"""What a door shows to its clients, and what carries out their requests.

The endpoint knows the protocol but no tools. An `Exposure` knows its tools and little of the protocol. `proxy`
shows one tool, `mcp`, whatever is configured behind it, and `meta` a few in its place. `direct` shows what the
servers have. With each, the `ClientHost` passes the servers' requests, logs and
progress on to the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol

from ..requests import Job

if TYPE_CHECKING:
    from ...config.model import Config
    from ..next_steps import Commands


Progress = Mapping[str, Any]


class Client(Protocol):
    """One client, as an exposure sees it."""

    @property
    def modern(self) -> bool:
        """Whether its last request was of 2026-07-28. Such a client cannot be sent requests, only the answer
        that input is required."""
        ...

    @property
    def may_be_several(self) -> bool:
        """Whether several programs that say the same of themselves may be this client (2026-07-28 over HTTP)."""
        ...

    @property
    def initialized(self) -> bool:
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

    async def announce(self, client: Client) -> None:
        """What the client's own servers list may have changed: tell it which of its lists that changes."""
        ...

    @property
    def suspended(self) -> Sized:
        """The calls that wait until their client comes back with an answer. They have no open request meanwhile."""
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


def left_out(config: Config, commands: Commands) -> str | None:
    """What a client is told when files of the project are not obeyed."""
    if not config.untrusted:
        return None
    names = ", ".join(config.untrusted)
    return (
        f"Greenroom leaves out {names}: its owner has not trusted it. To see what it would do and to decide, the owner "
        f"runs `{commands.about('trust')}` in the project's directory."
    )
