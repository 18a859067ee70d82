"""One peer over some servers of ours, in a folder of its own: started, watched, and ended with all that it started."""

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
from pathlib import Path
from types import TracebackType

import attrs

import greenroom.testing.servers

from . import _processes
from ._doors import PATIENCE, Door, HttpDoor, Outcome, RestDoor, SseDoor, StdioDoor, StdioEachDoor
from ._peers import Peer

FAULTY = Path(greenroom.testing.servers.__file__).with_name("faulty.py")
OPENS_WITHIN = 60.0  # seconds
_KEPT = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE")
_LINE = 64 * 1024 * 1024
Servers = Mapping[str, Sequence[str]]  # of each, its faults


class NoDoor(Exception):
    """The peer opened no door; the message is how that showed."""


@attrs.define
class Stage:
    """`calls`: the outcomes of all calls of a row."""

    peer: Peer
    command: Sequence[str]
    folder: Path
    calls: list[Outcome] = attrs.field(factory=list[Outcome])
    doors: list[Door] = attrs.field(factory=list[Door])
    processes: list[asyncio.subprocess.Process] = attrs.field(factory=list["asyncio.subprocess.Process"])
    _addresses: Mapping[str, str] = attrs.field(factory=dict[str, str])
    _behind: dict[str, asyncio.subprocess.Process] = attrs.field(
        factory=dict[str, "asyncio.subprocess.Process"]
    )

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for door in self.doors:
            with suppress(Exception):
                await door.close()
        await self.end_all()

    async def end(self) -> None:
        """End the peer as its user does."""
        for door in self.doors:
            await door.close()
        self.doors.clear()
        self.signal(signal.SIGTERM)
        await self.wait(10.0)
        await self.end_all()

    async def end_all(self) -> None:
        """Kill what is left, the peer included."""
        _processes.end_all({process.pid for process in self.processes})
        for process in self.processes:
            await process.wait()
        self.processes.clear()
        _processes.end_all(set())

    # -- the peer --

    async def start(self, servers: Servers, within: float = OPENS_WITHIN) -> Door:
        """Start it over these servers, and open its door as its first client. Raises `NoDoor`."""
        commands = {name: self._server(name, faults) for name, faults in servers.items()}
        config = self.folder / "mcp.json"
        config.write_text(json.dumps(self.peer.configuration(commands)), encoding="utf-8")
        addresses: dict[str, str] = {}
        if self.peer.one_each:
            for name, command in commands.items():
                port = str(_free_port())
                addresses[name] = self._address(port, name)
                self._behind[addresses[name]] = await self._spawn(self.peer.filled(port, command=command))
        else:
            port = str(_free_port())
            process = await self._spawn(self.peer.filled(port, str(config)))
            addresses = {name: self._address(port, name) for name in servers}
            self._behind = dict.fromkeys(addresses.values(), process)
        self._addresses = addresses
        return await self.open(within)

    async def open(self, within: float = OPENS_WITHIN) -> Door:
        """A client more. Raises `NoDoor`."""
        door = self._door()
        self.doors.append(door)
        try:
            async with asyncio.timeout(within):
                await door.open()
        except TimeoutError:
            raise NoDoor(f"no door in {within:g} s") from None
        except Exception as error:
            raise NoDoor(f"no door: {type(error).__name__}: {error}"[:200]) from None
        return door

    async def wait(self, within: float) -> float | None:
        """Until the peer has ended; the seconds that took, or None."""
        began = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*(process.wait() for process in self.processes))
            return time.monotonic() - began
        return None

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    # -- calls --

    async def call(
        self, door: Door, server: str, tool: str, patience: float = PATIENCE, **arguments: object
    ) -> Outcome:
        """One call, counted."""
        outcome = await door.call(server, tool, arguments, patience)
        self.calls.append(outcome)
        return outcome

    def begin(
        self, door: Door, server: str, tool: str, patience: float = PATIENCE, **arguments: object
    ) -> asyncio.Task[Outcome]:
        return asyncio.create_task(self.call(door, server, tool, patience, **arguments))

    # -- what the servers say --

    def logged(self, server: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.folder / f"{server}.log").read_text(encoding="utf-8").splitlines()
        return []

    async def until_logged(self, server: str, line: str, within: float = 10.0) -> bool:
        until = time.monotonic() + within
        while line not in self.logged(server):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    def starts(self, server: str) -> list[int]:
        """The processes of all its starts."""
        return [int(line.split()[1]) for line in self.logged(server) if line.startswith("start ")]

    # -- processes --

    def servers_alive(self) -> set[int]:
        return _processes.servers_among(self.others_alive(), FAULTY.name)

    def others_alive(self) -> set[int]:
        """All processes but the peer's first ones."""
        return _processes.descendants() - {process.pid for process in self.processes}

    def alive(self) -> set[int]:
        return _processes.descendants()

    # -- inner --

    def _server(self, name: str, faults: Sequence[str]) -> list[str]:
        return [
            sys.executable,
            "-S",
            str(FAULTY),
            "--schemas",
            "--log",
            str(self.folder / f"{name}.log"),
            *faults,
        ]

    def _address(self, port: str, server: str) -> str:
        return f"http://127.0.0.1:{port}" + self.peer.address.format(server=server)

    def _door(self) -> Door:
        [first, *_] = self._addresses.values()
        naming = self.peer.naming(len(self._addresses))
        match self.peer.door:
            case "http":
                return HttpDoor(self._addresses, naming, self._has_ended)
            case "sse":
                return SseDoor(first, naming, self._has_ended)
            case "rest":
                return RestDoor(first, list(self._addresses), naming, self._has_ended)
            case _ if self.peer.one_each:
                at = self._addresses.items()
                return StdioEachDoor({server: self._behind[address] for server, address in at}, naming)
            case _:
                return StdioDoor(self.processes[-1], naming)

    def _has_ended(self, address: str) -> bool:
        return self._behind[address].returncode is not None

    async def _spawn(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        """In a session of its own, with a home of its own. What it says goes to a file."""
        home = str(self.folder)
        env = {key: os.environ[key] for key in _KEPT if key in os.environ}
        env |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_RUNTIME_DIR": home}
        env |= {"XDG_CONFIG_HOME": f"{home}/config", "XDG_STATE_HOME": f"{home}/state"}
        on_pipes = self.peer.door == "stdio"
        with (self.folder / "said.txt").open("ab") as said:
            process = await asyncio.create_subprocess_exec(
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
        self.processes.append(process)
        return process


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
