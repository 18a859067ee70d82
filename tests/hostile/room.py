"""The embedded room as a process: `python -m tests.hostile.room CONFIG BACKEND`.

It reads MCP calls as JSON lines, makes each of the room in its own program, and says how it ended: the length of what
came, or the error's code. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from anyio import to_thread

from greenroom import CallError, Greenroom, GreenroomError


async def main(path: str) -> None:
    async with Greenroom.open(path) as room, anyio.create_task_group() as calls:
        while line := await to_thread.run_sync(sys.stdin.buffer.readline):
            calls.start_soon(_call, room, json.loads(line))
        calls.cancel_scope.cancel()
    assert room.drain_report is not None
    assert room.drain_report.adds_up


async def _call(room: Greenroom, message: dict[str, Any]) -> None:
    params = message["params"]
    try:
        result = await room.call(params["name"], params["arguments"])
        said: dict[str, Any] = {"result": {"length": len(result.text)}}
    except (CallError, GreenroomError) as error:
        said = {"error": {"code": error.code, "message": error.message[:2000]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[2])
