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
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.abc

from ...config.command_faults import CommandFault, file_fault
from ...config.installers import is_installer
from ...config.model import ServerDefinition, Settings
from ...protocol.address import Address
from ...protocol.errors import ConnectFailed, FailureKind
from ..backend import Backend
from ..peer import Agreement, LostReason, PeerHooks
from ..timers import at_most
from .child_environment import child_environment, incarnation_tag
from .child_process import Child, group_lives, signal_name, start_child, tree_signs
from .guard import Guard
from .line_peer import LinePeer
from .orphans import departed, end_departed
from .stderr_log import StderrLog
from .stderr_ring import StderrRing

_POLITE = 0.4  # share of the grace after stdin is closed, and the same after SIGTERM
_FORCED = 0.2  # share of the grace for the kernel to remove what was killed
_SWEEP_WITHIN = 1.0  # seconds
_EXIT_WITHIN = 0.25  # seconds after end of file or a broken pipe: usually the child is about to exit
_BLOCK_AT_MOST = 0.5  # seconds that a `finally` waits for a killed leader, so as not to leave a zombie
_LAST_WORDS = 32  # chunks read after the exit; a pipe holds less, and a grandchild may go on writing for ever
_NOT_FOUND = 127  # the exit code of `env` and of shells
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
        definition = self._definition
        environment = child_environment(definition, self._tag, self._run_id)
        child = start_child(definition, environment)
        fault_of_file = partial(file_fault, definition.command or "", definition.cwd, environment.get("PATH"))
        return StdioConnection(
            child,
            hooks,
            backend=self._backend,
            guard=self._guard,
            settings=self._settings,
            tag=self._tag,
            installs=is_installer(definition.command, definition.args),
            fault_of_file=fault_of_file,
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
        fault_of_file: Callable[[], CommandFault | None] = lambda: None,
        log: StderrLog | None = None,
    ) -> None:
        self.agreed: Agreement | None = None
        self._child = child
        self._hooks = hooks
        self._backend = backend
        self._guard = guard
        self._tag = tag
        self._installs = installs
        self._fault_of_file = fault_of_file  # why its program's file cannot be run
        self._ring = StderrRing(settings.stderr_ring)
        self._answers = 0  # of the child, when stderr was read last
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
        self._see_age()
        self._ring.feed(chunk)
        if self._log is not None:
            self._log.feed(chunk)
        return bool(chunk)

    def _see_age(self) -> None:
        """What stderr had before the child answered something is old. Seen here, it costs no call anything. Whatever
        else it says on stdout does not count: it may be read after what it wrote to stderr next."""
        if self._answers != self.peer.answers:
            self._answers = self.peer.answers
            self._ring.grow_old()

    async def _watch_exit(self) -> None:
        await self._child.wait_exit(self._backend)
        self._exited.set()
        self._see_end("exited")

    def _see_end(self, how: str) -> None:
        self._how = self._how or how
        self._over.set()

    async def _watch_end(self) -> None:
        await self._over.wait()
        await self._exits_within(_EXIT_WITHIN)
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
        # What `env` in the first line of a script says when it finds no such program, with the carriage return in it.
        fault = self._fault_of_file() if code == _NOT_FOUND else None
        words = _in_words(code, self._how)
        text, ring = words if fault is None else f"{words}: {fault.in_short}", self._ring
        kind = (
            FailureKind.OTHER if code is None else FailureKind.EXIT if fault is None else FailureKind.PROGRAM
        )
        if self.agreed is None:
            return LostReason(text, code, ring.tail(), kind=kind)
        self._see_age()
        return LostReason(text, code, ring.tail(news_only=True), is_stderr_old=not ring.has_news, kind=kind)

    # -- the ways it ends --

    @property
    def pid(self) -> int | None:
        return None if self._child.is_dead else self._child.pid

    @property
    def last_line(self) -> str:
        return self._ring.last_line()

    @property
    def has_ended(self) -> bool:
        return bool(self._how) or self._child.is_dead

    def hand_to(self, address: Address, incarnation: int) -> None:
        if self._log is not None:
            self._log.pass_to(address, incarnation)

    def signs(self) -> object:
        return self._ring.total, tree_signs(self._child.pid)

    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._ring.tail())

    def forget_stderr(self) -> None:
        for _ in range(_LAST_WORDS):  # forget also what is still in the pipe
            before = self._ring.total
            if not self._read_stderr() or self._ring.total == before:
                break
        self._ring.clear()

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
            is_gone = await self._child.wait_group_gone(grace * _FORCED)
            await self._guard.sweep(self._tag, _SWEEP_WITHIN)
            self._is_gone = is_gone or not group_lives(self._child.pid)
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
            self._log.end(self._lost, self.peer.said_instead.encode(errors="replace"))
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
        if not self._exited.is_set():
            async with at_most(seconds):
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
    return f"exited with code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
