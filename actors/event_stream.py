"""The event stream: one ordered sequence of everything observable.

`emit` is a plain function that takes an event class and its fields, and does no more than it must. The sequence
number always advances, but for calls that nobody reads; an event is built only when somebody subscribed to its kind. A
subscriber has a bounded buffer. One that does not keep up loses the oldest events of its own buffer and is told how
many (`Lagged`); it never slows the room. A reader cannot break the room either: a callback that raises is removed, with
a note, and the step goes on.

Everything that readers see comes from here, so secrets are removed here (`hide`). Only the field `words` needs
that: all other fields are ours.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, cast

import msgspec

from ..protocol.address import Address
from ..protocol.bounds import EVENTS_BEHIND
from ..protocol.events import Event, Kind, Lagged, Note, NoteCode
from .backend import Backend

BUFFER: Final = EVENTS_BEHIND
P = ParamSpec("P")


def _hides_nothing(_address: Address | None, text: str) -> str:
    return text


class EventStream:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.hide: Callable[[Address | None, str], str] = _hides_nothing
        self.seq: int = 0
        self.closed = False
        self._subscribers: dict[Kind, list[Subscription]] = {kind: [] for kind in Kind}
        self._calls_are_read: Callable[[bool], object] | None = None

    def wants(self, kind: Kind) -> bool:
        """Whether an event of this kind has a reader. If not, callers need not make its text."""
        return bool(self._subscribers[kind])

    def emit(
        self,
        make: Callable[Concatenate[int, float, P], Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        """Emit an event of the class `make`, with its fields; free text only as the keyword `words`."""
        self.seq += 1
        readers = self._subscribers[cast("type[Event]", make).kind]
        if not readers:
            return
        event = make(self.seq, self._backend.now(), *args, **fields)
        words: str = getattr(event, "words", "")
        if words and (hidden := self.hide(event.address, words)) != words:
            event = msgspec.structs.replace(event, words=hidden)
        for reader in tuple(readers):
            reader.push(event)

    def subscribe(self, kinds: Iterable[Kind] | None = None, *, buffer: int = BUFFER) -> Subscription:
        """A reader of `kinds` (all by default), from now on. Enter it with `async with`, or `close` it.

        `buffer`: how many events it may be behind, at least one.
        """
        chosen = tuple(dict.fromkeys(kinds)) if kinds is not None else tuple(Kind)
        subscription = Subscription(self, chosen, max(buffer, 1))
        for kind in subscription.kinds:
            self._subscribers[kind].append(subscription)
        self._heed_calls(subscription)
        return subscription

    def when_calls_are_read(self, heed: Callable[[bool], object]) -> None:
        """Call `heed(is_read)` now, and whenever there may be a first reader of events of calls, or none any more."""
        self._calls_are_read = heed
        heed(self.wants(Kind.CALL))

    def _heed_calls(self, subscription: Subscription) -> None:
        if self._calls_are_read is not None and Kind.CALL in subscription.kinds:
            self._calls_are_read(self.wants(Kind.CALL))

    def listen(self, callback: Callable[[Event], None], kinds: Iterable[Kind] | None = None) -> Subscription:
        """Call `callback(event)` in the emitting step. For readers that cannot lag: a log file, a counter."""
        subscription = self.subscribe(kinds)
        subscription.callback = callback
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        for kind in subscription.kinds:
            if subscription in self._subscribers[kind]:
                self._subscribers[kind].remove(subscription)
        self._heed_calls(subscription)

    def close(self) -> None:
        """No more events will come: readers finish what they have, then end."""
        self.closed: bool = True
        for readers in self._subscribers.values():
            for reader in tuple(readers):
                reader.wake()

    @property
    def backend(self) -> Backend:
        return self._backend


class Subscription:
    """An async iterator of `Event | Lagged`; one task reads it."""

    def __init__(self, stream: EventStream, kinds: tuple[Kind, ...], buffer: int) -> None:
        self.kinds = kinds  # those that it asked for
        self.callback: Callable[[Event], None] | None = None
        self._stream = stream
        self._bound = buffer
        self._events: deque[Event] = deque()
        self._missed = 0
        self._waiter = stream.backend.waiter()
        self._closed = False

    def push(self, event: Event) -> None:
        """The room hands on an event; when too many wait, the oldest goes and `Lagged` says so."""
        if self.callback is not None:
            self._call_back(event)
            return
        if len(self._events) >= self._bound:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        self.wake()

    def _call_back(self, event: Event) -> None:
        assert self.callback is not None
        try:
            self.callback(event)
        except Exception as error:
            self.close()
            text = "".join(traceback.format_exception(error))
            words = f"a reader of events raised, and gets no more events\n{text}"
            self._stream.emit(Note, code=NoteCode.READER, words=words)

    def wake(self) -> None:
        """Let the reader look again."""
        self._waiter.set()

    def close(self) -> None:
        """End it: the iteration ends when what has come is read."""
        self._closed = True
        self._stream.unsubscribe(self)
        self.wake()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Event | Lagged]:
        return self

    async def __anext__(self) -> Event | Lagged:
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                return Lagged(missed)
            if self._events:
                return self._events.popleft()
            if self._closed or self._stream.closed:
                raise StopAsyncIteration
            await self._waiter.wait()
            self._waiter = self._stream.backend.waiter()
