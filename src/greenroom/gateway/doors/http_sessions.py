"""A client of the handshake era: one session over many HTTP requests.

It is the outlet of its conversation. Each line goes to one place:

- an answer goes to the POST that carried its request;
- progress goes to the POST whose request has its token;
- a request to the client goes to the event stream of a POST that waits for its answer, because it most likely
  belongs to that call; without one, to the stream that the client opened by GET;
- everything else goes to the stream of the GET. While the client has not opened it, messages wait there, and if a
  POST waits for its answer they go to that POST, so that a client without a GET hears them too.

A client that disconnects in the middle of a POST has not cancelled its request: the answer stays in the stream of
that POST, if it has begun, and a GET with `Last-Event-ID` fetches it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.abc
import msgspec

from ...actors.timers import caught_up
from ...actors.workers import aside
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LARGE_MESSAGE
from ...protocol.errors import UNKNOWN_PROFILE, UsageError
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.status import about
from ...protocol.tasks import RELATED
from ..jobs import SUBSCRIPTION_KEY
from ..state_handles import StateHandleExposure
from .caller_shares import Shares
from .http_messages import (
    MessageKind,
    PostedMessage,
    StatelessRequest,
    answer_under,
    cancelled_key,
    error_code,
    kind_of,
    params_of,
    same_token,
)
from .http_request import (
    JSON,
    REQUEST_CANCELLED,
    STATUS_OF_ERROR,
    Caller,
    DoorRequest,
    Headers,
    HttpRefusal,
    Rules,
    no_session,
    no_such_path,
    too_many,
)
from .http_streams import PostReply, SseStream, reply_time

if TYPE_CHECKING:
    from ...supervisor.port import RoomPort
    from ..conversations import Conversations
    from ..endpoint import ClientSession
    from ..exposures.exposure import Exposure
    from ..jobs import Spawn
    from .http_auth import Access


_EVENT_ID: Final = re.compile(r"(\d{1,9})-(\d{1,9})")
_PRIMED_FROM: Final = rpc.HANDSHAKE_VERSIONS[-1]  # older clients cannot read an event without a message
_PROGRESS: Final = rpc.PROGRESS.encode()
_OF_TASK: Final = RELATED.encode()  # its request has been answered, and it is still for somebody
_BYTES: Final = 24  # of randomness in a session's id


class HttpSession:
    """A session of the HTTP door. Only `caller`, who opened it, may use it, and only under this `profile`. `version` is
    the protocol version of the client's last `initialize`."""

    def __init__(
        self, caller: Caller, profile: str | None, rules: Rules, variables: Mapping[str, str]
    ) -> None:
        self.id: str = secrets.token_urlsafe(_BYTES)
        self.headers: Headers = ((b"mcp-session-id", self.id.encode()),)  # of each answer
        self.caller = caller
        self.profile = profile
        self.variables: Mapping[str, str] = variables
        self.version = ""
        self.shown: bytes = b""  # the token that its caller has shown last, if the room is told of it
        self.over: anyio.Event = anyio.Event()
        self.client: ClientSession  # set when its conversation is open
        self._rules = rules
        self._replies: dict[bytes, PostReply] = {}
        self._streams: dict[int, SseStream] = {}  # those that have begun; 0 is the one of the GET
        self._ended: deque[SseStream] = deque()
        self._count = 0
        self._current: PostReply | None = None  # its request is being read
        self._time = reply_time(rules.commit_time)

    # ---- requests of the client ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return self.client.in_flight

    @property
    def is_listening(self) -> bool:
        """Whether its client has an event stream open."""
        return any(stream.has_reader for stream in self._streams.values())

    def take(self, message: PostedMessage) -> PostReply | None:
        """Give a message to the conversation. Returns the reply to a request; None for any other message."""
        key = message.key
        if not message.is_request:
            message.give_to(self.client)
            if message.envelope.method == rpc.CANCELLED and not message.is_large:
                self._cancelled(cancelled_key(message.envelope))
            return None
        if key in self._replies:
            raise HttpRefusal(400, "Invalid request: a request with this id is still in flight.", key=key)
        if len(self._replies) >= self._rules.open_requests:
            raise too_many("requests of this session")
        reply = PostReply(key, self._open_stream, message.progress_token)
        self._replies[key] = reply
        self._current = reply
        try:
            message.give_to(self.client)
        finally:
            self._current = None
        return reply

    def _cancelled(self, key: bytes) -> None:
        """The client has cancelled this request: end its POST, which gets no answer."""
        reply = self._replies.pop(key, None)
        if reply is not None:
            self._finish(reply, rpc.error_line(key, RpcFault(REQUEST_CANCELLED, "Request cancelled")))

    def answer(self, reply: PostReply, request: DoorRequest) -> None:
        """Answer a POST, as soon as it is known how."""
        reply.when_decided(partial(self._answer, reply, request), self._time)

    def _answer(self, reply: PostReply, request: DoorRequest) -> None:
        if reply.answer is not None:
            request.answer(200, reply.answer, (JSON, *self.headers))
        else:
            request.later(self._stream(reply.become_stream(), request))

    async def _stream(self, stream: SseStream, request: DoorRequest) -> None:
        if not stream.last and self.version >= _PRIMED_FROM:
            stream.prime()
        request.begin_stream(self.headers)
        await stream.pump(request)
        request.end_stream()

    async def listen(self, request: DoorRequest, last_event_id: str | None) -> None:
        """Answer a GET with the messages that belong to no request, or with the rest of an earlier stream."""
        stream, after = self._standalone(), None
        if last_event_id is not None:
            found = _EVENT_ID.fullmatch(last_event_id)
            named = self._streams.get(int(found[1])) if found is not None else None
            if found is None or named is None:
                text = "Bad Request: nothing is left of the stream of this event. Open one without Last-Event-ID."
                raise HttpRefusal(400, text)
            stream, after = named, int(found[2])
        request.begin_stream(self.headers)
        if after is None:
            await request.write(b": \n\n")
        await stream.pump(request, after)
        request.end_stream()

    def close(self) -> None:
        """The conversation is over, or the client has ended the session: end all streams."""
        for reply in tuple(self._replies.values()):
            text = "The session has ended before the answer came."
            self._finish(reply, rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, text)))
        self._replies.clear()
        for stream in self._streams.values():
            stream.end()

    # ---- streams -------------------------------------------------------------------------------------------------

    def _standalone(self) -> SseStream:
        stream = self._streams.get(0)
        if stream is None:
            stream = self._streams[0] = SseStream(0, self._rules)
        return stream

    def _open_stream(self) -> SseStream:
        self._count += 1
        stream = self._streams[self._count] = SseStream(self._count, self._rules)
        return stream

    def _finish(self, reply: PostReply, line: bytes) -> None:
        reply.finish(line)
        if reply.stream is not None:
            self._keep(reply.stream)

    def _keep(self, stream: SseStream) -> None:
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
        if method == _PROGRESS and self._send_progress(line):
            return True
        if method == _PROGRESS and _OF_TASK not in line:
            return False
        stream = self._streams.get(0)
        if kind is MessageKind.NOTIFICATION and (stream is not None and stream.has_reader):
            return self._notify(stream, line)
        reply = self._latest()
        if reply is None:
            self._standalone().put(line)
            return True
        if kind is MessageKind.NOTIFICATION:
            return self._notify(reply.become_stream(), line)
        reply.become_stream().put(line)
        return True

    def _send_answer(self, key: bytes, line: bytes) -> bool:
        reply = self._replies.pop(key, None)
        if reply is None and self._current is not None:
            reply = self._replies.pop(self._current.key, self._current)
        if reply is not None:
            self._finish(reply, line)
        return True

    def _send_progress(self, line: bytes) -> bool:
        token = rpc.read_value(params_of(line).get("progressToken"))
        for reply in self._replies.values():
            if reply.token is not None and same_token(reply.token, token):
                return self._notify(reply.become_stream(), line)
        return False

    def _notify(self, stream: SseStream, line: bytes) -> bool:
        if stream.unread > self._rules.busy_bytes:
            return False
        stream.put(line)
        return True

    def _latest(self) -> PostReply | None:
        """The POST that waits for its answer; of several the latest."""
        return next(reversed(self._replies.values()), None)


