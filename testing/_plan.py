"""Which run of a scenario: all that differs from the default, as data and as a short text.

    trio                                 every choice in the default order
    trio:12=1,15=2/cancel=worker@5       choices 12 and 15 are made otherwise; worker is cancelled in its fifth turn
    asyncio/fault=dies                   the scenario was given the fault of that name

Only deviations are written down: a run has hundreds of choices, and few of them matter. Rejected: the whole list of
choices (`0.0.1.0…`), which nobody could compare by eye.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import attrs

from ..protocol.errors import UsageError

Backend = Literal["trio", "asyncio"]

_TEXT: Final = re.compile(
    r"(?P<backend>\w+)(:(?P<picks>\d+=\d+(,\d+=\d+)*))?(/cancel=(?P<task>[^/]+)@(?P<turn>\d+))?(/fault=(?P<fault>[^/]+))?"
)


@attrs.frozen
class Cancel:
    """Cancel this task when it is about to live for its `turn`-th turn of the loop, from 1 (after its first step)."""

    task: str
    turn: int


@attrs.frozen
class Plan:
    """One run."""

    backend: Backend
    picks: tuple[tuple[int, int], ...] = ()  # (number of the choice, which way), ascending
    cancel: Cancel | None = None
    fault: str | None = None

    def picking(self, choice: int, pick: int) -> Plan:
        """This, and one more deviation."""
        return attrs.evolve(self, picks=(*self.picks, (choice, pick)))

    def __str__(self) -> str:
        picks = ",".join(f"{choice}={pick}" for choice, pick in self.picks)
        cancel = f"/cancel={self.cancel.task}@{self.cancel.turn}" if self.cancel else ""
        fault = f"/fault={self.fault}" if self.fault is not None else ""
        return f"{self.backend}{':' if picks else ''}{picks}{cancel}{fault}"


def backend_of(name: str) -> Backend:
    """The backend of that name. Raises `UsageError` when it is none."""
    if name not in ("trio", "asyncio"):
        raise UsageError(f"{name!r} is no backend: say trio or asyncio.")
    return name


def parse_plan(text: str) -> Plan:
    """The plan that is written so. Raises `UsageError` when nothing is."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is no schedule: copy the text that a failed exploration has printed, like "
            "trio:12=1,15=2/cancel=worker@5/fault=dies."
        )
    pairs = (pair.split("=") for pair in (found["picks"] or "").split(",") if pair)
    return Plan(
        backend_of(found["backend"]),
        tuple((int(choice), int(pick)) for choice, pick in pairs),
        Cancel(found["task"], int(found["turn"])) if found["task"] else None,
        found["fault"],
    )
