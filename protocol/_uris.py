"""URIs: which server a resource is read from.

We do not rename URIs: clients keep them and servers put them into results, so they pass unchanged. Only if two servers
list the same URI, each is shown in a qualified spelling: `greenroom://<server>/<the original URI>`. It can be decoded
without a table and leaves the expressions of a template alone. The bare URI then belongs to no server, and a request
for it is answered with the candidates. The qualified spelling is always understood, with or without a collision. It is
looked up before anything that is listed, so no server can take another's place by listing such a URI. A server that
lists one anyway has it shown in qualified form, like a colliding one, so that it is seen for what it is. The pages of
MCP Apps are qualified as `ui://greenroom/<server>/<the rest>`, because hosts take no other scheme for them.

A URI that no server lists may still match a template. The template's fixed parts are compared in order, an expression
matches anything, and the time is linear. This only has to tell servers apart; the server says whether the resource
exists. Rejected: a hash in place of the URI, which nobody can read and no template can carry.
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
from .plain_text import unhidden
from .slices import Pace, Slices, finish
from .unhiding import unhidden_record

_SCHEME: Final = "greenroom://"
_PAGE: Final = "ui://"
_OUR_PAGE: Final = "ui://greenroom/"
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


@attrs.frozen(eq=False)
class Place:
    """Where a resource (or template) is: `uri` is what clients see, `original` is what its server calls it. `record`:
    without hidden characters."""

    uri: str
    server: str
    original: str
    record: Raw


def qualified(server: str, uri: str) -> str:
    """The spelling of `uri` that names its server."""
    if uri.startswith(_PAGE):
        return f"{_OUR_PAGE}{quote(server, safe='')}/{uri.removeprefix(_PAGE)}"
    return f"{_SCHEME}{quote(server, safe='')}/{uri}"


def is_ours(uri: str) -> bool:
    """Whether `uri` is a spelling of ours; case does not matter in schemes and hosts."""
    return uri[: len(_OUR_PAGE)].lower().startswith((_SCHEME, _OUR_PAGE))


def unqualified(uri: str) -> tuple[str, str] | None:
    """(server, original URI) of a qualified spelling."""
    if not is_ours(uri):
        return None
    scheme, before = (_OUR_PAGE, _PAGE) if uri[: len(_PAGE)].lower() == _PAGE else (_SCHEME, "")
    server, slash, original = uri[len(scheme) :].partition("/")
    return (unquote(server), before + original) if slash else None


@attrs.frozen(eq=False)
class UriSpace:
    """All resources or all templates of a room."""

    exact: Mapping[str, Place]
    contested: Mapping[str, tuple[Place, ...]]

    @classmethod
    def of(cls, entries: Mapping[str, ServerEntry | None], field: str, key: str) -> UriSpace:
        """The items in `field` of every entry, each known by its `key`. An item that a server lists twice counts
        once."""
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
                    shown, record = unhidden(uri), unhidden_record(record)[0]
                    found.setdefault(shown, {}).setdefault(server, Place(shown, server, uri, record))
                if pace.due():
                    yield
        if pace.due(len(found) // 100):
            yield
        return cls(*_apart(found))

    @cached_property
    def everything(self) -> tuple[Place, ...]:
        """All of them, sorted by the URI that clients see."""
        return tuple(self.exact[uri] for uri in sorted(self.exact))

    def of_server(self, server: str) -> tuple[Place, ...]:
        return tuple(place for place in self.everything if place.server == server)

    @cached_property
    def shapes(self) -> tuple[tuple[Place, list[str]], ...]:
        """Each template with its fixed parts."""
        return tuple((place, _EXPRESSION.split(place.original)) for place in self.everything)

    def matching(self, uri: str) -> list[Place]:
        """The templates that `uri` matches."""
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
    """What `uri` means. `Missing.servers`: the servers that may have resources which are not listed."""
    listed = resources.exact.get(uri)  # a URI of our scheme is in here only in our own spelling
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
