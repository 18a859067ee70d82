"""What counts as a stall: one long stretch counts, many short ones do not, and a slow machine may take longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from ._play import Called, Seen
from .watched import Longest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import time

import anyio

from greenroom.gateway.event_loop import GatewayLoop


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def main(steps, each):
    for _ in range(steps):
        burn(each)
        await anyio.lowlevel.checkpoint()
        await anyio.sleep(0)


kind, options = sys.argv[1], {}
if kind == "uvloop":
    kind, options = "asyncio", {"loop_factory": GatewayLoop}
anyio.run(main, int(sys.argv[2]), float(sys.argv[3]), backend=kind, backend_options=options)
"""


@pytest.mark.parametrize("kind", ["trio", "asyncio", "uvloop"])
@pytest.mark.parametrize(("steps", "each", "is_stall"), [(1, 0.06, True), (100, 0.001, False)])
def test_a_stall_is_one_stretch_and_no_sum_of_them(
    tmp_path: Path, kind: str, steps: int, each: float, is_stall: bool
) -> None:
    (tmp_path / "burning.py").write_text(PROGRAM)
    longest = Longest(os.fspath(tmp_path / "stretches"))
    watched = [sys.executable, "-m", "tests.hostile.watched", os.fspath(tmp_path / "stretches"), "burning"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    subprocess.run([*watched, kind, str(steps), str(each)], env=env, check=True, timeout=PATIENCE)

    stretch = longest.take()
    longest.close()

    assert (stretch > 0.05) is is_stall, f"{stretch * 1e3:.1f} ms"


@pytest.mark.parametrize(
    ("copy", "calm", "stall", "is_held_up"),
    [
        (0.005, 0.010, 0.045, False),
        (0.005, 0.010, 0.060, True),
        (0.003, 0.010, 0.060, True),  # memory that is faster allows no less, and no more
        (0.015, 0.010, 0.100, False),
        (0.015, 0.010, 0.200, True),
        (0.005, 0.040, 0.100, False),  # so slow was it before, too
    ],
)
def test_how_long_a_stretch_may_be(copy: float, calm: float, stall: float, is_held_up: bool) -> None:
    before, beside = (Called(took=each, burnt=each, stall=each) for each in (calm, stall))
    assert Seen([before], [beside], grown=0, copy=copy).is_held_up is is_held_up
