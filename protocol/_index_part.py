"""One server's part of the index: its names, its misfits and its counts, each worked out when it is first asked for.

A part is kept from one index to the next, unless the server's entry or its naming has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final, cast

import attrs

from ._fit import Fitted, fit
from ._namespace import Kind, ServerNames, Target
from .bounds import FAULTS
from .catalogue import Raw, ServerEntry
from .config import Pinning, PrefixMode, ServerDefinition, Settings
from .names import MAX_LENGTH, Claim, Proposal, normal, prefix_of, resource_name, selector, spellings
from .overrides import ToolOverride, overrides_of
from .pinning import notice
from .plain_text import unhidden
from .slices import Pace, Slices, finish
from .unhiding import hidden_in, hidden_instructions, unhidden_record


@attrs.frozen
class Counts:
    """How much of a server is exposed. `callable` counts tools, and resources that are offered as tools. `changed`: the
    tools that are not as they were first shown, by the server's own names; `flapping`: those that change again and
    again; `hidden`: the items with hidden characters, and which, in words."""

    tools: int
    resources: int
    prompts: int
    changed: tuple[str, ...] = ()
    flapping: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def callable(self) -> int:
        return self.tools + self.resources


@attrs.frozen
class Naming:
    """Those parts of a definition that decide what its names are and where they are shown."""

    mode: PrefixMode
    expose_resources: bool
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    direct: bool | tuple[str, ...]  # which tools a client is shown one by one
    beside: bool | tuple[str, ...]  # which tools a client is shown beside the `mcp` tool
    overrides: Mapping[str, ToolOverride] = attrs.field(factory=dict[str, ToolOverride], hash=False)
    of_any: frozenset[str] = frozenset()  # overridden for whichever server has such a tool
    only: tuple[str, ...] | None = None  # the tools that a profile shows
    longest_name: int = MAX_LENGTH
    pinning: Pinning = Pinning.QUARANTINE

    @classmethod
    def of(cls, definition: ServerDefinition, settings: Settings) -> Naming:
        beside = definition.direct_tools
        if (
            beside is None
        ):  # all tools of all servers beside the one that spares showing them: nobody means that
            beside = settings.direct_tools if isinstance(settings.direct_tools, tuple) else False
        return cls(
            settings.tool_prefix if definition.tool_prefix is None else definition.tool_prefix,
            definition.expose_resources,
            definition.include_tools,
            definition.exclude_tools,
            settings.direct_tools if definition.direct_tools is None else definition.direct_tools,
            beside,
            overrides_of(definition.tool_overrides, overrides_of(settings.tool_overrides)),
            frozenset(settings.tool_overrides.keys() - definition.tool_overrides.keys()),
            longest_name=settings.longest_name,
            pinning=definition.pinning or settings.pinning,
        )


@attrs.define(eq=False)
class Part:
    """One server's contribution, kept from index to index."""

    server: str
    entry: ServerEntry | None
    naming: Naming
    made_of: tuple[ServerDefinition, Settings]  # what `naming` was made of: with the same two it is the same
    _tools: ServerNames | None = attrs.field(default=None, init=False)
    _prompts: ServerNames | None = attrs.field(default=None, init=False)
    _misfits: Mapping[tuple[str, str], Fitted] | None = attrs.field(default=None, init=False)
    _faults: tuple[str, ...] | None = attrs.field(default=None, init=False)
    _hidden_places: tuple[str, ...] = attrs.field(default=(), init=False)  # found with the misfits

    def unless(self, other: Part | None) -> Part:
        """`other`, with all that it has already computed, if it has the same content; else this part."""
        if other is not None and other.entry is self.entry and other.naming == self.naming:
            other.made_of = self.made_of
            return other
        return self

    @classmethod
    def of(
        cls, definition: ServerDefinition, settings: Settings, entry: ServerEntry | None, kept: Part | None
    ) -> Part:
        """The part of this server; `kept` itself if it has the same content."""
        if kept is not None and kept.made_of[0] is definition and kept.made_of[1] is settings:
            same = kept.entry is entry
            return kept if same else cls(kept.server, entry, kept.naming, kept.made_of)
        naming = Naming.of(definition, settings)
        return cls(definition.name, entry, naming, (definition, settings)).unless(kept)

    @cached_property
    def prefix(self) -> str:
        """What its names start with. Under `none`: what they start with when two servers want the same name."""
        mode = self.naming.mode
        return normal(prefix_of(self.server, PrefixMode.SERVER if mode is PrefixMode.NONE else mode))

    @property
    def tools(self) -> ServerNames:
        return self._tools or finish(self.reading(Pace()))

    def reading(self, pace: Pace) -> Slices[ServerNames]:
        """Read its tools, unless they were read before."""
        if self._tools is None:
            read = chain(self._read("tool", "tools"), self._read("resource", "resources"))
            self._tools = yield from ServerNames.making(filter(self._is_chosen, read), pace)
        return self._tools

    def narrowed(self, tools: tuple[str, ...] | None, said: Mapping[str, Any] | None = None) -> Part:
        """This part with only those of its tools that one of the patterns matches (None: all), and with further
        overrides, as a profile says them."""
        overrides = overrides_of(said or {}, self.naming.overrides)
        naming = attrs.evolve(self.naming, only=tools, overrides=overrides)
        return Part(self.server, self.entry, naming, self.made_of)

    def saying(self, entry: ServerEntry) -> Part:
        """This part, if its server had listed this."""
        return Part(self.server, entry, self.naming, self.made_of)

    def _is_chosen(self, one: tuple[Proposal, Target]) -> bool:
        include, exclude, only = self.naming.include, self.naming.exclude, self.naming.only
        if only is not None and not self._fits(one, only):
            return False
        return (include is None or self._fits(one, include)) and not (exclude and self._fits(one, exclude))

    @property
    def prompts(self) -> ServerNames:
        return self._prompts or finish(self.reading_prompts(Pace()))

    def reading_prompts(self, pace: Pace) -> Slices[ServerNames]:
        """Read its prompts, unless they were read before."""
        if self._prompts is None:
            self._prompts = yield from ServerNames.making(self._read("prompt", "prompts"), pace)
        return self._prompts

    @property
    def faults(self) -> tuple[str, ...]:
        """What clients would refuse, in words. When there is too much, only the first."""
        if self._faults is None:
            finish(self.fitting(Pace()))
        return self._faults or ()

    @property
    def misfits(self) -> Mapping[tuple[str, str], Fitted]:
        """The items that clients would refuse as they are, by kind and by the server's own name for them."""
        return finish(self.fitting(Pace())) if self._misfits is None else self._misfits

    def fitting(self, pace: Pace) -> Slices[Mapping[tuple[str, str], Fitted]]:
        """Look for misfits, unless that was done before."""
        if self._misfits is not None:
            return self._misfits
        found: dict[tuple[str, str], Fitted | None] = {}
        hidden: list[str] = []
        shown: set[str] | None = None
        if self.naming.only is not None:  # nobody who sees only these may learn of others
            shown = {target.original for target in (yield from self.reading(pace)).targets}
        for kind, (field, key) in _LISTED.items():
            records: tuple[Raw, ...] | None = getattr(self.entry, field, None)
            for record in records or ():
                who = kind, _text(record, key)
                if kind == "tool" and (
                    (shown is not None and who[1] not in shown) or self._quarantined(who[1]) is not None
                ):
                    continue
                if who not in found:  # an item that is listed twice counts once
                    override, shown_record = self._override(kind, who[1]), unhidden_record(record)[0]
                    found[who] = fit(kind, shown_record if override is None else override.shown(shown_record))
                    if kind in _PLACES and shown_record is not record and (odd := hidden_in(record)):
                        hidden.append(f'{kind} "{unhidden(who[1])}": {odd}')
                if pace.due():
                    yield
        self._hidden_places = tuple(hidden)
        self._misfits = {who: fitted for who, fitted in found.items() if fitted is not None}
        tasks = list(self._misfit_overrides())
        for target in (yield from self.reading(pace)).targets:
            if target.needs_task:
                tasks.append(_AS_TASK.format(target.original))
            if pace.due():
                yield
        self._faults = _first_faults(tasks, self._misfits)
        return self._misfits

    def _override(self, kind: str, original: str) -> ToolOverride | None:
        return self.naming.overrides.get(original) if kind == "tool" and self.naming.overrides else None

    def _keeps_name(self, original: str) -> bool:
        override = self.naming.overrides.get(original)
        return override is None or not (override.hide or override.rename)

    def _misfit_overrides(self) -> Iterator[str]:
        """The overrides that do not fit what the server has, in words. A profile that shows only some tools tells its
        clients nothing of the others."""
        if not self.naming.overrides or self.naming.only is not None:
            return
        if self.entry is None or self.entry.tools is None:
            return
        records = {_text(record, "name"): unhidden_record(record)[0] for record in self.entry.tools}
        for name, override in self.naming.overrides.items():
            if self._quarantined(name) is not None or (name not in records and name in self.naming.of_any):
                continue
            taken = override.rename
            if taken in records and taken != name and not override.hide and self._keeps_name(taken):
                yield f'toolOverrides of "{name}": another tool is called "{taken}" (both get longer names)'
                continue
            faults = override.faults(records[name]) if name in records else ["the server has no such tool"]
            if faults and not override.hide:
                then = " (left out until that is mended)" if name in records else ""
                yield f'toolOverrides of "{name}": {"; ".join(faults)}{then}'

    @cached_property
    def counts(self) -> Counts:
        kinds = [target.kind for target in self.tools.targets]
        changed = self._changed()
        flaps = frozenset[str]()
        if self.entry is not None and self.naming.pinning is Pinning.QUARANTINE:
            flaps = self.entry.pinned.flapping
        return Counts(
            kinds.count("tool"),
            kinds.count("resource"),
            len(self.prompts.targets),
            changed,
            tuple(tool for tool in changed if tool in flaps),
            tuple(islice(self._hidden(), FAULTS)),
        )

    def _hidden(self) -> Iterator[str]:
        """The items with hidden characters, and which: also resources that are offered as no tool, templates, and what
        the server says about itself."""
        if found := self.entry and hidden_instructions(self.entry.instructions):
            yield f"instructions: {found}"
        for target in (*self.tools.targets, *self.prompts.targets):
            if target.hidden and target.kind != "resource":
                yield f'{target.kind} "{unhidden(target.original)}": {target.hidden}'
        _ = self.misfits
        yield from self._hidden_places

    def _read(self, kind: Kind, field: str) -> Iterator[tuple[Proposal, Target]]:
        """Every usable record with its first proposal. A record without a name cannot be called and is skipped."""
        if self.entry is None or (kind == "resource" and not self.naming.expose_resources):
            return
        records: tuple[Raw, ...] | None = getattr(self.entry, field)
        for record in records or ():
            name = _text(record, "name")
            original = _text(record, "uri") if kind == "resource" else name
            if original and name:
                local = resource_name(name) if kind == "resource" else name
                changed = self._quarantined(original) if kind == "tool" else None
                override, hidden = self._override(kind, original), ""
                if changed is not None:
                    record, spelled = _in_quarantine(self.server, name, changed), None
                else:
                    own, (record, spelled) = record, unhidden_record(record)
                    hidden = hidden_in(own) if record is not own else ""
                if override is not None:
                    if override.hide or (changed is None and override.faults(record)):
                        continue
                    local = override.rename or name
                    record = record if changed is not None else override.shown(record)
                if spelled is not None:
                    override = attrs.evolve(override or ToolOverride(), spelled=spelled)
                proposal = Proposal.first(
                    Claim(self.server, kind, original, local, self.naming.mode, self.naming.longest_name)
                )
                target = _target(proposal.name, self.server, kind, original, record, override, changed)
                yield proposal, attrs.evolve(target, hidden=hidden) if hidden else target

    def _quarantined(self, tool: str) -> tuple[str, ...] | None:
        """What has changed of a tool that must not be called for that; None: it may be."""
        entry = self.entry
        if entry is None or self.naming.pinning is not Pinning.QUARANTINE:
            return None
        return entry.pinned.changed.get(tool)

    def _changed(self) -> tuple[str, ...]:
        entry = self.entry
        if entry is None or not entry.pinned.changed or self.naming.pinning is Pinning.OFF:
            return ()
        return tuple(
            target.original for target in self.tools.targets if target.original in entry.pinned.changed
        )

    def is_direct(self, target: Target, *, beside: bool) -> bool:
        """Whether clients are shown this target as a tool with its own name, or are beside the `mcp` tool."""
        wanted = self.naming.beside if beside else self.naming.direct
        if target.kind != "tool" or isinstance(wanted, bool):
            return target.kind == "tool" and wanted is True
        return self._matches(selector(wanted), target.own_name, target)

    def _fits(self, one: tuple[Proposal, Target], patterns: tuple[str, ...]) -> bool:
        return self._matches(selector(patterns), one[0].claim.local, one[1])

    def _matches(self, matches: Callable[[str], bool], local: str, target: Target) -> bool:
        """A renamed tool may be written by either name: whoever leaves it out means it under both."""
        names = (local,) if target.own_name == target.original else (local, target.original)
        return any(matches(spelling) for name in names for spelling in spellings(self.server, name))


