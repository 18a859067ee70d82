"""A command with commands of its own, such as `greenroom audit`."""

from __future__ import annotations

import click

from ..protocol.safe_text import one_line

_LONGEST = 100  # characters of a word that is said again


class Subcommands(click.Group):
    """Says which commands it has when none of them was typed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            ways = ", ".join(f"greenroom {self.name} {each}" for each in sorted(self.commands))
            what = f'There is no "greenroom {self.name} {one_line(args[0], _LONGEST)}".'
            raise click.UsageError(f"{what} There is: {ways}", ctx)
        return super().resolve_command(ctx, args)
