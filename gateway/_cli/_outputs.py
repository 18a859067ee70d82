"""`greenroom outputs`: the files of long output. It asks no gateway: all gateways of a user share the directory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ...protocol.errors import UsageError
from ...protocol.plain_text import one_line
from ._common import say, show

if TYPE_CHECKING:
    from . import _shapes as shapes


@click.command("outputs")
@click.option("--clear", is_flag=True, help="Remove all of them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def outputs_command(clear: bool, as_json: bool) -> None:
    """List the files that keep what did not fit an answer: long text, binary content, structured content.

    They are removed by age and by size (`outputGuard.keepHours`, `outputGuard.keepBytes`).
    """
    from .._mcp_tool import Spill

    spill = Spill()
    if clear:
        try:
            count = spill.clear()
        except OSError as error:
            raise UsageError(f"{spill.directory} cannot be cleared: {error.strerror or error}") from None
        what = "1 file was" if count == 1 else f"{count} files were"
        cleared: shapes.Cleared = {"removed": count}
        show(f"{what} removed.", cleared, as_json)
        return
    files, now = spill.kept(), time.time()
    rows: list[shapes.Output] = [
        {"id": file.id, "path": str(file.path), "bytes": file.size, "ageSeconds": max(0.0, now - file.stamp)}
        for file in files
    ]
    total = sum(file.size for file in files)
    details: shapes.Outputs = {"directory": str(spill.directory), "outputs": rows, "bytes": total}
    if not rows and not as_json:
        say(f"there are none in {spill.directory}.")
        return
    lines = [
        f"{row['bytes']:>12,} bytes  {_age(row['ageSeconds']):>6}  {one_line(row['path'])}" for row in rows
    ]
    show("\n".join([*lines, "", f"{len(rows)} in all, {total:,} bytes"]), details, as_json)


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
