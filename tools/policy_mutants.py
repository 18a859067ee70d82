"""Change each number and rule of the policies, one at a time, and see a test go red.

A test that cannot fail proves nothing. `MUTANTS` lists what is changed: file, the text that is there, the text put in
its place, and the tests that must notice. Each runs in a copy of the tree, so the working tree is never touched; the
outcome is written to `.build/mutants/policies.md`. Words as arguments choose among them, and then nothing is written.
Exits 1 when a mutant survives or its text is no longer there.
"""

# ruff: noqa: E501  # a table: one mutant a line

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.package_tree import PACKAGE, copy_package, folder_of

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / ".build" / "mutants" / "policies.md"
COPIED = ("tests", "pyproject.toml")  # beside the package
LIMIT = 60.0  # seconds a mutant may hang


class Mutant(NamedTuple):
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def default_mutant(name: str, old: str, new: str, rule: str) -> Mutant:
    """Another default of a field of the model: the last thing that the field says. Raises `LookupError` when it is not
    `old` any more."""
    model = (folder_of(ROOT, "config") / "model.py").read_text(encoding="utf-8")
    fields = re.findall(rf"^    {name}: .*?\n(?=    [\w#]|\n)", model, re.MULTILINE | re.DOTALL)
    end = re.search(rf"(?<![\w.]){re.escape(old)}(?=,?\s*\)\s*\Z)", fields[-1]) if fields else None
    if end is None:
        raise LookupError(f"{rule}: the default of {name} in config/model.py is not {old}")
    mutated = fields[-1][: end.start()] + new + fields[-1][end.end() :]
    return Mutant(rule, "config/model.py", fields[-1], mutated, ("config/test_config_docs.py",))


_BREAKER, _POOL, _ROOT = "supervisor/policy/breaker.py", "supervisor/policy/pool.py", "supervisor/servers.py"
_CALLS, _ADMISSION, _RESTART = (
    "actors/call_queue.py",
    "supervisor/starts.py",
    "supervisor/servers.py",
)
_REST_ORDER = "supervisor/start_places.py"
_T_BREAKER, _T_POOL, _T_ROOM = (
    ("supervisor/test_circuit_breaker.py",),
    ("supervisor/test_pool.py",),
    ("supervisor/test_room.py",),
)
_T_ACTOR, _T_RELOAD, _T_APART = (
    ("actors/test_server_actor.py",),
    ("supervisor/test_reload.py",),
    ("supervisor/test_isolation.py",),
)
_WARM, _T_WARM = "supervisor/policy/warm.py", ("supervisor/test_warm_pool.py",)
_T_RESET = ("supervisor/test_reset_policy.py",)
_T_ROOM_POOL, _T_HEALTH = ("supervisor/test_room_pool.py",), ("supervisor/test_health.py",)

