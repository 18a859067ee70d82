"""A stdio server's connection: its child, its peer, and the ways they end.

Three signs show that it is over: end of file, a broken pipe, the leader's exit. They come in any order, or alone. The
first sign starts the end. We wait a moment for the exit code, read what the child wrote before it died, and then call
`on_lost` once. After an ending that was asked for (`stop`, `kill_now`) `on_lost` is not called.

The stop ladder has three steps: close stdin; SIGTERM to the group; SIGKILL to the group. Each step waits for its share
of the grace. The last step is always taken, because a leader that exited by itself may have left others behind. Then
the leader is reaped, we wait until the group is empty, and the guard sweeps for processes that had left the group.

A command that is still installing its server does not read its stdin. Killed in the middle, it would leave a broken
cache behind. So it gets SIGTERM at once, on which installers undo what is half done, and the first step's time in
addition. There is no more time when everything must be gone soon: a room whose client has left has 0.8 s, and the
installer gets 0.64 s of it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatch
from urllib.parse import quote

import anyio
import anyio.abc

from ...config.installers import is_installer
from ...config.model import ServerDefinition, Settings
from ...config.secrets import without_logins
from ...protocol.address import DEPTH_KEY, Address, depth
from ...protocol.errors import ConnectFailed
from ...protocol.safe_text import printable
from ..backend import Backend
from ..peer import LostReason, PeerHooks
from .child_process import Child, group_lives, signal_name, start_child, tree_signs
from .guard import INCARNATION_KEY, ROOM_KEY, Guard
from .line_peer import LinePeer
from .orphans import departed, end_departed
from .stderr_log import StderrLog

_POLITE = 0.4  # share of the grace after stdin is closed, and the same after SIGTERM
_FORCED = 0.2  # share of the grace for the kernel to remove what was killed
_SWEEP_WITHIN = 1.0  # seconds
_EXIT_WITHIN = 0.25  # seconds after end of file or a broken pipe: usually the child is about to exit
_BLOCK_AT_MOST = 0.5  # seconds that a `finally` waits for a killed leader, so as not to leave a zombie
_LAST_WORDS = 32  # chunks read after the exit; a pipe holds less, and a grandchild may go on writing for ever
_CHUNK = 65_536


class StdioConnector:
    """Starts one incarnation of a stdio server. Made by the room, called by the actor."""

    def __init__(
        self,
        definition: ServerDefinition,
        address: Address,
        incarnation: int,
        *,
        backend: Backend,
        guard: Guard,
        settings: Settings,
        run_id: str,
        log: StderrLog | None = None,
    ) -> None:
        self._definition = definition
        self._log = log
        self._tag = incarnation_tag(run_id, address, incarnation)
        self._backend = backend
        self._guard = guard
        self._settings = settings
        self._run_id = run_id

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[StdioConnection]:
        """Start the child and its pumps. Raises `ConnectFailed` when it cannot be started.

        Leaving the context kills whatever `stop` has not ended, at once and without awaiting.
        """
        connection = self._start(hooks)
        try:
            async with anyio.create_task_group() as pumps:
                try:
                    connection.pump(pumps)
                    yield connection
                finally:
                    connection.kill_now()
                    pumps.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if (
                len(group.exceptions) == 1
            ):  # the body's own error, or a bug in a pump: either comes out as itself
                raise group.exceptions[0] from None
            raise
        finally:
            connection.close()

    def _start(self, hooks: PeerHooks) -> StdioConnection:
        name = self._definition.name
        if sys.platform == "win32":
            raise ConnectFailed('stdio servers need Linux or macOS. Use its "url".', server=name)
        try:
            self._guard.start()
        except OSError as error:
            text = f"it was not started: the guard process cannot run ({error}). Check {sys.executable}."
            raise ConnectFailed(text, server=name) from None
        if self._guard.is_time_over:
            raise ConnectFailed("it was not started: this host may run no servers any more.", server=name)
        child = start_child(self._definition, child_environment(self._definition, self._tag, self._run_id))
        return StdioConnection(
            child,
            hooks,
            backend=self._backend,
            guard=self._guard,
            settings=self._settings,
            tag=self._tag,
            installs=is_installer(self._definition.command, self._definition.args),
            log=self._log,
        )


class StdioConnection:
    """A running child and its peer. Its actor uses `peer` and `pid`."""

    def __init__(
        self,
        child: Child,
        hooks: PeerHooks,
        *,
        backend: Backend,
        guard: Guard,
        settings: Settings,
        tag: str,
        installs: bool = False,
        log: StderrLog | None = None,
    ) -> None:
        self.pid: int | None = child.pid
        self._child = child
        self._hooks = hooks
        self._backend = backend
        self._guard = guard
        self._tag = tag
        self._installs = installs
        self._ring = StderrRing(settings.stderr_ring)
        self._log = log
        self._over = backend.waiter()
        self._how = ""  # the first sign of the end, in words
        self._lost = ""  # how it was lost, if it was
        self._exited = anyio.Event()
        self._stopping = anyio.Lock()
        self._is_gone = False
        guard.add(child.pid)
        guard.enclose(child.pid)
        self.peer: LinePeer = LinePeer(
            backend,
            hooks,
            read_fd=child.stdout.fileno(),
            write_fd=child.stdin.fileno(),
            max_line=settings.max_line,
            on_over=self._see_end,
        )

    # -- the pumps --

    def pump(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the tasks of this connection. No task is started per call."""
        if self._log is not None:
            self._log.begin(self._child.pid)
        tasks.start_soon(self._backend.read_forever, self._child.stdout.fileno(), self.peer.read)
        tasks.start_soon(self._backend.read_forever, self._child.stderr.fileno(), self._read_stderr)
        tasks.start_soon(self.peer.write_forever)
        tasks.start_soon(self._watch_exit)
        tasks.start_soon(self._watch_end)

    def _read_stderr(self) -> bool:
        try:
            chunk = os.read(self._child.stderr.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._ring.feed(chunk)
        if self._log is not None:
            self._log.feed(chunk)
        return bool(chunk)

    async def _watch_exit(self) -> None:
        await self._child.wait_exit(self._backend)
        self._exited.set()
        self._see_end("exited")

    def _see_end(self, how: str) -> None:
        self._how = self._how or how
        self._over.set()

    async def _watch_end(self) -> None:
        await self._over.wait()
        with anyio.move_on_after(_EXIT_WITHIN):
            await self._exited.wait()
        if not self.peer.is_silent:
            await self._hear_last_words()
        if not self.peer.is_silent:
            self.peer.silence()
            reason = self._reason()
            self._lost = reason.text
            self._hooks.on_lost(reason)

    async def _hear_last_words(self) -> None:
        """Read what was written before the end: it may hold an answer, and stderr tells the reason."""
        await self.peer.read_last()
        for _ in range(_LAST_WORDS):
            if not self._read_stderr():
                break

    def _reason(self) -> LostReason:
        code = self._child.exit_code
        return LostReason(_in_words(code, self._how), code, self._ring.tail())

    # -- the ways it ends --

    @property
    def last_line(self) -> str:
        return self._ring.last_line()

    def signs(self) -> object:
        return self._ring.total, tree_signs(self._child.pid)

    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._ring.tail())

    async def stop(self, grace: float) -> None:
        """Take the steps of the ladder, in about `grace` seconds. Idempotent; call it shielded.

        Returns when no member of the group is left, and processes that had left the group have been swept.
        """
        async with self._stopping:
            if self._is_gone:
                return
            left_before = departed(self._child.pid)  # before the leader exits and leaves them as orphans
            try:
                await self._end_leader(grace)
            finally:
                end_departed(left_before)
            with anyio.move_on_after(grace * _FORCED) as patience:
                await self._child.wait_group_gone()
            await self._guard.sweep(self._tag, _SWEEP_WITHIN)
            self._is_gone = not patience.cancelled_caught or not group_lives(self._child.pid)
            if not self._is_gone:
                text = (
                    f"processes of group {self._child.pid} still run: another user's, or held by the kernel. "
                )
                self._guard.tell(f"{text}See ps -o pid,user,stat,args -g {self._child.pid}")

    def kill_now(self) -> None:
        """SIGKILL to the group, at once and without waiting. Idempotent."""
        if not self._is_gone and not self._child.is_reaped:
            end_departed(departed(self._child.pid))  # first: closing its stdin may make the leader exit
        self._silence()
        if not self._is_gone:
            self._child.signal_group(signal.SIGKILL)
            self._reap()
            self._guard.sweep_soon(self._tag)

    def close(self) -> None:
        """The last step, when the pumps have ended: leave no zombie and no descriptor."""
        if self._log is not None:
            self._log.end(self._lost)
            self._log = None
        if not self._child.is_reaped:
            self._child.block_until_dead(_BLOCK_AT_MOST)
            self._reap()
        self._child.close()

    async def _end_leader(self, grace: float) -> None:
        is_installing = self._installs and not self.peer.has_spoken
        self._silence()
        if is_installing or not await self._exits_within(grace * _POLITE):
            self._child.signal_group(signal.SIGTERM)
            await self._exits_within(grace * (2 * _POLITE if is_installing else _POLITE))
        end_departed(departed(self._child.pid))
        self._child.signal_group(signal.SIGKILL)
        await self._exits_within(grace * _FORCED)
        self._reap()

    async def _exits_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._exited.wait()
        return self._exited.is_set()

    def _silence(self) -> None:
        """Take no more messages from the child, and close its stdin."""
        self.peer.silence()
        if not self._child.stdin.closed:
            anyio.notify_closing(self._child.stdin.fileno())
            self._child.stdin.close()

    def _reap(self) -> None:
        """Reap the leader. The guard is told first, because afterwards the group's id may belong to another process."""
        if self._child.is_dead and not self._child.is_reaped:
            self._guard.remove(self._child.pid)
            self._child.reap()


