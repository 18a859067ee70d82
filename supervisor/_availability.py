"""Whether a server can be used, and if not, why: one value.

What keeps a server from being used is one of five things, each with the error that a call is refused with; that error's
text is made here and nowhere else. Its definition decides over what was done to it: a server that is disabled, broken
or removed is not drained on top of that, and is not brought back by its name.
"""

from __future__ import annotations

import enum

import attrs

from ..actors import login_needed
from ..protocol.config import ServerDefinition
from ..protocol.errors import CallError, ServerDown
from ..protocol.lifecycle import Ending, State


class Use(enum.Enum):
    USABLE = "usable"
    DOWN = "down"  # taken down on purpose, parked, or lost and not to be brought back: only its name brings it back
    NEEDS_LOGIN = "needs login"
    DISABLED = "disabled"
    BROKEN = "broken"  # its definition cannot be used
    REMOVED = "removed"  # no longer configured; here until nothing of it is left


_BY_DEFINITION = (Use.DISABLED, Use.BROKEN, Use.REMOVED)


@attrs.frozen
class Availability:
    use: Use
    refusal: CallError | None = None  # of a call; None when it can be used

    @property
    def is_usable(self) -> bool:
        return self.use is Use.USABLE

    @property
    def is_by_definition(self) -> bool:
        """Asking for it by name does not help."""
        return self.use in _BY_DEFINITION

    def unless_defined(self, other: Availability) -> Availability:
        """`other`, unless the definition decides already."""
        return self if self.is_by_definition else other


USABLE = Availability(Use.USABLE)


def defined(definition: ServerDefinition, problem: str | None = None) -> Availability:
    """As its definition has it. `problem`: why it cannot be used."""
    name = definition.name
    if problem is not None:
        error = ServerDown(f'Server "{name}" cannot be used: {problem}', server=name)
        error.code = "config_error"
        return Availability(Use.BROKEN, error)
    if definition.disabled:
        text = f'Server "{name}" is disabled. Remove "disabled": true from its entry to use it.'
        error = ServerDown(text, server=name)
        error.code = "server_disabled"
        return Availability(Use.DISABLED, error)
    return USABLE


def removed(server: str) -> Availability:
    text = f'Server "{server}" was removed from the configuration.'
    return Availability(Use.REMOVED, ServerDown(text, server=server))


def drained(server: str) -> Availability:
    text = f'Server "{server}" was drained. Connect or restart it to use it again.'
    return Availability(Use.DOWN, ServerDown(text, server=server))


def down_with(error: CallError) -> Availability:
    """An error of its own says why: a bug of ours, or what became of its last attempt."""
    return Availability(Use.DOWN, error)


def down_after(server: str, ending: Ending) -> Availability:
    text = f'Server "{server}" is down ({ending}). Connect or restart it to use it again.'
    return Availability(Use.DOWN, ServerDown(text, server=server))


def needs_login(server: str, detail: str) -> Availability:
    return Availability(Use.NEEDS_LOGIN, login_needed(server, detail))


def on_its_way_out(server: str, state: State, ending: Ending) -> CallError:
    """It can be used, and calls are refused all the same: what it ends for does not let them wait."""
    return ServerDown(f'Server "{server}" is {state.value} ({ending}).', server=server)


def call_is_over(server: str) -> CallError:
    """For calls to a call's own child, when that call has ended."""
    return ServerDown("its call is over", server=server)
