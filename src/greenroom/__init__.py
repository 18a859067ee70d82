"""Greenroom: a supervised-actor runtime for MCP servers.

The front door. `Greenroom` is what you embed; the errors are what it raises. Names are imported when first used, so
`import greenroom` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import first_use
from .protocol.version import VERSION

if TYPE_CHECKING:
    from .actors.call import Call
    from .actors.event_stream import Subscription
    from .actors.host import Host, ServerRequest
    from .actors.peer import ConnectorFactory
    from .actors.transports.http_connection import AuthFor
    from .catalogue.entries import ServerEntry
    from .catalogue.index import Counts, Index
    from .catalogue.namespace import Ambiguous, Missing, Place, Target
    from .catalogue.search import Match, SearchPage
    from .config.model import (
        Config,
        HttpTransport,
        Isolation,
        Lifecycle,
        Pinning,
        PrefixMode,
        Profile,
        RestartPolicy,
        ServerDefinition,
        Settings,
    )
    from .gateway.exposures.search_tool import SearchTool
    from .protocol.address import Address
    from .protocol.errors import (
        AmbiguousTool,
        ApprovalDenied,
        ApprovalNeeded,
        BadArguments,
        Bug,
        Busy,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectFailed,
        CredentialNeeded,
        Drained,
        GreenroomError,
        InputRefused,
        NeedsAuth,
        Problem,
        ProtocolFault,
        Reach,
        RemoteError,
        RoomClosed,
        RpcRefusal,
        ServerDown,
        ServerLost,
        SessionNeeded,
        TaskNeeded,
        ToolChanged,
        ToolFailed,
        Unavailable,
        UnknownPrompt,
        UnknownResource,
        UnknownServer,
        UnknownTool,
        UsageError,
    )
    from .protocol.events import (
        ApprovalDecision,
        ApprovalMove,
        CallAccepted,
        CallEnded,
        CallEvent,
        CallSent,
        CatalogueChanged,
        ConnectStep,
        EndDecision,
        Event,
        Eviction,
        GateDecision,
        GateMove,
        Kind,
        Lagged,
        Note,
        NoteCode,
        StartMoved,
        Step,
        Transition,
    )
    from .protocol.lifecycle import Cause, Means, Reason, State
    from .protocol.result import Completion, PromptMessages, ResourceContents, ToolResult
    from .protocol.status import ServerStatus
    from .safety.approval import ApprovalRequest, Verdict
    from .supervisor.call_stream import CallStream
    from .supervisor.caller import Updates
    from .supervisor.profiles import ProfileView
    from .supervisor.reload import ReloadPlan
    from .supervisor.room import Greenroom, OwnTool, Session
    from .supervisor.runtime import DrainReport

__version__ = VERSION

_HOMES = {
    ".protocol.address": ('Address',),
    ".catalogue.entries": ('ServerEntry',),
    ".config.model": (
        "Config", "HttpTransport", "Isolation", "Lifecycle", "Pinning", "PrefixMode", "Profile", "RestartPolicy",
        "ServerDefinition", "Settings",
    ),
    ".safety.approval": ('ApprovalRequest', 'Verdict',),
    ".protocol.errors": (
        "AmbiguousTool", "ApprovalDenied", "ApprovalNeeded", "BadArguments", "Bug", "Busy", "CallError", "CallTimeout",
        "ConfigError", "ConnectFailed", "CredentialNeeded", "Drained", "GreenroomError", "InputRefused", "NeedsAuth",
        "Problem", "ProtocolFault", "Reach", "RemoteError", "RoomClosed", "RpcRefusal", "ServerDown", "ServerLost",
        "SessionNeeded", "TaskNeeded", "ToolChanged", "ToolFailed", "Unavailable", "UnknownPrompt", "UnknownResource",
        "UnknownServer", "UnknownTool", "UsageError",
    ),
    ".protocol.events": (
        "ApprovalDecision", "ApprovalMove", "CallAccepted", "CallEnded", "CallEvent", "CallSent", "CatalogueChanged",
        "ConnectStep", "EndDecision", "Event", "Eviction", "GateDecision", "GateMove", "Kind", "Lagged", "Note",
        "NoteCode", "StartMoved", "Step", "Transition",
    ),
    ".catalogue.namespace": ('Ambiguous', 'Missing', 'Place', 'Target',),
    ".catalogue.index": ('Counts', 'Index',),
    ".protocol.lifecycle": ('Cause', 'Means', 'Reason', 'State',),
    ".protocol.result": ('Completion', 'PromptMessages', 'ResourceContents', 'ToolResult',),
    ".catalogue.search": ('Match', 'SearchPage',),
    ".actors.transports.http_connection": ('AuthFor',),
    ".actors.call": ('Call',),
    ".actors.peer": ('ConnectorFactory',),
    ".actors.host": ('Host', 'ServerRequest',),
    ".actors.event_stream": ('Subscription',),
    ".protocol.status": ('ServerStatus',),
    ".gateway.exposures.search_tool": ('SearchTool',),
    ".supervisor.call_stream": ('CallStream',),
    ".supervisor.runtime": ('DrainReport',),
    ".supervisor.room": ('Greenroom', 'OwnTool', 'Session',),
    ".supervisor.profiles": ('ProfileView',),
    ".supervisor.reload": ('ReloadPlan',),
    ".supervisor.caller": ('Updates',),
}  # fmt: skip

__all__ = [
    "Address",
    "Ambiguous",
    "AmbiguousTool",
    "ApprovalDecision",
    "ApprovalDenied",
    "ApprovalMove",
    "ApprovalNeeded",
    "ApprovalRequest",
    "AuthFor",
    "BadArguments",
    "Bug",
    "Busy",
    "Call",
    "CallAccepted",
    "CallEnded",
    "CallError",
    "CallEvent",
    "CallSent",
    "CallStream",
    "CallTimeout",
    "CatalogueChanged",
    "Cause",
    "Completion",
    "Config",
    "ConfigError",
    "ConnectFailed",
    "ConnectStep",
    "ConnectorFactory",
    "Counts",
    "CredentialNeeded",
    "DrainReport",
    "Drained",
    "EndDecision",
    "Event",
    "Eviction",
    "GateDecision",
    "GateMove",
    "Greenroom",
    "GreenroomError",
    "Host",
    "HttpTransport",
    "Index",
    "InputRefused",
    "Isolation",
    "Kind",
    "Lagged",
    "Lifecycle",
    "Match",
    "Means",
    "Missing",
    "NeedsAuth",
    "Note",
    "NoteCode",
    "OwnTool",
    "Pinning",
    "Place",
    "PrefixMode",
    "Problem",
    "Profile",
    "ProfileView",
    "PromptMessages",
    "ProtocolFault",
    "Reach",
    "Reason",
    "ReloadPlan",
    "RemoteError",
    "ResourceContents",
    "RestartPolicy",
    "RoomClosed",
    "RpcRefusal",
    "SearchPage",
    "SearchTool",
    "ServerDefinition",
    "ServerDown",
    "ServerEntry",
    "ServerLost",
    "ServerRequest",
    "ServerStatus",
    "Session",
    "SessionNeeded",
    "Settings",
    "StartMoved",
    "State",
    "Step",
    "Subscription",
    "Target",
    "TaskNeeded",
    "ToolChanged",
    "ToolFailed",
    "ToolResult",
    "Transition",
    "Unavailable",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "Updates",
    "UsageError",
    "Verdict",
    "__version__",
]

__getattr__ = first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
