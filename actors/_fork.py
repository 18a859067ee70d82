"""A fork of a program with a room in it: the child's copy of the room is inert.

A fork copies our records and shares our descriptors. What the copy did on its way out (a `finally`, a collected object)
would happen to the room that lives on: its groups killed, its pipes written to, its waits taken out of an epoll that
both share. So whatever holds a process, a pipe or a file is registered here, and in the child it lets go of it, before
the program's own next line: its descriptors lead to /dev/null, its processes are not its own. A child started by
`subprocess` sees nothing of this; it has none of our descriptors.

What a copy cannot let go of are the sockets of HTTP connections, which the loop holds. It says no goodbye on them; a
program whose child runs on in the same loop is beyond what asyncio and trio support.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Disowned(Protocol):
    def disown(self) -> None:
        """This is the copy: let go of what belongs to the other process. Plain, quick, wakes nobody."""
        ...


_holders: WeakSet[Disowned] = WeakSet()


def inert_in_forks(holder: Disowned) -> None:
    """From here on `holder` is disowned in each child that is forked, as long as it exists."""
    _holders.add(holder)


def let_go(*descriptors: int | None) -> None:
    """Make these lead nowhere. The numbers stay taken, so that no other file gets what was meant for these."""
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
