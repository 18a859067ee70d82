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
    from ..client_tasks import ClientTask
    from ..next_steps import Commands


Progress = Mapping[str, Any]


class ClientView(Protocol):
    """One client, as an exposure sees it: a `ClientSession` of `endpoint`, which has an exposure and knows no tools."""

    @property
    def modern(self) -> bool:
        """Whether its last request was of 2026-07-28. Such a client cannot be sent requests. Instead, its own request
        is answered with `input_required`."""
        ...

    @property
    def version(self) -> str:
        """The version that it speaks, or 2026-07-28."""
        ...

    @property
    def may_be_several(self) -> bool:
        """Whether several programs may be this client, because they send the same token and client info (2026-07-28
        over HTTP)."""
        ...

    @property
    def initialized(self) -> bool:
        """Whether it has sent `notifications/initialized`, so that it may be sent notifications. Never true
        from 2026-07-28 on."""
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The client capabilities that it declared: which server requests it can answer."""
        ...

    def task_of(self, call: object) -> ClientTask | None:
        """The task of this client for which the call works, if it does."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. It is dropped if the client has not read what was sent before."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any], on_progress: Any = None) -> Mapping[str, Any]:
        """Send a request and return the client's result. Raises `RpcRefusal` for its error. Cancelling this
        cancels the request."""
        ...


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

    async def announce(self, client: ClientView) -> None:
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

    def came(self, client: ClientView) -> None:
        """A client has declared its capabilities, for the first time or anew."""
        ...

    def heard(self, client: ClientView, method: str) -> None:
        """A client sent a notification that is not about a request."""
        ...

    def left(self, client: ClientView) -> None:
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
