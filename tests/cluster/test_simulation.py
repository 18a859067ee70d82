"""A small cluster in virtual time, with every fault of the plan: no server ever has two children."""

from __future__ import annotations

import random

from benchmarks.cluster_simulation import Size, simulate


def test_no_shared_server_has_two_children_whatever_befalls_a_cluster() -> None:
    seed = random.getrandbits(32)
    world = simulate(Size(hosts=15, servers=120, sessions=400, calls=40.0, slots=30), seed)
    assert world.doubles == 0, f"seed {seed}"
    calls = sum(second.calls for second in world.seconds)
    lost = sum(second.lost + second.refused for second in world.seconds)
    assert calls > 5_000, f"seed {seed}"
    assert lost < calls / 20, f"seed {seed}: {lost} of {calls}"
