"""The rows: what happens to a peer, and what must come of it. All processes are real; the servers are `faulty.py`.

A row is data: the servers with their faults, and steps from the vocabulary below. Whoever adds a row writes it from
these; a step that only one row needs (`slow_down`, `runs_none`) is a function as any other. The player is `play`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Concatenate, ParamSpec

import attrs

from . import _processes
from ._client import PATIENCE
from ._trial import Result, Servers, Trial, TrialOver

FAT = 16 * 1024 * 1024
LEFT_AFTER = 5.0  # seconds
LONGEST = 240.0  # seconds for one row of one peer
HANGS = ("--hang-at", "call:sleep")
STUBBORN = ("--ignore-eof", "--ignore-term")
TREE = (*STUBBORN, "--fork", "setsid")
P = ParamSpec("P")
Step = Callable[[Trial], object]  # or what gives it when it is awaited


@attrs.frozen
class Row:
    """`what` happens, what `must` come of it and what the `seconds` are, for the reader. `held`: what is said where
    everything held; else, and if it is empty, what the steps have found."""

    name: str
    what: str
    must: str
    seconds: str
    servers: Servers
    steps: Sequence[Step]
    held: str = ""

    @property
    def title(self) -> str:
        """Its name, as it may stand between commas."""
        name, _, more = self.name.partition(", ")
        return f"{name} ({more})" if more else name


async def play(row: Row, trial: Trial) -> Result:
    """Make the steps, until one cannot be made."""
    try:
        async with asyncio.timeout(LONGEST):
            for step in row.steps:
                if isawaitable(made := step(trial)):
                    await made
    except TrialOver:
        pass
    except TimeoutError:
        trial.must(False, f"not over after {LONGEST:g} s")
    finally:
        await trial.close_clients()
        await trial.end_all()
    return trial.result(row.held)


# ---- the vocabulary --------------------------------------------------------------------------------------------------


def step(do: Callable[Concatenate[Trial, P], object]) -> Callable[P, Step]:
    """What makes such a step: its arguments now, its trial later."""

    def of(*arguments: P.args, **named: P.kwargs) -> Step:
        return lambda trial: do(trial, *arguments, **named)

    return of


start = step(Trial.start)
clock = step(Trial.start_clock)
stop = step(Trial.stop_clock)


@step
async def start_again(trial: Trial) -> None:
    """End the peer as its user does, and start it once more. The clock runs from its start."""
    trial.ran_before = len(trial.running())
    await trial.end()
    trial.starts_before = sum(len(trial.starts(server)) for server in trial.servers)
    trial.start_clock()
    await trial.start()


@step
async def rest(_trial: Trial, seconds: float) -> None:
    await asyncio.sleep(seconds)


@step
async def answers(trial: Trial, *servers: str, as_: str = "") -> None:
    """Call each until it answers; without an answer, nothing else can be tried. `as_`: what it is called then."""
    for server in servers:
        if not await trial.answers(server):
            raise trial.over(f"{as_}: {trial.calls[-1]}" if as_ else f"{trial.calls[-1]}")


@step
async def ask(trial: Trial, server: str, times: int) -> None:
    """Call it so often. Each call must be answered."""
    for _ in range(times):
        outcome = await trial.call(server)
        if outcome.kind != "answer" or "hello" not in outcome.text:
            raise trial.over(str(outcome))


@step
async def later(trial: Trial, server: str) -> None:
    """A later call must be answered."""
    if not await trial.answers(server):
        trial.must(False, f"no later call works: {trial.calls[-1]}")


@step
async def begin(
    trial: Trial, server: str, tool: str = "sleep", patience: float = PATIENCE, **arguments: object
) -> None:
    """A call, which the server has when this is over."""
    trial.begin(server, tool, patience, **arguments)
    await trial.until_logged(server, f"call {tool}", 10.0)


@step
async def call_every(trial: Trial, server: str, seconds: float, during: float) -> None:
    """Calls that do not wait for each other. How often the server was started meanwhile is said."""
    until = time.monotonic() + during
    while time.monotonic() < until:
        trial.begin(server, "echo", PATIENCE, text="hello")
        await asyncio.sleep(seconds)
    starts = len(trial.starts(server))
    trial.said.append(f"{starts} start{'' if starts == 1 else 's'}")
    trial.must(starts <= 5)
    await trial.outcomes()


@step
async def ended(trial: Trial) -> None:
    """The call in flight must end with an answer or an error."""
    [outcome] = await trial.outcomes()
    lost = outcome.kind == "lost"
    trial.said.append(f"the call: {outcome if lost else outcome.kind}")
    trial.must(not lost)


@step
async def whole(trial: Trial, neighbour: str) -> None:
    """The large answer must arrive, or its call end with an error. Meanwhile the neighbour is called, and no call of it
    may take a second; the longest counts."""
    longest = 0.0
    while not trial.pending[0].done():
        longest = max(longest, (await trial.call(neighbour)).seconds)
        await asyncio.sleep(0.005)
    [outcome] = await trial.outcomes()
    trial.seconds = longest
    trial.must(longest < 1.0)
    if outcome.kind == "lost":
        raise trial.over(f"the call: {outcome}")
    is_whole = outcome.size >= FAT
    trial.said.append(f"whole in {outcome.seconds:.1f} s" if is_whole else f"error: {outcome.text[:60]}")


@step
def kill(trial: Trial, server: str) -> None:
    """All its processes: a peer may have one for its list beside that of the call. The clock runs from here."""
    trial.start_clock()
    for pid in _processes.descendants() & set(trial.starts(server)):
        os.kill(pid, signal.SIGKILL)


@step
async def cancel(trial: Trial) -> None:
    """The client cancels the call in flight, which need not have an outcome. The clock runs from here."""
    call = trial.pending.pop()
    trial.start_clock()
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


@step
async def told(trial: Trial, server: str, within: float) -> None:
    """The server must hear that the call was cancelled."""
    heard = await trial.until_logged(server, "got notifications/cancelled", within)
    trial.must(heard, "the server is not told")
    trial.stop_clock()


@step
async def vanish(trial: Trial) -> None:
    """The client dies, and its call with it. The clock runs from here."""
    trial.start_clock()
    await trial.close_clients()


@step
def send(trial: Trial, number: signal.Signals) -> None:
    """The peer gets a signal. The clock runs from here."""
    trial.start_clock()
    trial.signal(number)


@step
async def peer_ends(trial: Trial, within: float) -> None:
    """The clock stops when it has."""
    has_ended = await trial.until_ended(within)
    trial.must(has_ended, "it does not end")
    if has_ended:
        trial.stop_clock()


@step
async def none_left(trial: Trial) -> None:
    """No process may be left, of the peer or of a server. If the clock still runs, it stops with the last one."""
    await _none_left(trial)


async def _none_left(trial: Trial) -> None:
    until = time.monotonic() + LEFT_AFTER
    while left := len(_processes.descendants()):
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.02)
    else:
        trial.stop_clock()
    trial.left = left
    trial.must(not left, "" if trial.said else "processes left")  # the column says it, too


@step
async def goes_on(trial: Trial, server: str) -> None:
    """Without its client, a peer on stdio leaves no process, and one on HTTP serves the next client."""
    if not trial.peer.stays:
        await _none_left(trial)
        trial.said += [] if trial.left else ["all ended"]
        return
    await asyncio.sleep(LEFT_AFTER)
    trial.seconds, trial.left = None, len(trial.running())
    await trial.connect()
    works = await trial.answers(server)
    trial.said.append("serves the next client" if works else f"no later call works: {trial.calls[-1]}")
    trial.must(works)


@step
def took_less(trial: Trial, seconds: float, otherwise: str) -> None:
    """What the clock has counted must be less."""
    trial.must(trial.seconds is not None and trial.seconds < seconds, otherwise)


@step
async def lists(trial: Trial, server: str = "") -> None:
    """The peer lists its tools, and must list those of the server."""
    names = await trial.client.tools()
    if server and trial.client.named(server, "echo") not in names:
        raise trial.over("not listed")


@step
def starts_none(trial: Trial) -> None:
    """No server may have been started since the peer was started again."""
    starts = sum(len(trial.starts(server)) for server in trial.servers)
    trial.must(starts == trial.starts_before, "listed, and started")


@step
def runs_none(trial: Trial) -> None:
    running, everything = len(trial.running()), _processes.descendants()
    size = _processes.memory(everything)
    found = f"{running} run, {len(everything)} processes, {size:.0f} MiB"
    trial.said.append(f"{found}; the first time {trial.ran_before} ran")
    trial.must(not running)


# ---- the rows --------------------------------------------------------------------------------------------------------

_TEN_ARE_ANSWERED = "Once it answers at all, ten calls must be answered."
_TALKS = (start(), answers("talks"), clock(), ask("talks", 10), stop())
_GONE = "A peer on stdio must leave no process after 5 s; one on HTTP must serve the next client."
_GONE_SECONDS = "until all processes have ended. Over HTTP, only those of servers are counted as left"
_NO_PROCESS = "No process may be left after 5 s."
_ALL_ENDED = "until all processes have ended"
_ENDS_WELL = "The call must end with an answer or an error, the peer within 15 s, and 5 s later no process may be left."
_TERMINATED = (
    begin("plain", seconds=1, text="done"),
    send(signal.SIGTERM),
    ended(),
    peer_ends(15.0),
    none_left(),
)
_PEER_KILLED = (begin("plain", seconds=60), send(signal.SIGKILL), none_left())

ROWS: tuple[Row, ...] = (
    Row(
        "ordinary",
        "The peer is started with one server, which is called until it answers, and then twenty times more.",
        "All of these must be answered.",
        "from the start of the peer to the first answer",
        {"good": ()},
        (clock(), start(), answers("good"), stop(), ask("good", 20)),
        held="answered",
    ),
    Row(
        "killed",
        "The server is killed with SIGKILL in the middle of a call.",
        "The call must end with an error, and a later one must be answered.",
        "from the kill to the next answer",
        {"victim": ()},
        (
            start(),
            answers("victim"),
            begin("victim", seconds=60),
            kill("victim"),
            later("victim"),
            stop(),
            ended(),
        ),
        held="error, then works",
    ),
    Row(
        "hung-start",
        "One server never answers `initialize`, and a good one stands beside it.",
        "The good one must answer within 5 s of the start of the peer.",
        "from the start of the peer to the answer",
        {"hangs": ("--hang-at", "initialize"), "good": ()},
        (
            *(clock(), start(within=20.0), answers("good", as_="the good one"), stop()),
            took_less(5.0, "the good one has to wait"),
        ),
        held="the good one answers",
    ),
    Row(
        "hung-call",
        "The server never answers a call.",
        "The call must end within 70 s, and a later one must be answered.",
        "from the call to its end",
        {"hangs": HANGS},
        (start(), answers("hangs"), clock(), begin("hangs", patience=70.0), ended(), stop(), later("hangs")),
        held="ended",
    ),
    Row(
        "cancelled",
        "The client cancels a call.",
        "The server must be told within 3 s, and a later call must be answered.",
        "until the server is told",
        {"hangs": HANGS},
        (start(), answers("hangs"), begin("hangs"), cancel(), told("hangs", 3.0), later("hangs")),
        held="the server is told",
    ),
    Row(
        "banner",
        "The server writes a line of text to its stdout before anything else.",
        _TEN_ARE_ANSWERED,
        "the ten calls",
        {"talks": ("--banner", "Welcome to my server!")},
        _TALKS,
        held="answered",
    ),
    Row(
        "junk",
        "The server writes to its stdout, before each answer: a line of text, one that is not UTF-8, and an answer to "
        "nobody.",
        _TEN_ARE_ANSWERED,
        "the ten calls",
        {"talks": ("--junk-before",)},
        _TALKS,
        held="answered",
    ),
    Row(
        "stderr",
        "The server writes 1 MiB to stderr before each answer.",
        _TEN_ARE_ANSWERED,
        "the ten calls",
        {"talks": ("--stderr", str(1024 * 1024))},
        _TALKS,
        held="answered",
    ),
    Row(
        "fat",
        "One server answers with 16 MiB, and its neighbour is called all the while.",
        "The answer must arrive, or the call must end with an error and a later one must be answered. No call of the "
        "neighbour may take 1 s.",
        "the longest call of the neighbour",
        {"fat": (), "good": ()},
        (start(), answers("fat", "good"), begin("fat", "echo", 60.0, size=FAT), whole("good"), later("fat")),
    ),
    Row(
        "crashing",
        "One server exits whenever it is started, and is called every half second, for ten seconds.",
        "It may be started five times at most, and a good one beside it must answer.",
        "",
        {"crashes": ("--crash-at", "start"), "good": ()},
        (start(within=20.0), call_every("crashes", 0.5, during=10.0), answers("good", as_="the good one")),
    ),
    Row(
        "client-gone",
        "The client vanishes in the middle of a call.",
        _GONE,
        _GONE_SECONDS,
        {"hangs": HANGS},
        (start(), answers("hangs"), begin("hangs"), vanish(), goes_on("hangs")),
    ),
    Row(
        "client-gone, stubborn",
        "The client vanishes in the middle of a call. One of two servers ignores the end of stdin and SIGTERM.",
        _GONE,
        _GONE_SECONDS,
        {"hangs": HANGS, "stubborn": STUBBORN},
        (start(), answers("hangs", "stubborn"), begin("hangs"), vanish(), goes_on("hangs")),
    ),
    Row(
        "peer-killed",
        "The peer is killed with SIGKILL. It has one server, with a call in flight, which ends when its stdin does.",
        _NO_PROCESS,
        _ALL_ENDED,
        {"plain": HANGS},
        (start(), answers("plain"), *_PEER_KILLED),
        held="all ended",
    ),
    Row(
        "peer-killed, stubborn",
        "The peer is killed with SIGKILL. It has a server with a call in flight, and one that ignores the end of stdin "
        "and SIGTERM and has a grandchild in another session.",
        _NO_PROCESS,
        _ALL_ENDED,
        {"plain": (), "stubborn": TREE},
        (start(), answers("plain", "stubborn"), *_PEER_KILLED),
        held="all ended",
    ),
    Row(
        "terminated",
        "The peer gets SIGTERM while a call of one second is in flight. It has one ordinary server.",
        _ENDS_WELL,
        "from SIGTERM to the end of the peer",
        {"plain": ()},
        (start(), answers("plain"), *_TERMINATED),
    ),
    Row(
        "terminated, stubborn",
        "The peer gets SIGTERM while a call of one second is in flight. It has an ordinary server and one that ignores "
        "the end of stdin and SIGTERM and has a grandchild in another session.",
        _ENDS_WELL,
        "from SIGTERM to the end of the peer",
        {"plain": (), "stubborn": TREE},
        (start(), answers("plain", "stubborn"), *_TERMINATED),
    ),
    Row(
        "listed",
        "The peer is started for the second time, and lists its tools.",
        "The tools of its server must be listed, and the server must not be started.",
        "from the start of the peer to the list",
        {"good": ()},
        (start(), answers("good"), lists(), start_again(), lists("good"), stop(), rest(1.0), starts_none()),
        held="listed, none started",
    ),
    Row(
        "idle",
        "Thirty servers are configured, and none is used, when the peer is started for the second time.",
        "No server may run 5 s later. (A shell that a peer puts around a server counts as one more.)",
        "from the start of the peer to its door",
        {f"s{number}": () for number in range(30)},
        (start(), lists(), rest(5.0), start_again(), stop(), rest(5.0), runs_none()),
    ),
)
