"""How a client of 2026-07-28 is asked: its request is answered with "input required", and it sends the
request again.

Such a client is sent no requests. Its second request carries the answers and the `requestState` of the first
answer.

*A newer server* makes its own `requestState`. It passes through the client and comes back. It is signed with
a key of this process, together with the server and the item it was made for. So no client can hand one
server's state to another server.

*An older server* sends a request in the middle of a call, and the call cannot be ended and sent again. So the
call is suspended: it goes on running, and the client's request ends with "input required" and a random name as
`requestState`. When the client comes back with that name and the answer, the answer goes to the server, and the
client's new request waits for the call. The request of the call that the server asks about carries the server
request, and no other does. Until 2025-11-25 a server on stdio cannot say which call it asks about. If several
of the client's calls are open there, the oldest of its requests to that server carries it; but only if all of
them come from one program. Over HTTP several programs may be one client to us (`ClientSession.may_be_several`).
What is asked about the call of one of them must not reach another, so there such a server request is refused.
When we ask whether a call may be sent, the call is always known.

A name is valid until its call has ended, and for no longer than a call may take in all. It stays valid when the
server withdraws its request or is lost: the client that comes back then gets the outcome of the call. Rejected: to
refuse such a client, because it would call a second time.

*The same call again.* Some clients begin a call anew when they come back to it, as LangGraph does after an interrupt
(issue 28). It would run twice, and wait for an approval that nobody gives any more. So a request that is the same as
that of a suspended call, of the same client and without a state, is no second call: it gets the first question of the
suspended one again, under the same name. When the client answers as it did before, it gets the next question, until it
is where the call is. A request that does not declare what a question needs is not asked it: so one that begins anew
is a call of its own, and one that comes back is told what it lacks. This holds only while the call is suspended: at
any other time a client may want two equal calls. And it holds for a call whose requests are answered in its own
place, not for one that has become a task.

So an answer may come twice. The first counts. A second one that says the same waits for the same call, and one that
says something else is refused. Several requests may wait for a call then; it is cancelled when the last of them is.
Once the call has ended, the name is told to be over and not to be unknown, lest the client calls a second time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio
import msgspec

from ..actors.host import lacking
from ..actors.timers import at_most
from ..protocol import jsonrpc as rpc
from ..protocol.errors import RpcRefusal
from ..protocol.json_values import is_object
from ..protocol.jsonrpc.terms import MISSING_CAPABILITY, RpcFault
from .jobs import Job

_KEY: Final = "question"
_NOT_COMPARED: Final = frozenset({"_meta", "requestState", "inputResponses"})
# What a request has that is not the first of its call.
_MORE: Final = frozenset({"requestState", "inputResponses"})
# Bytes of a value that is compared by what it says; a longer one, by how it is written.
_LOOKED_INTO: Final = 1 << 16
_ROUNDS: Final = 8  # questions of one call that can be asked again; of a call with more, none
_NAMES_OVER: Final = 256  # names of ended calls that are remembered
_OVER: Final = (
    "Invalid params: the call that this requestState was given for has ended, and its result went to whoever answered "
    "first. Without it this would be a second call."
)
_SAID_OTHERWISE: Final = (
    "Invalid params: this question was answered before, in other words, and the call goes on with that answer. Give "
    "the same answer, or wait until the call has ended."
)


class StateSigner:
    """Binds a server's state to the item it was made for."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def sign(self, state: str, *what: str) -> str:
        return f"{self._digest(state, what)}.{state}"

    def verify(self, signed_state: str, *what: str) -> str:
        """Return the server's own state. Raises `RpcFault` when it was not signed by this process for `what`."""
        digest, _, state = signed_state.partition(".")
        if not hmac.compare_digest(digest.encode(), self._digest(state, what).encode()):
            text = "Invalid params: this requestState was not given for this request. Ask again without it."
            raise RpcFault(rpc.INVALID_PARAMS, text)
        return state

    def _digest(self, state: str, what: tuple[str, ...]) -> str:
        text = "\0".join((*what, state)).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


