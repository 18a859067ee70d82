"""What `greenroom --version` says: the version, and what it runs on. A report of a bug begins with it.

The packages are read off our own requirements, so that none is forgotten: those that are installed, of extras too.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from ..protocol.version import VERSION

if TYPE_CHECKING:
    from . import json_shapes as shapes


def runs_on() -> shapes.Version:
    """What this Greenroom runs on."""
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": dict(sorted(_packages())),
    }


def in_words(said: shapes.Version) -> Iterator[str]:
    """The same for a person."""
    yield f"greenroom {said['version']}"
    yield f"{said['implementation']} {said['python']} ({said['executable']})"
    yield said["platform"]
    yield ", ".join(f"{name} {version}" for name, version in said["packages"].items())


def _packages() -> Iterator[tuple[str, str]]:
    try:
        wanted = metadata.requires("greenroom") or []
    except metadata.PackageNotFoundError:  # it runs from a folder that nobody has installed
        return
    for name in {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in wanted}:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
