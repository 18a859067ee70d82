"""Starts every server once, in a room of its own, and says what was wrong: for `greenroom doctor --start`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ...protocol.errors import GreenroomError, NeedsAuth
from ...protocol.events import Event, Kind, Lagged, Note, NoteCode, Transition
from ...protocol.interpolate import session_variables
from ...protocol.lifecycle import State
from ._finding import Finding, Setup, Severity
from ._running import behaved_oddly, started_slowly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ...supervisor import Greenroom


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
            findings.append(behaved_oddly(server, event.words))
        elif isinstance(event, Transition) and event.after is State.CONNECTING:
            began[server] = event.at
        elif isinstance(event, Transition) and event.after is State.CONNECTED:
            findings.extend(started_slowly(server, event.at - began.get(server, event.at)))

    async def one(room: Greenroom, name: str) -> None:
        tell(f"starting {name}")
        try:
            await room.connect(name)
            await room.drain(name)
        except NeedsAuth as error:
            mend = setup.commands.about("auth", name)
            findings.append(Finding(Severity.ERROR, "login", name, error.message, mend))
        except GreenroomError as error:
            mend = f"correct its entry, or: {setup.commands.about('disable', name)}"
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