class SuspendableCall:
    """A call for a newer client. Its job may end before the call does. Then a later request brings another job, which
    takes the first one's place.

    When the call ends, `conclude(job, call)` ends each job that waits for it.
    """

    def __init__(
        self, suspended: SuspendedCalls, job: Job, server: str | None, conclude: Callable[[Job, Any], None]
    ) -> None:
        self.jobs: list[Job] = [job]  # that wait for it; none while it is suspended
        self.first = job
        self.server = server  # None: it uses several
        self.rounds: list[Round] = []  # what its client was asked, as far as that is kept
        self.can_be_asked_again = True
        self._suspended = suspended
        self._conclude = conclude
        self._call: Any = None
        self._outcome: Any = None  # the call, if it ended while no job waited
        self._ended = False
        suspended.started(self)

    @property
    def runs(self) -> bool:
        return not self._ended

    def follow(self, call: Any) -> None:
        """The call was accepted, so the job follows it. It may have ended already."""
        if not self._ended:
            self._call = call
            for job in self.jobs:
                job.follow(call)

    def is_of(self, call: object) -> bool:
        return call is not None and self._call is call

    async def carried(self) -> bool:
        """Wait until the call's request is open again, so that it can carry another server request. Returns False for a
        call that carries one at a time."""
        return False

    def ended(self, call: Any) -> None:
        """The `on_end` of the call."""
        self.refused()
        if self.jobs:
            self._end_jobs(call)
        else:
            self._outcome = call

    def _end_jobs(self, call: Any) -> None:
        self._suspended.forget(self, is_over=True)
        for job in self.jobs:
            job.concluded_by(self._conclude, job)(call)

    def refused(self) -> None:
        """The call was refused, or has ended."""
        self._ended, self._call = True, None
        self._suspended.ended(self)

    def progress(self, params: Mapping[str, Any]) -> None:
        for job in self.jobs:
            job.progress(params)

    def suspend(self, asked: Mapping[str, Any]) -> None:
        """Answer the jobs that input is required. The call goes on."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.let_go()
            job.answer(asked)

    def carry(self, job: Job) -> None:
        """Let `job` wait for the call from now on, beside those that wait already."""
        self.jobs.append(job)
        if self._outcome is not None:
            self._end_jobs(self._outcome)
        elif self._call is not None and len(self.jobs) == 1:
            job.follow(self._call)
        elif self._call is not None:
            for each in self.jobs:
                each.follow(cast("Any", _SharedCall(self)))

    def left(self) -> None:
        """One of several jobs was cancelled."""
        self.jobs = [job for job in self.jobs if not job.ended]
        if not self.jobs:
            self.drop()

    def drop(self) -> None:
        """Cancel the call, because its client does not come back."""
        if self._call is not None:
            self._call.cancel()

    def carries(self, client: Any, server: str) -> bool:
        jobs = self.jobs
        return self.server in (server, None) and bool(jobs) and jobs[0].client is client


class _SharedCall:
    """What each of several jobs follows in place of the call that all of them wait for."""

    on_task: Any = None  # none of them becomes a task
    news: Any = None  # each is given the result of the one call, with its news

    def __init__(self, suspendable: SuspendableCall) -> None:
        self._suspendable = suspendable

    def cancel(self) -> None:
        self._suspendable.left()


class SuspendedCalls:
    """The running calls of newer clients, and which of them are suspended."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds a suspended call is held
        self._running: dict[SuspendableCall, None] = {}
        self._rounds: dict[str, Round] = {}  # by their names
        self._over: OrderedDict[str, None] = OrderedDict()  # the names of calls that have ended

    def __len__(self) -> int:
        """The number of calls whose client may still come back with an answer."""
        rounds = self._rounds.values()
        return sum(asked.answer is None and asked.until > anyio.current_time() for asked in rounds)

    def started(self, suspendable: SuspendableCall) -> None:
        self._running[suspendable] = None

    def ended(self, suspendable: SuspendableCall) -> None:
        self._running.pop(suspendable, None)

    def forget(self, suspendable: SuspendableCall, *, is_over: bool = False) -> None:
        """Its names mean nothing any more. `is_over`: its client has been told how it ended."""
        rounds, suspendable.rounds = suspendable.rounds, []
        for asked in rounds:
            self._rounds.pop(asked.name, None)
            if is_over:
                self._over[asked.name] = None
                if len(self._over) > _NAMES_OVER:
                    self._over.popitem(last=False)

    async def ask(
        self, client: Any, server: str, request: Mapping[str, Any], call: object = None
    ) -> Mapping[str, Any]:
        """Send a newer client the `request` of an older server, and return its answer. `call`: the call that the
        request is about, if known; then only that call's request carries it. Raises `RpcRefusal` when the client cannot
        be asked or does not answer in time."""
        suspendable = await self._carrier(client, server, call)
        for job in suspendable.jobs:  # it may be another than when the server asked
            if missing := undeclared(request, job.declared):
                text = f"Method not found: {request['method']} (the request that is open did not declare {missing})"
                raise RpcRefusal(rpc.METHOD_NOT_FOUND, text)
        self._drop_overdue()
        asked = Round(suspendable, client, request, anyio.current_time() + self._patience)
        if len(suspendable.rounds) >= _ROUNDS:
            self.forget(suspendable)
            suspendable.can_be_asked_again = False
        suspendable.rounds.append(asked)
        self._rounds[asked.name] = asked
        suspendable.suspend(asked.told)
        async with at_most(self._patience):
            await asked.answered.wait()
        if asked.answer is None and asked.name in self._rounds:
            self._drop(suspendable)
            text = "The client did not come back with an answer."
            raise RpcRefusal(rpc.INTERNAL_ERROR, text)
        # Cancelled: the server has withdrawn its request, or is lost. The client may still come back for the outcome.
        return asked.answer or {}

    async def _carrier(self, client: Any, server: str, call: object) -> SuspendableCall:
        """The call whose request carries the server request. Raises `RpcRefusal`."""
        while True:
            asked = [each for each in self._running if call is None or each.is_of(call)]
            able = next((each for each in asked if each.carries(client, server)), None)
            if able is not None:
                return able
            if call is None or not asked or not await asked[0].carried():
                text = (
                    "The client cannot be asked: none of its calls is open to carry the request (2026-07-28)."
                )
                raise RpcRefusal(rpc.INTERNAL_ERROR, text)

    def resume(self, job: Job, name: str) -> SuspendableCall | None:
        """The client has sent its request again, with an answer: let `job` wait for the call of this name, or ask what
        comes next. None: there is no such name. Raises `RpcFault` when the request has no answer, or another than the
        one that counts, or does not declare what comes next, or its call is over."""
        asked = self._rounds.get(name)
        if asked is None:
            if name in self._over:
                raise RpcFault(rpc.INVALID_PARAMS, _OVER)
            return None
        responses = rpc.read_value(job.params.get("inputResponses"))
        answer = responses.get(_KEY) if is_object(responses) else None
        if not is_object(answer):
            raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: inputResponses lacks an object {_KEY!r}.")
        suspendable = asked.suspendable
        if asked.answer is None:
            asked.answer = answer
            asked.answered.set()
        elif not _says_the_same(asked.answer, answer):
            raise RpcFault(rpc.INVALID_PARAMS, _SAID_OTHERWISE)
        later = suspendable.rounds[suspendable.rounds.index(asked) + 1 :]
        if later and not later[0].is_of_task:
            later[0].need_declared(job)
            job.answer(later[0].told)
        else:
            suspendable.carry(job)
        return suspendable

    def asks_again(self, job: Job) -> bool:
        """Whether this request is that of a suspended call, begun anew. Then it is answered with what its client was
        asked first."""
        if not self._rounds or not _MORE.isdisjoint(job.params):
            return False
        now = anyio.current_time()
        for asked in self._rounds.values():
            if asked.waits_at(now) and asked.suspendable.can_be_asked_again and asked.is_of(job):
                first = asked.suspendable.rounds[0]
                if undeclared(first.request, job.declared) is None:
                    job.answer(first.told)
                    return True
        return False

    def left(self, client: Any) -> None:
        """A client has disconnected: cancel its suspended calls."""
        self._drop_where(lambda asked: asked.client is client)

    def _drop_overdue(self) -> None:
        """Drop the calls whose server requests were withdrawn and whose clients did not come back in time."""
        now = anyio.current_time()
        self._drop_where(lambda asked: asked.until <= now)

    def _drop_where(self, is_over: Callable[[Round], bool]) -> None:
        for asked in tuple(self._rounds.values()):
            if asked.answer is None and is_over(asked):
                self._drop(asked.suspendable)

    def _drop(self, suspendable: SuspendableCall) -> None:
        self.forget(suspendable)
        suspendable.drop()


