"""Break the runtime in one place at a time, and see the search over schedules find it.

`MUTANTS` lists faults that a runtime like this can have: file, the text that is there, the text put in its place. Each
is tried in a copy of the tree against the search of `tests/whole/test_lifecycle_search.py` alone (faults of children that
are used again: `tests/supervisor/test_reset_search.py`), with at most `EXAMPLES`
examples (`make test` draws a tenth of them, `make soak` many times more; most faults need a few), and `RUNS` times in a
row, each time from another seed: what is found by luck is not found. The first run shrinks; what it shrank the fault
to, and the law that the fault broke, is written to `.build/mutants/search.md`. Words as arguments choose among the
faults, and then nothing is shrunk or written. Exits 1 when a run does not find a fault, or its text is no longer there.
"""

# ruff: noqa: E501  # a table

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.package_tree import PACKAGE
from tools.policy_mutants import ROOT, copy_tree

REPORT = ROOT / ".build" / "mutants" / "search.md"
SEARCH = "tests/whole/test_lifecycle_search.py::TestRooms"
_RESETS = "tests/supervisor/test_reset_search.py::TestResets"
RUNS = 5
EXAMPLES = 1000
LIMIT = 900  # seconds for one run
SIDE_BY_SIDE = 2
# One process imports and collects, then forks a run for each seed: that takes longer than most searches. Hypothesis
# shrinks for up to five minutes, and has no setting for it; most of what there is to gain is had in the first seconds.
RUN = """
import os, signal, sys, pytest

limit, shrinks, search, examples, *seeds = sys.argv[1:]

class Fork:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        from hypothesis import Phase, core, settings
        from hypothesis.internal.conjecture import engine
        assert engine.MAX_SHRINKING_SECONDS
        engine.MAX_SHRINKING_SECONDS = 10
        for seed in seeds:
            child = os.fork()
            if not child:
                signal.alarm(int(limit))
                with open(f"{seed}.txt", "wb") as told:
                    os.dup2(told.fileno(), 1)
                core.global_force_seed = int(seed)
                test = session.items[0].cls
                phases = [Phase.generate, Phase.shrink] if seed == shrinks else [Phase.generate]
                test.settings = settings(test.settings, max_examples=int(examples), phases=phases, database=None)
                return None
            print(seed, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        os._exit(0)

options = ["-qxs", "--no-header", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
status = pytest.main([*options, search], plugins=[Fork()])
sys.stdout.flush()
os._exit(status)
"""


_PAIR = re.compile(r"^(\d+) (-?\d+)$", re.MULTILINE)


class Mutant(NamedTuple):
    fault: str
    file: str
    old: str
    new: str
    search: str = SEARCH


class Found(NamedTuple):
    """What one run of the search said."""

    law: str
    trace: tuple[str, ...]


class Fate(NamedTuple):
    """What became of one fault."""

    first: Found | None
    missed: tuple[int, ...]  # the seeds of the runs that did not find it


_CALLS, _SERVER, _INCARNATION = "actors/call_queue.py", "actors/server.py", "actors/connection.py"
_ROOT, _BREAKER, _POOL, _RESTART = (
    "supervisor/servers.py",
    "supervisor/policy/breaker.py",
    "supervisor/policy/pool.py",
    "supervisor/servers.py",
)
_ADMISSION, _LIFECYCLE, _WARM = "supervisor/starts.py", "protocol/lifecycle.py", "supervisor/warm_pool.py"

