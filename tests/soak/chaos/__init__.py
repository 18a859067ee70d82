"""Real chaos: `greenroom serve` as a user starts it, with real children, under faults drawn from one seed.

Each module has one job, and they meet in `_course`:

| module | job |
|---|---|
| `_faults` | draws: what is done wrong, and what work goes on meanwhile, both from the seed alone |
| `_cast` | the servers, and the configuration file that names them |
| `_loop`, `_gateway` | one thread, one selector: the gateway's process, its client's pipes, its control socket |
| `_world` | acts: signals, configuration files, clients that come and go |
| `_books` | keeps the driver's own account of every request |
| `_events` | reads the gateway's event log: the table, the numbers, the sum of the calls |
| `_look` | looks from outside, in `/proc`: processes, descriptors, memory |
| `_course` | the course of a run: lives of gateways, acts of chaos with a calm after each, the ways to end |

A run is a sequence of *lives*, each one gateway. The first is the long one: acts of chaos, each followed by a calm in
which everything must come back to what it was after the first act. The others are short and end in the middle of it,
in every way there is, SIGKILL among them.

The sequence of faults follows from the seed. Their timing does not, nor do the processes that happen to be there to be
hit: this is the real thing. A failure prints the seed, the last faults with their times, the last events, and whoever
survived.
"""

from ._books import Contradiction
from ._course import ChaosFailed, Plan, run_chaos
from ._faults import draw_faults, draw_work

__all__ = ["ChaosFailed", "Contradiction", "Plan", "draw_faults", "draw_work", "run_chaos"]
