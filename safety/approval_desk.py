"""The desk: the calls about which somebody is asked now, for people at terminals (`greenroom top`, `approve`).

* *Numbers.* Each question has a number, which no other question of the room gets. The first one is random. So a number
  that was read off one room most likely means nothing in the room that takes its place.
* *Who is first.* A question that a client or a program is asked can be answered here as well. The first answer counts,
  and the others' question is withdrawn. An answer takes effect at once: when it is told to be done, it is done.
* *Watching.* A terminal watches the desk by looking at it again and again; each look says for how long it counts. A
  call about which nobody else can be asked is held only while somebody watches, and is refused when the last terminal
  has not looked again in time, as when it was killed.
* *Too late.* The last outcomes are remembered. So whoever answers too late is told what has become of the call.
* *Commands.* `greenroom call` asks the person who typed it. Its calls are never held for a terminal, so nobody allows
  by accident in one window what was typed in another.
"""

from __future__ import annotations

import math
import secrets
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import attrs
from msgspec import Raw, json

from ..actors.call import Call, Tally
from ..actors.host import Host, ServerRequest, lacking
from ..actors.room_context import RoomContext
from ..catalogue.namespace import Target
from ..config.model import Approve, Config, ServerDefinition
from ..config.secrets import in_words
from ..protocol.address import Address
from ..protocol.bounds import APPROVALS_ENDED, APPROVALS_LISTED, APPROVALS_REMEMBERED, APPROVALS_WAITING
from ..protocol.errors import (
    ApprovalDenied,
    ApprovalNeeded,
    Bug,
    CallError,
    RoomClosed,
    RpcRefusal,
    UsageError,
)
from ..protocol.events import ApprovalDecision, ApprovalMove, Note, NoteCode
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.incoming import NO_MESSAGE, wants_input
from .approval import (
    ApprovalRequest,
    OnApproval,
    Rule,
    Verdict,
    asks_about,
    form,
    grant,
    hints_of,
    question,
    verdict_of,
)

if TYPE_CHECKING:
    from ..catalogue.index import Index


# --------------------------------------------------------------------------------------------------------------
#
#
# Calls that somebody has to allow: they are held, somebody is asked, and then they are sent or refused.
#
# What has to be allowed is decided in `approval`; here is who is asked, and what becomes of the call.
#
# * *When.* Before the call is handed to an actor. So a question starts no server, and a call that is refused was never
#   accepted anywhere: it is counted as refused, and no byte of it was sent. (A server must be started first only if
#   nothing is known yet of the tool's name.) While a call is held, its server's connection is kept if there is one: it
#   counts as used, as if the call were in flight there.
# * *Who.* `_approvers` knows. If there is nobody, the call is refused. A person at a terminal may answer first, whoever
#   is asked (`Desk`).
# * *Once.* A yes is for one call, or for the session: then the same tool with the same arguments is not asked about
#   again in this session. Several calls with the same question wait for one another: only one of them is asked about at
#   a time, a no counts for all that wait at that moment, and a yes for the session, too.
# * *How it ends.* Each held call ends in exactly one way: it is handed to its actor, or it is refused (a no, a
#   dismissed question, the time is over, nobody can be asked, the room or the session is closing), or its caller
#   leaves. Whatever happens first counts; in the two last cases the question is withdrawn.
#
# A call whose server wants more input before it answers (2026-07-28) is called again by its client, with that input.
# That is the same call, so it is not asked about again, if the arguments are the same.

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
        """The error with which the server cannot be called at all."""
        ...


