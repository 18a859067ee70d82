"""A cluster as processes: `python -m benchmarks._cluster directory|host|front …`; and how a row starts and ends one.

The directory has a process of its own, behind a unix socket: each request is a connection with one pickle in each
direction. On Ray it would be an actor. It is on the way of no call.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs

from greenroom.cluster.cluster_host import ClusterHost, HostAbout
from greenroom.cluster.directory import Directory, DirectorySilent, LocalDirectory
from greenroom.cluster.front import ClusterRoom
from greenroom.config.files import open_config
from greenroom.gateway.event_loop import GatewayLoop
from greenroom.gateway.serve import HttpOptions, Options, serve_http

from ._far_end import TEXT
from ._http_client import HttpSide, served

FRONT = "front, host, server"
TOKEN = "0123456789abcdef-benchmark"
_PATIENCE = 30.0  # seconds for a process to be ready
_ANSWER_WITHIN = 1.0


class Away(Directory):
    """The directory behind `path`, for another process."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def ask(self, verb: str, *args: Any) -> Any:
        try:
            with anyio.fail_after(_ANSWER_WITHIN):
                async with await anyio.connect_unix(self._path) as stream:
                    await stream.send(pickle.dumps((verb, args)))
                    said = pickle.loads(await _whole(stream))
        except (OSError, TimeoutError, anyio.EndOfStream) as error:
            raise DirectorySilent(f"The directory does not answer: {error!r}") from None
        if isinstance(said, DirectorySilent):
            raise said
        return said


@attrs.frozen
class Cluster:
    """A directory and hosts, in processes under `folder`."""

    folder: Path
    hosts: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def directory(self) -> Directory:
        return Away(self._socket)

    @property
    def _socket(self) -> str:
        return str(self.folder / "directory")

    def start_host(self, name: str) -> None:
        self.hosts[name] = _start("host", self._socket, name)

    def end_host(self, name: str) -> None:
        """Kill it. Its guard ends what it has started."""
        process = self.hosts.pop(name)
        process.kill()
        process.wait()

    def pids(self) -> list[int]:
        """Of the hosts."""
        return [process.pid for process in self.hosts.values()]

    @contextmanager
    def front(self, config: Mapping[str, Any], tool: str = "echo0_echo") -> Generator[HttpSide]:
        """A front with an HTTP door, over the servers of `config`."""
        path = self.folder / f"front-{len(list(self.folder.glob('front-*')))}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = (sys.executable, "-m", __name__, "front", self._socket, str(path), "PORT")
        with served(FRONT, command, tool, TEXT) as side:
            yield side


@contextmanager
def cluster(folder: Path, *hosts: str) -> Generator[Cluster]:
    """A cluster with these hosts. They join as soon as they can."""
    folder.mkdir(exist_ok=True)
    it = Cluster(folder)
    directory = _start("directory", str(folder / "directory"))
    try:
        until = time.monotonic() + _PATIENCE
        while not (folder / "directory").exists():
            if directory.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the directory does not listen")
            time.sleep(0.02)
        for name in hosts:
            it.start_host(name)
        yield it
    finally:
        for process in it.hosts.values():
            process.terminate()
        for process in (*it.hosts.values(), directory):
            _end(process)


def _start(*words: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-m", __name__, *words], stdin=subprocess.DEVNULL, env=env)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    process.wait()


# ---- The processes --------------------------------------------------------------------------------------------------


async def _directory(path: str) -> None:
    directory = LocalDirectory()

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(
                anyio.EndOfStream, anyio.BrokenResourceError
            ):  # who asked has given up, or was killed
                verb, args = pickle.loads(await _whole(stream))
                await stream.send(pickle.dumps(await directory.ask(verb, *args)))

    async with await anyio.create_unix_listener(path) as listener:
        await listener.serve(answer)


async def _host(path: str, name: str) -> None:
    host = ClusterHost(HostAbout(name), Away(path), token=TOKEN, cache_path=":memory:")
    await host.run()


async def _front(path: str, config: str, port: str) -> None:
    directory = Away(path)

    def open_room(_config: Any) -> ClusterRoom:
        return ClusterRoom.open(
            given, directory=directory, token=TOKEN, cache_path=":memory:", bootstrap=False
        )

    given = open_config(json.loads(await anyio.Path(config).read_text(encoding="utf-8")))
    await serve_http(given, open_room, Options(expose="direct"), HttpOptions("127.0.0.1", int(port)))


async def _whole(stream: anyio.abc.ByteReceiveStream) -> bytes:
    data = b""
    while not data.endswith(b"."):  # a pickle ends with it
        data += await stream.receive()
    return data


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    process: Any = {"directory": _directory, "host": _host, "front": _front}[role]
    with suppress(KeyboardInterrupt):
        # as `serve` and the hosts of Ray do
        anyio.run(partial(process, *words), backend="asyncio", backend_options={"loop_factory": GatewayLoop})
