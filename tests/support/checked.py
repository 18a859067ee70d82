"""asyncio's debug mode for its checks, without the stacks it takes.

Debug mode refuses calls from another thread and callbacks that are coroutines, and remembers where a coroutine that
nobody awaits was made: that is wanted in every test. It also takes the stack of whoever makes a future, a task or a
handle, for its messages; that is three quarters of the processor time of a test on asyncio. Where they are wanted, ask
with asyncio's own `PYTHONASYNCIODEBUG=1`.
"""

from __future__ import annotations

import asyncio
import os


class CheckedLoop(asyncio.SelectorEventLoop):
    """To be run with `debug=True`."""

    def get_debug(self) -> bool:
        """What futures, tasks and handles go by. The loop goes by what it was told."""
        return bool(os.environ.get("PYTHONASYNCIODEBUG")) and super().get_debug()
