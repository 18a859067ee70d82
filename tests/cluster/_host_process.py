"""A host of a cluster as a process of its own: `python -m tests.cluster._host_process SOCKET NAME LENGTH`.

Its directory is in the test, behind a unix socket: each request is a connection with one pickle in each direction.
"""

from __future__ import annotations

import pickle
import signal
import sys
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from tests.support.patience import PATIENCE

from greenroom.cluster.cluster_host import ClusterHost, HostAbout
from greenroom.cluster.directory import Directory, DirectorySilent, LocalDirectory
from greenroom.cluster.leases import LeaseTimes

TOKEN = "0123456789abcdef-cluster"


def times(length: float) -> LeaseTimes:
    return LeaseTimes(length, length / 5, length * 0.3, length / 10)


async def serve(directory: LocalDirectory, path: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Answer the hosts of other processes."""

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                verb, args = pickle.loads(await _whole(stream))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
            try:
                said: Any = await directory.ask(verb, *args)
            except DirectorySilent as silent:
                said = silent
            with suppress(anyio.BrokenResourceError):  # who asked is gone, or has given up
                await stream.send(pickle.dumps(said))

    async with await anyio.create_unix_listener(path) as listener:
        task_status.started()
        await listener.serve(answer)


async def _whole(stream: anyio.abc.ByteReceiveStream) -> bytes:
    data = b""
    while not data.endswith(b"."):  # a pickle ends with it, and a short one comes whole
        data += await stream.receive()
    return data


class Away(Directory):
    """The directory behind `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def ask(self, verb: str, *args: Any) -> Any:
        try:
            with anyio.fail_after(PATIENCE):
                async with await anyio.connect_unix(self._path) as stream:
                    await stream.send(pickle.dumps((verb, args)))
                    said = pickle.loads(await _whole(stream))
        except (OSError, TimeoutError, anyio.EndOfStream) as error:
            raise DirectorySilent(f"The directory does not answer: {error!r}") from None
        if isinstance(said, DirectorySilent):
            raise said
        return said


async def run(path: str, name: str, length: float) -> None:
    host = ClusterHost(
        HostAbout(name), Away(path), token=TOKEN, times=times(length), cache_path=":memory:", say=_say
    )

    async def stop_when_asked() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                host.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_when_asked)
        await host.run()
        tasks.cancel_scope.cancel()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    anyio.run(run, sys.argv[1], sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    main()
