"""Greenroom: a supervised-actor runtime for MCP servers.

The front door. `Greenroom` is what you embed; the errors are what it raises. Names are imported when first used, so
`import greenroom` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .protocol.version import VERSION

if TYPE_CHECKING:
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
        NeedsAuth,
        ProtocolFault,
        Reach,
        RemoteError,
        RoomClosed,
        ServerDown,
        ServerLost,
        Unavailable,
        UnknownServer,
        UnknownTool,
        UsageError,
    )
    from .protocol.events import Event, Kind, Lagged
    from .protocol.lifecycle import Cause, State
    from .protocol.result import ToolResult
    from .supervisor import DrainReport, Greenroom, ServerStatus

__version__ = VERSION

_HOMES = {
    "protocol.address": ("Address",),
    "protocol.config": ("Config",),
    "protocol.errors": (
        "AmbiguousTool", "Busy", "CallError", "CallTimeout", "ConfigError", "ConnectFailed", "Drained",
        "GreenroomError", "NeedsAuth", "ProtocolFault", "Reach", "RemoteError", "RoomClosed", "ServerDown",
        "ServerLost", "Unavailable", "UnknownServer", "UnknownTool", "UsageError",
    ),
    "protocol.events": ("Event", "Kind", "Lagged"),
    "protocol.lifecycle": ("Cause", "State"),
    "protocol.result": ("ToolResult",),
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
    "Config",
    "ConfigError",
    "ConnectFailed",
    "DrainReport",
    "Drained",
    "Event",
    "Greenroom",
    "GreenroomError",
    "Kind",
    "Lagged",
    "NeedsAuth",
    "ProtocolFault",
    "Reach",
    "RemoteError",
    "RoomClosed",
    "ServerDown",
    "ServerLost",
    "ServerStatus",
    "State",
    "ToolResult",
    "Unavailable",
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
