"""`doctor --otlp` asks a collector; here nobody listens, and it says so, and not that a package is missing."""

import json
import socket
import subprocess
import sys

with socket.socket() as line:
    line.bind(("127.0.0.1", 0))
    port = line.getsockname()[1]
command = [sys.executable, "-m", "greenroom", "doctor", "--json", "--otlp", f"http://127.0.0.1:{port}"]
said = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
(found,) = [one for one in said["findings"] if one["check"] == "otlp"]
assert "does not take spans" in found["what"], found