# Not here, since the runtime is built so that they cannot be: a second outcome of one call (whoever ends a call has taken
# it off its list before, so the look at `ended` in `Call.finish` finds nothing), and a late message of an earlier
# incarnation (the task that sends them has ended before the next one begins).
# fmt: off
MUTANTS = (
    Mutant("a child is used again without a reset", _WARM, "why = await why_not_reset_by(tool, peer, backend, timers, within, self._streams)", "why = None", _RESETS),
    Mutant("a child is used again after a reset that failed", _WARM, "        if why is None:\n            self.state = WarmState.READY", "        if True:\n            self.state = WarmState.READY", _RESETS),
    Mutant("a child is used again with an answer still to come", _WARM, "lasting=child.noted.left if child.noted is not None else None,", "lasting=None,", _RESETS),
    Mutant("a child is taken over before its reset is over", _WARM, "        if child.state is not WarmState.RESETTING:\n            child.state = WarmState.CLAIMED", "        child.state = WarmState.CLAIMED", _RESETS),
    Mutant("one child for two sessions", _WARM, "return self.state in _FREE and self.claimed_by is None", "return self.state in (*_FREE, WarmState.CLAIMED)", _RESETS),
    Mutant("a child that comes back has no slot", _WARM, "        child.claimed_by = None\n        self.starts.places.hold(child)\n", "        child.claimed_by = None\n        if child.state is not WarmState.RETURNED:\n            self.starts.places.hold(child)\n", _RESETS),
    Mutant("more children come back than there may be", "supervisor/policy/warm.py", 'return "there are enough children" if it.server.there >= it.server.wanted(now) else None', "return None", _RESETS),
    Mutant("eviction ignores calls in flight", _SERVER, "self.life.state is CONNECTED and self.has_nothing_to_do and", "self.life.state is CONNECTED and"),
    Mutant("eviction takes what is kept alive", "supervisor/start_places.py", "        if self.is_kept(actor):\n            actor.is_listed_idle = True\n            return\n", ""),
    Mutant("nobody is evicted while others wait", _POOL, "return max(surplus, min(it.candidates - it.leaving, max(it.warm, it.staying - it.limits.minimum)))", "return surplus"),
    Mutant("the slot comes back before the tree is gone", _SERVER, "                case Effect.STOP_TREE:\n", "                case Effect.STOP_TREE:\n                    self.record.servers.starts.move(self.record, self, Place.OUT)\n"),
    Mutant("the slot is never given back", "supervisor/servers.py", "        servers.starts.move(self, actor, Place.OUT)\n        decision", "        servers.starts.move(self, actor, Place.LIVE)\n        decision"),
    Mutant("waiters for a slot are served last come, first served", "supervisor/slot_queue.py", "next(iter(line.items()))\n            if arrived == number:", "next(reversed(line.items()))\n            if arrived >= number:"),
    Mutant("a permit is kept when its holder leaves", "supervisor/servers.py", "        servers.starts.move(self, actor, Place.OUT)\n        decision", "        if actor.start.place is not Place.STARTING:\n            servers.starts.move(self, actor, Place.OUT)\n        decision"),
    Mutant("a permit is kept after a start", "supervisor/servers.py", "Place.OUT if holds_none else Place.LIVE", "Place.OUT if holds_none else actor.start.place"),
    Mutant("waiters for a permit are served last come, first served", _ADMISSION, "actor, record = self.places.first(Place.PERMIT)", "actor, record = next(reversed(tuple(self.places.at(Place.PERMIT).items())))"),
    Mutant("a slot that comes back is nobody's", _ADMISSION, "        self.look()\n        if actor.start.place is Place.SLOT", "        if actor.start.place is Place.SLOT"),
    Mutant("whoever is on the way out is asked to go again", "supervisor/start_places.py", "        if actor.start.place is Place.LIVE:\n", "        if False:\n"),
    Mutant("one permit too many", _ADMISSION, "self.places.count(Place.STARTING) >= permits", "self.places.count(Place.STARTING) > permits"),
    Mutant("the half-open flag sticks when the probe leaves", "supervisor/breakers.py", "        if self.probe is who:\n", "        if False:\n"),
    Mutant("half-open passes everybody", _BREAKER, "if now < self.refuses_until or self.probing:", "if now < self.refuses_until:"),
    Mutant("the breaker forgives at a handshake", "supervisor/breakers.py", "        self.probe_left(actor)\n        if self.state.tripped and", "        self._set(CircuitBreaker(), BreakerMove.ANSWERED)\n        self.probe_left(actor)\n        if self.state.tripped and"),
    Mutant("an early answer forgives the failures before it", _BREAKER, "if self.tripped or connected_for >= policy.stable_after:", "if True:"),
    Mutant("a failed start does not make the breaker refuse", _BREAKER, "return self._failed(policy, now, reason, policy.delay(self.failures + 1, draw))", "return self"),
    Mutant("the second death costs nothing either", _BREAKER, "policy.delay(self.failures, draw) if self.failures else 0.0", "0.0"),
    Mutant("whoever goes around the breaker may do so at once again", "supervisor/breakers.py", "self._starts.now() >= self._bypass_at()", "True"),
    Mutant("restart intensity is not counted", _BREAKER, "return Intensity(times), len(times) > limit", "return Intensity(times), False"),
    Mutant("who waits for the breaker is not told when it admits again", "supervisor/breakers.py", "        if when > now:\n", "        if False:\n"),
    Mutant("a late connection is kept", _INCARNATION, "        self._cancelled = True\n        if self._scope is not None:\n", "        self._cancelled = True\n        if self._connection is not None and self._scope is not None:\n"),
    Mutant("a handshake that ends while it is being left makes it connected", _LIFECYCLE, "life.state in (State.DRAINING, State.CLOSED)\n\n\ndef step", "life.state is State.CLOSED\n\n\ndef step"),
    Mutant("queued calls are forgotten when their server has closed", _SERVER, "decision.then is ClosingAction.IDLE and self.is_awaited", "decision.then is ClosingAction.IDLE and self.is_waited_for"),
    Mutant("queued calls are forgotten when the connection is ready", _SERVER, "                case Effect.SERVE:\n                    self.calls.serve()", "                case Effect.SERVE:\n                    pass"),
    Mutant("calls in flight are forgotten at the drain deadline", _SERVER, "                case Effect.EXPIRE_CALLS:\n                    self.calls.expire_drained()", "                case Effect.EXPIRE_CALLS:\n                    pass"),
    Mutant("a call that was sent is sent again", "actors/call.py", "(self.reach is Reach.NOT_SENT or self.replayable)", "True"),
    Mutant("a lost call is sent again for ever", "actors/call.py", "return not self.lost_before and", "return"),
    Mutant("a call that is sent again goes to the end of the queue", _CALLS, "        if first:\n            self.waiting", "        if False:\n            self.waiting"),
    Mutant("a caller that leaves is not told to the server", _CALLS, "        incarnation.peer.abandon(call, reason)\n", ""),
    Mutant("a queued call whose caller left stays queued", _CALLS, "                self._end_waiting(call)\n            self", "                self._end(call)\n            self"),
    Mutant("the last waiter leaves its server in the queue", _CALLS, "            if not self.waiting:\n                self.record.withdraw_start(self.actor)", "            if False:\n                self.record.withdraw_start(self.actor)"),
    Mutant("the bound on queued calls is too high", _CALLS, "self.load.queued >= (self.record.definition.max_queued or settings.max_queued)", "self.load.queued > (self.record.definition.max_queued or settings.max_queued) + self.record.most_in_flight(settings)"),
    Mutant("the bound on calls in flight is not looked at", _CALLS, "        if self.load.in_flight >= self.record.most_in_flight(self.context.settings):\n", "        if False:\n"),
    Mutant("a draining server is sent queued calls", _CALLS, "if not self.waiting or self.actor.life.state is not CONNECTED:", "if not self.waiting or self.actor.peer is None:"),
    Mutant("draining waits for ever", _SERVER, "                    self.alarm.wake_by(self.life.deadline)\n", "                    pass\n"),
    Mutant("the idle time runs while calls are in flight", _SERVER, "if not self.is_idle or now < self.idle_until:", "if not self.is_connected or now < self.idle_until:"),
    Mutant("the idle time is not started by the last call", _SERVER, "self.idle_since = self.context.backend.now() if since is None else since", "self.idle_since = self.idle_since if since is None else since"),
    Mutant("a server that was taken down is brought back by a call", "supervisor/servers.py", "            self.available = self.available.unless_defined(down)\n", "            self.available = USABLE\n"),
    Mutant("what is kept alive stays down after a loss", "config/model.py", "RestartPolicy.ALWAYS if keep else", "RestartPolicy.ON_DEMAND if keep else"),
    Mutant("an older list of tools replaces a newer one", "actors/router.py", "if known is not None and entry.revision < known.revision:", "if False:"),
    Mutant("sessions share a child", _ROOT, "return Address.of_session(server, session)", "return Address.of_session(server, \"all\")"),
    Mutant("a session that ends leaves its children", _ROOT, "            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.SESSION_OVER), 0)\n", "            pass\n"),
    Mutant("a policy-only change restarts the process", "supervisor/reload.py", "        return \"live\"\n", "        return \"replace\"\n"),
    Mutant("a changed definition keeps the old process", "supervisor/reload.py", "    return \"replace\"\n", "    return \"live\"\n"),
    Mutant("a hung server is not declared lost", _CALLS, "        if hung:\n            actor.declare_hung()\n", ""),
    Mutant("a silent server is well", "actors/health.py", "            if self.misses:\n", "            if False:\n"),
    Mutant("one timer of several on one tick is lost", "actors/timers.py", "        for timer in held:\n            heapq.heappush(self._heap, timer)\n", ""),
    Mutant("calls in flight are forgotten when the connection is lost", _SERVER, "self.calls.lose_all(lost or LostReason(\"the connection was lost\"))", "pass"),
)
# fmt: on


