"""What an owner may do on the page. Each act is what a command does, is told in one note of the events, and stands in
the audit file, if there is one.

| act | as |
|---|---|
| `connect`, `drain`, `restart` | `greenroom reconnect`; taken down until somebody connects it |
| `enable`, `disable` | the commands; they edit the file that defines the server |
| `call` | `greenroom call` |
| `answer` | `greenroom approve` |
| `accept`, `trust` | the commands. What is accepted or trusted is named by its digest: nothing that was not shown |

Who may act is decided where a request comes in. A client of the gateway can never answer for its own calls: it has no
owner's token.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...actors.workers import apart
from ...catalogue.fingerprints import PINNED, kind_of, original_of, pin_name
from ...config.files import project_asks, working_directory
from ...config.trust import Agreements, ProjectFile, shown_matter, trust_file
from ...protocol.errors import GreenroomError, UsageError
from ...protocol.safe_text import one_line
from ...safety.approval import Verdict
from ...safety.audit import ACT
from ...supervisor.attachments import AUDIT
from ...supervisor.room import port_of
from ..control_methods import allowing, verdict_in
from ..doors.control_protocol import object_in, text_in, whole_in
from ..exposures.mcp_tool import McpTool, ask
from ..exposures.tool_definition import FOR_PEOPLE
from ..result_meta import details_of

if TYPE_CHECKING:
    from ...config.model import Config
    from ...observe.audit_trail import AuditTrail
    from ...supervisor.room import Greenroom
    from ..next_steps import Commands

# Takes a server out of service (True) or back. Returns the files that were changed.
Switch = Callable[[str, bool], list[str]]
_SAID: Final = {
    Verdict.ONCE: "Allowed, this once",
    Verdict.SESSION: "Allowed for its session, with these arguments",
    Verdict.DENY: "Refused",
}
Params = Mapping[str, Any]


class PageActions:
    """The acts in a room. `switch`: how a server is taken out of the configuration's service; None: that is not
    possible here."""

    def __init__(self, room: Greenroom, commands: Commands, switch: Switch | None) -> None:
        self._room = room
        self._port = port_of(room)
        self._commands = commands
        self._switch = switch
        self._numbers = itertools.count(1)
        self._acts: Final[Mapping[str, Callable[[Params, str], Awaitable[dict[str, Any]]]]] = {
            "connect": partial(self._moved, room.connect, "is connected."),
            "drain": partial(
                self._moved, room.drain, "is drained. It stays down until somebody connects it."
            ),
            "restart": partial(self._moved, room.restart, "was restarted."),
            "enable": partial(self._switched, False),
            "disable": partial(self._switched, True),
            "call": self._call,
            "answer": self._answer,
            "accept": self._accept,
            "trust": self._trust,
        }

    async def do(self, params: Params, who: str) -> dict[str, Any]:
        """Do what `who` wants. Returns `done` and what was done in words. Raises `GreenroomError`."""
        name = text_in(params, "action") or ""
        act = self._acts.get(name)
        if act is None:
            raise UsageError(
                f'There is no action "{one_line(name, 40)}". There are: {", ".join(self._acts)}.'
            )
        told = partial(self._tell, name, params, who)
        try:
            answer = await act(params, who)
        except BaseException as error:
            told(error.code if isinstance(error, GreenroomError) else type(error).__name__)
            raise
        told("done")
        return {"done": True, **answer}

    def _tell(self, name: str, params: Params, who: str, outcome: str) -> None:
        """Say it in the events and in the audit: who did what to whom, and never with which arguments."""
        about = {
            key: one_line(str(params[key]), 200)
            for key in ("server", "tool", "kind", "name", "number", "verdict", "project")
            if params.get(key) is not None
        }
        server = about.get("server") if about.get("server") in self._port.catalogue.config.servers else None
        words = " ".join((name, *(each for key, each in about.items() if key != "server" or server is None)))
        how = "" if outcome == "done" else f": {outcome}"
        self._port.services.note(f"the page: {who}: {words}{how}", server)
        trail: AuditTrail | None = self._port.services.attachment(AUDIT)
        if trail is not None:
            trail.file.write(
                {"kind": ACT, "door": "page", "subject": who, "act": name, **about, "outcome": outcome}
            )

    # ---- servers ---------------------------------------------------------------------------------------------------

    async def _moved(
        self, move: Callable[[str], Awaitable[object]], what: str, params: Params, _who: str
    ) -> dict[str, Any]:
        server = self._server(params)
        await move(server)
        return {"said": f"{server} {what}"}

    async def _switched(self, off: bool, params: Params, _who: str) -> dict[str, Any]:
        server, switch = self._server(params), self._switch
        if switch is None:
            text = "This gateway was not started by a command, so it edits no file. Change its configuration there."
            raise UsageError(text)
        files = await apart(partial(switch, server, off))
        state = "disabled" if off else "enabled"
        return {
            "said": f"{server} is {state}: {', '.join(files)}" if files else f"{server} is {state} already."
        }

    def _server(self, params: Params) -> str:
        server = text_in(params, "server") or ""
        config = self._port.catalogue.config
        if server not in config.servers and server not in config.broken:
            self._port.catalogue.check_server(server)
        return server

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def _call(self, params: Params, who: str) -> dict[str, Any]:
        """A call in a session of its own. If somebody has to allow it, and it is not `allow`ed, it waits on the page
        like any other."""
        request: dict[str, Any] = {"tool": text_in(params, "tool"), "args": object_in(params, "arguments")}
        if params.get("server"):
            request["server"] = text_in(params, "server")
        on_approval = allowing if params.get("allow") is True else None
        async with self._room.session(f"page-{next(self._numbers)}", on_approval=on_approval) as session:
            own = port_of(session)
            own.came_by("page", who)
            result = await ask(McpTool(own, hints=FOR_PEOPLE), request)
        details = {**details_of(result), "content": result["content"]}
        failed = "error" in details
        return {"said": "The call failed." if failed else "The call is done.", "result": details}

    async def _answer(self, params: Params, _who: str) -> dict[str, Any]:
        verdict, number = verdict_in(params), whole_in(params, "number")
        request = self._port.services.approvals.answer(number, verdict).request
        return {"said": f"{_SAID[verdict]}: the call {number} of {one_line(request.tool, 100)}."}

    # ---- what was shown --------------------------------------------------------------------------------------------

    async def _accept(self, params: Params, _who: str) -> dict[str, Any]:
        server, kind = self._server(params), text_in(params, "kind") or "tool"
        name, digest = text_in(params, "name") or "", text_in(params, "digest") or ""
        if kind not in PINNED:
            raise UsageError(f'"kind" must be one of {", ".join(PINNED)}.')
        taken = await self._port.services.accept_shown(server, {pin_name(kind, name): digest})
        if not taken:
            text = f"Nothing was accepted: {one_line(name, 100)} of {server} is not what was shown any more."
            raise UsageError(f"{text} Look again.", code="changed_meanwhile")
        said = ", ".join(f"{kind_of(pin)} {one_line(original_of(pin), 100)}" for pin in taken)
        return {"said": f"Accepted: {said}."}

    async def _trust(self, params: Params, _who: str) -> dict[str, Any]:
        file, digest = text_in(params, "project") or "", text_in(params, "digest") or ""
        await apart(partial(_trusted, self._commands, file, digest))
        return {"said": f"Trusted: {one_line(file, 200)}. The gateway reads it in a moment."}


def projects(config: Config, commands: Commands) -> list[dict[str, Any]]:
    """The files of the project that are not obeyed yet, and what they would do. Reads files."""
    if not config.untrusted:
        return []
    return [
        {
            "project": one.file,
            "directory": one.directory,
            "digest": one.digest,
            "servers": list(one.servers),
            "matters": shown_matter(one.matter),
        }
        for one in _asked(commands)
        if one.file in config.untrusted
    ]


def _asked(commands: Commands) -> tuple[ProjectFile, ...]:
    cwd, home = working_directory("/"), Path.home()
    return project_asks(commands.config, cwd=cwd, home=home, environ=os.environ, platform=sys.platform)


def _trusted(commands: Commands, file: str, digest: str) -> None:
    """Remember a yes for this file, if it is what was shown. Raises `UsageError`, `OSError`."""
    found = next((one for one in _asked(commands) if one.file == file), None)
    if found is None or found.digest is None or found.digest != digest:
        text = f"Nothing was trusted: {one_line(file, 200)} is not what was shown any more. Look again."
        raise UsageError(text, code="changed_meanwhile")
    agreements = Agreements(trust_file(Path.home(), os.environ))
    agreements.read()
    if agreements.warning is not None:
        raise UsageError(f"{agreements.path} cannot be used: {agreements.warning}.")
    agreements.add([found])
