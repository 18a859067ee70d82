"""The index: what every exposed name means, as one immutable value.

The router publishes an index and everybody reads it: resolving a name is a dict look-up, without a mailbox. An index is
a pure function of (definitions, entries, settings), so it cannot depend on which server connected first. Rebuilding it
is cheap: each server's part is kept from the previous index unless its entry or its naming changed, and the table of
prefixes is kept unless a naming changed. Only the merge is done again. This matters: when twenty thousand servers are
asked one after the other, an index is made for each of them, and every call waits for one.

Work that takes time with thousands of tools is done in slices: `building` makes an index, and `preparing` makes what
search and mistaken names need. Without them the same work is done in one go when it is first needed.

A server whose entry is unknown is in the index too, with nothing in it. Its prefix still tells which server to connect
for a name that no server is known to have. A disabled server is not in the index.

Tools and resources offered as tools share one namespace. Prompts have another one with the same rules. Resource URIs
are not names: they pass unchanged, in a table of their own (`namespace`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final, cast

import attrs

from ..config.model import Pinning, PrefixMode, ServerDefinition, Settings, normal, selector
from ..protocol.bounds import FAULTS
from ..protocol.cooperative import Pace, Slices, finish
from ..protocol.safe_text import unhidden
from .entries import Raw, ServerEntry
from .fingerprints import notice
from .hidden_characters import hidden_in, hidden_instructions, unhidden_record
from .names import MAX_LENGTH, Claim, Proposal, prefix_of, resource_name, spellings
from .namespace import Ambiguous, Kind, Missing, Namespace, Place, ServerNames, Target, UriSpace
from .namespace import resolve as resolve_uri
from .overrides import ToolOverride, overrides_of
from .ranking import Ranking
from .schema_repair import Fitted, fit
from .search_forms import SearchForms, key_of
from .search_words import normalise, tokens

# ---- What an index has besides tools: prompts, resources and resource templates -------------------------------------
#
# Each of the three tables is made in slices beforehand, or else when it is first asked for.

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


# ---- Search in an index, and suggestions for a mistaken name --------------------------------------------------------
#
# Making the ranked index takes time with thousands of tools. So it is made in slices beforehand, or at the first
# search.

_ALIKE: Final = 0.8  # of 1: how much two spellings must agree for one to suggest the other
_A_SEARCH_PIECE: Final = 8  # servers whose prefixes are made in one piece of work
_COMPARED: Final = 1000  # tools whose spelling is compared at most: ten milliseconds
_MODES: Final = (PrefixMode.SERVER, PrefixMode.SHORT)


@attrs.define(eq=False)
class Finder:
    _servers: Mapping[str, Part]
    _tools: Namespace
    _forms: SearchForms | None = None
    _ranking: Ranking | None = attrs.field(default=None, init=False)
    # Every prefix that a name may have, in any prefix mode, each with its `_`.
    _prefixes: Collection[str] = attrs.field(default=(), init=False)
    _making: Slices[None] | None = attrs.field(default=None, init=False)

    @property
    def ranking(self) -> Ranking:
        """The ranked index; made now, unless it was prepared."""
        finish(self._preparing_ranking())
        assert self._ranking is not None
        return self._ranking

    def preparing(self) -> Slices[None]:
        """Make what `search` and `suggest` need. A second caller in the same loop continues the work of the first."""
        yield from self._tools.preparing(Pace())
        if not self._prefixes:
            said, pace = set[str](), Pace()
            for number, server in enumerate(self._servers):
                said.update(normal(prefix_of(server, mode)) + "_" for mode in _MODES)
                if number % _A_SEARCH_PIECE == 0 and pace.due():
                    yield
            self._prefixes = said
        yield from self._preparing_ranking()

    def _preparing_ranking(self) -> Slices[None]:
        if self._ranking is None and self._making is None:
            self._making = self._make_ranking()
        while self._ranking is None and self._making is not None:
            try:
                next(self._making)
            except StopIteration:
                self._making = None
            else:
                yield

    def _make_ranking(self) -> Slices[None]:
        tools, forms = self._tools.everything, self._forms or SearchForms()
        missing = yield from forms.recalling(tools, self._key)
        ranking = yield from Ranking.making(target.document for target in tools)
        yield from forms.reporting(tools, missing)
        self._ranking = ranking

    def _key(self, server: str) -> str:
        entry = self._servers[server].entry
        return "" if entry is None else key_of(entry)

    def suggest(self, name: str, limit: int = 5) -> tuple[str, ...]:
        """Up to `limit` exposed names that a mistaken `name` may have meant, the likeliest first: those spelled
        almost like it, then those that share words with it."""
        name = name[: 4 * MAX_LENGTH]  # longer text was never a name
        bare = self._unprefixed(name)
        words = " ".join(word for word in tokens(normalise(bare)) if len(word) > 1)
        sharing = (self._tools.everything[number].name for number, _ in self.ranking.rank(words, limit)[0])
        likeliest = dict.fromkeys((*self._almost(name, limit), *self._almost(bare, limit), *sharing))
        return tuple(likeliest)[:limit]

    def _almost(self, name: str, limit: int) -> list[str]:
        """The names of tools spelled almost like `name`. None when there are too many tools: comparing takes time."""
        if len(self._tools.everything) > _COMPARED or len(name) > 2 * MAX_LENGTH:
            return []
        import difflib  # only ever needed for a mistake

        names = {
            normal(said): tool.name for tool in self._tools.everything for said in (tool.original, tool.name)
        }
        return [names[near] for near in difflib.get_close_matches(normal(name), names, limit, _ALIKE)]

    def _unprefixed(self, name: str) -> str:
        """`name` without the longest server prefix it starts with, in any prefix mode."""
        key = normal(name)
        finish(self.preparing())
        ends = [end for end in range(1, len(key) + 1) if key[:end] in self._prefixes]
        return name[max(ends, default=0) :]


_A_PIECE: Final = 8  # servers whose part is made in one piece of work
_A_GLANCE: Final = 100  # the same for servers whose part is kept, or of which only the name is read


@attrs.frozen(eq=False)
class Index:
    """Every exposed name of a room. Make one with `build`."""

    _parts: Mapping[str, Part]  # in config order
    _tools: Namespace
    _forms: SearchForms | None = None
    _lists: Lists = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Lists(self._parts, self._tools.prefixes), takes_self=True),
    )
    _finder: Finder = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Finder(self._parts, self._tools, self._forms), takes_self=True),
    )

    @classmethod
    def build(
        cls,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry | None],
        settings: Settings,
        *,
        previous: Index | None = None,
        forms: SearchForms | None = None,
    ) -> Index:
        """The index of `servers` (config order) and what is known of them.

        `previous` and `forms` only make it quicker: a part is taken from `previous` when its entry is the same object
        and its naming is equal; the first search looks into `forms`.
        """
        return finish(cls.building(servers, entries, settings, previous=previous, forms=forms))

    @classmethod
    def building(
        cls,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry | None],
        settings: Settings,
        *,
        previous: Index | None = None,
        forms: SearchForms | None = None,
    ) -> Slices[Index]:
        """`build`, in slices."""
        pace = Pace()
        kept: Mapping[str, Part] = {} if previous is None else previous._parts
        parts: dict[str, Part] = {}
        done, is_named_alike = 0, True
        for name, definition in servers.items():
            if definition.disabled:
                continue
            before = kept.get(name)
            part = parts[name] = Part.of(definition, settings, entries.get(name), before)
            done += 1
            if part is not before:
                is_named_alike = is_named_alike and before is not None and before.naming == part.naming
                yield from part.reading(pace)
                _ = part.prefix
                done += _A_GLANCE // _A_PIECE
            if done >= _A_GLANCE:
                done = 0
                if pace.due():
                    yield
        by_server: dict[str, ServerNames] = {}
        for number, (name, part) in enumerate(parts.items()):
            by_server[name] = part.tools
            if number % _A_GLANCE == 0 and pace.due():
                yield
        if previous is not None and is_named_alike and len(parts) == len(kept):
            prefixes = previous._tools.prefixes
        else:
            prefixes = yield from _prefixes(parts, pace)
        return cls(parts, (yield from Namespace.merging(by_server, prefixes, pace)), forms)

    def narrowing(
        self,
        servers: Iterable[str],
        tools: tuple[str, ...] | None,
        overrides: Mapping[str, Mapping[str, Any]] = {},  # never written to
        *,
        previous: Index | None = None,
    ) -> Slices[Index]:
        """The index of only these of its servers, and of those of their tools that one of the patterns matches (None:
        all), in slices. `overrides`: by server, on top of its own. Names are made as if there were nothing else.
        `previous` only makes it quicker."""
        pace = Pace()
        kept: Mapping[str, Part] = {} if previous is None else previous._parts
        parts: dict[str, Part] = {}
        by_server: dict[str, ServerNames] = {}
        for name in servers:
            part = self._parts[name]
            more = overrides.get(name)
            if tools is not None or more:
                part = part.narrowed(tools, more).unless(kept.get(name))
            parts[name] = part
            by_server[name] = yield from part.reading(pace)
        prefixes = yield from _prefixes(parts, pace)
        return Index(parts, (yield from Namespace.merging(by_server, prefixes, pace)), self._forms)

    # -- tools, and resources as tools --

    def replacing(
        self, entries: Mapping[str, ServerEntry], *, previous: Index | None = None
    ) -> Slices[Index]:
        """The index with these entries of those of its servers, in slices. Prefixes stay. `previous` only makes it
        quicker."""
        pace, parts = Pace(), dict(self._parts)
        kept: Mapping[str, Part] = {} if previous is None else previous._parts
        for name, entry in entries.items():
            part = parts.get(name)
            if part is not None:
                parts[name] = part.saying(entry).unless(kept.get(name))
        by_server: dict[str, ServerNames] = {}
        for name, part in parts.items():
            by_server[name] = yield from part.reading(pace)
        merged = yield from Namespace.merging(by_server, self._tools.prefixes, pace)
        forms = None if self._forms is None else attrs.evolve(self._forms, on_news=None)
        return Index(parts, merged, forms)

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server in it."""
        part = self._parts.get(server)
        return None if part is None else part.entry

    def get(self, name: str) -> Target | None:
        """What `name` means, if it is an exposed name, spelled exactly. The hot path: one dict look-up."""
        return self._tools.exact.get(name)

    def resolve(self, name: str, server: str | None = None) -> Target | Ambiguous | Missing:
        """What `name` means, leniently: hyphens equal underscores; with a `server`, that server's own names count too.

        Never guesses: `Ambiguous` lists the candidates. `Missing` names the servers that should be connected before
        the name is called unknown.
        """
        return self._tools.resolve(name, server)

    def is_direct(self, target: Target, *, beside: bool = False) -> bool:
        """Whether clients are shown this target as a tool with its own name (`directTools`). `beside`: whether they
        are, if they are shown the `mcp` tool. It depends on the definitions that this index was made of; during a
        reload the room may already have others."""
        part = self._parts.get(target.server)
        return part is not None and part.is_direct(target, beside=beside)

    def tools(self, server: str | None = None) -> tuple[Target, ...]:
        """Everything callable, sorted by name; of one server, if given."""
        return self._tools.everything if server is None else self._tools.of(server)

    # -- prompts --

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt, sorted by name; of one server, if given."""
        prompts = self._lists.prompts
        return prompts.everything if server is None else prompts.of(server)

    def resolve_prompt(self, name: str, server: str | None = None) -> Target | Ambiguous | Missing:
        """`resolve`, for prompts."""
        return self._lists.prompts.resolve(name, server)

    # -- resources and their templates --

    def resources(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource, sorted by URI; of one server, if given."""
        resources = self._lists.resources
        return resources.everything if server is None else resources.of_server(server)

    def templates(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource template, sorted by URI; of one server, if given."""
        templates = self._lists.templates
        return templates.everything if server is None else templates.of_server(server)

    def resolve_uri(self, uri: str) -> Place | Ambiguous | Missing:
        """Where `uri` is read: a listed resource, a qualified URI, or a URI that matches a template of one server."""
        lists = self._lists
        return resolve_uri(uri, lists.entries, lists.resources, lists.templates)

    def lists_resource(self, uri: str) -> bool:
        """Whether one or more servers list `uri`. (When several do, a caller has to name the server.)"""
        resources = self._lists.resources
        return uri in resources.exact or uri in resources.contested

    def resolve_template(self, uri: str) -> Place | Ambiguous | Missing:
        """Which server's template `uri` is, spelled as in `templates()`."""
        return resolve_uri(uri, self._lists.entries, self._lists.templates, _NO_URIS)

    def preparing_lists(self) -> Slices[None]:
        """Make, in slices, what the lists of prompts, resources and templates need, if there are many. Otherwise this
        is made when it is first asked for."""
        return self._lists.preparing()

    # -- servers --

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers in it, in config order."""
        return tuple(self._parts)

    @property
    def unknown_servers(self) -> tuple[str, ...]:
        """The servers of which nothing is known yet, in config order."""
        return tuple(name for name, part in self._parts.items() if part.entry is None or not part.entry.known)

    def counts(self, server: str) -> Counts | None:
        """How much of `server` is exposed; None when nothing is known of it."""
        part = self._parts.get(server)
        return None if part is None or part.entry is None or not part.entry.known else part.counts

    def as_listed(self, kind: str, server: str, original: str, record: Raw) -> Raw | None:
        """`record` in a form that clients can read: nearly always itself, else mended. None: leave it out of lists."""
        part = self._parts.get(server)
        fitted = None if part is None else part.misfits.get((kind, original))
        return record if fitted is None else fitted.record

    def fitting(self, server: str) -> Slices[None]:
        """Make what `faults` and `as_listed` need of `server`, in slices."""
        part = self._parts.get(server)
        if part is not None:
            yield from part.fitting(Pace())

    def faults(self, server: str) -> tuple[str, ...]:
        """The items in `server`'s lists that clients would refuse, in words, each with what was done about it. When
        there are too many: the first ones, and how many more there are."""
        part = self._parts.get(server)
        return () if part is None else part.faults

    # -- search --

    @property
    def ranking(self) -> Ranking:
        """The ranked index over `tools()`, for `search`. Made at the first search, unless it was prepared."""
        return self._finder.ranking

    def preparing_names(self) -> Slices[None]:
        """Make what `resolve` needs for a name that is not exposed in exactly that spelling."""
        return self._tools.preparing(Pace())

    def preparing(self) -> Slices[None]:
        """Make what `search` and `suggest` need. A second caller in the same loop continues the work of the first."""
        return self._finder.preparing()

    def suggest(self, name: str, limit: int = 5) -> tuple[str, ...]:
        """Up to `limit` exposed names that a mistaken `name` may have meant, the likeliest first: those spelled
        almost like it, then those that share words with it."""
        return self._finder.suggest(name, limit)


_NO_URIS: Final = UriSpace({}, {})


def _prefixes(parts: Mapping[str, Part], pace: Pace) -> Slices[dict[str, tuple[str, ...]]]:
    found: dict[str, tuple[str, ...]] = {}
    for number, name in enumerate(sorted(parts)):
        prefix = parts[name].prefix
        found[prefix] = (*found.get(prefix, ()), name)
        if number % _A_GLANCE == 0 and pace.due():
            yield
    return found


# --------------------------------------------------------------------------------------------------------------
#
#
# One server's part of the index: its names, its misfits and its counts, each worked out when it is first asked for.
#
# A part is kept from one index to the next, unless the server's entry or its naming has changed.


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
