"""A server's stderr: it is always drained, and the last part of it is kept.

Nobody reads a server's stderr while all is well, but an unread pipe stops a server that writes to it. So it is
read into a ring of fixed size. When the server fails, the error quotes what is in the ring, without the logins of
the URLs in it.

The quoted lines are those that tell the reason. A program's last lines are often the end of a stack trace, or advice,
and the reason comes before them. So lines that look like an error are quoted first, then what follows the last of
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...config.scrubbing import without_logins
from ...protocol.safe_text import printable, shortened

_MOST = 6  # quoted lines
_LEAST = 3  # quoted lines when fewer than that look like an error
_QUOTED_LENGTH = 400  # characters of a line
_REASON = re.compile(
    r"\w(?:Error|Exception)\b|"
    r"\b(?:error|err!|fatal|panic|panicked|exception|failed|failure|cannot|can't|could not|couldn't|unable|unhandled|"
    r"uncaught|denied|refused|not found|no such|does not exist|missing|invalid|unknown|unrecogni[sz]ed|caused by|"
    r"already in use|out of memory|killed)\b|^\s*[×╰]",
    re.IGNORECASE,
)
# Lines that say where it happened, or give advice: never the reason.
_ASIDE = re.compile(
    r"\s*(?:"
    r"at .*[):\d]\s*\{?|\.\.\. \d+ (?:more|lines).*|"  # frames of JavaScript and Java
    r'File ".*", line \d+.*|Traceback \(.*|(?:The above|During handling of the above) exception.*|'  # of Python
    r"goroutine \d+ .*|\S+\(.*\)|\S+\.go:\d+.*|exit status \d+|\[signal .*|"  # of Go
    r"note: run with .*|stack backtrace:|\d+: .*|"  # of Rust
    r"throw\b.*|node:\S+:\d+|\S+\.[cm]?[jt]s:\d+|Node\.js v\S+|"
    r"(?:npm|pnpm) (?:error|ERR!)(?: code E\w+|[\s\d]*|[^\w]*)|(?:npm|pnpm) .*(?:complete log|debug-\d).*|"
    r"npm .*(?:Note that you can|tarball, folder).*|"
    r"See 'docker .*|Run 'docker .*|"
    r"[^\w×╰]*"  # brackets, and carets below a line of source
    r")"
)
_PYTHON_FRAME = re.compile(r'\s*File ".*", line \d+')
# A script of a package has failed: npm's own log has what the script printed.
_SCRIPT_FAILED = re.compile(r"p?npm (?:error|ERR!) (?:command |code (?:ELIFECYCLE|\d+)$|Failed at the )")
_ITS_LOG = re.compile(r"p?npm (?:error|ERR!) .*?(\S+[-_]debug(?:-\d+)?\.log)\s*$")


def telling(lines: Sequence[str]) -> tuple[str, ...]:
    """Those of a program's last lines that tell why it failed: at most six, in their order, each cut to a length; then
    where npm's own log is, if npm failed in a script of a package."""
    log = next((found[1] for line in reversed(lines) if (found := _ITS_LOG.match(line))), None)
    if log is None or not any(map(_SCRIPT_FAILED.match, lines)):
        return _telling(lines)
    others = [line for line in lines if not _ITS_LOG.match(line)]
    return (*_telling(others), f"A complete log of this run can be found in: {log}")


def _telling(lines: Sequence[str]) -> tuple[str, ...]:
    said = [shortened(line, _QUOTED_LENGTH) for line in lines if line.strip()]
    kept = [
        line
        for before, line in zip(["", *said], said, strict=False)
        if not _ASIDE.fullmatch(line) and not _PYTHON_FRAME.match(before)
    ]
    reasons = [place for place, line in enumerate(kept) if _REASON.search(line)]
    if not reasons:
        return tuple((kept or said)[-_LEAST:])
    chosen = reasons[-_MOST:]
    after = range(chosen[-1] + 1, len(kept))
    return tuple(kept[place] for place in (*chosen, *after[: max(0, _LEAST - len(chosen))]))


class StderrRing:
    """The last `size` bytes written to it."""

    __slots__ = ("_data", "_size", "total")

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = bytearray()
        self.total: int = 0  # bytes that came, kept or not

    def feed(self, chunk: bytes) -> None:
        """Keep the last `size` bytes of all that came."""
        self.total += len(chunk)
        self._data += chunk[-self._size :]
        del self._data[: -self._size]

    def tail(self) -> tuple[str, ...]:
        """The lines that tell the reason (`telling`), printable, each cut to a length that fits in a message."""
        return tuple(line.strip() for line in telling(self._lines()))

    def last_line(self) -> str:
        """The last line that is not empty, cut; empty when there is none."""
        return next(
            (shortened(line.strip(), _QUOTED_LENGTH) for line in reversed(self._lines()) if line.strip()), ""
        )

    def _lines(self) -> list[str]:
        """The kept lines. A first line that is incomplete is left out: half a secret would not be recognised."""
        text = self._data.decode(errors="replace")
        if self.total > len(self._data):
            _, newline, rest = text.partition("\n")
            text = rest if newline else text
        return without_logins(printable(text)).splitlines()
