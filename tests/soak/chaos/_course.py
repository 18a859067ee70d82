"""The course of a run: one long life with a calm after each phase, then short lives that end during the chaos."""

from __future__ import annotations

import enum
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import attrs

from . import _look as look
from ._calm import Calm
from ._events import EventLog
from ._faults import Burst, Fault, draw_faults, draw_work
from ._gateway import HELLO, Gateway
from ._ledger import Contradiction, Ledger
from ._loop import Loop
from ._report import Report
from ._server_file import TOOLS, ServerFile
from ._world import World

_GONE_WITHIN: Final = 20.0  # seconds from the gateway's end to that of everything it started
_GUARDED_WITHIN: Final = 20.0  # seconds from the end of a guard to the next one, on a busy machine
_MOST_OPEN: Final = 400  # requests; beyond that the client waits for answers before it asks for more
_LOOK_EVERY: Final = 1.0
_LOG_COMES_WITHIN: Final = 0.5  # seconds; an answer is quicker
_ODD: Final = ("Traceback", "a bug in Greenroom")


class Ending(enum.Enum):
    KILL = "the gateway is killed"
    EOF = "the client closes its end"
    VANISH = "the client is killed"
    TERM = "SIGTERM"
    TWICE = "SIGTERM, and again"


# How long each ending may take on a slow machine that is busy besides: five times what it takes on an idle one, which
# is 1.5 s when the client has gone, and else the drain and stop times.
_ENDS_WITHIN: Final = {
    Ending.KILL: 10.0,
    Ending.EOF: 10.0,
    Ending.VANISH: 10.0,
    Ending.TERM: 30.0,
    Ending.TWICE: 15.0,
}

# A gateway that must leave at once has set an alarm, in case the machine is too busy for an orderly end in 1.2 s.
_HURRIED: Final = (0, -signal.SIGALRM)
_CODES: Final = {
    Ending.KILL: (-signal.SIGKILL,),
    Ending.EOF: _HURRIED,
    Ending.VANISH: _HURRIED,
    Ending.TERM: (0,),
    Ending.TWICE: _HURRIED,
}


class ChaosFailed(AssertionError):
    """Something did not hold. The message has the seed, the last faults and events, and the survivors."""


@attrs.frozen
class Plan:
    """`seed`: decides what is done; `seconds`: about how long."""

    seed: str
    seconds: float

    @property
    def act(self) -> float:
        return min(15.0, self.seconds / 6)

    @property
    def short_life(self) -> float:
        return min(8.0, self.seconds / 4)


def run_chaos(plan: Plan, folder: Path) -> Report:
    """Run it in `folder` (empty, with a path short enough for sockets). Raises `ChaosFailed`."""
    course = _Course(plan, folder)
    course.run()
    return course.report


class _Course:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.report = Report(plan.seed)
        self._plan = plan
        self._folder = folder
        self._chance = random.Random(f"{plan.seed}/course")
        self._begun = time.monotonic()
        server_file = ServerFile(folder, "")
        self._faults: Iterator[Fault] = draw_faults(plan.seed, tuple(server_file.base()))
        self._work: Iterator[Burst] = draw_work(plan.seed, TOOLS)

    def run(self) -> None:
        half, end = self._begun + self._plan.seconds / 2, self._begun + self._plan.seconds
        self._live(0, half, self._chance.choice((Ending.TERM, Ending.EOF)))
        endings = itertools.cycle(self._chance.sample(list(Ending), len(Ending)))
        for number in itertools.count(1):
            if time.monotonic() >= end and number > 1:
                return
            self._live(number, None, Ending.KILL if number == 1 else next(endings))

    def _live(self, number: int, until: float | None, ending: Ending) -> None:
        """Run one gateway. `until`: repeat chaos and calm until then; None: a short life without a calm."""
        life = _Life(number, self._plan.seed, self._folder, self._chance, self._begun)
        try:
            life.begin()
            if until is None:
                self._act(life, self._plan.short_life)
            else:
                self._act_by_act(life, until)
            life.end(ending)
        except Contradiction as error:
            raise ChaosFailed(self._account(life, error)) from error
        finally:
            life.clear_away()
            self.report.add(life.world, life.log, life.calm, ending.value)

    def _act_by_act(self, life: _Life, until: float) -> None:
        for at in itertools.count():
            if at > 1 and time.monotonic() >= until:
                break
            self._act(life, self._plan.act)
            life.calm.come()
            self.report.held.append(life.calm.last)
        self._act(life, self._plan.act / 3)

    def _act(self, life: _Life, seconds: float) -> None:
        now = time.monotonic()
        until, looked = now + seconds, now
        fault, burst = next(self._faults), next(self._work)
        fault_due, burst_due = now + fault.pause, now + burst.pause
        while now < until:
            life.world.loop.run_for(min(fault_due, burst_due, until) - now)
            now = time.monotonic()
            if now >= fault_due:
                life.world.do(fault)
                fault = next(self._faults)
                fault_due = now + fault.pause
            if now >= burst_due and len(life.ledger.open) < _MOST_OPEN:
                life.world.work(burst)
                burst = next(self._work)
                burst_due = now + burst.pause
            if now >= looked + _LOOK_EVERY:
                looked = now
                life.look()

    def _account(self, life: _Life, error: Contradiction) -> str:
        survivors = [look.describe(pid) for pid in sorted(look.marked(life.server_file.token))]
        time.sleep(_LOG_COMES_WITHIN)
        log = life.stderr().splitlines()
        odd_at = next((at for at, line in enumerate(log) if any(odd in line for odd in _ODD)), len(log))
        parts = {
            "the last faults": list(life.world.done),
            "the last events": life.log.tail(25),
            "the last lines of its log": log[-15:],
            "its log from the first line that should not be there": log[odd_at : odd_at + 20],
            "the processes that are left": survivors,
        }
        told = "".join(
            f"\n\n{title}:\n" + "\n".join(f"  {line[:300]}" for line in lines)
            for title, lines in parts.items()
        )
        seed = f"GREENROOM_SEED={self._plan.seed} brings this sequence of faults back (life {life.number})."
        return f"{error}\n\n{seed}{told}"


