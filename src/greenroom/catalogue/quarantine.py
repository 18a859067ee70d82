"""What of a server must not be used, because it has changed: looked up for each request to that server.

A tool and a prompt are known by their names. A resource is known by its URI in any spelling (`catalogue.uri_spelling`),
and a skill by any URI in its folder. A template that has changed keeps every URI out that would fit it, unless the
server lists that very URI. Completion for a prompt or a template counts as using it. `skills/get` and the lists are
let through: how an item is now must be learned, and whoever shows it looks at its state first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from .entries import ServerEntry
from .fingerprints import kind_of, original_of, pin_name
from .namespace import template_fits
from .skills import root_of
from .uri_spelling import normal_uri, without_query

_COMPARED: Final = 16_384  # characters of a URI; a longer one, which nobody lists, might be any of them


class Quarantine(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What of a server must not be used, made for looking up each call. `changed`: by the names under which the items
    are remembered, what has changed. `entry`: what the server has listed."""

    changed: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    entry: ServerEntry | None = None

    def __bool__(self) -> bool:
        return bool(self.changed)

    def pin_of(self, method: str, params: Mapping[str, Any]) -> str | None:
        """The name under which that is remembered which the request would use; None: it may be sent."""
        match method, params:
            case "tools/call", {"name": str(name)}:
                return self._known("tool", name)
            case "prompts/get", {"name": str(name)}:
                return self._known("prompt", name)
            case "completion/complete", {"ref": {"type": "ref/prompt", "name": str(name)}}:
                return self._known("prompt", name)
            case "completion/complete", {"ref": {"type": "ref/resource", "uri": str(uri)}}:
                return self._known("template", uri) or self._at(uri)
            case (("resources/read" | "resources/subscribe" | "resources/directory/read"), {"uri": str(uri)}):
                return self._at(uri)
            case _:
                return None

    def _known(self, kind: str, original: str) -> str | None:
        pin = pin_name(kind, original)
        return pin if pin in self.changed else None

    def _at(self, uri: str) -> str | None:
        resource = self._known("resource", uri)
        if resource is not None or not (self._folders or self._places or self._templates):
            return resource
        if len(uri) > _COMPARED:
            return None if uri in self._listed else next(self._pins_of_uris)
        normal = normal_uri(uri)
        for folder, pin in self._folders:
            if normal == folder or normal.startswith((folder + "/", folder + "?")):
                return pin
        if uri in self._listed:
            return None
        spelled = self._places.get(normal) or self._places.get(without_query(normal))
        if spelled is not None:
            return spelled
        return next((pin for template, pin in self._templates if template_fits(template, uri)), None)

    @property
    def _pins_of_uris(self) -> Iterator[str]:
        return (pin for pin in self.changed if kind_of(pin) in ("skill", "resource", "template"))

    @cached_property
    def _listed(self) -> Collection[str]:
        """The resources that the server lists. (Those that have changed are found before.)"""
        listed = self.entry.resources or () if self.entry is not None else ()
        return frozenset(uri for record in listed if isinstance(uri := record.get("uri"), str))

    @cached_property
    def _folders(self) -> Sequence[tuple[str, str]]:
        skills = [pin for pin in self.changed if kind_of(pin) == "skill"]
        return [(normal_uri(root_of(original_of(pin))), pin) for pin in skills]

    @cached_property
    def _places(self) -> Mapping[str, str]:
        return {normal_uri(original_of(pin)): pin for pin in self.changed if kind_of(pin) == "resource"}

    @cached_property
    def _templates(self) -> Sequence[tuple[str, str]]:
        return [(original_of(pin), pin) for pin in self.changed if kind_of(pin) == "template"]


NOTHING: Final = Quarantine()
