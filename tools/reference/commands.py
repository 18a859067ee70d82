"""The page of commands, from what `--help` is made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import click

from greenroom.cli import exit_codes
from greenroom.cli.main import COMMANDS, cli

from .markdown import page, table

WIDTH: Final = 200
_EXIT: Final = re.compile(r"^[A-Z]+: Final = (\d+)(?:  # (.*))?$", re.MULTILINE)


def command_page() -> str:
    """Every command in the order of `greenroom --help`, with its own commands after it."""
    root = click.Context(cli, info_name="greenroom", max_content_width=WIDTH)
    sections: list[str] = []
    rows: list[tuple[str, str]] = []
    for name, (_, _, line) in COMMANDS.items():
        command = cli.get_command(root, name)
        assert command is not None
        rows.append((f"[`{name}`](#greenroom-{name})", line))
        sections += _command(command, click.Context(command, parent=root, info_name=name), "##")
    return page(
        "# Commands",
        "Every command with its options, as `--help` has them. [The command line](../cli.md) explains them in use; "
        "[the JSON of commands](../json.md) has what `--json` prints.",
        table(("command", "what it does"), rows),
        "## Options of `greenroom` itself",
        _options(cli, root),
        "## Exit codes",
        table(
            ("code", "meaning"),
            [(code, said or "done") for code, said in _EXIT.findall(inspect.getsource(exit_codes))],
        ),
        *sections,
    )


def _command(command: click.Command, context: click.Context, level: str) -> Iterator[str]:
    yield f"{level} {context.command_path}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"    {context.command_path} {usage}"
    yield from _paragraphs(command.help or command.short_help or "")
    options = _options(command, context)
    if options:
        yield options
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, click.Context(inner, parent=context, info_name=name), level + "#")


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; one that click leaves as it is written (marked by `\\b`) is a block of text."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.splitlines()
        if lines and lines[0].strip() == "\b":
            yield "\n".join(["```text", *lines[1:], "```"])
        elif part.strip():
            yield _plain(" ".join(part.split()))


def _plain(text: str) -> str:
    """Characters that Markdown would read."""
    return re.sub(r"([*_<])", r"\\\1", text)


def _options(command: click.Command, context: click.Context) -> str:
    rows: list[tuple[str, str]] = []
    for each in command.get_params(context):
        record: Any = each.get_help_record(context)
        if record is not None and "--help" not in each.opts and record[1]:
            rows.append((f"`{record[0]}`", _plain(" ".join(record[1].split()))))
    return table(("option", "meaning"), rows) if rows else ""
