"""A fork of a program with a room in it: the copy does nothing to the room that lives on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.stdio import SERVERS

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
        print(json.dumps({"code": code, "same": first == second, "again": again.is_error, "pid": first}), flush=True)
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
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    *told, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert last["pid"][0] is not None
    assert last == {"code": 7 if how == "exits" else 0, "same": True, "again": False, "pid": last["pid"]}
    if how == "runs on":
        assert told == [{"shared": []}]
