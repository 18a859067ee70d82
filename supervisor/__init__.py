"""The supervisor: decides about restarts, gates, idle servers, the pool and reloads. `Greenroom` is its
public door.

Names are imported when they are first used, so a command that only reads the configuration does not load a
room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._first_use import first_use

if TYPE_CHECKING:
    from ._call_stream import CallStream
    from ._calls import OwnTool
    from ._drain_report import DrainReport
    from ._profile_view import ProfileView
    from ._reload import ReloadPlan
    from ._room import Greenroom
    from ._session import Session
    from ._updates import Updates
    from .config_files import find_files, load_config

_HOMES = {
    "._call_stream": ("CallStream",),
    "._calls": ("OwnTool",),
    "._drain_report": ("DrainReport",),
    "._profile_view": ("ProfileView",),
    "._reload": ("ReloadPlan",),
    "._room": ("Greenroom",),
    "._session": ("Session",),
    "._updates": ("Updates",),
    ".config_files": ("find_files", "load_config"),
}

__all__ = [
    "CallStream",
    "DrainReport",
    "Greenroom",
    "OwnTool",
    "ProfileView",
    "ReloadPlan",
    "Session",
    "Updates",
    "find_files",
    "load_config",
]

__getattr__ = first_use(__name__, _HOMES)
