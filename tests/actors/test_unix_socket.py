"""A server behind a unix socket: lines, as on stdio, with nobody to start or kill."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.stdio import Call, Recorder, until

from greenroom.actors.backend import current_backend
from greenroom.actors.transports import unix_socket
from greenroom.actors.transports.unix_socket import SocketConnection, SocketPeer, UnixConnector
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.errors import ConnectFailed, Reach, ServerLost
from greenroom.supervisor.room import Greenroom


class Stage:
    """What the test holds of the server: who is connected, what was heard."""

    def __init__(self) -> None:
        self.lines: list[socket.socket] = []
        self.heard: list[str] = []

    def hang_up(self) -> None:
        for line in self.lines:
            line.shutdown(socket.SHUT_RDWR)


@contextmanager
def listening(path: Path) -> Generator[Stage]:
    stage = Stage()
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                stage.lines.append(line)
                threads.append(threading.Thread(target=_serve, args=(line, stage)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield stage
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()
            path.unlink()


def _serve(line: socket.socket, stage: Stage) -> None:
    with line, line.makefile("rb") as reader:
        for text in reader:
            message = json.loads(text)
            stage.heard.append(message["method"])
            if "id" in message and message["method"] != "hang":
                answer = {"jsonrpc": "2.0", "id": message["id"], **_answer(message)}
                if "hang" not in text.decode():
                    line.sendall(json.dumps(answer).encode() + b"\n")


def _answer(message: Any) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "unix", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "hang")]
            return {"result": {"tools": tools}}
        case "tools/call":
            return {
                "result": {"content": [{"type": "text", "text": json.dumps(message["params"]["arguments"])}]}
            }
        case other:
            return {"error": {"code": -32601, "message": f"Method not found: {other}"}}


def room_at(path: Path) -> Greenroom:
    config = {"mcpServers": {"unix": {"socket": str(path)}}, "settings": {"toolPrefix": "none"}}
    return Greenroom.open(config, cache_path=":memory:", bootstrap=False)


@in_real_time
async def test_it_is_met_and_called(tmp_path: Path) -> None:
    with listening(tmp_path / "s") as stage:
        async with room_at(tmp_path / "s") as room:
            await room.connect("unix")
            long = "x" * (1 << 20)
            for text in ("a", long):
                assert json.loads((await room.call("echo", {"text": text})).text) == {"text": text}
        assert stage.heard[:2] == ["server/discover", "initialize"]


@in_real_time
async def test_t06_when_it_hangs_up_the_next_call_connects_again(tmp_path: Path) -> None:
    with listening(tmp_path / "s") as stage:
        async with room_at(tmp_path / "s") as room, anyio.create_task_group() as tasks:
            await room.connect("unix")
            ends: list[ServerLost] = []

            async def under_way() -> None:
                try:
                    await room.call("hang")
                except ServerLost as error:
                    ends.append(error)

            tasks.start_soon(under_way)
            assert await until(lambda: "tools/call" in stage.heard)
            stage.hang_up()
            assert await until(lambda: len(ends) == 1)
            assert ends[0].reach is Reach.SENT
            assert "closed the connection" in str(ends[0])
            assert (await room.call("echo", {})).text == "{}"
            assert len(stage.lines) == 2


@in_real_time
async def test_nobody_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    async with room_at(tmp_path / "s") as room:
        with pytest.raises(ConnectFailed, match='Start it, or correct "socket"') as caught:
            await room.connect("unix")
        assert caught.value.server == "unix"


@in_real_time
async def test_a_server_that_is_busy_accepting_others_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as others:
        listener.bind(path)
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                line = others.enter_context(socket.socket(socket.AF_UNIX))
                line.setblocking(False)
                line.connect(path)
        connector = UnixConnector(
            ServerDefinition("a", socket=path), backend=current_backend(), settings=Settings()
        )
        opened = anyio.Event()

        async def connect() -> None:
            async with connector.open(Recorder()):
                opened.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect)
            await anyio.sleep(0.05)
            assert not opened.is_set()
            with listener.accept()[0], anyio.fail_after(PATIENCE):
                await opened.wait()


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o775])
def test_where_anybody_may_make_a_socket_its_owner_is_us_or_root(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(unix_socket, "check_peer", lambda line, **how: asked.append((line, how)))  # pyright: ignore[reportUnknownLambdaType]
    tmp_path.chmod(mode)
    path, backend = str(tmp_path / "s"), cast("Any", None)
    connector = UnixConnector(ServerDefinition("a", socket=path), backend=backend, settings=Settings())
    with socket.socket(socket.AF_UNIX) as line:
        connector._check_whose(line, path)
        assert asked == ([(line, {"or_root": True})] if mode & 0o002 else [])


@in_real_time
async def test_what_was_written_before_the_hang_up_is_read_though_no_pump_has() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        hooks, call = Recorder(), Call("ping")
        connection = SocketConnection(SocketPeer, ours, hooks, current_backend(), Settings())
        connection.peer.request(call)
        theirs.send(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
        theirs.close()
        connection.peer.notify("notifications/x")  # a broken pipe is the first to show
        await connection._watch_end()
        assert call.ends == [(b"{}", None)]
        assert [reason.text for reason in hooks.reasons] == ["closed the connection"]
        assert connection.peer.is_silent


@in_real_time
async def test_the_first_sign_of_its_end_is_the_one_that_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        hooks = Recorder()
        connection = SocketConnection(SocketPeer, ours, hooks, current_backend(), Settings())
        for how in ("", "sent too much junk", "closed the connection"):
            connection.over(how)
        await connection._watch_end()
        await connection._watch_end()
        assert [reason.text for reason in hooks.reasons] == ["sent too much junk"], "once"


@in_real_time
async def test_hanging_up_ourselves_is_no_loss() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        hooks = Recorder()
        connection = SocketConnection(SocketPeer, ours, hooks, current_backend(), Settings())
        await connection.stop(1.0)
        assert theirs.recv(1) == b""
        connection._over.set()
        await connection._watch_end()
        assert hooks.reasons == []


@pytest.mark.filterwarnings(
    "ignore:.*use of fork:DeprecationWarning"
)  # threads of earlier tests may still end
@in_real_time
async def test_a_forked_copy_does_not_hang_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = SocketConnection(SocketPeer, ours, Recorder(), current_backend(), Settings())
        child = os.fork()
        if not child:
            try:
                connection.kill_now()
            finally:
                os._exit(0)
        assert (await anyio.to_thread.run_sync(os.waitpid, child, 0))[1] == 0
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        connection.kill_now()
        assert theirs.recv(1) == b""


@pytest.mark.parametrize("path", ["s", "./s", "../s"])
def test_a_socket_beside_the_working_directory_is_nobody_elses(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    backend: Any = None
    connector = UnixConnector(ServerDefinition("a", socket=path), backend=backend, settings=Settings())
    with socket.socket(socket.AF_UNIX) as line:
        connector._check_whose(line, path)
