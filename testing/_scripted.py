"""The executable fake server, for tests: its configuration entry, and what it has written to its log.

A `ScriptedServer` has the same counts as a `FakeServer`: `starts`, `calls`, `cancelled`, `pings`, `played`. They are
read from the log file, to which all its starts write.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ._faults import Fault, FaultScript


@attrs.frozen
class ScriptedServer:
    """A process that plays `script`. `log`: a file for this server only. It is made when the server first starts."""

    script: FaultScript
    log: Path = attrs.field(converter=Path)

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry for `mcpServers`."""
        options = ["--script", self.script.to_json(), "--log", os.fspath(self.log)]
        return {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.scripted", *options]}

    @property
    def events(self) -> list[dict[str, Any]]:
        """All complete lines of the log, in order."""
        if not self.log.exists():
            return []
        lines = self.log.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    @property
    def pids(self) -> list[int]:
        """The pid of each start, in order."""
        return [event["pid"] for event in self._told("started")]

    @property
    def starts(self) -> int:
        return len(self.pids)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The parameters of each `tools/call` that arrived."""
        return self._heard("tools/call")

    @property
    def cancelled(self) -> int:
        return len(self._heard("notifications/cancelled"))

    @property
    def pings(self) -> int:
        return len(self._heard("ping"))

    @property
    def played(self) -> list[tuple[int, Fault]]:
        """Each fault that was played: (number of the start, fault)."""
        return [(event["number"], Fault(**event["fault"])) for event in self._told("fault")]

    @property
    def endings(self) -> list[str]:
        """How its starts ended. One that was killed could not write that down."""
        return [event["how"] for event in self._told("stopped")]

    def _told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def _heard(self, method: str) -> list[Mapping[str, Any]]:
        return [event["params"] for event in self._told("heard") if event["method"] == method]
