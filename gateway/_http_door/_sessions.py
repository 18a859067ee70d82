"""All clients of the door: their sessions, how many there may be, and when they end.

Each has a task that holds its conversation open until it is over. A session ends when its client ends it, when no
message has come for a while and no request of it is open, or when it is too old. Nothing wakes up in between: one
task sleeps until the first of them is due.

A session belongs to the caller that opened it. For anybody else it does not exist. Its name in the room is a number,
not its id, because names are shown and an id is a secret.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc

from ...protocol.errors import UNKNOWN_PROFILE, UsageError
from ._caller import Caller
from ._refusals import no_session, no_such_path, too_many
from ._rules import Rules
from ._session import HttpSession
from ._stateless import Visitor

if TYPE_CHECKING:
    from .._conversations import Conversations

_NOTHING: Final[Mapping[str, str]] = {}
_LOOK_AGAIN: Final = 10.0  # seconds
Member = HttpSession | Visitor


class Sessions:
    """`group` outlives all conversations. `shares`: how many callers share the places."""

    def __init__(
        self, conversations: Conversations, group: anyio.abc.TaskGroup, rules: Rules, *, shares: int = 1
    ) -> None:
        self._conversations = conversations
        self._group = group
        self._rules = rules
        # With several tokens, no one of them can take all places.
        self._most_each = rules.max_sessions if shares < 2 else max(1, rules.max_sessions // 2)
        self._sessions: dict[str, HttpSession] = {}
        self._visitors: dict[bytes, Visitor] = {}
        self._opening: dict[bytes, anyio.Event] = {}
        self._used: dict[Member, float] = {}  # when the last message came; the latest is the last
        self._born: dict[Member, float] = {}
        self._names: dict[Member, str] = {}  # in the room, of those that are open
        self._each: dict[str | None, int] = {}
        self._numbers = itertools.count(1)
        self._first_came = anyio.Event()

    def __len__(self) -> int:
        return len(self._born)

    async def open_session(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str]
    ) -> HttpSession:
        """Raises `Refusal` when there are too many, or no such profile."""
        session = HttpSession(caller, profile, self._rules, variables)
        await self._open(session)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, caller: Caller, profile: str | None) -> HttpSession:
        """Raises `Refusal` when this caller has no such session."""
        session = self._sessions.get(session_id)
        if session is None or session.over.is_set() or session.caller != caller or session.profile != profile:
            raise no_session()
        return session

    async def visitor(
        self, caller: Caller, profile: str | None, variables: Mapping[str, str], who: bytes
    ) -> Visitor:
        """The client of 2026-07-28 that says this of itself. Raises `Refusal` as `open_session` does."""
        said = repr((caller.name, caller.client, profile, sorted(variables.items()))).encode()
        key = hashlib.sha256(said + b"\0" + who).digest()
        while (opening := self._opening.get(key)) is not None:
            await opening.wait()
        visitor = self._visitors.get(key)
        if visitor is None or visitor.over.is_set():
            visitor = Visitor(caller, profile, self._rules, variables, self._group.start_soon)
            self._opening[key] = anyio.Event()
            try:
                await self._open(visitor)
                self._visitors[key] = visitor
            finally:
                self._opening.pop(key).set()
        return visitor

    def touch(self, member: Member) -> None:
        """A message of it came."""
        if self._used.pop(member, None) is not None:
            self._used[member] = anyio.current_time()

    def end(self, member: Member) -> None:
        """End it now. Its children end in the background."""
        if not member.over.is_set():
            member.over.set()
            self._used.pop(member, None)
            self._names.pop(member, None)
            if self._born.pop(member, None) is not None:
                self._each[member.caller.name] -= 1
            if isinstance(member, HttpSession):
                self._sessions.pop(member.id, None)
            else:
                self._visitors = {key: each for key, each in self._visitors.items() if each is not member}
            member.close()

    def silent(self, since: float) -> Iterator[tuple[str, Callable[[], None]]]:
        """Those whose clients have most likely gone: no message since then, no open request, no open event stream.
        The name in the room and what ends it, of the longest silent first."""
        for member, used in self._used.items():
            if used > since:
                break
            if member in self._names and not member.in_flight and not member.is_listening:
                yield self._names[member], partial(self.end, member)

    def view(self) -> list[dict[str, Any]]:
        """Each that is open, and why it still is: seconds since its last message, what is open of it, and when it ends
        without another message. The longest silent first."""
        now = anyio.current_time()
        return [
            {
                "session": self._names[member],
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

    def end_all(self) -> None:
        for member in tuple(self._born):
            self.end(member)

    async def expire(self) -> None:
        """End what is due. Runs until cancelled."""
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
            await anyio.sleep_until(min(idle, age))
            self._end_due(anyio.current_time())

    def _end_due(self, now: float) -> None:
        for member, used in tuple(self._used.items()):
            if used + self._rules.session_idle > now:
                break
            if not member.in_flight:
                self.end(member)
        for member, born in tuple(self._born.items()):
            if born + self._rules.session_life > now:
                break
            self.end(member)

    async def _open(self, member: Member) -> None:
        owner = member.caller.name
        if len(self._born) >= self._rules.max_sessions or self._each.get(owner, 0) >= self._most_each:
            raise too_many("sessions")
        self._each[owner] = self._each.get(owner, 0) + 1
        self._born[member] = self._used[member] = anyio.current_time()
        self._first_came.set()
        try:
            await self._group.start(partial(self._hold, member))
        except BaseException as error:
            self.end(member)
            if isinstance(error, UsageError) and error.code == UNKNOWN_PROFILE:
                raise no_such_path() from None
            raise

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
        ) as client:
            member.client = client
            member.variables = _NOTHING
            if not member.over.is_set():
                self._names[member] = name
            task_status.started()
            await member.over.wait()
