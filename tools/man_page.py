"""Writes the man page `install/greenroom.1` from the commands and their `--help`.

    python -m tools.man_page        # a test says when it has to be run again

It is packaged, so `man greenroom` works where pip's `share/man` is looked for (`MANPATH`; pipx and uv tell).

Rejected: click-man 0.6. It asks a group for the commands that it has loaded, so of ours it finds none; it would write a
page for each, without exit codes and files, and dates them with today, so none could be compared with what is packaged.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from tools.reference.commands import exit_code_meanings
from tools.reference.environment import VARIABLES

from greenroom.cli.command_group import COMMANDS, cli

PAGE: Final = Path(__file__).resolve().parent.parent / "install" / "greenroom.1"
_WIDTH: Final = 72
_FILES: Final = (
    ("./.greenroom/mcp.json, ./.mcp.json", "of this project, if it is trusted"),
    ("~/.config/greenroom/mcp.json, ~/.config/mcp/mcp.json", "your own"),
)


def page() -> str:
    """The whole page, as roff."""
    return "\n".join([*_head(), *_commands(), *_tail()]) + "\n"


def _head() -> Iterator[str]:
    yield '.\\" made by tools/man_page.py'
    yield '.TH GREENROOM 1 "" "Greenroom" "User Commands"'
    yield from (".SH NAME", "greenroom \\- run one process of each MCP server for all clients and programs")
    yield from (".SH SYNOPSIS", ".B greenroom", "[\\fIOPTIONS\\fR] [\\fICOMMAND\\fR [\\fIARGS\\fR]...]")
    yield ".SH DESCRIPTION"
    yield from _prose(cli.help or "")
    yield ".SH OPTIONS"
    yield from _options(cli, click.Context(cli, info_name="greenroom"))
    yield ".SH COMMANDS"


def _commands() -> Iterator[str]:
    root = click.Context(cli, info_name="greenroom")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        inner = list(command.commands.items()) if isinstance(command, click.Group) else []
        yield from _command(command, context)
        for part, one in inner:
            yield from _command(one, click.Context(one, info_name=part, parent=context))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_text(context.command_path)} {_text(usage)}"
    yield from _prose(command.help or "")
    yield from _options(command, context)
    if command.epilog:
        lines = command.epilog.replace("\b", "").strip().splitlines()
        yield from (".PP", ".nf", *map(_text, lines), ".fi")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None or not record[1] or "--help" in param.opts:
            continue
        yield from (".TP", f"\\fB{_text(record[0])}\\fR", *_lines(record[1]))


def _tail() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in exit_code_meanings().items():
        yield from (".TP", f"\\fB{code}\\fR", *_lines(meaning))
    yield ".SH FILES"
    for files, whose in _FILES:
        yield from (".TP", f"\\fI{_text(files)}\\fR", _text(whose))
    yield ".SH ENVIRONMENT"
    for names, said in VARIABLES["What commands print"].items():
        yield from (".TP", f"\\fB{_text(names)}\\fR", *_lines(said))


def _prose(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield from _lines(paragraph.replace("\b", ""))


def _lines(text: str) -> Iterator[str]:
    """The text in short lines, as `mandoc -Tlint` wants them and differences are read."""
    words = " ".join(text.split())
    yield from map(_text, textwrap.wrap(words, _WIDTH, break_long_words=False, break_on_hyphens=False))


def _text(text: str) -> str:
    """The text as roff prints it: a hyphen that is typed stays one, and no line is a request."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    safe = safe.replace("…", "...")
    return f"\\&{safe}" if safe.startswith(".") else safe


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
