"""Calls that somebody has to allow: they are held, somebody is asked, and then they are sent or refused.

What has to be allowed is decided in `approval`; here is who is asked, and what becomes of the call.

* *When.* Before the call is handed to an actor. So a question starts no server, and a call that is refused was never
  accepted anywhere: it is counted as refused, and no byte of it was sent. (A server must be started first only if
  nothing is known yet of the tool's name.) While a call is held, its server's connection is kept if there is one: it
  counts as used, as if the call were in flight there.
* *Who.* The `Approvers` know. If there is nobody, the call is refused. A person at a terminal may answer first, whoever
  is asked (`ApprovalDesk`).
* *Once.* A yes is for one call, or for the session: then the same tool with the same arguments is not asked about
  again in this session. Several calls with the same question wait for one another: only one of them is asked about at
  a time, a no counts for all that wait at that moment, and a yes for the session, too.
* *How it ends.* Each held call ends in exactly one way: it is handed to its actor, or it is refused (a no, a
  dismissed question, the time is over, nobody can be asked, the room or the session is closing), or its caller
  leaves. Whatever happens first counts; in the two last cases the question is withdrawn.

A call whose server wants more input before it answers (2026-07-28) is called again by its client, with that input.
That is the same call, so it is not asked about again, if the arguments are the same.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import anyio
from msgspec import Raw, json

from ..actors.call import Call
from ..actors.room_context import RoomContext
from ..actors.watchers import Order
from ..catalogue.namespace import Target
from ..config.model import Approve, Config, ServerDefinition
from ..protocol.address import Address
from ..protocol.bounds import APPROVALS_REMEMBERED, APPROVALS_WAITING
from ..protocol.errors import ApprovalDenied, ApprovalNeeded, Bug, CallError, RoomClosed
from ..protocol.events import ApprovalDecision, ApprovalMove
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.incoming import NO_MESSAGE, wants_input
from ..protocol.safe_text import in_words
from .approval import ApprovalRequest, Rule, Verdict, asks_about, grant, hints_of, question
from .approval_desk import ApprovalDesk
from .approvers import Answerers, Approvers, nobody
from .gates import GateCase, Passage, Ruling

Key = tuple[str | None, bytes]  # the session, and what an allowance is remembered by


_MOVES: Final[Mapping[Verdict | None, ApprovalMove]] = {
    Verdict.ONCE: ApprovalMove.ALLOWED,
    Verdict.SESSION: ApprovalMove.ALLOWED_FOR_SESSION,
    None: ApprovalMove.REMEMBERED,  # it waited for another one, which was allowed for the session
}
_MORE: Final = frozenset({"inputResponses", "requestState"})  # a call that brings more input has one of these


class ConfiguredServer(Protocol):
    """A server that is configured: a `ServerRecord` of the supervisor, a room above this one."""

    @property
    def address(self) -> Address: ...

    @property
    def definition(self) -> ServerDefinition: ...

    @property
    def refusal(self) -> CallError | None:
        """The error with which the server cannot be called at all."""
        ...


class ApprovalRoom(Protocol):
    """What approval needs to know of a room: its servers, its sessions, and whether it is closing. It is the
    `ServerList` of the supervisor."""

    @property
    def records(self) -> Mapping[str, ConfiguredServer]: ...

    @property
    def sessions(self) -> Answerers: ...

    @property
    def closing(self) -> CallError | None:
        """Why nothing is accepted any more. None: the room is not closing."""
        ...


class ApprovalGate:
    """The gate of calls that somebody has to allow, and the calls that it holds."""

    def __init__(self, context: RoomContext, servers: ApprovalRoom) -> None:
        self.asks = False  # whether there are calls that somebody has to allow
        self._context = context
        self._servers = servers
        self.desk: ApprovalDesk = ApprovalDesk(context.backend.now)
        self._approvers = Approvers(context, servers.sessions, self.desk)
        self._held: dict[HeldCall, None] = {}
        self._asked: dict[Key, HeldCall] = {}  # about whom somebody is asked now
        self._allowed: dict[str | None, OrderedDict[bytes, str]] = {}  # for the session; each with its server
        self._continuing: dict[Call, Key] = {}  # allowed ones, whose servers may want more input
        self._continued: OrderedDict[Key, None] = OrderedDict()  # whose servers want it

    def __len__(self) -> int:
        """The calls that wait for a yes."""
        return len(self._held)

    def heed(self, config: Config, changed: Collection[str] = ()) -> None:
        """Use this configuration from now on. `changed`: servers that mean something else now, so that what was allowed
        for them does not count any more."""
        for allowed in self._allowed.values() if changed else ():
            for what in [what for what, server in allowed.items() if server in changed]:
                del allowed[what]
        for held in [held for held in self._held if held.request.server in changed]:
            why = "the server was changed in the meantime. Call it again"
            error = ApprovalNeeded(held.request.tool, held.request.server, "changed", why)
            self.end(held, error, ApprovalMove.UNANSWERED)
        said = (definition.approve for definition in config.servers.values())
        self.asks: bool = any(rule not in (None, Approve.OFF) for rule in (config.settings.approve, *said))

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def judge(self, case: GateCase) -> Ruling | None:
        """As a gate: a call that has to wait for somebody's yes is held, unless nobody can give it."""
        call, server = case.call, case.server
        record = self._servers.records.get(server)
        if record is None or (call.tool is None and call.method != "tools/call"):
            return None
        rule = self._rule(record)
        if rule is Approve.OFF:
            return None
        params = call.params or {}
        original = str(params.get("uri" if call.method == "resources/read" else "name", ""))
        target = case.target_of(original)
        if not asks_about(rule, server, original, target):
            return None
        refusal = self._servers.closing or record.refusal
        if refusal is not None:
            return Ruling(error=refusal.copy())
        try:
            raw = _in_json(params.get("arguments") or {})
        except CallError as error:
            return Ruling(error=error)
        key = case.session, grant(server, original, raw)
        name = call.tool or original
        told = partial(self._tell, record.address, call, name, case.session)
        if (move := self._allowed_before(key, call)) is not None:
            return Ruling(note=partial(self._passed, key, call, move, told))
        secrets = self._context.secrets.of(record.address)
        request = ApprovalRequest(
            server,
            name,
            original,
            case.session,
            hints_of(target),
            question(server, name, raw, secrets.without),
            raw,
        )
        return self._unanswerable(request, record.address, told) or Ruling(
            hold=partial(self._hold, record.address, call, request, key, told)
        )

    def leaves_it_to(self, session: str | None, target: Target) -> bool:
        """Whether calls of this tool have to be allowed by somebody, and only whoever makes the calls of this session
        can ask: nobody else is there to be asked now."""
        record = self._servers.records.get(target.server)
        if record is None or not asks_about(self._rule(record), target.server, target.original, target):
            return False
        return not self._approvers.exist(session, record.address)

    def _rule(self, record: ConfiguredServer) -> Rule:
        said = record.definition.approve
        return self._context.settings.approve if said is None else said

    def _allowed_before(self, key: Key, call: Call) -> ApprovalMove | None:
        """How this very call has been allowed before; None: it has not."""
        session, what = key
        if what in self._allowed.get(session, _NOTHING):
            return ApprovalMove.REMEMBERED
        if key in self._continued and not _MORE.isdisjoint(call.params or ()):
            return ApprovalMove.CONTINUED
        return ApprovalMove.ALLOWED if call.is_allowed else None

    def _passed(self, key: Key, call: Call, move: ApprovalMove, told: ApprovalTeller) -> None:
        session, what = key
        if move is ApprovalMove.REMEMBERED:
            self._allowed[session].move_to_end(what)
        elif move is ApprovalMove.CONTINUED:
            del self._continued[key]
            self._note_continuing(key, call)
        told(move)

    def _unanswerable(
        self, request: ApprovalRequest, address: Address, told: ApprovalTeller
    ) -> Ruling | None:
        """The refusal when it is clear at once that nobody can be asked."""
        tool, server, session = request.tool, request.server, request.session
        unanswered = partial(told, ApprovalMove.UNANSWERED)
        waiting = sum(held.request.session == session for held in self._held)
        size = self._context.queued_bytes + len(request.raw)
        if waiting >= APPROVALS_WAITING or size > self._context.settings.max_queued_bytes:
            why = f"{waiting} other calls of this session wait already"
            return Ruling(unanswered, ApprovalNeeded(tool, server, "busy", why))
        if not self._approvers.exist(session, address):
            return Ruling(None if self.desk.will_be_told(session) else unanswered, nobody(request))
        return None

    def _hold(
        self,
        address: Address,
        call: Call,
        request: ApprovalRequest,
        key: Key,
        told: ApprovalTeller,
        passage: Passage,
    ) -> None:
        """The call waits from now on, and somebody is asked."""
        params, context = call.params or {}, self._context
        if isinstance(params.get("arguments"), Mapping):  # its caller could still change it
            call.params = {**params, "arguments": request.arguments}
        held = HeldCall(self, passage, address, call, request, key, told)
        held.since = context.backend.now()
        context.queued_bytes += len(request.raw)
        call.owner = held
        if call.on_end is None:
            call.waiter = context.backend.waiter()
        self._held[held] = None
        context.watchers.tell(context.watchers.held, call)
        context.spawn(partial(self._decide, held))

    def leave(self, held: HeldCall) -> None:
        """Its caller does not wait any more."""
        self.end(held, None, ApprovalMove.LEFT)

    # ---- the question -----------------------------------------------------------------------------------------------

    async def _decide(self, held: HeldCall) -> None:
        """Find out whether the call is allowed, and end its wait. Cancelled when something else ends the wait."""
        if held.is_over:
            return
        seconds = self._context.settings.approval_timeout
        held.until = held.since + seconds
        error: CallError | None = None
        with self._context.timers.limited(held.until) as limit:
            scope = held.scope = limit.scope
            try:
                verdict = await self._verdict(held)
                if verdict is Verdict.DENY:
                    error = ApprovalDenied(held.request.tool, held.request.server)
            except ApprovalNeeded as unanswered:
                error = unanswered
            except Exception as bug:
                self._approvers.note_bug(held.address, bug)
                error = ApprovalNeeded(
                    held.request.tool, held.request.server, "failed", "the question failed"
                )
        held.scope = None
        if scope.cancelled_caught:
            why = f"nobody answered within {seconds:g} s"
            error = ApprovalNeeded(held.request.tool, held.request.server, "expired", why)
        if not held.is_over:
            self._conclude(held, error)

    async def _verdict(self, held: HeldCall) -> Verdict:
        """Wait for calls with the same question that came earlier, then ask. Raises `ApprovalNeeded`."""
        session, what = held.key
        while (ahead := self._asked.get(held.key)) is not None:
            await ahead.answered.wait()
            if held.is_over or ahead.verdict is Verdict.DENY:  # over: its end has not reached this task yet
                return Verdict.DENY
            if what in self._allowed.get(session, _NOTHING):
                return Verdict.SESSION
        held.answered = anyio.Event()
        self._asked[held.key] = held
        at_desk = partial(self._answered_at_desk, held)
        held.number = self.desk.put(held.request, held.since, held.until, at_desk)
        try:
            held.told(ApprovalMove.ASKED)
            verdict = await self._approvers.ask(held.request, held.address, held.call)
            if not held.is_over:
                self._note(held, verdict)
            return verdict
        finally:
            del self._asked[held.key]
            held.answered.set()

    def _note(self, held: HeldCall, verdict: Verdict) -> None:
        """Take this verdict, also for the calls with the same question that wait for it."""
        held.verdict = verdict
        if verdict is Verdict.SESSION:
            session, what = held.key
            allowed = self._allowed.setdefault(session, OrderedDict())
            allowed[what] = held.request.server
            if len(allowed) > APPROVALS_REMEMBERED:
                allowed.popitem(last=False)

    def _answered_at_desk(self, held: HeldCall, verdict: Verdict) -> None:
        """A person at a terminal was the first to answer: stop asking anybody else."""
        held.at_terminal = True
        self._note(held, verdict)
        denied = verdict is Verdict.DENY
        self._conclude(held, ApprovalDenied(held.request.tool, held.request.server) if denied else None)

    # ---- how it ends ------------------------------------------------------------------------------------------------

    def _conclude(self, held: HeldCall, error: CallError | None) -> None:
        """Send the call, or refuse it."""
        if error is None:
            self._allow(held)
        else:
            denied = isinstance(error, ApprovalDenied)
            self.end(held, error, ApprovalMove.DENIED if denied else ApprovalMove.UNANSWERED)

    def _allow(self, held: HeldCall) -> None:
        """Hand the call to its actor, which accepts or refuses it."""
        call, context = held.call, self._context
        self._over(held, _MOVES[held.verdict])
        call.owner = None
        context.watchers.tell(context.watchers.released, call)
        self._note_continuing(held.key, call)
        try:
            with suppress(CallError):  # its end, then
                held.passage.hand_over()
        except Exception as bug:  # of ours; every call ends, whatever happens here
            self._approvers.note_own_bug(held.address, bug)
            text = f"Handing over the allowed call failed in Greenroom itself: {in_words(bug)}"
            call.end(context, context.backend.now(), error=Bug(text, server=held.address.server))
        finally:
            held.release()

    def end(self, held: HeldCall, error: CallError | None, move: ApprovalMove) -> None:
        """Refuse the call, or end it as cancelled by its caller. The question is withdrawn."""
        if held.is_over:
            return
        self._over(held, move)
        held.release()
        held.call.end(self._context, self._context.backend.now(), error=error)

    def _over(self, held: HeldCall, move: ApprovalMove) -> None:
        held.is_over = True
        self._context.queued_bytes -= len(held.request.raw)
        del self._held[held]
        self.desk.take(held.number, move)
        held.told(move, at_terminal=held.at_terminal)
        if held.scope is not None:
            held.scope.cancel()

    def end_session(self, session: str) -> None:
        """The session is over: refuse its held calls, and forget what it allowed."""
        for held in [held for held in self._held if held.request.session == session]:
            text = f"The session {session!r} is over; the call was not sent."
            self.end(held, RoomClosed(text, server=held.address.server), ApprovalMove.LEFT)
        self._allowed.pop(session, None)
        for key in [key for key in self._continued if key[0] == session]:
            del self._continued[key]

    def close(self, error: CallError) -> None:
        """The room is closing: refuse all held calls."""
        for held in tuple(self._held):
            self.end(held, error.copy(), ApprovalMove.LEFT)

    # ---- more input -------------------------------------------------------------------------------------------------

    def _note_continuing(self, key: Key, call: Call) -> None:
        """If the call ends with `input_required`, let its client call again with that input."""
        if call.takes_inputs:
            if not self._continuing:
                self._context.watchers.add(self, Order.GATES)
            self._continuing[call] = key

    def ended(self, call: Call) -> None:
        """As a watcher of calls: one that was allowed may be called again with more input."""
        key = self._continuing.pop(call, None)
        if not self._continuing:
            self._context.watchers.remove(self)
        if key is not None and call.result is not None and wants_input(call.result):
            self._continued[key] = None
            if len(self._continued) > APPROVALS_REMEMBERED:
                self._continued.popitem(last=False)

    # ---- what is told -----------------------------------------------------------------------------------------------

    def _tell(
        self,
        address: Address,
        call: Call,
        tool: str,
        client: str | None,
        move: ApprovalMove,
        *,
        at_terminal: bool = False,
    ) -> None:
        call.approval = f"{move.value}{' at a terminal' if at_terminal else ''}"
        emit = self._context.events.emit
        emit(ApprovalDecision, address, move=move, tool=tool, client=client, at_terminal=at_terminal)


