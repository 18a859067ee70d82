"""`greenroom status`: what each server does now, in one line each; with `--watch` again and again.

A line ends with "…" at the edge of a window; in a pipe or a file, its notes are cut, too. `--output wide` has all.

Rejected: keys that decide about calls in what `--watch` shows. A key may be pressed for another call than the one that
was read, and what guarded against that was longer than all of `status`; `greenroom approve` names the call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from msgspec import UNSET, UnsetType

from ..gateway.doors.control_client import find_gateways
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import UNSET_VARIABLE, UsageError
from . import tables, text_wrapping
from .answer_sources import open_source
from .config_reading import place_in_entry, read_config
from .json_shapes import AddressJson, OriginJson, ServerJson, Shape, says
from .missing_servers import none_in_service, not_read
from .printing import show
from .shared_options import common_options
from .status_lines import STATES, around_servers, held_lines, overall, table_lines

if TYPE_CHECKING:
    from ..config.model import Config


class AuditJson(Shape, kw_only=True):
    """The [audit file](audit.md) of a gateway."""

    file: Annotated[str, says("its path")]
    failing: Annotated[bool, says("it cannot be written now")]
    missed: Annotated[int, says("calls that could not be written", "calls")]


class AttachedJson(Shape, kw_only=True):
    """A client of the background gateway."""

    pid: Annotated[int, says("the process of its `greenroom attach`")]
    name: Annotated[str | None, says("what it calls itself; null: it has not said so yet")]
    expose: Annotated[str | None, says("what it sees: `proxy`, `direct`, `meta`; null: as the room")]
    profile: Annotated[str | None, says("its profile")]
    in_flight: Annotated[int, says("its requests without an answer", "requests")]
    seconds: Annotated[float, says("how long it has been attached", "s")]


class BackgroundJson(Shape, kw_only=True):
    """The background gateway."""

    pid: Annotated[int, says("its process")]
    version: Annotated[str, says("its version of Greenroom")]
    clients: Annotated[list[AttachedJson], says("who is attached")]


class HttpClientJson(Shape, kw_only=True):
    """A session over HTTP."""

    session: Annotated[str, says("its name in events and logs; it is not the session's id")]
    name: Annotated[str | None, says("what the client calls itself")]
    silent_seconds: Annotated[float, says("since its last message", "s")]
    in_flight: Annotated[int, says("its open requests", "requests")]
    listening: Annotated[bool, says("it has an event stream open")]
    ends_in_seconds: Annotated[
        float | None, says("until it ends without another message; null: not now", "s")
    ]


class HeldCallsJson(Shape, kw_only=True):
    """Calls that wait, and for what."""

    what: Annotated[str, says("how many calls wait, and for what")]
    step: Annotated[str, says("what to do")]
    calls: Annotated[int, says("calls that wait", "calls")]
    servers: Annotated[list[str], says("whose calls they are, at most 10")]
    by: Annotated[list[str], says("who has what they wait for, at most 10, the busy ones first")]
    holders: Annotated[int, says("how many have it")]


class StatusJson(OriginJson, kw_only=True):
    """How the servers are."""

    mode: Annotated[Literal["status"], says("what was asked for")]
    servers: Annotated[list[ServerJson], says("in the order of the configuration")]
    total_tools: Annotated[int, says("of all servers that are not disabled", "tools")]
    total_resources: Annotated[
        int | UnsetType, says("theirs that are offered as tools", "resources", when="there are any")
    ] = UNSET
    connected_count: Annotated[int, says("servers that are connected", "servers")]
    disabled_count: Annotated[int, says("servers that are disabled", "servers")]
    addresses: Annotated[
        list[AddressJson] | UnsetType, says("the addresses of sessions and calls", when="there are any")
    ] = UNSET
    waiting_for_approval: Annotated[
        int | UnsetType, says("calls that wait for a person's yes", "calls", when="a gateway answered")
    ] = UNSET
    held: Annotated[list[HeldCallsJson] | UnsetType, says("what holds calls now", when="anything does")] = (
        UNSET
    )
    audit: Annotated[AuditJson | UnsetType, says("its audit file", when="the gateway writes one")] = UNSET
    not_reloaded: Annotated[
        str | UnsetType,
        says("why", when="a file of the configuration has changed, and the one before is still in use"),
    ] = UNSET
    background: Annotated[
        BackgroundJson | UnsetType,
        says("the room and its clients", when="the gateway is the background gateway"),
    ] = UNSET
    clients: Annotated[
        list[HttpClientJson] | UnsetType, says("the sessions over HTTP", when="the gateway serves HTTP")
    ] = UNSET


_WIDTH = max(map(len, STATES))
_HELP = """\
Show the configured servers and what each of them does now.

