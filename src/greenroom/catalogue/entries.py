"""Catalogue records: what is known about a server, independent of any connection to it.

Records keep the server's own objects (`raw`) under their original names. So a change of prefix invalidates nothing,
and a client behind the gateway sees every field that the server sent. `None` means *unknown* and an empty tuple means
*known to be empty*; the two are never confused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ..protocol.json_values import object_or_empty

Raw = Mapping[str, Any]


def definitions_of(tools: Iterable[Raw] | None) -> int:
    """How many definitions the schemas of these tools have. Each is about as much work as a tool without any."""
    schemas = (object_or_empty(tool.get("inputSchema")) for tool in tools or ())
    return sum(len(object_or_empty(schema.get("$defs"))) for schema in schemas)


def _no_raw() -> Raw:
    return {}


class DefinitionPins(msgspec.Struct, frozen=True):
    """What is known of a server's pinned definitions: which tools are not as they were first shown (`pinning`)."""

    # Tools and skills that are not as they were first shown, by the names of their pins: which of their parts changed.
    changed: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    flapping: frozenset[str] = frozenset()  # those of them that change again and again
    was: Mapping[str, Raw] = msgspec.field(
        default_factory=dict[str, Raw]
    )  # how they were first shown, as far as it is known


NOT_PINNED: Final = DefinitionPins()


class ServerEntry(msgspec.Struct, frozen=True, eq=False):
    """What one server has listed and said about itself, at one moment and for one definition."""

    server: str  # its name in the configuration
    definition_hash: str  # of the entry for which this was listed
    tools: tuple[Raw, ...] | None = None  # None: they are unknown
    resources: tuple[Raw, ...] | None = None  # None: they are unknown
    templates: tuple[Raw, ...] | None = None  # None: they are unknown
    prompts: tuple[Raw, ...] | None = None  # None: they are unknown
    skills: tuple[Raw, ...] | None = None  # None: they are unknown
    instructions: str | None = None  # its text for models, of `initialize`
    server_info: Raw = msgspec.field(default_factory=_no_raw)  # its `serverInfo`
    capabilities: Raw = msgspec.field(default_factory=_no_raw)  # what it declared
    protocol_version: str | None = None  # the version it last chose freely; the next connect needs no probe
    problems: tuple[str, ...] = ()  # what is missing from the lists and why, in words
    fetched_at: float = 0.0  # wall clock, seconds since the epoch; nothing else uses the wall clock
    revision: int = 0  # grows with every fetch that begins: an older answer never overwrites a newer one
    told: str = ""  # a hash of what it was told that its client can be asked; empty: nothing
    # The next two are not kept with it: `pinning` has a file of its own.
    pinned: DefinitionPins = NOT_PINNED  # what was accepted of its definitions
    prints: Mapping[str, str] | None = None  # by tool; set while some of them are to be written to that file

    @property
    def known(self) -> bool:
        """Whether it has listed its tools."""
        return self.tools is not None


class LastFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a server last failed. It is kept, as it is here, beside the server's entry, and forgotten when the server
    connects."""

    at: float  # wall clock, seconds since the epoch
    why: str = ""  # with the last lines of its stderr, without secrets
    starts: int = 0  # the starts that failed in a row; 0: it was lost while it ran
    needs_login: bool = False
    kind: str = "other"  # a `FailureKind`


Failures = Mapping[tuple[str, str], LastFailure | None]  # by server and definition hash; None: it works again
