"""The same room for programs without an event loop: `with greenroom.sync.open("mcp.json") as room: room.call(…)`.

A room runs on one thread of its own, in a loop of its own (anyio's portal), whatever the program is: a script, a
notebook whose kernel has a running loop, a web service with threads, a worker of a pool. Any number of threads may use
it at once. Names, arguments, results and errors are those of `greenroom.Greenroom`; `aclose` is `close`.

- Each method is made of the public door's own, so its signature is written once, there, and checkers, `help()` and
  editors show it. What only reads what is known does not go to the thread.
- Whoever is interrupted while he waits (Ctrl-C) leaves his call, which is cancelled. Leaving the block ends the room in
  order. An interrupt meanwhile leaves no more time to calls in flight.
- A room that nobody has closed ends when nobody holds it any more, and at the latest when the program does.
- A room belongs to the process that has opened it. In a forked copy of that, calls are refused, and nothing ends. What
  was only made before the fork is opened in each copy. It cannot be pickled, so a spawned process makes its own.
- Callbacks (`on_progress`, `on_sampling`, …) run on the room's thread. One that waits for the room by a method of this
  module would wait for itself: that is refused.

Rejected: a generated file of methods (six hundred lines that repeat the door, and a tool to compare them); assignments
in place of decorators (`call = _waits(RoomCalls.call)`: what is inferred is no public type for `--verifytypes`); a loop
that runs for each call (servers, timers and idle times live between calls).
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import Context
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

import anyio
import anyio.from_thread

from .actors.backend import sole
from .config.model import Config
from .protocol.errors import RoomClosed, UsageError
from .protocol.events import Event
from .protocol.status import DrainReport
from .supervisor import call_stream
from .supervisor import room as doors
from .supervisor.room import Greenroom, RoomCalls
from .tape.replaying import Replay

__all__ = [
    "CallStream",
    "CallTask",
    "Events",
    "ModelTools",
    "Room",
    "Session",
    "Stream",
    "Updates",
    "open",
    "replay",
]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
C = TypeVar("C", bound=RoomCalls)
F = TypeVar("F", bound="_Front[Any]")
_open: Final[set[_RoomThread]] = set()  # which nobody has closed yet


class _RoomThread:
    """The thread that one room runs on."""

    def __init__(self, room: Greenroom, backend: str, options: Mapping[str, Any] | None) -> None:
        self.room = room
        self._process = 0  # who has opened it: before that, a forked copy may
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._left = anyio.Event()
        self._failure: BaseException | None = None
        self._started: Future[None] = Future()
        work = partial(
            anyio.run, self._live, backend=backend, backend_options=None if options is None else dict(options)
        )
        self._thread = threading.Thread(
            target=Context().run, args=(self._guarded, work), name="greenroom room", daemon=True
        )

    def start(self) -> None:
        """Open the room. Raises what opening it raises."""
        if self._thread.ident is not None:
            raise UsageError("A room can be opened once; make another with greenroom.sync.open().")
        self._process = os.getpid()
        _at_the_end()
        _open.add(self)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self.close(0)
            raise

    def begin(self, work: Callable[[], Awaitable[R]] | Callable[[], R]) -> Future[R]:
        """Begin this in the room's loop."""
        portal = self._portal
        if portal is None or self._process != os.getpid():
            self._refuse()
        if threading.current_thread() is self._thread:
            text = "This runs on the room's own thread, as callbacks do, and would wait for itself."
            raise UsageError(
                f"{text} Hand the call to another thread, or give an async callback that awaits."
            )
        try:
            return portal.start_task_soon(cast("Callable[[], Awaitable[R]]", work))
        except RuntimeError:  # it has ended in this moment
            self._refuse()

    def run(self, work: Callable[[], Awaitable[R]] | Callable[[], R]) -> R:
        """What this comes to in the room's loop. Whoever is interrupted leaves it cancelled."""
        future = self.begin(work)
        try:
            return future.result()
        except CancelledError:
            self._refuse()
        except BaseException:
            future.cancel()
            raise

    def close(self, patience: float | None = None) -> None:
        """End the room, and wait for it. An interrupt leaves no more time to calls in flight."""
        try:
            self._end(patience)
        except KeyboardInterrupt:
            self._end(0)
            raise
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def leave(self, patience: float | None = None) -> None:
        """Ask the room to end, and wait for nothing."""
        portal = self._portal
        if portal is None or self._process != os.getpid():
            return
        if threading.current_thread() is self._thread:  # somebody there was the last to hold it
            self._left.set()
            return
        with suppress(RuntimeError):
            portal.start_task_soon(self._leave, patience)

    def _end(self, patience: float | None) -> None:
        if self._process != os.getpid() or self._thread.ident is None:
            return
        wait((self._started,))
        self.leave(patience)
        self._thread.join()

    def _refuse(self) -> NoReturn:
        if self._thread.ident is None:
            raise UsageError(
                "This room is not open yet: use `with greenroom.sync.open(…) as room`, or `start`."
            )
        if self._process != os.getpid():
            text = "This room belongs to the process that forked this one. Open another here, after the fork."
        else:
            text = "The room is closed; nothing was sent. Use it inside `with greenroom.sync.open(…)`."
        raise RoomClosed(text, server="") from None

    # ---- on the thread ----------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failure = sole(cast("BaseExceptionGroup[BaseException]", error)) if _is_group(error) else error
            if self._started.done():
                self._failure = failure  # `close` raises it
            else:
                self._started.set_exception(failure)
        finally:
            self._portal = None
            _open.discard(self)

    async def _live(self) -> None:
        async with anyio.from_thread.BlockingPortal() as portal:
            async with self.room:
                self._portal = portal
                self._started.set_result(None)
                await self._left.wait()
            await portal.stop(cancel_remaining=True)

    async def _leave(self, patience: float | None) -> None:
        try:
            await self.room.aclose(patience)
        finally:
            self._left.set()


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


