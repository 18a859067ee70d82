"""The rows: what is done to a peer, and when it holds. Each is on real processes, and its servers are `faulty.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs

from . import _processes
from ._doors import PATIENCE, Door, Outcome
from ._stage import Servers, Stage

FAT = 16 * 1024 * 1024
LEFT_AFTER = 5.0  # seconds
STUBBORN = ("--ignore-eof", "--ignore-term")
TREE: Servers = {"stubborn": (*STUBBORN, "--fork", "setsid")}


@attrs.frozen
class Result:
    """`seconds`: of what the row says. `left`: processes, where the row is about these."""

    holds: bool
    what: str
    seconds: float | None = None
    left: int | None = None
    lost: int = 0
    offered: bool = True


@attrs.frozen
class Row:
    name: str
    what: str  # is done
    holds: str  # when
    seconds: str  # what they count
    play: Callable[[Stage], Awaitable[Result]]


async def ordinary(stage: Stage) -> Result:
    began = time.monotonic()
    door = await stage.start({"good": ()})
    first = await _answered(stage, door, "good")
    took = time.monotonic() - began
    if first is None:
        return Result(False, _said(stage.calls[-1]), took)
    more = [await stage.call(door, "good", "echo", text="hello") for _ in range(20)]
    wrong = sum(call.kind != "answer" for call in more)
    return Result(not wrong, f"{wrong} of 20 failed" if wrong else "answered", took)


async def killed(stage: Stage) -> Result:
    door = await stage.start({"victim": ()})
    if await _answered(stage, door, "victim") is None:
        return _no_call(stage)
    call = stage.begin(door, "victim", "sleep", seconds=60)
    await stage.until_logged("victim", "call sleep")
    began = time.monotonic()
    for pid in stage.alive() & set(
        stage.starts("victim")
    ):  # a peer may have one for its list beside that of the call
        os.kill(pid, signal.SIGKILL)
    again = await _answered(stage, door, "victim", 20.0)
    took = time.monotonic() - began
    outcome = await call
    if outcome.kind == "lost":
        return Result(False, f"the call: {_said(outcome)}; then {'works' if again else 'never works'}", took)
    if again is None:
        return Result(False, f"no later call works: {_said(stage.calls[-1])}", took)
    return Result(True, "error, then works", took)


async def hung_start(stage: Stage) -> Result:
    began = time.monotonic()
    door = await stage.start({"hangs": ("--hang-at", "initialize"), "good": ()}, within=20.0)
    good = await _answered(stage, door, "good", 20.0)
    took = time.monotonic() - began
    if good is None:
        return Result(False, f"the good one: {_said(stage.calls[-1])}", took)
    return Result(took < 5.0, "the good one answers" if took < 5.0 else "the good one has to wait", took)


async def hung_call(stage: Stage) -> Result:
    door = await stage.start({"hangs": ("--hang-at", "call:sleep")})
    if await _answered(stage, door, "hangs") is None:
        return _no_call(stage)
    outcome = await stage.call(door, "hangs", "sleep", patience=70.0)
    again = await _answered(stage, door, "hangs")
    if outcome.kind == "lost":
        return Result(False, "never ended" if outcome.seconds > 69 else _said(outcome), outcome.seconds)
    return Result(again is not None, "ended" if again else "ended; no later call works", outcome.seconds)


async def cancelled(stage: Stage) -> Result:
    door = await stage.start({"hangs": ("--hang-at", "call:sleep")})
    if await _answered(stage, door, "hangs") is None:
        return _no_call(stage)
    call = asyncio.create_task(door.ask("hangs", "sleep", {}))  # it may have no outcome, so it is not counted
    await stage.until_logged("hangs", "call sleep")
    began = time.monotonic()
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    told = await stage.until_logged("hangs", "got notifications/cancelled", 3.0)
    took = time.monotonic() - began
    again = await _answered(stage, door, "hangs")
    if again is None:
        return Result(False, "no later call works", took)
    return Result(told, "the server is told" if told else "the server is not told", took)


async def banner(stage: Stage) -> Result:
    door = await stage.start({"talks": ("--banner", "Welcome to my server!")})
    return await _ten(stage, door, "talks")


async def junk(stage: Stage) -> Result:
    door = await stage.start({"talks": ("--junk-before",)})
    return await _ten(stage, door, "talks")


async def stderr(stage: Stage) -> Result:
    door = await stage.start({"floods": ("--stderr", str(1024 * 1024))})
    return await _ten(stage, door, "floods")


async def fat(stage: Stage) -> Result:
    door = await stage.start({"fat": (), "good": ()})
    if await _answered(stage, door, "fat") is None or await _answered(stage, door, "good") is None:
        return _no_call(stage)
    call = stage.begin(door, "fat", "echo", 60.0, size=FAT)
    longest = 0.0
    while not call.done():
        longest = max(longest, (await stage.call(door, "good", "echo", text="hello")).seconds)
        await asyncio.sleep(0.005)
    outcome = await call
    if outcome.kind == "lost":
        return Result(False, f"the answer: {_said(outcome)}", longest)
    how = f"whole in {outcome.seconds:.1f} s" if outcome.size >= FAT else f"error: {outcome.text[:60]}"
    if await _answered(stage, door, "fat") is None:
        return Result(False, f"{how}; no later call works", longest)
    return Result(longest < 1.0, how, longest)


async def crashing(stage: Stage) -> Result:
    door = await stage.start({"crashes": ("--crash-at", "start"), "good": ()}, within=20.0)
    began = time.monotonic()
    calls: list[asyncio.Task[Outcome]] = []
    while time.monotonic() - began < 10.0:
        calls.append(stage.begin(door, "crashes", "echo", text="hello"))
        await asyncio.sleep(0.5)
    starts = len(stage.starts("crashes"))
    await asyncio.gather(*calls)
    good = await _answered(stage, door, "good")
    if good is None:
        return Result(False, f"{_starts(starts)}; the good one: {_said(stage.calls[-1])}")
    return Result(starts <= 5, _starts(starts))


async def client_gone(stage: Stage) -> Result:
    return await _client_gone(stage, {"hangs": ("--hang-at", "call:sleep")})


async def client_gone_stubborn(stage: Stage) -> Result:
    return await _client_gone(stage, {"hangs": ("--hang-at", "call:sleep"), "stubborn": STUBBORN})


async def _client_gone(stage: Stage, servers: Servers) -> Result:
    door = await stage.start(servers)
    for server in servers:
        if await _answered(stage, door, server) is None:
            return _no_call(stage)
    call = asyncio.create_task(door.ask("hangs", "sleep", {}))
    await stage.until_logged("hangs", "call sleep")
    if stage.peer.stays:
        call.cancel()
        await door.close()
        await asyncio.sleep(LEFT_AFTER)
        left = len(stage.servers_alive())
        again = await _answered(stage, await stage.open(), "hangs")
        return Result(
            again is not None, "serves the next client" if again else "no later call works", left=left
        )
    began = time.monotonic()
    await door.close()
    call.cancel()
    took, left = await _gone(stage, began)
    return Result(left == 0, "all ended" if not left else "processes left", took, left)


async def peer_killed(stage: Stage) -> Result:
    return await _peer_killed(stage, {"plain": ("--hang-at", "call:sleep")})


async def peer_killed_stubborn(stage: Stage) -> Result:
    return await _peer_killed(stage, {"plain": (), **TREE})


async def _peer_killed(stage: Stage, servers: Servers) -> Result:
    door = await stage.start(servers)
    for server in servers:
        if await _answered(stage, door, server) is None:
            return _no_call(stage)
    call = asyncio.create_task(door.ask("plain", "sleep", {"seconds": 60}))
    await stage.until_logged("plain", "call sleep")
    began = time.monotonic()
    stage.signal(signal.SIGKILL)
    await stage.wait(5.0)
    took, left = await _gone(stage, began)
    call.cancel()
    return Result(left == 0, "all ended" if not left else "processes left", took, left)


async def terminated(stage: Stage) -> Result:
    return await _terminated(stage, {"plain": ()})


async def terminated_stubborn(stage: Stage) -> Result:
    return await _terminated(stage, {"plain": (), **TREE})


async def _terminated(stage: Stage, servers: Servers) -> Result:
    door = await stage.start(servers)
    for server in servers:
        if await _answered(stage, door, server) is None:
            return _no_call(stage)
    call = stage.begin(door, "plain", "sleep", 20.0, seconds=1, text="done")
    await stage.until_logged("plain", "call sleep")
    stage.signal(signal.SIGTERM)
    outcome = await call
    took = await stage.wait(15.0)
    _, left = await _gone(stage, time.monotonic())
    ended = "" if took is not None else "; does not end"
    seconds = None if took is None else took + outcome.seconds
    return Result(
        outcome.kind != "lost" and took is not None and not left,
        f"the call: {'lost' if outcome.kind == 'lost' else outcome.kind}{ended}",
        seconds,
        left,
    )


async def listed(stage: Stage) -> Result:
    first = await stage.start({"good": ()})
    if await _answered(stage, first, "good") is None:
        return _no_call(stage)
    await first.tools()
    await stage.end()
    began, before = time.monotonic(), len(stage.starts("good"))
    door = await stage.start({"good": ()})
    names = await door.tools()
    took = time.monotonic() - began
    await asyncio.sleep(1.0)
    started = len(stage.starts("good")) - before
    if door.named("good", "echo") not in names:
        return Result(False, "not listed", took)
    return Result(not started, "listed, none started" if not started else "listed, and started", took)


async def idle(stage: Stage) -> Result:
    servers = {f"s{number}": () for number in range(30)}
    door = await stage.start(servers)
    await door.tools()
    await asyncio.sleep(5.0)
    first = len(stage.servers_alive())
    await stage.end()
    began = time.monotonic()
    await stage.start(servers)
    took = time.monotonic() - began
    await asyncio.sleep(5.0)
    started, everything = len(stage.servers_alive()), stage.alive()
    words = f"{started} run, {len(everything)} processes, {_processes.memory(everything):.0f} MiB"
    return Result(not started, f"{words}; the first time {first} ran", took)


ROWS: tuple[Row, ...] = (
    Row(
        "ordinary",
        "A peer is started with one server, which is called until it answers, and twenty times more.",
        "all of these are answered",
        "from the start of the peer to the first answer",
        ordinary,
    ),
    Row(
        "killed",
        "A server is killed with SIGKILL in the middle of a call.",
        "the call ends with an error, and a later one is answered",
        "from the kill to the next answer",
        killed,
    ),
    Row(
        "hung-start",
        "One server never answers `initialize`, a good one stands beside it.",
        "the good one answers within 5 s of the start of the peer",
        "from the start of the peer to the answer",
        hung_start,
    ),
    Row(
        "hung-call",
        "A server never answers a call.",
        "the call ends within 70 s, and a later one is answered",
        "the call",
        hung_call,
    ),
    Row(
        "cancelled",
        "The client cancels a call.",
        "the server is told within 3 s, and a later call is answered",
        "until the server is told",
        cancelled,
    ),
    Row(
        "banner",
        "A server writes a line of text to its stdout before anything else.",
        "ten calls are answered once it answers at all",
        "the ten calls",
        banner,
    ),
    Row(
        "junk",
        "A server writes to its stdout, before each answer: a line of text, one that is not UTF-8, and an answer to "
        "nobody.",
        "ten calls are answered once it answers at all",
        "the ten calls",
        junk,
    ),
    Row(
        "stderr",
        "A server writes 1 MiB to stderr before each answer.",
        "ten calls are answered once it answers at all",
        "the ten calls",
        stderr,
    ),
    Row(
        "fat",
        "A server answers with 16 MiB, and its neighbour is called all the while.",
        "the answer arrives, or the call ends with an error and a later one is answered; and no call of the neighbour "
        "takes 1 s",
        "the longest call of the neighbour",
        fat,
    ),
    Row(
        "crashing",
        "A server exits whenever it is started, and is called every half second, for ten seconds.",
        "it is started at most five times, and a good one beside it works",
        "–",
        crashing,
    ),
    Row(
        "client-gone",
        "The client vanishes in the middle of a call.",
        "a peer on stdio leaves no process after 5 s; one on HTTP serves the next client",
        "until all processes have ended; left, over HTTP: those of servers",
        client_gone,
    ),
    Row(
        "client-gone, stubborn",
        "The client vanishes in the middle of a call. One of the two servers ignores the end of stdin and SIGTERM.",
        "a peer on stdio leaves no process after 5 s; one on HTTP serves the next client",
        "until all processes have ended; left, over HTTP: those of servers",
        client_gone_stubborn,
    ),
    Row(
        "peer-killed",
        "The peer is killed with SIGKILL, over a server with a call in flight that ends when its stdin does.",
        "no process is left after 5 s",
        "until all processes have ended",
        peer_killed,
    ),
    Row(
        "peer-killed, stubborn",
        "The peer is killed with SIGKILL, over a server with a call in flight and a stubborn one with a grandchild "
        "in another session.",
        "no process is left after 5 s",
        "until all processes have ended",
        peer_killed_stubborn,
    ),
    Row(
        "terminated",
        "The peer gets SIGTERM while a call of one second is in flight, over an ordinary server.",
        "the call gets an outcome, the peer ends within 15 s, and no process is left 5 s later",
        "from SIGTERM to the end of the peer",
        terminated,
    ),
    Row(
        "terminated, stubborn",
        "The peer gets SIGTERM while a call of one second is in flight, over a stubborn server, too, with a "
        "grandchild in another session.",
        "the call gets an outcome, the peer ends within 15 s, and no process is left 5 s later",
        "from SIGTERM to the end of the peer",
        terminated_stubborn,
    ),
    Row(
        "listed",
        "The peer is started for the second time, and lists its tools.",
        "the tools of a server are listed without starting it",
        "from the start of the peer to the list",
        listed,
    ),
    Row(
        "idle",
        "Thirty servers are configured, and none is used, when the peer is started for the second time. Shells that a "
        "peer puts around a server count as one more.",
        "no server runs 5 s later",
        "from the start of the peer to its door",
        idle,
    ),
)


async def _answered(stage: Stage, door: Door, server: str, within: float = PATIENCE) -> Outcome | None:
    """Ask until there is an answer, as a client does that a server interests; None when there is none in time."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        outcome = await stage.call(door, server, "echo", text="hello")
        if outcome.kind == "answer":
            return outcome
        await asyncio.sleep(0.1)
    return None


async def _ten(stage: Stage, door: Door, server: str) -> Result:
    if await _answered(stage, door, server) is None:
        return Result(False, _said(stage.calls[-1]))
    began = time.monotonic()
    for _ in range(10):
        outcome = await stage.call(door, server, "echo", text="hello")
        if outcome.kind != "answer" or "hello" not in outcome.text:
            return Result(False, _said(outcome), time.monotonic() - began)
    return Result(True, "answered", time.monotonic() - began)


async def _gone(stage: Stage, began: float) -> tuple[float | None, int]:
    """Wait until no process is left; how long that took since `began`, and how many are left when it is over."""
    while alive := stage.alive():
        if time.monotonic() - began > LEFT_AFTER:
            return None, len(alive)
        await asyncio.sleep(0.02)
    return time.monotonic() - began, 0


def _no_call(stage: Stage) -> Result:
    return Result(False, f"no first call: {_said(stage.calls[-1])}")


def _said(outcome: Outcome) -> str:
    return f"{outcome.kind}: {outcome.text[:80]}" if outcome.text else outcome.kind


def _starts(count: int) -> str:
    return f"{count} start{'' if count == 1 else 's'}"
