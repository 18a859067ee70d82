"""Real children for the tests: a recorder for what a peer reports, and one connection from start to end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from greenroom.actors.backend import Backend, current_backend
from greenroom.actors.handshake import RpcFailure, ask_raw, shake_hands
from greenroom.actors.host import Declaration
from greenroom.actors.peer import Exchange, LostReason
from greenroom.actors.timers import Timers
from greenroom.actors.transports.guard import Guard
from greenroom.actors.transports.stdio import StdioConnection, StdioConnector
from greenroom.config.model import ServerDefinition, Settings
from greenroom.events import NoteCode
from greenroom.protocol.address import Address
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.terms import RpcError

from .patience import PATIENCE
from .timers import timers_at_work

SERVERS = Path(__file__).resolve().parents[2] / "src" / "greenroom" / "testing" / "servers"
CLIENT = {"name": "tests", "version": "1"}
RUN = f"test-{os.getpid()}"


class Recorder:
    """Peer hooks that record everything. A test may wait for `lost`."""

    def __init__(self) -> None:
        self.reasons: list[LostReason] = []
        self.notifications: list[tuple[str, Any]] = []
        self.requests: list[tuple[Any, str, Any]] = []
        self.notes: list[str] = []
        self.gaps = 0
        self.after_lost: list[str] = []
        self.lost = anyio.Event()

    def on_lost(self, reason: LostReason) -> None:
        self.reasons.append(reason)
        self.lost.set()

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.notifications.append((method, params))
        self._check(method)

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Any = None
    ) -> None:
        self.requests.append((rpc_id, method, params))
        self._check(method)

    def on_late_answer(self, result: bytes) -> None:
        pass

    def on_gap(self) -> None:
        self.gaps += 1
        self._check("gap")

    def on_note(self, code: NoteCode, text: str) -> None:
        self.notes.append(text)
        self._check(text)

    def _check(self, what: str) -> None:
        if self.reasons:
            self.after_lost.append(what)


class Call(Exchange):
    """An exchange that is its own owner and records its outcome."""

    def __init__(self, method: str, params: Mapping[str, Any] | None = None, *, wants_progress: bool = False):
        self.seen: list[Any] = []
        super().__init__(self, method, params, on_progress=self._see if wants_progress else None)
        self.ends: list[tuple[bytes | None, RpcError | None]] = []
        self.sent_at: list[Reach] = []
        self.done = anyio.Event()

    def exchange_sent(self, _exchange: Exchange, /) -> None:
        self.sent_at.append(self.reach)

    def exchange_ended(self, _exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self.ends.append((result, error))
        self.done.set()

    def exchange_progressed(self, _exchange: Exchange, params: Mapping[str, Any], /) -> None:
        self._see(params)

    def _see(self, params: Mapping[str, Any]) -> None:
        self.seen.append(params["progress"])


def tool(name: str, **arguments: Any) -> Call:
    return Call("tools/call", {"name": name, "arguments": arguments})


class Link:
    """One child under test, with its connection, hooks and guard."""

    def __init__(
        self,
        connection: StdioConnection,
        hooks: Recorder,
        loop_backend: Backend,
        timers: Timers,
        guard: Guard,
    ) -> None:
        self.connection = connection
        self.peer = connection.peer
        self.hooks = hooks
        self.backend = loop_backend
        self.timers = timers
        self.guard = guard

    async def initialize(self) -> None:
        try:
            await shake_hands(
                self.peer,
                self.backend,
                self.timers,
                settings=Settings(connect_timeout=PATIENCE),
                client_info=CLIENT,
                declaration=Declaration(),
                era_hint="2025-11-25",
            )
        except RpcFailure as failure:
            raise AssertionError(f"{failure}; lost: {self.hooks.reasons}") from failure

    async def call(self, name: str, **arguments: Any) -> str:
        params = {"name": name, "arguments": arguments}
        result = json.loads(await ask_raw(self.peer, self.backend, self.timers, "tools/call", params, 60))
        return result["content"][0]["text"]


def definition_of(script: str, *args: str, **more: Any) -> ServerDefinition:
    command = ("-I", "-S", str(SERVERS / script), *args)
    return ServerDefinition("child", command=sys.executable, args=command, **more)


def unmarked(definition: ServerDefinition) -> ServerDefinition:
    """The same, started in an empty environment: only its group shows whose process it is."""
    assert definition.command is not None
    return msgspec.structs.replace(
        definition, command="env", args=("-i", definition.command, *definition.args)
    )


@asynccontextmanager
async def linked(
    definition: ServerDefinition, *, settings: Settings | None = None, stop: bool = True
) -> AsyncGenerator[Link]:
    """Start it without `initialize`. At the end it is stopped; with `stop=False` leaving the context kills it."""
    loop_backend = current_backend()
    guard = Guard(loop_backend, RUN)
    hooks = Recorder()
    connector = StdioConnector(
        definition,
        Address("child"),
        1,
        backend=loop_backend,
        guard=guard,
        settings=settings or Settings(),
        run_id=RUN,
    )
    try:
        async with timers_at_work() as timers, connector.open(hooks) as connection:
            yield Link(connection, hooks, loop_backend, timers, guard)
            if stop:
                await connection.stop(5.0)
    finally:
        guard.close()
    assert hooks.after_lost == []
    assert len(hooks.reasons) <= 1


def lives(pid: int) -> bool:
    """Whether a process runs: neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


async def until(happened: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Check every 5 ms whether it has happened; False when it has not happened in time."""
    for _ in range(int(seconds / 0.005) + 1):  # other processes cannot set an event here
        if happened():
            return True
        await anyio.sleep(0.005)
    return happened()


async def gone_within(seconds: float, pids: list[int]) -> bool:
    """Whether all of them end in time. Those that do not are killed here, so that no test leaves anything."""
    gone = await until(lambda: not any(map(lives, pids)), seconds)
    for pid in filter(lives, pids):
        os.kill(pid, signal.SIGKILL)
    return gone


async def logged(path: Path, word: str, count: int = 1) -> list[int]:
    """The pids that a faulty server logged under `word`, once there are `count` of them."""
    assert await until(lambda: len(_pids(path, word)) >= count)
    return _pids(path, word)


def _pids(path: Path, word: str) -> list[int]:
    text = path.read_text() if path.exists() else ""
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith(word + " ")]


def drained(fd: int) -> bytes:
    """What a non-blocking descriptor has now."""
    data = b""
    while True:
        try:
            data += os.read(fd, 1 << 20)
        except BlockingIOError:
            return data
