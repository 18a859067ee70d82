"""Finds the tools of a room by meaning, through a child that computes (`catalogue/_meaning_program.py`).

The child is guarded and ended like a server's, and lasts as long as the room. It is told the text of each tool once,
when the catalogue has changed. A text has a number, in the order of telling; that is all the child knows of a tool. It
makes the vectors, so nobody here waits for them. A query waits for its answer a short while at most; without one, what
is found by words is the answer. The texts that a session's own servers list are not told.

Whatever is wrong with the child (it ends, does not answer, or answers what cannot be read), it is an optional part: the
log says so once, and it is started again. What is missing (the model, numpy) is said once, and not tried again before
the setting changes.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from ..actors.peer import AskOnlyHooks, EndCallback, Exchange, LostReason
from ..actors.timers import at_most
from ..actors.workers import OptionalPart, aside_if_many
from ..protocol.bounds import MEANINGS
from ..protocol.errors import ConnectFailed
from ..protocol.events import Kind
from ..protocol.jsonrpc.terms import INTERNAL_ERROR

if TYPE_CHECKING:
    from ..actors.event_stream import EventStream
    from ..actors.peer import Connection, Connector
    from ..catalogue.index import Index
    from ..protocol.jsonrpc.terms import RpcError

NAME: Final = "finding by meaning"
LINE: Final = 64 << 20  # bytes
# Seconds after the room has opened, and after a change: others come first, and more changes.
SOON: Final = 0.5
_WITHIN: Final = 0.25  # seconds that a query waits
ANSWERS_WITHIN: Final = 60.0  # seconds, also while it loads the model
_GRACE: Final = 0.5  # seconds in which the child keeps what it has made, and ends
_AT_ONCE: Final = 200  # texts
_JUNK, _SILENT = "answered what cannot be read", "does not answer"
_NEAREST: Final = 10_000  # of all that the child knows; a client may see few of them


def command() -> tuple[str, ...]:
    """What starts the child."""
    root = str(Path(__file__).parents[2])  # where a program found us, who may not be installed
    code = f"import sys; sys.path.append({root!r}); from greenroom.catalogue._meaning_program import main; main()"
    return (sys.executable, "-P", "-B", "-c", code)


class MeaningSearch:
    """`model`: the setting; `place`: the catalogue's file, beside which vectors are kept; `settled`: the room's index,
    with all that servers have listed; `connector`: of a new child; `tell`: takes a line for the log."""

    def __init__(
        self,
        model: str | bool,
        place: Path | None,
        max_age: float,
        *,
        connector: Callable[[], Connector],
        events: EventStream,
        settled: Callable[[], Awaitable[Index]],
        tell: Callable[[str], object],
    ) -> None:
        if isinstance(model, str):
            model = str(Path(model).expanduser().absolute())
        self._told = {"model": model, "place": None if place is None else str(place), "max_age": max_age}
        self._connector = connector
        self._events = events
        self._settled = settled
        self._tell = tell
        self._scope = anyio.CancelScope()
        self._child: _MeaningProcess | None = None
        self._news: anyio.Event = anyio.Event()

    async def run(self) -> None:
        """Keep the child, and tell it what there is to find. Until `end`, or until something is missing."""
        with self._scope:
            await anyio.sleep(SOON)
            part = OptionalPart(NAME, self._tell, "Tools are found by their words alone.")
            await part.keep(partial(self._run_child, part))

    def end(self) -> None:
        """End the child; nothing is found by meaning any more."""
        self._scope.cancel()

    async def near(self, index: Index, query: str) -> Sequence[bytes]:
        """The keys of what is near to the query in meaning, the nearest first, with all that `index` has of it."""
        child = self._child
        if child is None or not query.strip():
            return ()
        places = await aside_if_many(index.size, lambda: index.by_meaning)
        async with at_most(_WITHIN) as scope:
            with suppress(ConnectFailed, _MissingError):
                answer = await child.ask("nearest", {"query": query, "most": _NEAREST})
                return [key for key in child.named_in(answer) if key in places]
        if scope.cancelled_caught:
            child.was_late()
        return ()

    async def _run_child(self, part: OptionalPart) -> None:
        child = _MeaningProcess()
        async with self._connector().open(child) as connection:
            child.connection = connection
            try:
                await child.tell("begin", self._told)
            except _MissingError as error:
                self._tell(f"{NAME}: {error}. Tools are found by their words alone.")
                return
            part.works()
            self._child = child
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._tell_of_tools, child)
                    await child.over.wait()
                    child.check()
            finally:
                self._child = None
                with anyio.CancelScope(shield=True):
                    await connection.stop(_GRACE)

    async def _tell_of_tools(self, child: _MeaningProcess) -> None:
        """Tell the child of all tools, and of each new one, for ever."""
        known = set[bytes]()
        with closing(self._events.listen(lambda _: self._news.set(), [Kind.CATALOGUE])):
            while True:
                self._news = anyio.Event()
                index = await self._settled()
                new = await aside_if_many(index.size, partial(_new_in, index, known))
                for first in range(0, len(new), _AT_ONCE):
                    some = new[first : first + _AT_ONCE]
                    child.keys += [key for key, _ in some]  # before it can answer with one of them
                    known.update(key for key, _ in some)
                    number = len(child.keys) - len(some)
                    await child.tell("learn", {"first": number, "texts": [text for _, text in some]})
                await self._news.wait()
                await anyio.sleep(SOON)


def _new_in(index: Index, known: Collection[bytes]) -> list[tuple[bytes, str]]:
    """The tools of which the child was not told, each with its key and its text, as far as it takes more."""
    new = {one.meaning_key: one.meaning for one in index.findable() if one.meaning_key not in known}
    return list(new.items())[: max(0, MEANINGS - len(known))]


class _MissingError(Exception):
    """Something is missing; the message says what, and what mends it."""


class _MeaningProcess(AskOnlyHooks):
    """The child, as its peer tells of it."""

    connection: Connection

    def __init__(self) -> None:
        self.over: anyio.Event = anyio.Event()
        self.keys: list[bytes] = []  # of the texts that it was told, by their numbers
        self._lost = ""
        self._late_since: float | None = None  # the first query since it was last heard that got no answer
        self._waiting: set[anyio.Event] = set()

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the child answers. Raises `_MissingError`, and `ConnectFailed` when it has ended."""
        answers: list[tuple[bytes | None, RpcError | None]] = []

        def ended(_: Exchange, result: bytes | None, error: RpcError | None) -> None:
            answers.append((result, error))
            done.set()

        done, exchange = anyio.Event(), Exchange(EndCallback(ended), method, params)
        self._waiting.add(done)
        try:
            self.check()
            self.connection.peer.request(exchange)
            await done.wait()
        finally:
            self._waiting.discard(done)
            if not answers and not self._lost:
                self.connection.peer.abandon(exchange, "nobody waits for it")
        if not answers:
            self.check()
        result, error = answers[0]
        if error is not None and error.code == INTERNAL_ERROR:  # as the child says it
            raise _MissingError(error.message)
        try:
            return msgspec.json.decode(result or b"", type=dict[str, Any])
        except msgspec.MsgspecError:
            raise self._ended(_JUNK) from None

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Have the child do something within its time, without an answer. Raises as `ask` does."""
        async with at_most(ANSWERS_WITHIN) as scope:
            await self.ask(method, params)
        if scope.cancelled_caught:
            raise self._ended(_SILENT)

    def named_in(self, answer: Mapping[str, Any]) -> list[bytes]:
        """The keys of the texts that an answer to a query names. Raises `ConnectFailed`."""
        try:
            return [self.keys[number] for number in array("I", b64decode(answer["numbers"]))]
        except (KeyError, TypeError, ValueError, IndexError):
            raise self._ended(_JUNK) from None

    def was_late(self) -> None:
        """A query got no answer in time. When nothing at all is heard for long, the child is ended."""
        now, heard = anyio.current_time(), self.connection.peer.last_heard
        if self._late_since is None or heard >= self._late_since:
            self._late_since = now
        elif now - self._late_since >= ANSWERS_WITHIN:
            self._ended(_SILENT)

    def _ended(self, why: str) -> ConnectFailed:
        """It is of no use any more. Returns the error that says so."""
        if not self._lost:
            self._end(why)
        return ConnectFailed(f"its process {self._lost}", server=NAME)

    def check(self) -> None:
        """Raise `ConnectFailed` if the child has ended."""
        if self._lost:
            raise ConnectFailed(f"its process {self._lost}", server=NAME)

    # ---- what its peer tells ----------------------------------------------------------------------------------------

    def on_lost(self, reason: LostReason) -> None:
        last = f": {reason.stderr_tail[-1]}" if reason.stderr_tail else ""
        self._end(f"{reason.text}{last}")

    def _end(self, why: str) -> None:
        self._lost = why
        self.over.set()
        for done in self._waiting:
            done.set()
