"""The index: what every exposed name means, as one immutable value.

The router publishes an index and everybody reads it: resolving a name is a dict look-up, without a mailbox. An index is
a pure function of (definitions, entries, settings), so it cannot depend on which server connected first. Rebuilding it
is cheap: each server's part is kept from the previous index unless its entry or its naming changed, and the table of
prefixes is kept unless a naming changed. Only the merge is done again. This matters: when twenty thousand servers are
asked one after the other, an index is made for each of them, and every call waits for one.

An index of thousands of tools is made in a thread: all that it is made of stays as it is. So is what search and
mistaken names need of it (`prepare`, `prepare_names`); if nobody has made it, it is made when it is first needed.

A server whose entry is unknown is in the index too, with nothing in it. Its prefix still tells which server to connect
for a name that no server is known to have. A disabled server is not in the index.

Tools and resources offered as tools share one namespace. Prompts and skills have one each, with the same rules.
Resource URIs are not names: they pass unchanged, in a table of their own (`namespace`). What is in the folder of a
skill is read with the skill, so it is not offered as a tool too. Search finds tools and skills.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ..config.model import Pinning, PrefixMode, ServerDefinition, Settings, normal, selector
from ..protocol.bounds import FAULTS
from ..protocol.json_values import is_object
from ..protocol.safe_text import unhidden
from .entries import Raw, ServerEntry
from .fingerprints import PINNED, kind_of, notice, pin_name
from .hidden_characters import hidden_in, hidden_instructions, unhidden_record
from .names import MAX_LENGTH, PREFIXES, Claim, Proposal, prefix_of, resource_name, spellings
from .namespace import (
    AmbiguousName,
    Kind,
    MissingName,
    Namespace,
    ResourceEntry,
    ServerNames,
    Target,
    UriSpace,
    qualified,
    unqualified,
)
from .namespace import resolve as resolve_uri
from .overrides import ToolOverride, overrides_of
from .search_cache import SearchCache, key_of
from .skills import description_of, is_within, name_of, root_of, weight_of

if TYPE_CHECKING:
    from .ranking import Ranking
    from .schema_repair import RepairedItem

_MANY: Final = 500  # from this many prompts, resources and templates on, their tables are made beforehand
_ALIKE: Final = 0.8  # of 1: how much two spellings must agree for one to suggest the other
_AKIN: Final = 0.6  # and without the prefix that both have
_SHORT: Final = (
    4  # letters; a stem as short as this suggests only tools that have it: a slip of it is another word
)
_COMPARED: Final = 1000  # tools whose spelling is compared at most: ten milliseconds


class Index:
    """Every exposed name of a room. Make one with `build`; it does not change."""

    def __init__(
        self,
        parts: Mapping[str, ServerIndex],
        prefixes: Mapping[str, tuple[str, ...]],
        forms: SearchCache | None,
    ) -> None:
        skills = {name: part.skills for name, part in parts.items() if part.has_skills}
        self._parts = parts  # in config order
        self._tools = Namespace.merged({name: part.tools for name, part in parts.items()}, prefixes)
        self._skills = Namespace.merged(skills, prefixes)
        self._weight = sum(parts[name].weight for name in skills)
        self._forms = forms
        self._ranking: Ranking | None = None
        self.has_names: bool = False  # whether all that `prepare_names` makes has been made
        self.has_counts: bool = False  # whether all that `counts` and `faults` tell has been made

    @classmethod
    def build(
        cls,
        servers: Mapping[str, ServerDefinition],
        entries: Mapping[str, ServerEntry | None],
        settings: Settings,
        *,
        previous: Index | None = None,
        forms: SearchCache | None = None,
    ) -> Index:
        """The index of `servers` (config order) and what is known of them.

        `previous` and `forms` only make it quicker: a part is taken from `previous` when its entry is the same object
        and its naming is equal; the first search looks into `forms`.
        """
        kept: Mapping[str, ServerIndex] = {} if previous is None else previous._parts
        parts: dict[str, ServerIndex] = {}
        is_named_alike = True
        for name, definition in servers.items():
            if definition.disabled:
                continue
            before = kept.get(name)
            part = parts[name] = ServerIndex.of(definition, settings, entries.get(name), before)
            if part is not before:
                is_named_alike = is_named_alike and before is not None and before.naming == part.naming
        if previous is not None and is_named_alike and len(parts) == len(kept):
            prefixes = previous._tools.prefixes
        else:
            prefixes = _prefixes(parts)
        return cls(parts, prefixes, forms)

    def narrowed(
        self,
        servers: Iterable[str],
        tools: tuple[str, ...] | None,
        overrides: Mapping[str, Mapping[str, Any]] = {},  # never written to
        *,
        previous: Index | None = None,
    ) -> Index:
        """The index of only these of its servers, and of those of their tools that one of the patterns matches (None:
        all). `overrides`: by server, on top of its own. Names are made as if there were nothing else.
        `previous` only makes it quicker."""
        kept: Mapping[str, ServerIndex] = {} if previous is None else previous._parts
        parts: dict[str, ServerIndex] = {}
        for name in servers:
            part = self._parts[name]
            more = overrides.get(name)
            if tools is not None or more:
                part = part.narrowed(tools, more).unless(kept.get(name))
            parts[name] = part
        return Index(parts, _prefixes(parts), self._forms)

    # -- tools, and resources as tools --

    def replaced(self, entries: Mapping[str, ServerEntry], *, previous: Index | None = None) -> Index:
        """The index with these entries in place of those of its servers. Prefixes stay. `previous` only makes it
        quicker."""
        parts = dict(self._parts)
        kept: Mapping[str, ServerIndex] = {} if previous is None else previous._parts
        for name, entry in entries.items():
            part = parts.get(name)
            if part is not None:
                parts[name] = part.saying(entry).unless(kept.get(name))
        forms = None if self._forms is None else replace(self._forms, on_news=None)
        return Index(parts, self._tools.prefixes, forms)

    def entry(self, server: str) -> ServerEntry | None:
        """What is known of a server of the index."""
        part = self._parts.get(server)
        return None if part is None else part.entry

    def get(self, name: str) -> Target | None:
        """What `name` means, if it is an exposed name, spelled exactly. The hot path: one dict look-up."""
        return self._tools.exact.get(name)

    def resolve(self, name: str, server: str | None = None) -> Target | AmbiguousName | MissingName:
        """What `name` means, leniently: hyphens equal underscores; with a `server`, that server's own names count too.

        Never guesses: `AmbiguousName` lists the candidates. `MissingName` names the servers that should be connected
        before the name is called unknown.
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

    # -- skills --

    def skills(self, server: str | None = None) -> tuple[Target, ...]:
        """Every skill, sorted by name; of one server, if given."""
        return self._skills.everything if server is None else self._skills.of(server)

    def resolve_skill(self, name: str, server: str | None = None) -> Target | AmbiguousName | MissingName:
        """`resolve`, for skills."""
        return self._skills.resolve(name, server)

    def pin_of(self, name: str, server: str) -> str | None:
        """Under which name the tool, skill or prompt called `name` here is remembered, or the resource or template that
        has this URI. None: the server is known to have none of that name."""
        for resolve in (self.resolve, self.resolve_skill, self.resolve_prompt):
            found = resolve(name, server)
            if isinstance(found, Target):
                return pin_name(found.kind, found.original)
        part = self._parts.get(server)
        for kind in _PLACES:
            for place in part.places(kind) if part is not None else ():
                if name in (place.original, place.uri, qualified(server, place.original)):
                    return pin_name(kind, place.original)
        return None

    def skill_at(self, uri: str) -> Target | AmbiguousName | None:
        """The skill whose `SKILL.md` this is, in its server's own spelling or in the one that names the server. None:
        none that is listed."""
        named = unqualified(uri)
        server, original = named or (None, uri)
        found = [skill for skill in self.skills(server) if skill.original == original]
        if len(found) < 2:
            return found[0] if found else None
        return AmbiguousName(
            uri,
            tuple(qualified(skill.server, uri) for skill in found),
            tuple(skill.server for skill in found),
        )

    def unlisted_skill(self, server: str, record: Raw) -> Target | None:
        """A skill that its server does not list, as it would be shown if it did. None: it would not be."""
        part = self._parts.get(server)
        return None if part is None else next(iter(part.skills_in((record,)).targets), None)

    # -- prompts, resources and their templates: three tables, each made when it is first asked for --

    @cached_property
    def _prompts(self) -> Namespace:
        by_server = {name: part.prompts for name, part in self._parts.items()}
        return Namespace.merged(by_server, self._tools.prefixes)

    @cached_property
    def _resources(self) -> UriSpace:
        return self._uris("resource")

    @cached_property
    def _templates(self) -> UriSpace:
        return self._uris("template")

    def _uris(self, kind: str) -> UriSpace:
        return UriSpace.of(place for part in self._parts.values() for place in part.places(kind))

    @cached_property
    def _entries(self) -> Mapping[str, ServerEntry | None]:
        return {name: part.entry for name, part in self._parts.items()}

    def prepare_lists(self) -> None:
        """Make these tables now, if there are many items."""
        entries = [entry for entry in self._entries.values() if entry is not None]
        many = sum(
            len(entry.prompts or ()) + len(entry.resources or ()) + len(entry.templates or ())
            for entry in entries
        )
        if many >= _MANY:
            _ = self._prompts, self._resources, self._templates

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt, sorted by name; of one server, if given."""
        return self._prompts.everything if server is None else self._prompts.of(server)

    def resolve_prompt(self, name: str, server: str | None = None) -> Target | AmbiguousName | MissingName:
        """`resolve`, for prompts."""
        return self._prompts.resolve(name, server)

    def resources(self, server: str | None = None) -> tuple[ResourceEntry, ...]:
        """Every resource, sorted by URI; of one server, if given."""
        return self._resources.everything if server is None else self._resources.of_server(server)

    def templates(self, server: str | None = None) -> tuple[ResourceEntry, ...]:
        """Every resource template, sorted by URI; of one server, if given."""
        return self._templates.everything if server is None else self._templates.of_server(server)

    def resolve_uri(self, uri: str) -> ResourceEntry | AmbiguousName | MissingName:
        """Where `uri` is read: a listed resource, a qualified URI, or a URI that matches a template of one server."""
        return resolve_uri(uri, self._entries, self._resources, self._templates)

    def lists_resource(self, uri: str) -> bool:
        """Whether one or more servers list `uri`. (When several do, a caller has to name the server.)"""
        return uri in self._resources.exact or uri in self._resources.contested

    def resolve_template(self, uri: str) -> ResourceEntry | AmbiguousName | MissingName:
        """The server whose template `uri` is, in the spelling of `templates()`."""
        return resolve_uri(uri, self._entries, self._templates, _NO_URIS)

    # -- servers --

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers of the index, in the order of the configuration."""
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

    def faults(self, server: str) -> tuple[str, ...]:
        """The items in `server`'s lists that clients would refuse, in words, each with what was done about it. When
        there are too many: the first ones, and how many more there are."""
        return tuple(fault.words for fault in self.list_faults(server))

    def list_faults(self, server: str) -> tuple[ListFault, ...]:
        """What `faults` tells, and of each whose it is."""
        part = self._parts.get(server)
        return () if part is None else part.faults

    @property
    def size(self) -> int:
        """The number of servers, names and files of skills, which tells how much work it is to go over all of them."""
        return len(self._parts) + len(self._tools.exact) + self._weight

    def prepare_counts(self) -> None:
        """Make what `counts` and `faults` tell."""
        for part in self._parts.values():
            _ = part.counts, part.faults
        self.has_counts = True

    # -- search --

    def findable(self, server: str | None = None) -> tuple[Target, ...]:
        """What `search` finds, in the order of the ranking: the tools by name, then the skills; of one server, if
        given."""
        return self._found if server is None else (*self.tools(server), *self.skills(server))

    @cached_property
    def _found(self) -> tuple[Target, ...]:
        tools, skills = self._tools.everything, self._skills.everything
        return (*tools, *skills) if skills else tools

    @cached_property
    def by_meaning(self) -> Mapping[bytes, int]:
        """The places in `findable`, by the key of what each means; of two that mean the same, the first."""
        return {target.meaning_key: number for number, target in reversed([*enumerate(self._found)])}

    @property
    def ranking(self) -> Ranking:
        """The ranked index over `findable()`, for `search`. Made at the first search, unless it was prepared: with
        thousands of tools this takes time."""
        if self._ranking is None:
            from .ranking import Ranking

            found, forms = self._found, self._forms or SearchCache()
            missing = forms.recall(found, self._key)
            ranking = Ranking(target.document for target in found)
            forms.report(found, missing)
            self._ranking = ranking
        return self._ranking

    def _key(self, server: str) -> str:
        entry = self._parts[server].entry
        return "" if entry is None else key_of(entry)

    @property
    def is_searchable(self) -> bool:
        """Whether all that `search` and `suggest` need has been made."""
        return self.has_names and self._ranking is not None

    def prepare(self) -> None:
        """Make what `search`, `suggest`, `counts` and `faults` need."""
        self.prepare_counts()
        self.prepare_names()
        _ = self.ranking

    # -- mistaken names --

    def prepare_names(self) -> None:
        """Make what `resolve` and `suggest` need for a name that is not exposed in exactly that spelling."""
        self._tools.prepare()
        _ = self._any_prefixes
        self.has_names = True

    @cached_property
    def _any_prefixes(self) -> Collection[str]:
        """Every prefix that a name may have, in any prefix mode, each with its `_`."""
        modes = [(server, mode) for server in self._parts for mode in PREFIXES]
        return {normal(prefix_of(server, mode)) + "_" for server, mode in modes}

    def suggest(self, name: str, limit: int = 5) -> tuple[str, ...]:
        """Up to `limit` exposed names that a mistaken `name` may have meant, the likeliest first: those that are a
        server's own name for a tool, or else those spelled almost like it, or else those that have its words. None is
        better than a poor one."""
        name = name[: 4 * MAX_LENGTH]  # longer text was never a name
        bare = self._unprefixed(name)
        near = self.named_by_servers(name) or self._almost(name, limit, bare) or self._almost(bare, limit)
        return tuple(dict.fromkeys(near or self._sharing(bare, limit)))[:limit]

    def excluded_by(self, name: str, server: str | None = None) -> tuple[str, str] | None:
        """The server whose entry excludes a tool of this name, and the key that does. `server`: of this one alone."""
        for part in self._parts.values() if server is None else filter(None, [self._parts.get(server)]):
            key = part.excluding_key(name)
            if key is not None:
                return part.server, key
        return None

    def named_by_servers(self, name: str) -> list[str]:
        """The exposed names of the tools that their servers call `name`."""
        wanted = normal(name)
        return [tool.name for tool in self._tools.everything if normal(tool.original) == wanted]

    def _sharing(self, name: str, limit: int) -> list[str]:
        """The tools whose own names have at least half of the words of `name`, or words that mean the same."""
        from .ranking import asked
        from .search_words import normalise, stem, tokens

        words = " ".join(word for word in tokens(normalise(name)) if len(word) > 1)
        stems = asked(words)[0]
        standing = [self.ranking.standing_for(word) if len(word) > _SHORT else {word} for word in stems]
        found, tools = self.ranking.rank(words, 4 * limit)[0], self._tools.everything

        def has_words(tool: Target) -> bool:
            own = {stem(word) for word in tokens(normalise(tool.original))}
            return 2 * sum(not own.isdisjoint(terms) for terms in standing) >= max(1, len(standing))

        return [tools[at].name for at, _ in found if at < len(tools) and has_words(tools[at])]

    def _almost(self, name: str, limit: int, bare: str = "") -> list[str]:
        """The names of tools spelled almost like `name`, but not for the prefix alone: their own names are like `bare`,
        too. None when there are too many tools: comparing takes time."""
        if len(self._tools.everything) > _COMPARED or len(name) > 2 * MAX_LENGTH:
            return []
        import difflib  # only ever needed for a mistake

        names = {
            normal(said): tool.name for tool in self._tools.everything for said in (tool.original, tool.name)
        }
        found = [names[near] for near in difflib.get_close_matches(normal(name), names, limit, _ALIKE)]
        if bare in ("", name):
            return found
        own = {one: normal(self._tools.exact[one].original) for one in found}
        return [
            one for one in found if difflib.SequenceMatcher(None, normal(bare), own[one]).ratio() >= _AKIN
        ]

    def _unprefixed(self, name: str) -> str:
        """`name` without the longest server prefix it starts with, in any prefix mode."""
        key = normal(name)
        ends = [end for end in range(1, len(key) + 1) if key[:end] in self._any_prefixes]
        return name[max(ends, default=0) :]


