"""The control socket: who may come in, how a gateway is found, and requests that are wrong or abandoned."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.support import in_real_time, in_virtual_time, run
from tests.support.bodies import body_of
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.actors.workers import OptionalPart
from greenroom.config.private_files import NotOurs, make_own_folder
from greenroom.gateway.control_methods import commands
from greenroom.gateway.doors import control_client as client
from greenroom.gateway.doors import control_protocol as place
from greenroom.gateway.doors import control_server as control
from greenroom.gateway.doors.control_protocol import object_in, text_in, texts_in
from greenroom.protocol.errors import UnknownServer, UsageError
from greenroom.testing.fake_servers import FakeServer, fake_connectors


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache directory of the test's own, with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield


async def echo(params: Mapping[str, Any]) -> Any:
    return dict(params)


async def refuse(_params: Mapping[str, Any]) -> Any:
    raise UnknownServer("x", ["a"])


async def break_down(_params: Mapping[str, Any]) -> Any:
    raise ZeroDivisionError("oh")


async def nest(_params: Mapping[str, Any]) -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


async def say_nothing_sayable(_params: Mapping[str, Any]) -> Any:
    return {"x": object()}


METHODS: dict[str, control.Handler] = {
    "echo": echo,
    "refuse": refuse,
    "break": break_down,
    "nest": nest,
    "odd": say_nothing_sayable,
}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def serving(
    body: Callable[[Path], Awaitable[None]], backend: str, methods: Any = METHODS, note: Any = print
) -> None:
    async def main() -> None:
        path = place.socket_path(place.identity(["a"]), os.getpid())
        async with anyio.create_task_group() as group:

            async def listen(*, task_status: Any) -> None:
                await control.serve_control(
                    path,
                    control.ControlMethods(lambda: methods),
                    OptionalPart("it", note),
                    control.ControlConnections(group),
                    task_status=task_status,
                )

            await group.start(listen)
            with anyio.fail_after(PATIENCE):
                await body(path)
            group.cancel_scope.cancel()
        assert not path.exists()

    run(backend, main)


@body_of(serving)
async def test_a_command_finds_it_and_is_answered(path: Path, /) -> None:
    def command() -> None:
        gateway = client.find_gateway(place.identity(["a"]))
        assert gateway is not None
        with gateway:
            assert gateway.pid == os.getpid()
            assert gateway.ask("echo", words="x" * 300_000) == {"words": "x" * 300_000}
            with pytest.raises(client.GatewayError, match=r'Server "x" not found. Configured: a.') as refused:
                gateway.ask("refuse")
            assert refused.value.code == "server_not_found"
            with pytest.raises(client.GatewayError, match="bug in Greenroom") as broken:
                gateway.ask("break")
            assert broken.value.code == "bug"
            for method, why in (("nest", "nested too deeply"), ("odd", "not JSON serializable")):
                with pytest.raises(
                    client.GatewayError, match=f"cannot be written as JSON: .*{why}"
                ) as unwritable:
                    gateway.ask(method)
                assert unwritable.value.code == "unwritable"
            with pytest.raises(client.GatewayError, match="does not know the method 'zebra'"):
                gateway.ask("zebra")
        assert client.find_gateway(place.identity(["another"])) is None

    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700
    await anyio.to_thread.run_sync(command)


FAULTS = (
    (b"nonsense", "not JSON"),
    (b"[" * 99_999, "nested too deeply"),
    (b"[]", "this is an array"),
    (b"{}", '"method" is missing'),
    (b'{"method": 5}', '"method" must be a string, not a number'),
    (b'{"method": "echo", "params": [1]}', '"params" must be an object, not an array'),
)


def test_lines_that_are_no_requests_are_told_why_and_the_next_is_served(backend: str) -> None:
    def command(path: Path) -> list[Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(path))
            for line, _ in FAULTS:
                connection.sendall(line + b"\n")
            connection.sendall(b'{"method": "echo"}\n{"method": "echo", "params": {"n": "\xff"}}\n')
            with connection.makefile("rb") as lines:
                return [json.loads(lines.readline()) for _ in (*FAULTS, None, None)]

    async def body(path: Path) -> None:
        *refused, empty, served = await anyio.to_thread.run_sync(command, path)
        for answer, (_, fault) in zip(refused, FAULTS, strict=True):
            assert answer["error"]["code"] == "invalid_request"
            assert fault in answer["error"]["message"]
        assert (empty, served) == ({"result": {}}, {"result": {"n": "\ufffd"}})

    serving(body, backend)


@body_of(serving)
async def test_a_line_without_end_is_refused_and_its_sender_is_hung_up_on(
    path: Path, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_LINE", 1000)

    def command(path: Path) -> list[bytes]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(path))
            connection.sendall(b"x" * 1001)
            with connection.makefile("rb") as lines:
                return lines.readlines()

    (answer,) = await anyio.to_thread.run_sync(command, path)
    assert "may have 1000 bytes" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("name", ["text", "object"])
def test_parameters_of_another_kind_are_named(name: str) -> None:
    read, right, other, kind = {
        "text": (text_in, ("", "a"), {}, "a string, not an object"),
        "object": (object_in, ({}, {"a": 1}), "", "an object, not a string"),
    }[name]
    for nothing in ({}, {"x": None}):
        assert read(nothing, "x") == (None if name == "text" else {})
    for value in right:
        assert read({"x": value}, "x") == value
    for wrong in (5, 0, False, [], other):
        with pytest.raises(UsageError, match='"x" must be'):
            read({"x": wrong}, "x")
    with pytest.raises(UsageError) as caught:
        read({"x": other}, "x")
    form = "The control socket takes one JSON object per line, with a method and params"
    assert caught.value.message == f'{form}: "x" must be {kind}.'


@in_real_time
async def test_malformed_parameters_of_a_refresh_are_the_commands_fault() -> None:
    async with Greenroom.open({"mcpServers": {}}) as room:
        methods = commands(room, "0")
        for method, params, fault in (
            ("refresh", {"servers": 5}, '"servers" must be a list of strings'),
            ("refreshed", {}, '"names" must be a list of strings'),
            ("refreshed", {"names": [[]], "since": 0}, '"names" must be a list of strings'),
            ("refreshed", {"names": ["x"]}, '"since" must be a number, not null'),
            ("refreshed", {"names": ["x"], "since": True}, '"since" must be a number'),
        ):
            with pytest.raises(UsageError, match=fault):
                await methods[method](params)
        (row,) = await methods["refreshed"]({"names": ["x"], "since": 0})
        assert (row["name"], row["state"]) == ("x", "failed")


@pytest.mark.parametrize("is_audited", [False, True])
@in_real_time
async def test_each_command_is_answered_what_it_asked_for(is_audited: bool, tmp_path: Path) -> None:
    servers = {"a": FakeServer(), "b": FakeServer(refuse_start="it has no engine")}
    config = {"mcpServers": {name: {"command": "fake"} for name in servers}, "settings": {"approve": True}}
    audit = tmp_path / "calls.jsonl" if is_audited else None
    connectors = fake_connectors(servers)
    opened = Greenroom.open(
        config, cache_path=":memory:", bootstrap=False, connectors=connectors, audit=audit
    )
    async with opened as room:
        ask = commands(room, "9.9", "mcp.json")
        hello = {"pid": os.getpid(), "version": "9.9", "folder": os.getcwd(), "config": "mcp.json"}
        assert await ask["hello"]({}) == hello
        status = await ask["status"]({})
        assert [row["name"] for row in status["servers"]] == ["a", "b"]
        assert status["waitingForApproval"] == 0
        kept = {"file": str(audit), "failing": False, "missed": 0}
        assert status.get("audit") == (kept if is_audited else None)
        ended = [(await ask["reconnect"]({"server": name}))["servers"] for name in servers]
        assert ended[0] == [{"server": "a", "name": "a", "error": None}]
        assert "it has no engine" in ended[1][0]["error"]
        assert "a_echo" in json.dumps(await ask["tools"]({"server": "a"}))
        call = {"arguments": {"tool": "a_echo", "args": {"x": 1}}}
        refused, answer = [await ask["mcp"]({**call, "allowed": allowed}) for allowed in (False, True)]
        assert refused["_meta"]["greenroom/details"]["error"] == "approval_required"
        assert answer["content"][0]["text"] == '{"x": 1}'
        unknown = await ask["mcp"]({"arguments": {"describe": "b_x"}})
        assert "greenroom refresh" in unknown["content"][0]["text"], "hints are for people, not for models"
        vitals = await ask["vitals"]({})
        assert (vitals["pid"], vitals["tasks"] > 0, vitals["threads"] > 0) == (os.getpid(), True, True)
    assert audit is None or '"command line"' in audit.read_text()


def test_when_a_command_goes_away_what_it_asked_for_is_cancelled(backend: str) -> None:
    state: list[str] = []

    async def wait(_params: Mapping[str, Any]) -> Any:
        state.append("began")
        try:
            await anyio.sleep_forever()
        finally:
            state.append("cancelled")

    async def body(path: Path) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.fspath(path))
        connection.sendall(b'{"method": "wait"}\n')
        while state != ["began"]:
            await anyio.lowlevel.checkpoint()
        connection.close()
        while state != ["began", "cancelled"]:
            await anyio.lowlevel.checkpoint()

    serving(body, backend, {"wait": wait})


def test_a_gateway_that_dies_over_a_request_is_reported(tmp_path: Path) -> None:
    path = place.socket_path("0123456789ab", os.getpid())
    make_own_folder(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        def accept() -> None:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        gateway = client.find_gateway("0123456789ab")
        assert gateway is not None
        with gateway, pytest.raises(client.GatewayError, match="went away"):
            gateway.ask("status")
        thread.join()


def test_sockets_of_dead_processes_and_strange_names_are_removed() -> None:
    directory = place.control_directory()
    make_own_folder(directory)
    for name in ("abc-99999999.sock", "abc-x.sock", f"abc-{os.getppid()}.sock"):
        with socket.socket(socket.AF_UNIX) as unbound:
            unbound.bind(os.fspath(directory / name))
    assert client.find_gateway("abc") is None
    assert list(directory.iterdir()) == []


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o755)
    with pytest.raises(NotOurs, match="mode 0700"):
        make_own_folder(directory)


def test_a_long_home_still_has_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/" + "x" * 200)
    monkeypatch.setattr(place, "fits_socket", lambda *_: False)  # where there is no other way to it
    assert len(os.fspath(place.socket_path("0" * 12, 4194304))) <= 100
    assert place.control_directory() == place.control_directory()


def test_the_identity_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    one = place.identity([str(tmp_path / "a")])
    assert one == place.identity([str(tmp_path / "link")])
    assert one != place.identity([str(tmp_path / "b")])
    monkeypatch.chdir(tmp_path)
    assert place.identity([]) != one


@contextmanager
def listening(name: str, *, age: float = 0.0, backlog: int = 8) -> Generator[socket.socket]:
    """A gateway's socket of that name; what it does with who comes is the test's to say."""
    path = place.control_directory() / name
    make_own_folder(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        if backlog:
            listener.listen(backlog)
        seen = time.time() - age
        os.utime(path, (seen, seen))
        yield listener


def test_the_newest_gateway_of_the_very_configuration_is_asked() -> None:
    with (
        listening(f"abcdef1-{os.getppid()}.sock", age=10),
        listening(f"abcdef1-{os.getpid()}.sock"),
        listening(f"abcdef2-{os.getppid()}.sock", age=5),
    ):
        for pid, found in ((None, os.getpid()), (os.getppid(), os.getppid())):
            with client.find_gateway("abcdef1", pid) or pytest.fail("none found") as gateway:
                assert gateway.pid == found
        with client.find_gateway("abcdef2") or pytest.fail("none found") as gateway:
            assert gateway.pid == os.getppid()
        assert client.find_gateway("abcdef3") is None
        with client.find_gateway("abcdef2", os.getpid()) or pytest.fail("none found") as gateway:
            assert gateway.pid == os.getpid(), "whoever names a process means it, whatever its configuration"
        with pytest.raises(UsageError, match="No gateway runs as process"):
            client.find_gateway("abcdef2", 1)


def test_a_process_that_may_not_be_signalled_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    with listening(f"abc-{os.getppid()}.sock"):
        monkeypatch.setattr(os, "kill", refuse)
        with client.find_gateway("abc") or pytest.fail("none found") as gateway:
            assert gateway.pid == os.getppid()


def test_a_socket_of_our_own_process_is_not_ours_to_remove() -> None:
    """It is about to listen."""
    with listening(f"abc-{os.getpid()}.sock", backlog=0):
        assert client.find_gateway("abc") is None
        assert place.socket_path("abc", os.getpid()).exists()


@pytest.mark.parametrize("quickly", [True, False])
def test_a_slow_answer_is_waited_for_where_others_are_answered_unless_it_is_from_memory(
    quickly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN", 0.1 if quickly else 1.5)  # in which the others are answered
    done = threading.Event()
    with listening(f"abc-{os.getpid()}.sock") as listener:

        def serve() -> None:
            slow, _ = listener.accept()
            with slow:
                if quickly:
                    done.wait(PATIENCE)
                    return
                other, _ = listener.accept()
                with other:
                    assert other.recv(100) == b'{"method": "hello"}\n'
                    other.sendall(b'{"result": {}}\n')
                slow.sendall(b'{"result": 7}\n')
                done.wait(PATIENCE)

        thread = threading.Thread(target=serve)
        thread.start()
        with client.find_gateway("abc") or pytest.fail("none found") as gateway:
            if quickly:
                with pytest.raises(client.GatewayError, match="does not answer") as caught:
                    gateway.ask("status", quickly=True)
                assert caught.value.code == "gateway_silent"
                listener.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listener.accept()  # nobody else was asked
            else:
                assert gateway.ask("call") == 7
        done.set()
        thread.join()


def test_a_gateway_that_answers_nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN", 0.1)
    with (
        listening(f"abc-{os.getpid()}.sock"),
        client.find_gateway("abc") or pytest.fail("none found") as gateway,
        pytest.raises(client.GatewayError, match="does not answer"),
    ):
        gateway.ask("call")


def test_many_are_asked_at_once_and_what_came_in_time_is_read_behind_one_that_is_silent() -> None:
    good = b'{"result": {"notReloaded": ""}}\n'
    texts = {
        b"": "does not answer: nothing came from it for 0.1 s",
        b'{"result"': "does not answer",
        good: "",
        b"no JSON\n": "answered what cannot be read",
        b"[" * 100_000 + b"\n": "answered what cannot be read",
        b"[]\n": "answered what cannot be read",
        b"7\n": "answered what cannot be read",
        b'{"error": "no"}\n': "answered what cannot be read",
        b'{"error": {"code": "x", "message": "it says so"}}\n': "it says so",
    }
    with ExitStack() as stack:
        pairs = [[*map(stack.enter_context, socket.socketpair())] for _ in texts]
        for (_, theirs), text in zip(pairs, texts, strict=True):
            theirs.sendall(text)
        gateways = [client.Gateway(1, ours, Path("/nowhere")) for ours, _ in pairs]
        answers = client.ask_each(gateways, "reload", 0.1)
        for (_, theirs), answer, said in zip(pairs, answers, texts.values(), strict=True):
            assert theirs.recv(100) == b'{"method": "reload", "params": {}}\n'
            assert (said in str(answer)) if said else answer == {"notReloaded": ""}


def test_of_a_flood_in_place_of_a_short_answer_only_its_beginning_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        flood = threading.Thread(target=_flood, args=(theirs,))
        flood.start()
        (answer,) = client.ask_each([client.Gateway(1, ours, Path("/nowhere"))], "reload", PATIENCE)
        ours.close()
        flood.join()
    assert "answered what cannot be read" in str(answer)


def _flood(line: socket.socket) -> None:
    with suppress(OSError):
        while True:
            line.sendall(b"x" * 65_536)


def test_where_many_commands_have_just_come_the_next_waits_for_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(listening(f"abc-{os.getpid()}.sock", backlog=1))
        try:
            while True:  # fill it
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(listener.getsockname())
        except BlockingIOError:
            pass
        monkeypatch.setattr(client.time, "sleep", lambda _seconds: stack.enter_context(listener.accept()[0]))
        with client.find_gateway("abc") or pytest.fail("none found") as gateway:
            assert gateway.pid == os.getpid()


@body_of(serving)
async def test_who_is_not_of_this_user_is_hung_up_on_at_once(
    path: Path, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_line: socket.socket) -> None:
        raise NotOurs(None, "somebody else's")

    def command(path: Path) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(os.fspath(path))
            return connection.recv(1)

    monkeypatch.setattr(control, "check_peer", refuse)
    assert await anyio.to_thread.run_sync(command, path) == b""


def test_who_left_before_it_was_taken_in_costs_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def body(path: Path) -> None:
        accept, errors = socket.socket.accept, [errno.ECONNABORTED, errno.EINTR, errno.EPROTO]

        def flaky(listener: socket.socket) -> Any:
            if errors:
                raise OSError(errors.pop(), "they left")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", flaky)

        def command() -> Any:
            with client.find_gateway(place.identity(["a"])) or pytest.fail("none found") as gateway:
                return gateway.ask("echo", n=1)

        assert await anyio.to_thread.run_sync(command) == {"n": 1}
        assert told == []

    serving(body, backend, note=told.append)


def test_a_place_is_bound_over_what_was_left_there_and_moves_bound_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_own_folder(folder)
    (folder / "a.sock").touch()
    spot = control.ControlSocket(folder / "z.sock")
    spot.move(folder / "a.sock")
    with spot.bound():
        assert mode_of(folder / "a.sock") == 0o600
        spot.move(folder / "b.sock")
        spot.move(folder / "b.sock")
        assert [each.name for each in folder.iterdir()] == ["b.sock"]
    assert list(folder.iterdir()) == []


def test_a_fork_does_not_remove_the_socket_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    make_own_folder(folder)
    spot = control.ControlSocket(folder / "a.sock")
    with spot.bound():
        monkeypatch.setattr(os, "getpid", lambda: 1)
    assert [each.name for each in folder.iterdir()] == ["a.sock"]


@in_virtual_time
async def test_a_gateway_that_cannot_listen_says_so_goes_on_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, bound = list[str](), list[float]()

    @contextmanager
    def binds(_self: control.ControlSocket) -> Generator[str]:
        bound.append(anyio.current_time())
        if len(bound) == 1:
            raise OSError(errno.EACCES, "no such luck")
        yield "listener"

    async def lets_in(_listener: Any, _methods: Any, _clients: Any, _part: Any) -> None:
        if len(bound) == 2:
            raise OSError(errno.EMFILE, "too many open files")
        await anyio.sleep_forever()

    monkeypatch.setattr(control.ControlSocket, "bound", binds)
    monkeypatch.setattr(control, "_let_in", lets_in)
    path = tmp_path / "a.sock"
    told.clear()
    bound.clear()
    began = anyio.current_time()
    async with anyio.create_task_group() as group:

        async def listen(*, task_status: Any) -> None:
            await control.serve_control(
                path,
                control.ControlMethods(lambda: METHODS),
                OptionalPart("it", told.append),
                control.ControlConnections(group),
                task_status=task_status,
            )

        spot = await group.start(listen)
        assert (spot.path, anyio.current_time() - began) == (path, 0.0), "its client need not wait"
        await anyio.sleep(10.0)
        group.cancel_scope.cancel()
    assert [at - began for at in bound] == [0.0, pytest.approx(1.0), pytest.approx(3.0)]
    assert ["no such luck" in line or "too many" in line for line in told] == [True, False, True, False]
    assert told[1::2] == ["it: works again"] * 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_when_no_command_can_be_taken_in_the_socket_is_given_up_for_a_while(
    number: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(socket.socket):
        def accept(self) -> Any:
            raise OSError(number, "no more")

    async def readable(_listener: Any) -> None:
        await anyio.lowlevel.checkpoint()

    async def body() -> None:
        nobody: Any = None
        with Full(socket.AF_UNIX) as listener, pytest.raises(OSError, match="no more"):
            await control._let_in(listener, nobody, nobody, nobody)

    monkeypatch.setattr(anyio, "wait_readable", readable)
    run(backend, body)


def test_a_place_whose_socket_is_gone_is_moved_in_name_alone(tmp_path: Path) -> None:
    spot = control.ControlSocket(tmp_path / "run" / "a.sock")
    with spot.bound():
        pass
    spot.move(tmp_path / "run" / "b.sock")
    assert spot.path.name == "b.sock"
    with spot.bound():
        assert [each.name for each in (tmp_path / "run").iterdir()] == ["b.sock"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TimeoutError(), "gateway_silent"),
        (BlockingIOError(), "gateway_silent"),
        (NotOurs(None, "somebody else's"), "gateway_error"),
        (OSError(errno.ENOENT, "gone"), None),
    ],
)
def test_a_gateway_that_cannot_be_asked_is_told_of_and_left_out(
    error: OSError, code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[client.GatewayError] = []

    def dial(_line: socket.socket, path: Path, _until: float | None = None) -> None:
        if path.name == "one":
            raise error

    places = [(1, tmp_path / "one"), (2, tmp_path / "two"), (3, tmp_path / "three")]
    monkeypatch.setattr(client, "_candidates", lambda _config: iter(places))
    monkeypatch.setattr(client, "_dial", dial)
    found = client.find_gateways("abc", told.append, without=[3])
    assert [gateway.pid for gateway in found] == [2]
    for gateway in found:
        assert gateway.connection.gettimeout() == 2.0
        with gateway:
            pass
        assert gateway.connection.fileno() == -1
    assert len(told) == (code is not None)
    if code is not None:
        with pytest.raises(client.GatewayError) as caught:
            client.find_gateway("abc")
        assert (caught.value.code, caught.value.message) == (code, told[0].message)
        assert "1" in told[0].message


def test_many_that_take_no_more_commands_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_WITHIN", 0.4)
    told: list[client.GatewayError] = []
    with ExitStack() as stack:
        paths: list[str] = []
        for number in range(16):
            listener = stack.enter_context(listening(f"{number:x}-{os.getpid()}.sock", age=number, backlog=1))
            paths.append(listener.getsockname())
        for path in paths[:-1]:
            with suppress(BlockingIOError):
                while True:
                    before = stack.enter_context(socket.socket(socket.AF_UNIX))
                    before.setblocking(False)
                    before.connect(path)
        began = time.monotonic()
        (found,) = client.find_gateways(None, told.append)
        took = time.monotonic() - began
        with found:
            assert os.fspath(found.path) == paths[-1], "one behind them is found all the same"
    assert [error.code for error in told] == ["gateway_silent"] * 15
    assert took < 14 * 0.4, "one after another they take fifteen times"


@for_each("names", [["a", 5], [5, "a"], [None], "a", {"a": 1}, None])
def test_a_list_of_names_has_only_names(names: Any) -> None:
    with pytest.raises(UsageError, match='"names" must be a list of strings'):
        texts_in({"names": names}, "names")
    assert texts_in({"names": []}, "names") == []
    assert texts_in({"names": ["a", ""]}, "names") == ["a", ""]


def test_without_files_the_identity_is_that_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[str] = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.add(place.identity([]))
        assert place.identity([]) == place.identity([os.getcwd()])
    assert len(found) == 2
