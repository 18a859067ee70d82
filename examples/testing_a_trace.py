"""A trace that a search has shrunk to, as a test of its own: `pytest testing_a_trace.py`."""

from greenroom.testing import World


def test_a_caller_that_leaves_does_not_stop_the_others() -> None:
    world = World({"notes": {}}, seed=7)
    try:
        world.faults.slow_down("notes", "start", 1.0)
        world.call("notes", count=2)
        world.cancel(world.pending[0])
        world.advance(1.0)
        assert [call.outcomes for call in world.calls] == [["cancelled"], ['{"n": 1, "who": null}']]
        assert world.servers["notes"].starts == 1
    finally:
        world.run.close()
