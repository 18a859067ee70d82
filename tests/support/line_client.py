"""The client of a gateway, or of a server, that is a child of the test: it speaks through the child's pipes."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from .patience import PATIENCE


class LineClient:
    """One client of `process`. `answered` has the answers by the ids of their requests, `told` the notifications and
    `asked` the requests that came. `answers` (method -> result or error) has what those are answered at once."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.answered: dict[Any, dict[str, Any]] = {}
        self.told: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Mapping[str, Any]]] = {}
        self._held = False
        self._number = 0
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request; returns its id."""
        self._number += 1
        self.write({"id": self._number, "method": method, "params": params or {}})
        return self._number

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self.write({"method": method, **({} if params is None else {"params": params})})

    @contextmanager
    def in_one_write(self) -> Generator[None]:
        """What is sent inside goes out together, at the end: nothing happens between one and the next."""
        assert self.process.stdin is not None
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.process.stdin.flush()

    def answer(self, number: int, within: float = PATIENCE) -> dict[str, Any]:
        """The answer to a request, without its id and version. AssertionError when it does not come."""
        self.wait(lambda: number in self.answered, f"an answer to {number}", within)
        return {
            key: self.answered[number][key] for key in ("result", "error") if key in self.answered[number]
        }

    def wait(self, happened: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
        """Read until it has happened. AssertionError when it does not."""
        deadline = time.monotonic() + within
        while not happened():
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {what}; heard {self.told}"
            self.read(min(left, 0.1))  # it may happen without any output

    def read(self, within: float) -> None:
        """Read what comes within `within` seconds, if anything."""
        if not self._selector.select(within):
            return
        assert self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 1 << 16)
        assert chunk, "it closed its output"
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line)

    def close(self) -> None:
        """Read no more."""
        self._selector.close()

    def _take(self, line: bytes) -> None:
        message = _read(line)
        if "method" not in message:
            self.answered[message["id"]] = message
        elif "id" not in message:
            self.told.append(message)
        else:
            self.asked.append(message)
            reply = self.answers.get(message["method"])
            if reply is not None:
                self.write({"id": message["id"], **reply(message.get("params"))})

    def write(self, message: Mapping[str, Any]) -> None:
        """Send a message, given without its version."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        if not self._held:
            self.process.stdin.flush()


def _read(line: bytes) -> dict[str, Any]:
    """A message; of one that is nested too deeply for Python's reader, its id and whether it is a result."""
    try:
        return json.loads(line)
    except RecursionError:
        head = re.match(rb'\{"jsonrpc":"2.0","id":(\d+),"(result|error)":', line)
        assert head, line[:200]
        return {"id": int(head[1]), head[2].decode(): {"code": 0}}
