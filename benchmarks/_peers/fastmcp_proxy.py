"""FastMCP's proxy in front of one stdio server, on its own standard input and output or over HTTP.

    python fastmcp_proxy.py [--http PORT] COMMAND [ARGUMENT …]

The target is a configuration, the form its documentation shows for this; of the four forms we tried it had the lowest
latency, though not the most calls a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fastmcp.server import create_proxy


def main(command: str, *arguments: str) -> None:
    if command == "--http":
        port, target, *words = arguments
        waits = {"timeout_keep_alive": 600}  # its connections are idle while others take their turns
        _proxy(target, words).run(
            transport="http", host="127.0.0.1", port=int(port), log_level="critical", uvicorn_config=waits,
            show_banner=False,
        )  # fmt: skip
    else:
        _proxy(command, arguments).run(show_banner=False)


def _proxy(command: str, arguments: Sequence[str]) -> Any:
    return create_proxy({"mcpServers": {"echo": {"command": command, "args": list(arguments)}}})


if __name__ == "__main__":
    main(*sys.argv[1:])