class Round:
    """One question to the client of a call: what it was told, under which name, and until when it may come back."""

    def __init__(
        self, suspendable: SuspendableCall, client: Any, request: Mapping[str, Any], until: float
    ) -> None:
        self.name: str = secrets.token_urlsafe(24)
        self.told: Mapping[str, Any] = {
            "resultType": "input_required",
            "inputRequests": {_KEY: request},
            "requestState": self.name,
        }
        self.request = request
        self.suspendable = suspendable
        self.client = client
        self.until = until
        self.answered: anyio.Event = anyio.Event()
        self.answer: Mapping[str, Any] | None = None
        self.is_of_task: bool = any(job.in_task for job in suspendable.jobs)

    def waits_at(self, now: float) -> bool:
        """Whether its call is suspended at this time, until it is answered."""
        return self.answer is None and self.until > now and self.suspendable.runs

    def need_declared(self, job: Job) -> None:
        """Raises `RpcFault` when this request does not declare what the question needs."""
        missing = undeclared(self.request, job.declared)
        if missing is not None:
            needed: dict[str, Any] = {}
            for name in reversed(missing.split(".")):
                needed = {name: needed}
            text = f"Missing required client capability: {missing}"
            raise RpcFault(MISSING_CAPABILITY, text, {"requiredCapabilities": needed})

    def is_of(self, job: Job) -> bool:
        """Whether this request is the one that its call began with."""
        first = self.suspendable.first
        return (
            self.client is job.client
            and not self.is_of_task
            and first.method == job.method
            and _asks_the_same(first.params, job.params)
        )


