"""The index: what every exposed name means, as one immutable value.

The router publishes an index and everybody reads it: resolving a name is a dict look-up, with no mailbox
between. It is a pure function of (definitions, entries, settings), so it cannot depend on who connected
first. Rebuilding one is cheap because each server's own part is kept from the previous index unless its
entry or its naming changed; only the merge is done again.

What takes time with thousands of tools is made in slices: `building` an index, and `preparing` what search and
mistaken names need of one. Without that it is made when first asked for, in one go.

A server whose entry is unknown is in the index too, with nothing in it: its prefix still says who to
connect for a name nobody has. A disabled server is not in it at all.

Tools and resources-as-tools share one namespace, prompts have their own under the same rules. Resource URIs
are not names: they pass unchanged, in a space of their own (`_uris`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final, cast

import attrs

from ._fit import Fitted, fit
from ._namespace import Ambiguous, Kind, Missing, Namespace, ServerNames, Target
from ._ranking import Ranking, normalise, tokens
from ._uris import Place, UriSpace, qualified, unqualified
from ._uris import resolve as resolve_uri
from .bounds import FAULTS
from .catalogue import Raw, ServerEntry
from .config import PrefixMode, ServerDefinition, Settings
from .names import MAX_LENGTH, Claim, Proposal, normal, prefix_of, resource_name, selector, spellings
from .slices import Pace, Slices, finish

__all__ = ["Ambiguous", "Counts", "Index", "Kind", "Missing", "Place", "Target", "qualified", "unqualified"]

_ALIKE: Final = 0.8  # of 1: how much of two spellings must agree for one to suggest the other
_A_PIECE: Final = 8  # servers about which nothing has changed
_A_GLANCE: Final = 100  # servers of which only a name is looked at
_MANY: Final = 500  # prompts, resources and templates that are prepared before they are asked for
_COMPARED: Final = 1000  # tools whose spelling is compared for it: ten milliseconds


@attrs.frozen
class Counts:
    """How much of a server is exposed. `callable` is what a person calls its tools: resources included."""

    tools: int
    resources: int
    prompts: int

    @property
    def callable(self) -> int:
        return self.tools + self.resources


@attrs.frozen
class _Naming:
    """What of a definition shapes its names, and where they are shown."""

    mode: PrefixMode
    expose_resources: bool
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    direct: bool | tuple[str, ...]  # which of them a client is shown one by one

    @classmethod
    def of(cls, definition: ServerDefinition, settings: Settings) -> _Naming:
        return cls(
            settings.tool_prefix if definition.tool_prefix is None else definition.tool_prefix,
            definition.expose_resources,
            definition.include_tools,
            definition.exclude_tools,
            settings.direct_tools if definition.direct_tools is None else definition.direct_tools,
        )


@attrs.define(eq=False)
class _Part:
    """One server's contribution, kept from index to index."""

    server: str
    entry: ServerEntry | None
    naming: _Naming
    _tools: ServerNames | None = attrs.field(default=None, init=False)
    _prompts: ServerNames | None = attrs.field(default=None, init=False)
    _misfits: Mapping[tuple[str, str], Fitted] | None = attrs.field(default=None, init=False)
    _faults: tuple[str, ...] | None = attrs.field(default=None, init=False)

    def unless(self, other: _Part | None) -> _Part:
        """`other`, with all it has worked out already, if it says the same; else this one."""
        if other is not None and other.entry is self.entry and other.naming == self.naming:
            return other
        return self

    @cached_property
    def prefix(self) -> str:
        """What its names start with; under `none`, what they start with when they have to be told apart."""
        mode = self.naming.mode
        return normal(prefix_of(self.server, PrefixMode.SERVER if mode is PrefixMode.NONE else mode))

    @property
    def tools(self) -> ServerNames:
        return self._tools or finish(self.reading(Pace()))

    def reading(self, pace: Pace) -> Slices[ServerNames]:
        """Read its tools, unless that is done."""
        if self._tools is None:
            read = chain(self._read("tool", "tools"), self._read("resource", "resources"))
            self._tools = yield from ServerNames.making(filter(self._is_chosen, read), pace)
        return self._tools

    def _is_chosen(self, one: tuple[Proposal, Target]) -> bool:
        include, exclude = self.naming.include, self.naming.exclude
        return (include is None or self._fits(one, include)) and not (exclude and self._fits(one, exclude))

    @property
    def prompts(self) -> ServerNames:
        return self._prompts or finish(self.reading_prompts(Pace()))

    def reading_prompts(self, pace: Pace) -> Slices[ServerNames]:
        """Read its prompts, unless that is done."""
        if self._prompts is None:
            self._prompts = yield from ServerNames.making(self._read("prompt", "prompts"), pace)
        return self._prompts

    @property
    def faults(self) -> tuple[str, ...]:
        """What clients would refuse, in words; of too many the first."""
        if self._faults is None:
            finish(self.fitting(Pace()))
        return self._faults or ()

    @property
    def misfits(self) -> Mapping[tuple[str, str], Fitted]:
        """What clients would not take as it is, by kind and the server's own name for it."""
        return finish(self.fitting(Pace())) if self._misfits is None else self._misfits

    def fitting(self, pace: Pace) -> Slices[Mapping[tuple[str, str], Fitted]]:
        """Look for misfits, unless that is done."""
        if self._misfits is not None:
            return self._misfits
        found: dict[tuple[str, str], Fitted | None] = {}
        for kind, (field, key) in _LISTED.items():
            records: tuple[Raw, ...] | None = getattr(self.entry, field, None)
            for record in records or ():
                who = kind, _text(record, key)
                if who not in found:  # what is listed twice counts once
                    found[who] = fit(kind, record)
                if pace.due():
                    yield
        self._misfits = {who: fitted for who, fitted in found.items() if fitted is not None}
        tasks: list[str] = []
        for target in (yield from self.reading(pace)).targets:
            if target.needs_task:
                tasks.append(_AS_TASK.format(target.original))
            if pace.due():
                yield
        self._faults = _first_faults(tasks, self._misfits)
        return self._misfits

    @cached_property
    def counts(self) -> Counts:
        kinds = [target.kind for target in self.tools.targets]
        return Counts(kinds.count("tool"), kinds.count("resource"), len(self.prompts.targets))

    def _read(self, kind: Kind, field: str) -> Iterator[tuple[Proposal, Target]]:
        """Every usable record on its first proposal; one without a name cannot be called and is passed over."""
        if self.entry is None or (kind == "resource" and not self.naming.expose_resources):
            return
        records: tuple[Raw, ...] | None = getattr(self.entry, field)
        for record in records or ():
            name = _text(record, "name")
            original = _text(record, "uri") if kind == "resource" else name
            if original and name:
                local = resource_name(name) if kind == "resource" else name
                proposal = Proposal.first(Claim(self.server, kind, original, local, self.naming.mode))
                yield proposal, _target(proposal.name, self.server, kind, original, record)

    def _fits(self, one: tuple[Proposal, Target], patterns: tuple[str, ...]) -> bool:
        matches = selector(patterns)
        return any(matches(spelling) for spelling in spellings(self.server, one[0].claim.local))


