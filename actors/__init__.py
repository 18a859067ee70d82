"""Who acts: the actor kernel, the server actor, the router, the catalogue writer, and the connections.

The kernel: `Mailbox`, `Ref`, `Reply`, `CoreActor`, `Timers`, `EventStream`, over the two loops' `Rim`.
A server: `ServerActor` (its calls: `CallDesk`, its owner task: `Incarnation`), asking its `Director`.
Below it: `Peer`, `Connection`, `Connector` are the seam to whatever carries the bytes.

The connectors that not every room needs are imported when first used: HTTP alone brings `ssl` with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._call import Call, Tally
from ._catalogue_file import CatalogueFile, default_cache_path
from ._catalogue_writer import CatalogueWriter, Flush, Save, Store
from ._connection import Connection, Connector, ConnectorFactory, Hello, Listing
from ._core import CoreActor
from ._desk import CallDesk
from ._guard import Guard
from ._host import Greeting, Host, NoHost, ServerRequest, not_found
from ._mailbox import Mailbox
from ._news import connect_failed, login_needed
from ._peer import Exchange, Loss, LostReason, Peer, PeerHooks, RpcError
from ._ref import MailboxFull, Ref, Reply
from ._rim import Rim, Waiter, current_rim
from ._router import Define, Learn, Router, Sync
from ._server import INSTALL_TURN, TURN, ServerActor
from ._slices import in_turns
from ._stage import Director, Load, Record, Spawner, Stage, Then, Verdict
from ._stdio import StdioConnector
from ._stream import EventStream, Subscription
from ._timers import Timer, Timers
from ._wire import MODERN_VERSIONS, WireFault, decode_result
from ._wishes import UPDATED

if TYPE_CHECKING:
    from ._http import AuthFor, HttpConnector
    from ._in_process import InProcessConnector
    from ._unix import UnixConnector

__all__ = [
    "INSTALL_TURN",
    "MODERN_VERSIONS",
    "TURN",
    "UPDATED",
    "AuthFor",
    "Call",
    "CallDesk",
    "CatalogueFile",
    "CatalogueWriter",
    "Connection",
    "Connector",
    "ConnectorFactory",
    "CoreActor",
    "Define",
    "Director",
    "EventStream",
    "Exchange",
    "Flush",
    "Greeting",
    "Guard",
    "Hello",
    "Host",
    "HttpConnector",
    "InProcessConnector",
    "Learn",
    "Listing",
    "Load",
    "Loss",
    "LostReason",
    "Mailbox",
    "MailboxFull",
    "NoHost",
    "Peer",
    "PeerHooks",
    "Record",
    "Ref",
    "Reply",
    "Rim",
    "Router",
    "RpcError",
    "Save",
    "ServerActor",
    "ServerRequest",
    "Spawner",
    "Stage",
    "StdioConnector",
    "Store",
    "Subscription",
    "Sync",
    "Tally",
    "Then",
    "Timer",
    "Timers",
    "UnixConnector",
    "Verdict",
    "Waiter",
    "WireFault",
    "connect_failed",
    "current_rim",
    "decode_result",
    "default_cache_path",
    "in_turns",
    "login_needed",
    "not_found",
]


def __getattr__(name: str) -> Any:
    match name:
        case "AuthFor" | "HttpConnector":
            from . import _http as home
        case "InProcessConnector":
            from . import _in_process as home
        case "UnixConnector":
            from . import _unix as home
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)
