"""One life of a gateway: `greenroom serve` as a process, its client's two pipes, and its control socket.

Nothing here ever blocks. Bytes that the gateway does not take now are kept and written later. A deaf client just does
not read.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ._ledger import Contradiction
from ._loop import Loop
from ._server_file import FLAGS

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}}
_CHUNK = 1 << 18

Answered = Callable[[dict[str, Any] | None], None]

# A small command that sends a request and waits. Many of them are started, to be killed.
_ATTACHED = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(sys.argv[2].encode() + b"\\n")
    while connection.recv(65536): pass
"""


class Gateway:
    """The process and its client. `hear` gets each message that is an answer."""

    def __init__(
        self, loop: Loop, config: Path, expose: str, log: IO[bytes], hear: Callable[[dict[str, Any]], None]
    ) -> None:
        self._loop = loop
        self._hear = hear
        self._unsent = bytearray()
        self._rest = b""
        self._sockets: set[socket.socket] = set()
        self.events = config.with_name(f"events-{log.name.rpartition('-')[2]}.jsonl")
        folder = os.fspath(config.parent)
        command = [*(sys.executable, "-m", "greenroom", "serve"), "--config", os.fspath(config)]
        self.process = subprocess.Popen(
            [*command, "--expose", expose, "--events", os.fspath(self.events), *FLAGS],
            env={"PATH": os.environ["PATH"], "HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache"},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self.pid = self.process.pid
        self._cache = Path(folder, "cache")
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self.listen()

    # ---- the client's pipes --------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        self._unsent += json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self._write()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def listen(self) -> None:
        """Read answers again, after deafness."""
        if not self._loop.watches(self._stdout) and self.is_open:
            self._loop.watch(self._stdout, self._read)

    def go_deaf(self) -> None:
        self._loop.forget(self._stdout)

    @property
    def is_open(self) -> bool:
        assert self.process.stdout is not None
        return not self.process.stdout.closed

    @property
    def is_heard(self) -> bool:
        """Whether its answers are being read. False after it has closed its end."""
        return self._loop.watches(self._stdout)

    def _write(self) -> None:
        try:
            del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent.clear()  # it is gone; the course will notice
        if not self._unsent:
            self._loop.forget(self._stdin)
        elif not self._loop.watches(self._stdin):
            self._loop.watch(self._stdin, self._write, write=True)

    def _read(self) -> None:
        try:
            data = os.read(self._stdout, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.go_deaf()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                raise Contradiction(f"the gateway wrote a line that is not JSON: {line[:300]!r}") from None
            if "id" in message and "method" not in message:
                self._hear(message)

    # ---- its control socket --------------------------------------------------------------------------------------

    @property
    def control(self) -> Path | None:
        return next((self._cache / "greenroom" / "run").glob(f"*-{self.pid}.sock"), None)

    def attach(self, method: str, **params: Any) -> subprocess.Popen[bytes] | None:
        """A command in a process of its own that sends a request. The caller kills it."""
        path = self.control
        if path is None:
            return None
        request = json.dumps({"method": method, "params": params})
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ATTACHED, os.fspath(path), request],
            stderr=subprocess.DEVNULL,
        )

    def command(self, method: str, answered: Answered, **params: Any) -> Callable[[], None]:
        """Ask over the control socket. `answered` gets the answer, or None when there is none. Returns a function that
        hangs up."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(1)
            connection.connect(os.fspath(self.control or "/nowhere"))
            connection.sendall(json.dumps({"method": method, "params": params}).encode() + b"\n")
        except OSError:
            connection.close()
            answered(None)
            return lambda: None
        connection.setblocking(False)
        self._sockets.add(connection)
        said = bytearray()

        def hang_up() -> None:
            if connection in self._sockets:
                self._sockets.discard(connection)
                self._loop.forget(connection.fileno())
                connection.close()

        def readable() -> None:
            try:
                data = connection.recv(_CHUNK)
            except OSError:
                data = b""
            said.extend(data)
            if not data or said.endswith(b"\n"):
                hang_up()
                answered(json.loads(said) if said.endswith(b"\n") else None)

        self._loop.watch(connection.fileno(), readable)
        return hang_up

    def ask(self, method: str, within: float, **params: Any) -> dict[str, Any]:
        """The same, and wait for the answer. Raises `Contradiction` when it is refused, or does not come in time."""
        box: list[dict[str, Any] | None] = []
        hang_up = self.command(method, box.append, **params)
        self._loop.run_until(lambda: bool(box), within)
        hang_up()
        if not box or box[0] is None or "result" not in box[0]:
            raise Contradiction(f"the control socket answered {method} within {within:g} s with {box}")
        return box[0]["result"]

    # ---- its end -------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """The client leaves: it closes its ends of both pipes and of the socket."""
        for connection in tuple(self._sockets):
            self._loop.forget(connection.fileno())
            connection.close()
        self._sockets.clear()
        self.close_stdin()
        self._loop.forget(self._stdout)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self._loop.forget(self._stdin)
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """Kill it, if it still runs, and release everything."""
        if not self.ended():
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.hang_up()
