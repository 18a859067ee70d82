"""T43: another user of the machine reads nothing of ours, forges nothing, and makes nobody wait.

As root the other user is a process that runs as one. Without root nobody else's files can be made here, so ours are
taken for another's, as is who is at the other end of a socket; links, pipes and rights are the same for everybody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support import run
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import FAULTY, serve
from tests.support.patience import PATIENCE

from greenroom.actors.transports.unix_socket import UnixConnector
from greenroom.actors.workers import OptionalPart
from greenroom.catalogue import store
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile
from greenroom.config import private_files as own
from greenroom.config.file_formats import read_text
from greenroom.config.model import ServerDefinition, Settings
from greenroom.gateway.doors import control_client as client
from greenroom.gateway.doors import control_protocol as place
from greenroom.gateway.doors import control_server as control
from greenroom.gateway.exposures.output_files import Spill
from greenroom.protocol.errors import ConfigError, ConnectFailed, UsageError

OTHER = 65534 if os.geteuid() == 0 else os.geteuid()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory that others may walk through, with a short path."""
    with tempfile.TemporaryDirectory(prefix="gr-") as name:
        os.chmod(name, 0o755)
        monkeypatch.setenv("XDG_CACHE_HOME", name)
        yield Path(name)


def pretend_to_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root: everything that is ours is somebody else's to us."""
    if os.geteuid() != 0:
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)


def entry(name: str = "one") -> ServerEntry:
    return ServerEntry(server=name, definition_hash="h", tools=({"name": "t"},), fetched_at=time.time())


# ---- the control socket ----------------------------------------------------------------------------------------------

LISTENER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
line = socket.socket(socket.AF_UNIX)
line.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
line.listen()
print("listens", flush=True)
while True:
    peer, _ = line.accept()
    print(peer.recv(1000), flush=True)
    peer.close()
"""


def test_t43_a_folder_of_another_is_not_looked_into_and_nothing_is_sent_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call arguments were read there and results forged: it only had to be made before ours."""
    monkeypatch.setattr(place, "fits_socket", lambda *_: False)
    monkeypatch.setattr(own, "reaches_long_paths", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(folder))
    taken = place.control_directory()
    assert taken.parent == folder
    taken.mkdir(mode=0o777)
    os.chown(taken, OTHER, -1)
    spy_at = taken / f"0123456789ab-{os.getpid()}.sock"
    spy = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENER, spy_at, str(OTHER)], stdout=subprocess.PIPE
    )
    try:
        assert spy.stdout is not None
        assert spy.stdout.readline() == b"listens\n"
        with monkeypatch.context() as patch:
            pretend_to_be_another(patch)
            with pytest.raises(UsageError, match="directory of mode 0700"):
                client.find_gateway("0123456789ab")
            with pytest.raises(own.NotOurs), place_bound(taken):
                pass
    finally:
        spy.kill()
        heard, _ = spy.communicate()
    assert heard == b""


def place_bound(taken: Path) -> Any:
    return control.ControlSocket(taken / "0123456789ab-1.sock").bound()


def test_t43_who_listens_in_our_folder_must_be_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who it is, whatever the file system has come to say."""
    directory = place.control_directory()
    own.make_own_folder(directory)
    path = directory / f"0123456789ab-{os.getpid()}.sock"
    os.chown(directory, OTHER, -1)
    spy = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENER, path, str(OTHER)], stdout=subprocess.PIPE
    )
    try:
        assert spy.stdout is not None
        os.chmod(directory.parent, 0o755)
        assert spy.stdout.readline() == b"listens\n"
        os.chown(directory, os.geteuid(), -1)
        with monkeypatch.context() as patch:
            if os.geteuid() == OTHER:
                patch.setattr(own, "peer_uid", lambda _line: 12345)
            with pytest.raises(client.GatewayError, match="is not trusted as a gateway"):
                client.find_gateway("0123456789ab")
    finally:
        spy.kill()
        heard, _ = spy.communicate()
    assert b"method" not in heard


ASKER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    line.sendall(b'{"method": "hello"}\\n')
    print(line.recv(1000))
"""


