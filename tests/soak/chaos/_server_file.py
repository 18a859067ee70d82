"""The servers of a run, good and bad, and the configuration file that names them.

Every child has the token of its gateway's life in its environment, and passes it on to the processes that it starts. A
run finds the surviving processes by this mark, and not by what the gateway believes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import attrs

SERVERS: Final = Path(__file__).resolve().parents[3] / "src" / "greenroom" / "testing" / "servers"
MARK: Final = "CHAOS_LIFE"
STANDING: Final = ("notes", "keep", "keepfork")  # eager and keep-alive: connected whenever nothing is wrong
HONEST: Final = frozenset(
    {"echo", "keep", "keepfork", "late", "disk", "chatty", "forks", "double", "each", "extra"}
)

# The tools to call: (server, tool), each pair as often as its share of the calls.
TOOLS: Final = (
    *[("echo", "echo")] * 6,
    *[("keep", "echo")] * 4,
    *[("keepfork", "echo")] * 2,
    *[("late", "echo")] * 3,
    *[("disk", "echo")] * 4,
    *[("chatty", "echo")] * 2,
    *[("forks", "echo")] * 2,
    *[("double", "echo")] * 2,
    *[("deaf", "echo")] * 2,
    *[("junk", "junk"), ("junk", "echo"), ("fat", "echo"), ("twice", "echo"), ("broken", "echo")],
    *[("notes", "find"), ("clock", "now"), ("flaky", "divide"), ("flaky", "crash"), ("late", "sleep")],
    *[("", "tools/list"), ("", "ping"), ("", "resources/list"), ("flood", "echo")],
    *[("each", "echo")] * 3,
    *[("late", "grow"), ("late", "progress"), ("hangs", "echo"), ("dies", "echo"), ("extra", "echo")],
)  # fmt: skip

SETTINGS: Final[dict[str, Any]] = {
    "requestTimeoutMs": 2500,
    "connectTimeoutMs": 3000,
    "queueTimeoutMs": 4000,
    "acquireTimeoutMs": 4000,
    "drainTimeoutMs": 1000,
    "stopTimeoutMs": 800,
    "healthIntervalMs": 2000,
    "restartBackoff": {"minMs": 50, "maxMs": 500},
    "restartIntensity": 50,
    "maxQueued": 200,
    "maxLineBytes": 1 << 20,
}
SLOTS: Final = 9
MOST_SLOTS: Final = 11
FLAGS: Final = ("--idle-timeout=400", "--failure-threshold=4", "--cooldown=700")


@attrs.define
class ServerFile:
    """The configuration file of one life, in the run's own folder."""

    folder: Path
    token: str
    present: dict[str, Any] = attrs.field(init=False)
    slots: int = SLOTS

    def __attrs_post_init__(self) -> None:
        self.present = self.base()

    @property
    def config(self) -> Path:
        return self.folder / "mcp.json"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def base(self) -> dict[str, Any]:
        """The servers as they are when nobody has changed them."""
        faulty = self._faulty
        return {
            "echo": self._program("echo"),
            "clock": self._module("demo_clock"),
            "flaky": self._module("demo_flaky"),
            "notes": {**self._module("demo_notes"), "lifecycle": "eager"},
            "keep": {**self._program("echo"), "lifecycle": "keep-alive"},
            "keepfork": {**faulty("--fork", "group", "--ignore-term"), "lifecycle": "keep-alive"},
            "late": faulty("--late", "0.03", "--kinds", "tools"),
            "disk": faulty("--disk", os.fspath(self.disk)),
            "chatty": faulty("--stderr", "200000"),
            "forks": faulty("--fork", "setsid", "--ignore-eof", "--ignore-term"),
            "double": faulty("--fork", "double"),
            "deaf": faulty("--deaf-after", "tools/call"),
            "junk": faulty("--junk-before", "--banner", "Welcome!"),
            "fat": faulty("--fat", "200000"),
            "flood": faulty("--fat", "3000000"),
            "twice": faulty("--twice", "--bad-utf8"),
            "broken": faulty("--not-json"),
            "each": {**faulty(), "isolation": "per_call"},
            # Their tools are never known, so discoveries would be repeated for ever. Only calls start these two.
            "hangs": {**faulty("--hang-at", "initialize"), "connectTimeoutMs": 700, "bootstrap": False},
            "dies": {**faulty("--crash-at", "notifications/initialized"), "bootstrap": False},
        }

    def restore(self) -> None:
        """Go back to the first state, without writing it."""
        self.present, self.slots = self.base(), SLOTS

    def extra(self) -> dict[str, Any]:
        return self._program("echo")

    def write(self, *, in_place: bool = False) -> None:
        """Write the present servers into the file: by a rename, as editors do, or in place."""
        settings = {**SETTINGS, "maxConnections": self.slots}
        self._put(json.dumps({"mcpServers": self.present, "settings": settings}), in_place)

    def write_broken(self) -> None:
        self._put(json.dumps({"mcpServers": self.present})[:-30], True)

    def _put(self, text: str, in_place: bool) -> None:
        if in_place:
            self.config.write_text(text)
            return
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    def _faulty(self, *faults: str) -> dict[str, Any]:
        return self._program("faulty", *faults)

    def _program(self, name: str, *arguments: str) -> dict[str, Any]:
        return self._entry("-S", os.fspath(SERVERS / f"{name}.py"), *arguments)

    def _module(self, name: str) -> dict[str, Any]:
        return self._entry("-m", f"greenroom.testing.servers.{name}")

    def _entry(self, *arguments: str) -> dict[str, Any]:
        return {"command": sys.executable, "args": list(arguments), "env": {MARK: self.token}}
