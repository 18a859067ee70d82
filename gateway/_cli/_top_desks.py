"""The desks of all gateways that `greenroom top` watches, each over a connection of its own.

A configuration may have several gateways, one for each client, and a call may wait in any of them. So all are looked
at, not only the one whose servers are shown; with `--pid`, that one alone. One that does not answer is left alone for a
while, because every look at it takes two seconds, in which the others would not be watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...protocol.errors import GreenroomError
from .. import _control_client as control

_LEFT_ALONE: Final = 30.0  # seconds


class Desks:
    def __init__(self, config: str, pid: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._pid = pid
        self._clock = clock
        self._open: dict[int, control.Gateway] = {}
        self._silent: dict[int, float] = {}  # until when each is left alone

    def look(self, watching: float | None) -> tuple[Sequence[Mapping[str, Any]], int]:
        """The calls that wait, each with its gateway's `pid`, and how many there are. `watching`: for how many seconds
        this look counts; None: nobody could answer here."""
        asked = {} if watching is None else {"watching": watching}
        self._find()
        calls: list[Mapping[str, Any]] = []
        count = 0
        for pid, gateway in tuple(self._open.items()):
            try:
                said = gateway.ask("approvals", quickly=True, **asked)
            except GreenroomError as error:
                self._drop(pid, error)
            else:
                calls += ({**call, "pid": pid} for call in said["approvals"])
                count += said["waitingForApproval"]
        return calls, count

    def decide(self, pid: int, number: int, verdict: str) -> str | None:
        """Answer the call with this number there. Returns why it could not be done."""
        try:
            gateway = self._open.get(pid)
            if gateway is None:
                return f"The gateway {pid} has gone, and its call with it."
            gateway.ask("approve", quickly=True, number=number, verdict=verdict)
        except GreenroomError as error:
            self._drop(pid, error)
            return error.message
        return None

    def close(self) -> None:
        for gateway in self._open.values():
            gateway.connection.close()

    def _find(self) -> None:
        now = self._clock()
        self._silent = {pid: until for pid, until in self._silent.items() if until > now}
        try:
            config = self._config if self._pid is None else None
            for gateway in control.find_gateways(config, _untold, (*self._open, *self._silent)):
                if self._pid in (None, gateway.pid):
                    self._open[gateway.pid] = gateway
                else:
                    gateway.connection.close()
        except GreenroomError:
            return  # the rest of the screen tells why no gateway can be looked for

    def _drop(self, pid: int, error: GreenroomError) -> None:
        """A refused request may have broken the connection. The next look makes another."""
        self._open.pop(pid).connection.close()
        if error.code in ("gateway_silent", "invalid_request"):  # or an older one, which has no desk
            self._silent[pid] = self._clock() + _LEFT_ALONE


def _untold(_text: str) -> None: ...
