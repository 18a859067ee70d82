"""Greenroom runs one process of each MCP server for all your clients and programs.

A program opens a room: `Greenroom.open`. This package also has what a room returns and raises. `greenroom.errors` has
every error, `greenroom.events` every event, `greenroom.config` the model of a configuration, `greenroom.sync` the same
room without an event loop, and `greenroom.testing` the helpers for tests. A name is imported when it is first used, so
`import greenroom` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import names_of
from .protocol.version import VERSION

if TYPE_CHECKING:
    from ._names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_of(__name__, "._names")

__version__ = VERSION
