"""`greenroom approve`: the calls that wait for a person's yes, and the answer to one of them.

A configuration may have several gateways, one for each client. Without `--pid` all of them are looked at. If the same
number waits in two, the command asks which is meant, because an answer must never go to another call than the one that
was read.

Listing counts as watching for a few seconds (`safety.approval_desk`). So a script that lists again and again is a
terminal at which calls can be allowed, as `greenroom status --watch` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click

from ..gateway.doors import control_client as control
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.safe_text import one_line
from ..safety.approval import Verdict
from .config_reading import load, read_config
from .exit_codes import FAILED, OK
from .json_shapes import Shape, says
from .printing import say, say_error, show
from .running_gateways import say_elsewhere
from .shared_options import common_options


class WaitingJson(Shape, kw_only=True):
    """A call that waits for a person's yes."""

    number: Annotated[int, says("for `greenroom approve NUMBER`")]
    server: Annotated[str, says("the server")]
    tool: Annotated[str, says("the tool")]
    session: Annotated[str | None, says("the session that calls; null: the room itself")]
    question: Annotated[str, says("what is asked, with the arguments")]
    waiting: Annotated[float, says("how long it has waited", "s")]
    left: Annotated[float, says("until it is refused", "s")]
    pid: Annotated[int, says("the gateway where it waits")]


class ApprovalsJson(Shape, kw_only=True):
    """The calls that wait."""

    approvals: Annotated[list[WaitingJson], says("the first of them")]
    waiting_for_approval: Annotated[int, says("all of them", "calls")]
    source: Annotated[Literal["gateway"], says("who answered")]


class ApprovedJson(Shape, kw_only=True):
    """What was answered."""

    number: Annotated[int, says("the call")]
    verdict: Annotated[Literal["once", "session", "deny"], says("the answer")]
    server: Annotated[str, says("the server")]
    tool: Annotated[str, says("the tool")]
    session: Annotated[str | None, says("the session that calls; null: the room itself")]
    pid: Annotated[int, says("the gateway where it waited")]


WATCHING: Final = 10.0  # seconds for which a list counts
_DONE: Final = {
    Verdict.ONCE: "Allowed, this once",
    Verdict.SESSION: "Allowed for its session, with these arguments",
    Verdict.DENY: "Refused",
}


@click.command("approve")
@click.argument("number", required=False, type=click.IntRange(1))
@click.option(
    "--session", "for_session", is_flag=True, help="Allow it for its session, with these arguments."
)
@click.option("--deny", is_flag=True, help="Refuse it.")
@common_options
def approve_command(
    number: int | None,
    for_session: bool,
    deny: bool,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """List the calls that wait for approval, or allow the one with this NUMBER.

    If nobody else can be asked, a call waits only while greenroom status --watch runs, or while this command is run
    again at least every 10 seconds.
    """
    if for_session and deny:
        raise UsageError("--session allows the call and --deny refuses it. Give one of them.")
    if number is None and (for_session or deny):
        raise UsageError("Which call is meant? Those that wait, with their numbers: greenroom approve")
    gateways = _gateways(config_path, pid)
    if not gateways:
        say(
            "no gateway runs for this configuration, so no call waits. To start one: greenroom serve --background"
        )
        say_elsewhere(load(config_path))
        return FAILED
    if number is None:
        calls, count = _listed(gateways)
        details = {"approvals": calls, "waitingForApproval": count, "source": "gateway"}
        show("\n".join(_lines(calls, count, len(gateways) > 1)), details, as_json, ApprovalsJson)
        return OK
    verdict = Verdict.DENY if deny else Verdict.SESSION if for_session else Verdict.ONCE
    gateway = _with_call(gateways, number)
    call = gateway.ask("approve", quickly=True, number=number, verdict=verdict.value)
    told = f"{_DONE[verdict]}: the call {number} of {one_line(call['tool'], 100)}."
    show(
        told, {"number": number, "verdict": verdict.value, **call, "pid": gateway.pid}, as_json, ApprovedJson
    )
    return OK


def _gateways(path: Path | None, pid: int | None) -> Sequence[control.Gateway]:
    """The gateways to ask, the newest first; each connection is closed when the command ends."""
    name = name_of(read_config(path))
    if pid is not None:
        found = control.find_gateway(name, pid)
        gateways = [] if found is None else [found]
    else:
        gateways = control.find_gateways(name, say_error)
    return [click.get_current_context().with_resource(each) for each in gateways]


def _listed(gateways: Sequence[control.Gateway]) -> tuple[list[dict[str, Any]], int]:
    """The calls that wait, and how many there are. A gateway that does not answer is named on stderr."""
    calls: list[dict[str, Any]] = []
    count = 0
    for gateway in gateways:
        try:
            said = gateway.ask("approvals", quickly=True, watching=WATCHING)
        except GreenroomError as error:
            say(error.message)
        else:
            calls += ({**call, "pid": gateway.pid} for call in said["approvals"])
            count += said["waitingForApproval"]
    return calls, count


def _with_call(gateways: Sequence[control.Gateway], number: int) -> control.Gateway:
    """Where the call with this number waits, or has waited. Raises `UsageError` when it waits in several gateways."""
    if len(gateways) == 1:
        return gateways[0]
    waiting, ended = list[control.Gateway](), list[control.Gateway]()
    for gateway in gateways:
        try:
            said = gateway.ask("approvals", quickly=True, number=number)
        except GreenroomError as error:
            say(error.message)
        else:
            waiting += [gateway] if said["approvals"] else ()
            ended += [gateway] if said["hasEnded"] else ()
    if len(waiting) > 1:
        pids = ", ".join(str(each.pid) for each in waiting)
        raise UsageError(
            f"A call {number} waits in each of the gateways {pids}. Say which is meant with --pid."
        )
    return (waiting or ended or gateways)[0]


def _lines(calls: Sequence[Mapping[str, Any]], count: int, with_pid: bool) -> Iterator[str]:
    for call in calls:
        where = f", gateway {call['pid']}" if with_pid else ""
        who = f"session {one_line(call['session'], 40)}" if call["session"] else "the room itself"
        yield f"{call['number']}: waits for {call['waiting']:.0f} s, {call['left']:.0f} s left, {who}{where}"
        yield from (f"  {line}" for line in call["question"].splitlines())
    if count > len(calls):
        yield f"{count - len(calls)} more {'waits' if count - len(calls) == 1 else 'wait'}."
    if calls:
        yield "To allow one (--session: for its session; --deny: refuse it): greenroom approve NUMBER"
    else:
        yield "No call waits for approval."
