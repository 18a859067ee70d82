"""A background gateway in a folder of a test's own, and clients that attach to it.

The room has no parent, so nothing ends it but itself. `background` ends it, whatever the test did, and waits until
nothing of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from greenroom.gateway.doors.attach_protocol import Hello, RoomLines, send_hello
from greenroom.gateway.doors.background_gateway import RoomPlace
from greenroom.gateway.doors.control_protocol import identity

from .forked import GREENROOM, run_forked
from .gateway import PATIENCE, Gateway, gone_within, logged_pids, started


@attrs.define
class Background:
    """The background gateway of `folder`'s configuration, whether it runs or not."""

    folder: Path
    seen: set[int] = attrs.field(factory=set[int], init=False)  # the pids that the room has had

    @property
    def config(self) -> Path:
        return self.folder / "mcp.json"

    @property
    def environment(self) -> dict[str, str]:
        home = os.fspath(self.folder)
        names = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": ""}
        return {"PATH": os.environ["PATH"], "HOME": home} | {
            name: os.path.join(home, part) for name, part in names.items()
        }

    @property
    def place(self) -> RoomPlace:
        name, run = identity([os.fspath(self.config)]), self.folder / "cache" / "greenroom" / "run"
        log = self.folder / "state" / "greenroom" / f"room-{name}.log"
        return RoomPlace(name, self.folder, run / f"room-{name}.sock", run / f"room-{name}.lock", log)

    def attach(self, *options: str, **environment: str) -> AbstractContextManager[Gateway]:
        """A client that attaches."""
        return started(
            *(*GREENROOM, "attach", "--config", os.fspath(self.config), *options),
            env={**self.environment, **environment},
            cwd=self.folder,
            stderr=subprocess.DEVNULL,
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            [*GREENROOM, *words, "--config", os.fspath(self.config)],
            env=self.environment,
            cwd=self.folder,
            text=True,
            timeout=PATIENCE,
        )

    def status(self) -> dict[str, Any]:
        """Who is attached, as `greenroom status` tells it."""
        said = self.command("status", "--json")
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)["background"]

    def pid(self) -> int:
        """The room's process."""
        pid = int(self.status()["pid"])
        self.seen.add(pid)
        return pid

    def kill(self) -> None:
        """Kill the room, and wait until it and its servers are gone."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        assert not gone_within({pid})

    def rooms(self) -> set[int]:
        """Every process that is a room of this configuration, without what a room is just forking."""
        needle = b"--as-room\0" + self.place.name.encode()
        found: dict[int, int] = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(OSError):
                if needle in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return {pid for pid, parent in found.items() if parent not in found}

    def stop(self) -> None:
        """Ask the room to end, as `greenroom stop` does, and wait until it has."""
        line = self.place.dial()
        if line is not None:
            with line:
                line.settimeout(PATIENCE)
                send_hello(line, Hello(version="0", stop=True), [])
                words = RoomLines(line)
                while words.next() is not None:
                    pass


@contextmanager
def background(
    folder: Path, servers: dict[str, Any], profiles: dict[str, Any] | None = None, **settings: Any
) -> Generator[Background]:
    said = {
        "mcpServers": servers,
        "profiles": profiles or {},
        "settings": {"bootstrap": False, **settings},
    }
    config = folder / "mcp.json"
    config.write_text(json.dumps(said))
    room = Background(folder)
    try:
        yield room
    finally:
        try:
            room.stop()
        finally:
            for pid in room.rooms():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            left = gone_within(room.seen | logged_pids(folder))
    assert not left
