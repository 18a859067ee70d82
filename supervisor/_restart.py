"""What follows an ending: one table, and the restart intensity.

`AFTERMATH` is the table of `docs/decisions/restarts.md` (cause x lifecycle) as data; `after` refines its rows of `lost`
and of a bug of ours by the restart policy. If the row says so, queued calls fail with the error of the ending;
otherwise they wait for the next incarnation.

Restart intensity is OTP's rule, for each server. The times of starts after `lost` or `failed` are kept, as
long as they are within the period. More of them than the limit mean quarantine. A start counts even if its
handshake succeeds, because the rule is meant for a server that greets and dies a second later (66,487
processes in seven minutes, in one report).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from ..actors import Next
from ..protocol.config import Lifecycle, RestartPolicy, ServerDefinition
from ..protocol.effective import restart_policy
from ..protocol.lifecycle import Cause


@attrs.frozen
class After:
    then: Next
    fails_queued: bool  # queued calls fail now; else they wait


_LAZY, _EAGER, _KEEP = Lifecycle.LAZY, Lifecycle.EAGER, Lifecycle.KEEP_ALIVE


def _same(after: After) -> Mapping[Lifecycle, After]:
    return MappingProxyType(dict.fromkeys(Lifecycle, after))


_REST = _same(After(Next.IDLE, fails_queued=False))
_DOWN = _same(After(Next.DOWN, fails_queued=True))
_GONE = _same(After(Next.GONE, fails_queued=True))
_RENEW = MappingProxyType(
    {
        _LAZY: After(Next.IDLE, fails_queued=False),
        _EAGER: After(Next.CONNECT, fails_queued=False),
        _KEEP: After(Next.CONNECT, fails_queued=False),
    }
)
AFTERMATH: Final[Mapping[Cause, Mapping[Lifecycle, After]]] = MappingProxyType(
    {
        Cause.IDLE_TIMEOUT: _REST,
        Cause.EVICTED: _REST,
        Cause.CONNECT_FAILED: MappingProxyType(
            {
                _LAZY: After(Next.IDLE, fails_queued=True),
                _EAGER: After(Next.IDLE, fails_queued=True),
                _KEEP: After(Next.CONNECT, fails_queued=True),
            }
        ),
        Cause.LOST: _REST,  # refined by the restart policy, as
        Cause.BUG: _REST,
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
    RestartPolicy.NEVER: After(Next.DOWN, fails_queued=True),
    RestartPolicy.ON_DEMAND: After(Next.IDLE, fails_queued=False),
    RestartPolicy.ALWAYS: After(Next.CONNECT, fails_queued=False),
}


def after(cause: Cause, definition: ServerDefinition, general: RestartPolicy | None = None) -> After:
    """What follows this ending of a shared or session address. (`call:` addresses never restart.)"""
    if cause in (Cause.LOST, Cause.BUG):
        return _LOST[restart_policy(definition, general)]
    return AFTERMATH[cause][definition.lifecycle]


@attrs.frozen
class Intensity:
    """Times of restarts within the period, oldest first."""

    times: tuple[float, ...] = ()

    def restarted(self, now: float, limit: int, period: float) -> tuple[Intensity, bool]:
        """Count one restart. True when that was one too many."""
        times = (*(t for t in self.times if t > now - period), now)
        return Intensity(times), len(times) > limit
