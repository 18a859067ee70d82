"""Which server a definition is: its hash, and whether a change of it is policy only.

The hash is the key of a catalogue entry. So it covers what decides which tools there are, with references
expanded: the same file with another token is another account with other tools. It covers the absolute directory
that a program runs in where the definition resolves against it (`resolves_in_folder`), since `server.py` and `.` mean
other things in another project. Policy is left out, or a new idle timeout would forget every tool. Secrets go into the
digest and nowhere else.

Isolation and era are special. They change no tool, so they are not hashed. But they say who shares a process and
how it is initialized, so they cannot be applied to a live process.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from posixpath import isabs, normpath
from typing import Any, Final

from ..protocol.errors import ConfigError
from ..protocol.json_values import is_object
from ..protocol.lazy_patterns import lazy_pattern
from .installers import SHELLS, program_of
from .model import ServerDefinition, Settings
from .references import expanded_fields, is_url

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
    "openapi",
    "spec_hash",
    "include_operations",
    "exclude_operations",
    "output_schemas",
    "uploads",
    "http",
    "socket",
    "in_process",
    "expose_resources",
    "include_tools",
    "exclude_tools",
)
_NEEDS_RESTART: Final = (
    "name",
    *IDENTITY,
    "env_file_state",
    "openapi_state",
    "auth",
    "oauth",
    "isolation",
    "era",
)
# Most servers have none of them, and keep the hash they had before there were any.
_LATER: Final[Mapping[str, Any]] = {
    "env_file": None,
    "request_headers_command": None,
    "openapi": None,
    "spec_hash": None,
    "include_operations": None,
    "exclude_operations": (),
    "output_schemas": False,
    "uploads": None,
    "http": None,
}
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
    for late, unsaid in _LATER.items():
        if values[late] == unsaid:
            del values[late]
    if "openapi" in values:
        values["openapi_state"] = definition.openapi_state
    for path in ("env_file", "socket", "openapi", "uploads"):
        if (said := values.get(path)) is not None and not (path == "openapi" and is_url(said)):
            values[path] = _under(directory, said)
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
    for late in ("openapi", "spec_hash", "http"):
        if (value := getattr(definition, late)) is not None:
            said[late] = value
    if definition.in_process is not None:
        said["in_process"] = _normal("in_process", definition.in_process)
    source = next((definition.sources[name] for name in where if name in definition.sources), "")
    said["file"] = file = normpath(_under(directory, source))
    if _means_its_folder(definition) and not PurePath(file).is_relative_to(directory):
        said["directory"] = directory  # a file in it says so already
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _means_its_folder(definition: ServerDefinition) -> bool:
    """Whether the definition means another server in another folder, whatever files are there."""
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
    if isinstance(value, enum.Enum):
        return value.value
    return dict(value) if is_object(value) else value


# ---- Whether a definition means another program in another folder ---------------------------------------------------
#
# `npx -y some-server` is the same server wherever it is started, so what is known of it is known everywhere.
# `./server.py` is not. A definition resolves against the folder it is started in when
#
# - a word of it is a path that begins at that folder (`.`, `./x`, `../x`), or its command is a relative path,
# - a word of it names something that exists there: `server.py`, `--config=conf.json`, the module of `-m`, or the
#   package of `npx` in the folder's `node_modules`,
# - its program runs what the folder's project file says (`npm run`, `uv run`, `make`), unless an argument says where
#   the project is.
#
# Words are looked for in the arguments and in the values of `env`, also inside of them: `type=bind,src=./data` is one
# argument, and so is a whole line for `sh -c`. A URL is no path, and neither is the `src` of `src=…`. When in doubt the
# folder counts. That costs one more start of the server, where the opposite would show the tools of one project in
# another.
#
# A function says what exists, so nothing is read here. So all that a file in a folder can decide is whether this folder
# has what is known of the server to itself. `resolves_by_itself` decides whether pins are inherited, and does not look
# at files. So no file in a folder makes a changed tool look like a new one.

Exists = Callable[[str], bool]  # whether a path, relative to the folder, exists
_BETWEEN: Final = lazy_pattern(r"""[\s!,;:|&<>()'"]+""")
_URL: Final = lazy_pattern(r"[A-Za-z][\w+.-]*://\S*")
_FROM_HERE: Final = lazy_pattern(r"\.\.?(?:[/\\]|$)")
_PACKAGE_VERSION: Final = lazy_pattern(r"(?<=.)@.*")  # of `name@1` and `@scope/name@1`
_SHELLS: Final = SHELLS | {"env"}
_OF_NODE: Final = frozenset({"npx", "npm", "pnpm", "pnpx", "yarn", "bun", "bunx"})
_OF_A_PROJECT: Final = frozenset(
    "bun bundle cargo composer deno dotnet go gradle hatch just make mise mvn npm nx pdm pipenv pixi pnpm"
    " poetry rake rye task turbo uv yarn".split()
)
_ELSEWHERE: Final = frozenset({"x", "dlx", "exec", "tool"})  # `npm exec`, `uv tool run`: as `npx` and `uvx`
_COMPOSE: Final = frozenset({"docker", "podman", "nerdctl"})


def resolves_in_folder(command: str, args: Sequence[str], env: Mapping[str, str], exists: Exists) -> bool:
    """Whether the program depends on the folder it is started in."""
    words = _words(args, env)
    if _resolves_by_itself(command, args, words):
        return True
    named = (*filter(_may_be_file, words), *_by_name(program_of(command), args))
    return any(map(exists, named))


def resolves_by_itself(command: str, args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the program depends on the folder it is started in, whatever files the folder has."""
    return _resolves_by_itself(command, args, _words(args, env))


def _resolves_by_itself(command: str, args: Sequence[str], words: Sequence[str]) -> bool:
    if ("/" in command or "\\" in command) and not _is_absolute(command):
        return True
    return any(word[:1] == "." and _FROM_HERE.match(word) for word in words) or _runs_a_project(
        program_of(command), args
    )


def _words(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    words = [*args, *env.values()]
    for text in tuple(words):
        if "=" in text or _BETWEEN.search(text):
            bare = _URL.sub(" ", text) if "://" in text else text
            words += (word.rpartition("=")[2] for word in _BETWEEN.split(bare))
    return words


def _may_be_file(word: str) -> bool:
    return bool(word) and word[0] not in "-/~" and "\0" not in word


def _is_absolute(path: str) -> bool:
    return isabs(path) or path.startswith("~")


def _by_name(program: str, args: Sequence[str]) -> Iterator[str]:
    """The files that arguments stand for without being their names, such as the module of `-m`."""
    for before, arg in zip(("", *args), args, strict=False):
        if before == "-m" and _may_be_file(arg):
            module = arg.replace(".", "/")
            yield from (module, f"{module}.py")
        elif program in _OF_NODE and _may_be_file(arg):
            yield f"node_modules/{_PACKAGE_VERSION.sub('', arg)}"


def _runs_a_project(program: str, args: Sequence[str]) -> bool:
    if program in _SHELLS:
        line = [*filter(None, _BETWEEN.split(" ".join(args)))]
        after = ((program_of(word), line[place + 1 :]) for place, word in enumerate(line))
        return any(_runs_a_project(name, rest) for name, rest in after if name not in _SHELLS)
    if program in _COMPOSE:
        return "compose" in args[:1]
    return (
        program in _OF_A_PROJECT
        and not _ELSEWHERE.intersection(args[:1])
        and not any(_is_absolute(arg) or _is_absolute(arg.partition("=")[2]) for arg in args)
    )
