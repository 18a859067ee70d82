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
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ADAPTERS = "greenroom.adapters."


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
    return not name.startswith(ADAPTERS) or _is_there(name.removeprefix(ADAPTERS).split(".", 1)[0])


@cache
def _is_there(adapter: str) -> bool:
    """Whether what an adapter is made of is installed."""
    try:
        import_module(ADAPTERS + adapter)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