def test_t43_a_command_of_another_user_is_hung_up_on(
    backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.socket_path("0123456789ab", os.getpid())

    async def hello(_params: Any) -> Any:
        return {"secret": 1}

    async def body() -> None:
        async with anyio.create_task_group() as tasks:

            async def listen(*, task_status: Any) -> None:
                part, lines = OptionalPart("it", print), control.ControlConnections(tasks)
                methods = control.ControlMethods(lambda: {"hello": hello})
                await control.serve_control(path, methods, part, lines, task_status=task_status)

            await tasks.start(listen)
            for opened in (path.parent.parent, path.parent):  # as if the file system let them in
                os.chmod(opened, 0o755)
            os.chmod(path, 0o777)
            with monkeypatch.context() as patch:
                if os.geteuid() == OTHER:
                    patch.setattr(own, "peer_uid", lambda _line: 12345)
                command = [sys.executable, "-I", "-S", "-c", ASKER, os.fspath(path), str(OTHER)]
                done = await anyio.run_process(command, check=False)
            assert b"secret" not in done.stdout
            os.chmod(path.parent, 0o700)
            assert await anyio.to_thread.run_sync(ask) == {"secret": 1}
            tasks.cancel_scope.cancel()

    def ask() -> Any:
        gateway = client.find_gateway("0123456789ab")
        assert gateway is not None
        with gateway:
            return gateway.ask("hello")

    run(backend, body)


@pytest.mark.parametrize("length", [20, 300])
def test_t43_a_gateway_with_a_long_cache_path_is_reached_in_its_own_folder(
    tmp_path: Path, length: int
) -> None:
    deep = tmp_path / ("x" * min(length, 200)) / ("y" * max(length - 200, 1))
    deep.mkdir(parents=True)
    server = {"one": {"command": sys.executable, "args": ["-S", os.fspath(FAULTY)]}}
    with serve(deep, server) as gateway:
        gateway.initialize()
        run_folder = deep / "cache" / "greenroom" / "run"
        assert stat.S_IMODE(run_folder.stat().st_mode) == 0o700
        done = run_forked(
            [*GREENROOM, "status", "--json", "--config", deep / "mcp.json"],
            env={**os.environ, "XDG_CACHE_HOME": os.fspath(deep / "cache")},
            check=True,
        )
        assert json.loads(done.stdout)["source"] == "gateway"
        assert gateway.end() == 0
    assert list(run_folder.iterdir()) == []


def test_t43_a_server_in_a_folder_open_to_all_must_be_ours_or_roots(
    backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod(folder, 0o1777)
    path = folder / "server.sock"
    spy = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENER, path, str(OTHER)], stdout=subprocess.PIPE
    )
    definition = ServerDefinition("one", socket=os.fspath(path))

    async def body() -> None:
        from greenroom.actors.backend import current_backend

        connector = UnixConnector(definition, backend=current_backend(), settings=Settings())
        with pytest.raises(ConnectFailed, match="Anybody may make a socket in its folder"):
            async with connector.open(None):  # pyright: ignore[reportArgumentType]
                pass

    try:
        assert spy.stdout is not None
        assert spy.stdout.readline() == b"listens\n"
        if os.geteuid() == OTHER:
            monkeypatch.setattr(own, "peer_uid", lambda _line: 12345)
        run(backend, body)
    finally:
        spy.kill()
        spy.communicate()


# ---- files -----------------------------------------------------------------------------------------------------------


def anothers(path: Path) -> None:
    path.write_text('{"version": 1, "entries": {}}')
    os.chown(path, OTHER, -1)


def link(path: Path) -> None:
    path.with_name("secret").write_text("keep me")
    path.symlink_to(path.with_name("secret"))


def open_to_all(path: Path) -> None:
    path.write_text('{"version": 1, "entries": {}}')
    path.chmod(0o666)


