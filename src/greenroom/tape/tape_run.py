"""What an agent asked of its tools in one run over a tape, and assertions about it.

A call counts once it goes to its server: one that nobody allowed, or of a tool that there is not, is none. It is kept
by the name that it was called by and with a copy of its arguments, so that lists can be compared as they are. The
assertions are those that a comparison of lists says badly; each tells all that was called.

An assertion about a tool that no server has would always hold. So it is refused, unless there is a server of which
nobody knows yet what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ..protocol.safe_text import counted, printable
from .call_matching import compared, kind_of, plain

if TYPE_CHECKING:
    from ..actors.call import Call

MOST: Final = 100_000  # calls that are kept
_SHOWN: Final = 40  # calls in a message
_LONGEST: Final = 200  # characters of arguments in a message
SUBSCRIBES: Final = ("resources/subscribe", "resources/unsubscribe")  # no call in the newest version of MCP
Names = Callable[[], Collection[str] | None]  # of all tools; None: not all are known
_Sent = tuple[int, str, dict[str, Any]]  # when a call was sent, its tool and arguments


class TapeRun:
    """What was called in one run, while a tape was recorded or replayed."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str, Mapping[str, Any]]] = []  # server, method, params: not on the tape
        self.refusals: list[str] = []  # the same in words, each with the nearest recorded call
        self.differences: list[str] = []  # what was answered, and not as it went on the tape; in words
        self.names: Names = lambda: None  # gives the names of all tools; None: not all are known
        self._calls: dict[int, _Sent] = {}
        self._is_cut = False

    @property
    def made(self) -> list[tuple[str, dict[str, Any]]]:
        """The tool and the arguments of each call, in the order of sending. While a tape is recorded, only calls that
        have ended. Raises `AssertionError` after more than 100,000 calls, because the others were not kept."""
        __tracebackhide__ = True
        if self._is_cut:
            raise AssertionError(f"There were more than {MOST:,} calls, and no more are kept.")
        return [(tool, arguments) for _, tool, arguments in sorted(self._calls.values(), key=itemgetter(0))]

    @property
    def untaken(self) -> list[dict[str, Any]]:
        """Recorded calls that nobody has made so far, as in `greenroom tape --json`. Empty while a tape is recorded."""
        return []

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """The arguments of each call of this tool, in the order in which they were sent. Raises `AssertionError` for a
        tool that does not exist."""
        __tracebackhide__ = True
        found = [arguments for name, arguments in self.made if name == tool]
        if not found:
            self._check_name(tool)
        return found

    def called_once(self, tool: str) -> dict[str, Any]:
        """Assert that this tool was called exactly once, and return the arguments. Raises `AssertionError`."""
        __tracebackhide__ = True
        found = self.calls(tool)
        if len(found) != 1:
            self._fail(f"{tool} was called {counted(len(found), 'time')}, not once")
        return found[0]

    def never_called(self, *tools: str) -> None:
        """Assert that none of these tools was called. Raises `AssertionError`, also for a tool that does not exist."""
        __tracebackhide__ = True
        for tool in tools:
            if self.calls(tool):
                self._fail(f"{tool} was called")

    def before(self, first: str, then: str) -> None:
        """Assert that both tools were called, and `first` before any call of `then`. Raises `AssertionError`."""
        __tracebackhide__ = True
        order = [name for name, _ in self.made]
        for tool in (first, then):
            if tool not in order:
                self._check_name(tool)
                self._fail(f"{tool} was not called")
        if order.index(first) > order.index(then):
            self._fail(f"{then} was called before {first}")

    def note(self, call: Call) -> None:
        """This call was sent, perhaps once more."""
        if not call.order or call.number in self._calls or call.method in SUBSCRIBES:
            return
        if len(self._calls) >= MOST:
            self._is_cut = True
            return
        params: Any = plain(call.params or {})
        name = call.tool or kind_of(call.method, params).strip()
        self._calls[call.number] = call.order, name, params.get("arguments") or {}

    def _fail(self, what: str) -> None:
        __tracebackhide__ = True
        raise AssertionError("\n".join([f"{printable(what)}. Calls of this run:", *self._told()]))

    def _check_name(self, tool: str) -> None:
        __tracebackhide__ = True
        names = self.names()
        if names is None or tool in names:
            return
        near = get_close_matches(tool, names, 3) or sorted(names)[:_SHOWN]
        raise AssertionError(
            printable(f"There is no tool {tool}, so nobody can call it. There is: {', '.join(near)}")
        )

    def _told(self) -> Iterator[str]:
        made = self.made
        for number, (name, arguments) in enumerate(made[:_SHOWN], 1):
            yield printable(f"  {number}. {name} {compared(arguments)[:_LONGEST]}")
        if len(made) > _SHOWN:
            yield f"  and {len(made) - _SHOWN:,} more"
        if not made:
            yield "  none"
