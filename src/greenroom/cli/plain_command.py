"""A command that is mostly read without click, because with click a gateway starts later and is larger (`cli.main`).

Its options stand in a table. Click makes its command of it, with its help, its errors and what a shell completes; and
words that are plainly right are read by the table alone. Words are plain if each option is known, comes once and has
a value that fits. Whatever else is typed (a flag, `--help`, a slip) is left to click, so this reads nothing in its own
way and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .typed_options import remember

if TYPE_CHECKING:
    import click


_LONGEST: Final = 9  # digits that are read here


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option; `name` begins with `--`. `takes`: a type, `bool` for a flag, or the words of which one has to be
    given. `least`: the lowest number. `bare`: what the option means without a value; None: it needs one. `parameter`:
    as what the value is handed over, if not by the name. `of_all`: the next command has to be given it again.
    `complete`: what a shell may complete it to."""

    name: str
    takes: type[str | Path | int | bool] | tuple[str, ...] = str
    help: str
    metavar: str | None = None
    default: str | None = None
    least: int | None = None
    bare: str | None = None
    hidden: bool = False
    parameter: str = ""
    of_all: bool = False
    complete: Callable[..., list[str]] | None = None

    @property
    def argument(self) -> str:
        return self.parameter or self.name.removeprefix("--").replace("-", "_")

    def read(self, text: str) -> str | Path | int | None:
        """The value that click would make of this text; None: that is for click to say."""
        if self.bare is not None and text.startswith("-"):
            return None  # behind a `=` too, click takes it for the next option
        if isinstance(self.takes, tuple):
            return text if text in self.takes else None
        if self.takes is int:
            is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST
            return int(text) if is_number and int(text) >= (self.least or 0) else None
        return self.takes(text) if text and self.takes is not bool else None

    def of_click(self) -> dict[str, Any]:
        """What click is told of it, beside its name and the argument."""
        import click

        told: dict[str, Any] = {"help": self.help, "metavar": self.metavar, "hidden": self.hidden}
        if isinstance(self.takes, tuple):
            told["type"] = click.Choice(self.takes)
        elif self.takes is bool:
            told["is_flag"] = True
        elif self.takes is Path:
            told["type"] = click.Path(path_type=Path, readable=False)  # who opens it says what is wrong
        elif self.least is not None:
            told["type"] = click.IntRange(self.least)
        else:
            told["type"] = self.takes
        if self.default is not None:
            told |= {"default": self.default, "show_default": True}
        if self.bare is not None:
            told |= {"is_flag": False, "flag_value": self.bare}
        if self.complete is not None:
            told["shell_complete"] = self.complete
        if self.of_all:
            told |= {"callback": _remembered, "is_eager": True}
        return told


def _remembered(_context: click.Context, option: click.Parameter, value: Any) -> Any:
    remember(option.name or "", value)
    return value


class PlainCommand(msgspec.Struct, frozen=True):
    """A command by its `options`. `does` is called with the value of each; its docstring is the command's help."""

    name: str
    options: tuple[Option, ...]
    does: Callable[..., object]

    def plainly(self, words: Sequence[str]) -> Callable[[], object] | None:
        """What runs the command with these words; None: they are not plain."""
        given = self.read(words)
        if given is None:
            return None
        for option in self.options:
            if option.of_all:
                remember(option.name.removeprefix("--"), given[option.argument])
        return partial(self.does, **given)

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The arguments that these words give; None: they are not plain."""
        options = {option.name: option for option in self.options}
        given: dict[str, Any] = {
            option.argument: False if option.takes is bool else option.default for option in self.options
        }
        for name, text in _pairs(words):
            option = options.pop(name, None)
            value = None if option is None or text is None else option.read(text)
            if option is None or value is None:
                return None
            given[option.argument] = value
        return given

    def of_click(self) -> click.Command:
        """The same command for click."""
        import click

        params = [
            click.Option([option.name, option.argument], **option.of_click()) for option in self.options
        ]
        return click.Command(
            self.name, callback=self.does, params=[*params], help=cleandoc(self.does.__doc__ or "")
        )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option with the value behind it, or behind its `=`; with None if a value may be missing."""
    left = iter(words)
    for word in left:
        name, equals, text = word.partition("=")
        if equals:
            yield name, text
            continue
        value = next(left, "-")
        yield name, None if value.startswith("-") else value
