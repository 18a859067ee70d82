"""Patience with a server that may have to be installed before it runs.

`npx`, `uvx` and similar commands may download for minutes, and killing them in the middle leaves a broken cache
behind. So such an attempt to connect has no fixed time: it may go on as long as it shows signs of work. We look for
these signs from outside, now and then: the command writes something, processes below it start or end, or they use
processor time. An attempt without such a sign for the whole connect time counts as hung. The install time bounds it
in any case.

Once the server has greeted, it is installed, and the rest has the time that every server has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from ..protocol.installers import STILL_INSTALLING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._room_context import RoomContext
    from ._timers import Timer

LOOK_EVERY: Final = 1.0  # seconds; more often when the patience is short
TELL_AFTER: Final = (
    10.0  # seconds until the log is told that it takes its time; then twice as many, and so on
)


class Patience:
    """The time an attempt to connect has until the server greets, as the deadline of `scope`.

    `quiet`: seconds without a sign of work. `most`: seconds in all; None for a server that installs nothing, which
    has `quiet` seconds whatever signs it shows.
    """

    def __init__(self, context: RoomContext, began: float, quiet: float, most: float | None) -> None:
        self.began = began
        self.installs = most is not None
        self.most = quiet if most is None else max(most, quiet)
        self.scope = anyio.CancelScope(deadline=began + quiet)
        self.is_installing = False
        self._context = context
        self._quiet = quiet
        self._seen: object = None
        self._tell_at = began + TELL_AFTER
        self._timer: Timer | None = None

    def begin(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        """The attempt was started: look for signs of work, if they can change the deadline. `signs()` is only
        compared, never interpreted."""
        if self.installs:
            self.is_installing = True
            self._seen = signs()
            self._look_later(signs, tell)

    def stop(self) -> None:
        """The server has greeted, or the attempt is over. Idempotent."""
        self.is_installing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reason(self) -> str:
        """Why the time ran out."""
        if not self.installs:
            return f"no answer to the handshake within {self._quiet:g}s"
        if self._context.backend.now() >= self.began + self.most:
            return f"no answer to the handshake within {self.most:g}s, with the time to install it"
        return f"no answer to the handshake, and no sign of work for {self._quiet:g}s"

    def _look_later(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        now = self._context.backend.now()
        pause = min(LOOK_EVERY, self._quiet / 4)
        self._timer = self._context.timers.at(now + pause, lambda: self._look(signs, tell))

    def _look(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        if not self.is_installing:
            return
        now, seen = self._context.backend.now(), signs()
        if seen != self._seen:
            self._seen = seen
            self.scope.deadline = min(now + self._quiet, self.began + self.most)
        if now >= self._tell_at:
            tell(f"{STILL_INSTALLING} after {now - self.began:.0f} s")
            self._tell_at = now + (now - self.began)
        self._look_later(signs, tell)
