"""Catalogue records: what is known about a server, independent of any connection to it.

Records keep the server's own objects (`raw`) under their original names. So a change of prefix invalidates nothing,
and a client behind the gateway sees every field that the server sent. `None` means *unknown* and an empty tuple means
*known to be empty*; the two are never confused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

Raw = Mapping[str, Any]


def _no_raw() -> Raw:
    return {}


@attrs.frozen(eq=False)
class ServerEntry:
    """What one server said about itself at one moment, for one definition."""

    server: str
    definition_hash: str
    tools: tuple[Raw, ...] | None = None
    resources: tuple[Raw, ...] | None = None
    templates: tuple[Raw, ...] | None = None
    prompts: tuple[Raw, ...] | None = None
    instructions: str | None = None
    server_info: Raw = attrs.field(factory=_no_raw)
    capabilities: Raw = attrs.field(factory=_no_raw)
    protocol_version: str | None = None  # the version it last chose freely; the next connect needs no probe
    problems: tuple[str, ...] = ()  # what is missing from the lists and why, in words
    fetched_at: float = 0.0  # wall clock, seconds since the epoch; nothing else uses the wall clock
    revision: int = 0  # grows with every fetch that begins: an older answer never overwrites a newer one

    @property
    def known(self) -> bool:
        return self.tools is not None
