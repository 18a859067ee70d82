"""What commands have told a person lately: a warning about the configuration is told once a day, not with each command.

The file is beside the catalogue, and has no words: of each warning a hash, and when it was told. If the file or its
folder cannot be used, warnings are told again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..catalogue.store import default_cache_path
from ..config.private_files import BrokenFile, LockedFile, make_folder

AGAIN: Final = 86_400.0  # seconds after which a warning is told again
_MOST: Final = 2_000  # warnings that are remembered
_PATIENCE: Final = 0.2  # seconds to wait for another command


def not_told_lately(warnings: Sequence[str], about: str) -> list[str]:
    """Those of `warnings` that were not told in the last day. They count as told from now on. `about`: the
    configuration."""
    if not warnings:
        return []
    file, now = LockedFile(default_cache_path().with_name("told.json"), _PATIENCE), time.time()
    told = _read(file, now)
    new = {_mark(text, about): text for text in warnings if _mark(text, about) not in told}
    if new:
        with suppress(OSError, BrokenFile):
            make_folder(file.path.parent)
            with file.locked():
                kept = {**_read(file, now), **dict.fromkeys(new, now)}
                last = sorted(kept.items(), key=lambda one: one[1])[-_MOST:]
                file.replace(json.dumps(dict(last)).encode())
    return list(new.values())


def _read(file: LockedFile, now: float) -> dict[str, float]:
    """The warnings that were told in the last day, by their marks."""
    with suppress(OSError, BrokenFile, ValueError, RecursionError):
        found: Any = json.loads(file.read() or b"{}")
        if isinstance(found, Mapping):
            return {
                mark: at
                for mark, at in found.items()  # pyright: ignore[reportUnknownVariableType]
                if isinstance(mark, str) and isinstance(at, float) and now - AGAIN < at <= now
            }
    return {}


def _mark(text: str, about: str) -> str:
    return hashlib.sha256(f"{about}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]
