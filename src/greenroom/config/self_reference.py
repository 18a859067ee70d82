"""A gateway must not start itself.

Often the gateway finds the very file in which its client configured it: the `.mcp.json` of the project, with
`greenroom serve` or `greenroom attach` in it. Then it would start a gateway that reads the same file, or be its own
client, and so on without end. So an entry is left out, with a warning, if it starts either on a file of the present
configuration. An entry with another file is a gateway behind a gateway and stays. A gateway hidden in a script or a
shell cannot be seen, so the depth is limited: every child is told its depth, and the fifth refuses to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from ..protocol.address import depth
from ..protocol.errors import Problem, UsageError, place
from .model import Config, ServerDefinition

DEEPEST = 4
_DOORS = frozenset({"serve", "attach"})
_TEXT = "is this gateway itself, and is left out: it would start itself without end"


def without_self_reference(config: Config, *, cwd: Path, found: bool) -> Config:
    """`config` without the entries that would serve it again. `found`: its files were discovered, not named."""
    itself = servers_of_itself(config, cwd=cwd, found=found)
    if not itself:
        return config
    files = {name: config.servers[name].sources.get("command", "") for name in itself}
    problems = [Problem(place(file, "mcpServers", name), _TEXT, fatal=False) for name, file in files.items()]
    return replace(
        config,
        servers={name: one for name, one in config.servers.items() if name not in itself},
        problems=(*config.problems, *problems),
    )


def servers_of_itself(config: Config, *, cwd: Path, found: bool) -> list[str]:
    """The entries of `config` that would serve it again."""
    files = {_absolute(file, cwd) for file in config.files}
    return [name for name, one in config.servers.items() if _serves(one, files, cwd, found)]


def check_depth(environ: Mapping[str, str]) -> None:
    """Raises `UsageError` when there are too many gateways above a process with this environment."""
    above = depth(environ)
    if above > DEEPEST:
        raise UsageError(
            f"This is a gateway behind {above} gateways: a configuration probably starts itself. Take the entry that "
            "starts Greenroom out of the file that Greenroom reads."
        )


def _serves(definition: ServerDefinition, files: set[Path], cwd: Path, found: bool) -> bool:
    arguments = _arguments_of_serve(definition)
    if arguments is None:
        return False
    named = _named_config(arguments)
    if named is None:
        return found  # it looks in the same places as we do
    return _absolute(named, Path(definition.cwd) if definition.cwd else cwd) in files


def _arguments_of_serve(definition: ServerDefinition) -> Sequence[str] | None:
    """The arguments after `greenroom serve` or `attach` in its command line; None when it starts something else."""
    if not _DOORS.intersection(definition.args):
        return None
    words = [definition.command or "", *definition.args]
    for at, word in enumerate(words[:-1]):
        is_ours = PurePath(word).stem == "greenroom" and (at == 0 or words[at - 1] != "-c")
        if is_ours and words[at + 1] in _DOORS:
            return words[at + 2 :]
    return None


def _named_config(arguments: Sequence[str]) -> str | None:
    for at, word in enumerate(arguments):
        if word.startswith("--config="):
            return word.partition("=")[2]
        if word == "--config" and at + 1 < len(arguments):
            return arguments[at + 1]
    return None


def _absolute(path: str, base: Path) -> Path:
    return (base / Path(path).expanduser()).resolve()
