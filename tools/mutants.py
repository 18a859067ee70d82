"""Break the policies and the runtime in one place at a time, by hand, and see a test go red.

A test that cannot fail proves nothing. `MUTANTS` says what is changed: the file, the text that is there, the text put in
its place, and the tests that must notice. Those without tests of their own are faults that a runtime like this can have:
the search over schedules must find them, with no other test, `RUNS` times in a row, each time from another seed. What is
found by luck is not found. (`make soak` draws more examples than are drawn here, `make test` fewer; most faults need a
few.) What mutmut changes by itself is not here: `tools.mutate`.

Each runs in a copy of the tree, so the working tree is never touched. Words as arguments choose among the faults. Exits
1 when one is not noticed, or its text is no longer there.
"""

# ruff: noqa: E501  # a table: one mutant a line

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.package_tree import PACKAGE, ROOT, copy_package

SEARCH = "whole/test_lifecycle_search.py::TestRooms"
RESETS = "supervisor/test_reset_search.py::TestResets"  # the same, of children that are used again
# How many times those that a search itself names: about a thousand.
EXAMPLES = {SEARCH: "4", RESETS: "10"}
RUNS = 3
SIDE_BY_SIDE = 2


class Mutant(NamedTuple):
    fault: str
    file: str
    old: str
    new: str
    tests: str = SEARCH