class Servers(Protocol):
    """What approval needs to know of a room: its servers, its sessions, and whether it is closing."""

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
        self.desk: Desk = Desk(context.backend.now)
        self._approvers = Approvers(context, servers.sessions, self.desk)
        self._held: dict[HeldCall, None] = {}
        self._asked: dict[Key, HeldCall] = {}  # about whom somebody is asked now
        self._allowed: dict[str | None, OrderedDict[bytes, str]] = {}  # for the session; each with its server
        self._continued: OrderedDict[Key, None] = OrderedDict()  # whose servers want more input

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

    def holds(self, caller: Caller, server: str, call: Call) -> bool:
        """Whether the call has to wait for somebody's yes. Then it is held, and ends later. Raises the `CallError` that
        refuses it."""
        record = self._servers.records.get(server)
        if record is None or (call.tool is None and call.method != "tools/call"):
            return False
        rule = self._rule(record)
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

    def leaves_it_to(self, session: str | None, target: Target) -> bool:
        """Whether calls of this tool have to be allowed by somebody, and only whoever makes the calls of this session
        can ask: nobody else is there to be asked now."""
        record = self._servers.records.get(target.server)
        if record is None or not asks_about(self._rule(record), target.server, target.original, target):
            return False
        return not self._approvers.exist(session, record.address)

    def _rule(self, record: Configured) -> Rule:
        said = record.definition.approve
        return self._context.settings.approve if said is None else said

    def _passes(self, key: Key, call: Call, told: Told) -> bool:
        """Whether this very call has been allowed before."""
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
        if call.is_allowed:
            told(ApprovalMove.ALLOWED)
        return call.is_allowed

    def _check(self, request: ApprovalRequest, address: Address, told: Told) -> None:
        """Raises `ApprovalNeeded` when it is clear at once that nobody can be asked."""
        tool, server, session = request.tool, request.server, request.session
        waiting = sum(held.request.session == session for held in self._held)
        size = self._context.queued_bytes + len(request.raw)
        if waiting >= APPROVALS_WAITING or size > self._context.settings.max_queued_bytes:
            told(ApprovalMove.UNANSWERED)
            raise ApprovalNeeded(tool, server, "busy", f"{waiting} other calls of this session wait already")
        if not self._approvers.exist(session, address):
            if not self.desk.will_be_told(session):
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
        """Find out whether the call is allowed, and end its wait. Cancelled when something else ends the wait."""
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
        if call.takes_inputs and call.on_end is not None:
            call.on_end = partial(self._may_continue, key, call.on_end)

    def _may_continue(self, key: Key, on_end: Callable[[Call], None], call: Call) -> None:
        if call.result is not None and wants_input(call.result):
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


_LAID_OUT: Final = 1 << 18  # bytes of arguments that are laid out anew


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


def _target(caller: Caller, server: str, call: Call, original: str) -> Target | None:
    """What is known of the tool that is called."""
    found = caller.index.get(call.tool) if call.tool is not None else caller.index.resolve(original, server)
    is_it = isinstance(found, Target) and (found.server, found.original) == (server, original)
    return found if is_it and isinstance(found, Target) else None


_NOTHING: Final[OrderedDict[bytes, str]] = OrderedDict()


LONGEST_LOOK: Final = 90.0  # seconds for which one look counts at most
_FIRST: Final = range(1_000, 10_000)
_BECAME: Final[Mapping[ApprovalMove, str]] = {
    ApprovalMove.ALLOWED: "has been allowed already",
    ApprovalMove.ALLOWED_FOR_SESSION: "has been allowed already, for its session",
    ApprovalMove.DENIED: "has been refused already",
    ApprovalMove.UNANSWERED: "has been refused already, because nobody answered in time or its server was changed",
    ApprovalMove.LEFT: "was withdrawn: its caller left, or its session or the gateway ended",
}


@attrs.frozen(eq=False)
class Question:
    """An open question. Times are those of the room's clock."""

    number: int
    request: ApprovalRequest
    since: float  # when its call came
    until: float  # when its call is refused, if nobody has answered
    decide: Callable[[Verdict], None] = attrs.field(repr=False)


