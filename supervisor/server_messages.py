"""To whom belongs what a server says: the one rule for its requests, its logs and its other notifications.

A child of a session (or of a session's call) belongs to that session. A shared server serves many, so it depends on the
calls that it is working on:

* A request goes to the session whose call is in flight. With calls of several sessions nobody can know which of them
  it is about, unless the protocol says so (`ServerRequest.call`). Then it is refused, and sent to nobody. The same
  holds without any call, when more than one could answer.
* A log message goes to those who asked for logs (who set a level), and to those with a call in flight; each gets it at
  its own level and above. Any other notification goes to those with a call in flight.
* A session that is the only one gets what belongs to no call.

Changes of lists and updates of resources go to all sessions: their hosts know what each of them subscribed to. The
room's own host hears everything, because the program that opened the room owns all of it.

A session without a host of its own is answered for by the room's host.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ..actors.call import Call
from ..actors.host import ASKED_FOR, Declaration, ServerRequest, joined, lacking, not_found
from ..actors.server_reports import UPDATED
from ..config.argument_checks import function, json_object, list_or_function
from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc.terms import INTERNAL_ERROR, METHOD_NOT_FOUND, MODERN_VERSIONS
from ..safety.server_questions import shown_request
from .sessions import Sessions

Answer = Callable[[ServerRequest], Awaitable[Mapping[str, Any]]]
Root = str | os.PathLike[str] | Mapping[str, Any]
Roots = Sequence[Root] | Callable[[ServerRequest], Awaitable[Sequence[Root]]]
OnLog = Callable[[Address, Mapping[str, Any]], object]
OnNotification = Callable[[Address, str, Mapping[str, Any] | None], object]
LOG: Final = "notifications/message"


def _nothing() -> Mapping[str, Any]:
    return {}


class Callbacks(msgspec.Struct, frozen=True, eq=False):
    """What a room (or a session) can answer. `capabilities` adds to what is declared: `{"sampling": {"tools":
    {}}}`."""

    on_sampling: Answer | None = None
    on_elicitation: Answer | None = None
    roots: Roots | None = None
    on_log: OnLog | None = None
    on_notification: OnNotification | None = None
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=_nothing)

    def __post_init__(self) -> None:
        for name in ("on_sampling", "on_elicitation", "on_log", "on_notification"):
            function(getattr(self, name), name)
        list_or_function(self.roots, "roots", "paths, URIs or root objects")
        json_object(self.capabilities, "capabilities")

    def declaration(self, address: Address) -> Declaration:
        """What a server is told of these callbacks. If there are any, servers may send requests or notifications at any
        moment, which needs a handshake."""
        declared = self.declared()
        waits = bool(declared) or self.on_log is not None or self.on_notification is not None
        return Declaration(declared, by_handshake=waits)

    def declared(self) -> dict[str, Any]:
        """The client capabilities that these callbacks provide."""
        found: dict[str, Any] = {}
        if self.on_sampling is not None:
            found["sampling"] = {}
        if self.on_elicitation is not None:
            found["elicitation"] = {"form": {}, "url": {}}
        if self.roots is not None:
            found["roots"] = {"listChanged": True}
        return {**found, **self.capabilities}

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        """Answer a server request with the callback for it. Raises `RpcRefusal`, and whatever the callback raises."""
        if request.method == "sampling/createMessage" and self.on_sampling is not None:
            return await self.on_sampling(request)
        if request.method == "elicitation/create" and self.on_elicitation is not None:
            return await self.on_elicitation(request)
        if request.method == "roots/list" and self.roots is not None:
            roots = await self.roots(request) if callable(self.roots) else self.roots
            return {"roots": [as_root(root) for root in roots]}
        raise not_found(request.method)

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method == LOG and self.on_log is not None:
            self.on_log(address, params or {})
        if self.on_notification is not None:
            self.on_notification(address, method, params)


def as_root(root: Root) -> Mapping[str, Any]:
    """A root as the protocol writes it. A path becomes a `file://` URI, and an object stays as it is."""
    if isinstance(root, Mapping):
        return root
    text = os.fspath(root)
    return {"uri": text if "://" in text else Path(text).absolute().as_uri()}


# ---- The room's `Host` -----------------------------------------------------------------------------------------------
#
# It passes what servers ask and say to the hosts of the sessions, or to the room's own.
#
# To whom something belongs is decided by `Routing`, for the sessions of an embedder and for the clients of every door
# alike. Updates of resources go to their subscribers, too. Every notification of a server passes here once.
#
# A server is told once, by `initialize`, what its client can answer. A session's child is told what that session can
# answer. A shared server is told what anybody can who is there. Where clients come and go (`Sessions.for_many`) that
# would depend on which client came first, and nothing may be lost to tell it of one that comes later. So there it is
# told from the start that everything can be asked, and for a client that cannot answer the room does: it declines, and
# has no roots. From 2026-07-28 on none of this matters, because each request says what its own client can answer.
#
# A request is never passed on to a client that cannot answer it.

Subscriber = Callable[[Mapping[str, Any]], None]
_EVERYTHING: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "sampling": {"tools": {}},
}
_REJECTED: Final = -1  # the specification's example of a sampling request that a user has rejected


def _declined(request: ServerRequest, who: str) -> Mapping[str, Any]:
    """The answer in place of a client that cannot answer. Raises `RpcRefusal` where the protocol has no other way to
    decline."""
    match request.method:
        case "elicitation/create":
            return {"action": "decline"}
        case "roots/list":
            return {"roots": []}
        case _:
            raise RpcRefusal(_REJECTED, f"{request.method} was declined: {who} cannot answer it.")


class _ResourceListener(msgspec.Struct, frozen=True, eq=False):
    subscriber: Subscriber
    over: Callable[[], None] | None


class RoomHost:
    def __init__(
        self, sessions: Sessions, routing: Routing, on_bug: Callable[[Address, Exception], None]
    ) -> None:
        self.routing = routing
        self._sessions = sessions
        self._on_bug = on_bug
        self._subscribers: dict[Address, list[_ResourceListener]] = {}

    def subscribe(
        self, address: Address, subscriber: Subscriber, over: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Call `subscriber(params)` for each resource update of this address, and `over()` when the room has
        ended. Returns a function that ends the subscription."""
        subscription = _ResourceListener(subscriber, over)
        self._subscribers.setdefault(address, []).append(subscription)

        def unsubscribe() -> None:
            subscribers = self._subscribers.get(address, [])
            if subscription in subscribers:
                subscribers.remove(subscription)
            if not subscribers:
                self._subscribers.pop(address, None)

        return unsubscribe

    def close(self) -> None:
        """The room has ended: no server says anything any more."""
        for subscriptions in tuple(self._subscribers.values()):
            for subscription in tuple(subscriptions):
                if subscription.over is not None:
                    subscription.over()

    # ---- Host -------------------------------------------------------------------------------------------------------

    def declaration(self, address: Address) -> Declaration:
        if address.session is not None:
            return self._sessions.declaration(address.session, address)
        everybody = (None, *self._sessions.who_see(address.server))
        declarations = [self._sessions.host(who).declaration(address) for who in everybody]
        if not self._sessions.for_many:
            return joined(declarations)
        if (
            not address.is_common
        ):  # it only shows what it has; what it has for a client, that one's child says
            return declarations[0]
        told = joined([*declarations, Declaration(_EVERYTHING)])
        apart = address.is_for_handshakes or self.routing.may_be_apart(address.server)
        by_handshake = address.is_for_handshakes if apart else told.by_handshake
        return msgspec.structs.replace(told, by_handshake=by_handshake, for_many=True)

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        request = self.routing.with_its_call(request)
        is_declined = self._may_be_declined(request)
        if is_declined and not self.routing.able(request.address, request.method):
            return _declined(request, "no client that is here")
        host = self._sessions.host(self.routing.asked(request))
        missing = lacking(host.declaration(request.address).capabilities, request.method, request.params)
        if missing is None:
            return await host.answer(replace(request, params=shown_request(request.method, request.params)))
        if is_declined:
            return _declined(request, "the client that it is for")
        text = f"Method not found: {request.method} (the client that it is for did not declare {missing})"
        raise RpcRefusal(METHOD_NOT_FOUND, text)

    def _may_be_declined(self, request: ServerRequest) -> bool:
        """Whether the server was told that it may send such requests, because some clients can answer them."""
        is_told_each_time = request.call is not None and request.call.protocol_version in MODERN_VERSIONS
        is_told = self._sessions.for_many and request.address.session is None and not is_told_each_time
        return is_told and not request.is_ours and request.method in ASKED_FOR

    def heard(self, address: Address, method: str, params: Mapping[str, Any] | None) -> None:
        if method == UPDATED:
            for subscription in tuple(self._subscribers.get(address, ())):
                self._tell(address, subscription.subscriber, params or {})
        for who in self.routing.hearers(address, method, params or {}):
            self._tell(address, self._sessions.host(who).heard, address, method, params)

    def _tell(self, address: Address, hear: Callable[..., object], *said: Any) -> None:
        """Let one of them hear it. If that raises, the others hear it all the same."""
        try:
            hear(*said)
        except Exception as error:
            self._on_bug(address, error)


