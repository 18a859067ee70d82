"""Calls that somebody has to allow: they are held, somebody is asked, and then they are sent or refused.

What has to be allowed is decided in `protocol.approval`; here is who is asked, and what becomes of the call.

* *When.* Before the call is handed to an actor. So a question starts no server, and a call that is refused was never
  accepted anywhere: it is counted as refused, and no byte of it was sent. (A server must be started first only if
  nothing is known yet of the tool's name.) While a call is held, its server's connection is kept if there is one: it
  counts as used, as if the call were in flight there.
* *Who.* `_approvers` knows. If there is nobody, the call is refused. A person at a terminal may answer first,
  whoever is asked (`_approval_desk`).
* *Once.* A yes is for one call, or for the session: then the same tool with the same arguments is not asked about
  again in this session. Several calls with the same question wait for one another: only one of them is asked about at
  a time, a no counts for all that wait at that moment, and a yes for the session, too.
* *How it ends.* Each held call ends in exactly one way: it is handed to its actor, or it is refused (a no, a dismissed
  question, the time is over, nobody can be asked, the room or the session is closing), or its caller leaves. Whatever
  happens first counts; in the two last cases the question is withdrawn.

A call whose server wants more input before it answers (2026-07-28) is called again by its client, with that input.
That is the same call, so it is not asked about again, if the arguments are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, Protocol

import anyio
from msgspec import Raw, json

from ..actors import Call, RoomContext, Tally
from ..protocol.address import Address
from ..protocol.approval import ApprovalRequest, Verdict, asks_about, grant, hints_of, question
from ..protocol.bounds import APPROVALS_REMEMBERED, APPROVALS_WAITING
from ..protocol.config import Approve, Config, ServerDefinition
from ..protocol.errors import ApprovalDenied, ApprovalNeeded, Bug, CallError, RoomClosed
from ..protocol.events import ApprovalDecision, ApprovalMove
from ..protocol.index import Target
from ..protocol.jsonrpc import RpcFault, WireFault, encode_json, read_parts, read_value
from ..protocol.secrets import in_words
from ._approval_desk import Desk
from ._approvers import Answerers, Approvers, nobody
from ._held_call import Caller, HeldCall, Key, Told

_MOVES: Final[Mapping[Verdict | None, ApprovalMove]] = {
    Verdict.ONCE: ApprovalMove.ALLOWED,
    Verdict.SESSION: ApprovalMove.ALLOWED_FOR_SESSION,
    None: ApprovalMove.REMEMBERED,  # it waited for another one, which was allowed for the session
}
_MORE: Final = frozenset({"inputResponses", "requestState"})  # a call that brings more input has one of these


class Configured(Protocol):
    """A server that is configured."""

    @property
    def address(self) -> Address: ...

    @property
    def definition(self) -> ServerDefinition: ...

    @property
    def refusal(self) -> CallError | None:
        """Why it cannot be called at all."""
        ...


class Servers(Protocol):
    """The servers of a room, and the sessions that can be asked about calls to them."""

    @property
    def records(self) -> Mapping[str, Configured]: ...

    @property
    def sessions(self) -> Answerers: ...

    @property
    def closing(self) -> CallError | None:
        """Why nothing is accepted any more. None: the room is not closing."""
        ...


class Approvals:
    def __init__(self, context: RoomContext, servers: Servers) -> None:
        self.asks = False  # whether there are calls that somebody has to allow
        self._context = context
        self._servers = servers
        self.desk = Desk(context.backend.now)
        self._approvers = Approvers(context, servers.sessions, self.desk)
        self._held: dict[HeldCall, None] = {}
        self._asked: dict[Key, HeldCall] = {}  # about whom somebody is asked now
        self._allowed: dict[str | None, OrderedDict[bytes, str]] = {}  # for the session; each with its server
        self._continued: OrderedDict[Key, None] = OrderedDict()  # whose servers want more input

    def __len__(self) -> int:
        """The calls that wait for a yes."""
        return len(self._held)

    def heed(self, config: Config, changed: Collection[str] = ()) -> None:
        """This is the configuration from now on. `changed`: servers that are others than those for which calls were
        allowed."""
        for allowed in self._allowed.values() if changed else ():
            for what in [what for what, server in allowed.items() if server in changed]:
                del allowed[what]
        for held in [held for held in self._held if held.request.server in changed]:
            why = "the server was changed in the meantime. Call it again"
            error = ApprovalNeeded(held.request.tool, held.request.server, "changed", why)
            self.end(held, error, ApprovalMove.UNANSWERED)
        said = (definition.approve for definition in config.servers.values())
        self.asks = any(rule not in (None, Approve.OFF) for rule in (config.settings.approve, *said))

    # ---- calls in ---------------------------------------------------------------------------------------------------

    def holds(self, caller: Caller, server: str, call: Call) -> bool:
        """Whether the call has to wait for somebody's yes. It is held then, and ends later. Raises the `CallError` with
        which it is refused."""
        record = self._servers.records.get(server)
        if record is None or (call.tool is None and call.method != "tools/call"):
            return False
        rule = record.definition.approve
        rule = self._context.settings.approve if rule is None else rule
        if rule is Approve.OFF:
            return False
        params = call.params or {}
        original = str(params.get("uri" if call.method == "resources/read" else "name", ""))
        target = _target(caller, server, call, original)
        if not asks_about(rule, server, original, target):
            return False
        refusal = self._servers.closing or record.refusal
        if refusal is not None:
            raise refusal.copy()
        raw = _in_json(params.get("arguments") or {})
        key = caller.session, grant(server, original, raw)
        name = call.tool or original
        told = partial(self._tell, record.address, call, name, caller.session)
        if self._passes(key, call, told):
            return False
        secrets = self._context.secrets.of(record.address)
        request = ApprovalRequest(
            server,
            name,
            original,
            caller.session,
            hints_of(target),
            question(server, name, raw, secrets.without),
            raw,
        )
        self._check(request, record.address, told)
        if isinstance(params.get("arguments"), Mapping):  # its caller could still change it
            call.params = {**params, "arguments": request.arguments}
        self._hold(HeldCall(self._left, caller, record.address, call, request, key, told))
        return True

    def _passes(self, key: Key, call: Call, told: Told) -> bool:
        """Whether this very call has been allowed already."""
        session, what = key
        allowed = self._allowed.get(session, _NOTHING)
        if what in allowed:
            allowed.move_to_end(what)
            told(ApprovalMove.REMEMBERED)
            return True
        if key in self._continued and not _MORE.isdisjoint(call.params or ()):
            del self._continued[key]
            self._note_continuing(key, call)
            told(ApprovalMove.CONTINUED)
            return True
        return False

    def _check(self, request: ApprovalRequest, address: Address, told: Told) -> None:
        """Raises `ApprovalNeeded` when it is clear at once that nobody can be asked."""
        tool, server, session = request.tool, request.server, request.session
        waiting = sum(held.request.session == session for held in self._held)
        size = self._context.queued_bytes + len(request.raw)
        if waiting >= APPROVALS_WAITING or size > self._context.settings.max_queued_bytes:
            told(ApprovalMove.UNANSWERED)
            raise ApprovalNeeded(tool, server, "busy", f"{waiting} other calls of this session wait already")
        if not self._approvers.exist(session, address):
            told(ApprovalMove.UNANSWERED)
            raise nobody(request)

    def _hold(self, held: HeldCall) -> None:
        call, context = held.call, self._context
        held.release = held.caller.lease(held.address.server)
        held.since = context.backend.now()
        context.queued_bytes += len(held.request.raw)
        call.owner = held
        if call.on_end is None:
            call.waiter = context.backend.waiter()
        self._held[held] = None
        context.spawn(partial(self._decide, held))

    # ---- the question -----------------------------------------------------------------------------------------------

    async def _decide(self, held: HeldCall) -> None:
        """Find out what becomes of a call. Cancelled when something else ends it."""
        if held.is_over:
            return
        limit = self._context.settings.approval_timeout
        held.until = held.since + limit
        error: CallError | None = None
        with anyio.CancelScope(deadline=held.until) as scope:
            held.scope = scope
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
            why = f"nobody answered within {limit:g} s"
            error = ApprovalNeeded(held.request.tool, held.request.server, "expired", why)
        if not held.is_over:
            self._conclude(held, error)

    async def _verdict(self, held: HeldCall) -> Verdict:
        """Wait for those with the same question, then ask. Raises `ApprovalNeeded`."""
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
        """This is the answer, also for those with the same question that wait for it."""
        held.verdict = verdict
        if verdict is Verdict.SESSION:
            session, what = held.key
            allowed = self._allowed.setdefault(session, OrderedDict())
            allowed[what] = held.request.server
            if len(allowed) > APPROVALS_REMEMBERED:
                allowed.popitem(last=False)

    def _answered_at_desk(self, held: HeldCall, verdict: Verdict) -> None:
        """A person at a terminal was first. Whoever else is asked is no longer."""
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

    def _left(self, held: HeldCall) -> None:
        self.end(held, None, ApprovalMove.LEFT)

    def _allow(self, held: HeldCall) -> None:
        """Hand the call to its actor, which accepts or refuses it."""
        call, waiter = held.call, held.call.waiter
        self._over(held, _MOVES[held.verdict])
        call.owner = None
        self._note_continuing(held.key, call)
        try:
            held.caller.submit(held.address.server, call, allowed=True)
        except CallError as refusal:  # counted where it was refused
            call.waiter = waiter
            self._finish(held, refusal)
        except Exception as bug:  # of ours; every call ends, whatever happens here
            self._approvers.note_own_bug(held.address, bug)
            call.waiter = waiter
            text = f"Handing over the allowed call failed in Greenroom itself: {in_words(bug)}"
            error = Bug(text, server=held.address.server)
            self._context.tally.refuse(error)
            self._finish(held, error)
        else:
            call.waiter = waiter
            if call.ended and waiter is not None:
                waiter.set()
        finally:
            held.release()

    def end(self, held: HeldCall, error: CallError | None, move: ApprovalMove) -> None:
        """Refuse the call, or end it as cancelled by its caller. The question is withdrawn."""
        if held.is_over:
            return
        self._over(held, move)
        held.release()
        tally = self._context.tally
        if error is not None:
            tally.refuse(error)
        else:
            tally.refusals["cancelled"] = tally.refusals.get("cancelled", 0) + 1
        self._finish(held, error)

    def _over(self, held: HeldCall, move: ApprovalMove) -> None:
        held.is_over = True
        self._context.queued_bytes -= len(held.request.raw)
        del self._held[held]
        self.desk.take(held.number, move)
        held.told(move, at_terminal=held.at_terminal)
        if held.scope is not None:
            held.scope.cancel()

    def _finish(self, held: HeldCall, error: CallError | None) -> None:
        """End a call that no actor has accepted. So none of the drain report's numbers counts it."""
        call = held.call
        if call.finish(Tally(), error=error) and call.on_end is not None:
            try:
                call.on_end(call)
            except Exception as problem:
                self._approvers.note_bug(held.address, problem)

    def end_session(self, session: str) -> None:
        """The session is over: refuse what it waits for, and forget what it allowed."""
        for held in [held for held in self._held if held.request.session == session]:
            text = f"The session {session!r} is over; the call was not sent."
            self.end(held, RoomClosed(text, server=held.address.server), ApprovalMove.LEFT)
        self._allowed.pop(session, None)
        for key in [key for key in self._continued if key[0] == session]:
            del self._continued[key]

    def close(self, error: CallError) -> None:
        """The room is closing: refuse everything that waits."""
        for held in tuple(self._held):
            self.end(held, error.copy(), ApprovalMove.LEFT)

    # ---- more input -------------------------------------------------------------------------------------------------

    def _note_continuing(self, key: Key, call: Call) -> None:
        """If the call ends with the wish for more input, its client may call again with that."""
        if call.takes_inputs and call.on_end is not None:
            call.on_end = partial(self._may_continue, key, call.on_end)

    def _may_continue(self, key: Key, on_end: Callable[[Call], None], call: Call) -> None:
        if call.result is not None and _wants_input(call.result):
            self._continued[key] = None
            if len(self._continued) > APPROVALS_REMEMBERED:
                self._continued.popitem(last=False)
        on_end(call)

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


def _in_json(arguments: object) -> bytes:
    """The arguments as an allowance is remembered by them: without the spaces between them, which mean nothing."""
    return json.format(bytes(arguments), indent=-1) if isinstance(arguments, Raw) else encode_json(arguments)


def _wants_input(result: bytes) -> bool:
    """Whether it is a question, and no final result that contains the word."""
    if b"input_required" not in result:
        return False
    try:
        return read_value(read_parts(Raw(result)).get("resultType")) == "input_required"
    except (RpcFault, WireFault):
        return False


def _target(caller: Caller, server: str, call: Call, original: str) -> Target | None:
    """What is known of the tool that is called."""
    found = caller.index.get(call.tool) if call.tool is not None else caller.index.resolve(original, server)
    is_it = isinstance(found, Target) and (found.server, found.original) == (server, original)
    return found if is_it and isinstance(found, Target) else None


_NOTHING: Final[OrderedDict[bytes, str]] = OrderedDict()
