"""What places hosts on a cluster can be imported, and the command says where there is no cluster."""

import importlib
import subprocess
import sys

importlib.import_module("greenroom.cluster.ray_cluster")
command = [sys.executable, "-m", "greenroom", "cluster", "status", "--address", "127.0.0.1:9"]
done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
assert done.returncode
assert "not installed" not in done.stderr, done.stderr
