"""Runs it: `python -m tools.cluster [--head PART [--how SIGNAL] [--kept WHERE]]`.

GREENROOM_CLUSTER_SECONDS: how long there are faults (120). GREENROOM_CLUSTER_CALLS: how many calls are in flight (200).
GREENROOM_SEED: brings a sequence of faults back; it does not determine their timing, nor who exists to be hit.
`--head`: one fault, instead: the head is lost, its store alone (`store`) or all of it (`all`), by SIGKILL, or by
SIGTERM with `--how term`. `--kept redis` or `rocksdb`: its store outlives it, and it is started again at once.
REDIS_SERVER: names the program, if it is not on the path. Exit status 1: something was as it must not be, and is
printed.
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

from .course import HeadLoss, Part, head_comes_back, loses_head, play, under_faults
from .store import Store, kept_in
from .testbed import Testbed


def _ended(_number: int, _frame: object) -> None:
    sys.exit("the run was ended before its end")  # and cleans up


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--head", type=Part, choices=list(Part), metavar="PART")
    parser.add_argument("--how", choices=["kill", "term"], default="kill")
    parser.add_argument("--kept", type=Store, choices=list(Store), metavar="WHERE")
    asked = parser.parse_args()
    if asked.kept and not asked.head:
        parser.error("--kept says what becomes of a head that is lost: name its part with --head")
    seed = os.environ.get("GREENROOM_SEED") or str(random.SystemRandom().randrange(2**32))
    seconds = float(os.environ.get("GREENROOM_CLUSTER_SECONDS") or 120)
    calls = int(os.environ.get("GREENROOM_CLUSTER_CALLS") or 200)
    if asked.head is None:
        course, what = under_faults(seed, seconds), f"under faults for {seconds:g} s"
    else:
        loss = HeadLoss(asked.head, signal.Signals[f"SIG{asked.how.upper()}"])
        course = loses_head(loss) if asked.kept is None else head_comes_back(loss)
        what = f"that loses its head ({asked.head.value}, {loss.number.name})"
    print(f"a cluster {what}, {calls} calls in flight: GREENROOM_SEED={seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="gr-cluster-"))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # of the hosts
    signal.signal(signal.SIGTERM, _ended)
    with kept_in(asked.kept, folder):
        wrong = play(course, Testbed(seed, calls, folder))
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
