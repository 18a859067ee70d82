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
from ..actors.workers import LONG_WORK, aside
from ..catalogue.definition_secrets import names_credential, without_credentials
from ..catalogue.entries import Raw
from ..catalogue.namespace import AmbiguousName, MissingName, Target
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
from ..config.argument_checks import name_of
from ..config.model import Scrub
from ..protocol.bounds import ITEM_BYTES, LARGE_MESSAGE, SKILL_BYTES
from ..protocol.errors import AmbiguousTool, ProtocolFault, Reach, UnknownResource, UnknownSkill, UsageError
from ..protocol.jsonrpc.incoming import decode_result
from ..protocol.jsonrpc.terms import WireFault
from ..protocol.safe_text import unhidden
from ..protocol.value_count import takes_long_to_decode

if TYPE_CHECKING:
    from ..config.scrubbing import Secrets
    from .port import RoomPort


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


class SkillReader:
    """Reads skills and their files through a port."""

    def __init__(self, port: RoomPort) -> None:
        self._port = port

    async def current(self, server: str, uri: str) -> Target:
        """The skill whose `SKILL.md` has this URI at its server, as the server says now. Raises `CallError`s and
        `UnknownResource`."""
        call = Call("skills/get", {"uri": uri}, replayable=True)
        said = await self._port.ask(server, call, most=ITEM_BYTES, is_definition=True)
        came: Raw = said.get("skill") or {}
        fault = fault_of(came)
        record = came if fault else _without_credentials(came, self._port.scrubber(server, Scrub.MCP))
        if fault or record["uri"] != uri or names_credential(came, record):
            text = f'Server "{server}" answered skills/get with no usable skill: {fault or "its uri is another"}.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
        known = self._listed(server, uri)
        if known is not None and known != record:
            await self._port.connections.connect_by_name(server)
        if known is None:
            found = self._port.catalogue.index.unlisted_skill(server, record)
        else:
            skills = self._port.catalogue.index.skills(server)
            found = next((skill for skill in skills if skill.original == uri), None)
        if found is None:
            raise UnknownResource(uri)
        return found

    async def read(
        self, name: str, path: str | None = None, server: str | None = None, *, door: Scrub = Scrub.ALL
    ) -> SkillRead:
        """Read a file (None: `SKILL.md`) of the skill called `name` here. Connects its server when needed. Raises
        `CallError`s; `UnknownSkill`, `AmbiguousTool` and `UnknownServer` are among them."""
        path = path or FILE
        target, result = await self._found_and_read(name, path, server, door)
        if result is None:  # the skill may have changed since its server listed it
            await self._port.connections.connect_by_name(target.server)
            target, result = await self._found_and_read(name, path, server, door)
        if result is None:
            text = (
                f'"{path}" of skill "{target.name}" was read and is not shown: it is not what server "{target.server}" '
                "lists, by its size, its digest or its front matter."
            )
            raise ProtocolFault(text, server=target.server, reach=Reach.ANSWERED)
        return SkillRead(target, path, result)

    async def _found_and_read(
        self, name: str, path: str, server: str | None, door: Scrub
    ) -> tuple[Target, Raw | None]:
        """The skill, and the result of reading its file; None: that is not what the entry says."""
        call = Call("resources/read", {"uri": name}, replayable=True)
        self._port.begin(call, server)
        with self._port.until_accepted(call):
            target = await self.find(name, server)
            return target, await self._read(call, target, path, door)

    async def directory(self, server: str, uri: str, cursor: str | None) -> tuple[list[Raw], str | None]:
        """What is in a folder, as its server calls it: the resources, and where the next page begins. A server that
        does not read folders is not asked: what its skills have is known from their entries. Raises `CallError`s;
        `UsageError` for what is no folder."""
        settings = self._port.access.live.config.settings
        entry = self._port.catalogue.listed(server)
        if entry is None or not entry.known:
            await self._port.connections.connect(server)
            await self._port.settled()
            entry = self._port.catalogue.listed(server)
        if entry is None or not reads_directories(entry.capabilities):
            return self._known_directory(server, uri), None
        params = {"uri": uri} if cursor is None else {"uri": uri, "cursor": cursor}
        call = Call("resources/directory/read", params, replayable=True)
        said = await self._port.ask(server, call, most=settings.max_list_bytes)
        listed: object = said.get("resources")
        if not isinstance(listed, list):
            text = f'Server "{server}" answered resources/directory/read without a list of resources.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED)
        found, given = list[Raw](), self._port.scrubber(server, Scrub.MCP)
        for each in cast("list[Any]", listed)[: settings.max_list_items]:
            if isinstance(each, dict) and isinstance(cast("Raw", each).get("uri"), str):
                came = cast("Raw", each)
                shown = _without_credentials(came, given)
                if not names_credential(came, shown):
                    found.append(shown)
        after: object = said.get("nextCursor")
        return found, after if isinstance(after, str) else None

    def _known_directory(self, server: str, uri: str) -> list[Raw]:
        skills = self._port.catalogue.index.skills(server)
        for skill in skills:
            if skill.changed is not None and is_within(f"{uri}/", (root_of(skill.original),)):
                raise skill.refusal()
        children = children_of((skill.record for skill in skills), uri)
        if children is None:
            raise UsageError(
                f'"{unhidden(uri)}" is not a folder of a skill of server "{server}".', server=server
            )
        return [
            {
                "uri": child,
                "name": unquote(child.rpartition("/")[2]),
                **({"mimeType": "inode/directory"} if is_folder else _media_type(child)),
            }
            for child, is_folder in children.items()
        ]

    async def find(self, name: str, server: str | None = None) -> Target:
        """The skill called `name` here. Raises `UnknownSkill`, `AmbiguousTool`, `UnknownServer`, and what kept the
        server from connecting."""
        self._port.catalogue.check_server(server)
        found = self._resolved(name, server)
        wait_by = self._port.connections.wait_by()
        for candidate in found.servers if isinstance(found, MissingName) else ():
            await self._port.connections.connect(candidate, wait_by=wait_by)
            await self._port.settled()
            again = self._resolved(name, server)
            if isinstance(again, Target):
                return again
        if isinstance(found, MissingName):
            raise UnknownSkill(name, [skill.name for skill in self._port.catalogue.index.skills(server)])
        return found

    def _resolved(self, name: str, server: str | None) -> Target | MissingName:
        found = self._port.catalogue.index.resolve_skill(name_of(name, "a skill"), server)
        if isinstance(found, AmbiguousName):
            raise AmbiguousTool(name, found.candidates, what="Skill")
        return found

    async def _read(self, call: Call, target: Target, path: str, door: Scrub) -> Raw | None:
        """The result of reading a file; None: it is not what the entry says. Raises `UnknownSkill` for a file that the
        entry does not have."""
        if target.changed is not None:
            raise target.refusal()
        file = _file(target, path)
        uri = f"{root_of(target.original)}/{path}" if file is None else file.uri
        call.params, call.server = {"uri": uri}, target.server
        self._port.submit(target.server, call)
        answer = await call.wait()
        introduced_as = target.record["frontmatter"] if path == FILE else None
        given, scrubber = (
            self._port.scrubber(target.server, Scrub.MCP),
            self._port.scrubber(target.server, door),
        )
        check = partial(_checked, answer, file, introduced_as, given, scrubber)
        most = LONG_WORK if introduced_as is None else _LONG_YAML
        return await aside(check) if len(answer) >= most else check()

    def _listed(self, server: str, uri: str) -> Raw | None:
        """What the server has listed of the skill, whether it is shown here or not."""
        entry = self._port.catalogue.listed(server)
        records = () if entry is None else entry.skills or ()
        return next((record for record in records if record.get("uri") == uri), None)


def _media_type(uri: str) -> Raw:
    return {"mimeType": "text/markdown"} if uri.endswith(".md") else {}


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
