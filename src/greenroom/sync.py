"""The same room for programs without an event loop: `with greenroom.sync.open("mcp.json") as room: room.call(…)`.

A room runs on one thread of its own, in a loop of its own, whatever the program is: a script, a notebook whose kernel
has a running loop, a web service with threads, a worker of a pool. Any number of threads may use it at once. Names,
arguments, results and errors are those of `greenroom.Greenroom`; `aclose` is `close`.

- Each method is made of the public door's own, so its signature is written once, there, and checkers, `help()` and
  editors show it. What only reads what is known does not go to the thread.
- Whoever is interrupted while he waits (Ctrl-C) leaves his call, which is cancelled. Leaving the block ends the room in
  order. An interrupt meanwhile leaves no more time to calls in flight.
- An interrupt may come at any moment. So a thread has its work for the loop in hand (`_ThreadWork`) before the loop
  does, hands it over without waiting, and waits at a lock of its own, which nobody else takes (`_Latch`).
- A room that nobody has closed ends when nobody holds it any more, and at the latest when the program does.
- A room belongs to the process that has opened it. In a forked copy of that, calls are refused, and nothing ends. What
  was only made before the fork is opened in each copy. It cannot be pickled, so a spawned process makes its own.
- Callbacks (`on_progress`, `on_sampling`, …) run on the room's thread. One that waits for the room by a method of this
  module would wait for itself: that is refused.

Rejected: a generated file of methods (six hundred lines that repeat the door, and a tool to compare them); assignments
in place of decorators (`call = _waits(RoomCalls.call)`: what is inferred is no public type for `--verifytypes`); a loop
that runs for each call (servers, timers and idle times live between calls); anyio's portal and `Future` (a thread that
is interrupted while the loop takes its call over has nothing yet to cancel it by, and the lock of a `Future` may stay
taken, so that the loop waits for ever).
"""

from __future__ import annotations

import _thread
import inspect
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import Context
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from .actors.backend import current_backend, sole
from .config.model import Config
from .protocol.errors import RoomClosed, UsageError
from .protocol.events import Event
from .protocol.status import DrainReport
from .supervisor import call_stream
from .supervisor import room as doors
from .supervisor.room import Greenroom, RoomCalls
from .tape.replay_servers import Replay

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
_LOOKS_UP: Final = 1.0  # seconds
_open: Final[set[_RoomThread]] = set()  # which nobody has closed yet
_ASYNC: Final = re.compile(r"\basync (?=with|for|iterator)|\bawait ")


class _Latch:
    """What threads wait for until it is set, once. An interrupt of one that waits leaves nothing locked."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[threading.Lock] = []  # one of each thread, taken

    def set(self) -> None:
        self._is_set = True
        while self._waiting:
            self._waiting.pop().release()

    def wait(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        # A signal that comes in the moment before the wait does not end it, so whoever gets signals looks up.
        most = _LOOKS_UP if threading.current_thread() is threading.main_thread() else -1
        while not self._is_set and not lock.acquire(timeout=most):
            pass


class _ThreadWork(Generic[R]):
    """What the loop does for a thread, which may leave it at any moment: also before the loop has begun it."""

    _value: R

    def __init__(self, do: Callable[[], Awaitable[R]] | Callable[[], R]) -> None:
        self._do = do
        self._scope: anyio.CancelScope | None = None
        self._is_left = False
        self._error: BaseException | None = CancelledError()  # unless it comes to something
        self._over = _Latch()

    def result(self) -> R:
        """Wait for what it comes to. Raises what that raises, or `CancelledError`."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def leave(self) -> None:
        """Nobody waits for it any more. Its loop has to be told to `cancel` it, too."""
        self._is_left = True

    # ---- in the loop ----

    async def run(self) -> None:
        try:
            if not self._is_left:
                with anyio.CancelScope() as self._scope:
                    made = self._do()
                    self._value = await made if inspect.isawaitable(made) else cast("R", made)
                    self._error = None
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.end()

    def cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def end(self) -> None:
        self._over.set()