PLANTED: dict[str, Callable[[Path], object]] = {
    "another user's": anothers,
    "a link": link,
    "a pipe": os.mkfifo,
    "open to all": open_to_all,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("what", PLANTED)
def test_t43_a_cache_that_another_may_have_put_there_is_set_aside(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalogue.json"
    PLANTED[what](path)
    if what == "another user's":
        pretend_to_be_another(monkeypatch)
    file = CatalogueFile(path)
    loaded = file.load({"one": "h"}, time.time())
    assert "is not used" in (loaded.warning or "")
    monkeypatch.undo()
    assert file.save([entry()], time.time()) is None
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert "one" in file.load({"one": "h"}, time.time()).entries
    assert not (tmp_path / "secret").exists() or (tmp_path / "secret").read_text() == "keep me"


@pytest.mark.parametrize("what", ["another user's", "a link", "a pipe"])
def test_t43_a_lock_that_another_may_hold_is_not_waited_for(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[what](tmp_path / "catalogue.json.lock")
    if what == "another user's":
        pretend_to_be_another(monkeypatch)
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 60.0)
    problem = CatalogueFile(tmp_path / "catalogue.json").save([entry()], time.time())
    assert problem is not None
    assert "was not written" in problem
    assert not (tmp_path / "secret").exists() or (tmp_path / "secret").read_text() == "keep me"


@pytest.mark.parametrize("what", ["another user's", "a link", "open to all"])
def test_t43_long_answers_are_kept_in_a_folder_of_our_own_only(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "output"
    if what == "a link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir()
        directory.chmod(0o777 if what == "open to all" else 0o700)
    if what == "another user's":
        os.chown(directory, OTHER, -1)
        pretend_to_be_another(monkeypatch)
    with pytest.raises(own.NotOurs):
        Spill(directory).write("secret")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_t43_an_events_file_is_its_owners_alone_and_follows_no_link(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with serve(tmp_path, {}, "--events", os.fspath(tmp_path / "events")) as gateway:
            gateway.initialize()
            assert gateway.end() == 0
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "events").stat().st_mode) == 0o600
    (tmp_path / "events-link").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_text("keep me")
    with serve(tmp_path, {}, "--events", os.fspath(tmp_path / "events-link")) as gateway:
        assert gateway.process.wait(PATIENCE) == 2
    assert "it is a link" in (tmp_path / "stderr.txt").read_text()
    assert (tmp_path / "victim").read_text() == "keep me"


@pytest.mark.parametrize("what", ["pipe", "device", "pipe behind a link"])
def test_t43_a_configuration_that_is_no_file_is_an_error_and_not_a_wait(what: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    if what == "device":
        path = Path("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_text(path, str(path))


def test_what_is_ours_is_read_and_a_link_of_the_shell_is_written_to(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file"
    own.make_own_folder(file.parent)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    file.write_text("x")
    file.chmod(0o644)
    assert own.read_own(file) == b"x"
    with pytest.raises(OverflowError):
        own.read_regular(file, 0)
    reader, writer = os.pipe()
    shell = own.open_own(f"/dev/fd/{writer}", os.O_WRONLY, is_named=True)
    os.write(shell, b"y")
    assert os.read(reader, 1) == b"y"
    for descriptor in (reader, writer, shell):
        os.close(descriptor)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        own.check_peer(ours)


# ---- what is opened, each rule alone ---------------------------------------------------------------------------------


def test_a_regular_file_is_read_up_to_its_bound_and_not_a_byte_more(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(file)
    for path in (file, tmp_path / "link"):
        assert own.read_regular(path, 5) == b"12345"
        with pytest.raises(OverflowError, match="more than 4 bytes"):
            own.read_regular(path, 4)
    with pytest.raises(IsADirectoryError):
        own.read_regular(tmp_path, 5)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(own.NotOurs, match="not a regular file") as refused:
        own.read_regular(tmp_path / "pipe", 5)
    assert (refused.value.errno, refused.value.filename) == (errno.EPERM, str(tmp_path / "pipe"))


def test_what_is_opened_is_not_inherited_never_waits_and_is_a_new_file_for_us_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        descriptor = own.open_own(tmp_path / "new", os.O_WRONLY | os.O_CREAT)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
    assert not os.get_inheritable(descriptor)
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(descriptor)
    folder = own.open_own_folder(tmp_path, denied=0)
    assert fcntl.fcntl(folder, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(folder)


@pytest.mark.parametrize("mode", [0o600, 0o620, 0o602, 0o644])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_what_others_may_write_is_not_read_and_may_be_written(tmp_path: Path, mode: int, flags: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    file.chmod(mode)
    if flags == os.O_RDONLY and mode & 0o022:
        with pytest.raises(own.NotOurs, match="others may write to it"):
            own.open_own(file, flags)
    else:
        os.close(own.open_own(file, flags))


def test_what_is_not_ours_is_not_emptied_and_what_is_ours_is(tmp_path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    file = tmp_path / "file"
    file.write_bytes(b"keep me")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        patch.setattr(own, "_ROOT", os.getuid() + 2)
        with pytest.raises(own.NotOurs, match="belongs to another user"):
            own.open_own(file, flags)
        assert file.read_bytes() == b"keep me"
        patch.setattr(own, "_ROOT", os.getuid())
        assert own.read_own(file) == b"keep me", "root's is as good as ours"
    os.close(own.open_own(file, flags))
    assert file.read_bytes() == b""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.close(own.open_own(tmp_path / "pipe", flags, is_named=True))
    os.close(reader)
    with pytest.raises(OSError, match="No such device") as nobody_reads:
        own.open_own(tmp_path / "pipe", flags, is_named=True)
    assert nobody_reads.value.errno == errno.ENXIO, "it would wait for a reader"


@pytest.mark.parametrize("is_named", [False, True])
def test_only_a_link_of_the_system_is_followed_and_only_for_who_named_it(
    tmp_path: Path, is_named: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(own.NotOurs, match="it is a link"):
        own.open_own(tmp_path / "link", os.O_WRONLY | os.O_CREAT, is_named=is_named)
    assert not (tmp_path / "victim").exists()
    reader, writer = os.pipe()
    try:
        if is_named:
            os.close(own.open_own(f"/dev/fd/{writer}", os.O_WRONLY, is_named=True))
        else:
            with pytest.raises(own.NotOurs, match="it is a link"):
                own.open_own(f"/dev/fd/{writer}", os.O_WRONLY)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_folder_of_ours_is_made_for_us_alone_with_all_above_it(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        own.make_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(previous)
    for folder in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700, folder
    (tmp_path / "a").chmod(0o755)
    own.make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755, "what is there stays as it is"
    own.make_own_folder(tmp_path / "a", denied=own.WRITABLE)
    with pytest.raises(own.NotOurs, match="mode 0700 or less"):
        own.make_own_folder(tmp_path / "a")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    for name in ("file", "link"):
        with pytest.raises(own.NotOurs, match="must be a directory"):
            own.open_own_folder(tmp_path / name)
    with pytest.raises(own.NotOurs, match="must be a directory"):
        own.make_folder(tmp_path / "file")


@pytest.mark.parametrize("reaches", [True, False])
def test_a_socket_of_ours_takes_the_place_of_what_was_there_and_is_ours_alone(
    tmp_path: Path, reaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "reaches_long_paths", lambda: reaches)
    with tempfile.TemporaryDirectory(prefix="gr-") as name:
        path = Path(name) / "s.sock"
        path.write_text("left")
        previous = os.umask(0)
        try:
            listener = own.bind_own(path, 4)
        finally:
            os.umask(previous)
        with listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert listener.gettimeout() == 0.0, "it does not block"
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(os.fspath(path))
                peer, _ = listener.accept()
                peer.close()
        Path(name).chmod(0o755)
        with pytest.raises(own.NotOurs):
            own.bind_own(path, 4)
        assert path.is_socket(), "nothing of it was touched"


@pytest.mark.parametrize(
    ("uid", "or_root", "is_let_in"),
    [
        (1000, False, True),
        (1000, True, True),
        (0, False, False),
        (0, True, True),
        (1001, True, False),
        (None, True, False),
        (None, False, False),
    ],
)
def test_who_is_at_the_other_end_must_be_known_and_us(
    uid: int | None, or_root: bool, is_let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(own, "peer_uid", lambda _line: uid)
    line: Any = None
    if is_let_in:
        own.check_peer(line, or_root=or_root)
        return
    who = "its user is unknown" if uid is None else f"it runs as user {uid}"
    with pytest.raises(own.NotOurs, match=who):
        own.check_peer(line, or_root=or_root)


def test_where_paths_of_sockets_are_short_they_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "reaches_long_paths", lambda: False)
    folder = Path("/x")
    assert own.fits_socket(folder, "a" * 97)  # 100 bytes
    assert not own.fits_socket(folder, "a" * 98)
    assert not own.fits_socket(folder, "é" * 49), "two bytes each"
    monkeypatch.setattr(own, "reaches_long_paths", lambda: True)
    assert own.fits_socket(folder, "a" * 200)