_ANSWERED_ELSEWHERE: Final = "notifications/elicitation/complete"
_LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)
_UNASKED: Final = "info"  # for a session that set no level, once another has set one
_REMEMBERED: Final = 1_000  # requests that are answered elsewhere, such as in a browser
SessionOrRoom = str | None  # a session with a host, or the room


class Routing:
    """`open_calls` gives the calls in flight at an address; `may_be_apart` says of a server whether clients of the
    handshake era may have a connection of their own to it."""

    def __init__(
        self,
        sessions: Sessions,
        levels: LogLevels,
        open_calls: Callable[[Address], Sequence[Call]],
        may_be_apart: Callable[[str], bool],
    ) -> None:
        self.may_be_apart = may_be_apart
        self._sessions = sessions
        self._levels = levels
        self._open_calls = open_calls
        self._elsewhere: OrderedDict[tuple[Address, str], SessionOrRoom] = OrderedDict()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def with_its_call(self, request: ServerRequest) -> ServerRequest:
        """The request with the call that it is about. If the request names none, it can only be about the call that the
        server is working on, provided there is exactly one."""
        calls = self._open_calls(request.address)
        if request.call is not None or len(calls) != 1:
            return request
        return replace(request, call=calls[0])

    def asked(self, request: ServerRequest) -> SessionOrRoom:
        """The session that the request goes to. Raises `RpcRefusal` when that cannot be known, or nobody can answer."""
        who = self._asked(request)
        elicitation = request.params.get("elicitationId")
        if isinstance(elicitation, str):
            self._elsewhere[request.address, elicitation] = who
            if len(self._elsewhere) > _REMEMBERED:
                self._elsewhere.popitem(last=False)
        return who

    def forget(self, session: str) -> None:
        """The session is over. Another session of its name must not be sent the rest of its requests."""
        for key in [key for key, who in self._elsewhere.items() if who == session]:
            del self._elsewhere[key]

    def _asked(self, request: ServerRequest) -> SessionOrRoom:
        address = request.address
        session = request.call.client if request.call is not None else address.session
        if request.call is not None or session is not None:
            return self._host_of(session, request)
        meant = self._with_calls(address)
        if not meant:
            meant = self.able(address, request.method)
            if not meant:
                raise not_found(request.method)
        if len(meant) > 1:
            raise _nobody_knows(request.server, len(meant))
        return next(iter(meant))

    def _host_of(self, session: str | None, request: ServerRequest) -> SessionOrRoom:
        try:
            return self._sessions.answers_for(session)
        except KeyError:
            text = f"The client that {request.method} is for has left."
            raise RpcRefusal(INTERNAL_ERROR, text, {"reason": "client_gone"}) from None

    def able(self, address: Address, method: str) -> list[SessionOrRoom]:
        """All sessions that can answer a request of this method."""
        needed = ASKED_FOR.get(method)
        everybody: list[SessionOrRoom] = [None, *self._sessions.who_see(address.server)]
        if needed is None:
            return everybody
        return [
            who for who in everybody if needed in self._sessions.host(who).declaration(address).capabilities
        ]

    def _with_calls(self, address: Address) -> dict[SessionOrRoom, None]:
        """All sessions that have calls in flight at this address."""
        found: dict[SessionOrRoom, None] = {}
        for client in {call.client for call in self._open_calls(address)}:
            try:
                found[self._sessions.answers_for(client)] = None
            except KeyError:
                continue  # it has left, and its call will soon be over
        return found

    # ---- notifications ----------------------------------------------------------------------------------------------

    def hearers(self, address: Address, method: str, params: Mapping[str, Any]) -> list[SessionOrRoom]:
        """The receivers of a notification: the room, then the sessions it belongs to."""
        found: dict[SessionOrRoom, None] = {None: None, **self._meant(address, method, params)}
        if method != LOG:
            return list(found)
        levels, server = self._levels, address.server
        least = {who: levels.least(who, server) for who in found}
        if address.session is None and levels.shared(server) is not None:
            least = {who: level or _UNASKED for who, level in least.items()}
        return [who for who, level in least.items() if is_heard(params.get("level"), level)]

    def _meant(self, address: Address, method: str, params: Mapping[str, Any]) -> dict[SessionOrRoom, None]:
        sessions = self._sessions.who_see(address.server)
        if address.session is not None:
            return {address.session: None} if address.session in sessions else {}
        if not sessions:
            return {}
        if method == UPDATED or method in _LISTS:
            return dict.fromkeys(sessions)
        meant = self._with_calls(address)
        if method == LOG:
            wanted = self._levels.wanted
            meant.update((one, None) for one in sessions if wanted(one, address.server) is not None)
        elif method == _ANSWERED_ELSEWHERE:
            key = address, str(params.get("elicitationId"))
            if key in self._elsewhere:
                meant = {self._elsewhere[key]: None}
        if not meant and len(sessions) == 1:
            return dict.fromkeys(sessions)
        return {who: None for who in meant if who is None or who in sessions}


