"""URIs: which server a resource is read from.

A URI is not a name of ours: clients keep them, servers put them into results, so they pass unchanged. Only where two
servers list the same one is each shown in a qualified spelling, `greenroom://<server>/<URI as it was>`, which reads
backwards without a table and leaves a template's expressions where they are. The bare URI then belongs to nobody and is
answered with the candidates. The qualified spelling is understood at any time, collision or not, and before anything
that is listed: it is ours, and no server can take another's place by listing it. One that a server lists all the same
is shown qualified like a colliding one, so that it reads as what it is.

A URI that nobody lists may still be one of a template: the template's fixed parts are compared in order, every
expression standing for anything, in linear time. That only has to tell servers apart; whether the resource is there is
for the server to say. Rejected: a hash in place of the URI, which nobody can read and no template can carry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final
from urllib.parse import quote, unquote

import attrs

from ._namespace import Ambiguous, Missing
from .catalogue import Raw, ServerEntry
from .slices import Pace, Slices, finish

_SCHEME: Final = "greenroom://"
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


@attrs.frozen(eq=False)
class Place:
    """Where a resource (or template) is: `uri` as clients see it, `original` as its server does."""

    uri: str
    server: str
    original: str
    record: Raw


def qualified(server: str, uri: str) -> str:
    """The spelling of `uri` that names its server."""
    return f"{_SCHEME}{quote(server, safe='')}/{uri}"


def is_ours(uri: str) -> bool:
    """Whether `uri` is of our scheme; schemes have no case."""
    return uri[: len(_SCHEME)].lower() == _SCHEME


def unqualified(uri: str) -> tuple[str, str] | None:
    """(server, URI as it was) of a qualified spelling."""
    if not is_ours(uri):
        return None
    server, slash, original = uri[len(_SCHEME) :].partition("/")
    return (unquote(server), original) if slash else None


@attrs.frozen(eq=False)
class UriSpace:
    """All resources or all templates of a room."""

    exact: Mapping[str, Place]
    contested: Mapping[str, tuple[Place, ...]]

    @classmethod
    def of(cls, entries: Mapping[str, ServerEntry | None], field: str, key: str) -> UriSpace:
        """`field` of every entry, known by `key`. What one server lists twice counts once."""
        return finish(cls.making(entries, field, key, Pace()))

    @classmethod
    def making(
        cls, entries: Mapping[str, ServerEntry | None], field: str, key: str, pace: Pace
    ) -> Slices[UriSpace]:
        """`of`, in slices."""
        found: dict[str, dict[str, Place]] = {}
        for server, entry in entries.items():
            records: tuple[Raw, ...] | None = getattr(entry, field, None)
            for record in records or ():
                uri = record.get(key)
                if isinstance(uri, str) and uri:
                    found.setdefault(uri, {}).setdefault(server, Place(uri, server, uri, record))
                if pace.due():
                    yield
        if pace.due(len(found) // 100):
            yield
        return cls(*_apart(found))

    @cached_property
    def everything(self) -> tuple[Place, ...]:
        """All of them, sorted as clients see them."""
        return tuple(self.exact[uri] for uri in sorted(self.exact))

    def of_server(self, server: str) -> tuple[Place, ...]:
        return tuple(place for place in self.everything if place.server == server)

    @cached_property
    def shapes(self) -> tuple[tuple[Place, list[str]], ...]:
        """Each template with its fixed parts."""
        return tuple((place, _EXPRESSION.split(place.original)) for place in self.everything)

    def matching(self, uri: str) -> list[Place]:
        """The templates `uri` may have been made from."""
        return [place for place, parts in self.shapes if _fits(uri, parts)]


def _apart(
    found: Mapping[str, Mapping[str, Place]],
) -> tuple[dict[str, Place], dict[str, tuple[Place, ...]]]:
    exact: dict[str, Place] = {}
    contested: dict[str, tuple[Place, ...]] = {}
    for uri, owners in found.items():
        if len(owners) == 1 and not is_ours(uri):
            exact[uri] = next(iter(owners.values()))
            continue
        rivals = [attrs.evolve(owners[server], uri=qualified(server, uri)) for server in sorted(owners)]
        exact |= {rival.uri: rival for rival in rivals}
        if not is_ours(uri):
            contested[uri] = tuple(rivals)
    return exact, contested


def _fits(uri: str, parts: list[str]) -> bool:
    """Whether `parts` stand in `uri` in this order, the first at its start and the last at its end."""
    if len(parts) == 1:
        return uri == parts[0]
    first, *middle, last = parts
    at, end = len(first), len(uri) - len(last)
    if at > end or not (uri.startswith(first) and uri.endswith(last)):
        return False
    for part in middle:
        at = uri.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def resolve(
    uri: str, servers: Mapping[str, ServerEntry | None], resources: UriSpace, templates: UriSpace
) -> Place | Ambiguous | Missing:
    """What `uri` means. `Missing.servers`: the servers that may have resources nobody has listed."""
    listed = resources.exact.get(uri)  # of our scheme only as we spell it ourselves
    if listed is not None:
        return listed
    if is_ours(uri):
        named = unqualified(uri)
        return (
            Place(uri, *named, record={}) if named is not None and named[0] in servers else Missing(uri, ())
        )
    if uri in resources.contested:
        return _among(uri, resources.contested[uri])
    fitting = {place.server: place for place in templates.matching(uri)}
    if len(fitting) == 1:
        (server,) = fitting
        return Place(uri, server, uri, record={})
    if fitting:
        return _among(uri, [Place(qualified(server, uri), server, uri, {}) for server in sorted(fitting)])
    return Missing(uri, tuple(name for name, entry in servers.items() if _may_have(entry)))


def _among(uri: str, places: Iterable[Place]) -> Ambiguous:
    places = tuple(places)
    return Ambiguous(uri, tuple(place.uri for place in places), tuple(place.server for place in places))


def _may_have(entry: ServerEntry | None) -> bool:
    return entry is None or not entry.known or "resources" in entry.capabilities
