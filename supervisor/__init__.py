"""The supervisor: decides about restarts, gates, idle servers, the pool and reloads. `Greenroom` is its
public door.

Names are imported when they are first used, so a command that only reads the configuration does not load a
room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._drain_report import DrainReport
    from ._profile_view import ProfileView
    from ._reload import ReloadPlan
    from ._room import Greenroom
    from ._session import Session
    from ._updates import Updates
    from .config_files import find_files, load_config

__all__ = [
    "DrainReport",
    "Greenroom",
    "ProfileView",
    "ReloadPlan",
    "Session",
    "Updates",
    "find_files",
    "load_config",
]


def __getattr__(name: str) -> Any:
    match name:
        case "Greenroom":
            from . import _room as home
        case "ProfileView":
            from . import _profile_view as home
        case "ReloadPlan":
            from . import _reload as home
        case "Updates":
            from . import _updates as home
        case "Session":
            from . import _session as home
        case "DrainReport":
            from . import _drain_report as home
        case "find_files" | "load_config":
            from . import config_files as home
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)
