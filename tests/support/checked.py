"""asyncio's debug mode with its checks, but without the stacks that it records.

Debug mode refuses calls from another thread and callbacks that are coroutines, and remembers where a coroutine that
nobody awaits was made. Every test needs that. It also records a stack for each future, task and handle that is made,
for its messages; that takes three quarters of the processor time of a test on asyncio. And for each coroutine it
remembers ten lines of the stack, which takes an eighth of the rest; the first of them says where it was made. To get
the stacks, set asyncio's own `PYTHONASYNCIODEBUG=1`.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import os

HAS_STACKS = bool(os.environ.get("PYTHONASYNCIODEBUG"))

if not HAS_STACKS:
    asyncio.constants.DEBUG_STACK_DEPTH = 1  # the loop asks for it each time it runs


class CheckedLoop(asyncio.SelectorEventLoop):
    """To be run with `debug=True`."""

    def get_debug(self) -> bool:
        """Futures, tasks and handles ask this. The loop itself uses the flag that it was given."""
        return HAS_STACKS and super().get_debug()
