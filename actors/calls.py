"""The call table: accepts, sends and ends the calls of one address.

A server actor holds one. A call is in one place at a time: `waiting` (queued, see `WaitingCalls`) or `open` (in
flight). `Load` counts both over all scopes of the server. Its bounds are checked before a call is accepted, never
after. `lose_all`, `expire_sent` and their like end the calls that get no answer.

Accepting, sending and ending are plain steps in the task that brings the message. The table reads little of its
actor: its `life`, its `incarnation` and its `alarm`. It tells the actor that a call waits (`request_start`), that the
last call is over (`idling.begin`), that a call needs more input, that the server hangs, or that a step of the table
raised (`steps.find_input`, `steps.declare_hung`, `steps.stop_for_bug`).

Before a call is taken off the table, its outcome is made, and its server and the circuit breaker are told. If one of
these raises, the call is still on the table, and `Steps.stop_for_bug` ends it.

Ending a call may run its owner's callback. That may do anything: call again, cancel another call, raise. So a call
is taken off before it is ended, and loops look again after each end. An exception from a callback becomes a note;
it is not a bug of Greenroom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from msgspec.structs import replace

from ..config.scrubbing import scrubbed
from ..protocol.errors import (
    BadArguments,
    Busy,
    CallError,
    CallTimeout,
    Drained,
    InputRefused,
    ProtocolFault,
    Reach,
    RemoteError,
    RpcRefusal,
    ServerLost,
    UsageError,
)
from ..protocol.events import CallAccepted, CallEnded, CallEvent, CallSent
from ..protocol.jsonrpc.encoding import encode_json, weigh
from ..protocol.jsonrpc.incoming import decode_result, wants_input
from ..protocol.jsonrpc.terms import INVALID_PARAMS, LOG_LEVEL_KEY, MODERN_VERSIONS, RpcError, WireFault
from ..protocol.lifecycle import Means, Reason, State
from ..protocol.result import check_input_size
from ..protocol.safe_text import unhidden
from ..protocol.tasks import made_in, with_extension
from .call import measured
from .peer import NOT_SENT, LostReason, describe, login_needed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..config.secrets import Secrets
    from ..protocol.address import Address
    from ..protocol.lifecycle import Ending
    from .call import Call
    from .incarnation import ServerRequests
    from .room_context import RoomContext
    from .server import Record, ServerActor, Supervisor


# ---- The errors that a call ends with when it has no result: each text is made here ---------------------------------


def busy_error(
    server: str, calls: Iterable[Call], now: float, *, in_flight: int, queued: int, why: str
) -> Busy:
    """The error of a call for which a bound is reached. `calls`: the open calls at this address. `in_flight` and
    `queued` are counted over all scopes of the server."""
    oldest = now - min((call.accepted_at for call in calls), default=now)
    return Busy(
        server,
        in_flight=in_flight,
        queued=queued,
        oldest_age=oldest,
        retry_after=max(0.1, min(5.0, oldest)),
        why=why,
    )


def not_ready_error(server: str, waited: float, what: str) -> CallTimeout:
    """The error of a call that was queued for all its time. `what`: what its server was doing."""
    text = f'Server "{server}" was not ready within {waited:g}s ({what}); {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def not_started_error(server: str, waited: float, why: str) -> CallTimeout:
    """The error of a call whose server was not allowed to start in time."""
    text = f'Server "{server}" was not started within {waited:g}s: {why}; {Reach.NOT_SENT.words}.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def timed_out_error(server: str, call: Call, queue_timeout: float) -> CallTimeout:
    """The error of a call that was handed to the connection and got no answer in time."""
    if call.reach is Reach.NOT_SENT:
        waited = queue_timeout
        text = f'Server "{server}" read nothing for {waited:g}s; {call.reach.words}.'
    elif call.deadline == call.total_deadline > call.sent_at + (call.timeout or 0.0):
        waited = call.total_deadline - call.sent_at
        text = (
            f'Server "{server}" did not finish within {waited:g}s, despite its progress; {call.reach.words}.'
        )
    else:
        waited = call.timeout or 0.0
        text = f'Server "{server}" did not answer within {waited:g}s; {call.reach.words}.'
    return CallTimeout(text, server=server, reach=call.reach, timeout=waited)


def drained_error(server: str, call: Call, ending: Ending | None) -> Drained:
    """The error of a call that was still open when its server's drain time ended."""
    text = f'Server "{server}" was drained ({ending}) before the call was done; {call.reach.words}.'
    return Drained(text, server=server, reach=call.reach)


