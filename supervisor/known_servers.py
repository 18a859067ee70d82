"""What is known of servers: read from the cache when a room begins or has another configuration, and made from the
lists that a server gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from ..actors.peer import Handshake, Listing
from ..actors.server import ServerActor
from ..catalogue.entries import LastFailure, Raw, ServerEntry
from ..catalogue.fingerprints import PinKey
from ..catalogue.skills import has_skills
from ..catalogue.store import CatalogueStore, catalogue_keys, pin_keys
from ..config.model import Config
from ..config.references import session_variables
from ..protocol.bounds import PROBLEMS
from ..protocol.safe_text import unhidden
from ..safety.pins_file import PinStore, ServerPins
from .servers import ServerRecord
from .session_lists import told


class CachedServers(msgspec.Struct, frozen=True):
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


def recall(config: Config, store: CatalogueStore, pins: PinStore) -> CachedServers:
    """What the cache knows of the servers as this configuration defines them. May run in a thread."""
    hashes = catalogue_keys(config)
    keys = pin_keys(config, hashes)
    loaded = store.load(hashes)
    pinned, warning = pins.load(keys)
    # Everything that this run reads from a server is newer than what an earlier run wrote.
    current = {
        name: replace(entry, revision=0)
        for name, entry in loaded.entries.items()
        if not session_variables(
            config.servers[name]
        )  # older versions of Greenroom saved lists that belong to one session
    }
    variants = [replace(entry, revision=0) for entry in loaded.variants if entry.server in current]
    warnings = [each for each in (loaded.warning, warning) if each is not None]
    now = partial(catalogue_keys, config)
    return CachedServers(
        hashes, current, keys, pinned, warnings, loaded.failures, now, variants, loaded.searched
    )


def entry_of(
    record: ServerRecord,
    actor: ServerActor,
    definition_hash: str,
    handshake: Handshake,
    listing: Listing,
    revision: int,
) -> ServerEntry:
    """The entry of the actor's server, from the lists that it has just given."""
    return ServerEntry(
        server=actor.address.server,
        definition_hash=definition_hash,
        tools=_known(listing.tools, "tools", handshake),
        resources=_known(listing.resources, "resources", handshake),
        templates=_known(listing.templates, "resources", handshake),
        prompts=_known(listing.prompts, "prompts", handshake),
        skills=listing.skills if has_skills(handshake.capabilities) else (),
        instructions=handshake.instructions,
        server_info=handshake.server_info,
        capabilities=handshake.capabilities,
        protocol_version=record.server.era_hint,
        problems=tuple(dict.fromkeys(map(unhidden, listing.problems)))[:PROBLEMS],
        fetched_at=time.time(),
        revision=revision,
        told=told(actor.declared or {}),
    )


_MOST_UNWRITTEN: Final = 3600.0  # seconds until lists that are the same are written again
_content: Final = attrgetter(
    "definition_hash", "tools", "resources", "templates", "prompts", "skills", "instructions", "server_info",
    "capabilities", "protocol_version", "problems", "told",
)  # fmt: skip


def is_unchanged(known: ServerEntry, entry: ServerEntry, max_age: float) -> bool:
    """Whether a server that is connected again lists what is known of it already, so that there is nothing to publish
    or to write. What is older than an hour, or than half of the `max_age` for which the cache keeps it, is written
    again all the same; and so is a server with a tool in quarantine, which the owner may have accepted elsewhere."""
    if entry.tools is not known.tools or known.pinned.changed:
        return False
    is_recent = entry.fetched_at - known.fetched_at < min(_MOST_UNWRITTEN, max_age / 2)
    return is_recent and _content(known) == _content(entry)


def _known(listed: tuple[Raw, ...] | None, capability: str, handshake: Handshake) -> tuple[Raw, ...] | None:
    """A list as the catalogue keeps it: empty if the server lacks the capability, None if the list could not be
    read."""
    return () if listed is None and capability not in handshake.capabilities else listed