# Not here, since the runtime is built so that they cannot be: a second outcome of one call (whoever ends a call has taken
# it off its list before, so the look at `ended` in `Call.finish` finds nothing), and a late message of an earlier
# incarnation (the task that sends them has ended before the next one begins).
# fmt: off
MUTANTS = (
    Mutant("breaker: at least the cooldown", "supervisor/policy/breaker.py", "max(delay, policy.cooldown)", "delay", "supervisor/test_circuit_breaker.py"),
    Mutant("breaker: quarantine ends", "supervisor/policy/breaker.py", "now + policy.cooldown)\n        return", "math.inf)\n        return", "supervisor/test_circuit_breaker.py"),
    Mutant("breaker: a cancelled probe is passed on", "supervisor/breakers.py", "        if self.probe is not call:\n            return\n", "        return\n", "supervisor/test_room.py"),
    Mutant("breaker: only silence counts", "actors/call_queue.py", "heard <= call.sent_at for call", "True for call", "supervisor/test_room.py"),
    Mutant("breaker: silence counts once", "actors/call_queue.py", "silent and self.record.silent(actor)", "silent and [self.record.silent(actor) for _ in expired][-1]", "supervisor/test_room.py"),
    Mutant("breaker: bypass once a second", "supervisor/breakers.py", "BYPASS_EVERY = 1.0", "BYPASS_EVERY = 0.5", "supervisor/test_room.py"),
    Mutant("breaker: a session's deaths are its own", "supervisor/breakers.py", "ending.cause is Cause.CONNECT_FAILED and not ending.is_of_caller:", "not ending.is_of_caller:", "supervisor/test_isolation.py"),
    Mutant("restart: keep-alive comes back", "config/model.py", "RestartPolicy.ALWAYS if keep", "RestartPolicy.ON_DEMAND if keep", "supervisor/test_restart.py"),
    Mutant("restart: an eviction is no restart", "supervisor/servers.py", "        actor.start.by_policy = False\n        if not ending", "        actor.start.by_policy, actor.start.after_failure = False, True\n        if not ending", "supervisor/test_room.py"),
    Mutant("restart: what is lost while it makes way has not failed", "supervisor/servers.py", "        if not ending.cause.has(Means.FAILED):\n            return", "        if False:\n            return", "supervisor/test_room.py"),
    Mutant("pool: longest idle is the victim", "supervisor/policy/pool.py", "return self._read[: max(0, count)]", "return self._read[len(self._read) - max(0, count) :]", "supervisor/test_pool.py"),
    Mutant("pool: read longest idle first", "supervisor/start_places.py", "elif actor.idle_since > since:", "elif False:", "supervisor/test_room_pool.py"),
    Mutant("pool: first come, first served", "supervisor/policy/pool.py", "for one in it.waiting if", "for one in reversed(tuple(it.waiting)) if", "supervisor/test_pool.py"),
    Mutant("pool: the reserve is for the patient", "supervisor/policy/pool.py", "is_open = it.now >= _earned_at(it, head)", "is_open = True", "supervisor/test_pool.py"),
    Mutant("pool: a freed reserve slot is not handed on", "supervisor/policy/pool.py", "max(waiter.since, it.reserve_from)", "waiter.since", "supervisor/test_pool.py"),
    Mutant("pool: over the slots the idle go", "supervisor/policy/pool.py", "return max(surplus, min(", "return max(0, min(", "supervisor/test_pool.py"),
    Mutant("pool: the minimum against pressure", "supervisor/policy/pool.py", "min(it.candidates - it.leaving, max(it.warm, it.staying - it.limits.minimum))", "it.candidates - it.leaving", "supervisor/test_pool.py"),
    Mutant("pool: no minimum keeps what nobody has used", "supervisor/policy/pool.py", "max(it.warm, it.staying - it.limits.minimum)", "it.staying - it.limits.minimum", "supervisor/test_warm_pool.py"),
    Mutant("pool: what is warm counts for no minimum", "supervisor/policy/pool.py", "it.staying - max(len(gone), it.warm)", "it.staying - len(gone)", "supervisor/test_warm_pool.py"),
    Mutant("warm: none before the backoff is over", "supervisor/policy/warm.py", "it.now >= server.since", "True", "supervisor/test_warm_pool.py"),
    Mutant("warm: the emptiest server first", "supervisor/policy/warm.py", "emptiest = min(", "emptiest = max(", "supervisor/test_warm_pool.py"),
    Mutant("warm: none after the idle time", "supervisor/policy/warm.py", "0 if now >= self.until", "0 if False", "supervisor/test_warm_pool.py"),
    Mutant("warm: one is tried when many have died", "supervisor/policy/warm.py", "min(self.most, 1) if self.is_probed", "self.most if self.is_probed", "supervisor/test_warm_pool.py"),
    Mutant("warm: those in use are not ended", "supervisor/policy/warm.py", "min(each.held, each.there - each.wanted(it.now))", "each.there - each.wanted(it.now)", "supervisor/test_warm_pool.py"),
    Mutant("reset: none for who waits for a slot", "supervisor/policy/warm.py", "if it.is_waited_for:", "if False:", "supervisor/test_reset_policy.py"),
    Mutant("reset: none by a tool that has changed", "supervisor/policy/warm.py", "if it.is_changed:", "if False:", "supervisor/test_reset_policy.py"),
    Mutant("reset: no more than there may be", "supervisor/policy/warm.py", "it.server.there >= it.server.wanted(now)", "it.server.there > it.server.wanted(now)", "supervisor/test_reset_policy.py"),
    Mutant("reset: only for who would say the same", "supervisor/policy/warm.py", "for place, child in enumerate(free) if child.fits]", "for place, child in enumerate(free)]", "supervisor/test_reset_policy.py"),
    Mutant("pool: one slot is left for the rest", "supervisor/servers.py", "islice(self._kept, self.context.settings.max_connections - 1)", "tuple(self._kept)", "supervisor/test_reload.py"),
    Mutant("pool: a slot set aside is given back", "supervisor/servers.py", "return self.definition.lifecycle is _KEEP_ALIVE and may_live", "return may_live", "supervisor/test_reload.py"),
    Mutant("pool: set aside within the bound", "supervisor/policy/pool.py", "return it.shared <= capacity + reserve", "return True", "supervisor/test_pool.py"),
    Mutant("pool: a stopping child keeps its slot", "supervisor/starts.py", "        actor.stop(Ending(Cause.EVICTED, reason=reason))", "        actor.stop(Ending(Cause.EVICTED, reason=reason))\n        self.move(self.places.at(Place.LIVE).get(actor) or self.places.at(Place.LEAVING)[actor], actor, Place.OUT)", "supervisor/test_room_pool.py"),
    Mutant("pool: a cancelled waiter leaves no trace", "supervisor/starts.py", "            self.move(record, actor, Place.OUT)\n            record.breaker", "            record.breaker", "supervisor/test_room_pool.py"),
    Mutant("pool: a session's child rests for a minute", "supervisor/start_places.py", "SESSION_REST: Final = 60.0", "SESSION_REST: Final = 30.0", "supervisor/test_isolation.py"),
    Mutant("pool: it is looked at again when one has rested", "supervisor/policy/pool.py", "math.inf if it.idle.has(wanted) else", "math.inf if True else", "supervisor/test_pool.py"),
    Mutant("pool: sessions have slots of their own", "supervisor/start_places.py", "return self._held[False] - self._kept_held", "return sum(self._held.values()) - self._kept_held", "supervisor/test_isolation.py"),
    Mutant("pool: 100 slots for sessions", "config/model.py", "        \"How many children of sessions may run at a time (`isolation` is `per_session`).\",\n        100,", "        \"How many children of sessions may run at a time (`isolation` is `per_session`).\",\n        50,", "supervisor/test_isolation.py"),
    Mutant("idle: eager never", "config/model.py", "0.0 if definition.lifecycle is Lifecycle.EAGER else", "1.0 if definition.lifecycle is Lifecycle.EAGER else", "supervisor/test_room.py"),
    Mutant("idle: keep-alive never", "config/model.py", "    if definition.lifecycle is Lifecycle.KEEP_ALIVE:\n        return math.inf\n", "", "supervisor/test_room.py"),
    Mutant("isolation: persistent by default", "config/references.py", "return definition.isolation or Isolation.PERSISTENT", "return definition.isolation or Isolation.PER_CALL", "supervisor/test_isolation.py"),
    Mutant("isolation: per session refuses without one", "supervisor/servers.py", "if session is None:", "if False:", "supervisor/test_isolation.py"),
    Mutant("isolation: a call's child goes with it", "actors/server.py", "if self._is_of_call and not self.leases and", "if False and", "supervisor/test_isolation.py"),
    Mutant("health: keep-alive only", "supervisor/servers.py", "keeps = self.definition.lifecycle is _KEEP_ALIVE and", "keeps =", "supervisor/test_health.py"),
    Mutant("health: any byte is proof", "actors/health.py", "last_heard + interval > now", "False", "supervisor/test_health.py"),
    Mutant("health: an answer in the same tick", "actors/health.py", "last_heard < self.asked_at", "last_heard <= self.asked_at", "supervisor/test_health.py"),
    Mutant("calls: the bound in flight", "actors/call_queue.py", "busy < self.record.most_in_flight(context.settings)", "True", "actors/test_server_actor.py"),
    Mutant("calls: the bound queued", "actors/call_queue.py", "self.load.queued >= (", "self.load.queued > (", "actors/test_server_actor.py"),
    Mutant("calls: a place goes to the next scope", "actors/call_queue.py", "        while load.held and", "        while False and", "supervisor/test_isolation.py"),
    Mutant("calls: progress up to the total", "actors/call_queue.py", "min(self.context.backend.now() + call.timeout, call.total_deadline)\n        watchers", "self.context.backend.now() + call.timeout\n        watchers", "actors/test_server_actor.py"),
    Mutant("calls: not_sent survives once", "actors/call.py", "not self.lost_before and (", "(", "actors/test_server_actor.py"),
    Mutant("calls: sent is replayed only if harmless", "actors/call.py", "or self.replayable)", "or True)", "actors/test_server_actor.py"),
    Mutant("connect: deadline from the permit", "actors/connection.py", "context.backend.now(), self._limit, most, self._usual", "context.backend.now(), self._limit / 2, most, self._usual", "supervisor/test_room.py"),
    Mutant("reload: policy applies live", "supervisor/servers.py", "            elif not same_process:", "            elif True:", "supervisor/test_reload.py"),
    Mutant("reload: enabled again while stopping", "supervisor/policy/endings.py", "if cause.has(Means.TAKEN_DOWN) and", "if False and", "supervisor/test_reload.py"),
    Mutant("connect by name means the next attempt", "actors/server.py", "life.incarnation + is_over", "life.incarnation", "supervisor/test_room_pool.py"),
    Mutant("a child is used again without a reset", "supervisor/warm_pool.py", "why = await why_not_reset_by(tool, peer, backend, timers, within, self._streams)", "why = None", RESETS),
    Mutant("a child is used again after a reset that failed", "supervisor/warm_pool.py", "        if why is None:\n            self.state = WarmState.READY", "        if True:\n            self.state = WarmState.READY", RESETS),
    Mutant("a child is used again with an answer still to come", "supervisor/warm_pool.py", "lasting=child.noted.left if child.noted is not None else None,", "lasting=None,", RESETS),
    Mutant("a child is taken over before its reset is over", "supervisor/warm_pool.py", "        if child.state is not WarmState.RESETTING:\n            child.state = WarmState.CLAIMED", "        child.state = WarmState.CLAIMED", RESETS),
    Mutant("one child for two sessions", "supervisor/warm_pool.py", "return self.state in _FREE and self.claimed_by is None", "return self.state in (*_FREE, WarmState.CLAIMED)", "supervisor/test_reset.py"),
    Mutant("a child that comes back has no slot", "supervisor/warm_pool.py", "        child.claimed_by = None\n        self.starts.places.hold(child)\n", "        child.claimed_by = None\n        if child.state is not WarmState.RETURNED:\n            self.starts.places.hold(child)\n", RESETS),
    Mutant("more children come back than there may be", "supervisor/policy/warm.py", 'return "there are enough children" if it.server.there >= it.server.wanted(now) else None', "return None", "supervisor/test_reset_policy.py"),
    Mutant("eviction ignores calls in flight", "actors/server.py", "self.life.state is CONNECTED and self.has_nothing_to_do and", "self.life.state is CONNECTED and"),
    Mutant("eviction takes what is kept alive", "supervisor/start_places.py", "        if self.is_kept(actor):\n            actor.is_listed_idle = True\n            return\n", ""),
    Mutant("nobody is evicted while others wait", "supervisor/policy/pool.py", "return max(surplus, min(it.candidates - it.leaving, max(it.warm, it.staying - it.limits.minimum)))", "return surplus"),
    Mutant("the slot comes back before the tree is gone", "actors/server.py", "                case Effect.STOP_TREE:\n", "                case Effect.STOP_TREE:\n                    self.record.servers.starts.move(self.record, self, Place.OUT)\n"),
    Mutant("the slot is never given back", "supervisor/servers.py", "        servers.starts.move(self, actor, Place.OUT)\n        decision", "        servers.starts.move(self, actor, Place.LIVE)\n        decision"),
    Mutant("waiters for a slot are served last come, first served", "supervisor/slot_queue.py", "next(iter(line.items()))\n            if arrived == number:", "next(reversed(line.items()))\n            if arrived >= number:"),
    Mutant("a permit is kept when its holder leaves", "supervisor/servers.py", "        servers.starts.move(self, actor, Place.OUT)\n        decision", "        if actor.start.place is not Place.STARTING:\n            servers.starts.move(self, actor, Place.OUT)\n        decision"),
    Mutant("a permit is kept after a start", "supervisor/servers.py", "Place.OUT if holds_none else Place.LIVE", "Place.OUT if holds_none else actor.start.place"),
    Mutant("waiters for a permit are served last come, first served", "supervisor/starts.py", "actor, record = self.places.first(Place.PERMIT)", "actor, record = next(reversed(tuple(self.places.at(Place.PERMIT).items())))"),
    Mutant("a slot that comes back is nobody's", "supervisor/starts.py", "        self.look()\n        if actor.start.place is Place.SLOT", "        if actor.start.place is Place.SLOT"),
    Mutant("whoever is on the way out is asked to go again", "supervisor/start_places.py", "        if actor.start.place is Place.LIVE:\n", "        if False:\n"),
    Mutant("one permit too many", "supervisor/starts.py", "self.places.count(Place.STARTING) >= permits", "self.places.count(Place.STARTING) > permits"),
    Mutant("the half-open flag sticks when the probe leaves", "supervisor/breakers.py", "        if self.probe is who:\n", "        if False:\n"),
    Mutant("half-open passes everybody", "supervisor/policy/breaker.py", "if now < self.refuses_until or self.probing:", "if now < self.refuses_until:"),
    Mutant("the breaker forgives at a handshake", "supervisor/breakers.py", "        self.probe_left(actor)\n        if self.state.tripped and", "        self._set(CircuitBreaker(), BreakerMove.ANSWERED)\n        self.probe_left(actor)\n        if self.state.tripped and"),
    Mutant("an early answer forgives the failures before it", "supervisor/policy/breaker.py", "if self.tripped or connected_for >= policy.stable_after:", "if True:"),
    Mutant("a failed start does not make the breaker refuse", "supervisor/policy/breaker.py", "return self._failed(policy, now, reason, policy.delay(self.failures + 1, draw))", "return self"),
    Mutant("the second death costs nothing either", "supervisor/policy/breaker.py", "policy.delay(self.failures, draw) if self.failures else 0.0", "0.0"),
    Mutant("whoever goes around the breaker may do so at once again", "supervisor/breakers.py", "self._starts.now() >= self._bypass_at()", "True"),
    Mutant("restart intensity is not counted", "supervisor/policy/breaker.py", "return Intensity(times), len(times) > limit", "return Intensity(times), False"),
    Mutant("who waits for the breaker is not told when it admits again", "supervisor/breakers.py", "        if when > now:\n", "        if False:\n"),
    Mutant("a late connection is kept", "actors/connection.py", "        self._cancelled = True\n        if self._scope is not None:\n", "        self._cancelled = True\n        if self._connection is not None and self._scope is not None:\n"),
    Mutant("a handshake that ends while it is being left makes it connected", "protocol/lifecycle.py", "life.state in (State.DRAINING, State.CLOSED)\n\n\ndef step", "life.state is State.CLOSED\n\n\ndef step"),
    Mutant("queued calls are forgotten when their server has closed", "actors/server.py", "decision.then is ClosingAction.IDLE and self.is_awaited", "decision.then is ClosingAction.IDLE and self.is_waited_for"),
    Mutant("queued calls are forgotten when the connection is ready", "actors/server.py", "                case Effect.SERVE:\n                    self.calls.serve()", "                case Effect.SERVE:\n                    pass"),
    Mutant("calls in flight are forgotten at the drain deadline", "actors/server.py", "                case Effect.EXPIRE_CALLS:\n                    self.calls.expire_drained()", "                case Effect.EXPIRE_CALLS:\n                    pass"),
    Mutant("a call that was sent is sent again", "actors/call.py", "(self.reach is Reach.NOT_SENT or self.replayable)", "True"),
    Mutant("a lost call is sent again for ever", "actors/call.py", "return not self.lost_before and", "return"),
    Mutant("a call that is sent again goes to the end of the queue", "actors/call_queue.py", "        if first:\n            self.waiting", "        if False:\n            self.waiting"),
    Mutant("a caller that leaves is not told to the server", "actors/call_queue.py", "        incarnation.peer.abandon(call, reason)\n", ""),
    Mutant("a queued call whose caller left stays queued", "actors/call_queue.py", "                self._end_waiting(call)\n            self", "                self._end(call)\n            self"),
    Mutant("the last waiter leaves its server in the queue", "actors/call_queue.py", "            if not self.waiting:\n                self.record.withdraw_start(self.actor)", "            if False:\n                self.record.withdraw_start(self.actor)"),
    Mutant("the bound on queued calls is too high", "actors/call_queue.py", "self.load.queued >= (self.record.definition.max_queued or settings.max_queued)", "self.load.queued > (self.record.definition.max_queued or settings.max_queued) + self.record.most_in_flight(settings)"),
    Mutant("the bound on calls in flight is not looked at", "actors/call_queue.py", "        if self.load.in_flight >= self.record.most_in_flight(self.context.settings):\n", "        if False:\n"),
    Mutant("a draining server is sent queued calls", "actors/call_queue.py", "if not self.waiting or self.actor.life.state is not CONNECTED:", "if not self.waiting or self.actor.peer is None:"),
    Mutant("draining waits for ever", "actors/server.py", "                    self.alarm.wake_by(self.life.deadline)\n", "                    pass\n"),
    Mutant("the idle time runs while calls are in flight", "actors/server.py", "if not self.is_idle or now < self.idle_until:", "if not self.is_connected or now < self.idle_until:"),
    Mutant("the idle time is not started by the last call", "actors/server.py", "self.idle_since = since = self.context.backend.now() if since is None else since", "self.idle_since = since = self.idle_since if since is None else since"),
    Mutant("a server that was taken down is brought back by a call", "supervisor/servers.py", "            self.available = self.available.unless_defined(down)\n", "            self.available = USABLE\n"),
    Mutant("what is kept alive stays down after a loss", "config/model.py", "RestartPolicy.ALWAYS if keep else", "RestartPolicy.ON_DEMAND if keep else"),
    Mutant("an older list of tools replaces a newer one", "actors/router.py", "if known is not None and entry.revision < known.revision:", "if False:"),
    Mutant("sessions share a child", "supervisor/servers.py", "return Address.of_session(server, session)", "return Address.of_session(server, \"all\")"),
    Mutant("a session that ends leaves its children", "supervisor/servers.py", "            actor.stop(Ending(Cause.SCOPE_ENDED, reason=Reason.SESSION_OVER), 0)\n", "            pass\n"),
    Mutant("a policy-only change restarts the process", "supervisor/reload.py", "        return \"live\"\n", "        return \"replace\"\n"),
    Mutant("a changed definition keeps the old process", "supervisor/reload.py", "    return \"replace\"\n", "    return \"live\"\n"),
    Mutant("a hung server is not declared lost", "actors/call_queue.py", "        if hung:\n            actor.declare_hung()\n", ""),
    Mutant("a silent server is well", "actors/health.py", "            if self.misses:\n", "            if False:\n"),
    Mutant("one timer of several on one tick is lost", "actors/timers.py", "        for timer in held:\n            heapq.heappush(self._heap, timer)\n", ""),
    Mutant("calls in flight are forgotten when the connection is lost", "actors/server.py", "self.calls.lose_all(lost or LostReason(\"the connection was lost\"))", "pass"),
)
# fmt: on


