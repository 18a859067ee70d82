"""Who decides: restart, gate, idle, pool, reload; the root supervisor; `Greenroom`, the public door.

Names are imported when first used: a command that only reads the configuration must not pay for a room.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._config_files import find_files, load_config
    from ._room import Greenroom
    from ._status import DrainReport, ServerStatus

__all__ = ["DrainReport", "Greenroom", "ServerStatus", "find_files", "load_config"]

_HOME_OF = {
    "DrainReport": "_status",
    "Greenroom": "_room",
    "ServerStatus": "_status",
    "find_files": "_config_files",
    "load_config": "_config_files",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)
