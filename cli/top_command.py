"""`greenroom top`: what the servers of a running gateway do, again and again.

It asks over the control socket once per tick, so a gateway that nobody watches pays nothing. On a terminal it is a
screen of its own, which is left as it was found, however the command ends. Anywhere else it is one table of plain text.
While no gateway runs, the screen waits for one.

Where there is a keyboard, calls that wait for approval are decided here (`WaitingCalls`, `Desks`). Each look tells
the gateways that somebody watches, for as long as it takes to the next look and a little more.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError
from ..protocol.safe_text import counted, one_line, printable
from ..protocol.status import wait_in_words
from .common import common_options, elsewhere_in_words, open_source, read_config, show
from .query_commands import calls_wait, connected_in_words
from .wrapping import columns_of, on_terminal, wrap

if TYPE_CHECKING:
    from rich.console import RenderableType


# --------------------------------------------------------------------------------------------------------------
#
#
# The calls that wait for approval, at the head of `greenroom top`, and the keys that decide about them.
#
# A key decides about the call that is marked, and only a person marks one. Nothing is marked by itself: when the marked
# call goes away, no other takes its place. Otherwise a key that was pressed for one call could allow another. Keys that
# were pressed before the marked call was shown in full are forgotten.

UP: Final = "up"
DOWN: Final = "down"
KEYS: Final = "Tab or arrows choose a call; y allows it once, s for its session, n refuses it"
_STEPS: Final[Mapping[str, int]] = {UP: -1, "k": -1, DOWN: 1, "j": 1, "\t": 1}
_VERDICTS: Final[Mapping[str, tuple[str, str]]] = {
    "y": ("once", "allowed once"),
    "s": ("session", "allowed for its session"),
    "n": ("deny", "refused"),
}
_LINES: Final = 8  # of calls that are not marked
# The pid of a gateway, the number of a call there, and a verdict; returns why it could not be done.
Decide = Callable[[int, int, str], str | None]
Which = tuple[int, int]  # the pid of a gateway, and the number of a call there


class WaitingCalls:
    def __init__(self) -> None:
        self.said = ""  # what the last key did
        self.marked: Which | None = None
        self._calls: Sequence[Mapping[str, Any]] = ()
        self._count = 0

    def see(self, calls: Sequence[Mapping[str, Any]], count: int) -> None:
        """Take the calls that wait now: the first ones, of `count`."""
        self._calls, self._count = calls, count
        if self.marked not in self._all:
            self.marked = None

    @property
    def _all(self) -> list[Which]:
        return [_which(call) for call in self._calls]

    def press(self, key: str, decide: Decide) -> bool:
        """Handle a key. Returns whether it has marked another call."""
        if key in _STEPS and self._calls:
            every = self._all
            step = _STEPS[key]
            place = every.index(self.marked) + step if self.marked is not None else min(step, 0)
            self.marked, self.said = every[place % len(every)], ""
            return True
        if key in _VERDICTS and self._calls:
            verdict, done = _VERDICTS[key]
            if self.marked is None:
                self.said = "Choose a call first, with Tab or the arrow keys."
            else:
                (pid, number), self.marked = self.marked, None
                self.said: str = decide(pid, number, verdict) or f"Call {number}: {done}."
        return False

    def lines(self, width: int, height: int) -> list[tuple[str, str]]:
        """The lines to show, each with its style: the marked call in full, then one line for each other call."""
        if not self._count:
            return [(self.said, "dim")] if self.said else []
        head = "1 call waits for approval" if self._count == 1 else f"{self._count} calls wait for approval"
        lines = [(head, "bold yellow"), (KEYS, "dim")]
        if self.said:
            lines.append((one_line(self.said, 300), "bold"))
        marked = next((call for call in self._calls if _which(call) == self.marked), None)
        if marked is not None:
            question = printable(marked["question"]).splitlines()
            lines += [(self._head(marked, "▶"), "bold"), *((line, "") for line in question)]
            if sum(1 + len(text) // width for text, _ in lines) > height - 2:
                at = 3 + bool(self.said)
                text = (
                    "It does not fit into this window. Make that larger, or read it with greenroom approve."
                )
                lines.insert(at - 1, (text, "bold red"))
        others = [call for call in self._calls if call is not marked]
        lines += [(f"{self._head(call, ' ')}: {_arguments(call)}"[:width], "") for call in others[:_LINES]]
        more = self._count - len(others[:_LINES]) - (marked is not None)
        return [*lines, (f"  and {more} more", "dim")] if more > 0 else lines

    def _head(self, call: Mapping[str, Any], mark: str) -> str:
        who = one_line(call["session"] or "the room itself", 30)
        tool = one_line(f"{call['tool']} of {call['server']}", 60)
        return f"{mark} {call['number']} {tool}, for {who}, {call['left']:.0f} s left"

    def shown(self, width: int, height: int) -> Sequence[RenderableType]:
        from rich.text import Text

        return [Text(text, style=style) for text, style in self.lines(width, height)]


def _which(call: Mapping[str, Any]) -> Which:
    return call["pid"], call["number"]


def _arguments(call: Mapping[str, Any]) -> str:
    """The part of the question that differs from call to call, on one line."""
    return one_line(call["question"].partition("Arguments: ")[2].rpartition("\n")[0], 200)


HEAD: Final = ("server", "state", "tools", "calls", "queued", "restarts", "memory", "pid", "waits for")
_RIGHT: Final = frozenset({"tools", "calls", "queued", "restarts", "memory", "pid"})
_COLOURS: Final = {"connected": "green", "connecting": "yellow", "draining": "magenta", "failed": "red"}
_NONE: Final = "No gateway runs for this configuration; waiting for one."
_KEYS: Final = "q quits"
_WIDE: Final = 100  # columns of a window that also has room for memory and pid
_SCROLL: Final = {"\t": 0, UP: -1, "k": -1, DOWN: 1, "j": 1, "b": -8, " ": 8}  # lines
_LATE: Final = 4.0  # seconds by which a look may be late before the gateway takes it that nobody watches
_ARROWS: Final = {
    "A": UP,
    "B": DOWN,
    "Z": UP,
    "5": "b",
    "6": " ",
}  # the last character of what such a key sends; Z: with Shift and Tab; 5, 6: by pages


@click.command("top")
@click.option("--once", is_flag=True, help="Print one table and end, as without a terminal.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@common_options
def top_command(once: bool, every: float, config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Watch the servers of the running gateway: states, calls, restarts, memory.

    Calls that wait for approval are shown first: choose one with Tab, then y allows it once, s for its session, and n
    refuses it. q or Ctrl-C ends it.
    """
    if once or as_json or not sys.stdout.isatty():
        source = open_source(config_path, pid)
        details = source.status()
        rows = [dict(zip(HEAD, row, strict=True)) for row in table(details)]
        waiting = details.get("waitingForApproval", 0)
        if on_terminal():
            shown = [line for line, _ in _lines(details, columns_of(sys.stdout))]
        else:
            shown = plain(table(details))
        lines = [*shown, summary(details), *([calls_wait(waiting)] if waiting else ())]
        show("\n".join(lines), {"rows": rows, "waitingForApproval": waiting, **source.origin}, as_json)
        return
    name = name_of(read_config(config_path))
    with _terminal() as keys:
        _watch(name, pid, every, keys)


