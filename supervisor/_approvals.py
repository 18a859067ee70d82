"""Calls that somebody has to allow: they are held, somebody is asked, and then they are sent or refused.

What has to be allowed is decided in `protocol.approval`; here is who is asked, and what becomes of the call.

* *When.* Before the call is handed to an actor. So a question starts no server, and a call that is refused was never
  accepted anywhere: it is counted as refused, and no byte of it was sent. (A server must be started first only if
  nothing is known yet of the tool's name.) While a call is held, its server's connection is kept if there is one: it
  counts as used, as if the call were in flight there.
* *Who.* `_approvers` knows. If there is nobody, the call is refused.
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
from typing import Any, Final, Protocol

import anyio
from msgspec import Raw

from ..actors import Call, RoomContext, Tally
from ..protocol.address import Address
from ..protocol.approval import ApprovalRequest, Verdict, asks_about, grant, hints_of, question
from ..protocol.bounds import APPROVALS_REMEMBERED, APPROVALS_WAITING
from ..protocol.config import Approve, Config
from ..protocol.errors import ApprovalDenied, ApprovalNeeded, CallError, RoomClosed
from ..protocol.events import ApprovalDecision, ApprovalMove
from ..protocol.index import Index, Target
from ..protocol.jsonrpc import RpcFault, WireFault, encode_json, read_parts, read_value
from ._approvers import Approvers, nobody
from ._directory import Directory

_MOVES: Final[Mapping[Verdict | None, ApprovalMove]] = {
    Verdict.ONCE: ApprovalMove.ALLOWED,
    Verdict.SESSION: ApprovalMove.ALLOWED_FOR_SESSION,
    None: ApprovalMove.REMEMBERED,  # it waited for another one, which was allowed for the session
}
_MORE: Final = frozenset({"inputResponses", "requestState"})  # a call that brings more input has one of these
_Key = tuple[str | None, bytes]  # the session, and what an allowance is remembered by


class Caller(Protocol):
    """Whose call it is: the room, or a session."""

    @property
    def session(self) -> str | None: ...

    @property
    def index(self) -> Index: ...

    def lease(self, server: str) -> Callable[[], None]:
        """Keep the server's connection from being evicted. Returns the function that ends this."""
        ...

    def submit(self, server: str, call: Call, *, allowed: bool) -> None:
        """Hand the call to its actor. Raises the `CallError` with which it is refused."""
        ...


