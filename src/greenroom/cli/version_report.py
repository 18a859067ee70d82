"""What `greenroom --version` says: the version, and what it runs on. A report of a bug begins with it.

The packages are read off our own requirements, so that none is forgotten: those that are installed, of extras too.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated

from ..protocol.version import VERSION
from .json_shapes import Shape, says


class VersionJson(Shape, kw_only=True):
    """The version, and what it runs on."""

    version: Annotated[str, says("of Greenroom")]
    python: Annotated[str, says("the version of Python")]
    implementation: Annotated[str, says("of Python, such as `CPython`")]
    executable: Annotated[str, says("the path of that Python")]
    platform: Annotated[str, says("the operating system and its version, and the machine")]
    packages: Annotated[
        dict[str, str], says("the version of each installed package that Greenroom, or an extra of it, uses")
    ]


def runs_on() -> VersionJson:
    """What this Greenroom runs on."""
    return VersionJson(
        version=VERSION,
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        executable=sys.executable,
        platform=platform.platform(),
        packages=dict(sorted(_packages())),
    )


def in_words(said: VersionJson) -> Iterator[str]:
    """What this Greenroom runs on, for a person to read."""
    yield f"greenroom {said.version}"
    yield f"{said.implementation} {said.python} ({said.executable})"
    yield said.platform
    yield ", ".join(f"{name} {version}" for name, version in said.packages.items())


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
