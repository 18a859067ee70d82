"""Runs it: `python -m tools.cluster [--head PART]`.

GREENROOM_CLUSTER_SECONDS: how long there are faults (120). GREENROOM_CLUSTER_CALLS: how many calls are in flight (200).
GREENROOM_SEED: brings a sequence of faults back; it does not determine their timing, nor who exists to be hit.
`--head`: one fault, instead: the head is killed, its store alone (`store`) or all of it (`all`). Exit status 1:
something was as it must not be, and is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from .course import Run
from .head import HeadRun, Part


def _ended(_number: int, _frame: object) -> None:
    sys.exit("the run was ended before its end")  # and cleans up


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--head", choices=[part.value for part in Part])
    head = parser.parse_args().head
    seed = os.environ.get("GREENROOM_SEED") or str(random.SystemRandom().randrange(2**32))
    seconds = float(os.environ.get("GREENROOM_CLUSTER_SECONDS") or 120)
    calls = int(os.environ.get("GREENROOM_CLUSTER_CALLS") or 200)
    what = f"whose head is killed ({head})" if head else f"under faults for {seconds:g} s"
    print(f"a cluster {what}, {calls} calls in flight: GREENROOM_SEED={seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="gr-cluster-"))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # of the hosts
    signal.signal(signal.SIGTERM, _ended)
    run = HeadRun(Part(head), seed, calls, folder) if head else Run(seed, seconds, calls, folder)
    wrong = run.course()
    for line in wrong[:40]:
        print(f"WRONG: {line}")
    if wrong:
        print(f"{len(wrong)} things must not be (GREENROOM_SEED={seed}; the books are in {folder})")
        return 1
    shutil.rmtree(folder)
    print(
        "every call had one outcome, nothing that was not sent has run, no server lived twice, nothing was left"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