@cache
def _at_the_end() -> None:
    """See to it that open rooms end with the program. That must be before its threads are waited for, because a room
    may have some; so it is said where `concurrent.futures` says it, and `atexit` would be too late. What is said first
    is done last, so that a room still has its executor."""
    _ = ThreadPoolExecutor  # loads it
    threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # pyright: ignore


def _close_all() -> None:
    for thread in tuple(_open):
        with suppress(Exception):
            thread.close()


class _Held(Generic[A]):
    """An async context that is entered, kept and left in one task of the loop, as it must be."""

    def __init__(self, thread: _RoomThread, context: AbstractAsyncContextManager[A]) -> None:
        self._thread = thread
        self._context = context
        self._left = anyio.Event()

    def enter(self) -> A:
        entered: Future[A] = Future()
        self._task = self._thread.begin(partial(self._hold, entered))
        try:
            return entered.result()
        except BaseException:
            self._task.cancel()
            raise

    def leave(self) -> None:
        with suppress(RoomClosed):
            self._thread.run(self._left.set)
        with suppress(CancelledError):
            self._task.result()

    async def _hold(self, entered: Future[A]) -> None:
        try:
            async with self._context as value:
                entered.set_result(value)
                await self._left.wait()
        except BaseException as error:
            if not entered.done():
                entered.set_exception(error)
            raise


# ---- methods made of the public door's own --------------------------------------------------------------------------
#
# Each lets go of `self` before it waits: a notebook keeps the traceback of its last error, and with it all that the
# frames of it hold. A room held there would not end when its cell is run again.


class _Front(Generic[A]):
    """Something of a room, for threads outside of its loop."""

    def __init__(self, thread: _RoomThread, of: A) -> None:
        self._thread = thread
        self._of = of

    def __reduce__(self) -> NoReturn:
        raise TypeError("What belongs to a room cannot be pickled. Open a room in each process.")


def _parts(front: _Front[Any]) -> tuple[_RoomThread, Any]:
    return front._thread, front._of  # pyright: ignore[reportPrivateUsage]  # the methods made here are its own


Method = Callable[Concatenate[Any, P], R]
Decorator = Callable[[Callable[..., None]], Method[P, R]]  # of a stub, which stands where the method is


def _like(method: Callable[..., Any], run: Callable[..., Any], gives: str | None = None) -> Any:
    """Makes `run` look like `method`, but for what it returns, and puts it in the place of a stub."""
    signature = inspect.signature(method)
    if gives is not None:
        signature = signature.replace(return_annotation=gives)
    made: Any = wraps(method)(run)
    made.__signature__ = signature

    def replace(stub: Callable[..., None]) -> Any:
        return made

    return replace


