"""The names of `greenroom.testing`. Imported when one of them is first used."""

# One name twice makes it public for type checkers.
# ruff: noqa: I001

from ..actors.peer import ConnectorFactory as ConnectorFactory
from ..tape.server_comparison import compare_servers as compare_servers
from ..tape.tape_comparison import (
    CallDifference as CallDifference,
    Change as Change,
    Comparison as Comparison,
    DefinitionDifference as DefinitionDifference,
    UnsentCalls as UnsentCalls,
    ComparisonPlan as ComparisonPlan,
    Times as Times,
    compare_tapes as compare_tapes,
)
from ..tape.tape_run import TapeRun as TapeRun
from .assertions import (
    assert_no_orphans as assert_no_orphans,
    assert_one_outcome_each as assert_one_outcome_each,
)
from .exploration import (
    Exploration as Exploration,
    NotRepeatableError as NotRepeatableError,
    explore as explore,
    exploring as exploring,
)
from .fake_servers import (
    HANG as HANG,
    FakeCall as FakeCall,
    FakeServer as FakeServer,
    ScriptedServer as ScriptedServer,
    fake_connectors as fake_connectors,
    fake_room as fake_room,
    tool as tool,
)
from ..protocol.fault_scripts import Fault as Fault, FaultScript as FaultScript
from .virtual_time import (
    ScheduleError as ScheduleError,
    StuckError as StuckError,
    VirtualRun as VirtualRun,
    seed_schedule as seed_schedule,
)
from .tape_exploration import explore_tape as explore_tape
from .world import World as World
