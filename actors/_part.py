"""An optional part: what may fail without anybody noticing but the log.

The events file, the control socket, what watches the configuration, and the guard's restart are of use, and no call
needs them. So each is run through a `Part`: whatever it raises ends here, is said once, and is tried again, after a
second at first and after a minute at last. When it works again that is said too; a part that works only now and then
keeps its long pauses, so it never fills a log.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs

from ..protocol.errors import GreenroomError
from ..protocol.secrets import in_words as named

FIRST_PAUSE: Final = 1.0  # seconds before the first new try, doubling up to
LAST_PAUSE: Final = 60.0  # and a part that has worked for longer than this begins again with the first


@attrs.define(eq=False)
class Part:
    """One optional part. `name`: as the log calls it; `without`: a sentence, what is missed while it does not work;
    `tell` takes a line for the log; `now` is asked for the time only when something fails."""

    name: str
    tell: Callable[[str], object]
    without: str = ""
    now: Callable[[], float] = anyio.current_time
    next_try: float = attrs.field(default=-math.inf, init=False)
    _said: str = attrs.field(default="", init=False)
    _failures: int = attrs.field(default=0, init=False)
    _works_since: float | None = attrs.field(default=None, init=False)

    def failed(self, why: object) -> float:
        """It does not work; `why` is an exception or a text. Returns the seconds to wait before the next try, which is
        due at `next_try`."""
        now = self.now()
        if self._works_since is not None and now - self._works_since > LAST_PAUSE:
            self._failures = 0
        self._works_since = None
        pause = min(FIRST_PAUSE * 2.0**self._failures, LAST_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self.next_try = now + pause
        text = in_words(why)
        trouble = (
            f"errno {why.errno}" if isinstance(why, OSError) else text
        )  # a path in it may be another each time
        if trouble != self._said:
            self._said = trouble
            self.tell(" ".join(filter(None, (f"{self.name}: {text}.", self.without, "It is tried again."))))
        return pause

    def works(self) -> None:
        """It does; said if it did not before. Idempotent, and without a look at the clock where it has never failed."""
        if self._failures and self._works_since is None:
            self._works_since = self.now()
        if self._said:
            self._said = ""
            self.tell(f"{self.name}: works again")

    @property
    def is_due(self) -> bool:
        """Whether it works, or may be tried again."""
        return not self._said or self.now() >= self.next_try

    async def keep(self, run: Callable[[], Awaitable[object]]) -> None:
        """Do `run` until it returns. What it raises is contained; `run` says with `works` that it got as far as that.
        Raises nothing, except cancellation."""
        while True:
            try:
                await run()
            except Exception as error:
                await anyio.sleep(self.failed(error))
            else:
                return


def in_words(why: object) -> str:
    """An error as one line, and whose it is when nobody foresaw it."""
    match why:
        case BaseExceptionGroup():
            return in_words(why.exceptions[0])
        case GreenroomError():
            text = why.message
        case OSError():
            what = f" ({why.filename})" if isinstance(why.filename, str) else ""
            text = f"{why.strerror or why}{what}"
        case BaseException():
            text = f"a bug in Greenroom, please report it: {named(why)}"
        case _:
            text = str(why)
    return " ".join(text.split()).rstrip(".")
