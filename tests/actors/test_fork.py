"""A fork of a program with a room in it: the copy does nothing to the room that lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE
from tests.support.stdio import SERVERS

from greenroom.actors.fork import let_go

PROGRAM = """
import gc, json, multiprocessing, os, sys, anyio, anyio.to_thread
from greenroom import Greenroom

def leave(how):
    if how == "runs on":
        print(json.dumps({"shared": sorted(links() & PIPES)}), flush=True)
    gc.collect()

def links():
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return {one for one in found if one.startswith(("pipe:", "socket:"))}

async def main():
    global PIPES
    how, server = sys.argv[2:4]
    before = links()
    entry = {"command": sys.executable, "args": ["-I", "-S", server]}
    async with Greenroom.open({"mcpServers": {"one": entry}}) as room:
        await room.call("one_echo", {"text": "a"})
        PIPES = links() - before
        first = [row.pid for row in room.status()]
        code = None
        if how == "exits":
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                if sys.version_info >= (3, 14) and sys.argv[1] == "asyncio":
                    gc.collect()
                    os._exit(7)  # no coroutine of asyncio goes on in a copy there: an exception ends none
                sys.exit(7)
            _, status = await anyio.to_thread.run_sync(os.waitpid, child, 0)
            code = os.waitstatus_to_exitcode(status)
        else:
            process = multiprocessing.get_context("fork").Process(target=leave, args=(how,))
            process.start()
            await anyio.to_thread.run_sync(process.join)
            code = process.exitcode
        second = [row.pid for row in room.status()]
        again = await room.call("one_echo", {"text": "b"})
        kept = sorted(links() & PIPES)  # not the answer of its guard that was still to come
        said = {"code": code, "same": first == second, "again": again.is_error, "pid": first, "kept": kept}
        print(json.dumps(said), flush=True)
anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("backend", "how"), [("asyncio", "exits"), ("asyncio", "runs on"), ("trio", "runs on")]
)
def test_a_forked_copy_kills_nobody_writes_nothing_and_shares_no_pipe(
    backend: str, how: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend, how, os.fspath(SERVERS / "echo.py")],
        env={**os.environ, "XDG_CACHE_HOME": os.fspath(tmp_path)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    *told, last = [json.loads(line) for line in done.stdout.splitlines()]
    pid, kept = last.pop("pid"), last.pop("kept")
    assert pid[0] is not None
    assert last == {"code": 7 if how == "exits" else 0, "same": True, "again": False}
    assert len(kept) >= 3, "those of the server"
    if how == "runs on":
        assert not {*told[0]["shared"]} & {*kept}


def test_what_is_let_go_leads_nowhere_and_its_number_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    gone = os.dup(reading)
    os.close(gone)
    before = len(os.listdir("/proc/self/fd"))
    try:
        os.set_inheritable(writing, True)
        let_go(None, reading, -1, 1 << 20, writing)
        assert [os.readlink(f"/proc/self/fd/{fd}") for fd in (reading, writing)] == [os.devnull] * 2
        assert not any(map(os.get_inheritable, (reading, writing)))
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(reading)
        os.close(writing)
    taken: list[int] = []
    monkeypatch.setattr(os, "dup2", lambda _nowhere, fd, inheritable=True: taken.append(fd))
    let_go(0, 5)
    assert taken == [0, 5], "also the first of all numbers"


FORKED = """
import gc, os
from greenroom.actors.fork import inert_in_forks

class Holder:
    def __init__(self, name):
        self.name = name

    def disown(self):
        print(self.name, flush=True)
        raise ValueError(self.name)

def fork():
    if (child := os.fork()) == 0:
        return
    os.waitpid(child, 0)
    os._exit(0)

holders = [Holder(name) for name in "abc"]
for each in holders:
    inert_in_forks(each)
inert_in_forks(Holder("gone"))
gc.collect()
fork()
fork()  # they are the parent's no more
"""


def test_every_holder_is_disowned_once_whatever_becomes_of_another() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert sorted(ran.stdout.split()) == ["a", "b", "c"]
