"""A room with one bundled server, which the uses beside this file have in common."""

import sys

from greenroom import Greenroom

CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


def room():
    return Greenroom.open({"mcpServers": {"clock": CLOCK}}, cache_path=":memory:")
