"""A client of the handshake era: one session over many HTTP requests.

It is the outlet of its conversation. Each line goes to one place:

- an answer goes to the POST that carried its request;
- progress goes to the POST whose request has its token;
- a question to the client goes to the event stream of a POST that waits for its answer, because it most likely
  belongs to that call; without one, to the stream that the client opened by GET;
- everything else goes to the stream of the GET. While the client has not opened it, messages wait there, and if a
  POST waits for its answer they go to that POST, so that a client without a GET hears them too.

A client that disconnects in the middle of a POST has not cancelled its request: the answer stays in the stream of
that POST, if it has begun, and a GET with `Last-Event-ID` fetches it.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import anyio

from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc import RpcFault
from ._caller import Caller
from ._refusals import JSON, REQUEST_CANCELLED, Refusal, too_many
from ._reply import Reply
from ._request import Request
from ._routing import MessageKind, Read, cancelled_key, kind_of, params_of, progress_token, same_token
from ._rules import Rules
from ._stream import Stream

if TYPE_CHECKING:
    from .._endpoint import ClientSession

_EVENT_ID: Final = re.compile(r"(\d{1,9})-(\d{1,9})")
_PRIMED_FROM: Final = rpc.HANDSHAKE_VERSIONS[-1]  # older clients cannot read an event without a message
_PROGRESS: Final = rpc.PROGRESS.encode()
_BYTES: Final = 24  # of randomness in a session's id


class HttpSession:
    """`caller` opened it, under the profile that `profile` names; nobody else may use it. `version` is the
    protocol version that the client has asked for last."""

    def __init__(
        self, caller: Caller, profile: str | None, rules: Rules, variables: Mapping[str, str]
    ) -> None:
        self.id = secrets.token_urlsafe(_BYTES)
        self.caller = caller
        self.profile = profile
        self.variables: Mapping[str, str] = variables
        self.version = ""
        self.over = anyio.Event()
        self.client: ClientSession  # set when its conversation is open
        self._rules = rules
        self._replies: dict[bytes, Reply] = {}
        self._streams: dict[int, Stream] = {}  # those that have begun; 0 is the one of the GET
        self._ended: deque[Stream] = deque()
        self._count = 0
        self._current: Reply | None = None  # its request is being read

    # ---- requests of the client ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return self.client.in_flight

    @property
    def is_listening(self) -> bool:
        """Its client has an event stream open."""
        return any(stream.has_reader for stream in self._streams.values())

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"mcp-session-id", self.id.encode()),)

    def take(self, message: Read) -> Reply | None:
        """Give a message to the conversation. Returns the reply to a request; None for any other message."""
        key = message.key
        if not message.is_request:
            message.give_to(self.client)
            if message.envelope.method == rpc.CANCELLED and not message.is_large:
                self._cancelled(cancelled_key(message.envelope))
            return None
        if key in self._replies:
            raise Refusal(400, "Invalid request: a request with this id is still in flight.", key=key)
        if len(self._replies) >= self._rules.open_requests:
            raise too_many("requests of this session")
        reply = Reply(key, self._open_stream, progress_token(message))
        self._replies[key] = reply
        self._current = reply
        try:
            message.give_to(self.client)
        finally:
            self._current = None
        return reply

    def _cancelled(self, key: bytes) -> None:
        """The client has cancelled this request. There will be no answer, but its POST has to end."""
        reply = self._replies.pop(key, None)
        if reply is not None:
            self._finish(reply, rpc.error_line(key, RpcFault(REQUEST_CANCELLED, "Request cancelled")))

    async def answer(self, reply: Reply, request: Request) -> None:
        """Answer a POST."""
        if request.has_task:
            await reply.decided(self._rules.commit_time)
        else:
            await reply
        if reply.answer is not None:
            await request.answer(200, reply.answer, (JSON, *self.headers()))
            return
        stream = reply.become_stream()
        if not stream.last and self.version >= _PRIMED_FROM:
            stream.prime()
        await request.begin_stream(self.headers())
        await stream.pump(request)
        await request.end_stream()

    async def listen(self, request: Request, last_event_id: str | None) -> None:
        """Answer a GET: with the messages that belong to no request, or with the rest of an earlier stream."""
        stream, after = self._standalone(), None
        if last_event_id is not None:
            found = _EVENT_ID.fullmatch(last_event_id)
            named = self._streams.get(int(found[1])) if found is not None else None
            if found is None or named is None:
                text = "Bad Request: nothing is left of the stream of this event. Open one without Last-Event-ID."
                raise Refusal(400, text)
            stream, after = named, int(found[2])
        await request.begin_stream(self.headers())
        if after is None:
            await request.write(b": \n\n")
        await stream.pump(request, after)
        await request.end_stream()

    def close(self) -> None:
        """End all streams. The conversation is over, or the client has ended it."""
        for reply in tuple(self._replies.values()):
            text = "The session has ended before the answer came."
            self._finish(reply, rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, text)))
        self._replies.clear()
        for stream in self._streams.values():
            stream.end()

    # ---- streams -------------------------------------------------------------------------------------------------

    def _standalone(self) -> Stream:
        stream = self._streams.get(0)
        if stream is None:
            stream = self._streams[0] = Stream(0, self._rules)
        return stream

    def _open_stream(self) -> Stream:
        self._count += 1
        stream = self._streams[self._count] = Stream(self._count, self._rules)
        return stream

    def _finish(self, reply: Reply, line: bytes) -> None:
        reply.finish(line)
        if reply.stream is not None:
            self._keep(reply.stream)

    def _keep(self, stream: Stream) -> None:
        """Keep an ended stream for a client that comes back, as long as there is room."""
        kept, rules = self._ended, self._rules
        kept.append(stream)
        while len(kept) > rules.ended_streams or (
            len(kept) > 1 and sum(s.size for s in kept) > rules.ended_bytes
        ):
            del self._streams[kept.popleft().name]

    # ---- Outlet --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return False  # each stream has a bound of its own

    def send(self, line: bytes) -> bool:
        kind, key, method = kind_of(line)
        if kind is MessageKind.ANSWER:
            return self._send_answer(key, line)
        if method == _PROGRESS:
            return self._send_progress(line)
        stream = self._streams.get(0)
        if kind is MessageKind.NOTIFICATION and (stream is not None and stream.has_reader):
            return self._notify(stream, line)
        reply = self._latest()
        if reply is None:
            self._standalone().put(line)
            return True
        if kind is MessageKind.NOTIFICATION:
            return self._notify(reply.become_stream(), line)
        reply.add(line)
        return True

    def _send_answer(self, key: bytes, line: bytes) -> bool:
        reply = self._replies.pop(key, None) or self._current
        if reply is not None:
            self._replies.pop(reply.key, None)
            self._finish(reply, line)
        return True

    def _send_progress(self, line: bytes) -> bool:
        token = params_of(line).get("progressToken")
        for reply in self._replies.values():
            if reply.token is not None and same_token(reply.token, token):
                return self._notify(reply.become_stream(), line)
        return False

    def _notify(self, stream: Stream, line: bytes) -> bool:
        if stream.unread > self._rules.busy_bytes:
            return False
        stream.put(line)
        return True

    def _latest(self) -> Reply | None:
        """The POST that waits for its answer, the latest of several."""
        return next(reversed(self._replies.values()), None)