def lost_error(server: str, reason: LostReason, reach: Reach, what: str = "was lost") -> ServerLost:
    """The error of a call whose connection was lost."""
    return ServerLost(
        f'Server "{server}" {what}: {describe(reason)}; {reach.words}.',
        server=server,
        reach=reach,
        exit_code=reason.exit_code,
        stderr_tail=reason.stderr_tail,
    )


def answer_error(server: str, call: Call, error: RpcError) -> CallError:
    """The error of a call that the server answered with an error, or with something that is not an answer."""
    if error.upstream is not None:
        return error.upstream.error(error.message, server=server, tool=call.tool)
    if error.fault:
        return ProtocolFault(error.message, server=server, reach=call.reach, tool=call.tool)
    return RemoteError(
        error.message,
        server=server,
        rpc_code=error.code,
        data=error.data,
        tool=call.tool,
        http_status=400 if error.code == INVALID_PARAMS else 502,
    )


def without_secrets(error: RpcError, known: Secrets) -> RpcError:
    """The same error without these secrets. Data that cannot be searched for them are left out. A message of ours about
    the server (`fault`) also loses the characters that a terminal obeys or hides."""
    try:
        data = _without(error.data, known) if error.data is not None else None
    except (UsageError, WireFault, RecursionError):
        data = "(left out: it cannot be written as JSON)"
    said = unhidden(error.message) if error.fault else error.message
    return replace(error, message=known.without(said), data=data)


def _without(data: Any, known: Secrets) -> Any:
    raw = encode_json({"data": data})
    found = scrubbed(raw, known.in_json())  # as a result, whatever stands in its texts
    if found is not raw:
        data = decode_result(found)["data"]
    return known.without_any(data) if known.stand_in(found.decode(errors="replace")) else data


# --------------------------------------------------------------------------------------------------------------
#
#
# Ends or repeats the calls in flight when no answer comes: the connection is lost or drained, or their time is up.
#
# Ending a call may run its owner's callback, which may do anything. So each loop goes over a copy, and checks that a
# call is still open before it ends it.


def lose_all(table: CallTable, reason: LostReason) -> None:
    """The connection is gone."""
    # The youngest first: a call that is queued again goes to the head, so the old order remains.
    for call in reversed(tuple(table.open)):
        if call in table.open:
            _lose(table, call, reason)
    table.share_places()


def _lose(table: CallTable, call: Call, reason: LostReason) -> None:
    """Send the call again, once, if it cannot have run or may run twice. Otherwise fail it. A server may move more than
    once before a call reaches it, so that bounds the time of the call and not their number."""
    server, ending = table.actor.address.server, table.actor.life.ending
    if _may_replay(call) and ending is not None and ending.cause.has(Means.REQUEUES):
        table.take_off(call)
        if reason.loss is Reason.MOVED and call.reach is Reach.NOT_SENT:
            call.back_to_queue(wait_by=call.accepted_at + table.context.settings.queue_timeout)
        else:
            call.lost_before = True
            call.back_to_queue()
        table.waiting.add(call, first=True)
        return
    if reason.loss is Reason.NEEDS_AUTH and call.reach is Reach.NOT_SENT:
        error: CallError = login_needed(server, reason.text)
    else:
        error = lost_error(server, reason, call.reach)
    table.take_off(call)
    table.end(call, error)


def broke(table: CallTable, call: Call, error: RpcError) -> None:
    """The exchange of the call broke while the connection goes on. Send the call once more if that is harmless,
    otherwise fail it."""
    if _may_replay(call) and table.actor.life.state is State.CONNECTED:
        table.take_off(call)
        call.lost_before = True
        call.back_to_queue()
        table.waiting.add(call, first=True)
    else:
        reason = LostReason(error.message)
        lost = lost_error(table.actor.address.server, reason, call.reach, "gave no answer")
        table.take_off(call)
        table.end(call, lost)
    table.call_over()