def _reads(method: Method[P, R]) -> Decorator[P, R]:
    """What every thread may ask, because it only reads."""

    def run(self: _Front[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        of = _parts(self)[1]
        del self
        return method(of, *args, **kwargs)

    return _like(method, run)


def _steps(method: Method[P, R]) -> Decorator[P, R]:
    """What is done in one step of the loop."""

    def run(self: _Front[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        thread, of = _parts(self)
        del self
        return thread.run(partial(method, of, *args, **kwargs))

    return _like(method, run)


def _waits(method: Method[P, Awaitable[R]]) -> Decorator[P, R]:
    """What is awaited in the loop."""

    def run(self: _Front[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        thread, of = _parts(self)
        del self
        return thread.run(partial(method, of, *args, **kwargs))

    return _like(method, run)


def _gives(method: Method[P, A | Awaitable[A]], front: type[F]) -> Decorator[P, F]:
    """What gives something that needs a front of its own."""

    def run(self: _Front[Any], *args: P.args, **kwargs: P.kwargs) -> F:
        thread, of = _parts(self)
        del self
        return front(thread, thread.run(partial(method, of, *args, **kwargs)))

    return _like(method, run, front.__name__)


def _keeps(
    method: Method[P, AbstractAsyncContextManager[A]], front: type[F]
) -> Decorator[P, AbstractContextManager[F]]:
    """What is open for a block."""

    @contextmanager
    def run(self: _Front[Any], *args: P.args, **kwargs: P.kwargs) -> Generator[F]:
        thread, of = _parts(self)
        del self
        held = _Held(thread, thread.run(partial(method, of, *args, **kwargs)))
        value = held.enter()
        try:
            yield front(thread, value)
        finally:
            held.leave()

    return _like(method, run, f"AbstractContextManager[{front.__name__}]")


# ---- what a program has ---------------------------------------------------------------------------------------------


class Stream(_Front[AsyncIterator[R]]):
    """What comes from a room, for a `for` loop."""

    def __iter__(self) -> Stream[R]:
        return self

    def __next__(self) -> R:
        try:
            return self._thread.run(self._of.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class Updates(Stream[Mapping[str, Any]]):
    """The updates of one resource: the `params` of each notification, in order. A slow reader loses the oldest."""


class Events(Stream[Event]):
    """The events of a room, in order."""


class CallStream(Stream[Mapping[str, Any]]):
    """A running call: the `params` of each of its progress notifications, until it has ended."""

    _of: call_stream.CallStream

    @property
    def message(self) -> str:
        """What its latest progress said."""
        return self._of.message

    @_waits(call_stream.CallStream.result)
    def result(self) -> None: ...


class CallTask(_Front[call_stream.CallTask]):
    """A call that goes on, whoever waits for it."""

    @property
    def stream(self) -> CallStream:
        """Its progress, for one reader."""
        return CallStream(self._thread, self._of.stream)

    @property
    def status(self) -> str:
        """`working`, `completed`, `failed` or `cancelled`. A result with `is_error` is `completed`."""
        return self._of.status

    @property
    def message(self) -> str:
        """What its latest progress said."""
        return self._of.message

    @_waits(call_stream.CallTask.result)
    def result(self) -> None: ...

    @_steps(call_stream.CallTask.cancel)
    def cancel(self) -> None: ...


class ModelTools(_Front[doors.ModelTools]):
    """Tools of a room or session as a model's API takes them (`tools_for`), and what the model calls of them."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """What the API takes as `tools`; for "gemini" the `functionDeclarations` of one tool. Yours to change."""
        return self._of.definitions

    @property
    def names(self) -> dict[str, str]:
        """The names that the model has, each with the tool's name in this room."""
        return self._of.names

    @property
    def not_strict(self) -> list[str]:
        """The names of tools whose arguments cannot be decoded strictly."""
        return self._of.not_strict

    @_waits(doors.ModelTools.run)
    def run(self) -> None: ...


class _Calls(_Front[C]):
    """What a program may ask of servers, in one scope: what a room and a session have in common."""

    @_waits(RoomCalls.settled)
    def settled(self) -> None: ...

    @_waits(RoomCalls.catalogued)
    def catalogued(self) -> None: ...

    @_waits(RoomCalls.find)
    def find(self) -> None: ...

    @_waits(RoomCalls.typed_arguments)
    def typed_arguments(self) -> None: ...

    @_waits(RoomCalls.call)
    def call(self) -> None: ...

    @_waits(RoomCalls.call_for_model)
    def call_for_model(self) -> None: ...

    @_waits(RoomCalls.call_many)
    def call_many(self) -> None: ...

    @_waits(RoomCalls.run_tool_calls)
    def run_tool_calls(self) -> None: ...

    @_waits(RoomCalls.read_resource)
    def read_resource(self) -> None: ...

    @_waits(RoomCalls.read_skill)
    def read_skill(self) -> None: ...

    @_waits(RoomCalls.get_prompt)
    def get_prompt(self) -> None: ...

    @_waits(RoomCalls.complete)
    def complete(self) -> None: ...

    @_waits(RoomCalls.request)
    def request(self) -> None: ...

    @_reads(RoomCalls.entry)
    def entry(self) -> None: ...

    @_reads(RoomCalls.tools)
    def tools(self) -> None: ...

    @_reads(RoomCalls.search)
    def search(self) -> None: ...

    @_reads(RoomCalls.describe)
    def describe(self) -> None: ...

    @_reads(RoomCalls.needs_approval)
    def needs_approval(self) -> None: ...

    @_reads(RoomCalls.resources)
    def resources(self) -> None: ...

    @_reads(RoomCalls.templates)
    def templates(self) -> None: ...

    @_reads(RoomCalls.prompts)
    def prompts(self) -> None: ...

    @_reads(RoomCalls.skills)
    def skills(self) -> None: ...

    @_steps(RoomCalls.set_log_level)
    def set_log_level(self) -> None: ...

    @_steps(RoomCalls.roots_changed)
    def roots_changed(self) -> None: ...

    @_gives(RoomCalls.tools_for, ModelTools)
    def tools_for(self) -> None: ...

    @_gives(RoomCalls.start_task, CallTask)
    def start_task(self) -> None: ...

    @_keeps(RoomCalls.stream_call, CallStream)
    def stream_call(self) -> None: ...

    @_keeps(RoomCalls.subscribe, Updates)
    def subscribe(self) -> None: ...


class Session(_Calls[doors.Session]):
    """One session of a room: `with room.session("alice") as s: s.call("memory_read_graph")`."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._of.name

    def __enter__(self) -> Session:
        self._held = _Held(self._thread, self._of)
        self._held.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.leave()

    @_waits(doors.Session.connect)
    def connect(self) -> None: ...


class Room(_Calls[Greenroom]):
    """A room of supervised MCP servers on a thread of its own. Make it with `greenroom.sync.open`.

    `Room(Greenroom.open(…), backend="trio")` runs it on trio, for servers in this process and callbacks that need it.
    """

    def __init__(
        self, room: Greenroom, *, backend: str = "asyncio", backend_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(_RoomThread(room, backend, backend_options), room)
        weakref.finalize(self, self._thread.leave).atexit = False

    def __enter__(self) -> Room:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close()

    def start(self) -> None:
        """Open the room without a block, as a notebook does. End it with `close`."""
        self._thread.start()

    def close(self, patience: float | None = None) -> None:
        """End the room: calls in flight may take `patience` seconds more (default: the configured drain time), every
        server is stopped, `drain_report` is set. Bounded; idempotent. In a forked copy it does nothing."""
        self._thread.close(patience)

    @property
    def room(self) -> Greenroom:
        """The room itself, for what takes one. What is awaited of it belongs to the loop of its thread."""
        return self._of

    @property
    def config(self) -> Config:
        """The configuration in use."""
        return self._of.config

    @property
    def tape(self) -> Replay | None:
        """The tape that this room is a replay of."""
        return self._of.tape

    @property
    def run_id(self) -> str:
        """The value of `GREENROOM_ROOM` in the environment of each process of this room."""
        return self._of.run_id

    @property
    def drain_report(self) -> DrainReport | None:
        """How the calls of this room ended. While it is open: those so far."""
        return self._of.drain_report

    @_waits(Greenroom.ready)
    def ready(self) -> None: ...

    @_waits(Greenroom.recent_tape)
    def recent_tape(self) -> None: ...

    @_waits(Greenroom.connect)
    def connect(self) -> None: ...

    @_waits(Greenroom.drain)
    def drain(self) -> None: ...

    @_waits(Greenroom.restart)
    def restart(self) -> None: ...

    @_waits(Greenroom.reload)
    def reload(self) -> None: ...

    @_waits(Greenroom.accept)
    def accept(self) -> None: ...

    @_waits(Greenroom.reconnect)
    def reconnect(self) -> None: ...

    @_reads(Greenroom.status)
    def status(self) -> None: ...

    @_steps(Greenroom.tree)
    def tree(self) -> None: ...

    @_steps(Greenroom.refresh)
    def refresh(self) -> None: ...

    @_gives(Greenroom.session, Session)
    def session(self) -> None: ...

    @_keeps(Greenroom.events, Events)
    def events(self) -> None: ...


def _opens(make: Callable[P, Greenroom]) -> Callable[[Callable[..., None]], Callable[P, Room]]:
    def run(*args: P.args, **kwargs: P.kwargs) -> Room:
        return Room(make(*args, **kwargs))

    return _like(make, run, "Room")


@_opens(Greenroom.open)
def open() -> None: ...


@_opens(Greenroom.replay)
def replay() -> None: ...
