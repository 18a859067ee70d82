"""Results that lose credentials at this door, because the configuration says so.

The end of such a call is told twice: as it came, and then, by a task, with the scrubbed result (`Scrubbed`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from ...actors import in_turns
from .._jobs import Work
from .._room import Scrubber, WholeCall


@attrs.frozen
class Scrubbed:
    """The end of a call with a result that has been scrubbed."""

    result: bytes
    protocol_version: str | None
    error: None = None
    met_a_start: bool = False

    def cancel(self) -> None:
        pass


def scrubbing(scrubber: Scrubber, call: WholeCall, then: Callable[..., None], *what: Any) -> Work:
    """Work that scrubs the result of `call` in slices, and then calls `then(*what, …)` with its end."""
    return partial(_scrub, scrubber, call.result or b"", call.protocol_version, partial(then, *what))


async def _scrub(
    scrubber: Scrubber, raw: bytes, version: str | None, then: Callable[[WholeCall], None]
) -> None:
    then(Scrubbed(await in_turns(scrubber.scrubbing(raw)), version))
