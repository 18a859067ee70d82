"""The open sessions of a room: who answers for each, and the values that each gives to the children started for it.

A session may bring a host of its own, which answers what servers ask its client. The room itself has one, too (its
callbacks); it answers for sessions that bring none. When a session is over, nobody answers for it any more.

A session may bring credentials of its caller: `${session.NAME}` in a server's entry stands for one. They are kept only
here, as long as the session is open. A child is not started before its session gives every value that the entry names.
So a credential is never empty, and never another caller's.

A door that knows who its caller is tells a session, at each request anew, because a token that proves it is renewed. It
is kept like these values, and only servers that are called as their caller get something of it (`CALLER`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ..actors.host import Declaration, Host
from ..actors.login.caller_identity import CallerIdentity
from ..config.argument_checks import name_of, named_values
from ..config.model import ServerDefinition
from ..config.references import session_variables
from ..config.value_kinds import VALUE_NAME
from ..protocol.address import Address
from ..protocol.errors import CALLER, CredentialNeeded, UsageError

if TYPE_CHECKING:
    from ..safety.approval import OnApproval
    from .profiles import ProfileView


_NOTHING: Final[Mapping[str, str]] = {}


class Sessions:
    """The open sessions. `own` answers for the room itself. In all methods `session` None means the room."""

    def __init__(self, own: Host) -> None:
        self.for_many = False  # clients come and go, of both eras, and can answer different things
        self._open: dict[str, Mapping[str, str]] = {}
        self._ending: set[str] = set()  # no longer open, and some of their children still live
        self._own = own
        self._stand_in: Host | None = None  # answers for the room instead
        self._hosts: dict[str, Host] = {}  # of the open sessions that bring one
        self._views: dict[str, ProfileView] = {}  # of those that have a profile
        self._callers: dict[str, CallerIdentity] = {}  # of those whose door knows
        self.approvers: dict[
            str | None, OnApproval
        ] = {}  # who allows calls, of the room and of open sessions

    def open(
        self,
        session: str,
        variables: Mapping[str, str],
        host: Host | None = None,
        view: ProfileView | None = None,
        on_approval: OnApproval | None = None,
    ) -> None:
        """Open a session. Raises `UsageError` when the name is empty or in use (also by a session that is still
        ending), or when a variable has no usable name or value."""
        if not name_of(session, "a session").strip():
            raise UsageError("A session needs a name, by which it is told from others. Give it one.")
        if session in self._open:
            raise UsageError(
                f"A session {session!r} is already open, and a session has one caller. Choose another name."
            )
        if session in self._ending:
            text = "is just ending: its servers are being stopped"
            raise UsageError(
                f"A session {session!r} {text}. Wait until it has ended, or choose another name."
            )
        for name, value in (named_values(variables, "A session's variables") or {}).items():
            if not isinstance(name, str) or not VALUE_NAME.fullmatch(name) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                text = "A session's variables must be strings, with names of letters, digits and underscores"
                raise UsageError(f"{text}: correct {name!r}.")
        self._open[session] = dict(variables)
        if view is not None:
            self._views[session] = view
        self.approve_with(on_approval, session)
        self.answer_with(host, session)

    def approve_with(self, on_approval: OnApproval | None, session: str | None = None) -> None:
        """Ask `on_approval` before anybody else about calls of this session that somebody has to allow. None: do
        not."""
        if on_approval is not None:
            self.approvers[session] = on_approval

    def is_open(self, session: str) -> bool:
        return session in self._open

    def end(self, session: str) -> None:
        """Forget all about the session but its name, by which its children are still found."""
        self._open.pop(session, None)
        self._hosts.pop(session, None)
        self._views.pop(session, None)
        self._callers.pop(session, None)
        self.approvers.pop(session, None)
        self._ending.add(session)

    def ended(self, session: str) -> None:
        """Nothing is left of the session, so another may take its name."""
        self._ending.discard(session)

    # ---- who answers ------------------------------------------------------------------------------------------------

    def answer_with(self, host: Host | None, session: str | None) -> None:
        """Let `host` answer for this session. None: the room answers for it from now on."""
        if session is None:
            self._stand_in = host
        elif host is None:
            self._hosts.pop(session, None)
        elif session in self._open:
            self._hosts[session] = host

    @property
    def with_hosts(self) -> Collection[str]:
        """The sessions with a host of their own, in the order in which they got it."""
        return self._hosts.keys()

    def who_see(self, server: str) -> Collection[str]:
        """Those sessions with a host of their own for which this server exists."""
        if not self._views:
            return self._hosts.keys()
        return [session for session in self._hosts if self.sees(session, server)]

    def sees(self, session: str | None, server: str) -> bool:
        view = self._views.get(session) if session is not None else None
        return view is None or view.shows(server)

    def sees_all(self, session: str | None) -> bool:
        return session not in self._views

    def answers_for(self, session: str | None) -> str | None:
        """The session whose host answers for this session: itself, or None for the room. Raises `KeyError` when the
        session is over."""
        if session is None or session in self._hosts:
            return session
        if session in self._open:
            return None
        raise KeyError(session)

    def host(self, session: str | None) -> Host:
        """The host that this session has, or the room's. Raises `KeyError` for a session without one."""
        return self._hosts[session] if session is not None else self._stand_in or self._own

    def declaration(self, session: str | None, address: Address) -> Declaration:
        """What a server at this address is told of this session alone; an empty declaration when the session is
        over."""
        try:
            who = self.answers_for(session)
        except KeyError:
            return Declaration()
        return self.host(who).declaration(address)

    # ---- what each gives to its children ----------------------------------------------------------------------------

    def variables(self, session: str | None) -> Mapping[str, str]:
        return _NOTHING if session is None else self._open.get(session, _NOTHING)

    def identify(self, session: str, caller: CallerIdentity) -> None:
        """The door says who the caller of this session is; what it said before does not count any more."""
        if session in self._open:
            self._callers[session] = caller

    def caller(self, session: str | None) -> CallerIdentity | None:
        """Who calls in this session, if its door knows."""
        return None if session is None else self._callers.get(session)

    def missing(self, definition: ServerDefinition, session: str | None) -> tuple[str, ...]:
        """The values that the server needs and that this session lacks or has empty."""
        needed = session_variables(definition)
        if not needed:
            return ()
        given = self.variables(session)
        if CALLER in needed and self.caller(session) is not None:
            needed -= {CALLER}
        return tuple(sorted(name for name in needed if not given.get(name, "").strip()))

    def check(self, definition: ServerDefinition, session: str | None) -> None:
        """Raises `CredentialNeeded` when this session lacks a value that the server needs."""
        if missing := self.missing(definition, session):
            raise CredentialNeeded(definition.name, missing, has_session=session is not None)