def _may_replay(call: Call) -> bool:
    """Whether the call may be sent again: it did not run, or it may run twice. True only once for a call."""
    return not call.lost_before and (call.reach is Reach.NOT_SENT or call.replayable)


def expire_drained(table: CallTable) -> None:
    """The drain deadline: the time of all calls in flight is up."""
    server, ending = table.actor.address.server, table.actor.life.ending
    for call in tuple(table.open):
        if call in table.open:
            error = drained_error(server, call, ending)
            table.abandon(call, ending.cause.value if ending else "drained")
            table.end(call, error)
    table.share_places()


def fail_all(table: CallTable, error: CallError) -> None:
    """No answer can come any more for any of these calls."""
    for call in tuple(table.open):
        if call in table.open:
            own = error.copy(call.reach)
            table.take_off(call)
            table.end(call, own)
    table.share_places()


def expire_sent(table: CallTable, now: float) -> None:
    """End the calls whose time is up. If the server was silent meanwhile, that counts as one failure, however many
    calls it ends."""
    expired = [call for call in table.open if call.deadline <= now and not _may_wait(table, call, now)]
    if not expired:
        return
    actor = table.actor
    assert actor.incarnation is not None
    heard = actor.incarnation.peer.last_heard
    silent = any(heard <= call.sent_at for call in expired)
    # The circuit breaker first, then the calls: a caller that tries again at once must see it as it is now.
    hung = silent and table.supervisor.silent(actor)
    for call in expired:
        if call in table.open:
            error = timed_out_error(actor.address.server, call, table.context.settings.queue_timeout)
            table.abandon(call, "timed out")
            table.end(call, error)
    if hung:
        actor.steps.declare_hung()
    table.call_over()


def _may_wait(table: CallTable, call: Call, now: float) -> bool:
    """While the server waits for its client, its calls do not time out: people take their time."""
    if call.timeout is None or now >= call.total_deadline or not table.actor.is_asking:
        return False
    call.deadline = min(now + call.timeout, call.total_deadline)
    return True


CONNECTED: Final = State.CONNECTED  # as in `peer`: named several times on every call's way


