"""Hypothesis strategies: everything a room can be given or told, drawn at random, all of it valid.

    from greenroom.testing import strategies

    @given(strategies.configs(), strategies.fault_scripts())
    def test_…(config, script): …

Each is made from the table it is about (the configuration's keys, the words of a fault script, the lifecycle), so what
is added there is drawn here. Each draws the short thing first and shrinks to it: the smallest configuration has no
server, the smallest script no fault. Rejected: drawing anything and filtering out what is refused; what has many rules
would hardly ever pass, and never shrink.

Needs Hypothesis: `pip install 'greenroom[testing]'`.
"""

from __future__ import annotations

from ._configs import configs, server_entries, server_names
from ._fault_scripts import fault_scripts
from ._lifecycle import Occurrence, lifecycle_events
from ._tools import tool_names, tool_results

__all__ = [
    "Occurrence",
    "configs",
    "fault_scripts",
    "lifecycle_events",
    "server_entries",
    "server_names",
    "tool_names",
    "tool_results",
]
