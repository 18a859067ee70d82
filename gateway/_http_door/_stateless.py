"""A client of 2026-07-28: there is no session on the wire, and every request says everything.

Still, what a client has in the room needs a place: children of its own, watched resources, a call that waits for
its answer to a question. Requests with the same token, profile, values and client info come from one `Visitor`, which
is one conversation; who gives no client info is known by its capabilities instead. A program may declare other
capabilities with each request: it finds the same children all the same, and is asked only what all of its open calls
have declared. Two programs of the same owner that look exactly alike share a conversation. So request ids and progress
tokens, which each program chooses by itself, are replaced by numbers of ours on the way in, and put back on the way
out.

A client that disconnects has cancelled its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc import RpcFault
from ._caller import Caller
from ._refusals import JSON, STATUS_OF_ERROR, too_many
from ._reply import Reply
from ._request import Request
from ._routing import (
    SUBSCRIPTION_KEY,
    MessageKind,
    Stateless,
    answer_under,
    error_code,
    kind_of,
    params_of,
    with_id,
)
from ._rules import Rules
from ._stream import Stream

if TYPE_CHECKING:
    from .._endpoint import ClientSession
    from .._jobs import Spawn


class Visitor:
    """`spawn` runs a coroutine function beside the request."""

    def __init__(
        self, caller: Caller, profile: str | None, rules: Rules, variables: Mapping[str, str], spawn: Spawn
    ) -> None:
        self.caller = caller
        self.profile = profile
        self.variables: Mapping[str, str] = variables
        self.over = anyio.Event()
        self.client: ClientSession  # set when its conversation is open
        self._rules = rules
        self._spawn = spawn
        self._replies: dict[int, Reply] = {}
        self._count = 0

    @property
    def in_flight(self) -> int:
        """Its requests, and its calls that wait while a person thinks about a question."""
        return self.client.in_flight

    @property
    def is_listening(self) -> bool:
        return bool(self._replies)  # each of its streams answers a request

    async def serve(self, message: Stateless, request: Request) -> None:
        """Carry out one request, and answer its POST."""
        if len(self._replies) >= self._rules.open_requests:
            raise too_many("requests of this client")
        self._count += 1
        number = self._count
        token = message.meta.get("progressToken")
        reply = Reply(message.key, self._open_stream, token)
        reply.wants_logs = rpc.LOG_LEVEL_KEY in message.meta
        self._replies[number] = reply
        with_id(message, number, token is not None).give_to(self.client)
        if number in self._replies:
            self._spawn(lambda: self._watch(number, request))
            await reply.decided(self._rules.keep_alive)
        if reply.answer is not None:
            status = STATUS_OF_ERROR.get(error_code(reply.answer) or 0, 200)
            await request.answer(status, reply.answer, (JSON,))
            return
        stream = reply.become_stream()
        await request.begin_stream()
        await stream.pump(request)
        await request.end_stream()

    async def _watch(self, number: int, request: Request) -> None:
        """Cancel the request when its client disconnects before it has its answer."""
        await request.disconnected()
        reply = self._replies.pop(number, None)
        if reply is not None:
            told = {"requestId": number, "reason": "the client has disconnected"}
            self.client.receive(rpc.encode_notification(rpc.CANCELLED, told, rpc.encode))
            reply.finish(rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, "Cancelled")))

    def close(self) -> None:
        """Its conversation is over."""
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.finish(rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, "The gateway has closed.")))

    def _open_stream(self) -> Stream:
        return Stream(1, self._rules)

    # ---- Outlet --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return False  # each stream has a bound of its own

    def send(self, line: bytes) -> bool:
        kind, key, method = kind_of(line)
        if kind is MessageKind.ANSWER:
            reply = self._replies.pop(int(key), None) if key.isdigit() else None
            if reply is not None:
                reply.finish(answer_under(reply.key, int(key), line))
            return True
        if kind is MessageKind.QUESTION:
            return False  # such a client is asked in another way
        return self._send_notification(method, line)

    def _send_notification(self, method: bytes, line: bytes) -> bool:
        params = params_of(line)
        if method == rpc.PROGRESS.encode():
            return self._tell(params.get("progressToken"), method, params)
        meta: Any = params.get("_meta")
        if isinstance(meta, dict) and SUBSCRIPTION_KEY in meta:
            return self._tell(meta[SUBSCRIPTION_KEY], method, params)
        for reply in self._replies.values():
            if reply.wants_logs:
                _add(reply, line, self._rules)
        return True

    def _tell(self, number: Any, method: bytes, params: dict[str, Any]) -> bool:
        """A notification for one request, under the id or token that its client gave."""
        reply = self._replies.get(number) if isinstance(number, int) else None
        if reply is None:
            return False
        if "progressToken" in params:
            params["progressToken"] = reply.token
        else:
            params["_meta"][SUBSCRIPTION_KEY] = _id(reply.key)
        _add(reply, rpc.encode_notification(method.decode(), params, rpc.encode), self._rules)
        return True


def _add(reply: Reply, line: bytes, rules: Rules) -> None:
    stream = reply.become_stream()
    if stream.unread <= rules.busy_bytes:
        stream.put(line)


def _id(key: bytes) -> Any:
    """The id as a value."""
    return rpc.read_value(msgspec.Raw(key))
