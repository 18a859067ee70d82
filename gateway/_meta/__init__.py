"""The exposure `meta`: four tools in place of the one `mcp` tool, named and shaped as MetaMCP has them.

* `_definitions`  what a client sees, and how a request to one of them is read
* `_door`         the exposure: it carries them out as requests to the `mcp` tool
* `_execute`      runs the code of `mcp_execute` in a child, whose program is `_sandbox_main`
* `_runs`         how many runs there may be at once
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._first_use import first_use
from ._definitions import definitions

if TYPE_CHECKING:
    from ._door import Meta
    from ._runs import Runs

_HOMES = {
    "._door": ("Meta",),
    "._runs": ("Runs",),
}

__all__ = ["Meta", "Runs", "definitions"]

__getattr__ = first_use(__name__, _HOMES)