def main() -> int:
    wanted = [
        mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in mutant.fault for word in sys.argv[1:])
    ]
    is_whole = len(wanted) == len(MUTANTS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        attempts = [
            pool.submit(_try, Path(folder) / str(number), mutant, shrinks=is_whole)
            for number, mutant in enumerate(wanted)
        ]
        fates: dict[Mutant, Fate] = {}
        for mutant, attempt in zip(wanted, attempts, strict=True):
            fates[mutant] = attempt.result()
            if is_whole:  # written as it goes: it takes its time
                REPORT.parent.mkdir(parents=True, exist_ok=True)
                REPORT.write_text(_report(fates), encoding="utf-8")
    survivors = [mutant.fault for mutant, fate in fates.items() if fate.missed]
    print(f"{len(wanted)} faults, {len(survivors)} not found in each of {RUNS} runs", *survivors, sep="\n  ")
    return bool(survivors)


def _try(copy: Path, mutant: Mutant, *, shrinks: bool) -> Fate:
    copy_tree(copy)
    path = copy / PACKAGE / mutant.file
    sound = path.read_text(encoding="utf-8")
    seeds = [random.randrange(1 << 32) for _ in range(RUNS)]
    if sound.count(mutant.old) != 1:
        print(
            f"{mutant.fault}: its text is there {sound.count(mutant.old)} times in {mutant.file}", flush=True
        )
        return Fate(None, tuple(seeds))
    path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    runs = _search(copy, seeds, mutant.search, shrinks=shrinks)
    shutil.rmtree(copy)
    fate = Fate(
        next((found for found in runs.values() if found is not None), None),
        tuple(seed for seed, found in runs.items() if found is None),
    )
    told = f"NOT FOUND from the seeds {fate.missed}" if fate.missed else f"found {RUNS} times"
    print(f"{mutant.fault}: {told}; {fate.first.law if fate.first else ''}", flush=True)
    return fate


def _search(copy: Path, seeds: list[int], search: str, *, shrinks: bool) -> dict[int, Found | None]:
    """What the search found from each seed, or None."""
    names = [str(seed) for seed in seeds]
    command = [
        sys.executable,
        "-c",
        RUN,
        str(LIMIT),
        names[0] if shrinks else "",
        search,
        str(EXAMPLES),
        *names,
    ]
    environment = {**os.environ, "PYTHONPATH": os.fspath(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    ended = {int(seed): int(status) for seed, status in _PAIR.findall(told)}
    return {seed: _outcome(copy / f"{seed}.txt", ended[seed]) for seed in seeds}


def _outcome(told: Path, status: int) -> Found | None:
    if status == -signal.SIGALRM:
        return Found("the search did not end", ())
    if status > 1:
        print(told.read_text(encoding="utf-8")[-2000:], flush=True)
    return _told(told.read_text(encoding="utf-8")) if status == 1 else None  # 1: a test failed


def _told(output: str) -> Found:
    lines = [line.removeprefix("E").strip() for line in output.splitlines() if line.startswith("E ")]
    law = next(
        (line for line in lines if line.startswith(("AssertionError", "greenroom"))),
        lines[0] if lines else "it broke",
    )
    steps = [line.removeprefix("state.") for line in lines if line.startswith("state.")]
    trace = tuple(step for step in steps if not step.startswith(("the_laws_hold", "teardown")))
    return Found(re.sub(r"\s+", " ", law.removeprefix("AssertionError: "))[:160], trace)


def _report(fates: dict[Mutant, Fate]) -> str:
    lines = [
        "# Faults the search finds",
        "",
        "Each was put into the runtime, alone, and the search over schedules was run against it with at most 1,000 examples,",
        f"with no other test, {RUNS} times from different seeds: what it said, and what it shrank the fault to. Made by",
        "`make mutants`.",
        "",
    ]
    for mutant, fate in fates.items():
        lines += [f"## {mutant.fault[0].upper()}{mutant.fault[1:]}", ""]
        lines += [f"`{mutant.file}`: found in {RUNS - len(fate.missed)} of {RUNS} runs.", ""]
        if fate.first is not None:
            lines += [f"> {fate.first.law}", ""]
            if fate.first.trace:
                lines += ["```python", *fate.first.trace, "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
