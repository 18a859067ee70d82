"""`greenroom diff`: two tapes side by side, or a tape and the servers as they are now.

It is told as a text diff is: a mark, the number of the call on each side, what was called, and below it the parts that
differ. At a terminal each line is cut to the window and coloured by its mark; anywhere else the width is fixed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click

from ..gateway.next_steps import Commands
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, one_line
from .config_reading import read_config
from .exit_codes import ENDED, FAILED, OK
from .interruption import run_to_end, until_told
from .json_shapes import Shape, says
from .printing import say, show_json
from .shared_options import json_option, names_in, record_options, recording_in
from .text_wrapping import columns_of, on_terminal, wrap
from .typed_options import commands_typed, remember

if TYPE_CHECKING:
    from ..config.model import Config
    from ..tape.tape_comparison import (
        CallDifference,
        Change,
        Comparison,
        ComparisonPlan,
        DefinitionDifference,
        Times,
    )


class ChangedJson(Shape, kw_only=True):
    """A part of an answer, of arguments or of a definition that differs."""

    path: Annotated[str, says("where it is, such as `content[0].text`; empty: all of it")]
    before: Annotated[str | None, says("the beginning of its JSON before; null: it was not there")]
    after: Annotated[str | None, says("the same after")]


class DifferentDefinitionJson(Shape, kw_only=True):
    """What a server lists, or says of itself, and that differs."""

    kind: Annotated[
        Literal["tool", "prompt", "resource", "template", "skill", "server"],
        says("what it is; `server`: the server itself"),
    ]
    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the server's own name or URI for it")]
    what: Annotated[
        Literal["gone", "new", "changed", "unreachable"],
        says("what became of it; `unreachable`: the server could not be asked"),
    ]
    changes: Annotated[list[ChangedJson], says("what has changed of it")]
    more_changes: Annotated[int, says("how many further changes are not named", "changes")]
    why: Annotated[str | None, says("why not; null: it could")]


class DifferentCallJson(Shape, kw_only=True):
    """A call that differs."""

    what: Annotated[
        Literal["answer", "outcome", "arguments", "order", "added", "left_out"],
        says("what differs; `outcome`: such as an error in place of an answer"),
    ]
    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the tool as it was called, or the method and what it is about")]
    arguments: Annotated[str, says("the beginning of its arguments as JSON")]
    before: Annotated[int | None, says("its number on the tape; null: it is not there")]
    after: Annotated[
        int | None, says("its number on the other tape; null: it is not there, or there is none")
    ]
    outcome_before: Annotated[
        str | None, says("`answer`, `tool_error` or the code of an error; null: no question of the outcome")
    ]
    outcome_after: Annotated[str | None, says("the same after")]
    changes: Annotated[list[ChangedJson], says("what differs of its answer or arguments")]
    more_changes: Annotated[int, says("how many further changes are not named", "changes")]
    behind: Annotated[
        int | None,
        says("an earlier call that was not made again, for which the answer may differ; null: there is none"),
    ]
    why: Annotated[
        str | None,
        says("why it failed, and what to do; null: it did not, or the server says why in `changes`"),
    ]


class ToolTimesJson(Shape, kw_only=True):
    """How long calls of a tool took, by the medians."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the tool as it was called")]
    calls: Annotated[int, says("that were answered before and after", "calls")]
    before: Annotated[float, says("from being sent to the answer", "s")]
    after: Annotated[float, says("the same after", "s")]
    slower: Annotated[bool, says("it is a difference (`--slower`)")]


class OtherVersionJson(Shape, kw_only=True):
    """A server that says another version of itself, which alone is no difference."""

    server: Annotated[str, says("the server")]
    before: Annotated[str, says("its version before")]
    after: Annotated[str, says("its version after")]


