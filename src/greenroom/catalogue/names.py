"""Names: how one server's tool is called in a room of many servers.

A name a model may use is `[A-Za-z0-9_-]{1,64}` and belongs to exactly one thing. (The limit can be set, and what a
client puts before our names counts against it: `nameLimit`, `clientPrefix`.) What a server calls its tools can be any
text. So naming has two halves:

1. *Spelling* turns (server, original name, prefix mode) into a legal name. It is total and looks at nothing
   else. Characters outside the alphabet become `_`. A name that is too long is cut and ends in a hash of the
   item's identity.
2. *Settling* (`settle`) makes the names of a whole room unique. Every claim has spellings on several levels,
   from the nicest to one with 128 bits of hash. When claims of different servers propose the same name, all
   of them go up one level, until no two are the same. So the result does not depend on who was first, and no
   tool is dropped. The name that several wanted belongs to none of them: it is remembered as *contested*, and
   a call to it is answered with the candidates. A name that silently means another tool tomorrow is worse
   than an error today. So a server that is added may lengthen a name of others, and never takes one from them.

Within one server no tool can be mistaken for another server's, so there the better claim keeps the name: a
tool before a resource offered as a tool, an exact spelling before a repaired one. Equal claims go up together.

A name cannot be turned back into what it stands for; the index does that. Rejected: reversible escapes
(`_2d_`), which are unreadable and double the length of names; and "first one wins", which makes the meaning of
a call depend on start-up order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from ..config.model import PrefixMode, normal
from ..protocol.lazy_patterns import lazy_pattern

MAX_LENGTH: Final = 64
TAIL: Final = 8  # hex digits of the hash an over-long name ends in
_ILLEGAL: Final = lazy_pattern(r"[^A-Za-z0-9_-]")
_SHORT: Final = lazy_pattern(r"-?mcp$", re.IGNORECASE)
_GET: Final = "get_"
_NOT_SLUG: Final = lazy_pattern(r"[^a-z0-9]+")
_TAILS: Final = (TAIL, 16, 32)  # hash digits on the highest levels
TOP: Final = 1 + len(_TAILS)


# ---- spelling --------------------------------------------------------------------------------------------
def legal(text: str) -> str:
    """`text` with every character outside `[A-Za-z0-9_-]` replaced by `_`; never empty, any length."""
    return _ILLEGAL.sub("_", text) or "_"


@lru_cache(maxsize=4096)
def prefix_of(server: str, mode: PrefixMode) -> str:
    """The prefix of names of `server`, without the joining `_`; empty under `none`.

    `short` drops a trailing `-mcp` or `mcp`, whatever its case; a server called just `mcp` keeps it.
    """
    match mode:
        case PrefixMode.NONE:
            return ""
        case PrefixMode.SHORT:
            return legal(_SHORT.sub("", server) or "mcp")
        case PrefixMode.SERVER:
            return legal(server)
        case PrefixMode.MCP:
            return f"mcp__{legal(server)}"


# Those that a name may be spelled with, whatever the configuration says.
PREFIXES: Final = (PrefixMode.SERVER, PrefixMode.SHORT, PrefixMode.MCP)


def has_prefix(name: str, server: str) -> bool:
    """Whether `name` is spelled like a tool of `server`: its prefix, `_`, and something after it."""
    prefixes = (normal(prefix_of(server, mode)) + "_" for mode in PREFIXES)
    return any(normal(name[: len(prefix)]) == prefix for prefix in prefixes)


def owner_among(servers: Iterable[str], name: str) -> str | None:
    """That of `servers` whose prefix `name` has; of several, the one with the longest name."""
    return max((server for server in servers if has_prefix(name, server)), key=len, default=None)


def resource_name(name: str) -> str:
    """The name, before the prefix, of a resource that is offered as a tool: `get_<slug>`."""
    slug = _NOT_SLUG.sub("_", name.lower()).strip("_")
    if not slug:
        slug = "resource"
    elif slug[0].isdigit():
        slug = f"resource_{slug}"
    return f"{_GET}{slug}"


def other_resource_name(local: str) -> str:
    """The other spelling of `get_<slug>`: pi called it so at first, and `read_<slug>` later. Both are understood."""
    return f"read_{local.removeprefix(_GET)}"


def join(prefix: str, name: str) -> str:
    """`prefix_name`, or `name` alone where there is no prefix. Legal characters, any length."""
    return f"{prefix}_{legal(name)}" if prefix else legal(name)


def tagged(name: str, identity: str, digits: int, limit: int = MAX_LENGTH) -> str:
    """`name`, cut to `limit` characters, ending in `digits` hex digits of the hash of `identity`."""
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: limit - 1 - digits]}_{digest[:digits]}"


class Claim(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An item that needs a name: `original` of `server`. It wants the name `local` (for a resource: `get_<slug>`).

    The garbage collector, which nothing can run beside, need not look at it, for it has texts only.
    """

    server: str
    kind: str
    original: str
    local: str
    mode: PrefixMode
    limit: int = MAX_LENGTH  # the longest name that it may get

    @property
    def identity(self) -> str:
        """Which item this is, whatever its name: no two claims of a room have the same identity."""
        return repr((self.server, self.kind, self.original))

    @property
    def qualified(self) -> str:
        """The name with its server's prefix, also in the mode `none`."""
        mode = PrefixMode.SERVER if self.mode is PrefixMode.NONE else self.mode
        return self._fit(join(prefix_of(self.server, mode), self.local))

    def spelling(self, level: int) -> str:
        """The spelling at `level` (0 to `TOP`): the nicest, the qualified one, then with hash tails."""
        if level == 0:
            return self._fit(join(prefix_of(self.server, self.mode), self.local))
        if level == 1:
            return self.qualified
        return tagged(self.qualified, self.identity, _TAILS[level - 2], self.limit)

    def _fit(self, name: str) -> str:
        return name if len(name) <= self.limit else tagged(name, self.identity, TAIL, self.limit)

    @property
    def rank(self) -> int:
        """How good the claim is among those of one server; lower is better."""
        if self.kind == "resource":
            return 2
        return 0 if self.spelling(0).endswith(self.local) else 1


