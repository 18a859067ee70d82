"""With this extra alone, `doctor` misses nothing but the model."""

import json
import subprocess
import sys
from pathlib import Path

Path("semantic.json").write_text(json.dumps({"mcpServers": {}, "settings": {"semanticSearch": "a model"}}))
command = [sys.executable, "-m", "greenroom", "doctor", "--json", "--config", "semantic.json"]
said = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
(found,) = [one for one in said["findings"] if one["check"] == "semantic search"]
assert not any(name in found["what"] + found["mend"] for name in ("numpy", "tokenizers")), found