class LeftCallsJson(Shape, kw_only=True):
    """Calls on the tape that were not made again."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the tool as it was called, or the method and what it is about")]
    why: Annotated[str, says("why not")]
    calls: Annotated[int, says("how many", "calls")]


class DifferenceJson(Shape, kw_only=True):
    """What differs between two tapes, or between a tape and the servers as they are now."""

    tape: Annotated[str, says("the first file")]
    kept: Annotated[str | None, says("the tape of what the servers answer now; null: without `--record`")]
    same: Annotated[bool, says("nothing differs; the exit code is 0 then, else 1")]
    calls_the_same: Annotated[int, says("that are the same", "calls")]
    definitions: Annotated[list[DifferentDefinitionJson], says("what servers list or say otherwise")]
    calls: Annotated[list[DifferentCallJson], says("the calls that differ, in their order")]
    times: Annotated[list[ToolTimesJson], says("how long calls took")]
    versions: Annotated[list[OtherVersionJson], says("servers of another version")]
    not_sent: Annotated[list[LeftCallsJson], says("calls that were not made again, with `--against`")]


_WIDE: Final = 200  # columns where there is no window
_TOLD: Final = 200  # differences of each kind; --json has all
_SLOWER: Final = 2.0  # from which factor on slowness is told, if nobody says
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow", ">": "cyan"}
_MARKS: Final = {"added": "+", "left_out": "-", "order": ">", "new": "+", "gone": "-"}
_WORDS: Final = {
    "answer": "other answer",
    "arguments": "other arguments",
    "order": "in another order",
    "added": "added",
    "left_out": "left out",
}
_COUNTED: Final = {
    "answer": "{}",
    "outcome": "{}",
    "arguments": "{} with other arguments",
    "order": "{} in another order",
    "added": "{} added",
    "left_out": "{} left out",
}
_NOUNS: Final = {"answer": "answer", "outcome": "outcome"}


@click.command("diff")
@click.argument("tape", type=click.Path(path_type=Path))
@click.argument("others", nargs=-1, metavar="[TAPE | SERVER...]")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Ask the servers of this configuration again, or of the one that is in effect in a folder, as in --against .",
)
@click.option("--ignore", metavar="NAMES", help="Keys of answers whose values may differ, as in time,id.")
@click.option(
    "--slower",
    type=click.FloatRange(1),
    metavar="FACTOR",
    help="A tool whose calls take this many times as long (the median) is a difference.",
)
@click.option(
    "--reads",
    metavar="TOOLS",
    help="With --against: tools that only read, though their servers do not say so, as in shop_look.",
)
@click.option(
    "--only", metavar="TOOLS", help="With --against: call only these tools, even if they change something."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="With --against: how long a call may take after it is sent.",
)
@click.option(
    "--roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="With --against: a root that servers are told of, instead of those on the tape. May be given again.",
)
@click.option("--yes", is_flag=True, help="With --against: allow the calls that somebody has to allow.")
@record_options
@json_option
def diff_command(
    tape: Path,
    others: tuple[str, ...],
    against: Path | None,
    ignore: str | None,
    slower: float | None,
    reads: str | None,
    only: str | None,
    timeout: float | None,
    roots: tuple[Path, ...],
    yes: bool,
    record: Path | None,
    redact: str | None,
    as_json: bool,
) -> int:
    """Show what differs between TAPE and another TAPE: calls that an agent added, left out, or made with other
    arguments or in another order, and what it was answered.

    With --against: between TAPE and the servers as they are now. The recorded calls that only read, as their tools say
    on the tape and now, are made again, in a room of the command's own, which --record records. Exit code 1: something
    differs.
    """
    if against is None:
        stray = {
            "--reads": reads,
            "--only": only,
            "--timeout": timeout,
            "--roots": roots or None,
            "--yes": yes or None,
            "--record": record,
            "--redact": redact,
        }
        for option, value in stray.items():
            if value is not None:
                raise UsageError(f"{option} is for --against CONFIG. Add that, or leave it out.")
        if len(others) != 1:
            text = "Name a second tape to compare this one with, or servers as they are now: --against CONFIG"
            raise UsageError(text)
        if others[0].endswith(".json"):
            raise UsageError(f"{others[0]} is not a tape. To compare with its servers: --against {others[0]}")
        from ..tape.tape_comparison import compare_tapes

        found = compare_tapes(tape, others[0], ignore=names_in(ignore), slower=slower)
    else:
        config = _config_at(against)
        options: dict[str, Any] = {"servers": others, "ignore": names_in(ignore), "reads": names_in(reads)}
        options |= {"only": None if only is None else names_in(only), "slower": slower, "timeout": timeout}
        options |= recording_in(record, redact) | ({"roots": roots} if roots else {})
        now = run_to_end(partial(until_told, partial(_compared_now, tape, config, options, yes)))
        if now is None:
            return ENDED
        found = now
    if found.kept is not None:
        say(f"recorded. To see it: {Commands().about('tape', os.fspath(found.kept))}")
    if as_json:
        show_json(_as_json(tape, found))
    else:
        _print(list(_told(found, is_now=against is not None)))
    return OK if found.is_same else FAILED


def _config_at(place: Path) -> Config:
    """The configuration in this file, or of this folder. Next steps name it from now on."""
    if place.is_dir():
        return read_config(None, folder=place.resolve())
    remember("config", place)
    return read_config(place)


async def _compared_now(tape: Path, config: Config, options: dict[str, Any], yes: bool) -> Comparison:
    from ..gateway.control_methods import allowing
    from ..tape.server_comparison import compare_servers
    from .call_command import patient

    if yes:
        options["on_approval"] = allowing
    return await compare_servers(tape, patient(config), on_plan=_say_plan, **options)


def _say_plan(plan: ComparisonPlan) -> None:
    calls = sum(map(len, plan.calls.values()))
    say(f"asking {counted(len(plan.calls), 'server')} again, with {counted(calls, 'call')} of the tape …")


# ---- as text ---------------------------------------------------------------------------------------------------------
Line = tuple[str, str]  # a mark, a blank before a part, or nothing before prose; and the words


def _told(found: Comparison, *, is_now: bool) -> Iterator[Line]:
    from ..tape.tape_comparison import MAY_WRITE

    for server, before, after in found.versions:
        yield "", f"{server} is another version: {before} → {after}"
    for definition in found.definitions[:_TOLD]:
        yield from _definition(definition)
    yield from _rest(len(found.definitions))
    for call in found.calls[:_TOLD]:
        yield from _call(call)
    yield from _rest(len(found.calls))
    slow = [times for times in found.times if times.is_slower(found.slower or _SLOWER)]
    for times in slow[:_TOLD]:
        yield ("~" if found.slower else ""), _slower(times)
    yield from _rest(len(slow))
    for left in found.not_sent[:_TOLD]:
        yield "", f"not sent: {counted(left.calls, 'call')} of {left.name} ({left.why})"
    yield from _rest(len(found.not_sent))
    if any(left.why == MAY_WRITE for left in found.not_sent):
        yield "", "To make calls of a tool that only reads, though its server does not say so: --reads TOOL"
    yield "", _sum(found, is_now=is_now)


def _definition(one: DefinitionDifference) -> Iterator[Line]:
    what = f"{one.server}: {one.kind} {one.name}" if one.kind != "server" else one.server
    yield _MARKS.get(one.what, "~"), f"{what} {'cannot be asked' if one.why else one.what}"
    yield from _changes(one)


def _call(one: CallDifference) -> Iterator[Line]:
    numbers = " → ".join(str(number) for number in (one.before, one.after) if number is not None)
    words = _WORDS.get(one.what) or f"{one.outcomes[0]} → {one.outcomes[1]}"
    behind = f" (may be so because call {one.behind} was not made again)" if one.behind is not None else ""
    yield _MARKS.get(one.what, "~"), f"{numbers:>7}  {one.name}: {words}{behind}  {one.arguments}"
    yield from _changes(one)


def _changes(one: CallDifference | DefinitionDifference) -> Iterator[Line]:
    if one.why is not None:
        yield "!", f"           {_why(one)}"
        return
    for change in one.changes:
        where = f"{change.path}: " if change.path else ""
        before, after = ("nothing" if each is None else each for each in (change.before, change.after))
        short = f"           {where}{before} → {after}"
        if len(short) <= _width() - 2:
            yield " ", short
            continue
        yield " ", f"           {where}"
        for mark, value in (("-", change.before), ("+", change.after)):
            if value is not None:
                yield mark, f"          {value}"
    if one.more:
        yield " ", f"           and {counted(one.more, 'difference')} more"


def _rest(count: int) -> Iterator[Line]:
    if count > _TOLD:
        yield "", f"and {count - _TOLD:,} more; --json has all of them"


def _slower(times: Times) -> str:
    took = f"{times.before * 1000:.1f} ms → {times.after * 1000:.1f} ms"
    return (
        f"{times.name} is {times.factor:.1f} times as slow: {took} (median of {counted(times.calls, 'call')})"
    )


def _sum(found: Comparison, *, is_now: bool) -> str:
    same = f"{counted(found.same, 'call')} the same{' now' if is_now else ''}."
    if found.is_same and is_now and not found.same:
        return "Nothing differs, and no call was made again."
    if found.is_same:
        return f"Nothing differs: {same}"
    counts = Counter(call.what for call in found.calls)
    parts = [
        _COUNTED[what].format(counted(count, _NOUNS.get(what, "call"))) for what, count in counts.items()
    ]
    parts += [counted(len(found.definitions), "definition")] if found.definitions else []
    parts += [counted(len(found.slower_tools), "slower tool")] if found.slower_tools else []
    return f"Different: {', '.join(parts)}. {same.capitalize()}"


def _width() -> int:
    return columns_of(sys.stdout) if on_terminal() else _WIDE


def _print(lines: list[Line]) -> None:
    is_screen, width = on_terminal(), _width()
    for mark, words in lines:
        indent = " " * (len(words) - len(words.lstrip()))  # which `one_line` takes away
        begin, text = (f"{mark} " if mark else "") + indent, one_line(words, 10 * _WIDE)
        if mark in ("", "!"):  # prose of ours, whose next step is to be copied
            pieces = wrap(text, width - len(begin)) if is_screen else [text]
            further = " " * len(begin)
            click.echo(begin + f"\n{further}".join(pieces))
        else:
            click.echo(_on_screen(mark, begin + text, width) if is_screen else _cut(begin + text, width))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _on_screen(mark: str, text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    colour = None if os.environ.get("NO_COLOR") else _COLOURS.get(mark)
    return click.style(text, fg=colour) if colour else text


# ---- as JSON ---------------------------------------------------------------------------------------------------------
def _as_json(tape: Path, found: Comparison) -> DifferenceJson:
    slower = {*found.slower_tools}
    return DifferenceJson(
        tape=os.path.abspath(tape),
        kept=None if found.kept is None else os.fspath(found.kept),
        same=found.is_same,
        calls_the_same=found.same,
        definitions=[_definition_json(one) for one in found.definitions],
        calls=[_call_json(one) for one in found.calls],
        times=[
            ToolTimesJson(
                server=one.server,
                name=one.name,
                calls=one.calls,
                before=round(one.before, 6),
                after=round(one.after, 6),
                slower=one in slower,
            )
            for one in found.times
        ],
        versions=[OtherVersionJson(server=name, before=old, after=new) for name, old, new in found.versions],
        not_sent=[
            LeftCallsJson(server=one.server, name=one.name, why=one.why, calls=one.calls)
            for one in found.not_sent
        ],
    )


def _definition_json(one: DefinitionDifference) -> DifferentDefinitionJson:
    return DifferentDefinitionJson(
        kind=one.kind,
        server=one.server,
        name=one.name,
        what=one.what,
        changes=_changes_json(one.changes),
        more_changes=one.more,
        why=_why(one),
    )


def _call_json(one: CallDifference) -> DifferentCallJson:
    return DifferentCallJson(
        what=one.what,
        server=one.server,
        name=one.name,
        arguments=one.arguments,
        before=one.before,
        after=one.after,
        outcome_before=one.outcomes[0],
        outcome_after=one.outcomes[1],
        changes=_changes_json(one.changes),
        more_changes=one.more,
        behind=one.behind,
        why=_why(one),
    )


def _changes_json(changes: tuple[Change, ...]) -> list[ChangedJson]:
    return [ChangedJson(path=one.path, before=one.before, after=one.after) for one in changes]


def _why(one: CallDifference | DefinitionDifference) -> str | None:
    """With the next steps for this configuration."""
    return None if one.why is None else commands_typed().filled(one.why)
