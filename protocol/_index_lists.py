"""What an index has besides tools: prompts, resources and resource templates.

Each of the three tables is made in slices beforehand, or else when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import attrs

from ._index_part import Part
from ._namespace import Namespace, ServerNames
from ._uris import UriSpace
from .catalogue import ServerEntry
from .slices import Pace, Slices, finish

_MANY: Final = 500  # from this many prompts, resources and templates on, their tables are made beforehand


@attrs.define(eq=False)
class Lists:
    _parts: Mapping[str, Part]
    _prefixes: Mapping[str, tuple[str, ...]]
    _prompts: Namespace | None = attrs.field(default=None, init=False)
    _resources: UriSpace | None = attrs.field(default=None, init=False)
    _templates: UriSpace | None = attrs.field(default=None, init=False)

    @property
    def prompts(self) -> Namespace:
        return self._prompts or finish(self._merging_prompts(Pace()))

    @property
    def resources(self) -> UriSpace:
        return self._resources or finish(self._reading_resources(Pace()))

    @property
    def templates(self) -> UriSpace:
        return self._templates or finish(self._reading_templates(Pace()))

    @cached_property
    def entries(self) -> Mapping[str, ServerEntry | None]:
        """What is known of each server."""
        return {name: part.entry for name, part in self._parts.items()}

    def preparing(self) -> Slices[None]:
        """Make all three tables in slices, if there are many items."""
        entries = [entry for entry in self.entries.values() if entry is not None]
        many = sum(
            len(entry.prompts or ()) + len(entry.resources or ()) + len(entry.templates or ())
            for entry in entries
        )
        if many >= _MANY:
            pace = Pace()
            yield from self._merging_prompts(pace)
            yield from self._reading_resources(pace)
            yield from self._reading_templates(pace)

    def _merging_prompts(self, pace: Pace) -> Slices[Namespace]:
        by_server: dict[str, ServerNames] = {}
        for name, part in self._parts.items():
            by_server[name] = yield from part.reading_prompts(pace)
        self._prompts = yield from Namespace.merging(by_server, self._prefixes, pace)
        return self._prompts

    def _reading_resources(self, pace: Pace) -> Slices[UriSpace]:
        self._resources = yield from UriSpace.making(self._readable, "resources", "uri", pace)
        return self._resources

    def _reading_templates(self, pace: Pace) -> Slices[UriSpace]:
        self._templates = yield from UriSpace.making(self._readable, "templates", "uriTemplate", pace)
        return self._templates

    @property
    def _readable(self) -> Mapping[str, ServerEntry | None]:
        return {name: part.entry for name, part in self._parts.items() if part.naming.expose_resources}
