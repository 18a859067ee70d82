"""A fork server for Python programs: modules that take half a second of processor time to import are imported once.

    python -m tests.support.forkserver SOCKET MODULE…    imports the modules, then forks a process for each request
    python -S forkserver.py SOCKET MODULE WORD…          requests `MODULE.main(WORD…)`, on this command's own pipes
    python -S forkserver.py --program SOCKET MODULE WORD…     requests `MODULE.main()`, with the words as command line

Each forked process is separate; the process that it is forked from has only imported modules. A requested process lives
as long as the command that requested it, and the command ends with its exit code. All of them end with the tests that
use them (`forked`).

The tests may also request a *child of their own*. Its parent is not this server but the server's parent, which waits
for the child, signals it and finds it among its children, as if it had started it itself. The child runs
`MODULE.main()` with the words as its command line; it begins and ends as a program does. There is one difference: a
forked `greenroom serve` sets its alarm much later, and gives its client much longer to read the last answers. On a slow
machine both times would pass during an orderly end. `test_cli_serve` tests the alarm itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False  # `typing` would double the time the command takes to start
if TYPE_CHECKING:
    import io
    import selectors

_REQUEST = 1 << 16
_CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
_CLONE_PARENT = 0x8000
_PATIENT = (
    100.0  # seconds: more than an orderly end takes on any machine, but less than the tests wait for it
)


# ---- the command -----------------------------------------------------------------------------------------------------


def ask(path: str, module: str, words: list[str], *, program: bool = False) -> int:
    """Request a process and wait for it. Returns its exit code."""
    what = {"module": module, "words": words, "own": False, "program": program, "session": False}
    request = json.dumps({**what, "env": dict(os.environ), "cwd": os.getcwd()})
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        socket.send_fds(line, [request.encode()], [0, 1, 2])
        return int(line.recv(16) or b"1")


# ---- the process it is forked from -----------------------------------------------------------------------------------


def serve(path: str, modules: list[str]) -> None:
    """Serve until stdin ends. In a child that the tests requested as their own, return once it has closed all that
    belongs to the server."""
    import gc
    import importlib
    import re
    import selectors

    if sys.version_info >= (3, 15):  # where a package may import its parts only when they are used
        sys.set_lazy_imports_filter(lambda *_: False)
    gc.disable()  # as `greenroom` does while it imports; a collection would also make each child copy its memory
    lazy = importlib.import_module("greenroom.protocol.lazy_patterns")
    vars(lazy)["lazy_pattern"] = re.compile  # once, and not in each child
    for module in modules:
        importlib.import_module(module)
    if (serving := sys.modules.get("greenroom.gateway.serve")) is not None:
        for name in ("_LAST_RESORT", "_LAST_ANSWERS"):
            assert hasattr(serving, name)
            setattr(serving, name, _PATIENT)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(16)
        children = _Children(selector, listener)
        selector.register(0, selectors.EVENT_READ, children.end)
        selector.register(listener, selectors.EVENT_READ, children.accept)
        print("ready", flush=True)
        while children.is_open:
            for key, _ in selector.select():
                key.data(key.fileobj)
                if children.wanted is not None:
                    break
            if children.wanted is not None:
                break
    if children.wanted is not None:
        _become_a_program(*children.wanted)


class _Children:
    """The forked processes, and who requested each."""

    def __init__(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        self._selector = selector
        self._listener = listener
        self.is_open = True
        self.wanted: tuple[dict[str, object], list[int]] | None = None  # in a child: what it is to become
        self._lines: dict[
            int, tuple[int, socket.socket]
        ] = {}  # by descriptor of the child: its id, who asked
        self._children: dict[int, int] = {}  # by descriptor of the line: that of the child

    def accept(self, _listener: object) -> None:
        line, _ = self._listener.accept()
        request, fds = b"", list[int]()
        with suppress(OSError):
            request, fds, _, _ = socket.recv_fds(line, _REQUEST, 3)
        if not request:  # the requesting command has already ended
            line.close()
            return
        wanted = json.loads(request)
        pid = _fork_for_parent() if wanted["own"] else os.fork()
        if not pid:
            line.close()
            if wanted["program"]:
                self.wanted = wanted, fds
                self._forget()
                return
            self._listener.close()
            _become(wanted, fds)
        for fd in fds:
            os.close(fd)
        if wanted["own"]:
            line.sendall(b"%d" % pid)
            line.close()
            return
        child = os.pidfd_open(pid)
        self._lines[child] = (pid, line)
        self._children[line.fileno()] = child
        self._selector.register(child, 1, self._child_ended)
        self._selector.register(line, 1, self._asker_left)

    def end(self, _stdin: object) -> None:
        import signal

        self.is_open = False
        for child in self._lines:
            signal.pidfd_send_signal(child, signal.SIGKILL)

    def _forget(self) -> None:
        """In a child: close everything that belongs to the server."""
        for child, (_, line) in self._lines.items():
            os.close(child)
            line.close()

    def _child_ended(self, child: object) -> None:
        assert isinstance(child, int)
        if child not in self._lines:
            return
        pid, line = self._lines.pop(child)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(child)
        self._selector.unregister(line)
        os.close(child)
        del self._children[line.fileno()]
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):  # it has been ended, and this with it
            line.sendall(b"%d" % (code if code >= 0 else 128 - code))
        line.close()

    def _asker_left(self, line: object) -> None:
        assert isinstance(line, socket.socket)
        import signal

        child = self._children.get(line.fileno())
        if child is not None:  # otherwise it has ended in this same round
            signal.pidfd_send_signal(child, signal.SIGKILL)


def _fork_for_parent() -> int:
    """Like `os.fork`, but the child belongs to our parent."""
    import ctypes
    import signal

    python = ctypes.pythonapi  # it holds the interpreter's lock in a call, and a fork must
    python.PyOS_BeforeFork()
    pid = python.syscall(
        _CLONE[os.uname().machine], _CLONE_PARENT | int(signal.SIGCHLD), None, None, None, None
    )
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    assert pid >= 0
    return pid


def _settle(request: dict[str, object], fds: list[int]) -> list[str]:
    """Take over the descriptors, environment and working directory of the requester. Returns the words."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    env, words = request["env"], request["words"]
    assert isinstance(env, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    return words


def _become_a_program(request: dict[str, object], fds: list[int]) -> None:
    """Run the requested program from its beginning to its end. Does not return."""
    import importlib

    words = _settle(request, fds)
    if request["session"]:
        _begin_session()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = os.getcwd()
    module = importlib.import_module(str(request["module"]))
    sys.argv = [str(module.__file__), *words]
    if path := os.environ.get("LATE_IMPORTS"):
        _write_late_imports(path)
    try:
        module.main()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _exit(end.code or 0)
        raise


def _begin_session() -> None:
    """A terminal that is stdin becomes the session's own."""
    import fcntl
    import termios

    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _write_late_imports(path: str) -> None:
    """Write at the end which modules were not here when the process was forked."""
    import atexit

    before = set(sys.modules)

    def write() -> None:
        with open(path, "w") as file:
            print(*sorted(set(sys.modules) - before), sep="\n", file=file)

    atexit.register(write)


def _stream(number: int, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """Open a standard stream as the interpreter does when it starts: its mode depends on the kind of descriptor."""
    import io

    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    buffer = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
    newline = "\n" if number else None
    return io.TextIOWrapper(buffer, before.encoding, before.errors, newline, line_buffering=number == 2)


def _exit(code: int) -> None:
    """End as the interpreter does, but without freeing its memory: that would also free all imported modules."""
    import atexit
    import threading

    getattr(threading, "_shutdown")()  # noqa: B009 (of no public name)
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return  # end in the usual way, which reports the error
    os._exit(code)


def _become(request: dict[str, object], fds: list[int]) -> None:
    """Run the requested server. Does not return."""
    import gc
    import importlib
    import traceback

    code = 1
    gc.freeze()
    gc.enable()
    try:
        words = _settle(request, fds)
        importlib.import_module(str(request["module"])).main(*words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__" and sys.flags.no_site:
    as_program = sys.argv[1] == "--program"
    place, asked, *rest = sys.argv[1 + as_program :]
    sys.exit(ask(place, asked, rest, program=as_program))
elif __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
