"""The sum of a run: what became of every call."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..actors import Tally
from ..protocol.plain_text import counted


@attrs.frozen
class DrainReport:
    """The sum of a run: `completed + failed + cancelled == accepted`. While the room is open (`is_final` is false),
    calls without an outcome are `open`.

    `refused` calls were never accepted. `refusals` has the number of them for each error code.
    """

    accepted: int
    completed: int
    failed: int
    cancelled: int
    refused: int
    refusals: Mapping[str, int] = attrs.field(factory=dict[str, int])
    open: int = 0
    is_final: bool = True

    @property
    def adds_up(self) -> bool:
        return self.completed + self.failed + self.cancelled + self.open == self.accepted

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {code}" for code, count in self.refusals.items())
        why = f": {reasons}" if reasons else ""
        return (
            f"{counted(self.accepted, 'call')} accepted: {self.completed} completed, {self.failed} failed, "
            f"{self.cancelled} cancelled{f', {self.open} open' if self.open else ''} ({self.refused} refused{why})"
        )


def report_of(tally: Tally, *, is_final: bool) -> DrainReport:
    return DrainReport(
        tally.accepted,
        tally.completed,
        tally.failed,
        tally.cancelled,
        tally.refused,
        dict(sorted(tally.refusals.items())),
        0 if is_final else tally.open,
        is_final,
    )
