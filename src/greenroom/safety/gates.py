"""The gates that a call passes on its way to its server's actor, in one ordered list.

| gate | asked | refuses, or holds |
|---|---|---|
| name | where the call begins | a name that no server has, or several |
| bytes held | while its server is looked for | parameters of waiting calls over the bound |
| profile | each time it is handed over | a server that this client does not see |
| rates | once | what is called too often, or over and over with the same arguments |
| approval | once | what a person has to allow: it waits for the yes |
| quarantine | by the actor, and again after each wait | a tool whose definition has changed |
| circuit breaker, places | by the actor, and again after each wait | a server that fails; a full queue |

Those that stand before the actor are `Gate`s, in `ServerList.gates`: a new one is one file, and one line there. A gate
decides about a `GateCase` and changes nothing: None lets the call pass, and a `Ruling` says that it is refused or held,
and what is to be noted of that. The notes are made, and the wait begins, at the rim (`is_held`). What holds a call has
it until it hands it over again by its `Passage`, past the gates that are asked once. The actor's own gates are asked
again after each wait, because what they look at changes meanwhile.

Rejected: gates as wrappers around the port. Each would have to know how a call ends. And gates that tell of their
decisions themselves: whoever only asks what would happen to a call could not ask them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..catalogue.namespace import Target
from ..protocol.errors import CallError

if TYPE_CHECKING:
    from ..actors.call import Call
    from ..catalogue.index import Index


class GateCase(msgspec.Struct, frozen=True, eq=False):
    """A call that is about to be handed to its server's actor. `index`: what is known where it is made. `profile`: what
    its client sees; None: everything."""

    session: str | None
    server: str
    call: Call
    index: Index
    profile: str | None = None

    def target_of(self, original: str) -> Target | None:
        """What is known of the tool that is called. `original`: its server's own name for it."""
        tool, index, server = self.call.tool, self.index, self.server
        found = index.get(tool) if tool is not None else index.resolve(original, server)
        is_it = isinstance(found, Target) and (found.server, found.original) == (server, original)
        return found if is_it and isinstance(found, Target) else None


class Passage(msgspec.Struct, frozen=True, eq=False):
    """How a held call goes on. `lease` keeps its server's connection from being evicted, and returns the function that
    ends this; `hand_over` hands the call to its actor, and raises the `CallError` with which that refuses it."""

    lease: Callable[[], Callable[[], None]]
    hand_over: Callable[[], None]


class Ruling(msgspec.Struct, frozen=True, eq=False):
    """What a gate decides. `error` refuses the call; `hold` begins to hold it; with neither it passes. `note` tells of
    the decision, or remembers it; None: there is nothing to tell."""

    note: Callable[[], None] | None = None
    error: CallError | None = None
    hold: Callable[[Passage], None] | None = None


class Gate(Protocol):
    def judge(self, case: GateCase) -> Ruling | None:
        """Whether the call may go on; None: it may. Changes nothing, does not wait, and raises nothing."""
        ...


def is_held(gates: Collection[Gate], case: GateCase, passage: Passage) -> bool:
    """Ask these gates in their order, and do what they decide. Raises the first refusal."""
    for gate in gates:
        ruling = gate.judge(case)
        if ruling is None:
            continue
        if ruling.note is not None:
            ruling.note()
        if ruling.error is not None:
            raise ruling.error
        if ruling.hold is not None:
            ruling.hold(passage)
            return True
    return False