class Approvals:
    def __init__(self, context: RoomContext, directory: Directory) -> None:
        self.asks = False  # whether there are calls that somebody has to allow
        self._context = context
        self._directory = directory
        self._approvers = Approvers(context, directory.sessions)
        self._held: dict[_Held, None] = {}
        self._asked: dict[_Key, _Held] = {}  # about whom somebody is asked now
        self._allowed: dict[str | None, OrderedDict[bytes, str]] = {}  # for the session; each with its server
        self._continued: OrderedDict[_Key, None] = OrderedDict()  # whose servers want more input

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
        record = self._directory.records.get(server)
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
        refusal = self._directory.closing or record.refusal
        if refusal is not None:
            raise refusal.copy()
        raw = encode_json(params.get("arguments") or {})
        key = caller.session, grant(server, original, raw)
        name = call.tool or original
        told = partial(self._tell, record.address, name, caller.session)
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
        self._hold(_Held(self, caller, record.address, call, request, key, told))
        return True

    def _passes(self, key: _Key, call: Call, told: Callable[[ApprovalMove], None]) -> bool:
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

    def _check(
        self, request: ApprovalRequest, address: Address, told: Callable[[ApprovalMove], None]
    ) -> None:
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

    def _hold(self, held: _Held) -> None:
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

    async def _decide(self, held: _Held) -> None:
        """Find out what becomes of a call. Cancelled when something else ends it."""
        if held.is_over:
            return
        limit = self._context.settings.approval_timeout
        error: CallError | None = None
        with anyio.CancelScope(deadline=held.since + limit) as scope:
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
        if held.is_over:
            return
        if error is None:
            self._allow(held)
        else:
            denied = isinstance(error, ApprovalDenied)
            self.end(held, error, ApprovalMove.DENIED if denied else ApprovalMove.UNANSWERED)

    async def _verdict(self, held: _Held) -> Verdict:
        """Wait for those with the same question, then ask. Raises `ApprovalNeeded`."""
        session, what = held.key
        while (ahead := self._asked.get(held.key)) is not None:
            await ahead.answered.wait()
            if ahead.verdict is Verdict.DENY:
                return Verdict.DENY
            if what in self._allowed.get(session, _NOTHING):
                return Verdict.SESSION
        held.answered = anyio.Event()
        self._asked[held.key] = held
        try:
            held.told(ApprovalMove.ASKED)
            held.verdict = await self._approvers.ask(held.request, held.address, held.call)
            if held.verdict is Verdict.SESSION and not held.is_over:
                self._remember(held.key, held.request.server)
            return held.verdict
        finally:
            del self._asked[held.key]
            held.answered.set()

    def _remember(self, key: _Key, server: str) -> None:
        session, what = key
        allowed = self._allowed.setdefault(session, OrderedDict())
        allowed[what] = server
        if len(allowed) > APPROVALS_REMEMBERED:
            allowed.popitem(last=False)

    # ---- how it ends ------------------------------------------------------------------------------------------------

    def _allow(self, held: _Held) -> None:
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
        else:
            call.waiter = waiter
            if call.ended and waiter is not None:
                waiter.set()
        finally:
            held.release()

    def end(self, held: _Held, error: CallError | None, move: ApprovalMove) -> None:
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

    def _over(self, held: _Held, move: ApprovalMove) -> None:
        held.is_over = True
        self._context.queued_bytes -= len(held.request.raw)
        del self._held[held]
        held.told(move)
        if held.scope is not None:
            held.scope.cancel()

    def _finish(self, held: _Held, error: CallError | None) -> None:
        """End a call that no actor has accepted. So none of the drain report's numbers counts it."""
        call = held.call
        call.finish(Tally(), error=error)
        if call.on_end is not None:
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

    def _note_continuing(self, key: _Key, call: Call) -> None:
        """If the call ends with the wish for more input, its client may call again with that."""
        if call.takes_inputs and call.on_end is not None:
            call.on_end = partial(self._may_continue, key, call.on_end)

    def _may_continue(self, key: _Key, on_end: Callable[[Call], None], call: Call) -> None:
        if call.result is not None and _wants_input(call.result):
            self._continued[key] = None
            if len(self._continued) > APPROVALS_REMEMBERED:
                self._continued.popitem(last=False)
        on_end(call)

    # ---- what is told -----------------------------------------------------------------------------------------------

    def _tell(self, address: Address, tool: str, client: str | None, move: ApprovalMove) -> None:
        self._context.events.emit(ApprovalDecision, address, move=move, tool=tool, client=client)


class _Held:
    """One call that waits for a yes. It is the call's owner as long as no actor is."""

    protocol_version: str | None = None
    scope: anyio.CancelScope | None = None  # of the task that asks
    answered: anyio.Event  # set when the question about it is over, if somebody is asked about it
    verdict: Verdict | None = None
    since = 0.0
    is_over = False

    def __init__(
        self,
        approvals: Approvals,
        caller: Caller,
        address: Address,
        call: Call,
        request: ApprovalRequest,
        key: _Key,
        told: Callable[[ApprovalMove], None],
    ) -> None:
        self._approvals = approvals
        self.caller = caller
        self.address = address
        self.call = call
        self.request = request
        self.key = key
        self.told = told
        self.release: Callable[[], None] = _nothing

    def cancel(self, call: Call, reason: str) -> None:
        """The caller leaves."""
        self._approvals.end(self, None, ApprovalMove.LEFT)

    def exchange_sent(self, exchange: Any, /) -> None:
        """Never called, as no peer knows the call yet; so are the next two."""

    def exchange_ended(self, exchange: Any, result: bytes | None, error: Any, /) -> None: ...

    def exchange_progressed(self, exchange: Any, params: Mapping[str, Any], /) -> None: ...


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


def _nothing() -> None:
    pass


_NOTHING: Final[OrderedDict[bytes, str]] = OrderedDict()
