"""A process under attack: its input and output, the processor time it has used, and its memory.

Threads write and read, so that an attack goes on while others call. The output is read as fast as it comes; of a long
answer only the id is read.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE

from .watched import Longest

_LONG = 1 << 20  # bytes: an answer that is only counted
_HEAD = re.compile(rb'\{"jsonrpc":\s*"2.0",\s*"id":\s*("?\w+"?)')


class Attacked:
    """`python -m module …` with its two pipes. Use as a context manager: it is killed at the end, if it still runs.

    `longest`: the longest stretch in which its loop heard of nothing.
    """

    def __init__(self, module: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._log = (cwd / "stderr.txt").open("wb")
        self.longest = Longest(os.fspath(cwd / "stretches"))
        command = [sys.executable, "-m", "tests.hostile.watched", os.fspath(cwd / "stretches"), *module]
        self.process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self.pid = self.process.pid
        self._messages = threading.Condition()
        self._answers: dict[Any, Any] = {}
        self.heard: dict[Any, int] = {}  # how often each id was answered
        self._number = 0
        self._turn = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._run(self._read)

    # -- in and out --

    def send(self, method: str, params: Mapping[str, Any] | None = None, *, notify: bool = False) -> int:
        """Send a request; returns its id."""
        self._number = number = self._number + 1
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        if notify:
            del message["id"]
        self._write(json.dumps(message).encode() + b"\n")
        return number

    def pour(self, data: Iterable[bytes]) -> threading.Thread:
        """Write this in a thread, as long as the process takes it."""
        return self._run(self._pour, data)

    def answer(self, number: Any, within: float) -> Any:
        """The answer to a request: `{"result"…}`, `{"error"…}`, or None when it does not come. A long one is empty."""
        with self._messages:
            self._messages.wait_for(lambda: number in self._answers, within)
            return self._answers.get(number)

    def has_answered(self, number: Any) -> bool:
        return number in self._answers

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with self._turn:
            while data:
                data = data[os.write(self.process.stdin.fileno(), data) :]

    def _pour(self, data: Iterable[bytes]) -> None:
        with suppress(OSError):
            for block in data:
                self._write(block)

    def _read(self) -> None:
        assert self.process.stdout is not None
        parts: list[bytes] = []
        while chunk := os.read(self.process.stdout.fileno(), 1 << 18):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                self._hear(b"".join((*parts, line)))
                parts = []
            parts.append(rest)

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line) if len(line) < _LONG else {}
        except (RecursionError, ValueError):
            message = {}
        if not message:
            found = _HEAD.match(line)
            message = {"id": json.loads(found[1])} if found else {}
        if "id" in message and "method" not in message:
            with self._messages:
                self._answers[message["id"]] = message
                self.heard[message["id"]] = self.heard.get(message["id"], 0) + 1
                self._messages.notify_all()

    def _run(self, body: Any, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=body, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    # -- what it costs --

    def burnt(self) -> float:
        """Processor seconds that all its threads have used: the clock of that process (see clock_getcpuclockid)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def held(self) -> int:
        """Bytes of memory that it has now; from now on its peak is counted anew."""
        with suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self._status("VmRSS")

    def peak(self) -> int:
        return self._status("VmHWM")

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) << 10
        raise LookupError(key)

    # -- its end --

    def end(self, within: float) -> int | None:
        """End it. Returns its exit code, or None if it does not end."""
        self._ask_to_end()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(within)
        return None

    def _ask_to_end(self) -> None:
        """Close its input. A signal ends a writer in the middle."""
        assert self.process.stdin is not None
        if self._turn.acquire(timeout=0.5):
            self.process.stdin.close()
            self._turn.release()
        else:
            self.process.send_signal(signal.SIGTERM)

    def words(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def __enter__(self) -> Attacked:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(5)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.longest.close()


class AttackedOverHttp(Attacked):
    """The same behind `serve --http`: each line is the body of a POST, and what comes back is its answer."""

    _session: str | None = None
    _port = 0
    _begun = b""

    def _write(self, data: bytes) -> None:
        with self._turn:
            *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:  # without the lock: one client's long request must not keep back another's
            self._post(line)

    def _post(self, line: bytes) -> None:
        """A request that is refused before it is read is hung up on: that is its answer."""
        asked = _HEAD.match(line)
        key = json.loads(asked[1]) if asked is not None and b'"method"' in line[:200] else None
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self._session is not None:
            headers["Mcp-Session-Id"] = self._session
        connection = http.client.HTTPConnection("127.0.0.1", self._listens(), timeout=PATIENCE)
        try:
            connection.request("POST", "/mcp", line, headers)
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            answer, body = None, b""
        finally:
            connection.close()
        if answer is not None and self._session is None:
            self._session = answer.headers["Mcp-Session-Id"]
        kind = "" if answer is None else answer.headers.get("Content-Type", "")
        if kind.startswith("text/event-stream"):
            for event in body.split(b"\n"):
                self._hear(event.removeprefix(b"data: "))
        elif answer is not None and answer.status == 200:
            self._hear(body.rstrip(b"\n"))
        elif key is not None:
            self._hear(json.dumps({"jsonrpc": "2.0", "id": key, "error": body.decode()}).encode())

    def _listens(self) -> int:
        until = time.monotonic() + PATIENCE
        while not self._port:
            found = re.search(r"serving http://127.0.0.1:(\d+)/", self.words())
            self._port = int(found[1]) if found else 0
            assert time.monotonic() < until, self.words()
            time.sleep(0.01)
        return self._port

    def _ask_to_end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
