"""To whom belongs what a server says: the one rule for its questions, its logs and its other notifications.

A child of a session (or of a session's call) belongs to that session. A shared server serves many, so it depends on the
calls that it is working on:

* A question goes to the session whose call is in flight. With calls of several sessions nobody can know which of them
  it is about, unless the protocol says so (`ServerRequest.call`). Then it is refused, and sent to nobody. The same
  holds without any call, when more than one could answer.
* A log message goes to those who asked for logs (who set a level), and to those with a call in flight; each gets it at
  its own level and above. Any other notification goes to those with a call in flight.
* A session that is the only one gets what belongs to no call.

Changes of lists and updates of resources go to all sessions: their hosts know what each of them subscribed to. The
room's own host hears everything, because whoever opened the room owns all of it.

A session without a host of its own is answered for by the room's host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..actors import ASKED_FOR, UPDATED, ServerRequest, not_found
from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import INTERNAL_ERROR
from ._directory import Directory
from ._log_levels import is_heard
from ._sessions import Sessions

LOG: Final = "notifications/message"
_ANSWERED_ELSEWHERE: Final = "notifications/elicitation/complete"
_LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)
_UNASKED: Final = "info"  # for who set no level, once somebody else has set one
_REMEMBERED: Final = 1_000  # questions that are answered elsewhere, such as in a browser

Who = str | None  # a session with a host, or the room


class Routing:
    """`directory` gives the servers, which are not there yet when this is made."""

    def __init__(self, sessions: Sessions, directory: Callable[[], Directory]) -> None:
        self._sessions = sessions
        self._directory = directory
        self._elsewhere: OrderedDict[tuple[Address, str], Who] = OrderedDict()

    # ---- questions --------------------------------------------------------------------------------------------------

    def asked(self, request: ServerRequest) -> Who:
        """Who is asked. Raises `RpcRefusal` when nobody can know, or nobody can answer."""
        who = self._asked(request)
        elicitation = request.params.get("elicitationId")
        if isinstance(elicitation, str):
            self._elsewhere[request.address, elicitation] = who
            if len(self._elsewhere) > _REMEMBERED:
                self._elsewhere.popitem(last=False)
        return who

    def forget(self, session: str) -> None:
        """The session is over: another one of its name is told nothing of what this one was asked."""
        for key in [key for key, who in self._elsewhere.items() if who == session]:
            del self._elsewhere[key]

    def _asked(self, request: ServerRequest) -> Who:
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

    def _host_of(self, session: str | None, request: ServerRequest) -> Who:
        try:
            return self._sessions.answers_for(session)
        except KeyError:
            text = f"The client that {request.method} is for has left."
            raise RpcRefusal(INTERNAL_ERROR, text, {"reason": "client_gone"}) from None

    def able(self, address: Address, method: str) -> list[Who]:
        """All who can answer this question."""
        needed = ASKED_FOR.get(method)
        everybody: list[Who] = [None, *self._sessions.who_see(address.server)]
        if needed is None:
            return everybody
        return [who for who in everybody if needed in self._sessions.host(who).greeting(address).capabilities]

    def _with_calls(self, address: Address) -> dict[Who, None]:
        """All who have calls in flight there."""
        found: dict[Who, None] = {}
        actor = self._directory().actors.get(address)
        calls = actor.calls.open if actor is not None else ()
        for client in {call.client for call in calls}:
            try:
                found[self._sessions.answers_for(client)] = None
            except KeyError:
                continue  # it has left, and its call will soon be over
        return found

    # ---- notifications ----------------------------------------------------------------------------------------------

    def hearers(self, address: Address, method: str, params: Mapping[str, Any]) -> list[Who]:
        """Who hears a notification: the room, then the sessions it belongs to."""
        found: dict[Who, None] = {None: None, **self._meant(address, method, params)}
        if method != LOG:
            return list(found)
        levels, server = self._directory().log_levels, address.server
        least = {who: levels.least(who, server) for who in found}
        if address.session is None and levels.shared(server) is not None:
            least = {who: level or _UNASKED for who, level in least.items()}
        return [who for who, level in least.items() if is_heard(params.get("level"), level)]

    def _meant(self, address: Address, method: str, params: Mapping[str, Any]) -> dict[Who, None]:
        sessions = self._sessions.who_see(address.server)
        if address.session is not None:
            return {address.session: None} if address.session in sessions else {}
        if not sessions:
            return {}
        if method == UPDATED or method in _LISTS:
            return dict.fromkeys(sessions)
        meant = self._with_calls(address)
        if method == LOG:
            levels = self._directory().log_levels
            meant.update((one, None) for one in sessions if levels.wanted(one, address.server) is not None)
        elif method == _ANSWERED_ELSEWHERE:
            key = address, str(params.get("elicitationId"))
            if key in self._elsewhere:
                meant = {self._elsewhere[key]: None}
        if not meant and len(sessions) == 1:
            return dict.fromkeys(sessions)
        return {who: None for who in meant if who is None or who in sessions}


def _nobody_knows(server: str, several: int) -> RpcRefusal:
    text = (
        f'Server "{server}" is shared by several clients, and nobody can know which of {several} this question is for. '
        'Give each client a child of its own: set "isolation": "per_session" in the entry of the server.'
    )
    return RpcRefusal(INTERNAL_ERROR, text, {"reason": "several_clients", "server": server})
