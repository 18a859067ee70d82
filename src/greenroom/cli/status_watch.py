"""`greenroom status --watch`: rich's live display of the status, over a screen of its own.

It asks over the control socket once per tick, so a gateway that nobody watches pays nothing. While no gateway runs, it
waits for one. Each look tells the gateways that somebody watches, for as long as it takes to the next look and a little
more: so calls that have to be allowed wait for `greenroom approve`.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError
from ..protocol.safe_text import one_line
from .running_gateways import elsewhere_in_words
from .status_lines import held_lines, overall, table_lines
from .tables import MARKS, console

if TYPE_CHECKING:
    from rich.console import Group

    from ..config.model import Config

_LATE: Final = 4.0  # seconds by which a look may be late before the gateway takes it that nobody watches
_CALLS: Final = 8  # that are shown
_LEFT_ALONE: Final = 30.0  # seconds for which a gateway that does not answer is not asked
_NONE: Final = "No gateway runs for this configuration; waiting for one."
_KEYS: Final = "Ctrl-C ends"
Line = tuple[str, str]  # its style, and its text


def watch_status(config: Config, pid: int | None, every: float, *, is_wide: bool) -> None:
    """Show the status until Ctrl-C. `every`: seconds between two looks."""
    from rich.live import Live

    gateway: control.Gateway | None = None
    name, screen = name_of(config), console()
    desks = Desks(name, pid)
    try:
        with _ended_by_sigterm(), Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                gateway, details = _ask(gateway, name, pid)
                calls, count = desks.look(every + _LATE)
                lines = [*_waiting(calls, count), *_status(gateway, details, screen.width, is_wide)]
                live.update(shown_in(lines, screen.height), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        desks.close()
        if gateway is not None:
            gateway.connection.close()


def _ask(
    gateway: control.Gateway | None, name: str, pid: int | None
) -> tuple[control.Gateway | None, Mapping[str, Any] | str]:
    """The gateway that answered, and its answer; or why there is none."""
    try:
        gateway = gateway or control.find_gateway(name, pid)
        if gateway is None:
            others = (elsewhere_in_words(one) for one in control.find_elsewhere(name))
            return None, "; ".join((_NONE, *others))
        return gateway, gateway.ask("status", quickly=True)
    except GreenroomError as error:
        if gateway is not None:
            gateway.connection.close()
        return None, error.message


def _waiting(calls: Sequence[Mapping[str, Any]], count: int) -> Iterator[Line]:
    """The calls that wait for approval, before anything else."""
    if not count:
        return
    waits = "1 call waits" if count == 1 else f"{count} calls wait"
    yield "bold yellow", f"{waits} for approval. To read and decide, in another terminal: greenroom approve"
    for call in calls[:_CALLS]:
        who = one_line(call["session"] or "the room itself", 30)
        tool = one_line(f"{call['tool']} of {call['server']}", 60)
        arguments = call["question"].partition("Arguments: ")[2].rpartition("\n")[0]
        yield (
            "",
            one_line(f"  {call['number']} {tool}, for {who}, {call['left']:.0f} s left: {arguments}", 300),
        )
    if count > len(calls[:_CALLS]):
        yield "dim", f"  and {count - len(calls[:_CALLS])} more"
    yield "", ""


def _status(
    gateway: control.Gateway | None, details: Mapping[str, Any] | str, width: int, is_wide: bool
) -> Iterator[Line]:
    if isinstance(details, str):
        yield "", one_line(details)
        return
    yield from (("", line) for line in held_lines(details))
    for mark, line in table_lines(details, width, is_wide=is_wide):
        yield MARKS.get(mark, "bold"), line
    yield "", ""
    yield from (("", line) for line in overall(details))
    yield "dim", f"gateway {gateway.pid if gateway is not None else ''}. {_KEYS}."


def shown_in(lines: Sequence[Line], height: int) -> Group:
    """As many of the lines as fit, each cut at the edge of the window."""
    from rich.console import Group
    from rich.text import Text

    if len(lines) > height:
        left = f"… and {len(lines) - height + 1} more lines, for which this window is too low. {_KEYS}."
        lines = [*lines[: height - 1], ("dim", left)]
    return Group(*(Text(text, style=style, no_wrap=True, overflow="ellipsis") for style, text in lines))


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Leave the screen as it was after a SIGTERM, too."""

    def ended(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Desks:
    """The gateways in which a call may wait, each over a connection of its own. A configuration may have several, one
    for each client, so all are looked at; with a `pid`, that one alone. One that does not answer is left alone for a
    while, because every look at it takes two seconds, in which the others would not be watched."""

    def __init__(self, config: str, pid: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._pid = pid
        self._clock = clock
        self._open: dict[int, control.Gateway] = {}
        self._silent: dict[int, float] = {}  # until when each is left alone

    def look(self, watching: float) -> tuple[Sequence[Mapping[str, Any]], int]:
        """The calls that wait, each with its gateway's `pid`, and how many there are. `watching`: for how many seconds
        this look counts."""
        self._find()
        calls: list[Mapping[str, Any]] = []
        count = 0
        for pid, gateway in tuple(self._open.items()):
            try:
                said = gateway.ask("approvals", quickly=True, watching=watching)
            except GreenroomError as error:
                self._drop(pid, error)
            else:
                calls += ({**call, "pid": pid} for call in said["approvals"])
                count += said["waitingForApproval"]
        return calls, count

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


def _untold(_error: object) -> None: ...
