"""A job: one request at a door that takes time, from its arrival to its only answer.

An exposure (what a door shows) is given a job and ends it with exactly one answer or error. Most jobs need no
task: the exposure starts a call, lets the job `follow` it, and the call's callback answers. Work that has to
wait for more than a call is given to `run`. Whoever made the job can cancel it at any moment. That also
cancels the call it follows and the task it runs, and a late answer is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import anyio
import msgspec

from ..protocol.errors import UsageError
from ..protocol.jsonrpc import ABSENT, INVALID_PARAMS, PlainCall, RpcFault
from ._commands import Commands
from ._room import CallLike

Work = Callable[[], Coroutine[Any, Any, None]]
Spawn = Callable[[Work], object]


class Sink(Protocol):
    """Where a job's answer goes."""

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None: ...

    def job_raw(
        self, job: Job, result: bytes, *, modern: bool, filled: Callable[[bytes], bytes] | None = None
    ) -> None:
        """End with a result as a server sent it. `modern`: that server speaks 2026-07-28."""
        ...

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None: ...

    def job_broke(self, job: Job, error: Exception) -> None:
        """Our own code raised: answer that, and report the bug."""
        ...


class Job:
    """One request. `key` is its id as the client wrote it. `raw` is its params, and `params` the same by
    name, each value still bytes. `token` is its progress token, or None. As in `Call`, fields that most jobs
    never change are class attributes.

    A tools/call with only a name and arguments is `plain`: it has no `params`, no `meta` and no token.
    """

    client: Any = None  # the client that sent it
    commands: Commands = Commands()  # ours, as they are typed for the configuration of its door
    plain: PlainCall | None = None
    params: Mapping[str, msgspec.Raw] = {}  # never written to
    meta: Mapping[str, Any] | None = None
    token: Any = None
    modern: bool = False
    waits: bool = True  # at the door: it has not ended, and no call has taken it over
    on_handed_over: Callable[[], None] | None = None  # called once, when it no longer `waits`
    is_large: bool = False  # `raw` is megabytes, and nobody may decode it in one go
    _ended: bool = False
    _call: CallLike | None = None
    _tasks: int = 0  # how many it was given to run
    _scope: anyio.CancelScope | None = None  # of the task that runs

    def __init__(
        self,
        sink: Sink,
        spawn: Spawn,
        key: bytes,
        method: str = "tools/call",
        raw: msgspec.Raw = ABSENT,
    ) -> None:
        self.key = key
        self.method = method
        self.raw = raw
        self._sink = sink
        self._spawn = spawn

    # ---- for the exposure --------------------------------------------------------------------------------------

    @property
    def wants_progress(self) -> bool:
        return self.token is not None

    def answer(self, result: Mapping[str, Any]) -> None:
        """End with a result."""
        if self._end():
            self._sink.job_done(self, result, None)

    def answer_raw(
        self, result: bytes, *, modern: bool = False, filled: Callable[[bytes], bytes] | None = None
    ) -> None:
        """End with a result as a server sent it. `modern`: that server speaks 2026-07-28. `filled` is given the
        finished line of a result that is only an outline, and returns the whole."""
        if not self._ended:
            self._ended = True  # as in `_end`; nearly every call of a tool ends here, so a step is saved
            self._call = None
            self.waits = False
            if self.on_handed_over is not None:
                self._hand_over()
            self._sink.job_raw(self, result, modern=modern, filled=filled)

    @property
    def ended(self) -> bool:
        return self._ended

    def fail(self, code: int, message: str, data: Any = None) -> None:
        """End with a JSON-RPC error."""
        if self._end():
            self._sink.job_done(self, None, RpcFault(code, message, data))

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress to the client, if it asked for that and the job has not ended."""
        if self.token is not None and not self._ended:
            self._sink.job_progress(self, params)

    def broke(self, error: Exception) -> None:
        """End with an error that was raised on the way: an `RpcFault` as it is, a `UsageError` as what it says of the
        request, any other as a bug of ours.
        Cancels the call it follows and the task it runs."""
        call, scope = self._call, self._scope
        if not self._end():
            return
        if isinstance(error, UsageError):
            error = RpcFault(INVALID_PARAMS, f"Invalid params: {error.message}", {"error": error.code})
        if isinstance(error, RpcFault):
            self._sink.job_done(self, None, error)
        else:
            self._sink.job_broke(self, error)
        if call is not None:
            call.cancel()
        if scope is not None:
            scope.cancel()

    def concluded_by(self, step: Callable[..., None], *what: Any) -> Callable[[Any], None]:
        """An `on_end` for a call: it calls `step(*what, call)`, which ends the job. If that raises, the error
        ends the job."""
        return partial(self._conclude, step, what)

    def _conclude(self, step: Callable[..., None], what: tuple[Any, ...], call: Any) -> None:
        try:
            step(*what, call)
        except Exception as error:
            self.broke(error)

    def follow(self, call: CallLike) -> None:
        """From now on, cancelling the job cancels `call`. The call may have ended already."""
        if not self._ended:
            self._call = call
            self.waits = False
            if self.on_handed_over is not None:
                self._hand_over()

    def let_go(self) -> None:
        """Follow no call any more: the call goes on after the job's end."""
        self._call = None

    def run(self, work: Work) -> None:
        """Do `work` in a task of the job's own. It must end the job, or pass it on to a call or to another
        `run`."""
        number = self._tasks = self._tasks + 1
        self._spawn(lambda: self._contained(work, number))

    # ---- for the client session ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        """The client no longer wants an answer. Idempotent."""
        call = self._call
        if not self._end():
            return
        if call is not None:
            call.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self.waits = False
        if self.on_handed_over is not None:
            self._hand_over()
        self._call = None  # its callback refers to this job: a cycle would need the garbage collector
        return True

    def _hand_over(self) -> None:
        done, self.on_handed_over = self.on_handed_over, None
        if done is not None:
            done()

    async def _contained(self, work: Work, number: int) -> None:
        """Run the job's task. A bug in it ends the job, is reported, and affects nothing else. It is also a
        bug if the task leaves the job without a call or a later task that could end it.

        The scope is made here: asyncio has one only in a task, and a callback may have asked for the task."""
        if self._ended:
            return  # cancelled before it began
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                await work()
                if not self._ended and self._call is None and self._tasks == number:
                    raise RuntimeError(f"{self.method} was left without an answer")
            except Exception as error:
                if self._scope is scope:
                    self._scope = None  # this task is ending, so nothing in it needs to be cancelled
                self.broke(error)