def _in_words(code: int | None, how: str) -> str:
    if code is None:
        return how
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"


# ---- What a child may see of our environment: a short list, unless its definition says otherwise --------------------
#
# A server is somebody else's program, and our environment is full of tokens that are not meant for it. So it gets:
#
# * the variables that a program needs to run at all;
# * the certificates and proxies that it needs in a company's network (some programs read them in lower case, others in
#   upper case);
# * the variables that `inheritEnv` names, and those that its definition sets;
# * two tags by which the guard finds its descendants, and how deep gateways are nested.
#
# It does not get `SSH_AUTH_SOCK`, with which a program can sign as the user.

INHERITED_POSIX = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
INHERITED_WINDOWS = (
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "PATH",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMFILES",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)
NETWORK = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_NETWORK = frozenset((*NETWORK, *PROXIES, *(name.lower() for name in PROXIES)))
_LOCALE = "LC_"


def child_environment(definition: ServerDefinition, incarnation_tag: str, run_id: str) -> dict[str, str]:
    """The whole environment of a child. Our tags override everything else."""
    key, _, value = incarnation_tag.partition("=")
    return {
        **untagged_environment(definition),
        ROOM_KEY: run_id,
        key: value,
        DEPTH_KEY: str(depth(os.environ) + 1),
    }


def untagged_environment(definition: ServerDefinition) -> dict[str, str]:
    """The environment without our tags. The definition's `env` overrides what is inherited."""
    wanted = definition.inherit_env
    inherited = dict(os.environ) if wanted is True else {**_minimal(), **_named(wanted or ())}
    return {**inherited, **definition.env}


def incarnation_tag(run_id: str, address: Address, incarnation: int) -> str:
    """`GREENROOM_INCARNATION=<run id>:<address>#<n>`. The address is quoted, because a session may have any name."""
    return f"{INCARNATION_KEY}={run_id}:{quote(str(address), safe='[]:')}#{incarnation}"


def _minimal() -> dict[str, str]:
    names = INHERITED_WINDOWS if sys.platform == "win32" else INHERITED_POSIX
    return {
        name: value
        for name, value in os.environ.items()
        if (name in names or name in _NETWORK or name.startswith(_LOCALE))
        and not value.startswith("()")  # "()": an exported function
    }


def _named(patterns: tuple[str, ...]) -> dict[str, str]:
    """The variables that the definition asks for by name or by pattern."""
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch(name, pattern) for pattern in patterns)
    }


# ---- A server's stderr: it is always drained, and the last part of it is kept ---------------------------------------
#
# Nobody reads a server's stderr while all is well, but an unread pipe stops a server that writes to it. So it is
# read into a ring of fixed size. When the server fails, the error quotes what is in the ring, without the logins of
# the URLs in it.
#
# The quoted lines are those that tell the reason. A program's last lines are often the end of a stack trace, or advice,
# and the reason comes before them. So lines that look like an error are quoted first, then what follows the last of
# them.

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
    said = [line[:_QUOTED_LENGTH] for line in lines if line.strip()]
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
        return next((line.strip()[:_QUOTED_LENGTH] for line in reversed(self._lines()) if line.strip()), "")

    def _lines(self) -> list[str]:
        """The kept lines. A first line that is incomplete is left out: half a secret would not be recognised."""
        text = self._data.decode(errors="replace")
        if self.total > len(self._data):
            _, newline, rest = text.partition("\n")
            text = rest if newline else text
        return without_logins(printable(text)).splitlines()