class CallTable:
    __slots__ = (
        "actor", "address", "context", "has_tasks", "introduces", "logs_by_request", "may_go_on", "only_as_task",
        "open", "record", "supervisor", "waiting",
    )  # fmt: skip

    def __init__(self, actor: ServerActor) -> None:
        self.actor: ServerActor = actor
        self.address: Address = actor.address
        self.context: RoomContext = actor.context
        self.record: Record = actor.record
        self.supervisor: Supervisor = actor.supervisor
        self.open: dict[Call, None] = {}  # in flight, oldest first
        self.waiting: WaitingCalls = WaitingCalls(self, actor.mailbox.user)
        self.introduces: bool = (
            False  # requests say what their client can answer, or some of them do: 2026-07-28
        )
        self.logs_by_request: bool = False  # and only for requests that name a level: 2026-07-28
        self.has_tasks: bool = False  # its server may answer a call with a task
        self.only_as_task: frozenset[str] = frozenset()  # the tools that must be asked for one: 2025-11-25
        self.may_go_on: bool = False  # an answer to a call need not be its end

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Accept a call, or raise the `CallError` that refuses it. An accepted call ends exactly once."""
        actor, record, waiting = self.actor, self.record, self.waiting
        connected = actor.life.state is CONNECTED
        if not connected or record.guarded:
            try:
                refusal = self.supervisor.refusal(actor, call)
            except Exception as error:
                refusal = actor.steps.stop_for_bug(error)
            if refusal is not None:
                self._refuse(call, refusal)
        direct = (
            connected
            and not waiting.calls
            and record.load.in_flight < record.most_in_flight(self.context.settings)
        )
        if not direct:
            full = waiting.refusal(call)
            if full is not None:
                self._refuse(call, full)
        self._accept(call)
        try:
            if direct:
                self.send(call)
            else:
                waiting.add(call)
                if connected:  # otherwise nobody would send it when another scope holds the missing place
                    waiting.hold_back()
        except Exception as error:
            actor.steps.stop_for_bug(error)

    def cancel(self, call: Call, reason: str) -> None:
        """The caller no longer waits: the call ends now, as cancelled."""
        try:
            if call in self.open:
                self.abandon(call, reason)
                self.end(call)
            elif call in self.waiting.calls:
                self.waiting.end(call)
            self.call_over()
        except Exception as error:
            self.actor.steps.stop_for_bug(error)

    def _refuse(self, call: Call, refusal: CallError) -> None:
        context = self.context
        context.tally.refuse(refusal)
        context.recent.refused(refusal, call.tool, call.client, context.backend.now())
        if call.is_probe:
            self.supervisor.call_unanswered(self.actor, call)
        refusal.tool = refusal.tool or call.tool
        raise refusal

    def _accept(self, call: Call) -> None:
        context = self.context
        context.tally.accepted += 1
        context.calls += 1
        call.number = context.calls
        call.owner = self
        call.accepted_at = context.backend.now()
        if call.on_end is None:
            call.waiter = context.backend.waiter()
        if context.events.call_readers:
            self._tell(call, CallAccepted)
        else:
            context.events.seq += 1

    # ---- at the peer ------------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Hand the call to the peer: from here on it is in flight."""
        self.record.load.in_flight += 1
        self.open[call] = None
        if self.introduces:
            _introduce(self, call)
        if self.logs_by_request or self.record.log_level is not None:
            _ask_for_logs(self, call)
        if self.only_as_task:
            _ask_for_task(self, call)
        self._request(call)

    def _request(self, call: Call) -> None:
        incarnation = self.actor.incarnation
        assert incarnation is not None
        if call.watch is not None:
            call.watch.sending(call)
        try:
            incarnation.peer.request(call)
        except UsageError as error:  # its arguments cannot be written as JSON
            self.give_up(call, BadArguments(str(error), server=self.address.server))
            return
        if call.reach is NOT_SENT and call in self.open:
            # The pipe is full: the call's own clock starts when it is sent, so until then the queue's applies.
            call.sent_at = self.context.backend.now()  # since when the server has heard nothing
            call.deadline = call.sent_at + self.context.settings.queue_timeout
            self.actor.alarm.wake_by(call.deadline)

    def send_again(self, call: Call, more: Mapping[str, Any]) -> None:
        """The input that the server wanted has been found: send the same call with it."""
        if call in self.open and self.actor.peer is not None:
            call.params = {**(call.params or {}), **more}
            call.begin_again()
            self._request(call)

    def give_up(self, call: Call, error: CallError) -> None:
        """End a call in flight with this error, which is ours."""
        if call in self.open:
            self.take_off(call)
            self.end(call, error)
            self.call_over()

    def end_task(self, call: Call, error: CallError) -> None:
        """End a call whose server goes on with its task, with an error of our own."""
        if call in self.open:
            self.abandon(call, "given up")
            self.end(call, error)
            self.call_over()

    def abandon(self, call: Call, reason: str) -> None:
        """Take the call off the table, and tell its server that nobody wants the answer any more."""
        incarnation = self.actor.incarnation
        assert incarnation is not None
        if call.task is not None or (self.has_tasks and call.method == "tools/call"):
            incarnation.tasks.cancel(call)
        incarnation.peer.abandon(call, reason)
        self.take_off(call)

    def take_off(self, call: Call) -> None:
        """Take a call that is no longer in flight off the table."""
        if call in self.open:
            del self.open[call]
            self.record.load.in_flight -= 1
            if call.asking is not None:
                call.asking.cancel()

    # ---- what the peer reports ---------------------------------------------------------------------------------------

    @property
    def connected_at(self) -> float:
        return self.actor.connected_at

    @property
    def incarnation(self) -> int:
        return self.actor.life.incarnation

    @property
    def protocol_version(self) -> str | None:
        """What the server speaks now; None before the handshake."""
        peer = self.actor.peer
        return peer.protocol_version if peer is not None else None

    def exchange_sent(self, call: Call) -> None:
        """A write has accepted the first byte of the call: its own clock starts."""
        context, alarm = self.context, self.actor.alarm
        now, settings = context.backend.now(), context.settings
        timeout, total = call.timeout, settings.call_total_timeout
        if timeout is None:
            timeout = call.timeout = self.record.definition.call_timeout or settings.call_timeout
        call.sent_at = now
        context.sent = call.order = context.sent + 1
        call.deadline = deadline = now + timeout
        call.total_deadline = now + total if total > timeout else deadline
        if alarm.when > deadline:
            alarm.wake_by(deadline)
        if context.events.call_readers:
            self._tell(call, CallSent)
        else:
            context.events.seq += 1

    def exchange_ended(self, call: Call, result: bytes | None, error: RpcError | None) -> None:
        if call not in self.open:
            return  # it has its outcome already
        actor = self.actor
        try:
            if result is not None and self.may_go_on and self._goes_on(call, result):
                return
            failure = None
            if error is not None:
                error = without_secrets(error, self.context.secrets.of(self.address))
                if error.broken:
                    broke(self, call, error)
                    return
                failure = answer_error(self.address.server, call, error)
            if self.record.guarded:
                self.supervisor.answered(actor, call)
            self.take_off(call)
            self.finish(call, result, failure)
            self.call_over()
        except Exception as bug:
            actor.steps.stop_for_bug(bug)

    def _goes_on(self, call: Call, result: bytes) -> bool:
        """Whether the answer is not final, because the server runs a task for it, or wants more input first. Then the
        call stays in flight."""
        version = call.protocol_version
        may_become = self.has_tasks and call.task is None and call.method == "tools/call"
        if may_become and self._became_task(call, result, modern=version in MODERN_VERSIONS):
            return True
        return self._lacks_input(call, result, version)

    def _became_task(self, call: Call, result: bytes, *, modern: bool) -> bool:
        """Whether the answer is a task. Then it is awaited, and the circuit breaker's probe has been answered."""
        if not modern and "task" not in (call.params or {}):
            return False
        try:
            task = made_in(result, modern=modern)
        except WireFault as problem:
            text = f"the answer is {problem}"
            self.give_up(
                call, ProtocolFault(text, server=self.address.server, reach=call.reach, tool=call.tool)
            )
            return True
        if task is None:
            return False
        if self.record.guarded:
            self.supervisor.answered(self.actor, call)
        incarnation = self.actor.incarnation
        assert incarnation is not None
        incarnation.tasks.follow(call, task)
        return True

    def _lacks_input(self, call: Call, result: bytes, version: str | None) -> bool:
        """Whether the server wants more input first."""
        try:
            wanting = needs_input(call, result, version) if self.introduces else None
        except ProtocolFault as problem:
            self.give_up(call, problem)
            return True
        if wanting is None:
            return False
        call.deadline = call.total_deadline
        self.actor.steps.find_input(call, wanting)
        return True

    def exchange_progressed(self, call: Call, params: Mapping[str, Any]) -> None:
        """Progress restarts the call's clock, up to its total."""
        if call.timeout is not None:
            call.deadline = min(self.context.backend.now() + call.timeout, call.total_deadline)
        if self.context.recording is not None:
            self.context.recording.progressed(call, params)
        self.context.recent.progressed(call, params, self.context.backend.now())
        self.report(call, params)

    def report(self, call: Call, params: Mapping[str, Any]) -> None:
        """Tell the caller of its progress, if it wants to know."""
        if call.on_progress is not None:
            try:
                call.on_progress(params)
            except Exception as error:
                self._note_raised(error)

    # ---- calls out --------------------------------------------------------------------------------------------------

    def end(self, call: Call, error: CallError | None = None) -> None:
        """End a call that got no answer; without an error, its caller has cancelled it."""
        bug = None
        if call.is_probe:
            try:
                self.supervisor.call_unanswered(self.actor, call)
            except Exception as problem:
                bug = problem
        self.finish(call, None, error)
        if bug is not None:
            self.actor.steps.stop_for_bug(bug)

    def finish(self, call: Call, result: bytes | None, error: CallError | None) -> None:
        """Report its outcome to the event stream and to its owner."""
        context = self.context
        if not call.finish(context.tally, result=result, error=error):
            return
        actor = self.actor
        running = actor.incarnation
        # When a result came was asked when it was read: to ask again takes a tenth of what a call may cost here.
        now = context.backend.now() if result is None or running is None else running.peer.last_heard
        context.recent.ended(call, self.address, actor.life.incarnation, now)
        if context.recording is not None:
            context.recording.ended(call, self.address, actor.life.incarnation)
        try:
            if context.events.call_readers:
                self._tell(call, CallEnded)
            else:
                context.events.seq += 1
        finally:
            if call.on_end is not None:
                try:
                    call.on_end(call)
                except Exception as problem:
                    self._note_raised(problem)

    def _note_raised(self, error: Exception) -> None:
        """A callback of a call's owner raised: that is the owner's error, and becomes a note."""
        self.actor.note_raised("the callback of a call", error)

    def _tell(self, call: Call, what: type[CallEvent]) -> None:
        """Emit an event of a call. Call this only when somebody reads such events. An event that nobody reads still
        takes a number; callers take that number themselves, which is cheaper and happens three times for each call of a
        user."""
        self.context.events.emit(
            what,
            self.address,
            self.actor.life.incarnation,
            call=call.number,
            method=call.method,
            tool=call.tool,
            client=call.client,
            in_flight=len(self.open),
            queued=len(self.waiting.calls),
            **measured(call, what, self.context.backend.now()),
        )

    def call_over(self) -> None:
        """A call is no longer in flight, or no longer waits: send the next, become idle, or go on draining."""
        waiting, actor = self.waiting, self.actor
        if self.record.load.held:
            self.share_places()
        if waiting.calls and actor.life.state is CONNECTED:
            waiting.serve()
        if not self.open and (not waiting.calls or actor.life.state is State.DRAINING):
            actor.idling.begin()

    def share_places(self) -> None:
        """Give a free place to that address of this server which has waited longest for one."""
        load, most = self.record.load, self.record.most_in_flight(self.context.settings)
        while load.held and load.in_flight < most:
            waiting = next(iter(load.held))
            del load.held[waiting]
            waiting.serve()

    # ---- time -------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the calls whose time is up."""
        self.waiting.expire(now)
        expire_sent(self, now)

    @property
    def next_deadline(self) -> float:
        """When the next call's time is up; `inf` when there is none."""
        return min((self.waiting.next_deadline, *(call.deadline for call in self.open)))


