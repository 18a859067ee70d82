"""The `mcp` tool for a program that gives a room to a model by itself, without a framework and without a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ...protocol.result import ToolResult
from .tool_definition import DEFINITION, NAME

if TYPE_CHECKING:
    from ...supervisor.room import Greenroom, Session


class SearchTool:
    """One tool that lets a model search, describe and call all tools of a room, however many there are. It is the `mcp`
    tool of the gateway. `session`: the session in which the calls are made.

    Give a model its `to_openai()` or `to_anthropic()`, and `room.run_tool_calls(…, also=[tool])` the calls it makes.
    """

    name = NAME  # what a model calls it

    def __init__(self, room: Greenroom, *, session: Session | None = None) -> None:
        from ...supervisor.room import port_of
        from .mcp_tool import McpTool

        self._tool = McpTool(port_of(session or room))

    def to_openai(self) -> dict[str, Any]:
        """The definition in the form of OpenAI's chat completions."""
        return {"type": "function", "function": {**self._about, "parameters": self._schema}}

    def to_anthropic(self) -> dict[str, Any]:
        """The definition in the form of Anthropic's messages."""
        return {**self._about, "input_schema": self._schema}

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Carry out a model's request to the tool. Errors are told in the result."""
        from .mcp_tool import ask

        return ToolResult(dict(await ask(self._tool, arguments)))

    @property
    def _about(self) -> dict[str, Any]:
        return {"name": NAME, "description": DEFINITION["description"]}

    @property
    def _schema(self) -> dict[str, Any]:
        return deepcopy(DEFINITION["inputSchema"])