# ---- settling --------------------------------------------------------------------------------------------
class Proposal(msgspec.Struct, eq=False, gc=False):
    """The name that a claim proposes on one level."""

    claim: Claim
    name: str
    level: int = 0
    _higher: Proposal | None = None

    @classmethod
    def first(cls, claim: Claim) -> Proposal:
        return cls(claim, claim.spelling(0))

    @property
    def higher(self) -> Proposal:
        """The proposal of the same claim, one level up."""
        if self._higher is None:
            level = self.level + 1
            self._higher = Proposal(self.claim, self.claim.spelling(level), level)
        return self._higher


class NameSettlement(msgspec.Struct, frozen=True):
    """A name for every claim. `proposals[i]` has the final name of claim `i`. `contested`: names that none got."""

    proposals: list[Proposal]
    contested: Mapping[str, tuple[int, ...]]


def settle(proposals: Iterable[Proposal]) -> NameSettlement:
    """Give every claim a name of its own, starting from these proposals. Their order does not matter.

    The claims must differ in (server, kind, original). It ends, since proposals only go up and two claims on the
    top level differ by 128 bits of hash.
    """
    proposals = list(proposals)
    if len({proposal.name for proposal in proposals}) == len(proposals):
        return NameSettlement(proposals, {})  # nearly always
    contested: dict[str, set[int]] = {}
    holders: dict[str, list[int]] = {}
    arrivals: Iterable[int] = range(len(proposals))
    while arrivals:
        touched: dict[str, None] = {}
        for i in arrivals:
            touched[proposals[i].name] = None
            holders.setdefault(proposals[i].name, []).append(i)
        leaving: dict[str, set[Proposal]] = {}
        for name in touched:
            leaving[name] = _losers([proposals[i] for i in holders[name]], name in contested)
        arrivals = []
        for name, losers in leaving.items():
            present = holders.pop(name)
            lost = [i for i in present if proposals[i] in losers]
            if len(lost) < len(present):
                holders[name] = [i for i in present if proposals[i] not in losers]
            elif lost:
                contested.setdefault(name, set()).update(lost)
            for i in lost:
                proposals[i] = proposals[i].higher
            arrivals += lost
    return NameSettlement(proposals, {name: tuple(sorted(rivals)) for name, rivals in contested.items()})


def _losers(proposals: list[Proposal], contested: bool) -> set[Proposal]:
    """The proposals that must give up a name. If one proposal wants it, none; otherwise all but the best claim, or all.
    All, if the name was `contested` before.

    Proposals on the top level stay. If only the best claim can still go up, it gives way.
    """
    if len(proposals) < 2 and not contested:
        return set()
    best = None if contested else _best(proposals)
    climbing = {proposal for proposal in proposals if proposal.level < TOP}
    return climbing - {best} or (climbing if len(proposals) > 1 else set())


def _best(proposals: list[Proposal]) -> Proposal | None:
    """The proposal that keeps a name: the best claim, if all claims are of one server and one of them is best."""
    if len({proposal.claim.server for proposal in proposals}) > 1:
        return None
    rank = min(proposal.claim.rank for proposal in proposals)
    best = [proposal for proposal in proposals if proposal.claim.rank == rank]
    return best[0] if len(best) == 1 else None


# ---- selecting -------------------------------------------------------------------------------------------
def spellings(server: str, local: str) -> Iterator[str]:
    """Every way to write one tool of `server` in `includeTools` and `excludeTools`."""
    yield local
    for mode in PREFIXES:
        yield join(prefix_of(server, mode), local)
