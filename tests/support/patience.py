"""How long a test waits for what a real process, socket or thread must do, and how it waits.

It is a guard against waiting for ever and says nothing about how fast anything should be: it has to hold beside
twenty other programs on two cores. Whoever waits goes on at once when it comes. What is about time itself runs in
virtual time; what is about speed counts work, or belongs in `benchmarks/` and `tests/hostile`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 120.0  # seconds
_BETWEEN: Final = 0.005  # seconds between two looks at what no event tells of


def until(holds: Callable[[], Any], what: str = "it") -> Any:
    """Wait until `holds()` is true, and return that. AssertionError when it does not come about."""
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(_BETWEEN)
    return found


def until_still(look: Callable[[], object], seconds: float, what: str = "it") -> None:
    """Wait until what `look()` sees has been the same for `seconds`. AssertionError when it changes all the time."""
    deadline = time.monotonic() + PATIENCE
    seen, since = look(), time.monotonic()
    while time.monotonic() < since + seconds:
        time.sleep(_BETWEEN)
        if (now := look()) != seen:
            assert time.monotonic() < deadline, f"{what} changes all the time: {now}"
            seen, since = now, time.monotonic()
