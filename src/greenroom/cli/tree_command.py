"""`greenroom tree`: the room as a tree, from its supervisor to each session, with what holds it and what comes next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import click
import msgspec

from ..protocol.errors import UsageError
from ..protocol.tree import TreeNode, tree_lines
from . import tables, text_wrapping
from .answer_sources import open_source
from .config_reading import read_config
from .json_shapes import OriginJson, Shape, says
from .printing import show
from .shared_options import common_options
from .typed_options import commands_typed

_MOST: Final = 20  # sessions and calls of one server that are shown


class DeadlineJson(Shape, kw_only=True):
    """What time alone will do."""

    what: Annotated[
        str,
        says(
            "`idle eviction`, `backoff over`, `half-open`, `connect timeout`, `call timeout`, `queue timeout`, "
            "`slot wait over`, `drain over`, `next try` (to read what it has), `the pool decides again`"
        ),
    ]
    seconds: Annotated[float, says("until then", "s")]


class TreeBoundJson(Shape, kw_only=True):
    """How much is held of something bounded."""

    name: Annotated[str, says("the key of the configuration that bounds it")]
    held: Annotated[int, says("how much is held")]
    most: Annotated[int, says("how much there is")]


class TreeNodeJson(Shape, kw_only=True):
    """A room, its supervisor, a server (with its shared connection), or a connection of a session or a call."""

    kind: Annotated[
        Literal["room", "supervisor", "server", "connection", "session", "call"], says("what it is")
    ]
    name: Annotated[str, says("its name")]
    state: Annotated[
        str,
        says(
            "the word that [`greenroom status`](reference/commands/status.md) has for it; of a room `open`, "
            "`closing`, `not running`"
        ),
    ]
    incarnation: Annotated[
        int, says("its number: the first is 1; of what is not connected that of the next; 0: what has none")
    ]
    in_flight: Annotated[int, says("calls without an answer, here and below", "calls")]
    queued: Annotated[int, says("calls that wait to be sent, here and below", "calls")]
    oldest_wait: Annotated[
        float | None, says("of all that waits for a connection, here and below; null: nothing does", "s")
    ]
    waits_for: Annotated[str | None, says("what its start waits for: `breaker`, `slot`, `permit` …")]
    breaker: Annotated[str | None, says("its circuit breaker: `open`, `half-open`; null: it is closed")]
    restarts_left: Annotated[
        int | None, says("restarts until it counts as restarted too often; null: it has no count", "restarts")
    ]
    next: Annotated[DeadlineJson | None, says("what time alone will do here first")]
    bounds: Annotated[list[TreeBoundJson], says("what is bounded here")]
    children: Annotated[list[TreeNodeJson], says("what is below")]


class TreeJson(OriginJson, kw_only=True):
    """The room as a tree."""

    tree: Annotated[TreeNodeJson, says("the room")]


@click.command("tree")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart.")
@common_options
def tree_command(mermaid: bool, config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Show what runs as a tree: the supervisor, servers, and their sessions.

    Each line has the state, the calls in flight and queued, how long the oldest has waited, the circuit breaker, the
    restarts that are left, and what happens next by itself.
    """
    if mermaid and as_json:
        raise UsageError("--json and --mermaid are two forms of the same. Choose one.")
    source = open_source(config_path, pid, read_config(config_path))
    said = source.tree()
    tree = msgspec.convert(said["tree"], TreeNode)
    if mermaid:
        click.echo(tree.mermaid())
        return
    lines = tree_lines(tree, _MOST)
    if as_json or not text_wrapping.on_terminal():
        show("\n".join(lines), {**said, **source.origin}, as_json, TreeJson)
        return
    width = text_wrapping.columns_of(sys.stdout)
    for line in lines:
        click.echo(tables.cut(commands_typed().filled(line), width))
