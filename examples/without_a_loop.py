"""Call the tools of MCP servers from a program without an event loop, and from several threads at once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import greenroom.sync
from greenroom import CallError

CONFIG = {
    "mcpServers": {
        "clock": {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]},
        "flaky": {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_flaky"]},
    }
}


def local_time(room: greenroom.sync.Room, offset: int) -> str:
    return room.call("clock_now", {"utc_offset": offset}).text


with greenroom.sync.open(CONFIG) as room, ThreadPoolExecutor(4) as threads:
    print(room.call("clock_now", {"utc_offset": 1}).or_raise().structured["weekday"])
    print(*threads.map(partial(local_time, room), range(4)), sep="\n")
    try:
        room.call("flaky_crash")
    except CallError as error:
        print(error.code, error.reach.value)
