"""What is known of servers. It is read from the cache at boot, and made from the lists that a server gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs

from ..actors import Handshake, Listing, ServerActor, declared_to
from ..protocol.bounds import PROBLEMS
from ..protocol.catalogue import LastFailure, Raw, ServerEntry
from ..protocol.config import Config
from ..protocol.interpolate import session_variables
from ..protocol.pinning import PinKey, ServerPins
from ..protocol.plain_text import unhidden
from ._own_lists import told
from ._records import record_of
from ._stores import CatalogueStore, PinStore
from .catalogue_keys import catalogue_keys, pin_keys


@attrs.frozen
class Recalled:
    """What the cache knows of a configuration's servers, by their names. `warnings` are texts."""

    hashes: Mapping[str, str]
    entries: Mapping[str, ServerEntry]
    pin_keys: Mapping[str, PinKey]
    pins: Mapping[str, ServerPins]
    warnings: Sequence[str]
    failures: Mapping[str, LastFailure] = MappingProxyType({})
    hashes_now: Callable[[Iterable[str]], Mapping[str, str]] | None = None  # of these servers; it may block
    variants: Sequence[ServerEntry] = ()  # all entries of each, whatever it was told of its client
    searched: Mapping[str, bytes] = MappingProxyType({})  # what search has made of their tools


def recall(config: Config, store: CatalogueStore, pins: PinStore) -> Recalled:
    """What the cache knows of the servers as this configuration defines them. May run in a thread."""
    hashes = catalogue_keys(config)
    keys = pin_keys(config, hashes)
    loaded = store.load(hashes)
    pinned, warning = pins.load(keys)
    # Everything that this run reads from a server is newer than what an earlier run wrote.
    current = {
        name: attrs.evolve(entry, revision=0)
        for name, entry in loaded.entries.items()
        if not session_variables(
            config.servers[name]
        )  # an older version of ours has kept what is a session's
    }
    variants = [attrs.evolve(entry, revision=0) for entry in loaded.variants if entry.server in current]
    warnings = [each for each in (loaded.warning, warning) if each is not None]
    now = partial(catalogue_keys, config)
    return Recalled(hashes, current, keys, pinned, warnings, loaded.failures, now, variants, loaded.searched)


def entry_of(
    actor: ServerActor, definition_hash: str, handshake: Handshake, listing: Listing, revision: int
) -> ServerEntry:
    """The entry of the actor's server, from the lists that it has just given."""
    return ServerEntry(
        server=actor.address.server,
        definition_hash=definition_hash,
        tools=_known(listing.tools, "tools", handshake),
        resources=_known(listing.resources, "resources", handshake),
        templates=_known(listing.templates, "resources", handshake),
        prompts=_known(listing.prompts, "prompts", handshake),
        instructions=handshake.instructions,
        server_info=handshake.server_info,
        capabilities=handshake.capabilities,
        protocol_version=record_of(actor).server.era_hint,
        problems=tuple(dict.fromkeys(map(unhidden, listing.problems)))[:PROBLEMS],
        fetched_at=time.time(),
        revision=revision,
        told=told(declared_to(actor) or {}),
    )


def _known(listed: tuple[Raw, ...] | None, capability: str, handshake: Handshake) -> tuple[Raw, ...] | None:
    """A list as it is known. A server without the capability has an empty list; a list that failed is
    unknown."""
    return () if listed is None and capability not in handshake.capabilities else listed
