"""FastMCP's proxy in front of one stdio server, on its own standard input and output.

    python fastmcp_proxy.py COMMAND [ARGUMENT …]

The target is a configuration, the form its documentation shows for this; of the four forms we tried it had the lowest
latency, though not the most calls a second.
"""

from __future__ import annotations

import sys

from fastmcp.server import create_proxy


def main(command: str, *arguments: str) -> None:
    config = {"mcpServers": {"echo": {"command": command, "args": list(arguments)}}}
    create_proxy(config).run(show_banner=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
