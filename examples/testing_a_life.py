"""A display of servers must be right whatever happens to them: `lifecycle_events` draws what can."""

from hypothesis import given

from greenroom.protocol.lifecycle import Effect, Life, State
from greenroom.testing import strategies

LIGHTS = {
    State.IDLE: "off",
    State.CONNECTING: "yellow",
    State.CONNECTED: "green",
    State.DRAINING: "yellow",
    State.CLOSED: "off",
}


class Display:
    """The code under test: one light for one server."""

    light = "off"

    def show(self, life: Life) -> None:
        self.light = LIGHTS[life.state]


@given(strategies.lifecycle_events())
def test_the_light_is_off_when_nothing_runs(walk: list[strategies.Occurrence]) -> None:
    life, display, stopped = Life(), Display(), False
    for occurrence in walk:
        life, effects = occurrence.apply(life)  # `step` of the table, with the occurrence's own ending
        stopped = stopped or Effect.STOP_TREE in effects
        display.show(life)
        assert (display.light == "green") == (life.state is State.CONNECTED)
    if life.state is State.CLOSED and len(walk) > 1:
        assert stopped, "a process was started, so it was told to stop"
    if life.state is State.CLOSED:
        assert life.ending is not None
