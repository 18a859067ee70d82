"""Reload: go from one configuration to the next with as few changes as possible.

A plan compares two configurations before anything is changed, so it can be shown (`dry_run`). Each server is in exactly
one of five groups:

* *kept*: nothing differs. Its actor, process and calls do not notice the reload.
* *applied live*: only policy differs. The process is kept (`policy_only_change`).
* *replaced*: another definition. Calls in flight finish on the old incarnation; the next one uses the new definition.
* *started*: a new server.
* *removed*: it drains and ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..config.definition_identity import policy_only_change
from ..config.model import Config, ServerDefinition, Settings, with_settings
from ..config.references import isolation_of


class ReloadPlan(msgspec.Struct, frozen=True):
    """What a reload does with each server: names, in the order of the new configuration (`remove`: of the old)."""

    keep: tuple[str, ...] = ()  # unchanged
    live: tuple[str, ...] = ()  # changed without a restart
    replace: tuple[str, ...] = ()  # started anew, with the new definition
    start: tuple[str, ...] = ()  # new
    remove: tuple[str, ...] = ()  # ended, because the new configuration lacks them

    @property
    def is_empty(self) -> bool:
        """Nothing would change."""
        return not (self.live or self.replace or self.start or self.remove)

    def __str__(self) -> str:
        counts = {
            "keep": len(self.keep),
            "apply live": len(self.live),
            "drain": len(self.replace) + len(self.remove),
            "start": len(self.replace) + len(self.start),
        }
        return ", ".join(f"{what} {count}" for what, count in counts.items() if count) or "nothing to do"


def plan_reload(old: Config, new: Config) -> ReloadPlan:
    """How to get from `old` to `new`."""
    groups: dict[str, list[str]] = {"keep": [], "live": [], "replace": [], "start": []}
    is_same = all(
        getattr(old.settings, each) == getattr(new.settings, each)
        for each in ("inherit_env", "isolation", "oauth_dir")
    )
    before, after = _usable(old, is_same), _usable(new, is_same)
    for name, definition in after.items():
        groups[_group(before.get(name), definition)].append(name)
    removed = tuple(name for name in before if name not in after)
    return ReloadPlan(**{group: tuple(names) for group, names in groups.items()}, remove=removed)


def _usable(config: Config, is_same: bool) -> Mapping[str, ServerDefinition]:
    """The servers that can be used, by name. `is_same`: both configurations have the same settings that complete a
    definition, so definitions are compared without them."""
    return {
        name: definition if is_same else _completed(definition, config.settings)
        for name, definition in config.servers.items()
        if name not in config.broken
    }


def _completed(definition: ServerDefinition, settings: Settings) -> ServerDefinition:
    isolation = isolation_of(definition, settings)
    return msgspec.structs.replace(with_settings(definition, settings), isolation=isolation)


def _group(old: ServerDefinition | None, new: ServerDefinition) -> str:
    if old is None:
        return "start"
    if old == new:
        return "keep"
    if policy_only_change(old, new):
        return "live"
    return "replace"
