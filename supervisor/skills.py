"""Asks servers for skills: the entry of one as it is now, and its files, compared with what the entry says.

A skill is read only when somebody wants it. What is read must be in its entry's list of files, with the size and digest
that stand there, and a `SKILL.md` must begin with the entry's front matter. Where it is not so, the skill has changed
since its server listed it, for not every server tells of that. So the server lists what it has again, once, and what it
says then counts. A skill that has changed is quarantined then, like a tool.

A file is compared as it came. What is a credential in it is cut out only then, as the configuration says.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import msgspec

from ..actors.call import Call
from ..actors.message_buffer import takes_long_to_decode
from ..actors.router import Sync
from ..actors.workers import LONG_WORK, aside
from ..catalogue.definition_secrets import names_credential, without_credentials
from ..catalogue.entries import Raw
from ..catalogue.namespace import Ambiguous, Missing, Target
from ..catalogue.skills import (
    FILE,
    SkillFile,
    children_of,
    content_of,
    fault_of,
    files_of,
    is_introduced_as,
    is_within,
    may_be_in,
    reads_directories,
    root_of,
)
from ..config.arguments import name_of
from ..config.model import Scrub
from ..protocol.bounds import ITEM_BYTES, LARGE_MESSAGE, SKILL_BYTES
from ..protocol.errors import AmbiguousTool, ProtocolFault, Reach, UnknownResource, UnknownSkill, UsageError
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import WireFault
from ..protocol.safe_text import unhidden

if TYPE_CHECKING:
    from ..config.secrets import Secrets
    from .caller import Caller


_LONG_YAML: Final = 4_096  # bytes of a `SKILL.md` from which on its front matter is read in a thread


class SkillRead(msgspec.Struct, frozen=True, eq=False):
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
    call = Call("skills/get", {"uri": uri}, replayable=True)
    said = await caller.ask(server, call, most=ITEM_BYTES, is_definition=True)
    came: Raw = said.get("skill") or {}
    fault = fault_of(came)
    record = came if fault else _without_credentials(came, caller.scrubber(server, Scrub.MCP))
    if fault or record["uri"] != uri or names_credential(came, record):
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
            "lists, by its size, its digest or its front matter."
        )
        raise ProtocolFault(text, server=target.server, reach=Reach.ANSWERED)
    return SkillRead(target, path, result)


async def read_directory(
    caller: Caller, server: str, uri: str, cursor: str | None
) -> tuple[list[Raw], str | None]:
    """What is in a folder, as its server calls it: the resources, and where the next page begins. A server that does
    not read folders is not asked: what its skills have is known from their entries. Raises `CallError`s; `UsageError`
    for what is no folder."""
    entry = caller.listed(server)
    if entry is None or not entry.known:
        await caller.connect(server)
        await caller.live.router.ref.ask(Sync)
        entry = caller.listed(server)
    if entry is None or not reads_directories(entry.capabilities):
        return _known_directory(caller, server, uri), None
    params = {"uri": uri} if cursor is None else {"uri": uri, "cursor": cursor}
    call = Call("resources/directory/read", params, replayable=True)
    said = await caller.ask(server, call, most=caller.live.config.settings.max_list_bytes)
    listed: object = said.get("resources")
    if not isinstance(listed, list):
        text = f'Server "{server}" answered resources/directory/read without a list of resources.'
        raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
    found, given = list[Raw](), caller.scrubber(server, Scrub.MCP)
    for each in cast("list[Any]", listed)[: caller.live.config.settings.max_list_items]:
        if isinstance(each, dict) and isinstance(cast("Raw", each).get("uri"), str):
            came = cast("Raw", each)
            shown = _without_credentials(came, given)
            if not names_credential(came, shown):
                found.append(shown)
    after: object = said.get("nextCursor")
    return found, after if isinstance(after, str) else None


def _known_directory(caller: Caller, server: str, uri: str) -> list[Raw]:
    skills = caller.index.skills(server)
    for skill in skills:
        if skill.changed is not None and is_within(f"{uri}/", (root_of(skill.original),)):
            raise caller.refused(skill.refusal())
    children = children_of((skill.record for skill in skills), uri)
    if children is None:
        raise UsageError(f'"{unhidden(uri)}" is no folder of a skill of server "{server}".', server=server)
    return [
        {
            "uri": child,
            "name": unquote(child.rpartition("/")[2]),
            **({"mimeType": "inode/directory"} if is_folder else _media_type(child)),
        }
        for child, is_folder in children.items()
    ]


def _media_type(uri: str) -> Raw:
    return {"mimeType": "text/markdown"} if uri.endswith(".md") else {}


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
    introduced_as = target.record["frontmatter"] if path == FILE else None
    given, scrubber = caller.scrubber(target.server, Scrub.MCP), caller.scrubber(target.server, door)
    check = partial(_checked, answer, file, introduced_as, given, scrubber)
    most = LONG_WORK if introduced_as is None else _LONG_YAML
    return await aside(check) if len(answer) >= most else check()


def _checked(
    answer: bytes,
    file: SkillFile | None,
    introduced_as: Raw | None,
    given: Secrets | None,
    scrubber: Secrets | None,
) -> Raw | None:
    """The result with the file, scrubbed. `given`: the secrets that its entry has lost; `introduced_as`: the front
    matter there."""
    if len(answer) >= LARGE_MESSAGE and takes_long_to_decode(answer):
        return None
    try:
        content = content_of(decode_result(answer))
        if content is None or not (len(content) <= SKILL_BYTES if file is None else file.accepts(content)):
            return None
        kept = partial(_without_credentials, secrets=given)
        if introduced_as is not None and not is_introduced_as(introduced_as, content, kept):
            return None
        return decode_result(answer if scrubber is None else scrubber.scrub(answer))
    except WireFault:
        return None


def _without_credentials(record: Raw, secrets: Secrets | None) -> Raw:
    return record if secrets is None else without_credentials(secrets, record)


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
