"""`greenroom serve` with real children under random faults: a few seconds in every test run, a minute with `make
chaos`, ten minutes with `make soak`. GREENROOM_SEED repeats a sequence of faults."""

from __future__ import annotations

import os
import random
import tempfile
from itertools import islice
from pathlib import Path

from tests.soak.chaos import Plan, draw_faults, draw_work, run_chaos

FULL, SHORT = 600.0, 4.0  # seconds


def seconds() -> float:
    return float(
        os.environ.get("GREENROOM_CHAOS_SECONDS") or (FULL if "GREENROOM_SOAK" in os.environ else SHORT)
    )


def test_the_sequence_of_faults_follows_from_the_seed() -> None:
    def drawn(seed: str) -> tuple[object, ...]:
        faults = draw_faults(seed, ("a", "b"))
        work = draw_work(seed, (("a", "echo"),))
        return (*islice(faults, 500), *islice(work, 500))

    assert drawn("one") == drawn("one")
    assert drawn("one") != drawn("another")


def test_chaos() -> None:
    seed = os.environ.get("GREENROOM_SEED") or str(random.SystemRandom().randrange(2**32))
    plan = Plan(seed, seconds())
    print(f"\nchaos for {plan.seconds:g} s: GREENROOM_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gr-") as folder:  # a short path: there is a socket in it
        print(run_chaos(plan, Path(folder)))
