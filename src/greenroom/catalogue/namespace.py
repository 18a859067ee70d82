"""Namespaces: many servers' names merged into one, and looked up.

A `ServerNames` holds the names of one server, made unique within that server. It is kept when another server
changes. A `Namespace` merges the `ServerNames` of all servers. Its meaning is simple: settle all claims
together. That is rarely done in full, so the merge is quick: when no two servers want the same name, settling each
server alone gives the same names, and one pass of dict updates shows that no two do.

Look-ups go from certain to lenient and stop at the first level that knows the name: the exposed name; a
contested name (ambiguous); the same name when hyphens equal underscores; a server's prefix followed by that
server's own name. When a level has more than one answer, nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from ..config.model import normal
from ..protocol.errors import CallError
from ..protocol.json_values import object_or_empty
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.result import sdk_types
from ..protocol.safe_text import unhidden
from ..protocol.tasks import runs_only_so
from ..protocol.version_differences import wraps_results
from .entries import Raw, ServerEntry
from .fingerprints import pin_name, tool_changed
from .names import Proposal, other_resource_name, resource_name, settle
from .overrides import ToolOverride
from .skills import name_of as skill_name

if TYPE_CHECKING:
    from mcp_types import Tool

    from ..protocol.header_params import Path
    from .ranking import ToolDocument


SEARCHED = 8_192  # characters of a description that search reads
_MEANT: Final = 300  # of it that are read for the meaning
_PARAMETERS: Final = 20
_MEANING: Final = 2_000
Kind = Literal["tool", "resource", "prompt", "skill"]
Identity = tuple[Kind, str]  # how a server identifies an item: its kind, and its original name or URI


class Target(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The tool, prompt, resource or skill that a name in this room means. `original` is the server's own name for it;
    for a resource, its URI.

    `record` is the server's own object, unchanged but for its `override` (`toolOverrides`) and for hidden characters.
    `description` and `input_schema` are read from it. They are empty and None when the record has none, or none that
    can be used.
    """

    name: str  # the name in this room, as a call gives it
    server: str  # the server that has it
    kind: Kind  # what it is
    original: str  # the server's own name for it; for a resource, its URI
    record: Raw  # the server's own object, with what its entry changes
    description: str  # its text; empty when it has none that can be used
    input_schema: Mapping[str, Any] | None  # of its arguments; None when it has none that can be used
    override: ToolOverride | None = None  # what its entry changes (`toolOverrides`)
    changed: tuple[str, ...] | None = None  # it is quarantined, because these parts have changed
    hidden: str = ""  # the hidden characters of the server's own object, in words

    @property
    def own_name(self) -> str:
        """The server's own name for it; for a renamed tool, its new name."""
        override = self.override
        return self.original if override is None or override.rename is None else override.rename

    @property
    def other_names(self) -> tuple[str, ...]:
        """What else it is called by its server's entry: a renamed tool by its old name, a resource that is offered as a
        tool by either spelling."""
        renamed = () if self.own_name == self.original else (self.original,)
        if self.kind != "resource" or not isinstance(name := self.record.get("name"), str):
            return renamed
        return (*renamed, local := resource_name(name), other_resource_name(local))

    def in_caller_names(self, message: str) -> str:
        """A message of its server, with the names under which its caller knows the tool and its parameters."""
        return message if self.override is None else self.override.told(message, self.original)

    @cached_property
    def is_harmless(self) -> bool:
        """Whether the tool says of itself that running it twice does no harm."""
        if self.kind != "tool":
            return True
        hints = object_or_empty(self.record.get("annotations"))
        return hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True

    @cached_property
    def wrapped_output(self) -> Mapping[str, Any] | None:
        """Its output schema as it is listed, if by that clients of older versions get the structure of its results in
        an object (2026-07-28 allows others). It is looked at once."""
        if self.kind != "tool" or not wraps_results(self.record.get("outputSchema")):
            return None
        schema = self._fitted.get("outputSchema")
        return schema if wraps_results(schema) else None

    @cached_property
    def mirrored(self) -> Mapping[Path, str]:
        """The arguments that clients of 2026-07-28 repeat in HTTP headers. Empty for a tool whose annotations break the
        rules: such clients leave it out."""
        from ..protocol.header_params import mirrored_in

        try:
            return mirrored_in(self.record.get("inputSchema"))
        except ValueError:
            return {}

    def as_dict(self) -> dict[str, Any]:
        """Its fields by their names, as plain JSON, for programs to show."""
        changed = {} if self.changed is None else {"changed": list(self.changed)}
        return {
            "name": self.name,
            "server": self.server,
            "kind": self.kind,
            "original": self.original,
            "description": self.description,
            "input_schema": self.schema(),
            **changed,
        }

    def schema(self) -> dict[str, Any]:
        """The schema of its arguments: always an object schema with `properties`. When the server gives none, or
        one that makes no sense, it allows any object. It is a copy, so you may change it."""
        said = cast("dict[str, Any]", self._fitted.get("inputSchema", {}))
        return {"type": "object", "properties": {}, **deepcopy(said)}

    def to_openai(self) -> dict[str, Any]:
        """The definition in the form of OpenAI's chat completions."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema()}
        return {"type": "function", "function": function}

    def to_anthropic(self) -> dict[str, Any]:
        """The definition in the form of Anthropic's messages."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema()}

    def to_mcp(self) -> Tool:
        """The SDK's `Tool`, under the tool's name in this room. Imports the SDK."""
        said = {**self._fitted, "name": self.name, "inputSchema": self.schema()}
        return sdk_types().Tool.model_validate(said)

    @property
    def faults(self) -> tuple[str, ...]:
        """The parts of the server's own record that clients or the APIs of models would refuse, in words. The tool is
        shown without them."""
        return self._looked_through[1]

    @property
    def _fitted(self) -> Mapping[str, Any]:
        """A tool's record in a form that any client can read. For resources, and if there is no such form, only the
        description."""
        return self._looked_through[0]

    @cached_property
    def _looked_through(self) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        if self.kind != "tool":
            return {"description": self.description}, ()
        from .schema_repair import fit  # not at the head: a client that is shown one tool needs none of it

        record = {**self.record, "name": self.name}
        fitted = fit("tool", record)
        if fitted is None:
            return record, ()
        return fitted.record or {"description": self.description}, fitted.faults

    @cached_property
    def needs_task(self) -> bool:
        """Whether the tool says of itself that it runs only as a task. It is called as any other; we await the task."""
        return self.kind == "tool" and runs_only_so(self.record)

    @cached_property
    def may_be_called(self) -> bool:
        """Whether calls are let through. If not, every call gets `refusal`."""
        return self.changed is None

    def refusal(self) -> CallError:
        """The error of a call to a tool that may not be called."""
        pin = pin_name(self.kind, self.original)
        return tool_changed(self.name, self.server, pin, self.changed or ())

    @property
    def _called(self) -> str:
        """The name that search reads."""
        if self.kind == "skill":
            return skill_name(self.record)
        return self.record["name"] if self.kind == "resource" else unhidden(self.own_name)

    @property
    def meaning(self) -> str:
        """What is read of it to find it by meaning: its server, its name, the beginning of its description, and what
        its parameters are called."""
        from .search_words import normalise

        names = islice(object_or_empty((self.input_schema or {}).get("properties")), _PARAMETERS)
        said = f"{normalise(self.server)} {normalise(self._called)}. {self.description[:_MEANT]} "
        return (said + ", ".join(map(normalise, names)))[:_MEANING]

    @cached_property
    def meaning_key(self) -> bytes:
        """A digest of that."""
        from .vector_file import digest_of

        return digest_of(self.meaning)

    @cached_property
    def document(self) -> ToolDocument:
        """What search reads of it. Only the beginning of a long description counts."""
        from .ranking import ToolDocument

        title = self.record.get("title")
        return ToolDocument.of(
            self.name,
            self._called,
            self.server,
            self.description[:SEARCHED],
            title=title[:SEARCHED] if isinstance(title, str) else "",
            schema=self.input_schema,
        )

    @property
    def is_read(self) -> bool:
        """Whether the document has been made."""
        return "document" in vars(self)

    def remember(self, document: ToolDocument) -> None:
        """Take the document that search made of the same tool before."""
        vars(self)["document"] = document