class _RoomThread:
    """The thread that one room runs on."""

    def __init__(self, room: Greenroom, backend: str, options: Mapping[str, Any] | None) -> None:
        self.room = room
        self._process = 0  # who has opened it: before that, a forked copy may
        self._post: Callable[[Callable[[], object]], object] | None = None  # while there is a loop
        self._tasks: TaskGroup | None = None  # while the room is open
        self._works: set[_ThreadWork[Any]] = set()  # which somebody may wait for
        self._left = anyio.Event()
        self._failure: BaseException | None = None
        self._is_abandoned = False
        self._opened = _Latch()  # or it never will be
        self._ended = _Latch()
        work = partial(
            anyio.run, self._live, backend=backend, backend_options=None if options is None else dict(options)
        )
        self._thread = threading.Thread(
            target=Context().run, args=(self._guarded, work), name="greenroom room", daemon=True
        )

    @property
    def is_ours(self) -> bool:
        """Whether this process has opened it."""
        return self._process == os.getpid()

    def start(self) -> None:
        """Open the room. Raises what opening it raises."""
        if self._thread.ident is not None:
            raise UsageError("A room can be opened once; make another with greenroom.sync.open().")
        self._process = os.getpid()
        _at_the_end()
        _open.add(self)
        try:
            _thread.start_new_thread(self._begin_thread, ())
            self._opened.wait()
        except BaseException:
            self._is_abandoned = True
            self._end(0)
            raise
        if self._failure is not None:
            self.close(0)

    def begin(self, work: _ThreadWork[Any]) -> None:
        """Have this done in the room's loop, as a task."""
        post = self._post
        if post is None or not self.is_ours:
            self.refuse()
        if threading.current_thread() is self._thread:
            text = "This runs on the room's own thread, as callbacks do, and would wait for itself."
            raise UsageError(
                f"{text} Hand the call to another thread, or give an async callback that awaits."
            )
        self._works.add(work)
        try:
            post(partial(self._take, work))
        except RuntimeError:  # it has ended in this moment
            self.refuse()

    def leave(self, work: _ThreadWork[Any]) -> None:
        """Cancel this, which nobody waits for any more."""
        work.leave()
        self.tell(work.cancel)

    def tell(self, do: Callable[[], object]) -> None:
        """Have this called in the room's loop, if there is one."""
        post = self._post
        if post is not None and self.is_ours:
            with suppress(RuntimeError):  # it has ended in this moment
                post(do)

    def run(self, do: Callable[[], Awaitable[R]] | Callable[[], R]) -> R:
        """What this comes to in the room's loop. Whoever is interrupted leaves it cancelled."""
        work = _ThreadWork(do)
        try:
            self.begin(work)
            return work.result()
        except CancelledError:
            self.refuse()
        except BaseException:
            self.leave(work)
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

    def ask_to_end(self, patience: float | None = None) -> None:
        """Ask the room to end, and wait for nothing."""
        self.tell(partial(self._begin_to_end, patience))

    def _end(self, patience: float | None) -> None:
        if not self.is_ours or self._thread.ident is None:
            return
        self._opened.wait()
        self.ask_to_end(patience)
        self._ended.wait()  # because a thread whose `join` was interrupted counts as one that has ended
        self._thread.join()

    def refuse(self) -> NoReturn:
        """Say why there is no loop to do anything in."""
        if self._thread.ident is None:
            raise UsageError(
                "This room is not open yet: use `with greenroom.sync.open(…) as room`, or `start`."
            )
        if not self.is_ours:
            text = "This room belongs to the process that forked this one. Open another here, after the fork."
        else:
            text = "The room is closed; nothing was sent. Use it inside `with greenroom.sync.open(…)`."
        raise RoomClosed(text, server="") from None

    # ---- on the thread ----------------------------------------------------------------------------------------------

    def _begin_thread(self) -> None:
        """In a thread that nobody interrupts: whoever is interrupted in `Thread.start` may leave a lock of it taken."""
        try:
            self._thread.start()
        except BaseException as error:  # there can be no more threads
            self._failure = error
            self._opened.set()
            self._ended.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            if not self._is_abandoned:
                work()
        except BaseException as error:  # `close` raises it
            self._failure = (
                sole(cast("BaseExceptionGroup[BaseException]", error)) if _is_group(error) else error
            )
        finally:
            self._post = None
            while self._works:  # what was handed over in the last moment
                self._works.pop().end()
            _open.discard(self)
            self._opened.set()
            self._ended.set()

    async def _live(self) -> None:
        async with anyio.create_task_group() as tasks:
            try:
                async with self.room:
                    self._tasks = tasks
                    self._post = current_backend().post
                    self._opened.set()
                    await self._left.wait()
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    def _take(self, work: _ThreadWork[Any]) -> None:
        if self._tasks is None:
            self._works.discard(work)
            work.end()
        else:
            self._tasks.start_soon(self._do, work)

    async def _do(self, work: _ThreadWork[Any]) -> None:
        try:
            await work.run()
        finally:
            self._works.discard(work)

    def _begin_to_end(self, patience: float | None) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._aclose, patience)

    async def _aclose(self, patience: float | None) -> None:
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


