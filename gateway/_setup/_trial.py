"""Starts every server once, in a room of its own, and says what was wrong: for `greenroom doctor --start`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import anyio

from ...protocol.errors import GreenroomError, NeedsAuth
from ...protocol.events import Event, Kind, Lagged, Note, NoteCode, Transition
from ...protocol.interpolate import session_variables
from ...protocol.lifecycle import State
from ._checks import Finding, Setup, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ...supervisor import Greenroom

_SLOW: Final = 5.0  # seconds from the start of the program to its tools


async def try_servers(setup: Setup, known: Collection[str], tell: Callable[[str], object]) -> list[Finding]:
    """What is wrong with the servers in service that need no session. Each is started once and ended, without those
    that are `known` to fail."""
    from ... import Greenroom

    room = Greenroom.open(setup.config, cache_path=":memory:", bootstrap=False)
    findings: list[Finding] = []
    began: dict[str, float] = {}
    odd: set[str] = set()
    able = (server for server in setup.in_service() if not session_variables(server))
    names = [server.name for server in able if server.name not in known]

    def heard(event: Event | Lagged) -> None:
        server = event.server if isinstance(event, Event) else None
        if server is None:
            return
        if isinstance(event, Note) and event.code is NoteCode.ODD and server not in odd:
            odd.add(server)
            mend = "let it print to stderr: stdout is for the protocol"
            findings.append(Finding(Severity.WARNING, "start", server, event.words, mend))
        elif isinstance(event, Transition) and event.after is State.CONNECTING:
            began[server] = event.at
        elif isinstance(event, Transition) and event.after is State.CONNECTED:
            took = event.at - began.get(server, event.at)
            if took > _SLOW:
                mend = f'"lifecycle": "keep-alive" for {server}, or install what its command fetches at each start'
                findings.append(
                    Finding(Severity.WARNING, "start", server, f"it took {took:.0f} s to start", mend)
                )

    async def one(room: Greenroom, name: str) -> None:
        tell(f"starting {name}")
        try:
            await room.connect(name)
            await room.drain(name)
        except NeedsAuth as error:
            mend = f"greenroom auth {shlex.quote(name)}"
            findings.append(Finding(Severity.ERROR, "login", name, error.message, mend))
        except GreenroomError as error:
            mend = f"correct its entry, or: greenroom disable {name}"
            findings.append(Finding(Severity.ERROR, "start", name, error.message, mend))

    async with room.events([Kind.NOTE, Kind.TRANSITION]) as events, anyio.create_task_group() as readers:

        async def read() -> None:
            async for event in events:
                heard(event)

        readers.start_soon(read)
        async with room, anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, room, name)
        events.close()  # the reader reads the rest and ends
    return findings