class Desk:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._numbers = count(secrets.choice(_FIRST))
        self._open: dict[int, Question] = {}
        self._ended: OrderedDict[int, ApprovalMove] = OrderedDict()
        self._watched_until = float("-inf")
        self._asked_elsewhere: set[str | None] = set()
        self._to_be_told: set[str | None] = set()

    # ---- for terminals ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many questions are open."""
        return len(self._open)

    def waiting(self, most: int = APPROVALS_LISTED) -> list[Question]:
        """The open questions, the oldest first."""
        return list(islice(self._open.values(), most))

    def get(self, number: int) -> Question | None:
        return self._open.get(number)

    def has_ended(self, number: int) -> bool:
        """Whether a question with this number was open, not too long ago."""
        return number in self._ended

    def answer(self, number: int, verdict: Verdict) -> Question:
        """Decide about the call with this number. Raises `UsageError` when it does not wait any more, or never did."""
        found = self._open.get(number)
        if found is None:
            became = self._ended.get(number)
            what = (
                f"Call {number} {_BECAME[became]}." if became else f"No call with the number {number} waits."
            )
            raise UsageError(f"{what} To see which calls wait: greenroom approve", code="not_waiting")
        found.decide(verdict)
        return found

    def watch(self, seconds: float) -> None:
        """Somebody looks at the desk, and will look again within this many seconds."""
        self._watched_until = max(self._watched_until, self.now() + min(LONGEST_LOOK, max(0.0, seconds)))

    @contextmanager
    def asked_elsewhere(self, session: str, *, will_be_told: bool = False) -> Generator[None]:
        """While this is open, whoever makes the calls of this session asks about them. `will_be_told`: a refused call
        is made again with the answer, so the refusal is not reported as a question that nobody answered."""
        self._asked_elsewhere.add(session)
        if will_be_told:
            self._to_be_told.add(session)
        try:
            yield
        finally:
            self._asked_elsewhere.discard(session)
            self._to_be_told.discard(session)

    # ---- for the approvals ------------------------------------------------------------------------------------------

    def is_watched(self, session: str | None) -> bool:
        """Whether somebody at a terminal can be asked about the calls of this session."""
        return self.now() < self._watched_until and session not in self._asked_elsewhere

    def will_be_told(self, session: str | None) -> bool:
        """Whether a refused call of this session will be made again with the answer."""
        return session in self._to_be_told

    async def unwatched(self, session: str | None) -> None:
        """Wait until nobody watches the desk any more."""
        while self.is_watched(session):  # noqa: ASYNC110  (it ends when a time is over, and no event tells that)
            await anyio.sleep(
                max(0.0, self._watched_until - self.now())
            )  # another look may have come meanwhile

    def put(
        self, request: ApprovalRequest, since: float, until: float, decide: Callable[[Verdict], None]
    ) -> int:
        """Show this request to terminals. `decide` is called with the answer of one, at most once."""
        number = next(self._numbers)
        self._open[number] = Question(number, request, since, until, decide)
        return number

    def take(self, number: int, move: ApprovalMove) -> None:
        """Take the question off the desk. `move`: how it ended."""
        if self._open.pop(number, None) is not None:
            self._ended[number] = move
            if len(self._ended) > APPROVALS_ENDED:
                self._ended.popitem(last=False)


# ---- Who is asked whether a call may be sent ------------------------------------------------------------------------
#
# First the session's own `on_approval`, then the room's; each may leave it to the next by returning None. If one
# raises, or returns something else, the answer is no. Then whoever answers for the session (`Answerers`): a client of a
# door, or the callbacks of a program. They are asked by an elicitation, if they take forms; it is marked as ours. If
# none of them can be asked, the call waits for the people at terminals alone (`Desk`), as long as there are
# any.

_ASK: Final = "elicitation/create"
_HOW: Final = (
    "nobody can be asked here. Tell the user: it can be allowed in `greenroom top`, if that runs during the call, "
    'in an MCP client that takes elicitations, with `greenroom call` on a terminal, or by another "approve" in the '
    "configuration"
)


class Answerers(Protocol):
    """The hosts and callbacks that can be asked, of a room and its sessions (None: the room itself)."""

    @property
    def approvers(self) -> Mapping[str | None, OnApproval]: ...

    def answers_for(self, session: str | None) -> str | None:
        """The session whose client answers for this session."""
        ...

    def host(self, session: str | None) -> Host:
        """The host that answers for this session. Raises `KeyError`."""
        ...


