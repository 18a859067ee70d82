"""A fork server for programs in Python: what takes half a second of processor time to import is imported once.

    python -m tests.support.forkserver SOCKET MODULE…    imports the modules, then forks a process for each who asks
    python -S forkserver.py SOCKET MODULE WORD…          asks for `MODULE.main(WORD…)`, on this command's own pipes

Each is a process of its own, forked from one that has imported and done nothing else. What a command asked for lives
as long as the command, which says its exit code; and all end with the tests they serve (`forked`).

The tests themselves may ask for a *child of their own* instead: its parent is not this server but the server's parent,
which waits for it, signals it and finds it below itself as if it had started it. It runs `MODULE.main()` with the words
as its command line, from where a program begins, and ends as a program does.
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


# ---- the command -----------------------------------------------------------------------------------------------------


def ask(path: str, module: str, words: list[str]) -> int:
    """Have it run; its exit code."""
    request = json.dumps(
        {"module": module, "words": words, "env": dict(os.environ), "cwd": os.getcwd(), "own": False}
    )
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        socket.send_fds(line, [request.encode()], [0, 1, 2])
        return int(line.recv(16) or b"1")


# ---- the process it is forked from -----------------------------------------------------------------------------------


def serve(path: str, modules: list[str]) -> None:
    """Until its stdin ends. In a child that somebody wanted as his own, return once nothing of the server is left."""
    import gc
    import importlib
    import selectors

    gc.disable()  # as `greenroom` does while it imports; and a child would copy what a collection writes to
    for module in modules:
        importlib.import_module(module)
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
    """Who was forked, and for whom."""

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
        if not request:  # who asked has been ended already
            line.close()
            return
        wanted = json.loads(request)
        if wanted["own"]:
            pid = _fork_for_parent()
            if not pid:
                self.wanted = wanted, fds
                self._forget()
            else:
                line.sendall(b"%d" % pid)
                for fd in fds:
                    os.close(fd)
            line.close()
            return
        pid = os.fork()
        if not pid:
            self._listener.close()
            line.close()
            _become(wanted, fds)
        for fd in fds:
            os.close(fd)
        child = os.pidfd_open(pid)
        self._lines[child] = (pid, line)
        self._children[line.fileno()] = child
        self._selector.register(child, 1, self._has_ended)
        self._selector.register(line, 1, self._is_left)

    def end(self, _stdin: object) -> None:
        import signal

        self.is_open = False
        for child in self._lines:
            signal.pidfd_send_signal(child, signal.SIGKILL)

    def _forget(self) -> None:
        """In a child: close what is the server's."""
        for child, (_, line) in self._lines.items():
            os.close(child)
            line.close()

    def _has_ended(self, child: object) -> None:
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

    def _is_left(self, line: object) -> None:
        assert isinstance(line, socket.socket)
        import signal

        child = self._children.get(line.fileno())
        if child is not None:  # else it has ended in this very round
            signal.pidfd_send_signal(child, signal.SIGKILL)


def _fork_for_parent() -> int:
    """As `os.fork`, but the child is our parent's."""
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
    """Take the descriptors, the environment and the place of who asked. Returns the words."""
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
    """The program that was asked for, from its beginning to its end. Does not return."""
    import importlib

    words = _settle(request, fds)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = os.getcwd()
    module = importlib.import_module(str(request["module"]))
    sys.argv = [str(module.__file__), *words]
    try:
        module.main()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _exit(end.code or 0)
        raise


def _stream(number: int, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """As the interpreter opens it when it starts: what it is like depends on what the descriptor leads to."""
    import io

    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    buffer = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
    newline = "\n" if number else None
    return io.TextIOWrapper(buffer, before.encoding, before.errors, newline, line_buffering=number == 2)


def _exit(code: int) -> None:
    """As the interpreter ends, but for taking its memory apart: modules that were copied would have to be, too."""
    import atexit
    import threading

    getattr(threading, "_shutdown")()  # noqa: B009 (of no public name)
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return  # it goes the usual way, which has words for this
    os._exit(code)


def _become(request: dict[str, object], fds: list[int]) -> None:
    """The server that was asked for. Does not return."""
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
    sys.exit(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
elif __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
