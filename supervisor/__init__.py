"""Who decides: restart, gate, idle, pool, reload; the root supervisor; `Greenroom`, the public door."""

from ._config_files import find_files, load_config
from ._room import Greenroom
from ._status import DrainReport, ServerStatus

__all__ = ["DrainReport", "Greenroom", "ServerStatus", "find_files", "load_config"]
