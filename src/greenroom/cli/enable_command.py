"""Takes a server out of service or brings it back, in the file that defines it.

The strongest of our files that defines the server is edited, with everything else in it left as it is. A server that
only another program's file defines (`imports`) gets an entry in our own file that says nothing but `disabled`: files of
other programs are not ours to switch. `disabled: true`, and its removal, need no new `greenroom trust`. `disabled:
false` does, because a project could write it to bring back what its reader has switched off. So it goes to the user's
own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import click

from ..config.keys import SECTIONS
from ..config.model import Config
from ..config.private_files import alone
from ..protocol.json_values import is_object
from . import file_edits
from .client_files import decoded, meaning, with_member, without_member
from .completion import complete_servers
from .config_reading import load
from .json_shapes import Shape, says
from .missing_servers import no_such_server
from .printing import say, show
from .running_gateways import reload_gateways
from .shared_options import config_option, json_option
from .typed_options import commands_typed


class SwitchedServerJson(Shape, kw_only=True):
    """A server that was switched off or on."""

    server: Annotated[str, says("the server")]
    disabled: Annotated[bool, says("how it is now")]
    files: Annotated[list[str], says("the files that were changed; empty: it was so already")]


class SwitchedJson(Shape, kw_only=True):
    """The servers that were switched off or on."""

    servers: Annotated[list[SwitchedServerJson], says("each that was named")]


# ---- `greenroom enable S` and `greenroom disable S` -----------------------------------------------------------------


def _command(name: str, text: str, *, disabled: bool) -> click.Command:
    def run(servers: tuple[str, ...], as_json: bool, config_path: Path | None) -> None:
        _switch(servers, as_json, config_path, disabled=disabled)

    command: Callable[..., None] = config_option(run)
    command = json_option(command)
    command = click.argument(
        "servers", metavar="SERVER...", nargs=-1, required=True, shell_complete=complete_servers
    )(command)
    return click.command(name, help=f"{text}\n\n{_EDITED}")(command)


_EDITED = "The file that defines it is edited. Running gateways use it at once."
enable_command: click.Command = _command("enable", "Bring each SERVER back into service.", disabled=False)
disable_command: click.Command = _command("disable", "Take each SERVER out of service.", disabled=True)


def _switch(servers: Sequence[str], as_json: bool, path: Path | None, *, disabled: bool) -> None:
    config = load(path)
    for server in servers:  # before anything is changed
        if server not in (*config.servers, *config.broken):
            raise no_such_server(config, server)
    rows: list[SwitchedServerJson] = []
    lines: list[str] = []
    state = "disabled" if disabled else "enabled"
    for server in dict.fromkeys(servers):
        names = [str(file) for file in switch_in_files(path, server, disabled)]
        rows.append(SwitchedServerJson(server=server, disabled=disabled, files=names))
        lines.append(f"{server} is {state}: {', '.join(names)}" if names else f"{server} is {state} already.")
    reload_gateways()
    details = SwitchedJson(servers=rows)
    show("\n".join(lines), details, as_json)
    broken = () if disabled else load(path).broken
    for row in rows:
        if row.server in broken:
            step = commands_typed().about("explain", row.server)
            say(f"{row.server} cannot be used yet. To see why: {step}")


def switch_in_files(path: Path | None, server: str, disabled: bool) -> list[Path]:
    """`switch` in the file at `path`, or in those that are found from here."""
    from .own_servers import our_files

    fallback, files = our_files(path)
    return switch(server, disabled=disabled, files=files, fallback=fallback, load=lambda: load(path))


@attrs.frozen
class _Definition:
    """Where a server is defined. What its entry says is read when it is to be changed, by whoever may change it."""

    file: Path
    section: str

    def put(self, name: str, value: bool) -> None:
        with alone(self.file):
            before = file_edits.read(self.file)
            text = decoded(self.file, before)
            new = with_member(self.file, text, (self.section, name, "disabled"), value)
            file_edits.replace(self.file, before, new.encode("utf-8"))

    def enable(self, name: str) -> bool:
        """Take `disabled: true` and `enabled: false` out of the entry, and values of these that are neither true nor
        false. An entry that says nothing else goes, too."""
        with alone(self.file):
            before = file_edits.read(self.file)
            old = text = decoded(self.file, before)
            path = (self.section, name)
            entry = _entry(meaning(self.file, text), *path) or {}
            rest = entry.keys() - {"disabled", "enabled"}
            disabled, enabled = entry.get("disabled"), entry.get("enabled")
            if disabled is not None and disabled is not False:
                text = without_member(self.file, text, path if not rest else (*path, "disabled"))
            if enabled is not None and enabled is not True and rest:
                text = without_member(self.file, text, (*path, "enabled"))
            if text != old:
                file_edits.replace(self.file, before, text.encode("utf-8"))
            return text != old


def switch(
    name: str, *, disabled: bool, files: Sequence[Path], fallback: Path, load: Callable[[], Config]
) -> list[Path]:
    """Make the server `name` disabled or not. `files`: ours, strongest first; `fallback`: where an entry for an
    imported server goes. `load` reads the configuration anew. Returns the files that were changed.

    Raises `UsageError` for an unknown server, `CannotEdit`, `ConfigError`, `FileChanged` or `OSError`.
    """
    config = load()
    if name not in (*config.servers, *config.broken):
        raise no_such_server(config, name)
    if _is_disabled(config, name) is disabled:
        return []
    found = list(_definitions(name, files))
    if disabled:
        place = found[0] if found else _Definition(fallback, SECTIONS[0])
        place.put(name, True)
        return [place.file]
    changed = [each.file for each in found if each.enable(name)]
    if _is_disabled(load(), name):  # another program's file says so, too
        own = (each for each in _definitions(name, files) if each.file == fallback)
        place = next(own, _Definition(fallback, SECTIONS[0]))
        place.put(name, False)
        changed.append(place.file)
    return list(dict.fromkeys(changed))


def _is_disabled(config: Config, name: str) -> bool | None:
    """Whether the server is disabled. None: its entry is broken, so nobody knows."""
    definition = config.servers.get(name)
    return None if definition is None else definition.disabled


def _definitions(name: str, files: Sequence[Path]) -> Iterator[_Definition]:
    for file in files:
        said = meaning(file, decoded(file, file_edits.read(file)))
        for section in SECTIONS:
            if _entry(said, section, name) is not None:
                yield _Definition(file, section)
                break


def _entry(said: Mapping[str, Any], section: str, name: str) -> Mapping[str, Any] | None:
    servers: Any = said.get(section)
    entry: Any = servers.get(name) if is_object(servers) else None
    return entry if is_object(entry) else None
