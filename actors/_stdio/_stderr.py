"""The last words of a server: its stderr, drained always and kept a little.

Nobody reads a server's stderr while all is well, but an unread pipe stops the server that writes to it. So it is read
into a ring of fixed size, and what is left there when the server fails is quoted in the error, without the logins of
the URLs in it.
"""

from __future__ import annotations

import re

from ...protocol.secrets import without_logins

_QUOTED = 3
_QUOTED_LENGTH = 400
_UNPRINTABLE = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]"
)  # colours, and what rings the bell


class StderrRing:
    """The last `size` bytes written to it."""

    __slots__ = ("_data", "_size", "total")

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = bytearray()
        self.total = 0  # bytes that came, kept or not

    def feed(self, chunk: bytes) -> None:
        """Keep the end of what came."""
        self.total += len(chunk)
        self._data += chunk[-self._size :]
        del self._data[: -self._size]

    def tail(self) -> tuple[str, ...]:
        """The last three lines that are not empty, printable, each cut to a length a message can carry."""
        return tuple(self._spoken()[-_QUOTED:])

    def last_line(self) -> str:
        """The last line that is not empty, as `tail` has it; empty when there is none."""
        return next(iter(self._spoken()[-1:]), "")

    def _spoken(self) -> list[str]:
        lines = without_logins(_UNPRINTABLE.sub("", self._data.decode(errors="replace"))).splitlines()
        return [line.strip()[:_QUOTED_LENGTH] for line in lines if line.strip()]