class _LoopContext(_ThreadWork[None], Generic[A]):
    """An async context that is entered, kept and left in one task of the loop, as it must be."""

    def __init__(self, thread: _RoomThread, context: AbstractAsyncContextManager[A]) -> None:
        super().__init__(self._hold)
        self._thread = thread
        self._context = context
        self._entered = _Latch()  # or it never will be
        self._kept: list[A] = []
        self._leaving = anyio.Event()

    def enter(self) -> A:
        try:
            self._thread.begin(self)
            self._entered.wait()
            if not self._kept:
                self.result()
            return self._kept[0]
        except CancelledError:
            self._thread.refuse()
        except BaseException:
            self._thread.leave(self)
            raise

    def exit(self) -> None:
        if not self._thread.is_ours:
            return
        try:
            self._thread.tell(self._leaving.set)
            self.result()
        except CancelledError:
            pass  # the room has ended it
        except BaseException:
            self._thread.leave(self)
            raise

    async def _hold(self) -> None:
        async with self._context as value:
            self._kept.append(value)
            self._entered.set()
            await self._leaving.wait()

    def end(self) -> None:
        self._entered.set()
        super().end()


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
    """Makes `run` look like `method`, but for what it returns, and puts it in the place of a stub. It says what the
    method says, without what only a coroutine writes; or what the stub says, where more is different."""
    signature = inspect.signature(method)
    if gives is not None:
        signature = signature.replace(return_annotation=gives)
    made: Any = wraps(method)(run)
    made.__signature__ = signature

    def replace(stub: Callable[..., None]) -> Any:
        made.__doc__ = stub.__doc__ or _ASYNC.sub("", method.__doc__ or "")
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
        held = _LoopContext(thread, thread.run(partial(method, of, *args, **kwargs)))
        value = held.enter()
        try:
            yield front(thread, value)
        finally:
            held.exit()

    return _like(method, run, f"AbstractContextManager[{front.__name__}]")


# ---- what a program has ---------------------------------------------------------------------------------------------


class Stream(_Front[AsyncIterator[R]]):
    """Events or updates of a room, for a `for` loop."""

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
        """The message of its latest progress that had one; "" before that."""
        return self._of.message

    @_waits(call_stream.CallStream.result)
    def result(self) -> None: ...


class CallTask(_Front[call_stream.CallTask]):
    """A call that runs by itself, whether anybody waits for it or not."""

    def __repr__(self) -> str:
        return repr(self._of)

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
    """Tools of a room or session in the format of a model's API (`tools_for`); it also runs the model's calls."""

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
        self._held = _LoopContext(self._thread, self._of)
        self._held.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.exit()

    @_waits(doors.Session.connect)
    def connect(self) -> None: ...


class Room(_Calls[Greenroom]):
    """Runs MCP servers on a thread of its own, and calls their tools. Make it with `greenroom.sync.open`.

    `Room(Greenroom.open(…), backend="trio")` runs it on trio, for servers in this process and callbacks that need it.
    """

    def __init__(
        self, room: Greenroom, *, backend: str = "asyncio", backend_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(_RoomThread(room, backend, backend_options), room)
        weakref.finalize(self, self._thread.ask_to_end).atexit = False

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
        """The tape that this room replays; None: it is no replay."""
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
    def events(self) -> None:
        """`with room.events() as events: for event in events: …`, from now on, in order."""


def _opens(make: Callable[P, Greenroom]) -> Callable[[Callable[..., None]], Callable[P, Room]]:
    def run(*args: P.args, **kwargs: P.kwargs) -> Room:
        return Room(make(*args, **kwargs))

    return _like(make, run, "Room")


@_opens(Greenroom.open)
def open() -> None: ...


@_opens(Greenroom.replay)
def replay() -> None: ...
