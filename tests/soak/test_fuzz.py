"""Fuzzes all code that reads bytes from outside, guided by branch coverage (`tests/soak/fuzz`).

Every test run gives each target its seeds, which include earlier findings. With `make soak` each target is then fuzzed
for GREENROOM_FUZZ_SECONDS.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak.fuzz._seeds import SEEDS
from tests.soak.fuzz._targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SECONDS = os.environ.get("GREENROOM_FUZZ_SECONDS") or ("30" if "GREENROOM_SOAK" in os.environ else "")


def test_every_target_has_its_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_stays_found(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)
        TARGETS[name](seed[: len(seed) // 2])


if SECONDS:

    @pytest.mark.parametrize("name", TARGETS)
    def test_nothing_is_found(name: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tests.soak.fuzz", name, SECONDS, os.fspath(tmp_path / name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        if done.returncode:
            found = [path.read_bytes() for path in (tmp_path / name).glob("*-*")]
            pytest.fail(f"{name}: {found!r}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}", pytrace=False)
