"""The pages of commands, from what `--help` is made of: one that names them in their groups, one for each with its
options and what it prints with `--json`, and one of the JSON that several print."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from greenroom.cli import exit_codes
from greenroom.cli.command_group import GROUPS, cli

from . import shapes
from .markdown import page, table

WIDTH: Final = 200
RULES: Final = """\
With `--json` a command prints one JSON document on stdout and nothing else there; messages stay on stderr. (`greenroom
logs --follow` has a document on each line, and `greenroom config` always prints JSON.)

- New versions may add fields: ignore those that you do not know. What a field means does not change.
- A field is always there, unless its line says when. `null` stands for "unknown" or "none", as its line says.
- An `object of X` has names of its own, each with an X. An `object` alone has what somebody else put there (a schema,
  an entry).
- Times are seconds if the unit says nothing else, and moments are seconds since 1970. Names of files are whole paths.
- The exit code is that of the command without `--json`: 1 says that the call or the check failed, and the document says
  why. If stdout is empty, the command could not do what it was asked, and stderr says why: with 2 for wrong options, an
  unusable configuration or an unknown server, with 1 for what else is in the way (no gateway runs for `approve` or
  `reconnect`, a login failed)."""
_EXIT: Final = re.compile(r"^[A-Z]+: Final = (\d+)(?:  # (.*))?$", re.MULTILINE)


def exit_code_meanings() -> Mapping[int, str]:
    """What each exit code means, from the comment behind it."""
    said = {int(code): words or "done" for code, words in _EXIT.findall(inspect.getsource(exit_codes))}
    assert said.keys() == {code for name, code in vars(exit_codes).items() if name.isupper()}, said
    return said


def command_pages() -> Mapping[str, str]:
    """The pages by their names, the one that leads to them first."""
    root = click.Context(cli, info_name="greenroom", max_content_width=WIDTH)
    pages: dict[str, str] = {}
    parts: list[str] = []
    for group, commands in GROUPS.items():
        parts += [
            f"## {group}",
            table(("command", "what it does"), [(_link(name), line) for name, (_, line) in commands.items()]),
        ]
        for name in commands:
            command = cli.get_command(root, name)
            assert command is not None
            own = click.Context(command, parent=root, info_name=name)
            pages[f"commands/{name}.md"] = page(*_command(command, own, "#"), *shapes.told(name))
    parts += [
        "## Exit codes",
        table(
            ("code", "meaning"),
            [(str(code), said) for code, said in exit_code_meanings().items()],
        ),
    ]
    head = page(
        "# Commands",
        "Each command has a page with its options, as in `--help`, and the fields of its `--json`. "
        "[The command line](../cli.md) shows them in use.",
        table(
            ("command", "what it does"),
            [
                (_link("greenroom"), "Show your set-up and the next step."),
                ("[`--json`](commands/json.md)", "What all output of `--json` has in common."),
            ],
        ),
        *parts,
    )
    alone = (
        "# greenroom",
        "    greenroom [OPTIONS]",
        "Without a command, it shows your set-up and the next step.",
        _options(cli, root),
    )
    return {
        "commands.md": head,
        "commands/greenroom.md": page(*alone, *shapes.told("greenroom")),
        **pages,
        "commands/json.md": page(
            "# The JSON of commands", RULES, "## What several commands print", *shapes.shapes_told("json")
        ),
    }


def _link(name: str) -> str:
    return f"[`{name}`](commands/{name}.md)"


def _command(command: click.Command, context: click.Context, level: str) -> Iterator[str]:
    yield f"{level} {context.command_path}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"    {context.command_path} {usage}"
    yield from _paragraphs(command.help or command.short_help or "")
    options = _options(command, context)
    if options:
        yield options
    yield from _paragraphs(command.epilog or "")
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
