"""Which server a definition is: its hash, and whether a change of it is policy only.

The hash is the key of a catalogue entry. So it covers what decides which tools there are, with references
expanded: the same file with another token is another account with other tools. It covers the absolute directory
that a program runs in where the definition resolves against it (`_config_folder`), since `server.py` and `.` mean other
things in another project. Policy is left out, or a new idle timeout would forget every tool. Secrets go into the digest
and nowhere else.

Isolation and era are special. They change no tool, so they are not hashed. But they say who shares a process and
how it is greeted, so they cannot be applied to a live process.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePath
from posixpath import normpath
from typing import Any, Final

from ._config_folder import Exists, resolves_by_itself, resolves_in_folder
from .config import ServerDefinition, Settings
from .config_readers import is_object
from .errors import ConfigError
from .interpolate import expanded_fields

IDENTITY: Final = (
    "command",
    "args",
    "env",
    "env_file",
    "cwd",
    "inherit_env",
    "url",
    "headers",
    "http_transport",
    "request_headers_command",
    "socket",
    "in_process",
    "expose_resources",
    "include_tools",
    "exclude_tools",
)
_NEEDS_RESTART: Final = ("name", *IDENTITY, "env_file_state", "auth", "oauth", "isolation", "era")
_VERSION: Final = 2  # of this normal form; another version gives other hashes


def definition_hash(
    definition: ServerDefinition,
    environ: Mapping[str, str],
    directory: str,
    settings: Settings | None = None,
    exists: Exists = lambda _: False,
) -> str:
    """SHA-256 (hex) of the normalised definition. The same server has the same hash in every process.

    `directory` is the working directory of the process that would start it; relative paths are relative to it.
    `exists` says whether such a path exists in it.
    `settings` fill in what the definition leaves open (`with_settings`). Nothing is copied, for there may be
    thousands of definitions. Never raises: a URL whose variables are not set is hashed as written, and no expanded
    URL is equal to that.
    """
    values = {name: getattr(definition, name) for name in IDENTITY}
    with contextlib.suppress(ConfigError):  # it cannot connect either, and an attempt tells why
        values |= expanded_fields(definition, environ)
    if settings is not None and values["inherit_env"] is None:
        values["inherit_env"] = settings.inherit_env
    command, cwd = values["command"], values["cwd"]
    if command is not None and (
        cwd is not None or resolves_in_folder(command, values["args"], values["env"], exists)
    ):
        values["cwd"] = _under(directory, cwd or "")
    prints_headers = values["request_headers_command"]
    if prints_headers is not None and resolves_in_folder(
        prints_headers["command"], prints_headers["args"], prints_headers["env"], exists
    ):
        values["request_headers_command"] = {**prints_headers, "cwd": directory}
    for late in ("env_file", "request_headers_command"):
        if values[late] is None:
            del values[late]  # most have none, and keep the hash they had before there were any
    if "env_file" in values:
        values["env_file"] = _under(directory, values["env_file"])
    if values["socket"] is not None:
        values["socket"] = _under(directory, values["socket"])
    normal = {name: value if value is None else _normal(name, value) for name, value in values.items()}
    text = json.dumps([_VERSION, normal], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def pin_key(definition: ServerDefinition, directory: str) -> str:
    """SHA-256 (hex) of what says whose tools these are, for pinning: the program with its arguments, or the address,
    and the file that says so. All as written: a new token is no new server, but another version in the arguments is.

    `directory`: what the name of the file is relative to. It counts itself if the definition resolves against it by
    what it says alone.
    """
    where = ("command", "args", "url", "socket", "cwd")
    said: dict[str, Any] = {name: getattr(definition, name) for name in where}
    if definition.in_process is not None:
        said["in_process"] = _normal("in_process", definition.in_process)
    source = next((definition.sources[name] for name in where if name in definition.sources), "")
    said["file"] = file = normpath(_under(directory, source))
    if _means_its_folder(definition) and not PurePath(file).is_relative_to(directory):
        said["directory"] = directory  # a file in it says so already
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _means_its_folder(definition: ServerDefinition) -> bool:
    """Whether it means another server in another folder by what is written in it, whatever files there are."""
    if definition.cwd is not None:
        return definition.command is not None and definition.cwd[:1] not in ("/", "~", "$", "{")
    command = definition.command
    return command is not None and resolves_by_itself(command, definition.args, definition.env)


@lru_cache(64)  # most servers run in one directory, and there may be thousands of them
def _under(directory: str, path: str) -> str:
    return str(PurePath(directory, path))


def policy_only_change(old: ServerDefinition, new: ServerDefinition) -> bool:
    """Whether going from `old` to `new` leaves the process as it is, so that it can be applied live."""
    return all(_same(getattr(old, name), getattr(new, name)) for name in _NEEDS_RESTART)


def _same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and old == new)


def _normal(name: str, value: Any) -> Any:
    if type(value) in (str, tuple):  # most are
        return value
    if name == "in_process":
        return (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        )
    if name == "headers":  # their names have no case
        return {key.lower(): text for key, text in value.items()}
    return value.value if isinstance(value, enum.Enum) else _plain(value)


def _plain(value: Any) -> Any:
    return dict(value) if is_object(value) else value
