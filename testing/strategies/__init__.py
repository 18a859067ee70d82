"""Hypothesis strategies for everything that a room can be given. All that they draw is valid.

    from greenroom.testing import strategies

    @given(strategies.configs(), strategies.fault_scripts())
    def test_…(config, script): …

Each is made from a table (the keys of the configuration, the words of a fault script, the lifecycle), so it draws what
is added to the table, too. Each shrinks to the shortest value: a configuration without servers, a script without
faults.
Rejected: to draw anything and filter out what is refused. Where there are many rules, hardly anything would pass, and
nothing would shrink.

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
