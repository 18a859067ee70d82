"""`greenroom tape`: what is on a tape, as a story, as data or as spans."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import UNSET, UnsetType

from ..protocol.safe_text import counted, printable
from .exit_codes import FAILED
from .json_shapes import Shape, says
from .printing import say, show, show_json, tell
from .shared_options import json_option
from .text_wrapping import columns_of, on_terminal
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..tape.tape_reader import Tape


class TapedCallJson(Shape, kw_only=True):
    """A call on a tape."""

    number: Annotated[int, says("its number in the events")]
    at: Annotated[float, says("when it was accepted, from the beginning of the tape", "s")]
    seconds: Annotated[float, says("how long it took", "s")]
    waited: Annotated[float, says("of them before it was sent", "s")]
    server: Annotated[str, says("the server")]
    tool: Annotated[str | None, says("the name that was called; null: it is not a call of a tool")]
    method: Annotated[str, says("the method of the protocol")]
    params: Annotated[dict[str, Any], says("its parameters")]
    outcome: Annotated[str, says("`result`, `cancelled`, `open`, or the code of its error")]
    left_out: Annotated[
        dict[str, int] | UnsetType,
        says(
            "`params` or `result`, by size",
            "bytes",
            when="they were too large for a tape of the last minutes",
        ),
    ] = UNSET
    is_error: Annotated[bool, says("it is a result that the tool itself calls an error")]
    reach: Annotated[str, says("how far it got: `not_sent`, `sent`, `answered`")]
    session: Annotated[str | None, says("the session it came from; null: the room's own")]


class TapedJson(Shape, kw_only=True):
    """What is on a tape."""

    tape: Annotated[str, says("the file")]
    recorded_at: Annotated[float, says("when it began", "s")]
    greenroom: Annotated[str, says("the version that recorded it")]
    is_cut: Annotated[bool, says("its last line is not whole: the process was killed, or the disk was full")]
    is_ended: Annotated[bool, says("its recording was ended, and nothing is missing at its end")]
    servers: Annotated[list[str], says("the servers")]
    outcomes: Annotated[dict[str, int], says("by outcome", "calls")]
    calls: Annotated[list[TapedCallJson], says("in the order in which they were sent")]


class SpansSentJson(Shape, kw_only=True):
    """Spans of a tape that were sent to a collector, or written to a file."""

    otlp: Annotated[str, says("the URL or the file")]
    spans: Annotated[int, says("how many", "spans")]
    calls: Annotated[int, says("how many calls they are of", "calls")]


class TapeUseJson(Shape, kw_only=True):
    """What became of a tape in the runs that replayed it."""

    tape: Annotated[str, says("the file")]
    runs: Annotated[int, says("how many", "runs")]
    asked: Annotated[int, says("made in all of them", "calls")]
    met: Annotated[dict[str, int], says("answered from the tape: how often, by number")]
    ran: Annotated[dict[str, int], says("on the tape, and run by a live server: how often, by number")]
    unmet: Annotated[list[int], says("the numbers of those that no run made")]
    refused: Annotated[dict[str, int], says("not on the tape, and refused: how often, by their words")]
    lacked: Annotated[dict[str, int], says("not on the tape, and run by a live server: the same")]
    unread: Annotated[int, says("of the file that could not be read", "lines")]


@click.command("tape")
@click.argument("tape", type=click.Path(path_type=Path))
@click.option("--server", "servers", multiple=True, metavar="S", help="Only of this server; repeatable.")
@click.option("--session", "sessions", multiple=True, metavar="S", help="Only of this session; repeatable.")
@click.option("--failed", is_flag=True, help="Only calls that failed, and crashes.")
@click.option(
    "--since",
    type=float,
    metavar="SECONDS",
    help="Only from this second of the tape on; --since=-60: its last minute.",
)
@click.option(
    "--otlp",
    metavar="URL|FILE",
    help="Send the calls as spans to this collector instead, or write them to a file.",
)
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show instead which of its calls were made in the runs of greenroom replay --summary FILE. Exit code 1: "
    "a run made a call that is not on it.",
)
@click.option("--all", "is_all", is_flag=True, help="Show every line of a long tape.")
@json_option
def tape_command(
    tape: Path,
    servers: tuple[str, ...],
    sessions: tuple[str, ...],
    failed: bool,
    since: float | None,
    otlp: str | None,
    summary: Path | None,
    is_all: bool,
    as_json: bool,
) -> None:
    """Tell what is on TAPE: what servers did, what they were asked, and what they answered."""
    from ..tape import story
    from ..tape.tape_reader import read_tape
    from ..tape.tape_selection import selected

    read = selected(read_tape(tape), servers=servers, sessions=sessions, failed=failed, since=since)
    if summary is not None:
        _tell_use(read, summary, as_json)
        return
    if otlp is not None:
        _send_spans(read, otlp, as_json)
        return
    if as_json:
        show_json({"tape": os.path.abspath(tape), **story.as_json(read)}, TapedJson)
        return
    width = columns_of(sys.stdout) if on_terminal() else story.WIDTH
    for line in story.told(read, width, None if is_all else story.MOST):
        is_bad = "✗" in line and not os.environ.get("NO_COLOR")
        click.echo(click.style(line, fg="red") if is_bad and on_terminal() else line)
    tell(f"To replay it: {commands_typed().about('replay', os.fspath(tape))}")


def _tell_use(tape: Tape, summary: Path, as_json: bool) -> None:
    from ..tape.tape_use import read_use

    use = read_use(summary)
    if as_json:
        said = TapeUseJson(
            tape=os.path.abspath(tape.path),
            runs=use.runs,
            asked=use.asked,
            met={str(number): times for number, times in use.met.items()},
            ran={str(number): times for number, times in use.ran.items()},
            unmet=[call.n for call in use.unmet(tape)],
            refused=use.refused,
            lacked=use.lacked,
            unread=use.unread,
        )
        show_json(said)
    else:
        for line in use.in_words(tape):
            click.echo(printable(line))
    if use.refused:
        click.get_current_context().exit(FAILED)


def _send_spans(tape: Tape, to: str, as_json: bool) -> None:
    from ..observe.otlp import send_tape
    from ..tape.tape_lines import OPEN

    ended = sum(call.outcome != OPEN for call in tape.calls)
    said = SpansSentJson(otlp=to, spans=send_tape(tape, to), calls=ended)
    if ended and not said.spans:
        say("OTEL_SDK_DISABLED or OTEL_TRACES_SAMPLER left all of them out.")
    show(f"{counted(said.spans, 'span')} of {counted(said.calls, 'call')} went to {to}", said, as_json)
