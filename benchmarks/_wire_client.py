"""The barest client: blocking pipes and bytes, so that what stands between it and the server is all that costs.

What it does itself counts for every side alike, so whatever it wastes flatters the ratio to no gateway. It reads what a
pipe holds: more would be memory mapped and given back for each read, some 9 µs. It looks for bytes with `find`: `in`
on bytes first asks whether it was given a number, by raising. It encodes and decodes no JSON while it measures: a
client that does sees no gateway at half as much again, and every ratio to it smaller.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

VERSION = "2025-06-18"
_CHUNK = 65_536
_STOP_WITHIN = 10


class WireClient:
    """Talks to one process over its pipes. `with` starts and ends it; `call` is a ready request for `latency`."""

    def __init__(
        self,
        command: Sequence[str],
        tool: str = "echo",
        arguments: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=env,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._rest = b""
        params = json.dumps({"name": tool, "arguments": dict(arguments or {})})
        self._tail = f',"method":"tools/call","params":{params}}}\n'.encode()
        self._last = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def initialize(self) -> None:
        """The handshake. Raises `RuntimeError` when it is refused."""
        info = {"name": "benchmark", "version": "1"}
        self.ask("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": info})
        self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """One request; its result. Raises `RuntimeError` on an error or the end of the stream."""
        self._last += 1
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        self._write(json.dumps(request).encode() + b"\n")
        while True:
            answer = json.loads(self._read_line())
            if answer.get("id") == self._last and "method" not in answer:
                if "error" in answer:
                    raise RuntimeError(f"{method} was refused: {answer['error']}")
                return answer["result"]

    def check_call(self, expected: str) -> None:
        """One call whose answer must hold `expected`: what is measured does what it should."""
        self._write(self._request())
        line = self._read_answer()
        if expected.encode() not in line:
            raise RuntimeError(f"not an answer to the call: {line[:300]!r}")

    def latency(self, count: int) -> float:
        """Microseconds a call, one after another: the median of `count` calls. Their mean would be a measure of what
        else the machine does: one time slice of another process is as long as fifty calls."""
        return statistics.median(self._timed_call() for _ in range(count)) * 1e6

    def throughput(self, count: int, in_flight: int = 64) -> float:
        """Calls a second with `in_flight` of them open all the time."""
        start = time.perf_counter()
        self._write(b"".join(self._request() for _ in range(in_flight)))
        sent, answered = in_flight, 0
        while answered < count:
            more = self._read_some().count(b"\n")
            answered += more
            more = max(0, min(more, count - sent))
            sent += more
            self._write(b"".join(self._request() for _ in range(more)))
        return count / (time.perf_counter() - start)

    def _timed_call(self) -> float:
        request = self._request()
        start = time.perf_counter()
        self._write(request)
        self._read_answer()
        return time.perf_counter() - start

    def _request(self) -> bytes:
        self._last += 1
        return b'{"jsonrpc":"2.0","id":%d%b' % (self._last, self._tail)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._in, data) :]

    def _read_some(self) -> bytes:
        chunk = os.read(self._out, _CHUNK)
        if not chunk:
            raise RuntimeError("the other side has closed its stdout")
        return chunk

    def _read_answer(self) -> bytes:
        """The next line that is no notification: a gateway may have news of its tools at any time."""
        while (line := self._read_line()).find(b'"method":"notifications/') >= 0:
            pass
        return line

    def _read_line(self) -> bytes:
        while (end := self._rest.find(b"\n")) < 0:
            self._rest += self._read_some()
        line, self._rest = self._rest[:end], self._rest[end + 1 :]
        return line
