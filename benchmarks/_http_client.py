"""The barest HTTP client: sockets that stay open, requests made beforehand, answers read as far as finding their end
takes. What it does itself counts for every side alike, so it decodes nothing while it measures.

Each connection has a session of its own, as each client of a gateway has.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ._wire_client import VERSION

_CHUNK = 65_536
_PATIENCE = 60.0  # seconds for a gateway to listen, and for any one answer
_STOP_WITHIN = 10
_HEAD = (
    b"%b /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\n%bContent-Length: %d\r\n\r\n"
)
_HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}
_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Connection:
    """A connection, and the session that it opened."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = b""
        self._read = b""

    def open_session(self) -> None:
        """The handshake. Raises `RuntimeError` when it is refused."""
        self._session = b""
        answer = self.exchange(self._request(b"POST", json.dumps(_HELLO).encode()))
        head = answer.partition(b"\r\n\r\n")[0]
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"mcp-session-id":
                self._session = b"Mcp-Session-Id: %b\r\nMcp-Protocol-Version: %b\r\n" % (
                    value.strip(),
                    VERSION.encode(),
                )
        self.exchange(self._request(b"POST", _INITIALIZED))

    def close_session(self) -> None:
        self.exchange(self._request(b"DELETE", b""))

    def call(self, tool: str, arguments: Mapping[str, Any]) -> bytes:
        """A request that calls a tool, ready to be sent."""
        said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        return self._request(
            b"POST", json.dumps({**said, "params": {"name": tool, "arguments": dict(arguments)}}).encode()
        )

    def exchange(self, request: bytes) -> bytes:
        """Send it and wait for its whole answer. Raises `RuntimeError` for one that is no success."""
        self.socket.sendall(request)
        while (answer := self.read()) is None:
            pass
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"refused: {answer[:500]!r}")
        return answer

    def read(self) -> bytes | None:
        """Read what is there: the whole answer, or None while more must come."""
        chunk = self.socket.recv(_CHUNK)
        if not chunk:
            raise RuntimeError("the other side has closed the connection")
        self._read += chunk
        if not _is_whole(self._read):
            return None
        answer, self._read = self._read, b""
        return answer

    def close(self) -> None:
        self.socket.close()

    def _request(self, method: bytes, body: bytes) -> bytes:
        return _HEAD % (method, self._session, len(body)) + body


def _is_whole(answer: bytes) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = answer[:end].lower()
    at = head.find(b"content-length:")
    if at >= 0:
        return len(answer) >= end + 4 + int(head[at + 15 :].partition(b"\r\n")[0])
    if head.find(b"chunked") >= 0:
        return answer.endswith(b"\r\n0\r\n\r\n")
    return True  # 202 and 204 have no body


class HttpSide:
    """A process that serves HTTP, and connections to it with a session each. `served` makes and ends it."""

    def __init__(self, name: str, port: int, pid: int, tool: str, arguments: Mapping[str, Any]) -> None:
        self.name, self.pid, self._port = name, pid, port
        self._tool, self._arguments = tool, arguments
        self._connections: list[tuple[Connection, bytes]] = []

    def connect(self, count: int, expected: bytes = b"hello") -> None:
        """Have `count` connections. Raises `RuntimeError` when a call is not answered with `expected`."""
        while len(self._connections) > count:
            self._connections.pop()[0].close()
        while len(self._connections) < count:
            one = Connection(self._port)
            self._connections.append((one, b""))
            one.open_session()
            call = one.call(self._tool, self._arguments)
            self._connections[-1] = one, call
            answer = one.exchange(call)
            if expected not in answer or b'"isError":true' in answer:
                raise RuntimeError(f"not an answer to the call: {answer[:500]!r}")

    def latency(self, count: int) -> float:
        """Microseconds a call, one after another on one connection: the median."""
        one, call = self._connections[0]
        times: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            one.exchange(call)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6

    def throughput(self, count: int) -> float:
        """Calls a second with one open on every connection all the time."""
        poll = select.epoll()
        try:
            by_number = {one.socket.fileno(): (one, call) for one, call in self._connections}
            start = time.perf_counter()
            for number, (one, call) in by_number.items():
                poll.register(number, select.EPOLLIN)
                one.socket.sendall(call)
            sent, answered = len(by_number), 0
            while answered < sent:
                ready = poll.poll(_PATIENCE)
                if not ready:
                    raise RuntimeError(f"{self.name} has not answered for {_PATIENCE:.0f} seconds")
                for number, _ in ready:
                    one, call = by_number[number]
                    answer = one.read()
                    if answer is None:
                        continue
                    if not answer.startswith(b"HTTP/1.1 200"):
                        raise RuntimeError(f"refused: {answer[:500]!r}")
                    answered += 1
                    if sent < count:
                        one.socket.sendall(call)
                        sent += 1
            return answered / (time.perf_counter() - start)
        finally:
            poll.close()

    def cycles(self, count: int) -> float:
        """Sessions opened and closed a second, one after another on one connection."""
        one = Connection(self._port)
        try:
            start = time.perf_counter()
            for _ in range(count):
                one.open_session()
                one.close_session()
            return count / (time.perf_counter() - start)
        finally:
            one.close()

    def leave_sessions(self, count: int) -> None:
        """Open sessions and leave them open."""
        one = Connection(self._port)
        try:
            for _ in range(count):
                one.open_session()
        finally:
            one.close()

    def disconnect(self) -> None:
        self.connect(0)


@contextmanager
def served(
    name: str,
    command: Sequence[str],
    tool: str,
    arguments: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
) -> Generator[HttpSide]:
    """Run `command`, with PORT in it replaced by a free port, until it listens there. Raises `RuntimeError` when it
    does not."""
    port = _free_port()
    words = [word.replace("PORT", str(port)) for word in command]
    with ExitStack() as stack:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        stack.callback(_end, process)
        _await_listener(port, process, name)
        side = HttpSide(name, port, process.pid, tool, arguments)
        stack.callback(side.disconnect)
        yield side


def _await_listener(port: int, process: subprocess.Popen[bytes], name: str) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} does not listen: exit code {process.returncode}") from None
            time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
