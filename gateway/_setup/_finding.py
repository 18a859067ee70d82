"""What a check of `greenroom doctor` gets, and what it yields."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ...protocol.config import Config, ServerDefinition, with_settings
from ...protocol.errors import ConfigError
from ...protocol.interpolate import expand_definition
from .._commands import Commands

if TYPE_CHECKING:
    from .._offline import OfflineCatalogue


class Severity(enum.StrEnum):
    ERROR = "error"  # something does not work
    WARNING = "warning"  # something will go wrong, or is not safe
    NOTE = "note"  # worth knowing


@attrs.frozen
class Finding:
    """One thing that is wrong. `about`: a server, a file or a process. `mend`: a command, or what to do."""

    severity: Severity
    check: str
    about: str
    what: str
    mend: str

    def as_dict(self) -> dict[str, str]:
        """As it stands in `--json`."""
        said = {"check": self.check, "about": self.about, "what": self.what, "mend": self.mend}
        return {"severity": self.severity.value, **said}


@attrs.define(slots=False)
class Setup:
    """What the checks look at, and which starts they have seen. `path`: the file that was named; `commands`: ours, as
    they are typed for it."""

    config: Config
    path: Path | None
    environ: Mapping[str, str]
    commands: Commands = attrs.field(factory=Commands)
    seen_starting: set[str] = attrs.field(
        factory=set[str]
    )  # servers of which a running gateway knows a start

    @cached_property
    def catalogue(self) -> OfflineCatalogue:
        """What the cache knows; starts nothing."""
        from .._offline import open_catalogue

        return open_catalogue(self.config)

    def in_service(self) -> Iterator[ServerDefinition]:
        return (server for server in self.config.servers.values() if not server.disabled)

    def expanded(self, server: ServerDefinition) -> ServerDefinition | None:
        """The definition with its references; None when that cannot be (another check says why)."""
        with suppress(ConfigError):
            return expand_definition(with_settings(server, self.config.settings), self.environ).definition
        return None
