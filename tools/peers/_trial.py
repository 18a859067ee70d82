"""One peer in one row, in a folder of its own: started over servers of ours, asked by a client, and ended with all that
it started. A row's steps work on it, and what they find is its result."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs

import greenroom.testing.servers

from . import _processes
from ._client import PATIENCE, Client, Connection, EventStream, Outcome, Pipes, Rest, StreamableHttp
from ._peers import Peer

FAULTY = Path(greenroom.testing.servers.__file__).with_name("faulty.py")
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE")  # what a peer gets of ours
_LINE = 64 * 1024 * 1024
_BY_ADDRESS = {"http": StreamableHttp, "sse": EventStream, "rest": Rest}
Servers = Mapping[str, Sequence[str]]  # of each, its faults


class TrialOver(Exception):
    """No further step can be made."""


@attrs.frozen
class Result:
    """`seconds`: of what the row says. `left`: processes, where the row is about these. `lost`: calls."""

    holds: bool
    what: str
    seconds: float | None = None
    left: int | None = None
    lost: int = 0


@attrs.define
class Trial:
    """`said`: what the steps found. `seconds`: what the row counts, once its clock was stopped. `left`: processes.
    `calls`: the outcomes so far. `pending`: calls in flight. `ran_before`, `starts_before`: how many servers ran when
    the peer was started again, and had been started."""

    peer: Peer
    command: Sequence[str]
    servers: Servers
    folder: Path
    said: list[str] = attrs.field(factory=list[str])
    holds: bool = True
    seconds: float | None = None
    left: int | None = None
    calls: list[Outcome] = attrs.field(factory=list[Outcome])
    pending: list[asyncio.Task[Outcome]] = attrs.field(factory=list["asyncio.Task[Outcome]"])
    ran_before: int = 0
    starts_before: int = 0
    _clients: list[Client] = attrs.field(factory=list[Client])
    _processes: dict[str, asyncio.subprocess.Process] = attrs.field(
        factory=dict[str, "asyncio.subprocess.Process"]
    )  # of the peer, by the addresses that they have, or would have if they had not pipes
    _doors: dict[str, str] = attrs.field(factory=dict[str, str])  # the address for each server
    _began: float | None = None  # when the clock was started, while it runs

    @property
    def client(self) -> Client:
        return self._clients[-1]

    # ---- what is found -----------------------------------------------------------------------------------------------

    def must(self, holds: bool, otherwise: str = "") -> None:
        """The row does not hold unless this does; `otherwise` is then said."""
        self.holds = self.holds and holds
        if otherwise and not holds:
            self.said.append(otherwise)

    def over(self, why: str) -> TrialOver:
        self.stop_clock()
        self.must(False, why)
        return TrialOver(why)

    def start_clock(self) -> None:
        """What the row's seconds count begins."""
        self._began = time.monotonic()

    def stop_clock(self) -> None:
        """It has ended. Nothing happens if no clock runs."""
        if self._began is not None:
            self.seconds, self._began = time.monotonic() - self._began, None

    def result(self, held: str) -> Result:
        """`held`: what is said where everything held."""
        what = held if self.holds and held else "; ".join(self.said)
        what = what.replace(str(self.folder), "")
        lost = sum(call.kind == "lost" for call in self.calls)
        return Result(self.holds, what, self.seconds, self.left, lost)

    # ---- the peer ----------------------------------------------------------------------------------------------------

    async def start(self, within: float = 60.0) -> None:
        """Start the peer, and be its first client. Raises `TrialOver` if it opens no door in that time."""
        commands = {name: self._server(name, faults) for name, faults in self.servers.items()}
        config = self.folder / "mcp.json"
        config.write_text(json.dumps(self.peer.configuration(commands)), encoding="utf-8")
        each = [[name] for name in commands] if self.peer.one_each else [[*commands]]
        for names in each:
            port = str(_free_port())
            process = await self._spawn(self.peer.arguments(port, str(config), commands[names[0]]))
            for name in names:
                address = f"http://127.0.0.1:{port}" + self.peer.address.format(server=name)
                self._doors[name] = address
                self._processes[address] = process
        await self.connect(within)

    async def connect(self, within: float = 60.0) -> None:
        """Be one client more. Raises `TrialOver`."""
        connections = {door: self._connection(door) for door in dict.fromkeys(self._doors.values())}
        of_servers = {server: connections[door] for server, door in self._doors.items()}
        client = Client(of_servers, self.peer.naming(len(self.servers)))
        self._clients.append(client)
        try:
            async with asyncio.timeout(within):
                await client.open()
        except TimeoutError:
            why = f"no door in {within:g} s"
        except Exception as error:
            why = f"no door: {str(error) or type(error).__name__}"[:200]
        else:
            return
        self._began = None  # there is nothing to count
        raise self.over(why)

    async def end(self) -> None:
        """End the peer as its user does."""
        await self.close_clients()
        self.signal(signal.SIGTERM)
        await self.until_ended(10.0)
        await self.end_all()

    async def end_all(self) -> None:
        """Kill what is left, the peer included."""
        own = set(self._processes.values())
        _processes.end_all({process.pid for process in own})
        for process in own:
            await process.wait()
        self._processes.clear()
        _processes.end_all(set())

    async def close_clients(self) -> None:
        """They vanish, and their calls with them."""
        for client in self._clients:
            with suppress(Exception):
                await client.close()
        self._clients.clear()
        for call in self.pending:
            call.cancel()
        await asyncio.gather(*self.pending, return_exceptions=True)
        self.pending.clear()

    async def until_ended(self, within: float) -> bool:
        """Wait until the peer has ended; whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*(process.wait() for process in self._processes.values()))
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        for process in set(self._processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(number)

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def call(
        self, server: str, tool: str = "echo", patience: float = PATIENCE, **arguments: object
    ) -> Outcome:
        """One call, counted."""
        outcome = await self.client.call(server, tool, arguments or {"text": "hello"}, patience)
        self.calls.append(outcome)
        return outcome

    def begin(self, server: str, tool: str, patience: float, **arguments: object) -> None:
        """A call that is counted when it is awaited."""
        call = self.client.call(server, tool, arguments, patience)
        self.pending.append(asyncio.create_task(call))

    async def outcomes(self) -> list[Outcome]:
        """The outcomes of the calls in flight."""
        outcomes = await asyncio.gather(*self.pending)
        self.pending.clear()
        self.calls += outcomes
        return outcomes

    async def answers(self, server: str) -> bool:
        """Ask until there is an answer, as a client does that a server interests; whether there is one in time."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if (await self.call(server)).kind == "answer":
                return True
            await asyncio.sleep(0.1)
        return False

    # ---- the servers -------------------------------------------------------------------------------------------------

    def logged(self, server: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.folder / f"{server}.log").read_text(encoding="utf-8").splitlines()
        return []

    async def until_logged(self, server: str, line: str, within: float) -> bool:
        until = time.monotonic() + within
        while line not in self.logged(server):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    def starts(self, server: str) -> list[int]:
        """The processes of all its starts."""
        return [int(line.split()[1]) for line in self.logged(server) if line.startswith("start ")]

    def running(self) -> set[int]:
        """The servers that run, without the peer's first processes, which may name one."""
        own = {process.pid for process in self._processes.values()}
        return _processes.servers_among(_processes.descendants() - own, FAULTY.name)

    # ---- inner -------------------------------------------------------------------------------------------------------

    def _server(self, name: str, faults: Sequence[str]) -> list[str]:
        log = str(self.folder / f"{name}.log")
        return [sys.executable, "-S", str(FAULTY), "--schemas", "--log", log, *faults]

    def _connection(self, door: str) -> Connection:
        process = self._processes[door]
        if self.peer.door == "stdio":
            return Pipes(process, has_all=not self.peer.one_each)
        return _BY_ADDRESS[self.peer.door](door, partial(_has_ended, process))

    async def _spawn(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        """In a session of its own, with a home of its own. What it says goes to a file."""
        home = str(self.folder)
        env = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
        env |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_RUNTIME_DIR": home}
        env |= {"XDG_CONFIG_HOME": f"{home}/config", "XDG_STATE_HOME": f"{home}/state"}
        on_pipes = self.peer.door == "stdio"
        with (self.folder / "said.txt").open("ab") as said:
            return await asyncio.create_subprocess_exec(
                *self.command,
                *arguments,
                stdin=asyncio.subprocess.PIPE if on_pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if on_pipes else said,
                stderr=said,
                env=env,
                cwd=self.folder,
                limit=_LINE,
                start_new_session=True,
                preexec_fn=_processes.end_with_parent,
            )


def _has_ended(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
