"""What an entry and the settings say together: the entry first, then the settings, then what its lifecycle means.

One rule each, because the supervisor obeys it and `greenroom explain` tells it.
"""

from __future__ import annotations

import math

from .config import Lifecycle, RestartPolicy, ServerDefinition, Settings


def idle_time(definition: ServerDefinition, settings: Settings) -> float:
    """After how many seconds without a call a connected server is stopped; infinite: never. An eager server that was
    given no time of its own stays."""
    if definition.lifecycle is Lifecycle.KEEP_ALIVE:
        return math.inf
    seconds = definition.idle_timeout
    if seconds is None:
        seconds = 0.0 if definition.lifecycle is Lifecycle.EAGER else settings.idle_timeout
    return seconds or math.inf


def restart_policy(definition: ServerDefinition, general: RestartPolicy | None = None) -> RestartPolicy:
    """The restart policy: the server's own, or that of the settings (`general`), or the default of its
    lifecycle."""
    chosen = definition.restart_policy or general
    if chosen is not None:
        return chosen
    keep = definition.lifecycle is Lifecycle.KEEP_ALIVE
    return RestartPolicy.ALWAYS if keep else RestartPolicy.ON_DEMAND
