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

A name is valid once, and for no longer than a call may take in all. It stays valid when the server withdraws its
request or is lost: the client that comes back then gets the outcome of the call. Rejected: to refuse such a
client, because it would call a second time.
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
from ..protocol.jsonrpc.terms import RpcFault
from .requests import Job

_KEY: Final = "question"


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

    When the call ends, `conclude(job, call)` ends the job that waits for it.
    """

    def __init__(
        self, suspended: SuspendedCalls, job: Job, server: str | None, conclude: Callable[[Job, Any], None]
    ) -> None:
        self.job: Job | None = job
        self.server = server  # None: it uses several
        self._suspended = suspended
        self._conclude = conclude
        self._call: Any = None
        self._outcome: Any = None  # the call, if it ended while no job waited
        self._ended = False
        suspended.started(self)

    def follow(self, call: Any) -> None:
        """The call was accepted, so the job follows it. It may have ended already."""
        if not self._ended:
            self._call = call
            if self.job is not None:
                self.job.follow(call)

    def is_of(self, call: object) -> bool:
        return call is not None and self._call is call

    async def carried(self) -> bool:
        """Wait until the call's request is open again, so that it can carry another server request. Returns False for a
        call that carries one at a time."""
        return False

    def ended(self, call: Any) -> None:
        """The `on_end` of the call."""
        self.refused()
        if self.job is None:
            self._outcome = call
        else:
            self.job.concluded_by(self._conclude, self.job)(call)

    def refused(self) -> None:
        """The call was refused, or has ended."""
        self._ended, self._call = True, None
        self._suspended.ended(self)

    def progress(self, params: Mapping[str, Any]) -> None:
        if self.job is not None:
            self.job.progress(params)

    def carry(self, job: Job) -> None:
        """Let `job` wait for the call from now on."""
        self.job = job
        if self._outcome is not None:
            job.concluded_by(self._conclude, job)(self._outcome)
        elif self._call is not None:
            job.follow(self._call)

    def drop(self) -> None:
        """Cancel the call, because its client does not come back."""
        if self._call is not None:
            self._call.cancel()


class SuspendedCalls:
    """The running calls of newer clients, and which of them are suspended."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds a suspended call is held
        self._running: dict[SuspendableCall, None] = {}
        self._suspensions: dict[str, _Suspension] = {}

    def __len__(self) -> int:
        """The number of calls whose client may still come back with an answer."""
        return sum(suspension.until > anyio.current_time() for suspension in self._suspensions.values())

    def started(self, suspendable: SuspendableCall) -> None:
        self._running[suspendable] = None

    def ended(self, suspendable: SuspendableCall) -> None:
        self._running.pop(suspendable, None)

    async def ask(
        self, client: Any, server: str, request: Mapping[str, Any], call: object = None
    ) -> Mapping[str, Any]:
        """Send a newer client the `request` of an older server, and return its answer. `call`: the call that the
        request is about, if known; then only that call's request carries it. Raises `RpcRefusal` when the client cannot
        be asked or does not answer in time."""
        suspendable, job = await self._carrier(client, server, call)
        self._drop_overdue()
        suspension = _Suspension(suspendable, client, anyio.current_time() + self._patience)
        name = secrets.token_urlsafe(24)
        self._suspensions[name] = suspension
        job.let_go()
        suspendable.job = None
        job.answer({"resultType": "input_required", "inputRequests": {_KEY: request}, "requestState": name})
        try:
            with anyio.fail_after(self._patience):
                await suspension.answered.wait()
        except TimeoutError:
            if self._suspensions.pop(name, None) is not None:
                suspendable.drop()
                text = "The client did not come back with an answer."
                raise RpcRefusal(rpc.INTERNAL_ERROR, text) from None
        # Cancelled: the server has withdrawn its request, or is lost. The client may still come back for the outcome.
        return suspension.answer

    async def _carrier(self, client: Any, server: str, call: object) -> tuple[SuspendableCall, Job]:
        """The call whose request carries the server request, and that request. Raises `RpcRefusal`."""
        while True:
            asked = [each for each in self._running if call is None or each.is_of(call)]
            able = next((each for each in asked if _carries(each, client, server)), None)
            if able is not None and able.job is not None:
                return able, able.job
            if call is None or not asked or not await asked[0].carried():
                text = (
                    "The client cannot be asked: none of its calls is open to carry the request (2026-07-28)."
                )
                raise RpcRefusal(rpc.INTERNAL_ERROR, text)

    def resume(self, job: Job, name: str) -> SuspendableCall | None:
        """The client has sent its request again: let `job` wait for the suspended call of this name. None: there is no
        such name. Raises `RpcFault` when the request has no answer."""
        found = self._suspensions.get(name)
        if found is None:
            return None
        responses: Any = rpc.read_value(job.params.get("inputResponses"))
        answer: Any = cast("dict[str, Any]", responses).get(_KEY) if isinstance(responses, dict) else None
        if not isinstance(answer, dict):
            raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: inputResponses lacks an object {_KEY!r}.")
        del self._suspensions[name]
        found.answer = cast("Mapping[str, Any]", answer)
        found.answered.set()
        found.suspendable.carry(job)
        return found.suspendable

    def left(self, client: Any) -> None:
        """A client has disconnected: cancel its suspended calls."""
        self._drop_where(lambda suspension: suspension.client is client)

    def _drop_overdue(self) -> None:
        """Drop the calls whose server requests were withdrawn and whose clients did not come back in time."""
        now = anyio.current_time()
        self._drop_where(lambda suspension: suspension.until <= now)

    def _drop_where(self, is_over: Callable[[_Suspension], bool]) -> None:
        for name, suspension in tuple(self._suspensions.items()):
            if is_over(suspension):
                del self._suspensions[name]
                suspension.suspendable.drop()


class _Suspension:
    """A suspended call, its client, and until when the client may come back."""

    def __init__(self, suspendable: SuspendableCall, client: Any, until: float) -> None:
        self.suspendable = suspendable
        self.client = client
        self.until = until
        self.answered = anyio.Event()
        self.answer: Mapping[str, Any] = {}


def _carries(suspendable: SuspendableCall, client: Any, server: str) -> bool:
    job = suspendable.job
    return suspendable.server in (server, None) and job is not None and job.client is client
