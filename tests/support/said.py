"""A server that answers word for word what it was told, for answers that no SDK would let a server send.

    python -S said.py FILE [--modern]

FILE holds an object: method -> result; for `tools/call`, `resources/read` and `prompts/get` also `method name` (the
tool's or prompt's name, the URI) -> result. Anything else is refused with -32601. Each request is appended to FILE.log
as a line of JSON. It speaks the handshake era up to 2025-11-25; with `--modern` only 2026-07-28.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def said(folder: Path, name: str, answers: Mapping[str, Any], *options: str) -> dict[str, Any]:
    """The entry of a server called `name` that gives `answers`."""
    file = folder / f"{name}.said.json"
    file.write_text(json.dumps(answers))
    return {"command": sys.executable, "args": ["-S", __file__, os.fspath(file), *options]}


def asked(folder: Path, name: str) -> list[dict[str, Any]]:
    """The requests that it has received, in order."""
    log = folder / f"{name}.said.json.log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _serve(file: str, modern: bool) -> None:
    answers: dict[str, Any] = json.loads(Path(file).read_text())
    kinds = {"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts"}
    able: dict[str, Any] = {kind: {} for method, kind in kinds.items() if method in answers}
    if "resources/templates/list" in answers or "resources/read" in "".join(answers):
        able.setdefault("resources", {})
    if "completion/complete" in answers:
        able["completions"] = {}
    able |= answers.get("capabilities", {})
    who = {"name": "said", "version": "1"}
    if modern:
        answers["server/discover"] = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": able,
            "serverInfo": who,
        }
    else:
        answers["initialize"] = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": who}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        with open(f"{file}.log", "a") as log:
            log.write(json.dumps({"method": method, "params": params}) + "\n")
        name = params.get("name", params.get("uri", ""))
        result = answers.get(f"{method} {name}", answers.get(method))
        if method == "ping":
            result = {}
        if result is None:
            reply: dict[str, Any] = {"error": {"code": -32601, "message": f"Method not found: {method}"}}
        else:
            meta = {"io.modelcontextprotocol/serverInfo": who}
            reply = {"result": {"resultType": "complete", "_meta": meta, **result} if modern else result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], "--modern" in sys.argv)
