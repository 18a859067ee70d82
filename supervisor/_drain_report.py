"""The sum of a run: what became of every call."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class DrainReport:
    """The sum of a run: `completed + failed + cancelled == accepted`.

    `refused` calls were never accepted. `refusals` has the number of them for each error code.
    """

    accepted: int
    completed: int
    failed: int
    cancelled: int
    refused: int
    refusals: Mapping[str, int] = attrs.field(factory=dict[str, int])

    @property
    def adds_up(self) -> bool:
        return self.completed + self.failed + self.cancelled == self.accepted

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {code}" for code, count in self.refusals.items())
        why = f": {reasons}" if reasons else ""
        return (
            f"{self.accepted} calls accepted: {self.completed} completed, {self.failed} failed, "
            f"{self.cancelled} cancelled ({self.refused} refused{why})"
        )
