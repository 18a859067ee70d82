"""What a door shows to its clients, and who carries out what they call.

The endpoint knows the protocol and not one tool; an `Exposure` knows its tools and nothing of the protocol. `proxy`
shows exactly one tool, `mcp`, whatever is configured behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ._jobs import Job
from ._mcp_tool import DEFINITION, NAME, McpTool
from ._rpc import INVALID_PARAMS


class Exposure(Protocol):
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools listed, as MCP tool objects, in a stable order."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any], job: Job) -> None:
        """Carry out a tools/call; end `job` exactly once, now or later. Must not block."""
        ...


class Proxy:
    """Every server behind the one `mcp` tool."""

    def __init__(self, tool: McpTool) -> None:
        self._tool = tool

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return (DEFINITION,)

    def call(self, name: str, arguments: Mapping[str, Any], job: Job) -> None:
        if name == NAME:
            self._tool.begin(arguments, job)
            return
        job.fail(
            INVALID_PARAMS, f'Unknown tool: {name}. Use mcp({{ tool: "{name}" }}) to call a server\'s tool.'
        )
