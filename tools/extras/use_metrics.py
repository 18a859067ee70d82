"""`/metrics` of `serve --http` has our numbers."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

with socket.socket() as line:
    line.bind(("127.0.0.1", 0))
    port = line.getsockname()[1]
Path("metrics.json").write_text(json.dumps({"mcpServers": {}, "settings": {"http": {"metrics": True}}}))
command = [
    sys.executable,
    "-m",
    "greenroom",
    "serve",
    "--config",
    "metrics.json",
    "--http",
    f"127.0.0.1:{port}",
]
with subprocess.Popen(command) as gateway:
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                said = answer.read().decode()
            break
        except URLError:
            time.sleep(0.1)
    gateway.terminate()
assert "greenroom_" in said, said
