"""The mailbox: two lanes, one bell.

System messages (lifecycle, replies of the machinery) have their own unbounded lane, always ahead of the bounded
user lane. So nothing that decides an actor's life ever queues behind work. There are O(children) system messages
at any time, so their lane needs no bound. When the user lane is full, a message is refused at once; its sender is
not made to wait.

`put` is a plain function and cannot lose an item: the item stays in a deque until its owner takes it, whatever is
cancelled. After each put the bell rings. Its owner decides what that does: a core actor wakes its task, a server
actor runs its step at once. Rejected: a memory channel. It has no second lane, cannot be inspected, makes the
sender wait, and on asyncio loses an item handed to a receiver that is cancelled in the same tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
U = TypeVar("U")


class Mailbox(Generic[S, U]):
    """System lane of `S`, user lane of at most `bound` `U`s. Outlives incarnations and restarts of its owner."""

    __slots__ = ("_bell", "bound", "system", "user")

    def __init__(self, bound: int, bell: Callable[[], None]) -> None:
        self.bound = bound
        self.system: deque[S] = deque()
        self.user: deque[U] = deque()
        self._bell = bell

    def __len__(self) -> int:
        return len(self.system) + len(self.user)

    def put_system(self, message: S) -> None:
        self.system.append(message)
        self._bell()

    def put(self, message: U) -> bool:
        """False when the user lane is full; then nothing happened."""
        if len(self.user) >= self.bound:
            return False
        self.user.append(message)
        self._bell()
        return True

    def take(self, most: int) -> Iterator[S | U]:
        """Up to `most` messages. The system lane comes first, also when a message arrives there meanwhile."""
        for _ in range(most):
            if self.system:
                yield self.system.popleft()
            elif self.user:
                yield self.user.popleft()
            else:
                return
