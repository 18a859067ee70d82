"""`greenroom replay`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..config.model import EXPOSURES
from ..gateway.next_steps import Commands
from ..protocol.safe_text import counted, printable
from .config_reading import read_config
from .printing import say
from .serve_command import address_in, check_start, run_gateway, say_who_comes
from .shared_options import config_option, names_in, record_options, recording_in

if TYPE_CHECKING:
    from ..config.model import Config
    from ..supervisor.room import Greenroom

_TOLD: Final = 50  # refused calls, and differences
_tape_argument = click.argument("tape", type=click.Path(path_type=Path))


@click.command("replay")
@_tape_argument
@click.option("--lenient", is_flag=True, help="Let a recorded call answer more than once.")
@click.option("--ignore", metavar="NAMES", help="Keys of arguments whose values may differ, as in time,id.")
@click.option(
    "--by-order", is_flag=True, help="If no call has these arguments, answer with the next one of the tool."
)
@click.option(
    "--nearest",
    type=click.FloatRange(0, 1),
    metavar="SIMILARITY",
    help="If no call has these arguments, answer with the most similar one, if it is at least so similar (0 to 1).",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="FAULT",
    help="Let this go wrong, as in 'github call 7: crash after sent'. May be given again.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Calls time out after this many seconds.  [default: as was configured]",
)
@click.option(
    "--live",
    multiple=True,
    metavar="SERVER",
    help="Start this server of your configuration, and send it the calls that may change something and those that "
    "TAPE lacks. Repeatable.",
)
@click.option("--per-session", is_flag=True, help="Let each client have TAPE to itself, from its beginning.")
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Add a line to FILE: which calls of TAPE were made. greenroom tape TAPE --summary FILE reads it.",
)
@config_option
@click.option("--as-recorded", is_flag=True, help="Take as long for each answer as was recorded.")
@click.option(
    "--expose",
    type=click.Choice(EXPOSURES),
    default="proxy",
    show_default=True,
    help="What clients see: give the one with which the tape was recorded.",
)
@click.option("--profile", metavar="P", help="Show clients only what this profile has.")
@click.option("--http", metavar="HOST:PORT", help="Serve Streamable HTTP there, at /mcp, instead of stdio.")
@record_options
def replay_command(
    tape: Path,
    lenient: bool,
    ignore: str | None,
    by_order: bool,
    nearest: float | None,
    faults: tuple[str, ...],
    call_timeout: float | None,
    live: tuple[str, ...],
    per_session: bool,
    summary: Path | None,
    config_path: Path | None,
    as_recorded: bool,
    expose: str,
    profile: str | None,
    http: str | None,
    record: Path | None,
    redact: str | None,
) -> None:
    """Serve the servers on TAPE to an MCP client, on standard input and output or over HTTP: the same tools, the same
    answers. Nothing is started and nothing else is asked, except the servers that --live names. At the end it lists
    the calls that are not on TAPE."""
    if http is None:
        check_start("replay")
    from ..gateway.serve import HttpOptions, Options, serve, serve_http
    from ..protocol.version import VERSION
    from ..supervisor.room import Greenroom

    if summary is not None:
        from ..tape.tape_use import check_use

        check_use(summary)
    room = Greenroom.replay(
        tape,
        strict=not lenient,
        ignore=names_in(ignore),
        by_order=by_order,
        nearest=nearest,
        pace="recorded" if as_recorded else "at once",
        faults=faults,
        call_timeout=call_timeout,
        per_session=per_session,
        live=live,
        config=read_config(config_path) if live else None,
        bootstrap=True,
        **recording_in(record, redact),
    )

    def open_room(_config: Config) -> Greenroom:
        return room

    replayed = room.tape
    assert replayed is not None
    calls = counted(len(replayed.tape.calls), "recorded call")
    called = dict.fromkeys(call.server for call in replayed.tape.calls)
    servers = ", ".join(called or replayed.tape.servers)
    started = f"only {', '.join(live)} may be started" if live else "nothing is started"
    say(
        printable(f"replaying {tape.name}: {calls}{f' of {servers}' if servers else ''}; {started}"),
        ours=False,
    )
    played = {name: bool(replayed.tape.listed_of(name)) for name in replayed.tape.servers if name not in live}
    if lacking := [name for name, known in played.items() if not known]:
        say(printable(f"never connected on this tape: {', '.join(lacking)}"), ours=False)
    options = Options(expose=expose, profile=profile, version=VERSION, commands=Commands(), played=played)
    if http is None:
        say_who_comes("replay")
        run_gateway(partial(serve, room.config, open_room, options))
    else:
        listen = HttpOptions(*address_in(http), profile=profile)
        run_gateway(partial(serve_http, room.config, open_room, options, listen))
    _account(room)
    if summary is not None:
        from ..tape.tape_use import append_use

        append_use(summary, replayed.summary)


def _account(room: Greenroom) -> None:
    """Tell what was not as on the tape."""
    played = room.tape
    assert played is not None
    for told, of in (
        (played.refusals, "calls that are not on the tape"),
        (played.differences, "differences"),
    ):
        for each in told[:_TOLD]:
            say(printable(each), ours=False)
        if len(told) > _TOLD:
            say(f"and {len(told) - _TOLD} more {of}")
    for words, times in played.summary.lacked.items():
        say(printable(f"not on the tape, and run: {words} ({counted(times, 'time')})"), ours=False)
    for fault in played.unplayed:
        say(f"this fault did not happen: {fault}")
    if played.left:
        were, all_of = "was" if played.left == 1 else "were", len(played.tape.calls)
        left = "The only call" if all_of == 1 else f"{played.left} of the {counted(all_of, 'call')}"
        say(f"{left} on the tape {were} not made.")
