"""What follows an ending: the table, by the cause of the ending and the lifecycle of the server, and the rules before
it.

A closing room starts nothing any more. A discovery that has failed is tried again by `discovery`; after any other
ending it goes on until it has learned what its server has. A call's own child ends with its call; if it has moved while
the call waits, it is connected to again. If a server was taken down and somebody then asked for it by name, it gets the
next connection. The table decides everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ...actors.server import ClosingAction
from ...config.model import Lifecycle, RestartPolicy, ServerDefinition, restart_policy
from ...protocol.lifecycle import Cause, Means


class AfterEnding(msgspec.Struct, frozen=True):
    then: ClosingAction
    fails_queued: bool  # queued calls fail now; else they wait


_LAZY, _EAGER, _KEEP = Lifecycle.LAZY, Lifecycle.EAGER, Lifecycle.KEEP_ALIVE


def _same(after: AfterEnding) -> Mapping[Lifecycle, AfterEnding]:
    return MappingProxyType(dict.fromkeys(Lifecycle, after))


_IDLE = _same(AfterEnding(ClosingAction.IDLE, fails_queued=False))
_DOWN = _same(AfterEnding(ClosingAction.DOWN, fails_queued=True))
_GONE = _same(AfterEnding(ClosingAction.GONE, fails_queued=True))
_RENEW = MappingProxyType(
    {
        _LAZY: AfterEnding(ClosingAction.IDLE, fails_queued=False),
        _EAGER: AfterEnding(ClosingAction.CONNECT, fails_queued=False),
        _KEEP: AfterEnding(ClosingAction.CONNECT, fails_queued=False),
    }
)
AFTERMATH: Final[Mapping[Cause, Mapping[Lifecycle, AfterEnding]]] = MappingProxyType(
    {
        Cause.IDLE_TIMEOUT: _IDLE,
        Cause.EVICTED: _IDLE,
        Cause.CONNECT_FAILED: MappingProxyType(
            {
                _LAZY: AfterEnding(ClosingAction.IDLE, fails_queued=True),
                _EAGER: AfterEnding(ClosingAction.IDLE, fails_queued=True),
                _KEEP: AfterEnding(ClosingAction.CONNECT, fails_queued=True),
            }
        ),
        Cause.LOST: _IDLE,  # refined by the restart policy, as
        Cause.BUG: _IDLE,
        Cause.MOVED: _RENEW,
        Cause.RESTART: _RENEW,
        Cause.RELOAD: _RENEW,
        Cause.NEEDS_AUTH: _DOWN,
        Cause.DRAINED: _DOWN,
        Cause.DISABLED: _DOWN,
        Cause.REMOVED: _GONE,
        Cause.SCOPE_ENDED: _GONE,
        Cause.SHUTDOWN: _DOWN,
    }
)
_LOST: Final = {
    RestartPolicy.NEVER: AfterEnding(ClosingAction.DOWN, fails_queued=True),
    RestartPolicy.ON_DEMAND: AfterEnding(ClosingAction.IDLE, fails_queued=False),
    RestartPolicy.ALWAYS: AfterEnding(ClosingAction.CONNECT, fails_queued=False),
}


def after(cause: Cause, definition: ServerDefinition, general: RestartPolicy | None = None) -> AfterEnding:
    """What happens after this ending of a shared or session address. (`call:` addresses never restart.)"""
    if cause in (Cause.LOST, Cause.BUG):
        return _LOST[restart_policy(definition, general)]
    return AFTERMATH[cause][definition.lifecycle]


class ClosedIncarnation(msgspec.Struct, frozen=True):
    """An incarnation that has closed, as far as it matters to what follows. `definition`: the one that it follows."""

    cause: Cause
    definition: ServerDefinition
    general: RestartPolicy | None = None  # the restart policy of the settings
    is_closing: bool = False  # the room closes
    is_down: bool = False  # no call may use the server: it was taken down, and nobody has brought it back
    is_discovery: bool = False  # it was started to learn what its server has, which can be used
    is_shared: bool = True  # it was at the shared address
    is_of_call: bool = False  # it was started for one call, or for one discovery
    is_awaited: bool = False  # somebody waits for the next connection
    is_asked_by_name: bool = False  # one of them asked for it by name


def what_follows(it: ClosedIncarnation) -> AfterEnding:
    """What happens after this ending, and whether the calls that wait fail."""
    cause = it.cause
    if it.is_closing or cause is Cause.SHUTDOWN:
        return AfterEnding(ClosingAction.GONE, fails_queued=True)
    if it.is_discovery and cause.has(Means.KEEPS_DISCOVERIES):
        return _after_discovery(it)
    if it.is_of_call and not (cause is Cause.MOVED and it.is_awaited):
        return AfterEnding(ClosingAction.GONE, fails_queued=True)
    if it.is_asked_by_name and cause.has(Means.KEEPS_NAMES):
        return AfterEnding(ClosingAction.CONNECT, fails_queued=False)
    if it.is_asked_by_name and cause.has(Means.NO_START):  # asked for since the attempt failed
        return AfterEnding(ClosingAction.CONNECT, fails_queued=True)
    return after(as_it_counts(cause, is_down=it.is_down), it.definition, it.general)


def _after_discovery(it: ClosedIncarnation) -> AfterEnding:
    if it.cause is not Cause.CONNECT_FAILED:
        return AfterEnding(ClosingAction.CONNECT, fails_queued=False)
    if it.is_asked_by_name:  # asked for since the attempt failed
        return AfterEnding(ClosingAction.CONNECT, fails_queued=True)
    if it.definition.lifecycle is Lifecycle.KEEP_ALIVE and it.is_shared:
        return AfterEnding(ClosingAction.CONNECT, fails_queued=True)
    return AfterEnding(ClosingAction.GONE if it.is_of_call else ClosingAction.IDLE, fails_queued=True)


def as_it_counts(cause: Cause, *, is_down: bool) -> Cause:
    """The cause of an ending as it counts now. A server that was taken down, and brought back while it drained, is only
    to be replaced by its next incarnation, as after a reload."""
    return Cause.RELOAD if cause.has(Means.TAKEN_DOWN) and not is_down else cause