def undeclared(request: object, capabilities: Mapping[str, Any]) -> str | None:
    """The capability that a client lacks, so that it cannot be sent this request; None: it can."""
    asked: Mapping[str, Any] = request if is_object(request) else {}
    params = asked.get("params")
    return lacking(capabilities, str(asked.get("method")), params if is_object(params) else {})


def _asks_the_same(one: Mapping[str, msgspec.Raw], other: Mapping[str, msgspec.Raw]) -> bool:
    names = one.keys() - _NOT_COMPARED
    return names == other.keys() - _NOT_COMPARED and all(_is_same(one[name], other[name]) for name in names)


def _is_same(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    """Whether these say the same, in whatever order and with whatever white space."""
    written, again = bytes(one), bytes(other)
    if written == again or max(len(written), len(again)) > _LOOKED_INTO:
        return written == again
    try:
        return _sorted(rpc.read_value(one)) == _sorted(rpc.read_value(other))
    except (RpcFault, *rpc.UNWRITABLE):
        return False


def _says_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    said = ({key: value for key, value in each.items() if key != "_meta"} for each in (one, other))
    first, second = said
    try:
        return _sorted(first) == _sorted(second)
    except rpc.UNWRITABLE:
        return first == second


_sorted: Final = msgspec.json.Encoder(order="deterministic").encode  # 1, 1.0 and true are three values here
