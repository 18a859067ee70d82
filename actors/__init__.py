"""Who acts: the actor kernel, the server actor, the router, the catalogue writer, and the connections.

The kernel: `Mailbox`, `Ref`, `Reply`, `CoreActor`, `Timers`, `EventStream`, over the two loops' `Backend`.
A server: `ServerActor`, which holds its `Steps`, its `CallTable` and more, and asks its `Supervisor`; its owner task is
`Incarnation`.
Below it: `Peer`, `Connection`, `Connector` are the seam to whatever carries the bytes.

What not every room needs is imported when first used: HTTP alone brings `ssl` with it.

For the doors: `LineSplitter`, `LinesLeft`, `LineWriter`, `RequestTable`, `IncomingTable`, `Part`, `in_turns`,
`new_loop`, `want_orphans`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._backend import AGAIN, Backend, More, Waiter, current_backend
from ._call import Call, Tally
from ._catalogue_file import CatalogueFile, default_cache_path
from ._catalogue_writer import CatalogueWriter, Flush, Save, Store
from ._condition import declared_to, doing, is_outdated, last_line, pid_of
from ._connection import Connection, Connector, ConnectorFactory, Handshake, Listing
from ._core import CoreActor
from ._guard import Guard
from ._host import ASKED_FOR, Greeting, Host, NoHost, ServerRequest, joined, lacking, not_found
from ._incoming import IncomingTable, Refusals
from ._line_writer import LineWriter, WriteRules
from ._mailbox import Mailbox
from ._messages import connect_failed, login_needed
from ._peer import Exchange, LostReason, Peer, PeerHooks
from ._ref import MailboxFull, Ref, Reply
from ._request_table import RequestTable, mark_sent
from ._room_context import Decision, Load, Next, Record, RoomContext, Spawner, Supervisor
from ._router import Define, Learn, Router, Sync
from ._server import ServerActor
from ._slices import in_turns
from ._start import Start
from ._stdio import LINES_A_TURN, LinesLeft, LineSplitter, StdioConnector
from ._stream import EventStream, Subscription
from ._subscriptions import UPDATED
from ._timers import Timer, Timers
from ._values import Values

if TYPE_CHECKING:
    from ._http import AuthFor, HttpConnector
    from ._in_process import InProcessConnector
    from ._part import Part
    from ._reaper import want_orphans
    from ._step_loop import new_loop
    from ._unix import UnixConnector

__all__ = [
    "AGAIN",
    "ASKED_FOR",
    "LINES_A_TURN",
    "UPDATED",
    "AuthFor",
    "Backend",
    "Call",
    "CatalogueFile",
    "CatalogueWriter",
    "Connection",
    "Connector",
    "ConnectorFactory",
    "CoreActor",
    "Decision",
    "Define",
    "EventStream",
    "Exchange",
    "Flush",
    "Greeting",
    "Guard",
    "Handshake",
    "Host",
    "HttpConnector",
    "InProcessConnector",
    "IncomingTable",
    "Learn",
    "LineSplitter",
    "LineWriter",
    "LinesLeft",
    "Listing",
    "Load",
    "LostReason",
    "Mailbox",
    "MailboxFull",
    "More",
    "Next",
    "NoHost",
    "Part",
    "Peer",
    "PeerHooks",
    "Record",
    "Ref",
    "Refusals",
    "Reply",
    "RequestTable",
    "RoomContext",
    "Router",
    "Save",
    "ServerActor",
    "ServerRequest",
    "Spawner",
    "Start",
    "StdioConnector",
    "Store",
    "Subscription",
    "Supervisor",
    "Sync",
    "Tally",
    "Timer",
    "Timers",
    "UnixConnector",
    "Values",
    "Waiter",
    "WriteRules",
    "connect_failed",
    "current_backend",
    "declared_to",
    "default_cache_path",
    "doing",
    "in_turns",
    "is_outdated",
    "joined",
    "lacking",
    "last_line",
    "login_needed",
    "mark_sent",
    "new_loop",
    "not_found",
    "pid_of",
    "want_orphans",
]


def __getattr__(name: str) -> Any:
    match name:
        case "AuthFor" | "HttpConnector":
            from . import _http as home
        case "InProcessConnector":
            from . import _in_process as home
        case "Part":
            from . import _part as home
        case "new_loop":
            from . import _step_loop as home
        case "want_orphans":
            from . import _reaper as home
        case "UnixConnector":
            from . import _unix as home
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)
