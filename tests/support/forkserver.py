"""A fork server for servers of the SDK's: what takes them a second of processor time to import is imported once.

    python -m tests.support.forkserver SOCKET MODULE…    imports the modules, then forks a server for each who asks
    python -S forkserver.py SOCKET MODULE WORD…          asks for `MODULE.main(WORD…)`, on this command's own pipes

Each server is a process of its own, forked from one that has imported and done nothing else. It lives as long as the
command that asked for it, which says its exit code; and all end with the tests they serve (`forked`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False  # `typing` would double the time the command takes to start
if TYPE_CHECKING:
    import selectors

_REQUEST = 1 << 16


# ---- the command -----------------------------------------------------------------------------------------------------


def ask(path: str, module: str, words: list[str]) -> int:
    """Have it run; its exit code."""
    request = json.dumps({"module": module, "words": words, "env": dict(os.environ), "cwd": os.getcwd()})
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        socket.send_fds(line, [request.encode()], [0, 1, 2])
        return int(line.recv(16) or b"1")


# ---- the process it is forked from -----------------------------------------------------------------------------------


def serve(path: str, modules: list[str]) -> None:
    """Until its stdin ends."""
    import importlib
    import selectors

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


class _Children:
    """Who was forked, and for whom."""

    def __init__(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        self._selector = selector
        self._listener = listener
        self.is_open = True
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
        pid = os.fork()
        if not pid:
            self._listener.close()
            line.close()
            _become(json.loads(request), fds)
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


def _become(request: dict[str, object], fds: list[int]) -> None:
    """The server that was asked for. Does not return."""
    import importlib
    import traceback

    code = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        env, words = request["env"], request["words"]
        assert isinstance(env, dict)
        assert isinstance(words, list)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(str(request["cwd"]))
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
