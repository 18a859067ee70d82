"""FastMCP's proxy over a configuration, on standard input and output, as its documentation shows it."""

from __future__ import annotations

import json
import sys

from fastmcp.server import create_proxy

with open(sys.argv[1], encoding="utf-8") as file:
    create_proxy(json.load(file)).run(show_banner=False)
