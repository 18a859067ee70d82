"""The exposure `meta`: four tools in place of the one `mcp` tool, named and shaped as MetaMCP has them.

* `_definitions`  what a client sees, and how a request to one of them is read
* `_door`         the exposure: it carries them out as requests to the `mcp` tool
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._first_use import first_use
from ._definitions import definitions

if TYPE_CHECKING:
    from ._door import Meta

_HOMES = {
    "._door": ("Meta",),
}

__all__ = ["Meta", "definitions"]

__getattr__ = first_use(__name__, _HOMES)
