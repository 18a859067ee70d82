"""Makes the room inert in the child of a fork.

A fork copies our records and shares our descriptors. When the child ends, its copy may still run a `finally` or
collect an object. That would act on the room of the parent: kill its process groups, write to its pipes, remove its
waits from the shared epoll. So every object that holds a process, a pipe or a file is registered here. Right after
the fork, before the program's next line, each of them lets go of what belongs to the parent: its descriptors lead to
/dev/null, and its processes no longer count as its own. A child started by `subprocess` needs none of this, because
it inherits none of our descriptors.

The copy cannot let go of the sockets of HTTP connections, because the loop holds them. It sends no goodbye on them.
asyncio and trio do not support a forked child that goes on in the same loop.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class ForkHolder(Protocol):
    def disown(self) -> None:
        """Called in the child: let go of what belongs to the parent. Plain, quick, wakes no task."""
        ...


_holders: WeakSet[ForkHolder] = WeakSet()


def inert_in_forks(holder: ForkHolder) -> None:
    """Have `holder` disowned in each child forked from now on, as long as `holder` exists."""
    _holders.add(holder)


def let_go(*descriptors: int | None) -> None:
    """Make these descriptors lead nowhere. Their numbers stay taken, so that no other file receives what was meant
    for them."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        if descriptor is not None and descriptor >= 0:
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


def _disown_all() -> None:
    for holder in tuple(_holders):
        with suppress(Exception):
            holder.disown()
    _holders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