There is a line for each, those that failed first. A long line is cut, except with --output wide. The words below
STATE:

\b
{words}

With --watch, calls that wait for a person's yes are shown, too. To decide about them: greenroom approve
""".format(words="\n".join(f"{word:<{_WIDTH}}  {meaning}" for word, meaning in STATES.items()))


@click.command("status", help=_HELP)
@click.option(
    "--output",
    "-o",
    type=click.Choice(["wide"]),
    help="wide: uncut, and also calls, incarnation, memory and process.",
)
@click.option("--watch", "-w", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: seconds between two looks.",
)
@common_options
def status_command(
    output: str | None,
    watch: bool,
    every: float,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> None:
    config = read_config(config_path)
    if watch:
        if as_json or not text_wrapping.on_terminal():
            raise UsageError(
                "--watch needs a terminal. In a script, ask again and again: greenroom status --json"
            )
        from .status_watch import watch_status

        watch_status(config, pid, every, is_wide=output == "wide")
        return
    source = open_source(config_path, pid, config)
    details = source.status()
    if not details["servers"] and pid is None:
        none = [*none_in_service(config)] or ["No servers are configured."]
        lines = [*none, *not_read(config), *around_servers(details)]
    else:
        shown = {**details, "servers": [_with_unset(row, config) for row in details["servers"]]}
        lines = [*held_lines(details), *_painted(shown, is_wide=output == "wide"), "", *overall(details)]
        lines += _other_gateways(config, source.origin) if pid is None and not as_json else ()
    if as_json or not text_wrapping.on_terminal():
        show("\n".join(lines), {**details, **source.origin}, as_json, StatusJson)
    else:
        for line in lines:
            click.echo(line if "\x1b" in line else tables.prose(line, text_wrapping.columns_of(sys.stdout)))


def _with_unset(row: Mapping[str, Any], config: Config) -> Mapping[str, Any]:
    """The row, with the places of its entry that refer to a variable that is not set where the command runs."""
    unset = (one for one in config.problems if one.code == UNSET_VARIABLE)
    places = [inside for one in unset if (inside := place_in_entry(one, row["name"])) is not None]
    return {**row, "unset": places} if places else row


def _other_gateways(config: Config, origin: Mapping[str, Any]) -> Iterator[str]:
    """The other gateways of this configuration than the one that has answered."""
    if origin["source"] == "gateway":
        for gateway in find_gateways(name_of(config), lambda _: None, (origin["pid"],)):
            gateway.connection.close()
            yield f"another gateway of this configuration runs: greenroom status --pid {gateway.pid}"


def _painted(details: Mapping[str, Any], *, is_wide: bool) -> Iterator[str]:
    """The lines of the table, cut at the edge of the window unless `is_wide`, and with colours where there is one."""
    if not details["servers"]:
        yield "No servers are configured."
        return
    width = text_wrapping.columns_of(sys.stdout) if text_wrapping.on_terminal() else None
    is_plain = width is None or bool(os.environ.get("NO_COLOR"))
    for mark, line in table_lines(details, None if is_wide else width, is_wide=is_wide):
        yield line if is_plain else click.style(line, **tables.STYLES.get(mark, {}))