def _nobody_knows(server: str, several: int) -> RpcRefusal:
    text = (
        f'Server "{server}" is shared by several clients, and nobody can know which of {several} this request is for. '
        'Give each client a child of its own: set "isolation": "per_session" in the entry of the server.'
    )
    return RpcRefusal(INTERNAL_ERROR, text, {"reason": "several_clients", "server": server})


# ---- The log levels that the room and its sessions want, and what each server is told -------------------------------
#
# The room's level applies to sessions that set none. A child of a session is told that session's level. A shared server
# can be told only one: the most talkative that anybody wants, of the room and the sessions with a host of their own.
# A session that wants less is not given the others (`is_heard`). A server of 2026-07-28 reads the level in each
# request, so there everybody's requests carry his own.

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_RANK: Final = {level: rank for rank, level in enumerate(LOG_LEVELS)}
_NOTHING: Final[Mapping[str | None, str]] = {}


def is_heard(said: object, least: str | None) -> bool:
    """Whether a message of the level `said` is for a session that wants the level `least` and above. None: all
    messages. A message of an unknown level is heard."""
    return least is None or not isinstance(said, str) or _RANK.get(said, len(_RANK)) >= _RANK[least]


class LogLevels:
    """The log levels that were set. `session` None means the room."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        # By session: for one server, or for all (None).
        self._wanted: dict[str | None, dict[str | None, str]] = {}

    def set(self, level: str, server: str | None, session: str | None) -> None:
        """Set the level for all servers or for one. A level for all servers replaces earlier levels for single
        ones."""
        levels = self._wanted.setdefault(session, {}) if server is not None else {}
        levels[server] = level
        self._wanted[session] = levels

    def wanted(self, session: str | None, server: str) -> str | None:
        """The level that this session itself has set for the server."""
        own = self._wanted.get(session, _NOTHING)
        return own.get(server, own.get(None))

    def least(self, session: str | None, server: str) -> str | None:
        """The level at which this session hears the server: its own, else the room's."""
        return self.wanted(session, server) or self.wanted(None, server)

    def shared(self, server: str) -> str | None:
        """The level that a shared server is told: the one with the most messages that anybody wants."""
        sees = self._sessions.sees
        return _most_talkative(self.wanted(one, server) for one in self._who_count() if sees(one, server))

    def forget(self, session: str) -> bool:
        """The session is over. Returns whether it had set a level."""
        return self._wanted.pop(session, None) is not None

    def _who_count(self) -> list[str | None]:
        heard = self._sessions.with_hosts
        return [session for session in self._wanted if session is None or session in heard]

    def shared_by(self, servers: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Each of these servers, with the level that it is told if it is shared. Looks at each session once."""
        sessions, general, particular = self._sessions, list[str | None](), list[str | None]()
        for one in self._who_count():
            if len(self._wanted[one]) == 1 and None in self._wanted[one] and sessions.sees_all(one):
                general.append(self._wanted[one][None])
            else:
                particular.append(one)
        most = _most_talkative(general)
        for name in servers:
            others = (self.wanted(one, name) for one in particular if sessions.sees(one, name))
            yield name, _most_talkative((most, *others))


def _most_talkative(levels: Iterable[str | None]) -> str | None:
    return min((level for level in levels if level is not None), key=_RANK.__getitem__, default=None)
