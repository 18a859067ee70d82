"""B25: what finished tasks cost a model's context, by how many tools there are.

The tasks of `greenroom cost --per-task`, played over real tools, drawn by lot. Tokens are four characters each. Nothing
is timed. `--table` prints the tables of docs/one-tool-or-all.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from greenroom.catalogue.entries import ServerEntry
from greenroom.cli.cost_command import counter
from greenroom.cli.task_costs import ALL_SHOWN, EXPOSURES, PROXY, TASKS, TaskPlayer, crossovers
from greenroom.config.model import Config, ServerDefinition, Settings
from greenroom.gateway.offline_catalogue import OfflineCatalogue

from ._figures import Figure, quantity
from ._real_tools import real_servers
from ._rounds import Size
from ._run import run_alone

_SIZES = (20, 100, 500)


def measure(size: Size) -> Iterator[Figure]:
    _, count = counter()
    for tools in _SIZES[: size.of(3, 1)]:
        tasks = TaskPlayer(_drawn(tools), count)
        done = tasks.play()
        for crossover in crossovers(done, tasks.known, tasks.all_shown):
            task = crossover.task
            costs = {one.exposure: one.cost for one in done if one.task == task}
            note = f"showing all costs less up to {crossover.tools} tools, cached {crossover.cached}"
            for what, tokens in (
                (f"{task}, of {tools} tools", {name: cost.tokens for name, cost in costs.items()}),
                (
                    f"{task}, of {tools} tools, prefix cached",
                    {name: cost.cached for name, cost in costs.items()},
                ),
            ):
                proxy = tokens.pop(PROXY)
                order = {ALL_SHOWN: tokens.pop(ALL_SHOWN), **tokens}
                yield quantity("B25", what, [proxy], "tokens", beside=order, note=note)


def print_tables() -> None:
    """What finished tasks cost, and up to how many tools it is cheaper to show all, with little and with much that the
    client gives in each turn anyway."""
    _, count = counter()
    print(f"| task | tools | {' | '.join(EXPOSURES)} |\n|---|---|{'---|' * len(EXPOSURES)}")
    for task in TASKS:
        for tools in _SIZES:
            done = TaskPlayer(_drawn(tools), count).play()
            costs = [one.cost for one in done if one.task == task]
            numbers = " | ".join(f"{cost.tokens:,.0f} ({cost.cached:,.0f})" for cost in costs)
            print(f"| {task} | {tools} | {numbers} |")
    print(f"\n| in each turn anyway | {' | '.join(TASKS)} |\n|---|{'---|' * len(TASKS)}")
    for context in (0, 10_000, 50_000):
        tasks = TaskPlayer(_drawn(100), count, context)
        found = crossovers(tasks.play(), tasks.known, tasks.all_shown)
        print(f"| {context:,} | {' | '.join(f'{one.tools} ({one.cached})' for one in found)} |")


def _drawn(tools: int) -> OfflineCatalogue:
    """So many real tools, each with its server."""
    every = [(name, tool) for name, record in real_servers().items() for tool in record["tools"]]
    drawn: dict[str, list[object]] = {}
    for name, tool in sorted(random.Random(7).sample(every, tools), key=lambda one: one[0]):
        drawn.setdefault(name, []).append(tool)
    entries = {name: ServerEntry(name, "h", tools=tuple(listed)) for name, listed in drawn.items()}  # type: ignore[arg-type]
    definitions = {name: ServerDefinition(name, command="x") for name in entries}
    return OfflineCatalogue(Config(definitions, Settings()), entries)


if __name__ == "__main__":
    print_tables() if "--table" in sys.argv else run_alone(measure)