# ---- A client of 2026-07-28: there is no session on the wire, and every request says everything ---------------------
#
# Still, what a client has in the room needs a place: children of its own, watched resources, a call that waits for its
# answer to a server request. Requests with the same token, profile, values and client info come from one
# `StatelessClient`, which is one conversation; who gives no client info is known by its capabilities instead. A program
# may declare other capabilities with each request: it finds the same children all the same, and is asked only what all
# of its open calls have declared. Two programs of the same owner that look exactly alike share a conversation. So
# request ids and progress tokens, which each program chooses by itself, are replaced by numbers of ours on the way in,
# and put back on the way out.
#
# A client that disconnects has cancelled its request.


class StatelessClient:
    """A client of 2026-07-28. `spawn` runs a coroutine function beside the request. `handle`: by which it is known;
    None: by what its requests say."""

    def __init__(
        self,
        caller: Caller,
        profile: str | None,
        rules: Rules,
        variables: Mapping[str, str],
        spawn: Spawn,
        handle: str | None = None,
    ) -> None:
        self.caller = caller
        self.profile = profile
        self.variables: Mapping[str, str] = variables
        self.handle = handle
        self.shown: bytes = b""  # the token that its caller has shown last, if the room is told of it
        self.over: anyio.Event = anyio.Event()
        self.client: ClientSession  # set when its conversation is open
        self._rules = rules
        self._spawn = spawn
        self._time = reply_time(rules.keep_alive)
        self._replies: dict[int, PostReply] = {}
        self._count = 0

    @property
    def in_flight(self) -> int:
        """The number of its open requests, and of its calls that wait for a person's answer to a server request."""
        return self.client.in_flight

    @property
    def is_listening(self) -> bool:
        return bool(self._replies)  # each of its streams answers a request

    def serve(self, message: StatelessRequest, request: DoorRequest) -> None:
        """Carry out one request, and answer its POST. Raises `HttpRefusal`."""
        if len(self._replies) >= self._rules.open_requests:
            raise too_many("requests of this client")
        self._count += 1
        number = self._count
        token = message.meta.get("progressToken")
        reply = PostReply(message.key, self._open_stream, token)
        reply.wants_logs = rpc.LOG_LEVEL_KEY in message.meta
        self._replies[number] = reply
        message.with_id(number, token is not None).give_to(self.client)
        if number in self._replies:
            request.when_over(partial(self._cancel, number))
        reply.when_decided(partial(self._answer, reply, request), self._time)

    def _answer(self, reply: PostReply, request: DoorRequest) -> None:
        if reply.answer is not None:
            status = STATUS_OF_ERROR.get(error_code(reply.answer) or 0, 200)
            request.answer(status, reply.answer)
        else:
            request.later(self._stream(reply.become_stream(), request))

    async def _stream(self, stream: SseStream, request: DoorRequest) -> None:
        request.begin_stream()
        await stream.pump(request)
        request.end_stream()

    def _cancel(self, number: int) -> None:
        """The POST of a request is over. If that has no answer yet, its client has disconnected: it is cancelled."""
        reply = self._replies.pop(number, None)
        if reply is not None:
            told = {"requestId": number, "reason": "the client has disconnected"}
            self.client.receive(rpc.encode_notification(rpc.CANCELLED, told, rpc.encode))
            reply.finish(rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, "Cancelled")))

    def close(self) -> None:
        """The conversation is over: end all replies."""
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.finish(rpc.error_line(reply.key, RpcFault(rpc.SERVER_ERROR, "The gateway has closed.")))

    def _open_stream(self) -> SseStream:
        return SseStream(1, self._rules)

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
        if kind is MessageKind.SERVER_REQUEST:
            return False  # such a client is asked in another way
        return self._send_notification(method, line)

    def _send_notification(self, method: bytes, line: bytes) -> bool:
        if len(line) > LARGE_MESSAGE:
            self._spawn(partial(self._send_long, method, line))
            return True
        params = params_of(line)
        addressed = self._addressed(method, params)
        if addressed is None:
            for reply in self._replies.values():
                if reply.wants_logs:
                    _add(reply, line, self._rules)
            return True
        reply, more = addressed
        if reply is None:
            return False
        _add(reply, _renamed(method, params, more), self._rules)
        return True

    async def _send_long(self, method: bytes, line: bytes) -> None:
        """Send a notification of megabytes, which holds the result of a task."""
        params = await aside(partial(params_of, line))
        reply, more = self._addressed(method, params) or (None, _NOTHING)
        if reply is not None:
            line = await aside(partial(_renamed, method, params, more))
            _add(reply, line, self._rules)

    def _addressed(
        self, method: bytes, params: Mapping[str, msgspec.Raw]
    ) -> tuple[PostReply | None, Mapping[str, Any]] | None:
        """The request for which a notification is, if that is open, and what the notification says instead: the id or
        token that the client gave. None: it is for no request."""
        if method == _PROGRESS:
            reply = self._reply_to(rpc.read_value(params.get("progressToken")))
            return reply, {} if reply is None else {"progressToken": reply.token}
        meta: Any = rpc.read_value(params.get("_meta"))
        if isinstance(meta, dict) and SUBSCRIPTION_KEY in meta:
            said = cast("dict[str, Any]", meta)
            reply = self._reply_to(said[SUBSCRIPTION_KEY])
            return reply, {} if reply is None else {"_meta": {**said, SUBSCRIPTION_KEY: _id(reply.key)}}
        return None

    def _reply_to(self, number: Any) -> PostReply | None:
        return self._replies.get(number) if isinstance(number, int) else None


