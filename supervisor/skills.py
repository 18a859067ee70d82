"""Asks servers for skills: the entry of one as it is now, and its files, compared with what the entry says.

A skill is read only when somebody wants it. What is read must be in its entry's list of files, with the size and digest
that stand there. Where it is not, the skill has changed since its server listed it, for not every server tells of that.
So the server lists what it has again, once, and what it says then counts. A skill that has changed is quarantined then,
like a tool.

A file is compared as it came. What is a credential in it is cut out only then, as the configuration says.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..actors.call import Call
from ..actors.message_buffer import takes_long_to_decode
from ..actors.router import Sync
from ..actors.workers import LONG_WORK, aside
from ..catalogue.entries import Raw
from ..catalogue.namespace import Ambiguous, Missing, Target
from ..catalogue.skills import FILE, SkillFile, content_of, fault_of, files_of, may_be_in, root_of
from ..config.arguments import name_of
from ..config.model import Scrub
from ..protocol.bounds import ITEM_BYTES, LARGE_MESSAGE, SKILL_BYTES
from ..protocol.errors import AmbiguousTool, ProtocolFault, Reach, UnknownResource, UnknownSkill
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import WireFault

if TYPE_CHECKING:
    from ..config.secrets import Secrets
    from .caller import Caller


@attrs.frozen(eq=False)
class SkillRead:
    """A file of a skill that was read, and is what the skill's entry says."""

    skill: Target
    path: str
    result: Raw  # of the resources/read

    @property
    def text(self) -> str | None:
        """The text of the file; None: it is no text."""
        match self.result.get("contents"):
            case [{"text": str(text)}]:
                return text
            case _:
                return None


async def current_skill(caller: Caller, server: str, uri: str) -> Target:
    """The skill whose `SKILL.md` has this URI at its server, as the server says now. Raises `CallError`s and
    `UnknownResource`."""
    said = await caller.ask(server, Call("skills/get", {"uri": uri}, replayable=True), most=ITEM_BYTES)
    record: Raw = said.get("skill") or {}
    fault = fault_of(record)
    if fault or record["uri"] != uri:
        text = f'Server "{server}" answered skills/get with no usable skill: {fault or "its uri is another"}.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
    known = _listed(caller, server, uri)
    if known is not None and known != record:
        await caller.connect_by_name(server)
    if known is None:
        found = caller.index.unlisted_skill(server, record)
    else:
        found = next((skill for skill in caller.index.skills(server) if skill.original == uri), None)
    if found is None:
        raise UnknownResource(uri)
    return found


async def read_skill(
    caller: Caller, name: str, path: str | None = None, server: str | None = None, *, door: Scrub = Scrub.ALL
) -> SkillRead:
    """Read a file (None: `SKILL.md`) of the skill called `name` here. Connects its server when needed. Raises
    `CallError`s; `UnknownSkill`, `AmbiguousTool` and `UnknownServer` are among them."""
    path = path or FILE
    target = await find_skill(caller, name, server)
    result = await _read(caller, target, path, door)
    if result is None:
        await caller.connect_by_name(target.server)
        target = await find_skill(caller, name, server)
        result = await _read(caller, target, path, door)
    if result is None:
        text = (
            f'"{path}" of skill "{target.name}" was read and is not shown: it is not what server "{target.server}" '
            "lists, by its size or its digest."
        )
        raise ProtocolFault(text, server=target.server, reach=Reach.ANSWERED)
    return SkillRead(target, path, result)


async def find_skill(caller: Caller, name: str, server: str | None = None) -> Target:
    """The skill called `name` here. Raises `UnknownSkill`, `AmbiguousTool`, `UnknownServer`, and what kept the server
    from connecting."""
    caller.check_server(server)
    found = _resolved(caller, name, server)
    wait_by = caller.wait_by()
    for candidate in found.servers if isinstance(found, Missing) else ():
        await caller.connect(candidate, wait_by=wait_by)
        await caller.live.router.ref.ask(Sync)
        again = _resolved(caller, name, server)
        if isinstance(again, Target):
            return again
    if isinstance(found, Missing):
        raise UnknownSkill(name, [skill.name for skill in caller.index.skills(server)])
    return found


def _resolved(caller: Caller, name: str, server: str | None) -> Target | Missing:
    found = caller.index.resolve_skill(name_of(name, "a skill"), server)
    if isinstance(found, Ambiguous):
        raise AmbiguousTool(name, found.candidates, what="Skill")
    return found


async def _read(caller: Caller, target: Target, path: str, door: Scrub) -> Raw | None:
    """The result of reading a file; None: it is not what the entry says. Raises `UnknownSkill` for a file that the
    entry does not have."""
    if target.changed is not None:
        raise caller.refused(target.refusal())
    file = _file(target, path)
    uri = f"{root_of(target.original)}/{path}" if file is None else file.uri
    call = Call("resources/read", {"uri": uri}, replayable=True)
    caller.submit(target.server, call)
    answer = await call.wait()
    check = partial(_checked, answer, file, caller.scrubber(target.server, door))
    return await aside(check) if len(answer) >= LONG_WORK else check()


def _checked(answer: bytes, file: SkillFile | None, scrubber: Secrets | None) -> Raw | None:
    if len(answer) >= LARGE_MESSAGE and takes_long_to_decode(answer):
        return None
    try:
        content = content_of(decode_result(answer))
        if content is None or not (len(content) <= SKILL_BYTES if file is None else file.accepts(content)):
            return None
        return decode_result(answer if scrubber is None else scrubber.scrub(answer))
    except WireFault:
        return None


def _file(target: Target, path: str) -> SkillFile | None:
    """The file at `path`; None: only its server knows which files the skill has. Raises `UnknownSkill`."""
    files = files_of(target.record)
    if files is None:
        if not may_be_in(path):
            raise UnknownSkill(f"{target.name}/{path}", [])
        return None
    found = next((file for file in files if file.path == path), None)
    if found is None:
        raise UnknownSkill(f"{target.name}/{path}", [f"{target.name}/{file.path}" for file in files])
    return found


def _listed(caller: Caller, server: str, uri: str) -> Raw | None:
    """What the server has listed of the skill, whether it is shown here or not."""
    entry = caller.listed(server)
    records = () if entry is None else entry.skills or ()
    return next((record for record in records if record.get("uri") == uri), None)
