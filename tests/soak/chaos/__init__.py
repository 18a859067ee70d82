"""Real chaos: `greenroom serve` as a user starts it, with real children, under faults drawn from one seed.

Each module has one job, and they meet in `_course`:

| module | job |
|---|---|
| `_faults` | draws the faults, and the work that goes on meanwhile, both from the seed alone |
| `_server_file` | the servers, and the configuration file that names them |
| `_loop`, `_gateway` | one thread, one selector: the gateway's process, its client's pipes, its control socket |
| `_world` | does the faults: signals, configuration files, clients that come and go |
| `_ledger` | records every request that the driver sends, and its answer |
| `_events` | reads the gateway's event log: the table, the numbers, the sum of the calls |
| `_look` | looks from outside, in `/proc`: processes, descriptors, memory |
| `_course` | the course of a run: lives of gateways, phases of chaos with a calm after each, the ways to end |

A run is a sequence of *lives*; each life is one gateway. The first life is long. It has phases of chaos, and after each
phase a calm, in which everything must come back to the state after the first phase. The other lives are short and end
in the middle of the chaos, in every possible way, with SIGKILL among them.

The seed determines the sequence of faults. It does not determine their timing, nor which processes exist to be hit,
since everything is real. A failure prints the seed, the last faults with their times, the last events, and the
processes that survived.
"""

from ._course import ChaosFailed, Plan, run_chaos
from ._faults import draw_faults, draw_work
from ._ledger import Contradiction

__all__ = ["ChaosFailed", "Contradiction", "Plan", "draw_faults", "draw_work", "run_chaos"]
