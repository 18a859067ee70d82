"""With socksio alone, a SOCKS proxy is used: it is the proxy that cannot be reached here, and nothing is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

Path("socks.json").write_text(json.dumps({"mcpServers": {"far": {"url": "http://mcp.example/mcp"}}}))
command = [sys.executable, "-m", "greenroom", "call", "far_tool", "--config", "socks.json"]
environ = {**os.environ, "ALL_PROXY": "socks5://127.0.0.1:9"}
said = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
assert "the proxy 127.0.0.1:9 (ALL_PROXY) cannot be reached" in said.stderr, said.stderr