class Approvers:
    def __init__(self, context: RoomContext, sessions: Answerers, desk: Desk) -> None:
        self._context = context
        self._sessions = sessions
        self._desk = desk

    def exist(self, session: str | None, address: Address) -> bool:
        """Whether anybody can be asked about a call of this session to a server at this address."""
        if self._hooks(session) or self._host(session, address) is not None:
            return True
        return self._desk.is_watched(session)

    async def ask(self, request: ApprovalRequest, address: Address, call: Call) -> Verdict:
        """Ask whether the call may be sent. Raises `ApprovalNeeded` when there is no answer."""
        for hook in self._hooks(request.session):
            try:
                said = await hook(request)
            except Exception as error:
                self.note_bug(address, error)
                return Verdict.DENY
            if said is not None:
                return said if isinstance(said, Verdict) else Verdict.DENY  # pyright: ignore[reportUnnecessaryIsInstance]
        host = self._host(request.session, address)
        if host is None:
            await self._desk.unwatched(request.session)
            raise nobody(request)
        try:
            asked = ServerRequest(address, _ASK, form(request.text), call=call, is_ours=True)
            answer = verdict_of(await host.answer(asked))
        except RpcRefusal as refusal:
            await self._desk.unwatched(request.session)
            why = f"the question failed ({refusal.message.rstrip('.')})"
            raise ApprovalNeeded(request.tool, request.server, "failed", why) from None
        except Exception as error:
            self.note_bug(address, error)
            return Verdict.DENY
        if answer is None:
            raise ApprovalNeeded(request.tool, request.server, "dismissed", "the question was dismissed")
        return answer

    def note_bug(self, address: Address, error: Exception) -> None:
        """A callback raised while a call was held."""
        text = "".join(traceback.format_exception(error))
        words = f"a callback failed while a call waited for approval\n{text}"
        self._context.events.emit(Note, address, code=NoteCode.CALLBACK, words=words)

    def note_own_bug(self, address: Address, error: Exception) -> None:
        """Handing over an allowed call failed because of us."""
        words = "".join(traceback.format_exception(error))
        self._context.events.emit(Note, address, code=NoteCode.BUG, words=words)

    def _hooks(self, session: str | None) -> list[OnApproval]:
        approvers = self._sessions.approvers
        asked = (session, None) if session is not None else (None,)
        return [approvers[who] for who in asked if who in approvers]

    def _host(self, session: str | None, address: Address) -> Host | None:
        """The host that can show a question of this session to a person."""
        with suppress(KeyError):
            host = self._sessions.host(self._sessions.answers_for(session))
            declared = host.declaration(address).capabilities
            if lacking(declared, _ASK, {}) is None:
                return host
        return None


def nobody(request: ApprovalRequest) -> ApprovalNeeded:
    return ApprovalNeeded(request.tool, request.server, "nobody", _HOW, request.text)


# ---- One call that waits for somebody's yes, and whose call it is ---------------------------------------------------

Key = tuple[str | None, bytes]  # the session, and what an allowance is remembered by


class Told(Protocol):
    def __call__(self, move: ApprovalMove, *, at_terminal: bool = False) -> None: ...


class Caller(Protocol):
    """The room or session that makes the call."""

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


class HeldCall:
    """One call that waits for a yes. It owns the call as long as no actor does."""

    protocol_version: str | None = None
    connected_at: float = -math.inf  # no server has been started for it
    incarnation = 0
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
        leave: Callable[[HeldCall], None],
        caller: Caller,
        address: Address,
        call: Call,
        request: ApprovalRequest,
        key: Key,
        told: Told,
    ) -> None:
        self._leave = leave
        self.caller = caller
        self.address = address
        self.call = call
        self.request = request
        self.key = key
        self.told = told
        self.release: Callable[[], None] = _nothing

    def cancel(self, call: Call, reason: str) -> None:
        """Its caller does not wait any more."""
        self._leave(self)

    def exchange_sent(self, exchange: Any, /) -> None:
        """Never called, because no peer has the call yet. The same holds for the next two."""

    def exchange_ended(self, exchange: Any, result: bytes | None, error: Any, /) -> None: ...

    def exchange_progressed(self, exchange: Any, params: Mapping[str, Any], /) -> None: ...


def _nothing() -> None:
    pass
