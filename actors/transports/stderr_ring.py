"""A server's stderr: it is always drained, and the last part of it is kept.

Nobody reads a server's stderr while all is well, but an unread pipe stops a server that writes to it. So it is
read into a ring of fixed size. When the server fails, the error quotes what is in the ring, without the logins of
the URLs in it.

The quoted lines are those that tell the reason. A program's last lines are often the end of a stack trace, or advice,
and the reason comes before them. So lines that look like an error are quoted first, then what follows the last of
them. Before the end of a Python traceback stands the last of its frames: where the program may be mended. What a server
wrote before it answered again is no reason for its end: of that, `tail` has the last line alone, and only if it looks
like an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...config.scrubbing import without_logins
from ...protocol.safe_text import looks_like_an_error, printable, shortened

_MOST = 6  # quoted lines
_LEAST = 3  # quoted lines when fewer than that look like an error
_QUOTED_LENGTH = 400  # characters of a line
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
_PYTHON_FRAME = re.compile(r'(\s*)File "(?!<frozen ).*", line \d+')
_ANY_PYTHON_FRAME = re.compile(r'(\s*)File ".*", line \d+')
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
    kept: list[str] = []
    frames: dict[int, str] = {}  # by the place of the line behind it: the last frame of a traceback
    frame = before = ""
    for line in said:
        if not _ASIDE.fullmatch(line) and not _is_source(line, before):
            if frame:
                frames[len(kept)] = frame
            kept.append(line)
            frame = ""
        elif _PYTHON_FRAME.match(line):
            frame = line
        before = line
    reasons = [place for place, line in enumerate(kept) if looks_like_an_error(line)]
    if not reasons:
        return tuple((kept or said)[-_LEAST:])
    chosen = reasons[-_MOST:]
    after = range(chosen[-1] + 1, len(kept))
    quoted = [kept[place] for place in (*chosen, *after[: max(0, _LEAST - len(chosen))])]
    framed = [order for order, place in enumerate(chosen) if place in frames]
    if framed:
        quoted.append(frames[chosen[framed[-1]]])  # behind the reason, for whoever reads one line of it
    return tuple(quoted[-_MOST:])


def _is_source(line: str, before: str) -> bool:
    """Whether it is the line of source below a frame of Python, which is indented further. There may be none."""
    found = _ANY_PYTHON_FRAME.match(before)
    return found is not None and len(line) - len(line.lstrip()) > len(found[1])


class StderrRing:
    """The last `size` bytes written to it."""

    __slots__ = ("_begun", "_data", "_news", "_size", "total")

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = bytearray()
        self._begun = 0  # the `total` where begins what has not been forgotten; less by one: within a line
        self._news = 0  # the `total` where begins what came after the last answer
        self.total: int = 0  # bytes that came, kept or not

    def feed(self, chunk: bytes) -> None:
        """Keep the last `size` bytes of all that came."""
        self.total += len(chunk)
        self._data += chunk[-self._size :]
        del self._data[: -self._size]

    def clear(self) -> None:
        """Forget what is kept. The rest of a line that has not ended belongs to it."""
        if self._data:
            self._begun = self.total - (not self._data.endswith(b"\n"))
        self._data.clear()

    def grow_old(self) -> None:
        """The server has answered since it wrote what is kept."""
        self._news = self.total

    @property
    def has_news(self) -> bool:
        """Whether anything that is kept came after the last answer."""
        return bool(self._data[-self._fresh :].strip()) if self._fresh else False

    @property
    def _fresh(self) -> int:
        """How many bytes at the end came after the last answer."""
        return min(self.total - self._news, len(self._data))

    def tail(self, *, news_only: bool = False) -> tuple[str, ...]:
        """The lines that tell the reason (`telling`), printable, each cut to a length that fits in a message.
        `news_only`: of what came after the last answer. If nothing did, the last line of all, if it looks like an
        error."""
        if not news_only:
            return tuple(line.strip() for line in telling(self._lines()))
        if self.has_news:
            return tuple(line.strip() for line in telling(self._lines(self._fresh)))
        last = self.last_line()
        return (last,) if looks_like_an_error(last) else ()

    def last_line(self) -> str:
        """The last line that is not empty, cut; empty when there is none."""
        return next(
            (shortened(line.strip(), _QUOTED_LENGTH) for line in reversed(self._lines()) if line.strip()), ""
        )

    def _lines(self, most: int | None = None) -> list[str]:
        """The kept lines, or those to which the last `most` bytes belong. A first line that is incomplete is left out:
        half a secret would not be recognised."""
        data = self._data
        start = 0 if most is None else data.rfind(b"\n", 0, len(data) - most) + 1
        text = data[start:].decode(errors="replace")
        if self.total - self._begun > len(data) and not start:
            _, newline, rest = text.partition("\n")
            text = rest if newline else text
        return without_logins(printable(text)).splitlines()
