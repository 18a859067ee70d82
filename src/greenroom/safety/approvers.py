"""Who is asked whether a call may be sent.

First the session's own `on_approval`, then the room's; each may leave it to the next by returning None. If one
raises, or returns something else, the answer is no. Then whoever answers for the session (`Answerers`): a client of a
door, or the callbacks of a program. They are asked by an elicitation, if they take forms; it is marked as ours. If
none of them can be asked, the call waits for the people at terminals alone (`ApprovalDesk`), as long as there are
any.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

from ..actors.call import Call
from ..actors.host import Host, ServerRequest, lacking
from ..actors.room_context import RoomContext
from ..protocol.address import Address
from ..protocol.errors import ApprovalNeeded, RpcRefusal
from ..protocol.events import Note, NoteCode
from .approval import ApprovalRequest, OnApproval, Verdict, form, verdict_of
from .approval_desk import ApprovalDesk

_ASK: Final = "elicitation/create"
_HOW: Final = (
    "nobody can be asked here. Tell the user: it can be allowed with `greenroom approve`, if "
    "`greenroom status --watch` runs during the call, "
    'in an MCP client that takes elicitations, with `greenroom call` on a terminal, or by another "approve" in the '
    "configuration"
)


class Answerers(Protocol):
    """The hosts and callbacks that can be asked, of a room and its sessions (None: the room itself): the `Sessions` of
    the supervisor, a room above this one."""

    @property
    def approvers(self) -> Mapping[str | None, OnApproval]: ...

    def answers_for(self, session: str | None) -> str | None:
        """The session whose client answers for this session."""
        ...

    def host(self, session: str | None) -> Host:
        """The host that answers for this session. Raises `KeyError`."""
        ...


class Approvers:
    def __init__(self, context: RoomContext, sessions: Answerers, desk: ApprovalDesk) -> None:
        self._context = context
        self._sessions = sessions
        self._desk = desk

    def exist(self, session: str | None, address: Address) -> bool:
        """Whether anybody can be asked about a call of this session to a server at this address."""
        if self._hooks(session) or self._host(session, address) is not None:
            return True
        return self._desk.is_watched(session)

    async def ask(self, request: ApprovalRequest, address: Address, call: Call) -> Verdict:
        """Ask whether the call may be sent. Raises `ApprovalNeeded` when there is no answer."""
        for hook in self._hooks(request.session):
            try:
                said = await hook(request)
            except Exception as error:
                self.note_bug(address, error)
                return Verdict.DENY
            if said is not None:
                return said if isinstance(said, Verdict) else Verdict.DENY  # pyright: ignore[reportUnnecessaryIsInstance]
        host = self._host(request.session, address)
        if host is None:
            await self._desk.unwatched(request.session)
            raise nobody(request)
        try:
            asked = ServerRequest(address, _ASK, form(request.text), call=call, is_ours=True)
            answer = verdict_of(await host.answer(asked))
        except RpcRefusal as refusal:
            await self._desk.unwatched(request.session)
            why = f"the question failed ({refusal.message.rstrip('.')})"
            raise ApprovalNeeded(request.tool, request.server, "failed", why) from None
        except Exception as error:
            self.note_bug(address, error)
            return Verdict.DENY
        if answer is None:
            raise ApprovalNeeded(request.tool, request.server, "dismissed", "the question was dismissed")
        return answer

    def note_bug(self, address: Address, error: Exception) -> None:
        """A callback raised while a call was held."""
        text = "".join(traceback.format_exception(error))
        words = f"a callback failed while a call waited for approval\n{text}"
        self._context.events.emit(Note, address, code=NoteCode.CALLBACK, words=words)

    def note_own_bug(self, address: Address, error: Exception) -> None:
        """Handing over an allowed call failed because of us."""
        words = "".join(traceback.format_exception(error))
        self._context.events.emit(Note, address, code=NoteCode.BUG, words=words)

    def _hooks(self, session: str | None) -> list[OnApproval]:
        approvers = self._sessions.approvers
        asked = (session, None) if session is not None else (None,)
        return [approvers[who] for who in asked if who in approvers]

    def _host(self, session: str | None, address: Address) -> Host | None:
        """The host that can show a question of this session to a person."""
        with suppress(KeyError):
            host = self._sessions.host(self._sessions.answers_for(session))
            declared = host.declaration(address).capabilities
            if lacking(declared, _ASK, {}) is None:
                return host
        return None


def nobody(request: ApprovalRequest) -> ApprovalNeeded:
    return ApprovalNeeded(request.tool, request.server, "nobody", _HOW, request.text)