# fmt: off
MUTANTS = (
    default_mutant("lifecycle", "Lifecycle.LAZY", "Lifecycle.EAGER", "lifecycle: lazy by default"),
    default_mutant("idle_timeout", "600.0", "601.0", "idle: 10 min"),
    default_mutant("connect_timeout", "30.0", "31.0", "clocks: connect 30 s"),
    default_mutant("call_timeout", "60.0", "61.0", "clocks: call 60 s"),
    default_mutant("call_total_timeout", "600.0", "601.0", "clocks: 10 min in all"),
    default_mutant("install_timeout", "600.0", "601.0", "clocks: connect and install 10 min"),
    default_mutant("install_turns", "2", "3", "start: two install at once"),
    default_mutant("drain_timeout", "10.0", "11.0", "clocks: drain 10 s"),
    default_mutant("stop_timeout", "5.0", "6.0", "clocks: stop 5 s"),
    default_mutant("max_connections", "20", "21", "pool: 20 slots"),
    default_mutant("min_connections", "0", "1", "pool: min 0"),
    default_mutant("reserve_connections", "0", "1", "pool: reserve 0"),
    default_mutant("reserve_timeout", "5.0", "6.0", "pool: reserve timeout 5 s"),
    default_mutant("acquire_timeout", "30.0", "31.0", "pool: acquire timeout 30 s"),
    default_mutant("start_permits", "10", "11", "start: 10 at once"),
    default_mutant("max_in_flight", "256", "257", "bounds: 256 in flight"),
    default_mutant("max_queued", "1024", "1025", "bounds: 1,024 queued"),
    default_mutant("backoff_min", "1.0", "2.0", "breaker: from 1 s"),
    default_mutant("backoff_max", "60.0", "61.0", "breaker: up to 60 s"),
    default_mutant("backoff_jitter", "0.2", "0.3", "breaker: jitter 20 %"),
    default_mutant("failure_threshold", "5", "6", "breaker: 5 failures"),
    default_mutant("cooldown", "30.0", "31.0", "breaker: cooldown 30 s"),
    default_mutant("stable_after", "30.0", "31.0", "breaker: an answer after 30 s resets"),
    default_mutant("restart_intensity", "5", "6", "intensity: 5"),
    default_mutant("restart_period", "60.0", "61.0", "intensity: in 60 s"),
    default_mutant("health_interval", "30.0", "31.0", "health: every 30 s"),
    default_mutant("bootstrap", "True", "False", "start: discovery by default"),
    Mutant("breaker: doubles", _BREAKER, "2.0 ** min", "3.0 ** min", _T_BREAKER),
    Mutant("breaker: the first death costs nothing", _BREAKER, "if self.failures else 0.0", "if self.failures else 1.0", _T_BREAKER),
    Mutant("breaker: at the threshold", _BREAKER, "failures >= policy.threshold", "failures > policy.threshold", _T_BREAKER),
    Mutant("breaker: at least the cooldown", _BREAKER, "max(delay, policy.cooldown)", "delay", _T_BREAKER),
    Mutant("breaker: one probe", _BREAKER, "probing=True), Admission.PROBE", "probing=False), Admission.PROBE", _T_BREAKER),
    Mutant("breaker: stable means so long", _BREAKER, "connected_for >= policy", "connected_for > policy", _T_BREAKER),
    Mutant("breaker: an answer resets a tripped one", _BREAKER, "self.tripped or connected_for", "connected_for", _T_BREAKER),
    Mutant("breaker: quarantine ends", _BREAKER, "now + policy.cooldown)\n        return", "math.inf)\n        return", _T_BREAKER),
    Mutant("breaker: timeouts alone refuse nothing", _BREAKER, "now, reason, 0.0)", "now, reason, 1.0)", _T_BREAKER),
    Mutant("breaker: a cancelled probe is passed on", "supervisor/breakers.py", "        if self.probe is not call:\n            return\n", "        return\n", _T_ROOM),
    Mutant("breaker: only silence counts", _CALLS, "heard <= call.sent_at for call", "True for call", _T_ROOM),
    Mutant("breaker: silence counts once", _CALLS, "silent and self.record.silent(actor)", "silent and [self.record.silent(actor) for _ in expired][-1]", _T_ROOM),
    Mutant("breaker: a hung one is lost", _CALLS, "        if hung:\n            actor.declare_hung()\n", "", _T_ROOM),
    Mutant("breaker: bypass once a second", "supervisor/breakers.py", "BYPASS_EVERY = 1.0", "BYPASS_EVERY = 0.5", _T_ROOM),
    Mutant("breaker: a session's deaths are its own", "supervisor/breakers.py", "ending.cause is Cause.CONNECT_FAILED and not ending.is_of_caller:", "not ending.is_of_caller:", _T_APART),
    Mutant("intensity: more than the limit", _BREAKER, "len(times) > limit", "len(times) >= limit", ("supervisor/test_restart.py",)),
    Mutant("intensity: within the period", _BREAKER, "t > now - period", "t > now - 2 * period", ("supervisor/test_restart.py",)),
    Mutant("restart: keep-alive comes back", "config/model.py", "RestartPolicy.ALWAYS if keep", "RestartPolicy.ON_DEMAND if keep", ("supervisor/test_restart.py",)),
    Mutant("restart: an eviction is no restart", "supervisor/servers.py", "        actor.start.by_policy = False\n        if not ending", "        actor.start.by_policy, actor.start.after_failure = False, True\n        if not ending", _T_ROOM),
    Mutant("restart: what is lost while it makes way has not failed", "supervisor/servers.py", "        if not ending.cause.has(Means.FAILED):\n            return", "        if False:\n            return", _T_ROOM),
    Mutant("pool: longest idle is the victim", _POOL, "return self._read[: max(0, count)]", "return self._read[len(self._read) - max(0, count) :]", _T_POOL),
    Mutant("pool: read longest idle first", _REST_ORDER, "elif actor.idle_since > since:", "elif False:", _T_ROOM_POOL),
    Mutant("pool: first come, first served", _POOL, "for one in it.waiting if", "for one in reversed(tuple(it.waiting)) if", _T_POOL),
    Mutant("pool: never over the slots", _POOL, "return it.shared < capacity +", "return it.shared <= capacity +", _T_POOL),
    Mutant("pool: the reserve is for the patient", _POOL, "is_open = it.now >= _earned_at(it, head)", "is_open = True", _T_POOL),
    Mutant("pool: a freed reserve slot is not handed on", _POOL, "max(waiter.since, it.reserve_from)", "waiter.since", _T_POOL),
    Mutant("pool: over the slots the idle go", _POOL, "return max(surplus, min(", "return max(0, min(", _T_POOL),
    Mutant("pool: the minimum against pressure", _POOL, "min(it.candidates - it.leaving, max(it.warm, it.staying - it.limits.minimum))", "it.candidates - it.leaving", _T_POOL),
    Mutant("pool: no minimum keeps what nobody has used", _POOL, "max(it.warm, it.staying - it.limits.minimum)", "it.staying - it.limits.minimum", _T_WARM),
    Mutant("pool: what is warm counts for no minimum", _POOL, "it.staying - max(len(gone), it.warm)", "it.staying - len(gone)", _T_WARM),
    Mutant("warm: never the last free slot", _WARM, "free > 1", "free > 0", _T_WARM),
    Mutant("warm: no more than the entry says", _WARM, "held < server.wanted(it.now) and", "held <= server.wanted(it.now) and", _T_WARM),
    Mutant("warm: half the slots for one server's calls", _WARM, "in_group < it.most_of_group", "in_group <= it.most_of_group", _T_WARM),
    Mutant("warm: none before the backoff is over", _WARM, "it.now >= server.since", "True", _T_WARM),
    Mutant("warm: the emptiest server first", _WARM, "emptiest = min(", "emptiest = max(", _T_WARM),
    Mutant("warm: none after the idle time", _WARM, "0 if now >= self.until", "0 if False", _T_WARM),
    Mutant("warm: one is tried when many have died", _WARM, "min(self.most, 1) if self.is_probed", "self.most if self.is_probed", _T_WARM),
    Mutant("warm: those in use that come back are there", _WARM, "return self.held + self.in_use", "return self.held", _T_WARM),
    Mutant("warm: those in use are not ended", _WARM, "min(each.held, each.there - each.wanted(it.now))", "each.there - each.wanted(it.now)", _T_WARM),
    Mutant("reset: none for who waits for a slot", _WARM, "if it.is_waited_for:", "if False:", _T_RESET),
    Mutant("reset: none with something left", _WARM, "if it.lasting is not None:", "if False:", _T_RESET),
    Mutant("reset: none whose session is not over", _WARM, "if not it.is_over:", "if False:", _T_RESET),
    Mutant("reset: none of an older definition", _WARM, "if not it.is_current:", "if False:", _T_RESET),
    Mutant("reset: none by a tool that has changed", _WARM, "if it.is_changed:", "if False:", _T_RESET),
    Mutant("reset: no more than there may be", _WARM, "it.server.there >= it.server.wanted(now)", "it.server.there > it.server.wanted(now)", _T_RESET),
    Mutant("reset: an error is none", _WARM, 'if result.get("isError", False) is not False:', "if False:", _T_RESET),
    Mutant("reset: only a complete result", _WARM, 'if result.get("resultType", "complete") != "complete":', "if False:", _T_RESET),
    Mutant("reset: a call that goes on lasts", _WARM, "and not any(name in _LASTING_PARAMS for name in params or ())", "", _T_RESET),
    Mutant("reset: only for who would say the same", _WARM, "for place, child in enumerate(free) if child.fits]", "for place, child in enumerate(free)]", _T_RESET),
    Mutant("warm: no more than may start", _WARM, "len(starts) < it.permits", "len(starts) <= it.permits", _T_WARM),
    Mutant("pool: the minimum against idle time", _POOL, "return staying > limits.minimum", "return staying >= limits.minimum", _T_POOL),
    Mutant("pool: one slot is left for the rest", _ROOT, "islice(self._kept, self.context.settings.max_connections - 1)", "tuple(self._kept)", _T_RELOAD),
    Mutant("pool: a slot set aside is given back", "supervisor/servers.py", "return self.definition.lifecycle is _KEEP_ALIVE and may_live", "return may_live", _T_RELOAD),
    Mutant("pool: set aside within the bound", _POOL, "return it.shared <= capacity + reserve", "return True", _T_POOL),
    Mutant("pool: half the slots for one server's scopes", _POOL, "self.slots // 2)", "self.slots)", _T_POOL),
    Mutant("pool: one victim for each waiter", _POOL, "min(it.candidates - it.leaving,", "min(it.candidates,", _T_POOL),
    Mutant("pool: a stopping child keeps its slot", _ADMISSION, "        actor.stop(Ending(Cause.EVICTED, reason=reason))", "        actor.stop(Ending(Cause.EVICTED, reason=reason))\n        self.move(self.places.at(Place.LIVE).get(actor) or self.places.at(Place.LEAVING)[actor], actor, Place.OUT)", _T_ROOM_POOL),
    Mutant("pool: a cancelled waiter leaves no trace", "supervisor/starts.py", "            self.move(record, actor, Place.OUT)\n            record.breaker", "            record.breaker", _T_ROOM_POOL),
    Mutant("pool: a session's child rests for a minute", _REST_ORDER, "SESSION_REST: Final = 60.0", "SESSION_REST: Final = 30.0", ("supervisor/test_isolation.py",)),
    Mutant("pool: it is looked at again when one has rested", _POOL, "math.inf if it.idle.has(wanted) else", "math.inf if True else", _T_POOL),
    Mutant("pool: sessions have slots of their own", _REST_ORDER, "return self._held[False] - self._kept_held", "return sum(self._held.values()) - self._kept_held", ("supervisor/test_isolation.py",)),
    Mutant("pool: 100 slots for sessions", "config/model.py", "        \"How many children of sessions may run at a time (`isolation` is `per_session`).\",\n        100,", "        \"How many children of sessions may run at a time (`isolation` is `per_session`).\",\n        50,", ("supervisor/test_isolation.py",)),
    Mutant("permits: so many and no more", _ADMISSION, "self.places.count(Place.STARTING) >= permits", "self.places.count(Place.STARTING) > permits", _T_ROOM),
    Mutant("idle: eager never", "config/model.py", "0.0 if definition.lifecycle is Lifecycle.EAGER else", "1.0 if definition.lifecycle is Lifecycle.EAGER else", _T_ROOM),
    Mutant("idle: keep-alive never", "config/model.py", "    if definition.lifecycle is Lifecycle.KEEP_ALIVE:\n        return math.inf\n", "", _T_ROOM),
    Mutant("idle: counts from the last end", "actors/server.py", "self.idle_since = self.context.backend.now() if since is None else since", "self.idle_since = self.connected_at", _T_ROOM),
    Mutant("isolation: persistent by default", "config/references.py", "return definition.isolation or Isolation.PERSISTENT", "return definition.isolation or Isolation.PER_CALL", _T_APART),
    Mutant("isolation: per session refuses without one", _ROOT, "if session is None:", "if False:", _T_APART),
    Mutant("isolation: a call's child goes with it", "actors/server.py", "if self._is_of_call and not self.leases and", "if False and", _T_APART),
    Mutant("health: keep-alive only", "supervisor/servers.py", "keeps = self.definition.lifecycle is _KEEP_ALIVE and", "keeps =", _T_HEALTH),
    Mutant("health: one miss is a suspicion", "actors/health.py", "            if self.misses:\n", "            if True:\n", _T_HEALTH),
    Mutant("health: any byte is proof", "actors/health.py", "last_heard + interval > now", "False", _T_HEALTH),
    Mutant("health: an answer in the same tick", "actors/health.py", "last_heard < self.asked_at", "last_heard <= self.asked_at", _T_HEALTH),
    Mutant("calls: the bound in flight", _CALLS, "load.in_flight < record.most_in_flight(context.settings)", "True", _T_ACTOR),
    Mutant("calls: the bound queued", _CALLS, "self.load.queued >= (", "self.load.queued > (", _T_ACTOR),
    Mutant("calls: a place goes to the next scope", _CALLS, "        while load.held and", "        while False and", _T_APART),
    Mutant("calls: progress up to the total", _CALLS, "min(self.context.backend.now() + call.timeout, call.total_deadline)\n        watchers", "self.context.backend.now() + call.timeout\n        watchers", _T_ACTOR),
    Mutant("calls: not_sent survives once", "actors/call.py", "not self.lost_before and (", "(", _T_ACTOR),
    Mutant("calls: sent is replayed only if harmless", "actors/call.py", "or self.replayable)", "or True)", _T_ACTOR),
    Mutant("connect: deadline from the permit", "actors/connection.py", "context.backend.now(), self._limit, most, self._usual", "context.backend.now(), self._limit / 2, most, self._usual", _T_ROOM),
    Mutant("reload: policy applies live", _ROOT, "            elif not same_process:", "            elif True:", _T_RELOAD),
    Mutant("reload: enabled again while stopping", "supervisor/policy/endings.py", "if cause.has(Means.TAKEN_DOWN) and", "if False and", _T_RELOAD),
    Mutant("connect by name means the next attempt", "actors/server.py", "life.incarnation + is_over", "life.incarnation", _T_ROOM_POOL),
)
# fmt: on