def _introduce(table: CallTable, call: Call) -> None:
    """Add to the request what the client of this call can answer, as each request does from 2026-07-28 on. A client of
    that version is served in it, if the server can, even on a connection that was made for older clients."""
    incarnation = table.actor.incarnation
    assert incarnation is not None
    peer, declaration = incarnation.peer, table.supervisor.declaration(table.actor, call)
    call.version = peer.beside if declaration.modern else None
    if call.version is not None or peer.protocol_version in MODERN_VERSIONS:
        said = declaration.capabilities
        call.declares = with_extension(said) if table.has_tasks else said


def _ask_for_task(table: CallTable, call: Call) -> None:
    """The tool runs only as a task. In 2026-07-28 the server decides that, also for one call in that version."""
    params = call.params or {}
    if call.method == "tools/call" and call.version is None and params.get("name") in table.only_as_task:
        total = table.context.settings.call_total_timeout
        call.params = {**params, "task": {"ttl": round(total * 1000)}}


def _ask_for_logs(table: CallTable, call: Call) -> None:
    """Add the log level to the request, as each request has one from 2026-07-28 on. A level that the caller set
    stays."""
    level = table.supervisor.log_level(table.actor, call)
    if level is not None and call.protocol_version in MODERN_VERSIONS:
        params = call.params or {}
        said: Mapping[str, Any] = params.get("_meta") or {}
        call.params = {**params, "_meta": {LOG_LEVEL_KEY: level, **said}}


