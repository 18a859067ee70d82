"""The fork servers of this session's tests (`forkserver`). The first test that needs one starts it; it ends with the
session.

One has imported what the SDK's servers need (`forked`). The other has imported what the command line of Greenroom, a
gateway over stdio and a host of a cluster import (`popen_forked`, `run_forked`). A forked program whose environment
names a file as `LATE_IMPORTS` writes into it what it imported itself, when it ends.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .leaks import KEPT_DESCRIPTORS, KEPT_PROCESSES

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("forkserver.py")
GREENROOM = (sys.executable, "-m", "greenroom")  # the command itself, started cold
HOST = (sys.executable, "-m", "tests.cluster._host_process")


class _ForkServer:
    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = ""

    def socket(self) -> str:
        """The socket of the fork server. Starts the server if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._socket

    def _start(self) -> None:
        self._socket = os.path.join(tempfile.mkdtemp(prefix="fork-"), "fork")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkserver", self._socket, *self._modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        KEPT_PROCESSES.add(process.pid)
        KEPT_DESCRIPTORS.add(process.stdin.fileno())
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()

    def end(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            shutil.rmtree(os.path.dirname(self._socket))


_COMMANDS = (
    "main",
    "exit_codes",
    "call_command",
    "attach_command",
    "stop_command",
    "query_commands",
    "doctor_command",
    "refresh_command",
    "serve_command",
    "status_command",
    "warnings_file",
)
_SOMETIMES = (
    "approve_command",
    "client_files",
    "command_group",
    "doctor_checks",
    "logs_command",
    "replay_command",
)
_of_sdk = _ForkServer("tests.support.sdk_app", "tests.support.sdk_asker", "uvicorn", "hypercorn.trio")
_of_ours = _ForkServer(
    *("greenroom.__main__", "greenroom", "greenroom.gateway.serve"),
    *("greenroom.gateway.exposures.direct", "greenroom.gateway.exposures.proxy"),
    *(f"greenroom.cli.{name}" for name in _COMMANDS),
    *("greenroom.gateway.event_loop", "uvloop", "anyio._backends._asyncio", "anyio._backends._trio"),
    # What is imported only when a room opens; a forked gateway would import it each time, in 90 ms.
    *("greenroom.supervisor.room", "greenroom.config.files", "filelock"),
    "greenroom.actors.transports.stdio",  # what is imported only when a server is started
    *("anyio._core._signals", "encodings.utf_8_sig", "encodings.utf_16_le"),
    # What a command imports that looks into the cache, and what serves or asks over HTTP: a tenth of a second each.
    *("greenroom.gateway.offline_catalogue", "greenroom.gateway.explain", "greenroom.config.secret_sources"),
    *(
        "greenroom.gateway.doors.http_app",
        "greenroom.gateway.doors.http_server",
        "greenroom.gateway.page.page_routes",
    ),
    *("greenroom.actors.transports.http_client", "importlib.metadata", "encodings.idna"),
    # What some of them import: five milliseconds here and ten there.
    *(f"greenroom.cli.{name}" for name in _SOMETIMES),
    *("greenroom.tape.recorder", "greenroom.observe.events_file", "greenroom.gateway.exposures.meta"),
    *("greenroom.actors.login.login_auth", "greenroom.actors.transports.npx", "re2", "yaml"),
    *("greenroom.actors.transports.streamable_http", "greenroom.actors.transports.http_connection"),
    *("greenroom.openapi.http_tools", "greenroom.actors.transports.api_document"),
    HOST[-1],
)
_PROGRAMS = {GREENROOM: "greenroom.__main__", HOST: HOST[-1]}


def forked(module: str, *words: str) -> list[str]:
    """The command that runs `module.main(*words)` in a newly forked process."""
    return [sys.executable, "-S", os.fspath(PROGRAM), _of_sdk.socket(), module, *words]


def write_forked_greenroom(file: Path) -> None:
    """Make of `file` a command `greenroom` for a shell, which is forked as `Forked` is. On other systems than Linux it
    is the command itself."""
    asks = ["-m", "greenroom"]
    if sys.platform == "linux":
        asks = ["-S", os.fspath(PROGRAM), "--program", _of_ours.socket(), _PROGRAMS[GREENROOM]]
    file.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *asks])} "$@"\n')
    file.chmod(0o755)


class Forked(subprocess.Popen[Any]):
    """`GREENROOM` or `HOST` with more words, as `subprocess.Popen` would start it, but without the half second that
    its imports take: a child of this process, forked from one that has already imported them. In a new session, a
    terminal that is its stdin is its own.

    Do not use it for tests that depend on how a Python process begins: its flags, `PYTHON…` variables, what it has
    imported, how long it takes, its command line in /proc. Start `GREENROOM` for those. This class itself starts
    the command on systems where such a fork is not possible. Nor use it for tests of the alarm that a gateway sets when
    it must leave at once: here it is set much later (`forkserver`).
    """

    def _execute_child(self, *given: Any) -> None:
        start = getattr(subprocess.Popen, "_execute_child")  # noqa: B009 (of no public name)
        if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
            start(self, *given)
            return
        at = inspect.signature(start).bind(self, *given).arguments
        module = _PROGRAMS[tuple(at["args"][:3])]
        environment = os.environ if at["env"] is None else at["env"]
        request = {
            "own": True,
            "program": True,
            "session": at["start_new_session"],
            "module": module,
            "words": [os.fspath(word) for word in at["args"][3:]],
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()},
            "cwd": os.fspath(at["cwd"] or os.getcwd()),
        }
        pipes = [at["p2cread"], at["c2pwrite"], at["errwrite"]]
        descriptors = [number if fd == -1 else fd for number, fd in enumerate(pipes)]
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(_of_ours.socket())
            socket.send_fds(line, [json.dumps(request).encode()], descriptors)
            self.pid = int(line.recv(16))
        setattr(self, "_child_created", True)  # noqa: B010
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        getattr(self, "_close_pipe_fds")(*(at[end] for end in ends))  # noqa: B009


def popen_forked(command: Sequence[Any], **how: Any) -> subprocess.Popen[Any]:
    """Like `subprocess.Popen`; a command that begins with `GREENROOM` or `HOST` is forked (`Forked`)."""
    if tuple(command[:3]) in _PROGRAMS:
        return Forked(command, **how)
    return subprocess.Popen(command, **how)


def run_forked(
    command: Sequence[Any], *, timeout: float = 60.0, check: bool = False, text: bool = False, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run` with captured output; a command that begins with `GREENROOM` is forked (`Forked`)."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen_forked(command, text=text, **pipes, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def greenroom_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command on the configuration of `folder`, with the cache and the sockets that a gateway of
    `tests.support.gateway.serve` has there."""
    command = [*GREENROOM, *words, "--config", os.fspath(folder / "mcp.json")]
    return run_forked(command, env=environment_of(folder), cwd=folder, text=True)


def environment_of(folder: Path) -> dict[str, str]:
    home, cache = os.fspath(folder), os.fspath(folder / "cache")
    return {"PATH": os.environ["PATH"], "HOME": home, "XDG_CACHE_HOME": cache, "XDG_RUNTIME_DIR": home}


def pytest_unconfigure() -> None:
    for server in (_of_sdk, _of_ours):
        server.end()