_LISTED: Final = {
    "tool": ("tools", "name"),
    "prompt": ("prompts", "name"),
    "resource": ("resources", "uri"),
    "template": ("templates", "uriTemplate"),
}


_PLACES: Final = ("resource", "template")
_AS_TASK: Final = 'tool "{}": it runs only as a task, and tasks are not supported (calls are refused)'


def _first_faults(tasks: list[str], misfits: Mapping[tuple[str, str], Fitted]) -> tuple[str, ...]:
    others = (
        f'{kind} "{original}": {"; ".join(fitted.faults)} ({"left out" if fitted.record is None else "mended"})'
        for (kind, original), fitted in misfits.items()
    )
    said = list(islice(chain(tasks, others), FAULTS))
    more = len(tasks) + len(misfits) - len(said)
    said = [unhidden(one) for one in said]
    return (*said, f"{more:,} more are not named here") if more > 0 else tuple(said)


def _target(
    name: str,
    server: str,
    kind: Kind,
    original: str,
    record: Raw,
    override: ToolOverride | None,
    changed: tuple[str, ...] | None,
) -> Target:
    description = _text(record, "description")
    if kind == "resource":
        return Target(
            name, server, kind, original, record, description or f"Read resource: {unhidden(original)}", None
        )
    schema = record.get("inputSchema")
    known = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else None
    return Target(name, server, kind, original, record, description, known, override, changed)


def _in_quarantine(server: str, name: str, changed: tuple[str, ...]) -> Raw:
    """What is shown of a tool that has changed: nothing that its server says now."""
    return {"name": name, "description": notice(server, name, changed), "inputSchema": {"type": "object"}}


def _text(record: Raw, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""
