"""Whether the results of a server are scrubbed, and of what.

The configuration says it, for all servers and for each: not at all, where a model is given them by a tool of ours, or
everywhere. It is asked at each result, so a reload counts at once. Removed are the secrets that are known of the server
(and of the session that calls), and what looks like a credential (`protocol.scrubbing`).
"""

from __future__ import annotations

from ..protocol.config import Config, Scrub
from ..protocol.scrubbing import scrubbed, scrubbing
from ..protocol.secrets import KnownSecrets, Secrets
from ..protocol.slices import Slices


class Scrubber:
    """Scrubs the results of one server. `known`: its secrets."""

    def __init__(self, known: Secrets) -> None:
        self._known = known

    def scrub(self, raw: bytes) -> bytes:
        """The JSON text of a small result without credentials."""
        return scrubbed(raw, self._known.in_json())

    def scrubbing(self, raw: bytes) -> Slices[bytes]:
        """The same of a result of any size, in slices."""
        return scrubbing(raw, self._known.in_json())


def scrubber_of(
    config: Config, known: KnownSecrets, session: str | None, server: str, door: Scrub
) -> Scrubber | None:
    """What scrubs results of the server at this door; None: nothing does. `known`: the secrets of all servers and
    sessions. `door`: `MCP`, or `ALL` for any other."""
    definition = config.servers.get(server)
    rule = (definition.scrub if definition is not None else None) or config.settings.scrub
    if rule is Scrub.OFF or (rule is Scrub.MCP and door is not Scrub.MCP):
        return None
    return Scrubber(known.of_server(server, session))
