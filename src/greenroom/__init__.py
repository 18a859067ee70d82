"""Greenroom: a supervised-actor runtime for MCP servers.

The front door. `Greenroom` is what you embed; the errors are what it raises. Names are imported when first used, so
`import greenroom` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._first_use import first_use
from .protocol.version import VERSION

if TYPE_CHECKING:
    from .actors import AuthFor, Call, ConnectorFactory, Host, ServerRequest, Subscription
    from .gateway.search_tool import SearchTool
    from .protocol.address import Address
    from .protocol.approval import ApprovalRequest, Verdict
    from .protocol.catalogue import ServerEntry
    from .protocol.config import (
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
    from .protocol.index import Ambiguous, Counts, Index, Missing, Place, Target
    from .protocol.lifecycle import Cause, Means, Reason, State
    from .protocol.result import Completion, PromptMessages, ResourceContents, ToolResult
    from .protocol.search import Match, SearchPage
    from .protocol.status import ServerStatus
    from .supervisor import (
        CallStream,
        DrainReport,
        Greenroom,
        OwnTool,
        ProfileView,
        ReloadPlan,
        Session,
        Updates,
    )

__version__ = VERSION

_HOMES = {
    ".protocol.address": ("Address",),
    ".protocol.catalogue": ("ServerEntry",),
    ".protocol.config": (
        "Config", "HttpTransport", "Isolation", "Lifecycle", "Pinning", "PrefixMode", "Profile", "RestartPolicy",
        "ServerDefinition", "Settings",
    ),
    ".protocol.approval": ("ApprovalRequest", "Verdict"),
    ".protocol.errors": (
        "AmbiguousTool", "ApprovalDenied", "ApprovalNeeded", "BadArguments", "Bug", "Busy", "CallError",
        "CallTimeout", "ConfigError", "ConnectFailed", "CredentialNeeded", "Drained", "GreenroomError",
        "InputRefused", "NeedsAuth", "Problem", "ProtocolFault", "Reach", "RemoteError", "RoomClosed",
        "RpcRefusal", "ServerDown", "ServerLost", "SessionNeeded", "TaskNeeded", "ToolChanged", "ToolFailed",
        "Unavailable", "UnknownPrompt", "UnknownResource", "UnknownServer", "UnknownTool", "UsageError",
    ),
    ".protocol.events": (
        "ApprovalDecision", "ApprovalMove", "CallAccepted", "CallEnded", "CallEvent", "CallSent", "CatalogueChanged",
        "ConnectStep", "EndDecision", "Event",
        "Eviction", "GateDecision", "GateMove", "Kind", "Lagged", "Note", "NoteCode", "StartMoved", "Step",
        "Transition",
    ),
    ".protocol.index": ("Ambiguous", "Counts", "Index", "Missing", "Place", "Target"),
    ".protocol.lifecycle": ("Cause", "Means", "Reason", "State"),
    ".protocol.result": ("Completion", "PromptMessages", "ResourceContents", "ToolResult"),
    ".protocol.search": ("Match", "SearchPage"),
    ".actors": ("AuthFor", "Call", "ConnectorFactory", "Host", "ServerRequest", "Subscription"),
    ".protocol.status": ("ServerStatus",),
    ".gateway.search_tool": ("SearchTool",),
    ".supervisor": (
        "CallStream", "DrainReport", "Greenroom", "OwnTool", "ProfileView", "ReloadPlan", "Session",
        "Updates",
    ),
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
