"""Patience with a server that may have to be installed before it runs: the time that its handshake has.

`npx`, `uvx` and similar commands may download for minutes, and killing them in the middle leaves a broken cache
behind. So such an attempt to connect has no fixed time: it may go on as long as it shows signs of work. We look for
these signs from outside, now and then: the command writes something, processes below it start or end, or they use
processor time. An attempt without such a sign for the whole connect time counts as hung. The install time bounds it
in any case.

Once the handshake is done, the server is installed, and its lists have the time that every server has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..config.installers import STILL_INSTALLING
from .timers import TimeLimit

if TYPE_CHECKING:
    from .room_context import RoomContext
    from .timers import Timer

LOOK_EVERY: Final = 1.0  # seconds; more often when the patience is short
TELL_AFTER: Final = 10.0  # seconds until the log is told that it takes long; then twice as many, and so on
_LONGER: Final = 'if it needs longer, raise "{}" in its entry'


class Patience:
    """The time that an attempt to connect has for its handshake, as its `limit`.

    `quiet`: the seconds that may pass without a sign of work. `most`: the seconds in all; None for a server that
    installs nothing, which has `quiet` seconds whatever it does. `usual`: what the configuration says, of which `quiet`
    may be more.
    """

    def __init__(
        self, context: RoomContext, began: float, quiet: float, most: float | None, usual: float
    ) -> None:
        self.began = began
        self.installs: bool = most is not None
        self.most: float = quiet if most is None else max(most, quiet)
        self.limit: TimeLimit = TimeLimit(context.timers)  # from when it begins
        self.is_installing = False
        self._context = context
        self._quiet = quiet
        self._usual = usual
        self._seen: object = None
        self._tell_at = began + TELL_AFTER
        self._timer: Timer | None = None

    def begin(self, signs: Callable[[], object], tell: Callable[[str], None]) -> None:
        """The attempt has started: look for signs of work, if they can move the deadline. The values of `signs()` are
        only compared with one another."""
        self.limit.move(self.began + self._quiet)
        if self.installs:
            self.is_installing = True
            self._seen = signs()
            self._look_later(signs, tell)

    def stop(self) -> None:
        """The handshake is done, or the attempt is over. Idempotent."""
        self.is_installing: bool = False
        self.limit.move(math.inf)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def somebody_waits(self, now: float) -> None:
        """Somebody waits for the attempt from now on: without a sign of work it has the usual time, and no more."""
        self._quiet = min(self._quiet, self._usual)
        self.limit.move(min(self.limit.when, now + self._quiet))

    def reason(self) -> str:
        """Why the time ran out."""
        if not self.installs:
            longer = _LONGER.format("connectTimeoutMs")
            if self._quiet > self._usual:
                usual = f'"connectTimeoutMs" is {self._usual:g} s'
                longer = f"{usual}; each try in the background may take longer than the one before"
            return f"no answer to the handshake within {self._quiet:g} s; {longer}"
        if self._context.backend.now() >= self.began + self.most:
            within = f"within {self.most:g} s, with the time to install it"
            return f"no answer to the handshake {within}; {_LONGER.format('installTimeoutMs')}"
        within = f"and no sign of work for {self._quiet:g} s"
        return f"no answer to the handshake, {within}; {_LONGER.format('connectTimeoutMs')}"

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
            self.limit.move(min(now + self._quiet, self.began + self.most))
        if now >= self._tell_at:
            tell(f"{STILL_INSTALLING} after {now - self.began:.0f} s")
            self._tell_at = now + (now - self.began)
        self._look_later(signs, tell)