_LISTED: Final = {
    "tool": ("tools", "name"),
    "prompt": ("prompts", "name"),
    "resource": ("resources", "uri"),
    "template": ("templates", "uriTemplate"),
}


_AS_TASK: Final = 'tool "{}": it runs only as a task, and tasks are not carried (calls are refused)'


def _first_faults(tasks: list[str], misfits: Mapping[tuple[str, str], Fitted]) -> tuple[str, ...]:
    others = (
        f'{kind} "{original}": {"; ".join(fitted.faults)} ({"left out" if fitted.record is None else "mended"})'
        for (kind, original), fitted in misfits.items()
    )
    said = list(islice(chain(tasks, others), FAULTS))
    more = len(tasks) + len(misfits) - len(said)
    return (*said, f"{more:,} more are not named here") if more > 0 else tuple(said)


def _target(name: str, server: str, kind: Kind, original: str, record: Raw) -> Target:
    description = _text(record, "description")
    if kind == "resource":
        return Target(name, server, kind, original, record, description or f"Read resource: {original}", None)
    schema = record.get("inputSchema")
    known = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else None
    return Target(name, server, kind, original, record, description, known)


def _text(record: Raw, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


@attrs.define(eq=False)
class _Search:
    """The ranked index, once it is there; until then how far it is."""

    ranking: Ranking | None = None
    prefixes: Collection[str] = ()  # what a name may start with that says whose it is, in whatever mode
    making: Slices[None] | None = None


@attrs.define(eq=False)
class _Lists:
    """What is made when it is asked for first, unless it was prepared."""

    prompts: Namespace | None = None
    resources: UriSpace | None = None
    templates: UriSpace | None = None


@attrs.frozen(eq=False)
class Index:
    """Every exposed name of a room. Make one with `build`."""

    _parts: Mapping[str, _Part]  # in config order
    _tools: Namespace
    _search: _Search = attrs.field(factory=_Search, init=False)
    _lists: _Lists = attrs.field(factory=_Lists, init=False)

    @classmethod
    def build(
        cls,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry | None],
        settings: Settings,
        *,
        previous: Index | None = None,
    ) -> Index:
        """The index of `servers` (config order) and what is known of them.

        `previous` only makes it quicker: parts are taken from it where the very same entry is named alike.
        """
        return finish(cls.building(servers, entries, settings, previous=previous))

    @classmethod
    def building(
        cls,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry | None],
        settings: Settings,
        *,
        previous: Index | None = None,
    ) -> Slices[Index]:
        """`build`, in slices."""
        pace = Pace()
        kept: Mapping[str, _Part] = {} if previous is None else previous._parts
        parts: dict[str, _Part] = {}
        for number, (name, definition) in enumerate(servers.items()):
            if not definition.disabled:
                part = _Part(name, entries.get(name), _Naming.of(definition, settings))
                parts[name] = part.unless(kept.get(name))
                yield from parts[name].reading(pace)
                _ = parts[name].prefix
            if number % _A_PIECE == 0 and pace.due():
                yield
        by_server: dict[str, ServerNames] = {}
        for number, (name, part) in enumerate(parts.items()):
            by_server[name] = part.tools
            if number % _A_GLANCE == 0 and pace.due():
                yield
        prefixes = yield from _prefixes(parts, pace)
        return cls(parts, (yield from Namespace.merging(by_server, prefixes, pace)))

    # -- tools, and resources as tools --

    def get(self, name: str) -> Target | None:
        """What `name` means, if it is an exposed name, spelled exactly. The hot path: one dict look-up."""
        return self._tools.exact.get(name)

    def resolve(self, name: str, server: str | None = None) -> Target | Ambiguous | Missing:
        """What `name` means, leniently: hyphen equals underscore; with a `server`, its own names count.

        Never guesses: `Ambiguous` lists the candidates. `Missing` names the servers that are worth connecting
        before giving up.
        """
        return self._tools.resolve(name, server)

    def is_direct(self, target: Target) -> bool:
        """Whether a target is a tool that clients are shown by itself (`directTools`). The definitions that this index
        was made of say so: during a reload the room's may be others already."""
        part = self._parts.get(target.server)
        if part is None or target.kind != "tool":
            return False
        wanted = part.naming.direct
        if isinstance(wanted, bool):
            return wanted
        matches = selector(wanted)
        return any(matches(spelling) for spelling in spellings(target.server, target.original))

    def tools(self, server: str | None = None) -> tuple[Target, ...]:
        """Everything callable, sorted by name; of one server, if given."""
        return self._tools.everything if server is None else self._tools.of(server)

    # -- prompts --

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt, sorted by name; of one server, if given."""
        return self._prompts.everything if server is None else self._prompts.of(server)

    def resolve_prompt(self, name: str, server: str | None = None) -> Target | Ambiguous | Missing:
        """`resolve`, for prompts."""
        return self._prompts.resolve(name, server)

    @property
    def _prompts(self) -> Namespace:
        return self._lists.prompts or finish(self._merging_prompts(Pace()))

    def _merging_prompts(self, pace: Pace) -> Slices[Namespace]:
        by_server: dict[str, ServerNames] = {}
        for name, part in self._parts.items():
            by_server[name] = yield from part.reading_prompts(pace)
        self._lists.prompts = yield from Namespace.merging(by_server, self._tools.prefixes, pace)
        return self._lists.prompts

    # -- resources and their templates --

    def resources(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource, sorted by URI; of one server, if given."""
        return self._resources.everything if server is None else self._resources.of_server(server)

    def templates(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource template, sorted by URI; of one server, if given."""
        return self._templates.everything if server is None else self._templates.of_server(server)

    def resolve_uri(self, uri: str) -> Place | Ambiguous | Missing:
        """Where `uri` is read: a listed resource, a qualified URI, or one that a single server's template makes."""
        return resolve_uri(uri, self._entries, self._resources, self._templates)

    def lists_resource(self, uri: str) -> bool:
        """Whether any server lists `uri`, or several do, and whose it is has to be said."""
        return uri in self._resources.exact or uri in self._resources.contested

    def resolve_template(self, uri: str) -> Place | Ambiguous | Missing:
        """Whose template `uri` is, as it stands in `templates()`."""
        return resolve_uri(uri, self._entries, self._templates, _NO_URIS)

    @cached_property
    def _entries(self) -> Mapping[str, ServerEntry | None]:
        return {name: part.entry for name, part in self._parts.items()}

    @property
    def _resources(self) -> UriSpace:
        return self._lists.resources or finish(self._reading_resources(Pace()))

    def _reading_resources(self, pace: Pace) -> Slices[UriSpace]:
        self._lists.resources = yield from UriSpace.making(self._readable, "resources", "uri", pace)
        return self._lists.resources

    @property
    def _templates(self) -> UriSpace:
        return self._lists.templates or finish(self._reading_templates(Pace()))

    def _reading_templates(self, pace: Pace) -> Slices[UriSpace]:
        self._lists.templates = yield from UriSpace.making(self._readable, "templates", "uriTemplate", pace)
        return self._lists.templates

    def preparing_lists(self) -> Slices[None]:
        """Make what the lists of prompts, resources and templates need, in slices, where there are many. Else they are
        made when they are asked for first."""
        entries = [entry for entry in self._entries.values() if entry is not None]
        many = sum(
            len(entry.prompts or ()) + len(entry.resources or ()) + len(entry.templates or ())
            for entry in entries
        )
        if many >= _MANY:
            pace = Pace()
            yield from self._merging_prompts(pace)
            yield from self._reading_resources(pace)
            yield from self._reading_templates(pace)

    @property
    def _readable(self) -> Mapping[str, ServerEntry | None]:
        return {name: part.entry for name, part in self._parts.items() if part.naming.expose_resources}

    # -- servers --

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers in it, in config order."""
        return tuple(self._parts)

    @property
    def unknown_servers(self) -> tuple[str, ...]:
        """Those of which nothing is known yet, in config order."""
        return tuple(name for name, part in self._parts.items() if part.entry is None or not part.entry.known)

    def counts(self, server: str) -> Counts | None:
        """How much of `server` is exposed; None when nothing is known of it."""
        part = self._parts.get(server)
        return None if part is None or part.entry is None or not part.entry.known else part.counts

    def as_listed(self, kind: str, server: str, original: str, record: Raw) -> Raw | None:
        """`record` as clients can read it: itself nearly always, or mended; None when it must be left out of lists."""
        part = self._parts.get(server)
        fitted = None if part is None else part.misfits.get((kind, original))
        return record if fitted is None else fitted.record

    def fitting(self, server: str) -> Slices[None]:
        """Make what `faults` and `as_listed` need of `server`, in slices."""
        part = self._parts.get(server)
        if part is not None:
            yield from part.fitting(Pace())

    def faults(self, server: str) -> tuple[str, ...]:
        """What of `server`'s lists clients would refuse, in words: each item with what was done about it. Of too many
        the first, then how many more there are."""
        part = self._parts.get(server)
        return () if part is None else part.faults

    # -- search --

    @property
    def ranking(self) -> Ranking:
        """The ranked index over `tools()`; `search` is its door. Made at the first search, unless it was prepared."""
        finish(self.preparing())
        assert self._search.ranking is not None
        return self._search.ranking

    def preparing_names(self) -> Slices[None]:
        """Make what `resolve` needs for a name that is not exposed as it is said."""
        return self._tools.preparing(Pace())

    def preparing(self) -> Slices[None]:
        """Make what `search` and `suggest` need. Whoever asks while it is being made, in the same loop, helps."""
        search = self._search
        if search.ranking is None and search.making is None:
            search.making = self._make_ranking()
        while search.ranking is None and search.making is not None:
            try:
                next(search.making)
            except StopIteration:
                search.making = None
            else:
                yield

    def _make_ranking(self) -> Slices[None]:
        yield from self.preparing_names()
        said, pace = set[str](), Pace()
        for number, server in enumerate(self._parts):
            said.update(normal(prefix_of(server, mode)) + "_" for mode in _MODES)
            if number % _A_PIECE == 0 and pace.due():
                yield
        self._search.prefixes = said
        self._search.ranking = yield from Ranking.making(target.document for target in self.tools())

    def suggest(self, name: str, limit: int = 5) -> tuple[str, ...]:
        """Up to `limit` exposed names that a mistaken `name` may have meant, the likeliest first: those spelled
        almost like it, then those that share words with it."""
        name = name[: 4 * MAX_LENGTH]  # what is longer was never a name
        bare = self._unprefixed(name)
        words = " ".join(word for word in tokens(normalise(bare)) if len(word) > 1)
        sharing = (self.tools()[number].name for number, _ in self.ranking.rank(words, limit)[0])
        likeliest = dict.fromkeys((*self._almost(name, limit), *self._almost(bare, limit), *sharing))
        return tuple(likeliest)[:limit]

    def _almost(self, name: str, limit: int) -> list[str]:
        """The names of tools spelled almost like `name`. Of too many, none: comparing takes its time."""
        if len(self.tools()) > _COMPARED or len(name) > 2 * MAX_LENGTH:
            return []
        import difflib  # only ever needed for a mistake

        names = {normal(said): tool.name for tool in self.tools() for said in (tool.original, tool.name)}
        return [names[near] for near in difflib.get_close_matches(normal(name), names, limit, _ALIKE)]

    def _unprefixed(self, name: str) -> str:
        """`name` without the longest server prefix it starts with, in whatever mode that is spelled."""
        key = normal(name)
        finish(self.preparing())
        ends = [end for end in range(1, len(key) + 1) if key[:end] in self._search.prefixes]
        return name[max(ends, default=0) :]


_MODES: Final = (PrefixMode.SERVER, PrefixMode.SHORT)
_NO_URIS: Final = UriSpace({}, {})


def _prefixes(parts: Mapping[str, _Part], pace: Pace) -> Slices[dict[str, tuple[str, ...]]]:
    found: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(sorted(parts)):
        prefix = parts[name].prefix
        found[prefix] = (*found.get(prefix, ()), name)
        if number % _A_GLANCE == 0 and pace.due():
            yield
    return found