def main() -> int:
    wanted = [
        mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in mutant.rule for word in sys.argv[1:])
    ]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_tree(copy)
        killers = {mutant: _try(copy, mutant) for mutant in wanted}
    if len(wanted) == len(MUTANTS):
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(_report(killers), encoding="utf-8")
    survivors = [mutant.rule for mutant, killer in killers.items() if killer is None]
    print(f"{len(wanted)} mutants, {len(survivors)} survived", *survivors, sep="\n  ")
    return bool(survivors)


def copy_tree(folder: Path) -> None:
    """What tests need of the working tree, the package as one tree."""
    copy_package(ROOT, folder / PACKAGE)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, folder / name, symlinks=True, ignore=skipped)
        else:
            shutil.copy(source, folder / name)


def _try(copy: Path, mutant: Mutant) -> str | None:
    """The test that died of it, or None."""
    path = copy / PACKAGE / mutant.file
    sound = path.read_text(encoding="utf-8")
    if sound.count(mutant.old) != 1:
        print(
            f"{mutant.rule}: its text is there {sound.count(mutant.old)} times in {mutant.file}", flush=True
        )
        return None
    path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        killer = _run(copy, mutant.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
    print(f"{mutant.rule}: {killer or 'SURVIVED'}", flush=True)
    return killer


def _run(copy: Path, tests: tuple[str, ...]) -> str | None:
    command = [sys.executable, "-m", "pytest", "-qx", "--no-header", "-p", "no:cacheprovider"]
    command += ["-k", "not asyncio and not real", *(f"tests/{test}" for test in tests)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GREENROOM_MUTANTS": "1",
    }
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]}: it hung"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split()[1].removeprefix("tests/") if failed else f"{tests[0]}: it broke"


def _report(killers: dict[Mutant, str | None]) -> str:
    lines = [
        "# Policy mutants",
        "",
        "Each number and rule of the policies, changed; and the test that noticed. Made by `make mutants`.",
        "",
        "| changed | where | the test that died |",
        "|---|---|---|",
    ]
    for mutant, killer in killers.items():
        lines.append(f"| {mutant.rule} | `{mutant.file}` | {f'`{killer}`' if killer else '**none**'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