def table(details: Mapping[str, Any], most: int = 60) -> list[tuple[str, ...]]:
    """A row of texts for each address; further addresses of a server follow it."""
    further: Sequence[Mapping[str, Any]] = details.get("addresses", ())
    rows: list[tuple[str, ...]] = []
    for server in details["servers"]:
        rows.append(_row(str(server["name"]), server, str(server["status"]).replace("-", " "), most))
        for each in further:
            if each["name"] == server["name"]:
                rows.append(_row(str(each["scope"]), each, str(each["state"]), most, before="  "))
    return rows


def plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """The table as lines for a pipe or a file."""
    return _aligned((HEAD, *rows))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, whose cells stand below those of the first, the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if head in _RIGHT else text.ljust(width)
            for head, text, width in zip(rows[0], row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def summary(details: Mapping[str, Any]) -> str:
    rows = (*details["servers"], *details.get("addresses", ()))
    calls, queued = (sum(row[key] for row in rows) for key in ("inFlight", "queued"))
    said = f"{connected_in_words(details)}, {counted(calls, 'call')} in flight, {queued} queued"
    if "background" in details:
        clients = len(details["background"]["clients"])
        said += f", {counted(clients, 'client')} attached"
    return said


def _row(name: str, server: Mapping[str, Any], state: str, most: int, *, before: str = "") -> tuple[str, ...]:
    wait = wait_in_words(server.get("waitingFor"), server.get("waiting"), server.get("retryIn"))
    reasons = (wait, *(server.get(key) for key in ("down", "broken", "failure")))
    why = "; ".join(dict.fromkeys(each for each in reasons if each))
    return (
        before + one_line(name, 40),
        state if server["state"] in ("idle", "connected", "closed") else str(server["state"]),
        str(server["toolCount"]) if server.get("cached", True) else "?",
        str(server["inFlight"]),
        str(server["queued"]),
        str(max(0, server["incarnation"] - 1)),
        _memory(server["pid"]),
        str(server["pid"] or ""),
        one_line(why, most),
    )


def _memory(pid: int | None) -> str:
    """The memory of the server's own process, where the system tells it without a library (Linux)."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) if pid else 0
        return f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB" if pages else ""
    return ""


# ---- on a terminal -------------------------------------------------------------------------------------------
class Keys(Protocol):
    can_type: bool

    def within(self, seconds: float) -> str:
        """The next key, or "" after so many seconds."""
        ...

    def forget(self) -> None:
        """Forget the keys that were pressed until now."""
        ...


def _watch(name: str, pid: int | None, every: float, keys: Keys) -> None:
    from rich.console import Console
    from rich.live import Live

    gateway: control.Gateway | None = None
    calls, desks, console = WaitingCalls(), Desks(name, pid), Console()
    watching = every + _LATE if keys.can_type else None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            is_marked, first = False, 0
            while True:
                gateway, details = _ask(gateway, name, pid)
                calls.see(*desks.look(watching))
                if is_marked:
                    keys.forget()
                waiting = calls.shown(*console.size)
                shown = _screen(gateway, details, waiting, console.size, first)
                live.update(shown, refresh=True)
                key = keys.within(every)
                if key in ("q", "Q", "\x1b"):
                    return
                is_marked = calls.press(key, desks.decide)
                if key in _SCROLL and not is_marked and not isinstance(details, str):
                    count = len(_lines(details, console.width)) - 1
                    last = count - _room(waiting, *console.size)
                    first = max(0, min(first + _SCROLL[key], last))
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
            others = (elsewhere_in_words(one, "top") for one in control.find_elsewhere(name))
            return None, "; ".join((_NONE, *others))
        return gateway, gateway.ask("status", quickly=True)
    except GreenroomError as error:
        if gateway is not None:
            gateway.connection.close()
        return None, error.message


def _screen(
    gateway: control.Gateway | None,
    details: Mapping[str, Any] | str,
    calls: Sequence[RenderableType],
    size: tuple[int, int],
    first: int,
) -> RenderableType:
    """The calls that wait, and as much of the table as fits, from its line `first` on."""
    from rich.console import Group
    from rich.text import Text

    if isinstance(details, str):
        return Group(Text(one_line(details)), Text(_KEYS, style="dim"))
    width, height = size
    (title, _), *lines = _lines(details, width)
    room = _room(calls, width, height)
    first = max(0, min(first, len(lines) - room))
    keys = _KEYS
    if len(lines) > room:
        keys += f"; arrows, space and b scroll: {first + 1} to {first + room} of {len(lines)} lines"
    head = f"gateway {gateway.pid}" if gateway is not None else "gateway"
    seen = [Text(text, style=style, no_wrap=True) for text, style in lines[first : first + room]]
    top = Text(f"{head}: {summary(details)}", no_wrap=True, overflow="ellipsis")
    return Group(*calls, top, Text(title, style="bold", no_wrap=True), *seen, Text(keys, style="dim"))


def _room(calls: Sequence[RenderableType], width: int, height: int) -> int:
    """The lines of the table that fit below the calls, besides its header and what stands around it."""
    return max(1, height - sum(1 + len(str(call)) // width for call in calls) - 4)


def _lines(details: Mapping[str, Any], width: int) -> list[tuple[str, str]]:
    """The lines of the table for a window of this width, each with its style. Below a server is the reason why it waits
    or failed."""
    rows = table(details, most=2_000)
    shown = len(HEAD) - 1 if width >= _WIDE else HEAD.index("memory")
    lines: list[tuple[str, str]] = []
    for row, line in zip((HEAD, *rows), _aligned([row[:shown] for row in (HEAD, *rows)]), strict=True):
        style = _COLOURS.get(row[1], "")
        lines.append((line, style))
        if row is not HEAD and row[-1]:
            lines += [(line, style) for line in wrap(f"    {row[-1]}", width)]
    return lines


class NoKeyboard:
    can_type = False

    def __init__(self, bell: int) -> None:
        self._bell = bell

    def within(self, seconds: float) -> str:
        _wait(seconds, self._bell)
        return ""

    def forget(self) -> None: ...


class Keyboard:
    """Standard input, where keys come one by one."""

    can_type = True

    def __init__(self, bell: int) -> None:
        self._bell = bell

    def within(self, seconds: float) -> str:
        if not _wait(seconds, self._bell, 0):
            return ""
        said = os.read(0, 64).decode("utf-8", "replace") or "q"  # its end is an end
        if said[:2] in ("\x1b[", "\x1bO"):
            return _ARROWS.get(said[2:3], "other")
        return said[0]  # what else is there was typed before anybody could see what the first key did

    def forget(self) -> None:
        import termios

        termios.tcflush(0, termios.TCIFLUSH)


def _wait(seconds: float, bell: int, *keys: int) -> bool:
    """Wait for a key or a signal. True: there is a key. A signal ends the wait, also when it came just before: `bell`
    can be read then, and its handler has run when the wait is over."""
    import select

    ready, _, _ = select.select([*keys, bell], [], [], seconds)
    if bell in ready:
        os.read(bell, 64)
    return any(key in ready for key in keys)


@contextmanager
def _terminal() -> Generator[Keys]:
    """Keys come one by one and are not shown. The terminal is put back at the end, also after a SIGTERM."""
    import termios
    import tty

    with _bell() as bell, _ended_by_sigterm():
        if not os.isatty(0):
            yield NoKeyboard(bell)
            return
        before = termios.tcgetattr(0)
        try:
            tty.setcbreak(0)
            yield Keyboard(bell)
        finally:
            termios.tcsetattr(0, termios.TCSAFLUSH, before)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Close everything that is open after a SIGTERM too."""

    def ended(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bell() -> Generator[int]:
    """A descriptor that can be read when a signal has come. Without it, one that comes just before a wait begins
    is not seen before the wait is over."""
    bell, rope = os.pipe()
    try:
        os.set_blocking(bell, False)
        os.set_blocking(rope, False)
        before = signal.set_wakeup_fd(rope, warn_on_full_buffer=False)
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(bell)
        os.close(rope)


# ---- The desks of all gateways that `greenroom top` watches, each over a connection of its own ----------------------
#
# A configuration may have several gateways, one for each client, and a call may wait in any of them. So all are looked
# at, not only the one whose servers are shown; with `--pid`, that one alone. One that does not answer is left alone for
# a while, because every look at it takes two seconds, in which the others would not be watched.

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
