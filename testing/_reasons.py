"""Whether an ending had a reason, by the ground truth: what was done to the servers, and what was asked of the room."""

from __future__ import annotations

import math

from ..protocol.config import Lifecycle, ServerDefinition
from ..protocol.events import Transition
from ..protocol.lifecycle import Cause, Reason
from ._lives import EPS, GroundTruth, Life


class Reasons:
    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def has_reason(self, life: Life, event: Transition, cause: Cause) -> bool:
        server, was, asked = life.address.server, self.truth.was, self.truth.asked
        match cause:
            case Cause.IDLE_TIMEOUT:
                return self.was_idle(life, event)
            case Cause.EVICTED:
                return (
                    life.address.is_shared and not event.in_flight + event.queued and self._may_evict(event)
                )
            case Cause.CONNECT_FAILED:
                return was("failing", server, life.connecting_at)
            case Cause.LOST if event.reason in (Reason.UNRESPONSIVE, Reason.UNHEALTHY):
                return was("hung", server, life.connected_at)
            case Cause.LOST:
                return was("lost", server, event.at)
            case Cause.NEEDS_AUTH:
                return was("login", server, life.connecting_at)
            case Cause.BUG:
                return False
            case Cause.SCOPE_ENDED:
                return life.address.is_call or asked("scope ended", str(life.address), -math.inf)
            case Cause.SHUTDOWN:
                return asked("shutdown", "", -math.inf)
            case _:
                return asked(cause.value, server, life.connecting_at)

    def _definition(self, server: str) -> ServerDefinition | None:
        return self.truth.config.servers.get(server)

    def _may_evict(self, event: Transition) -> bool:
        """A keep-alive server must not be evicted, unless a reload has just changed that."""
        assert event.address is not None
        server = event.address.server
        changes = ("disabled", "removed", "reload", "drained")
        return not self._is_kept(server) or any(self.truth.asked(what, server, event.at) for what in changes)

    def was_idle(self, life: Life, event: Transition) -> bool:
        definition = self._definition(life.address.server)
        if definition is None or event.in_flight or event.queued or self._is_kept(life.address.server):
            return False
        limit = definition.idle_timeout
        if limit is None:
            is_eager = definition.lifecycle is Lifecycle.EAGER
            limit = 0.0 if is_eager else self.truth.config.settings.idle_timeout
        return bool(limit) and life.address.is_shared and event.at - life.rested_at >= limit - EPS

    def _is_kept(self, server: str) -> bool:
        definition = self._definition(server)
        return definition is not None and definition.lifecycle is Lifecycle.KEEP_ALIVE
