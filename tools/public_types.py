"""Every name that a program can import has a type that a checker knows: pyright's `--verifytypes`.

    python tools/public_types.py

An adapter's classes are made of its framework's, and a framework that is not installed has no types. So what pyright
misses in such an adapter is not counted here; `tools.world` has it read where the framework is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ADAPTERS = "greenroom.adapters."
# The module of each framework that not every environment for checks has.
FRAMEWORKS = {
    "claude_agent_sdk": "claude_agent_sdk",
    "google_adk": "google.adk",
    "langchain": "langchain_core",
    "openai_agents": "agents",
    "inspect_ai": "inspect_ai",
    "pydantic_ai": "pydantic_ai",
    "verifiers": "verifiers",
}


def main() -> int:
    said = _verify()
    missing = [symbol for symbol in said["typeCompleteness"]["symbols"] if _is_missing(symbol)]
    for symbol in missing:
        print(symbol["name"], *(one["message"] for one in symbol["diagnostics"]), sep="\n  ")
    for one in said["generalDiagnostics"]:
        if one["severity"] == "error":
            print(one["message"])
            missing.append(one)
    return 1 if missing else 0


def _verify() -> dict[str, Any]:
    """What pyright says of the package that the interpreter beside ours imports."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["pyright", "--verifytypes", "greenroom", "--ignoreexternal", "--outputjson"],
        env={**os.environ, "PATH": path, "PYTHONPATH": "build/types"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


def _is_missing(symbol: dict[str, Any]) -> bool:
    if not symbol["isExported"] or (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]):
        return False
    name: str = symbol["name"]
    module = name.removeprefix(ADAPTERS).split(".", 1)[0] if name.startswith(ADAPTERS) else ""
    framework = FRAMEWORKS.get(module)
    return framework is None or _is_installed(framework)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False


if __name__ == "__main__":
    sys.exit(main())
