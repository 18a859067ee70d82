"""Whether a server can be used, and if not, why: one value.

There are five reasons why a server cannot be used. Each has the error that refuses a call, and the text of that error
is made only here. The definition comes before what was done to the server: a server that is disabled, broken or removed
is not also drained, and a connect by name does not bring it back.
"""

from __future__ import annotations

import enum

import msgspec

from ...actors.peer import login_needed
from ...config.model import ServerDefinition
from ...protocol.errors import DISABLED, CallError, Problem, ServerDown
from ...protocol.lifecycle import Ending, State
from ...protocol.safe_text import typed


class AvailabilityState(enum.Enum):
    USABLE = "usable"
    # Taken down on purpose, or lost and not to be restarted. A connect by name brings it back.
    DOWN = "down"
    NEEDS_LOGIN = "needs login"
    DISABLED = "disabled"
    BROKEN = "broken"  # its definition cannot be used
    REMOVED = "removed"  # no longer configured; the record stays until nothing of the server is left


_BY_DEFINITION = (AvailabilityState.DISABLED, AvailabilityState.BROKEN, AvailabilityState.REMOVED)


class Availability(msgspec.Struct, frozen=True):
    state: AvailabilityState
    refusal: CallError | None = None  # the error that refuses a call; None when it can be used

    @property
    def is_usable(self) -> bool:
        return self.state is AvailabilityState.USABLE

    @property
    def is_by_definition(self) -> bool:
        """Whether the definition is the reason, so that a connect by name does not help."""
        return self.state in _BY_DEFINITION

    def unless_defined(self, other: Availability) -> Availability:
        """`other`, unless this availability follows from the definition, which counts more."""
        return self if self.is_by_definition else other


USABLE = Availability(AvailabilityState.USABLE)


def defined(definition: ServerDefinition, problem: Problem | None = None) -> Availability:
    """The availability that follows from the definition. `problem`: why it cannot be used."""
    name = definition.name
    if problem is not None:
        error = ServerDown(f'Server "{name}" cannot be used: {problem}', server=name)
        error.code = problem.code
        return Availability(AvailabilityState.BROKEN, error)
    if definition.disabled:
        text = f'Server "{name}" is disabled. To use it again: greenroom enable {typed(name)}'
        error = ServerDown(text, server=name)
        error.code = DISABLED
        return Availability(AvailabilityState.DISABLED, error)
    return USABLE


def removed(server: str) -> Availability:
    text = f'Server "{server}" was removed from the configuration. Add it again to use it.'
    return Availability(AvailabilityState.REMOVED, ServerDown(text, server=server))


def drained(server: str) -> Availability:
    text = f'Server "{server}" was drained. Connect or restart it to use it again.'
    return Availability(AvailabilityState.DOWN, ServerDown(text, server=server))


def down_with(error: CallError) -> Availability:
    """The server is down with this error: a bug of ours that ends it for good, or the failure of its last attempt to
    connect."""
    return Availability(AvailabilityState.DOWN, error)


def down_after(server: str, ending: Ending) -> Availability:
    text = f'Server "{server}" is down ({ending}). Connect or restart it to use it again.'
    return Availability(AvailabilityState.DOWN, ServerDown(text, server=server))


def needs_login(server: str, detail: str) -> Availability:
    return Availability(AvailabilityState.NEEDS_LOGIN, login_needed(server, detail))


def on_its_way_out(server: str, state: State, ending: Ending) -> CallError:
    """The refusal for a server that can be used but is ending, for a reason that does not let calls wait."""
    return ServerDown(f'Server "{server}" is {state.value} ({ending}).', server=server)


def call_is_over(server: str) -> CallError:
    """The refusal for further calls to a child that was made for one call, when that call has ended."""
    return ServerDown("its call is over", server=server)