def _renamed(method: bytes, params: Mapping[str, msgspec.Raw], more: Mapping[str, Any]) -> bytes:
    return rpc.encode_notification(method.decode(), {**params, **more}, rpc.encode)


def _add(reply: PostReply, line: bytes, rules: Rules) -> None:
    stream = reply.become_stream()
    if stream.unread <= rules.busy_bytes:
        stream.put(line)


def _id(key: bytes) -> Any:
    """The id as a value."""
    return rpc.read_value(msgspec.Raw(key))


# ---- All clients of the door: their sessions, how many there may be, and when they end ------------------------------
#
# Each has a task that holds its conversation open until it is over. A session ends when its client ends it, when no
# message has come for a while and no request of it is open, or when it is too old. Nothing wakes up in between: one
# task sleeps until the first of them is due.
#
# A client of 2026-07-28 may also be known by a handle (`state_handles`), whatever its requests say otherwise.
#
# A session belongs to the caller that opened it. For anybody else it does not exist. Where a server is called as its
# caller, that is so for another token of his with other scopes, too. Its name in the room is a number, not its id,
# because names are shown and an id is a secret.

_NOTHING: Final[Mapping[str, str]] = {}
_LOOK_AGAIN: Final = 10.0  # seconds
Member = HttpSession | StatelessClient


