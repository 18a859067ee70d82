"""Where the control sockets are, and the names by which a command finds the gateway of its configuration.

Each running gateway listens on a socket of its own, `<config>-<pid>.sock`. The socket has mode 0600, its
folder has mode 0700, and both are this user's. `<config>` is a hash of the paths the configuration was read
from. Both sides check who owns the folder (`_own_files`) and who is at the other end, because calls carry
arguments and answers are trusted.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .._own_files import fits_socket

_LONGEST_NAME: Final = "0123456789ab-4194304.sock"


def identity(files: Sequence[str]) -> str:
    """The name of a configuration: a hash of the files it was read from, or of the working directory if there
    are none."""
    places = [os.path.realpath(file) for file in files] or [os.getcwd()]
    return hashlib.sha256("\0".join(places).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def control_directory() -> Path:
    """Where the sockets are: `run/` in the user's cache directory. If that path is too long for a socket, and
    the system has no other way to it (Linux has one), it is a folder beside the temporary files, which is
    checked as strictly."""
    import platformdirs

    wanted = platformdirs.user_cache_path("greenroom", appauthor=False) / "run"
    if fits_socket(wanted, _LONGEST_NAME):
        return wanted
    tag = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"greenroom-{os.getuid()}-{tag}"


def socket_path(config: str, pid: int) -> Path:
    return control_directory() / f"{config}-{pid}.sock"
