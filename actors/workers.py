"""Work beside the calls, so that no call waits for it.

What only the loop may do, with many things, is done in parts (`in_turns`). However many tasks have such work, one of
them does one part in each pass of the loop. Otherwise six clients that ask a gateway of twenty thousand servers for its
status would make everybody wait for six parts at a time.

Long work is done in a thread: `aside`, if it computes, and `apart`, if it may wait for long, for the network or for
another program. Only one thread computes at a time for messages, and one for the catalogue: the loop would have to wait
for each of several until it has the interpreter's lock. A long catalogue must not keep a message waiting, so it has its
own.

What no call needs, and what may fail, is an `OptionalPart`.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from ..protocol.errors import GreenroomError
from ..protocol.safe_text import in_words as named

T = TypeVar("T")
R = TypeVar("R")
PART: Final = 20  # items that are worked on in one go, if each takes a tenth of a millisecond
_turn: RunVar[anyio.Lock] = RunVar("greenroom's turn at long work")
LONG_WORK: Final = 1 << 18  # bytes of a text from which on it is read aside: it takes some milliseconds
MANY_ITEMS: Final = 1_000  # from which on lists are gone over aside: it takes twenty milliseconds
MESSAGES: Final[RunVar[anyio.CapacityLimiter]] = RunVar("greenroom's thread for large messages")
CATALOGUE: Final[RunVar[anyio.CapacityLimiter]] = RunVar("greenroom's thread for long lists")


async def in_turns(items: Iterable[T], work: Callable[[T], R], size: int = PART) -> list[R]:
    """What `work` returns for each of `items`, with a checkpoint after every `size` of them. Fewer have none."""
    rest = iter(items)
    done = list(map(work, islice(rest, size)))
    worked_on, turn = len(done), _turn_of_this_loop()
    while worked_on == size:
        async with turn:  # a checkpoint, and the turns of those who came first
            part = list(map(work, islice(rest, size)))
        done += part
        worked_on = len(part)
    return done


def _turn_of_this_loop() -> anyio.Lock:
    try:
        return _turn.get()
    except LookupError:
        turn = anyio.Lock()
        _turn.set(turn)
        return turn


async def all_of(items: Iterable[T], work: Callable[[T], object], size: int = PART) -> None:
    """Call `work` for each of `items` as `in_turns` does. Even if this task is cancelled meanwhile, it is called for
    all of them."""
    rest = iter(items)
    try:
        with anyio.CancelScope(shield=True):
            await in_turns(rest, work, size)
    except BaseException:
        for item in rest:
            work(item)
        raise


async def aside(work: Callable[[], T], thread: RunVar[anyio.CapacityLimiter] = MESSAGES) -> T:
    """Do long `work` in this thread while the loop goes on. It must use nothing that changes meanwhile. A caller that
    is cancelled leaves at once if its work has not begun, and else at its end."""
    try:
        limiter = thread.get()
    except LookupError:
        thread.set(limiter := anyio.CapacityLimiter(1))
    done = await anyio.to_thread.run_sync(work, limiter=limiter)
    await checkpoint_if_cancelled()  # the thread's end is none
    return done


async def aside_if_many(items: int, work: Callable[[], T]) -> T:
    """Do `work`, which goes over this number of items of the catalogue: in a thread if they are many, else at once."""
    return await aside(work, CATALOGUE) if items >= MANY_ITEMS else work()


async def apart(work: Callable[[], T]) -> T:
    """Run `work()` in the thread while the loop goes on. Raises what `work` raises, and `OSError` when there are no
    descriptors left."""
    done, ours = os.pipe()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the task that waits
            errors.append(error)
        finally:
            os.close(ours)

    try:
        threading.Thread(target=run, name="greenroom apart", daemon=True).start()
    except BaseException:
        os.close(ours)
        os.close(done)
        raise
    try:
        await anyio.wait_readable(done)
    finally:
        os.close(done)
    if errors:
        raise errors[0]
    return results[0]


FIRST_PAUSE: Final = 1.0  # seconds before the first new try, doubling up to
LAST_PAUSE: Final = 60.0  # seconds; a part that has worked for longer than this begins with the first again


class OptionalPart(msgspec.Struct, eq=False):
    """One optional part. `name`: its name in the log; `without`: a sentence that says what is missing while it
    does not work; `tell` takes a line for the log; `now` is asked for the time only when something fails."""

    name: str
    tell: Callable[[str], object]
    without: str = ""
    now: Callable[[], float] = anyio.current_time
    next_try: float = -math.inf
    _said: str = ""
    _failures: int = 0
    _works_since: float | None = None

    def failed(self, why: object) -> float:
        """The part does not work; `why` is an exception or a text. Returns the seconds to wait before the next
        try, which is due at `next_try`."""
        now = self.now()
        if self._works_since is not None and now - self._works_since > LAST_PAUSE:
            self._failures = 0
        self._works_since = None
        pause = min(FIRST_PAUSE * 2.0**self._failures, LAST_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self.next_try = now + pause
        text = in_words(why)
        trouble = (
            f"errno {why.errno}" if isinstance(why, OSError) else text
        )  # a path in it may differ each time
        if trouble != self._said:
            self._said = trouble
            self.tell(" ".join(filter(None, (f"{self.name}: {text}.", self.without, "It is tried again."))))
        return pause

    def works(self) -> None:
        """The part works; logged if it did not before. Idempotent. Reads no clock if the part has never failed."""
        if self._failures and self._works_since is None:
            self._works_since = self.now()
        if self._said:
            self._said = ""
            self.tell(f"{self.name}: works again")

    @property
    def is_due(self) -> bool:
        """Whether the part works, or may be tried again now."""
        return not self._said or self.now() >= self.next_try

    async def keep(self, run: Callable[[], Awaitable[object]]) -> None:
        """Call `run` until it returns. Its exceptions are contained; `run` calls `works` when it got that far.
        Raises nothing, except cancellation."""
        while True:
            try:
                await run()
            except Exception as error:
                await anyio.sleep(self.failed(error))
            except BaseExceptionGroup as group:  # it failed in the step in which it was cancelled
                cancelled = group.split(Exception)[1]
                assert cancelled is not None
                raise cancelled from None
            else:
                return


def in_words(why: object) -> str:
    """An error as one line; an unforeseen one is marked as ours."""
    match why:
        case BaseExceptionGroup():
            return in_words(why.exceptions[0])
        case GreenroomError():
            text = why.message
        case OSError():
            what = f" ({why.filename})" if isinstance(why.filename, str) else ""
            text = f"{why.strerror or why}{what}"
        case BaseException():
            text = f"a bug in Greenroom, please report it: {named(why)}"
        case _:
            text = str(why)
    return " ".join(text.split()).rstrip(".")