class _Life:
    """One gateway from its start to its end."""

    def __init__(self, number: int, seed: str, folder: Path, chance: random.Random, begun: float) -> None:
        self.number = number
        self.ledger = Ledger()
        self.loop = Loop()
        self.server_file = ServerFile(folder, f"{seed}.{os.getpid()}.{number}")
        self.server_file.write()
        self._stderr = folder / f"stderr-{number}"
        self._file: IO[bytes] = self._stderr.open("wb")
        expose = chance.choice(("proxy", "direct"))
        gateway = self.gateway = Gateway(
            self.loop, self.server_file.config, expose, self._file, self.ledger.add_answer
        )
        self.world = World(self.loop, self.server_file, gateway, self.ledger, expose, begun)
        self.world.open()
        self.log = EventLog(gateway.events)
        self.calm = Calm(self.world, self.log)

    def begin(self) -> None:
        hello = self.world.ask("initialize", HELLO)
        if not self.loop.run_until(lambda: hello not in self.ledger.open, 60.0):
            raise Contradiction("the gateway did not answer `initialize` within 60 s")
        self.gateway.send({"method": "notifications/initialized"})
        if not self.loop.run_until(lambda: self.gateway.control is not None, 60.0):
            raise Contradiction("there was no control socket within 60 s")

    def look(self) -> None:
        """Check what must hold at any time."""
        if self.gateway.ended():
            raise Contradiction(f"the gateway ended by itself, with {self.gateway.process.returncode}")
        self.log.read_on()
        if not self.ledger.adds_up:
            raise Contradiction("the driver's own ledger does not add up")
        self._read_stderr()

    def end(self, ending: Ending) -> None:
        """End it during the chaos. Raises `Contradiction` when something is left, or it took too long."""
        self.loop.forget_alarms()  # stopped processes stay stopped; only the gateway and its client run
        self.gateway.process.send_signal(signal.SIGCONT)
        self.gateway.listen()
        self._wake_guard()
        polite = ending is Ending.TERM
        if polite:
            self._settle_accounts()
        begun = time.monotonic()
        self._bring_about(ending)
        if not self.loop.run_until(self.gateway.ended, _ENDS_WITHIN[ending]):
            raise Contradiction(f"{ending.value}: it was still there after {_ENDS_WITHIN[ending]}s")
        self.end_took = time.monotonic() - begun
        self._expect_nobody(ending)
        if polite:
            self._expect_answers()
        self._check_records()

    def _wake_guard(self) -> None:
        """A guard that was stopped goes on. One that was killed just now is first replaced: whoever kills the gateway
        together with its guard ends both that know of its servers, and no chaos of ours asks for that."""

        def there() -> bool:
            found = look.guard_of(self.gateway.pid) is not None or not look.marked(self.server_file.token)
            return found or self.gateway.ended()

        if not self.loop.run_until(there, _GUARDED_WITHIN):
            raise Contradiction(f"its servers run, and {_GUARDED_WITHIN}s later there is still no guard")
        if self.gateway.ended():
            raise Contradiction(f"the gateway ended by itself, with {self.gateway.process.returncode}")
        guard = look.guard_of(self.gateway.pid)
        if guard is not None:
            os.kill(guard, signal.SIGCONT)

    def _settle_accounts(self) -> None:
        """Send nothing more, and wait for one last ping: all earlier requests have been read when it is answered."""
        last = self.world.ask("ping")
        if not self.loop.run_until(lambda: last not in self.ledger.open, 60.0):
            raise Contradiction("a ping was not answered within 60 s")

    def _bring_about(self, ending: Ending) -> None:
        if ending is Ending.KILL:
            self.gateway.process.kill()
        elif ending is Ending.EOF:
            self.gateway.close_stdin()
        elif ending is Ending.VANISH:
            self.gateway.hang_up()
        else:
            self.gateway.process.terminate()
            if ending is Ending.TWICE:
                self.loop.after(0.2, self.gateway.process.terminate)

    def _expect_nobody(self, ending: Ending) -> None:
        def nobody() -> bool:
            return not look.marked(self.server_file.token) and look.guard_of(self.gateway.pid) is None

        if not self.loop.run_until(nobody, _GONE_WITHIN):
            raise Contradiction(
                f"{ending.value}: {_GONE_WITHIN}s later some of its processes are still there"
            )
        if self.gateway.process.returncode not in _CODES[ending]:
            raise Contradiction(f"{ending.value}: it ended with {self.gateway.process.returncode}")

    def _expect_answers(self) -> None:
        self.loop.run_until(lambda: not self.gateway.is_heard, 20.0)
        if self.ledger.open:
            unanswered = [request.what for request in self.ledger.open.values()]
            raise Contradiction(
                f"it drained and left, with {len(unanswered)} requests unanswered: {unanswered}"
            )

    def _check_records(self) -> None:
        self.log.read_on()
        if self.gateway.process.returncode == 0:
            self.log.check_end()
        self._read_stderr()

    def _read_stderr(self) -> None:
        odd = [line for line in self.stderr().splitlines() if any(word in line for word in _ODD)]
        if odd:
            raise Contradiction(f"its log says: {odd[:3]}")

    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def clear_away(self) -> None:
        """Remove everything that is left of this life, whatever happened."""
        self.gateway.close()
        self.world.close()
        self.loop.close()
        self._file.close()
        look.end_all(self.server_file.token)
