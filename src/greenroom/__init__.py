"""Greenroom: a supervised-actor runtime for MCP servers.

The front door. `Greenroom` is what you embed; the errors are what it raises. Names are imported when first used, so
`import greenroom` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .protocol.version import VERSION

if TYPE_CHECKING:
    from .actors import ServerRequest
    from .protocol.address import Address
    from .protocol.config import Config
    from .protocol.errors import (
        AmbiguousTool,
        Busy,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectFailed,
        Drained,
        GreenroomError,
        InputRefused,
        NeedsAuth,
        ProtocolFault,
        Reach,
        RemoteError,
        RoomClosed,
        RpcRefusal,
        ServerDown,
        ServerLost,
        Unavailable,
        UnknownPrompt,
        UnknownResource,
        UnknownServer,
        UnknownTool,
        UsageError,
    )
    from .protocol.events import Event, Kind, Lagged
    from .protocol.lifecycle import Cause, State
    from .protocol.result import Completion, PromptMessages, ResourceContents, ToolResult
    from .supervisor import DrainReport, Greenroom, ServerStatus

__version__ = VERSION

_HOMES = {
    "protocol.address": ("Address",),
    "protocol.config": ("Config",),
    "protocol.errors": (
        "AmbiguousTool", "Busy", "CallError", "CallTimeout", "ConfigError", "ConnectFailed", "Drained",
        "GreenroomError", "InputRefused", "NeedsAuth", "ProtocolFault", "Reach", "RemoteError", "RoomClosed",
        "RpcRefusal", "ServerDown", "ServerLost", "Unavailable", "UnknownPrompt", "UnknownResource", "UnknownServer",
        "UnknownTool", "UsageError",
    ),
    "protocol.events": ("Event", "Kind", "Lagged"),
    "protocol.lifecycle": ("Cause", "State"),
    "protocol.result": ("Completion", "PromptMessages", "ResourceContents", "ToolResult"),
    "actors": ("ServerRequest",),
    "supervisor": ("DrainReport", "Greenroom", "ServerStatus"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Address",
    "AmbiguousTool",
    "Busy",
    "CallError",
    "CallTimeout",
    "Cause",
    "Completion",
    "Config",
    "ConfigError",
    "ConnectFailed",
    "DrainReport",
    "Drained",
    "Event",
    "Greenroom",
    "GreenroomError",
    "InputRefused",
    "Kind",
    "Lagged",
    "NeedsAuth",
    "PromptMessages",
    "ProtocolFault",
    "Reach",
    "RemoteError",
    "ResourceContents",
    "RoomClosed",
    "RpcRefusal",
    "ServerDown",
    "ServerLost",
    "ServerRequest",
    "ServerStatus",
    "State",
    "ToolResult",
    "Unavailable",
    "UnknownPrompt",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__
