"""What the direct door lists: every server's own objects, under the names of the index, sorted.

The lists come from the catalogue, so listing starts nothing. Only the name (also of a prompt; of a resource,
the URI) is replaced, and only where it differs from the server's own. An item that clients would refuse is
listed in a form they can read, or left out, because they would refuse the whole list with it
(`catalogue.schema_repair`). Resources are listed as resources here; elsewhere they are tools.

A skill that has changed is not listed until its owner accepts it: a client binds what it allows to the digests that it
was told. `directTools` chooses tools server by server. A tool that is not chosen does not exist here, even for a client
that knows its name.

The lists of an index are kept until there is a new index. Only a changed text of a list counts as a change:
digests are compared. With thousands of tools both are work for a thread, so that nobody waits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ...actors.workers import CATALOGUE, MANY_ITEMS, aside
from ...catalogue.hidden_characters import unhidden_record
from ...catalogue.index import Index
from ...catalogue.namespace import ResourceEntry, Target, qualified
from ...catalogue.schema_repair import fit
from ...catalogue.skills import DYNAMIC, files_of
from ...protocol import jsonrpc as rpc
from ...protocol.safe_text import unhidden
from ...protocol.version_differences import older_tool
from ..message_origin import without_ours
from ..next_steps import PLAIN, Commands

if TYPE_CHECKING:
    from ...supervisor.port import RoomCatalogue
    from ...supervisor.profiles import ProfileView

LISTS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
    "skills/list": "skills",
}
_DIGESTED: Final = 500  # items at a time: the encoder keeps the interpreter's lock
_NOTHING: Final = hashlib.sha256().digest()  # of an empty list
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# What is announced -> the lists it is about.
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list", "skills/list"),
    "notifications/prompts/list_changed": ("prompts/list",),
}


class _ListAnswers(msgspec.Struct, frozen=True, eq=False):
    """The answers to list requests, made from one index."""

    index: Index
    lists: Mapping[str, Mapping[str, Any]]
    older_tools: Mapping[str, Any]  # for clients that speak by handshake

    def digests(self) -> dict[str, bytes]:
        digests: dict[str, bytes] = {}
        for method, found in self.lists.items():
            digest, items = hashlib.sha256(), found[LISTS[method]]
            for start in range(0, len(items), _DIGESTED):
                digest.update(rpc.encode(items[start : start + _DIGESTED]))
            digests[method] = digest.digest()
        return digests


class ShownLists:
    """The lists of the direct door, and which changes of them the clients were told of.

    `beside`: only the chosen tools, which are shown beside the `mcp` tool. `listed_none`: the clients were shown empty
    lists until now. `listed`: they were shown these lists. Otherwise they were shown nothing yet, or what is shown now.
    `commands`: the commands that texts for clients name.
    """

    def __init__(
        self,
        catalogue: RoomCatalogue | ProfileView,
        commands: Commands = PLAIN,
        *,
        beside: bool = False,
        listed_none: bool = False,
        listed: ShownLists | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._commands = commands
        self._beside = beside
        self._made: _ListAnswers | None = None
        self._digests: dict[str, bytes] = {}
        self._index: Index | None = None
        self._found: dict[str, Target] = {}  # tools of this index that were called, and are shown
        if listed is not None:
            self._digests = listed._digests
        elif not listed_none:
            self.changes()

    def listing(self, method: str, *, modern: bool) -> Mapping[str, Any] | None:
        made = self._now()
        if method == "tools/list" and not modern:
            return made.older_tools
        return made.lists.get(method)

    def tool(self, name: str) -> Target | None:
        """A tool that is shown under this very name."""
        return self.tool_in(self._catalogue.index, name)

    def tool_in(self, index: Index, name: str) -> Target | None:
        """The tool that is shown under this very name in `index`, which is the index as its caller sees it."""
        if index is not self._index:
            self._index, self._found = index, {}
        target = self._found.get(name)
        if target is None:
            target = index.get(name)
            if target is None or not index.is_direct(target, beside=self._beside):
                return None
            self._found[name] = target  # whether it is chosen is looked up once, not at each call
        return target

    def changes(self) -> list[str]:
        """The notifications that are due since the last call of this or of `look`."""
        return self._compare(self._now().digests())

    async def look(self) -> list[str]:
        """`changes`, with turns for others meanwhile."""
        index = self._catalogue.index
        if index.size < MANY_ITEMS:
            return self.changes()
        self._made = await aside(partial(self._make, index), CATALOGUE)
        return self._compare(await aside(self._made.digests, CATALOGUE))

    def _compare(self, digests: dict[str, bytes]) -> list[str]:
        before, self._digests = self._digests, digests
        changed = {method for method, digest in digests.items() if before.get(method, _NOTHING) != digest}
        return [change for change, lists in CHANGES.items() if not changed.isdisjoint(lists)]

    def as_listed(self, index: Index, target: Target) -> Mapping[str, Any] | None:
        """A tool as it is listed. None: clients would refuse the whole list because of it. Beside the `mcp` tool a
        result is made fit for a model, as results of that tool are, so its structure is not promised. A tool that runs
        only as a task is called here as any other too, and a client that knows tasks might refuse to."""
        record = _named(index, target, self._commands)
        if record is not None and target.needs_task:
            record = {**record, "execution": {"taskSupport": "optional"}}
        if record is None or not self._beside or "outputSchema" not in record:
            return record
        return {key: value for key, value in record.items() if key != "outputSchema"}

    def _now(self) -> _ListAnswers:
        made = self._made = self._make(self._catalogue.index)
        return made

    def _make(self, index: Index) -> _ListAnswers:
        """What this index looks like; what was made of it before, if there is that."""
        if self._made is not None and self._made.index is index:
            return self._made
        shown = (target for target in index.tools() if index.is_direct(target, beside=self._beside))
        named = [self.as_listed(index, target) for target in shown]
        found = (
            {"tools/list": named}
            if self._beside
            else {
                "tools/list": named,
                "resources/list": [
                    _placed(index, "resource", "uri", place, self._commands) for place in index.resources()
                ],
                "resources/templates/list": [
                    _placed(index, "template", "uriTemplate", place, self._commands)
                    for place in index.templates()
                ],
                "prompts/list": [_named(index, target, self._commands) for target in index.prompts()],
                "skills/list": [skill_entry(skill) for skill in index.skills() if skill.changed is None],
            }
        )
        lists = {
            method: {LISTS[method]: [item for item in items if item is not None]}
            for method, items in found.items()
        }
        older = {"tools": [older_tool(tool) for tool in lists["tools/list"]["tools"]]}
        return _ListAnswers(index, lists, older)


def _named(index: Index, target: Target, commands: Commands) -> Mapping[str, Any] | None:
    record = index.as_listed(target.kind, target.server, target.original, target.record)
    if record is not None and target.changed is not None:
        record = {**record, "description": commands.filled(target.description)}
    return None if record is None else _with_page(index, target.server, _under(record, "name", target.name))


def _with_page(index: Index, server: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool of MCP Apps names the page that shows its results (`ui.resourceUri` in `_meta`; one word before 2026). If
    that URI would be read from another server, the tool is listed with the URI that names its own server."""
    meta = record.get("_meta")
    if not isinstance(meta, Mapping):
        return record
    said = cast("Mapping[str, Any]", meta)
    page = said.get("ui")
    new = dict(said)
    if isinstance(page, Mapping):
        new["ui"] = _own_page(index, server, cast("Mapping[str, Any]", page), "resourceUri")
    new = _own_page(index, server, new, "ui/resourceUri")
    return record if new == said else {**record, "_meta": new}


