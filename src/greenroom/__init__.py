"""Greenroom: a supervised-actor runtime for MCP servers.

The front door. `Greenroom` is what you embed; what it gives and raises stands beside it. `greenroom.errors` has every
error, `greenroom.events` every event, `greenroom.config` the model of a configuration, and `greenroom.testing` what
tests use. The names are imported when one of them is first used, so `import greenroom` costs next to nothing.
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
