"""The server of `counter.py` as a toolset of verifiers, whose launcher starts toolsets and nothing else."""

from __future__ import annotations

import verifiers.v1 as vf

from benchmarks._peers.counter import note


class CounterConfig(vf.ToolsetConfig):
    """`log`, `deadly`: as the arguments of `counter.py`."""

    log: str = ""
    deadly: int = 0


class Counter(vf.Toolset[CounterConfig, vf.State]):
    TOOL_PREFIX = None
    _count = 0

    @vf.tool
    async def add(self) -> str:
        self._count += 1
        if self.config.log:
            note(self.config.log, self.config.deadly)
        return str(self._count)


if __name__ == "__main__":
    Counter.run()
