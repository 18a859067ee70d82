"""`greenroom doctor --tape`: a tape of the last minutes of the running gateway, for whoever finds out what happened.

The gateway makes it, without secrets, and hands it over by its control socket; so only its owner gets one. This command
writes the file, because the gateway may work in another folder, and tells what is on it as it reads it back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..protocol.bounds import RECENT_MINUTES
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, one_line
from .json_shapes import Shape, says
from .printing import show
from .running_gateways import running_gateway, say_elsewhere
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from ..tape.tape_reader import Tape


class RecentTapeJson(Shape, kw_only=True):
    """A tape of the last minutes that was written (`--tape`)."""

    tape: Annotated[str, says("the file")]
    pid: Annotated[int, says("the gateway that it is of")]
    bytes: Annotated[int, says("its size", "bytes")]
    calls: Annotated[int, says("that are on it", "calls")]
    open: Annotated[int, says("of them that had not ended", "calls")]
    left_out: Annotated[int, says("of them whose parameters or result were too large for it", "calls")]
    events: Annotated[int, says("that are on it", "events")]
    servers: Annotated[list[str], says("the servers")]


_CHECK = (
    "Look at it before you send it. Credentials are cut out; all else that calls were about is in it: names, paths, "
    "contents of files. To leave out more, by the names of members: --redact email,address"
)


def tape_last_minutes(
    config: Config, pid: int | None, file: str, redact: Sequence[str], *, as_json: bool
) -> int:
    """Write the tape, and say what is on it. `file`: "" for one in this folder, named by the time. Raises
    `UsageError`."""
    from ..tape.last_minutes_tape import write_tape
    from ..tape.tape_reader import read_tape

    gateway = running_gateway(config, pid)
    if gateway is None:
        say_elsewhere(config)
        raise UsageError(
            "No gateway runs for this configuration, so there are no last minutes. A gateway always keeps them: "
            "greenroom serve --background. To record more than that: greenroom serve --record tapes"
        )
    path = Path(file or time.strftime("greenroom-%Y-%m-%dT%H-%M-%S.tape"))
    parts = list(gateway.parts("tape", seconds=60 * RECENT_MINUTES, redact=list(redact)))
    write_tape(path, map(str.encode, parts))
    tape = read_tape(path)
    unended = sum(call.outcome == "open" for call in tape.calls)
    large = sum(bool(call.left_out) for call in tape.calls)
    said = RecentTapeJson(
        tape=os.path.abspath(path),
        pid=gateway.pid,
        bytes=path.stat().st_size,
        calls=len(tape.calls),
        open=unended,
        left_out=large,
        events=len(tape.events),
        servers=tape.servers,
    )
    show("\n".join(_lines(path, tape, unended, large)), said, as_json)
    return 0


def _lines(path: Path, tape: Tape, unended: int, large: int) -> list[str]:
    from ..tape.story import end_of, took

    of_servers = f"{counted(len(tape.calls), 'call')} of {counted(len(tape.servers), 'server')}"
    what = f"{of_servers}, {counted(len(tape.events), 'event')}"
    # Up to now, also if nothing has happened for a while. The clock may have been set back since.
    since = max(time.time() - tape.head.at, end_of(tape))
    lines = [f"{one_line(os.fspath(path))} has the last {took(since)}: {what}."]
    if unended:
        lines.append(f"{counted(unended, 'call')} had not ended.")
    if large:
        lines.append(
            f"What {counted(large, 'call')} had was too large: its size is there, and not its content."
        )
    about = commands_typed().about
    return [
        *lines,
        f"To see what is on it: {about('tape', os.fspath(path))}",
        f"To replay it: {about('replay', os.fspath(path))}",
        _CHECK,
    ]
