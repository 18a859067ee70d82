"""What a person may know of a server: one frozen object per address, read by the status page, the CLI and the tests."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..protocol.lifecycle import State


@attrs.frozen
class ServerStatus:
    server: str
    scope: str
    lifecycle: str
    state: State
    incarnation: int
    in_flight: int = 0
    queued: int = 0
    waiting_for: str | None = None  # on its way to its connection: gate, slot, permit …, or the install
    waiting: float | None = None  # seconds it has been there, or has been connecting
    last_line: str | None = None  # what it wrote last to its stderr while it connects
    tool_count: int | None = None  # None: unknown
    cached: bool = False  # something is known of it, from this run or from the cache
    problems: tuple[str, ...] = ()  # what is missing from its lists and why: one that was cut, or failed
    pid: int | None = None
    failure: str | None = None  # why it last failed; cleared when it connects
    failed_ago: float | None = None  # seconds
    retry_in: float | None = None  # seconds until the gate passes again; None when it is open
    needs_auth: bool = False
    disabled: bool = False
    broken: str | None = None  # its definition cannot be used: why
    down: str | None = None  # stopped on purpose: a call does not bring it back
    faults: tuple[str, ...] = ()  # what of its lists clients would refuse, and what was done about it

    @property
    def connecting(self) -> bool:
        return self.state is State.CONNECTING

    @property
    def connected(self) -> bool:
        return self.state is State.CONNECTED


@attrs.frozen
class DrainReport:
    """The sum of a run: `completed + failed + cancelled == accepted`.

    `refused` calls were never accepted; `refusals` says why, as how many there were of each error code.
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