def main() -> int:
    words = sys.argv[1:]
    wanted = [it for it in MUTANTS if not words or any(word in it.fault for word in words)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as workers:
        noticed = [*workers.map(_is_noticed, wanted)]
    missed = [it.fault for it, is_noticed in zip(wanted, noticed, strict=True) if not is_noticed]
    print(f"{len(wanted)} mutants by hand, {len(missed)} not noticed", *missed, sep="\n  ")
    return bool(missed)


def _is_noticed(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_package(ROOT, copy / PACKAGE)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / PACKAGE / mutant.file
        sound = path.read_text(encoding="utf-8")
        if sound.count(mutant.old) != 1:
            said = [f"its text is there {sound.count(mutant.old)} times in {mutant.file}"]
            is_noticed = False
        else:
            path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
            times = RUNS if mutant.tests in EXAMPLES else 1
            runs = [_first_failure(copy, mutant.tests) for _ in range(times)]
            said = [run or "NOT NOTICED" for run in runs]
            is_noticed = None not in runs
    print(f"{mutant.fault}:", *dict.fromkeys(said), sep="\n    ", flush=True)
    return is_noticed


def _first_failure(copy: Path, tests: str) -> str | None:
    """What pytest says of the first test that fails, or None: all pass."""
    command = [sys.executable, "-m", "pytest", "-qx", "--no-header", "-p", "no:cacheprovider"]
    command += ["-k", "not asyncio and not real", "-o", "faulthandler_timeout=0"]
    command += [f"--hypothesis-seed={random.randrange(1 << 32)}", f"tests/{tests}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GREENROOM_MUTANTS": EXAMPLES.get(tests, "1"),
        "COLUMNS": "200",
    }
    limit = 900.0 if tests in EXAMPLES else 60.0  # seconds
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return "it hung"
    if done.returncode == 0:
        return None
    failed = (line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    return next(failed, "it broke").removeprefix("FAILED tests/")


if __name__ == "__main__":
    sys.exit(main())
