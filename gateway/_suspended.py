"""Questions to a client of 2026-07-28: it gets no request, but an answer that input is needed, and asks again.

*State* that a newer server gives away passes through the client and comes back. It is signed for the server and the
thing it was given for, with a key of this process, so that no client can hand one server's state to another.

*A call of an older server* that asks its client something cannot be ended and asked again: it is suspended. The client
is told that input is needed, with a name for state; the call runs on, and when the client comes back with the name and
the answers, the server has its answer and the client's new request takes the call's place. A server's question does not
say which call it is for, so the longest running call of that client to that server carries it. Such a name is good
once, for as long as a call may take in all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio

from ..protocol import jsonrpc as rpc
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import RpcFault
from ._jobs import Job

_KEY: Final = "question"


class StateSigner:
    """Binds a server's state to what it was given for."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def sign(self, state: str, *what: str) -> str:
        return f"{self._digest(state, what)}.{state}"

    def verify(self, signed_state: str, *what: str) -> str:
        """Raises `RpcFault` when it was not signed here, for this."""
        digest, _, state = signed_state.partition(".")
        if not hmac.compare_digest(digest.encode(), self._digest(state, what).encode()):
            text = "Invalid params: this requestState was not given for this request. Ask again without it."
            raise RpcFault(rpc.INVALID_PARAMS, text)
        return state

    def _digest(self, state: str, what: tuple[str, ...]) -> str:
        text = "\0".join((*what, state)).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


class SuspendableCall:
    """A call for a newer client: its job may end, and another take its place, before the call does.

    `conclude(job, call)` ends the job that waits when the call ends.
    """

    def __init__(
        self, suspended: SuspendedCalls, job: Job, server: str, conclude: Callable[[Job, Any], None]
    ) -> None:
        self.job: Job | None = job
        self.server = server
        self._suspended = suspended
        self._conclude = conclude
        self._call: Any = None
        self._outcome: Any = None  # it ended while nobody waited
        self._ended = False
        suspended.started(self)

    def follow(self, call: Any) -> None:
        """Its call has been accepted; it may have ended already."""
        if not self._ended:
            self._call = call
            if self.job is not None:
                self.job.follow(call)

    def ended(self, call: Any) -> None:
        """Its call has ended: for its `on_end`."""
        self.refused()
        if self.job is None:
            self._outcome = call
        else:
            self.job.concluded_by(self._conclude, self.job)(call)

    def refused(self) -> None:
        """There is no call, or no call any more."""
        self._ended, self._call = True, None
        self._suspended.ended(self)

    def progress(self, params: Mapping[str, Any]) -> None:
        if self.job is not None:
            self.job.progress(params)

    def carry(self, job: Job) -> None:
        """This job waits for the call from here on."""
        self.job = job
        if self._outcome is not None:
            job.concluded_by(self._conclude, job)(self._outcome)
        elif self._call is not None:
            job.follow(self._call)

    def drop(self) -> None:
        """The client never came back."""
        if self._call is not None:
            self._call.cancel()


class SuspendedCalls:
    """The calls of newer clients that run, and those of them that are suspended."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds a suspended call is held
        self._running: dict[SuspendableCall, None] = {}
        self._suspensions: dict[str, tuple[SuspendableCall, _Suspension]] = {}

    def started(self, suspendable: SuspendableCall) -> None:
        self._running[suspendable] = None

    def ended(self, suspendable: SuspendableCall) -> None:
        self._running.pop(suspendable, None)

    async def ask(self, client: Any, server: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have `request` of an older server answered by a newer client. Raises `RpcRefusal`."""
        suspendable = next((each for each in self._running if _carries(each, client, server)), None)
        if suspendable is None or suspendable.job is None:
            text = "The client cannot be asked: none of its calls is open to carry the question (2026-07-28)."
            raise RpcRefusal(rpc.INTERNAL_ERROR, text)
        suspension, job = _Suspension(client), suspendable.job
        name = secrets.token_urlsafe(24)
        self._suspensions[name] = suspendable, suspension
        job.let_go()
        suspendable.job = None
        job.answer({"resultType": "input_required", "inputRequests": {_KEY: request}, "requestState": name})
        try:
            with anyio.fail_after(self._patience):
                await suspension.answered.wait()
        except TimeoutError:
            suspendable.drop()
            raise RpcRefusal(rpc.INTERNAL_ERROR, "The client did not come back with an answer.") from None
        finally:
            self._suspensions.pop(name, None)
        return suspension.answer

    def resume(self, job: Job, name: str) -> SuspendableCall | None:
        """The client comes back to a suspended call. None: the name is none of ours. Raises `RpcFault` without an
        answer."""
        found = self._suspensions.get(name)
        if found is None:
            return None
        responses: Any = rpc.read_value(job.params.get("inputResponses"))
        answer: Any = cast("dict[str, Any]", responses).get(_KEY) if isinstance(responses, dict) else None
        if not isinstance(answer, dict):
            raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: inputResponses lacks an object {_KEY!r}.")
        suspendable, suspension = found
        del self._suspensions[name]
        suspension.answer = cast("Mapping[str, Any]", answer)
        suspension.answered.set()
        suspendable.carry(job)
        return suspendable

    def left(self, client: Any) -> None:
        """A client is gone: what it left suspended goes too."""
        for suspendable, suspension in tuple(self._suspensions.values()):
            if suspension.client is client:
                suspendable.drop()


class _Suspension:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.answered = anyio.Event()
        self.answer: Mapping[str, Any] = {}


def _carries(suspendable: SuspendableCall, client: Any, server: str) -> bool:
    return suspendable.server == server and suspendable.job is not None and suspendable.job.client is client
