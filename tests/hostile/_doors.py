"""The doors at which a row is tried: `greenroom serve` as a proxy, direct and over HTTP, and a room in its own program.

All of them speak the same lines, so a row does not know which one it is. Calm servers are configured beside attackers,
and `Door.calm` calls one: through the door, or through the other entrance when the door itself is attacked.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from tests.support.gateway import HELLO

from ._process import Attacked, AttackedOverHttp
from ._words import FIFO, FOLDER, LINK, MIB, Row
from .server import blocks

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("server.py")
ECHO = ROOT / "src" / "greenroom" / "testing" / "servers" / "echo.py"
_NOT_YET = 1 << 33
PATIENCE = 40.0  # seconds that an answer may take on a busy machine; only against a hang, not a measure
SETTINGS = {"bootstrap": False, "requestTimeoutMs": 2500, "connectTimeoutMs": 4000, "queueTimeoutMs": 6000}


@attrs.define(eq=False)
class Door:
    name: str
    folder: Path
    attacked: Attacked
    _control: socket.socket | None = None
    neighbours: int = 1  # calm servers; they are called in turn
    _calls: int = 0

    @property
    def is_gateway(self) -> bool:
        return not self.name.startswith("room")

    def ask(self, tool: str, **arguments: Any) -> int:
        """Call a server's tool; returns the id of the request."""
        return self.attacked.send("tools/call", self._params(tool, arguments))

    def calm(self) -> None:
        """Call a calm server and wait for the answer. AssertionError when it does not come."""
        number = self.ask(self._next_tool(), text="still here")
        answer = self.attacked.answer(number, PATIENCE)
        assert answer is not None, "a neighbour's call was not answered"
        assert "result" in answer, answer
        assert self.is_gateway is ("still here" in str(answer["result"])), answer

    def calm_by_command(self) -> None:
        """The same through the control socket."""
        if self._control is None:
            self._control = self.connected()
        arguments = {"tool": self._next_tool(), "args": {"text": "still here"}}
        request = {"method": "mcp", "params": {"arguments": arguments}}
        self._control.sendall(json.dumps(request).encode() + b"\n")
        said = b""
        while not said.endswith(b"\n"):
            said += self._control.recv(1 << 16) or b"\n"
        assert b"still here" in said, said

    def connected(self) -> socket.socket:
        """A connection to its control socket."""
        until = time.monotonic() + PATIENCE
        while not (paths := sorted(self.folder.rglob(f"*-{self.attacked.pid}.sock"))):
            assert time.monotonic() < until, "there is no control socket"
            time.sleep(0.01)
        with ExitStack() as stack:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(PATIENCE)
            connection.connect(os.fspath(paths[0]))
            stack.pop_all()
        return connection

    def close(self) -> None:
        if self._control is not None:
            self._control.close()

    def _next_tool(self) -> str:
        self._calls += 1
        return f"calm{self._calls % self.neighbours}_echo"

    def _params(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.name == "proxy":
            return {"name": "mcp", "arguments": {"tool": tool, "args": arguments}}
        return {"name": tool, "arguments": arguments}


@contextmanager
def opened(name: str, rows: Sequence[Row], folder: Path, neighbours: int = 1) -> Generator[Door]:
    """A door with the servers of these rows beside calm ones, and the files of these rows in `folder`."""
    with ExitStack() as stack:
        servers = {row.name: _entry(row, folder, stack) for row in rows if row.on}
        patient = {"requestTimeoutMs": int(PATIENCE * 1_000)}  # how late it is answered is measured
        calm = {"command": sys.executable, "args": ["-S", os.fspath(ECHO), f"{folder}/calm"], **patient}
        servers |= {f"calm{number}": calm for number in range(neighbours)}
        for row in rows:
            servers |= {f"far{number}": {"command": "true"} for number in range(row.servers)}
        for over in {row.over for row in rows} - {"stdio"}:
            servers[f"plain_{over}"] = _entry(Row(f"plain_{over}", over=over), folder, stack)
        config = folder / "mcp.json"
        settings = dict(SETTINGS)
        for row in rows:
            settings |= row.settings
        if name == "http":  # by default a request is smaller, and no child is shared
            settings |= {"isolation": "persistent", "http": {"maxBodyBytes": 64 * MIB}}
        config.write_text(json.dumps({"mcpServers": servers, "settings": settings}))
        for row in rows:
            _lay_out(row, folder, stack)
        attacked = stack.enter_context(
            (AttackedOverHttp if name == "http" else Attacked)(
                _module(name, config, rows),
                _environment(folder, is_bare=any(row.is_bare for row in rows)),
                folder,
            )
        )
        door = Door(name, folder, attacked, neighbours=neighbours)
        stack.callback(door.close)
        if door.is_gateway:
            assert attacked.answer(attacked.send("initialize", HELLO), 3 * PATIENCE), attacked.words()
            attacked.send("notifications/initialized", notify=True)
        yield door


def _module(name: str, config: Path, rows: Sequence[Row]) -> list[str]:
    if name.startswith("room"):
        return ["tests.hostile.room", os.fspath(config), name.removeprefix("room-")]
    options = [option for row in rows for option in row.options]
    how = ["--expose", "direct", "--http", "127.0.0.1:0"] if name == "http" else ["--expose", name]
    serve = ["greenroom", "serve", *how, "--config", os.fspath(config)]
    return [*serve, *options]


def _environment(folder: Path, *, is_bare: bool) -> dict[str, str]:
    if is_bare:  # except for the place of its files: they must not go to the home of the person who runs this
        return {"PYTHONPATH": os.fspath(ROOT), "XDG_CACHE_HOME": os.fspath(folder / "cache")}
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(folder),
        "PYTHONPATH": os.fspath(ROOT),
        "XDG_CACHE_HOME": os.fspath(folder / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(folder),
    }


def _entry(row: Row, folder: Path, stack: ExitStack) -> dict[str, Any]:
    command = [sys.executable, "-S", os.fspath(SERVER), row.script]
    if row.over == "stdio":
        return {"command": command[0], "args": [*command[1:], f"{folder}/{row.name}"], **row.entry}
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    stack.callback(_end, process)
    assert process.stdout is not None
    site = f"http://127.0.0.1:{int(process.stdout.readline())}"
    if row.over == "http":
        return {"url": f"{site}/mcp", **row.entry}
    tools = {name: {"method": "GET", "path": f"/{name}"} for name in ("echo", "attack")}
    document = {"openapi": f"{site}/openapi.json"} if "document" in row.on else {}
    return {"baseUrl": site, "http": tools, **document, **row.entry}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _lay_out(row: Row, folder: Path, stack: ExitStack) -> None:
    for place, inside in row.files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent).chmod(0o700)
        if inside == FOLDER:
            path.mkdir()
        elif inside == FIFO:
            os.mkfifo(path, 0o600)
        elif inside == LINK:
            path.symlink_to("/dev/zero")
        else:
            with path.open("wb") as file:
                for block in blocks(list(inside), None):
                    file.write(block)
            if path.suffix == ".task":  # its time is when it is over
                os.utime(path, (_NOT_YET, _NOT_YET))
    with suppress(FileNotFoundError):
        (folder / "cache").chmod(0o700)
