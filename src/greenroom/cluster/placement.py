"""Where an address lives: a pure function of the address and of the hosts that are there.

* It is rendezvous hashing: each host has a score for each address, and the highest wins. So a host that comes or goes
  moves only what it gets or had, and everybody who sees the same hosts finds the same one, without asking.
* Only hosts that have what the server's `placement` wants take part. Its resources are not counted down: they say where
  a server can run, and the pool of a host bounds how many do. A draining host takes part in nothing new.
* A server with one process for all (`needs_claim`) lives where it runs: whoever holds its claim wins over the score. So
  it moves only while it rests, and a host that comes moves nothing that runs.

Rejected: a ring of hashes, which needs many points for each host to be as even, and weights, which would have to be
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import attrs

from ..config.model import Isolation, ServerDefinition
from ..protocol.address import Address
from ..protocol.status import OpenBreaker as OpenBreaker

_NOTHING: Final[Mapping[str, str]] = {}
_64_BITS: Final = (1 << 64) - 1


@attrs.frozen
class HostInfo:
    """One host of a cluster."""

    name: str  # stays the same when its process is started again
    url: str  # of its door, without a path
    epoch: str  # another one for each process
    labels: Mapping[str, str] = attrs.field(
        factory=dict[str, str], hash=False
    )  # for the `placement` of a server
    resources: Mapping[str, float] = attrs.field(factory=dict[str, float], hash=False)  # likewise
    is_draining: bool = False  # it takes no new servers
    is_late: bool = False  # it was not heard of for some time, and its lease is not over
    link_port: int = 0  # of its door for links, at the same address


@attrs.frozen
class ClusterView:
    """The hosts that are there, and which of them holds which server. `number` grows with each change."""

    number: str
    hosts: tuple[HostInfo, ...] = ()
    held: Mapping[str, str] = _NOTHING  # by server: the name of the host that may run it
    config_version: int = 0

    def host(self, name: str | None) -> HostInfo | None:
        """The host of this name, if it is there."""
        return next((host for host in self.hosts if host.name == name), None)

    def held_by(self, name: str) -> list[str]:
        """The servers that the host of this name may run alone, sorted."""
        return sorted(server for server, holder in self.held.items() if holder == name)


def needs_claim(definition: ServerDefinition, isolation: Isolation) -> bool:
    """Whether at most one process of this server may live in the cluster: it is a program that everybody shares."""
    return definition.command is not None and isolation is Isolation.PERSISTENT


def owner(address: Address, placement: Mapping[str, Mapping[str, Any]], view: ClusterView) -> HostInfo | None:
    """The host where `address` lives; None if there is none now: no host has what it wants, or the one that holds the
    server is not heard of. `placement`: of the server's entry."""
    if address.is_shared and (holder := view.held.get(address.server)) is not None:
        host = view.host(holder)
        return None if host is None or host.is_late else host
    key = _hash(str(address))
    able = [host for host in view.hosts if not host.is_late and not host.is_draining]
    if placement:
        able = [host for host in able if _has(host, placement)]
    return max(able, key=lambda host: _mixed(key ^ _hash_of_host(host.name)), default=None)


def why_nowhere(address: Address, placement: Mapping[str, Mapping[str, Any]], view: ClusterView) -> str:
    """Why `owner` finds no host, in words."""
    holder = view.held.get(address.server) if address.is_shared else None
    if holder is not None:
        return f'its host "{holder}" has not been heard of for some seconds'
    there = [host for host in view.hosts if not host.is_late]
    able = [host for host in there if _has(host, placement)]
    if not there:
        return "the cluster has no host now"
    if not able:
        return "no host of the cluster has what its `placement` wants"
    return f"no host may take it: {', '.join(host.name for host in able)} {'drain' if len(able) > 1 else 'drains'}"


def share(most: int, hosts: int) -> int:
    """How much of what the cluster may have one of so many hosts may have."""
    return max(1, -(-most // max(1, hosts)))


def _has(host: HostInfo, placement: Mapping[str, Mapping[str, Any]]) -> bool:
    resources, labels = placement.get("resources", {}), placement.get("labels", {})
    return all(host.resources.get(name, 0) >= amount for name, amount in resources.items()) and all(
        host.labels.get(name) == value for name, value in labels.items()
    )


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


_hash_of_host = lru_cache(10_000)(_hash)  # each address asks for that of every host


def _mixed(both: int) -> int:
    """A score that depends on each bit of two hashes which were laid over each other: the finisher of MurmurHash3."""
    both = (both ^ both >> 33) * 0xFF51AFD7ED558CCD & _64_BITS
    both = (both ^ both >> 33) * 0xC4CEB9FE1A85EC53 & _64_BITS
    return both ^ both >> 33
