"""Whether a server can be used: what its definition decides, what was done to it, and what a call is told."""

from __future__ import annotations

import itertools

from tests.support.rows import for_each

from greenroom.config.model import ServerDefinition
from greenroom.protocol.errors import Bug, Problem
from greenroom.protocol.lifecycle import Cause, Ending
from greenroom.supervisor.policy.availability import (
    USABLE,
    Availability,
    AvailabilityState,
    defined,
    down_after,
    down_with,
    drained,
    needs_login,
    removed,
)

ALL = {
    AvailabilityState.USABLE: USABLE,
    AvailabilityState.DOWN: drained("a"),
    AvailabilityState.NEEDS_LOGIN: needs_login("a", "401"),
    AvailabilityState.DISABLED: defined(ServerDefinition("a", disabled=True)),
    AvailabilityState.BROKEN: defined(ServerDefinition("a"), Problem("a.json", "it has no command")),
    AvailabilityState.REMOVED: removed("a"),
}


def test_each_use_has_its_reason_and_usable_has_none() -> None:
    assert list(ALL) == list(AvailabilityState)
    for use, one in ALL.items():
        assert one.state is use
        assert (one.refusal is None) == one.is_usable == (use is AvailabilityState.USABLE)
        assert one.refusal is None or '"a"' in str(one.refusal)


@for_each(("before", "after"), list(itertools.product(AvailabilityState, AvailabilityState)))
def test_what_the_definition_decides_is_not_overridden_by_what_is_done_to_it(
    before: AvailabilityState, after: AvailabilityState
) -> None:
    stays = before in (AvailabilityState.DISABLED, AvailabilityState.BROKEN, AvailabilityState.REMOVED)
    assert ALL[before].is_by_definition == stays
    assert ALL[before].unless_defined(ALL[after]) == ALL[before if stays else after]


UNTRUSTED = Problem("f: mcpServers.a", "is bad", code="server_untrusted")


@for_each(
    ("one", "code", "words"),
    [
        (ALL[AvailabilityState.DISABLED], "server_disabled", "greenroom enable a"),
        (
            ALL[AvailabilityState.BROKEN],
            "config_error",
            'Server "a" cannot be used: a.json: it has no command',
        ),
        (defined(ServerDefinition("a"), UNTRUSTED), "server_untrusted", "cannot be used: f: mcp"),
        (defined(ServerDefinition("a", disabled=True), UNTRUSTED), "server_untrusted", "is bad"),
        (ALL[AvailabilityState.REMOVED], "server_not_connected", "Add it again"),
        (ALL[AvailabilityState.DOWN], "server_not_connected", "was drained. Connect or restart it"),
        (
            down_after("a", Ending(Cause.LOST, "exited")),
            "server_not_connected",
            "is down (lost: exited)",
        ),
        (ALL[AvailabilityState.NEEDS_LOGIN], "auth_required", "401"),
        (down_with(Bug("ours", server="a")), "bug", "ours"),
    ],
)
def test_a_call_is_told_what_helps(one: Availability, code: str, words: str) -> None:
    assert one.refusal is not None
    assert (one.refusal.code, one.refusal.server) == (code, "a")
    assert words in str(one.refusal)
