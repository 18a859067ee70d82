"""What commands print: answers on stdout, as text or as JSON, and messages about them on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..gateway.doors.control_protocol import name_of
from ..gateway.next_steps import Commands
from ..protocol.errors import GreenroomError
from ..protocol.safe_text import printable, seen_in_json
from .standard_streams import print_line
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from .json_shapes import Shape


def show(
    text: str, details: Mapping[str, Any] | Shape, as_json: bool, *shapes: type[Shape], ours: bool = True
) -> None:
    """The answer, on stdout. `details`: for JSON, a struct or what fits one of `shapes`. `ours`: the commands that it
    names, as text or in its JSON, are next steps."""
    commands = commands_typed() if ours else Commands()
    if as_json:
        from .json_shapes import plain

        show_json(commands.filled_in(plain(details, *shapes)))
    elif ours:
        tell(text)
    else:
        print_line(printable(text), sys.stdout)


def tell(text: str) -> None:
    """Print a text of ours on stdout; at a terminal it is wrapped to fit."""
    from .text_wrapping import fitted

    print_line(fitted(commands_typed().filled(text)), sys.stdout)


def show_json(value: Any, *shapes: type[Shape]) -> None:
    """Print `value` as JSON on stdout, in characters that stdout can encode. It is a struct, or fits one of `shapes`;
    without these it is printed as it is."""
    from .json_shapes import Shape, plain

    value = plain(value, *shapes) if shapes or isinstance(value, Shape) else value
    encoding = sys.stdout.encoding or "" if sys.stdout is not None else ""
    text = json.dumps(value, indent=2, ensure_ascii=encoding.lower() not in ("utf-8", "utf8"))
    print_line(seen_in_json(text), sys.stdout)


def say(text: str, *, ours: bool = True) -> None:
    """Print a message about the answer on stderr. `ours`: as for `show`."""
    from .text_wrapping import fitted

    line = f"greenroom: {commands_typed().filled(text) if ours else text}"
    print_line(fitted(line, sys.stderr), sys.stderr)


def say_error(error: GreenroomError) -> None:
    """Print an error that does not end the command."""
    say(error.message)


def say_at_terminal(text: str, config: Config) -> None:
    """Say on stderr what only a person wants to know, once a day."""
    from .text_wrapping import on_terminal
    from .warnings_file import not_told_lately

    if on_terminal(sys.stderr) and not_told_lately([text], name_of(config)):
        say(text)


def from_home(path: str, home: Path) -> str:
    """The path as it is shown to a person: `~` stands for the home folder."""
    with suppress(ValueError):
        return f"~/{Path(path).relative_to(home)}"
    return path
