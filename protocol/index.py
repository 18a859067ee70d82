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
are not names: they pass unchanged, in a table of their own (`_uris`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from ._index_lists import Lists
from ._index_part import Counts, Part
from ._index_search import Finder
from ._namespace import Ambiguous, Kind, Missing, Namespace, ServerNames, Target
from ._ranking import Ranking
from ._uris import Place, UriSpace, qualified, unqualified
from ._uris import resolve as resolve_uri
from .catalogue import Raw, ServerEntry
from .config import ServerDefinition, Settings
from .search_forms import SearchForms
from .slices import Pace, Slices, finish

__all__ = ["Ambiguous", "Counts", "Index", "Kind", "Missing", "Place", "Target", "qualified", "unqualified"]

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
