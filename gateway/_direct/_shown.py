"""What the direct door lists: every server's own objects, under the names of the index, sorted.

It comes from the catalogue, so listing starts nothing. Only the name (a prompt's too, a resource's URI) is replaced,
and only where it is not the server's own. Resources are listed as resources, not as the tools they are elsewhere.
`directTools` chooses tools server by server; what is not chosen is not there at all, also for whoever knows its name.

What was made of an index is kept until there is another one. A change counts when the text of a list changes, not when
somebody says so: `changes` compares digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from ...protocol.index import Index, Target
from ...protocol.names import selector, spellings
from .. import _rpc as rpc
from .._room import Room

LISTS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
# What is announced -> the lists it is about.
NEWS: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/prompts/list_changed": ("prompts/list",),
}


@attrs.frozen(eq=False)
class _Made:
    """What one index looks like at the door."""

    index: Index
    tools: Mapping[str, Target]
    lists: Mapping[str, Mapping[str, Any]]


class Shown:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._made: _Made | None = None
        self._digests: dict[str, bytes] = {}
        self._digests = self._digest()

    def listing(self, method: str) -> Mapping[str, Any] | None:
        return self._now().lists.get(method)

    def tool(self, name: str) -> Target | None:
        """A tool that is shown under this very name."""
        return self._now().tools.get(name)

    def is_chosen(self, target: Target) -> bool:
        """Whether a target is a tool of this door at all."""
        if target.kind != "tool":
            return False
        config = self._room.config
        wanted = config.servers[target.server].direct_tools
        if wanted is None:
            wanted = config.settings.direct_tools
        if isinstance(wanted, bool):
            return wanted
        matches = selector(wanted)
        return any(matches(spelling) for spelling in spellings(target.server, target.original))

    def changes(self) -> list[str]:
        """The notifications that are due since this was asked last."""
        before, self._digests = self._digests, self._digest()
        changed = {method for method, digest in self._digests.items() if before[method] != digest}
        return [news for news, lists in NEWS.items() if not changed.isdisjoint(lists)]

    def _now(self) -> _Made:
        index = self._room.index
        if self._made is None or self._made.index is not index:
            self._made = self._make(index)
        return self._made

    def _make(self, index: Index) -> _Made:
        tools = {target.name: target for target in index.tools() if self.is_chosen(target)}
        found = {
            "tools/list": [_named(target) for target in tools.values()],
            "resources/list": [_placed(place.record, "uri", place.uri) for place in index.resources()],
            "resources/templates/list": [
                _placed(place.record, "uriTemplate", place.uri) for place in index.templates()
            ],
            "prompts/list": [_named(target) for target in index.prompts()],
        }
        return _Made(index, tools, {method: {LISTS[method]: items} for method, items in found.items()})

    def _digest(self) -> dict[str, bytes]:
        lists = self._now().lists
        return {method: hashlib.sha256(rpc.encode(found)).digest() for method, found in lists.items()}


def _named(target: Target) -> Mapping[str, Any]:
    return _placed(target.record, "name", target.name)


def _placed(record: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    return record if record.get(key) == name else {**record, key: name}
