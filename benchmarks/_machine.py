"""What the numbers were measured on: a result without its machine is no result."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_PEERS = ("greenroom", "mcp", "fastmcp", "pykka", "trio", "anyio", "msgspec")


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, system, interpreter, load when it began, versions of all sides."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "processor": _first_value("/proc/cpuinfo", "model name")
        or platform.processor()
        or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": f"{load:.1f}",
        **{name: _version(name) for name in _PEERS},
    }


def in_words(machine: dict[str, str]) -> str:
    """One sentence for under a table."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}, {machine['system']}, "
        f"{machine['python']}, load {machine['load']} at the start; mcp {machine['mcp']}, fastmcp {machine['fastmcp']}, "
        f"pykka {machine['pykka']}, trio {machine['trio']}"
    )


def _memory() -> str:
    kib = _first_value("/proc/meminfo", "MemTotal").partition(" ")[0]
    return f"{int(kib) / 2**20:.0f} GiB" if kib else "memory unknown"


def _first_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
