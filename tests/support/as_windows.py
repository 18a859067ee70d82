"""Python as it is on Windows, as far as our own code can tell: a child process that has loaded the packages of others,
and then has no module, function or constant that Windows lacks. `python -m tests.support.as_windows COMMANDS` prints as
JSON what each of these found, in a copy of it: to load those packages takes longer than all else.

* `imported`: every module of ours is imported; those that cannot be, each with the reason.
* `called`: a server in this process is called on both event loops.
* `typed`: the commands, one in each line of the argument, are typed behind `greenroom` one after the other; their exit
  codes, and what they say.

What it cannot show: packages of others, the event loops, and paths as Windows has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import pkgutil
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from unittest import mock

OTHERS: Final = (
    *(
        "anyio._backends._asyncio",
        "anyio._backends._trio",
        "anyio.streams.tls",
        "attrs",
        "cattrs",
        "click",
        "dotenv",
    ),
    *(
        "fastmcp",
        "filelock",
        "getpass",
        "httpx2",
        "hypothesis",
        "importlib.metadata",
        "jwt",
        "keyring",
        "logging.handlers",
    ),
    *("mcp.client", "mcp.server", "msgspec", "multiprocessing", "numpy", "opentelemetry.sdk"),
    *(
        "prometheus_client",
        "pyjson5",
        "re2",
        "rich.console",
        "rich.live",
        "rich.progress",
        "rich.table",
        "ssl",
    ),
    *(
        "starlette.applications",
        "subprocess",
        "tomlkit",
        "trio.testing",
        "urllib.request",
        "uuid",
    ),
    *("webbrowser", "yaml", "zipfile"),
)
MODULES: Final = ("fcntl", "termios", "pwd", "grp", "resource", "pty", "tty", "uvloop")
OF_OS: Final = (
    *(
        "fork",
        "killpg",
        "getpgid",
        "setsid",
        "getuid",
        "geteuid",
        "getgid",
        "getpgrp",
        "mkfifo",
        "waitid",
        "wait4",
    ),
    *("pidfd_open", "posix_spawn", "sysconf", "nice", "WNOHANG", "sched_getaffinity", "uname"),
)
SIGNALS: Final = (
    *(
        "SIGKILL",
        "SIGHUP",
        "SIGSTOP",
        "SIGCONT",
        "SIGUSR1",
        "SIGCHLD",
        "SIGWINCH",
        "SIGTSTP",
        "SIGPIPE",
        "SIGQUIT",
    ),
    *("pthread_sigmask", "sigwait"),
)


def become_windows() -> None:
    for name in OTHERS:
        importlib.import_module(name)
    pair: Any = socket.socketpair
    family = getattr(socket, "AF_UNIX", None)
    socket.socketpair = lambda *_: pair(family)  # the event loops wake themselves with one; there it is TCP
    asyncio.new_event_loop().close()  # what makes loops is chosen by the platform, at the first one
    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, OF_OS), (socket, ("AF_UNIX", "SCM_RIGHTS", "SO_PEERCRED")), (signal, SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    shutil.which = partial(as_here, shutil.which)
    sys.platform = "win32"


def as_here(which: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """`shutil.which` as it is here: the programs here have no .exe, and `_winapi` is not here to be asked."""
    with mock.patch.object(sys, "platform", "linux"):
        return which(*args, **named)


def not_imported(name: str) -> Iterator[tuple[str, str]]:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        yield name, getattr(error, "name", None) or f"{type(error).__name__}: {error}"
        return
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from not_imported(f"{name}.{found.name}")


async def call() -> str:
    from fastmcp import FastMCP

    from greenroom import Greenroom

    server = FastMCP("desk")

    @server.tool
    def greet(name: str) -> str:
        return f"Hello, {name}"

    async with Greenroom.open({"mcpServers": {}}, cache_path=":memory:", in_process={"desk": server}) as room:
        return (await room.call("desk_greet", {"name": "Ada"})).text


def typed(words: str) -> dict[str, Any]:
    from greenroom.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words.split())
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def imported() -> dict[str, str]:
    from tools.arrows import ROOMS

    return {name: reason for room in ROOMS for name, reason in not_imported(f"greenroom.{room}")}


def called() -> list[str]:
    import anyio

    return [anyio.run(call, backend=backend) for backend in ("asyncio", "trio")]


def in_a_copy(look: Callable[[], Any], fork: Callable[[], int]) -> Any:
    read, write = os.pipe()
    if not fork():
        with os.fdopen(write, "w") as told:
            json.dump(look(), told)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        return json.load(told)


def main(commands: str) -> None:
    fork = os.fork
    become_windows()
    looks: dict[str, Callable[[], Any]] = {"imported": imported, "called": called}
    looks["typed"] = lambda: {words: typed(words) for words in commands.split("\n")}
    print(json.dumps({name: in_a_copy(look, fork) for name, look in looks.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
