"""Requests on the control socket: reads them, and names the fault of a malformed one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ...config.private_files import cache_folder, fits_socket
from ...config.value_kinds import kind_of
from ...protocol.errors import UsageError
from ...protocol.json_values import is_object
from ...protocol.safe_text import repair_utf8

if TYPE_CHECKING:
    from ...config.model import Config


def parse_request(line: bytes) -> tuple[str, Mapping[str, Any]]:
    """The method and params of a request. Raises a `UsageError` that names the fault."""
    try:
        request: Any = json.loads(repair_utf8(line))
    except RecursionError:
        raise _wrong("this is nested too deeply") from None
    except ValueError as error:
        raise _wrong(f"this is not JSON ({error})") from None
    if not is_object(request):
        raise _wrong(f"this is {kind_of(request)}")
    method, params = request.get("method"), request.get("params")
    if method is None:
        raise _wrong('"method" is missing')
    if not isinstance(method, str):
        raise _wrong(f'"method" must be a string, not {kind_of(method)}')
    if params is not None and not is_object(params):
        raise _wrong(f'"params" must be an object, not {kind_of(params)}')
    return method, params or {}


def text_in(params: Mapping[str, Any], name: str) -> str | None:
    """A parameter that must be a string, if it is there. Raises `UsageError`."""
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(f'"{name}" must be a string, not {kind_of(value)}')
    return value


def object_in(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A parameter that must be an object. An absent one is an empty object. Raises `UsageError`."""
    value = params.get(name)
    if value is not None and not is_object(value):
        raise _wrong(f'"{name}" must be an object, not {kind_of(value)}')
    return value or {}


def texts_in(params: Mapping[str, Any], name: str) -> Sequence[str]:
    """A parameter that must be a list of strings. Raises `UsageError`."""
    value = params.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
        raise _wrong(f'"{name}" must be a list of strings')
    return cast("list[str]", value)


def number_in(params: Mapping[str, Any], name: str) -> float:
    """A parameter that must be a number. Raises `UsageError`."""
    value = params.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(f'"{name}" must be a number, not {kind_of(value)}')
    return value


def whole_in(params: Mapping[str, Any], name: str) -> int:
    """A parameter that must be a whole number. Raises `UsageError`."""
    value = number_in(params, name)
    if not isinstance(value, int):
        raise _wrong(f'"{name}" must be a whole number')
    return value


def _wrong(fault: str) -> UsageError:
    return UsageError(
        f"The control socket takes one JSON object per line, with a method and params: {fault}."
    )


# ---- Where the control sockets are, and the names by which a command finds the gateway of its configuration ----------
#
# Each running gateway listens on a socket of its own, `<config>-<pid>.sock`. The socket has mode 0600, its folder has
# mode 0700, and both are this user's. `<config>` is a hash of the paths of the configuration's files, also of those
# that cannot be read now, because their servers are still meant. What was never trusted is none of them: a stranger's
# file in the working directory changes nothing in a room, nor where it is found. Both sides check who owns the folder
# (`config.private_files`) and who is at the other end, because calls carry arguments and answers are trusted.

_LONGEST_NAME: Final = "0123456789ab-4194304.sock"


def name_of(config: Config) -> str:
    """The name of a configuration, by which commands and clients find whoever serves it."""
    files = (file for file in config.files if file not in config.left_out)
    return identity([*files, *([] if config.folder is None else [config.folder])])


def identity(files: Sequence[str]) -> str:
    """A hash of the files that a configuration is made of, and of the working directory if there are none, or if they
    say something else there than in others."""
    places = [os.path.realpath(os.path.expanduser(file)) for file in files] or [os.getcwd()]
    return hashlib.sha256("\0".join(places).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def control_directory() -> Path:
    """Where the sockets are: `run/` in the user's cache directory. If that path is too long for a socket, and
    the system has no other way to it (Linux has one), it is a folder beside the temporary files, which is
    checked as strictly."""
    wanted = cache_folder() / "run"
    if fits_socket(wanted, _LONGEST_NAME):
        return wanted
    import tempfile  # a start that finds its folder needs none

    tag = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"greenroom-{os.getuid()}-{tag}"


def socket_path(config: str, pid: int) -> Path:
    return control_directory() / f"{config}-{pid}.sock"
