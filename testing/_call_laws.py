"""The laws about calls: each is accepted, sent in order to a connected server, and ends once.

A gate that has tripped lets one call through at a time. Answers also tell something about the gates; that is recorded
here too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.events import CallAccepted, CallEnded, CallEvent, CallSent, Event
from ..protocol.lifecycle import State
from ._lives import GroundTruth, Life, Lives


class CallLaws:
    """`report` notes a violation."""

    def __init__(self, truth: GroundTruth, lives: Lives, report: Callable[[Event, str], None]) -> None:
        self.truth = truth
        self.lives = lives
        self.report = report
        self.accepted: dict[int, Life] = {}
        self.ended: dict[int, int] = {}
        self.outcomes: dict[str, int] = {}

    def read(self, event: CallEvent) -> None:
        assert event.address is not None
        life, number = self.lives.of(event.address), event.call
        match event:
            case CallAccepted():
                self.accepted[number] = life
                life.unsent[number] = None
            case CallSent():
                self._on_sent(life, number, event)
            case CallEnded():
                self._on_ended(life, number, event)
            case _:
                pass

    def _on_sent(self, life: Life, number: int, event: CallSent) -> None:
        if life.state is not State.CONNECTED:
            self.report(event, f"sent while {life.state.value}")
        if number in self.ended:
            self.report(event, "sent after its end")
        first = next(iter(life.unsent), number)
        if number in life.unsent and first != number and not self._may_overtake(life):
            self.report(event, f"call {first} was accepted before it")
        life.unsent.pop(number, None)
        self._check_probe(life, event)
        life.open[number] = event.at
        life.sends[number] = life.sends.get(number, 0) + 1

    def _check_probe(self, life: Life, event: CallSent) -> None:
        """A tripped gate lets only one call through at a time, until an answer has opened it."""
        gate = self.lives.gate(life.address)
        if gate.is_tripped:
            before = [
                number
                for other in self.lives.all.values()
                if self.lives.gate(other.address) is gate
                for number, since in other.open.items()
                if since > gate.tripped_at
            ]
            # The answer that opens a gate lets the next go before its own end is told. That it did is believed for this
            # one moment; what is in flight decides who is there besides.
            if before and event.in_flight > 1 and gate.said_open_at < event.at:
                self.report(event, f"call {before[0]} is the probe already")

    def _may_overtake(self, life: Life) -> bool:
        """A full pipe takes what comes when it takes again; the fake one forgets what it did not take."""
        return self.truth.was("full pipe", life.address.server, life.connected_at)

    def _on_ended(self, life: Life, number: int, event: CallEnded) -> None:
        self.ended[number] = self.ended.get(number, 0) + 1
        if self.ended[number] > 1:
            self.report(event, "its second outcome")
        if number not in self.accepted:
            self.report(event, "it was never accepted")
        was_sent = life.open.pop(number, None) is not None
        life.unsent.pop(number, None)
        life.rested_at = event.at
        outcome = event.outcome
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        gate = self.lives.gate(life.address)
        if outcome in ("result", "remote_error"):
            gate.answered(event.at, event.at - life.connected_at)
        elif outcome == "timeout" and (was_sent or life.state is State.CONNECTED):
            gate.timed_out(event.at)
