"""The tasks of one incarnation's server: calls that it has answered with a task, awaited to their end.

To the caller it is one call all the same. It stays in flight, so its server counts as in use, and all that ends calls
ends it: its time, a drain, the loss of the server. Its `reach` is SENT again: it may have run, and has no answer. A
task of the room looks at the server's task (`tasks/get`) at the interval that the server gives, within bounds, and
sooner when the server says that something has changed. Each answer is a sign of life that restarts the call's clock,
up to its total. What the server says of the task's status is reported as progress, until it reports progress by itself.

What a task asks of the client is asked as a server's other requests are. From 2026-07-28 on the requests stand in the
answer to `tasks/get`, and each is answered once. Until 2025-11-25 they come by themselves, at the latest while
`tasks/result` is open, which is therefore requested as soon as a task needs input.

A call that ends before its task does has the server told (`tasks/cancel`); nobody waits for the answer to that. So
does one that was given up before the server had answered it with a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..protocol.bounds import OPEN_SERVER_REQUESTS
from ..protocol.errors import CallError, ProtocolFault, Reach
from ..protocol.jsonrpc.incoming import as_id
from ..protocol.jsonrpc.terms import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    RpcError,
    WireFault,
    fault,
)
from ..protocol.tasks import (
    CANCEL,
    GET,
    INTERVAL,
    RESULT,
    UPDATE,
    Status,
    Task,
    has_tasks,
    made_in,
    related_to,
    told_in,
    unrelated,
    with_extension,
)
from .handshake import RpcFailure, ask_raw
from .peer import EndCallback, Exchange

if TYPE_CHECKING:
    from .backend import Waiter
    from .call import Call
    from .connection import Incarnation
    from .peer import Handshake

_MISSES: Final = 3  # looks in a row that may fail before the call does
_FINAL_ERRORS: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})  # it does not know the task, or no tasks
_MOST_ASKED: Final = OPEN_SERVER_REQUESTS  # requests of one task to its client, in all


def makes_tasks(handshake: Handshake) -> bool:
    """Whether a server that said this makes tasks of calls, in one of the versions in which it is spoken to."""
    newest = MODERN_VERSIONS[-1]
    return has_tasks(handshake.protocol_version, handshake.capabilities) or has_tasks(
        newest, handshake.beside
    )


class ServerTask:
    """One call whose server runs a task for it."""

    def __init__(self, call: Call, task: Task, news: Waiter) -> None:
        self.call = call
        self.task = task  # as it was told last
        self.news = news  # set when the server says that it has changed
        self.said = ""  # the status message that was reported last
        self.reports = 0
        self.has_progress = False  # it reports by itself
        self.asked: set[str] = set()  # the requests to its client that have been answered
        self.is_over: bool = False
        self.scope: anyio.CancelScope | None = None

    @property
    def modern(self) -> bool:
        return self.call.protocol_version in MODERN_VERSIONS

    @property
    def is_watched(self) -> bool:
        """Whether news of it would come much sooner than the next look, and has to be asked for."""
        return self.modern and self.task.interval > INTERVAL[1]

    def cancel(self) -> None:
        """Nobody waits for it any more. It may be over before the task that awaits it has begun."""
        self.is_over = True
        if self.scope is not None:
            self.scope.cancel()


class ServerTasks:
    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._context = incarnation.actor.context
        self._running: dict[str, ServerTask] = {}  # by the server's id of it
        self._given_up: int = 0  # calls that nobody awaits, and of which the server may yet make a task

    # From the queue of calls.

    def follow(self, call: Call, task: Task) -> None:
        """The server has answered this call with a task: the call goes on until the task ends."""
        running = self._running[task.id] = ServerTask(call, task, self._context.backend.waiter())
        call.reach = Reach.SENT
        call.task, call.asking = task.id, running
        self._live(call, task.interval)
        self._context.spawn(lambda: self._await(running))
        if running.is_watched and self._incarnation.reports is not None:
            self._incarnation.reports.refresh()
        if call.on_task is not None:
            call.on_task()

    def cancel(self, call: Call) -> None:
        """The call has ended before its task, or before there was one: tell the server."""
        if call.task is None:
            self._given_up += 1
            return
        told = Exchange(EndCallback(lambda _exchange, _result, _error: None), CANCEL, {"taskId": call.task})
        told.version, told.declares, told.trace = call.version, call.declares, call.trace
        self._incarnation.peer.request(told)

    def late(self, result: bytes) -> None:
        """An answer that nobody waits for any more. If it is a task that the server has just made, tell it so: at most
        once for each call that was given up, because each is a request."""
        if not self._given_up:
            return
        peer = self._incarnation.peer
        modern = peer.protocol_version in MODERN_VERSIONS
        try:
            task = made_in(result, modern=modern)
        except WireFault:
            return
        if task is None or task.status.is_final or task.id in self._running:
            return
        self._given_up -= 1
        told = Exchange(EndCallback(lambda _exchange, _result, _error: None), CANCEL, {"taskId": task.id})
        told.declares = with_extension(peer.client_capabilities) if modern else None
        peer.request(told)

    @property
    def watched(self) -> list[str]:
        """The tasks of whose changes a server of 2026-07-28 is asked to tell. An older one tells by itself."""
        return [task_id for task_id, running in self._running.items() if running.is_watched]

    # From the server.

    def changed(self, params: Mapping[str, Any] | None) -> None:
        """The server has told something of a task."""
        running = self._running.get(str((params or {}).get("taskId")))
        if running is not None:
            running.news.set()

    def progressed(self, params: Mapping[str, Any] | None) -> None:
        """Progress for a request that has been answered: of its task, if that goes on."""
        rpc_id = as_id((params or {}).get("progressToken"))
        for running in self._running.values():
            if running.call.rpc_id == rpc_id:
                running.has_progress = True
                self._incarnation.actor.calls.exchange_progressed(running.call, params or {})
                return

    def call_of(self, params: Mapping[str, Any] | None) -> Call | None:
        """The call whose task this request of the server belongs to."""
        running = self._running.get(related_to(params) or "")
        return running.call if running is not None else None

    # Awaiting one.

    async def _await(self, running: ServerTask) -> None:
        actor, call = self._incarnation.actor, running.call
        try:
            if not running.is_over:
                with anyio.CancelScope() as running.scope:
                    result, error = await self._outcome(running)
                    self._forget(running)
                    call.reach = Reach.ANSWERED
                    actor.calls.exchange_ended(call, result, error)
        except CallError as error:
            actor.calls.end_task(call, error)
        except Exception as error:
            actor.stop_for_bug(error)
        finally:
            self._forget(running)

    def _forget(self, running: ServerTask) -> None:
        task_id = running.task.id
        if self._running.get(task_id) is running:
            del self._running[task_id]
        if running.call.asking is running:
            running.call.asking = None

    async def _outcome(self, running: ServerTask) -> tuple[bytes | None, RpcError | None]:
        """How the task ended: with a result or an error. Raises `CallError`."""
        while not running.task.status.is_final:
            self._report(running)
            if running.task.status is Status.INPUT_REQUIRED:
                if not running.modern:
                    break
                await self._give_input(running)
            await self._wait(running)
            answer = await self._look(running, GET)
            if isinstance(answer, RpcError):
                return None, answer
            try:
                running.task = _same(told_in(answer), running.task)
            except WireFault as problem:
                return None, fault(f"the answer to {GET} is {problem}")
            self._live(running.call, running.task.interval)
        task = running.task
        if task.status is Status.CANCELLED:
            return None, RpcError(INTERNAL_ERROR, _said("the server cancelled the task of this call", task))
        if running.modern:
            if task.status is Status.FAILED:
                return None, task.error or RpcError(
                    INTERNAL_ERROR, _said("the task of this call failed", task)
                )
            lost = fault("the task of this call was completed, and has no result object")
            return (task.result, None) if task.result is not None else (None, lost)
        if not task.status.is_final:
            running.call.deadline = running.call.total_deadline  # people take their time
        answer = await self._look(running, RESULT)
        if isinstance(answer, RpcError):
            return None, answer
        return unrelated(answer), None

    async def _wait(self, running: ServerTask) -> None:
        """Wait until it is time to look again, or the server says that something has changed; never less than the
        least interval."""
        least, backend = INTERVAL[0], self._context.backend
        await anyio.sleep(least)
        limit = self._context.timers.at(backend.now() + running.task.interval - least, running.news.set)
        try:
            await running.news.wait()
        finally:
            limit.cancel()
        running.news = backend.waiter()

    async def _look(self, running: ServerTask, method: str) -> bytes | RpcError:
        """Ask for the task, or for its result. A look that fails is repeated a few times, unless the server says that
        it does not know the task."""
        misses = 0
        while True:
            try:
                return await self._ask(running, method, {"taskId": running.task.id})
            except RpcFailure as failure:
                error = failure.error
                assert error is not None  # it has no time limit of its own: the call's counts
                misses += 1
                if method == RESULT and not error.broken:
                    return error  # the error with which the call ends
                if error.fault or error.code in _FINAL_ERRORS or misses > _MISSES:
                    return RpcError(
                        error.code, f"the task of this call was lost: {error.message}", error.data
                    )
            await self._wait(running)

    async def _give_input(self, running: ServerTask) -> None:
        """Answer what the task asks of the client, each request once. Raises `CallError`."""
        call, server = running.call, self._incarnation.actor.address.server
        wanted = {key: asked for key, asked in running.task.requests.items() if key not in running.asked}
        if not wanted:
            return
        running.asked.update(wanted)
        if len(running.asked) > _MOST_ASKED:
            text = f'A task of server "{server}" asked for more than {_MOST_ASKED} inputs; the call was given up.'
            raise ProtocolFault(text, server=server, reach=Reach.SENT)
        call.deadline = call.total_deadline  # people take their time
        try:
            responses = await self._incarnation.requests.answer_all(call, wanted)
            await self._ask(running, UPDATE, {"taskId": running.task.id, "inputResponses": responses})
        except RpcFailure:
            pass  # the next look tells what has become of the task
        self._live(call, running.task.interval)

    async def _ask(self, running: ServerTask, method: str, params: Mapping[str, Any]) -> bytes:
        """Raises `RpcFailure`."""
        context, peer = self._context, self._incarnation.peer
        return await ask_raw(peer, context.backend, context.timers, method, params, math.inf, of=running.call)

    # What the call is told.

    def _live(self, call: Call, pause: float) -> None:
        """A sign of life: the call's clock begins again, after the pause until the next look."""
        actor = self._incarnation.actor
        wanted = actor.context.backend.now() + pause + (call.timeout or 0.0)
        call.deadline = min(wanted, call.total_deadline)
        actor.alarm.wake_by(call.deadline)

    def _report(self, running: ServerTask) -> None:
        """Tell the caller what the server says of the status, once, as progress."""
        message = running.task.message
        if running.has_progress or not message or message == running.said:
            return
        running.said = message
        running.reports += 1
        self._incarnation.actor.calls.report(running.call, {"progress": running.reports, "message": message})


def _same(task: Task, before: Task) -> Task:
    """The task as it is told now. Raises `WireFault` when it is another."""
    if task.id != before.id:
        raise WireFault("about another task")
    return task


def _said(what: str, task: Task) -> str:
    return f"{what}: {task.message}" if task.message else what
