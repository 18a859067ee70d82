"""Who acts: the actor kernel, the server actor, the router, the catalogue writer, and the connections.

The kernel: `Mailbox`, `Ref`, `Reply`, `CoreActor`, `Timers`, `EventStream`, over the two loops' `Backend`.
A server: `ServerActor`, which holds its `Steps`, its `CallTable` and more, and asks its `Supervisor`; its owner task is
`Incarnation`.
Below it: `Peer`, `Connection`, `Connector` are the seam to whatever carries the bytes.

Everything is imported when first used: a command that reads the catalogue needs none of the actors, and HTTP alone
brings `ssl` with it.

For the doors: `LineSplitter`, `LinesLeft`, `LineWriter`, `RequestTable`, `IncomingTable`, `Part`, `in_turns`,
`new_loop`, `want_orphans`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._first_use import first_use

if TYPE_CHECKING:
    from ._audit_file import AuditFile
    from ._backend import AGAIN, Backend, More, Waiter, current_backend
    from ._call import Call, Tally
    from ._catalogue_file import CatalogueFile, Loaded, default_cache_path
    from ._catalogue_writer import CatalogueWriter, Flush, Save, SaveFailure, Store, Write
    from ._condition import declared_to, is_outdated, is_unused, last_line, pid_of
    from ._connection import Connection, Connector, ConnectorFactory, Handshake, Listing
    from ._core import CoreActor
    from ._guard import Guard
    from ._host import ASKED_FOR, Greeting, Host, NoHost, ServerRequest, in_common, joined, lacking, not_found
    from ._http import AuthFor, ExchangeFault, HttpConnector
    from ._http._document import fetched
    from ._in_process import InProcessConnector
    from ._incoming import IncomingTable, Refusals
    from ._line_writer import LineWriter, WriteRules
    from ._locked_file import Broken, LockedFile
    from ._mailbox import Mailbox
    from ._messages import connect_failed, login_needed
    from ._part import Part
    from ._peer import Exchange, LostReason, Peer, PeerHooks
    from ._pins_file import PinsFile
    from ._reaper import want_orphans
    from ._ref import MailboxFull, Ref, Reply
    from ._request_table import RequestTable, mark_sent
    from ._room_context import Decision, Load, Next, Record, RoomContext, Spawner, Supervisor
    from ._router import Define, Learn, Router, Sync, same_content
    from ._search_file import SearchFile
    from ._server import ServerActor
    from ._slices import all_of, in_turns
    from ._start import Start
    from ._stderr_log import OURS, StderrLog, StderrLogs, older_log, stderr_log_path
    from ._stdio import LINES_A_TURN, LinesLeft, LineSplitter, StdioConnector
    from ._step_loop import new_loop
    from ._stream import EventStream, Subscription
    from ._subscriptions import UPDATED
    from ._timers import Timer, Timers
    from ._unix import UnixConnector
    from ._values import Values

_HOMES = {
    "._audit_file": ("AuditFile",),
    "._backend": ("AGAIN", "Backend", "More", "Waiter", "current_backend",),
    "._call": ("Call", "Tally",),
    "._catalogue_file": ("CatalogueFile", "Loaded", "default_cache_path",),
    "._catalogue_writer": ("CatalogueWriter", "Flush", "Save", "SaveFailure", "Store", "Write",),
    "._condition": ("declared_to", "is_outdated", "is_unused", "last_line", "pid_of",),
    "._connection": ("Connection", "Connector", "ConnectorFactory", "Handshake", "Listing",),
    "._core": ("CoreActor",),
    "._guard": ("Guard",),
    "._host": ("ASKED_FOR", "Greeting", "Host", "NoHost", "ServerRequest", "in_common", "joined", "lacking",
        "not_found",),
    "._http": ("AuthFor", "ExchangeFault", "HttpConnector",),
    "._http._document": ("fetched",),
    "._in_process": ("InProcessConnector",),
    "._incoming": ("IncomingTable", "Refusals",),
    "._line_writer": ("LineWriter", "WriteRules",),
    "._locked_file": ("Broken", "LockedFile",),
    "._mailbox": ("Mailbox",),
    "._messages": ("connect_failed", "login_needed",),
    "._part": ("Part",),
    "._pins_file": ("PinsFile",),
    "._peer": ("Exchange", "LostReason", "Peer", "PeerHooks",),
    "._reaper": ("want_orphans",),
    "._ref": ("MailboxFull", "Ref", "Reply",),
    "._request_table": ("RequestTable", "mark_sent",),
    "._room_context": ("Decision", "Load", "Next", "Record", "RoomContext", "Spawner", "Supervisor",),
    "._router": ("Define", "Learn", "Router", "Sync", "same_content",),
    "._search_file": ("SearchFile",),
    "._server": ("ServerActor",),
    "._slices": ("all_of", "in_turns"),
    "._start": ("Start",),
    "._stderr_log": ("OURS", "StderrLog", "StderrLogs", "older_log", "stderr_log_path",),
    "._stdio": ("LINES_A_TURN", "LinesLeft", "LineSplitter", "StdioConnector",),
    "._step_loop": ("new_loop",),
    "._stream": ("EventStream", "Subscription",),
    "._subscriptions": ("UPDATED",),
    "._timers": ("Timer", "Timers",),
    "._unix": ("UnixConnector",),
    "._values": ("Values",),
}  # fmt: skip

__all__ = [
    "AGAIN",
    "ASKED_FOR",
    "LINES_A_TURN",
    "OURS",
    "UPDATED",
    "AuditFile",
    "AuthFor",
    "Backend",
    "Broken",
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
    "ExchangeFault",
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
    "Loaded",
    "LockedFile",
    "LostReason",
    "Mailbox",
    "MailboxFull",
    "More",
    "Next",
    "NoHost",
    "Part",
    "Peer",
    "PeerHooks",
    "PinsFile",
    "Record",
    "Ref",
    "Refusals",
    "Reply",
    "RequestTable",
    "RoomContext",
    "Router",
    "Save",
    "SaveFailure",
    "SearchFile",
    "ServerActor",
    "ServerRequest",
    "Spawner",
    "Start",
    "StderrLog",
    "StderrLogs",
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
    "Write",
    "WriteRules",
    "all_of",
    "connect_failed",
    "current_backend",
    "declared_to",
    "default_cache_path",
    "fetched",
    "in_common",
    "in_turns",
    "is_outdated",
    "is_unused",
    "joined",
    "lacking",
    "last_line",
    "login_needed",
    "mark_sent",
    "new_loop",
    "not_found",
    "older_log",
    "pid_of",
    "same_content",
    "stderr_log_path",
    "want_orphans",
]

__getattr__ = first_use(__name__, _HOMES)
