"""The owner accepts tools whose definitions have changed, in a room that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..actors import Flush, Sync
from ..actors.apart import apart
from ..protocol.errors import UnknownTool
from ..protocol.index import Target
from ._runtime import Runtime


async def accept(live: Runtime, server: str | None, tool: str | None) -> list[str]:
    """See `Greenroom.accept`."""
    if server is None:
        await _at_the_store(live, live.pins.look)
        return []
    live.root.record(server)
    tools = None if tool is None else [_own_name(live, server, tool)]
    await live.writer.ref.ask(Flush)  # what was learned until now is in the store
    entry = live.router.entry(server)  # another room may have seen other definitions
    return await _at_the_store(live, lambda: live.pins.accept(server, tools, entry))


_T = TypeVar("_T")


async def _at_the_store(live: Runtime, work: Callable[[], _T]) -> _T:
    try:
        return await apart(work) if live.pins.blocks else work()
    finally:
        live.heed_pins()
        await live.router.ref.ask(Sync)


def _own_name(live: Runtime, server: str, tool: str) -> str:
    """What the server itself calls `tool`. Raises `UnknownTool`."""
    index = live.router.index
    counts = index.counts(server)
    if counts is not None and tool in counts.changed:
        return tool
    found = index.resolve(tool, server)
    if not isinstance(found, Target):
        raise UnknownTool(tool, message=f'Server "{server}" has no tool "{tool}".')
    return found.original
