"""Scrubs the results of a server: removes the secrets that are known of it (and of the session that calls), and what
looks like a credential (`protocol.scrubbing`). Whether they are scrubbed at all, `Caller.scrubber` says.
"""

from __future__ import annotations

from ..protocol.scrubbing import scrubbed, scrubbing
from ..protocol.secrets import Secrets
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
