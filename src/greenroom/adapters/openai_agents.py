"""OpenAI Agents: a room as one of an agent's `mcp_servers`.

    async with Greenroom.open("mcp.json") as room:
        agent = Agent("helper", mcp_servers=[RoomServer(room)])
        result = await Runner.run(agent, "…")

* *Errors* are results that say so, never exceptions: of an exception the framework tells the model only that there was
  one.
* *Approval* is the framework's: the run is interrupted before the call (`result.interruptions`, `state.approve(…)`).
  The framework has to say that this very call was approved, or the room refuses it. It says so to the resolver of
  `_meta`, which runs in the task that then makes the call, so the answer goes from one to the other in a context
  variable. (It must not go through the `_meta`, which the program fills and the server reads.)
* *Schemas* stay as they are; the framework makes them strict only if the agent asks for it.
* Tried with openai-agents 0.24.0 and mcp 2.3.0.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from typing import Any

from agents.mcp import MCPServer, MCPToolMetaContext, MCPToolMetaResolver
from agents.tool_context import ToolContext
from mcp.types import (
    CallToolResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Tool,
)

from .. import Target
from .mcp_sdk import RoomSession
from .shared import Progress, Room, Tools, said_besides

_approved: ContextVar[str | None] = ContextVar("_approved", default=None)


class RoomServer(MCPServer):
    """The tools, prompts and resources of a room or session, as an `MCPServer` of the framework.

    `room` must be open while this is used. `require_approval`: None uses the room's `approve`; any other value is the
    framework's own setting, and replaces it. `on_progress(tool, params)` gets the progress of servers. `options`: the
    arguments of `agents.mcp.MCPServer`."""

    def __init__(
        self,
        room: Room,
        *,
        name: str = "greenroom",
        require_approval: Any = None,
        tool_meta_resolver: MCPToolMetaResolver | None = None,
        on_progress: Progress | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            require_approval=self._needs_approval if require_approval is None else require_approval,
            tool_meta_resolver=self._resolve_meta,
            **options,
        )
        self._session = RoomSession(room)
        self._name = name
        self._resolver = tool_meta_resolver
        self._tools = Tools(room, Target.to_mcp, on_progress)

    @property
    def name(self) -> str:
        return self._name

    async def connect(self) -> None:
        """Nothing to do: a server starts at its first call."""

    async def cleanup(self) -> None:
        """Nothing to do: the room ends with its own block."""

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        return list((await self._tools.listed()).values())

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        allowed = _approved.get() == tool_name
        told = await self._tools.call(tool_name, arguments, meta=meta, allowed=allowed)
        said = {"content": told.blocks, "isError": told.is_error, **said_besides(told)}
        return CallToolResult.model_validate(said)

    def _needs_approval(self, _run: Any, _agent: Any, tool: Tool) -> bool:
        return self._tools.need_approval(tool.name)

    async def _resolve_meta(self, context: MCPToolMetaContext) -> dict[str, Any] | None:
        run = context.run_context
        approved = isinstance(run, ToolContext) and run.is_tool_approved(run.tool_name, run.tool_call_id)
        _approved.set(context.tool_name if approved is True else None)
        said = self._resolver(context) if self._resolver is not None else None
        return await said if inspect.isawaitable(said) else said

    # ---- prompts and resources --------------------------------------------------------------------------------------

    async def list_prompts(self) -> ListPromptsResult:
        return await self._session.list_prompts()

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        return await self._session.get_prompt(name, arguments)

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        return await self._session.list_resources()

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        return await self._session.list_resource_templates()

    async def read_resource(self, uri: str) -> ReadResourceResult:
        return await self._session.read_resource(uri)