_LAID_OUT: Final = 1 << 18  # bytes of arguments; longer ones keep their white space


def _in_json(arguments: object) -> bytes:
    """The arguments without the white space between them, for an allowance. They stay as they are if they are nested
    too deeply, or so long that others would wait."""
    if not isinstance(arguments, Raw):
        return encode_json(arguments)
    if memoryview(arguments).nbytes > _LAID_OUT:
        return bytes(arguments)
    try:
        return json.format(bytes(arguments), indent=-1)
    except NO_MESSAGE:
        return bytes(arguments)


_NOTHING: Final[OrderedDict[bytes, str]] = OrderedDict()


# ---- One call that waits for somebody's yes --------------------------------------------------------------------------


class ApprovalTeller(Protocol):
    def __call__(self, move: ApprovalMove, *, at_terminal: bool = False) -> None: ...


class HeldCall:
    """One call that waits for a yes. It owns the call as long as no actor does."""

    protocol_version: str | None = None
    connected_at: float = -math.inf  # no server has been started for it
    in_flight = 0
    queued = 0
    scope: anyio.CancelScope | None = None  # of the task that asks
    answered: anyio.Event  # set when the question about it is over, if somebody is asked about it
    verdict: Verdict | None = None
    since: float = 0.0
    until: float = 0.0  # when it is refused, if nobody has answered
    number = 0  # of its question at the desk; 0: there was none yet
    is_over = False
    at_terminal = False  # whether it was answered there

    def __init__(
        self,
        approvals: ApprovalGate,
        passage: Passage,
        address: Address,
        call: Call,
        request: ApprovalRequest,
        key: Key,
        told: ApprovalTeller,
    ) -> None:
        self._approvals = approvals
        self.passage = passage
        self.address = address
        self.call = call
        self.request = request
        self.key = key
        self.told = told
        self.release: Callable[[], None] = passage.lease()

    def incarnation(self) -> int:
        return 0

    def cancel(self, call: Call, reason: str) -> None:
        """Its caller does not wait any more."""
        self._approvals.leave(self)

    def exchange_sent(self, exchange: Any, /) -> None:
        """Never called, because no peer has the call yet. The same holds for the next two."""

    def exchange_ended(self, exchange: Any, result: bytes | None, error: Any, /) -> None: ...

    def exchange_progressed(self, exchange: Any, params: Mapping[str, Any], /) -> None: ...