# --------------------------------------------------------------------------------------------------------------
#
#
# The calls of one address that wait to be sent: for a connection, for a free place, or for the circuit breaker.
#
# They stay in the user lane of the actor's mailbox, in order, and outlive incarnations there. `Load` counts them
# over all scopes of the server, and the room counts their bytes. Both bounds are checked before a call is accepted,
# never after.
#
# Places (calls in flight) belong to the server, over all its scopes. An address that finds no free place is listed
# in `Load.held`; the next free place goes to the address that has waited longest.


class WaitingCalls:
    __slots__ = ("_actor", "_context", "_load", "_serving", "_table", "calls")

    def __init__(self, table: CallTable, calls: deque[Call]) -> None:
        self.calls: deque[Call] = calls
        self._table = table
        self._actor = table.actor
        self._context = table.context
        self._load = table.record.load
        self._serving = False

    # ---- in and out -------------------------------------------------------------------------------------------------

    def refusal(self, call: Call) -> Busy | None:
        """The error with which this call must be refused instead of queued; None when it may wait."""
        definition, settings = self._actor.definition, self._context.settings
        if self._load.queued >= (definition.max_queued or settings.max_queued):
            return self._busy()
        call.weight = weigh(call.params)
        most = settings.max_queued_bytes
        if self._context.queued_bytes + call.weight > most:
            return self._busy(f"the parameters of waiting calls would be over {most:,} bytes")
        return None

    def _busy(self, why: str = "") -> Busy:
        return busy_error(
            self._actor.address.server,
            (*self._table.open, *self.calls),
            self._context.backend.now(),
            in_flight=self._load.in_flight,
            queued=self._load.queued,
            why=why,
        )

    def add(self, call: Call, *, first: bool = False) -> None:
        """Queue the call, behind the others or before them (`first`). It needs a connection."""
        now = self._context.backend.now()
        call.queue_deadline = min(now + self._context.settings.queue_timeout, call.wait_by)
        self._load.queued += 1
        self._context.queued_bytes += call.weight
        if first:
            self.calls.appendleft(call)
        else:
            self.calls.append(call)
        self._actor.alarm.wake_by(call.queue_deadline)
        self._actor.request_start()

    def end(self, call: Call, error: CallError | None = None) -> None:
        """End a call that waits. When it was the last one, no call here needs a connection any more."""
        self.calls.remove(call)
        self._uncount(call)
        try:
            if not self.calls:
                self._table.supervisor.withdraw_start(self._actor)
        finally:
            self._table.end(call, error)

    def _uncount(self, call: Call) -> None:
        self._load.queued -= 1
        self._context.queued_bytes -= call.weight

    # ---- sending ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Send the calls that wait, as far as there are places. Places that become free meanwhile are used by this same
        loop."""
        if self._serving:
            return
        self._serving = True
        try:
            while self._may_send_next():
                call = self.calls.popleft()
                self._uncount(call)
                self._table.send(call)
        finally:
            self._serving = False

    def _may_send_next(self) -> bool:
        if not self.calls or self._actor.life.state is not State.CONNECTED:
            return False
        if self._load.in_flight >= self._table.record.most_in_flight(self._context.settings):
            self.hold_back()
            return False
        return not self._table.record.guarded or self._table.supervisor.may_send(self._actor, self.calls[0])

    def hold_back(self) -> None:
        """All places are taken: wait for the next free one, in whatever scope that is."""
        self._load.held.setdefault(self)

    # ---- how long ---------------------------------------------------------------------------------------------------

    @property
    def since(self) -> float:
        """Since when the oldest waiting call has waited; `inf` when there is none."""
        return min(map(self._since, self.calls), default=float("inf"))

    def _since(self, call: Call) -> float:
        return call.queue_deadline - self._context.settings.queue_timeout

    @property
    def next_deadline(self) -> float:
        """When the next waiting call's time is up; `inf` when none waits."""
        return min((call.queue_deadline for call in self.calls), default=float("inf"))

    def expire(self, now: float) -> None:
        """End the calls that have waited for all their time."""
        expired = [call for call in self.calls if call.queue_deadline <= now]
        for call in expired:
            if call not in self.calls:
                continue  # cancelled by the callback of an earlier one
            waited = self._context.settings.queue_timeout
            self.end(call, not_ready_error(self._actor.address.server, waited, self._actor.doing))
        if expired:
            self._table.call_over()

    def refuse(self, error: CallError, since: float) -> None:
        """End the calls that have waited since `since` or longer; the others wait on."""
        for call in [call for call in self.calls if self._since(call) <= since]:
            if call in self.calls:
                self.end(call, error.copy())

    def refuse_each(self, why: Callable[[Call], CallError | None]) -> None:
        """End each waiting call for which `why(call)` returns an error."""
        for call, error in [(call, why(call)) for call in self.calls]:
            if error is not None and call in self.calls:
                self.end(call, error)

    def fail(self, error: CallError) -> None:
        """End the calls that wait now. A call that a callback adds meanwhile is accepted or refused like any new
        call."""
        failed = list(self.calls)
        self.calls.clear()
        for call in failed:
            self._uncount(call)
        for call in failed:
            self._table.end(call, error.copy())


