"""Commands that may have to install a server before they run it: `npx`, `uvx`, `docker run` and their like.

Only the command's name and arguments decide, so a definition is enough to tell. If a plain program is mistaken for an
installer, little is lost: it gets more time while it shows progress. If an installer is mistaken for a plain program,
its first start is killed in the middle.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from ..protocol.lazy_patterns import lazy_pattern

# The command's name -> the subcommands with which it installs; none: it always does.
_INSTALLERS: Final[Mapping[str, frozenset[str]]] = {
    "npx": frozenset(),
    "pnpx": frozenset(),
    "bunx": frozenset(),
    "uvx": frozenset(),
    "npm": frozenset({"exec", "x"}),
    "pnpm": frozenset({"dlx"}),
    "yarn": frozenset({"dlx"}),
    "bun": frozenset({"x"}),
    "deno": frozenset({"run"}),
    "uv": frozenset({"run", "tool"}),
    "pipx": frozenset({"run"}),
    "go": frozenset({"run"}),
    "cargo": frozenset({"run"}),
    "docker": frozenset({"run", "compose"}),
    "podman": frozenset({"run", "compose"}),
    "nerdctl": frozenset({"run", "compose"}),
}
STILL_INSTALLING: Final = "still installing"
SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ksh", "fish", "cmd", "powershell", "pwsh"})
_ENDINGS: Final = lazy_pattern(r"\.(exe|cmd|bat|ps1)$")
_ASSIGNMENT: Final = lazy_pattern(r"[A-Za-z_]\w*=")


def is_installer(command: str | None, args: Sequence[str] = ()) -> bool:
    """Whether `command` with `args` may install what it then runs; also behind `env` and a shell's `-c`."""
    if command is None:
        return False
    name = program_of(command)
    if name == "env":
        rest = [arg for arg in args if not arg.startswith("-") and not _ASSIGNMENT.match(arg)]
        return bool(rest) and is_installer(rest[0], rest[1:])
    if name in SHELLS:
        return _is_installing_line(name, args)
    subcommands = _INSTALLERS.get(name)
    return subcommands is not None and (not subcommands or not subcommands.isdisjoint(args))


def _is_installing_line(shell: str, args: Sequence[str]) -> bool:
    """Whether the line given to a shell begins with an installer. (`cmd /c` gets the words one by one.)"""
    if shell == "cmd":
        words = [arg for arg in args if not arg.startswith("/")]
    else:
        line = next((arg for arg in args if not arg.startswith("-")), "")
        try:
            words = shlex.split(line)
        except ValueError:
            return False
    words = [word for word in words if word != "exec" and not _ASSIGNMENT.match(word)]
    return bool(words) and is_installer(words[0], words[1:])


def program_of(command: str) -> str:
    """The name of the program: `npx` of `/usr/bin/npx` and of `C:\\…\\npx.cmd`."""
    return _ENDINGS.sub("", command.replace("\\", "/").rpartition("/")[2].lower())