def untold(_text: str) -> None:
    pass


class HttpSessions:
    """All clients of the door. `group` is a task group that outlives all conversations. `shares`: the
    places, and who shares them. `on_end` is told of each session that has ended, and why."""

    def __init__(
        self,
        conversations: Conversations,
        group: anyio.abc.TaskGroup,
        rules: Rules,
        *,
        shares: Shares,
        on_end: Callable[[str], None] = untold,
    ) -> None:
        self._on_end = on_end
        self._conversations = conversations
        self._group = group
        self._rules = rules
        self._shares = shares
        self._sessions: dict[str, HttpSession] = {}
        self._stateless_clients: dict[bytes, StatelessClient] = {}
        self._states: dict[str, StatelessClient] = {}  # by their handles
        self._opening: dict[bytes, anyio.Event] = {}
        self._used: dict[Member, float] = {}  # when the last message came; the latest is the last
        self._born: dict[Member, float] = {}
        self._names: dict[Member, str] = {}  # in the room, of those that are open
        self._numbers = itertools.count(1)
        self._first_came = anyio.Event()
        self._now = asyncio.get_running_loop().time  # as anyio's, which costs each message more than this

    def __len__(self) -> int:
        return len(self._born)

    async def open_session(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str]
    ) -> HttpSession:
        """Open a session. Raises `HttpRefusal` when there are too many sessions, or no such profile."""
        session = HttpSession(caller, profile, self._rules, variables)
        await self._open(session)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, caller: Caller, profile: str | None) -> HttpSession:
        """The session of this id. Raises `HttpRefusal` when this caller has none under this profile."""
        session = self._sessions.get(session_id)
        if session is None or session.over.is_set() or session.profile != profile:
            raise no_session()
        if session.caller is not caller and not self._is_of(session, caller):
            raise no_session()
        return session

    def _is_of(self, member: Member, caller: Caller) -> bool:
        return member.caller == caller and self._rights(member.caller) == self._rights(caller)

    def _rights(self, caller: Caller) -> frozenset[str]:
        """What a token may do, where a server is called as the caller: what was got by one that may do more must not
        serve one that may do less."""
        return caller.scopes if self._conversations.wants_callers else frozenset()

    def _key_of(self, caller: Caller, profile: str | None, variables: Mapping[str, str], who: bytes) -> bytes:
        rights = sorted(self._rights(caller))
        said = repr((caller.name, caller.client, rights, profile, sorted(variables.items()))).encode()
        return hashlib.sha256(said + b"\0" + who).digest()

    def known_client(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str], who: bytes
    ) -> StatelessClient | None:
        """The client of 2026-07-28 that is known by `who`, if it has come before."""
        stateless = self._stateless_clients.get(self._key_of(caller, profile, variables, who))
        return None if stateless is None or stateless.over.is_set() else stateless

    async def stateless_client(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str], who: bytes
    ) -> StatelessClient:
        """The client of 2026-07-28 that is known by `who`; it is made if it has not come before. Raises `HttpRefusal`
        as `open_session` does."""
        key = self._key_of(caller, profile, variables, who)
        while (opening := self._opening.get(key)) is not None:
            await opening.wait()
        stateless = self._stateless_clients.get(key)
        if stateless is None or stateless.over.is_set():
            stateless = StatelessClient(caller, profile, self._rules, variables, self._group.start_soon)
            self._opening[key] = anyio.Event()
            try:
                await self._open(stateless)
                self._stateless_clients[key] = stateless
            finally:
                self._opening.pop(key).set()
        return stateless

    async def new_state(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str]
    ) -> StatelessClient:
        """A client of 2026-07-28 that is known by a new handle. Raises `HttpRefusal` as `open_session` does."""
        handle, spawn = secrets.token_urlsafe(24), self._group.start_soon
        stateless = StatelessClient(caller, profile, self._rules, variables, spawn, handle)
        await self._open(stateless)
        self._states[handle] = stateless
        return stateless

    def with_state(self, handle: object, caller: Caller, profile: str | None) -> StatelessClient | None:
        """The client of this handle; None when this caller has none under this profile."""
        stateless = self._states.get(handle) if isinstance(handle, str) else None
        if stateless is None or stateless.over.is_set():
            return None
        return stateless if self._is_of(stateless, caller) and stateless.profile == profile else None

    def touch(self, member: Member) -> None:
        """A message of this client has come."""
        if self._used.pop(member, None) is not None:
            self._used[member] = self._now()

    def end(self, member: Member, why: str = "") -> None:
        """End it now, and tell `why`, if that is worth a line of the log. Its children end in the background."""
        if not member.over.is_set():
            member.over.set()
            self._used.pop(member, None)
            if (name := self._names.pop(member, None)) is not None and why:
                self._on_end(f"{name}: the client's session has ended: {why}")
            if self._born.pop(member, None) is not None:
                self._shares.give_back(member.caller)
            if isinstance(member, HttpSession):
                self._sessions.pop(member.id, None)
            elif member.handle is not None:
                self._states.pop(member.handle, None)
            else:
                self._stateless_clients = {
                    key: each for key, each in self._stateless_clients.items() if each is not member
                }
            member.close()

    def view(self) -> list[dict[str, Any]]:
        """Each open session: the seconds since its last message, what is open of it, and when it ends without another
        message. The longest silent first."""
        now = anyio.current_time()
        return [
            {
                "session": self._names[member],
                "name": member.client.client_name,
                "silentSeconds": round(now - used, 1),
                "inFlight": member.in_flight,
                "listening": member.is_listening,
                "endsInSeconds": None
                if member.in_flight
                else round(max(0.0, used + self._rules.session_idle - now), 1),
            }
            for member, used in self._used.items()
            if member in self._names
        ]

    def admit(self, access: Access, old: Access) -> None:
        """Go by `access` from now on, and end the sessions that `old` let in and it does not let stay."""
        self._shares.divide(access.callers, has_owners=access.has_owners)
        for member in tuple(self._born):
            if not access.lets_stay(member.caller, old):
                self.end(member, "its token is not accepted any more")

    def end_all(self) -> None:
        for member in tuple(self._born):
            self.end(member)

    async def expire(self) -> None:
        """End the sessions whose time is over. Runs until cancelled."""
        while True:
            if not self._born:
                self._first_came = anyio.Event()
                await self._first_came.wait()
            now, limit = anyio.current_time(), self._rules.session_idle
            # One that is only kept by an open request is looked at again and again, so that it ends soon after that.
            held = now + min(_LOOK_AGAIN, limit)
            idle = min(
                max(used + limit, held if used + limit <= now else 0.0) for used in self._used.values()
            )
            age = next(iter(self._born.values())) + self._rules.session_life
            due = min(idle, age)
            await anyio.sleep_until(due)
            await caught_up(due, anyio.current_time())
            self._end_due(anyio.current_time())

    def _end_due(self, now: float) -> None:
        for member, used in tuple(self._used.items()):
            if used + self._rules.session_idle > now:
                break
            if not member.in_flight:
                self.end(member, f"no message came for {about(now - used)} (http.sessionIdle)")
        for member, born in tuple(self._born.items()):
            if born + self._rules.session_life > now:
                break
            self.end(member, f"it is {about(now - born)} old, and none may be older (http.sessionLife)")

    async def _open(self, member: Member) -> None:
        if not self._shares.take(member.caller):
            raise too_many("sessions")
        self._born[member] = self._used[member] = anyio.current_time()
        self._first_came.set()
        try:
            await self._group.start(partial(self._hold, member))
        except BaseException as error:
            self.end(member)
            if isinstance(error, UsageError) and error.code == UNKNOWN_PROFILE:
                raise no_such_path() from None
            raise
        if member.over.is_set():  # while it was opened
            raise no_session()

    async def _hold(
        self, member: Member, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        name = f"http-{next(self._numbers)}"
        async with self._conversations.open(
            member,
            self._group.start_soon,
            name=name,
            variables=member.variables,
            profile=member.profile,
            door="http",
            subject=member.caller.name,
            around=partial(self._around, member),
        ) as client:
            client.may_be_several = isinstance(member, StatelessClient)
            member.client = client
            member.variables = _NOTHING
            if not member.over.is_set():
                self._names[member] = name
            task_status.started()
            await member.over.wait()

    def _around(self, member: Member, exposure: Exposure, room: RoomPort) -> Exposure:
        """What the client is shown."""
        if not self._rules.state_handles or isinstance(member, HttpSession):
            return exposure
        return StateHandleExposure(exposure, room, member.handle, self._rules.session_idle)