# ---- Results that are not final: `input_required`, from servers of 2026-07-28 ---------------------------------------
#
# Such a server does not ask its client while it works. It answers that it needs more input; the call is then sent
# again with that input and with the state the server returned. To the caller it is one call all the same. It stays
# in flight, and its requests go through the host like those of the older eras. When they are answered, the call is
# sent again. The number of rounds is bounded, and a round that brings only state waits a little, so that a server
# cannot keep us busy for nothing.
#
# While the input is being found, the call's own clock stands still (its total time does not): a server must not time
# out because a person takes long to answer.

MOST_ROUNDS: Final = 10
_PAUSES: Final = (
    0.05,
    0.1,
    0.2,
    0.25,
)  # seconds before sending the call again when there was nothing to answer


def needs_input(call: Call, result: bytes, version: str | None) -> dict[str, Any] | None:
    """The result, decoded, if it asks for more input and the caller does not handle that itself. Raises `ProtocolFault`
    for one over the bound."""
    if version not in MODERN_VERSIONS or call.takes_inputs or not wants_input(result):
        return None
    server = call.owner.address.server if call.owner is not None else ""
    check_input_size(server, result)
    try:
        return decode_result(result)
    except WireFault:
        return None


async def answer_inputs(
    table: CallTable, call: Call, result: Mapping[str, Any], server_requests: ServerRequests
) -> None:
    """Find the answers and send the call again, or end it with an error. If the call ends meanwhile, this is
    cancelled."""
    if call.ended:
        return
    more: dict[str, Any] | CallError | None = None
    with anyio.CancelScope() as call.asking:
        try:
            more = await _more_params(call, result, server_requests)
        except CallError as error:
            more = error
    call.asking = None
    if isinstance(more, CallError):
        table.give_up(call, more)
    elif more is not None:
        table.send_again(call, more)


async def _more_params(
    call: Call, result: Mapping[str, Any], server_requests: ServerRequests
) -> dict[str, Any]:
    call.rounds += 1
    server = call.owner.address.server if call.owner is not None else ""
    if call.rounds > MOST_ROUNDS:
        text = f'Server "{server}" asked for more input {MOST_ROUNDS} times over; the call was given up.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
    requests: object = result.get("inputRequests")
    more: dict[str, Any] = {}
    if isinstance(requests, Mapping) and requests:
        call.pauses = 0
        try:
            more["inputResponses"] = await server_requests.answer_all(
                call, cast("Mapping[str, Any]", requests)
            )
        except RpcRefusal as refusal:
            text = (
                f'Server "{server}" needs input that it was not given: {refusal.message} ({refusal.rpc_code})'
            )
            raise InputRefused(text, server=server, reach=Reach.ANSWERED) from None
    else:
        await anyio.sleep(_PAUSES[min(call.pauses, len(_PAUSES) - 1)])
        call.pauses += 1
    if "requestState" in result:
        more["requestState"] = result["requestState"]
    return more