_NO_URIS: Final = UriSpace({}, {})


def _prefixes(parts: Mapping[str, ServerIndex]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(parts):
        prefix = parts[name].prefix
        found[prefix] = (*found.get(prefix, ()), name)
    return found


# ---- One server's part of the index ----------------------------------------------------------------------------------
#
# Its names, its misfits and its counts, each worked out when it is first asked for.
#
# A part is kept from one index to the next, unless the server's entry or its naming has changed.


class Counts(msgspec.Struct, frozen=True):
    """How much of a server is exposed. `resources` are those that are offered as tools. `changed`: the
    tools that are not as they were first shown, by the server's own names; `flapping`: those that change again and
    again; `hidden`: the items with hidden characters, and which, in words."""

    tools: int
    resources: int
    prompts: int
    skills: int = 0
    changed: tuple[str, ...] = ()
    flapping: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class ListFault(msgspec.Struct, frozen=True):
    """Something in the lists of a server that clients would refuse, or an override that does not fit them, in words,
    with what was done about it."""

    words: str
    is_override: bool = False  # the server's owner has to correct it, not its author
    is_left_out: bool = False  # else it was corrected


class NamingRules(msgspec.Struct, frozen=True):
    """The parts of a definition that decide which names its tools have, and where these are shown."""

    mode: PrefixMode
    expose_resources: bool
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    direct: bool | tuple[str, ...]  # which tools a client is shown one by one
    beside: bool | tuple[str, ...]  # which tools a client is shown beside the `mcp` tool
    overrides: Mapping[str, ToolOverride] = msgspec.field(default_factory=dict[str, ToolOverride])
    of_any: frozenset[str] = frozenset()  # overridden for whichever server has such a tool
    only: tuple[str, ...] | None = None  # the tools that a profile shows
    longest_name: int = MAX_LENGTH
    pinning: Pinning = Pinning.QUARANTINE

    @classmethod
    def of(cls, definition: ServerDefinition, settings: Settings) -> NamingRules:
        beside = definition.direct_tools
        if (
            beside is None
        ):  # all tools of all servers beside the one that spares showing them: nobody means that
            beside = settings.direct_tools if isinstance(settings.direct_tools, tuple) else False
        naming = _naming(
            settings.tool_prefix if definition.tool_prefix is None else definition.tool_prefix,
            definition.expose_resources,
            definition.include_tools,
            definition.exclude_tools,
            settings.direct_tools if definition.direct_tools is None else definition.direct_tools,
            beside,
            settings.longest_name,
            definition.pinning or settings.pinning,
        )
        if not (definition.tool_overrides or settings.tool_overrides):
            return naming
        return replace(
            naming,
            overrides=overrides_of(definition.tool_overrides, overrides_of(settings.tool_overrides)),
            of_any=frozenset(settings.tool_overrides.keys() - definition.tool_overrides.keys()),
        )


@lru_cache(maxsize=64)
def _naming(
    mode: PrefixMode,
    expose_resources: bool,
    include: tuple[str, ...] | None,
    exclude: tuple[str, ...],
    direct: bool | tuple[str, ...],
    beside: bool | tuple[str, ...],
    longest_name: int,
    pinning: Pinning,
) -> NamingRules:
    """One without overrides: the same object for all servers that are named alike, which most of a room are."""
    return NamingRules(
        mode,
        expose_resources,
        include,
        exclude,
        direct,
        beside,
        longest_name=longest_name,
        pinning=pinning,
    )


class ServerIndex(msgspec.Struct, eq=False, dict=True):
    """One server's part of the index, kept from one index to the next."""

    server: str
    entry: ServerEntry | None
    naming: NamingRules
    made_of: tuple[ServerDefinition, Settings]  # what `naming` was made of: with the same two it is the same

    def unless(self, other: ServerIndex | None) -> ServerIndex:
        """`other` if it has the same content, with everything that it has already computed; else this part."""
        if other is not None and other.entry is self.entry and other.naming == self.naming:
            other.made_of = self.made_of
            return other
        return self

    @classmethod
    def of(
        cls,
        definition: ServerDefinition,
        settings: Settings,
        entry: ServerEntry | None,
        kept: ServerIndex | None,
    ) -> ServerIndex:
        """The part of the index for this server. Returns `kept`, the part from before, if nothing in it has changed."""
        if kept is not None and kept.made_of[0] is definition and kept.made_of[1] is settings:
            same = kept.entry is entry
            return kept if same else cls(kept.server, entry, kept.naming, kept.made_of)
        naming = NamingRules.of(definition, settings)
        return cls(definition.name, entry, naming, (definition, settings)).unless(kept)

    @cached_property
    def prefix(self) -> str:
        """What its names start with. Under `none`: what they start with when two servers want the same name."""
        mode = self.naming.mode
        return normal(prefix_of(self.server, PrefixMode.SERVER if mode is PrefixMode.NONE else mode))

    @cached_property
    def tools(self) -> ServerNames:
        read = chain(self._read("tool", "tools"), self._read("resource", "resources"))
        return ServerNames.of(filter(self._is_chosen, read))

    @property
    def has_skills(self) -> bool:
        return self.entry is not None and bool(self.entry.skills)

    @cached_property
    def weight(self) -> int:
        """How much work its skills are."""
        return weight_of(self.entry and self.entry.skills)

    @cached_property
    def skills(self) -> ServerNames:
        return self.skills_in((self.entry and self.entry.skills) or ())

    def skills_in(self, records: Iterable[Raw]) -> ServerNames:
        """Those of these entries of skills that are shown."""
        return ServerNames.of(filter(self._is_chosen, self._named("skill", records)))

    def narrowed(self, tools: tuple[str, ...] | None, said: Mapping[str, Any] | None = None) -> ServerIndex:
        """This part with only those of its tools that one of the patterns matches (None: all), and with further
        overrides, as a profile says them."""
        overrides = overrides_of(said or {}, self.naming.overrides)
        naming = msgspec.structs.replace(self.naming, only=tools, overrides=overrides)
        return ServerIndex(self.server, self.entry, naming, self.made_of)

    def saying(self, entry: ServerEntry) -> ServerIndex:
        """This part with `entry` in place of what its server has listed."""
        return ServerIndex(self.server, entry, self.naming, self.made_of)

    def _is_chosen(self, one: tuple[Proposal, Target]) -> bool:
        include, exclude, only = self.naming.include, self.naming.exclude, self.naming.only
        if only is not None and not self._fits(one, only):
            return False
        return (include is None or self._fits(one, include)) and not (exclude and self._fits(one, exclude))

    def excluding_key(self, name: str) -> str | None:
        """The key of its entry that excludes its tool of this name. None: it has no such tool, or does not exclude it;
        whoever sees only some tools is not told."""
        exclude, wanted = self.naming.exclude, normal(name)
        for one in self._read("tool", "tools") if self.naming.only is None else ():
            if wanted in (normal(one[0].name), normal(one[1].original)) and not self._is_chosen(one):
                return "excludeTools" if exclude and self._fits(one, exclude) else "includeTools"
        return None

    @cached_property
    def prompts(self) -> ServerNames:
        return ServerNames.of(self._read("prompt", "prompts"))

    def places(self, kind: str) -> Iterator[ResourceEntry]:
        """Its resources or templates, as they are shown."""
        field, key = PINNED[kind]
        records: tuple[Raw, ...] | None = getattr(self.entry, field, None)
        for record in (records or ()) if self.naming.expose_resources else ():
            original = _text(record, key)
            if original:
                changed = self._quarantined(kind, original)
                if changed is None:
                    record = unhidden_record(record)[0]
                else:
                    record = _in_quarantine(self.server, kind, original, unhidden(original), changed)
                yield ResourceEntry(unhidden(original), self.server, original, record, changed)

    @property
    def faults(self) -> tuple[ListFault, ...]:
        """What clients would refuse. If there is much, only the first."""
        return self._looked_through[1]

    @property
    def misfits(self) -> Mapping[tuple[str, str], RepairedItem]:
        """The items that clients would refuse as they are, by kind and by the server's own name for them."""
        return self._looked_through[0]

    @cached_property
    def _looked_through(
        self,
    ) -> tuple[Mapping[tuple[str, str], RepairedItem], tuple[ListFault, ...], tuple[str, ...]]:
        """The misfits, the faults, and the places with hidden characters."""
        from .schema_repair import fit

        found: dict[tuple[str, str], RepairedItem | None] = {}
        hidden: list[str] = []
        shown: set[str] | None = None
        if self.naming.only is not None:  # nobody who sees only these may learn of others
            shown = {target.original for target in self.tools.targets}
        for kind, (field, key) in _LISTED.items():
            records: tuple[Raw, ...] | None = getattr(self.entry, field, None)
            for record in records or ():
                who = kind, _text(record, key)
                if self._quarantined(*who) is not None:
                    continue
                if kind == "tool" and shown is not None and who[1] not in shown:
                    continue
                if who not in found:  # an item that is listed twice counts once
                    override, shown_record = self._override(kind, who[1]), unhidden_record(record)[0]
                    fits = override is not None and not override.faults(
                        shown_record
                    )  # else that is told alone
                    found[who] = fit(
                        kind, override.shown(shown_record) if override and fits else shown_record
                    )
                    if kind in _PLACES and shown_record is not record and (odd := hidden_in(record)):
                        hidden.append(f'{kind} "{unhidden(who[1])}": {odd}')
        misfits = {who: fitted for who, fitted in found.items() if fitted is not None}
        return misfits, _first_faults(list(self._misfit_overrides()), misfits), tuple(hidden)

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
            if self._quarantined("tool", name) is not None or (
                name not in records and name in self.naming.of_any
            ):
                continue
            taken = override.rename
            if taken in records and taken != name and not override.hide and self._keeps_name(taken):
                yield f'toolOverrides of "{name}": another tool is called "{taken}" (both get longer names)'
                continue
            faults = override.faults(records[name]) if name in records else ["the server has no such tool"]
            if faults and not override.hide:
                then = " (left out until that is corrected)" if name in records else ""
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
            len(self.skills.targets),
            changed,
            tuple(tool for tool in changed if tool in flaps),
            tuple(islice(self._hidden(), FAULTS)),
        )

    def _hidden(self) -> Iterator[str]:
        """The items with hidden characters, and which: also resources that are offered as no tool, templates, and what
        the server says about itself."""
        if found := self.entry and hidden_instructions(self.entry.instructions):
            yield f"instructions: {found}"
        for target in (*self.tools.targets, *self.prompts.targets, *self.skills.targets):
            if target.hidden and target.kind != "resource":
                yield f'{target.kind} "{unhidden(target.original)}": {target.hidden}'
        yield from self._looked_through[2]

    def _read(self, kind: Kind, field: str) -> Iterator[tuple[Proposal, Target]]:
        """Every usable record with its first proposal. A record without a name cannot be called and is skipped."""
        if self.entry is None or (kind == "resource" and not self.naming.expose_resources):
            return
        records: tuple[Raw, ...] | None = getattr(self.entry, field)
        if kind == "resource" and self.has_skills:
            roots = frozenset(root_of(skill["uri"]) for skill in self.entry.skills or ())
            others = (one for one in records or () if not is_within(_text(one, "uri"), roots))
            yield from self._named(kind, others)
        else:
            yield from self._named(kind, records or ())

    def _named(self, kind: Kind, records: Iterable[Raw]) -> Iterator[tuple[Proposal, Target]]:
        for record in records:
            name = name_of(record) if kind == "skill" else _text(record, "name")
            original = _text(record, "uri") if kind in ("resource", "skill") else name
            if original and name:
                local = resource_name(name) if kind == "resource" else name
                changed = self._quarantined(kind, original)
                override, hidden = self._override(kind, original), ""
                if changed is not None:
                    record, spelled = _in_quarantine(self.server, kind, original, name, changed), None
                else:
                    own, (record, spelled) = record, unhidden_record(record)
                    hidden = hidden_in(own) if record is not own else ""
                if override is not None:
                    if override.hide or (changed is None and override.faults(record)):
                        continue
                    local = override.rename or name
                    record = record if changed is not None else override.shown(record)
                if spelled is not None:
                    override = msgspec.structs.replace(override or ToolOverride(), spelled=spelled)
                proposal = Proposal.first(
                    Claim(self.server, kind, original, local, self.naming.mode, self.naming.longest_name)
                )
                target = _target(proposal.name, self.server, kind, original, record, override, changed)
                yield proposal, msgspec.structs.replace(target, hidden=hidden) if hidden else target

    def _quarantined(self, kind: str, original: str) -> tuple[str, ...] | None:
        """What has changed of an item that must not be used because of that; None: it may be used."""
        entry = self.entry
        if entry is None or not entry.pinned.changed or self.naming.pinning is not Pinning.QUARANTINE:
            return None
        return entry.pinned.changed.get(pin_name(kind, original))

    def _changed(self) -> tuple[str, ...]:
        entry = self.entry
        if entry is None or not entry.pinned.changed or self.naming.pinning is Pinning.OFF:
            return ()
        shown = (*self.tools.targets, *self.skills.targets, *self.prompts.targets)
        pins = [pin_name(target.kind, target.original) for target in shown]
        for kind in _PLACES if self.naming.only is None else ():
            pins += (pin_name(kind, place.original) for place in self.places(kind))
        found = dict.fromkeys(pin for pin in pins if pin in entry.pinned.changed)
        return tuple(sorted(found, key=lambda pin: _ORDER[kind_of(pin)]))

    def is_direct(self, target: Target, *, beside: bool) -> bool:
        """Whether clients are shown this target as a tool with its own name, or are beside the `mcp` tool."""
        wanted = self.naming.beside if beside else self.naming.direct
        if target.kind != "tool" or isinstance(wanted, bool):
            return target.kind == "tool" and wanted is True
        return self._matches(selector(wanted), target.own_name, target)

    def _fits(self, one: tuple[Proposal, Target], patterns: tuple[str, ...]) -> bool:
        return self._matches(selector(patterns), one[0].claim.local, one[1])

    def _matches(self, matches: Callable[[str], bool], local: str, target: Target) -> bool:
        """Whether a pattern matches a tool by its name. A renamed tool matches by either name, so whoever excludes it
        excludes it under both; so does a resource, by `get_…` and `read_…`."""
        names = (local, *target.other_names)
        return any(matches(spelling) for name in names for spelling in spellings(self.server, name))