def _own_page(index: Index, server: str, said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    uri = said.get(key)
    if not isinstance(uri, str):
        return said
    place = index.resolve_uri(uri)
    if isinstance(place, ResourceEntry) and place.server == server:
        return {**said, key: place.uri}
    return {**said, key: qualified(server, uri)}


def _placed(
    index: Index, kind: str, key: str, place: ResourceEntry, commands: Commands
) -> Mapping[str, Any] | None:
    """A resource or template as it is listed. Some clients accept no URI without a scheme, so such a URI is
    listed in the spelling that names its server."""
    record = index.as_listed(kind, place.server, place.original, place.record)
    if record is not None and place.changed is not None:
        record = {**record, "description": commands.filled(record["description"])}
    uri = (
        place.uri
        if kind == "template" or _ABSOLUTE.match(place.uri)
        else qualified(place.server, place.original)
    )
    return None if record is None else _under(record, key, uri)


def skill_entry(skill: Target) -> Mapping[str, Any]:
    """A skill as it is listed: what its server says, but for the URIs, which name the server. Some clients accept no
    other fields than these."""
    said, files = skill.record, files_of(skill.record)
    shown = {
        "uri": qualified(skill.server, said["uri"]),
        "frontmatter": said["frontmatter"],
        "resources": DYNAMIC
        if files is None
        else [
            {"uri": qualified(skill.server, file.uri), "digest": file.digest, "size": file.size}
            for file in files
        ],
    }
    if isinstance(said.get("_meta"), Mapping):
        shown["_meta"] = said["_meta"]
    return without_ours(shown)


def directory_entries(
    index: Index, server: str, records: Iterable[Mapping[str, Any]], commands: Commands
) -> list[Mapping[str, Any]]:
    """What is in a folder, as it is listed: under URIs that name the server, like the skill that it belongs to. A
    resource that has changed is shown as in the list of resources."""
    changed = {place.original: place.record for place in index.resources(server) if place.changed is not None}
    found: list[Mapping[str, Any]] = []
    for own in records:
        record = unhidden_record(changed.get(own["uri"], own))[0]
        if own["uri"] in changed:
            record = {**record, "description": commands.filled(record["description"])}
        fitted = fit("resource", record)
        record = record if fitted is None else fitted.record
        if record is not None:
            found.append(_under(record, "uri", qualified(server, unhidden(own["uri"]))))
    return found


def _under(record: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    record = without_ours(record)
    return record if record.get(key) == name else {**record, key: name}
