"""`greenroom explore`: an agent is run once for each single fault of a tape.

Each run has a gateway of its own over the tape, in two forms: over HTTP, in this process, and as a command that the
agent starts for stdio. Both record what they are asked, into the folder of the run. `tape.what_if` says which faults
there are and judges the recordings.

The agent leads a process group, and it and all that it starts carry a mark in their environment. When it has ended, or
its time is over, whatever is left of them is killed; the guard does the same if we are killed ourselves.

Rejected: runs side by side. An agent may use a file or a port of its own, and its second half would fail for the first.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import attrs
import click

from ..actors.backend import current_backend
from ..actors.timers import at_most
from ..actors.transports.child_process import Child
from ..actors.transports.guard import ROOM_KEY, Guard
from ..actors.workers import apart
from ..config.model import EXPOSURES
from ..gateway.next_steps import Commands
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.safe_text import counted, one_line
from ..protocol.version import VERSION
from ..tape.tape_reader import Tape, read_tape
from ..tape.what_if import (
    CALL_TIMEOUT,
    NOTHING,
    AgentOutcome,
    Judge,
    Trial,
    TrialResult,
    WhatIf,
    Wording,
    trials_of,
)
from .exit_codes import ENDED, FAILED, OK
from .interruption import until_told
from .json_shapes import Shape, says
from .printing import say, show
from .shared_options import json_option, names_in

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..supervisor.room import Greenroom


class FaultTriedJson(Shape, kw_only=True):
    """What an agent did when one thing went wrong."""

    fault: Annotated[str, says("as for `replay --fault`; empty: nothing went wrong")]
    server: Annotated[str, says("the server that it happened to")]
    call: Annotated[int | None, says("the number of the call that it happened to; null: to each start")]
    tool: Annotated[str, says("the tool that was called then")]
    deed: Annotated[str, says("what happened, as in the head of the table")]
    verdict: Annotated[str, says("`survived`, `gave up a call`, `failed`, or `not tried`: it did not happen")]
    why: Annotated[str, says("how it failed")]
    asked_again: Annotated[
        list[str], says("calls that may change something, made again though they may have run")
    ]
    missing: Annotated[list[str], says("calls whose recorded answer it did not get")]
    calls: Annotated[int, says("that it made", "calls")]
    seconds: Annotated[float, says("how long it ran", "s")]


class WhatIfsJson(Shape, kw_only=True):
    """What an agent did under each single fault of a tape."""

    tape: Annotated[str, says("the file")]
    is_good: Annotated[bool, says("nothing failed or was asked again; the exit code is 0 then, else 1")]
    left_out: Annotated[int, says("faults that were not tried, by `--runs`", "faults")]
    base: Annotated[FaultTriedJson, says("the run in which nothing went wrong")]
    trials: Annotated[list[FaultTriedJson], says("one for each fault")]


CONFIG_KEY: Final = "GREENROOM_MCP_CONFIG"
URL_KEY: Final = "GREENROOM_MCP_URL"
_WORDING: Final = Wording("--ignore", "--by-order", "--expose, --profile", f"${URL_KEY} or ${CONFIG_KEY}")
_GRACE: Final = 1.0  # seconds from SIGTERM to SIGKILL
_OUTPUT: Final = "output"
_LAST_BYTES: Final = 2_000  # of its output, in which its last words are looked for


class NotAsRecorded(GreenroomError):
    """The agent does not do without any fault what is on the tape, so its runs with faults would show nothing."""

    code = "not_as_recorded"


@click.command("explore", context_settings={"ignore_unknown_options": False})
@click.argument("tape", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--only", metavar="SERVERS", help="Let only these servers go wrong, as in github,linear.")
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Make at most N runs with a fault.")
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="End a run that takes longer.",
)
@click.option(
    "--call-timeout",
    type=click.FloatRange(0, min_open=True),
    default=CALL_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Calls time out after this many seconds.",
)
@click.option("--ignore", metavar="NAMES", help="Keys of arguments whose values may differ, as in time,id.")
@click.option(
    "--reads",
    metavar="TOOLS",
    help="Tools that only read, though their servers do not say so, as in shop_look.",
)
@click.option("--by-order", is_flag=True, help="Arguments may differ: see greenroom replay --help.")
@click.option(
    "--expose",
    type=click.Choice(EXPOSURES),
    default="proxy",
    show_default=True,
    help="What the agent sees: give the one with which the tape was recorded.",
)
@click.option("--profile", metavar="P", help="Show the agent only what this profile has.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keep the tape and the output of each run there.",
)
@json_option
def explore_command(
    tape: Path,
    command: tuple[str, ...],
    only: str | None,
    runs: int | None,
    time_limit: float,
    call_timeout: float,
    ignore: str | None,
    reads: str | None,
    by_order: bool,
    expose: str,
    profile: str | None,
    keep: Path | None,
    as_json: bool,
) -> int:
    """Run COMMAND once for each single fault of TAPE, and say which of them it survives.

    The agent that COMMAND starts finds its tools by $GREENROOM_MCP_URL (Streamable HTTP) or $GREENROOM_MCP_CONFIG (a
    file with mcpServers, for stdio); {url} and {config} in its arguments are replaced by them. Write -- before it.
    """
    read = read_tape(tape)
    trials = trials_of(read, only=names_in(only), call_timeout=call_timeout)
    plan = trials if runs is None else trials[:runs]
    runner = _Runner(
        read,
        command,
        Judge(read, ignore=names_in(ignore), any_arguments=by_order, reads=names_in(reads)),
        {"ignore": names_in(ignore), "by_order": by_order, "call_timeout": call_timeout},
        expose,
        profile,
        time_limit,
    )
    of_all = "" if len(plan) == len(trials) else f" of {len(trials)}"
    with _folder(keep) as folder:
        _check_program(command[0])
        say(
            f"{counted(len(plan), 'fault')}{of_all}, a run each, and one without: each at most {time_limit:g} s. "
            "Fewer: --only, --runs."
        )
        found = _run(lambda: runner.all(plan, folder))
    if found is None:
        return ENDED
    done = WhatIf(os.fspath(tape), found[0], found[1:], len(trials) - len(plan), runner.repeats)
    show("\n".join(done.told()), done.as_json(), as_json, WhatIfsJson)
    return OK if done.is_good else FAILED


def _run(main: Callable[[], Awaitable[list[TrialResult]]]) -> list[TrialResult] | None:
    from ..gateway.event_loop import GatewayLoop

    return anyio.run(until_told, main, backend="asyncio", backend_options={"loop_factory": GatewayLoop})


@contextmanager
def _folder(keep: Path | None) -> Generator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="greenroom-explore-") as made:
            yield Path(made)
        return
    try:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{keep} is a file. --keep wants a folder of its own.") from None
    except OSError as error:
        raise UsageError(f"{keep} cannot be made: {error.strerror}.") from None
    if any(keep.iterdir()):
        raise UsageError(f"{keep} is not empty. --keep wants a folder of its own.")
    yield keep


def _check_program(name: str) -> None:
    if shutil.which(name) is None:
        raise UsageError(f"{name} cannot be started: there is no such program.")


@attrs.frozen
class _Runner:
    """Runs the agent. `replay`: what its room is given besides the fault."""

    tape: Tape
    command: Sequence[str]
    judge: Judge
    replay: Mapping[str, Any]
    expose: str
    profile: str | None
    time_limit: float

    async def all(self, plan: Sequence[Trial], folder: Path) -> list[TrialResult]:
        """First a run without a fault. Raises `NotAsRecorded`, `UsageError`."""
        guard = Guard(current_backend(), token_hex(8), say)
        guard.start()
        try:
            base = await self._try(NOTHING, folder / "0", guard)
            if why := base.why_not_of_the_tape(_WORDING):
                raise NotAsRecorded(why)
            tried = [base]
            for number, trial in enumerate(plan, 1):
                tried.append(await self._try(trial, folder / str(number), guard))
                if sys.stderr.isatty():
                    say(f"{number} of {len(plan)}: {trial.fault}: {tried[-1].verdict}")
            return tried
        finally:
            guard.close()

    async def _try(self, trial: Trial, folder: Path, guard: Guard) -> TrialResult:
        with _files(folder) as (log, output):
            async with self._gateway(trial, folder, log) as url:
                ended = await self._agent(folder, url, trial, output, guard)
        return await apart(partial(self._judged, trial, folder, ended))

    def _judged(self, trial: Trial, folder: Path, ended: AgentOutcome) -> TrialResult:
        return self.judge.judge(trial, [read_tape(path) for path in sorted(folder.glob("*.tape"))], ended)

    @asynccontextmanager
    async def _gateway(self, trial: Trial, folder: Path, log: int) -> AsyncGenerator[str]:
        """The tape over HTTP. Gives its URL."""
        from ..gateway.serve import HttpOptions, Options, served_http
        from ..supervisor.room import Greenroom

        faults = [trial.fault] if trial.fault else []
        room = Greenroom.replay(self.tape.path, faults=faults, record=folder, bootstrap=True, **self.replay)

        def open_room(_config: Any) -> Greenroom:
            return room

        options = Options(
            expose=self.expose, profile=self.profile, version=VERSION, commands=Commands(), log_to=log
        )
        listen = HttpOptions("127.0.0.1", 0, profile=self.profile)
        async with served_http(room.config, open_room, options, listen) as served:
            yield served.url
            await served.end(0)

    def _options(self, fault: str) -> list[str]:
        """Those of `greenroom replay` that make its room that of a run with this fault."""
        words = ["--expose", self.expose, "--call-timeout", f"{self.replay['call_timeout']:g}"]
        words += ["--profile", self.profile] if self.profile else []
        words += ["--ignore", ",".join(self.replay["ignore"])] if self.replay["ignore"] else []
        words += ["--by-order"] if self.replay["by_order"] else []
        return words + (["--fault", fault] if fault else [])

    def repeats(self, fault: str) -> str:
        """The command over which the agent meets this fault again."""
        return shlex.join(["greenroom", "replay", os.fspath(self.tape.path), *self._options(fault)])

    def _stdio(self, trial: Trial, folder: Path) -> dict[str, Any]:
        """The tape as a server that the agent starts."""
        words = ["-m", "greenroom", "replay", os.fspath(self.tape.path)]
        words += ["--record", os.fspath(folder.resolve()), *self._options(trial.fault)]
        return {"mcpServers": {"greenroom": {"command": sys.executable, "args": words}}}

    async def _agent(self, folder: Path, url: str, trial: Trial, output: int, guard: Guard) -> AgentOutcome:
        config = _written(folder / "mcp.json", self._stdio(trial, folder))
        words = [word.replace("{url}", url).replace("{config}", config) for word in self.command]
        environ = {**os.environ, URL_KEY: url, CONFIG_KEY: config, ROOM_KEY: guard.run_id}
        began = time.monotonic()
        child = _start(words, environ, output)
        code = await _exit_code(child, guard, self.time_limit)
        took = time.monotonic() - began
        return AgentOutcome(_failure(code, self.time_limit, folder / _OUTPUT), took)


@contextmanager
def _files(folder: Path) -> Generator[tuple[int, int]]:
    """For the log of the gateway, and for what the agent says."""
    folder.mkdir(mode=0o700)
    with open(folder / "gateway.log", "wb") as log, open(folder / _OUTPUT, "wb") as output:
        yield log.fileno(), output.fileno()


def _written(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content), encoding="utf-8")
    return os.path.abspath(path)


def _start(words: Sequence[str], environ: Mapping[str, str], output: int) -> Child:
    """Start the agent. Raises `UsageError` if that cannot be done."""
    try:
        popen = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{words[0]} cannot be started: {error}") from None
    return Child(popen)


async def _exit_code(child: Child, guard: Guard, limit: float) -> int | None:
    """How it ended; None: not in time. Nothing of it is left."""
    guard.add(child.pid)
    mark = f"{ROOM_KEY}={guard.run_id}"
    backend, in_time = current_backend(), False
    try:
        async with at_most(limit):
            await child.wait_exit(backend)
            in_time = True
        if not in_time:
            child.signal_group(signal.SIGTERM)
            async with at_most(_GRACE):
                await child.wait_exit(backend)
    finally:
        child.signal_group(signal.SIGKILL)
        child.block_until_dead(_GRACE)
        guard.remove(child.pid)
        child.reap()
        child.close()
        guard.sweep_soon(mark)
    await guard.sweep(mark, _GRACE)
    return child.exit_code if in_time else None


def _failure(code: int | None, limit: float, output: Path) -> str | None:
    if code == 0:
        return None
    how = f"not ended within {limit:g} s" if code is None else f"exit code {code}"
    if code is not None and code < 0:
        with suppress(ValueError):
            how = f"killed by {signal.Signals(-code).name}"
    with open(output, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if any(map(str.isalnum, line))), "")  # not a frame
    return f"{how}: {one_line(last, 200)}" if last else how