_LISTED: Final = {kind: PINNED[kind] for kind in ("tool", "prompt", "resource", "template")}
_PLACES: Final = ("resource", "template")
_ORDER: Final = {kind: number for number, kind in enumerate(PINNED)}  # in which changed items are named


def _first_faults(
    overrides: list[str], misfits: Mapping[tuple[str, str], RepairedItem]
) -> tuple[ListFault, ...]:
    of_overrides = (ListFault(unhidden(words), is_override=True) for words in overrides)
    of_items = (_item_fault(*who, fitted) for who, fitted in misfits.items())
    first = tuple(islice(chain(of_overrides, of_items), FAULTS))
    more = len(overrides) + len(misfits) - len(first)
    return (*first, ListFault(f"{more:,} more are not named here")) if more > 0 else first


def _item_fault(kind: str, original: str, fitted: RepairedItem) -> ListFault:
    is_left_out = fitted.record is None
    then = "left out" if is_left_out else "corrected"
    words = f'{kind} "{original}": {"; ".join(fitted.faults)} ({then})'
    return ListFault(unhidden(words), is_left_out=is_left_out)


def _target(
    name: str,
    server: str,
    kind: Kind,
    original: str,
    record: Raw,
    override: ToolOverride | None,
    changed: tuple[str, ...] | None,
) -> Target:
    if kind == "skill":
        return Target(name, server, kind, original, record, description_of(record), None, changed=changed)
    description = _text(record, "description")
    if kind == "resource":
        description = description or f"Read resource: {unhidden(original)}"
        return Target(name, server, kind, original, record, description, None, changed=changed)
    schema = record.get("inputSchema")
    known = schema if is_object(schema) else None
    return Target(name, server, kind, original, record, description, known, override, changed)


def _in_quarantine(server: str, kind: str, original: str, name: str, changed: tuple[str, ...]) -> Raw:
    """A changed item as it is shown, without anything that its server says of it now."""
    told = notice(server, pin_name(kind, original), changed)
    if kind == "skill":
        return {"uri": original, "frontmatter": {"name": name, "description": told}, "resources": []}
    said = {"name": name, "description": told}
    if kind == "tool":
        return {**said, "inputSchema": {"type": "object"}}
    return {**said, PINNED[kind][1]: original}


def _text(record: Raw, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""
