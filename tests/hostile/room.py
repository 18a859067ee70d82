"""The embedded room as a process: `python -m tests.hostile.room CONFIG BACKEND`.

It reads MCP calls as JSON lines, calls the room in its own program, and writes how each call ended: whether the tool
failed, or the error's code. (It decodes no content: to decode megabytes in one go is the cost of the program that asks
for it, whichever room it uses.) It ends with its input. (It reads in its loop, because a thread would wait for the
interpreter's lock as long as the loop has work, and the room could not change that.)
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

from greenroom import CallError, Greenroom, GreenroomError


async def main(path: str) -> None:
    async with Greenroom.open(path) as room, anyio.create_task_group() as calls:
        gc.freeze()  # imported modules are not garbage; each program configures its own collector
        async for line in _lines(sys.stdin.fileno()):
            calls.start_soon(_call, room, json.loads(line))
        calls.cancel_scope.cancel()
    assert room.drain_report is not None
    assert room.drain_report.adds_up


async def _lines(fd: int) -> AsyncIterator[bytes]:
    os.set_blocking(fd, False)
    rest = b""
    while True:
        await anyio.wait_readable(fd)
        if not (chunk := os.read(fd, 1 << 16)):
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


async def _call(room: Greenroom, message: dict[str, Any]) -> None:
    params = message["params"]
    try:
        result = await room.call(params["name"], params["arguments"])
        said: dict[str, Any] = {"result": {"isError": result.is_error}}
    except (CallError, GreenroomError) as error:
        said = {"error": {"code": error.code, "message": error.message[:2000]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[2])
