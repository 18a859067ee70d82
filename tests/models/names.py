"""Naming, with pencil and paper: everybody at once, round after round, until nobody shares a name.

A claimant climbs from the nicest spelling to ones with more and more hash. Who shares a name with another server's
claimant leaves it, all of them, and it is nobody's from then on. Within one server the one best claim stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from greenroom.catalogue.names import TOP, Claim, prefix_of
from greenroom.config.model import PrefixMode


def settled(claims: Sequence[Claim]) -> tuple[list[str], dict[str, set[int]]]:
    """The name of each claim, and who fought over each name that is nobody's."""
    rungs = [0] * len(claims)
    contested: dict[str, set[int]] = {}
    while True:
        leaving: set[int] = set()
        for name, sharing in _by_name(claims, rungs).items():
            movers = {i for i in sharing if rungs[i] < TOP}
            if name in contested:
                contested[name] |= movers
            elif len(sharing) == 1:
                continue
            elif (best := _best(claims, sharing)) is not None:
                movers -= {best}
            elif len(movers) == len(sharing):
                contested[name] = set(sharing)
            leaving |= movers
        if not leaving:
            names = [claim.spelling(rung) for claim, rung in zip(claims, rungs, strict=True)]
            return names, contested
        for i in leaving:
            rungs[i] += 1


def _by_name(claims: Sequence[Claim], rungs: Sequence[int]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for i, (claim, rung) in enumerate(zip(claims, rungs, strict=True)):
        found[claim.spelling(rung)].append(i)
    return found


def _best(claims: Sequence[Claim], sharing: Sequence[int]) -> int | None:
    """Of one server: a tool before a resource, a faithful spelling before a repaired one; equals have no best."""
    if len({claims[i].server for i in sharing}) != 1:
        return None
    lowest = min(_rank(claims[i]) for i in sharing)
    first = [i for i in sharing if _rank(claims[i]) == lowest]
    return first[0] if len(first) == 1 else None


def _rank(claim: Claim) -> int:
    if claim.kind == "resource":
        return 2
    return 0 if claim.spelling(0).endswith(claim.local) else 1


# ---- look-ups ------------------------------------------------------------------------------------------------------


def meaning(name: str, claims: Sequence[Claim], servers: Sequence[str], mode: PrefixMode) -> object:
    """What `name` is taken for: (server, original); the names to choose from; or the servers worth asking.

    An exact name beats a hyphen-equal one, that beats a server's prefix with its own name behind it. A name fought over
    is what it was fought over for. Several answers of one kind are never chosen from.
    """
    names, contested = settled(claims)
    everyone = range(len(claims))
    by_prefix = {server: _behind_prefix(name, server, mode) for server in servers}
    for level in (
        [i for i in everyone if names[i] == name],
        [i for i in everyone if i in contested.get(name, ())],
        [i for i in everyone if _alike(name, names[i]) or _fought_alike(name, i, contested)],
        [i for server, rests in by_prefix.items() for rest in rests for i in said(rest, server, claims)],
    ):
        if len({names[i] for i in level}) == 1:
            return claims[level[0]].server, claims[level[0]].original
        if level:
            return sorted({names[i] for i in level})
    return {server for server, rests in by_prefix.items() if rests}


def said(name: str, server: str, claims: Sequence[Claim]) -> list[int]:
    """What the server itself calls so; if nothing, what it calls something hyphen-equal."""
    own = [i for i, claim in enumerate(claims) if claim.server == server]
    return [i for i in own if claims[i].local == name] or [i for i in own if _alike(claims[i].local, name)]


def _alike(one: str, other: str) -> bool:
    return one.replace("-", "_") == other.replace("-", "_")


def _fought_alike(name: str, i: int, contested: Mapping[str, set[int]]) -> bool:
    return any(_alike(name, fought) and i in rivals for fought, rivals in contested.items())


def _behind_prefix(name: str, server: str, mode: PrefixMode) -> list[str]:
    """What follows the prefix of `server` in `name`, if it starts with it."""
    prefix = prefix_of(server, PrefixMode.SERVER if mode is PrefixMode.NONE else mode) + "_"
    return [name[len(prefix) :]] if _alike(name[: len(prefix)], prefix) else []