class AmbiguousName(msgspec.Struct, frozen=True):
    """The name means more than one thing; nothing is chosen. `candidates` are exposed names to use."""

    name: str
    candidates: tuple[str, ...]
    servers: tuple[str, ...]


class MissingName(msgspec.Struct, frozen=True):
    """Nothing known has that name. `servers` may have it once they connect: their prefix matches, longest first."""

    name: str
    servers: tuple[str, ...] = ()


class ServerNames(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The names of one server. `first` are its claims before settling, in the order of `targets`."""

    first: tuple[Proposal, ...]
    targets: tuple[Target, ...]
    exact: Mapping[str, Target]
    contested: Mapping[str, tuple[Target, ...]]

    @classmethod
    def of(cls, members: Iterable[tuple[Proposal, Target]]) -> ServerNames:
        """Settle the claims of one server, starting from their first proposals. An item listed twice counts once."""
        unique: dict[Identity, tuple[Proposal, Target]] = {}
        for proposal, target in members:
            unique.setdefault((target.kind, target.original), (proposal, target))
        if not unique:
            return _NO_NAMES
        first = tuple(proposal for proposal, _ in unique.values())
        return cls(first, *_settled(first, [target for _, target in unique.values()]))

    @cached_property
    def local(self) -> Mapping[str, Iterable[Identity]]:
        """The items that the server calls by each of its own names."""
        found: dict[str, dict[Identity, None]] = {}
        for proposal, target in zip(self.first, self.targets, strict=True):
            for spelling in (target.own_name, proposal.claim.local):
                found.setdefault(spelling, {})[target.kind, target.original] = None
        return found

    @cached_property
    def loose(self) -> Mapping[str, Iterable[Identity]]:
        """As `local`, by the normal form of the name."""
        found: dict[str, Iterable[Identity]] = {}
        for spelling, who in self.local.items():
            key = normal(spelling)
            found[key] = dict.fromkeys((*found[key], *who)) if key in found else who
        return found


_NO_NAMES: Final = ServerNames((), (), {}, {})  # of each server of which nothing is known


def _settled(
    first: Iterable[Proposal], targets: list[Target]
) -> tuple[tuple[Target, ...], dict[str, Target], dict[str, tuple[Target, ...]]]:
    settled = settle(first)
    named = tuple(
        target if target.name == proposal.name else msgspec.structs.replace(target, name=proposal.name)
        for proposal, target in zip(settled.proposals, targets, strict=True)
    )
    contested = {name: tuple(named[i] for i in rivals) for name, rivals in settled.contested.items()}
    return named, {target.name: target for target in named}, contested


class Namespace(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The names of all servers, for one sort of item. Immutable. Tables that few look-ups need are made on demand."""

    by_server: Mapping[str, ServerNames]
    prefixes: Mapping[str, tuple[str, ...]]  # normal form of a prefix -> the servers that have it
    exact: Mapping[str, Target]
    contested: Mapping[str, tuple[Target, ...]]

    @classmethod
    def merged(
        cls, by_server: Mapping[str, ServerNames], prefixes: Mapping[str, tuple[str, ...]]
    ) -> Namespace:
        """The namespace of these servers."""
        exact: dict[str, Target] = {}
        contested: dict[str, tuple[Target, ...]] = {}
        touched = 0
        for own in by_server.values():
            exact.update(own.exact)
            touched += len(own.exact)
            if own.contested:
                contested.update(own.contested)
                touched += len(own.contested)
        if touched != len(exact) + len(contested) or not exact.keys().isdisjoint(contested):
            everyone = by_server.values()
            first = (proposal for own in everyone for proposal in own.first)
            _, exact, contested = _settled(first, [target for own in everyone for target in own.targets])
        return cls(by_server, prefixes, exact, contested)

    def prepare(self) -> None:
        """Make the tables for look-ups of names that are not exposed in exactly that spelling."""
        _ = self.everything, self._loose, self._owned, self._otherwise
        for own in self.by_server.values():
            if own.targets:
                _ = own.loose

    @cached_property
    def everything(self) -> tuple[Target, ...]:
        """All items, by name."""
        return tuple(self.exact[name] for name in sorted(self.exact))

    def of(self, server: str) -> tuple[Target, ...]:
        """The items of `server`, by name."""
        return tuple(sorted(self._owned.get(server, {}).values(), key=lambda target: target.name))

    def resolve(self, name: str, server: str | None = None) -> Target | AmbiguousName | MissingName:
        """What `name` means, among all servers or for one. With a server, that server's own names count too."""
        found = self.exact.get(name)
        if found is not None and server in (None, found.server):
            return found
        levels = self._levels(name) if server is None else self._levels_at(name, server)
        matches = next(filter(None, levels), None)
        if matches:
            return _only(name, matches)
        if server is not None:
            return MissingName(name, (server,) if server in self.by_server else ())
        return MissingName(name, tuple(server for server, _ in self._prefixed(name)))

    def _levels(self, name: str) -> Iterator[list[Target]]:
        yield list(self.contested.get(name, ()))
        yield self._alike(name)
        yield self._behind_prefix(name, self._said)
        yield self._else_said("", name)
        yield self._behind_prefix(name, self._else_said)

    def _levels_at(self, name: str, server: str) -> Iterator[list[Target]]:
        alike = [target for target in self._alike(name) if target.server == server]
        yield self._said_by(server, name)
        yield self._said_about(server, name) + alike
        yield self._behind_prefix(name, self._said, server)
        yield self._else_said(server, name)
        yield self._behind_prefix(name, self._else_said, server)

    def _behind_prefix(
        self, name: str, look: Callable[[str, str], list[Target]], only: str | None = None
    ) -> list[Target]:
        """What the servers whose prefix `name` has (`only`: this one of them) have under the rest of it."""
        found = (look(server, rest) for server, rest in self._prefixed(name) if only in (None, server))
        return [target for targets in found for target in targets]

    def _alike(self, name: str) -> list[Target]:
        return list(self._loose.get(normal(name), ()))

    def _said(self, server: str, name: str) -> list[Target]:
        return self._said_by(server, name) or self._said_about(server, name)

    def _said_by(self, server: str, name: str) -> list[Target]:
        """The item that `server` itself calls `name`."""
        own = self.by_server.get(server)
        return [] if own is None else self._of(server, own.local.get(name, ()))

    def _said_about(self, server: str, name: str) -> list[Target]:
        """The item that `server` itself calls `name`, when hyphens equal underscores."""
        own = self.by_server.get(server)
        return [] if own is None else self._of(server, own.loose.get(normal(name), ()))

    def _else_said(self, server: str, name: str) -> list[Target]:
        """The resources of `server` that `read_…` means, as in pi. Whatever is called so itself comes first."""
        return self._otherwise.get((server, normal(name)), [])

    @cached_property
    def _otherwise(self) -> Mapping[tuple[str, str], list[Target]]:
        """The resources by their server's name and that spelling; by "" and the name they would have with it."""
        found: dict[tuple[str, str], list[Target]] = {}
        for target in self.exact.values():
            if target.kind != "resource":
                continue
            for local in target.other_names:
                found.setdefault((target.server, normal(local)), []).append(target)
                if local.startswith("get_") and target.name.endswith(local):
                    whole = target.name.removesuffix(local) + other_resource_name(local)
                    found.setdefault(("", normal(whole)), []).append(target)
        return found

    def _of(self, server: str, identities: Iterable[Identity]) -> list[Target]:
        return [self._owned[server][who] for who in identities]

    def _prefixed(self, name: str) -> Iterator[tuple[str, str]]:
        """(server, rest of the name) for each server whose prefix `name` starts with, longest first."""
        key = normal(name[: self._reach])
        cut = key.rfind("_")
        while cut >= 0:
            for server in self.prefixes.get(key[:cut], ()):
                yield server, name[cut + 1 :]
            cut = key.rfind("_", 0, cut)

    @cached_property
    def _reach(self) -> int:
        """How many characters of a name can be prefix, with its `_`."""
        return max(map(len, self.prefixes), default=0) + 1

    @cached_property
    def _loose(self) -> Mapping[str, Iterable[Target]]:
        found: dict[str, dict[Target, None]] = {}
        for name, target in self.exact.items():
            found.setdefault(normal(name), {})[target] = None
        for name, rivals in self.contested.items():
            found.setdefault(normal(name), {}).update(dict.fromkeys(rivals))
        return found

    @cached_property
    def _owned(self) -> Mapping[str, Mapping[Identity, Target]]:
        found: dict[str, dict[Identity, Target]] = {}
        for target in self.exact.values():
            found.setdefault(target.server, {})[target.kind, target.original] = target
        return found


def _only(name: str, matches: Iterable[Target]) -> Target | AmbiguousName:
    by_name = {target.name: target for target in matches}
    if len(by_name) == 1:
        return next(iter(by_name.values()))
    candidates = sorted(by_name)
    return AmbiguousName(name, tuple(candidates), tuple(sorted({by_name[c].server for c in candidates})))


# ---- URIs: which server a resource is read from ---------------------------------------------------------------------
#
# We do not rename URIs: clients keep them and servers put them into results, so they pass unchanged. Only if two
# servers list the same URI, each is shown in a qualified spelling: `greenroom://<server>/<the original URI>`. It can be
# decoded without a table and leaves the expressions of a template alone. The bare URI then belongs to no server, and a
# request for it is answered with the candidates. The qualified spelling is always understood, with or without a
# collision. It is looked up before anything that is listed, so no server can take another's place by listing such a
# URI. A server that lists one anyway has it shown in qualified form, like a colliding one, so that it is seen for what
# it is. The pages of MCP Apps are qualified as `ui://greenroom/<server>/<the rest>`, because hosts take no other scheme
# for them, and files of skills in the same way. A skill is always shown so: its files must all be in one folder, and
# which server a skill is of must be seen.
#
# A URI that no server lists may still match a template. The template's fixed parts are compared in order, an expression
# matches anything, and the time is linear. This only has to tell servers apart; the server says whether the resource
# exists. Rejected: a hash in place of the URI, which nobody can read and no template can carry.

_SCHEME: Final = "greenroom://"
# Of these, hosts take no other scheme (pages), or look for it first (skills).
_KEPT: Final = ("ui://", "skill://")
_OUR_HOST: Final = "greenroom/"
_OURS: Final = (_SCHEME, *(f"{scheme}{_OUR_HOST}" for scheme in _KEPT))
_LONGEST: Final = max(map(len, _OURS))
_EXPRESSION: Final = lazy_pattern(r"\{[^{}]*\}")


class ResourceEntry(msgspec.Struct, frozen=True, eq=False):
    """A resource or resource template, and the server that has it."""

    uri: str  # the URI that clients see
    server: str  # the server that has it
    original: str  # the server's own URI for it
    record: Raw  # the server's object, without hidden characters; of a quarantined one, what is shown in its place
    changed: tuple[str, ...] | None = None  # it is quarantined, because these parts have changed


def qualified(server: str, uri: str) -> str:
    """The spelling of `uri` that names its server."""
    for scheme in _KEPT:
        if uri.startswith(scheme):
            return f"{scheme}{_OUR_HOST}{quote(server, safe='')}/{uri.removeprefix(scheme)}"
    return f"{_SCHEME}{quote(server, safe='')}/{uri}"


def is_ours(uri: str) -> bool:
    """Whether `uri` is a spelling of ours; case does not matter in schemes and hosts."""
    return uri[:_LONGEST].lower().startswith(_OURS)


def unqualified(uri: str) -> tuple[str, str] | None:
    """(server, original URI) of a qualified spelling."""
    if not is_ours(uri):
        return None
    before = next((kept for kept in _KEPT if uri[: len(kept)].lower() == kept), "")
    start = len(before) + len(_OUR_HOST) if before else len(_SCHEME)
    server, slash, original = uri[start:].partition("/")
    return (unquote(server), before + original) if slash else None


class UriSpace(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All resources or all templates of a room."""

    exact: Mapping[str, ResourceEntry]
    contested: Mapping[str, tuple[ResourceEntry, ...]]

    @classmethod
    def of(cls, places: Iterable[ResourceEntry]) -> UriSpace:
        """The space of these places. An item that a server lists twice counts once."""
        found: dict[str, dict[str, ResourceEntry]] = {}
        for place in places:
            found.setdefault(place.uri, {}).setdefault(place.server, place)
        return cls(*_apart(found))

    @cached_property
    def everything(self) -> tuple[ResourceEntry, ...]:
        """All of them, sorted by the URI that clients see."""
        return tuple(self.exact[uri] for uri in sorted(self.exact))

    def of_server(self, server: str) -> tuple[ResourceEntry, ...]:
        return tuple(place for place in self.everything if place.server == server)

    @cached_property
    def shapes(self) -> tuple[tuple[ResourceEntry, list[str]], ...]:
        """Each template with its fixed parts."""
        return tuple((place, _EXPRESSION.split(place.original)) for place in self.everything)

    def matching(self, uri: str) -> list[ResourceEntry]:
        """The templates that `uri` matches."""
        return [place for place, parts in self.shapes if _fits(uri, parts)]


def template_fits(template: str, uri: str) -> bool:
    """Whether `uri` may be one of this template."""
    return _fits(uri, _EXPRESSION.split(template))


def _apart(
    found: Mapping[str, Mapping[str, ResourceEntry]],
) -> tuple[dict[str, ResourceEntry], dict[str, tuple[ResourceEntry, ...]]]:
    exact: dict[str, ResourceEntry] = {}
    contested: dict[str, tuple[ResourceEntry, ...]] = {}
    for uri, owners in found.items():
        if len(owners) == 1 and not is_ours(uri):
            exact[uri] = next(iter(owners.values()))
            continue
        rivals = [replace(owners[server], uri=qualified(server, uri)) for server in sorted(owners)]
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
) -> ResourceEntry | AmbiguousName | MissingName:
    """What `uri` means. `MissingName.servers`: the servers that may have resources which are not listed."""
    listed = resources.exact.get(uri)  # a URI of our scheme is in here only in our own spelling
    if listed is not None:
        return listed
    if is_ours(uri):
        named = unqualified(uri)
        return (
            ResourceEntry(uri, *named, record={})
            if named is not None and named[0] in servers
            else MissingName(uri, ())
        )
    if uri in resources.contested:
        return _among(uri, resources.contested[uri])
    fitting = {place.server: place for place in templates.matching(uri)}
    if len(fitting) == 1:
        (server,) = fitting
        return ResourceEntry(uri, server, uri, record={})
    if fitting:
        return _among(
            uri, [ResourceEntry(qualified(server, uri), server, uri, {}) for server in sorted(fitting)]
        )
    return MissingName(uri, tuple(name for name, entry in servers.items() if _may_have(entry)))


def _among(uri: str, places: Iterable[ResourceEntry]) -> AmbiguousName:
    places = tuple(places)
    return AmbiguousName(uri, tuple(place.uri for place in places), tuple(place.server for place in places))


def _may_have(entry: ServerEntry | None) -> bool:
    return entry is None or not entry.known or "resources" in entry.capabilities
