"""How a configuration problem names its place: `mcp.json: mcpServers.github.args[2]`."""

from __future__ import annotations

import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"[\w-]+")


def place(source: str, *keys: Any) -> str:
    """The source, then the path of keys inside it. Unusual keys are quoted, positions stand in brackets."""
    path = ""
    for key in keys:
        path += _step(key, first=not path)
    return f"{source}: {path}" if source and path else source or path


def _step(key: Any, *, first: bool) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if isinstance(key, str) and _PLAIN.fullmatch(key):
        return key if first else f".{key}"
    return f"[{key!r}]" if not isinstance(key, str) else '["' + key.replace('"', '\\"') + '"]'
